//! Taking blocks from files.
//!
//! **Orderings** (arrows read "comes after").
//! - the clearing of a pointer → what the caller says (for a truncation the lowered length, for an unlinked file
//!   the clearing of its last name);
//! - a bit in the free map is cleared → the clearing of the pointer that made the block unreachable. When a whole tree of
//!   indirect blocks goes, only the pointer to its root is cleared, everything below is freed after that, and the
//!   contents of the indirect blocks stay as they are: a crash before the root pointer is cleared finds the
//!   file whole;
//! - nothing, if the medium never held the pointer (its attachment and its clearing are one unflown patch);
//! - the count of blocks: no order, a hint.
//!
//! **Crash cases.** Between pointer and bits: leaked blocks.

use std::sync::Arc;

use fstitch_core::{BlockBuf, BlockKind, BlockNo, Error, Result, Structure};
use fstitch_patch::{Block, PatchId, PatchIds, Tx};

use super::alloc::FreedAfter;
use super::blockmap::{pointer, tree_span};
use super::inode::Inode;
use super::layout::inode::{DIRECT, POINTERS, pointer_field};
use super::num::{idx64, low32, wide};
use super::volume::Ext2;

/// What happens to an indirect block when a range of file blocks goes.
enum Fate {
    /// Everything under it goes, and it itself.
    Whole,
    /// Some pointers in it are cleared.
    Part(Vec<Cut>),
    /// Nothing under it is in the range.
    Untouched,
}

/// One change in an indirect block.
struct Cut {
    /// The pointer's position.
    at: usize,
    fate: Fate,
}

/// A range of file blocks, and what its removal does so far.
pub(super) struct Removal<'a> {
    from: u64,
    to: u64,
    befores: &'a [PatchId],
    pointers: PatchIds,
    /// Blocks freed, indirect ones included.
    pub(super) freed: u32,
    /// The first damage or failure met after pointers were cleared: the rest leaks.
    pub(super) failed: Option<Error>,
}

impl<'a> Removal<'a> {
    pub(super) fn new(from: u64, to: u64, befores: &'a [PatchId]) -> Self {
        Self { from, to, befores, pointers: PatchIds::new(), freed: 0, failed: None }
    }
}

/// A tree of `levels` indirect blocks over file blocks `first..first + span`; with 0 levels one data block.
#[derive(Clone, Copy)]
struct Tree {
    block: u64,
    levels: usize,
    first: u64,
    span: u64,
}

impl Tree {
    fn child(self, at: usize, block: u64, pointers: u64) -> Self {
        let span = self.span / pointers;
        Self { block, levels: self.levels - 1, first: self.first + wide(at) * span, span }
    }
}

/// Freed data blocks that follow each other, to be freed together.
#[derive(Default)]
pub(super) struct Freed {
    pub(super) start: u64,
    pub(super) count: u32,
}

