//! What returning and syncing mean on a device, how often it is flushed, and what becomes of a log that is too small, stale or failing.
//!
//! What it prevents: an operation that returned and is lost, groups of an earlier opening that count again, a write that is longer than the
//! log, a failure that nobody is told of.

mod memory;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::driver::{Leaf, Op, Side, Target};
use crate::on_device::{device, on_device, open};
use crate::support::{CALLER, create};
use fstitch_bpfs::{Bpfs, Durability, Options, identify_on};
use fstitch_core::lock::Place;
use fstitch_core::schedule::{self, Scheduler};
use fstitch_core::{
    BlockDevice, BlockNo, BlockRead, BlockWrite, Errno, Error, FileSystem, Geometry, IoOp, MemDevice, Result,
    Seed,
};

/// Blocks and their bytes.
type Batch = Vec<(u64, Vec<u8>)>;

/// The blocks of a batch reach an image.
fn arrive(image: &mut [u8], batch: &[(u64, Vec<u8>)]) {
    for (block, bytes) in batch {
        let at = usize::try_from(block * 512).unwrap();
        image[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// A device whose writes are lost until they are flushed, and which is slow or fails if asked to.
struct Cautious {
    now: Arc<MemDevice>,
    stable: Mutex<Vec<u8>>,
    /// Batches since the last flush.
    since: Mutex<Vec<Batch>>,
    /// Those of each flush.
    flushed: Mutex<Vec<Vec<Batch>>>,
    flushes: AtomicU64,
    /// Blocks that were read, as often as they were.
    read: Mutex<Vec<u64>>,
    /// Pages that cannot be read.
    bad: Mutex<Vec<u64>>,
    delay: Duration,
    fails: AtomicBool,
}

impl Cautious {
    fn new(now: Arc<MemDevice>, delay: Duration) -> Arc<Self> {
        let (stable, since, flushed) = (Mutex::new(now.image()), Mutex::default(), Mutex::default());
        let (flushes, fails) = (AtomicU64::new(0), AtomicBool::new(false));
        let (read, bad) = (Mutex::default(), Mutex::default());
        Arc::new(Self { now, stable, since, flushed, flushes, read, bad, delay, fails })
    }

    /// The pages that were read since this was asked before, in their order.
    fn pages_read(&self) -> Vec<u64> {
        let mut pages: Vec<u64> = std::mem::take(&mut *self.read.lock().unwrap());
        pages.retain(|block| block.is_multiple_of(8));
        pages.sort_unstable();
        pages.into_iter().map(|block| block / 8).collect()
    }

    /// What is there without anything that was not flushed.
    fn cut(&self) -> Arc<MemDevice> {
        Arc::new(MemDevice::from_image(512, self.stable.lock().unwrap().clone()))
    }

    fn fail(&self) -> Result<()> {
        let error = || Error::io(IoOp::Write, BlockNo(0), std::io::Error::other("asked to"));
        if self.fails.load(Ordering::Relaxed) { Err(error()) } else { Ok(()) }
    }
}

impl BlockDevice for Cautious {
    fn geometry(&self) -> Geometry {
        self.now.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.read.lock().unwrap().extend(reads.iter().map(|read| read.block.0));
        std::thread::sleep(self.delay);
        let bad = self.bad.lock().unwrap();
        if let Some(read) = reads.iter().find(|read| bad.contains(&(read.block.0 / 8))) {
            return Err(Error::io(IoOp::Read, read.block, std::io::Error::other("a bad page")));
        }
        drop(bad);
        self.now.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        self.fail()?;
        let batch = writes.iter().map(|write| (write.block.0, write.data.to_vec())).collect();
        self.since.lock().unwrap().push(batch);
        self.now.write(writes)
    }

    fn flush(&self) -> Result<()> {
        std::thread::sleep(self.delay);
        self.fail()?;
        self.flushes.fetch_add(1, Ordering::Relaxed);
        let mut stable = self.stable.lock().unwrap();
        let batches = std::mem::take(&mut *self.since.lock().unwrap());
        batches.iter().for_each(|batch| arrive(&mut stable, batch));
        self.flushed.lock().unwrap().push(batches);
        Ok(())
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.now.discard(start, count)
    }
}

type Tree = BTreeMap<Vec<u8>, Leaf>;

fn mount(device: &Arc<Cautious>, durability: Durability) -> Arc<Bpfs> {
    let shared = Arc::<Cautious>::clone(device);
    Arc::new(Bpfs::open_on(shared, on_device(durability), crate::support::clock()).unwrap())
}

/// The tree on a device that nobody has open.
fn tree_on(device: &Arc<MemDevice>) -> Tree {
    let copy = Arc::new(MemDevice::from_image(512, device.image()));
    let fs = open(&copy, on_device(Durability::Power));
    crate::support::check(&fs);
    Side::new(Arc::new(fs)).tree()
}

/// Any operation, by a number.
fn operation(seed: &mut Seed) -> Op {
    let names = ["a", "b", "c", "d", "d/a", "d/b", "e", "e/a"];
    let path = |seed: &mut Seed| names[usize::try_from(seed.below(8)).unwrap()].as_bytes().to_vec();
    let target = |seed: &mut Seed| Target::Path(path(seed));
    match seed.below(12) {
        0 | 1 => Op::Create(path(seed), 0o644),
        2 => Op::Mkdir(path(seed), 0o755),
        3 | 4 => {
            let (offset, len) = (seed.below(30_000), seed.below(9000));
            Op::Write(target(seed), offset, usize::try_from(len).unwrap(), 3)
        }
        5 => Op::Unlink(path(seed)),
        6 => Op::Rmdir(path(seed)),
        7 => Op::Rename(path(seed), path(seed), true),
        8 => Op::Link(target(seed), path(seed)),
        9 => Op::Truncate(target(seed), seed.below(40_000)),
        10 => Op::SetXattr(target(seed), 1, usize::try_from(seed.below(3000)).unwrap(), 0),
        _ => Op::Symlink(path(seed), vec![b't'; 100]),
    }
}

fn runs() -> u64 {
    std::env::var("FSTITCH_BPFS_LOG").map_or(3, |runs| runs.parse().unwrap())
}

#[test]
fn what_has_returned_survives_without_anything_that_was_not_flushed() {
    let mut home_blocks = 0;
    for run in 0..runs() {
        for log in [16, 40] {
            let device = Cautious::new(device(4 << 20, log), Duration::ZERO);
            let fs = mount(&device, Durability::Power);
            let mut side = Side::new(Arc::<Bpfs>::clone(&fs) as Arc<dyn FileSystem>);
            let mut seed = Seed::new(run);
            for number in 0..120 {
                let op = operation(&mut seed);
                let _ = side.run(&op);
                if number % 3 == 0 {
                    assert_eq!(tree_on(&device.cut()), side.tree(), "run {run}, operation {number}: {op:?}");
                }
            }
            home_blocks += fs.log_counts().unwrap().home_blocks;
        }
    }
    assert!(home_blocks > 0, "no log was full, so none was carried home");
}

#[test]
fn what_has_returned_survives_the_process_and_what_was_synced_a_cut() {
    for run in 0..runs() {
        let device = Cautious::new(device(4 << 20, 16), Duration::ZERO);
        let fs = mount(&device, Durability::Process);
        let mut side = Side::new(Arc::<Bpfs>::clone(&fs) as Arc<dyn FileSystem>);
        let mut seed = Seed::new(run);
        let (mut trees, mut synced) = (vec![side.tree()], 0);
        for number in 0..90 {
            let op = operation(&mut seed);
            let _ = side.run(&op);
            trees.push(side.tree());
            if number % 17 == 16 {
                fs.sync().unwrap();
                synced = trees.len() - 1;
                assert_eq!(&tree_on(&device.cut()), trees.last().unwrap());
            }
            if number % 3 == 0 {
                assert_eq!(&tree_on(&device.now), trees.last().unwrap(), "run {run}, {number}: {op:?}");
                let left = tree_on(&device.cut());
                let found = trees.iter().rposition(|tree| *tree == left);
                assert!(found.is_some_and(|found| found >= synced || trees[found] == trees[synced]));
            }
        }
        let flushes = device.flushes.load(Ordering::Relaxed);
        assert!(flushes < 60, "{flushes} flushes of 90 operations, 5 of which were syncs");
    }
}

#[test]
fn one_thread_flushes_once_for_each_operation() {
    let device = Cautious::new(device(4 << 20, 16), Duration::ZERO);
    let fs = mount(&device, Durability::Power);
    let before = device.flushes.load(Ordering::Relaxed);
    for number in 0..200 {
        create(&*fs, fs.root(), format!("file-{number}").as_bytes());
    }
    let flushes = device.flushes.load(Ordering::Relaxed) - before;
    println!("{flushes} flushes of 200 operations");
    assert!((200..=220).contains(&flushes), "{flushes} flushes");
}

#[test]
fn sixteen_threads_share_flushes() {
    let device = Cautious::new(device(8 << 20, 128), Duration::from_millis(4));
    let fs = mount(&device, Durability::Power);
    let before = device.flushes.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let fs = &fs;
            scope.spawn(move || {
                for number in 0..25 {
                    create(&**fs, fs.root(), format!("file-{thread}-{number}").as_bytes());
                }
            });
        }
    });
    let flushes = device.flushes.load(Ordering::Relaxed) - before;
    println!("{flushes} flushes of 400 operations");
    assert!(flushes <= 80, "{flushes} flushes of 400 operations");
    let names = tree_on(&device.cut()).len();
    assert_eq!(names, Side::new(fs as Arc<dyn FileSystem>).tree().len());
}

