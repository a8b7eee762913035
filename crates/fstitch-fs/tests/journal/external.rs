//! A journal on a device of its own that other systems do not take for one, that two volumes write into, or that is
//! forgotten before what it held is stable on the volume: the two devices lose their volatile writes independently.

use std::path::Path;
use std::sync::Arc;

use fstitch_core::Consistency;
use fstitch_core::{BlockDevice, Caller, Concat, Error, FileSystem, ManualClock, MemDevice, Result, Seed};
use fstitch_fs::arrange::{Arrangement, open};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::ext2::journal::{
    BATCH_MAX, DeviceOptions, JournalDevice, Options, Recovered, add_device, make_device, needs_recovery,
    read_superblock, recover, release_device, remove,
};
use fstitch_fs::ext2::mkfs::{MkfsOptions, mkfs};
use fstitch_fs::uhfs::Uhfs;

use super::NOW;
use super::support::{Scratch, SparseFile, e2fsck, have, run};
use super::volatile::{Changes, Volatile};

const UUID: [u8; 16] = [5; 16];

fn asked(block_size: u32) -> DeviceOptions {
    DeviceOptions { block_size, uuid: UUID, label: b"log".to_vec(), now: NOW, is_zero: false }
}

fn make_volume(device: &dyn BlockDevice, block_size: u32, uuid: u8) {
    let mut options = MkfsOptions::new([uuid; 16], [2; 16], NOW);
    options.block_size = Some(block_size);
    mkfs(device, &options, &mut |_, _| {}).unwrap();
}

/// A volume and its journal, each in blocks of 1 KiB.
fn pair() -> (MemDevice, MemDevice) {
    let (volume, journal) = (MemDevice::new(1024, 4 << 10), MemDevice::new(1024, 1024));
    make_volume(&volume, 1024, 1);
    make_device(&journal, &asked(1024)).unwrap();
    add_device(&volume, &journal, 0).unwrap();
    (volume, journal)
}

fn recovered(volume: &dyn BlockDevice, journal: &dyn BlockDevice) -> Result<Option<Recovered>> {
    let external = Some(journal);
    let progress = &mut |_| {};
    let options = Options { external, now: NOW, for_reading: false, batch_max: BATCH_MAX, progress };
    recover(volume, &mut { options })
}

fn mounted(volume: Arc<dyn BlockDevice>, journal: Arc<dyn BlockDevice>) -> Uhfs<Ext2> {
    let consistency = Some(Consistency::Ordered);
    let arrangement = Arrangement { consistency, journal: Some(journal), ..Arrangement::default() };
    open::<Ext2>(volume, &arrangement, Arc::new(ManualClock::new())).unwrap().0
}

fn judged(path: &Path, journal: &Path, what: &str) {
    if have("e2fsck") {
        let (code, said) = run("e2fsck", &["-fn", "-j", journal.to_str().unwrap(), path.to_str().unwrap()]);
        assert_eq!(code, 0, "{what}: {said}");
    }
}

#[test]
fn a_device_becomes_a_journal_and_is_taken_back() {
    let scratch = Scratch::new("journal-device");
    for (block_size, unit) in [(1024, 1024), (2048, 512), (4096, 4096)] {
        let what = format!("blocks of {block_size} bytes");
        let (path, log_path) = (scratch.path("volume.img"), scratch.path("log.img"));
        let volume = SparseFile::create(&path, block_size, 16 << 20);
        let log = SparseFile::create(&log_path, unit, 8 << 20);
        make_volume(&volume, block_size, 1);
        let blocks = (8 << 20) / block_size;
        assert_eq!(make_device(&log, &asked(block_size)).unwrap(), blocks);
        assert_eq!(JournalDevice::read(&log).unwrap().uuid, UUID);
        assert_eq!(add_device(&volume, &log, 0).unwrap(), blocks);
        assert!(add_device(&volume, &log, 0).is_err(), "one is enough");
        let report = check_ext2(&volume).unwrap();
        assert!(report.is_clean(), "{what}: {:?}", report.findings);
        assert!(!needs_recovery(&volume).unwrap());
        judged(&path, &log_path, &what);
        if have("dumpe2fs") {
            let (_, said) = run("dumpe2fs", &[log_path.to_str().unwrap()]);
            for line in [
                format!("Total journal blocks:     {blocks}"),
                format!("Journal first block:      {}", if block_size == 1024 { 3 } else { 2 }),
                "Journal users:            01010101-0101-0101-0101-010101010101".into(),
                "Filesystem volume name:   log".into(),
                "Filesystem features:      journal_dev".into(),
            ] {
                assert!(said.contains(&line), "{what}: {line} is not in {said}");
            }
        }
        remove(&volume).unwrap();
        assert!(release_device(&log, &[1; 16]).unwrap() && !release_device(&log, &[1; 16]).unwrap());
        assert!(check_ext2(&volume).unwrap().is_clean());
        let (code, said) = e2fsck(&path);
        assert_eq!(code, 0, "{what}: {said}");
        add_device(&volume, &log, 0).unwrap();
        judged(&path, &log_path, &what);
    }
}

