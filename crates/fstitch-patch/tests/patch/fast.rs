//! Fast commits, the kernel's and our own making, whole, torn and damaged.
//!
//! What it prevents: a change that is lost or read otherwise than the reference reads it; one that counts although its commit was torn,
//! or is of another lap; a log that is emptied with fast commits behind it; bytes that make the reader panic or read for ever.

use std::fmt::Write;

use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockWrite, Error, Le, MemDevice, Seed};
use fstitch_patch::journal::checksum::crc32c;
use fstitch_patch::journal::fast::{Change, Entry, FastCommits};
use fstitch_patch::journal::format::{
    INCOMPAT_FAST_COMMIT, INCOMPAT_REVOKE, SUPERBLOCK_SIZE, Sequence, Superblock,
};
use fstitch_patch::journal::{Area, Home, Log, bring_home, replay};

const BLOCK: usize = 1024;
/// Blocks of the journal; the last 256 are for fast commits, and the first of these is not used.
const JOURNAL: u32 = 300;
const FAST: usize = 45;
/// Where copies and files may be.
const HOME: Home = Home { block_count: 32_768, shares_device: false };
/// The transaction that was running.
const RUNNING: Sequence = Sequence(3);

/// A journal that starts with transaction 2, with these fast commits.
fn journal(blocks: &[Vec<u8>]) -> MemDevice {
    let mut superblock = Superblock::new(1024, JOURNAL, 1, [5; 16]);
    superblock.features.incompat = INCOMPAT_REVOKE | INCOMPAT_FAST_COMMIT;
    (superblock.start, superblock.sequence) = (1, Sequence(2));
    let mut image = vec![0; usize::try_from(JOURNAL).unwrap() * BLOCK];
    superblock.encode_into(&mut image[..SUPERBLOCK_SIZE]);
    for (at, block) in blocks.iter().enumerate() {
        image[(FAST + at) * BLOCK..][..block.len()].copy_from_slice(block);
    }
    MemDevice::from_image(1024, image)
}

fn found(blocks: &[Vec<u8>], running: Sequence) -> Result<FastCommits, Error> {
    let device = journal(blocks);
    let area = Area::of_device(u64::from(JOURNAL), BlockNo(0));
    Log::open(&device, &area, HOME).unwrap().fast_commits(running)
}

/// What the kernel has written.
fn kernel() -> Vec<Vec<u8>> {
    let lines = include_str!("fast-commits.hex").lines().filter(|line| !line.starts_with('#'));
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    lines.map(|line| line.as_bytes().chunks(2).map(byte).collect()).collect()
}

/// A change as the reference shows it.
fn shown(change: Change<'_>) -> String {
    let entry = |what: &str, Entry { parent, inode, name }: Entry<'_>| {
        format!("tag {what}, parent {parent}, ino {inode}, name \"{}\"", String::from_utf8_lossy(name))
    };
    match change {
        Change::AddRange { inode, extent } => {
            let (first, count) = (extent.logical, extent.count);
            format!("tag ADD_RANGE, inode {inode}, lblk {first}, pblk {}, len {count}", extent.physical)
        }
        Change::DropRange { inode, first, count } => {
            format!("tag DEL_RANGE, inode {inode}, lblk {}, len {count}", first.cast_signed())
        }
        Change::Create(name) => entry("CREAT_DENTRY", name),
        Change::Link(name) => entry("ADD_ENTRY", name),
        Change::Unlink(name) => entry("DEL_ENTRY", name),
        Change::Inode { inode, .. } => format!("tag INODE, inode {inode}"),
    }
}

#[test]
fn what_the_kernel_wrote_reads_as_the_reference_reads_it() {
    let fast = found(&kernel(), RUNNING).unwrap();
    let ours: Vec<String> = fast.changes().map(shown).collect();
    let is_change =
        |line: &&str| !["#", "tag HEAD", "tag TAIL", "tag PAD"].iter().any(|w| line.starts_with(w));
    // It shows a name together with the first byte of the tag behind it.
    let without = |line: &str| line.chars().filter(|c| !c.is_control()).collect();
    let theirs: Vec<String> =
        include_str!("fast-commits.txt").lines().filter(is_change).map(without).collect();
    assert_eq!(ours, theirs);
    assert_eq!((fast.commits(), fast.sequence()), (7, RUNNING));
    // What the reference does not show: the blocks that were allocated in advance, and what inodes say.
    let unwritten =
        |change: &Change<'_>| matches!(change, Change::AddRange { extent, .. } if extent.is_unwritten);
    assert_eq!(fast.changes().filter(unwritten).map(shown).collect::<Vec<_>>(), [theirs[4].clone()]);
    let sizes: Vec<(u32, u32)> = fast
        .changes()
        .filter_map(|change| match change {
            Change::Inode { inode, raw } => {
                assert_eq!((raw.len(), Le::u16(raw, 0) >> 12), (160, 8), "regular files");
                Some((inode, Le::u32(raw, 4)))
            }
            _ => None,
        })
        .collect();
    assert_eq!(sizes.last(), Some(&(14, 20_000)));
    assert_eq!(sizes.iter().find(|(inode, _)| *inode == 12), Some(&(12, 2700)));
}

