//! The laboratory's own workloads on a medium that fails once: the error is told, and what is left afterwards is
//! what a power cut at that moment could have left.

use std::sync::Arc;

use fstitch_core::{FindingClass, IoOp, Result, Seed};
use fstitch_crashlab::medium::{History, Level, Log, Mark, for_each_choice};
use fstitch_crashlab::oracle::{Tree, Window};
use fstitch_crashlab::workload::{Op, Target, Workload};
use fstitch_crashlab::{
    Defect, Fault, FaultDevice, FaultPlan, Image, Lab, LabOptions, Mounted, Recorder, Recording, Requests,
    Step, find_workload,
};
use fstitch_systems::Ext2System;

type Device = Recorder<FaultDevice<Image>>;

/// Images looked at after each run.
const IMAGES: u64 = 24;

/// A workload, and what it does on a sound medium.
struct Subject {
    lab: Lab,
    workload: Workload,
    healthy: Recording,
}

/// What it did on one that failed.
struct Outcome {
    /// What failed that had succeeded on the sound medium.
    errors: Vec<String>,
    requests: Requests,
    log: Log,
    /// Everything visible at its end.
    seen: Option<Tree>,
}

impl Subject {
    fn new(name: &str) -> Self {
        let lab = Lab::new(Arc::new(Ext2System::default()), LabOptions::default()).unwrap();
        let workload = find_workload(name).unwrap();
        let healthy = lab.record(&workload).unwrap();
        Self { lab, workload, healthy }
    }

    fn run(&self, plan: FaultPlan) -> Outcome {
        let image = Image::with(Arc::clone(self.lab.base()), self.healthy.start.clone());
        let device: Arc<Device> = Arc::new(Recorder::new(FaultDevice::new(image, plan)));
        let (requests, log) = (Requests::default(), device.take());
        let mut outcome = Outcome { errors: vec![], requests, log, seen: None };
        match self.lab.system().mount(Arc::<Device>::clone(&device)) {
            Ok(mounted) => self.work(&*mounted, &device, &mut outcome),
            Err(error) => outcome.errors.push(format!("mount: {error}")),
        }
        outcome.requests = device.device().requests();
        outcome.log = device.take();
        outcome
    }

    fn work(&self, mounted: &dyn Mounted, device: &Device, outcome: &mut Outcome) {
        let fs = mounted.fs();
        let write_out = |choose: &mut dyn FnMut(Step) -> bool| mounted.write_out(choose);
        let mut target = Target::new(fs, &write_out);
        let mut tree = self.see(fs, None, &target, outcome);
        let mut promise = 0;
        for (no, op) in (0_u32..).zip(&self.workload.ops) {
            // What begins after the failure changes nothing any more, and must not widen what may be seen.
            let failed = !outcome.errors.is_empty();
            if !failed {
                device.mark(Mark::Begin(no));
            }
            let done = op.run(&mut target, no);
            if !failed {
                device.mark(Mark::End(no));
            }
            let syncs = matches!(op, Op::Sync | Op::Fsync { .. } | Op::Fdatasync { .. });
            match done {
                Ok(()) if syncs && self.is_promise(no) => {
                    device.mark(Mark::Promise(promise));
                    promise += 1;
                }
                Ok(()) => {}
                Err(error) if self.healthy.refused.get(&no) == Some(&error.to_string()) => {}
                Err(error) => outcome.errors.push(format!("{op}: {error}")),
            }
            tree = self.see(fs, tree.as_ref(), &target, outcome).or(tree);
        }
        drop(target);
        outcome.seen = tree;
        let drained: Result<()> = std::iter::repeat_with(|| match self.workload.is_written_out() {
            true => mounted.write_out(&mut |_| true),
            false => Ok(0),
        })
        .find_map(|step| match step {
            Ok(0) => Some(Ok(())),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        })
        .expect("the iterator has no end");
        let unmounted = fs.unmount();
        for (what, done) in [("write out", drained), ("unmount", unmounted)] {
            done.unwrap_or_else(|error| outcome.errors.push(format!("{what}: {error}")));
        }
    }

    /// Reads everything, as the laboratory does after each operation: it goes on after any failed write.
    fn see(
        &self,
        fs: &dyn fstitch_core::FileSystem,
        before: Option<&Tree>,
        target: &Target<'_>,
        outcome: &mut Outcome,
    ) -> Option<Tree> {
        Tree::read_with(fs, before, &target.held())
            .map_err(|error| outcome.errors.push(format!("read: {error}")))
            .ok()
    }

