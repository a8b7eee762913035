//! The contract of a format, as a run through everything that the programs above ask of one.

use std::sync::Arc;

use fstitch_core::{
    Caller, Consistency, Errno, ManualClock, MemDevice, RepairMode, RepairOptions, Result, SetAttr,
};
use fstitch_formats::make::Fresh;
use fstitch_formats::{Format, Identity, Recovering, Volume};
use fstitch_fs::arrange::Arrangement;

use crate::asked::{NOW, asked};

const ROOT: Caller = Caller { uid: 0, gid: 0, tid: 0, umask: 0o022 };

/// Bytes of a block, of which BPFS and waffle have one size alone; in UFS of a fragment.
pub fn block_size(kind: &str) -> u32 {
    if ["bpfs", "waffle"].contains(&kind) { 4096 } else { 1024 }
}

/// A new volume of this kind in memory.
pub fn made(format: &dyn Format, kind: &'static str) -> MemDevice {
    let mut asked = asked(format, kind, block_size(kind), "first");
    if kind.starts_with("ufs") {
        asked.words.insert("fragment-size", vec![block_size(kind).to_string()]);
        asked.block_size = Some(8 * block_size(kind));
    }
    let plan = format.plan(&asked).unwrap();
    let medium = MemDevice::new(1024, 8 << 10);
    let fresh = Fresh { device: &medium, is_zero: true, bytes: Some(8 << 20) };
    let made = plan.make(fresh, &mut |_, _| {}).unwrap();
    assert_eq!((made.name, made.block_size), (plan.name(), block_size(kind)));
    assert!(made.values.contains_key("blocks"));
    medium
}

/// Opens the volume on `medium`.
pub fn open(format: &dyn Format, medium: Arc<MemDevice>, read_only: bool) -> Result<Arc<dyn Volume>> {
    let mut arrangement = Arrangement::default();
    arrangement.cache.read_only = read_only;
    arrangement.fs.read_only = read_only;
    format.open(medium, &arrangement, Arc::new(ManualClock::new()))
}

fn write_file(volume: &dyn Volume, name: &[u8], contents: &[u8]) {
    let made = volume.mknod(&ROOT, volume.root(), name, 0o100_644, 0).unwrap();
    assert_eq!(volume.write(&ROOT, made.attr.ino, 0, contents).unwrap(), contents.len());
    volume.forget(made.attr.ino, 1);
}

fn read_file(volume: &dyn Volume, name: &[u8]) -> Vec<u8> {
    let found = volume.lookup(volume.root(), name).unwrap();
    let mut buf = vec![0; 512];
    let len = volume.read(found.attr.ino, 0, &mut buf).unwrap();
    volume.forget(found.attr.ino, 1);
    buf.truncate(len);
    buf
}

fn shown(format: &dyn Format, medium: &MemDevice, name: &str) -> String {
    let described = format.describe(medium, None, true).unwrap();
    let field = described.fields.into_iter().find(|field| field.name == name);
    field.map(|field| field.text).unwrap_or_default()
}

/// Goes through all of it.
pub fn keeps_contract(format: &'static dyn Format, kind: &'static str) {
    let medium = Arc::new(made(format, kind));
    assert_eq!(format.look(&*medium).unwrap().block_size, block_size(kind));
    assert!(format.is_marked_clean(&*medium) && !format.needs_recovery(&*medium).unwrap());
    let left = works(format, kind, &medium);
    survives_a_cut(format, left);
    is_described(format, kind, &medium);
    reads_only(format, &medium);
}

/// Works on a fresh volume and unmounts it; returns the medium as it was, synced, before that.
fn works(format: &dyn Format, kind: &str, medium: &Arc<MemDevice>) -> MemDevice {
    let volume = open(format, Arc::clone(medium), false).unwrap();
    assert_eq!(volume.format_name(), kind);
    assert!(
        !volume.was_unclean()
            && (volume.consistency() == Consistency::Shadow
                || Consistency::ALL.contains(&volume.consistency()))
    );
    write_file(&*volume, b"a", b"contents");
    assert_eq!(read_file(&*volume, b"a"), b"contents");
    obeys_posix(&*volume);
    keeps_what_is_referred_to(&*volume);
    let held = volume.lookup(volume.root(), b"a").unwrap().attr.ino;
    assert_eq!(volume.references().into_iter().find(|(ino, _)| *ino == held), Some((held, 1)));
    volume.forget(held, 1);
    volume.sync().unwrap();
    // What a journal has is stable, and still to be written to its place.
    let health = volume.health();
    assert!(
        health.failure.is_none() && (health.dirty_bytes == 0 || matches!(kind, "ext3" | "ext4")),
        "{health:?}"
    );
    assert!(volume.reclaim().unwrap().complete);
    let left = MemDevice::from_image(1024, medium.image());
    let pinned = Arc::clone(&volume).pin(held, true);
    // Where blocks of files move, no volume can be in a file.
    match volume.cache().is_some() && format.cached().is_some() {
        true => assert!(pinned.is_ok()),
        false => assert_eq!(pinned.map(drop).unwrap_err().errno(), Errno::OPNOTSUPP),
    }
    while volume.let_go() {}
    assert!(volume.check().unwrap().corrupt == 0);
    volume.unmount().unwrap();
    assert!(format.is_marked_clean(&**medium));
    left
}

