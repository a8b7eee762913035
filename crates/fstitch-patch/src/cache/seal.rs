//! Seals: what a format puts into a block when all the rest of it is settled, such as a checksum.
//!
//! A checksum over a block cannot be part of a patch: what is written is the newest contents with those patches undone that are not
//! ready, and only then is known what the sum is of. So the cache asks the format when an image is frozen to be written, or a
//! transaction closes that has logged the block, and when an image was read. In between, the bytes of
//! the seal in memory mean nothing.
//!
//! **Owners.** Some seals are also about whose the block is, which it does not say: the format's word for that comes with
//! [`Cache::read_owned`] and [`Cache::fresh_owned`] and is kept with the cached block. A block that came into the cache without an
//! owner is verified when the first one asks. Its image is as it was read: nobody changes a block of an owner's without
//! having said whose it is. If a damaged volume has it both in a file and as an owner's, it was changed as the file's, and is
//! judged by what it holds now. Where the owner is another one the block is refused, and who was refused is refused again: its owner
//! stays what it was. Only who makes the block anew replaces it.
//!
//! **Under a journal** the block is sealed in memory when its transaction closes, and at no other time: the copy in the log, the image
//! that goes home and what later changes undo are one image, sealed by what the block was then. Afterwards it may become another one's, or
//! of another kind, before that image is home; and what a file's contents are that lie below it, or above, is nobody's to change. Without a
//! journal an image is sealed by what the block is when it is frozen, so there kind and owner of a block must stay until its changes
//! are stable.
//!
//! **Of bitmaps** the sums may be in other blocks, which are settled once for a transaction, when it closes and no operation is under way
//! ([`Seal::settle`]). At any other moment what these blocks say about a changed bitmap means nothing. So whatever is read from the medium or
//! from a log is a pair of one moment: bitmap and sum are in one transaction, whose log is replayed until both are home. A seal that
//! remembers what it settled can verify a bitmap when it is read again: until its last transaction was home it was in memory.
//!
//! **Invariants.** 1. Every image of a sealed kind that reaches the medium was sealed after its last change. 2. None that was read is
//! seen by anybody before it was verified, as far as whose it is was known, and by no owner before it was verified as theirs. Where no
//! format asks for it all of it costs one look at a flag for an epoch, a transaction and a read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fstitch_core::lock::RwLock;
use fstitch_core::order::rank;
use fstitch_core::{BlockBuf, BlockKind, BlockNo, Error, Result, Structure};
use smallvec::SmallVec;

use super::{Block, Cache, Mapping, Shared};
use crate::graph::Frozen;

/// A format's seal.
pub trait Seal: Send + Sync {
    /// Whether blocks of this kind have one.
    fn covers(&self, kind: BlockKind) -> bool;
    /// Seals the image of a block of the volume: nothing of it changes any more. `owner` is what was said last, 0 if nothing was.
    /// Must not use the cache.
    fn seal(&self, block: BlockNo, kind: BlockKind, owner: u64, image: &mut [u8]);
    /// Looks at an image that was read. With `owner` 0 nobody has said whose it is: what cannot be judged without is asked about
    /// again when somebody has. Must not use the cache.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when its seal is another one.
    fn verify(&self, block: BlockNo, kind: BlockKind, owner: u64, image: &[u8]) -> Result<()>;
    /// A transaction closes that has logged these bitmaps of the volume. What another block says about a bitmap, such as its sum in a
    /// group's descriptor, is given to `put`, as block, place and bytes, and becomes part of the transaction. That block must be in
    /// the cache: it is where the same transaction has changed it too, or a handle is kept; else nothing can
    /// ever be stable any more, and the cache is poisoned. Called under the core lock: must not use the cache, and should take
    /// microseconds.
    fn settle(&self, _bitmaps: &[Bitmap<'_>], _put: &mut dyn FnMut(BlockNo, usize, &[u8])) {}
}

/// A bitmap as a transaction leaves it.
#[derive(Clone, Copy, Debug)]
pub struct Bitmap<'a> {
    /// Its number in the volume.
    pub block: BlockNo,
    /// Of blocks or of inodes.
    pub kind: BlockKind,
    /// Its newest contents.
    pub contents: &'a [u8],
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
    fn device_number(&self, own: BlockNo) -> Option<BlockNo> {
        let within = own.get().checked_sub(self.own.get()).filter(|within| *within < self.count)?;
        Some(BlockNo(self.device.get() + within))
    }

    fn own_number(&self, device: BlockNo) -> Option<BlockNo> {
        let within = device.get().checked_sub(self.device.get()).filter(|within| *within < self.count)?;
        Some(BlockNo(self.own.get() + within))
    }
}

/// A block's number on the device, its kind and its owner.
type Described = (BlockNo, BlockKind, u64);

/// A volume that has a seal.
struct Sealed {
    runs: Vec<Run>,
    seal: Arc<dyn Seal>,
}

impl Sealed {
    fn own_number(&self, device: BlockNo) -> Option<BlockNo> {
        self.runs.iter().find_map(|run| run.own_number(device))
    }

