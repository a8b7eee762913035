//! Quotas: a volume whose entries say something else than its inodes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{
    BlockDevice, Caller, Consistency, Errno, FallocateMode, FileKind, FileSystem, InodeFlags, InodeNo,
    ManualClock, MemDevice, RenameMode, Result, Seed, SetAttr, XattrSetMode,
};
use fstitch_fs::arrange::{Arrangement, open};
use fstitch_fs::ext2::layout::quota::QuotaKind;
use fstitch_fs::ext2::quota::{Account, Limits, report, set_limits};
use fstitch_fs::ext2::{Ext2, mkfs};
use fstitch_fs::uhfs::Uhfs;

use super::support::{Scratch, have, run};
use super::tree::bytes;
use super::{NOW, device, e2fsck_is_content, made, mounted};

/// Shapes of volumes with quotas.
pub const SHAPES: &[&[&str]] = &[
    &["-O", "quota", "-b", "1024"],
    &["-O", "quota,project", "-b", "4096"],
    &["-O", "quota,project,^metadata_csum", "-b", "1024", "-g", "1024", "-N", "4096"],
    &["-O", "quota,^extent,^64bit", "-b", "1024"],
    &["-O", "quota,inline_data,project", "-b", "2048"],
    &["-O", "quota,^huge_file", "-b", "1024", "-E", "quotatype=usrquota"],
];

/// Users' numbers, so that ways in the tree part at each level.
const USERS: [u32; 8] = [0, 1, 1000, 1001, 70_000, 1 << 24, 0x7fff_ffff, 0xffff_fffe];

pub fn caller(uid: u32, gid: u32) -> Caller {
    Caller { uid, gid, tid: 1, umask: 0 }
}

/// What e2fsprogs reads as the entries of a kind: id, bytes, inodes.
pub fn listed(scratch: &Scratch, image: &[u8], kind: &str) -> BTreeMap<u32, (u64, u64)> {
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
pub fn counted(fs: &dyn FileSystem) -> BTreeMap<u32, (u64, u64)> {
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
    let more = [
        Errno::NOTDIR,
        Errno::INVAL,
        Errno::RANGE,
        Errno::OPNOTSUPP,
        Errno::XDEV,
        Errno::NODATA,
        Errno::PERM,
    ];
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
        12 => fs.fallocate(
            &who,
            file(fs)?,
            seed.below(100_000),
            1 + seed.below(80_000),
            FallocateMode::Allocate,
        ),
        _ => fs.link(&who, file(fs)?, dir, format!("link-{}", seed.below(30)).as_bytes()).map(drop),
    }
}

pub fn steps(fs: &dyn FileSystem, seed: &mut Seed, count: usize) {
    let mut dirs = vec![fs.root()];
    for _ in 0..count {
        if let Err(error) = step(fs, seed, &mut dirs) {
            assert!(may_fail(&error), "{error}");
        }
    }
}

