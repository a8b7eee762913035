//! A format, as the programs above see it.

use std::fmt::Write;
use std::io::{self, Read};
use std::sync::Arc;

use fstitch_core::{
    BlockDevice, BlockNo, Clock, Consistency, RepairOptions, RepairReport, Result, Timestamp,
};
use fstitch_fs::arrange::{Arrangement, Chosen};
use fstitch_fs::uhfs::UhfsOptions;
use fstitch_patch::Cache;
use fstitch_patch::journal::Progress;
use serde::{Deserialize, Serialize};

use crate::make::{Asked, Making, Word};
use crate::resize::{CountsUsage, MapsFiles, Resizes, Tunes};
use crate::{Around, Claim, Description, KeepsMaps, NamesBlocks, Owners, Volume, Who};

/// A format. Media are given in blocks of the volume's size unless it says otherwise.
pub trait Format: Send + Sync {
    /// What kinds of volumes it has are called; the first stands for all.
    fn names(&self) -> &'static [&'static str];
    /// The kinds of these that can be made.
    fn makes(&self) -> &'static [&'static str] {
        self.names()
    }
    /// What a medium with such a volume holds, such as `an ext2, ext3 or ext4 volume`.
    fn thing(&self) -> &'static str;
    /// Why a medium has no such volume, and what can be done about it, as a message says it.
    fn absent(&self) -> &'static str;
    /// Whether the medium that begins with `head` ([`crate::PROBE_LEN`] bytes, or all) has such a volume: bytes of its blocks, or
    /// why it cannot be one.
    fn probe(&self, head: &[u8]) -> Option<std::result::Result<u32, String>>;
    /// Bytes of the blocks in which a volume is checked and mended whose first bytes say that its own have `block_size`. Those, unless
    /// what is damaged there must not keep it from being mended.
    fn checked_in(&self, block_size: u32) -> u32 {
        block_size
    }
    /// Looks at a volume, changing nothing.
    ///
    /// # Errors
    /// `Io`; `Corrupt` where the volume cannot be used; `Unsupported` by the names of features.
    fn look(&self, device: &dyn BlockDevice) -> Result<Look>;
    /// Whether a volume must be recovered before it is used.
    ///
    /// # Errors
    /// As [`Format::look`].
    fn needs_recovery(&self, device: &dyn BlockDevice) -> Result<bool> {
        let _ = device;
        Ok(false)
    }
    /// Does what must be done before a volume is used that was not unmounted. `None` if there was nothing to do.
    ///
    /// # Errors
    /// As [`Format::look`].
    fn recover(&self, device: &dyn BlockDevice, how: &mut Recovering<'_>) -> Result<Option<Recovery>> {
        let _ = (device, how);
        Ok(None)
    }
    /// Mends what a crash has left on a volume that is about to be changed, where the format does that by a check, which [`Format::open`] does
    /// otherwise. `begins` is called before what takes long. Returns what was done, in one line; `None` if there was nothing to do.
    ///
    /// # Errors
    /// As [`Format::look`]; `Corrupt` if there is more than a crash leaves.
    fn settle(
        &self,
        device: &dyn BlockDevice,
        now: Timestamp,
        begins: &mut dyn FnMut(),
    ) -> Result<Option<String>> {
        let _ = (device, now, begins);
        Ok(None)
    }
    /// Who claims volumes that tell other machines who uses them; `None` for a format whose volumes do not.
    fn shares(&self) -> Option<&dyn Shares> {
        None
    }
    /// Opens a volume that needs no recovery (any more).
    ///
    /// # Errors
    /// As [`Format::look`]; `Unsupported` for a mechanism that the volume cannot have.
    fn open(
        &self,
        device: Arc<dyn BlockDevice>,
        arrangement: &Arrangement,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn Volume>>;
    /// Whether the volume on `device` is one that everybody changes through its journal, whatever mechanism somebody would prefer.
    ///
    /// # Errors
    /// As [`Format::look`].
    fn needs_journal(&self, device: &dyn BlockDevice) -> Result<bool> {
        let _ = device;
        Ok(false)
    }
    /// Whether its volumes can be changed by one mechanism or another; of a format that has its own alone, nobody can prefer another one.
    fn has_choice(&self) -> bool {
        true
    }
    /// The mechanism by which a volume keeps what `asked` says; `None` for a format that gives no choice of that.
    fn durability(&self, asked: Durability) -> Option<Consistency> {
        let _ = asked;
        None
    }
    /// What a stack needs of it; `None` for a format whose volumes live in no cache.
    fn cached(&self) -> Option<&dyn Cached> {
        None
    }
    /// What a volume is, for people and programs; `external` is the device of its journal. With `details`, every part.
    ///
    /// # Errors
    /// As [`Format::look`].
    fn describe(
        &self,
        device: &dyn BlockDevice,
        external: Option<&dyn BlockDevice>,
        details: bool,
    ) -> Result<Description>;

    // ---- making ----

    /// What the command is about that makes a volume of this kind.
    fn about(&self, kind: &str) -> &'static str;
    /// The words that it knows beside everybody's.
    fn words(&self) -> &'static [Word] {
        &[]
    }
    /// The extended words (`-E`) that it knows beside everybody's, for help.
    fn extended_words(&self) -> &'static str {
        ""
    }
    /// What becomes of a UUID that is given, for help, in a format whose volumes have none.
    fn uuid_about(&self) -> Option<&'static str> {
        None
    }
    /// Judges what is asked for, as far as it can be before the medium is touched.
    ///
    /// # Errors
    /// `Unsupported`, naming what cannot be had.
    fn plan(&self, asked: &Asked) -> Result<Box<dyn Making>>;
    /// Changes the label or the UUID of a volume that nobody uses and that needs no recovery.
    ///
    /// # Errors
    /// As [`Format::look`]; `Unsupported` for what a volume of this format cannot be called.
    fn identify(&self, device: &dyn BlockDevice, identity: &Identity) -> Result<()>;
    /// What can be done with the journal of a volume; `None` for a format without journals.
    fn journals(&self) -> Option<&dyn Journals> {
        None
    }

    /// Who changes the size of volumes; `None` for a format whose volumes keep theirs.
    fn resizes(&self) -> Option<&dyn Resizes> {
        None
    }

    /// Who changes settings of volumes; `None` for a format that has none.
    fn tunes(&self) -> Option<&dyn Tunes> {
        None
    }

    /// Who says where the blocks of files lie; `None` for a format whose blocks have no places that stay.
    fn maps_files(&self) -> Option<&dyn MapsFiles> {
        None
    }

    /// Who counts what users have; `None` for a format that does not.
    fn counts_usage(&self) -> Option<&dyn CountsUsage> {
        None
    }

    /// What a volume needs to follow a policy of the shepherd; `None` for a format that has no room for maps.
    fn keeps_maps(&self) -> Option<&dyn KeepsMaps> {
        None
    }

    /// Who makes snapshots; `None` for a format that has none.
    fn snapshots(&self) -> Option<&dyn HasSnapshots> {
        None
    }

    /// Who says what blocks belong to; `None` for a format whose blocks have no places that stay.
    fn names_blocks(&self) -> Option<&dyn NamesBlocks> {
        None
    }

    // ---- checking: media are given in blocks of 1024 bytes, whatever the volume's are ----

    /// Whether the volume says that it was unmounted in an orderly way and has no known errors.
    fn is_marked_clean(&self, device: &dyn BlockDevice) -> bool;
    /// Whether there is something to repair by, although the start of the volume cannot be read.
    ///
    /// # Errors
    /// When the medium fails.
    fn has_backup(&self, device: &dyn BlockDevice) -> Result<bool> {
        let _ = device;
        Ok(false)
    }
    /// Checks, and mends what `options` allow.
    ///
    /// # Errors
    /// When the medium fails; `Unsupported` by the names of features.
    fn repair(&self, device: &dyn BlockDevice, options: RepairOptions) -> Result<RepairReport>;
    /// As [`Format::recover`], but what cannot be recovered is given up: the volume goes on without, and the report says what is lost.
    ///
    /// # Errors
    /// When the medium fails.
    fn recover_or_give_up(
        &self,
        device: &dyn BlockDevice,
        how: &mut Recovering<'_>,
    ) -> Result<Option<Recovery>> {
        self.recover(device, how)
    }
    /// Whether the volume, as far as it can be read, has a journal in itself.
    fn has_journal(&self, device: &dyn BlockDevice) -> bool {
        let _ = device;
        false
    }
    /// Gives a volume whose journal was beyond repair another one; its blocks. `None` where there is no room.
    ///
    /// # Errors
    /// When the medium fails.
    fn renew_journal(&self, device: &dyn BlockDevice, now: Timestamp) -> Result<Option<u32>> {
        let _ = (device, now);
        Ok(None)
    }
}

