//! Several connections of a process.

use std::time::Duration;

use rusqlite::{Connection, ffi};

use crate::basics::fill;
use crate::harness::{MEMORY, Medium, WITHOUT_BATCHES, check, code, one, open};

#[test]
fn readers_and_a_writer_take_turns() {
    for vfs in [MEMORY, WITHOUT_BATCHES] {
        let medium = Medium::usual();
        let name = medium.name("db", vfs);
        let (a, b, c) = (open(&name).unwrap(), open(&name).unwrap(), open(&name).unwrap());
        fill(&a, 0, 10, 10);
        b.execute_batch("begin; select count(*) from t").unwrap();
        a.execute_batch("begin immediate; delete from t where n = 1").unwrap();
        assert_eq!(code(c.execute_batch("begin immediate")), ffi::SQLITE_BUSY, "one writes");
        assert_eq!(one::<i64>(&c, "select count(*) from t"), 10, "nobody sees what is not committed");
        assert_eq!(code(a.execute_batch("commit")), ffi::SQLITE_BUSY, "somebody reads");
        let new: rusqlite::Result<i64> = c.query_row("select count(*) from t", [], |row| row.get(0));
        assert_eq!(code(new), ffi::SQLITE_BUSY, "nobody begins to read while one waits");
        assert_eq!(one::<i64>(&b, "select count(*) from t"), 10, "who reads goes on");
        b.execute_batch("commit").unwrap();
        a.execute_batch("commit").unwrap();
        for base in [&a, &b, &c] {
            assert_eq!(one::<i64>(base, "select count(*) from t"), 9);
        }
        check(&b);
    }
}

#[test]
fn what_one_commits_the_others_see() {
    let medium = Medium::usual();
    let (a, b) = (medium.open("db"), medium.open("db"));
    fill(&a, 0, 5, 10);
    for round in 1..20 {
        let (writer, reader) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        fill(writer, round * 5, 5, 500);
        assert_eq!(one::<i64>(reader, "select count(*) from t"), 5 + round * 5);
    }
    b.execute_batch("delete from t where n > 3; vacuum").unwrap();
    assert_eq!(one::<i64>(&a, "select count(*) from t"), 4);
    check(&a);
}

/// A sum that every transaction keeps is read by others meanwhile.
#[test]
fn threads_that_write_at_once_lose_nothing() {
    const THREADS: i64 = 4;
    const ROUNDS: i64 = 60;
    for vfs in [MEMORY, WITHOUT_BATCHES] {
        let medium = Medium::usual();
        let name = medium.name("db", vfs);
        let base = open(&name).unwrap();
        base.execute_batch(
            "create table t(n integer primary key, v integer); insert into t values(0, 1000), (1, 0), (2, 0)",
        )
        .unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let name = &name;
                scope.spawn(move || {
                    let base = open(name).unwrap();
                    base.busy_timeout(Duration::from_secs(120)).unwrap();
                    base.execute_batch("pragma cache_size=2; pragma synchronous=off").unwrap();
                    for round in 0..ROUNDS {
                        step(&base, (thread + round) % 3, round % 5 == 4);
                    }
                });
            }
        });
        assert_eq!(one::<i64>(&base, "select sum(v) from t where n < 3"), 1000);
        assert_eq!(one::<i64>(&base, "select count(*) from t") - 3, THREADS * ROUNDS * 4 / 5);
        check(&base);
    }
}

fn step(base: &Connection, to: i64, is_given_up: bool) {
    base.execute_batch("begin immediate").unwrap();
    base.execute_batch("update t set v = v - 1 where n = 0").unwrap();
    base.execute_batch("insert into t(v) values(hex(zeroblob(3000)))").unwrap();
    base.execute("update t set v = v + 1 where n = ?", [to]).unwrap();
    base.execute_batch(if is_given_up { "rollback" } else { "commit" }).unwrap();
    assert_eq!(one::<i64>(base, "select sum(v) from t where n < 3"), 1000);
}
