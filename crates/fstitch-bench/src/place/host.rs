//! A directory of the host.

use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::fs::{Advice, AtFlags, Dir, FileType, Mode, OFlags, Timespec, Timestamps};

use super::{File, Name, Open, Place};

/// Directories are made with these permissions, files without the execute bits.
const ALL: Mode = Mode::from_raw_mode(0o755);
const FILE: Mode = Mode::from_raw_mode(0o644);

/// A directory of the host, mounted or not.
#[derive(Debug)]
pub struct Host {
    root: OwnedFd,
}

impl Host {
    /// Works in `path`.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn new(path: &Path) -> Result<Self> {
        let root =
            rustix::fs::open(path, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                .with_context(|| path.display().to_string())?;
        Ok(Self { root })
    }

    fn is_directory(&self, path: &str) -> Result<bool> {
        let found = rustix::fs::statat(&self.root, path, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(FileType::from_raw_mode(found.st_mode) == FileType::Directory)
    }

    fn directory(&self, path: &str) -> Result<OwnedFd> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.root, path, flags, Mode::empty()).with_context(|| format!("open {path}"))
    }
}

impl Place for Host {
    fn mkdir(&self, path: &str) -> Result<()> {
        rustix::fs::mkdirat(&self.root, path, ALL).with_context(|| format!("mkdir {path}"))
    }

    fn open(&self, path: &str, how: Open) -> Result<Box<dyn File>> {
        let new = if how == Open::New { OFlags::CREATE | OFlags::EXCL } else { OFlags::empty() };
        let file = rustix::fs::openat(&self.root, path, OFlags::RDWR | OFlags::CLOEXEC | new, FILE)
            .with_context(|| format!("open {path}"))?;
        Ok(Box::new(file))
    }

    fn symlink(&self, path: &str, target: &str) -> Result<()> {
        rustix::fs::symlinkat(target, &self.root, path).with_context(|| format!("symlink {path}"))
    }

    fn unlink(&self, path: &str) -> Result<()> {
        rustix::fs::unlinkat(&self.root, path, AtFlags::empty()).with_context(|| format!("unlink {path}"))
    }

    fn rmdir(&self, path: &str) -> Result<()> {
        rustix::fs::unlinkat(&self.root, path, AtFlags::REMOVEDIR).with_context(|| format!("rmdir {path}"))
    }

    fn size(&self, path: &str) -> Result<u64> {
        let found = rustix::fs::statat(&self.root, path, AtFlags::SYMLINK_NOFOLLOW)
            .with_context(|| format!("stat {path}"))?;
        Ok(u64::try_from(found.st_size)?)
    }

    fn list(&self, path: &str) -> Result<Vec<Name>> {
        let mut names = Vec::new();
        for entry in Dir::new(self.directory(path)?)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                let directory = match entry.file_type() {
                    // Some servers do not say.
                    FileType::Unknown => self.is_directory(&format!("{path}/{name}"))?,
                    kind => kind == FileType::Directory,
                };
                names.push(Name { name, directory });
            }
        }
        Ok(names)
    }

    fn sync_directory(&self, path: &str) -> Result<()> {
        Ok(rustix::fs::fsync(self.directory(path)?)?)
    }

    fn sync(&self) -> Result<()> {
        // For drivers of the kernel, which write everything with the first; daemons behind FUSE hear of the second alone.
        rustix::fs::syncfs(&self.root).context("syncfs")?;
        rustix::fs::fsync(&self.root).context("fsync of the root directory")
    }
}

impl File for OwnedFd {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        Ok(rustix::io::pread(self, buf, offset)?)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let written = rustix::io::pwrite(self, data, offset)?;
        ensure!(written == data.len(), "{written} of {} bytes were written", data.len());
        Ok(())
    }

    fn fsync(&self) -> Result<()> {
        Ok(rustix::fs::fsync(self)?)
    }

    fn set_modified(&self, secs: i64) -> Result<()> {
        let time = Timespec { tv_sec: secs, tv_nsec: 0 };
        Ok(rustix::fs::futimens(self, &Timestamps { last_access: time, last_modification: time })?)
    }

    fn forget_pages(&self) -> Result<()> {
        Ok(rustix::fs::fadvise(self, 0, None, Advice::DontNeed)?)
    }
}
