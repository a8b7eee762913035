//! Features that mean something to what is on the volume: sums, and files of quotas. Why each step is where it is: `docs/design/ext4.md`, "Sums
//! and quotas of a volume that is made".
//!
//! **States and transitions.** *Old* → noted → not clean → quota files that go are empty → everything is written, without sums → with the new
//! ones, which nobody looks at → numbers of quota files → *new*, in one write of the superblock's first sector → mended → *new, clean*.
//!
//! **Invariants.** 1. The volume is not clean from before the first change until nothing is left to do. 2. A feature of sums comes when all sums
//! are right, and goes before the first one is not. 3. A feature's second sector is stable before its first.
//!
//! **Crash cases.** The note ([`finish`]) says who was at it: the next call mends what is left. Anybody's check does the same.

use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, CheckReport, Error, RepairMode, RepairOptions, RepairReport, Result,
    Structure, Timestamp,
};

use super::super::check::{empty_inodes, make_real, repair_ext2, repair_sound_ext2, seal, survey};
use super::super::journal::{read_superblock, write_superblock};
use super::super::layout::checksum::{CHECKSUM_CRC32C, crc, seal_superblock};
use super::super::layout::feature::{Features, incompat, ro_compat};
use super::super::layout::superblock::{
    GROUP_QUOTA_INO, S_CHECKSUM, S_CHECKSUM_SEED, S_CHECKSUM_TYPE, S_FEATURE_COMPAT, S_FEATURE_INCOMPAT,
    S_FEATURE_RO_COMPAT, S_GRP_QUOTA_INUM, S_MNT_COUNT, S_MTIME, S_PRJ_QUOTA_INUM, S_SESSION_MAGIC,
    S_SESSION_MOUNTS, S_SESSION_MTIME, S_SESSION_SINCE, S_STATE, S_USR_QUOTA_INUM, STATE_ERROR, STATE_VALID,
    SUPERBLOCK_SIZE, Superblock, USER_QUOTA_INO,
};
use super::super::num::idx;
use super::super::resize::write_copies;
use crate::view::BlockView;

/// `s_session_magic`: features are being changed. "Ftn1".
const NOTE: u32 = 0x316e_7446;
/// Features of sums.
const SUMS: u32 = ro_compat::METADATA_CSUM | ro_compat::UNINIT_BG;
/// Features with files of quotas.
const QUOTAS: u32 = ro_compat::QUOTA | ro_compat::PROJECT;
/// What a check must not find behind a change of sums.
const SEALED: [&str; 10] = [
    "inode-sum",
    "inode-garbage",
    "extent-sum",
    "dir-sum",
    "dir-tail",
    "index-bad",
    "xattr-sum",
    "bitmap-sum",
    "orphan-file",
    "group-descriptor",
];
/// Where the superblock's second sector begins.
const SECOND: usize = 512;

/// Whether more than the superblock changes.
pub(super) const fn is_needed(shape: &Superblock, features: &Features) -> bool {
    (shape.features.ro_compat ^ features.ro_compat) & (SUMS | QUOTAS) != 0
}

/// Fails for features that cannot come or go, by name.
pub(super) fn check(shape: &Superblock, features: &Features) -> Result<()> {
    let refuse = |what: &str| Err(Error::Unsupported(what.to_owned()));
    let changed = shape.features.ro_compat ^ features.ro_compat;
    if changed & ro_compat::METADATA_CSUM != 0 && features.has_incompat(incompat::MMP) {
        // Who has claimed the volume writes that block meanwhile, as the volume was then.
        return refuse("changing feature metadata_csum of a volume with feature mmp");
    }
    if changed & features.ro_compat & ro_compat::QUOTA != 0 {
        if features.has_incompat(incompat::EA_INODE) {
            return refuse("features quota and ea_inode at once");
        }
        if features.has_ro_compat(ro_compat::BIGALLOC) {
            return refuse("features quota and bigalloc at once");
        }
    }
    if changed & features.ro_compat & ro_compat::PROJECT != 0 && shape.inode_size < 256 {
        return refuse("feature project with inodes of 128 bytes");
    }
    Ok(())
}

/// Finishes a change that was cut short; nothing if there is none.
///
/// # Errors
/// `Io`; `Corrupt` if there is damage that a repair does not mend.
pub(super) fn finish(device: &dyn BlockDevice, now: Timestamp) -> Result<()> {
    let (raw, _) = read_superblock(device)?;
    if is_noted(&raw) { mend(device, now, repair_ext2).map(drop) } else { Ok(()) }
}

