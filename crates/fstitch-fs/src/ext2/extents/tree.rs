//! Operations on an extent tree, all of them in memory: what is read, changed, made and given up is kept until it is done, and
//! then becomes patches in one go. So an operation that fails in the middle has changed nothing.
//!
//! ```text
//!   inode ─ root (4 entries) ─► inner node ─► leaf: extent, extent, …
//! ```
//!
//! **Invariants.** 1. Entries are sorted and apart. 2. A child's number in its parent is its own first one. 3. No node but the
//! root is empty. 4. A root with a single child has it because the child's entries do not fit into the root.
//! 5. Neighbours within a leaf that can be one extent are, but for written ones in a node with a [wall](super::ends) between them, and those
//! that had one when they were put in: they are joined when an extent is put in beside them.
//!
//! Without a journal no two nodes that the medium reaches can change in one step, so nodes whose entries move, or whose first one is
//! another than their parent says, are left as they are and [copied](super::copy) ([`Tree::copy_moved`]).
//!
//! Every change is an edit of one leaf, after which the levels above are put in order ([`Tree::settle`]): one edit adds at most
//! two extents, and so splits at most one node of each level and grows the tree by at most one level.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use fstitch_core::{Errno, Result};

use super::ends::Walls;
use super::node::{
    ALL, child_for, children_mut, damaged, expect_held, extents_mut, joined, key, outside, part, split_off,
};
use crate::ext2::layout::extent::{DEPTH_MAX, Entries, Extent, Index, Node, UNWRITTEN_MAX};

/// Entries that one edit adds at most; a node has room for that many beside a root's.
pub(in crate::ext2) const ADDED_MAX: usize = 2;
/// Before so many extents that end where a file ended once, it is looked whether they can be one now.
const NEAR: usize = 3;

/// Where nodes come from.
pub(in crate::ext2) trait Nodes {
    /// Reads the node in `block`, which has `depth` levels below and holds file blocks of `range`.
    fn read(&mut self, block: u64, depth: u16, range: &Range<u64>) -> Result<Node>;
    /// A block for a new node.
    fn take(&mut self) -> Result<u64>;
    /// Entries that a new node has room for.
    fn room(&self) -> u16;
}

/// A node: in this block, or the root.
pub(in crate::ext2) type At = Option<u64>;

/// A node that was read or made.
#[derive(Debug)]
pub(in crate::ext2) struct Held {
    pub(in crate::ext2) node: Node,
    pub(in crate::ext2) is_new: bool,
    pub(in crate::ext2) is_changed: bool,
    /// Its first file block as it was read.
    pub(super) first: Option<u32>,
    /// Of a new one: the node that the medium has its entries in.
    pub(super) origin: At,
}

impl Held {
    /// A node of entries that the medium has in node `origin`.
    pub(super) fn new(node: Node, origin: At) -> Self {
        Self { node, is_new: true, is_changed: true, first: None, origin }
    }
}

/// The way to a leaf.
#[derive(Debug)]
struct Path {
    /// From the root down: each inner node, and the position of the child below.
    steps: Vec<(At, usize)>,
    leaf: At,
    /// The file blocks that the leaf may hold.
    range: Range<u64>,
}

/// Blocks that a file has lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ext2) struct Lost {
    /// The file block that the first of them was.
    pub(in crate::ext2) block: u32,
    pub(in crate::ext2) start: u64,
    pub(in crate::ext2) count: u32,
    /// The node that pointed at them.
    pub(in crate::ext2) from: At,
}

/// What a tree says of a file block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ext2) enum Found {
    /// This extent holds it.
    In(Extent),
    /// It is in a hole that ends here.
    HoleTo(u64),
}

/// A tree with what was read and changed of it.
#[derive(Debug)]
pub(in crate::ext2) struct Tree<N> {
    pub(in crate::ext2) source: N,
    pub(in crate::ext2) root: Node,
    pub(in crate::ext2) nodes: BTreeMap<u64, Held>,
    /// Nodes given up, with those that pointed at them.
    pub(in crate::ext2) freed: BTreeMap<u64, At>,
    pub(in crate::ext2) lost: Vec<Lost>,
    /// Nodes as the medium has them some of whose entries are in others now.
    pub(super) moved: BTreeSet<At>,
    /// Nodes are copied rather than changed together.
    pub(super) copies: bool,
    /// All nodes that were met are, so that the root alone changes in place.
    pub(super) copies_all: bool,
    /// Where written extents in nodes end, whatever follows.
    pub(super) walls: Walls,
}

