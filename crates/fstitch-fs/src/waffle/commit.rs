//! The commit: what has changed becomes blocks, and a root that reaches them.
//!
//! **Layout and order.** Nodes from the leaves up: each gets a block, a patch with all of its contents, and its sum goes into the
//! node above. Then the record of the tree, the table of trees, the blocks of the map to their other homes, and the root, whose patch comes
//! after all of these.
//!
//! **States and transitions**: `docs/design/waffle.md`. [`State::commit`] makes the patches and waits for nothing; whoever waits syncs
//! [`State::last_root`].
//!
//! **Invariants.** 1. Every block of this generation is written after the root before it, and before its own. 2. A commit that fails
//! has made no root: nothing is written any more.
//!
//! **Crash cases**: `docs/design/waffle.md`.

use std::sync::Arc;

use fstitch_core::num::to_u64;
use fstitch_core::{BlockBuf, BlockKind, BlockNo, Result, Timestamp};

use super::layout::pointer::{Fork, REF_BYTES, Ref, slot_of};
use super::layout::record::RECORD_BYTES;
use super::layout::{FAN, sum};
use super::state::{State, record_place};
use super::tree::{Key, Obj};

impl State {
    /// Makes the next root of all that has changed. The last one must be stable.
    ///
    /// # Errors
    /// `Io`, `Corrupt`; `ENOSPC` never, while invariant 5 holds. After an error the volume must not be changed any more.
    pub(super) fn commit(&mut self, now: Timestamp, is_closed: bool) -> Result<()> {
        assert!(self.is_settled(), "one root is under way at a time");
        #[cfg(debug_assertions)]
        self.check_invariants();
        let generation = self.generation();
        self.pack_loose()?;
        self.touch(Obj::Trees, 0, record_place(self.head).0)?;
        // From here on leaves are elsewhere, also where this fails.
        self.leaves.forget();
        self.place(|obj| obj != Obj::Trees)?;
        self.put_records()?;
        self.place(|_| true)?;
        for home in self.map.close(generation) {
            self.write(home.kind, vec![(home.block, Arc::new(home.bytes))])?;
        }
        self.root.map = self.map.top();
        self.root.generation = generation;
        self.root.free = self.map.avail();
        self.root.is_closed = is_closed;
        self.root.at = now;
        self.root.records = u32::try_from(self.trees.len()).expect("trees are few");
        self.put_root()?;
        self.changed_at = None;
        self.discard_undo();
        Ok(())
    }

    /// The trees' records go to their table.
    fn put_records(&mut self) -> Result<()> {
        for number in 0..self.trees.len() {
            let (leaf, at) = record_place(number);
            let bytes = self.trees[number].as_ref().map_or([0; RECORD_BYTES], |tree| tree.encode());
            let is_there = self.node(self.head, Obj::Trees, 0, leaf)?;
            let is_same = is_there.is_some_and(|node| node[at..at + RECORD_BYTES] == bytes);
            if !is_same {
                self.touch(Obj::Trees, 0, leaf)?[at..at + RECORD_BYTES].copy_from_slice(&bytes);
            }
        }
        Ok(())
    }

    /// Gives those changed nodes blocks that `which` picks, from the leaves up.
    fn place(&mut self, which: impl Fn(Obj) -> bool) -> Result<()> {
        let mut keys: Vec<Key> = self.nodes.keys().copied().filter(|(obj, ..)| which(*obj)).collect();
        keys.sort_unstable();
        for key in keys {
            let Some(node) = self.nodes.remove(&key) else { continue };
            let block = self.take(None)?;
            let reference = Ref { block, birth: self.generation(), sum: sum(&node), flags: 0, extra: 0 };
            self.write(key.0.kind(key.1), vec![(block, node)])?;
            self.refer(key, reference)?;
        }
        Ok(())
    }

    /// What is above a node refers to its block.
    fn refer(&mut self, (obj, level, index): Key, reference: Ref) -> Result<()> {
        if let Some(above) = self.nodes.get_mut(&(obj, level + 1, index / FAN)) {
            reference.write(&mut Arc::make_mut(above)[..], slot_of(index) * REF_BYTES);
            return Ok(());
        }
        let height = self.fork(self.head, obj)?.height;
        assert!(
            level == height && index == 0,
            "what is above a changed node has changed: {obj:?} {level} {index}"
        );
        self.set_fork(obj, Fork { root: reference, height })
    }

    /// The root's patch, which directly comes after all others (\[D\] §2.4.1).
    fn put_root(&mut self) -> Result<()> {
        let bytes = Arc::new(BlockBuf::copy_of(&self.root.encode()));
        let block = self.cache.fresh(BlockNo(self.root.place()), BlockKind::Superblock)?;
        let mut befores = std::mem::take(&mut self.patches);
        befores.push(self.last_root);
        self.last_root = self.cache.lock().init(&block, bytes, &befores);
        Ok(())
    }

    /// Keeps the list of this generation's patches short: those that are stable need not be listed.
    pub(super) fn forget_stable(&mut self) {
        let tx = self.cache.lock();
        self.patches.retain(|&patch| tx.state(patch) != fstitch_patch::PatchState::Committed);
    }

    /// Blocks that a commit would take now.
    pub(super) fn pending(&self) -> u64 {
        to_u64(self.nodes.len())
    }
}
