//! Features that mean something to what is on a volume come and go: sums, and files of quotas. Judged by e2fsck, dumpe2fs, debugfs and the kernel.
//! Cut at writes: `tuned_cuts`.
//!
//! What it prevents: inodes that others take for garbage because their sums are missing; directories whose last name was overwritten by a tail;
//! blocks that nobody knows to be in use; a volume that half has a feature.

use std::sync::Arc;

use fstitch_core::{BlockDevice, Consistency, FileSystem, InodeNo, MemDevice};
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::ext2::file_map;
use fstitch_fs::ext2::journal::read_superblock;
use fstitch_fs::ext2::tuning::{Tuning, tune};

use super::cut::is_thorough;
use super::quota::{counted, listed, steps};
use super::support::{Scratch, have, run};
use super::tree::{CALLER, Tree, change, fill};
use super::{NOW, device, e2fsck_is_content, kernel, made, mounted};

pub fn features(list: &str) -> Tuning {
    Tuning { features: Some(list.to_owned()), ..Tuning::default() }
}

pub fn tuned(name: &str, device: &dyn BlockDevice, list: &str) {
    tune(device, &features(list), NOW).unwrap_or_else(|error| panic!("{name}, {list}: {error}"));
}

fn has_journal(device: &dyn BlockDevice) -> bool {
    read_superblock(device).unwrap().1.has_journal()
}

pub fn mechanism(device: &dyn BlockDevice) -> Consistency {
    if has_journal(device) { Consistency::Ordered } else { Consistency::Soft }
}

/// The tree, by a mount that leaves everything as it is.
pub fn tree(device: &Arc<MemDevice>) -> Tree {
    let copy = super::device(device.image());
    let fs = mounted(&copy, mechanism(&*copy));
    Tree::of(&fs)
}

/// The features that dumpe2fs names.
pub fn said(scratch: &Scratch, image: &[u8]) -> Vec<String> {
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
    // The kernel here has no quotas.
    if !said.iter().any(|word| word == "quota" || word == "project")
        && let Some(found) = kernel::tree(scratch, &device.image())
    {
        found.expect(expected, &format!("{name}: the kernel's"));
    }
}

const NO_SUMS: &str = "^metadata_csum,^metadata_csum_seed,^uninit_bg";

/// Shapes of volumes, and how `mke2fs` makes them.
const SHAPES: [(&str, &[&str]); 14] = [
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
    ("ea_inode", &["-O", "ea_inode,^metadata_csum", "-b", "1024"]),
    // Its directories cannot be written anew: with other seeds one may have no room.
    (
        "bigalloc",
        &[
            "-O",
            "bigalloc,^metadata_csum",
            "-C",
            "16384",
            "-b",
            "4096",
            "-E",
            "hash_seed=22222222-2222-2222-2222-222222222222",
        ],
    ),
];

#[test]
fn sums_come_and_go_and_come_back() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-tuned-sums");
    let usual = ["ext2", "uninit_bg", "sums", "128", "meta_bg", "orphan_file", "bigalloc"];
    let some = |(name, _): &(&str, _)| is_thorough() || usual.contains(name);
    for (name, options) in SHAPES.into_iter().filter(some) {
        let Some((image, expected)) = kernel::filled(&scratch, &made(&scratch, options)) else { return };
        let below = device(image);
        let lists = [
            "metadata_csum",
            "^metadata_csum,uninit_bg",
            "metadata_csum,metadata_csum_seed",
            NO_SUMS,
            "uninit_bg",
            "^uninit_bg",
            "metadata_csum",
        ];
        for list in &lists[..if is_thorough() { 7 } else { 4 }] {
            let name = format!("{name}, {list}");
            tuned(&name, &*below, list);
            let list = if *list == "metadata_csum" { "metadata_csum,^uninit_bg" } else { list };
            expect(&scratch, &name, (&below, list), &expected);
        }
        tuned(name, &*below, "metadata_csum");
        // The kernel's journal gets sums, too, when it is mounted.
        let write = |at: &std::path::Path| std::fs::write(at.join("top/written"), name).unwrap();
        let Some((image, expected)) = kernel::changed(&scratch, &below.image(), write) else { return };
        let below = device(image);
        expect(&scratch, &format!("{name}, changed by the kernel"), (&below, "metadata_csum"), &expected);
        if !has_journal(&*below) {
            // Soft updates do not change all of what the kernel writes there.
            continue;
        }
        let fs = mounted(&below, Consistency::Ordered);
        change(&fs, 3).unwrap_or_else(|error| panic!("{name}: {error}"));
        let expected = Tree::of(&fs);
        fs.unmount().unwrap();
        drop(fs);
        expect(&scratch, &format!("{name}, changed"), (&below, "metadata_csum"), &expected);
    }
}