/// What is done with volumes that tell other machines who uses them.
pub trait Shares: Send + Sync {
    /// Whether the volume that begins with `head` ([`crate::PROBE_LEN`] bytes, or all) is one: it is claimed before it is changed, past what
    /// this machine remembers of its medium.
    fn is_shared(&self, head: &[u8]) -> bool;
    /// Claims a volume, before anything else is written to it; it waits for some seconds. What is claimed is changed through the claim.
    ///
    /// # Errors
    /// As [`Format::look`]; `Locked` if somebody uses it.
    fn claim(&self, device: Arc<dyn BlockDevice>, who: Who, around: Around<'_>) -> Result<Claim>;
    /// Whether a volume that is to be mended may be one, whatever of it is damaged.
    ///
    /// # Errors
    /// Those of the device.
    fn may_be_shared(&self, device: &dyn BlockDevice) -> Result<bool>;
    /// Claims such a volume. `None` if nothing tells who uses it.
    ///
    /// # Errors
    /// As [`Shares::claim`], of damage none.
    fn claim_to_mend(
        &self,
        device: &Arc<dyn BlockDevice>,
        who: &Who,
        around: Around<'_>,
    ) -> Result<Option<Claim>>;
}

/// What a snapshot or a clone is. Its words are a contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TreeKind {
    /// It never changes.
    Snapshot,
    /// It began as a snapshot, and changes by itself.
    Clone,
    /// Snapshots are received by it.
    Receiver,
}