/// Whether the note holds: the volume is not clean, and nobody has mounted it since.
fn is_noted(raw: &[u8]) -> bool {
    S_STATE.get(raw) & (STATE_VALID | STATE_ERROR) == 0
        && S_SESSION_MAGIC.get(raw) == NOTE
        && S_SESSION_MTIME.get(raw) == S_MTIME.get(raw)
        && S_SESSION_MOUNTS.get(raw) == S_MNT_COUNT.get(raw)
}

type Repair = fn(&dyn BlockDevice, RepairOptions) -> Result<RepairReport>;

/// Makes what is missing, frees what nobody has, and marks the volume as clean. What was found before.
fn mend(device: &dyn BlockDevice, now: Timestamp, repair: Repair) -> Result<CheckReport> {
    let report = repair(device, RepairOptions { mode: RepairMode::Yes, now })?;
    match report.left.findings.first() {
        None => Ok(report.found),
        Some(left) => {
            let problem = format!("the change of its features is not finished: {}", left.text);
            Err(Error::corrupt(Structure::Superblock, None, problem))
        }
    }
}

/// For which kinds there are files of quotas, and for which there will be.
fn kinds(shape: &Superblock, features: &Features) -> ([bool; 3], [bool; 3]) {
    let had = shape.quota_inodes.map(|ino| ino != 0 && shape.features.has_ro_compat(ro_compat::QUOTA));
    let (has_projects, had_projects) =
        (features.has_ro_compat(ro_compat::PROJECT), shape.features.has_ro_compat(ro_compat::PROJECT));
    let have = if !features.has_ro_compat(ro_compat::QUOTA) {
        [false; 3]
    } else if shape.features.has_ro_compat(ro_compat::QUOTA) {
        [had[0], had[1], has_projects && (had[2] || !had_projects)]
    } else {
        [true, true, has_projects]
    };
    (had, have)
}

/// Makes the volume on `device`, which is `shape`, one with `features`. `raw` is its superblock with other changes, that are made as well.
///
/// # Errors
/// `Unsupported`, before anything is written, if the volume is not sound and clean, or has no room.
pub(super) fn perform(
    device: &dyn BlockDevice,
    mut raw: Vec<u8>,
    (shape, features): (&Superblock, Features),
    now: Timestamp,
) -> Result<()> {
    let (had, have) = kinds(shape, &features);
    put_features(&mut raw, &features);
    S_CHECKSUM_TYPE.put(&mut raw, if features.has_sums() { CHECKSUM_CRC32C } else { 0 });
    if features.has_incompat(incompat::CSUM_SEED) && !shape.features.has_incompat(incompat::CSUM_SEED) {
        S_CHECKSUM_SEED.put(&mut raw, crc(u32::MAX, &shape.uuid));
    }
    let comes: [bool; 3] = std::array::from_fn(|at| have[at] && !had[at]);
    let project = look(device, &raw, (shape, &features), comes)?;
    let places = [USER_QUOTA_INO, GROUP_QUOTA_INO, if had[2] { shape.quota_inodes[2] } else { project }];
    let fields = [S_USR_QUOTA_INUM, S_GRP_QUOTA_INUM, S_PRJ_QUOTA_INUM];
    for ((field, place), has) in fields.into_iter().zip(places).zip(have) {
        field.put(&mut raw, if has { place } else { 0 });
    }
    begin(device)?;
    let changed: Vec<u32> = (0..3).filter(|&at| had[at] != have[at]).map(|at| places[at]).collect();
    empty_inodes(device, &changed)?;
    let sums = |features: &Features| features.ro_compat & SUMS;
    if sums(&shape.features) != sums(&features) {
        change_sums(device, &raw, (shape, &features), now)?;
    }
    put_note(&mut raw);
    let state = S_STATE.get(&raw) & !STATE_VALID;
    S_STATE.put(&mut raw, state);
    write_by_sectors(device, &raw)?;
    let (raw, shape) = read_superblock(device)?;
    write_copies(&BlockView::new(device, idx(shape.block_size)), &raw, &shape)?;
    let found = mend(device, now, repair_sound_ext2)?;
    let unsealed = found.findings.iter().find(|finding| SEALED.contains(&finding.code));
    debug_assert!(unsealed.is_none(), "all sums were right before they were looked at: {unsealed:?}");
    Ok(())
}

