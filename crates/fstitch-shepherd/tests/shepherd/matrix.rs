//! [C] figure 7: every policy that the engine carries out × kinds of blocks × reads and writes × faults. In every cell what is done, and
//! what the caller sees, is what the independent model says.
//!
//! What it prevents: a policy that says one thing and does another.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, IoOp, MemDevice};
use fstitch_crashlab::{Defect, Fault as Injected, FaultDevice, FaultPlan, Times};
use fstitch_shepherd::engine::{Incident, Rules};
use fstitch_shepherd::model::{Event, Fault, Scenario, Seen, explain};
use fstitch_shepherd::policy::{Answer, Direction, Kind, SHIPPED, Standing};
use fstitch_shepherd::{Options, Policy, Remedy, Shepherd, Stretch};

const BLOCK: usize = 1024;
const VOLUME: u64 = 512;
/// The block that fails, and one that does not.
const HOME: u64 = 40;
const OTHER: u64 = 41;
/// What the format of this test begins every block with.
const MARK: u8 = 0xa5;

/// More than is shipped: steps in other orders, and together.
const OWN: [(&str, &str); 10] = [
    ("verify-retry", "[all]\nread = [\"verify\", \"retry 4\"]\nwrite = [\"verify\", \"retry 4\", \"stop\"]"),
    (
        "everything",
        "[all]\nread = [\"verify\", \"retry 1\", \"mirror\", \"notify\", \"read-only\"]\nwrite = [\"verify\", \"mirror far\", \"retry 3\", \"notify\", \"read-only\"]",
    ),
    (
        "copies-first",
        "[all]\nread = [\"mirror\", \"retry 3\"]\nwrite = [\"mirror near 2\", \"notify\", \"retry 1\"]",
    ),
    ("judged", "[metadata]\nread = [\"sanity\", \"mirror\"]\nwrite = [\"mirror far\"]"),
    (
        "repaired",
        "[metadata]\nread = [\"verify\", \"sanity\", \"repair\"]\nwrite = [\"verify\", \"remap\", \"stop\"]",
    ),
    (
        "moved-late",
        "[all]\nread = [\"verify\", \"mirror\"]\nwrite = [\"verify\", \"mirror near\", \"retry 2\", \"notify\", \"remap\", \"read-only\"]",
    ),
    ("checked", "[metadata]\nread = [\"sanity\", \"full-check\", \"retry 1\", \"stop\"]"),
    (
        "checked-by-sums",
        "[metadata]\nread = [\"verify\", \"sanity\", \"notify\", \"full-check\", \"remount\"]\nwrite = [\"verify\", \"remount\"]",
    ),
    (
        "opened-anew",
        "[all]\nread = [\"retry 1\", \"remount\", \"retry 1\", \"read-only\"]\nwrite = [\"retry 1\", \"remount\", \"stop\"]",
    ),
    ("delayed", "[all]\nread = [\"retry 9 100ms within 250ms\"]\nwrite = [\"retry 9 100ms within 250ms\"]"),
];

/// Damage that is its own repair.
fn damaged(data: &[u8]) -> Vec<u8> {
    let mut data = data.to_vec();
    data[0] ^= 1;
    data[700] ^= 0x80;
    data
}

struct Marks;

impl Rules for Marks {
    fn judge(&self, kind: BlockKind, _: BlockNo, data: &[u8]) -> Option<String> {
        (kind != BlockKind::Data && data[0] != MARK).then(|| "it has no mark".into())
    }

    /// The damage that this test does, and no other.
    fn repair(
        &self,
        _: BlockKind,
        _: BlockNo,
        data: &[u8],
        _: &dyn Fn(BlockNo, BlockKind) -> Option<Vec<u8>>,
    ) -> Option<Vec<u8>> {
        (data[0] == MARK ^ 1).then(|| damaged(data))
    }
}

/// Who checks the volume writes what should be at home; who opens it anew does nothing.
struct Checker {
    kind: BlockKind,
    volume: OnceLock<Weak<Shepherd>>,
}

