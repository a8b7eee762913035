//! The volume as a file system.

use fstitch_core::{
    Attr, Caller, CheckReport, DirEntry, Entry, Errno, Error, FallocateMode, FileKind, FileSystem,
    InodeFlags, InodeNo, RenameMode, Result, SeekFrom, SetAttr, StatFs, XattrSetMode,
};
use fstitch_posix::make::{Make, directory_perm, node_kind};

use super::files::Author;
use super::layout::inode::Inode;
use super::layout::record::{INO_BITS, TreeKind};
use super::layout::{BLOCK_SIZE, NAME_MAX, ROOT_INO};
use super::state::{Class, State};
use super::volume::{SNAPSHOTS, SNAPSHOTS_INO, Waffle};

/// Where listings go on behind `.` and `..`; names go on behind their keys, plus this.
const DOT: u64 = 1;
const DOTS: u64 = 2;
/// Names that are taken out of a directory at once.
const LISTED: usize = 128;

/// A name that was listed: its inode, what that is, the name, and where to go on.
type Listed = (InodeNo, FileKind, Vec<u8>, u64);

impl FileSystem for Waffle {
    fn root(&self) -> InodeNo {
        InodeNo(ROOT_INO)
    }

    fn lookup(&self, parent: InodeNo, name: &[u8]) -> Result<Entry> {
        let entry = {
            let core = self.share();
            let ino = self.find_name(&core.state, parent, name)?;
            self.in_use(&core.state, ino, 1)?;
            self.attr_in(&core.state, ino).map(|attr| Entry { attr })
        };
        self.evict();
        entry
    }

    fn forget(&self, ino: InodeNo, count: u64) {
        self.do_forget(ino, count);
    }

    fn getattr(&self, ino: InodeNo) -> Result<Attr> {
        self.attr_in(&self.share().state, ino)
    }

    fn setattr(&self, caller: &Caller, ino: InodeNo, set: &SetAttr) -> Result<Attr> {
        self.of_inode(ino, || self.do_setattr(caller, ino, set))
    }

    fn readlink(&self, ino: InodeNo) -> Result<Vec<u8>> {
        self.do_readlink(ino)
    }

    fn mknod(&self, caller: &Caller, parent: InodeNo, name: &[u8], mode: u16, rdev: u32) -> Result<Entry> {
        let (kind, rdev) = node_kind(mode, rdev)?;
        let perm = mode & 0o7777;
        let make = Make { caller, parent, name: Some(name), kind, perm, rdev, target: b"" };
        self.of_names(&[parent], || self.make(&make))
    }

    fn mkdir(&self, caller: &Caller, parent: InodeNo, name: &[u8], perm: u16) -> Result<Entry> {
        let (kind, perm) = (FileKind::Directory, directory_perm(perm));
        let make = Make { caller, parent, name: Some(name), kind, perm, rdev: 0, target: b"" };
        self.of_names(&[parent], || self.make(&make))
    }

    fn symlink(&self, caller: &Caller, parent: InodeNo, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.of_names(&[parent], || self.do_symlink(caller, (parent, name), target))
    }

    fn link(&self, _caller: &Caller, ino: InodeNo, parent: InodeNo, name: &[u8]) -> Result<Entry> {
        self.of_names(&[parent], || self.do_link(ino, (parent, name)))
    }

    fn tmpfile(&self, caller: &Caller, parent: InodeNo, perm: u16) -> Result<Entry> {
        let (kind, perm) = (FileKind::Regular, perm & 0o7777);
        self.make(&Make { caller, parent, name: None, kind, perm, rdev: 0, target: b"" })
    }

    fn unlink(&self, _caller: &Caller, parent: InodeNo, name: &[u8]) -> Result<()> {
        self.of_names(&[parent], || self.do_remove((parent, name), FileKind::Regular))
    }

