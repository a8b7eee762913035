//! The volume's own blocks: copies of the superblock, descriptors, bitmaps and inode tables, wherever they lie.
//!
//! With the feature `flex_bg` a group's bitmaps and table may lie in any other one, so what a group holds of the volume's own is
//! known only from all descriptors.

use super::layout::group::GroupDescriptor;
use super::layout::superblock::Superblock;
use super::num::idx;
use super::runs::Runs;

/// Such blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnRuns(Runs);

impl OwnRuns {
    /// What a volume with these descriptors has; those that could not be read are `None`.
    pub(crate) fn of(shape: &Superblock, groups: &[Option<GroupDescriptor>]) -> Self {
        let table = shape.inode_table_blocks();
        let mut runs = vec![(0, shape.first_data_block() + 1)];
        for (group, at) in (0..shape.group_count()).zip(groups) {
            let start = shape.group_start(group);
            runs.push((start, start + u64::from(shape.group_overhead(group).min(shape.group_blocks(group)))));
            if let Some(at) = at {
                let parts = [(at.block_bitmap, 1), (at.inode_bitmap, 1), (at.inode_table, table)];
                runs.extend(parts.map(|(first, count)| (first, first.saturating_add(u64::from(count)))));
            }
        }
        Self(Runs::of(runs))
    }

    /// What a group has that has all of its own in itself.
    pub(crate) fn of_group(shape: &Superblock, group: u32, at: &GroupDescriptor) -> Self {
        let mut groups = vec![None; idx(group)];
        groups.push(Some(*at));
        Self::of(shape, &groups)
    }

    /// Whether one of the blocks `start..end` is the volume's own.
    pub(crate) fn meet(&self, start: u64, end: u64) -> bool {
        self.within(start, end).next().is_some()
    }

    /// The parts of `start..end` that are the volume's own, in order.
    pub(crate) fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.within(start, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_range_are_found() {
        let own = OwnRuns(Runs::of(vec![(0, 2), (10, 20), (30, 31)]));
        assert_eq!(own.within(0, 100).collect::<Vec<_>>(), [(0, 2), (10, 20), (30, 31)]);
        assert_eq!(own.within(15, 31).collect::<Vec<_>>(), [(15, 20), (30, 31)]);
        assert!(!own.meet(2, 10) && !own.meet(20, 30) && !own.meet(31, 90));
        assert!(own.meet(2, 11) && own.meet(19, 20) && own.meet(30, 31));
    }
}
