//! Making and freeing inodes, and the list of those without names.

use fstitch_core::{Errno, Error, Result, Structure};

use super::layout::ROOT_INO;
use super::layout::inode::{FreeInode, INODE_BYTES, Inode, Slot, place};
use super::layout::record::INO_END;
use super::state::State;
use super::tree::Obj;

fn damaged(ino: u64, problem: &str) -> Error {
    Error::corrupt(Structure::Inode(ino), None, problem)
}

impl State {
    /// Takes a free inode number, and says which life its inode has.
    ///
    /// # Errors
    /// `ENOSPC` when all numbers are used; `Corrupt`, `Io`.
    pub(super) fn take_ino(&mut self) -> Result<(u64, u32)> {
        let head = self.head();
        let (free, end) = (head.free_ino, head.ino_end);
        if free == 0 {
            if end + 1 >= INO_END {
                return Err(Errno::NOSPC.into());
            }
            self.head_mut().ino_end += 1;
            self.head_mut().used = self.head().used.saturating_add(1);
            return Ok((end, 1));
        }
        match self.slot(self.head, free)? {
            Slot::Used(_) => Err(damaged(free, "it is in the list of free ones, and in use")),
            Slot::Free(FreeInode { next, .. }) if next >= end || next == ROOT_INO => {
                Err(damaged(free, "the next free one is none"))
            }
            Slot::Free(FreeInode { generation, next }) => {
                let head = self.head_mut();
                head.free_ino = next;
                head.used = head.used.saturating_add(1);
                Ok((free, generation))
            }
        }
    }

    /// Writes a new inode into its place.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) fn put_new(&mut self, inode: &Inode) -> Result<()> {
        let (leaf, at) = place(inode.ino);
        inode.write(&mut self.touch(Obj::Inodes, 0, leaf)?[at..at + INODE_BYTES]);
        Ok(())
    }

    /// Frees an inode that nothing names, with all that it has. It is not in the list of those without names.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) fn free_inode(&mut self, ino: u64) -> Result<()> {
        let generation = self.inode(self.head, ino)?.generation.wrapping_add(1);
        self.cut(Obj::Data(ino), 0, u64::MAX)?;
        self.cut(Obj::Xattrs(ino), 0, u64::MAX)?;
        let free = FreeInode { generation, next: self.head().free_ino };
        let (leaf, at) = place(ino);
        free.write(&mut self.touch(Obj::Inodes, 0, leaf)?[at..at + INODE_BYTES]);
        let head = self.head_mut();
        head.free_ino = ino;
        head.used = head.used.saturating_sub(1);
        Ok(())
    }

    /// Puts an inode that has lost its last name, and is used, into the list of those.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) fn add_orphan(&mut self, ino: u64) -> Result<()> {
        let first = self.head().orphan;
        self.change_inode(ino, |inode| (inode.before, inode.behind) = (0, first))?;
        if first != 0 {
            self.change_inode(first, |inode| inode.before = ino)?;
        }
        let head = self.head_mut();
        head.orphan = ino;
        head.orphans = head.orphans.saturating_add(1);
        Ok(())
    }

    /// Takes an inode out of that list.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) fn remove_orphan(&mut self, ino: u64) -> Result<()> {
        let inode = self.inode(self.head, ino)?;
        let (before, behind) = (inode.before, inode.behind);
        if before == ino || behind == ino || (before == 0) != (self.head().orphan == ino) {
            return Err(damaged(ino, "the list of inodes without names is broken at it"));
        }
        match before {
            0 => self.head_mut().orphan = behind,
            _ => self.change_inode(before, |inode| inode.behind = behind)?,
        }
        if behind != 0 {
            self.change_inode(behind, |inode| inode.before = before)?;
        }
        self.change_inode(ino, |inode| (inode.before, inode.behind) = (0, 0))?;
        let head = self.head_mut();
        head.orphans = head.orphans.saturating_sub(1);
        Ok(())
    }
}
