//! `fstitch trace show`: a recorded trace epoch by epoch.

use std::fmt::Write;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use fstitch_core::num::to_u64;
use serde::Serialize;

use super::timeline::{Epoch, Summary, Timeline};
use crate::control::trace::{Happened, Head, VERSION};
use crate::output::{Outcome, json, text};

/// Arguments of `trace show`.
#[derive(clap::Args)]
#[command(
    after_help = "Times count from the beginning of the trace. `undone` counts patches that were left out of what was written of their block, \
                  which must be written again; `waited` counts blocks that could not be written before an earlier epoch; `oldest` is \
                  the age of the oldest change."
)]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// A trace, as `trace record` writes it
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Shown {
    trace: Head,
    epochs: Vec<Epoch>,
    summary: Summary,
}

/// Runs `trace show`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let reading = || format!("reading {}", arguments.file.display());
    let file = BufReader::new(File::open(&arguments.file).with_context(reading)?);
    let mut lines = file.lines();
    let first = lines.next().transpose().with_context(reading)?.unwrap_or_default();
    let head = head(&first, &arguments.file)?;
    let mut timeline = Timeline::new(head.at_us);
    let mut epochs = Vec::new();
    if !arguments.json {
        text(&title(&head)?)?;
    }
    // Of an epoch that was shown nothing is kept: traces may be long.
    let mut show = |epoch: Epoch| match arguments.json {
        true => {
            epochs.push(epoch);
            Ok(())
        }
        false => text(&describe(&epoch)?),
    };
    for (number, line) in (2..).zip(lines) {
        let line = line.with_context(reading)?;
        let Ok(happened) = serde_json::from_str::<Happened>(&line) else {
            bail!("{}: line {number} is no event: {line}", arguments.file.display());
        };
        timeline.follow(&happened).map_or(Ok(()), &mut show)?;
    }
    timeline.finish().map_or(Ok(()), &mut show)?;
    let summary = timeline.summary;
    match arguments.json {
        true => json(&Shown { trace: head, epochs, summary })?,
        false => text(&sums(&summary)?)?,
    }
    Ok(Outcome::SUCCESS)
}

fn head(line: &str, file: &Path) -> Result<Head> {
    let Ok(head) = serde_json::from_str::<Head>(line) else {
        bail!("{} is no trace of `fstitch trace record`", file.display());
    };
    ensure!(
        head.fstitch_trace == VERSION,
        "{} is a trace of version {}; this program knows version {VERSION}",
        file.display(),
        head.fstitch_trace
    );
    Ok(head)
}

fn title(head: &Head) -> Result<String> {
    let mut shown = String::new();
    writeln!(
        shown,
        "{} on {}, {}, consistency {}",
        head.image, head.mountpoint, head.format, head.consistency
    )?;
    writeln!(
        shown,
        "at the beginning {} blocks were changed, by {} patches\n",
        head.dirty_blocks, head.patches
    )?;
    writeln!(
        shown,
        "{:>10}  {:>9}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>9}  what",
        "at", "took", "epoch", "blocks", "patches", "undone", "waited", "oldest"
    )?;
    Ok(shown)
}

fn describe(epoch: &Epoch) -> Result<String> {
    let mut shown = String::new();
    if epoch.lost > 0 {
        writeln!(shown, "{:>10}  {} events are missing", "", epoch.lost)?;
    }
    if epoch.stalled > 0 {
        writeln!(shown, "{:>10}  {} operations waited for room", "", epoch.stalled)?;
    }
    let took = match (epoch.took_us, epoch.failed) {
        (Some(_), true) => "FAILED".to_owned(),
        (Some(took), false) => time(took),
        (None, _) => "?".to_owned(),
    };
    let kinds: Vec<String> = epoch.kinds.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    writeln!(
        shown,
        "{:>10}  {took:>9}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>9}  {}",
        time(epoch.at_us),
        epoch.epoch,
        epoch.blocks,
        epoch.committed,
        epoch.undone_count,
        epoch.waited_count,
        time(epoch.oldest_us),
        kinds.join(", ")
    )?;
    for undone in &epoch.undone {
        let before = match (undone.before, undone.before_block) {
            (Some(before), Some(block)) => format!(", which waits for patch {before} of block {block}"),
            (Some(before), None) => format!(", which waits for patch {before}"),
            (None, _) => String::new(),
        };
        writeln!(shown, "{:>10}  undone: patch {} of block {}{before}", "", undone.patch, undone.block)?;
    }
    rest(&mut shown, epoch.undone_count, epoch.undone.len())?;
    for waited in &epoch.waited {
        let place = waited.before_block.map(|block| format!("block {block} of ")).unwrap_or_default();
        writeln!(shown, "{:>10}  waited: block {} for {place}epoch {}", "", waited.block, waited.epoch)?;
    }
    rest(&mut shown, epoch.waited_count, epoch.waited.len())?;
    Ok(shown)
}

