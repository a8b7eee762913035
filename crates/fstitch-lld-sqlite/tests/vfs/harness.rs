//! A SQLite that knows the file system, and disks in memory for it.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};

use fstitch_core::{BlockDevice, Errno, MemDevice};
use fstitch_lld::{Disk, FormatOptions, Options};
use fstitch_lld_sqlite::abi::Api;
use fstitch_lld_sqlite::{open_file, register};
use rusqlite::{Connection, OpenFlags, ffi};

/// The file system over disks in files, as the extension has it.
pub const FILES: &str = "lld";
/// The same over disks in memory.
pub const MEMORY: &str = "lld-memory";
/// The same, for a SQLite that does not write in batches.
pub const WITHOUT_BATCHES: &str = "lld-plain";

type Media = Mutex<BTreeMap<PathBuf, (Arc<dyn BlockDevice>, Options)>>;
static MEDIA: Media = Mutex::new(BTreeMap::new());

/// Opens a disk in memory.
fn open_memory(path: &Path, read_only: bool) -> fstitch_core::Result<Disk> {
    let (device, options) = MEDIA.lock().unwrap().get(path).cloned().ok_or(Errno::NOENT)?;
    Ok(Disk::open(device, &Options { read_only, ..options })?.0)
}

/// What SQLite calls with each new connection: the first one brings the table of its functions.
unsafe extern "C" fn enter(
    _: *mut ffi::sqlite3,
    _: *mut *mut c_char,
    api: *const ffi::sqlite3_api_routines,
) -> c_int {
    let api = api.cast::<Api>();
    let known: [(&CStr, fstitch_lld_sqlite::Opener, bool); 3] = [
        (c"lld", Box::new(open_file), true),
        (c"lld-memory", Box::new(open_memory), true),
        (c"lld-plain", Box::new(open_memory), false),
    ];
    for (name, opener, has_batches) in known {
        // SAFETY: it is SQLite's table.
        unsafe { register(api, name, opener, has_batches) }.unwrap();
    }
    ffi::SQLITE_OK
}

/// Makes the file systems known.
fn get_ready() {
    static READY: Once = Once::new();
    READY.call_once(|| {
        // SAFETY: it is the entry point of an extension.
        assert_eq!(unsafe { ffi::sqlite3_auto_extension(Some(enter)) }, ffi::SQLITE_OK);
        drop(Connection::open_in_memory().unwrap());
        // SAFETY: as above.
        assert_eq!(unsafe { ffi::sqlite3_cancel_auto_extension(Some(enter)) }, 1);
    });
}

/// How disks here are opened: units that write more than a few blocks spill, and checkpoints are often.
pub fn small() -> Options {
    Options { cache_size: 256 << 10, checkpoint_interval: 256 << 10, background: false, ..Options::default() }
}

/// A device with an empty disk, for so many segments of 64 KiB.
pub fn formatted(segments: usize, block_size: u32) -> Arc<MemDevice> {
    // The smallest segment has sixteen blocks.
    let segment_size = (64 << 10).max(16 * block_size);
    let bytes = segments * (64 << 10) + 9 * usize::try_from(block_size.max(4096)).unwrap();
    let made = Arc::new(MemDevice::from_image(512, vec![0; bytes]));
    let format = FormatOptions { block_size, segment_size, ..FormatOptions::default() };
    Disk::format(Arc::clone(&made) as Arc<dyn BlockDevice>, &format).unwrap();
    made
}

/// A disk in memory, under a path of its own.
pub struct Medium {
    pub path: PathBuf,
}

impl Medium {
    /// Puts a device with a disk under a path.
    pub fn new(device: Arc<dyn BlockDevice>, options: Options) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        get_ready();
        let path = PathBuf::from(format!("/memory/{}", NEXT.fetch_add(1, Ordering::SeqCst)));
        MEDIA.lock().unwrap().insert(path.clone(), (device, options));
        Self { path }
    }

    /// One of 16 MiB.
    pub fn usual() -> Self {
        Self::new(formatted(256, 4096), small())
    }

    /// The name of a database.
    pub fn name(&self, volume: &str, vfs: &str) -> String {
        format!("file:{}/{volume}?vfs={vfs}", self.path.display())
    }

    /// Opens a database, which is made if it is not there.
    pub fn open(&self, volume: &str) -> Connection {
        open(&self.name(volume, MEMORY)).unwrap()
    }
}

impl Drop for Medium {
    fn drop(&mut self) {
        MEDIA.lock().unwrap().remove(&self.path);
    }
}

/// Opens what a name says.
pub fn open(name: &str) -> rusqlite::Result<Connection> {
    open_with(name, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE)
}

/// The same, in another way.
pub fn open_with(name: &str, flags: OpenFlags) -> rusqlite::Result<Connection> {
    get_ready();
    let base = Connection::open_with_flags(name, flags | OpenFlags::SQLITE_OPEN_URI)?;
    base.busy_timeout(std::time::Duration::ZERO)?;
    Ok(base)
}

/// The one value of a query.
#[track_caller]
pub fn one<T: rusqlite::types::FromSql>(base: &Connection, query: &str) -> T {
    base.query_row(query, [], |row| row.get(0)).unwrap()
}

/// Expects SQLite to find nothing wrong.
#[track_caller]
pub fn check(base: &Connection) {
    assert_eq!(one::<String>(base, "pragma integrity_check"), "ok");
}

/// SQLite's code of an error.
#[track_caller]
pub fn code<T: std::fmt::Debug>(done: rusqlite::Result<T>) -> c_int {
    match done.unwrap_err() {
        rusqlite::Error::SqliteFailure(error, _) => error.extended_code,
        error => panic!("{error}"),
    }
}
