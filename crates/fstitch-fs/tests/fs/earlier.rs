//! What may stand on a medium before a volume is made on it.
//!
//! What it prevents: tests that begin with zeros, where nothing that a file system forgot to write is ever seen.

/// Words that lead into a volume of 4 MiB, out of it and nowhere.
pub fn earlier(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        state >> 20
    };
    let words = (0..bytes / 8).map(|_| match next() % 4 {
        0 => 0,
        1 => (next() << 20) | next(),
        2 => (next() % 4096) | ((next() % 4096) << 32),
        _ => ((next() % 1024) << 12) | (next() % 4),
    });
    words.flat_map(u64::to_le_bytes).collect()
}
