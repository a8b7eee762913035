//! Pass 0: the superblock and its copies; and what is written into it last.

use std::cmp::Reverse;

use fstitch_core::num::to_u64;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, Error, FileKind, Result};

use super::groups::{self, Layout};
use super::state::State;
use super::volume::{FLAGS_UPDATED, HASHES_OR_QUOTA, OLD_UNCLEAN, Volume, at};
use super::{copies, maps, merged};
use crate::ufs::hashes;
use crate::ufs::layout::superblock::{PLACES, READ, ROOT_INO, Superblock, at as field, flag};
use crate::ufs::order::Order;
use crate::view::BlockView;

/// Numbers that all copies have as the first superblock has them, by their bytes: those that say where everything is.
pub(super) const SAME: [usize; 22] =
    [8, 12, 16, 20, 44, 48, 52, 56, 72, 76, 80, 84, 96, 100, 104, 116, 120, 156, 160, 184, 188, 1372];
/// Bytes that are searched for a copy: a group has no more, in the largest that a block can describe.
const SEARCH_MAX: u64 = 4 << 30;
/// Bytes that are searched at once.
const SEARCH_STEP: u64 = 1 << 20;
/// Bytes of the smallest unit that a device is read in.
const SECTOR: u64 = 512;
/// Where the magic number is.
const MAGIC_AT: usize = 1372;
/// Groups that are asked whether a superblock is theirs.
pub(super) const WITNESSES: u32 = 16;
/// Inodes that have kinds in names, and whose lengths have 64 bits.
const FORMAT_44: u32 = 2;
/// Percent that are kept free where that cannot be what is said.
const RESERVED: u32 = 8;

/// A number of the superblock that follows from others, or has only some values.
pub(super) struct Derived {
    pub(super) name: &'static str,
    pub(super) at: usize,
    /// It has 8 bytes.
    pub(super) is_long: bool,
    pub(super) value: u64,
}

/// All such numbers, as they must be.
pub(super) fn derived(volume: &Volume<'_>) -> Vec<Derived> {
    let shape = &volume.shape;
    let (block, fragment) = (shape.block_size, shape.fragment_size);
    let mut found = Vec::new();
    let mut word = |name, at, value: u32| {
        found.push(Derived { name, at, is_long: false, value: value.into() });
    };
    word("bmask", 72, !(block - 1));
    word("fmask", 76, !(fragment - 1));
    word("bshift", 80, block.ilog2());
    word("fshift", 84, fragment.ilog2());
    word("fragshift", 96, (block / fragment).ilog2());
    let optim = volume.word(128);
    word("optim", 128, if optim <= 1 { optim } else { 0 });
    let reserved = volume.word(60);
    word("minfree", 60, if reserved < 100 { reserved } else { RESERVED });
    let is_44 = volume.is_two() || volume.word(1324) >= FORMAT_44 && volume.word(1324).cast_signed() > 0;
    if is_44 {
        word("maxsymlinklen", 1320, shape.symlink_room());
    }
    let mut long = |name, at, value| found.push(Derived { name, at, is_long: true, value });
    if is_44 {
        long("maxfilesize", 1328, shape.size_max() - 1);
        long("qbmask", 1336, u64::from(block - 1));
        long("qfmask", 1344, u64::from(fragment - 1));
    }
    if !volume.is_two() && volume.is_updated() {
        long("sblockloc", at::PRIMARY, shape.at);
        // These count in the wide places where this says so.
        if volume.word(field::MAXBSIZE) == block {
            long("size", 1080, shape.fragments);
            long("dsize", 1088, shape.data_fragments);
            long("csaddr", 1096, shape.summaries.0);
        }
    }
    found
}