impl<N: Nodes> Tree<N> {
    /// A tree whose nodes change together, in one step.
    pub(in crate::ext2) fn new(root: Node, source: N) -> Self {
        Self {
            source,
            root,
            nodes: BTreeMap::new(),
            freed: BTreeMap::new(),
            lost: Vec::new(),
            moved: BTreeSet::new(),
            copies: false,
            copies_all: false,
            walls: Walls::new(),
        }
    }

    /// Those that hold in this leaf: the inode's own bytes change together.
    fn walls_in(&self, leaf: At) -> Walls {
        if leaf.is_some() { self.walls.clone() } else { Walls::new() }
    }

    fn hold(&mut self, child: Index, depth: u16, range: &Range<u64>) -> Result<()> {
        if self.freed.contains_key(&child.node) {
            return Err(damaged(Some(child.node), "it is in the tree twice"));
        }
        if let Some(held) = self.nodes.get(&child.node) {
            return expect_held(&held.node, depth, range, child.node);
        }
        let node = self.source.read(child.node, depth, range)?;
        let first = key(&node, 0);
        let held = Held { node, is_new: false, is_changed: false, first, origin: None };
        self.nodes.insert(child.node, held);
        Ok(())
    }

    pub(super) fn node(&self, at: At) -> &Node {
        match at {
            None => &self.root,
            Some(block) => &self.nodes.get(&block).expect("a node on a path is held").node,
        }
    }

    pub(super) fn change(&mut self, at: At) -> &mut Node {
        match at {
            None => &mut self.root,
            Some(block) => {
                let held = self.nodes.get_mut(&block).expect("a node on a path is held");
                held.is_changed = true;
                &mut held.node
            }
        }
    }

    /// The way to the leaf that holds `index`, or would.
    fn path(&mut self, index: u64) -> Result<Path> {
        let mut path = Path { steps: Vec::new(), leaf: None, range: ALL };
        while let Some((slot, child, range)) = child_for(self.node(path.leaf), index, &path.range) {
            let depth = self.node(path.leaf).depth - 1;
            self.hold(child, depth, &range)?;
            path.steps.push((path.leaf, slot));
            path.leaf = Some(child.node);
            path.range = range;
        }
        Ok(path)
    }

    /// The nodes on the way to `index`, the root and the leaf included.
    pub(in crate::ext2) fn way_to(&mut self, index: u64) -> Result<Vec<At>> {
        let path = self.path(index)?;
        Ok(path.steps.iter().map(|&(at, _)| at).chain([path.leaf]).collect())
    }

    /// What is at file block `index`.
    pub(in crate::ext2) fn find(&mut self, index: u64) -> Result<Found> {
        let path = self.path(index)?;
        Ok(found_in(self.node(path.leaf), index, path.range.end))
    }

    /// The last extent.
    pub(in crate::ext2) fn last(&mut self) -> Result<Option<Extent>> {
        let path = self.path(ALL.end - 1)?;
        let Entries::Leaf(extents) = &self.node(path.leaf).entries else { return Ok(None) };
        Ok(extents.last().copied())
    }

    /// How many new nodes an edit at `index` takes that adds `added` extents.
    pub(in crate::ext2) fn nodes_needed(&mut self, index: u64, added: usize) -> Result<usize> {
        let path = self.path(index)?;
        let (mut needed, mut added, mut at) = (0, added, path.leaf);
        for &(parent, _) in path.steps.iter().rev() {
            if has_room(self.node(at), added) {
                return Ok(needed + self.copied_on(&path, index, needed > 0));
            }
            (needed, added, at) = (needed + 1, 1, parent);
        }
        let all = needed + usize::from(!has_room(&self.root, added));
        Ok(all + self.copied_on(&path, index, needed > 0))
    }

    /// How many nodes on the way to `index` are copied at most by an edit there that splits one of them or not.
    fn copied_on(&self, path: &Path, index: u64, splits: bool) -> usize {
        let goes_first = key(self.node(path.leaf), 0).is_none_or(|first| index <= u64::from(first));
        if self.copies && (splits || goes_first) { path.steps.len() } else { 0 }
    }

