//! From the text of a stack file to a stack: everything that can be wrong without looking at any medium.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use fstitch_patch::CacheOptions;
use toml::Spanned;

use super::file::{DeviceText, Source, Text, VolumeText};
use crate::mount::{Options, default_cache_size};

/// A stack whose description is right in itself.
#[derive(Clone, Debug)]
pub struct Stack {
    /// The stack file.
    pub file: PathBuf,
    /// Bytes of memory for all of it.
    pub cache_size: u64,
    /// Age at which changes are written.
    pub write_back_age: Duration,
    /// The devices, in the order of the file.
    pub devices: Vec<Device>,
    /// The volumes, each behind those that its device and its journal are in.
    pub volumes: Vec<Volume>,
}

/// Blocks that a volume or a journal is on.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub place: Place,
}

/// Where a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a file or block device of this machine.
    Medium {
        /// Its path.
        path: PathBuf,
        /// The part of it.
        part: Part,
    },
    /// In a file of another volume.
    File {
        /// The volume, by its place in [`Stack::volumes`].
        volume: usize,
        /// The path inside it.
        path: String,
    },
}

/// A part of a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// From this byte to the end.
    From(u64),
    /// The partition of this number.
    Partition(u32),
}

/// A file system of a stack.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// The device that it is on, by its place in [`Stack::devices`].
    pub device: usize,
    /// The device of its journal.
    pub journal: Option<usize>,
    /// Its options, the mechanism among them.
    pub options: Options,
    /// Where it is mounted, if it is.
    pub mountpoint: Option<PathBuf>,
}

impl Stack {
    /// Checks what a stack file says.
    pub fn new(source: &Source) -> Result<Self> {
        let text = source.parse()?;
        Checker { source, text: &text }.check()
    }

    /// Whether nothing changes what is on `device`.
    pub fn is_read_only(&self, device: usize) -> bool {
        // Something is on every device.
        let mut users =
            self.volumes.iter().filter(|user| user.device == device || user.journal == Some(device));
        users.all(|user| user.options.read_only)
    }

    /// The volumes that `volume` is in, by its device and by its journal.
    pub fn outer(&self, volume: usize) -> BTreeSet<usize> {
        let volume = &self.volumes[volume];
        let devices = std::iter::once(volume.device).chain(volume.journal);
        devices.filter_map(|device| self.holder(device)).collect()
    }

    /// The volume that `device` is a file of.
    pub fn holder(&self, device: usize) -> Option<usize> {
        match self.devices[device].place {
            Place::File { volume, .. } => Some(volume),
            Place::Medium { .. } => None,
        }
    }
}

struct Checker<'a> {
    source: &'a Source,
    text: &'a Text,
}

