//! Names: the operations that only read them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fstitch_core::{DirEntry, Entry, Errno, FileKind, InodeId, InodeNo, Result};
use fstitch_posix::{Inode, name};

use super::node::{Node, State};
use super::{LowLevelFs, NameSlot, Uhfs};

/// An inode with the slot that names it, and the changes that the directory had seen.
type FoundNode<I> = (Arc<Node<I>>, Option<(NameSlot, u64)>);
/// What a name names, if anything, and where that was found if nobody has noted it yet.
type Looked<I> = Option<(FoundNode<I>, Option<Origin>)>;

/// The directory through which an inode was found, as it was then.
pub(super) struct Origin {
    dir: InodeId,
    /// It could be reached on the medium, after so many moves of directories.
    stable: Option<u64>,
}

impl<L: LowLevelFs> Uhfs<L> {
    /// Fails unless `name` could be a name in `parent`; with `ENOTDIR` if that has none at all.
    pub(super) fn check_name(&self, parent: InodeNo, name: &[u8]) -> Result<()> {
        let checked = name::check(name, self.low.limits().name_max);
        if checked.is_err() {
            self.expect_directory(&*self.node(parent)?.read()?)?;
        }
        checked
    }

    /// Fails with `on_dots` for `.` and `..`, which no operation may make, remove or move; but with `ENOTDIR` if
    /// `parent` is no directory.
    pub(super) fn refuse_dots(&self, parent: InodeNo, name: &[u8], on_dots: Errno) -> Result<()> {
        if !name::is_dots(name) {
            return Ok(());
        }
        self.expect_directory(&*self.node(parent)?.read()?)?;
        Err(on_dots.into())
    }

    pub(super) fn kind(&self, state: &State<L::Inode>) -> FileKind {
        self.low.attr(state.inode()).kind
    }

    /// Fails with `ENOTDIR` unless `state` is a directory.
    pub(super) fn expect_directory(&self, state: &State<L::Inode>) -> Result<()> {
        self.low.attr(state.inode()).expect_directory()
    }

    /// The inode, as rules see it.
    pub(super) fn seen(&self, state: &State<L::Inode>) -> Inode {
        Inode { attr: self.low.attr(state.inode()), flags: self.low.flags(state.inode()) }
    }

    /// The node that `name` in the unlocked directory `dir` names. It stays valid because it is taken from the
    /// table while the directory is locked, when the inode has at least this name.
    pub(super) fn find_node(
        &self,
        dir: &Node<L::Inode>,
        name: &[u8],
        refs: u64,
    ) -> Result<Option<Arc<Node<L::Inode>>>> {
        Ok(self.find_slot(dir, name, refs)?.map(|(node, _)| node))
    }

    /// The same with where the name is, which holds as long as [`State::changes`] of the directory is this number; not
    /// for `.`.
    pub(super) fn find_slot(
        &self,
        dir: &Node<L::Inode>,
        name: &[u8],
        refs: u64,
    ) -> Result<Option<FoundNode<L::Inode>>> {
        let Some((found, origin)) = self.look_in(dir, name, refs)? else { return Ok(None) };
        if let Some(origin) = origin
            && found.0.fresh.swap(false, Ordering::Relaxed)
        {
            self.inherit_stability(&found.0, &origin);
        }
        Ok(Some(found))
    }

    /// What `name` names, and where that was found if nobody has noted it yet.
    pub(super) fn look_in(&self, dir: &Node<L::Inode>, name: &[u8], refs: u64) -> Result<Looked<L::Inode>> {
        dir.header.note_use();
        let state = dir.read()?;
        self.expect_directory(&state)?;
        let slot = match name {
            b"." => None,
            _ => match self.low.find_name(state.inode(), name)? {
                None => return Ok(None),
                found => found,
            },
        };
        let ino = slot.as_ref().map_or(dir.ino(), |slot| slot.ino);
        let changes = state.changes();
        let node = self.node_with(ino, refs)?;
        let is_new = !name::is_dots(name) && node.fresh.load(Ordering::Relaxed);
        let origin = is_new.then(|| {
            // Read once: a directory that is moved after this takes with it what was known of its ways.
            let moves = self.moves();
            let is_stable = dir.ino() == self.low.root() || state.track.is_stable(moves);
            Origin { dir: self.low.attr(state.inode()).id(), stable: is_stable.then_some(moves) }
        });
        Ok(Some(((node, slot.map(|slot| (slot, changes))), origin)))
    }

    /// An inode that was loaded through a directory is as reachable on the medium as that directory: its own
    /// name is stable, since it would not have left memory otherwise.
    pub(super) fn inherit_stability(&self, node: &Node<L::Inode>, origin: &Origin) {
        // Without waiting, because another operation may hold it and wait for the directory that the caller
        // has just released; an inode whose directory nobody noted is synced with everything else.
        if let Some(mut state) = node.try_write() {
            state.track.found_in(origin.dir);
            if let Some(moves) = origin.stable
                && state.track.version == 0
            {
                state.track.set_stable(moves);
            }
        }
    }

    pub(super) fn do_lookup(&self, parent: InodeNo, name: &[u8]) -> Result<Entry> {
        self.check_name(parent, name)?;
        let dir = self.node(parent)?;
        let node = self.find_node(&dir, name, 1)?.ok_or(Errno::NOENT)?;
        let attr = node.read().map(|state| self.low.attr(state.inode()));
        if attr.is_err() {
            self.do_forget(node.ino(), 1);
        }
        Ok(Entry { attr: attr? })
    }

    pub(super) fn do_readlink(&self, ino: InodeNo) -> Result<Vec<u8>> {
        let node = self.node(ino)?;
        let target = {
            let state = node.read()?;
            if self.kind(&state) != FileKind::Symlink {
                return Err(Errno::INVAL.into());
            }
            self.low.symlink_target(state.inode())?
        };
        self.accessed(&node)?;
        Ok(target)
    }

    pub(super) fn do_readdir(
        &self,
        ino: InodeNo,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let node = self.node(ino)?;
        {
            let state = node.read()?;
            self.expect_directory(&state)?;
            if self.low.attr(state.inode()).nlink == 0 {
                return Ok(());
            }
            self.low.list_names(state.inode(), cookie, sink)?;
        }
        self.accessed(&node)?;
        Ok(())
    }
}
