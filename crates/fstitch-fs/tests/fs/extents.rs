//! Random operations on files whose blocks are mapped by extents, through a journal, against the model.
//!
//! What they prevent: a map that loses or mixes up blocks when it is split, joined or cut, what a block held before in an unwritten
//! one, blocks behind an end that are lost or taken for damage, and a map that other implementations cannot read.

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use fstitch_core::num::to_usize;
use fstitch_core::{
    Consistency, FallocateMode, FileKind, FileSystem, InodeNo, ManualClock, MemDevice, SetAttr, Timestamp,
};
use fstitch_fs::arrange::{Arrangement, open};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::journal::{Options, recover};
use fstitch_fs::uhfs::{AtimePolicy, LowLevelFs, Uhfs, UhfsOptions};
use fstitch_patch::CacheOptions;
use proptest::prelude::*;

use crate::driver::{Medium, Op, Target, compare};
use crate::properties::{cache_options, op};
use crate::rig::CALLER;
use crate::shape::shape;

/// Bytes of a volume.
const SIZE: usize = 24 << 20;

/// A path for an image of its own: tests run side by side.
fn image_path() -> std::path::PathBuf {
    static IMAGES: AtomicU64 = AtomicU64::new(0);
    let no = IMAGES.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("fstitch-extents-{}-{no}.img", std::process::id()))
}

/// A new volume as the reference tools make it; `None`, said aloud, without them.
fn made(block_size: u32) -> Option<Vec<u8>> {
    static IMAGES: [OnceLock<Option<Vec<u8>>>; 3] = [const { OnceLock::new() }; 3];
    let at = to_usize(block_size.trailing_zeros()) - 10;
    // Groups so small that files lie in many.
    let groups = if block_size == 1024 { "1024" } else { "2048" };
    IMAGES[at].get_or_init(|| make(block_size, SIZE, &["-g", groups])).clone()
}

pub fn make(block_size: u32, size: usize, more: &[&str]) -> Option<Vec<u8>> {
    let path = image_path();
    let blocks_of = block_size.to_string();
    let journal = if block_size == 4096 { "size=4" } else { "size=2" };
    let features = ["-t", "ext3", "-O", "extent,^resize_inode", "-N", "512", "-m", "0", "-J", journal];
    let made = Command::new("mke2fs")
        .args(["-q", "-F", "-b", &blocks_of])
        .args(features)
        .args(more)
        .arg(&path)
        .arg(format!("{}k", size / 1024))
        .output();
    let Ok(made) = made else {
        println!("skipped: mke2fs is not installed");
        return None;
    };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let image = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    Some(as_of_old(image, block_size))
}

/// The directories that a new volume has were made when the clock began.
fn as_of_old(mut image: Vec<u8>, block_size: u32) -> Vec<u8> {
    let unit = to_usize(block_size);
    let table = if unit == 1024 { 2 } else { 1 };
    let inodes = to_usize(fstitch_core::Le::u32(&image, table * unit + 8)) * unit;
    let len = usize::from(fstitch_core::Le::u16(&image, 1024 + 0x58));
    for ino in [2, 11] {
        let inode = &mut image[inodes + (ino - 1) * len..][..len];
        inode[0x8..0x14].fill(0);
        inode[0x84..0x98].fill(0);
    }
    image
}

/// A volume in memory; each mount has a cache of its own, so that everything comes from the medium.
pub struct ExtentMedium {
    device: Arc<MemDevice>,
    options: CacheOptions,
    mode: Consistency,
    clock: Arc<ManualClock>,
    cluster_size: Option<u32>,
}

impl ExtentMedium {
    pub fn new(block_size: u32, options: CacheOptions, mode: Consistency) -> Option<Self> {
        Some(Self::of(stale(made(block_size)?, block_size), block_size, options, mode))
    }

    /// A volume with clusters of that size.
    fn with_clusters(
        (block_size, cluster_size): (u32, u32),
        options: CacheOptions,
        mode: Consistency,
    ) -> Option<Self> {
        static IMAGES: [OnceLock<Option<Vec<u8>>>; 3] = [const { OnceLock::new() }; 3];
        let at = to_usize(block_size.trailing_zeros()) - 10;
        let image = IMAGES[at].get_or_init(|| {
            let cluster = cluster_size.to_string();
            let more = ["-O", "extent,^resize_inode,bigalloc", "-C", &cluster, "-g", "1024"];
            Some(stale(make(block_size, SIZE, &more)?, block_size))
        });
        let medium = Self::of(image.clone()?, block_size, options, mode);
        Some(Self { cluster_size: Some(cluster_size), ..medium })
    }

