//! Trees of small nodes against a model: file blocks and where each is.

use std::collections::{BTreeMap, BTreeSet};

use fstitch_core::{BlockNo, Seed};

use super::*;
use crate::ext2::layout::extent::Expected;

/// Bytes of a node beside its entries, and of an entry.
const UNIT: usize = 12;
/// File blocks that are worked on.
const SPACE: u64 = 3000;

/// Nodes as they are on a medium.
#[derive(Debug, Default)]
struct Medium {
    nodes: BTreeMap<u64, Vec<u8>>,
    next: u64,
    room: u16,
    /// Nodes that may be taken.
    left: usize,
}

impl Nodes for &mut Medium {
    fn read(&mut self, block: u64, depth: u16, range: &Range<u64>) -> Result<Node> {
        let bytes = self.nodes.get(&block).expect("a node that is in the tree");
        Node::parse(bytes, &expected(Some(depth), range))
    }

    fn take(&mut self) -> Result<u64> {
        self.left = self.left.checked_sub(1).ok_or(Errno::NOSPC)?;
        self.next += 1;
        Ok(self.next)
    }

    fn room(&self) -> u16 {
        self.room
    }
}

fn expected(depth: Option<u16>, range: &Range<u64>) -> Expected {
    let range = (u32::try_from(range.start).unwrap(), range.end);
    Expected { at: BlockNo(0), depth, range, blocks_count: 1 << 48 }
}

/// A node's bytes as they will be.
type Change = (At, Vec<u8>);

/// Where a file block is, and whether it is unwritten.
type Model = BTreeMap<u64, (u64, bool)>;

/// A file on a medium, and what it should be.
struct Rig {
    medium: Medium,
    root: Node,
    model: Model,
    seed: Seed,
    /// Where new blocks come from.
    next: u64,
    /// Nodes are copied, and some of a step's changes reach the medium before others.
    copies: bool,
}

impl Rig {
    fn new(room: u16, seed: u64) -> Self {
        let medium = Medium { room, ..Medium::default() };
        let (root, model, seed) = (Node::empty_root(), Model::new(), Seed::new(seed));
        Self { medium, root, model, seed, next: 1, copies: false }
    }

    /// Runs an operation that takes at most `needed` nodes, and writes what has changed.
    fn run<T>(
        &mut self,
        needed: usize,
        work: impl FnOnce(&mut Tree<&mut Medium>) -> Result<T>,
    ) -> Result<(T, Vec<Lost>)> {
        self.medium.left = needed;
        let before = self.medium.nodes.clone();
        let tree = Tree::new(self.root.clone(), &mut self.medium);
        let mut tree = Tree { copies: self.copies, ..tree };
        let done = work(&mut tree)?;
        tree.copy_moved()?;
        let Tree { source, root, nodes, freed, lost, .. } = tree;
        let new = || vec![0xee; UNIT + UNIT * usize::from(source.room)];
        let (mut made, mut in_place) = (Vec::new(), Vec::new());
        for (block, held) in nodes.into_iter().filter(|(_, held)| held.is_changed) {
            let mut bytes = before.get(&block).cloned().unwrap_or_else(new);
            held.node.encode_into(&mut bytes);
            if held.is_new { made.push((Some(block), bytes)) } else { in_place.push((Some(block), bytes)) }
        }
        let mut raw = self.root.root_words();
        if raw != root.root_words() {
            raw = root.root_words();
            in_place.push((None, crate::ext2::layout::inode::pointer_bytes(&raw).to_vec()));
        }
        if self.copies {
            self.cut(before, &made, &in_place);
        }
        for (at, bytes) in made.into_iter().chain(in_place) {
            at.map(|block| self.medium.nodes.insert(block, bytes));
        }
        for block in freed.keys() {
            assert!(self.medium.nodes.remove(block).is_some(), "only what was there is given up");
        }
        self.root = root;
        Ok((done, lost))
    }

