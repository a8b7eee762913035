//! Running operations on a mounted file system.

use std::collections::BTreeMap;

use fstitch_core::num::to_u64;
use fstitch_core::{Caller, Errno, Error, FileSystem, InodeNo, Result, Seed, SetAttr, XattrSetMode};

use crate::system::Step;

use super::op::Op;

/// Does those of the steps that may be done which its argument picks; see [`crate::Mounted::write_out`].
pub type WriteOut<'a> = &'a dyn Fn(&mut dyn FnMut(Step) -> bool) -> Result<usize>;

/// What operations work on. Dropping it lets go of what is held.
pub struct Target<'a> {
    fs: &'a dyn FileSystem,
    write_out: WriteOut<'a>,
    caller: Caller,
    held: BTreeMap<String, Vec<InodeNo>>,
}

impl<'a> Target<'a> {
    /// Operations on `fs`.
    #[must_use]
    pub fn new(fs: &'a dyn FileSystem, write_out: WriteOut<'a>) -> Self {
        Self { fs, write_out, caller: Caller::default(), held: BTreeMap::new() }
    }

    /// The inodes that are held.
    #[must_use]
    pub fn held(&self) -> Vec<InodeNo> {
        self.held.values().flatten().copied().collect()
    }

    /// Runs `work` on the inode at `path`, and gives the reference back.
    fn at<T>(&self, path: &str, work: impl FnOnce(InodeNo) -> Result<T>) -> Result<T> {
        let ino = self.fs.walk(path.as_bytes())?.attr.ino;
        let outcome = work(ino);
        self.fs.forget(ino, 1);
        outcome
    }

    /// The same, or on the inode that is held under `path` where that names nothing: programs go on using open files
    /// that have lost their names.
    fn open<T>(&self, path: &str, work: impl FnOnce(InodeNo) -> Result<T>) -> Result<T> {
        match (self.fs.walk(path.as_bytes()), self.held.get(path).and_then(|held| held.last())) {
            (Err(error), Some(&ino)) if error.errno() == Errno::NOENT => work(ino),
            (Err(error), _) => Err(error),
            (Ok(entry), _) => {
                let outcome = work(entry.attr.ino);
                self.fs.forget(entry.attr.ino, 1);
                outcome
            }
        }
    }

    /// Runs `work` on the directory of `path` and the name in it.
    fn parent<T>(&self, path: &str, work: impl FnOnce(InodeNo, &[u8]) -> Result<T>) -> Result<T> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        self.at(dir, |dir| work(dir, name.as_bytes()))
    }

    fn write(&self, ino: InodeNo, no: u32, offset: u64, len: usize) -> Result<()> {
        let mut data = vec![0; len];
        fill(no, offset, &mut data);
        let mut done = 0;
        while done < len {
            let at = offset + to_u64(done);
            match self.fs.write(&self.caller, ino, at, &data[done..])? {
                0 => return Err(Errno::IO.into()),
                more => done += more,
            }
        }
        Ok(())
    }

    /// Writes until nothing is left that does not wait for the `nth` block.
    fn write_all_but(&self, nth: u64) -> Result<()> {
        let mut met: Vec<Step> = vec![];
        let nth = usize::try_from(nth).unwrap_or(usize::MAX);
        let mut choose = |step: Step| {
            let at = met.iter().position(|&other| other == step).unwrap_or_else(|| {
                met.push(step);
                met.len() - 1
            });
            at != nth
        };
        while (self.write_out)(&mut choose)? > 0 {}
        Ok(())
    }

    /// Gives an entry's reference back.
    fn done(&self, entry: Result<fstitch_core::Entry>) -> Result<()> {
        entry.map(|entry| self.fs.forget(entry.attr.ino, 1))
    }
}

impl Drop for Target<'_> {
    fn drop(&mut self) {
        self.held.values().flatten().for_each(|&ino| self.fs.forget(ino, 1));
    }
}

/// Bytes that operation `no` writes at `offset` of a file: every eight of them name the operation and their place, so
/// that those of another operation or another place are recognised.
pub fn fill(no: u32, offset: u64, data: &mut [u8]) {
    for (at, byte) in (offset..).zip(data) {
        let place = (u64::from(no) << 32) ^ (at / 8);
        // Neither zeros nor a pattern that repeats from one operation to the next.
        let word =
            (place.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 0x0101_0101_0101_0101).to_le_bytes();
        *byte = word[usize::try_from(at % 8).expect("below 8")];
    }
}

fn pattern(no: u32, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    fill(no, 0, &mut data);
    data
}

