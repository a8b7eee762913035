//! Pointers behind a file's end, in blocks of pointers: they come to the medium after the length that needs them.
//!
//! **Orderings** (arrows read "comes after").
//! - such a pointer → the length, the pointers that were set before it, contents and bits of what it points at, and of the blocks of
//!   pointers on the way to that.
//!
//! **Why.** A check cuts a file to the last block that it has. A pointer behind the end it would clear as well, but FreeBSD's stops there
//! when nobody attends it (`fsck -p`). Directories have it the other way round: no check goes on at a hole in one.
//!
//! **Crash cases.** Length without pointers: a length behind the last block, of what was being written. Who looks at a volume before a
//! check has mended that sees the file as it is then.

use fstitch_core::num::to_u64;
use fstitch_core::{BlockNo, FileKind, Result};
use fstitch_patch::{Block, PatchIds, Tx};

use super::layout::inode::{DIRECT, INDIRECT, flag};
use super::path::tree_span;
use super::volume::{Inode, Ufs};

/// Blocks of pointers that are looked at to find a file's last block: what a crash has left is found in a few.
const NODES_MAX: u32 = 64;

/// A search for a file's last block before `end`.
struct Search {
    end: u64,
    nodes: u32,
}

/// Pointers to blocks that follow each other on the medium.
pub(super) struct Late {
    /// The block of pointers.
    pub(super) node: u64,
    /// The first pointer in it.
    pub(super) slot: u64,
    /// Where it leads.
    pub(super) start: u64,
    pub(super) count: u64,
    /// The fragments of `node` that have them.
    pub(super) places: Vec<(Block, u64, u64)>,
    /// What they come after.
    pub(super) befores: PatchIds,
    /// The blocks of pointers that a file has by them.
    pub(super) below: Vec<u64>,
}

/// Such pointers of a file.
#[derive(Default)]
pub(super) struct LatePointers {
    /// Those that wait for a length.
    waiting: Vec<Late>,
    /// The last ones that were put into their places.
    last: LastLate,
}

/// The last pointers that were put into their places.
///
/// Those of one fragment need no order among themselves: whatever the earlier ones come after, the later ones do as well, by the length. So
/// when these may be written, all may.
#[derive(Default)]
struct LastLate {
    /// The fragment that has them.
    place: Option<BlockNo>,
    /// Their patches.
    last: PatchIds,
    /// The last ones of the fragment before.
    before: PatchIds,
    /// The pointer behind them.
    end: Option<u64>,
}

impl LastLate {
    /// The next ones are of this fragment; they have no length that says all of that.
    fn go_on(&mut self, place: BlockNo, has_no_length: bool) {
        if self.place != Some(place) || has_no_length {
            self.before = std::mem::take(&mut self.last);
            (self.place, self.end) = (Some(place), None);
        }
    }
}

impl Late {
    fn pointer(&self, slot: u64, per_block: u64) -> u64 {
        self.start + (slot - self.slot) * per_block
    }
}

impl Inode {
    /// Adds pointers, which wait for a length.
    pub(super) fn add_late(&mut self, late: Late) {
        self.late.get_or_insert_default().waiting.push(late);
    }

    /// Whether pointers behind its end come after the length, and are cleared before it.
    pub(super) fn has_length_first(&self) -> bool {
        self.disk.kind == FileKind::Regular
    }

    /// Whether some wait.
    pub(super) fn has_late(&self) -> bool {
        self.late.as_ref().is_some_and(|late| !late.waiting.is_empty())
    }
}

impl Ufs {
    /// Pointer `slot` of a file's block of pointers `node`, also before it is put there.
    pub(super) fn child(&self, inode: &Inode, node: u64, slot: u64) -> Result<u64> {
        let is_it = |late: &&Late| late.node == node && (late.slot..late.slot + late.count).contains(&slot);
        match inode.late.as_ref().and_then(|late| late.waiting.iter().find(is_it)) {
            Some(late) => Ok(late.pointer(slot, self.per_block())),
            None => self.read_pointer(inode.ino, node, slot),
        }
    }

