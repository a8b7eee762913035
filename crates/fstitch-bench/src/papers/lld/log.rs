//! The log: its share of the device, what a unit costs that does nothing, and how many durable units share a flush.

use std::path::Path;

use anyhow::{Result, ensure};
use fstitch_core::{BlockBuf, BlockDevice, BlockKind, BlockNo, BlockWrite, Seed};
use fstitch_lld::{At, Disk, ListId, Options};

use super::{circumstances, columns, fresh, goal_row, image, is_memory, plain_row, spread};
use crate::inside::{self, BLOCK_SIZE};
use crate::meter::seconds;
use crate::papers::{Setting, timed};
use crate::report::Wanted;
use crate::results::Table;
use crate::workload::{FILLER, len};

/// Bytes of the device's own writes: a segment of the paper.
const PIECE: u64 = 512 << 10;
/// Blocks that a durable unit writes.
const UNIT_BLOCKS: usize = 4;

/// How much is done.
#[derive(Clone, Copy)]
struct Amount {
    image: u64,
    /// Blocks that are written at random, of as many.
    blocks: u64,
    /// Units that do nothing.
    empty: u64,
    /// Durable units.
    durable: u64,
    repeats: usize,
}

pub fn table(setting: &Setting<'_>) -> Result<Table> {
    let of = |full, quick| setting.scale.of(full, quick);
    let amount = Amount {
        image: of(1 << 30, 64 << 20),
        blocks: of(65_536, 2_048),
        empty: of(500_000, 20_000),
        durable: of(4_000, 160),
        repeats: len(of(5, 2)),
    };
    let media = [("disk", &*setting.disk), ("memory", &*setting.memory)];
    let mut table = Table {
        name: "lld log".into(),
        title: "The logical disk: its log".into(),
        is_goal: true,
        about: format!(
            "{} Share: {} MiB in blocks of 4 KiB at random places, then a flush, against as many bytes written to the same file one behind the \
             other, 512 KiB at a time, then a flush: right before, each time. The paper wrote at 85 % of the disk's bandwidth. Empty units: {} \
             in a row, then a flush; the paper: 78 us each, 24 segments for 500,000. Durable units: each writes 4 blocks and waits until they are \
             stable; flushes as the device counts them.",
            circumstances(&media, amount.repeats),
            (amount.blocks * 4096) >> 20,
            amount.empty
        ),
        columns: columns(),
        ..Table::default()
    };
    for (name, directory) in media {
        shares(&mut table, name, directory, amount)?;
    }
    for (name, directory) in media {
        empty_units(&mut table, name, directory, amount)?;
    }
    for (name, directory) in media {
        durable_units(&mut table, name, directory, amount)?;
    }
    Ok(table)
}

fn shares(table: &mut Table, name: &str, directory: &Path, amount: Amount) -> Result<()> {
    let image = image(directory, amount.image)?;
    let device = inside::disk(&image)?;
    for writers in [1, 4] {
        let (mut shares, mut rates, mut limits) = (Vec::new(), Vec::new(), Vec::new());
        for no in 0..amount.repeats {
            let limit = sequential(&device, amount.blocks * 4096)?;
            let took = random(&device, amount.blocks, writers, no)?;
            let rate = seconds(amount.blocks * 4096) / 1e6 / took;
            shares.push(rate / limit);
            rates.push(rate);
            limits.push(limit);
        }
        let who = if writers == 1 { "1 writer".to_owned() } else { format!("{writers} writers") };
        table.rows.push(goal_row(
            &format!("{name}: share of the bandwidth, {who}"),
            "",
            spread(shares)?,
            Wanted::AtLeast(0.9),
        ));
        table.rows.push(plain_row(&format!("{name}: random writes, {who}"), " MB/s", spread(rates)?));
        table.rows.push(plain_row(&format!("{name}: the device in the same runs"), " MB/s", spread(limits)?));
    }
    Ok(())
}

/// MB a second that the device takes in pieces one behind the other, and makes stable.
fn sequential(device: &inside::Disk, bytes: u64) -> Result<f64> {
    let piece = BlockBuf::copy_of(&FILLER[..len(PIECE)]);
    let blocks = PIECE / u64::from(BLOCK_SIZE);
    let took = timed(|| {
        for first in (0..bytes / PIECE).map(|no| no * blocks) {
            let data = piece.chunks_exact(len(BLOCK_SIZE.into()));
            let writes: Vec<_> = (first..)
                .zip(data)
                .map(|(block, data)| BlockWrite { block: BlockNo(block), kind: BlockKind::Data, data })
                .collect();
            device.write(&writes)?;
        }
        Ok(device.flush()?)
    })?;
    Ok(seconds(bytes) / 1e6 / took)
}

