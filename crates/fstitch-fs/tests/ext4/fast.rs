//! Fast commits that the kernel has left: what comes out is what the kernel makes of them, whatever moment of the recovery the power fails
//! in.
//!
//! What it prevents: files that were stable by `fsync` and are not there after a crash; a recovery that cannot be repeated.

use std::sync::Arc;

use fstitch_core::{BlockDevice, Consistency, FileKind, FileSystem, MemDevice};
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::ext2::journal::{BATCH_MAX, Options, recover};

use super::cut::{Cut, Lossy, is_thorough};
use super::support::{Scratch, have};
use super::tree::Tree;
use super::{NOW, device, e2fsck_is_content, kernel, made, mounted, recovered};

/// What `mke2fs` is told beside `fast_commit`.
const SHAPES: [(&str, &[&str]); 8] = [
    ("1K", &["-b", "1024", "-O", "fast_commit"]),
    ("4K", &["-b", "4096", "-O", "fast_commit"]),
    ("small-groups", &["-b", "1024", "-g", "1024", "-N", "4096", "-O", "fast_commit"]),
    ("no-csum", &["-b", "2048", "-O", "fast_commit,^metadata_csum"]),
    ("uninit_bg", &["-b", "1024", "-g", "2048", "-O", "fast_commit,^metadata_csum,uninit_bg"]),
    ("seed", &["-O", "fast_commit,metadata_csum_seed,orphan_file"]),
    ("bigalloc", &["-b", "1024", "-C", "4096", "-g", "1024", "-O", "fast_commit,bigalloc"]),
    ("no-64bit", &["-b", "1024", "-O", "fast_commit,^64bit,^flex_bg"]),
];

/// A directory's time is that of the recovery where names in it were recovered; and one that is made by a fast commit has one link only
/// when the kernel has recovered it, which is right for who counts none. What is right for us the checkers say.
fn as_far_as_kept(mut tree: Tree) -> Tree {
    for item in tree.0.values_mut().filter(|item| item.kind == FileKind::Directory) {
        (item.mtime, item.nlink) = ((0, 0), 0);
    }
    tree
}

fn tree_of(device: &Arc<MemDevice>) -> Tree {
    let fs = mounted(device, Consistency::Ordered);
    let tree = Tree::of(&fs);
    fs.unmount().unwrap();
    as_far_as_kept(tree)
}

#[test]
fn fast_commits_of_the_kernel_are_applied_as_the_kernel_does() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-fast");
    let mut applied = 0;
    // With sums, without, and with those of groups, and with clusters; the others with `FSTITCH_CUTS`.
    let sample = [SHAPES[0], SHAPES[3], SHAPES[4], SHAPES[6]];
    for &(name, options) in if is_thorough() { &SHAPES[..] } else { &sample } {
        let image = made(&scratch, options);
        let Some(moments) = kernel::written_fast(&scratch, &image) else { return };
        for (at, left) in moments.into_iter().enumerate() {
            let name = format!("{name}, step {at}");
            let device = device(left.clone());
            // New nodes come into blocks that held others.
            super::shrink::free_blocks_look_used(&device, true);
            let done = recovered(&*device).unwrap_or_else(|| panic!("{name}: there is something to do"));
            assert!(done.errors.is_empty(), "{name}: {done:?}");
            applied += done.fast_commits;
            println!("{name}: {} fast commits", done.fast_commits);
            e2fsck_is_content(&scratch, &name, &device.image());
            let theirs = kernel::tree(&scratch, &left).unwrap();
            as_far_as_kept(theirs).expect(&tree_of(&device), &name);
        }
    }
    assert!(applied > if is_thorough() { 500 } else { 200 }, "only {applied} fast commits");
}

#[test]
fn a_recovery_with_fast_commits_may_be_cut_at_every_write() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-fast-cut");
    let mut cuts = 0;
    // All steps of all shapes were cut once, which takes minutes: these have names, a new directory, pieces of a file.
    for ((name, options), steps) in [(SHAPES[0], [1, 4]), (SHAPES[4], [2, 3]), (SHAPES[6], [1, 3])] {
        let image = made(&scratch, options);
        let Some(moments) = kernel::written_fast(&scratch, &image) else { return };
        for (step, left) in moments.into_iter().enumerate().filter(|(step, _)| steps.contains(step)) {
            let whole = device(left.clone());
            if recovered(&*whole).unwrap().fast_commits == 0 {
                continue;
            }
            let expected = tree_of(&whole);
            for writes in (0..).step_by(if is_thorough() { 1 } else { 17 }) {
                let below = device(left.clone());
                // In order, or what was not flushed in none.
                let (cut, lossy) = (Cut::after(&below, writes), Lossy::after(&below, writes, 7));
                let device: &dyn BlockDevice = if cuts % 2 == 0 { &cut } else { &lossy };
                let mut options = Options {
                    external: None,
                    now: NOW,
                    for_reading: false,
                    batch_max: BATCH_MAX,
                    progress: &mut |_| {},
                };
                let is_whole = recover(device, &mut options).is_ok();
                let name = format!("{name}, step {step}, {writes} writes");
                if cuts % (if is_thorough() { 40 } else { 6 }) == 5 {
                    let theirs = kernel::tree(&scratch, &below.image()).unwrap();
                    as_far_as_kept(theirs).expect(&expected, &format!("{name}: the kernel's"));
                }
                recovered(&*below);
                tree_of(&below).expect(&expected, &name);
                let report = check_ext2(&*below).unwrap();
                assert_eq!(report.total, 0, "{name}: {:#?}", report.findings);
                cuts += 1;
                if is_whole {
                    break;
                }
            }
        }
    }
    println!("{cuts} cuts");
    assert!(cuts > if is_thorough() { 100 } else { 8 }, "only {cuts} cuts");
}
