//! Records of fast commits, which are whole: the sum behind them is right. Whatever they say, reading them ends without a panic, and a
//! commit counts or is damage. `fuzz/README.md` says how to run it.
#![no_main]

use fstitch_core::{BlockNo, Le, MemDevice};
use fstitch_patch::journal::checksum::crc32c;
use fstitch_patch::journal::format::{
    INCOMPAT_FAST_COMMIT, INCOMPAT_REVOKE, SUPERBLOCK_SIZE, Sequence, Superblock,
};
use fstitch_patch::journal::{Area, Home, Log};
use libfuzzer_sys::fuzz_target;

const BLOCK: usize = 1024;
/// Blocks of the journal; the last 256 are for fast commits, and the first of these is not used.
const JOURNAL: u32 = 300;
const FAST: usize = 45;
const RUNNING: Sequence = Sequence(3);
/// Tag and length of a record, and the tags of the first and the last of a commit.
const HEADER: usize = 4;
const HEAD: u16 = 9;
const TAIL: u16 = 8;

fuzz_target!(|input: &[u8]| {
    let mut superblock = Superblock::new(1024, JOURNAL, 1, [5; 16]);
    superblock.features.incompat = INCOMPAT_REVOKE | INCOMPAT_FAST_COMMIT;
    (superblock.start, superblock.sequence) = (1, Sequence(2));
    let mut image = vec![0; usize::try_from(JOURNAL).expect("64-bit machine") * BLOCK];
    superblock.encode_into(&mut image[..SUPERBLOCK_SIZE]);
    image[FAST * BLOCK..(FAST + 1) * BLOCK].copy_from_slice(&commit(input));
    let device = MemDevice::from_image(1024, image);
    let home = Home { block_count: 32_768, shares_device: false };
    let area = Area::of_device(u64::from(JOURNAL), BlockNo(0));
    let log = Log::open(&device, &area, home).expect("the journal itself is sound");
    if let Ok(found) = log.fast_commits(RUNNING) {
        assert!(found.commits() <= 1, "there is one");
        assert!(found.damage().is_none() || found.commits() == 0);
        found.changes().for_each(|change| assert!(!format!("{change:?}").is_empty()));
    }
});

/// A block with one commit: a head, the records in `input` as far as they fit, and the tail.
fn commit(input: &[u8]) -> Vec<u8> {
    let mut block = Vec::with_capacity(BLOCK);
    put(&mut block, HEAD, &[0_u32.to_le_bytes(), RUNNING.0.to_le_bytes()].concat());
    let mut rest = input;
    while let [tag, len, behind @ ..] = rest {
        let value = &behind[..usize::from(*len).min(behind.len())];
        if block.len() + HEADER + value.len() + HEADER + 8 > BLOCK {
            break;
        }
        put(&mut block, u16::from(*tag), value);
        rest = &behind[value.len()..];
    }
    let at = block.len();
    let len = BLOCK - at - HEADER;
    block.resize(BLOCK, 0);
    Le::put_u16(&mut block, at, TAIL);
    Le::put_u16(&mut block, at + 2, u16::try_from(len).expect("less than a block"));
    Le::put_u32(&mut block, at + HEADER, RUNNING.0);
    let sum = crc32c(0, &block[..at + HEADER + 4]);
    Le::put_u32(&mut block, at + HEADER + 4, sum);
    block
}

fn put(block: &mut Vec<u8>, tag: u16, value: &[u8]) {
    block.extend_from_slice(&tag.to_le_bytes());
    block.extend_from_slice(&u16::try_from(value.len()).expect("short").to_le_bytes());
    block.extend_from_slice(value);
}
