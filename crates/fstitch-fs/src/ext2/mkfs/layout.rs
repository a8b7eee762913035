//! Where each group has its bitmaps and its inode table.
//!
//! Without `flex_bg` they follow the group's copies of superblock and descriptors. With it, the bitmaps of several groups
//! lie together in the first of them, and so do their inode tables:
//!
//! ```text
//!   group 0 (of 16)                                                                group 1 …
//!   superblock, descriptors, reserved │ block bitmaps │ inode bitmaps │ tables … │ copies │ data …
//! ```
//! The first place that has room for many of them is where they begin; where not all fit behind each other, which small blocks bring
//! about, the next have the next that is free. That is what mke2fs does, so that others who know the manner find nothing unusual.

use fstitch_core::{Error, Result};

use super::plan::Plan;
use super::space::Space;

/// Where a group's structures are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Places {
    pub(super) block_bitmap: u64,
    pub(super) inode_bitmap: u64,
    pub(super) inode_table: u64,
}

/// Every group's structures, and the blocks that are taken.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) groups: Vec<Places>,
    pub(super) space: Space,
}

impl Layout {
    /// Lays out the metadata of the groups of `plan`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if they do not fit.
    pub(super) fn new(plan: &Plan) -> Result<Self> {
        let mut layout = Self { groups: Vec::new(), space: Space::default() };
        for group in 0..plan.groups {
            layout.space.take(plan.group_start(group), plan.overhead(group));
        }
        let mut first = 0;
        while first < plan.groups {
            let end = (first + plan.groups_per_flex).min(plan.groups);
            layout.lay_out(plan, first, end)?;
            first = end;
        }
        // Several of these may be in one cluster, but nothing else.
        layout.space = layout.space.widened(|range| plan.whole(range));
        Ok(layout)
    }

    /// Lays out the groups `first..end`, whose structures lie together.
    fn lay_out(&mut self, plan: &Plan, first: u64, end: u64) -> Result<()> {
        let count = end - first;
        let last = end - 1;
        let range = (plan.group_start(first), plan.group_start(last) + plan.group_len(last));
        // The last group may get neighbours when the volume grows: their bitmaps shall have a place.
        let room = if count == 1 { plan.groups_per_flex } else { count };
        let far = plan.blocks_per_group / 8;
        let block_bitmaps = self.together(range, range.0, &Wanted { count, room, len: 1, far })?;
        let behind = block_bitmaps[0] + room;
        let inode_bitmaps = self.together(range, behind, &Wanted { count, room, len: 1, far })?;
        let behind = inode_bitmaps[0] + room;
        let len = plan.table_blocks;
        let tables = self.together(range, behind, &Wanted { count, room: count, len, far })?;
        let places = block_bitmaps.into_iter().zip(inode_bitmaps).zip(tables);
        self.groups.extend(places.map(|((block_bitmap, inode_bitmap), inode_table)| Places {
            block_bitmap,
            inode_bitmap,
            inode_table,
        }));
        Ok(())
    }

    /// Takes places in `from..to` for structures of one kind, preferably from `goal` on.
    fn together(&mut self, (from, to): (u64, u64), goal: u64, wanted: &Wanted) -> Result<Vec<u64>> {
        let Wanted { count, room, len, far } = *wanted;
        let mut next = self.space.find(goal, to, (room * len).min(far).max(len)).unwrap_or(from);
        let mut places = Vec::new();
        for _ in 0..count {
            let found = self.space.find(next, to, len).or_else(|| self.space.find(from, to, len));
            let Some(start) = found else {
                return Err(Error::Unsupported(format!(
                    "no room for the bitmaps and inode tables of {count} groups in blocks {from} to {to}: fewer inodes need less"
                )));
            };
            self.space.take(start, len);
            places.push(start);
            next = start + len;
        }
        Ok(places)
    }
}

/// So many structures of one kind, each of `len` blocks, if possible where there would be room for `room` of them; no place is
/// looked for that has more than `far` blocks.
struct Wanted {
    count: u64,
    room: u64,
    len: u64,
    far: u64,
}
