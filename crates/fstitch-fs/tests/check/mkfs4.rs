//! ext4 volumes that we make satisfy the reference checker whatever their features, and are what mke2fs would have made.

use fstitch_core::num::to_usize;
use fstitch_core::{MemDevice, Timestamp};
use fstitch_fs::ext2::mkfs::{MkfsFeatures, MkfsJournal, MkfsOptions, MkfsSummary, mkfs};

use crate::support::{Scratch, SparseFile, e2fsck, e2fsck_image, have, run};

/// The UUID of all volumes here, as bytes and as mke2fs takes it.
const UUID: [u8; 16] = [0x5a; 16];
const UUID_TEXT: &str = "5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a";

/// The defaults with a fixed identity.
fn options() -> MkfsOptions {
    MkfsOptions {
        features: MkfsFeatures::EXT4,
        journal: MkfsJournal::Suitable,
        ..MkfsOptions::new(UUID, [0xa5; 16], Timestamp { secs: 1_700_000_000, nanos: 0 })
    }
}

/// The defaults with another list of features.
fn with_features(list: &str) -> MkfsOptions {
    let mut options = options();
    options.features.apply(list).unwrap();
    if !options.features.has_journal {
        options.journal = MkfsJournal::None;
    }
    options
}

/// Makes a volume of `kib` KiB over old contents and has it judged.
fn judge(scratch: &Scratch, name: &str, kib: u64, options: &MkfsOptions) -> Vec<u8> {
    let device = MemDevice::from_image(512, vec![0xa7; to_usize(kib * 1024)]);
    let summary = mkfs(&device, options, &mut |_, _| {}).unwrap_or_else(|e| panic!("{name}: {e}"));
    let image = device.image();
    let (code, text) = e2fsck_image(scratch, "image", &image);
    assert_eq!(code, 0, "{name}: {summary:?}\n{text}");
    assert!(text.contains(&format!("{}/{} blocks", summary.blocks - summary.free_blocks, summary.blocks)), "{name}: {summary:?}\n{text}");
    image
}

#[test]
fn every_block_and_inode_size_at_many_volume_sizes() {
    if !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("mkfs4-matrix");
    let sizes = [2048, 3000, 4300, 8193, 8300, 8441, 16_385, 20_000, 33_000, 70_001, 140_003];
    for block_size in [1024, 2048, 4096] {
        for inode_size in [128, 256, 512, 1024] {
            for kib in sizes.into_iter().filter(|kib| kib * 1024 / u64::from(block_size) >= 2048) {
                let options =
                    MkfsOptions { block_size: Some(block_size), inode_size: Some(inode_size), ..options() };
                judge(&scratch, &format!("b{block_size}-i{inode_size}-{kib}k"), kib, &options);
            }
        }
    }
}

/// Features to switch, in lists: each alone changes something, and each pair as well.
fn switches() -> Vec<&'static str> {
    let mut lists = vec![
        "^has_journal,^orphan_file",
        "^ext_attr",
        "^resize_inode",
        "^dir_index",
        "sparse_super2",
        "stable_inodes",
        "orphan_file",
        "^filetype",
        "^resize_inode,meta_bg",
        "^64bit,^extent",
        "^64bit",
        "^flex_bg",
        "ea_inode",
        "metadata_csum_seed,metadata_csum",
        "large_dir",
        "inline_data",
        "^sparse_super",
        "^large_file",
        "^huge_file",
        "^dir_nlink",
        "^extra_isize",
        "^metadata_csum,^metadata_csum_seed",
        "^metadata_csum,^metadata_csum_seed,uninit_bg",
    ];
    lists.dedup();
    lists
}

#[test]
fn features_in_pairs() {
    if !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("mkfs4-features");
    let switches = switches();
    for (at, one) in switches.iter().enumerate() {
        for other in &switches[at..] {
            let list = format!("{one},{other}");
            let options = MkfsOptions { block_size: Some(1024), ..with_features(&list) };
            judge(&scratch, &list, 20_000, &options);
        }
    }
}

#[test]
fn options_of_the_layout() {
    if !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("mkfs4-options");
    let small = || MkfsOptions { block_size: Some(1024), ..options() };
    for groups in [1, 2, 4, 64] {
        let options = MkfsOptions { groups_per_flex: Some(groups), ..small() };
        judge(&scratch, &format!("flex {groups}"), 140_003, &options);
    }
    judge(&scratch, "many inodes", 140_003, &MkfsOptions { inodes: Some(100_000), ..small() });
    judge(&scratch, "few inodes", 140_003, &MkfsOptions { bytes_per_inode: Some(1 << 20), ..small() });
    judge(&scratch, "journal", 140_003, &MkfsOptions { journal: MkfsJournal::Bytes(40 << 20), ..small() });
    judge(&scratch, "reserve", 40_000, &MkfsOptions { reserved_percent: 0, root_owner: (100_000, 7), ..small() });
    // A journal of more extents than its inode holds, for no two groups have their free blocks together.
    let options = MkfsOptions { journal: MkfsJournal::Bytes(60 << 20), ..with_features("^flex_bg") };
    judge(&scratch, "scattered", 80_000, &MkfsOptions { block_size: Some(1024), ..options });
}

