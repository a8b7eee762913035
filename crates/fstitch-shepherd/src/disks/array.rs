//! Who of the disks has what, who is out, and how that changes.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use fstitch_core::lock::Unpoisoned;
use fstitch_core::{BlockDevice, BlockNo, Error, IoOp, Result, Structure};

use super::label::{self, DiskState, Label};

/// Where the parts of a disk are in the array's blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) homes: u64,
    pub(super) blocks: u64,
    pub(super) first_spare: u64,
    pub(super) spares: u64,
}

/// What does not change while an array is open.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) block_size: u32,
    pub(super) atomic_size: u32,
    pub(super) first: u64,
    pub(super) zone: u64,
    pub(super) volume: u64,
    pub(super) blocks: u64,
    /// Of the disks that are no hot spares.
    pub(super) parts: Vec<Part>,
}

impl Layout {
    fn new(label: &Label, atomic_size: u32) -> Self {
        let volume = label.volume();
        let (mut homes, mut first_spare) = (0, volume + label.zone);
        let mut parts = Vec::new();
        for disk in label.disks.iter().filter(|disk| disk.state != DiskState::Hot) {
            parts.push(Part { homes, blocks: disk.blocks, first_spare, spares: disk.spares });
            homes += disk.blocks;
            first_spare += disk.spares;
        }
        let Label { block_size, first, zone, .. } = *label;
        Self { block_size, atomic_size, first, zone, volume, blocks: first_spare, parts }
    }
}

/// What the array is at a moment.
#[derive(Clone)]
pub(super) struct Now {
    pub(super) label: Label,
    /// By disk; `None` for one that is out.
    pub(super) devices: Vec<Option<Arc<dyn BlockDevice>>>,
    /// Of the disk that is rebuilt, up to where it is; labels say it when it is stable, and less before.
    pub(super) built: Option<(usize, u64)>,
}

impl Now {
    /// How a disk stands.
    pub(super) fn state(&self, disk: usize) -> DiskState {
        match (self.label.disks[disk].state, self.built) {
            (DiskState::Rebuilding { next }, Some((built, further))) if built == disk => {
                DiskState::Rebuilding { next: next.max(further) }
            }
            (state, _) => state,
        }
    }

    /// A disk that takes writes.
    pub(super) fn taking(&self, disk: usize) -> Option<&Arc<dyn BlockDevice>> {
        self.devices[disk].as_ref().filter(|_| self.label.disks[disk].state.takes())
    }
}

/// Errors that a disk has reported since the array was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFaults {
    /// Of reads.
    pub reads: u64,
    /// Of writes.
    pub writes: u64,
    /// Of flushes.
    pub flushes: u64,
}

/// What is counted of a disk.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) reads: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) flushes: AtomicU64,
    /// Requests on their way.
    pub(super) busy: AtomicUsize,
}

/// What was found at opening.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Disks that are not there, and were until now.
    pub missing: Vec<usize>,
    /// Disks that are out, or being rebuilt.
    pub degraded: Vec<usize>,
    /// Of what was given, in its order, what is no disk of the array any more, or never was.
    pub strangers: Vec<usize>,
    /// Where each disk of the array is in what was given.
    pub places: Vec<Option<usize>>,
}

/// Several disks as one device: the volume, then the zone, then all spares.
pub struct Array {
    pub(super) layout: Layout,
    pub(super) is_read_only: bool,
    now: RwLock<Arc<Now>>,
    /// Held by who changes `now`, or asks a disk for its label; taken before it.
    changing: Mutex<()>,
    /// Some disk is not whole.
    is_degraded: AtomicBool,
    pub(super) counts: Vec<Counts>,
}

impl std::fmt::Debug for Array {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Array").field("label", &self.label()).finish_non_exhaustive()
    }
}

fn refuse(why: impl Into<String>) -> Error {
    Error::corrupt(Structure::Other("labels of an array"), None, why.into())
}

