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
    /// Of these, the blocks with contents of files that are not logged by themselves.
    pub(crate) contents: FxHashMap<BlockNo, u64>,
}

/// A transaction that takes changes.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) serial: u64,
    /// All home patches depend on it; it is held until the commit record exists.
    pub(crate) held: PatchId,
    /// Held as well: the plain changes that must be stable before the commit record.
    pub(crate) data: PatchId,
    /// Some home patches are of contents that are not logged by themselves.
    pub(crate) has_logged_contents: bool,
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
    /// Whether contents that are not logged by themselves may have to be all the same.
    pub(crate) fn has_logged_contents(&self) -> bool {
        let is_running = |running: &Running| running.has_logged_contents;
        !self.contents.is_empty() || self.running.as_ref().is_some_and(is_running)
    }

    /// The transactions' numbers come after `serial`.
    pub(crate) fn new(mode: JournalMode, serial: u64) -> Self {
        Self {
            mode,
            running: None,
            late: Vec::new(),
            serial,
            last_commit: PatchId::NONE,
            copies: FxHashMap::default(),
            contents: FxHashMap::default(),
        }
    }
}

impl Graph {
    /// Whether all changes of a block of metadata are in a log, of transactions that have closed.
    pub(crate) fn is_in_log(&self, sx: Sx) -> bool {
        self.slot(sx).patches.iter().all(|&px| {
            let is_running = |logging: &Logging| {
                logging.running.as_ref().is_some_and(|running| running.homes.contains_key(&sx))
            };
            self.logging(self.patch(px).volume).is_some_and(|logging| !is_running(logging))
        })
    }

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
    #[inline]
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
        self.change_in(mode, site, change, new, befores)
    }

    /// A change where a journal is kept.
    fn change_in(
        &mut self,
        mode: JournalMode,
        site: Site,
        change: Change,
        new: &Contents<'_>,
        befores: &[PatchId],
    ) -> PatchId {
        if mode.logs(self.slots[at(site.slot)].kind) {
            let px = self.change_logged(site, change, new);
            return self.arena.id(px);
        }
        if self.has_copy(site) {
            // A replay would bring back what the log has.
            return self.change_contents_logged(site, change, new);
        }
        let id = self.change_plain(site, change, new, befores);
        if mode == JournalMode::Ordered {
            self.order_data(site.volume, id);
        }
        id
    }

    /// A change of somebody who works for groups: it comes after `heads` too, which may wait for the running transaction.
    ///
    /// Contents that are not logged by themselves are stable before the commit record of the transaction that runs now, so that
    /// all of a group's changes up to then are there when it is. Where they cannot, because they come after what that transaction
    /// has, they are part of it. Contents of a new block need not wait for anything: nobody sees them before the transaction.
    pub(crate) fn change_for_groups(
        &mut self,
        site: Site,
        change: Change,
        new: &Contents<'_>,
        (befores, heads): (&[PatchId], &[PatchId]),
    ) -> PatchId {
        let Site { volume, slot: sx, .. } = site;
        let kind = self.slots[at(sx)].kind;
        let is_plain = self.logging(volume).is_some_and(|logging| !logging.mode.logs(kind));
        if !is_plain || self.has_copy(site) {
            // What is logged comes after all that the groups before have done: it was logged, or stable before a commit record.
            return self.change(site, change, new, &[befores, heads].concat());
        }
        let serial = self.running_serial(volume);
        let is_new = serial.is_some_and(|serial| self.slots[at(sx)].new_in == (volume, serial));
        let heads = if is_new { &[] } else { heads };
        let awaits = |&id: &PatchId| self.awaits_running(volume, id);
        let is_late = |&px: &Px| self.patch(px).volume == volume && Some(self.patch(px).serial()) == serial;
        let has_late = self.slots[at(sx)].patches.iter().any(is_late);
        if has_late || befores.iter().chain(heads).any(awaits) {
            return self.change_contents_logged(site, change, new);
        }
        let id = self.change_plain(site, change, new, &[befores, heads].concat());
        self.order_data(volume, id);
        id
    }

    /// Contents go through the log although the mode does not ask for it. What the block's copy has of earlier changes that do
    /// not, is stable before the transaction.
    fn change_contents_logged(&mut self, site: Site, change: Change, new: &Contents<'_>) -> PatchId {
        let Site { volume, slot: sx, .. } = site;
        self.start_transaction(volume);
        let running = self.running_mut(volume).expect("just started");
        let (serial, data) = (running.serial, running.data);
        running.has_logged_contents = true;
        let data = self.arena.resolve(data).expect("held while the transaction runs");
        let earlier: SmallVec<[Px; 8]> = self.slots[at(sx)].patches.iter().copied().collect();
        for px in earlier {
            if !self.patch(px).home && self.patch(px).serial() != serial {
                self.add_edge(data, px);
            }
        }
        let px = self.change_logged(site, change, new);
        self.arena.id(px)
    }

    /// Whether the live log has a copy of the block's contents, or will. Not so the copies of blocks that have become contents:
    /// these are revoked.
    fn has_copy(&self, site: Site) -> bool {
        self.logging(site.volume).is_some_and(|logging| {
            let is_running = |running: &Running| running.homes.contains_key(&site.slot);
            logging.contents.contains_key(&site.no) || logging.running.as_ref().is_some_and(is_running)
        })
    }

    pub(super) fn running_serial(&self, volume: Vx) -> Option<u64> {
        Some(self.logging(volume)?.running.as_ref()?.serial)
    }

    /// The block became part of a file by the running transaction. Not so if it has contents of earlier ones that are not on the medium yet:
    /// their commit records wait for these, whatever becomes of the block now.
    pub(crate) fn note_new(&mut self, volume: Vx, sx: Sx) {
        if let Some(serial) = self.running_serial(volume) {
            let has_earlier = self.slots[at(sx)].patches.iter().any(|&px| !self.patch(px).home);
            self.slots[at(sx)].new_in = if has_earlier { (volume, 0) } else { (volume, serial) };
        }
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
            self.tell_joined(patch);
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
        self.has_homes = true;
        let patch = self.patch_mut(home);
        patch.home = true;
        patch.raise_serial(serial);
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
        self.patch_mut(px).raise_serial(serial);
        let running = Running {
            serial,
            held,
            data,
            has_logged_contents: false,
            homes: FxHashMap::default(),
            revoked: BTreeSet::new(),
            born: self.moment.at(),
        };
        self.logging_mut(volume).expect("a journal is kept").running = Some(running);
    }

    /// Plain contents are stable before the commit record, unless they come after the transaction themselves.
    fn order_data(&mut self, volume: Vx, id: PatchId) {
        self.start_transaction(volume);
        let Some(px) = self.arena.resolve(id) else { return };
        let running = self.running_mut(volume).expect("just started");
        let (serial, data) = (running.serial, running.data);
        if self.patch(px).serial() == serial {
            let late = &mut self.logging_mut(volume).expect("a journal is kept").late;
            if late.last() != Some(&id) {
                late.push(id);
            }
            return;
        }
        let data = self.arena.resolve(data).expect("held while the transaction runs");
        self.add_edge(data, px);
    }

    /// The patch that stands for `px` where somebody waits for it to be durable: a home patch is durable when its
    /// transaction is. `None` if it is already.
    pub(super) fn standing(&self, px: Px) -> Option<Px> {
        let patch = self.patch(px);
        if !patch.home {
            return Some(px);
        }
        let mut befores = patch.befores().iter().filter_map(|&id| self.arena.resolve(id));
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
        let awaits = |patch: &super::Patch| patch.volume == volume && patch.serial() == running.serial;
        self.arena.resolve(id).is_some_and(|px| awaits(self.patch(px)))
    }

    /// A block was freed: its copy in the running transaction is not needed, and older ones must not come back.
    pub(crate) fn forget_freed(&mut self, volume: Vx, no: BlockNo, sx: Option<Sx>) {
        let Some(logging) = self.logging_mut(volume) else { return };
        // Its next life is not that of these contents: the revocation keeps the copies away from it.
        logging.contents.remove(&no);
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

    /// A transaction that has contents only is none: the next one comes after these contents, which somebody may rely on.
    pub(crate) fn dissolve(&mut self, volume: Vx, running: &Running) {
        self.release(running.held);
        if let Some(logging) = self.logging_mut(volume) {
            logging.late.push(running.data);
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
