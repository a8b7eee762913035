//! The logical disks that the process has open, and the names of what is in them.
//!
//! A name is the path of the disk, and behind a `/` the volume: `/srv/data.lld/orders`. A disk is opened with its first database, and
//! closed with its last.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use fstitch_core::lock::Mutex;
use fstitch_core::order::rank;
use fstitch_core::{Errno, Error};
use fstitch_lld::{Disk, Volumes};

use crate::abi::code;
use crate::base::{Base, volume_bytes};
use crate::database::Side;
use crate::failure::{Failure, Result};
use crate::group::Group;
use crate::volatile::{Volatile, Volatiles};

/// Opens the disk at a path, for reading only if the second argument says so.
pub type Opener = Box<dyn Fn(&Path, bool) -> fstitch_core::Result<Disk> + Send + Sync>;

/// A name in two parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) disk: PathBuf,
    pub(crate) volume: String,
}

impl Place {
    /// Takes a name apart.
    ///
    /// # Errors
    /// `CANTOPEN` if it has no two parts.
    pub(crate) fn of(name: &OsStr) -> Result<Self> {
        let path = Path::new(name);
        let volume = path.file_name().and_then(OsStr::to_str);
        match (path.parent().filter(|disk| !disk.as_os_str().is_empty()), volume) {
            (Some(disk), Some(volume)) => Ok(Self { disk: disk.to_owned(), volume: volume.to_owned() }),
            _ => {
                let text = format!(
                    "{} is not DISK/VOLUME: the path of a logical disk and a name in it",
                    path.display()
                );
                Err(Failure::new(code::CANTOPEN, text))
            }
        }
    }
}

/// How a database is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) may_write: bool,
    pub(crate) may_create: bool,
}

/// All disks that are open.
pub(crate) struct Disks {
    opener: Opener,
    open: Mutex<BTreeMap<PathBuf, Arc<Opened>>, rank::Reclaim>,
}

/// A disk that is open.
pub(crate) struct Opened {
    path: PathBuf,
    disk: Arc<Disk>,
    volumes: Volumes,
    is_read_only: bool,
    pub(crate) volatiles: Volatiles,
    bases: Mutex<BTreeMap<String, Weak<Base>>, rank::Leaf>,
    groups: Mutex<BTreeMap<String, Arc<Group>>, rank::Leaf>,
    /// Files of databases that are open, by their connections.
    sides: Mutex<Vec<(usize, Arc<Side>)>, rank::Leaf>,
}

impl Disks {
    pub(crate) fn new(opener: Opener) -> Self {
        Self { opener, open: Mutex::new(BTreeMap::new()) }
    }

    /// Does something with a disk, if it is open.
    pub(crate) fn with<T>(&self, path: &Path, work: impl FnOnce(&Opened) -> T) -> Option<T> {
        self.open.lock().get(path).map(|opened| work(opened))
    }

    /// Opens a database, and its disk if need be. Says whether it is for reading only.
    ///
    /// # Errors
    /// `CANTOPEN` if there is none, `NOTADB` if it is something else, `BUSY` if another process has the disk; those of the disk.
    pub(crate) fn database(&self, place: &Place, how: How) -> Result<(Arc<Opened>, Arc<Base>, bool)> {
        let mut open = self.open.lock();
        let opened = match open.get(&place.disk) {
            Some(opened) => Arc::clone(opened),
            None => Arc::new(self.open_disk(&place.disk, how)?),
        };
        let is_read_only = opened.is_read_only || !how.may_write;
        match opened.base(place, how) {
            Ok(base) => {
                open.insert(place.disk.clone(), Arc::clone(&opened));
                Ok((opened, base, is_read_only))
            }
            Err(failure) => {
                if !open.contains_key(&place.disk) {
                    // Nothing was changed, so nothing is lost by what may go wrong now.
                    opened.close().ok();
                }
                Err(failure)
            }
        }
    }

