//! What a mounted volume is: the gate, and what is known beside the medium.

use fstitch_core::Result;

use crate::inode::{self, Inode, Inodes};
use crate::layout::ROOT_SLOT;
use crate::pm::{Fresh, Gate, Slot, Space};

/// Which of the dissertation's optimisations are in force (\[D\] §3.3, Fig 3.8), and the micro-journal, which it leaves to others (§3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Optimizations {
    /// A change is committed by the first single word that is above all of it, not only at the root.
    pub short_circuit: bool,
    /// Bytes and pointers behind a file's end are written in place.
    pub append: bool,
    /// Times are changed beside an operation, not with it.
    pub times: bool,
    /// A tree's height changes by itself, inodes and entries that nobody names are written in place, and names are not counted on the
    /// medium.
    pub layout: bool,
    /// Up to seven words are changed at once by a record of them.
    pub journal: bool,
    /// Times are among these, so that they are those of the operation. Without it, or the journal, `times` says what becomes of them.
    pub journal_times: bool,
}

impl Optimizations {
    /// Shadow paging, the first column of \[D\] Fig 3.8.
    pub const SHADOW_PAGING: Self = Self {
        short_circuit: false,
        append: false,
        times: false,
        layout: false,
        journal: false,
        journal_times: false,
    };
    /// With short-circuit commits, the second one.
    pub const SHORT_CIRCUIT: Self = Self { short_circuit: true, ..Self::SHADOW_PAGING };
    /// With appends in place and times by themselves, the fourth one.
    pub const APPEND_AND_TIMES: Self = Self { append: true, times: true, ..Self::SHORT_CIRCUIT };
    /// All of the dissertation, the last one.
    pub const ALL_OF_THE_PAPER: Self = Self { layout: true, ..Self::APPEND_AND_TIMES };
    /// And the micro-journal, for all but times.
    pub const JOURNAL: Self = Self { journal: true, ..Self::ALL_OF_THE_PAPER };
    /// And for times.
    pub const ALL: Self = Self { journal_times: true, ..Self::JOURNAL };
}

impl Default for Optimizations {
    fn default() -> Self {
        Self::ALL
    }
}

/// A mounted volume below its operations.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) gate: Gate,
    pub(crate) space: Space,
    pub(crate) inodes: Inodes,
    pub(crate) options: Optimizations,
}

impl State {
    /// The word at the top of the inode file.
    pub(crate) fn inode_file(&self) -> u64 {
        self.gate.word(Slot::at(ROOT_SLOT))
    }

    /// An inode.
    ///
    /// # Errors
    /// `Corrupt` if there is none.
    pub(crate) fn inode(&self, ino: u64) -> Result<Inode> {
        inode::load(&self.gate, self.inode_file(), ino)
    }

    /// Where an inode's words are.
    pub(crate) fn place(&self, ino: u64) -> Option<u64> {
        inode::place(&self.gate, self.inode_file(), ino)
    }

    /// A block that nothing points to.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub(crate) fn take(&mut self) -> Result<Fresh> {
        if self.space.takeable() == 0 {
            self.barrier();
        }
        let fresh = self.space.take()?;
        self.gate.hold(fresh.number());
        Ok(fresh)
    }

    /// What commits have freed can be taken, if they are durable.
    pub(crate) fn settle(&mut self) {
        if self.gate.is_settled() {
            self.space.settle(|block| self.gate.may_go(block));
            self.inodes.settle();
        }
    }

    /// All commits so far are durable.
    pub(crate) fn barrier(&mut self) {
        self.gate.barrier();
        self.settle();
    }
}
