//! Applying fast commits: their records change the blocks of the volume in memory, and what comes out is one transaction.
//!
//! ```text
//!   records in order ─► inodes (inodes) ── names (names) ── maps (ranges)        what they say
//!                            └───────────────┴────────────────┘
//!                   bitmaps, counts, lengths of storage (settle)                 what follows from it
//!                                    └─► one transaction in the log ─► home
//! ```
//!
//! A record says what is: that an inode is so, that a name is there or not, that blocks are in a file. It says nothing of what follows:
//! which bits are set, how much storage an inode has, that a directory has a block for its names. That is worked out here.
//!
//! **Orderings.** All of it is one transaction that takes the fast commits' place ([`Log::supersede`](fstitch_patch::journal::Log::supersede)).
//!
//! **Invariants.** 1. A block that some record gives to a file is taken for nothing else, whatever the bitmaps say before it.
//! 2. Bits are changed when all records were applied: those of blocks that the files had are cleared, then those of blocks that they
//! have are set. A block may go from one file to another, and is free in between.
//! 3. Who is in the list of orphans stays there, and is freed or cut by who works it off.
//!
//! **Crash cases.** Until the transaction is in the log home is as the log's whole transactions left it, and the records still count: the
//! same comes out again. So nothing here must be repeatable but reading.

mod inodes;
mod names;
mod ranges;
mod settle;

use std::collections::{BTreeMap, BTreeSet};

use fstitch_core::{BlockKind, Error, Le, Result, Structure};
use fstitch_patch::journal::Scan;
use fstitch_patch::journal::fast::{Change, FastCommits};

use super::orphan_file::OrphanFile;
use super::pass::{Loaded, Pass};
use super::raw::S_LAST_ORPHAN;
use crate::ext2::layout::feature::ro_compat;
use crate::ext2::layout::inode::I_DTIME;
use crate::ext2::layout::superblock::BLOCKS_MAX;
use crate::ext2::runs::Runs;
use names::Names;
use settle::Space;

/// What is damaged where a fast commit does not fit the volume.
const FAST: Structure = Structure::Other("fast commit");

/// An inode that records speak of.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// What it had is in [`Apply::had`].
    is_lifted: bool,
    /// Its last name went, and it did not come back.
    is_dead: bool,
    /// Names of a directory beside its only one, while it moves.
    more_names: u32,
}

/// A name of an inode that was not in use when the record came.
struct Waiting {
    inode: u32,
    parent: u32,
    name: Vec<u8>,
}

/// Applies records.
struct Apply<'p, 'a, 'd> {
    pass: &'p mut Pass<'a, 'd>,
    space: Space,
    known: BTreeMap<u32, Known>,
    /// Blocks that known inodes had before.
    had: Vec<(u64, u64)>,
    /// Directories whose names were looked at.
    dirs: BTreeMap<u32, Names>,
    waiting: Vec<Waiting>,
    /// Inodes in the list of orphans.
    listed: BTreeSet<u32>,
}

/// Applies the fast commits behind `scan`, whose transactions are home, and empties the log.
///
/// # Errors
/// `Io`; `Corrupt` if they do not fit the volume, `Unsupported` by name: nothing was changed.
pub(super) fn apply(mut pass: Pass<'_, '_>, scan: &Scan, fast: &FastCommits) -> Result<()> {
    pass.what = FAST;
    let listed = listed(&pass)?;
    let claimed = fast.changes().filter_map(|change| match change {
        Change::AddRange { extent, .. } => Some((extent.physical, u64::from(extent.count))),
        _ => None,
    });
    let claimed = claimed.map(|(first, count)| within(first, count)).collect::<Result<Vec<_>>>()?;
    let mut work = Apply {
        pass: &mut pass,
        space: Space::new(Runs::of(claimed)),
        known: BTreeMap::new(),
        had: Vec::new(),
        dirs: BTreeMap::new(),
        waiting: Vec::new(),
        listed,
    };
    for change in fast.changes() {
        work.change(change)?;
    }
    work.settle()?;
    // Even if nothing changes the superblock goes through the log, so that the records end to count in the one way there is.
    pass.superblock()?;
    pass.send_instead(scan)
}

impl Apply<'_, '_, '_> {
    fn change(&mut self, change: Change<'_>) -> Result<()> {
        match change {
            Change::AddRange { inode, extent } => self.add_range(inode, extent),
            Change::DropRange { inode, first, count } => self.drop_range(inode, first, count),
            Change::Create(entry) => self.create(entry),
            Change::Link(entry) => self.link(entry),
            Change::Unlink(entry) => self.unlink(entry),
            Change::Inode { inode, raw } => self.put_record(inode, raw),
        }
    }
}

/// A run of blocks as the volume numbers them.
fn within(first: u64, count: u64) -> Result<(u64, u64)> {
    match first.checked_add(count) {
        Some(end) if end <= BLOCKS_MAX => Ok((first, end)),
        _ => Err(damaged(format!("it has {count} blocks from {first} on"))),
    }
}

/// A fast commit that does not fit the volume.
fn damaged(problem: impl Into<String>) -> Error {
    Error::corrupt(FAST, None, problem.into())
}

/// The inodes in the list of orphans and in the orphan file. One that leads around or out of the volume is for who works it off.
fn listed(pass: &Pass<'_, '_>) -> Result<BTreeSet<u32>> {
    let mut listed = BTreeSet::new();
    let mut next = pass.field(S_LAST_ORPHAN)?;
    while next != 0 && next <= pass.shape.inodes_count && listed.insert(next) {
        let (no, at) = pass.place(next)?;
        next = I_DTIME.get(&pass.read(no, BlockKind::Inode)?[at..]);
    }
    if pass.shape.features.has_ro_compat(ro_compat::ORPHAN_PRESENT)
        && let Some(file) = OrphanFile::find(&pass.volume, &pass.shape)?
    {
        for (no, slot) in file.slots() {
            listed.insert(Le::u32(&pass.read(no, BlockKind::Data)?, slot));
        }
    }
    Ok(listed)
}

/// The blocks of an inode's data fork in a form that says how it is mapped.
fn has_map(orphan: &Loaded, block_size: u32) -> bool {
    orphan.disk.has_extents() && orphan.disk.has_blocks(block_size)
}
