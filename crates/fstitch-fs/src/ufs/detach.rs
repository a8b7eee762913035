//! Taking blocks from files.
//!
//! **Orderings** (arrows read "comes after").
//! - the clearing of a pointer → what the caller says (for a truncation the lowered length, for an unlinked file the clearing of its last
//!   name);
//! - fragments are free → the clearing of the pointer that made them unreachable. When a whole tree goes, only the pointer to its root is
//!   cleared, everything below is freed after that, and the blocks of pointers stay as they are: a crash before the root's pointer is
//!   cleared finds the file whole;
//! - the count of blocks: no order, a hint.
//!
//! **Crash cases.** Between pointer and bits: leaked fragments.

use fstitch_core::num::to_u64;
use fstitch_core::{BlockNo, Error, Result, Structure};
use fstitch_patch::{PatchId, PatchIds};

use super::layout::inode::{DIRECT, INDIRECT, places};
use super::path::tree_span;
use super::volume::{Inode, Ufs};
use crate::num::{idx, idx64};

/// A range of file blocks, and what its removal does so far.
struct Removal<'a> {
    from: u64,
    to: u64,
    befores: &'a [PatchId],
    pointers: PatchIds,
    freed: u64,
    /// The first damage or failure met after pointers were cleared: the rest leaks.
    failed: Option<Error>,
    /// What was unreachable, if a length comes before it is freed: where it begins, and the levels of pointers of a tree.
    kept: Option<Vec<(u64, usize)>>,
}

/// What comes before a shorter length: patches, what is free after it, and why some of it is not.
pub(super) struct Cleared {
    pub(super) befores: PatchIds,
    pub(super) unreachable: Vec<(u64, usize)>,
    pub(super) failed: Option<Error>,
}

impl<'a> Removal<'a> {
    fn new((from, to): (u64, u64), befores: &'a [PatchId]) -> Self {
        Self { from, to, befores, pointers: PatchIds::new(), freed: 0, failed: None, kept: None }
    }

    fn has(&self, (first, span): (u64, u64)) -> bool {
        self.from <= first && first + span <= self.to
    }

    fn touches(&self, (first, span): (u64, u64)) -> bool {
        first < self.to && self.from < first + span
    }

    fn note(&mut self, done: Result<u64>) {
        match done {
            Ok(count) => self.freed += count,
            Err(error) => drop(self.failed.get_or_insert(error)),
        }
    }
}

impl Ufs {
    /// Clears the pointers of the whole blocks among file fragments `from..to` after `befores`, and frees what becomes unreachable. The
    /// block in which the file ends is left alone. Returns the pointer patches.
    pub(super) fn detach_range(
        &self,
        inode: &mut Inode,
        (from, to): (u64, u64),
        befores: &[PatchId],
    ) -> Result<PatchIds> {
        self.settle_late(inode);
        let per_block = self.per_block();
        let from = from.div_ceil(per_block);
        let mut to = if to == u64::MAX { self.blocks_max() } else { (to / per_block).min(self.blocks_max()) };
        let covered = self.blocks_of(inode.disk.size);
        if from < covered {
            to = to.min(covered - 1);
        }
        if from >= to || !inode.has_blocks(&self.sb) {
            return Ok(PatchIds::new());
        }
        let mut removal = Removal::new((from, to), befores);
        self.cut_inode(inode, &mut removal)?;
        for slot in 0..INDIRECT {
            let (root, span) = (inode.disk.indirect[slot], tree_span(DIRECT + slot, self.pointers()));
            if root != 0 && removal.touches(span) {
                self.cut_node(inode, (root, slot + 1), span, &mut removal);
            }
        }
        inode.last = None;
        if removal.freed > 0 {
            self.sub_sectors(inode, removal.freed)?;
        }
        self.remember(inode);
        removal.failed.map_or(Ok(removal.pointers), Err)
    }

    /// Clears, after `befores`, the pointers to what is behind block `from` in blocks of pointers that a file keeps: from its end on, one
    /// patch after the other. What they lead to is not free yet.
    pub(super) fn clear_behind(&self, inode: &mut Inode, from: u64, befores: &[PatchId]) -> Cleared {
        let mut removal = Removal::new((from, self.blocks_max()), befores);
        removal.kept = Some(Vec::new());
        for slot in (0..INDIRECT).rev() {
            let (root, span) = (inode.disk.indirect[slot], tree_span(DIRECT + slot, self.pointers()));
            if root != 0 && removal.touches(span) && !removal.has(span) {
                self.cut_node(inode, (root, slot + 1), span, &mut removal);
            }
        }
        let mut befores = PatchIds::from_slice(befores);
        befores.extend(removal.pointers);
        Cleared { befores, unreachable: removal.kept.unwrap_or_default(), failed: removal.failed }
    }

