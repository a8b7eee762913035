//! Ranges that are taken out of files of extents, and holes that are put in.
//!
//! What they prevent: blocks that are lost, there twice or somebody else's when what is behind them moves, a file that has moved in part, and
//! answers that are others than the kernel's.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{
    Caller, Consistency, Errno, FallocateMode, FileSystem, InodeFlags, InodeNo, Result, SetAttr,
};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::uhfs::Uhfs;

use crate::extents::{ExtentMedium, create, make};
use crate::properties::cache_options;
use crate::rig::CALLER;
use crate::unwritten::fill;

/// A file, and what it should hold.
struct File {
    fs: Uhfs<Ext2>,
    ino: InodeNo,
    unit: u64,
    bytes: Vec<u8>,
}

impl File {
    fn new(medium: &ExtentMedium, unit: u64) -> Self {
        let fs = medium.opened();
        let ino = create(&fs, "a");
        Self { fs, ino, unit, bytes: Vec::new() }
    }

    fn write(&mut self, block: u64, bytes: &[u8]) {
        let at = to_usize(block * self.unit);
        assert_eq!(self.fs.write(&CALLER, self.ino, block * self.unit, bytes).unwrap(), bytes.len());
        let end = at + bytes.len();
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[at..end].copy_from_slice(bytes);
    }

    /// Every other block of so many, each with bytes of its own.
    fn scatter(&mut self, blocks: u64) {
        for block in (0..blocks).step_by(2) {
            let byte = u8::try_from(block % 251).unwrap() + 1;
            self.write(block, &vec![byte; to_usize(self.unit)]);
        }
    }

    fn try_shift(&self, block: u64, blocks: u64, mode: FallocateMode) -> Result<()> {
        self.fs.fallocate(&CALLER, self.ino, block * self.unit, blocks * self.unit, mode)
    }

    fn collapse(&mut self, block: u64, blocks: u64) {
        self.try_shift(block, blocks, FallocateMode::CollapseRange).unwrap();
        let at = to_usize(block * self.unit);
        self.bytes.drain(at..at + to_usize(blocks * self.unit));
    }

    fn insert(&mut self, block: u64, blocks: u64) {
        self.try_shift(block, blocks, FallocateMode::InsertRange).unwrap();
        let at = to_usize(block * self.unit);
        self.bytes.splice(at..at, vec![0; to_usize(blocks * self.unit)]);
    }

    fn check(&self) {
        let mut read = vec![0xee; self.bytes.len() + 1];
        let len = self.fs.read(self.ino, 0, &mut read).unwrap();
        assert_eq!(len, self.bytes.len());
        let differs = read.iter().zip(&self.bytes).position(|(a, b)| a != b);
        assert_eq!(differs.map(|at| to_u64(at) / self.unit), None, "the first block that differs");
    }

    /// Mounted anew, and judged by e2fsck before.
    fn again(mut self, medium: &ExtentMedium) -> Self {
        self.fs.unmount().unwrap();
        medium.judge();
        self.fs = medium.opened();
        self.ino = self.fs.walk(b"a").unwrap().attr.ino;
        self.check();
        self
    }
}

#[test]
fn trees_of_hundreds_of_extents_move() {
    for (unit, mode) in
        [(1024, Consistency::Ordered), (1024, Consistency::Full), (4096, Consistency::Metadata)]
    {
        let block_size = u32::try_from(unit).unwrap();
        let Some(medium) = ExtentMedium::new(block_size, cache_options(64 << 20, 15), mode) else { return };
        let mut file = File::new(&medium, unit);
        file.scatter(1400);
        for (block, blocks, inserts) in [
            (0, 1, false),
            (1, 1, false),
            (500, 300, false),
            (400, 100, true),
            (0, 7, true),
            (3, 1, true),
            (901, 90, false),
            (650, 1, true),
            (0, 400, false),
        ] {
            if inserts {
                file.insert(block, blocks)
            } else {
                file.collapse(block, blocks)
            }
            file.check();
            file.write(block, b"and something is written there, by nobody but us");
        }
        let file = file.again(&medium);
        let end = to_u64(file.bytes.len()) / unit;
        let mut file = file;
        file.collapse(2, end - 3);
        file.check();
        assert!(file.fs.getattr(file.ino).unwrap().blocks <= 4 * unit / 512, "all but three blocks are free");
        drop(file.again(&medium));
    }
}

#[test]
fn what_goes_is_free_and_what_is_kept_behind_the_end_moves() {
    let Some(medium) = ExtentMedium::new(1024, cache_options(64 << 20, 15), Consistency::Ordered) else {
        return;
    };
    let mut file = File::new(&medium, 1024);
    file.write(0, &[7; 10 << 10]);
    file.fs.fallocate(&CALLER, file.ino, 0, 30 << 10, FallocateMode::AllocateKeepSize).unwrap();
    let blocks = |file: &File| file.fs.getattr(file.ino).unwrap().blocks;
    assert_eq!(blocks(&file), 60);
    file.collapse(2, 4);
    assert_eq!(blocks(&file), 52);
    file.insert(3, 5);
    assert_eq!(blocks(&file), 52);
    file.check();
    let mut file = file.again(&medium);
    // The blocks that were kept serve.
    file.write(11, &[8; 10 << 10]);
    assert_eq!(blocks(&file), 52);
    file.check();
    drop(file.again(&medium));
}

