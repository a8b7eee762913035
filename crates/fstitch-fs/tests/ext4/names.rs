//! Many names in one directory: an index that is split wrongly hides names from us, from the kernel or from e2fsck.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fstitch_core::{
    Caller, Consistency, Errno, FileSystem, InodeFlags, InodeId, InodeNo, MemDevice, RenameMode, Seed,
};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::ext2::layout::checksum::place;
use fstitch_fs::uhfs::Uhfs;

use super::support::{Scratch, e2fsck_image, have, run};
use super::{device, kernel, mounted};

const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 1, umask: 0 };

/// A kind of volumes: a name, what `mke2fs` is told, the hash, and whether its characters are unsigned.
struct Shape {
    name: &'static str,
    options: &'static [&'static str],
    hash: &'static str,
    unsigned: bool,
    names: usize,
}

const fn shape(name: &'static str, options: &'static [&'static str], hash: &'static str) -> Shape {
    Shape { name, options, hash, unsigned: false, names: 3000 }
}

const SHAPES: &[Shape] = &[
    shape("half-md4", &["-t", "ext4", "-b", "1024"], "half_md4"),
    shape("half-md4-4K", &["-t", "ext4", "-b", "4096"], "half_md4"),
    shape("tea", &["-t", "ext4", "-b", "1024"], "tea"),
    shape("legacy", &["-t", "ext4", "-b", "1024"], "legacy"),
    Shape { unsigned: true, ..shape("half-md4-u", &["-t", "ext4", "-b", "1024"], "half_md4") },
    Shape { unsigned: true, ..shape("tea-u", &["-t", "ext4", "-b", "4096"], "tea") },
    Shape { unsigned: true, ..shape("legacy-u", &["-t", "ext4", "-b", "1024"], "legacy") },
    shape("no-csum", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"], "half_md4"),
    shape("no-csum-4K", &["-t", "ext4", "-b", "4096", "-O", "^metadata_csum"], "half_md4"),
    shape("ext3", &["-t", "ext3", "-b", "1024"], "half_md4"),
    shape("ext3-tea", &["-t", "ext3", "-b", "1024"], "tea"),
    shape("ext3-legacy", &["-t", "ext3", "-b", "2048"], "legacy"),
    shape("no-filetype", &["-t", "ext3", "-b", "1024", "-O", "^filetype"], "half_md4"),
    shape("large_dir", &["-t", "ext4", "-b", "1024", "-O", "large_dir"], "half_md4"),
];

impl Shape {
    fn make(&self, scratch: &Scratch, size: &str) -> Vec<u8> {
        let image = scratch.path("new.img");
        let image = image.to_str().unwrap();
        let _ = std::fs::remove_file(image);
        let mut all = vec!["-q", "-F", "-N", "12000"];
        all.extend_from_slice(self.options);
        all.extend_from_slice(&["-E", "hash_seed=01020304-0506-0708-090a-0b0c0d0e0f10", image, size]);
        let (code, said) = run("mke2fs", &all);
        assert_eq!(code, 0, "{said}");
        let (code, said) = run("tune2fs", &["-E", &format!("hash_alg={}", self.hash), image]);
        assert_eq!(code, 0, "{said}");
        let mut bytes = std::fs::read(image).unwrap();
        // Whether characters are signed is the making machine's business: a word without a sum over it is easiest set before
        // anybody looks.
        set_unsigned(&mut bytes, self.unsigned);
        bytes
    }
}

/// Sets the flags of the superblock and, where there is one, its sum.
fn set_unsigned(image: &mut [u8], unsigned: bool) {
    let raw = &mut image[1024..2048];
    raw[0x160] = if unsigned { 2 } else { 1 };
    let has_sums = raw[0x65] & 4 != 0;
    if has_sums {
        let mut sum = !0_u32;
        for &byte in &raw[..1020] {
            sum ^= u32::from(byte);
            for _ in 0..8 {
                sum = if sum & 1 == 1 { sum >> 1 ^ 0x82f6_3b78 } else { sum >> 1 };
            }
        }
        raw[1020..].copy_from_slice(&sum.to_le_bytes());
    }
}

/// A name as people and programs have them: short, long, with letters beyond ASCII.
fn name(dice: &mut Seed, no: u64) -> Vec<u8> {
    match dice.below(8) {
        0 => format!("{no}-{}", "long".repeat(usize::try_from(dice.below(60)).unwrap())).into_bytes(),
        1 => [format!("{no}").as_bytes(), &[0xe4, 0xff, 0x80][..]].concat(),
        2 => format!("ä{no}ß").into_bytes(),
        _ => format!("name-{no}").into_bytes(),
    }
}

fn make(fs: &dyn FileSystem, dir: InodeNo, name: &[u8]) -> InodeNo {
    let made = fs.mknod(&CALLER, dir, name, 0o100_644, 0);
    let ino = made.unwrap_or_else(|error| panic!("{}: {error}", name.escape_ascii())).attr.ino;
    fs.forget(ino, 1);
    ino
}

fn make_all(fs: &dyn FileSystem, dir: InodeNo, names: &[Vec<u8>]) {
    for name in names {
        make(fs, dir, name);
    }
}

fn subdirectory(fs: &dyn FileSystem, name: &[u8]) -> InodeNo {
    let ino = fs.mkdir(&CALLER, fs.root(), name, 0o755).unwrap().attr.ino;
    fs.forget(ino, 1);
    ino
}

/// The directory's flag of an index.
fn is_indexed(fs: &Uhfs<Ext2>, dir: InodeNo) -> bool {
    fs.flags(dir).unwrap().has(InodeFlags::INDEX)
}

/// Lists a directory with room for so many names at a time.
fn listed(fs: &dyn FileSystem, dir: InodeNo, at_a_time: usize) -> Vec<Vec<u8>> {
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let before = names.len();
        fs.readdir(dir, cookie, &mut |entry| {
            if names.len() - before == at_a_time {
                return false;
            }
            assert!(entry.next > cookie, "a cookie goes on");
            cookie = entry.next;
            names.push(entry.name.to_vec());
            true
        })
        .unwrap();
        if names.len() == before {
            return names;
        }
    }
}

fn expect_names(fs: &dyn FileSystem, dir: InodeNo, model: &BTreeMap<Vec<u8>, InodeNo>, at_a_time: usize) {
    let mut names = listed(fs, dir, at_a_time);
    assert_eq!(names[..2], [b".".to_vec(), b"..".to_vec()]);
    names.drain(..2);
    let count = names.len();
    let names: BTreeSet<Vec<u8>> = names.into_iter().collect();
    assert_eq!(count, names.len(), "each name is listed once");
    assert!(names.iter().eq(model.keys()), "{} names, expected {}", names.len(), model.len());
    for (name, &ino) in model {
        let found = fs.lookup(dir, name).unwrap_or_else(|error| panic!("{}: {error}", name.escape_ascii()));
        assert_eq!(found.attr.ino, ino);
        fs.forget(ino, 1);
    }
}

/// A thousand and more random changes of a directory and of its model.
fn change(
    fs: &dyn FileSystem,
    dir: InodeNo,
    model: &mut BTreeMap<Vec<u8>, InodeNo>,
    dice: &mut Seed,
    count: usize,
) {
    let pick = |model: &BTreeMap<Vec<u8>, InodeNo>, dice: &mut Seed| {
        let at = usize::try_from(dice.below(u64::try_from(model.len()).unwrap())).unwrap();
        model.keys().nth(at).unwrap().clone()
    };
    for _ in 0..count {
        let no = dice.next_u64() % 1_000_000;
        let new = name(dice, no);
        match dice.below(10) {
            0..=5 => {
                if let Entry::Vacant(free) = model.entry(new.clone()) {
                    free.insert(make(fs, dir, &new));
                } else {
                    let error = fs.mknod(&CALLER, dir, &new, 0o100_644, 0).unwrap_err();
                    assert_eq!(error.errno(), Errno::EXIST);
                }
            }
            6 if !model.is_empty() => {
                let old = pick(model, dice);
                fs.unlink(&CALLER, dir, &old).unwrap();
                model.remove(&old);
            }
            7 | 8 if !model.is_empty() => {
                let old = pick(model, dice);
                fs.rename(&CALLER, (dir, &old), (dir, &new), RenameMode::Replace).unwrap();
                let ino = model.remove(&old).unwrap();
                model.insert(new, ino);
            }
            _ => {
                assert!(model.contains_key(&new) || fs.lookup(dir, &new).unwrap_err().errno() == Errno::NOENT)
            }
        }
    }
}

#[test]
fn every_name_is_found_by_all_of_us() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-names");
    for (at, shape) in SHAPES.iter().enumerate() {
        let device = device(shape.make(&scratch, "40M"));
        let mechanism = [Consistency::Ordered, Consistency::Metadata, Consistency::Full][at % 3];
        let fs = mounted(&device, mechanism);
        let dir = subdirectory(&fs, b"d");
        let mut dice = Seed::new(u64::try_from(at).unwrap());
        let mut model = BTreeMap::new();
        for round in 0..2 {
            change(&fs, dir, &mut model, &mut dice, shape.names);
            expect_names(&fs, dir, &model, [7, 1000][round]);
            let report = fs.check().unwrap();
            assert_eq!(report.total, 0, "{}: {:?}", shape.name, report.findings);
        }
        assert!(is_indexed(&fs, dir), "{}", shape.name);
        fs.unmount().unwrap();
        drop(fs);
        let (code, said) = e2fsck_image(&scratch, "checked.img", &device.image());
        assert_eq!(code, 0, "{}: {said}", shape.name);
        let report = check_ext2(&*device).unwrap();
        assert_eq!(report.total, 0, "{}: {:#?}", shape.name, report.findings);
        if let Some(missing) = kernel::missing(&scratch, &device.image(), "d", model.keys()) {
            assert_eq!(missing, Vec::<String>::new(), "{}: the kernel does not find them", shape.name);
        }
        // All go in an order of their own, and the directory with them.
        let fs = mounted(&device, mechanism);
        let dir = fs.lookup(fs.root(), b"d").unwrap().attr.ino;
        expect_names(&fs, dir, &model, 50);
        for name in model.keys() {
            fs.unlink(&CALLER, dir, name).unwrap();
        }
        fs.forget(dir, 1);
        fs.rmdir(&CALLER, fs.root(), b"d").unwrap();
        fs.unmount().unwrap();
        let (code, said) = e2fsck_image(&scratch, "checked.img", &device.image());
        assert_eq!(code, 0, "{}: {said}", shape.name);
    }
}

