//! A superblock of two: a copy says where everything is; what is left of the first one says what copies never heard of.
//!
//! Systems change labels, flags, the list of snapshots, the place of a journal and the inodes of quotas in the first superblock alone.
//! Media lose sectors or bits, so that each sector of it is believed by itself.

use super::copies;
use super::supers::{SAME, derived, put_fields, why_unusable};
use super::volume::Volume;
use crate::ufs::layout::superblock::{READ, Superblock, at as field};

/// Bytes that are lost together.
const SECTOR: usize = 512;
/// What volumes are told apart by.
const ID: [usize; 2] = [144, 148];
/// Bytes of the label.
const LABEL: std::ops::Range<usize> = 680..712;
/// Numbers of the last sector that no system changes, by the bytes of their words.
const LAST: [usize; 14] =
    [1080, 1084, 1088, 1092, 1096, 1100, 1320, 1328, 1332, 1336, 1340, 1344, 1348, 1372];

/// Whether `there` is what is left of a superblock of the shape of `volume`: half of what copies have.
pub(super) fn is_left(volume: &Volume<'_>, there: &[u8]) -> bool {
    let same = SAME.iter().filter(|&&at| volume.word(at) == volume.order().u32(there, at)).count();
    same * 2 >= SAME.len()
}

/// The superblock of `volume`, a copy, with what is left of the first one in `there`.
pub(super) fn of(volume: &Volume<'_>, there: &[u8]) -> Vec<u8> {
    let (copy, order) = (&volume.raw, volume.order());
    let mut raw = copy.clone();
    let has_first = is_left(volume, there);
    if has_first && ID.iter().all(|&at| volume.word(at) != order.u32(there, at)) {
        return raw;
    }
    let kept = [has_first, is_second(there), is_last(volume, there)];
    for (sector, _) in kept.iter().enumerate().filter(|(_, is_kept)| **is_kept) {
        let bytes = sector * SECTOR..(sector + 1) * SECTOR;
        raw[bytes.clone()].copy_from_slice(&there[bytes]);
    }
    for at in SAME {
        order.put_u32(&mut raw, at, volume.word(at));
    }
    // As little as makes a volume of it: systems may have changed how long maps are.
    for with_maps in [false, true] {
        copies::put_all(volume, &mut raw, with_maps);
        if is_usable(volume, &raw) {
            return raw;
        }
    }
    put_fields(&mut raw, order, &derived(volume));
    if is_usable(volume, &raw) { raw } else { copy.clone() }
}

/// Whether the second sector can be one: a label is text, and a journal in one of its places.
fn is_second(there: &[u8]) -> bool {
    let label = there[LABEL].split(|&byte| byte == 0).next().unwrap_or_default();
    there[SECTOR..2 * SECTOR].iter().any(|&byte| byte != 0)
        && std::str::from_utf8(label).is_ok_and(|label| !label.contains(char::is_control))
        && there[field::JOURNAL_VERSION] <= 1
        && there[field::JOURNAL_LOCATION] <= 2
}

/// Whether the last sector is one: half of what a copy says is there.
fn is_last(volume: &Volume<'_>, there: &[u8]) -> bool {
    let said: Vec<usize> = LAST.into_iter().filter(|&at| volume.word(at) != 0).collect();
    let same = said.iter().filter(|&&at| volume.word(at) == volume.order().u32(there, at)).count();
    same * 2 >= said.len()
}

fn is_usable(volume: &Volume<'_>, raw: &[u8]) -> bool {
    let bytes = volume.source.fragments() * volume.fragment();
    Superblock::parse(raw, volume.shape.at, bytes).is_ok_and(|shape| {
        let merged = Volume { source: volume.source, shape, raw: raw.to_vec() };
        why_unusable(&merged).is_none()
    })
}

const _: () = assert!(READ == 3 * SECTOR);
