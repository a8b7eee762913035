//! Where everything is: the superblock, inodes, directory entries. All numbers are little-endian.
//!
//! ```text
//!   block 0   superblock: who the volume is, the root of the inode file, the micro-journal
//!   block 1   the first 128 bytes of block 0 again
//!   block 2…  trees: inodes, contents, directories, attributes, and their pointers
//!   behind    the log, where the volume is on a device
//! ```
//!
//! A **pointer** is a word: block number in the upper 61 bits, below it the height of the tree at its top. 0 points to nothing, and
//! reads as zeros. An **inode** is 128 bytes; that it is in use is not said in it, but by the directory entry that names it. A
//! **directory entry** is the inode's number (a word; 0: free), its length in the block (16 bits), that of the name (16 bits), 4 bytes of
//! nothing, the name, and zeros up to a whole word; entries do not cross blocks, and less than 24 bytes at the end of one are skipped.

use fstitch_core::{Error, InodeNo, Le, Result, Structure, Timestamp};

use crate::log::{HEADERS, LOG_MAX, LOG_MIN, Shape};
use crate::pm::{BLOCK, BLOCK_BYTES, Slot};

pub(crate) const ROOT: InodeNo = InodeNo(1);
/// Bytes of an inode.
pub(crate) const INODE: u64 = 128;
pub(crate) const INODES_IN_BLOCK: u64 = BLOCK_BYTES / INODE;
/// Pointers in a block.
pub(crate) const POINTERS: u64 = BLOCK_BYTES / 8;
/// Levels of pointers above contents, at most.
pub(crate) const HEIGHT_MAX: u8 = 4;
/// Blocks of contents, at most.
pub(crate) const LEAVES_MAX: u64 = POINTERS.pow(HEIGHT_MAX as u32);
/// Bytes of a file, at most.
pub(crate) const SIZE_MAX: u64 = LEAVES_MAX * BLOCK_BYTES;
pub(crate) const NAME_MAX: usize = 255;
pub(crate) const SYMLINK_MAX: usize = 4095;
pub(crate) const LINK_MAX: u32 = 1 << 30;
/// Bytes of an inode's extended attributes, at most.
pub(crate) const XATTRS_MAX: usize = 64 << 10;
/// Bytes before the name in a directory entry.
pub(crate) const ENTRY: usize = 9;
/// The shortest entry.
pub(crate) const ENTRY_MIN: usize = 16;

/// The slot of the inode file's root.
pub(crate) const ROOT_SLOT: u64 = 128;
const MAGIC: &[u8; 8] = b"FSTCHBPF";
const VERSION: u32 = 2;
const LOG: usize = 12;
const LABEL: usize = 40;
const SUM: usize = 104;

/// Who a volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// A name for people, of at most 64 bytes.
    pub label: Vec<u8>,
    /// Blocks of 4 KiB.
    pub blocks: u64,
    /// Blocks of the log behind them; 0 where there is none.
    pub log: u32,
}

impl Identity {
    /// Whether a medium begins as one with a volume does.
    pub(crate) fn is_there(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// The first 128 bytes of the superblock.
    pub(crate) fn encode(&self) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        block[..8].copy_from_slice(MAGIC);
        Le::put_u32(&mut block, 8, VERSION);
        Le::put_u32(&mut block, LOG, self.log);
        block[16..32].copy_from_slice(&self.uuid);
        Le::put_u64(&mut block, 32, self.blocks);
        block[LABEL..LABEL + self.label.len()].copy_from_slice(&self.label);
        let sum = crc32c::crc32c(&block[..SUM]);
        Le::put_u32(&mut block, SUM, sum);
        block
    }

    /// # Errors
    /// `Corrupt` for what is no superblock of ours, `Unsupported` for one of another version.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let damaged = |what: &str| Error::corrupt(Structure::Superblock, None, what);
        if !Self::is_there(bytes) {
            return Err(damaged("it is not that of a BPFS volume"));
        }
        if crc32c::crc32c(&bytes[..SUM]) != Le::u32(bytes, SUM) {
            return Err(damaged("its sum is wrong"));
        }
        match Le::u32(bytes, 8) {
            VERSION => {}
            other => return Err(Error::Unsupported(format!("BPFS volumes of version {other}"))),
        }
        let label = &bytes[LABEL..LABEL + 64];
        let len = label.iter().position(|byte| *byte == 0).unwrap_or(label.len());
        let uuid = bytes[16..32].try_into().expect("16 bytes");
        let (blocks, log) = (Le::u64(bytes, 32), Le::u32(bytes, LOG));
        if log != 0 && !(LOG_MIN..=LOG_MAX).contains(&u64::from(log)) {
            return Err(damaged(&format!("it says that the log has {log} blocks")));
        }
        Ok(Self { uuid, label: label[..len].to_vec(), blocks, log })
    }

    /// Blocks of the medium that are the volume's, with its log.
    pub(crate) fn whole(&self) -> u64 {
        self.blocks.saturating_add(self.log.into())
    }

    /// Where the log is.
    pub(crate) fn log_shape(&self) -> Shape {
        let ring = u64::from(self.log).saturating_sub(HEADERS);
        Shape { first: self.blocks, ring }
    }

    /// What seeds the places of names in memory.
    pub(crate) fn seed(&self) -> u64 {
        Le::u64(&self.uuid, 0) ^ Le::u64(&self.uuid, 8)
    }
}

