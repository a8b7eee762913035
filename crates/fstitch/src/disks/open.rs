//! Opening the disks of an array: each is locked, labels say which it is, and who is missing is named.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, anyhow, ensure};
use fstitch_core::lock::Unpoisoned;
use fstitch_core::{BlockDevice, Error};
use fstitch_disk::{Direct, DiskOptions};
use fstitch_shepherd::Array;
use fstitch_shepherd::disks::{DiskFaults, DiskState, Found, LABELS_LEN, Label, find};

use super::names::{MISSING, is_missing, names};
use crate::mkfs::show_uuid;
use crate::open::{Access, disk};

/// Files of a directory that are looked at for disks that were not named.
const LOOKED_AT_MAX: usize = 4096;

/// The disks of an array that is open.
pub struct Disks {
    array: Arc<Array>,
    /// By disk of the array, what it is called; none for one that was not named.
    names: Mutex<Vec<Option<PathBuf>>>,
    /// By disk of the array, what its predecessor had failed.
    predecessors: Mutex<BTreeMap<usize, DiskFaults>>,
    access: Access,
}

/// A disk that was named.
struct Given {
    name: PathBuf,
    /// What its label says; or why nothing can be read of it.
    label: Result<(usize, Label), String>,
}

impl Disks {
    /// The disks as one device.
    pub fn array(&self) -> &Arc<Array> {
        &self.array
    }

    /// Whether it may be changed.
    pub fn access(&self) -> Access {
        self.access
    }

    /// What a disk is called.
    pub fn name(&self, disk: usize) -> Option<PathBuf> {
        self.names.lock().unpoisoned().get(disk).cloned().flatten()
    }

    /// A disk for people: its number, and its name if it has one.
    pub fn show(&self, disk: usize) -> String {
        self.name(disk)
            .map_or_else(|| format!("disk {disk}"), |name| format!("disk {disk} ({})", name.display()))
    }

    /// All disks, as a command line would name them.
    pub fn list(&self) -> String {
        let name = |name: &Option<PathBuf>| {
            name.as_ref().map_or_else(|| MISSING.to_owned(), |name| name.display().to_string())
        };
        self.names.lock().unpoisoned().iter().map(name).collect::<Vec<_>>().join(",")
    }

    /// What a disk has failed since the volume was opened, its predecessors left out.
    pub fn faults(&self, disk: usize) -> DiskFaults {
        if disk >= self.array.disks() {
            return DiskFaults::default();
        }
        let before = self.predecessors.lock().unpoisoned().get(&disk).copied().unwrap_or_default();
        let DiskFaults { reads, writes, flushes } = self.array.faults(disk);
        DiskFaults {
            reads: reads - before.reads,
            writes: writes - before.writes,
            flushes: flushes - before.flushes,
        }
    }

    /// A disk is another one now.
    pub fn rename(&self, disk: usize, name: Option<PathBuf>) {
        if disk < self.array.disks() {
            self.predecessors.lock().unpoisoned().insert(disk, self.array.faults(disk));
        }
        let mut names = self.names.lock().unpoisoned();
        if disk >= names.len() {
            names.resize(disk + 1, None);
        }
        names[disk] = name;
    }

    /// A hot spare is not in the list any more; returns its name.
    pub fn take(&self, hot: usize) -> Option<PathBuf> {
        let mut names = self.names.lock().unpoisoned();
        if hot < names.len() { names.remove(hot) } else { None }
    }
}

/// Opens the disks that `image` names.
///
/// # Errors
/// When a disk that is needed was not named, is in use, may not be opened, or is none of the array's.
pub fn open(image: &Path, access: Access, direct: Direct) -> Result<Disks> {
    let given = look(image)?;
    let newest = newest(image, &given)?;
    refuse_incomplete(&given, &newest)?;
    let mut opened: Vec<Option<Arc<dyn BlockDevice>>> = Vec::new();
    let mut why: Vec<String> = Vec::new();
    for given in &given {
        let options = DiskOptions {
            block_size: newest.block_size,
            read_only: access == Access::ReadOnly,
            direct,
            ..DiskOptions::default()
        };
        let device = match &given.label {
            Ok(_) => attempt(disk(&given.name, &options))?,
            Err(reason) => Err(reason.clone()),
        };
        why.push(device.as_ref().err().cloned().unwrap_or_default());
        opened.push(device.ok().map(|disk| Arc::new(disk) as _));
    }
    let (array, found) =
        Array::open(&opened, access == Access::ReadOnly).with_context(|| image.display().to_string())?;
    drop(opened);
    let name = |place: &Option<usize>| place.map(|at| given[at].name.clone());
    let mut by_disk: Vec<Option<PathBuf>> = found.places.iter().map(name).collect();
    name_the_absent(&given, &newest, &found, &mut by_disk);
    let disks =
        Disks { array: Arc::new(array), names: Mutex::new(by_disk), predecessors: Mutex::default(), access };
    say(&disks, &given, &found, &why);
    Ok(disks)
}

