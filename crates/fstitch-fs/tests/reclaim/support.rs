//! Volumes that a crash has left, their bytes, and what is in them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{
    Caller, FileKind, FileSystem, FindingClass, InodeNo, Le, ManualClock, MemDevice, Timestamp, XattrSetMode,
};
use fstitch_core::{RepairMode, RepairOptions, RepairReport};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::{check_ext2, repair_ext2};
use fstitch_fs::ext2::layout::superblock::STATE_VALID;
use fstitch_fs::ext2::mkfs::{MkfsOptions, mkfs};
use fstitch_fs::uhfs::{Reclaimed, Uhfs, UhfsOptions};
use fstitch_patch::{Cache, CacheOptions};

/// Bytes of a block.
pub const BLOCK: usize = 1024;
/// Bytes of an inode.
const INODE: usize = 256;
/// When the volume was made and filled.
const MADE: u64 = 1_600_000_000;
/// When it was mounted last, before the crash.
const CRASHED: u64 = MADE + 86_400;
/// When the crash is looked at.
const AFTER: u64 = CRASHED + 86_400;
/// Files in each of the two directories `d` and `e`.
pub const FILES: usize = 100;

pub type Fs = Uhfs<Ext2>;

/// Mounts at a given time.
pub fn mount_at(device: &Arc<MemDevice>, secs: u64) -> Fs {
    let clock = ManualClock::new();
    clock.advance(Duration::from_secs(secs));
    let options = CacheOptions { cache_size: 1 << 20, ..CacheOptions::default() };
    let cache = Cache::new(device.clone(), options, Arc::new(clock));
    Uhfs::new(Ext2::open(cache).unwrap(), UhfsOptions::default())
}

/// Makes a file; its number.
pub fn create(fs: &Fs, dir: InodeNo, name: &str, contents: &[u8]) -> InodeNo {
    let caller = Caller::default();
    let ino = fs.mknod(&caller, dir, name.as_bytes(), 0o100_644, 0).unwrap().attr.ino;
    fs.write(&caller, ino, 0, contents).unwrap();
    fs.forget(ino, 1);
    ino
}

/// Makes a directory; its number.
pub fn mkdir(fs: &Fs, dir: InodeNo, name: &str) -> InodeNo {
    let ino = fs.mkdir(&Caller::default(), dir, name.as_bytes(), 0o755).unwrap().attr.ino;
    fs.forget(ino, 1);
    ino
}

fn text(what: &str, n: usize) -> Vec<u8> {
    format!("{what} {n}\n").repeat(1 + n * 3).into_bytes()
}

/// A volume in which everything is old: two directories of files, two larger files, one with attributes in a block.
pub fn filled() -> Vec<u8> {
    let device = Arc::new(MemDevice::new(512, 8192));
    let made = Timestamp { secs: i64::try_from(MADE).unwrap(), nanos: 0 };
    let mut options = MkfsOptions::new([7; 16], [9; 16], made);
    options.block_size = Some(u32::try_from(BLOCK).unwrap());
    options.inode_size = Some(u32::try_from(INODE).unwrap());
    options.inodes = Some(512);
    options.features.resize_inode = false;
    mkfs(&*device, &options, &mut |_, _| {}).unwrap();
    let device = Arc::new(MemDevice::from_image(1024, device.image()));
    let fs = mount_at(&device, MADE + 10);
    for (dir, name, what) in [("d", "f", "precious"), ("e", "g", "other")] {
        let dir = mkdir(&fs, fs.root(), dir);
        for n in 0..FILES {
            create(&fs, dir, &format!("{name}{n}"), &text(what, n));
        }
    }
    let nested = mkdir(&fs, fs.lookup(fs.root(), b"d").unwrap().attr.ino, "nested");
    create(&fs, nested, "deep", &text("precious", FILES));
    create(&fs, fs.root(), "A", &vec![b'A'; 20_000]);
    create(&fs, fs.root(), "B", &vec![b'B'; 20_000]);
    let bad = create(&fs, fs.root(), "attributes", b"x");
    let caller = Caller::default();
    fs.setxattr(&caller, bad, b"user.large", &[5; 600], XattrSetMode::Set).unwrap();
    let link = fs.symlink(&caller, fs.root(), b"link", b"somewhere").unwrap().attr.ino;
    fs.forget(link, 1);
    fs.unmount().unwrap();
    device.image()
}

/// The image after a power cut: `work` was done in the last mount, and is stable.
pub fn crashed(image: Vec<u8>, work: impl FnOnce(&Fs)) -> Volume {
    let device = Arc::new(MemDevice::from_image(1024, image));
    let fs = mount_at(&device, CRASHED);
    create(&fs, fs.root(), "of-the-last-mount", b"late");
    work(&fs);
    fs.sync().unwrap();
    drop(fs);
    Volume(device.image())
}

/// The bytes of a volume of one group.
#[derive(Clone)]
pub struct Volume(pub Vec<u8>);

impl Volume {
    /// Where an inode is.
    pub fn inode(&self, ino: InodeNo) -> usize {
        let table = usize::try_from(Le::u32(&self.0, 2 * BLOCK + 8)).unwrap();
        table * BLOCK + (usize::try_from(ino.get()).unwrap() - 1) * INODE
    }

    /// The number of what a path names.
    pub fn ino(&self, path: &str) -> InodeNo {
        let fs = mount_at(&Arc::new(MemDevice::from_image(1024, self.0.clone())), AFTER);
        fs.walk(path.as_bytes()).unwrap().attr.ino
    }

    /// Direct block `at` of an inode.
    pub fn block(&self, ino: InodeNo, at: usize) -> usize {
        usize::try_from(Le::u32(&self.0, self.inode(ino) + 0x28 + 4 * at)).unwrap()
    }