#[test]
fn random_operations_of_several_users_are_counted() {
    if !have("mke2fs") || !have("e2fsck") {
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
            // Files without names are somebody's as long as they are open.
            let open = fs.tmpfile(&caller(1001, 5), fs.root(), 0o600).unwrap().attr.ino;
            fs.write(&caller(1001, 5), open, 0, &[1; 20_000]).unwrap();
            let report = fs.check().unwrap();
            let is_wrong = report.findings.iter().any(|finding| finding.code.starts_with("quota"));
            assert!(!is_wrong, "{options:?}, round {round}: {:#?}", report.findings);
            fs.forget(open, 1);
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

/// A new file of somebody, of so many bytes.
pub fn file(fs: &dyn FileSystem, who: &Caller, name: &str, len: usize) -> Result<InodeNo> {
    let mode = FileKind::Regular.mode_bits() | 0o644;
    let ino = fs.mknod(who, fs.root(), name.as_bytes(), mode, 0)?.attr.ino;
    let mut at = 0;
    while at < len {
        at += fs.write(who, ino, at as u64, &vec![7; len - at])?;
    }
    Ok(ino)
}

/// What a kind's file says of somebody.
pub fn account(device: &dyn BlockDevice, kind: QuotaKind, id: u32) -> Option<Account> {
    let reports = report(device).unwrap();
    let report = reports.into_iter().find(|report| report.kind == kind)?;
    report.accounts.into_iter().find(|account| account.id == id)
}

/// A volume on which users have entries, one of them with limits.
fn limited(scratch: &Scratch, limits: Limits) -> Arc<MemDevice> {
    let device = device(made(scratch, &["-O", "quota,project", "-b", "1024"]));
    let fs = mounted(&device, Consistency::Ordered);
    file(&fs, &caller(1000, 100), "own", 1000).unwrap();
    file(&fs, &caller(1001, 100), "other", 30_000).unwrap();
    fs.unmount().unwrap();
    drop(fs);
    set_limits(&*device, (QuotaKind::User, 1000), limits, NOW).unwrap();
    device
}

fn mounted_at(device: &Arc<MemDevice>, clock: &Arc<ManualClock>) -> Uhfs<Ext2> {
    let arrangement = Arrangement { consistency: Some(Consistency::Ordered), ..Arrangement::default() };
    open::<Ext2>(Arc::clone(device) as _, &arrangement, Arc::clone(clock) as _).unwrap().0
}

/// Writes until somebody may not any more; how many bytes that were.
fn fill_up(fs: &dyn FileSystem, who: &Caller, ino: InodeNo) -> (u64, Errno) {
    let mut at = 0;
    loop {
        match fs.write(who, ino, at, &[1; 7000]) {
            Ok(done) => at += done as u64,
            Err(error) => return (at, error.errno()),
        }
    }
}

#[test]
fn hard_limits_are_never_passed_but_by_the_superuser() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("quota-hard");
    let limits = Limits { space_hard: 100, inodes_hard: 4, ..Limits::default() };
    let device = limited(&scratch, limits);
    let (who, root) = (caller(1000, 100), caller(0, 0));
    let fs = mounted(&device, Consistency::Ordered);
    let ino = file(&fs, &who, "more", 0).unwrap();
    let (bytes, error) = fill_up(&fs, &who, ino);
    assert_eq!(error, Errno::DQUOT);
    assert!((90_000..=100 * 1024).contains(&bytes), "{bytes}");
    assert_eq!(fs.mkdir(&who, fs.root(), b"dir", 0o755).unwrap_err().errno(), Errno::DQUOT);
    assert_eq!(
        fs.fallocate(&who, ino, 200_000, 9000, FallocateMode::Allocate).unwrap_err().errno(),
        Errno::DQUOT
    );
    // What somebody else has cannot be given to him but by the superuser.
    let other = fs.lookup(fs.root(), b"other").unwrap().attr.ino;
    let gift = SetAttr { uid: Some(1000), ..SetAttr::default() };
    assert_eq!(fs.setattr(&caller(1001, 100), other, &gift).unwrap_err().errno(), Errno::DQUOT);
    // Inodes: two are there.
    for name in ["a", "b"] {
        file(&fs, &who, name, 0).unwrap();
    }
    assert_eq!(file(&fs, &who, "c", 0).unwrap_err().errno(), Errno::DQUOT);
    fs.unmount().unwrap();
    drop(fs);
    let usage = account(&*device, QuotaKind::User, 1000).unwrap().usage;
    assert!(usage.space <= 100 * 1024 && usage.space > 95 * 1024 && usage.inodes == 4, "{usage:?}");
    e2fsck_is_content(&scratch, "hard", &device.image());
    let fs = mounted(&device, Consistency::Ordered);
    assert_eq!(fs.write(&root, ino, bytes, &[1; 50_000]).unwrap(), 50_000);
    fs.setattr(&root, other, &gift).unwrap();
    // Who has too much may have less.
    let cut = SetAttr { size: Some(10_000), ..SetAttr::default() };
    fs.setattr(&who, ino, &cut).unwrap();
    fs.unlink(&who, fs.root(), b"other").unwrap();
    fs.write(&who, ino, 10_000, &[1; 10_000]).unwrap();
    fs.unmount().unwrap();
    e2fsck_is_content(&scratch, "hard, later", &device.image());
}

#[test]
fn soft_limits_hold_after_some_time() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("quota-soft");
    let device = limited(&scratch, Limits { space_soft: 50, inodes_soft: 2, ..Limits::default() });
    let (who, clock) = (caller(1000, 100), Arc::new(ManualClock::new()));
    clock.advance(Duration::from_secs(1_900_000_000));
    let fs = mounted_at(&device, &clock);
    let ino = file(&fs, &who, "more", 100_000).unwrap();
    file(&fs, &who, "third", 0).unwrap();
    clock.advance(Duration::from_secs(7 * 24 * 3600 - 10));
    fs.write(&who, ino, 100_000, &[1; 5000]).unwrap();
    clock.advance(Duration::from_secs(20));
    assert_eq!(fs.write(&who, ino, 110_000, &[1; 5000]).unwrap_err().errno(), Errno::DQUOT);
    assert_eq!(file(&fs, &who, "fourth", 0).unwrap_err().errno(), Errno::DQUOT);
    fs.write(&who, ino, 0, &[2; 5000]).unwrap();
    let cut = SetAttr { size: Some(1000), ..SetAttr::default() };
    fs.setattr(&who, ino, &cut).unwrap();
    fs.unlink(&who, fs.root(), b"third").unwrap();
    fs.write(&who, ino, 0, &[1; 60_000]).unwrap();
    fs.unmount().unwrap();
    drop(fs);
    let found = account(&*device, QuotaKind::User, 1000).unwrap();
    assert_eq!((found.space_time, found.inodes_time), (1_900_000_000 + 2 * 7 * 24 * 3600 + 10, 0));
    e2fsck_is_content(&scratch, "soft", &device.image());
}

