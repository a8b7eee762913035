//! Making an extent tree from a list of extents.
//!
//! The nodes go to blocks that nothing owns and are stable before the inode names one of them: the tree that was there is
//! whole until then, and its nodes are found without an owner afterwards.

use fstitch_core::Result;

use super::claims::allocate;
use super::extents::ROOT;
use super::state::{State, Volume};
use crate::ext2::layout::extent::{
    Entries, Extent, Index, Node, ROOT_MAX, UNWRITTEN_MAX, WRITTEN_MAX, block_max,
};

/// Puts a tree of `extents` (sound, in order) into the inode `ino`, whose bytes are `raw` and its caller's to write. False,
/// with `raw` unchanged, if there is no room for its nodes.
pub(super) fn rebuild(
    volume: &Volume<'_>,
    state: &mut State,
    (ino, raw): (u32, &mut [u8]),
    extents: &[Extent],
) -> Result<bool> {
    let owner = volume.owner(ino, raw);
    let room = usize::from(block_max(volume.block_size()));
    let mut depth = 0;
    let mut level = Entries::Leaf(merged(extents));
    while level.len() > usize::from(ROOT_MAX) {
        let mut above = Vec::new();
        for entries in chunks(&level, room) {
            let first = first_block(&entries);
            let Some(block) = allocate(volume, state)? else { return Ok(false) };
            let mut bytes = vec![0; volume.block_size()];
            Node { depth, max: block_max(volume.block_size()), entries }.encode_into(&mut bytes);
            volume.write_node(block, owner, &mut bytes)?;
            above.push(Index { block: first, node: block });
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
                    && last.start + last.len == extent.start
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
        let long = [at(0, 10, WRITTEN_MAX, false), at(WRITTEN_MAX, 10 + WRITTEN_MAX, 1, false)];
        assert_eq!(merged(&long), long);
    }
}
