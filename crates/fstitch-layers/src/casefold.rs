//! Names are found whatever their case.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fstitch_core::lock::Unpoisoned;
use fstitch_core::{Caller, Entry, Errno, Error, FileKind, FileSystem, InodeNo, RenameMode, Result};

use crate::index::Index;
use crate::layered::Layer;

/// Finds names whatever their case and however their letters are composed, as [`crate::folded`] says. They keep the spelling that
/// they were made with; a second spelling of one that is there cannot be made (`EEXIST`). Where a directory of the volume below has
/// two spellings of a name already, each is found by itself, and any other spelling finds one of them.
///
/// Who else remembers names, such as a kernel, knows no two spellings of one: nothing may be remembered.
pub struct Casefold {
    below: Arc<dyn FileSystem>,
    /// Held while a name that may have another spelling is looked for and then changed.
    index: Mutex<Index>,
}

impl fmt::Debug for Casefold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Casefold").finish_non_exhaustive()
    }
}

/// A name in a directory.
type Place<'n> = (InodeNo, &'n [u8]);

impl Casefold {
    /// A layer over `below`, which nobody else changes.
    #[must_use]
    pub fn new(below: Arc<dyn FileSystem>) -> Self {
        Self { below, index: Mutex::default() }
    }

    /// The same, remembering at most so many names.
    #[cfg(test)]
    pub(crate) fn holding(below: Arc<dyn FileSystem>, names: usize) -> Self {
        Self { below, index: Mutex::new(Index::holding(names)) }
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unpoisoned()
    }

    /// How a name that is to be used is spelled; as given where there is no such name, so that the file system below says so.
    fn spelled(&self, index: &mut Index, (dir, name): Place<'_>) -> Result<Box<[u8]>> {
        Ok(index.spelling(&*self.below, dir, name)?.unwrap_or_else(|| name.into()))
    }

    /// Makes a name that has no spelling yet.
    fn make(&self, (dir, name): Place<'_>, make: impl FnOnce() -> Result<Entry>) -> Result<Entry> {
        let mut index = self.index();
        if index.spelling(&*self.below, dir, name)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        let made = settle(&mut index, [dir], make())?;
        index.add(dir, name);
        // Of a directory that is new nothing is known, whatever had its number before.
        index.forget(made.attr.ino);
        Ok(made)
    }

    /// Removes a name by whatever spelling.
    fn take(&self, (dir, name): Place<'_>, take: impl FnOnce(&[u8]) -> Result<()>) -> Result<()> {
        let mut index = self.index();
        let spelled = self.spelled(&mut index, (dir, name))?;
        let gone = self.directory_at((dir, &spelled));
        settle(&mut index, [dir], take(&spelled))?;
        index.remove(dir, &spelled);
        gone.into_iter().for_each(|gone| index.forget(gone));
        Ok(())
    }

    /// The directory that a name is of, if it is one's: when it goes, its number may become another's.
    fn directory_at(&self, (dir, name): Place<'_>) -> Option<InodeNo> {
        let attr = self.below.lookup(dir, name).ok()?.attr;
        self.below.forget(attr.ino, 1);
        (attr.kind == FileKind::Directory).then_some(attr.ino)
    }
}

/// After a failure nothing is known of the directories that it was about.
fn settle<T, const N: usize>(index: &mut Index, dirs: [InodeNo; N], outcome: Result<T>) -> Result<T> {
    if outcome.is_err() {
        dirs.into_iter().for_each(|dir| index.forget(dir));
    }
    outcome
}

impl Layer for Casefold {
    fn below(&self) -> &dyn FileSystem {
        &*self.below
    }

    fn lookup(&self, parent: InodeNo, name: &[u8]) -> Result<Entry> {
        match self.below.lookup(parent, name) {
            Err(Error::Errno(Errno::NOENT)) => {}
            found => return found,
        }
        let mut index = self.index();
        match index.spelling(&*self.below, parent, name)? {
            Some(spelled) => self.below.lookup(parent, &spelled),
            None => Err(Errno::NOENT.into()),
        }
    }

    fn mknod(&self, caller: &Caller, parent: InodeNo, name: &[u8], mode: u16, rdev: u32) -> Result<Entry> {
        self.make((parent, name), || self.below.mknod(caller, parent, name, mode, rdev))
    }

