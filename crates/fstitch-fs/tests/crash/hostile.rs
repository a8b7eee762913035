//! Damaged volumes: whatever the bytes are, opening, using, checking and mending them ends, without a panic, with
//! clear errors. The fuzz target includes this file.

use std::sync::Arc;

use fstitch_core::{
    Caller, Errno, Error, FallocateMode, FileKind, FileSystem, InodeNo, ManualClock, MemDevice, RenameMode,
    SeekFrom, SetAttr, XattrSetMode,
};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::uhfs::{Uhfs, UhfsOptions};
use fstitch_patch::{Cache, CacheOptions};

/// Names looked at, at most: a damaged tree may be endless.
const NAMES: usize = 300;
/// Bytes read of a file, at most.
const BYTES: usize = 100_000;

/// What became of a damaged volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was refused with an error.
    Refused,
    /// It was mounted; the number counts operations that answered `EUCLEAN` or `EIO`.
    Mounted(usize),
}

/// Opens, checks and uses a volume.
pub fn survive(image: Vec<u8>, block_size: u32) -> Outcome {
    let device = Arc::new(MemDevice::from_image(block_size, image));
    // Damage is a report or an error, both fine.
    drop(check_ext2(&*device));
    let options = CacheOptions { cache_size: 1 << 20, ..CacheOptions::default() };
    let cache = Cache::new(device.clone(), options, Arc::new(ManualClock::new()));
    let Ok(format) = Ext2::open(Arc::clone(&cache)) else { return Outcome::Refused };
    let fs = Uhfs::new(format, UhfsOptions::default());
    let mut visit = Visit { fs: &fs, left: NAMES, damaged: 0 };
    visit.directory(fs.root(), 0);
    visit.change(fs.root());
    let damaged = visit.damaged;
    // Refused, an error or done: it ends.
    drop(fs.reclaim());
    if let Err(error) = fs.unmount() {
        let expected = error.errno() != Errno::IO || cache.poisoned().is_some();
        assert!(expected, "the device does not fail: {error}");
    }
    cache.check_invariants();
    Outcome::Mounted(damaged)
}

struct Visit<'a> {
    fs: &'a dyn FileSystem,
    left: usize,
    damaged: usize,
}

impl Visit<'_> {
    fn note<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                assert!(!error.to_string().is_empty());
                self.damaged += usize::from([Errno::UCLEAN, Errno::IO].contains(&error.errno()));
                None
            }
        }
    }

    fn directory(&mut self, dir: InodeNo, depth: usize) {
        let mut names: Vec<Vec<u8>> = vec![];
        let room = self.left;
        let listed = self.fs.readdir(dir, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            names.len() < room
        });
        self.note(listed);
        for name in names {
            self.left = self.left.saturating_sub(1);
            let Some(entry) = self.note(self.fs.lookup(dir, &name)) else { continue };
            let real = name != b"." && name != b"..";
            match entry.attr.kind {
                FileKind::Directory if real && depth < 20 && self.left > 0 => {
                    self.directory(entry.attr.ino, depth + 1);
                }
                FileKind::Regular => self.file(entry.attr.ino),
                FileKind::Symlink => drop(self.note(self.fs.readlink(entry.attr.ino))),
                _ => {}
            }
            for attribute in self.note(self.fs.listxattr(entry.attr.ino)).unwrap_or_default() {
                drop(self.note(self.fs.getxattr(entry.attr.ino, &attribute)));
            }
            self.fs.forget(entry.attr.ino, 1);
        }
    }

    fn file(&mut self, ino: InodeNo) {
        let mut buffer = vec![0; BYTES];
        self.note(self.fs.read(ino, 0, &mut buffer));
        self.note(self.fs.seek(ino, 0, SeekFrom::Hole));
        self.note(self.fs.read(ino, 1 << 31, &mut buffer[..4096]));
    }

    /// One of each change, in the root and on what is found there.
    fn change(&mut self, root: InodeNo) {
        let caller = Caller::default();
        let fs = self.fs;
        let made = self.note(fs.mknod(&caller, root, b"hostile-new", 0o100_644, 0));
        if let Some(entry) = made {
            let ino = entry.attr.ino;
            self.note(fs.write(&caller, ino, 0, &[1; 40_000]));
            self.note(fs.setxattr(&caller, ino, b"user.x", &[2; 500], XattrSetMode::Set));
            self.note(fs.fallocate(&caller, ino, 1000, 20_000, FallocateMode::PunchHole));
            self.note(fs.rename(
                &caller,
                (root, b"hostile-new"),
                (root, b"hostile-old"),
                RenameMode::Replace,
            ));
            fs.forget(ino, 1);
        }
        let dir = self.note(fs.mkdir(&caller, root, b"hostile-dir", 0o755));
        dir.into_iter().for_each(|entry| fs.forget(entry.attr.ino, 1));
        let mut names: Vec<Vec<u8>> = vec![];
        drop(fs.readdir(root, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            names.len() < 30
        }));
        for name in names.iter().filter(|name| *name != b"." && *name != b"..") {
            if let Some(entry) = self.note(fs.lookup(root, name)) {
                let shrink = SetAttr { size: Some(100), perm: Some(0o600), ..SetAttr::default() };
                self.note(fs.setattr(&caller, entry.attr.ino, &shrink));
                self.note(fs.write(&caller, entry.attr.ino, 50, &[3; 3_000]));
                self.note(fs.link(&caller, entry.attr.ino, root, b"hostile-link"))
                    .into_iter()
                    .for_each(|link| fs.forget(link.attr.ino, 1));
                fs.forget(entry.attr.ino, 1);
            }
            self.note(fs.unlink(&caller, root, name));
            self.note(fs.rmdir(&caller, root, name));
            self.note(fs.fsync(root, false));
        }
    }
}
