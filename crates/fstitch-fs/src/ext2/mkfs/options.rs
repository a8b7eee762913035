//! What a new volume shall be.

use fstitch_core::{Error, Result, Seed, Timestamp};

/// The features of ext2 that a volume may have; all are on by default, as `mke2fs -t ext2` has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent feature bit of the format")]
pub struct MkfsFeatures {
    /// Extended attributes.
    pub ext_attr: bool,
    /// Reserved descriptor blocks, so that the volume can grow. Needs `sparse_super`.
    pub resize_inode: bool,
    /// Directories may have hash trees.
    pub dir_index: bool,
    /// Directory entries carry the kind of what they name.
    pub filetype: bool,
    /// Superblock copies in some groups only.
    pub sparse_super: bool,
    /// Files of 2 GiB and more.
    pub large_file: bool,
}

impl MkfsFeatures {
    /// No feature at all: what revision 0 of the format can have.
    pub const NONE: Self = Self {
        ext_attr: false,
        resize_inode: false,
        dir_index: false,
        filetype: false,
        sparse_super: false,
        large_file: false,
    };

    /// Applies a list such as `^dir_index,resize_inode`; a caret, minus or nothing/plus switches off or on.
    ///
    /// # Errors
    /// [`Error::Unsupported`] names the first feature that we cannot make.
    pub fn apply(&mut self, list: &str) -> Result<()> {
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let off = word.starts_with(['^', '-']);
            let name = word.trim_start_matches(['^', '-', '+']);
            match name {
                "none" => *self = Self::NONE,
                "ext_attr" => self.ext_attr = !off,
                "resize_inode" => self.resize_inode = !off,
                "dir_index" => self.dir_index = !off,
                "filetype" => self.filetype = !off,
                "sparse_super" => self.sparse_super = !off,
                "large_file" => self.large_file = !off,
                other => {
                    return Err(Error::Unsupported(format!("making a volume with feature {other}")));
                }
            }
        }
        Ok(())
    }
}

impl Default for MkfsFeatures {
    fn default() -> Self {
        Self {
            ext_attr: true,
            resize_inode: true,
            dir_index: true,
            filetype: true,
            sparse_super: true,
            large_file: true,
        }
    }
}

/// The journal of a new volume: with one it is ext3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MkfsJournal {
    /// None.
    #[default]
    None,
    /// One that suits the volume's size.
    Suitable,
    /// One of so many of the volume's blocks; at least [`BLOCKS_MIN`](crate::ext2::journal::BLOCKS_MIN).
    Blocks(u32),
    /// One of so many bytes, rounded down to whole blocks.
    Bytes(u64),
}

/// How to make a volume; the letters are `mke2fs`'s.
#[derive(Clone, Debug)]
pub struct MkfsOptions {
    /// `-b`: 1024, 2048 or 4096; by default chosen by the volume's size.
    pub block_size: Option<u32>,
    /// The volume's size in its own blocks; by default all of the device.
    pub blocks: Option<u64>,
    /// `-I`: a power of two from 128 to the block size; 256 by default, 128 in revision 0.
    pub inode_size: Option<u32>,
    /// `-N`: at least so many inodes.
    pub inodes: Option<u32>,
    /// `-i`: one inode for so many bytes; by default chosen by the volume's size.
    pub bytes_per_inode: Option<u64>,
    /// `-L`: at most 16 bytes.
    pub label: Vec<u8>,
    /// `-U`: must not be all zero.
    pub uuid: [u8; 16],
    /// Seed of the directory hashes, `-E hash_seed=`.
    pub hash_seed: [u8; 16],
    /// `-m`: percent of all blocks that only root may use, at most 50.
    pub reserved_percent: u32,
    /// `-r`: 0 or 1. Revision 0 has no features and inodes of 128 bytes.
    pub revision: u32,
    /// `-O`.
    pub features: MkfsFeatures,
    /// `-j`, and `-J size=`.
    pub journal: MkfsJournal,
    /// `-E root_owner=uid:gid`.
    pub root_owner: (u32, u32),
    /// `-E stride=`: blocks per disk of a RAID, a hint that is only stored.
    pub stride: u16,
    /// `-E stripe_width=`: blocks per stripe of a RAID, a hint that is only stored.
    pub stripe_width: u32,
    /// `-E discard`: tell the device first that it holds nothing of value.
    pub discard: bool,
    /// The device is known to read as zeros (a new sparse file): inode tables are not zeroed again.
    pub device_is_zero: bool,
    /// The time of creation.
    pub now: Timestamp,
}

