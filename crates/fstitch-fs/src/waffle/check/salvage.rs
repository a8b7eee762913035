//! What a damaged block still has. Its own sum is wrong, but what it leads to has sums as well: a reference is right if what it leads to is
//! what it says, and a name if its key is that of its bytes (`dir::saved`).
//!
//! Only what leads to inodes, names and counts is salvaged. Of a file's contents and attributes nobody could say what was lost, so what is
//! damaged there stays where it is, and reading it fails. Nor is anything salvaged that the medium does not give at all: it may do so later, or to
//! who copies it first.
//!
//! **Invariants.** 1. A block that anything readable leads to, that the map has as free, or that was salvaged elsewhere, is none that a
//! damaged block had: that may be an older one of its place, or another's. Unless the tree before has it at the same place. 2. What is looked at is
//! no more than the volume has blocks.

use fstitch_core::num::to_usize;
use fstitch_core::{BlockBuf, BlockNo, Error, FileKind, Le, Result};
use rustc_hash::FxHashSet;

use super::super::dir;
use super::super::layout::inode::{FreeInode, INODE_BYTES, INODES_IN_BLOCK, Inode, Slot, place};
use super::super::layout::pointer::{Fork, PACKED, REF_BYTES, Ref, SHARED};
use super::super::layout::record::RECORDS_MAX;
use super::super::layout::{BLOCK, FAN, sum};
use super::super::snapshot::before;
use super::super::state::State;
use super::super::tree::{Key, Node, Obj, has_twice};
use super::blocks::Census;

/// Bits by which the sum of a block may differ from the one in a damaged node that refers to it.
const NEAR: u32 = 2;

/// What there is in the place of a node.
enum Found {
    Whole(Node),
    /// What the medium has there, if anything.
    Damaged(Option<Node>),
}

/// What a fork's beginning proves.
enum Led {
    Nothing,
    Right(Fork),
    Doubtful(Fork),
}

/// What is salvaged of a tree.
pub(super) struct Salvage<'a> {
    census: &'a Census,
    claimed: FxHashSet<u64>,
    looked: u64,
}

impl<'a> Salvage<'a> {
    pub(super) fn new(census: &'a Census) -> Self {
        Self { census, claimed: FxHashSet::default(), looked: 0 }
    }

    /// Puts right what can be of an object's nodes, and of leaves that have inodes or counts; says how many it took.
    pub(super) fn nodes(&mut self, state: &mut State, obj: Obj) -> Result<u64> {
        let fork = state.fork(state.head, obj)?;
        if fork.root.is_none() { Ok(0) } else { self.below(state, (obj, fork.height, 0), fork.root) }
    }

    fn below(&mut self, state: &mut State, key: Key, reference: Ref) -> Result<u64> {
        let (obj, level, index) = key;
        if level == 0 && matches!(obj, Obj::Data(_) | Obj::Xattrs(_)) {
            return Ok(0);
        }
        self.looked += 1;
        if self.looked > state.root.blocks {
            return Err(State::damaged(key, reference.block, "it has more nodes than the volume has blocks"));
        }
        let (node, mut mended) = match look(state, key, reference)? {
            Found::Whole(node) => (Some(node), 0),
            Found::Damaged(bytes) => {
                let saved = match bytes {
                    Some(bytes) => self.save(state, key, &bytes)?,
                    None => None,
                };
                state.replace_node(key, saved)?;
                (state.nodes.get(&key).cloned(), 1)
            }
        };
        if let Some(node) = node.filter(|_| level > 0) {
            if level > 1 && has_twice(&node) {
                let problem = "two of its references lead to one node";
                return Err(State::damaged(key, reference.block, problem));
            }
            for slot in 0..FAN {
                let reference = Ref::slot(&node, to_usize(slot));
                if !reference.is_none() {
                    mended += self.below(state, (obj, level - 1, index * FAN + slot), reference)?;
                }
            }
        }
        Ok(mended)
    }

