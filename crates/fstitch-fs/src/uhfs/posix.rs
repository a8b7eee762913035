//! `FileSystem`, the table of contents of all operations; each is in the module that bears its concept.

use fstitch_core::groups::{GroupCall, GroupId};
use fstitch_core::{
    Attr, Caller, CheckReport, DirEntry, Entry, FallocateMode, FileKind, FileSystem, InodeFlags, InodeNo,
    RenameMode, Result, SeekFrom, SetAttr, StatFs, XattrSetMode,
};
use fstitch_posix::make::Make;

use super::{LowLevelFs, Uhfs};

impl<L: LowLevelFs> FileSystem for Uhfs<L> {
    fn root(&self) -> InodeNo {
        self.low.root()
    }

    fn lookup(&self, parent: InodeNo, name: &[u8]) -> Result<Entry> {
        self.noticed(self.do_lookup(parent, name))
    }

    fn forget(&self, ino: InodeNo, count: u64) {
        self.do_forget(ino, count);
    }

    fn getattr(&self, ino: InodeNo) -> Result<Attr> {
        self.noticed(self.do_getattr(ino))
    }

    fn setattr(&self, caller: &Caller, ino: InodeNo, set: &SetAttr) -> Result<Attr> {
        let attr = self.with_space(|| self.do_setattr(caller, ino, set))?;
        self.touch_groups(&[ino])?;
        self.sync_if_asked(ino)?;
        Ok(attr)
    }

    fn readlink(&self, ino: InodeNo) -> Result<Vec<u8>> {
        self.noticed(self.do_readlink(ino))
    }

    fn mknod(&self, caller: &Caller, parent: InodeNo, name: &[u8], mode: u16, rdev: u32) -> Result<Entry> {
        self.made(parent, self.with_space(|| self.do_mknod(caller, (parent, name), mode, rdev))?)
    }

    fn mkdir(&self, caller: &Caller, parent: InodeNo, name: &[u8], perm: u16) -> Result<Entry> {
        let kind = FileKind::Directory;
        let perm = fstitch_posix::make::directory_perm(perm);
        let make = Make { caller, parent, name: Some(name), kind, perm, rdev: 0, target: b"" };
        self.made(parent, self.with_space(|| self.make(&make))?)
    }

    fn symlink(&self, caller: &Caller, parent: InodeNo, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.made(parent, self.with_space(|| self.do_symlink(caller, (parent, name), target))?)
    }

    fn link(&self, caller: &Caller, ino: InodeNo, parent: InodeNo, name: &[u8]) -> Result<Entry> {
        self.made(parent, self.with_space(|| self.do_link(caller, ino, (parent, name)))?)
    }

    fn tmpfile(&self, caller: &Caller, parent: InodeNo, perm: u16) -> Result<Entry> {
        let (kind, perm) = (FileKind::Regular, perm & 0o7777);
        let make = Make { caller, parent, name: None, kind, perm, rdev: 0, target: b"" };
        self.with_space(|| self.make(&make))
    }

    fn unlink(&self, _caller: &Caller, parent: InodeNo, name: &[u8]) -> Result<()> {
        self.noticed(self.do_unlink(parent, name))?;
        self.touch_groups(&[parent])?;
        self.sync_names_if_asked(&[parent])
    }

    fn rmdir(&self, _caller: &Caller, parent: InodeNo, name: &[u8]) -> Result<()> {
        self.noticed(self.do_rmdir(parent, name))?;
        self.touch_groups(&[parent])?;
        self.sync_names_if_asked(&[parent])
    }

    fn rename(
        &self,
        caller: &Caller,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        self.with_space(|| self.do_rename(caller, from, to, mode))?;
        self.touch_groups(&[from.0, to.0])?;
        self.sync_names_if_asked(&[from.0, to.0])
    }

    fn read(&self, ino: InodeNo, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.noticed(self.do_read(ino, offset, buf))
    }

