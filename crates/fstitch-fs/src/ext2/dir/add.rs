//! Adding names.
//!
//! **Orderings** (arrows read "comes after").
//! - the slot's structure (length, name, kind, the free space behind it) → the last structure change of the block, the
//!   clearing of every entry that the slot is made of, the clearing of the directory's index flag;
//! - a used entry that is cut short → the new entry behind it (same chain);
//! - the inode field → the clearing of the same name elsewhere in the directory, the slot's structure, and `befores`:
//!   the inode's initialisation, its bit, its raised count;
//! - a new directory block's initialisation → the end of the block's earlier life; its pointer → that and its bit; the
//!   directory's length → the pointer.

use std::sync::Arc;

use fstitch_core::{BlockBuf, BlockKind, BlockNo, Caller, Errno, FileKind, InodeNo, Result};
use fstitch_patch::{Block, PatchId, PatchIds};
use smallvec::SmallVec;

use super::room::{Found, Room, find_room};
use super::{DirMemory, Ext2, Inode};
use crate::ext2::layout::dirent::{self, D_REC_LEN, ENTRY_MIN, HEADER, NAME_MAX, entry_size, rec_len_field};
use crate::ext2::layout::feature::incompat;
use crate::ext2::num::{low32, wide};
use crate::uhfs::AttrChange;
use crate::unstable::name_key;

/// A new name.
#[derive(Clone, Copy, Debug)]
pub(in crate::ext2) struct NewName<'a> {
    pub(in crate::ext2) name: &'a [u8],
    pub(in crate::ext2) ino: InodeNo,
    pub(in crate::ext2) kind: FileKind,
}

impl Ext2 {
    /// Makes sure that `name` fits, growing the directory if need be.
    pub(in crate::ext2) fn prepare(&self, caller: &Caller, dir: &mut Inode, name: &[u8]) -> Result<()> {
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        let need = entry_size(name.len());
        if dir.disk.has_inline_data() {
            self.move_out(caller, dir, u64::MAX)?;
        }
        if self.prepare_by_hash(caller, dir, (name, need))? {
            return Ok(());
        }
        if self.sb.features.has_sums() {
            // Where the room is changes with it.
            self.drop_index_flag(dir)?;
        }
        let known = self.dir_memory(dir)?.has_room(need);
        if !known && self.search_room(dir, need)?.is_none() && !self.begin_index(caller, dir, need)? {
            self.grow(caller, dir)?;
        }
        Ok(())
    }

    /// The first block with room for `need` bytes, its position in the directory, and the room.
    fn search_room(&self, dir: &Inode, need: usize) -> Result<Option<(usize, Block, Room)>> {
        let mut memory = self.dir_memory(dir)?;
        while let Some(at) = memory.rooms.first(need) {
            if memory.list()[at] == 0 {
                memory.rooms.set(at, 0);
            } else if let Some((block, room)) = self.room_in(&mut memory, at, need)? {
                return Ok(Some((at, block, room)));
            }
        }
        Ok(None)
    }

    /// Room for `need` bytes in block `at` of the directory, which is no hole. If there is none, what there is is noted.
    pub(super) fn room_in(
        &self,
        memory: &mut DirMemory,
        at: usize,
        need: usize,
    ) -> Result<Option<(Block, Room)>> {
        let block = self.dir_block(memory.owner, memory.list()[at])?;
        let bytes = block.snapshot();
        if let Some(Found { room, .. }) = memory.last.get(at)
            && room.len() >= need
            && room.stands(self.entries(&bytes, block.no()).from(room.entry()).slots())
        {
            return Ok(Some((block, room.clone())));
        }
        let mut slots = self.entries(&bytes, block.no()).slots();
        let found = find_room(&mut slots, need, at == 0);
        slots.intact()?;
        match found {
            Ok(found) => {
                let room = found.room.clone();
                memory.last.put(at, found);
                Ok(Some((block, room)))
            }
            Err(largest) => {
                memory.rooms.set(at, largest);
                Ok(None)
            }
        }
    }