/// A volume of this kind, mounted, with an empty directory.
fn started(scratch: &Scratch, options: &'static [&'static str]) -> (Arc<MemDevice>, Uhfs<Ext2>, InodeNo) {
    let device = device(shape("", options, "half_md4").make(scratch, "40M"));
    let fs = mounted(&device, Consistency::Ordered);
    let dir = subdirectory(&fs, b"d");
    (device, fs, dir)
}

fn expect_healthy(scratch: &Scratch, device: &Arc<MemDevice>, what: &str) {
    let (code, said) = e2fsck_image(scratch, "checked.img", &device.image());
    assert_eq!(code, 0, "{what}: {said}");
    let report = check_ext2(&**device).unwrap();
    assert_eq!(report.total, 0, "{what}: {:#?}", report.findings);
}

#[test]
fn a_reader_meets_every_name_once_while_leaves_are_split() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-readers");
    // Names at the start: the first index is begun, or leaves of an index are split, under the readers' eyes.
    for (start, at_a_time) in [(0, 1), (5, 1), (20, 3), (30, 7), (200, 2), (900, 10)] {
        let (device, fs, dir) = started(&scratch, &["-t", "ext4", "-b", "1024"]);
        let stays: Vec<Vec<u8>> = (0..start).map(|no| format!("stays-{no}").into_bytes()).collect();
        make_all(&fs, dir, &stays);
        let (mut seen, mut cookie, mut no) = (Vec::new(), 0, 0);
        loop {
            let mut count = 0;
            fs.readdir(dir, cookie, &mut |entry| {
                if count == at_a_time {
                    return false;
                }
                count += 1;
                cookie = entry.next;
                seen.push(entry.name.to_vec());
                true
            })
            .unwrap();
            if count == 0 {
                break;
            }
            // New names come and go, some of them where the reader was and some where it will be.
            for _ in 0..6 {
                if no < 2500 {
                    make(&fs, dir, format!("comes-{no}").as_bytes());
                }
                if no % 3 == 0 && no < 2500 {
                    fs.unlink(&CALLER, dir, format!("comes-{no}").as_bytes()).unwrap();
                }
                no += 1;
            }
        }
        let mut once: Vec<&Vec<u8>> = seen.iter().collect();
        once.sort();
        assert!(once.windows(2).all(|pair| pair[0] != pair[1]), "{start}: a name was returned twice");
        let missed: Vec<_> = stays.iter().filter(|name| !seen.contains(name)).collect();
        assert!(missed.is_empty(), "{start}: {missed:?}");
        assert!(is_indexed(&fs, dir) || fs.getattr(dir).unwrap().size == 1024);
        fs.unmount().unwrap();
        expect_healthy(&scratch, &device, "readers");
    }
}

