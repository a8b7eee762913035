//! Attributes, extended attributes and `chattr` flags.

use fstitch_core::{
    Attr, Caller, Errno, FileKind, InodeFlags, InodeNo, Result, SetAttr, SetTime, StatFs, XattrSetMode,
};

use super::acl::{self, Acl};
use super::sparse::wide;
use super::state::{Node, State, without_set_ids};

/// Access times older than this are updated whatever the other times are.
const RELATIME_SECS: i64 = 86_400;

/// The flags that users may change.
const SETTABLE: u32 = InodeFlags::SYNC
    | InodeFlags::IMMUTABLE
    | InodeFlags::APPEND
    | InodeFlags::NODUMP
    | InodeFlags::NOATIME
    | InodeFlags::DIRSYNC
    | InodeFlags::TOPDIR;

impl State {
    /// Updates the access time by the relatime rule.
    pub(super) fn accessed(&mut self, ino: InodeNo) {
        let (now, on) = (self.now, self.options.atime && !self.unmounted);
        let node = self.known(ino);
        let attr = &mut node.attr;
        let stale = attr.atime <= attr.mtime
            || attr.atime <= attr.ctime
            || now.secs - attr.atime.secs >= RELATIME_SECS;
        if on && stale && !node.flags.has(InodeFlags::NOATIME) {
            attr.atime = now;
        }
    }