impl MkfsOptions {
    /// The defaults of `mke2fs -t ext2`, with what must be given: identity and time.
    #[must_use]
    pub fn new(uuid: [u8; 16], hash_seed: [u8; 16], now: Timestamp) -> Self {
        Self {
            block_size: None,
            blocks: None,
            inode_size: None,
            inodes: None,
            bytes_per_inode: None,
            label: Vec::new(),
            uuid,
            hash_seed,
            reserved_percent: 5,
            revision: 1,
            features: MkfsFeatures::default(),
            journal: MkfsJournal::None,
            root_owner: (0, 0),
            stride: 0,
            stripe_width: 0,
            discard: false,
            device_is_zero: false,
            now,
        }
    }

    /// The seed of directory hashes that goes with a UUID that was chosen, so that it alone makes a volume what it is. It
    /// tells an attacker who can read the UUID which names collide, which a seed in the same superblock does as well.
    #[must_use]
    pub fn hash_seed_for(uuid: &[u8; 16]) -> [u8; 16] {
        let wide = u128::from_le_bytes(*uuid);
        let half = |n: u128| u64::try_from(n & u128::from(u64::MAX)).expect("masked");
        let (low, high) = (Seed::new(half(wide)).next_u64(), Seed::new(half(wide >> 64)).next_u64());
        let mut seed = Seed::new(low ^ high.rotate_left(32));
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&seed.next_u64().to_le_bytes());
        bytes[8..].copy_from_slice(&seed.next_u64().to_le_bytes());
        bytes
    }

    /// Applies a list of extended options (`-E`), such as `root_owner=1000:1000,stride=16,nodiscard`.
    ///
    /// `lazy_itable_init` is accepted and ignored: ext2 cannot mark inode tables as not yet initialised, so
    /// they are always zeroed. `resize=` is accepted and ignored too: room to grow is always reserved.
    ///
    /// # Errors
    /// [`Error::Unsupported`] names the first option that is unknown or has a bad value.
    pub fn apply_extended(&mut self, list: &str) -> Result<()> {
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let bad = || Error::Unsupported(format!("extended option {word}"));
            match name {
                "root_owner" if value.is_empty() => self.root_owner = (0, 0),
                "root_owner" => {
                    let (uid, gid) = value.split_once(':').ok_or_else(bad)?;
                    self.root_owner = (uid.parse().map_err(|_| bad())?, gid.parse().map_err(|_| bad())?);
                }
                "stride" => self.stride = value.parse().map_err(|_| bad())?,
                "stripe_width" | "stripe-width" => {
                    self.stripe_width = value.parse().map_err(|_| bad())?;
                }
                "discard" => self.discard = true,
                "nodiscard" => self.discard = false,
                "lazy_itable_init" | "resize" => {}
                _ => return Err(bad()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_switch_features_on_and_off() {
        let mut features = MkfsFeatures::default();
        features.apply("^dir_index, -resize_inode").unwrap();
        assert!(!features.dir_index && !features.resize_inode && features.filetype);
        features.apply("none,+filetype").unwrap();
        assert_eq!(features, MkfsFeatures { filetype: true, ..MkfsFeatures::NONE });
        assert!(features.apply("64bit").is_err());
    }

    #[test]
    fn hash_seeds_differ_as_their_uuids_do() {
        let seeds = [[1; 16], [2; 16], [0; 16]].map(|uuid| MkfsOptions::hash_seed_for(&uuid));
        assert!(seeds[0] != seeds[1] && seeds[1] != seeds[2] && seeds.iter().all(|seed| *seed != [0; 16]));
        assert_eq!(seeds[0], MkfsOptions::hash_seed_for(&[1; 16]));
    }

    #[test]
    fn extended_options_are_parsed() {
        let mut options = MkfsOptions::new([1; 16], [2; 16], Timestamp::default());
        options.apply_extended("root_owner=7:8,stride=4,lazy_itable_init=1,discard").unwrap();
        assert_eq!((options.root_owner, options.stride, options.discard), ((7, 8), 4, true));
        assert!(options.apply_extended("stride=x").is_err());
        assert!(options.apply_extended("wings").is_err());
    }
}
