//! What can be changed of volumes that are made: their size and settings; and where their files lie.

use fstitch_core::{BlockDevice, Result, Timestamp};
pub use fstitch_fs::ext2::tuning::{OnError, Reserve, Tuning};
use serde::{Deserialize, Serialize};

/// What became of a volume's size. Field names are a contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resized {
    /// Bytes of a block.
    pub block_size_bytes: u32,
    /// Blocks that it had.
    pub blocks_before: u64,
    /// Blocks that it has.
    pub blocks: u64,
}

/// Who changes the size of volumes that nobody uses and that need no recovery.
pub trait Resizes: Send + Sync {
    /// How long the volume on `device` is, in bytes.
    ///
    /// # Errors
    /// When the medium fails; `Corrupt`.
    fn size(&self, device: &dyn BlockDevice) -> Result<u64>;
    /// Gives the volume on `device` a size of `bytes`, or a little less where the rest would be of no use. If it gets smaller, `progress` is
    /// told how much of what lies behind its new end was moved, and how much that is.
    ///
    /// # Errors
    /// `Unsupported`, before anything is written, naming what cannot be done; when the medium fails. A volume that should get smaller is
    /// whole then, in its old size.
    fn resize(
        &self,
        device: &dyn BlockDevice,
        bytes: u64,
        now: Timestamp,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Resized>;
}

/// Who changes the settings of volumes that nobody uses and that need no recovery.
pub trait Tunes: Send + Sync {
    /// Changes settings; `now` is for what is made or freed by that.
    ///
    /// # Errors
    /// `Unsupported`, before anything is written, naming what cannot be had; when the medium fails.
    fn tune(&self, device: &dyn BlockDevice, tuning: &Tuning, now: Timestamp) -> Result<()>;
}

/// A run of a file's blocks that lie behind each other. Field names are a contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Run {
    /// The first one's place in the file, in blocks.
    pub logical: u64,
    /// The first one's number on the volume.
    pub physical: u64,
    /// How many.
    pub blocks: u64,
    /// They read as zeros.
    pub unwritten: bool,
}

/// Where a file's blocks lie. Field names are a contract.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileMap {
    /// `extents`, `pointers`, or `inode` for contents that lie in the inode itself.
    pub map: &'static str,
    /// Levels of blocks between the inode and the file's blocks.
    pub depth: u16,
    /// Blocks that the map takes itself.
    pub map_blocks: u64,
    /// Bytes of a block.
    pub block_size_bytes: u32,
    /// The file's blocks, in its order.
    pub extents: Vec<Run>,
}

/// Who says where the blocks of a file lie.
pub trait MapsFiles: Send + Sync {
    /// The map of inode `ino` of the volume on `device`, which needs no recovery.
    ///
    /// # Errors
    /// When the medium fails; `Corrupt`.
    fn file_map(&self, device: &dyn BlockDevice, ino: u64) -> Result<FileMap>;
}

/// What somebody may have; 0 for any number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// KiB that may be passed for some time, and that are never passed.
    pub space: (u64, u64),
    /// The same for inodes.
    pub inodes: (u64, u64),
}

/// What somebody has and may have. Field names are a contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Account {
    /// Who.
    pub id: u32,
    /// Bytes.
    pub space_bytes: u64,
    /// KiB that may be passed for some time; 0 for any number, as with all limits.
    pub space_soft_kib: u64,
    /// KiB that are never passed.
    pub space_hard_kib: u64,
    /// When the soft limit becomes a hard one, in seconds since the epoch; 0 while it is not passed.
    pub space_until: u64,
    /// Inodes.
    pub inodes: u64,
    /// Inodes that may be passed for some time.
    pub inodes_soft: u64,
    /// Inodes that are never passed.
    pub inodes_hard: u64,
    /// When the soft limit becomes a hard one, likewise.
    pub inodes_until: u64,
}

/// What all users, groups or projects have. Field names are a contract.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Quotas {
    /// `user`, `group` or `project`.
    pub kind: &'static str,
    /// Seconds that a soft limit of storage may be passed for.
    pub space_grace_seconds: u32,
    /// The same for inodes.
    pub inodes_grace_seconds: u32,
    /// Everybody, in the order of numbers.
    pub accounts: Vec<Account>,
}

/// Who counts what users have, on volumes that nobody uses and that need no recovery.
pub trait CountsUsage: Send + Sync {
    /// What everybody has; nothing where that is not counted.
    ///
    /// # Errors
    /// When the medium fails; `Corrupt`.
    fn quotas(&self, device: &dyn BlockDevice) -> Result<Vec<Quotas>>;
    /// Sets the limits of a `user`, `group` or `project`.
    ///
    /// # Errors
    /// `Unsupported`, before anything is written, naming what cannot be had; when the medium fails; `Corrupt`.
    fn set_limits(
        &self,
        device: &dyn BlockDevice,
        who: (&str, u32),
        limits: Limits,
        now: Timestamp,
    ) -> Result<()>;
}
