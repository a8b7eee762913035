//! The disk in the crash laboratory: after a power cut at any moment it is what it was after some of its operations, one behind the
//! other, and not less than was flushed.
//!
//! What it prevents: half a unit, a lost flush, a map that leads to something else, a disk that cannot be opened.

#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

use std::collections::BTreeMap;
use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, MemDevice, Seed};
use fstitch_crashlab::medium::{Base, Image, Mark, Progress};
use fstitch_crashlab::oracle::{Judge, Violation};
use fstitch_crashlab::{LabOptions, Level, Oracle, Outcome, Past, Recorder, Subject};
use fstitch_lld::{At, BlockId, Disk, FormatOptions, ListId, Options};

const BLOCK: usize = 512;
/// More than a program makes.
const LISTS: ListId = 1000;

/// The lists, and what fills their blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Shown(BTreeMap<ListId, Vec<(BlockId, u8)>>);

fn options() -> Options {
    // Units that write more than twelve blocks spill.
    Options { cache_size: 24 << 10, checkpoint_interval: 64 << 10, ..Options::default() }
}

/// Opens a disk and reads everything.
struct Opened;

impl Subject for Opened {
    type Shown = Shown;

    fn show(&self, device: Arc<dyn BlockDevice>) -> Result<Shown, Violation> {
        let fail = |error: fstitch_core::Error| Violation::new("unreadable", error.to_string());
        let (disk, _) = Disk::open(device, &options()).map_err(fail)?;
        let report = disk.check(true, &mut |_| {}).map_err(fail)?;
        if let Some(found) = report.findings.first() {
            return Err(Violation::new(found.code, found.text.clone()));
        }
        let mut shown = Shown::default();
        for list in 1..=LISTS {
            let Ok(len) = disk.list_len(list) else { continue };
            let mut blocks = Vec::new();
            for at in 0..len {
                let block = disk.block_at(list, at).map_err(fail)?;
                let block =
                    block.ok_or_else(|| Violation::new("list", format!("list {list} has no block {at}")))?;
                let mut bytes = [0xff; BLOCK];
                disk.read(block, &mut bytes).map_err(fail)?;
                if bytes != [bytes[0]; BLOCK] {
                    return Err(Violation::new("torn-block", format!("block {block}")));
                }
                blocks.push((block, bytes[0]));
            }
            shown.0.insert(list, blocks);
        }
        assert!(
            shown.0.last_key_value().is_none_or(|(last, _)| *last < LISTS),
            "some lists are not looked at"
        );
        Ok(shown)
    }
}

/// What the disk was after each number of operations, and how many of them each promise covers.
struct Versions(Vec<Shown>, Vec<usize>);

impl Oracle for Versions {
    type Shown = Shown;

    fn at(&self, progress: Progress) -> Judge<'_, Shown> {
        let count = |n: u32| usize::try_from(n).unwrap();
        let promised = count(progress.promises).checked_sub(1).map_or(0, |last| self.1[last]);
        let window = promised..=count(progress.begun);
        Box::new(move |shown| match self.0[window.clone()].contains(shown) {
            true => Ok(()),
            false => Err(Violation::new("not-a-moment", format!("{shown:?} is none of {window:?}"))),
        })
    }
}

struct Rig {
    recorder: Arc<Recorder<Image>>,
    base: Arc<Base>,
    disk: Disk,
    versions: Vec<Shown>,
    promised: Vec<usize>,
    /// How often the cleaner has found something to do.
    cleaned: u64,
    next: u8,
}

impl Rig {
    /// A disk that has been used, and whose end was a power cut: chunks of other times lie in its segments.
    fn new(seed: &mut Seed) -> Self {
        let made = Arc::new(MemDevice::from_image(512, vec![0; (40 * 128 + 9) * 512]));
        let format = FormatOptions { block_size: 512, segment_size: 64 << 10, ..FormatOptions::default() };
        Disk::format(Arc::clone(&made) as Arc<dyn BlockDevice>, &format).unwrap();
        let mut shown = Shown::default();
        for life in 0..seed.below(4) {
            // A long life without a checkpoint: recovery finds many chunks, in segments where nothing is alive any more.
            let rarely = Options { checkpoint_interval: 64 << 20, ..options() };
            let (options, most) = if seed.below(2) == 0 { (rarely, 1200) } else { (options(), 150) };
            let (disk, _) = Disk::open(Arc::clone(&made) as Arc<dyn BlockDevice>, &options).unwrap();
            shown = Opened.show(Arc::new(MemDevice::from_image(512, made.image()))).unwrap();
            for _ in 0..seed.below(most) {
                match seed.below(3) {
                    0 => unit(&disk, &mut shown, seed, life.to_le_bytes()[0] + 1, false),
                    _ => simple(&disk, &mut shown, seed, life.to_le_bytes()[0] + 1),
                }
            }
            if seed.below(2) == 0 {
                disk.flush().unwrap();
            }
            shown = Opened.show(Arc::new(MemDevice::from_image(512, made.image()))).unwrap();
        }
        let base = Base::new(512, made.image());
        let recorder = Arc::new(Recorder::new(Image::new(Arc::clone(&base))));
        let (disk, _) = Disk::open(Arc::clone(&recorder) as Arc<dyn BlockDevice>, &options()).unwrap();
        Self { recorder, base, disk, versions: vec![shown], promised: Vec::new(), cleaned: 0, next: 0 }
    }

