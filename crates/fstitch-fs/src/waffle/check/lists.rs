//! The lists of a tree that is mended: inodes without names, free ones, and where all of them end.

use fstitch_core::num::to_u64;
use fstitch_core::{Error, Result, Structure};
use rustc_hash::FxHashSet;

use super::super::layout::FIRST_INO;
use super::super::layout::ROOT_INO;
use super::super::layout::inode::{FreeInode, INODE_BYTES, INODES_IN_BLOCK, Slot, place};
use super::super::layout::record::INO_END;
use super::super::state::record_place;
use super::super::tree::Obj;
use super::mend::{Mend, leaves_of};

/// Blocks of inodes that may be missing: each gets one again.
const ABSENT_MAX: u64 = 4096;

impl Mend<'_> {
    /// No inode is behind the end of all, and not too many are before it that no leaf has.
    pub(super) fn end(&mut self) -> Result<()> {
        let leaves = leaves_of(self.state, Obj::Inodes)?;
        let end = self.state.head().ino_end;
        let there = leaves.last().map_or(0, |leaf| (leaf + 1) * INODES_IN_BLOCK);
        let absent = end.div_ceil(INODES_IN_BLOCK).saturating_sub(to_u64(leaves.len()));
        if absent > ABSENT_MAX || there >= INO_END {
            let problem = format!("{absent} of its blocks of inodes are missing");
            return Err(Error::corrupt(Structure::Other("inodes"), None, problem));
        }
        let mut last = 0;
        for ino in (end..there).rev() {
            let (leaf, at) = place(ino);
            let Some(node) = self.state.node(self.state.head, Obj::Inodes, 0, leaf)? else { continue };
            if !matches!(Slot::decode(&node[at..at + INODE_BYTES], ino), Ok(Slot::Free(_))) {
                last = ino;
                break;
            }
        }
        if last >= end {
            self.state.head_mut().ino_end = last + 1;
            self.note_head()?;
        }
        Ok(())
    }

    /// The list of inodes without names.
    pub(super) fn orphans(&mut self) -> Result<()> {
        let mut orphans = Vec::new();
        for ino in self.used()? {
            let is_named = ino == ROOT_INO || self.names.contains_key(&ino);
            let Some(inode) = self.inode(ino)? else { continue };
            if !is_named {
                orphans.push(ino);
            } else if inode.before != 0 || inode.behind != 0 {
                self.change(ino, |inode| (inode.before, inode.behind) = (0, 0))?;
            }
        }
        let links = |at: usize| {
            let before = at.checked_sub(1).map_or(0, |at| orphans[at]);
            (before, orphans.get(at + 1).copied().unwrap_or(0))
        };
        for (at, &ino) in orphans.iter().enumerate() {
            let wanted = links(at);
            if self.inode(ino)?.is_some_and(|inode| (inode.before, inode.behind) != wanted) {
                self.change(ino, |inode| (inode.before, inode.behind) = wanted)?;
            }
        }
        let (first, count) = (orphans.first().copied().unwrap_or(0), to_u64(orphans.len()));
        let head = self.state.head_mut();
        if (head.orphan, head.orphans) != (first, count) {
            (head.orphan, head.orphans) = (first, count);
            self.note_head()?;
        }
        Ok(())
    }

    /// The list of free inodes, and how many are in use.
    pub(super) fn free_list(&mut self) -> Result<()> {
        let used: FxHashSet<u64> = self.used()?.into_iter().collect();
        let count = to_u64(used.len());
        if self.state.head().used != count {
            self.state.head_mut().used = count;
            self.note_head()?;
        }
        let end = self.state.head().ino_end;
        let mut free = Vec::new();
        for ino in (FIRST_INO..end).filter(|ino| !used.contains(ino)) {
            match self.state.slot(self.state.head, ino) {
                Ok(Slot::Free(FreeInode { generation, .. })) => free.push((ino, generation)),
                // One that breaks a rule is told, and stays.
                Ok(Slot::Used(_)) | Err(Error::Corrupt(_)) => {}
                Err(error) => return Err(error),
            }
        }
        if self.is_list_whole(to_u64(free.len()))? {
            return Ok(());
        }
        let mut next = 0;
        for (ino, generation) in free.into_iter().rev() {
            let (leaf, at) = place(ino);
            let bytes = self.state.touch(Obj::Inodes, 0, leaf)?;
            FreeInode { generation, next }.write(&mut bytes[at..at + INODE_BYTES]);
            next = ino;
        }
        self.state.head_mut().free_ino = next;
        self.note_head()
    }

    /// Whether the list of free inodes has all of them.
    fn is_list_whole(&self, free: u64) -> Result<bool> {
        let mut seen = FxHashSet::default();
        let mut ino = self.state.head().free_ino;
        while ino != 0 {
            match self.state.slot(self.state.head, ino) {
                Ok(Slot::Free(free)) if ino >= FIRST_INO && seen.insert(ino) => ino = free.next,
                Ok(_) | Err(Error::Corrupt(_) | Error::Errno(_)) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(to_u64(seen.len()) == free)
    }

    /// The tree's record has changed.
    fn note_head(&mut self) -> Result<()> {
        self.mended += 1;
        self.state.touch(Obj::Trees, 0, record_place(self.state.head).0).map(drop)
    }
}
