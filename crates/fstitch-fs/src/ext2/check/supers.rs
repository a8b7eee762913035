//! Pass 0: the superblock, the group descriptors, and the resize inode.

use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, CheckReport, Error, FindingClass, Le, Result, Structure,
};

use super::super::source::BlockSource;
use super::claims::DOUBLE_INDIRECT;
use super::state::{Mending, State, Volume};
use super::{journal, mmp, orphan_file, places};
use crate::ext2::layout::checksum::{Sums, seal_superblock};
use crate::ext2::layout::feature::{Features, WRITTEN, compat, incompat, ro_compat};
use crate::ext2::layout::group::{BG_FLAGS, BG_ITABLE_UNUSED, BLOCK_UNINIT, GroupDescriptor, INODE_UNINIT};
use crate::ext2::layout::inode::{I_MODE, I_SIZE, I_SIZE_HIGH, POINTERS, pointer_field};
use crate::ext2::layout::quota::QuotaKind;
use crate::ext2::layout::superblock::{
    GROUP_QUOTA_INO, OLD_FIRST_INO, RESIZE_INO, REVISION_DYNAMIC, S_CHECKSUM_SEED, S_DESC_SIZE,
    S_FEATURE_COMPAT, S_FEATURE_INCOMPAT, S_FEATURE_RO_COMPAT, S_FIRST_INO, S_FRAGS_PER_GROUP,
    S_GRP_QUOTA_INUM, S_LOG_BLOCK_SIZE, S_LOG_FRAG_SIZE, S_PRJ_QUOTA_INUM, S_RESERVED_GDT_BLOCKS,
    S_REV_LEVEL, S_USR_QUOTA_INUM, S_UUID, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock, USER_QUOTA_INO,
};
use crate::ext2::num::{idx, pointer32, wide};
use crate::view::BlockView;

/// Blocks of a group as the makers of volumes have them at most: a count of them has 16 bits.
const GROUP_MAX: u64 = (1 << 16) - 8;

/// Copies of the superblock that are asked what sums are made with.
const COPIES_ASKED: usize = 3;

/// Blocks of a cluster at most, as a power of two.
const LOG_CLUSTER_MAX: u32 = 12;

/// The size of a descriptor that says that the volume has 64-bit numbers.
const DESC_SIZE_64BIT: u16 = 64;

/// The superblock's bytes, at the same place whatever the block size.
pub(super) fn raw_superblock(device: &dyn BlockDevice) -> Result<Vec<u8>> {
    let view = BlockView::new(device, SUPERBLOCK_SIZE);
    let mut raw = vec![0; SUPERBLOCK_SIZE];
    if view.block_count() < 2 {
        return Err(Error::corrupt(Structure::Superblock, None, "the device is too small to hold one"));
    }
    view.read(BlockNo(1), BlockKind::Superblock, &mut raw)?;
    Ok(raw)
}

/// Features with which a volume is checked: those that are kept valid. What others add may be in good order in a way that looks like
/// damage here, and mending would damage it, as encrypted names. What nobody ever made, `btree_dir`, is damage or not known at
/// all, and e2fsck refuses it as well.
const CHECKED: Features = Features { ro_compat: WRITTEN.ro_compat & !ro_compat::BTREE_DIR, ..WRITTEN };

/// Reads and checks a superblock beyond what is needed to use it.
pub(super) fn parse(raw: &[u8], device_bytes: u64) -> Result<Superblock> {
    let shape = parse_unsummed(raw, device_bytes)?;
    shape.check_sum(raw)?;
    Ok(shape)
}

