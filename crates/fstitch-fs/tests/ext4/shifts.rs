//! Ranges that are taken out of files and holes that are put in, by us and by the kernel's driver: the same answers, the same bytes, and each
//! reads what the other one has left.

use fstitch_core::{Consistency, Errno, FallocateMode, FileSystem, InodeNo, Result, Seed, SetAttr};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::uhfs::Uhfs;

use super::support::{Scratch, have};
use super::tree::CALLER;
use super::{device, e2fsck_is_content, kernel, made, mounted};

/// What is done with the file.
#[derive(Clone, Debug)]
pub enum Act {
    Write {
        offset: u64,
        bytes: Vec<u8>,
    },
    Truncate(u64),
    /// The operation, the option of fallocate(1) for it, and the range.
    Fallocate(FallocateMode, &'static [&'static str], u64, u64),
}

/// What came of an act, and the file's length then.
pub type Answer = (Option<Errno>, u64);

/// Operations of fallocate(2), by the words of fallocate(1).
const MODES: [(FallocateMode, &[&str]); 8] = [
    (FallocateMode::CollapseRange, &["-c"]),
    (FallocateMode::CollapseRange, &["-c"]),
    (FallocateMode::CollapseRange, &["-c"]),
    (FallocateMode::InsertRange, &["-i"]),
    (FallocateMode::InsertRange, &["-i"]),
    (FallocateMode::InsertRange, &["-i"]),
    (FallocateMode::PunchHole, &["-p"]),
    (FallocateMode::ZeroRangeKeepSize, &["-z", "-n"]),
];

/// So many acts of a seed, on blocks of `unit` bytes. The file has many extents from the start.
fn acts(seed: u64, unit: u64, count: usize) -> Vec<Act> {
    let mut seed = Seed::new(seed);
    let mut bytes =
        |len: u64| super::tree::bytes(&mut Seed::new(seed.below(u64::MAX)), usize::try_from(len).unwrap());
    let mut all: Vec<Act> =
        (0..200).rev().map(|at| Act::Write { offset: 2 * at * unit, bytes: bytes(unit) }).collect();
    let mut dice = Seed::new(77);
    for _ in 0..count {
        // Mostly whole blocks within the file.
        let crooked = if dice.chance(1, 12) { dice.below(unit) } else { 0 };
        let (offset, len) = (dice.below(400) * unit + crooked, (1 + dice.below(30)) * unit);
        all.push(match dice.below(12) {
            0 | 1 => Act::Write { offset, bytes: bytes(1 + len / 3) },
            2 if dice.chance(1, 4) => Act::Truncate(offset + unit * 100),
            n => {
                let (mode, words) = MODES[usize::try_from(n).unwrap() % MODES.len()];
                Act::Fallocate(mode, words, offset, len)
            }
        });
    }
    all
}

fn ours(fs: &Uhfs<Ext2>, ino: InodeNo, act: &Act) -> Result<()> {
    match act {
        Act::Write { offset, bytes } => fs.write(&CALLER, ino, *offset, bytes).map(drop),
        Act::Truncate(size) => {
            fs.setattr(&CALLER, ino, &SetAttr { size: Some(*size), ..SetAttr::default() }).map(drop)
        }
        Act::Fallocate(mode, _, offset, len) => fs.fallocate(&CALLER, ino, *offset, *len, *mode),
    }
}

fn contents(fs: &Uhfs<Ext2>, ino: InodeNo) -> Vec<u8> {
    let mut read = vec![0xee; usize::try_from(fs.getattr(ino).unwrap().size).unwrap()];
    assert_eq!(fs.read(ino, 0, &mut read).unwrap(), read.len());
    read
}

#[test]
fn the_kernel_moves_what_we_move() {
    if !have("mke2fs") || !have("e2fsck") || !have("fallocate") {
        return;
    }
    let scratch = Scratch::new("ext4-shifts");
    for (seed, unit, mechanism) in [
        (1, 1024, Consistency::Ordered),
        (2, 4096, Consistency::Full),
        (3, 2048, Consistency::Metadata),
        (4, 1024, Consistency::Full),
    ] {
        let image = made(&scratch, &["-b", &unit.to_string()]);
        let acts = acts(seed, unit, 150);
        let ours_on = device(image.clone());
        let fs = mounted(&ours_on, mechanism);
        let entry = fs.mknod(&CALLER, fs.root(), b"file", 0o100_644, 0).unwrap();
        let mut answers: Vec<Answer> = Vec::new();
        for act in &acts {
            let failed = ours(&fs, entry.attr.ino, act).err().map(|error| error.errno());
            answers.push((failed, fs.getattr(entry.attr.ino).unwrap().size));
        }
        let done = |mode| {
            let is = |act: &Act| matches!(act, Act::Fallocate(is, ..) if *is == mode);
            acts.iter().zip(&answers).filter(|(act, answer)| is(act) && answer.0.is_none()).count()
        };
        let counts = [done(FallocateMode::CollapseRange), done(FallocateMode::InsertRange)];
        assert!(counts.iter().all(|&count| count > 10), "{counts:?}");
        let bytes = contents(&fs, entry.attr.ino);
        fs.forget(entry.attr.ino, 1);
        fs.unmount().unwrap();
        e2fsck_is_content(&scratch, "ours", &ours_on.image());
        let Some((theirs, their_answers)) = kernel::after_acts(&scratch, &image, &acts) else { return };
        for ((act, ours), theirs) in acts.iter().zip(&answers).zip(&their_answers) {
            assert_eq!(ours, theirs, "{act:?}");
        }
        // The kernel's file as we read it, and ours as the kernel does.
        e2fsck_is_content(&scratch, "the kernel's", &theirs);
        let theirs_on = device(theirs);
        let fs = mounted(&theirs_on, mechanism);
        let ino = fs.walk(b"file").unwrap().attr.ino;
        assert!(contents(&fs, ino) == bytes, "seed {seed}: the kernel's file has other bytes");
        // And we go on where it has ended.
        fs.fallocate(&CALLER, ino, unit, unit, FallocateMode::InsertRange).unwrap();
        fs.fallocate(&CALLER, ino, unit, unit, FallocateMode::CollapseRange).unwrap();
        assert!(contents(&fs, ino) == bytes);
        fs.unmount().unwrap();
        e2fsck_is_content(&scratch, "the kernel's and ours", &theirs_on.image());
        let tree = kernel::tree(&scratch, &ours_on.image()).unwrap();
        assert!(tree.0[&b"/file"[..]].contents == bytes, "seed {seed}: the kernel reads other bytes");
    }
}
