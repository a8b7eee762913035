//! The cache keeps a journal: transactions on their way into the log. Design: `docs/design/journal.md`.
//!
//! ```text
//!   handles.rs  operations under way, and when a transaction closes
//!   close.rs    the running transaction becomes blocks of the log
//!   space.rs    the ring of the log's blocks, and its tail
//! ```

mod close;
mod handles;
mod space;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fstitch_core::num::to_usize;
use fstitch_core::{BlockKind, Errno, Error, Result};

pub use handles::Handle;
use space::Ring;

use super::volume::Mapping;
use super::{Block, Cache, Core, Shared};
use crate::graph::patch::{Sx, Vx};
use crate::graph::{Arrangement, Logging};
use crate::journal::Area;
use crate::journal::blocks::Shape;
use crate::journal::format::{INCOMPAT_REVOKE, NARROW_END, SUPERBLOCK_SIZE, Sequence, Superblock};
use crate::{JournalMode, PatchId};

/// Which part of the log a transaction takes at most.
const TRANSACTION_SHARE: u32 = 4;

/// A journal to keep.
#[derive(Clone, Debug)]
pub struct JournalConfig {
    /// What goes through it.
    pub mode: JournalMode,
    /// Where its blocks are on the cache's device.
    pub area: Area,
    /// Age at which a transaction is closed.
    pub commit_interval: Duration,
}

/// How a journal is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalStatus {
    /// What goes through it.
    pub mode: JournalMode,
    /// Blocks of the circular log.
    pub log_blocks: u32,
    /// Of these, blocks of transactions that recovery would replay.
    pub used_blocks: u32,
    /// Blocks that the running transaction has logged.
    pub running_blocks: usize,
    /// Transactions closed and not yet all home.
    pub transactions: usize,
    /// The number that the next transaction gets.
    pub next_sequence: u32,
    /// Transactions closed since the journal was started.
    pub closed: u64,
    /// Blocks written into the log by them.
    pub logged_blocks: u64,
    /// Block numbers revoked by them.
    pub revoked: u64,
}

/// A closed transaction whose blocks are still in the log.
#[derive(Debug)]
struct Closed {
    serial: u64,
    sequence: Sequence,
    /// Its first block in the log, and how many it takes.
    start: u32,
    len: u32,
    /// Stable when the transaction is.
    held: PatchId,
    /// Stable when everything is home.
    done: PatchId,
    /// Blocks that have a copy.
    blocks: Vec<fstitch_core::BlockNo>,
}

/// A transaction that the tail has passed, or will pass with `tail`.
#[derive(Debug)]
struct Passed {
    tail: PatchId,
    serial: u64,
    blocks: Vec<fstitch_core::BlockNo>,
}

/// What the core keeps of a journal.
#[derive(Debug)]
pub(super) struct Journal {
    mode: JournalMode,
    area: Area,
    /// Where the blocks of the area are.
    placement: Mapping,
    shape: Shape,
    superblock: Superblock,
    superblock_block: Block,
    commit_interval: Duration,
    ring: Ring,
    next: Sequence,
    closed: VecDeque<Closed>,
    passed: VecDeque<Passed>,
    /// Operations in the middle of a step, and what they may still log.
    handles: usize,
    credits: usize,
    /// No new handles: the transaction is to be closed.
    closing: bool,
    /// What a transaction logs at most.
    max_blocks: usize,
    closed_count: u64,
    logged_blocks: u64,
    revoked: u64,
}

impl Cache {
    /// Keeps a journal from now on: recovery has emptied it, and nothing has been changed yet that is not stable.
    /// Returns when the journal says on the medium that it is in use.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Corrupt`]; `EBUSY` if one is kept already; `EROFS` on a read-only cache;
    /// [`Error::Unsupported`] for a journal whose log is not empty, or with unknown features.
    pub fn start_journal(&self, config: JournalConfig) -> Result<()> {
        let (shared, volume) = (&*self.shared, self.volume);
        if self.options.read_only {
            return Err(Errno::ROFS.into());
        }
        if self.is_logged_below() {
            let why = "a journal on a volume whose changes go through the journal of the volume below";
            return Err(Error::Unsupported(why.to_owned()));
        }
        self.place_journal(&config.area)?;
        let block = self.read(config.area.superblock()?, BlockKind::JournalSuperblock)?;
        let block_size = shared.geometry.block_size;
        let raw = block.snapshot();
        let mut superblock = Superblock::parse(&raw[..SUPERBLOCK_SIZE], block_size, config.area.count())?;
        drop(raw);
        if superblock.start != 0 {
            return Err(Error::Unsupported("starting a journal that needs recovery".to_owned()));
        }
        // Revoke records need the second version's feature words.
        superblock.is_v2 = true;
        superblock.features.incompat |= INCOMPAT_REVOKE;
        if self.block_count() > NARROW_END {
            superblock.widen();
        }
        superblock.start = superblock.first;
        let room = shared.options.cache_size / 8 / shared.block_size;
        let log_blocks = to_usize(superblock.log_blocks() / TRANSACTION_SHARE);
        let journal = Journal {
            mode: config.mode,
            area: config.area,
            placement: self.mapping.clone(),
            shape: Shape::new(&superblock),
            superblock_block: block,
            commit_interval: config.commit_interval,
            ring: Ring::new(superblock.first, superblock.log_blocks()),
            next: superblock.sequence,
            closed: VecDeque::new(),
            passed: VecDeque::new(),
            handles: 0,
            credits: 0,
            closing: false,
            max_blocks: log_blocks.min(room).max(1),
            superblock,
            closed_count: 0,
            logged_blocks: 0,
            revoked: 0,
        };
        let tail = {
            let mut core = shared.core();
            if core.journal(volume).is_some() {
                return Err(Errno::BUSY.into());
            }
            core.graph.new_moment();
            // Blocks remember the transactions of the journal that was kept before.
            let logging = Logging::new(config.mode, core.graph.next_generation());
            core.graph.arrangements[usize::from(volume)] = Arrangement::Logged(Box::new(logging));
            core.put_journal(volume, journal);
            shared.journaled.store(true, Ordering::Release);
            self.journaled.store(true, Ordering::Release);
            shared.put_tail(&mut core, volume, &[])
        };
        self.sync_patches(&[tail])
    }

