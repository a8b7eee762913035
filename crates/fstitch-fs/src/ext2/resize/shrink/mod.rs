//! Shrinking a volume that nobody has mounted. Why it may be cut at any moment: `docs/design/resize.md`.
//!
//! ```text
//!   plan ─► what lies behind the new end (census) ─► the journal, if it does ─► blocks (extents, pointers) ─► inodes
//!                                                                                  └── free ones: room         └── names
//!                    ─► one transaction: the smaller volume (end) ─► copies
//! ```
//!
//! **States and transitions.** *Old* → its journal moves, in place, while it is not clean → contents are copied into free blocks and maps
//! follow, inodes get numbers that stay, all in batches, each a transaction: still *old*, with the same files → what is behind the
//! end is cut off in one transaction: *new* → copies of superblock and descriptors.
//!
//! **Invariants.** 1. Nothing is written into a block that a volume might have which somebody finds after a cut: what a batch has freed is
//! used by none. 2. After each batch all files are whole, with the numbers and blocks that their names and maps say. 3. A block
//! whose sum is wrong is not summed again.
//!
//! **Crash cases.** Until the last transaction the volume is the old one, with some of its files elsewhere; shrinking it again goes on.

mod census;
mod end;
mod extents;
mod inodes;
mod pointers;
mod room;

use std::collections::BTreeSet;

use fstitch_core::{BlockDevice, BlockKind, BlockNo, Error, Result, Structure, Timestamp};

use super::Progress;
use super::plan::Sizes;
use crate::ext2::journal::{
    self, BATCH_MAX, Loaded, Pass, Place, in_batches, read_superblock, set_dirty, write_superblock,
};
use crate::ext2::layout::checksum::{
    block_bitmap_sum, inode_bitmap_sum, is_placed, kept_of_bitmap_sum, place,
};
use crate::ext2::layout::feature::compat;
use crate::ext2::layout::superblock::{JOURNAL_INO, Superblock};
use crate::ext2::num::{idx64, wide};
use crate::ext2::runs::Runs;
use census::{Census, Names};
use room::Room;

/// Blocks that are copied at once.
const COPIED_AT_ONCE: u64 = 256;
/// Blocks whose contents a batch copies, about.
const COPIED_MAX: u64 = 1 << 16;
/// The most free blocks that a file of pointers keeps for itself.
const AHEAD_MAX: u32 = 1024;

/// What a smaller volume has.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Blocks from here on go.
    end: u64,
    /// The last inode that stays.
    inodes: u32,
}

/// Makes a volume smaller.
///
/// # Errors
/// As [`super::resize`].
pub(super) fn shrink(
    device: &dyn BlockDevice,
    (sizes, place): (Sizes, Place),
    now: Timestamp,
    progress: &mut Progress<'_>,
) -> Result<()> {
    let limits = Limits { end: sizes.new.blocks_count, inodes: sizes.new.inodes_count };
    if place != Place::Inode(JOURNAL_INO) {
        return Err(Error::Unsupported(format!(
            "shrinking a volume whose journal is a file's: it is in {place:?}"
        )));
    }
    let batches = (now, usize::MAX);
    let census =
        in_batches(device, (&sizes.old, Structure::Volume), batches, |pass| surveyed(pass, &sizes, limits))?;
    if census.blocks.contains(&JOURNAL_INO) {
        journal::move_before(device, limits.end, now)?;
    }
    let (mut raw, old) = read_superblock(device)?;
    if !census.blocks.is_empty() || !census.numbers.is_empty() || !census.attributes.is_empty() {
        set_dirty(&mut raw, true);
        write_superblock(device, &raw)?;
        let moved = in_batches(device, (&old, Structure::Volume), batches, |pass| {
            moved(pass, limits, &census, progress)
        });
        if moved.is_err() {
            // What was moved is whole. If this fails too, whoever opens the volume next does it.
            let _ = journal::settle(device, now);
        }
        moved?;
        journal::settle(device, now)?;
    }
    let (raw, old) = read_superblock(device)?;
    nothing_is_behind(device, &old, limits)?;
    let sizes = Sizes::smaller(&raw, old, limits.end, device.geometry().bytes())?;
    match sizes.filter(|sizes| sizes.new.blocks_count == limits.end) {
        Some(sizes) => end::cut_off(device, sizes, place, now),
        None => Err(Error::corrupt(Structure::Superblock, None, "another size than a moment ago")),
    }
}

