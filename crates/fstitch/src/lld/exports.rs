//! The volumes of a disk as exports of an NBD server, each also as a unit sees it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fstitch_core::lock::Mutex;
use fstitch_core::order::rank;
use fstitch_core::{BlockDevice, Errno, Result};
use fstitch_lld::{ListId, Recovered, Shared, Volume, Volumes};
use fstitch_nbd::{DeviceExport, Export, Exports, Extent, Features, Listed, ZeroOptions};

use super::volume::Shown;
use crate::size;

/// Extents that are asked for at a time.
const EXTENTS: usize = 256;

/// Units that have begun and not ended, by the token that stands for each.
#[derive(Default)]
pub struct Units(Mutex<BTreeMap<String, Arc<Shared>>, rank::Reclaim>);

impl Units {
    /// Begins a unit under a token that nobody has.
    pub fn begin(&self, token: &str, volumes: &Volumes) {
        self.0.lock().insert(token.to_owned(), Shared::begin(volumes.disk()));
    }

    /// The unit, which nobody finds any more.
    pub fn take(&self, token: &str) -> Option<Arc<Shared>> {
        self.0.lock().remove(token)
    }

    fn find(&self, token: &str) -> Option<Arc<Shared>> {
        self.0.lock().get(token).cloned()
    }
}

/// What an export is of: the list of a volume, which is nobody else's ever again, and the token of a unit.
type Key = (ListId, Option<String>);

/// The exports that connections have.
///
/// All connections to one have the same: it knows who changes parts of which blocks, and keeps two changes of one block apart.
#[derive(Default)]
pub struct Opened(Mutex<BTreeMap<Key, Weak<VolumeExport>>, rank::Reclaim>);

impl Opened {
    /// The export that others have already, or this one.
    fn one_for_all(&self, key: Key, export: VolumeExport) -> Arc<VolumeExport> {
        let mut opened = self.0.lock();
        opened.retain(|_, export| export.strong_count() > 0);
        if let Some(found) = opened.get(&key).and_then(Weak::upgrade) {
            return found;
        }
        let export = Arc::new(export);
        opened.insert(key, Arc::downgrade(&export));
        export
    }
}

/// What is served.
pub struct Served {
    pub volumes: Volumes,
    pub units: Units,
    pub opened: Opened,
    /// The smallest part of a block that clients may read and write.
    pub minimum: u32,
    pub read_only: bool,
    /// What opening the disk did again.
    pub recovered: Recovered,
    /// How long it took.
    pub opened_in: Duration,
}

impl Served {
    /// The volumes, as they are shown.
    pub fn shown(&self) -> Result<Vec<Shown>> {
        let block_size = self.volumes.disk().info().block_size;
        Ok(self.volumes.list()?.into_iter().map(|volume| Shown::new(volume, block_size)).collect())
    }
}

impl Exports for Served {
    fn list(&self) -> Result<Vec<Listed>> {
        let line = |bytes| format!("{} on a logical disk", size::show(bytes));
        let volumes = self.volumes.list()?.into_iter();
        Ok(volumes.map(|volume| Listed { description: line(volume.bytes), name: volume.name }).collect())
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Export>> {
        let (name, token) = match name.split_once("?aru=") {
            Some((name, token)) => (name, Some(token)),
            None => (name, None),
        };
        let volume = self.volumes.volume(name)?;
        let volume = match token {
            Some(token) => volume.in_unit(&self.units.find(token).ok_or(Errno::NOENT)?),
            None => volume,
        };
        let key = (volume.list(), token.map(str::to_owned));
        let export = VolumeExport::new(name, volume, self.minimum, self.read_only)?;
        Ok(self.opened.one_for_all(key, export))
    }
}

/// A volume, as clients of NBD see it.
pub struct VolumeExport {
    name: String,
    volume: Arc<Volume>,
    bytes: DeviceExport,
    unit: u64,
}

impl VolumeExport {
    fn new(name: &str, volume: Volume, minimum: u32, read_only: bool) -> Result<Self> {
        let volume = Arc::new(volume);
        let unit = u64::from(volume.geometry().block_size);
        let bytes = DeviceExport::new(Arc::clone(&volume) as Arc<dyn BlockDevice>, minimum, read_only)?;
        Ok(Self { name: name.to_owned(), volume, bytes, unit })
    }

    /// The whole blocks within some bytes: the first, and how many.
    fn whole(&self, offset: u64, len: u64) -> (u64, u64) {
        let (first, last) = (offset.div_ceil(self.unit), (offset + len) / self.unit);
        (first, last.saturating_sub(first))
    }
}

impl Export for VolumeExport {
    fn size(&self) -> u64 {
        self.bytes.size()
    }

