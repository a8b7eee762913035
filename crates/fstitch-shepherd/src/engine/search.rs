//! Maps that the format does not name any more: a search for their heads over the disk.
//!
//! Heads of the new version say what they are, how large blocks are, and where the list of the maps' blocks begins. What is found is believed
//! only where it says that it is itself, and only by [`Shepherd::rescue`](super::Shepherd::rescue): a head may be of another volume, of a
//! policy that was taken away, or of an image that a file holds.

use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, Error, Result, Structure};

use crate::map::{Area, Part, Shape, block, head, list};

/// Bytes of the largest block.
const BLOCK_MAX: u32 = 65_536;
/// Bytes that are read at once.
const CHUNK: u64 = 1 << 20;
/// Bytes at each end of a disk where heads are looked for first: maps take the first free blocks, and the last.
const END: u64 = 64 << 20;
/// Heads that are kept; those of the highest generations.
const HEADS_MAX: usize = 64;
/// Most chunks in a row that are passed over behind some that could not be read at all.
const LEAP_MAX: u64 = 1 << 10;

/// Where on a disk heads are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// At its beginning and its end.
    Ends,
    /// Everywhere else.
    Between,
}

/// A head that was found on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sighting {
    /// How often it was written.
    generation: u64,
    /// Where it begins, in bytes.
    at: u64,
    /// Bytes of a block of its volume.
    block_size: u32,
    uuid: [u8; 16],
}

/// Where maps are that were found by a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Their blocks, in order.
    pub area: Vec<BlockNo>,
    /// The volume that they say they are of.
    pub uuid: [u8; 16],
    /// Blocks of that volume.
    pub volume: u64,
}

impl Sighting {
    /// Bytes of a block of its volume, in which the disk must be given to [`Sighting::follow`].
    #[must_use]
    pub const fn block_size(&self) -> u32 {
        self.block_size
    }

    /// The block of its volume that it is.
    #[must_use]
    pub fn block(&self) -> BlockNo {
        BlockNo(self.at / u64::from(self.block_size))
    }

    /// The maps that it is the head of.
    ///
    /// # Errors
    /// `Corrupt` if its list is lost, or says that it is not a head of these maps.
    pub fn follow(&self, device: &Arc<dyn BlockDevice>) -> Result<Found> {
        let geometry = device.geometry();
        let wrong = |why: &str| Error::corrupt(Structure::Other("head of maps"), self.block(), why);
        let mut bytes = vec![0; to_usize(geometry.block_size)];
        if geometry.block_size != self.block_size || self.block().get() >= geometry.block_count {
            return Err(wrong("it is of a disk with other blocks"));
        }
        device.read(&mut [BlockRead { block: self.block(), kind: BlockKind::Data, data: &mut bytes }])?;
        let named = head::named(&bytes).ok_or_else(|| wrong("it is none any more"))?;
        if named.volume > geometry.block_count {
            return Err(wrong("its volume is larger than the disk"));
        }
        let area = list::read(&**device, &named)?;
        let length = named.lists.map_or(0, |lists| u64::from(lists.blocks));
        let shape = Shape::fit(geometry.block_size, named.volume, to_u64(area.len()), length)?;
        let own = Area::new(Arc::clone(device), &area, shape, named.uuid);
        // One in a file that holds an image is not where its list has it.
        if ![0, 1].map(|half| own.at(shape.place(half, Part::Head, 0))).contains(&self.block()) {
            return Err(wrong("it is not where its own list says that it is"));
        }
        Ok(Found { area, uuid: named.uuid, volume: named.volume })
    }
}

