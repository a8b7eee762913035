//! ext2 as the generic file system sees it: each micro-operation leads to the module that does it.

use std::ops::Range;
use std::sync::Arc;

use fstitch_core::{
    Attr, BlockNo, Caller, CheckReport, DirEntry, FileKind, InodeFlags, InodeNo, Result, StatFs, XattrSetMode,
};
use fstitch_patch::{Cache, PatchId, PatchIds};

use super::dir::{NewName, SPLIT_BLOCKS};
use super::inode::Inode;
use super::layout::feature::ro_compat;
use super::layout::inode::{I_PROJID, PROJINHERIT_FL, has_extra};
use super::quota::{CHARGED_BLOCKS, ENTRY_BLOCKS};
use super::volume::Ext2;
use crate::uhfs::{
    Allocation, AttrChange, ClearedName, Extent, Limits, LowLevelFs, NAME_BLOCKS, NameSlot, NewInode,
    ReclaimHooks, Reclaimed, Shift,
};

impl LowLevelFs for Ext2 {
    type Inode = Inode;

    fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    fn root(&self) -> InodeNo {
        self.root_ino()
    }

    fn limits(&self) -> Limits {
        self.format_limits()
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(self.space())
    }

    fn load(&self, ino: InodeNo) -> Result<Inode> {
        self.load_inode(ino)
    }

    // Most callers want one field.
    #[inline]
    fn attr(&self, inode: &Inode) -> Attr {
        self.attributes(inode)
    }

    fn flags(&self, inode: &Inode) -> InodeFlags {
        Self::inode_flags(inode)
    }

    fn make_inode(
        &self,
        caller: &Caller,
        parent: &Inode,
        new: &NewInode<'_>,
        befores: &[PatchId],
    ) -> Result<(Inode, PatchIds)> {
        self.new_inode(caller, parent, new, befores)
    }

    fn set_attr(&self, inode: &mut Inode, change: &AttrChange, befores: &[PatchId]) -> Result<PatchIds> {
        if change.uid.is_some() || change.gid.is_some() || change.project.is_some() {
            return self.change_owners(inode, change, befores);
        }
        self.change_attr(inode, change, befores)
    }

    fn free_inode(&self, inode: &mut Inode, befores: &[PatchId]) -> Result<()> {
        self.charged(inode, |inode| self.end_inode(inode, befores))
    }

    fn symlink_target(&self, inode: &Inode) -> Result<Vec<u8>> {
        self.read_symlink(inode)
    }

    fn inode_patches(&self, inode: &Inode) -> PatchIds {
        Self::gathered(inode)
    }

    fn map(&self, inode: &Inode, index: u64, max: u64) -> Result<Extent> {
        self.map_run(inode, index, max)
    }

    fn inline_contents(&self, inode: &Inode) -> Result<Option<Vec<u8>>> {
        if inode.disk.has_inline_data() { self.inline_bytes(inode).map(Some) } else { Ok(None) }
    }

    #[inline]
    fn is_inline(&self, inode: &Inode) -> bool {
        inode.disk.has_inline_data()
    }

    fn move_out(&self, caller: &Caller, inode: &mut Inode, keep: u64) -> Result<PatchIds> {
        let space = if keep == 0 { 0 } else { u64::from(self.sb.block_size) };
        self.charged_up_to((caller, space), inode, |inode| Self::move_out(self, caller, inode, keep))
    }

    fn expect(&self, inode: &mut Inode, size: u64) {
        self.expect_blocks(inode, size);
    }

    fn allocate(&self, caller: &Caller, inode: &mut Inode, index: u64, want: u64) -> Result<Allocation> {
        if self.quotas.is_none() {
            return self.allocate_run(caller, inode, index, want);
        }
        let want = self.blocks_by_quota(caller, inode, want)?;
        let allocation = self.allocate_run(caller, inode, index, want)?;
        if let Err(error) = self.expect_map_quota(caller, inode, allocation.count) {
            self.give_back_allocation(inode, allocation);
            return Err(error);
        }
        inode.ahead += allocation.count;
        Ok(allocation)
    }

