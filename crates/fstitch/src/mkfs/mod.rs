//! `fstitch mkfs`: makes volumes, and journals on devices of their own.

mod array;
pub mod device;
mod fill;
mod journal;
mod stripe;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::builder::TypedValueParser;
use clap::{Arg, ArgAction, ArgMatches, Args as _, Command};
use fstitch_core::Error;
use fstitch_disk::{DiskOptions, FileDisk, STRIPE_UNITS};
use fstitch_formats::make::{self, Asked, Fresh, Made, Making, Word, WordKind};
use fstitch_formats::show::parse_uuid;
use fstitch_formats::{FORMATS, Format};
use serde_json::{Map, Value};

pub use fstitch_formats::show::uuid as show_uuid;

use crate::open::{self, Access};
use crate::output::{Outcome, json, spinner, text, usage};
use crate::shepherd::adopt;

/// Arguments of `mkfs`: what is to be made.
pub enum Arguments {
    /// A volume.
    Volume(Box<Wanted>),
    /// A journal on a device of its own.
    Journal(journal::Arguments),
}

/// The volume that is wanted.
pub struct Wanted {
    format: &'static dyn Format,
    kind: &'static str,
    common: Common,
    /// The values of the format's own words.
    words: BTreeMap<&'static str, Vec<String>>,
}

/// What can be said of every volume.
#[derive(clap::Args)]
struct Common {
    /// Bytes per block; what suits the volume by default
    #[arg(short = 'b', long, value_name = "BYTES")]
    block_size: Option<u32>,
    /// Label, at most 16 bytes in most formats
    #[arg(short = 'L', long)]
    label: Option<String>,
    /// UUID, `random` or `time`; random by default
    #[arg(short = 'U', long)]
    uuid: Option<String>,
    /// Extended options: root_owner[=UID:GID] (the owner of the root directory; without a value, and by default, the user
    /// who makes the volume), offset=BYTES
    #[arg(short = 'E', long, value_name = "LIST")]
    extended: Vec<String>,
    /// A journal: size=BYTES, in MiB without a unit; what suits the volume by default. Or device=PATH, that of
    /// `mkfs journal`
    #[arg(short = 'J', long, value_name = "size=BYTES|device=PATH", value_parser = asked_journal)]
    journal: Option<AskedJournal>,
    /// Overwrite what the medium seems to hold
    #[arg(short = 'F', long)]
    force: bool,
    /// Fill the volume with what is in this directory or tar archive, `-` for an archive on standard input
    #[arg(short = 'd', long = "from", value_name = "DIRECTORY|TAR")]
    source: Option<PathBuf>,
    /// What is done when the disk fails: the name of a policy that comes with the program (`fstitch policy list`), or a file
    #[arg(long, value_name = "NAME|FILE")]
    policy: Option<String>,
    /// The volume goes around several disks in units of this size: it is as fast as all of them, and lost when one of them is
    #[arg(
        long,
        value_name = "UNIT",
        num_args = 0..=1,
        default_missing_value = "64K",
        require_equals = true,
        conflicts_with = "policy",
        value_parser = stripe_unit
    )]
    stripe: Option<u32>,
    /// With --policy: blocks for copies and for what is moved, instead of what suits the volume
    #[arg(long, value_name = "BLOCKS", requires = "policy")]
    spares: Option<u64>,
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
    /// The image file or block device; a file is created if a size is given. Several disks, with commas between them, are one volume: with
    /// --policy or --stripe
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Size of the volume, or of each of several disks, such as 64M or 2G; without a unit it counts blocks, with `s` sectors of 512 bytes
    #[arg(value_name = "SIZE")]
    size: Option<String>,
}

/// The command that makes journals.
const JOURNAL: &str = "journal";

/// The command that makes volumes of this kind.
fn command(format: &'static dyn Format, kind: &'static str) -> Command {
    let mut command = Common::augment_args(Command::new(kind)).about(format.about(kind));
    if format.journals().is_none() {
        command = command.mut_arg("journal", |arg| arg.hide(true));
    }
    if !format.extended_words().is_empty() {
        command = command.mut_arg("extended", |arg| {
            let common = arg.get_help().map(ToString::to_string).unwrap_or_default();
            arg.help(format!("{common}, {}", format.extended_words()))
        });
    }
    if let Some(about) = format.uuid_about() {
        command = command.mut_arg("uuid", |arg| arg.help(about));
    }
    command.args(format.words().iter().map(argument))
}

