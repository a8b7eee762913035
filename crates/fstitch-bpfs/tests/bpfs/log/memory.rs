//! What of a device is in memory: what comes when, what leaves, and what becomes of pages that cannot be read.
//!
//! What it prevents: a mount that reads a whole volume and keeps it, contents that leave memory before the device has them, a bad page that
//! fails others than who asks for it.

use std::sync::Arc;
use std::time::Duration;

use fstitch_bpfs::{Bpfs, Durability, Options};
use fstitch_core::{Errno, FallocateMode, FileSystem, MemDevice, Result, Seed, SetAttr};

use super::{Cautious, mount};
use crate::on_device::{device, on_device, open};
use crate::support::{CALLER, clock, create};

/// A closed volume with files of 25 blocks each.
fn with_files(count: usize) -> Arc<MemDevice> {
    let made = device(16 << 20, 512);
    let fs = open(&made, on_device(Durability::Power));
    for no in 0..count {
        let ino = create(&fs, fs.root(), format!("f{no}").as_bytes());
        fs.write(&CALLER, ino, 0, &contents_of(no)).unwrap();
    }
    fs.unmount().unwrap();
    made
}

/// No two of their blocks are equal.
fn contents_of(no: usize) -> Vec<u8> {
    let words =
        (0..25 * 512_usize).flat_map(|word| u64::try_from((no << 32) + word + 1).unwrap().to_le_bytes());
    words.collect()
}

#[test]
fn a_mount_reads_what_leads_to_files_and_not_what_they_hold() {
    let device = Cautious::new(with_files(64), Duration::ZERO);
    let fs = mount(&device, Durability::Power);
    let read = device.pages_read();
    // A block of pointers of each file, two blocks of names, two of inodes; the superblock, its copy, and the log.
    assert!((64..64 + 40).contains(&read.len()), "{} pages are read by a mount: {read:?}", read.len());

    // What is stored whole replaces what is there, and what that was does not matter.
    let ino = create(&*fs, fs.root(), b"new");
    fs.write(&CALLER, ino, 0, &contents_of(99)).unwrap();
    let read = device.pages_read();
    assert!(read.len() <= 16, "a new file of 25 blocks reads {read:?}");

    // Who reads a byte of a file is likely to go on.
    let ino = fs.lookup(fs.root(), b"f7").unwrap().attr.ino;
    let mut byte = [0];
    assert!(fs.read(ino, 0, &mut byte).unwrap() == 1 && byte == contents_of(7)[..1]);
    let read = device.pages_read();
    assert!((2..=16).contains(&read.len()), "a byte brings {read:?}");
}

/// Eight threads read everything; the pages that were read for them.
fn read_by_many(cache_size: u64) -> Vec<u64> {
    let device = Cautious::new(with_files(64), Duration::from_micros(50));
    let options = Options { cache_size, ..on_device(Durability::Power) };
    let fs = Bpfs::open_on(Arc::<Cautious>::clone(&device), options, clock()).unwrap();
    device.pages_read();
    std::thread::scope(|scope| {
        for reader in 0..8 {
            let fs = &fs;
            scope.spawn(move || {
                for no in (0..64).map(|no| (no + reader / 2) % 64) {
                    let ino = fs.lookup(fs.root(), format!("f{no}").as_bytes()).unwrap().attr.ino;
                    let mut all = vec![0; 25 * 4096];
                    let count = fs.read(ino, 0, &mut all).unwrap();
                    assert!(count == all.len() && all == contents_of(no), "file {no}");
                }
            });
        }
    });
    device.pages_read()
}

/// Readers meet in pages that nobody has read: each is read once, and nobody sees one before it is there.
#[test]
fn pages_that_many_readers_ask_for_are_read_once() {
    let read = read_by_many(16 << 20);
    assert!(read.len() >= 64 * 25 && read.windows(2).all(|two| two[0] < two[1]), "{} pages", read.len());
}

/// They leave memory under some of them, and come again for others.
#[test]
fn pages_leave_under_many_readers() {
    let read = read_by_many(0);
    assert!(read.len() > 2 * 64 * 25, "{} pages", read.len());
}

