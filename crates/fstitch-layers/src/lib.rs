//! File systems over file systems, of which the papers' system had two. They speak the language of the system call interface
//! and know no patches: what they pass on is ordered below.
//!
//! ```text
//!   FUSE, the command line
//!        │  FileSystem
//!   Layered<Casefold>     `-o casefold`: names are found whatever their case
//!        │  FileSystem
//!   Layered<Hiding>       `-o hide=PATTERN`: some names do not exist
//!        │  FileSystem
//!   a mounted volume
//! ```
#![forbid(unsafe_code)]

mod casefold;
mod fold;
mod hiding;
mod index;
mod layered;

pub use casefold::Casefold;
pub use fold::folded;
pub use hiding::{Hiding, PatternError, Patterns};
pub use layered::{Layer, Layered};
