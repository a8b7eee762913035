//! Settings and features of volumes that are made, and where files lie, beside what e2fsck, the kernel and debugfs say.
//!
//! What it prevents: a feature that the volume cannot keep; sums that nobody finds right any more; a superblock that a cut has torn.

use fstitch_core::{Consistency, FileSystem};
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::ext2::file_map;
use fstitch_fs::ext2::identity::{Identity, identify};
use fstitch_fs::ext2::journal::read_superblock;
use fstitch_fs::ext2::layout::superblock::{S_CHECKINTERVAL, S_ERRORS, S_MAX_MNT_COUNT, S_R_BLOCKS_COUNT};
use fstitch_fs::ext2::tuning::{OnError, Reserve, Tuning, tune};

use super::cut::Cut;
use super::support::{Scratch, have, run};
use super::tree::{Tree, fill};
use super::{NOW, device, e2fsck_is_content, kernel, made, mounted};

fn features(list: &str) -> Tuning {
    Tuning { features: Some(list.to_owned()), ..Tuning::default() }
}

#[test]
fn features_come_and_go_and_the_others_are_refused_by_name() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-tune");
    let all = "large_dir,stable_inodes,metadata_csum_seed,fast_commit";
    for options in [&["-b", "1024"][..], &["-O", "^dir_nlink,^huge_file,^extra_isize,^large_file"]] {
        let first = device(made(&scratch, options));
        let fs = mounted(&first, Consistency::Ordered);
        fill(&fs, 1).unwrap();
        let expected = Tree::of(&fs);
        fs.unmount().unwrap();
        drop(fs);
        let image = first.image();
        for list in [all, "dir_nlink,huge_file,extra_isize,large_file", "large_dir,^fast_commit"] {
            for writes in 0.. {
                let below = device(image.clone());
                let is_whole = tune(&Cut::after(&below, writes), &features(list), NOW).is_ok();
                assert_eq!(check_ext2(&*below).unwrap().total, 0, "{list}, {writes} writes");
                tune(&*below, &features(list), NOW).unwrap();
                e2fsck_is_content(&scratch, &format!("{list}, {writes} writes"), &below.image());
                if is_whole {
                    break;
                }
            }
        }
        tune(&*first, &features(all), NOW).unwrap();
        let (_, shape) = read_superblock(&*first).unwrap();
        let names = shape.features.all_names();
        assert!(all.split(',').all(|name| names.iter().any(|has| has == name)), "{names:?}");
        // All sums began with the old UUID, and still do.
        identify(&*first, &Identity { label: None, uuid: Some([7; 16]) }).unwrap();
        e2fsck_is_content(&scratch, "another UUID", &first.image());
        if let Some(found) = kernel::tree(&scratch, &first.image()) {
            found.expect(&expected, "the kernel's, with another UUID");
        }
        for (list, named) in [
            ("uninit_bg", "^metadata_csum,uninit_bg"),
            ("^metadata_csum_seed", "another one than the checksums begin with"),
            ("bigalloc", "bigalloc"),
            ("^extent", "extent"),
            ("^large_dir", "large_dir away"),
            ("orphan_file", "orphan_file"),
            ("^has_journal", "--no-journal"),
            ("wings", "wings"),
        ] {
            let before = first.image();
            let error = tune(&*first, &features(list), NOW).unwrap_err().to_string();
            assert!(error.contains(named), "{list}: {error}");
            assert!(first.image() == before, "{list}");
        }
        tune(&*first, &features("^stable_inodes,^fast_commit"), NOW).unwrap();
        e2fsck_is_content(&scratch, "without", &first.image());
    }
}

#[test]
fn settings_are_what_others_read() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-settings");
    let first = device(made(&scratch, &["-b", "1024"]));
    let tuning = Tuning {
        reserve: Some(Reserve::Percent(3)),
        on_error: Some(OnError::RemountReadOnly),
        mounts_max: Some(20),
        interval: Some(86_400),
        ..Tuning::default()
    };
    tune(&*first, &tuning, NOW).unwrap();
    e2fsck_is_content(&scratch, "settings", &first.image());
    let path = scratch.path("settings.img");
    std::fs::write(&path, first.image()).unwrap();
    let (_, said) = run("dumpe2fs", &["-h", path.to_str().unwrap()]);
    for line in
        ["Reserved block count:     1228", "Remount read-only", "Maximum mount count:      20", "1 day"]
    {
        assert!(said.contains(line), "{line}: {said}");
    }
    let none = Tuning {
        reserve: Some(Reserve::Blocks(0)),
        mounts_max: Some(0),
        interval: Some(0),
        ..Tuning::default()
    };
    tune(&*first, &none, NOW).unwrap();
    let (raw, _) = read_superblock(&*first).unwrap();
    assert_eq!((S_R_BLOCKS_COUNT.get(&raw), S_CHECKINTERVAL.get(&raw)), (0, 0));
    assert_eq!((S_MAX_MNT_COUNT.get(&raw), S_ERRORS.get(&raw)), (u16::MAX, 2));
    let much = Tuning { reserve: Some(Reserve::Blocks(30_000)), ..Tuning::default() };
    assert!(tune(&*first, &much, NOW).unwrap_err().to_string().contains("at most 20480"));
}

#[test]
fn the_map_of_a_file_is_what_debugfs_shows() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let scratch = Scratch::new("ext4-map");
    for options in [&["-b", "1024"][..], &["-O", "^extent,^64bit", "-b", "1024"]] {
        let first = device(made(&scratch, options));
        let fs = mounted(&first, Consistency::Ordered);
        fill(&fs, 1).unwrap();
        let names = ["/top/holes", "/top/file-9", "/top/file-7", "/many", "/top/long", "/top/short"];
        let inodes: Vec<u64> =
            names.iter().map(|name| fs.walk(name.as_bytes()).unwrap().attr.ino.get()).collect();
        fs.unmount().unwrap();
        drop(fs);
        let path = scratch.path("map.img");
        std::fs::write(&path, first.image()).unwrap();
        for (name, ino) in names.iter().zip(inodes) {
            let found = file_map::read(&*first, ino).unwrap();
            let ours: Vec<u64> =
                found.runs.iter().flat_map(|run| run.physical..run.physical + run.blocks).collect();
            if *name == "/top/short" {
                assert!(ours.is_empty());
                continue;
            }
            let (_, said) = run("debugfs", &["-R", &format!("blocks <{ino}>"), path.to_str().unwrap()]);
            let words =
                said.lines().filter(|line| !line.starts_with("debugfs")).flat_map(str::split_whitespace);
            let all: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
            // Blocks of the map stand between the others there.
            let theirs: Vec<u64> = all.iter().copied().filter(|block| ours.contains(block)).collect();
            assert_eq!(ours, theirs, "{name}");
            assert_eq!(all.len(), ours.len() + usize::try_from(found.map_blocks).unwrap(), "{name}");
            assert!(!ours.is_empty(), "{name}");
        }
    }
}
