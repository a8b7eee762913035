//! Patchgroups of one cache, call by call.
//!
//! What it prevents: an order that is lost on the way through a group, a group that holds blocks back, a cycle with a
//! journal's transactions. Random programs are the crash laboratory's.

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

fn is_logged(cache: &Cache, patch: PatchId) -> bool {
    cache.lock().is_logged(patch)
}

const WITHOUT_CONTENTS: [JournalMode; 2] = [JournalMode::Ordered, JournalMode::Metadata];

#[test]
fn contents_after_metadata_of_the_running_transaction_are_part_of_it() {
    for mode in [JournalMode::Ordered, JournalMode::Metadata, JournalMode::Full] {
        let cache = journaled(mode);
        let (one, two, three) = (group(&cache), group(&cache), group(&cache));
        let before = change_in(&cache, one, 1, BlockKind::Inode);
        depend(&cache, two, one);
        let after = change_in(&cache, two, 2, BlockKind::Data);
        depend(&cache, three, two);
        let last = change_in(&cache, three, 3, BlockKind::Inode);
        assert!(is_logged(&cache, after), "{mode:?}");
        cache.check_invariants();
        while cache.step_blocks(&mut |_| true).unwrap() > 0 {}
        let none = [before, after, last].iter().all(|&patch| !committed(&cache, patch));
        assert!(none, "{mode:?}: nothing of a transaction is there before it closes");
        assert_eq!(cache.journal_status().unwrap().closed, 0, "{mode:?}: nobody has to wait");
        cache.sync_patches(&[last]).unwrap();
        assert_eq!(cache.journal_status().unwrap().closed, 1, "{mode:?}");
        cache.stop_journal().unwrap();
    }
}

/// Prevents a group's contents that come after the commit record because others, in the same block, do.
#[test]
fn contents_over_others_that_wait_for_the_running_transaction_are_part_of_it() {
    for mode in WITHOUT_CONTENTS {
        let cache = journaled(mode);
        let change = |no: u64, kind, befores: &[PatchId]| {
            let _step = cache.begin(BLOCK, 4).unwrap();
            let block = cache.fresh(BlockNo(no), kind).unwrap();
            cache.lock().bytes(&block, 0, &[5; 100], befores)
        };
        // Nobody's: contents that come after metadata.
        let metadata = change(1, BlockKind::Inode, &[]);
        let waiting = change(2, BlockKind::Data, &[metadata]);
        assert!(!is_logged(&cache, waiting), "{mode:?}");
        let (one, two) = (group(&cache), group(&cache));
        let over = change_in(&cache, one, 2, BlockKind::Data);
        depend(&cache, two, one);
        let after = change_in(&cache, two, 3, BlockKind::Inode);
        assert!(is_logged(&cache, over), "{mode:?}");
        cache.close_transaction().unwrap();
        while cache.step_blocks(&mut |no| no != BlockNo(2)).unwrap() > 0 {}
        assert!(committed(&cache, over) && committed(&cache, after), "{mode:?}: one transaction has both");
        cache.stop_journal().unwrap();
    }
}

#[test]
fn contents_of_new_blocks_wait_for_nothing_and_are_waited_for() {
    for mode in WITHOUT_CONTENTS {
        let cache = journaled(mode);
        let (one, two) = (group(&cache), group(&cache));
        change_in(&cache, one, 1, BlockKind::Inode);
        depend(&cache, two, one);
        cache.group(GroupCall::Engage(two)).unwrap();
        let mut contents = Vec::new();
        for no in [20, 21] {
            let _engaged = Engaged::enter(&[two]);
            let _step = cache.begin(BLOCK, 4).unwrap();
            let block = cache.fresh(BlockNo(no), BlockKind::Data).unwrap();
            let mut tx = cache.lock();
            tx.note_new(&block);
            contents.push(tx.init(&block, Arc::new(BlockBuf::copy_of(&[7; BLOCK])), &[]));
        }
        cache.group(GroupCall::Disengage(two)).unwrap();
        let named = change_in(&cache, two, 3, BlockKind::Inode);
        cache.step_blocks(&mut |no| no == BlockNo(20)).unwrap();
        assert!(committed(&cache, contents[0]), "{mode:?}: nobody can see it yet");
        cache.close_transaction().unwrap();
        while cache.step_blocks(&mut |no| no != BlockNo(21)).unwrap() > 0 {}
        assert!(!committed(&cache, named), "{mode:?}: the commit record waits for the other one");
        cache.sync_all().unwrap();
        // Now it is an old block.
        let (three, four) = (group(&cache), group(&cache));
        change_in(&cache, three, 1, BlockKind::Inode);
        depend(&cache, four, three);
        let again = change_in(&cache, four, 21, BlockKind::Data);
        assert!(is_logged(&cache, again), "{mode:?}");
        cache.stop_journal().unwrap();
    }
}

