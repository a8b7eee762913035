//! The two checksums that later journals carry.
//!
//! Journals of ext3 have none. Those of ext4 have either a CRC-32 (most significant bit first) over all copies
//! of a transaction, kept in its commit block, or a CRC-32C (least significant bit first) in every block and
//! tag. Neither is inverted at the end, and both start from all ones.

/// What every checksum starts from.
pub const START: u32 = u32::MAX;

const CRC32_POLYNOMIAL: u32 = 0x04c1_1db7;
const CRC32C_POLYNOMIAL: u32 = 0x82f6_3b78;

static CRC32: [u32; 256] = table(true);
static CRC32C: [u32; 256] = table(false);

/// The remainders of all bytes; `high_first` says which bit of a byte comes first.
const fn table(high_first: bool) -> [u32; 256] {
    let mut table = [0; 256];
    let mut index: u32 = 0;
    let mut slot = 0;
    while slot < 256 {
        let mut rest = if high_first { index << 24 } else { index };
        let mut bit = 0;
        while bit < 8 {
            rest = match (high_first, rest & 0x8000_0000 != 0, rest & 1 != 0) {
                (true, true, _) => (rest << 1) ^ CRC32_POLYNOMIAL,
                (true, false, _) => rest << 1,
                (false, _, true) => (rest >> 1) ^ CRC32C_POLYNOMIAL,
                (false, _, false) => rest >> 1,
            };
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
    bytes.iter().fold(sum, |sum, &byte| {
        let [low, ..] = sum.to_le_bytes();
        (sum >> 8) ^ CRC32C[usize::from(low ^ byte)]
    })
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
