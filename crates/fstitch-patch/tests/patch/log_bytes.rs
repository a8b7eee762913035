//! The bytes of a log, as other systems read them: a writer that changes its mind about one of them would write journals that
//! `e2fsck` and Linux take for something else.

use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{
    BlockBuf, BlockDevice, BlockKind, BlockNo, BlockWrite, ManualClock, MemDevice, Timestamp,
};
use fstitch_patch::journal::checksum::{START, crc32};
use fstitch_patch::journal::format::{
    COMPAT_CHECKSUM, INCOMPAT_64BIT, INCOMPAT_CSUM_V2, INCOMPAT_CSUM_V3, INCOMPAT_REVOKE, MAGIC,
    SUPERBLOCK_SIZE, Superblock,
};
use fstitch_patch::journal::{Area, Home, Log};
use fstitch_patch::{Cache, CacheOptions, JournalConfig, JournalMode};

const BLOCK: usize = 1024;
/// The journal's first block and its length.
const AREA: (u64, u32) = (200, 200);
/// Features (compatible, incompatible) that shape blocks.
const SHAPES: [(u32, u32); 6] = [
    (0, INCOMPAT_REVOKE),
    (COMPAT_CHECKSUM, INCOMPAT_REVOKE),
    (0, INCOMPAT_REVOKE | INCOMPAT_64BIT),
    (0, INCOMPAT_REVOKE | INCOMPAT_CSUM_V2),
    (0, INCOMPAT_REVOKE | INCOMPAT_64BIT | INCOMPAT_CSUM_V2),
    (0, INCOMPAT_REVOKE | INCOMPAT_64BIT | INCOMPAT_CSUM_V3),
];

fn area() -> Area {
    Area::of_file([(BlockNo(AREA.0), u64::from(AREA.1))]).unwrap()
}

/// A device with an empty journal, whose next transaction is 1.
fn medium((compat, incompat): (u32, u32)) -> Arc<MemDevice> {
    let device = MemDevice::new(1024, 400);
    let mut superblock = Superblock::new(1024, AREA.1, 1, [0xab; 16]);
    (superblock.features.compat, superblock.features.incompat) = (compat, incompat);
    let mut block = vec![0; BLOCK];
    superblock.encode_into(&mut block[..SUPERBLOCK_SIZE]);
    let kind = BlockKind::JournalSuperblock;
    device.write(&[BlockWrite { block: BlockNo(AREA.0), kind, data: &block }]).unwrap();
    Arc::new(device)
}

/// A block of one byte; the second one of a transaction looks like a block of the journal's own.
fn contents(no: u64) -> BlockBuf {
    let mut block = BlockBuf::copy_of(&[u8::try_from(no).unwrap(); BLOCK]);
    if no == 2 {
        block[..4].copy_from_slice(&MAGIC.to_be_bytes());
    }
    block
}

/// What is in the log behind the superblock.
fn log(device: &MemDevice, blocks: usize) -> Vec<Vec<u8>> {
    let image = device.image();
    let first = usize::try_from(AREA.0).unwrap() + 1;
    image[first * BLOCK..(first + blocks) * BLOCK].chunks(BLOCK).map(<[u8]>::to_vec).collect()
}

fn sum(log: &[Vec<u8>]) -> u32 {
    log.iter().fold(START, |sum, block| crc32(sum, block))
}

/// A transaction of its own in an empty log.
fn applied(shape: (u32, u32), count: u64) -> Arc<MemDevice> {
    let (device, area) = (medium(shape), area());
    let home = Home { block_count: 400, shares_device: true };
    let blocks: Vec<_> = (1..=count).map(|no| (BlockNo(no), contents(no))).collect();
    Log::open(&*device, &area, home).unwrap().apply(&blocks, Timestamp { secs: 7, nanos: 9 }).unwrap();
    device
}

/// The same blocks changed through a cache in one transaction, and one of them freed in a second.
fn cached(shape: (u32, u32), count: u64) -> Arc<MemDevice> {
    let device = medium(shape);
    let cache = Cache::new(device.clone(), CacheOptions::default(), Arc::new(ManualClock::new()));
    let config = JournalConfig { mode: JournalMode::Ordered, area: area(), commit_interval: Duration::MAX };
    cache.start_journal(config).unwrap();
    let change = |no| {
        let block = cache.fresh(BlockNo(no), BlockKind::Inode).unwrap();
        cache.lock().init(&block, Arc::new(contents(no)), &[]);
    };
    (1..=count).for_each(change);
    assert!(cache.close_transaction().unwrap());
    cache.lock().forget(BlockNo(1));
    change(3);
    assert!(cache.close_transaction().unwrap());
    cache.sync_all().unwrap();
    device
}

/// A header, and what follows it at the start of the block.
fn block(kind: u8, sequence: u8, rest: &[u8]) -> Vec<u8> {
    let mut block = vec![0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, kind, 0, 0, 0, sequence];
    block.extend(rest);
    block.resize(BLOCK, 0);
    block
}

/// A tag: the block's number, two bytes unused, flags.
fn tag(no: u8, flags: u8) -> [u8; 8] {
    [0, 0, 0, no, 0, 0, 0, flags]
}

/// A descriptor of three copies, of which the second has lost its magic number.
fn three_copies() -> Vec<Vec<u8>> {
    let first = [tag(1, 0).as_slice(), &[0xab; 16]].concat();
    let descriptor = block(1, 1, &[first, tag(2, 1 | 2).to_vec(), tag(3, 2 | 8).to_vec()].concat());
    let mut escaped = vec![2; BLOCK];
    escaped[..4].fill(0);
    vec![descriptor, vec![1; BLOCK], escaped, vec![3; BLOCK]]
}

/// A commit block of a moment in seconds and nanoseconds.
fn commit(sequence: u8, secs: u8, nanos: u8) -> Vec<u8> {
    let mut commit = block(2, sequence, &[]);
    (commit[0x37], commit[0x3b]) = (secs, nanos);
    commit
}

#[test]
fn a_transaction_of_its_own_has_these_bytes() {
    let expected = [three_copies(), vec![commit(1, 7, 9)]].concat();
    assert!(log(&applied(SHAPES[0], 3), 5) == expected);
}

#[test]
fn the_transactions_of_a_cache_have_these_bytes() {
    let revoke = block(5, 2, &[0, 0, 0, 20, 0, 0, 0, 1]);
    let descriptor = block(1, 2, &[tag(3, 8).as_slice(), &[0xab; 16]].concat());
    let second = vec![revoke, descriptor, vec![3; BLOCK], commit(2, 0, 0)];
    let expected = [three_copies(), vec![commit(1, 0, 0)], second].concat();
    assert!(log(&cached(SHAPES[0], 3), 9) == expected);
}

/// Several descriptors, and every shape: of a transaction of its own and of a cache's, the CRC-32 of the log.
#[test]
fn no_shape_of_a_log_has_other_bytes() {
    let expected = [
        (0x7de1_e11c, 0xa716_7c69),
        (0x0507_83e7, 0x5fe3_ae2f),
        (0xbbeb_149d, 0xd23a_e420),
        (0x8029_2cf3, 0x55d0_9f62),
        (0xd30f_8595, 0xbf48_e414),
        (0x0d38_a073, 0x191d_afeb),
    ];
    for (shape, expected) in SHAPES.into_iter().zip(expected) {
        let sums = [applied(shape, 150), cached(shape, 150)].map(|device| sum(&log(&device, 160)));
        assert_eq!((sums[0], sums[1]), expected, "{shape:?}");
    }
}
