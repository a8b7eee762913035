//! Snapshots never change, while everything above them does, and give back what only they had.

use std::collections::BTreeMap;
use std::sync::Arc;

use fstitch_core::{Errno, FileKind, FileSystem, InodeNo, MemDevice, RenameMode, Seed, SetAttr};
use fstitch_fs::waffle::{Options, Waffle};

use crate::rig::{CALLER, contents, file, is_clean, made, made_with, mount, mount_with, names, text};

/// Everything below a directory: paths, modes, links, attributes, contents.
pub type Tree = BTreeMap<Vec<u8>, (u16, u32, Vec<u8>, Vec<Vec<u8>>)>;

fn tree(fs: &Waffle, dir: InodeNo, path: &[u8], into: &mut Tree) {
    for name in names(fs, dir) {
        let attr = fs.lookup(dir, &name).unwrap().attr;
        let path = [path, b"/", &name].concat();
        let bytes = match attr.kind {
            FileKind::Regular => contents(fs, attr.ino).unwrap(),
            FileKind::Symlink => fs.readlink(attr.ino).unwrap(),
            _ => Vec::new(),
        };
        into.insert(path.clone(), (attr.mode(), attr.nlink, bytes, fs.listxattr(attr.ino).unwrap()));
        if attr.kind == FileKind::Directory {
            tree(fs, attr.ino, &path, into);
        }
        fs.forget(attr.ino, 1);
    }
}

pub fn below(fs: &Waffle, dir: InodeNo) -> Tree {
    let mut all = Tree::new();
    tree(fs, dir, b"", &mut all);
    all
}

pub fn of_snapshot(fs: &Waffle, name: &str) -> Tree {
    let list = fs.lookup(fs.root(), b".snapshots").unwrap().attr.ino;
    let root = fs.lookup(list, name.as_bytes()).unwrap().attr.ino;
    let all = below(fs, root);
    fs.forget(root, 1);
    fs.forget(list, 1);
    all
}

/// Some changes at random.
pub fn change(fs: &Waffle, seed: &mut Seed, count: u64) {
    let root = fs.root();
    for _ in 0..count {
        let name = format!("n{}", seed.below(30));
        let other = format!("n{}", seed.below(30));
        let _ = match seed.below(9) {
            0 | 1 => {
                let len = usize::try_from(seed.below(40_000)).unwrap();
                let byte = u8::try_from(seed.below(256)).unwrap();
                let bytes = if byte % 2 == 0 { vec![byte; len] } else { text(2 * len, byte.into()) };
                file(fs, root, &name, &bytes).map(drop)
            }
            2 => fs.unlink(&CALLER, root, name.as_bytes()),
            3 => fs.rename(&CALLER, (root, name.as_bytes()), (root, other.as_bytes()), RenameMode::Replace),
            4 => fs
                .symlink(&CALLER, root, name.as_bytes(), &[b't'; 200])
                .map(|made| fs.forget(made.attr.ino, 1)),
            5 => fs.mkdir(&CALLER, root, name.as_bytes(), 0o755).map(|made| {
                let _ = file(fs, made.attr.ino, "inside", b"inside");
                fs.forget(made.attr.ino, 1);
            }),
            6 => fs.lookup(root, name.as_bytes()).map(|found| {
                if let Ok(other) = fs.lookup(root, other.as_bytes()) {
                    let to = (other.attr.ino, 4096 * seed.below(4));
                    let _ = fs.share(&CALLER, (found.attr.ino, 0), to, 1 << 30);
                    fs.forget(other.attr.ino, 1);
                }
                fs.forget(found.attr.ino, 1);
            }),
            7 => fs.lookup(root, name.as_bytes()).map(|found| {
                let ino = found.attr.ino;
                let at = seed.below(60_000);
                let _ = fs.write(&CALLER, ino, at, &vec![9; usize::try_from(seed.below(9000)).unwrap()]);
                let xattr = fstitch_core::XattrSetMode::Set;
                let _ = fs.setxattr(&CALLER, ino, b"user.x", &[1; 700], xattr);
                fs.forget(ino, 1);
            }),
            _ => fs.lookup(root, name.as_bytes()).map(|found| {
                let size = SetAttr { size: Some(seed.below(50_000)), ..SetAttr::default() };
                let _ = fs.setattr(&CALLER, found.attr.ino, &size);
                fs.forget(found.attr.ino, 1);
            }),
        };
    }
}

