//! Pass 0: the block that tells other machines that the volume is in use ([`crate::ext2::mmp`]).

use fstitch_core::{BlockKind, Result};

use super::state::{State, Volume};
use crate::ext2::layout::feature::incompat;
use crate::ext2::layout::superblock::{S_FEATURE_INCOMPAT, S_MMP_BLOCK, SUPERBLOCK_SIZE};
use crate::ext2::mmp;
use crate::ext2::own::OwnRuns;

/// Checks where the block is and what it holds. Whether it says that somebody uses the volume is for who opens the volume.
pub(super) fn check(volume: &mut Volume<'_>, state: &mut State) -> Result<()> {
    if !volume.shape.features.has_incompat(incompat::MMP) {
        return Ok(());
    }
    let Some(block) = place(volume) else {
        let text = format!("the multiple-mount block is {}, where none can be", volume.shape.mmp_block);
        return if state.corrupt("mmp", text) { give_up(volume) } else { Ok(()) };
    };
    let mut bytes = vec![0; volume.block_size()];
    volume.read(block, BlockKind::Superblock, &mut bytes)?;
    let sums = volume.shape.sums;
    if mmp::judge(&bytes[..SUPERBLOCK_SIZE], sums).is_err() {
        // Who mends renews his claim meanwhile, and may just do that.
        volume.read(block, BlockKind::Superblock, &mut bytes)?;
    }
    if let Err(why) = mmp::judge(&bytes[..SUPERBLOCK_SIZE], sums)
        && state.corrupt("mmp", format!("the multiple-mount block at {block} {why}"))
    {
        bytes.fill(0);
        mmp::put_free(&mut bytes[..SUPERBLOCK_SIZE], sums);
        volume.write(block, BlockKind::Superblock, &bytes)?;
    }
    Ok(())
}

/// Where the block is, if there is one: on the volume, and nothing else of its own.
pub(super) fn place(volume: &Volume<'_>) -> Option<u64> {
    let shape = &volume.shape;
    if !shape.features.has_incompat(incompat::MMP) {
        return None;
    }
    let block = Some(shape.mmp_block).filter(|&block| volume.is_valid(block))?;
    let groups: Vec<_> = volume.groups.iter().copied().map(Some).collect();
    (!OwnRuns::of(shape, &groups).meet(block, block + 1)).then_some(block)
}

/// Makes the volume one that tells nobody.
fn give_up(volume: &Volume<'_>) -> Result<()> {
    let mut raw = volume.raw_super.clone();
    let word = S_FEATURE_INCOMPAT.get(&raw) & !incompat::MMP;
    S_FEATURE_INCOMPAT.put(&mut raw, word);
    S_MMP_BLOCK.put(&mut raw, 0);
    volume.write_super_bytes(&raw)
}
