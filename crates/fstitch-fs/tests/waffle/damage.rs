//! Damaged volumes: whatever is changed is found, and nothing panics.

use std::sync::Arc;

use fstitch_core::{FileSystem, InodeNo, MemDevice, Seed};
use fstitch_fs::waffle::layout::inode::{INODE_BYTES, Slot};
use fstitch_fs::waffle::layout::pointer::{Fork, Ref};
use fstitch_fs::waffle::layout::record::{RECORD_BYTES, Record};
use fstitch_fs::waffle::layout::{BLOCK, ROOT_PLACES, sum};
use fstitch_fs::waffle::{Options, Root, Waffle, check};

use crate::mend::{mend, mended};
use crate::rig::{CALLER, contents, file, made_with, mount, mount_with, names, text};

const BLOCKS: u64 = 512;

/// A volume with something of everything.
pub fn populated() -> Vec<u8> {
    populated_with(false)
}

pub fn populated_with(is_compressed: bool) -> Vec<u8> {
    let device = made_with(BLOCKS, is_compressed);
    let fs = mount(&device);
    let dir = fs.mkdir(&CALLER, fs.root(), b"dir", 0o755).unwrap().attr.ino;
    for number in 0..200 {
        file(&fs, dir, &format!("a-name-that-takes-some-room-{number}"), b"x").unwrap();
    }
    let large = file(&fs, fs.root(), "large", &large_bytes(is_compressed)).unwrap();
    fs.setxattr(&CALLER, large, b"user.a", &[9; 6000], fstitch_core::XattrSetMode::Set).unwrap();
    let target = [b't'; 300];
    fs.symlink(&CALLER, fs.root(), b"long", &target).unwrap();
    fs.symlink(&CALLER, fs.root(), b"short", b"dir").unwrap();
    for number in 0..60 {
        fs.unlink(&CALLER, dir, format!("a-name-that-takes-some-room-{number}").as_bytes()).unwrap();
    }
    fs.sync().unwrap();
    fs.tmpfile(&CALLER, fs.root(), 0o600).unwrap();
    fs.tmpfile(&CALLER, fs.root(), 0o600).unwrap();
    fs.sync().unwrap();
    device.image()
}

fn large_bytes(is_compressed: bool) -> Vec<u8> {
    if is_compressed { text(700_000, 3) } else { vec![3; 700_000] }
}

pub fn block(image: &mut [u8], number: u64) -> Option<&mut [u8]> {
    let at = usize::try_from(number).ok()?.checked_mul(BLOCK)?;
    image.get_mut(at..at + BLOCK)
}

/// What is done with a leaf: its bytes, the blocks that it was given, its number.
type Leaf<'a> = dyn FnMut(&mut [u8], &mut Vec<u64>, u64) + 'a;

/// A reference with this sum keeps it.
pub const WRONG: u64 = 0xbad;

/// Brings the sums above a tree's blocks up to date, so that what was changed there is believed; `seen` ends cycles.
fn reseal(image: &mut [u8], fork: Fork, seen: &mut Vec<u64>, leaf: &mut Leaf<'_>) -> Ref {
    reseal_at(image, fork.root, fork.height, seen, leaf)
}

fn reseal_at(image: &mut [u8], reference: Ref, level: u8, seen: &mut Vec<u64>, leaf: &mut Leaf<'_>) -> Ref {
    if reference.is_none() || reference.sum == WRONG || block(image, reference.block).is_none() || level > 8 {
        return reference;
    }
    if !seen.contains(&reference.block) {
        seen.push(reference.block);
        if level == 0 {
            leaf(image, seen, reference.block);
        } else {
            for slot in 0..128 {
                let below = Ref::slot(block(image, reference.block).unwrap(), slot);
                let below = reseal_at(image, below, level - 1, seen, leaf);
                below.write(block(image, reference.block).unwrap(), slot * 32);
            }
        }
    }
    Ref { sum: sum(block(image, reference.block).unwrap()), ..reference }
}

