//! The block that tells other machines that a volume is in use (feature `mmp`): 1024 bytes, the rest of the block is zeros.

use std::ops::Range;

use super::field::fields;

fields! {
    /// [`MAGIC`].
    M_MAGIC: u32 @ 0;
    /// What changes while the volume is in use.
    M_NUMBER: u32 @ 4;
    /// When it was written, in seconds.
    M_TIME: u64 @ 8;
    /// Seconds after which a number that has not changed is a crashed user's.
    M_CHECK_INTERVAL: u16 @ 112;
    /// The sum, where metadata have sums.
    M_CHECKSUM: u32 @ 1020;
}

/// The name of the machine, ended by a zero.
pub const NODE: Range<usize> = 16..80;
/// What the device is called there, the same way.
pub const DEVICE: Range<usize> = 80..112;
/// What the block begins with.
pub const MAGIC: u32 = 0x004d_4d50;
/// The number of a volume that nobody uses.
pub const FREE: u32 = 0xff4d_4d50;
/// That of one that is being checked.
pub const CHECKED: u32 = 0xe24d_4d50;
/// The greatest number of a user; the least is 1.
pub const NUMBER_MAX: u32 = 0xe24d_4d4f;
