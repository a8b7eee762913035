//! Keeping a directory's hash-tree index while names are added: under a journal only.
//!
//! **Layout.** [`crate::ext2::layout::index`].
//!
//! **States and transitions.**
//!
//! ```text
//!   one block, no index ──no room──▶ root and one or two leaves       begin_index
//!   leaf with room for the name                                       leaf_room: the name goes there
//!   leaf in pieces ──▶ the same names, packed                         pack_leaf, if a quarter of it is free then
//!   full leaf ──▶ two leaves, an entry in the index                   split_leaf
//!     full node ──▶ two nodes; full root ──▶ a node below a root      plan.rs
//!   damaged index ──first new name──▶ none                            unindex.rs
//! ```
//!
//! **Invariants.** 1. A leaf's names have hashes from its entry's in the index to the next one's, that one included only where it has
//! the mark. 2. Each block of the directory is in the index once. 3. All blocks that a change needs are taken before the first byte
//! that can be reached changes.
//!
//! **Orderings.** None but the journal's: a change is made in one step of a transaction (`Limits of a step` in
//! `docs/design/ext4.md`), and every block that it touches goes through the log. What else waited for names of the leaf waited
//! for their transaction, in which they are wherever they are then.
//!
//! **Crash cases.** Before the transaction is committed: the directory as it was. After it: as it is.

use std::sync::Arc;

use fstitch_core::{BlockBuf, BlockKind, BlockNo, Caller, Errno, InodeFlags, Result};
use fstitch_patch::{Block, PatchIds};

use super::leaf::{Named, boundary, cut, size_of};
use super::plan::{self, Level, Limits};
use super::room::{Found, Room, narrow};
use super::tree::{Goal, Way};
use super::{DirMemory, Ext2, Inode};
use crate::ext2::layout::dirent::{ENTRY_MIN, EntryView, HEADER};
use crate::ext2::layout::index::{self, IndexEntry, NODE_ENTRIES, ROOT_ENTRIES, Root};
use crate::ext2::layout::inode::I_FLAGS;
use crate::ext2::num::{idx64, wide};
use crate::uhfs::{Allocation, AttrChange};

/// Blocks that a split dirties at most beside those of any new name. The deepest index that is full at all levels but the root: three
/// blocks of it on the way, and three new ones; two of these have bitmaps and descriptors of other groups than the first, which is
/// counted with the name, and each two new nodes of the directory's own tree of extents.
pub(in crate::ext2) const SPLIT_BLOCKS: usize = 14;

/// A block for the end of a directory, and where it came from.
type NewBlock = (Allocation, Block);

impl Ext2 {
    /// Whether the directory's index takes its new names.
    pub(super) fn keeps_index_of(&self, dir: &Inode) -> Result<bool> {
        Ok(self.keeps_indexes() && self.has_tree(dir, &*self.dir_memory(dir)?))
    }

    /// Makes room for `name`, of `need` bytes, where the directory's index wants it. False if it has none that can be kept.
    pub(super) fn prepare_by_hash(
        &self,
        caller: &Caller,
        dir: &mut Inode,
        (name, need): (&[u8], usize),
    ) -> Result<bool> {
        if !self.keeps_index_of(dir)? {
            return Ok(false);
        }
        let Some(leaf) = self.leaf_for(dir, name)? else { return Ok(false) };
        if self.leaf_room(dir, leaf, need)?.is_none() {
            let Some(way) = self.way_for_change(dir, name)? else { return Ok(false) };
            self.widen(caller, dir, way, need)?;
        }
        Ok(true)
    }

    /// Where the index wants `name`, for which there is room: the leaf's position in the directory, the leaf, and the room.
    pub(super) fn room_by_hash(
        &self,
        dir: &Inode,
        (name, need): (&[u8], usize),
    ) -> Result<Option<(usize, Block, Room)>> {
        let Some(leaf) = self.leaf_for(dir, name)? else { return Ok(None) };
        Ok(self.leaf_room(dir, leaf, need)?.map(|(block, room)| (leaf, block, room)))
    }

    /// The leaf that takes `name`; `None` if the index cannot be used.
    fn leaf_for(&self, dir: &Inode, name: &[u8]) -> Result<Option<usize>> {
        if let Some(leaf) = self.dir_memory(dir)?.leaf_of(name) {
            return Ok(Some(leaf));
        }
        let Some(way) = self.way_for_change(dir, name)? else { return Ok(None) };
        self.dir_memory(dir)?.note_sought(name, way.leaf);
        Ok(Some(way.leaf))
    }

