//! Volumes for tests.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "tests fail where they cannot go on, and each uses a part of this"
)]

#[path = "../../../../fstitch-fs/tests/fs/earlier.rs"]
mod earlier;

use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use earlier::earlier;
use fstitch_bpfs::{Bpfs, Medium, MkfsOptions, Optimizations, Options, Watch, mkfs};
use fstitch_core::{Caller, FileSystem, InodeNo, ManualClock, Timestamp};
use fstitch_posix::time::AtimePolicy;

pub const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 1, umask: 0o022 };
const NOW: Timestamp = Timestamp { secs: 1_700_000_000, nanos: 0 };

pub fn clock() -> Arc<ManualClock> {
    let clock = ManualClock::new();
    clock.advance(Duration::from_secs(NOW.secs.unsigned_abs()));
    Arc::new(clock)
}

/// Few inodes are remembered, so that they come from the medium all the time.
pub fn options(optimizations: Optimizations) -> Options {
    Options { atime: AtimePolicy::NoAtime, idle_nodes: 2, optimizations, ..Options::default() }
}

pub fn mkfs_options() -> MkfsOptions {
    MkfsOptions { uuid: [7; 16], label: b"test".to_vec(), now: NOW, owner: Caller::default() }
}

/// What stood on the medium before. Nothing of it may ever count.
pub static EARLIER: LazyLock<Vec<u8>> = LazyLock::new(|| earlier(4 << 20));

/// An empty volume over what was there before.
fn format(file: &std::fs::File, bytes: u64) {
    file.set_len(bytes).unwrap();
    let len = EARLIER.len().min(usize::try_from(bytes).unwrap());
    std::os::unix::fs::FileExt::write_all_at(file, &EARLIER[..len], 0).unwrap();
    mkfs(Medium::file(file.try_clone().unwrap(), false).unwrap(), &mkfs_options()).unwrap();
}

/// A volume in a file that disappears with the test.
pub struct InFile {
    pub file: tempfile::NamedTempFile,
    pub clock: Arc<ManualClock>,
    pub options: Options,
}

impl InFile {
    pub fn new(bytes: u64, options: Options) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        format(&open(&file), bytes);
        Self { file, clock: clock(), options }
    }

    pub fn mount(&self) -> Bpfs {
        let medium = Medium::file(open(&self.file), false).unwrap();
        let fs = Bpfs::open(medium, self.options, Arc::<ManualClock>::clone(&self.clock)).unwrap();
        check(&fs);
        fs
    }
}

fn open(file: &tempfile::NamedTempFile) -> std::fs::File {
    std::fs::OpenOptions::new().read(true).write(true).open(file.path()).unwrap()
}

/// An empty volume, as an image.
pub fn empty(bytes: u64) -> Vec<u8> {
    let file = tempfile::tempfile().unwrap();
    format(&file, bytes);
    let mut image = vec![0; usize::try_from(bytes).unwrap()];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut image, 0).unwrap();
    image
}

/// The volume is in order.
pub fn check(fs: &Bpfs) {
    let report = fs.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// What has been stored, in order.
#[derive(Clone, Debug)]
pub enum Event {
    Store(u64, Vec<u8>),
    Fence,
}

/// Notes every store.
#[derive(Clone, Default)]
pub struct Log(pub Arc<Mutex<Vec<Event>>>);

impl Watch for Log {
    fn store(&self, at: u64, bytes: &[u8]) {
        self.0.lock().unwrap().push(Event::Store(at, bytes.to_vec()));
    }

    fn fence(&self) {
        self.0.lock().unwrap().push(Event::Fence);
    }
}

/// Opens an image in memory, with somebody who looks on.
pub fn watched(image: &[u8], options: Options, clock: &Arc<ManualClock>) -> (Bpfs, Log) {
    let log = Log::default();
    let medium = Medium::copy_of(image).unwrap();
    let watch = Some(Box::new(log.clone()) as _);
    (Bpfs::open_watched(medium, options, Arc::<ManualClock>::clone(clock), watch).unwrap(), log)
}

pub fn create(fs: &dyn FileSystem, dir: InodeNo, name: &[u8]) -> InodeNo {
    let ino = fs.mknod(&CALLER, dir, name, 0o100_644, 0).unwrap().attr.ino;
    fs.forget(ino, 1);
    ino
}
