//! Mounts whose writes the kernel keeps back (`writeback_cache`): what arrives when, what must not be lost, what is refused.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fstitch_core::{FileSystem, SystemClock};
use fstitch_fs::model::{Model, ModelOptions};
use fstitch_fuse::{Mount, MountOptions};
use rustix::io::Errno;

use crate::harness::{Mounted, mount_with, needs_root, options};
use crate::spy::Spy;

fn mount_late(fs: Arc<dyn FileSystem>) -> Option<Mounted> {
    mount_with(fs, |options| options.writeback_cache = true)
}

/// Sets flags of a file as `chattr` does, or says why not.
fn chattr(flags: &str, path: &std::path::Path) -> bool {
    match Command::new("chattr").arg(flags).arg(path).status() {
        Ok(status) => {
            assert!(status.success());
            true
        }
        Err(_) => {
            println!("skipped: chattr is missing");
            false
        }
    }
}

/// Appends to a file as somebody who owns nothing.
fn append_as_nobody(path: &std::path::Path) {
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo theirs >> \"$0\""]).arg(path).uid(65534);
    assert!(shell.status().unwrap().success());
}

/// Whether something becomes true within a second.
fn eventually(is_true: impl Fn() -> bool) -> bool {
    (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        is_true()
    })
}

/// Whether small writes were kept back until the file was closed. Not, where anybody calls sync(2) meanwhile, in whatever mount table.
fn arrive_as_one() -> bool {
    let spy = Arc::new(Spy::default());
    let Some(m) = mount_late(Arc::clone(&spy) as _) else { return true };
    let mut file = File::create(m.path("a")).unwrap();
    for at in 0..1000_u32 {
        file.write_all(&at.to_le_bytes()).unwrap();
    }
    let kept_back = spy.count("write") + spy.count("write_back") == 0;
    assert_eq!(file.metadata().unwrap().len(), 4000, "the kernel knows better than we do");
    drop(file);
    let bytes = fs::read(m.path("a")).unwrap();
    assert!(bytes.chunks(4).zip(0_u32..).all(|(four, at)| four == at.to_le_bytes()));
    kept_back && (spy.count("write"), spy.count("write_back")) == (0, 1)
}

#[test]
fn small_writes_arrive_as_one_when_the_file_is_closed() {
    assert!((0..10).any(|_| arrive_as_one()));
}

#[test]
fn what_is_synced_does_not_wait() {
    let spy = Arc::new(Spy::default());
    let Some(m) = mount_late(Arc::clone(&spy) as _) else { return };
    let mut file = File::create(m.path("a")).unwrap();
    file.write_all(b"kept back").unwrap();
    file.sync_all().unwrap();
    assert_eq!((spy.count("write_back"), spy.count("fsync")), (1, 1));
}

#[test]
fn contents_that_have_not_arrived_are_no_holes() {
    let Some(m) = mount_late(Arc::new(Model::new())) else { return };
    let file = File::options().create(true).truncate(true).read(true).write(true).open(m.path("a")).unwrap();
    file.write_all_at(b"x", 1 << 20).unwrap();
    let found = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).unwrap();
    assert!(found <= 1 << 20, "copying tools would lose it: {found}");
    fs::copy(m.path("a"), m.path("b")).unwrap();
    assert!(fs::read(m.path("a")).unwrap() == fs::read(m.path("b")).unwrap());
}

#[test]
fn times_are_those_of_the_writes_or_as_they_were_set() {
    let spy = Arc::new(Spy::default());
    let Some(m) = mount_late(Arc::clone(&spy) as _) else { return };
    let mut file = File::create(m.path("a")).unwrap();
    file.write_all(b"contents").unwrap();
    let early = file.metadata().unwrap().modified().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    drop(file);
    let arrived = |name| spy.lookup(spy.root(), name).unwrap().attr;
    let nanos = early.duration_since(SystemTime::UNIX_EPOCH).unwrap().subsec_nanos();
    assert_eq!(arrived(b"a").mtime.nanos, nanos, "not when it arrived");
    let (ctime, seen) = (arrived(b"a").ctime, fs::metadata(m.path("a")).unwrap());
    // Of the two clocks the later one counts.
    assert!((ctime.secs, i64::from(ctime.nanos)) >= (seen.ctime(), seen.ctime_nsec()));
    assert!(ctime.secs - seen.ctime() <= 1);

    // Arriving behind what the kernel said of times must not change them.
    let ino = arrived(b"a").ino;
    let before = arrived(b"a").mtime;
    std::thread::sleep(Duration::from_millis(20));
    spy.write_back(ino, 0, b"CONTENTS", false).unwrap();
    assert_eq!(arrived(b"a").mtime, before);

    let mut file = File::create(m.path("b")).unwrap();
    file.write_all(b"contents").unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1000)).unwrap();
    drop(file);
    assert_eq!(arrived(b"b").mtime.secs, 1000);
}

