//! Maps of files on volumes whose blocks are taken in clusters.
//!
//! A file has a cluster of the volume as a whole, for one of its own clusters, and what of that is mapped lies at the same place in it. So two
//! file blocks of one cluster of the file are in one of the volume; and two files that share a cluster are damage, whichever of its blocks
//! they have.
//!
//! What does not lie so, or in another's cluster, is copied to clusters of its own, all that the file has of such a cluster together: the
//! places beside it in the one that it shares may be the other's.

use std::collections::BTreeSet;

use fstitch_core::{BlockKind, Result};

use super::claims::{Totals, allocate};
use super::state::{State, Volume};
use super::walk::{Pointer, Verdict, Visit, walk};
use crate::ext2::layout::extent::{Extent, LOGICAL_END};
use crate::ext2::layout::superblock::Superblock;
use crate::ext2::num::low32;

/// The clusters of one file, in the order of the file.
#[derive(Debug, Default)]
pub(super) struct Clusters {
    /// The last one that was met: which of the file's, and which of the volume's, if it lies as it must.
    last: Option<(u32, Option<u64>)>,
    /// Those of the file that are to get others of the volume.
    pub(super) moved: BTreeSet<u32>,
}

/// Which clusters of the file an extent lies in: the first and the last.
fn of_file(shape: &Superblock, extent: &Extent) -> (u32, u32) {
    (extent.block >> shape.log_cluster, (extent.block + (extent.len - 1)) >> shape.log_cluster)
}

/// The place of a block in its cluster.
pub(super) fn place_in_cluster(shape: &Superblock, block: u64) -> u32 {
    low32(block % u64::from(shape.cluster_blocks()))
}

impl Clusters {
    /// Claims what an extent of inode `ino` has, and counts it.
    pub(super) fn claim(
        &mut self,
        (volume, state): (&Volume<'_>, &mut State),
        (ino, extent): (u32, Extent),
        totals: &mut Totals,
    ) {
        let shape = &volume.shape;
        let (first, last) = of_file(shape, &extent);
        let known = self.last.filter(|(of_file, _)| *of_file == first);
        let before = u32::from(known.is_some());
        totals.blocks += u64::from(last - first + 1 - before);
        let own = extent.start >> shape.log_cluster;
        let is_placed =
            place_in_cluster(shape, extent.start) == place_in_cluster(shape, u64::from(extent.block));
        if !is_placed || known.is_some_and(|(_, of_volume)| of_volume != Some(own)) {
            let (blocks, at) = (extent.block..=extent.block + (extent.len - 1), extent.start);
            let text =
                format!("file blocks {blocks:?} of inode {ino} from block {at} on, across its clusters");
            let _ = state.corrupt("cluster-place", text);
            self.moved.extend(first..=last);
            self.last = Some((last, None));
            for block in extent.start..extent.start + u64::from(extent.len) {
                // What it has of others' is the others' in any case.
                if !state.has_owner(block) {
                    state.claim(block);
                }
            }
            return;
        }
        self.last = Some((last, Some(own + u64::from(last - first))));
        let (from, end) = (first + before, last + 1);
        let cluster = |of_file: u32| shape.cluster_start(own + u64::from(of_file - first));
        if from == end || state.claim_run(cluster(from), (end - from) << shape.log_cluster) {
            return;
        }
        let range = extent.start..extent.start + u64::from(extent.len);
        let text = format!("some of the clusters of blocks {range:?} of inode {ino} have another owner");
        let _ = state.corrupt("block-shared", text);
        for of_file in from..end {
            if !state.claim(cluster(of_file)) {
                self.moved.insert(of_file);
            }
        }
    }

    /// Whether the cluster of `block` is the one that was met last.
    pub(super) fn is_last(&self, shape: &Superblock, block: u64) -> bool {
        self.last.is_some_and(|(_, of_volume)| of_volume == Some(block >> shape.log_cluster))
    }
}

/// The extents with those of the clusters `moved` in new places, as far as there is room. What reads as zeros there is left out, as a
/// hole reads the same.
pub(super) fn rehome(
    volume: &Volume<'_>,
    state: &mut State,
    extents: &[Extent],
    moved: &BTreeSet<u32>,
) -> Result<Vec<Extent>> {
    let log = volume.shape.log_cluster;
    let mut out = Vec::new();
    let mut home: Option<(u32, Option<u64>)> = None;
    for extent in extents {
        let end = extent.end();
        let mut at = extent.block;
        while u64::from(at) < end {
            let of_file = at >> log;
            let part = |until: u64| {
                let len = u32::try_from(until.min(end) - u64::from(at)).expect("a part of an extent");
                Extent { block: at, len, start: extent.at(at), unwritten: extent.unwritten }
            };
            let next = moved.range(of_file..).next().copied();
            let part = match next {
                Some(next) if next == of_file => part((u64::from(of_file) + 1) << log),
                Some(next) => part(u64::from(next) << log),
                None => part(end),
            };
            at = match at.checked_add(part.len) {
                Some(behind) => behind,
                None => break,
            };
            if next != Some(of_file) {
                out.push(part);
                continue;
            }
            if part.unwritten {
                continue;
            }
            let start = match home {
                Some((of, start)) if of == of_file => start,
                _ => allocate(volume, state)?,
            };
            home = Some((of_file, start));
            if let Some(start) = start {
                let fresh = start + u64::from(place_in_cluster(&volume.shape, u64::from(part.block)));
                copy(volume, part, fresh)?;
                out.push(Extent { start: fresh, ..part });
            }
        }
    }
    Ok(out)
}

fn copy(volume: &Volume<'_>, part: Extent, fresh: u64) -> Result<()> {
    let mut bytes = vec![0; volume.block_size()];
    for (from, to) in (part.start..part.start + u64::from(part.len)).zip(fresh..) {
        volume.read(from, BlockKind::Data, &mut bytes)?;
        volume.write(to, BlockKind::Data, &bytes)?;
    }
    Ok(())
}

/// The blocks of an inode mapped by pointers, as extents. No maker of volumes with clusters has such files.
pub(super) fn by_pointers(volume: &Volume<'_>, raw: &[u8]) -> Result<Vec<Extent>> {
    let mut listing = Listing { extents: Vec::new(), met: BTreeSet::new() };
    walk(volume, &mut raw.to_vec(), &mut listing)?;
    Ok(listing.extents)
}

struct Listing {
    extents: Vec<Extent>,
    /// Blocks of pointers.
    met: BTreeSet<u64>,
}

impl Visit for Listing {
    fn visit(&mut self, volume: &Volume<'_>, pointer: Pointer) -> Result<Verdict> {
        if !volume.is_valid(pointer.block) || pointer.logical >= LOGICAL_END {
            return Ok(Verdict::Skip);
        }
        if pointer.level > 0 {
            return Ok(if self.met.insert(pointer.block) { Verdict::Follow } else { Verdict::Skip });
        }
        let block = u32::try_from(pointer.logical).expect("below the end of files");
        self.extents.push(Extent { block, len: 1, start: pointer.block, unwritten: false });
        Ok(Verdict::Skip)
    }
}
