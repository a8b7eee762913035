//! Logs in the format of Linux' device-mapper target `log-writes`, so that foreign tools can replay ours and we can
//! judge theirs.
//!
//! **Layout**, little-endian, in units of the log's sector size (at least 512 bytes):
//!
//! ```text
//!   sector 0   magic, version 1, number of entries (u64 each), sector size (u32)
//!   entry      one sector: sector, number of sectors, flags, data length (u64 each), text of a mark
//!              then the data of a write, `number of sectors` long; discards, marks and bare flushes have none
//! ```
//!
//! **What it cannot say.** The format knows no acknowledgements. A write is logged once a flush covers it: before that
//! flush's entry, if it was acknowledged before the flush was issued, otherwise before a later one's. FUA writes are
//! logged when they are acknowledged, marks when they are set.
//!
//! *Export* follows this rule. Writes that no flush covered come at the end; those that were never acknowledged, that
//! an acknowledged newer version of their block ended, flushes that failed, and the kinds of blocks but for metadata
//! or not, are lost. *Import* takes every write as acknowledged at its place and every flush as acknowledged as soon
//! as issued. So the images of an exported log after its last event are those of the original if all writes were
//! acknowledged, and nothing is said about moments between flushes.
//!
//! Our marks read `fstitch begin 3` and so on; `origin.rs` has the one that names the image before the log. Foreign ones become notes, whose numbers [`Imported::names`] explains.

use std::collections::BTreeMap;

use fstitch_core::num::to_u64;
use fstitch_core::{BlockKind, Le};

use super::image::{Bytes, size};
use super::log::{Event, Log, Mark, RequestNo};

pub(super) const MAGIC: u64 = 0x006a_7366_7773_6872;
pub(super) const VERSION: u64 = 1;
pub(super) const FLUSH: u64 = 1;
pub(super) const FUA: u64 = 2;
pub(super) const DISCARD: u64 = 4;
pub(super) const MARK: u64 = 8;
pub(super) const METADATA: u64 = 16;

/// The sector size of logs that we write, and the smallest there is.
pub(super) const SECTOR: usize = 512;
pub(super) const MAX_SECTOR: usize = 64 << 10;
/// Where the text of a mark begins in its entry.
pub(super) const TEXT: usize = 32;
/// Foreign marks are notes from here on.
pub(super) const FIRST_FOREIGN: u64 = 1 << 63;

/// Bytes that are no log which we can read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DmLogError {
    /// It does not begin as such a log does.
    #[error("not a dm-log-writes log: it begins with {0:#x}, expected {MAGIC:#x}")]
    Magic(u64),
    /// Another version of the format.
    #[error("version {0} of the dm-log-writes format is not known, only {VERSION}")]
    Version(u64),
    /// A sector size that no device has.
    #[error("the log's sector size is {0}, expected a power of two from {SECTOR} to {MAX_SECTOR}")]
    SectorSize(u32),
    /// The bytes end too early.
    #[error("the log ends within entry {entry} of {entries}")]
    Truncated {
        /// The entry, counted from 0.
        entry: u64,
        /// How many there should be.
        entries: u64,
    },
    /// A request that the device does not have.
    #[error("entry {entry} concerns sectors {sector}+{count}, which lie outside the device")]
    Outside {
        /// The entry, counted from 0.
        entry: u64,
        /// Its first sector.
        sector: u64,
        /// Its sectors.
        count: u64,
    },
    /// A write of parts of blocks.
    #[error(
        "entry {entry} writes parts of blocks of {block_size} bytes; smaller blocks are needed to read this log"
    )]
    Unaligned {
        /// The entry, counted from 0.
        entry: u64,
        /// The block size that was asked for.
        block_size: u32,
    },
    /// A mark that does not fit its sector.
    #[error("entry {entry} is a mark of {len} bytes, more than its sector holds")]
    LongMark {
        /// The entry, counted from 0.
        entry: u64,
        /// The length of its text.
        len: u64,
    },
    /// More requests than we count.
    #[error("the log has more requests than can be counted")]
    TooMany,
    /// The log could not be read.
    #[error("reading the log: {0}")]
    Io(String),
}

