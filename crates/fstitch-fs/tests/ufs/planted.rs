//! One damage at a time: what it is called, its class, and what is left of the tree when it is mended.

mod first;
mod kinds;
mod places;

use fstitch_core::{Error, FindingClass, RepairMode};

use super::damage::{Image, ino};
use super::host::{Tree, fill, made};
use super::repair::{SHAPES, mended, repair, repaired};
use super::support::Scratch;
use super::{have_makefs, opened};
use FindingClass::{Allowed, Corrupt};

/// What damages a volume.
type Plant = fn(&mut Image);

/// What becomes of the tree.
enum After {
    /// It is as it was.
    Same,
    /// These paths are others, and those below them.
    Other(&'static [&'static str]),
    /// The file at the first path is in lost+found.
    Lost(&'static str, &'static [&'static str]),
    /// The file of this path ends with its last fragment.
    Ends(&'static str),
}
use After::{Ends, Lost, Other, Same};

/// Bytes of a word of a group.
fn group_word(image: &Image, no: u32, at: usize) -> usize {
    image.group(no) + at
}

/// The place of a map of the first group.
fn map(image: &Image, at: usize) -> usize {
    let group = image.group(0);
    group + usize::try_from(image.word(group + at)).unwrap()
}

/// Changes a number of the superblock at byte `at` that has 4 bytes at byte `old` in UFS1, and 8 in UFS2.
fn change(image: &mut Image, at: usize, (old, new): (usize, usize), by: impl Fn(u64) -> u64) {
    if image.is_two() {
        let value = by(image.long(at + new));
        image.put64(at + new, value);
    } else {
        let value = by(image.word(at + old).into());
        image.put32(at + old, u32::try_from(value).unwrap());
    }
}

/// Where the length of a volume is, the number of fragments for contents, and the place of all groups' counts.
const SIZE: (usize, usize) = (36, 1080);
const CONTENTS: (usize, usize) = (40, 1088);
const COUNTS: (usize, usize) = (152, 1096);

/// The byte of a group's copy of the superblock.
fn copy(image: &Image, group: u32) -> usize {
    let first = image.shape.group_start(group) + u64::from(image.shape.parts[0]);
    usize::try_from(first).unwrap() * image.shape.fragment_len()
}

const PLANTS: &[(&str, FindingClass, After, Plant)] = &[
    ("inode-partial", Corrupt, Same, |image| {
        let at = image.size(image.free_inode());
        image.put64(at, 77);
    }),
    ("inode-partial", Corrupt, Same, |image| {
        let at = image.inode(image.free_inode());
        image.put16(at, 0o644);
    }),
    ("pointer-beyond", Corrupt, Same, |image| {
        let (empty, long) = (ino(&image.bytes, "empty"), ino(&image.bytes, "long"));
        let (from, to) = (image.slot(long, 1), image.slot(empty, 3));
        let value = image.word(from);
        image.put32(to, value);
    }),
    ("inode-truncated", Allowed, Other(&["long", "deep/er/again"]), |image| {
        let at = image.size(ino(&image.bytes, "long"));
        image.put64(at, 13 * u64::from(image.shape.block_size) - 5);
    }),
    ("inode-size", Allowed, Other(&["long", "deep/er/again"]), |image| {
        let at = image.size(ino(&image.bytes, "long"));
        let size = image.long(at) + 3 * u64::from(image.shape.block_size);
        image.put64(at, size);
    }),
    ("inode-size", Corrupt, Ends("size-512-0"), |image| {
        let at = image.size(ino(&image.bytes, "size-512-0"));
        image.put64(at, 3 * u64::from(image.shape.block_size));
    }),
    ("inode-links", Corrupt, Same, |image| {
        let at = image.inode(ino(&image.bytes, "deep")) + 2;
        image.put16(at, 2);
    }),
    ("inode-links", Allowed, Same, |image| {
        let at = image.inode(ino(&image.bytes, "deep")) + 2;
        image.put16(at, 9);
    }),
    // Names behind it in the same part of the directory stay.
    ("dir-entry", Corrupt, Lost("empty", &["empty"]), |image| {
        let at = image.entry(2, "empty");
        image.bytes[at + 8] = b'/';
    }),
    ("dir-entry", Corrupt, Other(&["holes", "lost+found"]), |image| {
        let at = image.entry(2, "holes");
        image.bytes[at + 4..at + 6].fill(0xff);
    }),
    ("inode-size", Corrupt, Other(&["size-512-0"]), |image| {
        let at = image.size(ino(&image.bytes, "size-512-0"));
        image.put64(at, 1 << 62);
    }),
    // A last byte that systems take for damage, in a block that there is: three blocks of another file lead to a fourth.
    ("inode-size", Corrupt, Other(&["long", "deep/er/again", "size-65536-5"]), |image| {
        let (long, other) = (ino(&image.bytes, "long"), ino(&image.bytes, "size-65536-5"));
        let size = image.shape.longest() + 1;
        let pointers = u64::from(image.shape.pointers_per_block());
        let mut rest = (size - 1) / u64::from(image.shape.block_size) - 12 - pointers - pointers.pow(2);
        let blocks: Vec<u32> = (0..4).map(|slot| image.word(image.slot(other, slot))).collect();
        for (level, pair) in (0..3_u32).rev().zip(blocks.windows(2)) {
            let index = usize::try_from(rest / pointers.pow(level)).unwrap();
            rest %= pointers.pow(level);
            let start = usize::try_from(pair[0]).unwrap() * image.shape.fragment_len();
            let len = usize::try_from(image.shape.block_size).unwrap();
            image.bytes[start..start + len].fill(0);
            if image.is_two() {
                image.put64(start + index * 8, pair[1].into());
            } else {
                image.put32(start + index * 4, pair[1]);
            }
        }
        for slot in 0..4 {
            let at = image.slot(other, slot);
            image.put32(at, 0);
        }
        let (root, at) = (image.slot(long, 14), image.size(long));
        image.put32(root, blocks[0]);
        image.put64(at, size);
    }),
    ("inode-blocks", Allowed, Same, |image| {
        let at = image.inode(ino(&image.bytes, "long")) + if image.is_two() { 28 } else { 104 };
        image.put32(at, 1);
    }),
    ("symlink", Corrupt, Same, |image| {
        let at = image.slot(ino(&image.bytes, "link-1"), 14);
        image.put32(at, 0x7878_7878);
    }),
    // Kinds of what has none, and of a directory that is called a pipe.
    ("inode", Corrupt, Same, |image| {
        let at = image.inode(ino(&image.bytes, "many"));
        image.put16(at, 0o010_755);
    }),
    // A directory that says that it is a snapshot, which may be of any length; and a name is to be made in it.
    ("inode-flags", Corrupt, Lost("holes", &["holes"]), |image| {
        let at = image.inode(2) + if image.is_two() { 88 } else { 100 };
        image.put32(at, 0x0020_0000);
        let at = image.size(2);
        let size = image.long(at) - 256;
        image.put64(at, size);
        let at = image.entry(2, "holes");
        image.put32(at, 0);
    }),
    ("dir-size", Corrupt, Same, |image| {
        let at = image.size(ino(&image.bytes, "deep"));
        image.put64(at, 500);
    }),
    ("dir-hole", Corrupt, Other(&["deep", "lost+found"]), |image| {
        let at = image.slot(ino(&image.bytes, "deep"), 0);
        image.put32(at, 0);
    }),
    // More blocks than can be counted one by one.
    ("dir-hole", Corrupt, Same, |image| {
        let at = image.size(ino(&image.bytes, "deep"));
        image.put64(at, 1 << 60);
    }),
    ("dir-type", Corrupt, Same, |image| {
        let at = image.entry(2, "many");
        image.bytes[at + 6] = 8;
    }),
    ("dir-dots", Corrupt, Same, |image| {
        let at = image.contents(ino(&image.bytes, "deep"));
        image.bytes[at + 8] = b'x';
    }),
    ("root", Corrupt, Other(&[""]), |image| {
        let (at, len) = (image.inode(2), if image.is_two() { 256 } else { 128 });
        image.bytes[at..at + len].fill(0);
    }),
    // Both names are in one directory: which one holds, nobody can say.
    ("dir-two-names", Allowed, Lost("empty", &["empty", "deep"]), |image| {
        let (at, deep) = (image.entry(2, "empty"), ino(&image.bytes, "deep"));
        image.put32(at, deep);
        image.bytes[at + 6] = 4;
    }),
    ("dir-two-names", Allowed, Lost("holes", &["holes"]), |image| {
        let (at, deep) = (image.entry(2, "holes"), ino(&image.bytes, "deep/er"));
        image.put32(at, deep);
        image.bytes[at + 6] = 4;
    }),
    ("inode-unreferenced", Allowed, Lost("holes", &["holes"]), |image| {
        let at = image.entry(2, "holes");
        image.put32(at, 0);
    }),
    ("inode-unreferenced", Allowed, Other(&["many", "lost+found"]), |image| {
        let at = image.entry(2, "many");
        image.put32(at, 0);
    }),
    ("inode-orphan", Allowed, Other(&["holes"]), |image| {
        let (at, links) = (image.entry(2, "holes"), image.inode(ino(&image.bytes, "holes")) + 2);
        image.put32(at, 0);
        image.put16(links, 0);
    }),
    ("superblock-not-clean", Allowed, Same, |image| {
        let at = image.superblock(209);
        image.bytes[at] = 0;
    }),
    // The same where flags once were; UFS1 with such a superblock is not mended.
    ("superblock-not-clean", Allowed, Same, |image| {
        let (at, value) = if image.is_two() { (211, 5) } else { (209, 0) };
        let at = image.superblock(at);
        image.bytes[at] = value;
    }),
    ("superblock-field", Corrupt, Same, |image| {
        let at = image.superblock(1336);
        image.put64(at, 5);
    }),
    ("superblock-copy", Corrupt, Same, |image| {
        let at = copy(image, image.shape.groups - 1);
        image.put32(at + 184, 1);
    }),
    ("superblock-field", Corrupt, Same, |image| {
        let at = image.superblock(0);
        change(image, at, SIZE, |size| size - 1);
    }),
    ("superblock-field", Corrupt, Same, |image| {
        let at = image.superblock(0);
        change(image, at, SIZE, |size| size - 160);
    }),
    // The last group has not even room for its metadata.
    ("superblock-field", Corrupt, Same, |image| {
        let (at, least) = (image.superblock(0), image.shape.group_start(image.shape.groups - 1) + 9);
        change(image, at, SIZE, |_| least);
    }),
    ("superblock-field", Corrupt, Same, |image| {
        let at = image.superblock(0);
        change(image, at, CONTENTS, |count| count ^ 16);
    }),
    ("superblock-field", Corrupt, Same, |image| {
        let at = image.superblock(0);
        change(image, at, COUNTS, |place| place + 1);
    }),
    ("superblock-field", Corrupt, Same, |image| {
        let at = image.superblock(0);
        change(image, at, COUNTS, |place| place | 1 << 30);
    }),
    // What all copies say is wrong where the volume says otherwise.
    ("superblock-copy", Corrupt, Same, |image| {
        for group in 0..image.shape.groups {
            let at = copy(image, group);
            if at != image.superblock(0) {
                change(image, at, SIZE, |size| size - 160);
                change(image, at, COUNTS, |place| place + 1);
            }
        }
    }),
    // The group's own block reaches into its inodes.
    ("superblock-damaged", Corrupt, Same, |image| {
        let at = image.superblock(12);
        let value = image.word(at) + 1;
        image.put32(at, value);
    }),
    ("superblock-damaged", Corrupt, Same, |image| {
        // Inodes of a group.
        let at = image.superblock(184);
        let value = image.word(at) / 2;
        image.put32(at, value);
        let at = image.superblock(120);
        image.put32(at, 1);
    }),
    ("totals", Allowed, Same, |image| {
        let at = image.superblock(1016);
        image.put64(at, 3);
    }),
    ("summary", Allowed, Same, |image| {
        let at = usize::try_from(image.shape.summaries.0).unwrap() * image.shape.fragment_len();
        image.put32(at, 999);
    }),
    ("group-totals", Allowed, Same, |image| {
        let at = group_word(image, 0, 24);
        image.put32(at, 999);
    }),
    ("group-totals", Allowed, Same, |image| {
        let at = group_word(image, 0, 52 + 4);
        image.put32(at, 999);
    }),
    ("group-clusters", Allowed, Same, |image| {
        let at = map(image, 108);
        image.bytes[at] ^= 0xff;
    }),
    ("group", Corrupt, Same, |image| {
        let at = group_word(image, 0, 4);
        image.put32(at, 0);
    }),
    ("group", Corrupt, Same, |image| {
        let at = group_word(image, 0, 92);
        image.put32(at, 5);
    }),
    ("block-leaked", Allowed, Same, |image| {
        let at = map(image, 96);
        let free = (0..4000).find(|&byte| image.bytes[at + byte] == 0xff).unwrap();
        image.bytes[at + free] = 0;
    }),
    ("inode-leaked", Allowed, Same, |image| {
        let (at, ino) = (map(image, 92), image.free_inode());
        image.bytes[at + usize::try_from(ino / 8).unwrap()] |= 1 << (ino % 8);
    }),
];

#[test]
fn each_damage_has_its_name_its_class_and_its_end() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-each");
    let from = scratch.path("from");
    fill(&from);
    let expected = Tree::of_host(&from);
    for shape in SHAPES {
        let whole = made(&scratch, &from, shape);
        for (code, class, after, plant) in PLANTS {
            let mut image = Image::new(whole.clone());
            plant(&mut image);
            let what = format!("{shape:?}: {code}");
            let (mended, report) = mended(&image.bytes, &what);
            let found = &report.found.findings;
            let is_found = found.iter().any(|found| found.code == *code && found.class == *class);
            assert!(is_found, "{what}: {found:#?}");
            let tree = Tree::of(&opened(&mended).unwrap()).unwrap();
            let others = match after {
                Same => &[][..],
                Other(others) | Lost(_, others) => others,
                Ends(path) => std::slice::from_ref(path),
            };
            for path in tree.differences(&expected) {
                let may_be = others.iter().any(|other| path.starts_with(other));
                let is_lost = matches!(after, Lost(..)) && path.starts_with("lost+found");
                assert!(may_be || is_lost, "{what}: {path}");
            }
            if let Lost(path, _) = after
                && expected.contents(path).is_some_and(|contents| !contents.is_empty())
            {
                let name = format!("lost+found/#{:08}", ino(&whole, path));
                assert!(tree.contents(&name) == expected.contents(path), "{what}");
            }
            if let Ends(path) = after {
                let (contents, before) = (tree.contents(path).unwrap(), expected.contents(path).unwrap());
                assert_eq!(contents.len(), image.shape.fragment_len(), "{what}");
                assert!(contents.starts_with(before), "{what}");
            }
            // With damage preening changes nothing; without, it mends all.
            let (preened, report) = repaired(&image.bytes, RepairMode::Preen);
            if report.found.corrupt > 0 {
                assert!(preened == image.bytes && report.mended == 0, "{what}");
            } else {
                assert!(report.left.is_clean(), "{what}: {:#?}", report.left.findings);
            }
            let (looked, _) = repaired(&image.bytes, RepairMode::No);
            assert!(looked == image.bytes, "{what}");
        }
    }
}

#[test]
fn a_directory_that_lost_its_name_comes_back_whole() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-lost");
    let from = scratch.path("from");
    fill(&from);
    let expected = Tree::of_host(&from);
    for shape in SHAPES {
        let mut image = Image::new(made(&scratch, &from, shape));
        let (many, deep) = (ino(&image.bytes, "many"), ino(&image.bytes, "deep"));
        for name in ["many", "deep"] {
            let at = image.entry(2, name);
            image.put32(at, 0);
        }
        let (after, _) = mended(&image.bytes, &format!("{shape:?}"));
        let tree = Tree::of(&opened(&after).unwrap()).unwrap();
        let place = format!("lost+found/#{many:08}/nn-1");
        assert_eq!(tree.contents(&place), expected.contents("many/nn-1"), "{shape:?}");
        let place = format!("lost+found/#{deep:08}/er/again");
        assert_eq!(tree.contents(&place), expected.contents("long"), "{shape:?}");
    }
}