    fn way_for_change(&self, dir: &Inode, name: &[u8]) -> Result<Option<Way>> {
        let mut memory = self.dir_memory(dir)?;
        self.usable_way(dir, &mut memory, Goal::Name(name))
    }

    /// Room for `need` bytes in the leaf that is block `at` of the directory.
    fn leaf_room(&self, dir: &Inode, at: usize, need: usize) -> Result<Option<(Block, Room)>> {
        let mut memory = self.dir_memory(dir)?;
        if usize::from(memory.rooms.get(at)) < need {
            return Ok(None);
        }
        self.room_in(&mut memory, at, need)
    }

    /// Makes room for `need` bytes in the leaf to which `way` leads: the leaf is packed, or split.
    fn widen(&self, caller: &Caller, dir: &mut Inode, way: Way, need: usize) -> Result<()> {
        let memory = self.dir_memory(dir)?;
        let block = self.dir_block(memory.owner, memory.list()[way.leaf])?;
        drop(memory);
        let bytes = block.snapshot();
        let names = self.leaf_names(&way.hasher, (block.no(), &bytes), 0)?;
        if self.is_roomy(&names, need) {
            self.note_moves(block.no(), &names);
            self.pack_leaf(dir, (way.leaf, &block), (&bytes, &names))?;
            return self.reindex(dir, (way.leaf, &bytes), &[(way.leaf, &names)]);
        }
        self.split_leaf(caller, dir, &way, (&block, &bytes, &names))
    }

    /// Whether packing these names makes room for `need` bytes, and enough that it is not done again for each of the next ones.
    fn is_roomy(&self, names: &[Named], need: usize) -> bool {
        names.len() < 2 || size_of(names) + need <= self.leaf_len() / 4 * 3
    }

    /// Writes these names of `bytes`, packed, to the leaf that is block `at` of the directory.
    fn pack_leaf(
        &self,
        dir: &mut Inode,
        (at, block): (usize, &Block),
        (bytes, names): (&[u8], &[Named]),
    ) -> Result<()> {
        let leaf = self.packed_leaf(bytes, names);
        let mut tx = self.cache.lock();
        let patch = tx.init(block, Arc::new(leaf), &[]);
        dir.gather(&mut tx, patch);
        drop(tx);
        self.memory.names().structure.insert(block.no(), patch, &self.cache);
        self.dir_memory(dir)?.note_packed(at, size_of(names), self.leaf_len());
        self.remember(dir);
        Ok(())
    }

    /// Splits the leaf to which `way` leads.
    fn split_leaf(
        &self,
        caller: &Caller,
        dir: &mut Inode,
        way: &Way,
        (block, bytes, names): (&Block, &[u8], &[Named]),
    ) -> Result<()> {
        let at = cut(names);
        let new = IndexEntry { hash: boundary(names, at), at: idx64(dir.dir_blocks(self)) };
        let mut memory = self.dir_memory(dir)?;
        memory.sought = None;
        let levels = self.levels_of(&memory, way)?;
        let limits = Limits {
            root: self.sb.index_limit(ROOT_ENTRIES),
            node: self.sb.index_limit(NODE_ENTRIES),
            levels: self.sb.index_levels_max(),
        };
        let plan = plan::enter(levels, new, limits).ok_or(Errno::NOSPC)?;
        let changed = plan.changed.iter().map(|(at, _)| self.dir_block(memory.owner, memory.list()[*at]));
        let changed = changed.collect::<Result<Vec<Block>>>()?;
        drop(memory);
        let blocks = self.take_dir_blocks(caller, dir, 1 + plan.new.len())?;
        let mut contents = vec![self.packed_leaf(bytes, &names[at..])];
        for entries in &plan.new {
            let mut node = BlockBuf::zeroed(self.block_size());
            index::put_node(&mut node, entries, &self.sb);
            contents.push(node);
        }
        self.note_moves(block.no(), names);
        self.attach_dir_blocks(dir, blocks, contents)?;
        for (block, (position, entries)) in changed.iter().zip(&plan.changed) {
            self.change_node(dir, block, |bytes| match position {
                0 => {
                    index::put_levels(bytes, plan.levels);
                    index::put_entries(bytes, ROOT_ENTRIES, entries, &self.sb);
                }
                _ => index::put_entries(bytes, NODE_ENTRIES, entries, &self.sb),
            });
        }
        self.dir_memory(dir)?.note_packed(new.at, size_of(&names[at..]), self.leaf_len());
        self.pack_leaf(dir, (way.leaf, block), (bytes, &names[..at]))?;
        self.reindex(dir, (way.leaf, bytes), &[(way.leaf, &names[..at]), (new.at, &names[at..])])
    }

