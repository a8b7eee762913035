//! `fstitch mkfs`: makes volumes, and journals on devices of their own.

pub mod device;
mod fill;
mod journal;

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use fstitch_core::Error;
use fstitch_disk::{DiskOptions, FileDisk};
use fstitch_fs::ext2::mkfs::{MkfsJournal, MkfsOptions, MkfsSummary, mkfs};
use serde::Serialize;

use crate::open;
use crate::output::{Outcome, json, spinner, usage};

/// Arguments of `mkfs`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    format: Format,
}

#[derive(clap::Subcommand)]
enum Format {
    /// Make an ext2 volume, as mke2fs would
    Ext2(Box<Ext2>),
    /// Make an ext3 volume: ext2 with a journal
    Ext3(Box<Ext2>),
    /// Make a journal that has a device or an image for itself
    Journal(journal::Arguments),
}

#[derive(clap::Args)]
struct Ext2 {
    /// Bytes per block: 1024, 2048 or 4096
    #[arg(short = 'b', long, value_name = "BYTES", value_parser = asked_block_size)]
    block_size: Option<u32>,
    /// Bytes per inode: 128, 256, … up to the block size
    #[arg(short = 'I', long, value_name = "BYTES")]
    inode_size: Option<u32>,
    /// Number of inodes
    #[arg(short = 'N', long, value_name = "COUNT")]
    inodes: Option<u32>,
    /// One inode for so many bytes of the volume
    #[arg(short = 'i', long, value_name = "BYTES")]
    bytes_per_inode: Option<u64>,
    /// Label, at most 16 bytes
    #[arg(short = 'L', long)]
    label: Option<String>,
    /// UUID, `random` or `time`; random by default
    #[arg(short = 'U', long)]
    uuid: Option<String>,
    /// Percent of the blocks that only the superuser may use
    #[arg(short = 'm', long, value_name = "PERCENT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=50))]
    reserved: u32,
    /// Extended options: root_owner[=UID:GID] (the owner of the root directory; without a value, and by default, the user
    /// who makes the volume), stride=N, stripe_width=N, discard, offset=BYTES, hash_seed=UUID (that of directory hashes; by
    /// default it goes with a UUID that was given)
    #[arg(short = 'E', long, value_name = "LIST")]
    extended: Vec<String>,
    /// Features: ext_attr, resize_inode, dir_index, filetype, sparse_super, large_file; ^NAME switches one off
    #[arg(short = 'O', long, value_name = "LIST")]
    features: Vec<String>,
    /// A journal, with which it is ext3: size=BYTES, in MiB without a unit; what suits the volume by default. Or
    /// device=PATH, that of `mkfs journal`
    #[arg(short = 'J', long, value_name = "size=BYTES|device=PATH", value_parser = asked_journal)]
    journal: Option<AskedJournal>,
    /// Revision of the format, 0 or 1
    #[arg(short = 'r', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1))]
    revision: u32,
    /// Overwrite what the medium seems to hold
    #[arg(short = 'F', long)]
    force: bool,
    /// Fill the volume with what is in this directory or tar archive, `-` for an archive on standard input
    #[arg(short = 'd', long = "from", value_name = "DIRECTORY|TAR")]
    source: Option<PathBuf>,
    /// Where the volume starts in the image
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = crate::size::bytes)]
    offset: u64,
    /// Make the volume in this partition of a whole disk, by its number in the table (MBR or GPT)
    #[arg(long, value_name = "N", conflicts_with = "offset")]
    partition: Option<u32>,
    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The image file or block device; a file is created if a size is given
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Size of the volume, such as 64M or 2G; without a unit it counts blocks, with `s` sectors of 512 bytes
    #[arg(value_name = "SIZE")]
    size: Option<String>,
}

/// What was made, for `--json`.
#[derive(Serialize)]
struct Made {
    image: String,
    block_size_bytes: u32,
    blocks: u64,
    groups: u64,
    inodes: u64,
    inode_size_bytes: u32,
    free_blocks: u64,
    reserved_blocks: u64,
    journal_blocks: Option<u32>,
    uuid: String,
    superblock_backups: Vec<u64>,
}

/// Runs `mkfs`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    match &arguments.format {
        Format::Ext2(volume) => make(volume, MkfsJournal::None),
        Format::Ext3(volume) => make(volume, MkfsJournal::Suitable),
        Format::Journal(arguments) => journal::run(arguments),
    }
}

/// What `-J` says.
#[derive(Clone)]
enum AskedJournal {
    Bytes(u64),
    Device(PathBuf),
}