/// An access control list in the form of the system calls, whose entry for a user tells operations apart.
fn acl(no: u32) -> Vec<u8> {
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in
        [(1_u16, 7_u16, u32::MAX), (2, 7, 1 + no), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 5, u32::MAX)]
    {
        list.extend(tag.to_le_bytes());
        list.extend(perm.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

impl Op {
    /// Runs the operation, the `no`-th of its workload.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn run(&self, target: &mut Target<'_>, no: u32) -> Result<(), Error> {
        match self {
            Self::Hold { path } => {
                let ino = target.fs.walk(path.as_bytes())?.attr.ino;
                target.held.entry(path.clone()).or_default().push(ino);
                Ok(())
            }
            Self::Release { path } => {
                let held = target.held.get_mut(path).and_then(Vec::pop);
                let ino = held.ok_or(Errno::NOENT)?;
                target.fs.forget(ino, 1);
                Ok(())
            }
            Self::WriteOut { share, seed } => {
                let mut dice = Seed::new(*seed);
                (target.write_out)(&mut |_| dice.chance(u64::from(*share), 16)).map(|_| ())
            }
            Self::AllBut { nth } => target.write_all_but(*nth),
            Self::As { uid, gid } => {
                target.caller = Caller { uid: *uid, gid: *gid, ..Caller::default() };
                Ok(())
            }
            _ => self.change(target, no),
        }
    }

    fn change(&self, target: &Target<'_>, no: u32) -> Result<(), Error> {
        let (fs, caller) = (target.fs, &target.caller);
        match self {
            Self::Create { path } => {
                target.done(target.parent(path, |dir, name| fs.mknod(caller, dir, name, 0o100_644, 0)))
            }
            Self::Mkdir { path } => {
                target.done(target.parent(path, |dir, name| fs.mkdir(caller, dir, name, 0o755)))
            }
            Self::Mknod { path, kind } => {
                let mode = kind.mode_bits() | 0o600;
                target.done(target.parent(path, |dir, name| fs.mknod(caller, dir, name, mode, 0x0103)))
            }
            Self::Symlink { path, len } => {
                // A target may hold no zeros; the pattern has none.
                let to = pattern(no, *len);
                target.done(target.parent(path, |dir, name| fs.symlink(caller, dir, name, &to)))
            }
            Self::Link { old, new } => target
                .done(target.at(old, |ino| target.parent(new, |dir, name| fs.link(caller, ino, dir, name)))),
            Self::Unlink { path } => target.parent(path, |dir, name| fs.unlink(caller, dir, name)),
            Self::Rmdir { path } => target.parent(path, |dir, name| fs.rmdir(caller, dir, name)),
            Self::Rename { old, new, mode } => target.parent(old, |dir, name| {
                target.parent(new, |to, new| fs.rename(caller, (dir, name), (to, new), *mode))
            }),
            Self::Tmpfile { dir, link_as, len } => {
                let ino = target.at(dir, |dir| fs.tmpfile(caller, dir, 0o100_644))?.attr.ino;
                let linked = target.write(ino, no, 0, *len).and_then(|()| {
                    target.done(target.parent(link_as, |dir, name| fs.link(caller, ino, dir, name)))
                });
                fs.forget(ino, 1);
                linked
            }
            Self::Sync => fs.sync(),
            _ => self.change_file(target, no),
        }
    }

    fn change_file(&self, target: &Target<'_>, no: u32) -> Result<(), Error> {
        let (fs, caller) = (target.fs, &target.caller);
        let set =
            |path: &str, set: SetAttr| target.open(path, |ino| fs.setattr(caller, ino, &set)).map(|_| ());
        match self {
            Self::Write { path, offset, len } => {
                target.open(path, |ino| target.write(ino, no, *offset, *len))
            }
            Self::Append { path, len } => target.open(path, |ino| {
                let end = fs.getattr(ino)?.size;
                target.write(ino, no, end, *len)
            }),
            Self::Truncate { path, size } => set(path, SetAttr { size: Some(*size), ..SetAttr::default() }),
            Self::Chmod { path, perm } => set(path, SetAttr { perm: Some(*perm), ..SetAttr::default() }),
            Self::Chown { path, uid, gid } => {
                set(path, SetAttr { uid: Some(*uid), gid: *gid, ..SetAttr::default() })
            }
            Self::Project { path, project } => target.open(path, |ino| fs.set_project(caller, ino, *project)),
            Self::Fallocate { path, offset, len, mode } => {
                target.open(path, |ino| fs.fallocate(caller, ino, *offset, *len, *mode))
            }
            Self::Share { from, to } => target.open(from, |from| {
                let all = u64::MAX >> 2;
                target.open(to, |to| fs.share(caller, (from, 0), (to, 0), all).map(drop))
            }),
            Self::SetXattr { path, name, len } => {
                let value = if name.starts_with("system.posix_acl") { acl(no) } else { pattern(no, *len) };
                let mode = XattrSetMode::Set;
                target.open(path, |ino| fs.setxattr(caller, ino, name.as_bytes(), &value, mode))
            }
            Self::RemoveXattr { path, name } => {
                target.open(path, |ino| fs.removexattr(caller, ino, name.as_bytes()))
            }
            Self::Fsync { path } => target.open(path, |ino| fs.fsync(ino, false)),
            Self::Fdatasync { path } => target.open(path, |ino| fs.fsync(ino, true)),
            _ => unreachable!("`run` and `change` have the other operations"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_tell_operations_and_places_apart() {
        let mut seen = std::collections::BTreeSet::new();
        for no in 0..200 {
            let mut data = vec![0; 4096];
            fill(no, 8 * u64::from(no), &mut data);
            assert!(!data.contains(&0), "zeros mean that nothing was written");
            assert!(data.chunks(8).all(|word| seen.insert((no, word.to_vec()))), "places differ");
        }
        let words: std::collections::BTreeSet<_> = seen.iter().map(|(_, word)| word).collect();
        assert!(words.len() * 100 > seen.len() * 99, "operations differ: {} of {}", words.len(), seen.len());
    }
}