    fn open_disk(&self, path: &Path, how: How) -> Result<Opened> {
        let of = |error: &Error| Failure::of(code::CANTOPEN, error).about(&path.display().to_string());
        if path.is_dir() {
            let text = format!("{} is a directory, and no logical disk: say DISK/VOLUME", path.display());
            return Err(Failure::new(code::CANTOPEN, text));
        }
        let (disk, is_read_only) = match (self.opener)(path, !how.may_write) {
            Err(error) if how.may_write && is_forbidden(&error) => ((self.opener)(path, true), true),
            done => (done, !how.may_write),
        };
        let disk = Arc::new(disk.map_err(|error| of(&error))?);
        let volumes = Volumes::open(Arc::clone(&disk)).map_err(|error| match error {
            // Who may not write cannot make the catalogue either.
            Error::Errno(Errno::ROFS) => {
                Failure::new(code::CANTOPEN, format!("{} has no volumes", path.display()))
            }
            error => of(&error),
        })?;
        Ok(Opened {
            path: path.to_owned(),
            disk,
            volumes,
            is_read_only,
            volatiles: Volatiles::default(),
            bases: Mutex::default(),
            groups: Mutex::default(),
            sides: Mutex::default(),
        })
    }

    /// Somebody needs a disk no more; the last one closes it.
    ///
    /// # Errors
    /// Those of the disk.
    pub(crate) fn release(&self, opened: Arc<Opened>) -> Result<()> {
        let mut open = self.open.lock();
        let path = opened.path.clone();
        drop(opened);
        if open.get(&path).is_none_or(|opened| Arc::strong_count(opened) > 1) {
            return Ok(());
        }
        open.remove(&path).map_or(Ok(()), Opened::close)
    }
}

/// Whether only writing is what the system refuses.
fn is_forbidden(error: &Error) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    matches!(error, Error::Io { source, .. } if matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem))
}

impl Opened {
    fn base(&self, place: &Place, how: How) -> Result<Arc<Base>> {
        if let Some(base) = self.bases.lock().get(&place.volume).and_then(Weak::upgrade) {
            return Ok(base);
        }
        let base = self.open_base(place, how).map_err(|failure| failure.about(&self.name(place)))?;
        let base = Arc::new(base);
        self.bases.lock().insert(place.volume.clone(), Arc::downgrade(&base));
        Ok(base)
    }

    fn open_base(&self, place: &Place, how: How) -> Result<Base> {
        let name = &place.volume;
        let volume = match self.volumes.volume(name) {
            Err(Error::Errno(Errno::NOENT)) if how.may_create && !self.is_read_only => self
                .volumes
                .create(name, volume_bytes(self.disk.block_size()))
                .and_then(|()| self.volumes.volume(name)),
            done => done,
        };
        let volume = volume.map_err(|error| match error {
            Error::Errno(Errno::NOENT) if how.may_create => {
                Failure::new(code::CANTOPEN, "there is no such volume, and the disk is open for reading only")
            }
            Error::Errno(Errno::NOENT) => Failure::new(code::CANTOPEN, "there is no such volume"),
            Error::Errno(Errno::INVAL) => Failure::new(
                code::CANTOPEN,
                "a volume's name has 1 to 200 bytes, and none of them is `?` or a control character",
            ),
            error => Failure::of(code::CANTOPEN, &error),
        })?;
        Base::open(&self.disk, volume)
    }

    fn name(&self, place: &Place) -> String {
        format!("{}, volume {}", self.path.display(), place.volume)
    }

    /// Whether it has such a volume.
    pub(crate) fn has_volume(&self, name: &str) -> bool {
        self.volumes.list().is_ok_and(|all| all.iter().any(|volume| volume.name == name))
    }

    /// Removes a volume.
    pub(crate) fn remove_volume(&self, name: &str) -> Result<()> {
        self.volumes.remove(name).map_err(|error| match error {
            Error::Errno(Errno::BUSY) => Failure::new(code::BUSY, format!("volume {name} is open")),
            error => Failure::of(code::DELETE, &error),
        })
    }

    /// What the disk has done, as JSON for people and programs.
    pub(crate) fn counters(&self) -> String {
        let (done, space) = (self.disk.counters(), self.disk.space());
        format!(
            "{{\"flushes\":{},\"bytes\":{},\"client_bytes\":{},\"chunks\":{},\"checkpoints\":{},\"spilled_bytes\":{},\
             \"space_bytes\":{},\"used_bytes\":{}}}",
            done.flushes,
            done.bytes,
            done.client_bytes,
            done.chunks,
            done.checkpoints,
            done.spilled_bytes,
            space.all,
            space.used
        )
    }

