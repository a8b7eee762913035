//! The order of patches between micro-operations: each arrow of the table in
//! `docs/design/ext2-soft-updates.md`, section "Between micro-operations".
//!
//! Every micro-operation of the toy writes a block of its own. Making one of them stable makes its dependency
//! closure stable and nothing else, so "comes after" can be asked of the cache itself.

use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{Errno, FallocateMode, FileSystem, RenameMode, SetAttr, XattrSetMode};
use fstitch_patch::PatchState;

use crate::rig::{BLOCK, CALLER, ROOT, Rig, find, labels, mount};

/// Prepares, carries an operation out, and checks for each pair that the second micro-operation comes after
/// the first. Each pair is checked on a volume of its own, since the check makes things stable.
fn expect_order(prepare: impl Fn(&Rig), operate: impl Fn(&Rig), arrows: &[(&str, &str)]) {
    expect_order_in(4096, prepare, operate, arrows);
}

/// The same in steps of so many bytes.
fn expect_order_in(
    step_bytes: usize,
    prepare: impl Fn(&Rig),
    operate: impl Fn(&Rig),
    arrows: &[(&str, &str)],
) {
    for (first, then) in arrows {
        let rig = Rig::with_steps(step_bytes);
        prepare(&rig);
        rig.settle();
        operate(&rig);
        let events = rig.toy.take_events();
        let (first, then) = (find(&events, first), find(&events, then));
        assert_eq!(rig.state(first), PatchState::Uncommitted, "{} is pending", first.label);
        rig.toy.cache().sync_patches(&[then.patch]).unwrap();
        assert_eq!(rig.state(then), PatchState::Committed);
        assert_eq!(rig.state(first), PatchState::Committed, "{} → {}", first.label, then.label);
    }
}

/// The check itself can fail: times are ordered with nothing.
#[test]
#[should_panic(expected = "mtime ctime of 2 → name a")]
fn the_check_finds_a_missing_arrow() {
    expect_order(|_| (), |rig| _ = rig.create("a"), &[("mtime ctime of 2", "name a")]);
}

#[test]
fn making_and_linking() {
    expect_order(|_| (), |rig| _ = rig.create("a"), &[("bit 11", "name a"), ("init 11", "name a")]);
    expect_order(
        |_| (),
        |rig| _ = rig.mkdir("d"),
        &[
            ("nlink=3 of 2", "name d"),
            ("nlink=3 of 2", "init 11"),
            ("bit 11", "name d"),
            ("init 11", "name d"),
        ],
    );
    expect_order(|rig| _ = rig.create("a"), |rig| rig.link("a", "b"), &[("nlink=2 of 11", "name b")]);
    // A second name of a young inode needs the bit as much as the first.
    let young = |rig: &Rig| {
        rig.create("a");
        rig.link("a", "b");
    };
    expect_order(|_| (), young, &[("bit 11", "name b"), ("init 11", "name b")]);
}

#[test]
fn removing() {
    expect_order(|rig| _ = rig.create("a"), |rig| rig.unlink("a"), &[("clear a", "free 11")]);
    let held = |rig: &Rig| {
        rig.create("a");
        rig.fs.lookup(ROOT, b"a").unwrap();
    };
    expect_order(held, |rig| rig.unlink("a"), &[("clear a", "nlink ctime=0 of 11")]);
    let two_names = |rig: &Rig| {
        rig.create("a");
        rig.link("a", "b");
    };
    let both = |rig: &Rig| {
        rig.unlink("a");
        rig.unlink("b");
    };
    expect_order(two_names, both, &[("clear a", "free 11"), ("clear b", "free 11")]);
    expect_order(
        |rig| _ = rig.mkdir("d"),
        |rig| rig.rmdir("d"),
        &[("clear d", "free 11"), ("clear d", "nlink=2 of 2"), ("clear d", "nlink ctime=0 of 11")],
    );
    let large = |rig: &Rig| {
        rig.create("a");
        rig.write("a", 0, 2000 * BLOCK);
    };
    expect_order(large, |rig| rig.unlink("a"), &[("clear a", "detach 0 of 11"), ("clear a", "free 11")]);
}

