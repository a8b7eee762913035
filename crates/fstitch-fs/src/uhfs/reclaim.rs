//! Running a format's reclaimer beside everything else.

use std::sync::atomic::{AtomicBool, Ordering};

use fstitch_core::lock::{Mutex, MutexGuard};
use fstitch_core::order::rank;
use fstitch_core::{Errno, InodeNo, Result, waiting};

use super::node::State;
use super::{LowLevelFs, ReclaimHooks, Reclaimed, Uhfs};

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

    fn with(
        &self,
        ino: InodeNo,
        bytes: usize,
        work: &mut dyn FnMut(&mut L::Inode) -> Result<()>,
    ) -> Result<()> {
        let node = self.node(ino)?;
        let change = self.change(0)?;
        let _writer = self.writer(&change, &node)?;
        change.reserve(0, bytes / self.block_size())?;
        let mut state = node.write()?;
        work(state.inode_mut())
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
