//! One connection.

use fstitch_core::MemDevice;
use fstitch_lld::Disk;
use rusqlite::{Connection, OpenFlags, params};
use std::sync::Arc;

use crate::harness::{MEMORY, Medium, WITHOUT_BATCHES, check, code, formatted, one, open, open_with, small};

/// Fills a table with rows of a size, in one transaction.
pub fn fill(base: &Connection, from: i64, count: i64, bytes: usize) {
    base.execute_batch("begin").unwrap();
    base.execute_batch("create table if not exists t(n integer primary key, text text)").unwrap();
    let mut insert = base.prepare("insert into t values(?, ?)").unwrap();
    for n in from..from + count {
        insert.execute(params![n, format!("{n:08}").repeat(bytes / 8)]).unwrap();
    }
    drop(insert);
    base.execute_batch("commit").unwrap();
}

#[test]
fn what_was_committed_is_there_when_it_is_opened_again() {
    for vfs in [MEMORY, WITHOUT_BATCHES] {
        for journal in ["delete", "truncate", "persist", "memory", "off"] {
            let medium = Medium::usual();
            let base = open(&medium.name("db", vfs)).unwrap();
            assert_eq!(one::<String>(&base, &format!("pragma journal_mode={journal}")), journal);
            fill(&base, 0, 500, 100);
            base.execute_batch("update t set text = 'x' where n % 3 = 0; delete from t where n % 3 = 1")
                .unwrap();
            check(&base);
            base.close().unwrap();
            let base = open(&medium.name("db", vfs)).unwrap();
            assert_eq!(one::<i64>(&base, "select count(*) from t"), 333, "{vfs} {journal}");
            assert_eq!(one::<i64>(&base, "select count(*) from t where text = 'x'"), 167);
            let size: i64 = one(&base, "pragma page_count");
            base.execute_batch("delete from t where n > 10; vacuum").unwrap();
            assert!(one::<i64>(&base, "pragma page_count") < size / 4);
            check(&base);
        }
    }
}

#[test]
fn what_was_rolled_back_is_not() {
    for vfs in [MEMORY, WITHOUT_BATCHES] {
        for journal in ["delete", "truncate", "persist", "memory", "off"] {
            let medium = Medium::usual();
            let base = open(&medium.name("db", vfs)).unwrap();
            let asked = format!("pragma journal_mode={journal}; pragma cache_size=5");
            base.execute_batch(&asked).unwrap();
            fill(&base, 0, 300, 200);
            let before: i64 = one(&base, "select sum(n * length(text)) from t");
            let pages: i64 = one(&base, "pragma page_count");
            // More than the cache: SQLite writes to the database before the end.
            base.execute_batch("begin; update t set text = text || text; insert into t select n + 1000, text from t; rollback")
                .unwrap();
            assert_eq!(one::<i64>(&base, "select sum(n * length(text)) from t"), before, "{vfs} {journal}");
            assert_eq!(one::<i64>(&base, "pragma page_count"), pages);
            check(&base);
            base.execute_batch("begin; delete from t where n < 10; commit").unwrap();
            check(&base);
            assert_eq!(one::<i64>(&base, "select count(*) from t"), 290);
        }
    }
}

#[test]
fn savepoints_take_back_their_part() {
    for vfs in [MEMORY, WITHOUT_BATCHES] {
        let medium = Medium::usual();
        let base = open(&medium.name("db", vfs)).unwrap();
        base.execute_batch("pragma cache_size=5").unwrap();
        fill(&base, 0, 200, 400);
        base.execute_batch(
            "begin; delete from t where n < 50; savepoint a; update t set text = 'gone'; savepoint b; delete from t; rollback to b;
             release b; rollback to a; insert into t values(1000, 'kept'); commit",
        )
        .unwrap();
        assert_eq!(one::<i64>(&base, "select count(*) from t"), 151);
        assert_eq!(one::<i64>(&base, "select count(*) from t where text = 'gone'"), 0);
        // A statement that fails in the middle takes back what it did, and no more.
        base.execute_batch("create unique index u on t(substr(text, 1, 8))").unwrap();
        base.execute_batch("begin; insert into t values(2000, 'first')").unwrap();
        let failed = base.execute(
            "insert into t select n + 5000, case n when 150 then 'kept' else 'new' || n end from t",
            [],
        );
        assert_eq!(code(failed), rusqlite::ffi::SQLITE_CONSTRAINT_UNIQUE);
        base.execute_batch("commit").unwrap();
        assert_eq!(one::<i64>(&base, "select count(*) from t"), 152);
        check(&base);
    }
}

