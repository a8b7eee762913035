//! Pass 2: every directory that a path from the root leads to, chunk by chunk, and the names in it.
//!
//! Directories to which no path leads are not looked at: they were being made or removed, and may be in any shape.

use std::ops::Range;

use fstitch_core::num::to_usize;
use fstitch_core::{BlockKind, Result};

use super::chunk::{self, Displaced, Entry, WHITEOUT};
use super::claims::allocate;
use super::raw::RawInode;
use super::state::{DIRECTORY, State};
use super::volume::Volume;
use super::{lost, walk};
use crate::ufs::layout::dirent::CHUNK;
use crate::ufs::layout::inode::DIRECT;
use crate::ufs::layout::superblock::ROOT_INO;

/// Goes through the tree from the root on.
pub(super) fn run(volume: &Volume<'_>, state: &mut State) -> Result<()> {
    if !state.is_dir(ROOT_INO) || state.is_empty(ROOT_INO) {
        let text = "the root directory is none";
        if state.corrupt("root", text) && !lost::make_root(volume, state)? {
            state.gave_up();
        }
        return Ok(());
    }
    state.reach(ROOT_INO);
    if let Some(root) = state.dir_mut(ROOT_INO) {
        root.parent = ROOT_INO;
    }
    let mut rest = vec![ROOT_INO];
    while let Some(ino) = rest.pop() {
        let mut scan = Scan { volume, state, ino, children: Vec::new(), displaced: Vec::new() };
        scan.run()?;
        rest.append(&mut scan.children);
    }
    Ok(())
}

/// A block that a directory has.
pub(super) struct DirBlock {
    /// Its number.
    pub(super) block: u64,
    /// Its first fragment.
    pub(super) start: u64,
    /// Its fragments.
    pub(super) count: u64,
    /// Bytes of it that are before the directory's end.
    pub(super) len: usize,
}

/// The blocks that a directory has before its end, in their order. Its length may be any.
pub(super) fn blocks(volume: &Volume<'_>, inode: &RawInode) -> Result<Vec<DirBlock>> {
    let size = inode.size();
    let mapped = walk::mapped(volume, inode)?;
    let block = |(block, start): (u64, u64)| {
        let count = volume.block_len(size, block);
        let len = to_usize((size - block * volume.block()).min(count * volume.fragment()));
        DirBlock { block, start, count, len }
    };
    Ok(mapped.into_iter().map(block).collect())
}

/// A directory that is being looked at.
struct Scan<'s, 'v, 'd> {
    volume: &'v Volume<'d>,
    state: &'s mut State,
    ino: u32,
    /// Directories that were met for the first time.
    children: Vec<u32>,
    /// Names that had to leave their chunk.
    displaced: Vec<Displaced>,
}

