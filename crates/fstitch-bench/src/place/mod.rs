//! Where a workload runs: a directory of the host, or a file system in this process. A workload is written once, so
//! that the same calls are measured in both.

mod host;
mod inside;

use anyhow::Result;

pub use self::host::Host;
pub use self::inside::Within;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// It must be there.
    Existing,
    /// It must not be there.
    New,
}

/// What stands at a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name, without its directory.
    pub name: String,
    /// Whether it is a directory.
    pub directory: bool,
}

/// Somewhere to work. Paths are relative, their components separated by `/`.
///
/// # Errors
/// Those of the system calls.
pub trait Place: Send + Sync {
    /// Makes a directory.
    fn mkdir(&self, path: &str) -> Result<()>;
    /// Opens a file for reading and writing.
    fn open(&self, path: &str, how: Open) -> Result<Box<dyn File>>;
    /// Makes a symbolic link.
    fn symlink(&self, path: &str, target: &str) -> Result<()>;
    /// Removes a file's name.
    fn unlink(&self, path: &str) -> Result<()>;
    /// Removes an empty directory.
    fn rmdir(&self, path: &str) -> Result<()>;
    /// The length of a file in bytes.
    fn size(&self, path: &str) -> Result<u64>;
    /// What is in a directory, `.` and `..` left out.
    fn list(&self, path: &str) -> Result<Vec<Name>>;
    /// Makes a directory stable.
    fn sync_directory(&self, path: &str) -> Result<()>;
    /// Makes everything stable.
    fn sync(&self) -> Result<()>;
}

/// An open file.
///
/// # Errors
/// Those of the system calls.
pub trait File: Send + Sync {
    /// Reads up to `buf.len()` bytes.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize>;
    /// Writes all of `data`.
    fn write_at(&self, data: &[u8], offset: u64) -> Result<()>;
    /// Makes the file stable.
    fn fsync(&self) -> Result<()>;
    /// Sets the time of the last change, in seconds since 1970.
    fn set_modified(&self, secs: i64) -> Result<()>;
    /// Has the kernel forget the file's pages, where it has any.
    fn forget_pages(&self) -> Result<()>;
}

/// Removes `path` and everything below it.
///
/// # Errors
/// As [`Place`].
pub fn remove_tree(place: &dyn Place, path: &str) -> Result<u64> {
    let mut removed = 1;
    for entry in place.list(path)? {
        let below = format!("{path}/{}", entry.name);
        if entry.directory {
            removed += remove_tree(place, &below)?;
        } else {
            place.unlink(&below)?;
            removed += 1;
        }
    }
    place.rmdir(path)?;
    Ok(removed)
}
