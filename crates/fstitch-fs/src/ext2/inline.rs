//! What lies in inodes: the contents of small files and directories, and values of attributes that have an inode of their own.
//!
//! **Layout.** With the feature `inline_data` the first 60 bytes of a file's contents are in the place of its map, the rest is the
//! value of an attribute that no namespace shows. A directory has the number of its parent in the first four of these bytes, then
//! a chain of entries to their end, and another one in the value; `.` and `..` have none. With `ea_inode` an attribute's value may be
//! the contents of an inode without a name.
//!
//! **States.** Nothing comes to lie in an inode here: contents that do are *moved out* when they change (`moved.rs`). A name of a
//! directory is taken away, and made to stand for another inode, where it lies: like in a block, its inode field is a patch of its own.
//!
//! **Invariants.** A name's place in a listing is the same before and after its directory is moved out.

use std::ops::Range;

use fstitch_core::{BlockKind, DirEntry, FileKind, InodeNo, Le, Result};
use fstitch_patch::PatchId;

use super::inode::Inode;
use super::layout::dirent::{self, EntryView, NAME_MAX};
use super::layout::inode::{FAST_SYMLINK, I_BLOCK, pointer_bytes, pointer_field, words};
use super::layout::xattr::{Elsewhere, INDEX_SYSTEM, XattrSet};
use super::num::{idx, idx64, low32, wide};
use super::volume::Ext2;
use crate::uhfs::NameSlot;

