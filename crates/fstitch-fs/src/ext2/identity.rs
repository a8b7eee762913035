//! The label and the UUID of a volume that nobody has mounted.
//!
//! **States and transitions.** Old → the superblock's copies → the superblock: *new*, in one write of 1 KiB.
//!
//! **Crash cases.** In between, some copies have the new names already. Nothing but a check that has lost the superblock
//! looks at them, and doing it again finishes it: a copy counts as this volume's under either UUID.

use fstitch_core::{BlockBuf, BlockDevice, BlockKind, BlockNo, Error, Result};

use super::journal::{Place, locate, needs_recovery, read_superblock, write_superblock};
use super::layout::checksum::{Sums, seal_superblock};
use super::layout::feature::incompat;
use super::layout::superblock::{MAGIC, S_MAGIC, S_UUID, S_VOLUME_NAME, SUPERBLOCK_SIZE, Superblock};
use super::mkfs::MkfsFeatures;
use super::num::idx;
use crate::view::BlockView;

/// Bytes of a volume's label.
pub const LABEL_MAX: usize = 16;

/// How a volume is to be known; `None` leaves it as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// At most [`LABEL_MAX`] bytes.
    pub label: Option<Vec<u8>>,
    /// All zero for none.
    pub uuid: Option<[u8; 16]>,
}

/// Gives the volume on `device` another label or UUID.
///
/// # Errors
/// `Unsupported`, before anything is written: for a label that is too long, a volume that must be recovered first, one with
/// features that only allow reading, and a new UUID where a journal on a device of its own knows the volume by the old one.
pub fn identify(device: &dyn BlockDevice, identity: &Identity) -> Result<()> {
    let refuse = |what: String| Err(Error::Unsupported(what));
    if let Some(label) = identity.label.as_ref().filter(|label| label.len() > LABEL_MAX) {
        return refuse(format!("a label of {} bytes: {LABEL_MAX} are possible", label.len()));
    }
    if needs_recovery(device)? {
        return refuse("changing the identity of a volume that must be recovered first".into());
    }
    let (mut raw, shape) = read_superblock(device)?;
    let foreign = MkfsFeatures::foreign(&shape.features);
    if !foreign.is_empty() {
        return refuse(format!("changing a volume with feature {}", foreign.join(", ")));
    }
    if identity.uuid.is_some() && matches!(locate(&shape, &raw)?, Some(Place::Device(_))) {
        return refuse(
            "another UUID for a volume whose journal is on a device of its own: take the journal away first"
                .into(),
        );
    }
    let is_seeded = shape.features.has_incompat(incompat::CSUM_SEED);
    if identity.uuid.is_some_and(|uuid| uuid != shape.uuid) && shape.sums != Sums::None && !is_seeded {
        return refuse(
            "another UUID for a volume whose checksums all begin with it (feature metadata_csum or uninit_bg): give it \
             feature metadata_csum_seed first (`fstitch tune -O metadata_csum_seed`)"
                .into(),
        );
    }
    update_copies(device, &shape, identity)?;
    put(&mut raw, identity);
    write_superblock(device, &raw)
}

/// Changes the superblock's copies, as far as they are this volume's.
fn update_copies(device: &dyn BlockDevice, shape: &Superblock, identity: &Identity) -> Result<()> {
    let volume = BlockView::new(device, idx(shape.block_size));
    let mut block = BlockBuf::zeroed(volume.block_size());
    for group in (1..shape.group_count()).filter(|&group| shape.has_superblock(group)) {
        let at = BlockNo(shape.group_start(group));
        volume.read(at, BlockKind::Superblock, &mut block)?;
        let copy = &mut block[..SUPERBLOCK_SIZE];
        let uuid = &copy[S_UUID..S_UUID + 16];
        let ours = uuid == shape.uuid || identity.uuid.is_some_and(|new| uuid == new);
        if S_MAGIC.get(copy) == MAGIC && ours {
            put(copy, identity);
            seal_superblock(copy);
            volume.write(at, BlockKind::Superblock, &block)?;
        }
    }
    volume.flush()
}

fn put(raw: &mut [u8], identity: &Identity) {
    if let Some(label) = &identity.label {
        raw[S_VOLUME_NAME..S_VOLUME_NAME + LABEL_MAX].fill(0);
        raw[S_VOLUME_NAME..S_VOLUME_NAME + label.len()].copy_from_slice(label);
    }
    if let Some(uuid) = &identity.uuid {
        raw[S_UUID..S_UUID + 16].copy_from_slice(uuid);
    }
}
