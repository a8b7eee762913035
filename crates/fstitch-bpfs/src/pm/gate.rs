//! Stores, fences and commits.
//!
//! **Layout.** The micro-journal is in the first block, two lines from byte 256: a sum (32 bits), how many words (8) and a number that
//! counts up (24), 8 bytes of nothing, then for each word its address and its new value.

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{Error, Result, Structure};

use super::medium::{Durability, Medium};
use super::space::{Block, Fresh, Linked};
use super::{BLOCK, BLOCK_BYTES, LINE};
use crate::log::Log;

/// The first block of trees.
pub const FIRST_BLOCK: u64 = 2;
const JOURNAL: u64 = 256;
const ENTRIES: u64 = JOURNAL + 16;
const LINE_LEN: usize = 64;
/// Lines of a record that are kept for what a commit stores: its words and times, and a run that begins within a line.
const KEPT_LINES: usize = 32;
/// Words that one commit may change.
pub const JOURNAL_WORDS: usize = 7;

/// When stores leave the processor's caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Caching {
    /// Before an operation returns: it is durable then, and all operations are in one order.
    #[default]
    WriteThrough,
    /// In the order of epochs, some time later; a sync waits for that.
    Epochs,
}

/// Who looks on.
pub trait Watch: Send + Sync {
    /// Bytes were stored.
    fn store(&self, at: u64, bytes: &[u8]);
    /// What was stored before is durable before anything that is stored later.
    fn fence(&self);
}

/// What has gone through the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Bytes stored.
    pub bytes: u64,
    /// Lines of 64 bytes written back, once for each fence that they are before.
    pub lines: u64,
    /// The same in lines of 256 bytes, the buffers of some media.
    pub wide_lines: u64,
    /// Fences.
    pub fences: u64,
    /// Words committed.
    pub commits: u64,
    /// Commits of several words.
    pub journaled: u64,
}

/// A word for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(u64);

impl Word {
    /// One that points to nothing.
    pub fn plain(value: u64) -> Self {
        Self(value)
    }

    /// One that points to a block that was read.
    pub fn of(block: Block, height: u8) -> Self {
        Self::pointer(block.number(), height)
    }

    pub(super) fn pointer(number: u64, height: u8) -> Self {
        debug_assert!(height < 8);
        Self(number << 3 | u64::from(height))
    }

    /// Its value.
    pub fn value(self) -> u64 {
        self.0
    }
}

/// The place of an aligned word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u64);

impl Slot {
    /// # Panics
    /// If the place is not aligned.
    pub fn at(at: u64) -> Self {
        assert!(at.is_multiple_of(8), "a word at {at}");
        Self(at)
    }
}

/// Bytes that can be reached by nobody because a word hides them.
#[derive(Debug)]
pub struct Hidden {
    at: u64,
    len: usize,
}

impl Hidden {
    /// Bytes behind the end that the word in `end` says; the first of them is number `position` of what it measures.
    pub fn behind(gate: &mut Gate, end: Slot, position: u64, (at, len): (u64, usize)) -> Self {
        debug_assert!(
            gate.word(end) <= position,
            "byte {position} of {} is hidden by nothing",
            gate.word(end)
        );
        gate.secure(end, false);
        Self { at, len }
    }

    /// Bytes of an entry that counts only while the upper 48 bits of the word in `number` are not 0, which they are.
    pub fn beneath(gate: &mut Gate, number: Slot, (at, len): (u64, usize)) -> Self {
        debug_assert_eq!(gate.word(number) >> 16, 0, "what hides bytes at {at} is something");
        gate.secure(number, true);
        Self { at, len }
    }

    /// Bytes of something that has so many names, which must be none; the commit that took the last one is durable.
    pub fn unnamed(names: u32, (at, len): (u64, usize)) -> Self {
        debug_assert_eq!(names, 0, "what has a name is hidden by nothing");
        Self { at, len }
    }
}

