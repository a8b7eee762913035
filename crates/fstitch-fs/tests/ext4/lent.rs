//! Volumes without a journal get another size by one that they have meanwhile: afterwards they have none, whatever write was the last one.
//!
//! What it prevents: an ext2 volume that becomes ext3 by being resized; one that cannot be resized for want of a journal, or is half of it.

use std::sync::Arc;

use fstitch_core::{BlockDevice, Consistency, Error, FileSystem, MemDevice};
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::ext2::journal::{self, AddOptions, read_superblock};
use fstitch_fs::ext2::resize::resize;

use super::cut::{Cut, Lossy, is_thorough};
use super::resize::repaired;
use super::shrink::free_blocks_look_used;
use super::support::{Scratch, have};
use super::tree::{Tree, fill, spread};
use super::{NOW, device, e2fsck_is_content, made, mounted, recovered};

const SHAPES: [(&str, &[&str]); 4] = [
    ("ext2", &["-t", "ext2", "-b", "1024", "-g", "2048"]),
    ("ext2-4K", &["-t", "ext2", "-b", "4096"]),
    ("sums", &["-O", "^has_journal,^orphan_file", "-b", "1024", "-g", "2048"]),
    ("uninit_bg", &["-O", "^has_journal,^orphan_file,^metadata_csum,uninit_bg", "-b", "1024", "-g", "4096"]),
];

fn has_journal(device: &dyn BlockDevice) -> bool {
    read_superblock(device).unwrap().1.has_journal()
}

fn blocks_of(device: &dyn BlockDevice) -> u64 {
    read_superblock(device).unwrap().1.blocks_count
}

fn filled(scratch: &Scratch, options: &[&str]) -> (Arc<MemDevice>, Tree) {
    let device = device(made(scratch, options));
    let fs = mounted(&device, Consistency::Soft);
    fill(&fs, 7).unwrap();
    spread(&fs, 7).unwrap();
    let expected = Tree::of(&fs);
    fs.unmount().unwrap();
    drop(fs);
    free_blocks_look_used(&device, false);
    (device, expected)
}

/// The tree, by a mount that leaves everything as it is.
fn tree(device: &Arc<MemDevice>) -> Tree {
    let copy = super::device(device.image());
    let fs = mounted(&copy, if has_journal(&*copy) { Consistency::Ordered } else { Consistency::Soft });
    Tree::of(&fs)
}

#[test]
fn a_volume_without_a_journal_shrinks_and_grows_and_has_none_afterwards() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-lent");
    for (name, options) in SHAPES {
        let (device, expected) = filled(&scratch, options);
        let before = blocks_of(&*device);
        for percent in [80, 60, 100] {
            let name = format!("{name}, {percent} %");
            let done = resize(&*device, before * percent / 100, NOW, &mut |_, _| {});
            let done = done.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(done.after, blocks_of(&*device), "{name}");
            assert!(percent == 100 || done.after <= before * percent / 100, "{name}: {done:?}");
            assert!(!has_journal(&*device), "{name}");
            e2fsck_is_content(&scratch, &name, &device.image());
            assert_eq!(check_ext2(&*device).unwrap().total, 0, "{name}");
            tree(&device).expect(&expected, &name);
        }
        assert_eq!(blocks_of(&*device), before, "{name}");
    }
}

#[test]
fn a_journal_that_was_asked_for_stays() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("ext4-lent-not");
    let (device, _) = filled(&scratch, SHAPES[0].1);
    journal::add(&*device, AddOptions { blocks: None, now: NOW, is_zero: false }).unwrap();
    resize(&*device, blocks_of(&*device) * 3 / 4, NOW, &mut |_, _| {}).unwrap();
    assert!(has_journal(&*device));
}

#[test]
fn without_room_for_a_journal_nothing_changes() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("ext4-lent-room");
    let (device, expected) = filled(&scratch, SHAPES[0].1);
    let before = blocks_of(&*device);
    for wanted in [900, 2000] {
        match resize(&*device, wanted, NOW, &mut |_, _| {}) {
            Err(Error::Unsupported(text)) => println!("{wanted} blocks: {text}"),
            other => panic!("{wanted} blocks: {other:?}"),
        }
        assert!(!has_journal(&*device) && blocks_of(&*device) == before);
        assert_eq!(check_ext2(&*device).unwrap().total, 0);
        tree(&device).expect(&expected, "refused");
    }
}

