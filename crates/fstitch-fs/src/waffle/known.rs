//! Nodes that were found whole lately, so that their sums are not computed at each step of each operation; and leaves of inodes that were
//! looked at, so that an inode is found without its tree.
//!
//! **Invariants.** 1. What is known by a reference has its sum: only what was compared is put in. So it is what the reference means,
//! whatever has become of the block. 2. A leaf that is known by its place is the one that the last commit left there, and who looks for it
//! has looked among those that have changed since.

use std::sync::{Arc, Weak};

use fstitch_core::BlockBuf;
use fstitch_core::lock::Mutex;
use fstitch_core::num::to_usize;
use fstitch_core::order::rank;
use rustc_hash::FxHashMap;

use super::layout::pointer::Ref;
use super::tree::Node;

/// How many are known: those of 32 MiB. They keep nothing in memory that the cache gives up, and are all forgotten when they are too many.
const MAX: usize = 8192;

/// The nodes, each by its block.
#[derive(Default)]
pub(super) struct Known(Mutex<FxHashMap<u64, (Ref, Weak<BlockBuf>)>, rank::Table>);

impl Known {
    pub(super) fn get(&self, reference: Ref) -> Option<Node> {
        let nodes = self.0.lock();
        let (_, node) = nodes.get(&reference.block).filter(|(known, _)| *known == reference)?;
        node.upgrade()
    }

    pub(super) fn insert(&self, reference: Ref, node: &Node) {
        let mut nodes = self.0.lock();
        if nodes.len() == MAX {
            nodes.clear();
        }
        nodes.insert(reference.block, (reference, Arc::downgrade(node)));
    }
}

/// How many leaves are known: those of a quarter of a mebibyte.
const LEAVES: u64 = 64;

/// A leaf of a tree's inodes: the tree, the leaf's index, its bytes.
type Leaf = (usize, u64, Node);

/// Leaves of inodes, each in the slot of its index.
#[derive(Default)]
pub(super) struct Leaves(Mutex<Vec<Option<Leaf>>, rank::Table>);

impl Leaves {
    pub(super) fn get(&self, tree: usize, leaf: u64) -> Option<Node> {
        let leaves = self.0.lock();
        let (_, _, node) =
            leaves.get(slot(leaf))?.as_ref().filter(|(of, index, _)| (*of, *index) == (tree, leaf))?;
        Some(Arc::clone(node))
    }

    pub(super) fn insert(&self, tree: usize, leaf: u64, node: &Node) {
        let mut leaves = self.0.lock();
        if leaves.is_empty() {
            leaves.resize(to_usize(LEAVES), None);
        }
        leaves[slot(leaf)] = Some((tree, leaf, Arc::clone(node)));
    }

    /// When changed leaves get their blocks, and whatever else has put nodes into the places of others.
    pub(super) fn forget(&self) {
        self.0.lock().clear();
    }
}

fn slot(leaf: u64) -> usize {
    to_usize(leaf % LEAVES)
}
