//! Which image a log was recorded on: a mark at its beginning that names the image's length and a digest of its contents, so
//! that nobody judges it on another one.
//!
//! **Layout** of the mark's text: `fstitch base BYTES DIGEST`, the digest as 16 hexadecimal digits. It is taken over the sectors of
//! 512 bytes that are not all zero, in order, each with its number first, as little-endian words of 64 bits: `digest` begins
//! as FNV-1a's offset basis, and for each word becomes `(rotate_left(digest, 5) ^ word) * FNV's prime`. It protects from mistakes,
//! not from an adversary.

use std::fmt;
use std::str::FromStr;

use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, Result};

use super::dmlog::{FIRST_FOREIGN, SECTOR, export};
use super::image::{Base, size};
use super::log::{Event, Log, Mark};

/// An image, as the mark names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Length of the device in bytes.
    pub bytes: u64,
    digest: u64,
}

const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;
/// Blocks that are read at a time.
const BATCH: u64 = 256;

impl Origin {
    /// Reads all of `device`.
    ///
    /// # Errors
    /// When the device fails.
    pub fn of_device(device: &dyn BlockDevice) -> Result<Self> {
        let geometry = device.geometry();
        let unit = size(geometry.block_size);
        let mut digest = Digest::default();
        let mut first = 0;
        while first < geometry.block_count {
            let count = BATCH.min(geometry.block_count - first);
            let mut bytes = vec![0; unit * usize::try_from(count).expect("it is small")];
            let mut reads: Vec<BlockRead<'_>> = (first..)
                .zip(bytes.chunks_mut(unit))
                .map(|(block, data)| BlockRead { block: BlockNo(block), kind: BlockKind::Data, data })
                .collect();
            device.read(&mut reads)?;
            digest.take(&bytes);
            first += count;
        }
        Ok(Self { bytes: geometry.bytes(), digest: digest.value })
    }

    /// The same of the first `bytes` of an image in memory, or of all of it where it is shorter.
    #[must_use]
    pub fn of_base(base: &Base, bytes: u64) -> Self {
        let geometry = base.geometry();
        let bytes = bytes.min(geometry.bytes());
        let mut digest = Digest::default();
        for block in 0..bytes.div_ceil(u64::from(geometry.block_size)) {
            digest.take(base.block(block));
        }
        Self { bytes, digest: digest.value }
    }
}

impl Origin {
    /// How `base` differs from the image that the log was recorded on, for people; `None` where it does not.
    #[must_use]
    pub fn differs_from(&self, base: &Base) -> Option<String> {
        let found = base.geometry().bytes();
        if found < self.bytes {
            return Some(format!("that had {} bytes, this has {found}", self.bytes));
        }
        let same = *self == Self::of_base(base, self.bytes);
        (!same).then(|| "other bytes stand in it".to_owned())
    }
}

struct Digest {
    value: u64,
    sector: u64,
}

impl Default for Digest {
    fn default() -> Self {
        Self { value: BASIS, sector: 0 }
    }
}

impl Digest {
    fn take(&mut self, bytes: &[u8]) {
        for sector in bytes.chunks(SECTOR) {
            if sector.iter().any(|&byte| byte != 0) {
                self.word(self.sector);
                for word in sector.chunks(8) {
                    let mut whole = [0; 8];
                    whole[..word.len()].copy_from_slice(word);
                    self.word(u64::from_le_bytes(whole));
                }
            }
            self.sector += 1;
        }
    }

    fn word(&mut self, word: u64) {
        self.value = (self.value.rotate_left(5) ^ word).wrapping_mul(PRIME);
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fstitch base {} {:016x}", self.bytes, self.digest)
    }
}

impl FromStr for Origin {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        let (bytes, digest) =
            text.strip_prefix("fstitch base ").and_then(|rest| rest.split_once(' ')).ok_or(())?;
        let bytes = bytes.parse().map_err(drop)?;
        let digest = u64::from_str_radix(digest, 16).map_err(drop)?;
        Ok(Self { bytes, digest })
    }
}

/// The log in the foreign format, and before it the mark that says on which image it was recorded.
#[must_use]
pub fn export_from(origin: Origin, mut log: Log) -> Vec<u8> {
    log.events.insert(0, Event::Mark(Mark::Note(FIRST_FOREIGN)));
    export(&log, &[(FIRST_FOREIGN, origin.to_string())].into())
}
