//! Directories are read in the order of their numbers, and their blocks lie anywhere between contents: each is a small read somewhere
//! else. Where they are is known from pass 1, so before pass 2 comes to some of them the medium is told of all of these, in the
//! order in which they lie.

use fstitch_core::BlockNo;

use super::state::Volume;

/// Runs of blocks that are spoken of at once: at most so much is read ahead in vain, and remembered until it is wanted.
const WINDOW: usize = 8192;
/// Bytes between two runs that are read with them: less than what another request costs.
const GAP: u64 = 16 * 1024;

/// Consecutive blocks of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DirRun {
    ino: u32,
    start: u64,
    count: u32,
}

/// Where the blocks of directories are, in the order in which pass 2 reads the directories.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    runs: Vec<DirRun>,
    /// How many of them the medium has been told of.
    told: usize,
}

impl Ahead {
    /// Directory `ino` has `count` blocks from `start` on. Numbers of directories never fall.
    pub(super) fn note(&mut self, ino: u32, start: u64, count: u32) {
        match self.runs.last_mut() {
            Some(last) if last.ino == ino && last.start + u64::from(last.count) == start => {
                last.count += count
            }
            _ => self.runs.push(DirRun { ino, start, count }),
        }
    }

    /// Directory `ino` is next: where the medium has not been told of its blocks, it is of them and of those behind.
    pub(super) fn reach(&mut self, volume: &Volume<'_>, ino: u32) {
        if self.runs.get(self.told).is_none_or(|run| run.ino > ino) {
            return;
        }
        let end = self.runs.len().min(self.told + WINDOW);
        let gap = GAP / u64::from(volume.shape.block_size);
        for (start, count) in joined(&mut self.runs[self.told..end], gap) {
            volume.source.prefetch(BlockNo(start), count);
        }
        self.told = end;
    }
}

/// Starts and lengths of the runs in the order in which they lie, those at most `gap` blocks apart as one.
fn joined(runs: &mut [DirRun], gap: u64) -> Vec<(u64, u64)> {
    runs.sort_unstable_by_key(|run| run.start);
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for run in runs {
        let end = run.start + u64::from(run.count);
        match joined.last_mut() {
            Some((start, count)) if run.start <= *start + *count + gap => *count = (*count).max(end - *start),
            _ => joined.push((run.start, u64::from(run.count))),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_joined_in_the_order_in_which_they_lie() {
        let mut ahead = Ahead::default();
        ahead.note(2, 100, 1);
        ahead.note(2, 101, 2);
        ahead.note(11, 50, 1);
        ahead.note(12, 106, 1);
        ahead.note(13, 51, 4);
        ahead.note(14, 90, 30);
        assert_eq!(ahead.runs.len(), 5, "{ahead:?}");
        assert_eq!(joined(&mut ahead.runs.clone(), 0), [(50, 5), (90, 30)]);
        assert_eq!(joined(&mut ahead.runs.clone(), 34), [(50, 5), (90, 30)]);
        assert_eq!(joined(&mut ahead.runs, 35), [(50, 70)]);
    }
}
