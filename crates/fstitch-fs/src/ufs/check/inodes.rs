//! Every inode, and every fragment that it claims.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{FileKind, Result};

use super::{Seen, State};
use crate::ufs::layout::inode::{DiskInode, flag};
use crate::ufs::layout::superblock::ROOT_INO;
use crate::ufs::volume::{Inode, Ufs};

/// Pointers of snapshots that are no places.
const SNAPSHOT_MARKS: u64 = 2;

impl Ufs {
    pub(super) fn check_inodes(&self, state: &mut State) -> Result<()> {
        let sb = &self.sb;
        for group in 0..sb.groups {
            let Some(initialised) = state.groups[to_usize(group)].as_ref().map(|group| group.initialised)
            else {
                continue;
            };
            for at in 0..initialised {
                let ino = group * sb.group_inodes + at;
                if ino < ROOT_INO {
                    continue;
                }
                let raw = self.inode_bytes(ino);
                let Some(raw) = state.keep("inode", raw)? else { continue };
                let disk = DiskInode::parse(&raw, ino, sb);
                let Some(Some(disk)) = state.keep("inode", disk)? else { continue };
                self.check_inode(state, &Inode { ino, disk })?;
            }
        }
        if !state.inodes[to_usize(ROOT_INO)].is_directory {
            state.damage("root", "the root directory is none");
        }
        Ok(())
    }

    fn check_inode(&self, state: &mut State, inode: &Inode) -> Result<()> {
        let (ino, disk) = (inode.ino, &inode.disk);
        let is_directory = disk.kind == FileKind::Directory;
        state.inodes[to_usize(ino)] = Seen { nlink: disk.nlink, names: 0, is_directory, is_used: true };
        state.totals.directories += u64::from(is_directory);
        let mut taken = 0;
        let extra = to_u64(to_usize(disk.extra_size));
        let block = u64::from(self.sb.block_size);
        for (at, &start) in disk.extra.iter().enumerate() {
            let here = extra.saturating_sub(to_u64(at) * block).min(block);
            if here > 0 {
                taken += self.claim(state, ino, start, self.fragments_of(here))?;
            }
        }
        let has_blocks = matches!(disk.kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink);
        if has_blocks && !disk.is_target_inside(&self.sb) {
            taken += self.claim_contents(state, inode)?;
        }
        let sectors = taken * u64::from(self.sb.fragment_size / 512);
        if sectors != disk.sectors {
            state.allowed("inode-blocks", format!("inode {ino}: {} sectors, {sectors} found", disk.sectors));
        }
        Ok(())
    }

    fn claim_contents(&self, state: &mut State, inode: &Inode) -> Result<u64> {
        let disk = &inode.disk;
        let mut taken = 0;
        for (at, &start) in disk.direct.iter().enumerate() {
            let len = self.block_len(disk.size, to_u64(at));
            taken += self.claim_pointer(state, inode, (start, len))?;
        }
        for (level, &start) in disk.indirect.iter().enumerate() {
            taken += self.claim_tree(state, inode, (start, level))?;
        }
        Ok(taken)
    }

    /// Claims a block of pointers and what is below it.
    fn claim_tree(&self, state: &mut State, inode: &Inode, (start, level): (u64, usize)) -> Result<u64> {
        let per_block = u64::from(self.sb.fragments_per_block());
        let mut taken = self.claim_pointer(state, inode, (start, per_block))?;
        // What is not the inode's, or was met before, is not followed: so this ends.
        if taken == 0 {
            return Ok(0);
        }
        for index in 0..u64::from(self.sb.pointers_per_block()) {
            let next = self.read_pointer(inode.ino, start, index)?;
            taken += match level {
                0 => self.claim_pointer(state, inode, (next, per_block))?,
                _ => self.claim_tree(state, inode, (next, level - 1))?,
            };
        }
        Ok(taken)
    }

    fn claim_pointer(&self, state: &mut State, inode: &Inode, (start, len): (u64, u64)) -> Result<u64> {
        let is_mark = inode.disk.flags & flag::SNAPSHOT != 0 && start <= SNAPSHOT_MARKS;
        if start == 0 || is_mark { Ok(0) } else { self.claim(state, inode.ino, start, len) }
    }

    /// Claims fragments; returns how many, none if they cannot be the inode's.
    fn claim(&self, state: &mut State, ino: u32, start: u64, count: u64) -> Result<u64> {
        let range = self.check_range(ino, start, count);
        if state.keep("pointer", range)?.is_none() {
            return Ok(0);
        }
        let twice = (start..start + count).filter(|&at| state.claimed.set(at)).count();
        if twice > 0 {
            state.damage(
                "block-shared",
                format!("inode {ino}: {twice} of {count} fragments from {start} on are somebody else's"),
            );
            return Ok(0);
        }
        Ok(count)
    }
}
