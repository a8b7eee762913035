//! Files of many extents: their trees grow, split, shrink and fold, with the power cut at any moment.
//!
//! What it prevents: a node of a tree that is changed where another one should have changed with it, so that a file loses or shows what it
//! should not.

use fstitch_core::{Caller, FallocateMode, FileSystem, InodeNo, Seed, SetAttr};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::uhfs::Uhfs;
use fstitch_patch::Cache;

use crate::workload::{Synced, read_all};
use crate::{Kind, Run, crash_under, some_seeds};

/// Files, and blocks of each that are worked on.
const FILES: u64 = 3;
const BLOCKS: u64 = 420;

/// Works on a few files, block by block.
struct Scattered<'a> {
    fs: &'a Uhfs<Ext2>,
    cache: &'a Cache,
    caller: Caller,
    dice: Seed,
    unit: u64,
    files: Vec<InodeNo>,
    synced: Vec<Synced>,
    log: Vec<String>,
}

impl Scattered<'_> {
    fn step(&mut self, epoch: &dyn Fn() -> usize) {
        let file = usize::try_from(self.dice.below(FILES)).unwrap();
        let ino = self.files[file];
        let (at, len) = (self.dice.below(BLOCKS), 1 + self.dice.below(6));
        let tag = u8::try_from(file + 1).unwrap();
        let (offset, bytes) = (at * self.unit, len * self.unit);
        let unit = usize::try_from(self.unit).unwrap();
        let act = self.dice.below(24);
        self.log.push(format!("{file}: act {act} at {at} for {len}"));
        let fallocate = |mode| self.fs.fallocate(&self.caller, ino, offset, bytes, mode);
        let done = match act {
            // Every other block, so that each is an extent; from the end to the start as well.
            0..=7 => self.write_every_other(ino, at, tag, len),
            8 | 9 => self.write_every_other(ino, at, tag, 5 * len),
            10 | 11 => self
                .fs
                .write(&self.caller, ino, offset, &vec![tag; usize::try_from(len).unwrap() * unit])
                .map(drop),
            12 | 13 => fallocate(FallocateMode::PunchHole),
            14 => self.fs.fallocate(&self.caller, ino, offset, bytes * 20, FallocateMode::PunchHole),
            15 => fallocate(FallocateMode::Allocate),
            16 => fallocate(FallocateMode::AllocateKeepSize),
            17 => fallocate(FallocateMode::ZeroRange),
            18 => self.resize(ino, offset),
            19 => self.resize(ino, offset / 8),
            20 => return self.sync(file, epoch),
            _ => self.cache.sync_all().and_then(|()| self.write_every_other(ino, at, tag, len)),
        };
        // A full volume is part of the work.
        self.log.extend(done.err().map(|error| format!("  {error}")));
        if self.dice.chance(1, 12) {
            let mut dice = Seed::new(self.dice.below(u64::MAX));
            self.cache.step_blocks(&mut |_| dice.chance(1, 2)).unwrap();
        }
    }

    fn write_every_other(&self, ino: InodeNo, at: u64, tag: u8, len: u64) -> fstitch_core::Result<()> {
        for step in 0..len {
            let block = (at + 2 * (len - step)) % BLOCKS;
            self.fs.write(
                &self.caller,
                ino,
                block * self.unit,
                &vec![tag; usize::try_from(self.unit).unwrap()],
            )?;
        }
        Ok(())
    }

    fn resize(&self, ino: InodeNo, size: u64) -> fstitch_core::Result<()> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.fs.setattr(&self.caller, ino, &set).map(drop)
    }

    /// What was synced last is what a file is judged by, as long as nothing else happens to it.
    fn sync(&mut self, file: usize, epoch: &dyn Fn() -> usize) {
        self.fs.fsync(self.files[file], false).unwrap();
        let path = format!("/kept{}", self.synced.len());
        let contents = read_all(self.fs, self.files[file]).unwrap();
        // A copy that nobody touches any more, block by block in the wrong order.
        let name = &path.as_bytes()[1..];
        let Ok(entry) = self.fs.mknod(&self.caller, self.fs.root(), name, 0o100_644, 0) else { return };
        let unit = usize::try_from(self.unit).unwrap();
        let mut whole = true;
        for (at, chunk) in contents.chunks(unit).enumerate().rev() {
            if chunk.iter().any(|&byte| byte != 0) {
                let offset = u64::try_from(at * unit).unwrap();
                whole &= self
                    .fs
                    .write(&self.caller, entry.attr.ino, offset, chunk)
                    .is_ok_and(|n| n == chunk.len());
            }
        }
        whole &= self.resize(entry.attr.ino, u64::try_from(contents.len()).unwrap()).is_ok();
        self.fs.fsync(entry.attr.ino, false).unwrap();
        self.fs.forget(entry.attr.ino, 1);
        if whole && self.synced.len() < 6 {
            self.synced.push(Synced { path, contents, epoch: epoch() });
        } else {
            self.fs.unlink(&self.caller, self.fs.root(), name).unwrap();
        }
    }
}

fn scattered(
    run: Run,
    fs: &Uhfs<Ext2>,
    cache: &Cache,
    epoch: &dyn Fn() -> usize,
) -> (Vec<Synced>, Vec<String>) {
    let caller = Caller::default();
    let name = |n: u64| format!("file{n}").into_bytes();
    let files = (0..FILES).map(|n| fs.mknod(&caller, fs.root(), &name(n), 0o100_644, 0).unwrap().attr.ino);
    let (files, dice, unit) = (files.collect(), Seed::new(run.seed), u64::from(run.block_size));
    let mut work = Scattered { fs, cache, caller, dice, unit, files, synced: vec![], log: vec![] };
    for _ in 0..run.steps {
        work.step(epoch);
    }
    for &ino in &work.files {
        fs.forget(ino, 1);
    }
    (work.synced, work.log)
}

#[test]
fn trees_of_extents_are_lawful_at_every_cut() {
    let mut states = 0;
    // Of each kind one.
    for seed in some_seeds(13) {
        let kind = Kind::EXT4[usize::try_from(seed % 3).unwrap()];
        // Small blocks, so that trees are deep.
        let run = Run { block_size: 1024, ..Run::of(seed, 90).on(kind) };
        states += crash_under(run, &scattered);
    }
    println!("{states} crash states judged");
}
