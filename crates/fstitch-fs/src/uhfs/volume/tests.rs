//! A thread that must not wait: every operation that would have to is refused there, before it has changed anything, and keeps
//! nothing; whoever only looks is answered.

use std::sync::mpsc::channel;
use std::time::Duration;

use fstitch_core::groups::GroupCall;
use fstitch_core::{
    Attr, Caller, FileSystem, InodeFlags, ManualClock, MemDevice, RenameMode, SetAttr, XattrSetMode,
};
use fstitch_patch::CacheOptions;

use super::super::read::long;
use super::*;
use crate::arrange::{Arrangement, open};
use crate::ext2::Ext2;
use crate::ext2::mkfs::{MkfsJournal, MkfsOptions, mkfs};

const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 1, umask: 0 };
const REGULAR: u16 = 0o100_644;
const SMALL: usize = 256 << 10;

/// A volume with `/a/file`, `/a/two`, which is also `/b/two`, and `/link`; nothing writes it by itself.
struct Rig {
    fs: Uhfs<Ext2>,
    a: InodeNo,
    b: InodeNo,
    file: InodeNo,
    link: InodeNo,
}

fn arrangement(cache_size: usize) -> Arrangement {
    Arrangement { cache: CacheOptions { cache_size, ..CacheOptions::default() }, ..Arrangement::default() }
}

fn volume(arrangement: &Arrangement) -> (Uhfs<Ext2>, Arc<ManualClock>) {
    let device = MemDevice::new(1024, 8192);
    let made = MkfsOptions::new([7; 16], [9; 16], Timestamp::default());
    let journal = MkfsJournal::Blocks(1024);
    let journal =
        if arrangement.consistency == Some(Consistency::Ordered) { journal } else { MkfsJournal::None };
    mkfs(&device, &MkfsOptions { block_size: Some(1024), journal, ..made }, &mut |_, _| ()).unwrap();
    let clock = Arc::new(ManualClock::new());
    // Small times look like numbers of inodes where an inode's end is noted.
    clock.advance(Duration::from_secs(1_900_000_000));
    let fs = open::<Ext2>(Arc::new(device), arrangement, Arc::clone(&clock) as _).unwrap().0;
    (fs, clock)
}

impl Rig {
    fn new(arrangement: &Arrangement) -> Self {
        let (fs, clock) = volume(arrangement);
        let dir = |name: &[u8]| fs.mkdir(&CALLER, fs.root(), name, 0o755).unwrap().attr.ino;
        let (a, b) = (dir(b"a"), dir(b"b"));
        let make = |name: &[u8]| fs.mknod(&CALLER, a, name, REGULAR, 0).unwrap().attr.ino;
        let (file, two) = (make(b"file"), make(b"two"));
        fs.link(&CALLER, two, b, b"two").unwrap();
        fs.setxattr(&CALLER, file, b"user.x", b"1", XattrSetMode::Set).unwrap();
        fs.write(&CALLER, file, 0, &[1; 3000]).unwrap();
        let link = fs.symlink(&CALLER, fs.root(), b"link", b"a/file").unwrap().attr.ino;
        fs.sync().unwrap();
        // From now on access times are due.
        clock.advance(Duration::from_secs(1));
        Self { fs, a, b, file, link }
    }

    fn attr(&self, ino: InodeNo) -> Attr {
        self.fs.getattr(ino).unwrap()
    }

    fn set(&self, ino: InodeNo, set: SetAttr) -> Result<()> {
        self.fs.setattr(&CALLER, ino, &set).map(drop)
    }

    fn rename(&self, from: (InodeNo, &[u8]), to: (InodeNo, &[u8])) -> Result<()> {
        self.fs.rename(&CALLER, from, to, RenameMode::Replace)
    }

    fn write(&self, ino: InodeNo, offset: u64, data: &[u8]) -> Result<usize> {
        self.fs.write(&CALLER, ino, offset, data)
    }

    /// What the operation leaves behind on a thread that refuses to wait: nothing.
    fn is_refused<T: std::fmt::Debug>(&self, what: &str, operation: impl FnOnce(&Self) -> Result<T>) {
        let done = self.is_unchanged(|| operation(self));
        assert!(matches!(done, Err(Error::WouldWait)), "{what}: {done:?}");
    }

    /// Does something on a thread that refuses to wait, which shall change nothing.
    fn is_unchanged<T>(&self, operation: impl FnOnce() -> Result<T>) -> Result<T> {
        let seen = || {
            let stats = self.fs.cache().stats();
            let created =
                stats.patches_created_byte + stats.patches_created_bit + stats.patches_created_empty;
            (
                created,
                stats.dirty_bytes,
                stats.blocks_written,
                stats.waits,
                self.attr(self.file),
                self.attr(self.a),
            )
        };
        let before = seen();
        let done = refusing(operation);
        assert_eq!(before, seen());
        done
    }

