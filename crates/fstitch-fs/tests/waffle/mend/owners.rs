//! A block of somebody else's that a damaged reference leads to: it stays its owner's, in every root that mending makes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use fstitch_core::{
    BlockDevice, BlockNo, BlockRead, BlockWrite, FileKind, FileSystem, Geometry, MemDevice, RepairMode,
    RepairOptions, Result, Timestamp,
};
use fstitch_fs::waffle::layout::ROOT_PLACES;
use fstitch_fs::waffle::layout::inode::{INODE_BYTES, Inode, Slot};
use fstitch_fs::waffle::layout::pointer::Ref;
use fstitch_fs::waffle::layout::record::{RECORD_BYTES, Record};
use fstitch_fs::waffle::{Options, Root, check};

use super::mend;
use crate::damage::{WRONG, believed, block};
use crate::rig::{CALLER, contents, file, made, mount, mount_with, names, noise};

/// A medium of which every image is kept that a root was written to.
struct Recording {
    device: Arc<MemDevice>,
    images: Mutex<Vec<Vec<u8>>>,
}

impl BlockDevice for Recording {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.device.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        self.device.write(writes)?;
        if writes.iter().any(|write| ROOT_PLACES.contains(&write.block.get())) {
            self.images.lock().unwrap().push(self.device.image());
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.device.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.device.discard(start, count)
    }
}

/// Trees, by their records: the first one, and a clone of a snapshot of it.
const FIRST: usize = 0;
const CLONE: usize = 2;

fn of_tree(tree: usize) -> Options {
    let tree = if tree == CLONE { b"other".to_vec() } else { Vec::new() };
    Options { tree, ..Options::default() }
}

/// Two trees that change, each with a directory of many names and a file of its own.
fn populated() -> Vec<u8> {
    let device = made(1024);
    let fs = mount(&device);
    file(&fs, fs.root(), "old", &noise(9000, 1)).unwrap();
    fs.make_snapshot(b"one").unwrap();
    fs.make_clone(b"one", b"other").unwrap();
    fs.unmount().unwrap();
    for tree in [FIRST, CLONE] {
        let fs = mount_with(&device, of_tree(tree)).unwrap();
        let dir = fs.mkdir(&CALLER, fs.root(), b"dir", 0o755).unwrap().attr.ino;
        for number in 0..120 {
            let bytes = format!("{tree} {number}").into_bytes();
            file(&fs, dir, &format!("a-name-that-takes-some-room-{number}"), &bytes).unwrap();
        }
        file(&fs, fs.root(), "large", &noise(100_000, 7 + tree as u64)).unwrap();
        fs.unmount().unwrap();
    }
    device.image()
}

/// All of a tree: paths, and what is in files.
fn all_of(device: &Arc<MemDevice>, tree: usize) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let fs = mount_with(device, Options { read_only: true, ..of_tree(tree) }).unwrap();
    let mut all = BTreeMap::new();
    let mut open = vec![(fs.root(), Vec::new())];
    while let Some((dir, path)) = open.pop() {
        for name in names(&fs, dir) {
            let attr = fs.lookup(dir, &name).unwrap().attr;
            let path = [&path[..], b"/", &name].concat();
            match attr.kind {
                FileKind::Directory => open.push((attr.ino, path)),
                _ => drop(all.insert(path, contents(&fs, attr.ino).unwrap())),
            }
        }
    }
    all
}

/// Where a tree's blocks are: references to them, by the block and the slot or byte that these are at.
struct Places {
    /// The node above the inodes, and where its slots are.
    inodes: u64,
    /// The node above the names of the directory.
    names: u64,
    /// The node above the contents of the large file.
    contents: u64,
}

