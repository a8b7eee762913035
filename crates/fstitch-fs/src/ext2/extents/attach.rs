//! Giving blocks to files whose map is extents.

use fstitch_core::{BlockNo, Caller, Errno, Result};
use fstitch_patch::{PatchId, PatchIds};

use super::change::{Changed, no32};
use super::ends::up_to_wall;
use super::node::index32;
use super::tree::ADDED_MAX;
use crate::ext2::clusters::Taken;
use crate::ext2::detach::Removal;
use crate::ext2::inode::Inode;
use crate::ext2::layout::extent::{DEPTH_MAX, Extent, UNWRITTEN_MAX};
use crate::ext2::layout::feature::ro_compat;
use crate::ext2::num::{idx64, small};
use crate::ext2::volume::Ext2;
use crate::uhfs::Allocation;

/// Units of 512 bytes that the fields of an inode can count.
const SECTORS_MAX: u64 = (1 << 48) - 1;
/// File blocks end here: the last number means "none" to others.
const END: u64 = 0xffff_ffff;

impl Ext2 {
    /// Takes 1 to `want` blocks for the hole of at least so many at file block `index`, and the nodes they need.
    pub(in crate::ext2) fn allocate_extent(
        &self,
        caller: &Caller,
        inode: &mut Inode,
        index: u64,
        want: u64,
    ) -> Result<Allocation> {
        let Taken { run, .. } = self.take_extent(caller, inode, (index, want), false)?;
        inode.outstanding += 1;
        let allocation = Allocation {
            index,
            start: BlockNo(run.start),
            count: u64::from(run.count),
            reuse: run.reuse,
            bits: run.bits,
        };
        self.claim_clusters(inode, &allocation);
        Ok(allocation)
    }

    fn take_extent(
        &self,
        caller: &Caller,
        inode: &mut Inode,
        (index, want): (u64, u64),
        unwritten: bool,
    ) -> Result<Taken> {
        let room = END.checked_sub(index).filter(|&room| room > 0).ok_or(Errno::FBIG)?;
        let want = want.min(room).min(u64::from(UNWRITTEN_MAX));
        let want = if unwritten { want } else { want.min(up_to_wall(&self.walls(inode), index)) };
        let clusters = want.div_ceil(u64::from(self.sb.cluster_blocks())) + 1;
        self.expect_sectors(inode, clusters + u64::from(DEPTH_MAX) + 1)?;
        let taken = self.take_for_hole(caller, inode, (index, small(idx64(want))))?;
        let run = &taken.run;
        let extent = Extent { block: index32(index), len: run.count, start: run.start, unwritten };
        if let Err(error) = self.reserve_for(caller, inode, extent) {
            self.give_back_taken(&taken);
            self.drop_spare_nodes(inode);
            return Err(error);
        }
        inode.last = Some((index + u64::from(run.count), run.start + u64::from(run.count)));
        Ok(taken)
    }

    /// Fails if the inode's count of blocks cannot say so many clusters more.
    fn expect_sectors(&self, inode: &Inode, more: u64) -> Result<()> {
        let huge = self.sb.features.has_ro_compat(ro_compat::HUGE_FILE);
        let most = if huge { SECTORS_MAX } else { u64::from(u32::MAX) };
        match inode.disk.sectors + more * self.sectors_per_cluster() {
            sectors if sectors > most => Err(Errno::FBIG.into()),
            _ => Ok(()),
        }
    }

    /// Takes blocks for the nodes that an extent needs.
    fn reserve_for(&self, caller: &Caller, inode: &mut Inode, extent: Extent) -> Result<()> {
        let mut tree = self.tree(inode)?;
        let depth = usize::from(tree.root.depth);
        let needed = if inode.outstanding > 0 {
            // Those before it may split every node that it meets, and have it copied.
            inode.spare_nodes.len() + depth + 2 + tree.copied_at_most()
        } else if tree.would_join(extent)? {
            tree.copied_by_joining(u64::from(extent.block))?
        } else {
            tree.nodes_needed(u64::from(extent.block), 1)?
        };
        drop(tree);
        self.reserve_nodes(caller, inode, needed)
    }

