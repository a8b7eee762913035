//! New arrays: how much of each disk is the volume's, and how much is for copies.

use std::sync::Arc;

use fstitch_core::{BlockDevice, BlockKind, Error, Result};

use super::label::{self, DiskState, Label, Member};
use crate::map::Shape;
use crate::policy::{Direction, Kind, Policy};

/// What an array is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The array's name.
    pub uuid: [u8; 16],
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks of each disk before anything else but the labels; at least two.
    pub first: u64,
    /// The name and the blocks of each disk.
    pub disks: Vec<([u8; 16], u64)>,
    /// The name and the blocks of hot spares.
    pub hot: Vec<([u8; 16], u64)>,
}

/// Of 64 blocks that a disk has beside labels and zone, those that are the volume's.
fn share(policy: &Policy, disks: usize) -> u64 {
    let copies =
        |kind| u64::try_from(policy.chain(Kind::Block(kind), Direction::Write).copies(disks)).unwrap_or(0);
    let of_data = copies(BlockKind::Data);
    let more = |kinds: &[BlockKind]| {
        kinds.iter().map(|kind| copies(*kind)).max().unwrap_or(0).saturating_sub(of_data)
    };
    // Of each 60 blocks of a small volume tables of inodes and a journal are five each, and what leads to files is two, more or less. The part is the
    // volume's, not the disk's: what a disk gives to copies shrinks the volume that is copied.
    let beyond = more(&[BlockKind::Inode]) * 5
        + more(&[BlockKind::JournalData]) * 5
        + more(&[BlockKind::Directory, BlockKind::Indirect]) * 2;
    // And two are for what is moved.
    ((64 - 2) * 60 / ((of_data + 1) * 60 + beyond)).max(1)
}

/// The label that a new array has.
///
/// # Errors
/// `Unsupported` if there are too few or too many disks, or one has no room.
pub fn label_of(plan: &Plan, policy: &Policy) -> Result<Label> {
    let share = share(policy, plan.disks.len());
    let all: u64 = plan.disks.iter().map(|(_, blocks)| blocks).sum();
    // A little more than will be needed: sizes depend on each other.
    let most = Shape { block_size: plan.block_size, volume: all, spares: all, list: 0 };
    if plan.block_size < 1024 {
        return Err(Error::Unsupported("an array with blocks of fewer than 1024 bytes".into()));
    }
    let zone = 2 * most.half();
    let member = |(uuid, blocks): &([u8; 16], u64)| {
        let room = blocks.saturating_sub(plan.first + zone);
        let own = room * share / 64;
        let is_enough = own >= 64 && room - own >= 8;
        is_enough
            .then_some(Member { uuid: *uuid, blocks: own, spares: room - own, state: DiskState::Whole })
            .ok_or_else(|| {
                Error::Unsupported(format!(
                    "a disk of {blocks} blocks in an array that needs {zone} for its maps"
                ))
            })
    };
    let mut disks = plan.disks.iter().map(member).collect::<Result<Vec<_>>>()?;
    let volume = disks.iter().map(|disk| disk.blocks).sum();
    let spares = disks.iter().map(|disk| disk.spares).sum();
    let needed = plan.disks.iter().map(|(_, blocks)| *blocks).max().unwrap_or(0);
    for (uuid, blocks) in &plan.hot {
        if *blocks < needed {
            return Err(Error::Unsupported(format!("a hot spare of {blocks} blocks for disks of {needed}")));
        }
        disks.push(Member { uuid: *uuid, blocks: 0, spares: 0, state: DiskState::Hot });
    }
    let shape = Shape { block_size: plan.block_size, volume, spares, list: 0 };
    let label = Label {
        uuid: plan.uuid,
        generation: 1,
        block_size: plan.block_size,
        first: plan.first.max(2),
        zone: 2 * shape.half(),
        disks,
    };
    label.check()?;
    Ok(label)
}

/// Writes the labels of a new array to its disks, in the order of the label. What the disks held is lost.
///
/// # Errors
/// When a disk cannot be written.
pub fn write_labels(devices: &[Arc<dyn BlockDevice>], label: &Label) -> Result<()> {
    for (disk, device) in devices.iter().enumerate() {
        // In both places: an older array's may be newer than this one.
        for generation in [label.generation - 1, label.generation] {
            label::write(&**device, &Label { generation, ..label.clone() }, disk)?;
        }
    }
    Ok(())
}
