//! Whether what a unit has done can be done again in the committed state (\[A\] §4). It is asked before anything is.

use std::fmt;

use fstitch_core::{Error, Result};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::options::At;
use crate::record::{BlockId, ListId};
use crate::state::State;
use crate::unit::{ListOp, Unit};

/// What cannot be done at the end of a unit, so that nothing of it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// The list is gone.
    List(ListId),
    /// The block is gone.
    Block(BlockId),
    /// The block behind which another one was put is gone, or in another list.
    Predecessor(BlockId),
    /// The position of a sparse list has a block.
    Position(ListId, u64),
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::List(list) => write!(f, "list {list} is gone"),
            Self::Block(block) => write!(f, "block {block} is gone"),
            Self::Predecessor(block) => {
                write!(f, "block {block}, behind which another one goes, is not in its list any more")
            }
            Self::Position(list, position) => write!(f, "position {position} of list {list} is taken"),
        }
    }
}

/// Why a unit did not end.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EndError {
    /// Somebody else has changed what it builds on. Nothing of it happened.
    #[error("{0}, so that nothing of the unit happened")]
    Conflict(Conflict),
    /// There is no room, and nothing of it happened; or the medium failed.
    #[error(transparent)]
    Disk(#[from] Error),
}

/// Whether all that a unit does can be done in the committed state.
///
/// # Errors
/// [`EndError::Conflict`] names what cannot.
pub(crate) fn check(unit: &Unit, state: &State) -> Result<(), EndError> {
    let mut staged = Staged::new(state);
    for op in unit.list_ops() {
        staged.check(op)?;
    }
    for block in unit.written() {
        if staged.list_of(block)?.is_none() {
            return Err(EndError::Conflict(Conflict::Block(block)));
        }
    }
    Ok(())
}

/// The committed state, and what of a unit has been looked at.
struct Staged<'a> {
    state: &'a State,
    made: FxHashMap<BlockId, ListId>,
    deleted: FxHashSet<BlockId>,
    lists: FxHashMap<ListId, bool>,
    gone: FxHashSet<ListId>,
    positions: FxHashMap<(ListId, u64), Option<BlockId>>,
}

impl<'a> Staged<'a> {
    fn new(state: &'a State) -> Self {
        Self {
            state,
            made: FxHashMap::default(),
            deleted: FxHashSet::default(),
            lists: FxHashMap::default(),
            gone: FxHashSet::default(),
            positions: FxHashMap::default(),
        }
    }

    fn has_list(&self, list: ListId) -> Result<bool> {
        let is_gone = self.gone.contains(&list);
        Ok(!is_gone && (self.lists.contains_key(&list) || self.state.lists.get(&list)?.is_some()))
    }

    fn list_of(&self, block: BlockId) -> Result<Option<ListId>> {
        if self.deleted.contains(&block) {
            return Ok(None);
        }
        let list = match self.made.get(&block) {
            Some(list) => Some(*list),
            None => self.state.blocks.get(&block)?.map(|entry| entry.list),
        };
        Ok(list.filter(|list| !self.gone.contains(list)))
    }

    fn check(&mut self, op: &ListOp) -> Result<(), EndError> {
        let conflict = |conflict| Err(EndError::Conflict(conflict));
        match *op {
            ListOp::NewList { list, sparse } => drop(self.lists.insert(list, sparse)),
            ListOp::DeleteList { list } => {
                if !self.has_list(list)? {
                    return conflict(Conflict::List(list));
                }
                self.gone.insert(list);
            }
            ListOp::Insert { block, list, at } => {
                if !self.has_list(list)? {
                    return conflict(Conflict::List(list));
                }
                match at {
                    At::Start => {}
                    At::After(before) => {
                        if self.list_of(before)? != Some(list) {
                            return conflict(Conflict::Predecessor(before));
                        }
                    }
                    At::Position(position) => {
                        let there = match self.positions.get(&(list, position)) {
                            Some(there) => *there,
                            None => self.state.order.get(&(list, position))?,
                        };
                        if let Some(there) = there
                            && !self.deleted.contains(&there)
                        {
                            return conflict(Conflict::Position(list, position));
                        }
                        self.positions.insert((list, position), Some(block));
                    }
                }
                self.made.insert(block, list);
            }
            ListOp::Delete { block } => {
                if self.list_of(block)?.is_none() {
                    return conflict(Conflict::Block(block));
                }
                self.deleted.insert(block);
            }
        }
        Ok(())
    }
}
