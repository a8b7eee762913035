use super::*;
use crate::ext2::layout::checksum::put_directory_tail;
use crate::ext2::layout::dirent::put_first_entries;
use crate::ext2::layout::feature::ro_compat;
use crate::ext2::layout::inode::{I_LINKS_COUNT, I_MODE};
use crate::ext2::layout::superblock::tests::sample_with;

const UNIT: usize = 1024;

/// The seal of a volume of 1 KiB blocks whose first group has its bitmaps in blocks 300 and 301 and its table behind them.
fn sealer() -> Sealer {
    let shape = sample_with(ro_compat::METADATA_CSUM);
    let sealer = Sealer::of(&shape).unwrap();
    let at = GroupDescriptor { block_bitmap: 300, inode_bitmap: 301, inode_table: 302, ..Default::default() };
    sealer.note_group(0, &at);
    sealer
}

fn image(seed: u64) -> Vec<u8> {
    let mut seed = fstitch_core::Seed::new(seed);
    (0..UNIT).map(|_| u8::try_from(seed.below(256)).unwrap()).collect()
}

#[test]
fn an_inode_with_a_wrong_sum_stays_wrong_beside_others() {
    let (sealer, block) = (sealer(), BlockNo(302));
    let mut bytes = vec![0; UNIT];
    for slot in bytes.chunks_exact_mut(256).take(3) {
        I_MODE.put(slot, 0o100_644);
        I_LINKS_COUNT.put(slot, 1);
    }
    sealer.seal(block, BlockKind::Inode, 0, &mut bytes);
    assert!(bytes[768..].iter().all(|&byte| byte == 0), "where no inode was there is no sum");
    bytes[300] ^= 1;
    sealer.verify(block, BlockKind::Inode, 0, &bytes).unwrap();
    assert!(sealer.check_inode(1, block).is_ok() && sealer.check_inode(3, block).is_ok());
    let error = sealer.check_inode(2, block).unwrap_err().to_string();
    assert!(error.contains("inode 2") && error.contains("checksum"), "{error}");
    I_LINKS_COUNT.put(&mut bytes, 2);
    sealer.seal(block, BlockKind::Inode, 0, &mut bytes);
    sealer.verify(block, BlockKind::Inode, 0, &bytes).unwrap();
    assert!(sealer.check_inode(1, block).is_ok() && sealer.check_inode(2, block).is_err());
    sealer.note_new_inode(2);
    sealer.seal(block, BlockKind::Inode, 0, &mut bytes);
    sealer.verify(block, BlockKind::Inode, 0, &bytes).unwrap();
    assert!(sealer.check_inode(2, block).is_ok());
}

#[test]
fn a_directory_block_is_its_owners() {
    let sealer = sealer();
    let (block, mine, other) = (BlockNo(900), owner(12, 7), owner(12, 8));
    let mut bytes = vec![0; UNIT];
    put_first_entries(&mut bytes[..UNIT - 12], 12, 2, (true, false));
    assert!(sealer.verify(block, BlockKind::Directory, mine, &bytes).is_err(), "no place for a sum");
    put_directory_tail(&mut bytes);
    sealer.seal(block, BlockKind::Directory, mine, &mut bytes);
    assert!(sealer.verify(block, BlockKind::Directory, mine, &bytes).is_ok());
    assert!(sealer.verify(block, BlockKind::Directory, other, &bytes).is_err());
    assert!(sealer.verify(block, BlockKind::Directory, 0, &bytes).is_ok(), "nobody has said whose it is");
}

#[test]
fn a_bitmap_is_the_one_that_was_settled() {
    let sealer = sealer();
    let (block, bytes) = (BlockNo(300), image(3));
    let kind = BlockKind::BlockBitmap;
    assert!(sealer.verify(block, kind, 0, &bytes).is_ok(), "its sum is elsewhere");
    let sum = sealer.bitmap_sum(kind, &bytes).unwrap();
    assert!(sealer.check_bitmap(kind, block, &bytes, sum ^ 1).is_err());
    sealer.check_bitmap(kind, block, &bytes, sum & 0xffff).unwrap();
    assert!(sealer.verify(block, kind, 0, &bytes).is_ok());
    assert!(sealer.verify(block, kind, 0, &image(4)).is_err());
}

#[test]
fn descriptors_are_summed_by_their_places() {
    let sealer = sealer();
    assert_eq!(sealer.groups_in(2), 0..8, "eight groups, the block has room for more");
    assert_eq!(sealer.groups_in(3), 0..0);
    let mut bytes = image(5);
    let kind = BlockKind::GroupDescriptor;
    sealer.verify(BlockNo(2), kind, 0, &bytes).unwrap();
    assert_eq!(sealer.known.lock().bad_groups.len(), 8, "none was right, so none is made right");
    let before = bytes.clone();
    sealer.seal(BlockNo(2), kind, 0, &mut bytes);
    assert_eq!(bytes, before);
    sealer.known.lock().bad_groups.clear();
    sealer.seal(BlockNo(2), kind, 0, &mut bytes);
    sealer.verify(BlockNo(2), kind, 0, &bytes).unwrap();
    assert!(sealer.known.lock().bad_groups.is_empty());
}
