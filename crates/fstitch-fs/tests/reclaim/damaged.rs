//! Damage that the reclaimer must not take for what a crash has left: each case once destroyed files.

use fstitch_core::Le;
use fstitch_core::RepairMode;

use crate::support::{BLOCK, FILES, Volume, crashed, filled};

/// Files with precious contents.
const PRECIOUS: usize = FILES + 1;

/// A volume that crashed in an otherwise orderly way, and is damaged.
fn volume(damage: impl FnOnce(&mut Volume)) -> Volume {
    let mut volume = crashed(filled(), |_| ());
    damage(&mut volume);
    volume
}

/// Mounting refuses to reclaim, keeps all precious files for a repair to find, and leaves the volume unclean.
fn is_left_alone(name: &str, volume: &Volume) {
    let (after, done) = volume.mounted();
    let done = done.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(!done.complete && done.inodes + done.blocks + done.counts == 0, "{name}: {done:?}");
    assert!(done.refusal.is_some(), "{name}: it says why");
    assert!(!after.is_marked_clean(), "{name}");
    let (mended, report) = after.repaired(RepairMode::Yes);
    assert!(report.left.is_clean(), "{name}: {:?}", report.left);
    assert_eq!(mended.precious(), PRECIOUS, "{name}");
    // Nor does a second mount think better of it.
    let (again, done) = after.mounted();
    assert!(done.unwrap().refusal.is_some() && !again.is_marked_clean(), "{name}: once more");
    assert_eq!(again.repaired(RepairMode::Yes).0.precious(), PRECIOUS, "{name}: once more");
}

#[test]
fn the_volume_undamaged_is_reclaimed() {
    let volume = volume(|volume| {
        // A block and an inode that nobody has: the last ones.
        let bitmaps = [Le::u32(&volume.0, 2 * BLOCK), Le::u32(&volume.0, 2 * BLOCK + 4)];
        let [blocks, inodes] = bitmaps.map(|block| usize::try_from(block).unwrap());
        volume.bytes(blocks)[500] |= 1;
        volume.bytes(inodes)[63] |= 0x80;
    });
    let (after, done) = volume.mounted();
    let done = done.unwrap();
    assert!(done.complete && done.inodes == 1 && done.blocks == 1 && done.refusal.is_none(), "{done:?}");
    assert!(after.is_marked_clean() && after.findings().is_empty(), "{:?}", after.findings());
    assert_eq!(after.precious(), PRECIOUS);
}

#[test]
fn a_cleared_directory_inode() {
    let volume = volume(|volume| {
        let at = volume.inode(volume.ino("/d"));
        volume.0[at..at + 256].fill(0);
    });
    is_left_alone("cleared", &volume);
}

#[test]
fn a_directory_block_of_zeros() {
    let volume = volume(|volume| {
        let block = volume.block(volume.ino("/d"), 0);
        volume.bytes(block).fill(0);
    });
    is_left_alone("zeros", &volume);
}

#[test]
fn a_directory_block_of_one_empty_entry() {
    let volume = volume(|volume| {
        let block = volume.block(volume.ino("/d"), 0);
        volume.bytes(block)[..8].copy_from_slice(&[0, 0, 0, 0, 0, 4, 0, 0]);
    });
    is_left_alone("one entry", &volume);
}

#[test]
fn an_attribute_pointer_into_somebody_else_s_block() {
    for target in ["/A", "/d", "table", "bitmap"] {
        let mut block = 0;
        let volume = volume(|volume| {
            block = match target {
                "table" => usize::try_from(Le::u32(&volume.0, 2 * BLOCK + 8)).unwrap() + 2,
                "bitmap" => usize::try_from(Le::u32(&volume.0, 2 * BLOCK)).unwrap(),
                path => volume.block(volume.ino(path), 0),
            };
            volume.put(volume.ino("/B"), 0x68, u32::try_from(block).unwrap());
        });
        is_left_alone(target, &volume);
        let (mut after, _) = volume.mounted();
        let mut before = volume.clone();
        if target != "bitmap" {
            assert!(after.bytes(block) == before.bytes(block), "{target}: written into");
        }
    }
}

#[test]
fn an_orphan_that_shares_a_block_with_a_file() {
    // With its count of names as it was, and with none.
    for links in [1, 0] {
        let volume = volume(|volume| {
            let (a, b) = (volume.ino("/A"), volume.ino("/B"));
            let shared = u32::try_from(volume.block(a, 1)).unwrap();
            volume.put(b, 0x28 + 4, shared);
            volume.clear_name(volume.ino("/"), b);
            let at = volume.inode(b) + 0x1a;
            Le::put_u16(&mut volume.0, at, links);
        });
        is_left_alone(&format!("{links} links"), &volume);
        let (after, _) = volume.mounted();
        assert_eq!(after.files()["/A"], vec![b'A'; 20_000], "{links} links");
    }
}

#[test]
fn pointers_out_of_range_and_blocks_marked_free() {
    let volume_with_pointer = volume(|volume| volume.put(volume.ino("/B"), 0x28 + 8, 999_999));
    is_left_alone("out of range", &volume_with_pointer);
    let freed = volume(|volume| {
        let bitmap = usize::try_from(Le::u32(&volume.0, 2 * BLOCK)).unwrap();
        let block = volume.block(volume.ino("/B"), 3) - 1;
        volume.bytes(bitmap)[block / 8] &= !(1 << (block % 8));
    });
    let (after, done) = freed.mounted();
    assert!(done.unwrap().refusal.is_some() && !after.is_marked_clean());
}

/// A directory's length behind its blocks is what a crash leaves; hidden names of old files are not.
#[test]
fn a_directory_that_is_too_short() {
    let volume = volume(|volume| {
        let dir = volume.ino("/d");
        assert_ne!(volume.block(dir, 1), 0, "it has several blocks");
        volume.put(dir, 4, u32::try_from(BLOCK).unwrap());
    });
    is_left_alone("too short", &volume);
}

#[test]
fn a_volume_that_is_marked_as_having_errors() {
    let volume = volume(|volume| volume.0[1024 + 0x3a] |= 2);
    let (after, done) = volume.mounted();
    assert!(done.unwrap().refusal.is_some() && !after.is_marked_clean());
    let (mended, report) = after.repaired(RepairMode::Preen);
    assert!(report.left.is_clean() && mended.is_marked_clean(), "{:?}", report.left);
}

/// Damage that only shows when everything is looked at, on a volume that was clean when it was mounted.
#[test]
fn a_check_in_use_that_finds_damage_leaves_the_volume_unclean() {
    use std::sync::Arc;

    use fstitch_core::{FileSystem, MemDevice};

    let mut volume = Volume(filled());
    let at = volume.inode(volume.ino("/d"));
    volume.0[at..at + 256].fill(0);
    assert!(volume.is_marked_clean());
    for reclaims in [false, true] {
        let device = Arc::new(MemDevice::from_image(1024, volume.0.clone()));
        let fs = crate::support::mount_at(&device, 1_700_000_000);
        crate::support::create(&fs, fs.root(), "x", b"x");
        if reclaims {
            assert!(fs.reclaim().unwrap().refusal.is_some());
        } else {
            assert!(fs.check().unwrap().corrupt > 0);
        }
        fs.unmount().unwrap();
        assert!(!Volume(device.image()).is_marked_clean(), "reclaims: {reclaims}");
    }
}