    /// What the medium shows if the power is cut when all new nodes are there and any of the changes in place: each file block
    /// is where it was or where it will be.
    fn cut(&mut self, before: BTreeMap<u64, Vec<u8>>, made: &[Change], in_place: &[Change]) {
        let mut old = Model::new();
        show(&self.root, &ALL, &before, &mut old);
        let all = 1_u64 << in_place.len().min(12);
        let new = self.cut_at(&before, (made, in_place), all - 1);
        for _ in 0..all.min(12) {
            let some = self.seed.below(all);
            let shown = self.cut_at(&before, (made, in_place), some);
            for index in old.keys().chain(new.keys()).chain(shown.keys()) {
                let found = shown.get(index);
                assert!(found == old.get(index) || found == new.get(index), "{index}: {found:?}");
            }
        }
    }

    fn cut_at(
        &self,
        before: &BTreeMap<u64, Vec<u8>>,
        (made, in_place): (&[Change], &[Change]),
        some: u64,
    ) -> Model {
        let (mut nodes, mut root) = (before.clone(), self.root.clone());
        let arrived = in_place.iter().enumerate().filter(|(bit, _)| some >> bit & 1 == 1 || *bit >= 12);
        for (at, bytes) in made.iter().chain(arrived.map(|(_, change)| change)) {
            match at {
                Some(block) => drop(nodes.insert(*block, bytes.clone())),
                None => root = Node::parse(bytes, &expected(None, &ALL)).unwrap(),
            }
        }
        let mut shown = Model::new();
        show(&root, &ALL, &nodes, &mut shown);
        shown
    }

    fn needed(&mut self, index: u64, added: usize) -> usize {
        self.run(0, |tree| tree.nodes_needed(index, added)).unwrap().0
    }

    fn insert(&mut self) {
        let block = self.seed.below(SPACE);
        let hole = (block..SPACE).take_while(|index| !self.model.contains_key(index)).count().min(9);
        if hole == 0 {
            return;
        }
        let len = 1 + self.seed.below(u64::try_from(hole).unwrap());
        let unwritten = self.seed.below(2) == 0;
        // Now and then behind its neighbour, so that both are one.
        let near = block.checked_sub(1).and_then(|before| self.model.get(&before));
        let start = match near {
            Some(&(start, _)) if self.seed.below(2) == 0 => start + 1,
            _ => self.next + 1000,
        };
        if (start..start + 10).any(|block| self.model.values().any(|&(used, _)| used == block)) {
            return;
        }
        self.next = start.max(self.next);
        let extent = Extent {
            block: u32::try_from(block).unwrap(),
            len: u32::try_from(len).unwrap(),
            start,
            unwritten,
        };
        let joins = self.run(0, |tree| tree.would_join(extent)).unwrap().0;
        let joining = |tree: &mut Tree<&mut Medium>| tree.copied_by_joining(block);
        let needed = if joins { self.run(0, joining).unwrap().0 } else { self.needed(block, 1) };
        // What a step of an operation has to log: of each level one node that was there and one new one, and one for a new level.
        let most = 2 * usize::from(self.root.depth) + 1;
        let logged = |tree: &mut Tree<&mut Medium>| {
            tree.insert(extent)?;
            Ok(tree.nodes.values().filter(|held| held.is_changed).count())
        };
        let (changed, _) = self.run(needed, logged).unwrap();
        assert!(changed <= most, "{changed} nodes changed at depth {}", self.root.depth);
        for (index, start) in (block..block + len).zip(start..) {
            self.model.insert(index, (start, unwritten));
        }
    }

    fn range(&mut self) -> Range<u64> {
        let from = self.seed.below(SPACE);
        let len = match self.seed.below(8) {
            0 => SPACE,
            1 => 1 + self.seed.below(300),
            _ => 1 + self.seed.below(12),
        };
        from..(from + len).min(SPACE)
    }

    fn mark(&mut self) {
        let range = self.range();
        let unwritten = self.seed.below(2) == 0;
        // Each end of a range may cut an extent in two; the first may take the room that was there for the second.
        let copied = self.run(0, |tree| Ok(tree.copied_at_most())).unwrap().0;
        let needed = self.needed(range.start, ADDED_MAX) + usize::from(self.root.depth) + 2 + copied;
        self.run(needed, |tree| tree.mark(&range, unwritten)).unwrap();
        for (_, place) in self.model.range_mut(range) {
            place.1 = unwritten;
        }
    }

