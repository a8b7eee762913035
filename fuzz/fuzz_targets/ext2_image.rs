//! Arbitrary changes to a small ext2 volume, which is then opened, checked and used.
//!
//! Run with `cargo +nightly fuzz run ext2_image`. The input is a list of six-byte records: a 32-bit position
//! and a 16-bit value that replaces what stands there. Metadata lies in the first blocks, so that most
//! positions hit it.
#![no_main]

#[path = "../../crates/fstitch-fs/tests/crash/hostile.rs"]
mod hostile;
#[path = "../../crates/fstitch-fs/tests/crash/populated.rs"]
mod populated;

use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;

static BASE: OnceLock<Vec<u8>> = OnceLock::new();

fuzz_target!(|input: &[u8]| {
    let mut image = BASE.get_or_init(|| populated::image(1024, 128)).clone();
    for record in input.chunks_exact(6) {
        let at = u32::from_le_bytes([record[0], record[1], record[2], record[3]]);
        let at = usize::try_from(at).expect("64-bit machine") % (image.len() - 1);
        image[at..at + 2].copy_from_slice(&record[4..6]);
    }
    hostile::survive(image, 1024);
});
