//! Running a format's reclaimer beside everything else.

use std::sync::atomic::{AtomicBool, Ordering};

use fstitch_core::lock::{Mutex, MutexGuard};
use fstitch_core::order::rank;
use fstitch_core::{Errno, InodeNo, Result, waiting};

use super::node::{State, unless_gone};
use super::{LowLevelFs, ReclaimHooks, Reclaimed, Uhfs, WithInode};

/// Whether the reclaimer runs, and whether it should stop.
#[derive(Debug, Default)]
pub(super) struct Reclaimer {
    stop: AtomicBool,
    /// A run has found no directory with two names, or has mended it.
    settled: AtomicBool,
    running: Mutex<(), rank::Reclaim>,
}

impl Reclaimer {
    /// Stops a run and keeps others from starting while the guard lives.
    pub(super) fn halt(&self) -> MutexGuard<'_, ()> {
        self.stop.store(true, Ordering::SeqCst);
        self.running.lock()
    }
}

impl<L: LowLevelFs> Uhfs<L> {
    /// Reclaims, while the volume is in use, what a crash has left: to be run in a thread of its own after an
    /// unclean unmount. Unmounting stops it.
    ///
    /// # Errors
    /// Failures of the medium and damage found; what was reclaimed until then stays so.
    pub fn reclaim(&self) -> Result<Reclaimed> {
        if self.options.read_only {
            return Err(Errno::ROFS.into());
        }
        let _running = self.reclaimer.running.lock();
        // A run that finds nothing still makes the volume clean.
        drop(self.change(0)?);
        let done = self.low.reclaim(self)?;
        let settled = done.left_alone + done.busy == 0 && done.refusal.is_none() && !self.stop();
        self.reclaimer.settled.fetch_or(settled, Ordering::SeqCst);
        Ok(done)
    }

    /// Refuses with `EBUSY` to free an empty directory that may have a second name from before a crash: its count is
    /// higher than its own two names, and nobody has looked yet. Freed now, it would leave that name dangling.
    pub(super) fn refuse_second_name(&self, dir: &State<L::Inode>) -> Result<()> {
        let nlink = self.low.attr(dir.inode()).nlink;
        if nlink > 2 && self.may_have_second_names() { Err(Errno::BUSY.into()) } else { Ok(()) }
    }

    fn may_have_second_names(&self) -> bool {
        self.low.was_unclean() && !self.reclaimer.settled.load(Ordering::SeqCst)
    }

    /// Runs `work`, and once more after the reclaimer has looked if it met a directory that may have two names.
    pub(super) fn retry_settled(&self, work: impl Fn() -> Result<()>) -> Result<()> {
        match work() {
            Err(error) if error.errno() == Errno::BUSY && self.may_have_second_names() => {
                waiting::ask()?;
                self.reclaim()?;
                work()
            }
            outcome => outcome,
        }
    }
}

impl<L: LowLevelFs> ReclaimHooks<L::Inode> for Uhfs<L> {
    fn quiesced(&self, bytes: usize, work: &mut dyn FnMut()) -> Result<()> {
        if bytes > 0 {
            self.cache().reserve(bytes)?;
        }
        let _gate = self.shut_gate();
        let _step = self.cache().begin(0, bytes / self.block_size())?;
        work();
        Ok(())
    }

    fn forget(&self, ino: InodeNo) -> bool {
        self.table.forget_idle(ino)
    }

    fn keep(&self, ino: InodeNo) -> Result<bool> {
        self.adopt(ino)
    }

    fn with(&self, ino: InodeNo, bytes: usize, work: WithInode<'_, L::Inode>) -> Result<bool> {
        let Some(node) = unless_gone(self.node(ino))? else { return Ok(false) };
        let change = self.change(0)?;
        let _writer = self.writer(&change, &node)?;
        change.reserve(0, bytes / self.block_size())?;
        let Some(mut state) = unless_gone(node.write())? else { return Ok(false) };
        let cleared = work(state.inode_mut())?;
        self.delay_growth(&mut state, &cleared);
        Ok(true)
    }

    fn step(&self, bytes: usize, work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let change = self.change(0)?;
        change.reserve(0, bytes / self.block_size())?;
        work()
    }

