//! The blocks that the maps have, and how their blocks are read and written.

use std::collections::BTreeSet;
use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockBuf, BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Result};

use super::block::{self, HEADER, Identity};
use super::{Moved, Part, Shape};

/// How blocks of the shepherd's own are named below it: to the disk they are a file's.
const KIND: BlockKind = BlockKind::Data;

/// A block of a map on its way to the medium.
pub(crate) struct MapWrite {
    pub(crate) part: Part,
    pub(crate) index: u64,
    pub(crate) generation: u64,
    pub(crate) contents: Vec<u8>,
}

/// What some blocks hold.
pub(crate) struct Found {
    unit: usize,
    /// Aligned, so that disks read into it; it may be longer than what was read.
    bytes: BlockBuf,
    /// Those that cannot be read.
    failed: BTreeSet<usize>,
}

impl Found {
    /// Of the block of this number among those that were asked for; `None` if it cannot be read.
    pub(crate) fn of(&self, no: usize) -> Option<&[u8]> {
        (!self.failed.contains(&no)).then(|| &self.bytes[no * self.unit..(no + 1) * self.unit])
    }

    /// Its memory, for other reads.
    pub(crate) fn into_memory(self) -> BlockBuf {
        self.bytes
    }
}

/// The area of a volume's maps.
pub(crate) struct Area {
    pub(crate) device: Moved,
    pub(crate) blocks: Vec<BlockNo>,
    /// The same in order of their numbers.
    sorted: Vec<BlockNo>,
    pub(crate) shape: Shape,
    pub(crate) uuid: [u8; 16],
}

impl Area {
    pub(crate) fn new(
        device: Arc<dyn BlockDevice>,
        blocks: &[BlockNo],
        shape: Shape,
        uuid: [u8; 16],
    ) -> Self {
        let mut sorted = blocks.to_vec();
        sorted.sort_unstable();
        Self { device: Moved::new(device), blocks: blocks.to_vec(), sorted, shape, uuid }
    }

    /// Whether a block of the device is one of these.
    pub(crate) fn has(&self, block: BlockNo) -> bool {
        self.sorted.binary_search(&block).is_ok()
    }

    /// Where a place of the area is on the device.
    pub(crate) fn at(&self, place: u64) -> BlockNo {
        self.blocks[to_usize(place)]
    }

    /// Where a spare is on the device.
    pub(crate) fn spare(&self, spare: u64) -> BlockNo {
        self.at(self.shape.spare(spare))
    }

    /// Reads a block of the device, by itself.
    pub(crate) fn read_at(&self, block: BlockNo, kind: BlockKind) -> Result<Vec<u8>> {
        let mut data = vec![0; to_usize(self.shape.block_size)];
        self.device.read(&mut [BlockRead { block, kind, data: &mut data }])?;
        Ok(data)
    }

    /// Reads blocks at once, and where that fails each by itself; `None` for those that cannot be read.
    pub(crate) fn read_each(&self, blocks: &[BlockNo], kind: BlockKind) -> Vec<Option<Vec<u8>>> {
        let mut found: Vec<Vec<u8>> =
            blocks.iter().map(|_| vec![0; to_usize(self.shape.block_size)]).collect();
        let mut reads: Vec<BlockRead<'_>> = blocks
            .iter()
            .zip(&mut found)
            .map(|(block, data)| BlockRead { block: *block, kind, data })
            .collect();
        if self.device.read(&mut reads).is_ok() {
            return found.into_iter().map(Some).collect();
        }
        blocks.iter().map(|block| self.read_at(*block, kind).ok()).collect()
    }

    /// The same for many blocks, in one piece of memory: the one given, if it is large enough.
    pub(crate) fn read_many(&self, blocks: &[BlockNo], kind: BlockKind, memory: Option<BlockBuf>) -> Found {
        let unit = to_usize(self.shape.block_size);
        let memory = memory.filter(|memory| memory.len() >= unit * blocks.len());
        let mut bytes = memory.unwrap_or_else(|| BlockBuf::zeroed(unit * blocks.len()));
        let reads = blocks.iter().zip(bytes.chunks_exact_mut(unit));
        let mut reads: Vec<BlockRead<'_>> =
            reads.map(|(block, data)| BlockRead { block: *block, kind, data }).collect();
        let failed = match self.device.read(&mut reads) {
            Ok(()) => BTreeSet::new(),
            Err(_) => {
                (0..reads.len()).filter(|no| self.device.read(&mut reads[*no..=*no]).is_err()).collect()
            }
        };
        Found { unit, bytes, failed }
    }

    /// Reads what is at the home of a block, whether it was moved or not.
    pub(crate) fn read_home(&self, block: BlockNo, kind: BlockKind) -> Result<Vec<u8>> {
        let mut data = vec![0; to_usize(self.shape.block_size)];
        self.device.below().read(&mut [BlockRead { block, kind, data: &mut data }])?;
        Ok(data)
    }

