//! Homes that are elsewhere: a device on which blocks that were moved are found where they are.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

use fstitch_core::lock::Unpoisoned;
use fstitch_core::{BlockDevice, BlockNo, BlockRead, BlockWrite, Geometry, Result};

/// The disk, with homes that were moved.
pub(crate) struct Moved {
    below: Arc<dyn BlockDevice>,
    places: RwLock<BTreeMap<BlockNo, BlockNo>>,
    /// Whether there are any: most disks have none, and pay nothing.
    are_any: AtomicBool,
    /// A flush has failed, and who waits for what was written before it has not been told.
    has_failed: AtomicBool,
}

impl Moved {
    pub(crate) fn new(below: Arc<dyn BlockDevice>) -> Self {
        Self {
            below,
            places: RwLock::default(),
            are_any: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
        }
    }

    /// Whether a flush has failed since this was asked last. A disk says that once, and whatever was written before may be lost although the
    /// next one succeeds: so whoever flushes next is told, also where a flush of the shepherd's own was tried again.
    pub(crate) fn take_failed_flush(&self) -> bool {
        self.has_failed.swap(false, Ordering::AcqRel)
    }

    /// The disk itself, on which each block is at home.
    pub(crate) fn below(&self) -> &dyn BlockDevice {
        &*self.below
    }

    /// From now on a block is at `place`; `None` for its home.
    pub(crate) fn put(&self, block: BlockNo, place: Option<BlockNo>) {
        let mut places = self.places.write().unpoisoned();
        match place {
            Some(place) => places.insert(block, place),
            None => places.remove(&block),
        };
        self.are_any.store(!places.is_empty(), Ordering::Release);
    }

    /// Where a block is.
    pub(crate) fn place(&self, block: BlockNo) -> BlockNo {
        if !self.are_any.load(Ordering::Acquire) {
            return block;
        }
        self.places.read().unpoisoned().get(&block).copied().unwrap_or(block)
    }

    /// Whether a block is not at home.
    pub(crate) fn has(&self, block: BlockNo) -> bool {
        self.are_any.load(Ordering::Acquire) && self.places.read().unpoisoned().contains_key(&block)
    }

    /// Where blocks are, if any is elsewhere.
    fn find(&self, blocks: impl Iterator<Item = BlockNo>) -> Option<Vec<BlockNo>> {
        if !self.are_any.load(Ordering::Acquire) {
            return None;
        }
        let places = self.places.read().unpoisoned();
        Some(blocks.map(|block| places.get(&block).copied().unwrap_or(block)).collect())
    }
}

impl BlockDevice for Moved {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        let Some(places) = self.find(reads.iter().map(|read| read.block)) else {
            return self.below.read(reads);
        };
        let moved = reads.iter_mut().zip(places);
        let mut moved: Vec<BlockRead<'_>> =
            moved.map(|(read, block)| BlockRead { block, kind: read.kind, data: &mut *read.data }).collect();
        self.below.read(&mut moved)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let Some(places) = self.find(writes.iter().map(|write| write.block)) else {
            return self.below.write(writes);
        };
        let moved = writes.iter().zip(places);
        let moved: Vec<BlockWrite<'_>> = moved.map(|(write, block)| BlockWrite { block, ..*write }).collect();
        self.below.write(&moved)
    }

    fn flush(&self) -> Result<()> {
        let flushed = self.below.flush();
        if flushed.is_err() {
            self.has_failed.store(true, Ordering::Release);
        }
        flushed
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.below.discard(start, count)
    }

    fn intact(&self) -> Result<()> {
        self.below.intact()
    }
}