/// The name of the attribute with the rest of the contents.
pub(super) const DATA: &[u8] = b"data";
/// Bytes before the entries: the parent's number.
pub(super) const PARENT: usize = 4;
/// Where the listing goes on behind `.`, and behind `..`: as in the block that the directory would have.
const BEHIND_DOT: u64 = 12;
/// Where the entries begin there.
const LISTED: u64 = 24;
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
        let value = self.load_value(of, at.inode)?;
        if at.size > VALUE_MAX || u64::from(at.size) > value.disk.size {
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

    /// Where the contents of an inode lie among its bytes: in the place of its map, and in the attribute's value.
    fn inline_ranges(&self, inode: &Inode, raw: &[u8]) -> Result<[Range<usize>; 2]> {
        let map = I_BLOCK.offset()..I_BLOCK.offset() + FAST_SYMLINK;
        let body = self.body_range(inode);
        XattrSet::parse_body(&raw[body.clone()], inode.at.0)?;
        let value = XattrSet::place_in_body(&raw[body.clone()], INDEX_SYSTEM, DATA).unwrap_or(0..0);
        Ok([map, body.start + value.start..body.start + value.end])
    }

    /// Calls `each` for each name in a directory that lies in its inode, with its place in the inode and where the listing goes on
    /// behind it; until it returns false.
    fn each_inline(
        &self,
        dir: &Inode,
        mut each: impl FnMut(&EntryView<'_>, (usize, u64)) -> bool,
    ) -> Result<()> {
        let bytes = self.inode_block(dir)?.snapshot();
        let raw = &bytes[dir.at.1..dir.at.1 + usize::from(self.sb.inode_size)];
        let [map, value] = self.inline_ranges(dir, raw)?;
        let mut first = LISTED;
        for part in [map.start + PARENT..map.end, value] {
            for entry in dirent::inline_entries(&raw[part.clone()], dir.at.0, &self.sb) {
                let entry = entry?;
                let place = (part.start + entry.offset, first + wide(entry.end()));
                if entry.ino != 0 && !each(&entry, place) {
                    return Ok(());
                }
            }
            first += wide(part.len());
        }
        Ok(())
    }

    /// Visits all names in such a directory, `.` and `..` included: the inode, its kind, the name.
    pub(super) fn visit_inline(
        &self,
        dir: &Inode,
        mut visit: impl FnMut(u32, Option<FileKind>, &[u8]),
    ) -> Result<()> {
        visit(dir.ino, Some(FileKind::Directory), b".");
        visit(low32(self.inline_parent(dir).get()), Some(FileKind::Directory), b"..");
        self.each_inline(dir, |entry, _| {
            visit(entry.ino, entry.kind(), entry.name);
            true
        })
    }

    /// What is known of names in the attribute's value goes with it, where another attribute has moved it: the body was these bytes, and
    /// is those.
    pub(super) fn carry_names(&self, dir: &Inode, (before, after): (&[u8], &[u8])) {
        let place = |body| XattrSet::place_in_body(body, INDEX_SYSTEM, DATA);
        let (Some(from), Some(to)) = (place(before), place(after)) else { return };
        if from.start == to.start || dir.disk.kind != FileKind::Directory {
            return;
        }
        let body = dir.at.1 + self.body_range(dir).start;
        let mut names = self.memory.names();
        let (mut created, mut exchanged) = (Vec::new(), Vec::new());
        for at in 0..from.len() {
            let (old, new) = ((dir.at.0, body + from.start + at), (dir.at.0, body + to.start + at));
            created.extend(names.created.remove(&old).map(|patch| (new, patch)));
            exchanged.extend(names.exchanged.remove(&old).map(|patch| (new, patch)));
        }
        for (place, patch) in created {
            names.created.insert(place, patch, &self.cache);
        }
        for (place, patch) in exchanged {
            names.exchanged.insert(place, patch, &self.cache);
        }
    }

    pub(super) fn inline_parent(&self, dir: &Inode) -> InodeNo {
        InodeNo(u64::from(Le::u32(&pointer_bytes(&dir.disk.block), 0)))
    }

    /// Finds a name in such a directory.
    pub(super) fn find_inline(&self, dir: &Inode, name: &[u8]) -> Result<Option<NameSlot>> {
        let slot = |ino, kind, place| NameSlot { ino, kind, block: dir.at.0, offset: dir.at.1 + place };
        let directory = Some(FileKind::Directory);
        match name {
            b"." => return Ok(Some(slot(dir.no(), directory, 0))),
            b".." => return Ok(Some(slot(self.inline_parent(dir), directory, I_BLOCK.offset()))),
            _ if name.is_empty() || name.len() > NAME_MAX => return Ok(None),
            _ => {}
        }
        let mut found = None;
        self.each_inline(dir, |entry, (place, _)| {
            if entry.name == name {
                found = Some(slot(InodeNo(u64::from(entry.ino)), entry.kind(), place));
            }
            found.is_none()
        })?;
        Ok(found)
    }

    /// The name of the entry in `slot` of such a directory, if it is there.
    pub(super) fn inline_name(&self, dir: &Inode, slot: &NameSlot) -> Result<Option<Vec<u8>>> {
        let mut found = None;
        self.each_inline(dir, |entry, (place, _)| {
            let is_it = dir.at.1 + place == slot.offset && u64::from(entry.ino) == slot.ino.get();
            found = is_it.then(|| entry.name.to_vec());
            !is_it
        })?;
        Ok(found.filter(|_| slot.block == dir.at.0))
    }

    /// Bytes of the inode in the place of its map have changed.
    pub(super) fn note_inline_change(dir: &mut Inode, block: &[u8]) {
        let at = dir.at.1 + I_BLOCK.offset();
        let bytes = block[at..at + FAST_SYMLINK].try_into().expect("as many bytes as a map has");
        dir.disk.block = words(bytes);
    }

    /// Makes such a directory's `..` name another one, after `befores`.
    pub(super) fn replace_inline_parent(
        &self,
        dir: &mut Inode,
        parent: InodeNo,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        self.watch.inode(low32(self.inline_parent(dir).get()));
        self.watch.inode(low32(parent.get()));
        let block = self.inode_block(dir)?;
        let mut tx = self.cache.lock();
        let patch = dir.put(&mut tx, &block, (pointer_field(0), low32(parent.get())), befores);
        Self::note_inline_change(dir, tx.data(&block));
        drop(tx);
        self.remember(dir);
        Ok(patch)
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
            [(dir.no(), b".", BEHIND_DOT), (self.inline_parent(dir), b"..", LISTED)];
        for (ino, name, next) in dots {
            if cookie < next && !sink(DirEntry { ino, kind, name, next }) {
                return Ok(());
            }
        }
        self.each_inline(dir, |entry, (_, next)| {
            let ino = InodeNo(u64::from(entry.ino));
            next <= cookie || sink(DirEntry { ino, kind: entry.kind(), name: entry.name, next })
        })
    }
}
