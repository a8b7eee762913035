//! Every sum of a volume that may be in use, compared with what is on the medium now, in parts.
//!
//! A part is told where it begins and says where the next one does, so that nothing is kept in between. Snapshots come first, the older
//! before the younger, then the trees that change: what a tree shares with the one before it has been compared there, and what
//! a snapshot has to itself while it is removed goes to trees that come later.
//!
//! **What is read.** Blocks of roots that are stable, past the cache. The lock is shared meanwhile, for a few blocks at a time: no block that
//! the trees reach is written as long as it is held. What is younger than the last stable root was written since the scrub began.

use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{
    BlockBuf, BlockDevice, BlockKind, BlockNo, BlockRead, Errno, Error, FileKind, InodeNo, Result,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::layout::inode::{INODE_BYTES, INODES_IN_BLOCK, Inode, Slot, place};
use super::layout::pointer::{Fork, Ref, covers, span};
use super::layout::record::{INO_END, Record, TreeKind};
use super::layout::root::Root;
use super::layout::{BLOCK, FAN, ROOT_INO, sum};
use super::snapshot::before;
use super::state::State;
use super::tree::{Key, Obj, has_twice};
use super::volume::{SNAPSHOTS, Waffle};

/// Blocks that are read while the lock is held.
const HELD: u64 = 512;
/// Blocks that one request reads.
const BATCH: usize = 128;
/// Damaged blocks that a part names; of the others it says how many.
const NAMED: usize = 1000;
/// Names of an inode that are told.
const NAMES: usize = 8;

/// Where a scrub goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubAt {
    /// The tree, by its number.
    pub tree: u64,
    /// Trees that did not exist when it began have this number or a higher one.
    pub began: u64,
    /// What is not younger was looked at in trees before.
    pub after: u64,
    /// The inode.
    pub inode: u64,
    /// Of the inode's attributes, not of its contents.
    pub in_attributes: bool,
    /// The leaf there.
    pub leaf: u64,
}

/// What a damaged block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scrubbed {
    /// The root, or what is said of trees and of shared blocks.
    Tables,
    /// Which blocks are in use.
    Map,
    /// Inodes, or where they are.
    Inodes,
    /// What is in a file, or where that is.
    Contents,
    /// Entries of a directory, or where they are.
    Entries,
    /// Extended attributes, or where they are.
    Attributes,
}

/// A block that is not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// The block.
    pub block: u64,
    /// What it is.
    pub what: Scrubbed,
    /// The tree it is of, by its name; empty also for tables.
    pub tree: Vec<u8>,
    /// The inode that has it, of what files have, by its number in the volume that is mounted.
    pub inode: Option<InodeNo>,
    /// The inode's names from the root on, as far as they were found; of inodes the root of their tree, unless that is the one that
    /// is mounted.
    pub paths: Vec<Vec<u8>>,
}

/// A part of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubPart {
    /// Blocks that were read and compared.
    pub blocks: u64,
    /// Those that are not what was written, or cannot be read.
    pub damaged: Vec<Damaged>,
    /// How many more there are of these.
    pub unnamed: u64,
    /// Where the next part begins; `None` at the end.
    pub next: Option<ScrubAt>,
}

impl ScrubPart {
    fn note(&mut self, found: Damaged) {
        if self.damaged.iter().any(|known| known.block == found.block) {
            return;
        }
        if self.damaged.len() == NAMED {
            self.unnamed += 1;
        } else {
            self.damaged.push(found);
        }
    }
}

/// What is being looked at.
#[derive(Clone, Copy)]
struct Subject {
    what: Scrubbed,
    inode: Option<u64>,
}

/// Blocks of one tree that are looked at while the lock is held.
struct Walk<'a> {
    state: &'a State,
    device: &'a dyn BlockDevice,
    part: &'a mut ScrubPart,
    tree: usize,
    name: &'a [u8],
    /// What is not younger was looked at elsewhere.
    after: u64,
    /// What is younger may not be on the medium yet.
    stable: u64,
    /// Nodes that were read, `None` for damaged ones.
    nodes: FxHashMap<u64, Option<Arc<BlockBuf>>>,
    /// Those of which some leaves are being looked for, from level 2 on: no tree has one twice.
    passed: FxHashSet<u64>,
    /// Blocks that may still be read.
    left: u64,
}

