//! A mount's life: refusals with remedies, durability, the orderly end.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fstitch_core::FileSystem;
use fstitch_fs::model::Model;
use fstitch_fuse::{Mount, MountError, MountOptions, Transport, UnmountError, UnmountOnSignal, remount};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{is_root, mount, mount_with, needs_root, options};
use crate::spy::Spy;

fn spied(
    change: impl FnOnce(&mut fstitch_fuse::MountOptions),
) -> Option<(Arc<Spy>, crate::harness::Mounted)> {
    let spy = Arc::new(Spy::default());
    let m = mount_with(Arc::clone(&spy) as Arc<dyn FileSystem>, change)?;
    Some((spy, m))
}

fn refusal(path: &std::path::Path) -> MountError {
    Mount::new(Arc::new(Model::new()), &options(path)).expect_err("this must be refused")
}

#[test]
fn impossible_mount_points_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    assert!(matches!(refusal(&missing), MountError::NoMountpoint(at) if at == missing));
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(refusal(&file), MountError::NotADirectory(at) if at == file));
}

#[test]
fn a_transport_that_cannot_be_had_is_refused_and_left_aside_if_nobody_insists() {
    let parameter = fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    if parameter.is_ok_and(|value| value.trim() == "Y") {
        // Every other test of this run comes through it.
        return;
    }
    let Some(m) = mount_with(Arc::new(Model::new()), |options| options.transport = Transport::Auto) else {
        return;
    };
    fs::write(m.path("a"), "through the device").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let insists = MountOptions { transport: Transport::IoUring, ..options(dir.path()) };
    let error = Mount::new(Arc::new(Model::new()), &insists).expect_err("the kernel does not offer it");
    assert!(matches!(error, MountError::NoIoUring(_)), "{error}");
    assert!(error.to_string().contains("enable_uring"), "it names the remedy: {error}");
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!table.contains(dir.path().to_str().unwrap()), "nothing stays mounted");
}

#[test]
fn mounting_twice_on_one_place_is_refused() {
    let Some(m) = mount() else { return };
    assert!(matches!(refusal(m.root()), MountError::AlreadyMounted(_)));
}

#[test]
fn the_mount_table_shows_type_and_source() {
    let Some(m) = mount() else { return };
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let at = m.root().to_str().unwrap();
    let line = table.lines().find(|line| line.contains(at)).unwrap();
    assert!(line.starts_with("test\\040image ") && line.contains(" fuse.fstitch "), "{line}");
}

#[test]
fn read_only_mounts_refuse_changes() {
    let Some(m) = mount_with(Arc::new(Model::new()), |options| options.read_only = true) else { return };
    let refused = fs::write(m.path("a"), "").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
}

#[test]
fn remounting_switches_changes_off_and_on() {
    let Some(m) = mount() else { return };
    if needs_root() {
        return;
    }
    let mut wished = options(m.root());
    wished.read_only = true;
    remount(&wished).unwrap();
    assert!(fs::write(m.path("a"), "").is_err());
    wished.read_only = false;
    remount(&wished).unwrap();
    fs::write(m.path("a"), "").unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    assert!(matches!(remount(&options(elsewhere.path())), Err(MountError::NoMountpoint(_))));
}

#[test]
fn the_end_waits_for_the_file_system() {
    let Some((spy, m)) = spied(|_| {}) else { return };
    fs::write(m.path("a"), "x").unwrap();
    assert_eq!(spy.count("unmount"), 0);
    m.end().unwrap();
    assert_eq!(spy.count("unmount"), 1);
}

#[test]
fn a_failing_end_is_reported() {
    let Some((spy, m)) = spied(|_| {}) else { return };
    spy.unmount_fails.store(true, Ordering::Relaxed);
    assert!(matches!(m.end(), Err(MountError::Finish(_))));
}

#[test]
fn a_mount_in_use_stays_until_it_is_detached() {
    let Some(m) = mount() else { return };
    let mut file = File::create(m.path("a")).unwrap();
    let unmounter = m.unmounter();
    assert!(matches!(unmounter.unmount(), Err(UnmountError::Busy(_))));
    unmounter.detach().unwrap();
    file.write_all(b"still served").unwrap();
    drop(file);
    m.join().unwrap();
    unmounter.unmount().unwrap();
}

#[test]
fn fsync_reaches_the_file_system_and_the_root_means_everything() {
    let Some((spy, m)) = spied(|_| {}) else { return };
    let mut file = File::create(m.path("a")).unwrap();
    file.write_all(b"x").unwrap();
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    assert_eq!((spy.count("fsync"), spy.count("sync")), (2, 0));
    fs::create_dir(m.path("d")).unwrap();
    File::open(m.path("d")).unwrap().sync_all().unwrap();
    assert_eq!((spy.count("fsync"), spy.count("sync")), (3, 0));
    File::open(m.root()).unwrap().sync_all().unwrap();
    assert_eq!((spy.count("fsync"), spy.count("sync")), (3, 1));
}

