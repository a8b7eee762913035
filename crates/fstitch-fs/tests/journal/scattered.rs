//! Files whose blocks lie in more groups than a small journal has blocks.
//!
//! What it prevents: a removal that makes a transaction larger than the log, which ends all changes.

use std::sync::Arc;

use fstitch_core::Consistency;
use fstitch_core::{Caller, FallocateMode, FileSystem, InodeNo, ManualClock, MemDevice, SetAttr};
use fstitch_fs::arrange::{Arrangement, open};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::check_ext2;

use super::support::{Scratch, have, run};

const GROUP: u64 = 256;
const GROUPS: u64 = 1200;
const BLOCK: u64 = 1024;

fn file(fs: &dyn FileSystem, name: &[u8]) -> InodeNo {
    fs.mknod(&Caller::default(), fs.root(), name, 0o100_644, 0).unwrap().attr.ino
}

/// Fills the volume, then makes room in every group; returns how many blocks that is.
fn prepare(fs: &dyn FileSystem) -> u64 {
    let (caller, filler) = (Caller::default(), file(fs, b"filler"));
    let data = vec![7; 1 << 20];
    let mut at = 0;
    while let Ok(done) = fs.write(&caller, filler, at, &data) {
        at += u64::try_from(done).unwrap();
    }
    fs.sync().unwrap();
    let mut freed = 0;
    for offset in (0..at).step_by(usize::try_from(GROUP * BLOCK).unwrap()) {
        fs.fallocate(&caller, filler, offset / BLOCK * BLOCK, BLOCK, FallocateMode::PunchHole).unwrap();
        freed += 1;
    }
    fs.sync().unwrap();
    freed
}

#[test]
fn scattered_files_are_removed_in_transactions_that_fit() {
    let scratch = Scratch::new("journal-scattered");
    if !have("mke2fs") {
        return;
    }
    let image = scratch.path("volume.img");
    let (groups, blocks) = (GROUP.to_string(), (GROUP * GROUPS).to_string());
    let shape = ["-b", "1024", "-g", &groups, "-N", "1200", "-J", "size=1", "-m", "0", "-O", "^resize_inode"];
    let (code, said) = run(
        "mke2fs",
        &[&["-q", "-F", "-t", "ext3"], &shape[..], &[image.to_str().unwrap(), &blocks]].concat(),
    );
    assert_eq!(code, 0, "{said}");
    let device = Arc::new(MemDevice::from_image(1024, std::fs::read(&image).unwrap()));
    let arrangement = Arrangement { consistency: Some(Consistency::Ordered), ..Arrangement::default() };
    let (fs, _) = open::<Ext2>(Arc::clone(&device) as _, &arrangement, Arc::new(ManualClock::new())).unwrap();
    let room = prepare(&fs);
    assert!(room > 1100, "{room} groups have room");
    let caller = Caller::default();
    for name in [&b"removed"[..], b"shortened"] {
        let victim = file(&fs, name);
        let mut at = 0;
        while at < room * BLOCK {
            let Ok(done) = fs.write(&caller, victim, at, &[1; 1024]) else { break };
            at += u64::try_from(done).unwrap();
        }
        assert!(at > 1000 * BLOCK, "{at} bytes were written");
        fs.sync().unwrap();
        if name == b"removed" {
            fs.unlink(&caller, fs.root(), name).unwrap();
        } else {
            fs.setattr(&caller, victim, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
        }
        fs.forget(victim, 1);
        fs.sync().unwrap();
    }
    fs.unmount().unwrap();
    let report = check_ext2(&*device).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}
