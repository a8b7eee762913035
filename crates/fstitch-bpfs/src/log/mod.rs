//! The redo log: what makes an ordinary file, or any block device, a medium that survives a power cut.
//!
//! **Layout.** Behind the volume's blocks: two headers of a block each, then a ring of blocks. A group begins with a block of the ring and
//! holds lines of 64 bytes, with their numbers and a sum; blocks are counted from the log's making, so that a group's beginning is its
//! place in the one order of everything that ever happened. A header says where the first group is that may not be home.
//!
//! **States and transitions** of what a commit has stored:
//!
//! ```text
//!   memory ──[append: its lines, as one record]──► queued ──[step: the group is written]──► written ──[flush]──► stable
//!                                                                                              │ copied, under the tree's lock
//!      room in the ring ◄──[flush]── header written ◄──[flush]── home written ◄────────────────┘ when what was copied is stable
//! ```
//!
//! Whoever waits for a record leads if nobody does: one write of the group of all records that wait, and what a checkpoint has to write,
//! and one flush. The others wait for him.
//!
//! **Invariants.**
//! 1. A block is written home only when all records are stable that its copy contains.
//! 2. A header leaves a group out only when the copies that contain all of its records are stable at home.
//! 3. A block of the ring is written again only when a header is stable that leaves its group out.
//! 4. Records are in groups in the order in which they were appended, and a record is in one group.
//! 5. A record that ends in the middle of an operation holds nothing that can be reached ([`crate::pm`] lets nothing else be stored
//!    before the commit), so that operations of any length go through a log of any size.
//! 6. When a copy for a checkpoint is taken, there is room for the group that waits.
//! 7. What leaves memory is in no block that was changed since the last copies, in no copy that is not stable at home, and in no line
//!    without a record.
//!
//! **Crash cases.** A group that was being written is not whole, or is no group at all, or one of another lap or epoch: replay ends before
//! it. Homes that were being written are covered by groups that are replayed. A header that was being written is not whole, and the other one
//! counts, which leads to groups that are there still (3). Cut off, replay begins again: its epoch begins when all is home. What a mount
//! without flushes has written may be there in part: groups up to the first that is missing, which is a prefix of what happened.

mod format;
mod pages;
mod recover;

use std::collections::BTreeSet;

use fstitch_core::lock::{Condvar, Mutex, MutexGuard};
use fstitch_core::num::to_usize;
use fstitch_core::order::rank;
use fstitch_core::{BlockKind, Error, Result};

pub(crate) use format::{HEADERS, LINES_IN_BLOCK, LOG_MAX, LOG_MIN, Lines, Shape, usual_log};
pub(crate) use pages::{Page, Pages};
pub use recover::Recovered;

use crate::layout::Identity;
use crate::pm::{BLOCK, LINE};
use format::{Header, blocks_for};

/// What has gone through a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LogCounts {
    /// Records: commits, and parts of what came before them.
    pub records: u64,
    /// Groups that were written.
    pub groups: u64,
    /// Blocks of groups.
    pub group_blocks: u64,
    /// Blocks that were written home.
    pub home_blocks: u64,
    /// Flushes.
    pub flushes: u64,
}

/// How far a checkpoint is.
enum Stage {
    /// Blocks were copied.
    Copied(Vec<(u64, Vec<u8>)>),
    /// They were written home.
    Written,
    /// They are stable there.
    Home,
    /// A header was written that leaves groups out.
    Noted,
}

/// Groups on their way out of the ring.
struct Checkpoint {
    /// Those before this block leave.
    upto: u64,
    /// The last record that is in the copies.
    after: u64,
    /// The blocks that were copied, until they are stable at home.
    away: BTreeSet<u64>,
    stage: Stage,
}

