//! Many threads on one disk.
//!
//! What it prevents: a flush for each of those who wait together, contents that a reader gets from a segment that has been given to
//! somebody else, and a thread that waits for ever after the medium has failed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use fstitch_core::num::to_u64;
use fstitch_core::{BlockDevice, BlockNo, BlockRead, BlockWrite, Errno, Error, Geometry, MemDevice, Seed};
use fstitch_lld::{At, BlockId, Disk, FormatOptions, ListId, Options};

const BLOCK: usize = 4096;

/// A device whose flushes take their time, and that fails or panics if it is told to.
struct Slow {
    inner: MemDevice,
    fails: AtomicBool,
    panics: AtomicBool,
    /// The names of threads that have written, if they are to be known.
    writers: Option<Mutex<Vec<String>>>,
    /// What a failure of power would leave, if it is to be known: what had been written when the last flush began.
    stable: Option<Mutex<Vec<u8>>>,
}

impl BlockDevice for Slow {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<(), Error> {
        self.inner.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<(), Error> {
        if let Some(writers) = &self.writers {
            writers.lock().unwrap().push(thread::current().name().unwrap_or_default().to_owned());
        }
        assert!(!self.panics.load(Ordering::SeqCst), "the device is told to");
        if self.fails.load(Ordering::SeqCst) {
            return Err(Errno::IO.into());
        }
        self.inner.write(writes)
    }

