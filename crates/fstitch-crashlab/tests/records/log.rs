//! A log of records in persistent memory.
//!
//! **Layout.** A word with the number of records, a line for itself; then the records, two words each: a key, and the key
//! with all bits turned.
//!
//! **Order of an append:** the record, flushed and fenced; then the number, flushed and fenced. A record counts once the
//! number says so, and is durable before that.

use std::sync::Arc;

use fstitch_core::BlockDevice;
use fstitch_crashlab::medium::{Base, Image, Mark, PersistentMemory, Progress};
use fstitch_crashlab::oracle::{Judge, Violation};
use fstitch_crashlab::{Level, Oracle, Past, StateId, Subject};

use crate::{found, lawful};

/// Where the records begin.
const RECORDS: u64 = 64;
const RECORD: u64 = 16;
const MEMORY: usize = 256;

/// How an append goes about it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Append {
    AsDesigned,
    WithoutFenceBetween,
    WithoutFlushOfRecord,
    LengthFirst,
}

fn key(no: u32) -> u64 {
    0x0101_0101_0101_0101 * u64::from(no + 1)
}

fn append(memory: &PersistentMemory<Image>, no: u32, how: Append) -> fstitch_core::Result<()> {
    let place = RECORDS + u64::from(no) * RECORD;
    let record = [key(no).to_le_bytes(), (!key(no)).to_le_bytes()].concat();
    let length = u64::from(no + 1).to_le_bytes();
    if how == Append::LengthFirst {
        memory.persist(0, &length)?;
        return memory.persist(place, &record);
    }
    memory.store(place, &record)?;
    if how != Append::WithoutFlushOfRecord {
        memory.flush(place..place + RECORD)?;
    }
    if how != Append::WithoutFenceBetween {
        memory.fence();
    }
    memory.persist(0, &length)
}

/// Reads the records, and refuses one that is none.
struct Reader;

impl Subject for Reader {
    type Shown = Vec<u64>;

    fn show(&self, device: Arc<dyn BlockDevice>) -> Result<Vec<u64>, Violation> {
        let memory = PersistentMemory::new(device);
        let word = |at: u64| {
            let word =
                memory.load::<8>(at).map_err(|error| Violation::new("unreadable", error.to_string()))?;
            Ok(u64::from_le_bytes(word))
        };
        let record = |no: u64| {
            let place = RECORDS + no * RECORD;
            let (key, turned) = (word(place)?, word(place + 8)?);
            let text = || format!("record {no} is {key:#x} and {turned:#x}");
            if key == !turned { Ok(key) } else { Err(Violation::new("torn-record", text())) }
        };
        (0..word(0)?).map(record).collect()
    }
}

/// Appended records: those that were promised are there, those that nobody appended are not.
struct Appended(Vec<u64>);

impl Oracle for Appended {
    type Shown = Vec<u64>;

    fn at(&self, progress: Progress) -> Judge<'_, Vec<u64>> {
        let count = |n: u32| usize::try_from(n).unwrap();
        let (promised, begun) = (count(progress.promises), count(progress.begun));
        Box::new(move |records| {
            if records.len() < promised {
                return Err(Violation::new("record-lost", format!("{} of {promised}", records.len())));
            }
            match self.0[..begun].starts_with(records) {
                true => Ok(()),
                false => Err(Violation::new("foreign-record", format!("{records:x?} of {begun} begun"))),
            }
        })
    }
}

/// Appends some records and hands what happened to `look`.
fn with_past<T>(how: Append, look: impl Fn(&Past<'_, Reader>) -> T) -> T {
    const APPENDS: u32 = 6;
    let base = Base::of_memory(vec![0; MEMORY]);
    let memory = PersistentMemory::new(Image::new(Arc::clone(&base)));
    for no in 0..APPENDS {
        memory.mark(Mark::Begin(no));
        append(&memory, no, how).unwrap();
        memory.mark(Mark::End(no));
        memory.mark(Mark::Promise(no));
    }
    let oracle = Appended((0..APPENDS).map(key).collect());
    let names = ("record-log".to_owned(), "appends/0".to_owned());
    look(&Past { names, base, log: memory.take(), subject: &Reader, oracle: &oracle })
}

#[test]
fn a_record_log_survives_every_cut_at_every_level() {
    for level in Level::ALL {
        let outcome = with_past(Append::AsDesigned, |past| lawful(past, level));
        assert!(outcome.counts.cuts >= 12, "before each fence: {:?}", outcome.counts);
        assert!(outcome.counts.generated >= 24, "{:?}", outcome.counts);
    }
    let outcome = with_past(Append::AsDesigned, |past| lawful(past, Level::M3));
    assert_eq!(
        outcome.counts.generated,
        6 * (1 + 4 + 2) + 1,
        "nothing, two words or not, the length or not; the end"
    );
}

#[test]
fn without_a_fence_between_the_length_may_be_durable_first() {
    for level in [Level::M1, Level::M2, Level::M3] {
        let code = with_past(Append::WithoutFenceBetween, |past| found(past, level));
        assert_eq!(code, "torn-record", "{level}");
    }
    // Where the caches survive, stores arrive in their order.
    with_past(Append::WithoutFenceBetween, |past| lawful(past, Level::M0));
}

#[test]
fn without_a_flush_of_the_record_its_fence_is_worth_nothing() {
    for level in [Level::M2, Level::M3] {
        let code = with_past(Append::WithoutFlushOfRecord, |past| found(past, level));
        assert_eq!(code, "torn-record", "{level}");
    }
    with_past(Append::WithoutFlushOfRecord, |past| lawful(past, Level::M1));
}

#[test]
fn a_length_stored_first_is_found_at_once() {
    for level in Level::ALL {
        assert_eq!(with_past(Append::LengthFirst, |past| found(past, level)), "torn-record", "{level}");
    }
}

#[test]
fn a_state_of_another_past_is_not_replayed() {
    with_past(Append::AsDesigned, |past| {
        for line in ["other:appends/0:M3:0:", "record-log:appends/0:M3:1:", "record-log:appends/0:M3:0:0x9"] {
            let id: StateId = line.parse().unwrap();
            assert!(past.replay(&id).is_err(), "{line}");
        }
    });
}