/// The same whatever the superblock's own sum is.
fn parse_unsummed(raw: &[u8], device_bytes: u64) -> Result<Superblock> {
    let shape = Superblock::parse_unsummed(raw, device_bytes)?;
    let foreign = shape.features.beyond(&CHECKED).all_names();
    if !foreign.is_empty() {
        let names = foreign.join(", ");
        return Err(Error::Unsupported(format!("checking a volume with feature {names}: use e2fsck")));
    }
    if shape.features.has_ro_compat(ro_compat::QUOTA) && shape.features.has_incompat(incompat::EA_INODE) {
        // Who refers to a value is charged for its inode, too.
        let names = "quota (with ea_inode)";
        return Err(Error::Unsupported(format!("checking a volume with feature {names}: use e2fsck")));
    }
    let damaged = |problem: String| Error::corrupt(Structure::Superblock, None, problem);
    if shape.reserved_blocks > shape.blocks_count / 2 {
        return Err(damaged(format!(
            "{} of {} blocks are reserved",
            shape.reserved_blocks, shape.blocks_count
        )));
    }
    let has_clusters = shape.features.has_ro_compat(ro_compat::BIGALLOC);
    if has_clusters && !shape.features.has_incompat(incompat::EXTENTS) {
        return Err(damaged("it has clusters, but no extents".into()));
    }
    if !has_clusters && S_LOG_FRAG_SIZE.get(raw) != S_LOG_BLOCK_SIZE.get(raw) {
        return Err(damaged("fragments are smaller than blocks".into()));
    }
    if shape.first_ino != OLD_FIRST_INO {
        // Who believed another one would take files for the volume's own inodes.
        return Err(damaged(format!("files begin at inode {}, expected {OLD_FIRST_INO}", shape.first_ino)));
    }
    if S_DESC_SIZE.get(raw) == DESC_SIZE_64BIT && !shape.features.has_incompat(incompat::BIT64) {
        // Who believed that would take every other half of a descriptor for one.
        return Err(damaged(format!("descriptors of {DESC_SIZE_64BIT} bytes, but the feature 64bit is off")));
    }
    if u32::from(shape.reserved_gdt_blocks) > shape.pointers_per_block() {
        return Err(damaged(format!("{} reserved descriptor blocks", shape.reserved_gdt_blocks)));
    }
    let last = shape.group_count() - 1;
    let tables =
        if shape.features.has_incompat(incompat::FLEX_BG) { 0 } else { shape.inode_table_blocks() + 2 };
    let needed = u64::from(shape.group_overhead(last)) + u64::from(tables);
    if u64::from(shape.group_blocks(last)) < needed {
        return Err(damaged("the last group is too small for its metadata".into()));
    }
    Ok(shape)
}

/// What a superblock is to be made whole from: its own bytes, if only its sum, its revision or its first inode is wrong or there
/// is no copy, else a copy.
pub(super) fn restored(device: &dyn BlockDevice, raw: &[u8]) -> Result<Option<Vec<u8>>> {
    let bytes = device.geometry().bytes();
    let backup = find_backup(device)?;
    let raw = with_what_must_be(raw);
    let Ok(own) = parse_unsummed(&raw, bytes) else { return Ok(backup) };
    let Some(backup) = backup else { return Ok(Some(raw)) };
    let copy = parse_unsummed(&backup, bytes)?;
    Ok(Some(if is_shaped_like(&own, &copy) { raw } else { backup }))
}

/// The superblocks by one of which a volume would be mended, the first one first: its own, and if that is damaged a copy.
pub(in crate::ext2) fn to_mend_by(device: &dyn BlockDevice) -> Result<Vec<Vec<u8>>> {
    let own = match raw_superblock(device) {
        Ok(own) => Some(own),
        Err(Error::Io { .. } | Error::Corrupt(_)) => None,
        Err(other) => return Err(other),
    };
    let is_damaged = |raw: &Vec<u8>| matches!(parse(raw, device.geometry().bytes()), Err(Error::Corrupt(_)));
    let backup = if own.as_ref().is_none_or(is_damaged) { find_backup(device)? } else { None };
    Ok(own.map(|own| with_what_must_be(&own)).into_iter().chain(backup).collect())
}

