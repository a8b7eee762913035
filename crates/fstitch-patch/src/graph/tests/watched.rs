//! Who looks on sees what is there: events replay to the patches of the graph, and views agree with it.
//!
//! What it prevents: places where a patch comes or goes and nobody is told, edges that lead nowhere, and causes that are none.

use std::collections::{BTreeMap, BTreeSet};

use super::super::patch::{NO_SLOT, Px, Role, Sx};
use super::super::{Readiness, Root};
use super::World;
use crate::observer::What;
use crate::view::{BlockView, PatchView, Ready, Standing};
use crate::{PatchId, PatchState};

/// A patch as far as events tell: its block, and whether it is in flight.
type Known = (Option<u64>, bool);

/// What events tell.
#[derive(Default)]
pub(super) struct Replay {
    patches: BTreeMap<PatchId, Known>,
}

impl Replay {
    fn hear(&mut self, what: What) {
        let known = "events speak of patches that were made";
        match what {
            What::Made { patch, block, .. } => drop(self.patches.insert(patch, (Some(block.get()), false))),
            What::MadeEmpty { patch, .. } => drop(self.patches.insert(patch, (None, false))),
            What::Merged { patch, into } => {
                assert!(self.patches.contains_key(&into), "{known}");
                self.patches.remove(&patch).expect(known);
            }
            What::Committed { patch } | What::Dropped { patch } => {
                self.patches.remove(&patch).expect(known);
            }
            What::Emptied { patch } => self.patches.get_mut(&patch).expect(known).0 = None,
            What::Launched { block, patches, undone, .. } => {
                let of_block = |(of, flies): &&mut Known| *of == Some(block.get()) && !*flies;
                let all: Vec<&mut Known> = self.patches.values_mut().filter(of_block).collect();
                assert_eq!(all.len(), usize::try_from(patches + undone).unwrap(), "those of block {block}");
                all.into_iter().for_each(|known| known.1 = true);
            }
            What::Undone { patch } => self.patches.get_mut(&patch).expect(known).1 = false,
            What::Waits { patch, before } => {
                assert!([patch, before].iter().all(|id| self.patches.contains_key(id)), "{known}");
            }
            What::Joined { patch } | What::Released { patch } => {
                assert!(self.patches.contains_key(&patch), "{known}");
            }
            What::Began { .. } | What::Ended { .. } | What::Stalled | What::Poisoned => {}
        }
    }
}

impl World {
    /// Whoever hears of events knows which patches there are, on which blocks, and which are in flight.
    pub(super) fn check_replay(&mut self) {
        let mut events = Vec::new();
        let dropped = self.graph.ring().expect("it is watched").swap(&mut events);
        assert_eq!(dropped, 0, "there is room for all");
        events.into_iter().for_each(|event| self.replay.hear(event.what));
        let known = |(px, patch): (Px, &super::super::Patch)| {
            let block = (patch.slot != NO_SLOT).then(|| self.graph.slot(patch.slot).no.get());
            (self.graph.arena.id(px), (block, patch.in_flight))
        };
        let there: BTreeMap<PatchId, Known> = self.graph.arena.iter().map(known).collect();
        assert_eq!(self.replay.patches, there, "events replay to what is there");
    }

