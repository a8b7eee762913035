//! MinixLLD: files on a logical disk, every operation of which is an atomic recovery unit.

mod mkfs;

use std::sync::Arc;

use fstitch_core::{
    BlockDevice, CheckReport, Clock, Consistency, Error, FileSystem, RepairOptions, RepairReport, Result,
    SystemClock,
};
use fstitch_fs::arrange::Arrangement;
use fstitch_lld::{Disk, device_block_size};
use fstitch_minixlld::{MinixLld, Options};
use serde_json::Value;

use crate::lent::lend;
use crate::make::{Asked, Making};
use crate::{
    Description, Format, Health, Identity, Look, OwnJournal, Recovering, Recovery, References, Volume, show,
};

/// Files on a logical disk.
pub struct Minix;

/// What a unit is called where consistency mechanisms are: everything that happens, as a whole and in its order.
const MECHANISM: Consistency = Consistency::Full;

/// Opens a disk for looking at it.
fn look_at(device: Arc<dyn BlockDevice>) -> Result<(Disk, fstitch_lld::Recovered)> {
    Disk::open(device, &fstitch_lld::Options { read_only: true, ..fstitch_lld::Options::default() })
}

/// Opens the volume for looking at it.
fn look_into(disk: Disk) -> Result<MinixLld> {
    MinixLld::open(disk, Options { read_only: true, ..Options::default() }, Arc::new(SystemClock::new()))
}

impl Format for Minix {
    fn names(&self) -> &'static [&'static str] {
        &["minixlld"]
    }

    fn thing(&self) -> &'static str {
        "a logical disk"
    }

    fn absent(&self) -> &'static str {
        "no logical disk)"
    }

    fn probe(&self, head: &[u8]) -> Option<std::result::Result<u32, String>> {
        device_block_size(head).map(Ok)
    }

    fn look(&self, device: &dyn BlockDevice) -> Result<Look> {
        lend(device, None, |device| look_into(look_at(device)?.0).map(drop))?;
        Ok(Look { block_size: device.geometry().block_size, journal: OwnJournal::None })
    }

    fn needs_recovery(&self, device: &dyn BlockDevice) -> Result<bool> {
        lend(device, None, |device| Ok(look_at(device)?.1.chunks > 0))
    }

    /// Opening does again what the log says, and closing makes a checkpoint of it.
    fn recover(&self, device: &dyn BlockDevice, how: &mut Recovering<'_>) -> Result<Option<Recovery>> {
        let in_memory = how.for_reading;
        lend(device, None, |device| {
            let (disk, recovered) = Disk::open(device, &fstitch_lld::Options::default())?;
            disk.close()?;
            let transactions = u32::try_from(recovered.chunks).unwrap_or(u32::MAX);
            let recovery =
                Recovery { in_memory, transactions, blocks: recovered.records, ..Recovery::default() };
            Ok((recovered.chunks > 0).then_some(recovery))
        })
    }

    fn open(
        &self,
        device: Arc<dyn BlockDevice>,
        arrangement: &Arrangement,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn Volume>> {
        let Arrangement { consistency, cache, fs, .. } = arrangement;
        if let Some(asked) = consistency.filter(|asked| ![MECHANISM, Consistency::Soft].contains(asked)) {
            return Err(Error::Unsupported(format!(
                "consistency `{asked}` on MinixLLD, every operation of which is an atomic recovery unit"
            )));
        }
        let of_disk = fstitch_lld::Options {
            cache_size: cache.cache_size,
            read_only: fs.read_only,
            ..fstitch_lld::Options::default()
        };
        let options = Options { atime: fs.atime, read_only: fs.read_only, ..Options::default() };
        Ok(Arc::new(MinixLld::open(Disk::open(device, &of_disk)?.0, options, clock)?))
    }

    fn has_choice(&self) -> bool {
        false
    }

    fn describe(
        &self,
        device: &dyn BlockDevice,
        _external: Option<&dyn BlockDevice>,
        _details: bool,
    ) -> Result<Description> {
        lend(device, None, |device| {
            let fs = look_into(look_at(device)?.0)?;
            let (info, space, volume) = (fs.disk().info(), fs.disk().space(), fs.volume());
            let label = String::from_utf8_lossy(&volume.label).into_owned();
            let fields = [
                ("format", "minixlld".to_owned()),
                ("label", label.clone()),
                ("UUID", show::uuid(&volume.uuid)),
                ("blocks of", show::size(info.block_size.into())),
                ("segments", format!("{}, {} free", info.segments, info.free_segments)),
                ("space", format!("{}, of which {} is used", show::size(space.all), show::size(space.used))),
            ];
            let values = [
                ("format", Value::from("minixlld")),
                ("label", label.into()),
                ("uuid", show::uuid(&volume.uuid).into()),
                ("block_size_bytes", info.block_size.into()),
                ("segment_size_bytes", info.segment_size.into()),
                ("segments", info.segments.into()),
                ("space_bytes", space.all.into()),
                ("used_bytes", space.used.into()),
            ];
            Ok(Description::of(fields, values))
        })
    }

    fn about(&self, _kind: &str) -> &'static str {
        "Make a logical disk with a file system, every operation of which happens as a whole"
    }

    fn extended_words(&self) -> &'static str {
        "segment_size=BYTES"
    }

    fn plan(&self, asked: &Asked) -> Result<Box<dyn Making>> {
        Ok(Box::new(mkfs::plan(asked)?))
    }

    fn identify(&self, device: &dyn BlockDevice, identity: &Identity) -> Result<()> {
        let Identity { label, uuid } = identity.clone();
        lend(device, None, |device| {
            let (disk, _) = Disk::open(device, &fstitch_lld::Options::default())?;
            fstitch_minixlld::identify(&disk, label, uuid)?;
            disk.close()
        })
    }

    /// Nothing is behind the newest checkpoint, which is what an unmount leaves.
    fn is_marked_clean(&self, device: &dyn BlockDevice) -> bool {
        let found = lend(device, None, |device| look_at(device).map(|(_, recovered)| recovered));
        found.is_ok_and(|recovered| recovered.chunks == 0 && recovered.damaged.is_none())
    }

    /// Everything is checked. There is nothing that a crash leaves to be mended; what is damaged is reported.
    fn repair(&self, device: &dyn BlockDevice, _options: RepairOptions) -> Result<RepairReport> {
        let found = lend(device, None, check)?;
        Ok(RepairReport { left: found.clone(), found, mended: 0, runs: 1 })
    }
}

/// Checks the disk, and what is on it if the disk is sound.
fn check(device: Arc<dyn BlockDevice>) -> Result<CheckReport> {
    let (disk, recovered) = look_at(device)?;
    let mut report = disk.check(true, &mut |_| {})?;
    if let Some(damaged) = recovered.damaged {
        report.push(fstitch_core::FindingClass::Corrupt, "lost", damaged);
    }
    if report.is_clean() {
        return look_into(disk)?.check();
    }
    Ok(report)
}

impl Volume for MinixLld {
    fn format_name(&self) -> &'static str {
        "minixlld"
    }

    fn consistency(&self) -> Consistency {
        MECHANISM
    }

    fn health(&self) -> Health {
        Health { failure: self.failed(), dirty_bytes: 0 }
    }

    fn references(&self) -> References {
        Self::references(self)
    }

    fn take_over(&self, references: &References) {
        Self::take_over(self, references);
    }
}