#[test]
fn a_journal_has_one_volume_and_a_volume_its_own_journal() {
    let (volume, journal) = pair();
    let other = MemDevice::new(1024, 4 << 10);
    make_volume(&other, 1024, 9);
    let (before, log_before) = (other.image(), journal.image());
    let Err(Error::Unsupported(why)) = add_device(&other, &journal, 0) else { panic!("it is taken") };
    assert!(why.contains("another volume, UUID 01010101-"), "{why}");
    assert!(!release_device(&journal, &[9; 16]).unwrap(), "it is not its journal");
    let large = MemDevice::new(1024, 16 << 10);
    make_volume(&large, 2048, 9);
    release_device(&journal, &[1; 16]).unwrap();
    assert!(matches!(add_device(&large, &journal, 0), Err(Error::Corrupt(_))), "blocks of another size");
    assert!(matches!(add_device(&other, &volume, 0), Err(Error::Corrupt(_))), "a volume is no journal");
    assert!(other.image() == before);
    // Who was cut between the journal and the volume tries again.
    let again = MemDevice::from_image(1024, log_before);
    remove(&volume).unwrap();
    add_device(&volume, &again, 0).unwrap();
    for (blocks, block_size) in [(1023, 1024), (4096, 4096), (4096, 512)] {
        let device = MemDevice::new(1024, blocks);
        let refused = make_device(&device, &asked(block_size));
        assert!(refused.is_err() == ((blocks, block_size) != (4096, 4096)), "{blocks} of {block_size}");
    }
}

/// The volume and the journal as a power cut leaves them in the middle of work; the files that were fsynced are there.
fn dirty(journal: &MemDevice, volume: &MemDevice) {
    let halves = |device: &MemDevice| Arc::new(MemDevice::from_image(1024, device.image()));
    let (below, log) = (halves(volume), halves(journal));
    let fs = mounted(below.clone(), log.clone());
    let root = fs.root();
    let caller = Caller::default();
    for n in 0..60_u8 {
        let name = format!("file-{n}");
        let ino = fs.mknod(&caller, root, name.as_bytes(), 0o100_644, 0).unwrap().attr.ino;
        fs.write(&caller, ino, 0, &vec![n; 900 + usize::from(n) * 40]).unwrap();
        if n % 20 == 19 {
            fs.fsync(ino, false).unwrap();
        }
        fs.forget(ino, 1);
    }
    put(volume, &below.image());
    put(journal, &log.image());
}

fn put(device: &MemDevice, image: &[u8]) {
    for (no, data) in (0..).zip(image.chunks(1024)) {
        let kind = fstitch_core::BlockKind::Data;
        let write = fstitch_core::BlockWrite { block: fstitch_core::BlockNo(no), kind, data };
        device.write(&[write]).unwrap();
    }
}

/// What every file holds.
fn shown(volume: MemDevice) -> Vec<(String, Vec<u8>)> {
    let mut arrangement = Arrangement::default();
    (arrangement.cache.read_only, arrangement.fs.read_only) = (true, true);
    let (fs, _) = open::<Ext2>(Arc::new(volume), &arrangement, Arc::new(ManualClock::new())).unwrap();
    let mut found = Vec::new();
    for n in 0..60 {
        let name = format!("file-{n}");
        let Ok(entry) = fs.walk(name.as_bytes()) else { continue };
        let mut data = vec![0; usize::try_from(entry.attr.size).unwrap()];
        fs.read(entry.attr.ino, 0, &mut data).unwrap();
        found.push((name, data));
    }
    found
}

fn survived(base: &MemDevice, changes: Changes) -> MemDevice {
    let mut image = base.image();
    for (no, block) in changes {
        image[no.index() * 1024..no.index() * 1024 + 1024].copy_from_slice(&block);
    }
    MemDevice::from_image(1024, image)
}