    /// The blocks of the index on a way, with their entries.
    fn levels_of(&self, memory: &DirMemory, way: &Way) -> Result<Vec<Level>> {
        let level = |step: &super::tree::Step| {
            let (no, bytes) = self.tree_block(memory, step.at)?;
            let entries = self.tree_node(step.at, (no, &bytes))?.entries();
            Ok(Level { at: step.at, chosen: step.chosen, entries })
        };
        way.steps.iter().map(level).collect()
    }

    /// Changes a block of the index.
    fn change_node(&self, dir: &mut Inode, block: &Block, change: impl FnOnce(&mut [u8])) {
        let old = block.snapshot();
        let mut new = BlockBuf::zeroed(old.len());
        new.copy_from_slice(&old);
        change(&mut new);
        let differs = |at: &usize| new[*at] != old[*at];
        let Some(first) = (0..new.len()).find(differs) else { return };
        let last = (first..new.len()).rfind(differs).unwrap_or(first);
        let mut tx = self.cache.lock();
        let patch = tx.bytes(block, first, &new[first..=last], &[]);
        dir.gather(&mut tx, patch);
    }

    /// These names of `block` are about to be somewhere else: what is known of their places is not true any more.
    fn note_moves(&self, block: BlockNo, names: &[Named]) {
        for name in names {
            self.watch.inode(name.ino);
        }
        let mut known = self.memory.names();
        for name in names {
            let place = (block, name.offset);
            known.created.remove(&place);
            known.exchanged.remove(&place);
            known.cleared.remove(&place);
        }
    }

    /// Names of block `from` of the directory, whose contents were `bytes`, are packed in these blocks now: they are found there.
    fn reindex(&self, dir: &Inode, (from, bytes): (usize, &[u8]), parts: &[(usize, &[Named])]) -> Result<()> {
        let mut memory = self.dir_memory(dir)?;
        let Some(index) = &mut memory.index else { return Ok(()) };
        let text = |name: &Named| &bytes[name.offset + HEADER..name.offset + HEADER + name.len];
        // All are taken out before the first is put in: a name may come to where another one was.
        for name in parts.iter().flat_map(|(_, names)| *names) {
            index.remove(text(name), self.dir_position(from, name.offset));
        }
        for (at, names) in parts {
            let mut offset = 0;
            for name in *names {
                index.insert(text(name), self.dir_position(*at, offset));
                offset += name.size();
            }
        }
        Ok(())
    }

    /// Takes `count` blocks for the end of the directory. Nothing can be reached through them yet.
    fn take_dir_blocks(&self, caller: &Caller, dir: &mut Inode, count: usize) -> Result<Vec<NewBlock>> {
        let first = dir.dir_blocks(self);
        let end = first + wide(count);
        self.expect_dir_size(end * u64::from(self.sb.block_size))?;
        if self.map_run(dir, first, wide(count))?.start.is_some() {
            self.detach_range(dir, first, u64::MAX, &[])?;
        }
        if self.blocks_by_quota(caller, dir, wide(count))? < wide(count) {
            return Err(Errno::DQUOT.into());
        }
        let mut taken = Vec::with_capacity(count);
        let mut at = first;
        while at < end {
            // One at a time: each is a block of its own to the cache.
            let found = self.allocate_run(caller, dir, at, 1).and_then(|allocation| {
                match self.cache.fresh_owned(allocation.start, BlockKind::Directory, dir.owner()) {
                    Ok(block) => Ok((allocation, block)),
                    Err(error) => {
                        self.give_back_allocation(dir, allocation);
                        Err(error)
                    }
                }
            });
            match found {
                Ok(found) => taken.push(found),
                Err(error) => {
                    for (allocation, _) in taken.into_iter().rev() {
                        self.give_back_allocation(dir, allocation);
                    }
                    return Err(error);
                }
            }
            at += 1;
        }
        Ok(taken)
    }

