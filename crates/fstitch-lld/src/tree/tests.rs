//! Trees against maps, on a medium in memory whose pages are forgotten at any time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{Error, Result, Seed};

use super::change::checked;
use super::save::Sink;
use super::{Node, Pages, Place, Tree};

type Key = (u64, u64);

/// Pages of 256 bytes: 10 entries in a leaf, 6 children.
const PAGE: usize = 256;
const TREE: u8 = 7;

#[derive(Default)]
struct Medium {
    pages: RefCell<BTreeMap<u64, Vec<u8>>>,
    kept: RefCell<BTreeMap<Place, Arc<Node<Key, u64>>>>,
    next: u64,
}

impl Pages<Key, u64> for Medium {
    fn page_size(&self) -> usize {
        PAGE
    }

    fn load(&self, place: Place) -> Result<Arc<Node<Key, u64>>> {
        if let Some(node) = self.kept.borrow().get(&place) {
            return Ok(Arc::clone(node));
        }
        let node = Arc::new(Node::decode(TREE, &self.pages.borrow()[&place.block], place)?);
        self.kept.borrow_mut().insert(place, Arc::clone(&node));
        Ok(node)
    }

    fn take(&self, place: Place) -> Result<Node<Key, u64>> {
        let node = self.load(place)?.copied();
        // Whoever asked for it again would not find it.
        self.kept.borrow_mut().remove(&place);
        Ok(node)
    }
}

impl Sink<Key, u64> for Medium {
    fn page_size(&self) -> usize {
        PAGE
    }

    fn write(&mut self, page: &[u8]) -> Result<u64> {
        self.next += 1;
        self.pages.borrow_mut().insert(self.next, page.to_vec());
        Ok(self.next)
    }

    fn keep(&mut self, place: Place, node: Node<Key, u64>) {
        self.kept.borrow_mut().insert(place, Arc::new(node));
    }
}

struct Rig {
    medium: Medium,
    tree: Tree<Key, u64>,
    model: BTreeMap<Key, u64>,
}

impl Rig {
    fn new() -> Self {
        Self { medium: Medium::default(), tree: Tree::default(), model: BTreeMap::new() }
    }

    fn insert(&mut self, key: Key, value: u64) {
        let old = self.tree.insert(key, value, &self.medium).unwrap();
        assert_eq!(old, self.model.insert(key, value), "{key:?}");
    }

    fn remove(&mut self, key: Key) {
        let old = self.tree.remove(&key, &self.medium).unwrap();
        assert_eq!(old, self.model.remove(&key), "{key:?}");
    }

    fn update(&mut self, key: Key, value: u64) {
        let old = self.tree.update(&key, &self.medium, |there| *there = value).unwrap();
        let there = self.model.get_mut(&key).map(|there| std::mem::replace(there, value));
        assert_eq!(old, there, "{key:?}");
    }

    fn save(&mut self) -> Place {
        for left in self.tree.take_left() {
            assert!(self.medium.pages.borrow_mut().remove(&left.block).is_some(), "left once");
            self.medium.kept.borrow_mut().remove(&left);
        }
        let place = self.tree.save(TREE, &mut self.medium).unwrap();
        assert_eq!(self.tree.changed_pages(), 0);
        place
    }

    /// As a tree that is opened from the medium.
    fn reopen(&mut self) {
        let place = self.save();
        self.medium.kept.borrow_mut().clear();
        self.tree = Tree::at(place, to_u64(self.model.len()));
    }

    fn check(&self) {
        let (count, memory) = checked(&self.tree.root, &self.medium, true);
        assert_eq!((count, self.tree.len()), (to_u64(self.model.len()), count));
        assert_eq!(memory, self.tree.changed_pages(), "changed pages are counted");
        let mut all = Vec::new();
        let walked = self.tree.walk(&(0, 0), &self.medium, &mut |key, value| {
            all.push((*key, *value));
            true
        });
        walked.unwrap();
        assert!(all.iter().copied().eq(self.model.iter().map(|(key, value)| (*key, *value))));
    }

    fn ask(&self, key: Key) {
        let (tree, medium) = (&self.tree, &self.medium);
        let pair = |(key, value): (&Key, &u64)| (*key, *value);
        assert_eq!(tree.get(&key, medium).unwrap(), self.model.get(&key).copied());
        assert_eq!(tree.at_or_after(&key, medium).unwrap(), self.model.range(key..).next().map(pair));
        let rank = to_u64(self.model.range(..key).count());
        assert_eq!(tree.rank(&key, medium).unwrap(), rank);
        assert_eq!(tree.select(rank, medium).unwrap(), self.model.iter().nth(to_usize(rank)).map(pair));
    }
}