/// Fails unless the bitmaps are what was written: they say what is free, and are summed again when that changes.
fn verify_bitmaps(pass: &Pass<'_, '_>) -> Result<()> {
    let shape = &pass.shape;
    for group in 0..shape.group_count() {
        let (no, offset, at) = pass.descriptor(group)?;
        let table = pass.read(no, BlockKind::GroupDescriptor)?;
        let raw = &table[offset..offset + shape.descriptor_size()];
        let is_right = |block: u64, kind, bits: u32, kept: u32| -> Result<bool> {
            let bitmap = pass.read(BlockNo(block), kind)?;
            let sum = shape.sums.bitmap(&bitmap, bits).map(|sum| kept_of_bitmap_sum(sum, raw.len()));
            Ok(sum.is_none_or(|sum| sum == kept))
        };
        let damaged = |what| Err(Error::corrupt(what, None, "its checksum is wrong: check the volume first"));
        let (blocks, inodes) = (at.block_bitmap, at.inode_bitmap);
        if !at.is_block_uninit()
            && !is_right(blocks, BlockKind::BlockBitmap, shape.blocks_per_group, block_bitmap_sum(raw))?
        {
            return damaged(Structure::BlockBitmap(u64::from(group)));
        }
        if !at.is_inode_uninit()
            && !is_right(inodes, BlockKind::InodeBitmap, shape.inodes_per_group, inode_bitmap_sum(raw))?
        {
            return damaged(Structure::InodeBitmap(u64::from(group)));
        }
    }
    Ok(())
}

/// Fails if anything is in use still that goes.
fn nothing_is_behind(device: &dyn BlockDevice, old: &Superblock, limits: Limits) -> Result<()> {
    let ready = (Timestamp::default(), BATCH_MAX);
    let (blocks, inodes) = in_batches(device, (old, Structure::Volume), ready, |pass| {
        Ok((census::used_behind(&pass, limits.end)?, census::numbers_behind(&pass, limits.inodes)?))
    })?;
    if blocks == 0 && inodes == 0 {
        return Ok(());
    }
    let problem = format!("{blocks} blocks and {inodes} inodes that go are in use still: check the volume");
    Err(Error::corrupt(Structure::Volume, None, problem))
}

/// What is to be moved. Fails, before anything is written, if that cannot be.
fn surveyed(mut pass: Pass<'_, '_>, sizes: &Sizes, limits: Limits) -> Result<Census> {
    let (old, most) = (&sizes.old, pass.batch_max());
    let refuse = |what: String| Err(Error::Unsupported(what));
    verify_bitmaps(&pass)?;
    let mut inodes = 0_u64;
    for group in 0..sizes.new.group_count() {
        let (_, _, at) = pass.descriptor(group)?;
        let table = at.inode_table + u64::from(old.inode_table_blocks());
        if at.block_bitmap >= limits.end || at.inode_bitmap >= limits.end || table > limits.end {
            return refuse(format!(
                "a volume of {} blocks: bitmaps or inodes of group {group} lie behind them",
                limits.end
            ));
        }
        inodes += u64::from(at.free_inodes);
    }
    let census = Census::take(&mut pass, limits)?;
    if census.used != census.claimed {
        let problem = format!(
            "of {} blocks in use from block {} on {} are somebody's: check the volume first",
            census.used, limits.end, census.claimed
        );
        return Err(Error::corrupt(Structure::Volume, None, problem));
    }
    let free = Room::before(&pass, limits.end)?.free;
    // Extents that come apart need nodes.
    let needed = census.used + census.used / 128 + u64::from(census.used > 0) * 8;
    if needed > free {
        return refuse(format!(
            "a volume of {} blocks: {} in use lie behind them, {needed} are needed for these, and {free} are free before",
            limits.end, census.used
        ));
    }
    if old.features.compat & compat::STABLE_INODES != 0 && !census.numbers.is_empty() {
        let count = census.numbers.len();
        return refuse(format!("giving {count} inodes other numbers on a volume with feature stable_inodes"));
    }
    if wide(census.numbers.len()) > inodes {
        return refuse(format!(
            "a volume with {} inodes: {} in use have higher numbers, and {inodes} lower ones are free",
            limits.inodes,
            census.numbers.len()
        ));
    }
    let largest = census.numbers.iter().max_by_key(|(_, blocks)| *blocks);
    if let Some((ino, blocks)) = largest.filter(|(_, blocks)| blocks + inodes::MOVE_MAX > wide(most)) {
        return refuse(format!(
            "giving inode {ino} another number, which changes {blocks} blocks at once, in a journal for {most}: a larger one is needed"
        ));
    }
    Ok(census)
}

