//! A panicking operation costs its own request and all later changes, never the mount: nothing hangs, other
//! threads are served, and nothing that the panic half changed is made stable.

use std::fs::{self, File};
use std::io::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fstitch_core::FileSystem;
use fstitch_fuse::MountError;
use rustix::io::Errno;

use crate::harness::{Mounted, mount_with};
use crate::spy::Spy;

fn mounted(workers: usize) -> Option<(Arc<Spy>, Mounted)> {
    let spy = Arc::new(Spy::default());
    let fs = Arc::clone(&spy) as Arc<dyn FileSystem>;
    let m = mount_with(fs, |options| options.workers = workers)?;
    Some((spy, m))
}

#[track_caller]
fn expect<T: std::fmt::Debug>(result: Result<T, Error>, errno: Errno) {
    assert_eq!(result.unwrap_err().raw_os_error(), Some(errno.raw_os_error()));
}

fn break_it(spy: &Spy, operation: &'static str) {
    *spy.broken.lock().unwrap() = Some(operation);
}

#[test]
fn after_a_panic_changes_are_refused_and_reading_goes_on() {
    let Some((spy, m)) = mounted(1) else { return };
    spy.abandons.store(true, Ordering::Relaxed);
    fs::write(m.path("a"), "kept").unwrap();
    break_it(&spy, "mkdir");
    expect(fs::create_dir(m.path("d")), Errno::IO);
    break_it(&spy, "");
    expect(fs::create_dir(m.path("d")), Errno::ROFS);
    expect(fs::write(m.path("b"), "new"), Errno::ROFS);
    expect(fs::remove_file(m.path("a")), Errno::ROFS);
    expect(File::open(m.root()).unwrap().sync_all(), Errno::IO);
    assert_eq!(fs::read_to_string(m.path("a")).unwrap(), "kept");
    assert_eq!(fs::read_dir(m.root()).unwrap().count(), 1);
    let text = m.end().unwrap_err().to_string();
    assert!(text.contains("a panic in mkdir(") && text.contains("\"d\""), "{text}");
    assert_eq!((spy.count("abandon"), spy.count("unmount")), (1, 1));
}

#[test]
fn what_cannot_be_abandoned_is_not_finished_either() {
    let Some((spy, m)) = mounted(2) else { return };
    fs::write(m.path("a"), "x").unwrap();
    break_it(&spy, "unlink");
    expect(fs::remove_file(m.path("a")), Errno::IO);
    break_it(&spy, "");
    assert!(matches!(m.end(), Err(MountError::Finish(_))));
    assert_eq!(spy.count("unmount"), 0, "it would make half a change stable");
}

#[test]
fn panics_while_looking_and_while_waiting_cost_no_thread() {
    let Some((spy, m)) = mounted(2) else { return };
    fs::write(m.path("a"), "x").unwrap();
    let file = File::open(m.path("a")).unwrap();
    break_it(&spy, "lookup");
    for no in 0..8 {
        expect(fs::metadata(m.path(&format!("absent-{no}"))), Errno::IO);
    }
    break_it(&spy, "fsync");
    for _ in 0..8 {
        expect(file.sync_all(), Errno::IO);
    }
    drop(file);
    break_it(&spy, "");
    assert_eq!(fs::metadata(m.path("absent")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    m.end().unwrap_err();
}

#[test]
fn others_are_served_while_one_panics() {
    let Some((spy, m)) = mounted(2) else { return };
    for no in 0..50 {
        fs::write(m.path(&format!("f{no}")), "x").unwrap();
    }
    break_it(&spy, "getxattr");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for no in 0..50 {
                let mut value = [0; 8];
                let got = rustix::fs::getxattr(m.path(&format!("f{no}")), "user.x", &mut value);
                assert_eq!(got, Err(Errno::IO));
            }
        });
        scope.spawn(|| {
            for no in 0..50 {
                assert_eq!(fs::read_to_string(m.path(&format!("f{no}"))).unwrap(), "x");
            }
        });
    });
    m.end().unwrap_err();
}

#[test]
fn a_panicking_end_is_an_error() {
    let Some((spy, m)) = mounted(1) else { return };
    break_it(&spy, "unmount");
    let text = m.end().unwrap_err().to_string();
    assert!(text.contains("a panic while unmounting"), "{text}");
}
