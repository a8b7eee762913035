//! Inodes.

use fstitch_core::num::to_u64;
use fstitch_core::{Attr, Error, FileKind, InodeFlags, InodeNo, Le, Result, Structure, Timestamp};

use super::pointer::{Fork, Ref};
use super::{
    BLOCK, BLOCK_BYTES, HEIGHT_MAX, NANOS_END, ROOT_INO, SIZE_MAX, SYMLINK_MAX, XATTRS_MAX, put_time, time,
};

/// Bytes of an inode.
pub const INODE_BYTES: usize = 256;
/// Inodes in a block.
pub const INODES_IN_BLOCK: u64 = 16;
/// Bytes of a target that the inode itself holds.
pub const INLINE: usize = 64;
/// The largest depth of a directory.
pub const DEPTH_MAX: u8 = 32;

/// An inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Its number.
    pub ino: u64,
    /// What it is.
    pub kind: FileKind,
    /// Permission bits.
    pub perm: u16,
    /// Names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// Life of its number.
    pub generation: u32,
    /// `chattr` flags.
    pub flags: u32,
    /// Depth of a directory.
    pub depth: u8,
    /// Bytes; of a directory names.
    pub size: u64,
    /// Leaves of the contents that are there.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of contents.
    pub mtime: Timestamp,
    /// Last change of attributes.
    pub ctime: Timestamp,
    /// Creation.
    pub crtime: Timestamp,
    /// Contents.
    pub data: Fork,
    /// Attributes.
    pub xattrs: Fork,
    /// The directory that a directory is in.
    pub parent: u64,
    /// In the list of inodes without names: the one before.
    pub before: u64,
    /// The one behind.
    pub behind: u64,
    /// Bytes of the attributes.
    pub xattrs_len: u32,
    /// Target of a short symbolic link.
    pub inline: [u8; INLINE],
}

impl Inode {
    /// One of root's with one life, without names, contents and attributes, made now.
    #[must_use]
    pub fn bare(ino: u64, kind: FileKind, perm: u16, now: Timestamp) -> Self {
        Self {
            ino,
            kind,
            perm,
            nlink: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            generation: 1,
            flags: 0,
            depth: 0,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            data: Fork::default(),
            xattrs: Fork::default(),
            parent: 0,
            before: 0,
            behind: 0,
            xattrs_len: 0,
            inline: [0; INLINE],
        }
    }

    /// An empty directory in the root directory, or that one.
    #[must_use]
    pub fn directory(ino: u64, perm: u16, now: Timestamp) -> Self {
        Self { nlink: 2, parent: ROOT_INO, ..Self::bare(ino, FileKind::Directory, perm, now) }
    }
}

fn damaged(ino: u64, problem: impl Into<String>) -> Error {
    Error::corrupt(Structure::Inode(ino), None, problem)
}

/// Where the inode of a number is in its leaf.
#[must_use]
pub fn place(ino: u64) -> (u64, usize) {
    (ino / INODES_IN_BLOCK, fstitch_core::num::to_usize(ino % INODES_IN_BLOCK) * INODE_BYTES)
}

/// A free inode: which life its next one is, and the next free one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeInode {
    /// Lives so far.
    pub generation: u32,
    /// The next free one, or 0.
    pub next: u64,
}

impl FreeInode {
    /// Writes it over an inode.
    pub fn write(self, bytes: &mut [u8]) {
        bytes[..INODE_BYTES].fill(0);
        Le::put_u32(bytes, 20, self.generation);
        Le::put_u64(bytes, 176, self.next);
    }
}

/// An inode's bytes lead to nothing any more.
pub fn clear_forks(bytes: &mut [u8]) {
    if Le::u16(bytes, 0) != 0 {
        put_forks(bytes, Fork::default(), Fork::default());
    }
}

/// They lead there.
pub fn put_forks(bytes: &mut [u8], data: Fork, xattrs: Fork) {
    (bytes[2], bytes[3]) = (data.height, xattrs.height);
    data.root.write(bytes, 96);
    xattrs.root.write(bytes, 128);
}

/// It has so many leaves of contents.
pub fn put_blocks(bytes: &mut [u8], blocks: u64) {
    Le::put_u64(bytes, 40, blocks);
}

/// What an inode's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "it is looked at where it was made, and never kept")]
pub enum Slot {
    /// Nobody's.
    Free(FreeInode),
    /// An inode.
    Used(Inode),
}

impl Slot {
    /// Takes an inode's bytes apart.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn decode(bytes: &[u8], ino: u64) -> Result<Self> {
        let mode = Le::u16(bytes, 0);
        if mode == 0 {
            let free = FreeInode { generation: Le::u32(bytes, 20), next: Le::u64(bytes, 176) };
            return Ok(Self::Free(free));
        }
        let kind = FileKind::from_mode(mode).ok_or_else(|| damaged(ino, format!("mode {mode:#o}")))?;
        let inode = Inode {
            ino,
            kind,
            perm: mode & 0o7777,
            nlink: Le::u32(bytes, 4),
            uid: Le::u32(bytes, 8),
            gid: Le::u32(bytes, 12),
            rdev: Le::u32(bytes, 16),
            generation: Le::u32(bytes, 20),
            flags: Le::u32(bytes, 24),
            depth: bytes[29],
            size: Le::u64(bytes, 32),
            blocks: Le::u64(bytes, 40),
            atime: time(bytes, 48, 80),
            mtime: time(bytes, 56, 84),
            ctime: time(bytes, 64, 88),
            crtime: time(bytes, 72, 92),
            data: Fork { root: Ref::read(bytes, 96), height: bytes[2] },
            xattrs: Fork { root: Ref::read(bytes, 128), height: bytes[3] },
            parent: Le::u64(bytes, 160),
            before: Le::u64(bytes, 168),
            behind: Le::u64(bytes, 176),
            xattrs_len: Le::u32(bytes, 184),
            inline: bytes[192..256].try_into().expect("64 bytes"),
        };
        inode.check(bytes)?;
        Ok(Self::Used(inode))
    }
}

