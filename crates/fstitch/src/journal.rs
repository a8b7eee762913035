//! The journal of an ext3 volume: recovery before a volume is used, and `fstitch journal dump`.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use fstitch_core::{BlockDevice, Clock, Overlay, SystemClock};
use fstitch_disk::{DiskOptions, FileDisk};
use fstitch_fs::ext2::journal::{self, Journal, Place, Recovered};
use fstitch_fs::ext2::layout::feature::incompat;
use fstitch_fs::ext2::layout::superblock::S_FEATURE_INCOMPAT;
use fstitch_fs::ext2::view::BlockView;
use fstitch_patch::journal::{End, Log, Record, Stage};
use serde::{Deserialize, Serialize};

use crate::ls::show_time;
use crate::mkfs::show_uuid;
use crate::open::{self, Access};
use crate::output::{Outcome, json, spinner, text};

// ---- recovery ----

/// What a recovery did. Field names are a contract (`docs/control-socket.md`).
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Report {
    /// Nothing reached the image: what follows describes a recovery in memory.
    pub in_memory: bool,
    /// Transactions that were replayed.
    pub transactions: u32,
    /// Blocks written to their places.
    pub blocks: u64,
    /// Blocks whose copies were revoked.
    pub revoked: u64,
    /// Inodes freed that had no name any more.
    pub orphans_freed: u32,
    /// Files cut to their length.
    pub orphans_cut: u32,
    /// What is wrong, so that the volume must be checked.
    pub problems: Vec<String>,
}

impl Report {
    fn new(done: &Recovered, in_memory: bool) -> Self {
        let replayed = done.replayed.as_ref();
        Self {
            in_memory,
            transactions: replayed.map_or(0, |replayed| replayed.scan.transactions),
            blocks: replayed.map_or(0, |replayed| replayed.written),
            revoked: replayed.map_or(0, |replayed| replayed.revoked),
            orphans_freed: done.orphans.freed,
            orphans_cut: done.orphans.cut,
            problems: done.errors.clone(),
        }
    }

    /// For people, without a newline at its end.
    pub fn describe(&self) -> String {
        let place = if self.in_memory { "in memory only: the image is as it was; " } else { "" };
        let mut shown = format!(
            "{place}journal replayed: {} transactions, {} blocks, {} revoked",
            self.transactions, self.blocks, self.revoked
        );
        if self.orphans_freed + self.orphans_cut > 0 {
            // Writing to a string cannot fail.
            let _ = write!(
                shown,
                "; {} deleted files freed, {} files cut to their length",
                self.orphans_freed, self.orphans_cut
            );
        }
        for problem in &self.problems {
            let _ = write!(shown, "\n  DAMAGE: {problem}");
        }
        shown
    }
}

/// Opens the device of an external journal.
pub fn open_external(path: Option<&Path>, block_size: u32, access: Access) -> Result<Option<FileDisk>> {
    let options = DiskOptions { block_size, read_only: access == Access::ReadOnly, ..DiskOptions::default() };
    path.map(|path| open::disk(path, &options).with_context(|| format!("the journal {}", path.display())))
        .transpose()
}

/// Replays the journal of the volume on `disk` and finishes its orphans. `None` if there was nothing to do.
pub fn recover(disk: &dyn BlockDevice, external: Option<&Path>) -> Result<Option<Report>> {
    let external = open_external(external, disk.geometry().block_size, Access::ReadWrite)?;
    recover_with(disk, external.as_ref().map(|disk| -> &dyn BlockDevice { disk }))
}

/// The same with the device of an external journal.
pub fn recover_with(disk: &dyn BlockDevice, external: Option<&dyn BlockDevice>) -> Result<Option<Report>> {
    let display = spinner(false);
    let mut progress = |now: fstitch_patch::journal::Progress| {
        let stage = match now.stage {
            Stage::Scan => "reading the journal",
            Stage::Copy => "replaying the journal",
        };
        display.set_message(format!("{stage}: {} of {} blocks", now.done, now.total));
        display.tick();
    };
    let now = SystemClock::new().now();
    let batch_max = journal::BATCH_MAX;
    let mut options =
        journal::Options { external, now, for_reading: false, batch_max, progress: &mut progress };
    let done = journal::recover(disk, &mut options)?;
    display.finish_and_clear();
    Ok(done.map(|done| Report::new(&done, false)))
}

/// As [`recover`], on a device that keeps changes in memory, so that nothing is written for good.
pub fn recover_in_memory<D: BlockDevice>(
    disk: &Overlay<D>,
    external: Option<&Path>,
) -> Result<Option<Report>> {
    let external = open_external(external, disk.geometry().block_size, Access::ReadOnly)?.map(Overlay::new);
    let external = external.as_ref().map(|disk| -> &dyn BlockDevice { disk });
    let now = SystemClock::new().now();
    let batch_max = journal::BATCH_MAX;
    let progress = &mut |_| {};
    let mut options = journal::Options { external, now, for_reading: true, batch_max, progress };
    Ok(journal::recover(disk, &mut options)?.map(|done| Report::new(&done, true)))
}

// ---- description ----