/// As mke2fs has it: a bare number counts MiB.
fn asked_journal(text: &str) -> Result<AskedJournal, String> {
    if let Some(path) = text.strip_prefix("device=").filter(|path| !path.is_empty()) {
        return Ok(AskedJournal::Device(path.into()));
    }
    let size = text.strip_prefix("size=").ok_or("only `size=` and `device=` are known")?;
    if let Ok(mebibytes) = size.parse::<u64>() {
        let bytes = mebibytes.checked_mul(1 << 20).ok_or_else(|| format!("{size} MiB are too many"))?;
        return Ok(AskedJournal::Bytes(bytes));
    }
    crate::size::bytes(size).map(AskedJournal::Bytes)
}

fn asked_block_size(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(bytes @ (1024 | 2048 | 4096)) => Ok(bytes),
        _ => Err("1024, 2048 and 4096 are possible".to_owned()),
    }
}

/// Makes a volume, with the journal that was asked for, else with `journal`.
fn make(arguments: &Ext2, journal: MkfsJournal) -> Result<Outcome> {
    let mut options = options(arguments)?;
    let device = match &arguments.journal {
        None | Some(AskedJournal::Bytes(_)) => None,
        Some(AskedJournal::Device(path)) => Some(device::for_new_volume(path, &mut options.block_size)?),
    };
    options.journal = match &arguments.journal {
        None => journal,
        Some(AskedJournal::Bytes(bytes)) => MkfsJournal::Bytes(*bytes),
        Some(AskedJournal::Device(_)) => MkfsJournal::None,
    };
    let kind = if matches!(options.journal, MkfsJournal::None) { "ext2" } else { "ext3" };
    let (size, prepared) = prepare_image(arguments, &mut options, kind)?;
    options.device_is_zero = prepared.is_new();
    let made = write(arguments, &options, (size, device)).and_then(|mut summary| {
        let failed = fill::fill(arguments, &mut summary)?;
        Ok((summary, failed))
    });
    let (summary, failed) = made.inspect_err(|_| prepared.undo(&arguments.image))?;
    report(arguments, &options, &summary)?;
    Ok(if failed == 0 { Outcome::SUCCESS } else { Outcome::FAILURE })
}

fn options(arguments: &Ext2) -> Result<MkfsOptions> {
    let uuid = uuid(arguments.uuid.as_deref())?;
    let seed = hash_seed(arguments, &uuid)?;
    let mut options = MkfsOptions::new(uuid, seed, crate::epoch::now()?);
    options.block_size = arguments.block_size;
    options.inode_size = arguments.inode_size;
    options.inodes = arguments.inodes;
    options.bytes_per_inode = arguments.bytes_per_inode;
    options.label = arguments.label.clone().unwrap_or_default().into_bytes();
    options.reserved_percent = arguments.reserved;
    options.revision = arguments.revision;
    for list in &arguments.features {
        options.features.apply(list).map_err(|error| usage(format!("{error}, in `-O {list}`")))?;
    }
    options.root_owner = this_user();
    for list in &arguments.extended {
        // What `root_owner` means without a value depends on who asks, of which the format knows nothing.
        let is_theirs = |word: &&str| {
            word.trim() == "root_owner" || ["offset=", "hash_seed="].iter().any(|name| word.starts_with(name))
        };
        let ours: Vec<&str> = list.split(',').filter(|word| !is_theirs(word)).collect();
        let applied = options.apply_extended(&ours.join(","));
        applied.map_err(|error| usage(format!("{error}, in `-E {list}`")))?;
    }
    Ok(options)
}

/// The owner of what this user makes.
fn this_user() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// The value of an extended option, as it was given last.
fn extended<'a>(arguments: &'a Ext2, name: &str) -> Option<&'a str> {
    let words = arguments.extended.iter().flat_map(|list| list.split(','));
    words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('=')).next_back()
}

/// Where the volume starts: `--offset`, mke2fs's way of saying it, or the start of its partition.
fn offset(arguments: &Ext2) -> Result<u64> {
    match (extended(arguments, "offset"), arguments.partition) {
        (Some(_), Some(_)) => Err(usage("`--partition` and `-E offset=` exclude each other")),
        (Some(value), None) => {
            crate::size::bytes(value).map_err(|text| usage(format!("{text}, in `-E offset={value}`")))
        }
        (None, Some(number)) => open::partition_start(&arguments.image, number),
        (None, None) => Ok(arguments.offset),
    }
}