fn reseal_inodes(image: &mut [u8], seen: &mut Vec<u64>, number: u64) {
    for slot in 0..16 {
        let range = slot * INODE_BYTES..(slot + 1) * INODE_BYTES;
        let bytes = block(image, number).unwrap()[range.clone()].to_vec();
        let Ok(Slot::Used(mut inode)) = Slot::decode(&bytes, 1) else { continue };
        inode.data.root = reseal(image, inode.data, seen, &mut |_, _, _| ());
        inode.xattrs.root = reseal(image, inode.xattrs, seen, &mut |_, _, _| ());
        let new = &mut block(image, number).unwrap()[range];
        inode.data.root.write(new, 96);
        inode.xattrs.root.write(new, 128);
    }
}

fn reseal_records(image: &mut [u8], seen: &mut Vec<u64>, number: u64, inodes: &mut Leaf<'_>) {
    for slot in 0..8 {
        let range = slot * RECORD_BYTES..(slot + 1) * RECORD_BYTES;
        let bytes = block(image, number).unwrap()[range.clone()].to_vec();
        let record = Record::decode(&bytes, u32::try_from(slot).unwrap());
        let Ok(Some(record)) = record else { continue };
        let root = reseal(image, record.inodes, seen, inodes);
        root.write(&mut block(image, number).unwrap()[range], 40);
    }
}

/// All sums are right again.
pub fn believed(image: &mut [u8]) {
    believed_with(image, &mut reseal_inodes);
}

/// The same, but of what inodes say of blocks: these sums stay as they are.
pub fn believed_above(image: &mut [u8]) {
    believed_with(image, &mut |_, _, _| ());
}

fn believed_with(image: &mut [u8], inodes: &mut Leaf<'_>) {
    let Ok(Some(mut root)) = Root::find(image) else { return };
    let mut seen = Vec::new();
    root.trees.root = reseal(image, root.trees, &mut seen, &mut |image, seen, number| {
        reseal_records(image, seen, number, inodes);
    });
    root.shared.root = reseal(image, root.shared, &mut seen, &mut |_, _, _| ());
    if let Some(map) = block(image, root.map.block) {
        root.map.sum = sum(map);
    }
    let bytes = root.encode();
    block(image, root.place()).unwrap().copy_from_slice(&bytes);
}

fn findings(image: Vec<u8>) -> u64 {
    check::check(Arc::new(MemDevice::from_image(4096, image))).unwrap().corrupt
}

/// The blocks that something leads to, the valid root among them.
pub fn used(image: &[u8]) -> Vec<u64> {
    let root = Root::find(image).unwrap().unwrap();
    let at = usize::try_from(root.map.block).unwrap() * BLOCK;
    let map = &image[at..at + BLOCK];
    let mut used: Vec<u64> = (19..u64::try_from(image.len() / BLOCK).unwrap())
        .filter(|bit| map[*bit as usize / 8] >> (bit % 8) & 1 == 1)
        .collect();
    used.push(root.map.block);
    used
}

#[test]
fn a_changed_bit_in_any_block_is_found() {
    a_changed_bit_is_found_in(&populated());
    a_changed_bit_is_found_in(&populated_with(true));
}

fn a_changed_bit_is_found_in(image: &[u8]) {
    let image = image.to_vec();
    assert_eq!(findings(image.clone()), 0);
    let used = used(&image);
    assert!(used.len() > 90, "{}", used.len());
    for number in used {
        let mut damaged = image.clone();
        block(&mut damaged, number).unwrap()[1234] ^= 4;
        assert!(findings(damaged) > 0, "block {number}");
    }
    // A root that is damaged is none: the one before counts, all of which is there as long as nothing was written since.
    let mut damaged = image.clone();
    let root = Root::find(&image).unwrap().unwrap();
    block(&mut damaged, root.place()).unwrap()[200] ^= 1;
    assert_eq!(Root::find(&damaged).unwrap().unwrap().generation, root.generation - 1);
    block(&mut damaged, ROOT_PLACES[0]).unwrap()[0] = 0;
    block(&mut damaged, ROOT_PLACES[1]).unwrap()[0] = 0;
    assert!(findings(damaged) > 0);
}

