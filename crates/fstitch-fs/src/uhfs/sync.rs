//! Making things stable: fsync with all names up to the root, sync, and unmounting.
//!
//! An fsync makes stable the file's own changes and, unless it is known to be reachable on the medium already,
//! its unstable names, those of the directories that hold them, and so on upwards (soft updates §3.5).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fstitch_core::{Entry, Errno, Error, FileKind, InodeFlags, InodeNo, Result};
use fstitch_patch::PatchIds;

use super::node::{Node, Part};
use super::volume::Phase;
use super::{LowLevelFs, Uhfs};

/// What a walk towards the root found.
pub(super) struct Ascent<I> {
    pub(super) patches: PatchIds,
    /// The nodes that were not known to be reachable, with the version of their names at the time.
    climbed: Vec<(Arc<Node<I>>, u64)>,
    /// The directories of some inode are not known: only a sync of everything is sure to reach them.
    pub(super) lost: bool,
}

impl<L: LowLevelFs> Uhfs<L> {
    pub(super) fn do_fsync(&self, ino: InodeNo, data_only: bool) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        self.fail_if_poisoned()?;
        let node = self.node(ino)?;
        let moves = self.moves();
        let mut patches = {
            let state = node.read()?;
            if data_only {
                state.track.gathers(&[Part::Contents])
            } else {
                let mut patches = state.track.gathers(&[Part::Contents, Part::Attributes]);
                patches.extend(self.low.inode_patches(state.inode()));
                patches
            }
        };
        let ascent = self.ascend(node)?;
        patches.extend(ascent.patches);
        let synced = if ascent.lost { self.cache().sync_all() } else { self.cache().sync_patches(&patches) };
        synced.map_err(|error| self.as_io(error))?;
        for (node, version) in ascent.climbed {
            let Ok(mut state) = node.write() else { continue };
            if state.track.version == version {
                state.track.set_stable(moves);
            }
        }
        Ok(())
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
            let flags = self.node(dir).and_then(|node| Ok(self.low.flags(node.read()?.inode())));
            flags.is_ok_and(|flags| flags.0 & (InodeFlags::DIRSYNC | InodeFlags::SYNC) != 0)
        };
        if !self.options.synchronous && !dirs.iter().any(marked) {
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
    pub(super) fn ascend(&self, node: Arc<Node<L::Inode>>) -> Result<Ascent<L::Inode>> {
        let mut ascent = Ascent { patches: PatchIds::new(), climbed: Vec::new(), lost: false };
        let mut seen = BTreeSet::new();
        let mut queue = vec![node];
        while let Some(node) = queue.pop() {
            if !seen.insert(node.ino) {
                continue;
            }
            for parent in self.climb_one(&node, &mut ascent)? {
                match self.node(parent) {
                    Ok(node) => queue.push(node),
                    // A directory that is gone holds no name of this inode any more.
                    Err(error) if error.errno() == Errno::STALE => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(ascent)
    }

    /// Adds one node's names to the ascent and returns the directories that hold them.
    fn climb_one(&self, node: &Arc<Node<L::Inode>>, ascent: &mut Ascent<L::Inode>) -> Result<Vec<InodeNo>> {
        let Ok(state) = node.read() else { return Ok(Vec::new()) };
        ascent.patches.extend(state.track.gathers(&[Part::Names]));
        let attr = self.low.attr(state.inode());
        if state.track.is_stable(self.moves()) || node.ino == self.low.root() || attr.nlink == 0 {
            return Ok(Vec::new());
        }
        ascent.climbed.push((Arc::clone(node), state.track.version));
        match attr.kind {
            FileKind::Directory => {
                Ok(self.low.find_name(state.inode(), b"..")?.map(|slot| slot.ino).into_iter().collect())
            }
            _ => {
                ascent.lost |= state.track.parents.is_empty();
                Ok(state.track.parents.to_vec())
            }
        }
    }

    /// Makes everything stable. Inodes that were only waiting for that leave memory now, rather than with the operations that
    /// come next.
    pub(super) fn do_sync(&self) -> Result<()> {
        let last = self.table.last_ticket();
        // Who has the gate for himself has done this already, or will.
        if self.in_use.load(Ordering::Acquire)
            && let Ok(gate) = self.gate.try_read()
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
    fn as_io(&self, error: Error) -> Error {
        match error {
            Error::Poisoned(_) => match self.cache().poisoned() {
                Some(cause @ Error::Io { .. }) => cause,
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
        let mut phase = self.gate.write().expect("no panic while held");
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
        if !self.in_use.load(Ordering::Acquire) || self.is_closed() {
            return Ok(());
        }
        let change = self.change(0)?;
        self.free_all_orphans(&change)
    }

    fn is_closed(&self) -> bool {
        *self.gate.read().expect("no panic while held") == Phase::Closed
    }
}
