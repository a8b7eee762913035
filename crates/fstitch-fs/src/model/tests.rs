//! The reference's own rules, each as an example.

use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{
    Caller, Errno, FallocateMode, FileSystem, InodeFlags, InodeNo, ManualClock, RenameMode, SeekFrom,
    SetAttr, Timestamp, XattrSetMode,
};

use super::{Model, ModelOptions};

const ME: Caller = Caller { uid: 0, gid: 0, tid: 0, umask: 0o022 };
const ROOT: InodeNo = InodeNo(2);

fn fresh() -> (Model, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new());
    let options = ModelOptions { blocks: 16, inodes: 12, ..ModelOptions::default() };
    (Model::with(options, Arc::clone(&clock) as Arc<dyn fstitch_core::Clock>), clock)
}

fn file(fs: &Model, name: &[u8]) -> InodeNo {
    fs.mknod(&ME, ROOT, name, 0o100_666, 0).unwrap().attr.ino
}

fn dir(fs: &Model, parent: InodeNo, name: &[u8]) -> InodeNo {
    fs.mkdir(&ME, parent, name, 0o777).unwrap().attr.ino
}

fn errno<T: std::fmt::Debug>(result: fstitch_core::Result<T>) -> Errno {
    result.unwrap_err().errno()
}

fn names(fs: &Model, ino: InodeNo, from: u64) -> Vec<(String, u64)> {
    let mut seen = Vec::new();
    fs.readdir(ino, from, &mut |entry| {
        seen.push((String::from_utf8_lossy(entry.name).into_owned(), entry.next));
        true
    })
    .unwrap();
    seen
}

