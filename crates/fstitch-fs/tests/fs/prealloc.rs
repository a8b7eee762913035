//! Blocks that are preallocated for files that grow: nobody misses them, and no checker ever sees them but after a power cut.
//!
//! The failure that these tests prevent: space that is taken and never given back, or given back while it is somebody's.

use std::sync::Arc;

use fstitch_core::{
    BlockDevice, Caller, CheckReport, Errno, FileSystem, FindingClass, InodeNo, ManualClock, MemDevice,
    SetAttr, Timestamp,
};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::ext2::mkfs::{MkfsOptions, mkfs};
use fstitch_fs::uhfs::{LowLevelFs, Uhfs, UhfsOptions};
use fstitch_patch::{Cache, CacheOptions};

const BLOCK: u64 = 4096;
/// Files that grow in turns.
const FILES: u64 = 3;

struct Rig {
    device: Arc<MemDevice>,
    cache: Arc<Cache>,
    fs: Uhfs<Ext2>,
    files: Vec<InodeNo>,
}

fn caller() -> Caller {
    Caller::default()
}

fn open(device: &Arc<MemDevice>) -> (Arc<Cache>, Uhfs<Ext2>) {
    let medium: Arc<dyn BlockDevice> = Arc::<MemDevice>::clone(device);
    let cache = Cache::new(medium, CacheOptions::default(), Arc::new(ManualClock::new()));
    let volume = Ext2::open(Arc::clone(&cache)).unwrap();
    (cache, Uhfs::new(volume, UhfsOptions::default()))
}

impl Rig {
    fn new() -> Self {
        let device = Arc::new(MemDevice::new(4096, 2048));
        let mut options = MkfsOptions::new([7; 16], [9; 16], Timestamp { secs: 1_700_000_000, nanos: 0 });
        options.block_size = Some(4096);
        mkfs(&*device, &options, &mut |_, _| {}).unwrap();
        let (cache, fs) = open(&device);
        let make =
            |no| fs.mknod(&caller(), fs.root(), format!("{no}").as_bytes(), 0o100_644, 0).unwrap().attr.ino;
        let files = (0..FILES).map(make).collect();
        Self { device, cache, fs, files }
    }

    /// Lets each file grow by a block.
    fn grow(&self, index: u64) -> Result<(), Errno> {
        let contents = [u8::try_from(index % 251).unwrap(); 4096];
        self.files.iter().try_for_each(|&file| {
            let done = self.fs.write(&caller(), file, index * BLOCK, &contents);
            done.map(|len| assert_eq!(len, 4096)).map_err(|error| error.errno())
        })
    }

    fn free(&self) -> u64 {
        self.fs.statfs().unwrap().blocks_free
    }

    /// Blocks that would be nobody's if everything were written now and the power then cut.
    fn leaked(&self) -> usize {
        self.cache.sync_all().unwrap();
        let report = check_ext2(&*self.device).unwrap();
        assert_eq!(report.corrupt, 0, "{:?}", report.findings);
        report.findings.iter().filter(|finding| finding.code == "block-leaked").count()
    }

    /// Blocks of all files.
    fn owned(&self) -> u64 {
        self.files.iter().map(|&file| self.fs.getattr(file).unwrap().blocks * 512 / BLOCK).sum()
    }
}

/// What a checker says beside that the volume is in use.
fn findings(report: &CheckReport) -> Vec<(FindingClass, &str)> {
    let said = report.findings.iter().map(|finding| (finding.class, finding.text.as_str()));
    let is_about_use = |code: &str| code == "superblock-not-clean";
    said.zip(&report.findings)
        .filter(|(_, finding)| !is_about_use(finding.code))
        .map(|(said, _)| said)
        .collect()
}

#[test]
fn files_that_grow_in_turns_miss_no_space_and_lie_in_long_runs() {
    let rig = Rig::new();
    let all = rig.free();
    for index in 0..160 {
        rig.grow(index).unwrap();
        assert_eq!(rig.free(), all - rig.owned(), "what is preallocated counts as free");
    }
    assert_eq!(findings(&rig.fs.check().unwrap()), [], "a check of the mounted volume");
    rig.grow(160).unwrap();
    rig.fs.sync().unwrap();
    assert_eq!(findings(&check_ext2(&*rig.device).unwrap()), [], "the medium after a sync");
    rig.fs.unmount().unwrap();
    let (cache, _) = open(&rig.device);
    let volume = Ext2::open(cache).unwrap();
    for file in rig.files {
        let inode = volume.load(file).unwrap();
        let (mut index, mut runs) = (0, 0);
        while index < 161 {
            index += volume.map(&inode, index, 161 - index).unwrap().count;
            runs += 1;
        }
        assert!(runs <= 64 + 8, "{runs} runs of 161 blocks");
    }
}