/// A snapshot or clone of a volume. Field names are a contract.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// What it is called.
    pub name: String,
    /// What it is.
    pub kind: TreeKind,
    /// What it comes from: of a snapshot the clone (empty for the volume itself), of a clone the snapshot.
    pub of: String,
    /// Whether it is all there: it is not while it is received, or when that came to no end, and cannot be opened then.
    pub whole: bool,
    /// When it was made.
    pub made: String,
    /// Files, directories and what else there is in it.
    pub inodes: u64,
}

/// The snapshots of a volume that is open.
pub trait Snapshots {
    /// All of them, in the order in which they were made.
    fn list(&self) -> Vec<Snapshot>;
    /// Makes one of the volume as it is.
    ///
    /// # Errors
    /// `EEXIST`, `EINVAL`, `ENOSPC`, `EROFS`; those of the medium.
    fn create(&self, name: &str) -> Result<()>;
    /// Removes one.
    ///
    /// # Errors
    /// `ENOENT`, `EBUSY` while a clone comes from it, `EROFS`; those of the medium.
    fn remove(&self, name: &str) -> Result<()>;
    /// Makes a clone of one, which can be opened and changed by itself.
    ///
    /// # Errors
    /// `ENOENT`; as [`Snapshots::create`].
    fn make_clone(&self, snapshot: &str, name: &str) -> Result<()>;
    /// Removes a clone, with all that was changed in it.
    ///
    /// # Errors
    /// `ENOENT`, `EBUSY` while it is open or has snapshots, `EROFS`; those of the medium.
    fn remove_clone(&self, name: &str) -> Result<()>;
    /// Writes one to a stream; with `since`, what it has beyond that one. `progress` hears the bytes so far.
    ///
    /// # Errors
    /// `ENOENT`; [`fstitch_core::Error::Unsupported`], saying why; where blocks are damaged; when the stream cannot be written.
    fn send(
        &self,
        name: &str,
        since: Option<&str>,
        to: &mut dyn io::Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()>;
}

/// Where a look at all blocks of a volume goes on: whoever asks hands it back as it is. Field names are a contract.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubPlace {
    /// The number of the tree.
    pub tree: u64,
    /// Trees that did not exist when it began have this number or a higher one.
    pub began: u64,
    /// What was written by this root was looked at in trees before.
    pub generation: u64,
    /// The inode there.
    pub inode: u64,
    /// Of its attributes, not of its contents.
    pub attributes: bool,
    /// The block of these.
    pub index: u64,
}

