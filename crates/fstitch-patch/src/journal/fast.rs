//! Fast commits: what happened since the last transaction, in the words of ext4 instead of copies of blocks.
//!
//! **Layout.** With feature `fast_commit` the last blocks of the journal are a log of their own. It has no ring: it starts anew behind
//! every transaction. Unlike all else in a journal its integers are little-endian.
//!
//! ```text
//!   block │ head record record … tail ──── to the end │ record record … pad ── │ record … tail ── │
//!         │ └ the first one only      one commit      │       one commit of two blocks            │
//! ```
//!
//! A record is a tag, the length of its value and the value, within one block; pads and the values of tails fill the rest of it. A commit
//! ends with a tail: the number of the transaction that was running, which is the one behind the last whole
//! transaction of the log, and a sum over all records since the last tail.
//!
//! **What counts.** The commits up to the first that is torn or another transaction's. What is left of earlier laps has another number.
//! Once a transaction of that number or a later one is whole, none counts any more. So a log can be emptied only when they were applied,
//! and that may happen again after a crash in the middle: they say what is, not what changes.
//!
//! The bytes become [`Change`]s here, whose numbers and names are possible ones; whether they fit the volume its format knows.

use fstitch_core::{BlockBuf, BlockKind, Error, Le, Result, Structure};

use super::checksum::crc32c;
use super::format::Sequence;
use super::log::Log;

/// The most bytes of fast commits that we read: hundreds of times what anybody makes.
const AREA_MAX: usize = 256 << 20;
/// Bytes of a record's tag and length.
const HEADER: usize = 4;
/// Bytes of a tail's value that mean something: the transaction and the sum.
const TAIL: usize = 8;
/// The longest name.
const NAME_MAX: usize = 255;
/// The least bytes of an inode.
const INODE_MIN: usize = 128;
/// An extent that is longer is one that reads as zeros, and this much shorter.
const EXTENT_MAX: u16 = 0x8000;

/// The tags of records, with the names of the format.
mod tag {
    pub const ADD_RANGE: u16 = 1;
    pub const DEL_RANGE: u16 = 2;
    pub const CREAT: u16 = 3;
    pub const LINK: u16 = 4;
    pub const UNLINK: u16 = 5;
    pub const INODE: u16 = 6;
    // 7 fills a block.
    pub const TAIL: u16 = 8;
    pub const HEAD: u16 = 9;
}

/// Blocks of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first one's place in the file.
    pub logical: u32,
    /// How many, at least one.
    pub count: u16,
    /// The first one's number on the volume.
    pub physical: u64,
    /// They read as zeros.
    pub is_unwritten: bool,
}

/// What a fast commit says about the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// These blocks are in the file there, whatever was before.
    AddRange {
        /// The file.
        inode: u32,
        /// Its blocks.
        extent: Extent,
    },
    /// Nothing is in the file there.
    DropRange {
        /// The file.
        inode: u32,
        /// The first place.
        first: u32,
        /// How many.
        count: u32,
    },
    /// An inode is in use, and this is its first name.
    Create(Entry<'a>),
    /// It has this name.
    Link(Entry<'a>),
    /// It has not.
    Unlink(Entry<'a>),
    /// What an inode says, but for its map of blocks, which the ranges make.
    Inode {
        /// Its number.
        inode: u32,
        /// As in a table of inodes, and as far as is known: the fields behind are as they were.
        raw: &'a [u8],
    },
}

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The directory.
    pub parent: u32,
    /// Whose name it is.
    pub inode: u32,
    /// At most 255 bytes, without a slash and a zero.
    pub name: &'a [u8],
}

/// The fast commits that count.
#[derive(Debug)]
pub struct FastCommits {
    sequence: Sequence,
    /// The blocks that they lie in.
    blocks: Vec<BlockBuf>,
    /// How many there are, and how many records they have.
    commits: u32,
    records: usize,
    damage: Option<Error>,
}

impl FastCommits {
    /// The transaction that was running.
    #[must_use]
    pub const fn sequence(&self) -> Sequence {
        self.sequence
    }

    /// How many there are.
    #[must_use]
    pub const fn commits(&self) -> u32 {
        self.commits
    }

    /// Whether there is nothing to apply, and nothing that should have been.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.commits == 0 && self.damage.is_none()
    }

    /// What a crash cannot have left behind those that count: a commit that is whole and says what cannot be.
    #[must_use]
    pub const fn damage(&self) -> Option<&Error> {
        self.damage.as_ref()
    }

    /// What they say, in the order in which it is to be applied.
    pub fn changes(&self) -> impl Iterator<Item = Change<'_>> {
        let records = self.blocks.iter().flat_map(|block| records_of(block));
        records.take(self.records).filter_map(|record| record.change().ok().flatten())
    }
}

