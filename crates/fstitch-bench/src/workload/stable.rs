//! Programs that wait for the medium.

use anyhow::Result;
use fstitch_core::Seed;

use super::{At, FILLER, len};
use crate::meter::Meter;
use crate::place::Open;

const BLOCK: u64 = 4096;

/// Files of 4 KiB in ten directories, first without, then with an fsync of each.
pub(super) fn creates(at: &At<'_>, meter: &mut Meter<'_>) -> Result<()> {
    for (phase, count, sync) in
        [("without fsync", at.scale.of(5_000, 1_000), false), ("with fsync", at.scale.of(500, 100), true)]
    {
        let within = |no: u64| format!("{}{}", if sync { "s" } else { "a" }, no % 10);
        (0..10).try_for_each(|no| at.place.mkdir(&within(no)))?;
        meter.phase(phase, count, || {
            (0..count).try_for_each(|no| {
                let file = at.place.open(&format!("{}/{no:06}", within(no)), Open::New)?;
                file.write_at(&FILLER[..len(BLOCK)], 0)?;
                if sync { file.fsync() } else { Ok(()) }
            })
        })?;
    }
    Ok(())
}

/// Blocks at random places, stable sixteen at a time.
pub(super) fn random(at: &At<'_>, meter: &mut Meter<'_>) -> Result<()> {
    const EVERY: u64 = 16;
    let (blocks, count) = (at.scale.of(16_384, 4_096), at.scale.of(4_000, 800));
    let file = at.place.open("file", Open::New)?;
    let piece = u64::try_from(FILLER.len())?;
    (0..blocks * BLOCK / piece).try_for_each(|no| file.write_at(&FILLER, no * piece))?;
    let mut numbers = Seed::new(7);
    meter.phase("fsync every 16", count, || {
        for no in 1..=count {
            file.write_at(&FILLER[..len(BLOCK)], numbers.below(blocks) * BLOCK)?;
            if no % EVERY == 0 {
                file.fsync()?;
            }
        }
        Ok(())
    })
}

/// What sqlite does in a transaction that changes two pages (rollback journal, `synchronous=FULL`): the old pages are
/// written to a journal that is made, synced with its directory, counted and synced again; then the pages; then the
/// journal is removed.
pub(super) fn sqlite_calls(at: &At<'_>, meter: &mut Meter<'_>) -> Result<()> {
    const HEADER: u64 = 512;
    let count = at.scale.of(1_000, 100);
    at.place.mkdir("d")?;
    let database = at.place.open("d/db", Open::New)?;
    (0..64).try_for_each(|no| database.write_at(&FILLER[..len(BLOCK)], no * BLOCK))?;
    let mut numbers = Seed::new(3);
    meter.phase("transactions", count, || {
        for _ in 0..count {
            let journal = at.place.open("d/db-journal", Open::New)?;
            journal.write_at(&FILLER[..len(HEADER)], 0)?;
            for page in 0..2 {
                journal.write_at(&FILLER[..len(BLOCK) + 8], HEADER + page * (BLOCK + 8))?;
            }
            journal.fsync()?;
            at.place.sync_directory("d")?;
            journal.write_at(&FILLER[..12], 0)?;
            journal.fsync()?;
            for page in [0, 1 + numbers.below(63)] {
                database.write_at(&FILLER[..len(BLOCK)], page * BLOCK)?;
            }
            database.fsync()?;
            drop(journal);
            at.place.unlink("d/db-journal")?;
        }
        Ok(())
    })
}
