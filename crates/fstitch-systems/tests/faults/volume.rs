//! A small volume with something on it, mounted over a device that fails and a recorder of what it was asked.

use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{
    BlockDevice, Caller, FileSystem, InodeNo, ManualClock, MemDevice, Result, Timestamp, XattrSetMode,
};
use fstitch_crashlab::medium::Base;
use fstitch_crashlab::{FaultDevice, FaultPlan, Image, Recorder};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::mkfs::{MkfsOptions, mkfs};
use fstitch_fs::uhfs::{Uhfs, UhfsOptions};
use fstitch_patch::{Cache, CacheOptions};

/// The recorder is above the faults: what fails was issued, and may or may not have arrived.
pub type Device = Recorder<FaultDevice<Image>>;

/// A file of the volume that nothing changes.
pub const KEPT: &[u8] = &[0x4b; 9_000];

/// The volume as it was formatted and filled, cleanly unmounted.
pub fn base() -> Arc<Base> {
    let device = Arc::new(MemDevice::new(1024, 2048));
    let mut options = MkfsOptions::new([7; 16], [9; 16], Timestamp { secs: 1_700_000_000, nanos: 0 });
    options.block_size = Some(1024);
    options.inodes = Some(128);
    options.features.resize_inode = false;
    mkfs(&*device, &options, &mut |_, _| {}).unwrap();
    let (_, fs) = mount(device.clone()).unwrap();
    fill(&fs).unwrap();
    fs.unmount().unwrap();
    Base::new(1024, device.image())
}

fn fill(fs: &dyn FileSystem) -> Result<()> {
    let caller = Caller::default();
    make(fs, fs.root(), "kept", KEPT)?;
    make(fs, fs.root(), "big", &[0x42; 300_000])?;
    make(fs, fs.root(), "old", &[0x6f; 3_000])?;
    make(fs, fs.root(), "target", &[0x74; 3_000])?;
    let dir = fs.mkdir(&caller, fs.root(), b"dir", 0o755)?.attr.ino;
    for n in 0..40 {
        make(fs, dir, &format!("a-file-with-a-rather-long-name-{n}"), &[0x64; 700])?;
    }
    let attributed = fs.walk(b"old")?.attr.ino;
    fs.setxattr(&caller, attributed, b"user.colour", &[0x72; 300], XattrSetMode::Set)?;
    fs.forget(attributed, 1);
    fs.forget(dir, 1);
    Ok(())
}

/// Makes a file with contents.
pub fn make(fs: &dyn FileSystem, dir: InodeNo, name: &str, contents: &[u8]) -> Result<()> {
    let caller = Caller::default();
    let ino = fs.mknod(&caller, dir, name.as_bytes(), 0o100_644, 0)?.attr.ino;
    let written = write_all(fs, ino, contents);
    fs.forget(ino, 1);
    written
}

fn write_all(fs: &dyn FileSystem, ino: InodeNo, contents: &[u8]) -> Result<()> {
    let mut done = 0;
    while done < contents.len() {
        done += fs.write(&Caller::default(), ino, u64::try_from(done).unwrap(), &contents[done..])?;
    }
    Ok(())
}

/// All bytes of the file at `path`.
pub fn contents(fs: &dyn FileSystem, path: &str) -> Result<Vec<u8>> {
    with(fs, path, |ino| {
        let size = fs.getattr(ino)?.size;
        let mut bytes = vec![0; usize::try_from(size).unwrap()];
        let mut done = 0;
        while done < bytes.len() {
            done += fs.read(ino, u64::try_from(done).unwrap(), &mut bytes[done..])?;
        }
        Ok(bytes)
    })
}

/// Does something with the inode at `path`.
pub fn with<T>(fs: &dyn FileSystem, path: &str, work: impl FnOnce(InodeNo) -> Result<T>) -> Result<T> {
    let ino = fs.walk(path.as_bytes())?.attr.ino;
    let done = work(ino);
    fs.forget(ino, 1);
    done
}

/// Mounts with a small cache and no flusher, so that every run is the same.
pub fn mount(device: Arc<dyn BlockDevice>) -> Result<(Arc<Cache>, Uhfs<Ext2>)> {
    let clock = ManualClock::new();
    clock.advance(Duration::from_secs(1_700_000_000));
    let options = CacheOptions { cache_size: 1 << 20, ..CacheOptions::default() };
    let cache = Cache::new(device, options, Arc::new(clock));
    let format = Ext2::open(Arc::clone(&cache))?;
    Ok((cache, Uhfs::new(format, UhfsOptions::default())))
}

/// The device that fails as `plan` says, with `base` on it.
pub fn device(base: &Arc<Base>, plan: FaultPlan) -> Arc<Device> {
    Arc::new(Recorder::new(FaultDevice::new(Image::new(Arc::clone(base)), plan)))
}
