//! The mounted file system, as the FUSE front end, the command line and the laboratory see it.

use std::time::Duration;

use crate::groups::{GroupCall, GroupId};
use crate::{CheckReport, Errno, Error, InodeNo, Result, Timestamp};

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl FileKind {
    /// The `S_IFMT` bits of `st_mode`.
    #[must_use]
    pub const fn mode_bits(self) -> u16 {
        match self {
            Self::Fifo => 0o010_000,
            Self::CharDevice => 0o020_000,
            Self::Directory => 0o040_000,
            Self::BlockDevice => 0o060_000,
            Self::Regular => 0o100_000,
            Self::Symlink => 0o120_000,
            Self::Socket => 0o140_000,
        }
    }

    /// The kind that the `S_IFMT` bits of `mode` name.
    #[must_use]
    pub const fn from_mode(mode: u16) -> Option<Self> {
        match mode & 0o170_000 {
            0o010_000 => Some(Self::Fifo),
            0o020_000 => Some(Self::CharDevice),
            0o040_000 => Some(Self::Directory),
            0o060_000 => Some(Self::BlockDevice),
            0o100_000 => Some(Self::Regular),
            0o120_000 => Some(Self::Symlink),
            0o140_000 => Some(Self::Socket),
            _ => None,
        }
    }
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Caller {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// The **thread** id of the caller, 0 where unknown (another pid namespace, library use).
    pub tid: u32,
    /// The caller's umask, applied by the file system to new inodes where no default ACL replaces it.
    pub umask: u16,
}

/// An inode's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The inode.
    pub ino: InodeNo,
    /// What it is.
    pub kind: FileKind,
    /// The 12 permission bits (set-id and sticky included), without the kind.
    pub perm: u16,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of device inodes in Linux's 32-bit encoding (`makedev` for minors up to 20 bits), else 0.
    pub rdev: u32,
    /// Length in bytes.
    pub size: u64,
    /// Storage used, in units of 512 bytes.
    pub blocks: u64,
    /// Preferred I/O size in bytes.
    pub blksize: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of contents.
    pub mtime: Timestamp,
    /// Last change of attributes.
    pub ctime: Timestamp,
    /// Creation, where the format stores it.
    pub crtime: Option<Timestamp>,
    /// Inode generation, telling apart successive lives of one number.
    pub generation: u32,
}

impl Attr {
    /// The inode for good: its number may belong to another one later.
    #[must_use]
    pub const fn id(&self) -> InodeId {
        InodeId { ino: self.ino, generation: self.generation }
    }
}

/// One life of an inode number. Whoever remembers an inode without holding a reference remembers this: the inode may be
/// freed, and its number given to another one, of whatever kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId {
    /// The number.
    pub ino: InodeNo,
    /// The life.
    pub generation: u32,
}

/// A name's inode. **Every `Entry` returned holds one reference** on the inode, which the caller gives back
/// with [`FileSystem::forget`]; while references remain, an unlinked inode keeps its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The inode's attributes.
    pub attr: Attr,
}

/// A name in a directory, as `readdir` lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The inode it names.
    pub ino: InodeNo,
    /// What that is, where the directory says so.
    pub kind: Option<FileKind>,
    /// The name, without `/` and NUL.
    pub name: &'a [u8],
    /// Pass this to continue behind this entry. Stays valid while the directory changes.
    pub next: u64,
}

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the call.
    Now,
    /// This time.
    At(Timestamp),
}

/// The attributes to change; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// The 12 permission bits.
    pub perm: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes: truncates, or extends with zeros.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of contents.
    pub mtime: Option<SetTime>,
    /// Last change of attributes; by default the time of the call.
    pub ctime: Option<Timestamp>,
}

/// How `rename` treats an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RenameMode {
    /// Replace it.
    Replace,
    /// Fail with `EEXIST`.
    NoReplace,
    /// Swap both names.
    Exchange,
}