    pub fn of(image: Vec<u8>, block_size: u32, options: CacheOptions, mode: Consistency) -> Self {
        let device = Arc::new(MemDevice::from_image(block_size, image));
        Self { device, options, mode, clock: Arc::new(ManualClock::new()), cluster_size: None }
    }

    pub fn opened(&self) -> Uhfs<Ext2> {
        let fs = UhfsOptions { atime: AtimePolicy::NoAtime, idle_nodes: Some(2), ..UhfsOptions::default() };
        let (cache, consistency) = (self.options.clone(), Some(self.mode));
        let arrangement = Arrangement { consistency, cache, fs, ..Arrangement::default() };
        let device = Arc::<MemDevice>::clone(&self.device);
        open::<Ext2>(device, &arrangement, Arc::<ManualClock>::clone(&self.clock)).unwrap().0
    }

    /// What its mounts take for the time.
    pub fn clock(&self) -> &ManualClock {
        &self.clock
    }

    /// What the reference checker says.
    pub fn judge(&self) {
        let path = image_path();
        std::fs::write(&path, self.device.image()).unwrap();
        let judged = Command::new("e2fsck").arg("-fn").arg(&path).output().unwrap();
        std::fs::remove_file(&path).unwrap();
        let text = String::from_utf8_lossy(&judged.stdout);
        assert!(judged.status.success(), "{text}");
    }
}

/// The volume with something in all free blocks.
fn stale(mut image: Vec<u8>, block_size: u32) -> Vec<u8> {
    let zero = vec![0; to_usize(block_size)];
    let used = used_blocks(&image, block_size);
    for (no, block) in image.chunks_exact_mut(to_usize(block_size)).enumerate() {
        if !used[no] && *block == zero[..] {
            block.fill(0xdb);
        }
    }
    image
}

/// Which blocks of a new volume are used, by its bitmaps.
fn used_blocks(image: &[u8], block_size: u32) -> Vec<bool> {
    let word = |at: usize| fstitch_core::Le::u32(image, at);
    let unit = to_usize(block_size);
    let (first, per_group) = (to_usize(word(1024 + 0x14)), to_usize(word(1024 + 0x20)));
    let mut used = vec![true; image.len() / unit];
    let log_cluster = word(1024 + 0x1c) - word(1024 + 0x18);
    let table = if unit == 1024 { 2 * unit } else { unit };
    for (no, is_used) in used.iter_mut().enumerate().skip(first) {
        let (group, bit) = ((no - first) / per_group, ((no - first) % per_group) >> log_cluster);
        let bitmap = to_usize(word(table + group * 32)) * unit;
        *is_used = image[bitmap + bit / 8] & 1 << (bit % 8) != 0;
    }
    used
}

impl Medium for ExtentMedium {
    fn mount(&self) -> Arc<dyn FileSystem> {
        Arc::new(self.opened())
    }

    fn link_max(&self) -> u32 {
        32_000
    }

    fn born_with(&self) -> Option<(&'static [u8], u16)> {
        Some((b"lost+found", 0o700))
    }

    fn has_unwritten(&self) -> bool {
        true
    }

    fn shifts(&self) -> bool {
        true
    }

    fn shift_unit(&self) -> Option<u32> {
        self.cluster_size
    }
}

fn mode() -> impl Strategy<Value = Consistency> {
    proptest::sample::select(vec![Consistency::Ordered, Consistency::Metadata, Consistency::Full])
}

fn run(block_size: u32, options: CacheOptions, mode: Consistency, ops: &[Op]) {
    let Some(medium) = ExtentMedium::new(block_size, options, mode) else { return };
    compare(&medium, block_size, &medium.clock, ops);
    medium.judge();
}

/// Sizes of blocks, and of clusters for them.
const CLUSTERS: [(u32, u32); 3] = [(1024, 4096), (2048, 4096), (4096, 65_536)];

