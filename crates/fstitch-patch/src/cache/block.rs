//! Handles to cached blocks.

use std::sync::Arc;

use fstitch_core::{BlockBuf, BlockNo};

use super::Shared;
use crate::graph::patch::Sx;

/// A cached block. While a handle exists the block stays in memory. Cloning is cheap.
#[derive(Clone)]
pub struct Block {
    pub(super) shared: Arc<Shared>,
    pub(in crate::cache) slot: Sx,
    pub(super) no: BlockNo,
    /// Counts the handles; the slot holds one reference itself.
    pub(super) _pin: Arc<()>,
}

impl Block {
    /// The block's number.
    #[must_use]
    pub fn no(&self) -> BlockNo {
        self.no
    }

    /// The newest contents as of now: not a copy, and later changes do not show in it.
    ///
    /// Held while the block changes, it costs that change a copy of the block.
    #[must_use]
    pub fn snapshot(&self) -> Arc<BlockBuf> {
        let core = self.shared.core();
        Arc::clone(core.graph.slot(self.slot).loaded())
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Block({})", self.no)
    }
}
