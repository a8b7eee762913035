//! Hits, misses and pins.
//!
//! A miss puts an empty slot into the index, reads outside the core lock and fills the slot; others who want the
//! block meanwhile wait for that one read.

use std::sync::Arc;

use fstitch_core::num::to_u64;
use fstitch_core::order::{Rank, assert_below};
use fstitch_core::{BlockBuf, BlockKind, BlockNo, BlockRead, Result};

use smallvec::SmallVec;

use super::seal::of_another;
use super::volume::{Spot, outside};
use super::{Block, Cache, Core, CoreGuard, Shared};
use crate::graph::Holder;
use crate::graph::patch::Sx;

impl Cache {
    /// The block, read from the device on a miss. Not to be called while holding the core lock.
    ///
    /// # Errors
    /// [`fstitch_core::Error::Io`] if the block lies outside the device or cannot be read.
    pub fn read(&self, block: BlockNo, kind: BlockKind) -> Result<Block> {
        if let Some(found) = self.look_for(block, |core, sx| self.shared.pin(core, sx))? {
            return Ok(found);
        }
        let mut blocks = self.read_many(&[(block, kind)])?;
        Ok(blocks.pop().expect("one block was asked for"))
    }

    /// A block of somebody's, whose seal is also about whose it is ([`super::Seal`]): as [`Cache::read`], but nobody gets it whose it
    /// is not.
    ///
    /// # Errors
    /// As for [`Cache::read`]; [`fstitch_core::Error::Corrupt`] if it is another one's.
    pub fn read_owned(&self, block: BlockNo, kind: BlockKind, owner: u64) -> Result<Block> {
        if self.shared.seals.are_none() {
            return self.read(block, kind);
        }
        let is_theirs = |core: &Core, sx| core.graph.slot(sx).owner == owner;
        let quick =
            self.look_for(block, |core, sx| is_theirs(core, sx).then(|| self.shared.pin(core, sx)))?;
        if let Some(Some(found)) = quick {
            return Ok(found);
        }
        let mut blocks = self.read_for(&[(block, kind)], owner)?;
        let found = blocks.pop().expect("one block was asked for");
        self.shared.claim(&found, (self.holder, kind, owner))?;
        Ok(found)
    }

    /// As [`Cache::read_owned`] and [`Block::snapshot`] together.
    ///
    /// # Errors
    /// As for [`Cache::read_owned`].
    pub fn read_owned_snapshot(
        &self,
        block: BlockNo,
        kind: BlockKind,
        owner: u64,
    ) -> Result<(Block, Arc<BlockBuf>)> {
        if self.shared.seals.are_none() {
            return self.read_snapshot(block, kind);
        }
        let block = self.read_owned(block, kind, owner)?;
        let contents = block.snapshot();
        Ok((block, contents))
    }

    /// The block with its newest contents as of now, as [`Cache::read`] and [`Block::snapshot`] together.
    ///
    /// # Errors
    /// As for [`Cache::read`].
    pub fn read_snapshot(&self, block: BlockNo, kind: BlockKind) -> Result<(Block, Arc<BlockBuf>)> {
        if let Some(found) = self.look_for(block, |core, sx| {
            let contents = Arc::clone(core.graph.slot(sx).loaded());
            (self.shared.pin(core, sx), contents)
        })? {
            return Ok(found);
        }
        let block = self.read(block, kind)?;
        let contents = block.snapshot();
        Ok((block, contents))
    }

    /// Several blocks; the misses go to the device as one batch.
    ///
    /// # Errors
    /// As for [`Cache::read`].
    pub fn read_many(&self, blocks: &[(BlockNo, BlockKind)]) -> Result<Blocks> {
        if let Some(found) = self.look_for_all(blocks, |core, sx| self.shared.pin(core, sx))? {
            return Ok(found);
        }
        self.read_for(blocks, 0)
    }

    /// Blocks of an owner, which those are verified for that are not in the cache.
    fn read_for(&self, blocks: &[(BlockNo, BlockKind)], owner: u64) -> Result<Blocks> {
        let wanted = self.wanted(blocks, owner)?;
        loop {
            if let Some(found) = self.shared.find_or_load(&wanted)? {
                return Ok(self.numbered(found, blocks));
            }
        }
    }

    /// The newest contents of several blocks as of now; the misses go to the device as one batch.
    ///
    /// # Errors
    /// As for [`Cache::read`].
    pub fn snapshots(&self, blocks: &[(BlockNo, BlockKind)]) -> Result<Snapshots> {
        let contents = |core: &Core, sx| Arc::clone(core.graph.slot(sx).loaded());
        if let Some(found) = self.look_for_all(blocks, contents)? {
            return Ok(found);
        }
        let blocks = self.read_many(blocks)?;
        let core = self.shared.core();
        Ok(blocks.iter().map(|block| contents(&core, block.slot)).collect())
    }