impl Scan<'_, '_, '_> {
    fn run(&mut self) -> Result<()> {
        let volume = self.volume;
        let inode = volume.read_inode(self.ino)?;
        let mut next = 0;
        for DirBlock { block, start, count, len } in blocks(volume, &inode)? {
            self.holes(&inode, next..block)?;
            next = block + 1;
            let mut bytes = volume.read(start, count, BlockKind::Directory)?;
            let mut changed = false;
            // A length that is no whole number of chunks was found before.
            for (no, bytes) in bytes[..len].chunks_exact_mut(CHUNK).enumerate() {
                changed |= self.chunk(bytes, block == 0 && no == 0);
            }
            if changed {
                volume.write(start, BlockKind::Directory, &bytes)?;
            }
        }
        self.holes(&inode, next..inode.size().div_ceil(volume.block()))?;
        for (ino, kind, name) in std::mem::take(&mut self.displaced) {
            // One for which there is no room goes to lost+found.
            lost::add_name(volume, self.state, self.ino, (ino, kind, &name))?;
        }
        Ok(())
    }

    /// Blocks that are missing: each is filled with one that has no names, or the directory ends there. There may be as many as a length
    /// can say; what is told of the first is of all.
    fn holes(&mut self, inode: &RawInode, missing: Range<u64>) -> Result<()> {
        for block in missing {
            if !self.hole(block, self.volume.block_len(inode.size(), block))? {
                break;
            }
        }
        Ok(())
    }

    /// Fills one; false if what is behind it is no matter any more, or nothing is to be mended.
    fn hole(&mut self, block: u64, count: u64) -> Result<bool> {
        let (volume, ino) = (self.volume, self.ino);
        if !self.state.corrupt("dir-hole", format!("directory {ino} has a hole at block {block}")) {
            return Ok(false);
        }
        let mut inode = volume.read_inode(ino)?;
        let slot = usize::try_from(block).ok().filter(|&slot| slot < DIRECT);
        let room = match slot {
            Some(slot) => allocate(volume, self.state, count)?.map(|at| (slot, at)),
            None => None,
        };
        if let Some((slot, at)) = room {
            let mut bytes = vec![0; to_usize(count * volume.fragment())];
            // The parent becomes known when all directories are.
            chunk::fill(&mut bytes, (block == 0).then_some((ino, ROOT_INO)), volume.manner());
            volume.write(at, BlockKind::Directory, &bytes)?;
            inode.set_slot(slot, at);
            inode.set_sectors(inode.sectors() + count * volume.sectors_per_fragment());
            volume.write_inode(ino, &inode)?;
            return Ok(true);
        }
        if block > 0 {
            inode.set_size((block * volume.block()).min(inode.size()));
        } else {
            self.state.gave_up();
        }
        volume.write_inode(ino, &inode)?;
        Ok(false)
    }

    /// Looks at a chunk; whether it is to be written.
    fn chunk(&mut self, bytes: &mut [u8], is_first: bool) -> bool {
        let manner = self.volume.manner();
        let mut changed = false;
        if let Err((_, at)) = chunk::entries(bytes, manner) {
            let text = format!("directory {}: no entry can be at byte {at} of a chunk", self.ino);
            changed |= self.state.corrupt("dir-entry", text);
            chunk::salvage(bytes, manner, self.volume.shape.inodes());
        }
        if is_first {
            changed |= self.dots(bytes);
        }
        let found = chunk::entries(bytes, manner).unwrap_or_default();
        for entry in found.into_iter().skip(if is_first { 2 } else { 0 }).filter(|entry| entry.ino != 0) {
            changed |= self.entry(bytes, entry);
        }
        changed
    }

    /// The first two entries of a directory are `.` and `..`.
    fn dots(&mut self, bytes: &mut [u8]) -> bool {
        let (manner, ino) = (self.volume.manner(), self.ino);
        let found = chunk::entries(bytes, manner).unwrap_or_default();
        let named = |no: usize, name: &[u8]| {
            found.get(no).filter(|entry| entry.ino != 0 && entry.name(bytes) == name).copied()
        };
        let mut changed = false;
        let dots = named(0, b".").zip(named(1, b".."));
        let Some((own, parent)) = dots else {
            let parent = found.iter().find(|entry| entry.ino != 0 && entry.name(bytes) == b"..");
            let parent = parent.map_or(ROOT_INO, |entry| entry.ino);
            let text = format!("directory {ino} does not begin with . and ..");
            changed |= self.state.corrupt("dir-dots", text);
            let displaced = chunk::rebuild_first(bytes, (ino, parent), manner);
            if changed {
                self.displaced.extend(displaced);
            }
            self.set_dotdot(parent);
            return changed;
        };
        if own.ino != ino {
            changed |= self.state.corrupt("dir-dots", format!("directory {ino}: . is {}", own.ino));
            chunk::put_ino(bytes, own.at, ino, manner);
        }
        for entry in [own, parent].into_iter().filter(|entry| !manner.is_old && entry.kind != DIRECTORY) {
            let text = format!("directory {ino}: its . or .. is of kind {}", entry.kind);
            changed |= self.state.corrupt("dir-type", text);
            chunk::put_kind(bytes, entry.at, DIRECTORY);
        }
        self.set_dotdot(parent.ino);
        changed
    }

    fn set_dotdot(&mut self, parent: u32) {
        if let Some(dir) = self.state.dir_mut(self.ino) {
            dir.dotdot = parent;
        }
    }

    /// Looks at a name; whether it was changed.
    fn entry(&mut self, bytes: &mut [u8], entry: Entry) -> bool {
        let (manner, dir) = (self.volume.manner(), self.ino);
        let Entry { ino, kind, at, .. } = entry;
        let name = entry.name(bytes).escape_ascii().to_string();
        let is_whiteout = ino == WHITEOUT.0 && (manner.is_old || kind == WHITEOUT.1);
        if is_whiteout {
            return false;
        }
        let why = match entry.name(bytes) {
            b"." | b".." => Some(("dir-dots", "is not among the first two names")),
            _ if ino == WHITEOUT.0 => Some(("dir-entry", "names the inode of whiteouts")),
            _ if !self.state.is_used(ino) => Some(("dir-entry", "names an inode that is not in use")),
            _ if ino == ROOT_INO => Some(("dir-entry", "names the root directory")),
            _ if self.state.is_empty(ino) => Some(("dir-empty", "names a directory without length")),
            _ => None,
        };
        if let Some((code, why)) = why {
            let text = format!("directory {dir}: {name:?}, which is inode {ino}, {why}");
            let mend = self.state.corrupt(code, text);
            chunk::put_ino(bytes, at, 0, manner);
            return mend;
        }
        self.count(ino);
        let is = self.state.kind(ino);
        if manner.is_old || kind == is {
            return false;
        }
        let text = format!("directory {dir}: {name:?}, which is inode {ino} of kind {is}, says {kind}");
        chunk::put_kind(bytes, at, is);
        self.state.corrupt("dir-type", text)
    }

    fn count(&mut self, ino: u32) {
        self.state.add_name(ino);
        if !self.state.is_dir(ino) {
            return;
        }
        if !self.state.reach(ino) {
            self.state.other_names.push((ino, self.ino));
            return;
        }
        let parent = self.ino;
        if let Some(dir) = self.state.dir_mut(ino) {
            dir.parent = parent;
        }
        self.children.push(ino);
    }
}
