//! Making a BPFS.

use fstitch_bpfs::{MkfsOptions, mkfs_on};
use fstitch_core::{Caller, Errno, Error, Result};
use serde_json::{Map, Value};

use super::BLOCK;
use crate::lent::lend;
use crate::make::{Asked, AskedJournal, Fresh, Made, Making};
use crate::show;

/// A volume that is to be made.
pub(super) struct Plan {
    log: Option<u64>,
    options: MkfsOptions,
}

/// Takes what was asked for apart.
pub(super) fn plan(asked: &Asked) -> Result<Plan> {
    if !matches!(asked.journal, AskedJournal::Usual | AskedJournal::None) {
        let what = "a journal: BPFS has a log of its own, whose size is `-E log_size=BYTES`";
        return Err(Error::Unsupported(what.into()));
    }
    if asked.block_size.is_some_and(|bytes| bytes != BLOCK) {
        return Err(Error::Unsupported("such blocks: those of BPFS have 4096 bytes".into()));
    }
    if asked.label.len() > 64 || asked.label.contains(&0) {
        return Err(Error::Unsupported("such a label: those of BPFS have 64 bytes at most".into()));
    }
    let mut log = None;
    for word in &asked.extended {
        let bytes = word.strip_prefix("log_size=").and_then(|bytes| bytes.parse::<u64>().ok());
        let bytes = bytes.ok_or_else(|| Error::Unsupported(format!("the extended option `{word}`")))?;
        log = Some(bytes.div_ceil(BLOCK.into()));
    }
    let (uid, gid) = asked.root_owner;
    let options = MkfsOptions {
        uuid: asked.uuid,
        label: asked.label.clone(),
        now: asked.now,
        owner: Caller { uid, gid, ..Caller::default() },
    };
    Ok(Plan { log, options })
}

impl Making for Plan {
    fn name(&self) -> &'static str {
        "bpfs"
    }

    fn make(&self, fresh: Fresh<'_>, _progress: &mut dyn FnMut(u64, u64)) -> Result<Made> {
        let unit = u64::from(fresh.device.geometry().block_size);
        let identity = lend(fresh.device, fresh.bytes.map(|bytes| bytes / unit), |device| {
            mkfs_on(device, &self.options, self.log)
        })
        .map_err(|error| match error.errno() {
            Errno::NOSPC => Error::Unsupported(
                "a BPFS of so few bytes: 128 KiB are the least, and more with a larger log".into(),
            ),
            _ => error,
        })?;
        let values = [
            ("block_size_bytes", Value::from(BLOCK)),
            ("blocks", identity.blocks.into()),
            ("log_bytes", (u64::from(identity.log) * u64::from(BLOCK)).into()),
            ("uuid", show::uuid(&identity.uuid).into()),
        ];
        Ok(Made {
            name: "bpfs",
            block_size: BLOCK,
            blocks: identity.blocks,
            form: None,
            inodes: None,
            values: Map::from_iter(values.map(|(name, value)| (name.to_owned(), value))),
        })
    }
}
