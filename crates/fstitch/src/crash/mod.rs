//! `fstitch crash`: the crash laboratory on the command line.

mod groups;
mod look;
mod mount;
mod recorded;
mod run;
mod watch;

use std::sync::Arc;

use anyhow::Result;
use clap::Subcommand;
use fstitch_crashlab::{Consistency, Level, System};
use fstitch_systems::{Ext2System, UfsSystem, WaffleSystem};

use crate::output::{Outcome, usage};

/// Arguments of `crash`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a workload, and judge every image that a power cut could have left of it
    Run(run::Arguments),
    /// Run random programs of patchgroups, and judge the order on every image that a power cut could have left
    Groups(groups::Arguments),
    /// List the built-in workloads
    List(run::ListArguments),
    /// Make one state again, judge it, and perhaps keep its image
    Replay(look::ReplayArguments),
    /// Find the smallest violation like this one
    Minimise(look::MinimiseArguments),
    /// Show what was done, what was written when, and what the cut took away
    Show(look::ShowArguments),
    /// Judge what power cuts could have left of a recorded log, as `crash mount --record` writes it
    ReplayLog(recorded::Arguments),
    /// Mount a volume in such a way that `crash cut` can take its power away
    Mount(mount::MountArguments),
    /// Take the power of such a mount away now
    Cut(mount::CutArguments),
}

/// Runs `crash`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    match &arguments.command {
        Command::Run(arguments) => run::run(arguments),
        Command::Groups(arguments) => groups::run(arguments),
        Command::List(arguments) => run::list(arguments),
        Command::Replay(arguments) => look::replay(arguments),
        Command::Minimise(arguments) => look::minimise(arguments),
        Command::Show(arguments) => look::show(arguments),
        Command::ReplayLog(arguments) => recorded::run(arguments),
        Command::Mount(arguments) => mount::run(arguments),
        Command::Cut(arguments) => mount::cut(arguments),
    }
}

/// Which volume is made, and how it is mounted.
#[derive(clap::Args)]
struct SystemArguments {
    /// The file system: ext2; ext3 or ext4, which have a journal; UFS in one of its versions and orders of bytes; or waffle
    #[arg(long, default_value = "ext2", value_parser = ["ext2", "ext3", "ext4", "ufs1", "ufs1be", "ufs2", "ufs2be", "waffle"])]
    fs: String,
    /// The consistency mechanism: soft (soft updates), sync, or async (no order: the one that must be found corrupt) on ext2, ext4 and UFS;
    /// ordered, metadata or full (journals) on ext3 and ext4; shadow, or async, on waffle
    #[arg(long, value_name = "MECHANISM")]
    consistency: Option<Consistency>,
    /// Metadata of ext4 have no sums
    #[arg(long)]
    no_sums: bool,
    /// Blocks of the journal
    #[arg(long, value_name = "BLOCKS")]
    journal: Option<u32>,
    /// The journal is a device of its own; one power cut hits both
    #[arg(long)]
    external_journal: bool,
    /// The volume is a file of this one, such as ext3-metadata; behind it +sparse (the file has holes) or +unordered (a
    /// device that writes the file and passes no flush on: must be found corrupt)
    #[arg(long, value_name = "SYSTEM")]
    inside: Option<String>,
    /// How badly the medium behaves: M0, M1, M2 or M3
    #[arg(long, default_value = "M2")]
    level: Level,
    /// Size of the volume in KiB
    #[arg(long, value_name = "KIB")]
    size: Option<u32>,
    /// Block size in bytes: 1024, 2048 or 4096; of UFS 4096 to 65536
    #[arg(long, value_name = "BYTES")]
    block_size: Option<u32>,
    /// Bytes of a fragment of UFS: an eighth of a block at least
    #[arg(long, value_name = "BYTES")]
    fragment_size: Option<u32>,
    /// Inode size in bytes: 128 or 256
    #[arg(long, value_name = "BYTES")]
    inode_size: Option<u32>,
    /// Inodes of the volume
    #[arg(long, value_name = "N")]
    inodes: Option<u32>,
    /// What is peculiar about the volume, as a sum: 1 no extended attributes yet, 2 no large files yet, 4 an index that nobody made, 8 shared
    /// attributes, 16 contents in inodes, 32 blocks in clusters of four, 64 hardly any room, 128 usage of several owners is counted
    #[arg(long, default_value_t = 0, value_name = "BITS")]
    peculiar: u32,
    /// The cache in KiB; small ones write while the workload runs
    #[arg(long, value_name = "KIB")]
    cache_size: Option<u32>,
    /// What is written to files of waffle is compressed
    #[arg(long)]
    compressed: bool,
    /// The optimisations of the patch graph, as a number from 0 (none) to 15 (all)
    #[arg(long, value_name = "BITS")]
    optimizations: Option<u8>,
}

