//! Which of many things are taken, and the first that is not.
//!
//! Above the bits there are levels of what is full: a bit for each word below that has no zero left. So the first free one is found in a
//! step for each level, five of them for 2^30 things, however full they are.

use std::sync::atomic::{AtomicU64, Ordering};

use fstitch_core::num::{to_u64, to_usize};

/// Numbers below some number, of which several threads add and remove some at the same time. Whoever finds one finds what was done before it
/// was added.
#[derive(Debug)]
pub(crate) struct SharedBits(Vec<AtomicU64>);

impl SharedBits {
    /// None of so many.
    pub(crate) fn new(count: u64) -> Self {
        Self((0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    #[inline]
    pub(crate) fn has(&self, number: u64) -> bool {
        self.word(number / 64) >> (number % 64) & 1 == 1
    }

    /// Adds a number; whether it was missing.
    pub(crate) fn add(&self, number: u64) -> bool {
        self.add_all(number / 64, 1 << (number % 64)) == 0
    }

    /// Adds numbers of a word; those of them that were there.
    pub(crate) fn add_all(&self, word: u64, bits: u64) -> u64 {
        self.0[to_usize(word)].fetch_or(bits, Ordering::Release) & bits
    }

    /// Takes a number out; whether it was there.
    pub(crate) fn remove(&self, number: u64) -> bool {
        let bit = 1 << (number % 64);
        self.0[to_usize(number / 64)].fetch_and(!bit, Ordering::Release) & bit != 0
    }

    /// The numbers of a word.
    #[inline]
    pub(crate) fn word(&self, word: u64) -> u64 {
        self.0[to_usize(word)].load(Ordering::Acquire)
    }

    pub(crate) fn into_words(self) -> Vec<u64> {
        self.0.into_iter().map(AtomicU64::into_inner).collect()
    }
}

/// Of numbers from 0 on, which are taken.
#[derive(Debug, Default)]
pub(crate) struct Bits {
    /// The bits themselves, then levels of full words. What is beyond the last thing is taken.
    levels: Vec<Vec<u64>>,
    free: u64,
}

impl Bits {
    /// With the bits of so many words.
    pub(crate) fn from_words(words: Vec<u64>) -> Self {
        let free = words.iter().map(|word| u64::from(word.count_zeros())).sum();
        let mut bits = Self { levels: vec![words], free };
        bits.add_levels();
        bits
    }

    /// Levels until the highest one is a word.
    fn add_levels(&mut self) {
        while let Some(top) = self.levels.last().filter(|top| top.len() > 1) {
            let full = |words: &[u64]| {
                let bits = words.iter().zip(0..).map(|(word, at)| u64::from(*word == u64::MAX) << at);
                bits.fold(beyond(words.len()), |all, bit| all | bit)
            };
            let above = top.chunks(64).map(full).collect();
            self.levels.push(above);
        }
    }

    /// There are more words, of things that are all taken.
    pub(crate) fn grow(&mut self, words: usize) {
        if self.levels.is_empty() {
            self.levels.push(Vec::new());
        }
        let mut words = words;
        for level in &mut self.levels {
            level.resize(words.max(level.len()), u64::MAX);
            words = words.div_ceil(64);
        }
        self.add_levels();
    }

    pub(crate) fn has(&self, number: u64) -> bool {
        self.levels[0][to_usize(number / 64)] >> (number % 64) & 1 == 1
    }

    /// Takes the first that is free.
    pub(crate) fn take(&mut self) -> Option<u64> {
        let number = self.first_free()?;
        self.set(number);
        Some(number)
    }

    /// Takes one, if it was not taken.
    pub(crate) fn set(&mut self, number: u64) {
        self.free -= u64::from(!self.has(number));
        let mut at = number;
        for level in &mut self.levels {
            let word = &mut level[to_usize(at / 64)];
            *word |= 1 << (at % 64);
            if *word != u64::MAX {
                break;
            }
            at /= 64;
        }
    }

    /// Gives one back.
    ///
    /// # Panics
    /// If it was free.
    pub(crate) fn clear(&mut self, number: u64) {
        assert!(self.has(number), "{number} is freed twice");
        self.free += 1;
        let mut at = number;
        for level in &mut self.levels {
            let word = &mut level[to_usize(at / 64)];
            let was_full = *word == u64::MAX;
            *word &= !(1 << (at % 64));
            if !was_full {
                break;
            }
            at /= 64;
        }
    }

    /// The first that is free.
    fn first_free(&self) -> Option<u64> {
        let top = self.levels.last()?.first().filter(|top| **top != u64::MAX)?;
        let in_word = |word: u64| u64::from((!word).trailing_zeros());
        let below = self.levels.iter().rev().skip(1);
        Some(below.fold(in_word(*top), |at, level| at * 64 + in_word(level[to_usize(at)])))
    }

    /// How many are free.
    pub(crate) fn free(&self) -> u64 {
        self.free
    }
}

/// The bits of a word from `len` on.
pub(crate) fn beyond(len: usize) -> u64 {
    u32::try_from(to_u64(len)).ok().and_then(|len| u64::MAX.checked_shl(len)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use fstitch_core::Seed;

    use super::*;

    /// What is free, asked one by one.
    fn check(bits: &Bits, free: &BTreeSet<u64>) {
        assert_eq!(bits.first_free(), free.first().copied());
        assert_eq!(bits.free(), to_u64(free.len()));
    }

    #[test]
    fn the_first_free_one_is_the_least_of_all() {
        let mut numbers = Seed::new(7);
        // A word, a level's border, and three levels.
        for words in [1, 63, 64, 65, 4097] {
            let mut bits = Bits::from_words(vec![u64::MAX; words]);
            let mut free = BTreeSet::new();
            check(&bits, &free);
            for _ in 0..2000 {
                let number = numbers.below(to_u64(words) * 64);
                let number =
                    if numbers.below(2) == 0 { number } else { free.first().copied().unwrap_or(number) };
                match numbers.below(4) {
                    0 | 1 if free.insert(number) => bits.clear(number),
                    2 => assert_eq!(bits.take(), free.pop_first()),
                    _ => {
                        bits.set(number);
                        free.remove(&number);
                    }
                }
                assert_eq!(bits.has(number), !free.contains(&number));
                check(&bits, &free);
            }
        }
    }

    #[test]
    fn more_words_are_taken_until_they_are_given_back() {
        let (mut bits, mut free) = (Bits::default(), BTreeSet::new());
        for words in [1, 2, 64, 65, 130, 4096, 4097, 5000] {
            bits.grow(words);
            check(&bits, &free);
            let last = to_u64(words) * 64 - 1;
            bits.clear(last);
            free.insert(last);
            check(&bits, &free);
            if words % 2 == 0 {
                assert_eq!(bits.take(), free.pop_first());
            }
        }
    }

    #[test]
    fn what_is_beyond_the_last_bit_is_taken() {
        assert_eq!([0, 1, 63, 64].map(beyond), [u64::MAX, u64::MAX - 1, 1 << 63, 0]);
    }
}
