//! Patchgroups of one cache, call by call.
//!
//! What it prevents: an order that is lost on the way through a group, a group that holds blocks back, a cycle with a
//! journal's transactions. Random programs are the crash laboratory's.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use fstitch_core::groups::{Engaged, GroupCall, GroupId};
use fstitch_core::{BlockBuf, BlockDevice, BlockKind, BlockNo, BlockWrite, Errno, ManualClock, MemDevice};
use fstitch_patch::journal::Area;
use fstitch_patch::journal::format::{SUPERBLOCK_SIZE, Superblock};
use fstitch_patch::{
    Cache, CacheOptions, JournalConfig, JournalMode, Linear, Ordering, PatchId, PatchState, VolumeOptions,
};

const BLOCK: usize = 1024;

fn cache(ordering: Ordering) -> (Arc<MemDevice>, Arc<Cache>) {
    let device = Arc::new(MemDevice::new(1024, 200));
    let options = CacheOptions { ordering, ..CacheOptions::default() };
    (Arc::clone(&device), Cache::new(device, options, Arc::new(ManualClock::new())))
}

fn journaled(mode: JournalMode) -> Arc<Cache> {
    let (device, cache) = cache(Ordering::Kept);
    let superblock = Superblock::new(1024, 60, 1, [9; 16]);
    let mut block = vec![0; BLOCK];
    superblock.encode_into(&mut block[..SUPERBLOCK_SIZE]);
    let write = BlockWrite { block: BlockNo(100), kind: BlockKind::JournalSuperblock, data: &block };
    device.write(&[write]).unwrap();
    let area = Area::of_file([(BlockNo(100), 60)]).unwrap();
    cache.start_journal(JournalConfig { mode, area, commit_interval: Duration::from_secs(5) }).unwrap();
    cache
}

fn group(cache: &Cache) -> GroupId {
    cache.group(GroupCall::Create).unwrap()
}

fn depend(cache: &Cache, after: GroupId, before: GroupId) {
    cache.group(GroupCall::Depend { after, before }).unwrap();
}

/// Engages a group for one change of a block.
fn change_in(cache: &Cache, group: GroupId, no: u64, kind: BlockKind) -> PatchId {
    cache.group(GroupCall::Engage(group)).unwrap();
    let patch = {
        let _engaged = Engaged::enter(&[group]);
        let _step = cache.begin(BLOCK, 4).unwrap();
        let block = cache.fresh(BlockNo(no), kind).unwrap();
        let contents = Arc::new(BlockBuf::copy_of(&[7; BLOCK]));
        cache.lock().init(&block, contents, &[])
    };
    cache.group(GroupCall::Disengage(group)).unwrap();
    patch
}

fn committed(cache: &Cache, patch: PatchId) -> bool {
    cache.state(patch) == PatchState::Committed
}

#[test]
fn order_passes_through_groups_without_changes() {
    let (_, cache) = cache(Ordering::Kept);
    let (first, empty, last) = (group(&cache), group(&cache), group(&cache));
    let before = change_in(&cache, first, 1, BlockKind::Data);
    depend(&cache, empty, first);
    depend(&cache, last, empty);
    let after = change_in(&cache, last, 2, BlockKind::Data);
    // Whatever may be written of the last group's block is written, and nothing of the first one's.
    cache.step_blocks(&mut |no| no == BlockNo(2)).unwrap();
    assert!(!committed(&cache, after), "it comes after the first group");
    cache.group(GroupCall::Sync(last)).unwrap();
    assert!(committed(&cache, before) && committed(&cache, after));
    cache.check_invariants();
}

