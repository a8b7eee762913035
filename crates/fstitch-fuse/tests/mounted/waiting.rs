//! What goes on while others wait: for room in the cache, or for the end of a check.
//!
//! What it prevents: a `stat`, an `ls` or a `cat` that takes as long as somebody else's writes. Writers and those who look run on
//! one processor, which over io_uring has one thread for all of them.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use fstitch_core::{
    BlockDevice, BlockNo, BlockRead, BlockWrite, FileSystem, Geometry, MemDevice, Result, SystemClock,
    Timestamp,
};
use fstitch_fs::arrange::{Arrangement, open};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::mkfs::{MkfsOptions, mkfs};
use fstitch_fs::uhfs::{LowLevelFs, Uhfs};
use fstitch_fuse::Transport;
use rustix::fs::Advice;
use rustix::thread::CpuSet;

use crate::harness::{Mounted, mount_with, transport};
use crate::spy::Spy;

/// A device of which reads or writes stand still on demand.
struct Stalling {
    medium: MemDevice,
    /// Whether reads and writes stand still.
    stalled: Mutex<(bool, bool)>,
    goes_on: Condvar,
    standing: AtomicU64,
}

impl Stalling {
    fn stall(&self, reads: bool, writes: bool) {
        *self.stalled.lock().unwrap() = (reads, writes);
        self.goes_on.notify_all();
    }

    fn pass(&self, stands: impl Fn(&(bool, bool)) -> bool) {
        let mut stalled = self.stalled.lock().unwrap();
        while stands(&stalled) {
            self.standing.fetch_add(1, Ordering::SeqCst);
            stalled = self.goes_on.wait(stalled).unwrap();
            self.standing.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl BlockDevice for Stalling {
    fn geometry(&self) -> Geometry {
        self.medium.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.pass(|stalled| stalled.0);
        self.medium.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        self.pass(|stalled| stalled.1);
        self.medium.write(writes)
    }

    fn flush(&self) -> Result<()> {
        self.medium.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.medium.discard(start, count)
    }
}

struct Rig {
    device: Arc<Stalling>,
    fs: Arc<Uhfs<Ext2>>,
    mounted: Mounted,
}

/// A volume of 64 MiB with a cache of 2, served by one worker.
fn rig() -> Option<Rig> {
    let medium = MemDevice::new(4096, 16_384);
    let made = MkfsOptions::new([7; 16], [9; 16], Timestamp::default());
    mkfs(&medium, &MkfsOptions { block_size: Some(4096), ..made }, &mut |_, _| ()).unwrap();
    let (stalled, goes_on) = (Mutex::new((false, false)), Condvar::new());
    let device = Arc::new(Stalling { medium, stalled, goes_on, standing: AtomicU64::new(0) });
    let mut arrangement = Arrangement::default();
    arrangement.cache.cache_size = 2 << 20;
    let (fs, _) = open::<Ext2>(Arc::clone(&device) as _, &arrangement, Arc::new(SystemClock::new())).unwrap();
    fs.format().cache().start_flusher().unwrap();
    let fs = Arc::new(fs);
    let mounted = mount_with(Arc::clone(&fs) as _, |options| options.workers = 1)?;
    Some(Rig { device, fs, mounted })
}

/// Keeps this thread, and the programs that it starts, on the processor with that number among those it may run on.
fn stay_on(no: usize) {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let mut set = CpuSet::new();
    let mut processors = (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor)).cycle();
    set.set(processors.nth(no).unwrap());
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

/// Has a program look, on the first processor, and returns what it says: it takes not as long as a hanging test would.
fn say(program: &'static str, mounted: &Mounted, name: &str) -> Vec<u8> {
    let (tell, hear) = channel();
    let path = mounted.path(name);
    std::thread::spawn(move || {
        stay_on(0);
        let output = Command::new(program).arg(path).stderr(Stdio::null()).output().unwrap();
        tell.send(output.stdout)
    });
    hear.recv_timeout(Duration::from_secs(20)).expect("whoever looks waits for others")
}

/// A name that nobody has asked for is looked for.
fn look(mounted: &Mounted, name: &str) {
    let (tell, hear) = channel();
    let path = mounted.path(name);
    std::thread::spawn(move || {
        stay_on(0);
        tell.send(fs::metadata(path).unwrap_err().kind())
    });
    let found = hear.recv_timeout(Duration::from_secs(20));
    assert_eq!(found, Ok(std::io::ErrorKind::NotFound), "a look waits for others");
}

/// What those find who look while others wait.
const SEEN: &[u8] = &[42; 20_000];

/// Makes what they look at. Its contents are in our cache and not in the kernel's, and its access times are due.
fn prepare(fs: &Uhfs<Ext2>, mounted: &Mounted) {
    fs::create_dir(mounted.path("dir")).unwrap();
    for name in ["dir/one", "dir/two"] {
        File::create(mounted.path(name)).unwrap();
    }
    let mut file =
        OpenOptions::new().read(true).write(true).create_new(true).open(mounted.path("seen")).unwrap();
    file.write_all(SEEN).unwrap();
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    let root = fs.root();
    for name in [&b"dir"[..], b"seen"] {
        fs.lookup(root, name).map(|found| fs.forget(found.attr.ino, 1)).unwrap();
    }
}

/// `stat`, `ls` and `cat` by other programs on the processor of those who wait.
fn all_look(mounted: &Mounted) {
    for no in 0..10 {
        look(mounted, &format!("absent {no}"));
    }
    assert!(!say("stat", mounted, "dir").is_empty());
    assert_eq!(say("ls", mounted, "dir"), b"one\ntwo\n");
    assert_eq!(say("cat", mounted, "seen"), SEEN);
}

fn until(happens: impl Fn() -> bool) {
    for _ in 0..2_000 {
        if happens() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it does not come to that");
}

/// Frees what stands still whatever happens, so that a failing test ends.
struct GoesOn<'a>(&'a Stalling);

impl Drop for GoesOn<'_> {
    fn drop(&mut self) {
        self.0.stall(false, false);
    }
}

/// What the writer with that number writes, so that no two pages are alike.
fn contents(no: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251 + at / 4096 + no) as u8).collect()
}

