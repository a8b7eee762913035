//! ext4 as `mke2fs` makes it, between us, the kernel and e2fsck: a volume that one of them has written and another one finds
//! different, or damaged.
#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

mod clusters;
mod cut;
mod fast;
mod features;
mod inline;
mod kernel;
mod large;
mod lent;
mod names;
mod quota;
mod quota_cuts;
mod quota_damage;
mod resize;
mod reused;
mod shifts;
mod shrink;
mod sums;
#[allow(dead_code)]
#[path = "../check/support.rs"]
mod support;
mod tree;
mod tune;
mod tuned;
mod tuned_cuts;
mod values;

use std::sync::Arc;

use fstitch_core::{BlockDevice, Consistency, FileSystem, ManualClock, MemDevice, Timestamp};
use fstitch_fs::arrange::{Arrangement, open};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::ext2::journal::{BATCH_MAX, Options, Recovered, recover};
use fstitch_fs::uhfs::Uhfs;
use support::{Scratch, e2fsck_image, have, run};
use tree::{Tree, change, fill};

const NOW: Timestamp = Timestamp { secs: 1_900_000_000, nanos: 0 };

/// Shapes of volumes: a name, and what `mke2fs -t ext4` is told besides.
const SHAPES: &[(&str, &[&str])] = &[
    ("default", &[]),
    ("4K", &["-b", "4096"]),
    ("2K", &["-b", "2048"]),
    ("small-groups", &["-b", "1024", "-g", "1024", "-N", "4096"]),
    ("flex-4", &["-b", "1024", "-g", "2048", "-G", "4"]),
    ("no-csum", &["-O", "^metadata_csum"]),
    ("uninit_bg", &["-O", "^metadata_csum,uninit_bg", "-b", "1024", "-g", "2048"]),
    ("no-flex", &["-O", "^flex_bg", "-b", "1024", "-g", "4096"]),
    ("no-64bit", &["-O", "^64bit"]),
    ("no-extent", &["-O", "^extent,^64bit"]),
    ("no-huge", &["-O", "^huge_file,^dir_nlink,^extra_isize"]),
    ("seed", &["-O", "metadata_csum_seed"]),
    ("meta_bg", &["-O", "meta_bg,^resize_inode", "-b", "1024", "-g", "512", "-N", "4096"]),
    ("sparse_super2", &["-O", "sparse_super2,^resize_inode", "-b", "1024", "-g", "2048"]),
    ("large_dir", &["-O", "large_dir"]),
    ("stable", &["-O", "stable_inodes"]),
    ("orphan_file", &["-O", "orphan_file", "-b", "1024"]),
    ("orphan_file-no-csum", &["-O", "orphan_file,^metadata_csum"]),
    ("mmp", &["-O", "mmp"]),
    ("128", &["-I", "128"]),
    ("512", &["-I", "512"]),
    ("inline_data", &["-O", "inline_data"]),
    ("inline_data-512", &["-O", "inline_data,^metadata_csum", "-b", "1024", "-I", "512"]),
    ("ea_inode", &["-O", "ea_inode", "-b", "1024"]),
    ("ea_inode-inline_data", &["-O", "ea_inode,inline_data,^metadata_csum"]),
    ("bigalloc", &["-O", "bigalloc", "-C", "16384", "-b", "4096"]),
    ("bigalloc-1K", &["-O", "bigalloc", "-C", "4096", "-b", "1024"]),
    (
        "bigalloc-groups",
        &["-O", "bigalloc,^metadata_csum,uninit_bg", "-C", "2048", "-b", "1024", "-g", "512"],
    ),
    ("bigalloc-no-flex", &["-O", "bigalloc,^flex_bg", "-C", "16384", "-b", "2048", "-g", "512"]),
    (
        "bigalloc-all",
        &["-O", "bigalloc,ea_inode,inline_data,orphan_file,^64bit", "-C", "65536", "-b", "1024"],
    ),
    ("not-lazy", &["-E", "lazy_itable_init=0,lazy_journal_init=0"]),
];

