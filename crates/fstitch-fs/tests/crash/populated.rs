//! A small volume that holds every kind of structure.

use std::sync::Arc;

use fstitch_core::{Caller, FileSystem, ManualClock, MemDevice, SetAttr, Timestamp, XattrSetMode};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::mkfs::{MkfsOptions, mkfs};
use fstitch_fs::uhfs::{Uhfs, UhfsOptions};
use fstitch_patch::{Cache, CacheOptions};

/// The bytes of the volume, 1 MiB for blocks of 1 KiB.
pub fn image(block_size: u32, inode_size: u32) -> Vec<u8> {
    let device = Arc::new(MemDevice::new(block_size, 1024));
    let mut options = MkfsOptions::new([7; 16], [9; 16], Timestamp::default());
    options.block_size = Some(block_size);
    options.inode_size = Some(inode_size);
    options.inodes = Some(128);
    options.features.resize_inode = false;
    mkfs(&*device, &options, &mut |_, _| {}).expect("a volume is made");
    let cache = Cache::new(device.clone(), CacheOptions::default(), Arc::new(ManualClock::new()));
    let format = Ext2::open(Arc::clone(&cache)).expect("the volume opens");
    let fs = Uhfs::new(format, UhfsOptions::default());
    populate(&fs).expect("there is room");
    fs.unmount().expect("memory does not fail");
    device.image()
}

fn populate(fs: &dyn FileSystem) -> fstitch_core::Result<()> {
    let caller = Caller::default();
    let root = fs.root();
    let dir = fs.mkdir(&caller, root, b"dir", 0o755)?.attr.ino;
    for n in 0..40 {
        let name = format!("file-with-a-name-of-some-length-{n}");
        let file = fs.mknod(&caller, dir, name.as_bytes(), 0o100_644, 0)?.attr.ino;
        fs.write(&caller, file, 0, &vec![n; usize::from(n) * 100])?;
        fs.forget(file, 1);
    }
    let big = fs.mknod(&caller, root, b"big", 0o100_644, 0)?.attr.ino;
    fs.write(&caller, big, 0, &[1; 20_000])?;
    fs.write(&caller, big, 400_000, &[2; 5_000])?;
    fs.write(&caller, big, 70_000_000, &[3; 100])?;
    fs.setxattr(&caller, big, b"user.small", b"value", XattrSetMode::Set)?;
    fs.setxattr(&caller, big, b"user.large", &[5; 600], XattrSetMode::Set)?;
    fs.setattr(&caller, big, &SetAttr { uid: Some(70_000), ..SetAttr::default() })?;
    fs.link(&caller, big, dir, b"hard")?;
    for (name, len) in [(&b"fast"[..], 10), (b"slow", 200)] {
        let link = fs.symlink(&caller, root, name, &vec![b't'; len])?.attr.ino;
        fs.forget(link, 1);
    }
    for (name, mode) in [(&b"pipe"[..], 0o010_600), (b"device", 0o020_600)] {
        let node = fs.mknod(&caller, root, name, mode, 0x0103)?.attr.ino;
        fs.forget(node, 1);
    }
    let nested = fs.mkdir(&caller, dir, b"nested", 0o755)?.attr.ino;
    [(nested, 1), (dir, 1), (big, 2)].iter().for_each(|&(ino, refs)| fs.forget(ino, refs));
    Ok(())
}