    /// What is right of a damaged node; `None` if nothing is.
    fn save(
        &mut self,
        state: &mut State,
        (obj, level, index): Key,
        bytes: &[u8],
    ) -> Result<Option<BlockBuf>> {
        let mut saved = BlockBuf::zeroed(BLOCK);
        let mut is_any = false;
        if level > 0 {
            for slot in 0..FAN {
                let reference = Ref::slot(bytes, to_usize(slot));
                let key = (obj, level - 1, index * FAN + slot);
                if let Some(reference) = self.leading(state, key, reference, 0)? {
                    reference.write(&mut saved, to_usize(slot) * REF_BYTES);
                    is_any = true;
                }
            }
        } else if obj == Obj::Inodes {
            for ino in index * INODES_IN_BLOCK..(index + 1) * INODES_IN_BLOCK {
                let (_, at) = place(ino);
                let slot = &mut saved[at..at + INODE_BYTES];
                match Slot::decode(&bytes[at..at + INODE_BYTES], ino) {
                    Ok(Slot::Used(inode)) => {
                        let generation = inode.generation.wrapping_add(1);
                        match self.with_its_own(state, inode)? {
                            Some(inode) => inode.write(slot),
                            None => FreeInode { generation, next: 0 }.write(slot),
                        }
                    }
                    Ok(Slot::Free(free)) => free.write(slot),
                    Err(_) => {}
                }
            }
            is_any = true;
        }
        // Counts are computed anew.
        Ok(is_any.then_some(saved))
    }

    /// A reference whose block is the one that it was made of; `None` if it may be another one. What else it says may be damaged: where
    /// the tree before has the same block, that one's is right, and else this is as good as one that is made now.
    fn leading(&mut self, state: &mut State, key: Key, reference: Ref, flags: u32) -> Result<Option<Ref>> {
        let birth = state.generation();
        let tried = Ref { birth: reference.birth.min(birth), flags: reference.flags & flags, ..reference };
        let Some(bytes) = raw(state, key, tried)? else { return Ok(None) };
        if let Some(older) = older(state, key)?.filter(|older| older.block == tried.block) {
            return Ok(Some(older));
        }
        let found = sum(&bytes);
        // Where a bit of the sum is damaged that is all by which it differs: sums of other blocks do by half of all bits.
        let is_near = (found ^ reference.sum).count_ones() <= NEAR;
        if !is_near && !proves(state, key, &bytes)? || !self.is_to_have(state, tried.block)? {
            return Ok(None);
        }
        self.claimed.insert(tried.block);
        Ok(Some(Ref { birth, sum: if is_near { found } else { reference.sum }, ..tried }))
    }

    /// Whether a damaged block may be the one that has this block.
    fn is_to_have(&self, state: &mut State, block: u64) -> Result<bool> {
        let State { map, cache, .. } = state;
        Ok(!self.census.has(block) && !self.claimed.contains(&block) && map.is_used(cache, block)?)
    }

    /// An inode whose contents or attributes begin as it says, or which has neither.
    fn with_its_own(&mut self, state: &mut State, inode: Inode) -> Result<Option<Inode>> {
        let is_file = inode.kind == FileKind::Regular;
        let flags = if is_file { SHARED | if state.has_packed() { PACKED } else { 0 } } else { 0 };
        let data = self.led(state, Obj::Data(inode.ino), inode.data, flags)?;
        let xattrs = self.led(state, Obj::Xattrs(inode.ino), inode.xattrs, 0)?;
        let is_proven = matches!((&data, &xattrs), (Led::Right(_), _) | (_, Led::Right(_)));
        let is_bare = matches!((&data, &xattrs), (Led::Nothing, Led::Nothing));
        if inode.ino == 0 || !is_proven && !is_bare {
            return Ok(None);
        }
        let (data, xattrs) = (self.kept(state, data)?, self.kept(state, xattrs)?);
        Ok(Some(Inode { data, xattrs, ..inode }))
    }

