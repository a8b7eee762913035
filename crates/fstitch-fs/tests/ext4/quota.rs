//! Quotas: a volume whose entries say something else than its inodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use fstitch_core::{
    BlockDevice, Caller, Consistency, Errno, FallocateMode, FileKind, FileSystem, InodeNo, ManualClock,
    MemDevice, RenameMode, Result, Seed, SetAttr, XattrSetMode,
};
use fstitch_fs::arrange::{Arrangement, open};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::uhfs::Uhfs;

use crate::cut::{Cut, is_thorough};
use crate::support::{Scratch, have, run};
use crate::tree::{Tree, bytes};
use crate::{device, e2fsck_is_content, made, mounted, recovered};

/// Shapes of volumes with quotas.
const SHAPES: &[&[&str]] = &[
    &["-O", "quota", "-b", "1024"],
    &["-O", "quota,project", "-b", "4096"],
    &["-O", "quota,project,^metadata_csum", "-b", "1024", "-g", "1024", "-N", "4096"],
    &["-O", "quota,^extent,^64bit", "-b", "1024"],
    &["-O", "quota,inline_data,project", "-b", "2048"],
    &["-O", "quota,^huge_file", "-b", "1024", "-E", "quotatype=usrquota"],
];

/// Users' numbers, so that ways in the tree part at each level.
const USERS: [u32; 8] = [0, 1, 1000, 1001, 70_000, 1 << 24, 0x7fff_ffff, 0xffff_fffe];

fn caller(uid: u32, gid: u32) -> Caller {
    Caller { uid, gid, tid: 1, umask: 0 }
}

/// What e2fsprogs reads as the entries of a kind: id, bytes, inodes.
fn listed(scratch: &Scratch, image: &[u8], kind: &str) -> BTreeMap<u32, (u64, u64)> {
    let path = scratch.path("listed.img");
    std::fs::write(&path, image).unwrap();
    let (_, said) = run("debugfs", &["-R", &format!("lq {kind}"), path.to_str().unwrap()]);
    let mut entries = BTreeMap::new();
    for line in said.lines() {
        let words: Vec<i64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        if let [id, space, _, _, inodes, _, _] = words[..] {
            let id = u32::try_from(id & 0xffff_ffff).unwrap();
            entries.insert(id, (space.cast_unsigned(), inodes.cast_unsigned()));
        }
    }
    entries
}

/// What the tree's files take together, by their owners; not what is hidden.
fn counted(fs: &dyn FileSystem) -> BTreeMap<u32, (u64, u64)> {
    let mut usage: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    let mut met = std::collections::BTreeSet::new();
    let mut queue = vec![fs.root()];
    while let Some(ino) = queue.pop() {
        let attr = fs.getattr(ino).unwrap();
        if !met.insert(ino) {
            continue;
        }
        let entry = usage.entry(attr.uid).or_default();
        *entry = (entry.0 + attr.blocks * 512, entry.1 + 1);
        if attr.kind == FileKind::Directory {
            let mut names = Vec::new();
            fs.readdir(ino, 0, &mut |entry| {
                names.push(entry.name.to_vec());
                true
            })
            .unwrap();
            for name in names.iter().filter(|name| *name != b"." && *name != b"..") {
                queue.push(fs.lookup(ino, name).unwrap().attr.ino);
            }
        }
    }
    usage
}

/// Things that are allowed to fail in a random operation.
fn may_fail(error: &fstitch_core::Error) -> bool {
    let known = [Errno::EXIST, Errno::NOENT, Errno::NOTEMPTY, Errno::NOSPC, Errno::DQUOT, Errno::ISDIR];
    let more = [Errno::NOTDIR, Errno::INVAL, Errno::RANGE, Errno::OPNOTSUPP, Errno::XDEV, Errno::NODATA, Errno::PERM];
    known.contains(&error.errno()) || more.contains(&error.errno())
}

