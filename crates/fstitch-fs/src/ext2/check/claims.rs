//! Which blocks belong to what: metadata first, then each inode's blocks in pass 1.

use fstitch_core::{BlockKind, FileKind, Result};

use super::clusters::{Clusters, by_pointers, place_in_cluster, rehome};
use super::extents::{self, Enter, Fate, Seen, VisitExtents, walk_extents};
use super::inodes::{self, Scan};
use super::mmp;
use super::parts::blocks_max;
use super::rebuild::squeeze;
use super::seals::Map;
use super::state::{Mending, State, Volume};
use super::walk::{Pointer, Verdict, Visit, walk};
use crate::bits::{self, Bits};
use crate::ext2::layout::extent::Extent;
use crate::ext2::layout::inode::{EXTENTS_FL, I_FLAGS, POINTERS, pointer_field};
use crate::ext2::num::{idx, wide};

/// The first block that a pointer cannot name.
const POINTERS_END: u64 = 1 << 32;

/// Of so many nodes what they map is copied for who has them too: each costs a walk of all below it, and damage has few.
const COPIED_NODES_MAX: u32 = 256;

/// The double-indirect pointer, the only one that the resize inode uses.
pub(super) const DOUBLE_INDIRECT: usize = 13;

/// What the pointers of an inode amount to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    /// Clusters, those of indirect and attribute blocks included: blocks, where these are taken alone.
    pub(super) blocks: u64,
    /// One more than the last mapped file block that was written.
    pub(super) end: u64,
    /// They are mapped by nodes of extents.
    pub(super) has_nodes: bool,
    /// Written blocks on both sides of the file's end are mapped together in a node.
    pub(super) crosses_end: bool,
}

/// Claims the blocks of superblock copies, descriptors, bitmaps and inode tables.
pub(super) fn claim_metadata(volume: &Volume<'_>, state: &mut State) {
    let shape = &volume.shape;
    // Several blocks may be in one cluster.
    let mut met = shape.has_clusters().then(|| Bits::new(volume.blocks()));
    let mut claim = |block: u64, group: u32, what: &str| {
        let is_free = match &mut met {
            Some(met) => {
                state.claim_own(block);
                !met.set(block)
            }
            None => state.claim(block),
        };
        if !is_free {
            let text = format!("{what} of group {group} at block {block} overlaps other metadata");
            // Nothing sensible can be done without knowing which is right.
            state.hopeless("metadata-overlap", text);
        }
    };
    for group in 0..shape.group_count() {
        let start = shape.group_start(group);
        let overhead = shape.group_overhead(group).min(shape.group_blocks(group));
        for block in start..start + u64::from(overhead) {
            claim(block, group, "superblock copy or descriptor block");
        }
    }
    for (group, descriptor) in (0..shape.group_count()).zip(&volume.groups) {
        claim(descriptor.block_bitmap, group, "block bitmap");
        claim(descriptor.inode_bitmap, group, "inode bitmap");
        for at in 0..shape.inode_table_blocks() {
            claim(descriptor.inode_table + u64::from(at), group, "inode table");
        }
    }
    // No group without a bitmap has it.
    if let Some(block) = mmp::place(volume)
        && !state.claim(block)
    {
        state.hopeless("metadata-overlap", format!("multiple-mount block {block} overlaps other metadata"));
    }
}

