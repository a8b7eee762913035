//! Compressed files take fewer blocks, and are what was written to them.

use std::sync::Arc;

use fstitch_core::{
    Errno, FallocateMode, FileSystem, InodeFlags, InodeNo, MemDevice, Seed, SeekFrom, SetAttr,
};
use fstitch_fs::waffle::{Root, Waffle};

use crate::rig::{CALLER, contents, file, is_clean, made, made_with, mount, noise, text};

const CLUSTER: u64 = 1 << 16;

fn blocks(fs: &Waffle, ino: InodeNo) -> u64 {
    fs.getattr(ino).unwrap().blocks / 8
}

#[test]
fn what_compresses_takes_fewer_blocks() {
    let device = made_with(2048, true);
    let fs = mount(&device);
    let bytes = text(1_000_003, 1);
    let ino = file(&fs, fs.root(), "text", &bytes).unwrap();
    let other = noise(1_000_003, 2);
    let random = file(&fs, fs.root(), "noise", &other).unwrap();
    let small = file(&fs, fs.root(), "small", b"less than two blocks").unwrap();
    let dir = fs.mkdir(&CALLER, fs.root(), b"dir", 0o755).unwrap().attr.ino;
    assert!(fs.flags(dir).unwrap().has(InodeFlags::COMPR), "directories pass it on");
    let inner = file(&fs, dir, "inner", &vec![7; 200_000]).unwrap();
    let mut fs = fs;
    for _ in 0..2 {
        // The text has 3.4 bits a byte, and what is all the same a block for each of its four clusters.
        assert!((95..130).contains(&blocks(&fs, ino)), "{} of 245 blocks", blocks(&fs, ino));
        assert_eq!((blocks(&fs, random), blocks(&fs, small), blocks(&fs, inner)), (245, 1, 4));
        assert!(contents(&fs, ino).unwrap() == bytes && contents(&fs, random).unwrap() == other);
        for (at, len) in
            [(0, 1), (65_535, 2), (4095, 4098), (131_072, 65_536), (999_999, 4), (70_000, 300_000)]
        {
            let mut piece = vec![1; len];
            let read = fs.read(ino, at as u64, &mut piece).unwrap();
            assert!(read == len && piece == bytes[at..at + len], "{len} bytes at {at}");
        }
        fs.unmount().unwrap();
        is_clean(&device);
        fs = mount(&device);
    }
    assert_eq!(Root::read(&*device).unwrap().incompat, 2);
    let free = fs.statfs().unwrap().blocks_free;
    for name in [&b"text"[..], b"noise", b"small"] {
        fs.unlink(&CALLER, fs.root(), name).unwrap();
    }
    fs.sync().unwrap();
    assert!(fs.statfs().unwrap().blocks_free >= free + 245 + 95, "what they had is free");
    fs.unmount().unwrap();
    is_clean(&device);
}

/// `chattr +c` and `-c` say what becomes of what is written from then on.
#[test]
fn files_say_whether_they_are_compressed() {
    let device = made(1024);
    let fs = mount(&device);
    let bytes = text(300_000, 1);
    let ino = file(&fs, fs.root(), "a", &bytes).unwrap();
    assert_eq!((blocks(&fs, ino), Root::read(&*device).unwrap().incompat), (74, 0));
    fs.set_flags(&CALLER, ino, InodeFlags(InodeFlags::COMPR)).unwrap();
    assert_eq!(blocks(&fs, ino), 74, "nothing was written");
    fs.write(&CALLER, ino, 0, &bytes).unwrap();
    let packed = blocks(&fs, ino);
    assert!(packed < 45, "{packed}");
    fs.set_flags(&CALLER, ino, InodeFlags(0)).unwrap();
    fs.write(&CALLER, ino, CLUSTER, &bytes[65_536..131_072]).unwrap();
    let mixed = blocks(&fs, ino);
    assert!(mixed > packed + 7 && mixed < 74, "{mixed}");
    assert!(contents(&fs, ino).unwrap() == bytes);
    fs.unmount().unwrap();
    is_clean(&device);
    let fs = mount(&device);
    let ino = fs.lookup(fs.root(), b"a").unwrap().attr.ino;
    assert!(contents(&fs, ino).unwrap() == bytes && blocks(&fs, ino) == mixed);
}

/// A file that grows by small writes is compressed by commits, as one that is written at once.
#[test]
fn what_is_written_in_parts_is_compressed_by_commits() {
    let device = made_with(2048, true);
    let fs = mount(&device);
    let bytes = text(600_000, 1);
    let ino = file(&fs, fs.root(), "a", b"").unwrap();
    let mut most = 0;
    for (number, piece) in bytes.chunks(3000).enumerate() {
        fs.write(&CALLER, ino, number as u64 * 3000, piece).unwrap();
        if number % 9 == 0 {
            fs.sync().unwrap();
        }
        most = most.max(blocks(&fs, ino));
    }
    fs.sync().unwrap();
    let packed = blocks(&fs, ino);
    assert!(packed < 85 && most < 110, "{packed} blocks, {most} on the way");
    assert!(contents(&fs, ino).unwrap() == bytes);
    is_clean(&Arc::new(MemDevice::from_image(4096, device.image())));
    // A change in the middle of each cluster.
    let mut changed = bytes;
    for cluster in 0..9 {
        let at = cluster * 65_536 + 30_000;
        changed[at..at + 10].copy_from_slice(b"0123456789");
        fs.write(&CALLER, ino, at as u64, b"0123456789").unwrap();
    }
    assert!(blocks(&fs, ino) > 140, "a part of a cluster cannot change");
    fs.sync().unwrap();
    assert!(blocks(&fs, ino) < packed + 10);
    assert!(contents(&fs, ino).unwrap() == changed);
    fs.unmount().unwrap();
    is_clean(&device);
}

