//! The beginning and the end of an inode.
//!
//! **Orderings** (arrows read "comes after").
//! - initialisation of the inode, one patch over all its bytes → the end of the number's earlier life, its bit in the
//!   map (nothing that is free on the medium looks alive there), and the
//!   initialisation and bits of the blocks that it points at from the start (a directory's first block, a long symbolic
//!   link's target, attributes);
//! - its name → that initialisation, the bit in the free map, the parent's raised count (`befores`): the caller's
//!   part, from the returned list;
//! - its end, one patch that clears names, length and pointers → `befores` (the clearing of its last name);
//! - its blocks, its share of the attribute block and its number are free → its end; nothing, if its beginning and its
//!   end are one unflown patch.
//!
//! **Crash cases.** Before the name: a leaked inode. After its end, before the bits: leaked blocks and a leaked number.

use std::sync::Arc;

use fstitch_core::{BlockBuf, BlockKind, BlockNo, Caller, Errno, FileKind, InodeFlags, Result};
use fstitch_patch::{Block, PatchId, PatchIds};
use smallvec::SmallVec;

use super::alloc::{FreedAfter, Goal, Run, Wish};
use super::extents;
use super::inode::Inode;
use super::layout::feature::{compat, incompat};
use super::layout::inode::{
    self as raw, DiskInode, EXTENTS_FL, FAST_SYMLINK, POINTERS, PROJINHERIT_FL, new_extra_isize,
    symlink_pointers,
};
use super::layout::superblock::ROOT_INO;
use super::layout::{dirent, xattr::XattrSet};
use super::num::{low16, low32, pointer32, wide};
use super::orlov::{InodeWish, TakenInode};
use super::seal::owner;
use super::times;
use super::volume::Ext2;
use super::{acl, device};
use crate::gather::Gather;
use crate::uhfs::NewInode;

/// `i_flags` that new inodes may inherit: all but the index of a directory.
const FLAGS_INHERITABLE: u32 = 0x0003_c0ff;

/// A block that a new inode points at from the start.
struct FirstBlock {
    run: Run,
    block: Block,
    contents: BlockBuf,
}

/// Everything that a new inode takes before its first patch.
struct Parts {
    number: TakenInode,
    /// A directory's names or a symbolic link's target.
    data: Option<FirstBlock>,
    /// Attributes that do not fit into the inode.
    attributes: Option<FirstBlock>,
    /// The inode's bytes behind its fixed fields; nothing for zeros.
    body: Vec<u8>,
}

impl Ext2 {
    /// Makes an inode. Returns it with what its name must come after.
    pub(super) fn new_inode(
        &self,
        caller: &Caller,
        parent: &Inode,
        new: &NewInode<'_>,
        befores: &[PatchId],
    ) -> Result<(Inode, PatchIds)> {
        if self.quotas.is_none() {
            return self.new_uncharged(caller, parent, new, befores);
        }
        let owners = [new.uid, new.gid, self.project_under(parent)];
        let kind = FileKind::from_mode(new.mode);
        let has_block = kind == Some(FileKind::Directory) || new.target.len() >= FAST_SYMLINK;
        self.charged_new(caller, (owners, u64::from(has_block)), || {
            self.new_uncharged(caller, parent, new, befores)
        })
    }

    /// The project of what is made in a directory.
    fn project_under(&self, parent: &Inode) -> u32 {
        if parent.disk.flags & PROJINHERIT_FL == 0 { 0 } else { parent.disk.projid }
    }

    /// Makes an inode of which nobody is charged: its owners otherwise, or those who refer to it.
    pub(super) fn new_uncharged(
        &self,
        caller: &Caller,
        parent: &Inode,
        new: &NewInode<'_>,
        befores: &[PatchId],
    ) -> Result<(Inode, PatchIds)> {
        let kind = FileKind::from_mode(new.mode).ok_or(Errno::INVAL)?;
        if new.target.len() >= self.block_size() {
            return Err(Errno::NAMETOOLONG.into());
        }
        let mut feature = PatchIds::new();
        if !new.xattrs.is_empty() {
            feature.push(self.need_compat(compat::EXT_ATTR)?);
        }
        let wish = InodeWish {
            parent_group: self.sb.group_of_inode(parent.ino),
            is_dir: kind == FileKind::Directory,
            spread: parent.ino == ROOT_INO || InodeFlags(parent.disk.flags).has(InodeFlags::TOPDIR),
        };
        let number = self.take_inode(wish)?;
        let mut parts = Parts { number, data: None, attributes: None, body: Vec::new() };
        match self.gather_parts(caller, parent, (new, kind), &mut parts) {
            Ok((at, block)) => {
                let inode = self.initialise((new, parent), kind, (at, &block), &mut parts, &feature)?;
                let mut before_name = PatchIds::from_slice(&[inode.born]);
                before_name.extend_from_slice(&parts.number.bits);
                before_name.extend_from_slice(befores);
                Ok((inode, before_name))
            }
            Err(error) => {
                self.give_back_parts(&parts);
                Err(error)
            }
        }
    }

