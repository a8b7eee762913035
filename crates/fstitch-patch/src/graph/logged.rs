//! How changes become patches where a journal is kept: see `docs/design/journal.md`.
//!
//! A *logged* change belongs to the running transaction: it joins the block's home patch of that transaction, which
//! depends on the transaction's held patch, or makes one. A *plain* change goes straight to its place.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{BlockKind, BlockNo};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::create::Contents;
use super::patch::{Change, NO_SLOT, Px, Role, Site, Sx, Undo, Vx};
use super::{Graph, at};
use crate::{JournalMode, PatchId};

/// What becomes of the dependencies that come with changes.
#[derive(Debug, Default)]
pub(crate) enum Arrangement {
    /// They are kept.
    #[default]
    Given,
    /// They are dropped.
    Dropped,
    /// Changes are collected in transactions.
    Logged(Box<Logging>),
}

/// The transaction that takes changes, and what outlives it.
#[derive(Debug)]
pub(crate) struct Logging {
    pub(crate) mode: JournalMode,
    pub(crate) running: Option<Running>,
    /// Plain changes that come after the last transaction, and before the commit record of the next.
    late: Vec<PatchId>,
    /// The number of the last transaction.
    serial: u64,
    /// The commit record of the last closed transaction.
    pub(crate) last_commit: PatchId,
    /// Blocks with a copy in the live log, and the last transaction that has one.
    pub(crate) copies: FxHashMap<BlockNo, u64>,
}

/// A transaction that takes changes.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) serial: u64,
    /// All home patches depend on it; it is held until the commit record exists.
    pub(crate) held: PatchId,
    /// Held as well: the plain changes that must be stable before the commit record.
    pub(crate) data: PatchId,
    /// The home patches, by their blocks.
    pub(crate) homes: FxHashMap<Sx, Home>,
    /// Blocks whose older copies recovery must leave alone.
    pub(crate) revoked: BTreeSet<BlockNo>,
    pub(crate) born: Duration,
}

/// A block that a transaction has changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    pub(crate) patch: Px,
    /// The block's number in the volume whose journal it is.
    pub(crate) no: BlockNo,
}

impl JournalMode {
    /// Whether changes of such blocks go through the log.
    pub(crate) fn logs(self, kind: BlockKind) -> bool {
        !kind.is_journal() && (self == Self::Full || kind != BlockKind::Data)
    }
}

impl Logging {
    pub(crate) fn new(mode: JournalMode) -> Self {
        Self {
            mode,
            running: None,
            late: Vec::new(),
            serial: 0,
            last_commit: PatchId::NONE,
            copies: FxHashMap::default(),
        }
    }
}

impl Graph {
    pub(crate) fn logging(&self, volume: Vx) -> Option<&Logging> {
        match &self.arrangements[usize::from(volume)] {
            Arrangement::Logged(logging) => Some(logging),
            _ => None,
        }
    }

    pub(crate) fn logging_mut(&mut self, volume: Vx) -> Option<&mut Logging> {
        match &mut self.arrangements[usize::from(volume)] {
            Arrangement::Logged(logging) => Some(logging),
            _ => None,
        }
    }

    /// A change as the arrangement has it.
    pub(crate) fn change(
        &mut self,
        site: Site,
        change: Change,
        new: &Contents<'_>,
        befores: &[PatchId],
    ) -> PatchId {
        let mode = match &self.arrangements[usize::from(site.volume)] {
            Arrangement::Given => return self.change_plain(site, change, new, befores),
            Arrangement::Dropped => return self.change_plain(site, change, new, &[]),
            Arrangement::Logged(logging) => logging.mode,
        };
        if mode.logs(self.slots[at(site.slot)].kind) {
            let px = self.change_logged(site, change, new);
            return self.arena.id(px);
        }
        let id = self.change_plain(site, change, new, befores);
        if mode == JournalMode::Ordered {
            self.order_data(site.volume, id);
        }
        id
    }

