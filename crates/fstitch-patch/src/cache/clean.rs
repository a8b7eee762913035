//! Clean blocks and their eviction: second chance over a list in order of becoming clean.

use super::{Core, Shared};
use crate::graph::Graph;
use crate::graph::patch::Sx;
use fstitch_core::num::to_u64;

const END: Sx = Sx::MAX;

/// The ends of a doubly linked list through the slots.
#[derive(Debug)]
pub(super) struct CleanList {
    oldest: Sx,
    newest: Sx,
    len: usize,
}

impl CleanList {
    pub(super) fn new() -> Self {
        Self { oldest: END, newest: END, len: 0 }
    }

    /// Puts a block at the young end, if it is not in the list.
    pub(super) fn push(&mut self, graph: &mut Graph, sx: Sx) {
        let newest = self.newest;
        let slot = graph.slot_mut(sx);
        if std::mem::replace(&mut slot.in_clean_list, true) {
            return;
        }
        (slot.older, slot.newer) = (newest, END);
        match newest {
            END => self.oldest = sx,
            _ => graph.slot_mut(newest).newer = sx,
        }
        self.newest = sx;
        self.len += 1;
    }

    /// Takes a block out, if it is in the list.
    pub(super) fn remove(&mut self, graph: &mut Graph, sx: Sx) {
        let slot = graph.slot_mut(sx);
        if !std::mem::replace(&mut slot.in_clean_list, false) {
            return;
        }
        let (older, newer) = (slot.older, slot.newer);
        match older {
            END => self.oldest = newer,
            _ => graph.slot_mut(older).newer = newer,
        }
        match newer {
            END => self.newest = older,
            _ => graph.slot_mut(newer).older = older,
        }
        self.len -= 1;
    }
}

impl Core {
    /// A block became clean, or was loaded.
    pub(super) fn note_clean(&mut self, sx: Sx) {
        self.clean.push(&mut self.graph, sx);
    }

    /// Blocks became clean because a change elsewhere was committed.
    #[cold]
    fn note_landed(&mut self) {
        for sx in self.graph.take_landed() {
            let slot = self.graph.slot(sx);
            if slot.data.is_some() && slot.is_clean() {
                self.note_clean(sx);
            }
        }
    }
}

impl Shared {
    /// Evicts clean blocks until `more` bytes fit, as far as there are any.
    pub(super) fn make_room(&self, core: &mut Core, more: usize) {
        if core.graph.has_landed() {
            core.note_landed();
        }
        // Twice round: the first pass takes the second chances away.
        let mut patience = 2 * core.clean.len + 1;
        while self.memory(core) + more > self.options.cache_size && patience > 0 {
            patience -= 1;
            let oldest = core.clean.oldest;
            if oldest == END {
                break;
            }
            core.clean.remove(&mut core.graph, oldest);
            let slot = core.graph.slot_mut(oldest);
            if !slot.is_clean() {
                // It became dirty since; it comes back when it is clean.
                continue;
            }
            if slot.is_pinned() || std::mem::replace(&mut slot.referenced, false) {
                core.clean.push(&mut core.graph, oldest);
                continue;
            }
            self.forget(core, oldest);
            core.graph.stats.cache_evictions += 1;
        }
        let memory = to_u64(self.memory(core));
        core.graph.stats.memory_peak_bytes = core.graph.stats.memory_peak_bytes.max(memory);
    }

    /// Drops a clean block that nobody holds.
    pub(super) fn forget(&self, core: &mut Core, sx: Sx) {
        core.clean.remove(&mut core.graph, sx);
        let no = core.graph.slot(sx).no;
        core.index.remove(&no);
        core.graph.remove_slot(sx);
        core.loaded -= 1;
    }
}