    fn attach(&self, inode: &mut Inode, allocation: Allocation, contents: &[PatchId]) -> Result<PatchIds> {
        if self.quotas.is_none() {
            return self.attach_run(inode, allocation, contents);
        }
        inode.ahead = inode.ahead.saturating_sub(allocation.count);
        match self.hold_entries(inode.disk.owners()) {
            Ok(held) => {
                let attached = self.attach_run(inode, allocation, contents);
                self.charge(inode, &held);
                attached
            }
            Err(error) => {
                self.give_back_allocation(inode, allocation);
                Err(error)
            }
        }
    }

    fn give_back(&self, inode: &mut Inode, allocation: Allocation) {
        inode.ahead = inode.ahead.saturating_sub(allocation.count);
        self.give_back_allocation(inode, allocation);
    }

    fn overdue_lengths(&self, inode: &Inode) -> PatchIds {
        inode.ends.overdue().into_iter().collect()
    }

    fn has_unwritten(&self, inode: &Inode) -> bool {
        inode.has_extents()
    }

    fn preallocate(
        &self,
        caller: &Caller,
        inode: &mut Inode,
        index: u64,
        want: u64,
    ) -> Result<(u64, PatchIds)> {
        let want = self.blocks_by_quota(caller, inode, want)?;
        self.charged(inode, |inode| self.preallocate_extent(caller, inode, (index, want)))
    }

    fn prepare_written(&self, inode: &mut Inode, index: u64, count: u64) -> Result<Range<u64>> {
        self.charged(inode, |inode| self.prepare_extent_written(inode, index, count))
    }

    fn unwritten_reuse(&self, start: BlockNo, count: u64) -> Result<PatchIds> {
        self.reuse_of(start.get(), count)
    }

    fn mark_written(&self, inode: &mut Inode, range: Range<u64>, contents: &[PatchId]) -> Result<PatchIds> {
        self.charged(inode, |inode| self.mark_extents_written(inode, range, contents))
    }

    fn mark_unwritten(&self, inode: &mut Inode, range: Range<u64>) -> Result<PatchIds> {
        self.charged(inode, |inode| self.mark_extents_unwritten(inode, range))
    }

    fn can_shift(&self, inode: &Inode) -> bool {
        // A journal makes the step whole.
        inode.has_extents() && self.has_journal_in_use()
    }

    fn shift_cost(&self, inode: &Inode, range: &Range<u64>, shift: Shift) -> Result<usize> {
        self.shift_extents_cost(inode, range, shift)
    }

    fn shift(
        &self,
        inode: &mut Inode,
        range: Range<u64>,
        shift: Shift,
        befores: &[PatchId],
    ) -> Result<PatchIds> {
        self.charged(inode, |inode| self.shift_extents(inode, &range, shift, befores))
    }

    fn blocks_end(&self, inode: &Inode) -> Result<u64> {
        if inode.has_extents() { self.extents_end(inode) } else { Ok(0) }
    }

    fn may_have_lost_blocks(&self, inode: &Inode) -> bool {
        // Recovery has ended what a journal says.
        self.is_unclean()
            && !inode.disk.has_inline_data()
            && (!inode.has_extents() || self.left.are_of_soft_updates())
    }

    fn free_maps(&self) -> u64 {
        u64::from(self.sb.group_count())
    }

    fn detach(&self, inode: &mut Inode, from: u64, to: u64, befores: &[PatchId]) -> Result<PatchIds> {
        self.charged(inode, |inode| self.detach_range(inode, from, to, befores))
    }

    fn find_name(&self, dir: &Inode, name: &[u8]) -> Result<Option<NameSlot>> {
        self.find(dir, name)
    }

    fn name_patches(&self, slot: &NameSlot) -> PatchIds {
        // The entry, and the way to the block that it lies in.
        let mut patches = self.memory.links(slot.block.get());
        patches.extend(self.memory.names().created.get(&(slot.block, slot.offset)).copied());
        patches
    }

    fn prepare_name(&self, caller: &Caller, dir: &mut Inode, name: &[u8]) -> Result<()> {
        self.charged(dir, |dir| self.prepare(caller, dir, name))
    }

    fn name_blocks(&self) -> usize {
        NAME_BLOCKS + if self.keeps_indexes() { SPLIT_BLOCKS } else { 0 }
    }

    fn counted_blocks(&self) -> usize {
        if self.quotas.is_some() { CHARGED_BLOCKS } else { 0 }
    }

