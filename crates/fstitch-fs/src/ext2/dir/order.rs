//! Listing a directory whose names move from leaf to leaf.
//!
//! A split moves names, so a place in the directory says nothing about how far a reader has come. The order of the hashes stays: a
//! reader's cookie is the place of its next name in that order, and every name that is there all the time is returned exactly once,
//! whatever is split meanwhile. A directory of one block is listed that way as soon as it could get an index.
//!
//! ```text
//!   cookie  0 before "."   1 before ".."   2 + (hash / 2) << 32 | (second hash's high half) << 16 | number among those alike
//! ```
//!
//! The number tells names apart that agree in 47 bits, in the order of their bytes: only one that comes or goes among such names
//! while a reader is between them can make it miss or meet one again.

use std::sync::Arc;

use fstitch_core::{BlockBuf, BlockNo, DirEntry, Error, InodeNo, Result};
use fstitch_posix::name::is_dots;

use super::tree::{Goal, Way, damaged};
use super::{DirMemory, Ext2, Inode};
use crate::ext2::layout::dirent::EntryView;
use crate::ext2::layout::name_hash::Hasher;
use crate::ext2::num::{high16, low32};

/// The cookies before the first name's: those of `.` and `..`.
const DOTS: u64 = 2;
/// Bits of the number among names that are alike in everything else, and the largest one.
const NUMBER_BITS: u32 = 16;
const NUMBER_MAX: u64 = (1 << NUMBER_BITS) - 1;

/// A name of the part of a directory that is listed.
struct Listed<'a> {
    place: u64,
    entry: EntryView<'a>,
}

/// Blocks between whose names and those of others the order has borders.
struct Run {
    blocks: Vec<(BlockNo, Arc<BlockBuf>)>,
    /// The lowest hash, and the lowest one behind the run, if there is more.
    low: u32,
    next: Option<u32>,
}

impl Run {
    fn holds(&self, hash: u32) -> bool {
        self.low & !1 <= hash && self.next.is_none_or(|next| hash < next)
    }
}

/// The place in the order of a name with these hashes, the first of those that are alike.
fn place((hash, second): (u32, u32)) -> u64 {
    u64::from(hash >> 1) << 32 | u64::from(high16(second)) << NUMBER_BITS
}

impl Ext2 {
    /// Whether the directory is listed in the order of hashes.
    pub(super) fn lists_by_hash(&self, dir: &Inode) -> Result<bool> {
        Ok(self.keeps_index_of(dir)? || self.may_begin_index(dir)?)
    }

    /// What orders the names of a directory in its inode: that of the block which it may get.
    pub(super) fn inline_hasher(&self) -> Option<Hasher> {
        self.sb.name_hasher(self.sb.hash_version).filter(|_| self.keeps_indexes())
    }

