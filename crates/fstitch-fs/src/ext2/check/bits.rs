//! A bit for each of many things.

use crate::ext2::num::idx64;

/// A fixed number of bits, all clear at first.
#[derive(Clone, Debug)]
pub(super) struct Bits {
    words: Vec<u64>,
    len: u64,
}

impl Bits {
    /// `len` clear bits.
    pub(super) fn new(len: u64) -> Self {
        Self { words: vec![0; idx64(len.div_ceil(64))], len }
    }

    /// Whether bit `at` is set; bits beyond the end are clear.
    pub(super) fn get(&self, at: u64) -> bool {
        at < self.len && self.words[idx64(at / 64)] >> (at % 64) & 1 == 1
    }

    /// The 64 bits from `at` on, the first one lowest; bits beyond the end are clear.
    pub(super) fn word(&self, at: u64) -> u64 {
        let word = |at: u64| self.words.get(idx64(at / 64)).copied().unwrap_or(0);
        match at % 64 {
            0 => word(at),
            shift => word(at) >> shift | word(at + 64) << (64 - shift),
        }
    }

    /// Sets bit `at`, which must exist; whether it was set before.
    pub(super) fn set(&mut self, at: u64) -> bool {
        assert!(at < self.len, "bit {at} of {}", self.len);
        let word = &mut self.words[idx64(at / 64)];
        let before = *word >> (at % 64) & 1 == 1;
        *word |= 1 << (at % 64);
        before
    }

    /// Sets `count` bits from `first` on, all of which must exist, if none of them is set; else false.
    pub(super) fn set_run(&mut self, first: u64, count: u64) -> bool {
        assert!(first + count <= self.len, "bits {first}+{count} of {}", self.len);
        let masks = || {
            let end = first + count;
            (first / 64..end.div_ceil(64)).map(move |word| {
                let low = first.max(word * 64) - word * 64;
                let bits = end.min(word * 64 + 64) - word * 64 - low;
                let ones = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
                (idx64(word), ones << low)
            })
        };
        if masks().any(|(word, mask)| self.words[word] & mask != 0) {
            return false;
        }
        masks().for_each(|(word, mask)| self.words[word] |= mask);
        true
    }
}

/// Whether bit `at` of a bitmap block is set.
pub(super) fn bit(bytes: &[u8], at: usize) -> bool {
    bytes[at / 8] >> (at % 8) & 1 == 1
}

/// Sets or clears bit `at` of a bitmap block.
pub(super) fn put_bit(bytes: &mut [u8], at: usize, on: bool) {
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
        let mut block = [0; 4];
        put_bit(&mut block, 11, true);
        assert!(bit(&block, 11) && block == [0, 8, 0, 0]);
        put_bit(&mut block, 11, false);
        assert_eq!(block, [0; 4]);
    }
}