/// What a thread that can be stopped has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    /// To the place where it is stopped.
    There,
    /// To where it waits for what another thread writes.
    ToWait,
    /// To the end of its operation.
    Back,
}

/// Stops a thread before it takes the log's lock, when it is time for that, and wherever it waits for another one.
struct Stop {
    is_time: Box<dyn Fn() -> bool + Send + Sync>,
    was_there: AtomicBool,
    came: Sender<Came>,
    go: Mutex<Receiver<()>>,
}

impl Stop {
    fn stop(&self, came: Came) {
        // Nobody listens, and nobody says so, when the test is over or has failed.
        let _ = self.came.send(came);
        let _ = self.go.lock().unwrap().recv();
    }
}

impl Scheduler for Stop {
    fn point(&self, place: Place) {
        let is_log = place.line.file().ends_with("log/mod.rs");
        if is_log && (self.is_time)() && !self.was_there.swap(true, Ordering::Relaxed) {
            self.stop(Came::There);
        }
    }

    fn blocked(&self, _: Place) {
        std::thread::yield_now();
    }

    fn taken(&self, _: Place) {}

    fn released(&self, _: Place) {}

    fn has_writer_waiting(&self, _: usize) -> bool {
        false
    }

    fn wait(&self, _: usize, _: bool) {
        self.stop(Came::ToWait);
    }