    /// Points the file at the allocated blocks, after `contents` and their bits in the free map.
    pub(in crate::ext2) fn attach_extent(
        &self,
        inode: &mut Inode,
        allocation: Allocation,
        contents: &[PatchId],
    ) -> Result<PatchIds> {
        self.end_claims(inode, &allocation);
        let (start, len) = (no32(allocation.start), small(idx64(allocation.count)));
        let extent = Extent { block: index32(allocation.index), len, start, unwritten: false };
        let mut befores = PatchIds::from_slice(contents);
        befores.extend_from_slice(&allocation.bits);
        inode.outstanding = inode.outstanding.saturating_sub(1);
        self.put_extent(inode, extent, &befores)
    }

    /// What an extent that is put in comes after, beside `befores`: without a journal what has changed above its leaf, which till then
    /// ends on the medium where another one begins.
    fn before_put(&self, inode: &Inode, extent: Extent, befores: &[PatchId]) -> Result<PatchIds> {
        let mut all = PatchIds::from_slice(befores);
        if self.copies_nodes() {
            all.extend(self.changes_on_way(inode, u64::from(extent.block))?);
        }
        Ok(all)
    }

    fn put_extent(&self, inode: &mut Inode, extent: Extent, befores: &[PatchId]) -> Result<PatchIds> {
        let got = self.new_clusters(inode, &extent)?;
        let befores = self.before_put(inode, extent, befores)?;
        let changed = self.change_tree(inode, &befores, |tree| tree.insert(extent))?;
        self.finish_put(inode, (extent, got), changed)
    }

    /// The extent is in the tree, with which the file got so many clusters.
    fn finish_put(
        &self,
        inode: &mut Inode,
        (extent, got): (Extent, u32),
        changed: Changed,
    ) -> Result<PatchIds> {
        if let [patch] = changed.patches[..]
            && !self.sb.has_clusters()
        {
            // Of several, none says alone that the file has the blocks; nor does one of blocks whose cluster others have.
            inode.attached.insert(extent.start, extent.len, patch);
        }
        let mut removal = Removal::new(0, 0, &[]);
        self.finish_change(inode, (&changed, got), &mut removal)?;
        self.remember(inode);
        removal.failed.map_or(Ok(changed.patches), Err)
    }

    /// Gives the hole of at least `want` blocks at `index` 1 to `want` unwritten ones.
    pub(in crate::ext2) fn preallocate_extent(
        &self,
        caller: &Caller,
        inode: &mut Inode,
        (index, want): (u64, u64),
    ) -> Result<(u64, PatchIds)> {
        let taken = self.take_extent(caller, inode, (index, want), true)?;
        let run = &taken.run;
        let extent = Extent { block: index32(index), len: run.count, start: run.start, unwritten: true };
        let put = self.before_put(inode, extent, &run.bits).and_then(|befores| {
            let got = self.new_clusters(inode, &extent)?;
            Ok((got, self.change_tree(inode, &befores, |tree| tree.insert(extent))?))
        });
        match put {
            Ok((got, changed)) => Ok((u64::from(run.count), self.finish_put(inode, (extent, got), changed)?)),
            Err(error) => {
                self.give_back_taken(&taken);
                self.drop_spare_nodes(inode);
                Err(error)
            }
        }
    }

    /// Blocks for the nodes that an edit at each of these places takes, at worst. Where only the superuser has room, that is enough:
    /// the file has its blocks already.
    pub(super) fn reserve_for_edits(&self, inode: &mut Inode, places: &[u64]) -> Result<()> {
        self.reserve_for_edits_adding(inode, places, ADDED_MAX)
    }

    /// The same where the first edit adds so many extents at most.
    pub(super) fn reserve_for_edits_adding(
        &self,
        inode: &mut Inode,
        places: &[u64],
        added: usize,
    ) -> Result<()> {
        let mut tree = self.tree(inode)?;
        let mut needed = 0;
        for (before, &index) in places.iter().enumerate() {
            // The edits before it may take the room that there is on the way to it, and make the tree deeper.
            needed += match before {
                0 => tree.nodes_needed(index, added)?,
                _ => usize::from(tree.root.depth) + 2 + tree.copied_at_most(),
            };
        }
        drop(tree);
        self.reserve_nodes(&Caller::default(), inode, needed)
    }
}