/// Claims what an inode's map has, by pointers or by extents.
pub(super) fn claim_map(scan: &mut Scan<'_, '_>, kind: FileKind, totals: &mut Totals) -> Result<()> {
    let by_extents = I_FLAGS.get(scan.raw) & EXTENTS_FL != 0;
    let keep = by_extents && matches!(scan.state.mending, Mending::Everything { .. });
    let length = scan.size().div_ceil(wide(scan.volume.block_size()));
    let end = (kind == FileKind::Regular).then_some(length);
    let clusters = scan.volume.shape.has_clusters().then(Clusters::default);
    let mut visitor = Claimer { state: scan.state, ino: scan.ino, kind, length, end, totals, clusters };
    if !by_extents && scan.volume.shape.has_clusters() {
        return claim_pointers(scan.volume, scan.raw, visitor, &mut scan.changed);
    }
    if !by_extents {
        scan.changed |= walk(scan.volume, scan.raw, &mut visitor)?;
        return Ok(());
    }
    let mut seen = walk_extents(scan.volume, (scan.ino, scan.raw), keep, &mut visitor)?;
    (visitor.totals.has_nodes, visitor.totals.crosses_end) = (seen.has_nodes, seen.crosses_end);
    let moved = visitor.clusters.map(|clusters| clusters.moved).unwrap_or_default();
    if keep && !moved.is_empty() {
        seen.kept = rehome(scan.volume, scan.state, &seen.kept, &moved)?;
        seen.rebuild = true;
    }
    if seen.rebuild {
        squeeze(scan.volume, scan.state, (scan.ino, scan.raw), &seen)?;
        scan.changed = true;
    }
    Ok(())
}

/// Claims what an inode has by pointers on a volume with clusters, where nobody makes such a map; it becomes one of extents.
fn claim_pointers(
    volume: &Volume<'_>,
    raw: &mut [u8],
    mut visitor: Claimer<'_>,
    changed: &mut bool,
) -> Result<()> {
    let ino = visitor.ino;
    let extents = by_pointers(volume, raw)?;
    if extents.is_empty() && (0..POINTERS).all(|at| pointer_field(at).get(raw) == 0) {
        return Ok(());
    }
    let text = format!("inode {ino} is mapped by pointers, on a volume with clusters");
    let mend = visitor.state.corrupt("cluster-pointers", text);
    for &extent in &extents {
        visitor.extent(volume, extent)?;
    }
    if !mend {
        return Ok(());
    }
    let Claimer { state, clusters, .. } = visitor;
    let moved = clusters.map(|clusters| clusters.moved).unwrap_or_default();
    let kept = rehome(volume, state, &extents, &moved)?;
    squeeze(volume, state, (ino, raw), &Seen { kept, ..Seen::default() })?;
    I_FLAGS.put(raw, I_FLAGS.get(raw) | EXTENTS_FL);
    *changed = true;
    Ok(())
}

/// Claims the resize inode's root block. The blocks below are metadata and were claimed as such.
pub(super) fn claim_resize(scan: &mut Scan<'_, '_>) {
    let root = pointer_field(DOUBLE_INDIRECT).get(scan.raw);
    if !scan.volume.is_valid(u64::from(root)) {
        return;
    }
    if !scan.state.claim(u64::from(root)) {
        let text = format!("block {root} of the resize inode has another owner");
        // Pass 0 gives up a resize inode that it does not believe; this one's root belongs to metadata.
        scan.state.hopeless("block-shared", text);
    }
    let copies =
        (1..scan.volume.shape.group_count()).filter(|&group| scan.volume.shape.has_superblock(group)).count();
    let reserved = usize::from(scan.volume.shape.reserved_gdt_blocks);
    scan.block_count(wide(1 + reserved * (1 + copies)));
}

struct Claimer<'a> {
    state: &'a mut State,
    ino: u32,
    kind: FileKind,
    /// How many blocks the inode has by its size.
    length: u64,
    /// The file block at which a file ends, by its size.
    end: Option<u64>,
    totals: &'a mut Totals,
    /// Where blocks are taken in clusters: those of the file.
    clusters: Option<Clusters>,
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
        let too_far = self.kind == FileKind::Directory && pointer.logical >= blocks_max(volume);
        if !volume.is_valid(pointer.block) || too_far {
            return Ok(self.invalid(pointer));
        }
        self.totals.blocks += 1;
        if pointer.level == 0 {
            self.totals.end = pointer.logical + 1;
            if self.kind == FileKind::Directory {
                self.state.ahead.note(self.ino, pointer.block, 1);
            }
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
        self.copy_of(volume, block, allocate)
    }
}

