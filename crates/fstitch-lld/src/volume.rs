//! Volumes: arrays of blocks on a disk, as devices that everything else runs on.
//!
//! A volume is a sparse list: a block that was never written takes nothing. Its device may be that of a unit, whose writes nobody else
//! sees before it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fstitch_core::num::to_u64;
use fstitch_core::{BlockDevice, BlockNo, BlockRead, BlockWrite, Errno, Geometry, Result};

use crate::aru::Aru;
use crate::disk::Disk;
use crate::record::{BlockId, ListId};

/// Where the blocks of a volume are: the committed state of a disk, or a unit.
#[derive(Clone)]
pub enum Store {
    /// What everybody sees.
    Disk(Arc<Disk>),
    /// What one unit sees, until it ends or is aborted; `None` from then on.
    Unit(Arc<Shared>),
}

/// A unit that several have, and one ends.
pub struct Shared {
    disk: Arc<Disk>,
    unit: fstitch_core::lock::RwLock<Option<Aru<'static>>, fstitch_core::order::rank::Gate>,
}

impl Shared {
    /// Begins a unit on a disk.
    #[must_use]
    pub fn begin(disk: &Arc<Disk>) -> Arc<Self> {
        let unit = fstitch_core::lock::RwLock::new(Some(disk.begin_shared()));
        Arc::new(Self { disk: Arc::clone(disk), unit })
    }

    /// The unit, to be ended or dropped; nobody else has it from now on.
    pub fn take(&self) -> Option<Aru<'static>> {
        self.unit.write().take()
    }

    fn with<T>(&self, work: impl FnOnce(&Aru<'static>) -> Result<T>) -> Result<T> {
        work(self.unit.read().as_ref().ok_or(Errno::STALE)?)
    }
}

impl Store {
    fn disk(&self) -> &Arc<Disk> {
        match self {
            Self::Disk(disk) => disk,
            Self::Unit(unit) => &unit.disk,
        }
    }

    fn read_at(&self, list: ListId, position: u64, into: &mut [u8]) -> Result<()> {
        match self {
            Self::Disk(disk) => disk.read_at(list, position, into),
            Self::Unit(unit) => unit.with(|unit| unit.read_at(list, position, into)),
        }
    }

    fn write_at(&self, list: ListId, position: u64, contents: &[u8]) -> Result<()> {
        match self {
            Self::Disk(disk) => disk.write_at(list, position, contents),
            Self::Unit(unit) => unit.with(|unit| unit.write_at(list, position, contents)),
        }
    }

    fn delete_range(&self, list: ListId, from: u64, last: u64) -> Result<u64> {
        match self {
            Self::Disk(disk) => disk.delete_range(list, from, last),
            Self::Unit(unit) => unit.with(|unit| unit.delete_range(list, from, last)),
        }
    }

    fn next_at(&self, list: ListId, position: u64) -> Result<Option<(u64, BlockId)>> {
        match self {
            Self::Disk(disk) => disk.next_at(list, position),
            Self::Unit(unit) => unit.with(|unit| unit.next_at(list, position)),
        }
    }

    fn flush(&self) -> Result<()> {
        match self {
            Self::Disk(disk) => disk.flush(),
            // What a unit has written is stable when it has ended durably, not before.
            Self::Unit(unit) => unit.with(|_| Ok(())),
        }
    }
}

/// A volume that is open.
pub struct Volume {
    store: Store,
    list: ListId,
    /// Blocks; it may grow and shrink while it is open.
    blocks: Arc<AtomicU64>,
}

/// A stretch of a volume that has blocks all over, or nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its first block.
    pub start: u64,
    /// How many blocks.
    pub count: u64,
    /// Whether they take room on the disk; if not they read as zeros.
    pub allocated: bool,
}

impl Volume {
    pub(crate) fn new(store: Store, list: ListId, blocks: Arc<AtomicU64>) -> Self {
        Self { store, list, blocks }
    }

    /// The same volume as a unit sees it.
    #[must_use]
    pub fn in_unit(&self, unit: &Arc<Shared>) -> Self {
        Self { store: Store::Unit(Arc::clone(unit)), list: self.list, blocks: Arc::clone(&self.blocks) }
    }

    /// The list that its blocks are in.
    #[must_use]
    pub fn list(&self) -> ListId {
        self.list
    }

    fn block_size(&self) -> usize {
        self.store.disk().block_size()
    }

    /// Fails if blocks are not there.
    fn check(&self, start: u64, count: u64) -> Result<()> {
        let end = start.checked_add(count);
        if end.is_some_and(|end| end <= self.blocks.load(Ordering::SeqCst)) {
            Ok(())
        } else {
            Err(Errno::INVAL.into())
        }
    }

    /// Which of some blocks take room, in extents one behind the other; at most so many of them.
    ///
    /// # Errors
    /// `EINVAL` if blocks are not there; those of the disk.
    pub fn extents(&self, start: u64, count: u64, most: usize) -> Result<Vec<Extent>> {
        self.check(start, count)?;
        let end = start + count;
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = start;
        while at < end && extents.len() <= most {
            let next = self.store.next_at(self.list, at)?.map_or(end, |(position, _)| position.min(end));
            let allocated = next == at;
            let len = if allocated { 1 } else { next - at };
            match extents.last_mut().filter(|last| last.allocated == allocated) {
                Some(last) => last.count += len,
                None => extents.push(Extent { start: at, count: len, allocated }),
            }
            at += len;
        }
        extents.truncate(most);
        Ok(extents)
    }
}

impl BlockDevice for Volume {
    fn geometry(&self) -> Geometry {
        let block_size = u32::try_from(self.block_size()).expect("a block is 64 KiB at most");
        Geometry {
            block_size,
            block_count: self.blocks.load(Ordering::SeqCst),
            // The log has a block as a whole or not at all.
            atomic_size: block_size,
        }
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        reads.iter_mut().try_for_each(|read| {
            self.check(read.block.0, 1)?;
            self.store.read_at(self.list, read.block.0, read.data)
        })
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        writes.iter().try_for_each(|write| {
            self.check(write.block.0, 1)?;
            self.store.write_at(self.list, write.block.0, write.data)
        })
    }

    fn flush(&self) -> Result<()> {
        self.store.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.check(start.0, count)?;
        let Some(last) = (start.0 + count).checked_sub(1) else { return Ok(()) };
        self.store.delete_range(self.list, start.0, last).map(drop)
    }
}

/// Blocks that so many bytes take.
pub(crate) fn blocks_of(bytes: u64, block_size: usize) -> u64 {
    bytes.div_ceil(to_u64(block_size))
}