impl Inode {
    fn check(&self, bytes: &[u8]) -> Result<()> {
        let ino = self.ino;
        if self.data.height > HEIGHT_MAX || self.xattrs.height > HEIGHT_MAX || self.depth > DEPTH_MAX {
            return Err(damaged(ino, "a tree is higher than trees are"));
        }
        if self.size > SIZE_MAX {
            return Err(damaged(ino, format!("{} bytes", self.size)));
        }
        if bytes[28] != 0 {
            return Err(damaged(ino, format!("compression {}", bytes[28])));
        }
        if fstitch_core::num::to_usize(self.xattrs_len) > XATTRS_MAX {
            return Err(damaged(ino, format!("{} bytes of attributes", self.xattrs_len)));
        }
        if self.kind == FileKind::Symlink && (self.size == 0 || self.size > to_u64(SYMLINK_MAX)) {
            return Err(damaged(ino, format!("a target of {} bytes", self.size)));
        }
        if [self.atime, self.mtime, self.ctime, self.crtime].iter().any(|time| time.nanos >= NANOS_END) {
            return Err(damaged(ino, "a time with more nanoseconds than a second has"));
        }
        Ok(())
    }

    /// Writes it over what was in its place.
    pub fn write(&self, bytes: &mut [u8]) {
        debug_assert!(bytes.len() <= BLOCK, "it is in a block");
        bytes[..INODE_BYTES].fill(0);
        Le::put_u16(bytes, 0, self.kind.mode_bits() | self.perm);
        (bytes[2], bytes[3], bytes[29]) = (self.data.height, self.xattrs.height, self.depth);
        for (at, value) in [
            (4, self.nlink),
            (8, self.uid),
            (12, self.gid),
            (16, self.rdev),
            (20, self.generation),
            (24, self.flags),
            (184, self.xattrs_len),
        ] {
            Le::put_u32(bytes, at, value);
        }
        for (at, value) in
            [(32, self.size), (40, self.blocks), (160, self.parent), (168, self.before), (176, self.behind)]
        {
            Le::put_u64(bytes, at, value);
        }
        put_time(bytes, 48, 80, self.atime);
        put_time(bytes, 56, 84, self.mtime);
        put_time(bytes, 64, 88, self.ctime);
        put_time(bytes, 72, 92, self.crtime);
        self.data.root.write(bytes, 96);
        self.xattrs.root.write(bytes, 128);
        bytes[192..256].copy_from_slice(&self.inline);
    }

    /// As everybody sees it, under the number that it has outside.
    #[must_use]
    pub fn attr(&self, outside: InodeNo) -> Attr {
        let size = match self.kind {
            FileKind::Directory => self.blocks.max(1).saturating_mul(BLOCK_BYTES),
            _ => self.size,
        };
        Attr {
            ino: outside,
            kind: self.kind,
            perm: self.perm,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size,
            blocks: self.blocks.saturating_mul(BLOCK_BYTES / 512),
            blksize: super::BLOCK_SIZE,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            crtime: Some(self.crtime),
            generation: self.generation,
        }
    }

    /// As a rule sees it.
    #[must_use]
    pub fn seen(&self) -> fstitch_posix::Inode {
        fstitch_posix::Inode { attr: self.attr(InodeNo(self.ino)), flags: InodeFlags(self.flags) }
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Whether its target is in the inode.
    #[must_use]
    pub fn is_inline(&self) -> bool {
        self.kind == FileKind::Symlink && self.size <= to_u64(INLINE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inode() -> Inode {
        let time = |secs| Timestamp { secs, nanos: 9 };
        Inode {
            nlink: 2,
            uid: 3,
            gid: 4,
            generation: 5,
            flags: 0x80,
            size: 6,
            blocks: 1,
            mtime: time(2),
            ctime: time(3),
            crtime: time(4),
            data: Fork { root: Ref { block: 44, birth: 1, sum: 2, flags: 0, extra: 0 }, height: 0 },
            ..Inode::bare(17, FileKind::Regular, 0o640, time(1))
        }
    }

    #[test]
    fn inodes_are_read_as_they_are_written() {
        let mut bytes = [1; INODE_BYTES];
        inode().write(&mut bytes);
        assert_eq!(Slot::decode(&bytes, 17).unwrap(), Slot::Used(inode()));
        let free = FreeInode { generation: 6, next: 18 };
        free.write(&mut bytes);
        assert_eq!(Slot::decode(&bytes, 17).unwrap(), Slot::Free(free));
        assert_eq!(place(17), (1, 256));
    }

    #[test]
    fn what_breaks_a_rule_is_damage() {
        let later = Timestamp { secs: 1, nanos: NANOS_END };
        for bad in [
            Inode { size: u64::MAX, ..inode() },
            Inode { depth: 33, ..inode() },
            Inode { atime: later, ..inode() },
            Inode { xattrs_len: 65_537, ..inode() },
            Inode { kind: FileKind::Symlink, size: 5000, ..inode() },
        ] {
            let mut bytes = [0; INODE_BYTES];
            bad.write(&mut bytes);
            assert!(matches!(Slot::decode(&bytes, 17), Err(Error::Corrupt(_))), "{bad:?}");
        }
    }
}
