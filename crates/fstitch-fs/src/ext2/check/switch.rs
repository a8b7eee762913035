//! Parts of a change of features that lies in more than the superblock ([`crate::ext2::tuning`]). The volume is sound, and marked as not
//! clean.
//!
//! **States and transitions.** *Some parts were never written* → [`make_real`]: *everything is written*. *Without sums* → [`seal`]: *without
//! sums by its superblock, with those of other features everywhere* (or none, and no room for them).
//!
//! **Invariants.** 1. A descriptor says that something was written when it is stable. 2. What is sealed has no feature that looks at it.
//!
//! **Crash cases.** After each write the volume is sound by the features that it has, but for indexes of directories ([`super::tails`]).

use fstitch_core::{BlockDevice, BlockKind, Error, FindingClass, Result, Structure, Timestamp};

use super::run::Run;
use super::seals::Map;
use super::state::{Mending, Volume};
use super::supers;
use crate::ext2::layout::checksum::{put_block_bitmap_sum, put_inode_bitmap_sum, seal_superblock};
use crate::ext2::layout::group::{
    BG_CHECKSUM, BG_FLAGS, BG_ITABLE_UNUSED, BLOCK_UNINIT, GroupDescriptor, INODE_UNINIT, INODE_ZEROED,
};
use crate::ext2::num::{idx, wide};
use crate::view::BlockView;

