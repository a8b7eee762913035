//! The checker says of every block of a directory that it will read it, before it does.
//!
//! What it prevents: a check of a volume that nobody has read lately that waits for small reads all over it, one after the other.

use std::collections::BTreeSet;
use std::sync::Mutex;

use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, FindingClass, Geometry, MemDevice, Result,
};
use fstitch_fs::ext2::check::check_ext2;

use crate::corpus::{self, SHAPES};
use crate::support::{Scratch, have};

/// A device that notes what it is told of, and which blocks of directories are read without that.
struct Told {
    below: MemDevice,
    told: Mutex<BTreeSet<u64>>,
    /// Reads of directories' blocks: all, and those that came as a surprise.
    reads: Mutex<(u64, BTreeSet<u64>)>,
}

impl BlockDevice for Told {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        let told = self.told.lock().expect("nobody panicked");
        let mut seen = self.reads.lock().expect("nobody panicked");
        for read in reads.iter().filter(|read| read.kind == BlockKind::Directory) {
            seen.0 += 1;
            if !told.contains(&read.block.get()) {
                seen.1.insert(read.block.get());
            }
        }
        drop((told, seen));
        self.below.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        self.below.write(writes)
    }

    fn flush(&self) -> Result<()> {
        self.below.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.below.discard(start, count)
    }

    fn prefetch(&self, start: BlockNo, count: u64) {
        let end = start.get() + count;
        assert!(count > 0 && end <= self.geometry().block_count, "{start:?}, {count} blocks");
        self.told.lock().expect("nobody panicked").extend(start.get()..end);
    }
}

/// The numbers of the corpus's devices, 1:3 and 8:1.
const DEVICES: [u64; 2] = [0x103, 0x801];

#[test]
fn blocks_of_directories_are_told_of_before_they_are_read() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("check-ahead");
    for shape in SHAPES {
        let image = corpus::image(&scratch, shape);
        // The device has other blocks than the volume.
        let below = MemDevice::from_image(512, image);
        let device = Told { below, told: Mutex::default(), reads: Mutex::default() };
        let report = check_ext2(&device).expect("it can be read");
        assert!(report.findings.iter().all(|found| found.class != FindingClass::Corrupt), "{report:?}");
        let (all, mut surprises) = device.reads.into_inner().expect("nobody panicked");
        // Two devices: what their numbers would point at if they were directories is looked at as well.
        let unit = shape.block_size() / 512;
        surprises.retain(|block| !DEVICES.contains(&(block / unit)));
        assert!(all > 40, "{}: {all} reads", shape.name);
        assert!(surprises.is_empty(), "{}: {surprises:?}", shape.name);
    }
}