impl Array {
    /// An array of disks that have their labels.
    ///
    /// # Errors
    /// `Corrupt` if they are not of one array, were used apart, or none is whole; when the newest label cannot be written to a disk that
    /// is whole.
    pub fn open(given: &[Option<Arc<dyn BlockDevice>>], is_read_only: bool) -> Result<(Self, Found)> {
        let labels: Vec<Option<(usize, Label)>> =
            given.iter().map(|device| device.as_deref().and_then(label::read)).collect();
        let newest = labels.iter().flatten().map(|(_, label)| label).max_by_key(|label| label.generation);
        let newest = newest.ok_or_else(|| refuse("no disk has one"))?.clone();
        newest.check()?;
        let mut devices: Vec<Option<Arc<dyn BlockDevice>>> = vec![None; newest.disks.len()];
        let mut found = Found { places: vec![None; newest.disks.len()], ..Found::default() };
        for (at, device) in given.iter().enumerate() {
            let Some(device) = device else { continue };
            let place = match &labels[at] {
                Some((disk, label)) => belongs(&newest, label, *disk)?,
                None => None,
            };
            let Some(disk) = place else {
                found.strangers.push(at);
                continue;
            };
            let (geometry, member) = (device.geometry(), &newest.disks[disk]);
            if geometry.block_count < newest.needs(member) || geometry.block_size != newest.block_size {
                return Err(refuse(format!("disk {disk} is smaller than it says, or has other blocks")));
            }
            if found.places[disk].replace(at).is_some() {
                return Err(refuse(format!("disk {disk} is there twice: one is a copy of the other")));
            }
            devices[disk] =
                Some(Arc::clone(device)).filter(|_| !matches!(member.state, DiskState::Out { .. }));
        }
        let atomic_size = devices.iter().flatten().map(|device| device.geometry().atomic_size).min();
        let layout = Layout::new(&newest, atomic_size.unwrap_or(512));
        let array = Self {
            counts: layout.parts.iter().map(|_| Counts::default()).collect(),
            layout,
            is_read_only,
            now: RwLock::new(Arc::new(Now { label: newest, devices, built: None })),
            changing: Mutex::default(),
            is_degraded: AtomicBool::new(false),
        };
        let same = |at: usize| labels[at].as_ref().is_some_and(|(_, label)| *label == array.label());
        let are_alike = found.places.iter().flatten().all(|at| same(*at));
        array.begin(&mut found, are_alike)?;
        Ok((array, found))
    }

    /// Who is missing is put out, and all labels are the newest.
    fn begin(&self, found: &mut Found, are_alike: bool) -> Result<()> {
        let now = self.now();
        let is_missing = |disk: &usize| now.devices[*disk].is_none() && now.label.disks[*disk].state.takes();
        found.missing = (0..now.devices.len()).filter(is_missing).collect();
        let is_here =
            |disk: usize| now.devices[disk].is_some() && now.label.disks[disk].state == DiskState::Whole;
        if !(0..self.disks()).any(is_here) {
            let stand = |disk: usize| {
                let here = if now.devices[disk].is_some() { "" } else { ", not there" };
                format!("disk {disk} is {}{here}", now.label.disks[disk].state.name())
            };
            let stands: Vec<String> = (0..self.disks()).map(stand).collect();
            return Err(refuse(format!("no disk that is whole is there: {}", stands.join("; "))));
        }
        if !(are_alike && found.missing.is_empty()) {
            let _one = self.changing.lock().unpoisoned();
            if !self.tell(&found.missing) {
                return Err(refuse("they cannot be written"));
            }
        } else {
            self.change(now.label.clone(), now.devices.clone());
        }
        let label = self.label();
        let is_degraded = |disk: &usize| label.disks[*disk].state != DiskState::Whole;
        found.degraded = (0..self.disks()).filter(is_degraded).collect();
        Ok(())
    }

    pub(super) fn now(&self) -> Arc<Now> {
        Arc::clone(&self.now.read().unpoisoned())
    }

    /// What the labels say.
    #[must_use]
    pub fn label(&self) -> Label {
        self.now().label.clone()
    }

    /// Disks that have a part of the volume.
    #[must_use]
    pub fn disks(&self) -> usize {
        self.layout.parts.len()
    }

    /// Blocks of the volume.
    #[must_use]
    pub fn volume(&self) -> u64 {
        self.layout.volume
    }

