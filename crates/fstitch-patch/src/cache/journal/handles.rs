//! Operations under way, and when a transaction closes.

use fstitch_core::lock::MutexGuard;
use fstitch_core::order::{Rank, assert_below};
use fstitch_core::waiting;
use fstitch_core::{Errno, Error, Result};

use super::super::step::{Goal, Progress};
use super::super::{Cache, Core, CoreGuard, Shared};
use crate::graph::patch::Vx;
use crate::graph::{Closure, Graph, Logging, Mark};
use crate::{JournalMode, PatchId};

/// New blocks of contents for each block of pointers or bitmap that changes, at worst.
const BLOCKS_PER_POINTER_BLOCK: usize = 64;

/// What stands between patches and the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The patches are stable.
    Gone,
    /// Nothing but blocks to write.
    Open,
    /// Operations under way, the last of which closes their transaction.
    Busy,
    /// A held patch of something else than a transaction.
    Barred,
}

/// A step of an operation: while it exists the running transaction stays open, so that all changes of the step are in
/// one. Without a journal it is nothing.
pub struct Handle<'a> {
    shared: &'a Shared,
    volume: Vx,
    /// `None` without a journal.
    credits: Option<usize>,
}

impl std::fmt::Debug for Handle<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle({:?} blocks)", self.credits)
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        let Some(credits) = self.credits else { return };
        let mut core = self.shared.core();
        let Some(journal) = core.journal_mut(self.volume) else { return };
        journal.handles -= 1;
        journal.credits -= credits;
        if journal.handles == 0 && journal.closing {
            self.shared.close(&mut core, self.volume);
        }
    }
}

impl Cache {
    /// Begins a step that writes up to `contents` bytes of files and changes up to `blocks` other blocks. Waits while a
    /// transaction closes. To be called holding no lock and no other handle. Does nothing without a journal.
    ///
    /// # Errors
    /// [`Error::Poisoned`] after a failed write.
    pub fn begin(&self, contents: usize, blocks: usize) -> Result<Handle<'_>> {
        self.begin_if(contents, blocks, || Ok(()))
    }

    /// The same for the first step of an operation, which has changed nothing yet.
    ///
    /// # Errors
    /// Those of [`Cache::begin`]; [`Error::WouldWait`] while a transaction closes, if this thread refuses to wait. It has no part
    /// in the transaction then, and was none of the reasons to close it.
    pub fn begin_first(&self, contents: usize, blocks: usize) -> Result<Handle<'_>> {
        self.begin_if(contents, blocks, waiting::ask)
    }

    fn begin_if(
        &self,
        contents: usize,
        blocks: usize,
        may_wait: impl Fn() -> Result<()>,
    ) -> Result<Handle<'_>> {
        assert_below(Rank::Inode, "beginning a step");
        let (shared, volume) = (&*self.shared, self.volume);
        let mut core = shared.core();
        loop {
            Shared::check_volume(&core, volume)?;
            let logging = core.graph.logging(volume);
            let logged = logging.and_then(|logging| logging.running.as_ref());
            let logged = logged.map_or(0, |running| running.homes.len());
            let logs_contents = !core.groups.is_empty() || logging.is_some_and(Logging::has_logged_contents);
            let Some(journal) = core.journal_mut(volume) else {
                return Ok(Handle { shared, volume, credits: None });
            };
            let data = contents.div_ceil(shared.block_size);
            let blocks = match journal.mode {
                JournalMode::Full => blocks + data,
                _ if logs_contents => blocks + data,
                // Bitmaps and pointers of new blocks.
                _ => blocks + data / BLOCKS_PER_POINTER_BLOCK,
            };
            let fits = logged + journal.credits + blocks <= journal.max_blocks;
            // A step that is too large for any transaction gets one to itself.
            let alone = journal.handles == 0 && logged == 0;
            if !journal.closing && (fits || alone) {
                journal.handles += 1;
                journal.credits += blocks;
                return Ok(Handle { shared, volume, credits: Some(blocks) });
            }
            if journal.handles == 0 {
                shared.close(&mut core, volume);
                continue;
            }
            may_wait()?;
            journal.closing = true;
            core = shared.wait(core);
        }
    }

    /// If `patch` waits for the running transaction, closes it, so that later changes can come after `patch`. To be
    /// called holding no lock and no handle, by an operation that has changed nothing yet. Returns whether it closed one.
    ///
    /// # Errors
    /// [`Error::Poisoned`] after a failed write; [`Error::WouldWait`] where operations are under way in it and this thread refuses
    /// to wait: then it goes on as if nobody had asked.
    pub fn close_before(&self, patch: PatchId) -> Result<bool> {
        let shared = &*self.shared;
        let core = shared.core();
        if !core.graph.awaits_running(self.volume, patch) {
            return Ok(false);
        }
        if core.journal(self.volume).is_some_and(|journal| journal.handles > 0) {
            waiting::ask()?;
        }
        shared.close_running(core, self.volume)?;
        Ok(true)
    }

    /// Closes the running transaction, if there is one with changes. To be called holding no lock and no handle.
    /// Returns whether there was one.
    ///
    /// # Errors
    /// [`Error::Poisoned`] after a failed write.
    pub fn close_transaction(&self) -> Result<bool> {
        let shared = &*self.shared;
        let core = shared.core();
        if core.graph.logging(self.volume).is_none_or(|logging| logging.running.is_none()) {
            return Ok(false);
        }
        shared.close_running(core, self.volume)?;
        Ok(true)
    }
}

