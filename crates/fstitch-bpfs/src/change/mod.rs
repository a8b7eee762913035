//! One change: what an operation does, and how little of it must be copied so that it happens at once (\[D\] §3.3).
//!
//! An operation says what is to be different: words of inodes, of pointers and of entries, and contents. What nobody can reach is written
//! where it is, at once. What can be reached is noted, word by word, and changed at the end by one commit:
//!
//! ```text
//!   link     every new block is linked into what points to it, which is a word more, or something hidden
//!   one word is left, or few enough for the micro-journal ──► fence, commit
//!   else     a block with words is copied, with its words: ──► link
//! ```
//!
//! Copying goes from the inner trees outwards, so that it ends at the first block above all that has changed: in pure shadow paging
//! that is the superblock always, with short-circuit commits wherever one word is left.
//!
//! **Invariants.** 1. Until the commit nothing that can be reached is different. 2. A change that is dropped gives back what it has
//! taken; what it wrote is hidden still. 3. Blocks that it freed can be taken again when its commit is durable.

mod commit;
mod contents;
mod fields;
mod free;
mod seen;

use std::cell::Cell;
use std::collections::BTreeMap;

use fstitch_core::Timestamp;

use crate::few::Few;
use crate::layout::Field;
use crate::pm::{Block, Fresh, Linked, Word};
use crate::state::State;
use crate::tree::{Node, Tree};

/// The number of no leaf.
const NO_LEAF: u64 = u64::MAX;
/// The number of no inode.
const NO_INODE: u64 = 0;

/// What a change does to a block.
#[derive(Debug, Default)]
struct Draft {
    /// The block that takes its place.
    fresh: Option<Fresh>,
    /// What that is to hold, where it is a copy: written when it is linked, so that nothing is written twice.
    image: Option<Vec<u8>>,
    /// Words that are different: of a new block, still to be written to it; else of the block as it is.
    words: Few<u16, Word>,
    /// The new block holds pointers, of which only those in `words` were said.
    is_bare: bool,
}

/// A change that has not happened.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    state: &'a mut State,
    drafts: BTreeMap<Node, Draft>,
    /// Heights of trees that are others than on the medium.
    heights: Few<Tree, u8>,
    linked: Vec<Linked>,
    freed: Vec<Block>,
    /// Leaves of the inode file that were looked for last, or [`NO_LEAF`], and where they are: that of what is changed, and that of its directory.
    places: [Cell<(u64, u64)>; 2],
    /// The file whose size on the medium was asked for last, or [`NO_INODE`], and that size.
    reached: Cell<(u64, u64)>,
    /// Blocks of inodes, more or fewer.
    blocks: Few<u64, i64>,
    /// Inodes that were taken.
    made: Vec<u64>,
    /// The inode that is made by this: nobody names it.
    born: Option<u64>,
    /// Entries of directories are changed in copies: more than one of them is.
    copies: bool,
    /// Times that change beside the commit.
    stamps: Vec<(u64, Field, Word)>,
    /// An inode that nobody names any more, whose time is written behind the commit.
    unnamed: Option<u64>,
    now: Timestamp,
    is_committed: bool,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if self.is_committed {
            return;
        }
        let State { space, gate, .. } = &mut *self.state;
        std::mem::take(&mut self.drafts).into_values().filter_map(|draft| draft.fresh).for_each(|fresh| {
            gate.may_go(fresh.number());
            space.give_back(fresh);
        });
        for linked in self.linked.drain(..) {
            gate.may_go(linked.number());
            space.unlink(linked);
        }
        self.made.drain(..).for_each(|ino| self.state.inodes.give_back(ino));
    }
}

impl<'a> Change<'a> {
    pub(crate) fn new(state: &'a mut State, now: Timestamp) -> Self {
        state.settle();
        Self {
            state,
            drafts: BTreeMap::new(),
            heights: Few::default(),
            linked: Vec::new(),
            freed: Vec::new(),
            places: [const { Cell::new((NO_LEAF, 0)) }; 2],
            reached: Cell::new((NO_INODE, 0)),
            blocks: Few::default(),
            made: Vec::new(),
            born: None,
            copies: false,
            stamps: Vec::new(),
            unnamed: None,
            now,
            is_committed: false,
        }
    }

    /// The time of the change.
    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }

    /// The volume as it is without it.
    pub(crate) fn state(&self) -> &State {
        self.state
    }
}