#[test]
fn cut_at_any_write_it_goes_on_and_has_none_in_the_end() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-lent-cut");
    let mut with = 0;
    for (name, options) in [SHAPES[0], SHAPES[2]] {
        let (first, expected) = filled(&scratch, options);
        let (image, before) = (first.image(), blocks_of(&*first));
        let wanted = before * 3 / 5;
        let counted = Cut::never(&first);
        resize(&counted, wanted, NOW, &mut |_, _| {}).unwrap();
        let (writes, after) = (counted.written(), blocks_of(&*first));
        // The journal comes at the beginning, behind its zeros, and goes at the end.
        let some = if is_thorough() { (13, 1) } else { (writes / 6, 13) };
        let ends = (1000..1150).chain(writes.saturating_sub(60)..writes);
        for (turn, cut) in (0..writes).step_by(some.0).chain(ends.step_by(some.1)).enumerate() {
            let name = format!("{name}, {cut} of {writes} writes");
            let below = device(image.clone());
            let cut_short = if turn % 2 == 0 {
                resize(&Cut::after(&below, cut), wanted, NOW, &mut |_, _| {})
            } else {
                let seed = u64::try_from(cut).unwrap();
                resize(&Lossy::after(&below, cut, seed), wanted, NOW, &mut |_, _| {})
            };
            assert!(cut_short.is_err(), "{name}: cut");
            if has_journal(&*below) {
                let errors = recovered(&*below).map_or(Vec::new(), |recovered| recovered.errors);
                assert!(errors.is_empty(), "{name}: {errors:?}");
                with += 1;
            }
            let now = blocks_of(&*below);
            assert!(now == before || now == after, "{name}: {now} blocks");
            if read_superblock(&*below).unwrap().1.state & 1 == 0 {
                repaired(&scratch, &name, &below);
            }
            tree(&below).expect(&expected, &name);
            resize(&*below, wanted, NOW, &mut |_, _| {}).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(!has_journal(&*below), "{name}: it has lost its journal");
            assert_eq!(blocks_of(&*below), after, "{name}");
            let report = check_ext2(&*below).unwrap();
            assert_eq!(report.total, 0, "{name}: {:#?}", report.findings);
            tree(&below).expect(&expected, &name);
            if turn % 8 == 0 {
                e2fsck_is_content(&scratch, &name, &below.image());
            }
        }
    }
    assert!(with > 10, "{with} cuts while there was a journal");
}

#[test]
fn one_that_was_lent_may_move_and_goes_all_the_same() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-lent-moves");
    let (first, expected) = filled(&scratch, SHAPES[2].1);
    let (mut image, before) = (first.image(), blocks_of(&*first));
    image.resize(image.len() / 4 * 5, 0);
    let below = device(image.clone());
    let counted = Cut::never(&below);
    resize(&counted, before * 5 / 4, NOW, &mut |_, _| {}).unwrap();
    // Grown, but for its copies, and with the journal still, which lies in the middle.
    let below = device(image);
    for cut in (0..counted.written()).rev() {
        let again = device(below.image());
        resize(&Cut::after(&again, cut), before * 5 / 4, NOW, &mut |_, _| {}).unwrap_err();
        if !has_journal(&*again) {
            continue;
        }
        recovered(&*again);
        let smaller = before * 48 / 100;
        let copy = device(again.image());
        let counted = Cut::never(&copy);
        resize(&counted, smaller, NOW, &mut |_, _| {}).unwrap();
        // Cut again, when it has moved and the volume is the smaller one.
        let last = (0..counted.written()).rev().find_map(|cut| {
            let copy = device(again.image());
            resize(&Cut::after(&copy, cut), smaller, NOW, &mut |_, _| {}).unwrap_err();
            has_journal(&*copy).then_some(copy)
        });
        let again = last.expect("it is there when it has moved");
        assert!(blocks_of(&*again) <= smaller);
        recovered(&*again);
        resize(&*again, smaller, NOW, &mut |_, _| {}).unwrap();
        assert!(!has_journal(&*again), "it has lost its journal");
        tree(&again).expect(&expected, "smaller");
        e2fsck_is_content(&scratch, "smaller", &again.image());
        return;
    }
    panic!("there is no journal at any moment");
}