/// A superblock, of the revision that knows its features, with the one lawful first inode of files.
fn with_what_must_be(raw: &[u8]) -> Vec<u8> {
    let mut raw = raw.to_vec();
    if [S_FEATURE_COMPAT, S_FEATURE_INCOMPAT, S_FEATURE_RO_COMPAT].iter().any(|word| word.get(&raw) != 0) {
        S_REV_LEVEL.put(&mut raw, REVISION_DYNAMIC);
    }
    if S_REV_LEVEL.get(&raw) == REVISION_DYNAMIC {
        S_FIRST_INO.put(&mut raw, OLD_FIRST_INO);
    }
    if S_DESC_SIZE.get(&raw) == DESC_SIZE_64BIT {
        let word = S_FEATURE_INCOMPAT.get(&raw) | incompat::BIT64;
        S_FEATURE_INCOMPAT.put(&mut raw, word);
    }
    raw
}

/// Whether two superblocks say the same of where things are and how they are summed.
fn is_shaped_like(own: &Superblock, copy: &Superblock) -> bool {
    let shape = |volume: &Superblock| {
        (
            (volume.blocks_count, volume.block_size, volume.blocks_per_group, volume.first_ino),
            (volume.inodes_per_group, volume.inode_size, volume.desc_size, volume.first_meta_bg),
            (
                volume.features.incompat,
                volume.sums,
                volume.uuid,
                volume.reserved_gdt_blocks,
                volume.log_cluster,
            ),
        )
    };
    shape(own) == shape(copy)
}

/// The superblock's backups that a volume may have, for when the primary is lost.
pub fn find_backup(device: &dyn BlockDevice) -> Result<Option<Vec<u8>>> {
    for block_size in (10..=16).map(|log| 1_usize << log) {
        for log_cluster in 0..=LOG_CLUSTER_MAX {
            let found = find_backup_in(device, (block_size, log_cluster))?;
            if found.is_some() {
                return Ok(found);
            }
        }
    }
    Ok(None)
}

/// The same of a volume with blocks of that size, so many of them in a cluster as a power of two.
fn find_backup_in(
    device: &dyn BlockDevice,
    (block_size, log_cluster): (usize, u32),
) -> Result<Option<Vec<u8>>> {
    let view = BlockView::new(device, block_size);
    let first = u64::from(block_size == 1024 && log_cluster == 0);
    let per_group = (wide(block_size) * 8).min(GROUP_MAX) << log_cluster;
    for group in [1, 3, 5, 7, 9] {
        let block = first + group * per_group;
        if block >= view.block_count() {
            break;
        }
        let mut bytes = vec![0; block_size];
        view.read(BlockNo(block), BlockKind::Superblock, &mut bytes)?;
        bytes.truncate(SUPERBLOCK_SIZE);
        let right_size = S_LOG_BLOCK_SIZE.get(&bytes) == wide(block_size).trailing_zeros() - 10;
        if right_size && parse(&bytes, device.geometry().bytes()).is_ok() {
            Le::put_u16(&mut bytes, 0x5a, 0);
            return Ok(Some(bytes));
        }
    }
    Ok(None)
}

/// Writes the bytes of a superblock to the primary's place.
pub(super) fn write_primary(device: &dyn BlockDevice, raw: &[u8]) -> Result<()> {
    let view = BlockView::new(device, SUPERBLOCK_SIZE);
    let mut raw = raw.to_vec();
    seal_superblock(&mut raw);
    view.write(BlockNo(wide(SUPERBLOCK_OFFSET / SUPERBLOCK_SIZE)), BlockKind::Superblock, &raw)?;
    view.flush()
}