    /// Whether some disk is not whole.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.is_degraded.load(Ordering::Acquire)
    }

    /// How a disk stands.
    #[must_use]
    pub fn state(&self, disk: usize) -> DiskState {
        self.now().state(disk)
    }

    /// What a disk has reported.
    #[must_use]
    pub fn faults(&self, disk: usize) -> DiskFaults {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = &self.counts[disk];
        DiskFaults { reads: of(&counts.reads), writes: of(&counts.writes), flushes: of(&counts.flushes) }
    }

    /// The zone, and behind it all spares: what the shepherd has for its maps.
    #[must_use]
    pub fn area(&self) -> Vec<BlockNo> {
        (self.layout.volume..self.layout.blocks).map(BlockNo).collect()
    }

    fn change(&self, label: Label, devices: Vec<Option<Arc<dyn BlockDevice>>>) {
        let is_degraded =
            label.disks.iter().any(|disk| !matches!(disk.state, DiskState::Whole | DiskState::Hot));
        let is_rebuilt = |disk: usize| matches!(label.disks[disk].state, DiskState::Rebuilding { .. });
        let mut now = self.now.write().unpoisoned();
        let built = now.built.filter(|(disk, _)| is_rebuilt(*disk));
        *now = Arc::new(Now { label, devices, built });
        drop(now);
        self.is_degraded.store(is_degraded, Ordering::Release);
    }

    /// Puts disks out, and whoever does not take the label that says so: all others have it, stably, when this returns [D1]. False, and
    /// nothing is changed, if no whole one would be left. The caller holds `changing`.
    fn tell(&self, out: &[usize]) -> bool {
        let now = self.now();
        let mut out = out.to_vec();
        // What was written before another disk failed is a label of its own.
        for generation in now.label.generation + 1.. {
            let mut label = Label { generation, ..now.label.clone() };
            for disk in &out {
                // Of a hot spare that has gone nobody needs to know.
                if label.disks[*disk].state.takes() {
                    label.disks[*disk].state = DiskState::Out { since: label.generation };
                }
            }
            let mut devices = now.devices.clone();
            out.iter().for_each(|disk| devices[*disk] = None);
            let is_whole =
                |disk: usize| devices[disk].is_some() && label.disks[disk].state == DiskState::Whole;
            if !(0..self.disks()).any(is_whole) {
                return false;
            }
            let failed = self.write_labels(&label, &devices);
            if failed.is_empty() {
                self.change(label, devices);
                return true;
            }
            out.extend(failed);
        }
        false
    }

    /// Writes a label to all disks that are there; which could not.
    fn write_labels(&self, label: &Label, devices: &[Option<Arc<dyn BlockDevice>>]) -> Vec<usize> {
        if self.is_read_only {
            return Vec::new();
        }
        let write = |(disk, device): (usize, &Option<Arc<dyn BlockDevice>>)| {
            let device = device.as_ref()?;
            label::write(&**device, label, disk).is_err().then_some(disk)
        };
        devices.iter().enumerate().filter_map(write).collect()
    }

    /// Puts a disk out; whether it is. The last whole one is not.
    pub(crate) fn put_out(&self, disk: usize) -> bool {
        let _one = self.changing.lock().unpoisoned();
        !self.state(disk).takes() || self.tell(&[disk])
    }

    /// Asks a disk that has reported an error for its label, and to write it again; if it does not it is put out. Whether it is out.
    pub(super) fn put_out_if_dead(&self, disk: usize) -> bool {
        let _one = self.changing.lock().unpoisoned();
        let now = self.now();
        let Some(device) = now.taking(disk) else { return true };
        let answers = label::read(&**device).is_some()
            && (self.is_read_only || label::write(&**device, &now.label, disk).is_ok());
        !answers && self.tell(&[disk])
    }

    /// Gives a disk that is out its successor, which is to be rebuilt. Nobody writes meanwhile.
    ///
    /// # Errors
    /// `Unsupported` if the disk is not out, or the new one is too small; if that fails, and then nothing has changed.
    pub(crate) fn replace(
        &self,
        disk: usize,
        device: &Arc<dyn BlockDevice>,
        uuid: [u8; 16],
        hot: Option<usize>,
    ) -> Result<()> {
        let _one = self.changing.lock().unpoisoned();
        let now = self.now();
        let mut label = now.label.clone();
        if !matches!(label.disks[disk].state, DiskState::Out { .. }) {
            return Err(Error::Unsupported(format!("replacing disk {disk}, which is not out")));
        }
        let (geometry, needs) = (device.geometry(), label.needs(&label.disks[disk]));
        if geometry.block_size != label.block_size || geometry.block_count < needs {
            return Err(Error::Unsupported(format!(
                "a disk of {} blocks in the place of one with {needs}",
                geometry.block_count
            )));
        }
        // Whatever it was before, in this array or in another, it is not any more. A hot spare stays one until the labels say more: a crash
        // before that would leave a disk of no array, with which the others are not opened.
        if hot.is_none() {
            label::wipe(&**device)?;
        }
        self.copy_zone(device)?;
        label.generation += 1;
        let mut devices = now.devices.clone();
        (label.disks[disk].state, label.disks[disk].uuid) = (DiskState::Rebuilding { next: 0 }, uuid);
        devices[disk] = Some(Arc::clone(device));
        if let Some(hot) = hot {
            label.disks.remove(hot);
            devices.remove(hot);
        }
        let failed = self.write_labels(&label, &devices);
        if failed.contains(&disk) {
            // Whatever the others have learnt, the disk is out again before anything is answered.
            label.disks[disk].state = DiskState::Out { since: label.generation + 1 };
            devices[disk] = None;
        }
        self.change(label, devices);
        if failed.is_empty() || self.tell(&failed) {
            return if failed.contains(&disk) { Err(self.dead(disk)) } else { Ok(()) };
        }
        Err(self.dead(disk))
    }

    fn dead(&self, disk: usize) -> Error {
        let reason = std::io::Error::other(format!("disk {disk} of the array cannot be written"));
        Error::io(IoOp::Write, BlockNo(self.layout.parts[disk].homes), reason)
    }

    /// A hot spare, and its device.
    pub(crate) fn hot(&self) -> Option<(usize, Arc<dyn BlockDevice>, [u8; 16])> {
        let now = self.now();

        (self.disks()..now.devices.len()).find_map(|disk| {
            let device = now.devices[disk].as_ref()?;
            Some((disk, Arc::clone(device), now.label.disks[disk].uuid))
        })
    }

    /// Notes up to where a disk has been rebuilt. `is_said`: on the medium as well.
    pub(crate) fn rebuilt(&self, disk: usize, state: DiskState, is_said: bool) -> Result<()> {
        let _one = self.changing.lock().unpoisoned();
        let now = self.now();
        let mut label = now.label.clone();
        if !matches!(label.disks[disk].state, DiskState::Rebuilding { .. }) {
            return Err(self.dead(disk));
        }
        if is_said {
            label.disks[disk].state = state;
        }
        self.change(label, now.devices.clone());
        if let DiskState::Rebuilding { next } = state {
            let mut now = self.now.write().unpoisoned();
            *now = Arc::new(Now { built: Some((disk, next)), ..Now::clone(&now) });
        }
        if is_said && !self.tell(&[]) {
            return Err(self.dead(disk));
        }
        Ok(())
    }

    /// Adds a hot spare, or takes one away (`None`, with its number).
    ///
    /// # Errors
    /// `Unsupported` if it is too small, there are too many, or that is no hot spare; when labels cannot be written.
    pub fn set_hot(&self, hot: Hot<'_>) -> Result<()> {
        let _one = self.changing.lock().unpoisoned();
        let now = self.now();
        let mut label = now.label.clone();
        let mut devices = now.devices.clone();
        match hot {
            Hot::Add(device, uuid) => {
                let needs = label.disks.iter().map(|disk| label.needs(disk)).max().unwrap_or(0);
                let geometry = device.geometry();
                if geometry.block_size != label.block_size || geometry.block_count < needs {
                    return Err(Error::Unsupported(format!(
                        "a hot spare of {} blocks for disks of {needs}",
                        geometry.block_count
                    )));
                }
                label::wipe(&**device)?;
                label.disks.push(super::Member { uuid, blocks: 0, spares: 0, state: DiskState::Hot });
                devices.push(Some(Arc::clone(device)));
                label.check()?;
            }
            Hot::Remove(disk) => {
                if label.disks.get(disk).is_none_or(|member| member.state != DiskState::Hot) {
                    return Err(Error::Unsupported(format!(
                        "taking away disk {disk}, which is no hot spare"
                    )));
                }
                label.disks.remove(disk);
                devices.remove(disk);
            }
        }
        label.generation += 1;
        let failed = self.write_labels(&label, &devices);
        self.change(label, devices);
        if failed.is_empty() || self.tell(&failed) {
            return Ok(());
        }
        Err(refuse("they cannot be written"))
    }
}

/// What becomes of a hot spare.
pub enum Hot<'a> {
    /// A disk, with its name.
    Add(&'a Arc<dyn BlockDevice>, [u8; 16]),
    /// Its number.
    Remove(usize),
}

/// Which disk of the newest label a disk is by its own; `None` if it is none any more.
fn belongs(newest: &Label, label: &Label, disk: usize) -> Result<Option<usize>> {
    if label.uuid != newest.uuid {
        return Err(refuse("they are of different arrays"));
    }
    let uuid = label.disks[disk].uuid;
    let Some(place) = newest.disks.iter().position(|member| member.uuid == uuid) else { return Ok(None) };
    match newest.disks[place].state {
        DiskState::Out { since } if label.generation >= since => Err(refuse(format!(
            "disk {place} was used without the others since they put it out: they are two volumes now. Name one of them, and replace the others' disks"
        ))),
        _ => Ok(Some(place)),
    }
}
