//! What a damaged block still has. Its own sum is wrong, but what it leads to has sums as well: a reference is right if what it leads to is
//! what it says, and a name if its key is that of its bytes (`dir::saved`).
//!
//! Only what leads to inodes, names and counts is salvaged. Of a file's contents and attributes nobody could say what was lost, so what is
//! damaged there stays where it is, and reading it fails. Nor is anything salvaged that the medium does not give at all: it may do so later, or to
//! who copies it first.

use fstitch_core::num::to_usize;
use fstitch_core::{BlockBuf, BlockNo, Error, Result};

use super::super::layout::inode::{FreeInode, INODE_BYTES, INODES_IN_BLOCK, Inode, Slot, place};
use super::super::layout::pointer::{Fork, PACKED, REF_BYTES, Ref, SHARED};
use super::super::layout::{BLOCK, FAN, sum};
use super::super::snapshot::before;
use super::super::state::State;
use super::super::tree::{Key, Node, Obj};

/// Bits by which the sum of a block may differ from the one in a damaged node that refers to it.
const NEAR: u32 = 2;

/// What there is in the place of a node.
enum Found {
    Whole(Node),
    /// What the medium has there, if anything.
    Damaged(Option<Node>),
}

/// Puts right what can be of an object's nodes, and of leaves that have inodes or counts; says how many it took.
pub(super) fn nodes(state: &mut State, obj: Obj) -> Result<u64> {
    let fork = state.fork(state.head, obj)?;
    if fork.root.is_none() { Ok(0) } else { below(state, (obj, fork.height, 0), fork.root) }
}

fn below(state: &mut State, key: Key, reference: Ref) -> Result<u64> {
    let (obj, level, index) = key;
    if level == 0 && matches!(obj, Obj::Data(_) | Obj::Xattrs(_)) {
        return Ok(0);
    }
    let (node, mut mended) = match look(state, key, reference)? {
        Found::Whole(node) => (Some(node), 0),
        Found::Damaged(bytes) => {
            let saved = bytes.and_then(|bytes| save(state, key, &bytes));
            state.replace_node(key, saved)?;
            (state.nodes.get(&key).cloned(), 1)
        }
    };
    if let Some(node) = node.filter(|_| level > 0) {
        for slot in 0..FAN {
            let reference = Ref::slot(&node, to_usize(slot));
            if !reference.is_none() {
                mended += below(state, (obj, level - 1, index * FAN + slot), reference)?;
            }
        }
    }
    Ok(mended)
}

/// A node by its reference, whether it is what that says or not.
fn look(state: &State, key: Key, reference: Ref) -> Result<Found> {
    match state.load(reference, key, key.0.kind(key.1)) {
        Ok(node) => Ok(Found::Whole(node)),
        Err(Error::Corrupt(_)) => Ok(Found::Damaged(raw(state, key, reference))),
        Err(error) => Err(error),
    }
}

/// What the medium has where a reference leads to.
pub(super) fn raw(state: &State, key: Key, reference: Ref) -> Option<Node> {
    if reference.is_none() || reference.unpacked().problem(state.data(), state.generation()).is_some() {
        return None;
    }
    let found = state.cache.read_snapshot(BlockNo(reference.block), key.0.kind(key.1));
    found.ok().map(|(_, bytes)| bytes)
}

/// What is right of a damaged node; `None` if nothing is.
fn save(state: &State, (obj, level, index): Key, bytes: &[u8]) -> Option<BlockBuf> {
    let mut saved = BlockBuf::zeroed(BLOCK);
    let mut is_any = false;
    if level > 0 {
        for slot in 0..FAN {
            let reference = Ref::slot(bytes, to_usize(slot));
            let key = (obj, level - 1, index * FAN + slot);
            if let Some(reference) = leading(state, key, reference) {
                reference.write(&mut saved, to_usize(slot) * REF_BYTES);
                is_any = true;
            }
        }
    } else if obj == Obj::Inodes {
        for ino in index * INODES_IN_BLOCK..(index + 1) * INODES_IN_BLOCK {
            let (_, at) = place(ino);
            let slot = &mut saved[at..at + INODE_BYTES];
            match Slot::decode(&bytes[at..at + INODE_BYTES], ino) {
                Ok(Slot::Used(inode)) => match with_its_own(state, inode) {
                    Ok(inode) => {
                        inode.write(slot);
                        is_any = true;
                    }
                    Err(generation) => FreeInode { generation, next: 0 }.write(slot),
                },
                Ok(Slot::Free(free)) => free.write(slot),
                Err(_) => {}
            }
        }
    }
    // Counts are computed anew.
    is_any.then_some(saved)
}

/// A reference whose block is the one that it was made of; `None` if it may be another one. What else it says may be damaged: where the
/// tree before has the same block, that one's is right, and else this is as good as one that is made now.
fn leading(state: &State, key: Key, reference: Ref) -> Option<Ref> {
    let (obj, level, index) = key;
    if reference.is_none() {
        return None;
    }
    let birth = state.generation();
    let reference =
        Ref { birth: reference.birth.min(birth), flags: reference.flags & (SHARED | PACKED), ..reference };
    let sum = sum(&raw(state, key, reference)?);
    // Where a bit of the sum is damaged that is all by which it differs: sums of other blocks do by half of all bits.
    if (sum ^ reference.sum).count_ones() > NEAR {
        return None;
    }
    let head = state.record(state.head).ok()?;
    let older =
        before(&state.trees, head).and_then(|(older, _)| state.reference(older, obj, level, index).ok());
    Some(older.filter(|older| older.block == reference.block).unwrap_or(Ref { birth, sum, ..reference }))
}

/// An inode whose contents and attributes begin as it says; else the next life of its number.
fn with_its_own(state: &State, inode: Inode) -> std::result::Result<Inode, u32> {
    let led = |obj: Obj, fork: Fork| {
        if fork == Fork::default() {
            return Some(fork);
        }
        leading(state, (obj, fork.height, 0), fork.root).map(|root| Fork { root, ..fork })
    };
    let forks = (led(Obj::Data(inode.ino), inode.data), led(Obj::Xattrs(inode.ino), inode.xattrs));
    match forks {
        (Some(data), Some(xattrs)) if inode.ino != 0 => Ok(Inode { data, xattrs, ..inode }),
        _ => Err(inode.generation.wrapping_add(1)),
    }
}
