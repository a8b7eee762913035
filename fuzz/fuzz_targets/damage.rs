//! A populated volume with arbitrary changes, as every target wants it.

use std::sync::OnceLock;

use crate::populated;

static BASE: OnceLock<Vec<u8>> = OnceLock::new();

/// Bytes in a block of the volume.
pub const BLOCK_SIZE: u32 = 1024;

/// The volume changed by `input`: a list of six-byte records, a 32-bit position and a 16-bit value that replaces what
/// stands there. Metadata lies in the first blocks, so that most positions hit it.
pub fn damaged(input: &[u8]) -> Vec<u8> {
    let mut image = BASE.get_or_init(|| populated::image(BLOCK_SIZE, 128)).clone();
    for record in input.chunks_exact(6) {
        let at = u32::from_le_bytes([record[0], record[1], record[2], record[3]]);
        let at = usize::try_from(at).expect("64-bit machine") % (image.len() - 1);
        image[at..at + 2].copy_from_slice(&record[4..6]);
    }
    image
}