impl Waffle {
    /// Compares about so many blocks of all with their sums, from the beginning or from where an earlier part ended.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a volume in a cache of somebody else's; those of a commit.
    pub fn scrub(&self, from: Option<ScrubAt>, blocks: u64) -> Result<ScrubPart> {
        let device = Arc::clone(self.device().ok_or(Errno::OPNOTSUPP)?);
        let mut part = ScrubPart::default();
        let mut at = match from {
            Some(at) => Some(at),
            None => {
                self.at_rest(|state| {
                    root(state, &*device, &mut part);
                    Ok(())
                })?;
                self.tables(&*device, &mut part)?;
                let core = self.share();
                next_tree(&core.state, core.state.root.next_tree, None)
            }
        };
        while let Some(now) = at
            && part.blocks < blocks
        {
            let core = self.share();
            at = step(&core.state, &*device, &mut part, (now, blocks.min(HELD)))?;
        }
        part.next = at;
        self.name(&mut part)?;
        Ok(part)
    }

    /// Looks at the map and the tables of the volume.
    fn tables(&self, device: &dyn BlockDevice, part: &mut ScrubPart) -> Result<()> {
        let subject = Subject { what: Scrubbed::Map, inode: None };
        let (mut level, mut at) = (0, 0);
        loop {
            let core = self.share();
            let Some((refs, kind)) = core.state.map.level(level) else { break };
            let refs = refs.get(at..).unwrap_or_default();
            if refs.is_empty() {
                (level, at) = (level + 1, 0);
                continue;
            }
            let refs = &refs[..refs.len().min(BATCH)];
            at += refs.len();
            let mut walk = Walk::of_tables(&core.state, device, part);
            let stable = walk.stable;
            let is_there = |reference: &Ref| !reference.is_none() && reference.birth <= stable;
            let refs: Vec<Ref> = refs.iter().copied().filter(is_there).collect();
            walk.read(&refs, kind, subject)?;
        }
        let subject = Subject { what: Scrubbed::Tables, inode: None };
        for obj in [Obj::Trees, Obj::Shared] {
            let mut from = 0;
            loop {
                let core = self.share();
                let fork = core.state.fork(core.state.head, obj)?;
                let mut walk = Walk::of_tables(&core.state, device, part);
                let leaves = walk.leaves(obj, fork, (from, false), subject)?;
                let Some(&(last, _)) = leaves.last() else { break };
                walk.compare(obj, &leaves, subject)?;
                from = last + 1;
            }
        }
        Ok(())
    }

    /// Finds the names of inodes that have damaged blocks.
    fn name(&self, part: &mut ScrubPart) -> Result<()> {
        let mut wanted: FxHashMap<Vec<u8>, FxHashSet<u64>> = FxHashMap::default();
        for found in &part.damaged {
            if let Some(inode) = found.inode {
                wanted.entry(found.tree.clone()).or_default().insert(inner(inode));
            }
        }
        for found in part.damaged.iter_mut().filter(|found| found.what == Scrubbed::Inodes) {
            found.paths =
                Some(self.prefix(&found.tree)).filter(|path| !path.is_empty()).into_iter().collect();
        }
        for (tree, inodes) in wanted {
            let paths = self.paths(&tree, &inodes)?;
            let of_tree = |found: &&mut Damaged| found.inode.is_some() && found.tree == tree;
            for found in part.damaged.iter_mut().filter(of_tree) {
                let names = found.inode.and_then(|inode| paths.get(&inner(inode)).cloned());
                let mut own = names.unwrap_or_default();
                own.sort_unstable();
                own.truncate(NAMES);
                found.paths = own;
            }
        }
        Ok(())
    }

