//! Planted damage: each is found under its own name, the reference agrees, and mending leaves nothing for either and
//! loses no more files than the reference does.
//!
//! With `sealed` the sums are made right again, so that what is found is the damage itself; without, the sum is as wrong as
//! whatever it covers.

mod inside;

use std::cmp::Ordering;

use fstitch_core::{Le, MemDevice};
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::ext2::file_map;
use fstitch_fs::ext2::layout::checksum::seal_superblock;
use fstitch_fs::ext2::layout::extent::{
    EE_BLOCK, EE_LEN, EE_START_LO, EH_DEPTH, EH_ENTRIES, EH_MAGIC, EI_BLOCK,
};
use fstitch_fs::ext2::layout::feature::{incompat, ro_compat};
use fstitch_fs::ext2::layout::inode::{
    EA_INODE_FL, EXTENTS_FL, I_ATIME, I_BLOCK, I_BLOCKS, I_BLOCKS_HIGH, I_CHECKSUM_LO, I_EXTRA_ISIZE,
    I_FILE_ACL, I_FLAGS, I_MODE, I_SIZE, INLINE_DATA_FL,
};
use fstitch_fs::ext2::layout::superblock::{S_BLOCKS_COUNT, S_FEATURE_INCOMPAT, S_FEATURE_RO_COMPAT, S_UUID};

use super::corpus::{filled, shape};
use super::image::{Image, mended};
use super::used::{kept, use_for_reading};
use crate::support::{Scratch, e2fsck, e2fsck_image, have, run};

/// Damage to an image, and the code of a finding that it must lead to.
struct Case {
    name: &'static str,
    code: &'static str,
    damage: fn(&mut Image),
    /// The reference does not mind.
    tolerated: bool,
}

const fn case(name: &'static str, code: &'static str, damage: fn(&mut Image)) -> Case {
    Case { name, code, damage, tolerated: false }
}

/// Puts a number where a first block of a directory has a length.
fn first_names<const AT: usize, const LEN: u16>(image: &mut Image) {
    let block = image.file_block("d1", 0);
    Le::put_u16(image.block(block), AT, LEN);
    image.seal_leaf("d1", block);
}

/// Changes an inode and makes its sum right.
fn inode(image: &mut Image, name: &str, change: fn(&mut [u8])) {
    change(image.inode_bytes(name));
    image.seal_inode(name);
}

/// Changes the first node of depth `depth` below the root of `deep` and makes its sum right.
fn node(image: &mut Image, depth: u32, change: fn(&mut [u8])) {
    let block = image.node("deep", depth);
    change(image.block(block));
    image.seal_node("deep", block);
}

/// Has the extent in this place from a node's end on be far behind the end of `deep`.
fn far_behind(image: &mut Image, block: u64, from_end: usize) {
    let raw = image.block(block);
    let at = FIRST + 12 * (usize::from(EH_ENTRIES.get(raw)) - from_end);
    EE_BLOCK.put(&mut raw[at..], 0xffff_0000);
    image.seal_node("deep", block);
}

/// Changes a leaf of a directory and makes its sum right.
fn leaf(image: &mut Image, name: &str, at: u32, change: fn(&mut [u8])) {
    let block = image.file_block(name, at);
    change(image.block(block));
    image.seal_leaf(name, block);
}

/// A root that leads to a node, which belongs to another file.
pub fn claim_node(image: &mut Image, name: &str, depth: u16, node: u32) {
    let root = &mut image.inode_bytes(name)[ROOT..];
    EH_DEPTH.put(root, depth);
    EH_ENTRIES.put(root, 1);
    EI_BLOCK.put(&mut root[FIRST..], 0);
    Le::put_u32(root, FIRST + 4, node);
    Le::put_u32(root, FIRST + 8, 0);
    image.seal_inode(name);
}

/// The first entry of a node or a root, behind its header.
pub const FIRST: usize = 12;
const SECOND: usize = 24;
const ROOT: usize = I_BLOCK.offset();