impl VisitExtents for Claimer<'_> {
    fn seals(&self) -> bool {
        self.state.seals()
    }

    fn node(&mut self, volume: &Volume<'_>, block: u64, _: u64) -> Result<Enter> {
        self.totals.blocks += 1;
        if !self.state.has_owner(block) {
            self.state.claim(block);
            return Ok(Enter::Own);
        }
        let text = format!("node {block} of inode {} has another owner", self.ino);
        if self.state.corrupt("block-shared", text) && self.state.copied_nodes < COPIED_NODES_MAX {
            // Who of them is right nobody knows. Below, all is shared as well, and copied as far as there is room: the nodes first.
            self.state.copied_nodes += 1;
            return Ok(Enter::Anothers(take(volume, self.state)?));
        }
        self.state.claim(block);
        Ok(Enter::Leave)
    }

    fn extent(&mut self, volume: &Volume<'_>, extent: Extent) -> Result<Fate> {
        if self.kind == FileKind::Directory && (extent.unwritten || extent.end() > blocks_max(volume)) {
            return Ok(self.directory_extent(volume, extent));
        }
        if !extent.unwritten {
            self.totals.end = extent.end();
        }
        if self.kind == FileKind::Directory {
            self.state.ahead.note(self.ino, extent.start, extent.len);
        }
        if let Some(clusters) = &mut self.clusters {
            clusters.claim((volume, self.state), (self.ino, extent), self.totals);
            return Ok(Fate::Keep);
        }
        self.totals.blocks += u64::from(extent.len);
        if self.state.claim_run(extent.start, extent.len) {
            return Ok(Fate::Keep);
        }
        let range = extent.start..extent.start + u64::from(extent.len);
        let text = format!("some of the blocks {range:?} of inode {} have another owner", self.ino);
        if self.state.corrupt("block-shared", text) {
            return self.own(volume, extent);
        }
        for block in range {
            self.state.claim(block);
        }
        Ok(Fate::Keep)
    }

    fn meets_others(&self, volume: &Volume<'_>, first: u64, count: u32) -> bool {
        let own = |block| self.clusters.as_ref().is_some_and(|own| own.is_last(&volume.shape, block));
        (first..first + u64::from(count)).any(|block| self.state.has_owner(block) && !own(block))
    }

    fn end(&self) -> Option<u64> {
        self.end
    }

    fn length(&self) -> Option<u64> {
        Some(self.length)
    }

    fn damaged(&mut self, code: &'static str, text: String) -> bool {
        self.state.corrupt(code, format!("map of inode {}: {text}", self.ino))
    }
}