/// Moves all that lies behind the new end.
fn moved(pass: Pass<'_, '_>, limits: Limits, census: &Census, progress: &mut Progress<'_>) -> Result<()> {
    let (room, most) = (Room::before(&pass, limits.end)?, pass.batch_max());
    let total = census.used.saturating_sub(census.journal) + wide(census.numbers.len());
    let mut done = 0;
    let mut told = |more: u64| {
        done += more;
        progress(done.min(total), total);
    };
    let mut mover = Mover {
        pass,
        limits,
        room,
        left: Vec::new(),
        taken: Vec::new(),
        groups: BTreeSet::new(),
        copies: Vec::new(),
        copied: 0,
        ahead: (0, 0),
        wanted: 1,
        resume: 0,
        batch: (most / 4 * 3).min(BATCH_MAX),
        progress: &mut told,
    };
    mover.move_files(&census.blocks)?;
    mover.move_attributes(&census.attributes)?;
    mover.send()?;
    if !census.numbers.is_empty() {
        let names = Names::find(&mut mover.pass, &census.directories, limits.inodes)?;
        mover.move_inodes(&census.numbers, &names)?;
    }
    Ok(())
}

/// Moves what lies behind the new end.
struct Mover<'a, 'd> {
    pass: Pass<'a, 'd>,
    limits: Limits,
    room: Room,
    /// Blocks that the batch leaves, and those that it takes.
    left: Vec<(u64, u64)>,
    taken: Vec<(u64, u64)>,
    /// The groups of both.
    groups: BTreeSet<u32>,
    /// Contents that must be elsewhere before the batch is: from where, to where, how many blocks.
    copies: Vec<(u64, u64, u64)>,
    /// Blocks in these.
    copied: u64,
    /// Free blocks for the file that is moved, which lie together: the first, and how many.
    ahead: (u64, u64),
    /// How many it should get at once.
    wanted: u32,
    /// File blocks of the file that is moved, all before which were.
    resume: u64,
    /// Blocks that a batch changes, unless one change alone is more.
    batch: usize,
    /// Is told how many blocks and inodes were moved.
    progress: &'a mut dyn FnMut(u64),
}

impl Mover<'_, '_> {
    /// Whether the batch has room for so many changed blocks more.
    fn has_room(&self, blocks: usize) -> bool {
        // Each group has a bitmap and a descriptor.
        self.pass.changes() + 2 * self.groups.len() + blocks + 4 <= self.batch && self.copied < COPIED_MAX
    }

    /// Blocks of a file were moved.
    fn moved(&mut self, from: u64, to: u64, count: u64) {
        self.leave(from, count);
        self.take_in(to, count);
        (self.progress)(count);
    }

    /// The batch leaves blocks, which are free after it.
    fn leave(&mut self, start: u64, count: u64) {
        self.note_groups(start, count);
        put_run(&mut self.left, start, count);
    }

    /// The batch takes blocks that were free.
    fn take_in(&mut self, start: u64, count: u64) {
        self.note_groups(start, count);
        put_run(&mut self.taken, start, count);
    }

    fn note_groups(&mut self, start: u64, count: u64) {
        let shape = &self.pass.shape;
        self.groups.extend(shape.group_of(start)..=shape.group_of(start + count - 1));
    }