fn assert_clean(fs: &Model) {
    let report = fs.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn new_inodes_obey_umask_and_counts() {
    let (fs, _) = fresh();
    let a = file(&fs, b"a");
    assert_eq!(fs.getattr(a).unwrap().perm, 0o644);
    let d = dir(&fs, ROOT, b"d");
    assert_eq!(fs.getattr(d).unwrap().nlink, 2);
    assert_eq!(fs.getattr(ROOT).unwrap().nlink, 3);
    assert_eq!(errno(fs.mkdir(&ME, ROOT, b"d", 0o777)), Errno::EXIST);
    assert_eq!(errno(fs.mkdir(&ME, ROOT, &[b'x'; 256], 0o777)), Errno::NAMETOOLONG);
    assert_eq!(errno(fs.lookup(a, b"x")), Errno::NOTDIR);
    assert_clean(&fs);
}

#[test]
fn an_unlinked_file_lives_until_it_is_forgotten() {
    let (fs, _) = fresh();
    let a = file(&fs, b"a");
    fs.write(&ME, a, 0, b"text").unwrap();
    fs.unlink(&ME, ROOT, b"a").unwrap();
    assert_eq!(fs.getattr(a).unwrap().nlink, 0);
    let mut buf = [0; 8];
    assert_eq!(fs.read(a, 0, &mut buf).unwrap(), 4);
    assert_eq!(errno(fs.link(&ME, a, ROOT, b"again")), Errno::NOENT);
    fs.forget(a, 1);
    assert_eq!(errno(fs.getattr(a)), Errno::STALE);
    assert_eq!(fs.statfs().unwrap().blocks_free, 16);
    assert_clean(&fs);
}

#[test]
fn a_temporary_file_may_get_a_name() {
    let (fs, _) = fresh();
    let a = fs.tmpfile(&ME, ROOT, 0o600).unwrap().attr.ino;
    fs.link(&ME, a, ROOT, b"named").unwrap();
    fs.unlink(&ME, ROOT, b"named").unwrap();
    assert_eq!(errno(fs.link(&ME, a, ROOT, b"again")), Errno::NOENT);
    assert_clean(&fs);
}

#[test]
fn renames_follow_the_rules_of_kinds() {
    let (fs, _) = fresh();
    let (a, d) = (file(&fs, b"a"), dir(&fs, ROOT, b"d"));
    let e = dir(&fs, d, b"e");
    let rename = |from, to, mode| fs.rename(&ME, from, to, mode);
    assert_eq!(errno(rename((ROOT, b"a"), (ROOT, b"d"), RenameMode::Replace)), Errno::ISDIR);
    assert_eq!(errno(rename((ROOT, b"d"), (ROOT, b"a"), RenameMode::Replace)), Errno::NOTDIR);
    assert_eq!(errno(rename((ROOT, b"d"), (e, b"x"), RenameMode::Replace)), Errno::INVAL);
    assert_eq!(errno(rename((d, b"e"), (ROOT, b"d"), RenameMode::Replace)), Errno::NOTEMPTY);
    assert_eq!(errno(rename((ROOT, b"a"), (d, b"e"), RenameMode::NoReplace)), Errno::EXIST);
    assert_eq!(errno(rename((ROOT, b"a"), (d, b"x"), RenameMode::Exchange)), Errno::NOENT);
    rename((ROOT, b"a"), (d, b"e"), RenameMode::Exchange).unwrap();
    assert_eq!(fs.lookup(d, b"e").unwrap().attr.ino, a);
    assert_eq!(fs.lookup(e, b"..").unwrap().attr.ino, ROOT);
    assert_eq!(fs.getattr(d).unwrap().nlink, 2);
    assert_eq!(fs.getattr(ROOT).unwrap().nlink, 4);
    assert_clean(&fs);
}

#[test]
fn replacing_an_empty_directory_keeps_the_counts_right() {
    let (fs, _) = fresh();
    let (a, b) = (dir(&fs, ROOT, b"a"), dir(&fs, ROOT, b"b"));
    let moved = dir(&fs, a, b"x");
    dir(&fs, b, b"x");
    fs.rename(&ME, (a, b"x"), (b, b"x"), RenameMode::Replace).unwrap();
    assert_eq!(fs.lookup(b, b"x").unwrap().attr.ino, moved);
    assert_eq!((fs.getattr(a).unwrap().nlink, fs.getattr(b).unwrap().nlink), (2, 3));
    assert_clean(&fs);
}

#[test]
fn a_full_volume_takes_what_fits() {
    let (fs, _) = fresh();
    let a = file(&fs, b"a");
    assert_eq!(fs.write(&ME, a, 0, &vec![7; 20 * 4096]).unwrap(), 16 * 4096);
    assert_eq!(errno(fs.write(&ME, a, 16 * 4096, b"x")), Errno::NOSPC);
    fs.fallocate(&ME, a, 4096, 8192, FallocateMode::PunchHole).unwrap();
    assert_eq!(fs.getattr(a).unwrap().blocks, 14 * 8);
    assert_eq!(fs.seek(a, 0, SeekFrom::Hole).unwrap(), 4096);
    assert_eq!(fs.seek(a, 4096, SeekFrom::Data).unwrap(), 3 * 4096);
    let all = SetAttr { size: Some(3), ..SetAttr::default() };
    assert_eq!(fs.setattr(&ME, a, &all).unwrap().blocks, 8);
    assert_clean(&fs);
}

#[test]
fn listings_survive_changes_between_two_calls() {
    let (fs, _) = fresh();
    for name in [b"a", b"b", b"c"] {
        file(&fs, name);
    }
    let all = names(&fs, ROOT, 0);
    assert_eq!(all.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), [".", "..", "a", "b", "c"]);
    fs.unlink(&ME, ROOT, b"a").unwrap();
    file(&fs, b"0");
    let rest = names(&fs, ROOT, all[2].1);
    assert_eq!(rest.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["b", "c", "0"]);
}

