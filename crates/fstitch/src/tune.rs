//! `fstitch tune`: what can be changed of a volume that is not mounted.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use fstitch_core::BlockDevice;
use fstitch_formats::resize::{OnError, Reserve, Tuning};
use fstitch_formats::{Format, Identity};

use crate::claim::Claimed;
use crate::mkfs::device::Opened;
use crate::open::{self, Access};
use crate::output::{Outcome, text};
use crate::shepherd::adopt::{Wanted, abandon, adopt, are_damaged, give_up};

/// Arguments of `tune`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    change: Change,
    /// With --policy: blocks for copies and for what is moved, instead of what suits the volume
    #[arg(long, value_name = "BLOCKS", requires = "policy")]
    spares: Option<u64>,
    /// Where the volume starts in the image, in bytes
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = crate::size::bytes)]
    offset: u64,
    /// The partition of a whole disk that the volume is in, by its number in the table (MBR or GPT)
    #[arg(long, value_name = "N", conflicts_with = "offset")]
    partition: Option<u32>,
    /// The image file or block device
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
}

/// What is to be changed.
#[derive(clap::Args)]
#[group(required = true, multiple = true)]
struct Change {
    /// Add a journal, of so many bytes if a size is given: the volume becomes ext3
    #[arg(short = 'j', long = "journal", value_name = "BYTES", num_args = 0..=1, require_equals = true, value_parser = journal_bytes, conflicts_with_all = ["journal_device", "no_journal"])]
    add_journal: Option<Option<u64>>,
    /// Have the journal on this device or image, which `fstitch mkfs journal` has made. With --no-journal: where the
    /// journal is that is taken away, so that another volume can have it
    #[arg(long, value_name = "PATH")]
    journal_device: Option<PathBuf>,
    /// Take the journal away: the volume becomes ext2
    #[arg(long)]
    no_journal: bool,
    /// Label, in ext2 to ext4 at most 16 bytes; an empty one takes it away
    #[arg(short = 'L', long)]
    label: Option<String>,
    /// UUID, `random`, or `clear` for none
    #[arg(short = 'U', long, value_parser = crate::mkfs::new_uuid)]
    uuid: Option<[u8; 16]>,
    /// Features to add and, with a caret, to take away: `metadata_csum,^quota`; of UFS `softdep`, `acls` and `ckhash`. One that what is on the volume cannot get or needs is refused. `metadata_csum`, `uninit_bg`, `quota` and `project` change more than the superblock: if that is cut short, the same command again, or a check that mends, finishes it
    #[arg(short = 'O', long = "features", value_name = "LIST")]
    features: Option<String>,
    /// Percentage of the blocks that is kept for the superuser, at most 50
    #[arg(short = 'm', long = "reserved-percent", value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=50), conflicts_with = "reserved")]
    reserved_percent: Option<u8>,
    /// Blocks that are kept for the superuser
    #[arg(short = 'r', long = "reserved", value_name = "BLOCKS")]
    reserved: Option<u64>,
    /// What a kernel does when it meets damage
    #[arg(short = 'e', long = "errors", value_name = "WHAT", value_parser = on_error)]
    errors: Option<OnError>,
    /// Mounts until a check is due; 0 for never
    #[arg(short = 'c', long = "max-mounts", value_name = "COUNT", value_parser = clap::value_parser!(u16).range(0..=32767))]
    max_mounts: Option<u16>,
    /// Time until a check is due: days, or with `d`, `w` or `m` days, weeks or months; 0 for never
    #[arg(short = 'i', long = "interval", value_name = "TIME", value_parser = interval)]
    interval: Option<u32>,
    /// What is done when the disk fails: the name of a policy that comes with the program (`fstitch policy list`), a file, or
    /// `none`
    #[arg(long, value_name = "NAME|FILE|none")]
    policy: Option<String>,
    /// Have a volume that other machines reach (feature `mmp`) say that nobody uses it, after a crash of the program that checked it. It is
    /// refused while somebody does, as far as that can be seen: a checker that waits for an answer does not tell of itself
    #[arg(long)]
    clear_mmp: bool,
}

/// The least that a journal can have, in bytes, of blocks of whatever size.
const JOURNAL_MIN: u64 = 1024 * 1024;

