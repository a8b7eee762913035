//! The sum of each block of the volume.

use std::collections::BTreeMap;

use fstitch_core::num::to_usize;
use fstitch_core::{BlockNo, Le};

use super::area::MapWrite;
use super::{Area, Part};

/// In place of the sum of a block of which nothing is left.
pub(crate) const LOST: u32 = u32::MAX;

/// The sum of a block: it names the volume and the block, so that a block of another place does not fit. Never 0, and never [`LOST`].
pub(crate) fn sum_of(uuid: &[u8; 16], block: BlockNo, data: &[u8]) -> u32 {
    let mut head = [0; 24];
    head[..16].copy_from_slice(uuid);
    Le::put_u64(&mut head, 16, block.get());
    crc32c::crc32c_append(crc32c::crc32c(&head), data).clamp(1, LOST - 1)
}

/// A block of the map in memory.
struct Page {
    generation: u64,
    contents: Vec<u8>,
    /// Not on the medium yet.
    is_dirty: bool,
}

/// The sums; as many blocks of the map as may be are in memory, and all that are not on the medium yet.
pub(crate) struct Sums {
    pages: BTreeMap<u64, Page>,
    pages_max: usize,
    /// How many of them are not.
    dirty: u64,
    /// What is on the medium is of no use.
    is_blank: bool,
    /// Blocks of the map that are lost in both places: what they said is not known any more.
    pub(crate) lost_pages: u64,
}

impl Sums {
    /// With so many blocks of the map in memory at most, but for those that must be there.
    pub(crate) fn new(pages_max: usize) -> Self {
        Self { pages: BTreeMap::new(), pages_max: pages_max.max(1), dirty: 0, is_blank: false, lost_pages: 0 }
    }

    /// The same, of a volume of which no sums are known, whatever the medium says.
    pub(crate) fn blank(pages_max: usize) -> Self {
        Self { is_blank: true, ..Self::new(pages_max) }
    }

    fn page(&mut self, area: &Area, index: u64) -> &mut Page {
        if !self.pages.contains_key(&index) {
            self.make_room();
            let found = if self.is_blank { None } else { area.read(Part::Sums, index) };
            let (generation, contents) = found.unwrap_or_else(|| {
                self.lost_pages += u64::from(!self.is_blank);
                (0, vec![0; area.shape.payload()])
            });
            self.pages.insert(index, Page { generation, contents, is_dirty: false });
        }
        self.pages.get_mut(&index).expect("it was there or has just been put there")
    }

    fn make_room(&mut self) {
        while self.pages.len() >= self.pages_max {
            let Some(clean) = self.pages.iter().find(|(_, page)| !page.is_dirty).map(|(index, _)| *index)
            else {
                return;
            };
            self.pages.remove(&clean);
        }
    }

    fn place(area: &Area, block: BlockNo) -> (u64, usize) {
        let entries = area.shape.entries(Part::Sums);
        (block.get() / entries, 4 * to_usize(block.get() % entries))
    }

    /// The sum of a block; 0 if none is known.
    pub(crate) fn get(&mut self, area: &Area, block: BlockNo) -> u32 {
        let (index, at) = Self::place(area, block);
        Le::u32(&self.page(area, index).contents, at)
    }

    /// Notes the sum of a block; 0 for none.
    pub(crate) fn set(&mut self, area: &Area, block: BlockNo, sum: u32) {
        let (index, at) = Self::place(area, block);
        let page = self.page(area, index);
        if Le::u32(&page.contents, at) != sum {
            Le::put_u32(&mut page.contents, at, sum);
            let was_dirty = std::mem::replace(&mut page.is_dirty, true);
            self.dirty += u64::from(!was_dirty);
        }
    }

    /// What the medium says counts again, but for blocks of which nothing is left.
    pub(crate) fn go_back(&mut self, area: &Area) {
        let entries = area.shape.entries(Part::Sums);
        self.dirty = 0;
        for (index, page) in std::mem::take(&mut self.pages) {
            let sums = page.contents.chunks_exact(4).zip(index * entries..);
            for (_, block) in sums.filter(|(sum, _)| page.is_dirty && Le::u32(sum, 0) == LOST) {
                self.set(area, BlockNo(block), LOST);
            }
        }
    }

    /// All that is not on the medium yet, in its next generation.
    pub(crate) fn next_writes(&mut self) -> Vec<MapWrite> {
        let dirty = self.pages.iter_mut().filter(|(_, page)| page.is_dirty);
        dirty
            .map(|(index, page)| {
                page.generation += 1;
                MapWrite {
                    part: Part::Sums,
                    index: *index,
                    generation: page.generation,
                    contents: page.contents.clone(),
                }
            })
            .collect()
    }

    /// What [`Sums::next_writes`] gave is on the medium.
    pub(crate) fn written(&mut self) {
        for page in self.pages.values_mut() {
            page.is_dirty = false;
        }
        self.dirty = 0;
        self.make_room();
    }

    /// Blocks of the map that wait to be written.
    pub(crate) fn dirty(&self) -> u64 {
        self.dirty
    }
}
