//! Blocks of the maps that cannot be written in their place.
//!
//! A block of a map is overwritten in place, one of the two after the other: while one is being written the other one counts if power fails.
//! One that takes no writes any more, and can still be read, would count then though it is old. So its place is taken by a spare, of which the
//! head knows, before the other half is touched.

use fstitch_core::{Error, IoOp, Result};

use super::{Shepherd, State, Trouble};
use crate::map::area::MapWrite;
use crate::map::head::RELOCATED_MAX;
use crate::policy::{Kind, MapKind};

/// Spares that are tried.
const TRIED: usize = 4;

impl Shepherd {
    /// Writes blocks of the maps. They are stable in both halves when it returns.
    ///
    /// # Errors
    /// If a flush fails, or a block can be written neither in its place nor in a spare.
    pub(super) fn write_maps(&self, state: &mut State, writes: &[MapWrite]) -> Result<()> {
        for half in 0..2 {
            for (place, bytes) in self.area.write_half(half, writes) {
                self.relocate(state, place, &bytes)?;
            }
            self.disk().flush()?;
        }
        Ok(())
    }

    fn relocate(&self, state: &mut State, place: u64, bytes: &[u8]) -> Result<()> {
        use fstitch_core::lock::Unpoisoned;
        let at = self.area.at(place);
        self.health.lock().unpoisoned().add(Kind::Map(MapKind::Sums), Trouble::Write, 1);
        for _ in 0..TRIED {
            // What is on all disks has no other place: there who cannot write it is put out.
            if state.head.relocated.len() >= RELOCATED_MAX || self.options.disks.is_some() {
                break;
            }
            let Some(spare) = state.owners.pick(&self.area, at) else { break };
            if !self.area.write_each(&[self.area.spare(spare)], &[bytes]).is_empty() {
                continue;
            }
            let (Ok(place), Ok(number)) = (u32::try_from(place), u32::try_from(spare)) else { break };
            self.disk().flush()?;
            state.head.relocated.retain(|(other, _)| *other != place);
            state.head.relocated.push((place, number));
            self.area.write(&[state.head.next_write()])?;
            self.area.device.put(at, Some(self.area.spare(spare)));
            return Ok(());
        }
        let reason =
            std::io::Error::other("a block of the maps can be written neither in its place nor in a spare");
        Err(Error::io(IoOp::Write, at, reason))
    }
}
