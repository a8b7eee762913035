//! References to blocks, and forks.

use fstitch_core::Le;

use super::{FAN_BITS, HEIGHT_MAX};

/// Bytes of a reference.
pub const REF_BYTES: usize = 32;

/// The block may have more references than this one.
pub const SHARED: u32 = 1;
/// The block has a part of a compressed cluster.
pub const PACKED: u32 = 2;
/// Flags that this version knows without a feature.
pub const KNOWN_FLAGS: u32 = SHARED;

/// A reference to a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ref {
    /// The block; 0 for none.
    pub block: u64,
    /// The generation in which it was written, or referred to if it is shared.
    pub birth: u64,
    /// The sum of its bytes.
    pub sum: u64,
    /// Flags.
    pub flags: u32,
    /// In the map: the free blocks of the region. In the first reference of a compressed cluster: bytes of its frame.
    pub extra: u32,
}

impl Ref {
    /// None.
    pub const NONE: Self = Self { block: 0, birth: 0, sum: 0, flags: 0, extra: 0 };

    /// Whether it is none.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.block == 0
    }

    /// The same without what only references to contents may say.
    #[must_use]
    pub const fn unpacked(self) -> Self {
        Self { flags: self.flags & !PACKED, ..self }
    }

    /// The reference at byte `at`.
    #[must_use]
    pub fn read(bytes: &[u8], at: usize) -> Self {
        Self {
            block: Le::u64(bytes, at),
            birth: Le::u64(bytes, at + 8),
            sum: Le::u64(bytes, at + 16),
            flags: Le::u32(bytes, at + 24),
            extra: Le::u32(bytes, at + 28),
        }
    }

    /// Writes it to byte `at`.
    pub fn write(&self, bytes: &mut [u8], at: usize) {
        Le::put_u64(bytes, at, self.block);
        Le::put_u64(bytes, at + 8, self.birth);
        Le::put_u64(bytes, at + 16, self.sum);
        Le::put_u32(bytes, at + 24, self.flags);
        Le::put_u32(bytes, at + 28, self.extra);
    }

    /// The reference in slot `slot` of a node.
    #[must_use]
    pub fn slot(node: &[u8], slot: usize) -> Self {
        Self::read(node, slot * REF_BYTES)
    }

    /// What is wrong with a reference in a tree of a volume whose data are `first..end` and whose generation is `generation`.
    #[must_use]
    pub fn problem(&self, (first, end): (u64, u64), generation: u64) -> Option<String> {
        if self.is_none() {
            return (*self != Self::NONE).then(|| "it leads nowhere, and says more than that".to_owned());
        }
        if !(first..end).contains(&self.block) {
            return Some(format!("it leads to block {}, and data are in {first} to {}", self.block, end - 1));
        }
        if self.birth > generation {
            return Some(format!("it is of generation {}, and the root of {generation}", self.birth));
        }
        (self.flags & !KNOWN_FLAGS != 0).then(|| format!("it has unknown flags {:#x}", self.flags))
    }
}

/// A tree of blocks: where its top is, and how high.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fork {
    /// The top.
    pub root: Ref,
    /// Its level.
    pub height: u8,
}

impl Fork {
    /// Whether leaf `index` is within the height's reach.
    #[must_use]
    pub fn reaches(&self, index: u64) -> bool {
        covers(self.height, index)
    }
}

/// Whether a node of this level at index 0 reaches leaf `index`.
#[must_use]
pub fn covers(level: u8, index: u64) -> bool {
    index.checked_shr(FAN_BITS * u32::from(level)).unwrap_or(0) == 0
}

/// The leaves below a node of a level; all there can be for what would not fit.
#[must_use]
pub fn span(level: u8) -> u64 {
    debug_assert!(level <= HEIGHT_MAX, "levels are validated");
    1 << (FAN_BITS * u32::from(level)).min(63)
}

/// The slot in its parent of the node of any level at `index`.
#[must_use]
pub fn slot_of(index: u64) -> usize {
    fstitch_core::num::to_usize(index % super::FAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_read_as_they_are_written() {
        let reference = Ref { block: 7, birth: 1 << 40, sum: u64::MAX, flags: 1, extra: 5 };
        let mut node = [0; 4096];
        reference.write(&mut node, 3 * REF_BYTES);
        assert_eq!(Ref::slot(&node, 3), reference);
        assert!(Ref::slot(&node, 2).is_none());
    }

    #[test]
    fn references_are_judged() {
        let good = Ref { block: 30, birth: 4, ..Ref::NONE };
        let judge = |reference: Ref| reference.problem((20, 40), 4);
        assert_eq!(judge(good), None);
        assert_eq!(judge(Ref::NONE), None);
        for bad in [
            Ref { block: 19, ..good },
            Ref { block: 40, ..good },
            Ref { birth: 5, ..good },
            Ref { flags: 4, ..good },
            Ref { sum: 1, ..Ref::NONE },
        ] {
            assert!(judge(bad).is_some(), "{bad:?}");
        }
    }

    #[test]
    fn heights_reach() {
        assert!(covers(0, 0) && !covers(0, 1));
        assert!(covers(1, 127) && !covers(1, 128));
        assert!(covers(8, (1 << 51) - 1));
        assert_eq!((span(0), span(2)), (1, 1 << 14));
    }
}
