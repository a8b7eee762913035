//! The superblock's copies know of the journal too: who has to use one would otherwise not see what is in the log.

use fstitch_core::{BlockBuf, BlockKind, BlockNo, Result};

use super::raw::{
    MAGIC, S_FEATURE_COMPAT, S_JNL_BACKUP_TYPE, S_JOURNAL_DEV, S_JOURNAL_INUM, S_JOURNAL_UUID, S_MAGIC,
    S_UUID, SUPERBLOCK_SIZE, Superblock,
};
use crate::ext2::layout::checksum::seal_superblock;
use crate::ext2::layout::feature::compat;
use crate::view::BlockView;

/// Where the superblock keeps the journal's pointers and length, for when inode 8 is lost.
pub(super) const S_JNL_BLOCKS: usize = 0x10c;
/// Bytes of them: 15 pointers, the high and the low word of the length.
pub(super) const S_JNL_BLOCKS_LEN: usize = 17 * 4;

/// Brings what `raw`, the primary superblock, says of the journal into its copies, and makes them stable. A copy that is
/// none, or another volume's, stays what it is: only a check may decide what belongs there.
pub(super) fn update(volume: &BlockView<'_>, shape: &Superblock, raw: &[u8]) -> Result<()> {
    let mut block = BlockBuf::zeroed(volume.block_size());
    for group in (1..shape.group_count()).filter(|&group| shape.has_superblock(group)) {
        let at = BlockNo(shape.group_start(group));
        volume.read(at, BlockKind::Superblock, &mut block)?;
        let copy = &mut block[..SUPERBLOCK_SIZE];
        if S_MAGIC.get(copy) == MAGIC && copy[S_UUID..S_UUID + 16] == raw[S_UUID..S_UUID + 16] {
            transfer(raw, copy);
            seal_superblock(copy);
            volume.write(at, BlockKind::Superblock, &block)?;
        }
    }
    volume.flush()
}

fn transfer(raw: &[u8], copy: &mut [u8]) {
    let others = S_FEATURE_COMPAT.get(copy) & !compat::HAS_JOURNAL;
    S_FEATURE_COMPAT.put(copy, others | (S_FEATURE_COMPAT.get(raw) & compat::HAS_JOURNAL));
    S_JOURNAL_INUM.put(copy, S_JOURNAL_INUM.get(raw));
    S_JOURNAL_DEV.put(copy, S_JOURNAL_DEV.get(raw));
    S_JNL_BACKUP_TYPE.put(copy, S_JNL_BACKUP_TYPE.get(raw));
    for range in [S_JOURNAL_UUID..S_JOURNAL_UUID + 16, S_JNL_BLOCKS..S_JNL_BLOCKS + S_JNL_BLOCKS_LEN] {
        copy[range.clone()].copy_from_slice(&raw[range]);
    }
}
