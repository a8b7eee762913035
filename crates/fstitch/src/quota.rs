//! `fstitch quota`: what users, groups and projects have on a volume, and may have.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use fstitch_formats::resize::{Account, Limits, Quotas};
use serde_json::{Map, Value};

use crate::open::{self, Access};
use crate::output::{Outcome, json, text};

/// Arguments of `quota`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Set the limits of this one, all of them: those that are not given are none
    #[arg(long, value_name = "KIND:ID", value_parser = who)]
    set: Option<(&'static str, u32)>,
    /// With --set: storage that may be passed for some time, and that is never passed; 0 for any
    #[arg(long, value_name = "SOFT:HARD", value_parser = sizes, requires = "set")]
    space: Option<(u64, u64)>,
    /// With --set: the same for inodes
    #[arg(long, value_name = "SOFT:HARD", value_parser = numbers, requires = "set")]
    inodes: Option<(u64, u64)>,
    #[command(flatten)]
    volume: open::Arguments,
    /// The image file or block device, which nobody has mounted
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
}

/// Somebody, as `user:1000`.
fn who(text: &str) -> Result<(&'static str, u32), String> {
    let wanted = || format!("`{text}`: user:ID, group:ID or project:ID");
    let (kind, id) = text.split_once(':').ok_or_else(wanted)?;
    let kind = ["user", "group", "project"].into_iter().find(|known| *known == kind).ok_or_else(wanted)?;
    Ok((kind, id.parse().map_err(|_| wanted())?))
}

fn pair(text: &str, each: impl Fn(&str) -> Result<u64, String>) -> Result<(u64, u64), String> {
    let (soft, hard) = text.split_once(':').ok_or_else(|| format!("`{text}`: SOFT:HARD"))?;
    let (soft, hard) = (each(soft)?, each(hard)?);
    if hard != 0 && soft > hard {
        return Err(format!("`{text}`: the soft limit is above the hard one"));
    }
    Ok((soft, hard))
}

/// Two sizes in KiB.
fn sizes(text: &str) -> Result<(u64, u64), String> {
    pair(text, |size| crate::size::bytes(size).map(|bytes| bytes.div_ceil(1024)))
}

fn numbers(text: &str) -> Result<(u64, u64), String> {
    pair(text, |number| number.parse().map_err(|_| format!("`{number}` is no number")))
}

/// Runs `quota`. A volume whose limits are set is recovered first, if it was not unmounted.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let name = arguments.image.display().to_string();
    let access = if arguments.set.is_some() { Access::ReadWrite } else { Access::ReadOnly };
    let opened = arguments.volume.open_kept(&arguments.image, access)?;
    let (disk, format) = (&*opened.device, opened.format);
    let counts = format.counts_usage();
    let counts = counts.with_context(|| format!("{name}: {} volumes count no usage", format.names()[0]))?;
    if let Some(who) = arguments.set {
        crate::recovery::recover(format, disk, arguments.volume.journal.as_deref())
            .with_context(|| name.clone())?;
        let (space, inodes) = (arguments.space.unwrap_or_default(), arguments.inodes.unwrap_or_default());
        let limits = Limits { space, inodes };
        counts.set_limits(disk, who, limits, crate::epoch::now()?).with_context(|| name.clone())?;
    }
    ensure!(!format.needs_recovery(disk)?, "{name}: the volume must be recovered first: `fstitch fsck -p`");
    let mut quotas = counts.quotas(disk).with_context(|| name.clone())?;
    ensure!(!quotas.is_empty(), "{name}: nothing is counted on this volume (no feature quota)");
    if let Some((kind, id)) = arguments.set {
        quotas.retain(|quotas| quotas.kind == kind);
        quotas.iter_mut().for_each(|quotas| quotas.accounts.retain(|account| account.id == id));
    }
    if arguments.json {
        let quotas = serde_json::to_value(&quotas)?;
        json(&Map::from_iter([("image".to_owned(), Value::from(name)), ("quotas".to_owned(), quotas)]))?;
    } else {
        text(&lines(&quotas)?)?;
    }
    opened.close()?;
    Ok(Outcome::SUCCESS)
}

fn lines(quotas: &[Quotas]) -> Result<String> {
    let mut shown = String::new();
    for Quotas { kind, accounts, .. } in quotas {
        let words = ["space KiB", "soft", "hard", "inodes", "soft", "hard"];
        writeln!(
            shown,
            "{kind:>12} {:>14} {:>12} {:>12} {:>10} {:>10} {:>10}",
            words[0], words[1], words[2], words[3], words[4], words[5]
        )?;
        for account in accounts {
            let Account { id, inodes, inodes_soft, inodes_hard, space_soft_kib, space_hard_kib, .. } =
                account;
            let space = account.space_bytes.div_ceil(1024);
            let over = |until: u64| if until == 0 { "" } else { "+" };
            writeln!(
                shown,
                "{id:>12} {space:>13}{:1} {space_soft_kib:>12} {space_hard_kib:>12} {inodes:>9}{:1} {inodes_soft:>10} {inodes_hard:>10}",
                over(account.space_until),
                over(account.inodes_until),
            )?;
        }
    }
    Ok(shown)
}
