//! Contents of files: reading, and writing in units of at most 1 MiB.
//!
//! **Invariant.** Bytes behind the end of a file, in its last block, are zeros: a file that grows shows nothing of its past.

use fstitch_core::num::to_u64;
use fstitch_core::{Caller, Errno, FileKind, InodeFlags, InodeNo, Result, Timestamp};
use fstitch_posix::change::{check_write, perm_after_write};
use fstitch_posix::{expect_regular, refuse};

use crate::blocks::{Blocks, parts};
use crate::change::Change;
use crate::inode::Inode;
use crate::layout::{SIZE_MAX, data_at};
use crate::volume::MinixLld;

/// Bytes that one unit writes: a larger write is several operations, one behind the other.
const STEP: usize = 1 << 20;

/// Whose bytes are written.
#[derive(Clone, Copy)]
pub(crate) enum Author<'a> {
    /// Those of a program that writes now.
    Caller(&'a Caller),
    /// Those of one that was allowed to write when it did. `stamps`: nobody says when that was.
    Earlier { stamps: bool },
}

impl MinixLld {
    pub(crate) fn do_read(&self, ino: InodeNo, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let (inode, len) = {
            let _tree = self.share();
            let inode = self.live(self, ino)?;
            expect_regular(inode.kind)?;
            let left = usize::try_from(inode.size.saturating_sub(offset)).unwrap_or(usize::MAX);
            let len = left.min(buf.len());
            self.read(ino, offset, &mut buf[..len])?;
            (inode, len)
        };
        if !buf.is_empty() {
            self.accessed(&inode);
        }
        Ok(len)
    }

    pub(crate) fn do_readlink(&self, ino: InodeNo) -> Result<Vec<u8>> {
        let (inode, target) = {
            let _tree = self.share();
            let inode = self.live(self, ino)?;
            if inode.kind != FileKind::Symlink {
                return Err(Errno::INVAL.into());
            }
            let mut target = vec![0; usize::try_from(inode.size).map_err(|_| Errno::UCLEAN)?];
            self.read(ino, 0, &mut target)?;
            (inode, target)
        };
        self.accessed(&inode);
        Ok(target)
    }

    /// Brings the access time up to date where the policy asks for it. A failure does not fail who reads: whatever is wrong, the next
    /// change says it.
    pub(crate) fn accessed(&self, inode: &Inode) {
        if self.atime().wants(&inode.seen(), self.now()) {
            let _ = self.stamp_access(inode.ino);
        }
    }

    fn stamp_access(&self, ino: InodeNo) -> Result<()> {
        let mut change = self.change()?;
        let inode = self.live(&change, ino)?;
        let now = change.now();
        if self.atime().wants(&inode.seen(), now) {
            change.put(Inode { atime: now, ..inode });
            change.commit(|| ())?;
        }
        Ok(())
    }

    /// Writes `data`, or as much as there is room for: at least a byte.
    pub(crate) fn write_as(
        &self,
        author: Author<'_>,
        ino: InodeNo,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        expect_regular(self.attr_of(ino)?.kind)?;
        let room = SIZE_MAX.saturating_sub(offset);
        if room == 0 && !data.is_empty() {
            return Err(Errno::FBIG.into());
        }
        let data = &data[..data.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
        let (mut done, mut step) = (0, STEP);
        while done < data.len() {
            let piece = &data[done..data.len().min(done + step)];
            match self.write_step(author, ino, offset + to_u64(done), piece) {
                Ok(()) => done += piece.len(),
                // What is left of the room may do for a part of it.
                Err(error) if error.errno() == Errno::NOSPC && piece.len() > self.block_size() => {
                    step = (piece.len() / 2).next_multiple_of(self.block_size()).min(piece.len() - 1);
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// One unit: contents, length, times, privileges.
    fn write_step(&self, author: Author<'_>, ino: InodeNo, offset: u64, data: &[u8]) -> Result<()> {
        let mut change = self.change()?;
        let mut inode = self.live(&change, ino)?;
        expect_regular(inode.kind)?;
        match author {
            Author::Caller(_) => check_write(&inode.seen(), offset)?,
            Author::Earlier { .. } => check_write_back(&change, &inode, offset, data)?,
        }
        put_bytes(&change, ino, offset, data)?;
        inode.size = inode.size.max(offset + to_u64(data.len()));
        if let Author::Caller(caller) = author {
            drop_privileges(&mut inode, caller);
        }
        if !matches!(author, Author::Earlier { stamps: false }) {
            inode.touch(change.now());
        }
        put_changed(&mut change, inode)?;
        change.commit(|| ())
    }
}

/// Puts an inode into a change, unless it is what it was: overwriting twice in a tick of the clock changes it once.
fn put_changed(change: &mut Change<'_>, inode: Inode) -> Result<()> {
    if change.inode(inode.ino)? != inode || inode.flags.has(InodeFlags::SYNC) {
        change.put(inode);
    }
    Ok(())
}

/// A write by anybody but root takes the rights away that the file lends to whoever executes it.
pub(crate) fn drop_privileges(inode: &mut Inode, caller: &Caller) {
    inode.perm = perm_after_write(caller, inode.perm).unwrap_or(inode.perm);
}

/// A change of a file's contents by `caller`.
pub(crate) fn stamp(inode: &mut Inode, caller: &Caller, now: Timestamp) {
    drop_privileges(inode, caller);
    inode.touch(now);
}

/// Of an append-only file, bytes that are there stay; pages that arrive before others leave zeros behind, which they may replace.
fn check_write_back(change: &Change<'_>, inode: &Inode, offset: u64, data: &[u8]) -> Result<()> {
    refuse(inode.flags, InodeFlags::IMMUTABLE)?;
    if !inode.flags.has(InodeFlags::APPEND) {
        return Ok(());
    }
    let left = usize::try_from(inode.size.saturating_sub(offset)).unwrap_or(usize::MAX);
    let mut old = vec![0; left.min(data.len())];
    change.read(inode.ino, offset, &mut old)?;
    let is_kept = |(old, new): (&u8, &u8)| old == new || *old == 0;
    if old.iter().zip(data).all(is_kept) { Ok(()) } else { Err(Errno::PERM.into()) }
}

/// Writes bytes of a file.
fn put_bytes(change: &Change<'_>, ino: InodeNo, offset: u64, data: &[u8]) -> Result<()> {
    let mut block = vec![0; change.block_size()];
    for part in parts(change.unit(), offset, data.len()) {
        let key = (ino.get(), data_at(part.block));
        let piece = &data[part.at..part.at + part.len];
        if part.len == block.len() {
            change.write_contents(key, piece)?;
            continue;
        }
        if !change.contents(key, &mut block)? {
            block.fill(0);
        }
        block[part.from..part.from + part.len].copy_from_slice(piece);
        change.write_contents(key, &block)?;
    }
    Ok(())
}

/// Writes zeros over part of a block, unless it is a hole.
pub(crate) fn zero_part(change: &Change<'_>, ino: InodeNo, (start, end): (u64, u64)) -> Result<()> {
    let len = usize::try_from(end.saturating_sub(start)).expect("a part of a block");
    for part in parts(change.unit(), start, len) {
        let key = (ino.get(), data_at(part.block));
        let mut block = vec![0; change.block_size()];
        if change.contents(key, &mut block)? {
            block[part.from..part.from + part.len].fill(0);
            change.write_contents(key, &block)?;
        }
    }
    Ok(())
}
