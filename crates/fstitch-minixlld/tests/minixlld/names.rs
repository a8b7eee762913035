//! Names: large directories, long names, links, and every rename there is.
//!
//! What it prevents: a name that is lost when leaves are split or joined, a listing that shows a name twice or not at all, a directory
//! inside itself.

use std::collections::BTreeSet;

use crate::support::{CALLER, Medium, check, create, mkdir, names};
use fstitch_core::{Errno, FileSystem, InodeNo, RenameMode, Result, Seed};
use fstitch_minixlld::MinixLld;

fn errno<T>(result: Result<T>) -> Option<Errno> {
    result.err().map(|error| error.errno())
}

fn lookup(fs: &MinixLld, dir: InodeNo, name: &[u8]) -> Option<InodeNo> {
    let ino = fs.lookup(dir, name).ok()?.attr.ino;
    fs.forget(ino, 1);
    Some(ino)
}

#[test]
fn a_large_directory_keeps_every_name_and_gives_its_room_back() {
    for block_size in [512, 4096] {
        let medium = Medium::new(block_size, 256 << 20);
        let fs = medium.mount();
        let dir = mkdir(&fs, fs.root(), b"d");
        let empty = fs.getattr(dir).unwrap().size;
        let name = |n: u32| format!("{n}{}", "x".repeat(usize::try_from(n % 250).unwrap())).into_bytes();
        let inos: Vec<InodeNo> = (0..1500).map(|n| create(&fs, dir, &name(n))).collect();
        check(&fs);
        assert_eq!(names(&fs, dir).len(), 1500);
        let mut seed = Seed::new(1);
        let mut left: BTreeSet<u32> = (0..1500).collect();
        for n in 0..1500 {
            if seed.below(8) > 0 {
                fs.unlink(&CALLER, dir, &name(n)).unwrap();
                left.remove(&n);
            }
        }
        check(&fs);
        fs.unmount().unwrap();
        let fs = medium.mount();
        for (n, ino) in (0..1500).zip(inos) {
            assert_eq!(lookup(&fs, dir, &name(n)), left.contains(&n).then_some(ino));
        }
        left.iter().for_each(|n| fs.unlink(&CALLER, dir, &name(*n)).unwrap());
        assert_eq!(fs.getattr(dir).unwrap().size, empty);
        fs.rmdir(&CALLER, fs.root(), b"d").unwrap();
        check(&fs);
    }
}

#[test]
fn a_listing_goes_on_while_the_directory_changes() {
    let fs = Medium::new(512, 64 << 20).mount();
    let name = |n: u32| format!("name-{n}").into_bytes();
    for n in 0..300 {
        create(&fs, fs.root(), &name(n));
    }
    let (mut seen, mut cookie, mut round) = (Vec::new(), 0, 0);
    loop {
        let before = seen.len();
        let start = cookie;
        fs.readdir(fs.root(), start, &mut |entry| {
            let takes = seen.len() < before + 7;
            if takes {
                seen.push(entry.name.to_vec());
                cookie = entry.next;
            }
            takes
        })
        .unwrap();
        if seen.len() == before {
            break;
        }
        // Names come and go; those that stay are listed once.
        create(&fs, fs.root(), format!("new-{round}").as_bytes());
        fs.unlink(&CALLER, fs.root(), &name(round % 100)).ok();
        round += 1;
    }
    for n in 100..300 {
        assert_eq!(seen.iter().filter(|other| **other == name(n)).count(), 1, "{n}");
    }
    assert_eq!(seen[..2], [b".".to_vec(), b"..".to_vec()]);
    assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), seen.len());
}

#[test]
fn names_have_255_bytes_and_no_more() {
    for block_size in [512, 4096] {
        let medium = Medium::new(block_size, 64 << 20);
        let fs = medium.mount();
        for n in 0..40_u8 {
            create(&fs, fs.root(), &[b'a' + n; 255]);
        }
        assert_eq!(errno(fs.mknod(&CALLER, fs.root(), &[b'x'; 256], 0o100_644, 0)), Some(Errno::NAMETOOLONG));
        assert_eq!(errno(fs.mknod(&CALLER, fs.root(), b"a/b", 0o100_644, 0)), Some(Errno::INVAL));
        check(&fs);
        fs.unmount().unwrap();
        assert_eq!(names(&medium.mount(), InodeNo(2)).len(), 40);
    }
}

