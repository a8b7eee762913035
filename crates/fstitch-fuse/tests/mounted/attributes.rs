//! Attributes, extended attributes, access lists, `chattr` flags, and that the kernel's copies stay right.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use fstitch_core::SystemClock;
use rustix::fs::{
    AtFlags, CWD, IFlags, Timespec, Timestamps, UTIME_OMIT, XattrFlags, getxattr, ioctl_getflags,
    ioctl_setflags, listxattr, removexattr, setxattr, utimensat,
};
use rustix::io::Errno;

use crate::harness::{mount, mount_with, needs_root};
use crate::spy::Spy;

#[test]
fn mode_owner_and_times_are_kept() {
    let Some(m) = mount() else { return };
    fs::write(m.path("a"), "").unwrap();
    fs::set_permissions(m.path("a"), Permissions::from_mode(0o4751)).unwrap();
    assert_eq!(fs::metadata(m.path("a")).unwrap().mode(), 0o104_751);
    let old = UNIX_EPOCH + Duration::new(1_000_000, 123_456_789);
    let file = File::options().write(true).open(m.path("a")).unwrap();
    file.set_times(fs::FileTimes::new().set_accessed(old).set_modified(old)).unwrap();
    let meta = file.metadata().unwrap();
    assert_eq!((meta.atime(), meta.mtime_nsec()), (1_000_000, 123_456_789));
    let before = |secs, nsec| Timespec { tv_sec: secs, tv_nsec: nsec };
    let times = Timestamps { last_access: before(-2, 500_000_000), last_modification: before(0, UTIME_OMIT) };
    utimensat(CWD, m.path("a"), &times, AtFlags::empty()).unwrap();
    let meta = fs::metadata(m.path("a")).unwrap();
    assert_eq!((meta.atime(), meta.atime_nsec(), meta.mtime()), (-2, 500_000_000, 1_000_000));
}

#[test]
fn extreme_times_are_taken_and_serving_goes_on() {
    let Some(m) = mount() else { return };
    fs::write(m.path("a"), "").unwrap();
    let extreme = |secs| Timespec { tv_sec: secs, tv_nsec: 999_999_999 };
    let times = Timestamps { last_access: extreme(i64::MIN), last_modification: extreme(i64::MAX) };
    for _ in 0..4 {
        utimensat(CWD, m.path("a"), &times, AtFlags::empty()).unwrap();
    }
    assert_eq!(fs::metadata(m.path("a")).unwrap().atime(), i64::MIN);
    assert_eq!(fs::metadata(m.path("a")).unwrap().mtime(), i64::MAX);
}

#[test]
fn a_change_of_owner_takes_set_id_bits_away() {
    let Some(m) = mount() else { return };
    if needs_root() {
        return;
    }
    fs::write(m.path("a"), "").unwrap();
    fs::set_permissions(m.path("a"), Permissions::from_mode(0o6755)).unwrap();
    chown(m.path("a"), Some(100_000), Some(70_000)).unwrap();
    let meta = fs::metadata(m.path("a")).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (100_000, 70_000, 0o755));
}

#[test]
fn extended_attributes_obey_their_flags() {
    let Some(m) = mount() else { return };
    fs::write(m.path("a"), "").unwrap();
    let set = |name: &str, value: &[u8], flags| setxattr(m.path("a"), name, value, flags);
    set("user.x", b"one", XattrFlags::CREATE).unwrap();
    assert_eq!(set("user.x", b"two", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(set("user.y", b"two", XattrFlags::REPLACE), Err(Errno::NODATA));
    set("user.x", b"three", XattrFlags::REPLACE).unwrap();
    let mut value = [0; 16];
    assert_eq!(getxattr(m.path("a"), "user.x", &mut value), Ok(5));
    assert_eq!(&value[..5], b"three");
    assert_eq!(getxattr(m.path("a"), "user.x", &mut value[..2]), Err(Errno::RANGE));
    let mut names = [0; 64];
    let len = listxattr(m.path("a"), &mut names).unwrap();
    assert_eq!(&names[..len], b"user.x\0");
    removexattr(m.path("a"), "user.x").unwrap();
    assert_eq!(getxattr(m.path("a"), "user.x", &mut value), Err(Errno::NODATA));
}

/// A default access list that gives user 1000 everything.
fn default_list() -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] =
        [(1, 7, u32::MAX), (2, 7, 1000), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)];
    let mut list = vec![2, 0, 0, 0];
    for (tag, perm, id) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(perm.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

#[test]
fn default_access_lists_are_inherited_and_replace_the_umask() {
    let Some(m) = mount() else { return };
    fs::create_dir(m.path("d")).unwrap();
    setxattr(m.path("d"), "system.posix_acl_default", &default_list(), XattrFlags::empty()).unwrap();
    fs::write(m.path("d/a"), "").unwrap();
    assert_eq!(fs::metadata(m.path("d/a")).unwrap().mode() & 0o777, 0o660);
    let mut value = [0; 64];
    assert_eq!(getxattr(m.path("d/a"), "system.posix_acl_access", &mut value), Ok(44));
    fs::create_dir(m.path("d/sub")).unwrap();
    assert_eq!(getxattr(m.path("d/sub"), "system.posix_acl_default", &mut value), Ok(44));
    fs::set_permissions(m.path("d/a"), Permissions::from_mode(0o600)).unwrap();
    getxattr(m.path("d/a"), "system.posix_acl_access", &mut value).unwrap();
    assert_eq!(value[4 + 3 * 8 + 2], 0, "the kernel has forgotten the mask that it had cached");
}

#[test]
fn chattr_flags_are_set_enforced_and_change_the_change_time() {
    let Some(m) = mount() else { return };
    if needs_root() {
        return;
    }
    fs::write(m.path("a"), "text").unwrap();
    let file = File::open(m.path("a")).unwrap();
    let flags = |flags| ioctl_setflags(&file, flags);
    flags(IFlags::APPEND).unwrap();
    assert_eq!(ioctl_getflags(&file), Ok(IFlags::APPEND));
    // Opening succeeds, because the kernel opens without asking; changing does not.
    let refused = |result: std::io::Result<()>| {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(Errno::PERM.raw_os_error()));
    };
    let write = |bytes, at| File::options().write(true).open(m.path("a"))?.write_all_at(bytes, at);
    refused(write(b"x", 0));
    refused(File::options().write(true).open(m.path("a")).unwrap().set_len(0));
    write(b"more", 4).unwrap();
    refused(fs::remove_file(m.path("a")));
    flags(IFlags::IMMUTABLE).unwrap();
    refused(write(b"x", 8));
    refused(fs::set_permissions(m.path("a"), Permissions::from_mode(0o000)));
    flags(IFlags::empty()).unwrap();
    fs::remove_file(m.path("a")).unwrap();
    let dir = File::open(m.root()).unwrap();
    ioctl_setflags(&dir, IFlags::NODUMP).unwrap();
    assert_eq!(ioctl_getflags(&dir), Ok(IFlags::NODUMP));
}

