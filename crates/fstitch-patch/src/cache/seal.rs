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
//! **In a stack** a block may be one of a volume in a file of another one, and both may have seals. Each block in the cache has a
//! *holder*: the number of the [`Cache`] whose kind, owner and seal it has. That is the newest of those who asked for it, because a volume in a
//! file is opened after the one whose file it is; when it is gone, whoever asks next, once nothing of the block is to be sealed: its bytes in
//! memory become those of the medium before. A block that changes its holder is verified as the new one's. Who is older, and has a seal for
//! what he asks for, is refused it; as contents of the file he gets what is in memory, where the seal's bytes mean nothing.
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

use super::load::HOLE;
use super::{Block, Cache, Mapping, Shared};
use crate::graph::{Frozen, Holder};

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

/// A volume's numbers of the blocks that it has on the device. Asked under any lock, takes none but its own, and keeps no file system.
pub trait Numbers: Send + Sync {
    /// The number that a block has on the device; `None` for one that has no place.
    fn on_device(&self, own: BlockNo) -> Option<BlockNo>;
    /// The number in the volume that a block of the device has; `None` for one that is not the volume's.
    fn of_volume(&self, device: BlockNo) -> Option<BlockNo>;
}

/// Numbers of a volume; `None` where they are the device's.
pub(super) type Numbered = Option<Arc<dyn Numbers>>;

/// A block's number on the device, its holder, its kind and its owner.
pub(super) type Described = (BlockNo, Holder, BlockKind, u64);

/// A volume's seal.
struct Sealed {
    numbers: Numbered,
    /// The numbers of the volume whose journal takes its changes.
    there: Numbered,
    seal: Arc<dyn Seal>,
}

impl Sealed {
    fn own_number(&self, device: BlockNo) -> Option<BlockNo> {
        of_volume(&self.numbers, device)
    }
}

fn of_volume(numbers: &Numbered, device: BlockNo) -> Option<BlockNo> {
    numbers.as_ref().map_or(Some(device), |numbers| numbers.of_volume(device))
}

/// Who may hold a block.
#[derive(Default)]
struct Entry {
    /// It holds no block any more that somebody else asks for; what was changed through it keeps its seal.
    is_gone: bool,
    sealed: Option<Arc<Sealed>>,
}

/// The seals of all volumes.
pub(super) struct Seals {
    /// There is one.
    any: AtomicBool,
    /// By number. A seal is asked with this given back: the format looks up what it remembers.
    entries: RwLock<Vec<Entry>, rank::Leaf>,
}

impl Default for Seals {
    fn default() -> Self {
        Self { any: AtomicBool::new(false), entries: RwLock::new(vec![Entry::default()]) }
    }
}

/// A block of a transaction: its number on the device, its holder, its kind and its newest contents.
pub(super) type Logged = (BlockNo, Holder, BlockKind, Arc<BlockBuf>);

/// What a volume says about the bitmaps that a transaction has logged.
pub(super) struct Said {
    /// The block that says it: its number in the volume.
    pub(super) own: BlockNo,
    /// On the device, and in the volume whose transaction it is; `None` if it has no place.
    pub(super) place: Option<(BlockNo, BlockNo)>,
    pub(super) offset: usize,
    pub(super) bytes: SmallVec<[u8; 8]>,
}

impl Seals {
    /// The number of one more who may hold blocks.
    pub(super) fn enter(&self) -> Result<Holder> {
        let mut entries = self.entries.write();
        let number = Holder::try_from(entries.len()).map_err(|_| {
            Error::Unsupported("more than 65,535 volumes, one after the other, in one cache".to_owned())
        })?;
        entries.push(Entry::default());
        Ok(number)
    }

    /// It is gone.
    pub(super) fn leave(&self, holder: Holder) {
        self.entries.write()[usize::from(holder)].is_gone = true;
    }

    /// Whether nobody stands for it any more.
    pub(super) fn is_gone(&self, holder: Holder) -> bool {
        self.entries.read()[usize::from(holder)].is_gone
    }

    fn of(&self, holder: Holder) -> Option<Arc<Sealed>> {
        if self.are_none() {
            return None;
        }
        self.entries.read()[usize::from(holder)].sealed.clone()
    }

    /// Calls `work` with the seal of a block of the device, if it has one, and its number in its volume.
    fn with<T>(
        &self,
        (block, holder, kind): (BlockNo, Holder, BlockKind),
        work: impl FnOnce(&dyn Seal, BlockNo) -> T,
    ) -> Option<T> {
        let volume = self.of(holder).filter(|volume| volume.seal.covers(kind))?;
        let own = volume.own_number(block)?;
        Some(work(&*volume.seal, own))
    }