    /// One of the two of a block, whatever is in it; `None` where it cannot be read.
    pub(crate) fn raw(&self, half: u64, part: Part, index: u64) -> Option<Vec<u8>> {
        self.read_at(self.at(self.shape.place(half, part, index)), KIND).ok()
    }

    /// What a block of the maps says that it is.
    pub(crate) fn identity(&self, part: Part, index: u64) -> Identity {
        let version = if self.shape.list > 0 { block::LISTED } else { block::UNLISTED };
        Identity { version, part, index, uuid: self.uuid }
    }

    /// Generation and contents of a block; `None` if neither of the two is what it should be.
    pub(crate) fn read(&self, part: Part, index: u64) -> Option<(u64, Vec<u8>)> {
        let identity = self.identity(part, index);
        let one = |half| {
            let bytes = self.raw(half, part, index)?;
            block::generation(&bytes, identity).map(|generation| (generation, bytes))
        };
        let newest = [0, 1].into_iter().filter_map(one).max_by_key(|(generation, _)| *generation);
        newest.map(|(generation, mut bytes)| (generation, bytes.split_off(HEADER)))
    }

    /// Writes blocks, first one of the two and then, behind a flush, the other. They are stable when it returns.
    ///
    /// # Errors
    /// If a flush fails, or a block can be written in neither place.
    pub(crate) fn write(&self, writes: &[MapWrite]) -> Result<()> {
        let places: Vec<(Part, u64)> = writes.iter().map(|write| (write.part, write.index)).collect();
        self.write_raw(&places, &self.encoded(writes), true)
    }

    fn encoded(&self, writes: &[MapWrite]) -> Vec<Vec<u8>> {
        let encode = |write: &MapWrite| {
            let identity = self.identity(write.part, write.index);
            block::encode(self.shape.block_size, identity, write.generation, &write.contents)
        };
        writes.iter().map(encode).collect()
    }

    /// Writes one half of blocks; the places of those that could not be, with what was to be there.
    pub(crate) fn write_half(&self, half: u64, writes: &[MapWrite]) -> Vec<(u64, Vec<u8>)> {
        let places: Vec<u64> =
            writes.iter().map(|write| self.shape.place(half, write.part, write.index)).collect();
        let at: Vec<BlockNo> = places.iter().map(|place| self.at(*place)).collect();
        let encoded = self.encoded(writes);
        self.write_each(&at, &encoded).into_iter().map(|no| (places[no], encoded[no].clone())).collect()
    }

    /// The same with bytes that are whole blocks. What is atomic in itself needs no flush between the two (`apart`).
    pub(crate) fn write_raw(&self, places: &[(Part, u64)], blocks: &[Vec<u8>], apart: bool) -> Result<()> {
        let mut lost: Vec<u8> = vec![0; places.len()];
        for half in 0..2 {
            let at: Vec<BlockNo> =
                places.iter().map(|(part, index)| self.at(self.shape.place(half, *part, *index))).collect();
            for failed in self.write_each(&at, blocks) {
                lost[failed] += 1;
            }
            if apart || half == 1 {
                self.device.flush()?;
            }
        }
        match lost.iter().position(|halves| *halves == 2) {
            Some(both) => {
                let (part, index) = places[both];
                let block = self.at(self.shape.place(0, part, index));
                let reason = std::io::Error::other("neither place of a block of the maps can be written");
                Err(fstitch_core::Error::io(fstitch_core::IoOp::Write, block, reason))
            }
            None => Ok(()),
        }
    }

    /// Writes blocks to both places, stable whenever the next flush makes them so. That one is lost may be.
    pub(crate) fn write_unflushed(&self, places: &[(Part, u64)], blocks: &[Vec<u8>]) {
        for half in 0..2 {
            let at: Vec<BlockNo> =
                places.iter().map(|(part, index)| self.at(self.shape.place(half, *part, *index))).collect();
            self.write_each(&at, blocks);
        }
    }

    /// Writes blocks; which of them could not be.
    pub(crate) fn write_each<B: AsRef<[u8]>>(&self, at: &[BlockNo], blocks: &[B]) -> Vec<usize> {
        let batch: Vec<BlockWrite<'_>> = at
            .iter()
            .zip(blocks)
            .map(|(at, data)| BlockWrite { block: *at, kind: KIND, data: data.as_ref() })
            .collect();
        if self.device.write(&batch).is_ok() {
            return Vec::new();
        }
        (0..at.len()).filter(|no| self.device.write(&batch[*no..=*no]).is_err()).collect()
    }

    /// Blocks of the device that are the maps'.
    pub(crate) fn len(&self) -> u64 {
        to_u64(self.blocks.len())
    }
}
