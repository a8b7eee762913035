//! What the crash laboratory takes apart: file systems with their consistency mechanisms, their checkers and the reference
//! programs that judge them too.
//!
//! ```text
//!   fstitch-crashlab: System, Mounted, Reference, Anatomy
//!           ▲
//!   ext2 (and ext3, ext4), ufs, waffle   loopback: one of these in a file of another
//!           │
//!   fstitch-fs, fstitch-patch
//! ```
//!
//! A new system is a file here and a line in `SYSTEMS`.
#![forbid(unsafe_code)]

mod anatomy;
mod crowded;
mod e2fsck;
mod ext2;
mod loopback;
mod owners;
mod peculiar;
mod ufs;
mod waffle;
pub mod workloads;

use std::sync::Arc;

use fstitch_core::Consistency;
use fstitch_crashlab::{System, UnknownSystem};

pub use anatomy::Ext2Anatomy;
pub use e2fsck::E2fsck;
pub use ext2::Ext2System;
pub use loopback::LoopbackSystem;
pub use ufs::UfsSystem;
pub use waffle::WaffleSystem;

/// A kind of systems.
struct Kind {
    /// The system of a name, if that is one of its own.
    named: fn(&str) -> Option<Arc<dyn System>>,
    /// What its names look like.
    names: &'static str,
    /// The system of a volume that others have made, if that is one of its own.
    of_image: fn(&[u8], u32, Option<Consistency>) -> Option<OfImage>,
}

/// The system of a volume, and the mechanism that it is judged by; or why it cannot be that one.
pub type OfImage = Result<(Arc<dyn System>, Consistency), String>;

/// All kinds of systems.
const SYSTEMS: &[Kind] = &[
    Kind { named: loopback::named, names: loopback::NAMES, of_image: |_, _, _| None },
    Kind { named: waffle::named, names: waffle::NAMES, of_image: |_, _, _| None },
    Kind { named: ufs::named, names: ufs::NAMES, of_image: |_, _, _| None },
    Kind { named: ext2::named, names: ext2::NAMES, of_image: ext2::of_image },
];

/// The system of that name.
///
/// # Errors
/// When there is none, with the names that there are.
pub fn system(name: &str) -> Result<Arc<dyn System>, UnknownSystem> {
    let unknown = || {
        let names = SYSTEMS.iter().rev().map(|kind| kind.names).collect::<Vec<_>>().join("; or ");
        UnknownSystem::new(name, &names)
    };
    SYSTEMS.iter().find_map(|kind| (kind.named)(name)).ok_or_else(unknown)
}

/// The system of the volume in `image`, in blocks of `block_size` bytes, whose writes were ordered by `consistency`, or by what suits
/// it.
///
/// # Errors
/// When there is none, or it cannot have been ordered so: who judges a volume by rules that it never had finds nothing.
pub fn of_image(image: &[u8], block_size: u32, consistency: Option<Consistency>) -> OfImage {
    let unknown = || "nobody here knows what a crash may leave of such a volume".to_owned();
    let found = SYSTEMS.iter().find_map(|kind| (kind.of_image)(image, block_size, consistency));
    found.unwrap_or_else(|| Err(unknown()))
}