#[test]
fn a_page_that_cannot_be_read_fails_who_asks_for_it_and_nobody_else() {
    let made = with_files(64);
    let device = Cautious::new(Arc::clone(&made), Duration::ZERO);
    let fs = mount(&device, Durability::Power);
    device.pages_read();
    let file = |fs: &Bpfs, no: u32| fs.lookup(fs.root(), format!("f{no}").as_bytes()).unwrap().attr.ino;
    // Which page a block of a file is in: what comes with it begins or ends with it, or its file does.
    let (ino, mut piece) = (file(&fs, 7), [0; 4096]);
    let at = |index: u64| index * 4096;
    fs.read(ino, at(9), &mut piece).unwrap();
    let came = device.pages_read();
    let wanted = piece;
    let holder = |page: &&u64| {
        let start = usize::try_from(**page * 4096).unwrap();
        made.image()[start..start + 4096] == wanted
    };
    let page = *came.iter().find(holder).unwrap();
    drop(fs);

    let device = Cautious::new(Arc::clone(&made), Duration::ZERO);
    let fs = mount(&device, Durability::Power);
    device.bad.lock().unwrap().push(page);
    let error = |result: Result<usize>| result.map(drop).unwrap_err().errno();
    for index in (0..25).filter(|index| *index != 9) {
        fs.read(ino, at(index), &mut piece).unwrap();
        let from = usize::try_from(at(index)).unwrap();
        assert!(piece == contents_of(7)[from..from + 4096], "block {index}");
    }
    assert_eq!(error(fs.read(ino, at(9), &mut piece)), Errno::IO);
    // A part of it cannot be written, because the rest would be lost; that is no reason to end the mount.
    assert_eq!(error(fs.write(&CALLER, ino, at(9) + 100, b"part")), Errno::IO);
    assert_eq!(error(fs.write(&CALLER, ino, at(8), &[1; 6000])), Errno::IO);
    let punched = fs.fallocate(&CALLER, ino, at(9) + 100, 8, FallocateMode::PunchHole);
    assert_eq!(punched.unwrap_err().errno(), Errno::IO);
    // What is cut off need not be read; what is behind the end now would have to, to be zeros.
    let size = |bytes| SetAttr { size: Some(bytes), ..SetAttr::default() };
    fs.setattr(&CALLER, ino, &size(at(9) + 5)).unwrap();
    assert_eq!(fs.setattr(&CALLER, ino, &size(at(30))).map(drop).unwrap_err().errno(), Errno::IO);
    assert_eq!(error(fs.write(&CALLER, ino, at(9) + 5, b"more")), Errno::IO);
    assert_eq!(error(fs.write(&CALLER, ino, at(11), b"more")), Errno::IO);
    assert!(fs.failed().is_none());
    // All of it can, and is somewhere else then.
    assert_eq!(fs.write(&CALLER, ino, at(9), &[5; 4096]).unwrap(), 4096);
    fs.read(ino, at(9), &mut piece).unwrap();
    assert!(piece == [5; 4096]);
    assert!(fs.failed().is_none());
    // What was in the page is nobody's now, and nobody needs it who has a part of the page.
    for no in 0..8 {
        let small = create(&*fs, fs.root(), format!("small{no}").as_bytes());
        fs.write(&CALLER, small, 10, &[no; 100]).unwrap();
    }
    let zeroed = fs.fallocate(&CALLER, ino, 0, at(30), FallocateMode::PunchHole);
    zeroed.unwrap();
    assert!(fs.failed().is_none());
    fs.unmount().unwrap();
    drop(fs);
    let fs = mount(&Cautious::new(made, Duration::ZERO), Durability::Power);
    for no in 0..8 {
        let small = fs.lookup(fs.root(), format!("small{no}").as_bytes()).unwrap().attr.ino;
        let mut all = [1; 200];
        assert_eq!(fs.read(small, 0, &mut all).unwrap(), 110);
        assert!(all[..10] == [0; 10] && all[10..110] == [no; 100], "small{no}");
    }
    fs.unmount().unwrap();
}

