//! What the cleaner writes: write amplification by how much of the disk is taken, beside what theory says of it.
//!
//! Theory: writes fall on all blocks alike, and the segment that is emptied is the one that was written first. Of its blocks the share
//! `u` is still alive, where `U = (u - 1) / ln u` is the share of the medium that is alive, and each block that is written costs
//! `1 / (1 - u)`. Taking the emptiest segment instead comes to nearly the same where segments hold many blocks.

use anyhow::{Result, ensure};
use fstitch_core::Seed;
use fstitch_lld::{Disk, ListId, Options};

use super::{circumstances, fresh, image, strings, written};
use crate::inside;
use crate::meter::seconds;
use crate::papers::Setting;
use crate::results::Table;
use crate::workload::{FILLER, Scale, len};

/// How much is taken of what clients can store, in percent.
const TAKEN: &[u64] = &[50, 60, 70, 80, 90, 95];
/// The same for a quick look.
const QUICK_TAKEN: &[u64] = &[50, 80, 95];
/// Writes between two looks at how much is free.
const LOOK: u64 = 512;

/// Where writes fall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pattern {
    /// On all blocks alike.
    Uniform,
    /// On the nth most popular block with a chance of 1 / n^0.99.
    Zipf,
    /// Nine of ten on a tenth of the blocks.
    HotCold,
}

/// Draws blocks by a pattern; popular ones are scattered over the volume.
struct Draw {
    pattern: Pattern,
    numbers: Seed,
    blocks: u64,
    /// Sums of chances, for Zipf.
    sums: Vec<f64>,
    /// The blocks by popularity.
    order: Vec<u64>,
}

impl Draw {
    fn new(pattern: Pattern, blocks: u64) -> Self {
        let mut numbers = Seed::new(17);
        let mut order: Vec<u64> = (0..blocks).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, len(numbers.below(u64::try_from(at).expect("it is small") + 1)));
        }
        let mut sum = 0.0;
        let chance = |rank| {
            sum += seconds(rank).powf(-0.99);
            sum
        };
        let sums = if pattern == Pattern::Zipf { (1..=blocks).map(chance).collect() } else { Vec::new() };
        Self { pattern, numbers, blocks, sums, order }
    }

    fn next(&mut self) -> u64 {
        let rank = match self.pattern {
            Pattern::Uniform => self.numbers.below(self.blocks),
            Pattern::HotCold if self.numbers.chance(9, 10) => self.numbers.below(self.blocks / 10),
            Pattern::HotCold => self.blocks / 10 + self.numbers.below(self.blocks - self.blocks / 10),
            Pattern::Zipf => {
                let share = seconds(self.numbers.below(1 << 50)) / seconds(1 << 50);
                let all = self.sums.last().copied().unwrap_or_default();
                let rank = self.sums.partition_point(|sum| *sum <= share * all);
                return self.order[rank.min(self.order.len() - 1)];
            }
        };
        self.order[len(rank)]
    }
}

/// What was found at a level.
#[derive(Clone, Copy, Debug)]
struct Found {
    /// What reached the medium for each byte that was written.
    all: f64,
    /// The same of contents alone: those of clients, and those that the cleaner moved.
    contents: f64,
    /// Of the medium, how much is alive: contents and maps.
    medium: f64,
    /// The same without the segments that are kept free.
    in_use: f64,
}

pub fn table(setting: &Setting<'_>) -> Result<Table> {
    let bytes = setting.scale.of(256 << 20, 16 << 20);
    let mut table = Table {
        name: "lld cleaning".into(),
        title: "The logical disk: what is written for each byte, by how much is taken".into(),
        is_goal: true,
        about: format!(
            "{} A disk of {} MiB, filled to a part of what clients can store, then written again at random places, {} MiB before and {} MiB \
             while it is counted; uniform, Zipf (0.99), nine of ten writes to a tenth of the blocks. `all` is what the device counts: summaries, \
             maps, checkpoints and what the cleaner moves included; `contents` are contents alone. Theory (FIFO, and greedy nearly so) is for \
             uniform writes and contents: without the segments that are kept free, and as if none were. Wanted: contents not \
             above the former by more than 5 %.",
            circumstances(&[("memory", &setting.memory)], 1),
            bytes >> 20,
            (2 * bytes) >> 20,
            bytes >> 20
        ),
        columns: strings([
            "taken",
            "of the medium",
            "theory",
            "theory, nothing kept free",
            "uniform: all",
            "contents",
            "to theory",
            "Zipf: all",
            "contents",
            "hot and cold: all",
            "contents",
            "",
        ]),
        ..Table::default()
    };
    let image = image(&setting.memory, bytes)?;
    let device = inside::disk(&image)?;
    let taken = if setting.scale == Scale::Full { TAKEN } else { QUICK_TAKEN };
    for &taken in taken {
        let [uniform, zipf, hot] = [Pattern::Uniform, Pattern::Zipf, Pattern::HotCold]
            .map(|pattern| measure(&device, bytes, taken, pattern));
        let (uniform, zipf, hot) = (uniform?, zipf?, hot?);
        let limit = theory(uniform.in_use);
        let is_met = [uniform, zipf, hot].iter().all(|found| found.contents <= 1.05 * limit);
        table.rows.push(vec![
            format!("{taken} %"),
            format!("{:.1} %", uniform.medium * 100.0),
            format!("{limit:.2}"),
            format!("{:.2}", theory(uniform.medium)),
            format!("{:.2}", uniform.all),
            format!("{:.2}", uniform.contents),
            format!("{:.2}", uniform.contents / limit),
            format!("{:.2}", zipf.all),
            format!("{:.2}", zipf.contents),
            format!("{:.2}", hot.all),
            format!("{:.2}", hot.contents),
            if is_met { "met" } else { "**missed**" }.to_owned(),
        ]);
    }
    Ok(table)
}

