//! The end of a volume is cut off: one transaction, when nothing in use lies behind the new end any more.

use fstitch_core::{BlockDevice, BlockNo, Error, Le, Result, Structure, Timestamp};

use crate::ext2::journal::{Place, read_superblock, write_superblock};
use crate::ext2::layout::checksum::seal_superblock;
use crate::ext2::layout::feature::compat;
use crate::ext2::layout::superblock::{S_BACKUP_BGS, Superblock};
use crate::ext2::num::{idx, low32, small};
use crate::ext2::resize::commit;
use crate::ext2::resize::plan::Sizes;
use crate::ext2::resize::staged::Staged;
use crate::ext2::resize::table;
use crate::view::BlockView;

/// Makes the volume the smaller one.
///
/// # Errors
/// `Unsupported` if the journal is too short for what changes; `Corrupt`, `Io`.
pub(super) fn cut_off(device: &dyn BlockDevice, sizes: Sizes, place: Place, now: Timestamp) -> Result<()> {
    let (old, new) = (&sizes.old, &sizes.new);
    let volume = BlockView::new(device, idx(old.block_size));
    let mut staged = Staged::new(volume);
    let last = new.group_count() - 1;
    // What groups that go have in groups that stay, the last of which loses its end only after that.
    let mut freed = Vec::new();
    for group in new.group_count()..old.group_count() {
        let at = table::descriptor(&mut staged, old, group)?;
        let parts = [(at.block_bitmap, 1), (at.inode_bitmap, 1), (at.inode_table, old.inode_table_blocks())];
        for (start, count) in parts {
            freed.extend((start..start + u64::from(count)).filter(|&block| old.group_of(block) <= last));
        }
        table::retire_descriptor(&mut staged, old, group)?;
    }
    for group in 0..new.group_count() {
        let start = new.group_start(group);
        freed.extend(
            start + u64::from(new.group_overhead(group))..start + u64::from(old.group_overhead(group)),
        );
    }
    freed.sort_unstable();
    for part in freed.chunk_by(|&one, &two| old.group_of(one) == old.group_of(two)) {
        let group = old.group_of(part[0]);
        let bits: Vec<(u32, u32)> = part
            .iter()
            .map(|block| low32(block - old.group_start(group)))
            .map(|bit| (bit, bit + 1))
            .collect();
        let changed = table::mark(&mut staged, old, group, &bits, false)?;
        if changed != small(part.len()) {
            let problem =
                format!("{} blocks of metadata are free already: check the volume first", part.len());
            return Err(Error::corrupt(Structure::BlockBitmap(u64::from(group)), None, problem));
        }
    }
    let (kept, before) = (new.group_blocks(last), old.group_blocks(last));
    if kept < before {
        let changed = table::mark(&mut staged, old, last, &[(kept, before)], true)?;
        if changed != before - kept {
            let problem = "blocks behind the new end are in use still";
            return Err(Error::corrupt(Structure::BlockBitmap(u64::from(last)), None, problem));
        }
    }
    let (mut blocks, mut inodes) = (0, 0);
    for group in 0..new.group_count() {
        let at = table::descriptor(&mut staged, old, group)?;
        blocks += u64::from(at.free_blocks);
        inodes += u64::from(at.free_inodes);
    }
    // Blocks of descriptors that are none any more begin anew, as lists of reserved blocks, or are nobody's.
    for index in new.packed_descriptor_blocks()..old.packed_descriptor_blocks() {
        staged.blocks.remove(&BlockNo(old.descriptor_block(index)));
    }
    table::put_resize_inode(&mut staged, &sizes)?;
    // Descriptors that lie with the groups that they describe go with them: nothing of the transaction may lie out of the new volume.
    drop(staged.blocks.split_off(&BlockNo(new.blocks_count)));
    let raw = sizes.superblock(blocks, inodes);
    commit::check(device, &sizes, &staged, Some(place))?;
    commit::commit(device, &sizes, staged, (&raw, Some(place)), now)?;
    forget_copies(device, new)
}

/// Groups that went hold no copies of the superblock any more, where it names those that do. It names them in its second sector, which is
/// changed alone.
fn forget_copies(device: &dyn BlockDevice, new: &Superblock) -> Result<()> {
    let gone = |group: &u32| *group >= new.group_count();
    if new.features.compat & compat::SPARSE_SUPER2 == 0 || !new.backup_groups.iter().any(gone) {
        return Ok(());
    }
    let (mut raw, shape) = read_superblock(device)?;
    for (at, _) in new.backup_groups.iter().enumerate().filter(|(_, group)| gone(group)) {
        Le::put_u32(&mut raw, S_BACKUP_BGS + 4 * at, 0);
    }
    seal_superblock(&mut raw);
    write_superblock(device, &raw)?;
    commit::write_copies(&BlockView::new(device, idx(shape.block_size)), &raw, &shape)
}
