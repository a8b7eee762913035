//! What outlives what: files without names, cuts of power, full disks, several threads.
//!
//! What it prevents: room that nobody gives back, a file that is freed while somebody reads it, half an operation on a full disk.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{CALLER, Medium, check, create, mkdir, names};
use fstitch_core::num::to_u64;
use fstitch_core::{Errno, FileSystem, InodeNo, RenameMode, Result};
use fstitch_minixlld::{MinixLld, Options};

fn errno<T>(result: Result<T>) -> Option<Errno> {
    result.err().map(|error| error.errno())
}

/// Lists of the disk: the volume's own three, and inodes.
fn lists(fs: &MinixLld) -> usize {
    let (mut count, mut from) = (0, 0);
    while let Some(list) = fs.disk().next_list(from).unwrap() {
        (count, from) = (count + 1, list + 1);
    }
    count
}

fn open(fs: &MinixLld, dir: InodeNo, name: &[u8]) -> InodeNo {
    fs.mknod(&CALLER, dir, name, 0o100_644, 0).unwrap().attr.ino
}

#[test]
fn a_file_in_use_outlives_its_names() {
    let fs = Medium::new(1024, 16 << 20).mount();
    let ino = open(&fs, fs.root(), b"f");
    fs.write(&CALLER, ino, 0, b"still there").unwrap();
    fs.unlink(&CALLER, fs.root(), b"f").unwrap();
    check(&fs);
    // It is used on, while others come and go.
    for n in 0..20 {
        create(&fs, fs.root(), format!("o{n}").as_bytes());
    }
    fs.write(&CALLER, ino, 11, b", and longer").unwrap();
    let mut bytes = [0; 23];
    fs.read(ino, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"still there, and longer");
    assert_eq!(errno(fs.link(&CALLER, ino, fs.root(), b"g")), Some(Errno::NOENT));
    let before = lists(&fs);
    fs.forget(ino, 1);
    assert_eq!((errno(fs.getattr(ino)), lists(&fs)), (Some(Errno::STALE), before - 1));
    check(&fs);
}

#[test]
fn a_crash_leaves_nothing_of_files_without_names() {
    let medium = Medium::new(1024, 16 << 20);
    let fs = medium.mount();
    let (named, nameless) = (open(&fs, fs.root(), b"f"), open(&fs, fs.root(), b"g"));
    let dir = fs.mkdir(&CALLER, fs.root(), b"d", 0o755).unwrap().attr.ino;
    let temporary = fs.tmpfile(&CALLER, fs.root(), 0o600).unwrap().attr.ino;
    let linked = fs.tmpfile(&CALLER, fs.root(), 0o600).unwrap().attr.ino;
    for ino in [named, nameless, temporary, linked] {
        fs.write(&CALLER, ino, 0, &[1; 5000]).unwrap();
    }
    fs.unlink(&CALLER, fs.root(), b"g").unwrap();
    fs.rmdir(&CALLER, fs.root(), b"d").unwrap();
    fs.link(&CALLER, linked, fs.root(), b"l").unwrap();
    create(&fs, fs.root(), b"over");
    fs.rename(&CALLER, (fs.root(), b"over"), (fs.root(), b"f"), RenameMode::Replace).unwrap();
    check(&fs);
    fs.sync().unwrap();
    let cut = medium.cut();
    // Who only looks finds them in order, and frees none.
    let looking = cut.mount_with(Options { read_only: true, ..crate::support::options() }).unwrap();
    check(&looking);
    assert_eq!(errno(looking.getattr(nameless)), Some(Errno::STALE));
    assert_eq!(errno(looking.unlink(&CALLER, looking.root(), b"f")), Some(Errno::ROFS));
    let all = lists(&looking);
    drop(looking);
    let after = cut.mount();
    check(&after);
    assert_eq!(names(&after, after.root()), [b"f".to_vec(), b"l".to_vec()]);
    assert_eq!((all, lists(&after)), (9, 5));
    assert_eq!(after.getattr(linked).unwrap().size, 5000);
    // The others were freed, and not by the unmounting.
    assert!(
        [named, nameless, dir, temporary].iter().all(|ino| errno(after.getattr(*ino)) == Some(Errno::STALE))
    );
}

#[test]
fn unmounting_frees_what_has_no_name() {
    let medium = Medium::new(1024, 16 << 20);
    let fs = medium.mount();
    open(&fs, fs.root(), b"f");
    fs.unlink(&CALLER, fs.root(), b"f").unwrap();
    fs.unmount().unwrap();
    assert_eq!(errno(fs.mknod(&CALLER, fs.root(), b"x", 0o100_644, 0)), Some(Errno::ROFS));
    let fs = medium.mount_with(Options { read_only: true, ..crate::support::options() }).unwrap();
    assert_eq!(lists(&fs), 3);
}

