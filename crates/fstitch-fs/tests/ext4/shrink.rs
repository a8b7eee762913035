//! Shrinking volumes: what lies behind the new end is elsewhere, whole, under its names; whatever write is the last one the volume is the old or the
//! new one, with the same tree, and can be shrunk again.
//!
//! What it prevents: a smaller volume without the files that lay behind its end; names that lead to somebody else's inode; contents that are
//! those of a block that was free.

use std::sync::Arc;

use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockWrite, Consistency, Error, FileSystem, MemDevice, Result, Seed,
};
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::ext2::journal::read_superblock;
use fstitch_fs::ext2::resize::{Resized, resize};

use super::cut::{Cut, Lossy, is_thorough};
use super::support::{Scratch, have};
use super::tree::{Tree, change, fill, spread};
use super::{NOW, READ_ONLY, SHAPES, device, e2fsck_is_content, kernel, made, mounted, recovered};

fn shrink(device: &dyn BlockDevice, blocks: u64) -> Result<Resized> {
    let mut last = (0, 0);
    let done = resize(device, blocks, NOW, &mut |done, total| {
        assert!(done <= total && done >= last.0, "{done} of {total} after {last:?}");
        last = (done, total);
    });
    if done.is_ok() {
        assert_eq!(last.0, last.1, "all that was announced has moved");
    }
    done
}

fn blocks_of(device: &dyn BlockDevice) -> u64 {
    read_superblock(device).unwrap().1.blocks_count
}

/// Volumes by pointers, as well.
const POINTERS: &[(&str, &[&str])] = &[
    ("ext3", &["-t", "ext3", "-b", "1024"]),
    ("ext3-4K", &["-t", "ext3", "-b", "4096"]),
    ("ext3-dense", &["-t", "ext3", "-b", "1024", "-O", "^sparse_super,^resize_inode", "-g", "4096"]),
];

/// What free blocks hold must not matter: here it is what is in use elsewhere, most of it with sums, nodes of extents above all. Blocks that hold
/// something keep it if `only_zeros`: a log may give them to a file yet.
pub fn free_blocks_look_used(device: &MemDevice, only_zeros: bool) {
    let (_, shape) = read_superblock(device).unwrap();
    let size = usize::try_from(shape.block_size).unwrap();
    let image = device.image();
    let bit = |at: usize, bit: usize| image[at * size + bit / 8] & 1 << (bit % 8) != 0;
    let mut used: Vec<usize> = Vec::new();
    let mut free: Vec<usize> = Vec::new();
    for group in 0..shape.group_count() {
        let (no, offset) = shape.descriptor_place(group);
        let raw = &image[usize::try_from(no).unwrap() * size + offset..];
        let word = |at: usize| u32::from_le_bytes(raw[at..at + 4].try_into().unwrap());
        if raw[0x12] & 2 != 0 && shape.features.has_group_sums() {
            continue;
        }
        let start = usize::try_from(shape.group_start(group)).unwrap();
        let table = usize::try_from(word(8)).unwrap();
        for at in 0..usize::try_from(shape.group_blocks(group)).unwrap() {
            let is_used = bit(usize::try_from(word(0)).unwrap(), at);
            if !is_used {
                free.push(start + at);
            } else if start + at >= table {
                used.push(start + at);
            }
        }
    }
    let block = |no: usize| &image[no * size..(no + 1) * size];
    let nodes: Vec<usize> = used.iter().copied().filter(|&no| block(no)[..2] == [0x0a, 0xf3]).collect();
    let mut seed = Seed::new(3);
    free.retain(|&no| !only_zeros || block(no).iter().all(|&byte| byte == 0));
    for no in free.into_iter().take(20_000) {
        let from = if nodes.is_empty() || seed.below(2) == 0 { &used } else { &nodes };
        let from = from[usize::try_from(seed.below(u64::try_from(from.len()).unwrap())).unwrap()];
        let (data, block) = (block(from), BlockNo(u64::try_from(no).unwrap()));
        device.write(&[BlockWrite { block, kind: BlockKind::Data, data }]).unwrap();
    }
}

/// A volume with files everywhere, many of them in pieces, and what it holds.
fn filled(scratch: &Scratch, options: &[&str], seed: u64) -> (Arc<MemDevice>, Tree) {
    let device = device(made(scratch, options));
    let fs = mounted(&device, Consistency::Ordered);
    fill(&fs, seed).unwrap();
    spread(&fs, seed).unwrap();
    let expected = Tree::of(&fs);
    fs.unmount().unwrap();
    drop(fs);
    free_blocks_look_used(&device, false);
    (device, expected)
}

