//! Devices that cannot read a block, or take their time: the rest of the volume is used all the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use fstitch_core::{
    BlockDevice, BlockNo, BlockRead, BlockWrite, Errno, FallocateMode, FileSystem, Geometry, InodeFlags,
    MemDevice, Result, SetAttr, SystemClock, XattrSetMode,
};
use fstitch_fs::uhfs::AtimePolicy;
use fstitch_fs::waffle::{Options, Waffle};
use fstitch_patch::CacheOptions;

use super::rig::{CALLER, contents, file, is_clean, made, mount, noise};

const NONE: u64 = u64::MAX;

/// A device of which one block cannot be read, whose flushes tell somebody and wait for a moment, and from which the thread of commits reads
/// when it is told to alone.
struct Faulty {
    below: Arc<MemDevice>,
    bad: AtomicU64,
    flushes: Option<SyncSender<()>>,
    asks: Option<SyncSender<Sender<()>>>,
}

impl Faulty {
    fn new(below: &Arc<MemDevice>, bad: u64) -> Arc<Self> {
        Arc::new(Self { below: Arc::clone(below), bad: AtomicU64::new(bad), flushes: None, asks: None })
    }

    /// A device, and who is told of its flushes.
    fn slow(below: &Arc<MemDevice>) -> (Arc<Self>, Receiver<()>) {
        let (told, tells) = sync_channel(0);
        let bad = AtomicU64::new(NONE);
        (Arc::new(Self { below: Arc::clone(below), bad, flushes: Some(told), asks: None }), tells)
    }

    /// A device, and who is asked before the thread of commits reads.
    fn gated(below: &Arc<MemDevice>) -> (Arc<Self>, Receiver<Sender<()>>) {
        let (asks, asked) = sync_channel(0);
        let bad = AtomicU64::new(NONE);
        (Arc::new(Self { below: Arc::clone(below), bad, flushes: None, asks: Some(asks) }), asked)
    }
}

impl BlockDevice for Faulty {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        if let Some(asks) =
            self.asks.as_ref().filter(|_| std::thread::current().name() == Some("fstitch-commit"))
        {
            let (goes, told) = channel();
            if asks.send(goes).is_ok() {
                told.recv().unwrap();
            }
        }
        let bad = self.bad.load(Ordering::SeqCst);
        let at = self.below.geometry().block_size as usize;
        let hits = |read: &BlockRead<'_>| {
            let blocks = u64::try_from(read.data.len() / at).unwrap();
            (read.block.get()..read.block.get() + blocks).contains(&bad)
        };
        if reads.iter().any(hits) {
            return Err(fstitch_core::Error::io(
                fstitch_core::IoOp::Read,
                BlockNo(bad),
                std::io::Error::from_raw_os_error(5),
            ));
        }
        self.below.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let bad = self.bad.load(Ordering::SeqCst);
        if writes.iter().any(|write| write.block.get() == bad) {
            // What is written anew can be read again.
            self.bad.store(NONE, Ordering::SeqCst);
        }
        self.below.write(writes)
    }

    fn flush(&self) -> Result<()> {
        if let Some(told) = &self.flushes {
            // Somebody changes something meanwhile, unless nobody may.
            for _ in 0..20 {
                if told.try_send(()).is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.below.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.below.discard(start, count)
    }
}

fn mount_on(device: &Arc<Faulty>, age: Duration) -> Result<Arc<Waffle>> {
    let cache = CacheOptions { cache_size: 4 << 20, ..CacheOptions::default() };
    let options = Options { atime: AtimePolicy::NoAtime, commit_age: age, ..Options::default() };
    Waffle::mount(Arc::<Faulty>::clone(device) as _, cache, Arc::new(SystemClock::new()), options)
}

fn free(device: &Arc<MemDevice>) -> u64 {
    let fs = mount(device);
    let free = fs.statfs().unwrap().blocks_free;
    fs.unmount().unwrap();
    free
}

/// A volume with files in a snapshot alone, and one of everybody's.
fn with_snapshot() -> Arc<MemDevice> {
    let device = made(400);
    let fs = mount(&device);
    let old = fs.mkdir(&CALLER, fs.root(), b"old", 0o755).unwrap().attr.ino;
    for no in 0..40_u64 {
        file(&fs, old, &format!("old-{no}"), &noise(5000, no)).unwrap();
    }
    fs.make_snapshot(b"one").unwrap();
    for no in 0..40 {
        fs.unlink(&CALLER, old, format!("old-{no}").as_bytes()).unwrap();
    }
    fs.rmdir(&CALLER, fs.root(), b"old").unwrap();
    file(&fs, fs.root(), "kept", b"kept").unwrap();
    fs.unmount().unwrap();
    device
}

#[test]
fn a_block_of_a_removed_snapshot_that_cannot_be_read_keeps_nothing_else() {
    let whole = with_snapshot();
    let all = {
        let device = Arc::new(MemDevice::from_image(4096, whole.image()));
        let fs = mount(&device);
        fs.remove_snapshot(b"one").unwrap();
        fs.unmount().unwrap();
        free(&device)
    };
    let mut stuck = 0;
    for bad in 2..400 {
        let device = Arc::new(MemDevice::from_image(4096, whole.image()));
        let faulty = Faulty::new(&device, bad);
        let Ok(fs) = mount_on(&faulty, Duration::from_secs(5)) else { continue };
        // Only what the tree itself does not need.
        let Ok(kept) = fs.lookup(fs.root(), b"kept") else { continue };
        if fs.write(&CALLER, kept.attr.ino, 0, b"first").is_err() {
            continue;
        }
        // Who asks for it without a mount is told that it is not done yet.
        let removed = fs.remove_snapshot(b"one");
        fs.unmount().unwrap();
        let fs = mount_on(&faulty, Duration::from_secs(5)).unwrap_or_else(|error| panic!("{bad}: {error}"));
        assert!(fs.snapshots().is_empty(), "{bad}");
        fs.write(&CALLER, kept.attr.ino, 0, b"other").unwrap();
        fs.unmount().unwrap();
        if removed.is_err() {
            faulty.bad.store(NONE, Ordering::SeqCst);
            drop(mount_on(&faulty, Duration::from_secs(5)).unwrap());
            stuck += 1;
        }
        is_clean(&device);
        // It goes with the first mount that can read it: all but what the file has gained.
        assert!(free(&device) + 8 > all, "{bad}");
    }
    assert!(stuck >= 3, "{stuck} blocks of it must be read");
}

#[test]
fn commits_by_age_go_on_beside_a_snapshot_that_cannot_be_read() {
    let whole = with_snapshot();
    let mut stuck = 0;
    for bad in 2..400 {
        let device = Arc::new(MemDevice::from_image(4096, whole.image()));
        let faulty = Faulty::new(&device, bad);
        let Ok(fs) = mount_on(&faulty, Duration::from_millis(20)) else { continue };
        let before = fs.statfs().unwrap().blocks_free;
        fs.start().unwrap();
        if fs.remove_snapshot(b"one").is_err() {
            continue;
        }
        // The thread removes it, or cannot.
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(1));
            if fs.statfs().unwrap().blocks_free > before + 20 {
                break;
            }
        }
        if fs.statfs().unwrap().blocks_free > before + 20 {
            continue;
        }
        stuck += 1;
        let generation = fs.root_made().generation;
        file(&fs, fs.root(), "new", b"new").unwrap();
        while fs.root_made().generation == generation {
            std::thread::sleep(Duration::from_millis(5));
        }
        if stuck == 3 {
            return;
        }
    }
    panic!("{stuck} blocks of it must be read");
}

