//! What a volume is, from its superblock and group descriptors.

use fstitch_core::num::to_usize;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, Error, Result, Timestamp};
use fstitch_fs::ext2::journal::read_superblock;
use fstitch_fs::ext2::layout::checksum::Sums;
use fstitch_fs::ext2::layout::feature::incompat;
use fstitch_fs::ext2::layout::group::GroupDescriptor;
use fstitch_fs::ext2::layout::superblock::{S_FEATURE_INCOMPAT, STATE_ERROR, STATE_VALID, Superblock};
use fstitch_fs::view::BlockView;
use serde::Serialize;

use super::journal::{self, Shown};
use crate::{Description, Field, show};

/// What is shown. Field names are a contract.
#[derive(Serialize)]
struct Info {
    /// `ext2`, `ext3` where there is a journal, or `ext4` where there is what only that has.
    format: &'static str,
    label: String,
    uuid: String,
    revision: u32,
    features: Vec<String>,
    /// Why it could only be mounted read-only, if so.
    read_only_because: Vec<String>,
    /// `clean`, `in use or not cleanly unmounted`, or `has errors`.
    state: &'static str,
    block_size_bytes: u32,
    /// What is taken at once: blocks, but with `bigalloc` several of them.
    cluster_size_bytes: u32,
    blocks: u64,
    free_blocks: u64,
    reserved_blocks: u64,
    inodes: u32,
    free_inodes: u32,
    inode_size_bytes: u16,
    first_ino: u32,
    blocks_per_group: u32,
    inodes_per_group: u32,
    descriptor_size_bytes: u16,
    /// Groups that have their bitmaps and inode tables together; 1 without `flex_bg`.
    groups_per_flex: u64,
    /// What is summed, and how; empty if nothing is.
    checksums: &'static str,
    /// The inode of the orphan file, 0 if there is none.
    orphan_file: u32,
    mounted_at: String,
    written_at: String,
    checked_at: String,
    made_at: String,
    mount_count: u16,
    superblock_backups: Vec<u64>,
    journal: Option<Shown>,
    groups: Vec<Group>,
}

#[derive(Serialize)]
struct Group {
    group: u32,
    first_block: u64,
    blocks: u32,
    block_bitmap: u64,
    inode_bitmap: u64,
    inode_table: u64,
    free_blocks: u32,
    free_inodes: u16,
    directories: u16,
    /// Inodes at the table's end that were never used.
    unused_inodes: u16,
    /// What was never written: `inodes`, `blocks`.
    uninitialised: Vec<&'static str>,
}

/// Describes the volume on `device`, with a line for each group if `details` are wanted.
pub fn describe(
    device: &dyn BlockDevice,
    external: Option<&dyn BlockDevice>,
    details: bool,
) -> Result<Description> {
    let (raw, volume) = read_superblock(device)?;
    let mut info = collect(&volume, read_groups(device, &volume)?);
    info.journal = journal::look(device, external, |shown, _| shown)?;
    if S_FEATURE_INCOMPAT.get(&raw) & incompat::RECOVER != 0 {
        info.state = "not unmounted: the journal must be replayed";
        info.features.push("needs_recovery".to_owned());
    }
    let fields = lines(&info).into_iter().map(|(name, text)| Field { name, text }).collect();
    let parts = if details { group_lines(&info.groups) } else { Vec::new() };
    let values = serde_json::to_value(&info).map_err(|error| Error::Unsupported(error.to_string()))?;
    let serde_json::Value::Object(values) = values else { unreachable!("a struct is an object") };
    Ok(Description { fields, parts, values })
}

fn read_groups(device: &dyn BlockDevice, volume: &Superblock) -> Result<Vec<Group>> {
    let block_size = to_usize(volume.block_size);
    let view = BlockView::new(device, block_size);
    let mut bytes = vec![0; block_size];
    let mut held = None;
    let mut groups = Vec::new();
    for group in 0..volume.group_count() {
        let (block, offset) = volume.descriptor_place(group);
        let block = BlockNo(block);
        if held != Some(block) {
            view.read(block, BlockKind::GroupDescriptor, &mut bytes)?;
            held = Some(block);
        }
        let descriptor = bytes.get(offset..offset + volume.descriptor_size());
        let found = GroupDescriptor::parse(descriptor.unwrap_or_default(), group, volume, block)?;
        groups.push(Group {
            group,
            first_block: volume.group_start(group),
            blocks: volume.group_blocks(group),
            block_bitmap: found.block_bitmap,
            inode_bitmap: found.inode_bitmap,
            inode_table: found.inode_table,
            free_blocks: u32::from(found.free_blocks) << volume.log_cluster,
            free_inodes: found.free_inodes,
            directories: found.used_dirs,
            unused_inodes: found.itable_unused,
            uninitialised: [(found.is_inode_uninit(), "inodes"), (found.is_block_uninit(), "blocks")]
                .into_iter()
                .filter_map(|(is_so, what)| is_so.then_some(what))
                .collect(),
        });
    }
    Ok(groups)
}

