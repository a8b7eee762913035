//! UFS as the generic file system sees it: each micro-operation leads to the module that does it.

use std::sync::Arc;

use fstitch_core::{
    Attr, Caller, CheckReport, DirEntry, FileKind, InodeFlags, InodeNo, Result, StatFs, XattrSetMode,
};
use fstitch_patch::{Cache, PatchId, PatchIds};

use super::layout::superblock::ROOT_INO;
use super::volume::{Inode, Ufs};
use crate::arrange::CachedFormat;
use crate::uhfs::{
    Allocation, AttrChange, ClearedName, Extent, Limits, LowLevelFs, NameSlot, NewInode, ReclaimHooks,
    Reclaimed,
};

impl CachedFormat for Ufs {
    fn open(cache: Arc<Cache>) -> Result<Self> {
        Self::open_in(cache)
    }

    fn name(&self) -> &'static str {
        self.version_name()
    }
}

impl LowLevelFs for Ufs {
    type Inode = Inode;

    fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    fn root(&self) -> InodeNo {
        InodeNo(u64::from(ROOT_INO))
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
        self.change_attr(inode, change, befores)
    }

    fn free_inode(&self, inode: &mut Inode, befores: &[PatchId]) -> Result<()> {
        self.end_inode(inode, befores)
    }

    fn symlink_target(&self, inode: &Inode) -> Result<Vec<u8>> {
        self.read_symlink(inode)
    }

    fn inode_patches(&self, inode: &Inode) -> PatchIds {
        inode.gathered()
    }

    fn map(&self, inode: &Inode, index: u64, max: u64) -> Result<Extent> {
        self.map_run(inode, index, max)
    }

    fn ends_in_block(&self) -> bool {
        true
    }

    fn may_have_lost_blocks(&self, inode: &Inode) -> bool {
        self.is_unclean() && inode.has_blocks(&self.sb)
    }

    fn allocate(&self, caller: &Caller, inode: &mut Inode, index: u64, want: u64) -> Result<Allocation> {
        self.expect_room(inode, want)?;
        self.allocate_run(caller, inode, index, want)
    }

    fn attach(&self, inode: &mut Inode, allocation: Allocation, contents: &[PatchId]) -> Result<PatchIds> {
        self.attach_run(inode, &allocation, contents)
    }

    fn give_back(&self, inode: &mut Inode, allocation: Allocation) {
        self.give_back_allocation(inode, &allocation);
    }

    fn detach(&self, inode: &mut Inode, from: u64, to: u64, befores: &[PatchId]) -> Result<PatchIds> {
        self.detach_range(inode, (from, to), befores)
    }

    fn free_maps(&self) -> u64 {
        u64::from(self.sb.groups)
    }

    fn find_name(&self, dir: &Inode, name: &[u8]) -> Result<Option<NameSlot>> {
        self.find(dir, name)
    }

    fn name_patches(&self, slot: &NameSlot) -> PatchIds {
        self.patches_of_name(slot)
    }

    fn prepare_name(&self, caller: &Caller, dir: &mut Inode, name: &[u8]) -> Result<()> {
        self.prepare(caller, dir, name)
    }

    fn add_name(
        &self,
        dir: &mut Inode,
        name: &[u8],
        ino: InodeNo,
        kind: FileKind,
        befores: &[PatchId],
    ) -> Result<PatchIds> {
        self.add(dir, (name, ino, kind), befores)
    }

    fn replace_name(
        &self,
        dir: &mut Inode,
        slot: &NameSlot,
        ino: InodeNo,
        kind: FileKind,
        befores: &[PatchId],
    ) -> Result<ClearedName> {
        self.replace(dir, slot, (ino, kind), befores)
    }

    fn clear_name(&self, dir: &mut Inode, slot: &NameSlot, befores: &[PatchId]) -> Result<ClearedName> {
        self.clear(dir, slot, befores)
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
        self.write_xattr(caller, inode, (name, value), mode)
    }

    fn remove_xattr(&self, caller: &Caller, inode: &mut Inode, name: &[u8]) -> Result<PatchIds> {
        self.erase_xattr(caller, inode, name)
    }

    fn list_xattrs(&self, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        self.read_xattr_names(inode)
    }

    /// What a crash has left was mended before the volume was opened to be changed.
    fn reclaim(&self, _hooks: &dyn ReclaimHooks<Inode>) -> Result<Reclaimed> {
        Ok(Reclaimed { complete: true, ..Reclaimed::default() })
    }

    fn was_unclean(&self) -> bool {
        self.is_unclean()
    }

    fn check(&self) -> Result<CheckReport> {
        self.check_volume()
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