    fn remove(&mut self) {
        let range = self.range();
        let cut = |tree: &mut Tree<&mut Medium>| match tree.find(range.start)? {
            Found::In(extent) if u64::from(extent.block) < range.start && range.end < extent.end() => {
                tree.nodes_needed(range.start, 1)
            }
            _ => tree.copied_by_cutting(&range),
        };
        let needed = self.run(0, cut).unwrap().0;
        let ((), lost) = self.run(needed, |tree| tree.remove(&range)).unwrap();
        let mut lost: Vec<u64> =
            lost.iter().flat_map(|lost| lost.start..lost.start + u64::from(lost.count)).collect();
        let mut gone = Vec::new();
        self.model.retain(|index, (start, _)| {
            let stays = !range.contains(index);
            if !stays {
                gone.push(*start);
            }
            stays
        });
        lost.sort_unstable();
        gone.sort_unstable();
        assert_eq!(lost, gone);
    }

    /// Takes a range out, or puts one in. With copies, nobody does.
    fn shift(&mut self) {
        let range = self.range();
        let (len, out) = (range.end - range.start, self.seed.below(2) == 0);
        let last = self.model.last_key_value().map_or(0, |(&last, _)| last);
        if self.copies || (!out && last + len >= SPACE) {
            return;
        }
        let at = range.start;
        let needed = self.run(0, |tree| match tree.find(at)? {
            Found::In(extent) if u64::from(extent.block) < at && (!out || range.end < extent.end()) => {
                tree.nodes_needed(at, 1)
            }
            _ => Ok(0),
        });
        let needed = needed.unwrap().0;
        let work =
            |tree: &mut Tree<&mut Medium>| if out { tree.take_out(&range) } else { tree.put_in(&range) };
        let ((), lost) = self.run(needed, work).unwrap();
        let lost: BTreeSet<u64> =
            lost.iter().flat_map(|lost| lost.start..lost.start + u64::from(lost.count)).collect();
        let (mut gone, mut moved) = (BTreeSet::new(), Model::new());
        for (&index, &place) in &self.model {
            match (out, range.contains(&index)) {
                (true, true) => drop(gone.insert(place.0)),
                (true, false) if index >= range.end => drop(moved.insert(index - len, place)),
                (false, _) if index >= at => drop(moved.insert(index + len, place)),
                _ => drop(moved.insert(index, place)),
            }
        }
        assert_eq!(lost, gone);
        self.model = moved;
    }

    /// Reads everything anew and compares; returns the depth and the number of extents.
    fn check(&self) -> (u16, usize) {
        let mut met = BTreeSet::new();
        let mut extents = Vec::new();
        self.walk(&self.root, &ALL, (&mut met, &mut extents));
        assert!(self.medium.nodes.keys().eq(&met), "no node is lost, none is there twice");
        let found: Model = extents
            .iter()
            .flat_map(|extent| {
                (u64::from(extent.block)..extent.end())
                    .zip((extent.start..).map(|start| (start, extent.unwritten)))
            })
            .collect();
        assert_eq!(found, self.model);
        let root = &self.root;
        assert!(root.entries.len() <= 4 && (root.depth == 0 || !root.entries.is_empty()));
        if let Entries::Inner(nodes) = &root.entries
            && let [child] = nodes[..]
        {
            let bytes = &self.medium.nodes[&child.node];
            let below = Node::parse(bytes, &expected(Some(root.depth - 1), &ALL)).unwrap();
            assert!(below.entries.len() > 4, "it would fit into the root");
        }
        (root.depth, extents.len())
    }