    fn write(&self, caller: &Caller, ino: InodeNo, offset: u64, data: &[u8]) -> Result<usize> {
        let (written, synchronous) = self.with_space(|| self.do_write(caller, ino, offset, data))?;
        self.touch_groups(&[ino])?;
        if synchronous {
            self.do_fsync(ino, false)?;
        }
        Ok(written)
    }

    fn write_back(&self, ino: InodeNo, offset: u64, data: &[u8], stamps: bool) -> Result<usize> {
        let (written, synchronous) = self.with_space(|| self.do_write_back(ino, offset, data, stamps))?;
        self.touch_groups(&[ino])?;
        if synchronous {
            self.do_fsync(ino, false)?;
        }
        Ok(written)
    }

    fn fallocate(
        &self,
        caller: &Caller,
        ino: InodeNo,
        offset: u64,
        len: u64,
        mode: FallocateMode,
    ) -> Result<()> {
        self.with_space(|| self.do_fallocate(caller, ino, (offset, len), mode))?;
        self.touch_groups(&[ino])?;
        self.sync_if_asked(ino)
    }

    fn expect(&self, ino: InodeNo, size: u64) -> Result<()> {
        let node = self.node(ino)?;
        let mut state = node.write()?;
        self.low.expect(state.inode_mut(), size);
        Ok(())
    }

    fn seek(&self, ino: InodeNo, offset: u64, whence: SeekFrom) -> Result<u64> {
        self.noticed(self.do_seek(ino, offset, whence))
    }

    fn readdir(&self, ino: InodeNo, cookie: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.noticed(self.do_readdir(ino, cookie, sink))
    }

    fn fsync(&self, ino: InodeNo, data_only: bool) -> Result<()> {
        self.noticed(self.do_fsync(ino, data_only))
    }

    fn sync(&self) -> Result<()> {
        self.do_sync()
    }

    fn statfs(&self) -> Result<StatFs> {
        self.low.statfs()
    }

    fn getxattr(&self, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        self.noticed(self.do_getxattr(ino, name))
    }

    fn setxattr(
        &self,
        caller: &Caller,
        ino: InodeNo,
        name: &[u8],
        value: &[u8],
        mode: XattrSetMode,
    ) -> Result<()> {
        self.with_space(|| self.do_setxattr(caller, ino, (name, value), mode))?;
        self.touch_groups(&[ino])?;
        self.sync_if_asked(ino)
    }

    fn listxattr(&self, ino: InodeNo) -> Result<Vec<Vec<u8>>> {
        self.noticed(self.do_listxattr(ino))
    }

    fn removexattr(&self, caller: &Caller, ino: InodeNo, name: &[u8]) -> Result<()> {
        self.with_space(|| self.do_removexattr(caller, ino, name))?;
        self.touch_groups(&[ino])?;
        self.sync_if_asked(ino)
    }

    fn flags(&self, ino: InodeNo) -> Result<InodeFlags> {
        self.noticed(self.do_flags(ino))
    }

    fn set_flags(&self, caller: &Caller, ino: InodeNo, flags: InodeFlags) -> Result<()> {
        self.noticed(self.do_set_flags(caller, ino, flags))?;
        self.touch_groups(&[ino])?;
        self.sync_if_asked(ino)
    }

    fn project(&self, ino: InodeNo) -> Result<u32> {
        self.noticed(self.do_project(ino))
    }

    fn set_project(&self, caller: &Caller, ino: InodeNo, project: u32) -> Result<()> {
        self.with_space(|| self.do_set_project(caller, ino, project))?;
        self.touch_groups(&[ino])?;
        self.sync_if_asked(ino)
    }

    fn group(&self, call: GroupCall) -> Result<GroupId> {
        self.do_group(call)
    }

    fn check(&self) -> Result<CheckReport> {
        // Changes wait at the gate: a check of a moving volume would report what is only half done.
        let _gate = self.shut_gate();
        self.low.check()
    }

    fn unmount(&self) -> Result<()> {
        self.do_unmount()
    }

    fn abandon(&self, why: &str) -> Result<()> {
        self.cache().abandon(why);
        Ok(())
    }
}
