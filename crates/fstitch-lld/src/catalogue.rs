//! The catalogue of volumes: the first list of a disk, if it is used for volumes.
//!
//! ```text
//!   position 0: magic "FSLDVOLS", version (4 bytes)
//!   others: entries of 256 bytes, as many as a block has room for: list (8; 0: none), bytes (8), length of the name (1), name
//! ```
//!
//! Every change is a unit: a volume is there with its list, or neither is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fstitch_core::lock::Mutex;
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::order::rank;
use fstitch_core::{Errno, Error, Le, Result};

use crate::aru::Aru;
use crate::conflict::EndError;
use crate::disk::Disk;
use crate::record::ListId;
use crate::state::damaged;
use crate::volume::{Store, Volume, blocks_of};

/// The list that says what a disk is used for.
pub const FIRST_LIST: ListId = 1;
const MAGIC: &[u8; 8] = b"FSLDVOLS";
const VERSION: u32 = 1;
const ENTRY: usize = 256;
const NAME_AT: usize = 17;
/// The longest name, in bytes.
pub const NAME_MAX: usize = 200;

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Its name: 1 to 200 bytes, none of them a control character or `/`, `?`.
    pub name: String,
    /// The list that its blocks are in.
    pub list: ListId,
    /// Its size.
    pub bytes: u64,
    /// Blocks of the disk that it takes.
    pub blocks: u64,
}

/// The volumes of a disk.
pub struct Volumes {
    disk: Arc<Disk>,
    /// One change at a time; what is open knows when its size changes.
    open: Mutex<BTreeMap<ListId, Arc<AtomicU64>>, rank::Gate>,
}

/// An entry, and where it is.
struct Found {
    position: u64,
    offset: usize,
    info: VolumeInfo,
}

impl Volumes {
    /// The volumes of a disk, which has a catalogue from now on.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the disk is used for something else; those of the disk.
    pub fn open(disk: Arc<Disk>) -> Result<Self> {
        let volumes = Self { disk, open: Mutex::new(BTreeMap::new()) };
        match volumes.disk.next_at(FIRST_LIST, 0) {
            Ok(_) => volumes.check_head()?,
            Err(Error::Errno(Errno::NOENT)) => volumes.make()?,
            Err(Error::Errno(Errno::INVAL)) => return Err(used_otherwise()),
            Err(error) => return Err(error),
        }
        Ok(volumes)
    }

