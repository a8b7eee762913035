//! Soft updates on ext2, and on ext4 without a journal, under power cuts: every image that a cut can leave between two flushes, for random work,
//! random lawful orders of writing, small caches and every combination of the optimisations.
//!
//! What it prevents: any crash that leaves more than the allowed class, shows one file's data in another, or loses
//! what `fsync` promised. A failure prints the seed that replays it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should fail")]

mod directed;
mod extents;
mod figure;
mod hostile;
mod populated;
mod recorder;
mod repaired;
mod threads;
mod workload;

use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{
    BlockDevice, Caller, Errno, FileKind, FileSystem, FindingClass, InodeNo, ManualClock, Seed, Timestamp,
};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::ext2::mkfs::{MkfsFeatures, MkfsOptions, mkfs};
use fstitch_fs::uhfs::{Uhfs, UhfsOptions};
use fstitch_patch::{Cache, CacheOptions, Optimizations};
use recorder::{CrashState, Image, Recorder, for_each_crash_state};
use workload::{STALE, Synced, Workload, read_all};

/// How often the allowed images are also mounted, used and emptied.
const USE_EVERY: usize = 5;

/// What a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ext2,
    /// ext4 without a journal, as it is made.
    Ext4,
    /// Without any sums.
    Ext4Plain,
    /// With sums of descriptors alone.
    Ext4Groups,
}

impl Kind {
    const EXT4: [Self; 3] = [Self::Ext4, Self::Ext4Plain, Self::Ext4Groups];

    fn features(self) -> MkfsFeatures {
        let ext4 = MkfsFeatures { has_journal: false, ..MkfsFeatures::EXT4 };
        let features = match self {
            Self::Ext2 => MkfsOptions::new([7; 16], [9; 16], Timestamp::default()).features,
            Self::Ext4 => ext4,
            Self::Ext4Plain => MkfsFeatures { metadata_csum: false, ..ext4 },
            Self::Ext4Groups => MkfsFeatures { metadata_csum: false, uninit_bg: true, ..ext4 },
        };
        MkfsFeatures { resize_inode: false, ..features }
    }
}

/// One run, as its replay line names it.
#[derive(Clone, Copy, Debug)]
struct Run {
    kind: Kind,
    seed: u64,
    block_size: u32,
    inode_size: u32,
    combination: u8,
    inodes: u32,
    steps: usize,
}

impl Run {
    /// The parameters that follow from a seed.
    fn of(seed: u64, steps: usize) -> Self {
        let mut dice = Seed::new(seed);
        let block_size = [1024, 1024, 2048, 4096][usize::try_from(dice.below(4)).unwrap()];
        let inode_size = [128, 256][usize::try_from(dice.below(2)).unwrap()];
        let combination = u8::try_from(seed % 16).unwrap();
        Self { kind: Kind::Ext2, seed, block_size, inode_size, combination, inodes: 256, steps }
    }

    /// The same on a volume of another kind.
    fn on(self, kind: Kind) -> Self {
        Self { kind, inode_size: if kind == Kind::Ext2 { self.inode_size } else { 256 }, ..self }
    }

    /// A volume whose unused blocks hold somebody's old data.
    fn base(&self) -> Image {
        let blocks = 2_u64 << 20 >> self.block_size.trailing_zeros();
        let bytes = vec![STALE; 2 << 20];
        let image = Image::new(bytes, usize::try_from(self.block_size).unwrap());
        let now = Timestamp { secs: 1_700_000_000, nanos: 0 };
        let mut options = MkfsOptions::new([7; 16], [9; 16], now);
        options.block_size = Some(self.block_size);
        options.inode_size = Some(self.inode_size);
        options.blocks = Some(blocks);
        options.inodes = Some(self.inodes);
        options.features = self.kind.features();
        mkfs(&image, &options, &mut |_, _| {}).unwrap();
        image
    }
}

fn mount(device: Arc<dyn BlockDevice>, combination: u8, cache_size: usize) -> (Arc<Cache>, Uhfs<Ext2>) {
    mount_with(device, combination, cache_size, UhfsOptions::default())
}