    /// How many nodes are copied at most by an edit anywhere, also when others have made the tree a level deeper before it.
    pub(in crate::ext2) fn copied_at_most(&self) -> usize {
        if self.copies { usize::from(self.root.depth) + 1 } else { 0 }
    }

    /// How many nodes are copied by an extent that joins another.
    pub(in crate::ext2) fn copied_by_joining(&mut self, index: u64) -> Result<usize> {
        let path = self.path(index)?;
        Ok(self.copied_on(&path, index, false))
    }

    /// How many nodes are copied where the file blocks `range` go, because they lose their first entry and stay.
    pub(in crate::ext2) fn copied_by_cutting(&mut self, range: &Range<u64>) -> Result<usize> {
        if !self.copies || range.end >= ALL.end {
            return Ok(0);
        }
        let path = self.path(range.end)?;
        let nodes = path.steps.iter().skip(1).map(|&(at, _)| at).chain([path.leaf]);
        let cut = |at: &At| {
            at.is_some() && key(self.node(*at), 0).is_some_and(|first| range.contains(&u64::from(first)))
        };
        Ok(nodes.filter(cut).count())
    }

    /// Whether an extent that is put in joins another.
    pub(in crate::ext2) fn would_join(&mut self, extent: Extent) -> Result<bool> {
        let path = self.path(u64::from(extent.block))?;
        let walls = self.walls_in(path.leaf);
        let Entries::Leaf(extents) = &self.node(path.leaf).entries else { return Ok(false) };
        let at = extents.partition_point(|other| other.block < extent.block);
        let before = at.checked_sub(1).and_then(|at| joined_within(&walls, extents[at], extent));
        let behind = || extents.get(at).and_then(|next| joined_within(&walls, extent, *next));
        Ok(before.or_else(behind).is_some())
    }

    /// Puts an extent into a hole.
    ///
    /// # Errors
    /// `Corrupt` if that is no hole, and those of reading and taking nodes.
    pub(in crate::ext2) fn insert(&mut self, extent: Extent) -> Result<()> {
        let path = self.path(u64::from(extent.block))?;
        let limit = path.range.end;
        let (walls, near) = (self.walls_in(path.leaf), if self.copies { NEAR } else { 1 });
        let extents = extents_mut(self.change(path.leaf));
        let at = extents.partition_point(|other| other.block < extent.block);
        let free_from = at.checked_sub(1).map_or(0, |at| extents[at].end());
        let free_to = extents.get(at).map_or(limit, |next| u64::from(next.block));
        if free_from > u64::from(extent.block) || extent.end() > free_to {
            return Err(damaged(path.leaf, format!("file block {} was a hole, and is none", extent.block)));
        }
        extents.insert(at, extent);
        join(extents, at.saturating_sub(near)..at + 2, &walls);
        self.settle(path)
    }

    /// Has no written extent of a node on both sides of file block `index`.
    pub(in crate::ext2) fn part_at(&mut self, index: u64) -> Result<()> {
        self.edit_each(&(index..index + 1), |extents, range, _, walls| {
            if !walls.is_empty()
                && let Some((at, _)) = met(extents, range)
            {
                part_extents(extents, at..at + 1, &[range.start]);
            }
        })
    }

    /// Says of the blocks of `range` that are there whether they are written.
    pub(in crate::ext2) fn mark(&mut self, range: &Range<u64>, unwritten: bool) -> Result<()> {
        self.edit_each(range, |extents, range, _, walls| {
            let Some((first, last)) = met(extents, range) else { return };
            let mut parts = Vec::new();
            for &extent in &extents[first..last] {
                let [before, behind] = outside(extent, range);
                parts.extend(before);
                let inside = part(extent, range);
                // The longest written extent is longer than the longest unwritten one.
                let at_most = if unwritten { UNWRITTEN_MAX } else { inside.len };
                let cut = u64::from(inside.block)..u64::from(inside.block) + u64::from(at_most);
                parts.push(Extent { unwritten, ..part(inside, &cut) });
                let rest = outside(inside, &cut)[1];
                parts.extend(rest.map(|rest| Extent { unwritten, ..rest }));
                parts.extend(behind);
            }
            let end = first + parts.len();
            extents.splice(first..last, parts);
            join(extents, first.saturating_sub(1)..end + 1, walls);
        })
    }

