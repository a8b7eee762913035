//! The mounted volume: its options, and the gate through which every change goes.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fstitch_core::lock::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use fstitch_core::order::rank;
use fstitch_core::waiting::{self, Waiting};
use fstitch_core::{Consistency, Errno, Error, FileKind, InodeId, InodeNo, Result, Timestamp};
use fstitch_patch::{Cache, Handle, PatchId, PatchState};

use fstitch_posix::table::Table;
use fstitch_posix::time::AtimePolicy;

use super::LowLevelFs;
use super::evict::idle_nodes;
use super::node::{Node, Part, State, unless_gone};

/// How a volume is used.
#[derive(Clone, Debug)]
pub struct UhfsOptions {
    /// No change at all is made.
    pub read_only: bool,
    /// When reading changes the time of last access.
    pub atime: AtimePolicy,
    /// Bytes that one step of a large operation dirties at most; never more than the cache allows
    /// ([`Cache::step_bytes`]).
    pub step_bytes: usize,
    /// The mechanism in force. With [`Consistency::Sync`], every change of names is stable when its call returns; all others are
    /// the cache's business.
    pub consistency: Consistency,
    /// Inodes that stay in memory without need: more do only while they are used or have unstable changes. Without a number, a
    /// share of the cache's size.
    pub idle_nodes: Option<usize>,
}

impl Default for UhfsOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            atime: AtimePolicy::default(),
            step_bytes: 1 << 20,
            consistency: Consistency::Soft,
            idle_nodes: None,
        }
    }
}

/// Whether changes are still accepted `[gate]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    Closed,
}

/// A mounted file system of the format `L`.
pub struct Uhfs<L: LowLevelFs> {
    pub(super) low: L,
    pub(super) options: UhfsOptions,
    /// Blocks that one step of a large operation dirties.
    pub(super) step_blocks: usize,
    block_size: usize,
    pub(super) table: Table<Node<L::Inode>>,
    pub(super) gate: RwLock<Phase, rank::Gate>,
    /// The volume is marked as in use, durably.
    pub(super) in_use: AtomicBool,
    marking: Mutex<(), rank::Marking>,
    /// Held while a name moves from one directory to another, so that no directory's ancestry changes.
    pub(super) renames: Mutex<(), rank::Renames>,
    /// Operations that ended, for `account_nodes`, and the bytes of nodes that the cache knows of.
    pub(super) ended: AtomicU64,
    pub(super) accounted: Mutex<usize, rank::Table>,
    /// See [`Uhfs::moves`].
    pub(super) moves: AtomicU64,
    pub(super) reclaimer: super::reclaim::Reclaimer,
    pub(super) touched: super::groups::Touched,
    /// The first failure of work that nobody waited for, until a `sync` reports it.
    sticky: Mutex<Option<Error>, rank::Leaf>,
}

/// A change under way: it holds the gate open, and where a journal is kept its current step is in one transaction.
pub(super) struct Change<'a> {
    cache: &'a Cache,
    /// What each step dirties beside what it says: whose the changed inodes are is counted.
    counted: usize,
    step: RefCell<Option<Handle<'a>>>,
    /// The step under way has room for all of the operation.
    whole: Cell<bool>,
    /// It has had room: it may have changed something, of which it then has to wait for the rest.
    begun: Cell<bool>,
    _gate: RwLockReadGuard<'a, Phase>,
}

impl Change<'_> {
    /// Ends the step under way and begins one that may dirty `contents` bytes of files and `blocks` other blocks: waits for
    /// room. What the ended step did is whole by itself. No lock of a file may be held but its writer's.
    /// Does nothing in an operation that began as a whole.
    ///
    /// # Errors
    /// [`Error::WouldWait`] for the first step on a thread that refuses to wait, and those of [`Cache::reserve`].
    pub(super) fn reserve(&self, contents: usize, blocks: usize) -> Result<()> {
        if self.whole.get() {
            return Ok(());
        }
        self.pause();
        let blocks = blocks + self.counted;
        let bytes = contents + blocks * self.cache.block_size();
        let step = if self.begun.get() {
            self.cache.reserve(bytes)?;
            self.cache.begin(contents, blocks)?
        } else {
            self.cache.reserve_first(bytes)?;
            self.cache.begin_first(contents, blocks)?
        };
        self.step.replace(Some(step));
        self.begun.set(true);
        Ok(())
    }

    /// What is done is whole, and the operation can end with it: it refuses to wait for its next step as for its first.
    pub(super) fn may_end(&self) {
        self.begun.set(false);
    }

    /// Before a wait other than for room.
    ///
    /// # Errors
    /// [`Error::WouldWait`] on a thread that refuses to wait, if nothing can have been changed.
    pub(super) fn ask_to_wait(&self) -> Result<()> {
        if self.begun.get() { Ok(()) } else { waiting::ask() }
    }

    /// Begins a step that has room for all that is left of the operation: with a journal, it happens as a whole or not at all.
    pub(super) fn reserve_whole(&self, contents: usize, blocks: usize) -> Result<()> {
        self.pause();
        self.reserve(contents, blocks)?;
        self.whole.set(true);
        Ok(())
    }

    /// Ends the step under way: to be called before waiting for anybody else.
    pub(super) fn pause(&self) {
        self.whole.set(false);
        self.step.take();
    }
}

