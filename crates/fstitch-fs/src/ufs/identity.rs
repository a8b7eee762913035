//! Label and identifier of a volume that nobody uses.

use fstitch_core::num::to_u64;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, Error, Result};

use super::layout::superblock::{SUPERBLOCK_SIZE, Superblock, Version, at, flag};
use crate::view::BlockView;

/// Bytes of the label's field; its last byte is zero.
const LABEL_LEN: usize = 32;
const SECTOR: usize = 512;

/// Changes the label, an empty one takes it away, and the identifier. The copies of the superblock keep what they have, as with tunefs.
///
/// # Errors
/// `Unsupported` for a label that is too long, `Corrupt` if there is no superblock, `Io`.
pub fn identify(device: &dyn BlockDevice, label: Option<&[u8]>, id: Option<[u32; 2]>) -> Result<()> {
    let sb = Superblock::read(device)?;
    if label.is_some_and(|label| label.len() >= LABEL_LEN) {
        return Err(Error::Unsupported(format!("a label of more than {} bytes", LABEL_LEN - 1)));
    }
    let view = BlockView::new(device, SECTOR);
    let first = sb.at / to_u64(SECTOR);
    let sectors = SUPERBLOCK_SIZE.div_ceil(SECTOR);
    let mut raw = vec![0; sectors * SECTOR];
    for (no, sector) in (first..).zip(raw.chunks_mut(SECTOR)) {
        view.read(BlockNo(no), BlockKind::Superblock, sector)?;
    }
    let before = raw.clone();
    if sb.version == Version::Two && sb.hashes != 0 {
        // The superblock's check hash will be wrong: who finds the flag cleared does not look at it.
        sb.order.put_u32(&mut raw, at::FLAGS, sb.flags & !flag::HASHES_OR_QUOTA);
    }
    if let Some(label) = label {
        raw[at::VOLNAME..at::VOLNAME + LABEL_LEN].fill(0);
        raw[at::VOLNAME..at::VOLNAME + label.len()].copy_from_slice(label);
    }
    if let Some(id) = id {
        sb.order.put_u32(&mut raw, at::ID, id[0]);
        sb.order.put_u32(&mut raw, at::ID + 4, id[1]);
    }
    // The last sector, which has the flags, comes first.
    for (no, (sector, before)) in
        (first..).zip(raw.chunks(SECTOR).zip(before.chunks(SECTOR))).collect::<Vec<_>>().into_iter().rev()
    {
        if sector != before {
            view.write(BlockNo(no), BlockKind::Superblock, sector)?;
            device.flush()?;
        }
    }
    Ok(())
}
