//! Device numbers: the original 16-bit encoding in the first block pointer where it suffices, else the
//! 32-bit one in the second.

/// The two words that hold device `rdev` (Linux's 32-bit encoding: minor 0-7, major 8-19, minor 20-31).
#[must_use]
pub fn encode(rdev: u32) -> [u32; 2] {
    let major = (rdev >> 8) & 0xfff;
    let minor = (rdev & 0xff) | (rdev >> 12) & 0xf_ff00;
    if major < 256 && minor < 256 { [major << 8 | minor, 0] } else { [0, rdev] }
}

/// The device number in the two words, in Linux's 32-bit encoding.
#[must_use]
pub fn decode(old: u32, new: u32) -> u32 {
    if old == 0 { new } else { old & 0xffff }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_numbers_use_the_old_place() {
        assert_eq!(encode(0x0103), [0x0103, 0]);
        assert_eq!(encode(0x10_0003), [0, 0x10_0003], "minor 259");
        assert_eq!(encode(0x1_0003), [0, 0x1_0003], "major 256");
        for rdev in [0x0103, 0x10_0003, 0x1_0003, 0xffff_ffff, 0] {
            let [old, new] = encode(rdev);
            assert_eq!(decode(old, new), rdev);
        }
    }
}
