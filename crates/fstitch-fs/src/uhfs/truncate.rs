//! Changing a file's length. Shrinking: size → (zeroed tail, cleared pointers) → free bits; growing: (zeroed
//! tail, everything that an earlier shrinking still has to clear) → size.

use fstitch_core::{Caller, Result};
use fstitch_patch::{PatchId, PatchIds};
use fstitch_posix::change::check_truncate;

use super::node::{Node, Part, State};
use super::read::long;
use super::volume::{ATTR_CHANGE_BLOCKS, Change};
use super::{AttrChange, LowLevelFs, Uhfs};

/// Pointers in an indirect block of the smallest blocks; used to estimate what clearing pointers dirties.
const POINTER_BYTES: usize = 4;

impl<L: LowLevelFs> Uhfs<L> {
    /// Sets the length of a regular file; the extent of a file that shrinks is freed in steps.
    pub(super) fn truncate(
        &self,
        change: &Change<'_>,
        node: &Node<L::Inode>,
        caller: &Caller,
        size: u64,
    ) -> Result<()> {
        let _writer = self.writer(change, node)?;
        node.refuse_pinned()?;
        check_truncate(&self.seen(&*node.read()?), size, self.low.limits().size_max)?;
        self.resize(change, node, caller, size)
    }

    /// As [`Uhfs::truncate`], after the checks, for a caller that holds the writer lock.
    pub(super) fn resize(
        &self,
        change: &Change<'_>,
        node: &Node<L::Inode>,
        caller: &Caller,
        size: u64,
    ) -> Result<()> {
        let (old, end, moving, overdue) = {
            let state = node.read()?;
            let (old, end) = self.size_and_end(&state)?;
            (old, end, self.moving(&state), self.low.overdue_lengths(state.inode()))
        };
        if !overdue.is_empty() && size < old {
            change.ask_to_wait()?;
            change.pause();
            self.cache().sync_patches(&overdue).map_err(|error| self.as_io(error))?;
        }
        let freeing = if size > old { 0 } else { end.saturating_sub(self.blocks_of(size)) };
        let freeing = self.freeing(freeing);
        if freeing.is_none() {
            // Its steps wait one after the other.
            change.ask_to_wait()?;
        }
        self.trim_before_growth(change, node, size)?;
        match freeing {
            Some(freeing) => {
                change.reserve_whole(self.block_size(), 2 * ATTR_CHANGE_BLOCKS + moving + freeing)?
            }
            None => {
                // Who failed in a step that had room for all of another operation has none for this one.
                change.pause();
                change.reserve(self.block_size(), ATTR_CHANGE_BLOCKS + moving)?;
            }
        }
        let mut state = node.write()?;
        let (old, end) = self.size_and_end(&state)?;
        if size != old {
            // Cutting a file short must be possible where only the superuser has room.
            let superuser = Caller::default();
            self.move_out(&mut state, if size > old { caller } else { &superuser }, size)?;
        }
        if size > old {
            self.zero_gap(&mut state, old)?;
            let mut befores = self.end_in_block(&mut state, caller, size)?;
            befores.push(state.growth);
            self.set_size(&mut state, size, &befores)?;
        }
        // Whoever sets the length that a file has gives up what is behind it.
        let cuts = size < old || (size == old && end > self.blocks_of(size));
        let shrunk = if cuts { Some(self.shrink(&mut state, size)?) } else { None };
        self.drop_privileges(&mut state, caller)?;
        self.touch(&mut state, true)?;
        drop(state);
        let Some(shrunk) = shrunk else { return Ok(()) };
        let range = (self.blocks_of(size), end);
        self.detach_in_steps(change, node, range, &shrunk)?;
        self.end_trim(node)
    }

    /// A file's length, and the file block behind the last one that it has or had.
    pub(super) fn size_and_end(&self, state: &State<L::Inode>) -> Result<(u64, u64)> {
        let size = self.low.attr(state.inode()).size;
        Ok((size, self.blocks_of(size).max(self.low.blocks_end(state.inode())?)))
    }

    /// Nothing is left behind the file's end: in the last step of freeing it.
    fn end_trim(&self, node: &Node<L::Inode>) -> Result<()> {
        let mut state = node.write()?;
        self.low.end_shortening(state.inode_mut())?;
        state.trim = false;
        Ok(())
    }

    /// Lowers the size and zeroes the rest of the new last block. Until the caller has cleared the pointers
    /// behind it, the file remembers that it must be trimmed before it grows.
    fn shrink(&self, state: &mut State<L::Inode>, size: u64) -> Result<PatchIds> {
        let ended = self.end_in_block(state, &Caller::default(), size)?;
        let tail = self.tail_of(state, size)?;
        let shrunk = self.set_size(state, size, &ended)?;
        self.low.start_shortening(state.inode_mut())?;
        state.trim = true;
        if let Some(tail) = tail {
            self.zero_tail(state, tail, &shrunk);
        }
        self.zero_behind(state, size, &shrunk)?;
        Ok(shrunk)
    }

