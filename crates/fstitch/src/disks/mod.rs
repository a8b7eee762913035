//! Volumes on several disks: how a command line names the disks, how they are opened, made, replaced and shown.
//!
//! ```text
//!   "a.img,b.img" ──► names ──► open: labels, locks, who is missing ──► Disks ──► shepherd::over_disks
//!                                                                        │
//!                        fstitch disk, health, status ◄── shown ◄────────┤
//!                        command (unmounted), the mount's thread ──► change, rebuild
//! ```

mod change;
pub mod command;
mod names;
mod open;
mod rebuild;
mod shown;
pub mod stripe;

pub use change::Change;
pub use names::{canonical, is_missing, is_several, names, same};
pub use open::{Disks, alone, block_size_of, open};
pub use rebuild::{Keeper, keep};
pub use shown::{DiskList, list};