    fn walk(&self, node: &Node, range: &Range<u64>, (met, extents): (&mut BTreeSet<u64>, &mut Vec<Extent>)) {
        match &node.entries {
            Entries::Leaf(spans) => {
                assert!(
                    spans.windows(2).all(|pair| joined(pair[0], pair[1]).is_none()),
                    "{spans:?} can be shorter"
                );
                extents.extend_from_slice(spans);
            }
            Entries::Inner(nodes) => {
                for child in nodes {
                    let (_, _, range) = child_for(node, u64::from(child.block), range).unwrap();
                    let bytes = &self.medium.nodes[&child.node];
                    let below = Node::parse(bytes, &expected(Some(node.depth - 1), &range)).unwrap();
                    assert_eq!(key(&below, 0), Some(child.block), "a parent knows where its child begins");
                    assert!(met.insert(child.node));
                    self.walk(&below, &range, (met, extents));
                }
            }
        }
    }

    fn look(&mut self) {
        let index = self.seed.below(SPACE);
        let found = self.run(0, |tree| tree.find(index)).unwrap().0;
        match (found, self.model.get(&index)) {
            (Found::In(extent), Some(&(start, unwritten))) => {
                assert_eq!((extent.at(u32::try_from(index).unwrap()), extent.unwritten), (start, unwritten));
            }
            (Found::HoleTo(end), None) => {
                let next = self.model.range(index..).next().map(|(&next, _)| next);
                assert!(end > index && next.is_none_or(|next| end <= next));
            }
            (found, expected) => panic!("{index}: {found:?}, expected {expected:?}"),
        }
    }
}

/// What a tree shows, every rule of which is kept.
fn show(node: &Node, range: &Range<u64>, nodes: &BTreeMap<u64, Vec<u8>>, into: &mut Model) {
    match &node.entries {
        Entries::Leaf(extents) => {
            for extent in extents {
                let places = (extent.start..).map(|start| (start, extent.unwritten));
                into.extend((u64::from(extent.block)..extent.end()).zip(places));
            }
        }
        Entries::Inner(below) => {
            for child in below {
                let (_, _, range) = child_for(node, u64::from(child.block), range).unwrap();
                let bytes = nodes.get(&child.node).expect("a node that is in the tree");
                let below = Node::parse(bytes, &expected(Some(node.depth - 1), &range)).unwrap();
                assert_eq!(key(&below, 0), Some(child.block), "a parent knows where its child begins");
                show(&below, &range, nodes, into);
            }
        }
    }
}

#[test]
fn random_operations_leave_what_the_model_says() {
    random_operations(false);
}

#[test]
fn where_nodes_are_copied_each_change_is_right_alone() {
    random_operations(true);
}

fn random_operations(copies: bool) {
    let mut deepest = 0;
    for seed in 0..40 {
        let mut rig = Rig::new([6, 7, 12, 40][seed % 4], u64::try_from(seed).unwrap());
        rig.copies = copies;
        for step in 0..600 {
            // It grows for a while, then shrinks.
            match rig.seed.below(if step < 400 { 12 } else { 6 }) {
                0 | 1 => rig.remove(),
                2 | 3 => rig.mark(),
                4 => rig.look(),
                _ => rig.insert(),
            }
            deepest = deepest.max(rig.check().0);
        }
        rig.run(0, |tree| tree.remove(&ALL)).unwrap();
        rig.model.clear();
        assert_eq!(rig.check(), (0, 0), "seed {seed}");
        assert!(rig.medium.nodes.is_empty());
    }
    assert!(deepest >= 3, "only {deepest} levels");
}

#[test]
fn what_is_behind_a_range_that_goes_or_comes_moves() {
    let mut deepest = 0;
    for seed in 0..40 {
        let mut rig = Rig::new([6, 7, 12, 40][seed % 4], 100 + u64::try_from(seed).unwrap());
        for step in 0..400 {
            match rig.seed.below(if step < 300 { 14 } else { 7 }) {
                0 => rig.remove(),
                1 => rig.mark(),
                2..=4 => rig.shift(),
                5 => rig.look(),
                _ => rig.insert(),
            }
            deepest = deepest.max(rig.check().0);
        }
    }
    assert!(deepest >= 3, "only {deepest} levels");
}