/// A linear directory whose blocks of 1 KiB are full to the last byte, in the root.
pub fn full_directory(fs: &dyn FileSystem) -> InodeNo {
    let dir = fs.mkdir(&CALLER, fs.root(), b"full", 0o755).unwrap().attr.ino;
    let name = |at: usize| if at < 50 { format!("{at:012}") } else { format!("{at:08}") };
    let file = fs.mknod(&CALLER, dir, name(0).as_bytes(), 0o100_644, 0).unwrap().attr.ino;
    for at in 1..50 + 64 * 14 {
        fs.link(&CALLER, file, dir, name(at).as_bytes()).unwrap();
    }
    dir
}

#[test]
fn directories_without_room_are_written_anew() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-tuned-full");
    let shapes: [(&str, &[&str]); 3] = [
        ("ext2", &["-t", "ext2", "-b", "1024", "-O", "^dir_index"]),
        ("extents", &["-b", "1024", "-O", "^metadata_csum,^dir_index"]),
        ("quota", &["-b", "1024", "-O", "^metadata_csum,^dir_index,quota"]),
    ];
    for (name, options) in shapes {
        let below = device(made(&scratch, options));
        let fs = mounted(&below, mechanism(&*below));
        let dir = full_directory(&fs);
        let expected = Tree::of(&fs);
        fs.unmount().unwrap();
        drop(fs);
        let before = file_map::read(&*below, dir.get()).unwrap();
        let blocks = |map: &file_map::FileMap| map.runs.iter().map(|run| run.blocks).sum::<u64>();
        assert_eq!(blocks(&before), 15, "{name}: its blocks are full");
        // Nothing is written where there is no room.
        let tight = device(below.image());
        let fs = mounted(&tight, mechanism(&*tight));
        let filler = fs.mknod(&CALLER, fs.root(), b"filler", 0o100_644, 0).unwrap().attr.ino;
        let mut at = 0;
        while fs.write(&CALLER, filler, at, &[1; 4096]).is_ok() {
            at += 4096;
        }
        while fs.write(&CALLER, filler, at, &[1; 1024]).is_ok() {
            at += 1024;
        }
        fs.unmount().unwrap();
        drop(fs);
        let image = tight.image();
        let refused = tune(&*tight, &features("metadata_csum"), NOW).unwrap_err().to_string();
        assert!(refused.contains(&format!("directory {} has no room", dir.get())), "{name}: {refused}");
        assert!(tight.image() == image, "{name}: refused, and something is written");
        tuned(name, &*below, "metadata_csum");
        let after = file_map::read(&*below, dir.get()).unwrap();
        assert!(
            blocks(&after) > 15 && after.runs[0].physical != before.runs[0].physical,
            "{name}: {after:?}"
        );
        expect(&scratch, name, (&below, "metadata_csum"), &expected);
        tuned(name, &*below, "^metadata_csum");
        expect(&scratch, name, (&below, "^metadata_csum"), &expected);
        assert_eq!(file_map::read(&*below, dir.get()).unwrap(), after, "{name}: it stays where it is");
    }
}

