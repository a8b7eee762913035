//! Moving the extents of a file: a range is taken out of it, or a hole put in.
//!
//! **Orderings.** All nodes from the range on change, in place and in one step, which a journal makes whole: a tree of which one
//! node has moved and the next one has not says of two file blocks that they are in one place. Without a journal there is no such step, and
//! nothing moves. The bits of what was in the range → the change of the node that had it.
//!
//! **Crash cases.** None within the step.

use std::collections::BTreeSet;
use std::ops::Range;

use fstitch_core::{Errno, Result};
use fstitch_patch::{PatchId, PatchIds};

use super::node::{ALL, child_for};
use super::tree::Found;
use crate::ext2::detach::Removal;
use crate::ext2::groups::Map;
use crate::ext2::inode::Inode;
use crate::ext2::layout::extent::{Entries, Node};
use crate::ext2::volume::Ext2;
use crate::uhfs::Shift;

/// File blocks end here: the last number means "none" to others.
const END: u64 = 0xffff_ffff;
/// What a node that is made or given up dirties at most: itself, a bitmap and its descriptor.
const BLOCKS_PER_NODE: usize = 3;
/// The superblock and the inode.
const ALWAYS: usize = 2;

impl Ext2 {
    /// What shifting dirties at most; `EINVAL` if a block would be too far from the file's start.
    pub(in crate::ext2) fn shift_extents_cost(
        &self,
        inode: &Inode,
        range: &Range<u64>,
        shift: Shift,
    ) -> Result<usize> {
        let root = self.root_node(inode)?;
        let behind = self.nodes_from(inode, (&root, &ALL), range.end.min(ALL.end))?;
        let from_start = self.nodes_from(inode, (&root, &ALL), range.start.min(ALL.end))?;
        // Those that the range meets may go, with its blocks; so may those at its end, and what folds into the inode.
        let met = from_start.saturating_sub(behind) + 2 * usize::from(root.depth);
        // One for each level, and one for a new one, where an extent is cut in two.
        let made = usize::from(root.depth) + 1;
        let freed = match shift {
            Shift::Out => 2 * self.groups_of(inode, range)?,
            Shift::In if self.extents_end(inode)?.saturating_add(range.end - range.start) > END => {
                return Err(Errno::INVAL.into());
            }
            Shift::In => 0,
        };
        Ok(behind + BLOCKS_PER_NODE * (met + made) + freed + ALWAYS)
    }

    /// Nodes below this one that hold file blocks from `from` on, or may.
    fn nodes_from(&self, inode: &Inode, (node, range): (&Node, &Range<u64>), from: u64) -> Result<usize> {
        let Entries::Inner(children) = &node.entries else { return Ok(0) };
        let mut count = 0;
        for entry in children {
            let Some((_, child, below)) = child_for(node, u64::from(entry.block), range) else { continue };
            if below.end <= from {
                continue;
            }
            count += 1;
            if node.depth > 1 {
                let inner = self.read_node(inode, child.node, node.depth - 1, &below)?;
                count += self.nodes_from(inode, (&inner, &below), from)?;
            }
        }
        Ok(count)
    }

    /// Groups in which the file has the blocks of `range`.
    fn groups_of(&self, inode: &Inode, range: &Range<u64>) -> Result<usize> {
        let mut groups = BTreeSet::new();
        let (mut at, end) = (range.start, range.end.min(self.extents_end(inode)?));
        while at < end {
            let run = self.map_extent(inode, at, end - at)?;
            if let Some(start) = run.start {
                let last = start.get() + run.count - 1;
                groups.extend(self.sb.group_of(start.get())..=self.sb.group_of(last));
            }
            at += run.count;
        }
        // What cannot be read or is damaged is met before anything has moved.
        for &group in &groups {
            self.open_group(group, Map::Blocks)?;
        }
        Ok(groups.len())
    }

    /// Takes file blocks `range` out of the file and frees them, or puts a hole of so many in, after `befores`. Returns the patches of the
    /// map.
    pub(in crate::ext2) fn shift_extents(
        &self,
        inode: &mut Inode,
        range: &Range<u64>,
        shift: Shift,
        befores: &[PatchId],
    ) -> Result<PatchIds> {
        assert!(!self.copies_nodes(), "a journal makes the step whole");
        let is_cut = match self.find_extent(inode, range.start)? {
            Found::In(extent) => {
                u64::from(extent.block) < range.start && (shift == Shift::In || range.end < extent.end())
            }
            Found::HoleTo(_) => false,
        };
        if is_cut {
            self.reserve_for_edits(inode, &[range.start])?;
        }
        let changed = self.change_tree(inode, befores, |tree| match shift {
            Shift::Out => tree.take_out(range),
            Shift::In => tree.put_in(range),
        });
        let changed = match changed {
            Ok(changed) => changed,
            Err(error) => {
                self.drop_spare_nodes(inode);
                return Err(error);
            }
        };
        inode.node_hint.forget();
        let mut removal = Removal::new(range.start, range.end, befores);
        self.free_lost(inode, &changed, &mut removal);
        let finished = self.finish_change(inode, (&changed, 0), &mut removal);
        self.close_window(inode);
        inode.last = None;
        self.give_back_preallocated_of(inode.ino);
        self.remember(inode);
        let failed = removal.failed.take();
        if let Err(error) = finished.and(failed.map_or(Ok(()), Err)) {
            // The map has moved and the length has not: that must not become stable.
            self.found_damage(&error);
            return Err(error);
        }
        Ok(changed.patches)
    }
}
