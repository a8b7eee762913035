//! Making inodes and names.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fstitch_core::{Attr, Caller, Entry, Errno, FileKind, InodeNo, Result};
use fstitch_posix::acl::{self, Acl};
use fstitch_posix::make::{self as rules, Heritage, Make};
use fstitch_posix::name;
use fstitch_posix::remove::check_link;
use fstitch_posix::table::Header;

use crate::blocks::Blocks;
use crate::change::Change;
use crate::dir::{self, Place};
use crate::inode::{Inode, generation};
use crate::layout::{LINK_MAX, NAME_MAX, SYMLINK_MAX, data_at};
use crate::volume::{MinixLld, Node};
use crate::xattr;

impl MinixLld {
    /// A name in a directory.
    pub(crate) fn place<'a>(&self, dir: InodeNo, name: &'a [u8]) -> Place<'a> {
        Place { dir, name, slot: self.slot(name) }
    }

    /// Fails unless `name` could be one in `parent`; with `on_dots` for `.` and `..`, which no operation makes, removes or moves.
    pub(crate) fn check_name(&self, parent: &Inode, name: &[u8], on_dots: Option<Errno>) -> Result<()> {
        parent.seen().attr.expect_directory()?;
        name::check(name, NAME_MAX)?;
        match on_dots {
            Some(on_dots) if name::is_dots(name) => Err(on_dots.into()),
            _ => Ok(()),
        }
    }

    /// An inode's attributes as a change has them.
    pub(crate) fn attr_in(&self, change: &Change<'_>, ino: InodeNo) -> Result<Attr> {
        let size = u32::try_from(self.block_size()).expect("a block has at most 64 KiB");
        Ok(change.inode(ino)?.attr(change.blocks_of(ino)?, size))
    }

    pub(crate) fn do_symlink(
        &self,
        caller: &Caller,
        (parent, name): (InodeNo, &[u8]),
        target: &[u8],
    ) -> Result<Entry> {
        rules::check_target(target, SYMLINK_MAX)?;
        let kind = FileKind::Symlink;
        self.make(&Make { caller, parent, name: Some(name), kind, perm: 0o777, rdev: 0, target })
    }

    /// Makes an inode: its list, itself, what it inherits, its name.
    pub(crate) fn make(&self, make: &Make<'_>) -> Result<Entry> {
        let mut change = self.change()?;
        let dir = self.live(&change, make.parent)?;
        let place = make.name.map(|name| self.place(make.parent, name));
        if let Some(place) = &place {
            self.check_name(&dir, place.name, Some(Errno::EXIST))?;
        }
        let exists = match &place {
            Some(place) if dir.is_dir() => dir::find(&change, place)?.is_some(),
            _ => false,
        };
        rules::check_new_name(&dir.seen(), exists)?;
        rules::check_room(&dir.seen().attr, make.kind, LINK_MAX)?;
        let heritage = heritage(&change, &dir, make)?;
        let ino = make_inode(&mut change, make, &heritage)?;
        match &place {
            Some(place) => {
                dir::add(&mut change, place, ino, make.kind)?;
                change.touch_names(make.parent)?;
                let raise = u32::from(make.kind == FileKind::Directory);
                change.update(make.parent, |dir| dir.nlink += raise)?;
            }
            None => change.keep(ino)?,
        }
        let attr = self.attr_in(&change, ino)?;
        let is_linkable = AtomicBool::new(place.is_none());
        let node = Arc::new(Node { header: Header::made(ino), is_linkable });
        node.header.set_orphan(place.is_none());
        change.commit(|| drop(self.table().insert(node)))?;
        Ok(Entry { attr })
    }

    pub(crate) fn do_link(&self, ino: InodeNo, (parent, name): (InodeNo, &[u8])) -> Result<Entry> {
        let mut change = self.change()?;
        let inode = self.live(&change, ino)?;
        if inode.is_dir() {
            return Err(Errno::PERM.into());
        }
        let dir = self.live(&change, parent)?;
        self.check_name(&dir, name, Some(Errno::EXIST))?;
        let place = self.place(parent, name);
        rules::check_new_name(&dir.seen(), dir::find(&change, &place)?.is_some())?;
        let node = self.node(ino, 0)?;
        check_link(&inode.seen(), node.is_linkable.load(Ordering::Relaxed), LINK_MAX)?;
        dir::add(&mut change, &place, ino, inode.kind)?;
        change.touch_names(parent)?;
        let now = change.now();
        change.update(ino, |inode| (inode.nlink, inode.ctime) = (inode.nlink + 1, now))?;
        change.keep_no_more(ino)?;
        let attr = self.attr_in(&change, ino)?;
        // Only now: an inode that has a reference more cannot be claimed, and nothing takes it back.
        change.commit(|| {
            node.header.set_orphan(false);
            node.is_linkable.store(false, Ordering::Relaxed);
            self.node(ino, 1)
        })??;
        Ok(Entry { attr })
    }
}

/// Group, permissions, flags and access lists of a new inode.
fn heritage(change: &Change<'_>, dir: &Inode, make: &Make<'_>) -> Result<Heritage> {
    let default = match make.kind {
        FileKind::Symlink => None,
        _ => match xattr::load(change, dir)?.get(acl::DEFAULT) {
            Some(value) => Acl::parse(value)?,
            None => None,
        },
    };
    Ok(rules::heritage(&dir.seen(), make.caller, (make.kind, make.perm), default.as_ref()))
}

/// A new inode with all that it has but a name.
fn make_inode(change: &mut Change<'_>, make: &Make<'_>, heritage: &Heritage) -> Result<InodeNo> {
    let now = change.now();
    let ino = change.new_inode()?;
    let mut inode = Inode {
        ino,
        kind: make.kind,
        perm: heritage.perm,
        nlink: rules::first_links(make.kind, make.name.is_some()),
        uid: make.caller.uid,
        gid: heritage.gid,
        rdev: make.rdev,
        size: u64::try_from(make.target.len()).expect("a path is short"),
        flags: heritage.flags,
        generation: generation(now),
        atime: now,
        mtime: now,
        ctime: now,
        crtime: now,
        parent: make.parent,
        xattr_bytes: 0,
    };
    let mut block = vec![0; change.block_size()];
    for (n, piece) in (0..).zip(make.target.chunks(change.block_size())) {
        block.fill(0);
        block[..piece.len()].copy_from_slice(piece);
        change.write_contents((ino.get(), data_at(n)), &block)?;
    }
    let xattrs = heritage.xattrs.iter().cloned().collect();
    xattr::store(change, &mut inode, &xattrs)?;
    change.put(inode);
    Ok(ino)
}