    fn device_number(&self, own: BlockNo) -> Option<BlockNo> {
        self.runs.iter().find_map(|run| run.device_number(own))
    }
}

/// The seals of all volumes.
#[derive(Default)]
pub(super) struct Seals {
    /// There is one.
    any: AtomicBool,
    volumes: RwLock<Vec<Sealed>, rank::Seals>,
}

/// A block of a transaction: its number on the device, its kind and its newest contents.
pub(super) type Logged = (BlockNo, BlockKind, Arc<BlockBuf>);

/// What a volume says about the bitmaps that a transaction has logged.
pub(super) struct Said {
    /// The block of the device that says it, if the volume has it there.
    pub(super) device: Option<BlockNo>,
    /// The block's number in the volume.
    pub(super) own: BlockNo,
    pub(super) offset: usize,
    pub(super) bytes: SmallVec<[u8; 8]>,
}

impl Seals {
    /// Calls `work` with the seal of a block of the device, if it has one, and its number in its volume.
    fn with<T>(
        &self,
        block: BlockNo,
        kind: BlockKind,
        work: impl FnOnce(&dyn Seal, BlockNo) -> T,
    ) -> Option<T> {
        if self.are_none() {
            return None;
        }
        let volumes = self.volumes.read();
        let (volume, own) = volumes.iter().find_map(|volume| Some((volume, volume.own_number(block)?)))?;
        volume.seal.covers(kind).then(|| work(&*volume.seal, own))
    }

    /// Whether no volume has one.
    pub(super) fn are_none(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    /// Seals the image of a block of the device; a copy of it where others have it too.
    pub(super) fn seal_in_place(&self, (block, kind, owner): Described, image: &mut Arc<BlockBuf>) {
        self.with(block, kind, |seal, own| seal.seal(own, kind, owner, &mut Arc::make_mut(image)[..]));
    }

    /// Seals what is about to be written.
    pub(super) fn seal(&self, batch: &mut [Frozen]) {
        if self.are_none() {
            return;
        }
        for frozen in batch.iter_mut().filter(|frozen| !frozen.is_logged) {
            self.seal_in_place((frozen.no, frozen.kind, frozen.owner), &mut frozen.image);
        }
    }

    /// Looks at what was read.
    pub(super) fn verify(&self, (block, kind, owner): Described, image: &[u8]) -> Result<()> {
        self.with(block, kind, |seal, own| seal.verify(own, kind, owner, image)).unwrap_or(Ok(()))
    }

    /// What the volumes whose bitmaps these are say about them.
    pub(super) fn settle(&self, logged: &[Logged]) -> Vec<Said> {
        let mut said = Vec::new();
        for volume in &*self.volumes.read() {
            let bitmaps: Vec<Bitmap<'_>> = logged
                .iter()
                .filter_map(|(device, kind, contents)| {
                    Some(Bitmap { block: volume.own_number(*device)?, kind: *kind, contents })
                })
                .collect();
            if bitmaps.is_empty() {
                continue;
            }
            volume.seal.settle(&bitmaps, &mut |own, offset, bytes| {
                let (device, bytes) = (volume.device_number(own), SmallVec::from_slice(bytes));
                said.push(Said { device, own, offset, bytes });
            });
        }
        said
    }

    /// Whether a block of the device has one.
    fn covers(&self, block: BlockNo, kind: BlockKind) -> bool {
        self.with(block, kind, |_, _| ()).is_some()
    }
}

impl Shared {
    /// Gives a block to its owner, if it is theirs.
    pub(super) fn claim(&self, block: &Block, kind: BlockKind, owner: u64) -> Result<()> {
        loop {
            let (no, image) = {
                let core = self.core();
                let slot = core.graph.slot(block.slot);
                if owner == 0 || slot.owner == owner || !self.seals.covers(slot.no, kind) {
                    return Ok(());
                }
                if slot.owner != 0 {
                    let structure = Structure::Other("owner of a block");
                    return Err(Error::corrupt(structure, block.no, "it is in use as another one's"));
                }
                (slot.no, Arc::clone(slot.loaded()))
            };
            self.seals.verify((no, kind, owner), &image)?;
            let mut core = self.core();
            let slot = core.graph.slot_mut(block.slot);
            // It may have been changed or given away meanwhile.
            if slot.owner == 0 && Arc::ptr_eq(&image, slot.loaded()) {
                (slot.kind, slot.owner) = (kind, owner);
                return Ok(());
            }
        }
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
        volumes.push(Sealed { runs, seal });
        seals.any.store(true, Ordering::Release);
        Ok(())
    }
}