fn places(image: &[u8], tree: usize) -> Places {
    let bytes = |number: u64| &image[usize::try_from(number).unwrap() * 4096..][..4096];
    let root = Root::find(image).unwrap().unwrap();
    let record = &bytes(root.trees.root.block)[tree * RECORD_BYTES..][..RECORD_BYTES];
    let record = Record::decode(record, u32::try_from(tree).unwrap()).unwrap().unwrap();
    assert_eq!(record.inodes.height, 1);
    let inodes = record.inodes.root.block;
    let all = (0..128).flat_map(|leaf| {
        let leaf_block = Ref::slot(bytes(inodes), leaf).block;
        let slots = if leaf_block == 0 { 0 } else { 16 };
        (0..slots).filter_map(move |slot| {
            let ino = (leaf * 16 + slot) as u64;
            let from = usize::try_from(leaf_block).unwrap() * 4096 + slot * INODE_BYTES;
            match Slot::decode(&image[from..from + INODE_BYTES], ino) {
                Ok(Slot::Used(inode)) => Some(inode),
                _ => None,
            }
        })
    });
    let all: Vec<Inode> = all.collect();
    let node = |is_it: &dyn Fn(&Inode) -> bool| {
        let inode = all.iter().find(|inode| is_it(inode)).unwrap();
        assert_eq!(inode.data.height, 1, "inode {}", inode.ino);
        inode.data.root.block
    };
    Places {
        inodes,
        names: node(&|inode| inode.is_dir() && inode.size == 120),
        contents: node(&|inode| inode.size == 100_000),
    }
}

/// What the two trees have, and each of the damaged references with the block of the other tree's that it leads to.
fn planted(image: &[u8], (damaged, whole): (usize, usize)) -> Vec<(&'static str, Vec<u8>, u64)> {
    let slot =
        |node: u64, slot| Ref::slot(&image[usize::try_from(node).unwrap() * 4096..][..4096], slot).block;
    let (from, to) = (places(image, damaged), places(image, whole));
    let inodes = |n| (from.inodes, n);
    let names = |n| (from.names, n);
    let all = [
        ("inodes at inodes", inodes(2), slot(to.inodes, 3)),
        ("inodes at a node of inodes", inodes(2), to.inodes),
        ("inodes at a node of names", inodes(3), to.names),
        ("inodes at names", inodes(3), slot(to.names, 1)),
        ("inodes at contents", inodes(3), slot(to.contents, 5)),
        ("names at inodes", names(1), slot(to.inodes, 3)),
        ("names at a node of contents", names(1), to.contents),
        ("names at names", names(1), slot(to.names, 1)),
        ("names at contents", names(1), slot(to.contents, 5)),
    ];
    let generation = Root::find(image).unwrap().unwrap().generation;
    let plant = |(what, (node, at), target): (&'static str, (u64, usize), u64)| {
        let mut planted = image.to_vec();
        let wrong = Ref { block: target, birth: generation, sum: WRONG, ..Ref::NONE };
        wrong.write(block(&mut planted, node).unwrap(), at * 32);
        believed(&mut planted);
        (what, planted, target)
    };
    all.into_iter().map(plant).collect()
}

fn is_used(image: &[u8], number: u64) -> bool {
    let root = Root::find(image).unwrap().unwrap();
    let map = &image[usize::try_from(root.map.block).unwrap() * 4096..][..4096];
    map[usize::try_from(number / 8).unwrap()] >> (number % 8) & 1 == 1
}

#[test]
fn a_block_that_is_somebodys_is_given_up_by_nobody_else() {
    let image = populated();
    let device = Arc::new(MemDevice::from_image(4096, image.clone()));
    for (damaged, whole) in [(FIRST, CLONE), (CLONE, FIRST)] {
        let before = all_of(&device, whole);
        assert_eq!(before.len(), 122);
        for (what, planted, target) in planted(&image, (damaged, whole)) {
            let what = format!("{what}, of tree {damaged}");
            let device = Arc::new(MemDevice::from_image(4096, planted));
            let recording = Arc::new(Recording { device: Arc::clone(&device), images: Mutex::default() });
            let options = RepairOptions { mode: RepairMode::Yes, now: Timestamp { secs: 5000, nanos: 0 } };
            let report = check::repair(Arc::clone(&recording) as _, options).unwrap();
            assert!(report.left.is_clean() && report.mended > 0, "{what}: {:#?}", report.left.findings);
            assert!(all_of(&device, whole) == before, "{what}");
            let images = recording.images.lock().unwrap();
            assert!(!images.is_empty(), "{what}");
            for (at, image) in images.iter().enumerate() {
                assert!(is_used(image, target), "{what}: block {target} is free in root {at}");
                let (left, _, device) = mend(image.clone());
                assert!(left.is_empty(), "{what}, cut after root {at}: {left:?}");
                assert!(all_of(&device, whole) == before, "{what}, cut after root {at}");
            }
        }
    }
}