/// What an operation that takes a name away dirties at most.
pub(super) const NAME_CHANGE_BLOCKS: usize = super::low::NAME_BLOCKS;
/// Freed blocks for each bitmap block or pointer block that changes, at worst, in an operation that is done as a whole.
const FREED_PER_BLOCK: u64 = 16;
/// What a change of attributes dirties at most: the inode's block and a block of extended attributes.
pub(super) const ATTR_CHANGE_BLOCKS: usize = 4;

impl<L: LowLevelFs> Uhfs<L> {
    /// Mounts `format`. Nothing is read or written yet.
    #[must_use]
    pub fn new(format: L, options: UhfsOptions) -> Self {
        let idle = options.idle_nodes.unwrap_or_else(|| idle_nodes::<L>(format.cache()));
        let step_bytes = options.step_bytes.min(format.cache().step_bytes());
        let block_size = format.limits().block_size;
        let step_blocks = (step_bytes / block_size).max(1);
        Self {
            low: format,
            options,
            step_blocks,
            block_size,
            table: Table::new(idle),
            gate: RwLock::new(Phase::Open),
            in_use: AtomicBool::new(false),
            marking: Mutex::new(()),
            renames: Mutex::new(()),
            ended: AtomicU64::new(0),
            accounted: Mutex::new(0),
            moves: AtomicU64::new(0),
            reclaimer: super::reclaim::Reclaimer::default(),
            touched: super::groups::Touched::default(),
            sticky: Mutex::new(None),
        }
    }

    /// The format below, for its counters and statistics.
    #[must_use]
    pub fn format(&self) -> &L {
        &self.low
    }

    /// How the volume is used.
    #[must_use]
    pub fn options(&self) -> &UhfsOptions {
        &self.options
    }

    pub(super) fn cache(&self) -> &Cache {
        self.low.cache()
    }

    pub(super) fn block_size(&self) -> usize {
        self.block_size
    }

    pub(super) fn now(&self) -> Timestamp {
        self.cache().clock().now()
    }

