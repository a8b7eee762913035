//! Clearing and replacing names.
//!
//! **Orderings** (arrows read "comes after").
//! - the clearing of an inode field → `befores` (for a rename: the new name). Nothing else changes: the slot keeps its
//!   length and becomes free space, so no length of a neighbour is touched;
//! - the same name made again, in whatever slot → that patch (unless the medium never held the name);
//! - an entry names another inode: its inode field alone (4 bytes) → `befores`; where the kind changes too, the entry's
//!   whole header (8 bytes) in one patch → `befores` and the last structure change of the block;
//! - the old inode may lose a link → that patch; or → nothing, if the patch that made the entry name it and this one
//!   are one unflown patch: the medium never held the name. An exchange does not count as making a name: until it is
//!   on the medium, the inode has its other name there;
//! - any of these in a directory that was moved out of its inode → the change of the inode that says so: until it is on the medium,
//!   the names in the inode are what counts there.

use fstitch_core::{Errno, Error, FileKind, InodeNo, Result, Structure};
use fstitch_patch::{Block, PatchId};

use super::add::slot_block;
use super::{Ext2, Inode};
use crate::ext2::layout::dirent::{D_FILE_TYPE, D_INODE, HEADER, code_of};
use crate::ext2::num::low32;
use crate::uhfs::{ClearedName, FreedName, NameSlot};
use crate::unstable::name_key;

impl Ext2 {
    /// The block of a slot, in which the entry was checked to be what the caller has found.
    fn open_slot(&self, dir: &Inode, slot: &NameSlot) -> Result<Block> {
        if dir.disk.has_inline_data() {
            self.inline_name(dir, slot)?.ok_or_else(|| dir.damaged("a name changed while it was in use"))?;
            return self.inode_block(dir);
        }
        let block = self.dir_block(dir.owner(), slot_block(slot.block))?;
        let bytes = block.snapshot();
        let entry = self.entries(&bytes, slot.block).from(slot.offset.min(bytes.len())).next().transpose()?;
        match entry {
            Some(entry) if u64::from(entry.ino) == slot.ino.get() && entry.ino != 0 => Ok(block),
            _ => Err(Error::corrupt(
                Structure::DirectoryEntry(None),
                slot.block,
                "changed while it was in use",
            )),
        }
    }

    /// Clears an entry after `befores`.
    pub(in crate::ext2) fn clear(
        &self,
        dir: &mut Inode,
        slot: &NameSlot,
        befores: &[PatchId],
    ) -> Result<ClearedName> {
        self.watch.inode(low32(slot.ino.get()));
        let block = self.open_slot(dir, slot)?;
        let key = self.forget_name(dir, slot, &block)?;
        let place = (slot.block, slot.offset);
        let created = {
            let mut names = self.memory.names();
            names.created.remove(&place).filter(|_| names.exchanged.remove(&place).is_none())
        };
        let mut tx = self.cache.lock();
        let patch = tx.bytes(&block, slot.offset + D_INODE.offset(), &[0; 4], &dir.with_move(befores));
        dir.gather(&mut tx, patch);
        if dir.disk.has_inline_data() {
            Self::note_inline_change(dir, tx.data(&block));
        }
        let freed = self.freed(&tx, created, patch);
        // Then the next name of the slot need not come after this one.
        let never_was = matches!(freed, FreedName::NeverExisted) && tx.hollow(patch);
        drop(tx);
        {
            let mut names = self.memory.names();
            // What never belonged to the inode may still have taken another one's place on the medium.
            if !never_was {
                names.cleared.insert(place, patch, &self.cache);
                names.vanished.insert(key, patch, &self.cache);
            }
        }
        self.remember(dir);
        Ok(ClearedName { patch, freed })
    }

    fn freed(&self, tx: &fstitch_patch::Tx<'_>, created: Option<PatchId>, patch: PatchId) -> FreedName {
        let never =
            self.cache.optimizations().elimination && created.is_some_and(|made| tx.same(made, patch));
        if never { FreedName::NeverExisted } else { FreedName::After(patch) }
    }

    /// Takes a name out of the index and notes the room that it leaves. Returns what the name is remembered by.
    fn forget_name(&self, dir: &Inode, slot: &NameSlot, block: &Block) -> Result<(u32, u64)> {
        if dir.disk.has_inline_data() {
            let name = self.inline_name(dir, slot)?;
            return Ok(name_key(dir.ino, &name.unwrap_or_default()));
        }
        let mut memory = self.dir_memory(dir)?;
        let Some(at) = memory.position(slot.block) else {
            return Err(Error::corrupt(
                Structure::DirectoryEntry(None),
                slot.block,
                "in a block of another directory",
            ));
        };
        let position = self.dir_position(at, slot.offset);
        let bytes = block.snapshot();
        let entry = self.entries(&bytes, slot.block).from(slot.offset).next().transpose()?;
        let (name, len) = entry.map(|entry| (entry.name, entry.rec_len)).unwrap_or_default();
        memory.note_cleared(at, slot.offset, len);
        if let Some(index) = &mut memory.index {
            index.remove(name, position);
        }
        Ok(name_key(dir.ino, name))
    }

