//! Which blocks belong to what: metadata first, then each inode's blocks in pass 1.

use fstitch_core::{BlockKind, FileKind, Result};

use super::inodes::Scan;
use super::state::{State, Volume};
use super::walk::{Pointer, Verdict, Visit, walk};
use crate::ext2::layout::inode::{I_BLOCKS, pointer_field};
use crate::ext2::num::{idx, wide};

/// Blocks of a directory beyond which it cannot grow, in bytes.
const DIRECTORY_MAX: u64 = 1 << 31;
/// The double-indirect pointer, the only one that the resize inode uses.
pub(super) const DOUBLE_INDIRECT: usize = 13;

/// What the pointers of an inode amount to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    /// Blocks, indirect and attribute ones included.
    pub(super) blocks: u64,
    /// One more than the last mapped file block.
    pub(super) end: u64,
}

/// Claims the blocks of superblock copies, descriptors, bitmaps and inode tables.
pub(super) fn claim_metadata(volume: &Volume<'_>, state: &mut State) {
    let shape = &volume.shape;
    let mut claim = |block: u32, group: u32, what: &str| {
        if !state.claim(block) {
            let text = format!("{what} of group {group} at block {block} overlaps other metadata");
            // Nothing sensible can be done without knowing which is right.
            state.hopeless("metadata-overlap", text);
        }
    };
    for group in 0..shape.group_count() {
        let start = shape.group_start(group);
        let overhead = shape.group_overhead(group).min(shape.group_blocks(group));
        for block in start..start + overhead {
            claim(block, group, "superblock copy or descriptor block");
        }
    }
    for (group, descriptor) in (0..shape.group_count()).zip(&volume.groups) {
        claim(descriptor.block_bitmap, group, "block bitmap");
        claim(descriptor.inode_bitmap, group, "inode bitmap");
        for at in 0..shape.inode_table_blocks() {
            claim(descriptor.inode_table + at, group, "inode table");
        }
    }
}

/// Claims what an inode points at.
pub(super) fn claim_pointers(scan: &mut Scan<'_, '_>, kind: FileKind, totals: &mut Totals) -> Result<()> {
    let mut visitor = Claimer { state: scan.state, ino: scan.ino, kind, totals };
    scan.changed |= walk(scan.volume, scan.raw, &mut visitor)?;
    Ok(())
}

/// Claims the resize inode's root block. The blocks below are metadata and were claimed as such.
pub(super) fn claim_resize(scan: &mut Scan<'_, '_>) {
    let root = pointer_field(DOUBLE_INDIRECT).get(scan.raw);
    if !scan.volume.is_valid(root) {
        return;
    }
    if !scan.state.claim(root) {
        let text = format!("block {root} of the resize inode has another owner");
        // Pass 0 gives up a resize inode that it does not believe; this one's root belongs to metadata.
        scan.state.hopeless("block-shared", text);
    }
    let copies =
        (1..scan.volume.shape.group_count()).filter(|&group| scan.volume.shape.has_superblock(group)).count();
    let reserved = usize::from(scan.volume.shape.reserved_gdt_blocks);
    let expected = wide(1 + reserved * (1 + copies)) * wide(scan.volume.block_size() / 512);
    let found = u64::from(I_BLOCKS.get(scan.raw));
    if found != expected {
        let text = format!("the resize inode counts {found} sectors, it has {expected}");
        if scan.state.allowed("inode-block-count", text) {
            I_BLOCKS.put(scan.raw, u32::try_from(expected).unwrap_or(u32::MAX));
            scan.changed = true;
        }
    }
}

struct Claimer<'a> {
    state: &'a mut State,
    ino: u32,
    kind: FileKind,
    totals: &'a mut Totals,
}

impl Claimer<'_> {
    /// A pointer that cannot be right.
    fn invalid(&mut self, pointer: Pointer) -> Verdict {
        let Pointer { block, logical, .. } = pointer;
        let text = format!("inode {} points at block {block} for file block {logical}", self.ino);
        if self.state.corrupt("pointer-invalid", text) { Verdict::Set(0) } else { Verdict::Skip }
    }
}

