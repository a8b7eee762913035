//! Pass 1: every inode by itself, and every fragment that it claims.
//!
//! What is wrong with an inode is put right in memory, whether it shall be mended or not: so one fault is not reported as many.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockKind, FileKind, FindingClass, Result};

use super::claims::claim;
use super::raw::{EXTRA_SLOTS, KIND_MASK, RawInode};
use super::state::State;
use super::volume::Volume;
use super::{guess, walk};
use crate::ufs::hashes;
use crate::ufs::layout::dirent::CHUNK;
use crate::ufs::layout::inode::{DIRECT, flag};
use crate::ufs::layout::superblock::ROOT_INO;

/// The longest directory, in bytes.
const DIRECTORY_MAX: u64 = 0x7fff_ffff;
/// The longest target of a symbolic link, in bytes: that of a path.
const TARGET_MAX: u64 = 1023;

/// An inode that is being looked at.
struct Look<'v, 'd> {
    volume: &'v Volume<'d>,
    ino: u32,
    inode: RawInode,
    /// It is to be written.
    changed: bool,
}

/// Looks at all inodes of a group that were ever written.
pub(super) fn scan_group(volume: &Volume<'_>, state: &mut State, group: u32) -> Result<()> {
    let shape = &volume.shape;
    let initialised = state.initialised[to_usize(group)];
    let len = to_usize(shape.version.inode_size());
    let per_block = shape.block_size / shape.version.inode_size();
    for first in (0..initialised).step_by(to_usize(per_block)) {
        let base = group * shape.group_inodes + first;
        let block = shape.inode_place(base).0;
        let bytes = volume.read(block.get(), volume.per_block(), BlockKind::Inode)?;
        let count = per_block.min(initialised - first);
        for (ino, bytes) in (base..base + count).zip(bytes.chunks(len)) {
            let is_untouched = bytes.iter().all(|&byte| byte == 0);
            if ino >= ROOT_INO && !is_untouched {
                let inode = RawInode::new(bytes.to_vec(), shape);
                let mut look = Look { volume, ino, inode, changed: false };
                if volume.hashes_inodes() && !hashes::is_inode_right(shape.order, bytes) {
                    let text = format!("the check hash of inode {ino} does not match");
                    look.changed = state.corrupt("inode-hash", text);
                }
                look.judge(state)?;
            }
        }
    }
    Ok(())
}

impl Look<'_, '_> {
    fn judge(mut self, state: &mut State) -> Result<()> {
        if self.inode.mode() & KIND_MASK == 0 {
            return self.judge_free(state);
        }
        if let Some(kind) = self.settle_kind(state)? {
            let has_blocks = match kind {
                FileKind::Regular => true,
                FileKind::Directory => true,
                FileKind::Symlink => !self.is_target_inside(),
                _ => false,
            };
            if has_blocks {
                self.settle_size(state, kind)?;
            }
            // A target may have been put there now.
            let is_inside = kind == FileKind::Symlink && self.is_target_inside();
            if is_inside {
                self.settle_target(state);
            }
            self.settle_extra(state);
            self.settle_claims(state, has_blocks && !is_inside)?;
            state.use_inode(self.ino, kind, self.inode.links());
            if kind == FileKind::Directory && self.inode.size() == 0 {
                state.set_empty(self.ino);
            }
        }
        if self.changed {
            self.volume.write_inode(self.ino, &self.inode)?;
        }
        Ok(())
    }

    /// An inode of no kind: nobody's, and nothing may be in it.
    fn judge_free(mut self, state: &mut State) -> Result<()> {
        let text = format!("inode {} is nobody's, but something is in it", self.ino);
        if !self.inode.is_blank() && state.corrupt("inode-partial", text) {
            self.inode.clear();
            self.volume.write_inode(self.ino, &self.inode)?;
        }
        Ok(())
    }

    /// What it is; `None` if that is nothing that could be kept.
    fn settle_kind(&mut self, state: &mut State) -> Result<Option<FileKind>> {
        let kind = self.inode.kind();
        let odd = match kind {
            None => true,
            Some(FileKind::Fifo | FileKind::Socket) => self.inode.size() != 0 || self.inode.has_slots_from(0),
            Some(FileKind::CharDevice | FileKind::BlockDevice) => {
                self.inode.size() != 0 || self.inode.has_slots_from(1) || self.inode.is_no_device()
            }
            Some(FileKind::Directory) => !guess::may_be_directory(self.volume, &self.inode)?,
            Some(_) => false,
        };
        if !odd {
            return Ok(kind);
        }
        let (ino, mode) = (self.ino, self.inode.mode());
        let guessed = guess::kind(self.volume, ino, &self.inode)?;
        let is_device = matches!(kind, Some(FileKind::CharDevice | FileKind::BlockDevice));
        let keeps = guessed.is_some() || !(kind.is_none() || is_device && self.inode.is_no_device());
        let what = guessed
            .map_or("nothing", |kind| if kind == FileKind::Directory { "a directory" } else { "a file" });
        self.changed |=
            state.corrupt("inode", format!("inode {ino}: mode {mode:#o}, with the contents of {what}"));
        if !keeps {
            self.inode.clear();
            return Ok(None);
        }
        match guessed {
            None if kind == Some(FileKind::Directory) => {}
            Some(guessed) => self.inode.set_mode(mode & !KIND_MASK | guess::mode_of(guessed)),
            None => {
                self.inode.set_size(0);
                self.inode.clear_slots_from(usize::from(is_device));
            }
        }
        Ok(self.inode.kind())
    }

    /// Whether the target of this symbolic link is in the inode.
    fn is_target_inside(&self) -> bool {
        match self.volume.shape.symlink_inside {
            0 => self.inode.sectors() == 0,
            most => self.inode.size() < u64::from(most),
        }
    }