#[test]
fn who_writes_without_pause_does_not_keep_a_snapshot_from_being_made() {
    let device = made(2000);
    let (slow, flushes) = Faulty::slow(&device);
    let fs = mount_on(&slow, Duration::from_secs(60)).unwrap();
    let ino = file(&fs, fs.root(), "file", b"first").unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (fs, is_over) = (&fs, &is_over);
        scope.spawn(move || {
            let mut turn = 0_u64;
            while !is_over.load(Ordering::SeqCst) {
                if flushes.recv_timeout(Duration::from_millis(20)).is_ok() {
                    turn += 1;
                    fs.write(&CALLER, ino, 0, &turn.to_le_bytes()).unwrap();
                }
            }
        });
        for no in 0..5 {
            fs.make_snapshot(format!("{no}").as_bytes()).unwrap();
            fs.fsync(ino, false).unwrap();
        }
        is_over.store(true, Ordering::SeqCst);
    });
    assert_eq!(fs.snapshots().len(), 5);
    fs.unmount().unwrap();
    is_clean(&device);
}

#[test]
fn zeroing_far_behind_the_end_is_done_at_once() {
    let device = made(400);
    let fs = mount(&device);
    let ino = file(&fs, fs.root(), "file", &noise(5000, 1)).unwrap();
    fs.fallocate(&CALLER, ino, 4096, 1 << 50, FallocateMode::ZeroRangeKeepSize).unwrap();
    let mut expected = noise(5000, 1);
    expected[4096..].fill(0);
    assert_eq!(contents(&fs, ino).unwrap(), expected);
    fs.fallocate(&CALLER, ino, 1 << 40, 1 << 50, FallocateMode::ZeroRangeKeepSize).unwrap();
    assert_eq!(fs.getattr(ino).unwrap().size, 5000);
    fs.unmount().unwrap();
    is_clean(&device);
}