/// The only one who stores.
pub struct Gate {
    medium: Medium,
    blocks: u64,
    caching: Caching,
    /// Stored since the last fence: beginnings and lengths.
    dirty: Vec<(u64, u64)>,
    /// Words that were committed since the last fence, and whether they are smaller than before, so that an end hides more.
    hiding: Vec<(Slot, bool)>,
    /// The journal's record counts although its words were stored.
    has_record: bool,
    counts: Counts,
    watch: Option<Box<dyn Watch>>,
    /// What makes it survive on a device, and the lines that are not in a record of it yet.
    log: Option<Arc<Log>>,
    lines: BTreeSet<u64>,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate")
            .field("medium", &self.medium)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

impl Gate {
    /// # Errors
    /// `Corrupt` if the medium has no room for a volume.
    pub(crate) fn new(medium: Medium, caching: Caching, watch: Option<Box<dyn Watch>>) -> Result<Self> {
        if medium.len() < (FIRST_BLOCK + 1) * BLOCK_BYTES {
            return Err(Error::corrupt(
                Structure::Volume,
                None,
                format!("{} bytes are too few", medium.len()),
            ));
        }
        let (dirty, hiding, counts) = (Vec::new(), Vec::new(), Counts::default());
        let blocks = medium.len() / BLOCK_BYTES;
        let (log, lines) = (None, BTreeSet::new());
        Ok(Self { medium, blocks, caching, dirty, hiding, has_record: false, counts, watch, log, lines })
    }

    /// The volume has so many blocks, which are not more than the medium's.
    pub(crate) fn limit(&mut self, blocks: u64) {
        self.blocks = self.blocks.min(blocks);
    }

    /// Everything that is stored from now on goes to a log as well, commit by commit.
    pub(crate) fn follow_by(&mut self, log: Arc<Log>) {
        self.log = Some(log);
    }

    /// The log that everything goes to.
    pub(crate) fn log(&self) -> Option<&Arc<Log>> {
        self.log.as_ref()
    }

    /// Brings the block of a byte to memory where it comes from a device.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn load(&self, at: u64) -> Result<()> {
        self.medium.load(at, 1)
    }

    /// # Errors
    /// Why something was read as zeros since this was asked before.
    pub(crate) fn check_loaded(&self) -> Result<()> {
        self.medium.take_failure().map_or(Ok(()), Err)
    }

    /// A block leads to contents, and stays in memory.
    #[inline]
    pub(crate) fn hold(&self, block: u64) {
        self.medium.hold(block);
    }

    /// A block is of contents or nobody's: it may leave memory when the device has it.
    #[inline]
    pub(crate) fn may_go(&self, block: u64) {
        self.medium.may_go(block);
    }

    /// Bytes of a device that are in memory.
    pub(crate) fn in_memory(&self) -> Option<u64> {
        self.medium.in_memory()
    }

