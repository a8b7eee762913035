//! Following an inode's extent tree through any bytes.
//!
//! What is sound is kept, entry by entry: an extent that is out of order, overlaps the one before or lies outside the
//! volume is one finding and is left out; a node that is none takes with it what is below. When anything is to be mended, the
//! extents that were kept become a new tree (`rebuild`). So a damaged node is never changed in place, and what a crash of
//! the repair leaves is one of the two maps as a whole.
//!
//! An index entry that says another file block than the node below begins with is a finding, but leaves nothing out: the
//! extents say themselves which file blocks they map, and only their order decides.
//!
//! **Bounds.** Who visits enters no node twice, but for a number of nodes that is the same for any volume, so a walk reads each block of the volume once
//! at most and few again; a tree is at most [`DEPTH_MAX`] deep. Without mending nothing is kept in memory; with it 16 bytes for each extent of one file.

use std::ops::Range;

use fstitch_core::{BlockKind, Result};

use super::state::{State, Volume};
use crate::ext2::layout::checksum::InodeSums;
use crate::ext2::layout::extent::{
    DEPTH_MAX, EE_BLOCK, EE_LEN, EH_DEPTH, EH_ENTRIES, EH_MAGIC, EH_MAX, EI_BLOCK, EI_LEAF_HI, EI_LEAF_LO,
    EXTENT_ENTRY, EXTENT_HEADER, EXTENT_MAGIC, Extent, LOGICAL_END, WRITTEN_MAX, extent_start,
};
use crate::ext2::layout::inode::{FAST_SYMLINK, I_BLOCK};

/// Entries that the makers of nodes may leave unused at a node's end.
const SPARE: usize = 2;

/// The bytes of an inode that hold its root.
pub(super) const ROOT: Range<usize> = I_BLOCK.offset()..I_BLOCK.offset() + FAST_SYMLINK;

/// What becomes of an extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It stays.
    Keep,
    /// These come in its place, in order and behind what was kept before.
    Replace(Vec<Extent>),
}

/// What becomes of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Enter {
    /// It is this tree's.
    Own,
    /// It is another one's, and stays so: what it maps is this one's too, by nodes of its own, for one of which this block is free.
    Anothers(Option<u64>),
    /// It is left out with all below.
    Leave,
}