/// A record of a block.
#[derive(Clone, Copy, Debug)]
struct Record<'a> {
    tag: u16,
    value: &'a [u8],
    /// Tag, length and value.
    whole: &'a [u8],
}

/// The records of a block, as long as they are inside.
fn records_of(block: &[u8]) -> impl Iterator<Item = Record<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = block.get(at..).filter(|rest| rest.len() >= HEADER)?;
        let end = HEADER + usize::from(Le::u16(rest, 2));
        let whole = rest.get(..end)?;
        at += end;
        Some(Record { tag: Le::u16(whole, 0), value: &whole[HEADER..], whole })
    })
}

impl<'a> Record<'a> {
    /// What it says about the volume; nothing, if it is about the log. `Err` has what is wrong with it.
    fn change(&self) -> Result<Option<Change<'a>>, &'static str> {
        let value = self.value;
        let change = match self.tag {
            tag::ADD_RANGE => {
                let value: &[u8; 16] = value.try_into().map_err(|_| "a range of another length")?;
                Change::AddRange { inode: inode(value, 0)?, extent: extent(&value[4..])? }
            }
            tag::DEL_RANGE => {
                let value: &[u8; 12] = value.try_into().map_err(|_| "a range of another length")?;
                let (first, count) = (Le::u32(value, 4), Le::u32(value, 8));
                if count == 0 {
                    return Err("a range of no blocks");
                }
                Change::DropRange { inode: inode(value, 0)?, first, count }
            }
            tag::CREAT => Change::Create(Entry::parse(value)?),
            tag::LINK => Change::Link(Entry::parse(value)?),
            tag::UNLINK => Change::Unlink(Entry::parse(value)?),
            tag::INODE => {
                if value.len() < 4 + INODE_MIN {
                    return Err("an inode that is too short");
                }
                Change::Inode { inode: inode(value, 0)?, raw: &value[4..] }
            }
            _ => return Ok(None),
        };
        Ok(Some(change))
    }

    /// Whether we know what such records mean.
    fn is_known(&self) -> bool {
        (tag::ADD_RANGE..=tag::HEAD).contains(&self.tag)
    }
}

impl<'a> Entry<'a> {
    fn parse(value: &'a [u8]) -> Result<Self, &'static str> {
        let (numbers, name) = value.split_at_checked(8).ok_or("an entry that is too short")?;
        let is_possible = (1..=NAME_MAX).contains(&name.len()) && !name.iter().any(|b| [b'/', 0].contains(b));
        if !is_possible {
            return Err("an impossible name");
        }
        Ok(Self { parent: inode(numbers, 0)?, inode: inode(numbers, 4)?, name })
    }
}

fn inode(value: &[u8], at: usize) -> Result<u32, &'static str> {
    Some(Le::u32(value, at)).filter(|&inode| inode != 0).ok_or("inode 0")
}

/// An extent as in a file's map.
fn extent(raw: &[u8]) -> Result<Extent, &'static str> {
    let (logical, len) = (Le::u32(raw, 0), Le::u16(raw, 4));
    let physical = u64::from(Le::u16(raw, 6)) << 32 | u64::from(Le::u32(raw, 8));
    let is_unwritten = len > EXTENT_MAX;
    let count = if is_unwritten { len - EXTENT_MAX } else { len };
    if count == 0 || logical.checked_add(u32::from(count) - 1).is_none() {
        return Err("an impossible extent");
    }
    Ok(Extent { logical, count, physical, is_unwritten })
}

/// Finds which commits count, block by block.
struct Scanner<'l> {
    /// Whether the volume may have these blocks in a file.
    may_hold: &'l dyn Fn(&Extent) -> bool,
    found: FastCommits,
    /// Of the commit that was not ended yet: its blocks before this one, its records, its sum.
    pending: Vec<BlockBuf>,
    records: usize,
    sum: u32,
    has_head: bool,
    /// What is wrong with it, if it is whole.
    wrong: Option<&'static str>,
    unknown: Option<String>,
}

