//! Volumes that share a cache.
//!
//! What it prevents: a volume that writes another one's blocks, waits for another one's transaction, or stops with another one.

use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{
    BlockBuf, BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, ManualClock, MemDevice,
};
use fstitch_patch::journal::Area;
use fstitch_patch::journal::format::{SUPERBLOCK_SIZE, Superblock};
use fstitch_patch::{
    Block, Cache, CacheOptions, JournalConfig, JournalMode, Linear, Ordering, PatchId, PatchState, Pieces,
    Placement, VolumeDevice, VolumeOptions,
};

const BLOCK: usize = 1024;
const BLOCKS: u64 = 200;
/// Of a volume's 100 blocks, the first one of its journal and how many that has.
const AREA: (u64, u64) = (50, 40);

fn stack(ordering: Ordering) -> (Arc<MemDevice>, Arc<Cache>) {
    let device = Arc::new(MemDevice::new(1024, BLOCKS));
    let options = CacheOptions { ordering, ..CacheOptions::default() };
    let cache = Cache::new(device.clone(), options, Arc::new(ManualClock::new()));
    (device, cache)
}

fn half(cache: &Cache, which: u64) -> Arc<Cache> {
    let place = Linear { first: BlockNo(which * 100), count: 100 };
    cache.volume(Arc::new(place), VolumeOptions::default()).unwrap()
}

fn keep_journal(device: &MemDevice, volume: &Cache, first: u64, mode: JournalMode) {
    let superblock = Superblock::new(1024, u32::try_from(AREA.1).unwrap(), 1, [9; 16]);
    let mut block = vec![0; BLOCK];
    superblock.encode_into(&mut block[..SUPERBLOCK_SIZE]);
    let write =
        BlockWrite { block: BlockNo(first + AREA.0), kind: BlockKind::JournalSuperblock, data: &block };
    device.write(&[write]).unwrap();
    let area = Area::of_file([(BlockNo(AREA.0), AREA.1)]).unwrap();
    volume.start_journal(JournalConfig { mode, area, commit_interval: Duration::from_secs(5) }).unwrap();
}

fn change(volume: &Cache, no: u64, kind: BlockKind, befores: &[PatchId]) -> (Block, PatchId) {
    let block = volume.fresh(BlockNo(no), kind).unwrap();
    let patch = volume.lock().init(&block, Arc::new(BlockBuf::copy_of(&[7; BLOCK])), befores);
    (block, patch)
}

fn on_medium(device: &MemDevice, no: u64) -> u8 {
    let mut data = vec![0; BLOCK];
    device.read(&mut [BlockRead { block: BlockNo(no), kind: BlockKind::Data, data: &mut data }]).unwrap();
    data[0]
}

#[test]
fn a_volume_has_its_own_numbers_and_syncs_only_itself() {
    let (device, cache) = stack(Ordering::Kept);
    let (one, two) = (half(&cache, 0), half(&cache, 1));
    let (block, mine) = change(&one, 3, BlockKind::Data, &[]);
    let (other, theirs) = change(&two, 3, BlockKind::Data, &[]);
    assert_eq!((block.no(), other.no(), two.block_count()), (BlockNo(3), BlockNo(3), 100));
    assert!(two.read(BlockNo(100), BlockKind::Data).is_err(), "it ends there");
    two.sync_all().unwrap();
    assert_eq!((on_medium(&device, 3), on_medium(&device, 103)), (0, 7));
    assert_eq!((one.state(mine), two.state(theirs)), (PatchState::Uncommitted, PatchState::Committed));
    assert_eq!(two.find(BlockNo(3)).unwrap().block, BlockNo(103));
}

#[test]
fn a_change_of_one_volume_comes_after_one_of_another() {
    let (device, cache) = stack(Ordering::Kept);
    let (one, two) = (half(&cache, 0), half(&cache, 1));
    let (_, first) = change(&one, 3, BlockKind::Inode, &[]);
    let (_, second) = change(&two, 4, BlockKind::Inode, &[first]);
    let mut order = Vec::new();
    while cache
        .step_blocks(&mut |no| {
            order.push(no.get());
            true
        })
        .unwrap()
        > 0
    {}
    order.dedup();
    assert_eq!(order, [3, 104]);
    assert_eq!((on_medium(&device, 104), cache.state(second)), (7, PatchState::Committed));
}

