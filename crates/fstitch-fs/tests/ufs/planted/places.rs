//! Lengths, places and blocks of pointers that are damaged: what lies there is found again.

use fstitch_core::RepairMode;

use super::{CONTENTS, COUNTS, SIZE, change, copy};
use crate::damage::{Image, ino};
use crate::host::{Tree, fill, made};
use crate::repair::{SHAPES, mended, repaired};
use crate::support::Scratch;
use crate::{have_makefs, mkfs, opened};

/// Blocks that are there and counted say how long an inode was.
#[test]
fn a_length_that_got_shorter_is_found_again() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-short");
    let from = scratch.path("from");
    fill(&from);
    let expected = Tree::of_host(&from);
    for shape in SHAPES {
        let whole = Image::new(made(&scratch, &from, shape));
        let block = usize::try_from(whole.shape.block_size).unwrap();
        for name in ["long", "size-65536-5", "size-65536-1", "size-8192-5", "size-8192-3", "many"] {
            // What it says of its storage is damaged as well.
            for (size, sectors) in [(0, None), (100, None), (100, Some(3))] {
                let (mut image, no) = (Image::new(whole.bytes.clone()), ino(&whole.bytes, name));
                if name == "many" && size > 0 {
                    continue;
                }
                let at = image.size(no);
                image.put64(at, size);
                if let Some(sectors) = sectors {
                    let at = image.sectors(no);
                    image.put32(at, sectors);
                }
                let what = format!("{shape:?}: {name}, {size}, {sectors:?}");
                let (after, report) = mended(&image.bytes, &what);
                assert!(report.found.findings.iter().any(|found| found.code == "inode-size"), "{what}");
                let tree = Tree::of(&opened(&after).unwrap()).unwrap();
                let is_it = |path: &String| name != "many" && (path == name || path == "deep/er/again");
                assert!(tree.differences(&expected).iter().all(is_it), "{what}");
                let (now, before) = (tree.contents(name).unwrap(), expected.contents(name).unwrap());
                assert!(now.starts_with(before) && now.len() < before.len() + block, "{what}: {}", now.len());
                if before.len() <= 12 * block && sectors.is_none() && name != "many" {
                    assert_eq!(
                        now.len(),
                        before.len().next_multiple_of(image.shape.fragment_len()),
                        "{what}"
                    );
                }
                assert!(repaired(&image.bytes, RepairMode::Preen).0 == image.bytes, "{what}");
            }
        }
    }
}

/// Of more groups than are asked whether a superblock is theirs: one number is wrong, and the volume becomes what it was, byte by byte.
#[test]
fn numbers_that_only_copies_have_are_found_there() {
    for shape in [(1, "le", 4096, 512), (1, "be", 8192, 1024), (2, "le", 8192, 1024), (2, "be", 4096, 512)] {
        let mut options = mkfs::options(shape);
        options.fragments_per_group = Some(800);
        options.lost_found = true;
        let (bytes, _) = mkfs::made(&options, 40 << 20).unwrap();
        let mut whole = Image::new(bytes);
        let groups = whole.shape.groups;
        assert!(groups > 32, "{shape:?}: {groups}");
        // All say that metadata move, by a mask that moves none.
        let copies: Vec<usize> = (0..groups).map(|group| copy(&whole, group)).collect();
        for at in copies.into_iter().chain([whole.superblock(0)]) {
            whole.put32(at + 24, 8);
        }
        let mut damaged = Vec::new();
        let mut plant = |what: String, plant: &dyn Fn(&mut Image)| {
            let mut image = Image::new(whole.bytes.clone());
            plant(&mut image);
            damaged.push((what, image));
        };
        for (name, field) in [("size", SIZE), ("dsize", CONTENTS), ("csaddr", COUNTS)] {
            plant(name.to_owned(), &|image| change(image, image.superblock(0), field, |value| value - 1));
        }
        for bit in (0..groups.ilog2()).filter(|_| shape.0 == 1) {
            plant(format!("mask {bit}"), &|image| image.put32(image.superblock(28), !(1 << bit)));
        }
        for (what, image) in damaged {
            let what = format!("{shape:?}: {what}");
            let (after, report) = mended(&image.bytes, &what);
            assert!(report.found.corrupt > 0, "{what}");
            assert!(after == whole.bytes, "{what}");
        }
    }
}

/// Where a superblock says that the first one is, by its bytes: in all of UFS2, and in UFS1 since FreeBSD 5.
pub(super) const PRIMARY: usize = 1000;
/// Where the magic number is, and the inodes of a block.
pub(super) const MAGIC: usize = 1372;
pub(super) const BLOCK_INODES: usize = 120;