/// Bytes of a block.
fn block_size(device: &dyn BlockDevice) -> u64 {
    u64::from(read_superblock(device).unwrap().1.block_size)
}

/// The image behind which nothing lies any more, `percent` of what it was at first; `None` if that is refused, with nothing written.
fn shrunk_to(name: &str, image: &[u8], percent: u64) -> Option<Vec<u8>> {
    let device = device(image.to_vec());
    let before = blocks_of(&*device);
    let wanted = (40 << 20) / block_size(&*device) * percent / 100;
    match shrink(&*device, wanted) {
        Ok(done) => {
            let after = done.after;
            assert!(after < before && after <= wanted && after == blocks_of(&*device), "{name}: {done:?}");
        }
        Err(Error::Unsupported(text)) => {
            let lawful = ["lie behind", "have higher numbers", "at once", "are free", "stable_inodes"];
            assert!(lawful.iter().any(|part| text.contains(part)), "{name}: {text}");
            assert!(device.image() == image, "{name}: refused, and something is written");
            println!("{name}: {text}");
            return None;
        }
        Err(error) => panic!("{name}: {error}"),
    }
    let mut rest = device.image();
    rest.truncate(usize::try_from(blocks_of(&*device) * block_size(&*device)).unwrap());
    Some(rest)
}

/// What was cut off comes back.
fn grown_again(scratch: &Scratch, name: &str, mut image: Vec<u8>, expected: &Tree) {
    image.resize(40 << 20, 0x5a);
    let device = device(image);
    match resize(&*device, (40 << 20) / block_size(&*device), NOW, &mut |_, _| {}) {
        Ok(_) => {
            e2fsck_is_content(scratch, &format!("{name}, grown again"), &device.image());
            let fs = mounted(&device, Consistency::Ordered);
            Tree::of(&fs).expect(expected, &format!("{name}: grown again"));
            fs.unmount().unwrap();
        }
        Err(Error::Unsupported(text)) => println!("{name}, grown again: {text}"),
        Err(error) => panic!("{name}, grown again: {error}"),
    }
}

/// Shapes that are shrunk where not all are.
const SOME: [&str; 9] =
    ["default", "4K", "flex-4", "uninit_bg", "meta_bg", "sparse_super2", "orphan_file", "128", "ext3-dense"];

#[test]
fn volumes_shrink_and_nothing_is_amiss() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-shrink");
    let (mut shrunk, mut refused) = (0, 0);
    let shapes = SHAPES.iter().chain(POINTERS).filter(|(name, _)| is_thorough() || SOME.contains(name));
    for (name, options) in shapes {
        let (first, mut expected) = filled(&scratch, options, 1);
        let mut image = first.image();
        for percent in [90, 61, 40, 30] {
            let name = format!("{name}, {percent} %");
            let Some(rest) = shrunk_to(&name, &image, percent) else {
                refused += 1;
                continue;
            };
            shrunk += 1;
            e2fsck_is_content(&scratch, &name, &rest);
            let below = device(rest);
            let fs = mounted(&below, Consistency::Ordered);
            Tree::of(&fs).expect(&expected, &name);
            if percent == 90 {
                change(&fs, 2).unwrap_or_else(|error| panic!("{name}: {error}"));
                expected = Tree::of(&fs);
            }
            fs.unmount().unwrap();
            drop(fs);
            e2fsck_is_content(&scratch, &format!("{name}, changed"), &below.image());
            image = below.image();
        }
        if let Some(found) = kernel::tree(&scratch, &image) {
            found.expect(&expected, &format!("{name}: the kernel's"));
        }
        grown_again(&scratch, name, image, &expected);
    }
    println!("shrunk {shrunk} times, refused {refused}");
    assert!(shrunk > if is_thorough() { 60 } else { 20 }, "only {shrunk}");
}

/// A volume that is shrunk, with the power failing.
struct Trial {
    image: Vec<u8>,
    expected: Tree,
    /// Blocks that it has, is to have, and has then.
    sizes: (u64, u64, u64),
    /// Writes that it takes.
    writes: usize,
}

/// What a cut leaves.
#[derive(PartialEq, Eq)]
enum Left {
    /// While the journal moved.
    NotClean,
    Old,
    New,
    /// Nothing was cut.
    Whole,
}

impl Trial {
    fn new(scratch: &Scratch, options: &[&str], percent: u64) -> Self {
        let (first, expected) = filled(scratch, options, 5);
        let (image, before) = (first.image(), blocks_of(&*first));
        let wanted = before * percent / 100;
        let counted = Cut::never(&first);
        let after = shrink(&counted, wanted).unwrap().after;
        Self { image, expected, sizes: (before, wanted, after), writes: counted.written() }
    }