/// Looks for heads on a disk in blocks of at most 1 KiB, and tells how many of how many bytes have been gone over. The newest come first.
pub fn heads(device: &dyn BlockDevice, reach: Reach, progress: &mut dyn FnMut(u64, u64)) -> Vec<Sighting> {
    let bytes = device.geometry().bytes();
    let (first, last) = (END.min(bytes), bytes.saturating_sub(END).max(END.min(bytes)) / CHUNK * CHUNK);
    let last = last.max(first);
    let parts: &[std::ops::Range<u64>] = match reach {
        Reach::Ends => &[0..first, last..bytes],
        Reach::Between => &[first..last; 1],
    };
    let total: u64 = parts.iter().map(|part| part.end - part.start).sum();
    let mut found = Vec::new();
    let mut done = 0;
    for part in parts {
        let before = done;
        scan(device, part.clone(), &mut found, &mut |at| progress(before + at - part.start, total));
        done += part.end - part.start;
    }
    progress(total, total);
    found.sort_unstable_by(|one, other| other.cmp(one));
    found
}

/// One part of a disk. Where nothing at all can be read, longer and longer pieces are passed over, so that a dead disk is given up soon.
fn scan(
    device: &dyn BlockDevice,
    part: std::ops::Range<u64>,
    found: &mut Vec<Sighting>,
    progress: &mut dyn FnMut(u64),
) {
    let mut at = part.start;
    let mut leap = 1;
    while at < part.end {
        let end = (at + CHUNK).min(part.end);
        leap = if look_at(device, at..end, found) { 1 } else { (2 * leap).min(LEAP_MAX) };
        at += leap * CHUNK;
        progress(at.min(part.end));
        if found.len() > HEADS_MAX {
            found.sort_unstable_by(|one, other| other.cmp(one));
            found.truncate(HEADS_MAX);
        }
    }
}

/// One chunk; whether any of it could be read.
fn look_at(device: &dyn BlockDevice, chunk: std::ops::Range<u64>, found: &mut Vec<Sighting>) -> bool {
    let geometry = device.geometry();
    let size = u64::from(geometry.block_size);
    let blocks = chunk.start / size..(chunk.end / size).min(geometry.block_count);
    let mut bytes: Vec<Vec<u8>> = blocks.clone().map(|_| vec![0; to_usize(size)]).collect();
    let mut reads: Vec<BlockRead<'_>> = blocks
        .clone()
        .zip(&mut bytes)
        .map(|(block, data)| BlockRead { block: BlockNo(block), kind: BlockKind::Data, data })
        .collect();
    let mut is_any = device.read(&mut reads).is_ok();
    let each = !is_any;
    for (block, data) in blocks.zip(&mut bytes) {
        if each {
            let read = BlockRead { block: BlockNo(block), kind: BlockKind::Data, data };
            let is_read = device.read(&mut [read]).is_ok();
            is_any |= is_read;
            if !is_read {
                continue;
            }
        }
        if block::begins_head(data) {
            found.extend(sighting(device, block * size));
        }
    }
    is_any
}

/// What begins as a head, if it is one.
fn sighting(device: &dyn BlockDevice, at: u64) -> Option<Sighting> {
    let mut bytes = read_bytes(device, at, 512)?;
    let block_size = head::block_size(&bytes)?;
    let is_possible = block_size.is_power_of_two() && (512..=BLOCK_MAX).contains(&block_size);
    if !is_possible || !at.is_multiple_of(u64::from(block_size)) {
        return None;
    }
    bytes = read_bytes(device, at, to_usize(block_size))?;
    let named = head::named(&bytes)?;
    let generation = block::head(&bytes).and_then(|(identity, _)| block::generation(&bytes, identity))?;
    Some(Sighting { generation, at, block_size, uuid: named.uuid })
}

fn read_bytes(device: &dyn BlockDevice, at: u64, len: usize) -> Option<Vec<u8>> {
    let size = to_usize(device.geometry().block_size);
    let mut bytes = vec![0; len.next_multiple_of(size)];
    for (block, data) in (at / to_u64(size)..).zip(bytes.chunks_exact_mut(size)) {
        if block >= device.geometry().block_count {
            return None;
        }
        device.read(&mut [BlockRead { block: BlockNo(block), kind: BlockKind::Data, data }]).ok()?;
    }
    Some(bytes)
}
