//! A device that cannot be read in the middle of an operation.
//!
//! What it prevents: a file that has in memory what no patch will ever say on the medium, fragments that two owners have, a volume that a check
//! takes for damaged after an error that it survived.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fstitch_core::{
    BlockDevice, BlockNo, BlockRead, BlockWrite, Caller, Errno, FileKind, FileSystem, Geometry, InodeNo,
    MemDevice, RenameMode, RepairMode, Result, SetAttr, SystemClock, Timestamp, XattrSetMode,
};
use fstitch_fs::arrange::{self, Arrangement};
use fstitch_fs::ufs::Ufs;
use fstitch_fs::ufs::layout::superblock::Version;
use fstitch_fs::ufs::mkfs::{MkfsOptions, mkfs};
use fstitch_fs::uhfs::{LowLevelFs, Uhfs};
use fstitch_patch::CacheOptions;

use super::host::Tree;
use super::repair::repaired;
use super::{checked, device, opened};

/// No read fails.
const NEVER: u64 = u64::MAX;

/// A device of which one block cannot be read, once.
struct Failing {
    below: Arc<MemDevice>,
    /// Blocks that are read before that.
    left: AtomicU64,
}

impl Failing {
    fn fails(&self) -> bool {
        let left = self.left.load(Ordering::SeqCst);
        if left != NEVER {
            self.left.store(left.wrapping_sub(1), Ordering::SeqCst);
        }
        left == 0
    }
}

impl BlockDevice for Failing {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        for read in reads.iter_mut() {
            if self.fails() {
                return Err(Errno::IO.into());
            }
            self.below.read(std::slice::from_mut(read))?;
        }
        Ok(())
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        self.below.write(writes)
    }

    fn flush(&self) -> Result<()> {
        self.below.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.below.discard(start, count)
    }
}

fn mount(device: &Arc<Failing>) -> Uhfs<Ufs> {
    let cache = CacheOptions { cache_size: CacheOptions::MIN_CACHE_SIZE, ..CacheOptions::default() };
    let arrangement = Arrangement { cache, ..Arrangement::default() };
    let device: Arc<dyn BlockDevice> = Arc::<Failing>::clone(device);
    arrange::open::<Ufs>(device, &arrangement, Arc::new(SystemClock::new())).unwrap().0
}

/// What is done to the volume of [`filled`].
type Operation = fn(&Uhfs<Ufs>) -> Result<()>;

fn find(fs: &Uhfs<Ufs>, name: &[u8]) -> Result<InodeNo> {
    Ok(fs.lookup(fs.root(), name)?.attr.ino)
}

fn write(fs: &Uhfs<Ufs>, name: &[u8], at: u64, byte: u8, len: usize) -> Result<()> {
    let ino = find(fs, name)?;
    let bytes = vec![byte; len];
    let mut done = 0;
    while done < len {
        done += fs.write(&Caller::default(), ino, at + u64::try_from(done).unwrap(), &bytes[done..])?;
    }
    Ok(())
}

fn resize(fs: &Uhfs<Ufs>, name: &[u8], size: u64) -> Result<()> {
    let attr = SetAttr { size: Some(size), ..SetAttr::default() };
    fs.setattr(&Caller::default(), find(fs, name)?, &attr).map(drop)
}

/// Bytes of a block, of a file that ends behind its direct ones and of one that needs two levels of pointers.
const BLOCK: u64 = 4096;
const SINGLE: u64 = 14 * BLOCK;
const DOUBLE: u64 = (12 + 512 + 600) * BLOCK;