    /// A block's bytes.
    pub fn bytes(&mut self, block: usize) -> &mut [u8] {
        &mut self.0[block * BLOCK..(block + 1) * BLOCK]
    }

    /// Puts 32 bits into an inode.
    pub fn put(&mut self, ino: InodeNo, offset: usize, value: u32) {
        let at = self.inode(ino) + offset;
        Le::put_u32(&mut self.0, at, value);
    }

    /// Where the entry of `ino` is, among the direct blocks of directory `dir`.
    pub fn entry(&self, dir: InodeNo, ino: InodeNo) -> usize {
        let wanted = u32::try_from(ino.get()).unwrap();
        for at in 0..12 {
            let start = self.block(dir, at) * BLOCK;
            let mut at = start;
            while start != 0 && at < start + BLOCK {
                if Le::u32(&self.0, at) == wanted && self.0[at + 8] != b'.' {
                    return at;
                }
                at += usize::from(Le::u16(&self.0, at + 4));
            }
        }
        panic!("no entry for {ino:?}")
    }

    /// Clears a name as soft updates do: its inode field.
    pub fn clear_name(&mut self, dir: InodeNo, ino: InodeNo) {
        let at = self.entry(dir, ino);
        Le::put_u32(&mut self.0, at, 0);
    }

    /// Whether it is marked as cleanly unmounted.
    pub fn is_marked_clean(&self) -> bool {
        Le::u16(&self.0, 1024 + 0x3a) & STATE_VALID != 0
    }

    /// How many findings are damage.
    pub fn damages(&self) -> Vec<String> {
        let report = check_ext2(&MemDevice::from_image(1024, self.0.clone())).unwrap();
        let damages = report.findings.iter().filter(|finding| finding.class == FindingClass::Corrupt);
        damages.map(|finding| format!("{}: {}", finding.code, finding.text)).collect()
    }

    /// All findings.
    pub fn findings(&self) -> Vec<String> {
        let report = check_ext2(&MemDevice::from_image(1024, self.0.clone())).unwrap();
        report.findings.iter().map(|finding| format!("{}: {}", finding.code, finding.text)).collect()
    }

    /// Mounts it, lets the reclaimer run, works on it (which takes room that was freed), and unmounts it.
    pub fn mounted(&self) -> (Self, fstitch_core::Result<Reclaimed>) {
        self.mounted_and(|_| true)
    }

    /// The same; what the reclaimer says decides whether there is work.
    pub fn mounted_and(
        &self,
        works: impl FnOnce(&fstitch_core::Result<Reclaimed>) -> bool,
    ) -> (Self, fstitch_core::Result<Reclaimed>) {
        let device = Arc::new(MemDevice::from_image(1024, self.0.clone()));
        let fs = mount_at(&device, AFTER);
        let done = fs.reclaim();
        let caller = Caller::default();
        let files = if works(&done) { 30 } else { 0 };
        for n in 0..files {
            // On a damaged volume this may fail; what counts is what it destroys.
            let made = fs.mknod(&caller, fs.root(), format!("after{n}").as_bytes(), 0o100_644, 0);
            let Ok(entry) = made else { break };
            let _ = fs.write(&caller, entry.attr.ino, 0, &[b'z'; 20_000]);
            fs.forget(entry.attr.ino, 1);
        }
        let _ = fs.unmount();
        drop(fs);
        (Self(device.image()), done)
    }

    /// Whether it can be mounted at all.
    pub fn opens(&self) -> bool {
        let device = Arc::new(MemDevice::from_image(1024, self.0.clone()));
        let cache = Cache::new(device, CacheOptions::default(), Arc::new(ManualClock::new()));
        Ext2::open(cache).is_ok()
    }

    /// Repairs it.
    pub fn repaired(&self, mode: RepairMode) -> (Self, RepairReport) {
        let device = MemDevice::from_image(1024, self.0.clone());
        let now = Timestamp { secs: i64::try_from(AFTER).unwrap(), nanos: 0 };
        let report = repair_ext2(&device, RepairOptions { mode, now }).unwrap();
        (Self(device.image()), report)
    }

    /// The contents of all files that can be read, by path.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let fs = mount_at(&Arc::new(MemDevice::from_image(1024, self.0.clone())), AFTER);
        let mut files = BTreeMap::new();
        collect(&fs, (fs.root(), ""), 0, &mut files);
        files
    }

    /// How many files with precious contents can be read.
    pub fn precious(&self) -> usize {
        let files = self.files();
        let whole = |n: usize| files.values().any(|contents| *contents == text("precious", n));
        (0..=FILES).filter(|&n| whole(n)).count()
    }

    /// The names in lost+found.
    pub fn lost_and_found(&self) -> Vec<String> {
        self.files().into_keys().filter(|path| path.starts_with("/lost+found/")).collect()
    }
}

/// Reads what can be read below a directory.
fn collect(fs: &Fs, (dir, path): (InodeNo, &str), depth: usize, files: &mut BTreeMap<String, Vec<u8>>) {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let _ = fs.readdir(dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        names.len() < 2000
    });
    for name in names.iter().filter(|name| *name != b"." && *name != b"..") {
        let Ok(entry) = fs.lookup(dir, name) else { continue };
        let path = format!("{path}/{}", String::from_utf8_lossy(name));
        match entry.attr.kind {
            FileKind::Directory if depth < 10 => collect(fs, (entry.attr.ino, &path), depth + 1, files),
            FileKind::Regular if entry.attr.size < 1 << 20 => {
                let mut bytes = vec![0; usize::try_from(entry.attr.size).unwrap()];
                if fs.read(entry.attr.ino, 0, &mut bytes).is_ok() {
                    files.insert(path, bytes);
                }
            }
            _ => {}
        }
    }
}
