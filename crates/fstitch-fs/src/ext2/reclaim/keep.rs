//! Inodes that have lost their names, but not what they hold: they get others in `lost+found`.
//!
//! **Orderings.** Those of `uhfs/adopt.rs`.

use fstitch_core::{BlockKind, FileKind, InodeNo, Result};

use super::scan::FoundInode;
use crate::ext2::Inode;
use crate::ext2::layout::inode::{I_LINKS_COUNT, I_MODE};
use crate::ext2::leftovers::Leftovers;
use crate::ext2::volume::Ext2;
use crate::uhfs::{ReclaimHooks, Reclaimed, unless_gone};

impl Ext2 {
    /// Whether an inode that nothing names must be kept.
    pub(super) fn must_keep(&self, found: &FoundInode, left: &Leftovers) -> Result<bool> {
        let Some(disk) = &found.disk else { return Ok(false) };
        let keeps = left.keeps(&self.raw_inode(found.ino)?);
        if disk.kind != FileKind::Directory || disk.nlink == 0 {
            return Ok(keeps);
        }
        // An empty directory is nothing that anybody could miss; a new one is kept for what is old in it.
        let mut children = Vec::new();
        self.scan_directory(found.ino, disk, &mut |seen| {
            if !seen.is_dots() && self.is_inode_no(seen.target) {
                children.push(seen.target);
            }
        })?;
        for child in children {
            let raw = self.raw_inode(child)?;
            if (keeps || left.keeps(&raw)) && self.is_lost_with(found.ino, child, &raw)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a directory that nothing names has the only name of an inode. A rename into a new directory that was cut off
    /// leaves second ones: counts are raised before, and `..` is switched after the new directory can be reached.
    fn is_lost_with(&self, dir: u32, child: u32, raw: &[u8]) -> Result<bool> {
        if I_MODE.get(raw) & 0xf000 != 0x4000 {
            return Ok(I_LINKS_COUNT.get(raw) == 1);
        }
        let Some(inode) = unless_gone(self.load_any(InodeNo(u64::from(child))))? else { return Ok(false) };
        let parent = self.find(&inode, b"..")?;
        Ok(parent.is_some_and(|slot| slot.ino == InodeNo(u64::from(dir))))
    }

    /// Gives an inode that nothing names a name in `lost+found`; `names` is how many entries name it, its own `.` and its
    /// children's `..` included.
    pub(super) fn keep_unnamed(
        &self,
        hooks: &dyn ReclaimHooks<Inode>,
        found: &FoundInode,
        names: u16,
        done: &mut Reclaimed,
    ) -> Result<()> {
        if self.watch.inode_changed(found.ino) {
            return Ok(());
        }
        // A count that is too low for one more name is nothing that a crash leaves.
        let covered = found.disk.as_ref().is_some_and(|disk| disk.nlink > names);
        if covered && hooks.keep(InodeNo(u64::from(found.ino)))? {
            done.kept += 1;
        } else {
            done.left_alone += 1;
        }
        Ok(())
    }

    fn is_inode_no(&self, ino: u32) -> bool {
        (self.sb.first_ino..=self.sb.inodes_count).contains(&ino)
    }

    /// An inode's bytes.
    fn raw_inode(&self, ino: u32) -> Result<Vec<u8>> {
        let (block, at) = self.inode_place(ino)?;
        let bytes = self.cache.read(block, BlockKind::Inode)?.snapshot();
        Ok(bytes[at..at + usize::from(self.sb.inode_size)].to_vec())
    }
}