#[test]
fn large_sparse_volumes() {
    if !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("mkfs4-large");
    for (block_size, gib) in [(4096, 20), (4096, 200), (2048, 17), (1024, 5)] {
        let path = scratch.path("large");
        let device = SparseFile::create(&path, 4096, gib << 30);
        let options =
            MkfsOptions { block_size: Some(block_size), device_is_zero: true, ..options() };
        let summary = mkfs(&device, &options, &mut |_, _| {}).unwrap();
        let (code, text) = e2fsck(&path);
        assert_eq!(code, 0, "{block_size}: {summary:?}\n{text}");
    }
}

/// What dumpe2fs says of an image, but for what we do otherwise or at another moment:
/// the overhead is left to who mounts the volume; the journal has the features that the kernel would give it; what was written is
/// not counted.
fn described(path: &str) -> Vec<String> {
    let (code, text) = run("dumpe2fs", &[path]);
    assert_eq!(code, 0, "{text}");
    let otherwise =
        ["Overhead clusters:", "Lifetime writes:", "Checksum:", "Journal features:", "Journal checksum", "dumpe2fs"];
    let lines = text.lines().filter(|line| !otherwise.iter().any(|start| line.starts_with(start)));
    lines.map(str::to_owned).collect()
}

fn features_of(options: &MkfsOptions) -> String {
    let mut list = String::from("none");
    for name in MkfsFeatures::names() {
        let (mut on, mut off) = (options.features, options.features);
        on.apply(name).unwrap();
        off.apply(&format!("^{name}")).unwrap();
        if on == options.features && off != options.features {
            list.push(',');
            list.push_str(name);
        }
    }
    list
}

#[track_caller]
fn as_mke2fs(scratch: &Scratch, kib: u64, options: &MkfsOptions, more: &[&str]) {
    let (ours, theirs) = (scratch.path("ours"), scratch.path("theirs"));
    let (ours_text, theirs_text) = (ours.to_str().unwrap(), theirs.to_str().unwrap());
    let device = SparseFile::create(&ours, 512, kib * 1024);
    let options = MkfsOptions { device_is_zero: true, ..options.clone() };
    let made: MkfsSummary = mkfs(&device, &options, &mut |_, _| {}).unwrap();
    let block_size = made.block_size.to_string();
    let features = features_of(&options);
    let extended = "nodiscard,lazy_itable_init=0,hash_seed=a5a5a5a5-a5a5-a5a5-a5a5-a5a5a5a5a5a5";
    let size = format!("{kib}k");
    let words = ["-q", "-F", "-t", "ext4", "-b", &block_size, "-O", &features, "-U", UUID_TEXT, "-E", extended];
    let _ = std::fs::remove_file(&theirs);
    let words: Vec<&str> = words.iter().chain(more).chain(&[theirs_text, size.as_str()]).copied().collect();
    let output = std::process::Command::new("mke2fs")
        .args(&words)
        .env("E2FSPROGS_FAKE_TIME", "1700000000")
        .output()
        .unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    let (ours, theirs) = (described(ours_text), described(theirs_text));
    for (one, other) in ours.iter().zip(&theirs) {
        assert_eq!(one, other, "{kib} KiB, {words:?}");
    }
    assert_eq!(ours.len(), theirs.len());
}

#[test]
fn volumes_are_those_of_mke2fs() {
    if !have("mke2fs") || !have("dumpe2fs") {
        return;
    }
    let scratch = Scratch::new("mkfs4-reference");
    for kib in [2048, 8192, 16_384, 17_408, 65_536, 139_264, 300_000, 614_400, 3 << 20, 20 << 20] {
        as_mke2fs(&scratch, kib, &options(), &[]);
    }
    let small = MkfsOptions { block_size: Some(1024), ..options() };
    let with = |groups| MkfsOptions { groups_per_flex: Some(groups), ..small.clone() };
    as_mke2fs(&scratch, 300_000, &with(4), &["-G", "4"]);
    let many = MkfsOptions { inodes: Some(100_000), ..small.clone() };
    as_mke2fs(&scratch, 140_000, &many, &["-N", "100000"]);
    let options = MkfsOptions { reserved_percent: 1, inode_size: Some(512), ..small };
    as_mke2fs(&scratch, 65_536, &options, &["-m", "1", "-I", "512"]);
    for list in [
        "sparse_super2",
        "^resize_inode,meta_bg",
        "^flex_bg",
        "^metadata_csum,uninit_bg",
        "^metadata_csum",
        "^64bit",
        "orphan_file,metadata_csum_seed",
        "^has_journal",
        "ea_inode,large_dir,stable_inodes",
        "^huge_file,^dir_nlink,^extra_isize,^large_file",
    ] {
        as_mke2fs(&scratch, 65_536, &with_features(list), &[]);
    }
}
