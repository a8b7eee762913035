//! What each disk says of the array that it belongs to. Every byte: `docs/spec/disks.md`.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{Error, Le, Result};

const MAGIC: u32 = u32::from_le_bytes(*b"FSDK");
const VERSION: u16 = 1;
const SUM: usize = 32;
const DISKS: usize = 64;
const ENTRY: usize = 56;
/// Disks of an array at most, hot spares included.
pub const DISKS_MAX: usize = 16;
const _: () = assert!(DISKS + DISKS_MAX * ENTRY <= 1024, "the smallest block holds a label");

/// How a disk stands in its array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskState {
    /// It has all that it should have.
    Whole,
    /// It is dead or missing, or was: what is on it is old. Since the label of this generation.
    Out {
        /// Generation of the first label that says so.
        since: u64,
    },
    /// It has its homes before this block of the volume again.
    Rebuilding {
        /// A block of the volume.
        next: u64,
    },
    /// It waits for another one to fail.
    Hot,
}

impl DiskState {
    /// A word for programs. It is a contract.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Out { .. } => "out",
            Self::Rebuilding { .. } => "rebuilding",
            Self::Hot => "hot-spare",
        }
    }

    /// Whether what is written to it is kept.
    pub(crate) const fn takes(self) -> bool {
        matches!(self, Self::Whole | Self::Rebuilding { .. })
    }
}

/// A disk of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The disk's own name.
    pub uuid: [u8; 16],
    /// Blocks of the volume that it has; none if it is a hot spare.
    pub blocks: u64,
    /// Blocks for copies and for what is moved.
    pub spares: u64,
    /// How it stands.
    pub state: DiskState,
}

/// What the label of a disk says, but for which disk it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// The array's name, which is its volume's in the maps.
    pub uuid: [u8; 16],
    /// The newest counts.
    pub generation: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks of each disk before the zone.
    pub first: u64,
    /// Blocks of the zone.
    pub zone: u64,
    /// All disks.
    pub disks: Vec<Member>,
}

impl Label {
    /// The label of a disk as a block.
    pub(crate) fn encode(&self, disk: usize) -> Vec<u8> {
        assert!(self.disks.len() <= DISKS_MAX && disk < self.disks.len(), "a disk of the array");
        let mut bytes = vec![0; to_usize(self.block_size)];
        let number = |value: usize| u16::try_from(value).expect("few disks");
        Le::put_u32(&mut bytes, 0, MAGIC);
        Le::put_u16(&mut bytes, 4, VERSION);
        Le::put_u16(&mut bytes, 6, number(disk));
        bytes[8..24].copy_from_slice(&self.uuid);
        Le::put_u64(&mut bytes, 24, self.generation);
        Le::put_u32(&mut bytes, 36, self.block_size);
        Le::put_u64(&mut bytes, 40, self.first);
        Le::put_u64(&mut bytes, 48, self.zone);
        Le::put_u16(&mut bytes, 56, number(self.disks.len()));
        for (member, entry) in self.disks.iter().zip(bytes[DISKS..].chunks_exact_mut(ENTRY)) {
            member.encode(entry);
        }
        let sum = sum(&bytes);
        Le::put_u32(&mut bytes, SUM, sum);
        bytes
    }

