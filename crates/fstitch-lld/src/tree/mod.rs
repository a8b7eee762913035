//! B+ trees whose pages lie in the log: the committed state of a disk.
//!
//! What was changed since the last checkpoint is in memory, owned by what leads to it; everything else is on the medium, and what
//! was read of it is kept by [`Pages`] as long as there is room. A change copies the way from the root to its leaf into memory. Each
//! page knows how many entries are below each of its children, so that a position is found in one descent.
//!
//! ```text
//!   root ── Link::Memory ──► Node (changed)          Link::Medium(place) ──► Pages ──► Arc<Node> (as it is there)
//!                              └─ children: Link …
//! ```
//!
//! **Invariants.** 1. A node in memory is reached through nodes in memory only. 2. Keys ascend, within nodes and over them; the first
//! key of a child is not below the key that its parent has for it, and below that of the next. 3. A count is the sum of those
//! below. 4. No node but the root is empty, no inner node has one child only unless its neighbours are full.

mod change;
mod codec;
mod look;
mod save;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use fstitch_core::Result;

pub use codec::Fixed;
pub(crate) use save::Sink;

/// Where a page is, and its sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The block of the device with which it begins.
    pub block: u64,
    /// CRC-32C of its bytes.
    pub sum: u32,
}

/// What is below a link.
#[derive(Debug)]
pub(crate) enum Link<K, V> {
    /// It has changed since the last checkpoint.
    Memory(Box<Node<K, V>>),
    /// It is on the medium.
    Medium(Place),
}

/// A subtree.
#[derive(Debug)]
pub(crate) struct Child<K, V> {
    /// No key below is smaller.
    pub(crate) first: K,
    /// Entries below.
    pub(crate) count: u64,
    pub(crate) link: Link<K, V>,
}

/// A page.
#[derive(Debug)]
pub(crate) enum Node<K, V> {
    Leaf(Vec<(K, V)>),
    Inner(Vec<Child<K, V>>),
}

/// Reads pages, and keeps them as long as there is room.
pub(crate) trait Pages<K, V> {
    /// Bytes of a page.
    fn page_size(&self) -> usize;
    /// The page at a place.
    ///
    /// # Errors
    /// If it cannot be read, or is damaged.
    fn load(&self, place: Place) -> Result<Arc<Node<K, V>>>;
    /// The page at a place that the tree leaves, to be changed: nobody asks for it any more.
    ///
    /// # Errors
    /// As [`Pages::load`].
    fn take(&self, place: Place) -> Result<Node<K, V>>;
    /// The pages at some places, in their order. Waits once for all that are not in memory, where it can.
    ///
    /// # Errors
    /// If one of them cannot be read, or is damaged.
    fn load_all(&self, places: &[Place]) -> Result<Vec<Arc<Node<K, V>>>> {
        places.iter().map(|place| self.load(*place)).collect()
    }
}

/// An ordered map with positions.
#[derive(Debug)]
pub(crate) struct Tree<K, V> {
    root: Link<K, V>,
    count: u64,
    /// Pages in memory.
    changed: usize,
    /// Places of pages that are not part of the tree any more since this was asked last.
    left: Vec<Place>,
}

impl<K: Fixed + Ord, V: Fixed> Default for Tree<K, V> {
    fn default() -> Self {
        Self { root: Link::Memory(Box::new(Node::Leaf(Vec::new()))), count: 0, changed: 1, left: Vec::new() }
    }
}

impl<K: Fixed + Ord, V: Fixed> Tree<K, V> {
    /// The tree whose root is on the medium, with so many entries.
    pub(crate) fn at(root: Place, count: u64) -> Self {
        Self { root: Link::Medium(root), count, changed: 0, left: Vec::new() }
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> u64 {
        self.count
    }

    /// Pages that have changed since the last checkpoint.
    pub(crate) fn changed_pages(&self) -> usize {
        self.changed
    }

    /// Pages on the medium that the tree has left, and that count as its own until they are taken.
    pub(crate) fn left(&self) -> &[Place] {
        &self.left
    }

    /// Pages on the medium that the tree has left since this was asked last.
    pub(crate) fn take_left(&mut self) -> Vec<Place> {
        std::mem::take(&mut self.left)
    }
}

impl<K: Fixed + Ord, V: Fixed> Node<K, V> {
    /// Entries below.
    fn count(&self) -> u64 {
        match self {
            Self::Leaf(entries) => fstitch_core::num::to_u64(entries.len()),
            Self::Inner(children) => children.iter().map(|child| child.count).sum(),
        }
    }

    /// Entries or children.
    fn len(&self) -> usize {
        match self {
            Self::Leaf(entries) => entries.len(),
            Self::Inner(children) => children.len(),
        }
    }

    /// The smallest key.
    pub(crate) fn first(&self) -> Option<K> {
        match self {
            Self::Leaf(entries) => entries.first().map(|entry| entry.0),
            Self::Inner(children) => children.first().map(|child| child.first),
        }
    }
}

/// The child below which a key is, or would be.
fn child_of<K: Fixed + Ord, V>(children: &[Child<K, V>], key: &K) -> usize {
    children.partition_point(|child| child.first <= *key).saturating_sub(1)
}
