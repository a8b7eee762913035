//! A transaction closes: what it changed becomes blocks of the log.
//!
//! First what the volume's seal says about changed bitmaps is settled, then every block is sealed ([`Seal`](super::super::Seal)).
//!
//! **Layout.** As [`Writer`] has it.
//!
//! **Orderings.** Copies, descriptors and revokes → the tail patch that gave their blocks back. Commit record → all of them,
//! the transaction's plain contents, the previous commit record. Home patches → commit record, by the held patch.

use std::sync::Arc;

use fstitch_core::num::to_u64;
use fstitch_core::{BlockBuf, BlockKind, BlockNo, Error, Result};

use super::super::seal::{Logged, Said};
use super::{Closed, Core, Journal, Shared};
use crate::PatchId;
use crate::graph::patch::{Change, Px, Site, Sx, Vx};
use crate::graph::{ChangeContents as Contents, Home, Running, Slot};
use crate::journal::{Described, Writer};
use crate::observer::What;

/// A transaction on its way into the log.
struct Closing {
    volume: Vx,
    /// Blocks with copies, in order of their numbers.
    homes: Vec<(BlockNo, Sx, Px)>,
    revoked: Vec<u64>,
    /// What the commit record comes after.
    befores: Vec<PatchId>,
    writer: Writer,
}

impl Shared {
    /// Closes the running transaction of a volume. No operation may be under way there.
    pub(super) fn close(&self, core: &mut Core, volume: Vx) {
        let Some(journal) = core.journal_mut(volume) else { return };
        debug_assert!(journal.handles == 0, "operations end before their transaction");
        journal.closing = false;
        self.changed.notify_all();
        if core.poison.is_some() {
            return;
        }
        if let Err(why) = self.settle_bitmaps(core, volume) {
            core.poison = Some(why);
            core.tell(|_| What::Poisoned);
            return;
        }
        let Some(running) = core.graph.take_running(volume) else { return };
        core.graph.new_moment();
        core.graph.release(running.data);
        if running.homes.is_empty() && running.revoked.is_empty() {
            core.graph.dissolve(volume, &running);
            return;
        }
        let need = Self::log_need(core, volume, &running);
        self.make_log_room(core, volume, need);
        let journal = core.journal_mut(volume).expect("looked at above");
        if journal.ring.free() < need {
            let all = journal.superblock.log_blocks();
            let why = format!("a transaction of {need} blocks does not fit the journal's {all}");
            core.poison.get_or_insert_with(|| Error::Poisoned(why.into()));
            core.tell(|_| What::Poisoned);
            return;
        }
        self.log(core, volume, running, need);
        self.kick.notify_all();
    }

    /// What the volume says elsewhere about the bitmaps that the transaction has logged becomes part of it.
    fn settle_bitmaps(&self, core: &mut Core, volume: Vx) -> Result<()> {
        if self.seals.are_none() {
            return Ok(());
        }
        let running = core.graph.logging(volume).and_then(|logging| logging.running.as_ref());
        let slots =
            running.into_iter().flat_map(|running| running.homes.keys()).map(|&sx| core.graph.slot(sx));
        let is_bitmap = |slot: &&Slot| matches!(slot.kind, BlockKind::BlockBitmap | BlockKind::InodeBitmap);
        let logged = |slot: &Slot| (slot.no, slot.holder, slot.kind, Arc::clone(slot.loaded()));
        let mut bitmaps: Vec<Logged> = slots.filter(is_bitmap).map(logged).collect();
        bitmaps.sort_unstable_by_key(|&(no, holder, ..)| (holder, no));
        for Said { own, place, offset, bytes } in self.seals.settle(&bitmaps) {
            let slot = place.and_then(|(device, there)| Some((*core.index.get(&device)?, there)));
            let Some((slot, no)) = slot.filter(|&(sx, _)| core.graph.slot(sx).data.is_some()) else {
                let why = format!("block {own}, which says what a bitmap is, is not in memory");
                return Err(Error::Poisoned(why.into()));
            };
            let narrow = |n: usize| u32::try_from(n).expect("blocks are small");
            let change = Change::Bytes { offset: narrow(offset), len: narrow(bytes.len()) };
            core.graph.change(Site { volume, slot, no }, change, &Contents::Bytes(&bytes), &[]);
        }
        Ok(())
    }

    /// Blocks of the log that the transaction takes.
    fn log_need(core: &Core, volume: Vx, running: &Running) -> u32 {
        let shape = &Self::journal(core, volume).shape;
        let need = Writer::need(shape, running.homes.len(), running.revoked.len());
        u32::try_from(need).unwrap_or(u32::MAX)
    }

