//! Making a volume: what is asked for, in words that a format knows, and what became of it.

use std::collections::BTreeMap;

use fstitch_core::{BlockDevice, Result, Timestamp};
use serde_json::{Map, Value};

/// A word of the command line that a format knows when a volume is made.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    /// Its long name, by which [`Asked`] has its values.
    pub name: &'static str,
    /// Its letter, if it has one.
    pub letter: Option<char>,
    /// What stands for its value in help.
    pub value: &'static str,
    /// What it is about.
    pub about: &'static str,
    /// What may be said.
    pub kind: WordKind,
}

/// What the value of a [`Word`] may be.
#[derive(Clone, Copy, Debug)]
pub enum WordKind {
    /// A number from the first to the last, with what it is by default.
    Number(u64, u64, Option<&'static str>),
    /// A list, which may be given several times.
    List,
    /// One of these words, with what it is by default.
    OneOf(&'static [&'static str], &'static str),
    /// Nothing: it is said, or it is not.
    Flag,
}

/// The journal that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedJournal {
    /// What goes with the kind of volume.
    Usual,
    /// None in the volume.
    None,
    /// One of so many bytes.
    Bytes(u64),
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The kind of volume, one of [`crate::Format::names`].
    pub kind: &'static str,
    /// Bytes of a block.
    pub block_size: Option<u32>,
    /// Label.
    pub label: Vec<u8>,
    /// UUID.
    pub uuid: [u8; 16],
    /// Somebody chose the UUID, so that nothing else may be left to chance.
    pub is_repeatable: bool,
    /// Random bytes, for what may be.
    pub random: [u8; 16],
    /// The time of creation.
    pub now: Timestamp,
    /// User and group that the root directory belongs to.
    pub root_owner: (u32, u32),
    /// The journal.
    pub journal: AskedJournal,
    /// `-E`: words and lists that are not everybody's.
    pub extended: Vec<String>,
    /// The values of [`Word`]s, by name.
    pub words: BTreeMap<&'static str, Vec<String>>,
}

impl Asked {
    /// The values of a word.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &str> {
        self.words.get(name).into_iter().flatten().map(String::as_str)
    }

    /// Whether a word was said that has no value.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.values(name).next().is_some()
    }

    /// The number that a word has, where it was given or has a default.
    #[must_use]
    pub fn number<N: std::str::FromStr>(&self, name: &str) -> Option<N> {
        self.values(name).last().and_then(|text| text.parse().ok())
    }
}

/// The medium of a new volume.
#[derive(Clone, Copy)]
pub struct Fresh<'a> {
    /// The device, in blocks of [`Making::unit`]; without one, of the volume's size, or of 1024 bytes where that was not asked for.
    pub device: &'a dyn BlockDevice,
    /// It reads as zeros.
    pub is_zero: bool,
    /// Bytes of the volume; all of the device if none were asked for.
    pub bytes: Option<u64>,
}

impl std::fmt::Debug for Fresh<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fresh({:?}, is_zero: {}, bytes: {:?})", self.device.geometry(), self.is_zero, self.bytes)
    }
}

/// A volume that is to be made, as far as it can be judged before the medium is touched.
pub trait Making {
    /// What people will call it.
    fn name(&self) -> &'static str;
    /// Bytes of the device's blocks, where those are not the volume's.
    fn unit(&self) -> Option<u32> {
        None
    }
    /// Makes it. `progress` is told how much of how much is written.
    ///
    /// # Errors
    /// `Unsupported` when the volume cannot be as asked, before anything is written; `Io`.
    fn make(&self, fresh: Fresh<'_>, progress: &mut dyn FnMut(u64, u64)) -> Result<Made>;
}

/// What was made.
#[derive(Clone, Debug)]
pub struct Made {
    /// What people call it.
    pub name: &'static str,
    /// Bytes per block.
    pub block_size: u32,
    /// Blocks of the volume.
    pub blocks: u64,
    /// What its blocks are, where that is more than their size: as it is said behind their number.
    pub form: Option<String>,
    /// Inodes, if their number is fixed.
    pub inodes: Option<u64>,
    /// For programs, but for image and UUID; an `identifier` is what the volume has instead of a UUID. Keys are a contract.
    pub values: Map<String, Value>,
}