const OPERATIONS: &[(&str, Operation)] = &[
    ("a file grows in its place", |fs| write(fs, b"last", 700, 1, 900)),
    ("a file moves and grows", |fs| write(fs, b"first", 700, 2, 900)),
    ("a file moves and gets blocks", |fs| write(fs, b"first", 700, 3, 30_000)),
    ("a block behind the end", |fs| write(fs, b"first", 5 * BLOCK, 4, 100)),
    ("a hole is filled", |fs| write(fs, b"holes", 2 * BLOCK, 5, 5000)),
    ("a block of pointers is made", |fs| write(fs, b"first", 13 * BLOCK, 6, 5000)),
    ("a pointer in one", |fs| write(fs, b"single", 13 * BLOCK, 7, 30_000)),
    ("a hole below pointers", |fs| write(fs, b"double", 20 * BLOCK, 8, 9000)),
    ("two levels", |fs| write(fs, b"holes", DOUBLE, 9, 5000)),
    ("a pointer below two levels", |fs| write(fs, b"double", DOUBLE + 3 * BLOCK, 10, 5000)),
    ("a new block of pointers below another", |fs| write(fs, b"double", (12 + 512) * BLOCK, 11, 9000)),
    ("a file is made longer", |fs| resize(fs, b"first", 100_000)),
    ("a file is made shorter", |fs| resize(fs, b"double", SINGLE)),
    ("and ends in its first block", |fs| resize(fs, b"single", 100)),
    ("a file ends in a hole", |fs| resize(fs, b"holes", 2 * BLOCK + 10)),
    ("a directory grows", |fs| {
        let (dir, caller) = (find(fs, b"dir")?, Caller::default());
        for no in 0..40 {
            let name = format!("{no}-{}", "n".repeat(200));
            match fs.mknod(&caller, dir, name.as_bytes(), FileKind::Regular.mode_bits() | 0o644, 0) {
                Err(error) if error.errno() == Errno::EXIST => {}
                other => drop(other?),
            }
        }
        Ok(())
    }),
    ("a directory is made", |fs| done(fs.mkdir(&Caller::default(), fs.root(), b"new", 0o755).map(drop))),
    ("a long link is made", |fs| {
        done(fs.symlink(&Caller::default(), fs.root(), b"link", &[b't'; 900]).map(drop))
    }),
    ("a name is changed", |fs| {
        let done = fs.rename(
            &Caller::default(),
            (fs.root(), b"first"),
            (find(fs, b"dir")?, b"again"),
            RenameMode::Replace,
        );
        if find(fs, b"first").is_ok() { done } else { Ok(()) }
    }),
    ("a file ends", |fs| match fs.unlink(&Caller::default(), fs.root(), b"double") {
        Err(error) if error.errno() == Errno::NOENT => Ok(()),
        other => other,
    }),
    ("an attribute is set", |fs| {
        fs.setxattr(&Caller::default(), find(fs, b"first")?, b"user.a", &[7; 3000], XattrSetMode::Set)
    }),
    ("a hole is punched", |fs| {
        let ino = find(fs, b"double")?;
        let mode = fstitch_core::FallocateMode::PunchHole;
        fs.fallocate(&Caller::default(), ino, 20 * BLOCK, 600 * BLOCK, mode)
    }),
];

/// Made already is as good as made.
fn done(made: Result<()>) -> Result<()> {
    match made {
        Err(error) if error.errno() == Errno::EXIST => Ok(()),
        other => other,
    }
}

/// A new volume of 8 MiB.
fn made(version: Version) -> Arc<MemDevice> {
    let mut options = MkfsOptions::new(version, [7, 9], Timestamp { secs: 1_700_000_000, nanos: 0 });
    (options.block_size, options.fragment_size) = (Some(4096), Some(512));
    let device = MemDevice::new(512, 16_384);
    mkfs(&device, &options, &mut |_, _| {}).unwrap();
    Arc::new(device)
}

/// A volume with a file for each operation.
fn filled(version: Version) -> Arc<MemDevice> {
    let medium = made(version);
    let fs = mount(&Arc::new(Failing { below: Arc::clone(&medium), left: AtomicU64::new(NEVER) }));
    let caller = Caller::default();
    for name in ["first", "last", "holes", "single", "double"] {
        fs.mknod(&caller, fs.root(), name.as_bytes(), FileKind::Regular.mode_bits() | 0o644, 0).unwrap();
        write(&fs, name.as_bytes(), 0, b'a', 700).unwrap();
    }
    fs.mkdir(&caller, fs.root(), b"dir", 0o755).unwrap();
    write(&fs, b"holes", 4 * BLOCK, b'h', 700).unwrap();
    write(&fs, b"single", 12 * BLOCK, b's', 5000).unwrap();
    write(&fs, b"double", 13 * BLOCK, b'd', 5000).unwrap();
    write(&fs, b"double", 500 * BLOCK, b'd', 5000).unwrap();
    write(&fs, b"double", DOUBLE, b'd', 5000).unwrap();
    fs.unmount().unwrap();
    medium
}