/// The volume behind `source`, with its descriptors; the report when they make no sense.
pub(super) fn open<'a>(
    source: &'a dyn BlockSource,
    raw_super: Vec<u8>,
    shape: Superblock,
    mending: Mending,
) -> Result<std::result::Result<(Volume<'a>, u64), CheckReport>> {
    let mut report = CheckReport::default();
    let mut mended = 0;
    let mut volume = Volume { source, shape, raw_super, groups: Vec::new() };
    let mend = matches!(mending, Mending::Everything { .. });
    if mending != Mending::Sums {
        mended += settle_seed(&mut volume, &mut report, mend)?;
    }
    let mut table = Vec::new();
    for group in 0..volume.shape.group_count() {
        let (block, offset) = volume.shape.descriptor_place(group);
        if offset == 0 {
            table.resize(volume.block_size(), 0);
            volume.read(block, BlockKind::GroupDescriptor, &mut table)?;
        }
        let raw = &table[offset..offset + volume.shape.descriptor_size()];
        let at = BlockNo(block);
        let problem = match GroupDescriptor::parse_unsummed(raw, group, &volume.shape, at) {
            Ok(found) if mending == Mending::Sums || volume.descriptor_sum_matches(group, raw) => {
                volume.groups.push(found);
                continue;
            }
            Ok(_) => format!("descriptor of group {group} has a wrong sum"),
            Err(Error::Corrupt(problem)) => problem.to_string(),
            Err(other) => return Err(other),
        };
        report.push(FindingClass::Corrupt, "group-descriptor", problem);
        let other = other_descriptor(&volume, raw, group)?;
        volume.groups.push(other.unwrap_or_default());
        if mend && let Some(other) = other {
            let summed = volume.shape.features.has_group_sums();
            volume.change_descriptor(group, |raw| other.encode_into(raw, summed))?;
            mended += 1;
        }
    }
    if mending != Mending::Sums {
        mended += places::settle(&mut volume, &mut report, mend)?;
    }
    if report.total > mended {
        return Ok(Err(report));
    }
    Ok(Ok((volume, mended)))
}

/// All sums are made with the identifier, or the seed, that the superblock has. If no descriptor's sum fits what it says, and some fit
/// what a copy of it says, then that is what is wrong, and no sum.
fn settle_seed(volume: &mut Volume<'_>, report: &mut CheckReport, mend: bool) -> Result<u64> {
    if !volume.compares() || volume.shape.sums == Sums::None {
        return Ok(0);
    }
    let shape = &volume.shape;
    let mut table = vec![0; volume.block_size()];
    volume.read(shape.descriptor_place(0).0, BlockKind::GroupDescriptor, &mut table)?;
    let first = 0..shape.descriptors_per_block().min(shape.group_count());
    let fits = |sums: Sums| {
        first.clone().any(|group| {
            let offset = shape.descriptor_place(group).1;
            sums.is_descriptor_right(group, &table[offset..offset + shape.descriptor_size()])
        })
    };
    if fits(shape.sums) {
        return Ok(0);
    }
    let bytes = volume.blocks() * u64::from(shape.block_size);
    let mut copy = vec![0; volume.block_size()];
    for holder in (1..shape.group_count()).filter(|&group| shape.has_superblock(group)).take(COPIES_ASKED) {
        volume.read(shape.group_start(holder), BlockKind::Superblock, &mut copy)?;
        let copy = &copy[..SUPERBLOCK_SIZE];
        if parse(copy, bytes).is_err() {
            continue;
        }
        let raw = summed_as(&volume.raw_super, copy);
        let Ok(shape) = parse_unsummed(&raw, bytes) else { continue };
        if fits(shape.sums) {
            let text = "the UUID or checksum seed is wrong: no group's checksum fits it, but that of a copy";
            report.push(FindingClass::Corrupt, "superblock-seed", text);
            (volume.raw_super, volume.shape) = (raw, shape);
            if mend {
                volume.write_super()?;
            }
            return Ok(u64::from(mend));
        }
    }
    Ok(0)
}