    /// The disk.
    #[must_use]
    pub fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }

    fn make(&self) -> Result<()> {
        let unit = self.disk.begin();
        if unit.new_list(true)? != FIRST_LIST {
            return Err(used_otherwise());
        }
        let mut head = vec![0; self.disk.block_size()];
        head[..8].copy_from_slice(MAGIC);
        Le::put_u32(&mut head, 8, VERSION);
        unit.write_at(FIRST_LIST, 0, &head)?;
        ended(unit)
    }

    fn check_head(&self) -> Result<()> {
        let mut head = vec![0; self.disk.block_size()];
        self.disk.read_at(FIRST_LIST, 0, &mut head)?;
        if &head[..8] != MAGIC {
            return Err(used_otherwise());
        }
        match Le::u32(&head, 8) {
            VERSION => Ok(()),
            version => Err(Error::Unsupported(format!("version {version} of the catalogue of volumes"))),
        }
    }

    /// All volumes, by their names.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the catalogue is damaged; those of the disk.
    pub fn list(&self) -> Result<Vec<VolumeInfo>> {
        let mut all: Vec<_> = self.entries()?.into_iter().map(|found| found.info).collect();
        all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    fn entries(&self) -> Result<Vec<Found>> {
        let mut found = Vec::new();
        let mut bytes = vec![0; self.disk.block_size()];
        let mut next = 1;
        while let Some((position, block)) = self.disk.next_at(FIRST_LIST, next)? {
            self.disk.read(block, &mut bytes)?;
            for (slot, entry) in bytes.chunks_exact(ENTRY).enumerate() {
                if let Some(info) = self.decode(entry)? {
                    found.push(Found { position, offset: slot * ENTRY, info });
                }
            }
            next = position + 1;
        }
        Ok(found)
    }

    fn decode(&self, entry: &[u8]) -> Result<Option<VolumeInfo>> {
        let list = Le::u64(entry, 0);
        if list == 0 {
            return Ok(None);
        }
        let len = usize::from(entry[NAME_AT - 1]);
        let name = entry.get(NAME_AT..NAME_AT + len).and_then(|name| std::str::from_utf8(name).ok());
        let name = name.filter(|name| check_name(name).is_ok()).map(str::to_owned);
        let name = name.ok_or_else(|| damaged("a volume's name in the catalogue".into()))?;
        let blocks = self.disk.list_len(list).map_err(|_| damaged(format!("volume {name} has no list")))?;
        Ok(Some(VolumeInfo { name, list, bytes: Le::u64(entry, 8), blocks }))
    }

    fn find(&self, name: &str) -> Result<Found> {
        let found = self.entries()?.into_iter().find(|found| found.info.name == name);
        found.ok_or(Error::Errno(Errno::NOENT))
    }

    /// Makes a volume, which takes nothing until it is written.
    ///
    /// # Errors
    /// `EEXIST` if there is one of that name, `EINVAL` if the name or the size cannot be, `ENOSPC`.
    pub fn create(&self, name: &str, bytes: u64) -> Result<()> {
        check_name(name)?;
        self.check_size(bytes)?;
        let _one = self.open.lock();
        let entries = self.entries()?;
        if entries.iter().any(|found| found.info.name == name) {
            return Err(Errno::EXIST.into());
        }
        let per_block = self.disk.block_size() / ENTRY;
        let taken = |slot: u64| {
            let (position, offset) = place_of(slot, per_block);
            entries.iter().any(|found| (found.position, found.offset) == (position, offset))
        };
        let slot = (0..).find(|slot| !taken(*slot)).expect("some number is not taken");
        let unit = self.disk.begin();
        let list = unit.new_list(true)?;
        let mut entry = [0; ENTRY];
        Le::put_u64(&mut entry, 0, list);
        Le::put_u64(&mut entry, 8, bytes);
        entry[NAME_AT - 1] = name.len().to_le_bytes()[0];
        entry[NAME_AT..NAME_AT + name.len()].copy_from_slice(name.as_bytes());
        let (position, offset) = place_of(slot, per_block);
        self.put(&unit, position, offset, &entry)?;
        ended(unit)
    }

    /// Changes an entry in a unit.
    fn put(&self, unit: &Aru<'_>, position: u64, offset: usize, entry: &[u8; ENTRY]) -> Result<()> {
        let mut bytes = vec![0; self.disk.block_size()];
        unit.read_at(FIRST_LIST, position, &mut bytes)?;
        bytes[offset..offset + ENTRY].copy_from_slice(entry);
        unit.write_at(FIRST_LIST, position, &bytes)
    }

    fn check_size(&self, bytes: u64) -> Result<()> {
        let is_whole = bytes.is_multiple_of(to_u64(self.disk.block_size()));
        if bytes > 0 && is_whole && i64::try_from(bytes).is_ok() { Ok(()) } else { Err(Errno::INVAL.into()) }
    }

    /// Removes a volume and all that is in it.
    ///
    /// # Errors
    /// `ENOENT` if there is none of that name, `EBUSY` if it is open.
    pub fn remove(&self, name: &str) -> Result<()> {
        let mut open = self.open.lock();
        let found = self.find(name)?;
        open.retain(|_, blocks| Arc::strong_count(blocks) > 1);
        if open.contains_key(&found.info.list) {
            return Err(Errno::BUSY.into());
        }
        let unit = self.disk.begin();
        unit.delete_list(found.info.list)?;
        self.put(&unit, found.position, found.offset, &[0; ENTRY])?;
        ended(unit)
    }

    /// Changes the size of a volume. What is beyond a smaller one is gone.
    ///
    /// # Errors
    /// `ENOENT` if there is none of that name, `EINVAL` if the size cannot be.
    pub fn resize(&self, name: &str, bytes: u64) -> Result<()> {
        self.check_size(bytes)?;
        let open = self.open.lock();
        let found = self.find(name)?;
        let blocks = blocks_of(bytes, self.disk.block_size());
        let change = || {
            let unit = self.disk.begin();
            let mut entry = vec![0; self.disk.block_size()];
            unit.read_at(FIRST_LIST, found.position, &mut entry)?;
            Le::put_u64(&mut entry, found.offset + 8, bytes);
            unit.write_at(FIRST_LIST, found.position, &entry)?;
            ended(unit)
        };
        change()?;
        if let Some(size) = open.get(&found.info.list) {
            size.store(blocks, Ordering::SeqCst);
        }
        // If a failure comes before this, what is beyond the end stays where nobody reads it, and goes when the volume does or grows.
        self.disk.delete_range(found.info.list, blocks, u64::MAX).map(drop)
    }

    /// Opens a volume.
    ///
    /// # Errors
    /// `ENOENT` if there is none of that name.
    pub fn volume(&self, name: &str) -> Result<Volume> {
        let mut open = self.open.lock();
        let info = self.find(name)?.info;
        let blocks = blocks_of(info.bytes, self.disk.block_size());
        // After a failure in a resize it may have blocks beyond its end, which nobody can reach; who only reads leaves them.
        match self.disk.delete_range(info.list, blocks, u64::MAX) {
            Ok(_) | Err(Error::Errno(Errno::ROFS)) => {}
            Err(error) => return Err(error),
        }
        let size = open.entry(info.list).or_insert_with(|| Arc::new(AtomicU64::new(blocks)));
        Ok(Volume::new(Store::Disk(Arc::clone(&self.disk)), info.list, Arc::clone(size)))
    }
}

/// Where an entry of a number is.
fn place_of(slot: u64, per_block: usize) -> (u64, usize) {
    let per_block = to_u64(per_block);
    (1 + slot / per_block, to_usize(slot % per_block) * ENTRY)
}

fn check_name(name: &str) -> Result<()> {
    let is_odd = |letter: char| letter.is_control() || matches!(letter, '/' | '?');
    let fits = (1..=NAME_MAX).contains(&name.len()) && !name.contains(is_odd);
    if fits { Ok(()) } else { Err(Errno::INVAL.into()) }
}

fn used_otherwise() -> Error {
    Error::Unsupported("volumes on a logical disk that is used for something else".into())
}

/// Ends a unit that nobody else's can be in the way of.
fn ended(unit: Aru<'_>) -> Result<()> {
    unit.end_durable().map_err(|error| match error {
        EndError::Disk(error) => error,
        conflict @ EndError::Conflict(_) => damaged(format!("the catalogue of volumes: {conflict}")),
    })
}
