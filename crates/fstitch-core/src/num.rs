//! Conversions between number types that lose nothing where this runs: on 64-bit machines.

/// A size in memory as a number of the medium.
///
/// # Panics
/// On a machine with larger addresses than 64 bits.
#[inline]
#[must_use]
pub fn to_u64(size: usize) -> u64 {
    u64::try_from(size).expect("64-bit machine")
}

/// A number of the medium as a size in memory.
///
/// # Panics
/// On a machine with smaller addresses than 64 bits.
#[inline]
#[must_use]
pub fn to_usize(number: impl Into<u64>) -> usize {
    usize::try_from(number.into()).expect("64-bit machine")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_on_the_way_and_back() {
        for number in [0, 1, u64::from(u32::MAX), u64::MAX] {
            assert_eq!(to_u64(to_usize(number)), number);
        }
        assert_eq!((to_usize(7_u32), to_usize(7_u8)), (7, 7));
    }
}