#[test]
fn ten_thousand_users_have_an_entry_each() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("quota-many");
    let device = device(made(&scratch, &["-O", "quota", "-b", "1024", "-N", "12000"]));
    let fs = mounted(&device, Consistency::Ordered);
    let ino = file(&fs, &caller(0, 0), "file", 5000).unwrap();
    for no in 0..10_000_u32 {
        let set = SetAttr { uid: Some(no.wrapping_mul(429_497)), gid: Some(no), ..SetAttr::default() };
        fs.setattr(&caller(0, 0), ino, &set).unwrap();
        if no % 3 == 0 {
            file(&fs, &caller(no, no.wrapping_mul(65_537)), &format!("f{no}"), 0).unwrap();
        }
    }
    let expected = counted(&fs);
    fs.unmount().unwrap();
    drop(fs);
    let image = device.image();
    e2fsck_is_content(&scratch, "many", &image);
    let mut found = listed(&scratch, &image, "user");
    assert!(found.len() > 10_000, "{}", found.len());
    found.retain(|_, usage| *usage != (0, 0));
    assert_eq!(found, expected);
}

#[test]
fn a_full_volume_stays_counted() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("quota-full");
    for mechanism in [Consistency::Ordered, Consistency::Full] {
        let device = device(made(&scratch, &["-O", "quota", "-b", "1024", "-m", "0"]));
        let fs = mounted(&device, mechanism);
        let filler = file(&fs, &caller(5, 5), "filler", 0).unwrap();
        let (end, error) = fill_up(&fs, &caller(5, 5), filler);
        assert_eq!(error, Errno::NOSPC);
        let cut = SetAttr { size: Some(end - 40_000), ..SetAttr::default() };
        fs.setattr(&caller(0, 0), filler, &cut).unwrap();
        fs.sync().unwrap();
        // Each new user takes a leaf's place, until there are no leaves any more.
        let refused = (0..2000_u32).find_map(|no| {
            let uid = 1000 + no * 70_000;
            file(&fs, &caller(uid, 5), &format!("f{no}"), 0).err().map(|error| (no, error.errno()))
        });
        assert!(refused.is_some_and(|(_, errno)| errno == Errno::NOSPC), "{refused:?}");
        let set = SetAttr { uid: Some(7), gid: Some(0x4000_0000), ..SetAttr::default() };
        assert_eq!(fs.setattr(&caller(0, 0), filler, &set).unwrap_err().errno(), Errno::NOSPC);
        fs.unlink(&caller(0, 0), fs.root(), b"f0").unwrap();
        let expected = counted(&fs);
        fs.unmount().unwrap();
        drop(fs);
        e2fsck_is_content(&scratch, "full", &device.image());
        let mut found = listed(&scratch, &device.image(), "user");
        found.retain(|_, usage| *usage != (0, 0));
        assert_eq!(found, expected);
    }
}

