//! What the shepherd costs by itself: a step of a chain where nothing fails, and how fast a scrub goes.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Geometry, MemDevice};
use fstitch_shepherd::{Options, Rules, Shepherd, Stretch};

use super::{Setting, strings, timed};
use crate::inside::{self, BLOCK_SIZE};
use crate::meter::seconds;
use crate::results::Table;

const KIND: BlockKind = BlockKind::Data;
const UUID: [u8; 16] = [7; 16];
/// Repetitions; the middle one counts.
const REPEATS: usize = 5;

/// Policies, with the standing steps whose own work is taken off: a sum of each block that is read or written.
const STEPS: [(&str, &str, bool); 8] = [
    ("`propagate`", "[all]\nread = [\"propagate\"]\nwrite = [\"propagate\"]", false),
    ("`retry`", "[all]\nread = [\"retry 3\"]\nwrite = [\"retry 3\"]", false),
    (
        "`retry`, `notify`, `remap`, `read-only`",
        "[all]\nread = [\"retry 3\", \"notify\", \"read-only\"]\nwrite = [\"retry 3\", \"remap\", \"notify\", \"read-only\"]",
        false,
    ),
    ("`sanity`, its rule taken off", "[metadata]\nread = [\"sanity\"]", false),
    ("`verify`, the sum taken off", "[all]\nread = [\"verify\"]\nwrite = [\"verify\"]", true),
    ("`mirror`, the copy taken off", "[all]\nread = [\"mirror\"]\nwrite = [\"mirror far\"]", false),
    (
        "`verify`, `mirror`, both taken off",
        "[all]\nread = [\"verify\", \"mirror\"]\nwrite = [\"verify\", \"mirror far\"]",
        true,
    ),
    (
        "`verify`, `sanity`, `retry`, `mirror`, `repair`, `notify`, `remap`, all taken off",
        "[metadata]\nread = [\"verify\", \"sanity\", \"retry 2\", \"mirror\", \"repair\", \"notify\", \"read-only\"]\n\
         write = [\"verify\", \"mirror far\", \"retry 2\", \"remap\", \"notify\", \"read-only\"]",
        true,
    ),
];

/// Blocks of the volume that takes requests in no time, of which the last are the maps'.
const BLOCKS: u64 = 1 << 14;
const AREA: u64 = 1 << 13;
/// Blocks that are read and written, again and again.
const USED: u64 = 1 << 11;

/// A device that does nothing for blocks of the volume: they hold what was written once, and every buffer holds that already.
struct Idle(MemDevice);

impl Idle {
    fn is_home(block: BlockNo) -> bool {
        block.get() < BLOCKS - AREA
    }
}

impl BlockDevice for Idle {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> fstitch_core::Result<()> {
        match reads.first() {
            Some(first) if Self::is_home(first.block) => Ok(()),
            _ => self.0.read(reads),
        }
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> fstitch_core::Result<()> {
        match writes.first() {
            Some(first) if Self::is_home(first.block) => Ok(()),
            _ => self.0.write(writes),
        }
    }

    fn flush(&self) -> fstitch_core::Result<()> {
        Ok(())
    }

