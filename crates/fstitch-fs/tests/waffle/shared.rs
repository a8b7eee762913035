//! Files that share blocks, with each other and with snapshots, keep their own contents, and give back what nobody has any more.

use std::collections::BTreeMap;
use std::sync::Arc;

use fstitch_core::{Errno, FallocateMode, FileSystem, InodeNo, MemDevice, Seed, SetAttr};
use fstitch_fs::waffle::Waffle;

use crate::rig::{CALLER, contents, file, is_clean, made, made_with, mount, names, text};

const BLOCK: u64 = 4096;

fn of(fs: &Waffle, dir: InodeNo, name: &str) -> InodeNo {
    let ino = fs.lookup(dir, name.as_bytes()).unwrap().attr.ino;
    fs.forget(ino, 1);
    ino
}

fn root_of(fs: &Waffle, snapshot: &str) -> InodeNo {
    let list = of(fs, fs.root(), ".snapshots");
    of(fs, list, snapshot)
}

/// What sharing does to bytes.
fn copy(from: &[u8], to: &mut Vec<u8>, (at, into, len): (u64, u64, u64)) {
    let index = |n: u64| usize::try_from(n).unwrap();
    if len == 0 {
        return;
    }
    let bytes = from[index(at)..index(at + len)].to_vec();
    to.resize(to.len().max(index(into + len)), 0);
    to[index(into)..index(into + len)].copy_from_slice(&bytes);
}

type Files = BTreeMap<String, Vec<u8>>;

fn compare(fs: &Waffle, dir: InodeNo, files: &Files, what: &str) {
    for (name, bytes) in files {
        assert!(contents(fs, of(fs, dir, name)).unwrap() == *bytes, "{what}: {name}");
    }
}

struct Run {
    fs: Arc<Waffle>,
    device: Arc<MemDevice>,
    seed: Seed,
    files: Files,
    kept: BTreeMap<String, Files>,
}

impl Run {
    fn below(&mut self, end: u64) -> u64 {
        self.seed.below(end)
    }

    fn index(&mut self, end: u64) -> usize {
        usize::try_from(self.seed.below(end)).unwrap()
    }

    fn file(&mut self) -> (InodeNo, String) {
        let at = self.index(5);
        let name = self.files.keys().nth(at).unwrap().clone();
        (of(&self.fs, self.fs.root(), &name), name)
    }

    fn share(&mut self) {
        let (target, name) = self.file();
        let at = self.index(5);
        let source = self.files.keys().nth(at).unwrap().clone();
        let from_kept = self.below(4) == 0 && !self.kept.is_empty();
        let (dir, bytes) = if from_kept {
            let snapshot = self.index(self.kept.len() as u64);
            let (snapshot, files) = self.kept.iter().nth(snapshot).unwrap();
            (root_of(&self.fs, snapshot), files[&source].clone())
        } else {
            (self.fs.root(), self.files[&source].clone())
        };
        let (at, into) = (self.below(4) * BLOCK, self.below(12) * BLOCK);
        let (at, into) = if self.below(3) == 0 { (at << 4, (into / 5) << 4) } else { (at, into) };
        let len = if self.below(2) == 0 { 1 << 40 } else { 1 + self.below(40_000) };
        let source_ino = of(&self.fs, dir, &source);
        let done = self.fs.share(&CALLER, (source_ino, at), (target, into), len);
        match done.map_err(|error| error.errno()) {
            Ok(len) => copy(&bytes, self.files.get_mut(&name).unwrap(), (at, into, len)),
            // One file with itself, parts of blocks, no room: nothing has happened.
            Err(error) => assert!([Errno::INVAL, Errno::OPNOTSUPP, Errno::NOSPC].contains(&error), "{error}"),
        }
    }

