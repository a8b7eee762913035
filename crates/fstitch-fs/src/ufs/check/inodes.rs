//! Pass 1: every inode by itself, and every fragment that it claims.
//!
//! What is wrong with an inode is put right in memory, whether it shall be mended or not: so one fault is not reported as many.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockKind, FileKind, FindingClass, Result};

use super::claims::claim;
use super::kinds::{self, Said, called};
use super::raw::{EXTRA_SLOTS, RawInode};
use super::state::State;
use super::targets::{self, TARGET_MAX};
use super::volume::Volume;
use super::{guess, walk};
use crate::ufs::hashes;
use crate::ufs::layout::dirent::CHUNK;
use crate::ufs::layout::inode::{DIRECT, flag};
use crate::ufs::layout::superblock::ROOT_INO;

/// The longest directory, in bytes.
const DIRECTORY_MAX: u64 = 0x7fff_ffff;

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
    each(volume, (group, state.initialised[to_usize(group)]), |ino, inode| {
        if kinds::is_in_doubt(volume, ino, &inode)? {
            state.doubts.push(ino);
            return Ok(());
        }
        Look::new(volume, state, ino, inode).judge(state)
    })
}

/// Visits the first inodes of a group, so many of which were ever written, but for those that nobody touched.
pub(super) fn each(
    volume: &Volume<'_>,
    (group, initialised): (u32, u32),
    mut visit: impl FnMut(u32, RawInode) -> Result<()>,
) -> Result<()> {
    let shape = &volume.shape;
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
                visit(ino, RawInode::new(bytes.to_vec(), shape))?;
            }
        }
    }
    Ok(())
}

/// Looks at the inodes whose mode is in doubt, when all others are known: those last that have no kind.
pub(super) fn judge_doubts(volume: &Volume<'_>, state: &mut State) -> Result<()> {
    let doubts = std::mem::take(&mut state.doubts);
    if doubts.is_empty() {
        return Ok(());
    }
    let names = kinds::names(volume, state, &doubts)?;
    for is_last in [false, true] {
        for (&ino, &said) in &names {
            let inode = volume.read_inode(ino)?;
            if kinds::is_nobodys(&inode) == is_last {
                Look::new(volume, state, ino, inode).judge_doubt(state, said)?;
            }
        }
    }
    Ok(())
}

impl<'v, 'd> Look<'v, 'd> {
    fn new(volume: &'v Volume<'d>, state: &mut State, ino: u32, inode: RawInode) -> Self {
        let is_wrong = volume.hashes_inodes() && !hashes::is_inode_right(volume.order(), &inode.bytes);
        let text = || format!("the check hash of inode {ino} does not match");
        let changed = is_wrong && state.corrupt("inode-hash", text());
        Self { volume, ino, inode, changed }
    }

    fn judge(self, state: &mut State) -> Result<()> {
        match self.inode.kind() {
            Some(kind) => self.judge_kind(state, kind),
            None => self.judge_free(state),
        }
    }

    fn judge_doubt(mut self, state: &mut State, said: Said) -> Result<()> {
        match self.settle_kind(state, said)? {
            Some(kind) => self.judge_kind(state, kind),
            None => self.judge_free(state),
        }
    }

    fn judge_kind(mut self, state: &mut State, kind: FileKind) -> Result<()> {
        self.settle_flags(state, kind);
        let has_blocks = match kind {
            FileKind::Regular => true,
            FileKind::Directory => true,
            FileKind::Symlink => {
                self.settle_target(state)?;
                !targets::is_inside(self.volume, &self.inode)
            }
            _ => false,
        };
        if has_blocks {
            self.settle_size(state, kind)?;
        }
        // A target may be there now that was none.
        let is_inside = kind == FileKind::Symlink && targets::is_inside(self.volume, &self.inode);
        if is_inside {
            self.settle_behind_target(state);
        }
        self.settle_extra(state);
        self.settle_claims(state, has_blocks && !is_inside)?;
        state.use_inode(self.ino, kind, self.inode.links());
        if kind == FileKind::Directory && self.inode.size() == 0 {
            state.set_empty(self.ino);
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
            self.changed = true;
        }
        if self.changed {
            self.volume.write_inode(self.ino, &self.inode)?;
        }
        Ok(())
    }

    /// What an inode in doubt is; `None` if that is nothing that could be kept.
    fn settle_kind(&mut self, state: &mut State, said: Said) -> Result<Option<FileKind>> {
        let (volume, ino, kind) = (self.volume, self.ino, self.inode.kind());
        let is_odd = kinds::is_odd(volume, &self.inode, kind)?;
        let wanted = self.witnessed(state, said, is_odd)?;
        if wanted == kind && !is_odd || wanted.is_none() && kinds::is_nobodys(&self.inode) {
            return Ok(kind);
        }
        let what = wanted.map_or("nothing", kinds::called);
        let text = format!("inode {ino}: mode {:#o}, with the contents of {what}", self.inode.mode());
        self.changed |= state.corrupt("inode", text);
        match wanted {
            None => self.inode.clear(),
            Some(wanted) if Some(wanted) != kind => self.inode.set_kind(wanted),
            Some(FileKind::Directory) => {}
            Some(wanted) => {
                let is_device = matches!(wanted, FileKind::CharDevice | FileKind::BlockDevice);
                self.inode.set_size(0);
                self.inode.clear_slots_from(usize::from(is_device));
            }
        }
        Ok(wanted)
    }

