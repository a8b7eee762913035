//! A part of the graph as plain values: see [`crate::view`].
//!
//! All of it is seen under one lock, so it is bounded: so many blocks, so many patches of them and so many without a block, and
//! a few edges for each. What is chosen from is bounded as well.

use std::time::Duration;

use rustc_hash::FxHashSet;

use super::flight::Readiness;
use super::patch::{Change, NO_SLOT, Px, Sx};
use super::{Graph, at};
use crate::PatchState;
use crate::view::{BlockView, Edge, LeftOut, PatchView, Ready, Totals};

/// For each block that is shown so many are looked at to find those that have waited longest.
const CHOSEN_FROM: usize = 16;
/// For each patch without a block that may be shown so many patches are looked at to find those beside none of a block.
const EMPTIES_FROM: usize = 2;
/// For each patch that is shown so many edges are looked at, all patches taken together.
const EDGES_EACH: usize = 8;

/// What is shown of a graph.
#[derive(Debug, Default)]
pub(crate) struct Picked {
    pub(crate) blocks: Vec<(Sx, BlockView)>,
    pub(crate) empties: Vec<PatchView>,
    pub(crate) edges: Vec<Edge>,
    pub(crate) totals: Totals,
    pub(crate) left_out: LeftOut,
}

/// A graph that is looked at.
struct Look<'a> {
    graph: &'a Graph,
    now: Duration,
    limit: usize,
    /// Edges that may still be looked at.
    edges_left: usize,
    /// Patches without a block that are to be shown, in the order in which they were met.
    empties: Vec<Px>,
    known: FxHashSet<Px>,
    /// Edges that the patches shown have.
    edges: usize,
    picked: Picked,
}

impl Graph {
    /// Shows so many blocks, of which those in flight are given, and so many patches with and without a block.
    pub(crate) fn pick(&self, in_flight: &[Sx], now: Duration, limit: usize) -> Picked {
        let mut look = Look {
            graph: self,
            now,
            limit,
            edges_left: limit.saturating_mul(EDGES_EACH),
            empties: Vec::new(),
            known: FxHashSet::default(),
            edges: 0,
            picked: Picked::default(),
        };
        look.show_blocks(in_flight);
        look.show_empties();
        look.finish(in_flight)
    }
}

