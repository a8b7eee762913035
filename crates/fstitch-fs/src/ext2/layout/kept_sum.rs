//! A superblock that changes and keeps its sum.
//!
//! The superblock lies in two sectors of 512 bytes, and its sum in the second. What a mount and its end change (`needs_recovery`,
//! times, counts, the state) lies in the first, and is written in place, outside the journal: torn between the sectors, a
//! superblock with a new sum would be one with a wrong sum, of a volume that nobody opens any more. So the sum stays what it is:
//! four bytes in the first sector are chosen such that it is right. They are the last of the path where the volume was
//! mounted last, behind its end, which nobody looks at. Then the second sector does not change, and a write of the first is
//! whole or not there.

use fstitch_core::Le;

use super::checksum::{crc, superblock};
use super::superblock::{S_CHECKSUM, S_LAST_MOUNTED};

/// The polynomial of CRC-32C, bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// Where the four bytes are: the last of 64.
const SPARE: usize = S_LAST_MOUNTED + 60;

const _: () = assert!(SPARE + 4 <= 512 && S_CHECKSUM.offset() >= 512);

/// Makes the sum that the superblock `raw` has the right one, as long as the path has an end before the bytes that this takes.
/// Else, and where the volume has no sums, nothing changes.
pub fn keep_sum(raw: &mut [u8]) {
    let (Some(now), wanted) = (superblock(raw), S_CHECKSUM.get(raw)) else { return };
    let path = &raw[S_LAST_MOUNTED..SPARE];
    if now == wanted || !path.contains(&0) {
        return;
    }
    let before = crc(u32::MAX, &raw[..SPARE]);
    let behind =
        raw[SPARE + 4..S_CHECKSUM.offset()].iter().rev().fold(wanted, |sum, &byte| step_back(sum, byte));
    // What four zeros would have to start from; the bytes make the difference.
    let start = (0..4).fold(behind, |sum, _| step_back(sum, 0));
    Le::put_u32(raw, SPARE, start ^ before);
    debug_assert_eq!(superblock(raw), Some(wanted), "the bytes bring the sum about");
}

/// The sum before `byte`, given the one behind it.
fn step_back(sum: u32, byte: u8) -> u32 {
    let mut before = sum;
    for _ in 0..8 {
        // The top bit says whether the polynomial was added when a bit was shifted out.
        before = if before >> 31 == 0 { before << 1 } else { (before ^ POLYNOMIAL) << 1 | 1 };
    }
    before ^ u32::from(byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ext2::layout::checksum::{is_superblock_right, seal_superblock};
    use crate::ext2::layout::feature::ro_compat;
    use crate::ext2::layout::superblock::{
        REVISION_DYNAMIC, S_FEATURE_RO_COMPAT, S_MTIME, S_REV_LEVEL, SUPERBLOCK_SIZE,
    };

    fn sample(seed: u64) -> Vec<u8> {
        let mut seed = fstitch_core::Seed::new(seed);
        let mut raw: Vec<u8> = (0..SUPERBLOCK_SIZE).map(|_| u8::try_from(seed.below(256)).unwrap()).collect();
        S_REV_LEVEL.put(&mut raw, REVISION_DYNAMIC);
        S_FEATURE_RO_COMPAT.put(&mut raw, ro_compat::METADATA_CSUM);
        raw[S_LAST_MOUNTED + 8] = 0;
        seal_superblock(&mut raw);
        raw
    }

    #[test]
    fn a_step_back_undoes_a_step() {
        for byte in [0_u8, 1, 0x80, 0xff] {
            assert_eq!(step_back(crc(0x1234_5678, &[byte]), byte), 0x1234_5678);
        }
    }

    #[test]
    fn torn_between_its_sectors_it_is_right_all_the_same() {
        for seed in 0..200 {
            let old = sample(seed);
            let mut new = old.clone();
            S_MTIME.put(&mut new, S_MTIME.get(&old).wrapping_add(1));
            new[0x60] ^= 4;
            assert!(!is_superblock_right(&new));
            keep_sum(&mut new);
            assert!(is_superblock_right(&new));
            assert_eq!(new[512..], old[512..], "the second sector is as it was");
            let changed = (0..512).filter(|&at| new[at] != old[at]);
            assert!(
                changed
                    .clone()
                    .all(|at| at == 0x60 || (0x2c..0x30).contains(&at) || (SPARE..SPARE + 4).contains(&at))
            );
        }
    }

    #[test]
    fn a_path_as_long_as_its_place_is_left_alone() {
        let mut raw = sample(1);
        raw[S_LAST_MOUNTED..SPARE].fill(b'x');
        let before = raw.clone();
        keep_sum(&mut raw);
        assert_eq!(raw, before);
    }
}
