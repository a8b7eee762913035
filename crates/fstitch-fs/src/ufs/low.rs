//! UFS as the generic file system sees it. What changes a volume answers that it is read-only, as the cache below is.

use std::sync::Arc;

use fstitch_core::{
    Attr, Caller, CheckReport, DirEntry, Errno, FileKind, InodeFlags, InodeNo, Result, StatFs, XattrSetMode,
};
use fstitch_patch::{Cache, PatchId, PatchIds};

use super::layout::superblock::ROOT_INO;
use super::volume::{Inode, Ufs};
use crate::arrange::CachedFormat;
use crate::uhfs::{Allocation, AttrChange, ClearedName, Extent, Limits, LowLevelFs, NameSlot, NewInode};

/// Nothing is changed.
fn read_only<T>() -> Result<T> {
    Err(Errno::ROFS.into())
}

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
        _caller: &Caller,
        _parent: &Inode,
        _new: &NewInode<'_>,
        _befores: &[PatchId],
    ) -> Result<(Inode, PatchIds)> {
        read_only()
    }

    fn set_attr(&self, _inode: &mut Inode, _change: &AttrChange, _befores: &[PatchId]) -> Result<PatchIds> {
        read_only()
    }

    fn free_inode(&self, _inode: &mut Inode, _befores: &[PatchId]) -> Result<()> {
        read_only()
    }

    fn symlink_target(&self, inode: &Inode) -> Result<Vec<u8>> {
        self.read_symlink(inode)
    }

    fn inode_patches(&self, _inode: &Inode) -> PatchIds {
        PatchIds::new()
    }

    fn map(&self, inode: &Inode, index: u64, max: u64) -> Result<Extent> {
        self.map_run(inode, index, max)
    }

    fn allocate(&self, _caller: &Caller, _inode: &mut Inode, _index: u64, _want: u64) -> Result<Allocation> {
        read_only()
    }

    fn attach(&self, _inode: &mut Inode, _allocation: Allocation, _contents: &[PatchId]) -> Result<PatchIds> {
        read_only()
    }

    fn give_back(&self, _inode: &mut Inode, _allocation: Allocation) {}

    fn detach(&self, _inode: &mut Inode, _from: u64, _to: u64, _befores: &[PatchId]) -> Result<PatchIds> {
        read_only()
    }

    fn free_maps(&self) -> u64 {
        u64::from(self.sb.groups)
    }

    fn find_name(&self, dir: &Inode, name: &[u8]) -> Result<Option<NameSlot>> {
        self.find(dir, name)
    }

    fn prepare_name(&self, _caller: &Caller, _dir: &mut Inode, _name: &[u8]) -> Result<()> {
        read_only()
    }

    fn add_name(
        &self,
        _dir: &mut Inode,
        _name: &[u8],
        _ino: InodeNo,
        _kind: FileKind,
        _befores: &[PatchId],
    ) -> Result<PatchIds> {
        read_only()
    }

    fn replace_name(
        &self,
        _dir: &mut Inode,
        _slot: &NameSlot,
        _ino: InodeNo,
        _kind: FileKind,
        _befores: &[PatchId],
    ) -> Result<ClearedName> {
        read_only()
    }

    fn clear_name(&self, _dir: &mut Inode, _slot: &NameSlot, _befores: &[PatchId]) -> Result<ClearedName> {
        read_only()
    }

    fn set_parent(&self, _dir: &mut Inode, _parent: InodeNo, _befores: &[PatchId]) -> Result<PatchId> {
        read_only()
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
        _caller: &Caller,
        _inode: &mut Inode,
        _name: &[u8],
        _value: &[u8],
        _mode: XattrSetMode,
    ) -> Result<PatchIds> {
        read_only()
    }

    fn remove_xattr(&self, _caller: &Caller, _inode: &mut Inode, _name: &[u8]) -> Result<PatchIds> {
        read_only()
    }

    fn list_xattrs(&self, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        self.read_xattr_names(inode)
    }

    fn was_unclean(&self) -> bool {
        self.is_unclean()
    }

    fn check(&self) -> Result<CheckReport> {
        self.check_volume()
    }

    fn mark_in_use(&self) -> Result<()> {
        read_only()
    }

    fn mark_clean(&self) -> Result<()> {
        Ok(())
    }
}
