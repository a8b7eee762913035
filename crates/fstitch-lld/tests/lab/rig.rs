//! A disk on a recording medium, what it was after each operation, and the oracle that knows that.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fstitch_core::{BlockDevice, MemDevice, Result};
use fstitch_crashlab::medium::{Base, Image, Mark, Progress};
use fstitch_crashlab::oracle::{Judge, Violation};
use fstitch_crashlab::{Counts, LabOptions, Level, Oracle, Outcome, Past, Recorder, Subject};
use fstitch_lld::{At, BlockId, Compression, Disk, FormatOptions, ListId, Options};

pub const BLOCK: usize = 512;

/// The lists, and what fills their blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shown {
    pub ordered: BTreeMap<ListId, Vec<(BlockId, u8)>>,
    /// By position.
    pub sparse: BTreeMap<ListId, BTreeMap<u64, (BlockId, u8)>>,
}

pub fn options() -> Options {
    // The same program writes the same every time. Units that write more than twelve blocks spill, or more than six of the larger ones.
    Options { cache_size: 24 << 10, checkpoint_interval: 64 << 10, background: false, ..Options::default() }
}

/// What fills a block.
pub fn filled(disk: &Disk, fill: u8) -> Vec<u8> {
    vec![fill; disk.block_size()]
}

/// A medium of so many segments with an empty disk, whose blocks are those of the medium.
pub fn formatted(segments: usize) -> Arc<MemDevice> {
    formatted_as(segments, 512, Compression::None)
}

/// As [`formatted`], of which the cleaner makes a block of two out of each block that it moves, if asked for.
pub fn formatted_as(segments: usize, block_size: u32, compression: Compression) -> Arc<MemDevice> {
    let made = Arc::new(MemDevice::from_image(512, vec![0; (segments * 128 + 9) * 512]));
    let format =
        FormatOptions { block_size, segment_size: 64 << 10, compression, ..FormatOptions::default() };
    let device = || Arc::clone(&made) as Arc<dyn BlockDevice>;
    // Another disk was there before: nothing of it may come back.
    Disk::format(device(), &format).unwrap();
    let (disk, _) = Disk::open(device(), &options()).unwrap();
    for fill in 1..40 {
        let list = disk.new_list(fill % 2 == 0).unwrap();
        if fill % 2 == 0 {
            disk.write_at(list, 1, &filled(&disk, fill)).unwrap();
        } else {
            let block = disk.new_block(list, At::Start).unwrap();
            disk.write(block, &filled(&disk, fill)).unwrap();
        }
        disk.flush().unwrap();
    }
    drop(disk);
    Disk::format(device(), &format).unwrap();
    made
}

/// What a disk has.
pub fn shown(disk: &Disk) -> Result<Shown, Violation> {
    let fail = |error: fstitch_core::Error| Violation::new("unreadable", error.to_string());
    let mut shown = Shown::default();
    let mut from = 1;
    while let Some(list) = disk.next_list(from).map_err(fail)? {
        let len = disk.list_len(list).map_err(fail)?;
        let found = if disk.next_at(list, 0).is_ok() {
            let blocks = sparse(disk, list)?;
            let found = blocks.len();
            shown.sparse.insert(list, blocks);
            found
        } else {
            let blocks = ordered(disk, list, len)?;
            let found = blocks.len();
            shown.ordered.insert(list, blocks);
            found
        };
        if found != usize::try_from(len).unwrap() {
            return Err(Violation::new("list", format!("list {list} has {found} blocks and says {len}")));
        }
        from = list + 1;
    }
    Ok(shown)
}

fn ordered(disk: &Disk, list: ListId, len: u64) -> Result<Vec<(BlockId, u8)>, Violation> {
    let fail = |error: fstitch_core::Error| Violation::new("unreadable", error.to_string());
    let mut blocks = Vec::new();
    for at in 0..len {
        let Some(block) = disk.block_at(list, at).map_err(fail)? else { break };
        blocks.push((block, contents(disk, block)?));
    }
    Ok(blocks)
}

fn sparse(disk: &Disk, list: ListId) -> Result<BTreeMap<u64, (BlockId, u8)>, Violation> {
    let fail = |error: fstitch_core::Error| Violation::new("unreadable", error.to_string());
    let (mut blocks, mut from) = (BTreeMap::new(), 0);
    while let Some((position, block)) = disk.next_at(list, from).map_err(fail)? {
        blocks.insert(position, (block, contents(disk, block)?));
        from = position + 1;
    }
    Ok(blocks)
}

/// The byte that fills a block.
fn contents(disk: &Disk, block: BlockId) -> Result<u8, Violation> {
    let mut bytes = filled(disk, 0xff);
    disk.read(block, &mut bytes).map_err(|error| Violation::new("unreadable", error.to_string()))?;
    if bytes == filled(disk, bytes[0]) {
        Ok(bytes[0])
    } else {
        Err(Violation::new("torn-block", format!("block {block}")))
    }
}