/// Words of an inode, by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub(crate) enum Field {
    /// Generation (32 bits), kind and permissions (16), `chattr` flags (16).
    Mode = 0,
    /// User and group: one word, so that a change of both is one store.
    Owner = 1,
    /// Bytes that count.
    Size = 2,
    /// The tree of contents.
    Root = 3,
    /// Time of the last change.
    Ctime = 4,
    /// Of the last change of contents; 0: the same.
    Mtime = 5,
    /// Of the last access.
    Atime = 6,
    /// Of its making.
    Crtime = 7,
    /// Device number (32 bits), names (32; only where they are not counted anew, else 0).
    Device = 8,
    /// The tree of extended attributes.
    Xattrs = 9,
}

impl Field {
    pub(crate) const ALL: [Self; 10] = [
        Self::Mode,
        Self::Owner,
        Self::Size,
        Self::Root,
        Self::Ctime,
        Self::Mtime,
        Self::Atime,
        Self::Crtime,
        Self::Device,
        Self::Xattrs,
    ];

    /// Whether [`Field::ALL`] is in the order of the words: a new inode is written as one run of them.
    const fn are_in_order() -> bool {
        let mut word = 0;
        while word < Self::ALL.len() {
            if Self::ALL[word] as usize != word {
                return false;
            }
            word += 1;
        }
        true
    }

    /// Its number in the words of the block that an inode is in.
    pub(crate) fn of(self, ino: u64) -> u16 {
        let in_block = u16::try_from(ino % INODES_IN_BLOCK * (INODE / 8)).expect("a block has 512 words");
        in_block + self as u16
    }
}

const _: () = assert!(Field::are_in_order());

/// The slot of word `index` of what begins at `at`.
pub(crate) fn slot(at: u64, index: u16) -> Slot {
    Slot::at(at + 8 * u64::from(index))
}

/// The word of a time: seconds in the lower half, nanoseconds and two more bits of seconds in the upper one, so that within a second the
/// one half changes and in whole seconds the other. Never 0.
pub(crate) fn time_word(time: Timestamp) -> u64 {
    let secs = time.secs.clamp(-(1 << 33), (1 << 33) - 1);
    let bits = u64::from_le_bytes(secs.to_le_bytes());
    let word = bits & 0xffff_ffff | u64::from(time.nanos) << 32 | (bits >> 32 & 3) << 62;
    if word == 0 { 1_000_000_000 << 32 } else { word }
}

/// The time of a word. What is of no moment is taken as the beginning of its second.
pub(crate) fn word_time(word: u64) -> Timestamp {
    let bits = word & 0xffff_ffff | (word >> 62) << 32;
    // 34 bits with a sign.
    let secs = i64::from_le_bytes((bits << 30).to_le_bytes()) >> 30;
    let nanos = u32::try_from(word >> 32 & 0x3fff_ffff).expect("30 bits");
    Timestamp { secs, nanos: if nanos < 1_000_000_000 { nanos } else { 0 } }
}

/// Flags of `chattr` as an inode has them.
pub(crate) fn pack_flags(flags: u32) -> u16 {
    u16::try_from(flags & 0xff | (flags >> 16 & 3) << 8).expect("10 bits")
}

/// The reverse.
pub(crate) fn unpack_flags(packed: u16) -> u32 {
    u32::from(packed & 0xff) | u32::from(packed >> 8 & 3) << 16
}

/// Bytes of an entry with a name of so many.
pub(crate) fn entry_len(name: usize) -> usize {
    (ENTRY + name).next_multiple_of(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_are_written() {
        for (secs, nanos) in
            [(0, 0), (0, 1), (1, 0), (-1, 999_999_999), (1 << 32, 5), ((1 << 33) - 1, 7), (-(1 << 33), 0)]
        {
            let time = Timestamp { secs, nanos };
            assert_ne!(time_word(time), 0);
            assert_eq!(word_time(time_word(time)), time);
        }
    }

    #[test]
    fn a_second_later_one_half_changes() {
        let word = |secs| time_word(Timestamp { secs, nanos: 0 });
        assert_eq!(word(1_700_000_000) >> 32, word(1_700_000_001) >> 32);
    }

    #[test]
    fn flags_are_read_as_they_are_written() {
        for flags in [0, 0x8, 0x10, 0x20, 0x40, 0x80, 0x1_0000, 0x2_0000, 0x3_00f8] {
            assert_eq!(unpack_flags(pack_flags(flags)), flags);
        }
    }

    #[test]
    fn a_superblock_is_read_as_it_is_written() {
        let identity = Identity { uuid: [7; 16], label: b"a label".to_vec(), blocks: 256, log: 16 };
        let mut block = identity.encode();
        assert_eq!(Identity::decode(&block).unwrap(), identity);
        block[40] ^= 1;
        assert!(Identity::decode(&block).unwrap_err().to_string().contains("sum"));
        assert!(Identity::decode(&[0; BLOCK]).unwrap_err().to_string().contains("not that of"));
    }
}
