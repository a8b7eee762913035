//! Where a new leaf goes in a directory's index: which blocks of the index change, and which are new. Nothing here reads or writes.

use crate::ext2::layout::index::IndexEntry;

/// A block of the index on the way to the leaf that is split.
#[derive(Clone, Debug)]
pub(super) struct Level {
    /// Its position in the directory; 0 is the root.
    pub(super) at: usize,
    /// The entry that leads to the leaf.
    pub(super) chosen: usize,
    pub(super) entries: Vec<IndexEntry>,
}

/// How many entries blocks of the index have room for, and how many levels of nodes there may be below the root.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) root: usize,
    pub(super) node: usize,
    pub(super) levels: u8,
}

/// What becomes of the index.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Blocks with other entries.
    pub(super) changed: Vec<(usize, Vec<IndexEntry>)>,
    /// New nodes, which follow the new leaf in the directory.
    pub(super) new: Vec<Vec<IndexEntry>>,
    /// Levels of nodes below the root.
    pub(super) levels: u8,
}

/// Enters `leaf`, the directory's next block, behind the leaf to which `way` leads. `None` if there is no room for it in an index of
/// so many levels.
///
/// A block that is full is split in the middle, and what its upper half begins with goes into the one above. A full root becomes a
/// node, which has room for more entries than a root, below a root with one entry.
pub(super) fn enter(way: Vec<Level>, leaf: IndexEntry, limits: Limits) -> Option<Plan> {
    let mut levels = u8::try_from(way.len()).ok()?.checked_sub(1)?;
    let (mut changed, mut new) = (Vec::new(), Vec::new());
    let mut entry = leaf;
    // Each block that is full takes the next one of the directory.
    for (next, Level { at, chosen, mut entries }) in (leaf.at + 1..).zip(way.into_iter().rev()) {
        entries.insert(chosen + 1, entry);
        if entries.len() <= if at == 0 { limits.root } else { limits.node } {
            changed.push((at, entries));
            break;
        }
        if at == 0 {
            if levels >= limits.levels {
                return None;
            }
            levels += 1;
            new.push(entries);
            changed.push((0, vec![IndexEntry { hash: 0, at: next }]));
            break;
        }
        let upper = entries.split_off(entries.len() / 2);
        entry = IndexEntry { hash: upper[0].hash, at: next };
        changed.push((at, entries));
        new.push(upper);
    }
    Some(Plan { changed, new, levels })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(all: &[(u32, usize)]) -> Vec<IndexEntry> {
        all.iter().map(|&(hash, at)| IndexEntry { hash, at }).collect()
    }

    const LIMITS: Limits = Limits { root: 3, node: 4, levels: 1 };

    #[test]
    fn a_leaf_goes_behind_the_one_that_it_was_split_from() {
        let way = vec![Level { at: 0, chosen: 0, entries: entries(&[(0, 1), (50, 2)]) }];
        let plan = enter(way, IndexEntry { hash: 20, at: 3 }, LIMITS).unwrap();
        assert_eq!(plan.changed, [(0, entries(&[(0, 1), (20, 3), (50, 2)]))]);
        assert_eq!((plan.new.len(), plan.levels), (0, 0));
    }

    #[test]
    fn a_full_root_becomes_a_node() {
        let way = vec![Level { at: 0, chosen: 2, entries: entries(&[(0, 1), (20, 3), (50, 2)]) }];
        let plan = enter(way, IndexEntry { hash: 71, at: 4 }, LIMITS).unwrap();
        assert_eq!(plan.new, [entries(&[(0, 1), (20, 3), (50, 2), (71, 4)])]);
        assert_eq!(plan.changed, [(0, entries(&[(0, 5)]))]);
        assert_eq!(plan.levels, 1);
    }

    #[test]
    fn a_full_node_is_split() {
        let way = vec![
            Level { at: 0, chosen: 0, entries: entries(&[(0, 5), (90, 9)]) },
            Level { at: 5, chosen: 3, entries: entries(&[(0, 1), (20, 3), (51, 2), (70, 4)]) },
        ];
        let plan = enter(way, IndexEntry { hash: 80, at: 12 }, LIMITS).unwrap();
        assert_eq!(plan.new, [entries(&[(51, 2), (70, 4), (80, 12)])]);
        let root = entries(&[(0, 5), (51, 13), (90, 9)]);
        assert_eq!(plan.changed, [(5, entries(&[(0, 1), (20, 3)])), (0, root)]);
        assert_eq!(plan.levels, 1);
    }

    #[test]
    fn what_is_full_at_all_levels_takes_no_more() {
        let node = entries(&[(0, 1), (20, 3), (51, 2), (70, 4)]);
        let way = vec![
            Level { at: 0, chosen: 0, entries: entries(&[(0, 5), (90, 9), (95, 10)]) },
            Level { at: 5, chosen: 3, entries: node },
        ];
        let leaf = IndexEntry { hash: 80, at: 12 };
        assert_eq!(enter(way.clone(), leaf, LIMITS), None);
        let plan = enter(way, leaf, Limits { levels: 2, ..LIMITS }).unwrap();
        assert_eq!((plan.new.len(), plan.levels), (2, 2));
        assert_eq!(plan.new[1], entries(&[(0, 5), (51, 13), (90, 9), (95, 10)]));
        assert_eq!(plan.changed.last(), Some(&(0, entries(&[(0, 14)]))));
    }
}
