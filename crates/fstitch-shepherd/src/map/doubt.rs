//! Which runs of blocks are in doubt: written since their sums and copies were.
//!
//! A block of this part is sectors of 512 bytes, each of which says what it is, so that none is torn: a medium writes a sector as a whole.
//!
//! ```text
//!    0 magic "FSDB"   4 CRC32C of all but this   8 number of the sector   16 first half of the UUID   24 generation   32 bits
//! ```

use std::collections::BTreeSet;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{Le, Result};

use super::{Area, Part};

const SECTOR: usize = 512;
const HEADER: usize = 32;
const MAGIC: u32 = u32::from_le_bytes(*b"FSDB");
/// Most runs that are in doubt before anything of them is written: 16 MiB of blocks of 4 KiB, which are read in vain after a crash.
const AHEAD_MAX: u64 = 64;
/// Runs whose bits are in one sector.
pub(crate) const RUNS_IN_SECTOR: u64 = 480 * 8;

/// The runs in doubt. Those in memory are those on the medium, but for runs that are about to be cleared there.
#[derive(Debug, Default)]
pub(crate) struct Doubt {
    runs: BTreeSet<u64>,
    generation: u64,
}

impl Doubt {
    /// Reads all bits. A sector that is lost in both places has every run in doubt.
    pub(crate) fn load(area: &Area) -> Self {
        let mut doubt = Self::default();
        let runs = area.shape.runs();
        let sectors = sectors_in_block(area);
        for index in 0..area.shape.blocks(Part::Doubt) {
            let halves = [0, 1].map(|half| area.raw(half, Part::Doubt, index));
            for at in 0..sectors {
                let sector = index * sectors + at;
                let start = to_usize(at) * SECTOR;
                let found = halves.iter().flatten().map(|bytes| &bytes[start..start + SECTOR]);
                let newest = found
                    .filter(|bytes| is_sector(bytes, sector, area))
                    .max_by_key(|bytes| Le::u64(bytes, 24));
                doubt.take(sector, newest, runs);
            }
        }
        doubt
    }

    fn take(&mut self, sector: u64, bytes: Option<&[u8]>, runs: u64) {
        let first = sector * RUNS_IN_SECTOR;
        let end = (first + RUNS_IN_SECTOR).min(runs);
        match bytes {
            Some(bytes) => {
                self.generation = self.generation.max(Le::u64(bytes, 24));
                let is_set = |run: &u64| {
                    let bit = to_usize(run - first);
                    bytes[HEADER + bit / 8] & (1 << (bit % 8)) != 0
                };
                self.runs.extend((first..end).filter(is_set));
            }
            None => self.runs.extend(first..end),
        }
    }

    /// No doubt about anything, whatever the area held before; stable when it returns.
    pub(crate) fn none(area: &Area) -> Result<Self> {
        let mut doubt = Self { runs: BTreeSet::new(), ..Self::load(area) };
        let all = (0..area.shape.runs()).step_by(to_usize(RUNS_IN_SECTOR)).collect();
        doubt.write(area, &all, true)?;
        Ok(doubt)
    }

    /// Whether a run is in doubt.
    pub(crate) fn has(&self, run: u64) -> bool {
        self.runs.contains(&run)
    }

    /// All of them.
    pub(crate) fn runs(&self) -> impl Iterator<Item = u64> + '_ {
        self.runs.iter().copied()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.runs.len()
    }

    /// Some runs that are about to be in doubt, and those behind each that will be next if it is one of a row: as many as there are in the row
    /// before it, so that a stream of writes pays for few flushes, and writes here and there have nothing in doubt in vain.
    pub(crate) fn with_those_ahead(&self, area: &Area, mut runs: BTreeSet<u64>) -> BTreeSet<u64> {
        let end = area.shape.runs();
        for run in runs.clone() {
            let is_before = |other: &u64| self.has(*other) || runs.contains(other);
            let row = (run.saturating_sub(AHEAD_MAX)..run).rev().take_while(is_before).count();
            let ahead = run + 1..(run + 1 + to_u64(row)).min(end);
            runs.extend(ahead.take_while(|other| !self.has(*other)));
        }
        runs
    }

    /// Has these runs in doubt that were not, which is stable when it returns; none of them is if it fails.
    pub(crate) fn set(&mut self, area: &Area, runs: &BTreeSet<u64>) -> Result<()> {
        self.runs.extend(runs);
        let stable = self.write(area, runs, true);
        if stable.is_err() {
            // The medium may say that they are: then they are looked at in vain.
            self.runs.retain(|run| !runs.contains(run));
        }
        stable
    }

    /// Clears these. If the medium forgets it, they are looked at once more than needed.
    pub(crate) fn clear(&mut self, area: &Area, runs: &BTreeSet<u64>) -> Result<()> {
        self.runs.retain(|run| !runs.contains(run));
        self.write(area, runs, false)
    }

    fn write(&mut self, area: &Area, touched: &BTreeSet<u64>, stable: bool) -> Result<()> {
        self.generation += 1;
        let per_block = area.shape.entries(Part::Doubt);
        let indexes: BTreeSet<u64> = touched.iter().map(|run| run / per_block).collect();
        let places: Vec<(Part, u64)> = indexes.iter().map(|index| (Part::Doubt, *index)).collect();
        let blocks: Vec<Vec<u8>> = indexes.iter().map(|index| self.block(area, *index)).collect();
        if stable {
            // A sector is the old one or the new one in either place, so the two need not be apart.
            return area.write_raw(&places, &blocks, false);
        }
        area.write_unflushed(&places, &blocks);
        Ok(())
    }

    fn block(&self, area: &Area, index: u64) -> Vec<u8> {
        let sectors = sectors_in_block(area);
        let mut bytes = vec![0; to_usize(area.shape.block_size)];
        for (bytes, sector) in bytes.chunks_exact_mut(SECTOR).zip(index * sectors..) {
            let first = sector * RUNS_IN_SECTOR;
            for run in self.runs.range(first..first + RUNS_IN_SECTOR) {
                let bit = to_usize(run - first);
                bytes[HEADER + bit / 8] |= 1 << (bit % 8);
            }
            Le::put_u32(bytes, 0, MAGIC);
            Le::put_u64(bytes, 8, sector);
            bytes[16..24].copy_from_slice(&area.uuid[..8]);
            Le::put_u64(bytes, 24, self.generation);
            let sum = sum(bytes);
            Le::put_u32(bytes, 4, sum);
        }
        bytes
    }
}

fn sectors_in_block(area: &Area) -> u64 {
    u64::from(area.shape.block_size / 512)
}

fn sum(sector: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&sector[..4]), &sector[8..])
}

fn is_sector(bytes: &[u8], sector: u64, area: &Area) -> bool {
    Le::u32(bytes, 0) == MAGIC
        && Le::u64(bytes, 8) == sector
        && bytes[16..24] == area.uuid[..8]
        && Le::u32(bytes, 4) == sum(bytes)
        && Le::u64(bytes, 24) < 1 << 63
}
