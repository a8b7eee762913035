//! What goes on while others wait: for room in the cache, or for the end of a check.
//!
//! What it prevents: a `stat` that takes as long as somebody else's writes.

use std::fs::{self, File};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use fstitch_core::{
    BlockDevice, BlockNo, BlockRead, BlockWrite, FileSystem, Geometry, MemDevice, Result, SystemClock,
    Timestamp,
};
use fstitch_fs::arrange::{Arrangement, open};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::mkfs::{MkfsOptions, mkfs};
use fstitch_fs::uhfs::{LowLevelFs, Uhfs};
use fstitch_fuse::Transport;

use crate::harness::{Mounted, mount_with};

/// A device of which reads or writes stand still on demand.
struct Stalling {
    medium: MemDevice,
    /// Whether reads and writes stand still.
    stalled: Mutex<(bool, bool)>,
    goes_on: Condvar,
    standing: AtomicU64,
}

impl Stalling {
    fn stall(&self, reads: bool, writes: bool) {
        *self.stalled.lock().unwrap() = (reads, writes);
        self.goes_on.notify_all();
    }

    fn pass(&self, stands: impl Fn(&(bool, bool)) -> bool) {
        let mut stalled = self.stalled.lock().unwrap();
        while stands(&stalled) {
            self.standing.fetch_add(1, Ordering::SeqCst);
            stalled = self.goes_on.wait(stalled).unwrap();
            self.standing.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl BlockDevice for Stalling {
    fn geometry(&self) -> Geometry {
        self.medium.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.pass(|stalled| stalled.0);
        self.medium.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        self.pass(|stalled| stalled.1);
        self.medium.write(writes)
    }

    fn flush(&self) -> Result<()> {
        self.medium.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.medium.discard(start, count)
    }
}

struct Rig {
    device: Arc<Stalling>,
    fs: Arc<Uhfs<Ext2>>,
    mounted: Mounted,
}

/// A volume of 64 MiB with a cache of 2, served by one worker.
fn rig() -> Option<Rig> {
    let medium = MemDevice::new(4096, 16_384);
    let made = MkfsOptions::new([7; 16], [9; 16], Timestamp::default());
    mkfs(&medium, &MkfsOptions { block_size: Some(4096), ..made }, &mut |_, _| ()).unwrap();
    let (stalled, goes_on) = (Mutex::new((false, false)), Condvar::new());
    let device = Arc::new(Stalling { medium, stalled, goes_on, standing: AtomicU64::new(0) });
    let mut arrangement = Arrangement::default();
    arrangement.cache.cache_size = 2 << 20;
    let (fs, _) = open::<Ext2>(Arc::clone(&device) as _, &arrangement, Arc::new(SystemClock::new())).unwrap();
    fs.format().cache().start_flusher().unwrap();
    let fs = Arc::new(fs);
    let mounted = mount_with(Arc::clone(&fs) as _, |options| {
        options.workers = 1;
        // A thread of a ring that waits has nobody to stand in for it.
        options.transport = Transport::Device;
    })?;
    Some(Rig { device, fs, mounted })
}

/// A name that nobody has asked for is looked for: not longer than a hanging test would take.
fn look(mounted: &Mounted, name: &str) {
    let (tell, hear) = channel();
    let path = mounted.path(name);
    std::thread::spawn(move || tell.send(fs::metadata(path).unwrap_err().kind()));
    let found = hear.recv_timeout(Duration::from_secs(20));
    assert_eq!(found, Ok(std::io::ErrorKind::NotFound), "a look waits for others");
}

fn until(happens: impl Fn() -> bool) {
    for _ in 0..2_000 {
        if happens() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it does not come to that");
}

/// Frees what stands still whatever happens, so that a failing test ends.
struct GoesOn<'a>(&'a Stalling);

impl Drop for GoesOn<'_> {
    fn drop(&mut self) {
        self.0.stall(false, false);
    }
}

#[test]
fn others_look_while_writers_wait_for_room() {
    let Some(Rig { device, fs, mounted }) = rig() else { return };
    std::thread::scope(|scope| {
        let goes_on = GoesOn(&device);
        // To make a file would hold up looks into its directory in the kernel already.
        let make = |no| File::create(mounted.path(&format!("large {no}"))).unwrap();
        let files: Vec<File> = (0..3).map(make).collect();
        look(&mounted, "before");
        device.stall(false, true);
        for mut file in files {
            scope.spawn(move || (0..16).for_each(|_| file.write_all(&vec![7; 1 << 20]).unwrap()));
        }
        until(|| fs.format().cache().stats().waits >= 2);
        for no in 0..20 {
            look(&mounted, &format!("absent {no}"));
        }
        drop(goes_on);
    });
    for no in 0..3 {
        assert_eq!(fs::metadata(mounted.path(&format!("large {no}"))).unwrap().len(), 16 << 20);
    }
    // Who stood in is needed no more.
    for no in 0..100 {
        look(&mounted, &format!("afterwards {no}"));
    }
}

#[test]
fn others_look_while_changes_wait_for_a_check() {
    let Some(Rig { device, fs, mounted }) = rig() else { return };
    std::thread::scope(|scope| {
        let goes_on = GoesOn(&device);
        let make = |no| File::create(mounted.path(&format!("small {no}"))).unwrap();
        let files: Vec<File> = (0..3).map(make).collect();
        look(&mounted, "before");
        device.stall(true, false);
        let check = scope.spawn(|| fs.check().unwrap());
        until(|| device.standing.load(Ordering::SeqCst) > 0);
        let write = |mut file: File| scope.spawn(move || file.write_all(b"x").unwrap());
        let writers: Vec<_> = files.into_iter().map(write).collect();
        // They are on their way, or wait already.
        std::thread::sleep(Duration::from_millis(200));
        for no in 0..20 {
            look(&mounted, &format!("absent {no}"));
        }
        assert!(writers.iter().all(|writer| !writer.is_finished()), "changes wait for the check");
        drop(goes_on);
        assert!(check.join().unwrap().is_clean());
    });
}