/// What stays as it is when the others are mended: what contents and attributes have lost nobody can say.
const LOST: [&str; 6] = [
    "an inode of no kind",
    "bytes of attributes",
    "height of attributes",
    "a reference to contents",
    "a generation in a reference",
    "the end of inodes",
];

/// Damage that has right sums: what each structure says of others.
#[test]
fn what_does_not_fit_together_is_found() {
    let image = populated();
    let mut resealed = image.clone();
    believed(&mut resealed);
    assert!(resealed == image, "sums were right");
    let device = Arc::new(MemDevice::from_image(4096, image.clone()));
    let root = Root::find(&image).unwrap().unwrap();
    let records = root.trees.root.block;
    let record = Record::decode(&image[usize::try_from(records).unwrap() * BLOCK..][..RECORD_BYTES], 0);
    let inodes = record.unwrap().unwrap().inodes;
    assert_eq!(inodes.height, 1);
    let node = &image[usize::try_from(inodes.root.block).unwrap() * BLOCK..][..BLOCK];
    let (first, second) = (Ref::slot(node, 0).block, Ref::slot(node, 1).block);
    let large = {
        let fs = mount_with(&device, Options { read_only: true, ..Options::default() }).unwrap();
        let ino = fs.lookup(fs.root(), b"large").unwrap().attr.ino;
        ino.get()
    };
    let large_block = Ref::slot(node, usize::try_from(large / 16).unwrap()).block;
    let large_at = usize::try_from(large % 16).unwrap() * INODE_BYTES;
    // Block, byte, new value, and what is planted.
    let planted: Vec<(u64, usize, u8, &str)> = vec![
        (first, 256 + 4, 9, "links of the root directory"),
        (first, 256 + 32, 9, "names of the root directory"),
        (first, 256 + 40, 9, "blocks of the root directory"),
        (first, 256 + 160, 17, "the parent of the root directory"),
        (second, 4, 7, "links of an inode"),
        (second, 1, 0x81, "an inode's kind"),
        (second, 1, 0xf1, "an inode of no kind"),
        (large_block, large_at + 33, 0, "some blocks behind a file's end"),
        (large_block, large_at + 32, 0x10, "length within the last block"),
        (large_block, large_at + 34, 0, "all blocks behind a file's end"),
        (large_block, large_at + 40, 1, "blocks of a file"),
        (large_block, large_at + 184, 1, "bytes of attributes"),
        (large_block, large_at + 3, 0, "height of attributes"),
        (large_block, large_at + 96, 0xff, "a reference to contents"),
        (large_block, large_at + 104, 0xff, "a generation in a reference"),
        (records, 72, 1, "the end of inodes"),
        (records, 80, 17, "the free inodes"),
        (records, 88, 0, "inodes without names"),
        (records, 96, 3, "used inodes"),
        (records, 104, 3, "the number of inodes without names"),
        (root.map.block, 19 / 8 + 10, 0, "blocks that are free in the map"),
        (root.map.block, 60, 0xff, "blocks that are used in the map"),
    ];
    let (mut unseen, mut stays) = (Vec::new(), Vec::new());
    for (number, at, value, what) in planted {
        let mut damaged = image.clone();
        let byte = &mut block(&mut damaged, number).unwrap()[at];
        assert_ne!(*byte, value, "{what}");
        *byte = value;
        believed(&mut damaged);
        let (left, mended) = mended(damaged);
        if mended == 0 && left.is_empty() {
            unseen.push(what);
        }
        if !left.is_empty() {
            stays.push(what);
        }
    }
    assert!(unseen.is_empty(), "{unseen:?}");
    assert_eq!(stays, LOST);
}

