//! The volume as a file system.

use fstitch_core::{
    Attr, Caller, CheckReport, DirEntry, Entry, Errno, Error, FallocateMode, FileKind, FileSystem,
    InodeFlags, InodeNo, RenameMode, Result, SeekFrom, SetAttr, StatFs, XattrSetMode,
};
use fstitch_posix::make::{Make, directory_perm, node_kind};
use fstitch_posix::name;

use crate::blocks::Blocks;
use crate::data::Author;
use crate::dir;
use crate::layout::{NAME_MAX, ROOT};
use crate::space::space;
use crate::volume::MinixLld;

/// Where listings go on behind `.` and `..`; names have higher numbers.
const DOT: u64 = 1;
const DOTS: u64 = 2;

impl FileSystem for MinixLld {
    fn root(&self) -> InodeNo {
        ROOT
    }

    fn lookup(&self, parent: InodeNo, name: &[u8]) -> Result<Entry> {
        let entry = {
            let _tree = self.share();
            let dir = self.live(self, parent)?;
            self.check_name(&dir, name, None)?;
            let ino = match name {
                b"." => parent,
                b".." => dir.parent,
                _ => dir::find(self, &self.place(parent, name))?.ok_or(Errno::NOENT)?.ino,
            };
            let attr = self.attr(&self.live(self, ino)?)?;
            self.node(ino, 1)?;
            Entry { attr }
        };
        self.evict();
        Ok(entry)
    }

    fn forget(&self, ino: InodeNo, count: u64) {
        self.do_forget(ino, count);
    }

    fn getattr(&self, ino: InodeNo) -> Result<Attr> {
        self.attr_of(ino)
    }

    fn setattr(&self, caller: &Caller, ino: InodeNo, set: &SetAttr) -> Result<Attr> {
        self.do_setattr(caller, ino, set)
    }

    fn readlink(&self, ino: InodeNo) -> Result<Vec<u8>> {
        self.do_readlink(ino)
    }

    fn mknod(&self, caller: &Caller, parent: InodeNo, name: &[u8], mode: u16, rdev: u32) -> Result<Entry> {
        let (kind, rdev) = node_kind(mode, rdev)?;
        self.make(&Make { caller, parent, name: Some(name), kind, perm: mode & 0o7777, rdev, target: b"" })
    }

    fn mkdir(&self, caller: &Caller, parent: InodeNo, name: &[u8], perm: u16) -> Result<Entry> {
        let (kind, perm) = (FileKind::Directory, directory_perm(perm));
        self.make(&Make { caller, parent, name: Some(name), kind, perm, rdev: 0, target: b"" })
    }

    fn symlink(&self, caller: &Caller, parent: InodeNo, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.do_symlink(caller, (parent, name), target)
    }

    fn link(&self, _caller: &Caller, ino: InodeNo, parent: InodeNo, name: &[u8]) -> Result<Entry> {
        self.do_link(ino, (parent, name))
    }

    fn tmpfile(&self, caller: &Caller, parent: InodeNo, perm: u16) -> Result<Entry> {
        let (kind, perm) = (FileKind::Regular, perm & 0o7777);
        self.make(&Make { caller, parent, name: None, kind, perm, rdev: 0, target: b"" })
    }

    fn unlink(&self, _caller: &Caller, parent: InodeNo, name: &[u8]) -> Result<()> {
        self.do_remove((parent, name), FileKind::Regular)
    }

    fn rmdir(&self, _caller: &Caller, parent: InodeNo, name: &[u8]) -> Result<()> {
        self.do_remove((parent, name), FileKind::Directory)
    }

    fn rename(
        &self,
        _caller: &Caller,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        self.do_rename(from, to, mode)
    }

    fn read(&self, ino: InodeNo, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.do_read(ino, offset, buf)
    }

    fn write(&self, caller: &Caller, ino: InodeNo, offset: u64, data: &[u8]) -> Result<usize> {
        self.write_as(Author::Caller(caller), ino, offset, data)
    }

    fn write_back(&self, ino: InodeNo, offset: u64, data: &[u8], stamps: bool) -> Result<usize> {
        self.write_as(Author::Earlier { stamps }, ino, offset, data)
    }

