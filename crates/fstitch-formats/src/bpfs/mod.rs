//! BPFS: every operation atomic, in order, and durable when it returns, on a device behind its log.

mod mkfs;

use std::sync::Arc;

use fstitch_bpfs::{Bpfs, Options, identify_on, recover_on, rename_on};
use fstitch_core::{
    BlockDevice, Clock, Consistency, Error, FileSystem, RepairOptions, RepairReport, Result, SystemClock,
};
use fstitch_fs::arrange::Arrangement;
use serde_json::Value;

use crate::lent::lend;
use crate::make::{Asked, Making};
use crate::{
    Description, Durability, Format, Health, Identity, Look, OwnJournal, Recovering, Recovery, References,
    Volume, show,
};

/// BPFS on a device.
pub struct BpfsFormat;

/// Bytes of its blocks.
const BLOCK: u32 = 4096;

/// What it is called where consistency mechanisms are that operations are flushed, or not.
const FLUSHED: Consistency = Consistency::Sync;
const WRITTEN: Consistency = Consistency::Full;

/// Opens the volume for looking at it.
fn look_into(device: Arc<dyn BlockDevice>) -> Result<Bpfs> {
    let options = Options { read_only: true, ..Options::default() };
    Bpfs::open_on(device, options, Arc::new(SystemClock::new()))
}

impl Format for BpfsFormat {
    fn names(&self) -> &'static [&'static str] {
        &["bpfs"]
    }

    fn thing(&self) -> &'static str {
        "a BPFS"
    }

    fn absent(&self) -> &'static str {
        "no BPFS)"
    }

    fn probe(&self, head: &[u8]) -> Option<std::result::Result<u32, String>> {
        Some(match fstitch_bpfs::probe(head)? {
            Ok(identity) if identity.log == 0 => {
                Err("is a BPFS without a log, for memory alone; `fstitch mkfs bpfs` makes one for files"
                    .into())
            }
            // What is damaged is told by whoever opens it.
            Ok(_) | Err(Error::Corrupt(_)) => Ok(BLOCK),
            Err(error) => Err(error.to_string()),
        })
    }

    fn look(&self, device: &dyn BlockDevice) -> Result<Look> {
        lend(device, None, |device| look_into(device).map(drop))?;
        Ok(Look { block_size: BLOCK, journal: OwnJournal::None })
    }

    fn needs_recovery(&self, device: &dyn BlockDevice) -> Result<bool> {
        let (_, found) = lend(device, None, identify_on)?;
        Ok(found.was_open || found.groups > 0)
    }

    fn recover(&self, device: &dyn BlockDevice, how: &mut Recovering<'_>) -> Result<Option<Recovery>> {
        if !self.needs_recovery(device)? {
            return Ok(None);
        }
        let recovered = lend(device, None, recover_on)?;
        let transactions = u32::try_from(recovered.groups).unwrap_or(u32::MAX);
        let (in_memory, blocks) = (how.for_reading, recovered.blocks);
        Ok(Some(Recovery { in_memory, transactions, blocks, ..Recovery::default() }))
    }

    fn open(
        &self,
        device: Arc<dyn BlockDevice>,
        arrangement: &Arrangement,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn Volume>> {
        let Arrangement { consistency, fs, journal, cache, .. } = arrangement;
        if journal.is_some() {
            let what = "the device of a journal for a BPFS, which has a log of its own";
            return Err(Error::Unsupported(what.into()));
        }
        let durability = match consistency.unwrap_or(FLUSHED) {
            FLUSHED => fstitch_bpfs::Durability::Power,
            WRITTEN => fstitch_bpfs::Durability::Process,
            asked => {
                return Err(Error::Unsupported(format!(
                    "consistency `{asked}` on BPFS, every operation of which is atomic and in order: what it survives is said by \
                     `durability=power` or `durability=process`"
                )));
            }
        };
        let (atime, read_only) = (fs.atime, fs.read_only);
        let cache_size = fstitch_core::num::to_u64(cache.cache_size);
        let options = Options { atime, read_only, durability, cache_size, ..Options::default() };
        Ok(Arc::new(Bpfs::open_on(device, options, clock)?))
    }

    fn durability(&self, asked: Durability) -> Option<Consistency> {
        Some(match asked {
            Durability::Power => FLUSHED,
            Durability::Process => WRITTEN,
        })
    }

    fn describe(
        &self,
        device: &dyn BlockDevice,
        _external: Option<&dyn BlockDevice>,
        _details: bool,
    ) -> Result<Description> {
        lend(device, None, |device| {
            let (identity, found) = identify_on(Arc::clone(&device))?;
            let statfs = look_into(device)?.statfs()?;
            let bytes = |blocks: u64| blocks * u64::from(BLOCK);
            let label = String::from_utf8_lossy(&identity.label).into_owned();
            let (all, free) = (bytes(identity.blocks), bytes(statfs.blocks_free));
            let (log, is_open) = (bytes(identity.log.into()), found.was_open);
            let state = if is_open { "in use, or not unmounted" } else { "clean" };
            let fields = [
                ("format", "bpfs".to_owned()),
                ("label", label.clone()),
                ("UUID", show::uuid(&identity.uuid)),
                ("state", state.to_owned()),
                ("blocks of", show::size(BLOCK.into())),
                ("space", format!("{}, of which {} is free", show::size(all), show::size(free))),
                ("log", format!("{}, {} groups are not home", show::size(log), found.groups)),
            ];
            let values = [
                ("format", Value::from("bpfs")),
                ("label", label.into()),
                ("uuid", show::uuid(&identity.uuid).into()),
                ("clean", (!is_open).into()),
                ("block_size_bytes", BLOCK.into()),
                ("space_bytes", all.into()),
                ("free_bytes", free.into()),
                ("log_bytes", log.into()),
                ("log_groups", found.groups.into()),
            ];
            Ok(Description::of(fields, values))
        })
    }

    fn about(&self, _kind: &str) -> &'static str {
        "Make a BPFS, every operation of which is atomic, in order, and durable when it returns"
    }

    fn extended_words(&self) -> &'static str {
        "log_size=BYTES"
    }

    fn plan(&self, asked: &Asked) -> Result<Box<dyn Making>> {
        Ok(Box::new(mkfs::plan(asked)?))
    }

    fn identify(&self, device: &dyn BlockDevice, identity: &Identity) -> Result<()> {
        let Identity { label, uuid } = identity.clone();
        if label.as_ref().is_some_and(|label| label.len() > 64 || label.contains(&0)) {
            return Err(Error::Unsupported("such a label: those of BPFS have 64 bytes at most".into()));
        }
        lend(device, None, |device| rename_on(device, label, uuid))
    }

    fn is_marked_clean(&self, device: &dyn BlockDevice) -> bool {
        lend(device, None, identify_on).is_ok_and(|(_, found)| !found.was_open && found.groups == 0)
    }

    fn repair(&self, device: &dyn BlockDevice, options: RepairOptions) -> Result<RepairReport> {
        lend(device, None, |device| fstitch_bpfs::fsck(device, options))
    }
}

impl Volume for Bpfs {
    fn format_name(&self) -> &'static str {
        "bpfs"
    }

    fn consistency(&self) -> Consistency {
        if Self::durability(self) == fstitch_bpfs::Durability::Power { FLUSHED } else { WRITTEN }
    }

    fn was_unclean(&self) -> bool {
        self.recovered().is_some_and(|recovered| recovered.was_open)
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