/// The last block of a file goes whole where it cannot be changed, if all of it that counts goes.
#[test]
fn a_hole_to_the_end_needs_no_room_and_nothing_that_was_there() {
    let made = with_files(64);
    let device = Cautious::new(Arc::clone(&made), Duration::ZERO);
    let fs = mount(&device, Durability::Power);
    let ino = fs.lookup(fs.root(), b"f7").unwrap().attr.ino;
    fs.setattr(&CALLER, ino, &SetAttr { size: Some(5000), ..SetAttr::default() }).unwrap();
    let filler = create(&*fs, fs.root(), b"filler");
    let mut end = 0;
    while let Ok(written) = fs.write(&CALLER, filler, end, &[7; 4096]) {
        end += u64::try_from(written).unwrap();
    }
    let before = fs.statfs().unwrap().blocks_free;
    fs.fallocate(&CALLER, ino, 0, 5000, FallocateMode::PunchHole).unwrap();
    assert!(fs.statfs().unwrap().blocks_free > before);
    let mut all = [1; 8192];
    assert!(fs.read(ino, 0, &mut all).unwrap() == 5000 && all[..5000] == [0; 5000]);
    fs.unmount().unwrap();
}

/// A volume with numbers that were given back, and inodes that no mount reads.
fn with_idle_inodes() -> Arc<MemDevice> {
    let made = with_files(64);
    let fs = open(&made, on_device(Durability::Power));
    for no in 20..64 {
        fs.unlink(&CALLER, fs.root(), format!("f{no}").as_bytes()).unwrap();
    }
    for no in 100..110 {
        create(&fs, fs.root(), format!("f{no}").as_bytes());
    }
    fs.unmount().unwrap();
    made
}

/// Inodes that nobody uses are not read by a mount; where they cannot be read others are used.
#[test]
fn inodes_that_cannot_be_read_are_left_alone() {
    let device = Cautious::new(with_idle_inodes(), Duration::ZERO);
    let fs = mount(&device, Durability::Power);
    device.pages_read();
    let probed = create(&*fs, fs.root(), b"probe");
    let read = device.pages_read();
    assert!(!read.is_empty(), "the inodes of a block that has none come when one is made");
    drop(fs);
    // The same volume once more, on which the first number to be taken is that one again.
    let device = Cautious::new(with_idle_inodes(), Duration::ZERO);
    let fs = mount(&device, Durability::Power);
    device.bad.lock().unwrap().extend(read);
    let made = create(&*fs, fs.root(), b"made");
    assert!(made != probed && fs.failed().is_none());
    fs.write(&CALLER, made, 0, b"text").unwrap();
    fs.unmount().unwrap();
}

/// Contents that were written or read leave memory, all that was written is there, and what was not written home yet is not read back.
#[test]
fn contents_leave_memory_and_come_back_as_they_were() {
    let device = Cautious::new(device(48 << 20, 64), Duration::ZERO);
    let fs = mount(&device, Durability::Process);
    let file = create(&*fs, fs.root(), b"file");
    let mut expected = vec![0; 20 << 20];
    let mut seed = Seed::new(11);
    for _ in 0..2000 {
        let (at, len) = (seed.below(20 << 20), 1 + seed.below(40_000));
        let end = (at + len).min(20 << 20);
        let (from, to) = (usize::try_from(at).unwrap(), usize::try_from(end).unwrap());
        match seed.below(4) {
            0 => {
                let mut read = vec![0; to - from];
                let count = fs.read(file, at, &mut read).unwrap();
                assert!(read[..count] == expected[from..from + count], "{count} bytes at {at}");
            }
            1 => {
                fs.fallocate(&CALLER, file, at, end - at, FallocateMode::PunchHole).unwrap();
                expected[from..to].fill(0);
            }
            _ => {
                let byte = u8::try_from(1 + seed.below(255)).unwrap();
                fs.write(&CALLER, file, at, &vec![byte; to - from]).unwrap();
                expected[from..to].fill(byte);
            }
        }
    }
    fs.sync().unwrap();
    let size = usize::try_from(fs.getattr(file).unwrap().size).unwrap();
    let mut all = vec![0; size];
    fs.read(file, 0, &mut all).unwrap();
    assert!(all == expected[..size]);
    assert!(device.pages_read().len() > 20 << 8, "contents are read again: {size} bytes");
    let held = fs.in_memory().unwrap();
    assert!(held < 2 << 20, "{held} bytes are in memory");
    fs.unmount().unwrap();
    let fs = mount(&device, Durability::Process);
    fs.read(file, 0, &mut all).unwrap();
    assert!(all == expected[..size]);
}

