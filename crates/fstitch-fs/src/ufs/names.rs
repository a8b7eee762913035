//! Making, clearing and replacing names.
//!
//! **Layout.** A directory is a file of chunks of 512 bytes, each a chain of entries ([`super::layout::dirent`]), and never has less than its
//! chunks need. Free space is entries of inode 0, or the end of an entry that is longer than it needs to be.
//!
//! **Orderings** (arrows read "comes after").
//! - the structure of a slot (length, name, kind, the free entry behind it) → the last change of the structure of its fragment, the clearing of
//!   every entry that the slot is made of; a used entry that is cut short → the new entry behind it (same chain);
//! - the inode field → the clearing of the same name elsewhere, the slot's structure, and `befores`: the inode's initialisation, its bit,
//!   its raised count;
//! - the clearing of an inode field → `befores` (for a rename: the new name). Nothing else changes;
//! - an entry names another inode: its inode field alone → `befores`; where the kind changes too, its whole header, in the chain;
//! - what comes after a name was cleared or replaced (its inode's loss of a link, the same name elsewhere) → that, and the pointers by which the
//!   medium comes to the fragment: until then it may have the name where the fragment was before it moved;
//! - a new chunk: its contents → the end of the fragment's earlier life; the length that covers it → its contents, its bits, its pointer.
//!
//! **Crash cases.** Structure without inode field: free space with a stale name in it. A chunk without the length: free space.

use std::sync::Arc;

use fstitch_core::lock::MutexGuard;
use fstitch_core::num::to_u64;
use fstitch_core::{
    BlockBuf, BlockKind, BlockNo, Caller, Errno, Error, FileKind, InodeNo, Result, Structure,
};
use fstitch_patch::{Block, PatchId, PatchIds, PatchState, Tx};
use smallvec::SmallVec;

use super::layout::dirent::{
    CHUNK, Entry, HEADER, KIND_AT, LENGTH_AT, NAME_MAX, code_of, entry, entry_size, put_entry,
};
use super::volume::{Inode, Ufs};
use crate::name_index::{Indexed, NameIndex, Passed};
use crate::num::{idx64, low32};
use crate::uhfs::{AttrChange, ClearedName, FreedName, NameSlot};
use crate::unstable::name_key;

/// Bytes of an inode field.
const INO_LEN: usize = 4;
/// Places in directories are multiples of this.
const PLACE: u64 = 4;

/// Where names of one hash are, in bytes of the directory.
type Places = SmallVec<[u64; 1]>;

/// What is kept in memory of a directory in use.
#[derive(Debug, Default)]
pub(super) struct DirMemory {
    /// Where an entry begins: before it there was no room for the last name that looked for some.
    room_from: u64,
    /// Where names are, by their hashes: in bytes of the directory, divided by 4.
    index: Option<NameIndex>,
    /// An index would take too much memory, or something is damaged.
    no_index: bool,
    passed: Passed,
}

impl Indexed for DirMemory {
    fn drop_index(&mut self) {
        self.index = None;
        self.passed = Passed::default();
    }
}

/// Where a name can go.
#[derive(Debug, PartialEq, Eq)]
struct Room {
    /// Where it begins in its fragment, and its bytes.
    at: usize,
    len: usize,
    /// The used entry whose end it is, if it is one.
    behind: Option<usize>,
    /// The free entries that it is made of.
    parts: Vec<usize>,
}