#[test]
fn a_group_holds_nothing_back() {
    let (_, cache) = cache(Ordering::Kept);
    let open = group(&cache);
    let patch = change_in(&cache, open, 1, BlockKind::Data);
    cache.group(GroupCall::Engage(open)).unwrap();
    cache.sync_all().unwrap();
    assert!(committed(&cache, patch) && cache.dirty_blocks() == 0, "it is engaged, and everything is stable");
    cache.group(GroupCall::Disengage(open)).unwrap();
    cache.group(GroupCall::Close(open)).unwrap();
    assert_eq!(cache.group_count(), 0);
    // What comes after a group that is stable, or closed, comes after nothing.
    let (one, two) = (group(&cache), group(&cache));
    depend(&cache, two, one);
    cache.group(GroupCall::Close(one)).unwrap();
    let patch = change_in(&cache, two, 2, BlockKind::Data);
    cache.sync_patches(&[patch]).unwrap();
}

#[test]
fn the_order_of_a_closed_group_stays() {
    let (_, cache) = cache(Ordering::Kept);
    let (one, two) = (group(&cache), group(&cache));
    let before = change_in(&cache, one, 1, BlockKind::Data);
    depend(&cache, two, one);
    cache.group(GroupCall::Close(one)).unwrap();
    let after = change_in(&cache, two, 2, BlockKind::Data);
    cache.group(GroupCall::Close(two)).unwrap();
    cache.sync_patches(&[after]).unwrap();
    assert!(committed(&cache, before));
}

#[test]
fn contents_after_metadata_of_the_running_transaction_close_it() {
    for mode in [JournalMode::Ordered, JournalMode::Metadata, JournalMode::Full] {
        let cache = journaled(mode);
        let (one, two) = (group(&cache), group(&cache));
        let before = change_in(&cache, one, 1, BlockKind::Inode);
        depend(&cache, two, one);
        let after = change_in(&cache, two, 2, BlockKind::Data);
        let logged = change_in(&cache, two, 3, BlockKind::Inode);
        cache.check_invariants();
        let closed = cache.journal_status().unwrap().closed;
        assert_eq!(closed, u64::from(mode != JournalMode::Full), "{mode:?}");
        cache.sync_patches(&[after, logged]).unwrap();
        assert!(committed(&cache, before));
        cache.stop_journal().unwrap();
    }
}

#[test]
fn metadata_comes_after_contents_that_no_journal_has() {
    let cache = journaled(JournalMode::Metadata);
    let (one, two) = (group(&cache), group(&cache));
    let before = change_in(&cache, one, 20, BlockKind::Data);
    depend(&cache, two, one);
    let after = change_in(&cache, two, 3, BlockKind::Inode);
    cache.close_transaction().unwrap();
    while cache.step_blocks(&mut |no| no != BlockNo(20)).unwrap() > 0 {}
    assert!(
        !committed(&cache, after) && !committed(&cache, before),
        "the commit record waits for the contents"
    );
    cache.sync_all().unwrap();
    assert!(committed(&cache, after) && committed(&cache, before));
    cache.stop_journal().unwrap();
}

#[test]
fn what_cannot_be_is_refused() {
    let (_, dropped) = cache(Ordering::Dropped);
    let refused = |cache: &Cache, call: GroupCall| cache.group(call).unwrap_err().errno();
    assert_eq!(refused(&dropped, GroupCall::Create), Errno::OPNOTSUPP);
    let (_, whole) = cache(Ordering::Kept);
    let half =
        whole.volume(Arc::new(Linear { first: BlockNo(0), count: 50 }), VolumeOptions::default()).unwrap();
    let (here, there) = (group(&whole), group(&half));
    assert_eq!(refused(&whole, GroupCall::Depend { after: here, before: there }), Errno::XDEV);
    assert_eq!(refused(&half, GroupCall::Engage(here)), Errno::XDEV);
    assert_eq!(refused(&whole, GroupCall::Depend { after: here, before: here }), Errno::INVAL);
    whole.group(GroupCall::Engage(here)).unwrap();
    let other = group(&whole);
    assert_eq!(refused(&whole, GroupCall::Depend { after: other, before: here }), Errno::BUSY);
    assert_eq!(refused(&whole, GroupCall::Depend { after: here, before: other }), Errno::INVAL);
    whole.group(GroupCall::Close(here)).unwrap();
    assert_eq!(refused(&whole, GroupCall::Sync(here)), Errno::BADF);
}
