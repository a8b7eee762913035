//! Journals with what ext4 added: written in their own shape, and replayed from it by the reference.
//!
//! What it prevents: a log that only we can read, a journal whose own superblock nobody believes any more, an end of the log that a
//! second log begins with.

use std::sync::Arc;

use fstitch_core::{BlockDevice, BlockNo, BlockRead, BlockWrite, Caller, Consistency, MemDevice};
use fstitch_core::{BlockKind, FileSystem};
use fstitch_fs::ext2::journal::{Journal, locate, read_superblock};
use fstitch_fs::view::BlockView;
use fstitch_patch::journal::checksum::{START, crc32c};
use fstitch_patch::journal::format::{
    COMPAT_CHECKSUM, INCOMPAT_64BIT, INCOMPAT_ASYNC_COMMIT, INCOMPAT_CSUM_V2, INCOMPAT_CSUM_V3,
    INCOMPAT_FAST_COMMIT, INCOMPAT_REVOKE, SUPERBLOCK_SIZE, Superblock, offset,
};

use super::kept::{after_cut, after_reference, base, contents, fill, journal_blocks, make, mounted};
use super::support::Scratch;

/// Journals by the compatible and the incompatible features that they have beside revocations.
const JOURNALS: [(u32, u32); 9] = [
    (0, INCOMPAT_64BIT),
    (0, INCOMPAT_CSUM_V2),
    (0, INCOMPAT_CSUM_V2 | INCOMPAT_64BIT),
    (0, INCOMPAT_CSUM_V3),
    (0, INCOMPAT_CSUM_V3 | INCOMPAT_64BIT),
    (0, INCOMPAT_CSUM_V3 | INCOMPAT_64BIT | INCOMPAT_ASYNC_COMMIT),
    (COMPAT_CHECKSUM, 0),
    (COMPAT_CHECKSUM, INCOMPAT_64BIT | INCOMPAT_ASYNC_COMMIT),
    (0, INCOMPAT_CSUM_V3 | INCOMPAT_64BIT | INCOMPAT_FAST_COMMIT),
];
/// Rounds that take the log around, more than once.
const AROUND: u64 = 60;
/// Blocks of the second log, and what is in it.
const FAST_BLOCKS: u32 = 200;
const FAST_BYTE: u8 = 0xfc;
/// `s_head`: a place in the log.
const HEAD: u32 = 17;

/// A new volume whose journal has these features, and a second log at its end if they say so.
fn volume(compat: u32, incompat: u32) -> MemDevice {
    let device = base(8 << 10, SMALLEST_OF_TWO);
    let (raw, shape) = read_superblock(&device).unwrap();
    let view = BlockView::new(&device, 1024);
    let journal = Journal::find(&view, &shape, locate(&shape, &raw).unwrap().unwrap(), None).unwrap();
    let blocks = journal_blocks(&device);
    let mut block = read(&device, blocks[0]);
    let mut superblock = Superblock::parse(&block[..SUPERBLOCK_SIZE], 1024, journal.area.count()).unwrap();
    (superblock.features.compat, superblock.features.incompat) = (compat, incompat | INCOMPAT_REVOKE);
    put(&mut block, offset::S_HEAD, HEAD);
    if incompat & INCOMPAT_FAST_COMMIT != 0 {
        put(&mut block, offset::S_NUM_FC_BLKS, FAST_BLOCKS);
        for &no in second_log(&blocks) {
            write(&device, no, &[FAST_BYTE; 1024]);
        }
    }
    superblock.encode_into(&mut block[..SUPERBLOCK_SIZE]);
    write(&device, blocks[0], &block);
    device
}

/// The blocks behind the log proper.
fn second_log(journal: &[u64]) -> &[u64] {
    &journal[journal.len() - usize::try_from(FAST_BLOCKS).unwrap()..]
}

/// What a journal has at least, and room for a second log.
const SMALLEST_OF_TWO: fstitch_fs::ext2::mkfs::MkfsJournal =
    fstitch_fs::ext2::mkfs::MkfsJournal::Blocks(1024 + FAST_BLOCKS);

fn read(device: &MemDevice, no: u64) -> Vec<u8> {
    let mut data = vec![0; 1024];
    device.read(&mut [BlockRead { block: BlockNo(no), kind: BlockKind::Data, data: &mut data }]).unwrap();
    data
}

fn write(device: &MemDevice, no: u64, data: &[u8]) {
    device.write(&[BlockWrite { block: BlockNo(no), kind: BlockKind::Data, data }]).unwrap();
}

fn put(block: &mut [u8], at: usize, word: u32) {
    block[at..at + 4].copy_from_slice(&word.to_be_bytes());
}

fn word(block: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(block[at..at + 4].try_into().unwrap())
}

