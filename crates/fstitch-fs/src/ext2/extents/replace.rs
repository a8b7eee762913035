//! Other blocks in place of some that a file has.
//!
//! **Orderings.** Without a journal the map and the inode's flags change by one patch of the inode, which comes after the contents and
//! bits of the new blocks and of copies of all nodes on the way, and after what the caller says; the blocks that were
//! there are free after it.
//!
//! **Crash cases.** Before the patch: leaked blocks, the new ones. After it: leaked blocks, the old ones.

use std::sync::Arc;

use fstitch_core::{BlockBuf, BlockKind, BlockNo, Caller, Errno, Result};
use fstitch_patch::{Block, PatchId, PatchIds};

use crate::ext2::alloc::{FreedAfter, Goal, Run};
use crate::ext2::detach::{Freed, Removal};
use crate::ext2::inode::Inode;
use crate::ext2::volume::Ext2;

/// A block that comes in place of file block `index`.
struct Substitute {
    index: u32,
    run: Run,
    block: Block,
    contents: BlockBuf,
}

impl Ext2 {
    /// Puts new blocks with these contents in place of file blocks that `dir`, a directory, has, and sets its flags, all by one patch
    /// that comes after `befores`. Returns the patch, and the new blocks in order.
    pub(in crate::ext2) fn replace_blocks(
        &self,
        dir: &mut Inode,
        contents: Vec<(u32, BlockBuf)>,
        flags: u32,
        befores: &[PatchId],
    ) -> Result<(PatchId, Vec<u64>)> {
        assert!(self.copies_nodes() && dir.has_extents(), "without a journal, and with a map of extents");
        let mut substitutes = Vec::new();
        let taken = self.take_substitutes(dir, contents, &mut substitutes);
        if let Err(error) = taken {
            substitutes.iter().for_each(|substitute| self.give_back_run(&substitute.run));
            self.drop_spare_nodes(dir);
            return Err(error);
        }
        let mut after = PatchIds::from_slice(befores);
        let mut places = Vec::new();
        let mut tx = self.cache.lock();
        for Substitute { index, run, block, contents } in substitutes {
            after.push(tx.init(&block, Arc::new(contents), &run.reuse));
            after.extend(run.bits.iter().copied());
            places.push((index, run));
        }
        drop(tx);
        let replaced = self.change_tree_and(dir, (&after, Some(flags)), |tree| {
            places.iter().try_for_each(|(index, run)| tree.replace(*index, run.start))
        });
        let changed = match replaced {
            Ok(changed) => changed,
            Err(error) => {
                places.iter().for_each(|(_, run)| self.give_back_run(run));
                self.drop_spare_nodes(dir);
                return Err(error);
            }
        };
        let patch = changed.clearing(None).ok_or(Errno::IO)?;
        let mut removal = Removal::new(0, 0, &[]);
        for lost in &changed.lost {
            let mut freed = Freed { start: lost.start, count: lost.count };
            self.free_data(&mut freed, FreedAfter::Pointer(patch), &mut removal);
        }
        let new: Vec<u64> = places.iter().map(|(_, run)| run.start).collect();
        let count = u32::try_from(new.len()).expect("blocks of one directory");
        self.finish_change(dir, (&changed, count), &mut removal)?;
        self.remember(dir);
        removal.failed.map_or(Ok((patch, new)), Err)
    }

    fn take_substitutes(
        &self,
        dir: &mut Inode,
        contents: Vec<(u32, BlockBuf)>,
        into: &mut Vec<Substitute>,
    ) -> Result<()> {
        let caller = Caller::default();
        let group = self.sb.group_of_inode(dir.ino);
        for (index, contents) in contents {
            let run = self.take_blocks(&caller, Goal::Group(group), 1)?;
            let no = BlockNo(run.start);
            match self.cache.fresh_owned(no, BlockKind::Directory, dir.owner()) {
                Ok(block) => into.push(Substitute { index, run, block, contents }),
                Err(error) => {
                    self.give_back_run(&run);
                    return Err(error);
                }
            }
        }
        let depth = usize::from(self.tree(dir)?.root.depth);
        // Each may split all nodes on its way and have them copied.
        self.reserve_nodes(&caller, dir, into.len() * (2 * depth + 2))
    }
}
