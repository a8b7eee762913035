//! The volume as a file system.

use fstitch_core::{
    Attr, Caller, CheckReport, DirEntry, Entry, Errno, Error, FallocateMode, FileKind, FileSystem,
    InodeFlags, InodeNo, RenameMode, Result, SeekFrom, SetAttr, StatFs, XattrSetMode,
};
use fstitch_posix::make::{Make, directory_perm, node_kind};

use crate::data::Author;
use crate::dir;
use crate::layout::{NAME_MAX, ROOT};
use crate::volume::Bpfs;

/// Where listings go on behind `.` and `..`; entries go on from their end, plus this.
const DOT: u64 = 1;
const DOTS: u64 = 2;
/// Names that are taken out of a directory at once.
const LISTED: usize = 128;

/// A name that was listed: its inode, what that is, the name, and where to go on.
type Listed = (InodeNo, FileKind, Vec<u8>, u64);

impl FileSystem for Bpfs {
    fn root(&self) -> InodeNo {
        ROOT
    }

    fn lookup(&self, parent: InodeNo, name: &[u8]) -> Result<Entry> {
        let entry = {
            let core = self.share();
            let state = &core.state;
            let dir = self.live(state, parent)?;
            self.check_name(&dir, name, None)?;
            let ino = match name {
                b"." => parent.get(),
                b".." => state.inodes.parent(dir.ino).ok_or(Errno::NOENT)?,
                _ => self.find(state, &dir, name)?.ok_or(Errno::NOENT)?.ino,
            };
            self.node(state, InodeNo(ino), 1)?;
            Entry { attr: self.attr(state, ino)? }
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
        self.durably(self.do_setattr(caller, ino, set))
    }

    fn readlink(&self, ino: InodeNo) -> Result<Vec<u8>> {
        self.do_readlink(ino)
    }

    fn mknod(&self, caller: &Caller, parent: InodeNo, name: &[u8], mode: u16, rdev: u32) -> Result<Entry> {
        let (kind, rdev) = node_kind(mode, rdev)?;
        self.durably(self.make(&Make {
            caller,
            parent,
            name: Some(name),
            kind,
            perm: mode & 0o7777,
            rdev,
            target: b"",
        }))
    }

    fn mkdir(&self, caller: &Caller, parent: InodeNo, name: &[u8], perm: u16) -> Result<Entry> {
        let (kind, perm) = (FileKind::Directory, directory_perm(perm));
        self.durably(self.make(&Make { caller, parent, name: Some(name), kind, perm, rdev: 0, target: b"" }))
    }

    fn symlink(&self, caller: &Caller, parent: InodeNo, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.durably(self.do_symlink(caller, (parent, name), target))
    }

    fn link(&self, _caller: &Caller, ino: InodeNo, parent: InodeNo, name: &[u8]) -> Result<Entry> {
        self.durably(self.do_link(ino, (parent, name)))
    }

    fn tmpfile(&self, caller: &Caller, parent: InodeNo, perm: u16) -> Result<Entry> {
        let (kind, perm) = (FileKind::Regular, perm & 0o7777);
        self.durably(self.make(&Make { caller, parent, name: None, kind, perm, rdev: 0, target: b"" }))
    }

    fn unlink(&self, _caller: &Caller, parent: InodeNo, name: &[u8]) -> Result<()> {
        self.durably(self.do_remove((parent, name), FileKind::Regular))
    }

    fn rmdir(&self, _caller: &Caller, parent: InodeNo, name: &[u8]) -> Result<()> {
        self.durably(self.do_remove((parent, name), FileKind::Directory))
    }

    fn rename(
        &self,
        _caller: &Caller,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        self.durably(self.do_rename(from, to, mode))
    }

    fn read(&self, ino: InodeNo, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.do_read(ino, offset, buf)
    }

    fn write(&self, caller: &Caller, ino: InodeNo, offset: u64, data: &[u8]) -> Result<usize> {
        self.durably(self.write_as(Author::Caller(caller), ino, offset, data))
    }

    fn write_back(&self, ino: InodeNo, offset: u64, data: &[u8], stamps: bool) -> Result<usize> {
        self.durably(self.write_as(Author::Earlier { stamps }, ino, offset, data))
    }

    fn fallocate(
        &self,
        caller: &Caller,
        ino: InodeNo,
        offset: u64,
        len: u64,
        mode: FallocateMode,
    ) -> Result<()> {
        self.durably(self.do_fallocate(caller, ino, (offset, len), mode))
    }

    fn seek(&self, ino: InodeNo, offset: u64, whence: SeekFrom) -> Result<u64> {
        self.do_seek(ino, offset, whence)
    }

    fn readdir(&self, ino: InodeNo, cookie: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let (dir, names) = {
            let core = self.share();
            (self.live(&core.state, ino)?, core.state.inodes.names(ino.get()))
        };
        dir.seen(names).attr.expect_directory()?;
        if names == 0 {
            return Ok(());
        }
        self.list(ino, cookie, sink)?;
        self.accessed(&dir);
        Ok(())
    }

    fn fsync(&self, ino: InodeNo, _data_only: bool) -> Result<()> {
        self.attr_of(ino)?;
        self.make_durable()
    }

    fn sync(&self) -> Result<()> {
        self.make_durable()
    }

    fn statfs(&self) -> Result<StatFs> {
        let core = self.share();
        let (space, (inodes, free)) = (&core.state.space, core.state.inodes.counts());
        let more = space.free() * crate::layout::INODES_IN_BLOCK;
        Ok(StatFs {
            block_size: 4096,
            blocks: space.blocks(),
            blocks_free: space.free(),
            blocks_available: space.free(),
            // More are made as they are needed.
            inodes: inodes + more,
            inodes_free: free + more,
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
        self.durably(self.do_setxattr(ino, (name, value), mode))
    }

    fn listxattr(&self, ino: InodeNo) -> Result<Vec<Vec<u8>>> {
        self.do_listxattr(ino)
    }

    fn removexattr(&self, _caller: &Caller, ino: InodeNo, name: &[u8]) -> Result<()> {
        self.durably(self.do_removexattr(ino, name))
    }

    fn flags(&self, ino: InodeNo) -> Result<InodeFlags> {
        self.do_flags(ino)
    }

    fn set_flags(&self, caller: &Caller, ino: InodeNo, flags: InodeFlags) -> Result<()> {
        self.durably(self.do_set_flags(caller, ino, flags))
    }

    fn check(&self) -> Result<CheckReport> {
        let core = self.share();
        crate::check::check(&core.state)
    }

    fn unmount(&self) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        let done = match self.make_durable() {
            // It ended before.
            Err(error) if error.errno() == Errno::ROFS => return Ok(()),
            done => done.and_then(|()| self.close()),
        };
        self.end_life(Errno::ROFS.into());
        done
    }

    fn abandon(&self, why: &str) -> Result<()> {
        self.end_life(Error::Poisoned(why.into()));
        Ok(())
    }
}

impl Bpfs {
    /// Lists names some at a time: whoever is told may call back.
    fn list(&self, ino: InodeNo, cookie: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let mut after = cookie;
        while after < DOTS {
            let (target, next, name) = match after {
                0 => (ino, DOT, &b"."[..]),
                _ => (self.parent_of(ino)?, DOTS, &b".."[..]),
            };
            if !sink(DirEntry { ino: target, kind: Some(FileKind::Directory), name, next }) {
                return Ok(());
            }
            after = next;
        }
        loop {
            let listed = self.listed(ino, after - DOTS)?;
            let Some((.., next)) = listed.last() else { return Ok(()) };
            after = *next;
            for (ino, kind, name, next) in &listed {
                if !sink(DirEntry { ino: *ino, kind: Some(*kind), name, next: *next }) {
                    return Ok(());
                }
            }
        }
    }

    fn listed(&self, ino: InodeNo, from: u64) -> Result<Vec<Listed>> {
        let core = self.share();
        let dir = self.live(&core.state, ino)?;
        let mut listed = Vec::new();
        dir::entries(&core.state.gate, &dir, from, &mut |entry| {
            if entry.ino != 0 {
                let kind = core.state.inode(entry.ino)?.kind;
                listed.push((InodeNo(entry.ino), kind, entry.name.to_vec(), entry.at + entry.len + DOTS));
            }
            Ok(listed.len() < LISTED)
        })?;
        Ok(listed)
    }

    fn parent_of(&self, ino: InodeNo) -> Result<InodeNo> {
        let core = self.share();
        self.live(&core.state, ino)?;
        Ok(InodeNo(core.state.inodes.parent(ino.get()).unwrap_or(ROOT.get())))
    }
}
