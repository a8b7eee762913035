//! The segments: how much of each is in use, and which are free.

use fstitch_core::num::to_usize;
use fstitch_core::{Errno, Le, Result};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::shape::Shape;
use crate::state::Room;
use crate::tree::Fixed;

/// Contents on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The block of the device where they begin.
    pub(crate) place: u64,
    /// Blocks of the device that they take.
    pub(crate) len: u32,
    /// CRC-32C of them.
    pub(crate) sum: u32,
}

/// What a segment is used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Blocks of the device that somebody refers to.
    pub(crate) live: u32,
    /// The last chunk of the log that was written to it, or refers to what is in it.
    pub(crate) newest: u64,
    /// The chunk that was the newest one when the youngest of its data were written by a client.
    pub(crate) age: u64,
}

/// All segments.
pub(crate) struct Segments {
    shape: Shape,
    pub(crate) usage: Vec<Usage>,
    /// Of each that has changed since the last checkpoint.
    pub(crate) changed: FxHashSet<u64>,
    /// Those that may be written, the next one last.
    pub(crate) free: Vec<u64>,
    /// Blocks of the device that are in use in all of them.
    pub(crate) live: u64,
    /// Those of which it is known that nothing in them can be packed any more.
    pub(crate) packed: FxHashSet<u64>,
}

impl Segments {
    pub(crate) fn new(shape: Shape) -> Self {
        let usage = vec![Usage::default(); to_usize(shape.segments)];
        Self {
            shape,
            usage,
            changed: FxHashSet::default(),
            free: Vec::new(),
            live: 0,
            packed: FxHashSet::default(),
        }
    }

    /// Takes the next one that is free.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub(crate) fn take(&mut self) -> Result<u64> {
        let taken = self.free.pop().ok_or(Errno::NOSPC)?;
        self.packed.remove(&taken);
        Ok(taken)
    }

    fn at(&mut self, place: u64) -> &mut Usage {
        let segment = self.shape.segment_of(place).expect("places were checked where they were read");
        self.changed.insert(segment);
        &mut self.usage[to_usize(segment)]
    }

    /// A chunk of the log was written around that place.
    pub(crate) fn written(&mut self, place: u64, number: u64) {
        let usage = self.at(place);
        (usage.newest, usage.age) = (number, number);
    }

    /// A chunk refers to data at that place: they must be there as long as the chunk may be needed.
    pub(crate) fn referred(&mut self, place: u64, number: u64) {
        let usage = self.at(place);
        usage.newest = usage.newest.max(number);
    }

    /// Data of that age were written around that place, and no part of the log.
    pub(crate) fn aged(&mut self, place: u64, age: u64) {
        let usage = self.at(place);
        usage.age = if usage.live == 0 { age } else { usage.age.max(age) };
    }

    /// Finds those that are free: nothing in them is in use, and no chunk that is not older than `number`.
    pub(crate) fn find_free(&mut self, number: u64, taken: &[u64]) {
        let is_free = |&segment: &u64| {
            let usage = self.usage[to_usize(segment)];
            usage.live == 0 && usage.newest < number && !taken.contains(&segment)
        };
        self.free = (0..self.shape.segments).rev().filter(is_free).collect();
    }
}

impl Room for Segments {
    fn used(&mut self, place: u64, len: u32) {
        self.at(place).live += len;
        self.live += u64::from(len);
    }

    fn left(&mut self, place: u64, len: u32) {
        let usage = self.at(place);
        usage.live = usage.live.checked_sub(len).expect("what was used is left once");
        self.live -= u64::from(len);
    }
}

impl Fixed for Usage {
    const SIZE: usize = 20;

    fn put(&self, bytes: &mut [u8]) {
        Le::put_u32(bytes, 0, self.live);
        Le::put_u64(bytes, 4, self.newest);
        Le::put_u64(bytes, 12, self.age);
    }

    fn get(bytes: &[u8]) -> Self {
        Self { live: Le::u32(bytes, 0), newest: Le::u64(bytes, 4), age: Le::u64(bytes, 12) }
    }
}

/// Blocks of the device that somebody takes who is in nobody's count, by segment.
#[derive(Default)]
pub(crate) struct Own {
    by_segment: FxHashMap<u64, u32>,
    pub(crate) all: u64,
}

impl Own {
    pub(crate) fn of(&self, segment: u64) -> u32 {
        self.by_segment.get(&segment).copied().unwrap_or(0)
    }

    pub(crate) fn used(&mut self, segment: u64, units: u32) {
        *self.by_segment.entry(segment).or_default() += units;
        self.all += u64::from(units);
    }

    pub(crate) fn left(&mut self, segment: u64, units: u32) {
        let count = self.by_segment.get_mut(&segment).expect("what was used is left once");
        *count -= units;
        if *count == 0 {
            self.by_segment.remove(&segment);
        }
        self.all -= u64::from(units);
    }
}