#[test]
fn what_is_free_in_a_block_comes_together() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-tuned-gaps");
    let clusters = ["-b", "1024", "-C", "4096", "-O", "bigalloc,^metadata_csum,^dir_index"];
    for (options, moves) in
        [(&["-b", "1024", "-O", "^metadata_csum,^dir_index"][..], false), (&clusters, true)]
    {
        let below = device(made(&scratch, options));
        let fs = mounted(&below, Consistency::Ordered);
        let dir = full_directory(&fs);
        let all = std::iter::once(format!("{:012}", 10));
        for name in all.chain((0..14).map(|at| format!("{:08}", 50 + at * 64 + 30))) {
            fs.unlink(&CALLER, dir, name.as_bytes()).unwrap();
        }
        // Last names that a tail would have room in the midst of.
        let file = fs.lookup(dir, format!("{:012}", 1).as_bytes()).unwrap().attr.ino;
        for block in [3, 7] {
            for last in [62, 63] {
                fs.unlink(&CALLER, dir, format!("{:08}", 50 + block * 64 + last).as_bytes()).unwrap();
            }
            fs.link(&CALLER, file, dir, format!("{block:024}").as_bytes()).unwrap();
        }
        let expected = Tree::of(&fs);
        fs.unmount().unwrap();
        drop(fs);
        let map = || file_map::read(&*below, dir.get()).unwrap();
        let before = map();
        tuned("gaps", &*below, "metadata_csum");
        let after = map();
        // A block that is written in place with all its names elsewhere could be torn.
        assert_eq!(after == before, moves, "it is where it was, or anew");
        for list in ["metadata_csum", "^metadata_csum", "metadata_csum"] {
            tuned("gaps", &*below, list);
            expect(&scratch, list, (&below, list), &expected);
            assert_eq!(map(), after, "{list}: it is where it was");
        }
    }
}

#[test]
fn names_of_one_hash_are_found_in_two_leaves_of_a_new_index() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-tuned-hashes");
    let mut image = made(&scratch, &["-b", "1024", "-O", "^metadata_csum"]);
    // Legacy hashes, which are easily the same.
    image[1024 + 0xfc] = 0;
    let below = device(image);
    let fs = mounted(&below, Consistency::Ordered);
    let dir = fs.mkdir(&CALLER, fs.root(), b"pairs", 0o755).unwrap().attr.ino;
    for name in super::names::pairs(120, 248) {
        fs.mknod(&CALLER, dir, &name, 0o100_644, 0).unwrap();
    }
    let expected = Tree::of(&fs);
    fs.unmount().unwrap();
    drop(fs);
    let before = file_map::read(&*below, dir.get()).unwrap();
    tuned("pairs", &*below, "metadata_csum");
    assert!(file_map::read(&*below, dir.get()).unwrap() != before, "a leaf had no room");
    expect(&scratch, "pairs", (&below, "metadata_csum"), &expected);
}

#[test]
fn indexes_of_all_levels_are_written_anew_with_their_directories() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-tuned-index");
    for options in [&["-b", "1024", "-O", "^metadata_csum"][..], &["-t", "ext3", "-b", "1024"]] {
        let Some(image) = kernel::with_names(&scratch, &made(&scratch, options), 9000) else { return };
        let below = device(image);
        let expected = tree(&below);
        for list in ["metadata_csum", "^metadata_csum", "metadata_csum"] {
            tuned("index", &*below, list);
            expect(&scratch, list, (&below, list), &expected);
            let path = scratch.path("index.img");
            std::fs::write(&path, below.image()).unwrap();
            let (_, said) = run("debugfs", &["-R", "htree_dump /many", path.to_str().unwrap()]);
            assert!(said.contains("Indirect levels: 1"), "{list}: it has lost its index: {said}");
        }
        let fs = mounted(&below, Consistency::Ordered);
        let many = fs.walk(b"/many").unwrap().attr.ino;
        let first = b"a name that is longer than most names are, with a number: 0";
        let file = fs.lookup(many, first).unwrap().attr.ino;
        for at in 0..3000 {
            fs.link(&CALLER, file, many, format!("more, and longer than most names, {at}").as_bytes())
                .unwrap();
        }
        let expected = Tree::of(&fs);
        fs.unmount().unwrap();
        drop(fs);
        expect(&scratch, "more names", (&below, "metadata_csum"), &expected);
    }
}