/// A log that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The log.
    pub log: Log,
    /// The texts of foreign marks by the numbers of their notes.
    pub names: BTreeMap<u64, String>,
}

/// The log in the foreign format. Notes that `names` knows are written with their texts. Panics on a log of persistent
/// memory: the format has sectors only.
#[must_use]
pub fn export(log: &Log, names: &BTreeMap<u64, String>) -> Vec<u8> {
    let mut writer = Writer { block_size: size(log.geometry.block_size), entries: 0, bytes: vec![0; SECTOR] };
    let mut pending = Pending::default();
    for (at, event) in log.events.iter().enumerate() {
        match event {
            Event::Write { .. } | Event::Discard { .. } => pending.issue(event),
            Event::Ack(request) => {
                pending.acknowledge(*request, at).into_iter().for_each(|piece| writer.piece(piece));
            }
            Event::FlushIssued(request) => drop(pending.flushes.insert(*request, at)),
            Event::FlushAcked(request) => {
                if let Some(issued_at) = pending.flushes.remove(request) {
                    pending.take(Some(issued_at)).into_iter().for_each(|piece| writer.piece(piece));
                    writer.entry([0, 0, FLUSH, 0], &[], &[]);
                }
            }
            Event::FlushFailed(request) => {
                pending.flushes.remove(request);
                pending.pieces.values_mut().for_each(|(_, fate)| *fate = fate.forsaken());
            }
            Event::Memory(access) => panic!("{access:?} is no request to a device of sectors"),
            Event::Mark(mark) => writer.mark(*mark, names),
        }
    }
    pending.take(None).into_iter().for_each(|piece| writer.piece(piece));
    writer.finish()
}

/// How far a request has come.
#[derive(Clone, Copy)]
enum Fate {
    Issued,
    /// Acknowledged at this place in the log.
    Acked(usize),
    /// Issued before a flush failed; acknowledged or not.
    Forsaken(bool),
}

impl Fate {
    fn forsaken(self) -> Self {
        match self {
            Self::Issued | Self::Forsaken(false) => Self::Forsaken(false),
            Self::Acked(_) | Self::Forsaken(true) => Self::Forsaken(true),
        }
    }
}

/// A block's share of a request.
#[derive(Clone, Copy)]
enum Piece<'a> {
    Write { block: u64, data: &'a Bytes, metadata: bool, fua: bool },
    Discard { block: u64 },
}

/// What no flush covered yet.
#[derive(Default)]
struct Pending<'a> {
    /// By request and block.
    pieces: BTreeMap<(RequestNo, u64), (Piece<'a>, Fate)>,
    flushes: BTreeMap<RequestNo, usize>,
}

impl<'a> Pending<'a> {
    fn issue(&mut self, event: &'a Event) {
        match event {
            Event::Write { request, block, kind, data, fua } => {
                let metadata = *kind != BlockKind::Data;
                let piece = Piece::Write { block: *block, data, metadata, fua: *fua };
                self.pieces.insert((*request, *block), (piece, Fate::Issued));
            }
            Event::Discard { request, start, count } => {
                for block in *start..*start + *count {
                    self.pieces.insert((*request, block), (Piece::Discard { block }, Fate::Issued));
                }
            }
            _ => {}
        }
    }