/// The first superblock is gone, and copies say something else of where it was: it comes back there, and nothing else is written over.
#[test]
fn a_superblock_comes_back_where_it_is_found() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-astray");
    let from = scratch.path("from");
    fill(&from);
    let expected = Tree::of_host(&from);
    for shape in SHAPES {
        let whole = Image::new(made(&scratch, &from, shape));
        let groups = whole.shape.groups;
        assert_eq!(whole.shape.at, 8192, "{shape:?}");
        // No place; one that another first superblock could have; one where files are.
        for (place, astray) in [(26_368, 0..1), (u64::MAX, 0..groups), (0, 0..1), (65_536, 0..1)] {
            for gone in [MAGIC, BLOCK_INODES, PRIMARY] {
                let mut image = Image::new(whole.bytes.clone());
                for group in astray.clone() {
                    let at = copy(&image, group);
                    image.put64(at + PRIMARY, place);
                }
                let at = image.superblock(0);
                image.put32(at + gone, 0x5a5a);
                let what = format!("{shape:?}: {place}, {astray:?}, {gone}");
                let (after, report) = mended(&image.bytes, &what);
                assert!(report.found.corrupt > 0 && report.runs < 9, "{what}: {} runs", report.runs);
                assert!(after[..8192] == whole.bytes[..8192], "{what}");
                let after = Image::new(after);
                assert_eq!(after.shape.at, 8192, "{what}");
                for group in (0..groups).filter(|_| after.is_two()) {
                    assert_eq!(after.long(copy(&after, group) + PRIMARY), 8192, "{what}: {group}");
                }
                let tree = Tree::of(&opened(&after.bytes).unwrap()).unwrap();
                assert_eq!(tree.differences(&expected), [""; 0], "{what}");
            }
        }
    }
}

/// Where machines boot from: only what is left there says that the superblock was there.
#[test]
fn a_superblock_at_the_first_byte_comes_back_there() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-floppy");
    let from = scratch.path("from");
    fill(&from);
    let expected = Tree::of_host(&from);
    for shape in SHAPES {
        let mut whole = Image::new(made(&scratch, &from, shape));
        whole.bytes.copy_within(8192..16_384, 0);
        whole.bytes[8192..16_384].fill(0);
        for group in 0..whole.shape.groups {
            let at = copy(&whole, group);
            whole.put64(at + PRIMARY, 0);
        }
        whole.put64(PRIMARY, 0);
        for gone in [MAGIC, BLOCK_INODES] {
            let mut image = Image::new(whole.bytes.clone());
            image.put32(gone, 0x5a5a);
            let what = format!("{shape:?}: {gone}");
            let (after, report) = mended(&image.bytes, &what);
            assert!(report.found.findings[0].code == "superblock-damaged", "{what}");
            assert!(after[8192..16_384].iter().all(|&byte| byte == 0), "{what}");
            let after = Image::new(after);
            assert_eq!(after.shape.at, 0, "{what}");
            Tree::of(&opened(&after.bytes).unwrap()).unwrap().expect(&expected, &what);
        }
    }
}

/// What says how long the maps of a group are is wrong: copies have it. What else the superblock says stays.
#[test]
fn maps_that_fit_no_group_are_those_of_the_copies() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-no-room");
    let from = scratch.path("from");
    fill(&from);
    let expected = Tree::of_host(&from);
    for shape in SHAPES {
        let mut whole = Image::new(made(&scratch, &from, shape));
        let label = whole.superblock(680);
        whole.bytes[label..label + 5].copy_from_slice(b"mine\0");
        // Clusters that are counted; and cylinders of a group, and positions, which only UFS1 has.
        let numbers: &[&[usize]] =
            if whole.is_two() { &[&[1316]] } else { &[&[1316], &[180], &[1360], &[1316, 180]] };
        for damaged in numbers {
            let mut image = Image::new(whole.bytes.clone());
            for at in *damaged {
                let at = image.superblock(*at);
                image.put32(at, 0x5a5a);
            }
            let what = format!("{shape:?}: {damaged:?}");
            let (after, report) = mended(&image.bytes, &what);
            assert_eq!(report.found.findings[0].code, "superblock-damaged", "{what}");
            assert!(after[label..].starts_with(b"mine"), "{what}");
            let tree = Tree::of(&opened(&after).unwrap()).unwrap();
            assert_eq!(tree.differences(&expected), [""; 0], "{what}");
            assert!(repaired(&image.bytes, RepairMode::Preen).0 == image.bytes, "{what}");
        }
    }
}

/// What is at a place that is read before would still be there: nothing is written, and it ends.
#[test]
fn a_superblock_that_would_not_be_found_is_not_put_back() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-behind");
    let from = scratch.path("from");
    fill(&from);
    for shape in SHAPES {
        let mut image = Image::new(made(&scratch, &from, shape));
        // A volume that was never finished, where contents are.
        image.put32(65_536 + MAGIC, 0x1996_0408);
        let (after, report) = repaired(&image.bytes, RepairMode::Yes);
        let left = &report.left.findings;
        assert!(left.len() == 1 && left[0].code == "superblock-damaged", "{shape:?}: {left:#?}");
        assert!((report.runs, report.mended) == (2, 0), "{shape:?}: {} runs", report.runs);
        assert!(after == image.bytes, "{shape:?}");
    }
}

