//! Quotas: what users, groups and projects have and may have, kept in files without names (features `quota` and `project`).
//!
//! **Layout.** [`super::layout::quota`]; the files' blocks are the volume's, mapped as any file's.
//!
//! **States.** An id has no entry, or one, which it keeps for good: an entry of somebody who has nothing and no limits costs 72 bytes,
//! and taking it away would have to be kept from who is about to use it.
//!
//! **Invariants.** 1. In every closed transaction the entry of an id has the number and the storage of the inodes that are its own:
//! every operation on an inode ends with [`Ext2::charge`](super::volume::Ext2), in its own step. 2. Before an operation begins, its
//! inode's owners have entries (`held`): what is left to be done then cannot fail. 3. A file of quotas has no holes, and is as long
//! as its blocks.
//!
//! **Orderings.** None beside the transaction's: a volume without a journal in use is not written.
//!
//! **Crash cases.** A transaction is whole, so entries and inodes are of one moment. Who works on a volume that nobody has open does
//! the same for each of his batches (`offline`).

mod held;
mod limits;
pub(super) mod offline;
mod open;
mod report;
pub(super) mod tree;

pub(super) use open::Quotas;
pub use report::{Account, Limits, Report, report, set_limits};

use super::layout::quota::Dquot;

/// Blocks with entries of owners that an operation on names changes at most: a directory's, and those of an inode that comes and goes.
pub(super) const CHARGED_BLOCKS: usize = 6;
/// What an id's first entry changes at most of a quota file: the header, four levels and a leaf, another leaf, and what a longer file
/// takes (a bitmap and its descriptor, the inode, a node, each perhaps twice).
pub(super) const ENTRY_BLOCKS: usize = 14;

/// The mode of a quota file: only the superuser may look at it.
pub(super) const FILE_MODE: u16 = 0o100_600;
/// Its flags: nobody may change it as a file.
pub(super) const FILE_FLAGS: u32 = 0x10;

/// What somebody has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Inodes.
    pub inodes: u64,
    /// Storage in bytes.
    pub space: u64,
}

/// How that changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) inodes: i64,
    pub(super) space: i64,
}

impl Usage {
    /// What it takes to come from `before` to this.
    pub(super) fn since(self, before: Self) -> Change {
        Change {
            inodes: self.inodes.wrapping_sub(before.inodes).cast_signed(),
            space: self.space.wrapping_sub(before.space).cast_signed(),
        }
    }
}

impl Change {
    pub(super) fn is_none(self) -> bool {
        self == Self::default()
    }

    pub(super) fn add(&mut self, other: Self) {
        self.inodes = self.inodes.saturating_add(other.inodes);
        self.space = self.space.saturating_add(other.space);
    }
}

/// Seconds that soft limits may be passed for: of storage and of inodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Graces {
    pub(super) space: u32,
    pub(super) inodes: u32,
}

/// An entry after a change at `now`, in seconds. Who passes a soft limit has some time from then on.
pub(super) fn changed(entry: &Dquot, change: Change, graces: Graces, now: u64) -> Dquot {
    let mut entry = *entry;
    // An entry that says too little is damage, which the next check finds; it must not say very much instead.
    entry.inodes = entry.inodes.saturating_add_signed(change.inodes);
    entry.space = entry.space.saturating_add_signed(change.space);
    let until = |is_over: bool, before: u64, grace: u32| match (is_over, before) {
        (false, _) => 0,
        (true, 0) => now.saturating_add(u64::from(grace)),
        (true, before) => before,
    };
    let over_space = entry.space_soft != 0 && entry.space > limits::bytes(entry.space_soft);
    let over_inodes = entry.inodes_soft != 0 && entry.inodes > entry.inodes_soft;
    entry.space_time = until(over_space, entry.space_time, graces.space);
    entry.inodes_time = until(over_inodes, entry.inodes_time, graces.inodes);
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACES: Graces = Graces { space: 100, inodes: 10 };

    #[test]
    fn who_passes_a_soft_limit_has_some_time() {
        let limited = Dquot { space_soft: 4, inodes_soft: 2, ..Dquot::default() };
        let more = |entry: &Dquot, inodes, space, now| changed(entry, Change { inodes, space }, GRACES, now);
        let at = more(&limited, 2, 4096, 1000);
        assert_eq!((at.space_time, at.inodes_time), (0, 0));
        let over = more(&at, 1, 1, 1000);
        assert_eq!((over.space_time, over.inodes_time), (1100, 1010));
        let later = more(&over, 1, 1, 1005);
        assert_eq!((later.space_time, later.inodes_time), (1100, 1010), "the time does not begin anew");
        let below = more(&later, -2, -2, 1006);
        assert_eq!((below.space_time, below.inodes_time), (0, 0));
    }

    #[test]
    fn an_entry_that_says_too_little_does_not_wrap() {
        let gone = changed(&Dquot::default(), Change { inodes: -1, space: -512 }, GRACES, 0);
        assert_eq!((gone.inodes, gone.space), (0, 0));
        let usage = Usage { inodes: 1, space: 512 };
        assert_eq!(Usage::default().since(usage), Change { inodes: -1, space: -512 });
    }
}