    fn fallocate(
        &self,
        caller: &Caller,
        ino: InodeNo,
        offset: u64,
        len: u64,
        mode: FallocateMode,
    ) -> Result<()> {
        self.do_fallocate(caller, ino, (offset, len), mode)
    }

    fn seek(&self, ino: InodeNo, offset: u64, whence: SeekFrom) -> Result<u64> {
        self.do_seek(ino, offset, whence)
    }

    fn readdir(&self, ino: InodeNo, cookie: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let dir = {
            let _tree = self.share();
            self.live(self, ino)?
        };
        dir.seen().attr.expect_directory()?;
        if dir.nlink == 0 {
            return Ok(());
        }
        self.list(ino, cookie, sink)?;
        self.accessed(&dir);
        Ok(())
    }

    fn fsync(&self, ino: InodeNo, _data_only: bool) -> Result<()> {
        self.attr_of(ino)?;
        self.life()?;
        self.flush()
    }

    fn sync(&self) -> Result<()> {
        self.life()?;
        self.settle_all();
        self.flush()?;
        self.take_failure().map_or(Ok(()), Err)
    }

    fn statfs(&self) -> Result<StatFs> {
        let space = space(self.disk());
        Ok(StatFs {
            block_size: u32::try_from(self.block_size()).expect("a block has at most 64 KiB"),
            blocks: space.total,
            blocks_free: space.free,
            blocks_available: space.free,
            // There are as many inodes as there is room for: nobody counts them.
            inodes: 0,
            inodes_free: 0,
            name_max: u32::try_from(NAME_MAX).expect("it is small"),
        })
    }

    fn getxattr(&self, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        self.do_getxattr(ino, name)
    }

    fn setxattr(
        &self,
        _caller: &Caller,
        ino: InodeNo,
        name: &[u8],
        value: &[u8],
        mode: XattrSetMode,
    ) -> Result<()> {
        self.do_setxattr(ino, (name, value), mode)
    }

    fn listxattr(&self, ino: InodeNo) -> Result<Vec<Vec<u8>>> {
        self.do_listxattr(ino)
    }

    fn removexattr(&self, _caller: &Caller, ino: InodeNo, name: &[u8]) -> Result<()> {
        self.do_removexattr(ino, name)
    }

    fn flags(&self, ino: InodeNo) -> Result<InodeFlags> {
        self.do_flags(ino)
    }

    fn set_flags(&self, caller: &Caller, ino: InodeNo, flags: InodeFlags) -> Result<()> {
        self.do_set_flags(caller, ino, flags)
    }

    fn check(&self) -> Result<CheckReport> {
        let _tree = self.share();
        crate::check::check(self)
    }

    fn unmount(&self) -> Result<()> {
        if self.is_read_only() || self.life().is_err() {
            return Ok(());
        }
        match self.free_orphans() {
            // The next mount frees it.
            Err(error) if error.errno() == Errno::NOSPC => {}
            done => done?,
        }
        let done = match self.disk().checkpoint() {
            Err(error) if error.errno() == Errno::NOSPC => self.flush(),
            done => done,
        };
        self.end_life(Errno::ROFS.into());
        done
    }

    fn abandon(&self, why: &str) -> Result<()> {
        self.end_life(Error::Poisoned(why.into()));
        Ok(())
    }
}

impl MinixLld {
    /// Lists names leaf by leaf: whoever is told may call back.
    fn list(&self, ino: InodeNo, cookie: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let mut after = cookie;
        while after < DOTS {
            let (target, next, name) = match after {
                0 => (ino, DOT, &b"."[..]),
                _ => (self.parent_of(ino)?, DOTS, &b".."[..]),
            };
            debug_assert!(name::is_dots(name));
            if !sink(DirEntry { ino: target, kind: Some(FileKind::Directory), name, next }) {
                return Ok(());
            }
            after = next;
        }
        loop {
            let listed = {
                let _tree = self.share();
                dir::list(self, ino, after)?
            };
            let Some(last) = listed.last() else { return Ok(()) };
            after = last.key;
            for named in &listed {
                let kind = Some(named.kind);
                if !sink(DirEntry { ino: named.ino, kind, name: &named.name, next: named.key }) {
                    return Ok(());
                }
            }
        }
    }

    fn parent_of(&self, ino: InodeNo) -> Result<InodeNo> {
        let _tree = self.share();
        Ok(self.live(self, ino)?.parent)
    }
}
