//! What is open: disks, units and volumes, each by a number that no other one ever has again.
//!
//! C programs hold the number as a pointer, which leads nowhere. It is looked up by each call: one that was closed, that is of another
//! kind or that was never given out is told, and nothing is followed. A child that was forked finds nothing of its parent's: what it has is a
//! copy of a disk that goes on without it.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::ThreadId;

use fstitch_lld::{Aru, Disk, Visibility, Volume, Volumes};

use crate::failure::{Failure, Result};

/// Numbers go in such steps, so that they look like addresses of something.
const STEP: usize = 16;

/// A disk as C programs have it.
pub struct LldDisk {
    _private: [u8; 0],
}

/// A unit as C programs have it.
pub struct LldUnit {
    _private: [u8; 0],
}

/// A volume as C programs have it.
pub struct LldVolume {
    _private: [u8; 0],
}

/// A disk that is open.
pub(crate) struct Opened {
    pub(crate) disk: Arc<Disk>,
    pub(crate) visibility: Visibility,
    /// Held shared by who writes whole blocks of volumes, alone by who changes a part of one.
    pub(crate) parts: RwLock<()>,
    /// The catalogue, once somebody has asked for it.
    volumes: Mutex<Option<Arc<Volumes>>>,
    /// Which threads have begun the units that are open, where one waits for the other.
    begun: Option<Mutex<Vec<ThreadId>>>,
}

/// A unit that is open, or is just ending.
pub(crate) struct OpenUnit {
    unit: RwLock<Option<Aru<'static>>>,
    thread: ThreadId,
    /// Goes last, so that nobody has the disk who does not have this.
    pub(crate) on: Arc<Opened>,
}

/// A volume that is open.
pub(crate) struct OpenVolume {
    pub(crate) volume: Volume,
    /// Goes last, as above.
    pub(crate) on: Arc<Opened>,
}

/// Whatever a number stands for.
pub(crate) enum Open {
    Disk(Arc<Opened>),
    Unit(Arc<OpenUnit>),
    Volume(Arc<OpenVolume>),
}

/// What can be found by its number.
pub(crate) trait Kind: Sized {
    const NAME: &'static str;
    fn of(open: &Open) -> Option<&Arc<Self>>;
    fn open(self: Arc<Self>) -> Open;
}

macro_rules! kinds {
    ($($kind:ident, $variant:ident, $name:literal;)*) => {$(
        impl Kind for $kind {
            const NAME: &'static str = $name;

            fn of(open: &Open) -> Option<&Arc<Self>> {
                if let Open::$variant(found) = open { Some(found) } else { None }
            }

            fn open(self: Arc<Self>) -> Open {
                Open::$variant(self)
            }
        }
    )*};
}

kinds! {
    Opened, Disk, "disk";
    OpenUnit, Unit, "unit";
    OpenVolume, Volume, "volume";
}

struct Table {
    last: usize,
    /// With the process that has opened it.
    open: BTreeMap<usize, (u32, Open)>,
}

impl Table {
    fn find<T: Kind>(&self, number: usize) -> Result<Arc<T>> {
        let found = self.open.get(&number).filter(|(process, _)| *process == std::process::id());
        found.and_then(|(_, open)| T::of(open)).cloned().ok_or_else(unknown::<T>)
    }
}

/// C programs name what is open by a number alone, so there is one table for the process.
static TABLE: RwLock<Table> = RwLock::new(Table { last: 0, open: BTreeMap::new() });

/// A panic elsewhere leaves the table whole: it changes in single steps.
fn table() -> RwLockReadGuard<'static, Table> {
    TABLE.read().unwrap_or_else(PoisonError::into_inner)
}

fn table_mut() -> RwLockWriteGuard<'static, Table> {
    TABLE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a number to what has been opened.
pub(crate) fn add<T: Kind>(open: Arc<T>) -> usize {
    let mut table = table_mut();
    table.last += STEP;
    let number = table.last;
    table.open.insert(number, (std::process::id(), open.open()));
    number
}

fn unknown<T: Kind>() -> Failure {
    Failure::invalid(format!("no {} that is open", T::NAME))
}

/// What has a number.
pub(crate) fn find<T: Kind>(number: usize) -> Result<Arc<T>> {
    table().find(number)
}

/// What has a number, which is nobody's from now on.
pub(crate) fn take<T: Kind>(number: usize) -> Result<Arc<T>> {
    let mut table = table_mut();
    let found = table.find(number)?;
    table.open.remove(&number);
    Ok(found)
}

/// Takes a disk that nothing else is open of.
pub(crate) fn take_disk(number: usize) -> Result<Disk> {
    let mut table = table_mut();
    let opened = table.find::<Opened>(number)?;
    table.open.remove(&number);
    let Opened { disk, volumes, .. } = match Arc::try_unwrap(opened) {
        Ok(alone) => alone,
        Err(opened) => {
            table.open.insert(number, (std::process::id(), opened.open()));
            let text = "units or volumes of the disk are open, or a call is under way";
            return Err(Failure::new(libc::EBUSY, text));
        }
    };
    drop(volumes);
    Ok(Arc::into_inner(disk).expect("whoever has it has what was taken, too"))
}