    fn notified(&self, _: usize) {}
}

/// Runs an operation on a thread of its own that stops when `is_time`: what it comes to, and how it is let go.
fn stopping<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    is_time: impl Fn() -> bool + Send + Sync + 'static,
    operation: impl FnOnce() + Send + 'scope,
) -> (Receiver<Came>, Sender<()>) {
    let ((came, comes), (go, goes)) = (channel(), channel());
    let (is_time, was_there) = (Box::new(is_time), AtomicBool::new(false));
    scope.spawn(move || {
        let stop = Stop { is_time, was_there, came: came.clone(), go: Mutex::new(goes) };
        schedule::control(Some(Arc::new(stop)));
        operation();
        let _ = came.send(Came::Back);
    });
    (comes, go)
}

/// A long operation writes the groups in its way without a flush. Whoever has a record in one of them, and has not begun to wait, does not
/// return before there was one.
#[test]
fn a_group_that_another_thread_wrote_is_not_safe_before_a_flush() {
    if !schedule::can_control() {
        return;
    }
    let device = Cautious::new(device(8 << 20, 40), Duration::ZERO);
    let fs = mount(&device, Durability::Power);
    let long = create(&*fs, fs.root(), b"long");
    let came = std::thread::scope(|scope| {
        // Its record was appended and counted: what comes next is to wait for it.
        let locked = AtomicU64::new(0);
        let is_third = move || locked.fetch_add(1, Ordering::Relaxed) == 2;
        let (short_comes, short_goes) = stopping(scope, is_third, || {
            fs.mknod(&CALLER, fs.root(), b"short", 0o100_644, 0).map(drop).unwrap();
        });
        assert_eq!(short_comes.recv(), Ok(Came::There));
        assert!(device.since.lock().unwrap().is_empty(), "nobody has written its record");
        // The first group has its record, and is over.
        let shared = Arc::clone(&device);
        let is_second = move || shared.since.lock().unwrap().len() == 2;
        let (long_comes, long_goes) = stopping(scope, is_second, || {
            assert_eq!(fs.write(&CALLER, long, 0, &[7; 100_000]).unwrap(), 100_000);
        });
        assert_eq!(long_comes.recv(), Ok(Came::There));
        short_goes.send(()).unwrap();
        let came = short_comes.recv();
        long_goes.send(()).unwrap();
        assert_eq!(long_comes.recv(), Ok(Came::Back));
        drop(short_goes);
        came
    });
    assert_eq!(came, Ok(Came::ToWait), "it returned before its record was stable");
    let names: Vec<_> = tree_on(&device.cut()).into_keys().collect();
    assert_eq!(names, [&b""[..], b"/long", b"/short"]);
}

