//! What a new volume shall be.

use fstitch_core::{Error, Result, Seed, Timestamp};

use super::features::MkfsFeatures;

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
    /// `-b`: a power of two from 1024 to 65536; by default chosen by the volume's size.
    pub block_size: Option<u32>,
    /// `-C`: bytes of a cluster, with `bigalloc`; a power of two from the block size to 4096 blocks, 16 blocks by default.
    pub cluster_size: Option<u32>,
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
    /// `-E quotatype=`: with `quota`, for whom usage is counted (users, groups, projects); by default users and groups, and projects if
    /// there are any.
    pub quota_types: Option<[bool; 3]>,
    /// `-G`: with `flex_bg`, how many groups have their bitmaps and tables together; a power of two, 16 by default.
    pub groups_per_flex: Option<u32>,
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
            cluster_size: None,
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
            quota_types: None,
            groups_per_flex: None,
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
    /// `lazy_itable_init` and `lazy_journal_init` are accepted and ignored: ext2 cannot mark inode tables as not yet
    /// initialised, and on ext4 a volume that is complete is worth the time, so both are always zeroed. `resize=` is accepted
    /// and ignored too: room to grow is always reserved.
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
                "quotatype" => self.quota_types = Some(quota_types(value).ok_or_else(bad)?),
                "discard" => self.discard = true,
                "nodiscard" => self.discard = false,
                "lazy_itable_init" | "lazy_journal_init" | "resize" => {}
                _ => return Err(bad()),
            }
        }
        Ok(())
    }
}

/// The kinds in a list such as `usrquota:grpquota`.
fn quota_types(list: &str) -> Option<[bool; 3]> {
    let mut types = [false; 3];
    for word in list.split(':') {
        let at = ["usrquota", "grpquota", "prjquota"].iter().position(|known| *known == word)?;
        types[at] = true;
    }
    Some(types)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        options.apply_extended("quotatype=prjquota:usrquota").unwrap();
        assert_eq!(options.quota_types, Some([true, false, true]));
        assert!(options.apply_extended("quotatype=usrquota:").is_err());
        assert!(options.apply_extended("wings").is_err());
    }
}
