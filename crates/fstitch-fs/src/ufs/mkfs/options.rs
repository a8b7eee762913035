//! What a new volume shall be.

use fstitch_core::{Error, Result, Timestamp};

use crate::ufs::layout::superblock::Version;
use crate::ufs::order::Order;

/// Bytes of a label at most: its field ends with a zero.
pub(super) const LABEL_MAX: usize = 31;
/// Percent of a volume that are kept free by default.
const MIN_FREE: u32 = 8;
/// Bytes of a file, and files of a directory, that are expected by default.
const AVERAGE_FILE_BYTES: u32 = 16_384;
const AVERAGE_DIRECTORY_FILES: u32 = 64;

/// What allocation prefers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Optimise {
    /// Short times.
    Time,
    /// Few fragments.
    Space,
}

/// How to make a volume; the letters are newfs's, and so are the defaults.
#[derive(Clone, Debug)]
pub struct MkfsOptions {
    /// `-O`.
    pub version: Version,
    /// The order of bytes: that of the machine whose system is to use the volume.
    pub order: Order,
    /// `-s`: bytes of the volume, of which whole fragments are used; by default all of the device.
    pub size: Option<u64>,
    /// `-b`: a power of two from 4096 to 65536; by default 8 fragments, and 32768 at most.
    pub block_size: Option<u32>,
    /// `-f`: a power of two from 512 to the block size, of which it is an eighth at least; by default 4096, and 1024 in a volume of less than
    /// 8 MiB.
    pub fragment_size: Option<u32>,
    /// `-i`: an inode for so many bytes; by default for two fragments.
    pub bytes_per_inode: Option<u64>,
    /// `-m`: percent that only the superuser may use, at most 99.
    pub min_free: u32,
    /// `-o`: by default time, unless fewer than 8 percent are kept free.
    pub optimise: Option<Optimise>,
    /// `-L`: at most 31 letters, digits, `-` and `_`.
    pub label: Vec<u8>,
    /// The identifier.
    pub id: [u32; 2],
    /// `-U`: soft updates.
    pub soft_updates: bool,
    /// `-a`: blocks that are laid out together at most; by default those of a mebibyte.
    pub max_contiguous: Option<u32>,
    /// `-e`: blocks that a file has in a group at most, before it goes on in another; by default an eighth of the bytes of a block.
    pub blocks_per_file: Option<u32>,
    /// `-c`: fragments of a group at most, but for those that its inodes need; by default as many as its block has room to describe.
    pub fragments_per_group: Option<u32>,
    /// `-k`: fragments of a group that are kept for directories and blocks of pointers; by default half of what is kept free.
    pub metadata_fragments: Option<u32>,
    /// `-g`: bytes of a file, as expected.
    pub average_file_bytes: u32,
    /// `-h`: files of a directory, as expected.
    pub average_directory_files: u32,
    /// Unlike with newfs only if asked for (there `-n` is for not): the directory `.snap`, in which FreeBSD keeps snapshots.
    pub snap: bool,
    /// The directory `lost+found`, which is made by fsck otherwise, when it needs it.
    pub lost_found: bool,
    /// User and group that own the directories.
    pub owner: (u32, u32),
    /// The device is known to read as zeros (a new sparse file): what is zero is not written.
    pub device_is_zero: bool,
    /// The time of creation.
    pub now: Timestamp,
}

impl MkfsOptions {
    /// The defaults of newfs, with what must be given: version, identity and time.
    #[must_use]
    pub const fn new(version: Version, id: [u32; 2], now: Timestamp) -> Self {
        Self {
            version,
            order: Order::Little,
            size: None,
            block_size: None,
            fragment_size: None,
            bytes_per_inode: None,
            min_free: MIN_FREE,
            optimise: None,
            label: Vec::new(),
            id,
            soft_updates: false,
            max_contiguous: None,
            blocks_per_file: None,
            fragments_per_group: None,
            metadata_fragments: None,
            average_file_bytes: AVERAGE_FILE_BYTES,
            average_directory_files: AVERAGE_DIRECTORY_FILES,
            snap: false,
            lost_found: false,
            owner: (0, 0),
            device_is_zero: false,
            now,
        }
    }

    /// Refuses what a volume cannot be, whatever its size.
    ///
    /// # Errors
    /// `Unsupported`, with what cannot be had.
    pub fn validate(&self) -> Result<()> {
        let refuse = |what: String| Err(Error::Unsupported(what));
        if self.min_free > 99 {
            return refuse(format!("{} percent kept free: 99 are the most", self.min_free));
        }
        let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
        if self.label.len() > LABEL_MAX || !self.label.iter().all(is_letter) {
            let label = self.label.escape_ascii();
            return refuse(format!(
                "the label `{label}`: {LABEL_MAX} letters, digits, `-` and `_` are the most"
            ));
        }
        if self.id == [0; 2] {
            return refuse("a volume whose identifier is all zero".into());
        }
        let numbers = [
            ("bytes for an inode", self.bytes_per_inode),
            ("contiguous blocks", self.max_contiguous.map(u64::from)),
            ("blocks of a file in a group", self.blocks_per_file.map(u64::from)),
            ("fragments of a group", self.fragments_per_group.map(u64::from)),
            ("bytes of an average file", Some(self.average_file_bytes.into())),
            ("files of an average directory", Some(self.average_directory_files.into())),
        ];
        let most = u64::from(i32::MAX.unsigned_abs());
        for (what, number) in numbers {
            if number.is_some_and(|number| number == 0 || number > most) {
                return refuse(format!("{} {what}", number.unwrap_or_default()));
            }
        }
        Ok(())
    }

    /// What allocation prefers, where nothing was said: space, if little of it is kept free.
    pub(super) const fn optimisation(&self) -> Optimise {
        match self.optimise {
            Some(asked) => asked,
            None if self.min_free < MIN_FREE => Optimise::Space,
            None => Optimise::Time,
        }
    }
}
