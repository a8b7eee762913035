//! Nodes that were found whole lately, so that their sums are not computed at each step of each operation.
//!
//! **Invariant.** What is known by a reference has its sum: only what was compared is put in. So it is what the reference means, whatever
//! has become of the block.

use std::sync::Arc;

use fstitch_core::lock::Mutex;
use fstitch_core::num::to_usize;
use fstitch_core::order::rank;

use super::layout::pointer::Ref;
use super::tree::Node;

/// How many are known: a mebibyte of them.
const SLOTS: u64 = 256;

/// The nodes, each in the slot of its block.
pub(super) struct Known(Mutex<Vec<Option<(Ref, Node)>>, rank::Table>);

impl Known {
    pub(super) fn new() -> Self {
        Self(Mutex::new(vec![None; to_usize(SLOTS)]))
    }

    pub(super) fn get(&self, reference: Ref) -> Option<Node> {
        let slots = self.0.lock();
        let (_, node) = slots[slot(reference)].as_ref().filter(|(known, _)| *known == reference)?;
        Some(Arc::clone(node))
    }

    pub(super) fn insert(&self, reference: Ref, node: &Node) {
        let before = self.0.lock()[slot(reference)].replace((reference, Arc::clone(node)));
        // Not under the lock, if it was the last one.
        drop(before);
    }
}

fn slot(reference: Ref) -> usize {
    to_usize(reference.block % SLOTS)
}