    /// Which disk a block is the label of, and what it says; `None` if it is none, or not whole.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(usize, Self)> {
        let is_one = Le::u32(bytes, 0) == MAGIC && Le::u16(bytes, 4) == VERSION;
        if !is_one || Le::u32(bytes, SUM) != sum(bytes) {
            return None;
        }
        let count = usize::from(Le::u16(bytes, 56));
        let disk = usize::from(Le::u16(bytes, 6));
        if count > DISKS_MAX || disk >= count || to_usize(Le::u32(bytes, 36)) != bytes.len() {
            return None;
        }
        let entries = bytes[DISKS..].chunks_exact(ENTRY).take(count);
        let label = Self {
            uuid: bytes[8..24].try_into().ok()?,
            // One more must always be possible: nobody counts that far.
            generation: Some(Le::u64(bytes, 24)).filter(|generation| *generation < 1 << 63)?,
            block_size: Le::u32(bytes, 36),
            first: Le::u64(bytes, 40),
            zone: Le::u64(bytes, 48),
            disks: entries.map(Member::decode).collect::<Option<_>>()?,
        };
        label.is_possible().then_some((disk, label))
    }

    /// Whether its sizes can be a disk's: sums of them are taken everywhere.
    fn is_possible(&self) -> bool {
        const MOST: u64 = 1 << 48;
        let small = |size: u64| size < MOST;
        small(self.first)
            && self.first >= 2
            && small(self.zone)
            && self.disks.iter().all(|disk| small(disk.blocks) && small(disk.spares))
            && self.disks.iter().any(|disk| disk.state != DiskState::Hot)
            // Hot spares come last, and have nothing.
            && self.disks.is_sorted_by_key(|disk| disk.state == DiskState::Hot)
            && self.disks.iter().all(|disk| disk.state != DiskState::Hot || disk.blocks + disk.spares == 0)
    }

    /// Blocks that a disk must have.
    pub(crate) fn needs(&self, disk: &Member) -> u64 {
        self.first + self.zone + disk.blocks + disk.spares
    }

    /// Blocks of the volume.
    #[must_use]
    pub fn volume(&self) -> u64 {
        self.disks.iter().map(|disk| disk.blocks).sum()
    }

    /// Refuses what no array can be.
    ///
    /// # Errors
    /// `Unsupported`.
    pub(crate) fn check(&self) -> Result<()> {
        let data = self.disks.iter().filter(|disk| disk.state != DiskState::Hot).count();
        let why = if self.disks.len() > DISKS_MAX {
            format!("an array of {} disks, which is more than {DISKS_MAX}", self.disks.len())
        } else if data < 2 {
            "an array of fewer than two disks".to_owned()
        } else if self.block_size < 1024 {
            format!("an array with blocks of {} bytes, which are fewer than 1024", self.block_size)
        } else {
            return Ok(());
        };
        Err(Error::Unsupported(why))
    }
}

impl Member {
    fn encode(&self, entry: &mut [u8]) {
        entry[..16].copy_from_slice(&self.uuid);
        Le::put_u64(entry, 16, self.blocks);
        Le::put_u64(entry, 24, self.spares);
        let (state, next, since) = match self.state {
            DiskState::Whole => (0, 0, 0),
            DiskState::Out { since } => (1, 0, since),
            DiskState::Rebuilding { next } => (2, next, 0),
            DiskState::Hot => (3, 0, 0),
        };
        Le::put_u64(entry, 32, next);
        Le::put_u64(entry, 40, since);
        entry[48] = state;
    }

    fn decode(entry: &[u8]) -> Option<Self> {
        let state = match entry[48] {
            0 => DiskState::Whole,
            1 => DiskState::Out { since: Le::u64(entry, 40) },
            2 => DiskState::Rebuilding { next: Le::u64(entry, 32) },
            3 => DiskState::Hot,
            _ => return None,
        };
        let uuid = entry[..16].try_into().ok()?;
        Some(Self { uuid, blocks: Le::u64(entry, 16), spares: Le::u64(entry, 24), state })
    }
}

fn sum(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..SUM]), &bytes[SUM + 4..])
}

/// Bytes from the start of a disk that [`find`] wants to see.
pub const LABELS_LEN: usize = 2 << 16;

/// Which disk a medium is that begins with these bytes, and what its label says, whatever the size of its blocks; `None` if it is no disk of
/// an array.
#[must_use]
pub fn find(start: &[u8]) -> Option<(usize, Label)> {
    let places = (10..=16).flat_map(|size: u32| [0, 1_usize << size].map(|at| (at, 1_usize << size)));
    let labels = places.filter_map(|(at, size)| Label::decode(start.get(at..at + size)?));
    labels.max_by_key(|(_, label)| label.generation)
}

