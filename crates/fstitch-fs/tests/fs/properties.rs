//! Random operations on a file system and on the model.

use std::sync::Arc;

use fstitch_core::{FileSystem, ManualClock};
use fstitch_fs::uhfs::{AtimePolicy, Uhfs, UhfsOptions};
use fstitch_patch::{CacheOptions, Optimizations};
use proptest::prelude::*;

use crate::driver::{Medium, Op, Path, Target, compare};
use crate::toy::{Toy, ToyFs};

fn options() -> UhfsOptions {
    // Few idle nodes, so that inodes leave memory all the time.
    UhfsOptions { atime: AtimePolicy::NoAtime, idle_nodes: 2, ..UhfsOptions::default() }
}

struct ToyMedium(Arc<Toy>);

impl Medium for ToyMedium {
    fn mount(&self) -> Box<dyn FileSystem> {
        Box::new(Uhfs::new(ToyFs(Arc::clone(&self.0)), options()))
    }
}

fn path() -> impl Strategy<Value = Path> {
    let component = prop_oneof![
        8 => proptest::sample::select(vec!["a", "b", "c", "d"]).prop_map(str::to_owned),
        1 => proptest::sample::select(vec![".", "..", "e-with-a-longer-name"]).prop_map(str::to_owned),
    ];
    let joined = proptest::collection::vec(component, 1..4).prop_map(|parts| parts.join("/").into_bytes());
    prop_oneof![40 => joined, 1 => Just(vec![b'x'; 255]), 1 => Just(vec![b'x'; 256])]
}

/// A path without `.`, `..` and names that are too long: for these, Linux and the model answer renames that are
/// wrong in two ways differently.
fn plain_path() -> impl Strategy<Value = Path> {
    path().prop_filter("plain", |path| !path.ends_with(b".") && path.len() < 256)
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![4 => path().prop_map(Target::Path), 1 => (0..4_usize).prop_map(Target::Held)]
}

/// Offsets around block and indirect boundaries, and anywhere.
fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..70_000_u64,
        (0..64_u64).prop_map(|block| block * 1024),
        (0..16_u64, 0..3_u64).prop_map(|(block, around)| (block * 4096 + around).saturating_sub(1)),
    ]
}

fn perm() -> impl Strategy<Value = u16> {
    0..0o10_000_u16
}

fn names() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (path(), perm()).prop_map(|(path, perm)| Op::Create(path, perm)),
        4 => (path(), perm()).prop_map(|(path, perm)| Op::Mkdir(path, perm & 0o1777)),
        1 => (path(), 1..200_usize).prop_map(|(path, len)| Op::Symlink(path, vec![b't'; len])),
        1 => (path(), perm(), any::<u32>()).prop_map(|(path, perm, dev)| Op::Device(path, perm, dev)),
        2 => (target(), path()).prop_map(|(target, path)| Op::Link(target, path)),
        3 => path().prop_map(Op::Unlink),
        2 => path().prop_map(Op::Rmdir),
        5 => (plain_path(), plain_path(), any::<bool>()).prop_map(|(from, to, replace)| Op::Rename(from, to, replace)),
    ]
}

fn contents() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (target(), offset(), 1..20_000_usize, any::<u8>())
            .prop_map(|(target, offset, len, byte)| Op::Write(target, offset, len, byte)),
        1 => (target(), offset(), 0..20_000_usize).prop_map(|(t, offset, len)| Op::Read(t, offset, len)),
        1 => (target(), offset(), any::<bool>()).prop_map(|(t, offset, data)| Op::Seek(t, offset, data)),
        2 => (target(), offset()).prop_map(|(target, size)| Op::Truncate(target, size)),
        2 => (target(), offset(), 0..20_000_u64, 0..5_u8)
            .prop_map(|(target, offset, len, mode)| Op::Fallocate(target, offset, len, mode)),
    ]
}

fn others() -> impl Strategy<Value = Op> {
    prop_oneof![
        (target(), perm()).prop_map(|(target, perm)| Op::Chmod(target, perm)),
        (target(), 0..3_u32, 0..3_u32).prop_map(|(target, uid, gid)| Op::Chown(target, uid, gid)),
        (target(), 0..100_000_i64).prop_map(|(target, secs)| Op::Utimes(target, secs)),
        (target(), 0..9_u8, 0..80_usize, 0..3_u8)
            .prop_map(|(target, name, len, mode)| Op::SetXattr(target, name, len, mode)),
        (target(), 0..9_u8).prop_map(|(target, name)| Op::RemoveXattr(target, name)),
        path().prop_map(Op::Tmpfile),
        path().prop_map(Op::Hold),
        (0..4_usize).prop_map(Op::Release),
        (target(), any::<bool>()).prop_map(|(target, data_only)| Op::Fsync(target, data_only)),
        Just(Op::Sync),
        Just(Op::Remount),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![5 => names(), 4 => contents(), 3 => others()]
}

fn cache_options(cache_size: usize, optimizations: u8) -> CacheOptions {
    let optimizations = Optimizations::combination(optimizations);
    CacheOptions { cache_size, optimizations, ..CacheOptions::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    /// The generic part alone, over a format that keeps its metadata in memory.
    #[test]
    fn the_toy_answers_as_the_model(
        ops in proptest::collection::vec(op(), 1..250),
        (block_size, small, optimizations) in (0..3_u32, any::<bool>(), 0..16_u8),
    ) {
        let block_size = 1024 << block_size;
        let clock = Arc::new(ManualClock::new());
        let cache_size = if small { CacheOptions::MIN_CACHE_SIZE } else { 64 << 20 };
        let options = cache_options(cache_size, optimizations);
        let toy = Toy::new(block_size, 8192, options, Arc::clone(&clock));
        let left = compare(&ToyMedium(Arc::clone(&toy)), block_size, &clock, &ops);
        prop_assert_eq!(u64::try_from(toy.inode_count()).unwrap(), left, "no inode leaks");
    }
}
