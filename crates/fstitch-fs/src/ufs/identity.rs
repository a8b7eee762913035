//! Label, identifier and settings of a volume that nobody uses.

use fstitch_core::num::to_u64;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, Error, Result};

use super::layout::superblock::{FLAGS_UPDATED, OLD_FLAGS, SUPERBLOCK_SIZE, Superblock, Version, at, flag};
use crate::view::BlockView;

/// Bytes of the label's field; its last byte is zero.
const LABEL_LEN: usize = 32;
const SECTOR: usize = 512;

/// Changes the label, an empty one takes it away, and the identifier. The copies of the superblock keep what they have, as with tunefs.
///
/// # Errors
/// `Unsupported` for a label that is too long, `Corrupt` if there is no superblock, `Io`.
pub fn identify(device: &dyn BlockDevice, label: Option<&[u8]>, id: Option<[u32; 2]>) -> Result<()> {
    if label.is_some_and(|label| label.len() >= LABEL_LEN) {
        return Err(Error::Unsupported(format!("a label of more than {} bytes", LABEL_LEN - 1)));
    }
    change(device, |sb, raw| {
        if let Some(label) = label {
            raw[at::VOLNAME..at::VOLNAME + LABEL_LEN].fill(0);
            raw[at::VOLNAME..at::VOLNAME + label.len()].copy_from_slice(label);
        }
        if let Some(id) = id {
            sb.order.put_u32(raw, at::ID, id[0]);
            sb.order.put_u32(raw, at::ID + 4, id[1]);
        }
        Ok(())
    })
}

/// What is changed of a volume's settings; `None` leaves one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The systems that it is for use soft updates on it.
    pub soft_updates: Option<bool>,
    /// They keep POSIX ACLs.
    pub acls: Option<bool>,
    /// The percentage of its room that is kept for the superuser.
    pub reserved: Option<u8>,
}

/// Changes settings, as tunefs does: in the superblock, not in its copies.
///
/// # Errors
/// `Unsupported` for a volume that was not unmounted or whose superblock has no place for it, `Corrupt` if there is none, `Io`.
pub fn tune(device: &dyn BlockDevice, settings: Settings) -> Result<()> {
    change(device, |sb, raw| {
        if sb.is_unclean() {
            let what = "changing settings of a volume that was not unmounted: a check that mends what that leaves comes first (`fstitch fsck -p`)";
            return Err(Error::Unsupported(what.into()));
        }
        if !sb.is_updated {
            let what = "changing settings of a volume whose superblock is of before FreeBSD 5";
            return Err(Error::Unsupported(what.into()));
        }
        let mut flags = sb.order.u32(raw, at::FLAGS);
        for (bit, wanted) in [(flag::SOFTDEP, settings.soft_updates), (flag::ACLS, settings.acls)] {
            flags = wanted.map_or(flags, |wanted| if wanted { flags | bit } else { flags & !bit });
        }
        if settings.acls == Some(true) && flags & flag::NFS4_ACLS_OR_WAPBL != 0 {
            let what =
                "POSIX ACLs beside those of NFSv4, or a journal (WAPBL), which have the flag `nfsv4acls`";
            return Err(Error::Unsupported(what.into()));
        }
        if settings.soft_updates == Some(false) && flags & flag::SUJ != 0 {
            let what = "no soft updates beside their journal: switch that off (`tunefs -j disable`)";
            return Err(Error::Unsupported(what.into()));
        }
        sb.order.put_u32(raw, at::FLAGS, flags);
        if sb.version == Version::One {
            raw[at::OLD_FLAGS] = u8::try_from(flags & OLD_FLAGS).unwrap_or(0) | FLAGS_UPDATED;
        }
        if let Some(percent) = settings.reserved {
            sb.order.put_u32(raw, at::MINFREE, u32::from(percent));
        }
        Ok(())
    })
}

/// Changes the superblock of a volume that nobody uses.
fn change(device: &dyn BlockDevice, change: impl FnOnce(&Superblock, &mut [u8]) -> Result<()>) -> Result<()> {
    let sb = Superblock::read(device)?;
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
    change(&sb, &mut raw)?;
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