/// Files of more than a block.
const FILES: [&str; 6] =
    ["size-65536-5", "holes", "size-65536-3", "size-65536-2", "size-65536-4", "size-8192-5"];

/// The first of these whose inode is as wanted: makefs numbers inodes in the order in which the host lists names.
fn first<'n>(image: &Image, names: &[&'n str], is_wanted: impl Fn(u32) -> bool) -> Option<&'n str> {
    names.iter().copied().find(|name| is_wanted(ino(&image.bytes, name)))
}

/// A stray pointer to a block of pointers, or to one of those below, takes nothing from the file whose they are.
#[test]
fn blocks_of_pointers_that_somebody_else_claims_lead_where_they_did() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-maps");
    let from = scratch.path("from");
    fill(&from);
    let expected = Tree::of_host(&from);
    // The last one has two levels.
    for shape in SHAPES.into_iter().chain([(2, "be", 4096, 512)]) {
        let whole = Image::new(made(&scratch, &from, shape));
        let long = ino(&whole.bytes, "long");
        let block = usize::try_from(whole.shape.block_size).unwrap();
        let below = |slot: usize| {
            usize::try_from(whole.word(whole.slot(long, slot))).unwrap() * whole.shape.fragment_len()
        };
        let high_first = usize::from(whole.is_two() && shape.1 == "be") * 4;
        let second = (whole.word(whole.slot(long, 13)) != 0).then(|| whole.word(below(13) + high_first));
        assert!(second.is_some() == (shape.0 == 2 && shape.2 == 4096), "{shape:?}");
        let maps = [12, 13].map(|slot| whole.word(whole.slot(long, slot)));
        let before = first(&whole, &FILES, |no| no < long);
        let behind = first(&whole, &FILES, |no| no > long);
        let link = first(&whole, &["link-1", "link-58", "link-59"], |no| no < long);
        assert!(before.or(behind).is_some(), "{shape:?}");
        for map in maps.into_iter().chain(second).filter(|&map| map != 0) {
            for name in [before, behind, link].into_iter().flatten() {
                let (mut image, no) = (Image::new(whole.bytes.clone()), ino(&whole.bytes, name));
                if Some(name) == link {
                    let target = image.inode(no) + if image.is_two() { 112 } else { 40 };
                    image.bytes[target..target + 8].fill(0);
                    // A file now, of which no block becomes room for the copy.
                    let (at, sectors) = (image.size(no), image.sectors(no));
                    image.put64(at, u64::from(image.shape.block_size));
                    image.put32(sectors, image.shape.block_size / 512);
                    let (mode, entry) = (image.inode(no), image.entry(2, name));
                    image.put16(mode, 0o100_644);
                    image.bytes[entry + 6] = 8;
                }
                let at = image.slot(no, 0);
                image.put32(at, map);
                let what = format!("{shape:?}: {name}, {map}");
                let (after, report) = mended(&image.bytes, &what);
                assert!(report.found.findings.iter().any(|found| found.code == "block-shared"), "{what}");
                let tree = Tree::of(&opened(&after).unwrap()).unwrap();
                assert_eq!(tree.differences(&expected), [name], "{what}");
                let (now, then) = (tree.contents(name).unwrap(), expected.contents(name).unwrap());
                assert!(now.get(block..) == then.get(block..) || Some(name) == link, "{what}");
            }
        }
    }
}

/// What is used as a block of pointers and holds none is given back.
#[test]
fn contents_are_no_pointers() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-no-maps");
    let from = scratch.path("from");
    fill(&from);
    for shape in SHAPES {
        let mut image = Image::new(made(&scratch, &from, shape));
        let long = ino(&image.bytes, "long");
        // Who comes later has to give it back.
        let Some(name) = first(&image, &FILES, |no| no < long) else { continue };
        let other = ino(&image.bytes, name);
        // Every fourth number in it could be a pointer.
        let (value, block) =
            (image.word(image.slot(other, 1)), usize::try_from(image.shape.block_size).unwrap());
        let start = usize::try_from(value).unwrap() * image.shape.fragment_len();
        for at in (start..start + block).step_by(8) {
            let number = if (at - start).is_multiple_of(32) { value.into() } else { u64::MAX };
            if image.is_two() {
                image.put64(at, number)
            } else {
                image.put32(at, u32::try_from(number & 0xffff_ffff).unwrap())
            }
        }
        let expected = Tree::of(&opened(&image.bytes).unwrap()).unwrap();
        let to = image.slot(long, 12);
        image.put32(to, value);
        let what = format!("{shape:?}");
        let (after, _) = mended(&image.bytes, &what);
        let tree = Tree::of(&opened(&after).unwrap()).unwrap();
        assert!(tree.contents(name) == expected.contents(name), "{what}");
        let (after, now) = (Image::new(after), tree.contents("long").unwrap());
        assert_eq!(after.word(after.slot(long, 12)), 0, "{what}");
        assert!(now[..12 * block] == expected.contents("long").unwrap()[..12 * block], "{what}");
    }
}
