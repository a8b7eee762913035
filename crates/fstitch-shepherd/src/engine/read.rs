//! Reads: what is compared, and what is done where it is not what was written.

use fstitch_core::lock::Unpoisoned;
use fstitch_core::num::to_usize;
use fstitch_core::{BlockRead, BlockWrite, Error, IoOp, Result};

use super::remedy::Asked;
use super::{Events, Incident, Shepherd, keeps, run_of, seen};
use crate::map::sums::sum_of;
use crate::model::Event;
use crate::policy::{Answer, Direction, Kind, Standing};

impl Shepherd {
    /// Reads a batch. `asks`: faults may ask for remedies.
    ///
    /// # Errors
    /// That of the first block whose chain ended without its contents.
    pub(super) fn load(&self, reads: &mut [BlockRead<'_>], asks: bool) -> Result<()> {
        let Some(first) = reads.first() else { return Ok(()) };
        self.lets(IoOp::Read, first.block)?;
        if self.options.disks.is_some() && self.read_idler(reads) {
            return Ok(());
        }
        let mut as_a_whole = self.disk().read(reads);
        let alone = reads.len() == 1;
        for read in reads {
            // Of several nobody knows which has failed: each is asked for once more by itself.
            let result = match &mut as_a_whole {
                Err(_) if !alone => self.disk().read(std::slice::from_mut(read)),
                result => std::mem::replace(result, Ok(())),
            };
            let Err((event, error)) = self.believe(read, result) else { continue };
            if self.options.disks.is_some() && self.read_elsewhere(read) {
                continue;
            }
            let (events, result) = self.answer_read(read, (event, error), asks);
            let (kind, block) = (Kind::Block(read.kind), read.block);
            self.tell(Incident { kind, direction: Direction::Read, block, seen: seen(&result), events });
            result?;
        }
        Ok(())
    }

    /// Whether what was read is believed; if not, who noticed, and the error that it comes to.
    pub(super) fn believe(
        &self,
        read: &BlockRead<'_>,
        result: Result<()>,
    ) -> std::result::Result<(), (Event, Error)> {
        result.map_err(|error| (Event::Reported, error))?;
        let chain = self.chain(read.kind, Direction::Read);
        let wrong = |event, why: String| {
            let error = Error::io(IoOp::Read, read.block, std::io::Error::other(why));
            Err((event, error.of_kind(read.kind)))
        };
        if self.is_lost(read.block) {
            return wrong(Event::Reported, "the only one was on a disk that has failed".into());
        }
        if chain.stands(Standing::Verify) && read.block.get() < self.area.shape.volume {
            let sum = self.state().sums.get(&self.area, read.block);
            if sum != 0 && sum != sum_of(&self.area.uuid, read.block, read.data) {
                return wrong(Event::SumDiffers, "its contents do not fit their sum".into());
            }
        }
        if chain.stands(Standing::Sanity) {
            let rules = self.options.rules.as_deref();
            if let Some(why) = rules.and_then(|rules| rules.judge(read.kind, read.block, read.data)) {
                return wrong(Event::RuleBroken, why);
            }
        }
        Ok(())
    }

    /// The chain of a read that has failed once.
    fn answer_read(
        &self,
        read: &mut BlockRead<'_>,
        (event, error): (Event, Error),
        asks: bool,
    ) -> (Events, Result<()>) {
        let chain = self.chain(read.kind, Direction::Read);
        let mut events = vec![event];
        let mut error = error;
        for answer in &chain.answers {
            match answer {
                Answer::Retry(retry) => {
                    let (event, result) = self.retry(*retry, error, &mut || self.read_again(read));
                    events.push(event);
                    match result {
                        Ok(()) => return (events, Ok(())),
                        Err(last) => error = last,
                    }
                }
                Answer::Copies if self.read_copy(read) => {
                    events.push(Event::CopyRead);
                    events.push(self.renew_home(read));
                    return (events, Ok(()));
                }
                Answer::Copies => events.push(Event::NoCopy),
                Answer::Reconstruct if self.read_parity(read) => {
                    events.push(Event::Reconstructed);
                    events.push(self.renew_home(read));
                    return (events, Ok(()));
                }
                Answer::Reconstruct => events.push(Event::NoParity),
                // Only what was read can be repaired.
                Answer::Repair if event != Event::Reported && self.repair(read) => {
                    events.push(Event::Repaired);
                    events.push(self.renew_all(read));
                    return (events, Ok(()));
                }
                Answer::Repair => events.push(Event::NoRepair),
                Answer::Notify => events.push(Event::Notified),
                Answer::FullCheck
                    if asks && self.remedied(Asked::FullCheck) && self.read_again(read).is_ok() =>
                {
                    events.push(Event::Checked);
                    return (events, Ok(()));
                }
                Answer::FullCheck => events.push(Event::CheckedInVain),
                Answer::Remount if asks && self.remedied(Asked::Remount) => {
                    events.push(Event::Remounted);
                    match self.read_again(read) {
                        Ok(()) => return (events, Ok(())),
                        Err(last) => error = last,
                    }
                }
                Answer::Remount => events.push(Event::RemountedInVain),
                other => unreachable!("`{other}` was refused when the policy was loaded"),
            }
        }
        events.push(Event::Ended(chain.end));
        self.end(chain.end);
        (events, Err(error.of_kind(read.kind)))
    }

    /// Asks for a block once more.
    fn read_again(&self, read: &mut BlockRead<'_>) -> Result<()> {
        let result = self.disk().read(std::slice::from_mut(read));
        self.believe(read, result).map_err(|(_, error)| error)
    }

    /// Reads a copy that is believed, the nearest first; whether there is one.
    pub(super) fn read_copy(&self, read: &mut BlockRead<'_>) -> bool {
        let mut spares = self.state().owners.written_of(read.block);
        spares.sort_by_key(|spare| self.area.spare(*spare).get().abs_diff(read.block.get()));
        let mut data = vec![0; to_usize(self.area.shape.block_size)];
        for spare in spares {
            let at = self.area.spare(spare);
            let found = self.disk().read(&mut [BlockRead { block: at, kind: read.kind, data: &mut data }]);
            let copy = BlockRead { block: read.block, kind: read.kind, data: &mut data };
            if self.believe(&copy, found).is_ok() {
                read.data.copy_from_slice(&data);
                return true;
            }
        }
        false
    }

    /// Writes what a copy held to its home, or to a spare if that fails and the block's chain says so.
    fn renew_home(&self, read: &BlockRead<'_>) -> Event {
        if self.lets(IoOp::Write, read.block).is_err() {
            return Event::NotRenewed;
        }
        let _gate = self.gate.read().unpoisoned();
        let write = BlockWrite { block: read.block, kind: read.kind, data: read.data };
        let run = run_of(read.block);
        let in_doubt = {
            let mut state = self.state();
            let new = std::iter::once(run).filter(|run| !state.doubt.has(*run)).collect();
            // The map may be what cannot be written; then the home stays as it is.
            keeps(self.chain(read.kind, Direction::Write)) && state.doubt.set(&self.area, &new).is_ok()
        };
        self.renewed(&write, in_doubt && self.disk().write(&[write]).is_ok())
    }

    /// What was repaired goes to home and copies: none of them was right.
    fn renew_all(&self, read: &BlockRead<'_>) -> Event {
        if self.lets(IoOp::Write, read.block).is_err() {
            return Event::NotRenewed;
        }
        let _gate = self.gate.read().unpoisoned();
        let write = BlockWrite { block: read.block, kind: read.kind, data: read.data };
        let is_written = self.write_home(&write).is_ok();
        if is_written {
            let spares = self.state().owners.of(write.block).to_vec();
            spares.into_iter().for_each(|spare| self.write_copy(&write, spare));
            let _alone = self.parity.lock().unpoisoned();
            self.mend_parity(self.groups_of(std::iter::once(write.block)).into_iter());
        }
        self.write_new_copies(&write);
        self.renewed(&write, is_written)
    }

    /// How a home fares that was to get its contents back.
    fn renewed(&self, write: &BlockWrite<'_>, is_written: bool) -> Event {
        if is_written {
            return Event::Renewed;
        }
        if self.chain(write.kind, Direction::Write).answers.contains(&Answer::Remap) && self.move_home(write)
        {
            return Event::RenewedElsewhere;
        }
        self.state().failed.insert(run_of(write.block));
        Event::NotRenewed
    }

    /// Repairs what was read by the format's rules; whether there was one way to.
    fn repair(&self, read: &mut BlockRead<'_>) -> bool {
        let Some(rules) = &self.options.rules else { return false };
        let other = |block, kind| self.area.read_at(block, kind).ok();
        let Some(repaired) = rules.repair(read.kind, read.block, read.data, &other) else { return false };
        let is_right =
            repaired.len() == read.data.len() && rules.judge(read.kind, read.block, &repaired).is_none();
        if is_right {
            read.data.copy_from_slice(&repaired);
        }
        is_right
    }
}
