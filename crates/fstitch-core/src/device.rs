//! The medium, as narrow as it can be.

use crate::{BlockNo, Result};

/// The shape of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes per block: a power of two; at least 512 on a disk, a cache line of 64 in a region of memory.
    pub block_size: u32,
    /// Blocks on the device.
    pub block_count: u64,
    /// Bytes that the device writes all or not at all when power fails; at most `block_size`.
    pub atomic_size: u32,
}

impl Geometry {
    /// The device's size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.block_count * u64::from(self.block_size)
    }
}

/// What a block holds, after ext3's thirteen block types (I/O shepherding §3.2.1). It travels with every
/// read and write for the reliability policies, the fault injector and the tracer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockKind {
    /// The volume's superblock or one of its copies.
    Superblock,
    /// Descriptors of block groups.
    GroupDescriptor,
    /// Free-block bitmap.
    BlockBitmap,
    /// Free-inode bitmap.
    InodeBitmap,
    /// Inode table.
    Inode,
    /// Directory entries.
    Directory,
    /// Pointers to other blocks.
    Indirect,
    /// File contents.
    Data,
    /// What belongs to an inode and did not fit it: extended attributes, the target of a symbolic link.
    Attribute,
    /// The journal's own superblock.
    JournalSuperblock,
    /// Descriptor block of a transaction.
    JournalDescriptor,
    /// Revoked block numbers of a transaction.
    JournalRevoke,
    /// A block's copy in the journal.
    JournalData,
    /// Commit record of a transaction.
    JournalCommit,
}

impl BlockKind {
    /// Whether the block is one of a journal's own.
    #[must_use]
    pub const fn is_journal(self) -> bool {
        matches!(
            self,
            Self::JournalSuperblock
                | Self::JournalDescriptor
                | Self::JournalRevoke
                | Self::JournalData
                | Self::JournalCommit
        )
    }
}

impl std::fmt::Display for BlockKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Superblock => "superblock",
            Self::GroupDescriptor => "group descriptors",
            Self::BlockBitmap => "block bitmap",
            Self::InodeBitmap => "inode bitmap",
            Self::Inode => "inodes",
            Self::Directory => "directory",
            Self::Indirect => "pointers",
            Self::Data => "contents of a file",
            Self::Attribute => "attributes",
            Self::JournalSuperblock => "journal's superblock",
            Self::JournalDescriptor => "journal's descriptor",
            Self::JournalRevoke => "journal's revoked blocks",
            Self::JournalData => "journal's copy",
            Self::JournalCommit => "journal's commit record",
        })
    }
}

/// One whole-block write of a batch.
#[derive(Clone, Copy, Debug)]
pub struct BlockWrite<'a> {
    /// Where to.
    pub block: BlockNo,
    /// What it is.
    pub kind: BlockKind,
    /// Exactly one block of bytes. Aligned memory ([`crate::BlockBuf`]) avoids a copy in direct I/O.
    pub data: &'a [u8],
}

/// One whole-block read of a batch.
#[derive(Debug)]
pub struct BlockRead<'a> {
    /// Where from.
    pub block: BlockNo,
    /// What it is expected to be.
    pub kind: BlockKind,
    /// Room for exactly one block of bytes.
    pub data: &'a mut [u8],
}

/// A block device. All methods take `&self` and may be called from several threads.
///
/// Ordering: the writes of one batch and of different batches are mutually independent; the device may
/// reorder, delay and (at `Geometry::atomic_size`) tear them until a `flush` that began after they were
/// acknowledged returns. `flush` is the only ordering that a device offers.
///
/// # Errors
/// Every method fails with [`crate::Error::Io`] naming the first block concerned; after a failed write or
/// flush the contents of the blocks written since the last successful flush are unknown.
pub trait BlockDevice: Send + Sync {
    /// The device's shape, constant while it is open.
    fn geometry(&self) -> Geometry;
    /// Fills every buffer of the batch.
    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()>;
    /// Writes every block of the batch, in any order. Blocks of a batch are distinct; sorted batches let
    /// the device join neighbours into large requests.
    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()>;
    /// When it returns, all writes acknowledged before the call are stable.
    fn flush(&self) -> Result<()>;
    /// The contents of `count` blocks from `start` are no longer needed; they read as anything afterwards.
    fn discard(&self, start: BlockNo, count: u64) -> Result<()>;
    /// A hint: `count` blocks from `start` will be read soon, so a device that remembers blocks may begin to read them. Nothing waits,
    /// nothing fails, and what lies outside the device is nobody's. Layers pass it on where that costs them nothing.
    fn prefetch(&self, _start: BlockNo, _count: u64) {}
    /// Fails if the medium is no longer what was opened, as far as that can be told without touching a block: to be asked
    /// before success is reported although nothing had to be written. Layers ask the device below.
    fn intact(&self) -> Result<()> {
        Ok(())
    }
}

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<D: BlockDevice + ?Sized> BlockDevice for $pointer {
            fn geometry(&self) -> Geometry {
                (**self).geometry()
            }
            fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
                (**self).read(reads)
            }
            fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
                (**self).write(writes)
            }
            fn flush(&self) -> Result<()> {
                (**self).flush()
            }
            fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
                (**self).discard(start, count)
            }
            fn prefetch(&self, start: BlockNo, count: u64) {
                (**self).prefetch(start, count);
            }
            fn intact(&self) -> Result<()> {
                (**self).intact()
            }
        }
    )*};
}

forward!(std::sync::Arc<D>, &D);