    /// An operation that is atomic.
    fn operate(&mut self, operation: impl FnOnce(&Disk, &mut Shown)) {
        let no = u32::try_from(self.versions.len() - 1).unwrap();
        self.recorder.mark(Mark::Begin(no));
        let mut shown = self.versions.last().unwrap().clone();
        operation(&self.disk, &mut shown);
        self.recorder.mark(Mark::End(no));
        self.versions.push(shown);
    }

    fn flush(&mut self) {
        self.disk.flush().unwrap();
        self.promise();
    }

    /// Everything is stable.
    fn promise(&mut self) {
        self.recorder.mark(Mark::Promise(u32::try_from(self.promised.len()).unwrap()));
        self.promised.push(self.versions.len() - 1);
    }

    fn fill(&mut self) -> u8 {
        self.next = self.next % 250 + 1;
        self.next
    }

    fn explore(self, name: &str, options: LabOptions) -> Outcome {
        drop(self.disk);
        let names = ("logical-disk".to_owned(), name.to_owned());
        let oracle = Versions(self.versions, self.promised);
        Past { names, base: self.base, log: self.recorder.take(), subject: &Opened, oracle: &oracle }
            .judge(options)
    }
}

fn pick(shown: &Shown, seed: &mut Seed) -> Option<(ListId, Option<(usize, BlockId)>)> {
    let lists: Vec<ListId> = shown.0.keys().copied().collect();
    let list = *lists.get(to_usize(seed.below(to_u64(lists.len()).max(1))))?;
    let blocks = &shown.0[&list];
    let at = to_usize(seed.below(to_u64(blocks.len()).max(1)));
    Some((list, blocks.get(at).map(|(block, _)| (at, *block))))
}

/// One simple operation.
fn simple(disk: &Disk, shown: &mut Shown, seed: &mut Seed, fill: u8) {
    match (seed.below(10), pick(shown, seed)) {
        (0, _) if shown.0.len() > 60 => {}
        (0, _) | (_, None) => drop(shown.0.insert(disk.new_list(false).unwrap(), Vec::new())),
        (1, Some((list, _))) if shown.0.len() > 3 => {
            disk.delete_list(list).unwrap();
            shown.0.remove(&list);
        }
        (2, Some((list, Some((at, block))))) => {
            disk.delete_block(block).unwrap();
            shown.0.get_mut(&list).unwrap().remove(at);
        }
        (3..6, Some((list, found))) => {
            let block = disk.new_block(list, found.map_or(At::Start, |(_, block)| At::After(block))).unwrap();
            shown.0.get_mut(&list).unwrap().insert(found.map_or(0, |(at, _)| at + 1), (block, 0));
        }
        (_, Some((list, Some((at, block))))) => {
            disk.write(block, &[fill; BLOCK]).unwrap();
            shown.0.get_mut(&list).unwrap()[at].1 = fill;
        }
        _ => {}
    }
}

/// A unit that makes, writes and deletes in one or two lists.
fn unit(disk: &Disk, shown: &mut Shown, seed: &mut Seed, fill: u8, durable: bool) {
    let unit = disk.begin();
    let most = [5, 5, 5, 60][to_usize(seed.below(4))];
    for _ in 0..=seed.below(most) {
        match (seed.below(6), pick(shown, seed)) {
            (0, _) if shown.0.len() > 60 => {}
            (0, _) | (_, None) => drop(shown.0.insert(unit.new_list(false).unwrap(), Vec::new())),
            (1, Some((list, Some((at, block))))) => {
                unit.delete_block(block).unwrap();
                shown.0.get_mut(&list).unwrap().remove(at);
            }
            (2..4, Some((list, found))) => {
                let block =
                    unit.new_block(list, found.map_or(At::Start, |(_, block)| At::After(block))).unwrap();
                unit.write(block, &[fill; BLOCK]).unwrap();
                shown.0.get_mut(&list).unwrap().insert(found.map_or(0, |(at, _)| at + 1), (block, fill));
            }
            (_, Some((list, Some((at, block))))) => {
                unit.write(block, &[fill; BLOCK]).unwrap();
                shown.0.get_mut(&list).unwrap()[at].1 = fill;
            }
            _ => {}
        }
    }
    if durable { unit.end_durable().unwrap() } else { unit.end().unwrap() }
}

