//! The matrix of [C] figure 7 over several disks: policies that keep copies on other disks × kinds of blocks × reads and writes × faults of one
//! block, and of its disk as a whole. What is done, and what the caller sees, is what the independent model says.
//!
//! What it prevents: a policy for several disks that says one thing and does another.

use std::sync::{Arc, Mutex};

use crate::machine::*;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, IoOp};
use fstitch_crashlab::{Defect, Fault as Injected, FaultDevice, FaultPlan, Times};
use fstitch_shepherd::disks::Array;
use fstitch_shepherd::engine::Incident;
use fstitch_shepherd::model::{Event, Fault, Scenario, Seen, explain};
use fstitch_shepherd::policy::{Direction, Kind, shipped};
use fstitch_shepherd::{Options, Policy, Shepherd};

/// On the first disk.
const HOME: u64 = 40;

struct Rig {
    disk: Arc<FaultDevice<Arc<dyn BlockDevice>>>,
    /// Where the home is on it.
    at: u64,
    shepherd: Shepherd,
    told: Arc<Mutex<Vec<Incident>>>,
}

impl Rig {
    fn new(policy: &str, count: usize) -> Self {
        let machine = Machine::new(made(policy, count), count);
        let mut given = disks(&machine);
        let disk = Arc::new(FaultDevice::new(given[0].take().unwrap(), FaultPlan::default()));
        given[0] = Some(Arc::clone(&disk) as Arc<dyn BlockDevice>);
        let array = Arc::new(Array::open(&given, false).unwrap().0);
        assert_eq!(array.disk_of(BlockNo(HOME)), Some(0));
        let at = array.label().first + array.label().zone + HOME;
        let told: Arc<Mutex<Vec<Incident>>> = Arc::default();
        let teller = Arc::clone(&told);
        let options = Options {
            pause: Arc::new(|_| {}),
            watch: Arc::new(move |incident| teller.lock().unwrap().push(incident.clone())),
            disks: Some(Arc::clone(&array)),
            ..Options::default()
        };
        let area = array.area();
        let (shepherd, _) = Shepherd::open(array, &area, options).unwrap();
        Self { disk, at, shepherd, told }
    }

    fn write(&self, kind: BlockKind, fill: u8) -> Seen {
        let write = BlockWrite { block: BlockNo(HOME), kind, data: &[fill; BLOCK] };
        let is_right = self.shepherd.write(&[write]).is_ok() & self.shepherd.flush().is_ok();
        if is_right { Seen::Right } else { Seen::Error }
    }

    fn read(&self, kind: BlockKind, fill: u8) -> Seen {
        let mut data = vec![0; BLOCK];
        match self.shepherd.read(&mut [BlockRead { block: BlockNo(HOME), kind, data: &mut data }]) {
            Ok(()) if data == [fill; BLOCK] => Seen::Right,
            Ok(()) => Seen::Wrong,
            Err(_) => Seen::Error,
        }
    }

    /// The home fails: for `company`, a batch is asked for once more block by block.
    fn fails(&self, fault: Fault, direction: Direction, company: bool) {
        let op = if direction == Direction::Read { IoOp::Read } else { IoOp::Write };
        let here = |defect, op, times| Injected {
            blocks: Some(self.at..self.at + 1),
            op,
            times,
            ..Injected::new(defect)
        };
        let planned = match (fault, direction) {
            (Fault::Error, _) => here(Defect::Error, None, Times::Sticky),
            (Fault::Transient(times), _) => {
                let again = u64::from(company && direction == Direction::Write);
                here(Defect::Error, Some(op), Times::Transient(u64::from(times) + again))
            }
            (Fault::Dead, _) => Injected::new(Defect::Dead),
            (_, Direction::Write) => here(Defect::Lost, None, Times::Transient(1)),
            _ => return self.damage(),
        };
        self.disk.set_plan(FaultPlan::one(planned));
    }

    fn damage(&self) {
        let kind = BlockKind::Data;
        let write = BlockWrite { block: BlockNo(self.at), kind, data: &[9; BLOCK] };
        self.disk.device().write(&[write]).unwrap();
    }
}

fn cell((name, text): (&str, &str), count: usize, kind: BlockKind, direction: Direction, fault: Fault) {
    let policy = Policy::parse(text).unwrap();
    let rig = Rig::new(text, count);
    for fill in [1, 2] {
        assert_eq!(rig.write(kind, fill), Seen::Right);
        rig.shepherd.settle().unwrap();
    }
    let chain = policy.chain(Kind::Block(kind), Direction::Write);
    rig.fails(fault, direction, chain.keeps_copies());
    let seen = match direction {
        Direction::Read => rig.read(kind, 2),
        Direction::Write => rig.write(kind, 3),
    };
    let scenario = Scenario { elsewhere: true, ..Scenario::of(fault) };
    let expected = explain(&policy, Kind::Block(kind), direction, &scenario);
    let place = format!("{name} on {count}, {kind}, {}, {}", direction.name(), fault.name());
    assert_eq!(seen, expected.seen, "{place}");
    let told = rig.told.lock().unwrap().first().map(|incident| incident.events.clone()).unwrap_or_default();
    let noticed: Vec<Event> =
        expected.events.iter().copied().filter(|event| *event != Event::Unnoticed).collect();
    // A disk that is out is no news: copies are read as if they were the homes.
    if fault != Fault::Dead {
        assert_eq!(told, noticed, "{place}");
    } else if seen == Seen::Right && chain.keeps_copies() {
        assert_eq!(told, [], "{place}");
    }
    if seen == Seen::Right && expected.events.iter().all(|event| *event != Event::Unnoticed) {
        let last = if direction == Direction::Read { 2 } else { 3 };
        assert_eq!(rig.read(kind, last), Seen::Right, "{place}: it stays so");
    }
}

#[test]
fn every_cell_is_as_the_model_says() {
    let policies = [
        ("d-graid", shipped("d-graid").unwrap().text),
        ("mirrored", POLICIES[0]),
        ("summed", POLICIES[1]),
        ("everywhere", POLICIES[2]),
        (
            "metadata",
            "[metadata]\nread = [\"retry 1\", \"mirror\"]\nwrite = [\"mirror other-disk\", \"retry 2\"]",
        ),
        ("moved", "[all]\nread = [\"retry 2\"]\nwrite = [\"retry 1\", \"remap\", \"stop\"]"),
    ];
    let faults = [Fault::Error, Fault::Transient(1), Fault::Transient(2), Fault::Corrupt, Fault::Dead];
    let mut cells = 0;
    for policy in policies {
        for kind in Kind::ALL {
            let Kind::Block(kind) = kind else { continue };
            for direction in Direction::ALL {
                for (fault, count) in faults.into_iter().flat_map(|fault| [2, 3].map(|count| (fault, count)))
                {
                    cell(policy, count, kind, direction, fault);
                    cells += 1;
                }
            }
        }
    }
    assert_eq!(cells, 6 * 14 * 2 * 5 * 2);
}