/// What `fallocate` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FallocateMode {
    /// Allocate; grow the file if the range ends beyond it.
    Allocate,
    /// Allocate without changing the size.
    AllocateKeepSize,
    /// Free whole blocks in the range, zero the rest; the size stays.
    PunchHole,
    /// Zero the range; grow the file if the range ends beyond it.
    ZeroRange,
    /// Zero the range; the size stays.
    ZeroRangeKeepSize,
    /// Take the range, whole blocks before the end, out of the file: what is behind it comes in its place.
    CollapseRange,
    /// Put a hole of whole blocks into the file: what is there and behind it moves on.
    InsertRange,
}

impl FallocateMode {
    /// Whether what is behind the range moves.
    #[must_use]
    pub const fn shifts(self) -> bool {
        matches!(self, Self::CollapseRange | Self::InsertRange)
    }
}

/// What `lseek` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekFrom {
    /// The next byte with storage.
    Data,
    /// The next byte without.
    Hole,
}

/// How `setxattr` treats an existing attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrSetMode {
    /// Create or replace.
    Set,
    /// Fail with `EEXIST` if it exists.
    Create,
    /// Fail with `ENODATA` if it does not exist.
    Replace,
}

/// Space on the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StatFs {
    /// Bytes per block.
    pub block_size: u32,
    /// Blocks for files.
    pub blocks: u64,
    /// Free blocks, the reserved ones included.
    pub blocks_free: u64,
    /// Free blocks for everybody.
    pub blocks_available: u64,
    /// Inodes.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
    /// Longest name, in bytes.
    pub name_max: u32,
}

/// `chattr` flags, with Linux's `FS_*_FL` values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct InodeFlags(pub u32);

impl InodeFlags {
    /// Compressed, where the format can.
    pub const COMPR: u32 = 0x4;
    /// Write synchronously.
    pub const SYNC: u32 = 0x8;
    /// May not change.
    pub const IMMUTABLE: u32 = 0x10;
    /// May only grow.
    pub const APPEND: u32 = 0x20;
    /// Left out by dump programs.
    pub const NODUMP: u32 = 0x40;
    /// Reading does not change the access time.
    pub const NOATIME: u32 = 0x80;
    /// A directory with a hash-tree index (read only).
    pub const INDEX: u32 = 0x1000;
    /// Directory changes are synchronous.
    pub const DIRSYNC: u32 = 0x1_0000;
    /// A directory whose children start elsewhere on the disk.
    pub const TOPDIR: u32 = 0x2_0000;
    /// A directory whose children belong to its project.
    pub const PROJINHERIT: u32 = 0x2000_0000;

    /// Whether all bits of `flag` are set.
    #[must_use]
    pub const fn has(self, flag: u32) -> bool {
        self.0 & flag == flag
    }
}

/// A mounted file system. Methods may be called from several threads.
///
/// Permissions are the caller's business (the kernel checks them before FUSE requests arrive); the file
/// system enforces what only it knows: kinds, limits, reserved blocks, append-only and immutable files, and
/// the inheritance of groups and default ACLs.
///
/// # Errors
/// Failures carry the errno that the operation must answer ([`Error::errno`]).
pub trait FileSystem: Send + Sync {
    /// The root directory's inode. It needs no reference.
    fn root(&self) -> InodeNo;

    /// Finds `name` in `parent`; `.` and `..` are answered too. The entry holds one reference.
    fn lookup(&self, parent: InodeNo, name: &[u8]) -> Result<Entry>;
    /// Gives back `count` references. The last one of an unlinked inode frees it. Never fails: an error
    /// that happens while freeing is kept and reported by the next `sync`.
    fn forget(&self, ino: InodeNo, count: u64);
    /// The inode's attributes.
    fn getattr(&self, ino: InodeNo) -> Result<Attr>;
    /// Changes attributes and returns the new ones.
    fn setattr(&self, caller: &Caller, ino: InodeNo, set: &SetAttr) -> Result<Attr>;
    /// The target of a symbolic link.
    fn readlink(&self, ino: InodeNo) -> Result<Vec<u8>>;

