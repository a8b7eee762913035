//! The volume with quotas: files of several users, groups and projects, some of which may have little more.
//!
//! User and group 1 and 11 have `/m` with `/m/a` and the sparse `/m/s`; 2 and 12 have `/w` with `/w/b`, `/w/x` (with an attribute in a block) and
//! the link `/w/l`. 3 and 13 have `/t` with `/t/c`: user 3 has a hard limit. `/p` and `/p/e` are of project 5, which has one, and what is made there
//! is too. Group 14 has nothing yet, and soft limits.

use fstitch_core::{
    BlockDevice, Caller, FileSystem, InodeFlags, InodeNo, Result, SetAttr, Timestamp, XattrSetMode,
};
use fstitch_crashlab::workload::fill;
use fstitch_fs::ext2::layout::quota::QuotaKind;
use fstitch_fs::ext2::quota::{Limits, set_limits};

/// What the files hold is numbered from here, as operations of a set-up are.
const FIRST: u32 = (1 << 20) + 550;
/// The project of `/p`.
const PROJECT: u32 = 5;

/// Who may have how much.
const LIMITED: [(QuotaKind, u32, Limits); 3] = [
    (QuotaKind::User, 3, Limits { space_soft: 0, space_hard: 14, inodes_soft: 0, inodes_hard: 4 }),
    (QuotaKind::Project, PROJECT, Limits { space_soft: 0, space_hard: 14, inodes_soft: 0, inodes_hard: 4 }),
    (QuotaKind::Group, 14, Limits { space_soft: 8, space_hard: 0, inodes_soft: 2, inodes_hard: 0 }),
];

struct Making<'a> {
    fs: &'a dyn FileSystem,
}

impl Making<'_> {
    fn directory(&self, name: &str, (uid, gid): (u32, u32)) -> Result<InodeNo> {
        let caller = Caller { uid, gid, ..Caller::default() };
        let entry = self.fs.mkdir(&caller, self.fs.root(), name.as_bytes(), 0o755)?;
        self.fs.forget(entry.attr.ino, 1);
        Ok(entry.attr.ino)
    }

    /// A file of the directory's owners, with so many pieces of so many bytes and holes between.
    fn file(&self, dir: InodeNo, name: &str, no: u32, (pieces, len): (u64, usize)) -> Result<InodeNo> {
        let attr = self.fs.getattr(dir)?;
        let caller = Caller { uid: attr.uid, gid: attr.gid, ..Caller::default() };
        let ino = self.fs.mknod(&caller, dir, name.as_bytes(), 0o100_644, 0)?.attr.ino;
        self.fs.forget(ino, 1);
        for piece in 0..pieces {
            let offset = piece << 11;
            let mut bytes = vec![0; len];
            fill(FIRST + no, offset, &mut bytes);
            let written = self.fs.write(&caller, ino, offset, &bytes)?;
            assert_eq!(written, len, "there is room");
        }
        Ok(ino)
    }
}

/// Makes the files.
///
/// # Errors
/// Those of the file system.
pub(crate) fn populate(fs: &dyn FileSystem) -> Result<()> {
    let making = Making { fs };
    let root = Caller::default();
    let first = making.directory("m", (1, 11))?;
    making.file(first, "a", 1, (1, 6000))?;
    making.file(first, "s", 2, (8, 1024))?;
    let second = making.directory("w", (2, 12))?;
    making.file(second, "b", 3, (1, 10_240))?;
    let with_value = making.file(second, "x", 4, (1, 100))?;
    let mut value = vec![0; 600];
    fill(FIRST + 5, 0, &mut value);
    fs.setxattr(&root, with_value, b"user.a", &value, XattrSetMode::Set)?;
    fill(FIRST + 6, 0, &mut value);
    let caller = Caller { uid: 2, gid: 12, ..Caller::default() };
    let link = fs.symlink(&caller, second, b"l", &value[..200])?;
    fs.forget(link.attr.ino, 1);
    let limited = making.directory("t", (3, 13))?;
    making.file(limited, "c", 7, (1, 8192))?;
    let project = making.directory("p", (1, 11))?;
    fs.set_project(&root, project, PROJECT)?;
    let flags = fs.flags(project)?;
    fs.set_flags(&root, project, InodeFlags(flags.0 | InodeFlags::PROJINHERIT))?;
    making.file(project, "e", 8, (1, 5000))?;
    // Anybody may be in the way.
    let open = SetAttr { perm: Some(0o777), ..SetAttr::default() };
    fs.setattr(&root, fs.root(), &open).map(drop)
}

/// Limits those who may have little, on the volume that is not mounted.
///
/// # Errors
/// Those of the volume.
pub(crate) fn limit(volume: &dyn BlockDevice, now: Timestamp) -> Result<()> {
    LIMITED.into_iter().try_for_each(|(kind, id, limits)| set_limits(volume, (kind, id), limits, now))
}
