//! Removing names, moving them, and letting go of inodes.

use fstitch_core::{Errno, FileKind, InodeNo, RenameMode, Result};
use fstitch_posix::name::expect_open_directory;
use fstitch_posix::remove::{
    Renamed, check_remove, check_rmdir_name, check_target_exists, dots_as_target, target_is_ancestor,
};

use crate::blocks::Blocks;
use crate::change::Change;
use crate::dir::{self, Found};
use crate::inode::Inode;
use crate::layout::{LINK_MAX, ROOT};
use crate::volume::MinixLld;

/// No path is deeper: a volume with a longer chain of `..` is damaged and may have a loop of them.
const DEPTH_MAX: u32 = 1 << 20;

/// A directory and a name in it.
type Side<'a> = (InodeNo, &'a [u8]);

/// A rename that was looked into.
struct Move<'a> {
    from: Side<'a>,
    to: Side<'a>,
    source: Found,
    target: Option<Found>,
}

impl MinixLld {
    /// Removes a name: of a directory, or of anything else if `kind` is none.
    pub(crate) fn do_remove(&self, (parent, name): Side<'_>, kind: FileKind) -> Result<()> {
        let is_rmdir = kind == FileKind::Directory;
        let mut change = self.change()?;
        let dir = self.live(&change, parent)?;
        if is_rmdir {
            check_rmdir_name(name)?;
        }
        self.check_name(&dir, name, Some(Errno::ISDIR))?;
        let found = dir::find(&change, &self.place(parent, name))?.ok_or(Errno::NOENT)?;
        let victim = change.inode(found.ino)?;
        let is_empty = || dir::is_empty(&change, found.ino);
        check_remove(&dir.seen(), &victim.seen(), kind, (false, is_empty))?;
        dir::remove(&mut change, parent, &found)?;
        change.touch_names(parent)?;
        self.lose_name(&mut change, parent, victim)?;
        change.commit(|| ())
    }

    /// An inode has one name less, which was in `dir`.
    fn lose_name(&self, change: &mut Change<'_>, dir: InodeNo, mut inode: Inode) -> Result<()> {
        inode.ctime = change.now();
        if inode.is_dir() {
            change.update(dir, |dir| dir.nlink = dir.nlink.saturating_sub(1))?;
            inode.nlink = 0;
        } else {
            inode.nlink = inode.nlink.saturating_sub(1);
        }
        if inode.nlink > 0 {
            change.put(inode);
            return Ok(());
        }
        let node = self.node(inode.ino, 0)?;
        change.lose(&node, inode)
    }

    pub(crate) fn do_forget(&self, ino: InodeNo, count: u64) {
        if let Some(node) = self.table().release(ino, count) {
            self.settle(&node);
        }
        self.evict();
    }

    /// Frees inodes that nobody refers to any more and for which there was no room to be freed.
    pub(crate) fn settle_all(&self) {
        let nodes = self.table().all();
        nodes.iter().filter(|node| node.header.is_orphan()).for_each(|node| self.settle(node));
    }

    /// Frees what has no name, although somebody may refer to it.
    pub(crate) fn free_orphans(&self) -> Result<()> {
        for node in self.table().all() {
            if node.header.claim_referred_orphan() {
                self.free_claimed(&node)?;
            }
        }
        Ok(())
    }

    pub(crate) fn do_rename(&self, from: Side<'_>, to: Side<'_>, mode: RenameMode) -> Result<()> {
        let mut change = self.change()?;
        let (from_dir, to_dir) = (self.live(&change, from.0)?, self.live(&change, to.0)?);
        to_dir.seen().attr.expect_directory()?;
        from_dir.seen().attr.expect_directory()?;
        for (dir, (_, name), on_dots) in [(&to_dir, to, dots_as_target(mode)), (&from_dir, from, Errno::BUSY)]
        {
            self.check_name(dir, name, Some(on_dots))?;
        }
        let source = dir::find(&change, &self.place(from.0, from.1))?.ok_or(Errno::NOENT)?;
        let target = dir::find(&change, &self.place(to.0, to.1))?;
        check_target_exists(mode, target.is_some())?;
        if from.0 != to.0 {
            refuse_loop(&change, &source, to.0, Errno::INVAL)?;
            if let Some(target) = &target {
                refuse_loop(&change, target, from.0, target_is_ancestor(mode))?;
            }
        }
        expect_open_directory(&from_dir.seen().attr)?;
        expect_open_directory(&to_dir.seen().attr)?;
        if target.is_some_and(|target| target.ino == source.ino) {
            return Ok(());
        }
        let moved = Move { from, to, source, target };
        check(&change, &moved, (&from_dir, &to_dir), mode)?;
        match (mode, target) {
            (RenameMode::Exchange, Some(target)) => exchange(&mut change, &moved, &target)?,
            _ => self.move_name(&mut change, &moved)?,
        }
        change.touch_names(from.0)?;
        change.touch_names(to.0)?;
        change.commit(|| ())
    }