    /// Makes a regular file, device, fifo or socket. `mode` carries the kind and the permission bits.
    fn mknod(&self, caller: &Caller, parent: InodeNo, name: &[u8], mode: u16, rdev: u32) -> Result<Entry>;
    /// Makes a directory.
    fn mkdir(&self, caller: &Caller, parent: InodeNo, name: &[u8], perm: u16) -> Result<Entry>;
    /// Makes a symbolic link.
    fn symlink(&self, caller: &Caller, parent: InodeNo, name: &[u8], target: &[u8]) -> Result<Entry>;
    /// Gives `ino` another name.
    fn link(&self, caller: &Caller, ino: InodeNo, parent: InodeNo, name: &[u8]) -> Result<Entry>;
    /// Makes a regular file without a name, which `link` may name later.
    fn tmpfile(&self, caller: &Caller, parent: InodeNo, perm: u16) -> Result<Entry>;
    /// Removes a name of anything but a directory.
    fn unlink(&self, caller: &Caller, parent: InodeNo, name: &[u8]) -> Result<()>;
    /// Removes an empty directory.
    fn rmdir(&self, caller: &Caller, parent: InodeNo, name: &[u8]) -> Result<()>;
    /// Moves a name.
    fn rename(
        &self,
        caller: &Caller,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        mode: RenameMode,
    ) -> Result<()>;

    /// Reads up to `buf.len()` bytes; fewer only at the end of the file.
    fn read(&self, ino: InodeNo, offset: u64, buf: &mut [u8]) -> Result<usize>;
    /// Writes all of `data`, or as much as fits before the volume is full; at least one byte or an error.
    fn write(&self, caller: &Caller, ino: InodeNo, offset: u64, data: &[u8]) -> Result<usize>;
    /// Writes contents that were accepted from a program some time ago, such as pages of the kernel's write-back cache. Permissions and
    /// privileges were looked at then. Pages begin before the end that was appended to, so an append-only file takes what only repeats
    /// its bytes or fills in zeros. The file's times change if `stamps`; otherwise somebody says them.
    fn write_back(&self, ino: InodeNo, offset: u64, data: &[u8], stamps: bool) -> Result<usize>;
    /// Lets bytes of one file be bytes of another one, or of itself elsewhere, without copying them: both share blocks till one of them is
    /// written. Returns how many bytes were shared, from the start: where nothing can be shared in this way, what is left is the
    /// caller's to copy.
    ///
    /// # Errors
    /// `ENOSYS` if files of this system never share; `EOPNOTSUPP` if these bytes cannot, because of where they begin and end.
    fn share(&self, caller: &Caller, from: (InodeNo, u64), to: (InodeNo, u64), len: u64) -> Result<u64> {
        let _ = (caller, from, to, len);
        Err(Errno::NOSYS.into())
    }
    /// Says how long a new, empty file will be that is filled at once, from its start to its end and by nobody else: a format may
    /// find room for it in one piece then. What is said binds nobody; where something else comes, it only helps less.
    fn expect(&self, ino: InodeNo, size: u64) -> Result<()> {
        let _ = (ino, size);
        Ok(())
    }
    /// Allocates, punches or zeroes a range, takes one out or puts one in.
    fn fallocate(
        &self,
        caller: &Caller,
        ino: InodeNo,
        offset: u64,
        len: u64,
        mode: FallocateMode,
    ) -> Result<()>;
    /// The next data or hole at or after `offset`; `ENXIO` at or behind the end.
    fn seek(&self, ino: InodeNo, offset: u64, whence: SeekFrom) -> Result<u64>;