    fn give_back_parts(&self, parts: &Parts) {
        for first in [&parts.data, &parts.attributes].into_iter().flatten() {
            self.give_back_run(&first.run);
        }
        // Failing to read the bitmap again leaks the number, which is lawful; the next operation reports it.
        let _leaked = self.free_inode_no(parts.number.ino, parts.number.is_dir, FreedAfter::Nothing);
    }

    /// Reads and takes everything that can fail.
    fn gather_parts(
        &self,
        caller: &Caller,
        parent: &Inode,
        (new, kind): (&NewInode<'_>, FileKind),
        parts: &mut Parts,
    ) -> Result<((BlockNo, usize), Block)> {
        self.use_table(&mut parts.number)?;
        let ino = parts.number.ino;
        let at = self.inode_place(ino)?;
        let block = self.cache.read(at.0, BlockKind::Inode)?;
        let group = self.sb.group_of_inode(ino);
        let data = Wish::new(Goal::Group(group), 1).low(!self.maps_by_extents());
        match kind {
            FileKind::Directory => {
                // The generation that the inode will have: nobody else changes a number that was taken.
                let generation = raw::I_GENERATION.get(&block.snapshot()[at.1..]).wrapping_add(1);
                let owner = owner(ino, generation);
                let first = self.first_block(caller, data, (BlockKind::Directory, owner))?;
                let first = parts.data.insert(first);
                let with = (self.sb.has_filetype(), self.sb.features.has_sums());
                dirent::put_first_entries(&mut first.contents, ino, parent.ino, with);
            }
            FileKind::Symlink if new.target.len() >= FAST_SYMLINK => {
                let first = self.first_block(caller, data, (BlockKind::Attribute, 0))?;
                let first = parts.data.insert(first);
                first.contents[..new.target.len()].copy_from_slice(new.target);
            }
            _ => {}
        }
        self.place_attributes(caller, group, new, parts)?;
        Ok((at, block))
    }

    fn first_block(
        &self,
        caller: &Caller,
        wish: Wish,
        (kind, owner): (BlockKind, u64),
    ) -> Result<FirstBlock> {
        let run = self.take_wish(caller, wish)?;
        match self.cache.fresh_owned(BlockNo(run.start), kind, owner) {
            Ok(block) => Ok(FirstBlock { run, block, contents: BlockBuf::zeroed(self.block_size()) }),
            Err(error) => {
                self.give_back_run(&run);
                Err(error)
            }
        }
    }

    /// Puts the attributes of a new inode into its body, or else into a block.
    fn place_attributes(
        &self,
        caller: &Caller,
        group: u32,
        new: &NewInode<'_>,
        parts: &mut Parts,
    ) -> Result<()> {
        if new.xattrs.is_empty() {
            return Ok(());
        }
        let size = usize::from(self.sb.inode_size);
        let fixed = raw::GOOD_OLD_SIZE + usize::from(new_extra_isize(&self.sb));
        parts.body = vec![0; size - fixed];
        let mut all = XattrSet::default();
        for (name, value) in new.xattrs {
            all.set(acl::stored(name, value)?);
        }
        if all.encode_body(&mut parts.body) {
            return Ok(());
        }
        let first = self.first_block(caller, Wish::new(Goal::Apart(group), 1), (BlockKind::Attribute, 0))?;
        let first = parts.attributes.insert(first);
        if all.encode_block(&mut first.contents, 1) { Ok(()) } else { Err(Errno::NOSPC.into()) }
    }

    /// Fills the blocks, then the inode.
    fn initialise(
        &self,
        (new, parent): (&NewInode<'_>, &Inode),
        kind: FileKind,
        (at, block): ((BlockNo, usize), &Block),
        parts: &mut Parts,
        feature: &[PatchId],
    ) -> Result<Inode> {
        let extra_isize = new_extra_isize(&self.sb);
        let mut disk = self.fresh_fields(new, kind, extra_isize);
        disk.projid = self.project_under(parent);
        if kind == FileKind::Directory {
            disk.flags |= parent.disk.flags & PROJINHERIT_FL;
        }
        let first_block = parts.data.as_ref().map(|first| first.run.start);
        if disk.has_extents() {
            disk.block = extents::new_root(first_block.map(|start| (start, 1)));
        } else if let Some(start) = first_block {
            disk.block[0] = pointer32(start);
        }
        if let Some(first) = &parts.attributes {
            disk.xattr_block = first.run.start;
        }
        for _ in [&parts.data, &parts.attributes].into_iter().flatten() {
            disk.sectors += self.sectors_per_cluster();
        }
        if let Some(seal) = &self.seal {
            seal.note_new_inode(parts.number.ino);
        }
        let mut inode = Inode::new(parts.number.ino, at, disk, Gather::default());
        inode.body_attributes = !new.xattrs.is_empty();
        // After the end of the number's earlier life, after its own bit, so that a number that the medium says is
        // free never looks alive there, and after what it points at is initialised and marked as used.
        let mut befores = parts.number.reuse.clone();
        befores.extend_from_slice(&parts.number.bits);
        befores.extend_from_slice(feature);
        let mut blocks = Vec::new();
        let mut tx = self.cache.lock();
        for first in [parts.data.take(), parts.attributes.take()].into_iter().flatten() {
            blocks.push(first.run.start);
            befores.push(tx.init(&first.block, Arc::new(first.contents), &first.run.reuse));
            befores.extend(first.run.bits.iter().copied());
        }
        let size = usize::from(self.sb.inode_size);
        inode.disk.generation = raw::I_GENERATION.get(&tx.data(block)[at.1..]).wrapping_add(1);
        let mut bytes: SmallVec<[u8; 256]> = SmallVec::from_elem(0, size);
        inode.disk.encode_into(&mut bytes, self.sb.block_size);
        bytes[size - parts.body.len()..].copy_from_slice(&parts.body);
        inode.born = inode.put_bytes(&mut tx, block, (0, &bytes), &befores);
        for &bit in &parts.number.bits {
            inode.gather(&mut tx, bit);
        }
        drop(tx);
        for block in blocks {
            inode.attached.insert(block, 1, inode.born);
        }
        if let (FileKind::Directory, Some(start)) = (kind, first_block) {
            let link = PatchIds::from_slice(&[inode.born]);
            self.memory.set_links(start, link, &self.cache);
        }
        if inode.disk.nlink == 0 {
            self.enter_orphan(&mut inode, block);
        }
        self.remember(&mut inode);
        Ok(inode)
    }

    fn fresh_fields(&self, new: &NewInode<'_>, kind: FileKind, extra_isize: u16) -> DiskInode {
        let mut block = [0; POINTERS];
        match kind {
            FileKind::CharDevice | FileKind::BlockDevice => {
                [block[0], block[1]] = device::encode(new.rdev);
            }
            FileKind::Symlink if new.target.len() < FAST_SYMLINK => block = symlink_pointers(new.target),
            _ => {}
        }
        let time = times::rounded(new.now, raw::has_extra(extra_isize, raw::I_MTIME_EXTRA.end()));
        DiskInode {
            kind,
            perm: new.mode & 0o7777,
            uid: new.uid,
            gid: new.gid,
            projid: 0,
            nlink: low16(new.nlink),
            size: match kind {
                FileKind::Directory => wide(self.block_size()),
                FileKind::Symlink => wide(new.target.len()),
                _ => 0,
            },
            sectors: 0,
            flags: new.flags.0 & FLAGS_INHERITABLE | self.map_flag(new, kind),
            atime: time,
            ctime: time,
            mtime: time,
            crtime: raw::has_extra(extra_isize, raw::I_CRTIME_EXTRA.end()).then_some(time),
            dtime: 0,
            generation: 0,
            xattr_block: 0,
            block,
            extra_isize,
            has_values: self.has_values() || self.sb.has_clusters(),
        }
    }

    /// The flag of a new inode that will have blocks, on a volume where these are mapped by extents.
    fn map_flag(&self, new: &NewInode<'_>, kind: FileKind) -> u32 {
        let has_blocks = match kind {
            FileKind::Regular | FileKind::Directory => true,
            FileKind::Symlink => new.target.len() >= FAST_SYMLINK,
            _ => false,
        };
        let by_extents = has_blocks && self.sb.features.has_incompat(incompat::EXTENTS);
        if by_extents { EXTENTS_FL } else { 0 }
    }

    /// Frees an inode with everything that it has, after `befores`; values that have inodes of their own have gone before.
    pub(super) fn end_inode(&self, inode: &mut Inode, befores: &[PatchId]) -> Result<()> {
        self.watch.inode(inode.ino);
        self.give_back_preallocated_of(inode.ino);
        self.close_window(inode);
        let inode_block = self.inode_block(inode)?;
        self.leave_orphans(inode, &inode_block)?;
        let (has_blocks, has_extents) = (inode.has_blocks(self), inode.has_extents());
        let blocks = std::mem::take(&mut inode.disk.block);
        inode.leaf.forget();
        inode.node_hint.forget();
        let xattr_block = std::mem::take(&mut inode.disk.xattr_block);
        let is_dir = inode.disk.kind == FileKind::Directory;
        let mut tx = self.cache.lock();
        let bytes = self.ended(inode, &tx.data(&inode_block)[inode.at.1..]);
        // After the clearing of its last name: a free inode has no name on the medium.
        let end = inode.put_bytes(&mut tx, &inode_block, (raw::I_SIZE.offset(), &bytes), befores);
        let never = self.cache.optimizations().elimination && tx.same(inode.born, end);
        let after = if never { FreedAfter::Nothing } else { FreedAfter::Pointer(end) };
        drop(tx);
        let blocks_freed = match (has_blocks, has_extents) {
            (true, true) => self.free_all_extents(inode, &blocks, after),
            (true, false) => self.free_all_blocks(&blocks, after),
            (false, _) => Ok(()),
        };
        let attributes_freed =
            if xattr_block == 0 { Ok(()) } else { self.release_xattr_block(inode, xattr_block, after) };
        self.remember(inode);
        self.free_inode_no(inode.ino, is_dir, after)?;
        blocks_freed.and(attributes_freed)
    }

    /// Behind what an inode loses that ends: the high half of its length, and of its attributes' block, if it has one.
    fn end_of_pointers(&self, raw: &[u8]) -> usize {
        let is_large = self.sb.features.has_incompat(incompat::BIT64);
        if is_large && raw::I_FILE_ACL_HIGH.get(raw) != 0 {
            raw::I_FILE_ACL_HIGH.end()
        } else {
            raw::I_SIZE_HIGH.end()
        }
    }

    /// The bytes of an inode that ends now, from its length on.
    fn ended(&self, inode: &mut Inode, now: &[u8]) -> Vec<u8> {
        let (from, to) = (raw::I_SIZE.offset(), self.end_of_pointers(now));
        let disk = &mut inode.disk;
        disk.nlink = 0;
        disk.size = 0;
        disk.sectors = 0;
        disk.flags = 0;
        disk.dtime = self.deletion_time();
        inode.has_ended = true;
        let disk = &inode.disk;
        let mut bytes = now[..raw::GOOD_OLD_SIZE].to_vec();
        raw::I_SIZE.put(&mut bytes, 0);
        raw::I_SIZE_HIGH.put(&mut bytes, 0);
        raw::I_CTIME.put(&mut bytes, low32(self.now().secs.cast_unsigned()));
        raw::I_DTIME.put(&mut bytes, disk.dtime);
        raw::I_LINKS_COUNT.put(&mut bytes, 0);
        raw::I_BLOCKS.put(&mut bytes, 0);
        raw::I_FLAGS.put(&mut bytes, 0);
        raw::I_FILE_ACL.put(&mut bytes, 0);
        if to > raw::I_FILE_ACL_HIGH.offset() {
            raw::I_FILE_ACL_HIGH.put(&mut bytes, 0);
        }
        for at in 0..POINTERS {
            raw::pointer_field(at).put(&mut bytes, 0);
        }
        bytes[from..to].to_vec()
    }
}
