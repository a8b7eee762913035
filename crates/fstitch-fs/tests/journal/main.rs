//! A recovery that loses or ruins what a journal holds, that a second crash catches half-way, or that a damaged
//! journal leads astray.
#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

mod create;
mod exchange;
mod external;
mod failing;
mod groups;
mod kept;
mod later;
mod scattered;
mod space;
#[allow(dead_code)]
#[path = "../check/support.rs"]
mod support;
mod volatile;

use std::sync::Arc;

use fstitch_core::{
    BlockBuf, BlockDevice, BlockKind, BlockNo, BlockRead, Error, MemDevice, Overlay, Result, Seed, Timestamp,
};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::ext2::journal::{
    Journal, Options, Orphans, Recovered, abandon, locate, read_superblock, recover,
};
use fstitch_fs::ext2::layout::superblock::{S_FEATURE_INCOMPAT, S_LAST_ORPHAN, S_STATE, STATE_ERROR};
use fstitch_fs::view::BlockView;
use fstitch_patch::journal::replay;
use support::{Scratch, have, run};
use volatile::{Changes, Volatile};

const NOW: Timestamp = Timestamp { secs: 1_900_000_000, nanos: 0 };

/// An ext3 volume of 8 MiB in small groups, so that a file lies in many of them. `None`, said aloud, without the tools.
fn volume(scratch: &Scratch, block_size: u32) -> Option<Vec<u8>> {
    if !have("mke2fs") || !have("debugfs") {
        return None;
    }
    let image = scratch.path("volume.img");
    let image = image.to_str().unwrap();
    let source = scratch.path("source");
    let bytes: Vec<u8> = (0..6_000_000_u32).map(|i| u8::try_from(i % 251).unwrap() | 1).collect();
    let (groups, size) = if block_size == 1024 { ("256", "12M") } else { ("1024", "24M") };
    let block_size = block_size.to_string();
    let (code, said) = run(
        "mke2fs",
        &[
            "-q",
            "-F",
            "-t",
            "ext3",
            "-b",
            &block_size,
            "-g",
            groups,
            "-J",
            "size=4",
            "-O",
            "^resize_inode",
            image,
            size,
        ],
    );
    assert_eq!(code, 0, "{said}");
    for (name, len) in [("freed", 5_500_000), ("cut", 900_000), ("stays", 70_000)] {
        std::fs::write(&source, &bytes[..len]).unwrap();
        let (code, said) =
            run("debugfs", &["-w", "-R", &format!("write {} {name}", source.display()), image]);
        assert_eq!(code, 0, "{said}");
    }
    Some(std::fs::read(image).unwrap())
}

/// Puts the files `freed` (12) and `cut` (13) on the list of orphans, and a transaction into the journal that changes
/// the first block of `stays`.
fn make_dirty(image: Vec<u8>, block_size: u32) -> Vec<u8> {
    let device = MemDevice::from_image(block_size, image);
    let (raw, shape) = read_superblock(&device).unwrap();
    let view = BlockView::new(&device, usize::try_from(block_size).unwrap());
    let place = locate(&shape, &raw).unwrap().unwrap();
    let journal = Journal::find(&view, &shape, place, None).unwrap();
    let mut log = journal.open(&view).unwrap();
    let mut changed = std::collections::BTreeMap::new();
    let mut patch = |at: u64, bytes: &[u8]| {
        let (no, offset) = (at / u64::from(block_size), usize::try_from(at % u64::from(block_size)).unwrap());
        let block = changed.entry(BlockNo(no)).or_insert_with(|| BlockBuf::copy_of(&get(&device, no)));
        block[offset..offset + bytes.len()].copy_from_slice(bytes);
    };
    let le = |value: u32| value.to_le_bytes();
    let root = directory_block(&device, &shape);
    patch(1024 + 0xe8, &le(12));
    // Totals are not kept in transactions.
    patch(1024 + 0x0c, &le(7));
    patch(1024 + 0x60, &le(shape.features.incompat | 4));
    // Inode 12: no name, no links, next is 13. Inode 13: 1001 bytes long, the last one.
    patch(inode(&device, 12) + 0x1a, &[0, 0]);
    patch(inode(&device, 12) + 0x14, &le(13));
    patch(inode(&device, 13) + 0x04, &le(1001));
    patch(root, &le(0));
    let stays = get_u32(&device, inode(&device, 14) + 0x28);
    patch(u64::from(stays) * u64::from(block_size), b"\xc0\x3b\x39\x98 from the journal");
    let blocks: Vec<(BlockNo, BlockBuf)> = changed.into_iter().collect();
    log.apply(&blocks, NOW).unwrap();
    // A kernel sets the flag before anything is in the journal.
    let mut image = device.image();
    image[1024 + 0x60] |= 4;
    image
}