    /// Whether the success of operation `no` was a promise on the sound medium; a sync of what is not there is none.
    fn is_promise(&self, no: u32) -> bool {
        let mut begun = None;
        self.healthy.log.events.iter().any(|event| match event {
            fstitch_crashlab::medium::Event::Mark(Mark::Begin(n)) => {
                begun = Some(*n);
                false
            }
            fstitch_crashlab::medium::Event::Mark(Mark::Promise(_)) => begun == Some(no),
            _ => false,
        })
    }

    /// The images that the medium may hold after a run: no damage beyond what a crash may leave and, as far as
    /// `ledger` is known, everything between what was promised and what was begun.
    fn judge(&self, outcome: &Outcome, ledger: bool, replay: &str) {
        let base = Arc::clone(self.lab.base());
        let start = self.healthy.start.clone();
        let mut history = History::from_stable(Arc::clone(&base), start, Level::M2);
        outcome.log.events.iter().for_each(|event| history.apply(event));
        let cut = history.cut();
        let window = Window::new(&self.healthy.ledger, cut.progress, fstitch_crashlab::Promise::Parts);
        for_each_choice(&cut, IMAGES, &mut Seed::new(1), &mut |choice| {
            let image = Arc::new(Image::with(Arc::clone(&base), cut.blocks(choice)));
            let device: Arc<dyn fstitch_core::BlockDevice> = Arc::<Image>::clone(&image);
            let report = self.lab.system().check(&device).unwrap();
            let damage = report.findings.iter().find(|finding| finding.class == FindingClass::Corrupt);
            assert!(damage.is_none(), "{replay}: {damage:?}");
            let mounted = self.lab.system().open(image).unwrap();
            let tree = Tree::read(mounted.fs(), None).unwrap_or_else(|error| panic!("{replay}: {error}"));
            if ledger {
                let verdict = window.judge(&tree);
                assert!(verdict.is_ok(), "{replay}: {verdict:?}");
            }
            true
        });
    }

    /// Fails the n-th request of `op` for every n; returns how many there are.
    fn census(&self, op: IoOp, count: fn(Requests) -> u64) -> u64 {
        let sound = self.run(FaultPlan::default());
        assert!(sound.errors.is_empty(), "{}: {:?}", self.workload.name, sound.errors);
        assert_eq!(sound.log, self.healthy.log_without_last_promise(), "{}", self.workload.name);
        let total = count(sound.requests);
        let mut told = 0;
        for nth in 1..=total {
            let plan = FaultPlan::one(Fault { op: Some(op), nth, ..Fault::new(Defect::Error) });
            let replay = format!("{} with `{plan}`", self.workload.name);
            let outcome = self.run(plan);
            if outcome.errors.is_empty() {
                // A block was read ahead; who needs it reads it again. The volume is not called clean all the same.
                assert!(op == IoOp::Read, "{replay}: the error was swallowed");
                assert!(outcome.seen == sound.seen, "{replay}: something else is seen");
                self.judge(&outcome, true, &replay);
                continue;
            }
            told += 1;
            if op != IoOp::Read {
                let reads = outcome.errors.iter().find(|error| error.starts_with("read"));
                assert!(reads.is_none(), "{replay}: {reads:?}");
                let last = outcome.errors.last();
                assert!(last.is_some_and(|error| error.starts_with("unmount")), "{replay}: {last:?}");
            }
            // After a failed read the workload goes another way, which nobody has written down.
            self.judge(&outcome, op != IoOp::Read, &replay);
        }
        assert!(told > 0 && (op == IoOp::Read || told == total), "{told} of {total}");
        total
    }
}

/// The laboratory promises everything once the volume is unmounted.
trait WithoutLastPromise {
    fn log_without_last_promise(&self) -> Log;
}

impl WithoutLastPromise for Recording {
    fn log_without_last_promise(&self) -> Log {
        let mut log = self.log.clone();
        log.events.pop();
        log
    }
}

fn census(names: &[&str], op: IoOp, count: fn(Requests) -> u64) -> u64 {
    names.iter().map(|name| Subject::new(name).census(op, count)).sum()
}

const WORKLOADS: [&str; 7] =
    ["random/0", "random/1", "seq1/0", "seq1/60", "seq1/200", "seq2/4711", "seq2/90210"];

#[test]
fn every_failed_write_is_a_power_cut() {
    let total = census(&WORKLOADS, IoOp::Write, |requests| requests.writes);
    assert!(total > 100, "{total} writes");
}

#[test]
fn every_failed_flush_is_a_power_cut() {
    let total = census(&WORKLOADS, IoOp::Flush, |requests| requests.flushes);
    assert!(total > 30, "{total} flushes");
}

#[test]
fn every_failed_read_is_told() {
    let total = census(&WORKLOADS, IoOp::Read, |requests| requests.reads);
    assert!(total > 60, "{total} reads");
}
