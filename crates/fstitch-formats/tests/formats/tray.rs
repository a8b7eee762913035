//! A toy: one directory, a block for each file, everything stable when a call returns. Files are in memory while they are needed, and
//! who refers to them is counted, as in every file system: by the table of `fstitch_posix`.
//!
//! **Layout.** Block 0: `TRAY`, label (16 bytes from 4), UUID (16 from 20), in use (1 byte at 36). Each other block, if its first
//! byte is not 0, is a file: 1 for a file with a name, 2 for an orphan; length of its name (1), permissions (2 from 2), owner, group,
//! size (4 each from 4), name (64 from 16), contents (from 80). **Crash cases.** Each step writes one block, which is torn at most at its
//! sectors; names and sizes are in the first. An orphan is freed by the last who refers to it, or when the volume is opened again.

mod opened;

use std::sync::Arc;

use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, CheckReport, Clock, Error, InodeNo,
    RepairOptions, RepairReport, Result, Structure,
};
use fstitch_formats::make::{Asked, Fresh, Made, Making};
use fstitch_formats::{Description, Field, Format, Identity, Look, OwnJournal, Volume, show};
use fstitch_fs::arrange::Arrangement;
use serde_json::{Map, Value};

use opened::Opened;

const MAGIC: &[u8; 4] = b"TRAY";
const BLOCK: usize = 1024;
const NAME_MAX: usize = 64;
const NAME_AT: usize = 16;
const DATA_AT: usize = 80;
const ROOT: InodeNo = InodeNo(1);
const IN_USE_AT: usize = 36;
/// What a block's first byte says.
const FREE: u8 = 0;
const NAMED: u8 = 1;
const ORPHAN: u8 = 2;
/// Files in memory without need.
const IDLE_MAX: usize = 4;

pub struct Tray;

fn read(device: &dyn BlockDevice, block: u64) -> Result<Vec<u8>> {
    let mut data = vec![0; BLOCK];
    let kind = BlockKind::Data;
    device.read(&mut [BlockRead { block: BlockNo(block), kind, data: &mut data }])?;
    Ok(data)
}

fn write(device: &dyn BlockDevice, block: u64, data: &[u8]) -> Result<()> {
    device.write(&[BlockWrite { block: BlockNo(block), kind: BlockKind::Data, data }])?;
    device.flush()
}

fn head(device: &dyn BlockDevice) -> Result<Vec<u8>> {
    if device.geometry().block_count == 0 {
        return Err(Error::corrupt(Structure::Other("tray"), None, "nothing is there"));
    }
    let head = read(device, 0)?;
    if head.starts_with(MAGIC) {
        Ok(head)
    } else {
        Err(Error::corrupt(Structure::Other("tray"), None, "no magic number"))
    }
}

impl Format for Tray {
    fn names(&self) -> &'static [&'static str] {
        &["tray"]
    }

    fn thing(&self) -> &'static str {
        "a tray"
    }

    fn absent(&self) -> &'static str {
        "no TRAY at its start"
    }

    fn probe(&self, head: &[u8]) -> Option<std::result::Result<u32, String>> {
        head.starts_with(MAGIC).then_some(Ok(1024))
    }

    fn look(&self, device: &dyn BlockDevice) -> Result<Look> {
        head(device).map(|_| Look { block_size: 1024, journal: OwnJournal::None })
    }

    fn open(
        &self,
        device: Arc<dyn BlockDevice>,
        arrangement: &Arrangement,
        _clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn Volume>> {
        Ok(Arc::new(Opened::new(device, arrangement.fs.read_only)?))
    }

    fn describe(
        &self,
        device: &dyn BlockDevice,
        _external: Option<&dyn BlockDevice>,
        _details: bool,
    ) -> Result<Description> {
        let head = head(device)?;
        let label = head[4..20].split(|&byte| byte == 0).next().unwrap_or_default();
        let label = String::from_utf8_lossy(label).into_owned();
        let field = |name, text: &str| Field { name, text: text.to_owned() };
        let fields = vec![field("format", "tray"), field("label", &label)];
        let values = [("format", Value::from("tray")), ("label", Value::from(label))];
        let values = values.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Ok(Description { fields, parts: Vec::new(), values })
    }

    fn about(&self, _kind: &str) -> &'static str {
        "Make a tray"
    }

    fn plan(&self, asked: &Asked) -> Result<Box<dyn Making>> {
        Ok(Box::new(Plan(asked.label.clone(), asked.uuid)))
    }

    fn identify(&self, device: &dyn BlockDevice, identity: &Identity) -> Result<()> {
        let mut head = head(device)?;
        if let Some(label) = &identity.label {
            put_label(&mut head, label);
        }
        if let Some(uuid) = identity.uuid {
            head[20..36].copy_from_slice(&uuid);
        }
        write(device, 0, &head)
    }

    fn is_marked_clean(&self, device: &dyn BlockDevice) -> bool {
        head(device).is_ok_and(|head| head[IN_USE_AT] == 0)
    }

    fn repair(&self, device: &dyn BlockDevice, _options: RepairOptions) -> Result<RepairReport> {
        head(device)?;
        let (found, left) = (CheckReport::default(), CheckReport::default());
        Ok(RepairReport { found, mended: 0, left, runs: 1 })
    }
}

fn put_label(head: &mut [u8], label: &[u8]) {
    head[4..20].fill(0);
    head[4..4 + label.len()].copy_from_slice(label);
}

struct Plan(Vec<u8>, [u8; 16]);

impl Making for Plan {
    fn name(&self) -> &'static str {
        "tray"
    }

    fn make(&self, fresh: Fresh<'_>, _progress: &mut dyn FnMut(u64, u64)) -> Result<Made> {
        let mut head = vec![0; BLOCK];
        head[..4].copy_from_slice(MAGIC);
        put_label(&mut head, &self.0);
        head[20..36].copy_from_slice(&self.1);
        write(fresh.device, 0, &head)?;
        let blocks = fresh.device.geometry().block_count;
        let values = Map::from_iter([
            ("blocks".to_owned(), Value::from(blocks)),
            ("uuid".to_owned(), Value::from(show::uuid(&self.1))),
        ]);
        Ok(Made { name: "tray", block_size: 1024, blocks, form: None, inodes: None, values })
    }
}
