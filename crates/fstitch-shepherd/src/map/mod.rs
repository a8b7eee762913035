//! Maps: what the shepherd keeps on the medium of blocks that are not its own.
//!
//! # Layout
//!
//! An [`Area`] is a list of blocks, those of a file that nothing moves. Every block of a map is in it twice, in two halves that lie apart,
//! so that no scratch takes both; behind them are the spares.
//!
//! ```text
//!   head │ policy… │ doubt… │ sums… │ owners… │ counters ║ the same again ║ list… ║ spare │ spare │ … ║ list…
//! ```
//!
//! | part | holds |
//! |---|---|
//! | head | UUID of the volume, its blocks, the spares, what is known of its superblock |
//! | policy | the text |
//! | doubt | a bit for each run of 64 blocks of the volume, in sectors that speak for themselves ([`doubt`]) |
//! | sums | CRC32C of (volume, number, contents) of each block, 0 for none |
//! | owners | of each spare the block that it is a copy of, or that was moved there |
//! | counters | what has happened since the volume follows the policy, by kind of block |
//! | list | which blocks of the volume the area is, for who cannot ask the format ([`list`]) |
//!
//! Every block but those of `doubt` begins with what it is ([`block`]): magic, part, index, UUID, generation and a sum.
//!
//! # Invariants
//!
//! - **M1.** Of each block of a map at least one of the two is whole at any moment: they are written one after the other, with a flush
//!   between. The one of the higher generation counts.
//! - **M2.** A spare names a home in `owners` on the medium before the flush is answered that promises the copy, and behind a flush of the
//!   copy; it is given away only after the medium says that it is free.

pub(crate) mod area;
pub(crate) mod block;
pub(crate) mod counters;
pub(crate) mod doubt;
pub(crate) mod head;
pub(crate) mod list;
pub(crate) mod moved;
pub(crate) mod owners;
pub(crate) mod shape;
pub(crate) mod sums;

pub(crate) use area::{Area, Found};
pub(crate) use counters::Counters;
pub(crate) use doubt::Doubt;
pub(crate) use head::Head;
pub(crate) use moved::Moved;
pub(crate) use owners::Owners;
pub(crate) use shape::{Part, Shape};
pub(crate) use sums::Sums;
