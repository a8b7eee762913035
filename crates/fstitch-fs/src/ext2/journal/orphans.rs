//! The list of orphans: files without a name that were open, and truncations under way, when the volume was left.
//!
//! **Layout.** `s_last_orphan` names the first one; each one's `i_dtime` names the next, 0 ends the list. One without
//! links is to be freed, any other is to be cut to its length.
//!
//! **Crash cases.** All changes go through the journal in batches, each a transaction. A large file takes several,
//! from its end forward, and stays on the list until the last: after each, the volume is consistent and its list
//! says what is left to do.

use fstitch_core::{BlockKind, BlockNo, Error, FileKind, InodeNo, Le, Result, Structure};

use super::orphan_file::OrphanFile;
use super::pass::{Loaded, Pass};
use super::raw::{JOURNAL_INO, S_FEATURE_RO_COMPAT, S_LAST_ORPHAN, S_MKFS_TIME};
use crate::ext2::layout::feature::{incompat, ro_compat};
use crate::ext2::layout::inode::{
    self, DIRECT, DiskInode, I_BLOCKS, I_BLOCKS_HIGH, I_DTIME, I_FILE_ACL, I_FILE_ACL_HIGH, I_LINKS_COUNT,
    I_SIZE, I_SIZE_HIGH, POINTERS, pointer_field,
};
use crate::ext2::num::{idx, idx64, low32, wide};

/// What became of the orphans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Orphans {
    /// Inodes freed.
    pub freed: u32,
    /// Files cut to their length.
    pub cut: u32,
    /// The list was dropped: the volume has errors, and only a check can tell what may be freed.
    pub dropped: bool,
}

/// Where an orphan's number stands.
#[derive(Clone, Copy)]
enum Origin<'f> {
    /// It is the first of the list.
    List,
    /// In this block of the orphan file, at this byte.
    File(&'f OrphanFile, (BlockNo, usize)),
}

/// What became of the blocks under a pointer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Freed {
    /// All are free, the one that it points at included.
    All,
    /// Some must stay.
    Part,
    /// Some must go yet, in another batch.
    Unfinished,
}

impl<'a, 'd> Pass<'a, 'd> {
    /// Frees and cuts all orphans.
    ///
    /// # Errors
    /// `Corrupt` at the first that cannot be one; what was done before is whole.
    pub(super) fn run(mut self) -> Result<Orphans> {
        let mut done = Orphans::default();
        loop {
            let first = self.field(S_LAST_ORPHAN)?;
            if first == 0 {
                break;
            }
            let worked = self.orphan(first, Origin::List, &mut done);
            // What stands before the damaged one was prepared in full, so it may go out before the error does.
            if worked.is_err() || self.is_due || self.is_full() {
                self.send()?;
            }
            worked?;
        }
        self.run_file(&mut done)?;
        self.send()?;
        Ok(done)
    }

    /// Does the same for the numbers in the orphan file, and says that there are none any more.
    fn run_file(&mut self, done: &mut Orphans) -> Result<()> {
        if !self.shape.features.has_ro_compat(ro_compat::ORPHAN_PRESENT) {
            return Ok(());
        }
        if let Some(file) = OrphanFile::find(&self.volume, &self.shape)? {
            for (no, slot) in file.slots() {
                loop {
                    let ino = Le::u32(&self.read(no, BlockKind::Data)?, slot);
                    if ino == 0 {
                        break;
                    }
                    let worked = self.orphan(ino, Origin::File(&file, (no, slot)), done);
                    if worked.is_err() || self.is_due || self.is_full() {
                        self.send()?;
                    }
                    worked?;
                }
            }
        }
        let raw = self.superblock()?;
        let word = S_FEATURE_RO_COMPAT.get(raw) & !ro_compat::ORPHAN_PRESENT;
        S_FEATURE_RO_COMPAT.put(raw, word);
        Ok(())
    }

    // ---- freeing ----

