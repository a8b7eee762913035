//! The first blocks of a disk: what it is, and the two places of checkpoints.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockWrite, Corruption, Error, Le, Result, Structure};

use crate::chunk::{Form, summary_blocks};
use crate::pack::Compression;
use crate::pages::read_run;
use crate::tree::Place;

const MAGIC: &[u8; 8] = b"FSLDISK\0";
const VERSION: u32 = 2;
const SIZE: usize = 64;
/// The blocks of the device where checkpoints are, in turn.
const CHECKPOINTS: [u64; 2] = [1, 2];
/// Blocks in front of the first segment.
const FIRST: u64 = 8;
/// With fewer there is no room to clean in.
const SEGMENTS_MIN: u64 = 24;

/// What a disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) uuid: [u8; 16],
    /// How many logical disks were made on the medium before.
    pub(crate) generation: u32,
    /// Bytes of a block of the device.
    pub(crate) unit: u32,
    /// Bytes of a block of the disk.
    pub(crate) block_size: u32,
    /// Blocks of the device in a segment.
    pub(crate) segment_units: u32,
    pub(crate) segments: u64,
    /// How the cleaner keeps what it moves.
    pub(crate) compression: Compression,
}

/// Bytes of a block of the device for which a disk was made, by the first bytes of it; `None` if it is no logical disk.
#[must_use]
pub fn device_block_size(head: &[u8]) -> Option<u32> {
    let unit = Le::u32(head.get(..SIZE)?, 28);
    (head.starts_with(MAGIC) && (512..=4096).contains(&unit) && unit.is_power_of_two()).then_some(unit)
}

fn damaged(what: Structure, block: u64, problem: String) -> Error {
    Error::Corrupt(Corruption { what, block: Some(BlockNo(block)), problem }.into())
}

/// Whether a superblock's sum is right.
fn is_summed(block: &[u8]) -> bool {
    Le::u32(block, SIZE - 4) == crc32c::crc32c(&block[..SIZE - 4])
}

impl Shape {
    /// The largest disk of this kind on a device.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the sizes do not fit each other or the device.
    pub(crate) fn fitting(
        device: &dyn BlockDevice,
        uuid: [u8; 16],
        block_size: u32,
        segment_bytes: u32,
    ) -> Result<Self> {
        let geometry = device.geometry();
        let unit = geometry.block_size;
        let refused = |what: String| Err(Error::Unsupported(what));
        if !(512..=4096).contains(&unit) || !unit.is_power_of_two() {
            return refused(format!(
                "a device with blocks of {unit} bytes; a logical disk needs 512 to 4096"
            ));
        }
        if !block_size.is_power_of_two() || !(unit..=65_536).contains(&block_size) {
            return refused(format!(
                "blocks of {block_size} bytes: a power of two from {unit} to 65536 is needed"
            ));
        }
        let least = (16 * block_size).max(65_536);
        if !segment_bytes.is_power_of_two() || !(least..=64 << 20).contains(&segment_bytes) {
            return refused(format!(
                "segments of {segment_bytes} bytes: a power of two from {least} to 64 MiB is needed"
            ));
        }
        let segment_units = segment_bytes / unit;
        // The copy of the superblock is the last block.
        let segments = geometry.block_count.saturating_sub(FIRST + 1) / u64::from(segment_units);
        if segments < SEGMENTS_MIN {
            return refused(format!(
                "{} bytes have room for {segments} segments of {segment_bytes}, and {SEGMENTS_MIN} are needed",
                geometry.bytes()
            ));
        }
        let compression = Compression::None;
        Ok(Self { uuid, generation: 0, unit, block_size, segment_units, segments, compression })
    }

    /// Bytes of a segment's block of the device.
    pub(crate) fn unit_bytes(&self) -> usize {
        to_usize(self.unit)
    }

    /// Blocks of the device that a block of the disk takes.
    pub(crate) fn block_units(&self) -> u32 {
        self.block_size / self.unit
    }

    /// Blocks of the device that data of full blocks can take in a segment.
    pub(crate) fn usable_units(&self) -> u32 {
        let fits = |blocks: u32| {
            let summary = summary_blocks(to_usize(blocks), to_usize(blocks) * 16, self.unit_bytes());
            to_u64(summary) + u64::from(blocks * self.block_units()) <= u64::from(self.segment_units)
        };
        let mut blocks = self.segment_units / self.block_units();
        while !fits(blocks) {
            blocks -= 1;
        }
        blocks * self.block_units()
    }

    /// What its summaries have in common.
    pub(crate) fn form(&self) -> Form {
        let seed = crc32c::crc32c_append(crc32c::crc32c(&self.uuid), &self.generation.to_le_bytes());
        Form { unit: self.unit_bytes(), seed }
    }

    /// Where a segment begins.
    pub(crate) fn segment_start(&self, segment: u64) -> u64 {
        FIRST + segment * u64::from(self.segment_units)
    }