    fn mkdir(&self, caller: &Caller, parent: InodeNo, name: &[u8], perm: u16) -> Result<Entry> {
        self.make((parent, name), || self.below.mkdir(caller, parent, name, perm))
    }

    fn symlink(&self, caller: &Caller, parent: InodeNo, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.make((parent, name), || self.below.symlink(caller, parent, name, target))
    }

    fn link(&self, caller: &Caller, ino: InodeNo, parent: InodeNo, name: &[u8]) -> Result<Entry> {
        self.make((parent, name), || self.below.link(caller, ino, parent, name))
    }

    fn unlink(&self, caller: &Caller, parent: InodeNo, name: &[u8]) -> Result<()> {
        self.take((parent, name), |name| self.below.unlink(caller, parent, name))
    }

    fn rmdir(&self, caller: &Caller, parent: InodeNo, name: &[u8]) -> Result<()> {
        self.take((parent, name), |name| self.below.rmdir(caller, parent, name))
    }

    /// A name takes the spelling that is asked for; one that is replaced keeps its own.
    fn rename(
        &self,
        caller: &Caller,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        let mut index = self.index();
        let Some(source) = index.spelling(&*self.below, from.0, from.1)? else {
            // Why it cannot be renamed is said below.
            let outcome = self.below.rename(caller, from, to, mode);
            return settle(&mut index, [from.0, to.0], outcome);
        };
        let there = index.spelling(&*self.below, to.0, to.1)?;
        let is_itself = from.0 == to.0 && there.as_deref() == Some(&*source);
        let target: Box<[u8]> = match there {
            Some(_) if is_itself => to.1.into(),
            Some(_) if mode == RenameMode::NoReplace => return Err(Errno::EXIST.into()),
            Some(there) => there,
            None => to.1.into(),
        };
        let replaced =
            (!is_itself && mode == RenameMode::Replace).then(|| self.directory_at((to.0, &target))).flatten();
        // With itself a name is exchanged by whatever spelling, and nothing changes.
        let target = if is_itself && mode == RenameMode::Exchange { source.clone() } else { target };
        let outcome = self.below.rename(caller, (from.0, &source), (to.0, &target), mode);
        settle(&mut index, [from.0, to.0], outcome)?;
        if mode != RenameMode::Exchange {
            // A name of an inode that has the other one, too, stays.
            match self.below.lookup(from.0, &source) {
                Ok(entry) => self.below.forget(entry.attr.ino, 1),
                Err(_) => index.remove(from.0, &source),
            }
            index.add(to.0, &target);
            replaced.into_iter().for_each(|gone| index.forget(gone));
        }
        Ok(())
    }

    fn cache_timeout(&self) -> Duration {
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use fstitch_fs::model::Model;

    use super::*;
    use crate::Layered;

    const ME: Caller = Caller { uid: 0, gid: 0, tid: 0, umask: 0 };

    #[test]
    fn what_is_remembered_has_a_limit_and_is_read_again() {
        let fs = Layered(Casefold::holding(Arc::new(Model::new()), 40));
        let mut dirs = Vec::new();
        for number in 0..10 {
            let dir = fs.mkdir(&ME, fs.root(), format!("dir{number}").as_bytes(), 0o755).unwrap().attr.ino;
            for name in 0..12 {
                fs.mknod(&ME, dir, format!("Name{name}").as_bytes(), 0o100_644, 0).unwrap();
                assert!(fs.0.index().held() <= 41, "one name more comes before others go");
            }
            dirs.push(dir);
        }
        for dir in dirs {
            for name in 0..12 {
                fs.lookup(dir, format!("NAME{name}").as_bytes()).unwrap();
            }
            fs.unlink(&ME, dir, b"NAME3").unwrap();
            assert!(fs.lookup(dir, b"name3").is_err());
        }
        // A directory that has more than may be remembered is read each time.
        let large = fs.mkdir(&ME, fs.root(), b"large", 0o755).unwrap().attr.ino;
        for name in 0..60 {
            fs.mknod(&ME, large, format!("Name{name}").as_bytes(), 0o100_644, 0).unwrap();
        }
        fs.lookup(large, b"NAME59").unwrap();
        assert_eq!(fs.0.index().held(), 0);
    }
}