#[test]
fn pages_and_blocks_of_every_size() {
    for block in [512, 4096, 65536] {
        for page in [512, 1024, 4096, 16384, 65536] {
            let device = formatted(512, block);
            let medium = Medium::new(Arc::clone(&device) as Arc<_>, small());
            let base = medium.open("db");
            base.execute_batch(&format!(
                "pragma page_size={page}; pragma auto_vacuum=full; pragma cache_size=5"
            ))
            .unwrap();
            fill(&base, 0, 200, 1000);
            let full: i64 = one(&base, "pragma page_count");
            base.execute_batch("delete from t where n >= 20").unwrap();
            assert!(one::<i64>(&base, "pragma page_count") < full.max(5), "{block} {page}");
            fill(&base, 300, 150, 1000);
            base.close().unwrap();
            let base = medium.open("db");
            assert_eq!(one::<i64>(&base, "pragma page_size"), page);
            assert_eq!(one::<i64>(&base, "select count(*) from t where length(text) = 1000"), 170);
            check(&base);
            base.close().unwrap();
            checked(&device);
        }
    }
}

/// Expects the logical disk to find nothing wrong with itself.
fn checked(device: &Arc<MemDevice>) {
    let (disk, _) = Disk::open(Arc::clone(device) as Arc<_>, &small()).unwrap();
    let report = disk.check(true, &mut |_| {}).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// The same statements on a logical disk and in memory leave the same.
#[test]
fn many_statements_do_what_they_do_elsewhere() {
    let mut seed = fstitch_core::Seed::new(7);
    for vfs in [MEMORY, WITHOUT_BATCHES] {
        let medium = Medium::usual();
        let (base, other) = (open(&medium.name("db", vfs)).unwrap(), Connection::open_in_memory().unwrap());
        base.execute_batch("pragma cache_size=10; pragma synchronous=off").unwrap();
        let both = |statement: &str| {
            for base in [&base, &other] {
                base.execute_batch(statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
            }
        };
        both("create table t(n integer primary key, text text, other integer); create index i on t(other)");
        for step in 0..400 {
            let (n, m) = (seed.below(300), seed.below(300));
            match seed.below(12) {
                0 if base.is_autocommit() => both("begin"),
                1 if !base.is_autocommit() => both("commit"),
                2 if !base.is_autocommit() => both("rollback"),
                3 if base.is_autocommit() => both("vacuum"),
                4 => both(&format!("delete from t where n between {n} and {m}")),
                5 => both(&format!("update t set text = text || {m}, other = {n} where n % 7 = {n} % 7")),
                6 => both(&format!("insert or ignore into t select n + 300, text, {m} from t limit 50")),
                _ => both(&format!("insert or replace into t values({n}, hex(zeroblob({m} * 4)), {m})")),
            }
            if !base.is_autocommit() && step % 3 == 0 {
                both("commit");
            }
        }
        if !base.is_autocommit() {
            both("commit");
        }
        let all = "select count(*), sum(n * other), sum(length(text)), group_concat(n) from t";
        let shown = |base: &Connection| -> (i64, i64, i64, String) {
            base.query_row(all, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))).unwrap()
        };
        assert_eq!(shown(&base), shown(&other));
        check(&base);
    }
}

#[test]
fn what_reads_only_writes_nothing() {
    let medium = Medium::usual();
    let read_only = OpenFlags::SQLITE_OPEN_READ_ONLY;
    assert_eq!(code(open_with(&medium.name("db", MEMORY), read_only)), rusqlite::ffi::SQLITE_CANTOPEN);
    fill(&medium.open("db"), 0, 10, 10);
    let base = open_with(&medium.name("db", MEMORY), read_only).unwrap();
    assert_eq!(one::<i64>(&base, "select count(*) from t"), 10);
    assert_eq!(code(base.execute("delete from t", [])), rusqlite::ffi::SQLITE_READONLY);
    // The disk is open for reading, and so nobody writes.
    let other = medium.open("db");
    assert_eq!(code(other.execute("delete from t", [])), rusqlite::ffi::SQLITE_READONLY);
    assert_eq!(code(open(&medium.name("new", MEMORY))), rusqlite::ffi::SQLITE_CANTOPEN);
    drop((base, other));
    assert_eq!(medium.open("db").execute("delete from t", []).unwrap(), 10);
}