#[test]
fn snapshots_stay_as_they_were_made() {
    for number in 0..16 {
        let mut seed = Seed::new(number);
        let device = made_with(4096, number % 2 == 1);
        let mut fs = mount(&device);
        let empty = fs.statfs().unwrap().blocks_free;
        let mut kept: BTreeMap<String, Tree> = BTreeMap::new();
        for round in 0..24 {
            let count = seed.below(60);
            change(&fs, &mut seed, count);
            match seed.below(4) {
                0 if !kept.is_empty() => {
                    let at = usize::try_from(seed.below(kept.len() as u64)).unwrap();
                    let name = kept.keys().nth(at).unwrap().clone();
                    fs.remove_snapshot(name.as_bytes()).unwrap();
                    kept.remove(&name);
                }
                1 => {
                    fs.unmount().unwrap();
                    is_clean(&device);
                    fs = mount(&device);
                }
                _ => {
                    let name = format!("s{round}");
                    fs.make_snapshot(name.as_bytes()).unwrap();
                    kept.insert(name, below(&fs, fs.root()));
                }
            }
            let list = fs.lookup(fs.root(), b".snapshots").unwrap().attr.ino;
            let mut listed: Vec<String> =
                names(&fs, list).into_iter().map(|name| String::from_utf8(name).unwrap()).collect();
            listed.sort();
            assert_eq!(listed, kept.keys().cloned().collect::<Vec<_>>());
            for (name, was) in &kept {
                assert!(of_snapshot(&fs, name) == *was, "run {number}, round {round}: {name}");
            }
        }
        assert!(fs.check().unwrap().is_clean());
        // Also after a cut, and when it is mounted by itself.
        let left = Arc::new(MemDevice::from_image(4096, device.image()));
        is_clean(&left);
        if let Some((name, was)) = kept.iter().next() {
            let options = Options { tree: name.clone().into_bytes(), ..Options::default() };
            let alone = mount_with(&left, options).unwrap();
            assert!(below(&alone, alone.root()) == *was);
            let refused = alone.mkdir(&CALLER, alone.root(), b"new", 0o755);
            assert_eq!(refused.unwrap_err().errno(), Errno::ROFS);
        }
        for name in kept.keys() {
            fs.remove_snapshot(name.as_bytes()).unwrap();
        }
        for name in names(&fs, fs.root()) {
            let ino = fs.lookup(fs.root(), &name).unwrap().attr.ino;
            for inner in
                if fs.getattr(ino).unwrap().kind == FileKind::Directory { names(&fs, ino) } else { vec![] }
            {
                let _ = fs.unlink(&CALLER, ino, &inner);
            }
            fs.forget(ino, 1);
            let gone = fs.unlink(&CALLER, fs.root(), &name);
            gone.or_else(|_| fs.rmdir(&CALLER, fs.root(), &name)).unwrap();
        }
        fs.sync().unwrap();
        let free = fs.statfs().unwrap().blocks_free;
        assert!(free + 16 >= empty, "run {number}: {free} of {empty}");
        fs.unmount().unwrap();
        is_clean(&device);
    }
}