    pub(super) fn setattr(&mut self, caller: &Caller, ino: InodeNo, set: &SetAttr) -> Result<Attr> {
        self.writable()?;
        let node = self.node(ino)?;
        expect_changeable(node, set)?;
        if let Some(size) = set.size {
            self.expect_resizable(ino, size)?;
        }
        let now = self.now;
        if let Some(size) = set.size {
            self.resize(ino, size);
            self.known(ino).drop_privileges(caller);
        }
        let node = self.known(ino);
        if (set.uid.is_some() || set.gid.is_some()) && node.attr.kind != FileKind::Directory {
            node.attr.perm = without_set_ids(node.attr.perm);
        }
        if let Some(perm) = set.perm {
            set_perm(node, perm);
        }
        let at = |time: SetTime| match time {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        let attr = &mut node.attr;
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.atime = set.atime.map_or(attr.atime, at);
        attr.mtime = set.mtime.map_or(attr.mtime, at);
        attr.ctime = set.ctime.unwrap_or(now);
        Ok(*attr)
    }

    fn expect_resizable(&self, ino: InodeNo, size: u64) -> Result<()> {
        let node = self.node(ino)?;
        node.bytes()?;
        if node.is_locked() {
            return Err(Errno::PERM.into());
        }
        if size > self.options.size_max { Err(Errno::FBIG.into()) } else { Ok(()) }
    }

    fn resize(&mut self, ino: InodeNo, size: u64) {
        let now = self.now;
        let node = self.known(ino);
        let before = node.bytes().map_or(0, super::sparse::SparseBytes::allocated);
        if size <= node.attr.size {
            node.bytes_mut().truncate(size);
        }
        node.attr.size = size;
        node.touch(now);
        self.recount(ino, before);
    }

    pub(super) fn getxattr(&self, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        let node = self.node(ino)?;
        expect_namespace(name)?;
        node.xattrs.get(name).cloned().ok_or_else(|| Errno::NODATA.into())
    }

    pub(super) fn setxattr(
        &mut self,
        ino: InodeNo,
        name: &[u8],
        value: &[u8],
        mode: XattrSetMode,
    ) -> Result<()> {
        self.writable()?;
        let node = self.node(ino)?;
        expect_attributable(node, name)?;
        let present = node.xattrs.contains_key(name);
        match mode {
            XattrSetMode::Create if present => return Err(Errno::EXIST.into()),
            XattrSetMode::Replace if !present => return Err(Errno::NODATA.into()),
            _ => {}
        }
        let list = if name == acl::ACCESS || name == acl::DEFAULT { Some(Acl::decode(value)?) } else { None };
        let others: usize = node
            .xattrs
            .iter()
            .filter(|(other, _)| *other != name)
            .map(|(other, value)| other.len() + value.len())
            .sum();
        if others + name.len() + value.len() > self.options.xattrs_max {
            return Err(Errno::NOSPC.into());
        }
        let now = self.now;
        let node = self.known(ino);
        node.attr.ctime = now;
        match list {
            None => {
                node.xattrs.insert(name.to_vec(), value.to_vec());
            }
            Some(list) => set_acl(node, name, list.as_ref()),
        }
        Ok(())
    }

    pub(super) fn removexattr(&mut self, ino: InodeNo, name: &[u8]) -> Result<()> {
        self.writable()?;
        let node = self.node(ino)?;
        expect_attributable(node, name)?;
        if !node.xattrs.contains_key(name) {
            return Err(Errno::NODATA.into());
        }
        let now = self.now;
        let node = self.known(ino);
        node.xattrs.remove(name);
        node.attr.ctime = now;
        Ok(())
    }

    pub(super) fn set_flags(&mut self, caller: &Caller, ino: InodeNo, flags: InodeFlags) -> Result<()> {
        self.writable()?;
        let node = self.node(ino)?;
        let changed = (node.flags.0 ^ flags.0) & SETTABLE;
        let restricted = changed & (InodeFlags::IMMUTABLE | InodeFlags::APPEND) != 0;
        if caller.uid != 0 && (restricted || caller.uid != node.attr.uid) {
            return Err(Errno::PERM.into());
        }
        let allowed = match node.attr.kind {
            FileKind::Directory => SETTABLE,
            FileKind::Regular => SETTABLE & !(InodeFlags::DIRSYNC | InodeFlags::TOPDIR),
            _ => InodeFlags::NODUMP | InodeFlags::NOATIME,
        };
        let now = self.now;
        let node = self.known(ino);
        node.flags = InodeFlags((node.flags.0 & !SETTABLE) | (flags.0 & allowed));
        node.attr.ctime = now;
        Ok(())
    }

    pub(super) fn statfs(&self) -> StatFs {
        StatFs {
            block_size: self.options.block_size,
            blocks: self.options.blocks,
            blocks_free: self.blocks_free(),
            blocks_available: self.blocks_free(),
            inodes: self.options.inodes,
            inodes_free: self.options.inodes - wide(self.nodes.len()),
            name_max: u32::try_from(self.options.name_max).unwrap_or(u32::MAX),
        }
    }
}

/// What immutable and append-only files refuse: everything but setting times to now, which append-only ones
/// allow.
fn expect_changeable(node: &Node, set: &SetAttr) -> Result<()> {
    let touches = |time: Option<SetTime>| matches!(time, None | Some(SetTime::Now));
    let mild = set.perm.is_none()
        && set.uid.is_none()
        && set.gid.is_none()
        && touches(set.atime)
        && touches(set.mtime);
    let refused = node.flags.has(InodeFlags::IMMUTABLE) || (node.flags.has(InodeFlags::APPEND) && !mild);
    if refused { Err(Errno::PERM.into()) } else { Ok(()) }
}

/// Sets the permission bits, which the access list follows.
fn set_perm(node: &mut Node, perm: u16) {
    node.attr.perm = perm & 0o7777;
    if let Some(mut list) = node.acl(acl::ACCESS) {
        list.set_mode_bits(perm);
        node.xattrs.insert(acl::ACCESS.to_vec(), list.encode());
    }
}

/// Sets an access list; the permission bits follow, and a list that they express completely is not kept.
fn set_acl(node: &mut Node, name: &[u8], list: Option<&Acl>) {
    if let (true, Some(list)) = (name == acl::ACCESS, list) {
        node.attr.perm = (node.attr.perm & !0o777) | list.mode_bits();
    }
    match list {
        Some(list) if name == acl::DEFAULT || !list.is_minimal() => {
            node.xattrs.insert(name.to_vec(), list.encode());
        }
        _ => {
            node.xattrs.remove(name);
        }
    }
}

fn expect_namespace(name: &[u8]) -> Result<()> {
    let prefixes = [&b"user."[..], b"trusted.", b"security."];
    if name.len() > 255 {
        return Err(Errno::RANGE.into());
    }
    if name == acl::ACCESS || name == acl::DEFAULT {
        return Ok(());
    }
    match prefixes.iter().find(|prefix| name.starts_with(prefix)) {
        None => Err(Errno::OPNOTSUPP.into()),
        Some(prefix) if name.len() == prefix.len() => Err(Errno::INVAL.into()),
        Some(_) => Ok(()),
    }
}

/// Whether this inode may carry this attribute and be changed at all.
fn expect_attributable(node: &Node, name: &[u8]) -> Result<()> {
    expect_namespace(name)?;
    if node.is_locked() {
        return Err(Errno::PERM.into());
    }
    let kind = node.attr.kind;
    let plain = matches!(kind, FileKind::Regular | FileKind::Directory);
    if name.starts_with(b"user.") && !plain {
        return Err(Errno::PERM.into());
    }
    if kind == FileKind::Symlink && (name == acl::ACCESS || name == acl::DEFAULT) {
        return Err(Errno::OPNOTSUPP.into());
    }
    if name == acl::DEFAULT && kind != FileKind::Directory {
        return Err(Errno::ACCES.into());
    }
    Ok(())
}