fn check_contents(mounted: &Mounted, no: usize, len: usize) {
    let mut file = File::open(mounted.path(&format!("large {no}"))).unwrap();
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    let mut found = Vec::new();
    file.read_to_end(&mut found).unwrap();
    assert!(found == contents(no, len), "file {no} is not what was written");
}

#[test]
fn others_look_while_writers_wait_for_room() {
    const LEN: usize = 16 << 20;
    let Some(Rig { device, fs, mounted }) = rig() else { return };
    std::thread::scope(|scope| {
        let goes_on = GoesOn(&device);
        // To make a file would hold up looks into its directory in the kernel already.
        let make = |no| File::create(mounted.path(&format!("large {no}"))).unwrap();
        let files: Vec<File> = (0..3).map(make).collect();
        prepare(&fs, &mounted);
        device.stall(false, true);
        for (no, mut file) in files.into_iter().enumerate() {
            scope.spawn(move || {
                stay_on(0);
                contents(no, LEN).chunks(1 << 20).for_each(|part| file.write_all(part).unwrap());
            });
        }
        until(|| fs.format().cache().stats().waits >= 2);
        all_look(&mounted);
        drop(goes_on);
    });
    (0..3).for_each(|no| check_contents(&mounted, no, LEN));
    // Who stood in is needed no more.
    for no in 0..100 {
        look(&mounted, &format!("afterwards {no}"));
    }
}

#[test]
fn others_look_while_changes_wait_for_a_check() {
    let Some(Rig { device, fs, mounted }) = rig() else { return };
    std::thread::scope(|scope| {
        let goes_on = GoesOn(&device);
        let make = |no| File::create(mounted.path(&format!("large {no}"))).unwrap();
        let files: Vec<File> = (0..3).map(make).collect();
        prepare(&fs, &mounted);
        device.stall(true, false);
        let check = scope.spawn(|| fs.check().unwrap());
        until(|| device.standing.load(Ordering::SeqCst) > 0);
        let write = |(no, mut file): (usize, File)| {
            scope.spawn(move || {
                stay_on(0);
                file.write_all(&contents(no, 10)).unwrap();
            })
        };
        let writers: Vec<_> = files.into_iter().enumerate().map(write).collect();
        // They are on their way, or wait already.
        std::thread::sleep(Duration::from_millis(200));
        all_look(&mounted);
        assert!(writers.iter().all(|writer| !writer.is_finished()), "changes wait for the check");
        drop(goes_on);
        assert!(check.join().unwrap().is_clean());
    });
    (0..3).for_each(|no| check_contents(&mounted, no, 10));
}

/// Threads that may wait, over either way, and those that may beside them for the rests of writes that have begun.
const WAIT_MAX: u64 = 32;
const RESTS: u64 = 4;
/// Writers that are more than these, and on two processors fewer than there are slots.
const MANY: usize = 44;

#[test]
fn more_than_may_wait_stand_in_line() {
    const LEN: usize = 256 << 10;
    let Some(Rig { device, fs, mounted }) = rig() else { return };
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return println!("skipped: so many do not fit the slots of one processor");
    }
    std::thread::scope(|scope| {
        let goes_on = GoesOn(&device);
        let make = |no| File::create(mounted.path(&format!("large {no}"))).unwrap();
        let files: Vec<File> = (0..MANY).map(make).collect();
        prepare(&fs, &mounted);
        device.stall(false, true);
        for (no, mut file) in files.into_iter().enumerate() {
            scope.spawn(move || {
                stay_on(no);
                contents(no, LEN).chunks(64 << 10).for_each(|part| file.write_all(part).unwrap());
            });
        }
        until(|| fs.format().cache().stats().waits >= WAIT_MAX);
        std::thread::sleep(Duration::from_millis(200));
        let waiting = fs.format().cache().stats().waits;
        assert!(waiting <= WAIT_MAX + RESTS, "{waiting} threads wait");
        if transport() == Transport::IoUring {
            // Over `/dev/fuse` there is nobody left.
            all_look(&mounted);
        }
        drop(goes_on);
    });
    (0..MANY).for_each(|no| check_contents(&mounted, no, LEN));
    look(&mounted, "afterwards");
}

#[test]
fn what_is_done_elsewhere_is_done_once_for_the_same_caller() {
    let spy = Arc::new(Spy::default());
    let Some(mounted) = mount_with(Arc::clone(&spy) as _, |_| {}) else { return };
    let mut file = File::create(mounted.path("file")).unwrap();
    spy.waits.store(true, Ordering::Relaxed);
    for round in 0_u8..50 {
        // A page is one request.
        file.write_all(&contents(usize::from(round), 4096)).unwrap();
    }
    let tries = spy.count("write that may wait");
    assert_eq!(tries, if transport() == Transport::IoUring { 100 } else { 50 });
    assert_eq!(spy.count("write"), 50);
    // Who is not root has a mount whose files are stored as root's.
    let me = (0, u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap());
    assert_eq!(*spy.writers.lock().unwrap(), vec![me; 50]);
    let expected: Vec<u8> = (0..50).flat_map(|round| contents(round, 4096)).collect();
    assert!(fs::read(mounted.path("file")).unwrap() == expected);
}
