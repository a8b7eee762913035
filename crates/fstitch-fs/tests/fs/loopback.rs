//! Volumes in files of other volumes: every mechanism in every other one.
//!
//! The failure that these tests prevent: an inner block that lands outside the file, or in none.

use std::sync::Arc;
use std::time::Duration;

use fstitch_core::Consistency;
use fstitch_core::{
    Caller, Errno, FallocateMode, FileSystem, InodeNo, ManualClock, MemDevice, SetAttr, Timestamp,
};
use fstitch_fs::arrange::{self, Arrangement, Chosen};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::ext2::journal;
use fstitch_fs::ext2::mkfs::{MkfsOptions, mkfs};
use fstitch_fs::loopback::Loopback;
use fstitch_fs::uhfs::{LowLevelFs, Uhfs};
use fstitch_patch::{VolumeDevice, VolumeOptions};

const NOW: Timestamp = Timestamp { secs: 1_000_000_000, nanos: 0 };
const BLOCK: u32 = 1024;
const INNER_BLOCKS: u64 = 4096;
const OUTER_BLOCKS: u64 = 8192;

fn clock() -> Arc<ManualClock> {
    let clock = ManualClock::new();
    clock.advance(Duration::from_secs(1_000_000_000));
    Arc::new(clock)
}

fn format(device: &dyn fstitch_core::BlockDevice, consistency: Consistency) {
    let mut options = MkfsOptions::new([7; 16], [9; 16], NOW);
    options.block_size = Some(BLOCK);
    options.inodes = Some(128);
    mkfs(device, &options, &mut |_, _| {}).expect("an ordinary volume");
    if consistency.is_journaled() {
        let options = journal::AddOptions { blocks: Some(1024), now: NOW, is_zero: false };
        journal::add(device, options).expect("there is room for a journal");
    }
}

/// A mounted outer volume with an empty file in it.
struct Outer {
    device: Arc<MemDevice>,
    fs: Arc<Uhfs<Ext2>>,
    file: InodeNo,
}

impl Outer {
    fn new(consistency: Consistency) -> Self {
        let device = Arc::new(MemDevice::new(BLOCK, OUTER_BLOCKS));
        format(&*device, consistency);
        let arrangement = Arrangement { consistency: Some(consistency), ..Arrangement::default() };
        let (fs, _) =
            arrange::open::<Ext2>(Arc::clone(&device) as _, &arrangement, clock()).expect("it is fresh");
        let entry = fs.mknod(&Caller::default(), fs.root(), b"inner.img", 0o100_644, 0).unwrap();
        let mut outer = Self { device, fs: Arc::new(fs), file: entry.attr.ino };
        outer.resize(INNER_BLOCKS * u64::from(BLOCK)).unwrap();
        outer.file = entry.attr.ino;
        outer
    }

    fn resize(&self, size: u64) -> fstitch_core::Result<()> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.fs.setattr(&Caller::default(), self.file, &set).map(drop)
    }

    /// The file's contents.
    fn image(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(INNER_BLOCKS).unwrap() * 1024];
        let mut at = 0;
        while at < bytes.len() {
            let read = self.fs.read(self.file, u64::try_from(at).unwrap(), &mut bytes[at..]).unwrap();
            assert!(read > 0, "the file is as long as it was made");
            at += read;
        }
        bytes
    }
}

fn attach(outer: &Outer, consistency: Consistency, fresh: bool) -> Uhfs<Ext2> {
    let loopback = Loopback::attach(&outer.fs, outer.file, false).unwrap();
    let cache = outer.fs.format().cache();
    let plain = cache.volume(Arc::clone(&loopback) as _, VolumeOptions::default()).unwrap();
    let device = VolumeDevice::new(plain);
    if fresh {
        format(&device, consistency);
    }
    let arrangement = Arrangement { consistency: Some(consistency), ..Arrangement::default() };
    let chosen = Chosen::new::<Ext2>(&device, &arrangement).unwrap();
    let options = VolumeOptions { ordering: chosen.ordering(), ..VolumeOptions::default() };
    let inner = cache.volume(loopback, options).unwrap();
    chosen.open_in(inner, arrangement.fs).unwrap()
}