/// Rules that no format has of its own.
fn obeys_posix(volume: &dyn Volume) {
    let user = Caller { uid: 1000, gid: 1000, ..ROOT };
    let root = volume.root();
    let errno = |result: Result<()>| result.map_err(|error| error.errno());
    let made = |name: &[u8]| errno(volume.mknod(&user, root, name, 0o100_777, 0).map(|_| ()));
    assert_eq!(made(b""), Err(Errno::NOENT));
    assert_eq!(made(b"x/y"), Err(Errno::INVAL));
    assert_eq!(made(&[b'n'; 300]), Err(Errno::NAMETOOLONG));
    assert_eq!(made(b"a"), Err(Errno::EXIST));
    assert_eq!(errno(volume.unlink(&user, root, b"none")), Err(Errno::NOENT));
    assert_eq!(errno(volume.rmdir(&user, root, b"a")), Err(Errno::NOTDIR));
    let lent = volume.mknod(&user, root, b"lent", 0o106_755, 0).unwrap().attr;
    assert_eq!((lent.perm, lent.uid, lent.gid), (0o6755, 1000, 1000), "the umask is in it already");
    volume.write(&user, lent.ino, 0, b"x").unwrap();
    assert_eq!(volume.getattr(lent.ino).unwrap().perm, 0o755, "a write takes away what it lent");
    let chown = SetAttr { perm: Some(0o4700), ..SetAttr::default() };
    assert_eq!(volume.setattr(&user, lent.ino, &chown).unwrap().perm, 0o4700);
    let chown = SetAttr { uid: Some(5), ..SetAttr::default() };
    assert_eq!(volume.setattr(&ROOT, lent.ino, &chown).unwrap().perm, 0o700);
    volume.forget(lent.ino, 1);
    volume.unlink(&user, root, b"lent").unwrap();
}

/// A file that has lost its name is there for those who refer to it; the last of them gives its room back.
fn keeps_what_is_referred_to(volume: &dyn Volume) {
    let root = volume.root();
    let files = |volume: &dyn Volume| {
        let held = volume.references();
        held.into_iter().filter(|&(ino, _)| ino != volume.root()).collect::<Vec<_>>()
    };
    let free = volume.statfs().unwrap().blocks_free;
    let ino = volume.mknod(&ROOT, root, b"open", 0o100_644, 0).unwrap().attr.ino;
    volume.write(&ROOT, ino, 0, b"still here").unwrap();
    assert_eq!(volume.lookup(root, b"open").unwrap().attr.ino, ino);
    volume.unlink(&ROOT, root, b"open").unwrap();
    assert_eq!(volume.lookup(root, b"open").unwrap_err().errno(), Errno::NOENT);
    volume.forget(ino, 1);
    let mut buf = [0; 10];
    assert_eq!(volume.read(ino, 0, &mut buf).unwrap(), 10);
    assert_eq!((&buf, volume.getattr(ino).unwrap().nlink), (b"still here", 0));
    assert_eq!(files(volume), [(ino, 1)]);
    assert!(volume.statfs().unwrap().blocks_free < free);
    volume.forget(ino, 1);
    assert_eq!(volume.getattr(ino).unwrap_err().errno(), Errno::STALE);
    assert_eq!((files(volume), volume.statfs().unwrap().blocks_free), (Vec::new(), free));
}

/// What was synced is there after recovery, and what recovers is known to have been needed.
fn survives_a_cut(format: &dyn Format, left: MemDevice) {
    let left = Arc::new(left);
    let needed = format.needs_recovery(&*left).unwrap();
    assert!(!format.is_marked_clean(&*left), "in use");
    let mut how = Recovering { external: None, now: NOW, for_reading: false, progress: &mut |_| {} };
    assert_eq!(format.recover(&*left, &mut how).unwrap().is_some(), needed);
    assert!(!format.needs_recovery(&*left).unwrap());
    let volume = open(format, Arc::clone(&left), false).unwrap();
    // Or opening it to be changed has mended it.
    assert!(volume.was_unclean() || needed || format.is_marked_clean(&*left));
    assert_eq!(read_file(&*volume, b"a"), b"contents");
    volume.reclaim().unwrap();
    volume.unmount().unwrap();
    let report = format.repair(&*left, RepairOptions { mode: RepairMode::No, now: NOW }).unwrap();
    assert!(report.found.is_clean() && report.mended == 0, "{report:?}");
}

fn is_described(format: &dyn Format, kind: &str, medium: &MemDevice) {
    assert!(shown(format, medium, "format").starts_with(kind));
    assert_eq!(shown(format, medium, "label"), "first");
    let described = format.describe(medium, None, false).unwrap();
    assert_eq!(described.values["format"], kind);
    let identity = Identity { label: Some(b"second".to_vec()), uuid: None };
    format.identify(medium, &identity).unwrap();
    assert_eq!(shown(format, medium, "label"), "second");
}

/// A volume that is opened for reading changes nothing.
fn reads_only(format: &dyn Format, medium: &Arc<MemDevice>) {
    let before = medium.image();
    let volume = open(format, Arc::clone(medium), true).unwrap();
    assert_eq!(read_file(&*volume, b"a"), b"contents");
    let refused = volume.mknod(&ROOT, volume.root(), b"b", 0o100_644, 0);
    assert_eq!(refused.unwrap_err().errno(), Errno::ROFS);
    volume.unmount().unwrap();
    assert!(medium.image() == before, "read-only means that nothing is written");
}
