//! Several threads at once: what it prevents is a deadlock between inode locks, and an inode or block that two
//! operations lose or free twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fstitch_core::{ManualClock, Seed};
use fstitch_patch::CacheOptions;

use crate::driver::{Op, Path, Side, Target};
use crate::properties::{Ext2Medium, cache_options};

const OPERATIONS: usize = 600;

/// A path in a tree so small that the threads meet all the time.
fn path(seed: &mut Seed) -> Path {
    let mut component = || b'a' + u8::try_from(seed.below(3)).unwrap();
    let (dir, name) = (component(), component());
    match seed.below(3) {
        0 => vec![name],
        1 => vec![dir, b'/', name],
        _ => vec![dir, b'/', b'a', b'/', name],
    }
}

fn operation(seed: &mut Seed) -> Op {
    let (one, other) = (path(seed), path(seed));
    match seed.below(11) {
        0 | 1 => Op::Create(one, 0o644),
        2 | 3 => Op::Mkdir(one, 0o755),
        4 => Op::Link(Target::Path(one), other),
        5 => Op::Unlink(one),
        6 => Op::Rmdir(one),
        7 | 8 => Op::Rename(one, other, seed.chance(1, 2)),
        9 => Op::Write(Target::Path(one), seed.below(20_000), 3000, 1),
        _ if seed.chance(1, 4) => Op::Fsync(Target::Path(one), false),
        _ => Op::Truncate(Target::Path(one), seed.below(20_000)),
    }
}

fn run(options: CacheOptions, first_seed: u64) {
    let clock = Arc::new(ManualClock::new());
    // e2fsck takes the deletion times of the first hour of 1970 for links of an orphan list.
    clock.advance(Duration::from_secs(1_700_000_000));
    let medium = Ext2Medium::new(1024, 8 << 20, options, &clock);
    let (cache, fs) = medium.mount_with_cache();
    cache.start_flusher().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Each sync lets inodes go that the others are about to use.
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                fs.sync().unwrap();
            }
        });
        let workers = [0, 1, 2, 3].map(|thread| {
            let mut side = Side::new(Arc::clone(&fs));
            scope.spawn(move || {
                let mut seed = Seed::new(first_seed + thread);
                for _ in 0..OPERATIONS {
                    side.run(&operation(&mut seed));
                }
            })
        });
        let ended = workers.map(std::thread::ScopedJoinHandle::join);
        done.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok), "seed {first_seed}");
    });
    let side = Side::new(fs);
    let tree = side.tree();
    side.fs.unmount().unwrap();
    medium.judge();
    let (_, again) = medium.mount_with_cache();
    assert_eq!(Side::new(again).tree(), tree, "seed {first_seed}");
}

#[test]
fn threads_share_a_volume() {
    for seed in 0..4 {
        run(cache_options(64 << 20, 15), seed * 4);
        run(cache_options(CacheOptions::MIN_CACHE_SIZE, 15), (seed + 100) * 4);
    }
}