/// After which time stamps differ.
const TICK: Duration = Duration::new(0, SystemClock::STEP_NANOS + 1_000_000);

/// The kernel learns of a new change time from a helper thread, so it may take a moment.
fn eventually(check: impl Fn() -> bool) -> bool {
    (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(2));
        check()
    })
}

#[test]
fn the_change_time_after_chattr_is_seen() {
    let Some(m) = mount() else { return };
    fs::write(m.path("a"), "text").unwrap();
    let ctime = || {
        let meta = fs::metadata(m.path("a")).unwrap();
        (meta.ctime(), meta.ctime_nsec())
    };
    let before = ctime();
    std::thread::sleep(TICK);
    ioctl_setflags(File::open(m.path("a")).unwrap(), IFlags::NODUMP).unwrap();
    assert!(eventually(|| ctime() > before));
}

#[test]
fn terminal_ioctls_are_refused_as_such() {
    let Some(m) = mount() else { return };
    fs::write(m.path("a"), "").unwrap();
    assert!(!std::io::IsTerminal::is_terminal(&File::open(m.path("a")).unwrap()));
}

#[test]
fn side_effects_on_other_inodes_are_seen() {
    let Some(m) = mount() else { return };
    fs::write(m.path("a"), "x").unwrap();
    fs::hard_link(m.path("a"), m.path("b")).unwrap();
    let stat = |name: &str| fs::metadata(m.path(name)).unwrap();
    let times = |name: &str| {
        let meta = stat(name);
        ((meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec()))
    };
    let steps: [(&str, &dyn Fn()); 5] = [
        (".", &|| fs::write(m.path("c"), "").unwrap()),
        (".", &|| fs::rename(m.path("c"), m.path("d")).unwrap()),
        (".", &|| fs::remove_file(m.path("d")).unwrap()),
        ("b", &|| fs::write(m.path("a"), "y").unwrap()),
        (".", &|| fs::create_dir(m.path("e")).unwrap()),
    ];
    for (no, (seen, step)) in steps.into_iter().enumerate() {
        let before = times(seen);
        std::thread::sleep(TICK);
        step();
        let after = times(seen);
        assert!(after.0 > before.0 && after.1 > before.1, "step {no}: {before:?} {after:?}");
    }
    let before = times("b").1;
    std::thread::sleep(TICK);
    fs::remove_file(m.path("a")).unwrap();
    assert!(times("b").1 > before, "the change time of what lost a name");
    assert_eq!(stat("b").nlink(), 1);
}

#[test]
fn attributes_names_and_absences_are_cached() {
    let spy = Arc::new(Spy::default());
    let Some(m) = mount_with(Arc::clone(&spy) as Arc<dyn fstitch_core::FileSystem>, |_| {}) else { return };
    fs::write(m.path("a"), "x").unwrap();
    fs::metadata(m.path("a")).unwrap();
    assert!(!m.path("missing").exists());
    let before = (spy.count("lookup"), spy.count("getattr"));
    for _ in 0..100 {
        fs::metadata(m.path("a")).unwrap();
        assert!(!m.path("missing").exists());
    }
    assert_eq!((spy.count("lookup"), spy.count("getattr")), before);
    let reads = spy.count("read");
    for _ in 0..100 {
        fs::read(m.path("a")).unwrap();
    }
    assert!(spy.count("read") <= reads + 1, "pages stay cached between opens");
}

#[test]
fn writing_does_not_ask_for_capabilities_each_time() {
    let spy = Arc::new(Spy::default());
    let Some(m) = mount_with(Arc::clone(&spy) as Arc<dyn fstitch_core::FileSystem>, |_| {}) else { return };
    let file = File::create(m.path("a")).unwrap();
    for no in 0..100 {
        file.write_all_at(b"x", no).unwrap();
    }
    assert_eq!(spy.count("write"), 100);
    assert!(spy.count("getxattr") <= 2, "{} requests", spy.count("getxattr"));
}