fn get(device: &MemDevice, no: u64) -> Vec<u8> {
    let mut data = vec![0; usize::try_from(device.geometry().block_size).unwrap()];
    device.read(&mut [BlockRead { block: BlockNo(no), kind: BlockKind::Data, data: &mut data }]).unwrap();
    data
}

fn get_u32(device: &MemDevice, at: u64) -> u32 {
    let unit = u64::from(device.geometry().block_size);
    let offset = usize::try_from(at % unit).unwrap();
    u32::from_le_bytes(get(device, at / unit)[offset..offset + 4].try_into().unwrap())
}

/// The byte where an inode of the first group starts.
fn inode(device: &MemDevice, ino: u64) -> u64 {
    let (_, shape) = read_superblock(device).unwrap();
    let (descriptor, offset) = shape.descriptor_place(0);
    let unit = u64::from(shape.block_size);
    let table = get_u32(device, descriptor * unit + u64::try_from(offset).unwrap() + 8);
    u64::from(table) * unit + (ino - 1) * u64::from(shape.inode_size)
}

/// The byte where the entry for `freed` starts in the root directory.
fn directory_block(device: &MemDevice, shape: &fstitch_fs::ext2::layout::superblock::Superblock) -> u64 {
    let block = u64::from(get_u32(device, inode(device, 2) + 0x28));
    let bytes = get(device, block);
    let at = bytes.windows(5).position(|name| name == b"freed").unwrap() - 8;
    block * u64::from(shape.block_size) + u64::try_from(at).unwrap()
}

fn recovered(device: &dyn BlockDevice, batch_max: usize) -> Result<Option<Recovered>> {
    let progress = &mut |_| {};
    recover(device, &mut Options { external: None, now: NOW, for_reading: false, batch_max, progress })
}

/// The blocks in use outside the journal, with what is in them. What a freed block was left with is of no interest.
fn shown(device: &dyn BlockDevice, block_size: u32) -> Changes {
    let view = BlockView::new(device, usize::try_from(block_size).unwrap());
    let (raw, shape) = read_superblock(&view).unwrap();
    let journal = Journal::find(&view, &shape, locate(&shape, &raw).unwrap().unwrap(), None).unwrap();
    let read = |no: u64| {
        let mut block = vec![0; view.block_size()];
        view.read(BlockNo(no), BlockKind::Data, &mut block).unwrap();
        block
    };
    let mut shown = Changes::new();
    for group in 0..shape.group_count() {
        let (table, offset) = shape.descriptor_place(group);
        let descriptor = &read(table)[offset..];
        let bitmap = read(u64::from(u32::from_le_bytes(descriptor[..4].try_into().unwrap())));
        for bit in 0..shape.group_blocks(group) {
            let no = shape.group_start(group) + u64::from(bit);
            let used = bitmap[usize::try_from(bit / 8).unwrap()] & 1 << (bit % 8) != 0;
            if used && !journal.area.contains(BlockNo(no)) {
                shown.insert(BlockNo(no), read(no));
            }
        }
    }
    shown
}

#[test]
fn a_volume_is_recovered_in_one_batch_or_many() {
    for block_size in [1024, 4096] {
        let scratch = Scratch::new(&format!("journal-{block_size}"));
        let Some(image) = volume(&scratch, block_size) else { return };
        let dirty = make_dirty(image, block_size);
        let mut ends = Vec::new();
        // The last device has blocks of another size than the volume.
        for (unit, batch_max) in [(block_size, 1024), (block_size, 32), (512, 40)] {
            let device = MemDevice::from_image(unit, dirty.clone());
            assert!(Ext2::probe(&device).is_err(), "a volume that must be recovered is not opened");
            let done = recovered(&device, batch_max).unwrap().unwrap();
            assert_eq!(done.orphans, Orphans { freed: 1, cut: 1, dropped: false });
            assert_eq!(done.replayed.unwrap().scan.transactions, 1);
            assert_eq!(done.errors, Vec::<String>::new());
            assert!(recovered(&device, batch_max).unwrap().is_none(), "there is nothing left to do");
            let device = MemDevice::from_image(block_size, device.image());
            let report = check_ext2(&device).unwrap();
            assert!(report.is_clean(), "{:?}", report.findings);
            let (code, said) = support::e2fsck_image(&scratch, "recovered.img", &device.image());
            assert_eq!(code, 0, "{said}");
            let first = u64::from(get_u32(&device, inode(&device, 13) + 0x28)) * u64::from(block_size);
            let tail = usize::try_from(first).unwrap() + 1001..usize::try_from(first).unwrap() + 1024;
            assert!(
                device.image()[tail.start - 1] != 0 && device.image()[tail].iter().all(|&byte| byte == 0)
            );
            ends.push(shown(&device, block_size));
        }
        assert!(ends.iter().all(|end| *end == ends[0]));
        let unescaped = b"\xc0\x3b\x39\x98 from the journal";
        assert!(ends[0].values().any(|block| block.starts_with(unescaped)));
    }
}