/// Shapes that are only read: what is named when somebody wants to write them, and what `mke2fs` is told.
const READ_ONLY: &[(&str, &[&str])] = &[
    ("quota (with ea_inode)", &["-O", "quota,ea_inode"]),
    ("quota (with bigalloc)", &["-O", "quota,bigalloc"]),
    ("casefold", &["-O", "casefold"]),
    ("verity", &["-O", "verity"]),
    ("encrypt", &["-O", "encrypt"]),
];

/// A new volume of 40 MiB.
fn made(scratch: &Scratch, options: &[&str]) -> Vec<u8> {
    let image = scratch.path("new.img");
    let image = image.to_str().unwrap();
    let mut all = vec!["-q", "-F"];
    if !options.contains(&"-t") {
        all.extend(["-t", "ext4"]);
    }
    all.extend_from_slice(options);
    all.extend_from_slice(&[image, "40M"]);
    let _ = std::fs::remove_file(image);
    let (code, said) = run("mke2fs", &all);
    assert_eq!(code, 0, "{said}");
    std::fs::read(image).unwrap()
}

fn device(image: Vec<u8>) -> Arc<MemDevice> {
    let log = u32::from_le_bytes(image[1024 + 0x18..1024 + 0x1c].try_into().unwrap());
    Arc::new(MemDevice::from_image(1024 << log, image))
}

fn mounted(device: &Arc<MemDevice>, mechanism: Consistency) -> Uhfs<Ext2> {
    let mut arrangement =
        Arrangement { consistency: Some(mechanism), claimed: true, ..Arrangement::default() };
    arrangement.cache.cache_size = 4 << 20;
    let clock = ManualClock::new();
    let opened = open::<Ext2>(Arc::clone(device) as Arc<dyn BlockDevice>, &arrangement, Arc::new(clock));
    opened.unwrap().0
}

fn recovered(device: &dyn BlockDevice) -> Option<Recovered> {
    let mut options =
        Options { external: None, now: NOW, for_reading: false, batch_max: BATCH_MAX, progress: &mut |_| {} };
    recover(device, &mut options).unwrap()
}

fn e2fsck_is_content(scratch: &Scratch, name: &str, image: &[u8]) {
    let (code, said) = e2fsck_image(scratch, "checked.img", image);
    assert_eq!(code, 0, "{name}: {said}");
    // Our own checker agrees: nothing is damaged, neither by us nor by a crash that was recovered from.
    let report = check_ext2(&*device(image.to_vec())).unwrap();
    assert_eq!(report.corrupt, 0, "{name}: {:#?}", report.findings);
}

#[test]
fn what_we_write_is_what_the_kernel_reads() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-ours");
    for (at, (name, options)) in SHAPES.iter().enumerate() {
        let image = made(&scratch, options);
        let device = device(image);
        let mechanism = [Consistency::Ordered, Consistency::Metadata, Consistency::Full][at % 3];
        let fs = mounted(&device, mechanism);
        fill(&fs, 1).unwrap_or_else(|error| panic!("{name}: {error}"));
        let expected = Tree::of(&fs);
        // In memory sums mean nothing: neither the checker nor the reclaimer may take that for damage.
        let report = fs.check().unwrap();
        assert_eq!(report.total, 0, "{name}: {:?}", report.findings);
        let reclaimed = fs.reclaim().unwrap();
        assert_eq!(reclaimed.refusal, None, "{name}");
        fs.unmount().unwrap();
        drop(fs);
        e2fsck_is_content(&scratch, name, &device.image());
        let again = mounted(&device, mechanism);
        Tree::of(&again).expect(&expected, &format!("{name}: ours again"));
        change(&again, 2).unwrap_or_else(|error| panic!("{name}: {error}"));
        let expected = Tree::of(&again);
        again.unmount().unwrap();
        drop(again);
        e2fsck_is_content(&scratch, name, &device.image());
        if let Some(found) = kernel::tree(&scratch, &device.image()) {
            found.expect(&expected, &format!("{name}: the kernel's"));
        }
    }
}

