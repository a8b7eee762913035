//! The way through a directory's hash-tree index to a name.
//!
//! Looking a name up goes by the index wherever the directory has one that can be used, whether or not it is kept when names are
//! added. An index that is damaged is used no more until the directory is loaded again: names are looked for along the entries then.

use std::sync::Arc;

use fstitch_core::{BlockBuf, BlockNo, Error, InodeFlags, Result, Structure};
use smallvec::SmallVec;

use super::find::slot;
use super::{DirMemory, Ext2, Inode};
use crate::ext2::layout::feature::compat;
use crate::ext2::layout::index::{self, IndexEntry, Node, Problem, ROOT_ENTRIES, Root};
use crate::ext2::layout::name_hash::Hasher;
use crate::uhfs::NameSlot;

/// A block of the index on the way to a leaf.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// Its position in the directory.
    pub(super) at: usize,
    /// The entry that the way goes by.
    pub(super) chosen: usize,
}

/// The way to a leaf.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub(super) root: Root,
    pub(super) hasher: Hasher,
    /// The hash that was looked for.
    pub(super) hash: u32,
    /// From the root on.
    pub(super) steps: SmallVec<[Step; 3]>,
    /// The leaf's position in the directory.
    pub(super) leaf: usize,
    /// Its lowest hash, with the mark that names of that hash are in the leaf before.
    pub(super) low: u32,
}

/// What a way is looked for by.
#[derive(Clone, Copy, Debug)]
pub(super) enum Goal<'a> {
    Name(&'a [u8]),
    Hash(u32),
}

/// A block of an index that is not as it should be.
pub(super) fn damaged(block: Option<BlockNo>, problem: impl Into<Problem>) -> Error {
    Error::corrupt(Structure::Other("directory index"), block, problem)
}