fn mount_with(
    device: Arc<dyn BlockDevice>,
    combination: u8,
    cache_size: usize,
    uhfs: UhfsOptions,
) -> (Arc<Cache>, Uhfs<Ext2>) {
    let options = CacheOptions {
        cache_size,
        optimizations: Optimizations::combination(combination),
        ..CacheOptions::default()
    };
    let clock = ManualClock::new();
    clock.advance(Duration::from_secs(1_700_000_000));
    let cache = Cache::new(device, options, Arc::new(clock));
    let format = Ext2::open(Arc::clone(&cache)).unwrap();
    (cache, Uhfs::new(format, uhfs))
}

/// Works on a volume, then judges every image that a cut could have left.
fn crash(run: Run) -> usize {
    crash_under(run, &|run, fs, cache, epoch| {
        let mut workload = Workload::new(fs, cache, run.seed, epoch);
        for _ in 0..run.steps {
            workload.step();
        }
        (std::mem::take(&mut workload.synced), std::mem::take(&mut workload.log))
    })
}

/// What works: with the run, on the file system, with its cache and how often was flushed; returns what was promised and done.
type Work<'a> = &'a dyn Fn(Run, &Uhfs<Ext2>, &Cache, &dyn Fn() -> usize) -> (Vec<Synced>, Vec<String>);

/// Has somebody work on a volume, then judges every image that a cut could have left.
fn crash_under(run: Run, work: Work<'_>) -> usize {
    let base = run.base();
    let recorder = Recorder::new(&base);
    let (synced, log) = {
        let device: Arc<dyn BlockDevice> = recorder.clone();
        let (cache, fs) = mount(device, run.combination, 256 << 10);
        let (synced, log) = work(run, &fs, &cache, &|| recorder.epoch());
        fs.unmount().unwrap();
        cache.check_invariants();
        (synced, log)
    };
    let epochs = recorder.take();
    let mut states = 0;
    let mut dice = Seed::new(run.seed ^ 0x5eed);
    for_each_crash_state(&base, &epochs, &mut dice, &mut |state| {
        let judged = judge(state, &synced, states % USE_EVERY == 0);
        if let Err(why) = judged {
            if let Some(path) = std::env::var_os("FSTITCH_CRASH_SAVE") {
                std::fs::write(path, state.image.bytes()).unwrap();
            }
            panic!(
                "{why}\n  replay: {run:?}, cut after {} flushes with blocks {:?} of the next epoch {:?}\n  work:\n    {}",
                state.epoch,
                state.survivors,
                epochs.get(state.epoch).map(|e| e.iter().map(|(no, _)| *no).collect::<Vec<_>>()),
                log.join("\n    ")
            );
        }
        states += 1;
    });
    states
}

fn judge(state: &CrashState, synced: &[Synced], thorough: bool) -> Result<(), String> {
    judge_structure(&state.image)?;
    let (_cache, fs) = mount(Arc::new(state.image.fork()), 15, 1 << 20);
    judge_contents(&fs, fs.root(), "")?;
    for promise in synced.iter().filter(|promise| promise.epoch <= state.epoch) {
        judge_promise(&fs, promise)?;
    }
    drop(fs);
    if thorough {
        reclaim(&state.image)?;
    }
    if thorough { use_and_empty(&state.image) } else { Ok(()) }
}

fn judge_structure(image: &Image) -> Result<(), String> {
    let report = check_ext2(image).map_err(|error| format!("check: {error}"))?;
    match report.findings.iter().find(|finding| finding.class == FindingClass::Corrupt) {
        Some(finding) => Err(format!("{}: {}", finding.code, finding.text)),
        None => Ok(()),
    }
}

