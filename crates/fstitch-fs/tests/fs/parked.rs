//! Inodes that the kernel refers to and that are not in memory: the reference alone must keep an inode alive
//! when its last name goes, and must not keep its node.

use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{Caller, FileKind, FileSystem, InodeNo, ManualClock, RenameMode};
use fstitch_patch::{Cache, CacheOptions};

use crate::properties::{Ext2Medium, cache_options};

const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 1, umask: 0 };
const FILES: usize = 1500;
/// A node and its heap take more than one KiB, the count of references to a parked inode less than 100 bytes.
const BYTES_PER_PARKED: u64 = 100;
/// Each file's only block, with its place in the table of inodes, its name, and what the cache adds: rather more than that.
const BLOCK_BYTES: u64 = 2048;
/// Some nodes are always in memory, and what they take is looked at only now and then.
const SOME_NODES: u64 = 200 << 10;

struct Rig {
    medium: Ext2Medium,
    cache: Arc<Cache>,
    fs: Arc<dyn FileSystem>,
    free: u64,
}

impl Rig {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new());
        clock.advance(Duration::from_secs(1_700_000_000));
        let medium =
            Ext2Medium::new(1024, 16 << 20, cache_options(CacheOptions::default().cache_size, 15), &clock);
        let (cache, fs) = medium.mount_with_cache();
        let free = fs.statfs().unwrap().inodes_free;
        Self { medium, cache, fs, free }
    }

    /// Makes `FILES` files with a reference each; they are stable afterwards.
    fn populate(&self) -> Vec<InodeNo> {
        let mode = FileKind::Regular.mode_bits() | 0o644;
        let make = |number| {
            let ino =
                self.fs.mknod(&CALLER, self.fs.root(), name(number).as_bytes(), mode, 0).unwrap().attr.ino;
            self.fs.write(&CALLER, ino, 0, name(number).as_bytes()).unwrap();
            ino
        };
        let made = (0..FILES).map(make).collect();
        self.park();
        made
    }

    /// Lets every stable inode leave memory that may.
    fn park(&self) {
        self.fs.sync().unwrap();
        for number in 0..2 * FILES {
            // Looking a name up gives others a chance to leave.
            let _ = self.fs.lookup(self.fs.root(), name(number % FILES).as_bytes()).map(|entry| {
                self.fs.forget(entry.attr.ino, 1);
            });
        }
    }

    fn contents(&self, ino: InodeNo) -> String {
        let mut buf = [0; 32];
        let read = self.fs.read(ino, 0, &mut buf).unwrap();
        String::from_utf8(buf[..read].to_vec()).unwrap()
    }

    fn memory(&self) -> u64 {
        self.cache.stats().memory_bytes
    }

    fn end(self) {
        self.fs.sync().unwrap();
        assert_eq!(self.fs.statfs().unwrap().inodes_free, self.free, "every inode was freed");
        self.fs.unmount().unwrap();
        self.medium.judge();
    }
}

fn name(number: usize) -> String {
    format!("file {number}")
}

#[test]
fn references_alone_take_little_memory() {
    let rig = Rig::new();
    let nothing = rig.memory();
    let made = rig.populate();
    let limit = nothing + SOME_NODES + u64::try_from(FILES).unwrap() * (BLOCK_BYTES + BYTES_PER_PARKED);
    assert!(rig.memory() < limit, "{} of {limit} bytes", rig.memory());
    for (number, ino) in made.into_iter().enumerate() {
        rig.fs.forget(ino, 1);
        rig.fs.unlink(&CALLER, rig.fs.root(), name(number).as_bytes()).unwrap();
    }
    rig.end();
}

#[test]
fn a_parked_inode_lives_on_without_names_until_it_is_forgotten() {
    let rig = Rig::new();
    let made = rig.populate();
    for number in 0..FILES {
        let (from, to) = (name(number), name(number - number % 3));
        let root = rig.fs.root();
        match number % 3 {
            0 => rig.fs.unlink(&CALLER, root, from.as_bytes()).unwrap(),
            _ => {
                let mode = RenameMode::Replace;
                rig.fs.rename(&CALLER, (root, from.as_bytes()), (root, to.as_bytes()), mode).unwrap();
            }
        }
        rig.fs.sync().unwrap();
    }
    rig.park();
    for (number, &ino) in made.iter().enumerate() {
        assert_eq!(rig.contents(ino), name(number));
        assert_eq!(rig.fs.getattr(ino).unwrap().nlink, u32::from(number % 3 == 2));
    }
    let kept = u64::try_from(FILES).unwrap();
    assert_eq!(rig.fs.statfs().unwrap().inodes_free, rig.free - kept, "nothing was freed too early");
    for (number, ino) in made.into_iter().enumerate() {
        if number % 3 == 2 {
            rig.fs.unlink(&CALLER, rig.fs.root(), name(number - 2).as_bytes()).unwrap();
        }
        rig.fs.forget(ino, 1);
    }
    rig.end();
}

#[test]
fn references_to_parked_inodes_add_up() {
    let rig = Rig::new();
    let made = rig.populate();
    for (number, &ino) in made.iter().enumerate() {
        for _ in 0..number % 4 {
            assert_eq!(rig.fs.lookup(rig.fs.root(), name(number).as_bytes()).unwrap().attr.ino, ino);
        }
    }
    rig.park();
    for (number, &ino) in made.iter().enumerate() {
        rig.fs.forget(ino, u64::try_from(number % 4).unwrap());
        rig.fs.unlink(&CALLER, rig.fs.root(), name(number).as_bytes()).unwrap();
        assert_eq!(rig.contents(ino), name(number), "one reference is left");
        rig.fs.forget(ino, 1);
        assert!(rig.fs.getattr(ino).is_err(), "none is left");
    }
    rig.end();
}
