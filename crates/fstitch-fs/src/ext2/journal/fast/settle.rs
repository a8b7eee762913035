//! What follows from the records: bits of blocks and inodes, counts, and which inodes are freed.

use std::collections::BTreeSet;

use fstitch_core::{Errno, Result};

use super::super::pass::{Loaded, Pass};
use super::{Apply, has_map};
use crate::ext2::layout::extent::Node;
use crate::ext2::layout::inode::POINTERS;
use crate::ext2::num::{idx, low32};
use crate::ext2::runs::Runs;

/// Free blocks for what records do not mention: nodes of trees, blocks of directories.
pub(super) struct Space {
    /// What records give to files, and what was taken here.
    claimed: Runs,
    taken: BTreeSet<u64>,
}

impl Space {
    pub(super) const fn new(claimed: Runs) -> Self {
        Self { claimed, taken: BTreeSet::new() }
    }

    /// A block that is free, was free before the records, and is not used by any of them. From `near` on, and around.
    pub(super) fn take(&mut self, pass: &Pass<'_, '_>, near: u64) -> Result<u64> {
        let groups = pass.shape.group_count();
        let first = pass.shape.group_of(near);
        for group in (first..groups).chain(0..first) {
            let bits = pass.block_bits(group)?;
            let start = pass.shape.group_start(group);
            let mut at = start;
            while at < start + u64::from(pass.shape.group_blocks(group)) {
                let bit = low32(at - start);
                if let Some(end) = self.claimed.holds(at) {
                    at = end;
                } else if bits[idx(bit / 8)] & 1 << (bit % 8) == 0 && !self.taken.contains(&at) {
                    self.taken.insert(at);
                    return Ok(at);
                } else {
                    at += 1;
                }
            }
        }
        Err(Errno::NOSPC.into())
    }
}

impl Apply<'_, '_, '_> {
    /// Brings bits, counts and storage to what the records have made.
    pub(super) fn settle(&mut self) -> Result<()> {
        let known: Vec<u32> = self.known.keys().copied().collect();
        let mut has = Vec::new();
        for ino in known {
            let Some(mut orphan) = self.load(ino)? else { continue };
            let is_dead = self.known.get(&ino).is_some_and(|known| known.is_dead);
            if is_dead && !self.listed.contains(&ino) {
                self.free(orphan)?;
                continue;
            }
            if is_dead {
                orphan.disk.nlink = 0;
            }
            if has_map(&orphan, self.pass.shape.block_size) {
                has.extend(self.count_storage(&mut orphan)?);
            }
            self.put(&orphan)?;
        }
        let (had, has) = (Runs::of(std::mem::take(&mut self.had)), Runs::of(has));
        self.pass.mark_blocks(&had.without(&has), false)?;
        self.pass.mark_blocks(&has.without(&had), true)
    }

    /// Sets the inode's count of blocks to what its map has; its runs.
    fn count_storage(&self, orphan: &mut Loaded) -> Result<Vec<(u64, u64)>> {
        let (mut runs, mut count) = (Vec::new(), u64::from(orphan.disk.xattr_block != 0));
        self.pass.each_run(orphan, &mut |first, len, _| {
            runs.push((first, first + u64::from(len)));
            count += u64::from(len);
        })?;
        orphan.disk.sectors = count * u64::from(self.pass.shape.block_size / 512);
        Ok(runs)
    }

    /// Frees an inode without names, whose blocks by extents are in [`Apply::had`] and not found again.
    fn free(&mut self, mut orphan: Loaded) -> Result<()> {
        if orphan.disk.has_blocks(self.pass.shape.block_size) && !orphan.disk.has_extents() {
            let finished = self.pass.free_from(&mut orphan, 0)?;
            debug_assert!(finished, "a pass without a limit is never full");
        }
        if orphan.disk.xattr_block != 0 {
            self.pass.free_attributes(orphan.disk.xattr_block)?;
        }
        self.pass.free_inode(&orphan)?;
        if orphan.disk.has_blocks(self.pass.shape.block_size) {
            let is_tree = orphan.disk.has_extents();
            orphan.disk.block = if is_tree { Node::empty_root().root_words() } else { [0; POINTERS] };
        }
        (orphan.disk.nlink, orphan.disk.size, orphan.disk.sectors, orphan.disk.xattr_block) = (0, 0, 0, 0);
        orphan.disk.dtime = self.pass.deletion_time()?;
        self.put(&orphan)
    }
}
