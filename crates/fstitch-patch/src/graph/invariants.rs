//! The invariants of `docs/design/patch.md` as code.

use std::collections::BTreeMap;

use super::patch::{NO_SLOT, Px, Role, Sx, Undo};
use super::{Graph, at};

impl Graph {
    /// Checks structure, counts, in-flight safety and acyclicity.
    ///
    /// # Panics
    /// If one does not hold.
    pub(crate) fn check_invariants(&self) {
        for (px, patch) in self.arena.iter() {
            self.check_patch(px);
            for &after in &*patch.afters {
                assert!(self.live_befores(after).any(|before| before == px), "afters have befores");
            }
        }
        for sx in (0..self.slots.len()).filter(|&sx| self.slots[sx].data.is_some()) {
            self.check_slot(Sx::try_from(sx).expect("slot index"));
        }
        let dirty = self.slots.iter().filter(|slot| !slot.patches.is_empty()).count();
        assert_eq!(self.dirty.len(), dirty, "every dirty block is listed once");
        self.check_acyclic();
        let undo: u64 = self.arena.iter().map(|(_, patch)| patch.undo().size()).sum();
        assert_eq!(self.stats.undo_bytes_now, undo, "undo bytes are counted");
    }

    fn check_patch(&self, px: Px) {
        let patch = self.patch(px);
        let live: Vec<Px> = self.live_befores(px).collect();
        let inner = live.iter().filter(|&&before| self.same_block(px, before)).count();
        assert_eq!(at(patch.inner), inner, "inner befores of {px} are counted");
        assert_eq!(at(patch.outer), live.len() - inner, "outer befores of {px} are counted");
        for before in &live {
            assert!(self.patch(*before).afters.contains(&px), "befores have afters");
            if patch.in_flight {
                let lower = self.patch(*before);
                let is_safe = if self.same_block(px, *before) {
                    lower.in_flight
                } else {
                    self.resting.contains(&patch.slot)
                };
                assert!(is_safe, "in-flight safety of {px}");
            }
        }
        assert_eq!(patch.slot == NO_SLOT, matches!(patch.change(), super::patch::Change::Empty));
        assert!(!patch.hard || matches!(patch.undo(), Undo::None), "hard patches keep no undo data");
        assert!(patch.slot == NO_SLOT || patch.hard || !matches!(patch.undo(), Undo::None));
        assert!(patch.slot != NO_SLOT || patch.outer > 0 || patch.role == Role::Held, "empty patches commit");
    }

    fn check_slot(&self, sx: Sx) {
        let slot = self.slot(sx);
        let patches = || slot.patches.iter().map(|&px| self.patch(px));
        assert!(patches().all(|p| p.slot == sx && !p.in_flight));
        let changes: Vec<_> = patches().map(|p| p.change()).collect();
        assert!(slot.patches.are_beside(changes.into_iter()), "ranges beside patches");
        assert!(slot.flying.iter().all(|&px| self.patch(px).slot == sx && self.patch(px).in_flight));
        let hard: Vec<Px> = slot.patches.iter().copied().filter(|&px| self.patch(px).hard).collect();
        assert!(hard.len() <= 1, "one hard patch a block");
        assert_eq!(slot.hard, hard.first().copied());
        let external: u32 = slot.patches.iter().map(|&px| self.external_edges(px)).sum();
        assert_eq!(slot.external, external, "edges onto block {} are counted", slot.no);
        assert_eq!(at(slot.blocked), patches().filter(|p| p.outer > 0).count());
        assert_eq!(at(slot.roots), patches().filter(|p| p.outer == 0 && p.inner == 0).count());
        let is_listed = self.dirty.get(at(slot.dirty_place)) == Some(&sx);
        assert_eq!(is_listed, !slot.patches.is_empty());
    }

    /// One patch in a few words, for the message of a check that fails.
    fn describe(&self, px: Px) -> String {
        let patch = self.patch(px);
        let place = match patch.slot {
            NO_SLOT => format!("{:?}", patch.role),
            slot => format!("block {}", self.slot(slot).no),
        };
        let marks = [(patch.hard, " hard"), (patch.home, " home"), (patch.in_flight, " in flight")];
        let marks: String = marks.iter().filter(|(is, _)| *is).map(|(_, word)| *word).collect();
        format!(
            "{px} {place}{marks} of {} after {:?}",
            patch.serial(),
            self.live_befores(px).collect::<Vec<_>>()
        )
    }

    /// Looks for a cycle of stored and implicit edges by depth-first search.
    fn check_acyclic(&self) {
        #[derive(Clone, Copy, PartialEq)]
        enum Colour {
            Open,
            Done,
        }
        let mut colours: BTreeMap<Px, Colour> = BTreeMap::new();
        for (root, _) in self.arena.iter() {
            let mut path = vec![(root, false)];
            while let Some((px, leaving)) = path.pop() {
                if leaving {
                    colours.insert(px, Colour::Done);
                    continue;
                }
                if colours.contains_key(&px) {
                    continue;
                }
                colours.insert(px, Colour::Open);
                path.push((px, true));
                for before in self.live_befores(px).chain(self.implicit_before(px)) {
                    if colours.get(&before) == Some(&Colour::Open) {
                        let open = colours.iter().filter(|(_, colour)| **colour == Colour::Open);
                        let around: Vec<String> = open.map(|(&px, _)| self.describe(px)).collect();
                        panic!("patch {px} closes a cycle with {before}: {}", around.join("; "));
                    }
                    path.push((before, false));
                }
            }
        }
    }
}