#[test]
fn synchronous_descriptors_make_each_write_stable() {
    let Some((spy, m)) = spied(|_| {}) else { return };
    for (no, flag) in [(1, OFlags::SYNC), (2, OFlags::DSYNC)] {
        let flag = i32::try_from(flag.bits()).unwrap();
        let mut file =
            File::options().create(true).append(true).custom_flags(flag).open(m.path("a")).unwrap();
        file.write_all(b"x").unwrap();
        assert!(spy.count("fsync") >= no, "write {no}");
    }
}

#[test]
fn synchronous_mounts_make_every_change_stable() {
    let Some((spy, m)) = spied(|options| options.sync = true) else { return };
    let steps: [&dyn Fn(); 5] = [
        &|| fs::create_dir(m.path("d")).unwrap(),
        &|| drop(File::create(m.path("a")).unwrap()),
        &|| File::options().append(true).open(m.path("a")).unwrap().write_all(b"x").unwrap(),
        &|| fs::rename(m.path("a"), m.path("b")).unwrap(),
        &|| fs::remove_file(m.path("b")).unwrap(),
    ];
    for (no, step) in steps.into_iter().enumerate() {
        let before = spy.count("sync") + spy.count("fsync");
        step();
        assert!(spy.count("sync") + spy.count("fsync") > before, "step {no}");
    }
}

#[test]
fn a_signal_unmounts() {
    let Some((spy, m)) = spied(|_| {}) else { return };
    let signals = UnmountOnSignal::install(vec![m.unmounter()], |_| {}).unwrap();
    kill_process(rustix::process::getpid(), Signal::TERM).unwrap();
    m.join().unwrap();
    drop(signals);
    assert_eq!(spy.count("unmount"), 1);
}

/// The example server as a process of its own, in the directory where cargo puts it.
fn server() -> Option<PathBuf> {
    let own = std::env::current_exe().unwrap();
    let found = own.parent()?.parent()?.join("examples/memory");
    if !found.exists() {
        println!("skipped: the example `memory` is not built");
    }
    found.exists().then_some(found)
}

fn start(server: &PathBuf, at: &std::path::Path) -> Option<Child> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let transport = std::env::var("FSTITCH_TRANSPORT").unwrap_or_else(|_| "device".to_owned());
    let words = format!("uid={uid},gid={gid},transport={transport}");
    let child = Command::new(server).arg(at).args(["-o", &words]).stderr(Stdio::null()).spawn().unwrap();
    let table = || fs::read_to_string("/proc/self/mounts").unwrap();
    let mounted = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        table().contains(at.to_str().unwrap())
    });
    if !mounted {
        println!("skipped: the example cannot mount here");
    }
    mounted.then_some(child)
}

#[test]
fn what_a_killed_server_leaves_is_named() {
    let (Some(server), dir) = (server(), tempfile::tempdir().unwrap()) else { return };
    let Some(mut child) = start(&server, dir.path()) else { return };
    child.kill().unwrap();
    child.wait().unwrap();
    let error = refusal(dir.path());
    assert!(matches!(&error, MountError::DeadMount(_)), "{error}");
    assert!(error.to_string().contains("umount"));
    // What the message advises.
    let program = if is_root() { "umount" } else { "fusermount3" };
    let advised = Command::new(program).args(["-u"].iter().filter(|_| !is_root())).arg(dir.path()).status();
    assert!(advised.unwrap().success());
}

#[test]
fn a_server_in_use_ends_after_the_last_file_is_closed() {
    let (Some(server), dir) = (server(), tempfile::tempdir().unwrap()) else { return };
    let Some(mut child) = start(&server, dir.path()) else { return };
    let mut file = File::create(dir.path().join("a")).unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(child.try_wait().unwrap().is_none(), "it waits for the open file");
    file.write_all(b"still served").unwrap();
    drop(file);
    assert!(child.wait().unwrap().success());
}

/// Whether this process asks for a latency of nothing.
fn keeps_awake() -> bool {
    let mut files =
        fs::read_dir("/proc/self/fd").unwrap().filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    files.any(|file| file == std::path::Path::new("/dev/cpu_dma_latency"))
}

#[test]
fn processors_are_kept_awake_while_requests_come() {
    if let Err(e) = fstitch_fuse::keep_awake() {
        println!("skipped: only root may keep processors from sleeping by /dev/cpu_dma_latency: {e}");
        return;
    }
    let Some(m) = mount_with(Arc::new(Model::new()), |options| options.awake = fstitch_fuse::AwakeMode::On)
    else {
        return;
    };
    let becomes = |wanted: bool, ask: &dyn Fn()| {
        (0..500).any(|_| {
            ask();
            std::thread::sleep(Duration::from_millis(5));
            keeps_awake() == wanted
        })
    };
    for name in ["a", "b"] {
        assert!(becomes(true, &|| fs::write(m.path(name), "x").unwrap()));
        assert!(becomes(false, &|| ()));
    }
}