    /// Adds an empty block to the directory.
    fn grow(&self, caller: &Caller, dir: &mut Inode) -> Result<()> {
        let at = dir.dir_blocks(self);
        let size = (at + 1) * u64::from(self.sb.block_size);
        self.expect_dir_size(size)?;
        let stale = self.map_run(dir, at, 1)?;
        if stale.start.is_some() {
            // A crash between pointer and length has left a block beyond the end.
            self.detach_range(dir, at, u64::MAX, &[])?;
        }
        self.blocks_by_quota(caller, dir, 1)?;
        let allocation = self.allocate_run(caller, dir, at, 1)?;
        let block = match self.cache.fresh_owned(allocation.start, BlockKind::Directory, dir.owner()) {
            Ok(block) => block,
            Err(error) => {
                self.give_back_allocation(dir, allocation);
                return Err(error);
            }
        };
        let mut contents = BlockBuf::zeroed(self.block_size());
        dirent::put_empty_leaf(&mut contents, self.sb.features.has_sums());
        // The block's contents after the end of its earlier life.
        let init = self.cache.lock().init(&block, Arc::new(contents), &allocation.reuse);
        // The pointer after the one before it, so that a crash leaves no hole, not even beyond the length.
        let mut befores = PatchIds::from_slice(&[init]);
        if let Some(&previous) = self.dir_memory(dir)?.list().last() {
            match dir.attached.covering(previous) {
                Some((_, pointer)) => befores.push(pointer),
                // Forgotten: the length that follows the pointer does as well, it only takes longer.
                None => befores.extend(self.memory.links(previous)),
            }
        }
        let mut links = self.attach_run(dir, allocation, &befores)?;
        // The length after the pointers: whoever comes after it comes after them.
        let change = AttrChange { size: Some(size), ..AttrChange::default() };
        let sized = self.change_attr(dir, &change, &links)?;
        if !sized.is_empty() {
            links = sized;
        }
        let no = block.no().get();
        self.memory.set_links(no, links, &self.cache);
        let mut memory = self.dir_memory(dir)?;
        memory.rooms.push();
        if let Some(blocks) = &mut memory.blocks {
            blocks.push(no);
        }
        debug_assert_eq!(wide(memory.list().len()), at + 1, "every block of a directory is listed");
        Ok(())
    }

    /// Fails if no directory can be so large.
    pub(super) fn expect_dir_size(&self, size: u64) -> Result<()> {
        // Positions in a directory have 32 bits, in units of four bytes.
        let most =
            if self.sb.features.has_incompat(incompat::LARGE_DIR) { 4 } else { 1 } * u64::from(u32::MAX);
        if size > most { Err(Errno::NOSPC.into()) } else { Ok(()) }
    }