    /// Whether no volume has one.
    pub(super) fn are_none(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    /// Seals the image of a block of the device; a copy of it where others have it too.
    pub(super) fn seal_in_place(&self, (block, holder, kind, owner): Described, image: &mut Arc<BlockBuf>) {
        self.with((block, holder, kind), |seal, own| {
            seal.seal(own, kind, owner, &mut Arc::make_mut(image)[..]);
        });
    }

    /// Seals what is about to be written.
    pub(super) fn seal(&self, batch: &mut [Frozen]) {
        if self.are_none() {
            return;
        }
        for frozen in batch.iter_mut().filter(|frozen| !frozen.is_logged) {
            let described = (frozen.no, frozen.holder, frozen.kind, frozen.owner);
            self.seal_in_place(described, &mut frozen.image);
        }
    }

    /// Looks at what was read.
    pub(super) fn verify(&self, (block, holder, kind, owner): Described, image: &[u8]) -> Result<()> {
        self.with((block, holder, kind), |seal, own| seal.verify(own, kind, owner, image)).unwrap_or(Ok(()))
    }

    /// What the volumes whose bitmaps these are say about them.
    pub(super) fn settle(&self, logged: &[Logged]) -> Vec<Said> {
        let mut said = Vec::new();
        for of_one in logged.chunk_by(|(_, one, ..), (_, other, ..)| one == other) {
            let Some(volume) = self.of(of_one[0].1) else { continue };
            let bitmaps: Vec<Bitmap<'_>> = of_one
                .iter()
                .filter_map(|(device, _, kind, contents)| {
                    Some(Bitmap { block: volume.own_number(*device)?, kind: *kind, contents })
                })
                .collect();
            let mut says: Vec<Said> = Vec::new();
            volume.seal.settle(&bitmaps, &mut |own, offset, bytes| {
                says.push(Said { own, place: None, offset, bytes: SmallVec::from_slice(bytes) });
            });
            for mut says in says {
                let on_device = volume.numbers.as_ref().map_or(Some(says.own), |all| all.on_device(says.own));
                says.place = on_device.and_then(|device| Some((device, of_volume(&volume.there, device)?)));
                said.push(says);
            }
        }
        said
    }

    /// Whether blocks of a kind have one.
    pub(super) fn covers(&self, holder: Holder, kind: BlockKind) -> bool {
        self.of(holder).is_some_and(|volume| volume.seal.covers(kind))
    }
}

impl Shared {
    /// Gives a block to its owner, if it is theirs.
    pub(super) fn claim(&self, block: &Block, (holder, kind, owner): (Holder, BlockKind, u64)) -> Result<()> {
        loop {
            let (no, image) = {
                let core = self.core();
                let slot = core.graph.slot(block.slot);
                if owner == 0 || !self.seals.covers(holder, kind) {
                    return Ok(());
                }
                if slot.no == HOLE {
                    return Ok(());
                }
                if slot.holder != holder || slot.owner != 0 && slot.owner != owner {
                    return Err(of_another(block.no));
                }
                if slot.owner == owner {
                    return Ok(());
                }
                (slot.no, Arc::clone(slot.loaded()))
            };
            self.seals.verify((no, holder, kind, owner), &image)?;
            let mut core = self.core();
            let slot = core.graph.slot_mut(block.slot);
            // It may have been changed or given away meanwhile.
            if slot.holder == holder && slot.owner == 0 && Arc::ptr_eq(&image, slot.loaded()) {
                (slot.kind, slot.owner) = (kind, owner);
                return Ok(());
            }
        }
    }
}

/// The error for who wants a block that is somebody else's.
pub(super) fn of_another(block: BlockNo) -> Error {
    Error::corrupt(Structure::Other("owner of a block"), block, "it is in use as another one's")
}

impl Cache {
    /// From now on blocks of this volume are sealed when they are written and verified when they are read. To be called before
    /// anything is.
    ///
    /// # Errors
    /// `Unsupported` for a volume whose [`Placement`](super::Placement) knows no numbers.
    pub fn set_seal(&self, seal: Arc<dyn Seal>) -> Result<()> {
        let (numbers, there) = (self.numbers()?, self.numbers_there()?);
        let seals = &self.shared.seals;
        seals.entries.write()[usize::from(self.holder)].sealed =
            Some(Arc::new(Sealed { numbers, there, seal }));
        seals.any.store(true, Ordering::Release);
        Ok(())
    }

    /// The volume's numbers; `None` where they are the device's.
    ///
    /// # Errors
    /// `Unsupported` if where the volume is knows none.
    pub fn numbers(&self) -> Result<Option<Arc<dyn Numbers>>> {
        let Mapping(Some(placement)) = &self.mapping else { return Ok(None) };
        let numbers = placement.numbers().ok_or_else(|| {
            Error::Unsupported("checksums of a volume that does not know its blocks by their places".into())
        })?;
        Ok(Some(numbers))
    }

    /// The numbers of the volume whose mechanism changes obey.
    fn numbers_there(&self) -> Result<Numbered> {
        match &self.below {
            Some(below) => below.numbers_there(),
            None => self.numbers(),
        }
    }
}
