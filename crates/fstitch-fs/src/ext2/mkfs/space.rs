//! Which blocks of a new volume are taken: ranges, since almost everything is.

use std::collections::BTreeMap;

/// Ranges of blocks that are taken, by their first block; no two of them touch.
#[derive(Clone, Debug, Default)]
pub(super) struct Space {
    ranges: BTreeMap<u64, u64>,
}

impl Space {
    /// Takes `len` blocks from `start` on, of which none is taken yet.
    pub(super) fn take(&mut self, start: u64, len: u64) {
        if len == 0 {
            return;
        }
        debug_assert_eq!(self.free_from(start, start + len), Some((start, start + len)), "taken twice");
        let (mut start, mut end) = (start, start + len);
        if let Some((&before, &its_end)) = self.ranges.range(..start).next_back()
            && its_end == start
        {
            self.ranges.remove(&before);
            start = before;
        }
        if let Some(behind) = self.ranges.remove(&end) {
            end = behind;
        }
        self.ranges.insert(start, end);
    }

    /// The same ranges, each made larger by `whole`.
    pub(super) fn widened(&self, whole: impl Fn((u64, u64)) -> (u64, u64)) -> Self {
        let mut ranges: BTreeMap<u64, u64> = BTreeMap::new();
        for (start, end) in self.ranges.iter().map(|(&start, &end)| whole((start, end))) {
            match ranges.last_entry() {
                Some(mut last) if *last.get() >= start => {
                    let end = end.max(*last.get());
                    last.insert(end);
                }
                _ => drop(ranges.insert(start, end)),
            }
        }
        Self { ranges }
    }

    /// The first free range in `from..to`.
    fn free_from(&self, from: u64, to: u64) -> Option<(u64, u64)> {
        let mut at = from;
        if let Some((_, &end)) = self.ranges.range(..=at).next_back() {
            at = at.max(end);
        }
        // No two ranges touch, so behind one something is free.
        let end = self.ranges.range(at..).next().map_or(to, |(&next, _)| next.min(to));
        (at < end).then_some((at, end))
    }

    /// The first place in `from..to` with `len` free blocks.
    pub(super) fn find(&self, from: u64, to: u64, len: u64) -> Option<u64> {
        let mut at = from;
        while let Some((start, end)) = self.free_from(at, to) {
            if end - start >= len {
                return Some(start);
            }
            at = end;
        }
        None
    }

    /// What is taken of `from..to`, as ranges.
    pub(super) fn taken(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let first = self.ranges.range(..=from).next_back().map_or(from, |(&start, _)| start);
        self.ranges
            .range(first..to)
            .map(|(&start, &end)| (start.max(from), end.min(to)))
            .filter(|(start, end)| start < end)
            .collect()
    }

    /// How many blocks are taken.
    pub(super) fn count(&self) -> u64 {
        self.ranges.iter().map(|(start, end)| end - start).sum()
    }
}

#[cfg(test)]
mod tests {
    use fstitch_core::Seed;

    use super::*;

    #[test]
    fn ranges_agree_with_a_flag_for_each_block() {
        let mut seed = Seed::new(7);
        for _ in 0..200 {
            let (mut space, mut flags) = (Space::default(), [false; 100]);
            for _ in 0..20 {
                let (from, len) = (seed.below(100), 1 + seed.below(8));
                let is_free = |at: u64| !flags[usize::try_from(at).unwrap()];
                let expected = (from..=100 - len).find(|&at| (at..at + len).all(is_free));
                assert_eq!(space.find(from, 100, len), expected);
                if let Some(at) = expected {
                    space.take(at, len);
                    (at..at + len).for_each(|at| flags[usize::try_from(at).unwrap()] = true);
                }
            }
            let taken: Vec<u64> = space.taken(10, 90).iter().flat_map(|&(from, to)| from..to).collect();
            let expected: Vec<u64> = (10..90).filter(|&at| flags[usize::try_from(at).unwrap()]).collect();
            assert_eq!(taken, expected);
            assert_eq!(space.count(), u64::try_from(flags.iter().filter(|flag| **flag).count()).unwrap());
        }
    }
}
