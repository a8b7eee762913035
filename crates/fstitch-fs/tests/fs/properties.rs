//! Random operations on a file system and on the model.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fstitch_core::num::to_usize;
use fstitch_core::{BlockDevice, FileSystem, ManualClock, MemDevice, Timestamp};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::mkfs::{MkfsOptions, mkfs};
use fstitch_fs::uhfs::{AtimePolicy, Uhfs, UhfsOptions};
use fstitch_patch::{Cache, CacheOptions, Optimizations};
use proptest::prelude::*;

use crate::driver::{Medium, Op, Path, Target, compare};
use crate::earlier::earlier;
use crate::shape::shape;
use crate::toy::{Toy, ToyFs};

fn options() -> UhfsOptions {
    // Few idle nodes, so that inodes leave memory all the time.
    UhfsOptions { atime: AtimePolicy::NoAtime, idle_nodes: Some(2), ..UhfsOptions::default() }
}

struct ToyMedium(Arc<Toy>);

impl Medium for ToyMedium {
    fn mount(&self) -> Arc<dyn FileSystem> {
        Arc::new(Uhfs::new(ToyFs(Arc::clone(&self.0)), options()))
    }

    fn link_max(&self) -> u32 {
        40
    }

    fn born_with(&self) -> Option<(&'static [u8], u16)> {
        None
    }
}

/// An ext2 volume in memory; each mount has a cache of its own, so that everything comes from the medium.
pub struct Ext2Medium {
    pub device: Arc<MemDevice>,
    options: CacheOptions,
    clock: Arc<ManualClock>,
}

impl Ext2Medium {
    pub fn new(block_size: u32, bytes: u64, options: CacheOptions, clock: &Arc<ManualClock>) -> Self {
        Self::over(vec![0; to_usize(bytes)], block_size, options, clock)
    }

    /// A new volume over what the medium held before.
    pub fn over(earlier: Vec<u8>, block_size: u32, options: CacheOptions, clock: &Arc<ManualClock>) -> Self {
        let device = Arc::new(MemDevice::from_image(block_size, earlier));
        let mut made = MkfsOptions::new([7; 16], [9; 16], Timestamp::default());
        made.block_size = Some(block_size);
        mkfs(&*device, &made, &mut |_, _| ()).unwrap();
        Self { device, options, clock: Arc::clone(clock) }
    }

    /// The image as it is now, on a device of its own.
    pub fn copy(&self) -> Self {
        let block_size = BlockDevice::geometry(&*self.device).block_size;
        let device = Arc::new(MemDevice::from_image(block_size, self.device.image()));
        Self { device, options: self.options.clone(), clock: Arc::clone(&self.clock) }
    }

    /// A mount together with its cache.
    pub fn mount_with_cache(&self) -> (Arc<Cache>, Arc<dyn FileSystem>) {
        let device = Arc::<MemDevice>::clone(&self.device);
        let clock = Arc::<ManualClock>::clone(&self.clock);
        let cache = Cache::new(device, self.options.clone(), clock);
        let format = Ext2::open(Arc::clone(&cache)).unwrap();
        (cache, Arc::new(Uhfs::new(format, options())))
    }

    /// What the reference checker says, where it is installed.
    pub fn judge(&self) {
        // Tests run side by side.
        static IMAGES: AtomicU64 = AtomicU64::new(0);
        let name =
            format!("fstitch-fs-{}-{}.img", std::process::id(), IMAGES.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, self.device.image()).unwrap();
        let judged = Command::new("e2fsck").arg("-fn").arg(&path).output();
        std::fs::remove_file(&path).unwrap();
        if let Ok(judged) = judged {
            let text = String::from_utf8_lossy(&judged.stdout);
            assert!(judged.status.success(), "{text}");
        }
    }
}

impl Medium for Ext2Medium {
    fn mount(&self) -> Arc<dyn FileSystem> {
        self.mount_with_cache().1
    }

    fn link_max(&self) -> u32 {
        32_000
    }

    fn born_with(&self) -> Option<(&'static [u8], u16)> {
        Some((b"lost+found", 0o700))
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
        2 => (target(), offset(), 1..20_000_usize, any::<u8>())
            .prop_map(|(target, offset, len, byte)| Op::WriteBack(target, offset, len, byte)),
        1 => (target(), offset(), 0..20_000_usize).prop_map(|(t, offset, len)| Op::Read(t, offset, len)),
        1 => (target(), offset(), any::<bool>()).prop_map(|(t, offset, data)| Op::Seek(t, offset, data)),
        2 => (target(), offset()).prop_map(|(target, size)| Op::Truncate(target, size)),
        2 => (target(), offset(), 0..20_000_u64, 0..7_u8)
            .prop_map(|(target, offset, len, mode)| Op::Fallocate(target, offset, len, mode)),
        1 => (target(), 0..16_u64, 1..6_u64, 5..7_u8)
            .prop_map(|(target, offset, len, mode)| Op::Fallocate(target, 4096 * offset, 4096 * len, mode)),
    ]
}