#[test]
fn a_read_that_fails_anywhere_leaves_nothing_half_done() {
    let mut failed = 0;
    for version in [Version::One, Version::Two] {
        let fresh = filled(version).image();
        assert!(checked(&fresh).unwrap().is_clean());
        for (name, operation) in
            OPERATIONS.iter().filter(|(name, _)| version == Version::Two || !name.contains("attribute"))
        {
            let expected = {
                let (medium, outcome) = carried_out(&fresh, NEVER, *operation);
                assert!(outcome.is_none(), "{name}: {outcome:?}");
                timeless(&medium)
            };
            for nth in 0.. {
                let (image, outcome) = carried_out(&fresh, nth, *operation);
                let what = format!("{}, {name}, read {nth}", version.name());
                let (mended, report) = repaired(&image, RepairMode::Preen);
                assert_eq!(report.found.corrupt, 0, "{what}: {:#?}", report.found.findings);
                assert!(report.left.is_clean(), "{what}: {:#?}", report.left.findings);
                if outcome.is_some() {
                    let asks = report.found.findings.iter().any(|found| found.code == "superblock-not-clean");
                    assert!(asks, "{what}: a check is due after what could not be read");
                }
                let tree = timeless(&mended);
                let differences = tree.differences(&expected);
                assert!(differences.is_empty(), "{what}: {differences:?}");
                match outcome {
                    Some(true) => failed += 1,
                    Some(false) => {}
                    // No read was left to fail.
                    None => break,
                }
            }
        }
    }
    assert!(failed > 200, "{failed} operations failed");
}

fn timeless(image: &[u8]) -> Tree {
    Tree::of(&opened(image).unwrap()).unwrap().without_times()
}

/// Carries an operation out while the `nth` read fails, and again if it failed. Returns what is on the medium after an unmount, and whether the
/// operation failed; nothing if no read did.
fn carried_out(fresh: &[u8], nth: u64, operation: Operation) -> (Vec<u8>, Option<bool>) {
    let medium = device(fresh).unwrap();
    let failing = Arc::new(Failing { below: Arc::clone(&medium), left: AtomicU64::new(NEVER) });
    let fs = mount(&failing);
    failing.left.store(nth, Ordering::SeqCst);
    let first = operation(&fs);
    let has_struck = nth != NEVER && failing.left.swap(NEVER, Ordering::SeqCst) == NEVER;
    if let Err(error) = &first {
        assert!(has_struck && error.errno() == Errno::IO, "{error}");
        operation(&fs).unwrap_or_else(|error| panic!("again, after read {nth} failed: {error}"));
    }
    match fs.unmount() {
        // What went wrong with something that no operation waits for.
        Err(error) if has_struck && error.errno() == Errno::IO => {}
        other => other.unwrap(),
    }
    (medium.image(), has_struck.then_some(first.is_err()))
}

/// What an attachment needs was read when its blocks were taken, and others may have needed the memory since.
#[test]
fn an_attachment_that_cannot_read_gives_back_what_was_taken() {
    for version in [Version::One, Version::Two] {
        let medium = filled(version);
        let failing = Arc::new(Failing { below: Arc::clone(&medium), left: AtomicU64::new(NEVER) });
        let (fs, caller) = (mount(&failing), Caller::default());
        let long = fs.mknod(&caller, fs.root(), b"long", FileKind::Regular.mode_bits() | 0o644, 0).unwrap();
        write(&fs, b"long", 0, b'l', 4 << 20).unwrap();
        fs.sync().unwrap();
        let (low, index) = (fs.format(), 20 * BLOCK / 512);
        let mut inode = low.load(find(&fs, b"double").unwrap()).unwrap();
        let free = fs.statfs().unwrap().blocks_free;
        let allocation = low.allocate(&caller, &mut inode, index, 8).unwrap();
        assert_eq!(free - fs.statfs().unwrap().blocks_free, 8);
        // Everything else that the cache has room for.
        let mut bytes = vec![0; 4 << 20];
        assert_eq!(fs.read(long.attr.ino, 0, &mut bytes).unwrap(), bytes.len());
        failing.left.store(0, Ordering::SeqCst);
        let attached = low.attach(&mut inode, allocation, &[]);
        assert_eq!(attached.expect_err("a block of pointers is read").errno(), Errno::IO);
        assert_eq!(failing.left.load(Ordering::SeqCst), NEVER);
        assert_eq!(fs.statfs().unwrap().blocks_free, free, "{}", version.name());
        assert!(low.map(&inode, index, 8).unwrap().start.is_none());
        drop(inode);
        write(&fs, b"double", 20 * BLOCK, 8, 9000).unwrap();
        fs.unmount().unwrap();
        let (_, report) = repaired(&medium.image(), RepairMode::Preen);
        let codes: Vec<_> = report.found.findings.iter().map(|found| found.code).collect();
        assert_eq!(
            codes,
            ["superblock-not-clean"],
            "{}: a check is due, and nothing is wrong",
            version.name()
        );
    }
}
