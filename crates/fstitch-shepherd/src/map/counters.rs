//! What has happened to a volume since it follows its policy, by kind of block.

use fstitch_core::Le;
use fstitch_core::num::{to_u64, to_usize};

use super::area::MapWrite;
use super::{Area, Part};
use crate::engine::Trouble;
use crate::policy::Kind;

/// Counters that there are: of each kind each trouble.
pub(crate) const COUNTERS: usize = Kind::ALL.len() * Trouble::ALL.len();

/// The counters as they were when the volume was opened.
pub(crate) struct Counters {
    before: Vec<u64>,
    /// What the medium says.
    said: Vec<u64>,
    generations: Vec<u64>,
}

impl Counters {
    /// Reads them; those of a block that is lost in both places begin anew.
    pub(crate) fn load(area: &Area) -> Self {
        let entries = area.shape.entries(Part::Counters);
        let mut before = vec![0; COUNTERS];
        let mut generations = Vec::new();
        for index in 0..area.shape.blocks(Part::Counters) {
            let found = area.read(Part::Counters, index);
            generations.push(found.as_ref().map_or(0, |(generation, _)| *generation));
            let Some((_, contents)) = found else { continue };
            let first = to_usize(index * entries);
            for (counter, word) in before.iter_mut().skip(first).zip(contents.chunks_exact(8)) {
                *counter = Le::u64(word, 0);
            }
        }
        Self { said: before.clone(), before, generations }
    }

    /// All of them 0.
    pub(crate) fn none(area: &Area) -> Self {
        Self { before: vec![0; COUNTERS], ..Self::load(area) }
    }

    /// All that has happened: before, and since.
    pub(crate) fn total(&self, since: &[u64]) -> Vec<u64> {
        self.before.iter().zip(since).map(|(before, since)| before.saturating_add(*since)).collect()
    }

    /// What the medium does not say yet, in its next generation.
    pub(crate) fn next_writes(&mut self, area: &Area, since: &[u64]) -> Vec<MapWrite> {
        let total = self.total(since);
        let entries = to_usize(area.shape.entries(Part::Counters));
        let mut writes = Vec::new();
        for (index, (new, old)) in total.chunks(entries).zip(self.said.chunks(entries)).enumerate() {
            if new != old || self.generations[index] == 0 {
                self.generations[index] += 1;
                let contents = new.iter().flat_map(|counter| counter.to_le_bytes()).collect();
                let generation = self.generations[index];
                writes.push(MapWrite { part: Part::Counters, index: to_u64(index), generation, contents });
            }
        }
        self.said = total;
        writes
    }
}