fn journal_bytes(text: &str) -> Result<u64, String> {
    match crate::size::bytes(text)? {
        bytes if bytes < JOURNAL_MIN => Err("a journal has at least 1024 blocks: 1M or more".to_owned()),
        bytes => Ok(bytes),
    }
}

/// What `-e` knows, as tune2fs does.
fn on_error(text: &str) -> Result<OnError, String> {
    match text {
        "continue" => Ok(OnError::Continue),
        "remount-ro" => Ok(OnError::RemountReadOnly),
        "panic" => Ok(OnError::Panic),
        _ => Err("`continue`, `remount-ro` and `panic` are possible".to_owned()),
    }
}

/// Seconds of a time as tune2fs reads it.
fn interval(text: &str) -> Result<u32, String> {
    const DAY: u32 = 24 * 60 * 60;
    let (number, unit) = match text.char_indices().find(|(_, letter)| !letter.is_ascii_digit()) {
        Some((at, _)) => text.split_at(at),
        None => (text, "d"),
    };
    let seconds = match unit {
        "d" => DAY,
        "w" => 7 * DAY,
        "m" => 30 * DAY,
        _ => return Err(format!("`{unit}` is no unit: d, w and m are")),
    };
    let number: u32 = number.parse().map_err(|_| format!("`{text}` does not start with a number"))?;
    number.checked_mul(seconds).ok_or_else(|| format!("{text} is too long"))
}

impl Change {
    /// The settings that change, if any does.
    fn tuning(&self) -> Option<Tuning> {
        let percent = self.reserved_percent.map(Reserve::Percent);
        let tuning = Tuning {
            features: self.features.clone(),
            reserve: percent.or(self.reserved.map(Reserve::Blocks)),
            on_error: self.errors,
            mounts_max: self.max_mounts,
            interval: self.interval,
        };
        (tuning != Tuning::default()).then_some(tuning)
    }
}

/// Features by which a volume becomes one that follows no policy.
const NOT_WITH_A_POLICY: [&str; 4] = ["metadata_csum", "uninit_bg", "quota", "project"];

/// Fails if such features are to change of a volume that follows a policy, by which its blocks are moved and copied.
fn refuse_kept(change: &Change, kept: bool) -> Result<()> {
    let words = change.features.iter().flat_map(|list| list.split(','));
    let mut names = words.map(|word| word.trim().trim_start_matches(['^', '-', '+']));
    if kept && let Some(name) = names.find(|name| NOT_WITH_A_POLICY.contains(name)) {
        bail!(
            "changing feature {name} of a volume that follows a policy: `fstitch tune --policy none` before"
        );
    }
    Ok(())
}

const OF_AN_ARRAY: &str = "the policy of a volume on several disks is the one that it was made with, which says how much of each is for copies; \
    `fstitch mkfs --policy` makes another volume";

fn refuse_array(arguments: &Arguments) -> Result<()> {
    if arguments.change.policy.is_some() && crate::disks::is_several(&arguments.image) {
        bail!("{}: {OF_AN_ARRAY}", arguments.image.display());
    }
    Ok(())
}