/// What is unpacked is written together: a gap behind each file would make a request of each.
#[test]
fn short_files_written_in_pieces_lie_one_behind_the_other() {
    let rig = Rig::new();
    let make = |no| {
        let ino = rig
            .fs
            .mknod(&caller(), rig.fs.root(), format!("s{no}").as_bytes(), 0o100_644, 0)
            .unwrap()
            .attr
            .ino;
        for piece in 0..3 {
            rig.fs.write(&caller(), ino, piece * 10_240, &[3; 10_240]).unwrap();
        }
        ino
    };
    let files: Vec<InodeNo> = (0..50).map(make).collect();
    rig.fs.unmount().unwrap();
    let (cache, _) = open(&rig.device);
    let volume = Ext2::open(cache).unwrap();
    let mut gaps = 0;
    let mut end = None;
    for file in files {
        let run = volume.map(&volume.load(file).unwrap(), 0, 8).unwrap();
        assert_eq!(run.count, 8, "30 KiB in one run");
        let start = run.start.unwrap().get();
        gaps += u64::from(end.is_some_and(|end| end != start));
        end = Some(start + run.count);
    }
    assert!(gaps <= 2, "{gaps} gaps between 50 files");
}

#[test]
fn the_last_block_can_be_had_and_what_is_removed_is_free() {
    let rig = Rig::new();
    let all = rig.free();
    let index = (0..).find(|&index| rig.grow(index).is_err()).unwrap();
    assert_eq!(rig.grow(index), Err(Errno::NOSPC));
    assert_eq!((rig.free(), rig.owned()), (0, all));
    // Shortened, grown and shortened again: what was preallocated behind the old end is not kept.
    for round in 0..3 {
        for &file in &rig.files {
            let size = SetAttr { size: Some((100 + round) * BLOCK), ..SetAttr::default() };
            rig.fs.setattr(&caller(), file, &size).unwrap();
        }
        assert_eq!(rig.leaked(), 0, "shortened");
        (100 + round..140).for_each(|index| rig.grow(index).unwrap());
        assert_eq!(rig.free(), all - rig.owned());
    }
    // What is behind the end is not wanted where the file goes on elsewhere.
    [200, 201, 202, 300, 301].into_iter().for_each(|index| rig.grow(index).unwrap());
    assert_eq!(rig.free(), all - rig.owned());
    for no in 0..FILES {
        rig.fs.unlink(&caller(), rig.fs.root(), format!("{no}").as_bytes()).unwrap();
        rig.fs.forget(rig.files[usize::try_from(no).unwrap()], 1);
    }
    assert_eq!(rig.leaked(), 0, "removed");
    rig.fs.sync().unwrap();
    assert_eq!(rig.free(), all);
    assert_eq!(findings(&check_ext2(&*rig.device).unwrap()), []);
}

#[test]
fn who_needs_all_blocks_gets_those_that_others_have_preallocated() {
    let rig = Rig::new();
    let all = rig.free();
    (0..90).for_each(|index| rig.grow(index).unwrap());
    let greedy = rig.fs.mknod(&caller(), rig.fs.root(), b"greedy", 0o100_644, 0).unwrap().attr.ino;
    let mut end = 0;
    let error = loop {
        match rig.fs.write(&caller(), greedy, end, &vec![1; 1 << 20]) {
            Ok(len) => end += u64::try_from(len).unwrap(),
            Err(error) => break error.errno(),
        }
    };
    let its = rig.fs.getattr(greedy).unwrap().blocks * 512 / BLOCK;
    assert_eq!((error, rig.free(), rig.owned() + its), (Errno::NOSPC, 0, all));
}

/// Files that grow in turns while there is room to preallocate for fewer of them.
#[test]
fn many_files_grow_as_well() {
    let rig = Rig::new();
    let all = rig.free();
    let make = |no| {
        rig.fs.mknod(&caller(), rig.fs.root(), format!("m{no}").as_bytes(), 0o100_644, 0).unwrap().attr.ino
    };
    let files: Vec<InodeNo> = (0..150).map(make).collect();
    // Holes, so that they are long enough at little cost.
    for index in 64..72 {
        for &file in &files {
            rig.fs.write(&caller(), file, index * BLOCK, &[7; 4096]).unwrap();
        }
    }
    let owns = |&file: &InodeNo| rig.fs.getattr(file).unwrap().blocks * 512 / BLOCK;
    assert_eq!(files.iter().map(owns).sum::<u64>(), 150 * (8 + 1), "each with an indirect block");
    assert_eq!(findings(&rig.fs.check().unwrap()), []);
    assert!(rig.free() >= all - 150 * 9 - 4, "but for the directory's own blocks");
}

