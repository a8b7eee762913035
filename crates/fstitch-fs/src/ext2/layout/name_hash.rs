//! The hashes of names by which indexed directories are ordered.

/// Hash with the signs of characters as the machine that made the volume had them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hasher {
    /// 0 legacy, 1 half MD4, 2 TEA.
    version: u8,
    unsigned: bool,
    seed: [u32; 4],
}

/// Half MD4's start, used when the volume has no seed.
const DEFAULT_SEED: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
/// The largest hash is kept as a mark for the end.
const END: u32 = 0x7fff_ffff << 1;

impl Hasher {
    /// A hasher of `version` (as the root of an index has it), or `None` if there is no such version.
    pub(crate) fn new(version: u8, unsigned: bool, seed: [u8; 16]) -> Option<Self> {
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(seed.chunks_exact(4)) {
            *word = fstitch_core::Le::u32(bytes, 0);
        }
        let seed = if words == [0; 4] { DEFAULT_SEED } else { words };
        (version <= 2).then_some(Self { version, unsigned, seed })
    }

    /// The hash of a name; its lowest bit is always clear.
    pub(crate) fn hash(&self, name: &[u8]) -> u32 {
        self.hashes(name).0
    }

    /// The hash of a name, and a second number that tells most names of one hash apart. The legacy hash has none, so that another
    /// one's is taken, which the volume's seed goes into.
    pub(crate) fn hashes(&self, name: &[u8]) -> (u32, u32) {
        let (hash, second) = match self.version {
            0 => (self.legacy(name), self.half_md4(name)[1]),
            1 => {
                let state = self.half_md4(name);
                (state[1], state[2])
            }
            _ => {
                let state = self.tea(name);
                (state[0], state[1])
            }
        };
        let hash = hash & !1;
        (if hash == END { END - 2 } else { hash }, second)
    }

    /// A character as the arithmetic takes it.
    fn character(&self, byte: u8) -> u32 {
        if self.unsigned { u32::from(byte) } else { i32::from(byte.cast_signed()).cast_unsigned() }
    }

    fn legacy(&self, name: &[u8]) -> u32 {
        let (mut last, mut before) = (0x12a3_fe2d_u32, 0x37ab_e8f9_u32);
        for &byte in name {
            let mixed = last ^ self.character(byte).wrapping_mul(7_152_373);
            let mut hash = before.wrapping_add(mixed);
            if hash >> 31 == 1 {
                hash = hash.wrapping_sub(0x7fff_ffff);
            }
            before = last;
            last = hash;
        }
        last << 1
    }

    /// Packs up to `4 * N` bytes of a name into words, padded with the length of all that is left of it.
    fn pack<const N: usize>(&self, rest: &[u8]) -> [u32; N] {
        let len = u32::try_from(rest.len()).expect("names have at most 255 bytes");
        let pad = (len | len << 8) | (len | len << 8) << 16;
        let mut words = [pad; N];
        for (word, bytes) in words.iter_mut().zip(rest.chunks(4)) {
            *word = bytes.iter().fold(pad, |packed, &byte| self.character(byte).wrapping_add(packed << 8));
        }
        words
    }

    fn half_md4(&self, name: &[u8]) -> [u32; 4] {
        let mut state = self.seed;
        let mut rest = name;
        while !rest.is_empty() {
            half_md4_block(&mut state, &self.pack::<8>(rest));
            rest = rest.get(32..).unwrap_or_default();
        }
        state
    }

    fn tea(&self, name: &[u8]) -> [u32; 4] {
        let mut state = self.seed;
        let mut rest = name;
        while !rest.is_empty() {
            tea_block(&mut state, &self.pack::<4>(rest));
            rest = rest.get(16..).unwrap_or_default();
        }
        state
    }
}

/// The order of the words, the shifts, and the constant of each of the three rounds.
const ROUNDS: [([usize; 8], [u32; 4], u32); 3] = [
    ([0, 1, 2, 3, 4, 5, 6, 7], [3, 7, 11, 19], 0),
    ([1, 3, 5, 7, 0, 2, 4, 6], [3, 5, 9, 13], 0x5a82_7999),
    ([3, 7, 2, 6, 1, 5, 0, 4], [3, 9, 11, 15], 0x6ed9_eba1),
];

fn half_md4_block(state: &mut [u32; 4], words: &[u32; 8]) {
    // The four registers change their roles with every step: a, d, c, b, a, …
    let mut r = *state;
    for (round, (order, shifts, constant)) in ROUNDS.iter().enumerate() {
        for (step, &word) in order.iter().enumerate() {
            let a = (4 - step % 4) % 4;
            let (b, c, d) = (r[(a + 1) % 4], r[(a + 2) % 4], r[(a + 3) % 4]);
            let mixed = match round {
                0 => d ^ (b & (c ^ d)),
                1 => (b & c).wrapping_add((b ^ c) & d),
                _ => b ^ c ^ d,
            };
            let sum = r[a].wrapping_add(mixed).wrapping_add(words[word]).wrapping_add(*constant);
            r[a] = sum.rotate_left(shifts[step % 4]);
        }
    }
    for (total, register) in state.iter_mut().zip(r) {
        *total = total.wrapping_add(register);
    }
}

fn tea_block(state: &mut [u32; 4], key: &[u32; 4]) {
    let (mut x, mut y, mut sum) = (state[0], state[1], 0_u32);
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9e37_79b9);
        let mix = |v: u32, k0: u32, k1: u32| {
            (v << 4).wrapping_add(k0) ^ v.wrapping_add(sum) ^ (v >> 5).wrapping_add(k1)
        };
        x = x.wrapping_add(mix(y, key[0], key[1]));
        y = y.wrapping_add(mix(x, key[2], key[3]));
    }
    state[0] = state[0].wrapping_add(x);
    state[1] = state[1].wrapping_add(y);
}