struct Ring {
    /// Lines of records that are in no group yet.
    queue: Lines,
    /// Records so far; how many of them are in groups; how many survive what the mount promises; how many survive a power cut.
    appended: u64,
    grouped: u64,
    safe: u64,
    stable: u64,
    /// The block behind the last group, and that of the first one that is not known to be home.
    head: u64,
    tail: u64,
    header: Header,
    /// Blocks that were changed since the last copies.
    dirty: BTreeSet<u64>,
    checkpoint: Option<Checkpoint>,
    /// Somebody writes.
    is_led: bool,
    failed: Option<Error>,
    counts: LogCounts,
}

/// What one step writes.
#[derive(Default)]
struct Work {
    group: Vec<u8>,
    start: u64,
    homes: Vec<(u64, Vec<u8>)>,
    header: Option<Header>,
}

/// The log of a volume that is open.
pub(crate) struct Log {
    pages: Pages,
    shape: Shape,
    /// A record is safe when it is stable.
    flushes: bool,
    ring: Mutex<Ring, rank::Table>,
    written: Condvar,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log")
            .field("shape", &self.shape)
            .field("flushes", &self.flushes)
            .finish_non_exhaustive()
    }
}

type Held<'a> = MutexGuard<'a, Ring>;

/// Writes the headers of a new log. Its first epoch must be one that no log had whose groups may be there.
///
/// # Errors
/// Those of the device.
pub(crate) fn make(pages: &Pages, shape: &Shape, epoch: u64) -> Result<()> {
    for number in 0..HEADERS {
        let header = Header { number, epoch, tail: 0, is_open: false };
        pages.write(&[(shape.header(number), BlockKind::JournalSuperblock, &header.encode())])?;
    }
    Ok(())
}

/// What is in the log of a volume that nobody has open.
///
/// # Errors
/// Those of the device; `Corrupt`.
pub(crate) fn look(pages: &Pages, identity: &Identity) -> Result<Recovered> {
    let found = recover::find(pages, &identity.log_shape())?;
    Ok(Recovered { was_open: found.header.is_open, groups: found.groups, blocks: 0 })
}

impl Log {
    /// Opens the log of a volume: what is not home is brought there.
    ///
    /// # Errors
    /// Those of the device; `Corrupt`.
    pub(crate) fn open(pages: Pages, identity: &Identity, flushes: bool) -> Result<(Self, Recovered)> {
        let shape = identity.log_shape();
        let found = recover::find(&pages, &shape)?;
        let blocks = recover::apply(&pages, &found.lines)?;
        if found.groups > 0 {
            pages.flush()?;
        }
        let header = Header {
            number: found.header.number + 1,
            epoch: found.header.epoch.wrapping_add(1),
            tail: found.head,
            is_open: true,
        };
        pages.write(&[(shape.header(header.number), BlockKind::JournalSuperblock, &header.encode())])?;
        pages.flush()?;
        let ring = Ring {
            queue: Lines::new(),
            appended: 0,
            grouped: 0,
            safe: 0,
            stable: 0,
            head: found.head,
            tail: found.head,
            header,
            dirty: BTreeSet::new(),
            checkpoint: None,
            is_led: false,
            failed: None,
            counts: LogCounts::default(),
        };
        let recovered = Recovered { was_open: found.header.is_open, groups: found.groups, blocks };
        Ok((Self { pages, shape, flushes, ring: Mutex::new(ring), written: Condvar::new() }, recovered))
    }

    /// Lines that a record may have.
    pub(crate) fn record_lines(&self) -> usize {
        self.shape.group_lines()
    }

    /// Records so far.
    pub(crate) fn appended(&self) -> u64 {
        self.ring.lock().appended
    }

    /// What has gone through.
    pub(crate) fn counts(&self) -> LogCounts {
        self.ring.lock().counts
    }

    /// Nothing is written any more.
    pub(crate) fn fail(&self, error: Error) {
        self.ring.lock().failed.get_or_insert(error);
        self.written.notify_all();
    }

    /// Why nothing is written any more, if so.
    pub(crate) fn failed(&self) -> Option<Error> {
        self.ring.lock().failed.clone()
    }

