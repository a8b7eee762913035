//! Clones: trees that begin as a snapshot and change by themselves.

use std::collections::BTreeMap;
use std::sync::Arc;

use fstitch_core::{Errno, FileSystem, MemDevice, Result, Seed};
use fstitch_fs::uhfs::AtimePolicy;
use fstitch_fs::waffle::{Options, Waffle};

use crate::rig::{CALLER, contents, file, is_clean, made, mount, mount_with, names};
use crate::snapshots::{Tree, below, change, of_snapshot};

fn mount_tree(device: &Arc<MemDevice>, name: &str) -> Result<Arc<Waffle>> {
    let tree = name.as_bytes().to_vec();
    mount_with(device, Options { tree, atime: AtimePolicy::NoAtime, ..Options::default() })
}

fn nth<T>(map: &BTreeMap<String, T>, seed: &mut Seed) -> Option<String> {
    let at = seed.below(map.len().max(1) as u64);
    map.keys().nth(usize::try_from(at).unwrap()).cloned()
}

/// Makes or removes a snapshot or a clone.
fn change_trees(
    fs: &Waffle,
    seed: &mut Seed,
    round: u64,
    (snapshots, heads): (&mut BTreeMap<String, Tree>, &mut BTreeMap<String, Tree>),
) {
    match seed.below(6) {
        0 | 1 => {
            let name = format!("s{round}");
            fs.make_snapshot(name.as_bytes()).unwrap();
            snapshots.insert(name, below(fs, fs.root()));
        }
        2 | 3 => {
            if let Some(of) = nth(snapshots, seed) {
                let name = format!("c{round}");
                fs.make_clone(of.as_bytes(), name.as_bytes()).unwrap();
                heads.insert(name, snapshots[&of].clone());
            }
        }
        4 => {
            if let Some(name) = nth(snapshots, seed) {
                match fs.remove_snapshot(name.as_bytes()) {
                    Ok(()) => drop(snapshots.remove(&name)),
                    Err(error) => assert_eq!(error.errno(), Errno::BUSY, "a clone comes from it"),
                }
            }
        }
        _ => {
            let name = nth(heads, seed).unwrap();
            match fs.remove_clone(name.as_bytes()).map_err(|error| error.errno()) {
                Ok(()) => drop(heads.remove(&name)),
                Err(error) if name.is_empty() => assert_eq!(error, Errno::NOENT),
                Err(error) => assert_eq!(error, Errno::BUSY, "it is mounted, or has snapshots"),
            }
        }
    }
}

/// Whatever is changed, made and removed in one tree: the others are as they were.
#[test]
fn trees_change_by_themselves() {
    for number in 0..10 {
        let mut seed = Seed::new(number);
        let device = made(8192);
        let mut snapshots: BTreeMap<String, Tree> = BTreeMap::new();
        // The first tree has no name.
        let mut heads: BTreeMap<String, Tree> = BTreeMap::from([(String::new(), Tree::new())]);
        for round in 0..30 {
            let mounted = nth(&heads, &mut seed).unwrap();
            let fs = mount_tree(&device, &mounted).unwrap();
            let count = seed.below(40);
            change(&fs, &mut seed, count);
            for (name, was) in &snapshots {
                assert!(of_snapshot(&fs, name) == *was, "run {number}, round {round}: snapshot {name}");
            }
            change_trees(&fs, &mut seed, round, (&mut snapshots, &mut heads));
            heads.insert(mounted, below(&fs, fs.root()));
            if seed.below(3) == 0 {
                // The cut may take what was not synced, and nothing of other trees.
                fs.sync().unwrap();
                is_clean(&Arc::new(MemDevice::from_image(4096, device.image())));
            }
            fs.unmount().unwrap();
            is_clean(&device);
            let other = nth(&heads, &mut seed).unwrap();
            let fs = mount_tree(&device, &other).unwrap();
            assert!(below(&fs, fs.root()) == heads[&other], "run {number}, round {round}: tree {other}");
            fs.unmount().unwrap();
        }
        // Everything goes, clones and their snapshots in any order that is allowed; then the room is there again.
        let fs = mount(&device);
        while snapshots.len() + heads.len() > 1 {
            let before = snapshots.len() + heads.len();
            snapshots.retain(|name, _| fs.remove_snapshot(name.as_bytes()).is_err());
            heads.retain(|name, _| name.is_empty() || fs.remove_clone(name.as_bytes()).is_err());
            assert!(snapshots.len() + heads.len() < before, "run {number}: something goes each time");
        }
        assert_eq!(fs.snapshots(), []);
        for name in names(&fs, fs.root()) {
            let dir = fs.lookup(fs.root(), &name).unwrap().attr;
            if dir.kind == fstitch_core::FileKind::Directory {
                for inner in names(&fs, dir.ino) {
                    fs.unlink(&CALLER, dir.ino, &inner).unwrap();
                }
            }
            fs.forget(dir.ino, 1);
            let gone = fs.unlink(&CALLER, fs.root(), &name);
            gone.or_else(|_| fs.rmdir(&CALLER, fs.root(), &name)).unwrap();
        }
        fs.sync().unwrap();
        let free = fs.statfs().unwrap().blocks_free;
        assert!(free > 8192 - 160, "run {number}: {free} blocks are free");
        fs.unmount().unwrap();
        is_clean(&device);
    }
}

