//! Crashes of ext2 under the generic file system: blocks are written one by one in random lawful orders, with
//! patches undone, and every image in between is what a power cut may leave.
//!
//! What it prevents: an image that is damaged, cannot be mounted at once, or lacks what an fsync promised.

use std::sync::Arc;

use fstitch_core::{FindingClass, ManualClock, MemDevice, Seed, Timestamp};
use fstitch_core::{RepairMode, RepairOptions};
use fstitch_fs::ext2::check::{check_ext2, repair_ext2};
use fstitch_patch::{Cache, CacheOptions};
use proptest::prelude::*;

use crate::driver::{Answer, Leaf, Medium, Op, Path, Side, Target};
use crate::properties::{Ext2Medium, cache_options, op};

/// Fails if the image has damage that no crash may leave.
fn expect_lawful(device: &MemDevice, when: &str) {
    let report = check_ext2(device).unwrap();
    let damage: Vec<_> =
        report.findings.iter().filter(|finding| finding.class == FindingClass::Corrupt).collect();
    assert!(damage.is_empty(), "{when}: {damage:#?}");
}

/// What an fsync that has just returned promises.
fn promise(side: &Side, op: &Op, answer: &Answer) -> Option<(Path, Leaf)> {
    match (op, answer) {
        (Op::Fsync(Target::Path(path), _), Answer::Done) => Some((path.clone(), side.leaf(path).unwrap())),
        _ => None,
    }
}

/// Mounts a copy of the image as it is and looks at it, then mends another and has it judged.
fn recover(medium: &Ext2Medium, promised: Option<(Path, Leaf)>) {
    let copy = medium.copy();
    let side = Side::new(copy.mount());
    side.tree();
    if let Some((path, leaf)) = promised {
        let found = side.leaf(&path).unwrap();
        assert_eq!(found.contents(), leaf.contents(), "{path:?} was synced");
    }
    // A volume that a crash left is in use at once, and stays lawful.
    let mut side = side;
    let path = b"after-the-crash".to_vec();
    let made = side.run(&Op::Create(path.clone(), 0o644));
    assert!(matches!(made, Answer::Attr(_)), "{made:?}");
    assert_eq!(side.run(&Op::Write(Target::Path(path.clone()), 5000, 3000, 1)), Answer::Count(3000));
    assert_eq!(side.run(&Op::Unlink(path)), Answer::Done);
    side.fs.unmount().unwrap();
    expect_lawful(&copy.device, "used after the crash");
    let mended = medium.copy();
    // Preening mends only what a crash allows.
    let options = RepairOptions { mode: RepairMode::Preen, now: Timestamp::default() };
    repair_ext2(&*mended.device, options).unwrap();
    assert!(check_ext2(&*mended.device).unwrap().is_clean(), "mending mends everything");
}

/// Writes some of what can be written.
fn write_some(cache: &Cache, seed: &mut Seed) {
    cache.step_blocks(&mut |_| seed.chance(1, 3)).unwrap();
}

fn crash(block_size: u32, options: CacheOptions, ops: &[Op], seed: u64) {
    let clock = Arc::new(ManualClock::new());
    let medium = Ext2Medium::new(block_size, 4 << 20, options, &clock);
    let (cache, fs) = medium.mount_with_cache();
    let mut side = Side::new(fs);
    let mut seed = Seed::new(seed);
    for (i, op) in ops.iter().enumerate() {
        clock.advance(std::time::Duration::from_secs(1));
        let answer = side.run(op);
        let promised = promise(&side, op, &answer);
        for _ in 0..seed.below(4) {
            write_some(&cache, &mut seed);
            expect_lawful(&medium.device, &format!("after operation {i}: {op:?}"));
        }
        if promised.is_some() || seed.chance(1, 10) {
            recover(&medium, promised);
        }
    }
    side.release_all();
    while cache.dirty_blocks() > 0 {
        write_some(&cache, &mut seed);
        expect_lawful(&medium.device, "while everything is written");
    }
    recover(&medium, None);
    side.fs.unmount().unwrap();
    medium.judge();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn every_image_is_lawful(
        ops in proptest::collection::vec(op(), 1..60),
        (block_size, small, optimizations) in (0..3_u32, any::<bool>(), 0..16_u8),
        seed in any::<u64>(),
    ) {
        let cache_size = if small { CacheOptions::MIN_CACHE_SIZE } else { 64 << 20 };
        crash(1024 << block_size, cache_options(cache_size, optimizations), &ops, seed);
    }
}
