//! Where patches live: places with generations, so that an id never names a later patch.

use super::patch::{Patch, Px};
use crate::PatchId;
use fstitch_core::num::to_usize;

#[derive(Debug)]
enum Place {
    Live(Patch),
    /// Merged into another patch, which frees this place when it commits.
    Forward {
        generation: u64,
        to: Px,
    },
}

/// All patches of a graph.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    /// `None` is free.
    places: Vec<Option<Box<Place>>>,
    free: Vec<Px>,
    last_generation: u64,
    live: usize,
}

impl Arena {
    /// The generation that the next patch will get.
    pub(crate) fn next_generation(&self) -> u64 {
        self.last_generation + 1
    }

    /// Live patches.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Places allocated, in bytes of memory (edges not counted).
    pub(crate) fn bytes(&self) -> usize {
        self.places.len() * size_of::<usize>() + self.live * size_of::<Place>()
    }

    /// Adds a patch and gives it its generation.
    pub(crate) fn insert(&mut self, mut patch: Patch) -> Px {
        self.last_generation += 1;
        self.live += 1;
        patch.generation = self.last_generation;
        let place = Some(Box::new(Place::Live(patch)));
        if let Some(px) = self.free.pop() {
            self.places[Self::at(px)] = place;
            return px;
        }
        let px = Px::try_from(self.places.len()).expect("fewer than 2^32 patches by the memory limit");
        self.places.push(place);
        px
    }

    /// Removes a committed or dropped patch and the places forwarding to it.
    pub(crate) fn remove(&mut self, px: Px) -> Patch {
        let place = self.places[Self::at(px)].take().map(|place| *place);
        let Some(Place::Live(patch)) = place else { unreachable!("removed patches are live") };
        self.live -= 1;
        self.free.push(px);
        for &alias in patch.aliases() {
            self.places[Self::at(alias)] = None;
            self.free.push(alias);
        }
        patch
    }

    /// Turns `px` into a forward to `to` and returns what was there.
    pub(crate) fn forward(&mut self, px: Px, to: Px) -> Patch {
        let generation = self.get(px).generation;
        let forward = Some(Box::new(Place::Forward { generation, to }));
        let place = std::mem::replace(&mut self.places[Self::at(px)], forward).map(|place| *place);
        let Some(Place::Live(patch)) = place else { unreachable!("merged patches are live") };
        self.live -= 1;
        for &alias in patch.aliases() {
            if let Some(Place::Forward { to: target, .. }) = self.places[Self::at(alias)].as_deref_mut() {
                *target = to;
            }
        }
        let into = self.get_mut(to);
        into.add_aliases(patch.aliases());
        into.add_aliases(&[px]);
        patch
    }

    /// The live patch that `id` names now, forwards followed; `None` if it committed.
    pub(crate) fn resolve(&self, id: PatchId) -> Option<Px> {
        match self.places.get(Self::at(id.index))?.as_deref()? {
            Place::Live(patch) if patch.generation == id.generation => Some(id.index),
            Place::Forward { generation, to } if *generation == id.generation => Some(*to),
            _ => None,
        }
    }

    pub(crate) fn id(&self, px: Px) -> PatchId {
        PatchId { generation: self.get(px).generation, index: px }
    }

    pub(crate) fn get(&self, px: Px) -> &Patch {
        match self.places[Self::at(px)].as_deref() {
            Some(Place::Live(patch)) => patch,
            _ => unreachable!("edges lead to live patches"),
        }
    }

    pub(crate) fn get_mut(&mut self, px: Px) -> &mut Patch {
        match self.places[Self::at(px)].as_deref_mut() {
            Some(Place::Live(patch)) => patch,
            _ => unreachable!("edges lead to live patches"),
        }
    }

    /// No patch has a mark any more.
    pub(crate) fn wipe_marks(&mut self) {
        for place in self.places.iter_mut().filter_map(|place| place.as_deref_mut()) {
            if let Place::Live(patch) = place {
                patch.mark = 0;
            }
        }
    }

    /// All live patches.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Px, &Patch)> {
        self.places.iter().enumerate().filter_map(|(at, place)| match place.as_deref() {
            Some(Place::Live(patch)) => Some((Px::try_from(at).expect("arena index"), patch)),
            _ => None,
        })
    }

    fn at(px: Px) -> usize {
        to_usize(px)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_takes_less_than_three_hundredths_of_a_block() {
        // With its place and the id by which the pointer to the block comes after it: a fifth is left for the others.
        assert!(size_of::<Place>() + size_of::<usize>() + size_of::<PatchId>() <= 4096 * 24 / 1000);
        // A line of the processor's cache.
        assert_eq!(size_of::<Place>(), 64);
    }
}
