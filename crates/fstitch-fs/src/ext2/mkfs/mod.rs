//! Making an ext2, ext3 or ext4 volume.
//!
//! # Layout
//! Each group starts with (in some groups) a copy of the superblock, of all group descriptors and of blocks
//! reserved for more descriptors; then the block bitmap, the inode bitmap and the inode table; then data.
//! Group 0's data starts with the root directory, lost+found and the resize inode's indirect block.
//!
//! # Order
//! The old superblock is wiped first and the new one written last, each behind a flush, so that a device on
//! which making was cut short is never taken for a volume. In between any order will do.
//!
//! A journal is added to the finished volume, as to any other: cut there, it is one without a journal.

mod features;
mod image;
mod layout;
mod options;
mod plan;
mod resize;
mod space;
mod write;

use fstitch_core::num::to_usize;
use fstitch_core::{BlockDevice, BlockNo, Error, Result};

pub use features::MkfsFeatures;
pub use options::{MkfsJournal, MkfsOptions};

use self::plan::Plan;
use self::write::Writer;
use super::journal::{self, AddOptions};
use super::layout::checksum::InodeSums;
use super::newmap::Shape;

/// What was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MkfsSummary {
    /// Bytes per block.
    pub block_size: u32,
    /// Blocks of the volume; less than the device's when a last group was too small to be of use.
    pub blocks: u64,
    /// Block groups.
    pub groups: u64,
    /// Inodes, the reserved ones included.
    pub inodes: u64,
    /// Bytes per inode.
    pub inode_size: u32,
    /// Blocks that nothing uses.
    pub free_blocks: u64,
    /// Blocks that only root may use.
    pub reserved_blocks: u64,
    /// Blocks of the journal, its map not included; `None` if there is none.
    pub journal_blocks: Option<u32>,
    /// Where the copies of the superblock are, the primary not included.
    pub backups: Vec<BlockNo>,
}

/// Makes a volume on `device`. `progress` is told how many groups of how many are written.
///
/// # Errors
/// [`Error::Unsupported`] when the format cannot be as asked, before anything is written; [`Error::Io`] when
/// the device fails, which leaves it without a superblock.
pub fn mkfs(
    device: &dyn BlockDevice,
    options: &MkfsOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<MkfsSummary> {
    let plan = Plan::new(options, device.geometry().bytes())?;
    if options.uuid == [0; 16] {
        return Err(Error::Unsupported("a volume whose UUID is all zero".into()));
    }
    let mut writer = Writer::new(device, options, &plan)?;
    writer.lay_out_files()?;
    let log = plan_journal(options, &plan, writer.room())?;
    writer.wipe()?;
    writer.write_groups(progress)?;
    writer.write_staged()?;
    writer.finish()?;
    let asked = AddOptions { blocks: log, now: options.now, is_zero: options.device_is_zero };
    let added = log.map(|_| journal::add_counted(device, asked)).transpose()?;
    Ok(MkfsSummary {
        block_size: narrow(plan.block_size),
        blocks: plan.blocks,
        groups: plan.groups,
        inodes: plan.inodes(),
        inode_size: narrow(plan.inode_size),
        free_blocks: writer.free_blocks() - added.map_or(0, |added| u64::from(added.owned)),
        reserved_blocks: plan.reserved_blocks,
        journal_blocks: log,
        backups: (1..plan.groups)
            .filter(|&group| plan.has_super(group))
            .map(|group| BlockNo(plan.group_start(group)))
            .collect(),
    })
}

/// Finds the journal's size, and refuses what the volume of `room` free blocks cannot have.
fn plan_journal(options: &MkfsOptions, plan: &Plan, room: u64) -> Result<Option<u32>> {
    let asked = match options.journal {
        MkfsJournal::None => return Ok(None),
        MkfsJournal::Suitable => None,
        MkfsJournal::Blocks(blocks) => Some(blocks),
        // What is more than the format can count is too much as well.
        MkfsJournal::Bytes(bytes) => Some(u32::try_from(bytes / plan.block_size).unwrap_or(u32::MAX)),
    };
    if plan.revision == 0 {
        return Err(Error::Unsupported("a journal on a volume of revision 0".into()));
    }
    let blocks = journal::size_of_log(plan.blocks, asked, &plan.features.words())?;
    let map = Shape {
        block_size: narrow(plan.block_size),
        extents: plan.features.extent,
        sums: InodeSums::default(),
    };
    let with_map = blocks + map.nodes_at_least(blocks);
    if u64::from(with_map) > room {
        let text = format!("a journal that takes {with_map} blocks: only {room} are free");
        return Err(Error::Unsupported(text));
    }
    Ok(Some(blocks))
}

/// A number of the plan as the format stores it.
fn narrow(n: u64) -> u32 {
    u32::try_from(n).expect("the plan keeps every number within the format's 32 bits")
}

/// A number of the plan as a 16-bit field.
fn short(n: u64) -> u16 {
    u16::try_from(n).expect("the plan keeps per-group numbers within 16 bits")
}

/// A number of the plan as an index into memory.
fn index(n: u64) -> usize {
    to_usize(n)
}
