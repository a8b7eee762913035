//! Reading the log: its records in order, and how far it is whole.
//!
//! A transaction is *whole* when its commit block is there and every checksum in it is right. The log ends at the
//! first block that does not continue it. That is the ordinary end of every log, as nothing marks it; so a
//! transaction that never was finished, and one whose commit block was torn, look alike and are both not replayed.
//! What cannot be the leavings of a crash (a tag that points nowhere, a block of an unknown type, a wrong checksum)
//! ends the log as well, but [`Why::is_damage`] says so.

use fstitch_core::num::to_u64;
use fstitch_core::{BlockBuf, BlockKind, Result, Timestamp};

use super::blocks::{Commit, Shape, Tag};
use super::checksum::{START, crc32};
use super::format::{BlockType, Checksums, Header, INCOMPAT_ASYNC_COMMIT, Sequence};
use super::log::Log;

/// Copies that are read at once, to verify them.
const COPIES_AT_ONCE: usize = 64;

/// A block of the log with a meaning of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Copies follow.
    Descriptor {
        /// Its block in the journal.
        at: u32,
        /// The transaction.
        sequence: Sequence,
        /// Where the copies belong, in the order of their blocks.
        tags: Vec<Tag>,
    },
    /// Older copies must not be replayed.
    Revoke {
        /// Its block in the journal.
        at: u32,
        /// The transaction: it and all before it are meant.
        sequence: Sequence,
        /// The blocks at home.
        blocks: Vec<u64>,
    },
    /// The transaction ends.
    Commit {
        /// Its block in the journal.
        at: u32,
        /// The transaction.
        sequence: Sequence,
        /// What it says.
        commit: Commit,
    },
}

/// Why the log ends where it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The superblock says that it is empty.
    Empty,
    /// No block of the journal's own is there.
    NoBlock,
    /// A block of another transaction is there: of an earlier lap, as a rule.
    Sequence(Sequence),
    /// A block of the expected transaction is there, but its type is unknown.
    Type(u32),
    /// The log went all around: it is full, and what comes next was still waiting for its tail to move.
    Around,
    /// A checksum is wrong.
    Checksum(&'static str),
    /// A tag names this block, which is no home of copies: beyond the volume, or the journal's own.
    Home(u64),
    /// A revoke block has an impossible number of entries.
    Revokes,
    /// All that was asked for was read.
    Asked,
}

impl Why {
    /// Whether a crash alone cannot have left this.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        matches!(self, Self::Type(_) | Self::Checksum(_) | Self::Home(_) | Self::Revokes)
    }
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Empty => f.write_str("the log is empty"),
            Self::NoBlock => f.write_str("no block of a transaction is there"),
            Self::Sequence(found) => write!(f, "a block of transaction {found} is there"),
            Self::Type(code) => write!(f, "a block of unknown type {code} is there"),
            Self::Around => f.write_str("the log is full, all around"),
            Self::Checksum(what) => write!(f, "the checksum of the {what} is wrong"),
            Self::Home(block) => {
                write!(f, "a tag names block {block}, which is beyond the volume or the journal's own")
            }
            Self::Revokes => f.write_str("a revoke block has an impossible number of entries"),
            Self::Asked => f.write_str("the last whole transaction was read"),
        }
    }
}

/// Where and why the log ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// The block in the journal that was looked at last.
    pub at: u32,
    /// The transaction that was expected there.
    pub sequence: Sequence,
    /// That transaction has begun: it is torn, its commit block is missing.
    pub is_torn: bool,
    /// Why.
    pub why: Why,
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { at, sequence, why, .. } = self;
        if *why == Why::Empty {
            return why.fmt(f);
        }
        let place = if self.is_torn { "in the middle of" } else { "before" };
        write!(f, "the log ends {place} transaction {sequence}, at block {at} of the journal: {why}")
    }
}

/// Reads the log record by record. Bounded by the log's length, whatever is in it.
pub struct Walk<'l> {
    log: &'l Log<'l>,
    shape: Shape,
    block: Vec<BlockBuf>,
    at: u32,
    sequence: Sequence,
    /// Blocks of the log that were not passed yet.
    left: u32,
    is_open: bool,
    /// The first transaction that is not asked for.
    until: Option<Sequence>,
    verifies: bool,
    /// The CRC-32 over the transaction so far.
    sum: u32,
    end: Option<End>,
}