#[test]
fn what_is_made_in_a_projects_directory_is_the_projects_and_stays_there() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("quota-project");
    let device = device(made(&scratch, &["-O", "quota,project", "-b", "1024"]));
    let (root, who) = (caller(0, 0), caller(1000, 100));
    let fs = mounted(&device, Consistency::Ordered);
    let dir = |name: &[u8]| fs.mkdir(&root, fs.root(), name, 0o755).unwrap().attr.ino;
    let (own, other) = (dir(b"own"), dir(b"other"));
    fs.set_project(&root, own, 77).unwrap();
    fs.set_flags(&root, own, InodeFlags(fs.flags(own).unwrap().0 | InodeFlags::PROJINHERIT)).unwrap();
    let mode = FileKind::Regular.mode_bits() | 0o644;
    let inside = fs.mknod(&who, own, b"inside", mode, 0).unwrap().attr.ino;
    fs.write(&who, inside, 0, &[3; 9000]).unwrap();
    let sub = fs.mkdir(&who, own, b"sub", 0o755).unwrap().attr.ino;
    assert_eq!(
        (fs.project(inside).unwrap(), fs.project(sub).unwrap(), fs.project(other).unwrap()),
        (77, 77, 0)
    );
    assert!(fs.flags(sub).unwrap().has(InodeFlags::PROJINHERIT));
    assert!(!fs.flags(inside).unwrap().has(InodeFlags::PROJINHERIT));
    let outside = fs.mknod(&who, other, b"outside", mode, 0).unwrap().attr.ino;
    let rename = |from: (InodeNo, &[u8]), to: (InodeNo, &[u8]), mode| {
        fs.rename(&root, from, to, mode).map_err(|e| e.errno())
    };
    assert_eq!(rename((other, b"outside"), (own, b"x"), RenameMode::Replace), Err(Errno::XDEV));
    assert_eq!(rename((own, b"inside"), (other, b"outside"), RenameMode::Exchange), Err(Errno::XDEV));
    assert_eq!(fs.link(&root, outside, own, b"x").unwrap_err().errno(), Errno::XDEV);
    assert_eq!(rename((own, b"inside"), (sub, b"moved"), RenameMode::Replace), Ok(()));
    // Out of it a file keeps its project.
    assert_eq!(rename((sub, b"moved"), (other, b"moved"), RenameMode::Replace), Ok(()));
    assert_eq!(fs.project(inside).unwrap(), 77);
    fs.set_project(&who, outside, 77).unwrap();
    assert_eq!(fs.set_project(&caller(5, 5), outside, 78).unwrap_err().errno(), Errno::PERM);
    assert_eq!(rename((other, b"outside"), (own, b"x"), RenameMode::Replace), Ok(()));
    fs.unmount().unwrap();
    drop(fs);
    let usage = account(&*device, QuotaKind::Project, 77).unwrap().usage;
    assert_eq!((usage.inodes, usage.space), (4, 9 * 1024 + 2 * 1024));
    e2fsck_is_content(&scratch, "project", &device.image());
    // What a volume without projects has in these bytes means nothing.
    let plain = super::device(made(&scratch, &["-b", "1024"]));
    let fs = mounted(&plain, Consistency::Ordered);
    assert_eq!(fs.set_project(&root, fs.root(), 7).unwrap_err().errno(), Errno::OPNOTSUPP);
}

