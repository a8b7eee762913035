//! waffle's volumes: full ones, damaged ones, large directories, what is left after a cut.
//!
//! What it prevents: a full volume that cannot be emptied, damage that nobody finds, a panic on bytes that make no sense, and a root that
//! reaches what was written later.
#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

mod clones;
mod compressed;
mod damage;
mod faults;
mod full;
mod mend;
mod rig;
mod scrub;
mod shared;
mod snapshots;
mod streams;
mod work;