fn argument(word: &Word) -> Arg {
    let arg = Arg::new(word.name).short(word.letter).long(word.name).value_name(word.value).help(word.about);
    match word.kind {
        WordKind::List => arg.action(ArgAction::Append),
        WordKind::OneOf(words, default) => arg.value_parser(words.to_vec()).default_value(default),
        WordKind::Flag => arg.action(ArgAction::SetTrue),
        WordKind::Number(first, last, default) => {
            let numbers = clap::value_parser!(u64).range(first..=last);
            let arg = arg.value_parser(numbers.map(|number| number.to_string()));
            match default {
                Some(number) => arg.default_value(number),
                None => arg,
            }
        }
    }
}

impl clap::Args for Arguments {
    fn augment_args(command: Command) -> Command {
        let kinds = FORMATS
            .iter()
            .flat_map(|&format| format.makes().iter().map(move |&kind| self::command(format, kind)));
        let journal = Command::new(JOURNAL).about("Make a journal that has a device or an image for itself");
        let journal = journal::Arguments::augment_args(journal);
        command.subcommand_required(true).arg_required_else_help(true).subcommands(kinds).subcommand(journal)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for Arguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let missing = || clap::Error::new(clap::error::ErrorKind::MissingSubcommand);
        let (name, matches) = matches.subcommand().ok_or_else(missing)?;
        if name == JOURNAL {
            return journal::Arguments::from_arg_matches(matches).map(Self::Journal);
        }
        let format = fstitch_formats::by_name(name).ok_or_else(missing)?;
        let kind = format.makes().iter().copied().find(|kind| *kind == name).ok_or_else(missing)?;
        let values = |word: &Word| {
            let values = match word.kind {
                WordKind::Flag if matches.get_flag(word.name) => vec!["yes".to_owned()],
                WordKind::Flag => Vec::new(),
                _ => matches.get_many::<String>(word.name).unwrap_or_default().cloned().collect(),
            };
            (word.name, values)
        };
        let words = format.words().iter().map(values).collect();
        let common = Common::from_arg_matches(matches)?;
        Ok(Self::Volume(Box::new(Wanted { format, kind, common, words })))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Runs `mkfs`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    match arguments {
        Arguments::Volume(wanted) => make(wanted),
        Arguments::Journal(arguments) => journal::run(arguments),
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

/// Bytes of a stripe's unit.
fn stripe_unit(text: &str) -> Result<u32, String> {
    let [least, _, most] = STRIPE_UNITS;
    match u32::try_from(crate::size::bytes(text)?) {
        Ok(unit) if unit.is_power_of_two() && (least..=most).contains(&unit) => Ok(unit),
        _ => Err("a power of two from 4K to 64M is possible".to_owned()),
    }
}

fn asked_block_size(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(bytes @ 1024..=65536) if u32::is_power_of_two(bytes) => Ok(bytes),
        _ => Err("a power of two from 1024 to 65536 is possible".to_owned()),
    }
}

/// Makes a volume, with the journal that was asked for, else with what goes with its kind.
fn make(wanted: &Wanted) -> Result<Outcome> {
    let common = &wanted.common;
    match (crate::disks::is_several(&common.image), common.stripe) {
        (true, Some(unit)) => return stripe::make(wanted, unit),
        (true, None) => return array::make(wanted),
        (false, Some(_)) => {
            let image = common.image.display();
            return Err(usage(format!("{image}: a stripe has several disks, with commas between them")));
        }
        (false, None) => {}
    }
    let mut asked = asked(wanted)?;
    let device = match &common.journal {
        None | Some(AskedJournal::Bytes(_)) => None,
        Some(AskedJournal::Device(path)) => Some(device::for_new_volume(path, &mut asked.block_size)?),
    };
    let policy =
        common.policy.as_deref().map(|policy| adopt::Wanted::read(policy, common.spares, 1)).transpose()?;
    if policy.is_some() && wanted.format.keeps_maps().is_none() {
        return Err(usage(format!("{} volumes cannot follow a policy", wanted.kind)));
    }
    let plan = wanted.format.plan(&asked).map_err(blame)?;
    let (size, prepared) = prepare_image(common, plan.name())?;
    let made = write(wanted, &asked, &*plan, (size, prepared, device)).and_then(|mut made| {
        let failed = fill::fill(common, &mut made)?;
        let said = policy.as_ref().map(|policy| follow(common, policy)).transpose()?;
        Ok((made, failed, said))
    });
    let (made, failed, said) = made.inspect_err(|_| prepared.undo(&common.image))?;
    report(common, &asked, made)?;
    if let Some(said) = said.filter(|_| !common.quiet && !common.json) {
        text(&format!("{}: {said}\n", common.image.display()))?;
    }
    Ok(if failed == 0 { Outcome::SUCCESS } else { Outcome::FAILURE })
}

/// Has the volume that was just made follow a policy; what is to be said about it.
fn follow(common: &Common, policy: &adopt::Wanted) -> Result<String> {
    let volume = open::Arguments { offset: offset(common)?, partition: None, cache_size: 0, journal: None };
    let name = common.image.display().to_string();
    let opened = volume.open_kept(&common.image, Access::ReadWrite)?;
    adopt::adopt(&opened.raw(), opened.format, &name, policy).with_context(|| name.clone())
}

/// What is asked of the format.
fn asked(wanted: &Wanted) -> Result<Asked> {
    let common = &wanted.common;
    if common.journal.is_some() && wanted.format.journals().is_none() {
        return Err(usage(format!("{} volumes have no journals", wanted.kind)));
    }
    // What `root_owner` means without a value depends on who asks, of which the format knows nothing; where the volume
    // starts is not its business.
    let is_ours = |word: &&str| word.trim() == "root_owner" || word.starts_with("offset=");
    let theirs = |list: &String| list.split(',').filter(|word| !is_ours(word)).collect::<Vec<_>>().join(",");
    Ok(Asked {
        kind: wanted.kind,
        block_size: common.block_size,
        label: common.label.clone().unwrap_or_default().into_bytes(),
        uuid: uuid(common.uuid.as_deref())?,
        is_repeatable: !matches!(common.uuid.as_deref(), None | Some("random" | "time")),
        random: random_uuid()?,
        now: crate::epoch::now()?,
        root_owner: this_user(),
        journal: match &common.journal {
            None => make::AskedJournal::Usual,
            Some(AskedJournal::Bytes(bytes)) => make::AskedJournal::Bytes(*bytes),
            Some(AskedJournal::Device(_)) => make::AskedJournal::None,
        },
        extended: common.extended.iter().map(theirs).collect(),
        words: wanted.words.clone(),
    })
}

/// The owner of what this user makes.
fn this_user() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// The value of an extended option, as it was given last.
fn extended<'a>(common: &'a Common, name: &str) -> Option<&'a str> {
    let words = common.extended.iter().flat_map(|list| list.split(','));
    words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('=')).next_back()
}

