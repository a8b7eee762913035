//! What a new inode is, and what it has from its directory and its maker.

use fstitch_core::{Attr, Caller, Errno, FileKind, InodeFlags, InodeNo, Result};

use crate::acl::{self, Acl};
use crate::{Inode, name};

const S_ISGID: u16 = 0o2000;

/// An inode to be made.
#[derive(Clone, Copy, Debug)]
pub struct Make<'a> {
    /// Who makes it.
    pub caller: &'a Caller,
    /// The directory.
    pub parent: InodeNo,
    /// `None` for an inode without a name.
    pub name: Option<&'a [u8]>,
    /// What it is.
    pub kind: FileKind,
    /// The 12 permission bits that were asked for.
    pub perm: u16,
    /// Device number.
    pub rdev: u32,
    /// Where a symbolic link leads.
    pub target: &'a [u8],
}

/// What a new inode has from its directory and its maker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heritage {
    /// The 12 permission bits.
    pub perm: u16,
    /// Group.
    pub gid: u32,
    /// Flags.
    pub flags: InodeFlags,
    /// Access lists, as full names and values of extended attributes.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What `mknod` makes of a mode, with the device number that it keeps.
///
/// # Errors
/// `EPERM` for directories, `EINVAL` for symbolic links and what is nothing.
pub fn node_kind(mode: u16, rdev: u32) -> Result<(FileKind, u32)> {
    let kind = match mode & 0o170_000 {
        0 => FileKind::Regular,
        _ => FileKind::from_mode(mode).ok_or(Errno::INVAL)?,
    };
    match kind {
        FileKind::Directory => Err(Errno::PERM.into()),
        FileKind::Symlink => Err(Errno::INVAL.into()),
        FileKind::CharDevice | FileKind::BlockDevice => Ok((kind, rdev)),
        _ => Ok((kind, 0)),
    }
}

/// The permission bits that `mkdir` takes: Linux leaves the set-id bits of its mode to the file system, which ignores them.
#[must_use]
pub fn directory_perm(perm: u16) -> u16 {
    perm & 0o1777
}

/// Fails unless `target` could be where a symbolic link leads.
///
/// # Errors
/// `ENOENT` for nothing, `ENAMETOOLONG`, `EINVAL` for what no path has.
pub fn check_target(target: &[u8], symlink_max: usize) -> Result<()> {
    if target.is_empty() {
        return Err(Errno::NOENT.into());
    }
    if target.len() > symlink_max {
        return Err(Errno::NAMETOOLONG.into());
    }
    if target.contains(&0) { Err(Errno::INVAL.into()) } else { Ok(()) }
}

/// Fails unless a directory can take a new name, which `exists` or does not; in Linux's order.
///
/// # Errors
/// `ENOTDIR`, `EEXIST`, `ENOENT` once the directory was removed, `EPERM` if it is immutable.
pub fn check_new_name(dir: &Inode, exists: bool) -> Result<()> {
    dir.attr.expect_directory()?;
    if exists {
        return Err(Errno::EXIST.into());
    }
    name::expect_open_directory(&dir.attr)?;
    dir.refuse(InodeFlags::IMMUTABLE)
}

/// Fails unless a directory can take another child of this kind, whose `..` counts if it is a directory.
///
/// # Errors
/// `EMLINK`.
pub fn check_room(dir: &Attr, kind: FileKind, link_max: u32) -> Result<()> {
    if kind == FileKind::Directory && dir.nlink >= link_max { Err(Errno::MLINK.into()) } else { Ok(()) }
}

/// The count of names of a new inode.
#[must_use]
pub fn first_links(kind: FileKind, has_name: bool) -> u32 {
    match (has_name, kind) {
        (false, _) => 0,
        // Its own `.` counts.
        (true, FileKind::Directory) => 2,
        (true, _) => 1,
    }
}

/// Group, permissions, flags and access lists of a new inode in `dir`; `default` is the default list of that directory, which takes
/// the place of the umask.
#[must_use]
pub fn heritage(
    dir: &Inode,
    caller: &Caller,
    (kind, perm): (FileKind, u16),
    default: Option<&Acl>,
) -> Heritage {
    let inherits_group = dir.attr.perm & S_ISGID != 0;
    let gid = if inherits_group { dir.attr.gid } else { caller.gid };
    let mut perm = perm & 0o7777;
    if inherits_group && kind == FileKind::Directory {
        perm |= S_ISGID;
    }
    let mut heritage = Heritage { perm, gid, flags: inherited_flags(dir.flags, kind), xattrs: Vec::new() };
    match default {
        _ if kind == FileKind::Symlink => {}
        None => heritage.perm &= !(caller.umask & 0o777),
        Some(default) => inherit_acl(&mut heritage, default, kind),
    }
    heritage
}

fn inherit_acl(heritage: &mut Heritage, default: &Acl, kind: FileKind) {
    let (access, perm) = default.inherit(heritage.perm);
    heritage.perm = perm;
    if !access.is_equivalent_to_mode() {
        heritage.xattrs.push((acl::ACCESS.to_vec(), access.encode()));
    }
    if kind == FileKind::Directory {
        heritage.xattrs.push((acl::DEFAULT.to_vec(), default.encode()));
    }
}

/// Flags that a new inode of `kind` takes over from its directory's `flags`.
fn inherited_flags(flags: InodeFlags, kind: FileKind) -> InodeFlags {
    let everywhere = InodeFlags::NODUMP | InodeFlags::NOATIME;
    let mask = match kind {
        FileKind::Directory => everywhere | InodeFlags::SYNC | InodeFlags::DIRSYNC,
        FileKind::Regular => everywhere | InodeFlags::SYNC,
        _ => everywhere,
    };
    InodeFlags(flags.0 & mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_inherited_by_kind() {
        let all = InodeFlags(u32::MAX);
        let regular = inherited_flags(all, FileKind::Regular);
        assert!(regular.has(InodeFlags::SYNC) && regular.has(InodeFlags::NODUMP));
        assert!(!regular.has(InodeFlags::DIRSYNC) && !regular.has(InodeFlags::IMMUTABLE));
        assert!(inherited_flags(all, FileKind::Directory).has(InodeFlags::DIRSYNC));
        assert!(!inherited_flags(all, FileKind::Fifo).has(InodeFlags::SYNC));
    }

    #[test]
    fn mknod_makes_what_it_may() {
        assert_eq!(node_kind(0o644, 7).unwrap(), (FileKind::Regular, 0));
        assert_eq!(node_kind(0o020_644, 7).unwrap(), (FileKind::CharDevice, 7));
        assert_eq!(node_kind(0o040_755, 0).unwrap_err().errno(), Errno::PERM);
        assert_eq!(node_kind(0o120_777, 0).unwrap_err().errno(), Errno::INVAL);
    }
}
