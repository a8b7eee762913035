//! Lengths, holes and ranges of files.
//!
//! Each of these operations is one unit as long as it concerns no more than 65,536 blocks; a larger one is several operations of the
//! same kind, each of which leaves what it could have been asked to leave: shorter and shorter files, larger and larger holes, longer
//! and longer ranges.

use fstitch_core::num::to_usize;
use fstitch_core::{Caller, Errno, FallocateMode, FileKind, InodeNo, Result, SeekFrom};
use fstitch_posix::change::{check_fallocate, expect_allocatable, range_end};
use fstitch_posix::expect_regular;

use crate::blocks::Blocks;
use crate::change::Change;
use crate::data::{stamp, zero_part};
use crate::inode::Inode;
use crate::layout::{SIZE_MAX, data_at};
use crate::volume::MinixLld;

/// Blocks that one unit makes or removes.
const STEP: u64 = 1 << 16;

/// Gives a file a length, in a change that puts the inode in.
pub(crate) fn set_size(change: &Change<'_>, inode: &mut Inode, size: u64) -> Result<()> {
    if size < inode.size {
        let unit = change.unit();
        delete_blocks(change, inode.ino, (size.div_ceil(unit), u64::MAX))?;
        zero_part(change, inode.ino, (size, size.next_multiple_of(unit).min(inode.size)))?;
    }
    inode.size = size;
    Ok(())
}

/// Removes the blocks of a file from `first` on to before `end`.
fn delete_blocks(change: &Change<'_>, ino: InodeNo, (first, end): (u64, u64)) -> Result<()> {
    let mut from = first;
    while let Some((n, block)) = change.first_data(ino, from)? {
        if n >= end {
            break;
        }
        change.delete_contents(block)?;
        from = n + 1;
    }
    Ok(())
}

impl MinixLld {
    /// The numbers of the blocks from `first` to before `end` that have [`STEP`] others between each other.
    fn landmarks(&self, ino: InodeNo, (first, end): (u64, u64)) -> Result<Vec<u64>> {
        let mut landmarks = Vec::new();
        let (mut from, mut count) = (first, 0);
        let _tree = self.share();
        if self.disk().list_len(ino.get())? <= STEP {
            return Ok(landmarks);
        }
        while let Some((n, _)) = self.first_data(ino, from)? {
            if n >= end {
                break;
            }
            count += 1;
            if count % STEP == 0 {
                landmarks.push(n);
            }
            from = n + 1;
        }
        Ok(landmarks)
    }

    /// Shortens a file whose blocks are too many for one unit, from its end, until few are left to go.
    pub(crate) fn shorten(&self, caller: &Caller, ino: InodeNo, size: u64) -> Result<()> {
        let inode = {
            let _tree = self.share();
            self.live(self, ino)?
        };
        if size >= inode.size || inode.kind != FileKind::Regular {
            return Ok(());
        }
        let landmarks = self.landmarks(ino, (size.div_ceil(self.unit()), u64::MAX))?;
        for landmark in landmarks.into_iter().rev() {
            let mut change = self.change()?;
            let mut inode = self.live(&change, ino)?;
            let size = (landmark * self.unit()).min(inode.size);
            set_size(&change, &mut inode, size)?;
            stamp(&mut inode, caller, change.now());
            change.put(inode);
            change.commit(|| ())?;
        }
        Ok(())
    }

    pub(crate) fn do_fallocate(
        &self,
        caller: &Caller,
        ino: InodeNo,
        (offset, len): (u64, u64),
        mode: FallocateMode,
    ) -> Result<()> {
        let end = range_end((offset, len), SIZE_MAX)?;
        let inode = {
            let _tree = self.share();
            self.live(self, ino)?
        };
        expect_allocatable(inode.kind)?;
        check_fallocate(inode.flags, mode)?;
        if mode.shifts() {
            return Err(Errno::OPNOTSUPP.into());
        }
        // A file's last block is whole; behind it there is nothing that a length would not show.
        if mode == FallocateMode::AllocateKeepSize && end > inode.size.next_multiple_of(self.unit()) {
            return Err(Errno::OPNOTSUPP.into());
        }
        let keeps_size = !matches!(mode, FallocateMode::Allocate | FallocateMode::ZeroRange);
        let end = if keeps_size { end.min(inode.size).max(offset) } else { end };
        let cuts = match mode {
            FallocateMode::PunchHole => self.landmarks(ino, (offset / self.unit(), end / self.unit()))?,
            _ => (offset / self.unit()..end / self.unit()).step_by(to_usize(STEP)).skip(1).collect(),
        };
        let done = self.in_steps(caller, (ino, mode), (offset, end), &cuts);
        if done.is_err() && inode.size < end {
            // What did not fit shall not leave a file that has grown by a part of it.
            self.shrink_back(caller, ino, inode.size)?;
        }
        done
    }