/// Fills what a volume says never to have been written with something else. How many groups have some of that.
fn unwritten_look_used(device: &MemDevice) -> usize {
    let (_, shape) = read_superblock(device).unwrap();
    let size = shape.block_size as usize;
    let image = device.image();
    let put = |no: u64, from: usize| {
        let no = usize::try_from(no).unwrap();
        let mut data = image[no * size..(no + 1) * size].to_vec();
        data[from..].fill(0x5a);
        let block = fstitch_core::BlockNo(no as u64);
        let write = fstitch_core::BlockWrite { block, kind: fstitch_core::BlockKind::Data, data: &data };
        device.write(&[write]).unwrap();
    };
    let mut groups = 0;
    for group in 0..shape.group_count() {
        let (no, offset) = shape.descriptor_place(group);
        let raw = &image[usize::try_from(no).unwrap() * size + offset..];
        let word = |at: usize| u64::from(u32::from_le_bytes(raw[at..at + 4].try_into().unwrap()));
        let short = |at: usize| u32::from(u16::from_le_bytes(raw[at..at + 2].try_into().unwrap()));
        let (flags, unused) = (short(0x12), short(0x1c));
        groups += usize::from(flags & 3 != 0);
        if flags & 2 != 0 {
            put(word(0), 0);
        }
        if flags & 1 != 0 {
            put(word(4), 0);
        }
        if flags & 4 == 0 {
            let used = (shape.inodes_per_group - unused) as usize * usize::from(shape.inode_size);
            for at in used / size..shape.inode_table_blocks() as usize {
                put(word(8) + at as u64, used.saturating_sub(at * size).min(size));
            }
        }
    }
    groups
}

#[test]
fn what_was_never_written_is_written() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-tuned-lazy");
    for features in ["^metadata_csum,uninit_bg", "metadata_csum"] {
        for list in ["^metadata_csum,^uninit_bg", "metadata_csum", "^metadata_csum,uninit_bg"] {
            let lazy = ["-O", features, "-b", "1024", "-g", "2048", "-E", "lazy_itable_init=1"];
            let below = device(made(&scratch, &lazy));
            let fs = mounted(&below, Consistency::Ordered);
            fill(&fs, 4).unwrap();
            let expected = Tree::of(&fs);
            fs.unmount().unwrap();
            drop(fs);
            assert!(unwritten_look_used(&below) > 3, "{features}: nothing was left out");
            let name = format!("{features}, {list}");
            assert_eq!(check_ext2(&*below).unwrap().total, 0, "{name}: nobody looks there");
            tuned(&name, &*below, list);
            expect(&scratch, &name, (&below, list), &expected);
        }
    }
}

#[test]
fn what_cannot_be_had_is_refused_by_name_and_nothing_is_written() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("ext4-tuned-refused");
    let refused: [(&[&str], &str, &str); 6] = [
        (&["-O", "mmp,^metadata_csum"], "metadata_csum", "feature mmp"),
        (&["-O", "ea_inode"], "quota", "quota and ea_inode"),
        (&["-O", "bigalloc", "-b", "4096"], "quota", "quota and bigalloc"),
        (&["-I", "128"], "project", "inodes of 128 bytes"),
        (&[], "uninit_bg", "^metadata_csum,uninit_bg is possible"),
        (&["-O", "^metadata_csum"], "metadata_csum_seed", "without metadata_csum"),
    ];
    for (options, list, named) in refused {
        let below = device(made(&scratch, options));
        let image = below.image();
        let error = tune(&*below, &features(list), NOW).unwrap_err().to_string();
        assert!(error.contains(named), "{list}: {error}");
        assert!(below.image() == image, "{list}: refused, and something is written");
    }
    // One that is not clean, by nobody's note, and one that is damaged.
    let below = device(made(&scratch, &["-O", "^metadata_csum,^has_journal", "-b", "1024"]));
    for (at, byte, named) in [(1024 + 0x3a, 0, "not clean"), (1024 + 0x3a, 1, "")] {
        let mut image = below.image();
        image[at] = byte;
        let found = tune(&*device(image), &features("quota"), NOW).map_err(|error| error.to_string());
        assert!(found.as_ref().err().map_or("", String::as_str).contains(named), "{named}: {found:?}");
        assert_eq!(found.is_ok(), byte == 1);
    }
    let root = file_map::read(&*below, 2).unwrap().runs[0].physical;
    let mut image = below.image();
    image[usize::try_from(root).unwrap() * 1024 + 4] = 5;
    let error = tune(&*device(image), &features("metadata_csum"), NOW).unwrap_err().to_string();
    assert!(error.contains("damaged: check it first"), "{error}");
}

