//! Moving contents out of an inode, to a block: before a file's contents change, or a directory gets another name.
//!
//! **Layout.** A file's bytes come to lie at the start of the block, zeros behind them. A directory's entries follow `.` and `..` as
//! they are, with their lengths, the last one being longer: what was 4 bytes behind the start of its contents is 24 bytes behind the block's,
//! so a reader goes on where he was.
//!
//! **Orderings** (arrows read "comes after").
//! - the inode, one patch from its length to its last byte: map, flags, storage, the attributes without the one of the contents → the
//!   block's contents, its bit in the free map, and all changes of these bytes before it;
//! - what changes the length → that patch, which has its bytes;
//! - a name in the new block is taken away or stands for another inode → that patch ([`Inode::with_move`]);
//! - the contents are stable before the transaction in which the inode says where they are, whatever goes through the journal: they
//!   were stable before.
//!
//! **Invariants.** 1. A name or a byte is where the inode says, in the inode or in the block; never in both, never in none. 2. Without
//! a block for it, nothing has changed.
//!
//! **Crash cases.** Before the inode's patch: the contents are where they were, without a journal the block is leaked. A file that loses all
//! of its contents needs no block.

use std::sync::Arc;

use fstitch_core::{BlockBuf, BlockKind, BlockNo, Caller, FileKind, Result};
use fstitch_patch::{Block, PatchId, PatchIds};

use super::alloc::{Goal, Run, Wish};
use super::extents;
use super::inline::{DATA, PARENT};
use super::inode::Inode;
use super::layout::checksum::DIRECTORY_TAIL;
use super::layout::dirent::{self, D_REC_LEN, ENTRY_MIN, rec_len_field};
use super::layout::feature::incompat;
use super::layout::inode::{EXTENTS_FL, FAST_SYMLINK, I_SIZE, INDEX_FL, INLINE_DATA_FL, POINTERS};
use super::layout::xattr::INDEX_SYSTEM;
use super::num::{idx64, low32, pointer32, wide};
use super::volume::Ext2;

/// The block that contents move to.
struct Place {
    run: Run,
    block: Block,
    contents: BlockBuf,
}

impl Ext2 {
    /// Moves the contents of an inode out of it, as far as they are kept: the first `keep` bytes of a file. Returns the patches.
    pub(super) fn move_out(&self, caller: &Caller, inode: &mut Inode, keep: u64) -> Result<PatchIds> {
        assert!(inode.disk.has_inline_data(), "what is in blocks stays there");
        let inode_block = self.inode_block(inode)?;
        let mut attributes = self.read_body(inode)?;
        attributes.remove(INDEX_SYSTEM, DATA);
        let mut body = vec![0; self.body_range(inode).len()];
        if !attributes.encode_body(&mut body) {
            return Err(inode.damaged("its attributes overlap"));
        }
        let place = match inode.disk.kind {
            FileKind::Directory => Some(self.place_for_names(caller, inode)?),
            FileKind::Regular => self.place_for_bytes(caller, inode, keep)?,
            _ => return Err(inode.damaged("its contents cannot change")),
        };
        Ok(self.point_out(inode, &inode_block, (&body, place), keep))
    }

    /// A block with a file's bytes; none if there are none.
    fn place_for_bytes(&self, caller: &Caller, inode: &mut Inode, keep: u64) -> Result<Option<Place>> {
        let mut bytes = self.inline_bytes(inode)?;
        bytes.truncate(idx64(keep.min(wide(bytes.len()))));
        if bytes.len() > self.block_size() {
            return Err(inode.damaged("its contents are more than a block"));
        }
        if bytes.is_empty() {
            return Ok(None);
        }
        let run = self.take_data(caller, inode, 0, 1)?;
        inode.last = Some((1, run.start + 1));
        let mut contents = BlockBuf::zeroed(self.block_size());
        contents[..bytes.len()].copy_from_slice(&bytes);
        self.placed(run, contents, (BlockKind::Data, 0)).map(Some)
    }

    /// A block with a directory's names.
    fn place_for_names(&self, caller: &Caller, dir: &Inode) -> Result<Place> {
        let mut contents = BlockBuf::zeroed(self.block_size());
        self.put_names(dir, &mut contents)?;
        let group = Goal::Group(self.sb.group_of_inode(dir.ino));
        let run = self.take_wish(caller, Wish::new(group, 1).low(self.maps_low(dir)))?;
        self.placed(run, contents, (BlockKind::Directory, dir.owner()))
    }

