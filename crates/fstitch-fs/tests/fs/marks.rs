//! `chattr +S` on files: a change that was reported is on the medium, whatever happens next.

use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{
    Caller, Entry, FallocateMode, FileSystem, InodeFlags, InodeNo, ManualClock, SetAttr, XattrSetMode,
};
use fstitch_patch::CacheOptions;

use crate::driver::Medium;
use crate::properties::{Ext2Medium, cache_options};

const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 1, umask: 0 };
const FILE: u16 = 0o100_644;

struct Rig {
    medium: Ext2Medium,
    fs: Arc<dyn FileSystem>,
    dir: InodeNo,
}

impl Rig {
    /// A volume with a directory that has `marks`, all of it stable.
    fn new(marks: u32) -> Self {
        let clock = Arc::new(ManualClock::new());
        clock.advance(Duration::from_secs(1_700_000_000));
        let options = cache_options(CacheOptions::default().cache_size, 15);
        let medium = Ext2Medium::new(1024, 4 << 20, options, &clock);
        let fs = medium.mount();
        let dir = fs.mkdir(&CALLER, fs.root(), b"dir", 0o755).unwrap().attr.ino;
        fs.set_flags(&CALLER, dir, InodeFlags(marks)).unwrap();
        fs.sync().unwrap();
        Self { medium, fs, dir }
    }

    fn create(&self, name: &str) -> Entry {
        self.fs.mknod(&CALLER, self.dir, name.as_bytes(), FILE, 0).unwrap()
    }

    /// What a mount finds after the power was cut now.
    fn after_power_cut(&self) -> Arc<dyn FileSystem> {
        self.medium.copy().mount()
    }
}

#[test]
fn changes_of_a_marked_file_are_stable_at_once() {
    let rig = Rig::new(0);
    let file = rig.create("file").attr.ino;
    rig.fs.set_flags(&CALLER, file, InodeFlags(InodeFlags::SYNC)).unwrap();
    rig.fs.sync().unwrap();
    let now = || rig.after_power_cut();
    rig.fs.write(&CALLER, file, 0, b"contents").unwrap();
    assert_eq!(now().getattr(file).unwrap().size, 8);
    rig.fs.setattr(&CALLER, file, &SetAttr { perm: Some(0o600), ..SetAttr::default() }).unwrap();
    assert_eq!(now().getattr(file).unwrap().perm, 0o600);
    rig.fs.setattr(&CALLER, file, &SetAttr { size: Some(3), ..SetAttr::default() }).unwrap();
    assert_eq!(now().getattr(file).unwrap().size, 3);
    rig.fs.fallocate(&CALLER, file, 0, 5000, FallocateMode::Allocate).unwrap();
    assert_eq!(now().getattr(file).unwrap().size, 5000);
    rig.fs.setxattr(&CALLER, file, b"user.name", b"value", XattrSetMode::Set).unwrap();
    assert_eq!(now().getxattr(file, b"user.name").unwrap(), b"value");
    rig.fs.removexattr(&CALLER, file, b"user.name").unwrap();
    assert!(now().getxattr(file, b"user.name").is_err());
}

#[test]
fn nothing_is_lost_when_a_marked_inode_has_no_name() {
    let rig = Rig::new(InodeFlags::DIRSYNC | InodeFlags::SYNC);
    let file = rig.create("file").attr.ino;
    rig.fs.unlink(&CALLER, rig.dir, b"file").unwrap();
    rig.fs.write(&CALLER, file, 0, b"contents").unwrap();
    rig.fs.rmdir(&CALLER, rig.fs.root(), b"dir").unwrap();
    rig.fs.forget(file, 1);
    rig.fs.forget(rig.dir, 1);
    rig.fs.unmount().unwrap();
    rig.medium.judge();
}
