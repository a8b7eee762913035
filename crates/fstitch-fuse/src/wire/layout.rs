//! The structures of protocol 7.23 and later, and their numbers. Names are the kernel's without `fuse_` and `FUSE_`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The numbers of operations.
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const TMPFILE: u32 = 51;
}

/// What [`SetattrIn::valid`] says is set.
pub(crate) mod valid {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const CTIME: u32 = 1 << 10;
    /// The caller lacks `CAP_FSETID`: a change of length takes the set-id bits away.
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// What kernel and server can do, by the bits of the greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capabilities(pub u64);

impl Capabilities {
    pub(crate) const ASYNC_READ: Self = Self(1 << 0);
    pub(crate) const BIG_WRITES: Self = Self(1 << 5);
    pub(crate) const DONT_MASK: Self = Self(1 << 6);
    pub(crate) const HAS_IOCTL_DIR: Self = Self(1 << 11);
    pub(crate) const DO_READDIRPLUS: Self = Self(1 << 13);
    pub(crate) const READDIRPLUS_AUTO: Self = Self(1 << 14);
    pub(crate) const WRITEBACK_CACHE: Self = Self(1 << 16);
    pub(crate) const NO_OPEN_SUPPORT: Self = Self(1 << 17);
    pub(crate) const PARALLEL_DIROPS: Self = Self(1 << 18);
    pub(crate) const POSIX_ACL: Self = Self(1 << 20);
    pub(crate) const MAX_PAGES: Self = Self(1 << 22);
    pub(crate) const CACHE_SYMLINKS: Self = Self(1 << 23);
    pub(crate) const NO_OPENDIR_SUPPORT: Self = Self(1 << 24);
    pub(crate) const EXPLICIT_INVAL_DATA: Self = Self(1 << 25);
    pub(crate) const HANDLE_KILLPRIV_V2: Self = Self(1 << 28);
    /// The bits from 32 on are there.
    pub(crate) const INIT_EXT: Self = Self(1 << 30);
    pub(crate) const OVER_IO_URING: Self = Self(1 << 41);

    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Of both words of a greeting.
    pub(crate) fn of(low: u32, high: u32) -> Self {
        Self(u64::from(high) << 32 | u64::from(low))
    }

    /// The two words of a greeting.
    pub(crate) fn words(self) -> (u32, u32) {
        let word = |bits: u64| u32::try_from(bits & 0xffff_ffff).expect("masked");
        (word(self.0), word(self.0 >> 32))
    }
}

/// Before every request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct InHeader {
    /// Of the whole message, in bytes.
    pub len: u32,
    pub opcode: u32,
    /// What the answer refers to.
    pub unique: u64,
    pub nodeid: u64,
    pub uid: u32,
    pub gid: u32,
    /// The asking thread; 0 where nobody asks (write-back, read-ahead).
    pub pid: u32,
    pub padding: u32,
}

