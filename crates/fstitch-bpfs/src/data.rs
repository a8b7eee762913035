//! Contents of files. A write of any length happens at once, or, where there is no room for all of it, as much as there is room for.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{Caller, Errno, FallocateMode, FileKind, InodeFlags, InodeNo, Result, SeekFrom};
use fstitch_posix::change::{check_fallocate, check_write, expect_allocatable, perm_after_write, range_end};
use fstitch_posix::{expect_regular, refuse};

use crate::change::Change;
use crate::inode::Inode;
use crate::layout::{Field, SIZE_MAX};
use crate::pm::{BLOCK, BLOCK_BYTES, ZEROS};
use crate::state::State;
use crate::tree::{self, Tree};
use crate::volume::Bpfs;

/// Whose bytes are written.
#[derive(Clone, Copy)]
pub(crate) enum Author<'a> {
    /// Those of a program that writes now.
    Caller(&'a Caller),
    /// Those of one that was allowed to write when it did. `stamps`: nobody says when that was.
    Earlier { stamps: bool },
}

/// Reads bytes of a file that are all before its end.
///
/// # Errors
/// Those of a device that contents come from.
pub(crate) fn read(state: &State, inode: &Inode, offset: u64, into: &mut [u8]) -> Result<()> {
    let mut done = 0;
    while done < into.len() {
        let at = offset + to_u64(done);
        let from = to_usize(at % BLOCK_BYTES);
        let len = (BLOCK - from).min(into.len() - done);
        let piece = &mut into[done..done + len];
        match tree::leaf(&state.gate, inode.contents(), at / BLOCK_BYTES) {
            Some(block) => {
                state.gate.load(block.at())?;
                piece.copy_from_slice(&state.gate.block(block)[from..from + len]);
            }
            None => piece.fill(0),
        }
        done += len;
    }
    Ok(())
}

impl Bpfs {
    pub(crate) fn do_read(&self, ino: InodeNo, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let (inode, len) = {
            let core = self.share();
            let inode = self.live(&core.state, ino)?;
            expect_regular(inode.kind)?;
            let left = usize::try_from(inode.size.saturating_sub(offset)).unwrap_or(usize::MAX);
            let len = left.min(buf.len());
            read(&core.state, &inode, offset, &mut buf[..len])?;
            (inode, len)
        };
        if !buf.is_empty() {
            self.accessed(&inode);
        }
        Ok(len)
    }

    pub(crate) fn do_readlink(&self, ino: InodeNo) -> Result<Vec<u8>> {
        let (inode, target) = {
            let core = self.share();
            let inode = self.live(&core.state, ino)?;
            if inode.kind != FileKind::Symlink {
                return Err(Errno::INVAL.into());
            }
            if inode.size > to_u64(crate::layout::SYMLINK_MAX) {
                return Err(Errno::UCLEAN.into());
            }
            let mut target = vec![0; to_usize(inode.size)];
            read(&core.state, &inode, 0, &mut target)?;
            (inode, target)
        };
        self.accessed(&inode);
        Ok(target)
    }

    /// Brings the access time up to date where the policy asks for it. A failure does not fail who reads.
    pub(crate) fn accessed(&self, inode: &Inode) {
        let now = self.now();
        if self.is_read_only() || !self.atime().wants(&inode.seen(1), now) {
            return;
        }
        let Ok(mut core) = self.alone() else { return };
        if self.live(&core.state, InodeNo(inode.ino)).is_err() {
            return;
        }
        let Ok(mut change) = core.change(now) else { return };
        change.set_time(inode.ino, Field::Atime, crate::layout::time_word(now));
        let done = change.finish(|_| ());
        drop(core);
        let _ = self.durably(done);
    }

