//! The volumes that this process has opened, and what a `pg_t` means.

use std::ffi::{OsStr, c_int};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fstitch_client::{GroupNo, Volume};

/// Numbers of groups on one volume are below this; a `pg_t` is the volume's index times this, and the number.
const NUMBERS: u32 = 1 << 16;
/// How many volumes a process may open, so that every `pg_t` is positive.
const VOLUMES_MAX: usize = 1 << 10;

/// What has been opened, in this order.
#[derive(Debug)]
struct Volumes {
    opened: Vec<Arc<Volume>>,
    used: Option<usize>,
}

/// C has calls without an object, so there is one table for the process.
static VOLUMES: Mutex<Volumes> = Mutex::new(Volumes { opened: Vec::new(), used: None });

/// What a `pg_t` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) index: usize,
    pub(crate) group: GroupNo,
}

impl Place {
    /// Its `pg_t`.
    pub(crate) fn number(self) -> io::Result<c_int> {
        let index = u32::try_from(self.index).ok().filter(|_| self.group.0 < NUMBERS);
        let number = index.and_then(|index| index.checked_mul(NUMBERS)?.checked_add(self.group.0));
        number.and_then(|number| c_int::try_from(number).ok()).ok_or_else(|| errno(libc::EMFILE))
    }
}

/// What a `pg_t` names, which need not exist.
pub(crate) fn place(number: c_int) -> io::Result<Place> {
    let number = u32::try_from(number).map_err(|_| errno(libc::EBADF))?;
    let index = usize::try_from(number / NUMBERS).map_err(|_| errno(libc::EBADF))?;
    Ok(Place { index, group: GroupNo(number % NUMBERS) })
}

/// An error with this number.
pub(crate) fn errno(number: c_int) -> io::Error {
    io::Error::from_raw_os_error(number)
}

/// Opens a volume and uses it; answers its index.
pub(crate) fn open(path: &OsStr, or_fsync: bool) -> io::Result<c_int> {
    let volume = if or_fsync { Volume::open_or_fsync(path) } else { Volume::open(path) };
    add(&mut volumes(), volume?).and_then(number)
}

/// Uses a volume from now on; answers the one that was used before, or this if there was none.
pub(crate) fn switch(volume: c_int) -> io::Result<c_int> {
    let mut volumes = volumes();
    let index = usize::try_from(volume).ok().filter(|&index| index < volumes.opened.len());
    let index = index.ok_or_else(|| errno(libc::EBADF))?;
    number(volumes.used.replace(index).unwrap_or(index))
}

/// The volume that is used; the current directory's if none was chosen.
pub(crate) fn in_use() -> io::Result<(usize, Arc<Volume>)> {
    let mut volumes = volumes();
    let index = match volumes.used {
        Some(index) => index,
        None => add(&mut volumes, Volume::open(".")?)?,
    };
    Ok((index, Arc::clone(&volumes.opened[index])))
}

/// The volume with this index. A program that was started with groups, and names one before it opened anything, means
/// the current directory's volume, as for `pg_create`.
pub(crate) fn volume(index: usize) -> io::Result<Arc<Volume>> {
    if index == 0 && volumes().opened.is_empty() {
        return in_use().map(|(_, volume)| volume);
    }
    volumes().opened.get(index).map(Arc::clone).ok_or_else(|| errno(libc::EBADF))
}

fn add(volumes: &mut Volumes, volume: Volume) -> io::Result<usize> {
    let index = volumes.opened.len();
    if index >= VOLUMES_MAX {
        return Err(errno(libc::EMFILE));
    }
    volumes.opened.push(Arc::new(volume));
    volumes.used = Some(index);
    Ok(index)
}

fn number(index: usize) -> io::Result<c_int> {
    c_int::try_from(index).map_err(|_| errno(libc::EMFILE))
}

/// A panic elsewhere leaves the table whole: it only grows, in single steps.
fn volumes() -> MutexGuard<'static, Volumes> {
    VOLUMES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_first_volume_are_those_of_the_ioctls() {
        let there_and_back = |index, group| {
            let whole = Place { index, group: GroupNo(group) };
            let number = whole.number().unwrap();
            assert_eq!(place(number).unwrap(), whole);
            number
        };
        assert_eq!(there_and_back(0, 1), 1);
        assert_eq!(there_and_back(2, 5), 131_077);
        there_and_back(VOLUMES_MAX - 1, NUMBERS - 1);
        assert!(Place { index: 0, group: GroupNo(NUMBERS) }.number().is_err());
        assert!(Place { index: usize::MAX, group: GroupNo(1) }.number().is_err());
        assert!(place(-1).is_err());
    }
}