    /// A free block for the file that is moved.
    fn next_block(&mut self) -> Result<u64> {
        if self.ahead.1 == 0 {
            self.ahead = self.room.take(u64::from(self.wanted))?;
        }
        let (block, left) = self.ahead;
        self.ahead = (block + 1, left - 1);
        Ok(block)
    }

    /// Contents go along with blocks that are moved.
    fn move_contents(&mut self, inode: &Loaded, (from, to, count): (u64, u64, u64)) -> Result<()> {
        if inode.ino == self.pass.shape.orphan_file {
            return self.move_orphan_file(inode, (from, to, count));
        }
        self.copied += count;
        match self.copies.last_mut() {
            Some((before, place, len)) if *before + *len == from && *place + *len == to => *len += count,
            _ => self.copies.push((from, to, count)),
        }
        Ok(())
    }

    /// The blocks of the orphan file are summed with their places.
    fn move_orphan_file(&mut self, inode: &Loaded, (from, to, count): (u64, u64, u64)) -> Result<()> {
        let sums = self.pass.shape.sums.of_inode(inode.ino, inode.disk.generation);
        for at in 0..count {
            let (old, new) = (BlockNo(from + at), BlockNo(to + at));
            let mut bytes = self.pass.read(old, BlockKind::Data)?;
            if sums.orphan_block(old.get(), &bytes).is_some_and(|placed| !is_placed(&bytes, placed)) {
                let problem = "its checksum is wrong: check the volume first";
                return Err(Error::corrupt(Structure::Other("orphan file"), old, problem));
            }
            if let Some(placed) = sums.orphan_block(new.get(), &bytes) {
                place(&mut bytes, placed);
            }
            self.pass.put_new(new, BlockKind::Data, bytes);
        }
        Ok(())
    }

    /// Moves the blocks of files.
    fn move_files(&mut self, inodes: &[u32]) -> Result<()> {
        for &ino in inodes {
            self.resume = 0;
            while let Some(mut inode) = self.pass.load_inode(ino)? {
                let blocks = inode.disk.sectors / u64::from(self.pass.shape.block_size / 512);
                self.wanted = u32::try_from(blocks).unwrap_or(u32::MAX).clamp(1, AHEAD_MAX);
                let is_whole = if inode.disk.has_extents() {
                    self.move_extents(&mut inode)?
                } else {
                    self.move_pointers(&mut inode)?
                };
                self.pass.put_inode(&inode)?;
                if is_whole {
                    break;
                }
                self.send()?;
            }
            let (start, count) = std::mem::take(&mut self.ahead);
            self.room.give_back(start, count);
        }
        Ok(())
    }

    /// Copies contents, and makes all that the batch has changed one transaction.
    fn send(&mut self) -> Result<()> {
        let mut bytes = vec![0; idx64(COPIED_AT_ONCE) * self.pass.volume.block_size()];
        for (from, to, count) in std::mem::take(&mut self.copies) {
            for at in (0..count).step_by(idx64(COPIED_AT_ONCE)) {
                let len = idx64((count - at).min(COPIED_AT_ONCE)) * self.pass.volume.block_size();
                self.pass.volume.read(BlockNo(from + at), BlockKind::Data, &mut bytes[..len])?;
                self.pass.volume.write(BlockNo(to + at), BlockKind::Data, &bytes[..len])?;
            }
        }
        self.copied = 0;
        self.groups.clear();
        let (left, taken) =
            (Runs::of(std::mem::take(&mut self.left)), Runs::of(std::mem::take(&mut self.taken)));
        self.pass.mark_blocks(&left.without(&taken), false)?;
        self.pass.mark_blocks(&taken.without(&left), true)?;
        let (blocks, most) = (self.pass.changes() + 1, self.pass.batch_max());
        if blocks > most {
            let problem =
                format!("changing {blocks} blocks at once, in a journal for {most}: a larger one is needed");
            return Err(Error::Unsupported(problem));
        }
        self.pass.send()
    }
}

/// Adds a run of blocks to others.
fn put_run(runs: &mut Vec<(u64, u64)>, start: u64, count: u64) {
    match runs.last_mut() {
        Some((_, end)) if *end == start => *end += count,
        _ => runs.push((start, start + count)),
    }
}