    /// Makes the blocks the directory's, with these contents.
    fn attach_dir_blocks(
        &self,
        dir: &mut Inode,
        blocks: Vec<NewBlock>,
        contents: Vec<BlockBuf>,
    ) -> Result<()> {
        debug_assert_eq!(blocks.len(), contents.len(), "every block gets contents");
        let size = (dir.dir_blocks(self) + wide(blocks.len())) * u64::from(self.sb.block_size);
        let mut links = PatchIds::new();
        let mut numbers = Vec::new();
        for ((allocation, block), contents) in blocks.into_iter().zip(contents) {
            let init = self.cache.lock().init(&block, Arc::new(contents), &allocation.reuse);
            links.extend(self.attach_run(dir, allocation, &[init])?);
            numbers.push(block.no().get());
        }
        let change = AttrChange { size: Some(size), ..AttrChange::default() };
        links.extend(self.change_attr(dir, &change, &links)?);
        for &no in &numbers {
            self.memory.set_links(no, links.clone(), &self.cache);
        }
        let mut memory = self.dir_memory(dir)?;
        for no in numbers {
            memory.rooms.push();
            let last = memory.list().len();
            memory.rooms.set(last, 0);
            if let Some(list) = &mut memory.blocks {
                list.push(no);
            }
        }
        debug_assert_eq!(wide(memory.list().len()), dir.dir_blocks(self), "every block is listed");
        Ok(())
    }

    /// Gives a directory of one block, which is full, an index: its names go into one or two leaves. False if it can have none.
    pub(super) fn begin_index(&self, caller: &Caller, dir: &mut Inode, need: usize) -> Result<bool> {
        if !self.may_begin_index(dir)? {
            return Ok(false);
        }
        let Some(hasher) = self.sb.name_hasher(self.sb.hash_version) else { return Ok(false) };
        let memory = self.dir_memory(dir)?;
        let block = self.dir_block(memory.owner, memory.list()[0])?;
        drop(memory);
        let bytes = block.snapshot();
        let names = self.leaf_names(&hasher, (block.no(), &bytes), 2 * ENTRY_MIN)?;
        let inode_block = self.inode_block(dir)?;
        let parts = if self.is_roomy(&names, need) {
            vec![(0, &names[..])]
        } else {
            let at = cut(&names);
            vec![(0, &names[..at]), (boundary(&names, at), &names[at..])]
        };
        let blocks = self.take_dir_blocks(caller, dir, parts.len())?;
        let leaves = parts.iter().map(|(_, part)| self.packed_leaf(&bytes, part)).collect();
        self.note_moves(block.no(), &names);
        self.attach_dir_blocks(dir, blocks, leaves)?;
        let entries: Vec<IndexEntry> =
            (1..).zip(&parts).map(|(at, &(hash, _))| IndexEntry { hash, at }).collect();
        let root = Root { version: self.sb.hash_version, levels: 0 };
        self.change_node(dir, &block, |bytes| index::put_root(bytes, root, &entries, &self.sb));
        let flags = dir.disk.flags | InodeFlags::INDEX;
        let mut tx = self.cache.lock();
        dir.put(&mut tx, &inode_block, (I_FLAGS, flags), &[]);
        dir.disk.flags = flags;
        drop(tx);
        let mut memory = self.dir_memory(dir)?;
        memory.sought = None;
        memory.note_packed(0, self.block_size(), self.block_size());
        for (at, (_, part)) in (1..).zip(&parts) {
            memory.note_packed(at, size_of(part), self.leaf_len());
        }
        drop(memory);
        let moved: Vec<(usize, &[Named])> = (1..).zip(parts).map(|(at, (_, part))| (at, part)).collect();
        self.reindex(dir, (0, &bytes), &moved)?;
        self.remember(dir);
        Ok(true)
    }

    /// Whether the directory, which has no index, gets one when it grows: it has one block that begins with `.` and `..`.
    pub(super) fn may_begin_index(&self, dir: &Inode) -> Result<bool> {
        if !self.keeps_indexes()
            || dir.disk.flags & InodeFlags::INDEX != 0
            || dir.dir_blocks(self) != 1
            || self.sb.name_hasher(self.sb.hash_version).is_none()
        {
            return Ok(false);
        }
        let memory = self.dir_memory(dir)?;
        let Some((block, bytes)) = self.dir_bytes(&memory, 0)? else { return Ok(false) };
        let mut entries = self.entries(&bytes, block);
        let is_dots = |entry: &EntryView<'_>, name: &[u8]| {
            entry.ino != 0 && entry.rec_len == ENTRY_MIN && entry.name == name
        };
        let first = entries.next().transpose()?.is_some_and(|entry| is_dots(&entry, b"."));
        Ok(first && entries.next().transpose()?.is_some_and(|entry| is_dots(&entry, b"..")))
    }
}

impl DirMemory {
    /// The names of block `at` were packed: they take `used` bytes of `len`, and the rest is behind them.
    fn note_packed(&mut self, at: usize, used: usize, len: usize) {
        let room = len - used;
        self.rooms.set(at, narrow(room));
        if room >= ENTRY_MIN {
            self.last.put(at, Found::behind_all(used, room));
        } else {
            self.last.take(at);
        }
    }
}