impl Remedy for Checker {
    fn full_check(&self) -> bool {
        let Some(volume) = self.volume.get().and_then(Weak::upgrade) else { return false };
        let data = contents(2);
        volume.write(&[BlockWrite { block: BlockNo(HOME), kind: self.kind, data: &data }]).is_ok()
    }

    fn remount(&self) -> bool {
        true
    }
}

/// A disk that fails as it is told, with a shepherd.
struct Rig {
    disk: Arc<FaultDevice<MemDevice>>,
    shepherd: Arc<Shepherd>,
    told: Arc<Mutex<Vec<Incident>>>,
}

fn contents(version: u8) -> Vec<u8> {
    let mut data = vec![version; BLOCK];
    data[0] = MARK;
    data
}

impl Rig {
    fn new(policy: &str, kind: BlockKind) -> Self {
        let disk = Arc::new(FaultDevice::new(MemDevice::new(1024, VOLUME), FaultPlan::default()));
        let area: Vec<BlockNo> = (200..400).map(BlockNo).collect();
        let device = || Arc::clone(&disk) as Arc<dyn BlockDevice>;
        let blocks = [HOME, OTHER].map(|block| Stretch::one(BlockNo(block), kind));
        Shepherd::format(device(), &area, [3; 16], policy, &[2], &blocks, &mut |_, _| {}).unwrap();
        let told = Arc::new(Mutex::new(Vec::new()));
        let teller = Arc::clone(&told);
        let remedy = Arc::new(Checker { kind, volume: OnceLock::new() });
        let options = Options {
            pause: Arc::new(|_| {}),
            watch: Arc::new(move |incident| teller.lock().unwrap().push(incident.clone())),
            rules: Some(Arc::new(Marks)),
            remedy: Some(Arc::clone(&remedy) as Arc<dyn Remedy>),
            ..Options::default()
        };
        let (shepherd, opened) = Shepherd::open(device(), &area, options).unwrap();
        assert!(!opened.is_foreign && !opened.was_in_use, "{opened:?}");
        let shepherd = Arc::new(shepherd);
        remedy.volume.set(Arc::downgrade(&shepherd)).unwrap();
        Self { disk, shepherd, told }
    }

    fn write(&self, block: u64, kind: BlockKind, data: &[u8]) -> Seen {
        let result = self.shepherd.write(&[BlockWrite { block: BlockNo(block), kind, data }]);
        let flushed = self.shepherd.flush();
        if result.is_ok() && flushed.is_ok() { Seen::Right } else { Seen::Error }
    }

    fn read(&self, block: u64, kind: BlockKind, expected: &[u8]) -> Seen {
        let mut data = vec![0; BLOCK];
        match self.shepherd.read(&mut [BlockRead { block: BlockNo(block), kind, data: &mut data }]) {
            Ok(()) if data == expected => Seen::Right,
            Ok(()) => Seen::Wrong,
            Err(_) => Seen::Error,
        }
    }

    /// What is on the disk.
    fn under(&self, block: u64) -> Vec<u8> {
        let mut data = vec![0; BLOCK];
        let kind = BlockKind::Data;
        self.disk.device().read(&mut [BlockRead { block: BlockNo(block), kind, data: &mut data }]).unwrap();
        data
    }

    fn put_under(&self, data: &[u8]) {
        let kind = BlockKind::Data;
        self.disk.device().write(&[BlockWrite { block: BlockNo(HOME), kind, data }]).unwrap();
    }

    fn fails(&self, defect: Defect, times: Times) {
        let fault = Injected { blocks: Some(HOME..HOME + 1), times, ..Injected::new(defect) };
        self.disk.set_plan(FaultPlan::one(fault));
    }
}

