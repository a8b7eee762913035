//! Records of inodes: what one says, as far as the record knows, comes into the table.
//!
//! Of the 60 bytes of its map a record is believed where they are no map: a short link's target, a device's number, contents that lie
//! in the inode. The map by extents is what home had, and what records of ranges make of it.

use fstitch_core::{BlockKind, Error, FileKind, InodeNo, Result};

use super::{Apply, damaged, has_map};
use crate::ext2::layout::extent::{EXTENT_MAGIC, Node};
use crate::ext2::layout::inode::{
    DiskInode, EXTENTS_FL, FAST_SYMLINK, I_BLOCK, I_DTIME, I_FLAGS, I_GENERATION, I_LINKS_COUNT, I_MODE,
    I_SIZE, INLINE_DATA_FL, pointer_field,
};
use crate::ext2::num::{idx, low16};

use super::super::pass::Loaded;

impl Apply<'_, '_, '_> {
    /// Fails unless records may speak of an inode of this number.
    fn check_number(&self, ino: u32) -> Result<()> {
        if self.pass.shape.is_files_inode(ino) { Ok(()) } else { Err(damaged(format!("it has inode {ino}"))) }
    }

    /// An inode that is in use.
    pub(super) fn load(&self, ino: u32) -> Result<Option<Loaded>> {
        self.check_number(ino)?;
        self.pass.load_inode(ino)
    }

    /// Writes an inode's fields.
    pub(super) fn put(&mut self, orphan: &Loaded) -> Result<()> {
        self.pass.put_inode(orphan)
    }

    /// Notes the blocks that an inode has before the first record changes its map.
    pub(super) fn lift(&mut self, orphan: &Loaded) -> Result<()> {
        if self.known.get(&orphan.ino).is_some_and(|known| known.is_lifted) {
            return Ok(());
        }
        if has_map(orphan, self.pass.shape.block_size) {
            let mut had = Vec::new();
            self.pass.each_run(orphan, &mut |first, count, _| had.push((first, first + u64::from(count))))?;
            self.had.extend(had);
        }
        self.known.entry(orphan.ino).or_default().is_lifted = true;
        Ok(())
    }

    /// An inode is as `record` says.
    pub(super) fn put_record(&mut self, ino: u32, record: &[u8]) -> Result<()> {
        self.check_number(ino)?;
        let before = self.load(ino)?;
        let is_dead = self.known.get(&ino).is_some_and(|known| known.is_dead);
        let is_other =
            before.as_ref().is_some_and(|before| before.disk.generation != I_GENERATION.get(record));
        let is_new = before.is_none() || is_other || (is_dead && I_LINKS_COUNT.get(record) > 0);
        if let Some(before) = &before {
            self.lift(before)?;
        }
        if is_new {
            self.take_inode(ino, record)?;
            self.known.insert(ino, super::Known { is_lifted: true, ..super::Known::default() });
            self.dirs.remove(&ino);
        }
        let at = self.pass.place(ino)?;
        self.pass.summed.inodes.insert(ino, at);
        let (size, is_listed) = (usize::from(self.pass.shape.inode_size), self.listed.contains(&ino));
        let raw = &mut self.pass.change(at.0, BlockKind::Inode)?[at.1..at.1 + size];
        merge(raw, record, (is_new, is_listed))?;
        let raw = raw.to_vec();
        DiskInode::parse(&raw, InodeNo(u64::from(ino)), at.0, &self.pass.shape)?;
        self.link_waiting(ino)
    }

    /// The inode `ino` of a record comes into use, unless another life of it was.
    fn take_inode(&mut self, ino: u32, record: &[u8]) -> Result<()> {
        let is_directory = FileKind::from_mode(I_MODE.get(record)) == Some(FileKind::Directory);
        match self.load(ino)? {
            Some(before) => {
                let was_directory = before.disk.kind == FileKind::Directory;
                if before.disk.xattr_block != 0 {
                    self.pass.free_attributes(before.disk.xattr_block)?;
                }
                self.pass.count_directory(before.group, is_directory, was_directory)
            }
            None => self.pass.mark_inode(ino, is_directory),
        }
    }
}

/// Brings what a record says into an inode's bytes.
fn merge(raw: &mut [u8], record: &[u8], (is_new, is_listed): (bool, bool)) -> Result<()> {
    let dtime = I_DTIME.get(raw);
    if is_new {
        raw.fill(0);
    }
    let (map, behind) = (I_BLOCK.offset(), I_BLOCK.offset() + FAST_SYMLINK);
    let end = record.len().min(raw.len());
    raw[..map].copy_from_slice(&record[..map]);
    raw[behind..end].copy_from_slice(&record[behind..end]);
    let flags = I_FLAGS.get(raw);
    let kind = FileKind::from_mode(I_MODE.get(raw));
    let has_blocks = match kind {
        Some(FileKind::Regular | FileKind::Directory) => true,
        Some(FileKind::Symlink) => idx(I_SIZE.get(raw)) >= FAST_SYMLINK,
        _ => false,
    };
    if flags & (EXTENTS_FL | INLINE_DATA_FL) == EXTENTS_FL {
        if low16(pointer_field(0).get(raw)) != EXTENT_MAGIC {
            for (at, word) in Node::empty_root().root_words().into_iter().enumerate() {
                pointer_field(at).put(raw, word);
            }
        }
    } else if flags & INLINE_DATA_FL != 0 || !has_blocks {
        raw[map..behind].copy_from_slice(&record[map..behind]);
    } else if is_new && (I_SIZE.get(raw) != 0 || kind == Some(FileKind::Directory)) {
        return Err(Error::Unsupported("fast commits that make files without extents".into()));
    }
    // The chain of orphans goes through the deletion times, and the superblock names its head as home has it.
    if is_listed {
        I_DTIME.put(raw, dtime);
    } else if I_LINKS_COUNT.get(raw) > 0 {
        I_DTIME.put(raw, 0);
    }
    Ok(())
}
