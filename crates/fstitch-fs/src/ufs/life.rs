//! The beginning and the end of an inode.
//!
//! **Orderings** (arrows read "comes after").
//! - initialisation of the inode, one patch over all its bytes (and over those of the free inodes behind it, if it is the first of a
//!   fragment) → the end of the number's earlier life, its bit in the map (nothing that is free on the medium looks alive there), contents
//!   and bits of the fragments that it points at from the start;
//! - its name → that initialisation, the bit, the parent's raised count (`befores`): the caller's part, from the returned list;
//! - its end, one patch that clears all but its generation → `befores` (the clearing of its last name);
//! - its fragments and its number are free → its end.
//!
//! **Crash cases.** Before the name: a leaked inode. After its end, before the bits: leaked fragments and a leaked number.

use std::sync::Arc;

use fstitch_core::num::to_u64;
use fstitch_core::{BlockBuf, BlockKind, BlockNo, Caller, Errno, FileKind, InodeFlags, Result, XattrSetMode};
use fstitch_patch::{Block, PatchId, PatchIds};

use super::alloc::Run;
use super::inodes::TakenInode;
use super::layout::dirent::{CHUNK, put_first_entries};
use super::layout::inode::{DIRECT, DiskInode, EXTRA, INDIRECT, decode_device, encode_device, flag, places};
use super::layout::superblock::Version;
use super::volume::{Inode, Ufs};
use crate::gather::Gather;
use crate::num::{idx, low16};
use crate::uhfs::NewInode;

/// The first fragments of a new inode.
struct First {
    run: Run,
    blocks: Vec<Block>,
    contents: Vec<BlockBuf>,
}

impl Ufs {
    /// Makes an inode. Returns it with what its name must come after.
    pub(super) fn new_inode(
        &self,
        caller: &Caller,
        parent: &Inode,
        new: &NewInode<'_>,
        befores: &[PatchId],
    ) -> Result<(Inode, PatchIds)> {
        let kind = FileKind::from_mode(new.mode).ok_or(Errno::INVAL)?;
        if new.rdev != 0 && decode_device(encode_device(new.rdev)) != new.rdev {
            // The number that the BSDs write has 8 bits of the one half.
            return Err(Errno::INVAL.into());
        }
        if new.target.len() > self.format_limits().symlink_max {
            return Err(Errno::NAMETOOLONG.into());
        }
        let taken = self.take_inode(parent.ino, kind == FileKind::Directory)?;
        let made = self
            .first_fragments(caller, (taken.ino, parent.ino), (new, kind))
            .and_then(|first| self.initialise(new, kind, &taken, first));
        match made {
            Ok((mut inode, born)) => {
                let mut before_name = PatchIds::from_slice(&[born]);
                for (name, value) in new.xattrs {
                    let set = self.write_xattr(caller, &mut inode, (name, value), XattrSetMode::Set);
                    match set {
                        Ok(patches) => before_name.extend(patches),
                        Err(error) => {
                            self.end_inode(&mut inode, &[])?;
                            return Err(error);
                        }
                    }
                }
                before_name.extend_from_slice(&taken.bits);
                before_name.extend_from_slice(befores);
                Ok((inode, before_name))
            }
            Err(error) => {
                // Failing to read the group again leaks the number, which is lawful.
                let _leaked = self.free_inode_no(taken.ino, taken.is_dir, None);
                Err(error)
            }
        }
    }

    fn is_target_outside(&self, new: &NewInode<'_>, kind: FileKind) -> bool {
        kind == FileKind::Symlink && to_u64(new.target.len()) >= u64::from(self.sb.symlink_inside)
    }

