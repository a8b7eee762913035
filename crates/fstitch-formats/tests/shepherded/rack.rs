//! The disks of a volume, which fail as they are told.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fstitch_core::{BlockDevice, IoOp};
use fstitch_crashlab::{Defect, Fault as Planned, FaultDevice, FaultPlan, Times};

use crate::machine::{Machine, disks};

/// How long a fault of one disk lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// The request fails, and the same one would not fail again.
    Once,
    /// And so do all later ones of its kind, until the disk is well again.
    On,
}

/// What befalls a volume; requests are counted from 1, from the opening on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A write or a flush of the one disk fails.
    Request(IoOp, u64, Lasting),
    /// Flushes of the one disk succeed and do nothing from this one on: nobody can keep a promise over it.
    Lie { nth: u64 },
    /// A block takes no writes any more from some write of it on.
    Worn { block: u64, nth: u64 },
    /// A disk of several is dead from a write or a flush on.
    Death { disk: usize, nth: u64 },
    /// A write or a flush of a disk of several fails.
    Hiccup { disk: usize, nth: u64 },
}

/// One disk or several, on one medium.
pub enum Rack {
    One(Arc<FaultDevice<Arc<dyn BlockDevice>>>),
    Several(Arc<Machine<Arc<dyn BlockDevice>>>),
}

impl Rack {
    pub fn new(count: usize, medium: Arc<dyn BlockDevice>) -> Self {
        match count {
            1 => Self::One(Arc::new(FaultDevice::new(medium, FaultPlan::default()))),
            count => Self::Several(Machine::new(medium, count)),
        }
    }

    pub fn given(&self) -> Vec<Option<Arc<dyn BlockDevice>>> {
        match self {
            Self::One(disk) => vec![Some(Arc::clone(disk) as _)],
            Self::Several(machine) => disks(machine),
        }
    }

    /// The one disk.
    pub fn one(&self) -> &FaultDevice<Arc<dyn BlockDevice>> {
        match self {
            Self::One(disk) => disk,
            Self::Several(_) => panic!("there are several"),
        }
    }

    /// Requests fail from now on.
    pub fn strike(&self, fault: Fault) {
        let planned = match (self, fault) {
            (Self::One(_), Fault::Request(op, nth, lasting)) => {
                let times = if lasting == Lasting::Once { Times::Transient(1) } else { Times::Sticky };
                Planned { op: Some(op), nth, times, ..Planned::new(Defect::Error) }
            }
            (Self::One(_), Fault::Lie { nth }) => {
                Planned { op: Some(IoOp::Flush), nth, times: Times::Sticky, ..Planned::new(Defect::Lying) }
            }
            (Self::One(_), Fault::Worn { block, nth }) => worn(block, nth),
            (Self::Several(machine), Fault::Death { disk, nth }) => {
                return machine.left[disk].store(nth - 1, Ordering::SeqCst);
            }
            (Self::Several(machine), Fault::Hiccup { disk, nth }) => {
                return machine.hiccup[disk].store(nth - 1, Ordering::SeqCst);
            }
            _ => panic!("{fault:?} befalls other disks"),
        };
        self.one().set_plan(FaultPlan::one(planned));
    }

    /// Whether a fault of [`Rack::strike`] has struck.
    pub fn has_struck(&self, fault: Fault) -> bool {
        match (self, fault) {
            // A disk that is to die may be found dead by a read.
            (Self::Several(machine), Fault::Death { disk, nth }) => {
                machine.asked[disk].load(Ordering::SeqCst) + 1 >= nth
            }
            (Self::Several(machine), Fault::Hiccup { disk, nth }) => {
                machine.asked[disk].load(Ordering::SeqCst) >= nth
            }
            _ => !self.one().injected().is_empty(),
        }
    }

    /// The power fails after so many writes and flushes, until it is back.
    pub fn cut_after(&self, count: u64) {
        match self {
            Self::One(disk) => {
                disk.set_plan(FaultPlan::one(Planned {
                    op: Some(IoOp::Write),
                    nth: count,
                    ..Planned::new(Defect::Dead)
                }));
            }
            Self::Several(machine) => machine.power.store(count, Ordering::SeqCst),
        }
    }

    pub fn power_is_back(&self) {
        match self {
            Self::One(disk) => disk.set_plan(FaultPlan::default()),
            Self::Several(machine) => machine.power.store(u64::MAX, Ordering::SeqCst),
        }
    }
}

/// A block that takes no writes any more.
pub fn worn(block: u64, nth: u64) -> Planned {
    let blocks = Some(block..block + 1);
    Planned { op: Some(IoOp::Write), blocks, nth, times: Times::Sticky, ..Planned::new(Defect::Error) }
}
