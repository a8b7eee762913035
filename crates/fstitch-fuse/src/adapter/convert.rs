//! Numbers, times, kinds and owners, from the kernel's terms to ours and back.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fstitch_core::{Attr, Caller, FileKind, InodeNo, SetTime, Timestamp};
use fuser::{FileAttr, FileType, Generation, INodeNo, Request, TimeOrNow};

use crate::OwnerMap;

/// How one mount shows inodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    /// The file system's number of the root directory, which is 1 for the kernel.
    pub root: InodeNo,
    /// How long the kernel may keep attributes and names.
    pub ttl: Duration,
    /// Which owners users see.
    pub owners: OwnerMap,
}

impl View {
    /// The file system's number for the kernel's. The root and whatever inode has number 1 change places.
    pub(super) fn ino(&self, node: INodeNo) -> InodeNo {
        InodeNo(self.swap(node.0))
    }

    /// The kernel's number for the file system's.
    pub(super) fn node(&self, ino: InodeNo) -> INodeNo {
        INodeNo(self.swap(ino.get()))
    }

    fn swap(&self, no: u64) -> u64 {
        match (no, self.root.get()) {
            (1, root) => root,
            (no, root) if no == root => 1,
            (no, _) => no,
        }
    }

    pub(super) fn caller(&self, request: &Request, umask: u32) -> Caller {
        let (uid, gid) = self.owners.store(request.uid(), request.gid());
        Caller { uid, gid, tid: request.pid(), umask: bits16(umask) }
    }

    /// Attributes as `stat` shows them: the root keeps its own number.
    pub(super) fn attr(&self, attr: &Attr) -> FileAttr {
        let (uid, gid) = self.owners.show(attr.uid, attr.gid);
        FileAttr {
            ino: INodeNo(attr.ino.get()),
            size: attr.size,
            blocks: attr.blocks,
            atime: system_time(attr.atime),
            mtime: system_time(attr.mtime),
            ctime: system_time(attr.ctime),
            crtime: UNIX_EPOCH,
            kind: file_type(attr.kind),
            perm: attr.perm,
            nlink: attr.nlink,
            uid,
            gid,
            rdev: attr.rdev,
            blksize: attr.blksize,
            flags: 0,
        }
    }

    /// Attributes of an entry, whose number is also the kernel's handle on the inode.
    pub(super) fn entry(&self, attr: &Attr) -> FileAttr {
        FileAttr { ino: self.node(attr.ino), ..self.attr(attr) }
    }

    /// What says that a name does not exist, so that the kernel remembers it.
    pub(super) fn absent(&self) -> FileAttr {
        FileAttr {
            ino: INodeNo(0),
            size: 0,
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: FileType::RegularFile,
            perm: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 0,
            flags: 0,
        }
    }
}

pub(super) fn generation(attr: &Attr) -> Generation {
    Generation(u64::from(attr.generation))
}

/// The low 16 bits, which hold all of `st_mode` and of a umask.
pub(super) fn bits16(mode: u32) -> u16 {
    u16::try_from(mode & 0xffff).expect("masked")
}

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
    }
}

/// Saturates at the ends of what the library's type holds.
fn system_time(time: Timestamp) -> SystemTime {
    let whole = Duration::from_secs(time.secs.unsigned_abs());
    let at = if time.secs >= 0 { UNIX_EPOCH.checked_add(whole) } else { UNIX_EPOCH.checked_sub(whole) };
    at.and_then(|at| at.checked_add(Duration::from_nanos(u64::from(time.nanos)))).unwrap_or(UNIX_EPOCH)
}

/// A time that the kernel sent. For times before the epoch fuser 0.18 subtracts the nanoseconds that it should
/// add; the sum is taken apart here in the same way, which restores what was sent.
fn timestamp(time: SystemTime) -> Timestamp {
    let secs = |d: Duration| i64::try_from(d.as_secs()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp { secs: secs(after), nanos: after.subsec_nanos() },
        Err(before) => {
            let before = before.duration();
            Timestamp { secs: -secs(before), nanos: before.subsec_nanos() }
        }
    }
}

pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(timestamp(time)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_and_inode_1_change_places() {
        let view = View { root: InodeNo(2), ttl: Duration::ZERO, owners: OwnerMap::default() };
        assert_eq!(view.ino(INodeNo(1)), InodeNo(2));
        assert_eq!(view.node(InodeNo(2)), INodeNo(1));
        assert_eq!(view.node(InodeNo(1)), INodeNo(2));
        assert_eq!(view.ino(view.node(InodeNo(77))), InodeNo(77));
    }

    #[test]
    fn times_before_the_epoch_keep_their_nanoseconds() {
        let at = Timestamp { secs: -2, nanos: 500_000_000 };
        assert_eq!(UNIX_EPOCH.duration_since(system_time(at)).unwrap(), Duration::from_millis(1500));
        // What the library makes of (-2 s, 500 ms).
        let received = UNIX_EPOCH - Duration::from_millis(2500);
        assert_eq!(timestamp(received), at);
    }
}
