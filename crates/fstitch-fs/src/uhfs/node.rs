//! Inodes in memory, and what of each is not yet stable. Which ones there are is for the [`table`](fstitch_posix::table).
//!
//! Nobody holds a node's state lock before the node is loaded, so loading never waits for a state lock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fstitch_core::lock::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use fstitch_core::order::rank;
use fstitch_core::{Errno, InodeId, InodeNo, Result};
use fstitch_patch::{PatchId, PatchIds};
use fstitch_posix::table::{self, Header};
use smallvec::SmallVec;

use crate::gather::Gather;

/// Which of an inode's changes a patch belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Contents, pointers, length; a directory's entries.
    Contents,
    /// Everything else in the inode, extended attributes included.
    Attributes,
    /// The inode's own names, in whatever directories they are.
    Names,
}

/// Where an inode is, as far as that is known: without it an `fsync` must sync everything.
#[derive(Debug, Default)]
pub(super) struct Whereabouts {
    parents: SmallVec<[InodeId; 1]>,
    stable: Option<u64>,
}

/// What fsync has to make stable.
#[derive(Debug)]
pub(super) struct Track {
    contents: Gather,
    attributes: Gather,
    names: Gather,
    /// The pointers that were gathered last: a file that is appended to has the same for many writes. Once gathered they are
    /// until they are stable, whatever joins them.
    pub(super) pointers: PatchIds,
    /// The same of its length.
    pub(super) sizes: PatchIds,
    /// The patches of its names that may not be stable, for those that must come after its being reachable.
    pub(super) recent_names: PatchIds,
    /// Directories in which the inode was found or got names; some may be gone. Only for inodes that are not directories:
    /// those know their parent.
    pub(super) parents: SmallVec<[InodeId; 1]>,
    /// The inode could be reached from the root on the medium, by its present path, after so many moves of
    /// directories.
    stable: Option<u64>,
    /// Counts the changes of names, so that an fsync does not declare stable what changed meanwhile.
    pub(super) version: u64,
}

impl Track {
    fn new() -> Self {
        Self {
            contents: Gather::default(),
            attributes: Gather::default(),
            names: Gather::default(),
            pointers: PatchIds::new(),
            sizes: PatchIds::new(),
            recent_names: PatchIds::new(),
            parents: SmallVec::new(),
            stable: None,
            version: 0,
        }
    }

    /// The patches of a part.
    pub(super) fn gather(&mut self, part: Part) -> &mut Gather {
        match part {
            Part::Contents => &mut self.contents,
            Part::Attributes => &mut self.attributes,
            Part::Names => &mut self.names,
        }
    }

    /// A gathering patch of a part, for those who add many patches that come once.
    pub(super) fn part(&mut self, part: Part) -> &mut PatchId {
        self.gather(part).others()
    }

    /// What to wait for until the given parts are stable.
    pub(super) fn gathers(&self, parts: &[Part]) -> PatchIds {
        let of = |part: &Part| match part {
            Part::Contents => &self.contents,
            Part::Attributes => &self.attributes,
            Part::Names => &self.names,
        };
        parts.iter().flat_map(|part| of(part).patches()).collect()
    }

    /// The inode got a name in `parent`.
    pub(super) fn named_in(&mut self, parent: InodeId) {
        self.stable = None;
        self.version += 1;
        self.found_in(parent);
    }

    /// The inode has a name in `parent`.
    pub(super) fn found_in(&mut self, parent: InodeId) {
        if !self.parents.contains(&parent) {
            self.parents.push(parent);
        }
    }

    /// These directories are gone, and with them all names that were in them.
    pub(super) fn outlived(&mut self, gone: &[InodeId]) {
        self.parents.retain(|parent| !gone.contains(parent));
    }

    /// Whether the inode is known to be reachable on the medium; directories were moved `moves` times so far.
    pub(super) fn is_stable(&self, moves: u64) -> bool {
        self.stable == Some(moves)
    }

    /// The inode is reachable on the medium.
    pub(super) fn set_stable(&mut self, moves: u64) {
        self.stable = Some(moves);
    }

