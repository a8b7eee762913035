//! Searching free-space bitmaps, 64 bits at a time. A set bit is in use.

use fstitch_core::Le;

use super::num::idx;

fn word(bitmap: &[u8], index: u32) -> u64 {
    Le::u64(bitmap, idx(index) * 8)
}

/// The first bit in `from..end` that is clear (`value` false) or set (true).
#[must_use]
pub(crate) fn next(bitmap: &[u8], value: bool, from: u32, end: u32) -> Option<u32> {
    let flip = if value { 0 } else { u64::MAX };
    let mut at = from;
    while at < end {
        let bits = (word(bitmap, at / 64) ^ flip) >> (at % 64);
        if bits != 0 {
            let found = at + bits.trailing_zeros();
            return (found < end).then_some(found);
        }
        at = (at / 64 + 1) * 64;
    }
    None
}

/// The last clear bit in `from..end`.
#[must_use]
pub(crate) fn last_free(bitmap: &[u8], from: u32, end: u32) -> Option<u32> {
    let mut end = end;
    while from < end {
        let index = (end - 1) / 64;
        let above = index * 64 + 64 - end;
        let free = !word(bitmap, index) << above;
        if free != 0 {
            let found = end - 1 - free.leading_zeros();
            return (found >= from).then_some(found);
        }
        end = index * 64;
    }
    None
}

/// How many bits are clear below `end`.
#[must_use]
pub(crate) fn count_free(bitmap: &[u8], end: u32) -> u32 {
    let whole: u32 = (0..end / 64).map(|index| word(bitmap, index).count_zeros()).sum();
    let rest = end % 64;
    if rest == 0 { whole } else { whole + (!word(bitmap, end / 64) << (64 - rest)).count_ones() }
}

/// Whether all bits in `from..end` have `value`.
#[must_use]
pub(crate) fn all(bitmap: &[u8], value: bool, from: u32, end: u32) -> bool {
    next(bitmap, !value, from, end).is_none()
}

/// The runs of bits with `value` in `from..end`, as start and length.
pub(crate) fn runs(bitmap: &[u8], value: bool, from: u32, end: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
    let mut at = from;
    std::iter::from_fn(move || {
        let start = next(bitmap, value, at, end)?;
        at = next(bitmap, !value, start, end).unwrap_or(end);
        Some((start, at - start))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(set: &[u32]) -> Vec<u8> {
        let mut map = vec![0; 32];
        for &bit in set {
            map[idx(bit / 8)] |= 1 << (bit % 8);
        }
        map
    }

    #[test]
    fn searching_agrees_with_looking_at_every_bit() {
        let mut seed = fstitch_core::Seed::new(4);
        for round in 0..2_000 {
            let set: Vec<u32> = (0..256).filter(|_| seed.chance(1 + round % 7, 8)).collect();
            let bitmap = map(&set);
            let from = u32::try_from(seed.below(256)).unwrap();
            let end = from + u32::try_from(seed.below(u64::from(257 - from))).unwrap();
            let is_set = |bit: &u32| set.contains(bit);
            assert_eq!(next(&bitmap, true, from, end), (from..end).find(is_set));
            assert_eq!(next(&bitmap, false, from, end), (from..end).find(|bit| !is_set(bit)));
            assert_eq!(last_free(&bitmap, from, end), (from..end).rev().find(|bit| !is_set(bit)));
            let free = (0..end).filter(|bit| !is_set(bit)).count();
            assert_eq!(idx(count_free(&bitmap, end)), free);
            assert_eq!(all(&bitmap, true, from, end), (from..end).all(|bit| is_set(&bit)));
            let total: u32 = runs(&bitmap, false, from, end).map(|(_, len)| len).sum();
            assert_eq!(idx(total), (from..end).filter(|bit| !is_set(bit)).count());
        }
    }

    #[test]
    fn runs_are_maximal() {
        let bitmap = map(&[0, 1, 2, 64, 200]);
        assert_eq!(runs(&bitmap, true, 1, 256).collect::<Vec<_>>(), [(1, 2), (64, 1), (200, 1)]);
    }
}