impl Claimer<'_> {
    /// An extent that no directory can have: one that reads as zeros is taken as written; one beyond what a directory can have comes
    /// next, as far as blocks are missing there by the directory's size and this has no other owner.
    fn directory_extent(&mut self, volume: &Volume<'_>, extent: Extent) -> Fate {
        let Extent { block, unwritten, .. } = extent;
        let text = format!("directory {} has blocks from {block} on, unwritten: {unwritten}", self.ino);
        if !self.state.corrupt("dir-extent", text) {
            return Fate::Keep;
        }
        let (mut place, mut len) = (u64::from(block), extent.len);
        if extent.end() > blocks_max(volume) {
            let missing = self.length.min(blocks_max(volume)).saturating_sub(self.totals.end);
            (place, len) = (self.totals.end, len.min(u32::try_from(missing).unwrap_or(u32::MAX)));
            if len == 0 || self.meets_others(volume, extent.start, len) {
                return Fate::Replace(Vec::new());
            }
        }
        let Ok(block) = u32::try_from(place) else { return Fate::Replace(Vec::new()) };
        self.totals.end = place + u64::from(len);
        if self.clusters.is_none() {
            self.totals.blocks += u64::from(len);
        }
        Fate::Replace(vec![Extent { block, len, unwritten: false, ..extent }])
    }

    /// What is left of an extent when the blocks that have another owner are copied, those of metadata included; blocks for
    /// which there is no room become holes. What was only this inode's is claimed.
    fn own(&mut self, volume: &Volume<'_>, extent: Extent) -> Result<Fate> {
        let mut runs: Vec<Extent> = Vec::new();
        for logical in extent.block..=extent.block + (extent.len - 1) {
            let mut start = extent.at(logical);
            if !self.state.claim(start) {
                if extent.unwritten {
                    // It reads as zeros, as a hole does.
                    continue;
                }
                // The tree names it when it is made again, after a flush.
                match self.copy_of(volume, start, take)? {
                    Verdict::Set(0) => continue,
                    Verdict::Set(fresh) => start = fresh,
                    Verdict::Follow | Verdict::Skip => {}
                }
            }
            let next = Extent { block: logical, len: 1, start, unwritten: extent.unwritten };
            match runs.last_mut() {
                Some(last)
                    if last.end() == u64::from(logical) && last.start + u64::from(last.len) == start =>
                {
                    last.len += 1;
                }
                _ => runs.push(next),
            }
        }
        Ok(Fate::Replace(runs))
    }

    /// Gives this inode its own copy of a shared block, if there is room.
    fn copy_of(&mut self, volume: &Volume<'_>, block: u64, allocate: Allocate) -> Result<Verdict> {
        if self.state.full_groups >= groups_end(volume) {
            return Ok(Verdict::Set(0));
        }
        let mut bytes = vec![0; volume.block_size()];
        // Before anything is changed: the other owner may be a bitmap.
        volume.read(block, BlockKind::Data, &mut bytes)?;
        let Some(fresh) = allocate(volume, self.state)? else {
            return Ok(Verdict::Set(0));
        };
        volume.write(fresh, BlockKind::Data, &bytes)?;
        Ok(Verdict::Set(fresh))
    }
}

