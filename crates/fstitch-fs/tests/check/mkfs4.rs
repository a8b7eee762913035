//! ext4 volumes that we make satisfy the reference checker whatever their features, and are what mke2fs would have made.

use std::process::Command;

use fstitch_core::num::to_usize;
use fstitch_core::{MemDevice, Timestamp};
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::ext2::mkfs::{MkfsFeatures, MkfsJournal, MkfsOptions, mkfs};

use crate::support::{Scratch, SparseFile, e2fsck, e2fsck_image, have, is_whole, run};

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
    options.features.apply(list).expect("known features");
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
    assert!(
        text.contains(&format!("{}/{} blocks", summary.blocks - summary.free_blocks, summary.blocks)),
        "{name}: {summary:?}\n{text}"
    );
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

/// Features to switch, with what each needs or excludes.
const SWITCHES: [&str; 23] = [
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

#[test]
fn features_in_pairs() {
    if !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("mkfs4-features");
    for (at, one) in SWITCHES.iter().enumerate() {
        for other in &SWITCHES[..=at] {
            let mut list = format!("{other},{one}");
            for (needed, needs) in [
                ("^has_journal", "^orphan_file"),
                ("^extent", "^64bit"),
                ("meta_bg", "^resize_inode"),
                ("^metadata_csum", "^metadata_csum_seed"),
            ] {
                let off = format!("^{needed}");
                if list.split(',').any(|word| word == needed) && !list.contains(&off) {
                    list = format!("{list},{needs}");
                }
            }
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
    judge(
        &scratch,
        "reserve",
        40_000,
        &MkfsOptions { reserved_percent: 0, root_owner: (100_000, 7), ..small() },
    );
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
        let options = MkfsOptions { block_size: Some(block_size), device_is_zero: true, ..options() };
        let summary = mkfs(&device, &options, &mut |_, _| {}).unwrap();
        let (code, text) = e2fsck(&path);
        assert_eq!(code, 0, "{block_size}: {summary:?}\n{text}");
    }
}

/// What dumpe2fs says of an image, without what we do otherwise: the overhead is left to who mounts the volume; the journal has
/// the features that the kernel would give it; what was written is not counted; and a journal that would be in pieces is put
/// where it is not, for which other blocks of the same group are free.
fn described(path: &str) -> Vec<String> {
    let (code, text) = run("dumpe2fs", &[path]);
    assert_eq!(code, 0, "{text}");
    let otherwise = [
        "Overhead clusters:",
        "Lifetime writes:",
        "Checksum:",
        "Journal features:",
        "Journal checksum",
        "dumpe2fs",
        "  Free blocks: ",
    ];
    let lines = text.lines().filter(|line| !otherwise.iter().any(|start| line.starts_with(start)));
    lines.map(without_sum).collect()
}

/// A line without the sum in it, which only says that something else differs.
fn without_sum(line: &str) -> String {
    let words = line.split(' ').collect::<Vec<_>>();
    let at = words.iter().position(|word| *word == "csum");
    let keep = |index: usize| at.is_none_or(|at| index < at || index > at + 1);
    let kept: Vec<&str> =
        words.iter().enumerate().filter(|(index, _)| keep(*index)).map(|(_, word)| *word).collect();
    kept.join(" ")
}

/// All of the features by name.
fn features_of(options: &MkfsOptions) -> String {
    let mut list = String::from("none");
    for name in MkfsFeatures::names() {
        let mut off = options.features;
        off.apply(&format!("^{name}")).expect("a known feature");
        if off != options.features {
            list.push(',');
            list.push_str(name);
        }
    }
    list
}

/// Makes a volume, lets mke2fs make the same, and compares what dumpe2fs says of them.
fn as_mke2fs(scratch: &Scratch, kib: u64, options: &MkfsOptions, more: &[&str]) {
    let (ours, theirs) = (scratch.path("ours"), scratch.path("theirs"));
    let device = SparseFile::create(&ours, 512, kib * 1024);
    let options = MkfsOptions { device_is_zero: true, ..options.clone() };
    let made = mkfs(&device, &options, &mut |_, _| {}).expect("a volume");
    let block_size = made.block_size.to_string();
    let features = features_of(&options);
    let extended = "nodiscard,lazy_itable_init=0,hash_seed=a5a5a5a5-a5a5-a5a5-a5a5-a5a5a5a5a5a5";
    let (ours, theirs) = (ours.to_str().expect("plain"), theirs.to_str().expect("plain"));
    let size = format!("{kib}k");
    let words =
        ["-q", "-F", "-t", "ext4", "-b", &block_size, "-O", &features, "-U", UUID_TEXT, "-E", extended];
    // None is left from the case before.
    let _ = std::fs::remove_file(theirs);
    let words: Vec<&str> = words.iter().chain(more).chain(&[theirs, size.as_str()]).copied().collect();
    let mut command = Command::new("mke2fs");
    let output = command.args(&words).env("E2FSPROGS_FAKE_TIME", "1700000000").output().expect("it runs");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    let (ours, theirs) = (described(ours), described(theirs));
    for (one, other) in ours.iter().zip(&theirs) {
        assert_eq!(one, other, "{words:?}");
    }
    assert_eq!(ours.len(), theirs.len());
}

#[test]
fn volumes_are_those_of_mke2fs() {
    if !have("mke2fs") || !have("dumpe2fs") {
        return;
    }
    let scratch = Scratch::new("mkfs4-reference");
    // Sizes for which no number of inodes must be rounded: ours are then more, theirs fewer than were asked for.
    for kib in [2048, 8192, 16_384, 65_536, 139_264, 204_800, 614_400, 3 << 20, 20 << 20] {
        as_mke2fs(&scratch, kib, &options(), &[]);
    }
    let small = MkfsOptions { block_size: Some(1024), ..options() };
    // Without a journal: mke2fs may pass over blocks that it fits into.
    let without = MkfsOptions { block_size: Some(1024), ..with_features("^has_journal") };
    let with = |groups| MkfsOptions { groups_per_flex: Some(groups), ..without.clone() };
    as_mke2fs(&scratch, 262_144, &with(4), &["-G", "4"]);
    let many = MkfsOptions { inodes: Some(95_200), ..small.clone() };
    as_mke2fs(&scratch, 139_264, &many, &["-N", "95200"]);
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
        "quota",
        "quota,project,orphan_file",
        "^huge_file,^dir_nlink,^extra_isize,^large_file",
    ] {
        as_mke2fs(&scratch, 65_536, &with_features(list), &[]);
    }
}

/// Volumes with clusters: sizes in KiB and of blocks and clusters, and what else is asked for.
const CLUSTERS: [(u64, u32, u32, &str); 14] = [
    (16_384, 1024, 4096, ""),
    (65_536, 1024, 4096, ""),
    (65_536, 1024, 16_384, ""),
    (65_536, 1024, 2048, "^flex_bg"),
    (65_536, 2048, 8192, ""),
    (65_536, 4096, 65_536, ""),
    (262_144, 1024, 16_384, "orphan_file"),
    (262_144, 4096, 16_384, "^has_journal"),
    // Without a journal, which would be in pieces there.
    (1 << 20, 1024, 2048, "^resize_inode,^has_journal"),
    (1 << 20, 4096, 8192, "sparse_super2"),
    (3 << 20, 4096, 65_536, "^metadata_csum,uninit_bg"),
    (262_144, 1024, 65_536, "^64bit"),
    (3 << 20, 2048, 4096, "^resize_inode,meta_bg,^has_journal"),
    (20 << 20, 4096, 65_536, "^flex_bg"),
];

fn with_clusters(block_size: u32, cluster_size: u32, list: &str) -> MkfsOptions {
    MkfsOptions {
        block_size: Some(block_size),
        cluster_size: Some(cluster_size),
        ..with_features(&format!("bigalloc,{list}"))
    }
}

#[test]
fn volumes_with_clusters_are_those_of_mke2fs() {
    if !have("mke2fs") || !have("dumpe2fs") {
        return;
    }
    let scratch = Scratch::new("mkfs4-clusters");
    for (kib, block_size, cluster_size, list) in CLUSTERS {
        let options = with_clusters(block_size, cluster_size, list);
        as_mke2fs(&scratch, kib, &options, &["-C", &cluster_size.to_string()]);
    }
    let usual = MkfsOptions { cluster_size: None, ..with_clusters(1024, 0, "") };
    as_mke2fs(&scratch, 65_536, &usual, &[]);
}

#[test]
fn volumes_with_clusters_of_any_size_are_sound() {
    if !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("mkfs4-cluster-sizes");
    let shapes = [(1024, 2), (1024, 4), (1024, 64), (2048, 8), (4096, 1), (4096, 4), (8192, 16)];
    let lists = ["", "orphan_file,mmp", "^flex_bg,^resize_inode", "inline_data,ea_inode,fast_commit"];
    for (shape, (block_size, ratio)) in shapes.into_iter().enumerate() {
        for (size, kib) in [20_000, 33_003, 70_001, 140_003].into_iter().enumerate() {
            for (no, list) in lists.into_iter().enumerate() {
                // Each shape meets each size and each list.
                if !is_whole() && (shape + size + no) % lists.len() != 0 {
                    continue;
                }
                let options = with_clusters(block_size, block_size * ratio, list);
                judge(&scratch, &format!("b{block_size} of {ratio} {list} {kib}k"), kib, &options);
            }
        }
    }
    for (options, named) in [
        (with_clusters(4096, 2048, ""), "clusters of 2048"),
        (with_clusters(1024, 1 << 23, ""), "clusters of"),
        (with_clusters(1024, 5000, ""), "clusters of 5000"),
        (MkfsOptions { cluster_size: Some(4096), ..options() }, "without feature bigalloc"),
    ] {
        let device = MemDevice::new(512, 80_000);
        let refused = mkfs(&device, &options, &mut |_, _| {}).expect_err(named).to_string();
        assert!(refused.contains(named), "{refused}");
    }
}

/// What prevents a mistake here: a half of a number that is not written, of which nothing is seen below 2^32 blocks.
#[test]
fn volumes_of_more_blocks_than_32_bits_count_are_those_of_mke2fs() {
    if !have("mke2fs") || !have("dumpe2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("mkfs4-larger");
    let probe = std::fs::File::create(scratch.path("probe")).expect("a file");
    if let Err(error) = probe.set_len(17 << 40) {
        println!("skipped: no file of 17 TiB here: {error}");
        return;
    }
    let kib = 17 << 30;
    // Without a journal, which mke2fs puts elsewhere.
    as_mke2fs(&scratch, kib, &with_features("^has_journal"), &[]);
    if !is_whole() {
        return;
    }
    // So many descriptors that each copy of them would take a group.
    let small = MkfsOptions {
        block_size: Some(1024),
        groups_per_flex: Some(1024),
        bytes_per_inode: Some(1 << 20),
        journal: MkfsJournal::Blocks(4096),
        device_is_zero: true,
        ..options()
    };
    let path = scratch.path("ours");
    let device = SparseFile::create(&path, 4096, (4 << 40) + (1 << 36));
    let made = mkfs(&device, &small, &mut |_, _| {}).expect("a volume");
    assert!(made.blocks > 1 << 32);
    let (_, said) = run("dumpe2fs", &["-h", path.to_str().expect("plain")]);
    let features = said.lines().find(|line| line.starts_with("Filesystem features:")).expect("a line");
    assert!(features.contains("meta_bg") && !features.contains("resize_inode"), "{features}");
    let (code, said) = e2fsck(&path);
    assert_eq!(code, 0, "{said}");
    let report = check_ext2(&SparseFile::open(&path, 1024)).expect("a volume");
    assert_eq!(report.total, 0, "{:#?}", report.findings);
    // What pointers of 32 bits must reach is refused by name.
    let refused = mkfs(
        &device,
        &MkfsOptions { block_size: Some(1024), ..with_features("^64bit,^extent") },
        &mut |_, _| {},
    );
    assert!(refused.is_err_and(|error| error.to_string().contains("64bit")));
}

/// A mount by the kernel, taken away with the value.
struct KernelMount(String);

impl KernelMount {
    /// Mounts, or says why that is not possible here. What the kernel says of the volume itself is a failure.
    fn new(image: &str, at: &str) -> Option<Self> {
        let (code, text) = run("mount", &["-t", "ext4", "-o", "loop", image, at]);
        if code != 0
            && ["only root", "permission", "loop device", "unknown filesystem"]
                .iter()
                .any(|why| text.contains(why))
        {
            println!("skipped: {}", text.trim());
            return None;
        }
        assert_eq!(code, 0, "{image}: {text}");
        Some(Self(at.to_owned()))
    }

    fn end(self) {
        // A child that another test has started may hold what was open here until it runs its program.
        let mut said = String::new();
        for _ in 0..200 {
            let (code, text) = run("umount", &[&self.0]);
            if code == 0 {
                return;
            }
            said = text;
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        panic!("{said}");
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        // After `end` nothing is mounted there any more, which is as well.
        let _ = run("umount", &[&self.0]);
    }
}

#[test]
fn the_kernel_uses_what_we_make() {
    if !have("mount") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("mkfs4-kernel");
    let at = scratch.path("mount");
    std::fs::create_dir(&at).expect("a new directory");
    let (at, image) = (at.to_str().expect("plain").to_owned(), scratch.path("image"));
    let image_text = image.to_str().expect("plain").to_owned();
    let mut cases: Vec<(String, MkfsOptions)> = Vec::new();
    for block_size in [1024, 2048, 4096] {
        for inode_size in [128, 256, 512] {
            let (block_size, inode_size) = (Some(block_size), Some(inode_size));
            let name = format!("{block_size:?} {inode_size:?}");
            cases.push((name, MkfsOptions { block_size, inode_size, ..options() }));
        }
    }
    cases.extend(SWITCHES.iter().map(|list| ((*list).to_owned(), with_features(list))));
    for (block_size, cluster_size) in [(1024, 4096), (1024, 65_536), (2048, 16_384), (4096, 16_384)] {
        cases.push((format!("clusters of {cluster_size}"), with_clusters(block_size, cluster_size, "")));
    }
    for (name, options) in cases {
        let device = SparseFile::create(&image, 512, 40 << 20);
        mkfs(&device, &options, &mut |_, _| {}).unwrap_or_else(|error| panic!("{name}: {error}"));
        let Some(mounted) = KernelMount::new(&image_text, &at) else { return };
        let script = "cd \"$1\" && for i in $(seq 300); do echo $i > f$i; done && mkdir -p a/b/c \
            && dd if=/dev/zero of=a/large bs=64k count=100 status=none && ln -s f1 s && rm f1?? && sync";
        let (code, text) = run("sh", &["-c", script, "sh", &at]);
        assert_eq!(code, 0, "{name}: {text}");
        mounted.end();
        let (code, text) = e2fsck(&image);
        assert_eq!(code, 0, "{name}\n{text}");
    }
}