    fn move_name(&self, change: &mut Change<'_>, moved: &Move<'_>) -> Result<()> {
        let Move { from, to, source, target } = moved;
        let named = (source.ino, source.kind);
        match target {
            Some(target) => dir::replace(change, to.0, target, named)?,
            None => dir::add(change, &self.place(to.0, to.1), named.0, named.1)?,
        }
        // The leaf may be another one now.
        let old = dir::find(change, &self.place(from.0, from.1))?.ok_or(Errno::UCLEAN)?;
        dir::remove(change, from.0, &old)?;
        follow(change, source, from.0, to.0)?;
        match target {
            Some(target) => {
                let inode = change.inode(target.ino)?;
                self.lose_name(change, to.0, inode)
            }
            None => Ok(()),
        }
    }
}

/// Fails with `on_loop` if the directory that was found is `dir` or one of its ancestors.
fn refuse_loop(change: &Change<'_>, found: &Found, dir: InodeNo, on_loop: Errno) -> Result<()> {
    if found.kind != FileKind::Directory {
        return Ok(());
    }
    let mut at = dir;
    for _ in 0..DEPTH_MAX {
        if at == found.ino {
            return Err(on_loop.into());
        }
        if at == ROOT {
            return Ok(());
        }
        at = change.inode(at)?.parent;
    }
    Err(Errno::LOOP.into())
}

/// Kinds, flags and limits.
fn check(change: &Change<'_>, moved: &Move<'_>, dirs: (&Inode, &Inode), mode: RenameMode) -> Result<()> {
    let source = change.inode(moved.source.ino)?.seen();
    let target = moved.target.map(|target| change.inode(target.ino)).transpose()?.map(|inode| inode.seen());
    let dirs = (&dirs.0.seen(), &dirs.1.seen());
    let renamed = Renamed { dirs, source: &source, target: target.as_ref(), mode };
    renamed.check(|| match moved.target {
        Some(target) => dir::is_empty(change, target.ino),
        None => Ok(true),
    })?;
    renamed.check_link_room(LINK_MAX)
}

/// An inode has its name in `to` and no more in `from`.
fn follow(change: &mut Change<'_>, found: &Found, from: InodeNo, to: InodeNo) -> Result<()> {
    let now = change.now();
    change.update(found.ino, |inode| inode.ctime = now)?;
    if found.kind != FileKind::Directory || from == to {
        return Ok(());
    }
    change.update(found.ino, |inode| inode.parent = to)?;
    change.update(from, |dir| dir.nlink = dir.nlink.saturating_sub(1))?;
    change.update(to, |dir| dir.nlink = dir.nlink.saturating_add(1))
}

/// Each name stands for the other one's inode.
fn exchange(change: &mut Change<'_>, moved: &Move<'_>, target: &Found) -> Result<()> {
    let (source, from, to) = (moved.source, moved.from.0, moved.to.0);
    let gains = match [source.kind, target.kind].map(|kind| kind == FileKind::Directory) {
        [true, false] if from != to => Some(to),
        [false, true] if from != to => Some(from),
        _ => None,
    };
    if let Some(gains) = gains
        && change.inode(gains)?.nlink >= LINK_MAX
    {
        return Err(Errno::MLINK.into());
    }
    dir::replace(change, to, target, (source.ino, source.kind))?;
    dir::replace(change, from, &source, (target.ino, target.kind))?;
    follow(change, &source, from, to)?;
    follow(change, target, to, from)
}
