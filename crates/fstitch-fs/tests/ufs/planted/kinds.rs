//! Inodes whose mode, target or names are damaged: what else there is of them brings them back.

use fstitch_core::{Caller, FileSystem, FindingClass, InodeNo, RepairMode, XattrSetMode};

use crate::damage::{Image, ino};
use crate::host::{Tree, fill, made};
use crate::repair::{SHAPES, mended, repaired};
use crate::support::Scratch;
use crate::written::writable;
use crate::{device, have_makefs, mkfs, opened};
use FindingClass::Corrupt;

/// The kind in an inode's mode becomes another one; permissions stay.
fn put_kind(image: &mut Image, ino: u32, kind: u16) {
    let at = image.inode(ino);
    let perm = image.half(at) & 0o7777;
    image.put16(at, kind | perm);
}

/// An inode without contents becomes one of another kind, and so does its name.
fn make(image: &mut Image, name: &str, (kind, code): (u16, u8), device: u32) {
    let (no, entry) = (ino(&image.bytes, name), image.entry(2, name));
    put_kind(image, no, kind);
    image.bytes[entry + 6] = code;
    let slot = image.slot(no, 0);
    image.put32(slot, device);
}

/// What else there is of an inode says what its mode no longer does.
#[test]
fn a_damaged_mode_takes_nothing_away() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-modes");
    let from = scratch.path("from");
    fill(&from);
    const PATHS: [(&str, &[u16]); 12] = [
        ("long", &[0, 0o120_000, 0o030_000, 0o010_000, 0o040_000]),
        ("many/nnnn-3", &[0, 0o120_000, 0o170_000]),
        ("size-4096-1", &[0, 0o120_000, 0o060_000]),
        ("holes", &[0, 0o120_000]),
        ("many", &[0, 0o100_000, 0o120_000, 0o060_000, 0o050_000]),
        ("deep/er", &[0, 0o100_000, 0o120_000, 0o050_000]),
        ("", &[0, 0o100_000, 0o120_000]),
        ("link-1", &[0, 0o100_000, 0o160_000]),
        ("link-58", &[0, 0o100_000, 0o160_000]),
        ("link-500", &[0, 0o160_000]),
        ("empty", &[0, 0o030_000, 0o120_000, 0o040_000]),
        ("many/n-0", &[0]),
    ];
    const DEVICES: [(u16, u8, u32, &[u16]); 4] = [
        (0o010_000, 1, 0, &[0, 0o030_000, 0o040_000, 0o120_000]),
        (0o020_000, 2, 0x0305, &[0, 0o030_000, 0o010_000, 0o120_000]),
        (0o060_000, 6, 0x0305, &[0, 0o070_000, 0o040_000, 0o140_000]),
        (0o140_000, 12, 0, &[0, 0o150_000, 0o040_000]),
    ];
    for shape in SHAPES {
        let whole = Image::new(made(&scratch, &from, shape));
        for (path, kinds) in PATHS {
            let no = if path.is_empty() { 2 } else { ino(&whole.bytes, path) };
            expect_kinds(&whole.bytes, no, kinds, &format!("{shape:?}: {path}"));
        }
        for (kind, code, device, kinds) in DEVICES {
            let mut image = Image::new(whole.bytes.clone());
            make(&mut image, "empty", (kind, code), device);
            let no = ino(&image.bytes, "empty");
            expect_kinds(&image.bytes, no, kinds, &format!("{shape:?}: {kind:#o}"));
        }
    }
}

/// Each of these kinds in the mode of inode `no` is found, left alone by preening, and mended so that the tree is as it was. So is a mode
/// of zeros, but for permissions.
fn expect_kinds(whole: &[u8], no: u32, kinds: &[u16], what: &str) {
    let expected = Tree::of(&opened(whole).unwrap()).unwrap();
    for &kind in kinds {
        let mut image = Image::new(whole.to_vec());
        put_kind(&mut image, no, kind);
        let what = format!("{what}: {kind:#o}");
        let (after, report) = mended(&image.bytes, &what);
        let found = &report.found.findings;
        assert!(
            found.iter().any(|found| found.code == "inode" && found.class == Corrupt),
            "{what}: {found:#?}"
        );
        let tree = Tree::of(&opened(&after).unwrap()).unwrap();
        assert_eq!(tree.differences(&expected), [""; 0], "{what}");
        assert!(repaired(&image.bytes, RepairMode::Preen).0 == image.bytes, "{what}");
    }
    let mut image = Image::new(whole.to_vec());
    let at = image.inode(no);
    let kind = image.half(at) & 0o170_000;
    image.put16(at, 0);
    let (after, _) = mended(&image.bytes, what);
    let perm = if kind == 0o040_000 { 0o700 } else { 0o600 };
    assert_eq!(Image::new(after).half(at), kind | perm, "{what}");
}

