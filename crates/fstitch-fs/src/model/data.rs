//! Contents of regular files.

use fstitch_core::{Caller, Errno, FallocateMode, FileKind, InodeFlags, InodeNo, Result, SeekFrom};

use crate::appended::expect_appended;

use super::sparse::wide;
use super::state::{Node, State};

impl State {
    pub(super) fn read(&mut self, ino: InodeNo, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let node = self.node(ino)?;
        let left = node.attr.size.saturating_sub(offset);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        node.bytes()?.read(offset, &mut buf[..len]);
        if !buf.is_empty() {
            self.accessed(ino);
        }
        Ok(len)
    }

    pub(super) fn write(&mut self, caller: &Caller, ino: InodeNo, offset: u64, data: &[u8]) -> Result<usize> {
        self.writable()?;
        let node = self.node(ino)?;
        node.bytes()?;
        let appends = node.flags.has(InodeFlags::APPEND);
        if node.flags.has(InodeFlags::IMMUTABLE) || (appends && offset < node.attr.size) {
            return Err(Errno::PERM.into());
        }
        let written = self.store(ino, offset, data, true)?;
        if written > 0 {
            self.known(ino).drop_privileges(caller);
        }
        Ok(written)
    }

    pub(super) fn write_back(
        &mut self,
        ino: InodeNo,
        offset: u64,
        data: &[u8],
        stamps: bool,
    ) -> Result<usize> {
        self.writable()?;
        let node = self.node(ino)?;
        let left = usize::try_from(node.attr.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut old = vec![0; left.min(data.len())];
        node.bytes()?.read(offset, &mut old);
        if node.flags.has(InodeFlags::IMMUTABLE) {
            return Err(Errno::PERM.into());
        }
        if node.flags.has(InodeFlags::APPEND) {
            expect_appended(&old, data)?;
        }
        self.store(ino, offset, data, stamps)
    }

    /// Writes what nobody refuses.
    fn store(&mut self, ino: InodeNo, offset: u64, data: &[u8], stamps: bool) -> Result<usize> {
        let before = self.node(ino)?.bytes()?.allocated();
        if data.is_empty() {
            return Ok(0);
        }
        let allowed = self.options.size_max.saturating_sub(offset);
        if allowed == 0 {
            return Err(Errno::FBIG.into());
        }
        let len = usize::try_from(allowed).unwrap_or(usize::MAX).min(data.len());
        let len = self.fitting(ino, offset, len)?;
        let now = self.now;
        let node = self.known(ino);
        node.bytes_mut().write(offset, &data[..len]);
        node.attr.size = node.attr.size.max(offset + wide(len));
        if stamps {
            node.touch(now);
        }
        self.recount(ino, before);
        Ok(len)
    }

    /// How much of a write of `len` bytes there is room for; `ENOSPC` if none.
    fn fitting(&self, ino: InodeNo, offset: u64, len: usize) -> Result<usize> {
        let bytes = self.node(ino)?.bytes()?;
        let free = self.blocks_free();
        if bytes.missing(offset, wide(len)) <= free {
            return Ok(len);
        }
        let unit = u64::from(self.options.block_size);
        let mut end = offset + wide(len);
        while end > offset && bytes.missing(offset, end - offset) > free {
            end = (end - 1) / unit * unit;
        }
        if end <= offset {
            return Err(Errno::NOSPC.into());
        }
        Ok(usize::try_from(end - offset).expect("shorter than the data"))
    }

    pub(super) fn fallocate(
        &mut self,
        caller: &Caller,
        ino: InodeNo,
        (offset, len): (u64, u64),
        mode: FallocateMode,
    ) -> Result<()> {
        self.writable()?;
        let node = self.node(ino)?;
        let end = self.check_fallocate(node, (offset, len), mode)?;
        if mode.shifts() {
            return self.shift(caller, ino, (offset, len), mode);
        }
        let size = node.attr.size;
        let before = node.bytes()?.allocated();
        let grows = matches!(mode, FallocateMode::Allocate | FallocateMode::ZeroRange);
        let punches = mode == FallocateMode::PunchHole;
        let unwritten = self.options.unwritten;
        // Blocks with contents behind the end of the file are damage, so ranges that keep the size stop at the end.
        let reaches = grows || (unwritten && !punches);
        let within = (if reaches { end } else { end.min(size) }).max(offset);
        if !punches && node.bytes()?.missing(offset, within - offset) > self.blocks_free() {
            return Err(Errno::NOSPC.into());
        }
        let now = self.now;
        let node = self.known(ino);
        let zeroes = !matches!(mode, FallocateMode::Allocate | FallocateMode::AllocateKeepSize);
        if zeroes && unwritten && !punches {
            node.bytes_mut().empty(offset, within);
        } else if zeroes {
            node.bytes_mut().punch(offset, within);
        }
        if !punches && within > offset {
            node.bytes_mut().allocate(offset, within - offset, !unwritten);
        }
        if grows {
            node.attr.size = size.max(end);
        }
        node.drop_privileges(caller);
        node.touch(now);
        self.recount(ino, before);
        Ok(())
    }

    /// Takes the range out of the file, or puts a hole in.
    fn shift(
        &mut self,
        caller: &Caller,
        ino: InodeNo,
        (offset, len): (u64, u64),
        mode: FallocateMode,
    ) -> Result<()> {
        let node = self.node(ino)?;
        let unit = u64::from(self.options.shift_unit.unwrap_or(self.options.block_size));
        let size = node.attr.size;
        let before = node.bytes()?.allocated();
        let collapses = mode == FallocateMode::CollapseRange;
        if !self.options.shifts {
            return Err(Errno::OPNOTSUPP.into());
        }
        if !offset.is_multiple_of(unit) || !len.is_multiple_of(unit) {
            return Err(Errno::INVAL.into());
        }
        if !collapses && len > self.options.size_max - size {
            return Err(Errno::FBIG.into());
        }
        if (if collapses { offset + len } else { offset }) >= size {
            return Err(Errno::INVAL.into());
        }
        let now = self.now;
        let node = self.known(ino);
        if collapses {
            node.bytes_mut().take_out(offset, len);
            node.attr.size = size - len;
        } else {
            node.bytes_mut().put_in(offset, len);
            node.attr.size = size + len;
        }
        node.drop_privileges(caller);
        node.touch(now);
        self.recount(ino, before);
        Ok(())
    }

    /// The range's end, if this file may be changed so.
    fn check_fallocate(&self, node: &Node, (offset, len): (u64, u64), mode: FallocateMode) -> Result<u64> {
        let end = match offset.checked_add(len) {
            _ if len == 0 => return Err(Errno::INVAL.into()),
            Some(end) if end <= self.options.size_max => end,
            _ => return Err(Errno::FBIG.into()),
        };
        match node.attr.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::ISDIR.into()),
            _ => return Err(Errno::NODEV.into()),
        }
        let allocates = matches!(mode, FallocateMode::Allocate | FallocateMode::AllocateKeepSize);
        if node.flags.has(InodeFlags::IMMUTABLE) || (node.flags.has(InodeFlags::APPEND) && !allocates) {
            return Err(Errno::PERM.into());
        }
        let file_end = node.attr.size.next_multiple_of(u64::from(self.options.block_size));
        if mode == FallocateMode::AllocateKeepSize && end > file_end && !self.options.unwritten {
            return Err(Errno::OPNOTSUPP.into());
        }
        Ok(end)
    }

    pub(super) fn seek(&self, ino: InodeNo, offset: u64, whence: SeekFrom) -> Result<u64> {
        let node = self.node(ino)?;
        let size = node.attr.size;
        let bytes = node.bytes()?;
        if offset >= size {
            return Err(Errno::NXIO.into());
        }
        bytes.seek(offset, size, whence).ok_or_else(|| Errno::NXIO.into())
    }
}