    /// Lists such a directory in the order in which its block would be listed.
    pub(super) fn list_inline_by_hash(
        &self,
        dir: &Inode,
        hasher: &Hasher,
        (cookie, sink): (u64, &mut dyn FnMut(DirEntry<'_>) -> bool),
    ) -> Result<()> {
        let mut block = BlockBuf::zeroed(self.block_size());
        self.put_names(dir, &mut block)?;
        let (block, bytes) = (dir.at.0, Arc::new(block));
        if cookie < DOTS && !self.list_dots_of((block, &bytes), cookie, sink)? {
            return Ok(());
        }
        let run = Run { blocks: vec![(block, bytes)], low: 0, next: None };
        self.list_run(hasher, &run, (cookie.saturating_sub(DOTS), sink)).map(drop)
    }

    /// Lists entries from `cookie` on until `sink` returns false.
    pub(super) fn list_by_hash(
        &self,
        dir: &Inode,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if cookie < DOTS && !self.list_dots(dir, cookie, sink)? {
            return Ok(());
        }
        let from = cookie.saturating_sub(DOTS);
        let mut memory = self.dir_memory(dir)?;
        let listed = if self.has_tree(dir, &memory) {
            let way = self.way(&memory, Goal::Hash(low32(from >> 32) << 1));
            drop(memory);
            way.and_then(|way| self.list_tree(dir, way, (from, sink)))
        } else {
            let Some(hasher) = self.sb.name_hasher(self.sb.hash_version) else { return Ok(()) };
            let blocks = self.dir_bytes(&memory, 0)?.into_iter().collect();
            drop(memory);
            return self.list_run(&hasher, &Run { blocks, low: 0, next: None }, (from, sink)).map(drop);
        };
        if let Err(Error::Corrupt(_)) = &listed {
            memory = self.dir_memory(dir)?;
            memory.bad_tree = true;
        }
        listed
    }

    /// Lists the names of an index from the leaf on where the way is.
    fn list_tree(
        &self,
        dir: &Inode,
        mut way: Way,
        (from, sink): (u64, &mut dyn FnMut(DirEntry<'_>) -> bool),
    ) -> Result<()> {
        // As many leaves as there are blocks at most, whatever the index says.
        for _ in 0..dir.dir_blocks(self) {
            let memory = self.dir_memory(dir)?;
            let run = self.next_run(&memory, &mut way)?;
            drop(memory);
            if !self.list_run(&way.hasher, &run, (from, sink))? || run.next.is_none() {
                return Ok(());
            }
        }
        Err(damaged(None, "its leaves are in it again"))
    }

    /// Lists `.` and `..` from `cookie` on; false if `sink` has had enough.
    fn list_dots(
        &self,
        dir: &Inode,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<bool> {
        let memory = self.dir_memory(dir)?;
        let first = self.dir_bytes(&memory, 0)?;
        drop(memory);
        let Some((block, bytes)) = first else { return Ok(true) };
        self.list_dots_of((block, &bytes), cookie, sink)
    }

    fn list_dots_of(
        &self,
        (block, bytes): (BlockNo, &BlockBuf),
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<bool> {
        for (entry, at) in self.entries(bytes, block).take(2).zip(0..DOTS) {
            let entry = entry?;
            if at >= cookie && entry.ino != 0 && !sink(seen(&entry, at + 1)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The leaf where the way is, with those that go on with its last hash. If there are more behind them, the way is at the first of
    /// those then.
    fn next_run(&self, memory: &DirMemory, way: &mut Way) -> Result<Run> {
        let mut run = Run { blocks: Vec::new(), low: way.low, next: None };
        while run.blocks.len() < memory.list().len() {
            run.blocks.push(self.tree_block(memory, way.leaf)?);
            run.next = self.next_leaf(memory, way)?;
            if run.next.is_none_or(|low| low & 1 == 0) {
                return Ok(run);
            }
        }
        Err(damaged(None, "its leaves are in it again"))
    }

    /// Lists the names of some blocks in their order, from place `from` on; false if `sink` has had enough.
    fn list_run(
        &self,
        hasher: &Hasher,
        run: &Run,
        (from, sink): (u64, &mut dyn FnMut(DirEntry<'_>) -> bool),
    ) -> Result<bool> {
        let mut names = Vec::new();
        // Names before what is damaged are listed as anywhere else.
        let mut damage = Ok(true);
        for (block, bytes) in &run.blocks {
            for entry in self.entries(bytes, *block) {
                let entry = match entry {
                    Ok(entry) if entry.ino == 0 || is_dots(entry.name) => continue,
                    Ok(entry) => entry,
                    Err(error) => {
                        damage = Err(error);
                        break;
                    }
                };
                let hashes = hasher.hashes(entry.name);
                if !run.holds(hashes.0) {
                    return Err(damaged(Some(*block), "a name where its hash does not belong"));
                }
                names.push(Listed { place: place(hashes), entry });
            }
        }
        names.sort_by(|a, b| (a.place, a.entry.name).cmp(&(b.place, b.entry.name)));
        let mut number = 0;
        for at in 0..names.len() {
            number = if at > 0 && names[at].place == names[at - 1].place { number + 1 } else { 0 };
            let Listed { place, entry } = &names[at];
            let place = place + u64::min(number, NUMBER_MAX);
            if place >= from && !sink(seen(entry, place + 1 + DOTS)) {
                return Ok(false);
            }
        }
        damage
    }
}

/// An entry as it is listed, with the cookie of what comes after it.
fn seen<'a>(entry: &EntryView<'a>, next: u64) -> DirEntry<'a> {
    DirEntry { ino: InodeNo(u64::from(entry.ino)), kind: entry.kind(), name: entry.name, next }
}