#[test]
fn without_a_journal_such_a_volume_is_only_read() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("quota-unjournaled");
    for (options, consistency) in
        [(&["-O", "quota,^has_journal"], None), (&["-O", "quota,project"], Some(Consistency::Soft))]
    {
        let arrangement = Arrangement { consistency, ..Arrangement::default() };
        let opened =
            open::<Ext2>(device(made(&scratch, options)), &arrangement, Arc::new(ManualClock::new()));
        let refused = opened.map(drop).unwrap_err().to_string();
        assert!(refused.contains("quota") && refused.contains("journal"), "{refused}");
    }
}

#[test]
fn limits_are_set_and_read() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("quota-limits");
    let limits = Limits { space_soft: 10, space_hard: 20, inodes_soft: 30, inodes_hard: 40 };
    let device = limited(&scratch, limits);
    assert_eq!(account(&*device, QuotaKind::User, 1000).unwrap().limits, limits);
    e2fsck_is_content(&scratch, "limits", &device.image());
    let path = scratch.path("limits.img");
    std::fs::write(&path, device.image()).unwrap();
    let (_, said) = run("debugfs", &["-R", "gq user 1000", path.to_str().unwrap()]);
    for word in ["10", "20", "30", "40"] {
        assert!(said.split_whitespace().any(|found| found == word), "{said}");
    }
    let plain = super::device(made(&scratch, &[]));
    assert!(set_limits(&*plain, (QuotaKind::User, 0), limits, NOW).is_err());
    assert!(report(&*plain).unwrap().is_empty());
}

#[test]
fn what_we_make_is_what_mke2fs_makes() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("quota-mkfs");
    for (features, extended) in [
        ("quota", ""),
        ("quota,project", "root_owner=1000:70000"),
        ("quota,project,orphan_file", "quotatype=prjquota:usrquota"),
        ("quota,^extent,^64bit,^has_journal", "quotatype=grpquota"),
        ("project", ""),
    ] {
        for block_size in ["1024", "4096"] {
            let mut theirs = vec!["-O", features, "-b", block_size];
            if !extended.is_empty() {
                theirs.extend(["-E", extended]);
            }
            let theirs = device(made(&scratch, &theirs));
            let ours = Arc::new(MemDevice::new(1024, 40 << 10));
            let mut options = mkfs::MkfsOptions::new([7; 16], [8; 16], NOW);
            options.features = mkfs::MkfsFeatures::EXT4;
            options.features.apply(features).unwrap();
            options.apply_extended(extended).unwrap();
            options.block_size = Some(block_size.parse().unwrap());
            if options.features.has_journal {
                options.journal = mkfs::MkfsJournal::Suitable;
            }
            mkfs::mkfs(&*ours, &options, &mut |_, _| ()).unwrap();
            let name = format!("{features} {extended} {block_size}");
            e2fsck_is_content(&scratch, &name, &ours.image());
            assert_eq!(report(&*ours).unwrap(), report(&*theirs).unwrap(), "{name}");
            let inodes = |image: &[u8]| [0x240, 0x244, 0x26c, 0x280].map(|at| image[1024 + at]);
            assert_eq!(inodes(&ours.image()), inodes(&theirs.image()), "{name}");
        }
    }
}
