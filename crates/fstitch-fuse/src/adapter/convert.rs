//! Numbers, times, kinds and owners, from the kernel's terms to ours and back.

use std::time::Duration;

use fstitch_core::num::to_usize;
use fstitch_core::{Attr, Caller, FileKind, InodeNo, SetTime, StatFs, Timestamp};

use crate::OwnerMap;
use crate::wire::{self, AttrOut, EntryOut, InHeader, Node, StatfsOut};

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
    pub(super) fn ino(&self, node: Node) -> InodeNo {
        InodeNo(self.swap(node.0))
    }

    /// The kernel's number for the file system's.
    pub(super) fn node(&self, ino: InodeNo) -> Node {
        Node(self.swap(ino.get()))
    }

    fn swap(&self, no: u64) -> u64 {
        match (no, self.root.get()) {
            (1, root) => root,
            (no, root) if no == root => 1,
            (no, _) => no,
        }
    }

    pub(super) fn caller(&self, from: &InHeader, umask: u32) -> Caller {
        let (uid, gid) = self.owners.store(from.uid, from.gid);
        Caller { uid, gid, tid: from.pid, umask: bits16(umask) }
    }

    /// Attributes as `stat` shows them: the root keeps its own number.
    fn attr(&self, attr: &Attr) -> wire::Attr {
        let (uid, gid) = self.owners.show(attr.uid, attr.gid);
        wire::Attr {
            ino: attr.ino.get(),
            size: attr.size,
            blocks: attr.blocks,
            atime: attr.atime.secs,
            mtime: attr.mtime.secs,
            ctime: attr.ctime.secs,
            atimensec: attr.atime.nanos,
            mtimensec: attr.mtime.nanos,
            ctimensec: attr.ctime.nanos,
            mode: type_bits(attr.kind) << 12 | u32::from(attr.perm),
            nlink: attr.nlink,
            uid,
            gid,
            rdev: attr.rdev,
            blksize: attr.blksize,
            flags: 0,
        }
    }

    pub(super) fn attr_out(&self, attr: &Attr) -> AttrOut {
        let ttl = self.ttl;
        AttrOut {
            attr_valid: ttl.as_secs(),
            attr_valid_nsec: ttl.subsec_nanos(),
            dummy: 0,
            attr: self.attr(attr),
        }
    }

    /// An entry, whose number is also the kernel's handle on the inode.
    pub(super) fn entry(&self, attr: &Attr) -> EntryOut {
        let node = self.node(attr.ino).0;
        EntryOut {
            nodeid: node,
            generation: u64::from(attr.generation),
            attr: wire::Attr { ino: node, ..self.attr(attr) },
            ..self.absent()
        }
    }

    /// An entry that the kernel counts no reference for: it takes only number and kind.
    pub(super) fn uncounted(&self, attr: &Attr) -> EntryOut {
        let attr = self.attr(attr);
        EntryOut { nodeid: attr.ino, attr, ..self.absent() }
    }

    /// What says that a name does not exist, so that the kernel remembers it.
    pub(super) fn absent(&self) -> EntryOut {
        let (secs, nanos) = (self.ttl.as_secs(), self.ttl.subsec_nanos());
        EntryOut {
            entry_valid: secs,
            attr_valid: secs,
            entry_valid_nsec: nanos,
            attr_valid_nsec: nanos,
            ..EntryOut::default()
        }
    }
}

/// The low 16 bits, which hold all of `st_mode` and of a umask.
/// A length that came from the kernel as a word.
pub(super) fn wide(len: u32) -> usize {
    to_usize(len)
}

pub(super) fn bits16(mode: u32) -> u16 {
    u16::try_from(mode & 0xffff).expect("masked")
}

/// The file type's bits of `st_mode`, shifted down by 12.
pub(super) fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::Fifo => 1,
        FileKind::CharDevice => 2,
        FileKind::Directory => 4,
        FileKind::BlockDevice => 6,
        FileKind::Regular => 8,
        FileKind::Symlink => 10,
        FileKind::Socket => 12,
    }
}

/// Seconds and nanoseconds, or `None` for now.
pub(super) fn set_time(time: Option<(i64, u32)>) -> SetTime {
    time.map_or(SetTime::Now, |(secs, nanos)| SetTime::At(Timestamp { secs, nanos }))
}

pub(super) fn statfs(s: &StatFs) -> StatfsOut {
    StatfsOut {
        blocks: s.blocks,
        bfree: s.blocks_free,
        bavail: s.blocks_available,
        files: s.inodes,
        ffree: s.inodes_free,
        bsize: s.block_size,
        namelen: s.name_max,
        frsize: s.block_size,
        ..StatfsOut::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_and_inode_1_change_places() {
        let view = View { root: InodeNo(2), ttl: Duration::ZERO, owners: OwnerMap::default() };
        assert_eq!(view.ino(Node(1)), InodeNo(2));
        assert_eq!(view.node(InodeNo(2)), Node(1));
        assert_eq!(view.node(InodeNo(1)), Node(2));
        assert_eq!(view.ino(view.node(InodeNo(77))), InodeNo(77));
    }
}
