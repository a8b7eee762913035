//! Running a program while disks fail, and writing down what happens and what is promised.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fstitch_core::num::to_u64;
use fstitch_core::{BlockDevice, Errno, IoOp};
use fstitch_crashlab::medium::{Base, Event, Image, Log, Mark};
use fstitch_crashlab::oracle::{Ledger, Tree, What};
use fstitch_crashlab::workload::{Op, Target};
use fstitch_crashlab::{Recorder, Step};

use crate::opened::{Shown, open, write_out};
use crate::programs::program;
use crate::rack::{Fault, Lasting, Rack};
use crate::system::Made;

/// Epochs that a volume at rest takes to become clean, at most.
const MAX_DRAIN: usize = 100_000;

/// A program's past.
pub struct Run {
    pub name: String,
    pub base: Arc<Base>,
    pub log: Log,
    pub ledger: Ledger,
    pub has_struck: bool,
    /// Writes and flushes after which the power fails in recovery.
    pub cut_after: u64,
    /// Writes and flushes that each disk was asked for.
    asked: Vec<[u64; 2]>,
}

impl Run {
    /// Every fault that the program can meet.
    pub fn faults(&self) -> Vec<Fault> {
        if let [[writes, flushes]] = self.asked[..] {
            let mut faults = Vec::new();
            for (op, count) in [(IoOp::Write, writes), (IoOp::Flush, flushes)] {
                for nth in 1..=count {
                    faults
                        .extend([Lasting::Once, Lasting::On].map(|lasting| Fault::Request(op, nth, lasting)));
                }
            }
            let mut times: BTreeMap<u64, u64> = BTreeMap::new();
            for event in &self.log.events {
                if let Event::Write { block, .. } = event {
                    let nth = times.entry(*block).or_default();
                    *nth += 1;
                    faults.push(Fault::Worn { block: *block, nth: *nth });
                }
            }
            return faults;
        }
        let disks = self.asked.iter().enumerate();
        let each = disks.flat_map(|(disk, asked)| {
            (1..=asked.iter().sum())
                .flat_map(move |nth| [Fault::Death { disk, nth }, Fault::Hiccup { disk, nth }])
        });
        each.collect()
    }
}

/// Runs a program, which may meet a fault from its mounting on.
pub fn record(made: &Made, before: &Shown, number: u64, fault: Option<Fault>) -> Run {
    let program = program(number);
    let recorder = Arc::new(Recorder::new(Image::new(Arc::clone(&before.base))));
    let rack = Rack::new(made.system.disks, Arc::clone(&recorder) as Arc<dyn BlockDevice>);
    if let Some(fault) = fault {
        rack.strike(fault);
    }
    let mut ledger = Ledger::new(before.tree.clone());
    if let Ok(opened) = open(&made.system, &rack) {
        let written = |choose: &mut dyn FnMut(Step) -> bool| write_out(&*opened.fs, choose);
        let mut target = Target::new(&*opened.fs, &written);
        for (no, op) in (0_u32..).zip(&program.ops) {
            let what = promised(op, ledger.tree());
            recorder.mark(Mark::Begin(no));
            let done = op.run(&mut target, no);
            recorder.mark(Mark::End(no));
            // Nothing that can be read fails, so what an operation that failed has done is seen as well.
            ledger.push(Tree::read_with(&*opened.fs, Some(ledger.tree()), &target.held()).unwrap());
            match (done, what) {
                (Ok(()), Some(what)) => promise(&recorder, &mut ledger, what),
                (Err(error), _) => {
                    // Others are the workload's business.
                    let is_a_fault = [Errno::IO, Errno::ROFS].contains(&error.errno());
                    assert!(
                        fault.is_some() || !is_a_fault,
                        "{} {}: {op}: {error}",
                        made.system,
                        program.name
                    );
                }
                (Ok(()), None) => {}
            }
        }
        drop(target);
        let drain = if program.ops.len().is_multiple_of(2) { MAX_DRAIN } else { 0 };
        let _ = (0..drain).find(|_| !matches!(write_out(&*opened.fs, &mut |_| true), Ok(1..)));
        let ends = [opened.fs.unmount(), opened.shepherd.close()];
        if ends.iter().all(Result::is_ok) {
            promise(&recorder, &mut ledger, What::Everything);
        } else {
            assert!(fault.is_some(), "{} {}: {ends:?}", made.system, program.name);
        }
    } else {
        assert!(fault.is_some(), "{} {}: it cannot be mounted", made.system, program.name);
    }
    let has_struck = fault.is_some_and(|fault| rack.has_struck(fault));
    let log = recorder.take();
    let cut_after = 1 + to_u64(log.events.len()) % 40;
    let asked = asked(&rack);
    Run { name: program.name, base: Arc::clone(&before.base), log, ledger, has_struck, cut_after, asked }
}

fn asked(rack: &Rack) -> Vec<[u64; 2]> {
    match rack {
        Rack::One(disk) => {
            let requests = disk.requests();
            vec![[requests.writes, requests.flushes]]
        }
        Rack::Several(machine) => {
            machine.asked.iter().map(|asked| [asked.load(Ordering::SeqCst), 0]).collect()
        }
    }
}

fn promise(recorder: &Recorder<Image>, ledger: &mut Ledger, what: What) {
    let promise = ledger.promise(what, ledger.version());
    recorder.mark(Mark::Promise(promise));
}

/// What the success of an operation promises.
fn promised(op: &Op, tree: &Tree) -> Option<What> {
    match op {
        Op::Sync => Some(What::Everything),
        Op::Fsync { path } => Some(What::Object { id: tree.find(path)?, data_only: false }),
        Op::Fdatasync { path } => Some(What::Object { id: tree.find(path)?, data_only: true }),
        _ => None,
    }
}