    /// A view of everything has everything, and a small one is a part of it.
    pub(super) fn check_view(&self, limit: usize) {
        let flying = |&&sx: &&Sx| !self.graph.slot(sx).flying.is_empty();
        let in_flight: Vec<Sx> = self.slots.iter().filter(flying).copied().collect();
        let now = fstitch_core::Clock::elapsed(&*self.clock);
        let all = self.graph.pick(&in_flight, now, 1 << 12);
        assert!(all.left_out.is_nothing(), "{:?}", all.left_out);
        let patches: BTreeMap<PatchId, &PatchView> = patches(&all.blocks, &all.empties).collect();
        let live: BTreeSet<PatchId> =
            self.graph.arena.iter().map(|(px, _)| self.graph.arena.id(px)).collect();
        assert!(patches.keys().eq(&live), "a view of everything has every patch");
        let edges: BTreeSet<(PatchId, PatchId)> =
            all.edges.iter().map(|edge| (edge.after, edge.before)).collect();
        assert_eq!(edges.len(), all.edges.len(), "each edge once");
        for (after, before) in &edges {
            assert!(patches.contains_key(after) && patches.contains_key(before), "edges have ends");
        }
        for (sx, block) in &all.blocks {
            self.check_ready(*sx, block, &edges);
        }
        let some = self.graph.pick(&in_flight, now, limit);
        assert!(some.blocks.len() <= limit && some.empties.len() <= limit);
        let shown: usize = some.blocks.iter().map(|(_, block)| block.patches.len()).sum();
        assert!(shown <= limit);
        assert_eq!(shown + some.empties.len() + some.left_out.patches, live.len());
        assert_eq!(some.blocks.len() + some.left_out.blocks, all.blocks.len());
        assert!(some.edges.iter().all(|edge| edges.contains(&(edge.after, edge.before))));
        let in_view = patches_of(&some.blocks, &some.empties);
        let of_shown = edges.iter().filter(|(after, _)| in_view.contains(after)).count();
        assert_eq!(some.edges.len() + some.left_out.edges, of_shown);
    }

    /// What is said of a block agrees with its edges, and the cause leads along edges to something that is not stable.
    fn check_ready(&self, sx: Sx, block: &BlockView, edges: &BTreeSet<(PatchId, PatchId)>) {
        let own: BTreeSet<PatchId> = block.patches.iter().map(|patch| patch.id).collect();
        let waits = edges.iter().any(|(after, before)| own.contains(after) && !own.contains(before));
        assert_eq!(block.ready == Ready::Whole, !waits && !block.is_in_flight, "block {}", block.no);
        assert_eq!(block.ready == Ready::No, self.graph.readiness(sx) == Readiness::None);
        assert_eq!(block.is_in_flight, block.patches.iter().any(|patch| patch.state == PatchState::InFlight));
        let Some(obstacle) = self.graph.obstacle(sx) else {
            assert!(!waits, "block {} waits, and nothing is said to stand in its way", block.no);
            return;
        };
        let mut above = self.graph.id(obstacle.patch);
        assert!(own.contains(&above));
        for next in self.graph.ids(&obstacle.by_way_of) {
            assert!(edges.contains(&(above, next)), "a cause leads along edges");
            above = next;
        }
        // By way of a patch without a block it may be an earlier one of the same block.
        let is_lawful = |px: Px| {
            let of = self.graph.patch(px).slot;
            of != NO_SLOT && (of != sx || !obstacle.by_way_of.is_empty())
        };
        let (root, is_right) = match obstacle.root {
            Root::Patch(px) => (px, is_lawful(px)),
            Root::Held(px) => (px, self.graph.patch(px).role == Role::Held),
            Root::Chain(px) => (px, false),
        };
        assert!(is_right, "{obstacle:?}");
        assert!(edges.contains(&(above, self.graph.id(root))), "a cause leads along edges");
        self.check_standing(sx);
    }

    /// What is ready is what would be written.
    fn check_standing(&self, sx: Sx) {
        let slot = self.graph.slot(sx);
        if slot.flying.is_empty() {
            let ready = self.graph.ready_set(sx);
            for &px in &*slot.patches {
                let said = self.graph.standing_of(px) == Standing::Ready;
                assert_eq!(said, ready.contains(&px), "patch {px} of block {}", slot.no);
            }
        } else {
            assert!(slot.patches.iter().all(|&px| self.graph.standing_of(px) == Standing::Behind));
            assert!(slot.flying.iter().all(|&px| self.graph.standing_of(px) == Standing::InFlight));
        }
    }
}

fn patches<'a>(
    blocks: &'a [(Sx, BlockView)],
    empties: &'a [PatchView],
) -> impl Iterator<Item = (PatchId, &'a PatchView)> {
    let of_blocks = blocks.iter().flat_map(|(_, block)| &block.patches);
    of_blocks.chain(empties).map(|patch| (patch.id, patch))
}

fn patches_of(blocks: &[(Sx, BlockView)], empties: &[PatchView]) -> BTreeSet<PatchId> {
    patches(blocks, empties).map(|(id, _)| id).collect()
}