    fn log(&self, core: &mut Core, volume: Vx, running: Running, need: u32) {
        let mut homes: Vec<(BlockNo, Sx, Px)> =
            running.homes.iter().map(|(&sx, &Home { patch, no })| (no, sx, patch)).collect();
        homes.sort_unstable_by_key(|&(no, ..)| no);
        let last_commit = core.graph.logging(volume).map_or(PatchId::NONE, |logging| logging.last_commit);
        let journal = core.journal_mut(volume).expect("a journal is kept");
        let sequence = journal.next;
        journal.next = sequence.next();
        let start = journal.ring.head();
        let writer = Writer::new(journal.shape, sequence);
        let mut closing = Closing {
            volume,
            homes,
            revoked: running.revoked.iter().map(|no| no.get()).collect(),
            befores: vec![running.data, last_commit],
            writer,
        };
        self.seal_homes(core, &closing);
        self.log_revokes(core, &mut closing);
        self.log_copies(core, &mut closing);
        let commit = self.log_commit(core, &closing);
        core.graph.commit_after(running.held, commit);
        let done = match closing.homes.is_empty() {
            // Recovery must know of the revokes until the copies that they are about are gone.
            true => commit,
            false => core.graph.done_after(volume, closing.homes.iter().map(|&(.., px)| px)),
        };
        let blocks: Vec<BlockNo> = closing.homes.iter().map(|&(no, ..)| no).collect();
        let is_contents = |&&(_, sx, _): &&(BlockNo, Sx, Px)| core.graph.slot(sx).kind == BlockKind::Data;
        let contents: Vec<BlockNo> = match running.has_logged_contents {
            true => closing.homes.iter().filter(is_contents).map(|&(no, ..)| no).collect(),
            false => Vec::new(),
        };
        if let Some(logging) = core.graph.logging_mut(volume) {
            logging.last_commit = commit;
            logging.copies.extend(blocks.iter().map(|&no| (no, running.serial)));
            logging.contents.extend(contents.into_iter().map(|no| (no, running.serial)));
        }
        let journal = core.journal_mut(volume).expect("a journal is kept");
        journal.closed_count += 1;
        journal.logged_blocks += u64::from(need);
        journal.revoked += to_u64(closing.revoked.len());
        let (held, serial) = (running.held, running.serial);
        journal.closed.push_back(Closed { serial, sequence, start, len: need, held, done, blocks });
    }

    /// Seals the blocks in memory: copies and homes are one image, and what a later transaction undoes of it is sealed too.
    fn seal_homes(&self, core: &mut Core, closing: &Closing) {
        if self.seals.are_none() {
            return;
        }
        for &(_, sx, _) in &closing.homes {
            let slot = core.graph.slot_mut(sx);
            if let Some(data) = &mut slot.data {
                self.seals.seal_in_place((slot.no, slot.holder, slot.kind, slot.owner), data);
            }
        }
    }

    fn log_revokes(&self, core: &mut Core, closing: &mut Closing) {
        for block in closing.writer.revokes(&closing.revoked) {
            let patch = self.put_log_block(core, closing.volume, BlockKind::JournalRevoke, Arc::new(block));
            closing.befores.push(patch);
        }
    }

    fn log_copies(&self, core: &mut Core, closing: &mut Closing) {
        let volume = closing.volume;
        let tags_max = Self::journal(core, volume).shape.tags_max();
        for homes in closing.homes.chunks(tags_max) {
            let contents = homes.iter().map(|&(no, sx, _)| {
                let slot = core.graph.slot(sx);
                (no, Arc::clone(slot.loaded()))
            });
            let Described { descriptor, copies } = closing.writer.describe(contents);
            let descriptor = Arc::new(descriptor);
            let patch = self.put_log_block(core, volume, BlockKind::JournalDescriptor, descriptor);
            closing.befores.push(patch);
            for copy in copies {
                closing.befores.push(self.put_log_block(core, volume, BlockKind::JournalData, copy));
            }
        }
    }

    fn log_commit(&self, core: &mut Core, closing: &Closing) -> PatchId {
        let block = closing.writer.commit(self.clock.now());
        let block = (BlockKind::JournalCommit, Arc::new(block));
        self.put_log_block_after(core, closing.volume, block, &closing.befores)
    }

    fn journal(core: &Core, volume: Vx) -> &Journal {
        core.journal(volume).expect("a journal is kept")
    }

    /// Puts `contents` into the next block of the log.
    fn put_log_block(
        &self,
        core: &mut Core,
        volume: Vx,
        kind: BlockKind,
        contents: Arc<BlockBuf>,
    ) -> PatchId {
        self.put_log_block_after(core, volume, (kind, contents), &[])
    }

    /// The same, after `befores`.
    fn put_log_block_after(
        &self,
        core: &mut Core,
        volume: Vx,
        (kind, contents): (BlockKind, Arc<BlockBuf>),
        befores: &[PatchId],
    ) -> PatchId {
        let journal = core.journal_mut(volume).expect("a journal is kept");
        let (no, after) = journal.ring.take();
        let block = journal.area.map(u64::from(no)).expect("the area holds the whole log");
        let spot = journal.placement.find(block).expect("every block of the log was given a place");
        let slot = self.fresh_slot(core, spot, kind);
        let len = u32::try_from(self.block_size).expect("blocks are small");
        let mut all = befores.to_vec();
        all.push(after);
        let (site, change) = (Site { volume, slot, no: block }, Change::Bytes { offset: 0, len });
        core.graph.change_plain(site, change, &Contents::Block(contents), &all)
    }
}