    /// Makes an entry name another inode, after `befores`.
    pub(in crate::ext2) fn replace(
        &self,
        dir: &mut Inode,
        slot: &NameSlot,
        (ino, kind): (InodeNo, FileKind),
        befores: &[PatchId],
    ) -> Result<ClearedName> {
        self.watch.inode(low32(slot.ino.get()));
        self.watch.inode(low32(ino.get()));
        let block = self.open_slot(dir, slot)?;
        let place = (slot.block, slot.offset);
        let (created, structure) = {
            let mut names = self.memory.names();
            let exchanged = names.exchanged.remove(&place).is_some();
            let created = names.created.get(&place).copied().filter(|_| !exchanged);
            (created, names.structure.get(&slot.block).copied())
        };
        let mut befores = dir.with_move(befores);
        let mut tx = self.cache.lock();
        let mut header = tx.data(&block)[slot.offset..slot.offset + HEADER].to_vec();
        let new_kind = self.sb.has_filetype() && D_FILE_TYPE.get(&header) != code_of(kind);
        D_INODE.put(&mut header, low32(ino.get()));
        if new_kind {
            // Length and kind lie in one word with the name's length: the header is one patch of the structure.
            D_FILE_TYPE.put(&mut header, code_of(kind));
            befores.extend(structure);
        } else {
            header.truncate(D_INODE.end());
        }
        let patch = tx.bytes(&block, slot.offset, &header, &befores);
        dir.gather(&mut tx, patch);
        if dir.disk.has_inline_data() {
            Self::note_inline_change(dir, tx.data(&block));
        }
        let freed = self.freed(&tx, created, patch);
        drop(tx);
        {
            let mut names = self.memory.names();
            names.created.insert(place, patch, &self.cache);
            if new_kind {
                names.structure.insert(slot.block, patch, &self.cache);
            }
        }
        self.remember(dir);
        Ok(ClearedName { patch, freed })
    }

    /// Swaps what two entries of one block name, in one patch over everything between them.
    pub(in crate::ext2) fn exchange(
        &self,
        dir: &mut Inode,
        (first, second): (&NameSlot, &NameSlot),
        befores: &[PatchId],
    ) -> Result<PatchId> {
        if first.block != second.block || first.offset == second.offset {
            return Err(Errno::INVAL.into());
        }
        self.watch.inode(low32(first.ino.get()));
        self.watch.inode(low32(second.ino.get()));
        let block = self.open_slot(dir, first)?;
        self.open_slot(dir, second)?;
        let (low, high) = (first.offset.min(second.offset), first.offset.max(second.offset));
        let mut befores = dir.with_move(befores);
        befores.extend(self.memory.names().structure.get(&first.block).copied());
        let mut tx = self.cache.lock();
        let mut bytes = tx.data(&block)[low..high + HEADER].to_vec();
        let far = high - low;
        for field in [D_INODE.offset()..D_INODE.end(), D_FILE_TYPE.offset()..D_FILE_TYPE.end()] {
            for at in field {
                bytes.swap(at, far + at);
            }
        }
        // The patch covers the lengths between the entries: it is part of the chain of structure changes.
        let patch = tx.bytes(&block, low, &bytes, &befores);
        dir.gather(&mut tx, patch);
        if dir.disk.has_inline_data() {
            Self::note_inline_change(dir, tx.data(&block));
        }
        drop(tx);
        {
            let mut names = self.memory.names();
            names.structure.insert(first.block, patch, &self.cache);
            for slot in [first, second] {
                names.created.insert((slot.block, slot.offset), patch, &self.cache);
                names.exchanged.insert((slot.block, slot.offset), patch, &self.cache);
            }
        }
        self.remember(dir);
        Ok(patch)
    }

    /// Makes `..` name another directory, after `befores`.
    pub(in crate::ext2) fn replace_parent(
        &self,
        dir: &mut Inode,
        parent: InodeNo,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        if dir.disk.has_inline_data() {
            return self.replace_inline_parent(dir, parent, befores);
        }
        let damaged = dir.damaged("its second entry is not `..`");
        let slot = self.find(dir, b"..")?.ok_or(damaged)?;
        Ok(self.replace(dir, &slot, (parent, FileKind::Directory), befores)?.patch)
    }

    /// Bytes that adding a name dirties at most: the block, new blocks with their pointers, counters.
    #[must_use]
    pub fn name_reserve(&self) -> usize {
        10 * self.block_size()
    }
}
