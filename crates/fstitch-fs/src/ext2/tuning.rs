//! What of a volume's superblock people may change while nobody has it mounted: its features, what is reserved, and when it is checked.
//!
//! **States and transitions.** Old → the seed of sums, if the feature for it comes (nobody looks at it yet) → the superblock, in its first
//! sector: *new* → its copies.
//!
//! **Crash cases.** Two writes of the superblock, each of which changes one sector only. Copies that are behind are looked at only where
//! the superblock is lost; doing it again writes them. Features that mean something to what is on the volume: `switch`.

mod switch;

use fstitch_core::{BlockDevice, BlockKind, BlockNo, Error, Result, Timestamp};

use super::journal::{Place, locate, needs_recovery, read_superblock, write_superblock};
use super::layout::checksum::{crc, seal_superblock};
use super::layout::feature::{Features, compat, incompat, ro_compat};
use super::layout::superblock::{
    RESERVED_BLOCKS, S_CHECKINTERVAL, S_CHECKSUM_SEED, S_ERRORS, S_FEATURE_COMPAT, S_FEATURE_INCOMPAT,
    S_FEATURE_RO_COMPAT, S_MAX_MNT_COUNT, SUPERBLOCK_SIZE, Superblock,
};
use super::mkfs::MkfsFeatures;
use super::num::idx;
use super::resize::write_copies;
use crate::view::BlockView;

/// What a volume keeps for its superuser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// So many of a hundred blocks, at most 50.
    Percent(u8),
    /// So many blocks, at most half of them.
    Blocks(u64),
}

/// What the kernel does when it meets damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// It goes on.
    Continue,
    /// Nothing is written any more.
    RemountReadOnly,
    /// The machine stops.
    Panic,
}

/// Changes; `None` leaves a thing as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Features as a list: `dir_nlink,^huge_file`.
    pub features: Option<String>,
    /// What is reserved.
    pub reserve: Option<Reserve>,
    /// What is done on damage.
    pub on_error: Option<OnError>,
    /// Mounts until a check is due; 0 for never.
    pub mounts_max: Option<u16>,
    /// Seconds until a check is due; 0 for never.
    pub interval: Option<u32>,
}

/// Features that may come, and whether they may go.
const SWITCHED: [(&str, bool); 15] = [
    ("metadata_csum", true),
    ("uninit_bg", true),
    ("quota", true),
    ("project", true),
    ("ext_attr", false),
    ("dir_index", false),
    ("fast_commit", true),
    ("stable_inodes", true),
    ("large_dir", false),
    ("metadata_csum_seed", true),
    ("large_file", false),
    ("huge_file", false),
    ("dir_nlink", false),
    ("extra_isize", false),
    ("filetype", false),
];

/// Changes the volume on `device`. A change of features that was cut short is finished first.
///
/// # Errors
/// `Unsupported`, before anything is written: for a volume that must be recovered first, for features that cannot be kept valid or changed, by
/// name, for numbers that are out of range, and where sums or files of quotas have no room. `Corrupt`, `Io`.
pub fn tune(device: &dyn BlockDevice, tuning: &Tuning, now: Timestamp) -> Result<()> {
    let refuse = |what: String| Err(Error::Unsupported(what));
    if needs_recovery(device)? {
        return refuse("changing a volume that must be recovered first".into());
    }
    switch::finish(device, now)?;
    let (mut raw, shape) = read_superblock(device)?;
    let foreign = MkfsFeatures::foreign(&shape.features);
    if !foreign.is_empty() {
        return refuse(format!("changing a volume with feature {}", foreign.join(", ")));
    }
    let features = match &tuning.features {
        Some(list) => changed(&shape, &raw, list)?,
        None => shape.features,
    };
    if let Some(reserve) = tuning.reserve {
        let (blocks, most) = (shape.blocks_count, shape.blocks_count / 2);
        let reserved = match reserve {
            Reserve::Percent(percent) => {
                blocks / 100 * u64::from(percent) + blocks % 100 * u64::from(percent) / 100
            }
            Reserve::Blocks(reserved) => reserved,
        };
        if reserved > most {
            return refuse(format!("reserving {reserved} of {blocks} blocks: at most {most} can be"));
        }
        RESERVED_BLOCKS.put(&mut raw, reserved);
    }
    if let Some(on_error) = tuning.on_error {
        let code = match on_error {
            OnError::Continue => 1,
            OnError::RemountReadOnly => 2,
            OnError::Panic => 3,
        };
        S_ERRORS.put(&mut raw, code);
    }
    if let Some(mounts) = tuning.mounts_max {
        // As a signed number -1 is never, which 0 means as well.
        S_MAX_MNT_COUNT.put(&mut raw, if mounts == 0 { u16::MAX } else { mounts });
    }
    if let Some(interval) = tuning.interval {
        S_CHECKINTERVAL.put(&mut raw, interval);
    }
    if switch::is_needed(&shape, &features) {
        switch::perform(device, raw, (&shape, features), now)?;
        let (raw, shape) = read_superblock(device)?;
        return write_copies(&BlockView::new(device, idx(shape.block_size)), &raw, &shape);
    }
    let is_seeded = |features: &Features| features.has_incompat(incompat::CSUM_SEED);
    if is_seeded(&features) && !is_seeded(&shape.features) {
        plant_seed(device, &mut raw, &shape)?;
    }
    S_FEATURE_COMPAT.put(&mut raw, features.compat);
    S_FEATURE_INCOMPAT.put(&mut raw, features.incompat);
    S_FEATURE_RO_COMPAT.put(&mut raw, features.ro_compat);
    write_superblock(device, &raw)?;
    let (raw, shape) = read_superblock(device)?;
    write_copies(&BlockView::new(device, idx(shape.block_size)), &raw, &shape)
}