#[test]
fn moving_files() {
    let replace = RenameMode::Replace;
    expect_order(
        |rig| _ = rig.create("a"),
        |rig| rig.rename("a", "b", replace),
        &[("nlink=2 of 11", "name b"), ("name b", "clear a"), ("clear a", "nlink=1 of 11")],
    );
    let young = |rig: &Rig| {
        rig.create("a");
        rig.rename("a", "b", replace);
    };
    expect_order(|_| (), young, &[("bit 11", "name b")]);
    let two = |rig: &Rig| {
        rig.create("a");
        rig.create("b");
    };
    expect_order(
        two,
        |rig| rig.rename("a", "b", replace),
        &[
            ("nlink=2 of 11", "replace b"),
            ("replace b", "clear a"),
            ("clear a", "nlink=1 of 11"),
            ("replace b", "nlink ctime=0 of 12"),
            ("replace b", "free 12"),
        ],
    );
    let young_pair = |rig: &Rig| {
        two(rig);
        rig.rename("a", "b", RenameMode::Exchange);
    };
    expect_order(|_| (), young_pair, &[("bit 11", "exchange"), ("init 12", "exchange")]);
}

#[test]
fn moving_directories() {
    let replace = RenameMode::Replace;
    let tree = |rig: &Rig| {
        rig.mkdir("p");
        rig.mkdir("q");
        rig.mkdir("p/d");
    };
    expect_order(
        tree,
        |rig| rig.rename("p/d", "q/e", replace),
        &[
            ("nlink=3 of 12", "name e"),
            ("name e", "dotdot of 13"),
            ("dotdot of 13", "clear d"),
            ("clear d", "nlink=2 of 11"),
        ],
    );
    expect_order(tree, |rig| rig.rename("p", "r", replace), &[("name r", "clear p")]);
    let young = |rig: &Rig| {
        tree(rig);
        rig.rename("p/d", "q/e", replace);
    };
    expect_order(|_| (), young, &[("bit 13", "name e"), ("init 13", "name e")]);
    let same = |rig: &Rig| {
        rig.mkdir("a");
        rig.mkdir("b");
    };
    expect_order(
        same,
        |rig| rig.rename("a", "b", replace),
        &[("replace b", "clear a"), ("replace b", "nlink=3 of 2"), ("replace b", "free 12")],
    );
    let across = |rig: &Rig| {
        tree(rig);
        rig.mkdir("q/e");
    };
    let onto = |rig: &Rig| rig.rename("p/d", "q/e", replace);
    expect_order(
        across,
        onto,
        &[
            ("replace e", "dotdot of 13"),
            ("dotdot of 13", "clear d"),
            ("clear d", "nlink=2 of 11"),
            ("replace e", "free 14"),
        ],
    );
    let rig = Rig::new();
    across(&rig);
    rig.settle();
    onto(&rig);
    let events = rig.toy.take_events();
    assert!(!labels(&events).iter().any(|label| label.starts_with("nlink") && label.ends_with(" of 12")));
}

/// The new name comes and goes before anything is written, while the old one still names the directory on the
/// medium.
#[test]
fn a_name_left_behind_by_a_rename_is_cleared_before_the_inode_goes() {
    let there_and_gone = |rig: &Rig| {
        rig.rename("d", "e", RenameMode::Replace);
        rig.rmdir("e");
    };
    expect_order(
        |rig| _ = rig.mkdir("d"),
        there_and_gone,
        &[("clear d", "nlink ctime=0 of 11"), ("clear d", "free 11"), ("clear d", "nlink=2 of 2")],
    );
    let replaced = |rig: &Rig| {
        rig.rename("d", "e", RenameMode::Replace);
        rig.rename("f", "e", RenameMode::Replace);
    };
    let two = |rig: &Rig| {
        rig.mkdir("d");
        rig.mkdir("f");
    };
    expect_order(two, replaced, &[("clear d", "free 11"), ("clear d", "nlink=3 of 2")]);
}

