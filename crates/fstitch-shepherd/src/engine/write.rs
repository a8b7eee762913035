//! Writes: what must be stable first, the write itself, and what is done where it fails.

use std::collections::BTreeSet;

use fstitch_core::lock::Unpoisoned;
use fstitch_core::num::to_u64;
use fstitch_core::{BlockKind, BlockNo, BlockWrite, Error, IoOp, Result};

use super::parity::Renewed;
use super::remedy::Asked;
use super::{Events, Incident, Shepherd, State, Trouble, keeps, run_of, seen};
use crate::map::sums::sum_of;
use crate::model::Event;
use crate::policy::{Answer, Chain, Direction, Kind, Standing};

/// Spares that are tried for one that cannot be written.
pub(super) const SPARES_TRIED: usize = 4;

/// A copy of a block, or the parity of some, on its way to a spare.
#[derive(Clone, Copy)]
pub(super) struct Copy<'w> {
    /// The block, and the spare; none for parity.
    of: Option<(BlockNo, u64)>,
    kind: BlockKind,
    data: &'w [u8],
    at: BlockNo,
}

impl Shepherd {
    /// Writes a batch; the blocks that could not be written, each with the error that its chain ended with.
    ///
    /// # Errors
    /// If nothing of it was written, as the policy has stopped the volume; if the maps cannot be brought up to date.
    pub fn put(&self, writes: &[BlockWrite<'_>]) -> Result<Vec<(BlockNo, Error)>> {
        self.put_for(writes, true)
    }

    /// The same as a device does it; `asks`: faults may ask for remedies.
    pub(super) fn write_for(&self, writes: &[BlockWrite<'_>], asks: bool) -> Result<()> {
        match self.put_for(writes, asks)?.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    fn put_for(&self, writes: &[BlockWrite<'_>], asks: bool) -> Result<Vec<(BlockNo, Error)>> {
        let Some(first) = writes.first() else { return Ok(Vec::new()) };
        self.lets(IoOp::Write, first.block)?;
        if let Some(write) = writes.iter().find(|write| self.owns(write.block)) {
            let reason =
                std::io::Error::other("it is one of the blocks that the volume's policy keeps its maps in");
            return Err(Error::io(IoOp::Write, write.block, reason));
        }
        let gate = self.gate.read().unpoisoned();
        let alone = (self.group > 0).then(|| self.parity.lock().unpoisoned());
        let parity = if self.group > 0 { self.new_parity(writes) } else { Vec::new() };
        let written = self.prepare(writes, &parity).and_then(|copies| self.write_with(writes, &copies));
        let failed = match written {
            Ok(()) => self.without_a_disk(writes, asks),
            Err(error) => self.one_by_one(writes, &error, asks),
        };
        drop(alone);
        drop(gate);
        self.settle_if_much()?;
        Ok(failed)
    }

    /// Has in doubt, stably, what is about to be written, and notes the sums and copies that it will have.
    fn prepare<'w>(&self, writes: &[BlockWrite<'w>], parity: &'w [Renewed]) -> Result<Vec<Copy<'w>>> {
        let mut copies = Vec::new();
        // Before the lock, which reads need as well.
        let sums = self.sums_of(writes);
        let mut guard = self.state();
        let state = &mut *guard;
        self.seal(state, writes)?;
        let tracked: Vec<bool> = writes.iter().map(|write| self.is_tracked(state, write)).collect();
        let new: BTreeSet<u64> = (writes.iter().zip(&tracked))
            .filter(|(_, tracked)| **tracked)
            .map(|(write, _)| run_of(write.block))
            .filter(|run| !state.doubt.has(*run))
            .collect();
        if !new.is_empty() {
            let new = state.doubt.with_those_ahead(&self.area, new);
            state.doubt.set(&self.area, &new)?;
        }
        self.find_again(state, writes)?;
        for (no, write) in writes.iter().enumerate().filter(|(no, _)| tracked[*no]) {
            if !self.is_marked(state, write.block) {
                state.sums.set(&self.area, write.block, sums.get(no).copied().unwrap_or(0));
            }
            let chain = self.chain(write.kind, Direction::Write);
            self.assign(state, Kind::Block(write.kind), chain, write.block);
            let spares = state.owners.of(write.block).iter();
            let copy = |spare: &u64| Copy {
                of: Some((write.block, *spare)),
                kind: write.kind,
                data: write.data,
                at: self.area.spare(*spare),
            };
            copies.extend(spares.map(copy));
        }
        self.assign_parity(state, parity, |_, data, at| {
            copies.push(Copy { of: None, kind: BlockKind::Data, data, at });
        });
        Ok(copies)
    }

    /// Picks a spare; where there is none, once more after the medium was told of those that are nobody's any more. If it cannot be told, who
    /// flushes next learns of that.
    pub(super) fn pick_or_wait<T>(
        &self,
        state: &mut State,
        pick: impl Fn(&Self, &mut State) -> Option<T>,
    ) -> Option<T> {
        let picked = pick(self, state);
        if picked.is_none() && state.owners.has_leaving() && self.tell_owners(state).is_ok() {
            return pick(self, state);
        }
        picked
    }

    /// The sums that blocks are about to have, 0 for none; nothing at all if no kind of block has any.
    fn sums_of(&self, writes: &[BlockWrite<'_>]) -> Vec<u32> {
        if !self.keeps_sums {
            return Vec::new();
        }
        let sum = |write: &BlockWrite<'_>| match self.chain(write.kind, Direction::Write) {
            chain if chain.stands(Standing::Verify) => sum_of(&self.area.uuid, write.block, write.data),
            _ => 0,
        };
        writes.iter().map(sum).collect()
    }

    /// The medium learns whose the spares are that hold something since, and which are nobody's any more, behind a flush [M2]: it has homes and
    /// copies before it is told of them. Until a flush is answered nobody was promised that a home which is lost in a crash has a copy.
    pub(super) fn tell_owners(&self, state: &mut State) -> Result<()> {
        self.disk().flush()?;
        self.name_before_giving_up(state)?;
        let writes = state.owners.next_writes(&self.area);
        self.write_maps(state, &writes)?;
        state.owners.written();
        Ok(())
    }

    /// Of a copy that is somewhere else now, the new place is named before the old one is given up. Behind a flush of the copies.
    pub(super) fn name_before_giving_up(&self, state: &mut State) -> Result<()> {
        let writes = state.owners.first_writes(&self.area);
        if writes.is_empty() { Ok(()) } else { self.write_maps(state, &writes) }
    }

    /// Gives a block another spare for one that cannot be written, with the same contents.
    pub(super) fn replace_spare(&self, state: &mut State, (block, spare): (BlockNo, u64), data: &[u8]) {
        let mut bad = spare;
        for _ in 0..SPARES_TRIED {
            state.owners.give_up(&self.area, block, bad);
            let Some(other) = self.give_like(state, block, self.area.spare(bad)) else { return };
            if self.area.write_each(&[self.area.spare(other)], &[data]).is_empty() {
                state.owners.holds(&self.area, block, other);
                return;
            }
            bad = other;
        }
        state.owners.give_up(&self.area, block, bad);
    }

    /// Whether the maps say something of a block, or will.
    fn is_tracked(&self, state: &mut State, write: &BlockWrite<'_>) -> bool {
        if write.block.get() >= state.head.volume {
            // The medium has grown behind the volume that the maps are of.
            return false;
        }
        keeps(self.chain(write.kind, Direction::Write))
            || !state.owners.of(write.block).is_empty()
            || self.has_parity(state, write.block)
            || !self.serves(write.block)
            || (self.has_sums(state) && state.sums.get(&self.area, write.block) != 0)
    }

    /// Whether the map of sums says anything.
    pub(super) fn has_sums(&self, state: &State) -> bool {
        self.keeps_sums || state.head.lost > 0
    }

    /// Gives a block as many spares as its chain asks for, and takes away what is beyond that.
    pub(super) fn assign(&self, state: &mut State, kind: Kind, chain: &Chain, block: BlockNo) {
        let wanted = chain.copies(self.options.disks.as_ref().map_or(1, |array| array.disks()));
        if self.options.disks.is_none() && state.owners.of(block).len() == wanted {
            return;
        }
        while state.owners.of(block).len() > wanted {
            let Some(spare) = self.one_too_many(state, block) else { break };
            state.owners.take(&self.area, block, spare);
        }
        for standing in &chain.standing {
            let copies = match standing {
                Standing::Mirror { copies, .. } => usize::from(*copies),
                Standing::AllDisks => wanted,
                _ => continue,
            };
            for _ in 0..copies {
                if state.owners.of(block).len() >= wanted {
                    break;
                }
                let give =
                    |this: &Self, state: &mut State| this.give_copy(state, block, *standing).then_some(());
                if self.pick_or_wait(state, give).is_none() {
                    self.health.lock().unpoisoned().add(kind, Trouble::CopyLost, 1);
                    break;
                }
            }
        }
        self.give_a_served_copy(state, block);
    }

    /// Writes homes and copies at once.
    fn write_with(&self, writes: &[BlockWrite<'_>], copies: &[Copy<'_>]) -> Result<()> {
        let written = if copies.is_empty() {
            self.disk().write(writes)
        } else {
            let mut batch = writes.to_vec();
            batch.extend(copies.iter().map(|copy| BlockWrite {
                block: copy.at,
                kind: copy.kind,
                data: copy.data,
            }));
            self.disk().write(&batch)
        };
        // A flush that somebody else began meanwhile may not have reached it.
        let mut state = self.state();
        state.seal_moves |= writes.iter().any(|write| state.head.seals(&self.area, write.block));
        self.note_bare(&state, writes);
        if written.is_ok() && state.owners.has_unwritten() {
            for (block, spare) in copies.iter().filter_map(|copy| copy.of) {
                state.owners.holds(&self.area, block, spare);
            }
        }
        written
    }

    /// A batch has failed, and nobody knows where: each block by itself, but where there was only one.
    fn one_by_one(&self, writes: &[BlockWrite<'_>], first: &Error, asks: bool) -> Vec<(BlockNo, Error)> {
        let mut failed = Vec::new();
        for write in writes {
            let block = write.block;
            let was_alone = writes.len() == 1 && {
                let state = self.state();
                state.owners.of(block).is_empty() && !self.has_parity(&state, block)
            };
            let mut result = if was_alone { Err(first.clone()) } else { self.write_home(write) };
            let spares = self.state().owners.of(block).to_vec();
            if result.is_err() {
                result = result.or_else(|error| self.failed_write(write, error, asks));
            }
            // Without its bit nobody would look whether home and copy are alike.
            if self.state().doubt.has(run_of(block)) {
                spares.into_iter().for_each(|spare| self.write_copy(write, spare));
            }
            // A copy may have been all that there was to be of it.
            let kept = result.and_then(|()| {
                self.kept_by_a_disk(write).or_else(|error| self.failed_write(write, error, asks))
            });
            self.write_new_copies(write);
            failed.extend(kept.err().map(|error| (block, error)));
        }
        self.mend_parity(self.groups_of(writes.iter().map(|write| write.block)).into_iter());
        let mut state = self.state();
        if state.owners.has_news() {
            // A copy that was given up is older than its home. If the maps cannot be written either, nothing is promised of the batch.
            if let Err(error) = self.tell_owners(&mut state) {
                failed.extend(writes.iter().map(|write| (write.block, error.clone())));
            }
        }
        failed
    }

    /// One home by itself, with all that must be stable before.
    pub(super) fn write_home(&self, write: &BlockWrite<'_>) -> Result<()> {
        self.prepare(std::slice::from_ref(write), &[])?;
        self.write_with(std::slice::from_ref(write), &[])?;
        self.kept_by_a_disk(write)
    }

    /// Of a batch that was written, the blocks that no disk has kept, after their chains.
    fn without_a_disk(&self, writes: &[BlockWrite<'_>], asks: bool) -> Vec<(BlockNo, Error)> {
        let mut failed = Vec::new();
        for write in writes {
            if let Err(error) = self.kept_by_a_disk(write) {
                failed.extend(self.failed_write(write, error, asks).err().map(|error| (write.block, error)));
                self.write_new_copies(write);
            }
        }
        failed
    }

    /// The chain of a write that has failed, and what is told of it.
    fn failed_write(&self, write: &BlockWrite<'_>, error: Error, asks: bool) -> Result<()> {
        let (kind, block) = (Kind::Block(write.kind), write.block);
        let (events, result) = self.answer_write(write, error, asks);
        if result.is_err() {
            self.state().failed.insert(run_of(block));
        }
        self.tell(Incident { kind, direction: Direction::Write, block, seen: seen(&result), events });
        result
    }

    /// Writes the copies that a block was given while its home was tried again: no spare stays given and unwritten after a batch.
    pub(super) fn write_new_copies(&self, write: &BlockWrite<'_>) {
        let spares = self.state().owners.unwritten_of(write.block);
        spares.into_iter().for_each(|spare| self.write_copy(write, spare));
    }

    /// Writes a copy, to another spare if it must be. One fewer is no failure of the write: its home is what counts.
    pub(super) fn write_copy(&self, write: &BlockWrite<'_>, spare: u64) {
        let mut spare = spare;
        for is_last in [false, true] {
            let at = self.area.spare(spare);
            let written = self.disk().write(&[BlockWrite { block: at, ..*write }]);
            let mut state = self.state();
            if written.is_ok() {
                state.owners.holds(&self.area, write.block, spare);
                return;
            }
            state.owners.give_up(&self.area, write.block, spare);
            match self.give_like(&mut state, write.block, at) {
                Some(other) if !is_last => spare = other,
                Some(other) => state.owners.take(&self.area, write.block, other),
                None => break,
            }
        }
        self.health.lock().unpoisoned().add(Kind::Block(write.kind), Trouble::CopyLost, 1);
    }

    /// The chain of a write that has failed once.
    fn answer_write(&self, write: &BlockWrite<'_>, error: Error, asks: bool) -> (Events, Result<()>) {
        let chain = self.chain(write.kind, Direction::Write);
        let mut events = vec![Event::Reported];
        let mut error = error;
        for answer in &chain.answers {
            match answer {
                Answer::Retry(retry) => {
                    let (event, result) = self.retry(*retry, error, &mut || self.write_home(write));
                    events.push(event);
                    match result {
                        Ok(()) => return (events, Ok(())),
                        Err(last) => error = last,
                    }
                }
                // A block that moves without its sum would be believed by nobody.
                Answer::Remap
                    if self.prepare(std::slice::from_ref(write), &[]).is_ok() && self.move_home(write) =>
                {
                    events.push(Event::Moved);
                    return (events, Ok(()));
                }
                Answer::Remap => events.push(Event::NoSpare),
                Answer::Notify => events.push(Event::Notified),
                // This write is among what is given up.
                Answer::Remount if asks && self.ask(Asked::Remount) => {
                    events.push(Event::Remounted);
                    return (events, Err(error.of_kind(write.kind)));
                }
                Answer::Remount => events.push(Event::RemountedInVain),
                other => unreachable!("`{other}` was refused when the policy was loaded"),
            }
        }
        events.push(Event::Ended(chain.end));
        self.end(chain.end);
        (events, Err(error.of_kind(write.kind)))
    }

    /// A step that asks again: what happened, and the last error.
    pub(super) fn retry(
        &self,
        retry: crate::policy::Retry,
        error: Error,
        ask: &mut dyn FnMut() -> Result<()>,
    ) -> (Event, Result<()>) {
        match self.ask_again(retry, ask) {
            Ok(attempt) => (Event::AskedAgain(attempt), Ok(())),
            Err((attempts, last)) => (Event::AskedInVain(attempts), Err(last.unwrap_or(error))),
        }
    }

    /// Nothing is kept any more of blocks that hold nothing.
    pub(super) fn forget(&self, start: BlockNo, count: u64) -> Result<()> {
        let mut guard = self.state();
        let state = &mut *guard;
        let end = start.get().saturating_add(count).min(state.head.volume);
        let mut runs = BTreeSet::new();
        for block in (start.get()..end).map(BlockNo) {
            if !state.owners.of(block).is_empty()
                || (self.has_sums(state) && state.sums.get(&self.area, block) != 0)
            {
                runs.insert(run_of(block));
            }
        }
        let new: BTreeSet<u64> = runs.iter().copied().filter(|run| !state.doubt.has(*run)).collect();
        if !new.is_empty() {
            state.doubt.set(&self.area, &new)?;
        }
        for block in (start.get()..end).map(BlockNo).filter(|block| runs.contains(&run_of(*block))) {
            self.take_mark(state, block);
            while let Some(spare) = state.owners.of(block).first().copied() {
                state.owners.take(&self.area, block, spare);
            }
        }
        if state.owners.has_news() {
            self.tell_owners(state)?;
        }
        Ok(())
    }

    /// Before a sealed sector changes, the head knows what it will be.
    fn seal(&self, state: &mut State, writes: &[BlockWrite<'_>]) -> Result<()> {
        let sealed = writes.iter().filter(|write| state.head.seals(&self.area, write.block));
        // What was moved does not change at home.
        let at_home = sealed.filter(|write| !self.area.device.has(write.block));
        let instead: Vec<(BlockNo, &[u8])> = at_home.map(|write| (write.block, write.data)).collect();
        if instead.is_empty() || state.is_foreign {
            return Ok(());
        }
        if state.seal_moves {
            self.disk().flush()?;
        }
        // What cannot be read is what was written last.
        let before = state.head.seal(&self.area, &[]).unwrap_or(state.head.seals[1]);
        let after = state.head.seal(&self.area, &instead).unwrap_or(before);
        if before != after {
            state.head.seals = [before, after];
            self.area.write(&[state.head.next_write()])?;
            state.seal_moves = true;
        }
        Ok(())
    }

    /// Asks again until it succeeds, as often and as long as the step says: the attempt that did, or how many there were.
    fn ask_again(
        &self,
        retry: crate::policy::Retry,
        ask: &mut dyn FnMut() -> Result<()>,
    ) -> std::result::Result<u32, (u32, Option<Error>)> {
        let mut last = None;
        let mut waited = std::time::Duration::ZERO;
        for attempt in 1..=retry.times {
            if !retry.delay.is_zero() {
                waited += retry.delay;
                if waited > retry.within {
                    return Err((attempt - 1, last));
                }
                (self.options.pause)(retry.delay);
            }
            match ask() {
                Ok(()) => return Ok(attempt),
                Err(error) => last = Some(error),
            }
        }
        Err((retry.times, last))
    }

    /// Brings the maps up to date when many runs are in doubt.
    fn settle_if_much(&self) -> Result<()> {
        let is_much = {
            let state = self.state();
            state.doubt.len() > self.options.doubt_max + state.failed.len()
                || state.sums.dirty() > to_u64(self.options.pages_max)
        };
        if is_much { self.settle() } else { Ok(()) }
    }
}