    /// The change joins the block's home patch of the running transaction, or begins it.
    fn change_logged(&mut self, site: Site, change: Change, new: &Contents<'_>) -> Px {
        let Site { volume, slot: sx, no } = site;
        self.assert_inside(sx, change);
        self.start_transaction(volume);
        let running = self.running_mut(volume).expect("just started");
        let (held, serial) = (running.held, running.serial);
        if let Some(&Home { patch, .. }) = running.homes.get(&sx) {
            self.stats.patches_merged_logged += 1;
            self.apply(sx, change, new);
            return patch;
        }
        running.revoked.remove(&no);
        let slot = &self.slots[at(sx)];
        let block_size = u32::try_from(slot.loaded().len()).expect("blocks are small");
        let whole = Change::Bytes { offset: 0, len: block_size };
        let home = if slot.patches.is_empty() && self.optimizations.hard_patches {
            self.insert(site, whole, Undo::None, true)
        } else {
            // An earlier patch must stay writable without this one.
            let soft: SmallVec<[Px; 8]> =
                slot.patches.iter().copied().filter(|&px| Some(px) != slot.hard).collect();
            let undo = Undo::Block(Arc::clone(slot.loaded()));
            let below = self.topmost(whole, &soft);
            let home = self.insert(site, whole, undo, false);
            below.into_iter().for_each(|before| self.add_edge(home, before));
            home
        };
        let held = self.arena.resolve(held).expect("held while the transaction runs");
        self.add_edge(home, held);
        let reach = self.live(&[self.slots[at(sx)].reach], Some(sx));
        reach.into_iter().for_each(|before| self.add_edge(home, before));
        let patch = self.patch_mut(home);
        patch.home = true;
        patch.serial = serial;
        self.apply(sx, change, new);
        let running = self.running_mut(volume).expect("running");
        running.homes.insert(sx, Home { patch: home, no });
        self.note_live();
        home
    }

    fn running_mut(&mut self, volume: Vx) -> Option<&mut Running> {
        self.logging_mut(volume)?.running.as_mut()
    }

    /// Begins a transaction if none runs.
    fn start_transaction(&mut self, volume: Vx) {
        let Some(logging) = self.logging_mut(volume) else { return };
        if logging.running.is_some() {
            return;
        }
        logging.serial += 1;
        let serial = logging.serial;
        let late = std::mem::take(&mut logging.late);
        let last_commit = logging.last_commit;
        let data = self.hold(volume, &late);
        // What its commit record will come after is known to the merge conditions from the start.
        let held = self.hold(volume, &[data, last_commit]);
        let px = self.arena.resolve(held).expect("just made");
        self.patch_mut(px).serial = serial;
        let running = Running {
            serial,
            held,
            data,
            homes: FxHashMap::default(),
            revoked: BTreeSet::new(),
            born: self.now,
        };
        self.logging_mut(volume).expect("a journal is kept").running = Some(running);
    }

    /// Plain contents are stable before the commit record, unless they come after the transaction themselves.
    fn order_data(&mut self, volume: Vx, id: PatchId) {
        self.start_transaction(volume);
        let Some(px) = self.arena.resolve(id) else { return };
        let running = self.running_mut(volume).expect("just started");
        let (serial, data) = (running.serial, running.data);
        if self.patch(px).serial == serial {
            let late = &mut self.logging_mut(volume).expect("a journal is kept").late;
            if late.last() != Some(&id) {
                late.push(id);
            }
            return;
        }
        let data = self.arena.resolve(data).expect("held while the transaction runs");
        self.add_edge(data, px);
    }