#[test]
fn a_recovery_that_is_cut_at_any_write_is_finished_by_the_next() {
    let scratch = Scratch::new("journal-cut");
    let Some(image) = volume(&scratch, 1024) else { return };
    let dirty = make_dirty(image, 1024);
    // The other volume has nothing in its journal, but orphans.
    let orphans = without_journal(&dirty);
    for image in [dirty, orphans] {
        let base = Arc::new(MemDevice::from_image(1024, image));
        let device = Volatile::new(&base, Changes::new(), u64::MAX);
        recovered(&device, 32).unwrap().unwrap();
        let writes = device.writes();
        let expected = shown(&device, 1024);
        let mut seed = Seed::new(8);
        for cut in 0..=writes {
            for _ in 0..3 {
                let device = Volatile::new(&base, Changes::new(), cut);
                assert!(recovered(&device, 32).is_err(), "cut after {cut} of {writes} writes");
                // The second recovery is cut as well; it may have had so little to do that it was done before.
                let device = Volatile::new(&base, device.survivors(&mut seed), seed.below(writes));
                let _ = recovered(&device, 40);
                let device = Volatile::new(&base, device.survivors(&mut seed), u64::MAX);
                if let Err(error) = recovered(&device, 1024) {
                    panic!("cut after {cut} writes: {error}");
                }
                assert!(shown(&device, 1024) == expected, "cut after {cut} of {writes} writes");
            }
        }
    }
}

/// The same volume after the replay, with its orphans as they are and without `needs_recovery`.
fn without_journal(dirty: &[u8]) -> Vec<u8> {
    let device = MemDevice::from_image(1024, dirty.to_vec());
    let view = BlockView::new(&device, 1024);
    let (raw, shape) = read_superblock(&device).unwrap();
    let journal = Journal::find(&view, &shape, locate(&shape, &raw).unwrap().unwrap(), None).unwrap();
    replay(&mut journal.open(&view).unwrap(), &view, &|_, _| BlockKind::Data, &mut |_| {}).unwrap();
    let mut image = device.image();
    image[1024 + 0x60] &= !4;
    image
}

#[test]
fn a_recovery_that_was_cut_is_finished_by_the_reference() {
    let scratch = Scratch::new("journal-handed-over");
    let Some(image) = volume(&scratch, 1024) else { return };
    if !have("e2fsck") {
        return;
    }
    let base = Arc::new(MemDevice::from_image(1024, make_dirty(image, 1024)));
    let device = Volatile::new(&base, Changes::new(), u64::MAX);
    recovered(&device, 32).unwrap().unwrap();
    let mut seed = Seed::new(3);
    let path = scratch.path("cut.img");
    let name = path.to_str().unwrap();
    for cut in (0..=device.writes()).step_by(4) {
        let device = Volatile::new(&base, Changes::new(), cut);
        assert!(recovered(&device, 32).is_err());
        let mut image = base.image();
        for (no, block) in device.survivors(&mut seed) {
            image[no.index() * 1024..no.index() * 1024 + 1024].copy_from_slice(&block);
        }
        std::fs::write(&path, &image).unwrap();
        // Its first run leaves wrong counts of blocks in files that it cuts; its second one mends them.
        for (arguments, codes) in
            [(["-p", name], &[0, 1][..]), (["-fp", name], &[0, 1]), (["-fn", name], &[0])]
        {
            let (code, said) = run("e2fsck", &arguments);
            assert!(codes.contains(&code), "cut after {cut} writes, e2fsck {arguments:?}: {said}");
        }
    }
}

