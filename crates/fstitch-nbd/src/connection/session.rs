//! What was negotiated, and how requests are done under it.

use std::ops::ControlFlow;
use std::sync::Arc;

use fstitch_core::Result;
use fstitch_core::num::to_usize;

use crate::export::{Export, Extent, Features, ZeroOptions};
use crate::proto::batch::Batch;
use crate::proto::error::{Code, Refusal};
use crate::proto::numbers::flag;
use crate::proto::reply::Reply;
use crate::proto::request::{Command, Dialect, Request};
use crate::stats::{Kind, Stats};

/// Most extents in one reply: 64 KiB of descriptors at most.
const EXTENTS_MAX: usize = 4096;
/// Reads from this length on may leave out zeros.
const SPARSE_MIN: u64 = 1 << 15;
/// Shorter runs of zeros are sent: a chunk costs both sides more.
const ZEROS_MIN: u64 = 4096;

/// One client's use of an export.
pub(crate) struct Session {
    export: Arc<dyn Export>,
    features: Features,
    pub(crate) dialect: Dialect,
    /// The client has chosen `base:allocation`.
    has_allocation: bool,
    payload_max: u32,
}

/// The part of an export's size that is served: whole minimum blocks.
pub(crate) fn served_size(export: &dyn Export) -> u64 {
    let size = export.size();
    size - size % u64::from(export.features().block.minimum.max(1))
}

impl Session {
    pub(crate) fn new(
        export: Arc<dyn Export>,
        dialect: Dialect,
        has_allocation: bool,
        payload_max: u32,
    ) -> Self {
        Self { features: export.features(), export, dialect, has_allocation, payload_max }
    }

    /// Does what is asked, and appends the reply to the batch.
    pub(super) fn perform(&self, stats: &Stats, request: &Request, payload: &[u8], batch: &mut Batch) {
        stats.count(Kind::from(request.command));
        let reply = Reply { dialect: self.dialect, request };
        let place = batch.len();
        let done = self.check(request).and_then(|()| self.answer(reply, payload, batch));
        match (done, request.command) {
            (Err(refusal), _) => {
                stats.errors.add(1);
                batch.rewind(place);
                reply.refuse(batch, &refusal);
            }
            (Ok(()), Command::Read) => stats.bytes_read.add(to_usize(request.len)),
            (Ok(()), Command::Write) => stats.bytes_written.add(payload.len()),
            (Ok(()), _) => {}
        }
    }

    /// Refuses what the export must not see.
    fn check(&self, request: &Request) -> Result<(), Refusal> {
        let refuse = |code, text| Err(Refusal::new(code, text));
        let command = request.command;
        if !request.has_lawful_flags(self.dialect) {
            return refuse(Code::INVAL, "a flag that this request cannot have");
        }
        match command {
            Command::Unknown | Command::Disconnect => return refuse(Code::INVAL, "no known request"),
            Command::Flush if request.offset != 0 || request.len != 0 => {
                return refuse(Code::INVAL, "a flush has no place");
            }
            Command::Flush => return Ok(()),
            Command::BlockStatus if !self.has_allocation => {
                return refuse(Code::INVAL, "no metadata context was chosen");
            }
            _ => {}
        }
        if command.is_change() && self.features.is_read_only {
            return refuse(Code::PERM, "the export is read-only");
        }
        if request.len == 0 {
            return refuse(Code::INVAL, "nothing is asked for");
        }
        let minimum = u64::from(self.features.block.minimum.max(1));
        if !request.offset.is_multiple_of(minimum) || !request.len.is_multiple_of(minimum) {
            return refuse(Code::INVAL, "no multiple of the minimum block size");
        }
        let end = request.offset.checked_add(request.len);
        if end.is_none_or(|end| end > served_size(&*self.export)) {
            let is_write = matches!(command, Command::Write | Command::WriteZeroes);
            return refuse(if is_write { Code::NOSPC } else { Code::INVAL }, "beyond the end");
        }
        let maximum = u64::from(self.features.block.maximum.min(self.payload_max));
        if matches!(command, Command::Read | Command::Write) && request.len > maximum {
            return refuse(Code::INVAL, "longer than the maximum block size");
        }
        Ok(())
    }