/// What debugfs lists of all kinds, and what the files really have.
fn usage_is_right(scratch: &Scratch, name: &str, below: &Arc<MemDevice>) {
    let copy = device(below.image());
    let fs = mounted(&copy, Consistency::Ordered);
    let expected = counted(&fs);
    drop(fs);
    let found = listed(scratch, &below.image(), "user");
    assert_eq!(found, expected, "{name}");
    assert!(found.len() > 4, "{name}: {found:?}");
}

/// A volume with files of several users.
fn with_owners(scratch: &Scratch, options: &[&str]) -> (Arc<MemDevice>, Tree) {
    let below = device(made(scratch, options));
    let fs = mounted(&below, Consistency::Ordered);
    fill(&fs, 3).unwrap();
    steps(&fs, &mut fstitch_core::Seed::new(8), 600);
    let expected = Tree::of(&fs);
    fs.unmount().unwrap();
    drop(fs);
    (below, expected)
}

const OWNED: [(&str, &[&str]); 5] = [
    ("1K", &["-b", "1024", "-g", "2048"]),
    ("4K", &["-b", "4096"]),
    ("no-csum", &["-O", "^metadata_csum", "-b", "1024"]),
    ("uninit_bg", &["-O", "^metadata_csum,uninit_bg,^64bit", "-b", "1024", "-g", "2048"]),
    ("ext3", &["-t", "ext3", "-b", "1024", "-I", "256"]),
];

#[test]
fn files_of_quotas_come_and_go() {
    if !have("mke2fs") || !have("e2fsck") || !have("debugfs") {
        return;
    }
    let scratch = Scratch::new("ext4-tuned-quota");
    for (name, options) in OWNED {
        let (below, expected) = with_owners(&scratch, options);
        let free = |device: &MemDevice| read_superblock(device).unwrap().1.free_blocks;
        let before = free(&below);
        for list in [
            "quota",
            "project",
            "^project",
            "^quota",
            "project",
            "quota",
            "quota,^project",
            "^quota,^project",
            "quota,project",
            "^quota",
            "^project",
        ] {
            let name = format!("{name}, {list}");
            tuned(&name, &*below, list);
            expect(&scratch, &name, (&below, list), &expected);
            let shape = read_superblock(&*below).unwrap().1;
            let features = said(&scratch, &below.image());
            let has = |feature: &str| features.iter().any(|has| has == feature);
            let wanted = [has("quota"), has("quota"), has("quota") && has("project")];
            assert_eq!(shape.quota_inodes.map(|ino| ino != 0), wanted, "{name}");
            if has("quota") {
                usage_is_right(&scratch, &name, &below);
            } else {
                assert_eq!(free(&below), before, "{name}: its files are free");
            }
        }
        // Used as any.
        tuned(name, &*below, "quota");
        let fs = mounted(&below, Consistency::Ordered);
        steps(&fs, &mut fstitch_core::Seed::new(9), 300);
        let expected = Tree::of(&fs);
        fs.unmount().unwrap();
        drop(fs);
        usage_is_right(&scratch, name, &below);
        expect(&scratch, name, (&below, "quota"), &expected);
    }
}

#[test]
fn both_at_once_and_a_volume_with_quotas_gets_sums() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-tuned-both");
    let (below, expected) = with_owners(&scratch, OWNED[3].1);
    for list in [
        "quota,metadata_csum",
        "^metadata_csum,project,large_dir",
        "uninit_bg,^quota",
        "metadata_csum,quota,^project",
    ] {
        tuned("both", &*below, list);
        expect(&scratch, list, (&below, list), &expected);
    }
}