fn unpoisoned<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Opened {
    pub(crate) fn new(disk: Disk, visibility: Visibility, sequential: bool) -> Arc<Self> {
        Arc::new(Self {
            disk: Arc::new(disk),
            visibility,
            parts: RwLock::new(()),
            volumes: Mutex::new(None),
            begun: sequential.then(Mutex::default),
        })
    }

    /// The catalogue; `None` if there is none, and none is to be made.
    pub(crate) fn volumes(&self, make: bool) -> Result<Option<Arc<Volumes>>> {
        let mut volumes = unpoisoned(&self.volumes);
        if volumes.is_none() && (make || self.disk.info().lists > 0) {
            self.may_begin()?;
            *volumes = Some(Arc::new(Volumes::open(Arc::clone(&self.disk))?));
        }
        Ok(volumes.clone())
    }

    /// Fails if a unit would wait for one that the same thread is to end.
    pub(crate) fn may_begin(&self) -> Result<()> {
        let this = std::thread::current().id();
        let waits = self.begun.as_ref().is_some_and(|begun| unpoisoned(begun).contains(&this));
        if waits {
            return Err(Failure::new(
                libc::EDEADLK,
                "this thread has begun the unit whose end it would wait for",
            ));
        }
        Ok(())
    }

    /// Begins a unit.
    pub(crate) fn begin(self: &Arc<Self>) -> Result<Arc<OpenUnit>> {
        self.may_begin()?;
        let (unit, thread) = (self.disk.begin_shared(), std::thread::current().id());
        self.begun.iter().for_each(|begun| unpoisoned(begun).push(thread));
        Ok(Arc::new(OpenUnit { unit: RwLock::new(Some(unit)), thread, on: Arc::clone(self) }))
    }
}

impl OpenUnit {
    /// Works in the unit, if it has not ended meanwhile.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&Aru<'static>) -> Result<T>) -> Result<T> {
        work(self.unit.read().unwrap_or_else(PoisonError::into_inner).as_ref().ok_or_else(unknown::<Self>)?)
    }

    /// The unit, to be ended or dropped, when nobody works in it any more.
    pub(crate) fn take(&self) -> Result<Aru<'static>> {
        let unit =
            self.unit.write().unwrap_or_else(PoisonError::into_inner).take().ok_or_else(unknown::<Self>)?;
        if let Some(begun) = &self.on.begun {
            let mut begun = unpoisoned(begun);
            let at = begun.iter().position(|thread| *thread == self.thread);
            begun.swap_remove(at.expect("it was noted when it began, and is taken once"));
        }
        Ok(unit)
    }
}

#[cfg(test)]
mod tests {
    use fstitch_core::MemDevice;
    use fstitch_lld::{FormatOptions, Options};

    use super::*;

    fn opened(sequential: bool) -> Arc<Opened> {
        let device = Arc::new(MemDevice::new(4096, 4096));
        let format = FormatOptions { segment_size: 64 << 10, ..FormatOptions::default() };
        Disk::format(device.clone(), &format).unwrap();
        let options = Options { sequential, ..Options::default() };
        Opened::new(Disk::open(device, &options).unwrap().0, options.visibility, sequential)
    }

    #[test]
    fn a_number_is_of_one_thing_only() {
        let disk = add(opened(false));
        let unit = add(find::<Opened>(disk).unwrap().begin().unwrap());
        assert!(
            find::<OpenUnit>(disk).is_err()
                && find::<Opened>(unit).is_err()
                && find::<OpenVolume>(unit).is_err()
        );
        assert!(find::<Opened>(0).is_err() && find::<Opened>(disk + 1).is_err());
        assert!(take_disk(unit).is_err() && find::<OpenUnit>(unit).is_ok());
        assert_eq!(take_disk(disk).err().unwrap().errno, libc::EBUSY);
        let held = take::<OpenUnit>(unit).unwrap();
        assert!(take::<OpenUnit>(unit).is_err() && find::<OpenUnit>(unit).is_err());
        // Somebody has found it before, and is slower.
        drop(held.take().unwrap());
        assert!(held.with(|_| Ok(())).is_err() && held.take().is_err());
        drop(held);
        take_disk(disk).unwrap().close().unwrap();
        assert_ne!(add(opened(false)), disk);
    }

    #[test]
    fn nobody_waits_for_himself() {
        let disk = opened(true);
        let unit = disk.begin().unwrap();
        assert_eq!(disk.begin().err().unwrap().errno, libc::EDEADLK);
        assert_eq!(disk.volumes(true).err().unwrap().errno, libc::EDEADLK);
        std::thread::scope(|scope| {
            // Another thread may wait, and gets its turn.
            let other = scope.spawn(|| disk.begin().unwrap().take().unwrap().end().unwrap());
            unit.take().unwrap().end().unwrap();
            other.join().unwrap();
        });
        disk.begin().unwrap().take().unwrap().abort();
        disk.begin().unwrap();
    }
}