#[test]
fn what_cannot_be_is_refused_as_by_the_kernel() {
    use FallocateMode::{CollapseRange, InsertRange};
    let Some(medium) = ExtentMedium::new(1024, cache_options(64 << 20, 15), Consistency::Ordered) else {
        return;
    };
    let mut file = File::new(&medium, 1024);
    file.write(0, &[7; 9000]);
    let longest = (1_u64 << 32) * 1024 - 1024;
    for (mode, offset, len, errno) in [
        (CollapseRange, 0, 0, Errno::INVAL),
        (CollapseRange, 100, 1024, Errno::INVAL),
        (CollapseRange, 1024, 100, Errno::INVAL),
        (CollapseRange, 1024, 8192, Errno::INVAL),
        (CollapseRange, 0, 10 << 10, Errno::INVAL),
        (CollapseRange, 1024, !1023, Errno::FBIG),
        (InsertRange, 0, 0, Errno::INVAL),
        (InsertRange, 100, 1024, Errno::INVAL),
        (InsertRange, 1024, 100, Errno::INVAL),
        (InsertRange, 9216, 1024, Errno::INVAL),
        (InsertRange, 1 << 20, 1024, Errno::INVAL),
        (InsertRange, 0, longest - 8192, Errno::FBIG),
    ] {
        let refused = file.fs.fallocate(&CALLER, file.ino, offset, len, mode).unwrap_err();
        assert_eq!(refused.errno(), errno, "{mode:?} {offset} {len}");
    }
    // Up to the end is what truncation is for, also where the end is a block's.
    file.write(8, &[7; 1024]);
    let refused = file.fs.fallocate(&CALLER, file.ino, 8192, 1024, CollapseRange).unwrap_err();
    assert_eq!(refused.errno(), Errno::INVAL);
    for mode in [CollapseRange, InsertRange] {
        let of_dir = file.fs.fallocate(&CALLER, file.fs.root(), 0, 1024, mode).unwrap_err();
        assert_eq!(of_dir.errno(), Errno::ISDIR);
        for flag in [InodeFlags::APPEND, InodeFlags::IMMUTABLE] {
            file.fs.set_flags(&CALLER, file.ino, InodeFlags(flag)).unwrap();
            assert_eq!(file.try_shift(1, 1, mode).unwrap_err().errno(), Errno::PERM);
        }
        file.fs.set_flags(&CALLER, file.ino, InodeFlags(0)).unwrap();
    }
    file.check();
    drop(file.again(&medium));
    // Maps of pointers.
    let image = make(1024, 24 << 20, &["-O", "^extent"]).unwrap();
    let medium = ExtentMedium::of(image, 1024, cache_options(64 << 20, 15), Consistency::Ordered);
    let mut file = File::new(&medium, 1024);
    file.write(0, &[7; 9000]);
    for mode in [CollapseRange, InsertRange] {
        assert_eq!(file.try_shift(1, 1, mode).unwrap_err().errno(), Errno::OPNOTSUPP);
    }
}

#[test]
fn the_rights_that_a_file_lends_go_and_its_times_change() {
    let Some(medium) = ExtentMedium::new(1024, cache_options(64 << 20, 15), Consistency::Full) else {
        return;
    };
    let mut file = File::new(&medium, 1024);
    file.write(0, &[7; 9000]);
    let user = Caller { uid: 5, ..CALLER };
    for mode in [FallocateMode::CollapseRange, FallocateMode::InsertRange] {
        let set = SetAttr { perm: Some(0o6755), ..SetAttr::default() };
        file.fs.setattr(&CALLER, file.ino, &set).unwrap();
        let before = file.fs.getattr(file.ino).unwrap();
        medium.clock().advance(std::time::Duration::from_secs(9));
        file.fs.fallocate(&user, file.ino, 1024, 1024, mode).unwrap();
        let after = file.fs.getattr(file.ino).unwrap();
        assert_eq!(after.perm, 0o755);
        assert!(after.mtime > before.mtime && after.ctime > before.ctime);
    }
}

/// One transaction has all nodes, or nothing is done.
#[test]
fn what_no_transaction_holds_is_refused() {
    let Some(image) = make(1024, 64 << 20, &["-J", "size=1"]) else { return };
    let medium = ExtentMedium::of(image, 1024, cache_options(64 << 20, 15), Consistency::Ordered);
    let mut file = File::new(&medium, 1024);
    file.scatter(2 * 84 * 270);
    for mode in [FallocateMode::CollapseRange, FallocateMode::InsertRange] {
        assert_eq!(file.try_shift(0, 3, mode).unwrap_err().errno(), Errno::NOSPC);
    }
    file.check();
    // Near the end it has less to move.
    file.collapse(2 * 84 * 200, 5);
    file.insert(2 * 84 * 150 + 1, 5);
    file.check();
    drop(file.again(&medium));
}

#[test]
fn on_a_full_volume_ranges_go() {
    let Some(medium) = ExtentMedium::new(1024, cache_options(64 << 20, 15), Consistency::Ordered) else {
        return;
    };
    let mut file = File::new(&medium, 1024);
    for block in [0, 2, 4, 6] {
        file.write(block, &[7; 1024]);
    }
    file.write(6, &[8; 4096]);
    fill(&file.fs);
    // A fifth extent asks for a node.
    for mode in [FallocateMode::CollapseRange, FallocateMode::InsertRange] {
        assert_eq!(file.try_shift(7, 1, mode).unwrap_err().errno(), Errno::NOSPC);
    }
    file.check();
    file.collapse(2, 1);
    file.insert(4, 6);
    file.check();
    drop(file.again(&medium));
}
