//! Room that files which grow will need soon, kept free of others in memory, so that files that are written in turns are
//! a few runs of blocks each.
//!
//! **Layout.** None: the blocks of a window are free on the medium and in its bitmap, so nothing is left of it after a crash, and
//! a journal may be kept, unlike with what `prealloc` takes. A window never crosses the end of its group.
//!
//! **States.** Opened behind an allocation that goes on where the file's last one ended; shortened by each that follows; gone
//! when it is used up, when the file is cut or freed, or for others: a group has a few windows, and who finds no room elsewhere
//! takes blocks out of them.

use fstitch_core::{Caller, FileKind, Result};

use super::alloc::{Goal, Run, Wish};
use super::groups::Map;
use super::inode::Inode;
use super::volume::Ext2;
use crate::pending::Pending;

/// Windows of a group.
const MOST: usize = 8;
/// The smallest and the largest window, in blocks.
const SIZES: (u64, u64) = (16, 8192);
/// A window has so many clusters at least.
const CLUSTERS: u64 = 4;
/// A window is so many times as long as its file.
const TIMES: u64 = 4;
/// Allocations of more blocks than these are runs anyway.
const SMALL: u32 = 256;
/// A new window keeps away from others by so many times their length, so that these can go on where they end.
const BERTH: u32 = 4;

/// A part of a group that is kept for an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    ino: u32,
    from: u32,
    to: u32,
}

/// The windows of one group, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Windows(Vec<Window>);

impl Windows {
    /// Keeps the bits `from..to` for an inode, which has no other window here.
    pub(super) fn open(&mut self, ino: u32, from: u32, to: u32) {
        self.close(ino);
        if self.0.len() == MOST {
            self.0.remove(0);
        }
        self.0.push(Window { ino, from, to });
    }

    /// The inode has got `from..to`.
    pub(super) fn used(&mut self, ino: u32, from: u32, to: u32) {
        if let Some(window) = self.0.iter_mut().find(|window| window.ino == ino && window.from == from) {
            window.from = to;
        }
        self.0.retain(|window| window.from < window.to);
    }

    pub(super) fn close(&mut self, ino: u32) {
        self.0.retain(|window| window.ino != ino);
    }

    /// What others than `ino` keep, each with `berth` times its length behind it.
    fn of_others(&self, ino: u32, berth: u32) -> Vec<(u32, u32)> {
        let others = self.0.iter().filter(|window| window.ino != ino);
        others.map(|&Window { from, to, .. }| (from, to.saturating_add(berth * (to - from)))).collect()
    }
}

/// Bits that a search steps over, free or not.
#[derive(Debug)]
pub(super) struct Avoid<'a> {
    pending: &'a Pending,
    windows: Vec<(u32, u32)>,
}

impl<'a> Avoid<'a> {
    /// Pending ones, and the windows of others than `ino` with a berth; without one, no windows.
    pub(super) fn new(pending: &'a Pending, windows: &Windows, ino: u32, berth: Option<u32>) -> Self {
        Self { pending, windows: berth.map_or_else(Vec::new, |berth| windows.of_others(ino, berth)) }
    }

    /// A run of such bits that ends behind `at`, as start and end: the first one, or one that holds `at`.
    pub(super) fn next_from(&self, at: u32) -> Option<(u32, u32)> {
        let windows = self.windows.iter().copied().filter(|&(_, to)| to > at);
        windows.chain(self.pending.next_from(at)).min()
    }
}

impl<'a> From<&'a Pending> for Avoid<'a> {
    fn from(pending: &'a Pending) -> Self {
        Self { pending, windows: Vec::new() }
    }
}

impl Ext2 {
    /// Takes 1 to `want` blocks for file block `index`, at `goal` if that is free, and keeps what the file will need next.
    pub(super) fn take_growing(
        &self,
        caller: &Caller,
        inode: &mut Inode,
        (index, want): (u64, u32),
        goal: Goal,
    ) -> Result<Run> {
        let grows = index > 0
            && inode.disk.kind == FileKind::Regular
            && inode.last.is_some_and(|(next, _)| next == index);
        let plain = Wish::new(goal, want).of(inode.ino).low(self.maps_low(inode));
        if !grows || want > SMALL || inode.window > 0 {
            let run = self.take_wish(caller, plain)?;
            inode.window = inode.window.saturating_sub(run.count);
            return Ok(run);
        }
        let least = SIZES.0.max(CLUSTERS * u64::from(self.sb.cluster_blocks()));
        let size = TIMES * (index + u64::from(want)).next_power_of_two();
        let size = size.clamp(least, SIZES.1.max(least));
        let room = want + u32::try_from(size).expect("a window is small");
        let wishes = [
            plain.keeping((room, want + (room - want) / 4), 0).only_there(),
            plain.keeping((room, room), BERTH),
            plain.keeping((room, room / 4), 0),
        ];
        self.close_window(inode);
        for wish in wishes {
            if let Some(run) = self.try_wish(caller, wish)? {
                inode.window = room - run.count;
                return Ok(run);
            }
        }
        self.take_wish(caller, plain)
    }

    /// The file does not go on where it ended.
    pub(super) fn close_window(&self, inode: &mut Inode) {
        let Some((_, block)) = inode.last.filter(|_| std::mem::take(&mut inode.window) > 0) else { return };
        // A window that cannot be found again is for nobody; others push it out.
        if let Ok(mut open) = self.open_group(self.group_near(block), Map::Blocks) {
            open.state.windows.close(inode.ino);
        }
    }

    /// The group of the block before one that may be the end of the volume.
    fn group_near(&self, block: u64) -> u32 {
        self.sb.group_of(block.saturating_sub(1).max(self.sb.first_data_block()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_for_one_inode_and_have_a_berth() {
        let mut windows = Windows::default();
        windows.open(12, 10, 20);
        windows.open(13, 40, 44);
        let pending = Pending::default();
        let next =
            |windows: &Windows, ino, berth, at| Avoid::new(&pending, windows, ino, berth).next_from(at);
        assert_eq!(next(&windows, 13, Some(0), 0), Some((10, 20)));
        assert_eq!(next(&windows, 13, Some(0), 19), Some((10, 20)));
        assert_eq!(next(&windows, 13, Some(0), 20), None);
        assert_eq!(next(&windows, 12, Some(0), 0), Some((40, 44)));
        assert_eq!(next(&windows, 12, Some(4), 50), Some((40, 60)));
        assert_eq!(next(&windows, 12, None, 0), None);
        windows.used(12, 10, 19);
        assert_eq!(next(&windows, 1, Some(0), 0), Some((19, 20)));
        windows.used(12, 19, 20);
        windows.close(13);
        assert_eq!(next(&windows, 1, Some(0), 0), None);
    }

    #[test]
    fn the_oldest_window_goes_for_a_new_one() {
        let mut windows = Windows::default();
        (0..20).for_each(|ino| windows.open(ino, 10 * ino, 10 * ino + 5));
        assert_eq!(windows.of_others(100, 0).len(), MOST);
        assert_eq!(windows.of_others(100, 0)[0], (120, 125));
    }
}