#[test]
fn what_is_asked_of_snapshots_is_answered() {
    let device = made(1024);
    let fs = mount(&device);
    file(&fs, fs.root(), "a", b"one").unwrap();
    let errno = |done: fstitch_core::Result<()>| done.map_err(|error| error.errno());
    assert_eq!(errno(fs.make_snapshot(b"s")), Ok(()));
    assert_eq!(errno(fs.make_snapshot(b"s")), Err(Errno::EXIST));
    assert_eq!(errno(fs.make_snapshot(b"x/y")), Err(Errno::INVAL));
    assert_eq!(errno(fs.remove_snapshot(b"none")), Err(Errno::NOENT));
    assert_eq!(errno(fs.remove_snapshot(b"")), Err(Errno::NOENT));
    let list = fs.lookup(fs.root(), b".snapshots").unwrap().attr;
    assert_eq!((list.kind, list.perm), (FileKind::Directory, 0o555));
    let root = fs.lookup(list.ino, b"s").unwrap().attr.ino;
    let a = fs.lookup(root, b"a").unwrap().attr.ino;
    assert_ne!(a, fs.lookup(fs.root(), b"a").unwrap().attr.ino);
    assert_eq!(fs.lookup(root, b"..").unwrap().attr.ino, list.ino);
    assert_eq!(fs.lookup(list.ino, b"..").unwrap().attr.ino, fs.root());
    for refused in [
        fs.unlink(&CALLER, root, b"a"),
        fs.write(&CALLER, a, 0, b"x").map(drop),
        fs.mkdir(&CALLER, list.ino, b"d", 0o755).map(drop),
        fs.setattr(&CALLER, a, &SetAttr { perm: Some(0), ..SetAttr::default() }).map(drop),
        fs.link(&CALLER, a, fs.root(), b"b").map(drop),
    ] {
        assert_eq!(errno(refused), Err(Errno::ROFS));
    }
    assert_eq!(errno(fs.mkdir(&CALLER, fs.root(), b".snapshots", 0o755).map(drop)), Err(Errno::EXIST));
    assert_eq!(errno(fs.rmdir(&CALLER, fs.root(), b".snapshots")), Err(Errno::BUSY));
    assert!(!names(&fs, fs.root()).contains(&b".snapshots".to_vec()));
    fs.remove_snapshot(b"s").unwrap();
    assert_eq!(errno(fs.getattr(a).map(drop)), Err(Errno::STALE));
    assert_eq!(fs.snapshots(), []);
    fs.unmount().unwrap();
    is_clean(&device);
}

/// Where snapshots hold all of it, a removal makes room again.
#[test]
fn a_volume_that_snapshots_fill_can_be_emptied() {
    let device = made(512);
    let fs = mount(&device);
    let mut made = Vec::new();
    for round in 0..200 {
        let ino = file(&fs, fs.root(), &format!("f{round}"), &[1; 30_000]);
        let name = format!("s{round}");
        if ino.is_err() || fs.make_snapshot(name.as_bytes()).is_err() {
            break;
        }
        made.push(name);
        let _ = fs.unlink(&CALLER, fs.root(), format!("f{round}").as_bytes());
    }
    assert!(made.len() > 10 && made.len() < 200, "{}", made.len());
    for name in made {
        fs.remove_snapshot(name.as_bytes()).unwrap();
    }
    for name in names(&fs, fs.root()) {
        fs.unlink(&CALLER, fs.root(), &name).unwrap();
    }
    fs.sync().unwrap();
    assert!(fs.statfs().unwrap().blocks_free > 440);
    fs.unmount().unwrap();
    is_clean(&device);
}

/// What a snapshot costs is what its commit writes, whatever there is in the volume: in blocks, which are the same on every machine.
#[test]
fn a_snapshot_costs_the_same_whatever_there_is() {
    let costs = [10, 4_000].map(|files| {
        let device = made(32_768);
        let fs = mount(&device);
        for number in 0..files {
            file(&fs, fs.root(), &format!("file-{number}"), &[1; 9000]).unwrap();
        }
        // The first one makes room in the table of trees.
        fs.make_snapshot(b"first").unwrap();
        let before = fs.cache().stats().blocks_written;
        fs.make_snapshot(b"second").unwrap();
        fs.cache().stats().blocks_written - before
    });
    assert_eq!(costs[0], costs[1], "blocks written for a snapshot of 10 files and of 4,000");
    assert!(costs[0] <= 8, "{} blocks", costs[0]);
}
