//! Several threads at once under power cuts: files are made, linked, synced and removed while others move them, and the
//! directories that they are in come and go. There are so few inodes that a number's next life begins at once.
//!
//! What it prevents: an fsync that returns although a name went elsewhere while it climbed, so that the file is lost; and an
//! operation that takes an inode for the one that had its number before, and answers what is not so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fstitch_core::{BlockDevice, Caller, Errno, Error, FileKind, FileSystem, InodeNo, RenameMode, Seed};

use fstitch_patch::Cache;

use crate::recorder::{CrashState, Image, Recorder, for_each_cut_at};
use crate::workload::read_all;
use crate::{Run, judge_structure, mount};

/// Inodes of the volume, of which ten are nobody's.
const INODES: u32 = 32;
/// Files that each thread makes.
const FILES: u64 = 30;
/// Files that a thread keeps at a time.
const KEPT: usize = 2;

/// A file that was synced, and the flushes between which it has to be there.
#[derive(Clone, Debug)]
struct Promise {
    tag: [u8; 8],
    from: usize,
    until: usize,
}

/// What the threads share.
struct Shared<'a> {
    fs: &'a dyn FileSystem,
    cache: &'a Cache,
    recorder: &'a Recorder,
    done: AtomicBool,
}

const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 1, umask: 0 };

/// Passes on what may happen where others are at work. A path leads through directories only, and what is moved replaces only
/// its like: that something is no directory, or is one, is never true.
fn expected<T>(done: Result<T, Error>, what: &str) -> Option<T> {
    const MAY_BE: [Errno; 5] = [Errno::NOENT, Errno::EXIST, Errno::NOTEMPTY, Errno::INVAL, Errno::NOSPC];
    match done {
        Ok(value) => Some(value),
        Err(error) if MAY_BE.contains(&error.errno()) => None,
        Err(error) => panic!("{what}: {error}"),
    }
}

/// One of these, if there is any.
fn pick<'n>(seed: &mut Seed, from: impl Iterator<Item = &'n Vec<u8>>) -> Option<&'n Vec<u8>> {
    let all: Vec<_> = from.collect();
    let count = u64::try_from(all.len()).unwrap();
    (count > 0).then(|| all[usize::try_from(seed.below(count)).unwrap()])
}

impl Shared<'_> {
    /// Runs `work` on a random directory, at any depth.
    fn in_dir<T>(
        &self,
        seed: &mut Seed,
        what: &str,
        work: impl FnOnce(InodeNo) -> Result<T, Error>,
    ) -> Option<T> {
        let mut dir = self.fs.walk(b"").unwrap().attr.ino;
        while seed.chance(2, 3) {
            let below = expected(self.names(dir), what).unwrap_or_default();
            let Some(name) = pick(seed, below.iter().filter(|name| name.len() == 1)) else { break };
            let Some(found) = expected(self.fs.lookup(dir, name), what) else { break };
            self.fs.forget(dir, 1);
            dir = found.attr.ino;
        }
        let done = work(dir);
        self.fs.forget(dir, 1);
        // What can be written is written now and then, in any order.
        if seed.chance(1, 8) {
            self.cache.step_blocks(&mut |_| seed.chance(1, 2)).unwrap();
        }
        expected(done, what)
    }

    /// The names in a directory, without `.` and `..`.
    fn names(&self, dir: InodeNo) -> Result<Vec<Vec<u8>>, Error> {
        let mut names = vec![];
        self.fs.readdir(dir, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })?;
        names.retain(|name| ![&b"."[..], b"..", b"lost+found"].contains(&&name[..]));
        Ok(names)
    }

    /// Makes, removes and moves directories, and moves files.
    fn move_about(&self, seed: &mut Seed) {
        let new = vec![b'a' + u8::try_from(seed.below(3)).unwrap()];
        let mut other = Seed::new(seed.next_u64());
        match seed.below(5) {
            0 => {
                let made = self.in_dir(seed, "mkdir", |dir| self.fs.mkdir(&CALLER, dir, &new, 0o755));
                made.into_iter().for_each(|entry| self.fs.forget(entry.attr.ino, 1));
            }
            1 => drop(self.in_dir(seed, "rmdir", |dir| self.fs.rmdir(&CALLER, dir, &new))),
            _ => drop(self.in_dir(seed, "moving", |from| {
                let names = self.names(from)?;
                let Some(name) = pick(&mut other, names.iter()) else { return Ok(()) };
                // Files keep their names, so that none takes another one's.
                let new = if name.len() == 1 { new } else { name.clone() };
                self.in_dir(&mut other, "moving to", |to| {
                    self.fs.rename(&CALLER, (from, name), (to, &new), RenameMode::Replace)
                });
                Ok(())
            })),
        }
    }

    /// Makes a file, gives it another name perhaps, and syncs it.
    fn make(&self, seed: &mut Seed, tag: u64) -> Option<(InodeNo, Promise)> {
        let name = format!("f{tag:x}");
        let mode = FileKind::Regular.mode_bits() | 0o644;
        let made = self.in_dir(seed, "mknod", |dir| self.fs.mknod(&CALLER, dir, name.as_bytes(), mode, 0))?;
        let ino = made.attr.ino;
        let tag = tag.to_le_bytes();
        self.fs.write(&CALLER, ino, 0, &tag).unwrap();
        if seed.chance(1, 2) {
            let other = format!("l{name}");
            let linked = self.in_dir(seed, "link", |dir| self.fs.link(&CALLER, ino, dir, other.as_bytes()));
            linked.into_iter().for_each(|_| self.fs.forget(ino, 1));
        }
        self.fs.fsync(ino, false).unwrap();
        Some((ino, Promise { tag, from: self.recorder.epoch(), until: usize::MAX }))
    }

    /// Removes all names of a file, wherever they are by now.
    fn remove(&self, ino: InodeNo, name: &str) {
        let is_its = |found: &Vec<u8>| found.ends_with(name.as_bytes());
        while self.fs.getattr(ino).unwrap().nlink > 0 {
            let mut dirs = vec![self.fs.root()];
            while let Some(dir) = dirs.pop() {
                let Ok(names) = self.names(dir) else { continue };
                for found in names {
                    if is_its(&found) {
                        expected(self.fs.unlink(&CALLER, dir, &found), "unlink");
                    } else if found.len() == 1
                        && let Some(entry) = expected(self.fs.lookup(dir, &found), "lookup")
                    {
                        dirs.push(entry.attr.ino);
                    }
                }
                if dir != self.fs.root() {
                    // Nobody looks below what was looked through.
                    self.fs.forget(dir, 1);
                }
            }
        }
        self.fs.forget(ino, 1);
    }

    /// A thread that makes files and removes them, with what it was promised.
    fn keep_files(&self, seed: &mut Seed, thread: u64) -> Vec<Promise> {
        let mut kept: Vec<(InodeNo, Promise)> = vec![];
        let mut promises = vec![];
        for n in 0..FILES {
            let tag = (thread + 1) << 32 | (n + 1);
            let made = self.make(seed, tag);
            kept.extend(made);
            while kept.len() > KEPT {
                let (ino, mut promise) = kept.remove(0);
                promise.until = self.recorder.epoch();
                self.remove(ino, &format!("f{:x}", u64::from_le_bytes(promise.tag)));
                promises.push(promise);
            }
        }
        kept.into_iter().for_each(|(ino, promise)| {
            self.fs.forget(ino, 1);
            promises.push(promise);
        });
        promises
    }
}