impl std::fmt::Debug for Walk<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Walk(at block {} in transaction {})", self.at, self.sequence)
    }
}

impl<'l> Walk<'l> {
    pub(super) fn new(log: &'l Log<'l>, verifies: bool) -> Self {
        let superblock = log.superblock();
        let mut walk = Self {
            log,
            shape: log.shape(),
            block: vec![BlockBuf::zeroed(log.block_size())],
            at: superblock.start,
            sequence: superblock.sequence,
            left: superblock.log_blocks(),
            is_open: false,
            until: None,
            verifies,
            sum: START,
            end: None,
        };
        if superblock.start == 0 {
            walk.stop(Why::Empty);
        }
        walk
    }

    /// The walk over the whole transactions only.
    #[must_use]
    pub(super) fn until(mut self, sequence: Sequence) -> Self {
        self.until = Some(sequence);
        self
    }

    /// Where and why the walk ended; `None` before it did.
    #[must_use]
    pub const fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// Blocks of the log that were passed.
    #[must_use]
    pub const fn passed(&self) -> u32 {
        self.log.superblock().log_blocks() - self.left
    }

    fn stop(&mut self, why: Why) {
        let (at, sequence) = (self.at, self.sequence);
        self.end = Some(End { at, sequence, is_torn: self.is_open, why });
    }