/// Where the volume starts: `--offset`, mke2fs's way of saying it, or the start of its partition.
fn offset(common: &Common) -> Result<u64> {
    match (extended(common, "offset"), common.partition) {
        (Some(_), Some(_)) => Err(usage("`--partition` and `-E offset=` exclude each other")),
        (Some(value), None) => {
            crate::size::bytes(value).map_err(|text| usage(format!("{text}, in `-E offset={value}`")))
        }
        (None, Some(number)) => open::partition_start(&common.image, number),
        (None, None) => Ok(common.offset),
    }
}

/// Creates the image, or makes sure that an existing one holds nothing of value. Returns the volume's size in
/// bytes, if one was given, and what was done to the file.
fn prepare_image(common: &Common, kind: &str) -> Result<(Option<u64>, Prepared)> {
    let unit = u64::from(common.block_size.unwrap_or(1024));
    let size = match &common.size {
        Some(text) => Some(crate::size::volume(text, unit).map_err(usage)?),
        None => None,
    };
    let size = within_partition(common, size)?;
    let target = Target { image: &common.image, offset: offset(common)?, size, force: common.force, kind };
    Ok((size, target.prepare()?))
}

/// What was done to the image before anything was made in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prepared {
    /// It was there, and long enough.
    Nothing,
    /// The same, and it is a file without contents, one long hole.
    Empty,
    /// It was made.
    Created,
    /// It was this short, in bytes.
    Grown(u64),
}

impl Prepared {
    /// Whether the image reads as zeros.
    const fn is_new(self) -> bool {
        matches!(self, Self::Created | Self::Empty | Self::Grown(0))
    }

    /// Takes it back when nothing came of the rest.
    pub fn undo(self, image: &Path) {
        // The reason why nothing came of it is what the user must hear, not that this failed as well.
        let _ = match self {
            Self::Nothing | Self::Empty => Ok(()),
            Self::Created => std::fs::remove_file(image),
            Self::Grown(len) => {
                std::fs::OpenOptions::new().write(true).open(image).and_then(|file| file.set_len(len))
            }
        };
    }
}

/// What the format cannot be is wrong usage: it was asked for.
pub fn blame(error: Error) -> anyhow::Error {
    match error {
        Error::Unsupported(_) => usage(error),
        other => other.into(),
    }
}

