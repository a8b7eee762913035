//! `full-check` and `remount`, as a mount carries them out.
//!
//! ```text
//!   remount:     operations wait ─ the opening ends ─ maps examined ─ journal replayed ─ opened anew ─ operations go on
//!   full-check:  operations wait ─ the opening is still ─┬ sound ─────────────────────────────────── operations go on
//!                                                        ├ `fsck -p` would mend it: as remount, mended before it is opened
//!                                                        └ it would not: nothing was changed ─────── operations go on
//! ```
//!
//! The check is of what is on the disk while nothing of the opening reaches it, with the journal replayed in memory: a volume is consistent at any
//! moment, by its journal or by the order of its writes, so what is only in the cache need not be written first. Blocks are read as they lie, whether
//! they are believed or not: the check is to judge them.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, RwLockWriteGuard};
use std::time::Duration;

use anyhow::{Context, Result as Outcome, ensure};
use fstitch_core::lock::Unpoisoned;
use fstitch_core::{
    BlockDevice, BlockNo, BlockRead, BlockWrite, Clock, Geometry, Overlay, RepairMode, RepairOptions,
    RepairReport, Result, SystemClock,
};
use fstitch_formats::{self as formats, Format};
use fstitch_fs::view::BlockView;
use fstitch_shepherd::{Era, Remedy, Shepherd};

use super::owed::Touched;
use super::{Gate, Opening, Parts};
use crate::mount::daemon::reclaimed;
use crate::mount::reopen::insist;
use crate::{open, recovery};

/// What is said of a volume that could not be opened again.
pub(super) const GONE: &str =
    "after a fault the volume could not be opened again: unmount it, and run `fstitch fsck`";

/// Remedies in [`WHILE`], at most: a fault that comes back as often is left to the rest of its chain.
const REMEDIES_MAX: usize = 3;
const WHILE: Duration = Duration::from_secs(60);
/// Bytes of the blocks in which a volume is checked.
const CHECKED_IN: usize = 1024;

type Current<'g> = RwLockWriteGuard<'g, Option<Arc<Opening>>>;

/// What a check has come to.
enum Found {
    Sound,
    /// `fsck -p` mends it.
    Mendable(RepairReport),
    /// It does not, and why.
    Damaged(String),
}

impl Remedy for Gate {
    fn is_willing(&self) -> bool {
        let now = self.clock.elapsed();
        let mut recent = self.recent.lock().unpoisoned();
        recent.retain(|began| now < *began + WHILE);
        if self.has_ended.load(Ordering::SeqCst) {
            return false;
        }
        if recent.len() >= REMEDIES_MAX {
            tracing::warn!(
                "{REMEDIES_MAX} times in the last minute the volume was checked or opened anew after a fault, which goes on: \
                 for now the next steps of its policy are tried instead"
            );
            return false;
        }
        recent.push_back(now);
        true
    }

    fn full_check(&self) -> bool {
        let parts = self.parts.lock().unpoisoned();
        let Some((parts, mut current)) = self.shut(&parts) else { return false };
        let Some(opening) = current.clone() else { return false };
        let name = &parts.name;
        self.full_checks.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            "{name}: checking the volume after a fault, as its policy says (`full-check`); programs wait"
        );
        match opening.era.while_still(|| examine(parts)) {
            Ok(Found::Sound) => {
                tracing::info!("{name}: the check has found nothing wrong; programs go on");
                true
            }
            Ok(Found::Mendable(report)) => {
                tracing::warn!(
                    "{name}: the check has found what it can mend, such as {}: the volume is mended and opened anew",
                    first_finding(&report)
                );
                self.open_anew(parts, &mut current, true)
            }
            Ok(Found::Damaged(why)) => {
                tracing::warn!(
                    "{name}: the check cannot make the volume sound: {why}; nothing was changed, and programs go on"
                );
                false
            }
            Err(error) => {
                let why = crate::output::reasons(&error);
                tracing::warn!("{name}: the volume cannot be checked: {why}; programs go on");
                false
            }
        }
    }

    fn remount(&self) -> bool {
        let parts = self.parts.lock().unpoisoned();
        let Some((parts, mut current)) = self.shut(&parts) else { return false };
        tracing::warn!(
            "{}: opening the volume anew after a fault, as its policy says (`remount`): what is not stable is given up; programs wait",
            parts.name
        );
        self.open_anew(parts, &mut current, false)
    }
}