/// The superblock `raw`, with what `copy` says of how sums are made: by a seed, or by the identifier.
fn summed_as(raw: &[u8], copy: &[u8]) -> Vec<u8> {
    let mut raw = raw.to_vec();
    let seeded = S_FEATURE_INCOMPAT.get(copy) & incompat::CSUM_SEED;
    let word = S_FEATURE_INCOMPAT.get(&raw) & !incompat::CSUM_SEED | seeded;
    S_FEATURE_INCOMPAT.put(&mut raw, word);
    if seeded == 0 {
        raw[S_UUID..S_UUID + 16].copy_from_slice(&copy[S_UUID..S_UUID + 16]);
    } else {
        S_CHECKSUM_SEED.put(&mut raw, S_CHECKSUM_SEED.get(copy));
    }
    raw
}

/// What the descriptor of `group` may have been, whose bytes are `raw`: what a copy says, what it says itself, or where the
/// makers of volumes put things. What it says of parts that were never used is not believed.
fn other_descriptor(volume: &Volume<'_>, raw: &[u8], group: u32) -> Result<Option<GroupDescriptor>> {
    let shape = &volume.shape;
    let at = BlockNo(0);
    let mut bytes = vec![0; volume.block_size()];
    let own = GroupDescriptor::raw(raw);
    let believed = GroupDescriptor { flags: 0, itable_unused: 0, ..own };
    for (block, offset) in copies(shape, group).take(3) {
        volume.read(block, BlockKind::GroupDescriptor, &mut bytes)?;
        let copy = &bytes[offset..offset + shape.descriptor_size()];
        if let Ok(GroupDescriptor { block_bitmap, inode_bitmap, inode_table, .. }) =
            GroupDescriptor::parse(copy, group, shape, at)
        {
            return Ok(Some(GroupDescriptor { block_bitmap, inode_bitmap, inode_table, ..believed }));
        }
    }
    let first = shape.group_start(group) + u64::from(shape.group_overhead(group));
    let candidates = [
        believed,
        GroupDescriptor { block_bitmap: first, ..believed },
        GroupDescriptor { inode_bitmap: first + 1, ..believed },
        GroupDescriptor { inode_table: first + 2, ..believed },
        GroupDescriptor { block_bitmap: first, inode_bitmap: first + 1, inode_table: first + 2, ..believed },
    ];
    let mut encoded = vec![0; shape.descriptor_size()];
    // A place may be possible and wrong: where bitmaps have sums, the most of them decide.
    let mut best: Option<(usize, GroupDescriptor)> = None;
    for candidate in candidates {
        candidate.encode_into(&mut encoded, shape.features.has_group_sums());
        if GroupDescriptor::parse_unsummed(&encoded, group, shape, at).is_ok() {
            let summed = volume.bitmaps_summed(raw, &candidate)?;
            if best.is_none_or(|(most, _)| summed > most) {
                best = Some((summed, candidate));
            }
        }
    }
    Ok(best.map(|(_, candidate)| candidate))
}

/// Where copies of the descriptor of `group` are, the first one first.
pub(super) fn copies(shape: &Superblock, group: u32) -> impl Iterator<Item = (u64, usize)> + '_ {
    let per_block = shape.descriptors_per_block();
    let (index, (_, offset)) = (group / per_block, shape.descriptor_place(group));
    let is_packed = index < shape.packed_descriptor_blocks();
    let first = index * per_block;
    // Not a look at each group to find that there is none.
    let holders = if is_packed { 1..shape.group_count() } else { 0..0 };
    let packed = holders.filter(move |&holder| shape.has_superblock(holder));
    let packed = packed.map(move |holder| (shape.group_start(holder) + 1 + u64::from(index), offset));
    let meta = [first + 1, first + per_block - 1].into_iter();
    let meta = meta.filter(move |&holder| !is_packed && holder < shape.group_count());
    packed.chain(
        meta.map(move |holder| (shape.group_start(holder) + u64::from(shape.has_superblock(holder)), offset)),
    )
}