/// The label on a disk: the newer one of its two places.
pub(crate) fn read(device: &dyn fstitch_core::BlockDevice) -> Option<(usize, Label)> {
    use fstitch_core::{BlockKind, BlockNo, BlockRead};
    let one = |place: u64| {
        let mut data = vec![0; to_usize(device.geometry().block_size)];
        let read = BlockRead { block: BlockNo(place), kind: BlockKind::Superblock, data: &mut data };
        device.read(&mut [read]).ok()?;
        Label::decode(&data)
    };
    [0, 1].into_iter().filter_map(one).max_by_key(|(_, label)| label.generation)
}

/// A disk has no label any more, in neither place.
pub(crate) fn wipe(device: &dyn fstitch_core::BlockDevice) -> Result<()> {
    use fstitch_core::{BlockKind, BlockNo, BlockWrite};
    let data = vec![0; to_usize(device.geometry().block_size)];
    let blank = |place| BlockWrite { block: BlockNo(place), kind: BlockKind::Superblock, data: &data };
    device.write(&[blank(0), blank(1)])?;
    device.flush()
}

/// Writes the label of a disk, and makes it stable.
pub(crate) fn write(device: &dyn fstitch_core::BlockDevice, label: &Label, disk: usize) -> Result<()> {
    use fstitch_core::{BlockKind, BlockNo, BlockWrite};
    let data = label.encode(disk);
    let block = BlockNo(label.generation % to_u64(2_usize));
    device.write(&[BlockWrite { block, kind: BlockKind::Superblock, data: &data }])?;
    device.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label() -> Label {
        let member = |no: u8, state| Member { uuid: [no; 16], blocks: 100, spares: 50, state };
        let disks = vec![
            member(1, DiskState::Whole),
            member(2, DiskState::Out { since: 6 }),
            member(3, DiskState::Rebuilding { next: 77 }),
            Member { blocks: 0, spares: 0, ..member(4, DiskState::Hot) },
        ];
        Label { uuid: [9; 16], generation: 7, block_size: 1024, first: 8, zone: 20, disks }
    }

    #[test]
    fn a_label_is_read_as_it_was_written_and_only_whole() {
        let bytes = label().encode(2);
        assert_eq!(Label::decode(&bytes), Some((2, label())));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            assert_eq!(Label::decode(&damaged), None, "byte {at}");
        }
    }

    #[test]
    fn a_label_is_found_whatever_the_blocks() {
        for block_size in [1024, 4096, 65_536] {
            let older = Label { block_size, generation: 6, ..label() };
            let newer = Label { generation: 7, ..older.clone() };
            let mut start = [older.encode(1), newer.encode(1)].concat();
            assert_eq!(find(&start), Some((1, newer.clone())));
            start[to_usize(block_size) + 9] ^= 1;
            assert_eq!(find(&start), Some((1, older)), "the newer one is damaged");
        }
        assert_eq!(find(&[0; LABELS_LEN]), None);
        assert_eq!(find(&label().encode(0)[..1000]), None);
    }

    #[test]
    fn sizes_that_cannot_be_are_no_label() {
        let mut huge = label();
        huge.disks[0].blocks = u64::MAX;
        assert_eq!(Label::decode(&huge.encode(0)), None);
        let mut hot_first = label();
        hot_first.disks.rotate_right(1);
        assert_eq!(Label::decode(&hot_first.encode(0)), None);
        let mut hot_with_blocks = label();
        hot_with_blocks.disks[3].blocks = 1;
        assert_eq!(Label::decode(&hot_with_blocks.encode(0)), None);
        let none = Label { first: 0, ..label() };
        assert_eq!(Label::decode(&none.encode(0)), None);
    }
}
