//! Recovery: the newest copy of every block goes home, then the log is emptied.
//!
//! **States and transitions.** A log is *dirty* (`s_start` is not 0) or *empty*. [`replay`] takes it from dirty to
//! empty with one write of the superblock.
//!
//! **Invariants.** 1. No block of the log is changed while it is dirty: copies that would go there end the log
//! (`Home` in [`Why`](super::scan::Why)). 2. The superblock is written after everything at home is stable.
//!
//! **Crash cases.** Before the superblock's write the log is as it was, and a second replay writes the same bytes to
//! the same blocks: which copy is the newest depends on the log alone. After it nothing is left to do. The one
//! write of 1024 bytes may be torn at 512 bytes; all that changes lies in the first.
//!
//! **Memory.** One entry for each block that the log has a copy of; copies are read in small batches.

use std::collections::BTreeMap;

use fstitch_core::num::to_u64;
use fstitch_core::{BlockBuf, BlockDevice, BlockKind, BlockNo, BlockWrite, Error, Result, Structure};

use super::blocks::unescape;
use super::format::Sequence;
use super::log::Log;
use super::scan::{Record, Scan, Walk};

/// Bytes of copies that are in memory at once.
const BATCH_BYTES: usize = 1 << 20;

/// A part of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Finding the whole transactions.
    Scan,
    /// Writing copies home.
    Copy,
}

/// How far the work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The part of it.
    pub stage: Stage,
    /// Blocks done.
    pub done: u64,
    /// Blocks in all, at most.
    pub total: u64,
}

/// What a replay did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// What was found.
    pub scan: Scan,
    /// Blocks written home.
    pub written: u64,
    /// Blocks whose newest copy was revoked, so that they were left alone.
    pub revoked: u64,
}

/// The newest copy of a block.
#[derive(Clone, Copy, Debug)]
struct Copy {
    sequence: Sequence,
    at: u32,
    is_escaped: bool,
}

type Copies = BTreeMap<u64, Copy>;

/// What a copy is a copy of, by the number and the contents of the block: a log does not say.
pub type KindOf<'a> = &'a dyn Fn(BlockNo, &[u8]) -> BlockKind;

/// Writes the newest copy of every block that was not revoked to `home`, then empties the log. Does nothing if it is
/// empty already. Each block goes home as what `kind_of` says that it is.
///
/// # Errors
/// When a device fails; the log is then as it was or, if its superblock was being written, empty. `Unsupported` for a journal with fast
/// commits behind its log: whoever knows what they say brings the copies home, applies them, and empties the log.
pub fn replay(
    log: &mut Log<'_>,
    home: &dyn BlockDevice,
    kind_of: KindOf<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Replayed> {
    log.check_home(home)?;
    let scan = log.scan(&mut |done, total| progress(Progress { stage: Stage::Scan, done, total }))?;
    if log.is_empty() {
        return Ok(Replayed { scan, written: 0, revoked: 0 });
    }
    if !log.fast_commits(scan.next())?.is_empty() {
        return Err(Error::Unsupported("replaying fast commits".to_owned()));
    }
    let replayed = bring_home(log, home, kind_of, scan, progress)?;
    log.reset(replayed.scan.restart(log))?;
    Ok(replayed)
}

/// The part of [`replay`](fn@replay) that changes nothing of the log, which holds what `scan` has found. What is home is stable.
/// It may be done again after a crash. Emptying the log is left: `log.reset(scan.restart(log))`.
///
/// # Errors
/// When a device fails.
pub fn bring_home(
    log: &Log<'_>,
    home: &dyn BlockDevice,
    kind_of: KindOf<'_>,
    scan: Scan,
    progress: &mut dyn FnMut(Progress),
) -> Result<Replayed> {
    log.check_home(home)?;
    let mut copies = newest_copies(log, &scan)?;
    let revoked = drop_revoked(log, &scan, &mut copies)?;
    let written = write_home(log, (home, kind_of), &copies, progress)?;
    home.flush()?;
    Ok(Replayed { scan, written, revoked })
}

/// Calls `each` with every record of the whole transactions.
fn for_each_record(log: &Log<'_>, scan: &Scan, mut each: impl FnMut(Record)) -> Result<()> {
    let mut walk = Walk::new(log, false).until(scan.next());
    while let Some(record) = walk.next()? {
        each(record);
    }
    if walk.passed() == scan.blocks {
        return Ok(());
    }
    Err(Error::corrupt(Structure::Journal, None, "it reads differently the second time"))
}

/// The walk goes forward in time, so a later copy takes an earlier one's place.
fn newest_copies(log: &Log<'_>, scan: &Scan) -> Result<Copies> {
    let mut copies = Copies::new();
    for_each_record(log, scan, |record| {
        if let Record::Descriptor { mut at, sequence, tags } = record {
            for tag in tags {
                at = log.superblock().advance(at, 1);
                copies.insert(tag.block, Copy { sequence, at, is_escaped: tag.is_escaped() });
            }
        }
    })?;
    Ok(copies)
}

/// A revocation cancels copies of its own transaction and earlier ones, wherever in its transaction it stands: hence a
/// walk of its own. If the newest copy is cancelled, so are all the others.
fn drop_revoked(log: &Log<'_>, scan: &Scan, copies: &mut Copies) -> Result<u64> {
    let mut revoked = 0;
    for_each_record(log, scan, |record| {
        if let Record::Revoke { sequence, blocks, .. } = record {
            for block in blocks {
                if copies.get(&block).is_some_and(|copy| !copy.sequence.is_after(sequence)) {
                    copies.remove(&block);
                    revoked += 1;
                }
            }
        }
    })?;
    Ok(revoked)
}

fn write_home(
    log: &Log<'_>,
    (home, kind_of): (&dyn BlockDevice, KindOf<'_>),
    copies: &Copies,
    progress: &mut dyn FnMut(Progress),
) -> Result<u64> {
    let all: Vec<(u64, Copy)> = copies.iter().map(|(&block, &copy)| (block, copy)).collect();
    let at_once = (BATCH_BYTES / log.block_size()).clamp(1, all.len().max(1));
    let mut buffers = vec![BlockBuf::zeroed(log.block_size()); at_once];
    let total = wide(all.len());
    let mut done = 0;
    for part in all.chunks(at_once) {
        let buffers = &mut buffers[..part.len()];
        log.read(part.iter().map(|(_, copy)| copy.at), BlockKind::JournalData, buffers)?;
        for ((_, copy), data) in part.iter().zip(buffers.iter_mut()) {
            if copy.is_escaped {
                unescape(data);
            }
        }
        let writes: Vec<BlockWrite<'_>> = part
            .iter()
            .zip(buffers.iter())
            .map(|(&(block, _), data)| {
                let block = BlockNo(block);
                BlockWrite { block, kind: kind_of(block, data), data }
            })
            .collect();
        home.write(&writes)?;
        done += wide(part.len());
        progress(Progress { stage: Stage::Copy, done, total });
    }
    Ok(done)
}

fn wide(count: usize) -> u64 {
    to_u64(count)
}
