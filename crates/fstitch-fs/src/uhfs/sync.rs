//! Making things stable: fsync with all names up to the root, sync, and unmounting.
//!
//! An fsync makes stable the file's own changes and, unless it is known to be reachable on the medium already,
//! its unstable names, those of the directories that hold them, and so on upwards (soft updates §3.5).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fstitch_core::{
    BlockNo, Consistency, Entry, Errno, Error, FileKind, InodeFlags, InodeId, InodeNo, IoOp, Result, waiting,
};
use fstitch_patch::PatchIds;

use super::node::{Node, Part, State};
use super::volume::Phase;
use super::{LowLevelFs, Uhfs};

/// How often a walk towards the root begins again because names on it have changed, before everything is made stable instead.
const CLIMBS_MAX: u32 = 8;

/// A walk towards the root, and what it found.
pub(super) struct Ascent<I> {
    pub(super) patches: PatchIds,
    /// The nodes that were not known to be reachable, with the version of their names at the time.
    climbed: Vec<(Arc<Node<I>>, u64)>,
    /// The directories of some inode are not known: only a sync of everything is sure to reach them.
    pub(super) lost: bool,
    seen: BTreeSet<InodeId>,
    /// What is still to be climbed.
    queue: Vec<Arc<Node<I>>>,
}

impl<I> Ascent<I> {
    fn from(node: &Arc<Node<I>>) -> Self {
        let queue = vec![Arc::clone(node)];
        Self { patches: PatchIds::new(), climbed: Vec::new(), lost: false, seen: BTreeSet::new(), queue }
    }

    /// Whether all names on the way are still those that were climbed. If not, a name may have come to a directory that the
    /// walk never saw, from one that was gone when the walk came there.
    fn holds(&self) -> bool {
        self.climbed
            .iter()
            .all(|(node, version)| node.read().is_ok_and(|state| state.track.version == *version))
    }
}