fn program(number: u64, operations: u64) -> Rig {
    let mut seed = Seed::new(number);
    let mut rig = Rig::new(&mut seed);
    for _ in 0..operations {
        let fill = rig.fill();
        match seed.below(13) {
            11 => {
                let before = rig.disk.counters().cleaned;
                rig.disk.clean(1 + seed.below(4)).unwrap();
                // It ends with a checkpoint if it has done anything.
                if rig.disk.counters().cleaned > before {
                    rig.cleaned += 1;
                    rig.promise();
                }
            }
            10 => {
                rig.disk.checkpoint().unwrap();
                rig.promise();
            }
            0 => rig.flush(),
            1 => {
                rig.operate(|disk, shown| unit(disk, shown, &mut seed, fill, true));
                rig.promise();
            }
            2..5 => rig.operate(|disk, shown| unit(disk, shown, &mut seed, fill, false)),
            _ => rig.operate(|disk, shown| simple(disk, shown, &mut seed, fill)),
        }
    }
    rig
}

#[test]
fn random_programs_survive_cuts_at_every_level() {
    let (mut states, mut cleaned, mut spilled) = (0, 0, 0);
    for number in 0..16 {
        let level = Level::ALL[to_usize(number % to_u64(Level::ALL.len()))];
        let lab = LabOptions { level, choices_per_cut: 16, ..LabOptions::default() };
        let rig = program(number, 120);
        cleaned += rig.cleaned;
        spilled += rig.disk.counters().spilled_bytes;
        let outcome = rig.explore(&format!("random/{number}"), lab);
        assert_eq!(outcome.found, [], "run {number} at {level}");
        states += outcome.counts.generated;
    }
    assert!(states > 1_000, "{states} states");
    assert!(cleaned > 50 && spilled > 100_000, "cleaned {cleaned} times, {spilled} bytes spilled");
}

/// The log behind the checkpoint is long, and in many of its segments nothing is alive any more: what recovery writes must not lie there
/// before its checkpoint is stable.
fn recovering() -> Rig {
    const WRITTEN: usize = 280;
    let made = Arc::new(MemDevice::from_image(512, vec![0; (60 * 128 + 9) * 512]));
    let format = FormatOptions { block_size: 512, segment_size: 64 << 10, ..FormatOptions::default() };
    Disk::format(Arc::clone(&made) as Arc<dyn BlockDevice>, &format).unwrap();
    let rarely = Options { checkpoint_interval: 64 << 20, cache_size: 8 << 20, ..options() };
    let (disk, _) = Disk::open(Arc::clone(&made) as Arc<dyn BlockDevice>, &rarely).unwrap();
    let before = disk.counters().checkpoints;
    let list = disk.new_list(false).unwrap();
    let blocks: Vec<BlockId> = (0..2500).map(|_| disk.new_block(list, At::Start).unwrap()).collect();
    for round in 1..=2 {
        blocks[..WRITTEN].iter().for_each(|block| disk.write(*block, &[round; BLOCK]).unwrap());
    }
    disk.flush().unwrap();
    assert_eq!(disk.counters().checkpoints, before);
    let all = blocks.iter().enumerate().rev();
    let all = all.map(|(at, block)| (*block, if at < WRITTEN { 2 } else { 0 })).collect();
    let shown = Shown(BTreeMap::from([(list, all)]));
    let base = Base::new(512, made.image());
    let recorder = Arc::new(Recorder::new(Image::new(Arc::clone(&base))));
    let (disk, recovered) = Disk::open(Arc::clone(&recorder) as Arc<dyn BlockDevice>, &options()).unwrap();
    assert!(recovered.chunks > 4, "{recovered:?}");
    Rig { recorder, base, disk, versions: vec![shown], promised: Vec::new(), cleaned: 0, next: 0 }
}

#[test]
fn a_failure_during_recovery_is_recovered_from() {
    for level in Level::ALL {
        let lab = LabOptions { level, choices_per_cut: 16, ..LabOptions::default() };
        let outcome = recovering().explore(&format!("recovery/{level}"), lab);
        assert_eq!(outcome.found, [], "{level}");
    }
}
