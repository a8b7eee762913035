//! ext2 through the generic file system: every image that a random lawful order of writes leaves, judged by our
//! checker, over all shapes of volumes and all combinations of the optimisations.
//!
//! The failure that these tests prevent: a patch that lacks a dependency.

use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{
    BlockDevice, Caller, CheckReport, Errno, FileSystem, FindingClass, InodeFlags, ManualClock, MemDevice,
    RenameMode, Seed, SetAttr, Timestamp,
};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::ext2::mkfs::{MkfsOptions, mkfs};
use fstitch_fs::uhfs::{AtimePolicy, LowLevelFs, Uhfs, UhfsOptions};
use fstitch_patch::{Cache, CacheOptions};
use proptest::prelude::*;

use crate::driver::{Op, Side};
use crate::properties::{cache_options, op};

/// How a volume is made.
#[derive(Clone, Copy, Debug)]
struct Shape {
    block_size: u32,
    inode_size: u32,
    revision: u32,
}

fn shape() -> impl Strategy<Value = Shape> {
    (0..3_u32, 0..3_u32, 0..6_u32).prop_map(|(block, inode, old)| match old {
        0 => Shape { block_size: 1024 << block, inode_size: 128, revision: 0 },
        _ => Shape { block_size: 1024 << block, inode_size: 128 << inode, revision: 1 },
    })
}

const BYTES: u64 = 8 << 20;

fn new_volume(shape: Shape) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(shape.block_size, BYTES / u64::from(shape.block_size)));
    let mut options = MkfsOptions::new([7; 16], [9; 16], Timestamp { secs: 1_000_000_000, nanos: 0 });
    options.block_size = Some(shape.block_size);
    options.inode_size = Some(shape.inode_size);
    options.revision = shape.revision;
    mkfs(&*device, &options, &mut |_, _| {}).expect("a volume of ordinary shape");
    // The model starts without this directory.
    let clock = Arc::new(ManualClock::new());
    clock.advance(Duration::from_secs(1_000_000_000));
    let medium = Ext2Medium { device: Arc::clone(&device), cache: CacheOptions::default(), clock };
    let fs = medium.open().1;
    fs.rmdir(&Caller::default(), fs.root(), b"lost+found").expect("it is empty");
    fs.unmount().expect("nothing fails here");
    device
}

struct Ext2Medium {
    device: Arc<MemDevice>,
    cache: CacheOptions,
    clock: Arc<ManualClock>,
}

impl Ext2Medium {
    fn open(&self) -> (Arc<Cache>, Uhfs<Ext2>) {
        let device: Arc<dyn BlockDevice> = Arc::<MemDevice>::clone(&self.device);
        let cache = Cache::new(device, self.cache.clone(), Arc::<ManualClock>::clone(&self.clock));
        let volume = Ext2::open(Arc::clone(&cache)).expect("the volume opens");
        let options =
            UhfsOptions { atime: AtimePolicy::NoAtime, idle_nodes: Some(2), ..UhfsOptions::default() };
        (cache, Uhfs::new(volume, options))
    }
}