/// What somebody does with the parts of a tree.
pub(super) trait VisitExtents {
    /// Judges a node's block, which lies in the volume, before it is read.
    fn node(&mut self, volume: &Volume<'_>, block: u64, logical: u64) -> Result<Enter>;

    /// The sum of a node is of other contents than it has.
    fn bad_sum(&mut self, block: u64) -> bool {
        self.damaged("extent-sum", format!("the sum of the node at block {block} does not match"))
    }

    /// Whether a node with a wrong sum gets the right one where it is.
    fn seals(&self) -> bool {
        false
    }

    /// Judges an extent whose place in the tree and in the volume is sound.
    fn extent(&mut self, volume: &Volume<'_>, extent: Extent) -> Result<Fate>;

    /// Whether any of `count` blocks from `first` on, which lie in the volume, has an owner.
    fn meets_others(&self, _volume: &Volume<'_>, _first: u64, _count: u32) -> bool {
        false
    }

    /// The file block at which the inode's contents end, if it says so.
    fn end(&self) -> Option<u64> {
        None
    }

    /// How many blocks the inode's length says.
    fn length(&self) -> Option<u64> {
        None
    }

    /// Something of the tree is damaged; whether that is to be mended.
    fn damaged(&mut self, code: &'static str, text: String) -> bool;
}

/// What a walk has seen.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The extents that are to stay, in order. [only if they were asked for]
    pub(super) kept: Vec<Extent>,
    /// The tree must be made again from them.
    pub(super) rebuild: bool,
    /// The root leads to nodes.
    pub(super) has_nodes: bool,
    /// An extent of a node lies across the file's end.
    pub(super) crosses_end: bool,
    /// The blocks of the nodes that are this tree's alone. [only if the extents were asked for]
    pub(super) nodes: Vec<u64>,
    /// Blocks that were taken for nodes.
    pub(super) reserved: Vec<u64>,
}

/// Visits everything in the tree of inode `ino`, whose bytes are `raw`, in file order. With `keep`, the extents that stay
/// are remembered.
pub(super) fn walk_extents(
    volume: &Volume<'_>,
    (ino, raw): (u32, &[u8]),
    keep: bool,
    visit: &mut dyn VisitExtents,
) -> Result<Seen> {
    let root = &raw[ROOT];
    let owner = volume.owner(ino, raw);
    let mut walk = Walk { volume, visit, owner, keep, next: 0, seen: Seen::default() };
    match header(root, None) {
        Ok(depth) => {
            walk.seen.has_nodes = depth > 0;
            walk.node(root, depth, LOGICAL_END)?;
        }
        Err(problem) => walk.damaged("extent-node", format!("the root {problem}")),
    }
    Ok(walk.seen)
}

/// The depth of the node in `bytes` if its header is sound. A node that another one names has entries.
pub(super) fn header(bytes: &[u8], expected: Option<u16>) -> std::result::Result<u16, String> {
    let room = (bytes.len() - EXTENT_HEADER) / EXTENT_ENTRY;
    let (entries, max, depth) = (EH_ENTRIES.get(bytes), EH_MAX.get(bytes), EH_DEPTH.get(bytes));
    if EH_MAGIC.get(bytes) != EXTENT_MAGIC {
        return Err(format!("has magic {:#06x}", EH_MAGIC.get(bytes)));
    }
    if usize::from(max) > room || usize::from(max) + SPARE < room {
        return Err(format!("is for {max} entries, room is for {room}"));
    }
    if entries > max || (entries == 0 && (depth > 0 || expected.is_some())) {
        return Err(format!("has {entries} of {max} entries at depth {depth}"));
    }
    match expected {
        Some(expected) if depth != expected => Err(format!("has depth {depth}, expected {expected}")),
        None if depth > DEPTH_MAX => Err(format!("has depth {depth}")),
        _ => Ok(depth),
    }
}

/// How many blocks the entry of a leaf has, and whether they were never written.
fn length(entry: &[u8]) -> (u32, bool) {
    let field = u32::from(EE_LEN.get(entry));
    let unwritten = field > WRITTEN_MAX;
    (if unwritten { field - WRITTEN_MAX } else { field }, unwritten)
}

/// The extent in an entry of a leaf, with `len` blocks, if its length and place make sense on `volume`.
fn parse(
    volume: &Volume<'_>,
    entry: &[u8],
    (len, unwritten): (u32, bool),
) -> std::result::Result<Extent, String> {
    let block = EE_BLOCK.get(entry);
    let start = extent_start(entry);
    if len == 0 {
        return Err(format!("an extent of no blocks at file block {block}"));
    }
    if !volume.is_valid(start) || start + u64::from(len) > volume.blocks() {
        return Err(format!("{len} blocks from {start} on for file block {block}"));
    }
    Ok(Extent { block, len, start, unwritten })
}

/// A walk through one tree.
struct Walk<'a, 'v> {
    volume: &'a Volume<'v>,
    visit: &'a mut dyn VisitExtents,
    owner: InodeSums,
    keep: bool,
    /// The first file block that the next extent may map.
    next: u64,
    seen: Seen,
}

impl Walk<'_, '_> {
    fn damaged(&mut self, code: &'static str, text: String) {
        self.seen.rebuild |= self.visit.damaged(code, text);
    }

    /// The entries of a sound node, which by the nodes above maps nothing from file block `high` on. Recursion is as deep as
    /// the tree.
    fn node(&mut self, bytes: &[u8], depth: u16, high: u64) -> Result<()> {
        let count = usize::from(EH_ENTRIES.get(bytes));
        let mut entries = bytes[EXTENT_HEADER..].chunks_exact(EXTENT_ENTRY).take(count).peekable();
        while let Some(entry) = entries.next() {
            if depth == 0 {
                let mut behind = entries.clone();
                let mut next = || behind.next().map(|entry| u64::from(EE_BLOCK.get(entry)));
                let behind = [next(), next()];
                self.leaf_entry(entry, behind, high)?;
                continue;
            }
            let below = entries.peek().map_or(high, |next| u64::from(EI_BLOCK.get(next)).min(high));
            self.index_entry(entry, depth, below)?;
        }
        Ok(())
    }

    /// An entry of a leaf, with where the two behind it begin.
    fn leaf_entry(&mut self, entry: &[u8], behind: [Option<u64>; 2], high: u64) -> Result<()> {
        let (first, (mut len, unwritten)) = (u64::from(EE_BLOCK.get(entry)), length(entry));
        let end = first + u64::from(len);
        let over = |next: Option<u64>| next.filter(|next| (self.next..end).contains(next));
        // It alone is behind the end that the inode says.
        let is_far =
            |next| next <= first && self.visit.length().is_some_and(|end| next < end && end <= first);
        if behind[0].is_none() && is_far(high) {
            self.damaged("extent-order", format!("file blocks {first}..{end} in a node up to {high}"));
            return Ok(());
        }
        // If several entries, the node above, the file's length or the owners of blocks speak against one, they are right: it is left
        // out, or cut.
        if let Some(next) = over(behind[0])
            && (over(behind[1]).is_some()
                || end > high
                || is_far(next)
                || self.is_anothers_behind(entry, next))
        {
            let text = format!("file blocks {first}..{end} before those from {next} on");
            self.damaged("extent-order", text);
            if next <= first {
                return Ok(());
            }
            len = u32::try_from(next - first).expect("shorter than it was");
        }
        // Behind the end of the file an extent is believed as far as nobody else has these blocks.
        let end = first + u64::from(len);
        if !unwritten
            && let Some(next) = self.visit.end().filter(|next| (first + 1..end).contains(next))
            && self.is_anothers_behind(entry, next)
        {
            let text =
                format!("file blocks {first}..{end} of a file that ends at {next}, and others' behind");
            self.damaged("extent-order", text);
            len = u32::try_from(next - first).expect("shorter than it was");
        }
        let extent = match parse(self.volume, entry, (len, unwritten)) {
            Ok(extent) => extent,
            Err(problem) => {
                self.damaged("pointer-invalid", problem);
                return Ok(());
            }
        };
        let (first, end, next) = (u64::from(extent.block), extent.end(), self.next);
        if first < next || end > LOGICAL_END {
            self.damaged("extent-order", format!("file blocks {first}..{end} behind those up to {next}"));
            return Ok(());
        }
        if end > high {
            self.damaged("extent-index", format!("file blocks {first}..{end} in a node up to {high}"));
        }
        self.next = end;
        if self.seen.has_nodes
            && !unwritten
            && self.visit.length().is_some_and(|last| (first + 1..end).contains(&last))
        {
            self.seen.crosses_end = true;
        }
        match self.visit.extent(self.volume, extent)? {
            Fate::Keep if self.keep => self.seen.kept.push(extent),
            Fate::Keep => {}
            Fate::Replace(extents) => {
                self.seen.kept.extend(extents);
                self.seen.rebuild = true;
            }
        }
        Ok(())
    }

    /// Whether an entry of a leaf maps what is another's, or no block of the volume, from file block `next` on and not before.
    fn is_anothers_behind(&self, entry: &[u8], next: u64) -> bool {
        let (before, (len, unwritten)) = (next.saturating_sub(u64::from(EE_BLOCK.get(entry))), length(entry));
        let Some(before) = u32::try_from(before).ok().filter(|&before| 0 < before && before < len) else {
            return false;
        };
        let Ok(own) = parse(self.volume, entry, (before, unwritten)) else { return false };
        if self.visit.meets_others(self.volume, own.start, before) {
            return false;
        }
        let is_inside = parse(self.volume, entry, (len, unwritten)).is_ok();
        !is_inside || self.visit.meets_others(self.volume, own.start + u64::from(before), len - before)
    }

    fn index_entry(&mut self, entry: &[u8], depth: u16, high: u64) -> Result<()> {
        let logical = u64::from(EI_BLOCK.get(entry));
        let block = u64::from(EI_LEAF_LO.get(entry)) | u64::from(EI_LEAF_HI.get(entry)) << 32;
        if !self.volume.is_valid(block) {
            self.damaged("pointer-invalid", format!("a node at block {block} for file block {logical}"));
            return Ok(());
        }
        let enter = self.visit.node(self.volume, block, logical)?;
        self.seen.rebuild |= self.keep && enter != Enter::Own;
        if enter == Enter::Leave {
            return Ok(());
        }
        match enter {
            Enter::Own if self.keep => self.seen.nodes.push(block),
            Enter::Anothers(Some(reserved)) => self.seen.reserved.push(reserved),
            _ => {}
        }
        let mut bytes = vec![0; self.volume.block_size()];
        self.volume.read(block, BlockKind::Indirect, &mut bytes)?;
        if let Err(problem) = header(&bytes, Some(depth - 1)) {
            self.damaged("extent-node", format!("the node at block {block} {problem}"));
            return Ok(());
        }
        if enter == Enter::Own && !self.volume.node_sum_matches(self.owner, &bytes) {
            if self.visit.seals() {
                self.volume.write_node(block, self.owner, &mut bytes)?;
            } else {
                self.seen.rebuild |= self.visit.bad_sum(block);
            }
        }
        let first = u64::from(EI_BLOCK.get(&bytes[EXTENT_HEADER..]));
        if first != logical {
            let text =
                format!("the node at block {block} begins with file block {first}, expected {logical}");
            self.damaged("extent-index", text);
        }
        self.node(&bytes, depth - 1, high)
    }
}

/// The sound extents of inode `ino`, in order, without any finding. Nodes with two owners, which pass 1 has reported, are
/// left out: hostile ones would make this walk very long.
pub(super) fn list(
    volume: &Volume<'_>,
    state: &State,
    inode: (u32, &[u8]),
    each: &mut dyn FnMut(Extent),
) -> Result<()> {
    walk_extents(volume, inode, false, &mut Listing { state, each })?;
    Ok(())
}

/// The same extents and the blocks of the nodes, for who makes the tree again.
pub(super) fn whole(volume: &Volume<'_>, state: &State, inode: (u32, &[u8])) -> Result<Seen> {
    walk_extents(volume, inode, true, &mut Listing { state, each: &mut |_| () })
}

struct Listing<'a> {
    state: &'a State,
    each: &'a mut dyn FnMut(Extent),
}

impl VisitExtents for Listing<'_> {
    fn node(&mut self, _: &Volume<'_>, block: u64, _: u64) -> Result<Enter> {
        Ok(if self.state.is_shared(block) { Enter::Leave } else { Enter::Own })
    }

    fn extent(&mut self, _: &Volume<'_>, extent: Extent) -> Result<Fate> {
        (self.each)(extent);
        Ok(Fate::Keep)
    }

    fn damaged(&mut self, _: &'static str, _: String) -> bool {
        false
    }
}