#[test]
fn a_tree_is_a_map_with_positions_however_often_it_is_forgotten() {
    for number in 0..60 {
        let (mut rig, mut seed) = (Rig::new(), Seed::new(number));
        let keys = [30, 300, 3_000][to_usize(number % 3)];
        for step in 0..1_500 {
            let key = (seed.below(3), seed.below(keys));
            // It grows, shrinks, and grows again.
            let inserts = if (step / 500) % 2 == 0 { 6 } else { 2 };
            match seed.below(10) {
                n if n < inserts => rig.insert(key, step),
                n if n < 7 => rig.remove(key),
                7 => rig.update(key, step),
                8 => rig.ask(key),
                _ if seed.below(8) == 0 => rig.reopen(),
                _ => drop(rig.save()),
            }
            if step % 97 == 0 {
                rig.check();
            }
        }
        rig.check();
        let keys: Vec<Key> = rig.model.keys().copied().collect();
        keys.into_iter().for_each(|key| rig.remove(key));
        rig.check();
        rig.reopen();
        assert_eq!(rig.medium.pages.borrow().len(), 1, "of an empty tree the root is left");
    }
}

#[test]
fn what_is_read_ahead_is_what_lookups_need() {
    let mut rig = Rig::new();
    (0..3_000).for_each(|n| rig.insert((n % 3, n * 7), n));
    rig.reopen();
    // A part of the way is in memory.
    rig.insert((1, 4), 0);
    for number in 0..20 {
        let mut seed = Seed::new(number);
        let mut keys: Vec<Key> = (0..=seed.below(50)).map(|_| (seed.below(4), seed.below(22_000))).collect();
        keys.sort_unstable();
        rig.medium.kept.borrow_mut().clear();
        rig.tree.read_ahead(&keys, &rig.medium).unwrap();
        let ahead = rig.medium.kept.borrow().len();
        rig.medium.kept.borrow_mut().clear();
        keys.iter().for_each(|key| assert!(rig.tree.get(key, &rig.medium).is_ok()));
        let needed = rig.medium.kept.borrow().len();
        assert!(needed > 0, "the keys lead somewhere");
        assert_eq!(ahead, needed, "seed {number}");
    }
}

#[test]
fn ascending_keys_fill_pages() {
    let mut rig = Rig::new();
    (0..10_000).for_each(|n| rig.insert((0, n), n));
    rig.check();
    rig.save();
    let full = 10_000 / 10;
    let pages = rig.medium.pages.borrow().len();
    assert!(pages < full + full / 4 + 10, "{pages} pages for {full} full leaves");
}

#[test]
fn a_medium_without_room_leaves_the_tree_as_it_was() {
    struct Full<'a>(&'a mut Medium, u32);
    impl Sink<Key, u64> for Full<'_> {
        fn page_size(&self) -> usize {
            PAGE
        }

        fn write(&mut self, page: &[u8]) -> Result<u64> {
            self.1 = self.1.checked_sub(1).ok_or(Error::Errno(fstitch_core::Errno::NOSPC))?;
            self.0.write(page)
        }

        fn keep(&mut self, place: Place, node: Node<Key, u64>) {
            self.0.keep(place, node);
        }
    }
    let mut rig = Rig::new();
    (0..500).for_each(|n| rig.insert((0, n * 7 % 501), n));
    for room in 0..8 {
        assert!(rig.tree.save(TREE, &mut Full(&mut rig.medium, room)).is_err());
        rig.check();
    }
    rig.save();
    rig.check();
}

#[test]
fn damaged_pages_are_refused() {
    let mut rig = Rig::new();
    (0..200).for_each(|n| rig.insert((0, n), n));
    let root = rig.save();
    let page = rig.medium.pages.borrow()[&root.block].clone();
    let refused =
        |page: &[u8], place| matches!(Node::<Key, u64>::decode(TREE, page, place), Err(Error::Corrupt(_)));
    assert!(Node::<Key, u64>::decode(TREE, &page, root).is_ok());
    assert!(refused(&page, Place { sum: root.sum ^ 1, ..root }));
    for at in 0..PAGE {
        let mut damaged = page.clone();
        damaged[at] ^= 0x40;
        assert!(refused(&damaged, root), "byte {at}");
        // With a sum that fits it is refused or read, and never a panic.
        let sum = crc32c::crc32c(&damaged);
        let _ = Node::<Key, u64>::decode(TREE, &damaged, Place { sum, ..root });
    }
    assert!(Node::<Key, u64>::decode(TREE + 1, &page, root).is_err(), "of another tree");
}
