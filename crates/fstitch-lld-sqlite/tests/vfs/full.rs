//! A disk without room, and names that mean nothing.

use std::sync::Arc;

use fstitch_core::BlockDevice;
use fstitch_lld::{Disk, Options, Volumes};
use rusqlite::ffi;

use crate::basics::fill;
use crate::harness::{MEMORY, Medium, WITHOUT_BATCHES, check, code, formatted, one, open, open_with, small};

#[test]
fn a_full_disk_refuses_and_leaves_the_database_good() {
    for vfs in [MEMORY, WITHOUT_BATCHES] {
        for (journal, locking) in [
            ("delete", "normal"),
            ("persist", "normal"),
            ("off", "normal"),
            ("delete", "exclusive"),
            ("memory", "exclusive"),
        ] {
            for cache in [5, 5000] {
                // What is left of a database when it is emptied fits the memory for units: a quarter of this.
                let options = Options { cache_size: 2 << 20, ..small() };
                let medium = Medium::new(formatted(100, 512), options);
                let base = open(&medium.name("db", vfs)).unwrap();
                let asked = format!(
                    "pragma locking_mode={locking}; pragma journal_mode={journal}; pragma cache_size={cache}; pragma synchronous=off"
                );
                base.execute_batch(&asked).unwrap();
                fill(&base, 0, 50, 1000);
                let mut rows = 50;
                let refused = loop {
                    let more = format!("insert into t select n + {rows}, text from t where n < 50");
                    match base.execute(&more, []) {
                        Ok(_) => rows += 50,
                        Err(error) => break error,
                    }
                    assert!(rows < 100_000, "it is never full");
                };
                assert!(rows > 300, "{rows}");
                let what = format!("{vfs} {journal} {locking} {cache} after {rows}");
                assert_eq!(code::<()>(Err(refused)), ffi::SQLITE_FULL, "{what}");
                assert_eq!(one::<i64>(&base, "select count(*) from t"), rows, "{what}");
                check(&base);
                // What is too large at once leaves everything as it was, again and again; then room is made.
                for _ in 0..3 {
                    let doubled = base.execute("insert into t select n + 1000000, text || text from t", []);
                    assert_eq!(code(doubled), ffi::SQLITE_FULL, "{what}");
                }
                check(&base);
                // What memory has room for needs none on the disk. What it has not does, so it is removed bit by bit.
                while base
                    .execute("delete from t where n in (select max(n) from t where n >= 100)", [])
                    .unwrap()
                    > 0
                {}
                base.execute_batch("vacuum").unwrap();
                fill(&base, 200, 100, 1000);
                assert_eq!(one::<i64>(&base, "select count(*) from t"), 200);
                base.close().unwrap();
                let base = medium.open("db");
                assert_eq!(one::<i64>(&base, "select count(*) from t where length(text) = 1000"), 200);
                check(&base);
            }
        }
    }
}

#[test]
fn several_databases_on_a_full_disk_stay_together() {
    let medium = Medium::new(formatted(100, 512), small());
    let base = crate::attached::two(&medium, WITHOUT_BATCHES);
    base.execute_batch("pragma main.cache_size=5; pragma b.cache_size=5; pragma synchronous=off").unwrap();
    let mut rows = 0;
    let refused = loop {
        let more = format!(
            "begin; insert into x values({rows}, hex(zeroblob(8000))); insert into y values({rows}, hex(zeroblob(8000))); commit"
        );
        match base.execute_batch(&more) {
            Ok(()) => rows += 1,
            Err(error) => break error,
        }
        assert!(rows < 1000, "it is never full");
    };
    assert_eq!(code::<()>(Err(refused)), ffi::SQLITE_FULL);
    if !base.is_autocommit() {
        base.execute_batch("rollback").unwrap();
    }
    assert!(rows > 20, "{rows}");
    for query in
        ["select count(*) from x", "select count(*) from y", "select count(*) from x join y using(n, text)"]
    {
        assert_eq!(one::<i64>(&base, query), rows, "{query}");
    }
    check(&base);
    base.execute_batch("begin; delete from x; delete from y; commit").unwrap();
}

#[test]
fn what_is_no_database_is_said_to_be_none() {
    let device = formatted(64, 4096);
    let (disk, _) = Disk::open(Arc::clone(&device) as Arc<dyn BlockDevice>, &small()).unwrap();
    let volumes = Volumes::open(Arc::new(disk)).unwrap();
    volumes.create("root", 1 << 20).unwrap();
    drop(volumes);
    let medium = Medium::new(device, small());
    assert_eq!(code(open(&medium.name("root", MEMORY))), ffi::SQLITE_NOTADB);
    assert_eq!(code(open(&medium.name(&"n".repeat(201), MEMORY))), ffi::SQLITE_CANTOPEN);
    fill(&medium.open("db"), 0, 1, 1);

    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| format!("file:{}/{name}?vfs=lld", directory.path().display());
    assert_eq!(code(open(&at("db"))), ffi::SQLITE_CANTOPEN, "a directory");
    assert_eq!(code(open(&at("none.lld/db"))), ffi::SQLITE_CANTOPEN, "no such disk");
    std::fs::write(directory.path().join("text"), "a text\n".repeat(10_000)).unwrap();
    assert_eq!(code(open(&at("text/db"))), ffi::SQLITE_NOTADB, "no disk");
    let create = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE;
    assert_eq!(
        code(open_with(&medium.name("new", MEMORY), create)),
        ffi::SQLITE_CANTOPEN,
        "it may not be made"
    );
}