/// Whoever has a name keeps what others also claim; what has none and no blocks of its own was left behind.
#[test]
fn an_inode_without_a_kind_and_a_name_comes_back_with_its_own_blocks_only() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-kindless");
    let from = scratch.path("from");
    fill(&from);
    let expected = Tree::of_host(&from);
    for shape in SHAPES {
        let whole = Image::new(made(&scratch, &from, shape));
        let what = format!("{shape:?}");
        let victim = ino(&whole.bytes, "size-65536-5");
        for is_own in [true, false] {
            let mut image = Image::new(whole.bytes.clone());
            let (at, entry) = (image.inode(victim), image.entry(2, "size-65536-5"));
            image.put16(at, 0);
            image.put32(entry, 0);
            if !is_own {
                let (from, to) = (image.slot(ino(&image.bytes, "long"), 1), image.slot(victim, 1));
                let value = image.word(from);
                image.put32(to, value);
            }
            let (after, _) = mended(&image.bytes, &what);
            let tree = Tree::of(&opened(&after).unwrap()).unwrap();
            let found = tree.contents(&format!("lost+found/#{victim:08}"));
            let wanted = expected.contents("size-65536-5").filter(|_| is_own);
            assert!(found == wanted, "{what}: {is_own}");
            assert!(tree.contents("long") == expected.contents("long"), "{what}");
        }
    }
}

#[test]
fn a_target_has_the_length_that_is_there() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-targets");
    let from = scratch.path("from");
    fill(&from);
    let expected = Tree::of_host(&from);
    for shape in SHAPES {
        let whole = made(&scratch, &from, shape);
        for (name, sizes) in
            [("link-58", [5, 500, 2000]), ("link-1", [59, 700, 1 << 40]), ("link-500", [20, 1025, 1 << 40])]
        {
            for size in sizes {
                let mut image = Image::new(whole.clone());
                let at = image.size(ino(&image.bytes, name));
                image.put64(at, size);
                let what = format!("{shape:?}: {name}, {size}");
                let (after, report) = mended(&image.bytes, &what);
                assert!(report.found.findings.iter().any(|found| found.code == "symlink"), "{what}");
                let tree = Tree::of(&opened(&after).unwrap()).unwrap();
                assert_eq!(tree.differences(&expected), [""; 0], "{what}");
            }
        }
    }
}

/// Whoever asks for everything to be mended loses no owner and no number of a device. After a crash such inodes were being made or removed.
#[test]
fn what_holds_nothing_and_lost_its_name_comes_back_where_there_may_be_damage() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-holds-nothing");
    let from = scratch.path("from");
    fill(&from);
    for shape in SHAPES {
        let whole = Image::new(made(&scratch, &from, shape));
        let parent = ino(&whole.bytes, "deep/er/and");
        let kinds = [
            (0o100_000, 8, 0),
            (0o010_000, 1, 0),
            (0o020_000, 2, 0x0305),
            (0o140_000, 12, 0),
            (0o040_000, 4, 0),
        ];
        for (kind, code, device) in kinds {
            let mut image = Image::new(whole.bytes.clone());
            let (no, entry) = if code == 4 {
                (ino(&image.bytes, "deep/er/and/deeper"), image.entry(parent, "deeper"))
            } else {
                make(&mut image, "empty", (kind, code), device);
                (ino(&image.bytes, "empty"), image.entry(2, "empty"))
            };
            let before = image.word(image.inode(no));
            image.put32(entry, 0);
            let what = format!("{shape:?}: {kind:#o}");
            let (after, _) = mended(&image.bytes, &what);
            assert_eq!(ino(&after, &format!("lost+found/#{no:08}")), no, "{what}");
            let after = Image::new(after);
            // Mode and links.
            assert_eq!(after.word(after.inode(no)), before, "{what}");
            if code != 4 {
                assert_eq!(after.word(after.slot(no, 0)), device, "{what}");
            }
            let (preened, report) = repaired(&image.bytes, RepairMode::Preen);
            let preened = Image::new(preened);
            assert!(report.left.is_clean() && preened.half(preened.inode(no)) == 0, "{what}");
        }
    }
}

#[test]
fn attributes_are_something() {
    for order in ["le", "be"] {
        let (bytes, _) = mkfs::made(&mkfs::options((2, order, 8192, 1024)), 8 << 20).unwrap();
        let medium = device(&bytes).unwrap();
        let (fs, caller) = (writable(medium.clone()), Caller::default());
        let file = fs.mknod(&caller, fs.root(), b"file", 0o100_640, 0).unwrap().attr.ino;
        fs.setxattr(&caller, file, b"user.note", b"something", XattrSetMode::Set).unwrap();
        fs.unmount().unwrap();
        let mut image = Image::new(medium.image().clone());
        let entry = image.entry(2, "file");
        image.put32(entry, 0);
        for mode in [RepairMode::Preen, RepairMode::Yes] {
            let (after, report) = repaired(&image.bytes, mode);
            assert!(report.left.is_clean(), "{order}, {mode:?}: {:#?}", report.left.findings);
            let fs = opened(&after).unwrap();
            let found = InodeNo(ino(&after, &format!("lost+found/#{:08}", file.0)).into());
            assert_eq!(fs.getxattr(found, b"user.note").unwrap(), b"something", "{order}, {mode:?}");
        }
    }
}
