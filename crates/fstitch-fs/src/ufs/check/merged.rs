//! A superblock of two: a copy says where everything is; what is left of the first one says what copies never heard of.
//!
//! Systems change labels, flags, the list of snapshots, the place of a journal and the inodes of quotas in the first superblock alone.
//! Media lose sectors or bits, so that each sector of it is believed by itself. Where one of two that say together what a volume has is lost,
//! nothing is mended.

use fstitch_core::{Error, FileKind, Result};

use super::groups::{self, Layout};
use super::supers::{SAME, derived, put_fields, why_unusable};
use super::volume::{ACLS_OR_JOURNAL, FLAGS_UPDATED, Volume, at};
use super::{copies, inodes};
use crate::ufs::layout::inode::flag as inode_flag;
use crate::ufs::layout::superblock::{LABEL, READ, Superblock, at as field, has_log};

/// Bytes that are lost together.
const SECTOR: usize = 512;
/// What volumes are told apart by.
const ID: [usize; 2] = [field::ID, field::ID + 4];
/// What systems change in the first sector: times, what is tuned, totals and marks, where it was mounted.
const CHANGES: [std::ops::Range<usize>; 5] = [32..36, 60..72, 88..96, 128..132, 192..SECTOR];
/// Numbers of the last sector that no system changes, by the bytes of their words.
const LAST: [usize; 14] =
    [1080, 1084, 1088, 1092, 1096, 1100, 1320, 1328, 1332, 1336, 1340, 1344, 1348, 1372];

const _: () = assert!(READ == 3 * SECTOR);

/// Whether `there` is what is left of a superblock of the shape of `volume`.
pub(super) fn is_left(volume: &Volume<'_>, there: &[u8]) -> bool {
    agrees(volume, there, &SAME)
}

/// Whether half of the words that `volume`, a copy, says at these bytes are in `there`.
fn agrees(volume: &Volume<'_>, there: &[u8], words: &[usize]) -> bool {
    let said: Vec<usize> = words.iter().copied().filter(|&at| volume.word(at) != 0).collect();
    let same = said.iter().filter(|&&at| volume.word(at) == volume.order().u32(there, at)).count();
    same * 2 >= said.len()
}

/// The superblock of `volume`, a copy, with what is left in `there` of the first one, whose place is byte `place`.
///
/// # Errors
/// `Unsupported` if that says of the volume, or may have said, what keeps it from being mended.
pub(super) fn of(volume: &Volume<'_>, there: &[u8], place: u64) -> Result<Vec<u8>> {
    let (copy, order) = (&volume.raw, volume.order());
    let mut raw = copy.clone();
    let has_first = is_left(volume, there);
    if has_first && ID.iter().all(|&at| volume.word(at) != order.u32(there, at)) {
        return Ok(raw);
    }
    let kept = [has_first, is_second(volume, there, place), agrees(volume, there, &LAST)];
    refuse(volume, there, kept)?;
    for changes in CHANGES.into_iter().filter(|_| kept[0]) {
        raw[changes.clone()].copy_from_slice(&there[changes]);
    }
    for sector in [1, 2].into_iter().filter(|&sector| kept[sector]) {
        let bytes = sector * SECTOR..(sector + 1) * SECTOR;
        raw[bytes.clone()].copy_from_slice(&there[bytes]);
    }
    if raw[LABEL].iter().take_while(|&&byte| byte != 0).any(u8::is_ascii_control) {
        raw[LABEL].copy_from_slice(&copy[LABEL]);
    }
    // Which places are used: that cannot be told from one bit.
    raw[at::OLD_FLAGS] |= copy[at::OLD_FLAGS] & FLAGS_UPDATED;
    if !volume.is_updated() && !kept[1] {
        raw[at::OLD_FLAGS] &= !FLAGS_UPDATED;
    }
    order.put_u32(&mut raw, field::MAGIC, volume.word(field::MAGIC));
    copies::put_all(volume, &mut raw, false);
    // As little more of the copy as makes a volume of it: systems may have changed how long maps are.
    let cylinders = if kept[0] { order.u32(there, at::OLD_CPG) } else { volume.word(at::OLD_CPG) };
    for step in 0..4 {
        match step {
            0 => {}
            1 => order.put_u32(&mut raw, at::OLD_CPG, cylinders),
            2 => copies::put_all(volume, &mut raw, true),
            _ => put_fields(&mut raw, order, &derived(volume)),
        }
        if is_usable(volume, &raw) {
            return Ok(raw);
        }
    }
    Ok(copy.clone())
}

fn is_usable(volume: &Volume<'_>, raw: &[u8]) -> bool {
    let bytes = volume.source.fragments() * volume.fragment();
    Superblock::parse(raw, volume.shape.at, bytes).is_ok_and(|shape| {
        let merged = Volume { source: volume.source, shape, raw: raw.to_vec() };
        why_unusable(&merged).is_none()
    })
}

/// Whether the second sector is one: it says where it is, or the block size.
fn is_second(volume: &Volume<'_>, there: &[u8], place: u64) -> bool {
    let order = volume.order();
    let says = |at: usize| place > 0 && order.u64(there, at) == place;
    order.u32(there, field::MAXBSIZE) == volume.shape.block_size
        || says(at::PRIMARY)
        || says(field::SBLOCKACTUALLOC)
}

/// Refuses a volume that has, or may have, what mending would not keep right: what is left says it, but not all of what says it is left.
fn refuse(volume: &Volume<'_>, there: &[u8], [_, has_second, has_last]: [bool; 3]) -> Result<()> {
    let order = volume.order();
    let why = match (has_second, has_last) {
        (true, false) if has_log(there) => "it has a journal (WAPBL)",
        (false, true) if order.u32(there, at::FLAGS) & ACLS_OR_JOURNAL != 0 => {
            "it may have a journal (WAPBL)"
        }
        (true, false) if at::QUOTA_INODES.iter().any(|&at| order.u64(there, at) != 0) => {
            "it counts quotas as NetBSD does"
        }
        (_, false) if any_snapshot(volume)? => "there are snapshots inside",
        _ => return Ok(()),
    };
    let name = volume.shape.version.name();
    Err(Error::Unsupported(format!(
        "mending this {name} volume: its superblock is damaged, and what is left says that {why}; let the system that made it do that"
    )))
}

/// Whether an inode is a snapshot's, in whatever list.
fn any_snapshot(volume: &Volume<'_>) -> Result<bool> {
    let Some(layout) = Layout::of(volume) else { return Ok(false) };
    for group in 0..volume.shape.groups {
        let initialised = groups::initialised(volume, &layout, group)?;
        let mut has_any = false;
        inodes::each(volume, (group, initialised), |_, inode| {
            let is_file = inode.kind() == Some(FileKind::Regular);
            has_any |= is_file && inode.flags() & inode_flag::SNAPSHOT != 0;
            Ok(())
        })?;
        if has_any {
            return Ok(true);
        }
    }
    Ok(false)
}