    /// The next record; `None` at the end of the log, which [`Walk::end`] then explains.
    ///
    /// # Errors
    /// When the device fails.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Record>> {
        if self.end.is_some() {
            return Ok(None);
        }
        match self.step()? {
            Ok(record) => Ok(Some(record)),
            Err(why) => {
                self.stop(why);
                Ok(None)
            }
        }
    }

    fn step(&mut self) -> Result<Result<Record, Why>> {
        if !self.is_open && self.until == Some(self.sequence) {
            return Ok(Err(Why::Asked));
        }
        if self.left == 0 {
            return Ok(Err(Why::Around));
        }
        self.log.read([self.at], BlockKind::JournalDescriptor, &mut self.block)?;
        let Some(header) = Header::parse(&self.block[0]) else {
            return Ok(Err(Why::NoBlock));
        };
        if header.sequence != self.sequence {
            return Ok(Err(Why::Sequence(header.sequence)));
        }
        match BlockType::of(header.code) {
            Some(BlockType::Descriptor) => self.descriptor(),
            Some(BlockType::Revoke) => Ok(self.revoke()),
            Some(BlockType::Commit) => Ok(self.commit()),
            _ => Ok(Err(Why::Type(header.code))),
        }
    }

    fn pass(&mut self, blocks: u32) {
        self.at = self.log.superblock().advance(self.at, blocks);
        self.left -= blocks;
        self.is_open = true;
    }

    fn descriptor(&mut self) -> Result<Result<Record, Why>> {
        let (at, sequence) = (self.at, self.sequence);
        if !self.shape.tail_is_right(&self.block[0]) {
            return Ok(Err(self.bad_sum("descriptor")));
        }
        let tags = self.shape.tags(&self.block[0]);
        let blocks = u32::try_from(tags.len() + 1).expect("fewer tags than bytes");
        if blocks > self.left {
            return Ok(Err(Why::Around));
        }
        if let Some(tag) = tags.iter().find(|tag| !self.log.may_go_home(tag.block)) {
            return Ok(Err(Why::Home(tag.block)));
        }
        if self.verifies && self.shape.checksums() != Checksums::None {
            if self.sums_transaction() {
                self.sum = crc32(self.sum, &self.block[0]);
            }
            if !self.verify(&tags)? {
                return Ok(Err(self.bad_sum("copy of a block")));
            }
        }
        self.pass(blocks);
        Ok(Ok(Record::Descriptor { at, sequence, tags }))
    }

    /// Whether commit blocks have a sum over all that comes before them.
    fn sums_transaction(&self) -> bool {
        self.shape.checksums() == Checksums::Commit
    }

    /// Whether the copies of a descriptor are what they were.
    fn verify(&mut self, tags: &[Tag]) -> Result<bool> {
        let mut copies = vec![BlockBuf::zeroed(self.log.block_size()); tags.len().min(COPIES_AT_ONCE)];
        let mut at = self.at;
        for part in tags.chunks(COPIES_AT_ONCE) {
            let places: Vec<u32> = part
                .iter()
                .map(|_| {
                    at = self.log.superblock().advance(at, 1);
                    at
                })
                .collect();
            let copies = &mut copies[..part.len()];
            self.log.read(places, BlockKind::JournalData, copies)?;
            for (tag, copy) in part.iter().zip(copies) {
                if self.sums_transaction() {
                    self.sum = crc32(self.sum, copy);
                }
                if !self.shape.copy_is_right(tag, self.sequence, copy) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn revoke(&mut self) -> Result<Record, Why> {
        if !self.shape.tail_is_right(&self.block[0]) {
            return Err(self.bad_sum("revoke block"));
        }
        let blocks = self.shape.revokes(&self.block[0]).ok_or(Why::Revokes)?;
        let record = Record::Revoke { at: self.at, sequence: self.sequence, blocks };
        self.pass(1);
        Ok(record)
    }

    fn commit(&mut self) -> Result<Record, Why> {
        if !self.shape.commit_is_right(&self.block[0]) {
            return Err(self.bad_sum("commit block"));
        }
        let commit = self.shape.commit(&self.block[0]);
        if self.verifies && commit.transaction_sum.is_some_and(|sum| sum != self.sum) {
            return Err(self.bad_sum("transaction"));
        }
        let record = Record::Commit { at: self.at, sequence: self.sequence, commit };
        self.pass(1);
        self.is_open = false;
        self.sequence = self.sequence.next();
        self.sum = START;
        Ok(record)
    }

    /// A wrong checksum. Where commit blocks do not wait for what is before them it is a torn transaction's ordinary
    /// look, and no damage.
    fn bad_sum(&mut self, what: &'static str) -> Why {
        self.is_open = true;
        let tearing = self.log.superblock().features.incompat & INCOMPAT_ASYNC_COMMIT != 0;
        if tearing { Why::NoBlock } else { Why::Checksum(what) }
    }
}

/// The whole transactions of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// The first transaction.
    pub first: Sequence,
    /// How many there are.
    pub transactions: u32,
    /// Copies in them.
    pub copies: u64,
    /// Entries of revoke blocks in them.
    pub revokes: u64,
    /// Blocks of the log that they take.
    pub blocks: u32,
    /// When the last one was committed.
    pub last_commit: Option<Timestamp>,
    /// Where and why the log ends.
    pub end: End,
}

impl Scan {
    pub(super) fn run(log: &Log<'_>, progress: &mut dyn FnMut(u64, u64)) -> Result<Self> {
        let mut walk = Walk::new(log, true);
        let (mut copies, mut revokes) = (0, 0);
        let mut whole = Self {
            first: log.superblock().sequence,
            transactions: 0,
            copies: 0,
            revokes: 0,
            blocks: 0,
            last_commit: None,
            end: End { at: 0, sequence: Sequence(0), is_torn: false, why: Why::Empty },
        };
        let count = |len: usize| to_u64(len);
        while let Some(record) = walk.next()? {
            match record {
                Record::Descriptor { tags, .. } => copies += count(tags.len()),
                Record::Revoke { blocks, .. } => revokes += count(blocks.len()),
                Record::Commit { commit, .. } => {
                    whole.transactions += 1;
                    (whole.copies, whole.revokes) = (copies, revokes);
                    whole.blocks = walk.passed();
                    whole.last_commit = Some(commit.time);
                }
            }
            progress(u64::from(walk.passed()), u64::from(log.superblock().log_blocks()));
        }
        whole.end = walk.end.expect("the walk has ended");
        Ok(whole)
    }

    /// The first transaction that is not whole.
    #[must_use]
    pub const fn next(&self) -> Sequence {
        self.first.plus(self.transactions)
    }

    /// The number for the first transaction after the log was emptied. Remains of what was not replayed must not look
    /// like its continuation, so the torn transaction's number is skipped; and if the log was damaged in its middle,
    /// so are the numbers of all that may be behind the damage.
    #[must_use]
    pub fn restart(&self, log: &Log<'_>) -> Sequence {
        let skipped = if self.end.why.is_damage() { log.superblock().log_blocks() } else { 1 };
        self.next().plus(skipped)
    }
}