#[test]
fn an_abandoned_volume_writes_nothing_more() {
    let medium = Medium::new(1024, 16 << 20);
    let fs = medium.mount();
    create(&fs, fs.root(), b"f");
    fs.sync().unwrap();
    create(&fs, fs.root(), b"g");
    let before = medium.device.image();
    fs.abandon("somebody wants to").unwrap();
    assert_eq!(errno(fs.sync()), Some(Errno::ROFS));
    assert_eq!(errno(fs.fsync(fs.root(), false)), Some(Errno::ROFS));
    assert_eq!(errno(fs.unlink(&CALLER, fs.root(), b"f")), Some(Errno::ROFS));
    fs.unmount().unwrap();
    assert!(medium.device.image() == before);
    assert_eq!(names(&medium.mount(), InodeNo(2)), [b"f".to_vec()]);
}

#[test]
fn a_full_disk_refuses_and_leaves_nothing_half_done() {
    let medium = Medium::with_segments(4096, 512 << 10, 16 << 20);
    let fs = medium.mount();
    let big = create(&fs, fs.root(), b"big");
    let data: Vec<u8> = (0..20_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let mut written = 0;
    // A write that was cut short leaves no room for its next block, but perhaps for a smaller unit.
    let refusal = loop {
        match fs.write(&CALLER, big, to_u64(written), &data[written..]) {
            Ok(more) => written += more,
            Err(error) => break error.errno(),
        }
        assert_eq!(fs.getattr(big).unwrap().size, to_u64(written));
    };
    assert_eq!(refusal, Errno::NOSPC);
    assert!(written > 4 << 20 && written < data.len(), "{written}");
    assert_eq!(fs.getattr(big).unwrap().size, to_u64(written));
    let before = names(&fs, fs.root());
    let refused: Vec<Option<Errno>> = vec![
        errno(fs.mknod(&CALLER, fs.root(), b"new", 0o100_644, 0)),
        errno(fs.mkdir(&CALLER, fs.root(), b"dir", 0o755)),
        errno(fs.symlink(&CALLER, fs.root(), b"link", b"target")),
        errno(fs.rename(&CALLER, (fs.root(), b"big"), (fs.root(), b"small"), RenameMode::Replace)),
    ];
    assert!(refused.contains(&Some(Errno::NOSPC)), "{refused:?}");
    check(&fs);
    if refused.iter().all(Option::is_some) {
        assert_eq!(names(&fs, fs.root()), before);
    }
    fs.sync().unwrap();
    let mut bytes = vec![0; written];
    assert_eq!(fs.read(big, 0, &mut bytes).unwrap(), written);
    assert!(bytes == data[..written]);
    // A name that is moved takes no room, and a removal finds some on a full disk.
    let name: &[u8] = if refused[3].is_none() { b"small" } else { b"big" };
    fs.unlink(&CALLER, fs.root(), name).unwrap();
    assert_eq!(errno(fs.getattr(big)), Some(Errno::STALE));
    fs.mkdir(&CALLER, fs.root(), b"dir", 0o755).unwrap();
    check(&fs);
}

#[test]
fn threads_see_whole_operations() {
    let medium = Medium::new(1024, 64 << 20);
    let fs = medium.mount();
    let (one, two) = (mkdir(&fs, fs.root(), b"one"), mkdir(&fs, fs.root(), b"two"));
    create(&fs, one, b"wanderer");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..300 {
                fs.rename(&CALLER, (one, b"wanderer"), (two, b"wanderer"), RenameMode::Replace).unwrap();
                fs.rename(&CALLER, (two, b"wanderer"), (one, b"wanderer"), RenameMode::Replace).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        scope.spawn(|| {
            for n in 0..100 {
                let ino = open(&fs, two, b"passing");
                fs.write(&CALLER, ino, 0, &vec![1; n * 50]).unwrap();
                fs.unlink(&CALLER, two, b"passing").unwrap();
                fs.forget(ino, 1);
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for name in names(&fs, two) {
                        if let Ok(entry) = fs.lookup(two, &name) {
                            let mut bytes = [0; 64];
                            fs.read(entry.attr.ino, 0, &mut bytes).unwrap();
                            fs.forget(entry.attr.ino, 1);
                        }
                    }
                    fs.fsync(one, false).unwrap();
                }
            });
        }
    });
    check(&fs);
    assert_eq!((names(&fs, one), names(&fs, two)), (vec![b"wanderer".to_vec()], vec![]));
    assert_eq!(lists(&fs), 6);
}