/// The size of a volume in a partition: all of it, or what was asked for if it has that.
fn within_partition(common: &Common, size: Option<u64>) -> Result<Option<u64>> {
    let Some(number) = common.partition else { return Ok(size) };
    let len = open::partition(&common.image, number)?.len;
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
pub struct Target<'a> {
    pub image: &'a Path,
    /// Where it starts, in bytes.
    pub offset: u64,
    /// Its size in bytes, if one was given.
    pub size: Option<u64>,
    /// Whatever is there may be overwritten.
    pub force: bool,
    /// What is to be made, as the command says it.
    pub kind: &'a str,
}

impl Target<'_> {
    /// Creates the image, or makes sure that an existing one holds nothing of value and is long enough.
    pub fn prepare(&self) -> Result<Prepared> {
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
    if let Some(size) = size {
        let end = size.checked_add(offset).context("offset and size are too large together")?;
        if meta.is_file() && meta.len() < end {
            let file = std::fs::OpenOptions::new().write(true).open(image);
            let file = file.with_context(|| format!("growing {}", image.display()))?;
            file.set_len(end).with_context(|| format!("growing {}", image.display()))?;
            return Ok(Prepared::Grown(meta.len()));
        }
    }
    let is_empty = meta.is_file() && is_hole(image)?;
    Ok(if is_empty { Prepared::Empty } else { Prepared::Nothing })
}

/// Whether a file has no contents anywhere, as far as its file system tells.
fn is_hole(image: &Path) -> Result<bool> {
    let file = std::fs::File::open(image).with_context(|| image.display().to_string())?;
    Ok(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)) == Err(rustix::io::Errno::NXIO))
}

/// Makes the volume, of `size` bytes if that is given, with its journal on `journal` if there is one.
fn write(
    wanted: &Wanted,
    asked: &Asked,
    plan: &dyn Making,
    (size, prepared, journal): (Option<u64>, Prepared, Option<device::Opened>),
) -> Result<Made> {
    let common = &wanted.common;
    let disk = DiskOptions {
        block_size: plan.unit().or(asked.block_size).unwrap_or(1024),
        offset: offset(common)?,
        size,
        ..DiskOptions::default()
    };
    let disk = open::disk(&common.image, &disk)?;
    let context = || format!("making a volume on {}", common.image.display());
    let display = spinner(common.quiet || common.json);
    let fresh = Fresh { device: &disk, is_zero: prepared.is_new(), bytes: size };
    let made = plan.make(fresh, &mut |done, of| {
        display.set_message(format!("group {done} of {of}"));
        display.tick();
    });
    display.finish_and_clear();
    let mut made = made.map_err(blame).with_context(context)?;
    if let (Some(journal), Some(journals)) = (journal, wanted.format.journals()) {
        let blocks = journal.give_to(journals, &disk).with_context(context)?;
        made.values.insert("journal_blocks".to_owned(), blocks.into());
        let names = wanted.format.names();
        if names.first() == Some(&made.name) {
            made.name = names.get(1).copied().unwrap_or(made.name);
        }
    }
    Ok(made)
}

fn report(common: &Common, asked: &Asked, made: Made) -> Result<Outcome> {
    let image = common.image.display().to_string();
    if common.json {
        let mut shown = Map::from_iter([("image".to_owned(), Value::from(image))]);
        shown.extend(made.values);
        json(&shown)?;
    } else if !common.quiet {
        let bytes = made.blocks * u64::from(made.block_size);
        let inodes = made.inodes.map(|inodes| format!(", {inodes} inodes")).unwrap_or_default();
        let form = made.form.unwrap_or_else(|| format!("blocks of {} bytes", made.block_size));
        let identity = match made.values.get("identifier").and_then(Value::as_str) {
            Some(id) => format!("identifier {id}"),
            None => format!("UUID {}", show_uuid(&asked.uuid)),
        };
        println!(
            "{image}: {}, {} in {} {form}{inodes}, {identity}",
            made.name,
            crate::size::show(bytes),
            made.blocks
        );
    }
    Ok(Outcome::SUCCESS)
}

/// The UUID that was asked for.
pub fn uuid(asked: Option<&str>) -> Result<[u8; 16]> {
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
pub fn random_uuid() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let mut source = std::fs::File::open("/dev/urandom").context("opening /dev/urandom")?;
    source.read_exact(&mut bytes)?;
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    ensure!(bytes != [0; 16], "the kernel's randomness is broken");
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_differ() {
        assert_ne!(random_uuid().unwrap(), random_uuid().unwrap());
    }
}