    /// Whether something should leave memory.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.medium.is_full()
    }

    /// What may go and is on the device leaves memory, until there is little enough.
    pub(crate) fn let_go(&mut self) {
        let (Some(log), lines) = (&self.log, &self.lines) else { return };
        let medium = &mut self.medium;
        log.look_home(|is_home| {
            medium.let_go(&|page| {
                is_home(page) && lines.range(crate::log::lines_of(page * BLOCK_BYTES, BLOCK)).next().is_none()
            });
        });
    }

    /// What is looked at from now on is files, and not what leads to them.
    pub(crate) fn scanned(&self) {
        self.medium.read_ahead(true);
    }

    /// Some bytes, which must be inside.
    pub fn bytes(&self, at: u64, len: usize) -> &[u8] {
        self.medium.bytes(at, len)
    }

    /// What a block holds.
    pub fn block(&self, block: Block) -> &[u8] {
        self.medium.bytes(block.at(), BLOCK)
    }

    /// What was written to a block that nothing points to.
    pub fn fresh(&self, fresh: &Fresh) -> &[u8] {
        self.medium.bytes(fresh.at(), BLOCK)
    }

    /// The word in a slot.
    pub fn word(&self, slot: Slot) -> u64 {
        u64::from_le_bytes(self.medium.bytes(slot.0, 8).try_into().expect("a word has 8 bytes"))
    }

    /// The block that a word from the medium points to; `None` for none, and for what cannot be one.
    pub fn follow(&self, word: u64) -> Option<Block> {
        Block::from_medium(word >> 3, self.blocks())
    }

    /// Blocks of the medium.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// What a commit survives.
    pub fn durability(&self) -> Durability {
        self.medium.durability()
    }

    /// What has gone through.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Writes to a block that nothing points to. What it held before is nothing to who cannot read it.
    pub fn write(&mut self, fresh: &mut Fresh, from: usize, bytes: &[u8]) {
        assert!(from + bytes.len() <= BLOCK, "{} bytes at {from} of a block", bytes.len());
        if (1..BLOCK).contains(&bytes.len()) && self.load(fresh.at()).is_err() {
            self.store(fresh.at(), &[0; BLOCK]);
        }
        self.store(fresh.at() + to_u64(from), bytes);
    }

    /// Writes to what is hidden, word by word where it is another one already.
    pub fn veil(&mut self, hidden: &Hidden, from: usize, bytes: &[u8]) {
        assert!(from + bytes.len() <= hidden.len, "{} bytes at {from} of {}", bytes.len(), hidden.len);
        let mut at = hidden.at + to_u64(from);
        let mut left = bytes;
        while !left.is_empty() {
            let step = to_usize(8 - at % 8).min(left.len());
            // A run of words that are different is one store.
            let mut run = 0;
            while run < left.len() {
                let step = if run == 0 { step } else { 8.min(left.len() - run) };
                if self.medium.bytes(at + to_u64(run), step) == &left[run..run + step] {
                    break;
                }
                run += step;
            }
            if run > 0 {
                self.store(at, &left[..run]);
            }
            let done = if run > 0 { run } else { step };
            at += to_u64(done);
            left = &left[done..];
        }
    }

    /// Nothing is stored before what was stored so far, and nothing but a commit directly behind it.
    pub fn fence(&mut self) -> Fenced<'_> {
        if self.has_record {
            // Its words are durable: see `commit_all`.
            self.has_record = false;
            self.store_half(JOURNAL + 4, 0);
        }
        self.write_back();
        Fenced { gate: self }
    }

    /// Everything that was stored is durable, or comes before whatever is stored later.
    pub fn barrier(&mut self) {
        self.write_back();
        self.record();
    }

    /// The file that is to be synced after a barrier for all of it to survive a power cut, if there is one.
    pub fn behind(&self) -> Option<Arc<File>> {
        self.medium.behind().cloned()
    }

    /// Whether everything that was stored is durable.
    pub fn is_settled(&self) -> bool {
        self.dirty.is_empty()
    }

    /// Whether a commit is durable as soon as it was made, and not with others behind it.
    pub fn is_durable_at_once(&self) -> bool {
        self.caching == Caching::WriteThrough && self.log.is_none()
    }

    /// Carries out what a commit of several words was about to, before anything else is done.
    pub fn recover(&mut self) -> bool {
        let Some(words) = self.journaled() else { return false };
        words.iter().for_each(|(slot, word)| self.put(*slot, *word));
        self.write_back();
        self.store_half(JOURNAL + 4, 0);
        self.write_back();
        true
    }

    /// The words of a record that counts.
    pub fn journaled(&self) -> Option<Vec<(Slot, Word)>> {
        let header = self.word(Slot(JOURNAL));
        let (sum, tail) = (header & u64::from(u32::MAX), header >> 32);
        let count = to_usize(tail & 0xff);
        if count == 0 || count > JOURNAL_WORDS {
            return None;
        }
        let entries = self.medium.bytes(ENTRIES, 16 * count);
        if u64::from(sum_of(tail, entries)) != sum {
            return None;
        }
        let len = self.blocks * BLOCK_BYTES;
        let word = |bytes: &[u8], from: usize| {
            u64::from_le_bytes(bytes[from..from + 8].try_into().expect("8 bytes"))
        };
        let words: Vec<_> = entries.chunks_exact(16).map(|entry| (word(entry, 0), word(entry, 8))).collect();
        let is_lawful = |(at, _): &(u64, u64)| at.is_multiple_of(8) && *at <= len - 8;
        words.iter().all(is_lawful).then(|| words.iter().map(|(at, word)| (Slot(*at), Word(*word))).collect())
    }

    /// A word that may hide more than before must be durable before what it hides is written to; an end does only if it is smaller.
    fn secure(&mut self, slot: Slot, is_entry: bool) {
        if self.hiding.iter().any(|(other, is_less)| *other == slot && (is_entry || *is_less)) {
            self.write_back();
        }
    }

    fn store(&mut self, at: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            // What nobody can reach may be in several records, of which none is longer than a log can take.
            let room = self.log.as_ref().map_or(usize::MAX, |log| log.record_lines() - KEPT_LINES);
            if self.lines.len() >= room {
                self.record();
            }
            let len =
                (bytes.len() - done).min(room.saturating_sub(self.lines.len()).saturating_mul(LINE_LEN));
            self.medium.store(at + to_u64(done), &bytes[done..done + len]);
            self.note(at + to_u64(done), len);
            done += len;
        }
    }

    /// Everything that was stored is the next record of the log, if there is one.
    fn record(&mut self) {
        let Some(log) = &self.log else { return };
        if self.lines.is_empty() {
            return;
        }
        let medium = &self.medium;
        if let Some(error) = medium.take_failure() {
            // What could not be read may be in lines that were stored to: nothing of that may reach the device.
            log.fail(error);
        }
        let contents = |line: u64| (line, crate::log::line(medium.bytes(line * LINE, LINE_LEN)));
        let lines = std::mem::take(&mut self.lines).into_iter().map(contents).collect();
        log.append(lines, &|block| medium.bytes(block * BLOCK_BYTES, BLOCK).to_vec());
    }

    /// Everything is at home on the device, and the log says that the volume is closed.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn close(&mut self) -> Result<()> {
        self.write_back();
        self.record();
        let Some(log) = &self.log else { return Ok(()) };
        log.close(&|block| self.medium.bytes(block * BLOCK_BYTES, BLOCK).to_vec())
    }

    fn store_half(&mut self, at: u64, half: u32) {
        self.medium.store_half(at, half);
        self.note(at, 4);
    }

    fn note(&mut self, at: u64, len: usize) {
        self.counts.bytes += to_u64(len);
        self.dirty.push((at, to_u64(len)));
        if self.log.is_some() {
            self.lines.extend(crate::log::lines_of(at, len));
        }
        if let Some(watch) = &self.watch {
            watch.store(at, self.medium.bytes(at, len));
        }
    }

    /// Stores a word, or the half of it that changes.
    fn put(&mut self, slot: Slot, word: Word) {
        let (old, new) = (self.word(slot), word.0);
        let low = |word: u64| u32::try_from(word & u64::from(u32::MAX)).expect("32 bits");
        if old == new {
            return;
        }
        if old >> 32 == new >> 32 {
            self.store_half(slot.0, low(new));
        } else if low(old) == low(new) {
            self.store_half(slot.0 + 4, low(new >> 32));
        } else {
            self.medium.store_word(slot.0, new);
            self.note(slot.0, 8);
        }
        self.hiding.push((slot, new < old));
    }

    fn write_back(&mut self) {
        if self.dirty.is_empty() {
            return;
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.sort_unstable();
        let (mut next, mut next_wide) = (0, 0);
        for (at, len) in dirty.drain(..) {
            let (first, end) = (at / LINE, (at + len).div_ceil(LINE));
            self.medium.write_back(first.max(next)..end);
            self.counts.lines += end.saturating_sub(first.max(next));
            next = next.max(end);
            let (first, end) = (at / 256, (at + len).div_ceil(256));
            self.counts.wide_lines += end.saturating_sub(first.max(next_wide));
            next_wide = next_wide.max(end);
        }
        self.dirty = dirty;
        self.hiding.clear();
        self.medium.drain();
        self.counts.fences += 1;
        if let Some(watch) = &self.watch {
            watch.fence();
        }
    }
}