/// Makes, fills, shortens and removes files.
fn work(fs: &Uhfs<Ext2>, outer: &Outer) {
    let (caller, root) = (Caller::default(), fs.root());
    let dir = fs.mkdir(&caller, root, b"dir", 0o755).unwrap().attr.ino;
    for no in 0..40_u8 {
        let name = [b"file-", &[b'0' + no / 10, b'0' + no % 10][..]].concat();
        let ino = fs.mknod(&caller, dir, &name, 0o100_644, 0).unwrap().attr.ino;
        fs.write(&caller, ino, 0, &vec![no; 20_000]).unwrap();
        if no % 3 == 0 {
            fs.fsync(ino, false).unwrap();
        }
        if no % 5 == 0 {
            fs.setattr(&caller, ino, &SetAttr { size: Some(3_000), ..SetAttr::default() }).unwrap();
        }
        if no % 4 == 0 {
            fs.unlink(&caller, dir, &name).unwrap();
        }
        fs.forget(ino, 1);
        if no % 10 == 0 {
            // The outer volume is used meanwhile.
            let other = outer.fs.mknod(&caller, outer.fs.root(), &name, 0o100_644, 0).unwrap().attr.ino;
            outer.fs.write(&caller, other, 0, &vec![0xaa; 5_000]).unwrap();
            outer.fs.forget(other, 1);
        }
        outer.fs.format().cache().check_invariants();
    }
    fs.sync().unwrap();
}

fn check(inner: Consistency, outer: Consistency) {
    let below = Outer::new(outer);
    let fs = attach(&below, inner, true);
    work(&fs, &below);
    fs.unmount().unwrap();
    drop(fs);
    below.fs.format().cache().check_invariants();
    let image = MemDevice::from_image(BLOCK, below.image());
    let report = check_ext2(&image).unwrap();
    assert!(report.is_clean(), "{inner} in {outer}: {report:?}");
    // Again, from what is there.
    let fs = attach(&below, inner, false);
    let dir = fs.lookup(fs.root(), b"dir").unwrap().attr.ino;
    let file = fs.lookup(dir, b"file-11").unwrap().attr;
    assert_eq!(file.size, 20_000);
    let mut bytes = vec![0; 20_000];
    assert_eq!(fs.read(file.ino, 0, &mut bytes).unwrap(), 20_000);
    assert!(bytes.iter().all(|&byte| byte == 11), "contents are where they were");
    fs.unmount().unwrap();
    drop(fs);
    below.fs.unmount().unwrap();
    let report = check_ext2(&*below.device).unwrap();
    assert!(report.is_clean(), "{inner} in {outer}, the outer one: {report:?}");
}

#[test]
fn every_mechanism_lives_in_every_other_one() {
    for outer in Consistency::ALL {
        for inner in Consistency::ALL {
            if outer == Consistency::Full && inner.is_journaled() {
                continue;
            }
            check(inner, outer);
        }
    }
}

