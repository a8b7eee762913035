//! Listing directories, with and without the attributes of what they name.

use fstitch_core::{Entry, FileKind, InodeNo, Result};
use fuser::{FileType, INodeNo, ReplyDirectory, ReplyDirectoryPlus};

use super::convert::{file_type, generation};
use super::core::Core;

/// How many names are collected before their inodes are looked up.
const BATCH: usize = 64;

/// A name, copied out of the directory so that looking it up happens without the directory's lock.
struct Listed {
    ino: InodeNo,
    kind: Option<FileKind>,
    name: Vec<u8>,
    next: u64,
}

impl Listed {
    fn is_dot(&self) -> bool {
        self.name == b"." || self.name == b".."
    }

    fn os_name(&self) -> &std::ffi::OsStr {
        std::os::unix::ffi::OsStrExt::from_bytes(&self.name)
    }
}

fn batch(core: &Core, dir: InodeNo, cookie: u64) -> Result<Vec<Listed>> {
    let mut names = Vec::with_capacity(BATCH);
    core.fs.readdir(dir, cookie, &mut |entry| {
        if names.len() == BATCH {
            return false;
        }
        let (ino, kind, next) = (entry.ino, entry.kind, entry.next);
        names.push(Listed { ino, kind, name: entry.name.to_vec(), next });
        true
    })?;
    Ok(names)
}

/// The kind of what a name names, from the inode where the directory does not say.
fn kind_of(core: &Core, listed: &Listed) -> FileType {
    let kind = listed.kind.or_else(|| core.fs.getattr(listed.ino).ok().map(|attr| attr.kind));
    file_type(kind.unwrap_or(FileKind::Regular))
}

/// Fills `reply` from `cookie` on.
pub(super) fn list(core: &Core, dir: InodeNo, cookie: u64, reply: &mut ReplyDirectory) -> Result<()> {
    let mut from = cookie;
    loop {
        let names = batch(core, dir, from)?;
        for listed in &names {
            let shown = INodeNo(listed.ino.get());
            if reply.add(shown, listed.next, kind_of(core, listed), listed.os_name()) {
                return Ok(());
            }
            from = listed.next;
        }
        if names.is_empty() {
            return Ok(());
        }
    }
}

/// Fills `reply` from `cookie` on, with attributes. Every name but `.` and `..` takes a reference, as a look-up
/// does.
pub(super) fn list_plus(
    core: &Core,
    dir: InodeNo,
    cookie: u64,
    reply: &mut ReplyDirectoryPlus,
) -> Result<()> {
    let mut from = cookie;
    loop {
        let names = batch(core, dir, from)?;
        for listed in &names {
            if add_plus(core, dir, listed, reply)? {
                return Ok(());
            }
            from = listed.next;
        }
        if names.is_empty() {
            return Ok(());
        }
    }
}

/// Adds one name; true if there was no room for it.
fn add_plus(core: &Core, dir: InodeNo, listed: &Listed, reply: &mut ReplyDirectoryPlus) -> Result<bool> {
    let view = &core.view;
    if listed.is_dot() {
        // The kernel takes only number and kind from these two and counts no reference for them.
        let attr = view.attr(&core.fs.getattr(listed.ino)?);
        return Ok(reply.add(
            attr.ino,
            listed.next,
            listed.os_name(),
            &view.ttl,
            &attr,
            fuser::Generation(0),
        ));
    }
    let Ok(Entry { attr }) = core.fs.lookup(dir, &listed.name) else {
        // It has vanished since it was listed.
        return Ok(false);
    };
    let shown = view.entry(&attr);
    let full = reply.add(shown.ino, listed.next, listed.os_name(), &view.ttl, &shown, generation(&attr));
    if full {
        core.fs.forget(attr.ino, 1);
    }
    Ok(full)
}
