//! Arbitrary changes to a small ext2 volume, which is then opened, checked and used. `fuzz/README.md` says how to run it.
#![no_main]

mod damage;
#[path = "../../crates/fstitch-fs/tests/crash/hostile.rs"]
mod hostile;
#[path = "../../crates/fstitch-fs/tests/crash/populated.rs"]
mod populated;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    hostile::survive(damage::damaged(input), damage::BLOCK_SIZE);
});