impl Ext2 {
    /// Clears the pointers of file blocks `from..to` after `befores` and frees what becomes unreachable. Returns
    /// the pointer patches.
    pub(super) fn detach_range(
        &self,
        inode: &mut Inode,
        from: u64,
        to: u64,
        befores: &[PatchId],
    ) -> Result<PatchIds> {
        if from >= to || !inode.has_blocks(self) {
            return Ok(PatchIds::new());
        }
        self.watch.inode(inode.ino);
        if inode.has_extents() {
            return self.detach_extents(inode, (from, to), befores);
        }
        let inode_block = self.inode_block(inode)?;
        inode.leaf.forget();
        let fates = self.plan(inode, from, to)?;
        let mut removal = Removal::new(from, to, befores);
        self.cut_direct(inode, &inode_block, &mut removal);
        for (tree, root, fate) in fates {
            match fate {
                Fate::Whole => {
                    let clear = |inode: &mut Inode, tx: &mut Tx<'_>, befores: &[PatchId]| {
                        inode.disk.block[root] = 0;
                        inode.put(tx, &inode_block, (pointer_field(root), 0_u32), befores)
                    };
                    self.cut_whole(inode, &mut removal, &[tree], clear);
                }
                Fate::Part(cuts) => self.cut_part(inode, &mut removal, tree, &cuts),
                Fate::Untouched => {}
            }
        }
        if removal.freed > 0 {
            let mut tx = self.cache.lock();
            self.sub_sectors(&mut tx, inode, &inode_block, removal.freed);
        }
        self.close_window(inode);
        inode.last = None;
        self.give_back_preallocated_of(inode.ino);
        self.remember(inode);
        removal.failed.map_or(Ok(removal.pointers), Err)
    }

    /// Reads what is needed to know which indirect blocks go entirely, before anything changes.
    fn plan(&self, inode: &Inode, from: u64, to: u64) -> Result<Vec<(Tree, usize, Fate)>> {
        let mut fates = Vec::new();
        for root in DIRECT..POINTERS {
            let (first, span) = tree_span(root, self.pointers());
            let tree =
                Tree { block: u64::from(inode.disk.block[root]), levels: root - DIRECT + 1, first, span };
            if tree.block != 0 {
                let fate = self.fate(inode, tree, from, to)?;
                fates.push((tree, root, fate));
            }
        }
        Ok(fates)
    }

    fn fate(&self, inode: &Inode, tree: Tree, from: u64, to: u64) -> Result<Fate> {
        let end = tree.first + tree.span;
        if end <= from || tree.first >= to {
            return Ok(Fate::Untouched);
        }
        if from <= tree.first && end <= to {
            return Ok(Fate::Whole);
        }
        if tree.levels == 0 {
            return Ok(Fate::Untouched);
        }
        let bytes = self.read_indirect(inode, tree.block)?.snapshot();
        let mut cuts = Vec::new();
        let mut stays = false;
        for at in 0..idx64(self.pointers()) {
            let block = pointer(&bytes, at);
            if block == 0 {
                continue;
            }
            match self.fate(inode, tree.child(at, u64::from(block), self.pointers()), from, to)? {
                Fate::Untouched => stays = true,
                fate => {
                    stays |= matches!(fate, Fate::Part(_));
                    cuts.push(Cut { at, fate });
                }
            }
        }
        Ok(match (stays, cuts.is_empty()) {
            (false, _) => Fate::Whole,
            (true, true) => Fate::Untouched,
            (true, false) => Fate::Part(cuts),
        })
    }

    /// Clears direct pointers in the range: one patch from the first to the last that is set.
    fn cut_direct(&self, inode: &mut Inode, inode_block: &Block, removal: &mut Removal<'_>) {
        let from = idx64(removal.from.min(wide(DIRECT)));
        let to = idx64(removal.to.min(wide(DIRECT)));
        let set: Vec<usize> = (from..to).filter(|&at| inode.disk.block[at] != 0).collect();
        let (Some(&first), Some(&last)) = (set.first(), set.last()) else { return };
        let blocks: Vec<Tree> = set
            .iter()
            .map(|&at| Tree { block: u64::from(inode.disk.block[at]), levels: 0, first: wide(at), span: 1 })
            .collect();
        let clear = |inode: &mut Inode, tx: &mut Tx<'_>, befores: &[PatchId]| {
            inode.disk.block[first..=last].fill(0);
            let zeros = vec![0; (last + 1 - first) * 4];
            inode.put_bytes(tx, inode_block, (pointer_field(first).offset(), &zeros), befores)
        };
        self.cut_whole(inode, removal, &blocks, clear);
    }

    /// Clears the pointers to `trees` with `clear`, in one patch, and frees them.
    fn cut_whole(
        &self,
        inode: &mut Inode,
        removal: &mut Removal<'_>,
        trees: &[Tree],
        clear: impl FnOnce(&mut Inode, &mut Tx<'_>, &[PatchId]) -> PatchId,
    ) {
        let mut tx = self.cache.lock();
        let patch = clear(inode, &mut tx, removal.befores);
        drop(tx);
        removal.pointers.push(patch);
        let mut freed = Freed::default();
        for &tree in trees {
            // Which pointer's attachment is meant differs from block to block; the clearing is one.
            self.free_tree(inode, tree, patch, &mut freed, removal);
        }
        self.free_run(inode, &mut freed, patch, removal);
    }

    /// Clears some pointers in an indirect block that stays.
    fn cut_part(&self, inode: &mut Inode, removal: &mut Removal<'_>, tree: Tree, cuts: &[Cut]) {
        let block = match self.read_indirect(inode, tree.block) {
            Ok(block) => block,
            Err(error) => {
                removal.failed.get_or_insert(error);
                return;
            }
        };
        let bytes = block.snapshot();
        let whole: Vec<usize> =
            cuts.iter().filter(|cut| matches!(cut.fate, Fate::Whole)).map(|cut| cut.at).collect();
        if let (Some(&first), Some(&last)) = (whole.first(), whole.last()) {
            let trees: Vec<Tree> = whole
                .iter()
                .map(|&at| tree.child(at, u64::from(pointer(&bytes, at)), self.pointers()))
                .collect();
            let inside = cuts.iter().filter(|cut| (first..=last).contains(&cut.at));
            debug_assert!(inside.clone().all(|cut| matches!(cut.fate, Fate::Whole)), "ranges have no gaps");
            let clear = |inode: &mut Inode, tx: &mut Tx<'_>, befores: &[PatchId]| {
                let zeros = vec![0; (last + 1 - first) * 4];
                let patch = tx.bytes(&block, first * 4, &zeros, befores);
                inode.gather(tx, patch);
                patch
            };
            drop(bytes);
            self.cut_whole(inode, removal, &trees, clear);
        }
        for cut in cuts {
            if let Fate::Part(inner) = &cut.fate {
                let child = pointer(&block.snapshot(), cut.at);
                self.cut_part(inode, removal, tree.child(cut.at, u64::from(child), self.pointers()), inner);
            }
        }
    }

    /// Frees a tree whose root pointer `clearing` has cleared. Data blocks collect in `freed`.
    fn free_tree(
        &self,
        inode: &mut Inode,
        tree: Tree,
        clearing: PatchId,
        freed: &mut Freed,
        removal: &mut Removal<'_>,
    ) {
        if tree.levels == 0 {
            if freed.count == 0 || freed.start.checked_add(u64::from(freed.count)) != Some(tree.block) {
                self.free_run(inode, freed, clearing, removal);
                *freed = Freed { start: tree.block, count: 0 };
            }
            freed.count += 1;
            return;
        }
        self.free_run(inode, freed, clearing, removal);
        let after = self.freed_after(inode, tree.block, clearing).1;
        inode.attached.remove(tree.block, tree.block.saturating_add(1));
        self.free_under(tree, after, removal);
    }

    /// Frees an indirect block and everything under it: all of that was reachable only through it.
    fn free_under(&self, tree: Tree, after: FreedAfter, removal: &mut Removal<'_>) {
        let bytes = match self.take_leave(tree.block, after) {
            Ok(bytes) => bytes,
            Err(error) => {
                removal.failed.get_or_insert(error);
                return;
            }
        };
        removal.freed += 1;
        let mut freed = Freed::default();
        for at in 0..idx64(self.pointers()) {
            let block = pointer(&bytes, at);
            if block == 0 {
                continue;
            }
            let child = tree.child(at, u64::from(block), self.pointers());
            if child.levels > 0 {
                self.free_under(child, after, removal);
            } else if freed.count > 0
                && freed.start.checked_add(u64::from(freed.count)) == Some(u64::from(block))
            {
                freed.count += 1;
            } else {
                self.free_data(&mut freed, after, removal);
                freed = Freed { start: u64::from(block), count: 1 };
            }
        }
        self.free_data(&mut freed, after, removal);
    }

    /// Reads an indirect block for the last time and frees it. A block that is free already is not followed: damage may
    /// have tied the tree into a circle.
    fn take_leave(&self, block: u64, after: FreedAfter) -> Result<Arc<BlockBuf>> {
        let damaged = |problem: &str| Error::corrupt(Structure::Indirect, BlockNo(block), problem);
        if !self.is_file_run(block, 1)? {
            return Err(damaged("outside the blocks for files"));
        }
        if !self.is_used(block)? {
            return Err(damaged("marked as free"));
        }
        let bytes = self.cache.read(BlockNo(block), BlockKind::Indirect)?.snapshot();
        self.free_blocks(block, 1, after)?;
        Ok(bytes)
    }

    /// Frees a run of data blocks that `clearing` has made unreachable, in parts that were attached alike.
    pub(super) fn free_run(
        &self,
        inode: &mut Inode,
        freed: &mut Freed,
        clearing: PatchId,
        removal: &mut Removal<'_>,
    ) {
        let (start, end) = (freed.start, freed.start.saturating_add(u64::from(freed.count)));
        let mut at = start;
        while at < end {
            let (stop, after) = self.freed_after(inode, at, clearing);
            let stop = stop.min(end);
            self.free_data(&mut Freed { start: at, count: low32(stop - at) }, after, removal);
            at = stop;
        }
        inode.attached.remove(start, end);
        freed.count = 0;
    }

    pub(super) fn free_data(&self, freed: &mut Freed, after: FreedAfter, removal: &mut Removal<'_>) {
        if freed.count == 0 {
            return;
        }
        let outcome = self.is_file_run(freed.start, freed.count).and_then(|valid| {
            if valid {
                return self.free_blocks(freed.start, freed.count, after);
            }
            let problem = format!("a file's blocks {} and {} more", freed.start, freed.count - 1);
            Err(Error::corrupt(
                Structure::Pointer,
                None,
                format!("{problem} are outside the blocks for files"),
            ))
        });
        match outcome {
            Ok(()) => removal.freed += freed.count,
            Err(error) => drop(removal.failed.get_or_insert(error)),
        }
        freed.count = 0;
    }

    /// What the freeing of `block` must come after, and up to which block the same holds: nothing if the patch that
    /// made it reachable and `clearing` are one unflown patch.
    fn freed_after(&self, inode: &Inode, block: u64, clearing: PatchId) -> (u64, FreedAfter) {
        let pointer = FreedAfter::Pointer(clearing);
        if !self.cache.optimizations().elimination {
            return (u64::MAX, pointer);
        }
        match inode.attached.covering(block) {
            None => (inode.attached.next_after(block).unwrap_or(u64::MAX), pointer),
            Some((end, attaching)) => {
                let never = self.cache.lock().same(attaching, clearing);
                (end, if never { FreedAfter::Nothing } else { pointer })
            }
        }
    }

    /// Frees all blocks of an inode that `clearing` has cleared; `after` is what that means for the medium.
    pub(super) fn free_all_blocks(&self, blocks: &[u32; POINTERS], after: FreedAfter) -> Result<()> {
        let mut removal = Removal::new(0, u64::MAX, &[]);
        let mut freed = Freed::default();
        for &block in blocks[..DIRECT].iter().filter(|&&block| block != 0) {
            if freed.count > 0 && freed.start.checked_add(u64::from(freed.count)) == Some(u64::from(block)) {
                freed.count += 1;
            } else {
                self.free_data(&mut freed, after, &mut removal);
                freed = Freed { start: u64::from(block), count: 1 };
            }
        }
        self.free_data(&mut freed, after, &mut removal);
        for (levels, &block) in (1..).zip(&blocks[DIRECT..]) {
            if block != 0 {
                let (first, span) = tree_span(DIRECT + levels - 1, self.pointers());
                self.free_under(Tree { block: u64::from(block), levels, first, span }, after, &mut removal);
            }
        }
        removal.failed.map_or(Ok(()), Err)
    }
}
