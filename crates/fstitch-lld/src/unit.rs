//! Atomic recovery units: what they have changed and nobody else sees, and how it becomes the committed state (\[A\] §3, §4).
//!
//! A unit's view of a list that it has changed is a difference to the committed list: places where it has another block, or none.
//! Whoever changes such a list in the committed state enters the opposite here, so that the view stays what it was.
//!
//! **Invariants.** 1. A view without `difference` at a place is the committed list there. 2. A unit's operations happen at its end as
//! if they were done then, or it fails and none has. 3. Between `Begin` and `Commit` nothing else is noted, and no checkpoint is made.

use std::sync::Arc;

use fstitch_core::{Errno, Error, Result};
use rustc_hash::FxHashMap;

use crate::log::Contents;
use crate::options::At;
use crate::record::{BlockId, Label, ListId, Record};
use crate::segments::Run;
use crate::state::State;
use crate::view::{Seen, Spot, View, spot};

/// An operation on lists, to be done again at the end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ListOp {
    NewList { list: ListId, sparse: bool },
    DeleteList { list: ListId },
    Insert { block: BlockId, list: ListId, at: At },
    Delete { block: BlockId },
}

/// What a unit has of a block.
#[derive(Clone, Debug)]
pub(crate) enum Shadow {
    /// It wrote this, as the so many-th change of all units, when the block was in that list: for the unit it still is, whatever
    /// becomes of the committed version.
    Contents(Stored, u64, ListId),
    Deleted,
}

/// Contents that a unit has written.
#[derive(Clone, Debug)]
pub(crate) enum Stored {
    Memory(Contents),
    /// There was no memory left.
    Spilled(Run),
}

/// A unit that has not ended.
#[derive(Debug, Default)]
pub(crate) struct Unit {
    pub(crate) shadows: FxHashMap<BlockId, Shadow>,
    pub(crate) views: FxHashMap<ListId, View>,
    ops: Vec<ListOp>,
    /// Blocks that it has made, and in which list.
    pub(crate) made: FxHashMap<BlockId, ListId>,
    /// Bytes of contents in memory.
    pub(crate) memory: usize,
    /// What it had spilled and needs no more, until somebody takes note of it.
    pub(crate) left: Vec<Run>,
}

/// All units that have not ended.
#[derive(Debug, Default)]
pub(crate) struct Units {
    pub(crate) open: FxHashMap<u64, Unit>,
    next: u64,
    /// Changes of all units.
    clock: u64,
    /// What is spilled: where, of which unit, and which block.
    pub(crate) spilled: FxHashMap<u64, (u64, BlockId)>,
}

impl Units {
    pub(crate) fn begin(&mut self) -> u64 {
        self.next += 1;
        self.open.insert(self.next, Unit::default());
        self.next
    }

    /// The next moment.
    pub(crate) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The newest shadow of a block among all units.
    pub(crate) fn newest_contents(&self, block: BlockId) -> Option<Stored> {
        let of = |unit: &Unit| match unit.shadows.get(&block) {
            Some(Shadow::Contents(stored, at, _)) => Some((*at, stored.clone())),
            _ => None,
        };
        self.open.values().filter_map(of).max_by_key(|(at, _)| *at).map(|(_, stored)| stored)
    }

    /// Bytes of contents that all units have in memory.
    pub(crate) fn memory(&self) -> usize {
        self.open.values().map(|unit| unit.memory).sum()
    }

    /// Versions of blocks that units have written.
    pub(crate) fn shadows(&self) -> usize {
        let is_written = |shadow: &&Shadow| matches!(shadow, Shadow::Contents(..));
        self.open.values().map(|unit| unit.shadows.values().filter(is_written).count()).sum()
    }

    /// The unit that has changed a list last.
    pub(crate) fn newest_view(&self, list: ListId) -> Option<&Unit> {
        let units = self.open.values().filter(|unit| unit.views.contains_key(&list));
        units.max_by_key(|unit| unit.views[&list].at)
    }

