//! An inode as the medium has it: the first 128 bytes of the first block of its list.
//!
//! **Layout.** `MINO`, kind and permissions (16 bits at 4), names (32 at 8), owner, group, device (32 each from 12), size (64 at 24),
//! flags, generation (32 each from 32), times of access, contents, attributes and birth (96 each from 40), parent of a directory (64
//! at 88), bytes of extended attributes (32 at 96), its own number (64 at 100).

use fstitch_core::num::to_u64;
use fstitch_core::{Attr, Error, FileKind, InodeFlags, InodeNo, Le, Result, Structure, Timestamp};

use crate::layout::{TIME, XATTRS_MAX, put_time, time};

/// Bytes of an inode; extended attributes begin behind them.
pub(crate) const INODE: usize = 128;

const MAGIC: &[u8; 4] = b"MINO";
const TIMES: usize = 40;
const PARENT: usize = 88;
const XATTRS: usize = 96;
const NUMBER: usize = 100;

/// An inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inode {
    pub(crate) ino: InodeNo,
    pub(crate) kind: FileKind,
    pub(crate) perm: u16,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u32,
    /// Bytes of a file's contents or of a symbolic link's target.
    pub(crate) size: u64,
    pub(crate) flags: InodeFlags,
    pub(crate) generation: u32,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
    pub(crate) crtime: Timestamp,
    /// Where `..` of a directory leads.
    pub(crate) parent: InodeNo,
    /// Bytes of extended attributes as they are stored.
    pub(crate) xattr_bytes: u32,
}

impl Inode {
    /// Writes it over the beginning of its block.
    pub(crate) fn encode(&self, block: &mut [u8]) {
        block[..INODE].fill(0);
        block[..4].copy_from_slice(MAGIC);
        Le::put_u16(block, 4, self.kind.mode_bits() | self.perm);
        let words = [(8, self.nlink), (12, self.uid), (16, self.gid), (20, self.rdev)];
        words.into_iter().for_each(|(at, word)| Le::put_u32(block, at, word));
        Le::put_u64(block, 24, self.size);
        Le::put_u32(block, 32, self.flags.0);
        Le::put_u32(block, 36, self.generation);
        let times = [self.atime, self.mtime, self.ctime, self.crtime];
        times.into_iter().enumerate().for_each(|(n, time)| put_time(block, TIMES + n * TIME, time));
        Le::put_u64(block, PARENT, self.parent.get());
        Le::put_u32(block, XATTRS, self.xattr_bytes);
        Le::put_u64(block, NUMBER, self.ino.get());
    }

    /// The inode of a number, from its block.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where the block says what no inode is.
    pub(crate) fn decode(ino: InodeNo, block: &[u8]) -> Result<Self> {
        let damaged = |what: &str| Error::corrupt(Structure::Inode(ino.get()), None, what);
        if !block.starts_with(MAGIC) {
            return Err(damaged("its block does not say that it is one"));
        }
        if Le::u64(block, NUMBER) != ino.get() {
            return Err(damaged("its block is that of another one"));
        }
        let mode = Le::u16(block, 4);
        let kind = FileKind::from_mode(mode).ok_or_else(|| damaged("it is of no kind"))?;
        let time = |n: usize| time(block, TIMES + n * TIME).ok_or_else(|| damaged("a time is of no moment"));
        let xattr_bytes = Le::u32(block, XATTRS);
        if u64::from(xattr_bytes) > to_u64(XATTRS_MAX) {
            return Err(damaged("it has more extended attributes than there may be"));
        }
        Ok(Self {
            ino,
            kind,
            perm: mode & 0o7777,
            nlink: Le::u32(block, 8),
            uid: Le::u32(block, 12),
            gid: Le::u32(block, 16),
            rdev: Le::u32(block, 20),
            size: Le::u64(block, 24),
            flags: InodeFlags(Le::u32(block, 32)),
            generation: Le::u32(block, 36),
            atime: time(0)?,
            mtime: time(1)?,
            ctime: time(2)?,
            crtime: time(3)?,
            parent: InodeNo(Le::u64(block, PARENT)),
            xattr_bytes,
        })
    }

    /// Its attributes, with so many blocks of `block_size` bytes.
    pub(crate) fn attr(&self, blocks: u64, block_size: u32) -> Attr {
        let unit = u64::from(block_size);
        let size = if self.is_dir() { blocks.max(1) * unit } else { self.size };
        Attr {
            ino: self.ino,
            kind: self.kind,
            perm: self.perm,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size,
            blocks: blocks * (unit / 512),
            blksize: block_size,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            crtime: Some(self.crtime),
            generation: self.generation,
        }
    }

    /// As a rule sees it: no rule asks for a number of blocks.
    pub(crate) fn seen(&self) -> fstitch_posix::Inode {
        fstitch_posix::Inode { attr: self.attr(0, 512), flags: self.flags }
    }

    /// Whether it is a directory.
    pub(crate) fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Its contents change now.
    pub(crate) fn touch(&mut self, now: Timestamp) {
        (self.mtime, self.ctime) = (now, now);
    }
}

/// What tells the lives of a number apart: after a failure, a number of a list that was not stable is given again.
pub(crate) fn generation(now: Timestamp) -> u32 {
    let nanos = now.secs.unsigned_abs().wrapping_mul(1_000_000_000).wrapping_add(u64::from(now.nanos));
    let folded = (nanos ^ nanos >> 32) & u64::from(u32::MAX);
    u32::try_from(folded).expect("32 bits remain")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inode() -> Inode {
        let time = |n| Timestamp { secs: n, nanos: 5 };
        Inode {
            ino: InodeNo(77),
            kind: FileKind::CharDevice,
            perm: 0o4755,
            nlink: 3,
            uid: 1,
            gid: 2,
            rdev: 0x0102_0304,
            size: 1 << 60,
            flags: InodeFlags(InodeFlags::APPEND),
            generation: 9,
            atime: time(-1),
            mtime: time(2),
            ctime: time(3),
            crtime: time(4),
            parent: InodeNo(5),
            xattr_bytes: 100,
        }
    }

    #[test]
    fn an_inode_is_read_as_it_is_written() {
        let mut block = [0xee; 512];
        inode().encode(&mut block);
        assert_eq!(Inode::decode(InodeNo(77), &block).unwrap(), inode());
        assert_eq!(block[INODE..], [0xee; 512 - INODE]);
    }

    #[test]
    fn damage_is_told() {
        let damaged = |at: usize, byte: u8| {
            let mut block = [0; 512];
            inode().encode(&mut block);
            block[at] = byte;
            Inode::decode(InodeNo(77), &block).unwrap_err().to_string()
        };
        assert!(damaged(0, 0).contains("does not say"));
        assert!(damaged(5, 0).contains("no kind"));
        assert!(damaged(51, 0xff).contains("no moment"));
        assert!(damaged(99, 1).contains("more extended attributes"));
        assert!(damaged(100, 1).contains("another one"));
    }
}
