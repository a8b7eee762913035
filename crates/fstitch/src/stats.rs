//! `fstitch stats`: the counters of a mount. Field names are a contract (`docs/control-socket.md`).

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Result, bail};
use fstitch_core::DeviceStats;
use serde::{Deserialize, Serialize};

use crate::control::client::Connection;
use crate::control::{Request, Response};
use crate::output::{Outcome, json, text};

/// Arguments of `stats`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Where the volume is mounted
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,
}

/// All counters of a mount.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Stats {
    /// Patches, write-out and memory.
    pub cache: CacheStats,
    /// What reached the image or device.
    pub device: MediumStats,
}

/// Declares a serialisable copy of a plain struct of counters, so that libraries need no serde.
macro_rules! counters {
    ($(#[$doc:meta])* $name:ident of $source:ty { $($(#[$field_doc:meta])* $field:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: u64,)*
        }

        impl From<&$source> for $name {
            fn from(source: &$source) -> Self {
                Self { $($field: Count::of(&source.$field),)* }
            }
        }

        impl $name {
            /// The counters with their names, in order.
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field),)*]
            }
        }
    };
}

/// The number behind a counter of either sort.
trait Count {
    fn of(&self) -> u64;
}

impl Count for u64 {
    fn of(&self) -> u64 {
        *self
    }
}

impl Count for fstitch_core::Counter {
    fn of(&self) -> u64 {
        self.get()
    }
}

counters! {
    /// The counters of [`fstitch_patch::Stats`].
    CacheStats of fstitch_patch::Stats {
        /// Byte patches created, merged ones not counted.
        patches_created_byte,
        /// Bit patches created, merged ones not counted.
        patches_created_bit,
        /// Empty patches created.
        patches_created_empty,
        /// Of these, gathering patches, which order nothing and only answer syncs.
        patches_created_gather,
        /// Of the patches created, those without undo data.
        patches_hard,
        /// Changes that joined their block's hard patch.
        patches_merged_hard,
        /// Changes that joined a patch that they overlap.
        patches_merged_overlap,
        /// Soft patches that became part of a hard one.
        patches_converted,
        /// Patches dropped because their block was freed before it was written.
        patches_eliminated,
        /// Patches now in memory.
        patches_live,
        /// The most patches that were in memory.
        patches_peak,
        /// Bytes of memory that patches take now, undo data included.
        patch_bytes_now,
        /// Bytes of undo data now in memory.
        undo_bytes_now,
        /// The most bytes of undo data that were in memory.
        undo_bytes_peak,
        /// Bytes of undo data taken.
        undo_bytes_total,
        patches_walked,
        /// Blocks written.
        blocks_written,
        /// Of these, blocks written with patches undone.
        blocks_written_undone,
        /// Of all blocks written, contents of files that were not old yet and that nobody had asked for.
        blocks_written_early,
        /// Runs of neighbouring blocks written.
        write_requests,
        /// Device flushes.
        flushes,
        /// Epochs written.
        epochs,
        /// Blocks found in the cache.
        cache_hits,
        /// Blocks read from the device.
        cache_misses,
        /// Clean blocks dropped to make room.
        cache_evictions,
        /// Blocks copied because they changed while in flight.
        copies_on_write,
        /// Bytes of memory in use.
        memory_bytes,
        /// The most bytes of memory that were in use.
        memory_peak_bytes,
        /// Bytes of blocks with uncommitted changes.
        dirty_bytes,
        /// Operations that waited for room.
        waits,
    }
}

counters! {
    /// The counters of [`DeviceStats`].
    MediumStats of DeviceStats {
        /// Blocks read.
        blocks_read,
        /// Blocks written.
        blocks_written,
        /// Runs of neighbouring blocks written.
        write_requests,
        /// Flushes.
        flushes,
        /// Blocks discarded.
        blocks_discarded,
    }
}

/// Runs `stats`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let mut connection = Connection::required(&arguments.mountpoint)?;
    let stats = match connection.ask(&Request::Stats)? {
        Response::Stats(stats) => stats,
        Response::Error(reason) => bail!("{reason}"),
        other => bail!("an unexpected answer: {other:?}"),
    };
    if arguments.json {
        json(&stats)?;
        return Ok(Outcome::SUCCESS);
    }
    let mut shown = String::new();
    for (title, list) in [("patch cache", stats.cache.list()), ("device", stats.device.list())] {
        writeln!(shown, "{title}")?;
        for (name, value) in list {
            writeln!(shown, "  {:<24} {value:>16}", name.replace('_', " "))?;
        }
    }
    text(&shown)?;
    Ok(Outcome::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_keep_their_names() {
        let source = fstitch_patch::Stats { undo_bytes_peak: 7, ..fstitch_patch::Stats::default() };
        let stats = CacheStats::from(&source);
        assert_eq!(stats.undo_bytes_peak, 7);
        assert!(serde_json::to_string(&stats).unwrap().contains(r#""undo_bytes_peak":7"#));
        assert!(stats.list().contains(&("undo_bytes_peak", 7)));
    }
}
