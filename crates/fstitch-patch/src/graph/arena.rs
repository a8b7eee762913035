//! Where patches live: places with generations, so that an id never names a later patch.

use super::patch::{Patch, Px};
use crate::PatchId;

#[derive(Debug)]
enum Place {
    Free,
    Live(Box<Patch>),
    /// Merged into another patch, which frees this place when it commits.
    Forward {
        generation: u64,
        to: Px,
    },
}

/// All patches of a graph.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    places: Vec<Place>,
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
        self.places.len() * size_of::<Place>() + self.live * size_of::<Patch>()
    }

    /// Adds a patch and gives it its generation.
    pub(crate) fn insert(&mut self, mut patch: Patch) -> Px {
        self.last_generation += 1;
        self.live += 1;
        patch.generation = self.last_generation;
        let place = Place::Live(Box::new(patch));
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
        let place = std::mem::replace(&mut self.places[Self::at(px)], Place::Free);
        let Place::Live(patch) = place else { unreachable!("removed patches are live") };
        self.live -= 1;
        self.free.push(px);
        for &alias in &patch.aliases {
            self.places[Self::at(alias)] = Place::Free;
            self.free.push(alias);
        }
        *patch
    }

    /// Turns `px` into a forward to `to` and returns what was there.
    pub(crate) fn forward(&mut self, px: Px, to: Px) -> Patch {
        let generation = self.get(px).generation;
        let place = std::mem::replace(&mut self.places[Self::at(px)], Place::Forward { generation, to });
        let Place::Live(mut patch) = place else { unreachable!("merged patches are live") };
        self.live -= 1;
        for &alias in &patch.aliases {
            if let Place::Forward { to: target, .. } = &mut self.places[Self::at(alias)] {
                *target = to;
            }
        }
        let mut moved = std::mem::take(&mut patch.aliases);
        moved.push(px);
        self.get_mut(to).aliases.append(&mut moved);
        *patch
    }

    /// The live patch that `id` names now, forwards followed; `None` if it committed.
    pub(crate) fn resolve(&self, id: PatchId) -> Option<Px> {
        match self.places.get(Self::at(id.index))? {
            Place::Live(patch) if patch.generation == id.generation => Some(id.index),
            Place::Forward { generation, to } if *generation == id.generation => Some(*to),
            _ => None,
        }
    }

    pub(crate) fn id(&self, px: Px) -> PatchId {
        PatchId { generation: self.get(px).generation, index: px }
    }

    pub(crate) fn get(&self, px: Px) -> &Patch {
        match &self.places[Self::at(px)] {
            Place::Live(patch) => patch,
            _ => unreachable!("edges lead to live patches"),
        }
    }

    pub(crate) fn get_mut(&mut self, px: Px) -> &mut Patch {
        match &mut self.places[Self::at(px)] {
            Place::Live(patch) => patch,
            _ => unreachable!("edges lead to live patches"),
        }
    }

    /// All live patches.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Px, &Patch)> {
        self.places.iter().enumerate().filter_map(|(at, place)| match place {
            Place::Live(patch) => Some((Px::try_from(at).expect("arena index"), &**patch)),
            _ => None,
        })
    }

    fn at(px: Px) -> usize {
        usize::try_from(px).expect("64-bit machine")
    }
}