/// How many were not named.
fn rest(shown: &mut String, all: u64, named: usize) -> Result<()> {
    let named = to_u64(named);
    if all > named && named > 0 {
        writeln!(shown, "{:>10}          and {} more", "", all - named)?;
    }
    Ok(())
}

fn sums(summary: &Summary) -> Result<String> {
    let mut shown = String::from("\nsummary\n");
    let count = |n: u64| n.to_string();
    for (name, value) in [
        ("lasted", time(summary.lasted_us)),
        ("events", count(summary.events)),
        ("events missing", count(summary.lost)),
        ("epochs", count(summary.epochs)),
        ("epochs failed", count(summary.epochs_failed)),
        ("time in epochs", time(summary.writing_us)),
        ("longest epoch", time(summary.longest_epoch_us)),
        ("blocks written", count(summary.blocks_written)),
        ("blocks that had waited", count(summary.blocks_waited)),
        ("patches made", count(summary.patches_made)),
        ("changes that joined", count(summary.changes_joined)),
        ("patches merged", count(summary.patches_merged)),
        ("patches dropped", count(summary.patches_dropped)),
        ("patches undone", count(summary.patches_undone)),
        ("patches stable", count(summary.patches_committed)),
        ("patches left", count(summary.patches_left)),
        ("waits for room", count(summary.stalled)),
    ] {
        writeln!(shown, "  {name:<24} {value:>16}")?;
    }
    if summary.poisoned {
        shown.push_str("FAILED: a write failed, or damage was found; nothing is written any more\n");
    }
    Ok(shown)
}

/// A time for people, from microseconds.
fn time(us: u64) -> String {
    match us {
        0..1000 => format!("{us} us"),
        1000..1_000_000 => format!("{}.{} ms", us / 1000, us % 1000 / 100),
        _ => format!("{}.{:03} s", us / 1_000_000, us % 1_000_000 / 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::super::timeline::{Undone, Waited};
    use super::*;
    use crate::control::kind::Kind;

    #[test]
    fn an_epoch_is_a_line_and_what_is_special_of_it() {
        let epoch = Epoch {
            epoch: 12,
            at_us: 1_204_567,
            took_us: Some(3_150),
            blocks: 16,
            kinds: [(Kind::Data, 12), (Kind::Inode, 4)].into(),
            committed: 25,
            oldest_us: 5_010_000,
            undone_count: 1,
            undone: vec![Undone { patch: 812, block: 37, before: Some(9), before_block: Some(12) }],
            waited_count: 4,
            waited: vec![Waited { block: 41, epoch: 11, before_block: Some(12) }],
            stalled: 2,
            lost: 7,
            ..Epoch::default()
        };
        let expected = "            7 events are missing
            2 operations waited for room
   1.204 s     3.1 ms      12      16       25       1       4    5.010 s  inode 4, data 12
            undone: patch 812 of block 37, which waits for patch 9 of block 12
            waited: block 41 for block 12 of epoch 11
                    and 3 more
";
        assert_eq!(describe(&epoch).unwrap(), expected);
    }

    #[test]
    fn other_files_are_no_traces() {
        let refused = |line| head(line, Path::new("a")).unwrap_err().to_string();
        assert_eq!(refused("{}"), "a is no trace of `fstitch trace record`");
        let later = serde_json::to_string(&Head { fstitch_trace: 2, ..Head::default() }).unwrap();
        assert!(refused(&later).contains("version 2"));
    }
}