#[test]
fn hard_links_are_names_of_one_inode() {
    let fs = Medium::new(4096, 64 << 20).mount();
    let dir = mkdir(&fs, fs.root(), b"d");
    let ino = create(&fs, fs.root(), b"a");
    for n in 0..100 {
        let made = fs.link(&CALLER, ino, dir, format!("l{n}").as_bytes()).unwrap();
        assert_eq!((made.attr.ino, made.attr.nlink), (ino, n + 2));
        fs.forget(ino, 1);
    }
    fs.unlink(&CALLER, fs.root(), b"a").unwrap();
    assert_eq!(fs.getattr(ino).unwrap().nlink, 100);
    assert_eq!(errno(fs.link(&CALLER, dir, fs.root(), b"x")), Some(Errno::PERM));
    assert_eq!(errno(fs.link(&CALLER, ino, dir, b"l5")), Some(Errno::EXIST));
    // A name over another one of the same inode stays, and so does the other one.
    fs.rename(&CALLER, (dir, b"l1"), (dir, b"l2"), RenameMode::Replace).unwrap();
    assert_eq!(fs.getattr(ino).unwrap().nlink, 100);
    check(&fs);
    (0..100).for_each(|n| fs.unlink(&CALLER, dir, format!("l{n}").as_bytes()).unwrap());
    assert_eq!(errno(fs.getattr(ino)), Some(Errno::STALE));
    check(&fs);
}

/// `f` and `g` are files, `d` is an empty directory, `e` has one in it, `n` is nothing.
fn rename_answer(from: &str, to: &str, mode: RenameMode) -> Option<Errno> {
    let fs = Medium::new(1024, 16 << 20).mount();
    let root = fs.root();
    create(&fs, root, b"f");
    create(&fs, root, b"g");
    let d = mkdir(&fs, root, b"d");
    let e = mkdir(&fs, root, b"e");
    mkdir(&fs, e, b"inner");
    mkdir(&fs, root, b"d2");
    let side = |path: &str| match path.split_once('/') {
        Some(("e", name)) => (e, name.as_bytes().to_vec()),
        Some((_, name)) => (d, name.as_bytes().to_vec()),
        None => (root, path.as_bytes().to_vec()),
    };
    let ((from_dir, from), (to_dir, to)) = (side(from), side(to));
    let answer = errno(fs.rename(&CALLER, (from_dir, &from), (to_dir, &to), mode));
    check(&fs);
    answer
}

#[test]
fn every_rename_answers_as_linux_does() {
    use RenameMode::{Exchange, NoReplace, Replace};
    let table = [
        ("f", "n", Replace, None),
        ("f", "g", Replace, None),
        ("f", "f", Replace, None),
        ("f", "d", Replace, Some(Errno::ISDIR)),
        ("d", "f", Replace, Some(Errno::NOTDIR)),
        ("d", "d2", Replace, None),
        ("d", "e", Replace, Some(Errno::NOTEMPTY)),
        ("e", "d", Replace, None),
        ("e", "d/n", Replace, None),
        ("d", "d/n", Replace, Some(Errno::INVAL)),
        ("e", "e/inner", Replace, Some(Errno::INVAL)),
        ("e/inner", "e", Replace, Some(Errno::NOTEMPTY)),
        ("e/inner", "n", Replace, None),
        ("e/inner", "d", Replace, None),
        ("n", "f", Replace, Some(Errno::NOENT)),
        (".", "n", Replace, Some(Errno::BUSY)),
        ("f", "..", Replace, Some(Errno::BUSY)),
        ("f", "n", NoReplace, None),
        ("f", "g", NoReplace, Some(Errno::EXIST)),
        ("f", "n", Exchange, Some(Errno::NOENT)),
        ("f", "g", Exchange, None),
        ("f", "d", Exchange, None),
        ("f", "e/inner", Exchange, None),
        ("d", "e/inner", Exchange, None),
        ("e/inner", "e", Exchange, Some(Errno::INVAL)),
        ("e", "e/inner", Exchange, Some(Errno::INVAL)),
    ];
    for (from, to, mode, expected) in table {
        assert_eq!(rename_answer(from, to, mode), expected, "{from} to {to}, {mode:?}");
    }
}

#[test]
fn a_directory_that_was_removed_takes_no_names() {
    let fs = Medium::new(1024, 16 << 20).mount();
    let dir = fs.mkdir(&CALLER, fs.root(), b"d", 0o755).unwrap().attr.ino;
    fs.rmdir(&CALLER, fs.root(), b"d").unwrap();
    assert_eq!(errno(fs.mknod(&CALLER, dir, b"x", 0o100_644, 0)), Some(Errno::NOENT));
    assert_eq!(fs.getattr(dir).unwrap().nlink, 0);
    check(&fs);
    fs.forget(dir, 1);
    assert_eq!(errno(fs.getattr(dir)), Some(Errno::STALE));
    check(&fs);
}
