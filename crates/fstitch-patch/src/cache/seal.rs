//! Seals: what a format puts into a block when all the rest of it is settled, such as a checksum.
//!
//! A checksum over a block cannot be part of a patch: what is written is the newest contents with those patches undone that are not
//! ready, and only then is known what the sum is of. So the cache asks the format at two moments: when an image is frozen to be
//! written, to its place or into a journal, and when one was read. In between, the bytes of the seal in memory mean nothing.
//!
//! **Invariants.** 1. Every image of a sealed kind that reaches the medium was sealed after its last change. 2. None that was read is
//! seen by anybody before it was verified. Where no format asks for it, both cost one look at a flag for an epoch and a read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fstitch_core::lock::RwLock;
use fstitch_core::order::rank;
use fstitch_core::{BlockBuf, BlockKind, BlockNo, Error, Result};

use super::{Cache, Mapping};
use crate::graph::Frozen;

/// A format's seal.
pub trait Seal: Send + Sync {
    /// Whether blocks of this kind have one.
    fn covers(&self, kind: BlockKind) -> bool;
    /// Seals the image of a block of the volume: nothing of it changes any more. Must not use the cache.
    fn seal(&self, block: BlockNo, kind: BlockKind, image: &mut [u8]);
    /// Looks at an image that was read. Must not use the cache.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when its seal is another one.
    fn verify(&self, block: BlockNo, kind: BlockKind, image: &[u8]) -> Result<()>;
}

/// Blocks of a volume that are neighbours on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first one's number in the volume.
    pub own: BlockNo,
    /// Its number on the device.
    pub device: BlockNo,
    /// How many.
    pub count: u64,
}

impl Run {
    fn own_number(&self, device: BlockNo) -> Option<BlockNo> {
        let within = device.get().checked_sub(self.device.get()).filter(|within| *within < self.count)?;
        Some(BlockNo(self.own.get() + within))
    }
}

/// Blocks of a volume, and its seal.
type Sealed = (Run, Arc<dyn Seal>);

/// The seals of all volumes.
#[derive(Default)]
pub(super) struct Seals {
    /// There is one.
    any: AtomicBool,
    volumes: RwLock<Vec<Sealed>, rank::Leaf>,
}

impl Seals {
    /// Calls `work` with the seal of a block of the device, if it has one, and its number in its volume.
    fn with<T>(
        &self,
        block: BlockNo,
        kind: BlockKind,
        work: impl FnOnce(&dyn Seal, BlockNo) -> T,
    ) -> Option<T> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let volumes = self.volumes.read();
        let (seal, own) = volumes.iter().find_map(|(run, seal)| Some((seal, run.own_number(block)?)))?;
        seal.covers(kind).then(|| work(&**seal, own))
    }

    /// The sealed image of a block of the device.
    pub(super) fn sealed(&self, block: BlockNo, kind: BlockKind, image: &Arc<BlockBuf>) -> Arc<BlockBuf> {
        let sealed = self.with(block, kind, |seal, own| {
            let mut image = BlockBuf::clone(image);
            seal.seal(own, kind, &mut image);
            Arc::new(image)
        });
        sealed.unwrap_or_else(|| Arc::clone(image))
    }

    /// Seals what is about to be written.
    pub(super) fn seal(&self, batch: &mut [Frozen]) {
        if self.any.load(Ordering::Acquire) {
            for frozen in batch {
                frozen.image = self.sealed(frozen.no, frozen.kind, &frozen.image);
            }
        }
    }

    /// Looks at what was read.
    pub(super) fn verify(&self, block: BlockNo, kind: BlockKind, image: &[u8]) -> Result<()> {
        self.with(block, kind, |seal, own| seal.verify(own, kind, image)).unwrap_or(Ok(()))
    }
}

impl Cache {
    /// From now on blocks of this volume are sealed when they are written and verified when they are read. To be called before
    /// anything is.
    ///
    /// # Errors
    /// `Unsupported` for a volume whose blocks are scattered over another one, in a file of which it is.
    pub fn set_seal(&self, seal: Arc<dyn Seal>) -> Result<()> {
        let whole = Run { own: BlockNo(0), device: BlockNo(0), count: self.block_count };
        let runs = match &self.mapping {
            Mapping(None) => Some(vec![whole]),
            Mapping(Some(placement)) => placement.runs(),
        };
        let Some(runs) = runs else {
            return Err(Error::Unsupported("checksums of a volume that is in a file of another one".into()));
        };
        let seals = &self.shared.seals;
        let mut volumes = seals.volumes.write();
        volumes.extend(runs.into_iter().map(|run| (run, Arc::clone(&seal))));
        seals.any.store(true, Ordering::Release);
        Ok(())
    }
}
