//! Waiting for patches to become stable.
//!
//! Whoever waits writes epochs itself, one caller at a time; each epoch serves all who wait, so that callers who
//! come together share their flushes.

use std::sync::atomic::Ordering;

use fstitch_core::{Errno, Error, IoOp, Result};

use super::step::{Goal, Progress};
use super::{Cache, Core, Shared};
use crate::graph::patch::Vx;
use crate::{Durability, PatchId, PatchState};

impl Cache {
    /// Makes these patches, and what they depend on, stable; nothing else is written that does not share their
    /// blocks.
    ///
    /// # Errors
    /// `EIO` after a failed write or flush, now or earlier; `EBUSY` if a held patch stands in the way.
    pub fn sync_patches(&self, patches: &[PatchId]) -> Result<()> {
        Shared::check_volume(&self.shared.core(), self.volume).map_err(lost)?;
        self.intact()?;
        if self.shared.write_patches(patches).map_err(lost)? {
            return self.shared.flush_if_unsafe();
        }
        Ok(())
    }

    /// Makes everything stable that was changed before the call.
    ///
    /// # Errors
    /// As for [`Cache::sync_patches`].
    pub fn sync_all(&self) -> Result<()> {
        let shared = &*self.shared;
        self.intact()?;
        let (horizon, is_shared) = {
            let core = shared.core();
            Shared::check_volume(&core, self.volume).map_err(lost)?;
            (core.graph.next_generation(), core.volumes.len() > 1)
        };
        if is_shared || self.journaled.load(Ordering::Acquire) {
            return shared.sync_volume(self.volume, horizon).map_err(lost);
        }
        let waiter = Shared::announce(&mut shared.core(), &[]);
        let written = shared.write_everything(horizon);
        Shared::withdraw(&mut shared.core(), waiter);
        written.map_err(lost)?;
        shared.flush_if_unsafe()
    }

    /// Fails, and ends all writing, if the medium is no longer what was opened. Without this question, a sync that has nothing
    /// to write would answer for a medium that is not there.
    ///
    /// # Errors
    /// `EIO`, with what is wrong.
    pub fn intact(&self) -> Result<()> {
        self.shared.medium.intact().inspect_err(|error| {
            let why =
                if let Error::Io { source, .. } = error { source.to_string() } else { error.to_string() };
            self.shared.poison(&why);
        })
    }
}

impl Shared {
    /// Makes these patches stable, and what they depend on. Returns whether they were not so already.
    pub(in crate::cache) fn write_patches(&self, patches: &[PatchId]) -> Result<bool> {
        let waiter = {
            let mut core = self.core();
            if patches.iter().all(|&id| core.graph.state(id) == PatchState::Committed) {
                return Self::check_poison(&core).map(|()| false);
            }
            Self::announce(&mut core, patches)
        };
        let outcome = self.write_until(patches);
        Self::withdraw(&mut self.core(), waiter);
        outcome.map(|()| true)
    }

    /// Somebody waits for these patches, or with none for epochs of its own: the flusher leaves it those that come. Returns who.
    pub(in crate::cache) fn announce(core: &mut Core, patches: &[PatchId]) -> u64 {
        let waiter = core.next_waiter;
        core.next_waiter += 1;
        core.wanted.push((waiter, patches.to_vec()));
        core.marked = None;
        waiter
    }

    /// It waits no more.
    pub(in crate::cache) fn withdraw(core: &mut Core, waiter: u64) {
        core.wanted.retain(|(other, _)| *other != waiter);
        core.marked = None;
    }

    /// Writes all patches that existed before `horizon`.
    fn write_everything(&self, horizon: u64) -> Result<()> {
        loop {
            let _epoch = self.epoch();
            {
                let core = self.core();
                Self::check_poison(&core)?;
                if !core.graph.has_patch_before(horizon) {
                    return Ok(());
                }
            }
            if self.write_epoch(Goal::Everything)? == Progress::Idle {
                return Err(self.core().failures.first().unwrap_or(Error::Errno(Errno::BUSY)));
            }
        }
    }

    /// Writes epochs for all who wait until `patches` are stable. What they need is looked for once, and again when nothing
    /// is left to write of what was found: a long chain takes many epochs, and each look walks all of it.
    fn write_until(&self, patches: &[PatchId]) -> Result<()> {
        let mut is_known = false;
        loop {
            let _epoch = if is_known {
                let epoch = self.epoch();
                let core = self.core();
                Self::check_poison(&core)?;
                if patches.iter().all(|&id| core.graph.state(id) == PatchState::Committed) {
                    return Ok(());
                }
                epoch
            } else {
                let Some(epoch) = self.open_way(|graph| graph.mark_closure(patches))? else { return Ok(()) };
                // That look has taken marks from those of all who wait.
                self.core().marked = None;
                epoch
            };
            let progress = self.write_epoch(Goal::Wanted)?;
            // Where a journal is kept, a patch may have come to wait for the next transaction since we looked.
            let may_wait = is_known || self.journaled.load(Ordering::Acquire);
            assert!(may_wait || progress != Progress::Idle, "an acyclic graph always has a block to write");
            is_known = progress != Progress::Idle;
        }
    }

    /// Commits the volume's running transaction and writes what does not go through a log. What is stable in the log
    /// need not go home for that.
    fn sync_volume(&self, volume: Vx, horizon: u64) -> Result<()> {
        self.close_and_wait(volume)?;
        let plain = {
            let core = self.core();
            core.graph.plain_patches_before(volume, horizon, core.journal_superblock(volume))
        };
        self.write_patches(&plain)?;
        self.flush_if_unsafe()
    }

    /// Where commits do not flush, syncs do.
    fn flush_if_unsafe(&self) -> Result<()> {
        match self.options.durability {
            Durability::Flush => Ok(()),
            Durability::Unsafe => self.medium.flush().map_err(lost),
        }
    }
}

/// What a sync answers when the cache is poisoned: its caller's changes are lost.
fn lost(error: Error) -> Error {
    match error {
        Error::Poisoned(why) => {
            Error::io(IoOp::Write, fstitch_core::BlockNo(0), std::io::Error::other(why.to_string()))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use fstitch_core::{BlockKind, BlockNo, ManualClock, MemDevice};

    use super::*;
    use crate::CacheOptions;

    /// Prevents that a flusher with much to do takes each epoch before those who wait for one.
    #[test]
    fn what_is_early_gives_way_to_who_waits() {
        let clock = Arc::new(ManualClock::new());
        let options = CacheOptions { cache_size: 1 << 20, ..CacheOptions::default() };
        let cache = Cache::new(Arc::new(MemDevice::new(1024, 64)), options, Arc::clone(&clock) as _);
        for no in 0..40 {
            let block = cache.read(BlockNo(no), BlockKind::Data).expect("a device in memory");
            let _patch = cache.lock().bytes(&block, 0, &[1], &[]);
        }
        clock.advance(Duration::from_secs(1));
        let shared = &cache.shared;
        let waiter = Shared::announce(&mut shared.core(), &[]);
        assert_eq!(shared.write_early(Duration::from_millis(100)).unwrap(), Progress::Idle);
        Shared::withdraw(&mut shared.core(), waiter);
        assert_eq!(shared.write_early(Duration::from_millis(100)).unwrap(), Progress::Wrote(32));
    }
}
