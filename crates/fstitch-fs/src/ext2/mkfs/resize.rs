//! The resize inode: it owns the blocks reserved for more group descriptors, so that nothing else takes them.
//!
//! ```text
//!   inode 7, i_block[13] ──> double-indirect block
//!                              [d]   ──> primary reserved block d, used as an indirect block
//!                                          [0] ──> its copy in group 1
//!                                          [1] ──> its copy in group 3
//!                                          …       (every group that holds copies)
//! ```
//! `d` counts descriptor blocks, the ones in use included, modulo the pointers in a block.

use std::collections::BTreeMap;

use fstitch_core::Le;
use fstitch_core::num::to_u64;

use super::image::NewFile;
use super::plan::{DIRECT_BLOCKS, Plan};
use super::{index, narrow};

/// The double-indirect pointer's place among an inode's pointers.
const DOUBLE_INDIRECT: usize = 13;

/// Builds the resize inode around its double-indirect block `root`; the blocks that it consists of are added
/// to `staged`.
pub(super) fn build(plan: &Plan, root: u64, staged: &mut BTreeMap<u64, Vec<u8>>) -> NewFile {
    let per_block = plan.block_size / 4;
    let copies: Vec<u64> = (1..plan.groups).filter(|&group| plan.has_super(group)).collect();
    let mut table = vec![0; index(plan.block_size)];
    for i in 0..plan.reserved_desc_blocks {
        let primary = plan.super_block() + 1 + plan.desc_blocks + i;
        let slot = (plan.desc_blocks + i) % per_block;
        Le::put_u32(&mut table, 4 * index(slot), narrow(primary));
        let mut list = vec![0; index(plan.block_size)];
        for (j, group) in copies.iter().enumerate() {
            Le::put_u32(&mut list, 4 * j, narrow(primary + group * plan.blocks_per_group));
        }
        staged.insert(primary, list);
    }
    staged.insert(root, table);
    let copies = to_u64(copies.len());
    let owned = 1 + plan.reserved_desc_blocks * (1 + copies);
    let mut pointers = [0; 15];
    pointers[DOUBLE_INDIRECT] = narrow(root);
    NewFile {
        mode: 0o100_600,
        links: 1,
        owner: (0, 0),
        // The highest byte that direct, indirect and double-indirect blocks can name.
        size: (per_block * per_block + per_block + DIRECT_BLOCKS) * plan.block_size,
        // Each counts as a cluster.
        sectors: narrow((owned * plan.block_size / 512) << plan.log_cluster),
        flags: 0,
        pointers,
    }
}
