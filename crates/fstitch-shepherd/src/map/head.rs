//! The head of the maps: what volume they are of, what it is to follow, and whether anybody else has written to it.
//!
//! ```text
//!    0 blocks of the volume   8 spares   16 bytes of the policy's text   20 in use (1) or not   24 two seals   32 sealed sectors: count   36 blocks that are lost
//!   40 their numbers, at most 4   72 blocks of the maps that are in spares: count   76 0   80 at most 16 pairs of place and spare, 4 each
//!  208 bytes of a block   212 blocks of each list of the area   216 the first block of the one   224 of the other   (0 without lists)
//! ```
//!
//! A **seal** is the sum of sectors of 512 bytes that every program writes when it writes anything: where a volume's superblock has its
//! times and its state. While the volume is in use two are kept, of what these sectors are and of what they are about to be, so that after
//! a crash one of them fits: a medium writes a sector as a whole, and there is a flush between two changes of sealed sectors.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockKind, BlockNo, Error, Le, Result, Structure};

use super::area::MapWrite;
use super::shape::POLICY_MAX;
use super::{Area, Part, block};

/// How often a sealed sector is asked for before it counts as unreadable.
const SEAL_READS: u32 = 4;
/// Most sectors that are sealed.
pub(crate) const SEALED_MAX: usize = 4;
/// Most blocks of the maps that can be in spares.
pub(crate) const RELOCATED_MAX: usize = 16;
const RELOCATED: usize = 40 + 8 * SEALED_MAX;
const LIST: usize = RELOCATED + 8 + 8 * RELOCATED_MAX;
const CONTENTS: usize = LIST + 24;

/// What the head says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) volume: u64,
    pub(crate) spares: u64,
    pub(crate) policy_len: u32,
    pub(crate) in_use: bool,
    pub(crate) seals: [u32; 2],
    /// Blocks that are marked as lost.
    pub(crate) lost: u32,
    /// Numbers of sectors of the volume.
    pub(crate) sealed: Vec<u64>,
    /// Places in the area that cannot be written, and the spares that their blocks are in.
    pub(crate) relocated: Vec<(u32, u32)>,
    /// Where the lists of the area begin, if it has any.
    pub(crate) lists: Option<Lists>,
    pub(crate) generation: u64,
}

/// Where it is said which blocks the area has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lists {
    pub(crate) block_size: u32,
    /// Blocks of each.
    pub(crate) blocks: u32,
    /// The first block of each.
    pub(crate) first: [BlockNo; 2],
}

impl Lists {
    /// Those of an area.
    pub(crate) fn of(area: &Area) -> Option<Self> {
        let blocks = u32::try_from(area.shape.list).ok().filter(|blocks| *blocks > 0)?;
        let first = [0, 1].map(|half| area.at(area.shape.place(half, Part::List, 0)));
        Some(Self { block_size: area.shape.block_size, blocks, first })
    }

    fn parse(contents: &[u8]) -> Option<Self> {
        if contents.len() < CONTENTS {
            return None;
        }
        let block_size = Le::u32(contents, LIST);
        let first = [LIST + 8, LIST + 16].map(|at| BlockNo(Le::u64(contents, at)));
        Some(Self { block_size, blocks: Le::u32(contents, LIST + 4), first }).filter(|_| block_size > 0)
    }

    fn put(self, contents: &mut [u8]) {
        Le::put_u32(contents, LIST, self.block_size);
        Le::put_u32(contents, LIST + 4, self.blocks);
        for (at, first) in [LIST + 8, LIST + 16].into_iter().zip(self.first) {
            Le::put_u64(contents, at, first.get());
        }
    }
}

fn corrupt(area: &Area, problem: &str) -> Error {
    let first = area.blocks.first().copied();
    Error::corrupt(Structure::Other("maps of the shepherd"), first, problem)
}

impl Head {
    /// Reads it.
    ///
    /// # Errors
    /// `Corrupt` if neither copy is whole.
    pub(crate) fn read(area: &Area) -> Result<Self> {
        let (generation, contents) =
            area.read(Part::Head, 0).ok_or_else(|| corrupt(area, "neither head is whole"))?;
        let count = to_usize(Le::u32(&contents, 32)).min(SEALED_MAX);
        let head = Self {
            volume: Le::u64(&contents, 0),
            spares: Le::u64(&contents, 8),
            policy_len: Le::u32(&contents, 16),
            in_use: Le::u32(&contents, 20) == 1,
            seals: [Le::u32(&contents, 24), Le::u32(&contents, 28)],
            lost: Le::u32(&contents, 36),
            sealed: (0..count).map(|at| Le::u64(&contents, 40 + 8 * at)).collect(),
            relocated: (0..to_usize(Le::u32(&contents, RELOCATED)).min(RELOCATED_MAX))
                .map(|at| RELOCATED + 8 + 8 * at)
                .map(|at| (Le::u32(&contents, at), Le::u32(&contents, at + 4)))
                .collect(),
            lists: Lists::parse(&contents),
            generation,
        };
        Ok(head)
    }

