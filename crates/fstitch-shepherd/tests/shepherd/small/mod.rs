//! A small volume on a disk that fails as it is told.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "tests fail where they cannot go on, and each uses a part of this"
)]

use std::sync::Arc;

use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Error, IoOp, MemDevice};
use fstitch_crashlab::{Defect, Fault, FaultDevice, FaultPlan, Times};
use fstitch_shepherd::engine::Opened;
use fstitch_shepherd::{Options, Shepherd, Stretch};

pub const BLOCK: usize = 1024;
pub const VOLUME: u64 = 400;
pub const KIND: BlockKind = BlockKind::Data;
pub const PARITY: &str = "[all]\nread = [\"verify\", \"parity\"]\nwrite = [\"verify\", \"parity 8\"]";
pub const BARE: &str = "[all]\nread = [\"parity\"]\nwrite = [\"parity 8\"]";
pub const MOVES: &str = "[all]\nread = [\"verify\"]\nwrite = [\"verify\", \"remap\"]";

pub type Disk = Arc<FaultDevice<MemDevice>>;

pub fn area() -> Vec<BlockNo> {
    (250..390).map(BlockNo).collect()
}

/// Blocks of each of the two lists of the area, before the spares and behind them.
pub const LIST: u64 = 1;

pub fn first_spare(shepherd: &Shepherd) -> u64 {
    area()[0].get() + area().len() as u64 - LIST - shepherd.holdings().spares
}

pub fn homes() -> std::ops::Range<u64> {
    32..96
}

pub fn made(policy: &str) -> Disk {
    let disk = Arc::new(FaultDevice::new(MemDevice::new(1024, VOLUME), FaultPlan::default()));
    let blocks = [Stretch { start: BlockNo(homes().start), count: 64, kind: KIND }];
    let device = Arc::clone(&disk) as Arc<dyn BlockDevice>;
    Shepherd::format(device, &area(), [9; 16], policy, &[2], &blocks, &mut |_, _| {}).unwrap();
    disk
}

pub fn open(disk: &Disk) -> (Shepherd, Opened) {
    Shepherd::open(Arc::clone(disk) as Arc<dyn BlockDevice>, &area(), Options::default()).unwrap()
}

pub fn write(device: &dyn BlockDevice, block: u64, fill: u8) -> Result<(), Error> {
    device.write(&[BlockWrite { block: BlockNo(block), kind: KIND, data: &[fill; BLOCK] }])
}

pub fn read(device: &dyn BlockDevice, block: u64) -> Result<u8, Error> {
    let mut data = vec![0; BLOCK];
    device.read(&mut [BlockRead { block: BlockNo(block), kind: KIND, data: &mut data }])?;
    assert!(data.iter().all(|byte| *byte == data[0]), "block {block} is of one piece");
    Ok(data[0])
}

pub fn fails(disk: &Disk, blocks: std::ops::Range<u64>, op: Option<IoOp>) {
    let fault = Fault { blocks: Some(blocks), op, times: Times::Sticky, ..Fault::new(Defect::Error) };
    disk.set_plan(FaultPlan::one(fault));
}

pub fn fill(block: u64) -> u8 {
    u8::try_from(block).unwrap()
}

pub fn block_write(block: u64, kind: BlockKind, data: &[u8]) -> BlockWrite<'_> {
    BlockWrite { block: BlockNo(block), kind, data }
}
