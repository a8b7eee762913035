//! Following an inode's block pointers.

use fstitch_core::{BlockKind, Le, Result};

use super::state::Volume;
use crate::ext2::layout::inode::{DIRECT, POINTERS, pointer_field};
use crate::ext2::num::{idx, pointer32, wide};

/// A pointer met on the way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pointer {
    /// What it points at; never 0.
    pub(super) block: u64,
    /// Levels of pointers below: 0 for data.
    pub(super) level: u32,
    /// The first file block that it covers.
    pub(super) logical: u64,
}

/// What to do with a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Follow it.
    Follow,
    /// Leave it, and do not look behind it.
    Skip,
    /// Replace it (by 0 to clear it), and do not look behind it.
    Set(u64),
}

/// Judges each pointer. An implementation must not answer [`Verdict::Follow`] for the same indirect block
/// again and again: that bounds a walk through hostile pointers by the number of blocks.
pub(super) trait Visit {
    /// Judges `pointer`.
    fn visit(&mut self, volume: &Volume<'_>, pointer: Pointer) -> Result<Verdict>;
}

/// Visits all pointers of the inode in `raw`, in file order; true when `raw` was changed. Changed indirect
/// blocks are written.
pub(super) fn walk(volume: &Volume<'_>, raw: &mut [u8], visit: &mut dyn Visit) -> Result<bool> {
    let per_block = u64::from(volume.shape.pointers_per_block());
    let mut changed = false;
    let mut logical = 0;
    for at in 0..POINTERS {
        let level = u32::try_from(at.saturating_sub(DIRECT - 1)).expect("at most three");
        let block = pointer_field(at).get(raw);
        if block != 0
            && let Some(new) = follow(volume, Pointer { block: u64::from(block), level, logical }, visit)?
        {
            pointer_field(at).put(raw, pointer32(new));
            changed = true;
        }
        logical += per_block.pow(level);
    }
    Ok(changed)
}

/// Judges one pointer and what is behind it; its replacement, if any.
fn follow(volume: &Volume<'_>, pointer: Pointer, visit: &mut dyn Visit) -> Result<Option<u64>> {
    match visit.visit(volume, pointer)? {
        Verdict::Skip => return Ok(None),
        Verdict::Set(new) => return Ok(Some(new)),
        Verdict::Follow if pointer.level == 0 => return Ok(None),
        Verdict::Follow => {}
    }
    let mut bytes = vec![0; volume.block_size()];
    volume.read(pointer.block, BlockKind::Indirect, &mut bytes)?;
    let step = u64::from(volume.shape.pointers_per_block()).pow(pointer.level - 1);
    let mut changed = false;
    // Recursion is at most three levels deep.
    for slot in 0..idx(volume.shape.pointers_per_block()) {
        let block = Le::u32(&bytes, slot * 4);
        if block == 0 {
            continue;
        }
        let logical = pointer.logical + wide(slot) * step;
        let next = Pointer { block: u64::from(block), level: pointer.level - 1, logical };
        if let Some(new) = follow(volume, next, visit)? {
            Le::put_u32(&mut bytes, slot * 4, pointer32(new));
            changed = true;
        }
    }
    if changed {
        volume.write(pointer.block, BlockKind::Indirect, &bytes)?;
    }
    Ok(None)
}