#[test]
fn an_operation_may_be_longer_than_the_log() {
    let device = Cautious::new(device(8 << 20, 16), Duration::ZERO);
    let fs = mount(&device, Durability::Power);
    let file = create(&*fs, fs.root(), b"long");
    let contents: Vec<u8> = (0..3_000_000_u32).map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1]).collect();
    assert_eq!(fs.write(&CALLER, file, 10, &contents).unwrap(), contents.len());
    assert_eq!(fs.write(&CALLER, file, 5, &contents).unwrap(), contents.len());
    let cut = device.cut();
    let again = open(&cut, on_device(Durability::Power));
    let found = again.lookup(again.root(), b"long").unwrap().attr.ino;
    let mut read = vec![0; contents.len()];
    assert_eq!(again.read(found, 5, &mut read).unwrap(), contents.len());
    assert!(read == contents);
    crate::support::check(&again);
}

/// Group A arrives, B does not, C does: C must not count when another group has taken the place of B.
#[test]
fn a_group_of_an_earlier_opening_never_counts() {
    let made = device(4 << 20, 16);
    let device = Cautious::new(Arc::clone(&made), Duration::ZERO);
    let fs = mount(&device, Durability::Process);
    for name in [b"a", b"b", b"c"] {
        create(&*fs, fs.root(), name);
    }
    // Of the three batches the second is lost.
    let mut image = device.stable.lock().unwrap().clone();
    let since = device.since.lock().unwrap().clone();
    assert_eq!(since.len(), 3);
    [&since[0], &since[2]].into_iter().for_each(|batch| arrive(&mut image, batch));
    let left = Cautious::new(Arc::new(MemDevice::from_image(512, image)), Duration::ZERO);
    let fs = mount(&left, Durability::Process);
    assert_eq!(fs.recovered().unwrap().groups, 1);
    create(&*fs, fs.root(), b"d");
    let names: Vec<_> = tree_on(&left.now).into_keys().collect();
    assert_eq!(names, [&b""[..], b"/a", b"/d"]);
}

/// Of what opening writes between two flushes, anything may be there: a header that leaves groups out, and not what they bring home.
#[test]
fn an_opening_that_is_cut_loses_nothing() {
    let device = Cautious::new(device(4 << 20, 16), Duration::ZERO);
    let fs = mount(&device, Durability::Power);
    for name in [b"a", b"b"] {
        create(&*fs, fs.root(), name);
    }
    let left = Cautious::new(device.cut(), Duration::ZERO);
    let (before, mut image) = (tree_on(&left.now), left.now.image());
    assert!(mount(&left, Durability::Power).recovered().unwrap().groups > 0);
    for batches in left.flushed.lock().unwrap().iter() {
        for arrived in 0..1_u32 << batches.len() {
            let mut cut = image.clone();
            let batches = (0_u32..).zip(batches).filter(|(number, _)| arrived >> number & 1 == 1);
            batches.for_each(|(_, batch)| arrive(&mut cut, batch));
            assert_eq!(tree_on(&Arc::new(MemDevice::from_image(512, cut))), before, "batches {arrived:#b}");
        }
        batches.iter().for_each(|batch| arrive(&mut image, batch));
    }
}

/// Sectors of what the headers of a log say, where the volume has so many blocks with its log.
fn headers(blocks: u64, log: u64) -> [u64; 2] {
    [(blocks - log) * 8, (blocks - log + 1) * 8]
}

/// What may have arrived of the batches between two flushes: those before one, all or nothing with one header left out, alone, or torn
/// in its sector, and sectors at random.
fn arrivals(image: &[u8], batches: &[Batch], headers: [u64; 2], seed: &mut Seed) -> Vec<Batch> {
    let all = batches.concat();
    let torn = |(sector, bytes): &(u64, Vec<u8>)| {
        let at = usize::try_from(sector * 512).unwrap();
        (*sector, [&bytes[..24], &image[at + 24..at + 512]].concat())
    };
    let mut states: Vec<Batch> = (0..=batches.len()).map(|count| batches[..count].concat()).collect();
    for header in headers {
        let (with, without): (Batch, Batch) = all.iter().cloned().partition(|(sector, _)| *sector == header);
        if !with.is_empty() {
            states.push([without.clone(), with.iter().map(torn).collect()].concat());
            states.extend([with, without]);
        }
    }
    for one_in in [2, 2, 2, 8, 8, 40] {
        states.push(all.iter().filter(|_| seed.below(one_in) > 0).cloned().collect());
    }
    states
}