const CASES: &[Case] = &[
    // Sums alone.
    case("the sum of the superblock", "superblock-damaged", |image| image.superblock()[1020] ^= 1),
    // All other sums are made with it.
    case("another identifier", "superblock-seed", |image| {
        image.superblock()[S_UUID + 1] ^= 1;
        seal_superblock(image.superblock());
    }),
    case("a seed that nobody ever used", "superblock-seed", |image| {
        let raw = image.superblock();
        S_FEATURE_INCOMPAT.put(raw, S_FEATURE_INCOMPAT.get(raw) | incompat::CSUM_SEED);
        seal_superblock(raw);
    }),
    case("another identifier, and a table that is not there", "superblock-seed", |image| {
        place(image, 1, 8, |at| at + 0x0008_0000);
        image.superblock()[S_UUID + 1] ^= 1;
        seal_superblock(image.superblock());
    }),
    case("the sum of a descriptor", "group-descriptor", |image| image.descriptor(0)[30] ^= 1),
    case("the sum of a block bitmap", "bitmap-sum", |image| {
        image.descriptor(0)[24] ^= 1;
        image.seal_descriptor(0);
    }),
    case("the sum of an inode bitmap", "bitmap-sum", |image| {
        image.descriptor(0)[26] ^= 1;
        image.seal_descriptor(0);
    }),
    case("the sum of an inode", "inode-sum", |image| {
        image.inode_bytes("small1")[I_CHECKSUM_LO.offset()] ^= 1;
    }),
    case("the sum of a node", "extent-sum", |image| {
        let block = image.node("deep", 1);
        image.block(block)[1020] ^= 1;
    }),
    case("the sum of a leaf", "dir-sum", |image| {
        let block = image.file_block("d1", 0);
        image.block(block)[1020] ^= 1;
    }),
    case("the sum of an index", "dir-sum", |image| {
        let block = image.file_block("many", 0);
        image.block(block)[1020] ^= 1;
    }),
    case("the sum of an attribute block", "xattr-sum", |image| {
        let block = Le::u32(image.inode_bytes("small5"), I_FILE_ACL.offset());
        image.block(u64::from(block))[16] ^= 1;
    }),
    // Contents with the sums that they had.
    case("the length of a file, unsealed", "inode-sum", |image| {
        I_SIZE.put(image.inode_bytes("small4"), 3);
    }),
    case("a name, unsealed", "dir-sum", |image| {
        let block = image.file_block("d1", 0);
        image.block(block)[24 + 8] = b'q';
    }),
    case("garbage over a block of inodes", "inode-garbage", |image| {
        let (_, at) = image.inode("small20");
        let block = at / 1024 * 1024;
        let mut seed = fstitch_core::Seed::new(1);
        for byte in &mut image.bytes[block..block + 1024] {
            *byte = u8::try_from(seed.below(256)).expect("a byte");
        }
    }),
    // The names behind are where they were.
    case("no length of the first name", "dir-first-names", first_names::<4, 0>),
    case("a first name longer than its block", "dir-first-names", first_names::<4, 0xc70c>),
    case("a first name over the second one", "dir-first-names", first_names::<4, 24>),
    case("no length of the second name", "dir-first-names", first_names::<16, 0>),
    case("no lengths of the first name", "dir-first-names", |image| {
        first_names::<4, 0>(image);
        first_names::<6, 0>(image);
    }),
    case("a second name longer than itself", "dir-first-names", first_names::<18, 0x242>),
    case("no tail in a leaf", "dir-tail", |image| {
        let block = image.file_block("d1", 0);
        image.block(block)[1024 - 12 + 7] = 0;
    }),
    // Extents.
    case("the magic of a root", "extent-node", |image| {
        inode(image, "deep", |raw| EH_MAGIC.put(&mut raw[ROOT..], 0xf30b));
    }),
    case("too deep a root", "extent-node", |image| {
        inode(image, "deep", |raw| EH_DEPTH.put(&mut raw[ROOT..], 9));
    }),
    case("too many entries in a root", "extent-node", |image| {
        inode(image, "indirect", |raw| EH_ENTRIES.put(&mut raw[ROOT..], 5));
    }),
    case("the magic of a node", "extent-node", |image| node(image, 2, |raw| EH_MAGIC.put(raw, 1))),
    Case {
        tolerated: true,
        ..case("the depth of a node", "extent-node", |image| node(image, 2, |raw| EH_DEPTH.put(raw, 3)))
    },
    case("no entries in a node", "extent-node", |image| node(image, 2, |raw| EH_ENTRIES.put(raw, 0))),
    case("an index entry beside its node", "extent-index", |image| {
        node(image, 1, |raw| EI_BLOCK.put(&mut raw[SECOND..], 5));
    }),
    case("an extent behind its place", "extent-order", |image| {
        node(image, 2, |raw| EE_BLOCK.put(&mut raw[FIRST..], 60_000));
    }),
    case("an extent over the next", "extent-order", |image| {
        node(image, 2, |raw| EE_LEN.put(&mut raw[FIRST..], 9))
    }),
    // Nothing else speaks against either of the two.
    case("an extent in the place of the one before", "extent-order", |image| {
        node(image, 2, |raw| {
            let place = EE_BLOCK.get(&raw[FIRST..]);
            EE_BLOCK.put(&mut raw[SECOND..], place);
        });
    }),
    case("an extent far behind the end, and not the last", "extent-order", |image| {
        // In the last node, where none above speaks against it.
        let block = image.nodes("deep", 2).pop().expect("a node");
        far_behind(image, block, 2);
    }),
    case("an extent far behind the end, the last of its node", "extent-order", |image| {
        let block = image.node("deep", 2);
        far_behind(image, block, 1);
    }),
    case("a directory whose only block is far away", "dir-extent", |image| {
        inode(image, "d3", |raw| EE_BLOCK.put(&mut raw[ROOT + FIRST..], 0xd700));
    }),
    case("lost+found without its blocks", "dir-without-blocks", |image| {
        inode(image, "lost+found", |raw| EE_START_LO.put(&mut raw[ROOT + FIRST..], 0x0fff_0000));
    }),
    case("a target in a link by its length, and extents by its flag", "inode-extents-flag", |image| {
        inode(image, "fast", |raw| I_FLAGS.put(raw, EXTENTS_FL));
    }),
    case("an extent of no blocks", "pointer-invalid", |image| {
        node(image, 2, |raw| EE_LEN.put(&mut raw[FIRST..], 0))
    }),
    case("an extent outside the volume", "pointer-invalid", |image| {
        node(image, 2, |raw| EE_START_LO.put(&mut raw[FIRST..], 0x0fff_0000));
    }),
    case("an extent over metadata", "block-shared", |image| {
        node(image, 2, |raw| EE_START_LO.put(&mut raw[FIRST..], 3));
    }),
    case("an extent of another file's blocks", "block-shared", |image| {
        let other = u32::try_from(image.file_block("indirect", 3)).expect("small");
        let block = image.node("deep", 2);
        EE_START_LO.put(&mut image.block(block)[FIRST..], other);
        image.seal_node("deep", block);
    }),
    case("a node of another file's", "block-shared", |image| {
        let other = u32::try_from(image.node("deep", 1)).expect("small");
        claim_node(image, "holes", 2, other);
    }),
    case("an unwritten extent of a directory", "dir-extent", |image| {
        inode(image, "d1", |raw| EE_LEN.put(&mut raw[ROOT + FIRST..], 0x8001));
    }),
    case("a directory that begins late", "dir-hole", |image| {
        inode(image, "d1", |raw| EE_BLOCK.put(&mut raw[ROOT + FIRST..], 3));
    }),
    case("no flag of extents", "inode-extents-flag", |image| {
        inode(image, "indirect", |raw| I_FLAGS.put(raw, I_FLAGS.get(raw) & !EXTENTS_FL));
    }),
    case("a file that became a pipe", "inode-mode-not-file", |image| {
        inode(image, "indirect", |raw| I_MODE.put(raw, 0o010_644));
    }),
    case("a file of an impossible kind", "inode-mode-not-file", |image| {
        inode(image, "deep", |raw| I_MODE.put(raw, 0o170_644));
    }),
    case("extents of a pipe", "inode-bad-special", |image| {
        inode(image, "fifo", |raw| I_FLAGS.put(raw, EXTENTS_FL));
    }),
    case("written blocks behind the end", "blocks-beyond-size", |image| {
        inode(image, "indirect", |raw| I_SIZE.put(raw, 1000));
    }),
    // One that e2fsck lets pass where no nodes are.
    case("the last block of a tree with nodes behind the end", "blocks-beyond-size", |image| {
        assert_eq!(image.shape.block_size, 1024);
        inode(image, "deep", |raw| I_SIZE.put(raw, (I_SIZE.get(raw) - 1) / 1024 * 1024));
    }),
    case("another count of blocks", "inode-block-count", |image| {
        inode(image, "indirect", |raw| I_BLOCKS.put(raw, 6));
    }),
    case("another count of the resize inode's blocks, in its high half", "inode-block-count", |image| {
        inode(image, "<7>", |raw| I_BLOCKS_HIGH.put(raw, 0x80));
    }),
    // Groups.
    case("a table that is not there", "group-descriptor", |image| {
        Le::put_u32(image.descriptor(1), 8, 0x00ff_ffff);
        image.seal_descriptor(1);
    }),
    case("a descriptor of zeros", "group-descriptor", |image| image.descriptor(1).fill(0)),
    case("a bitmap that says it was never written", "block-marked-free", |image| {
        image.descriptor(1)[18] |= 2;
        image.seal_descriptor(1);
    }),
    case("inodes in use that were never used", "inode-unseen", |image| {
        let per_group = u16::try_from(image.shape.inodes_per_group).expect("few");
        Le::put_u16(image.descriptor(0), 28, per_group - 20);
        image.seal_descriptor(0);
    }),
    // Directories.
    case("an entry beyond its block", "dirent-structure", |image| {
        leaf(image, "d1", 0, |raw| Le::put_u16(raw, 24 + 4, 2000));
    }),
    case("an entry of an inode that is free", "dirent-unused-inode", |image| {
        leaf(image, "d1", 0, |raw| Le::put_u32(raw, 24, 1800));
    }),
    case("hashes out of order in an index", "index-bad", |image| {
        let block = image.file_block("many", 0);
        Le::put_u32(image.block(block), 32 + 8, 0xffff_0000);
        image.seal_index("many", block, 32);
    }),
    case("an unknown hash", "index-bad", |image| {
        let block = image.file_block("many", 0);
        image.block(block)[28] = 9;
        image.seal_index("many", block, 32);
    }),
    // Inodes.
    case("too many extra bytes", "inode-extra-size", |image| {
        I_EXTRA_ISIZE.put(image.inode_bytes("small1"), 200);
        image.seal_inode("small1");
    }),
    case("an attribute block that is none", "xattr-bad-block", |image| {
        let other = u32::try_from(image.file_block("indirect", 0)).expect("small");
        I_FILE_ACL.put(image.inode_bytes("small1"), other);
        image.seal_inode("small1");
    }),
    case("the hash of an attribute", "xattr-bad-block", |image| {
        let block = u64::from(Le::u32(image.inode_bytes("small5"), I_FILE_ACL.offset()));
        image.block(block)[32 + 12] ^= 1;
    }),
];

