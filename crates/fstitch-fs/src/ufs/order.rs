//! Numbers in the byte order of the machine that made a volume.

use fstitch_core::{Be, Le};

/// A byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The lowest byte first.
    Little,
    /// The highest byte first.
    Big,
}

impl Order {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Little => "little-endian",
            Self::Big => "big-endian",
        }
    }

    /// The 16 bits at byte `at`.
    pub(super) fn u16(self, raw: &[u8], at: usize) -> u16 {
        match self {
            Self::Little => Le::u16(raw, at),
            Self::Big => Be::u16(raw, at),
        }
    }

    /// The 32 bits at byte `at`.
    pub(super) fn u32(self, raw: &[u8], at: usize) -> u32 {
        match self {
            Self::Little => Le::u32(raw, at),
            Self::Big => Be::u32(raw, at),
        }
    }

    /// The 64 bits at byte `at`.
    pub(super) fn u64(self, raw: &[u8], at: usize) -> u64 {
        match self {
            Self::Little => Le::u64(raw, at),
            Self::Big => Be::u64(raw, at),
        }
    }

    /// Writes 16 bits at byte `at`.
    pub(super) fn put_u16(self, raw: &mut [u8], at: usize, value: u16) {
        match self {
            Self::Little => Le::put_u16(raw, at, value),
            Self::Big => Be::put_u16(raw, at, value),
        }
    }

    /// Writes 32 bits at byte `at`.
    pub(super) fn put_u32(self, raw: &mut [u8], at: usize, value: u32) {
        match self {
            Self::Little => Le::put_u32(raw, at, value),
            Self::Big => Be::put_u32(raw, at, value),
        }
    }

    /// Writes 64 bits at byte `at`.
    pub(super) fn put_u64(self, raw: &mut [u8], at: usize, value: u64) {
        match self {
            Self::Little => Le::put_u64(raw, at, value),
            Self::Big => Be::put_u64(raw, at, value),
        }
    }
}
