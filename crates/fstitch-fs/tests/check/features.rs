//! A feature that only others use, whose inodes or blocks we take for a leak: freed, and the volume is lost to them.

use std::sync::Arc;

use fstitch_core::RepairMode;
use fstitch_core::{Error, FileSystem, MemDevice, SystemClock};
use fstitch_fs::arrange::{self, Arrangement};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::check_ext2;
use fstitch_patch::CacheOptions;

use crate::corpus::{Shape, debugfs, image};
use crate::repair::repair;
use crate::support::{Scratch, e2fsck_image, have, run};

const PLAIN: Shape = Shape {
    name: "features",
    options: &[
        "-b",
        "1024",
        "-N",
        "512",
        "-j",
        "-J",
        "size=1",
        "-O",
        "orphan_file,fast_commit,stable_inodes",
    ],
    size: "6M",
};

/// The compatible features of the format that a volume of ours may have, beside those that all of them have.
const KEPT: [&str; 7] = [
    "orphan_file",
    "fast_commit",
    "stable_inodes",
    "has_journal",
    "resize_inode",
    "ext_attr",
    "dir_prealloc",
];
/// Those that own what we do not know, as debugfs calls them and as we do.
const REFUSED: [(&str, &str); 5] = [
    ("imagic_inodes", "imagic_inodes"),
    ("lazy_bg", "lazy_bg"),
    ("FEATURE_C7", "exclude_inode"),
    ("snapshot_bitmap", "snapshot_bitmap"),
    ("FEATURE_C13", "0x2000"),
];

/// A volume of [`PLAIN`] after a script of debugfs.
fn changed(scratch: &Scratch, script: &str) -> Vec<u8> {
    let path = scratch.path("changed");
    std::fs::write(&path, image(scratch, &PLAIN)).expect("an image");
    debugfs(scratch, &path, script);
    std::fs::read(&path).expect("the image")
}

fn open(image: Vec<u8>, read_only: bool) -> fstitch_core::Result<(Arc<MemDevice>, impl FileSystem + use<>)> {
    let device = Arc::new(MemDevice::from_image(1024, image));
    let cache = CacheOptions { read_only, ..CacheOptions::default() };
    let fs = fstitch_fs::uhfs::UhfsOptions { read_only, ..fstitch_fs::uhfs::UhfsOptions::default() };
    let arrangement = Arrangement { cache, fs, ..Arrangement::default() };
    let (fs, _) =
        arrange::open::<Ext2>(Arc::clone(&device) as _, &arrangement, Arc::new(SystemClock::new()))?;
    Ok((device, fs))
}

#[test]
fn what_features_own_is_left_to_them() {
    if !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("features-kept");
    let unclean = changed(&scratch, "feature dir_prealloc\nssv state 0");
    let judge = |what: &str, bytes: &[u8]| {
        let (code, text) = e2fsck_image(&scratch, "judge", bytes);
        assert_eq!(code, 0, "{what}: {text}");
        let path = scratch.path("kept");
        std::fs::write(&path, bytes).expect("an image");
        let (_, text) = run("debugfs", &["-R", "stats -h", path.to_str().expect("plain path")]);
        for name in KEPT {
            assert!(text.contains(name), "{what}: {name}: {text}");
        }
        assert!(text.contains("Orphan file inode"), "{what}: {text}");
    };
    let report = check_ext2(&MemDevice::from_image(1024, unclean.clone())).expect("readable");
    let codes: Vec<_> = report.findings.iter().map(|finding| finding.code).collect();
    assert_eq!(codes, ["superblock-not-clean"], "{:#?}", report.findings);
    for mode in [RepairMode::Preen, RepairMode::Yes] {
        let device = MemDevice::from_image(1024, unclean.clone());
        assert!(repair(&device, mode).expect("readable").left.is_clean());
        judge(&format!("{mode:?}"), &device.image());
    }
    let device = Arc::new(MemDevice::from_image(1024, unclean));
    let (fs, _) = arrange::open::<Ext2>(
        Arc::clone(&device) as _,
        &Arrangement::default(),
        Arc::new(SystemClock::new()),
    )
    .expect("it can be mounted");
    let done = fs.reclaim().expect("reclaimed");
    assert_eq!((done.inodes, done.blocks), (0, 0), "{done:?}");
    fs.unmount().expect("unmounted");
    drop(fs);
    judge("a mount", &device.image());
}

