//! Listing directories, with and without the attributes of what they name.

use fstitch_core::{Entry, Error, FileKind, InodeNo, Result};
use zerocopy::IntoBytes;

use super::convert::type_bits;
use super::core::Core;
use crate::transport::TRANSFER_MAX;
use crate::wire::DirentOut;

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
fn kind_of(core: &Core, listed: &Listed) -> u32 {
    let kind = listed.kind.or_else(|| core.fs.getattr(listed.ino).ok().map(|attr| attr.kind));
    type_bits(kind.unwrap_or(FileKind::Regular))
}

/// An answer that fills up.
struct Listing {
    bytes: Vec<u8>,
    size: usize,
}

impl Listing {
    fn new(size: usize) -> Self {
        // The kernel asks for more than most directories need.
        Self { bytes: Vec::new(), size: size.min(TRANSFER_MAX) }
    }

    /// Adds a name, with `before` (an entry, or nothing) in front. False if there is no room for it.
    fn add(&mut self, before: &[u8], listed: &Listed, ino: u64, kind: u32) -> bool {
        let dirent = DirentOut {
            ino,
            off: listed.next,
            namelen: u32::try_from(listed.name.len()).expect("names are at most 255 bytes"),
            kind,
        };
        let len = before.len() + (size_of::<DirentOut>() + listed.name.len()).next_multiple_of(8);
        if self.bytes.len() + len > self.size {
            return false;
        }
        let end = self.bytes.len() + len;
        self.bytes.extend_from_slice(before);
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(&listed.name);
        self.bytes.resize(end, 0);
        true
    }
}

/// A listing from `cookie` on, of at most `size` bytes.
pub(super) fn list(core: &Core, dir: InodeNo, cookie: u64, size: usize) -> Result<Vec<u8>> {
    fill(core, dir, cookie, size, |listing, listed| {
        Ok(listing.add(&[], listed, listed.ino.get(), kind_of(core, listed)))
    })
}

/// The same with attributes. Every name but `.` and `..` takes a reference, as a look-up does.
pub(super) fn list_plus(core: &Core, dir: InodeNo, cookie: u64, size: usize) -> Result<Vec<u8>> {
    fill(core, dir, cookie, size, |listing, listed| add_plus(core, dir, listing, listed))
}

/// Goes through the directory from `cookie` on until `add` says that there is no more room.
fn fill(
    core: &Core,
    dir: InodeNo,
    cookie: u64,
    size: usize,
    mut add: impl FnMut(&mut Listing, &Listed) -> Result<bool>,
) -> Result<Vec<u8>> {
    let (mut listing, mut from) = (Listing::new(size), cookie);
    loop {
        let names = match batch(core, dir, from) {
            Err(_) if !listing.bytes.is_empty() => return Ok(listing.bytes),
            names => names?,
        };
        for listed in &names {
            match add(&mut listing, listed) {
                Ok(true) => {}
                // What is listed is listed, and has its references; the next call meets the same failure and reports it.
                Err(error) if listing.bytes.is_empty() => return Err(error),
                Ok(false) | Err(_) => return Ok(listing.bytes),
            }
            from = listed.next;
        }
        if names.is_empty() {
            return Ok(listing.bytes);
        }
    }
}

/// Adds one name; false if there was no room for it.
fn add_plus(core: &Core, dir: InodeNo, listing: &mut Listing, listed: &Listed) -> Result<bool> {
    let view = &core.view;
    if listed.is_dot() {
        let entry = view.uncounted(&core.fs.getattr(listed.ino)?);
        return Ok(listing.add(entry.as_bytes(), listed, entry.attr.ino, entry.attr.mode >> 12));
    }
    let attr = match core.fs.lookup(dir, &listed.name) {
        Ok(Entry { attr }) => attr,
        Err(Error::WouldWait) => return Err(Error::WouldWait),
        // It has vanished since it was listed.
        Err(_) => return Ok(true),
    };
    let entry = view.entry(&attr);
    let added = listing.add(entry.as_bytes(), listed, entry.attr.ino, entry.attr.mode >> 12);
    if !added {
        core.fs.forget(attr.ino, 1);
    }
    Ok(added)
}