/// Gives a file names of 255 bytes until there are so many or the index is full; how many there are, and how many blocks a step
/// that made one has logged at most.
fn fill_with_long_names(fs: &Uhfs<Ext2>, dir: InodeNo, most: usize) -> (usize, usize) {
    let file = make(fs, fs.root(), b"file");
    let cache = fstitch_fs::uhfs::LowLevelFs::cache(fs.format());
    let mut logged = 0;
    for no in 0..most {
        // Each name in a transaction of its own, as seen by what it logs; not for all, which would take long.
        let alone = no % 4 == 0;
        if alone {
            cache.close_transaction().unwrap();
        }
        let name = format!("{no:0>255}");
        match fs.link(&CALLER, file, dir, name.as_bytes()) {
            Ok(_) => fs.forget(file, 1),
            Err(error) => {
                assert_eq!(error.errno(), Errno::NOSPC);
                return (no, logged);
            }
        }
        if alone {
            logged = logged.max(cache.journal_status().unwrap().running_blocks);
        }
    }
    (most, logged)
}

#[test]
fn an_index_grows_by_levels_until_it_is_full() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-levels");
    for (options, levels, is_full) in [
        (&["-t", "ext4", "-b", "1024", "-O", "large_dir"][..], 2, false),
        (&["-t", "ext4", "-b", "1024"], 1, true),
        (&["-t", "ext3", "-b", "1024", "-O", "large_dir"], 2, false),
    ] {
        let (device, fs, dir) = started(&scratch, options);
        let (count, logged) = fill_with_long_names(&fs, dir, 30_000);
        println!("{options:?}: {count} names, {logged} blocks logged at most");
        assert!(logged <= fstitch_fs::uhfs::LowLevelFs::name_blocks(fs.format()), "{logged}");
        assert_eq!(count < 30_000, is_full, "{count} names");
        // Names that are there can still change where no room is needed.
        fs.unlink(&CALLER, dir, format!("{:0>255}", 7).as_bytes()).unwrap();
        let missing = (0..count).find(|no| {
            let found = fs.lookup(dir, format!("{no:0>255}").as_bytes());
            found.inspect(|entry| fs.forget(entry.attr.ino, 1)).is_ok() == (*no == 7)
        });
        assert_eq!(missing, None);
        assert_eq!(listed(&fs, dir, 500).len(), count - 1 + 2);
        fs.unmount().unwrap();
        expect_healthy(&scratch, &device, "levels");
        let (_, said) = run_on_image(&scratch, &device, &["-R", "htree_dump d"]);
        assert!(said.contains(&format!("Indirect levels: {levels}")), "{}", &said[..said.len().min(600)]);
    }
}