/// Cases for a volume of one group, which has no copies.
const ALONE: &[Case] = &[
    case("another place of a block bitmap", "group-descriptor", |image| {
        Le::put_u32(image.descriptor(0), 0, 5426)
    }),
    case("another place of an inode bitmap", "group-descriptor", |image| {
        Le::put_u32(image.descriptor(0), 4, 5430)
    }),
    case("another place of the table, sealed", "group-descriptor", |image| place(image, 0, 8, |_| 255)),
    case("another place of a block bitmap, sealed", "group-descriptor", |image| place(image, 0, 0, |_| 4557)),
];

/// Cases where a block of an index is none once it is mended.
const INDEXES: &[Case] = &[
    case("a root of an index without its first name", "dir-first-names", |image| {
        let block = image.file_block("many", 0);
        image.block(block)[8] = b'x';
        image.seal_index("many", block, 32);
    }),
    case("a root of an index that ends early", "index-bad", |image| {
        let block = image.file_block("many", 0);
        Le::put_u16(image.block(block), 12 + 4, 1000);
        image.seal_index("many", block, 32);
    }),
];

/// How the files that we keep compare with those that the reference keeps, or what is wrong.
fn judge(scratch: &Scratch, healthy: &[u8], case: &Case) -> Result<Option<Ordering>, String> {
    let name = case.name;
    let mut image = Image::new(scratch, healthy.to_vec());
    (case.damage)(&mut image);
    assert!(image.bytes != healthy, "{name}: nothing was damaged");
    let report = check_ext2(&MemDevice::from_image(1024, image.bytes.clone())).expect("readable");
    if report.corrupt == 0 || report.findings.iter().all(|found| found.code != case.code) {
        return Err(format!("{name}: {:#?}", report.findings));
    }
    let (code, text) = e2fsck_image(scratch, "judge", &image.bytes);
    // Of some sums it says that they are wrong, and answers 0 all the same.
    let objects = code != 0 || text.contains("? no");
    if objects == case.tolerated {
        return Err(format!("{name}: the reference says {text}"));
    }
    let mended = mended(scratch, name, image.bytes).map_err(|unmended| unmended.text)?;
    if mended.verdict.0 != 0 {
        return Err(format!("{name}, mended: the reference says {}", mended.verdict.1));
    }
    let Some((files, image)) = mended.reference else { return Ok(None) };
    let before = use_for_reading(healthy.to_vec());
    let (ours, theirs) = (kept(&before, &mended.image), kept(&before, &image));
    // One file more may be what another one's contents cost: which of two has a node is anybody's guess.
    let spared = usize::try_from(mended.files - files).unwrap_or(0);
    if mended.files < files || ours + spared < theirs {
        let ours = format!("{} files, {ours} with their contents", mended.files);
        return Err(format!("{name}: {ours}; the reference keeps {files}, {theirs} with their contents"));
    }
    Ok(Some(mended.files.cmp(&files)))
}