    /// The segment in which a block of the device lies.
    pub(crate) fn segment_of(&self, place: u64) -> Option<u64> {
        let segment = place.checked_sub(FIRST)? / u64::from(self.segment_units);
        (segment < self.segments).then_some(segment)
    }

    fn encode(&self, is_made: bool) -> Vec<u8> {
        let mut block = vec![0; self.unit_bytes()];
        block[..8].copy_from_slice(MAGIC);
        Le::put_u32(&mut block, 8, VERSION);
        block[12..28].copy_from_slice(&self.uuid);
        Le::put_u32(&mut block, 28, self.unit);
        Le::put_u32(&mut block, 32, self.block_size);
        Le::put_u32(&mut block, 36, self.segment_units);
        Le::put_u64(&mut block, 40, self.segments);
        Le::put_u32(&mut block, 48, self.generation);
        Le::put_u32(&mut block, 52, u32::from(!is_made));
        Le::put_u32(&mut block, 56, self.compression.number());
        let sum = crc32c::crc32c(&block[..SIZE - 4]);
        Le::put_u32(&mut block, SIZE - 4, sum);
        block
    }

    /// How many disks were made on a device, for all that can be read there.
    pub(crate) fn generations(device: &dyn BlockDevice) -> Result<u32> {
        let geometry = device.geometry();
        let mut newest = 0;
        for at in [0, geometry.block_count.saturating_sub(1)] {
            let mut block = vec![0; to_usize(geometry.block_size)];
            read_run(device, at, BlockKind::Superblock, &mut block)?;
            if &block[..8] == MAGIC && is_summed(&block) {
                newest = newest.max(Le::u32(&block, 48).saturating_add(1));
            }
        }
        Ok(newest)
    }

    /// Writes the superblock and its copy: nothing else of a disk that is being made counts.
    fn write(&self, device: &dyn BlockDevice, is_made: bool) -> Result<()> {
        let block = self.encode(is_made);
        let kind = BlockKind::Superblock;
        let last = device.geometry().block_count - 1;
        device.write(&[
            BlockWrite { block: BlockNo(0), kind, data: &block },
            BlockWrite { block: BlockNo(last), kind, data: &block },
        ])?;
        device.flush()
    }

    /// A disk is being made: what was there before is none any more, and its checkpoints are gone.
    pub(crate) fn begin(&self, device: &dyn BlockDevice) -> Result<()> {
        self.write(device, false)?;
        let empty = vec![0; self.unit_bytes()];
        let kind = BlockKind::JournalSuperblock;
        device.write(&CHECKPOINTS.map(|at| BlockWrite { block: BlockNo(at), kind, data: &empty }))?;
        device.flush()
    }

    /// The disk is made: its first checkpoint is stable.
    pub(crate) fn finish(&self, device: &dyn BlockDevice) -> Result<()> {
        self.write(device, true)
    }

    /// Reads the superblock, or its copy if it is damaged.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if both are, or it is no logical disk.
    pub(crate) fn read(device: &dyn BlockDevice) -> Result<Self> {
        let last = device.geometry().block_count.saturating_sub(1);
        Self::read_at(device, 0).or_else(|error| Self::read_at(device, last).map_err(|_| error))
    }

    pub(crate) fn read_at(device: &dyn BlockDevice, at: u64) -> Result<Self> {
        let mut block = vec![0; to_usize(device.geometry().block_size)];
        read_run(device, at, BlockKind::Superblock, &mut block)?;
        let wrong = |problem: &str| Err(damaged(Structure::Superblock, at, problem.to_owned()));
        if &block[..8] != MAGIC {
            return wrong("this is no logical disk");
        }
        if !is_summed(&block) {
            return wrong("its sum is wrong");
        }
        let version = Le::u32(&block, 8);
        if version != VERSION {
            return Err(Error::Unsupported(format!("version {version} of the logical disk's format")));
        }
        if Le::u32(&block, 52) != 0 {
            return wrong("it was being made, and that did not come to its end");
        }
        let compression = Le::u32(&block, 56);
        let compression = Compression::numbered(compression)
            .ok_or_else(|| Error::Unsupported(format!("compression of kind {compression}")))?;
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&block[12..28]);
        let (unit, block_size, segment_units) =
            (Le::u32(&block, 28), Le::u32(&block, 32), Le::u32(&block, 36));
        if unit != device.geometry().block_size {
            return Err(Error::Unsupported(format!(
                "the disk was made for blocks of {unit} bytes, the device has {}",
                device.geometry().block_size
            )));
        }
        let segment_bytes = u64::from(segment_units) * u64::from(unit);
        let fits = u32::try_from(segment_bytes)
            .is_ok_and(|bytes| Self::fitting(device, uuid, block_size, bytes).is_ok());
        let (segments, generation) = (Le::u64(&block, 40), Le::u32(&block, 48));
        let shape = Self { uuid, generation, unit, block_size, segment_units, segments, compression };
        let end =
            shape.segments.checked_mul(u64::from(segment_units)).and_then(|units| units.checked_add(FIRST));
        if !fits || end.is_none_or(|end| end >= device.geometry().block_count) {
            return wrong("its sizes do not fit the device");
        }
        Ok(shape)
    }
}

