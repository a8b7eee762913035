//! Many small operations: the cost of one.

use anyhow::{Result, ensure};

use super::{At, FILLER, len};
use crate::meter::Meter;
use crate::place::{Open, Place};

const BLOCK: u64 = 4096;

fn name(no: u64) -> String {
    format!("f{no:06}")
}

fn make(place: &dyn Place, within: &str, count: u64) -> Result<()> {
    (0..count).try_for_each(|no| place.open(&format!("{within}/{}", name(no)), Open::New).map(drop))
}

fn remove(place: &dyn Place, within: &str, count: u64) -> Result<()> {
    (0..count).try_for_each(|no| place.unlink(&format!("{within}/{}", name(no))))
}

/// Creates, writes and unlinks, each by itself.
pub(super) fn run(at: &At<'_>, meter: &mut Meter<'_>) -> Result<()> {
    each_by_itself(at, meter, at.scale.of(20_000, 2_000))
}

/// The same where each takes ten times as long.
pub(super) fn run_halted(at: &At<'_>, meter: &mut Meter<'_>) -> Result<()> {
    each_by_itself(at, meter, at.scale.of(4_000, 1_000))
}

fn each_by_itself(at: &At<'_>, meter: &mut Meter<'_>, count: u64) -> Result<()> {
    at.place.mkdir("d")?;
    meter.phase("create", count, || make(at.place, "d", count))?;
    let file = at.place.open("file", Open::New)?;
    let write = || (0..count).try_for_each(|no| file.write_at(&FILLER[..len(BLOCK)], no * BLOCK));
    meter.phase("write 4 KiB", count, write)?;
    meter.phase("rewrite 4 KiB", count, write)?;
    meter.phase("unlink", count, || remove(at.place, "d", count))
}

/// Attributes of files that are there.
pub(super) fn stat(at: &At<'_>, meter: &mut Meter<'_>) -> Result<()> {
    let (count, rounds) = (at.scale.of(5_000, 1_000), 4);
    at.place.mkdir("d")?;
    make(at.place, "d", count)?;
    meter.phase("stat", count * rounds, || {
        (0..count * rounds).try_for_each(|no| {
            let size = at.place.size(&format!("d/{}", name(no % count)))?;
            ensure!(size == 0, "an empty file of {size} bytes");
            Ok(())
        })
    })
}

/// One directory with many names.
pub(super) fn directory(at: &At<'_>, meter: &mut Meter<'_>) -> Result<()> {
    fill_and_empty(at, meter, at.scale.of(10_000, 4_000))
}

/// One directory with very many.
pub(super) fn large_directory(at: &At<'_>, meter: &mut Meter<'_>) -> Result<()> {
    fill_and_empty(at, meter, at.scale.of(100_000, 10_000))
}

fn fill_and_empty(at: &At<'_>, meter: &mut Meter<'_>, count: u64) -> Result<()> {
    at.place.mkdir("d")?;
    meter.phase("fill", count, || make(at.place, "d", count))?;
    meter.phase("list", count, || {
        let found = at.place.list("d")?.len();
        ensure!(found == len(count), "{found} of {count} names were listed");
        Ok(())
    })?;
    meter.phase("empty", count, || remove(at.place, "d", count))
}

/// Clients at the same time.
pub(super) fn parallel(at: &At<'_>, meter: &mut Meter<'_>) -> Result<()> {
    const CLIENTS: u64 = 4;
    let count = at.scale.of(1_500, 300);
    for client in 0..CLIENTS {
        at.place.mkdir(&format!("d{client}"))?;
    }
    meter.phase("4 clients", CLIENTS * count, || {
        std::thread::scope(|scope| {
            let start = |client| scope.spawn(move || serve_client(at.place, &format!("d{client}"), count));
            let clients: Vec<_> = (0..CLIENTS).map(start).collect();
            clients.into_iter().try_for_each(|client| client.join().expect("no panic in a client"))
        })
    })
}

fn serve_client(place: &dyn Place, within: &str, count: u64) -> Result<()> {
    for no in 0..count {
        let path = format!("{within}/{}", name(no));
        place.open(&path, Open::New)?.write_at(&FILLER[..len(BLOCK)], 0)?;
        ensure!(place.size(&path)? == BLOCK, "a file of another length");
        if no % 2 == 0 {
            place.unlink(&path)?;
        }
    }
    Ok(())
}