    fn stop(&self) -> bool {
        self.reclaimer.stop.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fstitch_core::{Caller, FileSystem, Le, ManualClock, MemDevice, Timestamp};
    use fstitch_patch::{Cache, CacheOptions, PatchState};

    use super::super::UhfsOptions;
    use super::*;
    use crate::ext2::mkfs::{MkfsOptions, mkfs};
    use crate::ext2::{Ext2, Inode};

    const BLOCK: usize = 1024;

    fn mount(device: &Arc<MemDevice>) -> Uhfs<Ext2> {
        let cache = Cache::new(device.clone(), CacheOptions::default(), Arc::new(ManualClock::new()));
        Uhfs::new(Ext2::open(cache).unwrap(), UhfsOptions::default())
    }

    /// A volume that was not unmounted, with a file whose count of blocks is too high.
    fn crashed() -> (Arc<MemDevice>, InodeNo) {
        let device = Arc::new(MemDevice::new(1024, 8192));
        let made = MkfsOptions::new([7; 16], [9; 16], Timestamp::default());
        mkfs(&*device, &MkfsOptions { block_size: Some(1024), ..made }, &mut |_, _| ()).unwrap();
        let fs = mount(&device);
        let ino = fs.mknod(&Caller::default(), fs.root(), b"file", 0o100_644, 0).unwrap().attr.ino;
        fs.write(&Caller::default(), ino, 0, &[1; 5000]).unwrap();
        fs.sync().unwrap();
        drop(fs);
        let mut image = device.image();
        let table = usize::try_from(Le::u32(&image, 2 * BLOCK + 8)).unwrap() * BLOCK;
        let inode_size = usize::from(Le::u16(&image, BLOCK + 88));
        let sectors = table + (usize::try_from(ino.get()).unwrap() - 1) * inode_size + 28;
        assert_eq!(image[sectors], 10, "five blocks");
        image[sectors] = 12;
        (Arc::new(MemDevice::from_image(1024, image)), ino)
    }

    /// What was behind a file's end is not seen when the file grows, not after another crash either: the clearing is among what growth
    /// comes after.
    #[test]
    fn a_file_grows_after_what_was_behind_its_end_has_gone() {
        let (device, ino) = crashed();
        let fs = mount(&device);
        // With blocks that an indirect one points at.
        fs.write(&Caller::default(), ino, 0, &[1; 20_000]).unwrap();
        fs.sync().unwrap();
        drop(fs);
        let mut image = device.image();
        let table = usize::try_from(Le::u32(&image, 2 * BLOCK + 8)).unwrap() * BLOCK;
        let inode_size = usize::from(Le::u16(&image, BLOCK + 88));
        let size = table + (usize::try_from(ino.get()).unwrap() - 1) * inode_size + 4;
        image[size..size + 4].copy_from_slice(&14_500_u32.to_le_bytes());
        let fs = mount(&Arc::new(MemDevice::from_image(1024, image)));
        assert_eq!(fs.reclaim().unwrap().counts, 1);
        let growth = fs.node(ino).unwrap().read().unwrap().growth;
        assert_eq!(
            fs.cache().state(growth),
            PatchState::Uncommitted,
            "the clearing is not on the medium yet"
        );
    }

    /// Somebody who removes the file in the moment between the reclaimer's look at it and its work on it.
    struct Meddler<'a>(&'a Uhfs<Ext2>);

    impl ReclaimHooks<Inode> for Meddler<'_> {
        fn quiesced(&self, bytes: usize, work: &mut dyn FnMut()) -> Result<()> {
            self.0.quiesced(bytes, work)
        }

        fn forget(&self, ino: InodeNo) -> bool {
            ReclaimHooks::forget(self.0, ino)
        }

        fn with(&self, ino: InodeNo, bytes: usize, work: WithInode<'_, Inode>) -> Result<bool> {
            let _ = self.0.unlink(&Caller::default(), self.0.root(), b"file");
            self.0.with(ino, bytes, work)
        }

        fn keep(&self, ino: InodeNo) -> Result<bool> {
            self.0.keep(ino)
        }

        fn step(&self, bytes: usize, work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
            self.0.step(bytes, work)
        }

        fn stop(&self) -> bool {
            ReclaimHooks::stop(self.0)
        }
    }

    #[test]
    fn a_wrong_count_is_corrected() {
        let (device, ino) = crashed();
        let fs = mount(&device);
        let done = fs.reclaim().unwrap();
        assert!(done.complete && done.counts == 1, "{done:?}");
        assert_eq!(fs.getattr(ino).unwrap().blocks, 10);
    }

    #[test]
    fn a_file_that_goes_before_it_is_corrected_is_no_failure() {
        let (device, ino) = crashed();
        let fs = mount(&device);
        let done = fs.low.reclaim(&Meddler(&fs)).unwrap();
        assert!(done.complete && done.counts == 0 && done.refusal.is_none(), "{done:?}");
        assert!(fs.getattr(ino).is_err(), "the file is gone");
        fs.unmount().unwrap();
    }
}
