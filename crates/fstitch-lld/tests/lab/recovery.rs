//! Failures during recovery.

use std::collections::BTreeMap;
use std::sync::Arc;

use fstitch_core::BlockDevice;
use fstitch_crashlab::Level;
use fstitch_lld::{At, BlockId, Disk, Options};

use crate::rig::{BLOCK, Rig, Shown, choices, explore_all, formatted, options};

/// The log behind the checkpoint is long, and in many of its segments nothing is alive any more: what recovery writes must not lie there
/// before its checkpoint is stable.
fn recovering() -> Rig {
    const WRITTEN: usize = 280;
    let made = formatted(60);
    let rarely = Options { checkpoint_interval: 64 << 20, cache_size: 8 << 20, ..options() };
    let (disk, _) = Disk::open(Arc::clone(&made) as Arc<dyn BlockDevice>, &rarely).unwrap();
    let before = disk.counters().checkpoints;
    let list = disk.new_list(false).unwrap();
    let blocks: Vec<BlockId> = (0..2500).map(|_| disk.new_block(list, At::Start).unwrap()).collect();
    for round in 1..=2 {
        blocks[..WRITTEN].iter().for_each(|block| disk.write(*block, &[round; BLOCK]).unwrap());
    }
    disk.flush().unwrap();
    assert_eq!(disk.counters().checkpoints, before);
    let all = blocks.iter().enumerate().rev();
    let all = all.map(|(at, block)| (*block, if at < WRITTEN { 2 } else { 0 })).collect();
    Rig::on(made.image(), Shown { ordered: BTreeMap::from([(list, all)]), ..Shown::default() })
}

#[test]
fn a_failure_during_recovery_is_recovered_from() {
    explore_all(0..1, choices(16), &|_| (recovering(), "recovery".to_owned(), Level::ALL.to_vec()));
}