    /// A file belongs to a connection.
    pub(crate) fn belongs(&self, side: &Arc<Side>, connection: usize) {
        self.belongs_to_none(side);
        self.sides.lock().push((connection, Arc::clone(side)));
    }

    /// It does so no more.
    pub(crate) fn belongs_to_none(&self, side: &Arc<Side>) {
        self.sides.lock().retain(|(_, other)| !Arc::ptr_eq(other, side));
    }

    /// The other files of its connection that are written, and wait for the word that their transaction is complete.
    pub(crate) fn written_with(&self, side: &Arc<Side>) -> Vec<Arc<Side>> {
        let sides = self.sides.lock().clone();
        let is_it = |other: &Arc<Side>| Arc::ptr_eq(other, side);
        let Some(connection) =
            sides.iter().find(|(_, other)| is_it(other)).map(|(connection, _)| *connection)
        else {
            return Vec::new();
        };
        let of_it = sides.into_iter().filter(|(other, side)| *other == connection && !is_it(side));
        of_it.map(|(_, side)| side).filter(|side| side.is_written()).collect()
    }

    /// The transaction over several databases that a super-journal ties together.
    ///
    /// # Errors
    /// If they are not all on this disk: they could not become one unit.
    pub(crate) fn group(&self, name: &str) -> Result<Arc<Group>> {
        let place = Place::of(OsStr::new(name))?;
        let tied = self.volatiles.find(&place.volume).filter(|_| place.disk == self.path);
        if !tied.is_some_and(|tied| self.has_all(&tied)) {
            let text = "a transaction over databases that are not all on one logical disk cannot be atomic";
            return Err(Failure::new(code::WRITE, text));
        }
        let mut groups = self.groups.lock();
        if let Some(group) = groups.get(&place.volume) {
            return Ok(Arc::clone(group));
        }
        drop(groups);
        let group = Arc::new(Group::begin(&self.disk));
        groups = self.groups.lock();
        Ok(Arc::clone(groups.entry(place.volume).or_insert(group)))
    }

    /// Whether all journals that a super-journal names are of databases here.
    fn has_all(&self, tied: &Volatile) -> bool {
        let mut names = vec![0; usize::try_from(tied.size()).unwrap_or(0)];
        let is_here = |name: &[u8]| {
            std::str::from_utf8(name)
                .is_ok_and(|name| Place::of(OsStr::new(name)).is_ok_and(|place| place.disk == self.path))
        };
        tied.read(0, &mut names).is_ok_and(|all| all)
            && names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).all(is_here)
    }

    /// Removes a file that is no database. If it ties a transaction over several databases together, that happens now.
    ///
    /// # Errors
    /// Those of the unit; then nothing is removed.
    pub(crate) fn remove_volatile(&self, name: &str) -> Result<bool> {
        let group = self.groups.lock().remove(name);
        if let Some(group) = group {
            group.end()?;
        }
        Ok(self.volatiles.remove(name))
    }

    /// Makes all stable, and the next opening short.
    fn close(self: Arc<Self>) -> Result<()> {
        let Some(opened) = Arc::into_inner(self) else { return Ok(()) };
        let Self { disk, volumes, path, bases, groups, sides, .. } = opened;
        drop((volumes, bases, groups, sides));
        let Some(disk) = Arc::into_inner(disk) else { return Ok(()) };
        disk.close().map_err(|error| Failure::of(code::FSYNC, &error).about(&path.display().to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_two_parts() {
        let place = |name: &str| Place::of(OsStr::new(name)).map_err(|failure| failure.code);
        let found = Place { disk: "/srv/a.lld".into(), volume: "orders".into() };
        assert_eq!(place("/srv/a.lld/orders"), Ok(found));
        for name in ["orders", "/", "", ".."] {
            assert_eq!(place(name), Err(code::CANTOPEN), "{name}");
        }
    }
}
