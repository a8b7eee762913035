//! Running a format's reclaimer beside everything else.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use fstitch_core::{Errno, InodeNo, Result};

use super::{LowLevelFs, ReclaimHooks, Reclaimed, Uhfs};

/// Whether the reclaimer runs, and whether it should stop.
#[derive(Debug, Default)]
pub(super) struct Reclaimer {
    stop: AtomicBool,
    running: Mutex<()>,
}

impl Reclaimer {
    /// Stops a run and keeps others from starting while the guard lives.
    pub(super) fn halt(&self) -> MutexGuard<'_, ()> {
        self.stop.store(true, Ordering::SeqCst);
        self.running.lock().expect("no panic while held")
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
        let _running = self.reclaimer.running.lock().expect("no panic while held");
        // A run that finds nothing still makes the volume clean.
        drop(self.change(0)?);
        self.low.reclaim(self)
    }
}

impl<L: LowLevelFs> ReclaimHooks<L::Inode> for Uhfs<L> {
    fn quiesced(&self, start: &mut dyn FnMut()) {
        let _gate = self.gate.write().expect("no panic while held");
        start();
    }

    fn forget(&self, ino: InodeNo) -> bool {
        self.table.forget_idle(ino)
    }

    fn with(&self, ino: InodeNo, work: &mut dyn FnMut(&mut L::Inode) -> Result<()>) -> Result<()> {
        let node = self.node(ino)?;
        let _writer = self.writer(&node);
        let mut state = node.write()?;
        work(state.inode_mut())
    }

    fn reserve(&self, bytes: usize) -> Result<()> {
        self.change(0)?.reserve(bytes)
    }

    fn stop(&self) -> bool {
        self.reclaimer.stop.load(Ordering::SeqCst)
    }
}