    /// Takes the blocks of `range` out of the file; they are listed in [`Tree::lost`].
    pub(in crate::ext2) fn remove(&mut self, range: &Range<u64>) -> Result<()> {
        self.edit_each(range, |extents, range, lost, _| {
            let Some((first, last)) = met(extents, range) else { return };
            let mut parts = Vec::new();
            for &extent in &extents[first..last] {
                let inside = part(extent, range);
                lost.push((inside.block, inside.start, inside.len));
                parts.extend(outside(extent, range).into_iter().flatten());
            }
            extents.splice(first..last, parts);
        })
    }

    /// Maps file block `index`, which is there, to block `start`; where it was is listed in [`Tree::lost`].
    pub(super) fn replace(&mut self, index: u32, start: u64) -> Result<()> {
        let range = u64::from(index)..u64::from(index) + 1;
        self.edit_each(&range, |extents, range, lost, walls| {
            let Some((first, _)) = met(extents, range) else { return };
            let [before, behind] = outside(extents[first], range);
            lost.push((index, part(extents[first], range).start, 1));
            let placed = Extent { block: index, len: 1, start, unwritten: false };
            let parts: Vec<Extent> = before.into_iter().chain([placed]).chain(behind).collect();
            let end = first + parts.len();
            extents.splice(first..=first, parts);
            join(extents, first.saturating_sub(1)..end + 1, walls);
        })
    }

    /// Edits each leaf that meets `range`.
    fn edit_each(
        &mut self,
        range: &Range<u64>,
        mut edit: impl FnMut(&mut Vec<Extent>, &Range<u64>, &mut Vec<(u32, u64, u32)>, &[u64]),
    ) -> Result<()> {
        let mut at = range.start;
        while at < range.end.min(ALL.end) {
            let path = self.path(at)?;
            let (mut lost, from, behind) = (Vec::new(), self.origin(path.leaf), path.range.end);
            let walls = self.walls_in(path.leaf);
            edit(extents_mut(self.change(path.leaf)), range, &mut lost, &walls);
            self.lost.extend(lost.into_iter().map(|(block, start, count)| Lost {
                block,
                start,
                count,
                from,
            }));
            self.settle(path)?;
            at = behind;
        }
        Ok(())
    }

    /// Puts the levels above an edited leaf in order.
    fn settle(&mut self, mut path: Path) -> Result<()> {
        let mut at = path.leaf;
        let at_end = path.range.end == ALL.end;
        while let (Some(block), Some((parent, slot))) = (at, path.steps.pop()) {
            let Some(first) = key(self.node(at), 0) else {
                self.give_up(block, self.origin(parent));
                children_mut(self.change(parent)).remove(slot);
                at = parent;
                continue;
            };
            let split = if has_room(self.node(at), 0) { None } else { Some(self.split(at, at_end)?) };
            if key(self.node(parent), slot) != Some(first) {
                children_mut(self.change(parent))[slot].block = first;
            }
            if let Some(child) = split {
                children_mut(self.change(parent)).insert(slot + 1, child);
            }
            at = parent;
        }
        self.settle_root()
    }

    /// Moves entries that have no room into a new node. A tree that grows at its end leaves full nodes behind.
    fn split(&mut self, at: At, at_end: bool) -> Result<Index> {
        let node = self.node(at);
        let keep = if at_end { usize::from(node.max) } else { node.entries.len() / 2 };
        let block = self.source.take()?;
        let moved = split_off(self.change(at), keep);
        let first = key(&moved, 0).expect("an overfull node has entries for two");
        self.make(block, moved, at);
        Ok(Index { block: first, node: block })
    }

    /// Makes a node of entries that were those of node `from`.
    fn make(&mut self, block: u64, node: Node, from: At) {
        let node = Node { max: self.source.room(), ..node };
        assert!(has_room(&node, 0), "a new node has room for what is moved there");
        let origin = self.origin(from);
        self.moved.insert(origin);
        let before = self.nodes.insert(block, Held::new(node, origin));
        assert!(before.is_none(), "block {block} was free");
    }

    /// The node that the medium has the entries of node `at` in.
    pub(super) fn origin(&self, at: At) -> At {
        match at.and_then(|block| self.nodes.get(&block)) {
            Some(held) if held.is_new => held.origin,
            _ => at,
        }
    }

