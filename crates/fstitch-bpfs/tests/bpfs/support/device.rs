//! Volumes on devices, and BPFS on one as a system of the crash laboratory.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "tests fail where they cannot go on, and each uses a part of this"
)]

use std::sync::Arc;

use fstitch_bpfs::{Bpfs, Durability, MkfsOptions, Optimizations, Options, identify_on, mkfs_on, recover_on};
use fstitch_core::{BlockDevice, CheckReport, FileSystem, MemDevice, Result};
use fstitch_crashlab::medium::{Base, Image};
use fstitch_crashlab::{Mounted, Promise, STALE, Step, System};

use crate::support::{clock, mkfs_options, options};

/// Makes a volume on a device, with a log of so many blocks.
pub fn make(device: &Arc<dyn BlockDevice>, log: u64) {
    let made: MkfsOptions = mkfs_options();
    mkfs_on(Arc::clone(device), &made, Some(log)).unwrap();
}

/// How a volume on a device is mounted: with as little of it in memory as there can be, so that contents leave it all the time.
pub fn on_device(durability: Durability) -> Options {
    Options { durability, cache_size: 0, ..options(Optimizations::ALL) }
}

/// A new volume in memory, as a device.
pub fn device(bytes: u64, log: u64) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(512, bytes / 512));
    make(&(Arc::<MemDevice>::clone(&device) as Arc<dyn BlockDevice>), log);
    device
}

pub fn open(device: &Arc<MemDevice>, options: Options) -> Bpfs {
    Bpfs::open_on(Arc::<MemDevice>::clone(device), options, clock()).unwrap()
}

/// BPFS on a device of so many KiB with blocks of so many bytes, for the laboratory.
#[derive(Clone, Copy)]
pub struct OnDevice {
    pub unit: u32,
    pub kib: usize,
    pub log: u64,
    pub durability: Durability,
}

impl Default for OnDevice {
    fn default() -> Self {
        // A small log, so that everything that happens to one happens often.
        Self { unit: 1024, kib: 8 << 10, log: 16, durability: Durability::Power }
    }
}

struct Running(Bpfs);

impl Mounted for Running {
    fn fs(&self) -> &dyn FileSystem {
        &self.0
    }

    /// The log is written in its order: whether now is all there is to choose.
    fn write_out(&self, choose: &mut dyn FnMut(Step) -> bool) -> Result<usize> {
        let before = self.0.log_counts().unwrap();
        if choose(Step::Close(0)) {
            self.0.sync()?;
        }
        let after = self.0.log_counts().unwrap();
        Ok(usize::try_from(after.flushes - before.flushes).unwrap())
    }
}

impl OnDevice {
    fn attach(&self, device: Arc<dyn BlockDevice>, read_only: bool) -> Result<Bpfs> {
        Bpfs::open_on(device, Options { read_only, ..on_device(self.durability) }, clock())
    }
}

impl System for OnDevice {
    fn name(&self) -> String {
        format!("bpfs-b{}-k{}-l{}-{:?}", self.unit, self.kib, self.log, self.durability)
    }

    fn format(&self) -> Result<Arc<Base>> {
        let image = Arc::new(Image::new(Base::new(self.unit, vec![STALE; self.kib << 10])));
        make(&(Arc::<Image>::clone(&image) as Arc<dyn BlockDevice>), self.log);
        Ok(Base::new(self.unit, image.bytes()))
    }

    fn promise(&self) -> Promise {
        Promise::Exact
    }

    fn mount(&self, device: Arc<dyn BlockDevice>) -> Result<Box<dyn Mounted>> {
        Ok(Box::new(Running(self.attach(device, false)?)))
    }

    fn open(&self, device: Arc<dyn BlockDevice>) -> Result<Box<dyn Mounted>> {
        Ok(Box::new(Running(self.attach(device, true)?)))
    }

    fn check(&self, device: &Arc<dyn BlockDevice>) -> Result<CheckReport> {
        self.attach(Arc::clone(device), true)?.check()
    }

    fn recover(&self, device: Arc<dyn BlockDevice>) -> Result<()> {
        let (_, found) = identify_on(Arc::clone(&device))?;
        if found.was_open || found.groups > 0 {
            recover_on(device)?;
        }
        Ok(())
    }

    /// There is nothing to repair.
    fn repair(&self, device: &Arc<dyn BlockDevice>) -> Result<CheckReport> {
        self.check(device)
    }
}
