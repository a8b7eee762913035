//! Names of patches.

use smallvec::SmallVec;

/// Names a patch for ever. The id of a committed patch answers [`PatchState::Committed`] and orders nothing as a
/// before; the id of a patch that was merged away names the patch that took its data over.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PatchId {
    /// Never reused; 0 is the patch that committed before time began.
    pub(crate) generation: u64,
    pub(crate) index: u32,
}

impl PatchId {
    /// A patch that committed before time began: a before that orders nothing.
    pub const NONE: Self = Self { generation: 0, index: u32::MAX };

    /// Its number among all patches of its cache, in the order in which they were made: no two have the same.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.generation
    }
}

impl Default for PatchId {
    fn default() -> Self {
        Self::NONE
    }
}

/// The ids of a change that took several patches.
pub type PatchIds = SmallVec<[PatchId; 4]>;

/// Where a patch is on its way to the medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PatchState {
    /// In memory only.
    Uncommitted,
    /// Its block is being written.
    InFlight,
    /// Stable.
    Committed,
}
