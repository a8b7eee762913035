//! A bit for each of many things.

use fstitch_core::num::to_usize;

/// Words of a part.
const PART: usize = 512;
/// Bits of a part: as many as blocks of 4 KiB are in a group.
const PART_BITS: u64 = 64 * 512;

/// A fixed number of bits, all clear at first. Parts without a set bit take no memory: of a volume of 20 TiB that is new, almost all.
#[derive(Clone, Debug)]
pub(crate) struct Bits {
    parts: Vec<Option<Box<[u64; PART]>>>,
    len: u64,
}

impl Bits {
    /// `len` clear bits.
    pub(crate) fn new(len: u64) -> Self {
        Self { parts: vec![None; to_usize(len.div_ceil(PART_BITS))], len }
    }

    /// The word that has bit `at`.
    fn word_of(&self, at: u64) -> u64 {
        let part = self.parts.get(to_usize(at / PART_BITS)).and_then(Option::as_ref);
        part.map_or(0, |part| part[to_usize(at % PART_BITS / 64)])
    }

    fn word_mut(&mut self, at: u64) -> &mut u64 {
        let part = self.parts[to_usize(at / PART_BITS)].get_or_insert_with(|| Box::new([0; PART]));
        &mut part[to_usize(at % PART_BITS / 64)]
    }

    /// Whether bit `at` is set; bits beyond the end are clear.
    pub(crate) fn get(&self, at: u64) -> bool {
        at < self.len && self.word_of(at) >> (at % 64) & 1 == 1
    }

    /// The 64 bits from `at` on, the first one lowest; bits beyond the end are clear.
    pub(crate) fn word(&self, at: u64) -> u64 {
        match at % 64 {
            0 => self.word_of(at),
            shift => self.word_of(at) >> shift | self.word_of(at + 64) << (64 - shift),
        }
    }

    /// Sets bit `at`, which must exist; whether it was set before.
    pub(crate) fn set(&mut self, at: u64) -> bool {
        assert!(at < self.len, "bit {at} of {}", self.len);
        let word = self.word_mut(at);
        let before = *word >> (at % 64) & 1 == 1;
        *word |= 1 << (at % 64);
        before
    }

    /// Sets `count` bits from `first` on, all of which must exist, if none of them is set; else false.
    pub(crate) fn set_run(&mut self, first: u64, count: u64) -> bool {
        assert!(first + count <= self.len, "bits {first}+{count} of {}", self.len);
        let masks = || {
            let end = first + count;
            (first / 64..end.div_ceil(64)).map(move |word| {
                let low = first.max(word * 64) - word * 64;
                let bits = end.min(word * 64 + 64) - word * 64 - low;
                let ones = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
                (word * 64, ones << low)
            })
        };
        if masks().any(|(at, mask)| self.word_of(at) & mask != 0) {
            return false;
        }
        masks().for_each(|(at, mask)| *self.word_mut(at) |= mask);
        true
    }

    /// Whether none of `count` bits from `first` on is set.
    pub(crate) fn is_clear(&self, first: u64, count: u64) -> bool {
        let end = first + count;
        count == 0
            || (first / PART_BITS..end.div_ceil(PART_BITS)).all(|number| {
                let Some(Some(part)) = self.parts.get(to_usize(number)) else { return true };
                let bits = number * PART_BITS;
                let (from, to) = (first.max(bits) - bits, end.min(bits + PART_BITS) - bits);
                (from / 64..to.div_ceil(64)).all(|word| {
                    let low = from.max(word * 64) - word * 64;
                    let high = to.min(word * 64 + 64) - word * 64;
                    part[to_usize(word)] << (64 - high) >> (64 - high + low) == 0
                })
            })
    }

    /// Bytes that it has for its parts.
    #[cfg(test)]
    fn memory(&self) -> usize {
        self.parts.iter().flatten().count() * PART * 8
    }
}

/// Whether bit `at` of a bitmap block is set.
pub(crate) fn bit(bytes: &[u8], at: usize) -> bool {
    bytes[at / 8] >> (at % 8) & 1 == 1
}

/// Sets all bits of a bitmap block from `at` on.
pub(crate) fn set_from(bytes: &mut [u8], at: usize) {
    if let Some(byte) = bytes.get_mut(at / 8) {
        *byte |= 0xff << (at % 8);
        bytes[at / 8 + 1..].fill(0xff);
    }
}

/// Sets or clears bit `at` of a bitmap block.
pub(crate) fn put_bit(bytes: &mut [u8], at: usize, on: bool) {
    let mask = 1 << (at % 8);
    if on {
        bytes[at / 8] |= mask;
    } else {
        bytes[at / 8] &= !mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_tells_what_was_there() {
        let mut bits = Bits::new(200);
        assert!(!bits.set(199));
        assert!(bits.set(199) && bits.get(199) && !bits.get(130) && !bits.get(5000));
        assert_eq!((bits.word(192), bits.word(136), bits.word(135)), (1 << 7, 1 << 63, 0));
        let mut runs = Bits::new(300);
        assert!(runs.set_run(60, 200) && !runs.set_run(259, 5) && !runs.set_run(0, 61));
        assert!(!runs.get(59) && runs.get(60) && runs.get(259) && !runs.get(260));
        assert!(runs.set_run(260, 40) && runs.set_run(0, 60) && runs.set_run(10, 0));
        let mut large = Bits::new(1 << 33);
        assert!(!large.set((1 << 33) - 1) && large.set_run(PART_BITS - 10, 20) && !large.get(1 << 32));
        assert!(large.is_clear(0, PART_BITS - 10) && large.is_clear(PART_BITS + 10, 1 << 32));
        assert!(!large.is_clear(0, PART_BITS - 9) && !large.is_clear(PART_BITS + 9, 1));
        assert!(!large.is_clear(PART_BITS - 1, 2) && large.is_clear(77, 0));
        assert!(large.get((1 << 33) - 1) && large.get(PART_BITS + 9) && !large.get(PART_BITS + 10));
        assert_eq!((large.word(PART_BITS - 10), large.memory()), ((1 << 20) - 1, 3 * PART * 8));
        let mut block = [0; 4];
        put_bit(&mut block, 11, true);
        assert!(bit(&block, 11) && block == [0, 8, 0, 0]);
        put_bit(&mut block, 11, false);
        assert_eq!(block, [0; 4]);
        set_from(&mut block, 32);
        assert_eq!(block, [0; 4]);
        set_from(&mut block, 11);
        assert_eq!(block, [0, 0xf8, 0xff, 0xff]);
    }
}