impl Ext2 {
    /// Whether indexes are kept when names are added: a split changes several blocks, which a journal makes one change. The same
    /// from the mount to the unmount.
    pub(in crate::ext2) fn keeps_indexes(&self) -> bool {
        self.has_feature_index() && self.keeps_indexes.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn has_feature_index(&self) -> bool {
        self.sb.features.compat & compat::DIR_INDEX != 0
    }

    /// Whether the directory has an index that can be used, as far as is known.
    pub(super) fn has_tree(&self, dir: &Inode, memory: &DirMemory) -> bool {
        dir.disk.flags & InodeFlags::INDEX != 0 && self.has_feature_index() && !memory.bad_tree
    }

    /// The way to the leaf in which names of this hash begin.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the index is damaged.
    pub(super) fn way(&self, memory: &DirMemory, goal: Goal<'_>) -> Result<Way> {
        let (no, bytes) = self.tree_block(memory, 0)?;
        let root = index::read_root(&bytes, &self.sb).map_err(|problem| damaged(Some(no), problem))?;
        let hasher = self.sb.name_hasher(root.version);
        let hasher = hasher.ok_or_else(|| damaged(Some(no), format!("unknown hash {}", root.version)))?;
        let hash = match goal {
            Goal::Name(name) => hasher.hash(name),
            Goal::Hash(hash) => hash,
        };
        let mut way = Way { root, hasher, hash, steps: SmallVec::new(), leaf: 0, low: 0 };
        self.descend(memory, &mut way, (no, bytes), |_, node| node.find(hash))?;
        Ok(way)
    }

    /// Goes on from the block where the way ends to a leaf, by the entries that `choose` says.
    fn descend(
        &self,
        memory: &DirMemory,
        way: &mut Way,
        (mut no, mut bytes): (BlockNo, Arc<BlockBuf>),
        choose: impl Fn(usize, &Node<'_>) -> usize,
    ) -> Result<()> {
        loop {
            let at = way.leaf;
            let node = self.tree_node(at, (no, &bytes))?;
            let chosen = choose(at, &node);
            let IndexEntry { hash, at: below } = node.entry(chosen);
            // What a block's first entry begins with is said above it.
            way.low = if chosen == 0 { way.low } else { hash };
            way.steps.push(Step { at, chosen });
            if below == 0 || below >= memory.list().len() || way.steps.iter().any(|step| step.at == below) {
                return Err(damaged(Some(no), format!("block {below} of {}", memory.list().len())));
            }
            way.leaf = below;
            if way.steps.len() > usize::from(way.root.levels) {
                return Ok(());
            }
            (no, bytes) = self.tree_block(memory, below)?;
        }
    }

    /// Moves the way to the next leaf; its lowest hash, with the mark that names of that hash are in the leaf before. `None` after
    /// the last one.
    pub(super) fn next_leaf(&self, memory: &DirMemory, way: &mut Way) -> Result<Option<u32>> {
        while let Some(step) = way.steps.pop() {
            let (no, bytes) = self.tree_block(memory, step.at)?;
            let chosen = step.chosen + 1;
            let node = self.tree_node(step.at, (no, &bytes))?;
            if chosen >= node.count() {
                continue;
            }
            way.leaf = step.at;
            // The entry that was chosen, and the first one of each block below it.
            self.descend(memory, way, (no, bytes), |at, _| if at == step.at { chosen } else { 0 })?;
            return Ok(Some(way.low));
        }
        Ok(None)
    }

    /// The entries in block `at` of the index.
    pub(super) fn tree_node<'a>(&self, at: usize, (no, bytes): (BlockNo, &'a [u8])) -> Result<Node<'a>> {
        let node = match at {
            0 => Node::read(bytes, ROOT_ENTRIES, &self.sb),
            _ => index::read_node(bytes, &self.sb),
        };
        node.map_err(|problem| damaged(Some(no), problem))
    }

    /// Block `at` of the directory, which an index needs.
    pub(super) fn tree_block(&self, memory: &DirMemory, at: usize) -> Result<(BlockNo, Arc<BlockBuf>)> {
        let found = if at < memory.list().len() { self.dir_bytes(memory, at)? } else { None };
        found.ok_or_else(|| damaged(None, format!("block {at} of the directory is missing")))
    }

    /// Finds a name by the directory's index; `None` if that cannot be used.
    pub(super) fn find_in_tree(
        &self,
        dir: &Inode,
        memory: &mut DirMemory,
        name: &[u8],
    ) -> Result<Option<Option<NameSlot>>> {
        let Some(mut way) = self.usable_way(dir, memory, Goal::Name(name))? else { return Ok(None) };
        let first = way.leaf;
        for _ in 0..memory.list().len() {
            let Some((block, bytes)) = self.dir_bytes(memory, way.leaf)? else { break };
            let mut passed = 0;
            let found = self.entries(&bytes, block).find(name, &mut passed)?;
            memory.note_passed(passed);
            if let Some(found) = found {
                memory.note_found(way.leaf);
                let entry = self.entries(&bytes, block).from(found.offset).next().transpose()?;
                return Ok(Some(entry.map(|entry| slot(&entry, block))));
            }
            match self.next_leaf(memory, &mut way) {
                Ok(Some(low)) if low & !1 == way.hash => {}
                Ok(_) => {
                    memory.note_sought(name, first);
                    return Ok(Some(None));
                }
                Err(error) => return memory.bad_tree_or(error),
            }
        }
        memory.bad_tree = true;
        Ok(None)
    }

    /// The way by an index that can be used; `None` if there is none.
    pub(super) fn usable_way(
        &self,
        dir: &Inode,
        memory: &mut DirMemory,
        goal: Goal<'_>,
    ) -> Result<Option<Way>> {
        if !self.has_tree(dir, memory) {
            return Ok(None);
        }
        match self.way(memory, goal) {
            Ok(way) => Ok(Some(way)),
            Err(error) => memory.bad_tree_or(error),
        }
    }
}

impl DirMemory {
    /// The tree leads from `name` to block `leaf` of the directory.
    pub(super) fn note_sought(&mut self, name: &[u8], leaf: usize) {
        let (sought, at) = self.sought.get_or_insert_default();
        sought.clear();
        sought.extend_from_slice(name);
        *at = leaf;
    }

    /// The leaf to which the tree leads from `name`, if that was asked last.
    pub(super) fn leaf_of(&self, name: &[u8]) -> Option<usize> {
        self.sought.as_ref().filter(|(sought, _)| sought == name).map(|&(_, leaf)| leaf)
    }

    /// Does without the index from now on if it is that which is damaged.
    pub(super) fn bad_tree_or<T>(&mut self, error: Error) -> Result<Option<T>> {
        match error {
            Error::Corrupt(_) => {
                self.bad_tree = true;
                Ok(None)
            }
            error => Err(error),
        }
    }
}