impl SystemArguments {
    /// The system's name without its parameters.
    fn mechanism(&self) -> String {
        let usual = match &*self.fs {
            "ext3" | "ext4" => Consistency::Ordered,
            "waffle" => Consistency::Shadow,
            _ => Consistency::Soft,
        };
        format!("{}-{}", self.fs, self.consistency.unwrap_or(usual))
    }

    fn system(&self) -> Result<Arc<dyn System>> {
        if self.compressed && self.fs != "waffle" {
            return Err(usage("of these only waffle compresses files"));
        }
        if self.fs.starts_with("ufs") {
            return self.ufs_system();
        }
        if self.fs == "waffle" {
            return self.waffle_system();
        }
        if self.fragment_size.is_some() {
            return Err(usage("fragments are of UFS"));
        }
        let default = Ext2System { is_ext4: self.fs == "ext4", ..Ext2System::default() }.sized();
        let system = Ext2System {
            size_kib: self.size.unwrap_or(default.size_kib),
            block_size: self.block_size.unwrap_or(default.block_size),
            inode_size: self.inode_size.unwrap_or(default.inode_size),
            inodes: self.inodes.unwrap_or(default.inodes),
            peculiar: self.peculiar,
            cache_kib: self.cache_size.unwrap_or(default.cache_kib),
            combination: self.optimizations.unwrap_or(default.combination),
            journal_blocks: self.journal.unwrap_or(default.journal_blocks),
            external: u32::from(self.external_journal),
            sums: !self.no_sums,
            ..self.mechanism().parse().map_err(usage)?
        };
        let name = match &self.inside {
            Some(outer) => format!("{system}@{outer}"),
            None => system.to_string(),
        };
        // Reading the name checks that such a volume is possible.
        fstitch_systems::system(&name).map_err(usage)
    }

    fn waffle_system(&self) -> Result<Arc<dyn System>> {
        let of_ext = self.no_sums || self.external_journal || self.peculiar != 0 || self.inside.is_some();
        let of_blocks = self.block_size.is_some() || self.fragment_size.is_some();
        if of_ext || of_blocks || self.journal.is_some() || self.inode_size.is_some() || self.inodes.is_some()
        {
            return Err(usage(
                "of waffle only sizes of the volume and of the cache, and compression, can be chosen",
            ));
        }
        let named: WaffleSystem = self.mechanism().parse().map_err(usage)?;
        let system = WaffleSystem {
            size_kib: self.size.unwrap_or(named.size_kib),
            cache_kib: self.cache_size.unwrap_or(named.cache_kib),
            combination: self.optimizations.unwrap_or(named.combination),
            is_compressed: self.compressed,
            ..named
        };
        fstitch_systems::system(&system.to_string()).map_err(usage)
    }

    fn ufs_system(&self) -> Result<Arc<dyn System>> {
        let of_ext = self.no_sums || self.external_journal || self.peculiar != 0 || self.inside.is_some();
        if of_ext || self.journal.is_some() || self.inode_size.is_some() || self.inodes.is_some() {
            return Err(usage(
                "of UFS only sizes of the volume, its blocks and fragments, and of the cache can be chosen",
            ));
        }
        let named: UfsSystem = self.mechanism().parse().map_err(usage)?;
        let system = UfsSystem {
            size_kib: self.size.unwrap_or(named.size_kib),
            block_size: self.block_size.unwrap_or(named.block_size),
            fragment_size: self.fragment_size.unwrap_or(named.fragment_size),
            cache_kib: self.cache_size.unwrap_or(named.cache_kib),
            combination: self.optimizations.unwrap_or(named.combination),
            ..named
        };
        fstitch_systems::system(&system.to_string()).map_err(usage)
    }
}
