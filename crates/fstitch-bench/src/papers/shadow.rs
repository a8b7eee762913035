//! Waffle by itself: what a snapshot costs by what there is, and what is written for random overwrites by when they are committed.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use fstitch_core::num::to_u64;
use fstitch_core::{FileSystem, SystemClock};
use fstitch_fs::uhfs::AtimePolicy;
use fstitch_fs::waffle::mkfs::{MkfsOptions, mkfs};
use fstitch_fs::waffle::{Options, Waffle};

use super::{Setting, strings, timed};
use crate::inside::{self, Disk};
use crate::meter::seconds;
use crate::place::{Open, Place, Within};
use crate::results::{Spread, Table};
use crate::workload::FILLER;

/// Files of a directory.
const WIDTH: u64 = 100;
/// Nothing is committed by age while something is measured.
const NEVER: Duration = Duration::from_secs(3600);

/// A volume on a sparse image of its own, which goes with it.
struct Volume {
    fs: Arc<Waffle>,
    disk: Disk,
    place: Within,
    _image: tempfile::TempPath,
}

impl Volume {
    fn new(setting: &Setting<'_>, bytes: u64, commit_age: Duration) -> Result<Self> {
        Self::with(setting, (bytes, false), commit_age)
    }

    fn with(
        setting: &Setting<'_>,
        (bytes, is_compressed): (u64, bool),
        commit_age: Duration,
    ) -> Result<Self> {
        let image = tempfile::Builder::new().prefix("volume-").tempfile_in(&setting.memory)?;
        image.as_file().set_len(bytes)?;
        let image = image.into_temp_path();
        let disk = inside::disk(&image)?;
        let made = MkfsOptions {
            uuid: [7; 16],
            label: Vec::new(),
            seed: 7,
            now: fstitch_core::Timestamp { secs: 1_700_000_000, nanos: 0 },
            owner: (0, 0),
            blocks: None,
            is_compressed,
        };
        mkfs(Arc::clone(&disk) as _, &made)?;
        let fs = opened(&disk, commit_age)?;
        let place = Within::new(Arc::clone(&fs) as _);
        Ok(Self { fs, disk, place, _image: image })
    }

    /// The same volume, with nothing of it in memory.
    fn again(self, commit_age: Duration) -> Result<Self> {
        let Self { fs, disk, place, _image } = self;
        fs.unmount()?;
        drop((place, fs));
        let fs = opened(&disk, commit_age)?;
        let place = Within::new(Arc::clone(&fs) as _);
        Ok(Self { fs, disk, place, _image })
    }
}

fn opened(disk: &Disk, commit_age: Duration) -> Result<Arc<Waffle>> {
    let options = Options { atime: AtimePolicy::RelAtime, commit_age, ..Options::default() };
    let fs = Waffle::mount(Arc::clone(disk) as _, inside::cache(), Arc::new(SystemClock::new()), options)?;
    fs.start()?;
    Ok(fs)
}

pub fn snapshots(setting: &Setting<'_>) -> Result<Table> {
    const ROUNDS: u64 = 5;
    let levels = [10_000, 100_000, 1_000_000].map(|files| setting.scale.of(files, files / 100));
    let mut table = Table {
        name: "waffle snapshots".into(),
        title: "Waffle: what a snapshot costs, by the files in the volume".into(),
        is_goal: true,
        about: format!(
            "In process, an image in memory; files of 4 KiB, {WIDTH} in a directory, all stable before. The median of {ROUNDS} snapshots, \
             each after one more file was made, whose blocks and what leads to them are part of it; then the first of them is removed. Wanted: at most 10 ms, also at 10^6 files."
        ),
        columns: strings([
            "files",
            "a snapshot, ms",
            "blocks written for it",
            "its removal returns after, ms",
            "",
        ]),
        ..Table::default()
    };
    let volume = Volume::new(setting, 16 << 30, NEVER)?;
    let mut there = 0;
    for level in levels {
        for no in there..level {
            if no % WIDTH == 0 {
                volume.place.mkdir(&format!("d{}", no / WIDTH))?;
            }
            volume.place.open(&format!("d{}/{no}", no / WIDTH), Open::New)?.write_at(&FILLER[..4096], 0)?;
        }
        there = level;
        volume.place.sync()?;
        let (mut took, mut blocks) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            volume.place.open(&format!("one-more-{level}-{round}"), Open::New)?;
            let before = volume.disk.stats().blocks_written.get();
            took.push(timed(|| Ok(volume.fs.make_snapshot(format!("{level}-{round}").as_bytes())?))?);
            blocks.push(volume.disk.stats().blocks_written.get() - before);
        }
        let removed = timed(|| Ok(volume.fs.remove_snapshot(format!("{level}-0").as_bytes())?))?;
        let median = Spread::of(took).context("rounds")?.median;
        blocks.sort_unstable();
        table.rows.push(vec![
            level.to_string(),
            format!("{:.2}", median * 1e3),
            blocks[blocks.len() / 2].to_string(),
            format!("{:.2}", removed * 1e3),
            if median <= 0.01 { "met" } else { "**missed**" }.to_owned(),
        ]);
    }
    volume.fs.unmount()?;
    Ok(table)
}

