//! Operations on a volume in a mapped file or device, each of which is printed when it has returned, and whether they are there.
//!
//! ```text
//! dax make PATH           makes an empty volume
//! dax work PATH DONE      expects what the first DONE operations have left, or some more, and goes on from there for ever
//! ```
//!
//! Who cuts the power (`scripts/dax.sh`) reads `> done N` for each operation. The operations are always the same, and the model of a file
//! system carries them out as well. A console keeps some lines, so that more may have happened than was read: the tree is that of
//! one of the next operations, exactly.

#![allow(clippy::unwrap_used, reason = "it fails where it cannot go on")]

#[path = "../../fstitch-fs/tests/fs/driver.rs"]
#[allow(dead_code, reason = "tests use the rest of it")]
mod driver;
#[path = "../tests/bpfs/support/operations.rs"]
mod operations;
#[path = "../tests/bpfs/support/mod.rs"]
mod support;

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use driver::{Op, Side};
use fstitch_bpfs::{Bpfs, Medium, Optimizations, mkfs};
use fstitch_core::{FileSystem, ManualClock, Seed};
use fstitch_fs::model::{Model, ModelOptions};
use operations::{operations, preparations};

/// Operations that a console may have kept to itself.
const UNSEEN: u64 = 500;

/// All operations, one after the other, and the tree that they make.
struct Program {
    all: Vec<Op>,
    seed: Seed,
    clock: Arc<ManualClock>,
    model: Side,
    done: u64,
}

impl Program {
    fn new() -> Self {
        let clock = support::clock();
        let options = ModelOptions { atime: false, xattrs_max: 1 << 20, ..ModelOptions::default() };
        let model = Side::new(Arc::new(Model::with(options, Arc::<ManualClock>::clone(&clock))));
        Self { all: operations(), seed: Seed::new(1), clock, model, done: 0 }
    }

    /// The next operation, which has its second.
    fn next(&mut self) -> Op {
        let preparations = preparations();
        let op = match usize::try_from(self.done).ok().and_then(|done| preparations.get(done)) {
            Some(op) => op.clone(),
            None => self.all[usize::try_from(self.seed.below(self.all.len() as u64)).unwrap()].clone(),
        };
        self.clock.advance(Duration::from_secs(1));
        self.done += 1;
        op
    }

    /// Carries out the next operation in the model alone.
    fn skip(&mut self) {
        let op = self.next();
        let _ = self.model.run(&op);
        // Nobody holds anything behind a cut.
        self.model.release_all();
    }
}

fn medium(path: &str) -> Medium {
    let file = File::options().read(true).write(true).open(path).unwrap();
    Medium::file(file, false).unwrap()
}

fn make(path: &str) {
    let medium = medium(path);
    println!("> medium {} {:?}", medium.len(), medium.durability());
    mkfs(medium, &support::mkfs_options()).unwrap();
    println!("> made");
}

fn work(path: &str, printed: u64) {
    let mut program = Program::new();
    (0..printed).for_each(|_| program.skip());
    let medium = medium(path);
    println!("> medium {} {:?}", medium.len(), medium.durability());
    let options = support::options(Optimizations::ALL);
    let fs = Arc::new(Bpfs::open(medium, options, Arc::<ManualClock>::clone(&program.clock)).unwrap());
    let report = fs.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    let mut real = Side::new(Arc::<Bpfs>::clone(&fs) as Arc<dyn FileSystem>);
    let found = real.tree();
    while program.model.tree() != found {
        if program.done == printed + UNSEEN {
            println!("> LOST: {printed} operations were printed, and what is there is of none behind them");
            return;
        }
        program.skip();
    }
    println!("> found {}", program.done);
    loop {
        let op = program.next();
        let (expected, answered) = (program.model.run(&op), real.run(&op));
        assert_eq!(answered, expected, "operation {}: {op:?}", program.done);
        program.model.release_all();
        real.release_all();
        println!("> done {}", program.done);
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["make", path] => make(path),
        ["work", path, done] => work(path, done.parse().unwrap()),
        _ => {
            eprintln!("usage: dax make PATH | dax work PATH DONE");
            std::process::exit(2);
        }
    }
}