    fn flush(&self) -> Result<(), Error> {
        let written = self.stable.as_ref().map(|_| self.inner.image());
        thread::sleep(Duration::from_millis(3));
        if let (Some(stable), Some(written)) = (&self.stable, written) {
            *stable.lock().unwrap() = written;
        }
        if self.fails.load(Ordering::SeqCst) {
            return Err(Errno::IO.into());
        }
        self.inner.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<(), Error> {
        self.inner.discard(start, count)
    }
}

impl Slow {
    fn new(bytes: usize) -> Self {
        let inner = MemDevice::from_image(4096, vec![0; bytes]);
        Self {
            inner,
            fails: AtomicBool::new(false),
            panics: AtomicBool::new(false),
            writers: None,
            stable: None,
        }
    }
}

fn disk(bytes: usize, segment_size: u32) -> (Arc<Slow>, Disk) {
    on(Slow::new(bytes), segment_size)
}

fn on(device: Slow, segment_size: u32) -> (Arc<Slow>, Disk) {
    let device = Arc::new(device);
    let format = FormatOptions { segment_size, ..FormatOptions::default() };
    Disk::format(Arc::clone(&device) as Arc<dyn BlockDevice>, &format).unwrap();
    let options = Options { checkpoint_interval: 1 << 20, ..Options::default() };
    let (disk, _) = Disk::open(Arc::clone(&device) as Arc<dyn BlockDevice>, &options).unwrap();
    (device, disk)
}

fn filled(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(BLOCK / 8)
}

/// So many threads end so many durable units of four blocks each. Returns the blocks, with what is in them.
fn durable_units(disk: &Disk, threads: u64, units: u64) -> Vec<(BlockId, u64)> {
    let work = |thread: u64| {
        let list = disk.new_list(false).unwrap();
        let mut done = Vec::new();
        for number in 0..units {
            let unit = disk.begin();
            for part in 0..4 {
                let block = unit.new_block(list, At::Start).unwrap();
                let value = (thread << 32) + (number << 8) + part;
                unit.write(block, &filled(value)).unwrap();
                done.push((block, value));
            }
            unit.end_durable().unwrap();
        }
        done
    };
    thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        started.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn threads_that_wait_together_share_a_flush() {
    let (device, disk) = disk(64 << 20, 512 << 10);
    let before = disk.counters();
    let alone = durable_units(&disk, 1, 20);
    let after_one = disk.counters();
    // One for each, and two for a checkpoint.
    let flushes = after_one.flushes - before.flushes;
    assert!(
        flushes <= 20 + 2 * (after_one.checkpoints - before.checkpoints),
        "{flushes} flushes for 20 units"
    );
    let together = durable_units(&disk, 16, 20);
    let after = disk.counters();
    let flushes = after.flushes - after_one.flushes;
    assert!(flushes < 320 / 2, "{flushes} flushes for 320 units of 16 threads");
    // Everything that was promised is there, although nothing was closed.
    let image: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_image(4096, device.inner.image()));
    let (found, _) = Disk::open(image, &Options::default()).unwrap();
    let mut bytes = vec![0; BLOCK];
    for (block, value) in alone.into_iter().chain(together) {
        found.read(block, &mut bytes).unwrap();
        assert!(bytes == filled(value), "block {block}");
    }
}

#[test]
fn what_a_thread_was_told_is_stable_survives_although_others_write() {
    let stable = Some(Mutex::default());
    let (device, disk) = on(Slow { stable, ..Slow::new(8 << 20) }, 64 << 10);
    let work = |thread: u64| {
        let list = disk.new_list(false).unwrap();
        for number in 0..12 {
            let unit = disk.begin();
            let block = unit.new_block(list, At::Start).unwrap();
            let value = (thread << 32) + number;
            unit.write(block, &filled(value)).unwrap();
            if number % 3 == 0 {
                unit.end().unwrap();
                disk.flush().unwrap();
            } else {
                unit.end_durable().unwrap();
            }
            let image = device.stable.as_ref().unwrap().lock().unwrap().clone();
            let left: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_image(4096, image));
            let (found, _) = Disk::open(left, &Options::default()).unwrap();
            let mut bytes = vec![0; BLOCK];
            found.read(block, &mut bytes).unwrap();
            assert!(bytes == filled(value), "block {block}");
        }
    };
    thread::scope(|scope| {
        for thread in 0..6 {
            let work = &work;
            scope.spawn(move || work(thread));
        }
    });
}

#[test]
fn units_take_turns_where_they_are_to() {
    let inner = MemDevice::from_image(4096, vec![0; 8 << 20]);
    let device = Arc::new(inner) as Arc<dyn BlockDevice>;
    let format = FormatOptions { segment_size: 64 << 10, ..FormatOptions::default() };
    Disk::format(Arc::clone(&device), &format).unwrap();
    let options = Options { sequential: true, ..Options::default() };
    let (disk, _) = Disk::open(device, &options).unwrap();
    let is_open = AtomicBool::new(false);
    let work = || {
        for number in 0..50 {
            let unit = disk.begin();
            assert!(!is_open.swap(true, Ordering::SeqCst), "one at a time");
            unit.new_list(false).unwrap();
            thread::yield_now();
            is_open.store(false, Ordering::SeqCst);
            if number % 3 > 0 {
                unit.end().unwrap();
            }
        }
    };
    thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
    assert_eq!(disk.info().lists, 4 * 33, "those that were dropped have made none");
}

#[test]
fn readers_and_writers_meet_the_cleaner() {
    let (_, disk) = disk(16 << 20, 64 << 10);
    let list = disk.new_list(false).unwrap();
    let share = disk.space().all / 4096 * 8 / 10 / 4;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (disk, is_over) = (&disk, &is_over);
        let writers: Vec<_> = (0..4)
            .map(|thread| {
                scope.spawn(move || {
                    let mut seed = Seed::new(thread);
                    let mut blocks: Vec<(BlockId, u64)> = Vec::new();
                    let mut bytes = vec![0; BLOCK];
                    for number in 0..3 * share {
                        let value = (thread << 32) + number;
                        let at = usize::try_from(seed.below(to_u64(blocks.len()).max(1))).unwrap();
                        if to_u64(blocks.len()) < share {
                            let block = disk.new_block(list, At::Start).unwrap();
                            disk.write(block, &filled(value)).unwrap();
                            blocks.push((block, value));
                        } else {
                            disk.write(blocks[at].0, &filled(value)).unwrap();
                            blocks[at].1 = value;
                        }
                        let (block, value) =
                            blocks[usize::try_from(seed.below(to_u64(blocks.len()))).unwrap()];
                        disk.read(block, &mut bytes).unwrap();
                        assert!(bytes == filled(value), "block {block}");
                    }
                })
            })
            .collect();
        scope.spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                disk.clean(2).unwrap();
                disk.flush().unwrap();
            }
        });
        let done: Vec<_> = writers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::SeqCst);
        done.into_iter().for_each(|done| done.unwrap());
    });
    assert!(disk.counters().cleaned > 0);
}