/// What each disk says that was named.
fn look(image: &Path) -> Result<Vec<Given>> {
    let look = |name: PathBuf| {
        ensure!(!name.as_os_str().is_empty(), "{}: there is nothing between two commas", image.display());
        if is_missing(&name) {
            return Ok(Given { name, label: Err("as was said".to_owned()) });
        }
        let label = match attempt(fstitch_disk::probe(&name, 0, LABELS_LEN).map_err(Into::into))? {
            Ok(start) => Ok(find(&start).with_context(|| {
                format!(
                    "{} is no disk of an array; where one of the disks is lost, write `{MISSING}` in its place",
                    name.display()
                )
            })?),
            Err(reason) => Err(reason),
        };
        Ok(Given { name, label })
    };
    names(image).into_iter().map(look).collect()
}

/// What a disk that is not there, or that answers nothing, is called so for; anything else is an error.
fn attempt<T>(result: Result<T>) -> Result<Result<T, String>> {
    match result {
        Ok(done) => Ok(Ok(done)),
        Err(error) => match error.downcast_ref() {
            Some(Error::Io { source, .. }) if source.kind() != std::io::ErrorKind::PermissionDenied => {
                Ok(Err(crate::output::reasons(&error)))
            }
            _ => Err(error),
        },
    }
}

/// The newest label, if all are of one array.
fn newest(image: &Path, given: &[Given]) -> Result<Label> {
    let mut labels = given.iter().filter_map(|given| Some((&given.name, &given.label.as_ref().ok()?.1)));
    let (first, label) = labels.next().with_context(|| {
        let why: Vec<String> = given
            .iter()
            .filter_map(|given| Some(format!("{}: {}", given.name.display(), given.label.as_ref().err()?)))
            .collect();
        format!("{}: none of the disks can be read: {}", image.display(), why.join("; "))
    })?;
    labels.try_fold(label.clone(), |newest, (name, label)| {
        ensure!(
            label.uuid == newest.uuid,
            "{} belongs to the array {}, and {} to another one, {}",
            first.display(),
            show_uuid(&newest.uuid),
            name.display(),
            show_uuid(&label.uuid)
        );
        Ok(if label.generation > newest.generation { label.clone() } else { newest })
    })
}

/// The disks' own names that were given.
fn named(given: &[Given]) -> BTreeSet<[u8; 16]> {
    let uuid = |given: &Given| given.label.as_ref().ok().map(|(disk, label)| label.disks[*disk].uuid);
    given.iter().filter_map(uuid).collect()
}

/// A disk that was only forgotten is not put out: that costs a rebuild.
fn refuse_incomplete(given: &[Given], newest: &Label) -> Result<()> {
    let named = named(given);
    let is_needed = |state: DiskState| matches!(state, DiskState::Whole | DiskState::Rebuilding { .. });
    let lacking: Vec<usize> = (0..newest.disks.len())
        .filter(|disk| is_needed(newest.disks[*disk].state) && !named.contains(&newest.disks[*disk].uuid))
        .collect();
    let absent: Vec<&Given> = given.iter().filter(|given| given.label.is_err()).collect();
    let mut elsewhere = Vec::new();
    // A name that is there and answers nothing is a dead disk; one that is not there may be wrong.
    let is_said = |given: &&Given| is_missing(&given.name) || given.name.symlink_metadata().is_ok();
    let are_all_said = absent.iter().all(is_said);
    if lacking.len() > absent.len() || (!lacking.is_empty() && !are_all_said) {
        elsewhere = near(given, newest, &lacking);
    }
    if lacking.len() <= absent.len() && elsewhere.is_empty() {
        return Ok(());
    }
    Err(incomplete(given, newest, &lacking, &elsewhere))
}

/// Which of these disks are in the directories of those that were named: number and path.
fn near(given: &[Given], newest: &Label, lacking: &[usize]) -> Vec<(usize, PathBuf)> {
    let folder = |given: &Given| {
        given.name.parent().map(|folder| {
            if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder.to_path_buf() }
        })
    };
    let folders: BTreeSet<PathBuf> =
        given.iter().filter(|given| given.label.is_ok()).filter_map(folder).collect();
    let mut found = Vec::new();
    for folder in folders {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten().take(LOOKED_AT_MAX) {
            let is_medium =
                entry.metadata().is_ok_and(|meta| meta.is_file() || meta.file_type().is_block_device());
            let start = if is_medium { fstitch_disk::probe(entry.path(), 0, LABELS_LEN).ok() } else { None };
            let Some((disk, label)) = start.and_then(|start| find(&start)) else { continue };
            let uuid = label.disks[disk].uuid;
            if label.uuid == newest.uuid {
                let wanted = lacking.iter().find(|disk| newest.disks[**disk].uuid == uuid);
                let path = if folder == Path::new(".") { entry.file_name().into() } else { entry.path() };
                found.extend(wanted.map(|disk| (*disk, path)));
            }
        }
    }
    found.sort();
    found
}

