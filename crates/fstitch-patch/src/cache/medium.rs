//! What lies below the cache: a device, or a layer that answers for each block.
//!
//! A device says yes or no to a batch, and after a no nobody knows what is on the medium. A layer that keeps data on bad media knows
//! more: this block failed and the others are sound, or it did not go home, and is found where it went once *that* change of the layer's
//! own map is stable. The change is a patch of the same graph, so what waited for the block waits for the map, and nothing else has to
//! know. Every [`BlockDevice`] is such a medium, one without exceptions.
//!
//! **Orderings.** A block that went elsewhere is stable there with the flush of its epoch. It commits when the patch has that
//! [`Medium::record`] made after that flush. Until then it counts as in flight: it is not written again, and what waits for it waits.

use std::sync::Arc;

use fstitch_core::{BlockDevice, BlockNo, BlockRead, BlockWrite, Error, Geometry, Result};

use super::{Core, Shared};
use crate::PatchId;
use crate::graph::Frozen;
use crate::graph::patch::{Sx, Vx};

/// What became of a block of a batch, where it is not simply written.
#[derive(Clone, Debug)]
pub enum Fate {
    /// It is stored, but not in its place, and is found there when what [`Medium::record`] changes is stable.
    Elsewhere,
    /// It is not stored, and nothing else tells about it. The rest of the batch is sound.
    Failed(Error),
}

/// A block of a batch that is not simply written.
#[derive(Clone, Debug)]
pub struct Exception {
    /// Its number.
    pub block: BlockNo,
    /// What became of it.
    pub fate: Fate,
}

/// What a cache reads from and writes to. All methods may be called from several threads, but `store` and `record` by one at a time.
pub trait Medium: Send + Sync {
    /// See [`BlockDevice::geometry`].
    fn geometry(&self) -> Geometry;
    /// See [`BlockDevice::read`].
    ///
    /// # Errors
    /// If a block cannot be had.
    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()>;
    /// Writes a batch as [`BlockDevice::write`] does, and says which blocks of it are not simply written.
    ///
    /// # Errors
    /// If nobody knows what became of the batch.
    fn store(&self, writes: &[BlockWrite<'_>]) -> Result<Vec<Exception>>;
    /// See [`BlockDevice::flush`].
    ///
    /// # Errors
    /// As there.
    fn flush(&self) -> Result<()>;
    /// See [`BlockDevice::intact`].
    ///
    /// # Errors
    /// As there.
    fn intact(&self) -> Result<()> {
        Ok(())
    }
    /// Notes where a block went of which the last `store` said [`Fate::Elsewhere`], and that the flush behind it has made stable: by a
    /// patch of the same cache, which is returned. That patch may wait for nothing but others of the layer's own. Called
    /// between two epochs: it must not wait for room or for anything to become stable, so what it changes is in memory and pinned.
    ///
    /// # Errors
    /// If it cannot: then the block has failed.
    fn record(&self, block: BlockNo) -> Result<PatchId>;
}

/// Any device: a medium without exceptions.
pub(super) struct Device(pub(super) Arc<dyn BlockDevice>);

impl Medium for Device {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.0.read(reads)
    }

    fn store(&self, writes: &[BlockWrite<'_>]) -> Result<Vec<Exception>> {
        self.0.write(writes).map(|()| Vec::new())
    }

    fn flush(&self) -> Result<()> {
        self.0.flush()
    }

    fn intact(&self) -> Result<()> {
        self.0.intact()
    }

    fn record(&self, block: BlockNo) -> Result<PatchId> {
        unreachable!("block {block} of a device went where it was sent")
    }
}

/// What became of an epoch whose batch was taken and made stable.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// The blocks that are stored elsewhere, each with the change by which it is found.
    elsewhere: Vec<(BlockNo, PatchId)>,
    failed: Vec<(BlockNo, Error)>,
}

impl Written {
    /// The epoch is stable, with these exceptions.
    pub(super) fn new(medium: &dyn Medium, exceptions: Vec<Exception>) -> Self {
        let mut written = Self::default();
        for Exception { block, fate } in exceptions {
            match fate {
                Fate::Elsewhere => match medium.record(block) {
                    Ok(patch) => written.elsewhere.push((block, patch)),
                    Err(error) => written.failed.push((block, error)),
                },
                Fate::Failed(error) => written.failed.push((block, error)),
            }
        }
        written
    }
}

/// Blocks that are not stored and never will be.
#[derive(Debug, Default)]
pub(super) struct Failures(Vec<(Sx, Error)>);

impl Failures {
    /// Why something cannot become stable any more, if anything is lost.
    pub(super) fn first(&self) -> Option<Error> {
        self.0.first().map(|(_, error)| error.clone())
    }

    /// The blocks.
    pub(super) fn blocks(&self) -> impl Iterator<Item = Sx> + '_ {
        self.0.iter().map(|&(sx, _)| sx)
    }

    /// Why this block is lost.
    pub(super) fn of(&self, slot: Sx) -> Option<Error> {
        self.0.iter().find(|(lost, _)| *lost == slot).map(|(_, error)| error.clone())
    }
}

impl Shared {
    /// Commits the blocks of an epoch that are in their places; those elsewhere come after the change that records it, and those that
    /// failed stay in flight for ever.
    pub(super) fn commit_written(core: &mut Core, slots: &[(BlockNo, Sx)], mut written: Written) {
        if written.elsewhere.is_empty() && written.failed.is_empty() {
            slots.iter().for_each(|&(_, sx)| core.graph.commit(sx));
            return;
        }
        let slot_of = |block: BlockNo| slots.iter().find(|(no, _)| *no == block).map(|&(_, sx)| sx);
        let is_exception = |block: BlockNo| {
            written.elsewhere.iter().any(|(no, _)| *no == block)
                || written.failed.iter().any(|(no, _)| *no == block)
        };
        for &(no, sx) in slots {
            if !is_exception(no) {
                core.graph.commit(sx);
            }
        }
        // The others of the epoch are committed: what a record still waits for is its own.
        for (block, record) in std::mem::take(&mut written.elsewhere) {
            let Some(sx) = slot_of(block) else { continue };
            if !core.graph.rest(sx, record) {
                let why = "the change that says where it is waits for others";
                written
                    .failed
                    .push((block, Error::io(fstitch_core::IoOp::Write, block, std::io::Error::other(why))));
            }
        }
        for (block, error) in written.failed {
            if let Some(sx) = slot_of(block) {
                core.lose(sx, error);
            }
        }
    }
}

impl Core {
    /// A block will never be stable. Where a journal is kept, nothing behind it will, and the volume takes no more changes.
    fn lose(&mut self, sx: Sx, error: Error) {
        let mut volumes: Vec<Vx> = self.graph.volumes_in_flight(sx);
        volumes.retain(|&volume| self.journal(volume).is_some());
        for volume in volumes {
            let why: Arc<str> = format!("{error}; nothing that came after it will be stable").into();
            self.volumes[usize::from(volume)].poison.get_or_insert(Error::Poisoned(why));
        }
        self.failures.0.push((sx, error));
    }
}

/// The numbers and places of an epoch's blocks.
pub(super) fn places(batch: &[Frozen]) -> Vec<(BlockNo, Sx)> {
    batch.iter().map(|frozen| (frozen.no, frozen.slot)).collect()
}
