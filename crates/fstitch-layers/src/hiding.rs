//! Some names do not exist.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use fstitch_core::{Caller, DirEntry, Entry, Errno, FileSystem, InodeNo, RenameMode, Result};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use crate::layered::Layer;

/// A pattern that makes no sense, with what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternError(String);

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for PatternError {}

/// Patterns of names.
#[derive(Clone, Debug, Default)]
pub struct Patterns(GlobSet);

impl Patterns {
    /// `*` is any number of bytes, `?` a character, `[a-z]` one of a class, `{a,b}` one of some, and `\` takes the meaning of what follows
    /// away. A pattern is of a name, not of a path.
    ///
    /// # Errors
    /// For a pattern with a `/`, an empty one, or one that is not complete.
    pub fn new<'p>(patterns: impl IntoIterator<Item = &'p str>) -> std::result::Result<Self, PatternError> {
        let mut all = GlobSetBuilder::new();
        for pattern in patterns {
            if pattern.is_empty() || pattern.contains('/') {
                let text = format!("`{pattern}` is no pattern of a name, which has no `/` and is not empty");
                return Err(PatternError(text));
            }
            let glob = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
            all.add(
                glob.map_err(|error| PatternError(format!("`{pattern}` is no pattern: {}", error.kind())))?,
            );
        }
        all.build().map(Self).map_err(|error| PatternError(error.to_string()))
    }
}

/// Hides every name, in whatever directory, that one of some patterns fits: it is not listed and not found, and cannot be made
/// (`EPERM`). What it names is untouched, counts as before, and can be reached by other names of it; a directory that has nothing
/// else cannot be removed (`ENOTEMPTY`). `.` and `..` are never hidden.
pub struct Hiding {
    below: Arc<dyn FileSystem>,
    patterns: Patterns,
}

impl fmt::Debug for Hiding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hiding").field("patterns", &self.patterns.0.len()).finish_non_exhaustive()
    }
}

impl Hiding {
    /// Hides what fits one of `patterns`.
    #[must_use]
    pub fn new(below: Arc<dyn FileSystem>, patterns: Patterns) -> Self {
        Self { below, patterns }
    }

    fn hides(&self, name: &[u8]) -> bool {
        !matches!(name, b"." | b"..") && self.patterns.0.is_match(OsStr::from_bytes(name))
    }

    /// Fails with `error` for a name that is hidden.
    fn unless_hidden(&self, name: &[u8], error: Errno) -> Result<()> {
        if self.hides(name) { Err(error.into()) } else { Ok(()) }
    }
}

impl Layer for Hiding {
    fn below(&self) -> &dyn FileSystem {
        &*self.below
    }

    fn lookup(&self, parent: InodeNo, name: &[u8]) -> Result<Entry> {
        self.unless_hidden(name, Errno::NOENT)?;
        self.below.lookup(parent, name)
    }

    fn mknod(&self, caller: &Caller, parent: InodeNo, name: &[u8], mode: u16, rdev: u32) -> Result<Entry> {
        self.unless_hidden(name, Errno::PERM)?;
        self.below.mknod(caller, parent, name, mode, rdev)
    }

    fn mkdir(&self, caller: &Caller, parent: InodeNo, name: &[u8], perm: u16) -> Result<Entry> {
        self.unless_hidden(name, Errno::PERM)?;
        self.below.mkdir(caller, parent, name, perm)
    }

    fn symlink(&self, caller: &Caller, parent: InodeNo, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.unless_hidden(name, Errno::PERM)?;
        self.below.symlink(caller, parent, name, target)
    }

    fn link(&self, caller: &Caller, ino: InodeNo, parent: InodeNo, name: &[u8]) -> Result<Entry> {
        self.unless_hidden(name, Errno::PERM)?;
        self.below.link(caller, ino, parent, name)
    }

    fn unlink(&self, caller: &Caller, parent: InodeNo, name: &[u8]) -> Result<()> {
        self.unless_hidden(name, Errno::NOENT)?;
        self.below.unlink(caller, parent, name)
    }

    fn rmdir(&self, caller: &Caller, parent: InodeNo, name: &[u8]) -> Result<()> {
        self.unless_hidden(name, Errno::NOENT)?;
        self.below.rmdir(caller, parent, name)
    }

    fn rename(
        &self,
        caller: &Caller,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        self.unless_hidden(from.1, Errno::NOENT)?;
        self.unless_hidden(to.1, if mode == RenameMode::Exchange { Errno::NOENT } else { Errno::PERM })?;
        self.below.rename(caller, from, to, mode)
    }

    fn readdir(&self, ino: InodeNo, cookie: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.below.readdir(ino, cookie, &mut |entry| self.hides(entry.name) || sink(entry))
    }
}