#[test]
fn what_is_asked_of_clones_is_answered() {
    let device = made(1024);
    let fs = mount(&device);
    file(&fs, fs.root(), "a", b"one").unwrap();
    fs.make_snapshot(b"s").unwrap();
    let errno = |done: Result<()>| done.map_err(|error| error.errno());
    assert_eq!(errno(fs.make_clone(b"none", b"c")), Err(Errno::NOENT));
    assert_eq!(errno(fs.make_clone(b"", b"c")), Err(Errno::NOENT), "a tree that changes has no clones");
    assert_eq!(errno(fs.make_clone(b"s", b"s")), Err(Errno::EXIST));
    assert_eq!(errno(fs.make_clone(b"s", b"..")), Err(Errno::INVAL));
    assert_eq!(errno(fs.make_clone(b"s", b"c")), Ok(()));
    assert_eq!(errno(fs.remove_snapshot(b"s")), Err(Errno::BUSY));
    assert_eq!(errno(fs.remove_snapshot(b"c")), Err(Errno::NOENT), "it is no snapshot");
    assert_eq!(errno(fs.remove_clone(b"s")), Err(Errno::NOENT), "it is no clone");
    let listed: Vec<_> = fs.snapshots().into_iter().map(|tree| (tree.name, tree.of, tree.is_clone)).collect();
    assert_eq!(listed, [(b"s".to_vec(), vec![], false), (b"c".to_vec(), b"s".to_vec(), true)]);
    let list = fs.lookup(fs.root(), b".snapshots").unwrap().attr.ino;
    assert_eq!(names(&fs, list), [b"s"], "clones are mounted");
    fs.forget(list, 1);
    fs.unmount().unwrap();
    assert_eq!(mount_tree(&device, "none").unwrap_err().errno(), Errno::NOENT);

    let clone = mount_tree(&device, "c").unwrap();
    let a = clone.lookup(clone.root(), b"a").unwrap().attr.ino;
    clone.write(&CALLER, a, 0, b"two").unwrap();
    clone.make_snapshot(b"of-c").unwrap();
    assert_eq!(clone.snapshots().last().unwrap().of, b"c");
    assert_eq!(errno(clone.remove_clone(b"c")), Err(Errno::BUSY), "it is mounted");
    clone.unmount().unwrap();
    is_clean(&device);

    let fs = mount(&device);
    let a = fs.lookup(fs.root(), b"a").unwrap().attr.ino;
    assert_eq!(contents(&fs, a).unwrap(), b"one");
    assert_eq!(errno(fs.remove_clone(b"c")), Err(Errno::BUSY), "it has a snapshot");
    fs.remove_snapshot(b"of-c").unwrap();
    fs.remove_clone(b"c").unwrap();
    fs.remove_snapshot(b"s").unwrap();
    assert_eq!(fs.snapshots(), []);
    fs.unmount().unwrap();
    is_clean(&device);
}
