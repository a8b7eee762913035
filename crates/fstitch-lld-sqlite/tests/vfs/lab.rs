//! SQLite in the crash laboratory: every write and flush of the disk's medium is recorded while it commits, power cuts are made at any
//! moment, and what they leave is opened and read by SQLite. It is what whole transactions have left, one behind the other, and not
//! less than was acknowledged.
//!
//! CI looks at a sample: `FSTITCH_CRASH_SEEDS=first..end` says how many programs are cut, and `FSTITCH_CRASH_CHOICES=N` how many states
//! at each cut.

use std::ops::Range;
use std::sync::Arc;

use fstitch_core::num::to_u64;
use fstitch_core::{BlockDevice, Le, Result as CoreResult, Seed};
use fstitch_crashlab::medium::{Base, Image, Mark, Progress};
use fstitch_crashlab::oracle::{Judge, Violation};
use fstitch_crashlab::{Counts, LabOptions, Level, Oracle, Past, Recorder, Subject};
use fstitch_lld::{Disk, Volumes};
use rusqlite::Connection;

use crate::harness::{MEMORY, Medium, WITHOUT_BATCHES, formatted, one, open, small};

/// What both databases hold, as text.
fn shown(base: &Connection) -> rusqlite::Result<String> {
    let mut all = String::new();
    for table in ["main.x", "b.y"] {
        let query = format!(
            "select group_concat(n || ' ' || length(text) || ' ' || substr(text, 1, 8), ';') from (select * from {table} order by n)"
        );
        let rows: Option<String> = base.query_row(&query, [], |row| row.get(0))?;
        all.push_str(&rows.unwrap_or_default());
        all.push('|');
    }
    Ok(all)
}

fn opened(medium: &Medium, vfs: &str) -> rusqlite::Result<Connection> {
    let base = open(&medium.name("a", vfs))?;
    base.execute("attach ? as b", [medium.name("b", vfs)])?;
    Ok(base)
}

/// Opens the disk, checks it, and reads both databases through SQLite.
struct Opened {
    /// Transactions over both databases end before what they cut off is cut off.
    may_be_long: bool,
}

impl Subject for Opened {
    type Shown = String;

    fn show(&self, device: Arc<dyn BlockDevice>) -> CoreResult<String, Violation> {
        let sizes = sizes(&device)?;
        let medium = Medium::new(device, small());
        let fail = |error: rusqlite::Error| Violation::new("unreadable", error.to_string());
        let base = opened(&medium, MEMORY).map_err(fail)?;
        for pragma in ["pragma main.integrity_check", "pragma b.integrity_check"] {
            let said: String = base.query_row(pragma, [], |row| row.get(0)).map_err(fail)?;
            if said != "ok" {
                return Err(Violation::new("integrity", said));
            }
        }
        for (name, size) in ["main", "b"].iter().zip(sizes) {
            let of = |pragma: &str| {
                base.query_row(&format!("pragma {name}.{pragma}"), [], |row| row.get::<_, u64>(0))
            };
            let right = of("page_count").map_err(fail)? * of("page_size").map_err(fail)?;
            if size < right || (size > right && !self.may_be_long) {
                return Err(Violation::new("size", format!("{name} has {size} bytes of {right}")));
            }
        }
        shown(&base).map_err(fail)
    }
}

/// Bytes of both databases, as their volumes say.
fn sizes(device: &Arc<dyn BlockDevice>) -> CoreResult<[u64; 2], Violation> {
    let fail = |error: fstitch_core::Error| Violation::new("unreadable", error.to_string());
    let (disk, _) = Disk::open(Arc::clone(device), &small()).map_err(fail)?;
    let disk = Arc::new(disk);
    let volumes = Volumes::open(Arc::clone(&disk)).map_err(fail)?;
    let mut sizes = [0; 2];
    for (name, size) in ["a", "b"].iter().zip(&mut sizes) {
        let mut last = vec![0; disk.block_size()];
        let list = volumes.volume(name).map_err(fail)?.list();
        disk.read_at(list, (1 << 48) / to_u64(disk.block_size()), &mut last).map_err(fail)?;
        *size = Le::u64(&last, 16);
    }
    Ok(sizes)
}

/// What the databases held after each number of transactions, and how many of them each promise covers.
struct Versions(Vec<String>, Vec<usize>);

impl Oracle for Versions {
    type Shown = String;

    fn at(&self, progress: Progress) -> Judge<'_, String> {
        let count = |n: u32| usize::try_from(n).unwrap();
        let promised = count(progress.promises).checked_sub(1).map_or(0, |last| self.1[last]);
        let window = promised..=count(progress.begun);
        Box::new(move |shown| match self.0[window.clone()].contains(shown) {
            true => Ok(()),
            false => Err(Violation::new("not-a-moment", format!("{shown:.300} is none of {window:?}"))),
        })
    }
}

/// SQLite at work on a medium that records.
struct Rig {
    recorder: Arc<Recorder<Image>>,
    base: Arc<Base>,
    medium: Medium,
    sql: Connection,
    versions: Vec<String>,
    promised: Vec<usize>,
    /// Whether there are transactions over both databases.
    may_be_both: bool,
}