    /// Frees blocks behind the file's end, if a crash or a failed truncation may have left some and the file
    /// is about to grow beyond its size to `end`.
    pub(super) fn trim_before_growth(
        &self,
        change: &Change<'_>,
        node: &Node<L::Inode>,
        end: u64,
    ) -> Result<()> {
        let size = {
            let state = node.read()?;
            let size = self.low.attr(state.inode()).size;
            if end <= size {
                return Ok(());
            }
            let (growth, trim) = (state.growth, state.trim);
            drop(state);
            change.pause();
            // Contents that come after the running transaction cannot come before its end as well.
            self.cache().close_before(growth)?;
            if !trim {
                return Ok(());
            }
            size
        };
        let from = self.blocks_of(size);
        self.detach_in_steps(change, node, (from, from), &[])?;
        self.end_trim(node)
    }

    /// Clears the pointers of file blocks `from..` after `befores`, in steps; `to` is the end of what is
    /// expected to exist. A later growth of the file comes after all of it. The caller holds the writer lock.
    pub(super) fn detach_in_steps(
        &self,
        change: &Change<'_>,
        node: &Node<L::Inode>,
        (from, to): (u64, u64),
        befores: &[PatchId],
    ) -> Result<()> {
        // The last step takes what is left and everything behind it.
        let last = to.saturating_sub(self.detach_step()).max(from);
        let at = self.detach_between(change, node, (from, last), befores)?;
        self.detach_one_step(change, node, (at, u64::MAX), befores)?;
        Ok(())
    }

    /// Clears the pointers of file blocks `from..to` after `befores`, in steps; returns what is behind them and
    /// the holes that follow.
    pub(super) fn detach_between(
        &self,
        change: &Change<'_>,
        node: &Node<L::Inode>,
        (from, to): (u64, u64),
        befores: &[PatchId],
    ) -> Result<u64> {
        let mut at = from;
        while at < to {
            at = self.detach_one_step(change, node, (at, to), befores)?;
        }
        Ok(at)
    }

    /// One step of at most `from..to`, or all of it where it has no end; returns where the next one starts, behind the holes that
    /// follow.
    fn detach_one_step(
        &self,
        change: &Change<'_>,
        node: &Node<L::Inode>,
        (from, to): (u64, u64),
        befores: &[PatchId],
    ) -> Result<u64> {
        change.reserve(0, self.step_blocks)?;
        let mut state = node.write()?;
        let to = if to == u64::MAX { to } else { self.detach_end(&state, from, to)? };
        let patches = self.low.detach(state.inode_mut(), from, to, befores)?;
        self.note(&mut state, Part::Contents, &patches);
        self.delay_growth_beyond(&mut state, &patches, befores);
        if to == u64::MAX {
            return Ok(to);
        }
        let next = self.low.map(state.inode(), to, u64::MAX - to)?;
        Ok(if next.start.is_none() { to.saturating_add(next.count) } else { to })
    }

    /// Where a step ends that detaches `from..to`, or the first of them: with as many pointers, and as many free maps where these
    /// may be too many, as lie in half a step's blocks.
    fn detach_end(&self, state: &State<L::Inode>, from: u64, to: u64) -> Result<u64> {
        let end = to.min(from.saturating_add(self.pointers_step()));
        if !self.may_scatter() {
            return Ok(end);
        }
        let per_map = long(self.block_size()) * 8;
        let (mut at, mut maps) = (from, 0);
        while at < end {
            let run = self.low.map(state.inode(), at, end - at)?;
            // A run may begin and end in the middle of what a map is for.
            let met = if run.start.is_some() { run.count / per_map + 2 } else { 0 };
            if at > from && maps + met > long(self.step_blocks / 2) {
                break;
            }
            maps += met;
            at += run.count;
        }
        Ok(at)
    }

    /// How many file blocks have their pointers in half a step's blocks.
    fn pointers_step(&self) -> u64 {
        let pointers = self.block_size() / POINTER_BYTES;
        long((self.step_blocks / 2).max(1) * pointers)
    }

    /// How many file blocks one step detaches, wherever they lie.
    pub(super) fn detach_step(&self) -> u64 {
        let step = self.pointers_step();
        // Each of them may have another free map.
        if self.may_scatter() { step.min(long(self.step_blocks / 2).max(1)) } else { step }
    }

    /// Changes attributes that order nothing and wait for nothing.
    pub(super) fn set_plain(&self, state: &mut State<L::Inode>, change: &AttrChange) -> Result<()> {
        let patches = self.low.set_attr(state.inode_mut(), change, &[])?;
        self.note(state, Part::Attributes, &patches);
        Ok(())
    }
}
