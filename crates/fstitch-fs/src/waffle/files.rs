//! Operations on files' contents and attributes.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{
    Attr, Caller, Errno, FallocateMode, FileKind, InodeFlags, InodeNo, Result, SeekFrom, SetAttr, SetTime,
};
use fstitch_posix::change::{
    self as rules, check_fallocate, check_write, expect_allocatable, perm_after_write, range_end,
};
use fstitch_posix::{expect_regular, refuse};

use super::layout::inode::Inode;
use super::layout::{BLOCK_BYTES, SIZE_MAX};
use super::names::{touch, touch_contents};
use super::state::{Class, State};
use super::tree::Obj;
use super::volume::{SNAPSHOTS_INO, Waffle};
use super::xattr;

/// Bytes that are written at once, all or nothing.
const WRITE_MAX: usize = 1 << 20;
/// Blocks that are allocated at once.
const FILL_MAX: u64 = to_blocks(WRITE_MAX);

const fn to_blocks(bytes: usize) -> u64 {
    bytes as u64 / BLOCK_BYTES
}

/// Flags that users may change.
const SETTABLE: u32 = InodeFlags::SYNC
    | InodeFlags::IMMUTABLE
    | InodeFlags::APPEND
    | InodeFlags::NODUMP
    | InodeFlags::NOATIME
    | InodeFlags::DIRSYNC
    | InodeFlags::TOPDIR
    | InodeFlags::COMPR;

/// Whose bytes are written.
#[derive(Clone, Copy)]
pub(super) enum Author<'a> {
    /// Those of a program that writes now.
    Caller(&'a Caller),
    /// Those of one that was allowed to write when it did. `stamps`: nobody says when that was.
    Earlier { stamps: bool },
}

/// A write by anybody but root takes the rights away that the file lends to whoever executes it.
pub(super) fn drop_privileges(inode: &mut Inode, caller: &Caller) {
    inode.perm = perm_after_write(caller, inode.perm).unwrap_or(inode.perm);
}

impl Waffle {
    pub(super) fn do_read(&self, ino: InodeNo, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if ino == SNAPSHOTS_INO {
            return Err(Errno::ISDIR.into());
        }
        let (tree, inode, len) = {
            let core = self.share();
            let (tree, inode) = self.inode_of(&core.state, ino)?;
            expect_regular(inode.kind)?;
            let left = usize::try_from(inode.size.saturating_sub(offset)).unwrap_or(usize::MAX);
            let len = left.min(buf.len());
            core.state.read(tree, &inode, offset, &mut buf[..len])?;
            (tree, inode, len)
        };
        if !buf.is_empty() {
            self.accessed(tree, &inode);
        }
        Ok(len)
    }

    pub(super) fn do_readlink(&self, ino: InodeNo) -> Result<Vec<u8>> {
        if ino == SNAPSHOTS_INO {
            return Err(Errno::INVAL.into());
        }
        let (tree, inode, target) = {
            let core = self.share();
            let (tree, inode) = self.inode_of(&core.state, ino)?;
            if inode.kind != FileKind::Symlink {
                return Err(Errno::INVAL.into());
            }
            let mut target = vec![0; to_usize(inode.size)];
            if inode.is_inline() {
                target.copy_from_slice(&inode.inline[..to_usize(inode.size)]);
            } else {
                core.state.read(tree, &inode, 0, &mut target)?;
            }
            (tree, inode, target)
        };
        self.accessed(tree, &inode);
        Ok(target)
    }

    /// Brings the access time up to date where the policy asks for it. A failure does not fail who reads.
    pub(super) fn accessed(&self, tree: usize, inode: &Inode) {
        if self.options().read_only || !self.options().atime.wants(&inode.seen(), self.now()) {
            return;
        }
        let ino = inode.ino;
        let _ = self.change(Class::Gives, 0, |state| {
            if tree != state.head {
                return Err(Errno::ROFS.into());
            }
            let now = state.now;
            state.change_inode(ino, |inode| inode.atime = now)
        });
    }

