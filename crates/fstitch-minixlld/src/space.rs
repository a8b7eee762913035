//! How much room there is: what the logical disk says of itself, asked in this one place.

use fstitch_core::num::to_u64;
use fstitch_lld::Disk;

/// Room in blocks of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Space {
    /// All there is.
    pub(crate) total: u64,
    /// What is free.
    pub(crate) free: u64,
}

/// The room on a disk.
pub(crate) fn space(disk: &Disk) -> Space {
    let block = to_u64(disk.block_size());
    let space = disk.space();
    Space { total: space.all / block, free: (space.all - space.used) / block }
}