/// No file shows anybody else's data.
fn judge_contents(fs: &dyn FileSystem, dir: InodeNo, path: &str) -> Result<(), String> {
    let mut names: Vec<Vec<u8>> = vec![];
    fs.readdir(dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    })
    .map_err(|error| format!("{path}: {error}"))?;
    for name in names.iter().filter(|name| *name != b"." && *name != b"..") {
        let path = format!("{path}/{}", String::from_utf8_lossy(name));
        let say = |error: fstitch_core::Error| format!("{path}: {error}");
        let attr = fs.lookup(dir, name).map_err(say)?.attr;
        match attr.kind {
            FileKind::Directory => judge_contents(fs, attr.ino, &path)?,
            FileKind::Regular => {
                let contents = read_all(fs, attr.ino).map_err(say)?;
                let tag = contents.iter().copied().find(|&byte| byte != 0).unwrap_or(1);
                if tag == STALE || contents.iter().any(|&byte| byte != 0 && byte != tag) {
                    return Err(format!("{path} shows somebody else's data"));
                }
            }
            FileKind::Symlink => {
                let target = fs.readlink(attr.ino).map_err(say)?;
                if target.iter().any(|&byte| byte != b't') {
                    return Err(format!("{path} points nowhere lawful"));
                }
            }
            _ => {}
        }
        fs.forget(attr.ino, 1);
    }
    Ok(())
}

fn judge_promise(fs: &dyn FileSystem, promise: &Synced) -> Result<(), String> {
    let entry = fs
        .walk(promise.path.as_bytes())
        .map_err(|error| format!("{} was synced and is gone: {error}", promise.path))?;
    let contents = read_all(fs, entry.attr.ino).map_err(|error| format!("{}: {error}", promise.path))?;
    fs.forget(entry.attr.ino, 1);
    if contents == promise.contents {
        return Ok(());
    }
    Err(format!("{} was synced with {} bytes and has others", promise.path, promise.contents.len()))
}

/// What a crash left is reclaimed while the volume is in use, and afterwards nothing is found at all.
fn reclaim(image: &Image) -> Result<(), String> {
    let image = image.fork();
    let (_cache, fs) = mount(Arc::new(image.clone()), 15, 1 << 20);
    let say = |error: fstitch_core::Error| format!("reclaiming: {error}");
    let caller = Caller::default();
    let done = std::thread::scope(|scope| {
        // Work goes on meanwhile.
        let worker = scope.spawn(|| {
            for n in 0..30 {
                let name = format!("meanwhile-{n}");
                let made = fs.mknod(&caller, fs.root(), name.as_bytes(), 0o100_644, 0)?;
                fs.write(&caller, made.attr.ino, 0, &[9; 3_000])?;
                fs.forget(made.attr.ino, 1);
                fs.unlink(&caller, fs.root(), name.as_bytes())?;
            }
            Ok(())
        });
        let done = fs.reclaim();
        worker.join().unwrap().and(done)
    });
    let done = done.map_err(say)?;
    if done.refusal.is_some() || done.kept > 0 {
        return Err(format!("a crash alone was taken for damage: {done:?}"));
    }
    fs.unmount().map_err(say)?;
    let report = check_ext2(&image).map_err(|error| format!("check: {error}"))?;
    match report.findings.first() {
        Some(finding) if done.complete => {
            Err(format!("after reclaiming: {}: {}", finding.code, finding.text))
        }
        Some(finding) if finding.class == FindingClass::Corrupt => {
            Err(format!("after reclaiming in part: {}: {}", finding.code, finding.text))
        }
        _ => Ok(()),
    }
}

/// The volume works: everything can be deleted, something new made, and it is as lawful as before.
fn use_and_empty(image: &Image) -> Result<(), String> {
    let image = image.fork();
    let (_cache, fs) = mount(Arc::new(image.clone()), 15, 1 << 20);
    let caller = Caller::default();
    let say = |error: fstitch_core::Error| format!("using the volume: {error}");
    empty(&fs, &caller, fs.root()).map_err(say)?;
    let entry = fs.mknod(&caller, fs.root(), b"new", 0o100_644, 0).map_err(say)?;
    fs.write(&caller, entry.attr.ino, 0, &[1; 5_000]).map_err(say)?;
    fs.forget(entry.attr.ino, 1);
    fs.unmount().map_err(say)?;
    judge_structure(&image)
}