/// What a compressed cluster's references and bytes may not say, with right sums.
#[test]
fn clusters_that_are_none_are_found() {
    let image = populated_with(true);
    let device = Arc::new(MemDevice::from_image(4096, image.clone()));
    let fs = mount_with(&device, Options { read_only: true, ..Options::default() }).unwrap();
    let ino = fs.lookup(fs.root(), b"large").unwrap().attr.ino;
    assert!(fs.getattr(ino).unwrap().blocks * 512 < 350_000, "it is compressed");
    // The node above the file's first leaves: the one block of references whose first is a compressed cluster's.
    let node = used(&image)
        .into_iter()
        .find(|&number| {
            let at = usize::try_from(number).unwrap() * BLOCK;
            let first = Ref::slot(&image[at..at + BLOCK], 0);
            first.flags == 2 && first.extra > 0 && first.block < BLOCKS
        })
        .unwrap();
    let at = usize::try_from(node).unwrap() * BLOCK;
    let slot = |n: usize| Ref::slot(&image[at..at + BLOCK], n);
    let count = slot(0).extra.div_ceil(4096) as usize;
    assert!((2..12).contains(&count) && slot(count).is_none(), "{count}");
    let planted: Vec<(&str, Vec<(usize, Ref)>)> = vec![
        ("no length", vec![(0, Ref { extra: 0, ..slot(0) })]),
        ("a length in fewer blocks", vec![(0, Ref { extra: 4096, ..slot(0) })]),
        ("a length beyond the blocks", vec![(0, Ref { extra: 60_000, ..slot(0) })]),
        ("a length beyond a cluster", vec![(0, Ref { extra: u32::MAX, ..slot(0) })]),
        ("the frame without its end", vec![(0, Ref { extra: slot(0).extra - 1, ..slot(0) })]),
        ("the first block alone is loose", vec![(0, Ref { flags: 0, extra: 0, ..slot(0) })]),
        ("the second block alone is loose", vec![(1, Ref { flags: 0, ..slot(1) })]),
        ("the second block says a length", vec![(1, Ref { extra: 1, ..slot(1) })]),
        (
            "blocks in another order",
            vec![(0, Ref { extra: slot(0).extra, ..slot(1) }), (1, Ref { extra: 0, ..slot(0) })],
        ),
        ("a flag of no meaning", vec![(1, Ref { flags: 6, ..slot(1) })]),
        ("a block behind the frame", vec![(count, Ref { flags: 0, extra: 0, ..slot(0) })]),
    ];
    for (what, refs) in planted {
        let mut damaged = image.clone();
        for (n, reference) in refs {
            reference.write(block(&mut damaged, node).unwrap(), n * 32);
        }
        believed(&mut damaged);
        let device = Arc::new(MemDevice::from_image(4096, damaged.clone()));
        let fs = mount_with(&device, Options { read_only: true, ..Options::default() }).unwrap();
        let read = contents(&fs, ino);
        assert!(matches!(read, Err(fstitch_core::Error::Corrupt(_))), "{what} was read");
        assert!(findings(damaged) > 0, "{what}");
    }
}

/// A volume without the feature has no such blocks, and what a frame holds ends with the file.
#[test]
fn clusters_that_cannot_be_are_found() {
    let image = populated_with(true);
    let mut damaged = image.clone();
    let mut root = Root::find(&image).unwrap().unwrap();
    root.incompat = 0;
    block(&mut damaged, root.place()).unwrap().copy_from_slice(&root.encode());
    assert!(findings(damaged) > 0);
    let mut shorter = image;
    let (leaf, byte) =
        inode_where(&shorter, |bytes| u64::from_le_bytes(bytes[32..40].try_into().unwrap()) == 700_000);
    let byte = byte + 32;
    block(&mut shorter, leaf).unwrap()[byte..byte + 8].copy_from_slice(&690_000_u64.to_le_bytes());
    believed(&mut shorter);
    let found = check::check(Arc::new(MemDevice::from_image(4096, shorter))).unwrap();
    assert!(found.findings.iter().any(|finding| finding.code == "cluster"), "{:?}", found.findings);
}

