//! Patchgroups: what a change needs beside its own patches to be there after a crash. Design:
//! `docs/design/patchgroups.md`.
//!
//! **Invariant.** Before anything comes to depend on a group, or it is synced, the group has gathered what an fsync of each
//! inode that it touched would write.

use std::collections::BTreeSet;

use fstitch_core::groups::{GroupCall, GroupId, with_engaged};
use fstitch_core::lock::Mutex;
use fstitch_core::order::rank;
use fstitch_core::{Entry, Errno, InodeId, InodeNo, Result};
use fstitch_patch::PatchIds;
use rustc_hash::FxHashMap;

use super::node::Part;
use super::{LowLevelFs, Uhfs};

/// Inodes that a group remembers: beyond them it gathers at once what they need.
const TOUCHED_MAX: usize = 16_384;

/// The inodes that each group has touched since it last gathered what they need.
#[derive(Debug, Default)]
pub(super) struct Touched(Mutex<FxHashMap<GroupId, BTreeSet<InodeId>>, rank::Leaf>);

impl Touched {
    /// Remembers inodes for a group; true if these are too many.
    fn add(&self, group: GroupId, ids: &[InodeId]) -> bool {
        let mut touched = self.0.lock();
        let set = touched.entry(group).or_default();
        set.extend(ids);
        set.len() > TOUCHED_MAX
    }

    fn take(&self, group: GroupId) -> BTreeSet<InodeId> {
        self.0.lock().remove(&group).unwrap_or_default()
    }
}

impl<L: LowLevelFs> Uhfs<L> {
    pub(super) fn do_group(&self, call: GroupCall) -> Result<GroupId> {
        if self.options.read_only {
            return Err(Errno::ROFS.into());
        }
        match call {
            // Whether a journal is kept is decided with the first change.
            GroupCall::Create => drop(self.change(0)?),
            GroupCall::Depend { before: group, .. } | GroupCall::Sync(group) => self.gather_touched(group)?,
            GroupCall::Close(group) => drop(self.touched.take(group)),
            GroupCall::Engage(_) | GroupCall::Disengage(_) => {}
        }
        self.noticed(self.cache().group(call))
    }

    /// An operation of a thread with engaged groups has changed these inodes. With a journal, too: what it changed may be
    /// contents only, of a file that a transaction on its way has made.
    pub(super) fn touch_groups(&self, inos: &[InodeNo]) -> Result<()> {
        let groups = with_engaged(<[GroupId]>::to_vec);
        if groups.is_empty() {
            return Ok(());
        }
        let mut touched = Vec::new();
        for &ino in inos {
            // What is gone already is the business of who has removed it.
            if let Ok(node) = self.node(ino)
                && let Ok(state) = node.read()
            {
                touched.push(self.low.attr(state.inode()).id());
                // The directories that lead to it, too: it may leave memory before them.
                touched.extend(&state.track.parents);
            }
        }
        for group in groups {
            if self.touched.add(group, &touched) {
                self.gather_touched(group)?;
            }
        }
        Ok(())
    }

    /// The group gathers what the inodes that it touched need.
    fn gather_touched(&self, group: GroupId) -> Result<()> {
        for id in self.touched.take(group) {
            // What is not there any more is the business of who has removed it, later.
            let Ok(Some(node)) = self.still(id) else { continue };
            let mut patches: PatchIds = {
                let Ok(state) = node.read() else { continue };
                let mut patches = state.track.gathers(&[Part::Contents, Part::Attributes]);
                patches.extend(self.low.inode_patches(state.inode()));
                patches
            };
            let is_stable = !patches.iter().any(|&patch| self.pending(patch));
            let ascent = self.ascend(&node)?;
            patches.extend(ascent.patches);
            if ascent.lost && !is_stable {
                // Nobody knows its directories. One that has left memory since is stable, and they are touched as well.
                self.cache().sync_all()?;
            }
            self.cache().lock().join_group(group, &patches);
        }
        Ok(())
    }

    /// A name has been made in `parent`.
    pub(super) fn made(&self, parent: InodeNo, made: Entry) -> Result<Entry> {
        if let Err(error) = self.touch_groups(&[parent, made.attr.ino]) {
            self.do_forget(made.attr.ino, 1);
            return Err(error);
        }
        self.sync_made(parent, made)
    }
}
