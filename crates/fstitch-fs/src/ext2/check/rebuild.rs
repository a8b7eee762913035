//! Making an extent tree from a list of extents.
//!
//! The nodes go to blocks that nothing owns and are stable before the inode names one of them: the tree that was there is
//! whole until then, and its nodes are found without an owner afterwards.

use fstitch_core::Result;

use super::claims::allocate;
use super::extents::{ROOT, Seen};
use super::state::{State, Volume};
use crate::ext2::layout::extent::{
    Entries, Extent, Index, Node, ROOT_MAX, UNWRITTEN_MAX, WRITTEN_MAX, block_max,
};

/// Puts a tree of `extents` (sound, in order) into the inode `ino`, whose bytes are `raw` and its caller's to write. False,
/// with `raw` unchanged, if there is no room for its nodes.
pub(super) fn rebuild(
    volume: &Volume<'_>,
    state: &mut State,
    inode: (u32, &mut [u8]),
    extents: &[Extent],
) -> Result<bool> {
    let mut room = Room::default();
    build(volume, state, inode, merged(extents), &mut room)
}

/// Puts a tree of the extents that were kept into the inode, as [`rebuild`] does, whatever room there is. Where nothing is
/// free, nodes go to the places of those that were, which a crash may leave half done; where these are not enough, the
/// longest extents stay.
pub(super) fn squeeze(
    volume: &Volume<'_>,
    state: &mut State,
    (ino, raw): (u32, &mut [u8]),
    seen: &Seen,
) -> Result<()> {
    let mut room = Room { blocks: Vec::new(), reserved: seen.reserved.clone(), own: seen.nodes.clone() };
    let extents = merged(&seen.kept);
    if build(volume, state, (ino, raw), extents.clone(), &mut room)? {
        return Ok(());
    }
    let nodes = room.blocks.len().min(usize::from(ROOT_MAX));
    let most = (nodes * usize::from(block_max(volume.block_size()))).max(usize::from(ROOT_MAX));
    let mut room = Room { own: room.blocks, ..Room::default() };
    let fits = build(volume, state, (ino, raw), longest(extents, most), &mut room)?;
    debug_assert!(fits, "the root has room for its nodes");
    Ok(())
}

/// Where nodes go.
#[derive(Default)]
struct Room {
    /// Blocks that have nodes now.
    blocks: Vec<u64>,
    /// Blocks that were taken for them before.
    reserved: Vec<u64>,
    /// Blocks of the same inode to be taken where none is free.
    own: Vec<u64>,
}

impl Room {
    fn take(&mut self, volume: &Volume<'_>, state: &mut State) -> Result<Option<u64>> {
        let block = match self.reserved.pop() {
            Some(reserved) => Some(reserved),
            None => allocate(volume, state)?.or_else(|| self.own.pop()),
        };
        self.blocks.extend(block);
        Ok(block)
    }
}

fn build(
    volume: &Volume<'_>,
    state: &mut State,
    (ino, raw): (u32, &mut [u8]),
    extents: Vec<Extent>,
    room: &mut Room,
) -> Result<bool> {
    let owner = volume.owner(ino, raw);
    let max = block_max(volume.block_size());
    let mut depth = 0;
    let mut level = Entries::Leaf(extents);
    while level.len() > usize::from(ROOT_MAX) {
        let parts = chunks(&level, usize::from(max));
        let mut above = Vec::new();
        for entries in &parts {
            let Some(node) = room.take(volume, state)? else { return Ok(false) };
            above.push(Index { block: first_block(entries), node });
        }
        for (entries, index) in parts.into_iter().zip(&above) {
            let mut bytes = vec![0; volume.block_size()];
            Node { depth, max, entries }.encode_into(&mut bytes);
            volume.write_node(index.node, owner, &mut bytes)?;
        }
        level = Entries::Inner(above);
        depth += 1;
    }
    volume.source.flush()?;
    let root = &mut raw[ROOT];
    root.fill(0);
    Node { depth, max: ROOT_MAX, entries: level }.encode_into(root);
    Ok(true)
}

/// The `most` longest extents, in their order.
fn longest(mut extents: Vec<Extent>, most: usize) -> Vec<Extent> {
    extents.sort_by_key(|extent| std::cmp::Reverse(extent.len));
    extents.truncate(most);
    extents.sort_by_key(|extent| extent.block);
    extents
}

/// The entries in parts of at most `room`.
fn chunks(entries: &Entries, room: usize) -> Vec<Entries> {
    match entries {
        Entries::Leaf(extents) => extents.chunks(room).map(|part| Entries::Leaf(part.to_vec())).collect(),
        Entries::Inner(nodes) => nodes.chunks(room).map(|part| Entries::Inner(part.to_vec())).collect(),
    }
}

fn first_block(entries: &Entries) -> u32 {
    match entries {
        Entries::Leaf(extents) => extents.first().map_or(0, |extent| extent.block),
        Entries::Inner(nodes) => nodes.first().map_or(0, |node| node.block),
    }
}

/// The same map in as few extents as neighbours allow.
fn merged(extents: &[Extent]) -> Vec<Extent> {
    let mut out: Vec<Extent> = Vec::with_capacity(extents.len());
    for extent in extents {
        let most = if extent.unwritten { UNWRITTEN_MAX } else { WRITTEN_MAX };
        match out.last_mut() {
            Some(last)
                if last.unwritten == extent.unwritten
                    && last.end() == u64::from(extent.block)
                    && last.start + u64::from(last.len) == extent.start
                    && last.len + extent.len <= most =>
            {
                last.len += extent.len;
            }
            _ => out.push(*extent),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_become_one_extent() {
        let at = |block, start, len, unwritten| Extent { block, len, start, unwritten };
        let all = [at(0, 10, 2, false), at(2, 12, 3, false), at(5, 15, 1, true), at(7, 16, 1, true)];
        assert_eq!(merged(&all), [at(0, 10, 5, false), at(5, 15, 1, true), at(7, 16, 1, true)]);
        let long = [at(0, 10, WRITTEN_MAX, false), at(WRITTEN_MAX, 10 + u64::from(WRITTEN_MAX), 1, false)];
        assert_eq!(merged(&long), long);
    }

    #[test]
    fn the_longest_extents_stay_in_order() {
        let at = |block, len| Extent { block, len, start: 10 + u64::from(block), unwritten: false };
        let all = vec![at(0, 1), at(2, 5), at(9, 2), at(20, 9), at(40, 1)];
        assert_eq!(longest(all.clone(), 3), [at(2, 5), at(9, 2), at(20, 9)]);
        assert_eq!(longest(all.clone(), 9), all);
    }
}
