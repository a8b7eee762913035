//! A file of a mounted volume as the place of another volume, whose patches become patches of the file's blocks.
//! Design: `docs/design/volumes.md`.

use std::collections::BTreeMap;
use std::sync::Arc;

use fstitch_core::lock::{Mutex, RwLock};
use fstitch_core::num::to_u64;
use fstitch_core::order::rank;
use fstitch_core::{BlockNo, Errno, Error, InodeNo, IoOp, Result, Structure};
use fstitch_patch::{Cache, Numbers, PatchId, Placement, Spot};

use crate::uhfs::{LowLevelFs, PinnedFile, Uhfs};

/// Holes are filled in aligned pieces of so many bytes.
const FILL_BYTES: usize = 64 << 10;

/// Neighbouring blocks of the file that are neighbours in the volume below as well.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: BlockNo,
    count: u64,
    /// What makes them the file's.
    after: PatchId,
}

/// The places of a file's blocks.
///
/// **Invariants.** 1. It holds every block of the file that has a place, and no other. 2. A run leaves it never. 3. `back` has what `runs`
/// has.
#[derive(Default)]
struct Runs {
    /// By the first block's number in the file.
    runs: BTreeMap<u64, Run>,
    /// The first block's number in the file and how many they are, by the first one's in the volume below.
    back: BTreeMap<u64, (u64, u64)>,
}

impl Runs {
    /// False, and nothing is entered, if the volume below has given one of the blocks to another place of the file as well.
    fn insert(&mut self, index: u64, run: Run) -> bool {
        let (start, end) = (run.start.get(), run.start.get() + run.count);
        let before = self.back.range(..end).next_back();
        if before.is_some_and(|(&first, &(at, count))| first + count > start && at != index) {
            return false;
        }
        self.runs.insert(index, run);
        self.back.insert(start, (index, run.count));
        true
    }

    /// Where a block of the file is in the volume below, and what makes it the file's.
    fn below(&self, no: BlockNo) -> Option<(BlockNo, PatchId)> {
        let (&first, run) = self.runs.range(..=no.get()).next_back()?;
        let within = no.get() - first;
        (within < run.count).then(|| (BlockNo(run.start.get() + within), run.after))
    }

    /// The number in the file of a block of the volume below.
    fn in_file(&self, below: BlockNo) -> Option<BlockNo> {
        let (&start, &(index, count)) = self.back.range(..=below.get()).next_back()?;
        let within = below.get() - start;
        (within < count).then(|| BlockNo(index + within))
    }
}

/// The runs of a file. Taken last, under any lock.
type SharedRuns = Arc<RwLock<Runs, rank::Leaf>>;

/// The numbers of a file's blocks.
struct FileNumbers {
    runs: SharedRuns,
    /// Those of the volume below.
    below: Option<Arc<dyn Numbers>>,
}

impl Numbers for FileNumbers {
    fn on_device(&self, own: BlockNo) -> Option<BlockNo> {
        let (below, _) = self.runs.read().below(own)?;
        self.below.as_ref().map_or(Some(below), |numbers| numbers.on_device(below))
    }

    fn of_volume(&self, device: BlockNo) -> Option<BlockNo> {
        let below = self.below.as_ref().map_or(Some(device), |numbers| numbers.of_volume(device))?;
        self.runs.read().in_file(below)
    }
}

/// A file that a volume is in.
pub struct Loopback<L: LowLevelFs> {
    file: PinnedFile<L>,
    read_only: bool,
    runs: SharedRuns,
    /// Held by who fills a hole.
    filling: Mutex<(), rank::Filling>,
}

impl<L: LowLevelFs> Loopback<L> {
    /// Takes the file `ino` of `outer`. Where the journal of that volume takes contents, all holes are filled now.
    ///
    /// # Errors
    /// As [`PinnedFile::new`]; `Corrupt` if the file has a block of the volume twice; `ENOSPC` where holes are filled; `EBUSY` while the log of the outer volume has contents that it
    /// does not log by itself (docs/design/patchgroups.md): a replay would bring them back.
    pub fn attach(outer: &Arc<Uhfs<L>>, ino: InodeNo, read_only: bool) -> Result<Arc<Self>> {
        let file = PinnedFile::new(outer, ino, read_only)?;
        let cache = file.cache();
        if !read_only && cache.has_logged_contents() && !cache.journals_contents() {
            return Err(Errno::BUSY.into());
        }
        let loopback = Self { file, read_only, runs: SharedRuns::default(), filling: Mutex::new(()) };
        let mut at = 0;
        while at < loopback.file.blocks() {
            at += loopback.learn(at, loopback.file.blocks() - at, PatchId::NONE)?;
        }
        if !read_only && loopback.is_logged() {
            loopback.fill_all()?;
        }
        Ok(Arc::new(loopback))
    }

    /// Whether the volume below logs what is written here.
    fn is_logged(&self) -> bool {
        self.file.cache().journals_contents()
    }

