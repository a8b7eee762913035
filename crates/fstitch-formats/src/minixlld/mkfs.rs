//! Making a logical disk with a MinixLLD on it.

use std::sync::Arc;

use fstitch_core::{BlockDevice, Caller, Error, Result};
use fstitch_lld::{Disk, FormatOptions};
use fstitch_minixlld::MkfsOptions;
use serde_json::{Map, Value};

use crate::lent::lend;
use crate::make::{Asked, AskedJournal, Fresh, Made, Making};
use crate::show;

/// A volume that is to be made.
pub(super) struct Plan {
    block_size: Option<u32>,
    segment_size: Option<u32>,
    options: MkfsOptions,
}

/// Takes what was asked for apart.
pub(super) fn plan(asked: &Asked) -> Result<Plan> {
    if !matches!(asked.journal, AskedJournal::Usual | AskedJournal::None) {
        return Err(Error::Unsupported("a journal: a logical disk is one".into()));
    }
    if asked.block_size.is_some_and(|bytes| !bytes.is_power_of_two() || !(512..=4096).contains(&bytes)) {
        return Err(Error::Unsupported("such blocks: 512, 1024, 2048 and 4096 bytes are possible".into()));
    }
    let mut segment_size = None;
    for word in &asked.extended {
        let bytes = word.strip_prefix("segment_size=").and_then(|bytes| bytes.parse().ok());
        segment_size =
            Some(bytes.ok_or_else(|| Error::Unsupported(format!("the extended option `{word}`")))?);
    }
    let (uid, gid) = asked.root_owner;
    let options = MkfsOptions {
        uuid: asked.uuid,
        label: asked.label.clone(),
        now: asked.now,
        owner: Caller { uid, gid, ..Caller::default() },
    };
    Ok(Plan { block_size: asked.block_size, segment_size, options })
}

impl Making for Plan {
    fn name(&self) -> &'static str {
        "minixlld"
    }

    fn make(&self, fresh: Fresh<'_>, _progress: &mut dyn FnMut(u64, u64)) -> Result<Made> {
        let unit = u64::from(fresh.device.geometry().block_size);
        lend(fresh.device, fresh.bytes.map(|bytes| bytes / unit), |device| self.make_on(device))
    }
}

impl Plan {
    fn make_on(&self, device: Arc<dyn BlockDevice>) -> Result<Made> {
        let usual = FormatOptions::for_bytes(device.geometry().bytes());
        let format = FormatOptions {
            block_size: self.block_size.unwrap_or(usual.block_size),
            segment_size: self.segment_size.unwrap_or(usual.segment_size),
            uuid: self.options.uuid,
            ..usual
        };
        Disk::format(Arc::clone(&device), &format)?;
        let (disk, _) = Disk::open(device, &fstitch_lld::Options::default())?;
        fstitch_minixlld::mkfs(&disk, &self.options)?;
        let (info, space) = (disk.info(), disk.space());
        disk.close()?;
        let values = [
            ("block_size_bytes", Value::from(info.block_size)),
            ("blocks", (space.all / u64::from(info.block_size)).into()),
            ("segment_size_bytes", info.segment_size.into()),
            ("segments", info.segments.into()),
            ("uuid", show::uuid(&self.options.uuid).into()),
        ];
        Ok(Made {
            name: "minixlld",
            block_size: info.block_size,
            blocks: space.all / u64::from(info.block_size),
            form: None,
            inodes: None,
            values: Map::from_iter(values.map(|(name, value)| (name.to_owned(), value))),
        })
    }
}