/// The tags of all files that have a name.
fn tags(fs: &dyn FileSystem) -> BTreeSet<[u8; 8]> {
    let mut tags = BTreeSet::new();
    let mut seen = BTreeMap::new();
    let mut dirs = vec![fs.root()];
    while let Some(dir) = dirs.pop() {
        // A directory may have two names in the middle of a move.
        if seen.insert(dir, ()).is_some() {
            continue;
        }
        let mut names: Vec<Vec<u8>> = vec![];
        fs.readdir(dir, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })
        .unwrap();
        for name in names.iter().filter(|name| *name != b"." && *name != b"..") {
            let attr = fs.lookup(dir, name).unwrap().attr;
            match attr.kind {
                FileKind::Directory => dirs.push(attr.ino),
                _ => drop(read_all(fs, attr.ino).unwrap().try_into().map(|tag| tags.insert(tag))),
            }
        }
    }
    tags
}

fn judge(state: &CrashState, promises: &[Promise]) -> Result<(), String> {
    judge_structure(&state.image)?;
    let (_cache, fs) = mount(Arc::new(state.image.fork()), 15, 1 << 20);
    let found = tags(&fs);
    let is_due = |promise: &&Promise| {
        let gone =
            state.epoch > promise.until || (state.epoch == promise.until && !state.survivors.is_empty());
        promise.from <= state.epoch && !gone
    };
    match promises.iter().filter(is_due).find(|promise| !found.contains(&promise.tag)) {
        Some(lost) => Err(format!("{lost:x?} was synced and is lost")),
        None => Ok(()),
    }
}

fn run(seed: u64, combination: u8) {
    let base: Image = Run { inodes: INODES, ..Run::of(seed, 0) }.base();
    let recorder = Recorder::new(&base);
    let device: Arc<dyn BlockDevice> = recorder.clone();
    let (cache, fs) = mount(device, combination, 1 << 20);
    let shared = &Shared { fs: &fs, cache: &cache, recorder: &recorder, done: AtomicBool::new(false) };
    let promises: Vec<Promise> = std::thread::scope(|scope| {
        let movers = [0, 1].map(|thread| {
            scope.spawn(move || {
                let mut seed = Seed::new(seed * 8 + thread);
                while !shared.done.load(Ordering::Relaxed) {
                    shared.move_about(&mut seed);
                    std::thread::yield_now();
                }
            })
        });
        let keepers = [0, 1].map(|thread| {
            scope.spawn(move || shared.keep_files(&mut Seed::new(seed * 8 + 4 + thread), thread))
        });
        let promises = keepers.map(std::thread::ScopedJoinHandle::join);
        shared.done.store(true, Ordering::Relaxed);
        movers.into_iter().for_each(|mover| mover.join().unwrap());
        promises.into_iter().flat_map(Result::unwrap).collect()
    });
    fs.unmount().unwrap();
    cache.check_invariants();
    let epochs = recorder.take();
    // Right after each fsync, and before a file that was synced is removed.
    let cuts = promises.iter().flat_map(|promise| [promise.from, promise.until]).collect();
    for_each_cut_at(&cuts, (&base, &epochs), &mut Seed::new(seed), &mut |state| {
        if let Err(why) = judge(state, &promises) {
            panic!(
                "{why}\n  seed {seed}, cut after {} flushes with blocks {:?}",
                state.epoch, state.survivors
            );
        }
    });
    println!("seed {seed}: {} promises, {} flushes", promises.len(), epochs.len());
}

#[test]
fn names_that_move_while_others_are_synced() {
    for seed in crate::seeds().take(4) {
        run(seed, [15, 0, 8][usize::try_from(seed % 3).unwrap()]);
    }
}
