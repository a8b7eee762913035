//! The two checksums that later journals carry.
//!
//! Journals of ext3 have none. Those of ext4 have either a CRC-32 (most significant bit first) over all copies
//! of a transaction, kept in its commit block, or a CRC-32C (least significant bit first) in every block and
//! tag. Neither is inverted at the end, and both start from all ones.

/// What every checksum starts from.
pub const START: u32 = u32::MAX;

const CRC32_POLYNOMIAL: u32 = 0x04c1_1db7;

static CRC32: [u32; 256] = table();

/// The remainders of all bytes, the most significant bit first.
const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut index: u32 = 0;
    let mut slot = 0;
    while slot < 256 {
        let mut rest = index << 24;
        let mut bit = 0;
        while bit < 8 {
            rest = if rest & 0x8000_0000 == 0 { rest << 1 } else { (rest << 1) ^ CRC32_POLYNOMIAL };
            bit += 1;
        }
        table[slot] = rest;
        slot += 1;
        index += 1;
    }
    table
}

/// Continues the CRC-32 `sum` over `bytes`.
#[must_use]
pub fn crc32(sum: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(sum, |sum, &byte| {
        let [high, ..] = sum.to_be_bytes();
        (sum << 8) ^ CRC32[usize::from(high ^ byte)]
    })
}

/// Continues the CRC-32C `sum` over `bytes`.
#[must_use]
pub fn crc32c(sum: u32, bytes: &[u8]) -> u32 {
    // The crate inverts before and after, as most formats do.
    !::crc32c::crc32c_append(!sum, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_check_values_come_out() {
        // CRC-32/MPEG-2 and CRC-32C of the digits, the latter inverted as its catalogue entry asks.
        assert_eq!(crc32(START, b"123456789"), 0x0376_e6e7);
        assert_eq!(!crc32c(START, b"123456789"), 0xe306_9283);
    }

    #[test]
    fn a_sum_goes_on_where_it_stopped() {
        let whole = crc32c(START, b"journal block");
        assert_eq!(crc32c(crc32c(START, b"journal"), b" block"), whole);
    }
}
