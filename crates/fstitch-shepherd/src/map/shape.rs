//! Where the parts of the maps are in their area.

use fstitch_core::{Error, Result};

use super::block::HEADER;
use super::doubt::RUNS_IN_SECTOR;
use super::list;

/// A part of the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Head,
    Policy,
    Doubt,
    Sums,
    Owners,
    Counters,
    /// Where the blocks of the area are. It is in no half.
    List,
}

impl Part {
    /// Those of a half, in their order.
    pub(crate) const ALL: [Self; 6] =
        [Self::Head, Self::Policy, Self::Doubt, Self::Sums, Self::Owners, Self::Counters];
}

/// Bytes of a policy's text at most.
pub(crate) const POLICY_MAX: usize = 16 << 10;
/// Blocks of the volume that one bit of doubt is for.
pub(crate) const RUN: u64 = 64;

/// Sizes, from which all places follow. Counts are of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) block_size: u32,
    /// Of the volume.
    pub(crate) volume: u64,
    pub(crate) spares: u64,
    /// Blocks of each of the two lists of the area; 0 for maps that have none.
    pub(crate) list: u64,
}

impl Shape {
    /// The most spares that an area of so many blocks has room for.
    ///
    /// # Errors
    /// `Unsupported`, naming how many blocks the maps take, if there is no room for them.
    pub(crate) fn fit(block_size: u32, volume: u64, area: u64, list: u64) -> Result<Self> {
        let without = Self { block_size, volume, spares: 0, list: list.min(area) };
        let Some(room) = area.checked_sub(without.area()) else {
            let needed = without.area();
            return Err(Error::Unsupported(format!(
                "maps of {needed} blocks for a volume of {volume} in an area of {area}"
            )));
        };
        // Each block of owners is there twice.
        let each = without.entries(Part::Owners);
        let mut spares = room * each / (each + 2);
        while (Self { spares, ..without }).area() > area {
            spares -= 1;
        }
        Ok(Self { spares, ..without })
    }

    /// Bytes of a block behind its head.
    pub(crate) fn payload(&self) -> usize {
        fstitch_core::num::to_usize(self.block_size) - HEADER
    }

    /// Entries in a block of a part; of `Doubt`, runs.
    pub(crate) fn entries(&self, part: Part) -> u64 {
        let payload = fstitch_core::num::to_u64(self.payload());
        match part {
            Part::Head => 1,
            Part::Policy => payload,
            Part::Doubt => u64::from(self.block_size / 512) * RUNS_IN_SECTOR,
            Part::Sums => payload / 4,
            Part::Owners | Part::Counters => payload / 8,
            Part::List => list::entries(self.block_size),
        }
    }

    /// Blocks of a part, in one half.
    pub(crate) fn blocks(&self, part: Part) -> u64 {
        let entries = match part {
            Part::List => return self.list,
            Part::Head => 1,
            Part::Policy => fstitch_core::num::to_u64(POLICY_MAX),
            Part::Doubt => self.runs(),
            Part::Sums => self.volume,
            Part::Owners => self.spares,
            Part::Counters => fstitch_core::num::to_u64(super::counters::COUNTERS),
        };
        entries.div_ceil(self.entries(part))
    }

    /// Runs of the volume.
    pub(crate) fn runs(&self) -> u64 {
        self.volume.div_ceil(RUN)
    }

    /// Blocks of one half.
    pub(crate) fn half(&self) -> u64 {
        Part::ALL.into_iter().map(|part| self.blocks(part)).sum()
    }

    /// Blocks of the area that are in use.
    pub(crate) fn area(&self) -> u64 {
        2 * (self.half() + self.list) + self.spares
    }

    /// Where in the area a block of a part is, in half 0 or 1.
    pub(crate) fn place(&self, half: u64, part: Part, index: u64) -> u64 {
        debug_assert!(half < 2 && index < self.blocks(part));
        if part == Part::List {
            return 2 * self.half() + half * (self.list + self.spares) + index;
        }
        let before: u64 =
            Part::ALL.into_iter().take_while(|other| *other != part).map(|other| self.blocks(other)).sum();
        half * self.half() + before + index
    }

    /// Where in the area a spare is.
    pub(crate) fn spare(&self, spare: u64) -> u64 {
        debug_assert!(spare < self.spares);
        2 * self.half() + self.list + spare
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn parts_do_not_overlap_and_the_area_is_used_up() {
        for (block_size, volume, area, list) in
            [(1024, 8192, 600, 0), (4096, 100_000, 5_000, 3), (512, 10, 90, 1), (1024, 8192, 600, 5)]
        {
            let shape = Shape::fit(block_size, volume, area, list).unwrap();
            let mut seen = BTreeSet::new();
            for half in 0..2 {
                for part in Part::ALL.into_iter().chain([Part::List]) {
                    seen.extend((0..shape.blocks(part)).map(|index| shape.place(half, part, index)));
                }
            }
            seen.extend((0..shape.spares).map(|spare| shape.spare(spare)));
            let count = fstitch_core::num::to_u64(seen.len());
            assert_eq!(count, shape.area(), "nothing is twice in one place");
            assert_eq!(seen.into_iter().next_back(), Some(count - 1), "there are no gaps");
            assert!(shape.area() <= area && shape.area() + 3 > area, "{shape:?} leaves room in {area}");
        }
        let half = Shape { block_size: 1024, volume: 8192, spares: 0, list: 0 }.half();
        assert!(Shape::fit(1024, 8192, 2 * half, 0).is_ok());
        for (volume, area, list) in [(1 << 20, 100, 0), (8192, 2 * half, 1), (8192, 2 * half, u64::MAX)] {
            let refused = Shape::fit(1024, volume, area, list).unwrap_err().to_string();
            assert!(refused.contains(&format!("in an area of {area}")), "{refused}");
        }
    }
}