    /// Brings everything home, marks the log as empty and keeps no journal any more. Nobody may change anything
    /// meanwhile. Does nothing without a journal.
    ///
    /// # Errors
    /// As for [`Cache::sync_all`].
    pub fn stop_journal(&self) -> Result<()> {
        let (shared, volume) = (&*self.shared, self.volume);
        if self.is_logged_below() || shared.core().journal(volume).is_none() {
            return Ok(());
        }
        shared.close_and_wait(volume)?;
        shared.write_whole_volume(volume)?;
        let tail = {
            let mut core = shared.core();
            core.graph.arrangements[usize::from(volume)] = Arrangement::Given;
            let journal = core.journal_mut(volume).expect("kept until now");
            journal.superblock.start = 0;
            journal.superblock.sequence = journal.next;
            let tail = Shared::put_superblock(&mut core, volume, &[]);
            drop(core.take_journal(volume));
            self.journaled.store(false, Ordering::Release);
            tail
        };
        self.sync_patches(&[tail])
    }

    /// Gives every block of the log a place: a log that is a file may have holes in the file that its volume is in.
    fn place_journal(&self, area: &Area) -> Result<()> {
        let mut after = crate::PatchIds::new();
        for at in 0..area.count() {
            let spot = self.mapping.fill(area.map(at)?)?;
            if !after.contains(&spot.after) {
                after.push(spot.after);
            }
        }
        self.sync_patches(&after)
    }

    /// Whether a journal is kept.
    #[must_use]
    pub fn is_journaled(&self) -> bool {
        !self.is_logged_below() && self.journaled.load(Ordering::Acquire)
    }

    /// Whether changes of other blocks than contents go through a journal: the volume's own, or that of the volume below.
    #[must_use]
    pub fn goes_through_journal(&self) -> bool {
        self.is_logged_below() || self.journaled.load(Ordering::Acquire)
    }

    /// Blocks beside contents that a step may change, if there must be only one, for its transaction to fit the log and half of the
    /// cache, and whether contents are logged as well. `None` where the volume keeps no journal.
    #[must_use]
    pub fn transaction_room(&self) -> Option<(usize, bool)> {
        let core = self.shared.core();
        let journal = core.journal(self.volume).filter(|_| !self.is_logged_below())?;
        let room = self.shared.options.cache_size / 2 / self.shared.block_size;
        let log_blocks = to_usize(journal.superblock.log_blocks() / TRANSACTION_SHARE);
        Some((log_blocks.min(room), journal.mode == JournalMode::Full))
    }

    /// How the journal is doing, if one is kept.
    #[must_use]
    pub fn journal_status(&self) -> Option<JournalStatus> {
        let core = self.shared.core();
        let journal = core.journal(self.volume).filter(|_| !self.is_logged_below())?;
        let running = core.graph.logging(self.volume).and_then(|logging| logging.running.as_ref());
        Some(JournalStatus {
            mode: journal.mode,
            log_blocks: journal.superblock.log_blocks(),
            used_blocks: journal.superblock.log_blocks() - journal.ring.free(),
            running_blocks: running.map_or(0, |running| running.homes.len()),
            transactions: journal.closed.len(),
            next_sequence: journal.next.0,
            closed: journal.closed_count,
            logged_blocks: journal.logged_blocks,
            revoked: journal.revoked,
        })
    }
}

impl Journal {
    pub(super) fn mode(&self) -> JournalMode {
        self.mode
    }

    pub(super) fn commit_interval(&self) -> Duration {
        self.commit_interval
    }

    /// The number that the transaction gets which is closed next.
    pub(super) fn next_sequence(&self) -> u32 {
        self.next.0
    }

    /// Operations in the middle of a step.
    pub(super) fn operations(&self) -> usize {
        self.handles
    }

    /// No others begin one, because the transaction is to be closed.
    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }

    /// The closed transactions that are not all home: number, blocks, and what is stable when they are.
    pub(super) fn closed(&self) -> impl ExactSizeIterator<Item = (u32, usize, PatchId)> + '_ {
        self.closed.iter().map(|closed| (closed.sequence.0, closed.blocks.len(), closed.held))
    }

    pub(super) fn log_blocks(&self) -> u32 {
        self.superblock.log_blocks()
    }
}

impl Core {
    /// The block of the log's superblock.
    pub(super) fn journal_superblock(&self, volume: Vx) -> Option<Sx> {
        self.journal(volume).map(|journal| journal.superblock_block.slot)
    }
}

impl Shared {
    /// The held patches of closed transactions of all volumes whose commit record is not stable.
    pub(super) fn all_uncommitted(core: &Core) -> Vec<PatchId> {
        core.journaled().flat_map(|volume| Self::uncommitted(core, volume)).collect()
    }

    /// Those of one volume.
    pub(super) fn uncommitted(core: &Core, volume: Vx) -> Vec<PatchId> {
        let Some(journal) = core.journal(volume) else { return Vec::new() };
        let pending = |id: &PatchId| core.graph.state(*id) != crate::PatchState::Committed;
        journal.closed.iter().map(|closed| closed.held).filter(pending).collect()
    }
}