#[test]
fn append_only_and_immutable_files_refuse_changes() {
    let (fs, _) = fresh();
    let a = file(&fs, b"a");
    fs.write(&ME, a, 0, b"12").unwrap();
    fs.set_flags(&ME, a, InodeFlags(InodeFlags::APPEND)).unwrap();
    assert_eq!(errno(fs.write(&ME, a, 1, b"x")), Errno::PERM);
    fs.write(&ME, a, 2, b"x").unwrap();
    assert_eq!(errno(fs.unlink(&ME, ROOT, b"a")), Errno::PERM);
    fs.set_flags(&ME, a, InodeFlags(InodeFlags::IMMUTABLE)).unwrap();
    assert_eq!(errno(fs.write(&ME, a, 3, b"x")), Errno::PERM);
    assert_eq!(errno(fs.setattr(&ME, a, &SetAttr { perm: Some(0), ..SetAttr::default() })), Errno::PERM);
    let user = Caller { uid: 5, ..ME };
    assert_eq!(errno(fs.set_flags(&user, a, InodeFlags(0))), Errno::PERM);
}

#[test]
fn extended_attributes_have_modes_and_namespaces() {
    let (fs, _) = fresh();
    let a = file(&fs, b"a");
    assert_eq!(errno(fs.setxattr(&ME, a, b"user.x", b"1", XattrSetMode::Replace)), Errno::NODATA);
    fs.setxattr(&ME, a, b"user.x", b"1", XattrSetMode::Create).unwrap();
    assert_eq!(errno(fs.setxattr(&ME, a, b"user.x", b"2", XattrSetMode::Create)), Errno::EXIST);
    assert_eq!(errno(fs.setxattr(&ME, a, b"other.x", b"2", XattrSetMode::Set)), Errno::OPNOTSUPP);
    assert_eq!(fs.listxattr(a).unwrap(), [b"user.x".to_vec()]);
    fs.removexattr(&ME, a, b"user.x").unwrap();
    assert_eq!(errno(fs.getxattr(a, b"user.x")), Errno::NODATA);
}

#[test]
fn default_access_lists_replace_the_umask() {
    let (fs, _) = fresh();
    let mut list = vec![2, 0, 0, 0];
    for (tag, perm, id) in
        [(1u16, 7u16, u32::MAX), (2, 6, 1000), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)]
    {
        list.extend(tag.to_le_bytes());
        list.extend(perm.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    fs.setxattr(&ME, ROOT, b"system.posix_acl_default", &list, XattrSetMode::Set).unwrap();
    let a = file(&fs, b"a");
    assert_eq!(fs.getattr(a).unwrap().perm, 0o660);
    assert!(fs.getxattr(a, b"system.posix_acl_access").is_ok());
    fs.setattr(&ME, a, &SetAttr { perm: Some(0o600), ..SetAttr::default() }).unwrap();
    let own = fs.getxattr(a, b"system.posix_acl_access").unwrap();
    assert_eq!(own[4 + 3 * 8 + 2], 0, "the mask follows chmod");
}

#[test]
fn reading_follows_relatime() {
    let (fs, clock) = fresh();
    let a = file(&fs, b"a");
    fs.write(&ME, a, 0, b"text").unwrap();
    let mut buf = [0; 4];
    clock.advance(Duration::from_secs(10));
    fs.read(a, 0, &mut buf).unwrap();
    clock.advance(Duration::from_secs(10));
    fs.read(a, 0, &mut buf).unwrap();
    assert_eq!(fs.getattr(a).unwrap().atime, Timestamp { secs: 10, nanos: 0 });
    clock.advance(Duration::from_secs(90_000));
    fs.read(a, 0, &mut buf).unwrap();
    assert_eq!(fs.getattr(a).unwrap().atime.secs, 90_020);
}

#[test]
fn the_checker_finds_a_wrong_count() {
    let (fs, _) = fresh();
    let a = file(&fs, b"a");
    fs.lock().known(a).attr.nlink = 2;
    assert_eq!(fs.check().unwrap().findings[0].code, "link-count");
}

#[test]
fn nothing_changes_after_unmount() {
    let (fs, _) = fresh();
    let a = file(&fs, b"a");
    fs.unmount().unwrap();
    assert_eq!(errno(fs.write(&ME, a, 0, b"x")), Errno::ROFS);
}
