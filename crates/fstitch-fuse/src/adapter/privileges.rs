//! Set-id bits and file capabilities fall when somebody writes to a file. The kernel leaves that to us
//! (`FUSE_HANDLE_KILLPRIV_V2`), and in turn does not ask for `security.capability` before every write.

use std::sync::Mutex;

use fstitch_core::lock::Unpoisoned;
use fstitch_core::{Attr, Caller, Errno, FileKind, InodeNo, Result, SetAttr};
use rustc_hash::FxHashSet;

use super::core::Core;

/// The extended attribute that carries capabilities.
pub(super) const CAPABILITY: &[u8] = b"security.capability";

/// How many inodes are remembered; beyond, the memory starts anew.
const REMEMBERED_MAX: usize = 1 << 16;

const SET_UID: u16 = 0o4000;
const SET_GID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;

/// Inodes that are known to have no capabilities. Only this mount writes, so what was absent stays absent until
/// it is set here.
#[derive(Debug, Default)]
pub(super) struct WithoutCapability {
    inodes: Mutex<FxHashSet<InodeNo>>,
}

impl WithoutCapability {
    fn contains(&self, ino: InodeNo) -> bool {
        self.inodes.lock().unpoisoned().contains(&ino)
    }

    fn remember(&self, ino: InodeNo) {
        let mut inodes = self.inodes.lock().unpoisoned();
        if inodes.len() >= REMEMBERED_MAX {
            inodes.clear();
        }
        inodes.insert(ino);
    }

    /// The attribute was set, or the inode's number may get a new life.
    pub(super) fn forget(&self, ino: InodeNo) {
        self.inodes.lock().unpoisoned().remove(&ino);
    }
}

/// The permission bits after a write by somebody without `CAP_FSETID`, or after a change of owner. Without execution by the
/// group its bit means locking, which only the group's members leave as it is.
fn without_privileges(perm: u16, is_member: impl FnOnce() -> bool) -> u16 {
    let perm = perm & !SET_UID;
    let keeps = perm & SET_GID == 0 || (perm & GROUP_EXECUTE == 0 && is_member());
    if keeps { perm } else { perm & !SET_GID }
}

/// The groups of a thread; none where it cannot be seen from here.
fn groups_of(tid: u32) -> Vec<u32> {
    std::fs::read_to_string(format!("/proc/{tid}/status"))
        .map_or_else(|_| Vec::new(), |text| groups_in(&text))
}

/// The same from `/proc/TID/status`: the group for files, which is the last of four, and the additional ones.
fn groups_in(status: &str) -> Vec<u32> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    let own = field("Gid:").split_whitespace().next_back();
    own.into_iter().chain(field("Groups:").split_whitespace()).filter_map(|no| no.parse().ok()).collect()
}

impl Core {
    /// The value of `security.capability`, cheaply where it is absent.
    pub(super) fn capability(&self, ino: InodeNo) -> Result<Vec<u8>> {
        if self.without_capability.contains(ino) {
            return Err(Errno::NODATA.into());
        }
        let value = self.fs.getxattr(ino, CAPABILITY);
        if matches!(&value, Err(e) if e.errno() == Errno::NODATA) {
            self.without_capability.remember(ino);
        }
        value
    }

    /// Removes capabilities before a change of contents or owner.
    fn drop_capability(&self, caller: &Caller, ino: InodeNo) -> Result<()> {
        match self.capability(ino) {
            Ok(_) => self.fs.removexattr(caller, ino, CAPABILITY),
            Err(e) if [Errno::NODATA, Errno::OPNOTSUPP].contains(&e.errno()) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Whether the caller belongs to the group of a file, as the kernel sees it. The kernel does not tell of additional groups.
    fn is_member(&self, caller: &Caller, attr: &Attr) -> bool {
        let (_, shown) = self.view.owners.show(attr.uid, attr.gid);
        let is_known = self.view.owners.shown_gid.is_none() && caller.gid == attr.gid;
        is_known || groups_of(caller.tid).contains(&shown)
    }

    /// What a write takes away: capabilities always, set-id bits where the kernel says so.
    pub(super) fn drop_before_write(&self, caller: &Caller, ino: InodeNo, set_ids: bool) -> Result<()> {
        self.drop_capability(caller, ino)?;
        if !set_ids {
            return Ok(());
        }
        let attr = self.fs.getattr(ino)?;
        let perm = without_privileges(attr.perm, || self.is_member(caller, &attr));
        if perm != attr.perm {
            self.fs.setattr(caller, ino, &SetAttr { perm: Some(perm), ..SetAttr::default() })?;
        }
        Ok(())
    }

    /// What a change of owner or length takes away, added to `set`: capabilities always, set-id bits with an owner
    /// and, where the kernel says so, with a length.
    pub(super) fn drop_before_setattr(
        &self,
        caller: &Caller,
        ino: InodeNo,
        set: &mut SetAttr,
        kills_set_ids: bool,
    ) -> Result<()> {
        // A request without any change is what remains of chown(-1, -1).
        let owner =
            set.uid.is_some() || set.gid.is_some() || SetAttr { ctime: None, ..*set } == SetAttr::default();
        if !owner && set.size.is_none() {
            return Ok(());
        }
        let attr = self.fs.getattr(ino)?;
        if attr.kind == FileKind::Directory {
            return Ok(());
        }
        self.drop_capability(caller, ino)?;
        // Whether a new length may leave them the kernel has judged; it says nothing of who sets a new owner.
        let may = || (owner && caller.uid == 0) || self.is_member(caller, &attr);
        let perm = without_privileges(attr.perm, may);
        if (owner || kills_set_ids) && set.perm.is_none() && perm != attr.perm {
            set.perm = Some(perm);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_bit_means_locking_without_execution() {
        for is_member in [true, false] {
            assert_eq!(without_privileges(0o6755, || is_member), 0o755);
            assert_eq!(without_privileges(0o1644, || is_member), 0o1644);
        }
        assert_eq!(without_privileges(0o6745, || true), 0o2745);
        assert_eq!(without_privileges(0o6745, || false), 0o745);
    }

    #[test]
    fn groups_are_those_for_files_and_the_additional_ones() {
        let status = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nFDSize:\t64\nGroups:\t9 10 \n";
        assert_eq!(groups_in(status), [8, 9, 10]);
        assert_eq!(groups_in("Gid:\nGroups:\n"), Vec::<u32>::new());
    }
}