impl Gate {
    /// Lets no operation begin as long as what it returns lives; nothing where there is no volume any more.
    fn shut<'g>(&'g self, parts: &'g MutexGuard<'_, Option<Parts>>) -> Option<(&'g Parts, Current<'g>)> {
        let parts = parts.as_ref()?;
        let current = self.current.write().unpoisoned();
        (current.is_some() && !self.has_ended.load(Ordering::SeqCst)).then_some((parts, current))
    }

    /// Ends the current opening, and takes another one; whether there is one.
    fn open_anew(&self, parts: &Parts, current: &mut Current<'_>, mends: bool) -> bool {
        let Some(old) = current.take() else { return false };
        let began = self.clock.elapsed();
        self.remounts.fetch_add(1, Ordering::Relaxed);
        old.era.end();
        // From here on nobody is told that a change was made, so all notes are there.
        old.is_over.store(true, Ordering::SeqCst);
        let mut references = old.fs.references();
        let touched = std::mem::take(&mut *old.touched());
        let opened = insist(|| opened(parts, mends).with_context(|| parts.name.clone()));
        let (fs, era) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                tracing::error!("{}; {GONE}", crate::output::reasons(&error));
                self.has_ended.store(true, Ordering::SeqCst);
                self.owed.add(&touched, Vec::new());
                release(old);
                return false;
            }
        };
        let life = |ino| fs.getattr(ino).ok().map(|attr| attr.generation);
        let strangers = touched.strangers(&mut references, life);
        fs.take_over(&references);
        self.owed.add(&touched, strangers);
        let opening = Arc::new(Opening::new(fs, Arc::clone(&era), &parts.kept));
        **current = Some(Arc::clone(&opening));
        era.settled();
        let took = self.clock.elapsed().saturating_sub(began);
        let changed = touched.inodes().count();
        tracing::warn!(
            "{}: the volume is open again after {} ms; {}",
            parts.name,
            took.as_millis(),
            match changed {
                0 => "no file had changes that were not stable".to_owned(),
                _ => format!(
                    "up to {changed} files and directories have lost what was not made stable, and the next fsync of each fails with EIO"
                ),
            }
        );
        self.afterwards(old, opening, touched, parts);
        true
    }

    /// What nobody waits for: the kernel is told what is not so any more, the old opening goes, and what it has left is reclaimed.
    fn afterwards(&self, old: Arc<Opening>, new: Arc<Opening>, touched: Touched, parts: &Parts) {
        let kernel = self.kernel.get().cloned();
        let reclaims = parts.reclaims && new.fs.was_unclean();
        let name = parts.name.clone();
        let work = move || {
            if let Some(kernel) = kernel {
                touched.names().for_each(|(parent, name)| kernel.name(parent, name));
                touched.inodes().for_each(|ino| kernel.inode(ino));
            }
            // Its flusher may be waiting for the remedy that made an end of it.
            drop(old);
            if !reclaims {
                return;
            }
            match new.fs.reclaim() {
                Ok(done) => tracing::info!("{name}: {}", reclaimed(&done)),
                Err(error) => tracing::warn!("{name}: reclaiming what was given up has failed: {error}"),
            }
        };
        if let Err(error) = std::thread::Builder::new().name("afterwards".into()).spawn(work) {
            tracing::warn!("the kernel may show for a while what was given up: {error}");
        }
    }
}

/// Lets go of an opening in a thread of its own: its flusher may be waiting for the remedy that made an end of it.
fn release(old: Arc<Opening>) {
    if let Err(error) = std::thread::Builder::new().name("afterwards".into()).spawn(move || drop(old)) {
        tracing::debug!("an opening is let go of here: {error}");
    }
}

