//! This machine's file systems as one side of a copy.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use fstitch_core::{FileKind, Timestamp};
use rustix::fs::{self as sys, AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

use super::tree::{Meta, Reader, Source, Space, Target, Writer, Xattr, Xattrs};

/// Longest value of an extended attribute in Linux, in bytes.
const XATTR_VALUE_MAX: usize = 64 << 10;

/// Memory for the names of extended attributes, in bytes, before it is known how many there are.
const XATTR_NAMES: usize = 1 << 10;

/// The tree of this machine.
pub struct HostTree {
    /// Only the superuser may give files away.
    may_chown: bool,
    /// A directory of the file system that is written to, if it is the target.
    target: PathBuf,
}

impl HostTree {
    /// This machine, as seen by this process.
    pub fn new() -> Self {
        Self::with_target(PathBuf::from("."))
    }

    /// The same, to copy to somewhere near `target`.
    pub fn with_target(target: PathBuf) -> Self {
        Self { may_chown: rustix::process::geteuid().is_root(), target }
    }
}

/// Something on this machine.
#[derive(Clone, Debug)]
pub struct HostNode {
    path: PathBuf,
    /// Of a symbolic link, what it points at is meant. Not by resolving the path: `/dev/stdin` leads to what has none.
    follow: bool,
}

impl HostNode {
    /// What is at `path`, of a symbolic link itself.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), follow: false }
    }

    /// What has the name in this directory.
    pub fn child(&self, name: &[u8]) -> Self {
        Self::new(self.path.join(OsStr::from_bytes(name)))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

struct Content {
    file: File,
    size: u64,
}

impl Reader for Content {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.file.read_at(buf, offset)?)
    }

    fn next_data(&mut self, offset: u64) -> Result<Option<(u64, u64)>> {
        if offset >= self.size {
            return Ok(None);
        }
        match sys::seek(&self.file, sys::SeekFrom::Data(offset)) {
            Ok(start) => Ok(Some((start, sys::seek(&self.file, sys::SeekFrom::Hole(start))?))),
            Err(Errno::NXIO) => Ok(None),
            // A file system that knows no holes has none.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some((offset, self.size))),
            Err(error) => Err(error.into()),
        }
    }
}

impl Writer for Content {
    fn expect(&mut self, _size: u64) -> Result<()> {
        Ok(())
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        Ok(self.file.write_all_at(data, offset)?)
    }

    fn set_len(&mut self, size: u64) -> Result<()> {
        Ok(self.file.set_len(size)?)
    }
}

impl Source for HostTree {
    type Node = HostNode;

    fn show(&self, path: &[u8]) -> String {
        OsStr::from_bytes(path).display().to_string()
    }

    fn meta(&self, node: &HostNode) -> Result<Meta> {
        let found = if node.follow { fs::metadata(&node.path)? } else { fs::symlink_metadata(&node.path)? };
        let mode = u16::try_from(found.mode() & 0xffff).expect("masked to 16 bits");
        Ok(Meta {
            kind: FileKind::from_mode(mode).context("of a kind that is not known")?,
            perm: mode & 0o7777,
            uid: found.uid(),
            gid: found.gid(),
            rdev: encode_device(found.rdev()),
            size: found.size(),
            nlink: found.nlink(),
            id: (found.dev(), found.ino()),
            atime: timestamp(found.atime(), found.atime_nsec()),
            mtime: timestamp(found.mtime(), found.mtime_nsec()),
        })
    }

    fn follow(&self, node: &HostNode, _path: &[u8]) -> Result<HostNode> {
        Ok(HostNode { path: node.path.clone(), follow: true })
    }

    fn names(&self, dir: &HostNode) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&dir.path)? {
            names.push(entry?.file_name().into_vec());
        }
        // A fixed order, so that the same tree gives the same image.
        names.sort();
        Ok(names)
    }

    fn child(&self, dir: &HostNode, name: &[u8]) -> Result<Option<HostNode>> {
        Ok(Some(dir.child(name)))
    }

    fn read_link(&self, node: &HostNode) -> Result<Vec<u8>> {
        Ok(fs::read_link(&node.path)?.into_os_string().into_vec())
    }

    fn xattrs(&self, node: &HostNode) -> Result<Xattrs> {
        let mut xattrs = Xattrs::default();
        // Most things have none or few.
        let mut names = vec![0; XATTR_NAMES];
        let listed = match list_xattrs(node, &mut names) {
            Err(Errno::RANGE) => {
                names.resize(XATTR_VALUE_MAX, 0);
                list_xattrs(node, &mut names)
            }
            listed => listed,
        };
        let len = match listed {
            Ok(len) => len,
            Err(Errno::OPNOTSUPP) => return Ok(xattrs),
            Err(error) => return Err(error.into()),
        };
        for name in names[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
            let mut value = vec![0; XATTR_VALUE_MAX];
            match get_xattr(node, OsStr::from_bytes(name), &mut value) {
                Ok(len) => {
                    value.truncate(len);
                    value.shrink_to_fit();
                    xattrs.found.push((name.to_vec(), value));
                }
                // It has vanished.
                Err(Errno::NODATA) => {}
                Err(error) => {
                    let shown = String::from_utf8_lossy(name);
                    xattrs.lost.push(format!("attribute {shown} is lost, it cannot be read: {error}"));
                }
            }
        }
        // Listed in the order of the file system that they come from.
        xattrs.found.sort();
        Ok(xattrs)
    }

    fn reader(&self, node: &HostNode) -> Result<Box<dyn Reader + '_>> {
        let file = open(node)?;
        let size = file.metadata()?.size();
        Ok(Box::new(Content { file, size }))
    }

    fn stream(&self, node: &HostNode) -> Result<Option<Box<dyn std::io::Read>>> {
        Ok(Some(Box::new(open(node)?)))
    }
}

