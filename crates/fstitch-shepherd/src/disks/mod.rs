//! Several disks, seen as one, and what becomes of them. Layout, states, invariants and crash cases: `docs/design/disks.md`.
//!
//! ```text
//!   Shepherd ──► Array: which disk has a block, who is out ──► disks
//!                  └─ label: what each disk says of all of them
//! ```

mod array;
mod label;
mod make;
mod requests;
mod zone;

pub use array::{Array, DiskFaults, Found, Hot};
pub use label::{DISKS_MAX, DiskState, LABELS_LEN, Label, Member, find};
pub use make::{Plan, label_of, write_labels};