#[test]
fn commits_of_another_transaction_do_not_count() {
    for other in [0, 1, 2, 4, 5, u32::MAX] {
        assert!(found(&kernel(), Sequence(other)).unwrap().is_empty(), "{other}");
    }
    assert!(found(&[], RUNNING).unwrap().is_empty());
    assert!(found(&vec![vec![0xff; BLOCK]; 255], RUNNING).unwrap().is_empty());
}

#[test]
fn what_was_torn_ends_the_commits_that_count() {
    let whole = kernel();
    let all = found(&whole, RUNNING).unwrap();
    let all: Vec<Change<'_>> = all.changes().collect();
    // The commit that each block ends, or is a part of.
    let commit_of = [0, 1, 2, 2, 2, 2, 3, 4, 5, 6];
    for (at, &commit) in commit_of.iter().enumerate() {
        for byte in (0..whole[at].len()).step_by(7) {
            let mut torn = whole.clone();
            torn[at][byte] ^= 0x10;
            let fast = found(&torn, RUNNING).unwrap();
            assert!(fast.damage().is_none(), "a sum does not fit: block {at}, byte {byte}");
            assert_eq!(fast.commits(), commit, "block {at}, byte {byte}");
            let left: Vec<Change<'_>> = fast.changes().collect();
            assert_eq!(left[..], all[..left.len()]);
        }
        // Or it never arrived: what was there before is of an earlier lap.
        let mut torn = whole.clone();
        torn[at] = vec![0; BLOCK];
        assert_eq!(found(&torn, RUNNING).unwrap().commits(), commit);
    }
}

/// Fast commits of our own making.
#[derive(Default)]
struct Maker {
    block: Vec<u8>,
    sum: u32,
}

impl Maker {
    fn put(&mut self, tag: u16, value: &[u8]) {
        let start = self.block.len();
        self.block.extend(tag.to_le_bytes());
        self.block.extend(u16::try_from(value.len()).unwrap().to_le_bytes());
        self.block.extend(value);
        self.sum = crc32c(self.sum, &self.block[start..]);
    }

    fn words(&mut self, tag: u16, words: &[u32]) {
        let value: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.put(tag, &value);
    }

    fn name(&mut self, tag: u16, name: &[u8]) {
        self.put(tag, &[&[2, 0, 0, 0, 12, 0, 0, 0], name].concat());
    }

    fn end(mut self) -> Vec<u8> {
        let len = u16::try_from(BLOCK - self.block.len() - 4).unwrap();
        let start = self.block.len();
        self.block.extend(8_u16.to_le_bytes());
        self.block.extend(len.to_le_bytes());
        self.block.extend(RUNNING.0.to_le_bytes());
        let sum = crc32c(self.sum, &self.block[start..]);
        self.block.extend(sum.to_le_bytes());
        self.block
    }
}

/// A block with one whole commit, which says what `work` does.
fn made(features: u32, work: impl FnOnce(&mut Maker)) -> Vec<u8> {
    let mut maker = Maker::default();
    maker.words(9, &[features, RUNNING.0]);
    work(&mut maker);
    maker.end()
}

/// The numbers of an extent: the place in the file, blocks and the high half of their place, its low half.
fn extent(first: u32, len: u16, high: u16, low: u32) -> [u32; 4] {
    [12, first, u32::from(len) | u32::from(high) << 16, low]
}

#[test]
fn what_is_whole_and_impossible_is_damage() {
    type Work = fn(&mut Maker);
    let sound: Work = |maker| maker.name(3, b"sound");
    assert_eq!(found(&[made(0, sound)], RUNNING).unwrap().changes().count(), 1);
    let impossible: [Work; 14] = [
        |maker| maker.name(3, b""),
        |maker| maker.name(4, b"a/b"),
        |maker| maker.name(5, b"a\0"),
        |maker| maker.name(3, &[b'x'; 256]),
        |maker| maker.words(3, &[2]),
        |maker| maker.put(4, &[0, 0, 0, 0, 12, 0, 0, 0, b'x']),
        |maker| maker.words(1, &[12, 0, 1]),
        |maker| maker.words(1, &extent(0, 0, 0, 9)),
        |maker| maker.words(1, &extent(u32::MAX, 2, 0, 9)),
        |maker| maker.words(1, &extent(0, 0x8000, 0, 32_767)),
        |maker| maker.words(1, &extent(0, 1, 1, 9)),
        |maker| maker.words(2, &[12, 0, 0]),
        |maker| maker.words(2, &[0, 0, 1]),
        |maker| maker.put(6, &[12; 131]),
    ];
    for (case, work) in impossible.into_iter().enumerate() {
        let second = {
            let mut maker = Maker::default();
            work(&mut maker);
            maker.end()
        };
        let fast = found(&[made(0, sound), second], RUNNING).unwrap();
        assert!(matches!(fast.damage(), Some(Error::Corrupt(_))), "case {case}");
        assert!(!fast.is_empty() && fast.commits() == 1);
        assert_eq!(fast.changes().map(shown).collect::<String>(), shown(fast.changes().next().unwrap()));
    }
}

