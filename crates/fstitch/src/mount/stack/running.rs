//! What becomes of the volumes of a running stack, and who waits for whom.
//!
//! **States and transitions** of a volume: *open* → its mount is gone: *kept* → all volumes in it are closed, everything
//! is on the medium: *closed*.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};

use fstitch_core::lock::Unpoisoned;
use fstitch_patch::Cache;

use super::check::{Part, Place};
use super::settle::Plan;
use crate::control::stack::{DeviceStatus, StackStatus, VolumeState, VolumeStatus};

/// A running stack, shared by the threads that serve its volumes.
pub struct Running {
    /// What does not change.
    shown: StackStatus,
    /// For each volume, those that are in it directly.
    inner: Vec<BTreeSet<usize>>,
    states: Mutex<Vec<VolumeState>>,
    changed: Condvar,
    /// The stack's cache; not kept alive by this.
    engine: Weak<Cache>,
}

impl Running {
    /// A stack whose volumes, as `shown` describes them, are open in `engine`.
    pub fn new(plan: &Plan, shown: StackStatus, engine: &Arc<Cache>) -> Self {
        let count = plan.stack.volumes.len();
        let holds =
            |outer: usize| (0..count).filter(move |&volume| plan.stack.outer(volume).contains(&outer));
        Self {
            shown,
            inner: (0..count).map(|outer| holds(outer).collect()).collect(),
            states: Mutex::new(vec![VolumeState::Open; count]),
            changed: Condvar::new(),
            engine: Arc::downgrade(engine),
        }
    }

    fn states(&self) -> MutexGuard<'_, Vec<VolumeState>> {
        self.states.lock().unpoisoned()
    }

    /// How the stack is doing, for who asks about `volume`.
    pub fn status(&self, volume: usize) -> StackStatus {
        let mut status = self.shown.clone();
        status.volume.clone_from(&status.volumes[volume].name);
        for (volume, state) in status.volumes.iter_mut().zip(self.states().iter()) {
            volume.state = *state;
        }
        status.dirty_bytes = self.engine.upgrade().map_or(0, |engine| engine.stats().dirty_bytes);
        status
    }

    /// The mount of `volume` is gone, or it never had one: returns when all volumes in it are closed.
    pub fn left(&self, volume: usize) {
        let mut states = self.states();
        if self.shown.volumes[volume].mountpoint.is_some() {
            states[volume] = VolumeState::Kept;
        }
        while self.inner[volume].iter().any(|&inner| states[inner] != VolumeState::Closed) {
            states = self.changed.wait(states).unpoisoned();
        }
    }

    /// `volume` is closed. Returns whether other volumes are still mounted, so that the stack goes on.
    pub fn closed(&self, volume: usize) -> bool {
        let mut states = self.states();
        states[volume] = VolumeState::Closed;
        self.changed.notify_all();
        let mounted =
            |at: &usize| states[*at] == VolumeState::Open && self.shown.volumes[*at].mountpoint.is_some();
        (0..states.len()).any(|at| mounted(&at))
    }
}

/// A stack as it was described.
pub fn planned(plan: &Plan) -> StackStatus {
    let stack = &plan.stack;
    let devices = stack.devices.iter().zip(&plan.extents).map(|(device, extent)| {
        let (path, volume, partition) = match &device.place {
            Place::File { volume, path } => (path.clone(), Some(stack.volumes[*volume].name.clone()), None),
            Place::Medium { path, part } => {
                let path = extent.as_ref().map_or(path, |extent| &extent.path);
                let partition = match part {
                    Part::Partition(number) => Some(*number),
                    Part::From(_) => None,
                };
                (path.display().to_string(), None, partition)
            }
        };
        let offset_bytes = extent.as_ref().map_or(0, |extent| extent.start);
        DeviceStatus { name: device.name.clone(), path, offset_bytes, partition, volume }
    });
    let volumes = stack.volumes.iter().map(|volume| VolumeStatus {
        name: volume.name.clone(),
        device: stack.devices[volume.device].name.clone(),
        journal: volume.journal.map(|journal| stack.devices[journal].name.clone()),
        format: String::new(),
        consistency: volume.options.consistency.map(|asked| asked.to_string()).unwrap_or_default(),
        read_only: volume.options.read_only,
        mountpoint: volume.mountpoint.as_ref().map(|at| at.display().to_string()),
        state: VolumeState::Planned,
    });
    StackStatus {
        file: stack.file.display().to_string(),
        volume: String::new(),
        dirty_bytes: 0,
        devices: devices.collect(),
        volumes: volumes.collect(),
    }
}