/// Opens a disk, checks it and reads everything.
pub struct Opened;

impl Subject for Opened {
    type Shown = Shown;

    fn show(&self, device: Arc<dyn BlockDevice>) -> Result<Shown, Violation> {
        let fail = |error: fstitch_core::Error| Violation::new("unreadable", error.to_string());
        let (disk, recovered) = Disk::open(device, &options()).map_err(fail)?;
        if let Some(what) = recovered.damaged {
            return Err(Violation::new("said-to-be-damaged", what));
        }
        let report = disk.check(true, &mut |_| {}).map_err(fail)?;
        match report.findings.first() {
            Some(found) => Err(Violation::new(found.code, found.text.clone())),
            None => shown(&disk),
        }
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

pub struct Rig {
    recorder: Arc<Recorder<Image>>,
    base: Arc<Base>,
    pub disk: Arc<Disk>,
    versions: Vec<Shown>,
    promised: Vec<usize>,
    /// How often the cleaner has found something to do.
    pub cleaned: u64,
    next: u8,
}

impl Rig {
    /// Opens what lies on a medium, which has these lists, and records what it does.
    pub fn on(image: Vec<u8>, shown: Shown) -> Self {
        let base = Base::new(512, image);
        let recorder = Arc::new(Recorder::new(Image::new(Arc::clone(&base))));
        let (disk, _) = Disk::open(Arc::clone(&recorder) as Arc<dyn BlockDevice>, &options()).unwrap();
        Self {
            recorder,
            base,
            disk: Arc::new(disk),
            versions: vec![shown],
            promised: Vec::new(),
            cleaned: 0,
            next: 0,
        }
    }

    /// What the disk has now.
    pub fn now(&self) -> &Shown {
        self.versions.last().unwrap()
    }

    /// An operation that is atomic.
    pub fn operate(&mut self, operation: impl FnOnce(&Disk, &mut Shown)) {
        let no = u32::try_from(self.versions.len() - 1).unwrap();
        self.recorder.mark(Mark::Begin(no));
        let mut shown = self.now().clone();
        operation(&self.disk, &mut shown);
        self.recorder.mark(Mark::End(no));
        self.versions.push(shown);
    }

    pub fn flush(&mut self) {
        self.disk.flush().unwrap();
        self.promise();
    }

    pub fn checkpoint(&mut self) {
        self.disk.checkpoint().unwrap();
        self.promise();
    }

    /// Has the cleaner empty so many segments, which ends with a checkpoint if it does anything.
    pub fn clean(&mut self, segments: u64) {
        let before = self.disk.counters().cleaned;
        self.disk.clean(segments).unwrap();
        if self.disk.counters().cleaned > before {
            self.cleaned += 1;
            self.promise();
        }
    }

    /// Everything is stable.
    pub fn promise(&mut self) {
        self.recorder.mark(Mark::Promise(u32::try_from(self.promised.len()).unwrap()));
        self.promised.push(self.versions.len() - 1);
    }

    /// Something to fill a block with that is in none yet.
    pub fn fill(&mut self) -> u8 {
        self.next = self.next % 250 + 1;
        self.next
    }

    pub fn explore(self, name: &str, options: LabOptions) -> Outcome {
        drop(self.disk);
        let names = ("logical-disk".to_owned(), name.to_owned());
        let oracle = Versions(self.versions, self.promised);
        Past { names, base: self.base, log: self.recorder.take(), subject: &Opened, oracle: &oracle }
            .judge(options)
    }
}

/// How many states are looked at for each cut: what is asked for, or this.
pub fn choices(sample: u64) -> u64 {
    std::env::var("FSTITCH_CRASH_CHOICES").map_or(sample, |given| given.parse().expect("a number"))
}

/// Cuts many programs, as many at a time as there are processors. Each has a name, and is made anew for each level that it is cut at.
///
/// # Panics
/// If a state is found that was promised not to be.
pub fn explore_all(
    numbers: Range<u64>,
    choices: u64,
    program: &(dyn Fn(u64) -> (Rig, String, Vec<Level>) + Sync),
) -> Counts {
    let (next, total) = (AtomicU64::new(numbers.start), Mutex::new(Counts::default()));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::SeqCst);
            if number >= numbers.end {
                return;
            }
            let (rig, name, levels) = program(number);
            let mut rigs = vec![rig];
            rigs.extend(levels.iter().skip(1).map(|_| program(number).0));
            for (rig, level) in rigs.into_iter().zip(levels) {
                let options = LabOptions { level, choices_per_cut: choices, ..LabOptions::default() };
                let outcome = rig.explore(&name, options);
                assert_eq!(outcome.found, [], "{name} at {level}");
                total.lock().unwrap().add(&outcome.counts);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        // What a thread has to say is the test's.
        for thread in started {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
    let counts = *total.lock().unwrap();
    println!(
        "{} programs, {} operations, {} cuts, {} states, of which {} were recovered and read",
        counts.workloads, counts.operations, counts.cuts, counts.generated, counts.checked
    );
    counts
}
