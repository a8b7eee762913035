//! What a format does so that a volume can follow a policy of the shepherd: it has room for the maps, and knows what its blocks are.

use std::sync::Arc;

use fstitch_core::{BlockDevice, BlockNo, Result, Timestamp};
use fstitch_shepherd::{Room, Rules, Stretch};

/// What a volume has for the maps of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapsAt {
    /// Nothing.
    Nowhere,
    /// Blocks that were taken for maps which were not finished, or are not to be used any more: no policy is followed.
    Unfinished(Vec<BlockNo>),
    /// The blocks of the maps, in their order.
    Here(Vec<BlockNo>),
}

/// A format whose volumes have room for maps, where neither its own tools nor others' will move or reuse it. Media are given in blocks of
/// the volume's size.
///
/// ```text
///   Nowhere ──[make_room]──► Unfinished ──[finish(true)]──► Here
///                                │  ▲                         │
///   Nowhere ◄──[give_back]───────┘  └─────[finish(false)]─────┘
/// ```
pub trait KeepsMaps: Send + Sync {
    /// Where the maps of a volume are. It may be one that is to be recovered: the place of maps does not change while it is in use.
    ///
    /// # Errors
    /// When the medium fails; `Corrupt` where the maps have a place that cannot be one.
    fn maps(&self, device: &dyn BlockDevice) -> Result<MapsAt>;
    /// Whether the volume says that its maps are in these blocks, in this order. It need not read all that it says, but what does not depend on
    /// blocks of pointers.
    ///
    /// # Errors
    /// When the medium fails; `Corrupt` where it cannot be told.
    fn follows(&self, device: &dyn BlockDevice, area: &[BlockNo]) -> Result<bool>;
    /// Whether a volume that says it has no maps may have some nevertheless: what says so looks wiped, or overwritten.
    ///
    /// # Errors
    /// When the medium fails; `Corrupt` where it cannot be told.
    fn may_hide(&self, device: &dyn BlockDevice) -> Result<bool>;
    /// Takes free blocks of a volume that nobody uses and that is clean: first one half of the parts and, far from it, the other, then the
    /// spares, spread over the volume.
    ///
    /// # Errors
    /// `Unsupported` where there is something already, no room, or the volume is not clean: nothing was changed.
    fn make_room(&self, device: &dyn BlockDevice, room: Room, now: Timestamp) -> Result<Vec<BlockNo>>;
    /// Says that the maps are to be used, or are not any more. One block is written, and is stable.
    ///
    /// # Errors
    /// When the medium fails.
    fn finish(&self, device: &dyn BlockDevice, are_used: bool) -> Result<()>;
    /// Gives back the blocks of maps that are not to be used any more.
    ///
    /// # Errors
    /// As [`KeepsMaps::make_room`].
    fn give_back(&self, device: &dyn BlockDevice) -> Result<()>;
    /// All blocks that hold something, with what they hold, in order; the maps' own are left out. What is too damaged to tell is as well.
    ///
    /// # Errors
    /// When the medium fails.
    fn census(&self, device: &dyn BlockDevice) -> Result<Vec<Stretch>>;
    /// Blocks that are free.
    ///
    /// # Errors
    /// When the medium fails.
    fn free(&self, device: &dyn BlockDevice) -> Result<u64>;
    /// Sectors of 512 bytes that every program changes when it writes to a volume.
    fn sealed(&self) -> Vec<u64>;
    /// The volume's UUID.
    ///
    /// # Errors
    /// When the medium fails.
    fn uuid(&self, device: &dyn BlockDevice) -> Result<[u8; 16]>;
    /// The UUID in a copy of the superblock that can be read.
    fn uuid_of_backup(&self, device: &dyn BlockDevice) -> Option<[u8; 16]>;
    /// The rules by which its blocks are judged.
    ///
    /// # Errors
    /// When the medium fails.
    fn rules(&self, device: &dyn BlockDevice) -> Result<Arc<dyn Rules>>;
}