fn collect(volume: &Superblock, groups: Vec<Group>) -> Info {
    let state = match (volume.state & STATE_ERROR != 0, volume.state & STATE_VALID != 0) {
        (true, _) => "has errors",
        (false, true) => "clean",
        (false, false) => "in use or not cleanly unmounted",
    };
    let backups = (1..volume.group_count()).filter(|&group| volume.has_superblock(group));
    let label = volume.name.split(|&byte| byte == 0).next().unwrap_or_default();
    Info {
        format: volume.features.format_name(),
        label: String::from_utf8_lossy(label).into_owned(),
        uuid: show::uuid(&volume.uuid),
        revision: volume.revision,
        features: volume.features.all_names(),
        read_only_because: volume.features.read_only_because(),
        state,
        block_size_bytes: volume.block_size,
        cluster_size_bytes: volume.block_size << volume.log_cluster,
        blocks: volume.blocks_count,
        // The totals in the superblock may be stale after a crash; the groups' are what counts.
        free_blocks: groups.iter().map(|group| u64::from(group.free_blocks)).sum(),
        reserved_blocks: volume.reserved_blocks,
        inodes: volume.inodes_count,
        free_inodes: groups.iter().map(|group| u32::from(group.free_inodes)).sum(),
        inode_size_bytes: volume.inode_size,
        first_ino: volume.first_ino,
        blocks_per_group: volume.blocks_per_group,
        inodes_per_group: volume.inodes_per_group,
        descriptor_size_bytes: volume.desc_size,
        groups_per_flex: 1 << volume.log_groups_per_flex,
        checksums: checksums(volume),
        orphan_file: volume.orphan_file,
        mounted_at: time(volume.mount_time),
        written_at: time(volume.write_time),
        checked_at: time(volume.check_time),
        made_at: time(volume.mkfs_time),
        mount_count: volume.mount_count,
        superblock_backups: backups.map(|group| volume.group_start(group)).collect(),
        journal: None,
        groups,
    }
}

/// How metadata are summed.
fn checksums(volume: &Superblock) -> &'static str {
    match volume.sums {
        Sums::None => "",
        Sums::Groups(_) => "CRC-16 of group descriptors, which begins with the UUID",
        Sums::All(_) if volume.features.has_incompat(incompat::CSUM_SEED) => {
            "CRC-32C of all metadata, with a seed of its own"
        }
        Sums::All(_) => "CRC-32C of all metadata, which begins with the UUID",
    }
}

/// How the groups are laid out.
fn groups(info: &Info) -> String {
    let uninitialised = info.groups.iter().filter(|group| !group.uninitialised.is_empty()).count();
    let together = match info.groups_per_flex {
        1 => String::new(),
        groups => format!(", the tables of {groups} together"),
    };
    let never_written = match uninitialised {
        0 => String::new(),
        groups => format!(", {groups} with something that was never written"),
    };
    format!("{} of {} blocks{together}{never_written}", info.groups.len(), info.blocks_per_group)
}

/// A time of the superblock, whose 32 bits have no sign; empty when it was never set.
fn time(secs: u32) -> String {
    match secs {
        0 => String::new(),
        _ => show::time(Timestamp { secs: i64::from(secs), nanos: 0 }),
    }
}

/// Names and texts, for people.
fn lines(info: &Info) -> Vec<(&'static str, String)> {
    let size = info.blocks * u64::from(info.block_size_bytes);
    let free = info.free_blocks * u64::from(info.block_size_bytes);
    let lines = [
        ("format", format!("{} revision {}", info.format, info.revision)),
        ("state", info.state.to_owned()),
        ("label", info.label.clone()),
        ("UUID", info.uuid.clone()),
        ("features", info.features.join(" ")),
        ("read-only because of", info.read_only_because.join(", ")),
        (
            "size",
            format!("{} in {} blocks of {} bytes", show::size(size), info.blocks, info.block_size_bytes),
        ),
        ("clusters", clusters(info)),
        (
            "free",
            format!("{} in {} blocks, {} reserved", show::size(free), info.free_blocks, info.reserved_blocks),
        ),
        ("inodes", format!("{} of {} bytes, {} free", info.inodes, info.inode_size_bytes, info.free_inodes)),
        ("groups", groups(info)),
        ("checksums", info.checksums.to_owned()),
        ("backups", info.superblock_backups.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")),
        ("made", info.made_at.clone()),
        ("mounted", info.mounted_at.clone()),
        ("written", info.written_at.clone()),
        ("checked", info.checked_at.clone()),
    ];
    lines.into_iter().chain(info.journal.iter().flat_map(Shown::lines)).collect()
}

/// What is taken at once, where that is more than a block.
fn clusters(info: &Info) -> String {
    match info.cluster_size_bytes / info.block_size_bytes {
        1 => String::new(),
        blocks => format!("{} bytes, {blocks} blocks", info.cluster_size_bytes),
    }
}

/// The groups as a table.
fn group_lines(groups: &[Group]) -> Vec<String> {
    const HEADINGS: &str = "group  first block  block bitmap  inode bitmap  inode table  free blocks  free inodes  directories  never written";
    let line = |group: &Group| {
        format!(
            "{:>5} {:>12} {:>13} {:>13} {:>12} {:>12} {:>12} {:>12}  {}",
            group.group,
            group.first_block,
            group.block_bitmap,
            group.inode_bitmap,
            group.inode_table,
            group.free_blocks,
            group.free_inodes,
            group.directories,
            group.uninitialised.join(" ")
        )
    };
    std::iter::once(HEADINGS.to_owned()).chain(groups.iter().map(line)).collect()
}