    /// Starts a change that will dirty about `blocks` blocks: fails with `EROFS` if the volume takes no changes,
    /// marks it as in use before the first one, and waits for room. With 0, the operation reserves by itself.
    ///
    /// To be called before anything is changed: on a thread that refuses to wait, all this is refused with
    /// [`Error::WouldWait`].
    pub(super) fn change(&self, blocks: usize) -> Result<Change<'_>> {
        if self.options.read_only {
            return Err(Errno::ROFS.into());
        }
        let gate = self.pass_gate()?;
        if *gate == Phase::Closed {
            return Err(Errno::ROFS.into());
        }
        self.mark_in_use()?;
        let (step, whole, begun) = (RefCell::new(None), Cell::new(false), Cell::new(false));
        let change = Change {
            cache: self.cache(),
            counted: self.low.counted_blocks(),
            step,
            whole,
            begun,
            _gate: gate,
        };
        if blocks > 0 {
            change.reserve(0, blocks)?;
        }
        Ok(change)
    }

    /// The gate, shared with all changes. It is shut for long only while the volume is checked.
    pub(super) fn pass_gate(&self) -> Result<RwLockReadGuard<'_, Phase>> {
        self.gate.ask()
    }

    /// The gate, alone: no change is under way.
    pub(super) fn shut_gate(&self) -> RwLockWriteGuard<'_, Phase> {
        self.gate.write()
    }

    /// The lock for moves between directories. To be taken before anything is changed.
    pub(super) fn lock_renames(&self) -> Result<MutexGuard<'_, ()>> {
        self.renames.ask()
    }

    /// The mark must be stable before any other change is: otherwise a crash could leave a changed volume that
    /// claims to be clean. One sync per mount is cheaper than a dependency of every patch on the mark.
    fn mark_in_use(&self) -> Result<()> {
        if self.in_use.load(Ordering::Acquire) {
            return Ok(());
        }
        let _waiting = Waiting::ask()?;
        let _marking = self.marking.lock();
        if !self.in_use.load(Ordering::Acquire) {
            self.cache().reserve(self.block_size())?;
            self.low.mark_in_use()?;
            self.cache().sync_all()?;
            self.in_use.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// How often a directory got another name. What is below it then has another path, so nothing that was known
    /// of paths on the medium holds any more.
    pub(super) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Acquire)
    }

    /// Keeps a failure that no caller waits for.
    pub(super) fn keep_error(&self, error: Error) {
        self.sticky.lock().get_or_insert(error);
    }

    /// The failure kept last, once.
    pub(super) fn take_error(&self) -> Result<()> {
        self.sticky.lock().take().map_or(Ok(()), Err)
    }

    /// The node of `ino`, loaded on first use.
    pub(super) fn node(&self, ino: InodeNo) -> Result<Arc<Node<L::Inode>>> {
        self.node_with(ino, 0)
    }

    /// The node of `ino` with `refs` more references.
    pub(super) fn node_with(&self, ino: InodeNo, refs: u64) -> Result<Arc<Node<L::Inode>>> {
        let loaded = Cell::new(false);
        let node = self.table.get(ino, refs, |node: &Node<L::Inode>| {
            loaded.set(true);
            let inode = self.low.load(ino)?;
            let trim = self.low.may_have_lost_blocks(&inode);
            node.set_loaded(inode, trim);
            Ok(())
        });
        if loaded.get() {
            self.evict_idle();
        }
        node
    }

    /// The node of an inode that was remembered without a reference, if that life of its number goes on. It stays the node of that
    /// life: once it is freed, its state answers `ESTALE`.
    pub(super) fn still(&self, id: InodeId) -> Result<Option<Arc<Node<L::Inode>>>> {
        let Some(node) = unless_gone(self.node(id.ino))? else { return Ok(None) };
        let is_same = node.read().is_ok_and(|state| self.low.attr(state.inode()).id() == id);
        Ok(is_same.then_some(node))
    }

    /// The directory above a directory other than the root, whose `state` the caller has locked: as long as that is so, and it has
    /// a name, so is its parent there. `None` once it was removed.
    pub(super) fn parent_of(&self, state: &State<L::Inode>) -> Result<Option<Arc<Node<L::Inode>>>> {
        let attr = self.low.attr(state.inode());
        if attr.kind != FileKind::Directory || attr.nlink == 0 {
            return Ok(None);
        }
        let slot = self.low.find_name(state.inode(), b"..")?;
        slot.map(|slot| self.node(slot.ino)).transpose()
    }

    /// Whether the free maps of one step's blocks may be more than a journal's transaction takes.
    pub(super) fn may_scatter(&self) -> bool {
        self.cache().is_journaled() && self.low.free_maps() > super::read::long(self.step_blocks)
    }

    /// What freeing `count` file blocks dirties at most, if it may be done in one step.
    pub(super) fn freeing(&self, count: u64) -> Option<usize> {
        let freed_per_block = if self.may_scatter() { 1 } else { FREED_PER_BLOCK };
        let blocks =
            usize::try_from(count / freed_per_block).unwrap_or(usize::MAX).saturating_add(NAME_CHANGE_BLOCKS);
        (count <= self.detach_step() && blocks <= self.step_blocks).then_some(blocks)
    }

    /// Remembers that `patches` belong to this part of the inode's changes, for fsync.
    pub(super) fn note(&self, state: &mut State<L::Inode>, part: Part, patches: &[PatchId]) {
        if patches.is_empty() {
            return;
        }
        let mut tx = self.cache().lock();
        state.track.gather(part).add_all(&mut tx, patches);
        if part == Part::Names {
            let recent = &mut state.track.recent_names;
            recent.retain(|patch| tx.state(*patch) != PatchState::Committed);
            recent.extend_from_slice(patches);
        }
    }

    /// Whether `patch` still has to reach the medium.
    pub(super) fn pending(&self, patch: PatchId) -> bool {
        patch != PatchId::NONE && self.cache().state(patch) != PatchState::Committed
    }

    /// Serialises changes of one file's length and blocks over several steps. Whoever waits for it is in no step.
    pub(super) fn writer<'n>(
        &self,
        change: &Change<'_>,
        node: &'n Node<L::Inode>,
    ) -> Result<MutexGuard<'n, ()>> {
        node.writer.ask_after(|| {
            change.pause();
            change.ask_to_wait()
        })
    }
}

#[cfg(test)]
mod tests;