/// What only a snapshot has is looked at as well, and what no compressed cluster can be in may not say that it is one.
#[test]
fn clusters_of_snapshots_and_links_are_looked_at() {
    let image = populated_with(true);
    let device = Arc::new(MemDevice::from_image(4096, image.clone()));
    let fs = mount(&device);
    fs.make_snapshot(b"s").unwrap();
    fs.unlink(&CALLER, fs.root(), b"large").unwrap();
    fs.unmount().unwrap();
    let image = device.image();
    assert_eq!(findings(image.clone()), 0);
    let root = Root::find(&image).unwrap().unwrap();
    let node = (root.blocks.min(19)..BLOCKS)
        .find(|&number| {
            let at = usize::try_from(number).unwrap() * BLOCK;
            let refs = [0, 16].map(|slot| Ref::slot(&image[at..at + BLOCK], slot));
            refs.iter()
                .all(|first| first.flags == 2 && (1..65_536).contains(&first.extra) && first.block < BLOCKS)
        })
        .unwrap();
    let mut damaged = image.clone();
    let at = usize::try_from(node).unwrap() * BLOCK;
    let first = Ref::slot(&image[at..at + BLOCK], 0);
    Ref { extra: first.extra - 1, ..first }.write(block(&mut damaged, node).unwrap(), 0);
    believed(&mut damaged);
    assert!(findings(damaged) > 0, "a frame of a snapshot without its end");
    // The long link's one block of contents.
    let mut damaged = image.clone();
    let (leaf, byte) = inode_where(&image, |bytes| {
        u16::from_le_bytes([bytes[0], bytes[1]]) & 0xf000 == 0xa000
            && bytes[32] as usize + 256 * bytes[33] as usize == 300
    });
    block(&mut damaged, leaf).unwrap()[byte + 96 + 24] = 2;
    believed(&mut damaged);
    assert!(findings(damaged) > 0, "a link that is packed");
}

/// The first inode in a block that is used of which something is true: its block, and its first byte there.
fn inode_where(image: &[u8], is_it: impl Fn(&[u8]) -> bool) -> (u64, usize) {
    let slots = |number: u64| (0..16).map(move |slot| (number, slot * INODE_BYTES));
    used(image)
        .into_iter()
        .flat_map(slots)
        .find(|&(number, from)| {
            let at = usize::try_from(number).unwrap() * BLOCK + from;
            is_it(&image[at..at + INODE_BYTES])
        })
        .unwrap()
}

/// Blocks that an inode says it has are counted on from any number.
#[test]
fn a_number_of_blocks_that_cannot_be_ends_no_commit() {
    let mut image = populated_with(true);
    let (leaf, byte) =
        inode_where(&image, |bytes| u64::from_le_bytes(bytes[32..40].try_into().unwrap()) == 700_000);
    block(&mut image, leaf).unwrap()[byte + 40..byte + 48].fill(0xff);
    believed(&mut image);
    let device = Arc::new(MemDevice::from_image(4096, image));
    let fs = mount(&device);
    let ino = fs.lookup(fs.root(), b"large").unwrap().attr.ino;
    fs.write(&CALLER, ino, 100_000, b"x").unwrap();
    fs.sync().unwrap();
    fs.unmount().unwrap();
}

/// Reads all that there is.
fn walk(fs: &Waffle, dir: InodeNo, depth: u32) {
    let mut all = Vec::new();
    let _ = fs.readdir(dir, 0, &mut |entry| {
        all.push(entry.name.to_vec());
        all.len() < 1000
    });
    for name in all {
        let Ok(found) = fs.lookup(dir, &name) else { continue };
        let ino = found.attr.ino;
        let _ = fs.listxattr(ino);
        let _ = fs.readlink(ino);
        let _ = fs.seek(ino, 0, fstitch_core::SeekFrom::Hole);
        if found.attr.size < 4 << 20 {
            let _ = contents(fs, ino);
        }
        if depth > 0 && name != b"." && name != b".." {
            walk(fs, ino, depth - 1);
        }
        fs.forget(ino, 1);
    }
}

