//! The gate: every store to the persistent memory goes through here, and in no other order than one that survives.
//!
//! The rule is one sentence: **what can be reached is changed by nothing but a single aligned word, when all that the word makes
//! reachable is durable.** It is typed, not the steps of any operation:
//!
//! ```text
//!   Space::take ──► Fresh ──write──► Fresh ──link──► Word        a block that nothing points to
//!   Hidden::…  ──► Hidden ──write──► (nothing to give back)      a range that a word hides: a size, a number, a pointer
//!   Gate::fence ──► Fenced ──commit(slot, word)──► Committed ──stamp──► Committed ──done──► ()
//! ```
//!
//! - A [`Fresh`] is not copied: who has linked it cannot write to it any more, and cannot link it twice.
//! - A [`Fenced`] borrows the gate: between the fence and the commit nobody stores anything. There is no commit without a fence.
//! - [`Word`]s that point to a block are made from a `Fresh`, which a fence must follow, or from a [`Block`] that was read.
//!
//! What types cannot see is asserted in debug builds: that a hidden range is hidden, and that nothing is under way when a word is
//! committed. What they do see does not compile:
//!
//! ```
//! # use fstitch_bpfs::pm::*;
//! # fn lawful(gate: &mut Gate, space: &mut Space, slot: Slot) -> fstitch_core::Result<()> {
//! let mut block = space.take()?;
//! gate.write(&mut block, 0, b"contents");
//! let (word, _) = block.link(0);
//! gate.fence().commit(slot, word).done();
//! # Ok(()) }
//! ```
//! A commit without a fence:
//! ```compile_fail,E0599
//! # use fstitch_bpfs::pm::*;
//! # fn no_fence(gate: &mut Gate, slot: Slot, word: Word) {
//! gate.commit(slot, word).done();
//! # }
//! ```
//! A store between the fence and the commit:
//! ```compile_fail,E0499
//! # use fstitch_bpfs::pm::*;
//! # fn late_store(gate: &mut Gate, block: &mut Fresh, slot: Slot, word: Word) {
//! let fenced = gate.fence();
//! gate.write(block, 0, b"contents");
//! fenced.commit(slot, word).done();
//! # }
//! ```
//! Two commits behind one fence:
//! ```compile_fail,E0382
//! # use fstitch_bpfs::pm::*;
//! # fn two_commits(gate: &mut Gate, one: Slot, other: Slot, word: Word) {
//! let fenced = gate.fence();
//! fenced.commit(one, word).done();
//! fenced.commit(other, word).done();
//! # }
//! ```
//! A store to a block that was linked:
//! ```compile_fail,E0382
//! # use fstitch_bpfs::pm::*;
//! # fn linked_store(gate: &mut Gate, mut block: Fresh) {
//! let (word, _) = block.link(0);
//! gate.write(&mut block, 0, b"contents");
//! # }
//! ```
//! A block with two pointers to it:
//! ```compile_fail,E0382
//! # use fstitch_bpfs::pm::*;
//! # fn two_links(block: Fresh) {
//! let (one, _) = block.link(0);
//! let (other, _) = block.link(0);
//! # }
//! ```
//! A block that is called free by who says so:
//! ```compile_fail,E0423
//! # use fstitch_bpfs::pm::*;
//! # fn forged() -> Fresh {
//! Fresh(7)
//! # }
//! ```
//! A store to a block that can be reached:
//! ```compile_fail,E0308
//! # use fstitch_bpfs::pm::*;
//! # fn live_store(gate: &mut Gate, mut block: Block) {
//! gate.write(&mut block, 0, b"contents");
//! # }
//! ```
//! A hidden range that nothing hides:
//! ```compile_fail,E0451
//! # use fstitch_bpfs::pm::*;
//! # fn hidden_by_nothing() -> Hidden {
//! Hidden { at: 4096, len: 8 }
//! # }
//! ```
//!
//! **Crash cases.** Within what is stored between two fences, words become durable in any order, or not at all; a word (8 bytes, or its
//! aligned half) never in part. A commit of several words goes through the micro-journal ([`Fenced::commit_all`]): before its record is
//! whole none of them counts, behind it all do, because opening carries them out again ([`Gate::recover`]).
//!
//! `unsafe` is in `medium.rs` alone: the mapping, and the instructions that write cache lines back.

mod bits;
mod gate;
mod medium;
mod source;
mod space;

pub(crate) use bits::{Bits, SharedBits};
pub(crate) use gate::JOURNAL_WORDS;
pub use gate::{Caching, Committed, Counts, Fenced, Gate, Hidden, Slot, Watch, Word};
pub use medium::{Durability, Medium};
pub use space::{Block, Fresh, Linked, Space};
pub(crate) use space::{Marking, Marks};

/// Bytes of a block.
pub(crate) const BLOCK: usize = 4096;
/// The same as a number of the medium.
pub(crate) const BLOCK_BYTES: u64 = 4096;
/// A block of zeros, which nobody has to make first.
pub(crate) static ZEROS: [u8; BLOCK] = [0; BLOCK];
/// Bytes of a cache line.
pub(crate) const LINE: u64 = 64;
