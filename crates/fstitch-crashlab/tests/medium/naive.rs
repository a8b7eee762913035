//! The definitions of `docs/medium.md`, section 5, once more: word by word, with no regard for time or memory.
//!
//! An image is what comes out when all the writes that must have arrived, and some subset of those that may have,
//! are replayed in order of issue. At M3 the subset is one of sectors.

use std::collections::BTreeSet;

use fstitch_crashlab::medium::{Event, Level, RequestNo};

use crate::past::{BLOCKS, Picture, letters};

/// One write of the log.
struct Write {
    request: RequestNo,
    issued: usize,
    acked: Option<usize>,
    block: u64,
    letters: String,
    fua: bool,
    discard: bool,
}

/// The images that a cut after these events can leave.
pub fn images(events: &[Event], level: Level) -> BTreeSet<Picture> {
    let writes = writes(events);
    if level == Level::M0 {
        return prefixes(&writes);
    }
    let must = |write: &Write| match level {
        _ if write.discard => false,
        Level::M1 => write.acked.is_some(),
        _ => (write.fua && write.acked.is_some()) || flushed(write, events),
    };
    // What is replayed: where, what, and whether it must have arrived.
    let mut steps: Vec<(usize, String, bool)> = Vec::new();
    for write in &writes {
        let at = usize::try_from(write.block).unwrap() * 2;
        if level == Level::M3 {
            for (n, letter) in write.letters.chars().enumerate() {
                steps.push((at + n, letter.to_string(), must(write)));
            }
        } else {
            steps.push((at, write.letters.clone(), must(write)));
        }
    }
    let optional = steps.iter().filter(|(_, _, must)| !must).count();
    (0..1_u32 << optional).map(|subset| replay(&steps, subset)).collect()
}

fn replay(steps: &[(usize, String, bool)], mut subset: u32) -> Picture {
    let mut image = start();
    for (at, letters, must) in steps {
        let arrives = *must || {
            let bit = subset & 1 == 1;
            subset >>= 1;
            bit
        };
        if arrives {
            image.replace_range(*at..*at + letters.len(), letters);
        }
    }
    image
}

/// M0: every write up to some point at or after the last acknowledged one.
fn prefixes(writes: &[Write]) -> BTreeSet<Picture> {
    let at_least = writes.iter().rposition(|write| write.acked.is_some()).map_or(0, |last| last + 1);
    (at_least..=writes.len())
        .map(|count| {
            let whole = |w: &Write| (usize::try_from(w.block).unwrap() * 2, w.letters.clone(), true);
            let steps: Vec<(usize, String, bool)> = writes[..count].iter().map(whole).collect();
            replay(&steps, 0)
        })
        .collect()
}

fn start() -> Picture {
    let base = crate::past::base();
    (0..BLOCKS).map(|block| letters(base.block(block))).collect()
}

fn writes(events: &[Event]) -> Vec<Write> {
    let mut writes = Vec::new();
    for (issued, event) in events.iter().enumerate() {
        let (request, blocks, letters, fua, discard) = match event {
            Event::Write { request, block, data, fua, .. } => {
                (*request, *block..*block + 1, letters(data), *fua, false)
            }
            Event::Discard { request, start, count } => {
                (*request, *start..*start + *count, "00".to_owned(), false, true)
            }
            _ => continue,
        };
        let acked = events.iter().position(|event| *event == Event::Ack(request));
        for block in blocks {
            let letters = letters.clone();
            writes.push(Write { request, issued, acked, block, letters, fua, discard });
        }
    }
    writes.sort_by_key(|write| write.request);
    writes
}

/// Some flush was acknowledged, the write was acknowledged before that flush's issue, and no flush failed between.
fn flushed(write: &Write, events: &[Event]) -> bool {
    let Some(write_acked) = write.acked else { return false };
    events.iter().enumerate().any(|(flush_acked, event)| {
        let Event::FlushAcked(flush) = event else { return false };
        let issued = events.iter().position(|event| *event == Event::FlushIssued(*flush)).unwrap();
        if issued < write_acked {
            return false;
        }
        !events[write.issued..flush_acked].iter().any(|event| matches!(event, Event::FlushFailed(_)))
    })
}