/// What two blocks of another file had is there twice afterwards.
#[test]
fn blocks_that_are_shared_become_two() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-two");
    let from = scratch.path("from");
    fill(&from);
    let expected = Tree::of_host(&from);
    for shape in SHAPES {
        let mut image = Image::new(made(&scratch, &from, shape));
        let (long, other) = (ino(&image.bytes, "long"), ino(&image.bytes, "size-65536-5"));
        for slot in 0..3 {
            let (from, to) = (image.slot(other, slot), image.slot(long, slot + 1));
            let value = image.word(from);
            image.put32(to, value);
        }
        let what = format!("{shape:?}");
        let (after, _) = mended(&image.bytes, &what);
        let tree = Tree::of(&opened(&after).unwrap()).unwrap();
        let block = usize::try_from(image.shape.block_size).unwrap();
        let theirs = expected.contents("size-65536-5").unwrap();
        assert!(tree.contents("size-65536-5") == Some(theirs), "{what}: the one");
        let long = tree.contents("long").unwrap();
        assert!(long[block..4 * block] == theirs[..3 * block], "{what}: the other");
    }
}

/// Whoever finds a mark of a clean volume looks no further.
#[test]
fn a_volume_with_damage_left_is_not_marked_clean() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-left");
    let from = scratch.path("from");
    fill(&from);
    for shape in SHAPES {
        let mut image = Image::new(made(&scratch, &from, shape));
        // The same block of pointers is two files'.
        let clean = image.superblock(209);
        let (long, other) = (ino(&image.bytes, "long"), ino(&image.bytes, "size-65536-5"));
        let (from, to) = (image.slot(long, 12), image.slot(other, 12));
        let (value, size) = (image.word(from), image.long(image.size(long)));
        assert_ne!(value, 0, "{shape:?}: a block of pointers");
        image.put32(to, value);
        let at = image.size(other);
        image.put64(at, size);
        image.bytes[clean] = 0;
        for mode in [RepairMode::Preen, RepairMode::Yes] {
            let (after, report) = repaired(&image.bytes, mode);
            let is_clean = Image::new(after).bytes[clean] == 1;
            assert_eq!(is_clean, report.left.is_clean(), "{shape:?}, {mode:?}: {:#?}", report.left.findings);
        }
    }
}