    /// The text of the policy.
    ///
    /// # Errors
    /// `Corrupt` if a block of it is lost in both places.
    pub(crate) fn text(&self, area: &Area) -> Result<String> {
        let len = to_usize(self.policy_len);
        if len > POLICY_MAX {
            return Err(corrupt(area, "the policy is longer than any"));
        }
        let mut bytes = Vec::new();
        for index in 0..to_u64(len).div_ceil(to_u64(area.shape.payload())) {
            let found = area
                .read(Part::Policy, index)
                .ok_or_else(|| corrupt(area, "the policy is lost in both places"))?;
            bytes.extend(found.1);
        }
        bytes.truncate(len);
        String::from_utf8(bytes).map_err(|_| corrupt(area, "the policy is no text"))
    }

    /// The head as a block of its next generation.
    pub(crate) fn next_write(&mut self) -> MapWrite {
        self.generation += 1;
        let mut contents = vec![0; CONTENTS];
        Le::put_u64(&mut contents, 0, self.volume);
        Le::put_u64(&mut contents, 8, self.spares);
        Le::put_u32(&mut contents, 16, self.policy_len);
        Le::put_u32(&mut contents, 20, u32::from(self.in_use));
        Le::put_u32(&mut contents, 24, self.seals[0]);
        Le::put_u32(&mut contents, 28, self.seals[1]);
        let count = u32::try_from(self.sealed.len()).expect("few blocks are sealed");
        Le::put_u32(&mut contents, 32, count);
        Le::put_u32(&mut contents, 36, self.lost);
        for (at, sector) in self.sealed.iter().enumerate() {
            Le::put_u64(&mut contents, 40 + 8 * at, *sector);
        }
        let count = u32::try_from(self.relocated.len()).expect("few are in spares");
        Le::put_u32(&mut contents, RELOCATED, count);
        for (at, (place, spare)) in self.relocated.iter().enumerate() {
            Le::put_u32(&mut contents, RELOCATED + 8 + 8 * at, *place);
            Le::put_u32(&mut contents, RELOCATED + 12 + 8 * at, *spare);
        }
        if let Some(lists) = self.lists {
            lists.put(&mut contents);
        }
        MapWrite { part: Part::Head, index: 0, generation: self.generation, contents }
    }

    /// The text of a policy as blocks.
    pub(crate) fn policy_writes(area: &Area, text: &str) -> Vec<MapWrite> {
        let pieces = text.as_bytes().chunks(area.shape.payload());
        let write = |(index, piece): (u64, &[u8])| {
            let generation = area.read(Part::Policy, index).map_or(0, |(generation, _)| generation) + 1;
            MapWrite { part: Part::Policy, index, generation, contents: piece.to_vec() }
        };
        (0..).zip(pieces).map(write).collect()
    }

    /// The block of a sealed sector, and where in it the sector begins.
    fn place(area: &Area, sector: u64) -> (BlockNo, usize) {
        let in_block = u64::from(area.shape.block_size / 512);
        (BlockNo(sector / in_block), 512 * to_usize(sector % in_block))
    }

    /// Whether a block has a sealed sector.
    pub(crate) fn seals(&self, area: &Area, block: BlockNo) -> bool {
        let in_block = u64::from(area.shape.block_size / 512);
        let first = block.get().saturating_mul(in_block);
        self.sealed.iter().any(|sector| sector.wrapping_sub(first) < in_block)
    }

    /// The seal of the sealed sectors as they are on the medium, or with `instead` in place of some blocks; `None` if one cannot be read.
    pub(crate) fn seal(&self, area: &Area, instead: &[(BlockNo, &[u8])]) -> Option<u32> {
        let mut sum = crc32c::crc32c(&area.uuid);
        for (block, at) in self.sealed.iter().map(|sector| Self::place(area, *sector)) {
            sum = match instead.iter().find(|(other, _)| *other == block) {
                Some((_, data)) => crc32c::crc32c_append(sum, &data[at..at + 512]),
                // Somebody else writes it at home, wherever we do.
                None => {
                    let read = || area.read_home(block, BlockKind::Superblock).ok();
                    let data = (0..SEAL_READS).find_map(|_| read())?;
                    crc32c::crc32c_append(sum, &data[at..at + 512])
                }
            };
        }
        Some(sum)
    }
}

/// What a head says to who does not know yet what volume it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) uuid: [u8; 16],
    /// Blocks of the volume.
    pub(crate) volume: u64,
    pub(crate) lists: Option<Lists>,
}

/// What a block says if it is a head.
pub(crate) fn named(bytes: &[u8]) -> Option<Named> {
    let (identity, contents) = block::head(bytes)?;
    let lists = Lists::parse(contents);
    // One of the new version without a list, or the reverse, nobody has written.
    let is_sound = lists.is_some() == (identity.version == block::LISTED);
    is_sound.then(|| Named { uuid: identity.uuid, volume: Le::u64(contents, 0), lists })
}

/// Bytes of a block, as what begins as a head says it.
pub(crate) fn block_size(bytes: &[u8]) -> Option<u32> {
    bytes.get(block::HEADER..).and_then(Lists::parse).map(|lists| lists.block_size)
}