fn run_in_clusters(sizes: (u32, u32), options: CacheOptions, mode: Consistency, ops: &[Op]) {
    let Some(medium) = ExtentMedium::with_clusters(sizes, options, mode) else { return };
    compare(&medium, sizes.0, &medium.clock, ops);
    medium.judge();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn clusters_answer_as_the_model(
        ops in proptest::collection::vec(op(), 1..150),
        (sizes, small, mode) in (proptest::sample::select(&CLUSTERS[..]), any::<bool>(), mode()),
    ) {
        let cache_size = if small { CacheOptions::MIN_CACHE_SIZE } else { 64 << 20 };
        run_in_clusters(sizes, cache_options(cache_size, 15), mode, &ops);
    }

    #[test]
    fn files_of_clusters_have_their_shape(
        ops in proptest::collection::vec(shape(&BORDERS), 1..60),
        (sizes, small, mode) in (proptest::sample::select(&CLUSTERS[..]), any::<bool>(), mode()),
    ) {
        let cache_size = if small { CacheOptions::MIN_CACHE_SIZE } else { 64 << 20 };
        run_in_clusters(sizes, cache_options(cache_size, 15), mode, &ops);
    }

    #[test]
    fn files_of_many_pieces_of_clusters_answer_as_the_model(
        ops in scattered(200, &[0, 2, 3, 5, 6]),
        (small, mode) in (any::<bool>(), mode()),
    ) {
        let cache_size = if small { CacheOptions::MIN_CACHE_SIZE } else { 64 << 20 };
        run_in_clusters(CLUSTERS[0], cache_options(cache_size, 15), mode, &ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn extents_answer_as_the_model(
        ops in proptest::collection::vec(op(), 1..150),
        (block_size, small, mode) in (0..3_u32, any::<bool>(), mode()),
    ) {
        let cache_size = if small { CacheOptions::MIN_CACHE_SIZE } else { 64 << 20 };
        run(1024 << block_size, cache_options(cache_size, 15), mode, &ops);
    }
}

/// Ends of extents and of what a leaf in the inode holds.
const BORDERS: [u64; 8] = [0, 1024, 4096, 8192, 40 << 10, 84 << 10, 200 << 10, 340 << 12];

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn files_of_extents_have_their_shape(
        ops in proptest::collection::vec(shape(&BORDERS), 1..60),
        (block_size, small, mode) in (0..3_u32, any::<bool>(), mode()),
    ) {
        let cache_size = if small { CacheOptions::MIN_CACHE_SIZE } else { 64 << 20 };
        run(1024 << block_size, cache_options(cache_size, 15), mode, &ops);
    }
}

/// Every other block of a file, up to `pieces` of them, so that it needs many extents, and then all sorts of ranges. e2fsck 1.47 takes
/// blocks behind the end for damage, unwritten or not and the kernel's too, where a tree has two levels below its root: deep
/// ones get none.
fn scattered(pieces: u64, modes: &'static [u8]) -> impl Strategy<Value = Vec<Op>> {
    let file = || Target::Path(b"a".to_vec());
    let block = |at: u64| at * 1024;
    let range = (0..2000_u64, 1..600_u64);
    let op = prop_oneof![
        4 => (0..2000_u64, any::<u8>()).prop_map(move |(at, byte)| Op::Write(file(), block(at), 1000, byte)),
        4 => (range.clone(), proptest::sample::select(modes)).prop_map(move |((at, len), mode)| Op::Fallocate(file(), block(at), block(len), mode)),
        4 => (0..2000_u64, 1..6_u64, proptest::sample::select(modes))
            .prop_map(move |(at, len, mode)| Op::Fallocate(file(), block(at), block(len), mode)),
        1 => (0..2000_u64).prop_map(move |at| Op::Truncate(file(), block(at) + 7)),
        1 => Just(Op::Fsync(file(), false)),
        1 => Just(Op::Remount),
    ];
    (0..pieces, proptest::collection::vec(op, 1..60)).prop_map(move |(pieces, ops)| {
        let mut all = vec![Op::Create(b"a".to_vec(), 0o644)];
        all.extend((0..pieces).map(|at| Op::Write(file(), block(2 * at), 1024, 1)));
        all.extend(ops);
        all
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn files_of_many_extents_answer_as_the_model(
        ops in scattered(60, &[0, 1, 2, 3, 4, 5, 5, 6, 6]),
        (small, mode) in (any::<bool>(), mode()),
    ) {
        let cache_size = if small { CacheOptions::MIN_CACHE_SIZE } else { 64 << 20 };
        run(1024, cache_options(cache_size, 15), mode, &ops);
    }

    #[test]
    fn files_of_deep_trees_answer_as_the_model(
        ops in scattered(1000, &[0, 2, 3, 5, 6]),
        (small, mode) in (any::<bool>(), mode()),
    ) {
        let cache_size = if small { CacheOptions::MIN_CACHE_SIZE } else { 64 << 20 };
        run(1024, cache_options(cache_size, 15), mode, &ops);
    }
}

/// The runs that a file consists of.
fn runs(fs: &Uhfs<Ext2>, name: &str) -> Vec<(u64, u64)> {
    let attr = fs.walk(name.as_bytes()).unwrap().attr;
    let inode = fs.format().load(attr.ino).unwrap();
    let end = attr.size.div_ceil(u64::from(attr.blksize));
    let (mut at, mut runs) = (0, Vec::<(u64, u64)>::new());
    while at < end {
        let run = fs.format().map(&inode, at, end - at).unwrap();
        if let Some(start) = run.start {
            match runs.last_mut() {
                Some((first, count)) if *first + *count == start.get() => *count += run.count,
                _ => runs.push((start.get(), run.count)),
            }
        }
        at += run.count;
    }
    runs
}

pub fn create(fs: &Uhfs<Ext2>, name: &str) -> InodeNo {
    let mode = FileKind::Regular.mode_bits() | 0o644;
    fs.mknod(&CALLER, fs.root(), name.as_bytes(), mode, 0).unwrap().attr.ino
}

#[test]
fn blocks_kept_behind_the_end_survive_growth_and_go_with_a_cut() {
    let Some(medium) = ExtentMedium::new(1024, cache_options(64 << 20, 15), Consistency::Ordered) else {
        return;
    };
    let fs = medium.opened();
    let ino = create(&fs, "a");
    fs.write(&CALLER, ino, 0, &[1; 3000]).unwrap();
    fs.fallocate(&CALLER, ino, 0, 500 << 10, FallocateMode::AllocateKeepSize).unwrap();
    let blocks = |fs: &Uhfs<Ext2>| fs.walk(b"a").unwrap().attr.blocks;
    assert_eq!((fs.getattr(ino).unwrap().size, blocks(&fs)), (3000, 1000));
    fs.unmount().unwrap();
    medium.judge();
    let fs = medium.opened();
    let ino = fs.walk(b"a").unwrap().attr.ino;
    fs.write(&CALLER, ino, 100 << 10, &[2; 2000]).unwrap();
    assert_eq!(blocks(&fs), 1000, "growth uses what was kept");
    let mut read = vec![9; 110 << 10];
    assert_eq!(fs.read(ino, 0, &mut read).unwrap(), (100 << 10) + 2000);
    assert!(read[3000..100 << 10].iter().all(|&byte| byte == 0), "unwritten blocks read as zeros");
    fs.unmount().unwrap();
    medium.judge();
    let fs = medium.opened();
    let ino = fs.walk(b"a").unwrap().attr.ino;
    let cut = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    fs.setattr(&CALLER, ino, &cut((100 << 10) + 2000)).unwrap();
    assert_eq!(blocks(&fs), 2 * 102, "a cut at the end frees what is behind it");
    fs.unmount().unwrap();
    medium.judge();
}

/// Power fails at every flush while unwritten blocks are written: what is read is zeros or what was written.
#[test]
fn a_power_cut_shows_no_old_contents() {
    for mode in [Consistency::Ordered, Consistency::Full] {
        let Some(medium) = ExtentMedium::new(1024, cache_options(64 << 20, 15), mode) else { return };
        let mut images = Vec::new();
        {
            let fs = medium.opened();
            let ino = create(&fs, "a");
            fs.fallocate(&CALLER, ino, 0, 300 << 10, FallocateMode::Allocate).unwrap();
            for step in 0..20_u64 {
                fs.write(&CALLER, ino, (step * 37 % 20) * (15 << 10), &[7; 5000]).unwrap();
                fs.fsync(ino, false).unwrap();
                images.push(medium.device.image());
            }
            fs.fallocate(&CALLER, ino, 5 << 10, 200 << 10, FallocateMode::ZeroRange).unwrap();
            fs.fsync(ino, false).unwrap();
            images.push(medium.device.image());
        }
        for image in images {
            let device = Arc::new(MemDevice::from_image(1024, image));
            let progress = &mut |_| {};
            let now = Timestamp::default();
            let mut options = Options { external: None, now, for_reading: false, batch_max: 64, progress };
            recover(&*device, &mut options).unwrap();
            let cut = ExtentMedium {
                device,
                clock: Arc::clone(&medium.clock),
                options: medium.options.clone(),
                mode,
                cluster_size: None,
            };
            let fs = cut.opened();
            let ino = fs.walk(b"a").unwrap().attr.ino;
            let mut read = vec![9; 300 << 10];
            assert_eq!(fs.read(ino, 0, &mut read).unwrap(), read.len());
            assert!(read.iter().all(|byte| [0, 7].contains(byte)));
            fs.unmount().unwrap();
            cut.judge();
        }
    }
}

/// A file without a name and one that was being cut, both of many extents, when the power failed.
#[test]
fn recovery_ends_what_was_begun_with_trees() {
    let options = cache_options(64 << 20, 15);
    let Some(medium) = ExtentMedium::new(1024, options.clone(), Consistency::Ordered) else { return };
    let fs = medium.opened();
    let (gone, cut) = (create(&fs, "gone"), create(&fs, "cut"));
    for ino in [gone, cut] {
        for at in 0..500 {
            fs.write(&CALLER, ino, 2048 * at, &[7; 1024]).unwrap();
        }
        fs.fallocate(&CALLER, ino, 900 << 10, 400 << 10, FallocateMode::Allocate).unwrap();
    }
    fs.fallocate(&CALLER, gone, 1300 << 10, 3000 << 10, FallocateMode::AllocateKeepSize).unwrap();
    fs.unmount().unwrap();
    let free_before = fstitch_core::Le::u32(&medium.device.image(), 1024 + 0xc);
    let fs = medium.opened();
    let held = fs.walk(b"gone").unwrap().attr;
    assert_eq!(held.ino, gone);
    fs.unlink(&CALLER, fs.root(), b"gone").unwrap();
    fs.sync().unwrap();
    let mut image = medium.device.image();
    drop(fs);
    // The other one is shortened as a crash after the first step of a truncation leaves it: once the log is replayed.
    let progress = &mut |_| {};
    let replayed = MemDevice::from_image(1024, std::mem::take(&mut image));
    replay_only(&replayed);
    let mut image = replayed.image();
    let first = fstitch_core::Le::u32(&image, 1024 + 0xe8);
    assert_eq!(u64::from(first), gone.0, "it is in the list of orphans");
    let inode = inode_at(&image, cut);
    image[inode + 4..inode + 8].copy_from_slice(&5001_u32.to_le_bytes());
    image[inode + 0x14..inode + 0x18].copy_from_slice(&first.to_le_bytes());
    image[1024 + 0xe8..1024 + 0xec].copy_from_slice(&u32::try_from(cut.0).unwrap().to_le_bytes());
    let device = Arc::new(MemDevice::from_image(1024, image));
    let mut how =
        Options { external: None, now: Timestamp::default(), for_reading: false, batch_max: 40, progress };
    let orphans = recover(&*device, &mut how).unwrap().unwrap().orphans;
    assert_eq!((orphans.freed, orphans.cut), (1, 1));
    let (mode, clock) = (medium.mode, Arc::clone(&medium.clock));
    let after = ExtentMedium { device, options, mode, clock, cluster_size: None };
    after.judge();
    let free = fstitch_core::Le::u32(&after.device.image(), 1024 + 0xc);
    assert!(free > free_before + 4000, "{free_before} blocks were free, {free} are now");
    let fs = after.opened();
    let ino = fs.walk(b"cut").unwrap().attr.ino;
    let longer = SetAttr { size: Some(6000), ..SetAttr::default() };
    fs.setattr(&CALLER, ino, &longer).unwrap();
    let mut read = vec![9; 6000];
    assert_eq!(fs.read(ino, 0, &mut read).unwrap(), 6000);
    let expected: Vec<u8> = (0..6000).map(|at| if at < 5001 && at / 1024 % 2 == 0 { 7 } else { 0 }).collect();
    assert!(read == expected, "what was behind the end is gone");
    fs.unmount().unwrap();
    after.judge();
}

/// Brings home what the log holds, and leaves the list of orphans alone.
fn replay_only(device: &MemDevice) {
    use fstitch_fs::ext2::journal::{Journal, locate, read_superblock};
    use fstitch_fs::view::BlockView;
    let (raw, shape) = read_superblock(device).unwrap();
    let view = BlockView::new(device, 1024);
    let journal = Journal::find(&view, &shape, locate(&shape, &raw).unwrap().unwrap(), None).unwrap();
    let mut log = journal.open(&view).unwrap();
    let kind = |_: fstitch_core::BlockNo, _: &[u8]| fstitch_core::BlockKind::Data;
    fstitch_patch::journal::replay(&mut log, &view, &kind, &mut |_| {}).unwrap();
}

/// Where an inode of the first group lies in an image.
fn inode_at(image: &[u8], ino: InodeNo) -> usize {
    let table = to_usize(fstitch_core::Le::u32(image, 2 * 1024 + 8)) * 1024;
    table + (ino.index() - 1) * usize::from(fstitch_core::Le::u16(image, 1024 + 0x58))
}

#[test]
fn a_file_is_a_few_extents_however_it_is_appended_to() {
    let options = cache_options(64 << 20, 15);
    let Some(image) = make(4096, 200 << 20, &[]) else { return };
    let medium = ExtentMedium::of(image, 4096, options, Consistency::Ordered);
    let fs = medium.opened();
    let alone = create(&fs, "alone");
    for at in 0..(64 << 20) / 4096 {
        fs.write(&CALLER, alone, at * 4096, &[3; 4096]).unwrap();
    }
    let in_turns = [create(&fs, "a"), create(&fs, "b")];
    for at in 0..(32 << 20) / 4096 {
        for ino in in_turns {
            fs.write(&CALLER, ino, at * 4096, &[3; 4096]).unwrap();
        }
    }
    for (name, most) in [("alone", 4), ("a", 8), ("b", 8)] {
        let runs = runs(&fs, name);
        assert!(runs.len() <= most, "{name} is in {} pieces: {runs:?}", runs.len());
    }
    fs.unmount().unwrap();
    medium.judge();
}

/// A map with as many extents as an inode holds has no place for the second part of one that a hole cuts in two: it gets a node.
#[test]
fn a_hole_in_an_extent_of_a_full_inode_takes_a_node() {
    let Some(medium) = ExtentMedium::new(1024, cache_options(64 << 20, 15), Consistency::Ordered) else {
        return;
    };
    let fs = medium.opened();
    let ino = create(&fs, "a");
    let mut bytes = vec![0; 160 << 10];
    for piece in 0..4_u8 {
        let at = usize::from(piece) * (40 << 10);
        bytes[at..at + (20 << 10)].fill(piece + 1);
        fs.write(&CALLER, ino, at as u64, &vec![piece + 1; 20 << 10]).unwrap();
    }
    bytes.truncate((120 << 10) + (20 << 10));
    fs.sync().unwrap();
    let blocks = |fs: &Uhfs<Ext2>| fs.walk(b"a").unwrap().attr.blocks;
    assert_eq!(blocks(&fs), 2 * 80, "no node");
    for piece in 0..4 {
        let at = piece * (40 << 10) + (8 << 10);
        fs.fallocate(&CALLER, ino, at as u64, 4 << 10, FallocateMode::PunchHole).unwrap();
        bytes[at..at + (4 << 10)].fill(0);
        assert_eq!(blocks(&fs), 2 * (80 - 4 * (piece as u64 + 1)) + 2, "and one node");
    }
    let mut read = vec![9; bytes.len()];
    assert_eq!(fs.read(ino, 0, &mut read).unwrap(), bytes.len());
    assert!(read == bytes);
    fs.unmount().unwrap();
    medium.judge();
}
