//! Conversions between number types that cannot lose anything on the machines we run on.

use fstitch_core::num::{to_u64, to_usize};

/// A 32-bit number as an index into memory.
pub(crate) fn idx(number: u32) -> usize {
    to_usize(number)
}

/// A 64-bit number as an index into memory.
pub(crate) fn idx64(number: u64) -> usize {
    to_usize(number)
}

/// A size in memory as a 64-bit number.
pub(crate) fn wide(number: usize) -> u64 {
    to_u64(number)
}

/// A position inside a block or bitmap, which is below 2^32 because blocks are.
pub(crate) fn small(number: usize) -> u32 {
    u32::try_from(number).expect("positions in blocks are below 2^32")
}

/// The low 32 bits.
pub(crate) fn low32(number: u64) -> u32 {
    u32::try_from(number & 0xffff_ffff).expect("masked to 32 bits")
}

/// A block as a pointer of a map of pointers, and of the list of reserved descriptor blocks: the format has 32 bits for it,
/// and nothing else gets blocks beyond.
pub(crate) fn pointer32(block: u64) -> u32 {
    u32::try_from(block).expect("what is mapped by pointers gets blocks below 2^32")
}

/// The high 32 bits.
pub(crate) fn high32(number: u64) -> u32 {
    low32(number >> 32)
}

/// The low 16 bits.
pub(crate) fn low16(number: u32) -> u16 {
    u16::try_from(number & 0xffff).expect("masked to 16 bits")
}

/// The high 16 bits.
pub(crate) fn high16(number: u32) -> u16 {
    u16::try_from(number >> 16).expect("16 bits remain")
}