pub fn overwrites(setting: &Setting<'_>) -> Result<Table> {
    let (blocks, total) = (setting.scale.of(65_536, 4096), setting.scale.of(100_000, 4000));
    let mut table = Table {
        name: "waffle overwrites".into(),
        title: "Waffle: blocks written for random overwrites of 4 KiB, by how many are committed together"
            .into(),
        about: format!(
            "In process, an image in memory; one file of {} MiB, of which {total} blocks are written over at random. A commit writes, beside \
             the contents, the blocks of the map above them, the allocation map and the root. The last row commits by age alone, every 5 s, \
             as a mount does.",
            blocks >> 8
        ),
        columns: strings([
            "overwrites in a commit",
            "commits",
            "blocks written for one overwritten",
            "overwrites per second",
        ]),
        ..Table::default()
    };
    for together in [1, 10, 100, 1_000, 10_000, u64::MAX] {
        let by_age = together == u64::MAX;
        let age = if by_age { Options::default().commit_age } else { NEVER };
        let volume = Volume::new(setting, 4 << 30, age)?;
        let file = volume.place.open("file", Open::New)?;
        (0..blocks).try_for_each(|no| file.write_at(&FILLER[..4096], no * 4096))?;
        volume.place.sync()?;
        // Few commits are as good a measure as many.
        let count = if by_age { total * 10 } else { total.min(together * 1000) };
        let (before, first) = (volume.disk.stats().blocks_written.get(), volume.fs.root_made().generation);
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let took = timed(|| {
            for no in 1..=count {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                file.write_at(&FILLER[..4096], random % blocks * 4096)?;
                if no % together == 0 {
                    volume.place.sync()?;
                }
            }
            volume.place.sync()
        })?;
        let written = volume.disk.stats().blocks_written.get() - before;
        let commits = volume.fs.root_made().generation - first;
        table.rows.push(vec![
            if by_age { "by age".to_owned() } else { together.to_string() },
            commits.to_string(),
            format!("{:.2}", seconds(written) / seconds(count)),
            format!("{:.0}", seconds(count) / took),
        ]);
        volume.fs.unmount()?;
    }
    Ok(table)
}

/// What programmers write: sources of this program, longer than a cluster, so that no cluster has the same twice.
const TEXT: [&str; 8] = [
    include_str!("../race.rs"),
    include_str!("shepherd.rs"),
    include_str!("mod.rs"),
    include_str!("tools.rs"),
    include_str!("../results.rs"),
    include_str!("../session.rs"),
    include_str!("shadow.rs"),
    include_str!("../bin/counted.rs"),
];

pub fn compression(setting: &Setting<'_>) -> Result<Table> {
    const FILE: usize = 1 << 20;
    let files = setting.scale.of(256, 8);
    let mut table = Table {
        name: "waffle compression".into(),
        title: "Waffle: what compression saves, and what it costs".into(),
        about: format!(
            "In process, an image in memory, so that the processor is all that counts; {files} files of 1 MiB, each written at once, then made \
             stable; read after another mount. Text is of Rust sources; the random bytes are what cannot be compressed, and are tried all the same."
        ),
        columns: strings(["contents", "compressed", "blocks for 100 written", "written, MB/s", "read, MB/s"]),
        ..Table::default()
    };
    let text: Vec<u8> = TEXT.concat().into_bytes();
    anyhow::ensure!(text.len() > 1 << 16, "a cluster has some of it twice");
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random.to_le_bytes()
    })
    .take(FILE / 8)
    .flatten()
    .collect();
    let text: Vec<u8> = text.iter().copied().cycle().take(FILE).collect();
    for (name, bytes, is_compressed) in
        [("text", &text, false), ("text", &text, true), ("random bytes", &noise, true)]
    {
        let volume = Volume::with(setting, (4 << 30, is_compressed), NEVER)?;
        let before = volume.fs.statfs()?.blocks_free;
        let wrote = timed(|| {
            for no in 0..files {
                volume.place.open(&no.to_string(), Open::New)?.write_at(bytes, 0)?;
            }
            volume.place.sync()
        })?;
        let used = before - volume.fs.statfs()?.blocks_free;
        let volume = volume.again(NEVER)?;
        let mut there = vec![0; FILE];
        let read = timed(|| {
            for no in 0..files {
                volume.place.open(&no.to_string(), Open::Existing)?.read_at(&mut there, 0)?;
            }
            Ok(())
        })?;
        anyhow::ensure!(there == *bytes, "what was read is something else");
        let megabytes = seconds(files) * seconds(to_u64(FILE)) / 1e6;
        table.rows.push(vec![
            name.to_owned(),
            if is_compressed { "yes" } else { "no" }.to_owned(),
            format!("{:.1}", 100.0 * seconds(used) / (seconds(files) * 256.0)),
            format!("{:.0}", megabytes / wrote),
            format!("{:.0}", megabytes / read),
        ]);
        volume.fs.unmount()?;
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::super::tests::quick;

    #[test]
    fn snapshots_and_overwrites_are_counted() {
        let table = quick(super::snapshots);
        assert_eq!(table.rows.len(), 3);
        let written = [0, 2].map(|row: usize| table.rows[row][2].parse::<u64>().unwrap());
        // A hundred times the files: what leads to the new one is some blocks longer.
        assert!(written[1] < 2 * written[0], "{:?}", table.rows);
        let table = quick(super::overwrites);
        let written: Vec<f64> = table.rows.iter().map(|row| row[2].parse().unwrap()).collect();
        // A block alone takes with it what leads to it; many share that.
        assert!(written[0] > 4.0 && written[3] < written[0] / 2.0, "{written:?}");
        let table = quick(super::compression);
        let blocks: Vec<f64> = table.rows.iter().map(|row| row[2].parse().unwrap()).collect();
        assert!(blocks[0] > 99.0 && blocks[1] < 50.0 && blocks[2] > 99.0, "{blocks:?}");
    }
}
