//! Contents: random reads and writes against bytes in memory, holes, very large offsets, attributes, times.
//!
//! What it prevents: a byte that was never written, bytes of the past behind an end, a hole that takes room.

use crate::support::{CALLER, Medium, check, create};
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{
    Caller, Errno, FallocateMode, FileSystem, InodeFlags, InodeNo, Result, Seed, SeekFrom, SetAttr,
    XattrSetMode,
};
use fstitch_minixlld::{MinixLld, Options};
use fstitch_posix::time::AtimePolicy;

fn errno<T>(result: Result<T>) -> Option<Errno> {
    result.err().map(|error| error.errno())
}

fn truncate(fs: &MinixLld, ino: InodeNo, size: u64) -> Result<()> {
    fs.setattr(&CALLER, ino, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
}

fn read(fs: &MinixLld, ino: InodeNo, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xaa; len];
    let n = fs.read(ino, offset, &mut bytes).unwrap();
    bytes.truncate(n);
    bytes
}

/// A file and what it holds.
struct Fsx {
    fs: MinixLld,
    ino: InodeNo,
    bytes: Vec<u8>,
    seed: Seed,
}

const LONGEST: u64 = 200_000;

impl Fsx {
    fn range(&mut self) -> (u64, u64) {
        let offset = self.seed.below(LONGEST);
        (offset, 1 + self.seed.below((LONGEST - offset).min(40_000)))
    }

    fn grow(&mut self, end: u64) {
        let end = to_usize(end);
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
    }

    fn zero(&mut self, offset: u64, len: u64) {
        let end = self.bytes.len().min(to_usize(offset + len));
        if to_usize(offset) < end {
            self.bytes[to_usize(offset)..end].fill(0);
        }
    }

    fn step(&mut self, n: u64) {
        let (offset, len) = self.range();
        let (fs, ino) = (&self.fs, self.ino);
        match self.seed.below(10) {
            0..4 => {
                let data: Vec<u8> = (0..len).map(|at| (at * 7 + n * 13 + 1).to_le_bytes()[0]).collect();
                assert_eq!(fs.write(&CALLER, ino, offset, &data).unwrap(), data.len());
                self.grow(offset + len);
                self.bytes[to_usize(offset)..to_usize(offset + len)].copy_from_slice(&data);
            }
            4 => {
                truncate(fs, ino, offset).unwrap();
                self.bytes.resize(to_usize(offset), 0);
            }
            5 => {
                fs.fallocate(&CALLER, ino, offset, len, FallocateMode::PunchHole).unwrap();
                self.zero(offset, len);
            }
            6 => {
                fs.fallocate(&CALLER, ino, offset, len, FallocateMode::ZeroRange).unwrap();
                self.grow(offset + len);
                self.zero(offset, len);
            }
            7 => {
                fs.fallocate(&CALLER, ino, offset, len, FallocateMode::Allocate).unwrap();
                self.grow(offset + len);
            }
            _ => {
                let end = self.bytes.len().min(to_usize(offset + len));
                let expected = self.bytes.get(to_usize(offset)..end).unwrap_or_default();
                assert_eq!(read(fs, ino, offset, to_usize(len)), expected);
            }
        }
        assert_eq!(self.fs.getattr(self.ino).unwrap().size, to_u64(self.bytes.len()));
    }
}

#[test]
fn random_operations_leave_what_bytes_in_memory_are() {
    for (number, block_size) in [(1, 512), (2, 1024), (3, 4096), (4, 65_536)] {
        let medium = Medium::new(block_size, 512 << 20);
        let fs = medium.mount();
        let ino = create(&fs, fs.root(), b"f");
        let mut fsx = Fsx { fs, ino, bytes: Vec::new(), seed: Seed::new(number) };
        for n in 0..400 {
            fsx.step(n);
            if n % 100 == 99 {
                check(&fsx.fs);
                fsx.fs.unmount().unwrap();
                fsx.fs = medium.mount();
                assert_eq!(read(&fsx.fs, ino, 0, 1 << 20), fsx.bytes, "blocks of {block_size}, after {n}");
            }
        }
    }
}

#[test]
fn writes_above_a_mebibyte_are_several_units_and_one_write() {
    let fs = Medium::new(4096, 64 << 20).mount();
    let ino = create(&fs, fs.root(), b"f");
    let data: Vec<u8> = (0..5_000_000_u32).map(|n| (n / 3).to_le_bytes()[0]).collect();
    assert_eq!(fs.write(&CALLER, ino, 1_234_567, &data).unwrap(), data.len());
    assert!(read(&fs, ino, 1_234_567, data.len()) == data);
    assert_eq!(read(&fs, ino, 0, 4), [0; 4]);
    truncate(&fs, ino, 0).unwrap();
    assert_eq!(fs.getattr(ino).unwrap().blocks, 0);
    check(&fs);
}