#[test]
fn a_failed_flush_fails_for_all_who_wait_and_for_ever() {
    let (device, disk) = disk(64 << 20, 512 << 10);
    let list = disk.new_list(false).unwrap();
    disk.flush().unwrap();
    device.fails.store(true, Ordering::SeqCst);
    let done = thread::scope(|scope| {
        let work = || {
            let unit = disk.begin();
            unit.new_block(list, At::Start).is_ok() && unit.end_durable().is_ok()
        };
        let started: Vec<_> = (0..8).map(|_| scope.spawn(work)).collect();
        started.into_iter().any(|thread| thread.join().unwrap())
    });
    assert!(!done, "nobody was told that it is stable");
    device.fails.store(false, Ordering::SeqCst);
    assert!(matches!(disk.flush(), Err(Error::Poisoned(_))));
    assert!(disk.new_list(false).is_err());
}

/// What has become of the first write of the thread behind, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum First {
    Awaited,
    Begun,
    /// It may go on.
    LetGo,
    Done,
}

/// A device on which the first write of the thread behind takes until it is let go, or until others have had so many turns.
struct Paused {
    inner: Slow,
    first: Mutex<First>,
    changed: Condvar,
    turns: Option<u32>,
}

impl Paused {
    /// A disk on it that makes no checkpoints by itself, so that nobody but the thread behind writes what is full.
    fn disk(turns: Option<u32>) -> (Arc<Self>, Disk) {
        let inner = Slow { writers: Some(Mutex::default()), ..Slow::new(128 << 20) };
        let device =
            Arc::new(Self { inner, first: Mutex::new(First::Awaited), changed: Condvar::new(), turns });
        Disk::format(Arc::clone(&device) as Arc<dyn BlockDevice>, &FormatOptions::default()).unwrap();
        let (disk, _) = Disk::open(Arc::clone(&device) as Arc<dyn BlockDevice>, &Options::default()).unwrap();
        (device, disk)
    }

    fn first(&self) -> First {
        *self.first.lock().unwrap()
    }

    fn set(&self, now: First) {
        *self.first.lock().unwrap() = now;
        self.changed.notify_all();
    }

    /// Waits until it has come as far: it may be further on when somebody else had the processor all the while.
    fn wait_for(&self, what: First) {
        drop(self.changed.wait_while(self.first.lock().unwrap(), |now| *now < what).unwrap());
    }
}

impl BlockDevice for Paused {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<(), Error> {
        self.inner.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<(), Error> {
        if thread::current().name() != Some("lld-writer") || self.first() != First::Awaited {
            return self.inner.write(writes);
        }
        self.set(First::Begun);
        match self.turns {
            None => self.wait_for(First::LetGo),
            Some(turns) => {
                (0..turns).take_while(|_| self.first() == First::Begun).for_each(|_| thread::yield_now())
            }
        }
        let done = self.inner.write(writes);
        self.set(First::Done);
        done
    }

