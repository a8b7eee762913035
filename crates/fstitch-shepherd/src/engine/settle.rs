//! Runs in doubt are agreed again, and the end.

use std::collections::BTreeSet;

use fstitch_core::Result;
use fstitch_core::lock::Unpoisoned;

use super::Shepherd;

impl Shepherd {
    /// Makes everything stable, and sums and copies with it: after this no run is in doubt but those with a home that cannot be written.
    /// Writes wait meanwhile.
    ///
    /// # Errors
    /// If a flush fails, or a block of the maps can be written in neither place; the runs stay in doubt then.
    pub fn settle(&self) -> Result<()> {
        let _nobody_writes = self.gate.write().unpoisoned();
        self.settle_alone()
    }

    /// The same by who has the gate.
    pub(super) fn settle_alone(&self) -> Result<()> {
        let mut guard = self.state();
        let state = &mut *guard;
        debug_assert!(!state.owners.has_unwritten(), "whoever has the gate sees no write on its way");
        let agreed: BTreeSet<u64> = state.doubt.runs().filter(|run| !state.failed.contains(run)).collect();
        let first = state.owners.first_writes(&self.area);
        let mut writes = state.sums.next_writes();
        writes.extend(state.owners.next_writes(&self.area));
        let since = self.health().numbers();
        writes.extend(state.counters.next_writes(&self.area, &since));
        self.say_lost(state)?;
        // Homes and copies before what is said of them.
        self.disk().flush()?;
        state.seal_moves = false;
        if agreed.is_empty() && writes.is_empty() {
            return Ok(());
        }
        if !first.is_empty() {
            self.write_maps(state, &first)?;
        }
        self.write_maps(state, &writes)?;
        state.sums.written();
        self.count_marks(state);
        state.owners.written();
        state.doubt.clear(&self.area, &agreed)
    }

    /// Settles, and leaves the volume to others.
    ///
    /// # Errors
    /// As [`Shepherd::settle`].
    pub fn close(&self) -> Result<()> {
        self.settle()?;
        let mut state = self.state();
        // Bits that were cleared may be on their way still; nobody looks at the seal before they are there.
        self.disk().flush()?;
        if !state.is_foreign {
            // If it cannot be read it is what it was to be.
            let seal = state.head.seal(&self.area, &[]).unwrap_or(state.head.seals[1]);
            state.head.seals = [seal; 2];
        }
        state.head.in_use = false;
        self.area.write(&[state.head.next_write()])
    }
}