    fn rmdir(&self, _caller: &Caller, parent: InodeNo, name: &[u8]) -> Result<()> {
        self.of_names(&[parent], || self.do_remove((parent, name), FileKind::Directory))
    }

    fn rename(
        &self,
        _caller: &Caller,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        self.of_names(&[from.0, to.0], || self.do_rename(from, to, mode))
    }

    fn read(&self, ino: InodeNo, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.do_read(ino, offset, buf)
    }

    fn write(&self, caller: &Caller, ino: InodeNo, offset: u64, data: &[u8]) -> Result<usize> {
        self.of_inode(ino, || self.write_as(Author::Caller(caller), ino, offset, data))
    }

    fn write_back(&self, ino: InodeNo, offset: u64, data: &[u8], stamps: bool) -> Result<usize> {
        self.of_inode(ino, || self.write_as(Author::Earlier { stamps }, ino, offset, data))
    }

    fn share(&self, caller: &Caller, from: (InodeNo, u64), to: (InodeNo, u64), len: u64) -> Result<u64> {
        self.of_inode(to.0, || self.do_share(caller, from, to, len))
    }

    fn fallocate(
        &self,
        caller: &Caller,
        ino: InodeNo,
        offset: u64,
        len: u64,
        mode: FallocateMode,
    ) -> Result<()> {
        self.of_inode(ino, || self.do_fallocate(caller, ino, (offset, len), mode))
    }

    fn seek(&self, ino: InodeNo, offset: u64, whence: SeekFrom) -> Result<u64> {
        self.do_seek(ino, offset, whence)
    }

    fn readdir(&self, ino: InodeNo, cookie: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let (tree, dir) = {
            let core = self.share();
            let tree = if ino == SNAPSHOTS_INO { core.state.head } else { self.place(&core.state, ino)?.0 };
            (tree, self.seen_in(&core.state, ino)?)
        };
        dir.seen().attr.expect_directory()?;
        if dir.nlink == 0 {
            return Ok(());
        }
        self.list_all(ino, cookie, sink)?;
        if ino != SNAPSHOTS_INO {
            self.accessed(tree, &dir);
        }
        Ok(())
    }

    fn fsync(&self, ino: InodeNo, _data_only: bool) -> Result<()> {
        self.getattr(ino)?;
        self.make_stable()
    }

    fn sync(&self) -> Result<()> {
        self.make_stable()
    }