fn damage(report: &CheckReport) -> Vec<String> {
    let corrupt = report.findings.iter().filter(|finding| finding.class == FindingClass::Corrupt);
    corrupt.map(|finding| format!("{}: {}", finding.code, finding.text)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_lawful_order_of_writes_leaves_a_lawful_volume(
        ops in proptest::collection::vec(op(), 1..120),
        shape in shape(),
        optimizations in 0..16_u8,
        seed in any::<u64>(),
    ) {
        crash(&ops, shape, optimizations, seed)?;
    }
}

/// Runs operations while blocks are written in a random lawful order, and checks the medium after each write.
fn crash(ops: &[Op], shape: Shape, optimizations: u8, seed: u64) -> Result<(), TestCaseError> {
    let clock = Arc::new(ManualClock::new());
    clock.advance(Duration::from_secs(1_000_000_000));
    let device = new_volume(shape);
    let cache = cache_options(64 << 20, optimizations);
    let medium = Ext2Medium { device, cache, clock: Arc::clone(&clock) };
    let (cache, fs) = medium.open();
    let mut runner = Side::new(Arc::new(fs));
    let mut seed = Seed::new(seed);
    for (at, op) in ops.iter().enumerate() {
        clock.advance(Duration::from_secs(1));
        if matches!(op, Op::Remount | Op::Sync | Op::Fsync(..)) {
            continue;
        }
        runner.run(op);
        for _ in 0..seed.below(4) {
            if cache.step_blocks(&mut |_| seed.chance(1, 3)).unwrap() == 0 {
                continue;
            }
            let report = check_ext2(&*medium.device).unwrap();
            let found = damage(&report);
            prop_assert!(found.is_empty(), "after operation {at}, {op:?}: {found:?}");
        }
        cache.check_invariants();
    }
    while cache.step_blocks(&mut |_| true).unwrap() > 0 {
        let found = damage(&check_ext2(&*medium.device).unwrap());
        prop_assert!(found.is_empty(), "while everything is written: {found:?}");
    }
    Ok(())
}

/// A synced file that moves into a directory which is not on the medium yet must be somewhere in every image.
#[test]
fn a_file_moved_into_a_new_directory_is_never_lost() {
    for round in 0..400_u64 {
        let clock = Arc::new(ManualClock::new());
        clock.advance(Duration::from_secs(1_000_000_000));
        let shape = Shape { block_size: 1024, inode_size: 128, revision: 1 };
        let optimizations = u8::try_from(round % 16).unwrap();
        let medium =
            Ext2Medium { device: new_volume(shape), cache: cache_options(64 << 20, optimizations), clock };
        let (cache, fs) = medium.open();
        let caller = Caller::default();
        let file = fs.mknod(&caller, fs.root(), b"file", 0o100_644, 0).unwrap().attr.ino;
        fs.sync().unwrap();
        let outer = fs.mkdir(&caller, fs.root(), b"outer", 0o755).unwrap().attr.ino;
        let inner = fs.mkdir(&caller, outer, b"inner", 0o755).unwrap().attr.ino;
        fs.rename(&caller, (fs.root(), b"file"), (inner, b"moved"), RenameMode::Replace).unwrap();
        let mut seed = Seed::new(round);
        while cache.dirty_blocks() > 0 {
            if cache.step_blocks(&mut |_| seed.chance(1, 3)).unwrap() == 0 {
                continue;
            }
            let image = MemDevice::from_image(shape.block_size, medium.device.image());
            let report = check_ext2(&image).unwrap();
            let lost = report.findings.iter().any(|finding| {
                finding.code == "inode-unreferenced" && finding.text.contains(&format!("inode {file}"))
            });
            assert!(damage(&report).is_empty() && !lost, "round {round}: {:?}", report.findings);
        }
    }
}

/// Emptying a file takes back what filled it: over and over, nothing is left to write but its last contents, and what the
/// medium never saw is freed at once.
#[test]
fn a_file_that_is_filled_again_and_again_has_no_more_to_write() {
    let shape = Shape { block_size: 1024, inode_size: 128, revision: 1 };
    let medium = Ext2Medium {
        device: new_volume(shape),
        cache: CacheOptions::default(),
        clock: Arc::new(ManualClock::new()),
    };
    let (cache, fs) = medium.open();
    let caller = Caller::default();
    let file = fs.mknod(&caller, fs.root(), b"file", 0o100_644, 0).unwrap().attr.ino;
    // Without indirect blocks, with one, and with two levels.
    for blocks in [7, 60, 400] {
        let empty = SetAttr { size: Some(0), ..SetAttr::default() };
        let mut dirty = Vec::new();
        for round in 0..5 {
            fs.write(&caller, file, 0, &vec![round; blocks * 1024 - 100]).unwrap();
            dirty.push(cache.dirty_blocks());
            fs.setattr(&caller, file, &empty).unwrap();
        }
        assert!(dirty.iter().all(|&now| now == dirty[0]) && dirty[0] > blocks, "{dirty:?}");
        fs.sync().unwrap();
    }
    assert!(
        check_ext2(&*medium.device)
            .unwrap()
            .findings
            .iter()
            .all(|found| found.class != FindingClass::Corrupt)
    );
}

/// A directory with a hash-tree index made by the reference tools: the first new name drops the index lawfully, the
/// index's own blocks become ordinary ones, and nothing is lost.
#[test]
fn an_indexed_directory_becomes_an_ordinary_one() {
    let base = std::env::temp_dir().join(format!("fstitch-indexed-{}", std::process::id()));
    let tree = base.join("tree/many");
    std::fs::create_dir_all(&tree).unwrap();
    for at in 0..3000 {
        std::fs::write(tree.join(format!("a-file-of-the-reference-{at}")), b"").unwrap();
    }
    let image = base.join("image");
    let run = |tool: &str, args: &[&str]| {
        let output = std::process::Command::new(tool).args(args).arg(&image).arg("8M").output().ok()?;
        Some((output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stdout).into_owned()))
    };
    let fsck = |args: &[&str]| {
        let output = std::process::Command::new("e2fsck").args(args).arg(&image).output().unwrap();
        (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let root = base.join("tree");
    let made = run("mke2fs", &["-q", "-t", "ext2", "-b", "1024", "-N", "8000", "-d", root.to_str().unwrap()]);
    if made.is_none() {
        println!("skipped: mke2fs is not installed");
        std::fs::remove_dir_all(&base).unwrap();
        return;
    }
    fsck(&["-fyD"]);
    let device = Arc::new(MemDevice::from_image(1024, std::fs::read(&image).unwrap()));
    let clock = Arc::new(ManualClock::new());
    clock.advance(Duration::from_secs(2_000_000_000));
    let medium = Ext2Medium { device, cache: CacheOptions::default(), clock };
    let caller = Caller::default();
    let (_, fs) = medium.open();
    let many = fs.lookup(fs.root(), b"many").unwrap().attr.ino;
    assert!(fs.flags(many).unwrap().has(InodeFlags::INDEX), "the reference has made an index");
    for at in 0..500 {
        fs.mknod(&caller, many, format!("ours-{at}").as_bytes(), 0o100_644, 0).unwrap();
        fs.unlink(&caller, many, format!("a-file-of-the-reference-{}", at * 2).as_bytes()).unwrap();
    }
    assert!(!fs.flags(many).unwrap().has(InodeFlags::INDEX));
    fs.unmount().unwrap();
    let (_, fs) = medium.open();
    let many = fs.lookup(fs.root(), b"many").unwrap().attr.ino;
    let mut names = 0;
    fs.readdir(many, 0, &mut |_| {
        names += 1;
        true
    })
    .unwrap();
    assert_eq!(names, 3000 + 2);
    std::fs::write(&image, medium.device.image()).unwrap();
    let (code, text) = fsck(&["-fn"]);
    assert_eq!(code, 0, "{text}");
    std::fs::remove_dir_all(&base).unwrap();
}

/// Two files of a damaged volume that have one indirect block: both look at the same hole, and one fills it.
#[test]
fn a_hole_that_another_file_has_filled_meanwhile_is_damage() {
    let shape = Shape { block_size: 4096, inode_size: 256, revision: 1 };
    let device = new_volume(shape);
    let clock = Arc::new(ManualClock::new());
    let medium = Ext2Medium { device: Arc::clone(&device), cache: CacheOptions::default(), clock };
    let fs = medium.open().1;
    let caller = Caller::default();
    // A block that needs an indirect one; the next is a hole.
    let made = [b"one", b"two"].map(|name| {
        let ino = fs.mknod(&caller, fs.root(), name, 0o100_644, 0).unwrap().attr.ino;
        fs.write(&caller, ino, 12 * 4096, b"behind the direct blocks").unwrap();
        ino
    });
    fs.unmount().unwrap();
    // Group 0's descriptor tells where the inodes are; the pointer to the indirect block is the thirteenth.
    let mut image = device.image();
    let table = u32::from_le_bytes(image[4096 + 8..4096 + 12].try_into().unwrap());
    let [one, two] = made.map(|ino| {
        let inode = 4096 * table as usize + 256 * (usize::try_from(ino.get()).unwrap() - 1);
        inode + 40 + 12 * 4
    });
    image.copy_within(one..one + 4, two);

    let device = Arc::new(MemDevice::from_image(4096, image));
    let cache = Cache::new(device, CacheOptions::default(), Arc::new(ManualClock::new()));
    let format = Ext2::open(Arc::clone(&cache)).unwrap();
    let [mut one, mut two] = made.map(|ino| format.load(ino).unwrap());
    let first = format.allocate(&caller, &mut one, 13, 1).unwrap();
    let second = format.allocate(&caller, &mut two, 13, 1).unwrap();
    let filled = first.start;
    format.attach(&mut one, first, &[]).unwrap();
    let refused = format.attach(&mut two, second, &[]).unwrap_err();
    assert_eq!(refused.errno(), Errno::UCLEAN, "{refused}");
    assert!(refused.to_string().contains("another file has filled it"), "{refused}");
    assert_eq!(format.map(&two, 13, 1).unwrap().start, Some(filled), "what the other file wrote stays");
}
