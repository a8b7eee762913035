//! Finding what leaked while the volume is in use.
//!
//! After a crash under soft updates a volume can be used at once; only what leaked is missing. The scan reads
//! inodes and directories in small steps through the mount's cache, and in the end knows which blocks and
//! inodes nobody owns. Changes meanwhile are no problem as long as the scan is told of them:
//!
//! - [`LeakScan::touch_block`] before a block is allocated or freed,
//! - [`LeakScan::touch_inode`] before an inode is allocated or freed, before one of its names is made, moved
//!   or removed, before its link count changes, and before a directory's own entries change.
//!
//! Of what was touched nothing is said. The rest is as it was when the scan began:
//!
//! - a block that is marked used and was not met has no owner. A block is never handed from one inode to
//!   another without being freed in between, so it cannot have been missed;
//! - an inode without a name among the directories read has none, because renaming would have touched it. A
//!   directory that was touched counts as having a path, so nothing below it is taken for lost.

use fstitch_core::{BlockKind, CheckReport, Error, Result, Timestamp};

use super::bits::{Bits, bit};
use super::source::BlockSource;
use super::state::{Mending, State, TOUCHED, Volume};
use super::{claims, connect, dirs, inodes, supers};
use crate::ext2::layout::group::GroupDescriptor;
use crate::ext2::layout::superblock::Superblock;
use crate::ext2::num::{idx, wide};

/// Directories read in one step.
const DIRS_PER_STEP: usize = 32;

/// How far a scan has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanProgress {
    /// Reading inodes: groups done, of how many.
    Inodes(u32, u32),
    /// Reading directories: done, of how many.
    Directories(usize, usize),
    /// Everything is read: time for [`LeakScan::finish`].
    Done,
}

/// What nobody owns. Nothing of it can change on its own: nobody can reach it.
#[derive(Clone, Debug, Default)]
pub struct Leaks {
    /// Runs of blocks that are marked used: (first, count). Their bits may be cleared.
    pub blocks: Vec<(u32, u32)>,
    /// Inodes that are marked used but have no links. Their bits may be cleared.
    pub inodes: Vec<u32>,
    /// Inodes with links, to which no path leads. They may be deleted like files whose last name went.
    pub nameless: Vec<u32>,
    /// Inodes that count more links than they have: (inode, links that it should have).
    pub links_high: Vec<(u32, u32)>,
    /// Directories with a second name; the one in the directory that `..` names is valid.
    pub two_names: Vec<u32>,
    /// Everything that was found. When some of it is damage nothing should be reclaimed: nameless inodes may
    /// have been somebody's. On a busy volume it may also be a change that the scan was not told of in time;
    /// then another scan does not find it.
    pub report: CheckReport,
}

/// A scan under way.
pub struct LeakScan {
    shape: Superblock,
    raw_super: Vec<u8>,
    groups: Vec<GroupDescriptor>,
    state: State,
    next_group: u32,
    next_dir: usize,
}

impl std::fmt::Debug for LeakScan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LeakScan({:?})", self.progress())
    }
}

impl LeakScan {
    /// Starts a scan of the volume with this superblock (1024 bytes).
    ///
    /// # Errors
    /// `Corrupt` when superblock or descriptors make no sense; or when the source fails.
    pub fn new(source: &dyn BlockSource, raw_super: &[u8]) -> Result<Self> {
        let shape = supers::parse(raw_super, source.block_count() * wide(source.block_size()))?;
        let opened = supers::open(source, raw_super.to_vec(), shape, false)?;
        let (volume, _) = opened.map_err(|report| {
            let first = report.findings.first().map(|found| found.text.clone());
            Error::corrupt("group descriptors", None, first.unwrap_or_default())
        })?;
        let mut state = State::new(&volume, Mending::Nothing, Timestamp::default());
        state.touched = Bits::new(volume.blocks());
        claims::claim_metadata(&volume, &mut state);
        let Volume { shape, raw_super, groups, .. } = volume;
        Ok(Self { shape, raw_super, groups, state, next_group: 0, next_dir: 0 })
    }

    /// Block `block` is about to be allocated or freed.
    pub fn touch_block(&mut self, block: u32) {
        if block < self.shape.blocks_count {
            self.state.touched.set(u64::from(block));
        }
    }

    /// Inode `ino` is about to change in one of the ways that matter.
    pub fn touch_inode(&mut self, ino: u32) {
        if let Some(state) = self.state.inodes.get_mut(idx(ino)) {
            *state |= TOUCHED;
        }
    }