impl<'l> Scanner<'l> {
    fn new(sequence: Sequence, may_hold: &'l dyn Fn(&Extent) -> bool) -> Self {
        let found = FastCommits { sequence, blocks: Vec::new(), commits: 0, records: 0, damage: None };
        let (pending, records, sum, has_head) = (Vec::new(), 0, 0, false);
        Self { may_hold, found, pending, records, sum, has_head, wrong: None, unknown: None }
    }

    /// Looks at the next block. Whether there may be more.
    fn look(&mut self, block: BlockBuf) -> Result<bool> {
        let (before, commits) = (self.found.records, self.found.commits);
        let goes_on = self.look_at(&block)?;
        self.pending.push(block);
        if self.found.commits > commits {
            debug_assert!(self.found.records > before, "a commit has a tail");
            self.found.blocks.append(&mut self.pending);
        }
        Ok(goes_on)
    }

    fn look_at(&mut self, block: &[u8]) -> Result<bool> {
        for record in records_of(block) {
            self.records += 1;
            if record.tag == tag::TAIL {
                if !self.ends_with(&record)? {
                    return Ok(false);
                }
            } else if self.is_ours(&record) {
                self.note(&record);
            } else {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A commit ends; whether it counts.
    fn ends_with(&mut self, tail: &Record<'_>) -> Result<bool> {
        if !self.is_whole(tail) {
            return Ok(false);
        }
        if let Some(what) = self.unknown.take() {
            return Err(Error::Unsupported(format!("fast commits with {what}")));
        }
        if let Some(wrong) = self.wrong {
            let problem = format!("a fast commit of transaction {} has {wrong}", self.found.sequence);
            self.found.damage = Some(Error::corrupt(Structure::Journal, None, problem));
            return Ok(false);
        }
        self.found.records = self.records;
        self.found.commits += 1;
        self.sum = 0;
        Ok(true)
    }

    /// Whether the tail is of the transaction, and of the records before it.
    fn is_whole(&self, tail: &Record<'_>) -> bool {
        tail.value.len() >= TAIL
            && self.has_head
            && Le::u32(tail.value, 0) == self.found.sequence.0
            && Le::u32(tail.value, 4) == crc32c(self.sum, &tail.whole[..HEADER + 4])
    }

    /// Whether a record can be the transaction's: the first one is a head that says so.
    fn is_ours(&mut self, record: &Record<'_>) -> bool {
        if record.tag != tag::HEAD {
            // A block of zeros leaves the sum as it was: the commit that should be there never arrived.
            return self.has_head && record.tag != 0;
        }
        self.has_head = record.value.len() == 8 && Le::u32(record.value, 4) == self.found.sequence.0;
        if self.has_head && Le::u32(record.value, 0) != 0 {
            let features = Le::u32(record.value, 0);
            self.unknown.get_or_insert_with(|| format!("features {features:#x}"));
        }
        self.has_head
    }

    fn note(&mut self, record: &Record<'_>) {
        self.sum = crc32c(self.sum, record.whole);
        if !record.is_known() {
            self.unknown.get_or_insert_with(|| format!("records of type {}", record.tag));
        }
        let wrong = match record.change() {
            Ok(Some(Change::AddRange { extent, .. })) if !(self.may_hold)(&extent) => {
                Some("blocks beyond the volume or of the journal's own")
            }
            Ok(_) => None,
            Err(wrong) => Some(wrong),
        };
        self.wrong = self.wrong.or(wrong);
    }
}

impl Log<'_> {
    /// The fast commits behind the transaction before `next`, which is the last whole one ([`super::Scan::next`]).
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Unsupported`] by name for whole ones with something that we do not know.
    pub fn fast_commits(&self, next: Sequence) -> Result<FastCommits> {
        let may_hold = |extent: &Extent| self.may_all_go_home(extent.physical, u64::from(extent.count));
        let mut scanner = Scanner::new(next, &may_hold);
        let area = self.superblock().fast_area();
        if area.len() > AREA_MAX / self.block_size() {
            return Err(Error::Unsupported(format!("{} blocks for fast commits", area.len())));
        }
        for at in area {
            let mut block = [BlockBuf::zeroed(self.block_size())];
            self.read([at], BlockKind::JournalData, &mut block)?;
            let [block] = block;
            if !scanner.look(block)? {
                break;
            }
        }
        Ok(scanner.found)
    }
}