impl Checker<'_> {
    fn check(&self) -> Result<Stack> {
        let Text { cache_size, write_back_age, devices, volumes } = self.text;
        if volumes.is_empty() {
            return Err(self.wrong(&(0..0), "a stack has at least one [[volume]]"));
        }
        let device_names = self.names("device", devices.iter().map(|device| &device.name))?;
        let volume_names = self.names("volume", volumes.iter().map(|volume| &volume.name))?;
        let places = self.each(devices, |device| self.place(device, &volume_names))?;
        self.distinct(&places)?;
        let checked = self.each(volumes, |volume| self.volume(volume, &device_names))?;
        self.each_device_once(&checked)?;
        let order = self.order(&places, &checked)?;
        self.mounts(&places, &checked)?;
        self.access(&places, &checked)?;
        let parsed = |value: &Spanned<String>| self.value(value, crate::size::bytes);
        let cache_size = cache_size.as_ref().map(parsed).transpose()?.unwrap_or_else(default_cache_size);
        let parsed = |value: &Spanned<String>| self.value(value, crate::size::duration);
        let age = write_back_age.as_ref().map(parsed).transpose()?;
        Ok(Stack {
            file: self.source.path.clone(),
            cache_size,
            write_back_age: age.unwrap_or(CacheOptions::default().write_back_age),
            devices: sorted_places(devices, places, &order),
            volumes: order.iter().map(|&at| checked[at].clone()).collect(),
        })
    }

    fn wrong(&self, span: &Range<usize>, problem: impl std::fmt::Display) -> anyhow::Error {
        self.source.problem(span, problem)
    }

    fn each<T, U>(&self, all: &[T], one: impl Fn(&T) -> Result<U>) -> Result<Vec<U>> {
        all.iter().map(one).collect()
    }

    fn value<T>(&self, value: &Spanned<String>, parse: impl Fn(&str) -> Result<T, String>) -> Result<T> {
        parse(value.get_ref()).map_err(|problem| self.wrong(&value.span(), problem))
    }

    /// The places of all names of one kind, each of which is there once.
    fn names<'n>(
        &self,
        kind: &str,
        names: impl Iterator<Item = &'n Spanned<String>>,
    ) -> Result<BTreeMap<&'n str, usize>> {
        let mut found = BTreeMap::new();
        for (at, name) in names.enumerate() {
            if name.get_ref().trim().is_empty() {
                return Err(self.wrong(&name.span(), format!("a {kind} without a name")));
            }
            if found.insert(name.get_ref().as_str(), at).is_some() {
                return Err(self.wrong(&name.span(), format!("there are two {kind}s `{}`", name.get_ref())));
            }
        }
        Ok(found)
    }

    fn find(
        &self,
        kind: &str,
        names: &BTreeMap<&str, usize>,
        name: &Spanned<String>,
        user: &str,
    ) -> Result<usize> {
        names.get(name.get_ref().as_str()).copied().ok_or_else(|| {
            let known: Vec<&str> = names.keys().copied().collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let name_text = name.get_ref();
            self.wrong(&name.span(), format!("{user}: there is no {kind} `{name_text}` (there is {known})"))
        })
    }

    fn place(&self, device: &DeviceText, volumes: &BTreeMap<&str, usize>) -> Result<Place> {
        let name = device.name.get_ref();
        let wrong =
            |problem: &str| Err(self.wrong(&device.name.span(), format!("device `{name}`: {problem}")));
        let DeviceText { path, partition, offset, volume, file, .. } = device;
        match (path, volume, file) {
            (Some(path), None, None) => {
                let part = match (partition, offset) {
                    (Some(_), Some(_)) => return wrong("either `partition` or `offset`"),
                    (Some(number), None) => Part::Partition(*number.get_ref()),
                    (None, Some(offset)) => Part::From(self.value(offset, crate::size::bytes)?),
                    (None, None) => Part::From(0),
                };
                Ok(Place::Medium { path: self.source.resolve_image(path.get_ref()), part })
            }
            (None, Some(volume), Some(file)) => {
                if partition.is_some() || offset.is_some() {
                    return wrong("`partition` and `offset` go with `path`");
                }
                let volume = self.find("volume", volumes, volume, &format!("device `{name}`"))?;
                let parts = file.get_ref().split('/').filter(|part| !part.is_empty() && *part != ".");
                let path = parts.fold(String::new(), |path, part| path + "/" + part);
                if path.is_empty() {
                    return Err(self.wrong(&file.span(), format!("device `{name}`: `file` names no file")));
                }
                Ok(Place::File { volume, path })
            }
            _ => wrong("it needs either `path`, or `volume` and `file`"),
        }
    }

    /// No two devices are the same blocks, as far as words tell.
    fn distinct(&self, places: &[Place]) -> Result<()> {
        for (at, place) in places.iter().enumerate() {
            if let Some(other) = places[..at].iter().position(|other| other == place) {
                let (one, two) = (self.text.devices[other].name.get_ref(), &self.text.devices[at].name);
                let problem = format!("devices `{one}` and `{}` are the same", two.get_ref());
                return Err(self.wrong(&two.span(), problem));
            }
        }
        Ok(())
    }

    fn volume(&self, volume: &VolumeText, devices: &BTreeMap<&str, usize>) -> Result<Volume> {
        let name = volume.name.get_ref();
        let user = format!("volume `{name}`");
        let device = self.find("device", devices, &volume.device, &user)?;
        let journal = volume.journal.as_ref();
        let journal = journal.map(|journal| self.find("device", devices, journal, &user)).transpose()?;
        let mut options = self.options(volume)?;
        if let Some(consistency) = &volume.consistency {
            options.consistency = Some(self.value(consistency, str::parse)?);
        }
        let mountpoint = volume.mount.as_ref().map(|at| self.source.resolve(at.get_ref()));
        Ok(Volume { name: name.clone(), device, journal, options, mountpoint })
    }

    fn options(&self, volume: &VolumeText) -> Result<Options> {
        let mut options = Options::default();
        let Some(list) = &volume.options else { return Ok(options) };
        let wrong =
            |text: String| self.wrong(&list.span(), format!("volume `{}`: {text}", volume.name.get_ref()));
        options.add(list.get_ref(), false).map_err(wrong)?;
        let elsewhere = [
            (options.offset != 0, "offset", "a key of its device"),
            (options.partition.is_some(), "partition", "a key of its device"),
            (options.journal.is_some(), "journal_path", "the key `journal`"),
            (options.consistency.is_some(), "consistency", "the key `consistency`"),
            (options.cache_size.is_some(), "cache_size", "a key of the whole stack"),
            (options.write_back_age.is_some(), "write_back_age", "a key of the whole stack"),
            (!options.without.is_empty(), "without", "no option of a volume in a stack"),
            (options.durability.is_some(), "durability", "no option of a volume in a stack"),
            (options.tree.is_some(), "tree", "no option of a volume in a stack"),
            (options.remount, "remount", "no option of a volume in a stack"),
        ];
        match elsewhere.into_iter().find(|(given, ..)| *given) {
            Some((_, option, place)) => Err(wrong(format!("`{option}` is {place}"))),
            None => Ok(options),
        }
    }

    /// Every device carries exactly one volume or one journal.
    fn each_device_once(&self, volumes: &[Volume]) -> Result<()> {
        let mut users: BTreeMap<usize, String> = BTreeMap::new();
        for (volume, text) in volumes.iter().zip(&self.text.volumes) {
            let own = [
                (Some((volume.device, &text.device)), format!("volume `{}`", volume.name)),
                (volume.journal.zip(text.journal.as_ref()), format!("the journal of `{}`", volume.name)),
            ];
            for (device, user) in own.into_iter().filter_map(|(device, user)| Some((device?, user))) {
                let (device, word) = device;
                if let Some(other) = users.get(&device) {
                    let name = word.get_ref();
                    return Err(
                        self.wrong(&word.span(), format!("{user} is on device `{name}`, as is {other}"))
                    );
                }
                users.insert(device, user);
            }
        }
        match self.text.devices.iter().enumerate().find(|(at, _)| !users.contains_key(at)) {
            Some((_, unused)) => {
                let problem = format!("nothing is on device `{}`", unused.name.get_ref());
                Err(self.wrong(&unused.name.span(), problem))
            }
            None => Ok(()),
        }
    }

    /// An order of the volumes in which each comes behind those that it is in.
    fn order(&self, places: &[Place], volumes: &[Volume]) -> Result<Vec<usize>> {
        let mut order: Vec<usize> = Vec::new();
        while order.len() < volumes.len() {
            let ready = (0..volumes.len()).find(|at| {
                !order.contains(at) && outer(places, &volumes[*at]).all(|outer| order.contains(&outer))
            });
            let Some(next) = ready else {
                let stuck = (0..volumes.len()).filter(|at| !order.contains(at));
                let names: Vec<String> = stuck.clone().map(|at| format!("`{}`", volumes[at].name)).collect();
                let first = stuck.min().unwrap_or(0);
                let problem = format!("a volume is inside itself, by way of its files: {}", names.join(", "));
                return Err(self.wrong(&self.text.volumes[first].name.span(), problem));
            };
            order.push(next);
        }
        Ok(order)
    }

    /// No mount point is given twice, and no volume is there for nothing.
    fn mounts(&self, places: &[Place], volumes: &[Volume]) -> Result<()> {
        let mut at: BTreeMap<&PathBuf, &str> = BTreeMap::new();
        for (number, (volume, text)) in volumes.iter().zip(&self.text.volumes).enumerate() {
            let Some(mountpoint) = &volume.mountpoint else {
                let holds = |place: &Place| matches!(place, Place::File { volume, .. } if *volume == number);
                if places.iter().any(holds) {
                    continue;
                }
                let problem =
                    format!("volume `{}` has no `mount`, and no device is in it: who uses it?", volume.name);
                return Err(self.wrong(&text.name.span(), problem));
            };
            if let Some(other) = at.insert(mountpoint, &volume.name) {
                let problem = format!(
                    "volumes `{other}` and `{}` have the same mount point {}",
                    volume.name,
                    mountpoint.display()
                );
                let span = text.mount.as_ref().map_or(text.name.span(), Spanned::span);
                return Err(self.wrong(&span, problem));
            }
        }
        Ok(())
    }

    /// A volume that accepts changes is in volumes that do.
    fn access(&self, places: &[Place], volumes: &[Volume]) -> Result<()> {
        for (volume, text) in volumes.iter().zip(&self.text.volumes) {
            let fixed = outer(places, volume).find(|&outer| volumes[outer].options.read_only);
            if let (false, Some(outer)) = (volume.options.read_only, fixed) {
                let (name, outer) = (&volume.name, &volumes[outer].name);
                let problem =
                    format!("volume `{name}` accepts changes, but `{outer}`, which it is in, is `ro`");
                return Err(self.wrong(&text.name.span(), problem));
            }
        }
        Ok(())
    }
}

/// The volumes that `volume` is in, numbered as in the file.
fn outer<'a>(places: &'a [Place], volume: &'a Volume) -> impl Iterator<Item = usize> + 'a {
    std::iter::once(volume.device).chain(volume.journal).filter_map(|device| match places[device] {
        Place::File { volume, .. } => Some(volume),
        Place::Medium { .. } => None,
    })
}

/// The devices, with volumes numbered by their places in `order`.
fn sorted_places(devices: &[DeviceText], places: Vec<Place>, order: &[usize]) -> Vec<Device> {
    let renumber = |place: Place| match place {
        Place::File { volume, path } => {
            let volume = order.iter().position(|&at| at == volume).expect("every volume is in the order");
            Place::File { volume, path }
        }
        medium @ Place::Medium { .. } => medium,
    };
    let named = devices.iter().zip(places);
    named.map(|(text, place)| Device { name: text.name.get_ref().clone(), place: renumber(place) }).collect()
}

#[cfg(test)]
mod tests;