impl Rig {
    fn new(seed: &mut Seed) -> Self {
        let vfs = if seed.below(2) == 0 { MEMORY } else { WITHOUT_BATCHES };
        let device = formatted(48, 512);
        let medium = Medium::new(Arc::clone(&device) as Arc<_>, small());
        let page = [512, 1024, 2048][usize::try_from(seed.below(3)).unwrap()];
        let sql = opened(&medium, vfs).unwrap();
        let auto_vacuum = seed.below(2);
        sql.execute_batch(&format!(
            "pragma main.page_size={page}; pragma b.page_size=1024; pragma main.auto_vacuum={auto_vacuum};
             create table main.x(n integer primary key, text text); create table b.y(n integer primary key, text text);
             create index main.i on x(text)"
        ))
        .unwrap();
        for n in 0..seed.below(20) {
            sql.execute_batch(&format!("insert into x values({n}, hex(zeroblob({n} * 30)))")).unwrap();
        }
        drop(sql);
        let base = Base::new(512, device.image());
        let recorder = Arc::new(Recorder::new(Image::new(Arc::clone(&base))));
        let medium = Medium::new(Arc::clone(&recorder) as Arc<dyn BlockDevice>, small());
        let sql = opened(&medium, vfs).unwrap();
        let cache = if seed.below(2) == 0 { 2 } else { 1000 };
        let journal =
            ["delete", "truncate", "persist", "memory", "off"][usize::try_from(seed.below(5)).unwrap()];
        sql.execute_batch(&format!(
            "pragma main.cache_size={cache}; pragma b.cache_size={cache}; pragma journal_mode={journal}"
        ))
        .unwrap();
        let versions = vec![shown(&sql).unwrap()];
        let may_be_both = seed.below(3) > 0;
        Self { recorder, base, medium, sql, versions, promised: Vec::new(), may_be_both }
    }

    /// A transaction, which is durable when it returns if SQLite says so.
    fn transact(&mut self, statements: &str) {
        let no = u32::try_from(self.versions.len() - 1).unwrap();
        self.recorder.mark(Mark::Begin(no));
        self.sql.execute_batch(statements).unwrap_or_else(|error| panic!("{statements}: {error}"));
        self.recorder.mark(Mark::End(no));
        self.versions.push(shown(&self.sql).unwrap());
        let synchronous: i64 = one(&self.sql, "pragma synchronous");
        // What is rolled back needs no flush, and promises nothing new.
        if synchronous > 0 && self.versions.last() != self.versions.iter().rev().nth(1) {
            self.recorder.mark(Mark::Promise(u32::try_from(self.promised.len()).unwrap()));
            self.promised.push(self.versions.len() - 1);
        }
    }

    fn explore(self, name: &str, options: LabOptions) -> Counts {
        let Self { recorder, base, medium, sql, versions, promised, may_be_both } = self;
        drop((sql, medium));
        let names = ("sqlite".to_owned(), name.to_owned());
        let oracle = Versions(versions, promised);
        let past = Past {
            names,
            base,
            log: recorder.take(),
            subject: &Opened { may_be_long: may_be_both },
            oracle: &oracle,
        };
        let outcome = past.judge(options);
        assert_eq!(outcome.found, [], "{name} at {}", options.level);
        outcome.counts
    }
}

/// A transaction of some kind.
fn statements(seed: &mut Seed, may_be_both: bool) -> String {
    let (n, m, bytes) = (seed.below(60), seed.below(60), seed.below(2500));
    let text = format!("hex(randomblob(4)) || hex(zeroblob({bytes}))");
    match seed.below(12) {
        0 => format!("begin; delete from x where n between {n} and {n} + 20; commit"),
        1 => format!("begin; update x set text = {text} where n % 3 = {n} % 3; commit"),
        2 => format!("begin; update x set text = {text}; rollback"),
        3 => format!("begin; delete from x where n < {n}; savepoint s; update x set text = {text}; rollback to s; commit"),
        4 => "vacuum main".to_owned(),
        5..=7 if may_be_both => format!(
            "begin; insert or replace into x values({n}, {text}); insert or replace into y select n, text from x where n = {n};
             delete from y where n = {m}; delete from x where n = {m}; commit"
        ),
        8 => format!("begin; delete from x where n >= {n} and n not in (select n from y); commit"),
        9 => format!("insert or replace into y values({n} + 100, {text})"),
        _ => format!("insert or replace into x values({n}, {text})"),
    }
}

fn numbers() -> Range<u64> {
    let Ok(given) = std::env::var("FSTITCH_CRASH_SEEDS") else { return 0..40 };
    let (first, end) = given.split_once("..").expect("FSTITCH_CRASH_SEEDS=first..end");
    first.parse().expect("a number")..end.parse().expect("a number")
}

#[test]
fn every_state_after_a_power_cut_is_after_some_transaction() {
    let choices = std::env::var("FSTITCH_CRASH_CHOICES").map_or(6, |given| given.parse().expect("a number"));
    let mut total = Counts::default();
    for number in numbers() {
        let mut seed = Seed::new(number);
        let mut rig = Rig::new(&mut seed);
        for round in 0..24 {
            if round % 6 == 0 {
                let synchronous = ["off", "normal", "full"][usize::try_from(seed.below(3)).unwrap()];
                let asked =
                    format!("pragma main.synchronous={synchronous}; pragma b.synchronous={synchronous}");
                rig.sql.execute_batch(&asked).unwrap();
            }
            let may_be_both = rig.may_be_both;
            rig.transact(&statements(&mut seed, may_be_both));
        }
        let level = Level::ALL[usize::try_from(number % 4).unwrap()];
        let options = LabOptions { level, choices_per_cut: choices, seed: number, ..LabOptions::default() };
        total.add(&rig.explore(&number.to_string(), options));
    }
    println!(
        "{} programs, {} operations, {} cuts, {} states, of which {} were recovered and read",
        total.workloads, total.operations, total.cuts, total.generated, total.checked
    );
    assert!(total.checked > 20 * total.workloads, "{total:?}");
}
