//! A mounted toy volume that records its micro-operations, for the tests of their orders.

use std::sync::Arc;

use fstitch_core::{Caller, FallocateMode, FileKind, FileSystem, InodeNo, ManualClock, RenameMode, SetAttr};
use fstitch_fs::uhfs::{AtimePolicy, Uhfs, UhfsOptions};
use fstitch_patch::{CacheOptions, Optimizations, PatchState};

use crate::toy::{Event, Toy, ToyFs};

pub(crate) const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 1, umask: 0 };
pub(crate) const ROOT: InodeNo = InodeNo(2);
pub(crate) const BLOCK: usize = 1024;

/// A mounted toy volume. New inodes are numbered from 11.
pub(crate) struct Rig {
    pub(crate) toy: Arc<Toy>,
    pub(crate) fs: Uhfs<ToyFs>,
    pub(crate) clock: Arc<ManualClock>,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with_steps(4096)
    }

    /// With steps of so many bytes: only in large ones a small file ends with its name.
    pub(crate) fn with_steps(bytes: usize) -> Self {
        let options = CacheOptions { optimizations: Optimizations::NONE, ..CacheOptions::default() };
        let clock = Arc::new(ManualClock::new());
        let toy = Toy::new(1024, 8192, options, Arc::clone(&clock));
        let fs = mount_with_steps(&toy, bytes);
        Self { toy, fs, clock }
    }

    /// Starts to record: what was done so far is stable.
    pub(crate) fn settle(&self) {
        self.fs.sync().unwrap();
        self.toy.take_events();
    }

    pub(crate) fn create(&self, path: &str) -> InodeNo {
        let (dir, name) = self.parent(path);
        let mode = FileKind::Regular.mode_bits() | 0o644;
        let ino = self.fs.mknod(&CALLER, dir, name.as_bytes(), mode, 0).unwrap().attr.ino;
        self.fs.forget(ino, 1);
        ino
    }

    pub(crate) fn mkdir(&self, path: &str) -> InodeNo {
        let (dir, name) = self.parent(path);
        let ino = self.fs.mkdir(&CALLER, dir, name.as_bytes(), 0o755).unwrap().attr.ino;
        self.fs.forget(ino, 1);
        ino
    }

    pub(crate) fn parent<'a>(&self, path: &'a str) -> (InodeNo, &'a str) {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        (self.ino(dir), name)
    }

    pub(crate) fn ino(&self, path: &str) -> InodeNo {
        let ino = self.fs.walk(path.as_bytes()).unwrap().attr.ino;
        self.fs.forget(ino, 1);
        ino
    }

    pub(crate) fn link(&self, from: &str, to: &str) {
        let (dir, name) = self.parent(to);
        let ino = self.fs.link(&CALLER, self.ino(from), dir, name.as_bytes()).unwrap().attr.ino;
        self.fs.forget(ino, 1);
    }

    pub(crate) fn unlink(&self, path: &str) {
        let (dir, name) = self.parent(path);
        self.fs.unlink(&CALLER, dir, name.as_bytes()).unwrap();
    }

    pub(crate) fn rmdir(&self, path: &str) {
        let (dir, name) = self.parent(path);
        self.fs.rmdir(&CALLER, dir, name.as_bytes()).unwrap();
    }

    pub(crate) fn rename(&self, from: &str, to: &str, mode: RenameMode) {
        let ((from_dir, from), (to_dir, to)) = (self.parent(from), self.parent(to));
        self.fs.rename(&CALLER, (from_dir, from.as_bytes()), (to_dir, to.as_bytes()), mode).unwrap();
    }

    pub(crate) fn write(&self, path: &str, offset: u64, len: usize) {
        assert_eq!(self.fs.write(&CALLER, self.ino(path), offset, &vec![7; len]).unwrap(), len);
    }

    pub(crate) fn truncate(&self, path: &str, size: u64) {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.fs.setattr(&CALLER, self.ino(path), &set).unwrap();
    }

    pub(crate) fn fallocate(&self, path: &str, offset: u64, len: u64, mode: FallocateMode) {
        self.fs.fallocate(&CALLER, self.ino(path), offset, len, mode).unwrap();
    }

    pub(crate) fn state(&self, event: &Event) -> PatchState {
        self.toy.cache().state(event.patch)
    }
}

pub(crate) fn mount(toy: &Arc<Toy>) -> Uhfs<ToyFs> {
    mount_with_steps(toy, 4096)
}

pub(crate) fn mount_with_steps(toy: &Arc<Toy>, step_bytes: usize) -> Uhfs<ToyFs> {
    let options = UhfsOptions { atime: AtimePolicy::NoAtime, step_bytes, ..UhfsOptions::default() };
    Uhfs::new(ToyFs(Arc::clone(toy)), options)
}

/// The last micro-operation with this label.
pub(crate) fn find<'a>(events: &'a [Event], label: &str) -> &'a Event {
    let found = events.iter().rev().find(|event| event.label == label);
    found.unwrap_or_else(|| panic!("{label:?} is none of {:?}", labels(events)))
}

pub(crate) fn labels(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.label.as_str()).collect()
}