/// Judges the superblock's numbers, and its copies.
pub(super) fn check(volume: &Volume<'_>, state: &mut State) -> Result<()> {
    if !volume.is_super_right()? {
        // When something is mended the superblock has no hash any more.
        let _ = state.corrupt("superblock-hash", "the check hash of the superblock does not match");
    }
    let order = volume.order();
    let wrong: Vec<Derived> = derived(volume)
        .into_iter()
        .filter(|field| {
            let has = if field.is_long { volume.long(field.at) } else { volume.word(field.at).into() };
            has != field.value
        })
        .collect();
    if !wrong.is_empty() {
        let names: Vec<&str> = wrong.iter().map(|field| field.name).collect();
        let text = format!("numbers of the superblock are wrong: {}", names.join(", "));
        if state.corrupt("superblock-field", text) {
            volume.edit_super(volume.shape.at, |raw| put_fields(raw, order, &wrong))?;
        }
    }
    for group in 0..volume.shape.groups {
        let Some(byte) = copy_of(volume, group) else { continue };
        let copy = volume.read_super(byte)?;
        // In UFS2 it says where the first one is, for when that is gone.
        let is_astray = volume.is_two() && order.u64(&copy, at::PRIMARY) != volume.shape.at;
        if !is_astray && is_same(&volume.raw, &copy, (order, &wrong)) && copies::has_same(volume, &copy) {
            continue;
        }
        let text = format!("the copy of the superblock in group {group} is not one");
        if state.corrupt("superblock-copy", text) {
            let mut new = volume.raw.clone();
            put_fields(&mut new, order, &wrong);
            if volume.is_updated() {
                put_actual(&mut new, order, byte);
            }
            volume.edit_super(byte, |raw| raw.copy_from_slice(&new))?;
        }
    }
    Ok(())
}

pub(super) fn put_fields(raw: &mut [u8], order: Order, fields: &[Derived]) {
    for field in fields {
        match u32::try_from(field.value) {
            Ok(value) if !field.is_long => order.put_u32(raw, field.at, value),
            _ => order.put_u64(raw, field.at, field.value),
        }
    }
}

/// Says where a superblock lies itself, if its system says that: it would not mount a volume of which that is wrong.
fn put_actual(raw: &mut [u8], order: Order, byte: u64) {
    if order.u64(raw, field::SBLOCKACTUALLOC) != 0 {
        order.put_u64(raw, field::SBLOCKACTUALLOC, byte);
    }
}

/// The byte of a group's copy of the superblock; `None` where that is the first one.
pub(super) fn copy_of(volume: &Volume<'_>, group: u32) -> Option<u64> {
    let byte = volume.part(group, 0) * volume.fragment();
    (byte != volume.shape.at).then_some(byte)
}

/// Whether a copy says the same as the first superblock, but for fields that are wrong there.
pub(super) fn is_same(first: &[u8], copy: &[u8], (order, wrong): (Order, &[Derived])) -> bool {
    let is_wrong = |at: usize| wrong.iter().any(|field| field.at == at);
    SAME.iter().filter(|&&at| !is_wrong(at)).all(|&at| order.u32(first, at) == order.u32(copy, at))
}