/// A new opening of the volume, recovered as after a crash, and mended before if `mends`.
fn opened(parts: &Parts, mends: bool) -> Outcome<(Arc<dyn formats::Volume>, Arc<Era>)> {
    let shepherd = parts.kept.shepherd();
    shepherd.recover().context("examining what was under way")?;
    let era = Arc::new(parts.kept.era());
    if mends {
        let lies = AsItLies::over(shepherd, parts.kept.era());
        recover(parts.format, &lies)?;
        let report = mend(parts.format, &lies)?;
        ensure!(report.left.corrupt == 0, "not all was mended: {}", first_finding(&report));
        lies.flush()?;
    }
    let fs = open::anew(Arc::clone(&era) as _, parts.format, &parts.options)?;
    fs.start()?;
    Ok((fs, era))
}

fn recover(format: &dyn Format, device: &dyn BlockDevice) -> Outcome<()> {
    if format.needs_recovery(&device)? {
        recovery::recover(format, device, None).context("replaying the journal")?;
    }
    Ok(())
}

/// As `fsck -p` does.
fn mend(format: &dyn Format, device: &dyn BlockDevice) -> Result<RepairReport> {
    let view = BlockView::new(device, CHECKED_IN);
    format.repair(&view, RepairOptions { mode: RepairMode::Preen, now: SystemClock::new().now() })
}

/// Finds out what `fsck -p` would make of what is on the disk, and changes nothing there.
fn examine(parts: &Parts) -> Outcome<Found> {
    let lies = AsItLies::over(parts.kept.shepherd(), parts.kept.era());
    let view = Overlay::new(&lies);
    if parts.format.needs_recovery(&view)? {
        recovery::recover_in_memory(parts.format, &view, None).context("replaying the journal in memory")?;
    }
    let report = mend(parts.format, &view)?;
    let doubted = lies.doubted();
    Ok(match (report.found.corrupt, doubted) {
        // What a volume in use may show, such as files without a name, is nothing to be mended now.
        (0, None) => Found::Sound,
        (0, Some(_)) if report.mended > 0 && report.left.corrupt == 0 => Found::Mendable(report),
        (0, Some(block)) => Found::Damaged(format!(
            "block {block} is not what was written, though nothing speaks against what it holds"
        )),
        _ => Found::Damaged(first_finding(&report)),
    })
}

fn first_finding(report: &RepairReport) -> String {
    let findings = &report.found.findings;
    let corrupt = findings.iter().find(|finding| finding.class == fstitch_core::FindingClass::Corrupt);
    corrupt.or(findings.first()).map_or_else(|| "nothing".to_owned(), |finding| finding.text.clone())
}

/// A volume whose blocks are read as they lie where they are not believed.
struct AsItLies<'s> {
    shepherd: &'s Shepherd,
    era: Era,
    /// Blocks that were not believed.
    doubted: std::sync::Mutex<BTreeSet<BlockNo>>,
}

impl<'s> AsItLies<'s> {
    fn over(shepherd: &'s Shepherd, era: Era) -> Self {
        Self { shepherd, era, doubted: std::sync::Mutex::default() }
    }

    /// The first block that was not believed.
    fn doubted(&self) -> Option<BlockNo> {
        self.doubted.lock().unpoisoned().first().copied()
    }
}

impl BlockDevice for AsItLies<'_> {
    fn geometry(&self) -> Geometry {
        self.era.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        for read in reads {
            if self.era.read(std::slice::from_mut(read)).is_err() {
                self.shepherd.read_as_it_lies(std::slice::from_mut(read))?;
                self.doubted.lock().unpoisoned().insert(read.block);
            }
        }
        Ok(())
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        self.era.write(writes)
    }

    fn flush(&self) -> Result<()> {
        self.era.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.era.discard(start, count)
    }

    fn intact(&self) -> Result<()> {
        self.era.intact()
    }
}