/// The seed of directory hashes: that which was asked for, or that of a UUID that was, so that both need not be given for
/// an image that can be made again.
fn hash_seed(arguments: &Ext2, uuid: &[u8; 16]) -> Result<[u8; 16]> {
    match (extended(arguments, "hash_seed"), arguments.uuid.as_deref()) {
        (Some(text), _) => {
            parse_uuid(text).ok_or_else(|| usage(format!("`hash_seed={text}`: it has the form of a UUID")))
        }
        (None, None | Some("random" | "time")) => random_uuid(),
        (None, Some(_)) => Ok(MkfsOptions::hash_seed_for(uuid)),
    }
}

/// Creates the image, or makes sure that an existing one holds nothing of value. Returns the volume's size in
/// bytes, if one was given, and what was done to the file.
fn prepare_image(arguments: &Ext2, options: &mut MkfsOptions, kind: &str) -> Result<(Option<u64>, Prepared)> {
    let unit = u64::from(arguments.block_size.unwrap_or(1024));
    let size = match &arguments.size {
        Some(text) => Some(crate::size::volume(text, unit).map_err(usage)?),
        None => None,
    };
    let size = within_partition(arguments, size)?;
    let target =
        Target { image: &arguments.image, offset: offset(arguments)?, size, force: arguments.force, kind };
    let prepared = target.prepare()?;
    if let (false, Some(size), Some(block_size)) = (prepared.is_new(), size, options.block_size) {
        options.blocks = Some(size / u64::from(block_size));
    }
    Ok((size, prepared))
}

/// What was done to the image before anything was made in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prepared {
    /// It was there, and long enough.
    Nothing,
    /// It was made.
    Created,
    /// It was this short, in bytes.
    Grown(u64),
}

impl Prepared {
    /// Whether the image reads as zeros.
    fn is_new(self) -> bool {
        self == Self::Created
    }

    /// Takes it back when nothing came of the rest.
    fn undo(self, image: &Path) {
        // The reason why nothing came of it is what the user must hear, not that this failed as well.
        let _ = match self {
            Self::Nothing => Ok(()),
            Self::Created => std::fs::remove_file(image),
            Self::Grown(len) => {
                std::fs::OpenOptions::new().write(true).open(image).and_then(|file| file.set_len(len))
            }
        };
    }
}

/// What the format cannot be is wrong usage: it was asked for.
fn blame(error: Error) -> anyhow::Error {
    match error {
        Error::Unsupported(_) => usage(error),
        other => other.into(),
    }
}

/// The size of a volume in a partition: all of it, or what was asked for if it has that.
fn within_partition(arguments: &Ext2, size: Option<u64>) -> Result<Option<u64>> {
    let Some(number) = arguments.partition else { return Ok(size) };
    let len = open::partition(&arguments.image, number)?.len;
    match size {
        Some(size) if size > len => {
            let (asked, has) = (crate::size::show(size), crate::size::show(len));
            bail!("a volume of {asked} in partition {number}, which has {has}")
        }
        Some(size) => Ok(Some(size)),
        None => Ok(Some(len)),
    }
}

/// Where something is to be made.
struct Target<'a> {
    image: &'a Path,
    /// Where it starts, in bytes.
    offset: u64,
    /// Its size in bytes, if one was given.
    size: Option<u64>,
    /// Whatever is there may be overwritten.
    force: bool,
    /// What is to be made, as the command says it.
    kind: &'a str,
}

impl Target<'_> {
    /// Creates the image, or makes sure that an existing one holds nothing of value and is long enough.
    fn prepare(&self) -> Result<Prepared> {
        let image = self.image.display();
        if self.image.symlink_metadata().is_err() {
            let Some(size) = self.size else {
                let kind = self.kind;
                bail!(
                    "{image} does not exist: give a size to create it, such as `fstitch mkfs {kind} {image} 64M`"
                );
            };
            let total = size.checked_add(self.offset).context("offset and size are too large together")?;
            FileDisk::create(self.image, total)
                .with_context(|| format!("an image of {}", crate::size::show(total)))?;
            return Ok(Prepared::Created);
        }
        if !self.force
            && let Some(found) = crate::probe::holds(self.image, self.offset)?
        {
            bail!("{image} seems to hold {found}: nothing was written; add --force to overwrite it");
        }
        grow_file(self.image, self.size, self.offset)
    }
}

/// Extends an existing image file that is shorter than the size asked for.
fn grow_file(image: &Path, size: Option<u64>, offset: u64) -> Result<Prepared> {
    let meta = std::fs::metadata(image)?;
    let Some(size) = size else {
        return Ok(Prepared::Nothing);
    };
    let end = size.checked_add(offset).context("offset and size are too large together")?;
    if meta.is_file() && meta.len() < end {
        let file = std::fs::OpenOptions::new().write(true).open(image);
        let file = file.with_context(|| format!("growing {}", image.display()))?;
        file.set_len(end).with_context(|| format!("growing {}", image.display()))?;
        return Ok(Prepared::Grown(meta.len()));
    }
    Ok(Prepared::Nothing)
}