fn empty(fs: &dyn FileSystem, caller: &Caller, dir: InodeNo) -> fstitch_core::Result<()> {
    let mut names: Vec<(Vec<u8>, InodeNo)> = vec![];
    fs.readdir(dir, 0, &mut |entry| {
        names.push((entry.name.to_vec(), entry.ino));
        true
    })?;
    for (name, ino) in names.iter().filter(|(name, _)| name != b"." && name != b"..") {
        let removed = fs.getattr(*ino).and_then(|attr| match attr.kind {
            FileKind::Directory => empty(fs, caller, *ino).and_then(|()| fs.rmdir(caller, dir, name)),
            _ => fs.unlink(caller, dir, name),
        });
        match removed {
            // The second name of a directory in the middle of a rename goes when the first one does.
            Err(error) if [Errno::NOENT, Errno::STALE].contains(&error.errno()) => {}
            outcome => outcome?,
        }
    }
    Ok(())
}

/// How many seeds a test run tries: `FSTITCH_CRASH_SEEDS=first..end` replays or soaks, and `FSTITCH_CRASH_SAVE=path`
/// keeps the image that failed.
fn seeds() -> std::ops::Range<u64> {
    seeds_given().unwrap_or(0..48)
}

fn seeds_given() -> Option<std::ops::Range<u64>> {
    let range = std::env::var("FSTITCH_CRASH_SEEDS").ok()?;
    let (first, end) = range.split_once("..")?;
    Some(first.parse().ok()?..end.parse().ok()?)
}

/// Only some of them, if nobody says which.
fn some_seeds(every: usize) -> impl Iterator<Item = u64> {
    seeds().step_by(if seeds_given().is_some() { 1 } else { every })
}

#[test]
fn every_image_that_a_cut_can_leave_is_lawful() {
    let mut states = 0;
    for seed in seeds() {
        states += crash(Run::of(seed, 120));
    }
    println!("{states} crash states judged");
    assert!(states > 1_000, "a cut can leave many images: {states}");
}

#[test]
fn ext4_without_a_journal_is_lawful_too() {
    for seed in some_seeds(5) {
        let kind = Kind::EXT4[usize::try_from(seed % 3).unwrap()];
        crash(Run::of(seed, 120).on(kind));
    }
}

/// Ten thousand damaged volumes, the bytes that matter hit most.
#[test]
fn damaged_volumes_are_survived() {
    let (mut refused, mut damaged) = (0, 0);
    for (block_size, inode_size, rounds) in [(1024, 128, 5_000), (1024, 256, 3_000), (4096, 256, 2_000)] {
        let base = populated::image(block_size, inode_size);
        for round in 0..rounds {
            let image = damage(&base, block_size, round);
            let outcome = std::panic::catch_unwind(|| hostile::survive(image, block_size));
            let outcome = outcome.unwrap_or_else(|_| panic!("replay: damage(.., {block_size}, {round})"));
            refused += usize::from(outcome == hostile::Outcome::Refused);
            damaged += usize::from(matches!(outcome, hostile::Outcome::Mounted(n) if n > 0));
        }
    }
    println!("{refused} volumes refused, {damaged} mounted and found damaged");
    assert!(refused > 100 && damaged > 100, "the damage is real");
}

/// Flips, zeros, copies or cuts, mostly in metadata, which mkfs puts first.
fn damage(base: &[u8], block_size: u32, seed: u64) -> Vec<u8> {
    let mut dice = Seed::new(seed);
    let mut image = base.to_vec();
    let block = usize::try_from(block_size).unwrap();
    for _ in 0..=dice.below(6) {
        let blocks = image.len() / block;
        let first = if dice.chance(3, 4) { blocks.min(60) } else { blocks };
        let mut place = |bound: usize| usize::try_from(dice.below(u64::try_from(bound).unwrap())).unwrap();
        let at = place(first * block - 8);
        let kind = place(12);
        match kind {
            0..=4 => image[at] ^= 1 << place(8),
            5 | 6 => image[at] = u8::try_from(place(256)).unwrap(),
            7 => image[at & !3..][..4].fill(0xff),
            8 => image[at & !3..][..4].fill(0),
            9 => image[at / block * block..][..block].fill(0),
            10 => {
                let from = place(blocks) * block;
                image.copy_within(from..from + block, at / block * block);
            }
            _ if place(8) == 0 => image.truncate(at.max(8 * block)),
            _ => image[at] = image[at].wrapping_add(1),
        }
    }
    image
}
