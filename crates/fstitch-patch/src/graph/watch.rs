//! Events of the graph for who looks on: see `observer.rs`. Where nobody does, each place costs one look at a pointer.

use super::Graph;
use super::patch::{Change, Px, Role, Sx};
use crate::observer::{Event, Ring, What};
use crate::view::PatchRole;

impl Graph {
    /// From now on events are put there, or nowhere; returns where they were put.
    pub(crate) fn watch(&mut self, ring: Option<Box<Ring>>) -> Option<Box<Ring>> {
        std::mem::replace(&mut self.ring, ring)
    }

    /// Where events are put.
    pub(crate) fn ring(&mut self) -> Option<&mut Ring> {
        self.ring.as_deref_mut()
    }

    /// Says what happens, if anybody wants to know.
    #[inline(always)]
    pub(crate) fn tell(&mut self, what: impl FnOnce(&Self) -> What) {
        if self.ring.is_some() {
            self.note(what);
        }
    }

    #[cold]
    #[inline(never)]
    fn note(&mut self, what: impl FnOnce(&Self) -> What) {
        let event = Event { at: self.moment.at(), what: what(self) };
        if let Some(ring) = &mut self.ring {
            ring.push(event);
        }
    }

    /// A change joined this patch.
    #[inline(always)]
    pub(super) fn tell_joined(&mut self, px: Px) {
        if self.ring.is_some() {
            self.note_join(px);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_join(&mut self, px: Px) {
        self.note(|graph| What::Joined { patch: graph.arena.id(px) });
    }

    /// A patch waits for another one from now on.
    #[inline(always)]
    pub(super) fn tell_waits(&mut self, after: Px, before: Px) {
        if self.ring.is_some() {
            self.note_wait(after, before);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_wait(&mut self, after: Px, before: Px) {
        self.note(|graph| What::Waits { patch: graph.arena.id(after), before: graph.arena.id(before) });
    }

    /// What a patch is.
    pub(crate) fn role_of(&self, px: Px) -> PatchRole {
        let patch = self.patch(px);
        match (patch.change(), patch.role) {
            (Change::Empty, Role::Ordinary) => PatchRole::Empty,
            (Change::Empty, Role::Held) => PatchRole::Held,
            (Change::Empty, Role::Gather) => PatchRole::Gather,
            _ if patch.hard => PatchRole::Hard,
            _ => PatchRole::Soft,
        }
    }

    /// Says that a block is on its way, and what was undone for it.
    #[inline(always)]
    pub(super) fn tell_launched(&mut self, sx: Sx, patches: usize) {
        if self.ring.is_some() {
            self.note_launched(sx, patches);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_launched(&mut self, sx: Sx, patches: usize) {
        let count = |n: usize| u32::try_from(n).expect("fewer than 2^32 patches");
        let slot = self.slot(sx);
        let (block, kind) = (slot.no, slot.kind);
        let left: Vec<Px> = slot.patches.to_vec();
        let undone = count(left.len());
        self.tell(|_| What::Launched { block, kind, patches: count(patches), undone });
        for px in left {
            self.tell(|graph| What::Undone { patch: graph.arena.id(px) });
        }
    }
}