#[test]
fn a_journal_may_be_in_holes_of_the_file() {
    let below = Outer::new(Consistency::Soft);
    let whole = MemDevice::new(BLOCK, INNER_BLOCKS);
    format(&whole, Consistency::Ordered);
    let caller = Caller::default();
    for (no, block) in (0_u64..).zip(whole.image().chunks(1024)) {
        if block.iter().any(|&byte| byte != 0) {
            below.fs.write(&caller, below.file, no * 1024, block).unwrap();
        }
    }
    let sparse = below.fs.getattr(below.file).unwrap().blocks;
    assert!(sparse < INNER_BLOCKS, "{sparse} sectors: the journal is a hole");
    let fs = attach(&below, Consistency::Ordered, false);
    work(&fs, &below);
    fs.unmount().unwrap();
    drop(fs);
    let report = check_ext2(&MemDevice::from_image(BLOCK, below.image())).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn a_journal_over_a_journal_of_contents_is_refused_by_name() {
    let below = Outer::new(Consistency::Full);
    let fs = attach(&below, Consistency::Ordered, true);
    let error = fs.mkdir(&Caller::default(), fs.root(), b"dir", 0o755).unwrap_err();
    assert!(error.to_string().contains("the journal of the volume below"), "{error}");
}

#[test]
fn the_file_is_not_written_behind_the_volumes_back() {
    let below = Outer::new(Consistency::Soft);
    let fs = attach(&below, Consistency::Soft, true);
    let caller = Caller::default();
    let refused = |done: fstitch_core::Result<()>| assert_eq!(done.unwrap_err().errno(), Errno::TXTBSY);
    refused(below.fs.write(&caller, below.file, 0, b"no").map(drop));
    refused(below.resize(0));
    refused(below.fs.fallocate(&caller, below.file, 0, 4096, FallocateMode::PunchHole));
    refused(below.fs.fallocate(&caller, below.file, 0, 4096, FallocateMode::Allocate));
    refused(below.fs.fallocate(&caller, below.file, 0, 4096, FallocateMode::CollapseRange));
    refused(below.fs.fallocate(&caller, below.file, 0, 4096, FallocateMode::InsertRange));
    assert_eq!(Loopback::attach(&below.fs, below.file, false).unwrap_err().errno(), Errno::BUSY);
    // Its name may go: the volume keeps it.
    below.fs.unlink(&caller, below.fs.root(), b"inner.img").unwrap();
    work(&fs, &below);
    fs.unmount().unwrap();
    drop(fs);
    assert_eq!(below.fs.write(&caller, below.file, 0, b"yes").unwrap(), 3);
}

/// Room in the inner log comes from bringing blocks home, which may wait for the outer transaction that gave them a
/// place: a sync has to close that one as well.
#[test]
fn a_full_inner_log_waits_for_outer_transactions() {
    let journaled = Consistency::ALL.into_iter().filter(|consistency| consistency.is_journaled());
    for (outer, inner) in [Consistency::Metadata, Consistency::Ordered]
        .into_iter()
        .flat_map(|outer| journaled.clone().map(move |inner| (outer, inner)))
    {
        let below = Outer::new(outer);
        let fs = attach(&below, inner, true);
        let caller = Caller::default();
        for no in 0..12_u8 {
            let name = [b'a' + no];
            let ino = fs.mknod(&caller, fs.root(), &name, 0o100_644, 0).unwrap().attr.ino;
            fs.write(&caller, ino, 0, &vec![no; 150_000]).unwrap();
            fs.fsync(ino, false).unwrap_or_else(|error| panic!("{inner} in {outer}, {no}: {error}"));
            fs.forget(ino, 1);
        }
        fs.unmount().unwrap();
        drop(fs);
        below.fs.unmount().unwrap();
        assert!(check_ext2(&*below.device).unwrap().is_clean());
    }
}

/// Space that was freed in the outer volume is there for the inner one at once, although what freed it is not stable.
#[test]
fn what_was_freed_below_fills_holes_at_once() {
    for outer in Consistency::ALL {
        for inner in Consistency::ALL {
            if outer == Consistency::Full && inner.is_journaled() {
                continue;
            }
            let below = Outer::new(outer);
            let fs = attach(&below, inner, true);
            let (caller, root) = (Caller::default(), below.fs.root());
            let made = |name: &[u8]| below.fs.mknod(&caller, root, name, 0o100_644, 0).unwrap().attr.ino;
            let (first, rest) = (made(b"first"), made(b"rest"));
            below.fs.write(&caller, first, 0, &vec![1; 700_000]).unwrap();
            let fill = |no: u64| below.fs.write(&caller, rest, no * 1024, &[2; 1024]).err();
            let full = (0..OUTER_BLOCKS).find_map(fill).expect("more than there is room for");
            assert_eq!(full.errno(), Errno::NOSPC, "{inner} in {outer}");
            below.fs.sync().unwrap();
            below.fs.unlink(&caller, root, b"first").unwrap();
            below.fs.forget(first, 1);
            let ino = fs.mknod(&caller, fs.root(), b"file", 0o100_644, 0).unwrap().attr.ino;
            let written = fs.write(&caller, ino, 0, &vec![3; 100_000]);
            assert_eq!(written.unwrap_or_else(|error| panic!("{inner} in {outer}: {error}")), 100_000);
            below.fs.format().cache().check_invariants();
            fs.unmount().unwrap();
            drop(fs);
            below.fs.unmount().unwrap();
            assert!(check_ext2(&*below.device).unwrap().is_clean(), "{inner} in {outer}");
        }
    }
}