    fn placed(&self, run: Run, contents: BlockBuf, (kind, owner): (BlockKind, u64)) -> Result<Place> {
        match self.cache.fresh_owned(BlockNo(run.start), kind, owner) {
            Ok(block) => Ok(Place { run, block, contents }),
            Err(error) => {
                self.give_back_run(&run);
                Err(error)
            }
        }
    }

    /// Fills the block of a directory: `.`, `..`, then the entries as they lie in the inode.
    pub(super) fn put_names(&self, dir: &Inode, block: &mut [u8]) -> Result<()> {
        let bytes = self.inline_bytes(dir)?;
        let parent = low32(self.inline_parent(dir).get());
        let summed = self.sb.features.has_sums();
        let end = block.len() - if summed { DIRECTORY_TAIL } else { 0 };
        let first = 2 * ENTRY_MIN;
        if parent == 0 || parent > self.sb.inodes_count || bytes.len() < FAST_SYMLINK {
            return Err(dir.damaged("a directory in its inode without a parent"));
        }
        let names = &bytes[PARENT..];
        let (inner, outer) = names.split_at(FAST_SYMLINK - PARENT);
        let (mut last, mut at) = (None, first);
        for part in [inner, outer] {
            for entry in dirent::inline_entries(part, dir.at.0, &self.sb) {
                last = Some(at + entry?.offset);
            }
            at += part.len();
        }
        let last =
            last.filter(|_| at <= end).ok_or_else(|| dir.damaged("its names are more than a block"))?;
        dirent::put_first_entries(block, dir.ino, parent, (self.sb.has_filetype(), summed));
        block[first..at].copy_from_slice(names);
        D_REC_LEN.put(&mut block[last..], rec_len_field(end - last));
        Ok(())
    }

    /// Fills the block and lets the inode, with these attributes, point at it.
    fn point_out(
        &self,
        inode: &mut Inode,
        inode_block: &Block,
        (body, place): (&[u8], Option<Place>),
        keep: u64,
    ) -> PatchIds {
        self.watch.inode(inode.ino);
        let by_extents = self.sb.features.has_incompat(incompat::EXTENTS);
        let start = place.as_ref().map(|place| place.run.start);
        let is_dir = inode.disk.kind == FileKind::Directory;
        let disk = &mut inode.disk;
        disk.flags = disk.flags & !(INLINE_DATA_FL | INDEX_FL) | if by_extents { EXTENTS_FL } else { 0 };
        disk.block = if by_extents {
            extents::new_root(start.map(|start| (start, 1)))
        } else {
            let mut block = [0; POINTERS];
            block[0] = start.map_or(0, pointer32);
            block
        };
        // In the same patch: with what is cut off gone, the old length would show zeros.
        disk.size = if is_dir { wide(self.block_size()) } else { disk.size.min(keep) };
        disk.sectors += if start.is_some() { self.sectors_per_block() } else { 0 };
        let mut befores = PatchIds::new();
        let mut patches = PatchIds::new();
        let mut tx = self.cache.lock();
        if let Some(Place { run, block, contents }) = place {
            let contents = Arc::new(contents);
            let init = if is_dir {
                tx.init(&block, contents, &run.reuse)
            } else {
                tx.note_new(&block);
                tx.init_kept(&block, contents, &run.reuse)
            };
            befores.push(init);
            befores.extend(run.bits.iter().copied());
            patches.push(init);
        }
        let (from, size) = (I_SIZE.offset(), usize::from(self.sb.inode_size));
        let mut raw = tx.data(inode_block)[inode.at.1..inode.at.1 + size].to_vec();
        inode.disk.put_map(&mut raw, self.sb.block_size);
        raw[size - body.len()..].copy_from_slice(body);
        let patch = inode.put_bytes(&mut tx, inode_block, (from, &raw[from..]), &befores);
        patches.push(patch);
        drop(tx);
        self.note_moved(inode, (start, is_dir), patch);
        patches
    }

    /// What is remembered of an inode whose contents have moved.
    fn note_moved(&self, inode: &mut Inode, (start, is_dir): (Option<u64>, bool), patch: PatchId) {
        inode.moved = patch;
        inode.leaf.forget();
        inode.node_hint.forget();
        if let Some(start) = start {
            inode.attached.insert(start, 1, patch);
            if is_dir {
                self.memory.set_links(start, PatchIds::from_slice(&[patch]), &self.cache);
            }
        }
        // Whoever asked for its blocks before was told that there are none.
        inode.dir = std::sync::OnceLock::new();
        self.remember(inode);
    }
}