/// Without a count of names on the way there.
#[test]
fn a_file_that_ends_with_its_name_ends_after_all_its_names() {
    const LARGE: usize = 64 * 1024;
    let create = |rig: &Rig| _ = rig.create("a");
    let rig = Rig::with_steps(LARGE);
    create(&rig);
    rig.settle();
    rig.unlink("a");
    let events = rig.toy.take_events();
    assert!(!labels(&events).iter().any(|label| label.starts_with("nlink")), "{:?}", labels(&events));
    expect_order_in(LARGE, create, |rig| rig.unlink("a"), &[("clear a", "free 11")]);
    let moved = |rig: &Rig| {
        rig.rename("a", "b", RenameMode::Replace);
        rig.unlink("b");
    };
    expect_order_in(LARGE, create, moved, &[("clear a", "free 11"), ("clear b", "free 11")]);
}

#[test]
fn lengths() {
    let file = |rig: &Rig| _ = rig.create("a");
    let full = |rig: &Rig| {
        rig.create("a");
        rig.write("a", 0, 4 * BLOCK);
    };
    expect_order(file, |rig| rig.write("a", 0, 4096), &[("pointers 0+4 of 11", "size=4096 of 11")]);
    expect_order(
        file,
        |rig| rig.fallocate("a", 0, 4096, FallocateMode::Allocate),
        &[("pointers 0+4 of 11", "size=4096 of 11")],
    );
    expect_order(full, |rig| rig.truncate("a", 0), &[("size=0 of 11", "detach 0 of 11")]);
    let regrown = |rig: &Rig| {
        rig.truncate("a", 0);
        rig.truncate("a", 4096);
    };
    expect_order(full, regrown, &[("detach 0 of 11", "size=4096 of 11")]);
    let written_again = |rig: &Rig| {
        rig.truncate("a", 0);
        rig.write("a", 8192, 1);
    };
    expect_order(full, written_again, &[("detach 0 of 11", "size=8193 of 11")]);
    let reused = |rig: &Rig| {
        rig.truncate("a", 0);
        rig.create("b");
        rig.write("b", 0, 4096);
    };
    expect_order(full, reused, &[("detach 0 of 11", "pointers 0+4 of 12")]);
    let punched = |rig: &Rig| {
        rig.fallocate("a", 0, 2048, FallocateMode::PunchHole);
        rig.truncate("a", 0);
        rig.truncate("a", 4096);
    };
    expect_order(full, punched, &[("detach 0 of 11", "size=4096 of 11")]);
}

/// Contents of blocks that exist already are not micro-operations: they are looked up on the medium.
#[test]
fn contents_come_before_the_size() {
    let rig = Rig::new();
    let ino = rig.create("a");
    rig.write("a", 0, 100);
    rig.settle();
    rig.write("a", 100, 100);
    let events = rig.toy.take_events();
    rig.toy.cache().sync_patches(&[find(&events, "size=200 of 11").patch]).unwrap();
    assert_eq!(rig.toy.on_medium(ino, 0)[..200], [7; 200]);
    // New blocks are complete before anything points to them.
    rig.write("a", 1024, 100);
    let events = rig.toy.take_events();
    rig.toy.cache().sync_patches(&[find(&events, "pointers 1+1 of 11").patch]).unwrap();
    assert_eq!(rig.toy.on_medium(ino, 1)[..200], [[7; 100], [0; 100]].concat());
}