    fn step(&mut self, step: u64) {
        let (ino, name) = self.file();
        match self.below(15) {
            14 => {
                // Whole clusters, and what compresses less well.
                let (at, len) = (self.below(3) << 16, self.index(100_000));
                let bytes = text(len, step);
                let done = self.fs.write(&CALLER, ino, at, &bytes).unwrap() as u64;
                copy(&bytes, self.files.get_mut(&name).unwrap(), (0, at, done));
            }
            0..=2 => {
                let (at, len, byte) = (self.below(50_000), self.index(20_000), self.seed.below(256));
                let bytes = vec![u8::try_from(byte).unwrap(); len];
                let done = self.fs.write(&CALLER, ino, at, &bytes).unwrap() as u64;
                copy(&bytes, self.files.get_mut(&name).unwrap(), (0, at, done));
            }
            3 => {
                let size = self.below(60_000);
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                self.fs.setattr(&CALLER, ino, &set).unwrap();
                self.files.get_mut(&name).unwrap().resize(usize::try_from(size).unwrap(), 0);
            }
            4 => {
                let (at, len) = (self.below(40_000), 1 + self.below(20_000));
                self.fs.fallocate(&CALLER, ino, at, len, FallocateMode::PunchHole).unwrap();
                let bytes = self.files.get_mut(&name).unwrap();
                let end = bytes.len().min(usize::try_from(at + len).unwrap());
                let from = end.min(usize::try_from(at).unwrap());
                bytes[from..end].fill(0);
            }
            5 => {
                self.fs.unlink(&CALLER, self.fs.root(), name.as_bytes()).unwrap();
                file(&self.fs, self.fs.root(), &name, b"again").unwrap();
                self.files.insert(name, b"again".to_vec());
            }
            6 => {
                let name = format!("s{step}");
                self.fs.make_snapshot(name.as_bytes()).unwrap();
                self.kept.insert(name, self.files.clone());
            }
            7 if !self.kept.is_empty() => {
                let at = self.index(self.kept.len() as u64);
                let name = self.kept.keys().nth(at).unwrap().clone();
                self.fs.remove_snapshot(name.as_bytes()).unwrap();
                self.kept.remove(&name);
            }
            8 => self.fs.sync().unwrap(),
            9 => {
                self.fs.unmount().unwrap();
                is_clean(&self.device);
                self.fs = mount(&self.device);
            }
            _ => self.share(),
        }
    }
}

#[test]
fn files_that_share_blocks_keep_their_contents() {
    for number in 0..24 {
        let device = made_with(4096, number % 2 == 1);
        let fs = mount(&device);
        let empty = fs.statfs().unwrap().blocks_free;
        let mut files = Files::new();
        for name in ["a", "b", "c", "d", "e"] {
            let bytes = vec![name.as_bytes()[0]; 30_000];
            file(&fs, fs.root(), name, &bytes).unwrap();
            files.insert(name.to_owned(), bytes);
        }
        let kept = BTreeMap::new();
        let mut run = Run { fs, device: Arc::clone(&device), seed: Seed::new(number), files, kept };
        for step in 0..160 {
            run.step(step);
            let what = format!("run {number}, step {step}");
            compare(&run.fs, run.fs.root(), &run.files, &what);
            for (name, files) in &run.kept {
                compare(&run.fs, root_of(&run.fs, name), files, &format!("{what}, snapshot {name}"));
            }
            if step % 8 == 0 {
                // After a cut, whatever was on its way.
                is_clean(&Arc::new(MemDevice::from_image(4096, device.image())));
            }
        }
        let Run { fs, kept, .. } = run;
        assert!(fs.check().unwrap().is_clean());
        for name in names(&fs, fs.root()) {
            fs.unlink(&CALLER, fs.root(), &name).unwrap();
        }
        for name in kept.keys() {
            fs.remove_snapshot(name.as_bytes()).unwrap();
        }
        fs.sync().unwrap();
        // The table of shared blocks stays.
        assert!(fs.statfs().unwrap().blocks_free + 16 >= empty, "run {number}");
        fs.unmount().unwrap();
        is_clean(&device);
    }
}

/// A hundred copies of a file take no room, but for what says that they share.
#[test]
fn copies_cost_no_room() {
    let device = made(8192);
    let fs = mount(&device);
    let bytes: Vec<u8> = (0..4_000_123_u32).map(|n| n.to_le_bytes()[1] ^ n.to_le_bytes()[2]).collect();
    let ino = file(&fs, fs.root(), "original", &bytes).unwrap();
    fs.sync().unwrap();
    let free = fs.statfs().unwrap().blocks_free;
    for number in 0..100 {
        let copy = file(&fs, fs.root(), &format!("copy-{number}"), b"").unwrap();
        assert_eq!(fs.share(&CALLER, (ino, 0), (copy, 0), u64::MAX >> 8).unwrap(), 4_000_123);
    }
    fs.sync().unwrap();
    let (now, each) = (fs.statfs().unwrap().blocks_free, 12);
    assert!(free - now < 100 * each, "{} blocks for 100 copies of 977", free - now);
    fs.unlink(&CALLER, fs.root(), b"original").unwrap();
    let copy = of(&fs, fs.root(), "copy-57");
    assert!(contents(&fs, copy).unwrap() == bytes);
    fs.unmount().unwrap();
    is_clean(&device);
}