/// Uses a volume in every way.
fn use_it(device: &Arc<MemDevice>) {
    let Ok(fs) = mount_with(device, Options::default()) else { return };
    walk(&fs, fs.root(), 3);
    let _ = file(&fs, fs.root(), "new", &[1; 20_000]);
    let _ = fs.mkdir(&CALLER, fs.root(), b"newdir", 0o755);
    let _ =
        fs.rename(&CALLER, (fs.root(), b"large"), (fs.root(), b"moved"), fstitch_core::RenameMode::Replace);
    if let Ok(found) = fs.lookup(fs.root(), b"moved") {
        let size = fstitch_core::SetAttr { size: Some(5000), ..Default::default() };
        let _ = fs.setattr(&CALLER, found.attr.ino, &size);
        let _ = fs.write(&CALLER, found.attr.ino, 100_000, &[5; 5000]);
    }
    if let Ok(dir) = fs.lookup(fs.root(), b"dir") {
        let mut all = Vec::new();
        let _ = fs.readdir(dir.attr.ino, 0, &mut |entry| {
            all.push(entry.name.to_vec());
            all.len() < 300
        });
        for name in all {
            let _ = fs.unlink(&CALLER, dir.attr.ino, &name);
        }
        let _ = fs.rmdir(&CALLER, fs.root(), b"dir");
    }
    let _ = fs.sync();
    let _ = fs.check();
    let _ = fs.unmount();
    let _ = names;
}

/// How many names a leaf says that it has is believed by nobody who changes it.
#[test]
fn a_leaf_that_counts_wrong_is_damage() {
    let image = populated();
    let leaves: Vec<u64> =
        used(&image).into_iter().filter(|&no| image[no as usize * BLOCK..].starts_with(b"WFDR")).collect();
    assert!(leaves.len() > 2, "{leaves:?}");
    for &leaf in &leaves {
        for count in [0, 1, 2, u16::MAX] {
            let mut damaged = image.clone();
            let at = leaf as usize * BLOCK + 6;
            let right = u16::from_le_bytes([damaged[at], damaged[at + 1]]);
            damaged[at..at + 2].copy_from_slice(&count.to_le_bytes());
            believed(&mut damaged);
            let device = Arc::new(MemDevice::from_image(4096, damaged));
            let Ok(fs) = mount_with(&device, Options::default()) else { continue };
            for name in [&b"large"[..], b"long", b"short"] {
                let _ = fs.unlink(&CALLER, fs.root(), name);
            }
            let _ = file(&fs, fs.root(), "new", b"x");
            if let Ok(dir) = fs.lookup(fs.root(), b"dir") {
                let name = |number: usize| format!("a-name-that-takes-some-room-{number}");
                let there = |number: &usize| fs.lookup(dir.attr.ino, name(*number).as_bytes()).is_ok();
                let before: Vec<usize> = (60..200).filter(there).collect();
                let _ = file(&fs, dir.attr.ino, "new", b"x");
                let gone: Vec<usize> = (60..70)
                    .filter(|number| fs.unlink(&CALLER, dir.attr.ino, name(*number).as_bytes()).is_ok())
                    .collect();
                // Nothing went but what was to go.
                let after: Vec<usize> = (60..200).filter(there).collect();
                let expected: Vec<usize> =
                    before.into_iter().filter(|number| !gone.contains(number)).collect();
                assert_eq!(after, expected, "leaf {leaf} says {count} instead of {right}");
            }
            let _ = fs.sync();
            let _ = fs.unmount();
        }
    }
}

/// A number of images damaged at random, `WAFFLE_IMAGES` of them: most have right sums, so that what they say is believed.
#[test]
fn damaged_images_do_not_panic() {
    let count: u64 = std::env::var("WAFFLE_IMAGES").ok().and_then(|text| text.parse().ok()).unwrap_or(250);
    let images = [populated(), populated_with(true)];
    let all_used = images.each_ref().map(|image| used(image));
    for number in 0..count {
        let (image, used) = (&images[(number % 2) as usize], &all_used[(number % 2) as usize]);
        let mut seed = Seed::new(number);
        let mut pick = |below: usize| usize::try_from(seed.next_u64() % below as u64).unwrap();
        let mut damaged = image.clone();
        for _ in 0..1 + pick(3) {
            let target = match pick(8) {
                0 => ROOT_PLACES[pick(2)],
                _ => used[pick(used.len())],
            };
            // Structures are at the starts of blocks, and most bytes of a file are like the others.
            let at = if pick(2) == 0 { pick(BLOCK) } else { pick(600) };
            let value = [0, 1, 0x7f, 0xff, u8::try_from(pick(256)).unwrap()][pick(5)];
            let len = [1, 1, 2, 8, 32][pick(5)];
            let bytes = block(&mut damaged, target).unwrap();
            let end = (at + len).min(BLOCK);
            bytes[at..end].fill(value);
        }
        if pick(8) > 0 {
            believed(&mut damaged);
        }
        let device = Arc::new(MemDevice::from_image(4096, damaged.clone()));
        let _ = check::check(Arc::clone(&device) as _);
        use_it(&device);
        // What was mended as a whole is as good as any volume.
        let (left, _, device) = mend(damaged);
        if left.is_empty() {
            use_it(&device);
            let found = check::check(Arc::clone(&device) as _).unwrap();
            assert!(found.is_clean(), "image {number}: {:#?}", found.findings);
        }
    }
}

