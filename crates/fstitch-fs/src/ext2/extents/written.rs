//! Blocks that are there and were not written: they read as zeros, whatever they hold.
//!
//! **Orderings.** An extent is called written after the contents of all its blocks. One that is called unwritten needs
//! nothing.

use std::ops::Range;

use fstitch_core::{Errno, Result};
use fstitch_patch::{PatchId, PatchIds};

use super::ends::up_to_wall;
use super::node::ALL;
use super::tree::Found;
use crate::ext2::detach::Removal;
use crate::ext2::inode::Inode;
use crate::ext2::volume::Ext2;

/// Blocks that are filled with zeros where there is none for a node that tells them from others.
const ZEROED_MAX: u32 = 64;

impl Ext2 {
    /// The unwritten blocks `index..index + count` are to be filled: takes blocks for the nodes that saying so needs. Returns which
    /// blocks must be filled: all of the extent, where there are none for more entries; but nothing behind the file's end, where only what is
    /// unwritten may lie.
    pub(in crate::ext2) fn prepare_extent_written(
        &self,
        inode: &mut Inode,
        index: u64,
        count: u64,
    ) -> Result<Range<u64>> {
        let Found::In(extent) = self.find_extent(inode, index)? else { return Err(Errno::IO.into()) };
        let walls = self.walls(inode);
        let wanted = index..(index + count.min(up_to_wall(&walls, index))).min(extent.end());
        let whole = u64::from(extent.block)..extent.end();
        let end = inode.disk.size.div_ceil(u64::from(self.sb.block_size)).max(wanted.end);
        let added =
            |range: &Range<u64>| usize::from(range.start > whole.start) + usize::from(range.end < whole.end);
        let mut reserve = |range: Range<u64>| -> Result<Range<u64>> {
            let added = added(&range);
            if added > 0 {
                self.reserve_for_edits_adding(inode, &[range.start], added)?;
            }
            Ok(range)
        };
        match reserve(wanted) {
            Err(error)
                if error.errno() == Errno::NOSPC
                    && extent.len <= ZEROED_MAX
                    && up_to_wall(&walls, whole.start) >= whole.end.min(end) - whole.start =>
            {
                reserve(whole.start..whole.end.min(end))
            }
            reserved => reserved,
        }
    }

    /// They were filled: they have contents from now on, after `contents`.
    pub(in crate::ext2) fn mark_extents_written(
        &self,
        inode: &mut Inode,
        range: Range<u64>,
        contents: &[PatchId],
    ) -> Result<PatchIds> {
        self.mark_extents(inode, range, contents, false)
    }

    /// The blocks of `range` that are there read as zeros from now on.
    pub(in crate::ext2) fn mark_extents_unwritten(
        &self,
        inode: &mut Inode,
        range: Range<u64>,
    ) -> Result<PatchIds> {
        let range = range.start..range.end.min(ALL.end);
        if range.is_empty() {
            return Ok(PatchIds::new());
        }
        // The extents at both ends become two.
        self.reserve_for_edits(inode, &[range.start, range.end - 1])?;
        self.mark_extents(inode, range, &[], true)
    }

    fn mark_extents(
        &self,
        inode: &mut Inode,
        range: Range<u64>,
        befores: &[PatchId],
        unwritten: bool,
    ) -> Result<PatchIds> {
        let changed = self.change_tree(inode, befores, |tree| tree.mark(&range, unwritten));
        let changed = match changed {
            Ok(changed) => changed,
            Err(error) => {
                self.drop_spare_nodes(inode);
                return Err(error);
            }
        };
        let mut removal = Removal::new(0, 0, &[]);
        self.finish_change(inode, (&changed, 0), &mut removal)?;
        self.remember(inode);
        removal.failed.map_or(Ok(changed.patches), Err)
    }
}
