//! What an fsync promises while names move under it: each test stops it in the middle, lets another operation run to its
//! end, goes on, and looks at what is on the medium when it returns.

use fstitch_core::{BlockNo, Caller, FileSystem, ManualClock, MemDevice, RenameMode, Timestamp};
use fstitch_patch::{Cache, CacheOptions};

use super::*;
use crate::ext2::Ext2;
use crate::ext2::mkfs::{MkfsOptions, mkfs};
use crate::uhfs::UhfsOptions;

const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 1, umask: 0 };
const BLOCK_SIZE: u32 = 1024;

/// A volume that is written only when a test says so.
struct Rig {
    device: Arc<MemDevice>,
    cache: Arc<Cache>,
    fs: Uhfs<Ext2>,
}

impl Rig {
    fn new() -> Self {
        let device = Arc::new(MemDevice::new(BLOCK_SIZE, 4096));
        let made = MkfsOptions::new([7; 16], [9; 16], Timestamp::default());
        let options = MkfsOptions { block_size: Some(BLOCK_SIZE), ..made };
        mkfs(&*device, &options, &mut |_, _| ()).unwrap();
        Self::mount(device)
    }

    fn mount(device: Arc<MemDevice>) -> Self {
        let below = Arc::<MemDevice>::clone(&device);
        let cache = Cache::new(below, CacheOptions::default(), Arc::new(ManualClock::new()));
        let format = Ext2::open(Arc::clone(&cache)).unwrap();
        Self { device, cache, fs: Uhfs::new(format, UhfsOptions::default()) }
    }

    /// What a power cut leaves now, mounted.
    fn cut(&self) -> Self {
        Self::mount(Arc::new(MemDevice::from_image(BLOCK_SIZE, self.device.image())))
    }

    fn has(&self, path: &str) -> bool {
        self.fs.walk(path.as_bytes()).is_ok()
    }

    fn ino(&self, path: &str) -> InodeNo {
        self.fs.walk(path.as_bytes()).unwrap().attr.ino
    }

    fn in_dir<'n>(&self, path: &'n str) -> (InodeNo, &'n [u8]) {
        let (dir, name) = path.rsplit_once('/').unwrap();
        (self.ino(dir), name.as_bytes())
    }

    fn mkdir(&self, path: &str) {
        let (dir, name) = self.in_dir(path);
        self.fs.mkdir(&CALLER, dir, name, 0o755).unwrap();
    }

    fn create(&self, path: &str) {
        let (dir, name) = self.in_dir(path);
        self.fs.mknod(&CALLER, dir, name, 0o100_644, 0).unwrap();
    }

    fn rename(&self, from: &str, to: &str) {
        self.fs.rename(&CALLER, self.in_dir(from), self.in_dir(to), RenameMode::Replace).unwrap();
    }

    /// Removes an empty directory that nobody else refers to.
    fn rmdir(&self, path: &str) {
        let ino = self.ino(path);
        let (dir, name) = self.in_dir(path);
        self.fs.rmdir(&CALLER, dir, name).unwrap();
        self.fs.forget(ino, u64::MAX);
    }

    /// The only block of a directory.
    fn block_of(&self, path: &str) -> BlockNo {
        let node = self.fs.node(self.ino(path)).unwrap();
        let state = node.read().unwrap();
        self.fs.low.map(state.inode(), 0, 1).unwrap().start.unwrap()
    }

    /// Writes all that may be written while `held` stays back.
    fn write_all_but(&self, held: BlockNo) {
        while self.cache.step_blocks(&mut |block| block != held).unwrap() > 0 {}
    }

    /// An fsync of `path` that has climbed the file, and the directories that it was in, when `meanwhile` happens.
    fn sync_during(&self, path: &str, meanwhile: impl FnOnce()) {
        let ino = self.ino(path);
        let node = self.fs.node(ino).unwrap();
        let moves = self.fs.moves();
        let mut ascent = Ascent::from(&node);
        assert!(self.fs.climb_next(&mut ascent).unwrap());
        meanwhile();
        while self.fs.climb_next(&mut ascent).unwrap() {}
        if !self.fs.make_stable(&PatchIds::new(), &ascent, moves).unwrap() {
            self.fs.fsync(ino, false).unwrap();
        }
    }
}

#[test]
fn a_file_that_leaves_a_directory_which_is_then_removed() {
    let rig = Rig::new();
    rig.mkdir("/a");
    rig.mkdir("/b");
    rig.create("/a/f");
    // The name is on the medium, the way to it is not.
    rig.write_all_but(rig.block_of("/"));
    assert!(!rig.cut().has("/a"));
    rig.sync_during("/a/f", || {
        rig.rename("/a/f", "/b/f");
        rig.rmdir("/a");
    });
    assert!(rig.cut().has("/b/f"), "its fsync has returned");
}

#[test]
fn a_directory_that_leaves_one_which_is_then_removed() {
    let rig = Rig::new();
    rig.mkdir("/a");
    rig.mkdir("/b");
    rig.mkdir("/a/d");
    rig.write_all_but(rig.block_of("/"));
    rig.sync_during("/a/d", || {
        rig.rename("/a/d", "/b/d");
        rig.rmdir("/a");
    });
    assert!(rig.cut().has("/b/d"), "its fsync has returned");
}

/// The number of the directory that the file was in belongs to another directory when the walk comes there.
#[test]
fn a_number_with_a_new_life_is_not_where_the_file_is() {
    let rig = Rig::new();
    rig.mkdir("/a");
    rig.mkdir("/b");
    rig.create("/a/f");
    let former = rig.ino("/a");
    rig.rename("/a/f", "/b/f");
    rig.rmdir("/a");
    rig.mkdir("/c");
    assert_eq!(rig.ino("/c"), former, "the number is used again");
    let node = rig.fs.node(rig.ino("/b/f")).unwrap();
    let ascent = rig.fs.ascend(&node).unwrap();
    assert!(ascent.seen.iter().all(|id| id.ino != former), "{:?}", ascent.seen);
    assert!(!ascent.lost);
}

/// Loading a file and moving a directory above it meet: what was known of the way before is not true of the way after.
#[test]
fn a_file_found_while_its_way_changes() {
    let made = Rig::new();
    made.mkdir("/p");
    made.mkdir("/p/d");
    made.create("/p/d/f");
    made.fs.unmount().unwrap();
    let rig = Rig::mount(made.device);
    let dir = rig.fs.node(rig.ino("/p/d")).unwrap();
    let (found, origin) = rig.fs.look_in(&dir, b"f", 0).unwrap().unwrap();
    rig.mkdir("/q");
    rig.rename("/p", "/q/p");
    rig.fs.inherit_stability(&found.0, &origin.unwrap());
    rig.fs.fsync(found.0.ino(), false).unwrap();
    assert!(rig.cut().has("/q/p/d/f"), "its fsync has returned");
}