    /// The quick way to a block that is in the cache, where numbers are the device's.
    fn look_for<T>(&self, no: BlockNo, take: impl FnOnce(&Core, Sx) -> T) -> Result<Option<T>> {
        self.check_inside(no)?;
        if self.mapping.0.is_some() {
            return Ok(None);
        }
        let mut core = self.shared.core();
        let Found::Loaded(sx) = self.shared.look_up(&mut core, no) else { return Ok(None) };
        if core.graph.slot(sx).holder != self.holder {
            return Ok(None);
        }
        core.graph.stats.cache_hits += 1;
        Ok(Some(take(&core, sx)))
    }

    /// The same for several, if all are there.
    fn look_for_all<T>(
        &self,
        blocks: &[(BlockNo, BlockKind)],
        take: impl Fn(&Core, Sx) -> T,
    ) -> Result<Option<SmallVec<[T; 4]>>> {
        blocks.iter().try_for_each(|&(no, _)| self.check_inside(no))?;
        if self.mapping.0.is_some() {
            return Ok(None);
        }
        let mut found = SmallVec::with_capacity(blocks.len());
        let mut core = self.shared.core();
        for &(no, _) in blocks {
            let Found::Loaded(sx) = self.shared.look_up(&mut core, no) else { return Ok(None) };
            if core.graph.slot(sx).holder != self.holder {
                return Ok(None);
            }
            found.push(take(&core, sx));
        }
        core.graph.stats.cache_hits += to_u64(blocks.len());
        Ok(Some(found))
    }

    /// Where blocks are on the device.
    fn wanted(&self, blocks: &[(BlockNo, BlockKind)], owner: u64) -> Result<SmallVec<[Wanted; 2]>> {
        let claimed = self.mapping.0.is_some();
        let wanted = |&(no, kind): &(BlockNo, BlockKind)| {
            self.check_inside(no)?;
            let spot = match self.mapping.find(no) {
                Some(spot) => spot,
                None if self.options.read_only => Spot::stable(HOLE),
                None => {
                    self.mapping.fill(no).inspect_err(|_| self.shared.core().graph.stats.read_errors += 1)?
                }
            };
            Ok(Wanted { spot, no, kind, owner, holder: self.holder, claimed })
        };
        blocks.iter().map(wanted).collect()
    }

    /// Blocks with the numbers that they have in the volume.
    fn numbered(&self, mut found: Blocks, blocks: &[(BlockNo, BlockKind)]) -> Blocks {
        if self.mapping.0.is_some() {
            found.iter_mut().zip(blocks).for_each(|(block, &(no, _))| block.no = no);
        }
        found
    }

    fn check_inside(&self, no: BlockNo) -> Result<()> {
        if no.get() < self.block_count { Ok(()) } else { Err(outside(no)) }
    }

    /// A handle to a block whose old contents do not matter: no read; zeros in memory if it was not cached.
    /// The caller's first change must overwrite all of it ([`super::Tx::init`]).
    ///
    /// # Errors
    /// [`fstitch_core::Error::Io`] if the block lies outside the device.
    pub fn fresh(&self, block: BlockNo, kind: BlockKind) -> Result<Block> {
        self.fresh_owned(block, kind, 0)
    }

    /// The same for a block that becomes somebody's, whosever it was: its seal says whose.
    ///
    /// # Errors
    /// As for [`Cache::fresh`].
    pub fn fresh_owned(&self, block: BlockNo, kind: BlockKind, owner: u64) -> Result<Block> {
        self.check_inside(block)?;
        let spot = self.mapping.fill(block)?;
        let mut core = self.shared.core();
        let sx = loop {
            match self.shared.look_up(&mut core, spot.block) {
                Found::Loaded(sx) => break sx,
                Found::Loading => core = self.shared.wait(core),
                Found::Missing => break self.shared.add_fresh(&mut core, spot.block, kind),
            }
        };
        let slot = core.graph.slot_mut(sx);
        (slot.kind, slot.owner, slot.holder) = (kind, owner, self.holder);
        slot.reach = spot.after;
        Ok(Block { no: block, ..self.shared.pin(&core, sx) })
    }