/// Fills a new disk, writes until it is as it will stay, and counts.
fn measure(device: &inside::Disk, bytes: u64, taken: u64, pattern: Pattern) -> Result<Found> {
    let disk = fresh(device, &Options::default())?;
    let list = disk.new_list(true)?;
    let blocks = fill(&disk, list, taken)?;
    let mut draw = Draw::new(pattern, blocks);
    let mut write = |count: u64| -> Result<f64> {
        let (mut free, mut looks) = (0, 0);
        for no in 0..count {
            disk.write_at(list, draw.next(), &FILLER[..4096])?;
            if no % LOOK == 0 {
                (free, looks) = (free + disk.info().free_segments, looks + 1);
            }
        }
        Ok(seconds(free) / seconds(looks))
    };
    let round = bytes / 4096;
    write(2 * round)?;
    let before = (written(device), disk.counters());
    let free = write(round)?;
    let (after, now) = (written(device), disk.counters());
    let client = seconds(now.client_bytes - before.1.client_bytes);
    ensure!(now.client_bytes - before.1.client_bytes == round * 4096, "the disk counts what was written");
    let (all, info) = (seconds(after - before.0), disk.info());
    // Maps are alive as well.
    let live = seconds(disk.space().used) / seconds(u64::from(info.segment_size));
    let segments = seconds(info.segments);
    Ok(Found {
        all: all / client,
        contents: (client + seconds(now.moved_bytes - before.1.moved_bytes)) / client,
        medium: live / segments,
        in_use: live / (segments - free),
    })
}

/// Writes blocks one behind the other until a part of what can be stored is taken. Returns how many.
fn fill(disk: &Disk, list: ListId, percent: u64) -> Result<u64> {
    for position in 0.. {
        if position % 64 == 0 {
            let space = disk.space();
            if space.used * 100 >= space.all * percent {
                disk.checkpoint()?;
                return Ok(position);
            }
        }
        disk.write_at(list, position, &FILLER[..4096])?;
    }
    unreachable!("a disk has an end")
}

/// What each block costs that is written, where so much of the medium is alive.
fn theory(alive: f64) -> f64 {
    let (mut low, mut high) = (1e-9_f64, 1.0 - 1e-9);
    for _ in 0..200 {
        let u = f64::midpoint(low, high);
        if (u - 1.0) / u.ln() < alive { low = u } else { high = u }
    }
    1.0 / (1.0 - low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::tests::quick;

    #[test]
    fn theory_is_what_is_known_of_it() {
        // Points of the published curve: u = 0.2, 0.5 and 0.8.
        for (u, alive) in [(0.2, 0.497), (0.5, 0.7213), (0.8, 0.8963)] {
            assert!((theory(alive) - 1.0 / (1.0 - u)).abs() < 0.02, "{u} {alive}: {}", theory(alive));
        }
        assert!(theory(0.01) < 1.001, "an empty disk moves nothing");
    }

    #[test]
    fn blocks_are_drawn_as_their_pattern_says() {
        let share = |pattern| {
            let (mut draw, mut counts) = (Draw::new(pattern, 1000), vec![0_u64; 1000]);
            (0..100_000).for_each(|_| counts[len(draw.next())] += 1);
            counts.sort_unstable_by_key(|count| std::cmp::Reverse(*count));
            seconds(counts[..100].iter().sum()) / 100_000.0
        };
        let (uniform, zipf, hot) = (share(Pattern::Uniform), share(Pattern::Zipf), share(Pattern::HotCold));
        assert!((0.1..0.14).contains(&uniform), "{uniform}");
        assert!((0.66..0.72).contains(&zipf), "{zipf}");
        assert!((0.89..0.91).contains(&hot), "{hot}");
    }

    #[test]
    fn more_is_written_the_more_is_taken() {
        let table = quick(table);
        let column = |at: usize| -> Vec<f64> {
            table.rows.iter().map(|row| row[at].trim_end_matches(" %").parse().unwrap()).collect()
        };
        assert_eq!(column(0), [50.0, 80.0, 95.0]);
        let (all, contents) = (column(4), column(5));
        assert!(
            all.iter().zip(&contents).all(|(all, contents)| all > contents && *contents >= 1.0),
            "{table:?}"
        );
        assert!(contents[2] > contents[0] + 0.3, "the cleaner was at work: {contents:?}");
        assert!(column(1).windows(2).all(|pair| pair[0] < pair[1]));
        assert!(column(2).iter().zip(column(3)).all(|(kept, all)| *kept >= all));
    }
}
