//! What volumes keep over mounts and cuts.

use std::sync::Arc;

use fstitch_core::{Errno, FileSystem, MemDevice};

use crate::rig::{CALLER, contents, file, is_clean, made, mount, names};

#[test]
fn a_large_directory_lists_every_name_once_while_it_changes() {
    let device = made(16_384);
    let fs = mount(&device);
    let dir = fs.mkdir(&CALLER, fs.root(), b"d", 0o755).unwrap().attr.ino;
    for number in 0..20_000 {
        let name = format!("name-{number}");
        let made = fs.mknod(&CALLER, dir, name.as_bytes(), 0o100_600, 0).unwrap();
        fs.forget(made.attr.ino, 1);
    }
    fs.unmount().unwrap();
    is_clean(&device);
    let fs = mount(&device);
    let dir = fs.lookup(fs.root(), b"d").unwrap().attr.ino;
    let mut seen = std::collections::BTreeSet::new();
    let mut cookie = 0;
    loop {
        let mut part = Vec::new();
        fs.readdir(dir, cookie, &mut |entry| {
            part.push((entry.name.to_vec(), entry.next));
            part.len() < 500
        })
        .unwrap();
        part.truncate(499);
        let Some((_, next)) = part.last() else { break };
        cookie = *next;
        for (name, _) in &part {
            assert!(seen.insert(name.clone()), "{name:?} is listed twice");
        }
        // The directory doubles, and loses names, meanwhile.
        for number in 0..20 {
            let new = format!("later-{cookie}-{number}");
            let made = fs.mknod(&CALLER, dir, new.as_bytes(), 0o100_600, 0).unwrap();
            fs.forget(made.attr.ino, 1);
        }
    }
    let of_before = seen.iter().filter(|name| name.starts_with(b"name-")).count();
    assert_eq!(of_before, 20_000);
    for name in names(&fs, dir) {
        fs.unlink(&CALLER, dir, &name).unwrap();
    }
    fs.forget(dir, 1);
    fs.rmdir(&CALLER, fs.root(), b"d").unwrap();
    fs.unmount().unwrap();
    is_clean(&device);
}

/// What is written and not committed is not there; what was synced is, without an unmount.
#[test]
fn a_cut_leaves_the_last_root() {
    let device = made(1024);
    let fs = mount(&device);
    let ino = file(&fs, fs.root(), "a", b"first").unwrap();
    fs.fsync(ino, false).unwrap();
    fs.write(&CALLER, ino, 0, b"other, and longer").unwrap();
    file(&fs, fs.root(), "b", &[5; 100_000]).unwrap();
    let left = Arc::new(MemDevice::from_image(4096, device.image()));
    is_clean(&left);
    let again = mount(&left);
    assert!(again.was_unclean());
    assert_eq!(names(&again, again.root()), [b"a"]);
    let found = again.lookup(again.root(), b"a").unwrap().attr.ino;
    assert_eq!(contents(&again, found).unwrap(), b"first");
}

/// A file without a name is gone after a cut, and its room with it.
#[test]
fn files_without_names_end_with_the_mount() {
    let device = made(1024);
    let fs = mount(&device);
    let free = fs.statfs().unwrap().blocks_free;
    let held = fs.mknod(&CALLER, fs.root(), b"held", 0o100_644, 0).unwrap().attr.ino;
    let other = fs.tmpfile(&CALLER, fs.root(), 0o600).unwrap().attr.ino;
    fs.write(&CALLER, held, 0, &[1; 200_000]).unwrap();
    fs.write(&CALLER, other, 0, &[2; 200_000]).unwrap();
    fs.unlink(&CALLER, fs.root(), b"held").unwrap();
    fs.sync().unwrap();
    assert_eq!(contents(&fs, held).unwrap(), vec![1; 200_000]);
    let left = Arc::new(MemDevice::from_image(4096, device.image()));
    is_clean(&left);
    let again = mount(&left);
    assert_eq!(again.getattr(held).unwrap_err().errno(), Errno::STALE);
    assert!(again.statfs().unwrap().blocks_free + 4 >= free);
    again.unmount().unwrap();
    is_clean(&left);
    fs.unmount().unwrap();
    is_clean(&device);
}

/// One of several files without names ends, the first that lost its name; the others stay in the list of these.
#[test]
fn a_file_without_a_name_ends_beside_others() {
    for ended in 0..3 {
        let device = made(1024);
        let fs = mount(&device);
        let free = fs.statfs().unwrap().blocks_free;
        let inos = ["a", "b", "c"].map(|name| file(&fs, fs.root(), name, &[1; 50_000]).unwrap());
        for name in [b"a", b"b", b"c"] {
            // It is held.
            fs.lookup(fs.root(), name).unwrap();
            fs.unlink(&CALLER, fs.root(), name).unwrap();
        }
        fs.sync().unwrap();
        let held = fs.statfs().unwrap().blocks_free;
        fs.forget(inos[ended], 1);
        fs.sync().unwrap();
        assert!(fs.statfs().unwrap().blocks_free >= held + 12, "{ended}: its room");
        let left = Arc::new(MemDevice::from_image(4096, device.image()));
        is_clean(&left);
        let again = mount(&left);
        assert!(again.statfs().unwrap().blocks_free + 4 >= free, "{ended}");
        again.unmount().unwrap();
        is_clean(&left);
        drop(fs);
    }
}

/// A cache of 4 MiB takes a file of many times that, sparse and dense.
#[test]
fn files_are_larger_than_memory() {
    let device = made(16_384);
    let fs = mount(&device);
    let ino = fs.mknod(&CALLER, fs.root(), b"large", 0o100_644, 0).unwrap().attr.ino;
    for part in 0..40_u8 {
        let bytes = vec![part; 1 << 20];
        assert_eq!(fs.write(&CALLER, ino, u64::from(part) << 20, &bytes).unwrap(), 1 << 20);
    }
    let far = 1 << 50;
    fs.write(&CALLER, ino, far, b"far").unwrap();
    fs.unmount().unwrap();
    is_clean(&device);
    let fs = mount(&device);
    let ino = fs.lookup(fs.root(), b"large").unwrap().attr.ino;
    let mut bytes = vec![0; 1 << 20];
    for part in 0..40_u8 {
        fs.read(ino, u64::from(part) << 20, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == part), "{part}");
    }
    assert_eq!(fs.seek(ino, 40 << 20, fstitch_core::SeekFrom::Data).unwrap(), far);
    assert_eq!(fs.read(ino, far, &mut bytes).unwrap(), 3);
    fs.unlink(&CALLER, fs.root(), b"large").unwrap();
    fs.forget(ino, 1);
    fs.unmount().unwrap();
    is_clean(&device);
}