    /// Writes `data`, or as much as there is room for: at least a byte.
    pub(crate) fn write_as(
        &self,
        author: Author<'_>,
        ino: InodeNo,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        let room = SIZE_MAX.saturating_sub(offset);
        let data = &data[..data.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
        let mut len = data.len();
        loop {
            match self.write_once(author, ino, offset, (&data[..len], room)) {
                // What is left of the room may do for a part of it.
                Err(error) if error.errno() == Errno::NOSPC && len > BLOCK => {
                    len = (len / 2).next_multiple_of(BLOCK).min(len - 1);
                }
                Err(error) => return Err(error),
                Ok(()) => return Ok(len),
            }
        }
    }

    fn write_once(
        &self,
        author: Author<'_>,
        ino: InodeNo,
        offset: u64,
        (data, room): (&[u8], u64),
    ) -> Result<()> {
        let mut core = self.alone()?;
        let inode = self.live(&core.state, ino)?;
        expect_regular(inode.kind)?;
        if room == 0 {
            return Err(Errno::FBIG.into());
        }
        match author {
            Author::Caller(_) => check_write(&inode.seen(1), offset)?,
            Author::Earlier { .. } => check_write_back(&core.state, &inode, offset, data)?,
        }
        if data.is_empty() {
            return Ok(());
        }
        let mut change = core.change(self.now())?;
        change.put(inode.ino, offset, data)?;
        if let Author::Caller(caller) = author {
            drop_privileges(&mut change, &inode, caller);
        }
        if !matches!(author, Author::Earlier { stamps: false }) {
            change.touch_contents(inode.ino);
        }
        change.finish(|_| ())
    }

    pub(crate) fn do_fallocate(
        &self,
        caller: &Caller,
        ino: InodeNo,
        (offset, len): (u64, u64),
        mode: FallocateMode,
    ) -> Result<()> {
        let end = range_end((offset, len), SIZE_MAX)?;
        let mut core = self.alone()?;
        let inode = self.live(&core.state, ino)?;
        expect_allocatable(inode.kind)?;
        check_fallocate(inode.flags, mode)?;
        if mode.shifts() {
            return Err(Errno::OPNOTSUPP.into());
        }
        // A file's last block is whole; what lies behind it is hidden, and nobody's after the next mount.
        if mode == FallocateMode::AllocateKeepSize && end > inode.size.next_multiple_of(BLOCK_BYTES) {
            return Err(Errno::OPNOTSUPP.into());
        }
        let keeps_size = !matches!(mode, FallocateMode::Allocate | FallocateMode::ZeroRange);
        let end = if keeps_size { end.min(inode.size).max(offset) } else { end };
        let is_zeroed = matches!(
            mode,
            FallocateMode::PunchHole | FallocateMode::ZeroRange | FallocateMode::ZeroRangeKeepSize
        );
        let is_filled = mode != FallocateMode::PunchHole;
        let mut change = core.change(self.now())?;
        if is_zeroed {
            zero(&mut change, inode.ino, (offset, end.min(inode.size)))?;
        }
        if !keeps_size && end > inode.size {
            change.extend(inode.ino, end)?;
        }
        let filled = if keeps_size { end.min(inode.size) } else { end };
        if is_filled && offset < filled {
            change.fill_holes(inode.ino, (offset / BLOCK_BYTES, filled.div_ceil(BLOCK_BYTES)))?;
        }
        drop_privileges(&mut change, &inode, caller);
        change.touch_contents(inode.ino);
        change.finish(|_| ())
    }

    pub(crate) fn do_seek(&self, ino: InodeNo, offset: u64, whence: SeekFrom) -> Result<u64> {
        let core = self.share();
        let inode = self.live(&core.state, ino)?;
        expect_regular(inode.kind)?;
        if offset >= inode.size {
            return Err(Errno::NXIO.into());
        }
        let end = tree::leaves(inode.size);
        let first = offset / BLOCK_BYTES;
        // The first leaf that is there, or the first that is not.
        let mut next = first;
        let mut data = None;
        let walked =
            tree::walk(&core.state.gate, inode.contents(), (first, end), &mut |(level, index, _)| {
                if level > 0 {
                    return Ok(true);
                }
                data.get_or_insert(index);
                if whence == SeekFrom::Data || index != next {
                    return Err(());
                }
                next = index + 1;
                Ok(true)
            });
        let _: std::result::Result<(), ()> = walked;
        match whence {
            SeekFrom::Data => {
                data.map(|index| (index * BLOCK_BYTES).max(offset)).ok_or_else(|| Errno::NXIO.into())
            }
            SeekFrom::Hole => Ok((next * BLOCK_BYTES).max(offset).min(inode.size)),
        }
    }
}

/// Makes bytes of a file that are before its end zeros: whole blocks become holes.
fn zero(change: &mut Change<'_>, ino: u64, (from, to): (u64, u64)) -> Result<()> {
    if from >= to {
        return Ok(());
    }
    let (first, end) = (from.div_ceil(BLOCK_BYTES), to / BLOCK_BYTES);
    let edges = if first > end {
        vec![(from, to)]
    } else {
        vec![(from, first * BLOCK_BYTES), (end * BLOCK_BYTES, to)]
    };
    for (from, to) in edges {
        let is_there = from < to && change.has_leaf(Tree::File(ino), from / BLOCK_BYTES);
        if !is_there {
            continue;
        }
        let put = change.put(ino, from, &ZEROS[..to_usize((to - from).min(BLOCK_BYTES))]);
        if put.is_err() && from.is_multiple_of(BLOCK_BYTES) && to >= change.field(ino, Field::Size) {
            // All that counts of the last block goes. Where it cannot be changed, for want of another one or of what it held, it goes as well.
            change.punch(ino, (from / BLOCK_BYTES, from / BLOCK_BYTES + 1));
        } else {
            put?;
        }
    }
    if first < end {
        change.punch(ino, (first, end));
    }
    Ok(())
}

/// A write by anybody but root takes the rights away that the file lends to whoever executes it.
pub(crate) fn drop_privileges(change: &mut Change<'_>, inode: &Inode, caller: &Caller) {
    if let Some(perm) = perm_after_write(caller, inode.perm) {
        set_perm(change, inode, perm);
    }
}

/// Gives an inode other permissions.
pub(crate) fn set_perm(change: &mut Change<'_>, inode: &Inode, perm: u16) {
    let mode = change.field(inode.ino, Field::Mode);
    let bits = u64::from(inode.kind.mode_bits() | perm) << 32;
    change.set_field(inode.ino, Field::Mode, mode & !(0xffff << 32) | bits);
}

/// Of an append-only file, bytes that are there stay; pages that arrive before others leave zeros behind, which they may replace.
fn check_write_back(state: &State, inode: &Inode, offset: u64, data: &[u8]) -> Result<()> {
    refuse(inode.flags, InodeFlags::IMMUTABLE)?;
    if !inode.flags.has(InodeFlags::APPEND) {
        return Ok(());
    }
    let left = usize::try_from(inode.size.saturating_sub(offset)).unwrap_or(usize::MAX);
    let mut old = vec![0; left.min(data.len())];
    read(state, inode, offset, &mut old)?;
    let is_kept = |(old, new): (&u8, &u8)| old == new || *old == 0;
    if old.iter().zip(data).all(is_kept) { Ok(()) } else { Err(Errno::PERM.into()) }
}
