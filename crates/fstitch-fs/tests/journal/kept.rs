//! A journal that is kept while its volume is in use, and what a power cut leaves of it.
//!
//! What it prevents: an old copy written over a new file's contents, a file without a name that is never freed, a
//! truncation that is never finished, contents of somebody else, a full log or a full volume that stops, a volume in use
//! that does not say so.

use std::sync::{Arc, Mutex};

use fstitch_core::Consistency;
use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Caller, Entry, Errno, Error, FileSystem,
    Geometry, InodeNo, ManualClock, MemDevice, Result, SetAttr, StatsDevice,
};
use fstitch_fs::arrange::{Arrangement, open};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::ext2::journal::{Journal, locate, needs_recovery, read_superblock};
use fstitch_fs::ext2::layout::superblock::S_LAST_ORPHAN;
use fstitch_fs::ext2::mkfs::{MkfsJournal, MkfsOptions, mkfs};
use fstitch_fs::uhfs::Uhfs;
use fstitch_fs::view::BlockView;

use super::support::{Scratch, e2fsck_image, have, run};
use super::{NOW, recovered};

const JOURNALED: [Consistency; 3] = [Consistency::Ordered, Consistency::Metadata, Consistency::Full];
const REGULAR: u16 = 0o100_644;

/// A new ext3 volume with the smallest journal, in blocks of 1 KiB.
pub(crate) fn base(blocks: u64, journal: MkfsJournal) -> MemDevice {
    let device = MemDevice::new(1024, blocks);
    let mut options = MkfsOptions::new([1; 16], [2; 16], NOW);
    options.block_size = Some(1024);
    options.journal = journal;
    options.reserved_percent = 0;
    mkfs(&device, &options, &mut |_, _| {}).unwrap();
    device
}

pub(crate) const SMALLEST: MkfsJournal = MkfsJournal::Blocks(1024);

pub(crate) fn mounted(device: Arc<dyn BlockDevice>, mechanism: Consistency) -> Uhfs<Ext2> {
    let arrangement = Arrangement { consistency: Some(mechanism), ..Arrangement::default() };
    opened(device, &arrangement).unwrap().0
}

fn opened(device: Arc<dyn BlockDevice>, arrangement: &Arrangement) -> Result<(Uhfs<Ext2>, Consistency)> {
    open::<Ext2>(device, arrangement, Arc::new(ManualClock::new()))
}

pub(crate) fn make(fs: &dyn FileSystem, dir: InodeNo, name: &str) -> Entry {
    fs.mknod(&Caller::default(), dir, name.as_bytes(), REGULAR, 0).unwrap()
}

/// Writes `byte` from the start on, as far as there is space; returns how much.
pub(crate) fn fill(fs: &dyn FileSystem, ino: InodeNo, byte: u8, len: u64) -> u64 {
    let data = vec![byte; 16 << 10];
    let mut at = 0;
    while at < len {
        let part = usize::try_from((len - at).min(16 << 10)).unwrap();
        match fs.write(&Caller::default(), ino, at, &data[..part]) {
            Ok(done) => at += u64::try_from(done).unwrap(),
            Err(error) if error.errno() == Errno::NOSPC => break,
            Err(error) => panic!("{error}"),
        }
    }
    at
}

pub(crate) fn contents(fs: &dyn FileSystem, name: &str) -> Option<Vec<u8>> {
    let entry = fs.walk(name.as_bytes()).ok()?;
    let mut data = vec![0; usize::try_from(entry.attr.size).unwrap()];
    let done = fs.read(entry.attr.ino, 0, &mut data).unwrap();
    fs.forget(entry.attr.ino, 1);
    assert_eq!(done, data.len());
    Some(data)
}

/// A medium that keeps what it holds at each flush, and looks at what it holds after each write.
struct Watched {
    medium: MemDevice,
    flushed: Mutex<Vec<Vec<u8>>>,
    journal: usize,
}

impl Watched {
    fn new(base: &MemDevice) -> Arc<Self> {
        let journal = usize::try_from(journal_blocks(base)[0]).unwrap() * 1024;
        let medium = MemDevice::from_image(1024, base.image());
        Arc::new(Self { medium, flushed: Mutex::new(Vec::new()), journal })
    }

    fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.flushed.lock().unwrap())
    }
}

