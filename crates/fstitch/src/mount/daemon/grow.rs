//! A volume that grows while it is mounted: closed, grown and opened again under a mount that stays (`docs/design/resize.md`).

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fstitch_core::lock::Unpoisoned;
use fstitch_formats as formats;
use fstitch_formats::resize::Resized;

use super::{Daemon, Reopening};
use crate::mount::reopen::Between;
use crate::open::Volume;
use crate::resize;

impl Daemon {
    /// Grows the volume, to all of its device or partition without a size; programs wait meanwhile.
    ///
    /// # Errors
    /// Where it cannot be opened anew, or something would not outlive that; those of [`resize::Place::resize`]. It is open as before then,
    /// or the message says that it is not.
    pub(super) fn grow(&self, size: Option<&str>) -> Result<Resized> {
        let Some(reopening) = self.reopening.get() else {
            bail!(
                "the volume cannot be opened anew while it is mounted (it is one of a stack, follows a policy, or tells other machines that it is \
                 in use): unmount it first"
            );
        };
        ensure!(!self.shown().read_only, "the volume is mounted for reading only");
        let _one = reopening.one.lock().unpoisoned();
        let place = reopening.place(size)?;
        self.with(|volume| {
            volume.fs.sync()?;
            await_deleted(&*volume.fs)
        })?;
        // Nobody waits for the volume meanwhile: who opens it asks all mounts for their status, this one too.
        let volume = self.take_volume().context("the volume has been unmounted")?;
        self.heard.end(&volume);
        tracing::info!("closing the volume to change its size; programs wait");
        let open = || {
            let volume = Volume::open(&reopening.image, &reopening.options)?;
            volume.fs.start()?;
            Ok(volume)
        };
        let work = || place.resize(size, &mut |_, _| {});
        match reopening.seat.between(volume, await_deleted, work, open) {
            Between::Refused(volume, why) => {
                *self.volume.write().unpoisoned() = Some(volume);
                Err(why)
            }
            Between::Done(volume, done) => {
                tracing::info!("the volume is open again");
                *self.volume.write().unpoisoned() = Some(volume);
                done
            }
            Between::Gone(why) => {
                tracing::error!("the volume is not open any more, and everything fails: {why:#}");
                Err(why.context("everything fails at this mount now: unmount it, and run `fstitch fsck`"))
            }
        }
    }

    /// Takes the volume from those who look at it, when they have finished: a check may take long, and keeps nobody else from looking.
    fn take_volume(&self) -> Option<Volume> {
        loop {
            match self.volume.try_write() {
                Ok(mut volume) => return volume.take(),
                Err(std::sync::TryLockError::Poisoned(volume)) => return volume.into_inner().take(),
                Err(std::sync::TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

impl Reopening {
    /// Where the volume is, if it is known how far it may grow.
    fn place(&self, size: Option<&str>) -> Result<resize::Place<'_>> {
        let (image, offset) = (&*self.image, self.options.offset);
        let table = if offset == 0 { None } else { fstitch_disk::partitions(image)? };
        let entry = table.and_then(|table| table.into_iter().find(|entry| entry.start == offset));
        ensure!(
            offset == 0 || entry.is_some() || size.is_some(),
            "{}: the volume starts at byte {offset}, and what is behind it may be somebody's: say how large it is to be",
            image.display()
        );
        Ok(resize::Place { image, offset, partition: entry.map(|entry| entry.number), only_larger: true })
    }
}

/// How long is waited for the kernel to forget files that have just been removed.
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(2);

/// Waits a while for files without a name to go; fails where something would not outlive that the volume is closed.
fn await_deleted(fs: &dyn formats::Volume) -> Result<()> {
    let pause = Duration::from_millis(20);
    let mut waited = Duration::ZERO;
    while fs.deleted_in_use() > 0 && waited < FORGOTTEN_WITHIN {
        std::thread::sleep(pause);
        waited += pause;
    }
    let deleted = fs.deleted_in_use();
    ensure!(
        deleted == 0,
        "{deleted} files are open that have been deleted (`lsof +L1` shows by whom): they would be lost where the volume is opened anew"
    );
    let groups = fs.cache().map_or(0, |cache| cache.view(0).totals.groups);
    ensure!(
        groups == 0,
        "programs use {groups} patchgroups (`fstitch graph`), which would be lost where the volume is opened anew"
    );
    Ok(())
}
