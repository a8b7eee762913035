//! How long names take in one large directory of an ext4 volume in memory, with an index that is kept and without one.
//!
//! `names [COUNT] [FILE]`: with a file, the volume with the index and all names is left there, for others to look at.
#![expect(clippy::unwrap_used, reason = "a measurement stops where it cannot go on")]

use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{Caller, Consistency, FileSystem, InodeNo, ManualClock, MemDevice, Seed, Timestamp};
use fstitch_fs::arrange::{Arrangement, open};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::mkfs::{MkfsFeatures, MkfsJournal, MkfsOptions, mkfs};
use fstitch_fs::uhfs::Uhfs;

const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 1, umask: 0 };

fn main() {
    let mut arguments = std::env::args().skip(1);
    let count = arguments.next().map_or(100_000, |count| count.parse().unwrap());
    let file = arguments.next();
    for dir_index in [false, true] {
        let device = volume(count, dir_index);
        measure(&device, count, dir_index, file.as_deref().filter(|_| dir_index));
    }
}

fn volume(count: u32, dir_index: bool) -> Arc<MemDevice> {
    // A group of 128 MiB has room for 32768 inodes.
    let blocks = u64::from(count) + 40_000;
    let device = Arc::new(MemDevice::new(4096, blocks));
    let mut options = MkfsOptions::new([7; 16], [9; 16], Timestamp::default());
    options.block_size = Some(4096);
    options.inodes = Some(count + 1000);
    options.features = MkfsFeatures { dir_index, ..MkfsFeatures::EXT4 };
    options.journal = MkfsJournal::Blocks(16_384);
    mkfs(&*device, &options, &mut |_, _| {}).unwrap();
    device
}

fn mounted(device: &Arc<MemDevice>) -> Uhfs<Ext2> {
    let mut arrangement = Arrangement { consistency: Some(Consistency::Ordered), ..Arrangement::default() };
    arrangement.cache.cache_size = 256 << 20;
    open::<Ext2>(Arc::<MemDevice>::clone(device), &arrangement, Arc::new(ManualClock::new())).unwrap().0
}

fn name(no: u32) -> Vec<u8> {
    format!("a-file-with-a-name-{no}").into_bytes()
}

/// All numbers in an order of their own.
fn shuffled(count: u32) -> Vec<u32> {
    let mut all: Vec<u32> = (0..count).collect();
    let mut dice = Seed::new(1);
    for at in (1..all.len()).rev() {
        let other = usize::try_from(dice.below(u64::try_from(at + 1).unwrap())).unwrap();
        all.swap(at, other);
    }
    all
}

/// Nanoseconds for which this process was on a processor: others on the machine do not count.
fn on_processor() -> u64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

fn timed(what: &str, count: u32, work: impl FnOnce()) {
    let began = on_processor();
    work();
    let each = Duration::from_nanos(on_processor() - began) / count;
    println!("  {what}: {:.2} us a name", each.as_secs_f64() * 1e6);
}

fn list(fs: &dyn FileSystem, dir: InodeNo, at_a_time: usize) -> u32 {
    let (mut cookie, mut all) = (0, 0);
    loop {
        let mut count = 0;
        fs.readdir(dir, cookie, &mut |entry| {
            if count == at_a_time {
                return false;
            }
            cookie = entry.next;
            count += 1;
            true
        })
        .unwrap();
        all += u32::try_from(count).unwrap();
        if count == 0 {
            return all;
        }
    }
}

fn measure(device: &Arc<MemDevice>, count: u32, dir_index: bool, file: Option<&str>) {
    println!("{count} names, {} an index:", if dir_index { "with" } else { "without" });
    let fs = mounted(device);
    let dir = fs.mkdir(&CALLER, fs.root(), b"d", 0o755).unwrap().attr.ino;
    timed("make", count, || {
        for no in 0..count {
            let ino = fs.mknod(&CALLER, dir, &name(no), 0o100_644, 0).unwrap().attr.ino;
            fs.forget(ino, 1);
        }
    });
    fs.forget(dir, 1);
    timed("unmount", count, || fs.unmount().unwrap());
    drop(fs);
    if let Some(file) = file {
        std::fs::write(file, device.image()).unwrap();
    }
    let fs = mounted(device);
    let dir = fs.lookup(fs.root(), b"d").unwrap().attr.ino;
    let order = shuffled(count);
    let look = |no: u32| {
        let ino = fs.lookup(dir, &name(no)).unwrap().attr.ino;
        fs.forget(ino, 1);
    };
    timed("first look, for a thousand", 1000, || order.iter().take(1000).for_each(|&no| look(no)));
    timed("look up", count, || order.iter().for_each(|&no| look(no)));
    timed("miss", count, || {
        for no in 0..count {
            assert!(fs.lookup(dir, &name(no + count)).is_err());
        }
    });
    timed("list, 1000 at a time", count, || assert_eq!(list(&fs, dir, 1000), count + 2));
    timed("list, 30 at a time", count, || assert_eq!(list(&fs, dir, 30), count + 2));
    timed("unlink", count, || order.iter().for_each(|&no| fs.unlink(&CALLER, dir, &name(no)).unwrap()));
    fs.forget(dir, 1);
    fs.unmount().unwrap();
}