/// Seconds that so many random writes take on a new disk, by so many threads.
fn random(device: &inside::Disk, blocks: u64, writers: u64, repeat: usize) -> Result<f64> {
    let disk = fresh(device, &Options::default())?;
    let list = disk.new_list(true)?;
    (0..blocks).try_for_each(|position| disk.write_at(list, position, &FILLER[..4096]))?;
    disk.checkpoint()?;
    let before = disk.counters();
    let took = timed(|| {
        all(writers, |writer| {
            let mut numbers = Seed::new(u64::try_from(repeat)? * 100 + writer);
            for _ in 0..blocks / writers {
                disk.write_at(list, numbers.below(blocks), &FILLER[..4096])?;
            }
            Ok(())
        })?;
        Ok(disk.flush()?)
    })?;
    let after = disk.counters();
    ensure!(
        after.client_bytes - before.client_bytes == blocks / writers * writers * 4096,
        "the disk counts what was written"
    );
    ensure!(after.cleaned == 0, "the image is too small: the cleaner was at work");
    Ok(took)
}

/// Has so many threads work, and waits for all.
fn all(threads: u64, work: impl Fn(u64) -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|no| {
                scope.spawn({
                    let work = &work;
                    move || work(no)
                })
            })
            .collect();
        started.into_iter().try_for_each(|one| one.join().expect("a writer does not panic"))
    })
}

fn empty_units(table: &mut Table, name: &str, directory: &Path, amount: Amount) -> Result<()> {
    let image = image(directory, amount.image)?;
    let device = inside::disk(&image)?;
    let (mut each, mut segments) = (Vec::new(), Vec::new());
    for _ in 0..amount.repeats {
        let disk = fresh(&device, &Options::default())?;
        let before = disk.counters().bytes;
        let took = timed(|| {
            (0..amount.empty).try_for_each(|_| disk.begin().end())?;
            Ok(disk.flush()?)
        })?;
        each.push(took * 1e9 / seconds(amount.empty));
        segments.push(seconds(disk.counters().bytes - before) / seconds(PIECE));
    }
    let what = format!("{name}: begin and end of an empty unit");
    table.rows.push(goal_row(&what, " ns", spread(each)?, Wanted::AtMost(200.0)));
    table.rows.push(plain_row(
        &format!("{name}: segments of 512 KiB for all of them"),
        "",
        spread(segments)?,
    ));
    Ok(())
}

fn durable_units(table: &mut Table, name: &str, directory: &Path, amount: Amount) -> Result<()> {
    let image = image(directory, amount.image)?;
    let device = inside::disk(&image)?;
    for (threads, limit) in [(1, 1.2), (16, 0.15)] {
        let (mut flushes, mut rates) = (Vec::new(), Vec::new());
        for _ in 0..amount.repeats {
            let disk = fresh(&device, &Options::default())?;
            let places = places(&disk, threads)?;
            let before = (device.stats().flushes.get(), disk.counters());
            let count = amount.durable / threads;
            let took = timed(|| all(threads, |thread| durable(&disk, &places[len(thread)], count)))?;
            let counted = device.stats().flushes.get() - before.0;
            let now = disk.counters();
            let known = now.flushes - before.1.flushes;
            ensure!(counted == known, "the device counts {counted} flushes, and the disk {known}");
            flushes.push(seconds(counted) / seconds(count * threads));
            rates.push(seconds(count * threads) / took);
        }
        let who = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
        let what = format!("{name}: flushes for a durable unit of 4 blocks, {who}");
        // Where a flush takes no time nobody waits for it together with others.
        table.rows.push(match is_memory(directory) {
            true => plain_row(&what, "", spread(flushes)?),
            false => goal_row(&what, "", spread(flushes)?, Wanted::AtMost(limit)),
        });
        table.rows.push(plain_row(&format!("{name}: durable units a second, {who}"), "", spread(rates)?));
    }
    Ok(())
}

/// Blocks for each of some threads, which are there and stable.
fn places(disk: &Disk, threads: u64) -> Result<Vec<Vec<u64>>> {
    let place = |_| {
        let list: ListId = disk.new_list(false)?;
        let mut blocks = vec![disk.new_block(list, At::Start)?];
        for no in 1..UNIT_BLOCKS {
            blocks.push(disk.new_block(list, At::After(blocks[no - 1]))?);
        }
        Ok(blocks)
    };
    let places = (0..threads).map(place).collect::<Result<_>>()?;
    disk.flush()?;
    Ok(places)
}

fn durable(disk: &Disk, blocks: &[u64], count: u64) -> Result<()> {
    for _ in 0..count {
        let unit = disk.begin();
        blocks.iter().try_for_each(|block| unit.write(*block, &FILLER[..4096]))?;
        unit.end_durable()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::tests::quick;

    #[test]
    fn every_row_is_there_and_says_a_number() {
        let table = quick(table);
        assert_eq!(table.rows.len(), 2 * (2 * 3 + 2 + 2 * 2));
        for row in &table.rows {
            let number: f64 = row[1].split(' ').next().unwrap().parse().unwrap();
            assert!(number.is_finite() && number > 0.0, "{row:?}");
        }
        let alone =
            table.rows.iter().find(|row| row[0].contains("durable unit of 4 blocks, 1 thread")).unwrap();
        assert!(
            alone[1].parse::<f64>().unwrap() >= 1.0,
            "nobody shares the flushes of who is alone: {alone:?}"
        );
    }

    #[test]
    fn what_was_lost_on_the_way_is_no_measurement() {
        let error = all(2, |no| if no == 1 { Err(anyhow::anyhow!("no disk")) } else { Ok(()) });
        assert_eq!(error.unwrap_err().to_string(), "no disk");
    }
}