    fn statfs(&self) -> Result<StatFs> {
        let core = self.share();
        let state = &core.state;
        let (first, end) = state.data();
        let free = (state.map.avail() + state.map.given_up()).saturating_sub(state.pending());
        let available = free.saturating_sub(state.reserve(Class::Takes));
        // More are made as they are needed.
        let used = state.head().used;
        Ok(StatFs {
            block_size: BLOCK_SIZE,
            blocks: end - first,
            blocks_free: free,
            blocks_available: available,
            inodes: used.saturating_add(available),
            inodes_free: available,
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
        self.of_inode(ino, || self.do_setxattr(ino, (name, value), mode))
    }

    fn listxattr(&self, ino: InodeNo) -> Result<Vec<Vec<u8>>> {
        self.do_listxattr(ino)
    }

    fn removexattr(&self, _caller: &Caller, ino: InodeNo, name: &[u8]) -> Result<()> {
        self.of_inode(ino, || self.do_removexattr(ino, name))
    }

    fn flags(&self, ino: InodeNo) -> Result<InodeFlags> {
        Ok(self.seen_in(&self.share().state, ino)?.flags())
    }

    fn set_flags(&self, caller: &Caller, ino: InodeNo, flags: InodeFlags) -> Result<()> {
        self.do_set_flags(caller, ino, flags)
    }

    fn check(&self) -> Result<CheckReport> {
        self.at_rest(|state| super::check::check_state(state))
    }

    fn unmount(&self) -> Result<()> {
        self.close()
    }

    fn abandon(&self, why: &str) -> Result<()> {
        self.end_life(Error::Poisoned(why.into()));
        self.cache().abandon(why);
        Ok(())
    }
}

impl Waffle {
    /// An inode by its number outside; the directory of snapshots as well.
    fn seen_in(&self, state: &State, ino: InodeNo) -> Result<Inode> {
        if ino != SNAPSHOTS_INO {
            return Ok(self.inode_of(state, ino)?.1);
        }
        let made = Inode::directory(ino.get(), 0o555, state.root.at);
        Ok(Inode { generation: 0, crtime: state.root.made, ..made })
    }

    fn attr_in(&self, state: &State, ino: InodeNo) -> Result<Attr> {
        Ok(self.seen_in(state, ino)?.attr(ino))
    }

    /// The inode that a name is of.
    fn find_name(&self, state: &State, parent: InodeNo, name: &[u8]) -> Result<InodeNo> {
        let dir = self.seen_in(state, parent)?;
        Self::check_name(&dir, name, None)?;
        match name {
            b"." => return Ok(parent),
            b".." => return self.parent_in(state, parent),
            _ => {}
        }
        if parent == SNAPSHOTS_INO {
            return snapshots(state)
                .find(|(_, tree)| *tree == name)
                .map(|(ino, _)| ino)
                .ok_or_else(|| Errno::NOENT.into());
        }
        let (tree, _) = self.place(state, parent)?;
        match name {
            SNAPSHOTS if parent == self.root() => Ok(SNAPSHOTS_INO),
            _ => {
                let found = state.find_unchanged(tree, &dir, name)?.ok_or(Errno::NOENT)?;
                Ok(Self::outside(state, tree, found.ino))
            }
        }
    }

    fn parent_in(&self, state: &State, ino: InodeNo) -> Result<InodeNo> {
        if ino == SNAPSHOTS_INO {
            return Ok(self.root());
        }
        let (tree, dir) = self.inode_of(state, ino)?;
        if dir.ino == ROOT_INO && tree != state.head {
            return Ok(SNAPSHOTS_INO);
        }
        Ok(Self::outside(state, tree, dir.parent))
    }

    /// Lists names some at a time: whoever is told may call back.
    fn list_all(&self, ino: InodeNo, cookie: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let mut after = cookie;
        while after < DOTS {
            let (target, next, name) = match after {
                0 => (ino, DOT, &b"."[..]),
                _ => (self.parent_in(&self.share().state, ino)?, DOTS, &b".."[..]),
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

    /// The next names of a directory, from this key on.
    fn listed(&self, ino: InodeNo, from: u64) -> Result<Vec<Listed>> {
        let core = self.share();
        let state = &core.state;
        if ino == SNAPSHOTS_INO {
            let next = |ino: InodeNo| (ino.get() >> INO_BITS) + 1;
            let all = snapshots(state).filter(|(ino, _)| next(*ino) > from);
            let listed = all.map(|(ino, name)| (ino, FileKind::Directory, name.to_vec(), next(ino) + DOTS));
            return Ok(listed.take(LISTED).collect());
        }
        let (tree, dir) = self.inode_of(state, ino)?;
        let mut listed = Vec::new();
        state.list(tree, &dir, from, &mut |entry| {
            let next = entry.key + 1 + DOTS;
            listed.push((Self::outside(state, tree, entry.ino), entry.kind, entry.name.to_vec(), next));
            listed.len() < LISTED
        })?;
        Ok(listed)
    }
}

/// The root directories of all snapshots, and their names; in the order in which they were made.
fn snapshots(state: &State) -> impl Iterator<Item = (InodeNo, &[u8])> {
    let mut all: Vec<_> =
        state.trees.iter().flatten().filter(|tree| tree.kind == TreeKind::Snapshot).collect();
    all.sort_unstable_by_key(|tree| tree.id);
    all.into_iter().map(|tree| (InodeNo(tree.id << INO_BITS | ROOT_INO), tree.name.as_slice()))
}
