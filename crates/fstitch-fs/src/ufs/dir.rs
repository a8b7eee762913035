//! Names: along the entries.

use fstitch_core::num::to_u64;
use fstitch_core::{BlockKind, BlockNo, DirEntry, Errno, FileKind, InodeNo, Result};
use fstitch_patch::Block;

use super::damaged_inode;
use super::layout::dirent::{CHUNK, Entry, entry, find};
use super::volume::{Inode, Ufs};
use crate::uhfs::NameSlot;

/// Sees what a fragment has of a directory, and at which byte of it that begins; false ends the walk.
type SeeFragment<'s> = dyn FnMut(&[u8], BlockNo, u64) -> Result<bool> + 's;

impl Ufs {
    /// Finds a name.
    pub(super) fn find(&self, dir: &Inode, name: &[u8]) -> Result<Option<NameSlot>> {
        if let Some(found) = self.find_by_index(dir, name)? {
            return Ok(found);
        }
        let (mut slot, mut passed) = (None, 0);
        self.walk_fragments(dir, 0, &mut |bytes, block, _| {
            let found = find(bytes, name, (block, self.manner()), &mut passed)?;
            slot = found.map(|entry| {
                let ino = InodeNo(u64::from(entry.ino));
                NameSlot { ino, kind: entry.kind, block, offset: entry.at }
            });
            Ok(slot.is_none())
        })?;
        self.note_passed(dir, passed);
        Ok(slot)
    }

    /// Lists names from byte `cookie` on.
    pub(super) fn list(
        &self,
        dir: &Inode,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.walk(dir, cookie, &mut |entry, _, next| {
            let ino = InodeNo(u64::from(entry.ino));
            !entry.is_used() || sink(DirEntry { ino, kind: entry.kind, name: entry.name, next })
        })
    }

    /// Whether there is nothing but `.` and `..`.
    pub(super) fn is_empty(&self, dir: &Inode) -> Result<bool> {
        let mut others = false;
        self.walk(dir, 0, &mut |entry, _, _| {
            others |= entry.is_used() && entry.name != b"." && entry.name != b"..";
            !others
        })?;
        Ok(!others)
    }

    /// Shows each entry that begins at byte `from` or behind it, with its block and the byte behind it, until `see` returns false.
    pub(super) fn walk(
        &self,
        dir: &Inode,
        from: u64,
        see: &mut dyn FnMut(Entry<'_>, BlockNo, u64) -> bool,
    ) -> Result<()> {
        self.walk_fragments(dir, from, &mut |bytes, no, start| {
            // Entries begin anew with each chunk.
            let mut at = usize::try_from(from.saturating_sub(start)).unwrap_or(0) / CHUNK * CHUNK;
            while at < bytes.len() {
                let entry = entry(bytes, at, no, self.manner())?;
                at = entry.end;
                let (here, next) = (start + to_u64(entry.at), start + to_u64(entry.end));
                if here >= from && !see(entry, no, next) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// Shows what each fragment has of the directory, from that on which has byte `from`, and at which byte it begins, until `see`
    /// returns false.
    fn walk_fragments(&self, dir: &Inode, from: u64, see: &mut SeeFragment<'_>) -> Result<()> {
        if dir.disk.kind != FileKind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        let (size, fragment) = (dir.disk.size, u64::from(self.sb.fragment_size));
        if !size.is_multiple_of(to_u64(CHUNK)) {
            return Err(damaged_inode(dir.ino, format!("a directory of {size} bytes")));
        }
        for index in from / fragment..self.fragments_of(size) {
            let Some((no, block)) = self.dir_block(dir, index)? else { continue };
            let (bytes, start) = (block.snapshot(), index * fragment);
            let end = usize::try_from((size - start).min(fragment)).unwrap_or(bytes.len());
            if !see(&bytes[..end], no, start)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The directory's fragment `index`; `None` for a hole.
    pub(super) fn dir_block(&self, dir: &Inode, index: u64) -> Result<Option<(BlockNo, Block)>> {
        let Some(no) = self.map_run(dir, index, 1)?.contents() else { return Ok(None) };
        Ok(Some((no, self.cache.read(no, BlockKind::Directory)?)))
    }
}
