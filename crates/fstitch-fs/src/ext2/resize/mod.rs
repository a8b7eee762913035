//! Another size for a volume that nobody has mounted. Why it may be cut at any moment: `docs/design/resize.md`. Smaller: `shrink`.
//!
//! ```text
//!   plan ─► new groups, behind the end (groups) ─► what changes inside (table) ─► one transaction (commit) ─► copies
//!   └── without a journal: one meanwhile (lent)
//! ```
//!
//! **Layout.** New groups have their bitmaps and tables in themselves, with or without `flex_bg`. More descriptors take the place of
//! blocks that were reserved for them; with `meta_bg` they lie in the groups that they describe.
//!
//! **States and transitions.** *Old* → new groups are written where the old volume has nothing → what changes inside, the superblock
//! included, in one transaction: *new* → copies of superblock and descriptors.
//!
//! **Invariants.** 1. Nothing inside the old volume changes before the new groups are stable. 2. With a journal everything inside changes
//! at once. 3. Without one the mark of a clean volume is gone before anything inside changes, and the superblock is last.
//!
//! **Crash cases.** See above: the volume is the old or the new one, and growing it again finishes what is left.

mod commit;
mod groups;
mod lent;
mod plan;
mod shrink;
mod staged;
mod table;

pub(super) use commit::write_copies;

use fstitch_core::{BlockDevice, Error, Result, Timestamp};

use super::journal::{Place, locate, needs_recovery, read_superblock};
use super::layout::feature::{Features, PLAIN, incompat, ro_compat};
use super::layout::superblock::{STATE_ERROR, STATE_VALID};
use super::mkfs::MkfsFeatures;
use super::num::idx;
use crate::view::BlockView;
use lent::Lent;
use plan::Sizes;
use staged::Staged;

/// Features with which inodes hold numbers of other inodes, which get other ones when a volume shrinks.
const HOLDING_NUMBERS: u32 = incompat::INLINE_DATA | incompat::EA_INODE;

/// What became of a volume's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resized {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks that it had.
    pub before: u64,
    /// Blocks that it has.
    pub after: u64,
}

/// Is told how much of a long work is done, and of how much.
pub type Progress<'a> = dyn FnMut(u64, u64) + 'a;

/// Gives the volume on `device` a size of `blocks` of its blocks, or a few less: a last group that would hold little more than its own
/// metadata is left out. A volume that has that size stays as it is, but that its copies of superblock and descriptors are written. If
/// it gets smaller, `progress` is told how many blocks and inodes have moved.
///
/// # Errors
/// `Unsupported`, before anything changes: for a volume that is not clean or must be recovered first, for features by name, where
/// the descriptors of more groups have no place, and where fewer blocks have no room for what is in use. `Io`, `Corrupt`: a volume that
/// should get smaller has its old size then, with some of its files elsewhere on it.
pub fn resize(
    device: &dyn BlockDevice,
    blocks: u64,
    now: Timestamp,
    progress: &mut Progress<'_>,
) -> Result<Resized> {
    let (raw, old) = read_superblock(device)?;
    let refuse = |what: String| Err(Error::Unsupported(what));
    let foreign = MkfsFeatures::foreign(&old.features);
    if !foreign.is_empty() {
        return refuse(format!("resizing a volume with feature {}", foreign.join(", ")));
    }
    let is_smaller = blocks < old.blocks_count;
    let inside = Features {
        incompat: old.features.incompat & HOLDING_NUMBERS,
        // The files of quotas would be charged for while they move.
        ro_compat: old.features.ro_compat & ro_compat::QUOTA,
        ..Features::default()
    };
    let read_only = old.features.read_only_because();
    if is_smaller && !read_only.is_empty() {
        return refuse(format!("shrinking a volume with feature {}", read_only.join(", ")));
    }
    if old.features.has_ro_compat(ro_compat::BIGALLOC) {
        return refuse("resizing a volume with feature bigalloc".into());
    }
    if is_smaller && inside != Features::default() {
        let names = inside.all_names().join(", ");
        let has_quotas = inside.has_ro_compat(ro_compat::QUOTA);
        let way_out =
            if has_quotas { ": `fstitch tune -O ^quota` before, and `-O quota` behind it" } else { "" };
        return refuse(format!("shrinking a volume with feature {names}{way_out}"));
    }
    if needs_recovery(device)? || old.state & (STATE_VALID | STATE_ERROR) != STATE_VALID {
        return refuse("resizing a volume that is not clean: check it first".into());
    }
    if !old.is_dynamic() {
        return refuse("resizing a volume of revision 0".into());
    }
    let place = locate(&old, &raw)?;
    if matches!(place, Some(Place::Device(_))) {
        return refuse(
            "resizing a volume whose journal is on a device of its own: take it away first".into(),
        );
    }
    if is_smaller && old.features.has_incompat(incompat::MMP) {
        // Its block may be where the volume ends then.
        return refuse("resizing to less with feature mmp".into());
    }
    let needs_journal = is_smaller || old.features.beyond(&PLAIN) != Features::default();
    let lent = match place {
        None if needs_journal => {
            let planned = Sizes::planned(&raw, old, blocks, device.geometry().bytes())?;
            lent::to(device, planned.as_ref(), now)?
        }
        Some(_) => lent::found(device)?,
        None => Lent::default(),
    };
    let done = resize_with(device, blocks, now, progress);
    lent.take_back(device, done)
}

/// The same, where what must be whole at once can be.
fn resize_with(
    device: &dyn BlockDevice,
    blocks: u64,
    now: Timestamp,
    progress: &mut Progress<'_>,
) -> Result<Resized> {
    let (raw, old) = read_superblock(device)?;
    let (place, is_smaller) = (locate(&old, &raw)?, blocks < old.blocks_count);
    let (before, block_size) = (old.blocks_count, old.block_size);
    let bytes = device.geometry().bytes();
    if is_smaller && let Some(place) = place {
        if let Some(sizes) = Sizes::smaller(&raw, old, blocks, bytes)? {
            let after = sizes.new.blocks_count;
            shrink::shrink(device, (sizes, place), now, progress)?;
            return Ok(Resized { block_size, before, after });
        }
    } else if let Some(sizes) = Sizes::larger(&raw, old, blocks, bytes)? {
        let after = sizes.new.blocks_count;
        grow(device, sizes, place, now)?;
        return Ok(Resized { block_size, before, after });
    }
    let (raw, shape) = read_superblock(device)?;
    write_copies(&BlockView::new(device, idx(block_size)), &raw, &shape)?;
    Ok(Resized { block_size, before, after: before })
}

fn grow(device: &dyn BlockDevice, sizes: Sizes, place: Option<Place>, now: Timestamp) -> Result<()> {
    let volume = BlockView::new(device, idx(sizes.old.block_size));
    let mut staged = Staged::new(volume);
    let (mut free, mut inodes) = (sizes.old.free_blocks, u64::from(sizes.old.free_inodes));
    let mut descriptors = Vec::new();
    for group in sizes.old.group_count()..sizes.new.group_count() {
        let made = groups::describe(&sizes.new, group);
        free += u64::from(made.free_blocks);
        inodes += u64::from(made.free_inodes);
        descriptors.push((group, made));
    }
    free += table::extend_last(&mut staged, &sizes)?;
    table::put_descriptors(&mut staged, &sizes, &descriptors)?;
    table::put_resize_inode(&mut staged, &sizes)?;
    let raw = sizes.superblock(free, inodes);
    commit::check(device, &sizes, &staged, place)?;
    groups::write(&volume, &sizes.new, &descriptors)?;
    commit::commit(device, &sizes, staged, (&raw, place), now)
}