impl Shared {
    /// Closes the transaction of a volume that runs now, or waits until somebody has.
    fn close_running(&self, mut core: CoreGuard<'_>, volume: Vx) -> Result<()> {
        let serial = |core: &Core| {
            core.graph
                .logging(volume)
                .and_then(|logging| logging.running.as_ref())
                .map(|running| running.serial)
        };
        let Some(mine) = serial(&core) else { return Ok(()) };
        loop {
            Self::check_poison(&core)?;
            if serial(&core) != Some(mine) {
                return Ok(());
            }
            if self.ask_to_close(&mut core, volume) {
                continue;
            }
            core = self.wait(core);
        }
    }

    /// Closes the running transaction of a volume, or has the last operation under way do it. Returns whether it is
    /// closed.
    fn ask_to_close(&self, core: &mut Core, volume: Vx) -> bool {
        let Some(journal) = core.journal_mut(volume) else { return true };
        if journal.handles > 0 {
            journal.closing = true;
            return false;
        }
        self.close(core, volume);
        true
    }

    /// The same for every volume.
    pub(in crate::cache) fn ask_all_to_close(&self, core: &mut Core) {
        for volume in core.journaled() {
            self.ask_to_close(core, volume);
        }
    }

    /// Closes the running transactions that stand between `mark`'s targets and the medium. What is closed may itself come
    /// after what runs in another volume: room in its log, after blocks that go home to a place that a transaction of the
    /// volume below gives them. So it walks again until nothing more is found; no transaction begins meanwhile.
    fn close_on_the_way(&self, core: &mut Core, mark: impl Fn(&mut Graph) -> Closure) -> Result<Way> {
        loop {
            // After a failure nothing is closed any more.
            Self::check_poison(core)?;
            let closure = mark(&mut core.graph);
            if let Some(error) = closure.flying.and_then(|slot| core.failures.of(slot)) {
                return Err(error);
            }
            if !closure.held {
                return Ok(if closure.pending { Way::Open } else { Way::Gone });
            }
            let is_marked = |volume: &Vx| {
                let running = core.graph.logging(*volume).and_then(|logging| logging.running.as_ref());
                running.is_some_and(|running| core.graph.is_marked(running.held, closure))
            };
            let marked: Vec<Vx> = core.journaled().filter(is_marked).collect();
            if marked.is_empty() {
                return Ok(Way::Barred);
            }
            // All of them are asked, whatever the first one answers.
            let closed: Vec<bool> =
                marked.into_iter().map(|volume| self.ask_to_close(core, volume)).collect();
            if closed.contains(&false) {
                return Ok(Way::Busy);
            }
        }
    }

    /// Closes the running transaction and waits until its commit record is stable, and all before it.
    pub(in crate::cache) fn close_and_wait(&self, volume: Vx) -> Result<()> {
        self.close_running(self.core(), volume)?;
        // Not those that others close from now on: there may be no end of them.
        let commits = Self::uncommitted(&self.core(), volume);
        self.write_patches(&commits).map(drop)
    }

    /// The right to write an epoch, when nothing stands between the patches that `mark` finds and the medium but blocks to
    /// write; `None` when the patches are stable.
    pub(in crate::cache) fn open_way(
        &self,
        mark: impl Fn(&mut Graph) -> Closure,
    ) -> Result<Option<MutexGuard<'_, ()>>> {
        loop {
            let epoch = self.epoch();
            let mut core = self.core();
            match self.close_on_the_way(&mut core, &mark)? {
                Way::Gone => return Ok(None),
                Way::Open => return Ok(Some(epoch)),
                Way::Barred => return Err(Error::Errno(Errno::BUSY)),
                Way::Busy => {
                    // They end without us.
                    drop(epoch);
                    drop(self.wait(core));
                }
            }
        }
    }

    /// Writes until nothing of a volume is dirty.
    pub(in crate::cache) fn write_whole_volume(&self, volume: Vx) -> Result<()> {
        let waiter = Self::announce(&mut self.core(), &[]);
        let written = self.write_volume(volume);
        Self::withdraw(&mut self.core(), waiter);
        written
    }

    fn write_volume(&self, volume: Vx) -> Result<()> {
        let mark = |graph: &mut Graph| {
            let targets = graph.patches_of(volume);
            graph.mark_closure_of(targets, Mark::Wanted)
        };
        while let Some(_epoch) = self.open_way(mark)? {
            if self.write_epoch(Goal::Volume(volume))? == Progress::Idle {
                return Err(Error::Errno(Errno::BUSY));
            }
        }
        Ok(())
    }

    /// Closes the running transactions that are old enough.
    pub(in crate::cache) fn close_if_old(&self, core: &mut Core) {
        let now = self.clock.elapsed();
        for volume in core.journaled() {
            let Some(interval) = core.journal(volume).map(|journal| journal.commit_interval) else {
                continue;
            };
            let running = core.graph.logging(volume).and_then(|logging| logging.running.as_ref());
            if running.is_some_and(|running| now.saturating_sub(running.born) >= interval) {
                self.ask_to_close(core, volume);
            }
        }
    }
}