/// Whatever we wrote, the journal's superblock is right by its own sum, and says what we do not know as before.
fn check_superblock(image: &MemDevice, incompat: u32) {
    let journal = journal_blocks(image);
    let block = read(image, journal[0]);
    assert_eq!(word(&block, offset::S_HEAD), HEAD);
    if incompat & (INCOMPAT_CSUM_V2 | INCOMPAT_CSUM_V3) != 0 {
        let mut zeroed = block[..SUPERBLOCK_SIZE].to_vec();
        put(&mut zeroed, offset::S_CHECKSUM, 0);
        assert_eq!(word(&block, offset::S_CHECKSUM), crc32c(START, &zeroed));
        assert_eq!(block[offset::S_CHECKSUM_TYPE], 4);
    }
    if incompat & INCOMPAT_FAST_COMMIT != 0 {
        assert_eq!(word(&block, offset::S_NUM_FC_BLKS), FAST_BLOCKS);
        let is_kept = |&no: &u64| read(image, no).iter().all(|&byte| byte == FAST_BYTE);
        assert!(second_log(&journal).iter().all(is_kept), "the second log is as it was");
    }
}

/// Files come, grow and go, in so many rounds; the power fails when all of it is in the log.
fn used(device: &Arc<MemDevice>, rounds: u64) -> Vec<(String, Option<u64>)> {
    let fs = mounted(device.clone() as _, Consistency::Ordered);
    let mut names = Vec::new();
    for round in 0..rounds {
        let dir = fs.mkdir(&Caller::default(), fs.root(), format!("d{round}").as_bytes(), 0o755).unwrap();
        for at in 0..6 {
            let name = format!("d{round}/a file with a long name, so that there are blocks of names {at}");
            let file = make(&fs, dir.attr.ino, name.split_once('/').unwrap().1).attr.ino;
            fill(&fs, file, u8::try_from(at + 1).unwrap(), 3000 * (at + 1));
            fs.forget(file, 1);
            let is_kept = round + 9 >= rounds && at % 2 == 0;
            names.push((name, is_kept.then_some(3000 * (at + 1))));
        }
        fs.sync().unwrap();
        for (name, kept) in names.iter().rev().take(6) {
            if kept.is_none() {
                let name = name.split_once('/').unwrap().1;
                fs.unlink(&Caller::default(), dir.attr.ino, name.as_bytes()).unwrap();
            }
        }
        fs.sync().unwrap();
        if round + 9 < rounds {
            fs.rmdir(&Caller::default(), fs.root(), format!("d{round}").as_bytes()).unwrap();
        }
        fs.forget(dir.attr.ino, 1);
    }
    fs.sync().unwrap();
    // It is not unmounted: nothing more is written to the medium.
    drop(fs);
    names
}

/// Every file that was kept is there with what was written, and no other.
fn check_files(image: Vec<u8>, names: &[(String, Option<u64>)], who: &str) {
    let fs = mounted(Arc::new(MemDevice::from_image(1024, image)), Consistency::Ordered);
    for (name, kept) in names {
        let found = contents(&fs, name);
        assert_eq!(found.as_ref().map(|data| u64::try_from(data.len()).unwrap()), *kept, "{who}: {name}");
        let byte = found.as_ref().and_then(|data| data.first().copied());
        assert!(found.is_none_or(|data| data.iter().all(|&other| Some(other) == byte)), "{who}: {name}");
    }
}

#[test]
fn later_journals_are_written_in_their_own_shape() {
    let scratch = Scratch::new("journal-later");
    for (compat, incompat) in JOURNALS {
        let device = Arc::new(volume(compat, incompat));
        let names = used(&device, AROUND);
        let what = format!("features {compat:#x} and {incompat:#x}");
        let image = device.image();
        check_superblock(&MemDevice::from_image(1024, image.clone()), incompat);
        let journal = read(&device, journal_blocks(&device)[0]);
        assert_ne!(word(&journal, offset::S_START), 0, "{what}: there is something to replay");
        let (ours, _) = after_cut(image.clone());
        check_superblock(&ours, incompat);
        check_files(ours.image(), &names, &what);
        if incompat & INCOMPAT_FAST_COMMIT != 0 {
            // e2fsck 1.47.0 reads on where such a log goes around; the kernel does not.
            continue;
        }
        if let Some(theirs) = after_reference(&scratch, &image) {
            check_files(theirs, &names, &format!("{what}, by e2fsck"));
        }
    }
}

#[test]
fn later_journals_end_where_fast_commits_begin() {
    let scratch = Scratch::new("journal-fast");
    let device = Arc::new(volume(0, INCOMPAT_CSUM_V3 | INCOMPAT_64BIT | INCOMPAT_FAST_COMMIT));
    let names = used(&device, 12);
    if let Some(theirs) = after_reference(&scratch, &device.image()) {
        check_files(theirs, &names, "by e2fsck");
    }
}
