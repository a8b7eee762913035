//! Empty patches: plain, held and gathering.

use super::Graph;
use super::patch::{Change, NO_SLOT, Patch, Px, Role, Site, Vx};
use crate::PatchId;
use crate::observer::What;
use fstitch_core::BlockNo;

/// How many of the newest members of a gather are looked at for one that comes after a new member.
const IMPLIED_BY: usize = 4;
/// How many new members are compared with each other.
const COMPARED: usize = 4;

impl Graph {
    /// A patch without a block that commits when all befores have. `PatchId::NONE` if they have already.
    pub(crate) fn empty(&mut self, volume: Vx, befores: &[PatchId]) -> PatchId {
        let live = self.live(befores, None);
        if live.is_empty() {
            return PatchId::NONE;
        }
        let px = self.insert_empty(volume, Role::Ordinary);
        for before in live {
            self.add_edge(px, before);
        }
        self.arena.id(px)
    }

    /// An empty patch that does not commit until it is released, and to which befores may be added until then.
    pub(crate) fn hold(&mut self, volume: Vx, befores: &[PatchId]) -> PatchId {
        let px = self.insert_empty(volume, Role::Held);
        for before in self.live(befores, None) {
            self.add_edge(px, before);
        }
        self.arena.id(px)
    }

    /// Adds a before to a held patch.
    ///
    /// # Panics
    /// If `held` is not held, or the edge would close a cycle.
    pub(crate) fn add_before(&mut self, held: PatchId, before: PatchId) {
        let Some(above) = self.arena.resolve(held) else { panic!("a held patch cannot have committed") };
        assert!(self.patch(above).role == Role::Held, "befores are given at creation");
        for below in self.live(&[before], None) {
            assert!(!self.reaches(&[below], above), "the dependency would close a cycle");
            self.add_edge(above, below);
        }
    }

    /// Lets a held patch commit as soon as its befores have.
    ///
    /// # Panics
    /// If it is not held.
    pub(crate) fn release(&mut self, held: PatchId) {
        let Some(px) = self.arena.resolve(held) else { panic!("a held patch cannot have committed") };
        assert!(self.patch(px).role == Role::Held, "only held patches are released");
        self.patch_mut(px).role = Role::Ordinary;
        self.tell(|_| What::Released { patch: held });
        if self.patch(px).outer == 0 {
            self.commit_empties(vec![px]);
            self.note_live();
        }
    }

    /// Adds `member` to what `gather` stands for, and returns what stands for all of it from now on: `member` itself if
    /// it comes after all the rest, `gather` if `member` is stable or comes before what is gathered.
    pub(crate) fn gather(&mut self, volume: Vx, gather: PatchId, member: PatchId) -> PatchId {
        self.gather_all(volume, gather, &[member])
    }

    /// Adds several members. Those that others of them come after are left out.
    pub(crate) fn gather_all(&mut self, volume: Vx, mut gather: PatchId, members: &[PatchId]) -> PatchId {
        let few = if (2..=COMPARED).contains(&members.len()) { members } else { &[] };
        let mut above = self.arena.resolve(gather).and_then(|px| self.standing(px));
        for &member in members {
            // As nearly always: an inode's changes join the patch of its block, or were gathered long ago.
            if member == gather {
                continue;
            }
            let Some(named) = self.arena.resolve(member) else { continue };
            if above.is_some_and(|above| self.has_edge(above, named)) {
                continue;
            }
            let Some(below) = self.standing(named) else { continue };
            assert!(!self.patch(below).is_gather(), "nothing may depend on a gather");
            let Some(stands) = above else {
                (gather, above) = (member, Some(below));
                continue;
            };
            let is_left_out = |&other: &PatchId| self.depends_on(other, member);
            // The lists of an edge may both be long: they are not looked through again.
            let is_there = below != named && self.has_edge(stands, below);
            if !is_there && !self.is_implied(stands, below) && !few.iter().any(is_left_out) {
                gather = self.gather_new(volume, (gather, stands), (member, below));
                above = self.arena.resolve(gather).and_then(|px| self.standing(px));
            }
        }
        gather
    }

    /// Whether a gather, or a patch that stands for one, stands for this patch without an edge to it.
    fn is_implied(&self, above: Px, below: Px) -> bool {
        if above == below {
            return true;
        }
        if self.patch(below).afters.is_empty() || !self.patch(above).is_gather() {
            return false;
        }
        let newest = self.patch(above).befores().iter().rev().take(IMPLIED_BY);
        newest.filter_map(|&id| self.arena.resolve(id)).any(|other| self.has_edge(other, below))
    }

    /// Adds what is not gathered yet.
    fn gather_new(
        &mut self,
        volume: Vx,
        (gather, above): (PatchId, Px),
        (member, below): (PatchId, Px),
    ) -> PatchId {
        if self.patch(above).is_gather() {
            // It has none yet.
            self.add_new_edge(above, below);
            return gather;
        }
        if self.has_edge(below, above) {
            return member;
        }
        let both = self.insert_empty(volume, Role::Gather);
        self.add_edge(both, above);
        self.add_edge(both, below);
        self.arena.id(both)
    }

    /// Whether one patch comes after the other directly.
    pub(crate) fn depends_on(&self, after: PatchId, before: PatchId) -> bool {
        match (self.arena.resolve(after), self.arena.resolve(before)) {
            (Some(after), Some(before)) => !self.patch(before).home && self.has_edge(after, before),
            _ => false,
        }
    }

    /// A patch that commits when everything has that these gathers have gathered so far.
    pub(crate) fn empty_after(&mut self, volume: Vx, gathers: &[PatchId]) -> PatchId {
        let mut befores = Vec::new();
        for px in gathers.iter().filter_map(|&id| self.arena.resolve(id)) {
            match self.patch(px).is_gather() {
                true => befores.extend(self.live_befores(px).map(|before| self.arena.id(before))),
                false => befores.push(self.arena.id(px)),
            }
        }
        befores.sort_unstable();
        befores.dedup();
        self.empty(volume, &befores)
    }

    pub(super) fn insert_empty(&mut self, volume: Vx, role: Role) -> Px {
        self.stats.patches_created_empty += 1;
        self.stats.patches_created_gather += u64::from(role == Role::Gather);
        let site = Site { volume, slot: NO_SLOT, no: BlockNo(0) };
        let mut patch = Patch::new(site, Change::Empty);
        patch.role = role;
        let px = self.arena.insert(patch);
        self.tell(|graph| What::MadeEmpty { patch: graph.arena.id(px), role: graph.role_of(px) });
        self.note_live();
        px
    }
}
