//! What is done before the power fails: pieces of the laboratory's workloads, those first that ask for much to be stable.

use std::sync::Arc;

use fstitch_core::MemDevice;
use fstitch_crashlab::Step;
use fstitch_crashlab::medium::Base;
use fstitch_crashlab::workload::{Op, Target, find};

use crate::opened::{Shown, open, open_sound, tree, write_out};
use crate::rack::Rack;
use crate::system::{BLOCK, Made};

const FAMILIES: [&str; 4] = ["random", "editor", "mail", "db"];
/// Operations of a piece.
const STEPS: usize = 24;

/// What is there before, and what is done then.
pub struct Program {
    pub name: String,
    before: Vec<Op>,
    pub ops: Vec<Op>,
}

/// The program of this number: one for each family and seed, each somewhere else in its workload.
pub fn program(number: u64) -> Program {
    let count = u64::try_from(FAMILIES.len()).unwrap();
    let family = FAMILIES[usize::try_from(number % count).unwrap()];
    let (families, _) = find(family).unwrap();
    let workload = families.get(number / count).unwrap();
    let last = workload.ops.len().saturating_sub(STEPS);
    let first = (usize::try_from(number).unwrap() * 31) % (last + 1);
    let before = workload.setup.iter().chain(&workload.ops[..first]).cloned().collect();
    let mut ops: Vec<Op> = workload.ops[first..].iter().take(STEPS).cloned().collect();
    // Some end with a promise, others in the middle of things.
    if (number / count).is_multiple_of(2) {
        ops.push(Op::Sync);
    }
    Program { name: format!("{family}-{number}"), before, ops }
}

impl Made {
    /// The volume before a program.
    pub fn base(&self, number: u64) -> Shown {
        let medium = Arc::new(MemDevice::from_image(BLOCK, self.image.clone()));
        let rack = Rack::new(self.system.disks, Arc::clone(&medium) as _);
        let opened = open(&self.system, &rack).unwrap();
        let written = |choose: &mut dyn FnMut(Step) -> bool| write_out(&*opened.fs, choose);
        let mut target = Target::new(&*opened.fs, &written);
        for (no, op) in (1 << 20..).zip(program(number).before) {
            // One that the workload expects to fail is no part of what is there.
            drop(op.run(&mut target, no));
        }
        drop(target);
        opened.fs.unmount().unwrap();
        opened.shepherd.close().unwrap();
        drop(opened);
        let base = Base::new(BLOCK, medium.image());
        let opened = open_sound(&self.system, &rack).unwrap();
        Shown { base, tree: tree(&*opened.fs).unwrap() }
    }
}
