//! Volumes that share a cache: each has block numbers, a mechanism and perhaps a journal of its own, and all have one
//! graph, so that a change of one may come after a change of another. Design: `docs/design/volumes.md`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fstitch_core::lock::Mutex;
use fstitch_core::num::to_usize;
use fstitch_core::{BlockNo, Error, IoOp, Result};

use super::journal::Journal;
use super::seal::Numbers;
use super::{Cache, Core, Shared};
use crate::graph::patch::Vx;
use crate::graph::{Arrangement, Logging};
use crate::{Ordering, PatchId};

/// Where a block of a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// The block on the device of the cache.
    pub block: BlockNo,
    /// What makes it part of the volume: changes of it come after this.
    pub after: PatchId,
}

impl Spot {
    /// A block that has always been there.
    #[must_use]
    pub const fn stable(block: BlockNo) -> Self {
        Self { block, after: PatchId::NONE }
    }
}

/// Where the blocks of a volume are among those of the cache's device.
pub trait Placement: Send + Sync {
    /// Blocks of the volume.
    fn block_count(&self) -> u64;

    /// Where a block is: `None` for a hole of the file that the volume is in, or a number outside the volume. To be
    /// answered at once, under any lock.
    fn find(&self, no: BlockNo) -> Option<Spot>;

    /// Gives a block a place, if it has none. May do I/O, holding whatever locks the volume's file system holds.
    ///
    /// # Errors
    /// `ENOSPC`, and what writing the file below can fail with.
    fn fill(&self, no: BlockNo) -> Result<Spot> {
        self.find(no).ok_or_else(|| outside(no))
    }

    /// The blocks' numbers, both ways: what a volume must have whose blocks are sealed.
    fn numbers(&self) -> Option<Arc<dyn Numbers>> {
        None
    }

    /// The volume below whose journal takes the contents of files, and with them every change of this one.
    fn logged_by(&self) -> Option<Arc<Cache>> {
        None
    }

    /// The number that a block has in the volume below, for those that [`Placement::logged_by`] speaks of.
    fn number_below(&self, no: BlockNo) -> Option<BlockNo> {
        self.find(no).map(|spot| spot.block)
    }

    /// How often [`Placement::fill`] passed over space that was freed in the volume below, and which it cannot have before that is stable.
    fn barred(&self) -> u64 {
        0
    }

    /// Has that space given. Waits for changes of the volume below; whoever asks has none of this one under way.
    ///
    /// # Errors
    /// What writing the volume below can fail with.
    fn give(&self) -> Result<()> {
        Ok(())
    }
}

/// Neighbouring blocks of the device: a partition, or one device among several.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    /// The first one.
    pub first: BlockNo,
    /// How many.
    pub count: u64,
}

impl Placement for Linear {
    fn block_count(&self) -> u64 {
        self.count
    }

    fn find(&self, no: BlockNo) -> Option<Spot> {
        (no.get() < self.count).then(|| Spot::stable(BlockNo(self.first.get() + no.get())))
    }

    fn numbers(&self) -> Option<Arc<dyn Numbers>> {
        Some(Arc::new(*self))
    }
}

impl Numbers for Linear {
    fn on_device(&self, own: BlockNo) -> Option<BlockNo> {
        (own.get() < self.count).then(|| BlockNo(self.first.get() + own.get()))
    }

    fn of_volume(&self, device: BlockNo) -> Option<BlockNo> {
        device.get().checked_sub(self.first.get()).filter(|own| *own < self.count).map(BlockNo)
    }
}

/// Placements one behind the other: a volume and the device of its journal.
pub struct Pieces(Vec<Arc<dyn Placement>>);

impl Pieces {
    /// In this order.
    #[must_use]
    pub fn new(pieces: Vec<Arc<dyn Placement>>) -> Self {
        Self(pieces)
    }

    /// The piece that holds a block, and the block's number there.
    fn piece(&self, no: BlockNo) -> Option<(&dyn Placement, BlockNo)> {
        let mut left = no.get();
        for piece in &self.0 {
            if left < piece.block_count() {
                return Some((&**piece, BlockNo(left)));
            }
            left -= piece.block_count();
        }
        None
    }
}

impl Placement for Pieces {
    fn block_count(&self) -> u64 {
        self.0.iter().map(|piece| piece.block_count()).sum()
    }

    fn find(&self, no: BlockNo) -> Option<Spot> {
        let (piece, no) = self.piece(no)?;
        piece.find(no)
    }

    fn fill(&self, no: BlockNo) -> Result<Spot> {
        let (piece, inner) = self.piece(no).ok_or_else(|| outside(no))?;
        piece.fill(inner)
    }