#[test]
fn a_power_cut_leaves_them_to_the_reclaimer() {
    let rig = Rig::new();
    (0..100).for_each(|index| rig.grow(index).unwrap());
    let owned = rig.owned();
    assert!(rig.leaked() > 0);
    let (cache, fs) = open(&rig.device);
    let rig = Rig { cache, fs, ..rig };
    (100..105).for_each(|index| rig.grow(index).unwrap());
    let done = rig.fs.reclaim().unwrap();
    assert!(done.complete && done.blocks > 0, "{done:?}");
    (105..110).for_each(|index| rig.grow(index).unwrap());
    // Now there is something preallocated that it must not take for leaked, because it will be somebody's.
    let done = rig.fs.reclaim().unwrap();
    assert_eq!((done.complete, done.blocks), (true, 0));
    (110..120).for_each(|index| rig.grow(index).unwrap());
    assert_eq!(findings(&rig.fs.check().unwrap()), []);
    assert_eq!(rig.owned() - owned, 20 * FILES, "nothing was taken from anybody");
    rig.fs.unmount().unwrap();
    assert_eq!(findings(&check_ext2(&*rig.device).unwrap()), []);
}

/// The first block of a file of so many, and the one behind its last.
fn span(volume: &Ext2, file: InodeNo, blocks: u64) -> (u64, u64) {
    let inode = volume.load(file).unwrap();
    let (mut index, mut low, mut high) = (0, u64::MAX, 0);
    while index < blocks {
        let extent = volume.map(&inode, index, blocks - index).unwrap();
        let start = extent.start.unwrap().get();
        (low, high) = (low.min(start), high.max(start + extent.count));
        index += extent.count;
    }
    (low, high)
}

#[test]
fn a_file_whose_length_was_said_lies_in_one_piece_with_its_indirect_blocks() {
    let rig = Rig::new();
    let all = rig.free();
    for &file in &rig.files {
        rig.fs.expect(file, 200 * BLOCK).unwrap();
    }
    for index in 0..200 {
        rig.grow(index).unwrap();
        assert_eq!(rig.free(), all - rig.owned(), "what is preallocated counts as free");
    }
    assert_eq!(findings(&rig.fs.check().unwrap()), [], "a check of the mounted volume");
    rig.fs.unmount().unwrap();
    assert!(check_ext2(&*rig.device).unwrap().is_clean());
    let volume = Ext2::open(open(&rig.device).0).unwrap();
    for file in rig.files {
        let (low, high) = span(&volume, file, 200);
        assert_eq!(high - low, 200 + 1, "200 blocks and the indirect one among them");
    }
}

#[test]
fn more_or_less_than_was_said_leaves_nothing_behind() {
    for (said, written) in [(200, 20), (20, 200), (100_000, 200), (0, 5), (13, 12), (12, 13)] {
        let rig = Rig::new();
        let all = rig.free();
        for &file in &rig.files {
            rig.fs.expect(file, said * BLOCK).unwrap();
        }
        for index in 0..written {
            rig.grow(index).unwrap();
        }
        // A hole, where something was to come.
        let last = rig.files[0];
        rig.fs.write(&caller(), last, (written + 300) * BLOCK, b"far").unwrap();
        assert_eq!(rig.free(), all - rig.owned(), "{said} said, {written} written");
        rig.fs.unlink(&caller(), rig.fs.root(), b"1").unwrap();
        rig.fs.forget(rig.files[1], 1);
        assert_eq!(findings(&rig.fs.check().unwrap()), [], "{said} said, {written} written");
        rig.fs.unmount().unwrap();
        assert!(check_ext2(&*rig.device).unwrap().is_clean(), "{said} said, {written} written");
    }
}

#[test]
fn the_last_blocks_of_a_volume_are_found_though_they_were_kept_for_another_file() {
    let rig = Rig::new();
    rig.fs.expect(rig.files[0], 1500 * BLOCK).unwrap();
    rig.fs.write(&caller(), rig.files[0], 0, &[1; 4096]).unwrap();
    // Everything else fits nowhere but in what was kept.
    let contents = vec![2; 1 << 20];
    let mut at = 0;
    let full = loop {
        match rig.fs.write(&caller(), rig.files[1], at, &contents) {
            Ok(len) => at += u64::try_from(len).unwrap(),
            Err(error) => break error.errno(),
        }
    };
    assert_eq!((full, rig.free()), (Errno::NOSPC, 0));
    rig.fs.unmount().unwrap();
    assert!(check_ext2(&*rig.device).unwrap().is_clean());
}
