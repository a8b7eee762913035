//! Volumes without room.

use fstitch_core::{Errno, FileSystem};

use crate::rig::{CALLER, file, is_clean, made, mount, names};

/// Fills a volume with files of a size until there is no room.
fn fill(fs: &fstitch_fs::waffle::Waffle, bytes: usize) -> usize {
    for number in 0.. {
        match file(fs, fs.root(), &format!("file{number}"), &vec![7; bytes]) {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.errno(), Errno::NOSPC);
                return number;
            }
        }
    }
    unreachable!("it has an end")
}

#[test]
fn a_full_volume_can_be_emptied_and_filled_again() {
    for (blocks, bytes) in [(128, 1), (128, 9000), (512, 0), (1024, 50_000), (4096, 300_000)] {
        let device = made(blocks);
        let fs = mount(&device);
        let free = fs.statfs().unwrap().blocks_free;
        let mut counts = Vec::new();
        for round in 0..3 {
            counts.push(fill(&fs, bytes));
            if round == 1 {
                // Also of what a mount has found.
                fs.sync().unwrap();
            }
            for name in names(&fs, fs.root()) {
                fs.unlink(&CALLER, fs.root(), &name).unwrap();
            }
            assert_eq!(names(&fs, fs.root()), Vec::<Vec<u8>>::new());
        }
        fs.sync().unwrap();
        // Inodes stay, so that a large directory has less room to double.
        assert!(
            counts[0] > 5 && counts.iter().all(|&count| 3 * count + 8 >= 2 * counts[0]),
            "{blocks}: {counts:?}"
        );
        assert_eq!(counts[1], counts[2], "{blocks}: nothing is lost with each round");
        // What is left are inodes that nobody has, and what is above them.
        let left = fs.statfs().unwrap().blocks_free;
        assert!(left + 8 + counts[0] as u64 / 16 >= free, "{blocks}: {left} of {free}");
        fs.unmount().unwrap();
        is_clean(&device);
    }
}

#[test]
fn a_volume_that_is_full_after_a_mount_can_be_emptied() {
    let device = made(256);
    let fs = mount(&device);
    fill(&fs, 4096);
    fs.unmount().unwrap();
    let fs = mount(&device);
    for name in names(&fs, fs.root()) {
        fs.unlink(&CALLER, fs.root(), &name).unwrap();
        fs.sync().unwrap();
    }
    fs.unmount().unwrap();
    is_clean(&device);
}

#[test]
fn what_does_not_fit_leaves_nothing() {
    let device = made(256);
    let fs = mount(&device);
    let kept = file(&fs, fs.root(), "kept", &[1; 100]).unwrap();
    fs.sync().unwrap();
    let before = fs.statfs().unwrap();
    let large = vec![3; 4 << 20];
    let written = fs.write(&CALLER, kept, 0, &large).unwrap();
    assert!(written < large.len() && written > 256 << 10, "{written}");
    assert_eq!(fs.getattr(kept).unwrap().size, written as u64);
    fs.setattr(&CALLER, kept, &fstitch_core::SetAttr { size: Some(0), ..Default::default() }).unwrap();
    fs.sync().unwrap();
    assert!(fs.statfs().unwrap().blocks_free + 4 >= before.blocks_free);
    fs.unmount().unwrap();
    is_clean(&device);
}
