//! Any bytes of a client, thrown at a server of memory. `fuzz/README.md` says how to run it.
#![no_main]

#[path = "../../crates/fstitch-nbd/tests/protocol/bytes.rs"]
mod bytes;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let _ = bytes::survive(input);
});