    /// All kinds of changes.
    fn changes_are_refused(&self) {
        let &Self { ref fs, a, b, file, link } = self;
        let root = fs.root();
        self.is_refused("mknod", |_| fs.mknod(&CALLER, a, b"new", REGULAR, 0));
        self.is_refused("mkdir", |_| fs.mkdir(&CALLER, a, b"new", 0o755));
        self.is_refused("symlink", |_| fs.symlink(&CALLER, a, b"new", b"to"));
        self.is_refused("tmpfile", |_| fs.tmpfile(&CALLER, a, 0o644));
        self.is_refused("link", |_| fs.link(&CALLER, file, b, b"new"));
        self.is_refused("unlink", |_| fs.unlink(&CALLER, a, b"file"));
        self.is_refused("rmdir", |_| fs.rmdir(&CALLER, root, b"b"));
        self.is_refused("rename", |rig| rig.rename((a, b"file"), (a, b"new")));
        self.is_refused("write", |rig| rig.write(file, 0, b"new"));
        self.is_refused("write behind the end", |rig| rig.write(file, 5000, b"new"));
        self.is_refused("write_back", |_| fs.write_back(file, 0, b"new", true));
        self.is_refused("chmod", |rig| rig.set(file, SetAttr { perm: Some(0o600), ..SetAttr::default() }));
        self.is_refused("truncate", |rig| rig.set(file, SetAttr { size: Some(10), ..SetAttr::default() }));
        self.is_refused("chown", |rig| rig.set(link, SetAttr { uid: Some(1), ..SetAttr::default() }));
        self.is_refused("setxattr", |_| fs.setxattr(&CALLER, file, b"user.y", b"2", XattrSetMode::Set));
        self.is_refused("removexattr", |_| fs.removexattr(&CALLER, file, b"user.x"));
        self.is_refused("chattr", |_| fs.set_flags(&CALLER, file, InodeFlags(InodeFlags::NODUMP)));
    }

    /// Access times are due, and passed over.
    fn looks_are_answered(&self) {
        let due = |ino| self.attr(ino).atime < self.fs.now();
        assert!([self.a, self.file, self.link].into_iter().all(due));
        let &Self { ref fs, a, file, link, .. } = self;
        let looked = self.is_unchanged(|| {
            assert_eq!(fs.lookup(a, b"file")?.attr.ino, file);
            fs.forget(file, 1);
            assert_eq!(fs.readlink(link)?, b"a/file");
            assert_eq!(fs.getxattr(file, b"user.x")?, b"1");
            let mut names = 0;
            fs.readdir(a, 0, &mut |_| {
                names += 1;
                true
            })?;
            assert!(names >= 4);
            let mut found = [0; 3000];
            assert_eq!(fs.read(file, 0, &mut found)?, 3000);
            assert_eq!(found, [1; 3000]);
            fs.statfs()
        });
        assert!(looked.is_ok(), "{looked:?}");
    }

    /// Nobody holds anything, and all changes are possible.
    fn goes_on(&self) {
        let &Self { ref fs, a, file, .. } = self;
        assert!(fs.gate.try_write().is_some() && fs.renames.try_lock().is_some());
        assert!(
            fs.table.all().iter().all(|node| node.writer.try_lock().is_some() && node.try_write().is_some())
        );
        fs.cache().close_transaction().unwrap();
        fs.sync().unwrap();
        fs.mknod(&CALLER, a, b"new", REGULAR, 0).unwrap();
        self.rename((a, b"two"), (self.b, b"three")).unwrap();
        assert_eq!(self.write(file, 0, b"new").unwrap(), 3);
        fs.unlink(&CALLER, a, b"file").unwrap();
        fs.forget(file, 1);
        fs.sync().unwrap();
        let found = fs.check().unwrap();
        assert!(found.is_clean(), "{found:?}");
    }

    /// Dirties all the room that there is.
    fn fill_room(&self) {
        let filler = self.fs.mknod(&CALLER, self.b, b"filler", REGULAR, 0).unwrap().attr.ino;
        let refused = (0..1024).find(|at| match refusing(|| self.write(filler, at * 1024, b"x")) {
            Err(Error::WouldWait) => true,
            done => done.map(|_| false).unwrap(),
        });
        assert!(refused.is_some_and(|at| at > 50), "{refused:?}");
    }
}

/// On a thread that refuses to wait; debug builds look for changes and locks that it leaves.
fn refusing<T>(operation: impl FnOnce() -> Result<T>) -> Result<T> {
    let _refuses = waiting::refuse();
    waiting::checked(operation)
}