    fn answer(&self, reply: Reply<'_>, payload: &[u8], batch: &mut Batch) -> Result<(), Refusal> {
        let Request { command, offset, len, .. } = *reply.request;
        let fua = reply.request.has(flag::FUA);
        match command {
            Command::Read => return Ok(self.read(reply, batch)?),
            Command::BlockStatus => return Ok(self.status(reply, batch)?),
            Command::Write => self.export.write(offset, payload, fua)?,
            Command::Flush => self.export.flush()?,
            Command::Trim => self.export.trim(offset, len, fua)?,
            Command::Cache => self.export.cache(offset, len)?,
            Command::WriteZeroes => {
                let may_trim = !reply.request.has(flag::NO_HOLE);
                let how = ZeroOptions { may_trim, fast: reply.request.has(flag::FAST_ZERO), fua };
                self.export.write_zeroes(offset, len, how)?;
            }
            Command::Disconnect | Command::Unknown => unreachable!("they were refused"),
        }
        reply.done(batch);
        Ok(())
    }

    fn read(&self, reply: Reply<'_>, batch: &mut Batch) -> Result<()> {
        let Request { offset, len, .. } = *reply.request;
        let may_leave_out = self.dialect != Dialect::Simple && !reply.request.has(flag::DF);
        if may_leave_out && self.features.has_status && len >= SPARSE_MIN {
            let runs = self.runs(offset, len)?;
            if runs.iter().any(|run| run.is_zero) {
                return self.read_runs(reply, &runs, batch);
            }
        }
        self.export.read(offset, reply.data(batch, offset, to_usize(len), true))
    }

    /// Data and zeros in turn, all of the range.
    fn runs(&self, offset: u64, len: u64) -> Result<Vec<Extent>> {
        let mut extents = self.extents(offset, len, EXTENTS_MAX)?;
        let known: u64 = extents.iter().map(|extent| extent.len).sum();
        if known < len {
            extents.push(Extent::data(len - known));
        }
        let mut runs: Vec<Extent> = Vec::new();
        for extent in extents {
            let is_zero = extent.is_zero && extent.len >= ZEROS_MIN;
            match runs.last_mut() {
                Some(run) if run.is_zero == is_zero => run.len += extent.len,
                _ => runs.push(Extent { len: extent.len, is_hole: false, is_zero }),
            }
        }
        Ok(runs)
    }

    fn read_runs(&self, reply: Reply<'_>, runs: &[Extent], batch: &mut Batch) -> Result<()> {
        let mut at = reply.request.offset;
        for (index, run) in runs.iter().enumerate() {
            let is_last = index + 1 == runs.len();
            if run.is_zero {
                let len = u32::try_from(run.len).expect("no read is longer than the longest payload");
                reply.hole(batch, at, len, is_last);
            } else {
                self.export.read(at, reply.data(batch, at, to_usize(run.len), is_last))?;
            }
            at += run.len;
        }
        Ok(())
    }

    /// The first extents of a range, neighbours of one kind joined, none beyond the range.
    fn extents(&self, offset: u64, len: u64, count_max: usize) -> Result<Vec<Extent>> {
        let mut extents: Vec<Extent> = Vec::new();
        let mut left = len;
        let mut sink = |extent: Extent| {
            let extent = Extent { len: extent.len.min(left), ..extent };
            if extent.len == 0 {
                return if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
            }
            let is_full = extents.len() == count_max;
            match extents.last_mut() {
                Some(last) if (last.is_hole, last.is_zero) == (extent.is_hole, extent.is_zero) => {
                    last.len += extent.len;
                }
                _ if is_full => return ControlFlow::Break(()),
                _ => extents.push(extent),
            }
            left -= extent.len;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        self.export.status(offset, len, &mut sink)?;
        Ok(extents)
    }

    fn status(&self, reply: Reply<'_>, batch: &mut Batch) -> Result<()> {
        let Request { offset, len, .. } = *reply.request;
        let count_max = if reply.request.has(flag::REQ_ONE) { 1 } else { EXTENTS_MAX };
        let mut extents = self.extents(offset, len, count_max)?;
        if extents.is_empty() {
            extents.push(Extent::data(len));
        }
        reply.status(batch, &extents);
        Ok(())
    }
}