/// [`allocate`] or [`take`].
type Allocate = fn(&Volume<'_>, &mut State) -> Result<Option<u64>>;

/// Blocks that inodes have, whatever is wrong with them.
fn all_owned(volume: &Volume<'_>, state: &State) -> Result<Bits> {
    let mut looking = State::new(volume, Mending::Nothing, state.now);
    for group in 0..volume.shape.group_count() {
        inodes::scan_group(volume, &mut looking, group)?;
    }
    Ok(looking.used)
}

/// How many blocks [`allocate`] would find.
pub(super) fn allocatable(volume: &Volume<'_>, state: &State) -> Result<u64> {
    let shape = &volume.shape;
    let mut bytes = vec![0; volume.block_size()];
    let mut count = 0;
    for group in 0..groups_end(volume) {
        volume.read_bitmap(group, Map::Blocks, &mut bytes)?;
        let start = shape.group_start(group);
        let clusters = shape.group_blocks(group) >> shape.log_cluster;
        let is_free = |&at: &u32| !bits::bit(&bytes, idx(at)) && !state.is_owned(start + shape.blocks_of(at));
        count += wide((0..clusters).filter(is_free).count());
    }
    Ok(count << shape.log_cluster)
}

/// Takes a block, the first of a cluster, that nothing owns and that its bitmap has as free; the bitmap is changed at once and made
/// stable, so that the pointer which follows never precedes it, unless sums are sealed, where who points makes it so.
///
/// A bitmap may be wrong, and owners may come later in the scan: the first who needs a block looks who they are.
pub(super) fn allocate(volume: &Volume<'_>, state: &mut State) -> Result<Option<u64>> {
    let taken = take(volume, state)?;
    if taken.is_some() && !state.seals() {
        volume.source.flush()?;
    }
    Ok(taken)
}

/// One more than the last group that is taken from: who is mapped by pointers can have nothing behind.
fn groups_end(volume: &Volume<'_>) -> u32 {
    let end = POINTERS_END / u64::from(volume.shape.blocks_per_group);
    volume.shape.group_count().min(u32::try_from(end).unwrap_or(u32::MAX))
}

/// As [`allocate`], for who flushes before anything points there.
fn take(volume: &Volume<'_>, state: &mut State) -> Result<Option<u64>> {
    if state.owned_later.is_none() {
        state.owned_later = Some(all_owned(volume, state)?);
    }
    let shape = &volume.shape;
    let mut bytes = vec![0; volume.block_size()];
    for group in state.full_groups..groups_end(volume) {
        volume.read_bitmap(group, Map::Blocks, &mut bytes)?;
        let start = shape.group_start(group);
        // Whole ones.
        let clusters = shape.group_blocks(group) >> shape.log_cluster;
        // Nothing becomes free in a run.
        let free = (state.full_clusters..clusters)
            .find(|&at| !bits::bit(&bytes, idx(at)) && !state.is_owned(start + shape.blocks_of(at)));
        if let Some(at) = free {
            bits::put_bit(&mut bytes, idx(at), true);
            volume.write_bitmap(group, Map::Blocks, &bytes)?;
            let block = start + shape.blocks_of(at);
            state.claim(block);
            state.full_clusters = at + 1;
            return Ok(Some(block));
        }
        (state.full_groups, state.full_clusters) = (group + 1, 0);
    }
    Ok(None)
}

/// Takes a block for file block `logical` of inode `ino`, whose bytes are `raw`: one of a cluster that it has, or the one at that place of a new
/// one. Says how many clusters were taken.
pub(super) fn allocate_at(
    volume: &Volume<'_>,
    state: &mut State,
    (ino, raw): (u32, &[u8]),
    logical: u32,
) -> Result<Option<(u64, u32)>> {
    let shape = &volume.shape;
    if !shape.has_clusters() {
        return Ok(allocate(volume, state)?.map(|block| (block, 1)));
    }
    let of_file = logical >> shape.log_cluster;
    let mut own = None;
    if I_FLAGS.get(raw) & EXTENTS_FL != 0 {
        extents::list(volume, state, (ino, raw), &mut |extent| {
            let (first, last) = (extent.block >> shape.log_cluster, (extent.end() - 1) >> shape.log_cluster);
            if own.is_none() && first <= of_file && u64::from(of_file) <= last {
                let at = extent.at(extent.block.max(of_file << shape.log_cluster));
                own = Some(at - u64::from(place_in_cluster(shape, at)));
            }
        })?;
    }
    let place = u64::from(place_in_cluster(shape, u64::from(logical)));
    Ok(match own {
        Some(start) => Some((start + place, 0)),
        None => allocate(volume, state)?.map(|start| (start + place, 1)),
    })
}

/// Cuts off the blocks of a file from file block `end` on.
pub(super) fn cut(scan: &mut Scan<'_, '_>, end: u64) -> Result<()> {
    if I_FLAGS.get(scan.raw) & EXTENTS_FL != 0 {
        return cut_extents(scan.volume, scan.state, (scan.ino, scan.raw), end);
    }
    scan.changed |= walk(scan.volume, scan.raw, &mut Cutter { end })?;
    Ok(())
}

/// The same for extents; the inode is the caller's to write.
pub(super) fn cut_extents(
    volume: &Volume<'_>,
    state: &mut State,
    (ino, raw): (u32, &mut [u8]),
    end: u64,
) -> Result<()> {
    let mut seen = extents::whole(volume, state, (ino, raw))?;
    seen.kept.retain(|extent| u64::from(extent.block) < end);
    if let Some(last) = seen.kept.last_mut() {
        last.len = u32::try_from(last.end().min(end) - u64::from(last.block)).expect("a part of an extent");
    }
    squeeze(volume, state, (ino, raw), &seen)
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