    /// Frees the blocks under `pointer`, `levels` above the file's blocks of which the first one is `first`, from the
    /// end to file block `keep`. `count` is how many blocks were freed.
    fn free_tree(
        &mut self,
        (pointer, levels): (u32, usize),
        first: u64,
        keep: u64,
        count: &mut u32,
    ) -> Result<Freed> {
        if levels == 0 {
            if first < keep {
                return Ok(Freed::Part);
            }
            if self.is_full() {
                return Ok(Freed::Unfinished);
            }
            self.free_block(u64::from(pointer))?;
            *count += 1;
            return Ok(Freed::All);
        }
        if !self.shape.is_for_files(u64::from(pointer)) {
            return Err(Error::corrupt(Structure::Orphan, None, format!("its indirect block {pointer}")));
        }
        let pointers = u64::from(self.shape.pointers_per_block());
        let span = (1..levels).fold(1, |span, _| span * pointers);
        let no = BlockNo(u64::from(pointer));
        let block = self.read(no, BlockKind::Indirect)?;
        let mut left = block.clone();
        let mut found = if first < keep { Freed::Part } else { Freed::All };
        for at in (0..idx64(pointers)).rev() {
            let child = Le::u32(&block, at * 4);
            let child_first = first + wide(at) * span;
            if child == 0 || child_first + span <= keep {
                continue;
            }
            match self.free_tree((child, levels - 1), child_first, keep, count)? {
                Freed::All => Le::put_u32(&mut left, at * 4, 0),
                Freed::Part => {}
                Freed::Unfinished => {
                    found = Freed::Unfinished;
                    break;
                }
            }
        }
        if found == Freed::All && !self.is_full() {
            self.free_block(u64::from(pointer))?;
            *count += 1;
            return Ok(Freed::All);
        }
        if left[..] != block[..] {
            *self.change(no, BlockKind::Indirect)? = left;
        }
        Ok(if found == Freed::All { Freed::Unfinished } else { found })
    }

    /// Frees the inode's blocks from the end to file block `keep`; whether that is finished.
    pub(super) fn free_from(&mut self, orphan: &mut Loaded, keep: u64) -> Result<bool> {
        if orphan.disk.has_extents() {
            return self.free_extents(orphan, keep);
        }
        let pointers = u64::from(self.shape.pointers_per_block());
        let mut count = 0;
        let mut finished = true;
        for at in (0..POINTERS).rev() {
            let levels = at.saturating_sub(DIRECT - 1);
            let first = tree_first(at, pointers);
            let pointer = orphan.disk.block[at];
            if pointer == 0 {
                continue;
            }
            match self.free_tree((pointer, levels), first, keep, &mut count)? {
                Freed::All => orphan.disk.block[at] = 0,
                Freed::Part => {}
                Freed::Unfinished => {
                    finished = false;
                    break;
                }
            }
        }
        self.lose_sectors(orphan, count);
        Ok(finished)
    }

    /// Takes blocks from the inode's count of them.
    pub(super) fn lose_sectors(&self, orphan: &mut Loaded, count: u32) {
        orphan.disk.sectors =
            orphan.disk.sectors.saturating_sub(u64::from(count) * u64::from(self.shape.block_size / 512));
    }

    // ---- the list ----

    fn load(&self, ino: u32) -> Result<Loaded> {
        let damaged =
            |problem: &str| Error::corrupt(Structure::OrphanList, None, format!("inode {ino} {problem}"));
        let lowest = self.shape.first_ino.max(JOURNAL_INO + 1);
        if ino > self.shape.inodes_count || ino < lowest || self.shape.is_own_inode(ino) {
            return Err(damaged("is none for files"));
        }
        let group = self.shape.group_of_inode(ino);
        let (_, _, descriptor) = self.descriptor(group)?;
        let bit = (ino - 1) % self.shape.inodes_per_group;
        let bitmap = self.read(BlockNo(descriptor.inode_bitmap), BlockKind::InodeBitmap)?;
        if bitmap[idx(bit / 8)] & 1 << (bit % 8) == 0 {
            return Err(damaged("is free"));
        }
        let at = inode::place(&self.shape, descriptor.inode_table, ino);
        let block = self.read(at.0, BlockKind::Inode)?;
        let bytes = &block[at.1..at.1 + usize::from(self.shape.inode_size)];
        let disk = DiskInode::parse(bytes, InodeNo(u64::from(ino)), at.0, &self.shape)?;
        Ok(Loaded { ino, group, at, disk })
    }

    /// Frees or cuts the first orphan and takes it off the list, or does as much of it as the batch has room for.
    fn orphan(&mut self, ino: u32, origin: Origin<'_>, done: &mut Orphans) -> Result<()> {
        let before = (self.changed.clone(), self.summed.clone());
        let worked = self.load(ino).and_then(|orphan| self.finish(orphan, origin, done));
        if worked.is_err() {
            (self.changed, self.summed) = before;
        }
        worked
    }

