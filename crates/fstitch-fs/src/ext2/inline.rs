//! What lies in inodes: the contents of small files and directories, and values of attributes that have an inode of their own.
//!
//! **Layout.** With the feature `inline_data` the first 60 bytes of a file's contents are in the place of its map, the rest is the
//! value of an attribute that no namespace shows. A directory has the number of its parent in the first four of these bytes, then
//! a chain of entries to their end, and another one in the value; `.` and `..` have none. With `ea_inode` an attribute's value may be
//! the contents of an inode without a name.
//!
//! Only for reading: volumes with these features are not written.

use fstitch_core::{BlockKind, DirEntry, FileKind, InodeNo, Le, Result};

use super::inode::Inode;
use super::layout::dirent::{self, EntryView, NAME_MAX};
use super::layout::inode::{EA_INODE_FL, FAST_SYMLINK, pointer_bytes};
use super::layout::xattr::{Elsewhere, INDEX_SYSTEM, XattrSet};
use super::num::{idx, idx64, wide};
use super::volume::Ext2;
use crate::uhfs::NameSlot;

/// The name of the attribute with the rest of the contents.
const DATA: &[u8] = b"data";
/// Bytes before the entries: the parent's number.
const PARENT: usize = 4;
/// Where the listing goes on behind `.`, and behind `..`, which lie nowhere: no entry is so short.
const BEHIND_DOT: u64 = 1;
const BEHIND_DOTS: u64 = 2;
/// What the places of entries are ahead by in a listing.
const LISTED: u64 = 12;
/// The longest value of an attribute.
const VALUE_MAX: u32 = 1 << 20;

impl Ext2 {
    /// The contents of an inode that has them in itself, at most as many bytes as there are.
    pub(super) fn inline_bytes(&self, inode: &Inode) -> Result<Vec<u8>> {
        let mut bytes = pointer_bytes(&inode.disk.block).to_vec();
        let places = self.read_body(inode)?;
        bytes.extend_from_slice(places.get(INDEX_SYSTEM, DATA).unwrap_or_default());
        bytes.truncate(idx64(inode.disk.size.min(wide(bytes.len()))));
        Ok(bytes)
    }

    /// The attributes in the inode itself.
    pub(super) fn read_body(&self, inode: &Inode) -> Result<XattrSet> {
        let range = self.body_range(inode);
        if range.len() < 8 {
            return Ok(XattrSet::default());
        }
        let bytes = self.inode_block(inode)?.snapshot();
        XattrSet::parse_body(&bytes[inode.at.1 + range.start..inode.at.1 + range.end], inode.at.0)
    }

    /// A value that is the contents of another inode.
    pub(super) fn read_value(&self, of: &Inode, at: Elsewhere) -> Result<Vec<u8>> {
        let value = self.load_any(InodeNo(u64::from(at.inode)))?;
        let is_value = value.disk.kind == FileKind::Regular && value.disk.flags & EA_INODE_FL != 0;
        if !is_value || at.size > VALUE_MAX || u64::from(at.size) > value.disk.size {
            return Err(of.damaged(format!("the value of an attribute is in inode {}", at.inode)));
        }
        let unit = self.block_size();
        let mut bytes = vec![0; idx(at.size)];
        for (index, part) in (0_u64..).zip(bytes.chunks_mut(unit)) {
            if let Some(block) = self.map_run(&value, index, 1)?.contents() {
                let contents = self.cache.read(block, BlockKind::Data)?.snapshot();
                part.copy_from_slice(&contents[..part.len()]);
            }
        }
        Ok(bytes)
    }

    /// Calls `each` for each name in a directory that lies in its inode, with where the listing goes on behind it; until it
    /// returns false.
    fn each_inline(&self, dir: &Inode, mut each: impl FnMut(&EntryView<'_>, u64) -> bool) -> Result<()> {
        let bytes = self.inline_bytes(dir)?;
        let (first, rest) = bytes.split_at(bytes.len().min(FAST_SYMLINK));
        for (start, part) in [(PARENT, first.get(PARENT..).unwrap_or_default()), (FAST_SYMLINK, rest)] {
            for entry in dirent::inline_entries(part, dir.at.0, &self.sb) {
                let entry = entry?;
                if entry.ino != 0 && !each(&entry, LISTED + wide(start + entry.end())) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn inline_parent(&self, dir: &Inode) -> InodeNo {
        InodeNo(u64::from(Le::u32(&pointer_bytes(&dir.disk.block), 0)))
    }

    /// Finds a name in such a directory.
    pub(super) fn find_inline(&self, dir: &Inode, name: &[u8]) -> Result<Option<NameSlot>> {
        let slot = |ino, kind| NameSlot { ino, kind, block: dir.at.0, offset: dir.at.1 };
        match name {
            b"." => return Ok(Some(slot(dir.no(), Some(FileKind::Directory)))),
            b".." => return Ok(Some(slot(self.inline_parent(dir), Some(FileKind::Directory)))),
            _ if name.is_empty() || name.len() > NAME_MAX => return Ok(None),
            _ => {}
        }
        let mut found = None;
        self.each_inline(dir, |entry, _| {
            if entry.name == name {
                found = Some(slot(InodeNo(u64::from(entry.ino)), entry.kind()));
            }
            found.is_none()
        })?;
        Ok(found)
    }

    /// Lists such a directory.
    pub(super) fn list_inline(
        &self,
        dir: &Inode,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let kind = Some(FileKind::Directory);
        let dots: [(InodeNo, &[u8], u64); 2] =
            [(dir.no(), b".", BEHIND_DOT), (self.inline_parent(dir), b"..", BEHIND_DOTS)];
        for (ino, name, next) in dots {
            if cookie < next && !sink(DirEntry { ino, kind, name, next }) {
                return Ok(());
            }
        }
        self.each_inline(dir, |entry, next| {
            let ino = InodeNo(u64::from(entry.ino));
            next <= cookie || sink(DirEntry { ino, kind: entry.kind(), name: entry.name, next })
        })
    }
}