/// Looks while another thread holds what `hold` gives it.
fn while_held<G>(hold: impl FnOnce() -> G + Send, look: impl FnOnce()) {
    let ((tell, hear), (release, released)) = (channel(), channel::<()>());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _held = hold();
            tell.send(()).unwrap();
            // Until the other side is gone.
            let _ = released.recv();
        });
        hear.recv().unwrap();
        look();
        drop(release);
    });
}

#[test]
fn a_shut_gate_refuses_changes_and_lets_look() {
    let rig = Rig::new(&Arrangement::default());
    while_held(
        || rig.fs.shut_gate(),
        || {
            rig.changes_are_refused();
            rig.is_refused("a group", |rig| rig.fs.group(GroupCall::Create));
            rig.looks_are_answered();
        },
    );
    rig.goes_on();
}

#[test]
fn a_lack_of_room_refuses_changes_and_lets_look() {
    let rig = Rig::new(&arrangement(SMALL));
    rig.fill_room();
    rig.changes_are_refused();
    rig.looks_are_answered();
    rig.goes_on();
}

#[test]
fn the_end_of_a_transaction_refuses_changes_and_lets_look() {
    let rig = Rig::new(&Arrangement { consistency: Some(Consistency::Ordered), ..Arrangement::default() });
    rig.set(rig.file, SetAttr { perm: Some(0o640), ..SetAttr::default() }).unwrap();
    let closing = || matches!(refusing(|| rig.fs.cache().begin_first(0, 1).map(drop)), Err(Error::WouldWait));
    std::thread::scope(|scope| {
        let under_way = rig.fs.cache().begin(0, 1).unwrap();
        scope.spawn(|| rig.fs.cache().close_transaction().unwrap());
        while !closing() {
            std::thread::sleep(Duration::from_millis(1));
        }
        rig.changes_are_refused();
        rig.looks_are_answered();
        drop(under_way);
    });
    rig.goes_on();
}

#[test]
fn somebody_elses_writer_lock_refuses_writes_and_new_lengths() {
    let rig = Rig::new(&Arrangement::default());
    let file = rig.file;
    let node = rig.fs.node(file).unwrap();
    while_held(
        || node.writer.lock(),
        || {
            rig.is_refused("write", |rig| rig.write(file, 0, b"new"));
            rig.is_refused("write_back", |rig| rig.fs.write_back(file, 0, b"new", true));
            rig.is_refused("truncate", |rig| rig.set(file, SetAttr { size: Some(10), ..SetAttr::default() }));
        },
    );
    rig.goes_on();
}

#[test]
fn a_move_between_directories_refuses_those_that_need_its_lock() {
    let rig = Rig::new(&Arrangement::default());
    let (a, b) = (rig.a, rig.b);
    while_held(
        || rig.fs.lock_renames().ok(),
        || {
            rig.is_refused("rename", |rig| rig.rename((a, b"file"), (b, b"file")));
            rig.is_refused("rename over one of two names", |rig| rig.rename((a, b"file"), (a, b"two")));
            rig.is_refused("unlink of one of two names", |rig| rig.fs.unlink(&CALLER, a, b"two"));
            refusing(|| rig.rename((a, b"file"), (a, b"moved"))).unwrap();
            refusing(|| rig.rename((a, b"moved"), (a, b"file"))).unwrap();
        },
    );
    rig.goes_on();
}

#[test]
fn the_first_change_of_a_volume_is_refused() {
    let (fs, clock) = volume(&Arrangement::default());
    clock.advance(Duration::from_secs(1));
    let root = fs.root();
    let list = || fs.readdir(root, 0, &mut |_| true);
    let refused = |done: Result<()>| matches!(done, Err(Error::WouldWait));
    assert!(refused(refusing(|| fs.mknod(&CALLER, root, b"new", REGULAR, 0).map(drop))));
    assert!(refused(refusing(|| fs.group(GroupCall::Create).map(drop))));
    assert!(refused(refusing(list)), "its access time is due, and the first change");
    // But nobody waits for a check because of that.
    while_held(|| fs.shut_gate(), || refusing(list).unwrap());
    assert!(!fs.in_use.load(Ordering::Acquire) && fs.cache().stats().blocks_written == 0);
    list().unwrap();
    assert!(fs.in_use.load(Ordering::Acquire));
    refusing(|| fs.mknod(&CALLER, root, b"new", REGULAR, 0).map(drop)).unwrap();
}

#[test]
fn a_long_write_ends_where_it_would_have_to_wait() {
    let rig = Rig::new(&arrangement(SMALL));
    let data: Vec<u8> = (0..1 << 20).map(|at: u32| u8::try_from(at % 251).unwrap()).collect();
    let done = refusing(|| rig.write(rig.file, 0, &data)).unwrap();
    assert!(done > 0 && done < data.len() && done.is_multiple_of(rig.fs.step_blocks * 1024), "{done} bytes");
    assert_eq!(rig.attr(rig.file).size, long(done));
    rig.is_refused("its rest", |rig| rig.write(rig.file, long(done), &data[done..]));
    let rest = rig.write(rig.file, long(done), &data[done..]).unwrap();
    assert_eq!(done + rest, data.len(), "a thread that may wait ends it");
    let mut found = vec![0; data.len()];
    rig.fs.read(rig.file, 0, &mut found).unwrap();
    assert!(found == data);
    rig.goes_on();
}