/// What is said to who did not name all disks, and what to write.
fn incomplete(
    given: &[Given],
    newest: &Label,
    lacking: &[usize],
    elsewhere: &[(usize, PathBuf)],
) -> anyhow::Error {
    let disks = newest.disks.iter().filter(|disk| disk.state != DiskState::Hot).count();
    let mut shown: Vec<String> = given
        .iter()
        .filter(|given| given.label.is_ok())
        .map(|given| given.name.display().to_string())
        .collect();
    let first = shown.first().cloned().unwrap_or_default();
    for disk in lacking {
        let known = elsewhere.iter().find(|(other, _)| other == disk);
        shown.push(known.map_or_else(|| MISSING.to_owned(), |(_, path)| path.display().to_string()));
    }
    let is_found = lacking.iter().all(|disk| elsewhere.iter().any(|(other, _)| other == disk));
    let numbers: Vec<String> = lacking.iter().map(ToString::to_string).collect();
    let advice = if is_found {
        format!("the others are beside it: write `{}`", shown.join(","))
    } else {
        format!(
            "name them all with commas between them; with `{MISSING}` in place of a disk that is lost it is used without that: `{}`",
            shown.join(",")
        )
    };
    anyhow!(
        "{first} is a disk of an array of {disks} (UUID {}), of which disk{} not named: {advice}",
        show_uuid(&newest.uuid),
        if lacking.len() == 1 {
            format!(" {} is", numbers.join(""))
        } else {
            format!("s {} are", numbers.join(" and "))
        }
    )
}

/// Bytes of a block of a medium that is a disk of an array; `None` if it is none.
pub fn block_size_of(path: &Path) -> Option<u32> {
    let start = fstitch_disk::probe(path, 0, LABELS_LEN).ok()?;
    Some(find(&start)?.1.block_size)
}

/// What to say of one medium that is a disk of an array or a stripe, if it is: the others were not named.
pub fn alone(path: &Path) -> Option<anyhow::Error> {
    if let Some(error) = super::stripe::alone(path) {
        return Some(error);
    }
    let start = fstitch_disk::probe(path, 0, LABELS_LEN).ok()?;
    let (disk, label) = find(&start)?;
    let name = path.to_path_buf();
    let given = [Given { name, label: Ok((disk, label.clone())) }];
    let uuid = label.disks[disk].uuid;
    let lacking: Vec<usize> = (0..label.disks.len())
        .filter(|other| label.disks[*other].uuid != uuid && label.disks[*other].state != DiskState::Hot)
        .collect();
    Some(incomplete(&given, &label, &lacking, &near(&given, &label, &lacking)))
}

/// Names that could not be read stand for the disks that are lacking, where there is but one of each.
fn name_the_absent(given: &[Given], newest: &Label, found: &Found, by_disk: &mut [Option<PathBuf>]) {
    let absent: Vec<&Given> =
        given.iter().filter(|given| given.label.is_err() && !is_missing(&given.name)).collect();
    let lacking: Vec<usize> = (0..newest.disks.len()).filter(|disk| by_disk[*disk].is_none()).collect();
    debug_assert_eq!(found.places.len(), newest.disks.len());
    if let ([one], [disk]) = (&absent[..], &lacking[..]) {
        by_disk[*disk] = Some(one.name.clone());
    }
}

/// Tells who is missing, and what it means.
fn say(disks: &Disks, given: &[Given], found: &Found, why: &[String]) {
    let absent = given.iter().zip(why).filter(|(_, why)| !why.is_empty());
    let reasons: Vec<String> =
        absent.map(|(given, why)| format!("{}: {why}", given.name.display())).collect();
    for disk in &found.missing {
        if disks.array.label().disks[*disk].state == DiskState::Hot {
            continue;
        }
        tracing::warn!(
            "{}: {} is MISSING ({}): the volume is DEGRADED, and that disk counts no more; `fstitch disk replace` puts another in its place",
            disks.list(),
            disks.show(*disk),
            if reasons.is_empty() { "it was not named".to_owned() } else { reasons.join("; ") }
        );
    }
    for disk in found.degraded.iter().filter(|disk| !found.missing.contains(disk)) {
        let (state, all) = (disks.array.state(*disk), disks.array.volume());
        match state {
            DiskState::Rebuilding { next } => tracing::warn!(
                "{}: {} is being rebuilt, and has {} % again",
                disks.list(),
                disks.show(*disk),
                next * 100 / all.max(1)
            ),
            _ => tracing::warn!(
                "{}: {} is out, and the volume DEGRADED: `fstitch disk replace` puts another in its place",
                disks.list(),
                disks.show(*disk)
            ),
        }
    }
    for at in &found.strangers {
        tracing::warn!("{} is no disk of the array any more, and is not used", given[*at].name.display());
    }
    let hot = disks.array.label();
    for (disk, _) in hot.disks.iter().enumerate().filter(|(_, disk)| disk.state == DiskState::Hot) {
        if disks.name(disk).is_none() {
            tracing::warn!("{}: the hot spare {disk} was not named", disks.list());
        }
    }
}
