//! Several inode locks at once.
//!
//! Deadlock cannot occur: locks are waited for in the order of inode numbers only; a lock out of that order is
//! taken by attempt, and where the attempt fails the caller releases everything and starts again in order.

use std::sync::Arc;

use fstitch_core::{Errno, InodeNo, Result};
use smallvec::SmallVec;

use super::node::{Exclusive, Node, State};

/// The exclusive locks of up to four inodes.
pub(super) struct Locked<'a, I> {
    guards: SmallVec<[(InodeNo, Exclusive<'a, I>); 4]>,
}

impl<'a, I> Locked<'a, I> {
    /// Locks all of `nodes`, each once. `ESTALE` if one of them is dead.
    pub(super) fn all(nodes: &[&'a Arc<Node<I>>]) -> Result<Self> {
        let mut nodes: SmallVec<[&'a Arc<Node<I>>; 4]> = SmallVec::from_slice(nodes);
        nodes.sort_by_key(|node| node.ino());
        nodes.dedup_by_key(|node| node.ino());
        let mut guards = SmallVec::new();
        for node in nodes {
            guards.push((node.ino(), node.write()?));
        }
        Ok(Self { guards })
    }

    /// Locks another inode if that needs no waiting. Returns whether it is locked now.
    pub(super) fn attempt(&mut self, node: &'a Arc<Node<I>>) -> Result<bool> {
        if self.guards.iter().any(|(ino, _)| *ino == node.ino()) {
            return Ok(true);
        }
        let Some(state) = node.try_write() else { return Ok(false) };
        if state.dead {
            return Err(Errno::STALE.into());
        }
        self.guards.push((node.ino(), state));
        Ok(true)
    }

    /// The states of two locked inodes, which may be the same one.
    ///
    /// # Panics
    /// If one is not locked, which is a bug in the caller.
    pub(super) fn both(&self, first: InodeNo, second: InodeNo) -> (&State<I>, &State<I>) {
        let of = |ino| {
            let found = self.guards.iter().find(|(locked, _)| *locked == ino);
            &*found.expect("the caller locked this inode").1
        };
        (of(first), of(second))
    }

    /// The state of a locked inode.
    ///
    /// # Panics
    /// If it is not locked, which is a bug in the caller.
    pub(super) fn of(&mut self, ino: InodeNo) -> &mut State<I> {
        let found = self.guards.iter_mut().find(|(locked, _)| *locked == ino);
        &mut found.expect("the caller locked this inode").1
    }
}