/// What `info` and `journal dump` show of a journal.
#[derive(Clone, Debug, Serialize)]
pub struct Shown {
    /// `inode 8`, or `device` with the journal's UUID.
    place: String,
    /// `clean`, `dirty`, or why it cannot be told.
    state: String,
    /// What follows is absent if the journal cannot be read.
    #[serde(flatten)]
    superblock: Option<ShownSuperblock>,
}

#[derive(Clone, Debug, Serialize)]
struct ShownSuperblock {
    version: u8,
    features: Vec<String>,
    uuid: String,
    block_size_bytes: u32,
    blocks: u32,
    first_block: u32,
    start_block: u32,
    sequence: u32,
    errno: i32,
}

impl Shown {
    /// The lines for people: name and value.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![("journal", format!("{}, {}", self.place, self.state))];
        if let Some(found) = &self.superblock {
            let size = u64::from(found.blocks) * u64::from(found.block_size_bytes);
            lines.push((
                "journal size",
                format!(
                    "{} in {} blocks of {} bytes",
                    crate::size::show(size),
                    found.blocks,
                    found.block_size_bytes
                ),
            ));
            let features = if found.features.is_empty() { "none".into() } else { found.features.join(" ") };
            lines.push(("journal features", format!("{features} (version {})", found.version)));
            lines.push((
                "journal log",
                format!(
                    "from block {}, start {}, sequence {}",
                    found.first_block, found.start_block, found.sequence
                ),
            ));
            if found.errno != 0 {
                lines.push(("journal error", found.errno.to_string()));
            }
        }
        lines
    }

    fn new(place: Place, is_dirty: bool, log: Result<&Log<'_>>) -> Self {
        let place = match place {
            Place::Inode(ino) => format!("inode {ino}"),
            Place::Device(uuid) => format!("device {}", show_uuid(&uuid)),
        };
        let log = match log {
            Ok(log) => log,
            Err(error) => return Self { place, state: crate::output::reasons(&error), superblock: None },
        };
        let found = log.superblock();
        let state = match (is_dirty, log.is_empty()) {
            (true, false) => "dirty: it must be replayed",
            (true, true) => "empty, but the volume was not unmounted",
            (false, true) => "clean",
            (false, false) => "clean: what is in it is not to be replayed",
        };
        let superblock = ShownSuperblock {
            version: if found.is_v2 { 2 } else { 1 },
            features: found.features.names(),
            uuid: show_uuid(&found.uuid),
            block_size_bytes: found.block_size,
            blocks: found.len,
            first_block: found.first,
            start_block: found.start,
            sequence: found.sequence.0,
            errno: found.errno,
        };
        Self { place, state: state.to_owned(), superblock: Some(superblock) }
    }
}

/// Calls `see` with the journal of the volume on `disk`, described, and opened if it can be. `None` if the volume has
/// none.
fn look<T>(
    disk: &dyn BlockDevice,
    external: Option<&Path>,
    see: impl FnOnce(Shown, Option<&Log<'_>>) -> Result<T>,
) -> Result<Option<T>> {
    let (raw, volume) = journal::read_superblock(disk)?;
    let Some(place) = journal::locate(&volume, &raw)? else {
        return Ok(None);
    };
    let is_dirty = S_FEATURE_INCOMPAT.get(&raw) & incompat::RECOVER != 0;
    let view = BlockView::new(disk, usize::try_from(volume.block_size)?);
    let external = open_external(external, volume.block_size, Access::ReadOnly)?;
    let external = external.as_ref().map(|disk| -> &dyn BlockDevice { disk });
    let found = Journal::find(&view, &volume, place, external);
    let opened = match (&found, place, external) {
        (Ok(found), Place::Device(_), Some(device)) => found.open(device).map_err(Into::into),
        (Ok(found), ..) => found.open(&view).map_err(Into::into),
        (Err(error), ..) => Err(error.clone().into()),
    };
    match opened {
        Ok(log) => see(Shown::new(place, is_dirty, Ok(&log)), Some(&log)).map(Some),
        Err(error) => see(Shown::new(place, is_dirty, Err(error)), None).map(Some),
    }
}

/// The journal of the volume on `disk`, for `info`.
pub fn show(disk: &dyn BlockDevice, external: Option<&Path>) -> Result<Option<Shown>> {
    look(disk, external, |shown, _| Ok(shown))
}

/// How many blocks a journal of so many bytes has; `None` leaves it to the volume's size.
pub fn blocks_of(bytes: Option<u64>, block_size: u32) -> Result<Option<u32>> {
    let blocks = bytes.map(|bytes| u32::try_from(bytes / u64::from(block_size)));
    blocks.transpose().context("the journal is too large")
}

// ---- journal dump ----

/// Arguments of `journal`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the transactions in the journal, their blocks and their revocations, and why the log ends
    Dump(DumpArguments),
}

/// Arguments of `journal dump`.
#[derive(clap::Args)]
struct DumpArguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    volume: open::Arguments,
    /// The image file or block device
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
}

/// What `journal dump` prints.
#[derive(Serialize)]
struct Dump {
    journal: Shown,
    transactions: Vec<Transaction>,
    end: ShownEnd,
}

