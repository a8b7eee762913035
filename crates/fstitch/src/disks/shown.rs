//! How the disks of a volume stand, for programs and people.

use std::fmt::Write;

use fstitch_core::num::to_u64;
use fstitch_shepherd::disks::DiskState;
use serde::{Deserialize, Serialize};

use super::Disks;
use crate::mkfs::show_uuid;

/// The disks of a volume. Field names are a contract (`docs/control-socket.md`).
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct DiskList {
    /// The array's UUID.
    pub array: String,
    /// Bytes of a block.
    pub block_size_bytes: u32,
    /// Blocks of the volume.
    pub volume_blocks: u64,
    /// Each disk.
    pub disks: Vec<DiskStatus>,
}

/// A disk. Field names are a contract (`docs/control-socket.md`).
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct DiskStatus {
    /// Its number.
    pub disk: u64,
    /// What it was opened as; empty if it was not named.
    pub name: String,
    /// `whole`, `out`, `rebuilding` or `hot-spare`.
    pub state: String,
    /// Blocks of the volume that are on it.
    pub blocks: u64,
    /// Its blocks for copies and for what is moved.
    pub spares: u64,
    /// Of one that is rebuilt: blocks of the volume that have been gone over.
    pub rebuilt_blocks: Option<u64>,
    /// Reads that failed since the volume was opened.
    pub read_errors: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Flushes that failed.
    pub flush_errors: u64,
}

/// How the disks stand.
pub fn list(disks: &Disks) -> DiskList {
    let array = disks.array();
    let label = array.label();
    let one = |(disk, member): (usize, &fstitch_shepherd::disks::Member)| {
        let faults = disks.faults(disk);
        DiskStatus {
            disk: to_u64(disk),
            name: disks.name(disk).map(|name| name.display().to_string()).unwrap_or_default(),
            state: member.state.name().to_owned(),
            blocks: member.blocks,
            spares: member.spares,
            rebuilt_blocks: match member.state {
                DiskState::Rebuilding { next } => Some(next),
                _ => None,
            },
            read_errors: faults.reads,
            write_errors: faults.writes,
            flush_errors: faults.flushes,
        }
    };
    DiskList {
        array: show_uuid(&label.uuid),
        block_size_bytes: label.block_size,
        volume_blocks: label.volume(),
        disks: label.disks.iter().enumerate().map(one).collect(),
    }
}

impl DiskStatus {
    /// A disk for people.
    pub fn title(&self) -> String {
        if self.name.is_empty() {
            format!("disk {}", self.disk)
        } else {
            format!("disk {} ({})", self.disk, self.name)
        }
    }

    /// How many requests it has failed.
    pub fn errors(&self) -> u64 {
        self.read_errors + self.write_errors + self.flush_errors
    }
}

impl DiskList {
    /// How far a disk has been rebuilt.
    pub fn percent(&self, disk: &DiskStatus) -> Option<u64> {
        Some(disk.rebuilt_blocks? * 100 / self.volume_blocks.max(1))
    }

    /// Why the volume is not as well as it might be, each with what to do about it.
    pub fn causes(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for disk in &self.disks {
            let (title, no) = (disk.title(), disk.disk);
            match (disk.state.as_str(), self.percent(disk)) {
                ("out", _) => found.push((
                    format!("{title} is out"),
                    format!("put another disk in its place: `fstitch disk replace IMAGE {no} NEW`"),
                )),
                (_, Some(percent)) => found.push((
                    format!("{title} is being rebuilt, and has {percent} % again"),
                    "wait until it is rebuilt: a mount does so by itself, `fstitch disk rebuild` without one"
                        .to_owned(),
                )),
                _ if disk.errors() > 0 => found.push((
                    format!("{title} has reported {} errors", disk.errors()),
                    format!("replace the disk if it goes on so: `fstitch disk replace IMAGE {no} NEW`"),
                )),
                _ => {}
            }
        }
        found
    }

    /// A line for each disk.
    pub fn describe(&self) -> String {
        let mut shown = String::new();
        for disk in &self.disks {
            let bytes = (disk.blocks + disk.spares) * u64::from(self.block_size_bytes);
            // Writing to a string cannot fail.
            let _ = write!(shown, "  {:<30} {:<11} {}", disk.title(), disk.state, crate::size::show(bytes));
            if let Some(percent) = self.percent(disk) {
                let _ = write!(shown, ", {percent} % rebuilt");
            }
            if disk.errors() > 0 {
                let (r, w, f) = (disk.read_errors, disk.write_errors, disk.flush_errors);
                let _ = write!(shown, ", failed: {r} reads, {w} writes, {f} flushes");
            }
            shown.push('\n');
        }
        shown
    }
}
