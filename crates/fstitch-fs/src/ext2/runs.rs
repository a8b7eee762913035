//! Sets of blocks as runs.

/// Blocks: runs from one number up to another, sorted and apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Runs(Vec<(u64, u64)>);

impl Runs {
    /// The blocks of runs that may be in any order and overlap.
    pub(crate) fn of(mut runs: Vec<(u64, u64)>) -> Self {
        runs.retain(|&(start, end)| start < end);
        runs.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for (start, end) in runs {
            match joined.last_mut() {
                Some((_, last)) if *last >= start => *last = (*last).max(end),
                _ => joined.push((start, end)),
            }
        }
        Self(joined)
    }

    /// What `start..end` has of them, in order.
    pub(crate) fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let first = self.0.partition_point(|&(_, run_end)| run_end <= start);
        let runs = self.0[first..].iter().take_while(move |&&(run_start, _)| run_start < end);
        runs.map(move |&(run_start, run_end)| (run_start.max(start), run_end.min(end)))
    }

    /// The end of the run that holds `block`, if there is one.
    pub(crate) fn holds(&self, block: u64) -> Option<u64> {
        let at = self.0.partition_point(|&(_, end)| end <= block);
        self.0.get(at).filter(|&&(start, _)| start <= block).map(|&(_, end)| end)
    }

    /// What is here and not in `other`.
    pub(crate) fn without(&self, other: &Self) -> Self {
        let mut left = Vec::new();
        let mut others = other.0.iter().peekable();
        for &(start, end) in &self.0 {
            let mut at = start;
            while let Some(&&(other_start, other_end)) = others.peek() {
                if other_start >= end {
                    break;
                }
                left.push((at, other_start.max(at)));
                at = at.max(other_end);
                if other_end > end {
                    break;
                }
                others.next();
            }
            left.push((at.min(end), end));
        }
        Self::of(left)
    }

    /// All blocks, in order.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().flat_map(|&(start, end)| start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_joined_and_searched() {
        let runs = Runs::of(vec![(5, 7), (1, 3), (2, 4), (7, 9), (20, 20)]);
        assert_eq!(runs, Runs(vec![(1, 4), (5, 9)]));
        assert_eq!(
            [0, 1, 3, 4, 8, 9].map(|block| runs.holds(block)),
            [None, Some(4), Some(4), None, Some(9), None]
        );
    }

    #[test]
    fn what_is_left_is_what_single_blocks_say() {
        let mut seed = fstitch_core::Seed::new(7);
        for _ in 0..2000 {
            let mut any = || {
                let mut runs = Vec::new();
                for _ in 0..seed.below(5) {
                    let start = seed.below(40);
                    runs.push((start, start + seed.below(12)));
                }
                Runs::of(runs)
            };
            let (one, other) = (any(), any());
            let expected: Vec<u64> = one.blocks().filter(|&block| other.holds(block).is_none()).collect();
            assert_eq!(one.without(&other).blocks().collect::<Vec<_>>(), expected, "{one:?} {other:?}");
        }
    }
}
