//! A mount whose medium or mount point is somebody else's as well.
//!
//! What it prevents: success that is reported for a medium that is not there any more, and waiting without a word.

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::{Mounted, PROGRAM, Place, fstitch, needs, needs_root};

#[test]
fn a_truncated_image_fails_every_sync_and_the_unmount() {
    for kind in ["ext2", "ext3"] {
        let place = Place::new();
        let (image, at) = (place.text("a.img"), place.directory("m"));
        fstitch(&format!("mkfs {kind} -q {image} 32M")).ok();
        let Some(mounted) = Mounted::new("", &image, &at) else { return };
        let file = mounted.path().join("file");
        fs::write(&file, vec![7; 1 << 20]).unwrap();
        File::open(&at).unwrap().sync_all().unwrap();
        File::options().write(true).open(&image).unwrap().set_len(1 << 20).unwrap();
        // Nothing has to be written: there is nothing left to keep the promise with.
        assert_eq!(File::open(&at).unwrap().sync_all().unwrap_err().raw_os_error(), Some(5), "{kind}");
        assert_eq!(File::open(&file).unwrap().sync_all().unwrap_err().raw_os_error(), Some(5), "{kind}");
        assert!(fs::write(mounted.path().join("new"), "x").is_err(), "{kind}");
        let status = fstitch(&format!("status {at}"));
        assert!(status.code == 1 && status.out.contains("has been truncated"), "{status:?}");
        let ended = fstitch(&format!("umount {at}"));
        let named = ended.err.contains("a.img has been truncated") && ended.err.contains("1048576 bytes");
        assert!(ended.code == 1 && named && ended.err.contains("33554432"), "{ended:?}");
        assert_eq!(fs::metadata(&image).unwrap().len(), 1 << 20, "nothing was written behind its end");
    }
}

#[test]
fn who_holds_a_mount_in_another_namespace_is_named() {
    if !needs_root() || !needs("unshare") {
        return;
    }
    let place = Place::new();
    let (image, at) = (place.volume("a.img"), place.directory("m"));
    let Some(mounted) = Mounted::new("", &image, &at) else { return };
    fs::write(mounted.path().join("file"), "x").unwrap();
    let holder = Command::new("unshare").args(["-m", "--propagation=private", "sleep", "600"]).spawn();
    let mut holder = holder.unwrap();
    // It has its copy of the mounts when it has become another program.
    let is_ready =
        || fs::read_to_string(format!("/proc/{}/comm", holder.id())).is_ok_and(|name| name == "sleep\n");
    while !is_ready() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let ended = fstitch(&format!("umount --timeout 2s {at}"));
    assert_eq!(ended.code, 3, "{ended:?}");
    let named = format!("process {} (sleep)", holder.id());
    assert!(ended.err.contains(&named) && ended.err.contains("waiting until"), "{ended:?}");
    assert!(ended.err.contains("its daemon goes on"), "{ended:?}");
    // The volume is still in use, and is whole when the holder has gone.
    assert_ne!(fstitch(&format!("fsck -fy {image}")).code, 0);
    holder.kill().unwrap();
    holder.wait().unwrap();
    drop(mounted);
    let free = || fstitch(&format!("fsck -fn {image}")).code == 0;
    assert!((0..500).any(|_| free() || {
        std::thread::sleep(Duration::from_millis(20));
        false
    }));
}

#[test]
fn an_unmount_waits_until_the_other_namespace_has_gone() {
    if !needs_root() || !needs("unshare") {
        return;
    }
    let place = Place::new();
    let (image, at) = (place.volume("a.img"), place.directory("m"));
    let Some(_mounted) = Mounted::new("", &image, &at) else { return };
    let mut holder =
        Command::new("unshare").args(["-m", "--propagation=private", "sleep", "3"]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let ended = Command::new(PROGRAM).args(["umount", &at]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stderr).contains("(sleep)"), "{ended:?}");
    holder.wait().unwrap();
    fstitch(&format!("fsck -fn {image}")).ok();
}
