//! What lies between the cache and the image of a mount whose power can be cut: `fstitch crash mount`.
//!
//! ```text
//!   cache ──► Recorder (if a log is wanted) ──► LiveDevice: the volatile cache ──► counters ──► image
//! ```

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use fstitch_core::num::to_u64;
use fstitch_core::{BlockDevice, StatsDevice};
use fstitch_crashlab::medium::{Origin, export_from};
use fstitch_crashlab::{CutReport, LiveDevice, LiveOptions, Recorder, Survivors};
use fstitch_disk::FileDisk;

/// The image below everything, counted.
type Disk = Arc<StatsDevice<FileDisk>>;
type Device = Arc<LiveDevice<Disk>>;

/// How a live mount behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// The volatile cache.
    pub device: LiveOptions,
    /// Where everything that was written is logged, with its flushes.
    pub record: Option<PathBuf>,
}

/// A volatile cache with a power switch, and perhaps a log of what passed.
pub struct Live {
    device: Device,
    record: Option<Record>,
}

struct Record {
    recorder: Arc<Recorder<Device>>,
    path: PathBuf,
    file: File,
    /// The image before everything.
    origin: Origin,
}

impl Live {
    /// Puts a volatile cache before `disk`. A log that cannot be written is reported now, not at the end.
    pub fn new(disk: &Disk, options: &Options) -> Result<Self> {
        let device = Arc::new(LiveDevice::new(Arc::clone(disk), options.device));
        let record = options.record.as_deref().map(|path| Record::new(&device, path)).transpose()?;
        Ok(Self { device, record })
    }

    /// What the cache writes to.
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        match &self.record {
            Some(record) => Arc::clone(&record.recorder) as _,
            None => Arc::clone(&self.device) as _,
        }
    }

    /// Bytes that a cut may take.
    pub fn volatile_bytes(&self) -> u64 {
        to_u64(self.device.volatile_bytes())
    }

    /// Takes the power away.
    pub fn cut(&self, survivors: Survivors) -> Result<CutReport> {
        self.device.cut(survivors).context("what survived could not be written to the image")
    }

    /// Has the power go at a flush, when `skip` others have passed.
    pub fn cut_at_flush(&self, skip: u64, survivors: Survivors) {
        self.device.cut_at_flush(skip, survivors);
    }

    /// Writes the log, if one was wanted.
    pub fn finish(&mut self) -> Result<()> {
        match self.record.take() {
            Some(record) => record.save(),
            None => Ok(()),
        }
    }
}

impl Record {
    fn new(device: &Device, path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("making the log {}", path.display()))?;
        let origin = Origin::of_device(&**device.medium()).context("reading the image before the log")?;
        let recorder = Arc::new(Recorder::new(Arc::clone(device)));
        Ok(Self { recorder, path: path.to_owned(), file, origin })
    }

    fn save(mut self) -> Result<()> {
        let log = export_from(self.origin, self.recorder.take());
        let saved = self.file.write_all(&log).and_then(|()| self.file.sync_all());
        saved.with_context(|| format!("writing the log {}", self.path.display()))
    }
}