#[test]
fn a_write_ahead_log_is_refused_by_name() {
    let medium = Medium::usual();
    let base = medium.open("db");
    for exclusive in [false, true] {
        if exclusive {
            base.execute_batch("pragma locking_mode=exclusive").unwrap();
        }
        let refused =
            base.query_row("pragma journal_mode=WAL", [], |row| row.get::<_, String>(0)).unwrap_err();
        assert!(refused.to_string().contains("no write-ahead log on a logical disk"), "{refused}");
        fill(&base, i64::from(exclusive), 1, 10);
        assert_eq!(one::<String>(&base, "pragma journal_mode"), "delete");
    }
}

#[test]
fn exclusive_locking_commits_and_rolls_back() {
    for journal in ["delete", "truncate", "persist", "memory"] {
        let medium = Medium::usual();
        let base = open(&medium.name("db", WITHOUT_BATCHES)).unwrap();
        base.execute_batch(&format!(
            "pragma locking_mode=exclusive; pragma journal_mode={journal}; pragma cache_size=5"
        ))
        .unwrap();
        for round in 0..5 {
            fill(&base, round * 100, 100, 300);
            base.execute_batch(
                "begin; update t set text = 'gone'; insert into t select n + 10000, text from t; rollback",
            )
            .unwrap();
            base.execute_batch("begin immediate; commit").unwrap();
        }
        base.close().unwrap();
        let base = medium.open("db");
        assert_eq!(one::<i64>(&base, "select count(*) from t where length(text) > 200"), 500, "{journal}");
        assert_eq!(one::<i64>(&base, "select count(*) from t"), 500);
        check(&base);
    }
}

/// Whole databases come and go, also between different sizes of pages.
#[test]
fn backups_go_both_ways() {
    for page in [512, 4096, 32768] {
        let medium = Medium::usual();
        let (mut base, elsewhere) = (medium.open("db"), Connection::open_in_memory().unwrap());
        base.execute_batch(&format!("pragma page_size={page}")).unwrap();
        fill(&base, 0, 300, 2000);
        fill(&elsewhere, 1000, 100, 3000);
        let mut back = Connection::open_in_memory().unwrap();
        let all = |from: &Connection, to: &mut Connection| {
            rusqlite::backup::Backup::new(from, to)?.run_to_completion(7, std::time::Duration::ZERO, None)
        };
        all(&base, &mut back).unwrap();
        assert_eq!(one::<i64>(&back, "select count(*) from t"), 300);
        drop(all(&elsewhere, &mut base));
        all(&elsewhere, &mut base).unwrap();
        assert_eq!(one::<i64>(&base, "select min(n) * count(*) from t"), 100_000);
        check(&base);
        base.execute("vacuum into ?", [medium.name("copy", MEMORY)]).unwrap();
        drop(base);
        for name in ["db", "copy"] {
            let base = medium.open(name);
            assert_eq!(
                one::<i64>(&base, "select count(*) from t where length(text) = 3000"),
                100,
                "{name} {page}"
            );
            check(&base);
        }
    }
}

#[test]
fn counters_are_told() {
    let medium = Medium::usual();
    let base = medium.open("db");
    let flushes = || -> i64 {
        let told: String = one(&base, "pragma lld_counters");
        told.strip_prefix("{\"flushes\":").unwrap().split(',').next().unwrap().parse().unwrap()
    };
    fill(&base, 0, 1, 10);
    // One transaction that is durable is one flush; one that is not is none.
    let before = flushes();
    fill(&base, 1, 1, 10);
    assert_eq!(flushes(), before + 1);
    base.execute_batch("pragma synchronous=normal").unwrap();
    fill(&base, 2, 1, 10);
    assert_eq!(flushes(), before + 2);
    base.execute_batch("pragma synchronous=off").unwrap();
    fill(&base, 3, 1, 10);
    assert_eq!(flushes(), before + 2);
    assert_eq!(one::<i64>(&base, "select count(*) from t"), 4);
}