    /// The length against the blocks that there are: a file does not end with a hole.
    fn settle_size(&mut self, state: &mut State, kind: FileKind) -> Result<()> {
        let (volume, ino, size) = (self.volume, self.ino, self.inode.size());
        let is_directory = kind == FileKind::Directory;
        // What the superblock says of that was judged before, and may be wrong.
        let most = if is_directory { DIRECTORY_MAX } else { volume.shape.longest() };
        if kind == FileKind::Symlink && size > TARGET_MAX {
            return self.settle_long_target(state);
        }
        if size == 0 || size <= most && self.inode.flags() & flag::SNAPSHOT != 0 {
            return Ok(());
        }
        let wanted = (size - 1) / volume.block();
        if size > most || walk::find(volume, &self.inode, wanted)? == 0 {
            let last = walk::last(volume, &self.inode)?;
            // A single hole in a directory is filled: that keeps more than cutting it off.
            let is_filled = is_directory
                && size <= most
                && wanted < to_u64(DIRECT)
                && wanted <= last.map_or(0, |last| last + 1);
            if !is_filled {
                let end = last.map_or(if is_directory { to_u64(CHUNK) } else { 0 }, |last| self.end_of(last));
                self.cut(state, (size, end.min(most)), size <= most);
            }
        }
        let size = self.inode.size();
        if is_directory && !size.is_multiple_of(to_u64(CHUNK)) {
            self.changed |= state.corrupt("dir-size", format!("directory {ino} has {size} bytes"));
            self.inode.set_size(size.next_multiple_of(to_u64(CHUNK)));
        }
        Ok(())
    }

    fn cut(&mut self, state: &mut State, (size, end): (u64, u64), is_possible: bool) {
        if size == end {
            return;
        }
        let ino = self.ino;
        // Soft updates take pointers back from blocks of them, and not the length with those.
        let is_lawful = is_possible && size > to_u64(DIRECT) * self.volume.block();
        let class = if is_lawful { FindingClass::Allowed } else { FindingClass::Corrupt };
        self.changed |=
            state.problem(class, "inode-size", format!("inode {ino} has {size} bytes, and blocks for {end}"));
        self.inode.set_size(end);
    }

    /// Where a file ends whose last block is `last`: by its storage, if that can be, which need not be whole blocks.
    fn end_of(&self, last: u64) -> u64 {
        let volume = self.volume;
        let Some(slot) = usize::try_from(last).ok().filter(|&slot| slot < DIRECT) else {
            return (last + 1) * volume.block();
        };
        let whole = to_u64((0..slot).filter(|&slot| self.inode.slot(slot) != 0).count()) * volume.per_block();
        let extra = u64::from(self.inode.extra_size()).div_ceil(volume.fragment());
        let stored = self.inode.sectors() / volume.sectors_per_fragment();
        let tail = stored.saturating_sub(whole + extra);
        let room = volume.per_block() - self.inode.slot(slot) % volume.per_block();
        let tail = if (1..=room).contains(&tail) { tail } else { room };
        last * volume.block() + tail * volume.fragment()
    }

    /// A target that is longer than any path: it ends where it does.
    fn settle_long_target(&mut self, state: &mut State) -> Result<()> {
        let (volume, ino, size) = (self.volume, self.ino, self.inode.size());
        self.changed |= state.corrupt("symlink", format!("symbolic link {ino} has {size} bytes"));
        let start = self.inode.slot(0);
        let count = (TARGET_MAX + 1).div_ceil(volume.fragment());
        let bytes = match volume.is_valid(start, count) {
            true => volume.read(start, count, BlockKind::Attribute)?,
            false => Vec::new(),
        };
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len()).min(to_usize(TARGET_MAX));
        self.inode.set_size(to_u64(end));
        if to_u64(end) < u64::from(volume.shape.symlink_inside) {
            self.inode.put_target(&bytes[..end]);
        }
        Ok(())
    }

    /// Behind a target in the inode is nothing.
    fn settle_target(&mut self, state: &mut State) {
        let pointer = u64::from(self.volume.shape.version.pointer_size());
        let used = to_usize(self.inode.size().div_ceil(pointer));
        if self.inode.has_slots_from(used) {
            let text = format!("symbolic link {}: something is behind its target", self.ino);
            self.changed |= state.corrupt("symlink", text);
            self.inode.clear_slots_from(used);
        }
    }

    /// The length of the extended attributes against their blocks.
    fn settle_extra(&mut self, state: &mut State) {
        let (volume, size) = (self.volume, u64::from(self.inode.extra_size()));
        let have = (0..EXTRA_SLOTS).take_while(|&slot| self.inode.extra(slot) != 0).count();
        let room = to_u64(have) * volume.block();
        if size > room {
            let text = format!("inode {}: {size} bytes of attributes, and blocks for {room}", self.ino);
            self.changed |= state.corrupt("inode-extra", text);
            // What is in a block that was not theirs makes no attributes.
            let end = if size <= to_u64(EXTRA_SLOTS) * volume.block() { room } else { 0 };
            self.inode.set_extra_size(u32::try_from(end).unwrap_or(0));
        }
    }

    fn settle_claims(&mut self, state: &mut State, has_blocks: bool) -> Result<()> {
        let (taken, changed) = claim(self.volume, state, (self.ino, &mut self.inode), has_blocks)?;
        self.changed |= changed;
        let (has, sectors) = (self.inode.sectors(), taken * self.volume.sectors_per_fragment());
        if has != sectors {
            let text = format!("inode {}: {has} sectors, {sectors} found", self.ino);
            self.changed |= state.allowed("inode-blocks", text);
            self.inode.set_sectors(sectors);
        }
        Ok(())
    }
}
