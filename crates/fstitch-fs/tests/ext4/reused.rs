//! Blocks that a file has lost a moment ago and another one gets: until the loss is on the medium nothing of the other one is in them.
//!
//! What it prevents: after a crash the first file is there with contents of the other one, where the other one got the blocks before it
//! filled them: unwritten by `fallocate`, or with the first block of their cluster.

use std::sync::Arc;

use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockWrite, Consistency, FallocateMode, FileSystem, ManualClock,
    MemDevice, Result, SetAttr,
};
use fstitch_fs::arrange::{Arrangement, open};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::uhfs::Uhfs;

use super::cut::{Lossy, is_thorough};
use super::support::{Scratch, have};
use super::tree::CALLER;
use super::{made, mounted, recovered};

/// Bytes of the file that goes.
const LEN: usize = 600 << 10;

fn make(fs: &dyn FileSystem, name: &str) -> fstitch_core::InodeNo {
    fs.mknod(&CALLER, fs.root(), name.as_bytes(), 0o100_644, 0).unwrap().attr.ino
}

/// A volume on which nothing is free but what the file `first` has, all of it `a`.
fn full(scratch: &Scratch, options: &[&str], mechanism: Consistency) -> Vec<u8> {
    let device = super::device(made(scratch, options));
    let fs = mounted(&device, mechanism);
    let first = make(&fs, "first");
    fs.write(&CALLER, first, 0, &vec![b'a'; LEN]).unwrap();
    let rest = make(&fs, "rest");
    let (mut at, mut len) = (0, 1 << 20);
    while len >= 1024 {
        match fs.fallocate(&CALLER, rest, at, len, FallocateMode::Allocate) {
            Ok(()) => at += len,
            Err(_) => len /= 2,
        }
    }
    fs.unmount().unwrap();
    device.image()
}

/// The first file goes, and another one gets its blocks and fills them.
fn exchange(fs: &Uhfs<Ext2>, by_fallocate: bool) -> Result<()> {
    fs.unlink(&CALLER, fs.root(), b"first")?;
    let second = fs.mknod(&CALLER, fs.root(), b"second", 0o100_644, 0)?.attr.ino;
    let len = u64::try_from(LEN / 2).unwrap();
    if by_fallocate {
        fs.fallocate(&CALLER, second, 0, len, FallocateMode::Allocate)?;
        fs.write(&CALLER, second, 0, &vec![b'b'; LEN / 2])?;
    } else {
        // Each block of a cluster by itself, in no order.
        for at in (0..len / 4096).flat_map(|cluster| [2, 0, 3, 1].map(|place| cluster * 4096 + place * 1024))
        {
            fs.write(&CALLER, second, at, &[b'b'; 1024])?;
        }
    }
    fs.setattr(&CALLER, second, &SetAttr { perm: Some(0o600), ..SetAttr::default() })?;
    fs.sync()
}

#[test]
fn contents_wait_for_whose_blocks_these_were() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("ext4-reused");
    let cases: [(&[&str], Consistency, bool); 4] = [
        (&["-b", "1024", "-m", "0"], Consistency::Ordered, true),
        (&["-b", "1024", "-m", "0", "-O", "^has_journal"], Consistency::Soft, true),
        (&["-b", "1024", "-m", "0", "-O", "bigalloc", "-C", "4096"], Consistency::Ordered, true),
        (&["-b", "1024", "-m", "0", "-O", "bigalloc", "-C", "4096"], Consistency::Ordered, false),
    ];
    for (options, mechanism, by_fallocate) in cases {
        let image = full(&scratch, options, mechanism);
        let below: &'static MemDevice = Box::leak(Box::new(MemDevice::from_image(1024, image.clone())));
        let (mut there, mut gone) = (0, 0);
        // What waits is written behind the first transaction, which is short.
        let (early, late) = if is_thorough() { (1, 1) } else { (2, 41) };
        for left in (0..60).step_by(early).chain((60..).step_by(late)) {
            let name = format!("{options:?}, {mechanism}, {left} writes");
            for (block, data) in (0..).zip(image.chunks(1024)) {
                below.write(&[BlockWrite { block: BlockNo(block), kind: BlockKind::Data, data }]).unwrap();
            }
            let lossy = Lossy::after(below, left, u64::try_from(left).unwrap());
            let arrangement = Arrangement { consistency: Some(mechanism), ..Arrangement::default() };
            let fs = open::<Ext2>(Arc::new(lossy), &arrangement, Arc::new(ManualClock::new())).unwrap().0;
            let done = exchange(&fs, by_fallocate);
            drop(fs);
            if mechanism != Consistency::Soft {
                recovered(below);
            }
            let again = mounted(&super::device(below.image()), mechanism);
            if let Ok(first) = again.lookup(again.root(), b"first") {
                let mut found = vec![0; LEN];
                assert_eq!(again.read(first.attr.ino, 0, &mut found).unwrap(), LEN, "{name}");
                let others = found.iter().filter(|&&byte| byte != b'a').count();
                assert_eq!(others, 0, "{name}: bytes of somebody else");
                there += 1;
            } else {
                gone += 1;
            }
            if done.is_ok() {
                break;
            }
        }
        println!("{options:?}: {there} with the first file, {gone} without");
        assert!(there > 2 && gone > 0, "{there}, {gone}");
    }
}
