//! Random work on a volume, with everything that a crash state is judged by.
//!
//! Every regular file has a tag of its own and holds nothing but that tag and zeros, so that a byte that belongs to
//! another file, or to nobody, is seen at once.

use fstitch_core::{
    Caller, Error, FallocateMode, FileSystem, InodeNo, RenameMode, Seed, SetAttr, XattrSetMode,
};
use fstitch_patch::Cache;

/// What unused blocks of the base image are filled with: nobody's data.
pub const STALE: u8 = 0xee;

/// A file whose `fsync` returned and that was not touched since.
#[derive(Clone, Debug)]
pub struct Synced {
    pub path: String,
    pub contents: Vec<u8>,
    /// Flushes done when `fsync` returned.
    pub epoch: usize,
}

/// Work in progress.
pub struct Workload<'a> {
    pub fs: &'a dyn FileSystem,
    pub cache: &'a Cache,
    pub seed: Seed,
    pub caller: Caller,
    files: u64,
    /// Names in use, as (directory, name).
    names: Vec<(String, bool)>,
    pub synced: Vec<Synced>,
    pub log: Vec<String>,
    /// Flushes so far.
    pub epoch: &'a dyn Fn() -> usize,
}

impl<'a> Workload<'a> {
    pub fn new(fs: &'a dyn FileSystem, cache: &'a Cache, seed: u64, epoch: &'a dyn Fn() -> usize) -> Self {
        Self {
            fs,
            cache,
            seed: Seed::new(seed),
            caller: Caller::default(),
            files: 0,
            names: vec![(String::new(), true)],
            synced: vec![],
            log: vec![],
            epoch,
        }
    }

    /// One random operation; errors that POSIX allows are part of life.
    pub fn step(&mut self) {
        let outcome = match self.seed.below(22) {
            0..=3 => self.create(),
            4 | 5 => self.append(),
            6 => self.truncate(),
            7 | 8 => self.unlink(),
            9 => self.mkdir(),
            10 => self.rmdir(),
            11 | 12 => self.rename(),
            13 => self.link(),
            14 => self.symlink(),
            15 => self.xattr(),
            16 => self.punch(),
            17 => self.chmod(),
            18 => self.fsync(),
            _ => self.write_some(),
        };
        if let Err(error) = outcome {
            assert!(matches!(error, Error::Errno(_)), "{}: {error}", self.log.last().unwrap());
            self.log.push(format!("  -> {error}"));
        }
    }

    fn pick(&mut self, bound: usize) -> usize {
        usize::try_from(self.seed.below(u64::try_from(bound).unwrap())).unwrap()
    }

    fn pick_directory(&mut self) -> String {
        let dirs: Vec<usize> = (0..self.names.len()).filter(|&at| self.names[at].1).collect();
        let at = dirs[self.pick(dirs.len())];
        self.names[at].0.clone()
    }

    fn pick_other(&mut self) -> Option<String> {
        let files: Vec<usize> = (0..self.names.len()).filter(|&at| !self.names[at].1).collect();
        (!files.is_empty()).then(|| {
            let at = files[self.pick(files.len())];
            self.names[at].0.clone()
        })
    }

    fn new_name(&mut self) -> String {
        let dir = self.pick_directory();
        let long = if self.seed.chance(1, 6) { "x".repeat(60 + self.pick(150)) } else { String::new() };
        let n = self.pick(14);
        format!("{dir}/n{n}{long}")
    }

    /// Runs `work` on the inode at `path`, giving the reference back.
    fn at<T>(&self, path: &str, work: impl FnOnce(InodeNo) -> Result<T, Error>) -> Result<T, Error> {
        let entry = self.fs.walk(path.as_bytes())?;
        let result = work(entry.attr.ino);
        self.fs.forget(entry.attr.ino, 1);
        result
    }

    fn note(&mut self, text: String) {
        self.log.push(text);
    }

    fn touched(&mut self, path: &str) {
        let below = format!("{path}/");
        self.synced.retain(|synced| synced.path != path && !synced.path.starts_with(&below));
    }

