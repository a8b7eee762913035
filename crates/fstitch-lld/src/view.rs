//! Lists as a unit sees them: what it has changed is a difference to the committed list.

use std::collections::BTreeMap;

use fstitch_core::Result;
use fstitch_core::num::to_u64;
use rustc_hash::FxHashMap;

use crate::record::{BlockId, Label, ListId};
use crate::state::State;
use crate::unit::{Shadow, Unit};

/// A place in a list as a unit sees it: a label, and room for what it puts between two labels.
pub(crate) type Spot = u128;

pub(crate) fn spot(label: Label) -> Spot {
    Spot::from(label) << 64
}

fn label_of(spot: Spot) -> Option<Label> {
    let label = u64::try_from(spot >> 64).expect("64 bits remain");
    (self::spot(label) == spot).then_some(label)
}

/// A list that a unit has changed.
#[derive(Debug, Default)]
pub(crate) struct View {
    /// It was made by the unit; whether it is sparse.
    pub(crate) made: Option<bool>,
    /// The unit has deleted it, or somebody else has.
    pub(crate) gone: bool,
    /// Other blocks than the committed list has, or none.
    pub(crate) difference: BTreeMap<Spot, Option<BlockId>>,
    /// Where blocks are that are not at their label.
    pub(crate) spots: FxHashMap<BlockId, Spot>,
    /// When it was changed last, counted over all units.
    pub(crate) at: u64,
    /// Where the blocks were that were moved apart last.
    pub(crate) moved_from: Vec<(Spot, BlockId)>,
}

/// What a unit is asked of its view.
pub(crate) struct Seen<'a> {
    pub(crate) unit: Option<&'a Unit>,
    pub(crate) state: &'a State,
}

impl View {
    /// The block stays at its label, although the committed list will not have it there.
    pub(crate) fn keep(&mut self, label: Label, block: BlockId) {
        if let std::collections::btree_map::Entry::Vacant(vacant) = self.difference.entry(spot(label)) {
            vacant.insert(Some(block));
            self.spots.insert(block, spot(label));
        }
    }

    /// The first spot from one on that has a block.
    pub(crate) fn next(&self, list: ListId, from: Spot, state: &State) -> Result<Option<(Spot, BlockId)>> {
        let mut own = self.difference.range(from..).filter_map(|(spot, block)| Some((*spot, (*block)?)));
        let own = own.next();
        if self.made.is_some() {
            return Ok(own);
        }
        let mut label = u64::try_from((from + Spot::from(u64::MAX)) >> 64).unwrap_or(u64::MAX);
        loop {
            let found = state.order.tree.at_or_after(&(list, label), &state.order.pages)?;
            let Some(((of, at), block)) = found.filter(|((of, _), _)| *of == list) else { return Ok(own) };
            debug_assert_eq!(of, list);
            if own.is_some_and(|(own, _)| own <= spot(at)) {
                return Ok(own);
            }
            if !self.difference.contains_key(&spot(at)) {
                return Ok(Some((spot(at), block)));
            }
            let Some(next) = at.checked_add(1) else { return Ok(own) };
            label = next;
        }
    }

    /// The last spot below one that has a block.
    pub(crate) fn previous(
        &self,
        list: ListId,
        below: Spot,
        state: &State,
    ) -> Result<Option<(Spot, BlockId)>> {
        let mut own =
            self.difference.range(..below).rev().filter_map(|(spot, block)| Some((*spot, (*block)?)));
        let own = own.next();
        if self.made.is_some() {
            return Ok(own);
        }
        // The first label whose spot is not below.
        let mut label = u64::try_from((below + Spot::from(u64::MAX)) >> 64).unwrap_or(u64::MAX);
        loop {
            let Some((at, block)) = state.previous_in(list, label)? else { return Ok(own) };
            if own.is_some_and(|(own, _)| own >= spot(at)) {
                return Ok(own);
            }
            if !self.difference.contains_key(&spot(at)) {
                return Ok(Some((spot(at), block)));
            }
            label = at;
        }
    }