    /// Takes note; a FUA write is handed out.
    fn acknowledge(&mut self, request: RequestNo, at: usize) -> Option<Piece<'a>> {
        let mut stable = None;
        for (piece, fate) in self.pieces.range_mut((request, 0)..=(request, u64::MAX)).map(|(_, of)| of) {
            *fate = match fate {
                Fate::Forsaken(_) => Fate::Forsaken(true),
                _ => Fate::Acked(at),
            };
            if let Piece::Write { fua: true, block, .. } = *piece {
                stable = Some((*piece, block));
            }
        }
        let (piece, block) = stable?;
        self.end(block, request);
        Some(piece)
    }

    /// Hands out what was acknowledged before `issued_at`, or everything acknowledged, in order of issue.
    fn take(&mut self, issued_at: Option<usize>) -> Vec<Piece<'a>> {
        let covered = |fate: Fate| match (fate, issued_at) {
            (Fate::Acked(at), Some(issued_at)) => at < issued_at,
            (Fate::Acked(_) | Fate::Forsaken(true), None) => true,
            _ => false,
        };
        let covered: Vec<_> = self
            .pieces
            .iter()
            .filter(|(_, of)| covered(of.1))
            .map(|(&key, &(piece, _))| (key, piece))
            .collect();
        let mut ready = Vec::new();
        for ((request, block), piece) in covered {
            match piece {
                // What is stable ends older versions, which may not be replayed after it.
                Piece::Write { .. } if issued_at.is_some() => self.end(block, request),
                // A discard ends nothing, so it waits for older versions.
                Piece::Discard { .. } if issued_at.is_some() && self.has_older(block, request) => continue,
                _ => drop(self.pieces.remove(&(request, block))),
            }
            ready.push(piece);
        }
        ready
    }

    fn has_older(&self, block: u64, request: RequestNo) -> bool {
        self.pieces.range(..(request, 0)).any(|(key, _)| key.1 == block)
    }

    fn end(&mut self, block: u64, newest: RequestNo) {
        self.pieces.retain(|&(request, other), _| other != block || request > newest);
    }
}

struct Writer {
    block_size: usize,
    entries: u64,
    bytes: Vec<u8>,
}

impl Writer {
    fn entry(&mut self, fields: [u64; 4], text: &[u8], data: &[u8]) {
        let mut head = [0; SECTOR];
        fields.iter().enumerate().for_each(|(at, &field)| Le::put_u64(&mut head, at * 8, field));
        head[TEXT..TEXT + text.len()].copy_from_slice(text);
        self.bytes.extend_from_slice(&head);
        self.bytes.extend_from_slice(data);
        self.entries += 1;
    }

    fn piece(&mut self, piece: Piece<'_>) {
        let per_block = as_u64(self.block_size / SECTOR);
        match piece {
            Piece::Write { block, data, metadata, fua } => {
                let flags = if metadata { METADATA } else { 0 } | if fua { FUA } else { 0 };
                self.entry([block * per_block, per_block, flags, 0], &[], data);
            }
            Piece::Discard { block } => {
                self.entry([block * per_block, per_block, DISCARD, 0], &[], &[]);
            }
        }
    }

    fn mark(&mut self, mark: Mark, names: &BTreeMap<u64, String>) {
        let mut text = match mark {
            Mark::Begin(no) => format!("fstitch begin {no}"),
            Mark::End(no) => format!("fstitch end {no}"),
            Mark::Promise(no) => format!("fstitch promise {no}"),
            Mark::Note(no) => names.get(&no).cloned().unwrap_or_else(|| format!("fstitch note {no}")),
        };
        // A sector holds the text and a zero after it.
        while text.len() > SECTOR - TEXT - 1 {
            text.pop();
        }
        self.entry([0, 0, MARK, as_u64(text.len())], text.as_bytes(), &[]);
    }

    fn finish(mut self) -> Vec<u8> {
        Le::put_u64(&mut self.bytes, 0, MAGIC);
        Le::put_u64(&mut self.bytes, 8, VERSION);
        Le::put_u64(&mut self.bytes, 16, self.entries);
        Le::put_u32(&mut self.bytes, 24, u32::try_from(SECTOR).expect("it is small"));
        self.bytes
    }
}

pub(super) fn as_u64(n: usize) -> u64 {
    to_u64(n)
}
