//! Reading: which version of what is seen, by everybody or by a unit (\[A\] §3.3), and where it is.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fstitch_core::num::to_usize;
use fstitch_core::{BlockKind, Errno, Error, Result};

use crate::disk::Disk;
use crate::options::Visibility;
use crate::pack::unpack;
use crate::pages::read_run;
use crate::record::{BlockId, ListId};
use crate::segments::Run;
use crate::state::damaged;
use crate::stream::{Found, Stream};
use crate::unit::Stored;
use crate::view::Seen;

impl Disk {
    /// Reads the block at a position of a sparse list; zeros where there is none.
    ///
    /// # Errors
    /// `ENOENT` if there is no such list; `EINVAL` if `into` is not one block; [`Error::Corrupt`] if its contents are damaged.
    pub fn read_at(&self, list: ListId, position: u64, into: &mut [u8]) -> Result<()> {
        self.read_at_as(None, list, position, into)
    }

    pub(crate) fn read_at_as(
        &self,
        unit: Option<u64>,
        list: ListId,
        position: u64,
        into: &mut [u8],
    ) -> Result<()> {
        if into.len() != self.block_size {
            return Err(Errno::INVAL.into());
        }
        let mut missed = None;
        loop {
            let Some(block) = self.block_at_as(unit, list, position)? else {
                into.fill(0);
                return Ok(());
            };
            match self.read_as(unit, block, into) {
                // Somebody has removed it meanwhile, or it is in the unit's version of the list only.
                Err(Error::Errno(Errno::NOENT)) if missed != Some(block) => missed = Some(block),
                done => return done,
            }
        }
    }

    /// The first position of a sparse list from one on that has a block.
    ///
    /// # Errors
    /// `ENOENT` if there is no such list, `EINVAL` if it is not sparse.
    pub fn next_at(&self, list: ListId, position: u64) -> Result<Option<(u64, BlockId)>> {
        self.next_at_as(None, list, position)
    }

    pub(crate) fn next_at_as(
        &self,
        unit: Option<u64>,
        list: ListId,
        position: u64,
    ) -> Result<Option<(u64, BlockId)>> {
        let stream = self.stream();
        let seen = self.seen(&stream, unit, list);
        if !seen.list(list)?.ok_or(Errno::NOENT)? {
            return Err(Errno::INVAL.into());
        }
        seen.next(list, position)
    }

    /// Reads a block.
    ///
    /// # Errors
    /// `ENOENT` if there is none, `EINVAL` if `into` is not one block; [`Error::Corrupt`] if its contents are damaged.
    pub fn read(&self, block: BlockId, into: &mut [u8]) -> Result<()> {
        self.read_as(None, block, into)
    }

    pub(crate) fn read_as(&self, unit: Option<u64>, block: BlockId, into: &mut [u8]) -> Result<()> {
        if into.len() != self.block_size {
            return Err(Errno::INVAL.into());
        }
        let (mut found, begun) = {
            let stream = self.stream();
            (self.find_as(&stream, unit, block)?, Arc::clone(stream.log.begun()))
        };
        loop {
            let (run, at) = match found {
                Found::Zeros => {
                    into.fill(0);
                    return Ok(());
                }
                Found::Memory(contents) => {
                    into.copy_from_slice(&contents);
                    return Ok(());
                }
                Found::Medium(run, at) => (run, at),
            };
            let (sum, is_block) = self.read_medium(run, into)?;
            let is_right = sum == run.sum;
            if is_right && begun.load(Ordering::SeqCst) == at {
                return if is_block { Ok(()) } else { Err(not_packed(block)) };
            }
            // A segment was begun meanwhile: was it that one?
            found = self.find_as(&self.stream(), unit, block)?;
            if matches!(found, Found::Medium(now, _) if now.place == run.place) {
                return match (is_right, is_block) {
                    (true, true) => Ok(()),
                    (true, false) => Err(not_packed(block)),
                    (false, _) => Err(wrong_sum(block, sum, run.sum)),
                };
            }
        }
    }

    /// Reads what lies somewhere now. Returns its sum, and whether it is the contents of a block.
    fn read_medium(&self, run: Run, into: &mut [u8]) -> Result<(u32, bool)> {
        let len = to_usize(run.len) * to_usize(self.device.geometry().block_size);
        if len >= into.len() {
            read_run(&*self.device, run.place, BlockKind::Data, into)?;
            return Ok((crc32c::crc32c(into), true));
        }
        let mut packed = vec![0; len];
        read_run(&*self.device, run.place, BlockKind::Data, &mut packed)?;
        Ok((crc32c::crc32c(&packed), unpack(&packed, into)))
    }

