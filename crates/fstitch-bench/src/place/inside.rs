//! A file system in this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use fstitch_core::lock::Unpoisoned;
use fstitch_core::{Caller, FileKind, FileSystem, InodeNo, SetAttr, SetTime, Timestamp};

use super::{File, Name, Open, Place};

const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 0, umask: 0o022 };
const FILE_MODE: u16 = 0o100_644;

/// A file system in this process, by paths. Directories that were found once are remembered with a reference, as the
/// kernel and every program that embeds a file system do.
pub struct Within {
    fs: Arc<dyn FileSystem>,
    directories: Mutex<HashMap<String, InodeNo>>,
}

impl Within {
    /// Works in `fs`.
    #[must_use]
    pub fn new(fs: Arc<dyn FileSystem>) -> Self {
        Self { fs, directories: Mutex::default() }
    }

    /// The directory that holds `path`, and the name in it.
    fn parent<'a>(&self, path: &'a str) -> Result<(InodeNo, &'a [u8])> {
        match path.rsplit_once('/') {
            None => Ok((self.fs.root(), path.as_bytes())),
            Some((above, name)) => Ok((self.directory(above)?, name.as_bytes())),
        }
    }

    fn directory(&self, path: &str) -> Result<InodeNo> {
        if path.is_empty() || path == "." {
            return Ok(self.fs.root());
        }
        let known = self.directories.lock().unpoisoned().get(path).copied();
        if let Some(ino) = known {
            return Ok(ino);
        }
        let found = self.fs.walk(path.as_bytes()).with_context(|| path.to_owned())?.attr.ino;
        self.directories.lock().unpoisoned().insert(path.to_owned(), found);
        Ok(found)
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        for (_, ino) in self.directories.lock().unpoisoned().drain() {
            self.fs.forget(ino, 1);
        }
    }
}

impl Place for Within {
    fn mkdir(&self, path: &str) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        let made = self.fs.mkdir(&CALLER, parent, name, 0o755).with_context(|| format!("mkdir {path}"))?;
        self.directories.lock().unpoisoned().insert(path.to_owned(), made.attr.ino);
        Ok(())
    }

    fn open(&self, path: &str, how: Open) -> Result<Box<dyn File>> {
        let (parent, name) = self.parent(path)?;
        let entry = match how {
            Open::Existing => self.fs.lookup(parent, name),
            Open::New => self.fs.mknod(&CALLER, parent, name, FILE_MODE, 0),
        };
        let ino = entry.with_context(|| format!("open {path}"))?.attr.ino;
        Ok(Box::new(Opened { fs: Arc::clone(&self.fs), ino }))
    }

    fn symlink(&self, path: &str, target: &str) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        let made = self.fs.symlink(&CALLER, parent, name, target.as_bytes());
        self.fs.forget(made.with_context(|| format!("symlink {path}"))?.attr.ino, 1);
        Ok(())
    }

    fn unlink(&self, path: &str) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        self.fs.unlink(&CALLER, parent, name).with_context(|| format!("unlink {path}"))
    }

    fn rmdir(&self, path: &str) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        self.fs.rmdir(&CALLER, parent, name).with_context(|| format!("rmdir {path}"))?;
        if let Some(ino) = self.directories.lock().unpoisoned().remove(path) {
            self.fs.forget(ino, 1);
        }
        Ok(())
    }

    fn size(&self, path: &str) -> Result<u64> {
        let (parent, name) = self.parent(path)?;
        let found = self.fs.lookup(parent, name).with_context(|| format!("stat {path}"))?.attr;
        self.fs.forget(found.ino, 1);
        Ok(found.size)
    }

    fn list(&self, path: &str) -> Result<Vec<Name>> {
        let mut names = Vec::new();
        self.fs.readdir(self.directory(path)?, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                let name = String::from_utf8_lossy(entry.name).into_owned();
                names.push(Name { directory: entry.kind == Some(FileKind::Directory), name });
            }
            true
        })?;
        Ok(names)
    }

    fn sync_directory(&self, path: &str) -> Result<()> {
        Ok(self.fs.fsync(self.directory(path)?, false)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.fs.sync()?)
    }
}

/// An open file: a reference on its inode.
struct Opened {
    fs: Arc<dyn FileSystem>,
    ino: InodeNo,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.fs.forget(self.ino, 1);
    }
}

impl File for Opened {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        Ok(self.fs.read(self.ino, offset, buf)?)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let written = self.fs.write(&CALLER, self.ino, offset, data)?;
        ensure!(written == data.len(), "{written} of {} bytes were written", data.len());
        Ok(())
    }

    fn fsync(&self) -> Result<()> {
        Ok(self.fs.fsync(self.ino, false)?)
    }

    fn set_modified(&self, secs: i64) -> Result<()> {
        let time = Some(SetTime::At(Timestamp { secs, nanos: 0 }));
        self.fs.setattr(&CALLER, self.ino, &SetAttr { atime: time, mtime: time, ..SetAttr::default() })?;
        Ok(())
    }

    fn forget_pages(&self) -> Result<()> {
        Ok(())
    }
}