#[test]
fn each_volume_closes_its_own_transactions() {
    let (device, cache) = stack(Ordering::Kept);
    let (one, two) = (half(&cache, 0), half(&cache, 1));
    keep_journal(&device, &one, 0, JournalMode::Ordered);
    keep_journal(&device, &two, 100, JournalMode::Metadata);
    let (_, mine) = change(&one, 3, BlockKind::Inode, &[]);
    change(&two, 3, BlockKind::Inode, &[]);
    // An operation of the other volume is under way: nobody here waits for it.
    let _step = two.begin(0, 1).unwrap();
    one.sync_patches(&[mine]).unwrap();
    let closed = |volume: &Cache| volume.journal_status().unwrap().closed;
    assert_eq!((closed(&one), closed(&two)), (1, 0));
    one.sync_all().unwrap();
    one.stop_journal().unwrap();
    assert_eq!((on_medium(&device, 3), on_medium(&device, 103)), (7, 0));
    assert_eq!((one.is_journaled(), two.is_journaled()), (false, true));
    cache.check_invariants();
}

#[test]
fn changes_of_two_volumes_in_one_block_stay_two() {
    // As when a hole was filled below an inner volume: zeros for which nothing waits, and contents that wait for a transaction.
    let (device, cache) = stack(Ordering::Dropped);
    let inner = half(&cache, 1);
    keep_journal(&device, &inner, 100, JournalMode::Ordered);
    change(&cache, 110, BlockKind::Data, &[]);
    let (_, logged) = change(&inner, 3, BlockKind::Inode, &[]);
    let (_, late) = change(&inner, 10, BlockKind::Data, &[logged]);
    cache.check_invariants();
    inner.sync_patches(&[late]).unwrap();
    inner.stop_journal().unwrap();
    cache.sync_all().unwrap();
    assert_eq!((on_medium(&device, 103), on_medium(&device, 110)), (7, 7));
}

#[test]
fn damage_stops_one_volume_and_a_power_cut_all() {
    let (_, cache) = stack(Ordering::Kept);
    let (one, two) = (half(&cache, 0), half(&cache, 1));
    one.poison("damage");
    assert!(one.reserve(1).is_err() && one.sync_all().is_err() && one.poisoned().is_some());
    assert!(two.reserve(1).is_ok() && cache.poisoned().is_none());
    change(&two, 3, BlockKind::Data, &[]);
    two.sync_all().unwrap();
    two.abandon("the power is gone");
    assert!(cache.poisoned().is_some());
}

/// A file with a hole from block 8 on.
struct Holey;

impl Placement for Holey {
    fn block_count(&self) -> u64 {
        16
    }

    fn find(&self, no: BlockNo) -> Option<fstitch_patch::Spot> {
        (no.get() < 8).then(|| fstitch_patch::Spot::stable(no))
    }
}

#[test]
fn holes_read_as_zeros_where_nobody_may_fill_them() {
    let (_, cache) = stack(Ordering::Kept);
    let behind = Linear { first: BlockNo(50), count: 4 };
    let place: Arc<dyn Placement> = Arc::new(Pieces::new(vec![Arc::new(Holey), Arc::new(behind)]));
    change(&cache, 51, BlockKind::Data, &[]);
    change(&cache, 7, BlockKind::Data, &[]);
    let options = VolumeOptions { read_only: true, ..VolumeOptions::default() };
    let volume = cache.volume(place, options).unwrap();
    let first = |no| volume.read(BlockNo(no), BlockKind::Data).unwrap().snapshot()[0];
    assert_eq!((first(7), first(8), first(15), first(17)), (7, 0, 0, 7));
    let device = VolumeDevice::new(Arc::clone(&volume));
    let mut data = vec![1; BLOCK];
    device.read(&mut [BlockRead { block: BlockNo(12), kind: BlockKind::Data, data: &mut data }]).unwrap();
    assert_eq!((data, device.geometry().block_count), (vec![0; BLOCK], 20));
    let write = BlockWrite { block: BlockNo(1), kind: BlockKind::Data, data: &[1; BLOCK] };
    assert!(device.write(&[write]).is_err(), "it is read-only");
}