    fn led(&mut self, state: &mut State, obj: Obj, fork: Fork, flags: u32) -> Result<Led> {
        if fork == Fork::default() {
            return Ok(Led::Nothing);
        }
        let flags = if fork.height == 0 { flags } else { 0 };
        let found = self.leading(state, (obj, fork.height, 0), fork.root, flags)?;
        Ok(found.map_or(Led::Doubtful(fork), |root| Led::Right(Fork { root, ..fork })))
    }

    /// A fork of an inode that is right. One that is not stays damaged, unless its block is somebody else's.
    fn kept(&mut self, state: &mut State, led: Led) -> Result<Fork> {
        match led {
            Led::Right(fork) => Ok(fork),
            Led::Doubtful(fork) => {
                let birth = state.generation();
                let root = Ref { birth, ..fork.root };
                let is_sound = root.problem(state.data(), birth).is_none();
                let is_its = is_sound && self.is_to_have(state, root.block)?;
                self.claimed.insert(root.block);
                Ok(if is_its { Fork { root, ..fork } } else { Fork::default() })
            }
            Led::Nothing => Ok(Fork::default()),
        }
    }
}

/// A node by its reference, whether it is what that says or not.
fn look(state: &State, key: Key, reference: Ref) -> Result<Found> {
    match state.load(reference, key, key.0.kind(key.1)) {
        Ok(node) => Ok(Found::Whole(node)),
        Err(Error::Corrupt(_)) => raw(state, key, reference).map(Found::Damaged),
        Err(error) => Err(error),
    }
}

/// What the medium has where a reference leads to; `None` if that is nowhere.
pub(super) fn raw(state: &State, key: Key, reference: Ref) -> Result<Option<Node>> {
    if reference.is_none() || reference.unpacked().problem(state.data(), state.generation()).is_some() {
        return Ok(None);
    }
    let found = state.cache.read_snapshot(BlockNo(reference.block), key.0.kind(key.1));
    found.map(|(_, bytes)| Some(bytes))
}

/// The reference at the same place in the tree before, or in the one before that if it cannot be read.
fn older(state: &State, (obj, level, index): Key) -> Result<Option<Ref>> {
    if matches!(obj, Obj::Shared | Obj::Trees) {
        return Ok(None);
    }
    let mut at = before(&state.trees, state.record(state.head)?);
    for _ in 0..RECORDS_MAX {
        let Some((number, _)) = at else { break };
        match state.reference(number, obj, level, index) {
            Ok(reference) => return Ok(Some(reference).filter(|reference| !reference.is_none())),
            Err(Error::Corrupt(_) | Error::Errno(_)) => at = before(&state.trees, state.record(number)?),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Whether a block that is damaged as well proves something of what it has.
fn proves(state: &State, (obj, level, index): Key, bytes: &[u8]) -> Result<bool> {
    let leads = |key: Key, reference: Ref| -> Result<bool> {
        let found = raw(state, key, reference)?;
        Ok(found.is_some_and(|found| sum(&found) == reference.sum))
    };
    match obj {
        _ if level > 0 => {
            for slot in 0..FAN {
                if leads((obj, level - 1, index * FAN + slot), Ref::slot(bytes, to_usize(slot)))? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Obj::Data(ino) => {
            let is_dir = state.inode(state.head, ino).is_ok_and(|inode| inode.is_dir());
            Ok(is_dir && Le::u64(bytes, 8) == ino && !dir::saved(bytes, state.head().seed).is_empty())
        }
        Obj::Inodes => {
            for ino in index * INODES_IN_BLOCK..(index + 1) * INODES_IN_BLOCK {
                let (_, at) = place(ino);
                let Ok(Slot::Used(inode)) = Slot::decode(&bytes[at..at + INODE_BYTES], ino) else { continue };
                for (obj, fork) in [(Obj::Data(ino), inode.data), (Obj::Xattrs(ino), inode.xattrs)] {
                    if leads((obj, fork.height, 0), fork.root)? {
                        return Ok(true);
                    }
                }
            }
            Ok(false)
        }
        Obj::Xattrs(_) | Obj::Shared | Obj::Trees => Ok(false),
    }
}