    fn create(&mut self) -> Result<(), Error> {
        let path = self.new_name();
        self.files += 1;
        let tag = u8::try_from(1 + self.files % 200).unwrap();
        let len = match self.seed.below(5) {
            0 => 0,
            1 => self.pick(100),
            2 => self.pick(5_000),
            3 => self.pick(20_000),
            _ => self.pick(60_000),
        };
        self.note(format!("create {path} tag {tag} len {len}"));
        let (dir, name) = split(&path);
        let caller = self.caller;
        let entry = self.at(dir, |dir| self.fs.mknod(&caller, dir, name.as_bytes(), 0o100_644, 0))?;
        self.names.push((path.clone(), false));
        let ino = entry.attr.ino;
        // The tag survives in the attributes, so that later writes keep to it.
        let result = self
            .fs
            .setxattr(&caller, ino, b"user.tag", &[tag], XattrSetMode::Set)
            .and_then(|()| write_all(self.fs, &caller, ino, 0, &vec![tag; len]));
        self.fs.forget(ino, 1);
        result
    }

    fn append(&mut self) -> Result<(), Error> {
        let Some(path) = self.pick_other() else { return Ok(()) };
        let gap = if self.seed.chance(1, 3) { self.pick(9_000) } else { 0 };
        let len = 1 + self.pick(9_000);
        self.note(format!("append {path} gap {gap} len {len}"));
        self.forget_synced_content(&path);
        let caller = self.caller;
        self.at(&path, |ino| {
            let tag = self.fs.getxattr(ino, b"user.tag")?[0];
            let size = self.fs.getattr(ino)?.size + u64::try_from(gap).unwrap();
            write_all(self.fs, &caller, ino, size, &vec![tag; len])
        })
    }

    fn truncate(&mut self) -> Result<(), Error> {
        let Some(path) = self.pick_other() else { return Ok(()) };
        let size = self.seed.below(30_000);
        self.note(format!("truncate {path} to {size}"));
        self.forget_synced_content(&path);
        let caller = self.caller;
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.at(&path, |ino| self.fs.setattr(&caller, ino, &set).map(|_| ()))
    }

    fn punch(&mut self) -> Result<(), Error> {
        let Some(path) = self.pick_other() else { return Ok(()) };
        let (offset, len) = (self.seed.below(20_000), 1 + self.seed.below(9_000));
        self.note(format!("punch {path} at {offset} len {len}"));
        self.forget_synced_content(&path);
        let caller = self.caller;
        self.at(&path, |ino| self.fs.fallocate(&caller, ino, offset, len, FallocateMode::PunchHole))
    }

    /// Hard links share contents: what is known of any file may change.
    fn forget_synced_content(&mut self, _path: &str) {
        self.synced.clear();
    }

    fn unlink(&mut self) -> Result<(), Error> {
        let Some(path) = self.pick_other() else { return Ok(()) };
        self.note(format!("unlink {path}"));
        self.touched(&path);
        let (dir, name) = split(&path);
        let caller = self.caller;
        self.at(dir, |dir| self.fs.unlink(&caller, dir, name.as_bytes()))?;
        self.names.retain(|(other, _)| *other != path);
        Ok(())
    }

    fn mkdir(&mut self) -> Result<(), Error> {
        let path = self.new_name();
        self.note(format!("mkdir {path}"));
        let (dir, name) = split(&path);
        let caller = self.caller;
        let entry = self.at(dir, |dir| self.fs.mkdir(&caller, dir, name.as_bytes(), 0o755))?;
        self.fs.forget(entry.attr.ino, 1);
        self.names.push((path, true));
        Ok(())
    }

    fn rmdir(&mut self) -> Result<(), Error> {
        let path = self.pick_directory();
        if path.is_empty() {
            return Ok(());
        }
        self.note(format!("rmdir {path}"));
        let (dir, name) = split(&path);
        let caller = self.caller;
        self.at(dir, |dir| self.fs.rmdir(&caller, dir, name.as_bytes()))?;
        self.touched(&path);
        self.names.retain(|(other, _)| *other != path);
        Ok(())
    }

    fn rename(&mut self) -> Result<(), Error> {
        let from = if self.seed.chance(1, 3) { Some(self.pick_directory()) } else { self.pick_other() };
        let Some(from) = from.filter(|from| !from.is_empty()) else { return Ok(()) };
        let over = self.seed.chance(1, 2).then(|| self.pick_other()).flatten();
        let to = over.unwrap_or_else(|| self.new_name());
        self.note(format!("rename {from} to {to}"));
        let ((from_dir, from_name), (to_dir, to_name)) = (split(&from), split(&to));
        let caller = self.caller;
        self.at(from_dir, |old| {
            self.at(to_dir, |new| {
                let (old, new) = ((old, from_name.as_bytes()), (new, to_name.as_bytes()));
                self.fs.rename(&caller, old, new, RenameMode::Replace)
            })
        })?;
        self.touched(&from);
        self.touched(&to);
        if from != to && !self.same_file_again(&from) {
            self.names.retain(|(other, _)| *other != to);
            let below = format!("{from}/");
            for (name, _) in &mut self.names {
                if *name == from {
                    *name = to.clone();
                } else if let Some(rest) = name.strip_prefix(&below) {
                    *name = format!("{to}/{rest}");
                }
            }
        }
        Ok(())
    }