    /// Cuts it after so many writes, in order or with only some of what was not flushed, and has it recovered, looked at and shrunk again.
    fn cut(&self, scratch: &Scratch, name: &str, (writes, in_order): (usize, bool), theirs: bool) -> Left {
        let (before, wanted, after) = self.sizes;
        let below = device(self.image.clone());
        let is_whole = if in_order {
            shrink(&Cut::after(&below, writes), wanted).is_ok()
        } else {
            shrink(&Lossy::after(&below, writes, u64::try_from(writes).unwrap()), wanted).is_ok()
        };
        let theirs = if theirs { kernel::tree(scratch, &below.image()) } else { None };
        let errors = recovered(&*below).map_or(Vec::new(), |recovered| recovered.errors);
        assert!(errors.is_empty(), "{name}: {errors:?}");
        let report = check_ext2(&*below).unwrap();
        let state = read_superblock(&*below).unwrap().1.state;
        let now = blocks_of(&*below);
        assert!(now == before || now == after, "{name}: {now} blocks");
        // While the journal moves the volume is not clean, and blocks may be in use that are nobody's.
        let is_clean = state & 1 != 0;
        if is_clean {
            assert_eq!(report.total, 0, "{name}: {:#?}", report.findings);
        } else {
            let leaked = |code: &str| matches!(code, "block-leaked" | "superblock-not-clean");
            let all = report.findings.iter().all(|finding| leaked(finding.code));
            assert!(all && now == before && state & 2 == 0, "{name}: {:#?}", report.findings);
            super::resize::repaired(scratch, name, &below);
        }
        if let Some(theirs) = theirs {
            theirs.expect(&self.expected, &format!("{name}: the kernel's"));
        }
        shrink(&*below, wanted).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(blocks_of(&*below), after, "{name}");
        let report = check_ext2(&*below).unwrap();
        assert_eq!(report.total, 0, "{name}: {:#?}", report.findings);
        let fs = mounted(&below, Consistency::Ordered);
        Tree::of(&fs).expect(&self.expected, name);
        fs.unmount().unwrap();
        drop(fs);
        if writes.is_multiple_of(10) || is_whole {
            e2fsck_is_content(scratch, name, &below.image());
        }
        match (is_whole, is_clean, now == before) {
            (true, ..) => Left::Whole,
            (_, false, _) => Left::NotClean,
            (_, _, true) => Left::Old,
            _ => Left::New,
        }
    }
}

#[test]
fn shrinking_may_be_cut_at_every_write() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-shrink-cut");
    // Of the first the journal, of 1 MiB in the middle, lies behind the new end: it moves first.
    let shapes: [(&str, &[&str], u64); 4] = [
        ("1K", &["-b", "1024", "-g", "2048", "-J", "size=1"], 41),
        ("meta_bg", &["-O", "meta_bg,^resize_inode", "-b", "1024", "-g", "512", "-N", "4096"], 55),
        ("uninit_bg", &["-O", "^metadata_csum,uninit_bg", "-b", "1024", "-g", "2048"], 55),
        ("ext3", &["-t", "ext3", "-b", "1024", "-g", "2048"], 55),
    ];
    let mut left = Vec::new();
    for (at, (name, options, percent)) in shapes.into_iter().enumerate() {
        let trial = Trial::new(&scratch, options, percent);
        let (step, last) = match (is_thorough(), at) {
            (true, 0) => (7, 3),
            (true, _) => (41, 3),
            (false, _) => (997, 19),
        };
        // The last transaction changes what everybody looks at first: more of it.
        let (end, near) = (trial.writes, trial.writes.saturating_sub(150));
        // The new log is written by then, its bits and inode 8 follow.
        let journal = if at == 0 { 1020..1070 } else { 0..0 };
        let early = (at * 13..near).step_by(step).chain(journal.step_by(3));
        for writes in early.chain((near..end).step_by(last)).chain([end + 1]) {
            let name = format!("{name}, {writes} of {end} writes");
            let theirs = writes >= near || left.len() % (if is_thorough() { 40 } else { 5 }) == 3;
            left.push(trial.cut(&scratch, &name, (writes, left.len() % 2 == 0), theirs));
        }
        assert!(left.last() == Some(&Left::Whole), "{name}: its writes are as many as before");
    }
    let count = |what: &Left| left.iter().filter(|left| *left == what).count();
    let (not_clean, old, new) = (count(&Left::NotClean), count(&Left::Old), count(&Left::New));
    println!("{} cuts: {not_clean} while the journal moved, {old} old, {new} new", left.len());
    assert!(not_clean > 0 && old > 0 && new > 0);
}