    fn finish(&mut self, mut orphan: Loaded, origin: Origin<'_>, done: &mut Orphans) -> Result<()> {
        let sums = self.shape.sums.of_inode(orphan.ino, orphan.disk.generation);
        self.summed.nodes_of = orphan.disk.has_extents().then_some(sums);
        self.summed.inodes.insert(orphan.ino, orphan.at);
        let next = orphan.disk.dtime;
        let frees = orphan.disk.nlink == 0;
        let block_size = u64::from(self.shape.block_size);
        let cuts = orphan.disk.kind == FileKind::Regular;
        let keep = if frees { 0 } else { orphan.disk.size.div_ceil(block_size) };
        if orphan.disk.has_blocks(self.shape.block_size) && (frees || cuts) {
            if !self.free_from(&mut orphan, keep)? {
                return self.put_blocks(&orphan);
            }
            if cuts && !frees {
                self.clear_tail(&orphan)?;
            }
        }
        self.put_blocks(&orphan)?;
        if frees {
            if self.shape.features.has_incompat(incompat::EA_INODE) && !self.free_values(&orphan)? {
                return Ok(());
            }
            if orphan.disk.xattr_block != 0 {
                self.free_attributes(orphan.disk.xattr_block)?;
            }
            self.free_inode(&orphan)?;
            done.freed += 1;
        } else {
            done.cut += 1;
        }
        let dtime = if frees { self.deletion_time()? } else { 0 };
        let bytes = &mut self.change(orphan.at.0, BlockKind::Inode)?[orphan.at.1..];
        I_DTIME.put(bytes, dtime);
        if frees {
            I_SIZE.put(bytes, 0);
            I_LINKS_COUNT.put(bytes, 0);
            I_FILE_ACL.put(bytes, 0);
            I_FILE_ACL_HIGH.put(bytes, 0);
            I_BLOCKS.put(bytes, 0);
            // The high half of a length is a file's; elsewhere the word means something else.
            if orphan.disk.kind == FileKind::Regular {
                I_SIZE_HIGH.put(bytes, 0);
            }
        }
        match origin {
            Origin::List => S_LAST_ORPHAN.put(self.superblock()?, next),
            Origin::File(file, (no, slot)) => {
                let block = self.change(no, BlockKind::Data)?;
                Le::put_u32(block, slot, 0);
                file.seal(no, block);
            }
        }
        Ok(())
    }

    /// Writes what freeing blocks has changed of the inode.
    pub(super) fn put_blocks(&mut self, orphan: &Loaded) -> Result<()> {
        let (low, high) = orphan.disk.storage_fields(self.shape.block_size);
        let counted_high = self.shape.features.has_ro_compat(ro_compat::HUGE_FILE);
        let bytes = &mut self.change(orphan.at.0, BlockKind::Inode)?[orphan.at.1..];
        I_BLOCKS.put(bytes, low);
        if counted_high {
            I_BLOCKS_HIGH.put(bytes, high);
        }
        for (at, &pointer) in orphan.disk.block.iter().enumerate() {
            pointer_field(at).put(bytes, pointer);
        }
        Ok(())
    }

    /// Zeroes the last block of a file from its end on, which a larger length would show.
    fn clear_tail(&mut self, orphan: &Loaded) -> Result<()> {
        let block_size = u64::from(self.shape.block_size);
        let tail = idx64(orphan.disk.size % block_size);
        if tail == 0 {
            return Ok(());
        }
        if let Some(no) = self.block_at(orphan, orphan.disk.size / block_size)? {
            self.change(no, BlockKind::Data)?[tail..].fill(0);
        }
        Ok(())
    }

    /// Where file block `index` is.
    pub(super) fn block_at(&self, orphan: &Loaded, index: u64) -> Result<Option<BlockNo>> {
        if orphan.disk.has_extents() {
            return self.extent_at(orphan, index);
        }
        let pointers = u64::from(self.shape.pointers_per_block());
        let root = (0..POINTERS).rev().find(|&at| tree_first(at, pointers) <= index).expect("the first is 0");
        let levels = root.saturating_sub(DIRECT - 1);
        let mut rest = index - tree_first(root, pointers);
        let mut pointer = orphan.disk.block[root];
        for level in (0..levels).rev() {
            if pointer == 0 {
                return Ok(None);
            }
            let block = self.read(BlockNo(u64::from(pointer)), BlockKind::Indirect)?;
            let span = (0..level).fold(1, |span, _| span * pointers);
            pointer = Le::u32(&block, idx64(rest / span) * 4);
            rest %= span;
        }
        if pointer != 0 && !self.shape.is_for_files(u64::from(pointer)) {
            return Err(Error::corrupt(
                Structure::Orphan,
                None,
                format!("its block {pointer} is outside the volume"),
            ));
        }
        Ok((pointer != 0).then(|| BlockNo(u64::from(pointer))))
    }

    /// When an inode is freed now. Small numbers would be taken for links of the list.
    pub(super) fn deletion_time(&self) -> Result<u32> {
        let made = self.field(S_MKFS_TIME)?;
        Ok(low32(self.now.secs.max(0).cast_unsigned()).max(made).max(1))
    }
}

/// The first file block under pointer `at` of an inode.
fn tree_first(at: usize, pointers: u64) -> u64 {
    let direct = wide(DIRECT);
    match at {
        _ if at < DIRECT => wide(at),
        12 => direct,
        13 => direct + pointers,
        _ => direct + pointers + pointers * pointers,
    }
}