#[test]
fn what_takes_several_steps_and_cannot_end_between_them_is_refused_at_once() {
    let shorten = SetAttr { size: Some(10), ..SetAttr::default() };
    let rig = Rig::new(&Arrangement::default());
    refusing(|| rig.set(rig.file, shorten)).unwrap();
    let mut tiny = Arrangement::default();
    tiny.fs.step_bytes = 1024;
    let rig = Rig::new(&tiny);
    rig.is_refused("truncate", |rig| rig.set(rig.file, shorten));
    rig.set(rig.file, shorten).unwrap();
    assert_eq!(rig.attr(rig.file).size, 10);
}

#[test]
fn what_is_stable_when_it_returns_is_refused() {
    let rig = Rig::new(&Arrangement::default());
    let (a, b, file) = (rig.a, rig.b, rig.file);
    rig.is_refused("chattr +S", |rig| rig.fs.set_flags(&CALLER, file, InodeFlags(InodeFlags::SYNC)));
    rig.fs.set_flags(&CALLER, file, InodeFlags(InodeFlags::SYNC)).unwrap();
    rig.fs.set_flags(&CALLER, a, InodeFlags(InodeFlags::DIRSYNC)).unwrap();
    rig.fs.sync().unwrap();
    rig.is_refused("write", |rig| rig.write(file, 0, b"new"));
    rig.is_refused("chmod", |rig| rig.set(file, SetAttr { perm: Some(0o600), ..SetAttr::default() }));
    rig.is_refused("truncate", |rig| rig.set(file, SetAttr { size: Some(10), ..SetAttr::default() }));
    rig.is_refused("setxattr", |rig| rig.fs.setxattr(&CALLER, file, b"user.y", b"2", XattrSetMode::Set));
    rig.is_refused("removexattr", |rig| rig.fs.removexattr(&CALLER, file, b"user.x"));
    rig.is_refused("mknod", |rig| rig.fs.mknod(&CALLER, a, b"new", REGULAR, 0));
    rig.is_refused("link", |rig| rig.fs.link(&CALLER, file, a, b"new"));
    rig.is_refused("unlink", |rig| rig.fs.unlink(&CALLER, a, b"file"));
    rig.is_refused("rename from it", |rig| rig.rename((a, b"file"), (b, b"new")));
    rig.is_refused("rename to it", |rig| rig.rename((b, b"two"), (a, b"new")));
    refusing(|| rig.fs.mknod(&CALLER, b, b"new", REGULAR, 0)).unwrap();
    let sync = Arrangement { consistency: Some(Consistency::Sync), ..Arrangement::default() };
    let rig = Rig::new(&sync);
    rig.is_refused("mknod", |rig| rig.fs.mknod(&CALLER, rig.b, b"new", REGULAR, 0));
    rig.is_refused("unlink", |rig| rig.fs.unlink(&CALLER, rig.a, b"file"));
    refusing(|| rig.write(rig.file, 0, b"new")).unwrap();
}

#[test]
fn whoever_forgets_an_orphan_waits() {
    let rig = Rig::new(&arrangement(SMALL));
    let orphan = rig.fs.mknod(&CALLER, rig.a, b"orphan", REGULAR, 0).unwrap().attr.ino;
    rig.fs.unlink(&CALLER, rig.a, b"orphan").unwrap();
    rig.fill_room();
    let _refuses = waiting::refuse();
    rig.fs.forget(orphan, 1);
    assert!(rig.fs.getattr(orphan).is_err(), "nobody would free it later");
    assert!(rig.fs.take_error().is_ok());
}

/// Is told nothing of importance.
struct Deaf;

impl waiting::Watcher for Deaf {
    fn begins(&self) {}
    fn ends(&self) {}
}

#[test]
fn on_a_thread_that_serves_many_looks_pass_access_times_over() {
    let rig = Rig::new(&arrangement(SMALL));
    rig.fill_room();
    let (fs, before) = (&rig.fs, rig.fs.cache().stats());
    let read = || fs.read(rig.file, 0, &mut [0; 10]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            waiting::watch(Arc::new(Deaf));
            assert_eq!(read(), 10);
        });
    });
    let after = fs.cache().stats();
    assert_eq!((after.waits, after.dirty_bytes), (before.waits, before.dirty_bytes));
    // Others make room for them.
    assert_eq!(read(), 10);
    assert!(fs.cache().stats().waits > before.waits);
}