#[test]
fn holes_are_where_nothing_was_written() {
    let device = made_with(2048, true);
    let fs = mount(&device);
    let ino = file(&fs, fs.root(), "a", &text(230_000, 1)).unwrap();
    fs.write(&CALLER, ino, 1 << 20, &text(100_000, 2)).unwrap();
    let seek = |at, whence| fs.seek(ino, at, whence).map_err(|error| error.errno());
    let end = (1 << 20) + 100_000;
    for round in 0..2 {
        assert_eq!(seek(0, SeekFrom::Data), Ok(0), "round {round}");
        assert_eq!(seek(50_000, SeekFrom::Data), Ok(50_000));
        assert_eq!(seek(0, SeekFrom::Hole), Ok(233_472), "what a cluster holds is data, and no more");
        assert_eq!(seek(150_000, SeekFrom::Hole), Ok(233_472));
        assert_eq!(seek(5 * CLUSTER, SeekFrom::Data), Ok(1 << 20));
        assert_eq!(seek(1 << 20, SeekFrom::Hole), Ok(end));
        assert_eq!(seek(end, SeekFrom::Data), Err(Errno::NXIO));
        fs.sync().unwrap();
    }
    let before = blocks(&fs, ino);
    fs.fallocate(&CALLER, ino, 10, 180_000, FallocateMode::PunchHole).unwrap();
    fs.sync().unwrap();
    assert_eq!(seek(0, SeekFrom::Data), Ok(0));
    assert_eq!(seek(CLUSTER, SeekFrom::Data), Ok(2 * CLUSTER + 45_056));
    assert!(blocks(&fs, ino) < before);
    fs.unmount().unwrap();
    is_clean(&device);
}

/// Random changes of one file, many of them at clusters' borders, with commits, remounts and cuts between.
#[test]
fn files_are_what_was_written_to_them() {
    for number in 0..40 {
        let mut seed = Seed::new(number);
        let device = made_with(2048, true);
        let mut fs = mount(&device);
        let mut model: Vec<u8> = Vec::new();
        let ino = file(&fs, fs.root(), "a", b"").unwrap();
        for step in 0..60 {
            let border = seed.below(8) << 15;
            let at = match seed.below(3) {
                0 => border,
                1 => border + seed.below(9000),
                _ => seed.below(300_000),
            };
            let len =
                [1, 4096, 65_536, 65_535, 131_072, 30_000, 200_000][usize::try_from(seed.below(7)).unwrap()];
            let (from, end) = (usize::try_from(at).unwrap(), usize::try_from(at).unwrap() + len);
            match seed.below(9) {
                0..=3 => {
                    let bytes = if seed.below(4) == 0 { noise(len, step) } else { text(len, step) };
                    assert_eq!(fs.write(&CALLER, ino, at, &bytes).unwrap(), len);
                    model.resize(model.len().max(end), 0);
                    model[from..end].copy_from_slice(&bytes);
                }
                4 => {
                    let set = SetAttr { size: Some(at), ..SetAttr::default() };
                    fs.setattr(&CALLER, ino, &set).unwrap();
                    model.resize(from, 0);
                }
                5 => {
                    fs.fallocate(&CALLER, ino, at, len as u64, FallocateMode::PunchHole).unwrap();
                    let end = end.min(model.len());
                    model[from.min(end)..end].fill(0);
                }
                6 => {
                    fs.fallocate(&CALLER, ino, at, len as u64, FallocateMode::Allocate).unwrap();
                    model.resize(model.len().max(end), 0);
                }
                7 => fs.sync().unwrap(),
                _ => {
                    fs.unmount().unwrap();
                    is_clean(&device);
                    fs = mount(&device);
                }
            }
            assert!(contents(&fs, ino).unwrap() == model, "run {number}, step {step}");
            if step % 8 == 0 {
                fs.cache().step_blocks(&mut |_| seed.below(2) == 0).unwrap();
                is_clean(&Arc::new(MemDevice::from_image(4096, device.image())));
            }
        }
        fs.unlink(&CALLER, fs.root(), b"a").unwrap();
        fs.unmount().unwrap();
        is_clean(&device);
    }
}