fn check(shape_name: &str, cases: &[Case]) {
    let scratch = Scratch::new(&format!("ext4-damage-{shape_name}"));
    let Some(healthy) = filled(&scratch, shape(shape_name)) else { return };
    let judged: Vec<_> = cases.iter().map(|case| judge(&scratch, &healthy, case)).collect();
    let count = |order| judged.iter().filter(|found| **found == Ok(Some(order))).count();
    let (same, more) = (count(Ordering::Equal), count(Ordering::Greater));
    println!("{shape_name}: as many files kept as by the reference {same}, more {more}");
    let failures: Vec<&String> = judged.iter().filter_map(|found| found.as_ref().err()).collect();
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn planted_damage_is_found_by_name_and_mended() {
    check("1k", CASES);
}

#[test]
fn without_copies_the_sums_say_where_bitmaps_are() {
    check("4k", ALONE);
}

#[test]
fn an_extent_far_behind_the_end_costs_no_other() {
    let scratch = Scratch::new("ext4-far-extent");
    let Some(healthy) = filled(&scratch, shape("1k")) else { return };
    let mut image = Image::new(&scratch, healthy.clone());
    let number = u64::from(image.inode("deep").0);
    let runs = |bytes: &[u8]| {
        let map = file_map::read(&MemDevice::from_image(1024, bytes.to_vec()), number).expect("a file");
        map.runs
    };
    let before = runs(&healthy);
    let (block, first) = (image.nodes("deep", 2).pop().expect("a node"), image.node("deep", 2));
    for (block, from_end) in [(block, 2), (block, 3), (first, 1), (first, 2)] {
        let name = format!("node {block}, {from_end} from its end");
        image.bytes.clone_from(&healthy);
        far_behind(&mut image, block, from_end);
        let report = mended(&scratch, &name, image.bytes.clone()).map_err(|unmended| unmended.text);
        let after = runs(&report.expect("mended").image);
        let lost = before.iter().filter(|run| !after.contains(run)).count();
        assert_eq!((lost, after.len()), (1, before.len() - 1), "{name}: {after:?}");
    }
}

/// A word of the descriptor of `group` that is another one, with the right sum.
fn place(image: &mut Image, group: u32, field: usize, change: fn(u32) -> u32) {
    let raw = image.descriptor(group);
    let word = change(Le::u32(raw, field));
    Le::put_u32(raw, field, word);
    image.seal_descriptor(group);
}

/// Bitmaps and tables that are said to be elsewhere, and groups that are said never to have been used.
const PLACES: &[Case] = &[
    case("a bitmap over the one before", "group-descriptor", |image| place(image, 1, 0, |block| block - 1)),
    case("inodes' bitmap over another", "group-descriptor", |image| place(image, 1, 4, |block| block - 1)),
    case("a bitmap in a table", "group-descriptor", |image| place(image, 0, 0, |_| 2121)),
    case("a table over the next one", "group-descriptor", |image| place(image, 0, 8, |block| block + 256)),
    case("a table one block further", "group-descriptor", |image| place(image, 0, 8, |block| block + 1)),
    case("the table of a group without inodes elsewhere", "group-descriptor", |image| {
        place(image, 2, 8, |block| block + 256);
    }),
    case("the first group unused", "group-descriptor", |image| {
        image.descriptor(0)[18] |= 1;
        image.seal_descriptor(0);
    }),
    case("the last group's bitmap unused", "group-descriptor", |image| {
        image.descriptor(2)[18] |= 2;
        image.seal_descriptor(2);
    }),
];

#[test]
fn without_a_free_inode_there_is_no_lost_and_found() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("ext4-no-inode");
    let path = scratch.path("image");
    let file = path.to_str().expect("plain path");
    let (code, text) = run("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "1024", "-N", "16", file, "4M"]);
    assert_eq!(code, 0, "{text}");
    let text = e2fsck(&path).1;
    let inodes: i64 =
        text.rsplit(" files").nth(1).and_then(|text| text.rsplit('/').next()?.parse().ok()).expect("a count");
    let mut wanted = vec!["rmdir lost+found".to_owned()];
    wanted.extend((0..inodes - 10).map(|at| format!("mkdir d{at}")));
    for command in &wanted {
        run("debugfs", &["-w", "-R", command, file]);
    }
    // Some damage, or nothing is mended at all.
    let mut image = Image::new(&scratch, std::fs::read(&path).expect("the image"));
    image.inode_bytes("d1")[I_CHECKSUM_LO.offset()] ^= 1;
    let mended = mended(&scratch, "no inode", image.bytes).map_err(|unmended| unmended.text).expect("mended");
    assert_eq!((mended.verdict.0, mended.files), (0, inodes), "{}", mended.verdict.1);
}

#[test]
fn other_places_of_bitmaps_and_tables_are_not_believed() {
    check("1k", PLACES);
}

/// Has the table of group 2 lie in a group that was never written. Which one the kernel leaves so is up to it.
fn table_in_unwritten(image: &mut Image) {
    let groups = image.shape.group_count();
    let unwritten = (3..groups).rev().find(|&group| image.descriptor(group)[18] & 2 != 0);
    let start = image.shape.group_start(unwritten.expect("a group that was never written"));
    Le::put_u32(image.descriptor(2), 8, u32::try_from(start + 2547).expect("small"));
    image.seal_descriptor(2);
}

#[test]
fn a_group_with_the_table_of_another_one_has_a_bitmap() {
    let elsewhere = case("a table in a group that was never written", "block-marked-free", |image| {
        // The copy says the same: that it would be elsewhere as made tells nothing.
        let (block, offset) = image.shape.descriptor_place(2);
        let copy = image.shape.group_start(1) + block - image.shape.first_data_block();
        table_in_unwritten(image);
        let len = image.shape.descriptor_size();
        let raw = image.descriptor(2).to_vec();
        image.block(copy)[offset..offset + len].copy_from_slice(&raw);
    });
    let alone = case(
        "a table in a group that was never written, says one descriptor",
        "group-descriptor",
        table_in_unwritten,
    );
    check("uninit", &[elsewhere, alone]);
}

/// What only descriptors with sums can say.
const UNMEANT: &[Case] = &[
    case("all flags of a group", "group-flags", |image| image.descriptor(1)[18] = 0xff),
    case("a group whose inodes were never used", "group-flags", |image| image.descriptor(0)[18] = 1),
    case("a group whose bitmap was never written", "group-flags", |image| image.descriptor(1)[18] = 2),
    case("inodes that were never used", "group-flags", |image| Le::put_u16(image.descriptor(1), 28, 7)),
];

#[test]
fn without_sums_no_group_is_said_never_to_have_been_used() {
    check("no-sums", UNMEANT);
}

#[test]
fn a_volume_that_lost_its_sums_has_none_in_its_orphan_file() {
    let without = |image: &mut Image| {
        let raw = image.superblock();
        S_FEATURE_RO_COMPAT.put(raw, S_FEATURE_RO_COMPAT.get(raw) & !ro_compat::METADATA_CSUM);
    };
    check("orphan-file", &[case("no sums", "orphan-file", without)]);
}

#[test]
fn trees_in_directories_are_refused_by_name() {
    let scratch = Scratch::new("ext4-btree-dir");
    let Some(healthy) = filled(&scratch, shape("1k")) else { return };
    let mut image = Image::new(&scratch, healthy);
    let raw = image.superblock();
    S_FEATURE_RO_COMPAT.put(raw, S_FEATURE_RO_COMPAT.get(raw) | ro_compat::BTREE_DIR);
    seal_superblock(raw);
    let (code, text) = e2fsck_image(&scratch, "judge", &image.bytes);
    assert!(code >= 8 && text.contains("unsupported feature"), "{text}");
    let error = check_ext2(&MemDevice::from_image(1024, image.bytes)).expect_err("refused");
    assert!(error.to_string().contains("btree_dir"), "{error}");
}

#[test]
fn a_volume_that_is_larger_than_its_device_is_left_alone() {
    let scratch = Scratch::new("ext4-truncated");
    let Some(healthy) = filled(&scratch, shape("4k")) else { return };
    let mut image = Image::new(&scratch, healthy);
    let raw = image.superblock();
    S_BLOCKS_COUNT.put(raw, S_BLOCKS_COUNT.get(raw) + 1);
    seal_superblock(raw);
    let device = MemDevice::from_image(1024, image.bytes.clone());
    let report = crate::repair::repair(&device, fstitch_core::RepairMode::Yes).expect("readable");
    let left: Vec<_> = report.left.findings.iter().map(|found| found.code).collect();
    assert_eq!(left, ["superblock-damaged"]);
    assert!(device.image() == image.bytes, "a copy that ends early would lose its rest");
}

/// Extents that have the file block that no file can have, which nothing else speaks against.
const LAST: &[Case] = &[
    case("the only extent", "extent-order", |image| {
        inode(image, "small20", |raw| EE_BLOCK.put(&mut raw[ROOT + FIRST..], u32::MAX));
    }),
    case("the last extent of a node", "extent-order", |image| {
        let block = image.node("unwritten", 1);
        EE_BLOCK.put(&mut image.block(block)[FIRST + 5 * 12..], u32::MAX);
        EE_LEN.put(&mut image.block(block)[FIRST + 5 * 12..], 1);
        image.seal_node("unwritten", block);
    }),
];

#[test]
fn no_extent_has_the_last_number_of_a_file_block() {
    check("1k", LAST);
}

/// The inode of a file as one that holds the quotas of somebody.
fn quota(image: &mut Image, field: usize) {
    let ino = image.inode("small28").0;
    let raw = image.superblock();
    Le::put_u32(raw, field, ino);
    seal_superblock(raw);
}

#[test]
fn without_the_feature_no_inode_has_quotas() {
    const QUOTAS: &[Case] = &[
        case("quotas of users", "superblock-quota", |image| quota(image, 0x240)),
        case("quotas of groups", "superblock-quota", |image| quota(image, 0x244)),
        case("quotas of projects", "superblock-quota", |image| quota(image, 0x26c)),
    ];
    check("1k", QUOTAS);
    check("no-sums", QUOTAS);
}

#[test]
fn one_extent_that_speaks_against_all_others_is_the_one_that_goes() {
    let scratch = Scratch::new("ext4-outlier");
    let Some(healthy) = filled(&scratch, shape("1k")) else { return };
    let blocks = |bytes: &[u8], ino: u32| -> u64 {
        let device = MemDevice::from_image(1024, bytes.to_vec());
        file_map::read(&device, u64::from(ino)).expect("a map").runs.iter().map(|run| run.blocks).sum()
    };
    let damages: [fn(&mut [u8]); 4] = [
        |raw| EE_BLOCK.put(&mut raw[SECOND..], u32::MAX - 1),
        // A file that had this block would be longer than files can be.
        |raw| EE_BLOCK.put(&mut raw[SECOND..], u32::MAX),
        |raw| EE_LEN.put(&mut raw[FIRST..], 0x7fff),
        |raw| EE_LEN.put(&mut raw[FIRST..], 0xffff),
    ];
    for damage in damages {
        let mut image = Image::new(&scratch, healthy.clone());
        let ino = image.inode("deep").0;
        let before = blocks(&image.bytes, ino);
        node(&mut image, 2, damage);
        let device = MemDevice::from_image(1024, image.bytes);
        let report = crate::repair::repair(&device, fstitch_core::RepairMode::Yes).expect("readable");
        assert!(report.left.is_clean(), "{:#?}", report.left.findings);
        let after = blocks(&device.image(), ino);
        assert!(after + 1 >= before, "{before} blocks, {after} are left");
    }
}

/// The entry of the last written block in the node of `unwritten`, which has one more extent behind it.
const LAST_BUT_ONE: usize = FIRST + 4 * 12;

/// Extents that have most of the volume, and so more than could be copied.
const ENDLESS: &[Case] = &[
    case("an extent over the last one and the blocks of others", "extent-order", |image| {
        let block = image.node("unwritten", 1);
        EE_LEN.put(&mut image.block(block)[LAST_BUT_ONE..], 0x51bc);
        image.seal_node("unwritten", block);
    }),
    case("an extent over the last one and the end of the volume", "extent-order", |image| {
        let block = image.node("unwritten", 1);
        EE_LEN.put(&mut image.block(block)[LAST_BUT_ONE..], 0x7fff);
        image.seal_node("unwritten", block);
    }),
    case("a last extent of others' blocks", "block-shared", |image| {
        inode(image, "small20", |raw| {
            EE_LEN.put(&mut raw[ROOT + FIRST..], 20_000);
            EE_START_LO.put(&mut raw[ROOT + FIRST..], 1500);
        });
    }),
    case("extents of others' blocks", "block-shared", |image| {
        let block = image.node("unwritten", 1);
        for entry in image.block(block)[FIRST..][..6 * 12].chunks_exact_mut(12) {
            EE_START_LO.put(entry, 100);
        }
        EE_LEN.put(&mut image.block(block)[FIRST + 5 * 12..], 20_000);
        image.seal_node("unwritten", block);
    }),
    case("an extent over the end of its file and the blocks of others", "extent-order", |image| {
        inode(image, "small20", |raw| EE_LEN.put(&mut raw[ROOT + FIRST..], 0x51bc));
    }),
    case("an extent over the end of its file and of the volume", "extent-order", |image| {
        inode(image, "small20", |raw| EE_LEN.put(&mut raw[ROOT + FIRST..], 0x7fff));
    }),
];

#[test]
fn extents_of_more_than_could_be_copied_are_mended() {
    check("1k", ENDLESS);
    check("no-sums", ENDLESS);
}

/// A superblock that lacks an incompatible feature.
fn without_feature(image: &mut Image, feature: u32) {
    let raw = image.superblock();
    let word = Le::u32(raw, 0x60) & !feature;
    Le::put_u32(raw, 0x60, word);
    seal_superblock(raw);
}

const WITHOUT_EXTENTS: Case =
    case("extents are no feature", "feature-lost", |image| without_feature(image, 0x40));

#[test]
fn a_name_longer_than_its_entry_costs_no_other() {
    let long = case("a name of 255 bytes in an entry of fewer", "dirent-structure", |image| {
        let block = image.file_block("many", 2);
        let mut at = 0;
        // The third entry of a leaf, with many behind it.
        for _ in 0..2 {
            at += usize::from(Le::u16(&image.block(block)[at..], 4));
        }
        image.block(block)[at + 6] = 255;
        image.seal_leaf("many", block);
    });
    check("1k", std::slice::from_ref(&long));
    check("4k", &[long]);
}

#[test]
fn a_short_file_is_no_link_by_its_mode() {
    let link = case("a file of seven bytes is a link", "symlink-bad", |image| {
        inode(image, "small1", |raw| I_MODE.put(raw, 0o120_777));
    });
    check("1k", std::slice::from_ref(&link));
    check("no-sums", &[link]);
}

#[test]
fn a_link_without_blocks_has_no_target() {
    let link = case("a link whose map is empty", "symlink-bad", |image| {
        inode(image, "link70", |raw| EH_ENTRIES.put(&mut raw[ROOT..], 0));
    });
    check("1k", &[link]);
}

/// Without a feature what it means is not damage in every inode.
#[test]
fn features_that_a_superblock_lost_are_seen_in_inodes() {
    let wide = case("64bit is no feature", "superblock-damaged", |image| without_feature(image, 0x80));
    let inside =
        case("contents inside are no feature", "feature-lost", |image| without_feature(image, 0x8000));
    check("1k", &[WITHOUT_EXTENTS, wide]);
    check("no-sums", &[WITHOUT_EXTENTS]);
    check("inline", &[WITHOUT_EXTENTS, inside]);
}

#[test]
fn meta_groups_that_begin_behind_all_groups_are_not_believed() {
    check(
        "meta-bg",
        &[case("the first meta group", "superblock-damaged", |image| {
            let raw = image.superblock();
            Le::put_u16(raw, 0x104, 0x9568);
            seal_superblock(raw);
        })],
    );
}

#[test]
fn what_is_no_index_any_more_ends_like_a_leaf() {
    check("1k", INDEXES);
}

#[test]
fn a_wrong_sum_of_something_sound_loses_nothing() {
    let scratch = Scratch::new("ext4-sums");
    let Some(healthy) = filled(&scratch, shape("1k")) else { return };
    for case in CASES.iter().take(9) {
        let mut image = Image::new(&scratch, healthy.clone());
        (case.damage)(&mut image);
        let device = MemDevice::from_image(1024, image.bytes);
        crate::repair::repair(&device, fstitch_core::RepairMode::Yes).expect("readable");
        let report = check_ext2(&device).expect("readable");
        assert!(report.is_clean(), "{}: {:#?}", case.name, report.findings);
        let differing = device.image().iter().zip(&healthy).filter(|(a, b)| a != b).count();
        // A node is made anew elsewhere, with its bits and counts; all else is right byte by byte.
        assert!(
            differing < if case.code == "extent-sum" { 40_000 } else { 12 },
            "{}: {differing}",
            case.name
        );
    }
}
