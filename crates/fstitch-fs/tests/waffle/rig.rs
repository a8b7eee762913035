//! Volumes in memory.

use std::sync::Arc;

use fstitch_core::{
    BlockDevice, Caller, Errno, FileSystem, InodeNo, ManualClock, MemDevice, Result, Timestamp,
};
use fstitch_fs::uhfs::AtimePolicy;
use fstitch_fs::waffle::mkfs::{MkfsOptions, mkfs};
use fstitch_fs::waffle::{Options, Waffle, check};
use fstitch_patch::CacheOptions;

pub const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 1, umask: 0o022 };

/// An empty volume of so many blocks.
pub fn made(blocks: u64) -> Arc<MemDevice> {
    made_with(blocks, false)
}

/// The same; its files may be compressed.
pub fn made_with(blocks: u64, is_compressed: bool) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::from_image(4096, vec![0xee; usize::try_from(blocks).unwrap() * 4096]));
    let options = MkfsOptions {
        uuid: [1; 16],
        label: b"test".to_vec(),
        seed: 5,
        now: Timestamp { secs: 1000, nanos: 0 },
        owner: (0, 0),
        blocks: None,
        is_compressed,
    };
    mkfs(Arc::clone(&device) as Arc<dyn BlockDevice>, &options).unwrap();
    device
}

/// Mounts it.
pub fn mount_with(device: &Arc<MemDevice>, options: Options) -> Result<Arc<Waffle>> {
    let cache = CacheOptions { cache_size: 4 << 20, ..CacheOptions::default() };
    Waffle::mount(Arc::clone(device) as _, cache, Arc::new(ManualClock::new()), options)
}

pub fn mount(device: &Arc<MemDevice>) -> Arc<Waffle> {
    mount_with(device, Options { atime: AtimePolicy::NoAtime, ..Options::default() }).unwrap()
}

/// Nothing is found in it.
pub fn is_clean(device: &Arc<MemDevice>) {
    let report = check::check(Arc::clone(device) as _).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
}

/// Makes a file with these contents.
pub fn file(fs: &Waffle, dir: InodeNo, name: &str, contents: &[u8]) -> Result<InodeNo> {
    let ino = fs.mknod(&CALLER, dir, name.as_bytes(), 0o100_644, 0)?.attr.ino;
    let written = fs.write(&CALLER, ino, 0, contents);
    fs.forget(ino, 1);
    match written {
        Ok(len) if len == contents.len() => Ok(ino),
        Ok(_) => Err(Errno::NOSPC.into()),
        Err(error) => Err(error),
    }
}

/// The names of a directory.
pub fn names(fs: &Waffle, dir: InodeNo) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    })
    .unwrap();
    names.retain(|name| name != b"." && name != b"..");
    names
}

/// The contents of a file.
pub fn contents(fs: &Waffle, ino: InodeNo) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(fs.getattr(ino)?.size).unwrap()];
    let len = fs.read(ino, 0, &mut bytes)?;
    assert_eq!(len, bytes.len());
    Ok(bytes)
}

/// Bytes that compress to about a third.
pub fn text(len: usize, number: u64) -> Vec<u8> {
    let mut seed = fstitch_core::Seed::new(number);
    (0..len).map(|_| b"aaaaeeio stn"[usize::try_from(seed.below(12)).unwrap()]).collect()
}

/// Bytes that do not compress.
pub fn noise(len: usize, number: u64) -> Vec<u8> {
    let mut seed = fstitch_core::Seed::new(number);
    (0..len).map(|_| u8::try_from(seed.below(256)).unwrap()).collect()
}
