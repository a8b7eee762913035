//! How a disk is made and opened, and what its operations are told.

use crate::pack::Compression;
use crate::record::BlockId;
use crate::stream::Keeping;

/// Segments beyond which they are made larger, as long as they may.
const SEGMENTS_MOST: u64 = 1 << 18;
/// Segments below which they are made smaller.
const SEGMENTS_LEAST: u64 = 128;
/// Bytes of the smallest segment.
const SEGMENT_MIN: u32 = 64 << 10;
/// Bytes of the largest segment.
const SEGMENT_MAX: u32 = 64 << 20;

/// How a disk is made.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// Bytes of a block: a power of two, from the device's to 64 KiB.
    pub block_size: u32,
    /// Bytes of a segment: a power of two from 64 KiB to 64 MiB, at least 16 blocks.
    pub segment_size: u32,
    /// Names the disk.
    pub uuid: [u8; 16],
    /// How the cleaner keeps what it moves. Blocks that are larger than the device's may become smaller.
    pub compression: Compression,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self { block_size: 4096, segment_size: 512 << 10, uuid: [0; 16], compression: Compression::None }
    }
}

impl FormatOptions {
    /// What suits a device of so many bytes: segments of 512 KiB as in the paper, smaller ones where there would be few, and larger ones
    /// where there would be more of them than memory should hold.
    #[must_use]
    pub fn for_bytes(bytes: u64) -> Self {
        let default = Self::default();
        let mut segment_size = default.segment_size;
        while bytes / u64::from(segment_size) > SEGMENTS_MOST && segment_size < SEGMENT_MAX {
            segment_size *= 2;
        }
        while bytes / u64::from(segment_size) < SEGMENTS_LEAST && segment_size > SEGMENT_MIN {
            segment_size /= 2;
        }
        Self { segment_size, ..default }
    }

    /// Bytes of the blocks in which a device that can have any should be opened: those of the disk, and with compression an eighth of
    /// them, so that what is packed can be smaller.
    #[must_use]
    pub fn device_blocks(&self) -> u32 {
        match self.compression {
            Compression::None => self.block_size.min(4096),
            Compression::Lz4 => (self.block_size / 8).clamp(512, 4096),
        }
    }
}

/// Which version of a block or list is read (\[A\] §3.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Visibility {
    /// Everybody reads what any unit has changed last: the first option of the paper.
    Latest,
    /// Everybody reads what is committed, units too: the second.
    Committed,
    /// A unit reads what it has changed, and everybody else what is committed: the third, as the paper's prototype.
    #[default]
    Own,
}

/// How a disk is opened.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What is read while units are open.
    pub visibility: Visibility,
    /// Bytes of maps that may be in memory.
    pub cache_size: usize,
    /// Bytes of log after which a checkpoint is made: what recovery has to read.
    pub checkpoint_interval: u64,
    /// Nothing is written: what a failure has left is done again in memory only.
    pub read_only: bool,
    /// One unit at a time, as the older prototype of \[A\] §5 has them: a unit begins when the one before has ended. A thread that
    /// begins one while it has another waits for itself, for ever.
    pub sequential: bool,
    /// A thread writes segments that are full, while whoever has filled them goes on; otherwise he writes them himself, and what is
    /// written when depends on nothing but what is done.
    pub background: bool,
    /// Goes on from an older state than was promised, where what was stable is damaged: what is behind it is written over.
    pub accept_loss: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            visibility: Visibility::default(),
            cache_size: 128 << 20,
            checkpoint_interval: 64 << 20,
            read_only: false,
            sequential: false,
            background: true,
            accept_loss: false,
        }
    }
}

impl Options {
    pub(crate) fn keeping(&self) -> Keeping {
        Keeping { cache_size: self.cache_size, checkpoint_bytes: self.checkpoint_interval }
    }
}

/// How much a disk can store, in bytes of blocks and of what leads to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// All there is.
    pub all: u64,
    /// What is taken. A client is refused a little before all is taken, while maps that have changed are written.
    pub used: u64,
}

/// Where in its list a new block goes (\[A\] §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// In front of all others.
    Start,
    /// Behind this block.
    After(BlockId),
    /// In a sparse list, at this position.
    Position(u64),
}

/// What a disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Its name.
    pub uuid: [u8; 16],
    /// Bytes of a block.
    pub block_size: u32,
    /// Bytes of a segment.
    pub segment_size: u32,
    /// How the cleaner keeps what it moves.
    pub compression: Compression,
    /// Segments that there are.
    pub segments: u64,
    /// Those that may be written.
    pub free_segments: u64,
    /// Blocks that there are.
    pub blocks: u64,
    /// Lists that there are.
    pub lists: u64,
    /// The number of the newest checkpoint.
    pub checkpoint: u64,
    /// How often the disk has been opened for writing.
    pub epoch: u32,
    /// The newest chunk of the log.
    pub chunk: u64,
    /// Units that have not ended.
    pub open_units: usize,
    /// Versions of blocks that those have written, beside the committed ones.
    pub shadows: usize,
}