/// Has the home fail, or be what it should not be: for reads.
fn fail_reads(rig: &Rig, fault: Fault) {
    let (old, new) = (contents(1), contents(2));
    match fault {
        Fault::Error => rig.fails(Defect::Error, Times::Sticky),
        // The request fails that asked; what is written meanwhile does not.
        Fault::Transient(times) => {
            let fault = Injected {
                blocks: Some(HOME..HOME + 1),
                op: Some(IoOp::Read),
                ..Injected::new(Defect::Error)
            };
            rig.disk.set_plan(FaultPlan::one(Injected { times: Times::Transient(times.into()), ..fault }));
        }
        Fault::Slow => rig.fails(Defect::Slow { ms: 5 }, Times::Sticky),
        Fault::Dead => rig.disk.set_plan(FaultPlan::one(Injected::new(Defect::Dead))),
        Fault::Corrupt => rig.put_under(&damaged(&new)),
        Fault::Zeroed => rig.put_under(&vec![0; BLOCK]),
        Fault::Torn => {
            let mut data = new;
            data[512..].copy_from_slice(&old[512..]);
            rig.put_under(&data);
        }
        Fault::Lost | Fault::Stale => rig.put_under(&old),
        Fault::Misdirected => rig.put_under(&rig.under(OTHER)),
    }
}

/// The same for writes. A batch that fails is asked for once more, block by block, if there is a copy in it.
fn fail_writes(rig: &Rig, fault: Fault, in_company: bool) {
    match fault {
        Fault::Transient(times) => {
            // What is read for parity is not what fails.
            let times = Times::Transient(u64::from(times) + u64::from(in_company));
            let fault = Injected { op: Some(IoOp::Write), times, ..Injected::new(Defect::Error) };
            rig.disk.set_plan(FaultPlan::one(Injected { blocks: Some(HOME..HOME + 1), ..fault }));
        }
        Fault::Corrupt => rig.fails(Defect::Corrupted { bits: 3 }, Times::Transient(1)),
        // A disk that writes zeros is not among the lab's; that nobody notices is the same.
        Fault::Zeroed | Fault::Lost | Fault::Stale => rig.fails(Defect::Lost, Times::Transient(1)),
        Fault::Torn => rig.fails(Defect::Torn, Times::Transient(1)),
        Fault::Misdirected => {}
        other => fail_reads(rig, other),
    }
}

/// What the model knows of this disk: there is one, so all copies die with it.
fn scenario(fault: Fault, data: &[u8]) -> Scenario {
    let lives = fault != Fault::Dead;
    Scenario {
        copies: lives,
        parity: lives,
        spares: lives,
        breaks_rules: data[0] != MARK,
        ..Scenario::of(fault)
    }
}

/// What an engine cannot know or do is no event of its own.
fn noticed(events: &[Event]) -> Vec<Event> {
    events.iter().copied().filter(|event| !matches!(event, Event::Unnoticed | Event::Waited)).collect()
}

fn cell(name: &str, text: &str, kind: BlockKind, direction: Direction, fault: Fault) {
    let policy = Policy::parse(text).unwrap();
    let rig = Rig::new(text, kind);
    for version in [1, 2] {
        assert_eq!(rig.write(HOME, kind, &contents(version)), Seen::Right);
        assert_eq!(rig.write(OTHER, kind, &contents(version + 10)), Seen::Right);
        rig.shepherd.settle().unwrap();
    }
    let chain = policy.chain(Kind::Block(kind), Direction::Write);
    let seen = match direction {
        Direction::Read => {
            fail_reads(&rig, fault);
            rig.read(HOME, kind, &contents(2))
        }
        Direction::Write => {
            fail_writes(&rig, fault, chain.keeps_copies() || chain.keeps_parity());
            rig.write(HOME, kind, &contents(3))
        }
    };
    let place = format!("{name}, {kind}, {}, {}", direction.name(), fault.name());
    let held = rig.under(HOME);
    let expected =
        explain(&policy, Kind::Block(kind), direction, &scenario(fault, &judged(direction, &rig, fault)));
    // A check writes while a read waits.
    let mine = |incident: &&Incident| incident.direction == direction;
    let told = rig.told.lock().unwrap().iter().find(mine).map(|incident| incident.events.clone());
    let told = told.unwrap_or_default();
    assert_eq!(told, noticed(&expected.events), "{place}");
    // A dead disk cannot be flushed, whatever was done about the write.
    let ends_dead = fault == Fault::Dead && direction == Direction::Write;
    assert_eq!(seen, if ends_dead { Seen::Error } else { expected.seen }, "{place}");
    if told.contains(&Event::Renewed) {
        assert_eq!(held, contents(2), "{place}: the home has its contents again");
    }
    let reads = policy.chain(Kind::Block(kind), Direction::Read);
    // What the check of this test writes is of version 2.
    let is_written_by_a_check = reads.answers.contains(&Answer::FullCheck) && direction == Direction::Write;
    if reads.stands(Standing::Verify) && !is_written_by_a_check {
        rig.disk.set_plan(FaultPlan::default());
        // A write that is said to have failed may have happened or not.
        let failed = direction == Direction::Write && seen == Seen::Error;
        let wanted = contents(if direction == Direction::Write { 3 } else { 2 });
        if failed && rig.read(HOME, kind, &contents(2)) == Seen::Right {
            return;
        }
        assert_ne!(rig.read(HOME, kind, &wanted), Seen::Wrong, "{place}: nothing unverified is returned");
    }
}