/// Why everything else cannot even be looked for, given a superblock that makes sense by itself.
pub(super) fn why_unusable(volume: &Volume<'_>) -> Option<&'static str> {
    let ends = (0..volume.shape.groups).all(|group| volume.part(group, 3) <= volume.shape.fragments);
    if !ends {
        return Some("a group's metadata lie behind the volume's end");
    }
    if Layout::of(volume).is_none() {
        return Some("the maps of a group do not fit its block");
    }
    (!maps::has_place(volume)).then_some("there is no place for the counts of all groups")
}

/// How much on the volume speaks for its superblock: groups that are where it says, and a root directory.
fn witnesses(volume: &Volume<'_>) -> Result<u32> {
    if why_unusable(volume).is_some() {
        return Ok(0);
    }
    let mut found = 0;
    for group in 0..volume.shape.groups.min(WITNESSES) {
        found += u32::from(groups::is_group(volume, group, &groups::read(volume, group)?));
    }
    let root = volume.read_inode(ROOT_INO)?;
    Ok(found + u32::from(root.kind() == Some(FileKind::Directory) && root.size() > 0))
}

/// A superblock that a copy would make: its bytes, and where they belong.
pub(super) struct Restored {
    raw: Vec<u8>,
    place: u64,
}

/// A copy that more speaks for than for the superblock of `volume`, of which no copy is.
pub(super) fn better(device: &dyn BlockDevice, volume: &Volume<'_>) -> Result<Option<Restored>> {
    let (fields, found) = (derived(volume), copies::some(volume)?);
    let agrees = |copy: &Vec<u8>| is_same(&volume.raw, copy, (volume.order(), &fields));
    if found.is_empty() || found.iter().any(agrees) {
        return Ok(None);
    }
    search(device, witnesses(volume)?, None)
}

/// The first copy on the device that lies where it says that copies lie, and for which more speaks than `least`. Given a superblock that can
/// be read, only one of the same volume that belongs there: another one may have left copies here.
pub(super) fn search(
    device: &dyn BlockDevice,
    least: u32,
    read: Option<&Volume<'_>>,
) -> Result<Option<Restored>> {
    let read = read.map(|volume| (volume, derived(volume)));
    let view = BlockView::new(device, 512);
    let all = device.geometry().bytes().min(SEARCH_MAX) / SECTOR * SECTOR;
    let mut bytes = Vec::new();
    let mut at = 0;
    while at + to_u64(READ) <= all {
        // The last copies of a step are looked at in the next one.
        let len = (SEARCH_STEP + to_u64(READ)).min(all - at);
        bytes.resize(fstitch_core::num::to_usize(len), 0);
        view.read(BlockNo(at / SECTOR), BlockKind::Superblock, &mut bytes)?;
        for inside in (0..len.saturating_sub(to_u64(READ) - 1).min(SEARCH_STEP)).step_by(512) {
            let start = fstitch_core::num::to_usize(inside);
            let raw = &bytes[start..start + READ];
            if let Some((volume, fields)) = &read
                && !is_same(&volume.raw, raw, (volume.order(), fields))
            {
                continue;
            }
            let found = candidate(device, raw, at + inside, least)?;
            if let Some(found) =
                found.filter(|found| read.as_ref().is_none_or(|(volume, _)| found.place == volume.shape.at))
            {
                return Ok(Some(found));
            }
        }
        at += SEARCH_STEP;
    }
    Ok(None)
}

/// Whether `raw` at byte `byte` is a copy that could become the first superblock.
fn candidate(device: &dyn BlockDevice, raw: &[u8], byte: u64, least: u32) -> Result<Option<Restored>> {
    // The magic numbers, in either order.
    if !matches!(
        raw[MAGIC_AT..MAGIC_AT + 4],
        [0x54, 0x19, 1, 0] | [0, 1, 0x19, 0x54] | [0x19, 1, 0x54, 0x19] | [0x19, 0x54, 1, 0x19]
    ) {
        return Ok(None);
    }
    let Ok(mut shape) = Superblock::parse(raw, byte, device.geometry().bytes()) else { return Ok(None) };
    // No copy lies there, in no group.
    shape.at = 0;
    let view = BlockView::new(device, shape.fragment_len());
    let volume = Volume { source: &view, shape, raw: raw.to_vec() };
    let group = u32::try_from(byte / volume.fragment() / u64::from(volume.shape.group_fragments));
    let is_copy =
        group.is_ok_and(|group| group < volume.shape.groups && copy_of(&volume, group) == Some(byte));
    if !is_copy || witnesses(&volume)? <= least {
        return Ok(None);
    }
    put_back(device, &volume)
}

/// The superblock of `volume`, a copy, where it belongs: before all that is in groups, where most copies say, or one is that was damaged.
/// `None` if it would be found nowhere there, for then it would be in vain.
fn put_back(device: &dyn BlockDevice, volume: &Volume<'_>) -> Result<Option<Restored>> {
    let order = volume.order();
    let mut said: Vec<u64> = Vec::new();
    if volume.is_updated() {
        let (mut copies, fields) = (copies::some(volume)?, derived(volume));
        copies.retain(|copy| is_same(&volume.raw, copy, (order, &fields)));
        said.extend(copies.iter().map(|copy| order.u64(copy, at::PRIMARY)));
    }
    let end = volume.part(0, 0) * volume.fragment();
    let mut places = Vec::new();
    for place in PLACES.into_iter().filter(|place| place + to_u64(READ) <= end) {
        let there = volume.read_super(place)?;
        let is_left = merged::is_left(volume, &there);
        said.extend(is_left.then_some(place));
        // Where machines boot from, or a label is, copies alone prove nothing.
        if place > 0 || is_left {
            places.push((place, there));
        }
    }
    // Of those for which as much speaks, the last: all systems choose that.
    places.sort_by_key(|&(place, _)| Reverse((said.iter().filter(|&&said| said == place).count(), place)));
    for (place, there) in places {
        let mut raw = merged::of(volume, &there, place)?;
        let is_updated = volume.is_two() || raw[at::OLD_FLAGS] & FLAGS_UPDATED != 0;
        raw[at::CLEAN] = 0;
        forget_hashes(&mut raw, order, is_updated);
        if is_updated {
            order.put_u64(&mut raw, at::PRIMARY, place);
            put_actual(&mut raw, order, place);
        }
        if is_found(device, &raw, place)? {
            return Ok(Some(Restored { raw, place }));
        }
    }
    Ok(None)
}

/// Whether `raw` is what would be read as the superblock of the device if it were at byte `place`.
fn is_found(device: &dyn BlockDevice, raw: &[u8], place: u64) -> Result<bool> {
    let view = BlockView::new(device, 512);
    let found = Superblock::read_by(device.geometry().bytes(), |at| {
        let mut bytes = raw.to_vec();
        if at != place {
            view.read(BlockNo(at / SECTOR), BlockKind::Superblock, &mut bytes)?;
        }
        Ok(bytes)
    });
    match found {
        Err(Error::Corrupt(_)) => Ok(false),
        found => Ok(found?.at == place),
    }
}

/// Writes a superblock that was found.
pub(super) fn restore(device: &dyn BlockDevice, restored: &Restored) -> Result<()> {
    let view = BlockView::new(device, 512);
    view.write(BlockNo(restored.place / SECTOR), BlockKind::Superblock, &restored.raw)?;
    view.flush()
}

/// Says in a superblock that nobody keeps check hashes.
fn forget_hashes(raw: &mut [u8], order: Order, is_updated: bool) {
    let flags = order.u32(raw, at::FLAGS);
    if is_updated && flags & HASHES_OR_QUOTA != 0 && order.u32(raw, at::HASHES) != 0 {
        order.put_u32(raw, at::FLAGS, flags & !HASHES_OR_QUOTA);
        order.put_u32(raw, at::HASHES, 0);
    }
}

/// Says on the volume that only inodes have check hashes, if they have.
pub(super) fn drop_hashes(volume: &Volume<'_>) -> Result<()> {
    let (order, is_updated) = (volume.order(), volume.is_updated());
    let left = hashes::in_use(volume.shape.kept_hashes());
    volume.edit_super(volume.shape.at, |raw| match left {
        0 => forget_hashes(raw, order, is_updated),
        left => order.put_u32(raw, at::HASHES, left),
    })?;
    volume.source.flush()
}

/// Judges whether the volume was unmounted in an orderly way; when nothing else is wrong any more, it is marked so.
pub(super) fn check_clean(volume: &Volume<'_>, state: &mut State, is_unclean: bool) -> Result<()> {
    let others = state.report.total;
    let text = "the volume was not unmounted in an orderly way";
    if !is_unclean || !state.allowed("superblock-not-clean", text) {
        return Ok(());
    }
    if others > 0 {
        state.gave_up();
        return Ok(());
    }
    volume.source.flush()?;
    let (order, is_updated, now) = (volume.order(), volume.is_updated(), state.now.secs);
    let old_time = u32::try_from(now).unwrap_or(0);
    volume.edit_super(volume.shape.at, |raw| {
        (raw[at::MODIFIED], raw[at::CLEAN], raw[at::READ_ONLY]) = (0, 1, 0);
        order.put_u32(raw, at::OLD_TIME, old_time);
        if raw[at::OLD_FLAGS] & FLAGS_UPDATED == 0 {
            // The flags are where they once were.
            raw[at::OLD_FLAGS] &= !OLD_UNCLEAN;
        }
        if is_updated {
            let flags = order.u32(raw, at::FLAGS);
            order.put_u32(raw, at::FLAGS, flags & !(flag::UNCLEAN | flag::NEEDS_FSCK));
            order.put_u64(raw, at::TIME, now.cast_unsigned());
            order.put_u64(raw, at::PENDING_BLOCKS, 0);
            order.put_u32(raw, at::PENDING_INODES, 0);
            if flags & flag::SUJ != 0 {
                // A journal of soft updates belongs to the mount with this time, and to none after a check.
                order.put_u64(raw, at::MOUNTED, now.cast_unsigned());
                // The list of inodes that had lost their names while they were in use: none has any more.
                order.put_u32(raw, at::UNLINKED, 0);
            }
        }
    })
}
