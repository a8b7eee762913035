//! The parity of a batch: of all of its blocks, in whichever way it can be computed.
//!
//! What it prevents: parity that a block under another chain is not in; a group that is given up, or has the parity of what was there
//! before, because one of its blocks cannot be read while others are written.

use std::sync::Arc;

use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, IoOp, MemDevice, Result};
use fstitch_crashlab::{Defect, Fault, FaultDevice, FaultPlan, Times};
use fstitch_shepherd::{Options, Shepherd};

const BLOCK: usize = 1024;
const KIND: BlockKind = BlockKind::Data;

type Disk = Arc<FaultDevice<MemDevice>>;

fn opened(policy: &str) -> (Disk, Shepherd) {
    let disk = Arc::new(FaultDevice::new(MemDevice::new(1024, 400), FaultPlan::default()));
    let below = || Arc::clone(&disk) as Arc<dyn BlockDevice>;
    let area: Vec<BlockNo> = (200..400).map(BlockNo).collect();
    Shepherd::format(below(), &area, [9; 16], policy, &[2], &[], &mut |_, _| {}).unwrap();
    let (shepherd, _) = Shepherd::open(below(), &area, Options::default()).unwrap();
    (disk, shepherd)
}

/// Writes blocks in one batch.
fn write(shepherd: &Shepherd, blocks: std::ops::Range<u64>, kind: BlockKind, fill: u8) {
    let data = [fill; BLOCK];
    let writes: Vec<BlockWrite<'_>> =
        blocks.map(|block| BlockWrite { block: BlockNo(block), kind, data: &data }).collect();
    shepherd.write(&writes).unwrap();
}

fn read(shepherd: &Shepherd, block: u64) -> Result<u8> {
    let mut data = [0; BLOCK];
    shepherd.read(&mut [BlockRead { block: BlockNo(block), kind: KIND, data: &mut data }])?;
    assert!(data.iter().all(|byte| *byte == data[0]), "block {block} is of one piece");
    Ok(data[0])
}

fn unreadable(disk: &Disk, block: u64) {
    let (blocks, op) = (Some(block..block + 1), Some(IoOp::Read));
    disk.set_plan(FaultPlan::one(Fault { blocks, op, times: Times::Sticky, ..Fault::new(Defect::Error) }));
}

/// Two kinds of blocks in one group, of which one asks for parity, in one batch.
#[test]
fn parity_is_of_all_blocks_of_a_batch() {
    let (disk, shepherd) = opened("[data]\nread = [\"parity\"]\nwrite = [\"parity 8\"]");
    let (data, inode) = ([5; BLOCK], [6; BLOCK]);
    let of_inode = BlockWrite { block: BlockNo(41), kind: BlockKind::Inode, data: &inode };
    shepherd.write(&[of_inode, BlockWrite { block: BlockNo(40), kind: KIND, data: &data }]).unwrap();
    unreadable(&disk, 40);
    assert_eq!(read(&shepherd, 40).unwrap(), 5);
}

#[test]
fn what_cannot_be_read_is_computed_although_others_were_written() {
    for sums in ["", "\"verify\", "] {
        let policy = format!("[all]\nread = [{sums}\"parity\"]\nwrite = [{sums}\"parity 8\"]");
        let (disk, shepherd) = opened(&policy);
        (40..48).for_each(|block| write(&shepherd, block..block + 1, KIND, 40));
        // Few are left, of which one cannot be read: the old parity and the old blocks say what it is. Five, for of an even number of the same
        // the sum is nothing.
        unreadable(&disk, 47);
        write(&shepherd, 40..45, KIND, 41);
        assert_eq!(read(&shepherd, 47).unwrap(), 40, "{policy}");
        // What is written cannot be read: the others say what parity is.
        unreadable(&disk, 43);
        write(&shepherd, 43..44, KIND, 42);
        assert_eq!(read(&shepherd, 43).unwrap(), 42, "{policy}");
    }
}