/// Checks what of the superblock can be put right.
pub(super) fn check(volume: &mut Volume<'_>, state: &mut State) -> Result<()> {
    if !state.seals() {
        // What these read has no sums before the next pass.
        journal::check(volume, state)?;
        orphan_file::check(volume, state)?;
    }
    mmp::check(volume, state)?;
    fragments(volume, state)?;
    quotas(volume, state)?;
    groups(volume, state)?;
    let on = volume.shape.features.compat & compat::RESIZE_INODE != 0;
    let problem = if on { resize_problem(volume)? } else { resize_leftovers(volume)? };
    if let Some(problem) = problem
        && state.corrupt("resize-inode", problem)
    {
        give_up_resizing(volume)?;
    }
    Ok(())
}

/// A group has as many clusters, once fragments, as follows from its blocks: others do not mount the volume otherwise.
fn fragments(volume: &mut Volume<'_>, state: &mut State) -> Result<()> {
    let (count, blocks) = (S_FRAGS_PER_GROUP.get(&volume.raw_super), volume.shape.clusters_per_group());
    if count != blocks
        && state.corrupt("superblock-fragments", format!("{count} fragments in a group of {blocks} blocks"))
    {
        S_FRAGS_PER_GROUP.put(&mut volume.raw_super, blocks);
        volume.write_super()?;
    }
    Ok(())
}

/// Without the feature nobody has quotas, but others take the inodes that are named as theirs for reserved ones. With it each kind has
/// its place.
fn quotas(volume: &mut Volume<'_>, state: &mut State) -> Result<()> {
    let fields = [S_USR_QUOTA_INUM, S_GRP_QUOTA_INUM, S_PRJ_QUOTA_INUM];
    let inodes = fields.map(|field| field.get(&volume.raw_super));
    if volume.shape.features.has_ro_compat(ro_compat::QUOTA) {
        for ((kind, field), ino) in QuotaKind::ALL.into_iter().zip(fields).zip(inodes) {
            let shape = &volume.shape;
            let is_lawful = shape.is_quota_inode(kind, ino) && ino != shape.orphan_file;
            let text = format!("the quotas of {}s are said to be in inode {ino}", kind.name());
            if ino == 0 || is_lawful || !state.corrupt("superblock-quota", text) {
                continue;
            }
            let place = match kind {
                QuotaKind::User => USER_QUOTA_INO,
                QuotaKind::Group => GROUP_QUOTA_INO,
                // Which inode it was nobody can tell: it is found without a name.
                QuotaKind::Project => 0,
            };
            field.put(&mut volume.raw_super, place);
            volume.shape.quota_inodes[kind.index()] = place;
            volume.write_super()?;
        }
        return Ok(());
    }
    let text = format!(
        "inodes {inodes:?} are named for quotas of users, groups and projects, but the feature quota is off"
    );
    if volume.shape.is_dynamic() && inodes != [0; 3] && state.corrupt("superblock-quota", text) {
        fields.iter().for_each(|field| field.put(&mut volume.raw_super, 0));
        volume.write_super()?;
    }
    Ok(())
}

/// Without sums of descriptors nothing of a group is said never to have been used: nobody looks at it, and who switched the
/// sums on would believe it.
fn groups(volume: &Volume<'_>, state: &mut State) -> Result<()> {
    if volume.shape.features.has_group_sums() {
        return Ok(());
    }
    for group in 0..volume.shape.group_count() {
        let GroupDescriptor { flags, itable_unused, .. } =
            GroupDescriptor::raw(&volume.read_descriptor(group)?);
        if flags & (BLOCK_UNINIT | INODE_UNINIT) == 0 && itable_unused == 0 {
            continue;
        }
        let text = format!(
            "group {group} has flags {flags:#x} and {itable_unused} inodes that were never used, without a feature for them"
        );
        if state.corrupt("group-flags", text) {
            volume.change_descriptor(group, |raw| {
                BG_FLAGS.put(raw, 0);
                BG_ITABLE_UNUSED.put(raw, 0);
            })?;
        }
    }
    Ok(())
}