    fn numbers(&self) -> Option<Arc<dyn Numbers>> {
        let of_piece = |piece: &Arc<dyn Placement>| Some((piece.block_count(), piece.numbers()?));
        Some(Arc::new(NumbersOfPieces(self.0.iter().map(of_piece).collect::<Option<_>>()?)))
    }

    fn logged_by(&self) -> Option<Arc<Cache>> {
        self.0.iter().find_map(|piece| piece.logged_by())
    }

    fn number_below(&self, no: BlockNo) -> Option<BlockNo> {
        let (piece, no) = self.piece(no)?;
        piece.number_below(no)
    }

    fn barred(&self) -> u64 {
        self.0.iter().map(|piece| piece.barred()).sum()
    }

    fn give(&self) -> Result<()> {
        self.0.iter().try_for_each(|piece| piece.give())
    }
}

/// The numbers of [`Pieces`]: how many blocks each has, and its own.
struct NumbersOfPieces(Vec<(u64, Arc<dyn Numbers>)>);

impl Numbers for NumbersOfPieces {
    fn on_device(&self, own: BlockNo) -> Option<BlockNo> {
        let mut left = own.get();
        for (count, piece) in &self.0 {
            if left < *count {
                return piece.on_device(BlockNo(left));
            }
            left -= count;
        }
        None
    }

    fn of_volume(&self, device: BlockNo) -> Option<BlockNo> {
        let mut before = 0;
        for (count, piece) in &self.0 {
            if let Some(within) = piece.of_volume(device) {
                return Some(BlockNo(before + within.get()));
            }
            before += count;
        }
        None
    }
}

/// How a volume of a cache behaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct VolumeOptions {
    /// Whether dependencies are kept.
    pub ordering: Ordering,
    /// Refuse every change.
    pub read_only: bool,
}

/// What the core keeps of a volume.
#[derive(Debug, Default)]
pub(super) struct VolumeState {
    pub(super) journal: Option<Journal>,
    /// Why it takes no more changes, where the others do.
    pub(super) poison: Option<Error>,
    /// How many caches stand for it.
    users: usize,
}

/// How a volume's numbers become the device's: `None` where they are the same.
#[derive(Clone)]
pub(super) struct Mapping(pub(super) Option<Arc<dyn Placement>>);

impl Mapping {
    /// Where a block is, as far as it is anywhere.
    pub(super) fn find(&self, no: BlockNo) -> Option<Spot> {
        self.0.as_ref().map_or(Some(Spot::stable(no)), |placement| placement.find(no))
    }

    /// Where a block is, from now on.
    pub(super) fn fill(&self, no: BlockNo) -> Result<Spot> {
        let Some(placement) = &self.0 else { return Ok(Spot::stable(no)) };
        match placement.find(no) {
            Some(spot) => Ok(spot),
            None => placement.fill(no),
        }
    }
}

impl std::fmt::Debug for Mapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Mapping(placed)" } else { "Mapping(same)" })
    }
}

impl Cache {
    /// A volume on part of this cache's device: block numbers, mechanism and journal of its own; the graph, the memory
    /// and the flusher are shared. Its blocks are nobody else's to change while it exists.
    ///
    /// Where the volume below journals contents, all changes go through that journal, whatever `options` say.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if 255 volumes exist.
    pub fn volume(&self, placement: Arc<dyn Placement>, options: VolumeOptions) -> Result<Arc<Self>> {
        let shared = Arc::clone(&self.shared);
        let below = placement.logged_by();
        let (volume, journaled) = match &below {
            Some(below) => {
                shared.core().volumes[usize::from(below.volume)].users += 1;
                (below.volume, Arc::clone(&below.journaled))
            }
            None => (shared.core().add_volume(options.ordering)?, Arc::new(AtomicBool::new(false))),
        };
        let holder = shared.seals.enter().inspect_err(|_| shared.core().leave_volume(volume))?;
        let mut own = shared.options.clone();
        own.read_only |= options.read_only;
        own.ordering = options.ordering;
        Ok(Arc::new(Self {
            shared,
            flusher: Mutex::new(None),
            volume,
            below,
            block_count: placement.block_count(),
            mapping: Mapping(Some(placement)),
            holder,
            options: own,
            journaled,
        }))
    }
}

impl Cache {
    /// Where a block of this volume is on the device; `None` for a hole.
    #[must_use]
    pub fn find(&self, no: BlockNo) -> Option<Spot> {
        self.mapping.find(no)
    }

    /// [`Placement::barred`] of where this volume is.
    #[must_use]
    pub fn barred_below(&self) -> u64 {
        self.mapping.0.as_ref().map_or(0, |placement| placement.barred())
    }