    /// Reads blocks that will be wanted soon into the cache. Best effort: errors are left to the real read.
    pub fn prefetch(&self, blocks: &[(BlockNo, BlockKind)]) {
        let limit = self.shared.options.cache_size / 8 / self.shared.block_size;
        let absent: Vec<_> = {
            let core = self.shared.core();
            let absent = |(no, _): &(BlockNo, BlockKind)| {
                self.mapping.find(*no).is_some_and(|spot| !core.index.contains_key(&spot.block))
            };
            blocks.iter().copied().filter(absent).take(limit).collect()
        };
        if !absent.is_empty() {
            drop(self.read_many(&absent));
        }
    }
}

/// Handles to blocks that were asked for together: mostly few.
pub type Blocks = SmallVec<[Block; 4]>;
/// The contents of blocks that were asked for together.
pub type Snapshots = SmallVec<[Arc<BlockBuf>; 4]>;

/// Stands for all holes of the file that a volume is in, where nobody writes.
pub(super) const HOLE: BlockNo = BlockNo(u64::MAX);

/// A block that somebody asks for.
struct Wanted {
    spot: Spot,
    /// Its number in the volume.
    no: BlockNo,
    kind: BlockKind,
    /// Whose it should be; 0 if nobody says.
    owner: u64,
    /// Who asks.
    holder: Holder,
    /// By a volume whose it is: the kind is true.
    claimed: bool,
}

enum Found {
    Loaded(Sx),
    Loading,
    Missing,
}

impl Shared {
    /// One attempt: `None` if somebody else was reading one of the blocks, or a block went away between our
    /// read and now.
    fn find_or_load(self: &Arc<Self>, blocks: &[Wanted]) -> Result<Option<Blocks>> {
        let mut core = self.core();
        let mut found: Vec<Option<Block>> = Vec::with_capacity(blocks.len());
        let mut missing: Vec<(usize, Sx, Block)> = Vec::new();
        let mut loading_elsewhere = false;
        for (at, wanted) in blocks.iter().enumerate() {
            let &Wanted { spot: Spot { block: no, after }, kind, holder, .. } = wanted;
            match self.look_up(&mut core, no) {
                Found::Loaded(sx) => {
                    core.graph.stats.cache_hits += 1;
                    if let Err(refused) = self.hold(&mut core, sx, wanted) {
                        core.graph.stats.read_errors += 1;
                        self.abandon(core, missing);
                        return Err(refused);
                    }
                    found.push(Some(self.pin(&core, sx)));
                }
                Found::Loading => {
                    loading_elsewhere |= !missing.iter().any(|(_, _, block)| block.no == no);
                    found.push(None);
                }
                Found::Missing if no == HOLE => {
                    let sx = self.add_fresh(&mut core, no, kind);
                    found.push(Some(self.pin(&core, sx)));
                }
                Found::Missing => {
                    core.graph.stats.cache_misses += 1;
                    self.make_room(&mut core, self.block_size);
                    let sx = core.graph.add_slot(no, kind, None);
                    let slot = core.graph.slot_mut(sx);
                    (slot.reach, slot.holder) = (after, holder);
                    core.index.insert(no, sx);
                    core.loaded += 1;
                    missing.push((at, sx, self.pin(&core, sx)));
                    found.push(None);
                }
            }
        }
        if missing.is_empty() && !loading_elsewhere {
            return Ok(found.into_iter().collect());
        }
        if missing.is_empty() {
            drop(self.wait(core));
            return Ok(None);
        }
        drop(core);
        for (at, block) in self.load(blocks, missing)? {
            found[at] = Some(block);
        }
        Ok(found.into_iter().collect())
    }

    /// A block that is there is somebody's who asks for it, from now on, if it may be.
    fn hold(&self, core: &mut Core, sx: Sx, wanted: &Wanted) -> Result<()> {
        let &Wanted { spot: Spot { block, after }, no, kind, owner, holder, claimed } = wanted;
        let slot = core.graph.slot_mut(sx);
        if slot.holder == holder {
            if claimed {
                (slot.kind, slot.reach) = (kind, after);
            }
            return Ok(());
        }
        if block == HOLE {
            return Ok(());
        }
        let is_gone = self.seals.is_gone(slot.holder);
        let is_left = is_gone && self.is_settled(core, sx);
        if is_gone {
            self.leave_sealed(core, sx);
        }
        let slot = core.graph.slot_mut(sx);
        if !is_left && holder < slot.holder {
            return if self.seals.covers(holder, kind) { Err(of_another(no)) } else { Ok(()) };
        }
        self.seals.verify((block, holder, kind, owner), slot.loaded())?;
        (slot.kind, slot.owner, slot.holder, slot.reach) = (kind, owner, holder, after);
        Ok(())
    }