impl Visit for Claimer<'_> {
    fn visit(&mut self, volume: &Volume<'_>, pointer: Pointer) -> Result<Verdict> {
        // What was taken since the check began has left its owner since, or is new.
        if volume.source.block_moves(pointer.block) {
            return Ok(Verdict::Skip);
        }
        let too_far =
            self.kind == FileKind::Directory && pointer.logical >= DIRECTORY_MAX / wide(volume.block_size());
        if !volume.is_valid(pointer.block) || too_far {
            return Ok(self.invalid(pointer));
        }
        self.totals.blocks += 1;
        if pointer.level == 0 {
            self.totals.end = pointer.logical + 1;
        }
        if self.state.claim(pointer.block) {
            return Ok(Verdict::Follow);
        }
        let Pointer { block, level, .. } = pointer;
        let text = format!("block {block} of inode {} has another owner", self.ino);
        if !self.state.corrupt("block-shared", text) {
            return Ok(Verdict::Skip);
        }
        // Indirect blocks are not copied: what their copies point at would be shared all over again.
        if level > 0 {
            return Ok(Verdict::Set(0));
        }
        self.copy_of(volume, block)
    }
}

impl Claimer<'_> {
    /// Gives this inode its own copy of a shared block, if there is room.
    ///
    /// Only blocks that neither a table of this run nor the bitmaps have as used are taken, so a block whose
    /// owner comes later in the scan is safe.
    fn copy_of(&mut self, volume: &Volume<'_>, block: u32) -> Result<Verdict> {
        let Some(fresh) = allocate(volume, self.state)? else {
            return Ok(Verdict::Set(0));
        };
        let mut bytes = vec![0; volume.block_size()];
        volume.read(block, BlockKind::Data, &mut bytes)?;
        volume.write(fresh, BlockKind::Data, &bytes)?;
        Ok(Verdict::Set(fresh))
    }
}

/// Takes a block that nothing owns and that its bitmap has as free; the bitmap is changed at once and made
/// stable, so that the pointer which follows never precedes it.
pub(super) fn allocate(volume: &Volume<'_>, state: &mut State) -> Result<Option<u32>> {
    let shape = &volume.shape;
    let mut bytes = vec![0; volume.block_size()];
    for group in 0..shape.group_count() {
        let bitmap = volume.groups[idx(group)].block_bitmap;
        volume.read(bitmap, BlockKind::BlockBitmap, &mut bytes)?;
        let start = shape.group_start(group);
        let free = (0..shape.group_blocks(group))
            .find(|&at| !super::bits::bit(&bytes, idx(at)) && !state.has_owner(start + at));
        if let Some(at) = free {
            super::bits::put_bit(&mut bytes, idx(at), true);
            volume.write(bitmap, BlockKind::BlockBitmap, &bytes)?;
            volume.source.flush()?;
            state.claim(start + at);
            return Ok(Some(start + at));
        }
    }
    Ok(None)
}

/// Cuts off the blocks of a file from file block `end` on.
pub(super) fn cut(scan: &mut Scan<'_, '_>, end: u64) -> Result<()> {
    scan.changed |= walk(scan.volume, scan.raw, &mut Cutter { end })?;
    Ok(())
}

struct Cutter {
    end: u64,
}

impl Visit for Cutter {
    fn visit(&mut self, volume: &Volume<'_>, pointer: Pointer) -> Result<Verdict> {
        if pointer.logical >= self.end {
            return Ok(Verdict::Set(0));
        }
        let span = u64::from(volume.shape.pointers_per_block()).pow(pointer.level);
        let whole = pointer.logical + span <= self.end;
        let follow = pointer.level > 0 && !whole && volume.is_valid(pointer.block);
        Ok(if follow { Verdict::Follow } else { Verdict::Skip })
    }
}