    /// The committed state is about to change: the views of all units but `except` stay what they are.
    pub(crate) fn before(&mut self, record: &Record, state: &State, except: Option<u64>) -> Result<()> {
        let units = self.open.iter_mut().filter(|(id, _)| Some(**id) != except).map(|(_, unit)| unit);
        let views = |list: ListId| units.filter_map(move |unit| unit.views.get_mut(&list));
        match *record {
            Record::Insert { list, label, .. } => {
                for view in views(list) {
                    view.difference.entry(spot(label)).or_insert(None);
                }
            }
            Record::Delete { block } => {
                let Some(entry) = state.blocks.get(&block)? else { return Ok(()) };
                views(entry.list).for_each(|view| view.keep(entry.label, block));
            }
            Record::DeleteList { list } => views(list).for_each(|view| view.gone = true),
            Record::DeleteRange { list, from, last } => {
                let mut views = views(list).peekable();
                if views.peek().is_none() {
                    return Ok(());
                }
                let old = state.stretch(list, from, last, u64::MAX)?;
                for view in views {
                    old.iter().for_each(|&(label, block)| view.keep(label, block));
                }
            }
            Record::Relabel { list, from, count, label, step } => {
                let mut views = views(list).peekable();
                if views.peek().is_none() {
                    return Ok(());
                }
                let old = state.stretch(list, from, Label::MAX, count)?;
                for view in views {
                    old.iter().for_each(|&(label, block)| view.keep(label, block));
                    for n in 0..count {
                        view.difference.entry(spot(label + n * step)).or_insert(None);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Unit {
    /// The unit's own contents of a block.
    pub(crate) fn contents(&self, block: BlockId) -> Option<Stored> {
        match self.shadows.get(&block) {
            Some(Shadow::Contents(stored, ..)) => Some(stored.clone()),
            _ => None,
        }
    }

    /// What it has in memory, in the order of lists and blocks.
    pub(crate) fn in_memory(&self) -> Vec<(ListId, BlockId, Contents)> {
        let of = |(block, shadow): (&BlockId, &Shadow)| match shadow {
            Shadow::Contents(Stored::Memory(contents), _, list) => {
                Some((*list, *block, Arc::clone(contents)))
            }
            _ => None,
        };
        let mut found: Vec<_> = self.shadows.iter().filter_map(of).collect();
        found.sort_unstable_by_key(|(list, block, _)| (*list, *block));
        found
    }

    /// Contents that it wrote are somewhere else now. Returns where they were if they were spilled before.
    pub(crate) fn set_spilled(&mut self, block: BlockId, run: Run) -> Option<Run> {
        let Some(Shadow::Contents(stored, ..)) = self.shadows.get_mut(&block) else {
            panic!("what is spilled is a shadow");
        };
        match std::mem::replace(stored, Stored::Spilled(run)) {
            Stored::Memory(contents) => {
                self.memory -= contents.len();
                None
            }
            Stored::Spilled(old) => Some(old),
        }
    }

    /// All that it has spilled.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        let spilled = self.shadows.values().filter_map(|shadow| match shadow {
            Shadow::Contents(Stored::Spilled(run), ..) => Some(*run),
            _ => None,
        });
        spilled.chain(self.left.iter().copied())
    }

    fn set_shadow(&mut self, block: BlockId, shadow: Option<Shadow>) {
        if let Some(Shadow::Contents(Stored::Memory(contents), ..)) = &shadow {
            self.memory += contents.len();
        }
        let old = match shadow {
            Some(shadow) => self.shadows.insert(block, shadow),
            None => self.shadows.remove(&block),
        };
        match old {
            Some(Shadow::Contents(Stored::Memory(contents), ..)) => self.memory -= contents.len(),
            Some(Shadow::Contents(Stored::Spilled(run), ..)) => self.left.push(run),
            Some(Shadow::Deleted) | None => {}
        }
    }

    /// Whether there is nothing to be done at its end.
    pub(crate) fn has_done_nothing(&self) -> bool {
        self.shadows.is_empty() && self.ops.is_empty()
    }

    /// Whether it has made the block.
    pub(crate) fn has_made(&self, block: BlockId) -> bool {
        self.made.contains_key(&block)
    }

    /// Contents that it has to write at its end.
    pub(crate) fn writes(&self) -> usize {
        self.shadows.values().filter(|shadow| matches!(shadow, Shadow::Contents(..))).count()
    }

    /// Operations on lists that it has to do at its end.
    pub(crate) fn list_ops(&self) -> &[ListOp] {
        &self.ops
    }

    /// Contents in the order of their blocks, which is the same every time.
    pub(crate) fn take_writes(&mut self) -> Vec<(BlockId, Stored)> {
        let contents = |(block, shadow)| match shadow {
            Shadow::Contents(stored, ..) => Some((block, stored)),
            Shadow::Deleted => None,
        };
        let mut writes: Vec<_> = self.shadows.drain().filter_map(contents).collect();
        writes.sort_unstable_by_key(|(block, _)| *block);
        writes
    }

    pub(crate) fn write(&mut self, block: BlockId, list: ListId, contents: Contents, at: u64) {
        self.set_shadow(block, Some(Shadow::Contents(Stored::Memory(contents), at, list)));
    }

    pub(crate) fn make_list(&mut self, list: ListId, sparse: bool, at: u64) {
        self.views.insert(list, View { made: Some(sparse), at, ..View::default() });
        self.ops.push(ListOp::NewList { list, sparse });
    }

    /// Deletes a list; what the unit has of its blocks goes nowhere.
    ///
    /// # Errors
    /// Those of pages.
    pub(crate) fn delete_list(&mut self, list: ListId, state: &State, at: u64) -> Result<()> {
        let mut gone = Vec::new();
        let seen = Seen { unit: Some(self), state };
        for &block in self.shadows.keys() {
            if seen.list_of(block)? == Some(list) {
                gone.push(block);
            }
        }
        gone.iter().for_each(|block| self.set_shadow(*block, None));
        let view = self.views.entry(list).or_default();
        (view.gone, view.at) = (true, at);
        self.ops.push(ListOp::DeleteList { list });
        Ok(())
    }

    /// Puts a new block into a list. Its place is where it would be in the unit's view.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST` and `EINVAL` as for the disk's own operation.
    pub(crate) fn insert(
        &mut self,
        block: BlockId,
        list: ListId,
        at: At,
        state: &State,
        now: u64,
    ) -> Result<()> {
        let seen = Seen { unit: Some(self), state };
        let sparse = seen.list(list)?.ok_or(Errno::NOENT)?;
        let new = match (at, sparse) {
            (At::Position(position), true) => match seen.at(list, position)? {
                Some(_) => return Err(Errno::EXIST.into()),
                None => spot(position),
            },
            (At::Start, false) => self.spot_behind(list, None, state)?,
            (At::After(before), false) => {
                if seen.list_of(before)? != Some(list) {
                    return Err(Errno::NOENT.into());
                }
                let before = seen.spot_of(list, before)?.ok_or(Errno::NOENT)?;
                self.spot_behind(list, Some(before), state)?
            }
            _ => return Err(Errno::INVAL.into()),
        };
        let view = self.views.entry(list).or_default();
        view.difference.insert(new, Some(block));
        view.spots.insert(block, new);
        view.at = now;
        self.made.insert(block, list);
        self.ops.push(ListOp::Insert { block, list, at });
        Ok(())
    }

    /// A free spot behind another one, or at the beginning.
    fn spot_behind(&mut self, list: ListId, after: Option<Spot>, state: &State) -> Result<Spot> {
        let view = self.views.entry(list).or_default();
        for is_spread in [false, true] {
            let low = after.map(|after| if is_spread { view.moved(after) } else { after });
            let next = view.next(list, low.map_or(0, |low| low + 1), state)?.map(|(spot, _)| spot);
            let high = next.unwrap_or(Spot::MAX);
            let from = low.unwrap_or(0);
            // Appended blocks leave room for those that come behind them.
            let found = if next.is_none() && high - from > 1 << 100 {
                from + (1 << 97)
            } else {
                from + (high - from) / 2
            };
            if found > from && found < high {
                return Ok(found);
            }
            view.spread(list, from, state)?;
        }
        Err(Error::Unsupported("so many blocks of one unit in one place".into()))
    }

    pub(crate) fn delete(&mut self, block: BlockId, list: ListId, state: &State, now: u64) -> Result<()> {
        let spot = Seen { unit: Some(self), state }.spot_of(list, block)?.ok_or(Errno::NOENT)?;
        let view = self.views.entry(list).or_default();
        view.difference.insert(spot, None);
        view.spots.remove(&block);
        view.at = now;
        self.set_shadow(block, Some(Shadow::Deleted));
        self.ops.push(ListOp::Delete { block });
        Ok(())
    }

    /// Those of the blocks that it writes at its end whose contents are in memory.
    pub(crate) fn written_in_memory(&self) -> impl Iterator<Item = BlockId> + '_ {
        let is_in_memory = |shadow: &Shadow| matches!(shadow, Shadow::Contents(Stored::Memory(_), ..));
        self.shadows.iter().filter(move |(_, shadow)| is_in_memory(shadow)).map(|(block, _)| *block)
    }

    /// The blocks that it writes at its end.
    pub(crate) fn written(&self) -> impl Iterator<Item = BlockId> + '_ {
        let contents =
            |(block, shadow): (&BlockId, &Shadow)| matches!(shadow, Shadow::Contents(..)).then_some(*block);
        self.shadows.iter().filter_map(contents)
    }
}