/// What a read finds at home, as far as the rules can tell: of errors, what would be there.
fn judged(direction: Direction, rig: &Rig, fault: Fault) -> Vec<u8> {
    let probe = Rig {
        disk: Arc::new(FaultDevice::new(MemDevice::new(1024, VOLUME), FaultPlan::default())),
        shepherd: Rig::new("", BlockKind::Data).shepherd,
        told: Arc::default(),
    };
    probe.put_under(&contents(2));
    let other = rig.under(OTHER);
    probe
        .disk
        .device()
        .write(&[BlockWrite { block: BlockNo(OTHER), kind: BlockKind::Data, data: &other }])
        .unwrap();
    if direction == Direction::Read {
        fail_reads(&probe, fault);
    }
    probe.under(HOME)
}

/// The block kinds that a policy can speak of.
fn kinds() -> Vec<BlockKind> {
    let block = |kind| match kind {
        Kind::Block(block) => Some(block),
        Kind::Map(_) => None,
    };
    Kind::ALL.into_iter().filter_map(block).collect()
}

#[test]
fn every_cell_is_as_the_model_says() {
    let shipped = SHIPPED.iter().map(|shipped| (shipped.name, shipped.text));
    let mut carried_out = Vec::new();
    let mut cells = 0;
    for (name, text) in shipped.chain(OWN) {
        if !is_carried_out(text) {
            continue;
        }
        carried_out.push(name);
        for kind in kinds() {
            for direction in Direction::ALL {
                for fault in Fault::ALL.into_iter().chain([Fault::Transient(1), Fault::Transient(3)]) {
                    cell(name, text, kind, direction, fault);
                    cells += 1;
                }
            }
        }
    }
    let shipped = [
        "propagate",
        "retry",
        "ntfs",
        "reiserfs",
        "stop",
        "reboot",
        "sanity",
        "checksum",
        "mirror-near",
        "mirror-far",
        "remap",
        "remap-mirror",
        "parity",
        "defence-in-depth",
        "laptop",
        "sd-card",
    ];
    assert_eq!(carried_out[..shipped.len()], shipped, "what is built is refused by nobody");
    assert_eq!(carried_out.len(), shipped.len() + OWN.len());
    assert_eq!(cells, carried_out.len() * 14 * 2 * 12);
}

/// Whether the engine has all steps of a policy.
fn is_carried_out(text: &str) -> bool {
    let disk = Arc::new(MemDevice::new(1024, VOLUME)) as Arc<dyn BlockDevice>;
    let area: Vec<BlockNo> = (200..400).map(BlockNo).collect();
    Shepherd::format(Arc::clone(&disk), &area, [3; 16], text, &[], &[], &mut |_, _| {}).unwrap();
    let checker = Checker { kind: BlockKind::Inode, volume: OnceLock::new() };
    let options =
        Options { rules: Some(Arc::new(Marks)), remedy: Some(Arc::new(checker)), ..Options::default() };
    match Shepherd::open(disk, &area, options) {
        Ok(_) => true,
        Err(fstitch_core::Error::Unsupported(what)) => {
            assert!(what.contains("the step `"), "{what}");
            false
        }
        Err(error) => panic!("{error}"),
    }
}