    /// Puts what is late into its place, after `length` and one after the other. Returns the patches.
    pub(super) fn put_late(&self, inode: &mut Inode, length: PatchIds) -> PatchIds {
        let mut patches = PatchIds::new();
        if !inode.has_late() {
            return patches;
        }
        let mut all = inode.late.take().unwrap_or_default();
        for late in std::mem::take(&mut all.waiting) {
            let mut tx = self.cache.lock();
            let put = self.put_one(&mut tx, (inode, &mut all.last), &late, &length);
            drop(tx);
            for &node in &late.below {
                self.memory.set_links(node, put.clone(), &self.cache);
            }
            patches.extend(put);
        }
        inode.late = Some(all);
        patches
    }

    fn put_one(
        &self,
        tx: &mut Tx<'_>,
        (inode, last): (&mut Inode, &mut LastLate),
        late: &Late,
        length: &PatchIds,
    ) -> PatchIds {
        let mut patches = PatchIds::new();
        if last.place.is_none() {
            // The inode may have left memory: earlier ones are among what its fsync waits for.
            last.last = PatchIds::from_slice(&[tx.empty_after(&inode.gathered())]);
        }
        for (block, from, to) in &late.places {
            let mut befores = late.befores.clone();
            befores.extend_from_slice(length);
            last.go_on(block.no(), length.is_empty());
            befores.extend_from_slice(&last.before);
            // With the pointer before it, which stays as it is, this is one patch with that.
            let joins = last.end == Some(*from);
            let place = [(block.clone(), from - u64::from(joins), *to)];
            let at = self.pointer_place(0, from.saturating_sub(1)).1;
            let is = if joins { self.pointer_in(&tx.data(block)[at..], 0) } else { 0 };
            let set = |slot: u64| if slot < *from { is } else { late.pointer(slot, self.per_block()) };
            let put = self.put_pointers(tx, inode, &place, set, &befores);
            last.last.clone_from(&put);
            last.end = Some(*to);
            patches.extend(put);
        }
        patches
    }

    /// Of a volume that was not unmounted: a file ends with its last block. What is damaged stays as it is.
    pub(super) fn end_at_last_block(&self, inode: &mut Inode) {
        let covered = self.blocks_of(inode.disk.size);
        // Snapshots have holes wherever nothing has changed.
        let is_snapshot = inode.disk.flags & flag::SNAPSHOT != 0;
        if !inode.has_length_first() || is_snapshot || covered <= to_u64(DIRECT) {
            return;
        }
        let mut search = Search { end: covered, nodes: NODES_MAX };
        let behind = (0..INDIRECT).rev().find_map(|slot| {
            let first = tree_span(DIRECT + slot, self.pointers()).0;
            self.last_below(inode, (inode.disk.indirect[slot], slot + 1), first, &mut search)
        });
        let last = behind.or_else(|| (0..DIRECT).rev().find(|&at| inode.disk.direct[at] != 0).map(to_u64));
        if search.nodes > 0 {
            let end = last.map_or(0, |last| (last + 1).saturating_mul(self.sb.block_size.into()));
            inode.disk.size = inode.disk.size.min(end);
            inode.tail = self.tail_of(inode);
        }
    }

    /// The last block before the end that a tree has; none, and no search any more, where it is damaged or has too many empty parts.
    fn last_below(
        &self,
        inode: &Inode,
        (node, levels): (u64, usize),
        first: u64,
        search: &mut Search,
    ) -> Option<u64> {
        if node == 0 || first >= search.end || search.nodes == 0 {
            return None;
        }
        search.nodes -= 1;
        let Ok(pointers) = self.read_pointers(inode, node) else {
            search.nodes = 0;
            return None;
        };
        let each = (1..levels).fold(1_u64, |span, _| span.saturating_mul(self.pointers()));
        let slots = pointers.iter().enumerate().rev();
        let slots = slots.map(|(slot, &pointer)| (first + to_u64(slot) * each, pointer));
        let end = search.end;
        let mut there = slots.filter(|&(start, pointer)| pointer != 0 && start < end);
        match levels {
            1 => there.next().map(|(start, _)| start),
            _ => there.find_map(|(start, below)| self.last_below(inode, (below, levels - 1), start, search)),
        }
    }

    /// Puts what is late into its place after nothing, for an operation that came to no length.
    pub(super) fn settle_late(&self, inode: &mut Inode) {
        let _put = self.put_late(inode, PatchIds::new());
    }
}
