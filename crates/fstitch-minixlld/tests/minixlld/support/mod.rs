//! Volumes for tests, and MinixLLD as a system of the crash laboratory.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "tests fail where they cannot go on, and each uses a part of this"
)]

use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{
    BlockDevice, Caller, CheckReport, FileSystem, InodeNo, ManualClock, MemDevice, Overlay, Result, Timestamp,
};
use fstitch_crashlab::medium::{Base, Image};
use fstitch_crashlab::{Mounted, Promise, STALE, Step, System};
use fstitch_lld::{Disk, FormatOptions, Options as DiskOptions, Recovered};
use fstitch_minixlld::{MinixLld, MkfsOptions, Options, mkfs};
use fstitch_posix::time::AtimePolicy;

pub const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 1, umask: 0o022 };
const NOW: Timestamp = Timestamp { secs: 1_700_000_000, nanos: 0 };

/// The list of kept inodes, in which a failure may leave something to do.
const KEPT: u64 = 3;

pub fn clock() -> Arc<ManualClock> {
    let clock = ManualClock::new();
    clock.advance(Duration::from_secs(NOW.secs.unsigned_abs()));
    Arc::new(clock)
}

/// Few inodes and blocks are remembered, so that they come from the disk all the time.
pub fn options() -> Options {
    Options { atime: AtimePolicy::NoAtime, idle_nodes: 2, blocks: 8, ..Options::default() }
}

fn disk_options() -> DiskOptions {
    DiskOptions {
        cache_size: 1 << 20,
        checkpoint_interval: 1 << 20,
        background: false,
        ..DiskOptions::default()
    }
}

/// Makes a volume on a device.
pub fn make(device: &Arc<dyn BlockDevice>, block_size: u32, segment_size: u32) {
    let format = FormatOptions { block_size, segment_size, uuid: [9; 16], ..FormatOptions::default() };
    Disk::format(Arc::clone(device), &format).unwrap();
    let (disk, _) = Disk::open(Arc::clone(device), &disk_options()).unwrap();
    let owner = Caller::default();
    mkfs(&disk, &MkfsOptions { uuid: [7; 16], label: b"test".to_vec(), now: NOW, owner }).unwrap();
    disk.close().unwrap();
}

/// A volume in memory.
pub struct Medium {
    pub device: Arc<MemDevice>,
    pub clock: Arc<ManualClock>,
}

impl Medium {
    pub fn new(block_size: u32, bytes: u64) -> Self {
        Self::with_segments(block_size, (16 * block_size).max(64 << 10), bytes)
    }

    pub fn with_segments(block_size: u32, segment_size: u32, bytes: u64) -> Self {
        let device = Arc::new(MemDevice::new(512, bytes / 512));
        let shared: Arc<dyn BlockDevice> = Arc::<MemDevice>::clone(&device);
        make(&shared, block_size, segment_size);
        Self { device, clock: clock() }
    }

    pub fn mount_with(&self, options: Options) -> Result<MinixLld> {
        let device: Arc<dyn BlockDevice> = Arc::<MemDevice>::clone(&self.device);
        let (disk, _) = Disk::open(device, &disk_options())?;
        MinixLld::open(disk, options, Arc::<ManualClock>::clone(&self.clock) as _)
    }

    pub fn mount(&self) -> MinixLld {
        self.mount_with(options()).unwrap()
    }

    /// What a power cut now would leave, if everything had arrived that was written.
    pub fn cut(&self) -> Self {
        let device = Arc::new(MemDevice::from_image(512, self.device.image()));
        Self { device, clock: Arc::clone(&self.clock) }
    }
}

