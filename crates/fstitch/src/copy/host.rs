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

use super::tree::{Meta, Reader, Tree, Writer, Xattr};

/// Longest value of an extended attribute in Linux, in bytes.
const XATTR_VALUE_MAX: usize = 64 << 10;

/// The tree of this machine.
pub struct HostTree {
    /// Only the superuser may give files away.
    may_chown: bool,
}

impl HostTree {
    /// This machine, as seen by this process.
    pub fn new() -> Self {
        Self { may_chown: rustix::process::geteuid().is_root() }
    }
}

struct Content {
    file: File,
    size: u64,
}

impl Reader for Content {
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
    fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        Ok(self.file.write_all_at(data, offset)?)
    }

    fn set_len(&mut self, size: u64) -> Result<()> {
        Ok(self.file.set_len(size)?)
    }
}

impl Tree for HostTree {
    type Node = PathBuf;

    fn show(&self, node: &PathBuf) -> String {
        node.display().to_string()
    }

    fn meta(&self, node: &PathBuf) -> Result<Meta> {
        let found = fs::symlink_metadata(node)?;
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

    fn names(&self, dir: &PathBuf) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            names.push(entry?.file_name().into_vec());
        }
        // A fixed order, so that the same tree gives the same image.
        names.sort();
        Ok(names)
    }

    fn child(&self, dir: &PathBuf, name: &[u8]) -> Result<Option<PathBuf>> {
        let path = dir.join(OsStr::from_bytes(name));
        match path.symlink_metadata() {
            Ok(_) => Ok(Some(path)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn read_link(&self, node: &PathBuf) -> Result<Vec<u8>> {
        Ok(fs::read_link(node)?.into_os_string().into_vec())
    }

    fn xattrs(&self, node: &PathBuf) -> Result<Vec<Xattr>> {
        let mut names = vec![0; XATTR_VALUE_MAX];
        let len = match sys::llistxattr(node, &mut names[..]) {
            Ok(len) => len,
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let mut found = Vec::new();
        for name in names[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
            let mut value = vec![0; XATTR_VALUE_MAX];
            match sys::lgetxattr(node, OsStr::from_bytes(name), &mut value[..]) {
                Ok(len) => value.truncate(len),
                // It vanished, or belongs to a namespace that we may list but not read.
                Err(Errno::NODATA | Errno::PERM | Errno::OPNOTSUPP) => continue,
                Err(error) => return Err(error.into()),
            }
            found.push((name.to_vec(), value));
        }
        Ok(found)
    }

    fn reader(&self, node: &PathBuf) -> Result<Box<dyn Reader + '_>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(sys::open(node, flags, Mode::empty())?);
        let size = file.metadata()?.size();
        Ok(Box::new(Content { file, size }))
    }

    fn create(&self, parent: &PathBuf, name: &[u8], meta: &Meta, target: &[u8]) -> Result<PathBuf> {
        let path = parent.join(OsStr::from_bytes(name));
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
        Ok(path)
    }

    fn link(&self, node: &PathBuf, parent: &PathBuf, name: &[u8]) -> Result<()> {
        Ok(fs::hard_link(node, parent.join(OsStr::from_bytes(name)))?)
    }

    fn remove(&self, parent: &PathBuf, name: &[u8]) -> Result<()> {
        Ok(fs::remove_file(parent.join(OsStr::from_bytes(name)))?)
    }

    fn writer(&self, node: &PathBuf) -> Result<Box<dyn Writer + '_>> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(sys::open(node, flags, Mode::empty())?);
        let size = file.metadata()?.size();
        Ok(Box::new(Content { file, size }))
    }

    fn finish(&self, node: &PathBuf, meta: &Meta, xattrs: &[Xattr]) -> Result<Vec<String>> {
        if self.may_chown {
            std::os::unix::fs::lchown(node, Some(meta.uid), Some(meta.gid))?;
        }
        let mut warnings = Vec::new();
        for (name, value) in xattrs {
            if let Err(error) = sys::lsetxattr(node, OsStr::from_bytes(name), value, XattrFlags::empty()) {
                warnings.push(format!("attribute {} is lost: {error}", String::from_utf8_lossy(name)));
            }
        }
        if meta.kind != FileKind::Symlink {
            set_mode(node, meta.perm)?;
        }
        let times = Timestamps { last_access: timespec(meta.atime), last_modification: timespec(meta.mtime) };
        sys::utimensat(CWD, node, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(warnings)
    }
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
