//! `fstitch lld stats`: what a server and its disk have done.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Result, bail};
use fstitch_core::num::to_u64;
use serde::{Deserialize, Serialize};

use super::control::{Answer, Client, Request, is_socket};
use super::exports::Served;
use crate::output::{Outcome, json, text};
use crate::size;

/// What `fstitch lld stats --help` says.
pub const HELP: &str = "Show what the logical disk has done that is served with this control socket, since it was opened: how much was \
written for what clients wrote, how many durable units shared a flush, what the cleaner moved, what recovery did.";

/// Arguments of `lld stats`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The control socket of `fstitch lld serve`
    #[arg(value_name = "CONTROL")]
    control: PathBuf,
}

/// Since the disk was opened. Field names are a contract.
#[derive(Debug, Serialize, Deserialize)]
pub struct Stats {
    /// Bytes of blocks that clients have written.
    client_bytes: u64,
    /// Bytes that the disk has written: summaries, maps and what the cleaner moved included.
    written_bytes: u64,
    chunks: u64,
    flushes: u64,
    units: u64,
    durable_units: u64,
    checkpoints: u64,
    segments_cleaned: u64,
    /// Segments that the cleaner leaves as they are because something in them cannot be read.
    segments_unreadable: u64,
    moved_bytes: u64,
    spilled_bytes: u64,
    /// Bytes that blocks take less because the cleaner has compressed them.
    packed_bytes: u64,
    /// Now.
    open_units: u64,
    /// Versions of blocks that open units have written, beside the committed ones.
    shadow_versions: u64,
    free_segments: u64,
    segments: u64,
    space_bytes: u64,
    used_bytes: u64,
    recovery: Recovery,
}

/// What opening the disk did.
#[derive(Debug, Serialize, Deserialize)]
struct Recovery {
    chunks: u64,
    records: u64,
    unfinished_unit: bool,
    micros: u64,
}

impl Stats {
    /// Of what is served.
    pub fn of(served: &Served) -> Self {
        let disk = served.volumes.disk();
        let (counters, info, space) = (disk.counters(), disk.info(), disk.space());
        Self {
            client_bytes: counters.client_bytes,
            written_bytes: counters.bytes,
            chunks: counters.chunks,
            flushes: counters.flushes,
            units: counters.units,
            durable_units: counters.durable,
            checkpoints: counters.checkpoints,
            segments_cleaned: counters.cleaned,
            segments_unreadable: counters.unreadable,
            moved_bytes: counters.moved_bytes,
            spilled_bytes: counters.spilled_bytes,
            packed_bytes: counters.packed_bytes,
            open_units: to_u64(info.open_units),
            shadow_versions: to_u64(info.shadows),
            free_segments: info.free_segments,
            segments: info.segments,
            space_bytes: space.all,
            used_bytes: space.used,
            recovery: Recovery {
                chunks: served.recovered.chunks,
                records: served.recovered.records,
                unfinished_unit: served.recovered.unfinished,
                micros: u64::try_from(served.opened_in.as_micros()).unwrap_or(u64::MAX),
            },
        }
    }

    fn lines(&self) -> Result<String> {
        let mut shown = String::new();
        let mut line = |name: &str, value: String| writeln!(shown, "  {name:<20} {value}");
        let ratio = |part: u64, of: u64| match of {
            0 => String::new(),
            _ => format!(", {}.{:02}", part / of, part % of * 100 / of),
        };
        let (written, client) = (size::show(self.written_bytes), size::show(self.client_bytes));
        let amplification = ratio(self.written_bytes, self.client_bytes);
        line("written", format!("{written} for {client} of clients{amplification}"))?;
        line("flushes", format!("{} of {} chunks", self.flushes, self.chunks))?;
        let shared = ratio(self.durable_units, self.flushes);
        line(
            "units",
            format!(
                "{} have ended, {} of them durable{}",
                self.units,
                self.durable_units,
                if shared.is_empty() { shared } else { shared + " a flush" }
            ),
        )?;
        line(
            "open now",
            format!("{} units with {} versions of blocks", self.open_units, self.shadow_versions),
        )?;
        line("spilled", size::show(self.spilled_bytes))?;
        line("checkpoints", self.checkpoints.to_string())?;
        let cleaned = format!("{} segments, {} moved", self.segments_cleaned, size::show(self.moved_bytes));
        line("cleaned", cleaned)?;
        if self.packed_bytes > 0 {
            line("compressed", format!("{} less than it was", size::show(self.packed_bytes)))?;
        }
        if self.segments_unreadable > 0 {
            line(
                "NOT READABLE",
                format!("{} segments, which are left as they are", self.segments_unreadable),
            )?;
        }
        line("segments free", format!("{} of {}", self.free_segments, self.segments))?;
        let space =
            format!("{}, of which {} is used", size::show(self.space_bytes), size::show(self.used_bytes));
        line("space", space)?;
        let Recovery { chunks, records, micros, .. } = &self.recovery;
        line(
            "opened in",
            format!(
                "{}.{:03} ms, with {records} records in {chunks} chunks done again",
                micros / 1000,
                micros % 1000
            ),
        )?;
        Ok(shown)
    }
}

/// Runs `lld stats`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let name = arguments.control.display();
    if !is_socket(&arguments.control) {
        bail!(
            "{name} is no socket: these are the numbers of a server (`fstitch lld serve --control`); `fstitch lld info` shows a disk"
        );
    }
    let stats = match Client::new(&arguments.control)?.ask(&Request::Stats)? {
        Answer::Stats(stats) => stats,
        other => bail!("{name}: an unexpected answer: {other:?}"),
    };
    if arguments.json {
        json(&stats)?;
    } else {
        text(&format!("{name}\n{}", stats.lines()?))?;
    }
    Ok(Outcome::SUCCESS)
}