    /// What is worth knowing of an inode whose own changes are all stable.
    pub(super) fn whereabouts(&self) -> Whereabouts {
        Whereabouts { parents: self.parents.clone(), stable: self.stable }
    }

    /// Takes over what was known of an inode that left memory, while nobody could change its names.
    pub(super) fn recall(&mut self, known: Whereabouts) {
        self.parents = known.parents;
        self.stable = known.stable;
    }
}

/// How many departures a directory remembers before it is looked whether they are stable.
const DEPARTURES_MIN: usize = 16;

/// A loaded inode with what the order between micro-operations needs to remember.
#[derive(Debug)]
pub(super) struct State<I> {
    inode: Option<I>,
    /// The inode was freed.
    pub(super) dead: bool,
    /// An inode without a name that may get one (from `tmpfile`), unlike one whose names were removed.
    pub(super) linkable: bool,
    pub(super) track: Track,
    /// What a growth of the file must come after: the clearing of pointers behind its end, and the zeroing of
    /// its last block's tail.
    pub(super) growth: PatchId,
    /// There may be blocks behind the end of the file, left by a crash or by a truncation that failed.
    pub(super) trim: bool,
    /// The clearing of names, which the freeing of the inode must come after.
    pub(super) cleared: PatchIds,
    /// The inode's initialisation and its bit in the inode map, which every name must come after.
    pub(super) ready: PatchIds,
    /// Of a directory: what the clearing of names in it comes after, the other names of what had these. Its own name
    /// must not go before, or what is on its way would be reachable nowhere.
    departures: PatchIds,
    /// How often somebody could change the inode.
    changes: u64,
}

impl<I> State<I> {
    /// The state of an inode that was read from the volume.
    pub(super) fn loaded(inode: I, trim: bool) -> Self {
        Self::new(Some(inode), trim)
    }

    fn unloaded() -> Self {
        Self::new(None, false)
    }

    fn new(inode: Option<I>, trim: bool) -> Self {
        Self {
            inode,
            dead: false,
            linkable: false,
            track: Track::new(),
            growth: PatchId::NONE,
            trim,
            cleared: PatchIds::new(),
            ready: PatchIds::new(),
            departures: PatchIds::new(),
            changes: 0,
        }
    }

    /// Remembers what clearings of names in this directory come after. `pending` tells what need not be remembered.
    pub(super) fn note_departures(&mut self, befores: &[PatchId], pending: impl Fn(PatchId) -> bool) {
        for &patch in befores {
            // Looked through whenever it has doubled, so that a stream of renames costs each a moment.
            if self.departures.len() >= DEPARTURES_MIN && self.departures.len().is_power_of_two() {
                self.departures.sort_unstable();
                self.departures.dedup();
                self.departures.retain(|patch| pending(*patch));
            }
            if !self.departures.contains(&patch) || self.departures.len() > DEPARTURES_MIN {
                self.departures.push(patch);
            }
        }
    }

    /// See `departures`.
    pub(super) fn departures(&self) -> &[PatchId] {
        &self.departures
    }

    /// A number that is another one after every change of the inode.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    pub(super) fn inode(&self) -> &I {
        self.inode.as_ref().expect("a node is loaded before anybody can lock it")
    }

    pub(super) fn inode_mut(&mut self) -> &mut I {
        self.changes += 1;
        self.inode.as_mut().expect("a node is loaded before anybody can lock it")
    }
}

/// What was found, or nothing if the inode has gone.
pub(crate) fn unless_gone<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Err(error) if error.errno() == Errno::STALE => Ok(None),
        found => found.map(Some),
    }
}

/// An inode in memory.
#[derive(Debug)]
pub(super) struct Node<I> {
    /// What the table keeps. Of use is a directory in which a name was looked up: to build its index again is dear, unlike loading
    /// any other inode.
    pub(super) header: Header,
    /// A volume is in the file: its blocks stay where they are, and are not this file system's to write.
    pub(super) pinned: AtomicBool,
    /// Loaded from the volume, and not yet compared with the directory through which it was found.
    pub(super) fresh: AtomicBool,
    /// Serialises operations that change the file's length or blocks in several steps.
    pub(super) writer: Mutex<(), rank::Writer>,
    /// Where a sequential reader would read next, in bytes.
    pub(super) read_next: AtomicU64,
    /// Up to where blocks were read ahead, in bytes.
    pub(super) read_ahead: AtomicU64,
    pub(super) state: RwLock<State<I>, rank::Inode>,
}

