//! Operations on a file on a disk, each of which has been flushed when it returns: by how many flushes, and how long that takes.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use fstitch_bpfs::{Bpfs, Options, mkfs_on};
use fstitch_core::{BlockDevice, FileSystem, SystemClock};
use fstitch_posix::time::AtimePolicy;

use super::operations::{make, write};
use super::{CALLER, making};
use crate::inside;
use crate::meter::seconds;
use crate::papers::goal::{circumstances, columns, goal_row, plain_row, spread};
use crate::papers::{Setting, timed};
use crate::report::Wanted;
use crate::results::Table;
use crate::workload::{FILLER, len};

/// Bytes of the volume and its log.
const IMAGE: u64 = 512 << 20;

pub fn table(setting: &Setting<'_>) -> Result<Table> {
    let repeats = len(setting.scale.of(7, 2));
    let operations = setting.scale.of(6_000, 240);
    let mut table = Table {
        name: "bpfs flushes".into(),
        title: "BPFS: operations that wait for the disk".into(),
        is_goal: true,
        about: format!(
            "{} `durability=power`. {operations} operations in all, in equal parts files made, blocks of 4 KiB appended to them, files unlinked; each thread in a \
             directory of its own. Flushes as the device counts them; microseconds until one has returned, by the clock of all threads together. A flush alone \
             is one of the device behind a block that was written.",
            circumstances(&[("disk", &setting.disk)], repeats)
        ),
        columns: columns(),
        ..Table::default()
    };
    let image = tempfile::Builder::new().prefix("bpfs-").tempfile_in(&setting.disk)?;
    image.as_file().set_len(IMAGE)?;
    let device = inside::disk(image.path())?;
    let (mut alone, mut rows) = (Vec::new(), Vec::new());
    for _ in 0..repeats {
        alone.push(flush_alone(&device, operations / 10)?);
    }
    for (threads, wanted) in [(1, 1.1), (16, 0.2)] {
        let (mut flushes, mut times) = (Vec::new(), Vec::new());
        for _ in 0..repeats {
            let (flushed, took) = run(&device, threads, operations)?;
            flushes.push(seconds(flushed) / seconds(operations));
            times.push(took * 1e6 / seconds(operations));
        }
        let who = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
        rows.push(goal_row(
            &format!("flushes an operation, {who}"),
            "",
            spread(flushes)?,
            Wanted::AtMost(wanted),
        ));
        rows.push(plain_row(&format!("an operation, {who}"), " us", spread(times)?));
    }
    rows.push(plain_row("a flush alone", " us", spread(alone)?));
    table.rows = rows;
    Ok(table)
}

/// Microseconds of a block that is written and a flush.
fn flush_alone(device: &inside::Disk, count: u64) -> Result<f64> {
    let took = timed(|| {
        for no in 0..count {
            let data = &FILLER[..len(u64::from(inside::BLOCK_SIZE))];
            let (block, kind) = (fstitch_core::BlockNo(no), fstitch_core::BlockKind::Data);
            device.write(&[fstitch_core::BlockWrite { block, kind, data }])?;
            device.flush()?;
        }
        Ok(())
    })?;
    Ok(took * 1e6 / seconds(count))
}

/// The flushes and seconds of so many operations on a new volume.
fn run(device: &inside::Disk, threads: u64, operations: u64) -> Result<(u64, f64)> {
    mkfs_on(Arc::clone(device) as Arc<dyn BlockDevice>, &making(), None)?;
    let options = Options { atime: AtimePolicy::NoAtime, ..Options::default() };
    let fs = Bpfs::open_on(Arc::clone(device) as _, options, Arc::new(SystemClock::new()))?;
    let dir =
        |no| -> Result<_> { Ok(fs.mkdir(&CALLER, fs.root(), format!("d{no}").as_bytes(), 0o755)?.attr.ino) };
    let dirs = (0..threads).map(dir).collect::<Result<Vec<_>>>()?;
    let flushes = || device.stats().flushes.get();
    let (before, files) = (flushes(), operations / 3 / threads);
    let took = timed(|| {
        std::thread::scope(|scope| {
            let work = |dir| {
                let fs = &fs;
                scope.spawn(move || {
                    (0..files).try_for_each(|no| -> Result<()> {
                        let name = format!("f{no}");
                        let ino = make(fs, dir, name.as_bytes())?;
                        write(fs, ino, 0, &FILLER[..4096])?;
                        Ok(fs.unlink(&CALLER, dir, name.as_bytes())?)
                    })
                })
            };
            let started: Vec<_> = dirs.iter().map(|dir| work(*dir)).collect();
            let mut ended = started.into_iter().map(|one| one.join().ok().context("a writer panicked")?);
            ended.try_for_each(|one| one)
        })
    })?;
    let flushed = flushes() - before;
    ensure!(fs.check()?.is_clean(), "the volume is not in order");
    fs.unmount()?;
    Ok((flushed, took))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::tests::quick;

    #[test]
    fn one_thread_has_about_a_flush_for_each_and_many_share_them() {
        let table = quick(table);
        let number = |row: usize| table.rows[row][1].parse::<f64>().unwrap();
        assert!((1.0..1.1).contains(&number(0)), "{:?}", table.rows[0]);
        assert!(number(2) < 1.0, "{:?}", table.rows[2]);
    }
}