/// Files that are freed in several operations: long ones, and ones that are mostly holes.
#[test]
fn long_files_go_in_parts() {
    let device = made(90_000);
    let fs = mount(&device);
    let empty = fs.statfs().unwrap().blocks_free;
    let ino = file(&fs, fs.root(), "a", &vec![7; 1 << 20]).unwrap();
    // 70,000 blocks, all of which are the same 256.
    for n in 1..280 {
        assert_eq!(fs.share(&CALLER, (ino, 0), (ino, n << 20), 1 << 20).unwrap(), 1 << 20);
    }
    let sparse = file(&fs, fs.root(), "b", b"").unwrap();
    fs.share(&CALLER, (ino, 0), (sparse, 1 << 40), 1 << 40).unwrap();
    fs.setattr(&CALLER, sparse, &SetAttr { size: Some(1 << 62), ..SetAttr::default() }).unwrap();
    assert_eq!(fs.getattr(ino).unwrap().blocks, 280 << 11);
    fs.sync().unwrap();
    is_clean(&Arc::new(MemDevice::from_image(4096, device.image())));
    // One of them is in use when it loses its name.
    let held = fs.lookup(fs.root(), b"b").unwrap().attr.ino;
    for name in ["a", "b"] {
        fs.unlink(&CALLER, fs.root(), name.as_bytes()).unwrap();
    }
    is_clean(&Arc::new(MemDevice::from_image(4096, device.image())));
    fs.forget(held, 1);
    fs.sync().unwrap();
    // What counted the blocks stays.
    assert!(fs.statfs().unwrap().blocks_free + 10 >= empty);
    fs.unmount().unwrap();
    is_clean(&device);
}

/// A snapshot can go from a full volume, whatever its files share.
#[test]
fn a_full_volume_of_shared_blocks_can_be_emptied() {
    let device = made(2048);
    let fs = mount(&device);
    let ino = file(&fs, fs.root(), "a", &vec![7; 2_000_000]).unwrap();
    let copy = file(&fs, fs.root(), "b", b"").unwrap();
    let empty = file(&fs, fs.root(), "c", b"").unwrap();
    let mut round = 0_u8;
    let fill = |round: &mut u8| {
        while file(&fs, fs.root(), &format!("fill-{round}"), &vec![*round; 400_000]).is_ok() {
            *round += 1;
        }
    };
    // Sharing that finds no room has not happened, the table of counts included, which has its first block then.
    fill(&mut round);
    while fs.write(&CALLER, empty, fs.getattr(empty).unwrap().size, &[1; 4096]).is_ok() {}
    let refused = fs.share(&CALLER, (ino, 0), (copy, 0), 1 << 40);
    assert_eq!(refused.unwrap_err().errno(), Errno::NOSPC);
    assert!(fs.check().unwrap().is_clean());
    fs.unlink(&CALLER, fs.root(), b"fill-0").unwrap();
    fs.share(&CALLER, (ino, 0), (copy, 0), 1 << 40).unwrap();
    fs.make_snapshot(b"s").unwrap();
    fs.unlink(&CALLER, fs.root(), b"b").unwrap();
    fill(&mut round);
    fs.unlink(&CALLER, fs.root(), b"a").unwrap();
    fs.remove_snapshot(b"s").unwrap();
    fs.make_snapshot(b"s").unwrap();
    fs.remove_snapshot(b"s").unwrap();
    for name in names(&fs, fs.root()) {
        fs.unlink(&CALLER, fs.root(), &name).unwrap();
    }
    fs.sync().unwrap();
    assert!(fs.statfs().unwrap().blocks_free > 2048 - 40);
    fs.unmount().unwrap();
    is_clean(&device);
}

/// A block that the last root has is written nowhere but elsewhere, whoever has lost and got it since.
#[test]
fn what_the_last_root_has_is_not_written() {
    let device = made(1024);
    let fs = mount(&device);
    let bytes = vec![7; 20_000];
    let ino = file(&fs, fs.root(), "a", &bytes).unwrap();
    let copy = file(&fs, fs.root(), "b", b"").unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.share(&CALLER, (ino, 0), (copy, 0), 1 << 30).unwrap(), 20_000);
    fs.unlink(&CALLER, fs.root(), b"a").unwrap();
    fs.write(&CALLER, copy, 5000, b"changed").unwrap();
    fs.cache().step_blocks(&mut |_| true).unwrap();
    let left = Arc::new(MemDevice::from_image(4096, device.image()));
    is_clean(&left);
    let before = mount(&left);
    assert!(contents(&before, of(&before, before.root(), "a")).unwrap() == bytes);
    fs.unmount().unwrap();
    is_clean(&device);
}