/// The first inode that is a directory or a file of this many names or bytes: its block, and its first byte there.
pub fn inode_of(image: &[u8], kind: u16, size: u64) -> (u64, usize) {
    inode_where(image, |bytes| {
        u16::from_le_bytes([bytes[0], bytes[1]]) & 0xf000 == kind
            && u64::from_le_bytes(bytes[32..40].try_into().unwrap()) == size
    })
}

/// A free block of a volume with a map of one block, which the map has as used from now on.
fn taken(image: &mut [u8]) -> u64 {
    let used = used(image);
    let new = (19..BLOCKS).find(|number| !used.contains(number)).unwrap();
    let mut root = Root::find(image).unwrap().unwrap();
    let map = block(image, root.map.block).unwrap();
    map[usize::try_from(new / 8).unwrap()] |= 1 << (new % 8);
    (root.map.sum, root.map.extra, root.free) = (sum(map), root.map.extra - 1, root.free - 1);
    block(image, root.place()).unwrap().copy_from_slice(&root.encode());
    new
}

/// Gives an inode contents of few nodes and no leaves: so many on each level below the top, and each node of a level leads to all of the one
/// below, or in all of its slots to the only one. Sums are right.
fn plant_nodes(image: &mut [u8], (leaf, byte): (u64, usize), (height, on_level): (u8, usize)) {
    let mut below: Vec<u64> = Vec::new();
    for level in 1..=height {
        let count = if level == height { 1 } else { on_level };
        let nodes: Vec<u64> = (0..count).map(|_| taken(image)).collect();
        for &node in &nodes {
            let bytes = block(image, node).unwrap();
            bytes.fill(0);
            for slot in 0..if below.len() == 1 { 128 } else { below.len() } {
                let reference = Ref { block: below[slot % below.len()], birth: 1, ..Ref::NONE };
                reference.write(bytes, slot * 32);
            }
        }
        below = nodes;
    }
    let inode = &mut block(image, leaf).unwrap()[byte..byte + INODE_BYTES];
    inode[2] = height;
    if inode[1] & 0xf0 == 0x80 {
        // A file that is long enough for all of it.
        inode[32..40].copy_from_slice(&(1_u64 << 60).to_le_bytes());
    }
    Ref { block: below[0], birth: 1, ..Ref::NONE }.write(inode, 96);
    believed(image);
}