#[test]
fn what_the_kernel_writes_is_what_we_read_and_change() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-theirs");
    for (name, options) in SHAPES {
        let image = made(&scratch, options);
        let Some((image, expected)) = kernel::filled(&scratch, &image) else { return };
        let device = device(image);
        let fs = mounted(&device, Consistency::Ordered);
        Tree::of(&fs).expect(&expected, &format!("{name}: as the kernel has it"));
        change(&fs, 3).unwrap_or_else(|error| panic!("{name}: {error}"));
        let expected = Tree::of(&fs);
        fs.unmount().unwrap();
        drop(fs);
        e2fsck_is_content(&scratch, name, &device.image());
        kernel::tree(&scratch, &device.image())
            .unwrap()
            .expect(&expected, &format!("{name}: the kernel again"));
    }
}

#[test]
fn what_is_only_read_is_read_and_named() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("ext4-read-only");
    let mut compared = 0;
    for (name, options) in READ_ONLY {
        let image = made(&scratch, options);
        let refused =
            open::<Ext2>(device(image.clone()), &Arrangement::default(), Arc::new(ManualClock::new()));
        let refused = refused.err().unwrap_or_else(|| panic!("{name} is written")).to_string();
        assert!(refused.contains(name), "{name}: {refused}");
        // Not every kernel has all of them.
        let Some((image, expected)) = kernel::filled_if_it_can(&scratch, &image) else { continue };
        let mut arrangement = Arrangement::default();
        (arrangement.cache.read_only, arrangement.fs.read_only) = (true, true);
        let fs = open::<Ext2>(device(image), &arrangement, Arc::new(ManualClock::new())).unwrap().0;
        Tree::of(&fs).expect(&expected, &format!("{options:?}"));
        compared += 1;
    }
    println!("{compared} of {} as the kernel has them", READ_ONLY.len());
}

#[test]
fn a_volume_that_tells_who_uses_it_is_changed_by_who_has_claimed_it() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("unclaimed");
    let device = device(made(&scratch, &["-O", "mmp"]));
    let before = device.image();
    let opened = |read_only: bool, claimed: bool| {
        let mut arrangement = Arrangement { claimed, ..Arrangement::default() };
        (arrangement.cache.read_only, arrangement.fs.read_only) = (read_only, read_only);
        open::<Ext2>(Arc::clone(&device) as _, &arrangement, Arc::new(ManualClock::new())).map(drop)
    };
    let refused = opened(false, false).unwrap_err();
    assert!(
        matches!(refused, fstitch_core::Error::Unsupported(_)) && refused.to_string().contains("mmp"),
        "{refused}"
    );
    opened(true, false).unwrap();
    assert!(device.image() == before);
    opened(false, true).unwrap();
}

#[test]
fn what_the_kernel_leaves_in_its_journal_is_recovered() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-dirty");
    for (name, options) in SHAPES.iter().step_by(if cut::is_thorough() { 1 } else { 3 }) {
        let image = made(&scratch, options);
        let Some(image) = kernel::interrupted(&scratch, &image) else { return };
        let device = device(image.clone());
        let done = recovered(&*device).unwrap_or_else(|| panic!("{name}: there is something to do"));
        assert!(done.errors.is_empty() && done.replayed.is_some(), "{name}: {done:?}");
        e2fsck_is_content(&scratch, name, &device.image());
        let fs = mounted(&device, Consistency::Ordered);
        let found = Tree::of(&fs);
        fs.unmount().unwrap();
        drop(fs);
        kernel::tree(&scratch, &image).unwrap().expect(&found, &format!("{name}: the kernel's recovery"));
    }
}