#[test]
fn what_would_not_be_kept_right_is_refused_by_name() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-refused");
    let from = scratch.path("from");
    fill(&from);
    let whole = made(&scratch, &from, (1, "be", 8192, 1024));
    let plants: [(&str, Plant); 4] = [
        ("quotas", |image| {
            let at = image.superblock(1312);
            image.put32(at, 0x200);
        }),
        ("WAPBL", |image| {
            let at = image.superblock(1312);
            image.put32(at, 0x100);
            let at = image.superblock(864);
            (image.bytes[at], image.bytes[at + 1]) = (1, 2);
        }),
        ("snapshots", |image| {
            let file = ino(&image.bytes, "long");
            let at = image.superblock(1116);
            image.put32(at, file);
            let at = image.inode(file) + 100;
            image.put32(at, 0x0020_0000);
        }),
        ("before FreeBSD 5", |image| {
            let at = image.superblock(211);
            image.bytes[at] = 0;
        }),
    ];
    for (why, plant) in plants {
        let mut image = Image::new(whole.clone());
        plant(&mut image);
        let at = image.superblock(209);
        image.bytes[at] = 0;
        let error = repair(&image.bytes, RepairMode::Yes).expect_err("refused");
        assert!(matches!(&error, Error::Unsupported(_)) && error.to_string().contains(why), "{error}");
        let (same, report) = repaired(&image.bytes, RepairMode::No);
        assert!(same == image.bytes && report.found.corrupt == 0, "{why}: {:#?}", report.found.findings);
    }
}