impl Look<'_> {
    /// The blocks in flight, and of the others those that have waited longest.
    fn show_blocks(&mut self, in_flight: &[Sx]) {
        let graph = self.graph;
        let among = self.limit.saturating_mul(CHOSEN_FROM).min(graph.dirty().len());
        // Each is looked at once: most are far from the processor.
        let since = |&sx: &Sx| {
            let slot = graph.slot(sx);
            slot.flying.is_empty().then_some((slot.dirtied_at, slot.no, sx))
        };
        let mut waiting: Vec<_> = graph.dirty()[..among].iter().filter_map(since).collect();
        let room = self.limit.saturating_sub(in_flight.len());
        if waiting.len() > room {
            waiting.select_nth_unstable(room);
            waiting.truncate(room);
        }
        waiting.sort_unstable();
        let waiting: Vec<Sx> = waiting.into_iter().map(|(.., sx)| sx).collect();
        let mut patches_left = self.limit;
        for &sx in in_flight.iter().chain(&waiting).take(self.limit) {
            self.show_block(sx, &mut patches_left);
        }
    }

    fn show_block(&mut self, sx: Sx, patches_left: &mut usize) {
        let graph = self.graph;
        let slot = graph.slot(sx);
        let all = || slot.flying.iter().chain(slot.patches.iter()).copied();
        let patches: Vec<PatchView> = all().take(*patches_left).map(|px| self.show(px)).collect();
        *patches_left -= patches.len();
        let oldest = patches.iter().filter_map(|patch| patch.age).max().unwrap_or_default();
        let age = if slot.patches.is_empty() { oldest } else { self.now.saturating_sub(slot.dirtied_at) };
        let block = BlockView {
            no: slot.no,
            kind: slot.kind,
            volume: all().next_back().map_or(0, |px| graph.patch(px).volume),
            is_dirty: !slot.patches.is_empty(),
            is_in_flight: !slot.flying.is_empty(),
            is_pinned: slot.is_pinned(),
            age: age.max(oldest),
            ready: match graph.readiness(sx) {
                Readiness::All => Ready::Whole,
                Readiness::Some => Ready::Partly,
                Readiness::None => Ready::No,
            },
            why: None,
            patches_left_out: slot.flying.len() + slot.patches.len() - patches.len(),
            patches,
        };
        self.picked.blocks.push((sx, block));
    }

    /// Those that stand beside the patches shown, and while there is room the others, too.
    fn show_empties(&mut self) {
        let graph = self.graph;
        self.show_met();
        for (px, _) in graph.arena.iter().take(self.limit.saturating_mul(EMPTIES_FROM)) {
            self.meet(px);
            self.show_met();
        }
    }

    /// The patches without a block that were met and are not shown yet.
    fn show_met(&mut self) {
        while let Some(&px) = self.empties.get(self.picked.empties.len()) {
            let shown = self.show(px);
            self.picked.empties.push(shown);
        }
    }

    /// A patch, its edges, and the patches without a block at either end of them.
    fn show(&mut self, px: Px) -> PatchView {
        let graph = self.graph;
        let patch = graph.patch(px);
        self.edges += at(patch.outer) + at(patch.inner);
        for &id in patch.befores() {
            let Some(left) = self.edges_left.checked_sub(1) else { break };
            self.edges_left = left;
            if let Some(before) = graph.arena.resolve(id) {
                self.add_edge(px, before, false);
                self.meet(before);
            }
        }
        if let Some(hard) = graph.implicit_before(px).filter(|&hard| !graph.has_edge(px, hard)) {
            self.edges += 1;
            self.add_edge(px, hard, true);
        }
        for &after in &*patch.afters {
            let Some(left) = self.edges_left.checked_sub(1) else { break };
            self.edges_left = left;
            self.meet(after);
        }
        view_of(graph, px, self.now)
    }

    fn add_edge(&mut self, after: Px, before: Px, is_implicit: bool) {
        let graph = self.graph;
        self.picked.edges.push(Edge {
            after: graph.arena.id(after),
            before: graph.arena.id(before),
            is_inner: graph.same_block(after, before),
            is_implicit,
        });
    }

    /// A patch stands beside one that is shown.
    fn meet(&mut self, px: Px) {
        let is_empty = self.graph.patch(px).slot == NO_SLOT;
        if is_empty && self.empties.len() < self.limit && self.known.insert(px) {
            self.empties.push(px);
        }
    }

    /// Counts what there is, and what is not shown.
    fn finish(mut self, in_flight: &[Sx]) -> Picked {
        let graph = self.graph;
        let also_dirty = in_flight.iter().filter(|&&sx| !graph.slot(sx).patches.is_empty()).count();
        let totals = Totals {
            dirty: graph.dirty().len(),
            in_flight: in_flight.len(),
            patches: graph.arena.live(),
            groups: 0,
        };
        let shown: usize = self.picked.blocks.iter().map(|(_, block)| block.patches.len()).sum();
        self.picked.left_out = LeftOut {
            blocks: (totals.dirty + totals.in_flight - also_dirty).saturating_sub(self.picked.blocks.len()),
            patches: totals.patches.saturating_sub(shown + self.picked.empties.len()),
            edges: self.edges.saturating_sub(self.picked.edges.len()),
            groups: 0,
        };
        self.picked.empties.sort_unstable_by_key(|patch| patch.id);
        self.picked.totals = totals;
        self.picked
    }
}

fn view_of(graph: &Graph, px: Px, now: Duration) -> PatchView {
    let patch = graph.patch(px);
    let (start, end) = patch.change().range();
    let has_block = !matches!(patch.change(), Change::Empty);
    PatchView {
        id: graph.arena.id(px),
        state: if patch.in_flight { PatchState::InFlight } else { PatchState::Uncommitted },
        role: graph.role_of(px),
        is_home: patch.home,
        volume: patch.volume,
        bytes: has_block.then_some((start, end - start)),
        undo_bytes: patch.undo().size(),
        age: has_block.then(|| patch.born.age(now)),
        outer: patch.outer,
        inner: patch.inner,
        afters: patch.afters.len(),
    }
}