#[test]
fn what_the_kernel_has_made_shrinks() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-shrink-theirs");
    let shapes: [(&str, &[&str]); 4] = [
        ("1K", &["-b", "1024", "-g", "2048"]),
        ("4K", &["-b", "4096"]),
        ("no-csum", &["-O", "^metadata_csum", "-b", "1024", "-g", "4096"]),
        ("ext3", &["-t", "ext3", "-b", "1024", "-I", "128", "-g", "4096"]),
    ];
    for (name, options) in shapes {
        let Some((image, expected)) = kernel::scattered(&scratch, &made(&scratch, options)) else { return };
        let device = device(image);
        free_blocks_look_used(&device, false);
        for percent in [75, 62] {
            let before = blocks_of(&*device);
            let wanted =
                40 * 1024 * 1024 / u64::from(read_superblock(&*device).unwrap().1.block_size) * percent / 100;
            let done =
                shrink(&*device, wanted).unwrap_or_else(|error| panic!("{name}, {percent} %: {error}"));
            assert!(done.after < before);
            e2fsck_is_content(&scratch, &format!("{name}, {percent} %"), &device.image());
            let found = kernel::tree(&scratch, &device.image()).unwrap();
            found.expect(&expected, &format!("{name}, {percent} %: the kernel's"));
        }
        let fs = mounted(&device, Consistency::Ordered);
        Tree::of(&fs).expect(&expected, &format!("{name}: ours"));
        fs.unmount().unwrap();
    }
}

#[test]
fn what_cannot_be_moved_is_refused_by_name() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("ext4-shrink-refused");
    for (name, options) in READ_ONLY {
        let device = device(made(&scratch, options));
        let image = device.image();
        let refused = shrink(&*device, blocks_of(&*device) * 3 / 4).expect_err(name).to_string();
        assert!(refused.contains(name), "{name}: {refused}");
        assert!(device.image() == image, "{name}: something is written");
    }
    // A bitmap that is not what was written says nothing of what is free.
    let (device, _) = filled(&scratch, &["-b", "1024", "-g", "2048"], 3);
    let (_, shape) = read_superblock(&*device).unwrap();
    let image = device.image();
    for (field, what) in [(0, "block bitmap"), (4, "inode bitmap")] {
        let (no, offset) = shape.descriptor_place(0);
        let at = usize::try_from(no).unwrap() * 1024 + offset + field;
        let bitmap = u32::from_le_bytes(image[at..at + 4].try_into().unwrap());
        let mut data = image[usize::try_from(bitmap).unwrap() * 1024..][..1024].to_vec();
        data[20] ^= 0x10;
        let damaged = super::device(image.clone());
        let write = BlockWrite { block: BlockNo(u64::from(bitmap)), kind: BlockKind::Data, data: &data };
        damaged.write(&[write]).unwrap();
        let before = damaged.image();
        let refused = shrink(&*damaged, blocks_of(&*damaged) * 3 / 4).unwrap_err().to_string();
        assert!(refused.contains(what) && refused.contains("checksum"), "{refused}");
        assert!(damaged.image() == before, "{what}: something is written");
    }
}

#[test]
fn names_with_a_wrong_sum_are_not_summed_again() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("ext4-shrink-names");
    let Some((image, _)) = kernel::scattered(&scratch, &made(&scratch, &["-b", "1024", "-g", "2048"])) else {
        return;
    };
    // The first name in blocks of names that end with a tail is another one, and they are summed as before.
    let is_leaf = |block: &[u8]| block[1016..1020] == [0x0c, 0, 0, 0xde];
    let mut damaged = image;
    let mut count = 0;
    for block in damaged.chunks_mut(1024).filter(|block| is_leaf(block) && block[8] == b'a') {
        block[9] ^= 1;
        count += 1;
    }
    assert!(count > 30, "{count} leaves");
    let device = device(damaged);
    let found = |device: &MemDevice| {
        let findings = check_ext2(device).unwrap().findings;
        findings.iter().filter(|finding| finding.text.contains("sum")).count()
    };
    let before = found(&device);
    assert!(before > 0);
    let refused = shrink(&*device, blocks_of(&*device) * 62 / 100).unwrap_err().to_string();
    assert!(refused.contains("checksum"), "{refused}");
    recovered(&*device);
    assert_eq!(found(&device), before, "what is wrong is called wrong still");
}
