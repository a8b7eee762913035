//! Who runs the workloads of \[A\] §5.2, and what they do.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use fstitch_core::{BlockDevice, Caller, Clock, Consistency, FileSystem, Seed, SystemClock};
use fstitch_lld::Disk;
use fstitch_minixlld::{MinixLld, MkfsOptions};

use crate::contender::{Contender, Kernel, Medium, Tools};
use crate::inside;
use crate::meter::own_seconds;
use crate::papers::timed;
use crate::place::{Open, Place, Within};
use crate::workload::{FILLER, len};

/// Files in a directory.
const WIDTH: u64 = 100;
/// Bytes that a call reads or writes of a large file.
const PIECE: u64 = 8192;

/// A file system that runs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// MinixLLD: whether every operation is a unit, and whether units are one at a time.
    Minix { units: bool, sequential: bool },
    /// Somebody who races elsewhere, too.
    Raced(Contender),
}

impl Who {
    /// As MinixLLD is.
    pub const NEW: Self = Self::Minix { units: true, sequential: false };
    /// No operation is a unit.
    pub const BARE: Self = Self::Minix { units: false, sequential: false };
    /// One unit at a time, as the older prototype of the paper has them.
    pub const SEQUENTIAL: Self = Self::Minix { units: true, sequential: true };
    /// All of Figs 5 and 6.
    pub const ALL: [Self; 6] = [
        Self::NEW,
        Self::SEQUENTIAL,
        Self::BARE,
        Self::Raced(Contender::InProcess(Consistency::Soft)),
        Self::Raced(Contender::InProcess(Consistency::Ordered)),
        Self::Raced(Contender::Kernel(Kernel::Ext2)),
    ];

    /// What tables call it.
    pub fn name(self) -> String {
        match self {
            Self::NEW => "MinixLLD".to_owned(),
            Self::SEQUENTIAL => "MinixLLD, one unit at a time".to_owned(),
            Self::Minix { .. } => "MinixLLD without units".to_owned(),
            Self::Raced(Contender::InProcess(Consistency::Soft)) => {
                "ext2, soft updates, in process".to_owned()
            }
            Self::Raced(Contender::InProcess(_)) => "ext3, ordered, in process".to_owned(),
            Self::Raced(_) => "the kernel's ext2, on a loop device".to_owned(),
        }
    }

    /// Why it cannot run here, if so.
    pub fn lacks(self, tools: &Tools) -> Option<String> {
        match self {
            Self::Minix { .. } => None,
            Self::Raced(contender) => tools.lacks(contender),
        }
    }

    /// Makes an empty volume, and opens it.
    pub fn make(self, tools: &Tools, image: &Path) -> Result<Opened> {
        match self {
            Self::Minix { .. } => {
                let disk = super::fresh(&inside::disk(image)?, &fstitch_lld::Options::default())?;
                let options = MkfsOptions {
                    uuid: [7; 16],
                    label: Vec::new(),
                    now: SystemClock::new().now(),
                    owner: Caller::default(),
                };
                fstitch_minixlld::mkfs(&disk, &options)?;
                disk.close()?;
                self.open(tools, image)
            }
            Self::Raced(contender) => Opened::raced(tools.start(contender, &medium(image))?),
        }
    }

    /// Opens the volume as it is.
    pub fn open(self, tools: &Tools, image: &Path) -> Result<Opened> {
        match self {
            Self::Minix { units, sequential } => {
                let counted = inside::disk(image)?;
                let device = Arc::clone(&counted) as Arc<dyn BlockDevice>;
                let options = fstitch_lld::Options { sequential, ..fstitch_lld::Options::default() };
                let disk = Disk::open(device, &options)?.0;
                let options = fstitch_minixlld::Options { units, ..fstitch_minixlld::Options::default() };
                let fs = Arc::new(MinixLld::open(disk, options, Arc::new(SystemClock::new()))?);
                let place = Arc::new(Within::new(Arc::clone(&fs) as Arc<dyn FileSystem>));
                Ok(Opened { place, counted: Some(counted), close: Box::new(move || Ok(fs.unmount()?)) })
            }
            Self::Raced(contender) => Opened::raced(tools.resume(contender, &medium(image))?),
        }
    }
}

fn medium(image: &Path) -> Medium {
    Medium { name: "memory", image: image.to_owned() }
}

/// A volume that is open.
pub struct Opened {
    /// Where to work.
    pub place: Arc<dyn Place>,
    /// The medium of MinixLLD, which counts.
    counted: Option<inside::Disk>,
    close: Box<dyn FnOnce() -> Result<()>>,
}