    /// The paths of some inodes of a tree. Directories that cannot be read are passed over.
    fn paths(&self, tree: &[u8], wanted: &FxHashSet<u64>) -> Result<FxHashMap<u64, Vec<Vec<u8>>>> {
        let mut paths: FxHashMap<u64, Vec<Vec<u8>>> = FxHashMap::default();
        let mut seen = FxHashSet::from_iter([ROOT_INO]);
        let mut open = vec![(ROOT_INO, self.prefix(tree))];
        if wanted.contains(&ROOT_INO) {
            let path = [&open[0].1[..], b"/"].concat();
            paths.entry(ROOT_INO).or_default().push(path);
        }
        while let Some((ino, path)) = open.pop() {
            let core = self.share();
            let state = &core.state;
            let Some(number) = state.find_tree(tree) else { break };
            let listed = state.inode(number, ino).and_then(|dir| {
                state.list(number, &dir, 0, &mut |entry| {
                    let path = || [&path[..], b"/", entry.name].concat();
                    if wanted.contains(&entry.ino) {
                        paths.entry(entry.ino).or_default().push(path());
                    }
                    if entry.kind == FileKind::Directory && seen.insert(entry.ino) {
                        open.push((entry.ino, path()));
                    }
                    true
                })
            });
            match listed {
                Ok(()) | Err(Error::Io { .. } | Error::Corrupt(_) | Error::Errno(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(paths)
    }

    /// What paths in a tree begin with, as whoever has mounted this one sees them.
    fn prefix(&self, tree: &[u8]) -> Vec<u8> {
        let core = self.share();
        let state = &core.state;
        let found = state.find_tree(tree).and_then(|number| state.record(number).ok());
        match found {
            Some(record) if record.kind == TreeKind::Snapshot => [b"/", SNAPSHOTS, b"/", tree].concat(),
            Some(_) if tree == state.head().name => Vec::new(),
            _ => [b"(tree ", tree, b")"].concat(),
        }
    }
}

/// The number of an inode in its tree.
fn inner(inode: InodeNo) -> u64 {
    inode.get() & (INO_END - 1)
}

/// The tree that a scrub looks at after another one, from its beginning: snapshots, trees that change, and snapshots that were made of these
/// meanwhile.
fn next_tree(state: &State, began: u64, last: Option<u64>) -> Option<ScrubAt> {
    let order = |tree: &Record| {
        let rank = match tree.kind {
            TreeKind::Head => 1,
            _ if tree.id >= began => 2,
            _ => 0,
        };
        (rank, tree.id)
    };
    let trees = || state.trees.iter().flatten();
    // One that is gone was a snapshot, since no tree is removed at once that changes: all that come later do.
    let gone = |id: u64| (if id >= began { 2 } else { 0 }, id);
    let last = last.map(|id| trees().find(|tree| tree.id == id).map_or(gone(id), order));
    let next =
        trees().filter(|tree| last.is_none_or(|last| order(tree) > last)).min_by_key(|tree| order(tree))?;
    let last_before = if next.kind == TreeKind::Head {
        // A snapshot that was made meanwhile may go before anybody has looked at it.
        let is_older = |tree: &&Record| tree.id < began;
        let older: Vec<Option<Record>> =
            state.trees.iter().map(|tree| tree.as_ref().filter(is_older).cloned()).collect();
        before(&older, next)
    } else {
        before(&state.trees, next)
    };
    let after = last_before.map_or(0, |(_, generation)| generation);
    Some(ScrubAt { tree: next.id, began, after, ..ScrubAt::default() })
}

/// Looks at a few blocks, and says where to go on.
fn step(
    state: &State,
    device: &dyn BlockDevice,
    part: &mut ScrubPart,
    (at, left): (ScrubAt, u64),
) -> Result<Option<ScrubAt>> {
    let is_it = |tree: &Option<Record>| tree.as_ref().is_some_and(|tree| tree.id == at.tree);
    let Some(tree) = state.trees.iter().position(is_it) else {
        return Ok(next_tree(state, at.began, Some(at.tree)));
    };
    let record = state.record(tree)?;
    let of_tables = Walk::of_tables(state, device, part);
    let mut walk = Walk { tree, name: &record.name, after: at.after, left, ..of_tables };
    match walk.inodes(at, record.inodes)? {
        Some(at) => Ok(Some(at)),
        None => Ok(next_tree(state, at.began, Some(at.tree))),
    }
}

/// The root, when it is stable.
fn root(state: &State, device: &dyn BlockDevice, part: &mut ScrubPart) {
    part.blocks += 1;
    if !Root::read(device).is_ok_and(|root| root == state.root) {
        let (block, what) = (state.root.place(), Scrubbed::Tables);
        part.note(Damaged { block, what, tree: Vec::new(), inode: None, paths: Vec::new() });
    }
}

impl<'a> Walk<'a> {
    /// One of what no tree has alone.
    fn of_tables(state: &'a State, device: &'a dyn BlockDevice, part: &'a mut ScrubPart) -> Self {
        let stable = if state.is_settled() { state.root.generation } else { state.root.generation - 1 };
        let (nodes, passed) = Default::default();
        Self { state, device, part, tree: state.head, name: b"", after: 0, stable, nodes, passed, left: HELD }
    }

    /// Looks at inodes and what they have, from a place on; says where to go on when enough was read.
    fn inodes(&mut self, at: ScrubAt, fork: Fork) -> Result<Option<ScrubAt>> {
        let subject = Subject { what: Scrubbed::Inodes, inode: None };
        let mut at = at;
        loop {
            let from = place(at.inode).0;
            // Where a part goes on within a leaf, that and what is above it have been counted.
            let is_begun = at.inode > from * INODES_IN_BLOCK || at.leaf > 0 || at.in_attributes;
            let leaves = self.leaves(Obj::Inodes, fork, (from, is_begun), subject)?;
            let Some(&(leaf, reference)) = leaves.first() else { return Ok(None) };
            let first = leaf * INODES_IN_BLOCK;
            if at.inode < first {
                at = ScrubAt { inode: first, in_attributes: false, leaf: 0, ..at };
            }
            let bytes = self.leaf(leaf, reference, subject, leaf > from || !is_begun)?;
            while let Some(bytes) = &bytes
                && at.inode < first + INODES_IN_BLOCK
            {
                let from = place(at.inode).1;
                let slot = Slot::decode(&bytes[from..from + INODE_BYTES], at.inode);
                // What breaks a rule under a sum that is right, `fsck` finds.
                if let Ok(Slot::Used(inode)) = slot
                    && let Some(at) = self.inode(at, &inode)?
                {
                    return Ok(Some(at));
                }
                at = ScrubAt { inode: at.inode + 1, in_attributes: false, leaf: 0, ..at };
            }
            at = ScrubAt { inode: first + INODES_IN_BLOCK, in_attributes: false, leaf: 0, ..at };
            if self.left == 0 {
                return Ok(Some(at));
            }
        }
    }

    fn inode(&mut self, at: ScrubAt, inode: &Inode) -> Result<Option<ScrubAt>> {
        let contents = match inode.kind {
            FileKind::Directory => Scrubbed::Entries,
            _ => Scrubbed::Contents,
        };
        let parts = [
            (false, Obj::Data(inode.ino), inode.data, contents),
            (true, Obj::Xattrs(inode.ino), inode.xattrs, Scrubbed::Attributes),
        ];
        for (in_attributes, obj, fork, what) in parts {
            if at.in_attributes && !in_attributes {
                continue;
            }
            let subject = Subject { what, inode: Some(inode.ino) };
            let mut leaf = if at.in_attributes == in_attributes { at.leaf } else { 0 };
            loop {
                let leaves = self.leaves(obj, fork, (leaf, false), subject)?;
                let Some(&(last, _)) = leaves.last() else { break };
                self.compare(obj, &leaves, subject)?;
                leaf = last + 1;
                if self.left == 0 {
                    return Ok(Some(ScrubAt { in_attributes, leaf, ..at }));
                }
            }
        }
        Ok(None)
    }

    /// Some leaves of an object from one on, which may have been counted; what is above them is compared.
    fn leaves(
        &mut self,
        obj: Obj,
        fork: Fork,
        from: (u64, bool),
        subject: Subject,
    ) -> Result<Vec<(u64, Ref)>> {
        let mut leaves = Vec::new();
        self.passed.clear();
        if covers(fork.height, from.0) {
            self.collect((obj, fork.height, 0), fork.root, from, subject, &mut leaves)?;
        }
        Ok(leaves)
    }

    fn collect(
        &mut self,
        key: Key,
        reference: Ref,
        (from, is_counted): (u64, bool),
        subject: Subject,
        leaves: &mut Vec<(u64, Ref)>,
    ) -> Result<()> {
        let (obj, level, index) = key;
        let ours = self.state.node_in_memory(self.tree, key);
        let is_old = reference.is_none() || reference.birth <= self.after;
        if ours.is_none() && is_old {
            return Ok(());
        }
        if level == 0 {
            // One in memory has no block yet, but is a leaf of inodes with contents that have.
            leaves.push((index, if ours.is_some() { Ref::NONE } else { reference }));
            return Ok(());
        }
        let node = match ours {
            Some(node) => Some(node),
            None => {
                let first = index * span(level);
                self.upper(key, reference, subject, from < first || from == first && !is_counted)?
            }
        };
        let Some(node) = node else { return Ok(()) };
        if level > 1 && (has_twice(&node) || !reference.is_none() && !self.passed.insert(reference.block)) {
            // It was never written so, and may have leaves without end.
            self.note(reference.block, subject);
            return Ok(());
        }
        let step = span(level - 1);
        let begin = from.saturating_sub(index * span(level)) / step;
        for slot in begin..FAN {
            if leaves.len() == BATCH {
                break;
            }
            let below = Ref::slot(&node, to_usize(slot));
            self.collect((obj, level - 1, index * FAN + slot), below, (from, is_counted), subject, leaves)?;
        }
        Ok(())
    }

    /// A node that leads on; `None` if it is damaged. It is counted if it is new here.
    fn upper(
        &mut self,
        key: Key,
        reference: Ref,
        subject: Subject,
        is_new: bool,
    ) -> Result<Option<Arc<BlockBuf>>> {
        if let Some(known) = self.nodes.get(&reference.block) {
            return Ok(known.clone());
        }
        let node = if reference.birth > self.stable {
            // It is on its way; what is none was there before, and others say so.
            match self.state.load(reference, key, key.0.kind(key.1)) {
                Err(Error::Corrupt(_)) => None,
                found => Some(found?),
            }
        } else {
            let blocks = self.part.blocks;
            let read = self.read(&[reference], key.0.kind(key.1), subject)?.pop().flatten();
            if !is_new {
                self.part.blocks = blocks;
            }
            read.map(Arc::new)
        };
        self.nodes.insert(reference.block, node.clone());
        Ok(node)
    }

    /// A leaf of inodes.
    fn leaf(
        &mut self,
        leaf: u64,
        reference: Ref,
        subject: Subject,
        is_new: bool,
    ) -> Result<Option<Arc<BlockBuf>>> {
        let key = (Obj::Inodes, 0, leaf);
        if reference.is_none() {
            return Ok(self.state.node_in_memory(self.tree, key));
        }
        self.upper(key, reference, subject, is_new)
    }

    /// Reads leaves and compares them.
    fn compare(&mut self, obj: Obj, leaves: &[(u64, Ref)], subject: Subject) -> Result<()> {
        let mut refs: Vec<Ref> = leaves
            .iter()
            .map(|&(_, reference)| reference)
            .filter(|reference| !reference.is_none() && reference.birth <= self.stable)
            .collect();
        refs.sort_unstable_by_key(|reference| reference.block);
        let kind = match subject.what {
            Scrubbed::Contents => BlockKind::Data,
            _ => obj.kind(0),
        };
        self.read(&refs, kind, subject).map(drop)
    }

    /// Reads blocks from the medium; those that are what their references say.
    fn read(&mut self, refs: &[Ref], kind: BlockKind, subject: Subject) -> Result<Vec<Option<BlockBuf>>> {
        let data = (0, self.state.root.blocks);
        let is_there =
            |reference: &Ref| reference.unpacked().problem(data, self.state.generation()).is_none();
        let mut blocks: Vec<BlockBuf> = refs.iter().map(|_| BlockBuf::zeroed(BLOCK)).collect();
        let mut reads: Vec<BlockRead<'_>> = refs
            .iter()
            .zip(&mut blocks)
            .filter(|(reference, _)| is_there(reference))
            .map(|(reference, data)| BlockRead { block: BlockNo(reference.block), kind, data })
            .collect();
        let mut unread = FxHashSet::default();
        if self.device.read(&mut reads).is_err() {
            // One that cannot be read is no reason not to look at the others.
            for BlockRead { block, kind, data } in &mut reads {
                if self.device.read(&mut [BlockRead { block: *block, kind: *kind, data }]).is_err() {
                    unread.insert(block.get());
                }
            }
        }
        self.part.blocks += to_u64(refs.len());
        self.left = self.left.saturating_sub(to_u64(refs.len()));
        let mut found = Vec::with_capacity(refs.len());
        for (reference, bytes) in refs.iter().zip(blocks) {
            let was_read = is_there(reference) && !unread.contains(&reference.block);
            if was_read && sum(&bytes) == reference.sum {
                found.push(Some(bytes));
                continue;
            }
            self.note(reference.block, subject);
            found.push(None);
        }
        Ok(found)
    }

    fn note(&mut self, block: u64, subject: Subject) {
        let inode = subject.inode.map(|ino| Waffle::outside(self.state, self.tree, ino));
        let tree = self.name.to_vec();
        self.part.note(Damaged { block, what: subject.what, tree, inode, paths: Vec::new() });
    }
}