#[test]
fn what_is_nobody_s_leaves_memory() {
    let device = Cautious::new(device(48 << 20, 64), Duration::ZERO);
    let fs = mount(&device, Durability::Process);
    let name = |no: u32| format!("f{no}").into_bytes();
    for no in 0..2000 {
        let ino = create(&*fs, fs.root(), &name(no));
        fs.write(&CALLER, ino, 0, &[7; 5000]).unwrap();
        fs.forget(ino, 1);
    }
    let held = fs.in_memory().unwrap();
    assert!(held > 8 << 20, "pointers stay: {held} bytes");
    (0..2000).for_each(|no| fs.unlink(&CALLER, fs.root(), &name(no)).unwrap());
    fs.sync().unwrap();
    create(&*fs, fs.root(), b"next");
    let held = fs.in_memory().unwrap();
    assert!(held < 2 << 20, "{held} bytes are in memory");
    // As much as there is room for, and nothing of it.
    let ino = create(&*fs, fs.root(), b"large");
    let full = fs.fallocate(&CALLER, ino, 0, 100 << 20, FallocateMode::Allocate);
    assert_eq!(full.unwrap_err().errno(), Errno::NOSPC);
    fs.sync().unwrap();
    create(&*fs, fs.root(), b"last");
    let held = fs.in_memory().unwrap();
    assert!(held < 2 << 20, "{held} bytes are in memory");
}

/// Names, attributes and shapes need no device once they were seen or made, however little of it stays in memory.
#[test]
fn what_leads_to_files_stays() {
    let made = device(48 << 20, 64);
    for round in 0..2_u32 {
        let device = Cautious::new(Arc::clone(&made), Duration::ZERO);
        let fs = mount(&device, Durability::Process);
        let name = |no: u32| format!("f{no}").into_bytes();
        let sizes = |no: u64| 3000 + no * 40;
        // Inodes of blocks that were made and not used before, directories, and pointers; contents come and go meanwhile.
        let dir = fs.mkdir(&CALLER, fs.root(), &name(round), 0o755).unwrap().attr.ino;
        for no in 0..600 {
            let ino = create(&*fs, dir, &name(no));
            let size = usize::try_from(sizes(no.into())).unwrap();
            fs.write(&CALLER, ino, 0, &vec![1; size]).unwrap();
            fs.forget(ino, 1);
            if no % 3 == 0 {
                fs.unlink(&CALLER, dir, &name(no)).unwrap();
            }
        }
        fs.sync().unwrap();
        create(&*fs, dir, b"last");
        assert!(fs.in_memory().unwrap() < 6 << 20, "contents have left");
        let all = made.image().len() / 4096;
        device.bad.lock().unwrap().extend(0..u64::try_from(all).unwrap());
        let mut failed = 0;
        for at in 0..=round {
            let dir = fs.lookup(fs.root(), &name(at)).unwrap().attr.ino;
            for no in 0..600 {
                let found = fs.lookup(dir, &name(no));
                let is_there = no % 3 != 0 && (at == round || no < 100);
                assert_eq!(found.is_ok(), is_there, "{no} of {at}");
                let Ok(found) = found else { continue };
                assert_eq!(found.attr.size, sizes(no.into()));
                let hole = fs.seek(found.attr.ino, 0, fstitch_core::SeekFrom::Hole).unwrap();
                assert_eq!(hole, found.attr.size);
                failed += u32::from(fs.read(found.attr.ino, 0, &mut [0; 100]).is_err());
            }
        }
        assert!(failed > 200, "{failed} files could not be read");
        assert!(fs.failed().is_none());
        device.bad.lock().unwrap().clear();
        // Whole blocks of inodes have nobody's then, and no mount reads them.
        let gone = (100..600).filter(|no| no % 3 != 0);
        gone.for_each(|no| fs.unlink(&CALLER, dir, &name(no)).unwrap());
        fs.unmount().unwrap();
    }
}
