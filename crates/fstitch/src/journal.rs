//! The journal of an ext3 volume: `fstitch journal dump`.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use fstitch_core::BlockDevice;
use fstitch_formats::ext::journal::{Shown, look};
use fstitch_formats::show;
use fstitch_patch::journal::{End, Log, Record};
use serde::Serialize;

use crate::open::{self, Access};
use crate::output::{Outcome, json, text};
use crate::recovery::open_external;

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
    let disk = arguments.volume.open_kept(&arguments.image, Access::ReadOnly)?.device;
    let block_size = disk.geometry().block_size;
    let external = open_external(arguments.volume.journal.as_deref(), block_size, Access::ReadOnly)?;
    let external = external.as_ref().map(|disk| -> &dyn BlockDevice { disk });
    let dumped = look(&*disk, external, |journal, log| match log {
        Some(log) => read(journal, log),
        None => bail!("the journal cannot be read: {}", journal.state()),
    });
    let dumped = dumped.map_err(anyhow::Error::from).and_then(Option::transpose);
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
                transaction.committed_at = show::time(commit.time);
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