    fn flush(&self) -> Result<(), Error> {
        self.inner.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<(), Error> {
        self.inner.discard(start, count)
    }
}

/// Everything is at its position, now and after a failure.
fn has_all(disk: Disk, device: Arc<dyn BlockDevice>, list: ListId, count: u64) {
    let mut bytes = vec![0; BLOCK];
    for at in 0..count {
        disk.read_at(list, at, &mut bytes).unwrap();
        assert!(bytes == filled(at), "position {at}");
    }
    drop(disk);
    let (disk, _) = Disk::open(device, &Options::default()).unwrap();
    assert!(disk.check(true, &mut |_| {}).unwrap().is_clean());
    assert_eq!(disk.list_len(list).unwrap(), count);
}

#[test]
fn full_segments_are_written_while_others_are_composed() {
    let (device, disk) = Paused::disk(None);
    let list = disk.new_list(true).unwrap();
    // Two segments, which are what the thread behind is told of, and less than what one waits for.
    (0..300).for_each(|at| disk.write_at(list, at, &filled(at)).unwrap());
    device.wait_for(First::Begun);
    (300..500).for_each(|at| disk.write_at(list, at, &filled(at)).unwrap());
    let mut bytes = vec![0; BLOCK];
    for at in 0..500 {
        disk.read_at(list, at, &mut bytes).unwrap();
        assert!(bytes == filled(at), "position {at}");
    }
    assert_eq!(device.first(), First::Begun, "nobody has waited for it");
    device.set(First::LetGo);
    // Whoever composes waits for the thread behind now and then, so that it has its part, whoever the processor is given to.
    (500..3500).for_each(|at| disk.write_at(list, at, &filled(at)).unwrap());
    disk.flush().unwrap();
    assert_eq!(disk.counters().checkpoints, 1, "that of opening it");
    let writers = device.inner.writers.as_ref().unwrap().lock().unwrap().clone();
    let behind = writers.iter().filter(|name| *name == "lld-writer").count();
    assert!(behind > 3, "{writers:?}");
    has_all(disk, device, list, 3500);
}

#[test]
fn full_segments_are_written_by_whoever_comes_first() {
    // Checkpoints take what the thread behind was told to write.
    let (device, disk) = disk(64 << 20, 512 << 10);
    let list = disk.new_list(true).unwrap();
    (0..4000).for_each(|at| disk.write_at(list, at, &filled(at)).unwrap());
    disk.flush().unwrap();
    assert!(disk.counters().checkpoints > 3);
    has_all(disk, device, list, 4000);
}

#[test]
fn nobody_writes_any_more_when_the_disk_is_let_go() {
    let (device, disk) = Paused::disk(Some(3000));
    let list = disk.new_list(true).unwrap();
    (0..300).for_each(|at| disk.write_at(list, at, &filled(at)).unwrap());
    device.wait_for(First::Begun);
    drop(disk);
    // What is still under way then is not waited for by this test.
    let mut first = device.first.lock().unwrap();
    let was = std::mem::replace(&mut *first, First::LetGo);
    drop(first);
    assert_eq!(was, First::Done);
    assert_eq!(Arc::strong_count(&device), 1, "nobody has the device");
}

/// A disk that makes no checkpoints by itself, so that only the thread behind writes.
fn rarely_saved() -> (Arc<Slow>, Disk) {
    let (device, disk) = disk(64 << 20, 512 << 10);
    drop(disk);
    let (disk, _) = Disk::open(Arc::clone(&device) as Arc<dyn BlockDevice>, &Options::default()).unwrap();
    (device, disk)
}

/// Writes until that fails, which it must before long; then everything does, and the disk can be let go.
fn fails_before_long(disk: Disk) {
    let list = disk.new_list(true).unwrap();
    let done = (0..4000).find_map(|at| disk.write_at(list, at, &filled(at)).err());
    assert!(matches!(done, Some(Error::Poisoned(_))), "{done:?}");
    assert!(matches!(disk.flush(), Err(Error::Poisoned(_))));
    assert!(disk.begin().end_durable().is_err() && disk.checkpoint().is_err());
    drop(disk);
}

#[test]
fn a_write_that_fails_behind_is_told_to_all_who_come() {
    let (device, disk) = rarely_saved();
    device.fails.store(true, Ordering::SeqCst);
    fails_before_long(disk);
}

#[test]
fn nobody_waits_for_a_thread_that_has_panicked() {
    // Whoever composes has filled the queue by then, and waits.
    let (device, disk) = Paused::disk(Some(3000));
    device.inner.panics.store(true, Ordering::SeqCst);
    fails_before_long(disk);
}