/// The sum of a record.
fn sum_of(tail: u64, entries: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&tail.to_le_bytes()), entries)
}

/// Everything that was stored is durable, and nobody stores anything until a commit.
#[derive(Debug)]
#[must_use]
pub struct Fenced<'g> {
    gate: &'g mut Gate,
}

impl<'g> Fenced<'g> {
    /// Changes a word that can be reached.
    pub fn commit(self, slot: Slot, word: Word) -> Committed<'g> {
        debug_assert!(self.gate.is_settled(), "a commit with stores under way");
        self.gate.counts.commits += 1;
        self.gate.put(slot, word);
        Committed { gate: self.gate }
    }

    /// Changes several words at once, by the micro-journal.
    ///
    /// # Panics
    /// If they are more than it has room for, or none.
    pub fn commit_all(self, words: &[(Slot, Word)]) -> Committed<'g> {
        assert!((1..=JOURNAL_WORDS).contains(&words.len()), "{} words in one commit", words.len());
        let gate = self.gate;
        debug_assert!(gate.is_settled(), "a commit with stores under way");
        gate.counts.commits += to_u64(words.len());
        if gate.log.is_some() {
            // The words are in one record of the log.
            words.iter().for_each(|(slot, word)| gate.put(*slot, *word));
            return Committed { gate };
        }
        gate.counts.journaled += 1;
        let count = (gate.word(Slot(JOURNAL)) >> 40).wrapping_add(1) & 0xff_ffff;
        let tail = count << 8 | to_u64(words.len());
        let mut entries = [0; 16 * JOURNAL_WORDS];
        let halves = words.iter().flat_map(|(slot, word)| [slot.0, word.0]);
        entries
            .chunks_exact_mut(8)
            .zip(halves)
            .for_each(|(into, half)| into.copy_from_slice(&half.to_le_bytes()));
        let entries = &entries[..16 * words.len()];
        gate.store(ENTRIES, entries);
        gate.medium.store_word(JOURNAL, tail << 32 | u64::from(sum_of(tail, entries)));
        gate.note(JOURNAL, 8);
        gate.write_back();
        words.iter().for_each(|(slot, word)| gate.put(*slot, *word));
        // Before the record ends to count, which is when the next fence comes.
        if gate.caching == Caching::Epochs {
            gate.write_back();
        }
        gate.has_record = true;
        Committed { gate }
    }
}