#[test]
fn a_shortened_tail_is_zero_before_the_file_grows_again() {
    let rig = Rig::new();
    let ino = rig.create("a");
    rig.write("a", 0, 3000);
    rig.settle();
    rig.truncate("a", 10);
    rig.toy.write_data_blocks();
    let events = rig.toy.take_events();
    assert_eq!(rig.toy.on_medium(ino, 0)[..1000], [7; 1000]);
    // The tail is zeroed after the size: a crash in between must not leave zeros within the old size.
    assert_eq!(rig.state(find(&events, "size=10 of 11")), PatchState::Uncommitted);
    rig.truncate("a", 2000);
    let events = rig.toy.take_events();
    rig.toy.cache().sync_patches(&[find(&events, "size=2000 of 11").patch]).unwrap();
    assert_eq!(rig.toy.on_medium(ino, 0)[10..], [0; 1014]);
}

#[test]
fn what_a_crash_left_behind_the_end_is_trimmed_and_zeroed_before_growth() {
    let rig = Rig::new();
    let ino = rig.create("a");
    rig.write("a", 0, 4096);
    rig.settle();
    rig.toy.force_size(ino, 500);
    rig.toy.set_unclean();
    let rig = Rig { fs: mount(&rig.toy), toy: Arc::clone(&rig.toy), clock: Arc::clone(&rig.clock) };
    rig.write("a", 3000, 10);
    let events = rig.toy.take_events();
    let size = find(&events, "size=3010 of 11");
    rig.toy.cache().sync_patches(&[size.patch]).unwrap();
    assert_eq!(rig.state(find(&events, "detach 1 of 11")), PatchState::Committed);
    assert_eq!(rig.toy.on_medium(ino, 0)[500..], [0; 524]);
    let mut buf = [1; 3010];
    assert_eq!(rig.fs.read(ino, 0, &mut buf).unwrap(), 3010);
    assert!(buf[..500].iter().all(|&b| b == 7) && buf[500..3000].iter().all(|&b| b == 0));
}

#[test]
fn a_truncation_that_failed_is_finished_before_the_file_grows() {
    let rig = Rig::new();
    let ino = rig.create("a");
    rig.write("a", 0, 4096);
    rig.settle();
    rig.toy.fail_next("detach");
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(rig.fs.setattr(&CALLER, ino, &set).unwrap_err().errno(), Errno::NOSPC);
    rig.truncate("a", 4096);
    let events = rig.toy.take_events();
    rig.toy.cache().sync_patches(&[find(&events, "size=4096 of 11").patch]).unwrap();
    assert_eq!(rig.state(find(&events, "detach 0 of 11")), PatchState::Committed);
    let mut buf = [1; 4096];
    assert_eq!(rig.fs.read(ino, 0, &mut buf).unwrap(), 4096);
    assert_eq!(buf, [0; 4096]);
}

#[test]
fn fsync_reaches_all_names_up_to_the_root_and_nothing_else() {
    let rig = Rig::new();
    rig.settle();
    rig.mkdir("p");
    rig.mkdir("p/q");
    let ino = rig.create("p/q/f");
    rig.create("other");
    rig.write("p/q/f", 0, 3000);
    rig.fs.setxattr(&CALLER, ino, b"user.x", b"1", XattrSetMode::Set).unwrap();
    let events = rig.toy.take_events();
    rig.fs.fsync(ino, false).unwrap();
    for label in ["name p", "name q", "name f", "init 13", "size=3000 of 13", "xattr of 13"] {
        assert_eq!(rig.state(find(&events, label)), PatchState::Committed, "{label}");
    }
    assert_eq!(rig.state(find(&events, "name other")), PatchState::Uncommitted);
    // Moved elsewhere, the new name counts, and the old one is gone.
    rig.rename("p/q/f", "g", RenameMode::Replace);
    let events = rig.toy.take_events();
    rig.fs.fsync(ino, true).unwrap();
    for label in ["name g", "clear f"] {
        assert_eq!(rig.state(find(&events, label)), PatchState::Committed, "{label}");
    }
}

