//! ext4 without a mount: volumes made full of what is in a directory, and checked, beside the reference tools.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use fstitch_core::{Consistency, FileSystem};

use super::goal::{circumstances, columns, goal_row, plain_row, spread};
use super::{Setting, timed};
use crate::contender::run;
use crate::inside::{self, Inside};
use crate::place::{Host, Open, Place, Within};
use crate::report::Wanted;
use crate::results::Table;
use crate::workload::{FILLER, Tree, len, unpack};

/// Of mke2fs's time, at most.
const FILLED_MAX: f64 = 0.5;
/// Of e2fsck's time, at most.
const CHECKED_MAX: f64 = 1.0;
/// Extents of a file, at most.
const EXTENTS_MAX: f64 = 1.02;
/// Bytes of the volume that is checked.
const VOLUME: (u64, u64) = (2 << 30, 256 << 20);
/// Bytes of the volume that is filled as it is made.
const FILLED: &str = "1G";

/// The programs, their files and the words for each.
struct Tools<'a> {
    fstitch: &'a str,
    image: &'a Path,
}

pub fn table(setting: &Setting<'_>) -> Result<Table> {
    let repeats = len(setting.scale.of(5, 1));
    let fstitch = setting.fstitch.as_deref().context("the program itself is not known")?;
    let directory = tempfile::Builder::new().prefix("tools-").tempdir_in(&setting.disk)?;
    let image = directory.path().join("image");
    let tools = Tools { fstitch: fstitch.to_str().context("the program's path is not text")?, image: &image };
    let mut table = Table {
        name: "ext4 tools".into(),
        title: "ext4: made full and checked, to mke2fs and e2fsck".into(),
        is_goal: true,
        about: format!(
            "{} The programs by themselves, in turns, on one image: `fstitch mkfs ext4 -d` of the source tree to `mke2fs -t ext4 -d` of it, with \
             the extents that a file has behind that (`debugfs`), and `fstitch fsck -f -n` to `e2fsck -fn` of a volume of {} MiB that copies \
             of the tree fill, its image in the kernel's memory and not. Ratios are of times, taken within a repetition.",
            circumstances(&[("disk", &setting.disk)], repeats),
            setting.scale.of(VOLUME.0, VOLUME.1) >> 20,
        ),
        columns: columns(),
        ..Table::default()
    };
    table.rows.extend(filled(&tools, setting.tree, directory.path(), repeats)?);
    fill(setting, &image)?;
    table.rows.extend(checked(&tools, repeats)?);
    Ok(table)
}

/// Times of two programs in turns, and their ratio.
fn race(repeats: usize, mut of: impl FnMut(bool) -> Result<f64>) -> Result<[Vec<f64>; 3]> {
    let mut taken = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..repeats {
        let (ours, theirs) = (of(true)?, of(false)?);
        for (times, time) in taken.iter_mut().zip([ours / theirs, ours, theirs]) {
            times.push(time);
        }
    }
    Ok(taken)
}

fn filled(tools: &Tools<'_>, tree: &Tree, directory: &Path, repeats: usize) -> Result<[Vec<String>; 5]> {
    let source = directory.join("tree");
    fs::create_dir(&source)?;
    unpack(&Host::new(&source)?, tree)?;
    let mut extents = [Vec::new(), Vec::new()];
    let [ratios, ours, theirs] = race(repeats, |is_ours| {
        let _ = fs::remove_file(tools.image);
        let (program, first) = match is_ours {
            true => (tools.fstitch, &["mkfs", "ext4", "--quiet", "-d"][..]),
            false => ("mke2fs", &["-q", "-t", "ext4", "-d"][..]),
        };
        let words = [source.as_os_str(), tools.image.as_os_str(), OsStr::new(FILLED)];
        let words: Vec<&OsStr> = first.iter().copied().map(OsStr::new).chain(words).collect();
        let took = timed(|| run(program, &words).map(drop))?;
        extents[usize::from(!is_ours)].push(extents_each(tools.image, tree, directory)?);
        Ok(took)
    })?;
    let [of_ours, of_theirs] = extents;
    Ok([
        goal_row("mkfs -d", "", spread(ratios)?, Wanted::AtMost(FILLED_MAX)),
        plain_row("… ours", " s", spread(ours)?),
        plain_row("… mke2fs", " s", spread(theirs)?),
        goal_row("extents of a file", "", spread(of_ours)?, Wanted::AtMost(EXTENTS_MAX)),
        plain_row("… mke2fs", "", spread(of_theirs)?),
    ])
}

