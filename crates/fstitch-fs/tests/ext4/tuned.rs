//! Features that mean something to what is on a volume come and go: sums, and files of quotas. Judged by e2fsck, dumpe2fs, debugfs and the kernel;
//! cut at writes of all steps, and finished by e2fsck, by our repair, and by the same command again.
//!
//! What it prevents: inodes that others take for garbage because their sums are missing; directories whose last name was overwritten by a tail;
//! blocks that nobody knows to be in use; a volume that half has a feature.

use std::sync::Arc;

use fstitch_core::{BlockDevice, Consistency, FileSystem, InodeNo, MemDevice, RepairMode, RepairOptions};
use fstitch_fs::ext2::check::{check_ext2, repair_ext2};
use fstitch_fs::ext2::file_map;
use fstitch_fs::ext2::journal::read_superblock;
use fstitch_fs::ext2::tuning::{Tuning, tune};

use super::cut::{Cut, Lossy, is_thorough};
use super::quota::{counted, listed, steps};
use super::resize::repaired;
use super::support::{Scratch, have, run};
use super::tree::{CALLER, Tree, change, fill, spread};
use super::{NOW, device, e2fsck_is_content, kernel, made, mounted, recovered};

fn features(list: &str) -> Tuning {
    Tuning { features: Some(list.to_owned()), ..Tuning::default() }
}

fn tuned(name: &str, device: &dyn BlockDevice, list: &str) {
    tune(device, &features(list), NOW).unwrap_or_else(|error| panic!("{name}, {list}: {error}"));
}

fn has_journal(device: &dyn BlockDevice) -> bool {
    read_superblock(device).unwrap().1.has_journal()
}

fn mechanism(device: &dyn BlockDevice) -> Consistency {
    if has_journal(device) { Consistency::Ordered } else { Consistency::Soft }
}

/// The tree, by a mount that leaves everything as it is.
fn tree(device: &Arc<MemDevice>) -> Tree {
    let copy = super::device(device.image());
    let fs = mounted(&copy, mechanism(&*copy));
    Tree::of(&fs)
}

/// The features that dumpe2fs names.
fn said(scratch: &Scratch, image: &[u8]) -> Vec<String> {
    let path = scratch.path("said.img");
    std::fs::write(&path, image).unwrap();
    let (_, said) = run("dumpe2fs", &["-h", path.to_str().unwrap()]);
    let line = said.lines().find_map(|line| line.strip_prefix("Filesystem features:")).unwrap();
    line.split_whitespace().map(str::to_owned).collect()
}

/// Fails unless the volume is what a list asks for, and sound for everybody.
fn expect(scratch: &Scratch, name: &str, (device, list): (&Arc<MemDevice>, &str), expected: &Tree) {
    e2fsck_is_content(scratch, name, &device.image());
    let report = check_ext2(&**device).unwrap();
    assert_eq!(report.total, 0, "{name}: {:#?}", report.findings);
    let said = said(scratch, &device.image());
    for word in list.split(',') {
        let wanted = !word.starts_with('^');
        let has = said.iter().any(|has| has == word.trim_start_matches('^'));
        assert_eq!(has, wanted, "{name}: {word} of {said:?}");
    }
    tree(device).expect(expected, name);
    if !said.iter().any(|word| word == "quota")
        && let Some(found) = kernel::tree(scratch, &device.image())
    {
        found.expect(expected, &format!("{name}: the kernel's"));
    }
}

const NO_SUMS: &str = "^metadata_csum,^metadata_csum_seed,^uninit_bg";

/// Shapes of volumes, and how `mke2fs` makes them.
const SHAPES: [(&str, &[&str]); 12] = [
    ("ext2", &["-t", "ext2", "-b", "1024", "-g", "2048"]),
    ("ext3-4K", &["-t", "ext3", "-b", "4096"]),
    ("none", &["-O", "^metadata_csum", "-b", "1024", "-g", "2048"]),
    ("none-4K", &["-O", "^metadata_csum,^uninit_bg", "-b", "4096"]),
    ("uninit_bg", &["-O", "^metadata_csum,uninit_bg", "-b", "1024", "-g", "2048"]),
    ("sums", &["-b", "1024", "-g", "2048"]),
    ("sums-4K", &["-b", "4096", "-O", "metadata_csum_seed"]),
    ("128", &["-I", "128", "-O", "^64bit", "-b", "1024"]),
    ("meta_bg", &["-O", "^metadata_csum,meta_bg,^resize_inode", "-b", "1024", "-g", "512", "-N", "4096"]),
    ("orphan_file", &["-O", "orphan_file,^metadata_csum", "-b", "1024"]),
    ("no-index", &["-O", "^metadata_csum,^dir_index", "-b", "1024"]),
    ("inline_data", &["-O", "inline_data,^metadata_csum", "-b", "1024", "-I", "256"]),
];

#[test]
fn sums_come_and_go_and_come_back() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-tuned-sums");
    for (name, options) in SHAPES {
        let Some((image, expected)) = kernel::filled(&scratch, &made(&scratch, options)) else { return };
        let below = device(image);
        for list in ["metadata_csum", NO_SUMS, "uninit_bg", "metadata_csum,metadata_csum_seed", "^metadata_csum,uninit_bg", "^uninit_bg", "metadata_csum"] {
            let name = format!("{name}, {list}");
            tuned(&name, &*below, list);
            let list = match list {
                "metadata_csum" => "metadata_csum,^uninit_bg",
                list => list,
            };
            expect(&scratch, &name, (&below, list), &expected);
        }
        let fs = mounted(&below, mechanism(&*below));
        change(&fs, 3).unwrap();
        let expected = Tree::of(&fs);
        fs.unmount().unwrap();
        drop(fs);
        expect(&scratch, &format!("{name}, changed"), (&below, "metadata_csum"), &expected);
    }
}