impl BlockDevice for Watched {
    fn geometry(&self) -> Geometry {
        self.medium.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.medium.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        for write in writes {
            self.medium.write(std::slice::from_ref(write))?;
            if [1, self.journal / 1024].contains(&write.block.index()) {
                let image = self.medium.image();
                let in_use = image[self.journal + 0x1c..self.journal + 0x20] != [0; 4];
                assert!(
                    !in_use || image[1024 + 0x60] & 4 != 0,
                    "the log is in use, and the volume does not say so"
                );
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.flushed.lock().unwrap().push(self.medium.image());
        Ok(())
    }

    fn discard(&self, _start: BlockNo, _count: u64) -> Result<()> {
        Ok(())
    }
}

/// The volume's blocks that the journal lies in.
pub(crate) fn journal_blocks(device: &MemDevice) -> Vec<u64> {
    let (raw, shape) = read_superblock(device).unwrap();
    let view = BlockView::new(device, 1024);
    let journal = Journal::find(&view, &shape, locate(&shape, &raw).unwrap().unwrap(), None).unwrap();
    (0..journal.area.count()).map(|no| journal.area.map(no).unwrap().get()).collect()
}

/// The volume after a power cut, recovered by us; it has no fault.
pub(crate) fn after_cut(image: Vec<u8>) -> (Arc<MemDevice>, fstitch_fs::ext2::journal::Orphans) {
    let device = MemDevice::from_image(1024, image);
    let done = recovered(&device, 256).unwrap();
    let report = check_ext2(&device).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    (Arc::new(device), done.map(|done| done.orphans).unwrap_or_default())
}

/// The same, recovered by the reference.
pub(crate) fn after_reference(scratch: &Scratch, image: &[u8]) -> Option<Vec<u8>> {
    if !have("e2fsck") {
        return None;
    }
    let path = scratch.path("reference.img");
    std::fs::write(&path, image).unwrap();
    for (flags, codes) in [("-p", &[0, 1][..]), ("-fn", &[0])] {
        let (code, said) = run("e2fsck", &[flags, path.to_str().unwrap()]);
        assert!(codes.contains(&code), "e2fsck {flags}: {said}");
    }
    Some(std::fs::read(&path).unwrap())
}

/// A directory whose blocks are in the log, removed; then a file that takes every free block, and so theirs, with
/// contents that no metadata journal logs. The power fails after the fsync. Returns the image and the file's length.
fn a_directory_then_a_file_in_its_blocks() -> (Vec<u8>, u64) {
    let device = Arc::new(base(6 << 10, SMALLEST));
    let fs = mounted(device.clone(), Consistency::Metadata);
    let dir = fs.mkdir(&Caller::default(), fs.root(), b"dir", 0o755).unwrap().attr.ino;
    let name = |index| format!("{index:0>60}");
    (0..200).for_each(|index| fs.forget(make(&fs, dir, &name(index)).attr.ino, 1));
    fs.sync().unwrap();
    (0..200).for_each(|index| fs.unlink(&Caller::default(), dir, name(index).as_bytes()).unwrap());
    fs.rmdir(&Caller::default(), fs.root(), b"dir").unwrap();
    fs.forget(dir, 1);
    fs.sync().unwrap();
    let file = make(&fs, fs.root(), "file").attr.ino;
    let size = fill(&fs, file, 0xc5, u64::MAX);
    assert!(size > 3 << 20, "it takes what the directory had");
    fs.fsync(file, false).unwrap();
    fs.sync().unwrap();
    (device.image(), size)
}

/// The same image with a log whose revocations revoke nothing.
fn without_revocations(image: &[u8]) -> Vec<u8> {
    let (mut robbed, mut records) = (image.to_vec(), 0);
    for no in journal_blocks(&MemDevice::from_image(1024, image.to_vec())) {
        let at = usize::try_from(no).unwrap() * 1024;
        if robbed[at..at + 8] == [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 5] {
            // The bytes in use: the record's header, and no block numbers behind it.
            robbed[at + 12..at + 16].copy_from_slice(&16_u32.to_be_bytes());
            records += 1;
        }
    }
    assert!(records > 0, "something was revoked");
    robbed
}

/// The bug that revocations prevent: the log still holds copies of the directory's blocks, and a replay that does not
/// know better brings them home, into the file that has these blocks by now.
#[test]
fn kept_revocations_save_the_contents_of_blocks_used_again() {
    let scratch = Scratch::new("journal-revoke");
    let (image, size) = a_directory_then_a_file_in_its_blocks();
    let is_whole = |image: Vec<u8>| {
        let fs = mounted(Arc::new(MemDevice::from_image(1024, image)), Consistency::Metadata);
        let data = contents(&fs, "file").unwrap();
        assert_eq!(u64::try_from(data.len()).unwrap(), size);
        let foreign: Vec<&[u8]> =
            data.chunks(1024).filter(|block| block.iter().any(|&byte| byte != 0xc5)).collect();
        // What is foreign in it are the names that the directory had.
        let name = [b'0'; 50];
        let is_directory = |block: &[u8]| block.windows(name.len()).any(|part| part == name);
        assert!(foreign.is_empty() || foreign.iter().any(|block| is_directory(block)));
        foreign.is_empty()
    };
    // With the revocations the file is intact, whoever replays.
    assert!(is_whole(after_cut(image.clone()).0.image()));
    if let Some(image) = after_reference(&scratch, &image) {
        assert!(is_whole(image));
    }
    // Without them a replay puts the directory into the file, and no checker sees anything wrong.
    let robbed = without_revocations(&image);
    assert!(!is_whole(after_cut(robbed.clone()).0.image()));
    if let Some(image) = after_reference(&scratch, &robbed) {
        assert!(!is_whole(image));
    }
}

#[test]
fn kept_orphans_are_freed_by_whoever_recovers() {
    let scratch = Scratch::new("journal-orphan");
    for mechanism in JOURNALED {
        let device = Arc::new(base(8 << 10, SMALLEST));
        let before = read_superblock(&*device).unwrap().1.free_blocks;
        let fs = mounted(device.clone(), mechanism);
        let files: Vec<InodeNo> = (0..3).map(|n| make(&fs, fs.root(), &format!("f{n}")).attr.ino).collect();
        files.iter().for_each(|&ino| assert_eq!(fill(&fs, ino, 1, 600 << 10), 600 << 10));
        fs.sync().unwrap();
        (0..3).for_each(|n| fs.unlink(&Caller::default(), fs.root(), format!("f{n}").as_bytes()).unwrap());
        // The one in the middle of the list leaves it.
        fs.forget(files[1], 1);
        fs.sync().unwrap();
        let image = device.image();
        let (ours, orphans) = after_cut(image.clone());
        assert_eq!((orphans.freed, orphans.cut), (2, 0), "{mechanism}");
        assert_eq!(read_superblock(&*ours).unwrap().1.free_blocks, before);
        let (code, said) = e2fsck_image(&scratch, "ours.img", &ours.image());
        assert_eq!(code, 0, "{said}");
        if let Some(image) = after_reference(&scratch, &image) {
            let theirs = MemDevice::from_image(1024, image);
            assert_eq!(read_superblock(&theirs).unwrap().1.free_blocks, before);
        }
        fs.forget(files[0], 1);
        fs.unmount().unwrap();
        assert!(!needs_recovery(&*device).unwrap());
        let (code, said) = e2fsck_image(&scratch, "unmounted.img", &device.image());
        assert_eq!(code, 0, "{said}");
    }
}

#[test]
fn kept_truncations_are_finished_by_whoever_recovers() {
    let scratch = Scratch::new("journal-truncate");
    for mechanism in JOURNALED {
        // A truncation that waits for room in the middle of it is cut in two. How much must be dirty for that depends on
        // how much memory a patch takes.
        let mut amounts = (128..=192).rev().step_by(8);
        assert!(
            amounts.any(|kib| truncate_beside(&scratch, mechanism, kib << 10) > 0),
            "{mechanism}: no cut met a truncation"
        );
    }
}

/// Shortens a file while `dirty` bytes of another one wait to be written, and judges what cuts leave. Returns how many of
/// them met a truncation under way.
fn truncate_beside(scratch: &Scratch, mechanism: Consistency, dirty: u64) -> u32 {
    let watched = Watched::new(&base(12 << 10, SMALLEST));
    let mut arrangement = Arrangement { consistency: Some(mechanism), ..Arrangement::default() };
    (arrangement.fs.step_bytes, arrangement.cache.cache_size) = (16 << 10, 256 << 10);
    let (fs, _) = opened(watched.clone(), &arrangement).unwrap();
    let file = make(&fs, fs.root(), "file").attr.ino;
    assert_eq!(fill(&fs, file, 7, 5 << 20), 5 << 20);
    fs.sync().unwrap();
    watched.take();
    let other = make(&fs, fs.root(), "other").attr.ino;
    assert_eq!(fill(&fs, other, 9, dirty), dirty);
    let cut = SetAttr { size: Some(1000), ..SetAttr::default() };
    fs.setattr(&Caller::default(), file, &cut).unwrap();
    fs.sync().unwrap();
    let images = watched.take();
    let mut met = 0;
    for (index, image) in images.iter().enumerate() {
        let (ours, orphans) = after_cut(image.clone());
        met += orphans.cut;
        let fs = mounted(ours, mechanism);
        let data = contents(&fs, "file").unwrap();
        assert!(data.len() == 1000 || data.len() == 5 << 20, "{mechanism}: {}", data.len());
        if orphans.cut > 0 && index % 4 == 0 {
            after_reference(scratch, image);
        }
    }
    fs.unmount().unwrap();
    let (code, said) = e2fsck_image(scratch, "unmounted.img", &watched.medium.image());
    assert_eq!(code, 0, "{mechanism}: {said}");
    assert_eq!(
        S_LAST_ORPHAN.get(&read_superblock(&watched.medium).unwrap().0),
        0,
        "{mechanism}: it left the list"
    );
    met
}

#[test]
fn kept_contents_never_show_in_another_file() {
    for mechanism in [Consistency::Ordered, Consistency::Full] {
        // So small that the second file needs the blocks of the first.
        let watched = Watched::new(&base(5 << 10, SMALLEST));
        let fs = mounted(watched.clone(), mechanism);
        let old = make(&fs, fs.root(), "old").attr.ino;
        assert_eq!(fill(&fs, old, 0xaa, 2 << 20), 2 << 20);
        fs.sync().unwrap();
        watched.take();
        fs.unlink(&Caller::default(), fs.root(), b"old").unwrap();
        fs.forget(old, 1);
        let new = make(&fs, fs.root(), "new").attr.ino;
        assert_eq!(fill(&fs, new, 0xbb, 3 << 20), 3 << 20, "{mechanism}: what was freed can be used again");
        fs.fsync(new, false).unwrap();
        fs.sync().unwrap();
        for image in watched.take() {
            let fs = mounted(after_cut(image).0, mechanism);
            for (name, byte) in [("old", 0xaa), ("new", 0xbb)] {
                let data = contents(&fs, name).unwrap_or_default();
                assert!(
                    data.iter().all(|&seen| seen == byte),
                    "{mechanism}: contents of another file in `{name}`"
                );
            }
        }
        fs.unmount().unwrap();
        assert!(!needs_recovery(&watched.medium).unwrap());
    }
}

#[test]
fn kept_in_a_small_log_many_operations_go_on() {
    let scratch = Scratch::new("journal-small");
    for mechanism in JOURNALED {
        for cache_size in [1 << 20, 64 << 20] {
            let device = Arc::new(base(12 << 10, SMALLEST));
            let mut arrangement = Arrangement { consistency: Some(mechanism), ..Arrangement::default() };
            arrangement.cache.cache_size = cache_size;
            let (fs, _) = opened(device.clone(), &arrangement).unwrap();
            for round in 0..6 {
                for index in 0..300 {
                    let name = format!("{round}-{index}");
                    let ino = make(&fs, fs.root(), &name).attr.ino;
                    fill(&fs, ino, 3, index * 40);
                    fs.forget(ino, 1);
                    if index % 50 == 0 {
                        fs.fsync(ino, false).unwrap();
                    }
                }
                for index in (0..300).filter(|index| index % 7 > 0) {
                    fs.unlink(&Caller::default(), fs.root(), format!("{round}-{index}").as_bytes()).unwrap();
                }
            }
            fs.unmount().unwrap();
            let (code, said) = e2fsck_image(&scratch, "small.img", &device.image());
            assert_eq!(code, 0, "{mechanism}: {said}");
        }
    }
}

#[test]
fn kept_only_where_there_is_one_and_somebody_writes() {
    for mechanism in JOURNALED {
        let arrangement = Arrangement { consistency: Some(mechanism), ..Arrangement::default() };
        let refused = opened(Arc::new(base(4 << 10, MkfsJournal::None)), &arrangement).map(drop);
        let Err(Error::Unsupported(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("without a journal") && why.contains(mechanism.name()), "{why}");
    }
    let device = Arc::new(base(8 << 10, SMALLEST));
    let log = journal_blocks(&device);
    let logged = |device: &MemDevice| -> Vec<Vec<u8>> {
        let read = |&no: &u64| {
            let mut data = vec![0; 1024];
            device
                .read(&mut [BlockRead { block: BlockNo(no), kind: BlockKind::Data, data: &mut data }])
                .unwrap();
            data
        };
        log.iter().map(read).collect()
    };
    let before = logged(&device);
    let (fs, chosen) = opened(device.clone(), &Arrangement::default()).unwrap();
    assert_eq!(chosen, Consistency::Ordered);
    drop(fs);
    for mechanism in [Consistency::Soft, Consistency::Sync, Consistency::Async] {
        let fs = mounted(device.clone(), mechanism);
        let ino = make(&fs, fs.root(), mechanism.name()).attr.ino;
        fill(&fs, ino, 1, 5000);
        fs.forget(ino, 1);
        fs.sync().unwrap();
        assert!(!needs_recovery(&*device).unwrap());
        fs.unmount().unwrap();
        assert!(logged(&device) == before, "{mechanism} leaves the journal alone");
    }
    let mut arrangement = Arrangement::default();
    (arrangement.cache.read_only, arrangement.fs.read_only) = (true, true);
    let image = device.image();
    let (fs, _) = opened(device.clone(), &arrangement).unwrap();
    assert_eq!(contents(&fs, "soft").unwrap().len(), 5000);
    let made = fs.mknod(&Caller::default(), fs.root(), b"no", REGULAR, 0);
    assert_eq!(made.map(drop).unwrap_err().errno(), Errno::ROFS);
    fs.unmount().unwrap();
    assert!(device.image() == image);
}

/// A file that a transaction makes and removes is never written, with its contents; one that an earlier transaction has is.
#[test]
fn kept_files_that_die_young_are_not_written() {
    for mechanism in JOURNALED {
        let written = |made_before: bool| {
            let device = Arc::new(StatsDevice::new(base(8192, MkfsJournal::Blocks(2048))));
            let fs = mounted(Arc::clone(&device) as _, mechanism);
            let entry = make(&fs, fs.root(), "short-lived");
            let ino = entry.attr.ino;
            fill(&fs, ino, 1, 300 << 10);
            if made_before {
                fs.sync().unwrap();
            }
            let before = device.stats().blocks_written.get();
            fill(&fs, ino, 2, 300 << 10);
            fs.unlink(&Caller::default(), fs.root(), b"short-lived").unwrap();
            fs.forget(ino, 1);
            fs.sync().unwrap();
            fs.unmount().unwrap();
            assert!(check_ext2(&*device).unwrap().is_clean());
            device.stats().blocks_written.get() - before
        };
        // The log, twice as much as what it holds, and a few blocks at home.
        assert!(written(false) < 60, "{mechanism}: {} blocks", written(false));
        if mechanism != Consistency::Full {
            assert!(written(true) >= 300, "{mechanism}: nothing may be dropped that a crash could show");
        }
    }
}

/// A volume whose power was cut lets go of its medium, as one that was unmounted does.
#[test]
fn kept_no_longer_than_the_volume_is_the_medium() {
    for mechanism in JOURNALED.into_iter().chain([Consistency::Soft]) {
        let device = Arc::new(base(8192, MkfsJournal::Blocks(2048)));
        let fs = mounted(Arc::clone(&device) as _, mechanism);
        let entry = make(&fs, fs.root(), "file");
        fill(&fs, entry.attr.ino, 1, 300 << 10);
        fs.forget(entry.attr.ino, 1);
        fs.abandon("the power is cut").unwrap();
        drop(fs);
        assert_eq!(Arc::strong_count(&device), 1, "{mechanism}");
    }
}
