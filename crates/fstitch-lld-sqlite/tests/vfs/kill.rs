//! A program that commits, and is killed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{BlockDevice, Seed};
use fstitch_disk::{DiskOptions, FileDisk};
use fstitch_lld::{Disk, FormatOptions};
use rusqlite::{Connection, params};

use crate::harness::{FILES, check, one, open};

/// Says to a run of this test that it is to commit until it is killed, and where.
const VICTIM: &str = "FSTITCH_LLD_SQLITE_VICTIM";
const KILLS: u32 = 20;

/// Makes a disk in a file.
pub fn make_disk(path: &Path, bytes: u64) {
    FileDisk::create(path, bytes).unwrap();
    let device: Arc<dyn BlockDevice> = Arc::new(FileDisk::open(path, DiskOptions::default()).unwrap());
    Disk::format(device, &FormatOptions::for_bytes(bytes)).unwrap();
}

/// Opens the database. The kernel may need a moment to close what a killed process had open.
fn opened(path: &str) -> Connection {
    let name = format!("file:{path}/db?vfs={FILES}");
    for _ in 0..200 {
        match open(&name) {
            Err(rusqlite::Error::SqliteFailure(error, _))
                if error.code == rusqlite::ErrorCode::DatabaseBusy =>
            {
                std::thread::sleep(Duration::from_millis(50));
            }
            done => return done.unwrap(),
        }
    }
    panic!("{path} stays locked");
}

/// The number of transactions that are there: all of their rows, and no others.
fn transactions(base: &Connection) -> i64 {
    check(base);
    let last = one::<i64>(base, "select n from last");
    assert_eq!(one::<i64>(base, "select count(*) from t"), 4 * last);
    assert_eq!(one::<i64>(base, "select coalesce(max(number), 0) from t"), last);
    assert_eq!(one::<i64>(base, "select count(distinct number) from t"), last);
    last
}

/// Commits, and tells each time.
fn commit_for_ever(path: &str) -> ! {
    let base = opened(path);
    base.execute_batch("pragma cache_size=4; pragma synchronous=full").unwrap();
    let first = transactions(&base) + 1;
    for number in first.. {
        base.execute_batch("begin").unwrap();
        for part in 0..4 {
            let bytes = (number * 997 + part * 131) % 9000;
            base.execute("insert into t values(?, ?, zeroblob(?))", params![number, part, bytes]).unwrap();
        }
        base.execute("update last set n = ?", [number]).unwrap();
        base.execute_batch("commit").unwrap();
        println!("committed {number}");
    }
    unreachable!("numbers do not end")
}

#[test]
fn what_was_acknowledged_survives_twenty_kills() {
    if let Ok(path) = std::env::var(VICTIM) {
        commit_for_ever(&path);
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d.lld");
    let name = path.to_str().unwrap();
    make_disk(&path, 64 << 20);
    let base = opened(name);
    base.execute_batch(
        "create table t(number, part, bytes); create table last(n); insert into last values(0)",
    )
    .unwrap();
    drop(base);
    let (mut seed, mut there) = (Seed::new(11), 0);
    for _ in 0..KILLS {
        let this = ["kill::what_was_acknowledged_survives_twenty_kills", "--exact", "--nocapture"];
        let mut victim = Command::new(std::env::current_exe().unwrap());
        let mut victim = victim.args(this).env(VICTIM, name).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        let mut told = lines
            .map_while(Result::ok)
            .filter_map(|line| line.strip_prefix("committed ")?.parse::<i64>().ok());
        let acknowledged = told.nth(usize::try_from(seed.below(25)).unwrap()).unwrap();
        victim.kill().unwrap();
        // It may have told of more before it died.
        let acknowledged = told.last().unwrap_or(acknowledged);
        victim.wait().unwrap();
        let base = opened(name);
        let found = transactions(&base);
        assert!(
            (acknowledged..=acknowledged + 1).contains(&found),
            "{acknowledged} were told of, {found} are there"
        );
        assert!(found > there);
        there = found;
        base.close().unwrap();
        if seed.below(4) == 0 {
            opened(name).execute_batch("vacuum").unwrap();
        }
    }
    println!("{KILLS} kills, {there} transactions");
}