/// What is left of a resize inode on a volume that has none.
fn resize_leftovers(volume: &Volume<'_>) -> Result<Option<String>> {
    if S_RESERVED_GDT_BLOCKS.get(&volume.raw_super) != 0 && volume.shape.is_dynamic() {
        return Ok(Some("descriptor blocks are reserved, but the feature resize_inode is off".into()));
    }
    let raw = volume.read_inode(RESIZE_INO)?;
    let used = (0..POINTERS).any(|at| pointer_field(at).get(&raw) != 0);
    Ok(used.then(|| "the resize inode is in use, but the feature is off".into()))
}

/// What is wrong with the resize inode: it must own exactly the reserved descriptor blocks.
fn resize_problem(volume: &Volume<'_>) -> Result<Option<String>> {
    let raw = volume.read_inode(RESIZE_INO)?;
    let root = pointer_field(DOUBLE_INDIRECT).get(&raw);
    let others = (0..POINTERS).any(|at| at != DOUBLE_INDIRECT && pointer_field(at).get(&raw) != 0);
    if I_MODE.get(&raw) & 0xf000 != 0x8000 || others || !volume.is_valid(u64::from(root)) {
        return Ok(Some("the resize inode is damaged".into()));
    }
    let shape = &volume.shape;
    let pointers = u64::from(shape.pointers_per_block());
    let reach = (12 + pointers + pointers.pow(2) + pointers.pow(3)) * u64::from(shape.block_size);
    let size = u64::from(I_SIZE.get(&raw)) | u64::from(I_SIZE_HIGH.get(&raw)) << 32;
    if size > reach {
        return Ok(Some(format!("the resize inode has {size} bytes")));
    }
    let copies: Vec<u32> = (1..shape.group_count()).filter(|&g| shape.has_superblock(g)).collect();
    let per_block = shape.pointers_per_block();
    if shape.blocks_count > u64::from(u32::MAX) {
        return Ok(Some("the volume is too large for a resize inode".into()));
    }
    let mut found = vec![0; volume.block_size()];
    volume.read(u64::from(root), BlockKind::Indirect, &mut found)?;
    let mut expected = vec![0; volume.block_size()];
    let reserved = u32::from(shape.reserved_gdt_blocks);
    let primary = |i: u32| shape.superblock_no() + 1 + u64::from(shape.descriptor_blocks()) + u64::from(i);
    for i in 0..reserved {
        let slot = (shape.descriptor_blocks() + i) % per_block;
        Le::put_u32(&mut expected, 4 * idx(slot), pointer32(primary(i)));
    }
    if found != expected {
        return Ok(Some("the resize inode does not list the reserved descriptor blocks".into()));
    }
    for i in 0..reserved {
        volume.read(primary(i), BlockKind::Indirect, &mut found)?;
        expected.fill(0);
        for (at, group) in copies.iter().enumerate().take(idx(per_block)) {
            Le::put_u32(
                &mut expected,
                4 * at,
                pointer32(primary(i) + u64::from(*group) * u64::from(shape.blocks_per_group)),
            );
        }
        if found != expected {
            let block = primary(i);
            return Ok(Some(format!("reserved descriptor block {block} does not list its copies")));
        }
    }
    Ok(None)
}

/// Switches `resize_inode` off: its blocks become free, and the volume can no longer grow in use.
fn give_up_resizing(volume: &mut Volume<'_>) -> Result<()> {
    let word = volume.shape.features.compat & !compat::RESIZE_INODE;
    S_FEATURE_COMPAT.put(&mut volume.raw_super, word);
    S_RESERVED_GDT_BLOCKS.put(&mut volume.raw_super, 0);
    volume.write_super()?;
    volume.source.flush()?;
    let raw = vec![0; usize::from(volume.shape.inode_size)];
    volume.write_inode(RESIZE_INO, &raw)
}