/// Before every answer and notice.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct OutHeader {
    /// Of the whole message, in bytes.
    pub len: u32,
    /// 0 or a negative `errno`; in a notice its positive number.
    pub error: i32,
    /// The request's; 0 in a notice.
    pub unique: u64,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct InitIn {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u32,
    /// Absent before 7.36, as the rest.
    pub flags2: u32,
    pub unused: [u32; 11],
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct InitOut {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u32,
    pub max_background: u16,
    pub congestion_threshold: u16,
    pub max_write: u32,
    /// Nanoseconds.
    pub time_gran: u32,
    pub max_pages: u16,
    pub map_alignment: u16,
    pub flags2: u32,
    pub max_stack_depth: u32,
    pub unused: [u32; 6],
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct SetattrIn {
    pub valid: u32,
    pub padding: u32,
    pub fh: u64,
    pub size: u64,
    pub lock_owner: u64,
    pub atime: i64,
    pub mtime: i64,
    pub ctime: i64,
    pub atimensec: u32,
    pub mtimensec: u32,
    pub ctimensec: u32,
    pub mode: u32,
    pub unused4: u32,
    pub uid: u32,
    pub gid: u32,
    pub unused5: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct MknodIn {
    pub mode: u32,
    pub rdev: u32,
    pub umask: u32,
    pub padding: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct MkdirIn {
    pub mode: u32,
    pub umask: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct Rename2In {
    pub newdir: u64,
    pub flags: u32,
    pub padding: u32,
}

/// Of making and opening in one.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct CreateIn {
    pub flags: u32,
    pub mode: u32,
    pub umask: u32,
    pub open_flags: u32,
}

/// Also of reading directories.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct ReadIn {
    pub fh: u64,
    pub offset: u64,
    pub size: u32,
    pub read_flags: u32,
    pub lock_owner: u64,
    pub flags: u32,
    pub padding: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct WriteIn {
    pub fh: u64,
    pub offset: u64,
    pub size: u32,
    pub write_flags: u32,
    pub lock_owner: u64,
    /// Of the open file: `O_SYNC` and others.
    pub flags: i32,
    pub padding: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct FsyncIn {
    pub fh: u64,
    pub fsync_flags: u32,
    pub padding: u32,
}

/// The form without `FUSE_SETXATTR_EXT`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct SetxattrIn {
    pub size: u32,
    pub flags: u32,
}

/// Also of listing attributes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct GetxattrIn {
    pub size: u32,
    pub padding: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct IoctlIn {
    pub fh: u64,
    pub flags: u32,
    pub cmd: u32,
    pub arg: u64,
    pub in_size: u32,
    pub out_size: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct FallocateIn {
    pub fh: u64,
    pub offset: u64,
    pub length: u64,
    pub mode: u32,
    pub padding: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct LseekIn {
    pub fh: u64,
    pub offset: u64,
    pub whence: u32,
    pub padding: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct CopyFileRangeIn {
    pub fh_in: u64,
    pub off_in: u64,
    pub nodeid_out: u64,
    pub fh_out: u64,
    pub off_out: u64,
    pub len: u64,
    pub flags: u64,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct BatchForgetIn {
    pub count: u32,
    pub dummy: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct ForgetOne {
    pub nodeid: u64,
    pub nlookup: u64,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct Attr {
    pub ino: u64,
    pub size: u64,
    /// Of 512 bytes each.
    pub blocks: u64,
    pub atime: i64,
    pub mtime: i64,
    pub ctime: i64,
    pub atimensec: u32,
    pub mtimensec: u32,
    pub ctimensec: u32,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub blksize: u32,
    pub flags: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct EntryOut {
    /// 0 says that the name does not exist.
    pub nodeid: u64,
    pub generation: u64,
    pub entry_valid: u64,
    pub attr_valid: u64,
    pub entry_valid_nsec: u32,
    pub attr_valid_nsec: u32,
    pub attr: Attr,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct AttrOut {
    pub attr_valid: u64,
    pub attr_valid_nsec: u32,
    pub dummy: u32,
    pub attr: Attr,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct OpenOut {
    pub fh: u64,
    pub open_flags: u32,
    pub backing_id: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct StatfsOut {
    pub blocks: u64,
    pub bfree: u64,
    pub bavail: u64,
    pub files: u64,
    pub ffree: u64,
    pub bsize: u32,
    pub namelen: u32,
    pub frsize: u32,
    pub padding: u32,
    pub spare: [u32; 6],
}

/// Before each name of a listing. Names are padded to 8 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct DirentOut {
    pub ino: u64,
    /// Where the listing goes on after this name.
    pub off: u64,
    pub namelen: u32,
    /// The file type's bits of `st_mode`, shifted down by 12.
    pub kind: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lengths that the kernel's own static checks state.
    #[test]
    fn structures_have_the_lengths_of_the_protocol() {
        assert_eq!((size_of::<InHeader>(), size_of::<OutHeader>()), (40, 16));
        assert_eq!((size_of::<InitIn>(), size_of::<InitOut>()), (64, 64));
        assert_eq!((size_of::<Attr>(), size_of::<EntryOut>(), size_of::<AttrOut>()), (88, 128, 104));
        assert_eq!((size_of::<SetattrIn>(), size_of::<ReadIn>(), size_of::<WriteIn>()), (88, 40, 40));
        assert_eq!((size_of::<StatfsOut>(), size_of::<DirentOut>(), size_of::<IoctlIn>()), (80, 24, 32));
    }

    #[test]
    fn capabilities_keep_their_bits_in_two_words() {
        let both = Capabilities::INIT_EXT.with(Capabilities::OVER_IO_URING);
        assert_eq!(both.words(), (1 << 30, 1 << 9));
        assert_eq!(Capabilities::of(1 << 30, 1 << 9), both);
        assert!(both.has(Capabilities::INIT_EXT) && !both.has(Capabilities::POSIX_ACL));
    }
}