fn run_on_image(scratch: &Scratch, device: &MemDevice, arguments: &[&str]) -> (i32, String) {
    let path = scratch.path("asked.img");
    std::fs::write(&path, device.image()).unwrap();
    let said = run("debugfs", &[arguments, &[path.to_str().unwrap()]].concat());
    std::fs::remove_file(&path).unwrap();
    said
}

#[test]
fn the_kernel_and_we_add_names_to_one_index_in_turns() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-turns");
    for options in [&["-t", "ext4", "-b", "1024"][..], &["-t", "ext3", "-b", "1024"], &["-t", "ext4"]] {
        let (mut device, mut fs, mut dir) = started(&scratch, options);
        let mut all = Vec::new();
        for turn in 0..4 {
            let names: Vec<Vec<u8>> =
                (0..700).map(|no| format!("turn-{turn}-name-{no}").into_bytes()).collect();
            all.extend_from_slice(&names);
            if turn % 2 == 0 {
                make_all(&fs, dir, &names);
                continue;
            }
            fs.forget(dir, 1);
            fs.unmount().unwrap();
            let Some(image) = kernel::with_files(&scratch, &device.image(), "d", &names) else { return };
            device = super::device(image);
            fs = mounted(&device, Consistency::Ordered);
            dir = fs.lookup(fs.root(), b"d").unwrap().attr.ino;
        }
        for name in &all {
            let found = fs.lookup(dir, name).unwrap();
            fs.forget(found.attr.ino, 1);
        }
        assert_eq!(listed(&fs, dir, 100).len(), all.len() + 2);
        assert!(is_indexed(&fs, dir));
        fs.unmount().unwrap();
        expect_healthy(&scratch, &device, "turns");
    }
}

/// Puts a value into the root of the only index on the volume, and the sum that the root has then; into copies in the log as well.
fn damage_root(image: &mut [u8], owner: InodeId, (at, value): (usize, u8)) {
    let starts =
        [&[12, 0, 1, 2, b'.', 0, 0, 0][..], &2_u32.to_le_bytes(), &(1024_u16 - 12).to_le_bytes()].concat();
    let superblock = Ext2::probe(&*device(image.to_vec())).unwrap();
    let ino = u32::try_from(owner.ino.get()).unwrap();
    for block in image.chunks_mut(1024).filter(|block| block[4..18] == starts) {
        block[at] = value;
        let sums = superblock.sums.of_inode(ino, owner.generation);
        if let Some(sum) = sums.directory_index(block, 32) {
            place(block, sum);
        }
    }
}