    /// Clears the pointers in the inode to what goes as a whole: one patch over all of them.
    fn cut_inode(&self, inode: &mut Inode, removal: &mut Removal<'_>) -> Result<()> {
        let block = self.inode_block(inode)?;
        let mut runs = Vec::new();
        let mut trees = Vec::new();
        for at in 0..to_u64(DIRECT) {
            if inode.disk.direct[idx64(at)] != 0 && removal.has((at, 1)) {
                let start = std::mem::take(&mut inode.disk.direct[idx64(at)]);
                runs.push((start, self.allocated_len(inode, at)));
            }
        }
        for slot in 0..INDIRECT {
            let span = tree_span(DIRECT + slot, self.pointers());
            if inode.disk.indirect[slot] != 0 && removal.has(span) {
                trees.push((std::mem::take(&mut inode.disk.indirect[slot]), slot + 1));
            }
        }
        if runs.is_empty() && trees.is_empty() {
            return Ok(());
        }
        let at = places(self.sb.version).pointers;
        let end = at + idx(self.sb.version.pointer_size()) * (DIRECT + INDIRECT);
        let mut raw = vec![0; idx(self.sb.version.inode_size())];
        inode.disk.encode_pointers(&mut raw, &self.sb);
        let mut tx = self.cache.lock();
        let patch = inode.put(&mut tx, &block, (at, &raw[at..end]), removal.befores);
        drop(tx);
        removal.pointers.push(patch);
        for (start, count) in runs {
            removal.note(self.free_checked(inode, start, count, Some(patch)));
        }
        for (root, levels) in trees {
            removal.note(self.free_tree(inode, root, levels, Some(patch)));
        }
        Ok(())
    }

    /// Clears pointers in a block of them that stays, and in those below it.
    fn cut_node(
        &self,
        inode: &mut Inode,
        (node, levels): (u64, usize),
        (first, span): (u64, u64),
        removal: &mut Removal<'_>,
    ) {
        let pointers = match self.read_pointers(inode, node) {
            Ok(pointers) => pointers,
            Err(error) => return removal.note(Err(error)),
        };
        let each = span / self.pointers();
        let below = |slot: u64| (first + slot * each, each);
        let whole: Vec<u64> = (0..self.pointers())
            .filter(|&slot| pointers[idx64(slot)] != 0 && removal.has(below(slot)))
            .collect();
        if let (Some(&low), Some(&high)) = (whole.first(), whole.last()) {
            let blocks = match self.pointer_blocks(node, low, high + 1) {
                Ok(blocks) => blocks,
                Err(error) => return removal.note(Err(error)),
            };
            for block in blocks.into_iter().rev() {
                // Each fragment of the block has a patch of its own, after which only what it pointed at is free.
                let (from, to) = (block.1, block.2);
                let mut befores = PatchIds::from_slice(removal.befores);
                if removal.kept.is_some() {
                    befores.extend(removal.pointers.last().copied());
                }
                let mut tx = self.cache.lock();
                let patches = self.put_pointers(&mut tx, inode, &[block], |_| 0, &befores);
                drop(tx);
                for slot in whole.iter().copied().filter(|slot| (from..to).contains(slot)) {
                    let child = pointers[idx64(slot)];
                    if let Some(kept) = &mut removal.kept {
                        kept.push((child, levels - 1));
                        continue;
                    }
                    let freed = match levels {
                        1 => self.free_checked(inode, child, self.per_block(), patches.last().copied()),
                        _ => self.free_tree(inode, child, levels - 1, patches.last().copied()),
                    };
                    removal.note(freed);
                }
                removal.pointers.extend(patches);
            }
        }
        if levels > 1 {
            for slot in 0..self.pointers() {
                let (child, span) = (pointers[idx64(slot)], below(slot));
                if child != 0 && removal.touches(span) && !removal.has(span) {
                    self.cut_node(inode, (child, levels - 1), span, removal);
                }
            }
        }
    }

    /// Frees fragments of a file; returns how many.
    pub(super) fn free_checked(
        &self,
        inode: &Inode,
        start: u64,
        count: u64,
        after: Option<PatchId>,
    ) -> Result<u64> {
        self.check_range(inode.ino, start, count)?;
        self.free(start, count, after)?;
        Ok(count)
    }

    /// Frees a block of pointers and everything below it: all of that was reachable only through it. A block that is free already is not
    /// followed: damage may have tied the tree into a circle. Returns how many fragments were freed.
    pub(super) fn free_tree(
        &self,
        inode: &Inode,
        node: u64,
        levels: usize,
        after: Option<PatchId>,
    ) -> Result<u64> {
        let per_block = self.per_block();
        self.check_range(inode.ino, node, per_block)?;
        if !self.are_used(node, per_block)? {
            return Err(Error::corrupt(Structure::Indirect, BlockNo(node), "marked as free"));
        }
        let pointers = self.read_pointers(inode, node)?;
        let mut freed = self.free_checked(inode, node, per_block, after)?;
        let mut run = (0, 0);
        for child in pointers.into_iter().filter(|&child| child != 0) {
            if levels > 1 {
                freed += self.free_tree(inode, child, levels - 1, after)?;
            } else if run.1 > 0 && run.0 + run.1 == child {
                run.1 += per_block;
            } else {
                freed += self.free_some(inode, run, after)?;
                run = (child, per_block);
            }
        }
        Ok(freed + self.free_some(inode, run, after)?)
    }

    fn free_some(&self, inode: &Inode, (start, count): (u64, u64), after: Option<PatchId>) -> Result<u64> {
        if count == 0 { Ok(0) } else { self.free_checked(inode, start, count, after) }
    }
}