/// Nodes that lead to the same nodes, level by level, would have leaves without end: no walk goes through all of these.
#[test]
fn nodes_that_are_in_many_places_are_damage() {
    const FILE: u16 = 0x8000;
    const DIRECTORY: u16 = 0x4000;
    let image = populated();
    for (kind, size) in [(FILE, 700_000), (DIRECTORY, 140)] {
        for shape in [(2, 1), (8, 1), (8, 8)] {
            let mut damaged = image.clone();
            let place = inode_of(&image, kind, size);
            plant_nodes(&mut damaged, place, shape);
            let device = Arc::new(MemDevice::from_image(4096, damaged.clone()));
            let fs = mount(&device);
            let is_damage = |found: fstitch_core::Result<()>| {
                assert!(matches!(found, Err(fstitch_core::Error::Corrupt(_))), "{kind:#x}: {found:?}");
            };
            let name: &[u8] = if kind == FILE { b"large" } else { b"dir" };
            let ino = fs.lookup(fs.root(), name).unwrap().attr.ino;
            if kind == FILE {
                is_damage(fs.seek(ino, 0, fstitch_core::SeekFrom::Data).map(drop));
                is_damage(fs.seek(ino, 0, fstitch_core::SeekFrom::Hole).map(drop));
            } else {
                is_damage(fs.readdir(ino, 0, &mut |_| true));
            }
            let scrubbed = fs.scrub(None, 1 << 14).unwrap();
            assert!(scrubbed.next.is_none() && !scrubbed.damaged.is_empty());
            assert!(scrubbed.damaged.iter().all(|damaged| damaged.inode == Some(ino)));
            fs.unmount().unwrap();
            if kind == FILE {
                // A snapshot keeps all of it: nothing that is given up says that it was met before.
                let device = Arc::new(MemDevice::from_image(4096, damaged.clone()));
                let fs = mount(&device);
                fs.make_snapshot(b"all").unwrap();
                fs.unlink(&CALLER, fs.root(), name).unwrap();
                fs.forget(ino, 1);
                fs.sync().unwrap();
                // Nor has its removal an end that goes where each leads; it tells, and goes no further, or passes them once.
                let _ = fs.remove_snapshot(b"all");
                fs.unmount().unwrap();
            }
            let found = check::check(Arc::new(MemDevice::from_image(4096, damaged.clone()))).unwrap();
            assert!(found.findings.iter().any(|finding| finding.code == "block-used-twice"));
            let (left, _) = mended(damaged);
            assert!(left.iter().any(|(code, _)| *code == "block-used-twice"), "it is told: {left:?}");
        }
    }
}

/// A leaf that a directory's depth does not reach is damage for who doubles it as for who lists it.
#[test]
fn a_leaf_behind_the_last_one_of_a_directory_is_damage() {
    let mut image = populated();
    let (leaf, byte) = inode_of(&image, 0x4000, 140);
    let inode = block(&mut image, leaf).unwrap()[byte..byte + INODE_BYTES].to_vec();
    assert_eq!(inode[2], 1, "its height");
    let node = Ref::read(&inode, 96).block;
    let new = taken(&mut image);
    let first = Ref::slot(block(&mut image, node).unwrap(), 0);
    let head = [&block(&mut image, first.block).unwrap()[..4], &[16, 0, 0, 0]].concat();
    let of_dir = block(&mut image, first.block).unwrap()[8..16].to_vec();
    block(&mut image, new).unwrap().fill(0);
    block(&mut image, new).unwrap()[..16].copy_from_slice(&[head, of_dir].concat());
    Ref { block: new, ..first }.write(block(&mut image, node).unwrap(), 100 * 32);
    believed(&mut image);
    let device = Arc::new(MemDevice::from_image(4096, image));
    let fs = mount(&device);
    let dir = fs.lookup(fs.root(), b"dir").unwrap().attr.ino;
    let failed = (0..200).find_map(|number| {
        fs.symlink(&CALLER, dir, format!("a-new-name-that-takes-room-{number}").as_bytes(), b"x").err()
    });
    assert!(matches!(failed, Some(fstitch_core::Error::Corrupt(_))), "{failed:?}");
    fs.unmount().unwrap();
}

/// A file that shares blocks with itself may have more of them than the volume: nothing is wrong with it.
#[test]
fn a_file_longer_than_its_volume_is_whole() {
    let device = made_with(BLOCKS, false);
    let fs = mount(&device);
    let ino = file(&fs, fs.root(), "file", &[7; 64 * BLOCK]).unwrap();
    for doubled in 0..4 {
        let len = (64 * BLOCK as u64) << doubled;
        let copied = fs.share(&CALLER, (ino, 0), (ino, len), len).unwrap();
        assert_eq!(copied, len);
    }
    assert!(fs.getattr(ino).unwrap().blocks / 8 > BLOCKS);
    fs.unmount().unwrap();
    let (left, mended) = mended(device.image());
    assert_eq!((left, mended), (vec![], 0));
}