#[test]
fn a_recovery_that_is_cut_on_either_device_is_finished_by_the_next() {
    let (volume, journal) = pair();
    dirty(&journal, &volume);
    assert!(needs_recovery(&volume).unwrap());
    assert!(matches!(recover_alone(&volume), Err(Error::Unsupported(_))), "its journal must be named");
    let (volume, journal) = (Arc::new(volume), Arc::new(journal));
    let cached = |base: &Arc<MemDevice>, max| Volatile::new(base, Changes::new(), max);
    let (one, two) = (cached(&volume, u64::MAX), cached(&journal, u64::MAX));
    let done = recovered(&one, &two).unwrap().unwrap();
    assert!(done.replayed.unwrap().written > 10 && done.errors.is_empty());
    let everything = |device: &Volatile| survived(&volume, device.newest());
    let expected = shown(everything(&one));
    assert_eq!(expected.len(), 60, "the last fsync is after the last file");
    let writes = (one.writes(), two.writes());
    let mut seed = Seed::new(4);
    for (cut, log_cut) in
        (0..=writes.0).map(|cut| (cut, u64::MAX)).chain((0..=writes.1).map(|cut| (u64::MAX, cut)))
    {
        for _ in 0..3 {
            let (one, two) = (cached(&volume, cut), cached(&journal, log_cut));
            assert!(recovered(&one, &two).is_err(), "cut after {cut} and {log_cut} writes");
            let one = survived(&volume, one.survivors(&mut seed));
            let two = survived(&journal, two.survivors(&mut seed));
            recovered(&one, &two).unwrap();
            let report = check_ext2(&one).unwrap();
            assert!(report.is_clean(), "cut after {cut} and {log_cut} writes: {:?}", report.findings);
            assert!(shown(one) == expected, "cut after {cut} and {log_cut} writes");
        }
    }
}

/// Makes files and fsyncs each until the power goes; returns how many fsyncs have succeeded.
fn work_until_cut(volume: &Arc<Volatile>, journal: &Arc<Volatile>) -> usize {
    let fs = mounted(volume.clone(), journal.clone());
    let caller = Caller::default();
    let step = |n: usize| -> Result<()> {
        let ino = fs.mknod(&caller, fs.root(), format!("file-{n}").as_bytes(), 0o100_644, 0)?.attr.ino;
        fs.write(&caller, ino, 0, &[7; 3000])?;
        fs.fsync(ino, false)
    };
    // The syncs write what is home in the volume, too.
    (0..12).take_while(|&n| step(n).is_ok() && (n % 4 != 3 || fs.sync().is_ok())).count()
}

#[test]
fn what_was_fsynced_is_there_whichever_device_loses_its_cache() {
    let (volume, journal) = pair();
    let (volume, journal) = (Arc::new(volume), Arc::new(journal));
    let cached = |base: &Arc<MemDevice>, max| Arc::new(Volatile::new(base, Changes::new(), max));
    let (one, two) = (cached(&volume, u64::MAX), cached(&journal, u64::MAX));
    assert_eq!(work_until_cut(&one, &two), 12);
    let (writes, log_writes) = (one.writes(), two.writes());
    assert!(writes > 20 && log_writes > 20, "{writes} and {log_writes}");
    let mut seed = Seed::new(6);
    let cuts = (0..writes).map(|cut| (cut, u64::MAX));
    for (cut, log_cut) in cuts.chain((0..log_writes).map(|cut| (u64::MAX, cut))) {
        let (one, two) = (cached(&volume, cut), cached(&journal, log_cut));
        let fsynced = work_until_cut(&one, &two);
        for _ in 0..3 {
            let one = survived(&volume, one.survivors(&mut seed));
            let two = survived(&journal, two.survivors(&mut seed));
            recovered(&one, &two).unwrap();
            let report = check_ext2(&one).unwrap();
            assert!(report.is_clean(), "cut after {cut} and {log_cut} writes: {:?}", report.findings);
            let there = shown(one);
            assert!(there.len() >= fsynced, "cut after {cut} and {log_cut} writes: {} files", there.len());
            assert!(there[..fsynced].iter().all(|(_, data)| *data == [7; 3000]));
        }
    }
}

fn recover_alone(volume: &dyn BlockDevice) -> Result<Option<Recovered>> {
    let progress = &mut |_| {};
    let mut options =
        Options { external: None, now: NOW, for_reading: false, batch_max: BATCH_MAX, progress };
    recover(volume, &mut options)
}

#[test]
fn the_reference_replays_what_we_left_on_two_devices() {
    let scratch = Scratch::new("journal-device-dirty");
    let (volume, journal) = pair();
    dirty(&journal, &volume);
    let (path, log_path) = (scratch.path("volume.img"), scratch.path("log.img"));
    std::fs::write(&path, volume.image()).unwrap();
    std::fs::write(&log_path, journal.image()).unwrap();
    if !have("e2fsck") {
        return;
    }
    let (code, said) = run("e2fsck", &["-p", "-j", log_path.to_str().unwrap(), path.to_str().unwrap()]);
    assert!(code == 0 || code == 1, "{said}");
    judged(&path, &log_path, "replayed by e2fsck");
    recovered(&volume, &journal).unwrap().unwrap();
    let theirs = MemDevice::from_image(1024, std::fs::read(&path).unwrap());
    assert!(shown(theirs) == shown(volume));
    assert!(read_superblock(&MemDevice::from_image(1024, std::fs::read(&path).unwrap())).is_ok());
    let whole = Concat::new(vec![journal]).unwrap();
    assert_eq!(JournalDevice::read(&whole).unwrap().users(&whole).unwrap(), [[1; 16]]);
}