    /// Adds a name for which there is room, after `befores`. Returns what makes it reachable.
    pub(in crate::ext2) fn add(
        &self,
        dir: &mut Inode,
        new: NewName<'_>,
        befores: &[PatchId],
    ) -> Result<PatchIds> {
        self.watch.inode(low32(new.ino.get()));
        let need = entry_size(new.name.len());
        let (unindexed, found) = if self.keeps_index_of(dir)? {
            (PatchId::NONE, self.room_by_hash(dir, (new.name, need))?)
        } else {
            (self.drop_index_flag(dir)?, self.search_room(dir, need)?)
        };
        let (at, block, room) = found.ok_or(Errno::NOSPC)?;
        let mut chain = PatchIds::from_slice(&[unindexed]);
        let vanished = {
            let mut names = self.memory.names();
            chain.extend(names.structure.get(&block.no()).copied());
            for &part in room.parts() {
                chain.extend(names.cleared.get(&(block.no(), part)).copied());
                names.created.remove(&(block.no(), part));
            }
            names.vanished.get(&name_key(dir.ino, new.name)).copied()
        };
        let entry = Entry::new(&room, &new, self.sb.has_filetype());
        let mut tx = self.cache.lock();
        let mut structure = tx.bytes(&block, entry.from, &entry.bytes, &chain);
        if let Room::Behind { entry: shortened, offset, .. } = room {
            let length = rec_len_field(offset - shortened).to_le_bytes();
            let mut after = chain.clone();
            after.push(structure);
            structure = tx.bytes(&block, shortened + D_REC_LEN.offset(), &length, &after);
        }
        let mut after = PatchIds::from_slice(befores);
        after.push(structure);
        after.extend(vanished);
        let named = tx.bytes(&block, entry.offset, &low32(new.ino.get()).to_le_bytes(), &after);
        dir.gather(&mut tx, named);
        drop(tx);
        {
            let mut names = self.memory.names();
            names.structure.insert(block.no(), structure, &self.cache);
            names.created.insert((block.no(), entry.offset), named, &self.cache);
        }
        self.remember(dir);
        let position = self.dir_position(at, entry.offset);
        let mut memory = self.dir_memory(dir)?;
        memory.take_room(at, entry.rest);
        if let Some(index) = &mut memory.index {
            index.insert(new.name, position);
        }
        drop(memory);
        let mut reachable = self.memory.links(block.no().get());
        reachable.push(named);
        Ok(reachable)
    }
}

/// The bytes of a new entry without its inode field.
struct Entry {
    /// Where the entry starts.
    offset: usize,
    /// Where the bytes start.
    from: usize,
    bytes: SmallVec<[u8; 64]>,
    /// The room that is left behind it.
    rest: Option<Room>,
}

impl Entry {
    fn new(room: &Room, new: &NewName<'_>, filetype: bool) -> Self {
        let need = entry_size(new.name.len());
        let rest = room.len() - need;
        let splits = rest >= ENTRY_MIN;
        let rec_len = if splits { need } else { room.len() };
        let mut bytes = SmallVec::from_elem(0, if splits { need + HEADER } else { need });
        dirent::put_entry(&mut bytes, 0, rec_len, new.name, filetype.then_some(new.kind));
        if splits {
            dirent::put_entry(&mut bytes[need..], 0, rest, b"", None);
        }
        let offset = room.offset();
        let after = offset + need;
        let parts = SmallVec::from_slice(&[after]);
        let rest = splits.then_some(Room::Free { offset: after, len: rest, parts });
        let from = match room {
            // The inode field is 0 already and has patches of its own.
            Room::Free { .. } => {
                bytes.drain(..D_REC_LEN.offset());
                offset + D_REC_LEN.offset()
            }
            Room::Behind { .. } => offset,
        };
        Self { offset, from, bytes, rest }
    }
}

/// The block that a slot is in, for those who know only its number.
pub(super) fn slot_block(block: BlockNo) -> u64 {
    block.get()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ext2::layout::dirent::{put_entry, put_first_block};

    #[test]
    fn a_new_entry_leaves_free_space_behind_it() {
        let mut block = vec![0; 1024];
        put_first_block(&mut block, 12, 2, true);
        let room = Room::Free { offset: 24, len: 1000, parts: SmallVec::from_slice(&[24]) };
        let new = NewName { name: b"hello", ino: InodeNo(20), kind: FileKind::Fifo };
        let entry = Entry::new(&room, &new, true);
        assert_eq!((entry.offset, entry.from, entry.bytes.len()), (24, 28, 20));
        block[entry.from..entry.from + entry.bytes.len()].copy_from_slice(&entry.bytes);
        let mut expected = vec![0; 1024];
        put_first_block(&mut expected, 12, 2, true);
        put_entry(&mut expected[24..], 0, 16, b"hello", Some(FileKind::Fifo));
        put_entry(&mut expected[40..], 0, 984, b"", None);
        assert_eq!(block, expected);
    }
}