    /// Renaming one name of a file to another name of it does nothing.
    fn same_file_again(&self, from: &str) -> bool {
        self.at(from, |_| Ok(())).is_ok()
    }

    fn link(&mut self) -> Result<(), Error> {
        let Some(old) = self.pick_other() else { return Ok(()) };
        let new = self.new_name();
        self.note(format!("link {old} as {new}"));
        let (dir, name) = split(&new);
        let caller = self.caller;
        let entry =
            self.at(&old, |ino| self.at(dir, |dir| self.fs.link(&caller, ino, dir, name.as_bytes())))?;
        self.fs.forget(entry.attr.ino, 1);
        self.names.push((new, false));
        Ok(())
    }

    fn symlink(&mut self) -> Result<(), Error> {
        let path = self.new_name();
        let target = "t".repeat(1 + self.pick(120));
        self.note(format!("symlink {path} of {} bytes", target.len()));
        let (dir, name) = split(&path);
        let caller = self.caller;
        let entry = self.at(dir, |dir| self.fs.symlink(&caller, dir, name.as_bytes(), target.as_bytes()))?;
        self.fs.forget(entry.attr.ino, 1);
        self.names.push((path, false));
        Ok(())
    }

    fn xattr(&mut self) -> Result<(), Error> {
        let Some(path) = self.pick_other() else { return Ok(()) };
        let value = vec![7; self.pick(600)];
        let remove = self.seed.chance(1, 3);
        self.note(format!("xattr {path} {} bytes, remove {remove}", value.len()));
        let caller = self.caller;
        self.at(&path, |ino| match remove {
            true => self.fs.removexattr(&caller, ino, b"user.big"),
            false => self.fs.setxattr(&caller, ino, b"user.big", &value, XattrSetMode::Set),
        })
    }

    fn chmod(&mut self) -> Result<(), Error> {
        let Some(path) = self.pick_other() else { return Ok(()) };
        self.note(format!("chmod {path}"));
        let caller = self.caller;
        let set = SetAttr { perm: Some(0o600), uid: Some(5), ..SetAttr::default() };
        self.at(&path, |ino| self.fs.setattr(&caller, ino, &set).map(|_| ()))
    }

    fn fsync(&mut self) -> Result<(), Error> {
        let Some(path) = self.pick_other() else { return Ok(()) };
        self.note(format!("fsync {path}"));
        self.at(&path, |ino| self.fs.fsync(ino, false))?;
        let contents = self.at(&path, |ino| read_all(self.fs, ino)).unwrap_or_default();
        self.touched(&path);
        self.synced.push(Synced { path, contents, epoch: (self.epoch)() });
        Ok(())
    }

    /// Lets the flusher write a random part of what it could write.
    fn write_some(&mut self) -> Result<(), Error> {
        let share = 1 + self.seed.below(4);
        let mut choice = self.seed.clone();
        self.seed.next_u64();
        let written = self.cache.step_blocks(&mut |_| choice.chance(share, 4))?;
        self.note(format!("write out {written} blocks"));
        Ok(())
    }
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').expect("paths start with /")
}

fn write_all(
    fs: &dyn FileSystem,
    caller: &Caller,
    ino: InodeNo,
    offset: u64,
    data: &[u8],
) -> Result<(), Error> {
    let mut done = 0;
    while done < data.len() {
        done += fs.write(caller, ino, offset + u64::try_from(done).unwrap(), &data[done..])?;
    }
    Ok(())
}

/// A regular file's contents.
pub fn read_all(fs: &dyn FileSystem, ino: InodeNo) -> Result<Vec<u8>, Error> {
    let attr = fs.getattr(ino)?;
    if attr.kind != fstitch_core::FileKind::Regular {
        return Ok(vec![]);
    }
    let mut contents = vec![0; usize::try_from(attr.size).unwrap()];
    let len = fs.read(ino, 0, &mut contents)?;
    contents.truncate(len);
    Ok(contents)
}
