//! Directories marked with `chattr +D` or `+S`: what an operation on their names has done is on the medium when it
//! returns. Without the mark it is not, which shows that the test would notice.

use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{
    Caller, Entry, FileKind, FileSystem, FindingClass, InodeFlags, InodeNo, ManualClock, RenameMode,
};
use fstitch_fs::ext2::check::check_ext2;
use fstitch_patch::CacheOptions;

use crate::properties::{Ext2Medium, cache_options};

const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 1, umask: 0 };
const REGULAR: u16 = 0o100_644;

/// A volume with the directories `d` and `e`, a file `d/old`, a directory `d/sub`, and a file `e/far`.
struct Rig {
    medium: Ext2Medium,
    fs: Arc<dyn FileSystem>,
    d: InodeNo,
    e: InodeNo,
    old: InodeNo,
}

impl Rig {
    fn new(optimizations: u8, marked: &str, flag: u32) -> Self {
        let clock = Arc::new(ManualClock::new());
        clock.advance(Duration::from_secs(1_700_000_000));
        let options = cache_options(CacheOptions::default().cache_size, optimizations);
        let medium = Ext2Medium::new(1024, 4 << 20, options, &clock);
        let (_, fs) = medium.mount_with_cache();
        let made = |parent, name: &str| fs.mkdir(&CALLER, parent, name.as_bytes(), 0o755).unwrap().attr.ino;
        let (d, e) = (made(fs.root(), "d"), made(fs.root(), "e"));
        made(d, "sub");
        let old = fs.mknod(&CALLER, d, b"old", REGULAR, 0).unwrap().attr.ino;
        fs.mknod(&CALLER, e, b"far", REGULAR, 0).unwrap();
        let dir = if marked == "d" { d } else { e };
        fs.set_flags(&CALLER, dir, InodeFlags(flag)).unwrap();
        fs.sync().unwrap();
        Self { medium, fs, d, e, old }
    }

    /// The names that the medium holds at this moment, as a mount after a power cut shows them.
    fn names_on_medium(&self) -> Vec<String> {
        let image = self.medium.copy();
        let report = check_ext2(&*image.device).unwrap();
        let corrupt = report.findings.iter().filter(|finding| finding.class == FindingClass::Corrupt);
        assert_eq!(corrupt.count(), 0, "{:?}", report.findings);
        let (_, fs) = image.mount_with_cache();
        let mut names = Vec::new();
        list(&*fs, fs.root(), "", &mut names);
        names.retain(|name| name != "lost+found");
        names.sort();
        names
    }
}

/// Adds the paths of everything below `dir`.
fn list(fs: &dyn FileSystem, dir: InodeNo, path: &str, names: &mut Vec<String>) {
    let mut found = Vec::new();
    let take = &mut |entry: fstitch_core::DirEntry<'_>| {
        found.push(String::from_utf8(entry.name.to_vec()).unwrap());
        true
    };
    fs.readdir(dir, 0, take).unwrap();
    for name in found.into_iter().filter(|name| name != "." && name != "..") {
        let attr = fs.lookup(dir, name.as_bytes()).unwrap().attr;
        let path = if path.is_empty() { name } else { format!("{path}/{name}") };
        names.push(path.clone());
        if attr.kind == FileKind::Directory {
            list(fs, attr.ino, &path, names);
        }
    }
}

const BEFORE: [&str; 5] = ["d", "d/old", "d/sub", "e", "e/far"];

/// One operation on the names of a directory, and what of [`BEFORE`] it replaces by what.
struct Case {
    work: fn(&Rig),
    gone: &'static [&'static str],
    new: &'static [&'static str],
    /// The directories that it changes.
    dirs: &'static [&'static str],
}

fn drop_entry(_: Entry) {}

fn moved(rig: &Rig, from: (InodeNo, &str), to: (InodeNo, &str), mode: RenameMode) {
    rig.fs.rename(&CALLER, (from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()), mode).unwrap();
}

