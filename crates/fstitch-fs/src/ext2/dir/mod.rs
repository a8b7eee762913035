//! Directories.
//!
//! **Layout.** A directory is a file of blocks, each a chain of entries ([`super::layout::dirent`]). We keep free space as
//! explicit entries with inode 0: an added name takes the front of one and leaves the rest as another; a removed
//! name becomes one.
//!
//! **Invariants.**
//! 1. An entry's inode field is a patch of its own (4 bytes); only it waits for patches on other blocks.
//! 2. Lengths, names and kinds (the *structure*) of one block are changed by a chain of patches, each after the one
//!    before: a length computed from another is never on the medium without it.
//! 3. The structure of a slot changes only after its inode field was cleared.
//! 4. A block is attached only after it was initialised with one empty entry that spans it.
//!
//! **Crash cases.** Structure without inode field: free space with a stale name in it. Inode field without a later
//! structure: impossible, it depends on it.

mod add;
mod change;
mod find;
mod leaf;
mod order;
mod plan;
mod room;
mod split;
mod tree;
mod unindex;

use std::sync::Arc;

use fstitch_core::{BlockBuf, BlockKind, BlockNo, Errno, FileKind, Result};
use fstitch_patch::Block;

use super::inode::Inode;
use super::layout::dirent::{self, Entries};
use super::num::wide;
use super::volume::Ext2;

use crate::name_index::{Indexed, NameIndex, Passed};
pub(super) use add::NewName;
use room::{Found, Last, Room, Rooms};
pub(super) use split::SPLIT_BLOCKS;

/// All indexes of a volume.
pub(super) type IndexCache = crate::name_index::IndexCache<DirMemory>;

/// What is kept in memory of a directory in use.
#[derive(Debug, Default)]
pub(super) struct DirMemory {
    /// The directory's blocks on the volume, 0 for a hole; `None` until first used.
    blocks: Option<Vec<u64>>,
    rooms: Rooms,
    /// Where in blocks there is room.
    last: Last,
    /// The positions of the blocks in which names were found last.
    found: [usize; 2],
    passed: Passed,
    index: Option<NameIndex>,
    /// An index would take too much memory, or something is damaged.
    no_index: bool,
    /// Its hash tree is damaged.
    bad_tree: bool,
    /// The name that was looked for last by the tree, and the leaf to which that led: whoever makes it asks three times.
    sought: Option<(Vec<u8>, usize)>,
    /// Whose its blocks are, for their sums.
    owner: u64,
}

impl Indexed for DirMemory {
    /// Does without an index until many entries were passed again.
    fn drop_index(&mut self) {
        self.index = None;
        self.passed = Passed::default();
    }
}

impl DirMemory {
    fn list(&self) -> &[u64] {
        self.blocks.as_deref().unwrap_or_default()
    }

    /// The position of the volume's block `no` in the directory.
    fn position(&self, no: BlockNo) -> Option<usize> {
        let list = self.list();
        let is_at = |at: usize| list.get(at).is_some_and(|&block| block == no.get());
        let found = self.found.iter().copied().find(|&at| is_at(at));
        found.or_else(|| list.iter().position(|&block| block == no.get()))
    }

    /// The room found last, in block `at`, was taken except for `rest`.
    fn take_room(&mut self, at: usize, rest: Option<Room>) {
        let Some(found) = self.last.take(at) else { return };
        let left = found.left(rest.as_ref().map_or(0, Room::len));
        self.rooms.set(at, left.min(self.rooms.get(at)));
        if let Some(room) = rest {
            self.last.put(at, Found { room, others: found.others });
        }
    }

    /// A name was cleared in block `at`: its slot of `len` bytes is free, and so may be what lies on both sides.
    fn note_cleared(&mut self, at: usize, offset: usize, len: usize) {
        let others = self.rooms.get(at);
        self.rooms.set(at, others.saturating_mul(2).saturating_add(room::narrow(len)));
        let is_first = self.rooms.first(len) == Some(at);
        if is_first || self.last.is_empty() || self.last.get(at).is_some() {
            self.last.put(at, Found::cleared(offset, len, others));
        }
    }

    /// Whether there is room for `need` bytes, as far as is known without a look at the blocks.
    fn has_room(&self, need: usize) -> bool {
        let first = self.rooms.first(need).and_then(|at| self.last.get(at));
        first.is_some_and(|found| found.room.len() >= need)
    }

    /// A name was found in block `at` of the directory: whoever changes it will ask for that.
    fn note_found(&mut self, at: usize) {
        if self.found[0] != at {
            self.found = [at, self.found[0]];
        }
    }
}

impl Ext2 {
    /// Learns where the directory's blocks are.
    fn load_dir(&self, dir: &Inode, memory: &mut DirMemory) -> Result<()> {
        if dir.disk.kind != FileKind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        if memory.blocks.is_some() {
            return Ok(());
        }
        let count = dir.dir_blocks(self);
        let mut blocks = Vec::new();
        let mut at = 0;
        while at < count {
            let extent = self.map_run(dir, at, count - at)?;
            let run = 0..extent.count;
            match extent.start {
                Some(start) => blocks.extend(run.map(|step| start.get() + step)),
                None => blocks.extend(run.map(|_| 0)),
            }
            at += extent.count;
        }
        memory.rooms = Rooms::unknown(blocks.len());
        memory.owner = dir.owner();
        memory.blocks = Some(blocks);
        Ok(())
    }

    fn dir_block(&self, owner: u64, no: u64) -> Result<Block> {
        self.cache.read_owned(BlockNo(no), BlockKind::Directory, owner)
    }

    /// The newest contents of block `at` of the directory; `None` for a hole.
    fn dir_bytes(&self, memory: &DirMemory, at: usize) -> Result<Option<(BlockNo, Arc<BlockBuf>)>> {
        match memory.list()[at] {
            0 => Ok(None),
            no => Ok(Some((BlockNo(no), self.dir_block(memory.owner, no)?.snapshot()))),
        }
    }

    fn entries<'a>(&self, bytes: &'a [u8], block: BlockNo) -> Entries<'a> {
        dirent::entries(bytes, block, &self.sb)
    }

    /// A position in a directory as a byte offset.
    fn dir_offset(&self, block: usize, offset: usize) -> u64 {
        wide(block) * u64::from(self.sb.block_size) + wide(offset)
    }
}