/// Prevents an order that ends where a transaction has contents only and so writes no commit record.
#[test]
fn the_next_transaction_comes_after_contents_that_had_none() {
    for mode in WITHOUT_CONTENTS {
        let cache = journaled(mode);
        let (one, two) = (group(&cache), group(&cache));
        let contents = change_in(&cache, one, 2, BlockKind::Data);
        cache.close_transaction().unwrap();
        // Another one of that kind, which is nobody's.
        let others = cache.fresh(BlockNo(4), BlockKind::Data).unwrap();
        cache.lock().init(&others, Arc::new(BlockBuf::zeroed(BLOCK)), &[]);
        cache.close_transaction().unwrap();
        depend(&cache, two, one);
        let after = change_in(&cache, two, 1, BlockKind::Inode);
        cache.close_transaction().unwrap();
        while cache.step_blocks(&mut |no| no != BlockNo(2)).unwrap() > 0 {}
        assert!(!committed(&cache, after) && !committed(&cache, contents), "{mode:?}");
        cache.sync_patches(&[after]).unwrap();
        cache.stop_journal().unwrap();
    }
}

/// Prevents a replay that brings back what was overwritten later.
#[test]
fn contents_that_the_log_has_are_logged_again() {
    for mode in WITHOUT_CONTENTS {
        let cache = journaled(mode);
        let overwrite = || {
            let _step = cache.begin(BLOCK, 4).unwrap();
            let block = cache.read(BlockNo(2), BlockKind::Data).unwrap();
            cache.lock().bytes(&block, 0, &[8; 10], &[])
        };
        assert!(!is_logged(&cache, overwrite()), "{mode:?}");
        let (one, two) = (group(&cache), group(&cache));
        change_in(&cache, one, 1, BlockKind::Inode);
        depend(&cache, two, one);
        change_in(&cache, two, 2, BlockKind::Data);
        for group in [one, two] {
            cache.group(GroupCall::Close(group)).unwrap();
        }
        assert!(is_logged(&cache, overwrite()), "{mode:?}: the running transaction has it");
        cache.close_transaction().unwrap();
        assert!(is_logged(&cache, overwrite()), "{mode:?}: a closed one has it");
        cache.sync_all().unwrap();
        // Once the log has gone around, it has no copy any more.
        for _ in 0..60 {
            let _step = cache.begin(0, 4).unwrap();
            let block = cache.fresh(BlockNo(5), BlockKind::Inode).unwrap();
            cache.lock().init(&block, Arc::new(BlockBuf::zeroed(BLOCK)), &[]);
            drop(_step);
            cache.sync_all().unwrap();
            while cache.step_blocks(&mut |_| true).unwrap() > 0 {}
        }
        assert!(!is_logged(&cache, overwrite()), "{mode:?}");
        cache.stop_journal().unwrap();
    }
}

/// Prevents contents of a loopback's new block in the log of the volume below, which would bring them back over its own.
#[test]
fn a_freed_block_has_no_contents_in_the_log_any_more() {
    let cache = journaled(JournalMode::Ordered);
    let (one, two) = (group(&cache), group(&cache));
    change_in(&cache, one, 1, BlockKind::Inode);
    depend(&cache, two, one);
    assert!(is_logged(&cache, change_in(&cache, two, 20, BlockKind::Data)));
    cache.close_transaction().unwrap();
    let inode = cache.fresh(BlockNo(3), BlockKind::Inode).unwrap();
    {
        let mut tx = cache.lock();
        tx.init(&inode, Arc::new(BlockBuf::zeroed(BLOCK)), &[]);
        tx.forget(BlockNo(20));
    }
    cache.close_transaction().unwrap();
    let _step = cache.begin(BLOCK, 4).unwrap();
    let again = cache.fresh(BlockNo(20), BlockKind::Data).unwrap();
    let mut tx = cache.lock();
    tx.bytes(&inode, 0, &[1], &[]);
    tx.note_new(&again);
    let contents = tx.init(&again, Arc::new(BlockBuf::zeroed(BLOCK)), &[]);
    assert!(!tx.is_logged(contents));
    drop(tx);
    drop(_step);
    cache.sync_all().unwrap();
    cache.stop_journal().unwrap();
}

#[test]
fn a_copy_comes_after_what_its_block_has_of_other_contents() {
    let cache = journaled(JournalMode::Metadata);
    let [elsewhere, block] = [31, 30].map(|no| cache.fresh(BlockNo(no), BlockKind::Data).unwrap());
    {
        let _step = cache.begin(2 * BLOCK, 0).unwrap();
        let mut tx = cache.lock();
        let first = tx.init(&elsewhere, Arc::new(BlockBuf::copy_of(&[1; BLOCK])), &[]);
        tx.init(&block, Arc::new(BlockBuf::copy_of(&[2; BLOCK])), &[first]);
    }
    let (one, two) = (group(&cache), group(&cache));
    change_in(&cache, one, 1, BlockKind::Inode);
    depend(&cache, two, one);
    cache.group(GroupCall::Engage(two)).unwrap();
    let copied = {
        let _engaged = Engaged::enter(&[two]);
        let _step = cache.begin(BLOCK, 4).unwrap();
        cache.lock().bytes(&block, 100, &[3; 10], &[])
    };
    assert!(is_logged(&cache, copied));
    cache.close_transaction().unwrap();
    while cache.step_blocks(&mut |no| no != BlockNo(31)).unwrap() > 0 {}
    assert!(!committed(&cache, copied), "the copy has what comes after the other block");
    cache.group(GroupCall::Sync(two)).unwrap();
    cache.check_invariants();
    cache.stop_journal().unwrap();
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