    fn discard(&self, start: BlockNo, count: u64) -> fstitch_core::Result<()> {
        self.0.discard(start, count)
    }
}

/// Rules by which everything is right.
struct Content;

impl Rules for Content {
    fn judge(&self, _: BlockKind, _: BlockNo, _: &[u8]) -> Option<String> {
        None
    }
}

/// What one block costs, in nanoseconds: read and written, in requests of one block and of 64.
struct Cost {
    alone: [f64; 2],
    together: [f64; 2],
}

/// The cost of steps.
pub fn steps(setting: &Setting<'_>) -> Result<Table> {
    let rounds = setting.scale.of(400, 20);
    let mut table = Table {
        name: "shepherd steps".into(),
        title: "The shepherd: what a step costs where nothing fails".into(),
        is_goal: true,
        about: format!(
            "In process, on a device that does nothing: nanoseconds for a block of 4 KiB, medians of {REPEATS}, every block written before, the device's own \
             call taken off; the sum (`verify`, {:.0} ns) as well, while copies go to the device that does nothing. The last column is what is left \
             of the dearest for each step. Wanted: at most 50 ns.",
            sum_cost(rounds)?
        ),
        columns: strings([
            "chain",
            "steps",
            "read, alone",
            "write, alone",
            "read, of 64",
            "write, of 64",
            "a step, at most",
        ]),
        ..Table::default()
    };
    let device: Arc<dyn BlockDevice> = Arc::new(Idle(MemDevice::new(BLOCK_SIZE, BLOCKS)));
    let bare = cost(&*device, rounds)?;
    let sum = sum_cost(rounds)?;
    for (name, policy, sums) in STEPS {
        let shepherd = following(policy)?;
        let found = cost(&shepherd, rounds)?;
        let work = if sums { sum } else { 0.0 };
        let rest = |of: fn(&Cost) -> [f64; 2]| {
            let (mine, none) = (of(&found), of(&bare));
            [mine[0] - none[0] - work, mine[1] - none[1] - work]
        };
        let ([read, write], [reads, writes]) = (rest(|cost| cost.alone), rest(|cost| cost.together));
        let count = policy.matches('"').count() / 2;
        let each =
            [read, write, reads, writes].into_iter().fold(0.0, f64::max) / seconds(to_u64(count.max(2) / 2));
        table.rows.push(vec![
            name.to_owned(),
            format!("{count}"),
            format!("{read:.0}"),
            format!("{write:.0}"),
            format!("{reads:.0}"),
            format!("{writes:.0}"),
            format!("{each:.0}"),
        ]);
    }
    Ok(table)
}

/// A shepherd over a device that does nothing, all blocks of which were written once.
fn following(policy: &str) -> Result<Shepherd> {
    let device: Arc<dyn BlockDevice> = Arc::new(Idle(MemDevice::new(BLOCK_SIZE, BLOCKS)));
    let area: Vec<BlockNo> = (BLOCKS - AREA..BLOCKS).map(BlockNo).collect();
    Shepherd::format(Arc::clone(&device), &area, UUID, policy, &[], &[], &mut |_, _| {})?;
    let options = Options { rules: Some(Arc::new(Content)), ..Options::default() };
    Ok(Shepherd::open(device, &area, options)?.0)
}

/// What the sum of a block costs, in nanoseconds.
fn sum_cost(rounds: u64) -> Result<f64> {
    let data = vec![0x5A; to_usize(BLOCK_SIZE)];
    let count = rounds * USED;
    let mut found = 0;
    let time = middle(|| {
        timed(|| {
            (0..count).for_each(|_| found ^= crc32c::crc32c(std::hint::black_box(&data)));
            Ok(())
        })
    })?;
    std::hint::black_box(found);
    Ok(time * 1e9 / seconds(count))
}

fn middle(mut measure: impl FnMut() -> Result<f64>) -> Result<f64> {
    let mut all = (0..REPEATS).map(|_| measure()).collect::<Result<Vec<f64>>>()?;
    all.sort_by(f64::total_cmp);
    all.get(REPEATS / 2).copied().context("nothing was measured")
}

fn cost(device: &dyn BlockDevice, rounds: u64) -> Result<Cost> {
    // Metadata: policies for all kinds, and for metadata alone, say something of it.
    let kind = BlockKind::Directory;
    let data = vec![0x5A; to_usize(BLOCK_SIZE)];
    let write = |at: u64, count: u64| {
        let batch: Vec<BlockWrite<'_>> =
            (at..at + count).map(|block| BlockWrite { block: BlockNo(block), kind, data: &data }).collect();
        device.write(&batch)
    };
    let mut buffers = vec![data.clone(); 64];
    let mut read = |at: u64, count: u64| {
        let mut batch: Vec<BlockRead<'_>> = (at..at + count)
            .zip(&mut buffers)
            .map(|(block, data)| BlockRead { block: BlockNo(block), kind, data })
            .collect();
        device.read(&mut batch)
    };
    let mut passes = |size: u64| -> Result<[f64; 2]> {
        let mut pass = |is_read: bool| -> Result<f64> {
            let time = middle(|| {
                timed(|| {
                    for at in (0..rounds).flat_map(|_| (0..USED).step_by(to_usize(size))) {
                        if is_read { read(at, size) } else { write(at, size) }?;
                    }
                    Ok(())
                })
            })?;
            Ok(time * 1e9 / seconds(rounds * USED))
        };
        // What is written first is in doubt, and has its copies, from then on.
        pass(false)?;
        Ok([pass(true)?, pass(false)?])
    };
    Ok(Cost { alone: passes(1)?, together: passes(64)? })
}

/// Policies that a scrub has something to read of.
const SCRUBBED: [(&str, &str); 4] = [
    ("sums", "[all]\nread = [\"verify\"]\nwrite = [\"verify\"]"),
    (
        "sums and copies, near",
        "[all]\nread = [\"verify\", \"mirror\"]\nwrite = [\"verify\", \"mirror near\"]",
    ),
    ("copies, far", "[all]\nread = [\"mirror\"]\nwrite = [\"mirror far\"]"),
    ("sums and parity of 8", "[all]\nread = [\"verify\", \"parity\"]\nwrite = [\"verify\", \"parity 8\"]"),
];

/// How fast a scrub reads.
pub fn scrub(setting: &Setting<'_>) -> Result<Table> {
    let blocks = setting.scale.of(1 << 16, 1 << 11);
    let mut table = Table {
        name: "shepherd scrub".into(),
        title: "The shepherd: how fast a scrub reads".into(),
        is_goal: true,
        about: format!(
            "In process, an image of {} MiB on the disk that is read past the kernel's cache; the device is read in requests of {} MiB, one after the other. \
             Medians of {REPEATS}, MB/s of all that is read, copies included. Wanted: at least 0.8.",
            (2 * blocks * u64::from(BLOCK_SIZE)) >> 20,
            (Shepherd::SCRUBBED_AT_ONCE * u64::from(BLOCK_SIZE)) >> 20
        ),
        columns: strings(["what is kept", "read", "the device", "scrub", "ratio"]),
        ..Table::default()
    };
    for (name, policy) in SCRUBBED {
        let image = tempfile::Builder::new().prefix("scrub-").tempfile_in(&setting.disk)?;
        image.as_file().set_len(2 * blocks * u64::from(BLOCK_SIZE))?;
        let image = image.into_temp_path();
        let disk: Arc<dyn BlockDevice> = inside::disk(&image)?;
        fill(&*disk, 0..blocks)?;
        let area: Vec<BlockNo> = (blocks..2 * blocks).map(BlockNo).collect();
        let held = [Stretch { start: BlockNo(0), count: blocks - blocks / 8, kind: KIND }];
        Shepherd::format(Arc::clone(&disk), &area, UUID, policy, &[], &held, &mut |_, _| {})?;
        let shepherd = Shepherd::open(Arc::clone(&disk), &area, Options::default())?.0;
        let mut read = 0;
        let device = middle(|| timed(|| sequential(&*disk, blocks)))?;
        let scrubbed = middle(|| {
            timed(|| {
                read = whole(&shepherd)?;
                Ok(())
            })
        })?;
        let speed = |blocks: u64, time: f64| seconds(blocks * u64::from(BLOCK_SIZE)) / 1e6 / time;
        let (own, ours) = (speed(blocks, device), speed(read, scrubbed));
        table.rows.push(vec![
            name.to_owned(),
            format!("{} MiB", (read * u64::from(BLOCK_SIZE)) >> 20),
            format!("{own:.0}"),
            format!("{ours:.0}"),
            format!("{:.2}", ours / own),
        ]);
    }
    Ok(table)
}

/// Blocks that hold something: of a sparse file nothing would be read.
fn fill(disk: &dyn BlockDevice, blocks: std::ops::Range<u64>) -> Result<()> {
    let data = vec![0xA5; to_usize(BLOCK_SIZE)];
    for at in blocks.step_by(256) {
        let batch: Vec<BlockWrite<'_>> = (at..at + 256)
            .map(|block| BlockWrite { block: BlockNo(block), kind: KIND, data: &data })
            .collect();
        disk.write(&batch)?;
    }
    Ok(disk.flush()?)
}

/// Reads blocks one after the other, as much at once as a scrub does.
fn sequential(disk: &dyn BlockDevice, blocks: u64) -> Result<()> {
    let at_once = Shepherd::SCRUBBED_AT_ONCE;
    let mut bytes = vec![0; to_usize(at_once * u64::from(BLOCK_SIZE))];
    for at in (0..blocks).step_by(to_usize(at_once)) {
        let mut batch: Vec<BlockRead<'_>> = (at..blocks.min(at + at_once))
            .zip(bytes.chunks_exact_mut(to_usize(BLOCK_SIZE)))
            .map(|(block, data)| BlockRead { block: BlockNo(block), kind: KIND, data })
            .collect();
        disk.read(&mut batch)?;
    }
    Ok(())
}

/// Scrubs everything; the blocks that were read.
fn whole(shepherd: &Shepherd) -> Result<u64> {
    let mut read = 0;
    for from in (0..shepherd.blocks()).step_by(to_usize(Shepherd::SCRUBBED_AT_ONCE)) {
        let found = shepherd.scrub(BlockNo(from), Shepherd::SCRUBBED_AT_ONCE, &|_| KIND)?;
        ensure!(
            found.is_sound() && found.copies_written == 0,
            "a volume that nothing has happened to: {found:?}"
        );
        read += found.read;
    }
    Ok(read)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]
mod tests {
    use super::super::tests::quick;
    use super::*;

    #[test]
    fn every_chain_has_a_cost_and_every_scrub_a_speed() {
        let steps = quick(steps);
        assert_eq!(steps.rows.len(), STEPS.len());
        let scrub = quick(scrub);
        assert_eq!(scrub.rows.len(), SCRUBBED.len());
        // Every block has a sum, and copies are read as well.
        let read = |row: usize| scrub.rows[row][1].trim_end_matches(" MiB").parse::<u64>().unwrap();
        assert_eq!(read(0), 7);
        assert_eq!(read(1), 14);
    }
}