/// Calls `work` with the volume on `device`, by the superblock `raw`.
fn with_volume<T>(
    device: &dyn BlockDevice,
    raw: Vec<u8>,
    work: impl FnOnce(&Volume<'_>) -> Result<T>,
) -> Result<T> {
    let shape = supers::parse(&raw, device.geometry().bytes())?;
    let view = BlockView::new(device, idx(shape.block_size));
    match supers::open(&view, raw, shape, Mending::Sums)? {
        Ok((volume, _)) => {
            let done = work(&volume)?;
            view.flush()?;
            Ok(done)
        }
        Err(_) => Err(Error::corrupt(Structure::Superblock, None, "the descriptors are damaged")),
    }
}

/// Writes what is said never to have been written: bitmaps, and zeros where inodes were never used.
///
/// # Errors
/// `Io`; `Corrupt` if descriptors make no sense.
pub(in crate::ext2) fn make_real(device: &dyn BlockDevice) -> Result<()> {
    with_volume(device, supers::raw_superblock(device)?, |volume| {
        let is_lazy =
            |at: &GroupDescriptor| at.flags & (BLOCK_UNINIT | INODE_UNINIT) != 0 || at.itable_unused != 0;
        let lazy: Vec<u32> =
            (0..).zip(&volume.groups).filter(|(_, at)| is_lazy(at)).map(|(group, _)| group).collect();
        let mut bytes = vec![0; volume.block_size()];
        for &group in &lazy {
            clear_unused(volume, group)?;
            for map in [Map::Blocks, Map::Inodes] {
                if volume.is_uninit(group, map)? {
                    volume.read_bitmap(group, map, &mut bytes)?;
                    let (block, kind) = volume.bitmap_place(group, map);
                    volume.write(block, kind, &bytes)?;
                }
            }
        }
        volume.source.flush()?;
        for &group in &lazy {
            for map in [Map::Blocks, Map::Inodes] {
                if volume.is_uninit(group, map)? {
                    volume.read_bitmap(group, map, &mut bytes)?;
                    volume.write_bitmap(group, map, &bytes)?;
                }
            }
            volume.change_descriptor(group, |raw| BG_ITABLE_UNUSED.put(raw, 0))?;
        }
        Ok(())
    })
}

/// Makes inodes of `group` that were never used zeros, unless its descriptor says that they are.
fn clear_unused(volume: &Volume<'_>, group: u32) -> Result<()> {
    let at = &volume.groups[idx(group)];
    if at.flags & INODE_ZEROED != 0 {
        return Ok(());
    }
    let from = idx(volume.table_used(group)) * usize::from(volume.shape.inode_size);
    let size = volume.block_size();
    let mut bytes = vec![0; size];
    for block in from / size..idx(volume.shape.inode_table_blocks()) {
        let no = at.inode_table + wide(block);
        volume.read(no, BlockKind::Inode, &mut bytes)?;
        let rest = &mut bytes[from.saturating_sub(block * size)..];
        if rest.iter().any(|&byte| byte != 0) {
            rest.fill(0);
            volume.write(no, BlockKind::Inode, &bytes)?;
        }
    }
    Ok(())
}

/// Makes these inodes ones that are not in use, and looked at.
///
/// # Errors
/// `Io`; `Corrupt` if descriptors make no sense.
pub(in crate::ext2) fn empty_inodes(device: &dyn BlockDevice, inodes: &[u32]) -> Result<()> {
    with_volume(device, supers::raw_superblock(device)?, |volume| {
        for &ino in inodes {
            // Those before it that were never used become zeros as well: what lies there may be an older volume's.
            let group = volume.shape.group_of_inode(ino);
            volume.use_table(group, (ino - 1) % volume.shape.inodes_per_group + 1)?;
            volume.write_inode(ino, &vec![0; usize::from(volume.shape.inode_size)])?;
        }
        Ok(())
    })
}

/// Brings all sums, and what has its place because of them, to what the superblock `raw` asks for, which nobody sees yet. If not `all`, those
/// of descriptors alone.
///
/// # Errors
/// `Io`; `Corrupt` if anything else than sums is wrong.
pub(in crate::ext2) fn seal(device: &dyn BlockDevice, raw: &[u8], all: bool, now: Timestamp) -> Result<()> {
    let mut raw = raw.to_vec();
    seal_superblock(&mut raw);
    with_volume(device, raw.clone(), |volume| {
        (0..volume.shape.group_count()).try_for_each(|group| seal_group(volume, group))
    })?;
    if all { seal_all(device, &raw, now) } else { Ok(()) }
}

/// All that the passes of the checker meet.
fn seal_all(device: &dyn BlockDevice, raw: &[u8], now: Timestamp) -> Result<()> {
    let shape = supers::parse(raw, device.geometry().bytes())?;
    let view = BlockView::new(device, idx(shape.block_size));
    let mut run = Run { mending: Mending::Sums, now, judging: None, survey: None };
    let report = run.all(&view, raw.to_vec(), shape)?.report;
    view.flush()?;
    if report.corrupt == 0 {
        return Ok(());
    }
    let found = report.findings.iter().find(|finding| finding.class == FindingClass::Corrupt);
    let problem = format!("while sums were written: {}", found.map_or("damage", |found| found.text.as_str()));
    Err(Error::corrupt(Structure::Superblock, None, problem))
}

/// A descriptor by the features in memory: with the sums of its bitmaps, and saying that its table is there; or nothing of all that.
fn seal_group(volume: &Volume<'_>, group: u32) -> Result<()> {
    let mut bytes = vec![0; volume.block_size()];
    let mut sum = |map: Map| -> Result<u32> {
        let (block, kind) = volume.bitmap_place(group, map);
        volume.read(block, kind, &mut bytes)?;
        Ok(volume.bitmap_sum(map, &bytes).unwrap_or(0))
    };
    let (of_blocks, of_inodes) = (sum(Map::Blocks)?, sum(Map::Inodes)?);
    volume.change_descriptor(group, |raw| {
        BG_FLAGS.put(raw, if volume.shape.features.has_group_sums() { INODE_ZEROED } else { 0 });
        BG_ITABLE_UNUSED.put(raw, 0);
        BG_CHECKSUM.put(raw, 0);
        put_block_bitmap_sum(raw, of_blocks);
        put_inode_bitmap_sum(raw, of_inodes);
    })
}
