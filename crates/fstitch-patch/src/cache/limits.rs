//! Room for operations: the one place where they wait.

use fstitch_core::order::{Rank, assert_below};
use fstitch_core::waiting;
use fstitch_core::{Errno, Error, Result};

use super::step::{Goal, Progress};
use super::{Cache, Core, Shared};
use crate::observer::What;

/// See [`Shared::is_early`], in bytes.
const EARLY_FROM: usize = 64 << 20;

impl Cache {
    /// The most bytes that one step of an operation should dirty: longer operations reserve again between
    /// self-contained steps.
    #[must_use]
    pub fn step_bytes(&self) -> usize {
        let most = (self.options.cache_size / 16).clamp(4 * self.shared.block_size, 1 << 20);
        // Steps of a volume whose changes go through the journal of the one below must fit a transaction there.
        match self.log_bytes_below() {
            Some(log) => most.min(log / 16).max(self.shared.block_size),
            None => most,
        }
    }

    /// Waits until an operation may dirty about `bytes`. To be called at the start of every changing
    /// operation, holding no lock.
    ///
    /// # Errors
    /// `EROFS` on a read-only cache; [`Error::Poisoned`] after a failed write.
    pub fn reserve(&self, bytes: usize) -> Result<()> {
        self.reserve_if(bytes, || Ok(()))
    }

    /// The same for an operation that has changed nothing yet.
    ///
    /// # Errors
    /// Those of [`Cache::reserve`]; [`Error::WouldWait`] where there is no room and this thread refuses to wait. Nothing is kept
    /// for it then, and nobody was asked to write.
    pub fn reserve_first(&self, bytes: usize) -> Result<()> {
        self.reserve_if(bytes, waiting::ask)
    }

    fn reserve_if(&self, bytes: usize, may_wait: impl Fn() -> Result<()>) -> Result<()> {
        assert_below(Rank::Inode, "waiting for room");
        let shared = &*self.shared;
        if self.options.read_only {
            return Err(Error::Errno(Errno::ROFS));
        }
        let mut core = shared.core();
        let mut waited = false;
        let rounds = core.idle_rounds;
        loop {
            Shared::check_volume(&core, self.volume)?;
            shared.note_dirty(&mut core);
            if shared.has_room(&core, bytes) {
                return Ok(());
            }
            may_wait()?;
            if !std::mem::replace(&mut waited, true) {
                core.graph.stats.waits += 1;
                core.tell(|_| What::Stalled);
            }
            if core.has_flusher {
                core.pressure = true;
                shared.kick.notify_all();
                core = shared.wait(core);
                if core.idle_rounds > rounds + 1 {
                    // Nothing could be written since we asked, as below.
                    return Shared::check_failures(&core);
                }
                continue;
            }
            shared.ask_all_to_close(&mut core);
            drop(core);
            let progress = {
                let _epoch = shared.epoch();
                shared.write_epoch(Goal::Room)?
            };
            core = shared.core();
            if progress == Progress::Idle {
                // Nothing can be written: what is dirty waits for something that only operations can bring, or for what is lost.
                return Shared::check_failures(&core);
            }
        }
    }

    /// Asks the flusher to write soon, whatever the age of changes, and waits for nothing: for a file system that keeps
    /// memory beside the cache which only stable changes give back.
    pub fn write_soon(&self) {
        self.shared.core().pressure = true;
        self.shared.kick.notify_all();
    }
}

impl Shared {
    /// Fails if what has no room now will never have any.
    fn check_failures(core: &Core) -> Result<()> {
        Self::check_poison(core)?;
        core.failures.first().map_or(Ok(()), Err)
    }

    /// Dirty bytes from which on contents are written early. Below, what comes is small or soon over.
    fn early_limit(&self) -> usize {
        EARLY_FROM.min(self.options.cache_size / 8)
    }

    /// The least and the most blocks of an epoch that are written early: each epoch costs a flush, and somebody may come who
    /// waits for the next one.
    pub(super) fn early_blocks(&self) -> (usize, usize) {
        let blocks = self.early_limit() / self.block_size;
        (blocks / 16, blocks / 4)
    }

    /// Whether contents should go to the medium although nobody waits for them and they are not old.
    pub(super) fn is_early(&self, core: &Core) -> bool {
        core.graph.dirty().len() * self.block_size > self.early_limit()
    }

    /// Wakes the flusher when there has come to be much to write.
    fn note_dirty(&self, core: &mut Core) {
        let early = self.is_early(core);
        if early && !core.early && core.has_flusher {
            self.kick.notify_all();
        }
        core.early = early;
    }

    /// Bytes that changes may hold: three quarters of the cache. Much that is written soon dies soon, and what is read again is
    /// mostly what was written last.
    fn dirty_limit(&self) -> usize {
        self.options.cache_size / 4 * 3
    }

    /// Bytes that changes hold.
    fn dirty_bytes(&self, core: &Core) -> usize {
        (core.graph.dirty().len() + core.copies_in_flight) * self.block_size + core.graph.patch_bytes()
    }

    fn has_room(&self, core: &Core, bytes: usize) -> bool {
        core.graph.dirty().is_empty() || self.dirty_bytes(core) + bytes <= self.dirty_limit()
    }

    /// Whether the flusher should write although nothing is old.
    pub(super) fn wants_room(&self, core: &Core) -> bool {
        core.pressure || self.dirty_bytes(core) > self.options.cache_size / 2
    }

    /// Whether the flusher has made enough room.
    pub(super) fn has_enough_room(&self, core: &Core) -> bool {
        self.dirty_bytes(core) <= self.options.cache_size / 4
    }
}