#[derive(Default, Serialize)]
struct Transaction {
    sequence: u32,
    /// Its commit block is there; the last one's may be missing.
    committed: bool,
    committed_at: String,
    records: Vec<ShownRecord>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
enum ShownRecord {
    Descriptor { block: u32, copies: Vec<ShownTag> },
    Revoke { block: u32, revoked: Vec<u64> },
    Commit { block: u32 },
}

#[derive(Serialize)]
struct ShownTag {
    journal_block: u32,
    home_block: u64,
    escaped: bool,
}

#[derive(Serialize)]
struct ShownEnd {
    block: u32,
    sequence: u32,
    torn: bool,
    damage: bool,
    reason: String,
}

impl From<&End> for ShownEnd {
    fn from(end: &End) -> Self {
        Self {
            block: end.at,
            sequence: end.sequence.0,
            torn: end.is_torn,
            damage: end.why.is_damage(),
            reason: end.to_string(),
        }
    }
}

/// Runs `journal`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    match &arguments.command {
        Command::Dump(arguments) => dump(arguments),
    }
}

fn dump(arguments: &DumpArguments) -> Result<Outcome> {
    let disk = arguments.volume.open_disk(&arguments.image, Access::ReadOnly)?;
    let dumped = look(&disk, arguments.volume.journal.as_deref(), |journal, log| match log {
        Some(log) => read(journal, log),
        None => bail!("the journal cannot be read: {}", journal.state),
    });
    let Some(dump) = dumped.with_context(|| format!("{}", arguments.image.display()))? else {
        bail!("{} has no journal", arguments.image.display());
    };
    if arguments.json {
        json(&dump)?;
    } else {
        text(&describe(&arguments.image, &dump)?)?;
    }
    Ok(if dump.end.damage { Outcome::FAILURE } else { Outcome::SUCCESS })
}

/// Reads the log twice: with its checksums to find its end, and for what is in it, the torn transaction included.
fn read(journal: Shown, log: &Log<'_>) -> Result<Dump> {
    let scan = log.scan(&mut |_, _| {})?;
    let mut transactions: Vec<Transaction> = Vec::new();
    let mut walk = log.walk();
    while let Some(record) = walk.next()? {
        let (Record::Descriptor { sequence, .. }
        | Record::Revoke { sequence, .. }
        | Record::Commit { sequence, .. }) = record;
        if transactions.last().is_none_or(|last| last.sequence != sequence.0) {
            transactions.push(Transaction { sequence: sequence.0, ..Transaction::default() });
        }
        let Some(transaction) = transactions.last_mut() else { continue };
        let shown = match record {
            Record::Descriptor { at, tags, .. } => {
                let tag = |(tag, behind): (fstitch_patch::journal::blocks::Tag, u32)| ShownTag {
                    journal_block: log.superblock().advance(at, behind),
                    home_block: tag.block,
                    escaped: tag.is_escaped(),
                };
                ShownRecord::Descriptor { block: at, copies: tags.into_iter().zip(1..).map(tag).collect() }
            }
            Record::Revoke { at, blocks, .. } => ShownRecord::Revoke { block: at, revoked: blocks },
            Record::Commit { at, commit, .. } => {
                transaction.committed = true;
                transaction.committed_at = show_time(commit.time);
                ShownRecord::Commit { block: at }
            }
        };
        transaction.records.push(shown);
        // What is behind a wrong checksum is no transaction.
        if !scan.next().is_after(sequence) && scan.end.why.is_damage() {
            break;
        }
    }
    Ok(Dump { journal, transactions, end: ShownEnd::from(&scan.end) })
}

fn describe(image: &Path, dump: &Dump) -> Result<String> {
    let mut shown = String::new();
    writeln!(shown, "{}", image.display())?;
    for (name, value) in dump.journal.lines() {
        writeln!(shown, "  {name:<20} {value}")?;
    }
    for transaction in &dump.transactions {
        let committed = match transaction.committed {
            true => format!("committed {}", transaction.committed_at),
            false => "not committed".to_owned(),
        };
        writeln!(shown, "transaction {}, {committed}", transaction.sequence)?;
        for record in &transaction.records {
            match record {
                ShownRecord::Descriptor { block, copies } => {
                    writeln!(shown, "  {block:>8} descriptor of {} copies", copies.len())?;
                    for copy in copies {
                        let escaped = if copy.escaped { " (escaped)" } else { "" };
                        writeln!(shown, "  {:>8} copy of {}{escaped}", copy.journal_block, copy.home_block)?;
                    }
                }
                ShownRecord::Revoke { block, revoked } => {
                    let list: Vec<String> = revoked.iter().map(u64::to_string).collect();
                    writeln!(shown, "  {block:>8} revoked {}", list.join(" "))?;
                }
                ShownRecord::Commit { block } => writeln!(shown, "  {block:>8} commit")?,
            }
        }
    }
    let damage = if dump.end.damage { "DAMAGE: " } else { "" };
    writeln!(shown, "{damage}{}", dump.end.reason)?;
    Ok(shown)
}