impl<L: LowLevelFs> Uhfs<L> {
    pub(super) fn do_fsync(&self, ino: InodeNo, data_only: bool) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        self.fail_if_poisoned()?;
        let node = self.node(ino)?;
        let own = {
            let state = node.read()?;
            if data_only {
                state.track.gathers(&[Part::Contents])
            } else {
                let mut patches = state.track.gathers(&[Part::Contents, Part::Attributes]);
                patches.extend(self.low.inode_patches(state.inode()));
                patches
            }
        };
        for _ in 0..CLIMBS_MAX {
            let moves = self.moves();
            let ascent = self.ascend(&node)?;
            if self.make_stable(&own, &ascent, moves)? {
                return Ok(());
            }
        }
        // Somebody renames it all the time.
        self.cache().sync_all().map_err(|error| self.as_io(error))
    }

    /// Makes stable what an ascent after so many moves has found, and `own`. False if names have changed meanwhile: then the
    /// ascent is to be made again.
    fn make_stable(&self, own: &PatchIds, ascent: &Ascent<L::Inode>, moves: u64) -> Result<bool> {
        let mut patches = own.clone();
        patches.extend(ascent.patches.iter().copied());
        let synced = if ascent.lost { self.cache().sync_all() } else { self.cache().sync_patches(&patches) };
        synced.map_err(|error| self.as_io(error))?;
        let holds = ascent.holds();
        for (node, version) in &ascent.climbed {
            let Ok(mut state) = node.write() else { continue };
            if holds && state.track.version == *version {
                state.track.set_stable(moves);
            }
        }
        Ok(holds || ascent.lost)
    }

    /// Before a change of an inode other than of its names.
    ///
    /// # Errors
    /// [`Error::WouldWait`] on a thread that refuses to wait, if the inode is marked for the change to be stable at once.
    pub(super) fn ask_to_sync(&self, state: &State<L::Inode>) -> Result<()> {
        let would_wait = waiting::refuses() && self.low.flags(state.inode()).has(InodeFlags::SYNC);
        if would_wait { Err(Error::WouldWait) } else { Ok(()) }
    }

    /// Before a change of names in a directory, in the same way.
    pub(super) fn ask_to_sync_names(&self, dir: &State<L::Inode>) -> Result<()> {
        if waiting::refuses() && self.syncs_names(dir) { Err(Error::WouldWait) } else { Ok(()) }
    }

    /// Whether names in a directory are to be stable when a call returns.
    fn syncs_names(&self, dir: &State<L::Inode>) -> bool {
        let marked = self.low.flags(dir.inode()).0 & (InodeFlags::DIRSYNC | InodeFlags::SYNC) != 0;
        marked || self.options.consistency == Consistency::Sync
    }

    /// After a change of an inode other than of its names: makes it stable if it is marked for that (`chattr +S`).
    pub(super) fn sync_if_asked(&self, ino: InodeNo) -> Result<()> {
        let node = self.node(ino)?;
        let asked = node.read().is_ok_and(|state| self.low.flags(state.inode()).has(InodeFlags::SYNC));
        if asked { self.do_fsync(ino, false) } else { Ok(()) }
    }

    /// After a change of names in `dirs`: makes their names stable if one of the directories is marked for that
    /// (`chattr +D`, or `+S`). Of a move between directories both sides become stable, since half of it is none.
    pub(super) fn sync_names_if_asked(&self, dirs: &[InodeNo]) -> Result<()> {
        let marked = |&dir: &InodeNo| {
            self.node(dir).is_ok_and(|node| node.read().is_ok_and(|state| self.syncs_names(&state)))
        };
        if self.options.consistency != Consistency::Sync && !dirs.iter().any(marked) {
            return Ok(());
        }
        for &dir in dirs {
            match self.do_fsync(dir, false) {
                // Somebody has removed the directory since, and all names in it.
                Err(error) if error.errno() == Errno::STALE => {}
                synced => synced?,
            }
        }
        Ok(())
    }

    /// As [`Uhfs::sync_names_if_asked`], for an operation that has made a name in `dir`.
    pub(super) fn sync_made(&self, dir: InodeNo, made: Entry) -> Result<Entry> {
        let synced = self.sync_names_if_asked(&[dir]);
        if synced.is_err() {
            // The caller gets no entry, and so no reference.
            self.do_forget(made.attr.ino, 1);
        }
        synced.map(|()| made)
    }

    /// Collects the names on the way to the root that may not be stable.
    pub(super) fn ascend(&self, node: &Arc<Node<L::Inode>>) -> Result<Ascent<L::Inode>> {
        for _ in 0..CLIMBS_MAX {
            let mut ascent = Ascent::from(node);
            while self.climb_next(&mut ascent)? {}
            if ascent.holds() {
                return Ok(ascent);
            }
        }
        // The names change faster than they can be collected: they are made stable as they are, and nothing is left to collect.
        self.cache().sync_all()?;
        Ok(Ascent { queue: Vec::new(), ..Ascent::from(node) })
    }

    /// Adds one node's names to the ascent, and the directories that hold them to what is still to be climbed. False if there
    /// was nothing left.
    fn climb_next(&self, ascent: &mut Ascent<L::Inode>) -> Result<bool> {
        let Some(node) = ascent.queue.pop() else { return Ok(false) };
        let Ok(state) = node.read() else { return Ok(true) };
        let attr = self.low.attr(state.inode());
        if !ascent.seen.insert(attr.id()) {
            return Ok(true);
        }
        ascent.patches.extend(state.track.gathers(&[Part::Names]));
        if state.track.is_stable(self.moves()) || node.ino() == self.low.root() || attr.nlink == 0 {
            return Ok(true);
        }
        ascent.climbed.push((Arc::clone(&node), state.track.version));
        if attr.kind == FileKind::Directory {
            ascent.queue.extend(self.parent_of(&state)?);
            return Ok(true);
        }
        let parents = state.track.parents.clone();
        drop(state);
        let others = ascent.queue.len();
        for parent in parents {
            // A directory that is gone holds no name of this inode any more.
            ascent.queue.extend(self.still(parent)?);
        }
        ascent.lost |= ascent.queue.len() == others;
        Ok(true)
    }

    /// Makes everything stable. Inodes that were only waiting for that leave memory now, rather than with the operations that
    /// come next.
    pub(super) fn do_sync(&self) -> Result<()> {
        let last = self.table.last_ticket();
        // Who has the gate for himself has done this already, or will.
        if self.in_use.load(Ordering::Acquire)
            && let Some(gate) = self.gate.try_read()
            && *gate != Phase::Closed
        {
            self.low.before_sync();
        }
        let synced = self.make_all_stable();
        if synced.is_ok() {
            self.evict_stable(last);
        }
        synced
    }

    fn make_all_stable(&self) -> Result<()> {
        if !self.options.read_only {
            self.fail_if_poisoned()?;
            self.cache().sync_all().map_err(|error| self.as_io(error))?;
        }
        self.take_error()
    }

    /// Passes on what an operation returns. Where it met damage, what is pending is written, and nothing else after
    /// it: changes would build on structures that are not what they seem. To be called holding no lock.
    pub(super) fn noticed<T>(&self, done: Result<T>) -> Result<T> {
        if let Err(damage @ Error::Corrupt(_)) = &done
            && !self.options.read_only
            && self.cache().poisoned().is_none()
        {
            if self.in_use.load(Ordering::Acquire) {
                self.low.note_damage();
            }
            // If this fails, the cache has turned read-only for that reason, and knows what was lost.
            let _ = self.cache().sync_all();
            self.cache().poison(&damage.to_string());
        }
        done
    }

    /// After a failed write every later sync fails: what was lost stays lost.
    fn fail_if_poisoned(&self) -> Result<()> {
        match self.cache().poisoned() {
            Some(error) => Err(self.as_io(error)),
            None => Ok(()),
        }
    }

    /// A poisoned cache answers changes with `EROFS`, but syncs with `EIO`, which is what applications look for.
    pub(super) fn as_io(&self, error: Error) -> Error {
        match error {
            Error::Poisoned(_) => match self.cache().poisoned() {
                Some(cause @ Error::Io { .. }) => cause,
                Some(Error::Poisoned(why)) => {
                    Error::io(IoOp::Flush, BlockNo(0), std::io::Error::other(why.to_string()))
                }
                _ => Errno::IO.into(),
            },
            other => other,
        }
    }

    pub(super) fn do_unmount(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        let _no_reclaimer = self.reclaimer.halt();
        self.free_orphans_for_unmount()?;
        // Whoever is in the middle of a change finishes it first; whoever comes later is refused.
        let mut phase = self.shut_gate();
        if *phase == Phase::Closed {
            // Whoever asks again is told again what was lost.
            return self.fail_if_poisoned();
        }
        *phase = Phase::Closed;
        self.low.before_sync();
        self.make_all_stable()?;
        if self.in_use.load(Ordering::Acquire) {
            self.low.mark_clean()?;
            self.make_all_stable()?;
        }
        Ok(())
    }

    /// Orphans can only be freed by a change, so they are freed before the gate closes. One that is made in
    /// between stays allocated, which a later check reclaims.
    fn free_orphans_for_unmount(&self) -> Result<()> {
        if !self.in_use.load(Ordering::Acquire) || self.is_closed()? {
            return Ok(());
        }
        let change = self.change(0)?;
        self.free_all_orphans(&change)
    }

    fn is_closed(&self) -> Result<bool> {
        Ok(*self.pass_gate()? == Phase::Closed)
    }
}

#[cfg(test)]
mod tests;