fn others() -> impl Strategy<Value = Op> {
    prop_oneof![
        (target(), perm()).prop_map(|(target, perm)| Op::Chmod(target, perm)),
        (target(), 0..4_u8).prop_map(|(target, which)| Op::Flags(target, which)),
        (target(), 0..3_u32, 0..3_u32).prop_map(|(target, uid, gid)| Op::Chown(target, uid, gid)),
        (target(), 0..100_000_i64).prop_map(|(target, secs)| Op::Utimes(target, secs)),
        (target(), 0..6_u8, 0..60_usize, 0..3_u8)
            .prop_map(|(target, name, len, mode)| Op::SetXattr(target, name, len, mode)),
        (target(), 0..6_u8).prop_map(|(target, name)| Op::RemoveXattr(target, name)),
        path().prop_map(Op::Tmpfile),
        path().prop_map(Op::Hold),
        (0..4_usize).prop_map(Op::Release),
        (target(), any::<bool>()).prop_map(|(target, data_only)| Op::Fsync(target, data_only)),
        Just(Op::Sync),
        Just(Op::Remount),
    ]
}

pub fn op() -> impl Strategy<Value = Op> {
    prop_oneof![5 => names(), 4 => contents(), 3 => others()]
}

pub fn cache_options(cache_size: usize, optimizations: u8) -> CacheOptions {
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// The same over a format that moves what it changes.
    #[test]
    fn a_toy_that_moves_its_blocks_answers_as_the_model(
        ops in proptest::collection::vec(op(), 1..250),
        (small, optimizations) in (any::<bool>(), 0..16_u8),
    ) {
        let clock = Arc::new(ManualClock::new());
        let cache_size = if small { CacheOptions::MIN_CACHE_SIZE } else { 64 << 20 };
        let toy = Toy::new(1024, 8192, cache_options(cache_size, optimizations), Arc::clone(&clock));
        toy.move_what_changes();
        let left = compare(&ToyMedium(Arc::clone(&toy)), 1024, &clock, &ops);
        prop_assert_eq!(u64::try_from(toy.inode_count()).unwrap(), left, "no inode leaks");
    }
}

/// Paths of a tree so small that names, directories and numbers come and go all the time.
fn near_path() -> impl Strategy<Value = Path> {
    let component = || proptest::sample::select(vec!["a", "b", "c"]);
    prop_oneof![
        1 => component().prop_map(|name| name.as_bytes().to_vec()),
        2 => (component(), component()).prop_map(|(dir, name)| format!("{dir}/{name}").into_bytes()),
    ]
}

/// What makes, moves and removes names.
fn near_name() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => near_path().prop_map(|path| Op::Create(path, 0o644)),
        3 => near_path().prop_map(|path| Op::Mkdir(path, 0o755)),
        4 => (near_path(), near_path()).prop_map(|(from, to)| Op::Link(Target::Path(from), to)),
        4 => near_path().prop_map(Op::Unlink),
        3 => near_path().prop_map(Op::Rmdir),
        3 => (near_path(), near_path()).prop_map(|(from, to)| Op::Rename(from, to, true)),
        1 => near_path().prop_map(|path| Op::Fsync(Target::Path(path), false)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// The toy gives the number that was freed last to the next inode: what remembers it must notice.
    #[test]
    fn numbers_that_come_again_are_other_inodes(
        ops in proptest::collection::vec(near_name(), 1..250),
    ) {
        let clock = Arc::new(ManualClock::new());
        let toy = Toy::new(1024, 8192, cache_options(64 << 20, 15), Arc::clone(&clock));
        compare(&ToyMedium(toy), 1024, &clock, &ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// The whole: ext2 under the generic part.
    #[test]
    fn ext2_answers_as_the_model(
        ops in proptest::collection::vec(op(), 1..150),
        (block_size, small, optimizations) in (0..3_u32, any::<bool>(), 0..16_u8),
    ) {
        let block_size = 1024 << block_size;
        let clock = Arc::new(ManualClock::new());
        let cache_size = if small { CacheOptions::MIN_CACHE_SIZE } else { 64 << 20 };
        let medium = Ext2Medium::new(block_size, 16 << 20, cache_options(cache_size, optimizations), &clock);
        compare(&medium, block_size, &clock, &ops);
        medium.judge();
    }
}

/// Borders of an ext2 file with blocks of 1 KiB, and of 4 KiB: the last direct block, the first indirect block, and the next.
const BORDERS: [u64; 10] = [
    0,
    1024,
    4096,
    8192,
    12 << 10,
    13 << 10,
    (12 + 256) << 10,
    (12 + 256 + 256) << 10,
    12 << 12,
    (12 + 1024) << 12,
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn files_of_ext2_have_their_shape(
        ops in proptest::collection::vec(shape(&BORDERS), 1..24),
        (block_size, small, optimizations) in (0..3_u32, any::<bool>(), 0..16_u8),
    ) {
        let block_size = 1024 << block_size;
        let clock = Arc::new(ManualClock::new());
        let cache_size = if small { CacheOptions::MIN_CACHE_SIZE } else { 64 << 20 };
        let options = cache_options(cache_size, optimizations);
        let medium = Ext2Medium::over(earlier(16 << 20), block_size, options, &clock);
        compare(&medium, block_size, &clock, &ops);
        medium.judge();
    }
}