impl Target for HostTree {
    type Node = HostNode;

    fn existing(&self, dir: &HostNode, name: &[u8]) -> Result<Option<(HostNode, FileKind)>> {
        let path = dir.path.join(OsStr::from_bytes(name));
        match path.symlink_metadata() {
            Ok(found) => {
                let mode = u16::try_from(found.mode() & 0xffff).expect("masked to 16 bits");
                let kind = FileKind::from_mode(mode).context("of a kind that is not known")?;
                Ok(Some((HostNode::new(path), kind)))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn create(&self, parent: &HostNode, name: &[u8], meta: &Meta, target: &[u8]) -> Result<HostNode> {
        let path = parent.path.join(OsStr::from_bytes(name));
        let private = Mode::RUSR | Mode::WUSR;
        match meta.kind {
            FileKind::Directory => sys::mkdir(&path, Mode::RWXU)?,
            FileKind::Symlink => sys::symlink(OsStr::from_bytes(target), &path)?,
            FileKind::Regular => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                drop(sys::open(&path, flags, private)?);
            }
            kind => {
                let kind = FileType::from_raw_mode(u32::from(kind.mode_bits()));
                sys::mknodat(CWD, &path, kind, private, decode_device(meta.rdev))?;
            }
        }
        Ok(HostNode::new(path))
    }

    fn link(&self, node: &HostNode, parent: &HostNode, name: &[u8]) -> Result<()> {
        Ok(fs::hard_link(&node.path, parent.path.join(OsStr::from_bytes(name)))?)
    }

    fn remove(&self, parent: &HostNode, name: &[u8]) -> Result<()> {
        Ok(fs::remove_file(parent.path.join(OsStr::from_bytes(name)))?)
    }

    fn writer(&self, node: &HostNode) -> Result<Box<dyn Writer + '_>> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(sys::open(&node.path, flags, Mode::empty())?);
        let size = file.metadata()?.size();
        Ok(Box::new(Content { file, size }))
    }

    fn finish(&self, node: &HostNode, meta: &Meta, xattrs: &[Xattr]) -> Result<Vec<String>> {
        let node = &node.path;
        if self.may_chown {
            std::os::unix::fs::lchown(node, Some(meta.uid), Some(meta.gid))?;
        }
        let mut lost = Vec::new();
        for (name, value) in xattrs {
            if let Err(error) = sys::lsetxattr(node, OsStr::from_bytes(name), value, XattrFlags::empty()) {
                lost.push(format!("attribute {} is lost: {error}", String::from_utf8_lossy(name)));
            }
        }
        if meta.kind != FileKind::Symlink {
            // Who may not keep the owner gets a file of his own, which shall not lend his rights to others.
            set_mode(node, if self.may_chown { meta.perm } else { meta.perm & 0o1777 })?;
        }
        let times = Timestamps { last_access: timespec(meta.atime), last_modification: timespec(meta.mtime) };
        sys::utimensat(CWD, node, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(lost)
    }

    fn space(&self) -> Result<Space> {
        let found = sys::statvfs(&self.target)?;
        Ok(Space {
            block_size: found.f_frsize,
            blocks: found.f_blocks,
            inodes: found.f_files,
            // Where inodes are not counted there are always enough.
            inodes_free: if found.f_files == 0 { u64::MAX } else { found.f_ffree },
        })
    }
}

/// Opens for reading.
fn open(node: &HostNode) -> Result<File> {
    let mut flags = OFlags::RDONLY | OFlags::CLOEXEC;
    if !node.follow {
        flags |= OFlags::NOFOLLOW;
    }
    Ok(File::from(sys::open(&node.path, flags, Mode::empty())?))
}

fn list_xattrs(node: &HostNode, names: &mut [u8]) -> Result<usize, Errno> {
    if node.follow { sys::listxattr(&node.path, names) } else { sys::llistxattr(&node.path, names) }
}

fn get_xattr(node: &HostNode, name: &OsStr, value: &mut [u8]) -> Result<usize, Errno> {
    if node.follow { sys::getxattr(&node.path, name, value) } else { sys::lgetxattr(&node.path, name, value) }
}

/// Sets permissions of the thing itself: what was just made is no symbolic link.
fn set_mode(node: &Path, perm: u16) -> Result<()> {
    if node.is_symlink() {
        bail!("it was replaced by a symbolic link while it was copied");
    }
    Ok(sys::chmod(node, Mode::from_raw_mode(u32::from(perm)))?)
}

fn timestamp(secs: i64, nanos: i64) -> Timestamp {
    Timestamp { secs, nanos: u32::try_from(nanos).unwrap_or(0) }
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec { tv_sec: time.secs, tv_nsec: i64::from(time.nanos) }
}

/// Linux's 32-bit encoding of a device number: 12 bits of major around 20 bits of minor.
fn encode_device(device: u64) -> u32 {
    let (major, minor) = (sys::major(device) & 0xfff, sys::minor(device) & 0xf_ffff);
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

fn decode_device(device: u32) -> u64 {
    let major = (device >> 8) & 0xfff;
    let minor = (device & 0xff) | ((device >> 12) & 0xf_ff00);
    sys::makedev(major, minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_encoding() {
        for (major, minor) in [(1, 3), (8, 0), (259, 70_000), (0xfff, 0xf_ffff)] {
            let device = sys::makedev(major, minor);
            assert_eq!(decode_device(encode_device(device)), device, "{major}:{minor}");
        }
    }
}
