//! Many names in one directory: an index that is split wrongly hides names from us, from the kernel or from e2fsck.

use std::collections::{BTreeMap, BTreeSet};

use fstitch_core::{Caller, Consistency, Errno, FileSystem, InodeFlags, InodeNo, RenameMode, Seed};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::check_ext2;
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
                if model.contains_key(&new) {
                    let error = fs.mknod(&CALLER, dir, &new, 0o100_644, 0).unwrap_err();
                    assert_eq!(error.errno(), Errno::EXIST);
                } else {
                    let ino = make(fs, dir, &new);
                    model.insert(new, ino);
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
