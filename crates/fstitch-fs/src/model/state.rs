//! The model's tables: inodes with their contents and names, and what every operation needs of them.

use std::collections::BTreeMap;

use fstitch_core::{Attr, Caller, Errno, FileKind, InodeFlags, InodeNo, Result, Timestamp};

use super::acl::{self, Acl};
use super::sparse::{SparseBytes, wide};
use super::{ModelOptions, ROOT};

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named {
    pub ino: InodeNo,
    pub kind: FileKind,
    /// Its place in listings; larger than that of every older name.
    pub cookie: u64,
}

/// A directory's names.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pub parent: InodeNo,
    pub by_name: BTreeMap<Vec<u8>, Named>,
    pub by_cookie: BTreeMap<u64, Vec<u8>>,
    pub next_cookie: u64,
}

/// Cookies 1 and 2 are `.` and `..`.
const FIRST_COOKIE: u64 = 3;

impl Names {
    pub(super) fn new(parent: InodeNo) -> Self {
        let (by_name, by_cookie) = (BTreeMap::new(), BTreeMap::new());
        Self { parent, by_name, by_cookie, next_cookie: FIRST_COOKIE }
    }

    pub(super) fn add(&mut self, name: &[u8], ino: InodeNo, kind: FileKind) {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let old = self.by_name.insert(name.to_vec(), Named { ino, kind, cookie });
        assert!(old.is_none(), "a name is added once");
        self.by_cookie.insert(cookie, name.to_vec());
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        let old = self.by_name.remove(name).expect("the caller found the name");
        self.by_cookie.remove(&old.cookie);
    }

    /// Makes an existing name stand for another inode, in its place.
    pub(super) fn replace(&mut self, name: &[u8], ino: InodeNo, kind: FileKind) {
        let named = self.by_name.get_mut(name).expect("the caller found the name");
        *named = Named { ino, kind, cookie: named.cookie };
    }
}

/// What an inode holds besides attributes.
#[derive(Clone, Debug)]
pub(super) enum Content {
    File(SparseBytes),
    Directory(Names),
    Symlink(Vec<u8>),
    Special,
}

/// One inode.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub attr: Attr,
    pub content: Content,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub flags: InodeFlags,
    /// References handed out with entries.
    pub refs: u64,
    /// Made by `tmpfile` and never named: the only inode without names that may get one.
    pub nameless: bool,
}

impl Node {
    /// Immutable, or append-only: what forbids changing attributes and names.
    pub(super) fn is_locked(&self) -> bool {
        self.flags.has(InodeFlags::IMMUTABLE) || self.flags.has(InodeFlags::APPEND)
    }

    pub(super) fn acl(&self, name: &[u8]) -> Option<Acl> {
        self.xattrs.get(name).and_then(|value| Acl::decode(value).ok().flatten())
    }