    /// A logged change comes after `befores` that are not logged: so does its transaction. What goes through the same
    /// transaction needs nothing, since that is whole.
    pub(crate) fn log_after(&mut self, volume: Vx, change: PatchId, befores: &[PatchId]) {
        if befores.is_empty() || !self.is_logged(change) {
            return;
        }
        let Some(running) = self.logging(volume).and_then(|logging| logging.running.as_ref()) else { return };
        let (serial, data) = (running.serial, running.data);
        let Some(data) = self.arena.resolve(data) else { return };
        for before in self.live(befores, None) {
            let patch = self.patch(before);
            if patch.volume != volume || patch.serial != serial {
                self.add_edge(data, before);
            }
        }
    }

    /// The patch that stands for `px` where somebody waits for it to be durable: a home patch is durable when its
    /// transaction is. `None` if it is already.
    pub(super) fn standing(&self, px: Px) -> Option<Px> {
        let patch = self.patch(px);
        if !patch.home {
            return Some(px);
        }
        let mut befores = patch.befores.iter().filter_map(|&id| self.arena.resolve(id));
        befores.find(|&before| self.patch(before).slot == NO_SLOT)
    }

    /// Whether `id` is a home patch.
    pub(crate) fn is_logged(&self, id: PatchId) -> bool {
        self.arena.resolve(id).is_some_and(|px| self.patch(px).home)
    }

    /// Whether `id` is part of the running transaction, or waits for it.
    pub(crate) fn awaits_running(&self, volume: Vx, id: PatchId) -> bool {
        let Some(running) = self.logging(volume).and_then(|logging| logging.running.as_ref()) else {
            return false;
        };
        let awaits = |patch: &super::Patch| patch.volume == volume && patch.serial == running.serial;
        self.arena.resolve(id).is_some_and(|px| awaits(self.patch(px)))
    }

    /// A block was freed: its copy in the running transaction is not needed, and older ones must not come back.
    pub(crate) fn forget_freed(&mut self, volume: Vx, no: BlockNo, sx: Option<Sx>) {
        let Some(logging) = self.logging(volume) else { return };
        let has_copy = logging.copies.contains_key(&no);
        let is_logged = sx.is_some_and(|sx| {
            logging.running.as_ref().is_some_and(|running| running.homes.contains_key(&sx))
        });
        if !has_copy && !is_logged {
            return;
        }
        self.start_transaction(volume);
        let running = self.running_mut(volume).expect("just started");
        if let Some(sx) = sx {
            running.homes.remove(&sx);
        }
        if has_copy {
            running.revoked.insert(no);
        }
    }

    /// Takes the running transaction away: later changes are the next one's.
    pub(crate) fn take_running(&mut self, volume: Vx) -> Option<Running> {
        self.logging_mut(volume)?.running.take()
    }

    /// Lets the home patches of a transaction go once `commit` is stable, and its contents be waited for.
    pub(crate) fn commit_after(&mut self, held: PatchId, commit: PatchId) {
        if let (Some(above), Some(below)) = (self.arena.resolve(held), self.arena.resolve(commit)) {
            self.add_edge(above, below);
        }
        self.release(held);
    }

    /// An empty patch that commits when these home patches are written.
    pub(crate) fn done_after(&mut self, volume: Vx, homes: impl Iterator<Item = Px>) -> PatchId {
        let done = self.insert_empty(volume, Role::Ordinary);
        let mut any = false;
        for home in homes {
            self.add_edge(done, home);
            any = true;
        }
        assert!(any, "a transaction without blocks has no log");
        self.arena.id(done)
    }

    /// The volume's plain patches that existed when `generation` was the next one, without those of block `except`.
    pub(crate) fn plain_patches_before(
        &self,
        volume: Vx,
        generation: u64,
        except: Option<Sx>,
    ) -> Vec<PatchId> {
        let plain = |(px, patch): (Px, &super::Patch)| {
            let asked = patch.slot != NO_SLOT && !patch.home && patch.generation < generation;
            let asked = asked && patch.volume == volume && Some(patch.slot) != except;
            asked.then(|| self.arena.id(px))
        };
        self.arena.iter().filter_map(plain).collect()
    }
}