    /// [`Placement::give`] of where this volume is.
    ///
    /// # Errors
    /// What writing the volume below can fail with.
    pub fn give_below(&self) -> Result<()> {
        self.mapping.0.as_ref().map_or(Ok(()), |placement| placement.give())
    }

    /// Whether the contents of files go through this volume's journal, which has been started.
    #[must_use]
    pub fn journals_contents(&self) -> bool {
        let core = self.shared.core();
        core.journal(self.volume).is_some_and(|journal| journal.mode() == crate::JournalMode::Full)
    }

    /// Whether the log may have contents of files, whatever its mode.
    #[must_use]
    pub fn has_logged_contents(&self) -> bool {
        let core = self.shared.core();
        let in_log = core.graph.logging(self.volume).is_some_and(Logging::has_logged_contents);
        in_log || core.journal(self.volume).is_some_and(|journal| journal.mode() == crate::JournalMode::Full)
    }

    /// Bytes of the log below that takes all changes of this volume.
    pub(super) fn log_bytes_below(&self) -> Option<usize> {
        self.below.as_ref()?;
        let core = self.shared.core();
        let blocks = core.journal(self.volume)?.log_blocks();
        Some(to_usize(blocks) * self.shared.block_size)
    }

    /// Whether all changes go through the journal of the volume below.
    pub(super) fn is_logged_below(&self) -> bool {
        self.below.is_some()
    }

    /// The number of a block in the volume whose mechanism its changes obey.
    pub(super) fn number_there(&self, no: BlockNo) -> BlockNo {
        match (&self.below, &self.mapping.0) {
            (Some(below), Some(placement)) => {
                let no = placement.number_below(no).expect("a block that is held has a place");
                below.number_there(no)
            }
            _ => no,
        }
    }
}

impl Core {
    fn add_volume(&mut self, ordering: Ordering) -> Result<Vx> {
        let arrangement = match ordering {
            Ordering::Kept => Arrangement::Given,
            Ordering::Dropped => Arrangement::Dropped,
        };
        let unused = |volume: &Vx| {
            self.volumes[usize::from(*volume)].users == 0 && self.graph.patches_of(*volume).is_empty()
        };
        let count = Vx::try_from(self.volumes.len())
            .map_err(|_| Error::Unsupported("more than 255 volumes in one stack".to_owned()))?;
        let volume = (1..count).find(unused).unwrap_or(count);
        let at = usize::from(volume);
        if at == self.volumes.len() {
            self.volumes.push(VolumeState::default());
            self.graph.arrangements.push(Arrangement::Given);
        }
        self.volumes[at] = VolumeState { users: 1, ..VolumeState::default() };
        self.graph.arrangements[at] = arrangement;
        Ok(volume)
    }

    /// Somebody who stood for a volume is gone.
    pub(super) fn leave_volume(&mut self, volume: Vx) {
        let users = &mut self.volumes[usize::from(volume)].users;
        *users = users.saturating_sub(1);
    }

    pub(super) fn journal(&self, volume: Vx) -> Option<&Journal> {
        self.volumes[usize::from(volume)].journal.as_ref()
    }

    pub(super) fn journal_mut(&mut self, volume: Vx) -> Option<&mut Journal> {
        self.volumes[usize::from(volume)].journal.as_mut()
    }

    pub(super) fn take_journal(&mut self, volume: Vx) -> Option<Journal> {
        self.volumes[usize::from(volume)].journal.take()
    }

    /// All volumes' journals, when nobody is left to use them.
    pub(super) fn take_journals(&mut self) -> Vec<Journal> {
        self.volumes.iter_mut().filter_map(|volume| volume.journal.take()).collect()
    }

    pub(super) fn put_journal(&mut self, volume: Vx, journal: Journal) {
        self.volumes[usize::from(volume)].journal = Some(journal);
    }

    /// The volumes that keep journals.
    pub(super) fn journaled(&self) -> impl Iterator<Item = Vx> + use<> {
        let kept: Vec<Vx> = (0..=Vx::MAX)
            .zip(&self.volumes)
            .filter_map(|(vx, state)| state.journal.as_ref().map(|_| vx))
            .collect();
        kept.into_iter()
    }
}

impl Shared {
    /// Fails if an earlier failure ended all writing, or that to this volume.
    pub(super) fn check_volume(core: &Core, volume: Vx) -> Result<()> {
        Self::check_poison(core)?;
        core.volumes[usize::from(volume)].poison.clone().map_or(Ok(()), Err)
    }
}

pub(super) fn outside(no: BlockNo) -> Error {
    Error::io(IoOp::Read, no, std::io::Error::other("the block lies outside the device"))
}
