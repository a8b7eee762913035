//! Contents in fewer blocks of the device: what is cold may be compressed, each block by itself, when the cleaner moves it.
//!
//! ```text
//!    0  bytes of what is compressed (4)     4  LZ4, one block of it     …  zeros to the end of the block of the device
//! ```
//!
//! **Invariant.** What takes as many blocks of the device as a block of the disk has is as the client wrote it; what takes fewer is
//! packed. Nothing else says so.

use fstitch_core::Le;
use fstitch_core::num::to_usize;

/// Bytes in front of what is compressed.
const HEAD: usize = 4;

/// How contents that are cold are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// As they were written.
    #[default]
    None,
    /// By LZ4, where that takes fewer blocks of the device. A block that was packed takes more again when it is written, so on a
    /// disk that is full with packed blocks writing them again can fail with `ENOSPC`.
    Lz4,
}

impl Compression {
    /// What it is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
        }
    }

    /// Its number in the superblock.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Lz4 => 1,
        }
    }

    /// That with a number in a superblock.
    pub(crate) fn numbered(number: u32) -> Option<Self> {
        [Self::None, Self::Lz4].into_iter().find(|compression| compression.number() == number)
    }
}

/// Packs contents; `None` if that would take no fewer blocks of the device.
pub(crate) fn packed(contents: &[u8], unit: usize) -> Option<Vec<u8>> {
    let most = contents.len().checked_sub(unit)?;
    let mut bytes = vec![0; HEAD + lz4_flex::block::get_maximum_output_size(contents.len())];
    let size = lz4_flex::block::compress_into(contents, &mut bytes[HEAD..]).ok()?;
    let len = (HEAD + size).div_ceil(unit) * unit;
    if len > most {
        return None;
    }
    Le::put_u32(&mut bytes, 0, u32::try_from(size).ok()?);
    bytes[HEAD + size..].fill(0);
    bytes.resize(len, 0);
    Some(bytes)
}

/// Unpacks contents of just so many bytes. Returns whether they were such.
pub(crate) fn unpack(bytes: &[u8], into: &mut [u8]) -> bool {
    let Some((_, rest)) = bytes.split_at_checked(HEAD) else { return false };
    let packed = rest.get(..to_usize(Le::u32(bytes, 0)));
    let size = packed.and_then(|packed| lz4_flex::block::decompress_into(packed, into).ok());
    size == Some(into.len())
}

#[cfg(test)]
mod tests {
    use fstitch_core::Seed;
    use fstitch_core::num::to_u64;

    use super::*;

    const UNIT: usize = 512;

    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut seed = Seed::new(seed);
        (0..len).map(|_| seed.below(256).to_le_bytes()[0]).collect()
    }

    #[test]
    fn what_is_packed_is_unpacked_in_every_size() {
        for len in [2048, 4096, 65_536] {
            for noisy in [0, 100, len / 4, len / 2] {
                let mut contents = vec![7; len];
                contents[..noisy].copy_from_slice(&noise(noisy, to_u64(len)));
                let packed = packed(&contents, UNIT).unwrap();
                assert!(packed.len() < len && packed.len().is_multiple_of(UNIT), "{len}, {noisy}");
                assert!(packed.len() <= noisy + len / 128 + 2 * UNIT, "{len}, {noisy}: {}", packed.len());
                let mut found = vec![1; len];
                assert!(unpack(&packed, &mut found));
                assert!(found == contents);
                assert!(!unpack(&packed, &mut vec![0; len - 1]) && !unpack(&packed, &mut vec![0; len + 1]));
            }
        }
    }

    #[test]
    fn what_would_take_as_much_stays_as_it_is() {
        assert_eq!(packed(&noise(4096, 1), UNIT), None);
        assert_eq!(packed(&[0; UNIT], UNIT), None, "nothing takes less than a block of the device");
        let mut nearly = noise(4096, 2);
        nearly[3700..].fill(0);
        assert_eq!(packed(&nearly, UNIT), None, "with what is in front of it");
    }

    #[test]
    fn damage_is_refused_or_gives_other_bytes_and_never_a_panic() {
        let contents: Vec<u8> = (0..4096_u32).map(|at| (at / 30).to_le_bytes()[0]).collect();
        let whole = packed(&contents, UNIT).unwrap();
        let mut found = vec![0; 4096];
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut damaged = whole.clone();
                damaged[at] ^= 1 << bit;
                unpack(&damaged, &mut found);
            }
        }
        assert!(!unpack(&[], &mut found) && !unpack(&[255; 8], &mut found) && !unpack(&[0; 8], &mut found));
    }
}
