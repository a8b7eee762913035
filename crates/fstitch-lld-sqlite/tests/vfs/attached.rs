//! Transactions over several databases.

use rusqlite::{Connection, ffi};

use crate::basics::fill;
use crate::harness::{MEMORY, Medium, WITHOUT_BATCHES, check, code, one, open};

/// A connection with two databases of a disk.
pub fn two(medium: &Medium, vfs: &str) -> Connection {
    let base = open(&medium.name("a", vfs)).unwrap();
    base.execute("attach ? as b", [medium.name("b", vfs)]).unwrap();
    base.execute_batch(
        "create table if not exists main.x(n integer primary key, text text);
         create table if not exists b.y(n integer primary key, text text)",
    )
    .unwrap();
    base
}

#[test]
fn both_are_changed_or_none() {
    for vfs in [MEMORY, WITHOUT_BATCHES] {
        for cache in [2, 2000] {
            let medium = Medium::usual();
            let base = two(&medium, vfs);
            base.execute_batch(&format!("pragma main.cache_size={cache}; pragma b.cache_size={cache}"))
                .unwrap();
            for n in 0..50 {
                base.execute_batch(&format!(
                    "begin; insert into x values({n}, hex(zeroblob(2000))); insert into y select n, text from x where n = {n}; {}",
                    if n % 5 == 0 { "rollback" } else { "commit" }
                ))
                .unwrap();
            }
            base.execute_batch("begin; delete from x where n > 30; delete from y where n > 30; commit; vacuum main; vacuum b").unwrap();
            assert_eq!(
                one::<i64>(&base, "select count(*) from x join y using(n, text)"),
                24,
                "{vfs} {cache}"
            );
            base.close().unwrap();
            for (name, table) in [("a", "x"), ("b", "y")] {
                let base = open(&medium.name(name, vfs)).unwrap();
                assert_eq!(one::<i64>(&base, &format!("select count(*) from {table}")), 24);
                check(&base);
            }
        }
    }
}

/// One of them cannot be written at the end, because somebody reads it.
#[test]
fn a_transaction_that_one_of_them_refuses_is_taken_back() {
    for vfs in [MEMORY, WITHOUT_BATCHES] {
        let medium = Medium::usual();
        let (base, reader) = (two(&medium, vfs), open(&medium.name("b", vfs)).unwrap());
        base.execute_batch("insert into x values(0, 'a'); insert into y values(0, 'b')").unwrap();
        reader.execute_batch("begin; select * from y").unwrap();
        base.execute_batch("begin; update x set text = 'new'; update y set text = 'new'").unwrap();
        assert_eq!(code(base.execute_batch("commit")), ffi::SQLITE_BUSY);
        let other = open(&medium.name("a", vfs)).unwrap();
        base.execute_batch("rollback").unwrap();
        assert_eq!(one::<String>(&other, "select text from x"), "a");
        assert_eq!(one::<String>(&base, "select text from x"), "a", "what it has in memory, too");
        base.execute_batch("begin; update x set text = 'new'; update y set text = 'new'").unwrap();
        reader.execute_batch("commit").unwrap();
        base.execute_batch("commit").unwrap();
        assert_eq!(one::<String>(&reader, "select text from y"), "new");
        assert_eq!(one::<String>(&other, "select text from x"), "new");
        check(&base);
    }
}

#[test]
fn a_transaction_that_cannot_be_atomic_is_refused() {
    let (medium, elsewhere) = (Medium::usual(), Medium::usual());
    let directory = tempfile::tempdir().unwrap();
    let file = format!("file:{}?vfs=unix", directory.path().join("plain").display());
    let names = [medium.name("a", MEMORY), elsewhere.name("b", MEMORY), file];
    for (main, other) in [(0, 1), (0, 2), (2, 0), (1, 0)] {
        let base = open(&names[main]).unwrap();
        base.execute("attach ? as b", [&names[other]]).unwrap();
        base.execute_batch("create table if not exists main.x(n); create table if not exists b.x(n)")
            .unwrap();
        let counts = |base: &Connection| -> (i64, i64) {
            (one(base, "select count(*) from main.x"), one(base, "select count(*) from b.x"))
        };
        let before = counts(&base);
        base.execute_batch("begin; insert into main.x values(1); insert into b.x values(1)").unwrap();
        let refused = code(base.execute_batch("commit"));
        assert_eq!(refused & 0xff, ffi::SQLITE_IOERR, "{main} {other}");
        assert_eq!(counts(&base), before);
        // One after the other is possible, and reading both at once.
        base.execute_batch("insert into main.x values(1); insert into b.x select n from main.x").unwrap();
        assert!(counts(&base).0 == before.0 + 1 && counts(&base).1 > before.1);
        check(&base);
    }
}

#[test]
fn temporary_tables_and_databases_in_memory_need_no_disk() {
    let medium = Medium::usual();
    let base = medium.open("db");
    base.execute_batch(
        "pragma temp_store=file; attach ':memory:' as m; create temp table t2(n, text); create table m.t3(n)",
    )
    .unwrap();
    fill(&base, 0, 100, 100);
    base.execute_batch(
        "pragma temp.cache_size=2; begin; insert into t2 select n, hex(zeroblob(5000)) from t; insert into m.t3 select n from t2;
         update t set text = 'both'; commit",
    )
    .unwrap();
    assert_eq!(
        one::<i64>(&base, "select count(*) from t join t2 using(n) join t3 using(n) where t.text = 'both'"),
        100
    );
    // Sorting more than memory holds.
    base.execute_batch("pragma cache_size=2; create index i on t2(text, n)").unwrap();
    check(&base);
}