impl<I> Node<I> {
    /// A new inode's node, with its first reference.
    pub(super) fn made(ino: InodeNo, state: State<I>) -> Self {
        Self::new(Header::made(ino), state, false)
    }

    fn new(header: Header, state: State<I>, fresh: bool) -> Self {
        Self {
            header,
            pinned: AtomicBool::new(false),
            fresh: AtomicBool::new(fresh),
            writer: Mutex::new(()),
            read_next: AtomicU64::new(0),
            read_ahead: AtomicU64::new(0),
            state: RwLock::new(state),
        }
    }

    pub(super) fn ino(&self) -> InodeNo {
        self.header.ino()
    }

    /// The state, shared; `ESTALE` once the inode is free.
    pub(super) fn read(&self) -> Result<Shared<'_, I>> {
        let state = self.state.read();
        if state.dead { Err(Errno::STALE.into()) } else { Ok(state) }
    }

    /// The state, exclusive; `ESTALE` once the inode is free.
    pub(super) fn write(&self) -> Result<Exclusive<'_, I>> {
        let state = self.state.write();
        if state.dead { Err(Errno::STALE.into()) } else { Ok(state) }
    }

    /// `ETXTBSY` while a volume is in the file. To be asked by whoever holds the writer lock.
    pub(super) fn refuse_pinned(&self) -> Result<()> {
        if self.pinned.load(Ordering::Acquire) { Err(Errno::TXTBSY.into()) } else { Ok(()) }
    }

    /// The state, exclusive, if nobody else holds it.
    pub(super) fn try_write(&self) -> Option<Exclusive<'_, I>> {
        self.state.try_write()
    }

    /// Fills in the state of a node that nobody can have locked yet.
    pub(super) fn set_loaded(&self, inode: I, trim: bool) {
        let mut state = self.state.write();
        state.inode = Some(inode);
        state.trim = trim;
    }
}

impl<I> table::Node for Node<I> {
    type Kept = Whereabouts;

    fn unloaded(header: Header, known: Whereabouts) -> Self {
        let mut state = State::unloaded();
        state.track.recall(known);
        Self::new(header, state, true)
    }

    fn header(&self) -> &Header {
        &self.header
    }

    fn kept(&self) -> Whereabouts {
        self.state.read().track.whereabouts()
    }
}

/// A node's state, shared.
pub(super) type Shared<'a, I> = RwLockReadGuard<'a, State<I>>;

/// A node's state, exclusive.
pub(super) type Exclusive<'a, I> = RwLockWriteGuard<'a, State<I>>;

#[cfg(test)]
mod tests {
    use fstitch_posix::table::Table;

    use super::*;

    /// A directory that somebody remembers.
    const DIRECTORY: InodeId = InodeId { ino: InodeNo(7), generation: 3 };

    #[test]
    fn whereabouts_survive_the_node() {
        let table: Table<Node<u64>> = Table::new(0);
        let load = |node: &Node<u64>| {
            node.set_loaded(1, false);
            Ok(())
        };
        let node = table.get(InodeNo(1), 1, load).unwrap();
        {
            let mut state = node.write().unwrap();
            state.track.named_in(DIRECTORY);
            state.track.set_stable(3);
        }
        drop(node);
        table.evict(|node| node.state.try_read().map(|state| state.track.whereabouts()));
        assert_eq!(table.population().parked, 1);
        let node = table.get(InodeNo(1), 0, load).unwrap();
        let state = node.read().unwrap();
        assert_eq!(state.track.parents.as_slice(), [DIRECTORY]);
        assert!(state.track.is_stable(3) && !state.track.is_stable(4));
    }
}