    fn features(&self) -> Features {
        Features { has_status: true, ..self.bytes.features() }
    }

    fn name(&self) -> Option<String> {
        Some(self.name.clone())
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.bytes.read(offset, into)
    }

    fn write(&self, offset: u64, bytes: &[u8], fua: bool) -> Result<()> {
        self.bytes.write(offset, bytes, fua)
    }

    fn flush(&self) -> Result<()> {
        self.bytes.flush()
    }

    fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.bytes.trim(offset, len, fua)
    }

    fn write_zeroes(&self, offset: u64, len: u64, how: ZeroOptions) -> Result<()> {
        if !how.may_trim {
            return self.bytes.write_zeroes(offset, len, how);
        }
        let (first, count) = self.whole(offset, len);
        let edges = if count == 0 {
            [(offset, len), (offset, 0)]
        } else {
            let (start, end) = (first * self.unit, (first + count) * self.unit);
            [(offset, start - offset), (end, offset + len - end)]
        };
        // A part of a block is written, which is as quick as a block gets.
        for (offset, len) in edges.into_iter().filter(|(_, len)| *len > 0) {
            let how = ZeroOptions { fast: false, fua: false, ..how };
            self.bytes.write_zeroes(offset, len, how)?;
        }
        // Whoever writes a part of one of these blocks meanwhile has read the rest of it before: one comes after the other.
        self.bytes.trim(first * self.unit, count * self.unit, how.fua)
    }

    fn status(&self, offset: u64, len: u64, sink: &mut dyn FnMut(Extent) -> ControlFlow<()>) -> Result<()> {
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let first = at / self.unit;
            let count = end.div_ceil(self.unit) - first;
            for extent in self.volume.extents(first, count, EXTENTS)? {
                let stop = ((extent.start + extent.count) * self.unit).min(end);
                let found = if extent.allocated { Extent::data(stop - at) } else { Extent::hole(stop - at) };
                at = stop;
                if sink(found).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Bytes of a token.
pub const TOKEN: usize = 32;

/// Whether something could be a token.
pub fn is_token(text: &str) -> bool {
    text.len() == TOKEN && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use fstitch_core::MemDevice;
    use fstitch_lld::{Disk, FormatOptions, Options};

    use super::*;

    const BLOCK: usize = 4096;
    /// So many that threads meet even where they have to take turns.
    const ROUNDS: u32 = 60_000;

    fn served() -> Served {
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_image(4096, vec![0; 64 << 20]));
        Disk::format(Arc::clone(&device), &FormatOptions::default()).unwrap();
        let (disk, recovered) = Disk::open(device, &Options::default()).unwrap();
        let volumes = Volumes::open(Arc::new(disk)).unwrap();
        volumes.create("v", 1 << 20).unwrap();
        let (units, minimum, read_only, opened_in) = (Units::default(), 512, false, Duration::ZERO);
        Served { volumes, units, opened: Opened::default(), minimum, read_only, recovered, opened_in }
    }

    /// Writes its half of a block, alternating with other work there, and finds what it wrote each time.
    fn keeps_its_half(export: &dyn Export, half: usize) {
        let (offset, mut found) = ((half * BLOCK / 2) as u64, vec![0; BLOCK / 2]);
        for round in 0..ROUNDS {
            let byte = u8::try_from(round % 250).unwrap() + 1;
            export.write(offset, &vec![byte; BLOCK / 2], false).unwrap();
            export.read(offset, &mut found).unwrap();
            assert!(
                found.iter().all(|&found| found == byte),
                "half {half}, round {round}: another one is there"
            );
        }
    }

    #[test]
    fn connections_that_change_parts_of_one_block_keep_each_others() {
        let served = served();
        for token in [None, Some("t")] {
            if let Some(token) = token {
                served.units.begin(token, &served.volumes);
            }
            let name = token.map_or("v".to_owned(), |token| format!("v?aru={token}"));
            // As two connections open it.
            let exports = [served.open(&name).unwrap(), served.open(&name).unwrap()];
            thread::scope(|scope| {
                for (half, export) in exports.iter().enumerate() {
                    scope.spawn(move || keeps_its_half(export.as_ref(), half));
                }
            });
        }
    }

    #[test]
    fn what_is_opened_again_is_another_volume_if_it_was_made_again() {
        let served = served();
        let first = served.open("v").unwrap();
        first.write(0, &[7; BLOCK], false).unwrap();
        drop(first);
        served.volumes.remove("v").unwrap();
        served.volumes.create("v", 2 << 20).unwrap();
        let again = served.open("v").unwrap();
        let mut found = [1; BLOCK];
        again.read(0, &mut found).unwrap();
        assert_eq!((again.size(), found), (2 << 20, [0; BLOCK]));
    }
}