    /// Each difference in its order, with what it adds to the number of blocks.
    pub(crate) fn effects(&self, list: ListId, state: &State) -> Result<Vec<(Spot, Option<BlockId>, i64)>> {
        let mut effects = Vec::with_capacity(self.difference.len());
        for (&at, &block) in &self.difference {
            let has = match label_of(at).filter(|_| self.made.is_none()) {
                Some(label) => state.order.get(&(list, label))?.is_some(),
                None => false,
            };
            effects.push((at, block, i64::from(block.is_some()) - i64::from(has)));
        }
        Ok(effects)
    }
}

impl Seen<'_> {
    pub(crate) fn view(&self, list: ListId) -> Option<&View> {
        self.unit?.views.get(&list)
    }

    /// Whether there is a list; if so whether it is sparse.
    pub(crate) fn list(&self, list: ListId) -> Result<Option<bool>> {
        match self.view(list) {
            Some(view) if view.gone => Ok(None),
            Some(View { made: Some(sparse), .. }) => Ok(Some(*sparse)),
            _ => Ok(self.state.lists.get(&list)?.map(|entry| entry.sparse)),
        }
    }

    /// How many blocks a list has.
    pub(crate) fn len(&self, list: ListId) -> Result<u64> {
        let committed = self.state.lists.get(&list)?.map_or(0, |entry| entry.blocks);
        let Some(view) = self.view(list) else { return Ok(committed) };
        let more: i64 = view.effects(list, self.state)?.iter().map(|effect| effect.2).sum();
        Ok(committed.saturating_add_signed(more))
    }

    /// The block at a position of an ordered list.
    pub(crate) fn select(&self, list: ListId, position: u64) -> Result<Option<BlockId>> {
        let order = &self.state.order;
        let first = order.tree.rank(&(list, 0), &order.pages)?;
        let effects = match self.view(list) {
            Some(view) => view.effects(list, self.state)?,
            None => Vec::new(),
        };
        let is_made = self.view(list).is_some_and(|view| view.made.is_some());
        let mut sum = 0_i64;
        for (at, block, effect) in effects {
            let before = if is_made {
                0
            } else {
                // Those with a smaller label: one behind it is at the label above.
                let label = label_of(at)
                    .unwrap_or_else(|| u64::try_from(at >> 64).expect("64 bits remain").saturating_add(1));
                order.tree.rank(&(list, label), &order.pages)? - first
            };
            let here = before.saturating_add_signed(sum);
            if position < here {
                break;
            }
            if position == here && block.is_some() {
                return Ok(block);
            }
            sum += effect;
        }
        if is_made {
            return Ok(None);
        }
        let Some(at) =
            first.checked_add_signed(0).and_then(|first| (first + position).checked_add_signed(-sum))
        else {
            return Ok(None);
        };
        let found = order.tree.select(at, &order.pages)?;
        Ok(found.filter(|((of, _), _)| *of == list).map(|(_, block)| block))
    }

    /// The block at a position of a sparse list.
    pub(crate) fn at(&self, list: ListId, position: u64) -> Result<Option<BlockId>> {
        if let Some(view) = self.view(list) {
            if let Some(block) = view.difference.get(&spot(position)) {
                return Ok(*block);
            }
            if view.made.is_some() {
                return Ok(None);
            }
        }
        self.state.order.get(&(list, position))
    }

    /// The first block of a sparse list at a position or behind it.
    pub(crate) fn next(&self, list: ListId, position: u64) -> Result<Option<(u64, BlockId)>> {
        let Some(view) = self.view(list) else { return self.state.next_in(list, position) };
        let found = view.next(list, spot(position), self.state)?;
        Ok(found.and_then(|(at, block)| Some((label_of(at)?, block))))
    }

    /// The block behind one of a list, or in front of it.
    pub(crate) fn neighbour(
        &self,
        list: ListId,
        block: BlockId,
        forwards: bool,
    ) -> Result<Option<Option<BlockId>>> {
        let Some(at) = self.spot_of(list, block)? else { return Ok(None) };
        let found = match (self.view(list), label_of(at), forwards) {
            (Some(view), _, true) => view.next(list, at + 1, self.state)?.map(|(_, block)| block),
            (Some(view), _, false) => view.previous(list, at, self.state)?.map(|(_, block)| block),
            (None, Some(label), true) => match label.checked_add(1) {
                Some(next) => self.state.next_in(list, next)?.map(|(_, block)| block),
                None => None,
            },
            (None, Some(label), false) => self.state.previous_in(list, label)?.map(|(_, block)| block),
            (None, None, _) => None,
        };
        Ok(Some(found))
    }

    /// The list that a block is in, if there is such a block.
    pub(crate) fn list_of(&self, block: BlockId) -> Result<Option<ListId>> {
        if let Some(unit) = self.unit {
            match unit.shadows.get(&block) {
                Some(Shadow::Deleted) => return Ok(None),
                Some(Shadow::Contents(_, _, list)) => {
                    return Ok(Some(*list).filter(|list| self.view(*list).is_none_or(|view| !view.gone)));
                }
                None => {}
            }
            if let Some(list) = unit.made.get(&block) {
                return Ok((!unit.views[list].gone).then_some(*list));
            }
        }
        let list = self.state.blocks.get(&block)?.map(|entry| entry.list);
        Ok(list.filter(|list| self.view(*list).is_none_or(|view| !view.gone)))
    }

    /// A block's spot in its list.
    pub(crate) fn spot_of(&self, list: ListId, block: BlockId) -> Result<Option<Spot>> {
        if let Some(spot) = self.view(list).and_then(|view| view.spots.get(&block)) {
            return Ok(Some(*spot));
        }
        let entry = self.state.blocks.get(&block)?.filter(|entry| entry.list == list);
        let Some(entry) = entry else { return Ok(None) };
        // One that somebody else has put there since is not seen.
        let hidden = self.view(list).is_some_and(|view| view.difference.contains_key(&spot(entry.label)));
        Ok((!hidden).then_some(spot(entry.label)))
    }
}