#[test]
fn what_a_removed_snapshot_had_is_there_for_the_next_change() {
    let device = made(400);
    let fs = mount_on(&Faulty::new(&device, NONE), Duration::from_secs(60)).unwrap();
    let mut names = Vec::new();
    for no in 0..1000 {
        let name = format!("file-{no}");
        if file(&fs, fs.root(), &name, &noise(12_000, no)).is_err() {
            break;
        }
        names.push(name);
        if no % 4 == 3 && fs.make_snapshot(format!("{no}").as_bytes()).is_err() {
            break;
        }
    }
    // All is full of what snapshots keep.
    for name in &names {
        if fs.unlink(&CALLER, fs.root(), name.as_bytes()).is_err() {
            break;
        }
    }
    for no in 0..20 {
        let _ = file(&fs, fs.root(), &format!("more-{no}"), &noise(8000, no));
    }
    fs.sync().unwrap();
    let refused = file(&fs, fs.root(), "large", &noise(400_000, 7));
    assert_eq!(refused.unwrap_err().errno(), Errno::NOSPC);
    let _ = fs.unlink(&CALLER, fs.root(), b"large");
    fs.start().unwrap();
    for snapshot in fs.snapshots() {
        fs.remove_snapshot(&snapshot.name).unwrap();
    }
    file(&fs, fs.root(), "larger", &noise(400_000, 8)).unwrap();
    fs.unmount().unwrap();
    is_clean(&device);
}

#[test]
fn changes_of_what_is_marked_are_stable_at_once() {
    let device = made(400);
    let fs = mount(&device);
    let after_cut = || mount(&Arc::new(MemDevice::from_image(4096, device.image())));
    let ino = file(&fs, fs.root(), "file", b"first").unwrap();
    let dir = fs.mkdir(&CALLER, fs.root(), b"dir", 0o755).unwrap().attr.ino;
    fs.set_flags(&CALLER, ino, InodeFlags(InodeFlags::SYNC)).unwrap();
    fs.set_flags(&CALLER, dir, InodeFlags(InodeFlags::DIRSYNC)).unwrap();
    fs.sync().unwrap();
    fs.write(&CALLER, ino, 0, b"other contents").unwrap();
    assert_eq!(contents(&after_cut(), ino).unwrap(), b"other contents");
    fs.setattr(&CALLER, ino, &SetAttr { size: Some(5), ..SetAttr::default() }).unwrap();
    assert_eq!(after_cut().getattr(ino).unwrap().size, 5);
    fs.setxattr(&CALLER, ino, b"user.a", b"b", XattrSetMode::Set).unwrap();
    assert_eq!(after_cut().getxattr(ino, b"user.a").unwrap(), b"b");
    fs.fallocate(&CALLER, ino, 0, 9000, FallocateMode::Allocate).unwrap();
    assert_eq!(after_cut().getattr(ino).unwrap().size, 9000);
    fs.mknod(&CALLER, dir, b"a", 0o100_644, 0).unwrap();
    assert!(after_cut().lookup(dir, b"a").is_ok());
    fs.rename(&CALLER, (dir, b"a"), (fs.root(), b"b"), fstitch_core::RenameMode::Replace).unwrap();
    assert!(after_cut().lookup(fs.root(), b"b").is_ok());
    fs.symlink(&CALLER, dir, b"link", b"to").unwrap();
    fs.unlink(&CALLER, dir, b"link").unwrap();
    assert!(after_cut().lookup(dir, b"link").is_err());
    // What is marked in no way waits for a commit.
    fs.mkdir(&CALLER, fs.root(), b"later", 0o755).unwrap();
    assert!(after_cut().lookup(fs.root(), b"later").is_err());
}

#[test]
fn nobody_waits_for_what_a_removal_reads() {
    let below = with_snapshot();
    let (device, asked) = Faulty::gated(&below);
    let fs = mount_on(&device, Duration::from_millis(20)).unwrap();
    let before = fs.statfs().unwrap().blocks_free;
    let kept = fs.lookup(fs.root(), b"kept").unwrap().attr.ino;
    fs.start().unwrap();
    fs.remove_snapshot(b"one").unwrap();
    let mut reads = 0;
    for _ in 0..2000 {
        let Ok(goes) = asked.recv_timeout(Duration::from_millis(5)) else {
            if fs.statfs().unwrap().blocks_free > before + 20 {
                break;
            }
            continue;
        };
        // It reads now, and waits.
        let (looks, looked) = channel();
        let reader = Arc::clone(&fs);
        let thread = std::thread::spawn(move || looks.send(reader.getattr(kept).map(|attr| attr.size)));
        let seen = looked.recv_timeout(Duration::from_secs(10));
        goes.send(()).unwrap();
        assert_eq!(seen.expect("a look at another file waits for it").unwrap(), 4);
        thread.join().unwrap().unwrap();
        reads += 1;
    }
    assert!(reads >= 3, "{reads} blocks of it must be read");
    assert!(fs.statfs().unwrap().blocks_free > before + 20, "it has gone");
    drop(asked);
    fs.unmount().unwrap();
    is_clean(&below);
}