/// Runs `tune`. A volume that was not unmounted is recovered first.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let volume = open::Arguments {
        offset: arguments.offset,
        cache_size: 0,
        partition: arguments.partition,
        journal: None,
    };
    let name = || format!("{}", arguments.image.display());
    refuse_array(arguments)?;
    let policy = match arguments.change.policy.as_deref() {
        None | Some("none") => None,
        Some(policy) => Some(Wanted::read(policy, arguments.spares, 1)?),
    };
    if arguments.change.clear_mmp {
        clear_mmp(&volume, &arguments.image)?;
    }
    let opened = match volume.open_kept(&arguments.image, Access::ReadWrite) {
        Err(error) if arguments.change.policy.as_deref() == Some("none") && are_damaged(&error) => {
            return without_maps(&volume, arguments, &error);
        }
        opened => opened?,
    };
    let (disk, format) = (&*opened.device, opened.format);
    refuse_kept(&arguments.change, opened.kept.is_some()).with_context(name)?;
    let journals = || {
        let journals = format.journals();
        journals.with_context(|| format!("{}: {} volumes have no journals", name(), format.names()[0]))
    };
    let Change { add_journal, no_journal, journal_device, policy: wanted, .. } = &arguments.change;
    let in_use = journal_device.as_deref().filter(|_| *no_journal);
    if let Some(report) = crate::recovery::recover(format, disk, in_use).with_context(name)? {
        text(&format!("{}: {}\n", name(), report.describe()))?;
    }
    if let Some(bytes) = *add_journal {
        let block_size = disk.geometry().block_size;
        let blocks = crate::journal::blocks_of(bytes, block_size)?;
        let blocks = journals()?.add(disk, blocks, crate::epoch::now()?).with_context(name)?;
        let size = crate::size::show(u64::from(blocks) * u64::from(block_size));
        text(&format!("{}: a journal of {size} was added\n", name()))?;
    }
    let device = journal_device.as_deref().map(Opened::new).transpose()?;
    if *no_journal {
        let journals = journals()?;
        let user = journals.uuid(disk).with_context(name)?;
        device.as_ref().map_or(Ok(()), |device| device.require_user(&user))?;
        journals.remove(disk).with_context(name)?;
        device.map_or(Ok(()), |device| device.take_from(&user))?;
        text(&format!("{}: the volume has no journal now\n", name()))?;
    } else if let Some(device) = device {
        device.give_to(journals()?, disk).with_context(name)?;
        text(&format!("{}: its journal is on {} now\n", name(), device.path().display()))?;
    }
    // After the journal was taken away, which may have known the volume by its UUID.
    settle(&arguments.change, disk, format, &name())?;
    let raw = opened.raw();
    opened.close()?;
    if wanted.is_some() {
        text(&format!(
            "{}: {}\n",
            name(),
            follow(&raw, format, &name(), policy.as_ref()).with_context(name)?
        ))?;
    }
    Ok(Outcome::SUCCESS)
}

/// Has a volume say that nobody uses it, when that is so.
fn clear_mmp(volume: &open::Arguments, image: &Path) -> Result<()> {
    let (disk, found) = volume.open_disk(image, Access::ReadWrite)?;
    let shares = found.format.shares().filter(|_| found.is_shared);
    let name = image.display();
    let shares = shares.with_context(|| format!("{name}: it does not say who uses it (no feature mmp)"))?;
    Claimed::after_check(Arc::new(disk), shares, image)
        .and_then(Claimed::release)
        .with_context(|| format!("{name}"))?;
    text(&format!("{name}: nobody uses it now\n"))
}

/// Changes the settings and the names of a volume.
fn settle(change: &Change, disk: &dyn BlockDevice, format: &dyn Format, name: &str) -> Result<()> {
    let named = || name.to_owned();
    if let Some(tuning) = change.tuning() {
        let tunes = format.tunes();
        let tunes =
            tunes.with_context(|| format!("{name}: {} volumes have no settings", format.names()[0]))?;
        tunes.tune(disk, &tuning, crate::epoch::now()?).with_context(named)?;
        text(&format!("{name}: its settings are changed\n"))?;
    }
    let Change { label, uuid, .. } = change;
    if label.is_some() || uuid.is_some() {
        let identity = Identity { label: label.clone().map(String::into_bytes), uuid: *uuid };
        format.identify(disk, &identity).with_context(named)?;
    }
    if let Some(label) = label {
        text(&format!("{name}: its label is `{label}` now\n"))?;
    }
    if let Some(uuid) = uuid {
        text(&format!("{name}: its UUID is {} now\n", crate::mkfs::show_uuid(uuid)))?;
    }
    Ok(())
}

/// Has a volume follow a policy, or none. What is to be said.
fn follow(
    raw: &Arc<dyn BlockDevice>,
    format: &dyn Format,
    name: &str,
    policy: Option<&Wanted>,
) -> Result<String> {
    match policy {
        Some(policy) => adopt(raw, format, name, policy),
        None if abandon(raw, format, name)? => Ok("it follows no policy now".to_owned()),
        None => Ok("it followed no policy".to_owned()),
    }
}

/// Takes a policy away whose maps cannot be used.
fn without_maps(volume: &open::Arguments, arguments: &Arguments, why: &anyhow::Error) -> Result<Outcome> {
    let (disk, found) = volume.open_disk(&arguments.image, Access::ReadWrite)?;
    let disk: Arc<dyn BlockDevice> = Arc::new(disk);
    let said = give_up(&disk, found.format).with_context(|| crate::output::reasons(why))?;
    text(&format!("{}: {said}\n", arguments.image.display()))?;
    Ok(Outcome::SUCCESS)
}
