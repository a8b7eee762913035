//! What opening does: it finds the groups that are not home, brings them there, and begins a new epoch.

use fstitch_core::num::to_usize;
use fstitch_core::{BlockKind, Error, Result, Structure};

use super::format::{self, Header, LINE_LEN, LINES_IN_BLOCK, Lines, Shape};
use super::pages::{Page, Pages};
use crate::pm::BLOCK;

/// Blocks that are brought home at once.
const BATCH: usize = 256;

/// What opening found in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Recovered {
    /// Nobody had closed the volume.
    pub was_open: bool,
    /// Groups that were not home.
    pub groups: u64,
    /// Blocks that they were brought to.
    pub blocks: u64,
}

/// What a log holds.
pub(super) struct Found {
    pub(super) header: Header,
    /// The block behind the last group.
    pub(super) head: u64,
    pub(super) groups: u64,
    pub(super) lines: Lines,
}

/// Reads the headers; the newer one that is whole.
///
/// # Errors
/// `Corrupt` if there is none.
pub(super) fn header(pages: &Pages, shape: &Shape) -> Result<Header> {
    let mut newest: Option<Header> = None;
    for number in 0..format::HEADERS {
        let mut block = vec![0; BLOCK];
        pages.read(shape.header(number), BlockKind::JournalSuperblock, &mut block)?;
        let found = Header::decode(&block);
        newest = newest.into_iter().chain(found).max_by_key(|header| header.number);
    }
    newest.ok_or_else(|| Error::corrupt(Structure::Other("log"), None, "neither of its headers can be read"))
}

/// Reads all groups from the header's on, up to the first that is none: it was not whole when the machine stopped, or never was.
///
/// # Errors
/// Those of the device; `Corrupt`.
pub(super) fn find(pages: &Pages, shape: &Shape) -> Result<Found> {
    let header = header(pages, shape)?;
    let (mut head, mut groups, mut lines) = (header.tail, 0, Lines::new());
    while head - header.tail < shape.ring {
        let mut bytes = vec![0; BLOCK];
        pages.read(shape.block(head), BlockKind::JournalData, &mut bytes)?;
        let Some(blocks) = format::group_len(shape, header.epoch, head, &bytes) else { break };
        if head + blocks - header.tail > shape.ring {
            break;
        }
        for block in head + 1..head + blocks {
            let from = bytes.len();
            bytes.resize(from + BLOCK, 0);
            pages.read(shape.block(block), BlockKind::JournalData, &mut bytes[from..])?;
        }
        let Some(group) = format::decode(shape.first, &bytes)? else { break };
        lines.extend(group);
        head += blocks;
        groups += 1;
    }
    Ok(Found { header, head, groups, lines })
}

/// Brings lines home; the number of blocks.
///
/// # Errors
/// Those of the device.
pub(super) fn apply(pages: &Pages, lines: &Lines) -> Result<u64> {
    let mut blocks: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut done = 0;
    for (line, contents) in lines {
        let block = line / LINES_IN_BLOCK;
        if blocks.last().is_none_or(|(last, _)| *last != block) {
            if blocks.len() == BATCH {
                put(pages, &blocks)?;
                blocks.clear();
            }
            let mut bytes = vec![0; BLOCK];
            pages.read(block, BlockKind::Data, &mut bytes)?;
            blocks.push((block, bytes));
            done += 1;
        }
        let at = to_usize(line % LINES_IN_BLOCK) * LINE_LEN;
        let (_, bytes) = blocks.last_mut().expect("one was pushed");
        bytes[at..at + LINE_LEN].copy_from_slice(contents);
    }
    put(pages, &blocks)?;
    Ok(done)
}

fn put(pages: &Pages, blocks: &[(u64, Vec<u8>)]) -> Result<()> {
    let writes: Vec<Page<'_>> =
        blocks.iter().map(|(block, bytes)| (*block, BlockKind::Data, &bytes[..])).collect();
    pages.write(&writes)
}
