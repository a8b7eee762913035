//! Where things are on the logical disk.
//!
//! **Layout.** Every list is sparse, and positions are ours.
//!
//! ```text
//!   list 1   the volume: its one block says what this is
//!   list 2   the root directory
//!   list 3   the kept inodes: position n has a block, never written, while inode n has no name and is in use
//!   others   an inode each; an inode's number is its list's
//!
//!   position of an inode's list
//!   0                 the inode, and behind it extended attributes if they fit
//!   1 + n             block n of a file or of a symbolic link's target
//!   1 to 2^54         leaves of a directory: entries whose slots are above the leaf before and not above this position
//!   2^62 + n          block n of extended attributes that do not fit behind the inode
//! ```
//!
//! Numbers of lists are never given twice, and so neither are those of inodes: there is no map of free ones.

use fstitch_core::{Error, InodeNo, Le, Result, Structure, Timestamp};
use fstitch_lld::ListId;

/// The volume's own list.
pub(crate) const VOLUME: ListId = 1;
/// The root directory.
pub(crate) const ROOT: InodeNo = InodeNo(2);
/// The inodes that have no name and are in use.
pub(crate) const KEPT: ListId = 3;

/// Where the inode is in its list.
pub(crate) const INODE_AT: u64 = 0;
/// The highest position of a leaf.
pub(crate) const LEAF_LAST: u64 = 1 << 54;
/// Where extended attributes begin that do not fit behind their inode.
pub(crate) const XATTRS_AT: u64 = 1 << 62;

/// Longest name in bytes.
pub(crate) const NAME_MAX: usize = 255;
/// Longest target of a symbolic link in bytes, as in Linux.
pub(crate) const SYMLINK_MAX: usize = 4095;
/// Longest file in bytes: what offsets of programs reach.
pub(crate) const SIZE_MAX: u64 = (1 << 63) - 1;
/// Most names of an inode.
pub(crate) const LINK_MAX: u32 = (1 << 31) - 1;
/// Bytes of an inode's extended attributes, names included, as they are stored.
pub(crate) const XATTRS_MAX: usize = 256 << 10;

/// Where block `n` of a file is in its list.
pub(crate) fn data_at(n: u64) -> u64 {
    n + 1
}

/// Whether a number can be an inode's.
pub(crate) fn is_inode(ino: InodeNo) -> bool {
    ino == ROOT || ino.get() > KEPT
}

const MAGIC: &[u8; 8] = b"MINIXLLD";
const VERSION: u32 = 1;
const LABEL: std::ops::Range<usize> = 40..104;
const MADE: usize = 104;

/// What the volume's block says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Names the volume.
    pub uuid: [u8; 16],
    /// A name for people, of at most 64 bytes.
    pub label: Vec<u8>,
    /// When it was made.
    pub made: Timestamp,
}

impl Volume {
    /// As a block of the disk.
    pub(crate) fn encode(&self, block_size: usize) -> Vec<u8> {
        let mut block = vec![0; block_size];
        block[..8].copy_from_slice(MAGIC);
        Le::put_u32(&mut block, 8, VERSION);
        block[16..32].copy_from_slice(&self.uuid);
        block[LABEL][..self.label.len()].copy_from_slice(&self.label);
        put_time(&mut block, MADE, self.made);
        block
    }

    /// What a block says.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is none of ours, [`Error::Unsupported`] if it is of another version.
    pub(crate) fn decode(block: &[u8]) -> Result<Self> {
        let damaged = |what: &str| Error::corrupt(Structure::Superblock, None, what);
        if !block.starts_with(MAGIC) {
            return Err(damaged("the logical disk holds no MinixLLD"));
        }
        match Le::u32(block, 8) {
            VERSION => {}
            version => return Err(Error::Unsupported(format!("version {version} of MinixLLD's format"))),
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&block[16..32]);
        let label = block[LABEL].split(|&byte| byte == 0).next().unwrap_or_default().to_vec();
        let made = time(block, MADE).ok_or_else(|| damaged("a time of more than a second's nanoseconds"))?;
        Ok(Self { uuid, label, made })
    }

    /// What keeps the places of names of this volume apart from those of others.
    pub(crate) fn seed(&self) -> u64 {
        Le::u64(&self.uuid, 0) ^ Le::u64(&self.uuid, 8)
    }
}

/// Bytes of a time.
pub(crate) const TIME: usize = 12;

/// Writes a time.
pub(crate) fn put_time(bytes: &mut [u8], at: usize, time: Timestamp) {
    bytes[at..at + 8].copy_from_slice(&time.secs.to_le_bytes());
    Le::put_u32(bytes, at + 8, time.nanos);
}

/// Reads a time; none if it is of no moment.
pub(crate) fn time(bytes: &[u8], at: usize) -> Option<Timestamp> {
    let mut secs = [0; 8];
    secs.copy_from_slice(&bytes[at..at + 8]);
    let nanos = Le::u32(bytes, at + 8);
    (nanos < 1_000_000_000).then_some(Timestamp { secs: i64::from_le_bytes(secs), nanos })
}

#[cfg(test)]
mod tests {
    use fstitch_core::Errno;

    use super::*;

    #[test]
    fn a_volume_is_read_as_it_is_written() {
        let made = Timestamp { secs: -5, nanos: 999_999_999 };
        let volume = Volume { uuid: [7; 16], label: b"home".to_vec(), made };
        assert_eq!(Volume::decode(&volume.encode(512)).unwrap(), volume);
    }

    #[test]
    fn what_is_no_volume_is_refused() {
        assert_eq!(Volume::decode(&[0; 512]).unwrap_err().errno(), Errno::UCLEAN);
        let volume = Volume { uuid: [7; 16], label: Vec::new(), made: Timestamp::default() };
        let mut block = volume.encode(512);
        block[8] = 9;
        assert_eq!(Volume::decode(&block).unwrap_err().errno(), Errno::OPNOTSUPP);
    }
}
