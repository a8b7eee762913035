//! Names: finding, making, linking, moving, removing and listing them.

use fstitch_core::{Caller, Entry, Errno, FileKind, InodeFlags, InodeNo, RenameMode, Result};

use super::ROOT;
use super::state::{Content, Named, NewNode, State};

/// How many names one batch of a listing holds.
const LISTING_BATCH: usize = 512;

/// Both ends of a rename that passed the checks.
struct Move<'a> {
    from: (InodeNo, &'a [u8]),
    to: (InodeNo, &'a [u8]),
    moved: Named,
    target: Option<Named>,
}

impl State {
    fn entry(&mut self, ino: InodeNo) -> Entry {
        let node = self.known(ino);
        node.refs += 1;
        Entry { attr: node.attr }
    }

    pub(super) fn lookup(&mut self, parent: InodeNo, name: &[u8]) -> Result<Entry> {
        let ino = self.find(parent, name)?.ok_or(Errno::NOENT)?;
        Ok(self.entry(ino))
    }

    pub(super) fn forget(&mut self, ino: InodeNo, count: u64) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.refs = node.refs.saturating_sub(count);
            self.reap(ino);
        }
    }

    pub(super) fn readlink(&mut self, ino: InodeNo) -> Result<Vec<u8>> {
        let Content::Symlink(target) = &self.node(ino)?.content else { return Err(Errno::INVAL.into()) };
        let target = target.clone();
        self.accessed(ino);
        Ok(target)
    }

    /// Raises the count of `parent` where `kind` gives it another `..`; fails before anything changes.
    fn expect_room_for(&self, parent: InodeNo, kind: FileKind) -> Result<()> {
        let full = self.node(parent)?.attr.nlink >= self.options.link_max;
        if kind == FileKind::Directory && full { Err(Errno::MLINK.into()) } else { Ok(()) }
    }

    /// Enters a name for an inode, with everything that follows from it.
    fn enter(&mut self, parent: InodeNo, name: &[u8], ino: InodeNo, kind: FileKind) {
        let now = self.now;
        self.names_mut(parent).add(name, ino, kind);
        let dir = self.known(parent);
        dir.touch(now);
        dir.attr.nlink += u32::from(kind == FileKind::Directory);
        let node = self.known(ino);
        node.attr.nlink += 1;
        node.attr.ctime = now;
        node.nameless = false;
    }

    pub(super) fn create(
        &mut self,
        caller: &Caller,
        parent: InodeNo,
        name: &[u8],
        new: &NewNode<'_>,
    ) -> Result<Entry> {
        self.expect_new_name(parent, name)?;
        self.expect_room_for(parent, new.kind)?;
        let ino = self.make(caller, parent, new)?;
        self.enter(parent, name, ino, new.kind);
        Ok(self.entry(ino))
    }

    pub(super) fn mknod(
        &mut self,
        caller: &Caller,
        parent: InodeNo,
        name: &[u8],
        mode: u16,
        rdev: u32,
    ) -> Result<Entry> {
        let kind = match mode & 0o170_000 {
            0 => FileKind::Regular,
            _ => FileKind::from_mode(mode).ok_or(Errno::INVAL)?,
        };
        let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        let rdev = if device { rdev } else { 0 };
        match kind {
            FileKind::Directory => Err(Errno::PERM.into()),
            FileKind::Symlink => Err(Errno::INVAL.into()),
            _ => self.create(caller, parent, name, &NewNode { kind, perm: mode & 0o7777, rdev, target: b"" }),
        }
    }

    pub(super) fn symlink(
        &mut self,
        caller: &Caller,
        parent: InodeNo,
        name: &[u8],
        target: &[u8],
    ) -> Result<Entry> {
        self.expect_new_name(parent, name)?;
        if target.is_empty() {
            return Err(Errno::NOENT.into());
        }
        if target.len() > self.options.symlink_max {
            return Err(Errno::NAMETOOLONG.into());
        }
        self.create(caller, parent, name, &NewNode { kind: FileKind::Symlink, perm: 0o777, rdev: 0, target })
    }

    pub(super) fn tmpfile(&mut self, caller: &Caller, parent: InodeNo, perm: u16) -> Result<Entry> {
        self.writable()?;
        let dir = self.node(parent)?;
        dir.names()?;
        if dir.attr.nlink == 0 {
            return Err(Errno::NOENT.into());
        }
        let new = NewNode { kind: FileKind::Regular, perm, rdev: 0, target: b"" };
        let ino = self.make(caller, parent, &new)?;
        self.known(ino).nameless = true;
        Ok(self.entry(ino))
    }

    pub(super) fn link(&mut self, ino: InodeNo, parent: InodeNo, name: &[u8]) -> Result<Entry> {
        self.writable()?;
        let node = self.node(ino)?;
        let kind = node.attr.kind;
        if kind == FileKind::Directory {
            return Err(Errno::PERM.into());
        }
        self.expect_new_name(parent, name)?;
        let node = self.node(ino)?;
        if node.is_locked() {
            return Err(Errno::PERM.into());
        }
        if node.attr.nlink == 0 && !node.nameless {
            return Err(Errno::NOENT.into());
        }
        if node.attr.nlink >= self.options.link_max {
            return Err(Errno::MLINK.into());
        }
        self.enter(parent, name, ino, kind);
        Ok(self.entry(ino))
    }

    /// Finds a name that may be removed or replaced; `.` and `..` may not.
    fn removable(&self, parent: InodeNo, name: &[u8]) -> Result<Named> {
        self.find(parent, name)?.ok_or(Errno::NOENT)?;
        let dir = self.node(parent)?;
        let named = *dir.names()?.by_name.get(name).ok_or(Errno::BUSY)?;
        let victim = self.node(named.ino)?;
        if dir.is_locked() || victim.is_locked() { Err(Errno::PERM.into()) } else { Ok(named) }
    }

    /// Takes one name from an inode, which frees it if that was the last.
    fn drop_name(&mut self, parent: InodeNo, named: Named) {
        let now = self.now;
        let node = self.known(named.ino);
        node.attr.ctime = now;
        if named.kind == FileKind::Directory {
            node.attr.nlink = 0;
            self.known(parent).attr.nlink -= 1;
        } else {
            node.attr.nlink -= 1;
        }
        self.reap(named.ino);
    }

    pub(super) fn unlink(&mut self, parent: InodeNo, name: &[u8]) -> Result<()> {
        self.writable()?;
        if name == b"." || name == b".." {
            self.node(parent)?.names()?;
            return Err(Errno::ISDIR.into());
        }
        let named = self.removable(parent, name)?;
        if named.kind == FileKind::Directory {
            return Err(Errno::ISDIR.into());
        }
        self.remove(parent, name, named);
        Ok(())
    }

    pub(super) fn rmdir(&mut self, parent: InodeNo, name: &[u8]) -> Result<()> {
        self.writable()?;
        match name {
            b"." => return Err(Errno::INVAL.into()),
            b".." => return Err(Errno::NOTEMPTY.into()),
            _ => {}
        }
        let named = self.removable(parent, name)?;
        if named.kind != FileKind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        self.expect_empty(named.ino)?;
        self.remove(parent, name, named);
        Ok(())
    }

    fn remove(&mut self, parent: InodeNo, name: &[u8], named: Named) {
        let now = self.now;
        self.names_mut(parent).remove(name);
        self.known(parent).touch(now);
        self.drop_name(parent, named);
    }

    fn expect_empty(&self, ino: InodeNo) -> Result<()> {
        if self.node(ino)?.names()?.by_name.is_empty() { Ok(()) } else { Err(Errno::NOTEMPTY.into()) }
    }

    /// Whether `ino` is `dir` or lies above it.
    fn is_above(&self, ino: InodeNo, dir: InodeNo) -> Result<bool> {
        let mut at = dir;
        loop {
            if at == ino {
                return Ok(true);
            }
            if at == ROOT {
                return Ok(false);
            }
            at = self.node(at)?.names()?.parent;
        }
    }

    pub(super) fn rename(
        &mut self,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        self.writable()?;
        let target = self.find(to.0, to.1)?;
        let found = self.find(from.0, from.1)?.ok_or(Errno::NOENT)?;
        if mode == RenameMode::NoReplace && target.is_some() {
            return Err(Errno::EXIST.into());
        }
        if mode == RenameMode::Exchange && target.is_none() {
            return Err(Errno::NOENT.into());
        }
        if self.node(to.0)?.attr.nlink == 0 {
            return Err(Errno::NOENT.into());
        }
        self.expect_no_loop(found, target, (from.0, to.0), mode)?;
        if target == Some(found) {
            return Ok(());
        }
        let moved = self.removable(from.0, from.1)?;
        let target = target.map(|_| self.removable(to.0, to.1)).transpose()?;
        if target.is_none() && self.node(to.0)?.flags.has(InodeFlags::IMMUTABLE) {
            return Err(Errno::PERM.into());
        }
        let step = Move { from, to, moved, target };
        match (mode, target) {
            (RenameMode::Exchange, Some(target)) => self.exchange(&step, target),
            _ => self.move_name(&step),
        }
    }

    /// Refuses to move a directory below itself, or onto one that contains it.
    fn expect_no_loop(
        &self,
        found: InodeNo,
        target: Option<InodeNo>,
        parents: (InodeNo, InodeNo),
        mode: RenameMode,
    ) -> Result<()> {
        if self.is_above(found, parents.1)? {
            return Err(Errno::INVAL.into());
        }
        match target {
            Some(target) if self.is_above(target, parents.0)? => {
                Err(if mode == RenameMode::Exchange { Errno::INVAL } else { Errno::NOTEMPTY }.into())
            }
            _ => Ok(()),
        }
    }

    fn move_name(&mut self, step: &Move<'_>) -> Result<()> {
        let is_dir = step.moved.kind == FileKind::Directory;
        match step.target {
            Some(target) => match (is_dir, target.kind == FileKind::Directory) {
                (true, false) => return Err(Errno::NOTDIR.into()),
                (false, true) => return Err(Errno::ISDIR.into()),
                (true, true) => self.expect_empty(target.ino)?,
                (false, false) => {}
            },
            None if step.from.0 != step.to.0 => self.expect_room_for(step.to.0, step.moved.kind)?,
            None => {}
        }
        match step.target {
            Some(_) => self.names_mut(step.to.0).replace(step.to.1, step.moved.ino, step.moved.kind),
            None => self.names_mut(step.to.0).add(step.to.1, step.moved.ino, step.moved.kind),
        }
        self.names_mut(step.from.0).remove(step.from.1);
        self.moved_dir(step.moved, step.from.0, step.to.0);
        self.touch_both(step);
        if let Some(target) = step.target {
            self.drop_name(step.to.0, target);
        }
        Ok(())
    }

    fn exchange(&mut self, step: &Move<'_>, target: Named) -> Result<()> {
        let (a, b) = (step.moved, target);
        let grows = |one: Named, other: Named| {
            one.kind == FileKind::Directory && other.kind != FileKind::Directory && step.from.0 != step.to.0
        };
        if grows(a, b) {
            self.expect_room_for(step.to.0, a.kind)?;
        }
        if grows(b, a) {
            self.expect_room_for(step.from.0, b.kind)?;
        }
        self.names_mut(step.to.0).replace(step.to.1, a.ino, a.kind);
        self.names_mut(step.from.0).replace(step.from.1, b.ino, b.kind);
        self.moved_dir(a, step.from.0, step.to.0);
        self.moved_dir(b, step.to.0, step.from.0);
        self.touch_both(step);
        let now = self.now;
        self.known(b.ino).attr.ctime = now;
        Ok(())
    }

    /// Follows a directory to its new parent.
    fn moved_dir(&mut self, moved: Named, from: InodeNo, to: InodeNo) {
        if moved.kind == FileKind::Directory && from != to {
            self.names_mut(moved.ino).parent = to;
            self.known(from).attr.nlink -= 1;
            self.known(to).attr.nlink += 1;
        }
    }

    fn touch_both(&mut self, step: &Move<'_>) {
        let now = self.now;
        self.known(step.from.0).touch(now);
        self.known(step.to.0).touch(now);
        self.known(step.moved.ino).attr.ctime = now;
    }

    /// The next names behind `cookie`, `.` and `..` first.
    pub(super) fn listing(&mut self, ino: InodeNo, cookie: u64) -> Result<Vec<(Named, Vec<u8>)>> {
        let names = self.node(ino)?.names()?;
        let dots = [(1, ino, &b"."[..]), (2, names.parent, &b".."[..])];
        let dots = dots.into_iter().filter(|(at, ..)| *at > cookie);
        let dots =
            dots.map(|(cookie, ino, name)| (Named { ino, kind: FileKind::Directory, cookie }, name.to_vec()));
        let rest = names.by_cookie.range(cookie.saturating_add(1)..);
        let rest = rest.map(|(_, name)| (names.by_name[name], name.clone()));
        let batch = dots.chain(rest).take(LISTING_BATCH).collect();
        self.accessed(ino);
        Ok(batch)
    }
}
