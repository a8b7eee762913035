//! What a change does its work with: an atomic recovery unit, or none where somebody wants to know what units are good for.

use fstitch_core::Result;
use fstitch_lld::{Aru, At, BlockId, Disk, EndError, ListId};

/// Where the operations of a change go.
pub(crate) enum Work<'a> {
    /// They happen at its end, all or none.
    Unit(Aru<'a>),
    /// Each happens at once, by itself: a failure leaves a part of them.
    Apart(&'a Disk),
}

/// Calls the same on either.
macro_rules! either {
    ($work:expr, $call:ident($($argument:expr),*)) => {
        match $work {
            Self::Unit(unit) => unit.$call($($argument),*),
            Self::Apart(disk) => disk.$call($($argument),*),
        }
    };
}

impl<'a> Work<'a> {
    pub(crate) fn begin(disk: &'a Disk, in_units: bool) -> Self {
        if in_units { Self::Unit(disk.begin()) } else { Self::Apart(disk) }
    }

    pub(crate) fn new_list(&self, sparse: bool) -> Result<ListId> {
        either!(self, new_list(sparse))
    }

    pub(crate) fn delete_list(&self, list: ListId) -> Result<()> {
        either!(self, delete_list(list))
    }

    pub(crate) fn list_len(&self, list: ListId) -> Result<u64> {
        either!(self, list_len(list))
    }

    pub(crate) fn new_block(&self, list: ListId, at: At) -> Result<BlockId> {
        either!(self, new_block(list, at))
    }

    pub(crate) fn delete_block(&self, block: BlockId) -> Result<()> {
        either!(self, delete_block(block))
    }

    pub(crate) fn block_at(&self, list: ListId, position: u64) -> Result<Option<BlockId>> {
        either!(self, block_at(list, position))
    }

    pub(crate) fn next_at(&self, list: ListId, from: u64) -> Result<Option<(u64, BlockId)>> {
        either!(self, next_at(list, from))
    }

    pub(crate) fn read(&self, block: BlockId, into: &mut [u8]) -> Result<()> {
        either!(self, read(block, into))
    }

    pub(crate) fn write(&self, block: BlockId, contents: &[u8]) -> Result<()> {
        either!(self, write(block, contents))
    }

    /// Everything has happened when this returns.
    pub(crate) fn end(self) -> Result<(), EndError> {
        match self {
            Self::Unit(unit) => unit.end(),
            Self::Apart(_) => Ok(()),
        }
    }
}