    pub(super) fn names(&self) -> Result<&Names> {
        match &self.content {
            Content::Directory(names) => Ok(names),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    /// The contents of a regular file.
    pub(super) fn bytes(&self) -> Result<&SparseBytes> {
        match &self.content {
            Content::File(bytes) => Ok(bytes),
            Content::Directory(_) => Err(Errno::ISDIR.into()),
            _ => Err(Errno::INVAL.into()),
        }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut SparseBytes {
        match &mut self.content {
            Content::File(bytes) => bytes,
            _ => unreachable!("callers have asked bytes() before"),
        }
    }

    /// What a change of contents by anybody but root takes away: bits that lend rights to whoever runs it.
    pub(super) fn drop_privileges(&mut self, caller: &Caller) {
        if caller.uid != 0 {
            self.attr.perm = without_set_ids(self.attr.perm);
        }
    }

    pub(super) fn touch(&mut self, now: Timestamp) {
        self.attr.mtime = now;
        self.attr.ctime = now;
    }
}

/// An inode to be made.
pub(super) struct NewNode<'a> {
    pub kind: FileKind,
    pub perm: u16,
    pub rdev: u32,
    pub target: &'a [u8],
}

/// Everything.
#[derive(Debug)]
pub(super) struct State {
    pub options: ModelOptions,
    /// The time of the operation under way.
    pub now: Timestamp,
    pub nodes: BTreeMap<InodeNo, Node>,
    pub next_ino: u64,
    pub blocks_used: u64,
    pub unmounted: bool,
}

impl State {
    pub(super) fn new(options: ModelOptions, now: Timestamp) -> Self {
        let mut state =
            Self { options, now, nodes: BTreeMap::new(), next_ino: 11, blocks_used: 0, unmounted: false };
        let attr = Attr {
            ino: ROOT,
            kind: FileKind::Directory,
            perm: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: u64::from(options.block_size),
            blocks: 0,
            blksize: options.block_size,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: Some(now),
            generation: 0,
        };
        state.nodes.insert(
            ROOT,
            Node {
                attr,
                content: Content::Directory(Names::new(ROOT)),
                xattrs: BTreeMap::new(),
                flags: InodeFlags::default(),
                refs: 0,
                nameless: false,
            },
        );
        state
    }

    pub(super) fn writable(&self) -> Result<()> {
        if self.unmounted { Err(Errno::ROFS.into()) } else { Ok(()) }
    }

    pub(super) fn node(&self, ino: InodeNo) -> Result<&Node> {
        self.nodes.get(&ino).ok_or_else(|| Errno::STALE.into())
    }

    /// A node that an earlier step of the same operation has found.
    pub(super) fn known(&mut self, ino: InodeNo) -> &mut Node {
        self.nodes.get_mut(&ino).expect("found earlier in this operation")
    }

    pub(super) fn names_mut(&mut self, ino: InodeNo) -> &mut Names {
        match &mut self.known(ino).content {
            Content::Directory(names) => names,
            _ => unreachable!("callers have asked names() before"),
        }
    }

    pub(super) fn check_name(&self, name: &[u8]) -> Result<()> {
        if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
            return Err(Errno::INVAL.into());
        }
        if name.len() > self.options.name_max { Err(Errno::NAMETOOLONG.into()) } else { Ok(()) }
    }

    /// Finds a name, `.` and `..` included.
    pub(super) fn find(&self, parent: InodeNo, name: &[u8]) -> Result<Option<InodeNo>> {
        let names = self.node(parent)?.names()?;
        self.check_name(name)?;
        Ok(match name {
            b"." => Some(parent),
            b".." => Some(names.parent),
            _ => names.by_name.get(name).map(|named| named.ino),
        })
    }

    /// Checks that `parent` can take the new name `name`.
    pub(super) fn expect_new_name(&self, parent: InodeNo, name: &[u8]) -> Result<()> {
        self.writable()?;
        let found = self.find(parent, name)?;
        let dir = self.node(parent)?;
        if found.is_some() {
            return Err(Errno::EXIST.into());
        }
        if dir.attr.nlink == 0 {
            return Err(Errno::NOENT.into());
        }
        if dir.flags.has(InodeFlags::IMMUTABLE) { Err(Errno::PERM.into()) } else { Ok(()) }
    }

    pub(super) fn blocks_free(&self) -> u64 {
        self.options.blocks - self.blocks_used
    }

    /// Brings `st_blocks` and the volume's counter up to date after a change of a file's contents.
    pub(super) fn recount(&mut self, ino: InodeNo, before: u64) {
        let sectors = u64::from(self.options.block_size / 512);
        let node = self.known(ino);
        let after = node.bytes().map_or(0, SparseBytes::allocated);
        node.attr.blocks = after * sectors;
        self.blocks_used = self.blocks_used + after - before;
        assert!(self.blocks_used <= self.options.blocks, "room was checked before");
    }

    /// Makes an inode near `parent` that has no name yet (`nlink` 0, directories 1 for their own `.`).
    pub(super) fn make(&mut self, caller: &Caller, parent: InodeNo, new: &NewNode<'_>) -> Result<InodeNo> {
        if wide(self.nodes.len()) >= self.options.inodes {
            return Err(Errno::NOSPC.into());
        }
        let now = self.now;
        let dir = self.node(parent)?;
        let is_dir = new.kind == FileKind::Directory;
        let inherits_group = dir.attr.perm & 0o2000 != 0;
        let (mut perm, xattrs) = initial_access(caller, dir, new);
        if inherits_group && is_dir {
            perm |= 0o2000;
        }
        let ino = InodeNo(self.next_ino);
        let attr = Attr {
            ino,
            kind: new.kind,
            perm,
            nlink: u32::from(is_dir),
            uid: caller.uid,
            gid: if inherits_group { dir.attr.gid } else { caller.gid },
            rdev: new.rdev,
            size: if is_dir { u64::from(self.options.block_size) } else { wide(new.target.len()) },
            blocks: 0,
            blksize: self.options.block_size,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: Some(now),
            generation: 0,
        };
        let flags = inherited_flags(dir.flags, new.kind);
        let content = match new.kind {
            FileKind::Regular => Content::File(SparseBytes::new(self.options.block_size)),
            FileKind::Directory => Content::Directory(Names::new(parent)),
            FileKind::Symlink => Content::Symlink(new.target.to_vec()),
            _ => Content::Special,
        };
        self.next_ino += 1;
        self.nodes.insert(ino, Node { attr, content, xattrs, flags, refs: 0, nameless: false });
        Ok(ino)
    }

    /// Frees the inode if it has neither names nor references.
    pub(super) fn reap(&mut self, ino: InodeNo) {
        let Some(node) = self.nodes.get(&ino) else { return };
        if node.attr.nlink == 0 && node.refs == 0 && ino != ROOT {
            let used = node.bytes().map_or(0, SparseBytes::allocated);
            self.blocks_used -= used;
            self.nodes.remove(&ino);
        }
    }
}

/// Permission bits without set-user-id, and without set-group-id where the group may execute.
pub(super) fn without_set_ids(perm: u16) -> u16 {
    let perm = perm & !0o4000;
    if perm & 0o010 == 0 { perm } else { perm & !0o2000 }
}

/// Permission bits and access lists of a new inode: from the parent's default list where there is one, else
/// from the umask.
fn initial_access(caller: &Caller, dir: &Node, new: &NewNode<'_>) -> (u16, BTreeMap<Vec<u8>, Vec<u8>>) {
    let mut xattrs = BTreeMap::new();
    if new.kind == FileKind::Symlink {
        return (0o777, xattrs);
    }
    let Some(default) = dir.acl(acl::DEFAULT) else {
        return (new.perm & 0o7777 & !(caller.umask & 0o777), xattrs);
    };
    let (own, perm) = default.inherit(new.perm & 0o7777);
    if !own.is_minimal() {
        xattrs.insert(acl::ACCESS.to_vec(), own.encode());
    }
    if new.kind == FileKind::Directory {
        xattrs.insert(acl::DEFAULT.to_vec(), default.encode());
    }
    (perm, xattrs)
}

/// The flags that a new inode takes from its directory.
fn inherited_flags(dir: InodeFlags, kind: FileKind) -> InodeFlags {
    let common = InodeFlags::NODUMP | InodeFlags::NOATIME;
    InodeFlags(
        dir.0
            & match kind {
                FileKind::Directory => common | InodeFlags::SYNC | InodeFlags::DIRSYNC,
                FileKind::Regular => common | InodeFlags::SYNC,
                _ => common,
            },
    )
}