/// Extents of the tree's files that have any, on average.
fn extents_each(image: &Path, tree: &Tree, directory: &Path) -> Result<f64> {
    let mut commands = String::new();
    for file in &tree.files {
        writeln!(commands, "dump_extents -l \"/{}\"", file.path)?;
    }
    let script: PathBuf = directory.join("commands");
    fs::write(&script, commands)?;
    let said = run("debugfs", &[OsStr::new("-f"), script.as_os_str(), image.as_os_str()])?;
    // A line that says what the columns are is before those of each file: ` 0/ 0   1/  1     0 -     1 ...`.
    let is_extent =
        |line: &&str| line.split_once('/').is_some_and(|(level, _)| level.trim().parse::<u8>().is_ok());
    let extents = said.lines().filter(is_extent).count();
    let mapped = tree.files.iter().filter(|file| file.size > 0).count();
    ensure!(extents >= mapped && mapped > 0, "debugfs shows {extents} extents of {mapped} files");
    Ok(f64::from(u32::try_from(extents)?) / f64::from(u32::try_from(mapped)?))
}

/// A volume of ext4 in `image`, as mke2fs makes it, with as many copies of the tree as there is room for, and a file in what is left.
fn fill(setting: &Setting<'_>, image: &Path) -> Result<()> {
    let _ = fs::remove_file(image);
    let size = format!("{}M", setting.scale.of(VOLUME.0, VOLUME.1) >> 20);
    // As many inodes as files of the tree's sizes need.
    let words = ["-q", "-t", "ext4", "-b", "4096", "-i", "12288"].map(OsStr::new);
    run("mke2fs", &[&words[..], &[image.as_os_str(), OsStr::new(&size)]].concat())?;
    let inside = Inside::open(inside::disk(image)?, Consistency::Ordered, inside::cache())?;
    inside.cache.start_flusher()?;
    let place = Within::new(Arc::clone(&inside.fs) as _);
    let needs = blocks_of(setting.tree);
    for copy in 0.. {
        let stat = inside.fs.statfs()?;
        let is_room = stat.inodes_free > u64::try_from(setting.tree.files.len() * 2)?;
        if stat.blocks_free < needs + needs / 8 || !is_room {
            break;
        }
        unpack(&place, &setting.tree.clone().below(&format!("copy{copy}")))?;
    }
    let file = place.open("large", Open::New)?;
    let piece = u64::try_from(FILLER.len())?;
    let left = inside.fs.statfs()?.blocks_free * u64::from(inside::BLOCK_SIZE) / 10 * 9;
    (0..left / piece).try_for_each(|no| file.write_at(&FILLER, no * piece))?;
    drop((file, place));
    inside.fs.unmount()?;
    Ok(())
}

fn blocks_of(tree: &Tree) -> u64 {
    let blocks = tree.files.iter().map(|file| file.size.div_ceil(u64::from(inside::BLOCK_SIZE)));
    blocks.sum::<u64>() + u64::try_from(tree.directories.len()).unwrap_or(u64::MAX)
}

fn checked(tools: &Tools<'_>, repeats: usize) -> Result<Vec<Vec<String>>> {
    let mut rows = Vec::new();
    for (what, is_cold) in [("in memory", false), ("on the disk", true)] {
        let [ratios, ours, theirs] = race(repeats, |is_ours| {
            let (program, first) = match is_ours {
                // One that is marked clean is looked at all the same.
                true => (tools.fstitch, &["fsck", "-f", "-n"][..]),
                false => ("e2fsck", &["-fn"][..]),
            };
            if is_cold {
                let image = fs::File::open(tools.image)?;
                image.sync_all()?;
                rustix::fs::fadvise(&image, 0, None, rustix::fs::Advice::DontNeed)?;
            }
            let words: Vec<&OsStr> =
                first.iter().copied().map(OsStr::new).chain([tools.image.as_os_str()]).collect();
            timed(|| run(program, &words).map(drop))
        })?;
        rows.push(goal_row(&format!("fsck -f -n, {what}"), "", spread(ratios)?, Wanted::AtMost(CHECKED_MAX)));
        rows.push(plain_row("… ours", " s", spread(ours)?));
        rows.push(plain_row("… e2fsck", " s", spread(theirs)?));
    }
    Ok(rows)
}
