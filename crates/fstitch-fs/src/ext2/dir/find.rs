//! Finding and listing names.

use std::sync::Arc;

use fstitch_core::lock::MutexGuard;
use fstitch_core::{BlockNo, DirEntry, Error, FileKind, InodeNo, Result};
use smallvec::SmallVec;

use super::tree::damaged;
use super::{DirMemory, Ext2, Inode};
use crate::ext2::layout::dirent::{EntryView, NAME_MAX};
use crate::ext2::num::{idx64, small};
use crate::uhfs::NameSlot;

/// Bytes of an entry with a name of a usual length.
const ENTRY_USUAL: usize = 24;

pub(super) fn slot(entry: &EntryView<'_>, block: BlockNo) -> NameSlot {
    NameSlot { ino: InodeNo(u64::from(entry.ino)), kind: entry.kind(), block, offset: entry.offset }
}

impl Ext2 {
    /// The directory's memory, with its blocks known.
    pub(super) fn dir_memory<'d>(&self, dir: &'d Inode) -> Result<MutexGuard<'d, DirMemory>> {
        let mut memory = dir.dir.get_or_init(Arc::default).lock();
        self.load_dir(dir, &mut memory)?;
        Ok(memory)
    }

    /// Finds a name.
    pub(in crate::ext2) fn find(&self, dir: &Inode, name: &[u8]) -> Result<Option<NameSlot>> {
        if dir.disk.has_inline_data() && dir.disk.kind == FileKind::Directory {
            return self.find_inline(dir, name);
        }
        let mut memory = self.dir_memory(dir)?;
        if name.is_empty() || name.len() > NAME_MAX {
            return Ok(None);
        }
        let dots = name == b"." || name == b"..";
        if !dots && self.pays_index(dir, &memory) && self.has_index(dir, &mut memory)? {
            return self.find_indexed(&mut memory, name);
        }
        if !dots && let Some(found) = self.find_in_tree(dir, &mut memory, name)? {
            return Ok(found);
        }
        let mut passed = 0;
        let found = self.find_along(&mut memory, name, &mut passed);
        memory.note_passed(passed);
        found
    }

    /// Whether an index in memory pays, which takes a walk along all entries: there is one, or as many were passed as a directory of
    /// some size has, or where names are found by a tree, this one.
    fn pays_index(&self, dir: &Inode, memory: &DirMemory) -> bool {
        if memory.index.is_some() {
            return true;
        }
        let all = if self.has_tree(dir, memory) {
            memory.list().len() * self.block_size() / ENTRY_USUAL
        } else {
            0
        };
        memory.passed.pays(all)
    }

    /// Finds a name by a walk along the entries, of which it passes so many.
    fn find_along(
        &self,
        memory: &mut DirMemory,
        name: &[u8],
        passed: &mut usize,
    ) -> Result<Option<NameSlot>> {
        for at in 0..memory.list().len() {
            let Some((block, bytes)) = self.dir_bytes(memory, at)? else { continue };
            if let Some(found) = self.entries(&bytes, block).find(name, passed)? {
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

    /// Makes sure there is an index; false if there cannot be one. Damage hides no name that a walk would come to before it.
    fn has_index(&self, dir: &Inode, memory: &mut DirMemory) -> Result<bool> {
        match self.ensure_index(dir, memory) {
            Err(Error::Corrupt(_)) => {
                memory.no_index = true;
                Ok(false)
            }
            made => made,
        }
    }

    /// Makes sure there is an index; false if it would take too much memory.
    fn ensure_index(&self, dir: &Inode, memory: &mut DirMemory) -> Result<bool> {
        if memory.index.is_some() || memory.no_index {
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
                memory.no_index = true;
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

    /// Lists entries from `cookie` on until `sink` returns false: in the order of their hashes where names move from leaf to leaf
    /// (`order.rs`), else from that byte on. A byte inside what is one entry by now continues with the next one.
    pub(in crate::ext2) fn list(
        &self,
        dir: &Inode,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if dir.disk.has_inline_data() && dir.disk.kind == FileKind::Directory {
            return match self.inline_hasher() {
                Some(hasher) => self.list_inline_by_hash(dir, &hasher, (cookie, sink)),
                None => self.list_inline(dir, cookie, sink),
            };
        }
        if self.lists_by_hash(dir)? {
            return self.list_by_hash(dir, cookie, sink);
        }
        if cookie > dir.disk.size && self.dir_memory(dir)?.bad_tree {
            // A place in the order that the names had until the index was found to be damaged.
            return Err(damaged(
                None,
                "the rest of the directory cannot be listed in the order of its names",
            ));
        }
        self.list_along(dir, cookie, sink)
    }

    /// Lists entries as they lie in the directory.
    fn list_along(&self, dir: &Inode, cookie: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let block_size = u64::from(self.sb.block_size);
        let owner = dir.owner();
        let list: Arc<[u64]> = self.dir_memory(dir)?.list().into();
        let first = idx64((cookie / block_size).min(dir.dir_blocks(self)));
        for (at, &no) in list.iter().enumerate().skip(first) {
            if no == 0 {
                continue;
            }
            let block = BlockNo(no);
            let bytes = self.dir_block(owner, no)?.snapshot();
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
        let mut look = |entry: DirEntry<'_>| {
            empty = entry.name == b"." || entry.name == b"..";
            empty
        };
        if dir.disk.has_inline_data() && dir.disk.kind == FileKind::Directory {
            self.list_inline(dir, 0, &mut look)?;
        } else {
            self.list_along(dir, 0, &mut look)?;
        }
        Ok(empty)
    }
}

impl DirMemory {
    /// So many entries were passed in search of a name.
    pub(super) fn note_passed(&mut self, passed: usize) {
        self.passed.note(passed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ext2::mkfs::{MkfsOptions, mkfs};
    use crate::uhfs::{Uhfs, UhfsOptions};
    use fstitch_core::{Caller, FileSystem, ManualClock, MemDevice, Timestamp};
    use fstitch_patch::{Cache, CacheOptions};

    /// A volume with so many files in its root, one of them with a name that cannot be.
    fn damaged(files: usize, name: &[u8]) -> Ext2 {
        let volume = volume(files);
        let dir = volume.load_inode(volume.root_ino()).unwrap();
        let slot = volume.find(&dir, name).unwrap().unwrap();
        let block = volume.cache.read(slot.block, fstitch_core::BlockKind::Directory).unwrap();
        // Behind the header of 8 bytes.
        volume.cache.lock().bytes(&block, slot.offset + 8, b"/", &[]);
        volume
    }

    /// The root of a volume with so many files in it.
    fn volume(files: usize) -> Ext2 {
        let device = Arc::new(MemDevice::new(4096, 1024));
        let options = MkfsOptions {
            block_size: Some(4096),
            ..MkfsOptions::new([7; 16], [9; 16], Timestamp::default())
        };
        mkfs(&*device, &options, &mut |_, _| {}).unwrap();
        let cache = Cache::new(device, CacheOptions::default(), Arc::new(ManualClock::new()));
        let fs = Uhfs::new(Ext2::open(Arc::clone(&cache)).unwrap(), UhfsOptions::default());
        let make = |no| fs.mknod(&Caller::default(), fs.root(), &name(no), 0o100_644, 0).map(drop);
        (0..files).try_for_each(make).unwrap();
        fs.unmount().unwrap();
        Ext2::open(cache).unwrap()
    }

    fn name(no: usize) -> Vec<u8> {
        format!("name {no}").into_bytes()
    }

    #[test]
    fn a_directory_gets_an_index_when_much_was_passed_in_search_of_names() {
        for (files, searches, gets_one) in [(100, 3, false), (100, 40, true), (15, 1_000, false)] {
            let volume = volume(files);
            let dir = volume.load_inode(volume.root_ino()).unwrap();
            for no in 0..searches {
                let found = volume.find(&dir, &name(no % files)).unwrap();
                assert!(found.is_some(), "{no} of {files}");
                assert!(volume.find(&dir, &name(files + no)).unwrap().is_none());
            }
            let has_one = dir.dir.get().unwrap().lock().index.is_some();
            assert_eq!(has_one, gets_one, "{searches} searches among {files}");
        }
    }

    #[test]
    fn damage_hides_no_name_before_it() {
        let volume = damaged(100, &name(90));
        let dir = volume.load_inode(volume.root_ino()).unwrap();
        for no in (0..1_000).map(|no| no % 80) {
            assert!(volume.find(&dir, &name(no)).unwrap().is_some(), "{no}");
        }
        let memory = dir.dir.get().unwrap().lock();
        assert!(memory.passed.pays(0) && memory.index.is_none());
    }
}