/// One random operation of some user.
fn step(fs: &dyn FileSystem, seed: &mut Seed, dirs: &mut Vec<InodeNo>) -> Result<()> {
    let uid = USERS[usize::try_from(seed.below(8)).unwrap()];
    let who = caller(uid, USERS[usize::try_from(seed.below(8)).unwrap()]);
    let dir = dirs[usize::try_from(seed.below(dirs.len() as u64)).unwrap()];
    let name = format!("{:03}-{}", seed.below(40), "n".repeat(usize::try_from(seed.below(60)).unwrap()));
    let name = name.as_bytes();
    let file = |fs: &dyn FileSystem| fs.lookup(dir, name).map(|entry| entry.attr.ino);
    match seed.below(14) {
        0..3 => {
            let mode = FileKind::Regular.mode_bits() | 0o644;
            let ino = match fs.mknod(&who, dir, name, mode, 0) {
                Ok(entry) => entry.attr.ino,
                Err(error) if error.errno() == Errno::EXIST => file(fs)?,
                Err(error) => return Err(error),
            };
            let len = usize::try_from(seed.below(40_000)).unwrap();
            let at = seed.below(300_000);
            let contents = bytes(seed, len);
            fs.write(&who, ino, at, &contents).map(drop)
        }
        3 => {
            let made = fs.mkdir(&who, dir, name, 0o755)?;
            if dirs.len() < 12 {
                dirs.push(made.attr.ino);
            }
            Ok(())
        }
        4 => {
            let target = vec![b't'; usize::try_from(1 + seed.below(200)).unwrap()];
            fs.symlink(&who, dir, name, &target).map(drop)
        }
        5 => fs.unlink(&who, dir, name),
        6 => {
            let to = dirs[usize::try_from(seed.below(dirs.len() as u64)).unwrap()];
            let other = format!("{:03}-", seed.below(40));
            fs.rename(&who, (dir, name), (to, other.as_bytes()), RenameMode::Replace)
        }
        7 | 8 => {
            let set = SetAttr { uid: Some(uid), gid: Some(who.gid), ..SetAttr::default() };
            fs.setattr(&who, file(fs)?, &set).map(drop)
        }
        9 => {
            let set = SetAttr { size: Some(seed.below(200_000)), ..SetAttr::default() };
            fs.setattr(&who, file(fs)?, &set).map(drop)
        }
        10 => {
            let value = vec![7; usize::try_from(seed.below(700)).unwrap()];
            fs.setxattr(&who, file(fs)?, b"user.x", &value, XattrSetMode::Set)
        }
        11 => fs.removexattr(&who, file(fs)?, b"user.x"),
        12 => fs.fallocate(&who, file(fs)?, seed.below(100_000), 1 + seed.below(80_000), FallocateMode::Allocate),
        _ => fs.link(&who, file(fs)?, dir, format!("link-{}", seed.below(30)).as_bytes()).map(drop),
    }
}

fn steps(fs: &dyn FileSystem, seed: &mut Seed, count: usize) {
    let mut dirs = vec![fs.root()];
    for _ in 0..count {
        if let Err(error) = step(fs, seed, &mut dirs) {
            assert!(may_fail(&error), "{error}");
        }
    }
}

#[test]
fn random_operations_of_several_users_are_counted() {
    if !have("mke2fs") || !have("e2fsck")  {
        return;
    }
    let scratch = Scratch::new("quota-random");
    for (at, options) in SHAPES.iter().enumerate() {
        let device = device(made(&scratch, options));
        let mechanism = [Consistency::Ordered, Consistency::Metadata, Consistency::Full][at % 3];
        let mut seed = Seed::new(at as u64);
        for round in 0..3 {
            let fs = mounted(&device, mechanism);
            steps(&fs, &mut seed, 250);
            let expected = counted(&fs);
            fs.unmount().unwrap();
            drop(fs);
            let name = format!("{options:?}, round {round}");
            e2fsck_is_content(&scratch, &name, &device.image());
            let mut found = listed(&scratch, &device.image(), "user");
            found.retain(|_, usage| *usage != (0, 0));
            assert_eq!(found, expected, "{name}");
        }
    }
}