    /// Whether nothing of a block is to be sealed any more: it has no changes that are not in flight, or all are in a log, or it has no
    /// seal.
    fn is_settled(&self, core: &Core, sx: Sx) -> bool {
        let slot = core.graph.slot(sx);
        slot.patches.is_empty() || core.graph.is_in_log(sx) || !self.seals.covers(slot.holder, slot.kind)
    }

    /// The block in memory becomes what it is on the medium, where it was sealed on the way, or would be.
    fn leave_sealed(&self, core: &mut Core, sx: Sx) {
        let slot = core.graph.slot_mut(sx);
        let described = (slot.no, slot.holder, slot.kind, slot.owner);
        if let Some(data) = &mut slot.data {
            self.seals.seal_in_place(described, data);
        }
    }

    /// Reads the missing blocks as one batch and fills their slots.
    fn load(
        self: &Arc<Self>,
        blocks: &[Wanted],
        mut missing: Vec<(usize, Sx, Block)>,
    ) -> Result<Vec<(usize, Block)>> {
        missing.sort_unstable_by_key(|(_, _, block)| block.no);
        let mut buffers: Vec<BlockBuf> = missing.iter().map(|_| BlockBuf::zeroed(self.block_size)).collect();
        let mut reads: Vec<BlockRead<'_>> = missing
            .iter()
            .zip(&mut buffers)
            .map(|(&(at, _, ref block), buf)| BlockRead { block: block.no, kind: blocks[at].kind, data: buf })
            .collect();
        assert_below(Rank::Core, "reading");
        let outcome = self.medium.read(&mut reads);
        let verify = |(read, &(at, ..)): (&BlockRead<'_>, &(usize, Sx, Block))| {
            let Wanted { holder, owner, .. } = blocks[at];
            self.seals.verify((read.block, holder, read.kind, owner), read.data)
        };
        let outcome = outcome.and_then(|()| reads.iter().zip(&missing).try_for_each(verify));
        let mut core = self.core();
        if let Err(error) = outcome {
            core.graph.stats.read_errors += 1;
            self.abandon(core, missing);
            return Err(error);
        }
        let mut filled = Vec::with_capacity(missing.len());
        for ((at, sx, block), buffer) in missing.into_iter().zip(buffers) {
            let slot = core.graph.slot_mut(sx);
            (slot.data, slot.owner) = (Some(Arc::new(buffer)), blocks[at].owner);
            core.note_clean(sx);
            filled.push((at, block));
        }
        self.changed.notify_all();
        Ok(filled)
    }

    /// Takes slots out again whose read failed or never started.
    fn abandon(&self, mut core: CoreGuard<'_>, missing: Vec<(usize, Sx, Block)>) {
        for (_, sx, _) in &missing {
            self.forget(&mut core, *sx);
        }
        self.changed.notify_all();
        drop(core);
    }

    fn add_fresh(&self, core: &mut Core, block: BlockNo, kind: BlockKind) -> Sx {
        self.make_room(core, self.block_size);
        let sx = core.graph.add_slot(block, kind, Some(Arc::clone(&self.zeros)));
        core.index.insert(block, sx);
        core.loaded += 1;
        core.note_clean(sx);
        sx
    }

    /// As [`Cache::fresh`], under the core lock, for a block that nobody else reads.
    pub(super) fn fresh_slot(&self, core: &mut Core, spot: Spot, kind: BlockKind) -> Sx {
        let sx = match self.look_up(core, spot.block) {
            Found::Loaded(sx) => sx,
            Found::Loading => unreachable!("the log is written, never read"),
            Found::Missing => self.add_fresh(core, spot.block, kind),
        };
        let slot = core.graph.slot_mut(sx);
        (slot.kind, slot.owner, slot.holder, slot.reach) = (kind, 0, 0, spot.after);
        sx
    }

    fn look_up(&self, core: &mut Core, no: BlockNo) -> Found {
        let Some(&sx) = core.index.get(&no) else { return Found::Missing };
        let slot = core.graph.slot_mut(sx);
        if slot.data.is_none() {
            return Found::Loading;
        }
        if slot.stale && slot.is_clean() && !slot.is_pinned() {
            self.forget(core, sx);
            return Found::Missing;
        }
        slot.referenced = true;
        Found::Loaded(sx)
    }

    pub(super) fn pin(self: &Arc<Self>, core: &Core, sx: Sx) -> Block {
        let slot = core.graph.slot(sx);
        Block { shared: Arc::clone(self), slot: sx, no: slot.no, _pin: Arc::clone(&slot.pin) }
    }
}
