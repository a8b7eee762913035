//! Where the blocks of a journal are on its device.

use fstitch_core::{BlockNo, Error, Result, Structure};

/// Neighbouring blocks of the journal that are neighbours on the device as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// The first one's number in the journal.
    first: u64,
    /// The first one's number on the device.
    start: u64,
    count: u64,
}

/// The journal's blocks on its device: a file's, or a whole device's.
///
/// **Invariants.** 1. Runs follow each other without gaps in the journal's numbers. 2. No block of the device is in
/// two runs: `by_start` is sorted and disjoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    runs: Vec<Run>,
    /// Indexes of `runs` in the order of their starts.
    by_start: Vec<usize>,
    superblock: u64,
}

impl Area {
    /// A journal that is a file: its blocks in order, as runs of (first block on the device, number of blocks). The
    /// superblock is the first one.
    ///
    /// # Errors
    /// `Corrupt` if a block is there twice or a run leaves what can be numbered.
    pub fn of_file(runs: impl IntoIterator<Item = (BlockNo, u64)>) -> Result<Self> {
        let mut area = Self { runs: Vec::new(), by_start: Vec::new(), superblock: 0 };
        for (start, count) in runs {
            area.push(start.get(), count)?;
        }
        area.by_start = (0..area.runs.len()).collect();
        area.by_start.sort_by_key(|&at| area.runs[at].start);
        let overlap = area.by_start.windows(2).find(|pair| {
            let (one, two) = (&area.runs[pair[0]], &area.runs[pair[1]]);
            one.start + one.count > two.start
        });
        match overlap {
            Some(pair) => {
                let block = BlockNo(area.runs[pair[1]].start);
                Err(damaged(format!("block {block} is there twice")))
            }
            None => Ok(area),
        }
    }

    /// A journal that has a device of `count` blocks for itself, with its superblock in block `superblock`.
    #[must_use]
    pub fn of_device(count: u64, superblock: BlockNo) -> Self {
        Self {
            runs: vec![Run { first: 0, start: 0, count }],
            by_start: vec![0],
            superblock: superblock.get(),
        }
    }

    /// The same journal on a device that begins with `blocks` other blocks.
    ///
    /// # Errors
    /// `Corrupt` if its blocks can then not be numbered.
    pub fn behind(&self, blocks: u64) -> Result<Self> {
        let moved = |run: &Run| Some((BlockNo(run.start.checked_add(blocks)?), run.count));
        let runs: Option<Vec<_>> = self.runs.iter().map(moved).collect();
        let runs = runs.ok_or_else(|| damaged(format!("blocks behind {blocks} others")))?;
        Ok(Self { superblock: self.superblock, ..Self::of_file(runs)? })
    }

    fn push(&mut self, start: u64, count: u64) -> Result<()> {
        if start.checked_add(count).is_none() {
            return Err(damaged(format!("{count} blocks from block {start} on")));
        }
        let first = self.count();
        match self.runs.last_mut() {
            Some(last) if last.start + last.count == start => last.count += count,
            _ if count == 0 => {}
            _ => self.runs.push(Run { first, start, count }),
        }
        Ok(())
    }

    /// Blocks of the journal.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.runs.last().map_or(0, |last| last.first + last.count)
    }

    /// The block on the device that holds the journal's superblock.
    ///
    /// # Errors
    /// `Corrupt` if the journal is too short to have one.
    pub fn superblock(&self) -> Result<BlockNo> {
        self.map(self.superblock)
    }

    /// The block on the device that is block `no` of the journal.
    ///
    /// # Errors
    /// `Corrupt` if the journal has no such block.
    pub fn map(&self, no: u64) -> Result<BlockNo> {
        let behind = self.runs.partition_point(|run| run.first <= no);
        let run = behind.checked_sub(1).map(|at| self.runs[at]).filter(|run| no - run.first < run.count);
        match run {
            Some(run) => Ok(BlockNo(run.start + (no - run.first))),
            None => Err(damaged(format!("block {no} of a journal of {} blocks", self.count()))),
        }
    }

    /// Whether block `no` of the device belongs to the journal.
    #[must_use]
    pub fn contains(&self, no: BlockNo) -> bool {
        let behind = self.by_start.partition_point(|&at| self.runs[at].start <= no.get());
        let run = behind.checked_sub(1).map(|at| self.runs[self.by_start[at]]);
        run.is_some_and(|run| no.get() - run.start < run.count)
    }

    /// The runs, in the order of the journal: first block on the device, number of blocks.
    pub fn runs(&self) -> impl Iterator<Item = (BlockNo, u64)> {
        self.runs.iter().map(|run| (BlockNo(run.start), run.count))
    }
}

fn damaged(problem: String) -> Error {
    Error::corrupt(Structure::JournalArea, None, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_in_pieces_is_mapped() {
        let runs = [(BlockNo(100), 3), (BlockNo(103), 2), (BlockNo(50), 4), (BlockNo(9), 0)];
        let area = Area::of_file(runs).unwrap();
        assert_eq!(area.count(), 9);
        assert_eq!(area.runs().count(), 2);
        assert_eq!(area.superblock().unwrap(), BlockNo(100));
        assert_eq!(area.map(4).unwrap(), BlockNo(104));
        assert_eq!(area.map(5).unwrap(), BlockNo(50));
        assert!(area.map(9).is_err());
        for (no, inside) in [(49, false), (50, true), (53, true), (54, false), (104, true), (105, false)] {
            assert_eq!(area.contains(BlockNo(no)), inside, "{no}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(Area::of_file([(BlockNo(5), 3), (BlockNo(1), 1), (BlockNo(7), 1)]).is_err());
        assert!(Area::of_file([(BlockNo(u64::MAX), 2)]).is_err());
        assert!(Area::of_file([]).unwrap().superblock().is_err());
        assert!(Area::of_file([]).unwrap().map(0).is_err());
    }

    #[test]
    fn a_journal_moves_with_its_device() {
        let area = Area::of_device(50, BlockNo(2)).behind(1000).unwrap();
        assert_eq!((area.superblock().unwrap(), area.map(49).unwrap()), (BlockNo(1002), BlockNo(1049)));
        assert!(!area.contains(BlockNo(999)) && area.contains(BlockNo(1000)));
        assert!(area.behind(u64::MAX - 10).is_err());
    }

    #[test]
    fn a_device_is_its_own_map() {
        let area = Area::of_device(4096, BlockNo(1));
        assert_eq!((area.superblock().unwrap(), area.map(77).unwrap()), (BlockNo(1), BlockNo(77)));
        assert!(area.map(4096).is_err());
    }
}