#[test]
fn names_below_a_damaged_index_are_found_and_the_first_new_one_drops_it() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-bad-index");
    let (plain, summed) =
        (&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"], &["-t", "ext4", "-b", "1024"]);
    let one_level = [
        (24, 1),
        (28, 9),
        (29, 7),
        (30, 3),
        (31, 1),
        (32, 9),
        (34, 0),
        (34, 255),
        (36, 0),
        (36, 255),
        (37, 255),
    ];
    let cases = one_level.iter().map(|&damage| (&plain[..], 300, damage));
    // With sums the blocks of the index become leaves with sums: those of one level, and of two.
    let cases =
        cases.chain([(&summed[..], 300, (31, 1)), (&summed[..], 300, (28, 9)), (&summed[..], 6000, (31, 1))]);
    for (options, count, damage) in cases {
        let (device, fs, dir) = started(&scratch, options);
        let names: Vec<Vec<u8>> = (0..count).map(|no| format!("name-{no}").into_bytes()).collect();
        make_all(&fs, dir, &names);
        assert!(is_indexed(&fs, dir));
        let owner = fs.getattr(dir).unwrap().id();
        fs.unmount().unwrap();
        let mut image = device.image();
        damage_root(&mut image, owner, damage);
        let device = super::device(image);
        let fs = mounted(&device, Consistency::Ordered);
        let dir = fs.lookup(fs.root(), b"d").unwrap().attr.ino;
        for name in &names {
            let found = fs.lookup(dir, name).unwrap_or_else(|error| panic!("{damage:?}: {error}"));
            fs.forget(found.attr.ino, 1);
        }
        assert_eq!(listed(&fs, dir, 10).len(), count + 2, "{damage:?}");
        make(&fs, dir, b"new");
        assert!(!is_indexed(&fs, dir), "{damage:?}");
        assert_eq!(listed(&fs, dir, 10).len(), count + 3, "{damage:?}");
        fs.unmount().unwrap();
        expect_healthy(&scratch, &device, "dropped");
    }
}

/// The legacy hash as volumes have it, of signed characters below 128.
fn legacy(name: &[u8]) -> u32 {
    let (mut last, mut before) = (0x12a3_fe2d_u32, 0x37ab_e8f9_u32);
    for &byte in name {
        let hash = before.wrapping_add(last ^ u32::from(byte).wrapping_mul(7_152_373));
        before = last;
        last = if hash >= 1 << 31 { hash.wrapping_sub(0x7fff_ffff) } else { hash };
    }
    last << 1
}

/// Pairs of names of `len` bytes that have one hash.
pub fn pairs(count: usize, len: usize) -> Vec<Vec<u8>> {
    let long = |no: u32| [&vec![b'y'; len - 8][..], format!("{no:08x}").as_bytes()].concat();
    let mut seen = std::collections::HashMap::new();
    let mut found = Vec::new();
    for no in 0.. {
        if let Some(other) = seen.insert(legacy(&long(no)), no) {
            found.extend([long(other), long(no)]);
            if found.len() >= 2 * count {
                break;
            }
        }
    }
    found
}

#[test]
fn names_of_one_hash_are_found_in_two_leaves() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-collisions");
    let names = pairs(100, 253);
    let device = device(shape("", &["-t", "ext4", "-b", "1024"], "legacy").make(&scratch, "40M"));
    let fs = mounted(&device, Consistency::Ordered);
    let dir = subdirectory(&fs, b"d");
    let model: BTreeMap<_, _> = names.iter().map(|name| (name.clone(), make(&fs, dir, name))).collect();
    for at_a_time in [1, 2, 7, 1000] {
        expect_names(&fs, dir, &model, at_a_time);
    }
    fs.unmount().unwrap();
    expect_healthy(&scratch, &device, "collisions");
    let (_, said) = run_on_image(&scratch, &device, &["-R", "htree_dump d"]);
    let is_marked = |line: &str| {
        let hash = line.split("Hash 0x").nth(1).and_then(|rest| rest.split([',', ' ', '(']).next());
        hash.and_then(|hash| u32::from_str_radix(hash, 16).ok()).is_some_and(|hash| hash & 1 == 1)
    };
    assert!(said.lines().any(is_marked), "no leaf goes on with a hash: {}", &said[..said.len().min(2000)]);
    if let Some(missing) = kernel::missing(&scratch, &device.image(), "d", names.iter()) {
        assert_eq!(missing, Vec::<String>::new());
    }
}
