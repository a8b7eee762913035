//! A cylinder group: what of it is free.

use fstitch_core::{BlockNo, Error, Result, Structure};

use super::superblock::{Superblock, Totals, Version};

const MAGIC: u32 = 0x0009_0255;

/// A group's block, and where in it what is.
#[derive(Clone, Debug)]
pub struct Group {
    bytes: Vec<u8>,
    /// Fragments of the group.
    pub fragments: u32,
    /// Inodes that have ever been written; what the others hold means nothing.
    pub initialised: u32,
    /// What it says that is free.
    pub totals: Totals,
    used_inodes: usize,
    free_fragments: usize,
}

impl Group {
    /// What the block in `bytes` says of group `no`; it lies at `block`.
    ///
    /// # Errors
    /// `Corrupt`, with what cannot be.
    pub fn parse(bytes: Vec<u8>, no: u32, block: BlockNo, volume: &Superblock) -> Result<Self> {
        let damaged = |problem: String| Error::corrupt(Structure::Descriptor(u64::from(no)), block, problem);
        let word = |at: usize| volume.order.u32(&bytes, at);
        if word(4) != MAGIC || word(12) != no {
            return Err(damaged(format!("magic number {:#x} of group {}", word(4), word(12))));
        }
        let start = u64::from(no) * u64::from(volume.group_fragments);
        let here = (volume.fragments - start).min(u64::from(volume.group_fragments));
        if u64::from(word(20)) != here {
            return Err(damaged(format!("{} fragments, expected {here}", word(20))));
        }
        let place = |at: usize| usize::try_from(word(at)).unwrap_or(usize::MAX);
        let (used_inodes, free_fragments) = (place(92), place(96));
        let fits = |at: usize, bits: u32| {
            let len = usize::try_from(bits.div_ceil(8)).unwrap_or(usize::MAX);
            at >= 168 && at.saturating_add(len) <= bytes.len()
        };
        if !fits(used_inodes, volume.group_inodes) || !fits(free_fragments, volume.group_fragments) {
            return Err(damaged(format!("bitmaps at bytes {used_inodes} and {free_fragments}")));
        }
        let totals = Totals {
            directories: u64::from(word(24)),
            blocks: u64::from(word(28)),
            inodes: u64::from(word(32)),
            fragments: u64::from(word(36)),
        };
        let (fragments, all) = (word(20), volume.group_inodes);
        let initialised = match volume.version {
            Version::One => all,
            Version::Two => word(120).min(all),
        };
        Ok(Self { fragments, initialised, totals, used_inodes, free_fragments, bytes })
    }

    fn bit(&self, base: usize, at: u32) -> bool {
        let byte = usize::try_from(at / 8).unwrap_or(usize::MAX);
        self.bytes.get(base.saturating_add(byte)).is_some_and(|byte| byte >> (at % 8) & 1 != 0)
    }

    /// Whether the group's inode `at` is in use.
    #[must_use]
    pub fn is_inode_used(&self, at: u32) -> bool {
        self.bit(self.used_inodes, at)
    }

    /// Whether the group's fragment `at` is free.
    #[must_use]
    pub fn is_fragment_free(&self, at: u32) -> bool {
        self.bit(self.free_fragments, at)
    }
}