impl Opened {
    fn raced(running: crate::contender::Running) -> Result<Self> {
        let place = Arc::clone(&running.place);
        Ok(Self { place, counted: None, close: Box::new(move || running.stop()) })
    }

    fn written(&self) -> u64 {
        self.counted.as_ref().map_or(0, super::written)
    }

    /// Closes it; everything is on the medium then.
    pub fn close(self) -> Result<()> {
        drop((self.place, self.counted));
        (self.close)()
    }
}

/// What a phase took.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    /// Seconds.
    pub wall: f64,
    /// Seconds of this process's processors.
    pub own: f64,
    /// Bytes that reached the medium, of MinixLLD.
    pub written: u64,
}

/// A volume on which phases run one after the other, each on a volume that was opened anew.
pub struct Phases<'a> {
    who: Who,
    tools: &'a Tools,
    image: &'a Path,
    opened: Option<Opened>,
}

impl<'a> Phases<'a> {
    /// Makes the volume.
    pub fn new(who: Who, tools: &'a Tools, image: &'a Path) -> Result<Self> {
        let opened = Some(who.make(tools, image)?);
        Ok(Self { who, tools, image, opened })
    }

    /// Runs a phase until everything is stable, and opens the volume anew for the next one.
    pub fn run(&mut self, work: impl FnOnce(&dyn Place) -> Result<()>) -> Result<Took> {
        let opened = self.opened.take().context("the volume is open")?;
        let place = &*opened.place;
        let (before, reached) = (own_seconds(), opened.written());
        let wall = timed(|| {
            work(place)?;
            place.sync()
        })?;
        let (own, written) = (own_seconds() - before, opened.written() - reached);
        opened.close()?;
        self.opened = Some(self.who.open(self.tools, self.image)?);
        Ok(Took { wall, own, written })
    }

    /// Closes the volume.
    pub fn end(mut self) -> Result<()> {
        self.opened.take().map_or(Ok(()), Opened::close)
    }
}

/// Small files: made and written, read, deleted.
pub fn small(phases: &mut Phases<'_>, files: u64, bytes: u64) -> Result<[Took; 3]> {
    let path = |no: u64| format!("d{}/{no}", no / WIDTH);
    let made = phases.run(|place| {
        (0..files).try_for_each(|no| {
            if no % WIDTH == 0 {
                place.mkdir(&format!("d{}", no / WIDTH))?;
            }
            place.open(&path(no), Open::New)?.write_at(&FILLER[..len(bytes)], 0)
        })
    })?;
    let mut buffer = vec![0; len(bytes)];
    let read = phases.run(|place| {
        (0..files).try_for_each(|no| {
            let got = place.open(&path(no), Open::Existing)?.read_at(&mut buffer, 0)?;
            ensure!(got == buffer.len() && buffer.ends_with(&[FILLER[0]]), "a file is as it was written");
            Ok(())
        })
    })?;
    let deleted = phases.run(|place| {
        (0..files).try_for_each(|no| place.unlink(&path(no)))?;
        (0..files.div_ceil(WIDTH)).try_for_each(|no| place.rmdir(&format!("d{no}")))
    })?;
    Ok([made, read, deleted])
}

/// A large file: written and read one piece behind the other, written and read in random order, read one behind the other.
pub fn large(phases: &mut Phases<'_>, bytes: u64) -> Result<[Took; 5]> {
    let pieces: Vec<u64> = (0..bytes / PIECE).collect();
    let mut random = pieces.clone();
    let mut numbers = Seed::new(31);
    for at in (1..random.len()).rev() {
        random.swap(at, len(numbers.below(u64::try_from(at)? + 1)));
    }
    let write = |place: &dyn Place, how: Open, order: &[u64]| {
        let file = place.open("large", how)?;
        order.iter().try_for_each(|no| file.write_at(&FILLER[..len(PIECE)], no * PIECE))
    };
    let mut buffer = vec![0; len(PIECE)];
    let mut read = |place: &dyn Place, order: &[u64]| {
        let file = place.open("large", Open::Existing)?;
        order.iter().try_for_each(|no| {
            let got = file.read_at(&mut buffer, no * PIECE)?;
            ensure!(got == buffer.len() && buffer[0] == FILLER[0], "a file is as it was written");
            Ok(())
        })
    };
    Ok([
        phases.run(|place| write(place, Open::New, &pieces))?,
        phases.run(|place| read(place, &pieces))?,
        phases.run(|place| write(place, Open::Existing, &random))?,
        phases.run(|place| read(place, &random))?,
        phases.run(|place| read(place, &pieces))?,
    ])
}