    /// Lists names from `cookie` (0: the start), `.` and `..` included, until `sink` returns false (that
    /// entry does not count as taken).
    fn readdir(&self, ino: InodeNo, cookie: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()>;

    /// Makes `ino`'s data, attributes and names up to the root stable. With `data_only`, attributes that
    /// reading the data does not need may be left out.
    fn fsync(&self, ino: InodeNo, data_only: bool) -> Result<()>;
    /// Makes everything stable.
    fn sync(&self) -> Result<()>;
    /// Space on the volume.
    fn statfs(&self) -> Result<StatFs>;

    /// An extended attribute's value; `ENODATA` if absent. Names carry their namespace (`user.x`).
    fn getxattr(&self, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>>;
    /// Sets an extended attribute.
    fn setxattr(
        &self,
        caller: &Caller,
        ino: InodeNo,
        name: &[u8],
        value: &[u8],
        mode: XattrSetMode,
    ) -> Result<()>;
    /// The names of all extended attributes.
    fn listxattr(&self, ino: InodeNo) -> Result<Vec<Vec<u8>>>;
    /// Removes an extended attribute; `ENODATA` if absent.
    fn removexattr(&self, caller: &Caller, ino: InodeNo, name: &[u8]) -> Result<()>;

    /// The `chattr` flags.
    fn flags(&self, ino: InodeNo) -> Result<InodeFlags>;
    /// Changes the `chattr` flags.
    fn set_flags(&self, caller: &Caller, ino: InodeNo, flags: InodeFlags) -> Result<()>;

    /// The project that an inode belongs to; 0 where there are none.
    ///
    /// # Errors
    /// As [`FileSystem::flags`].
    fn project(&self, ino: InodeNo) -> Result<u32> {
        self.flags(ino).map(|_| 0)
    }
    /// Gives an inode to a project.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where there are none, `EPERM` for others than the owner, `EDQUOT`.
    fn set_project(&self, caller: &Caller, ino: InodeNo, project: u32) -> Result<()> {
        let _ = (caller, ino, project);
        Err(Errno::OPNOTSUPP.into())
    }

    /// Does something with patchgroups; answers the group's name. While a thread is [`crate::groups::Engaged`], its changes
    /// belong to groups.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the file system keeps no order; `EBADF` for a group that is not there; otherwise by the table in
    /// `docs/design/patchgroups.md`. For [`GroupCall::Sync`], as `fsync`.
    fn group(&self, call: GroupCall) -> Result<GroupId> {
        let _ = call;
        Err(Errno::OPNOTSUPP.into())
    }

    /// Checks the volume as it is in memory and on the medium, without changing it.
    fn check(&self) -> Result<CheckReport>;

    /// Makes everything stable and marks the volume as cleanly unmounted; later changes fail.
    fn unmount(&self) -> Result<()>;

    /// Gives up, as if the power had been cut: nothing more is ever written, what is not stable is lost, and later
    /// changes and syncs fail; unmounting then writes nothing. Returns when no write is under way any more. `why`
    /// is what messages say.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the file system cannot.
    fn abandon(&self, why: &str) -> Result<()> {
        let _ = why;
        Err(Errno::OPNOTSUPP.into())
    }

    /// How long others may cache attributes and names: for ever where we own the medium.
    fn cache_timeout(&self) -> Duration {
        Duration::from_secs(365 * 86_400)
    }

    /// Finds the inode at `path` (components separated by `/`, symbolic links not followed), as an entry
    /// that holds a reference.
    fn walk(&self, path: &[u8]) -> Result<Entry> {
        let mut at = Entry { attr: self.getattr(self.root())? };
        let mut held = false;
        for name in path.split(|&b| b == b'/').filter(|name| !name.is_empty()) {
            let next = self.lookup(at.attr.ino, name);
            if held {
                self.forget(at.attr.ino, 1);
            }
            at = next?;
            held = true;
        }
        if held { Ok(at) } else { self.lookup(self.root(), b".") }
    }
}

impl Attr {
    /// `st_mode`: kind and permission bits.
    #[must_use]
    pub const fn mode(&self) -> u16 {
        self.kind.mode_bits() | self.perm
    }

    /// Fails with `ENOTDIR` unless this is a directory.
    ///
    /// # Errors
    /// `ENOTDIR`.
    pub fn expect_directory(&self) -> Result<()> {
        if self.kind == FileKind::Directory { Ok(()) } else { Err(Error::Errno(Errno::NOTDIR)) }
    }
}