    /// Writes `data`, or as much as there is room for: at least a byte.
    pub(super) fn write_as(
        &self,
        author: Author<'_>,
        ino: InodeNo,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        let room = SIZE_MAX.saturating_sub(offset);
        let data = &data[..data.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
        let mut done = 0;
        loop {
            let piece = &data[done..data.len().min(done + WRITE_MAX)];
            match self.write_piece(author, ino, offset + to_u64(done), (piece, room)) {
                Ok(len) => done += len,
                Err(error) if done == 0 => return Err(error),
                Err(_) => return Ok(done),
            }
            if done == data.len() {
                return Ok(done);
            }
        }
    }

    fn write_piece(
        &self,
        author: Author<'_>,
        ino: InodeNo,
        offset: u64,
        (data, room): (&[u8], u64),
    ) -> Result<usize> {
        let mut len = data.len();
        loop {
            match self.write_once(author, ino, offset, (&data[..len], room)) {
                // What is left of the room may do for a part of it.
                Err(error) if error.errno() == Errno::NOSPC && to_u64(len) > BLOCK_BYTES => {
                    len = (len / 2).next_multiple_of(to_usize(BLOCK_BYTES)).min(len - 1);
                }
                done => return done.map(|()| len),
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
        self.change(Class::Takes, data.len(), |state| {
            let inode = self.ours(state, ino)?;
            expect_regular(inode.kind)?;
            if room == 0 {
                return Err(Errno::FBIG.into());
            }
            match author {
                Author::Caller(_) => check_write(&inode.seen(), offset)?,
                Author::Earlier { .. } => check_write_back(state, &inode, offset, data)?,
            }
            if data.is_empty() {
                return Ok(());
            }
            state.put(inode.ino, offset, data)?;
            match author {
                Author::Caller(caller) => {
                    touch_contents(state, inode.ino, |inode| drop_privileges(inode, caller))
                }
                Author::Earlier { stamps: true } => touch_contents(state, inode.ino, |_| ()),
                Author::Earlier { stamps: false } => Ok(()),
            }
        })
        .map(drop)
    }

    pub(super) fn do_fallocate(
        &self,
        caller: &Caller,
        ino: InodeNo,
        (offset, len): (u64, u64),
        mode: FallocateMode,
    ) -> Result<()> {
        let end = range_end((offset, len), SIZE_MAX)?;
        let is_filled = mode != FallocateMode::PunchHole;
        let mut from = offset;
        loop {
            // What is zeroed goes at once; what is filled does in steps.
            let step = if is_filled { end.min((from / BLOCK_BYTES + FILL_MAX) * BLOCK_BYTES) } else { end };
            let is_done = self.fallocate_once(caller, ino, (from, step, end), mode)?;
            if is_done || step == end {
                return Ok(());
            }
            from = step;
        }
    }

    /// One step of it, to `end`. Whether the others would do nothing: behind a file's end there is nothing to zero.
    fn fallocate_once(
        &self,
        caller: &Caller,
        ino: InodeNo,
        (offset, end, last): (u64, u64, u64),
        mode: FallocateMode,
    ) -> Result<bool> {
        let class = if mode == FallocateMode::PunchHole { Class::Gives } else { Class::Takes };
        self.change(class, 0, |state| {
            let inode = self.ours(state, ino)?;
            expect_allocatable(inode.kind)?;
            check_fallocate(inode.flags(), mode)?;
            if mode.shifts() {
                return Err(Errno::OPNOTSUPP.into());
            }
            // There are no blocks behind a file's end.
            if mode == FallocateMode::AllocateKeepSize && last > inode.size.next_multiple_of(BLOCK_BYTES) {
                return Err(Errno::OPNOTSUPP.into());
            }
            let keeps_size = !matches!(mode, FallocateMode::Allocate | FallocateMode::ZeroRange);
            let is_done = keeps_size && end >= inode.size;
            let end = if keeps_size { end.min(inode.size).max(offset) } else { end };
            if !matches!(mode, FallocateMode::Allocate | FallocateMode::AllocateKeepSize) {
                state.punch(inode.ino, offset, end.min(inode.size), inode.size)?;
            }
            let filled = if keeps_size { end.min(inode.size) } else { end };
            if mode != FallocateMode::PunchHole && offset < filled {
                state.fill(inode.ino, offset / BLOCK_BYTES, filled.div_ceil(BLOCK_BYTES))?;
            }
            touch_contents(state, inode.ino, |inode| {
                if !keeps_size {
                    inode.size = inode.size.max(end);
                }
                drop_privileges(inode, caller);
            })?;
            Ok(is_done)
        })
        .map(|(_, is_done)| is_done)
    }

    pub(super) fn do_seek(&self, ino: InodeNo, offset: u64, whence: SeekFrom) -> Result<u64> {
        if ino == SNAPSHOTS_INO {
            return Err(Errno::ISDIR.into());
        }
        let core = self.share();
        let (tree, inode) = self.inode_of(&core.state, ino)?;
        expect_regular(inode.kind)?;
        if offset >= inode.size {
            return Err(Errno::NXIO.into());
        }
        let (first, end) = (offset / BLOCK_BYTES, inode.size.div_ceil(BLOCK_BYTES));
        match whence {
            SeekFrom::Data if core.state.in_frame(tree, &inode, first)?.is_some() => Ok(offset),
            SeekFrom::Data => {
                let mut data = None;
                core.state.walk_leaves(tree, Obj::Data(inode.ino), (first, end), &mut |index| {
                    data.get_or_insert(index);
                    false
                })?;
                data.map(|index| (index * BLOCK_BYTES).max(offset)).ok_or_else(|| Errno::NXIO.into())
            }
            SeekFrom::Hole => {
                let mut next = first;
                loop {
                    core.state.walk_leaves(tree, Obj::Data(inode.ino), (next, end), &mut |index| {
                        let is_next = index == next;
                        next += u64::from(is_next);
                        is_next
                    })?;
                    // What is in a compressed cluster is behind its leaves.
                    match core.state.in_frame(tree, &inode, next)? {
                        Some(behind) if next < end => next = behind,
                        _ => return Ok((next * BLOCK_BYTES).max(offset).min(inode.size)),
                    }
                }
            }
        }
    }

    pub(super) fn do_setattr(&self, caller: &Caller, ino: InodeNo, set: &SetAttr) -> Result<Attr> {
        let (core, inode) = self.change(Class::Gives, 0, |state| {
            let inode = self.ours(state, ino)?;
            rules::check_setattr(inode.flags(), set)?;
            if let Some(size) = set.size {
                rules::check_truncate(&inode.seen(), size, SIZE_MAX)?;
            }
            let xattrs = match set.perm {
                Some(perm) if inode.kind != FileKind::Symlink => xattr::after_chmod(state, &inode, perm)?,
                _ => None,
            };
            if let Some(size) = set.size {
                state.truncate(inode.ino, size)?;
                touch_contents(state, inode.ino, |inode| drop_privileges(inode, caller))?;
            }
            if let Some(xattrs) = xattrs {
                xattr::store(state, inode.ino, &xattrs)?;
            }
            let now = state.now;
            state.change_inode(inode.ino, |inode| set_attr(inode, set, now))?;
            state.inode(state.head, inode.ino)
        })?;
        drop(core);
        Ok(inode.attr(ino))
    }

    pub(super) fn do_set_flags(&self, caller: &Caller, ino: InodeNo, flags: InodeFlags) -> Result<()> {
        self.change(Class::Gives, 0, |state| {
            let inode = self.ours(state, ino)?;
            let wanted = InodeFlags(inode.flags & !SETTABLE | flags.0 & SETTABLE);
            rules::check_set_flags(caller, &inode.seen(), wanted)?;
            let allowed = match inode.kind {
                FileKind::Directory => SETTABLE,
                FileKind::Regular => SETTABLE & !(InodeFlags::DIRSYNC | InodeFlags::TOPDIR),
                _ => InodeFlags::NODUMP | InodeFlags::NOATIME,
            };
            touch(state, inode.ino, |inode| {
                inode.flags = inode.flags & !SETTABLE | flags.0 & allowed;
            })
        })
        .map(drop)
    }
}

impl Inode {
    /// Its `chattr` flags.
    pub(super) fn flags(&self) -> InodeFlags {
        InodeFlags(self.flags)
    }
}

/// Attributes but the length.
fn set_attr(inode: &mut Inode, set: &SetAttr, now: fstitch_core::Timestamp) {
    // The permissions as a truncation has left them.
    inode.perm = rules::perm_after(&inode.seen().attr, set).unwrap_or(inode.perm);
    inode.uid = set.uid.unwrap_or(inode.uid);
    inode.gid = set.gid.unwrap_or(inode.gid);
    let at = |time: SetTime| match time {
        SetTime::Now => now,
        SetTime::At(time) => time,
    };
    if set.size.is_none() || set.ctime.is_some() {
        inode.ctime = set.ctime.unwrap_or(now);
    }
    inode.atime = set.atime.map_or(inode.atime, at);
    inode.mtime = set.mtime.map_or(inode.mtime, at);
}

/// Of an append-only file, bytes that are there stay; pages that arrive before others leave zeros behind, which they may replace.
fn check_write_back(state: &State, inode: &Inode, offset: u64, data: &[u8]) -> Result<()> {
    refuse(inode.flags(), InodeFlags::IMMUTABLE)?;
    if !inode.flags().has(InodeFlags::APPEND) {
        return Ok(());
    }
    let left = usize::try_from(inode.size.saturating_sub(offset)).unwrap_or(usize::MAX);
    let mut old = vec![0; left.min(data.len())];
    state.read(state.head, inode, offset, &mut old)?;
    let is_kept = |(old, new): (&u8, &u8)| old == new || *old == 0;
    if old.iter().zip(data).all(is_kept) { Ok(()) } else { Err(Errno::PERM.into()) }
}
