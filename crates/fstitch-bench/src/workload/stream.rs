//! Large files from end to end.

use anyhow::{Result, ensure};

use super::{At, FILLER};
use crate::meter::Meter;
use crate::place::Open;

/// Writes a file, then reads it.
pub(super) fn run(at: &At<'_>, meter: &mut Meter<'_>) -> Result<()> {
    let count = at.scale.of(384, 64);
    let piece = u64::try_from(FILLER.len())?;
    let file = at.place.open("file", Open::New)?;
    meter.phase("write 1 MiB", count, || (0..count).try_for_each(|no| file.write_at(&FILLER, no * piece)))?;
    file.forget_pages()?;
    let mut buffer = vec![0; FILLER.len()];
    meter.phase("read 1 MiB", count, || {
        (0..count).try_for_each(|no| {
            let read = file.read_at(&mut buffer, no * piece)?;
            ensure!(buffer[..read] == FILLER, "other bytes than were written");
            Ok(())
        })
    })
}