const CASES: [Case; 11] = [
    Case {
        work: |rig| rig.fs.mknod(&CALLER, rig.d, b"new", REGULAR, 0).map(drop_entry).unwrap(),
        gone: &[],
        new: &["d/new"],
        dirs: &["d"],
    },
    Case {
        work: |rig| rig.fs.mkdir(&CALLER, rig.d, b"new", 0o755).map(drop_entry).unwrap(),
        gone: &[],
        new: &["d/new"],
        dirs: &["d"],
    },
    Case {
        work: |rig| rig.fs.symlink(&CALLER, rig.d, b"new", &[b'x'; 200]).map(drop_entry).unwrap(),
        gone: &[],
        new: &["d/new"],
        dirs: &["d"],
    },
    Case {
        work: |rig| rig.fs.link(&CALLER, rig.old, rig.d, b"new").map(drop_entry).unwrap(),
        gone: &[],
        new: &["d/new"],
        dirs: &["d"],
    },
    Case {
        work: |rig| {
            let made = rig.fs.tmpfile(&CALLER, rig.d, 0o600).unwrap();
            rig.fs.link(&CALLER, made.attr.ino, rig.d, b"new").unwrap();
        },
        gone: &[],
        new: &["d/new"],
        dirs: &["d"],
    },
    Case {
        work: |rig| rig.fs.unlink(&CALLER, rig.d, b"old").unwrap(),
        gone: &["d/old"],
        new: &[],
        dirs: &["d"],
    },
    Case {
        work: |rig| rig.fs.rmdir(&CALLER, rig.d, b"sub").unwrap(),
        gone: &["d/sub"],
        new: &[],
        dirs: &["d"],
    },
    Case {
        work: |rig| moved(rig, (rig.d, "old"), (rig.d, "new"), RenameMode::NoReplace),
        gone: &["d/old"],
        new: &["d/new"],
        dirs: &["d"],
    },
    Case {
        work: |rig| moved(rig, (rig.d, "old"), (rig.e, "far"), RenameMode::Replace),
        gone: &["d/old"],
        new: &[],
        dirs: &["d", "e"],
    },
    Case {
        work: |rig| moved(rig, (rig.d, "sub"), (rig.e, "new"), RenameMode::Replace),
        gone: &["d/sub"],
        new: &["e/new"],
        dirs: &["d", "e"],
    },
    // The old name never was on the medium, so that nothing of it is left for the other directory to wait for.
    Case {
        work: |rig| {
            rig.fs.mkdir(&CALLER, rig.e, b"passing", 0o755).unwrap();
            moved(rig, (rig.e, "passing"), (rig.d, "new"), RenameMode::Replace);
        },
        gone: &[],
        new: &["d/new"],
        dirs: &["d", "e"],
    },
];

fn expected(case: &Case) -> Vec<String> {
    let kept = BEFORE.iter().filter(|name| !case.gone.contains(name));
    let mut names: Vec<String> = kept.chain(case.new).map(|&name| name.to_owned()).collect();
    names.sort();
    names
}

#[test]
fn names_in_a_marked_directory_are_stable_at_once() {
    for (at, case) in CASES.iter().enumerate() {
        for flag in [InodeFlags::DIRSYNC, InodeFlags::SYNC] {
            for (optimizations, marked) in
                [0, 15].into_iter().flat_map(|o| case.dirs.iter().map(move |d| (o, d)))
            {
                let rig = Rig::new(optimizations, marked, flag);
                (case.work)(&rig);
                assert_eq!(rig.names_on_medium(), expected(case), "case {at}, {marked} marked {flag:#x}");
            }
        }
    }
}

#[test]
fn names_in_an_unmarked_directory_wait() {
    for (at, case) in CASES.iter().enumerate() {
        let rig = Rig::new(15, "d", 0);
        (case.work)(&rig);
        assert_eq!(rig.names_on_medium(), BEFORE, "case {at}");
    }
}

#[test]
fn a_new_directory_in_a_marked_one_is_marked_too() {
    let rig = Rig::new(15, "d", InodeFlags::DIRSYNC);
    let made = rig.fs.mkdir(&CALLER, rig.d, b"new", 0o755).unwrap().attr.ino;
    rig.fs.mknod(&CALLER, made, b"file", REGULAR, 0).unwrap();
    assert!(rig.names_on_medium().contains(&"d/new/file".to_owned()));
}