    /// How far the scan has come.
    #[must_use]
    pub fn progress(&self) -> ScanProgress {
        let groups = self.shape.group_count();
        let dirs = self.state.dirs.len();
        if self.next_group < groups {
            ScanProgress::Inodes(self.next_group, groups)
        } else if self.next_dir < dirs {
            ScanProgress::Directories(self.next_dir, dirs)
        } else {
            ScanProgress::Done
        }
    }

    /// Reads a little more: the inodes of one group, or some directories.
    ///
    /// # Errors
    /// When the source fails.
    pub fn step(&mut self, source: &dyn BlockSource) -> Result<ScanProgress> {
        let progress = self.progress();
        self.with_volume(source, |volume, state, at| {
            match progress {
                ScanProgress::Inodes(group, _) => inodes::scan_group(volume, state, group)?,
                ScanProgress::Directories(first, count) => {
                    for at in first..count.min(first + DIRS_PER_STEP) {
                        dirs::scan_dir(volume, state, at)?;
                    }
                    *at = count.min(first + DIRS_PER_STEP);
                }
                ScanProgress::Done => {}
            }
            Ok(())
        })?;
        if matches!(progress, ScanProgress::Inodes(..)) {
            self.next_group += 1;
        }
        Ok(self.progress())
    }

    fn with_volume(
        &mut self,
        source: &dyn BlockSource,
        work: impl FnOnce(&mut Volume<'_>, &mut State, &mut usize) -> Result<()>,
    ) -> Result<()> {
        let mut volume = Volume {
            source,
            shape: self.shape.clone(),
            raw_super: std::mem::take(&mut self.raw_super),
            groups: std::mem::take(&mut self.groups),
        };
        let result = work(&mut volume, &mut self.state, &mut self.next_dir);
        self.raw_super = volume.raw_super;
        self.groups = volume.groups;
        result
    }

    /// What leaked, once everything is read. Steps that are missing are made first.
    ///
    /// # Errors
    /// When the source fails.
    pub fn finish(mut self, source: &dyn BlockSource) -> Result<Leaks> {
        while self.step(source)? != ScanProgress::Done {}
        let mut leaks = Leaks::default();
        self.with_volume(source, |volume, state, _| {
            connect::run(volume, state)?;
            for group in 0..volume.shape.group_count() {
                blocks_of_group(volume, state, group, &mut leaks)?;
                inodes_of_group(volume, state, group, &mut leaks)?;
            }
            leaks.two_names = std::mem::take(&mut state.two_names);
            leaks.report = std::mem::take(&mut state.report);
            Ok(())
        })?;
        Ok(leaks)
    }
}

fn blocks_of_group(volume: &Volume<'_>, state: &State, group: u32, leaks: &mut Leaks) -> Result<()> {
    let mut bytes = vec![0; volume.block_size()];
    volume.read(volume.groups[idx(group)].block_bitmap, BlockKind::BlockBitmap, &mut bytes)?;
    let start = volume.shape.group_start(group);
    for at in (0..volume.shape.group_blocks(group)).filter(|&at| bit(&bytes, idx(at))) {
        let block = start + at;
        if state.has_owner(block) || state.touched.get(u64::from(block)) {
            continue;
        }
        match leaks.blocks.last_mut() {
            Some((first, count)) if *first + *count == block => *count += 1,
            _ => leaks.blocks.push((block, 1)),
        }
    }
    Ok(())
}

fn inodes_of_group(volume: &Volume<'_>, state: &State, group: u32, leaks: &mut Leaks) -> Result<()> {
    let mut bytes = vec![0; volume.block_size()];
    volume.read(volume.groups[idx(group)].inode_bitmap, BlockKind::InodeBitmap, &mut bytes)?;
    let start = group * volume.shape.inodes_per_group + 1;
    for at in 0..volume.shape.inodes_per_group {
        let ino = start + at;
        if State::is_reserved(volume, ino) || state.is_touched(ino) {
            continue;
        }
        match (bit(&bytes, idx(at)), state.is_used(ino)) {
            (true, false) => leaks.inodes.push(ino),
            (_, true) if !state.is_named(ino) => leaks.nameless.push(ino),
            (_, true) => {
                let names = super::links::names_of(state, ino);
                if u32::from(state.links[idx(ino)]) > names {
                    leaks.links_high.push((ino, names));
                }
            }
            (false, false) => {}
        }
    }
    Ok(())
}
