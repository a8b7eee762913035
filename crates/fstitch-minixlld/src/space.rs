//! How much room there is: what the logical disk says of itself, asked in this one place.

use fstitch_lld::Disk;

/// Room in blocks of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Space {
    /// All there is.
    pub(crate) total: u64,
    /// What is free.
    pub(crate) free: u64,
}

/// The room on a disk. A disk does not say it yet; programs take zeros for what is not known.
pub(crate) fn space(_disk: &Disk) -> Space {
    Space::default()
}
