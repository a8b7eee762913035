//! Label, identifier and settings of a volume that nobody uses.

use fstitch_core::num::to_u64;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, Error, Result, Structure};

use super::hashes::{self, Purpose};
use super::layout::superblock::{FLAGS_UPDATED, OLD_FLAGS, Superblock, Version, at, flag, hashed};
use super::volume::{check_writable, wrong_superblock};
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
    /// Groups, inodes (UFS2) and the superblock have check hashes.
    pub check_hashes: Option<bool>,
    /// The percentage of its room that is kept for the superuser.
    pub reserved: Option<u8>,
}

/// Changes settings, as tunefs does: in the superblock, not in its copies.
///
/// # Errors
/// `Unsupported` for a volume that was not unmounted or whose superblock has no place for it, `Corrupt` if there is none, `Io`.
pub fn tune(device: &dyn BlockDevice, settings: Settings) -> Result<()> {
    let sb = Superblock::read(device)?;
    if let Some(wanted) = settings.check_hashes {
        may_change_hashes(device, &sb, wanted)?;
    }
    set(device, settings)?;
    let Some(wanted) = settings.check_hashes else { return Ok(()) };
    // What says that there are some goes before they do, and comes when all are there.
    set_hashes(device, 0)?;
    if wanted {
        hashes::all(device, &sb, Purpose::Make)?;
        set_hashes(device, sb.all_hashes())?;
    }
    Ok(())
}

/// Fails, before anything is changed, if who has check hashes may not be changed on this volume.
fn may_change_hashes(device: &dyn BlockDevice, sb: &Superblock, wanted: bool) -> Result<()> {
    if sb.flags & flag::HASHES_OR_QUOTA != 0 && sb.hashes == 0 {
        let what = "check hashes beside quotas of NetBSD, which have the same flag";
        return Err(Error::Unsupported(what.into()));
    }
    if wanted && sb.all_hashes() == 0 {
        return Err(Error::Unsupported("check hashes of UFS1, which has no places for them".into()));
    }
    if wanted && !sb.is_unclean() {
        check_writable(sb)?;
        hashes::all(device, sb, Purpose::Verify)?;
    }
    Ok(())
}

fn set_hashes(device: &dyn BlockDevice, kept: u32) -> Result<()> {
    change(device, |sb, raw| {
        put_hashed(sb, raw, kept);
        Ok(())
    })
}

/// Says who has check hashes.
fn put_hashed(sb: &Superblock, raw: &mut [u8], kept: u32) {
    let flags = sb.order.u32(raw, at::FLAGS) & !flag::HASHES_OR_QUOTA;
    sb.order.put_u32(raw, at::METACKHASH, kept);
    sb.order.put_u32(raw, at::FLAGS, if kept == 0 { flags } else { flags | flag::HASHES_OR_QUOTA });
}

/// All but the check hashes.
fn set(device: &dyn BlockDevice, settings: Settings) -> Result<()> {
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

/// Changes the superblock of a volume that nobody uses. Whoever is told by it that there is a check hash finds the right one.
fn change(device: &dyn BlockDevice, change: impl FnOnce(&Superblock, &mut [u8]) -> Result<()>) -> Result<()> {
    let sb = Superblock::read(device)?;
    let writer = Writer { device, first: sb.at / to_u64(SECTOR) };
    let before = sb.bytes(device)?;
    if raw_hashes(&sb, &before) & hashed::SUPERBLOCK != 0 && !hashes::is_super_right(sb.order, &before) {
        // What is wrong must not look right.
        return Err(wrong_superblock());
    }
    let mut raw = before.clone();
    change(&sb, &mut raw)?;
    if raw_hashes(&sb, &raw) & hashed::SUPERBLOCK == 0 {
        // The last sector, which has the flags, comes first.
        return writer.write(&before, &raw);
    }
    let len = hashes::super_len(sb.order, &raw).ok_or_else(|| {
        let problem = "its own length is none that a check hash could be of: `fstitch fsck` mends that";
        Error::corrupt(Structure::Superblock, None, problem)
    })?;
    // Until all is there it says that it has none.
    let mut unhashed = before.clone();
    if raw_hashes(&sb, &before) != 0 {
        put_hashed(&sb, &mut unhashed, sb.order.u32(&before, at::METACKHASH) & !hashed::SUPERBLOCK);
        writer.write(&before, &unhashed)?;
    }
    let mut made = raw.clone();
    made[at::CKHASH..at::FLAGS + 4].copy_from_slice(&unhashed[at::CKHASH..at::FLAGS + 4]);
    writer.write(&unhashed, &made)?;
    let sum = hashes::hash(&raw[..len], at::CKHASH);
    sb.order.put_u32(&mut raw, at::CKHASH, sum);
    writer.write(&made, &raw)
}

/// Which structures have check hashes by these bytes of a superblock.
fn raw_hashes(sb: &Superblock, raw: &[u8]) -> u32 {
    let has = sb.is_updated && sb.order.u32(raw, at::FLAGS) & flag::HASHES_OR_QUOTA != 0;
    if has { sb.order.u32(raw, at::METACKHASH) & sb.all_hashes() } else { 0 }
}

/// Writes a superblock by its sectors.
struct Writer<'a> {
    device: &'a dyn BlockDevice,
    first: u64,
}

impl Writer<'_> {
    /// Writes those that differ, the last ones first, and each before the next.
    fn write(&self, before: &[u8], after: &[u8]) -> Result<()> {
        let view = BlockView::new(self.device, SECTOR);
        let sectors = before.chunks_exact(SECTOR).zip(after.chunks_exact(SECTOR));
        for (no, (before, after)) in (self.first..).zip(sectors).collect::<Vec<_>>().into_iter().rev() {
            if before != after {
                view.write(BlockNo(no), BlockKind::Superblock, after)?;
                self.device.flush()?;
            }
        }
        Ok(())
    }
}
