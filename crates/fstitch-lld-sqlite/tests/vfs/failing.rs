//! A medium that fails: each write and each flush in turn, once or from then on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use fstitch_core::{
    BlockDevice, BlockNo, BlockRead, BlockWrite, Error, Geometry, IoOp, MemDevice, Result as CoreResult,
};
use rusqlite::ffi;

use crate::attached::two;
use crate::harness::{MEMORY, Medium, WITHOUT_BATCHES, check, code, formatted, one, open, small};

/// Writes and flushes until one fails.
struct Failing {
    inner: Arc<MemDevice>,
    left: AtomicI64,
    /// All behind it fail, too.
    is_dead: bool,
    has_failed: AtomicBool,
}

impl Failing {
    fn step(&self, op: IoOp) -> CoreResult<()> {
        let left = self.left.fetch_sub(1, Ordering::SeqCst);
        if left == 0 || (left < 0 && self.is_dead) {
            self.has_failed.store(true, Ordering::SeqCst);
            return Err(Error::io(op, BlockNo(0), std::io::Error::other("it fails")));
        }
        Ok(())
    }
}

impl BlockDevice for Failing {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> CoreResult<()> {
        self.inner.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> CoreResult<()> {
        self.step(IoOp::Write)?;
        self.inner.write(writes)
    }

    fn flush(&self) -> CoreResult<()> {
        self.step(IoOp::Flush)?;
        self.inner.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> CoreResult<()> {
        self.inner.discard(start, count)
    }
}

/// Transactions that were acknowledged before one was not; `None` if none failed.
fn run(medium: &Medium, vfs: &str) -> (i64, Option<i32>) {
    let base = two(medium, vfs);
    base.execute_batch("pragma main.cache_size=3; pragma b.cache_size=3").unwrap();
    for n in 1..=6 {
        let both = format!(
            "begin; insert into x values({n}, hex(zeroblob(9000))); insert into y select n, text from x where n = {n}; commit"
        );
        let one = format!("insert into x values({n}, hex(zeroblob(9000)))");
        let done = base.execute_batch(if n % 2 == 0 { &both } else { &one });
        if done.is_err() {
            let why = code(done);
            // What SQLite reads now is an error, or is right: half of what was written is neither.
            let read: rusqlite::Result<i64> = base.query_row("select count(*) from x", [], |row| row.get(0));
            assert!(
                read.as_ref().is_ok_and(|count| *count == n - 1) || code(read) & 0xff == ffi::SQLITE_IOERR
            );
            return (n - 1, Some(why));
        }
    }
    (6, None)
}

#[test]
fn a_failure_is_told_and_leaves_whole_transactions() {
    for (vfs, is_dead) in [(MEMORY, true), (WITHOUT_BATCHES, true), (WITHOUT_BATCHES, false)] {
        let mut count = 0;
        for n in 0.. {
            let inner = formatted(64, 512);
            drop(two(&Medium::new(Arc::clone(&inner) as Arc<_>, small()), vfs));
            let (left, has_failed) = (AtomicI64::new(i64::MAX), AtomicBool::new(false));
            let failing = Arc::new(Failing { inner: Arc::clone(&inner), left, is_dead, has_failed });
            let medium = Medium::new(Arc::clone(&failing) as Arc<_>, small());
            // Opening is another matter.
            let opened = open(&medium.name("a", vfs)).unwrap();
            failing.left.store(n, Ordering::SeqCst);
            let (acknowledged, why) = run(&medium, vfs);
            let has_failed = failing.has_failed.load(Ordering::SeqCst);
            drop(opened);
            assert_eq!(why.is_some(), has_failed, "{vfs} {n}: a failure is told, and nothing else");
            assert!(why.is_none_or(|why| why & 0xff == ffi::SQLITE_IOERR), "{vfs} {n}: {why:?}");
            let base = two(&Medium::new(inner, small()), vfs);
            check(&base);
            let there: i64 = one(&base, "select count(*) from x");
            assert!((acknowledged..=acknowledged + 1).contains(&there), "{vfs} {n}: {acknowledged}, {there}");
            assert_eq!(one::<i64>(&base, "select count(*) from y"), there / 2, "{vfs} {n}");
            if !has_failed {
                break;
            }
            count = n + 1;
        }
        assert!(count > 10, "only {count} writes and flushes failed");
    }
}
