//! Taking ranges out of files, and putting holes in: what is behind moves.
//!
//! **The order.** The file's contents are stable; then what moves, what is freed, the length and the times are one step, and so one
//! transaction; then that is stable, before anybody writes into the file again. What is written of contents in between would be in
//! its place for one of the two maps only: contents that are written in place know nothing of transactions. Where contents are logged
//! they do, and nothing waits.
//!
//! **Crash cases.** The file is as it was or as it is to be. What does not fit a transaction is refused, as nothing else would be whole.

use std::ops::Range;

use fstitch_core::{Caller, Errno, FallocateMode, Result};
use fstitch_patch::PatchIds;

use super::node::{Node, Part, State};
use super::read::long;
use super::volume::{ATTR_CHANGE_BLOCKS, Change};
use super::{LowLevelFs, Shift, Uhfs};

/// A range in bytes, and what is to happen to it.
pub(super) struct Shifting {
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) shift: Shift,
}

impl Shifting {
    /// What an operation of fallocate(2) does, if it moves something.
    pub(super) fn of(mode: FallocateMode, offset: u64, len: u64) -> Option<Self> {
        let shift = match mode {
            FallocateMode::CollapseRange => Shift::Out,
            FallocateMode::InsertRange => Shift::In,
            _ => return None,
        };
        Some(Self { offset, len, shift })
    }
}

impl<L: LowLevelFs> Uhfs<L> {
    /// Does what `shifting` says. The caller holds the writer lock and has looked whether the file may be changed.
    pub(super) fn shift(
        &self,
        change: &Change<'_>,
        node: &Node<L::Inode>,
        caller: &Caller,
        shifting: &Shifting,
    ) -> Result<()> {
        let unit = long(self.block_size());
        let range = shifting.offset / unit..shifting.offset.saturating_add(shifting.len) / unit;
        self.check_shift(&*node.read()?, shifting)?;
        change.ask_to_wait()?;
        // What a failed truncation has left must go before it would come into the file.
        self.trim_before_growth(change, node, u64::MAX)?;
        let Some((room, logs_contents)) = self.cache().transaction_room() else {
            return Err(Errno::OPNOTSUPP.into());
        };
        if !logs_contents {
            self.settle_contents(change, node)?;
        }
        let cost = self.low.shift_cost(node.read()?.inode(), &range, shifting.shift)? + ATTR_CHANGE_BLOCKS;
        if cost > room {
            return Err(Errno::NOSPC.into());
        }
        change.reserve_whole(0, cost)?;
        let mut state = node.write()?;
        let patches = self.shift_and_resize(&mut state, range, shifting)?;
        self.note(&mut state, Part::Contents, &patches);
        self.drop_privileges(&mut state, caller)?;
        self.touch(&mut state, true)?;
        drop(state);
        change.pause();
        if logs_contents {
            Ok(())
        } else {
            self.cache().sync_patches(&patches).map_err(|error| self.as_io(error))
        }
    }

    /// As the kernel's ext4 answers, in its order.
    fn check_shift(&self, state: &State<L::Inode>, shifting: &Shifting) -> Result<()> {
        let &Shifting { offset, len, shift } = shifting;
        let (unit, size) = (long(self.low.limits().shift_unit), self.low.attr(state.inode()).size);
        if !self.low.can_shift(state.inode()) {
            return Err(Errno::OPNOTSUPP.into());
        }
        if !offset.is_multiple_of(unit) || !len.is_multiple_of(unit) {
            return Err(Errno::INVAL.into());
        }
        match shift {
            Shift::Out if offset + len >= size => Err(Errno::INVAL.into()),
            Shift::In if len > self.low.limits().size_max.saturating_sub(size) => Err(Errno::FBIG.into()),
            Shift::In if offset >= size => Err(Errno::INVAL.into()),
            _ => Ok(()),
        }
    }

    /// Makes the file's contents stable, outside any step.
    fn settle_contents(&self, change: &Change<'_>, node: &Node<L::Inode>) -> Result<()> {
        change.pause();
        let contents = node.read()?.track.gathers(&[Part::Contents]);
        self.cache().sync_patches(&contents).map_err(|error| self.as_io(error))
    }

    /// Moves the blocks and changes the length. Nothing has changed if the blocks cannot move.
    fn shift_and_resize(
        &self,
        state: &mut State<L::Inode>,
        range: Range<u64>,
        &Shifting { len, shift, .. }: &Shifting,
    ) -> Result<PatchIds> {
        let mut patches = self.low.shift(state.inode_mut(), range, shift, &[])?;
        let old = self.low.attr(state.inode()).size;
        let size = match shift {
            Shift::Out => old - len,
            Shift::In => old + len,
        };
        let mut befores = patches.clone();
        befores.push(state.growth);
        patches.extend(self.set_size(state, size, &befores)?);
        Ok(patches)
    }
}