    fn settle_root(&mut self) -> Result<()> {
        if !has_room(&self.root, 0) {
            if self.root.depth == DEPTH_MAX {
                return Err(Errno::FBIG.into());
            }
            let node = self.source.take()?;
            let block = key(&self.root, 0).expect("an overfull root has entries");
            let entries = Entries::Inner(vec![Index { block, node }]);
            let above = Node { depth: self.root.depth + 1, max: self.root.max, entries };
            let mut below = std::mem::replace(&mut self.root, above);
            if let Entries::Leaf(extents) = &mut below.entries {
                let all = 0..extents.len();
                let is_inside = |wall: &&u64| extents.iter().any(|extent| is_across(extent, **wall));
                // More of them than fit could only be where patches never become one.
                let room = usize::from(self.source.room()) - extents.len();
                let walls: Walls = self.walls.iter().filter(is_inside).take(room).copied().collect();
                part_extents(extents, all, &walls);
            }
            self.make(node, below, None);
        }
        if self.root.entries.is_empty() {
            self.root = Node { max: self.root.max, ..Node::empty_root() };
        }
        while let Entries::Inner(nodes) = &self.root.entries
            && let [child] = nodes[..]
        {
            self.hold(child, self.root.depth - 1, &(u64::from(child.block)..ALL.end))?;
            if self.node(Some(child.node)).entries.len() > usize::from(self.root.max) {
                break;
            }
            let node = self.node(Some(child.node)).clone();
            let origin = self.origin(Some(child.node));
            self.moved.insert(origin);
            self.give_up(child.node, None);
            self.root = Node { max: self.root.max, ..node };
        }
        Ok(())
    }

    /// A node is in the tree no more, where node `from` pointed at it on the medium.
    pub(super) fn give_up(&mut self, block: u64, from: At) {
        self.nodes.remove(&block);
        self.freed.insert(block, from);
    }
}

/// What a leaf says of file block `index`; behind its extents there is nothing up to `end`.
pub(in crate::ext2) fn found_in(leaf: &Node, index: u64, end: u64) -> Found {
    let Entries::Leaf(extents) = &leaf.entries else { return Found::HoleTo(end) };
    match extents.get(extents.partition_point(|extent| extent.end() <= index)) {
        Some(extent) if u64::from(extent.block) <= index => Found::In(*extent),
        Some(next) => Found::HoleTo(u64::from(next.block)),
        None => Found::HoleTo(end),
    }
}

fn has_room(node: &Node, added: usize) -> bool {
    node.entries.len() + added <= usize::from(node.max)
}

/// The positions of the extents that meet `range`.
fn met(extents: &[Extent], range: &Range<u64>) -> Option<(usize, usize)> {
    let first = extents.partition_point(|extent| extent.end() <= range.start);
    let last = extents.partition_point(|extent| u64::from(extent.block) < range.end);
    (first < last).then_some((first, last))
}

/// Two extents as one, as [`joined`], unless they are written and a wall is between them.
fn joined_within(walls: &[u64], first: Extent, next: Extent) -> Option<Extent> {
    joined(first, next).filter(|both| both.unwritten || !walls.contains(&first.end()))
}

/// Whether an extent is written on both sides of a file block's beginning.
pub(super) fn is_across(extent: &Extent, wall: u64) -> bool {
    !extent.unwritten && (u64::from(extent.block) + 1..extent.end()).contains(&wall)
}

/// Makes of each written extent at `positions` as many as these walls say.
fn part_extents(extents: &mut Vec<Extent>, positions: Range<usize>, walls: &[u64]) {
    for at in positions.rev() {
        let mut inside: Vec<u64> =
            walls.iter().copied().filter(|&wall| is_across(&extents[at], wall)).collect();
        inside.sort_unstable();
        inside.dedup();
        for wall in inside.into_iter().rev() {
            let (before, behind) = (part(extents[at], &(0..wall)), part(extents[at], &(wall..ALL.end)));
            extents.splice(at..=at, [before, behind]);
        }
    }
}

/// Joins what can be one among the extents at `positions`.
fn join(extents: &mut Vec<Extent>, positions: Range<usize>, walls: &[u64]) {
    let mut at = positions.start;
    let mut end = positions.end.min(extents.len());
    while at + 1 < end {
        match joined_within(walls, extents[at], extents[at + 1]) {
            Some(both) => {
                extents[at] = both;
                extents.remove(at + 1);
                end -= 1;
            }
            None => at += 1,
        }
    }
}

mod moves;
#[cfg(test)]
mod tests;