#[test]
fn fsync_of_data_leaves_times_for_later() {
    let rig = Rig::new();
    let ino = rig.create("a");
    rig.settle();
    rig.clock.advance(Duration::from_millis(1));
    rig.write("a", 0, 3000);
    let events = rig.toy.take_events();
    rig.fs.fsync(ino, true).unwrap();
    assert_eq!(rig.state(find(&events, "size=3000 of 11")), PatchState::Committed);
    assert_eq!(rig.state(find(&events, "mtime ctime of 11")), PatchState::Uncommitted);
    rig.fs.fsync(ino, false).unwrap();
    assert_eq!(rig.state(find(&events, "mtime ctime of 11")), PatchState::Committed);
    // In the same tick of the clock the times are those already.
    rig.write("a", 0, 100);
    assert!(rig.toy.take_events().iter().all(|event| !event.label.contains("mtime")));
}

#[test]
fn the_volume_is_marked_before_the_first_change_and_cleaned_after_the_last() {
    let rig = Rig::new();
    rig.fs.getattr(ROOT).unwrap();
    assert!(!rig.toy.is_marked());
    let held = rig.create("a");
    let events = rig.toy.take_events();
    assert_eq!(events[0].label, "mark");
    assert_eq!(rig.state(&events[0]), PatchState::Committed);
    assert_eq!(rig.state(find(&events, "name a")), PatchState::Uncommitted);
    // An inode that is held without a name is freed by the unmount.
    rig.fs.lookup(ROOT, b"a").unwrap();
    rig.unlink("a");
    assert_eq!(rig.fs.getattr(held).unwrap().nlink, 0);
    rig.fs.unmount().unwrap();
    assert_eq!(rig.toy.inode_count(), 1);
    assert!(!rig.toy.is_marked());
    let again = rig.fs.mkdir(&CALLER, ROOT, b"d", 0o755);
    assert_eq!(again.unwrap_err().errno(), Errno::ROFS);
}

#[test]
fn failures_leave_nothing_half_done() {
    for operation in ["prepare_name", "make_inode", "add_name"] {
        let rig = Rig::new();
        rig.settle();
        rig.toy.fail_next(operation);
        let failed = rig.fs.mkdir(&CALLER, ROOT, b"d", 0o755);
        assert_eq!(failed.unwrap_err().errno(), Errno::NOSPC, "{operation}");
        assert_eq!(rig.fs.getattr(ROOT).unwrap().nlink, 2, "{operation}");
        assert_eq!(rig.toy.inode_count(), 1, "{operation}");
    }
    for operation in ["prepare_name", "add_name"] {
        let rig = Rig::new();
        let ino = rig.create("a");
        rig.toy.fail_next(operation);
        let failed = rig.fs.rename(&CALLER, (ROOT, b"a"), (ROOT, b"b"), RenameMode::Replace);
        assert_eq!(failed.unwrap_err().errno(), Errno::NOSPC, "{operation}");
        assert_eq!(rig.fs.getattr(ino).unwrap().nlink, 1, "{operation}");
        assert_eq!(rig.ino("a"), ino);
    }
}

#[test]
fn a_full_volume_takes_what_fits() {
    let rig = Rig::new();
    let ino = rig.create("a");
    rig.write("a", 0, 2 * BLOCK);
    rig.toy.fail_all("allocate");
    let failed = rig.fs.write(&CALLER, ino, 2048, &[1; 100]);
    assert_eq!(failed.unwrap_err().errno(), Errno::NOSPC);
    assert_eq!(rig.fs.getattr(ino).unwrap().size, 2048);
    // The first half of the range exists, the second cannot be allocated.
    assert_eq!(rig.fs.write(&CALLER, ino, 1024, &[9; 3000]).unwrap(), 1024);
    assert_eq!(rig.fs.getattr(ino).unwrap().size, 2048);
    let failed = rig.fs.fallocate(&CALLER, ino, 0, 9000, FallocateMode::Allocate);
    assert_eq!(failed.unwrap_err().errno(), Errno::NOSPC);
    assert_eq!((rig.fs.getattr(ino).unwrap().size, rig.toy.block_count()), (2048, 2));
}
