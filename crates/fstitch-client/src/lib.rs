//! Patchgroups for programs: *these changes before those*, without waiting for the disk.
//!
//! ```text
//!   Group, Engaged, EngagedFile      guards: what is engaged is disengaged when they are dropped
//!            │
//!         Volume                     the calls of the papers, on one mount
//!            │
//!    ┌───────┴────────┐
//!  kernel           fsync            ioctls on the mount, or (only if asked for) syncfs where there are no patchgroups
//! ```
//!
//! This crate owns the translation of calls into ioctls (`docs/spec/patchgroup-ioctl.md`) and the mode that replaces
//! them by waiting. It never keeps an order by itself, and never waits unless it is asked to. Papers: \[D\] §2.3,
//! \[F\] §7; `docs/patchgroups.md` is the page for users.
//!
//! ```no_run
//! use fstitch_client::Volume;
//!
//! # fn main() -> std::io::Result<()> {
//! let volume = Volume::open_or_fsync("spool")?;
//! let written = volume.group()?;
//! {
//!     let _engaged = written.engage()?;
//!     std::fs::write("spool/new", "all of it")?;
//! }
//! let renamed = volume.group()?;
//! renamed.depend_on(&written)?;
//! {
//!     let _engaged = renamed.engage()?;
//!     std::fs::rename("spool/new", "spool/current")?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! After a crash `spool/current` has its old contents or all of the new ones, and nothing has waited for the disk.
//!
//! Unsafe code is confined to one module, `kernel`: an ioctl's number says what the kernel does with its argument,
//! which no type can check.
#![deny(unsafe_code)]

mod call;
mod fsync;
mod group;
mod kernel;
mod lifecycle;
mod volume;

pub use call::{GroupNo, OrderUser, OrderUsers};
pub use group::{Engaged, EngagedFile, Group};
pub use volume::{Volume, is_unsupported};

/// The example of the page for users, which must compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/patchgroups.md")]
struct UsersPage;
