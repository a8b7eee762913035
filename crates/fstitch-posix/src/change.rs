//! Changing attributes, flags and contents.

use fstitch_core::{Attr, Caller, Errno, FallocateMode, FileKind, InodeFlags, Result, SetAttr, SetTime};

use crate::{FIXED, Inode, expect_regular, refuse};

const S_ISUID: u16 = 0o4000;
const S_ISGID: u16 = 0o2000;
const S_IXGRP: u16 = 0o0010;

/// What an immutable inode refuses entirely, an append-only one allows only for times set to now.
///
/// # Errors
/// `EPERM`.
pub fn check_setattr(flags: InodeFlags, set: &SetAttr) -> Result<()> {
    refuse(flags, InodeFlags::IMMUTABLE)?;
    let explicit = |time: Option<SetTime>| matches!(time, Some(SetTime::At(_)));
    let owned = set.perm.is_some() || set.uid.is_some() || set.gid.is_some();
    if owned || explicit(set.atime) || explicit(set.mtime) {
        refuse(flags, InodeFlags::APPEND)?;
    }
    Ok(())
}

/// The permission bits that a change of attributes leaves, if it changes any: those that are asked for, and of a file that gets
/// another owner those that give nobody else's rights away.
#[must_use]
pub fn perm_after(attr: &Attr, set: &SetAttr) -> Option<u16> {
    let asked = set.perm.map(|perm| perm & 0o7777);
    let changes_owner = set.uid.is_some() || set.gid.is_some();
    if !changes_owner || asked.is_some() || attr.kind == FileKind::Directory {
        return asked;
    }
    let kept = without_set_ids(attr.perm);
    (kept != attr.perm).then_some(kept)
}

/// Permission bits without the set-id bits that make a program run with others' rights. The set-group-id bit
/// of a file that its group may not execute is none of those.
#[must_use]
pub fn without_set_ids(perm: u16) -> u16 {
    let perm = perm & !S_ISUID;
    if perm & S_IXGRP == 0 { perm } else { perm & !S_ISGID }
}

/// The permission bits that a write leaves, if it changes any: by anybody but root it takes the rights away that the file lends to
/// whoever executes it.
#[must_use]
pub fn perm_after_write(caller: &Caller, perm: u16) -> Option<u16> {
    let kept = without_set_ids(perm);
    (caller.uid != 0 && kept != perm).then_some(kept)
}

/// Who may give an inode these `chattr` flags: its owner, and root those that fix it.
///
/// # Errors
/// `EPERM`.
pub fn check_set_flags(caller: &Caller, inode: &Inode, flags: InodeFlags) -> Result<()> {
    let is_restricted = (inode.flags.0 ^ flags.0) & FIXED != 0;
    if caller.uid != 0 && (caller.uid != inode.attr.uid || is_restricted) {
        return Err(Errno::PERM.into());
    }
    Ok(())
}

/// Whether contents may be written at `offset` by somebody who asks now.
///
/// # Errors
/// `EPERM`.
pub fn check_write(inode: &Inode, offset: u64) -> Result<()> {
    inode.refuse(InodeFlags::IMMUTABLE)?;
    if offset < inode.attr.size { inode.refuse(InodeFlags::APPEND) } else { Ok(()) }
}

/// Whether a file may be given this length.
///
/// # Errors
/// `EISDIR`, `EINVAL`, `EPERM`, `EFBIG`.
pub fn check_truncate(inode: &Inode, size: u64, size_max: u64) -> Result<()> {
    expect_regular(inode.attr.kind)?;
    inode.refuse(FIXED)?;
    if size > size_max { Err(Errno::FBIG.into()) } else { Ok(()) }
}

/// Whether a range of a file may be allocated, punched, zeroed, taken out or put in.
///
/// # Errors
/// `EPERM`.
pub fn check_fallocate(flags: InodeFlags, mode: FallocateMode) -> Result<()> {
    refuse(flags, InodeFlags::IMMUTABLE)?;
    match mode {
        FallocateMode::Allocate | FallocateMode::AllocateKeepSize => Ok(()),
        _ => refuse(flags, InodeFlags::APPEND),
    }
}

/// Where a range that is allocated, punched or zeroed ends, in files of up to `size_max` bytes.
///
/// # Errors
/// `EINVAL` for none, `EFBIG`.
pub fn range_end((offset, len): (u64, u64), size_max: u64) -> Result<u64> {
    match (len, offset.checked_add(len)) {
        (0, _) => Err(Errno::INVAL.into()),
        (_, Some(end)) if end <= size_max => Ok(end),
        _ => Err(Errno::FBIG.into()),
    }
}

/// Whether an inode of this kind has ranges to be allocated.
///
/// # Errors
/// `EISDIR`, `ENODEV`.
pub fn expect_allocatable(kind: FileKind) -> Result<()> {
    match kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Errno::ISDIR.into()),
        _ => Err(Errno::NODEV.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_group_id_without_group_execution_is_kept() {
        assert_eq!(without_set_ids(0o6755), 0o0755);
        assert_eq!(without_set_ids(0o6745), 0o2745);
        assert_eq!(without_set_ids(0o0644), 0o0644);
    }

    #[test]
    fn only_others_lose_what_a_file_lends() {
        let root = Caller::default();
        let user = Caller { uid: 1000, ..root };
        assert_eq!(perm_after_write(&root, 0o6755), None);
        assert_eq!(perm_after_write(&user, 0o6755), Some(0o755));
        assert_eq!(perm_after_write(&user, 0o755), None);
    }

    #[test]
    fn append_only_takes_times_set_to_now_alone() {
        let append = InodeFlags(InodeFlags::APPEND);
        let now = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
        let then = SetAttr { mtime: Some(SetTime::At(fstitch_core::Timestamp::default())), ..now };
        assert!(check_setattr(append, &now).is_ok() && check_setattr(append, &then).is_err());
        assert!(check_setattr(InodeFlags(InodeFlags::IMMUTABLE), &now).is_err());
    }
}