    /// Where the version of a block is that is to be read.
    fn find_as(&self, stream: &Stream, unit: Option<u64>, block: BlockId) -> Result<Found> {
        let unit = unit.and_then(|unit| stream.units.open.get(&unit));
        let shadow = match self.visibility {
            Visibility::Latest => stream.units.newest_contents(block),
            Visibility::Committed => None,
            Visibility::Own => unit.and_then(|unit| unit.contents(block)),
        };
        match shadow {
            Some(Stored::Memory(contents)) => return Ok(Found::Memory(contents)),
            Some(Stored::Spilled(run)) => return Ok(stream.on_medium(run)),
            None => {}
        }
        // Where it is and whether it is there is the unit's own business.
        let seen =
            Seen { unit: unit.filter(|_| self.visibility != Visibility::Committed), state: &stream.state };
        if unit.is_some() && seen.list_of(block)?.is_none() {
            return Err(Errno::NOENT.into());
        }
        if seen.unit.is_some_and(|unit| unit.has_made(block)) {
            return Ok(Found::Zeros);
        }
        Ok(stream.find(block, &Self::entry(stream, block)?))
    }

    /// The block at a position of a list: the position in an ordered list, or the client's own in a sparse one.
    ///
    /// # Errors
    /// `ENOENT` if there is no such list.
    pub fn block_at(&self, list: ListId, position: u64) -> Result<Option<BlockId>> {
        self.block_at_as(None, list, position)
    }

    pub(crate) fn block_at_as(
        &self,
        unit: Option<u64>,
        list: ListId,
        position: u64,
    ) -> Result<Option<BlockId>> {
        let stream = self.stream();
        let seen = self.seen(&stream, unit, list);
        if seen.list(list)?.ok_or(Errno::NOENT)? {
            return seen.at(list, position);
        }
        if position >= seen.len(list)? { Ok(None) } else { seen.select(list, position) }
    }

    /// The first list with this number or a higher one, in the committed state.
    ///
    /// # Errors
    /// Those of the device.
    pub fn next_list(&self, from: ListId) -> Result<Option<ListId>> {
        let stream = self.stream();
        let lists = &stream.state.lists;
        Ok(lists.tree.at_or_after(&from, &lists.pages)?.map(|(list, _)| list))
    }

    /// The block behind one in its list; `None` behind the last one.
    ///
    /// # Errors
    /// `ENOENT` if there is no such list, or no such block in it.
    pub fn block_after(&self, list: ListId, block: BlockId) -> Result<Option<BlockId>> {
        self.neighbour_as(None, list, block, true)
    }

    /// The block in front of one in its list; `None` in front of the first one.
    ///
    /// # Errors
    /// `ENOENT` if there is no such list, or no such block in it.
    pub fn block_before(&self, list: ListId, block: BlockId) -> Result<Option<BlockId>> {
        self.neighbour_as(None, list, block, false)
    }

    pub(crate) fn neighbour_as(
        &self,
        unit: Option<u64>,
        list: ListId,
        block: BlockId,
        forwards: bool,
    ) -> Result<Option<BlockId>> {
        let stream = self.stream();
        let seen = self.seen(&stream, unit, list);
        seen.list(list)?.ok_or(Errno::NOENT)?;
        seen.neighbour(list, block, forwards)?.ok_or(Error::Errno(Errno::NOENT))
    }

    /// How many blocks a list has.
    ///
    /// # Errors
    /// `ENOENT` if there is no such list.
    pub fn list_len(&self, list: ListId) -> Result<u64> {
        self.list_len_as(None, list)
    }

    pub(crate) fn list_len_as(&self, unit: Option<u64>, list: ListId) -> Result<u64> {
        let stream = self.stream();
        let seen = self.seen(&stream, unit, list);
        seen.list(list)?.ok_or(Errno::NOENT)?;
        seen.len(list)
    }

    /// Whose version of a list is read.
    fn seen<'a>(&self, stream: &'a Stream, unit: Option<u64>, list: ListId) -> Seen<'a> {
        let unit = match self.visibility {
            Visibility::Latest => stream.units.newest_view(list),
            Visibility::Committed => None,
            Visibility::Own => unit.and_then(|unit| stream.units.open.get(&unit)),
        };
        Seen { unit, state: &stream.state }
    }
}

fn not_packed(block: BlockId) -> Error {
    damaged(format!(
        "the contents of block {block}: their sum is right, and they are not what was compressed"
    ))
}

fn wrong_sum(block: BlockId, sum: u32, right: u32) -> Error {
    damaged(format!("the contents of block {block}: their sum is {sum:#010x}, not {right:#010x}"))
}