/// A commit was stored; it is durable when this is dropped, or with the next fence under [`Caching::Epochs`].
#[derive(Debug)]
#[must_use]
pub struct Committed<'g> {
    gate: &'g mut Gate,
}

impl Committed<'_> {
    /// Changes a time, which may become durable before the commit or after it (\[D\] §3.3.4).
    pub fn stamp(&mut self, slot: Slot, time: Word) {
        self.gate.put(slot, time);
    }

    /// What there is now, for who looks where a time is.
    pub fn gate(&self) -> &Gate {
        self.gate
    }

    /// The end of the operation.
    pub fn done(self) {}
}

impl Drop for Committed<'_> {
    fn drop(&mut self) {
        if self.gate.caching == Caching::WriteThrough {
            self.gate.write_back();
        }
        self.gate.record();
    }
}

/// What making a volume stores before there is one.
impl Gate {
    /// Stores the first block as a whole, when all it points to is durable.
    pub(crate) fn found(&mut self, superblock: &[u8], _: Linked) {
        self.write_back();
        self.store(0, superblock);
        self.write_back();
        self.store(BLOCK_BYTES, &superblock[..128]);
        self.write_back();
    }

    /// Says of a medium that it holds no volume.
    pub(crate) fn unfound(&mut self) {
        self.store(0, &[0; BLOCK]);
        self.write_back();
    }
}