    /// Puts lines into the order of everything that happens; `memory` says what a block holds, and nobody changes any meanwhile. A
    /// failure is told to whoever waits.
    ///
    /// # Panics
    /// If the lines are more than a group has room for.
    pub(crate) fn append(&self, lines: Lines, memory: &dyn Fn(u64) -> Vec<u8>) {
        assert!((1..=self.record_lines()).contains(&lines.len()), "{} lines in one record", lines.len());
        let mut ring = self.ring.lock();
        while ring.queue.len() + lines.len() > self.record_lines() && ring.failed.is_none() {
            ring = self.lead(ring, false);
        }
        ring.dirty.extend(lines.keys().map(|line| line / LINES_IN_BLOCK));
        ring.queue.extend(lines);
        ring.appended += 1;
        ring.counts.records += 1;
        if ring.checkpoint.is_none() && ring.head - ring.tail > self.shape.ring / 2 {
            debug_assert!(self.has_room(&ring), "nobody can write what a checkpoint waits for");
            ring.copy(memory);
        }
        while !self.has_room(&ring) && ring.failed.is_none() {
            ring = self.lead(ring, true);
        }
    }

    /// Shows `look` which blocks the device has as memory does, but for what was stored and not appended.
    pub(crate) fn look_home(&self, look: impl FnOnce(&dyn Fn(u64) -> bool)) {
        let ring = self.ring.lock();
        let is_away = |block: &u64| {
            let copied = ring.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.away.contains(block));
            copied || ring.dirty.contains(block)
        };
        look(&|block| !is_away(&block));
    }

    /// Waits until so many records are safe.
    ///
    /// # Errors
    /// Those of the device, for ever.
    pub(crate) fn wait(&self, records: u64) -> Result<()> {
        let mut ring = self.ring.lock();
        while ring.safe < records {
            ring.check()?;
            let flushes = self.flushes || ring.checkpoint.is_some();
            ring = self.lead(ring, flushes);
        }
        ring.check()
    }

    /// Makes everything stable that was appended.
    ///
    /// # Errors
    /// As [`Log::wait`].
    pub(crate) fn sync(&self) -> Result<()> {
        let mut ring = self.ring.lock();
        let records = ring.appended;
        if ring.stable >= records {
            ring.check()?;
            drop(ring);
            return self.pages.intact();
        }
        while ring.stable < records {
            ring.check()?;
            ring = self.lead(ring, true);
        }
        ring.check()
    }

    /// Brings everything home and says that the volume is closed. Nobody changes anything any more.
    ///
    /// # Errors
    /// As [`Log::wait`].
    pub(crate) fn close(&self, memory: &dyn Fn(u64) -> Vec<u8>) -> Result<()> {
        let mut ring = self.ring.lock();
        // One checkpoint may be under way; the next one has all the rest.
        while ring.stable < ring.appended || ring.checkpoint.is_some() || !ring.dirty.is_empty() {
            ring.check()?;
            if ring.checkpoint.is_none() && ring.stable == ring.appended {
                ring.copy(memory);
            }
            ring = self.lead(ring, true);
        }
        ring.check()?;
        let head = ring.head;
        let header = ring.next_header(head, false);
        ring.tail = ring.head;
        drop(ring);
        let block = header.encode();
        let place = self.shape.header(header.number);
        self.pages.write(&[(place, BlockKind::JournalSuperblock, &block)])?;
        self.pages.flush()
    }

    fn has_room(&self, ring: &Ring) -> bool {
        ring.head - ring.tail + blocks_for(ring.queue.len()) <= self.shape.ring
    }

    /// Does one step, or waits until somebody else has done one.
    fn lead<'a>(&'a self, mut ring: Held<'a>, flushes: bool) -> Held<'a> {
        if ring.is_led {
            return self.written.wait(ring, |_| ());
        }
        ring.is_led = true;
        let work = self.begin(&mut ring);
        let records = ring.grouped;
        drop(ring);
        let done = self.write(&work).and_then(|()| if flushes { self.pages.flush() } else { Ok(()) });
        let mut ring = self.ring.lock();
        ring.is_led = false;
        match done {
            Err(error) => drop(ring.failed.get_or_insert(error)),
            Ok(()) => {
                ring.counts.flushes += u64::from(flushes);
                if flushes || !self.flushes {
                    ring.safe = ring.safe.max(records);
                }
                if flushes {
                    ring.stable = ring.stable.max(records);
                    ring.flushed();
                }
            }
        }
        self.written.notify_all();
        ring
    }

    /// What is written now.
    fn begin(&self, ring: &mut Ring) -> Work {
        let mut work = Work { start: ring.head, ..Work::default() };
        if self.has_room(ring) && !ring.queue.is_empty() {
            ring.grouped = ring.appended;
            let lines = std::mem::take(&mut ring.queue);
            work.group = format::encode(ring.header.epoch, ring.head, &lines);
            let blocks = fstitch_core::num::to_u64(work.group.len() / BLOCK);
            ring.head += blocks;
            ring.counts.groups += 1;
            ring.counts.group_blocks += blocks;
        }
        let stable = ring.stable;
        if let Some(Checkpoint { upto, after, stage, .. }) = &mut ring.checkpoint {
            match stage {
                Stage::Copied(homes) if *after <= stable => {
                    work.homes = std::mem::take(homes);
                    *stage = Stage::Written;
                    ring.counts.home_blocks += fstitch_core::num::to_u64(work.homes.len());
                }
                Stage::Home => {
                    *stage = Stage::Noted;
                    let upto = *upto;
                    work.header = Some(ring.next_header(upto, true));
                }
                Stage::Copied(_) | Stage::Written | Stage::Noted => {}
            }
        }
        work
    }

    fn write(&self, work: &Work) -> Result<()> {
        let header = work.header.map(|header| (self.shape.header(header.number), header.encode()));
        let groups = (work.start..).zip(work.group.chunks_exact(BLOCK));
        let pages: Vec<Page<'_>> = groups
            .map(|(count, bytes)| (self.shape.block(count), BlockKind::JournalData, bytes))
            .chain(work.homes.iter().map(|(block, bytes)| (*block, BlockKind::Data, &bytes[..])))
            .chain(header.iter().map(|(place, bytes)| (*place, BlockKind::JournalSuperblock, &bytes[..])))
            .collect();
        if pages.is_empty() { Ok(()) } else { self.pages.write(&pages) }
    }
}

