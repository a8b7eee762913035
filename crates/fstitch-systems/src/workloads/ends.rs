//! Operations of several steps at every place of a transaction: what is done before fills it more and more, so that it ends before, in and
//! behind each step. An operation that is promised as a whole must not be seen in part then. What fills a transaction is contents, so this
//! says something of journals of data.
//!
//! The number is that of the operation times [`FILLS`], plus how full the transaction is.

use fstitch_crashlab::workload::{Family, Workload};

use super::steps::ops;

/// A file of contents, one with holes, one of another name, and a directory.
const FILES: &str = "create /f;append /f 30720;create /h;write /h 2048 3000;write /h 8192 2048;write /h 20480 1024;\
                     create /o;append /o 5000;mkdir /d;create /d/n;append /d/n 9000;create /b;sync";

/// What is done there.
const OPERATIONS: &[&str] = &[
    "zero-keep-size /f 2949 9287",
    "zero /f 2949 9287",
    "zero /f 25000 20000",
    "zero-keep-size /h 0 30000",
    "punch /f 2949 9287",
    "punch /h 1000 21000",
    "allocate /h 0 40000",
    "truncate /f 5000",
    "truncate /f 60000",
    "write /h 1000 4000",
    "rename /o /d/n",
    "unlink /f",
    "tmpfile /d /d/m 3000",
    "setxattr /f user.big 570",
];

/// What moves the blocks of files of extents.
const SHIFTS: &[&str] = &[
    "collapse /f 2048 9216",
    "collapse /h 1024 9216",
    "collapse /f 1024 1024;write /f 1024 2000",
    "insert /f 2048 9216",
    "insert /h 3072 4096;write /h 3072 4096",
];

/// Blocks of 1 KiB by which a transaction is fuller each time, and how many times.
const EACH: u64 = 3;
const FILLS: u64 = 86;

/// One family.
struct Ends {
    name: &'static str,
    about: &'static str,
    operations: &'static [&'static str],
}

impl Family for Ends {
    fn name(&self) -> &str {
        self.name
    }

    fn about(&self) -> &str {
        self.about
    }

    fn len(&self) -> u64 {
        FILLS * self.operations.len() as u64
    }

    fn get(&self, index: u64) -> Option<Workload> {
        let operation = self.operations.get(usize::try_from(index / FILLS).ok()?)?;
        let filled = 1 + index % FILLS * EACH;
        let list = ops(&format!("append /b {};{operation};sync", filled * 1024));
        Some(Workload { name: format!("{}/{index}", self.name()), setup: ops(FILES), ops: list })
    }
}

/// The families of this file.
pub(super) fn families() -> Vec<Box<dyn Family>> {
    vec![
        Box::new(Ends {
            name: "ends",
            about: "operations of several steps where a transaction ends before, in or behind them",
            operations: OPERATIONS,
        }),
        Box::new(Ends {
            name: "shifts-ends",
            about: "ranges taken out of files and holes put in where a transaction ends before, in or behind it",
            operations: SHIFTS,
        }),
    ]
}