/// Where a log goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// The number of the next chunk, and the sum of the one before.
    pub(crate) number: u64,
    pub(crate) link: u32,
    pub(crate) segment: u64,
    /// Blocks of the device into it.
    pub(crate) offset: u32,
    /// The segment behind this one.
    pub(crate) next_segment: u64,
}

/// The committed state at one position of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// Checkpoints are numbered from 1.
    pub(crate) number: u64,
    pub(crate) epoch: u32,
    pub(crate) position: Position,
    /// The roots of blocks, order, lists and segments, and how many entries they have.
    pub(crate) roots: [(Place, u64); 4],
    /// Pages of the first three.
    pub(crate) pages: u64,
    pub(crate) next_block: u64,
    pub(crate) next_list: u64,
}

const CHECKPOINT_MAGIC: u32 = u32::from_le_bytes(*b"LDCP");
const CHECKPOINT_SIZE: usize = 192;

impl Checkpoint {
    fn encode(&self, unit: usize) -> Vec<u8> {
        let mut block = vec![0; unit];
        Le::put_u32(&mut block, 0, CHECKPOINT_MAGIC);
        Le::put_u32(&mut block, 4, self.epoch);
        Le::put_u64(&mut block, 8, self.number);
        Le::put_u64(&mut block, 16, self.position.number);
        Le::put_u64(&mut block, 24, self.position.segment);
        Le::put_u64(&mut block, 32, self.position.next_segment);
        Le::put_u32(&mut block, 40, self.position.offset);
        Le::put_u32(&mut block, 44, self.position.link);
        Le::put_u64(&mut block, 48, self.next_block);
        Le::put_u64(&mut block, 56, self.next_list);
        for (bytes, (place, count)) in block[64..].chunks_mut(24).zip(self.roots) {
            Le::put_u64(bytes, 0, place.block);
            Le::put_u64(bytes, 8, count);
            Le::put_u32(bytes, 16, place.sum);
        }
        Le::put_u64(&mut block, 160, self.pages);
        let sum = crc32c::crc32c(&block[..CHECKPOINT_SIZE - 4]);
        Le::put_u32(&mut block, CHECKPOINT_SIZE - 4, sum);
        block
    }

    fn decode(block: &[u8]) -> Option<Self> {
        let sum = crc32c::crc32c(&block[..CHECKPOINT_SIZE - 4]);
        if Le::u32(block, 0) != CHECKPOINT_MAGIC || Le::u32(block, CHECKPOINT_SIZE - 4) != sum {
            return None;
        }
        let root = |at: usize| {
            let bytes = &block[64 + at * 24..];
            (Place { block: Le::u64(bytes, 0), sum: Le::u32(bytes, 16) }, Le::u64(bytes, 8))
        };
        Some(Self {
            number: Le::u64(block, 8),
            epoch: Le::u32(block, 4),
            position: Position {
                number: Le::u64(block, 16),
                link: Le::u32(block, 44),
                segment: Le::u64(block, 24),
                offset: Le::u32(block, 40),
                next_segment: Le::u64(block, 32),
            },
            roots: [root(0), root(1), root(2), root(3)],
            pages: Le::u64(block, 160),
            next_block: Le::u64(block, 48),
            next_list: Le::u64(block, 56),
        })
    }

    /// Writes it where the one before the newest is. What it names must be stable; it is when this has returned.
    pub(crate) fn write(&self, device: &dyn BlockDevice, shape: &Shape) -> Result<()> {
        let block = self.encode(shape.unit_bytes());
        let at = CHECKPOINTS[to_usize(self.number % to_u64(CHECKPOINTS.len()))];
        device.write(&[BlockWrite {
            block: BlockNo(at),
            kind: BlockKind::JournalSuperblock,
            data: &block,
        }])?;
        device.flush()
    }

    /// The newest that is whole.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if none is.
    pub(crate) fn newest(device: &dyn BlockDevice, shape: &Shape) -> Result<Self> {
        let mut newest: Option<Self> = None;
        for at in CHECKPOINTS {
            let mut block = vec![0; shape.unit_bytes()];
            read_run(device, at, BlockKind::JournalSuperblock, &mut block)?;
            let found = Self::decode(&block);
            if found.is_some_and(|found| newest.is_none_or(|newest| found.number > newest.number)) {
                newest = found;
            }
        }
        newest.ok_or_else(|| {
            damaged(Structure::Other("checkpoint"), CHECKPOINTS[0], "no checkpoint is whole".into())
        })
    }
}