#[test]
fn what_a_hole_has_parted_is_one_extent_when_it_goes() {
    let mut rig = Rig::new(6, 12);
    for unwritten in [false, true] {
        let block = if unwritten { 0 } else { 100 };
        let extent = Extent { block, len: 9, start: u64::from(10 + block), unwritten };
        rig.run(0, |tree| tree.insert(extent)).unwrap();
        rig.model.extend((0..9).map(|at| (u64::from(block + at), (u64::from(10 + block + at), unwritten))));
    }
    rig.run(0, |tree| tree.put_in(&(5..9))).unwrap();
    rig.run(0, |tree| tree.put_in(&(108..208))).unwrap();
    rig.run(0, |tree| tree.take_out(&(5..9))).unwrap();
    rig.run(0, |tree| tree.take_out(&(104..204))).unwrap();
    assert_eq!(rig.check(), (0, 2));
}

#[test]
fn moves_in_trees_that_are_damaged_are_refused() {
    let mut rig = Rig::new(6, 11);
    for at in 0..12_u32 {
        let extent = Extent { block: 4 * at, len: 1, start: u64::from(10 + 3 * at), unwritten: false };
        let needed = rig.needed(u64::from(extent.block), 1);
        rig.run(needed, |tree| tree.insert(extent)).unwrap();
        rig.model.insert(u64::from(extent.block), (extent.start, false));
    }
    // Behind the last block that files can have.
    let refused = rig.run(0, |tree| tree.put_in(&(4..ALL.end - 10)));
    assert!(matches!(refused, Err(fstitch_core::Error::Corrupt { .. })));
    assert_eq!(rig.check().0, 1, "nothing has changed");
    // A node that the root has twice: when it has moved, it is where the other one should be.
    let Entries::Inner(children) = &mut rig.root.entries else { panic!("a tree of one level") };
    children[1].node = children[0].node;
    let by = u64::from(children[1].block);
    assert!(rig.run(9, |tree| tree.put_in(&(0..by))).is_err());
    assert!(rig.run(9, |tree| tree.take_out(&(1..2))).is_err());
}

#[test]
fn a_file_that_grows_at_its_end_fills_its_nodes() {
    let mut rig = Rig::new(10, 1);
    for at in 0..500_u32 {
        let extent = Extent { block: 2 * at, len: 1, start: u64::from(10 + 2 * at), unwritten: false };
        let needed = rig.needed(u64::from(extent.block), 1);
        rig.run(needed, |tree| tree.insert(extent)).unwrap();
        rig.model.insert(u64::from(extent.block), (extent.start, false));
    }
    let (depth, extents) = rig.check();
    assert_eq!((depth, extents), (3, 500));
    assert!(rig.medium.nodes.len() <= 50 + 5 + 2, "{} nodes", rig.medium.nodes.len());
}

#[test]
fn a_failure_for_want_of_blocks_changes_nothing() {
    let mut rig = Rig::new(6, 9);
    let mut failed = 0;
    for at in 0..60_u32 {
        let extent = Extent { block: 3 * at, len: 2, start: u64::from(10 + 3 * at), unwritten: true };
        let needed = rig.needed(u64::from(extent.block), 1);
        if needed > 0 {
            assert!(rig.run(needed - 1, |tree| tree.insert(extent)).is_err());
            failed += 1;
            rig.check();
        }
        rig.run(needed, |tree| tree.insert(extent)).unwrap();
        let places = (u64::from(extent.block)..).zip([extent.start, extent.start + 1]);
        rig.model.extend(places.map(|(index, start)| (index, (start, true))));
        rig.check();
    }
    assert!(failed > 5);
}

#[test]
fn what_is_no_hole_is_not_filled() {
    let mut rig = Rig::new(6, 3);
    let extent = |block, len| Extent { block, len, start: u64::from(100 + block), unwritten: false };
    rig.run(0, |tree| tree.insert(extent(10, 5))).unwrap();
    for (block, len) in [(10, 1), (14, 1), (9, 2), (8, 20), (12, 1)] {
        assert!(rig.run(1, |tree| tree.insert(extent(block, len))).is_err(), "{block} {len}");
    }
    rig.run(0, |tree| tree.insert(extent(15, 2))).unwrap();
    rig.run(0, |tree| tree.insert(extent(9, 1))).unwrap();
    assert_eq!(rig.root.entries.len(), 1, "they are one extent");
}