impl View {
    /// The unit's own blocks around a spot move apart, between the two committed labels around them.
    pub(crate) fn spread(&mut self, list: ListId, around: Spot, state: &State) -> Result<()> {
        let low = (around >> 64) << 64;
        let high = match u64::try_from(around >> 64).expect("64 bits remain").checked_add(1) {
            Some(label) => {
                let next = state.order.tree.at_or_after(&(list, label), &state.order.pages)?;
                next.filter(|((of, _), _)| *of == list).map_or(Spot::MAX, |((_, label), _)| spot(label))
            }
            None => Spot::MAX,
        };
        let own: Vec<(Spot, BlockId)> = self
            .difference
            .range(low + 1..high)
            .filter_map(|(spot, block)| Some((*spot, (*block)?)))
            .collect();
        self.difference.retain(|spot, block| !(*spot > low && *spot < high && block.is_some()));
        let step = (high - low) / (Spot::from(to_u64(own.len())) + 2);
        for (n, (_, block)) in (1..).zip(&own) {
            let spot = low + n * step;
            self.difference.insert(spot, Some(*block));
            self.spots.insert(*block, spot);
        }
        self.moved_from = own.iter().map(|(spot, block)| (*spot, *block)).collect();
        Ok(())
    }

    pub(crate) fn moved(&self, spot: Spot) -> Spot {
        let block = self.moved_from.iter().find(|(old, _)| *old == spot).map(|(_, block)| *block);
        block.and_then(|block| self.spots.get(&block).copied()).unwrap_or(spot)
    }
}