impl Ring {
    /// Begins a checkpoint: what is copied now is written home when it is stable.
    fn copy(&mut self, memory: &dyn Fn(u64) -> Vec<u8>) {
        let away = std::mem::take(&mut self.dirty);
        let homes = away.iter().map(|block| (*block, memory(*block))).collect();
        // Groups behind the head may have records that are not in the copies.
        self.checkpoint =
            Some(Checkpoint { upto: self.head, after: self.appended, away, stage: Stage::Copied(homes) });
    }

    /// Everything that was written is stable.
    fn flushed(&mut self) {
        let Some(Checkpoint { upto, away, stage, .. }) = &mut self.checkpoint else { return };
        match stage {
            Stage::Written => {
                *stage = Stage::Home;
                away.clear();
            }
            Stage::Noted => {
                self.tail = *upto;
                self.checkpoint = None;
            }
            Stage::Copied(_) | Stage::Home => {}
        }
    }

    fn next_header(&mut self, tail: u64, is_open: bool) -> Header {
        self.header = Header { number: self.header.number + 1, tail, is_open, ..self.header };
        self.header
    }

    /// # Errors
    /// Why nothing is written any more.
    fn check(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }
}

/// The lines that bytes from `at` on are in.
pub(crate) fn lines_of(at: u64, len: usize) -> std::ops::Range<u64> {
    at / LINE..(at + fstitch_core::num::to_u64(len)).div_ceil(LINE)
}

/// A line's contents.
pub(crate) fn line(bytes: &[u8]) -> [u8; format::LINE_LEN] {
    bytes[..to_usize(LINE)].try_into().expect("a line has 64 bytes")
}