    /// What it is by its names, its contents and its mode: two of them, where they differ.
    fn witnessed(&self, state: &State, said: Said, is_odd: bool) -> Result<Option<FileKind>> {
        let (volume, ino, inode, kind) = (self.volume, self.ino, &self.inode, self.inode.kind());
        let named = match said {
            Said::Kind(named) if Some(named) != kind => Some(named),
            Said::Kind(_) if !is_odd => return Ok(kind),
            _ => None,
        };
        if let Some(named) = named
            && kinds::fits(volume, ino, inode, named)?
        {
            return Ok(Some(named));
        }
        // What was left behind by a file that is gone may be others' now.
        let is_left =
            kinds::is_nobodys(inode) && said == Said::Nameless && !kinds::is_unclaimed(volume, state, inode);
        let guessed = guess::kind(volume, ino, inode)?.filter(|_| !is_left);
        if guessed.is_some() {
            return Ok(guessed);
        }
        let may_be_link = matches!(kind, None | Some(FileKind::Regular));
        if may_be_link && targets::is_target(volume, inode)? {
            return Ok(Some(FileKind::Symlink));
        }
        let is_device = matches!(kind, Some(FileKind::CharDevice | FileKind::BlockDevice));
        if kind.is_some() && !(is_device && inode.is_no_device()) {
            return Ok(kind);
        }
        // Nothing that has a name is cleared: a file keeps what can be kept.
        Ok(Some(FileKind::Regular).filter(|_| said != Said::Nameless))
    }

    /// Snapshots are files. Of one that is, neither length nor blocks are judged as those of others.
    fn settle_flags(&mut self, state: &mut State, kind: FileKind) {
        let flags = self.inode.flags();
        if kind != FileKind::Regular && flags & flag::SNAPSHOT != 0 {
            let text = format!("inode {} is {}, and says that it is a snapshot", self.ino, called(kind));
            self.changed |= state.corrupt("inode-flags", text);
            self.inode.set_flags(flags & !flag::SNAPSHOT);
        }
    }

    /// The length against the blocks that there are: a file does not end with a hole.
    fn settle_size(&mut self, state: &mut State, kind: FileKind) -> Result<()> {
        let (volume, ino) = (self.volume, self.ino);
        let is_directory = kind == FileKind::Directory;
        // What the superblock says of that was judged before, and may be wrong.
        let most = if is_directory { DIRECTORY_MAX } else { volume.shape.longest() };
        if kind != FileKind::Symlink {
            self.settle_short(state, most)?;
        }
        let size = self.inode.size();
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

    /// Pointers in the inode behind its end: length and pointers are changed by one write, so one of them was damaged. Unless as much is
    /// stored as the length says, that is it.
    fn settle_short(&mut self, state: &mut State, most: u64) -> Result<()> {
        let (volume, ino, size) = (self.volume, self.ino, self.inode.size());
        if self.inode.flags() & flag::SNAPSHOT != 0 || !walk::goes_beyond(volume, &self.inode) {
            return Ok(());
        }
        let stored = walk::stored(volume, &self.inode)? * volume.sectors_per_fragment();
        let last = if stored == self.inode.sectors() { None } else { walk::last(volume, &self.inode)? };
        let end = last.map_or(0, |last| self.end_of(last).min(most));
        if end > size {
            let text = format!("inode {ino} has {size} bytes, and blocks for {end}");
            self.changed |= state.corrupt("inode-size", text);
            self.inode.set_size(end);
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
        let extra = walk::extra_fragments(volume, &self.inode);
        let stored = self.inode.sectors() / volume.sectors_per_fragment();
        let tail = stored.saturating_sub(whole + extra);
        let room = volume.per_block() - self.inode.slot(slot) % volume.per_block();
        let tail = if (1..=room).contains(&tail) { tail } else { room };
        last * volume.block() + tail * volume.fragment()
    }

    /// The length of a target: up to the zero behind it, and of one in the inode no less.
    fn settle_target(&mut self, state: &mut State) -> Result<()> {
        let (volume, ino, size) = (self.volume, self.ino, self.inode.size());
        let (is_sound, is_inside) =
            (targets::is_target(volume, &self.inode)?, targets::is_inside(volume, &self.inode));
        if is_sound && !is_inside {
            return Ok(());
        }
        let text = targets::text(volume, &self.inode)?;
        let len = to_u64(text.len());
        let goes_on = is_inside && len > size;
        if is_sound && !goes_on || text.is_empty() && size <= TARGET_MAX {
            return Ok(());
        }
        let has_moved = targets::is_stored(volume, &self.inode) && len < volume.shape.symlink_inside.into();
        if len == size && !has_moved {
            return Ok(());
        }
        self.changed |=
            state.corrupt("symlink", format!("symbolic link {ino} has {size} bytes, {len} found"));
        self.inode.set_size(len);
        if has_moved {
            self.inode.put_target(&text);
        }
        Ok(())
    }

    /// Behind a target in the inode is nothing.
    fn settle_behind_target(&mut self, state: &mut State) {
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