/// What a look at some blocks of a volume has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Blocks that were read and compared.
    pub blocks: u64,
    /// Those that are not what was written, or cannot be read.
    pub damaged: Vec<BlockNo>,
    /// Whom they belong to; others are more of them than are listed.
    pub owners: Owners,
    /// Where to go on; `None` at the end.
    pub next: Option<ScrubPlace>,
}

/// A volume that is open, each of whose blocks has a checksum.
pub trait HasSums {
    /// How many of its blocks are in use, about.
    fn used(&self) -> u64;
    /// Reads some blocks, past what is in memory, and compares them: from the beginning, or from a place on.
    ///
    /// # Errors
    /// Those of a commit. What cannot be read is damaged.
    fn compare(&self, from: Option<ScrubPlace>) -> Result<Sums>;
}

/// What is done with the snapshots of a volume.
pub type SnapshotWork<'a> = &'a mut (dyn FnMut(&dyn Snapshots) -> Result<()> + Send);

/// A format whose volumes have snapshots.
pub trait HasSnapshots: Send + Sync {
    /// Does something with those of a volume that nobody uses.
    ///
    /// # Errors
    /// As [`Format::look`]; those of `work`.
    fn with(&self, device: &dyn BlockDevice, read_only: bool, work: SnapshotWork<'_>) -> Result<()>;
    /// Takes a stream in, which becomes the next snapshot of the tree `tree` of a volume that nobody uses; returns its name.
    ///
    /// # Errors
    /// If it is damaged, or, saying why, if it does not fit what is there; those of the medium.
    fn receive(
        &self,
        device: &dyn BlockDevice,
        tree: &str,
        from: &mut (dyn Read + Send),
        progress: &mut (dyn FnMut(u64) + Send),
    ) -> Result<String>;
    /// Copies a stream as it is, and fails unless it is whole.
    ///
    /// # Errors
    /// If it is damaged or ends early; when it cannot be read or written.
    fn copy_stream(&self, from: &mut dyn Read, to: &mut dyn io::Write) -> Result<()>;
}

/// A format whose volumes live in a cache, which several of them may share.
pub trait Cached: Send + Sync {
    /// What suits a volume, which needs no recovery (any more).
    ///
    /// # Errors
    /// As [`Format::look`]; `Unsupported` for a mechanism that the volume cannot have.
    fn choose(&self, device: &dyn BlockDevice, arrangement: &Arrangement) -> Result<Chosen>;
    /// Opens the volume in `cache`, which has its blocks and behind them those of the device of its journal.
    ///
    /// # Errors
    /// As [`Format::look`].
    fn open_in(&self, chosen: Chosen, cache: Arc<Cache>, options: UhfsOptions) -> Result<Arc<dyn Volume>>;
}

/// A format whose volumes may have a journal, which is added or taken away while nobody uses them and nothing is to be recovered.
pub trait Journals: Send + Sync {
    /// Adds a journal of so many blocks, or of what suits the volume; returns its blocks.
    ///
    /// # Errors
    /// As [`Format::look`]; `Unsupported` where there is one, or no room.
    fn add(&self, device: &dyn BlockDevice, blocks: Option<u32>, now: Timestamp) -> Result<u32>;
    /// Has the journal on `journal`, a device of its own that the system knows by `number` (0 for none); returns its blocks.
    ///
    /// # Errors
    /// The same, and for what is no such device, or another volume's.
    fn add_device(&self, device: &dyn BlockDevice, journal: &dyn BlockDevice, number: u32) -> Result<u32>;
    /// Makes a journal in the volume as it was when it was new, and says whether there is one: nothing tells any more what was
    /// in it and when. The volume is clean, and nobody has it open.
    ///
    /// # Errors
    /// As [`Format::look`]; `Unsupported` if the volume is not clean.
    fn clear(&self, device: &dyn BlockDevice) -> Result<bool>;
    /// Takes the journal away.
    ///
    /// # Errors
    /// As [`Format::look`]; `Unsupported` where there is none.
    fn remove(&self, device: &dyn BlockDevice) -> Result<()>;
    /// The UUID by which the device of its journal knows a volume.
    ///
    /// # Errors
    /// As [`Format::look`].
    fn uuid(&self, device: &dyn BlockDevice) -> Result<[u8; 16]>;
}

/// What an operation survives when it has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The end of the process, however it comes.
    Process,
    /// A power cut.
    Power,
}

