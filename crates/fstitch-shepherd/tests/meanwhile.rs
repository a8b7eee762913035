//! What is asked of the shepherd while a write is on its way to the disk; and how many flushes writes cost.
//!
//! What it prevents: a spare that is called a copy, or read as one, before it has been written; a flush for each run of a stream, or for
//! each batch with a new copy.
#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

use std::sync::{Arc, Mutex, OnceLock, Weak};

use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Geometry, MemDevice, Result, StatsDevice,
};
use fstitch_crashlab::{Defect, Fault, FaultDevice, FaultPlan, Times};
use fstitch_shepherd::{Options, Shepherd};

const BLOCK: usize = 512;
const VOLUME: u64 = 9000;
const AREA: std::ops::Range<u64> = 5000..9000;
const KIND: BlockKind = BlockKind::Data;
const COPIES: &str = "[all]\nread = [\"mirror\"]\nwrite = [\"mirror far\"]";
const SUMS: &str = "[all]\nread = [\"verify\"]\nwrite = [\"verify\"]";
const HOME: BlockNo = BlockNo(77);

fn area() -> Vec<BlockNo> {
    AREA.map(BlockNo).collect()
}

fn opened(disk: Arc<dyn BlockDevice>, policy: &str) -> Shepherd {
    Shepherd::format(Arc::clone(&disk), &area(), [5; 16], policy, &[], &[], &mut |_, _| {}).unwrap();
    Shepherd::open(disk, &area(), Options::default()).unwrap().0
}

fn write(device: &dyn BlockDevice, block: BlockNo) -> Result<()> {
    device.write(&[BlockWrite { block, kind: KIND, data: &[7; BLOCK] }])
}

fn read(device: &dyn BlockDevice, block: BlockNo) -> Result<Vec<u8>> {
    let mut data = vec![0; BLOCK];
    device.read(&mut [BlockRead { block, kind: KIND, data: &mut data }])?;
    Ok(data)
}

fn without_home() -> FaultPlan {
    let blocks = Some(HOME.get()..HOME.get() + 1);
    FaultPlan::one(Fault { blocks, times: Times::Sticky, ..Fault::new(Defect::Error) })
}

/// A disk on which somebody else uses the volume whenever the home is about to be written.
struct Meanwhile {
    disk: FaultDevice<MemDevice>,
    shepherd: OnceLock<Weak<Shepherd>>,
    /// What a cut then would leave.
    left: Mutex<Option<Vec<u8>>>,
}

impl BlockDevice for Meanwhile {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.disk.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        if let (true, Some(shepherd)) = (writes.iter().any(|write| write.block == HOME), self.shepherd.get())
        {
            let shepherd = shepherd.upgrade().unwrap();
            shepherd.flush().unwrap();
            *self.left.lock().unwrap() = Some(self.disk.device().image());
            self.disk.set_plan(without_home());
            read(&*shepherd, HOME).expect_err("nothing has a copy yet");
            self.disk.set_plan(FaultPlan::default());
        }
        self.disk.write(writes)
    }

    fn flush(&self) -> Result<()> {
        self.disk.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.disk.discard(start, count)
    }
}

#[test]
fn a_spare_is_no_copy_before_it_is_written() {
    let disk = Arc::new(Meanwhile {
        disk: FaultDevice::new(MemDevice::new(512, VOLUME), FaultPlan::default()),
        shepherd: OnceLock::new(),
        left: Mutex::default(),
    });
    let shepherd = Arc::new(opened(Arc::clone(&disk) as Arc<dyn BlockDevice>, COPIES));
    disk.shepherd.set(Arc::downgrade(&shepherd)).unwrap();
    write(&*shepherd, HOME).unwrap();
    let left = disk.left.lock().unwrap().take().unwrap();
    let cut = FaultDevice::new(MemDevice::from_image(512, left), without_home());
    let (after, _) = Shepherd::open(Arc::new(cut), &area(), Options::default()).unwrap();
    read(&after, HOME).expect_err("the spare held something else");
    // From the flush behind the write on it is one.
    shepherd.flush().unwrap();
    let cut = FaultDevice::new(MemDevice::from_image(512, disk.disk.device().image()), without_home());
    let (after, _) = Shepherd::open(Arc::new(cut), &area(), Options::default()).unwrap();
    assert_eq!(read(&after, HOME).unwrap(), [7; BLOCK]);
}

/// Flushes that writing some blocks costs, each by itself.
fn flushes(policy: &str, blocks: impl Iterator<Item = u64>) -> u64 {
    let disk = Arc::new(StatsDevice::new(MemDevice::new(512, VOLUME)));
    let shepherd = opened(Arc::clone(&disk) as Arc<dyn BlockDevice>, policy);
    let before = disk.stats().flushes.get();
    blocks.for_each(|block| write(&shepherd, BlockNo(block)).unwrap());
    disk.stats().flushes.get() - before
}

#[test]
fn a_stream_pays_for_few_flushes() {
    let runs = 64;
    let stream = flushes(SUMS, 0..64 * runs);
    assert!(stream <= 8, "{stream} flushes for {runs} runs in a row");
    // Here and there nothing else is in doubt.
    assert_eq!(flushes(SUMS, (0..64 * runs).step_by(128)), runs / 2);
    // Copies that nobody was promised yet cost none.
    assert_eq!(flushes(COPIES, (0..32).rev()), 1);
}
