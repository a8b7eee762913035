//! What is taken apart: a volume of ext2 or ext3 that follows a policy, on one disk or on several.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use fstitch_core::{BlockDevice, Consistency, MemDevice};
use fstitch_crashlab::{Promise, STALE};
use fstitch_formats::make::Fresh;
use fstitch_formats::{Format, KeepsMaps};
use fstitch_shepherd::disks::{Plan, label_of, write_labels};
use fstitch_shepherd::engine::Trouble;
use fstitch_shepherd::policy::shipped;
use fstitch_shepherd::{Array, Policy, Room, Shepherd};

use crate::asked::{NOW, asked};
use crate::opened::{options, shepherd};
use crate::rack::Rack;

pub const BLOCK: u32 = 1024;
/// Blocks of a volume on one disk, and for its copies.
const VOLUME: u64 = 8 << 10;
const SPARES: u64 = 2600;
/// Blocks of each disk of several.
const DISK: u64 = 5 << 10;

/// A mechanism over a policy.
#[derive(Clone, Copy, Debug)]
pub struct System {
    pub policy: &'static str,
    pub disks: usize,
    pub consistency: Consistency,
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.kind(), self.consistency, self.policy)
    }
}

impl System {
    pub fn kind(&self) -> &'static str {
        if self.consistency.is_journaled() { "ext3" } else { "ext2" }
    }

    pub fn format(&self) -> &'static dyn Format {
        fstitch_formats::by_name(self.kind()).unwrap()
    }

    pub fn keeps(&self) -> &'static dyn KeepsMaps {
        self.format().keeps_maps().unwrap()
    }

    pub fn text(&self) -> &'static str {
        shipped(self.policy).unwrap().text
    }

    /// What the mechanism leaves of several operations, whatever the policy.
    pub fn promise(&self) -> Promise {
        match self.consistency {
            Consistency::Full => Promise::Exact,
            Consistency::Ordered => Promise::Whole,
            _ => Promise::Parts,
        }
    }

    /// Has the faults that are chosen for one system differ from those of another.
    pub fn number(&self) -> u64 {
        self.to_string().bytes().map(u64::from).sum()
    }

    fn blocks(&self) -> u64 {
        if self.disks == 1 { VOLUME } else { DISK * u64::try_from(self.disks).unwrap() }
    }
}

/// A fresh volume of a system.
pub struct Made {
    pub system: System,
    pub policy: Policy,
    pub image: Vec<u8>,
    /// Blocks of the journal, which nobody may move.
    pub journal: BTreeSet<u64>,
}

impl Made {
    pub fn new(system: System) -> Self {
        let bytes = usize::try_from(system.blocks() * u64::from(BLOCK)).unwrap();
        let medium = Arc::new(MemDevice::from_image(BLOCK, vec![STALE; bytes]));
        let policy = Policy::parse(system.text()).unwrap();
        if system.disks == 1 {
            on_one(&system, &medium)
        } else {
            on_several(&system, &policy, &medium)
        }
        let image = medium.image();
        let journal = if system.disks == 1 { journal(&system, &*medium) } else { BTreeSet::new() };
        Self { system, policy, image, journal }
    }
}

fn journal(system: &System, device: &dyn BlockDevice) -> BTreeSet<u64> {
    let census = system.keeps().census(device).unwrap();
    let stretches = census.iter().filter(|stretch| stretch.kind.is_journal());
    stretches.flat_map(|stretch| stretch.start.get()..stretch.start.get() + stretch.count).collect()
}

fn make(system: &System, device: &dyn BlockDevice) {
    let asked = asked(system.format(), system.kind(), BLOCK, "laboratory");
    let fresh = Fresh { device, is_zero: false, bytes: None };
    system.format().plan(&asked).unwrap().make(fresh, &mut |_, _| {}).unwrap();
}

fn on_one(system: &System, medium: &Arc<MemDevice>) {
    make(system, &**medium);
    let keeps = system.keeps();
    let area = keeps.make_room(&**medium, Room::new(BLOCK, VOLUME, SPARES), NOW).unwrap();
    let (blocks, uuid) = (keeps.census(&**medium).unwrap(), keeps.uuid(&**medium).unwrap());
    let device = || Arc::clone(medium) as Arc<dyn BlockDevice>;
    let sealed = keeps.sealed();
    Shepherd::format(device(), &area, uuid, system.text(), &sealed, &blocks, &mut |_, _| {}).unwrap();
    let options = options(Some(keeps.rules(&**medium).unwrap()));
    let (shepherd, _) = Shepherd::open(device(), &area, options).unwrap();
    assert_eq!(shepherd.health().all(Trouble::CopyLost), 0, "{system}: there is room for all copies");
    keeps.finish(&shepherd, true).unwrap();
    shepherd.close().unwrap();
}

fn on_several(system: &System, policy: &Policy, medium: &Arc<MemDevice>) {
    let rack = Rack::new(system.disks, Arc::clone(medium) as _);
    let name = |no: usize| [u8::try_from(no + 1).unwrap(); 16];
    let disks = (0..system.disks).map(|no| (name(no), DISK)).collect();
    let plan = Plan { uuid: [7; 16], block_size: BLOCK, first: 2, disks, hot: Vec::new() };
    let given = rack.given();
    let all: Vec<_> = given.iter().flatten().cloned().collect();
    write_labels(&all, &label_of(&plan, policy).unwrap()).unwrap();
    let (array, _) = Array::open(&given, false).unwrap();
    Shepherd::format_array(&Arc::new(array), system.text()).unwrap();
    let (shepherd, _) = shepherd(system, &rack).unwrap();
    make(system, &*shepherd);
    // Who makes a volume does not say of every block what it is.
    shepherd.renew(&system.keeps().census(&*shepherd).unwrap(), &mut |_, _| {}).unwrap();
    assert_eq!(shepherd.health().all(Trouble::CopyLost), 0, "{system}: there is room for all copies");
    shepherd.close().unwrap();
}
