//! Renames.

use fstitch_core::{Errno, RenameMode, Result};
use fstitch_posix::remove::{Renamed, check_target_exists, dots_as_target, target_is_ancestor};

use super::layout::inode::Inode;
use super::layout::{LINK_MAX, ROOT_INO};
use super::names::{Lost, Side, expect_open, refuse_loop, touch, touch_contents};
use super::state::State;
use super::volume::{SNAPSHOTS, Waffle};

/// A rename that was looked into.
pub(super) struct Move {
    dirs: (u64, u64),
    source: Inode,
    target: Option<Inode>,
}

/// Whether a rename may be, and what it is about. `None`: there is nothing to do.
///
/// # Errors
/// In Linux's order; `Io`, `Corrupt`.
pub(super) fn look(
    fs: &Waffle,
    state: &State,
    from: Side<'_>,
    to: Side<'_>,
    mode: RenameMode,
) -> Result<Option<Move>> {
    let (from_dir, to_dir) = (fs.ours(state, from.0)?, fs.ours(state, to.0)?);
    to_dir.seen().attr.expect_directory()?;
    from_dir.seen().attr.expect_directory()?;
    Waffle::check_name(&to_dir, to.1, Some(dots_as_target(mode)))?;
    Waffle::check_name(&from_dir, from.1, Some(Errno::BUSY))?;
    for (dir, name) in [(&from_dir, from.1), (&to_dir, to.1)] {
        if dir.ino == ROOT_INO && name == SNAPSHOTS {
            return Err(Errno::BUSY.into());
        }
    }
    let source = state.find(state.head, &from_dir, from.1)?.ok_or(Errno::NOENT)?;
    let target = state.find(state.head, &to_dir, to.1)?;
    check_target_exists(mode, target.is_some())?;
    let source = state.inode(state.head, source.ino)?;
    let target = target.map(|found| state.inode(state.head, found.ino)).transpose()?;
    if from.0 != to.0 {
        refuse_loop(state, &source, to_dir.ino, Errno::INVAL)?;
        if let Some(target) = &target {
            refuse_loop(state, target, from_dir.ino, target_is_ancestor(mode))?;
        }
    }
    expect_open(&from_dir)?;
    expect_open(&to_dir)?;
    if target.as_ref().is_some_and(|target| target.ino == source.ino) {
        return Ok(None);
    }
    let seen = target.as_ref().map(Inode::seen);
    let dirs = (&from_dir.seen(), &to_dir.seen());
    let renamed = Renamed { dirs, source: &source.seen(), target: seen.as_ref(), mode };
    renamed.check(|| Ok(target.as_ref().is_none_or(|target| target.size == 0)))?;
    renamed.check_link_room(LINK_MAX)?;
    Ok(Some(Move { dirs: (from_dir.ino, to_dir.ino), source, target }))
}

impl Move {
    /// Does it. What had the name before may have lost its last one.
    ///
    /// # Errors
    /// `ENOSPC`, `Io`, `Corrupt`.
    pub(super) fn carry_out(
        &self,
        fs: &Waffle,
        state: &mut State,
        (from, to): (&[u8], &[u8]),
        mode: RenameMode,
    ) -> Result<Option<Lost>> {
        let Self { dirs: (from_dir, to_dir), source, target } = self;
        let (from_dir, to_dir) = (*from_dir, *to_dir);
        let exchanged = target.as_ref().filter(|_| mode == RenameMode::Exchange);
        match target {
            Some(_) => state.replace_name(to_dir, to, source.ino, source.kind)?,
            None => state.add_name(to_dir, to, source.ino, source.kind)?,
        }
        match exchanged {
            Some(target) => state.replace_name(from_dir, from, target.ino, target.kind)?,
            None => state.remove_name(from_dir, from)?,
        }
        let (in_from, in_to) = self.links(exchanged.is_some());
        let add = |nlink: u32, delta: i64| u32::try_from(i64::from(nlink) + delta).unwrap_or(0);
        touch_contents(state, from_dir, |dir| dir.nlink = add(dir.nlink, in_from))?;
        if to_dir != from_dir {
            touch_contents(state, to_dir, |dir| dir.nlink = add(dir.nlink, in_to))?;
        }
        let comes_to = |inode: &mut Inode, dir: u64| {
            if inode.is_dir() {
                inode.parent = dir;
            }
        };
        touch(state, source.ino, |inode| comes_to(inode, to_dir))?;
        match (exchanged, target) {
            (Some(target), _) => {
                touch(state, target.ino, |inode| comes_to(inode, from_dir))?;
                Ok(None)
            }
            (None, Some(target)) => fs.lose(state, target),
            (None, None) => Ok(None),
        }
    }

    /// By how many subdirectories the two directories have more; all in the first if they are one.
    fn links(&self, is_exchange: bool) -> (i64, i64) {
        let source = i64::from(self.source.is_dir());
        let target = self.target.as_ref().map_or(0, |inode| i64::from(inode.is_dir()));
        let in_from = if is_exchange { target - source } else { -source };
        let in_to = source - target;
        if self.dirs.0 == self.dirs.1 { (in_from + in_to, 0) } else { (in_from, in_to) }
    }
}