impl Ufs {
    fn dir_memory<'i>(&self, dir: &'i Inode) -> MutexGuard<'i, DirMemory> {
        dir.dir.get_or_init(Arc::default).lock()
    }

    /// A search by a walk has passed so many entries.
    pub(super) fn note_passed(&self, dir: &Inode, entries: usize) {
        self.dir_memory(dir).passed.note(entries);
    }

    /// Finds a name by the directory's index, which is made if there is none; `None` where there can be none, or none pays.
    pub(super) fn find_by_index(&self, dir: &Inode, name: &[u8]) -> Result<Option<Option<NameSlot>>> {
        if !self.make_index(dir)? {
            return Ok(None);
        }
        let places: Places = match &self.dir_memory(dir).index {
            Some(index) => index.candidates(name).map(|at| u64::from(at) * PLACE).collect(),
            // Others had more need of the memory.
            None => return Ok(None),
        };
        for place in places {
            let Some((no, block)) = self.dir_block(dir, place / u64::from(self.sb.fragment_size))? else {
                continue;
            };
            let bytes = block.snapshot();
            let at = idx64(place % u64::from(self.sb.fragment_size));
            let found = entry(&bytes, at, no, self.manner())?;
            if found.is_used() && found.name == name {
                let ino = InodeNo(u64::from(found.ino));
                return Ok(Some(Some(NameSlot { ino, kind: found.kind, block: no, offset: at })));
            }
        }
        Ok(Some(None))
    }

    /// Makes an index of the directory's names, unless there is one; false if there can be none, or none pays: the directory is within a
    /// fragment, and little was passed in it.
    fn make_index(&self, dir: &Inode) -> Result<bool> {
        {
            let memory = self.dir_memory(dir);
            let pays = dir.disk.size > u64::from(self.sb.fragment_size) || memory.passed.pays(0);
            if memory.index.is_some() || memory.no_index || !pays {
                return Ok(memory.index.is_some());
            }
        }
        let mut index = self.memory.indexes.start(&self.cache);
        let (most, mut count) = (self.memory.indexes.names_max(), 0);
        let walked = self.walk(dir, 0, &mut |found, _, next| {
            if found.is_used() {
                count += 1;
                index.insert(found.name, place(next - to_u64(found.end - found.at)));
            }
            count <= most
        });
        match walked {
            Ok(()) if count <= most => {}
            // Damage hides no name that a walk would come to before it.
            Ok(()) | Err(Error::Corrupt(_)) => {
                self.dir_memory(dir).no_index = true;
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        self.dir_memory(dir).index = Some(index);
        self.memory.indexes.admit(dir.dir.get_or_init(Arc::default));
        Ok(true)
    }

    /// Where in the directory a slot is, if the index knows.
    fn place_of(&self, dir: &Inode, slot: &NameSlot, name: &[u8]) -> Result<Option<u64>> {
        let fragment = u64::from(self.sb.fragment_size);
        let places: Places = match &self.dir_memory(dir).index {
            Some(index) => index.candidates(name).map(|at| u64::from(at) * PLACE).collect(),
            None => return Ok(None),
        };
        for place in places.into_iter().filter(|place| idx64(place % fragment) == slot.offset) {
            if self.map_run(dir, place / fragment, 1)?.start == Some(slot.block) {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// Makes sure that `name` fits, growing the directory if need be.
    pub(super) fn prepare(&self, caller: &Caller, dir: &mut Inode, name: &[u8]) -> Result<()> {
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        let need = entry_size(name.len());
        if self.search_room(dir, need)?.is_some() {
            return Ok(());
        }
        match self.grow_dir(caller, dir) {
            Err(error) if error.errno() == Errno::NOSPC => {
                // What longer names have passed by may have room for this one.
                self.dir_memory(dir).room_from = 0;
                self.search_room(dir, need)?.map(drop).ok_or(error)
            }
            grown => grown,
        }
    }

    /// The first room of `need` bytes, with its fragment.
    fn search_room(&self, dir: &Inode, need: usize) -> Result<Option<(u64, Block, Room)>> {
        let from = self.dir_memory(dir).room_from;
        let fragment = u64::from(self.sb.fragment_size);
        let mut at = from;
        while at < dir.disk.size {
            let Some((no, block)) = self.dir_block(dir, at / fragment)? else {
                at = (at / fragment + 1) * fragment;
                continue;
            };
            let bytes = block.snapshot();
            let start = idx64(at % fragment);
            let end = (start / CHUNK + 1) * CHUNK;
            debug_assert!(self.begins_here(&bytes, no, start), "no entry begins at byte {at} of {}", dir.ino);
            let base = at - to_u64(start);
            if let Some(room) = self.room_in((&bytes[..end], no), start, need, at == 0)? {
                self.dir_memory(dir).room_from = base + to_u64(room.behind.unwrap_or(room.at));
                return Ok(Some((base, block, room)));
            }
            at = base + to_u64(end);
        }
        self.dir_memory(dir).room_from = dir.disk.size;
        Ok(None)
    }

    /// Whether an entry begins at byte `start` of a fragment; also where the chunk is damaged, which is told by whoever meets it.
    fn begins_here(&self, bytes: &[u8], no: BlockNo, start: usize) -> bool {
        let mut at = start / CHUNK * CHUNK;
        while at < start {
            match entry(bytes, at, no, self.manner()) {
                Ok(found) => at = found.end,
                Err(_) => return true,
            }
        }
        at == start
    }

    /// The first room from the entry at byte `start` of a fragment to the end of its chunk. Nothing comes between `.` and `..`.
    fn room_in(
        &self,
        (bytes, no): (&[u8], BlockNo),
        start: usize,
        need: usize,
        is_first: bool,
    ) -> Result<Option<Room>> {
        let mut room: Option<Room> = None;
        let mut at = start;
        while at < bytes.len() {
            let found = entry(bytes, at, no, self.manner())?;
            at = found.end;
            if found.ino == 0 {
                let room = room.get_or_insert(Room { at: found.at, len: 0, behind: None, parts: Vec::new() });
                room.len = found.end - room.at;
                room.parts.push(found.at);
            } else {
                let used = found.at + entry_size(found.name.len());
                let keeps = is_first && found.at == start;
                room = (used < found.end && !keeps).then(|| Room {
                    at: used,
                    len: found.end - used,
                    behind: Some(found.at),
                    parts: Vec::new(),
                });
            }
            if room.as_ref().is_some_and(|room| room.len >= need) {
                return Ok(room);
            }
        }
        Ok(None)
    }

    /// Adds an empty chunk to the directory.
    fn grow_dir(&self, caller: &Caller, dir: &mut Inode) -> Result<()> {
        let (size, fragment) = (dir.disk.size, u64::from(self.sb.fragment_size));
        let after = size + to_u64(CHUNK);
        if after > u64::from(u32::MAX >> 1) {
            return Err(Errno::NOSPC.into());
        }
        let mut chunk = vec![0; CHUNK];
        put_entry(&mut chunk, (0, CHUNK), (b"", None), self.manner());
        let (no, links) = if let Some((no, block)) = self.dir_block_behind(dir, size)? {
            let mut tx = self.cache.lock();
            let patch = tx.bytes(&block, idx64(size % fragment), &chunk, &[]);
            dir.gather(&mut tx, patch);
            (no, PatchIds::from_slice(&[patch]))
        } else {
            let allocation = self.allocate_run(caller, dir, size / fragment, 1)?;
            let no = allocation.start;
            let mut blocks = Vec::new();
            for at in no.get()..no.get() + allocation.count {
                match self.cache.fresh(BlockNo(at), BlockKind::Directory) {
                    Ok(block) => blocks.push(block),
                    Err(error) => {
                        self.give_back_allocation(dir, &allocation);
                        return Err(error);
                    }
                }
            }
            let mut contents = PatchIds::new();
            let mut tx = self.cache.lock();
            for block in &blocks {
                let mut bytes = BlockBuf::zeroed(self.sb.fragment_len());
                if block.no() == no {
                    bytes[..CHUNK].copy_from_slice(&chunk);
                }
                contents.push(tx.init(block, Arc::new(bytes), &allocation.reuse));
            }
            drop(tx);
            (no, self.attach_run(dir, &allocation, &contents)?)
        };
        let change = AttrChange { size: Some(after), ..AttrChange::default() };
        let sized = self.change_attr(dir, &change, &links)?;
        // Whoever comes after the length comes after all of this.
        let mut links = self.memory.links(no.get());
        links.extend(sized);
        self.memory.set_links(no.get(), links, &self.cache);
        self.dir_memory(dir).room_from = size;
        Ok(())
    }

    /// The fragment that has byte `at` of the directory, which lies behind its end, if one is allocated.
    fn dir_block_behind(&self, dir: &Inode, at: u64) -> Result<Option<(BlockNo, Block)>> {
        if at.is_multiple_of(u64::from(self.sb.block_size)) {
            // Of a block that is not there yet.
            return Ok(None);
        }
        self.dir_block(dir, at / u64::from(self.sb.fragment_size))
    }

    /// Adds a name for which there is room, after `befores`. Returns what makes it reachable.
    pub(super) fn add(
        &self,
        dir: &mut Inode,
        (name, ino, kind): (&[u8], InodeNo, FileKind),
        befores: &[PatchId],
    ) -> Result<PatchIds> {
        let need = entry_size(name.len());
        let (start, block, room) = self.search_room(dir, need)?.ok_or(Errno::NOSPC)?;
        let mut chain = PatchIds::new();
        let vanished = {
            let mut names = self.memory.names();
            chain.extend(names.structure.get(&block.no()).copied());
            for &part in &room.parts {
                chain.extend(names.cleared.get(&(block.no(), part)).copied());
                names.created.remove(&(block.no(), part));
            }
            names.vanished.get(&name_key(dir.ino, name)).copied()
        };
        let rest = room.len - need;
        let splits = rest > HEADER;
        let len = if splits { need } else { room.len };
        let mut bytes = [0; CHUNK];
        let bytes = &mut bytes[..if splits { need + HEADER } else { need }];
        put_entry(bytes, (0, len), (name, Some(kind)), self.manner());
        if splits {
            put_entry(&mut bytes[need..], (0, rest), (b"", None), self.manner());
        }
        let mut raw = [0; INO_LEN];
        self.sb.order.put_u32(&mut raw, 0, low32(ino.get()));
        let mut tx = self.cache.lock();
        // The inode field of a free entry is 0 already and has patches of its own.
        let from = if room.behind.is_some() { 0 } else { INO_LEN };
        let mut structure = tx.bytes(&block, room.at + from, &bytes[from..], &chain);
        if let Some(shortened) = room.behind {
            let mut length = [0; 2];
            self.sb.order.put_u16(&mut length, 0, u16::try_from(room.at - shortened).map_err(|_| Errno::IO)?);
            chain.push(structure);
            structure = tx.bytes(&block, shortened + LENGTH_AT, &length, &chain);
        }
        let mut after = PatchIds::from_slice(befores);
        after.push(structure);
        after.extend(vanished);
        let named = tx.bytes(&block, room.at, &raw, &after);
        dir.gather(&mut tx, named);
        drop(tx);
        {
            let mut names = self.memory.names();
            names.structure.insert(block.no(), structure, &self.cache);
            names.created.insert((block.no(), room.at), named, &self.cache);
        }
        self.remember(dir);
        if let Some(index) = &mut self.dir_memory(dir).index {
            index.insert(name, place(start + to_u64(room.at)));
        }
        let mut reachable = self.memory.links(block.no().get());
        reachable.push(named);
        Ok(reachable)
    }

    /// The block of a slot, in which the entry was checked to be what the caller has found, and its name.
    fn open_slot(&self, slot: &NameSlot) -> Result<(Block, Vec<u8>)> {
        let block = self.cache.read(slot.block, BlockKind::Directory)?;
        let bytes = block.snapshot();
        let found = match slot.offset + HEADER <= bytes.len() {
            true => entry(&bytes, slot.offset, slot.block, self.manner()).ok(),
            false => None,
        };
        match found {
            Some(Entry { ino, name, .. }) if u64::from(ino) == slot.ino.get() && ino != 0 => {
                let name = name.to_vec();
                drop(bytes);
                Ok((block, name))
            }
            _ => {
                let what = Structure::DirectoryEntry(Some(slot.offset));
                Err(Error::corrupt(what, slot.block, "changed while it was in use"))
            }
        }
    }

    /// Clears an entry after `befores`.
    pub(super) fn clear(&self, dir: &mut Inode, slot: &NameSlot, befores: &[PatchId]) -> Result<ClearedName> {
        let (block, name) = self.open_slot(slot)?;
        let links = self.memory.links(slot.block.get());
        let known = self.place_of(dir, slot, &name)?;
        let place = (slot.block, slot.offset);
        let created = {
            let mut names = self.memory.names();
            names.created.remove(&place).filter(|_| names.exchanged.remove(&place).is_none())
        };
        let mut tx = self.cache.lock();
        let patch = tx.bytes(&block, slot.offset, &[0; INO_LEN], befores);
        dir.gather(&mut tx, patch);
        let freed = self.freed(&mut tx, created, (patch, &links));
        // Then the next name of the slot need not come after this one.
        let never_was = matches!(freed, FreedName::NeverExisted) && tx.hollow(patch);
        let seen = if let FreedName::After(seen) = freed { seen } else { patch };
        drop(tx);
        if !never_was {
            let mut names = self.memory.names();
            names.cleared.insert(place, patch, &self.cache);
            names.vanished.insert(name_key(dir.ino, &name), seen, &self.cache);
        }
        {
            let mut memory = self.dir_memory(dir);
            memory.room_from = memory.room_from.min(known.unwrap_or(0) / to_u64(CHUNK) * to_u64(CHUNK));
            if let (Some(index), Some(at)) = (&mut memory.index, known) {
                index.remove(&name, self::place(at));
            }
        }
        self.remember(dir);
        Ok(ClearedName { patch: seen, freed })
    }

    /// What the old inode's loss of a link comes after. Until the medium comes to the fragment by its `links`, it may have the name where that
    /// was before the fragment moved.
    fn freed(
        &self,
        tx: &mut Tx<'_>,
        created: Option<PatchId>,
        (patch, links): (PatchId, &[PatchId]),
    ) -> FreedName {
        let never =
            self.cache.optimizations().elimination && created.is_some_and(|made| tx.same(made, patch));
        if never { FreedName::NeverExisted } else { FreedName::After(seen(tx, patch, links)) }
    }

    /// Makes an entry name another inode, after `befores`.
    pub(super) fn replace(
        &self,
        dir: &mut Inode,
        slot: &NameSlot,
        (ino, kind): (InodeNo, FileKind),
        befores: &[PatchId],
    ) -> Result<ClearedName> {
        let (block, _) = self.open_slot(slot)?;
        let links = self.memory.links(slot.block.get());
        let place = (slot.block, slot.offset);
        let (created, structure) = {
            let mut names = self.memory.names();
            let exchanged = names.exchanged.remove(&place).is_some();
            let created = names.created.get(&place).copied().filter(|_| !exchanged);
            (created, names.structure.get(&slot.block).copied())
        };
        let mut befores = PatchIds::from_slice(befores);
        let mut tx = self.cache.lock();
        let mut header = tx.data(&block)[slot.offset..slot.offset + HEADER].to_vec();
        let new_kind = header[KIND_AT] != code_of(kind);
        self.sb.order.put_u32(&mut header, 0, low32(ino.get()));
        if new_kind {
            header[KIND_AT] = code_of(kind);
            befores.extend(structure);
        } else {
            header.truncate(INO_LEN);
        }
        let patch = tx.bytes(&block, slot.offset, &header, &befores);
        dir.gather(&mut tx, patch);
        let freed = self.freed(&mut tx, created, (patch, &links));
        let seen = seen(&mut tx, patch, &links);
        drop(tx);
        {
            let mut names = self.memory.names();
            names.created.insert(place, patch, &self.cache);
            if new_kind {
                names.structure.insert(slot.block, patch, &self.cache);
            }
        }
        self.remember(dir);
        Ok(ClearedName { patch: seen, freed })
    }

    /// Swaps what two entries of one chunk name, in one patch over everything between them.
    pub(super) fn exchange(
        &self,
        dir: &mut Inode,
        (first, second): (&NameSlot, &NameSlot),
        befores: &[PatchId],
    ) -> Result<PatchId> {
        // A chunk is written whole, a fragment need not be.
        let is_one = first.block == second.block && first.offset / CHUNK == second.offset / CHUNK;
        if !is_one || first.offset == second.offset {
            return Err(Errno::INVAL.into());
        }
        let (block, _) = self.open_slot(first)?;
        let links = self.memory.links(first.block.get());
        self.open_slot(second)?;
        let (low, high) = (first.offset.min(second.offset), first.offset.max(second.offset));
        let mut befores = PatchIds::from_slice(befores);
        befores.extend(self.memory.names().structure.get(&first.block).copied());
        let mut tx = self.cache.lock();
        let mut bytes = tx.data(&block)[low..high + HEADER].to_vec();
        let far = high - low;
        for at in (0..INO_LEN).chain([KIND_AT]) {
            bytes.swap(at, far + at);
        }
        let patch = tx.bytes(&block, low, &bytes, &befores);
        dir.gather(&mut tx, patch);
        let seen = seen(&mut tx, patch, &links);
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
        Ok(seen)
    }

    /// Makes `..` name another directory, after `befores`.
    pub(super) fn replace_parent(
        &self,
        dir: &mut Inode,
        parent: InodeNo,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        let slot = self.find(dir, b"..")?.ok_or_else(|| dir.damaged("it has no `..`"))?;
        Ok(self.replace(dir, &slot, (parent, FileKind::Directory), befores)?.patch)
    }

    /// What must be stable for the name in `slot` to be on the medium.
    pub(super) fn patches_of_name(&self, slot: &NameSlot) -> PatchIds {
        let mut patches = self.memory.links(slot.block.get());
        patches.extend(self.memory.names().created.get(&(slot.block, slot.offset)).copied());
        patches
    }
}

/// A byte of a directory as its index has it.
fn place(at: u64) -> u32 {
    low32(at / PLACE)
}

/// A change of a fragment together with the way to it: what comes after this finds the change on the medium.
fn seen(tx: &mut Tx<'_>, patch: PatchId, links: &[PatchId]) -> PatchId {
    let mut befores = PatchIds::from_slice(&[patch]);
    befores.extend(links.iter().copied().filter(|&link| tx.state(link) != PatchState::Committed));
    if befores.len() == 1 { patch } else { tx.empty(&befores) }
}