/// Makes the volume, of `size` bytes if that is given, with its journal on `device` if there is one.
fn write(
    arguments: &Ext2,
    options: &MkfsOptions,
    (size, device): (Option<u64>, Option<device::Opened>),
) -> Result<MkfsSummary> {
    let disk = DiskOptions {
        block_size: options.block_size.unwrap_or(1024),
        offset: offset(arguments)?,
        size,
        ..DiskOptions::default()
    };
    let disk = open::disk(&arguments.image, &disk)?;
    let context = || format!("making a volume on {}", arguments.image.display());
    let display = spinner(arguments.quiet || arguments.json);
    let summary = mkfs(&disk, options, &mut |done, of| {
        display.set_message(format!("group {done} of {of}"));
        display.tick();
    });
    display.finish_and_clear();
    let mut summary = summary.map_err(blame).with_context(context)?;
    if let Some(journal) = device {
        summary.journal_blocks = Some(journal.give_to(&disk).with_context(context)?);
    }
    Ok(summary)
}

fn report(arguments: &Ext2, options: &MkfsOptions, summary: &MkfsSummary) -> Result<Outcome> {
    let uuid = show_uuid(&options.uuid);
    if arguments.json {
        json(&Made {
            image: arguments.image.display().to_string(),
            block_size_bytes: summary.block_size,
            blocks: summary.blocks,
            groups: summary.groups,
            inodes: summary.inodes,
            inode_size_bytes: summary.inode_size,
            free_blocks: summary.free_blocks,
            reserved_blocks: summary.reserved_blocks,
            journal_blocks: summary.journal_blocks,
            uuid,
            superblock_backups: summary.backups.iter().map(|block| block.get()).collect(),
        })?;
    } else if !arguments.quiet {
        let bytes = summary.blocks * u64::from(summary.block_size);
        println!(
            "{}: {}, {} in {} blocks of {} bytes, {} inodes, UUID {uuid}",
            arguments.image.display(),
            if summary.journal_blocks.is_some() { "ext3" } else { "ext2" },
            crate::size::show(bytes),
            summary.blocks,
            summary.block_size,
            summary.inodes
        );
    }
    Ok(Outcome::SUCCESS)
}

/// The UUID that was asked for.
fn uuid(asked: Option<&str>) -> Result<[u8; 16]> {
    match asked {
        None | Some("random" | "time") => random_uuid(),
        Some(text) => parse_uuid(text).ok_or_else(|| usage(format!("`-U {text}`: that is not a UUID"))),
    }
}

/// A UUID as `-U` of `tune` takes it.
pub fn new_uuid(text: &str) -> Result<[u8; 16], String> {
    match text {
        "clear" => Ok([0; 16]),
        "random" | "time" => random_uuid().map_err(|error| error.to_string()),
        _ => parse_uuid(text).ok_or_else(|| format!("`{text}` is no UUID: write one, random or clear")),
    }
}

/// A version 4 UUID out of the kernel's randomness.
fn random_uuid() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let mut source = std::fs::File::open("/dev/urandom").context("opening /dev/urandom")?;
    source.read_exact(&mut bytes)?;
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    ensure!(bytes != [0; 16], "the kernel's randomness is broken");
    Ok(bytes)
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let dashes = text.char_indices().filter(|(_, c)| *c == '-').map(|(at, _)| at);
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let lawful = dashes.eq([8, 13, 18, 23]) && digits.len() == 32 && digits.is_ascii();
    let mut bytes = [0; 16];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(at * 2..at * 2 + 2)?, 16).ok()?;
    }
    lawful.then_some(bytes)
}

/// A UUID as people write it.
pub fn show_uuid(uuid: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in uuid.iter().enumerate() {
        if [4, 6, 8, 10].contains(&at) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_survive_writing_and_reading() {
        let text = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
        assert_eq!(show_uuid(&parse_uuid(text).unwrap()), text);
        assert_eq!(parse_uuid("6ba7b8109dad-11d1-80b4-00c04fd430c8"), None);
        assert_eq!(parse_uuid("6ba7b810-9dad-11d1-80b4-00c04fd430cg"), None);
        assert_eq!(parse_uuid(""), None);
        assert_ne!(random_uuid().unwrap(), random_uuid().unwrap());
    }
}
