//! What the copying engine needs of either side.

use anyhow::Result;
use fstitch_core::{FileKind, Timestamp};

/// What is copied beside contents, names and extended attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// What it is.
    pub kind: FileKind,
    /// The 12 permission bits.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number in Linux's 32-bit encoding, of devices.
    pub rdev: u32,
    /// Length in bytes.
    pub size: u64,
    /// Number of names.
    pub nlink: u64,
    /// Which inode it is, so that a second name is made a hard link.
    pub id: (u64, u64),
    /// Last access.
    pub atime: Timestamp,
    /// Last change of contents.
    pub mtime: Timestamp,
}

/// An extended attribute: full name and value.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// The extended attributes of something.
#[derive(Clone, Debug, Default)]
pub struct Xattrs {
    /// Those that could be read.
    pub found: Vec<Xattr>,
    /// What could not be read, for people.
    pub lost: Vec<String>,
}

/// Room on the side that is written to.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// Bytes per block.
    pub block_size: u64,
    /// Blocks for files.
    pub blocks: u64,
    /// Inodes.
    pub inodes: u64,
    /// Inodes that are free.
    pub inodes_free: u64,
}

/// Where contents come from.
pub trait Reader {
    /// The length in bytes when it was opened.
    fn size(&self) -> u64;
    /// Reads at `offset`; 0 only at the end.
    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize>;
    /// The next range with storage that starts at or after `offset`; `None` when only a hole follows.
    fn next_data(&mut self, offset: u64) -> Result<Option<(u64, u64)>>;
    /// All of it, if it is in memory already.
    fn whole(&self) -> Option<&[u8]> {
        None
    }
}

/// Where contents go.
pub trait Writer {
    /// Says that all of so many bytes will be written, one after the other.
    fn expect(&mut self, size: u64) -> Result<()>;
    /// Writes all of `data` at `offset`.
    fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()>;
    /// Sets the length; what was not written stays a hole.
    fn set_len(&mut self, size: u64) -> Result<()>;
}

/// A side to copy from.
pub trait Source {
    /// A file, directory or anything else in this tree.
    type Node;

    /// A path of this tree, for messages.
    fn show(&self, path: &[u8]) -> String;
    /// Its attributes, of a symbolic link itself.
    fn meta(&self, node: &Self::Node) -> Result<Meta>;
    /// What the symbolic link at `path` points at in the end.
    fn follow(&self, node: &Self::Node, path: &[u8]) -> Result<Self::Node>;
    /// The names in a directory, without `.` and `..`.
    fn names(&self, dir: &Self::Node) -> Result<Vec<Vec<u8>>>;
    /// The node behind a name, if there is one.
    fn child(&self, dir: &Self::Node, name: &[u8]) -> Result<Option<Self::Node>>;
    /// The target of a symbolic link.
    fn read_link(&self, node: &Self::Node) -> Result<Vec<u8>>;
    /// All extended attributes.
    fn xattrs(&self, node: &Self::Node) -> Result<Xattrs>;
    /// Opens a regular file's contents.
    fn reader(&self, node: &Self::Node) -> Result<Box<dyn Reader + '_>>;
    /// Opens what a pipe or a device yields, where it yields anything.
    fn stream(&self, node: &Self::Node) -> Result<Option<Box<dyn std::io::Read>>>;
}

/// A side to copy to.
pub trait Target {
    /// A file, directory or anything else in this tree.
    type Node;

    /// The node behind a name and what it is, if there is one.
    fn existing(&self, dir: &Self::Node, name: &[u8]) -> Result<Option<(Self::Node, FileKind)>>;
    /// Makes something new; `target` is that of a symbolic link.
    fn create(&self, parent: &Self::Node, name: &[u8], meta: &Meta, target: &[u8]) -> Result<Self::Node>;
    /// Gives a node another name.
    fn link(&self, node: &Self::Node, parent: &Self::Node, name: &[u8]) -> Result<()>;
    /// Removes anything but a directory, to make room for its replacement.
    fn remove(&self, parent: &Self::Node, name: &[u8]) -> Result<()>;
    /// Opens a regular file for writing.
    fn writer(&self, node: &Self::Node) -> Result<Box<dyn Writer + '_>>;
    /// Sets owner, extended attributes, permissions and times, in this order. Returns what this side cannot keep.
    fn finish(&self, node: &Self::Node, meta: &Meta, xattrs: &[Xattr]) -> Result<Vec<String>>;
    /// How much room there is.
    fn space(&self) -> Result<Space>;
}