/// The features of a volume after a list of changes.
fn changed(shape: &Superblock, raw: &[u8], list: &str) -> Result<Features> {
    let refuse = |what: String| Err(Error::Unsupported(what));
    if !shape.is_dynamic() {
        return refuse("features on a volume of revision 0".into());
    }
    let mut features = shape.features;
    for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let on = !word.starts_with(['^', '-']);
        let name = word.trim_start_matches(['^', '-', '+']);
        let mut wanted = features;
        if !wanted.set_by_name(name, on) {
            return refuse(format!("feature {name}, which nobody knows"));
        }
        if wanted == features {
            continue;
        }
        match SWITCHED.iter().find(|(known, _)| *known == name) {
            _ if name == "has_journal" => {
                return refuse(
                    "feature has_journal in a list: --journal and --no-journal add and remove one".into(),
                );
            }
            None => return refuse(format!("changing feature {name} of a volume that is made")),
            Some((_, false)) if !on => {
                return refuse(format!("taking feature {name} away: what is on the volume may need it"));
            }
            Some(_) => {}
        }
        match (name, on) {
            // Both have the one sum that a descriptor has.
            ("metadata_csum", true) => wanted.ro_compat &= !ro_compat::UNINIT_BG,
            ("metadata_csum", false) => wanted.incompat &= !incompat::CSUM_SEED,
            ("uninit_bg", true) if features.has_sums() => {
                return refuse(
                    "feature uninit_bg with metadata_csum, which has its sums: ^metadata_csum,uninit_bg is possible".into(),
                );
            }
            _ => {}
        }
        features = wanted;
    }
    check(shape, raw, &features)?;
    Ok(features)
}

/// Fails for features that exclude each other, or that the volume has no place for.
fn check(shape: &Superblock, raw: &[u8], features: &Features) -> Result<()> {
    let refuse = |what: &str| Err(Error::Unsupported(what.to_owned()));
    let has_seed = features.has_incompat(incompat::CSUM_SEED);
    if has_seed && !features.has_sums() {
        return refuse("feature metadata_csum_seed without metadata_csum");
    }
    let had_seed = shape.features.has_incompat(incompat::CSUM_SEED);
    // Values in inodes have sums of that seed, with metadata_csum or without.
    let needs_seed = features.has_sums() || features.has_incompat(incompat::EA_INODE);
    if had_seed && !has_seed && needs_seed && S_CHECKSUM_SEED.get(raw) != crc(u32::MAX, &shape.uuid) {
        return refuse(
            "taking feature metadata_csum_seed away: the UUID is another one than the checksums begin with",
        );
    }
    switch::check(shape, features)?;
    let is_fast = features.compat & compat::FAST_COMMIT != 0;
    if is_fast && !matches!(locate(shape, raw)?, Some(Place::Inode(_))) {
        return refuse("feature fast_commit without a journal in the volume");
    }
    let new_extra = features.has_ro_compat(ro_compat::EXTRA_ISIZE)
        && !shape.features.has_ro_compat(ro_compat::EXTRA_ISIZE);
    if new_extra && shape.inode_size < 256 {
        return refuse("feature extra_isize with inodes of 128 bytes");
    }
    let had_kinds = shape.features.has_incompat(incompat::FILETYPE);
    if features.has_incompat(incompat::FILETYPE) && !had_kinds {
        return refuse("adding feature filetype: names that there are say nothing of kinds");
    }
    Ok(())
}

/// Writes the seed that all sums begin with already. It lies in the superblock's second sector, with the superblock's own sum.
fn plant_seed(device: &dyn BlockDevice, raw: &mut [u8], shape: &Superblock) -> Result<()> {
    let (mut whole, _) = read_superblock(device)?;
    let seed = crc(u32::MAX, &shape.uuid);
    S_CHECKSUM_SEED.put(&mut whole, seed);
    S_CHECKSUM_SEED.put(raw, seed);
    seal_superblock(&mut whole);
    let view = BlockView::new(device, SUPERBLOCK_SIZE);
    view.write(BlockNo(1), BlockKind::Superblock, &whole)?;
    // The next write keeps this sum.
    let sum = super::layout::superblock::S_CHECKSUM;
    sum.put(raw, sum.get(&whole));
    view.flush()
}