#[test]
fn offsets_reach_to_the_end_of_what_programs_can_say() {
    let medium = Medium::new(4096, 64 << 20);
    let fs = medium.mount();
    let ino = create(&fs, fs.root(), b"f");
    let last = u64::try_from(i64::MAX).unwrap();
    assert_eq!(fs.write(&CALLER, ino, last - 5, b"abcdefgh").unwrap(), 5);
    assert_eq!(fs.getattr(ino).unwrap().size, last);
    assert_eq!(errno(fs.write(&CALLER, ino, last, b"x")), Some(Errno::FBIG));
    assert_eq!(errno(truncate(&fs, ino, last + 1)), Some(Errno::FBIG));
    assert_eq!(read(&fs, ino, last - 8, 100), b"\0\0\0abcde");
    assert_eq!(fs.seek(ino, 0, SeekFrom::Data).unwrap(), last / 4096 * 4096);
    assert_eq!(fs.seek(ino, 0, SeekFrom::Hole).unwrap(), 0);
    assert_eq!(fs.seek(ino, last - 1, SeekFrom::Hole).unwrap(), last);
    assert_eq!(fs.getattr(ino).unwrap().blocks, 8);
    fs.fallocate(&CALLER, ino, 1, last - 1, FallocateMode::PunchHole).unwrap();
    assert_eq!(read(&fs, ino, last - 8, 100), [0; 8]);
    truncate(&fs, ino, 10).unwrap();
    assert_eq!(errno(fs.seek(ino, 0, SeekFrom::Data)), Some(Errno::NXIO));
    check(&fs);
    fs.unmount().unwrap();
    assert_eq!(medium.mount().getattr(ino).unwrap().size, 10);
}

#[test]
fn large_ranges_take_several_units() {
    let fs = Medium::new(512, 64 << 20).mount();
    let ino = create(&fs, fs.root(), b"f");
    let len = 70_000 * 512;
    fs.fallocate(&CALLER, ino, 100, len, FallocateMode::Allocate).unwrap();
    assert_eq!(fs.getattr(ino).unwrap().blocks, 70_001);
    fs.fallocate(&CALLER, ino, 512, len - 5 * 512, FallocateMode::PunchHole).unwrap();
    assert_eq!(fs.getattr(ino).unwrap().blocks, 6);
    fs.fallocate(&CALLER, ino, 0, len, FallocateMode::ZeroRangeKeepSize).unwrap();
    truncate(&fs, ino, 700).unwrap();
    assert_eq!((fs.getattr(ino).unwrap().blocks, fs.getattr(ino).unwrap().size), (2, 700));
    check(&fs);
}

#[test]
fn attributes_are_small_or_large() {
    for block_size in [512, 4096] {
        let medium = Medium::new(block_size, 64 << 20);
        let fs = medium.mount();
        let ino = create(&fs, fs.root(), b"f");
        let set = |name: &[u8], len| fs.setxattr(&CALLER, ino, name, &vec![7; len], XattrSetMode::Set);
        set(b"user.small", 10).unwrap();
        set(b"user.large", 65_536).unwrap();
        set(b"security.other", 3000).unwrap();
        assert_eq!(fs.getxattr(ino, b"user.large").unwrap(), [7; 65_536]);
        check(&fs);
        set(b"user.large", 100).unwrap();
        fs.removexattr(&CALLER, ino, b"security.other").unwrap();
        check(&fs);
        assert_eq!(errno(set(b"user.huge", 300_000)), Some(Errno::NOSPC));
        assert_eq!(errno(fs.getxattr(ino, b"user.huge")), Some(Errno::NODATA));
        assert_eq!(errno(set(b"other.name", 1)), Some(Errno::OPNOTSUPP));
        fs.unmount().unwrap();
        let fs = medium.mount();
        assert_eq!(fs.listxattr(ino).unwrap(), [b"user.large".to_vec(), b"user.small".to_vec()]);
        assert_eq!(fs.getxattr(ino, b"user.large").unwrap(), [7; 100]);
        assert_eq!(fs.getattr(ino).unwrap().blocks, 0);
    }
}

#[test]
fn reading_changes_the_access_time_as_the_policy_says() {
    let medium = Medium::new(1024, 16 << 20);
    let options = Options { atime: AtimePolicy::RelAtime, ..crate::support::options() };
    let fs = medium.mount_with(options).unwrap();
    let ino = create(&fs, fs.root(), b"f");
    let before = fs.getattr(ino).unwrap().atime;
    medium.clock.advance(std::time::Duration::from_secs(5));
    read(&fs, ino, 0, 10);
    let after = fs.getattr(ino).unwrap().atime;
    assert!(after > before);
    medium.clock.advance(std::time::Duration::from_secs(5));
    read(&fs, ino, 0, 10);
    assert_eq!(fs.getattr(ino).unwrap().atime, after);
}

#[test]
fn append_only_and_immutable_files_refuse() {
    let fs = Medium::new(1024, 16 << 20).mount();
    let ino = create(&fs, fs.root(), b"f");
    fs.write(&CALLER, ino, 0, b"abc").unwrap();
    fs.set_flags(&CALLER, ino, InodeFlags(InodeFlags::APPEND)).unwrap();
    assert_eq!(errno(fs.write(&CALLER, ino, 1, b"x")), Some(Errno::PERM));
    fs.write(&CALLER, ino, 3, b"def").unwrap();
    assert_eq!(errno(fs.write_back(ino, 0, b"xbc", true)), Some(Errno::PERM));
    fs.write_back(ino, 0, b"abcdefgh", true).unwrap();
    assert_eq!(errno(fs.unlink(&CALLER, fs.root(), b"f")), Some(Errno::PERM));
    let user = Caller { uid: 5, ..CALLER };
    assert_eq!(errno(fs.set_flags(&user, ino, InodeFlags(0))), Some(Errno::PERM));
    fs.set_flags(&CALLER, ino, InodeFlags(InodeFlags::SYNC)).unwrap();
    fs.write(&CALLER, ino, 0, b"x").unwrap();
    assert_eq!(fs.flags(ino).unwrap(), InodeFlags(InodeFlags::SYNC));
}