#[test]
fn the_orphan_file_has_no_name_and_gets_none() {
    if !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("features-orphan");
    let cases = [
        ("a name", "ln <INO> name", "dirent-bad-inode"),
        ("free in the bitmap", "freei <INO>", "inode-marked-free"),
        ("a hole", "sif <INO> block[1] 0", "orphan-file"),
        ("a block outside", "sif <INO> block[1] 99999", "orphan-file"),
        ("no file", "sif <INO> mode 040755", "orphan-file"),
        ("no length", "sif <INO> size 0", "orphan-file"),
        ("another inode", "ssv orphan_file_inum 500", "orphan-file"),
        ("no inode", "ssv orphan_file_inum 0", "orphan-file"),
        ("somebody's file", "ssv orphan_file_inum 13", "orphan-file"),
        ("no feature", "feature -orphan_file", "orphan-file"),
        ("no journal", "feature -has_journal\nssv journal_inum 0\nclri <8>", "orphan-file"),
    ];
    let healthy = changed(&scratch, "stats");
    let ino = fstitch_core::Le::u32(&healthy, 1024 + 0x280).to_string();
    for (name, script, code) in cases {
        let bytes = changed(&scratch, &script.replace("INO", &ino));
        let device = MemDevice::from_image(1024, bytes.clone());
        let report = check_ext2(&device).expect("readable");
        assert!(report.findings.iter().any(|found| found.code == code), "{name}: {:#?}", report.findings);
        assert_ne!(e2fsck_image(&scratch, "judge", &bytes).0, 0, "{name}");
        let mended = repair(&device, RepairMode::Yes).expect("readable");
        assert!(mended.left.is_clean(), "{name}: {:#?}", mended.left.findings);
        let (code, text) = e2fsck_image(&scratch, "judge", &device.image());
        assert_eq!(code, 0, "{name}: {text}");
        let (_, fs) = open(device.image(), false).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(fs.lookup(fs.root(), b"indirect").is_ok(), "{name}");
    }
}

#[test]
fn the_block_of_a_volume_in_use_is_somewhere_and_is_one() {
    if !have("e2fsck") || !have("debugfs") {
        return;
    }
    let scratch = Scratch::new("features-mmp");
    let image = scratch.path("mmp.img");
    let image = image.to_str().expect("a name");
    let made = ["-q", "-F", "-t", "ext4", "-b", "1024", "-O", "mmp,metadata_csum", image, "16M"];
    assert_eq!(run("mke2fs", &made).0, 0);
    let healthy = std::fs::read(image).expect("made");
    let at = usize::try_from(fstitch_core::Le::u64(&healthy, 1024 + 0x168)).expect("small");
    assert!(check_ext2(&MemDevice::from_image(1024, healthy.clone())).expect("readable").is_clean());
    let in_block = |offset: usize| {
        let mut bytes = healthy.clone();
        bytes[at * 1024 + offset] ^= 1;
        bytes
    };
    let place = |block: u64| {
        std::fs::write(image, &healthy).expect("written");
        let set = format!("ssv mmp_block {block}");
        assert_eq!(run("debugfs", &["-w", "-R", &set, image]).0, 0);
        std::fs::read(image).expect("read")
    };
    let table = u64::from(fstitch_core::Le::u32(&healthy, 2048 + 8));
    let cases = [
        ("no magic number", in_block(0), true),
        ("a wrong sum", in_block(9), true),
        ("nowhere", place(0), false),
        ("behind the end", place(1 << 33), false),
        ("in a table", place(table), false),
    ];
    for (name, bytes, keeps) in cases {
        let device = MemDevice::from_image(1024, bytes);
        let report = check_ext2(&device).expect("readable");
        assert!(report.findings.iter().any(|found| found.code == "mmp"), "{name}: {:#?}", report.findings);
        let mended = repair(&device, RepairMode::Yes).expect("readable");
        assert!(mended.left.is_clean(), "{name}: {:#?}", mended.left.findings);
        let (code, text) = e2fsck_image(&scratch, "judge", &device.image());
        assert_eq!(code, 0, "{name}: {text}");
        let has_it = fstitch_core::Le::u32(&device.image(), 1024 + 0x60) & 0x100 != 0;
        assert_eq!(has_it, keeps, "{name}");
    }
}

#[test]
fn features_that_own_what_we_do_not_know_are_refused_by_name() {
    if !have("debugfs") {
        return;
    }
    let scratch = Scratch::new("features-refused");
    for (theirs, ours) in REFUSED {
        let bytes = changed(&scratch, &format!("feature {theirs}\nssv state 0"));
        let device = MemDevice::from_image(1024, bytes.clone());
        let refused = |result: fstitch_core::Result<()>| match result {
            Err(Error::Unsupported(text)) => assert!(text.contains(ours), "{ours}: {text}"),
            other => panic!("{ours}: {other:?}"),
        };
        refused(check_ext2(&device).map(drop));
        refused(repair(&device, RepairMode::Yes).map(drop));
        refused(open(bytes.clone(), false).map(drop));
        assert!(device.image() == bytes, "{ours}");
        let (_, fs) = open(bytes, true).expect("reading does no harm");
        assert!(fs.lookup(fs.root(), b"indirect").is_ok(), "{ours}");
    }
}