    fn shrink_back(&self, caller: &Caller, ino: InodeNo, size: u64) -> Result<()> {
        let mut change = self.change()?;
        let mut inode = self.live(&change, ino)?;
        if inode.size > size {
            set_size(&change, &mut inode, size)?;
            stamp(&mut inode, caller, change.now());
            change.put(inode);
            change.commit(|| ())?;
        }
        Ok(())
    }

    /// The range in pieces that end at these blocks, each a unit.
    fn in_steps(
        &self,
        caller: &Caller,
        (ino, mode): (InodeNo, FallocateMode),
        (offset, end): (u64, u64),
        cuts: &[u64],
    ) -> Result<()> {
        let mut start = offset;
        let cuts = cuts.iter().map(|n| n * self.unit()).filter(|cut| *cut > offset && *cut < end);
        for cut in cuts.chain([end]) {
            self.one_range(caller, ino, (start, cut), mode)?;
            start = cut;
        }
        Ok(())
    }

    fn one_range(
        &self,
        caller: &Caller,
        ino: InodeNo,
        (start, end): (u64, u64),
        mode: FallocateMode,
    ) -> Result<()> {
        let mut change = self.change()?;
        let mut inode = self.live(&change, ino)?;
        expect_regular(inode.kind)?;
        check_fallocate(inode.flags, mode)?;
        let within = end.min(inode.size).max(start);
        match mode {
            FallocateMode::PunchHole => punch(&change, ino, (start, within))?,
            FallocateMode::Allocate => allocate(&change, ino, (start, end), false)?,
            FallocateMode::AllocateKeepSize => allocate(&change, ino, (start, within), false)?,
            FallocateMode::ZeroRange => allocate(&change, ino, (start, end), true)?,
            FallocateMode::ZeroRangeKeepSize => allocate(&change, ino, (start, within), true)?,
            FallocateMode::CollapseRange | FallocateMode::InsertRange => {
                return Err(Errno::OPNOTSUPP.into());
            }
        }
        if matches!(mode, FallocateMode::Allocate | FallocateMode::ZeroRange) {
            inode.size = inode.size.max(end);
        }
        stamp(&mut inode, caller, change.now());
        change.put(inode);
        change.commit(|| ())
    }

    pub(crate) fn do_seek(&self, ino: InodeNo, offset: u64, whence: SeekFrom) -> Result<u64> {
        let _tree = self.share();
        let inode = self.live(self, ino)?;
        expect_regular(inode.kind)?;
        if offset >= inode.size {
            return Err(Errno::NXIO.into());
        }
        let unit = self.unit();
        let mut n = offset / unit;
        match whence {
            SeekFrom::Data => {
                let data = self.first_data(ino, n)?.map(|(n, _)| n * unit);
                data.filter(|start| *start < inode.size)
                    .map(|start| start.max(offset))
                    .ok_or(Errno::NXIO.into())
            }
            SeekFrom::Hole => {
                while n * unit < inode.size && self.first_data(ino, n)?.is_some_and(|(found, _)| found == n) {
                    n += 1;
                }
                Ok((n * unit).clamp(offset, inode.size))
            }
        }
    }
}

/// The whole blocks of a range become holes, the rest of it zeros.
fn punch(change: &Change<'_>, ino: InodeNo, (start, end): (u64, u64)) -> Result<()> {
    let unit = change.unit();
    let (first, last) = (start.div_ceil(unit), end / unit);
    if first > last {
        return zero_part(change, ino, (start, end));
    }
    zero_part(change, ino, (start, (first * unit).min(end)))?;
    delete_blocks(change, ino, (first, last))?;
    zero_part(change, ino, ((last * unit).max(start), end))
}

/// Holes of a range become blocks that read as zeros and, with `zeroes`, so do the bytes that are there. Such blocks take no room on the
/// medium before they are written.
fn allocate(change: &Change<'_>, ino: InodeNo, (start, end): (u64, u64), zeroes: bool) -> Result<()> {
    let unit = change.unit();
    let blocks = if start < end { start / unit..end.div_ceil(unit) } else { 0..0 };
    for n in blocks {
        let (from, to) = ((n * unit).max(start), ((n + 1) * unit).min(end));
        let is_there = change.first_data(ino, n)?.is_some_and(|(found, _)| found == n);
        match (is_there, to - from == unit) {
            (false, _) => change.empty_contents((ino.get(), data_at(n)))?,
            (true, true) if zeroes => change.empty_contents((ino.get(), data_at(n)))?,
            (true, false) if zeroes => zero_part(change, ino, (from, to))?,
            _ => {}
        }
    }
    Ok(())
}