#[test]
fn the_longest_extent_becomes_two_when_it_is_unwritten() {
    let mut rig = Rig::new(6, 3);
    let whole = Extent { block: 0, len: 32_768, start: 100, unwritten: false };
    rig.run(0, |tree| tree.insert(whole)).unwrap();
    rig.run(0, |tree| tree.mark(&(0..40_000), true)).unwrap();
    let Entries::Leaf(both) = &rig.root.entries else { panic!("two fit the root") };
    assert!(both.len() == 2 && both.iter().all(|extent| extent.unwritten), "{both:?}");
    rig.run(0, |tree| tree.mark(&(0..40_000), false)).unwrap();
    assert_eq!(rig.root.entries, Entries::Leaf(vec![whole]));
}

#[test]
fn no_written_extent_of_a_node_is_across_a_wall() {
    let mut medium = Medium { room: 8, left: 100, ..Medium::default() };
    let mut tree = Tree { copies: true, ..Tree::new(Node::empty_root(), &mut medium) };
    let extent = |block, len| Extent { block, len, start: 1000 + u64::from(block), unwritten: false };
    let met = |tree: &mut Tree<&mut Medium>| -> Vec<(u32, u32)> {
        let (mut at, mut extents) = (0, Vec::new());
        while let Found::In(extent) = tree.find(at).unwrap() {
            extents.push((extent.block, extent.len));
            at = extent.end();
        }
        extents
    };
    tree.walls = Walls::from_slice(&[10]);
    tree.insert(extent(0, 10)).unwrap();
    tree.insert(extent(10, 5)).unwrap();
    assert_eq!(met(&mut tree), [(0, 15)], "a root lies with the length in the inode");
    for block in [100, 200, 300, 400] {
        tree.insert(extent(block, 1)).unwrap();
    }
    assert_eq!((tree.root.depth, met(&mut tree)), (1, vec![(0, 10), (10, 5)]));
    tree.walls = Walls::from_slice(&[10, 15]);
    tree.insert(extent(15, 5)).unwrap();
    assert_eq!(met(&mut tree), [(0, 10), (10, 5), (15, 5)]);
    tree.walls = Walls::from_slice(&[10, 20]);
    assert!(!tree.would_join(extent(20, 1)).unwrap());
    tree.insert(extent(20, 1)).unwrap();
    assert_eq!(met(&mut tree), [(0, 10), (10, 10), (20, 1)], "the wall that is gone parts nothing any more");
    tree.walls = Walls::from_slice(&[21]);
    tree.mark(&(8..12), true).unwrap();
    tree.mark(&(8..12), false).unwrap();
    tree.insert(extent(21, 1)).unwrap();
    tree.part_at(3).unwrap();
    assert_eq!(met(&mut tree), [(0, 3), (3, 18), (21, 1)]);
}

#[test]
fn more_walls_than_a_node_has_room_for_part_as_much_as_fits() {
    let mut medium = Medium { room: 8, left: 100, ..Medium::default() };
    let walls: Walls = (1..50).collect();
    let mut tree = Tree { copies: true, walls, ..Tree::new(Node::empty_root(), &mut medium) };
    for (block, len) in [(0, 50), (100, 1), (200, 1), (300, 1), (400, 1)] {
        tree.insert(Extent { block, len, start: 1000 + u64::from(block), unwritten: false }).unwrap();
    }
    assert_eq!(tree.root.depth, 1);
    assert_eq!(tree.find(1).unwrap(), Found::In(Extent { block: 1, len: 1, start: 1001, unwritten: false }));
    assert_eq!(
        tree.find(49).unwrap(),
        Found::In(Extent { block: 3, len: 47, start: 1003, unwritten: false })
    );
}