/// Looks whether the volume is sound and clean, and has room for the features of `raw`; an inode for the quotas of projects, if these come.
fn look(
    device: &dyn BlockDevice,
    raw: &[u8],
    (shape, features): (&Superblock, &Features),
    comes: [bool; 3],
) -> Result<u32> {
    let refuse = |what: String| Err(Error::Unsupported(what));
    if shape.state & (STATE_VALID | STATE_ERROR) != STATE_VALID {
        return refuse("changing features of a volume that is not clean: check it first".into());
    }
    let mut target = raw.to_vec();
    seal_superblock(&mut target);
    let target = Superblock::parse_unsummed(&target, device.geometry().bytes())?;
    let (report, found) = survey(device, target, comes)?;
    if let Some(damage) = report.findings.first().filter(|_| report.corrupt > 0) {
        return refuse(format!(
            "changing features of a volume that is damaged: check it first ({})",
            damage.text
        ));
    }
    let Some(found) = found else { return refuse("changing features of a volume that is damaged".into()) };
    let free = found.allocatable;
    if let Some(first) = found.crowded.first() {
        let needed = found.crowded_blocks;
        if features.has_ro_compat(ro_compat::BIGALLOC) {
            return refuse(format!(
                "feature metadata_csum with bigalloc: directory {first} has no room for sums"
            ));
        }
        if needed > free {
            return refuse(format!(
                "feature metadata_csum: directory {first} has no room for sums. To write all such directories anew takes {needed} free \
                 blocks, and {free} are free: make room on the volume, or in the directory"
            ));
        }
    }
    if found.quota_blocks > free.saturating_sub(found.crowded_blocks) {
        let needed = found.quota_blocks;
        return refuse(format!("feature quota: its files take {needed} blocks, and only {free} are free"));
    }
    match found.spare_inode {
        Some(ino) => Ok(ino),
        None if !comes[2] => Ok(0),
        None => refuse("feature project: the file of quotas takes an inode, and none is free".into()),
    }
}

fn put_features(raw: &mut [u8], features: &Features) {
    S_FEATURE_COMPAT.put(raw, features.compat);
    S_FEATURE_INCOMPAT.put(raw, features.incompat);
    S_FEATURE_RO_COMPAT.put(raw, features.ro_compat);
}

fn put_note(raw: &mut [u8]) {
    S_SESSION_MAGIC.put(raw, NOTE);
    S_SESSION_SINCE.put(raw, 0);
    let (mtime, mounts) = (S_MTIME.get(raw), S_MNT_COUNT.get(raw));
    S_SESSION_MTIME.put(raw, mtime);
    S_SESSION_MOUNTS.put(raw, mounts);
}

/// Notes what is going on, and takes the mark of a clean volume away.
fn begin(device: &dyn BlockDevice) -> Result<()> {
    let (mut raw, _) = read_superblock(device)?;
    put_note(&mut raw);
    write_by_sectors(device, &raw)?;
    let (mut raw, _) = read_superblock(device)?;
    let state = S_STATE.get(&raw) & !STATE_VALID;
    S_STATE.put(&mut raw, state);
    write_superblock(device, &raw)
}

/// Takes the sums away that there are, and writes those that the superblock `to` asks for, whose features come later.
fn change_sums(
    device: &dyn BlockDevice,
    to: &[u8],
    (shape, features): (&Superblock, &Features),
    now: Timestamp,
) -> Result<()> {
    if shape.features.has_group_sums() {
        make_real(device)?;
    }
    let (mut raw, _) = read_superblock(device)?;
    let mut without = shape.features;
    without.ro_compat &= !SUMS;
    without.incompat &= !incompat::CSUM_SEED;
    put_features(&mut raw, &without);
    write_superblock(device, &raw)?;
    // As the volume is, but for its sums.
    let with = Features {
        ro_compat: without.ro_compat | features.ro_compat & SUMS,
        incompat: without.incompat | features.incompat & incompat::CSUM_SEED,
        ..without
    };
    put_features(&mut raw, &with);
    S_CHECKSUM_TYPE.put(&mut raw, S_CHECKSUM_TYPE.get(to));
    S_CHECKSUM_SEED.put(&mut raw, S_CHECKSUM_SEED.get(to));
    let all = shape.features.has_sums() || features.has_sums();
    seal(device, &raw, all, now)
}

/// Writes a superblock of which both sectors change: the second one first, with a sum that is right with both first ones.
fn write_by_sectors(device: &dyn BlockDevice, new: &[u8]) -> Result<()> {
    let (mut raw, shape) = read_superblock(device)?;
    let mut new = new.to_vec();
    seal_superblock(&mut new);
    raw[SECOND..].copy_from_slice(&new[SECOND..]);
    if shape.features.has_sums() {
        seal_superblock(&mut raw);
        // The first sector is made to have the same.
        S_CHECKSUM.put(&mut new, S_CHECKSUM.get(&raw));
    }
    let view = BlockView::new(device, SUPERBLOCK_SIZE);
    view.write(BlockNo(1), BlockKind::Superblock, &raw)?;
    view.flush()?;
    write_superblock(device, &new)
}