    /// Takes and fills the fragments that an inode has from the start: a directory's first names, or a long target.
    fn first_fragments(
        &self,
        caller: &Caller,
        (ino, parent): (u32, u32),
        (new, kind): (&NewInode<'_>, FileKind),
    ) -> Result<Option<First>> {
        let mut bytes = match kind {
            FileKind::Directory => {
                let mut chunk = vec![0; CHUNK];
                put_first_entries(&mut chunk, (ino, parent), self.manner());
                chunk
            }
            _ if self.is_target_outside(new, kind) => new.target.to_vec(),
            _ => return Ok(None),
        };
        let what = if kind == FileKind::Directory { BlockKind::Directory } else { BlockKind::Attribute };
        let fragment = self.sb.fragment_len();
        let count = self.fragments_of(to_u64(bytes.len()));
        bytes.resize(fragment * bytes.len().div_ceil(fragment), 0);
        let near = self.near_inode(ino);
        let run = match count < self.per_block() {
            true => self.take_fragments(caller, near, count)?,
            false => self.take_blocks(caller, near, 1)?,
        };
        let fresh = (run.start..run.start + run.count).map(|at| self.cache.fresh(BlockNo(at), what));
        match fresh.collect::<Result<Vec<_>>>() {
            Ok(blocks) => {
                let contents = bytes.chunks(fragment).map(BlockBuf::copy_of).collect();
                Ok(Some(First { run, blocks, contents }))
            }
            Err(error) => {
                self.give_back(run.start, run.count);
                Err(error)
            }
        }
    }

    fn initialise(
        &self,
        new: &NewInode<'_>,
        kind: FileKind,
        taken: &TakenInode,
        first: Option<First>,
    ) -> Result<(Inode, PatchId)> {
        let at = self.sb.inode_place(taken.ino);
        let block = match self.cache.read(at.0, BlockKind::Inode) {
            Ok(block) => block,
            Err(error) => {
                if let Some(first) = first {
                    self.give_back(first.run.start, first.run.count);
                }
                return Err(error);
            }
        };
        if let Some(hasher) = &self.hasher {
            hasher.forget(at);
        }
        let mut disk = self.fresh_fields(new, kind);
        if let Some(first) = &first {
            disk.direct[0] = first.run.start;
            disk.sectors = self.sectors(first.run.count);
        }
        let mut befores = taken.reuse.clone();
        befores.extend_from_slice(&taken.bits);
        let mut inode = Inode::new(taken.ino, at, disk, Gather::default());
        let link = first.as_ref().map(|first| first.run.start);
        let size = idx(self.sb.version.inode_size());
        // With the free ones of its fragment: those that are made next join this patch, which what zeroed the table cannot have them do.
        let end = if taken.has_its_fragment { self.sb.fragment_len() } else { at.1 + size };
        let mut tx = self.cache.lock();
        if let Some(first) = first {
            for (block, contents) in first.blocks.iter().zip(first.contents) {
                befores.push(tx.init(block, Arc::new(contents), &first.run.reuse));
            }
            befores.extend_from_slice(&first.run.bits);
        }
        let mut bytes = tx.data(&block)[at.1..end].to_vec();
        let generation = self.sb.order.u32(&bytes, places(self.sb.version).generation);
        inode.disk.generation = generation.wrapping_add(1).max(1);
        bytes[..size].fill(0);
        inode.disk.encode_into(&mut bytes[..size], &self.sb);
        let born = inode.put(&mut tx, &block, (0, &bytes), &befores);
        for &bit in &taken.bits {
            inode.gather(&mut tx, bit);
        }
        drop(tx);
        inode.tail = self.tail_of(&inode);
        if let (FileKind::Directory, Some(start)) = (kind, link) {
            self.memory.set_links(start, PatchIds::from_slice(&[born]), &self.cache);
        }
        self.remember(&mut inode);
        Ok((inode, born))
    }

    fn fresh_fields(&self, new: &NewInode<'_>, kind: FileKind) -> DiskInode {
        let now = self.storable(new.now);
        let is_inside = kind == FileKind::Symlink && !self.is_target_outside(new, kind);
        let mut inside = Vec::new();
        if is_inside {
            inside = new.target.to_vec();
            inside.resize(idx(self.sb.symlink_room()), 0);
        }
        let mut direct = [0; DIRECT];
        if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) {
            direct[0] = u64::from(encode_device(new.rdev));
        }
        DiskInode {
            kind,
            perm: new.mode & 0o7777,
            nlink: low16(new.nlink),
            uid: new.uid,
            gid: new.gid,
            size: match kind {
                FileKind::Directory => to_u64(CHUNK),
                FileKind::Symlink => to_u64(new.target.len()),
                _ => 0,
            },
            sectors: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: (self.sb.version == Version::Two).then_some(now),
            generation: 0,
            flags: if new.flags.has(InodeFlags::NODUMP) { flag::NODUMP } else { 0 },
            direct,
            indirect: [0; INDIRECT],
            extra_size: 0,
            extra: [0; EXTRA],
            inside,
        }
    }

    /// Frees an inode with everything that it has, after `befores`.
    pub(super) fn end_inode(&self, inode: &mut Inode, befores: &[PatchId]) -> Result<()> {
        self.settle_late(inode);
        let block = self.inode_block(inode)?;
        let had = self.everything(inode);
        let is_dir = inode.disk.kind == FileKind::Directory;
        let size = idx(self.sb.version.inode_size());
        let mut bytes = vec![0; size];
        self.sb.order.put_u32(&mut bytes, places(self.sb.version).generation, inode.disk.generation);
        let mut tx = self.cache.lock();
        let end = inode.put(&mut tx, &block, (0, &bytes), befores);
        drop(tx);
        let has_blocks = inode.has_blocks(&self.sb);
        let indirect = std::mem::take(&mut inode.disk.indirect);
        inode.disk.direct = [0; DIRECT];
        (inode.disk.size, inode.disk.sectors, inode.disk.nlink, inode.tail) = (0, 0, 0, None);
        self.remember(inode);
        let mut failed = None;
        for (start, count) in had {
            if let Err(error) = self.free_checked(inode, start, count, Some(end)) {
                failed.get_or_insert(error);
            }
        }
        for (levels, root) in (1..).zip(indirect).filter(|(_, root)| has_blocks && *root != 0) {
            if let Err(error) = self.free_tree(inode, root, levels, Some(end)) {
                failed.get_or_insert(error);
            }
        }
        self.free_inode_no(inode.ino, is_dir, Some(end))?;
        failed.map_or(Ok(()), Err)
    }

    /// The fragments that an inode points at itself, those of attributes included.
    fn everything(&self, inode: &Inode) -> Vec<(u64, u64)> {
        let mut runs = Vec::new();
        if inode.has_blocks(&self.sb) {
            for (at, &start) in (0..).zip(&inode.disk.direct) {
                if start != 0 {
                    runs.push((start, self.allocated_len(inode, at)));
                }
            }
        }
        runs.extend(self.attribute_runs(inode));
        runs
    }
}
