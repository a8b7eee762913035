//! Finding and listing names.

use std::sync::{Arc, MutexGuard};

use fstitch_core::{BlockNo, DirEntry, InodeNo, Result};
use smallvec::SmallVec;

use super::{DirMemory, Ext2, Inode};
use crate::ext2::layout::dirent::{EntryView, NAME_MAX};
use crate::ext2::num::{idx64, small};
use crate::uhfs::NameSlot;

/// Directories longer than this get an index.
const INDEX_FROM: u64 = 8192;

fn slot(entry: &EntryView<'_>, block: BlockNo) -> NameSlot {
    NameSlot { ino: InodeNo(u64::from(entry.ino)), kind: entry.kind(), block, offset: entry.offset }
}

impl Ext2 {
    /// The directory's memory, with its blocks known.
    pub(super) fn dir_memory<'d>(&self, dir: &'d Inode) -> Result<MutexGuard<'d, DirMemory>> {
        let mut memory = dir.dir.get_or_init(Arc::default).lock().expect("no panic while held");
        self.load_dir(dir, &mut memory)?;
        Ok(memory)
    }

    /// Finds a name.
    pub(in crate::ext2) fn find(&self, dir: &Inode, name: &[u8]) -> Result<Option<NameSlot>> {
        let mut memory = self.dir_memory(dir)?;
        if name.is_empty() || name.len() > NAME_MAX {
            return Ok(None);
        }
        let dots = name == b"." || name == b"..";
        if !dots && dir.disk.size > INDEX_FROM && self.ensure_index(dir, &mut memory)? {
            return self.find_indexed(&mut memory, name);
        }
        for at in 0..memory.list().len() {
            let Some((block, bytes)) = self.dir_bytes(&memory, at)? else { continue };
            if let Some(found) = self.entries(&bytes, block).find(name)? {
                memory.note_found(at);
                let entry = self.entries(&bytes, block).from(found.offset).next().transpose()?;
                return Ok(entry.map(|entry| slot(&entry, block)));
            }
        }
        Ok(None)
    }

    fn find_indexed(&self, memory: &mut DirMemory, name: &[u8]) -> Result<Option<NameSlot>> {
        let Some(index) = &memory.index else { return Ok(None) };
        let candidates: SmallVec<[u32; 1]> = index.candidates(name).collect();
        for position in candidates {
            let offset = u64::from(position) * 4;
            let at = idx64(offset / u64::from(self.sb.block_size));
            let Some((block, bytes)) = self.dir_bytes(memory, at)? else { continue };
            let inside = idx64(offset % u64::from(self.sb.block_size));
            let entry = self.entries(&bytes, block).from(inside).next().transpose()?;
            if let Some(entry) = entry.filter(|entry| entry.ino != 0 && entry.name == name) {
                memory.note_found(at);
                return Ok(Some(slot(&entry, block)));
            }
        }
        Ok(None)
    }

    /// Makes sure there is an index; false if it would take too much memory.
    fn ensure_index(&self, dir: &Inode, memory: &mut DirMemory) -> Result<bool> {
        if memory.index.is_some() || memory.too_large {
            return Ok(memory.index.is_some());
        }
        let mut index = self.memory.indexes.start(&self.cache);
        let mut names = 0;
        for at in 0..memory.list().len() {
            let Some((block, bytes)) = self.dir_bytes(memory, at)? else { continue };
            for entry in self.entries(&bytes, block) {
                let entry = entry?;
                if entry.ino != 0 {
                    index.insert(entry.name, self.dir_position(at, entry.offset));
                    names += 1;
                }
            }
            if names > self.memory.indexes.names_max() {
                memory.too_large = true;
                return Ok(false);
            }
        }
        memory.index = Some(index);
        self.memory.indexes.admit(dir.dir.get_or_init(Arc::default));
        Ok(true)
    }

    /// A position as the index keeps it.
    pub(super) fn dir_position(&self, at: usize, offset: usize) -> u32 {
        small(idx64(self.dir_offset(at, offset) / 4))
    }

    /// Lists entries from byte `cookie` on until `sink` returns false. A cookie inside what is one entry by now
    /// continues with the next one.
    pub(in crate::ext2) fn list(
        &self,
        dir: &Inode,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let block_size = u64::from(self.sb.block_size);
        let list: Arc<[u32]> = self.dir_memory(dir)?.list().into();
        let first = idx64((cookie / block_size).min(dir.dir_blocks(self)));
        for (at, &no) in list.iter().enumerate().skip(first) {
            if no == 0 {
                continue;
            }
            let block = BlockNo(u64::from(no));
            let bytes = self.dir_block(no)?.snapshot();
            for entry in self.entries(&bytes, block) {
                let entry = entry?;
                if entry.ino == 0 || self.dir_offset(at, entry.offset) < cookie {
                    continue;
                }
                let next = self.dir_offset(at, entry.end());
                let listed = DirEntry {
                    ino: InodeNo(u64::from(entry.ino)),
                    kind: entry.kind(),
                    name: entry.name,
                    next,
                };
                if !sink(listed) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Whether there is no name but `.` and `..`.
    pub(in crate::ext2) fn is_empty(&self, dir: &Inode) -> Result<bool> {
        let mut empty = true;
        self.list(dir, 0, &mut |entry| {
            empty = entry.name == b"." || entry.name == b"..";
            empty
        })?;
        Ok(empty)
    }
}