    /// Enters the run at `index` if it is one of blocks, and returns its length.
    fn learn(&self, index: u64, max: u64, after: PatchId) -> Result<u64> {
        let extent = self.file.run(index, max)?;
        if let Some(start) = extent.start {
            let run = Run { start, count: extent.count, after };
            if !self.runs.write().insert(index, run) {
                let what = format!("file block {index} is at another one's place");
                return Err(Error::corrupt(
                    Structure::Other("map of a file that a volume is in"),
                    start,
                    what,
                ));
            }
        }
        Ok(extent.count)
    }

    fn fill_all(&self) -> Result<()> {
        let mut at = 0;
        while at < self.file.blocks() {
            self.fill(BlockNo(at))?;
            at = self.run_end(at);
        }
        Ok(())
    }

    /// Behind the run that holds file block `no`.
    fn run_end(&self, no: u64) -> u64 {
        let runs = self.runs.read();
        runs.runs.range(..=no).next_back().map_or(no + 1, |(first, run)| (first + run.count).max(no + 1))
    }

    /// Blocks that are filled together.
    fn fill_blocks(&self) -> u64 {
        to_u64((FILL_BYTES / self.file.cache().block_size()).max(1))
    }

    /// The blocks around `no`, in its piece, that have no place: the first and the one behind the last.
    fn hole(&self, no: u64) -> (u64, u64) {
        let step = self.fill_blocks();
        let piece = (no / step * step, (no / step + 1) * step);
        let runs = self.runs.read();
        let before = runs.runs.range(..no).next_back().map_or(0, |(first, run)| first + run.count);
        let behind = runs.runs.range(no..).next().map_or(u64::MAX, |(&first, _)| first);
        (before.max(piece.0), behind.min(piece.1).min(self.file.blocks()))
    }

    fn locate(&self, no: BlockNo) -> Option<(BlockNo, PatchId)> {
        self.runs.read().below(no)
    }
}

impl<L: LowLevelFs> Placement for Loopback<L> {
    fn block_count(&self) -> u64 {
        self.file.blocks()
    }

    fn find(&self, no: BlockNo) -> Option<Spot> {
        let (block, after) = self.locate(no)?;
        // The zeros that filled the block came after what gives it a place farther below, and `after` after the zeros.
        let spot = self.file.cache().find(block)?;
        Some(if after == PatchId::NONE { spot } else { Spot { block: spot.block, after } })
    }

    fn fill(&self, no: BlockNo) -> Result<Spot> {
        if no.get() >= self.file.blocks() || self.read_only {
            let why =
                std::io::Error::other("the block lies outside the file, or in a hole that nobody may fill");
            return Err(Error::io(IoOp::Write, no, why));
        }
        let _filling = self.filling.lock();
        if let Some(spot) = self.find(no) {
            return Ok(spot);
        }
        let (first, end) = self.hole(no.get());
        let after = self.file.fill(first, end - first)?;
        let mut at = first;
        while at < end {
            at += self.learn(at, end - at, after)?;
        }
        self.find(no).ok_or_else(|| {
            Error::io(IoOp::Write, no, std::io::Error::other("the file has a hole where it was filled"))
        })
    }

    fn numbers(&self) -> Option<Arc<dyn Numbers>> {
        let below = self.file.cache().numbers().ok()?;
        Some(Arc::new(FileNumbers { runs: Arc::clone(&self.runs), below }))
    }

    fn logged_by(&self) -> Option<Arc<Cache>> {
        (!self.read_only && self.is_logged()).then(|| Arc::clone(self.file.cache()))
    }

    fn number_below(&self, no: BlockNo) -> Option<BlockNo> {
        self.locate(no).map(|(block, _)| block)
    }

    fn barred(&self) -> u64 {
        self.file.barred()
    }

    fn give(&self) -> Result<()> {
        self.file.give()
    }
}

impl<L: LowLevelFs> std::fmt::Debug for Loopback<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Loopback({:?})", self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_known_both_ways_and_no_block_is_in_two() {
        let run = |start, count| Run { start: BlockNo(start), count, after: PatchId::NONE };
        let mut runs = Runs::default();
        assert!(runs.insert(10, run(100, 5)) && runs.insert(0, run(200, 3)) && runs.insert(15, run(90, 10)));
        for index in (0..3).chain(10..25) {
            let (below, _) = runs.below(BlockNo(index)).expect("it has a place");
            assert_eq!(runs.in_file(below), Some(BlockNo(index)));
        }
        assert!(runs.below(BlockNo(3)).is_none() && runs.in_file(BlockNo(105)).is_none());
        // Overlapping at either end, within and around.
        for (start, count) in [(98, 3), (104, 2), (102, 1), (199, 9), (0, 91)] {
            assert!(!runs.insert(40, run(start, count)), "{start}, {count}");
        }
        assert!(runs.below(BlockNo(40)).is_none());
        assert!(runs.insert(10, run(100, 5)), "what is known already");
    }
}