/// A volume that is full can be emptied, also by cutting compressed files in the middle of a cluster.
#[test]
fn a_full_volume_of_compressed_files_can_be_emptied() {
    let device = made_with(1024, true);
    let fs = mount(&device);
    let mut count = 0_u64;
    while file(&fs, fs.root(), &format!("f{count}"), &text(150_000, count)).is_ok() {
        count += 1;
    }
    assert!(count > 40, "{count} files that would be 37 blocks each");
    for number in 0..count {
        let name = format!("f{number}");
        let ino = fs.lookup(fs.root(), name.as_bytes()).unwrap().attr.ino;
        let size = SetAttr { size: Some(100_000), ..SetAttr::default() };
        fs.setattr(&CALLER, ino, &size).unwrap();
        assert!(contents(&fs, ino).unwrap() == text(150_000, number)[..100_000], "{name}");
        fs.forget(ino, 1);
    }
    for number in 0..=count {
        let _ = fs.unlink(&CALLER, fs.root(), format!("f{number}").as_bytes());
    }
    fs.sync().unwrap();
    assert!(fs.statfs().unwrap().blocks_free > 1024 - 60);
    fs.unmount().unwrap();
    is_clean(&device);
}

/// What a commit cannot read it does not pack, and is a commit all the same; it takes no room of what is set aside, snapshot or not.
#[test]
fn a_commit_packs_what_costs_it_nothing() {
    let device = made(4096);
    let fs = mount(&device);
    let bytes = text(64 << 16, 1);
    let ino = file(&fs, fs.root(), "a", &bytes).unwrap();
    fs.make_snapshot(b"s").unwrap();
    fs.set_flags(&CALLER, ino, InodeFlags(InodeFlags::COMPR)).unwrap();
    let filler = file(&fs, fs.root(), "f", b"").unwrap();
    let mut at = 0;
    while fs.write(&CALLER, filler, at, &noise(65_536, at)).is_ok_and(|len| len == 65_536) {
        at += 65_536;
    }
    let size = SetAttr { size: Some(fs.getattr(filler).unwrap().size - 100 * 4096), ..SetAttr::default() };
    fs.setattr(&CALLER, filler, &size).unwrap();
    fs.sync().unwrap();
    let before = fs.statfs().unwrap().blocks_free;
    let mut changed = 0;
    for cluster in 0..64 {
        changed += u64::from(fs.write(&CALLER, ino, cluster * CLUSTER, &noise(4096, cluster)).is_ok());
    }
    fs.sync().unwrap();
    assert!(changed > 50);
    let taken = before - fs.statfs().unwrap().blocks_free;
    assert!(taken < changed + 20, "{taken} blocks for {changed}");
    fs.unlink(&CALLER, fs.root(), b"f").unwrap();
    fs.remove_snapshot(b"s").unwrap();
    fs.unmount().unwrap();
    is_clean(&device);
}

/// What waits to be packed has a bound.
#[test]
fn commits_come_before_much_waits_to_be_packed() {
    let device = made_with(8192, true);
    let fs = mount(&device);
    let ino = file(&fs, fs.root(), "a", &text(200 << 16, 1)).unwrap();
    fs.sync().unwrap();
    let before = fs.root_made().generation;
    for cluster in 0..200 {
        fs.write(&CALLER, ino, cluster * CLUSTER + 5000, b"changed").unwrap();
    }
    assert!(fs.root_made().generation > before + 5, "a cache of 4 MiB");
    fs.unmount().unwrap();
    is_clean(&device);
}

/// A file that grows over many commits is packed, also where its cluster's first blocks are of earlier ones.
#[test]
fn what_grows_is_packed() {
    // Pieces that end within a block, which the next one writes anew, and such that do not.
    for size in [2500, 4096] {
        let device = made_with(2048, true);
        let mut fs = mount(&device);
        let bytes = text(300_000, 1);
        let ino = file(&fs, fs.root(), "log", b"").unwrap();
        for (number, piece) in bytes.chunks(size).enumerate() {
            fs.write(&CALLER, ino, (number * size) as u64, piece).unwrap();
            fs.sync().unwrap();
            if number % 40 == 7 {
                fs.unmount().unwrap();
                fs = mount(&device);
            }
        }
        let packed = blocks(&fs, ino);
        assert!(packed < 45, "{packed} of 74, in pieces of {size}");
        assert!(contents(&fs, ino).unwrap() == bytes);
        fs.unmount().unwrap();
        is_clean(&device);
    }
}

/// A file that is punched to its end loses its last cluster as a whole.
#[test]
fn punching_to_the_end_takes_no_room() {
    let device = made_with(1024, true);
    let fs = mount(&device);
    let mut count = 0_u64;
    while file(&fs, fs.root(), &format!("f{count}"), &text(150_000, count)).is_ok() {
        count += 1;
    }
    for number in 0..count {
        let ino = fs.lookup(fs.root(), format!("f{number}").as_bytes()).unwrap().attr.ino;
        fs.fallocate(&CALLER, ino, 65_536, 1 << 20, FallocateMode::PunchHole).unwrap();
        let found = contents(&fs, ino).unwrap();
        assert!(
            found[..65_536] == text(150_000, number)[..65_536]
                && found[65_536..].iter().all(|&byte| byte == 0)
        );
        fs.forget(ino, 1);
    }
    fs.unmount().unwrap();
    is_clean(&device);
}