/// Operations that are longer than groups write several of them, homes and headers without a flush between, and may be cut off anywhere
/// there: they happened, or did not, and nothing is lost that had returned. Lengths are such that a record begins at each line of a group.
#[test]
fn of_what_is_written_between_two_flushes_any_part_may_arrive() {
    let device = Cautious::new(device(4 << 20, 16), Duration::ZERO);
    let fs = mount(&device, Durability::Power);
    let mut side = Side::new(Arc::<Bpfs>::clone(&fs) as Arc<dyn FileSystem>);
    let (mut seed, mut image) = (Seed::new(1), device.stable.lock().unwrap().clone());
    let (mut intervals, mut states, mut size) = (device.flushed.lock().unwrap().len(), 0, 0);
    let file = || Target::Path(b"long".to_vec());
    let mut before = side.tree();
    for number in 0..64_u8 {
        let op = match number {
            0 => Op::Create(b"long".to_vec(), 0o644),
            _ if number % 4 == 3 => operation(&mut seed),
            // Appended, or blocks that are there; about as many lines as one record has and another one begins with.
            _ if number % 4 == 0 || size < 70_000 => {
                Op::Write(file(), size, 64 * (94 + usize::from(number % 18)), number)
            }
            _ => Op::Write(file(), seed.below(9) * 4096, 4096 * (2 + usize::from(number % 5)), number),
        };
        let _ = side.run(&op);
        size = fs.lookup(fs.root(), b"long").unwrap().attr.size;
        let after = side.tree();
        assert!(device.since.lock().unwrap().is_empty(), "{op:?} returned, and not all was flushed");
        let flushed = device.flushed.lock().unwrap()[intervals..].to_vec();
        intervals += flushed.len();
        for batches in &flushed {
            for arrived in arrivals(&image, batches, headers(1024, 16), &mut seed) {
                let mut cut = image.clone();
                arrive(&mut cut, &arrived);
                let tree = tree_on(&Arc::new(MemDevice::from_image(512, cut)));
                assert!(
                    tree == before || tree == after,
                    "operation {number}, {op:?}: neither before nor after"
                );
                states += 1;
            }
            batches.iter().for_each(|batch| arrive(&mut image, batch));
        }
        assert_eq!(tree_on(&device.cut()), after, "operation {number}, {op:?}: it has returned");
        before = after;
    }
    println!("{states} states, {:?}", fs.log_counts().unwrap());
}

#[test]
fn a_failure_is_told_and_ends_all_changes() {
    let device = Cautious::new(device(4 << 20, 16), Duration::ZERO);
    let fs = mount(&device, Durability::Power);
    create(&*fs, fs.root(), b"before");
    device.fails.store(true, Ordering::Relaxed);
    let errno = |result: Result<fstitch_core::Entry>| result.map(drop).unwrap_err().errno();
    assert_eq!(errno(fs.mknod(&CALLER, fs.root(), b"lost", 0o100_644, 0)), Errno::IO);
    device.fails.store(false, Ordering::Relaxed);
    assert_eq!(errno(fs.mknod(&CALLER, fs.root(), b"later", 0o100_644, 0)), Errno::IO);
    assert!(fs.sync().is_err() && fs.failed().is_some());
    let names: Vec<_> = tree_on(&device.cut()).into_keys().collect();
    assert_eq!(names, [&b""[..], b"/before"]);
}

#[test]
fn an_unmount_brings_everything_home() {
    let made = device(4 << 20, 16);
    let fs = open(&made, on_device(Durability::Power));
    create(&fs, fs.root(), b"a");
    let (_, found) = identify_on(Arc::<MemDevice>::clone(&made)).unwrap();
    assert!(found.was_open && found.groups > 0);
    fs.unmount().unwrap();
    let (_, found) = identify_on(Arc::<MemDevice>::clone(&made)).unwrap();
    assert!(!found.was_open && found.groups == 0);
    let names: Vec<_> = tree_on(&made).into_keys().collect();
    assert_eq!(names, [&b""[..], b"/a"]);
}

#[test]
fn looking_changes_nothing() {
    let made = device(4 << 20, 16);
    let fs = open(&made, on_device(Durability::Power));
    create(&fs, fs.root(), b"a");
    let before = made.image();
    let options = Options { read_only: true, ..on_device(Durability::Power) };
    let looked = open(&made, options);
    assert!(looked.lookup(looked.root(), b"a").is_ok());
    looked.unmount().unwrap();
    assert!(made.image() == before);
}