/// The volume is in order.
pub fn check(fs: &MinixLld) {
    let report = fs.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

pub fn create(fs: &dyn FileSystem, dir: InodeNo, name: &[u8]) -> InodeNo {
    let ino = fs.mknod(&CALLER, dir, name, 0o100_644, 0).unwrap().attr.ino;
    fs.forget(ino, 1);
    ino
}

pub fn mkdir(fs: &dyn FileSystem, dir: InodeNo, name: &[u8]) -> InodeNo {
    let ino = fs.mkdir(&CALLER, dir, name, 0o755).unwrap().attr.ino;
    fs.forget(ino, 1);
    ino
}

/// All names of a directory but `.` and `..`, sorted.
pub fn names(fs: &dyn FileSystem, dir: InodeNo) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    })
    .unwrap();
    names.retain(|name| name != b"." && name != b"..");
    names.sort();
    names
}

/// MinixLLD on a disk of so many KiB, for the laboratory.
pub struct Minix {
    pub block_size: u32,
    pub kib: usize,
}

impl Default for Minix {
    fn default() -> Self {
        Self { block_size: 1024, kib: 8 << 10 }
    }
}

struct Running(MinixLld);

impl Mounted for Running {
    fn fs(&self) -> &dyn FileSystem {
        &self.0
    }

    /// The log is written in its order: whether now is all there is to choose.
    fn write_out(&self, choose: &mut dyn FnMut(Step) -> bool) -> Result<usize> {
        let before = self.0.disk().counters().chunks;
        if choose(Step::Close(0)) {
            self.0.disk().flush()?;
        }
        Ok(usize::try_from(self.0.disk().counters().chunks - before).unwrap())
    }
}

impl Minix {
    fn attach(device: Arc<dyn BlockDevice>, read_only: bool) -> Result<(MinixLld, Recovered)> {
        Self::attach_with(device, Options { read_only, ..options() })
    }

    /// Mounts one whose operations are no units.
    pub fn mount_apart(device: Arc<dyn BlockDevice>) -> Result<Box<dyn Mounted>> {
        Ok(Box::new(Running(Self::attach_with(device, Options { units: false, ..options() })?.0)))
    }

    fn attach_with(device: Arc<dyn BlockDevice>, options: Options) -> Result<(MinixLld, Recovered)> {
        let (disk, recovered) = Disk::open(device, &disk_options())?;
        Ok((MinixLld::open(disk, options, clock())?, recovered))
    }
}

impl System for Minix {
    fn name(&self) -> String {
        format!("minixlld-b{}-k{}", self.block_size, self.kib)
    }

    fn format(&self) -> Result<Arc<Base>> {
        let image = Arc::new(Image::new(Base::new(self.block_size, vec![STALE; self.kib << 10])));
        let device: Arc<dyn BlockDevice> = Arc::<Image>::clone(&image);
        make(&device, self.block_size, 64 << 10);
        Ok(Base::new(self.block_size, image.bytes()))
    }

    fn promise(&self) -> Promise {
        Promise::Exact
    }

    fn mount(&self, device: Arc<dyn BlockDevice>) -> Result<Box<dyn Mounted>> {
        Ok(Box::new(Running(Self::attach(device, false)?.0)))
    }

    fn open(&self, device: Arc<dyn BlockDevice>) -> Result<Box<dyn Mounted>> {
        Ok(Box::new(Running(Self::attach(device, true)?.0)))
    }

    fn check(&self, device: &Arc<dyn BlockDevice>) -> Result<CheckReport> {
        Self::attach(Arc::clone(device), true)?.0.check()
    }

    /// There is nothing to recover but the disk, and inodes that were in use without a name.
    fn recover(&self, device: Arc<dyn BlockDevice>) -> Result<()> {
        // The disk begins with a checkpoint whenever it is opened: whoever only looks does that elsewhere.
        let elsewhere: Arc<dyn BlockDevice> = Arc::new(Overlay::new(Arc::clone(&device)));
        let (fs, recovered) = Self::attach(elsewhere, true)?;
        if recovered == Recovered::default() && fs.disk().list_len(KEPT)? == 0 {
            return Ok(());
        }
        Self::attach(device, false)?.0.unmount()
    }

    /// There is nothing to repair.
    fn repair(&self, device: &Arc<dyn BlockDevice>) -> Result<CheckReport> {
        self.check(device)
    }
}
