//! What an inode is: by its mode, by what is there, and what a link leads to.

use fstitch_core::{BlockKind, BlockNo, FileKind, Le, Result};

use super::claims::{self, Totals};
use super::inodes::{INDEX, Scan};
use super::state::Volume;
use super::{entries, extents, xattrs};
use crate::ext2::layout::dirent::{D_INODE, inline_entries};
use crate::ext2::layout::extent::{EE_BLOCK, EH_ENTRIES, EXTENT_HEADER, extent_start};
use crate::ext2::layout::feature::incompat;
use crate::ext2::layout::inode::{EXTENTS_FL, FAST_SYMLINK, I_FLAGS, I_MODE, POINTERS, pointer_field};
use crate::ext2::layout::superblock::ROOT_INO;
use crate::ext2::num::wide;

impl Scan<'_, '_> {
    /// What the inode is: what its mode says, or where a mode that goes with no blocks of names is contradicted by what is there: a
    /// directory by the first of them, and a file by its map or what lies in it.
    pub(super) fn kind(&mut self, mode: u16) -> Result<Option<FileKind>> {
        let kind = FileKind::from_mode(mode);
        if matches!(kind, Some(FileKind::Regular | FileKind::Directory | FileKind::Symlink)) {
            return Ok(kind);
        }
        let ino = self.ino;
        let (found, code, what) = if self.starts_like_a_directory()? {
            (FileKind::Directory, "inode-mode-not-directory", "a directory")
        } else if self.has_contents() {
            (FileKind::Regular, "inode-mode-not-file", "a file")
        } else {
            return Ok(kind);
        };
        if self.state.corrupt(code, format!("inode {ino} has mode {mode:#o}, but is {what} by its contents"))
        {
            // Without any permission nobody but root could look at it.
            let perm = if mode & 0o777 == 0 { mode & 0o7000 | 0o700 } else { mode & 0o7777 };
            I_MODE.put(self.raw, found.mode_bits() | perm);
            self.changed = true;
        }
        Ok(Some(found))
    }

    /// Whether what the inode has by its flags is there: a tree of extents, or contents inside. Only a file, a directory or a link has
    /// either.
    fn has_contents(&self) -> bool {
        let flags = self.get(I_FLAGS);
        let inside = self.is_inline()
            && self.volume.shape.features.has_incompat(incompat::INLINE_DATA)
            && self.fits_inside();
        flags & INDEX == 0 && (inside || flags & EXTENTS_FL != 0 && self.has_root_of_extents())
    }

    /// Whether there is an attribute for contents in the inode, and they are not longer than there is room for.
    pub(super) fn fits_inside(&self) -> bool {
        let room = xattrs::inline_value(self.raw).map(|value| wide(FAST_SYMLINK + value.len()));
        room.is_some_and(|room| self.size() <= room)
    }

    /// Whether what lies in the inode is a parent's number, and entries behind it.
    fn is_a_directory_inside(&self) -> bool {
        let root = &self.raw[extents::ROOT];
        let parent = Le::u32(root, 0);
        let is_one = parent >= self.volume.shape.first_ino || parent == ROOT_INO;
        let mut entries = inline_entries(&root[4..], BlockNo(0), &self.volume.shape);
        is_one && parent <= self.volume.shape.inodes_count && entries.all(|entry| entry.is_ok())
    }

    /// Whether the first block has `.`, naming this inode, and `..`.
    fn starts_like_a_directory(&self) -> Result<bool> {
        if self.is_inline() {
            return Ok(self.is_a_directory_inside());
        }
        let Some(first) = first_block(self.volume, self.raw) else { return Ok(false) };
        let mut bytes = vec![0; self.volume.block_size()];
        self.volume.read(first, BlockKind::Directory, &mut bytes)?;
        Ok(D_INODE.get(&bytes) == self.ino && entries::first_names_are_sound(&bytes).is_ok())
    }

    pub(super) fn symlink(&mut self, attributes: u64) -> Result<()> {
        let size = self.size();
        if self.is_inline() {
            return self.inline(FileKind::Symlink, attributes);
        }
        self.target_inside();
        let by_extents = self.get(I_FLAGS) & EXTENTS_FL != 0;
        let fast = size < wide(FAST_SYMLINK) && !by_extents;
        let mut totals = Totals { blocks: attributes, ..Totals::default() };
        let sane = if fast {
            self.has_target_inside()
        } else {
            // Who goes by the length alone looks for a short one in the inode.
            size >= wide(FAST_SYMLINK) && self.slow_target_is_sane(size)?
        };
        if !sane || self.get(I_FLAGS) & INDEX != 0 {
            self.bad("symlink-bad");
        }
        if !fast {
            claims::claim_map(self, FileKind::Symlink, &mut totals)?;
        }
        self.block_count(totals.blocks);
        Ok(())
    }

    /// Whether a target as long as the link says lies where others have their map.
    pub(super) fn has_target_inside(&self) -> bool {
        let (size, bytes) = (self.size(), &self.raw[extents::ROOT]);
        size > 0 && bytes.iter().position(|&byte| byte == 0) == usize::try_from(size).ok()
    }

    /// A target where by a flag there is a tree of extents.
    fn target_inside(&mut self) {
        let flags = self.get(I_FLAGS);
        if flags & EXTENTS_FL == 0 || self.has_root_of_extents() || !self.has_target_inside() {
            return;
        }
        let text = format!("inode {} has its target inside, but by its flags {flags:#x} extents", self.ino);
        // Also where nothing is mended: nobody is to follow it.
        I_FLAGS.put(self.raw, flags & !EXTENTS_FL);
        self.changed |= self.state.corrupt("inode-extents-flag", text);
    }

    /// Whether a link's only block holds a target of `size` bytes.
    fn slow_target_is_sane(&mut self, size: u64) -> Result<bool> {
        let by_extents = self.get(I_FLAGS) & EXTENTS_FL != 0;
        let single = by_extents || (1..POINTERS).all(|at| self.get(pointer_field(at)) == 0);
        let Some(block) = first_block(self.volume, self.raw).filter(|_| single) else { return Ok(false) };
        if size >= wide(self.volume.block_size()) || size == 0 {
            return Ok(false);
        }
        let mut bytes = vec![0; self.volume.block_size()];
        self.volume.read(block, BlockKind::Data, &mut bytes)?;
        Ok(bytes.iter().position(|&b| b == 0) == usize::try_from(size).ok())
    }
}

/// The first block of the file in `raw`, as far as its inode says it.
pub(super) fn first_block(volume: &Volume<'_>, raw: &[u8]) -> Option<u64> {
    let block = if I_FLAGS.get(raw) & EXTENTS_FL == 0 {
        u64::from(pointer_field(0).get(raw))
    } else {
        let root = &raw[extents::ROOT];
        extents::header(root, None).ok().filter(|&depth| depth == 0 && EH_ENTRIES.get(root) > 0)?;
        let first = &root[EXTENT_HEADER..];
        if EE_BLOCK.get(first) == 0 { extent_start(first) } else { 0 }
    };
    volume.is_valid(block).then_some(block)
}
