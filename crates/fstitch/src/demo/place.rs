//! Where the demonstration writes: below a mount, or in an image through the library. Paths are relative to the
//! volume's root.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use fstitch_core::{Caller, Errno, FileKind, FileSystem, RenameMode};

use crate::paths::{self, Last};

/// The few operations that the demonstration needs.
pub trait Place {
    /// Makes a directory; one that exists is fine.
    fn make_directory(&self, path: &str) -> Result<()>;
    /// Makes a file with these contents and, if asked, waits until it is stable.
    fn write_file(&self, path: &str, data: &[u8], stable: bool) -> Result<()>;
    /// Reads a file.
    fn read_file(&self, path: &str) -> Result<Vec<u8>>;
    /// Moves a name.
    fn rename(&self, from: &str, to: &str) -> Result<()>;
    /// Removes a file.
    fn remove_file(&self, path: &str) -> Result<()>;
    /// Removes an empty directory.
    fn remove_directory(&self, path: &str) -> Result<()>;
    /// The names in a directory, each with whether it is a directory.
    fn list(&self, path: &str) -> Result<Vec<(String, bool)>>;
}

/// Below a mount.
pub struct Mounted(pub PathBuf);

impl Mounted {
    fn at(&self, path: &str) -> PathBuf {
        self.0.join(Path::new(path))
    }
}

impl Place for Mounted {
    fn make_directory(&self, path: &str) -> Result<()> {
        match std::fs::create_dir(self.at(path)) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn write_file(&self, path: &str, data: &[u8], stable: bool) -> Result<()> {
        let file = std::fs::File::create(self.at(path))?;
        std::io::Write::write_all(&mut &file, data)?;
        if stable {
            file.sync_all()?;
        }
        Ok(())
    }

    fn read_file(&self, path: &str) -> Result<Vec<u8>> {
        std::fs::read(self.at(path)).with_context(|| path.to_owned())
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        Ok(std::fs::rename(self.at(from), self.at(to))?)
    }

    fn remove_file(&self, path: &str) -> Result<()> {
        Ok(std::fs::remove_file(self.at(path))?)
    }

    fn remove_directory(&self, path: &str) -> Result<()> {
        Ok(std::fs::remove_dir(self.at(path))?)
    }

    fn list(&self, path: &str) -> Result<Vec<(String, bool)>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(self.at(path))? {
            let entry = entry?;
            found.push((entry.file_name().to_string_lossy().into_owned(), entry.file_type()?.is_dir()));
        }
        Ok(found)
    }
}

/// In an image, through the library.
pub struct Inside<'a>(pub &'a dyn FileSystem);

const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 0, umask: 0o022 };

impl<'a> Inside<'a> {
    /// The directory that holds `path`, and the last component.
    fn parent<'p>(&self, path: &'p str) -> Result<(paths::Held<'a>, &'p [u8])> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((paths::resolve(self.0, parent.as_bytes(), Last::Follow)?, name.as_bytes()))
    }

    fn release(&self, entry: fstitch_core::Result<fstitch_core::Entry>) -> Result<()> {
        self.0.forget(entry?.attr.ino, 1);
        Ok(())
    }
}

impl Place for Inside<'_> {
    fn make_directory(&self, path: &str) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        match self.0.mkdir(&CALLER, parent.ino(), name, 0o755) {
            Err(error) if error.errno() == Errno::EXIST => Ok(()),
            made => self.release(made),
        }
    }

    fn write_file(&self, path: &str, data: &[u8], stable: bool) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        let mode = FileKind::Regular.mode_bits() | 0o644;
        let made = self.0.mknod(&CALLER, parent.ino(), name, mode, 0)?;
        let file = paths::Held::new(self.0, made.attr.ino);
        let mut at = 0;
        while at < data.len() {
            let written = self.0.write(&CALLER, file.ino(), u64::try_from(at)?, &data[at..])?;
            ensure!(written > 0, "nothing was written");
            at += written;
        }
        if stable {
            self.0.fsync(file.ino(), false)?;
        }
        Ok(())
    }

    fn read_file(&self, path: &str) -> Result<Vec<u8>> {
        let file = paths::resolve(self.0, path.as_bytes(), Last::Follow)?;
        let mut data = vec![0; usize::try_from(file.attr()?.size)?];
        let read = self.0.read(file.ino(), 0, &mut data)?;
        data.truncate(read);
        Ok(data)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from_parent, from_name) = self.parent(from)?;
        let (to_parent, to_name) = self.parent(to)?;
        let (from, to) = ((from_parent.ino(), from_name), (to_parent.ino(), to_name));
        Ok(self.0.rename(&CALLER, from, to, RenameMode::Replace)?)
    }

    fn remove_file(&self, path: &str) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        Ok(self.0.unlink(&CALLER, parent.ino(), name)?)
    }

    fn remove_directory(&self, path: &str) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        Ok(self.0.rmdir(&CALLER, parent.ino(), name)?)
    }

    fn list(&self, path: &str) -> Result<Vec<(String, bool)>> {
        let directory = paths::resolve(self.0, path.as_bytes(), Last::Follow)?;
        let mut names = Vec::new();
        self.0.readdir(directory.ino(), 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                names.push(String::from_utf8_lossy(entry.name).into_owned());
            }
            true
        })?;
        let mut found = Vec::new();
        for name in names {
            let node = paths::Held::new(self.0, self.0.lookup(directory.ino(), name.as_bytes())?.attr.ino);
            let is_directory = node.attr()?.kind == FileKind::Directory;
            found.push((name, is_directory));
        }
        Ok(found)
    }
}