impl Durability {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Power => "power",
        }
    }
}

impl std::str::FromStr for Durability {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        match name {
            "process" => Ok(Self::Process),
            "power" => Ok(Self::Power),
            _ => Err(format!("`durability={name}`: it is `power` or `process`")),
        }
    }
}

/// What a volume is called; `None` leaves it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Its label; an empty one takes it away.
    pub label: Option<Vec<u8>>,
    /// Its UUID; zeros for none.
    pub uuid: Option<[u8; 16]>,
}

/// Where a volume's journal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnJournal {
    /// It has none.
    None,
    /// In the volume.
    Inside,
    /// On a device of its own.
    Device,
}

/// What can be seen of a volume at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// Bytes of a block.
    pub block_size: u32,
    /// Where its journal is.
    pub journal: OwnJournal,
}

/// How to recover.
pub struct Recovering<'a> {
    /// The device of the journal, if it has one of its own.
    pub external: Option<&'a dyn BlockDevice>,
    /// The time for what is freed.
    pub now: Timestamp,
    /// Nothing is written for good, as the device keeps changes in memory.
    pub for_reading: bool,
    /// Is told how far a journal's replay is.
    pub progress: &'a mut dyn FnMut(Progress),
}

impl std::fmt::Debug for Recovering<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Recovering(for_reading: {})", self.for_reading)
    }
}

/// What a recovery did. Field names are a contract (`docs/control-socket.md`).
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Recovery {
    /// Nothing reached the image: what follows describes a recovery in memory.
    pub in_memory: bool,
    /// Transactions that were replayed.
    pub transactions: u32,
    /// Fast commits behind them that were applied.
    #[serde(default)]
    pub fast_commits: u32,
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

impl Recovery {
    /// For people, without a newline at its end.
    #[must_use]
    pub fn describe(&self) -> String {
        let place = if self.in_memory { "in memory only: the image is as it was; " } else { "" };
        let mut shown = format!(
            "{place}journal replayed: {} transactions, {} blocks, {} revoked",
            self.transactions, self.blocks, self.revoked
        );
        if self.fast_commits > 0 {
            // Writing to a string cannot fail.
            let _ = write!(shown, ", {} fast commits applied", self.fast_commits);
        }
        if self.orphans_freed + self.orphans_cut > 0 {
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