#[test]
fn what_a_later_kernel_may_write_is_refused_by_name() {
    for (block, name) in [
        (made(4, |_| {}), "features 0x4"),
        (made(0, |maker| maker.put(10, b"news")), "records of type 10"),
        (made(0, |maker| maker.put(700, b"")), "records of type 700"),
    ] {
        match found(std::slice::from_ref(&block), RUNNING) {
            Err(Error::Unsupported(text)) => assert!(text.contains(name), "{text}"),
            other => panic!("{name}: {other:?}"),
        }
        // Not if it was torn.
        let mut torn = block;
        *torn.last_mut().unwrap() ^= 1;
        assert!(found(&[torn], RUNNING).unwrap().is_empty());
    }
}

#[test]
fn a_log_is_not_emptied_with_fast_commits_behind_it() {
    let area = Area::of_device(u64::from(JOURNAL), BlockNo(0));
    for (blocks, is_refused) in [(kernel(), true), (vec![], false)] {
        let device = journal(&blocks);
        let mut log = Log::open(&device, &area, HOME).unwrap();
        // The log itself holds nothing whole, so that the transaction is the first.
        log.change_superblock(|superblock| superblock.sequence = RUNNING).unwrap();
        let home = MemDevice::new(1024, HOME.block_count);
        let before = device.image();
        let replayed = replay(&mut log, &home, &|_, _| BlockKind::Data, &mut |_| {});
        if is_refused {
            assert!(matches!(replayed, Err(Error::Unsupported(_))), "{replayed:?}");
            assert_eq!(device.image(), before);
            let scan = log.scan(&mut |_, _| {}).unwrap();
            let done = bring_home(&log, &home, &|_, _| BlockKind::Data, scan, &mut |_| {}).unwrap();
            assert_eq!(device.image(), before, "they are there until the log is emptied");
            let fast = log.fast_commits(done.scan.next()).unwrap();
            assert_eq!(fast.commits(), 7);
            log.reset(done.scan.restart(&log)).unwrap();
        }
        assert!(log.is_empty());
        assert!(log.fast_commits(log.superblock().sequence).unwrap().is_empty(), "their number is used up");
    }
}

#[test]
fn no_bytes_make_the_reader_panic_or_believe() {
    let whole = kernel();
    let mut seed = Seed::new(11);
    let mut kept = 0;
    for _ in 0..3000 {
        let mut bytes = whole.clone();
        for _ in 0..=seed.below(3) {
            let at = usize::try_from(seed.below(10)).unwrap();
            bytes[at].resize(BLOCK, 0);
            let byte = usize::try_from(seed.below(1024)).unwrap();
            bytes[at][byte] = u8::try_from(seed.below(256)).unwrap();
        }
        let mut text = String::new();
        match found(&bytes, RUNNING) {
            Ok(fast) => {
                fast.changes().for_each(|change| text.write_str(&shown(change)).unwrap());
                kept += fast.commits();
            }
            Err(error) => assert!(matches!(error, Error::Unsupported(_)), "{error}"),
        }
    }
    assert!(kept > 3000, "some commits are before the first changed byte: {kept}");
    // Sums that fit over anything.
    for _ in 0..3000 {
        let mut maker = Maker::default();
        maker.words(9, &[0, RUNNING.0]);
        while maker.block.len() < 700 {
            let len = usize::try_from(seed.below(40)).unwrap();
            let value: Vec<u8> = (0..len).map(|_| u8::try_from(seed.below(6)).unwrap()).collect();
            maker.put(u16::try_from(1 + seed.below(7)).unwrap(), &value);
        }
        let fast = found(&[maker.end()], RUNNING).unwrap();
        assert_eq!(fast.damage().is_none(), fast.commits() == 1);
        fast.changes().for_each(|change| drop(shown(change)));
    }
}

/// The last write to a device may hold anything: nothing is read beyond the blocks for fast commits.
#[test]
fn an_area_full_of_commits_ends_with_it() {
    let mut blocks = vec![made(0, |maker| maker.name(3, b"one"))];
    for _ in 1..255 {
        let mut maker = Maker::default();
        maker.name(4, b"more");
        blocks.push(maker.end());
    }
    let fast = found(&blocks, RUNNING).unwrap();
    assert_eq!((fast.commits(), fast.changes().count()), (255, 255));
    let device = journal(&blocks);
    let write = BlockWrite { block: BlockNo(44), kind: BlockKind::Data, data: &[0xff; BLOCK] };
    device.write(&[write]).unwrap();
    let area = Area::of_device(u64::from(JOURNAL), BlockNo(0));
    let log = Log::open(&device, &area, HOME).unwrap();
    assert_eq!(
        log.fast_commits(RUNNING).unwrap().commits(),
        255,
        "the first block behind the log is not theirs"
    );
}