#[test]
fn a_full_volume_is_told_by_fsync() {
    let small = ModelOptions { blocks: 64, ..ModelOptions::default() };
    let model = Model::with(small, Arc::new(SystemClock::new()));
    let Some(m) = mount_late(Arc::new(model)) else { return };
    let mut file = File::create(m.path("a")).unwrap();
    let told = file.write_all(&vec![1; 1 << 20]).and_then(|()| file.sync_all());
    assert_eq!(told.unwrap_err().raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    fs::remove_file(m.path("a")).unwrap();
    drop(file);
    fs::write(m.path("b"), "room again").unwrap();
    assert_eq!(fs::read(m.path("b")).unwrap(), b"room again");
}

#[test]
fn append_only_files_take_what_is_appended_and_nothing_else() {
    let spy = Arc::new(Spy::default());
    let Some(m) = mount_late(Arc::clone(&spy) as _) else { return };
    let log = m.path("log");
    fs::write(&log, "one\n").unwrap();
    if needs_root() || !chattr("+a", &log) {
        return;
    }
    for _ in 0..2 {
        let mut file = OpenOptions::new().append(true).open(&log).unwrap();
        file.write_all(b"another\n").unwrap();
        file.sync_all().unwrap();
    }
    let size = || spy.lookup(spy.root(), b"log").unwrap().attr.size;
    assert_eq!(size(), 20);
    let (mut appended, file) = (
        OpenOptions::new().append(true).open(&log).unwrap(),
        OpenOptions::new().write(true).open(&log).unwrap(),
    );
    appended.write_all(b"last\n").unwrap();
    file.write_all_at(b"X", 0).unwrap();
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(Errno::PERM.raw_os_error()));
    assert_eq!(size(), 25, "what was appended came with it and is kept");
    drop((file, appended));
    assert!(eventually(|| fs::read(&log).unwrap() == b"one\nanother\nanother\nlast\n"));
    assert!(Command::new("touch").arg(&log).status().unwrap().success(), "the present time is allowed");
    assert!(!Command::new("touch").args(["-d", "2001-01-01"]).arg(&log).status().unwrap().success());
    fs::set_permissions(&log, fs::Permissions::from_mode(0o600)).unwrap_err();
}

#[test]
fn immutable_files_stay_as_they_are() {
    let spy = Arc::new(Spy::default());
    let Some(m) = mount_late(Arc::clone(&spy) as _) else { return };
    fs::write(m.path("a"), "kept").unwrap();
    if needs_root() || !chattr("+i", &m.path("a")) {
        return;
    }
    let file = OpenOptions::new().write(true).open(m.path("a")).unwrap();
    file.write_all_at(b"lost", 0).unwrap();
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(Errno::PERM.raw_os_error()));
    drop(file);
    assert!(eventually(|| fs::read(m.path("a")).unwrap() == b"kept"));
    let touched = Command::new("touch").args(["-m", "-d", "2001-01-01"]).arg(m.path("a")).status();
    assert!(!touched.unwrap().success());
}

#[test]
fn what_is_set_after_a_write_outlives_its_arrival() {
    let spy = Arc::new(Spy::default());
    let Some(m) = mount_late(Arc::clone(&spy) as _) else { return };
    if needs_root() {
        return;
    }
    let mut file = File::create(m.path("a")).unwrap();
    file.write_all(b"program").unwrap();
    // Version 2, effective, CAP_NET_RAW.
    let mut capability = [0; 20];
    (capability[0], capability[3], capability[5]) = (1, 2, 0x20);
    rustix::fs::fsetxattr(&file, "security.capability", &capability, rustix::fs::XattrFlags::empty())
        .unwrap();
    drop(file);
    assert_eq!(spy.count("write_back"), 1);
    let ino = spy.lookup(spy.root(), b"a").unwrap().attr.ino;
    assert_eq!(spy.getxattr(ino, b"security.capability").unwrap(), capability);
}

#[test]
fn a_change_of_owner_to_nobody_takes_set_id_bits() {
    let Some(m) = mount_late(Arc::new(Model::new())) else { return };
    if needs_root() {
        return;
    }
    fs::write(m.path("a"), "").unwrap();
    fs::set_permissions(m.path("a"), fs::Permissions::from_mode(0o6777)).unwrap();
    rustix::fs::chown(m.path("a"), None, None).unwrap();
    assert_eq!(fs::metadata(m.path("a")).unwrap().mode() & 0o7777, 0o777);
}

#[test]
fn whoever_may_write_need_not_own_the_file() {
    if needs_root() {
        return;
    }
    let Some(m) = mount_late(Arc::new(Model::new())) else { return };
    fs::write(m.path("a"), "").unwrap();
    fs::set_permissions(m.path("a"), fs::Permissions::from_mode(0o666)).unwrap();
    append_as_nobody(&m.path("a"));
    assert_eq!(fs::read(m.path("a")).unwrap(), b"theirs\n");
}

#[test]
fn set_id_bits_fall_when_others_write() {
    if needs_root() {
        return;
    }
    let Some(m) = mount_late(Arc::new(Model::new())) else { return };
    fs::write(m.path("a"), "").unwrap();
    fs::set_permissions(m.path("a"), fs::Permissions::from_mode(0o6777)).unwrap();
    append_as_nobody(&m.path("a"));
    assert_eq!(fs::metadata(m.path("a")).unwrap().mode() & 0o7777, 0o777);
}

#[test]
fn groups_and_orders_are_refused() {
    let Some(m) = mount_late(Arc::new(Spy::default())) else { return };
    let script = format!(
        "{}\nassert version()[1] == 0\nfails(errno.EOPNOTSUPP, create)\nfails(errno.EOPNOTSUPP, order_begin)",
        include_str!("groups.py")
    );
    match Command::new("python3").arg("-c").arg(script).arg(m.root()).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(_) => println!("skipped: python3 is missing"),
    }
}

#[test]
fn what_promises_more_is_refused_together_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let late = MountOptions { writeback_cache: true, ..options(dir.path()) };
    for (word, also) in [
        ("`sync`", MountOptions { sync: true, ..late.clone() }),
        ("`fsync=ordered`", MountOptions { ordered_fsync: true, ..late.clone() }),
    ] {
        let refused = Mount::new(Arc::new(Model::new()), &also).expect_err("it must be refused").to_string();
        assert!(refused.contains("`writeback_cache`") && refused.contains(word), "{refused}");
    }
}
