//! The orders of a format that moves a block before it changes it ([`LowLevelFs::writable`](fstitch_fs::uhfs::LowLevelFs::writable)).

use std::sync::Arc;

use fstitch_core::{Errno, FileSystem};
use fstitch_fs::uhfs::PinnedFile;
use fstitch_patch::PatchState;

use crate::rig::{BLOCK, CALLER, Rig, find};

/// A format that writes nothing where something is: a copy on write.
fn moving(prepare: &dyn Fn(&Rig)) -> Rig {
    let rig = Rig::with_steps(1 << 20);
    prepare(&rig);
    rig.toy.move_what_changes();
    rig.settle();
    rig
}

#[test]
fn what_moves_before_it_changes_is_copied_before_its_pointer() {
    let prepare = |rig: &Rig| {
        rig.create("f");
        rig.write("f", 0, 3 * BLOCK);
    };
    let overwrite = |rig: &Rig| rig.write("f", 100, 2 * BLOCK);
    let cut = |rig: &Rig| rig.truncate("f", 2 * BLOCK as u64 + 10);
    for (operate, moved) in [(&overwrite as &dyn Fn(&Rig), &[0, 1, 2][..]), (&cut, &[2])] {
        let rig = moving(&prepare);
        let ino = rig.ino("f");
        let before = rig.toy.blocks_of(ino);
        operate(&rig);
        let after = rig.toy.blocks_of(ino);
        for (index, block) in before {
            assert_eq!(after[&index] == block, !moved.contains(&index), "block {index}");
        }
        let events = rig.toy.take_events();
        for index in moved {
            let (copy, pointer) = (format!("copy {index} of {ino}"), format!("move {index} of {ino}"));
            let (copy, pointer) = (find(&events, &copy).patch, find(&events, &pointer).patch);
            assert!(rig.toy.cache().lock().depends_on(pointer, copy), "block {index}");
        }
        // What fsync waits for has the pointers in it.
        rig.fs.fsync(ino, true).unwrap();
        for index in moved {
            let pointer = find(&events, &format!("move {index} of {ino}"));
            assert_eq!(rig.state(pointer), PatchState::Committed, "block {index}");
        }
    }
}

#[test]
fn a_place_that_was_left_is_used_again_after_the_pointer_left_it() {
    let rig = moving(&|rig| {
        rig.create("f");
        rig.write("f", 0, BLOCK);
    });
    let ino = rig.ino("f");
    let left = rig.toy.blocks_of(ino)[&0];
    rig.write("f", 0, 10);
    let moved = find(&rig.toy.take_events(), &format!("move 0 of {ino}")).patch;
    rig.create("g");
    let g = rig.ino("g");
    rig.fs.write(&CALLER, g, 0, &[9; BLOCK]).unwrap();
    assert_eq!(rig.toy.blocks_of(g)[&0], left, "the first free block");
    rig.toy.write_data_blocks();
    assert_ne!(rig.toy.cache().state(moved), PatchState::Committed);
    let kept = rig.toy.read_medium(left);
    assert_eq!(kept, vec![7; BLOCK], "the old contents are there as long as the old pointer is");
    rig.fs.sync().unwrap();
    assert_eq!(rig.toy.read_medium(left), vec![9; BLOCK]);
}

#[test]
fn no_volume_lives_in_a_file_whose_blocks_move() {
    let rig = Rig::new();
    rig.create("f");
    rig.write("f", 0, 4 * BLOCK);
    rig.toy.move_what_changes();
    let (ino, fs) = (rig.ino("f"), Arc::new(rig.fs));
    let refused = PinnedFile::new(&fs, ino, false).map(drop);
    assert_eq!(refused.unwrap_err().errno(), Errno::OPNOTSUPP);
}