    fn owner_blocks(&self) -> usize {
        self.quotas.as_ref().map_or(0, |quotas| quotas.kinds() * ENTRY_BLOCKS)
    }

    fn project(&self, inode: &Inode) -> Option<u32> {
        let has_room = has_extra(inode.disk.extra_isize, I_PROJID.end());
        let has_projects = self.sb.features.has_ro_compat(ro_compat::PROJECT);
        (has_room && has_projects).then_some(inode.disk.projid)
    }

    fn may_enter(&self, dir: &Inode, inode: &Inode) -> bool {
        dir.disk.flags & PROJINHERIT_FL == 0 || dir.disk.projid == inode.disk.projid
    }

    fn add_name(
        &self,
        dir: &mut Inode,
        name: &[u8],
        ino: InodeNo,
        kind: FileKind,
        befores: &[PatchId],
    ) -> Result<PatchIds> {
        self.charged(dir, |dir| self.add(dir, NewName { name, ino, kind }, befores))
    }

    fn replace_name(
        &self,
        dir: &mut Inode,
        slot: &NameSlot,
        ino: InodeNo,
        kind: FileKind,
        befores: &[PatchId],
    ) -> Result<ClearedName> {
        self.charged(dir, |dir| self.replace(dir, slot, (ino, kind), befores))
    }

    fn clear_name(&self, dir: &mut Inode, slot: &NameSlot, befores: &[PatchId]) -> Result<ClearedName> {
        self.charged(dir, |dir| self.clear(dir, slot, befores))
    }

    fn exchange_names(
        &self,
        dir: &mut Inode,
        first: &NameSlot,
        second: &NameSlot,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        self.exchange(dir, (first, second), befores)
    }

    fn set_parent(&self, dir: &mut Inode, parent: InodeNo, befores: &[PatchId]) -> Result<PatchId> {
        self.replace_parent(dir, parent, befores)
    }

    fn is_empty_dir(&self, dir: &Inode) -> Result<bool> {
        self.is_empty(dir)
    }

    fn list_names(&self, dir: &Inode, cookie: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.list(dir, cookie, sink)
    }

    fn get_xattr(&self, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        self.read_xattr(inode, name)
    }

    fn set_xattr(
        &self,
        caller: &Caller,
        inode: &mut Inode,
        name: &[u8],
        value: &[u8],
        mode: XattrSetMode,
    ) -> Result<PatchIds> {
        self.charged(inode, |inode| self.write_xattr(caller, inode, (name, value), mode))
    }

    fn remove_xattr(&self, caller: &Caller, inode: &mut Inode, name: &[u8]) -> Result<PatchIds> {
        self.charged(inode, |inode| self.erase_xattr(caller, inode, name))
    }

    fn xattr_blocks(&self, inode: &Inode, len: usize) -> Result<usize> {
        self.value_blocks(inode, len)
    }

    fn end_blocks(&self, inode: &Inode) -> Result<usize> {
        self.ending_value_blocks(inode)
    }

    fn shed_xattr(&self, inode: &mut Inode) -> Result<bool> {
        self.charged(inode, |inode| self.shed_value(inode))
    }

    fn list_xattrs(&self, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        self.read_xattr_names(inode)
    }

    fn space_barred(&self) -> u64 {
        self.barred.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn note_damage(&self) {
        self.mark_damaged();
    }

    fn start_shortening(&self, inode: &mut Inode) -> Result<()> {
        Self::start_shortening(self, inode)
    }

    fn end_shortening(&self, inode: &mut Inode) -> Result<()> {
        Self::end_shortening(self, inode)
    }

    fn was_unclean(&self) -> bool {
        self.is_unclean()
    }

    fn reclaim(&self, hooks: &dyn ReclaimHooks<Inode>) -> Result<Reclaimed> {
        self.reclaim_all(hooks)
    }

    fn check(&self) -> Result<CheckReport> {
        self.check_mounted()
    }

    fn before_sync(&self) {
        self.give_back_preallocated();
    }

    fn forget_stable(&self) {
        self.memory.settle(&self.cache);
    }

    fn mark_in_use(&self) -> Result<()> {
        self.start_use()
    }

    fn mark_clean(&self) -> Result<()> {
        self.end_use()
    }
}