#[test]
fn damaged_volumes_and_journals_are_survived() {
    let scratch = Scratch::new("journal-damage");
    let Some(image) = volume(&scratch, 1024) else { return };
    let base = MemDevice::from_image(1024, make_dirty(image, 1024));
    let (raw, shape) = read_superblock(&base).unwrap();
    let view = BlockView::new(&base, 1024);
    let journal = Journal::find(&view, &shape, locate(&shape, &raw).unwrap().unwrap(), None).unwrap();
    let mut seed = Seed::new(21);
    let table = inode(&base, 1) / 1024;
    let journal_block = |no| journal.area.map(no).unwrap().get();
    let indirect = u64::from(get_u32(&base, inode(&base, 8) + 0x28 + 48));
    let mut outcomes = [0_u32; 4];
    for _ in 0..6_000 {
        let device = Overlay::new(&base);
        for _ in 0..=seed.below(3) {
            // The superblock, inodes with the journal's, the journal's map, its superblock, descriptor and copies.
            let places =
                [1, table, table + 1, table + 2, table + 3, indirect, journal_block(0), journal_block(1)];
            let pick = usize::try_from(seed.below(12)).unwrap();
            let no = places.get(pick).copied().unwrap_or_else(|| journal_block(2 + seed.below(6)));
            let mut block = vec![0; 1024];
            device
                .read(&mut [BlockRead { block: BlockNo(no), kind: BlockKind::Data, data: &mut block }])
                .unwrap();
            let within = if seed.below(2) == 0 { 96 } else { 1024 };
            let at = usize::try_from(seed.below(within)).unwrap();
            block[at] = u8::try_from(seed.below(256)).unwrap();
            BlockView::new(&device, 1024).write(BlockNo(no), BlockKind::Data, &block).unwrap();
        }
        outcomes[match recovered(&device, 64) {
            Ok(Some(done)) if done.errors.is_empty() => 0,
            Ok(_) => {
                let (raw, _) = read_superblock(&device).unwrap();
                assert_eq!(S_LAST_ORPHAN.get(&raw), 0);
                1
            }
            Err(Error::Corrupt(_) | Error::Unsupported(_)) => 2,
            Err(error) => panic!("{error}"),
        }] += 1;
    }
    assert!(outcomes[..3].iter().all(|&count| count > 100), "{outcomes:?}: all ways were taken");
}

#[test]
fn what_is_wrong_is_remembered_by_the_volume() {
    let scratch = Scratch::new("journal-wrong");
    let Some(image) = volume(&scratch, 1024) else { return };
    let dirty = make_dirty(image, 1024);
    let at = {
        let device = MemDevice::from_image(1024, dirty.clone());
        let (raw, shape) = read_superblock(&device).unwrap();
        let view = BlockView::new(&device, 1024);
        let journal = Journal::find(&view, &shape, locate(&shape, &raw).unwrap().unwrap(), None).unwrap();
        usize::try_from(journal.area.superblock().unwrap().get()).unwrap() * 1024
    };
    // An error that the last user met: what is in the log is replayed all the same, orphans are left to a check.
    let mut image = dirty.clone();
    image[at + 0x20..at + 0x24].copy_from_slice(&(-5_i32).to_be_bytes());
    let device = MemDevice::from_image(1024, image);
    let done = recovered(&device, 1024).unwrap().unwrap();
    assert!(done.orphans.dropped && done.errors.len() == 1, "{done:?}");
    let (raw, _) = read_superblock(&device).unwrap();
    assert!(S_STATE.get(&raw) & STATE_ERROR != 0 && S_FEATURE_INCOMPAT.get(&raw) & 4 == 0);
    assert_eq!(device.image()[at + 0x20..at + 0x24], [0; 4]);
    // A flag that is clear forbids the replay, whatever is in the log, which is emptied: it could not be used otherwise.
    let mut image = dirty.clone();
    image[1024 + 0x60] &= !4;
    let device = MemDevice::from_image(1024, image.clone());
    let done = recovered(&device, 1024).unwrap().unwrap();
    assert_eq!((done.replayed, done.orphans.freed), (None, 0));
    assert!(recovered(&device, 1024).unwrap().is_none());
    let emptied = device.image();
    let blocks = emptied.chunks(1024).zip(image.chunks(1024)).enumerate();
    let changed: Vec<usize> = blocks.filter(|(_, (one, two))| one != two).map(|(no, _)| no).collect();
    assert!(changed.iter().all(|no| [1, at / 1024].contains(no)), "{changed:?}");
    // Even if there are orphans: what is in the log is dropped, not replayed.
    let mut image = without_journal(&dirty);
    image[at..at + 1024].copy_from_slice(&dirty[at..at + 1024]);
    let device = MemDevice::from_image(1024, image);
    let done = recovered(&device, 1024).unwrap().unwrap();
    assert_eq!((done.replayed, done.orphans.freed), (None, 1));
    // A journal without its superblock can only be given up.
    let mut image = dirty;
    image[at] = 0;
    let device = MemDevice::from_image(1024, image);
    assert!(matches!(recovered(&device, 1024), Err(Error::Corrupt(_))));
    abandon(&device).unwrap();
    assert!(recovered(&device, 1024).unwrap().is_none());
    assert!(Ext2::probe(&device).is_ok());
}
