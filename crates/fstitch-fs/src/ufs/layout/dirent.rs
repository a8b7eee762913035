//! Entries of directories.

use fstitch_core::{BlockNo, Error, FileKind, Result, Structure};

use crate::ufs::order::Order;

/// Bytes that no entry crosses.
pub const CHUNK: usize = 512;
/// The longest name, in bytes.
pub const NAME_MAX: usize = 255;
/// Bytes before the name.
pub const HEADER: usize = 8;
/// The inode of a whiteout's entry.
const WHITEOUT_INO: u32 = 1;

/// How entries are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// The order of bytes.
    pub order: Order,
    /// 16 bits of length, and no kind.
    pub is_old: bool,
}

/// An entry, as it lies in its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The inode; 0 if the entry is free.
    pub ino: u32,
    /// What that is, where the entry says so.
    pub kind: Option<FileKind>,
    /// The name.
    pub name: &'a [u8],
    /// Where the entry begins, and where the next one does.
    pub at: usize,
    /// Where the next one begins.
    pub end: usize,
}

impl Entry<'_> {
    /// Whether it names a file.
    #[must_use]
    pub const fn is_used(&self) -> bool {
        self.ino > WHITEOUT_INO
    }
}

fn kind(code: u8) -> Option<FileKind> {
    match code {
        1 => Some(FileKind::Fifo),
        2 => Some(FileKind::CharDevice),
        4 => Some(FileKind::Directory),
        6 => Some(FileKind::BlockDevice),
        8 => Some(FileKind::Regular),
        10 => Some(FileKind::Symlink),
        12 => Some(FileKind::Socket),
        _ => None,
    }
}

/// Where the length of an entry is in it, of 2 bytes.
pub(in crate::ufs) const LENGTH_AT: usize = 4;
/// Where the kind is, of one byte.
pub(in crate::ufs) const KIND_AT: usize = 6;

/// The code of a kind.
pub(in crate::ufs) const fn code_of(kind: FileKind) -> u8 {
    match kind {
        FileKind::Fifo => 1,
        FileKind::CharDevice => 2,
        FileKind::Directory => 4,
        FileKind::BlockDevice => 6,
        FileKind::Regular => 8,
        FileKind::Symlink => 10,
        FileKind::Socket => 12,
    }
}

/// Bytes that an entry with a name of `len` bytes needs: a zero follows the name.
#[must_use]
pub const fn entry_size(len: usize) -> usize {
    (HEADER + len + 1).next_multiple_of(4)
}

/// Writes an entry of `len` bytes to the start of `raw`; a free one has no kind and no name.
pub(in crate::ufs) fn put_entry(
    raw: &mut [u8],
    (ino, len): (u32, usize),
    (name, kind): (&[u8], Option<FileKind>),
    manner: Manner,
) {
    let order = manner.order;
    order.put_u32(raw, 0, ino);
    order.put_u16(raw, LENGTH_AT, u16::try_from(len).expect("entries end with their chunk"));
    raw[KIND_AT] = kind.map_or(0, code_of);
    raw[KIND_AT + 1] = u8::try_from(name.len()).expect("names are shorter than 256 bytes");
    raw[HEADER..HEADER + name.len()].copy_from_slice(name);
}

/// Writes `.` and `..` into the first chunk of a directory.
pub(in crate::ufs) fn put_first_entries(chunk: &mut [u8], (ino, parent): (u32, u32), manner: Manner) {
    let own = entry_size(1);
    put_entry(chunk, (ino, own), (b".", Some(FileKind::Directory)), manner);
    put_entry(&mut chunk[own..], (parent, CHUNK - own), (b"..", Some(FileKind::Directory)), manner);
}

/// The entry at byte `at` of `bytes`, which are the fragment `block` of a directory.
///
/// # Errors
/// `Corrupt`, with what cannot be.
pub fn entry(bytes: &[u8], at: usize, block: BlockNo, manner: Manner) -> Result<Entry<'_>> {
    let damaged = |problem: String| Error::corrupt(Structure::DirectoryEntry(Some(at)), block, problem);
    let left = (CHUNK - at % CHUNK).min(bytes.len() - at);
    if left < HEADER {
        return Err(damaged(format!("{left} bytes left")));
    }
    let order = manner.order;
    let len = usize::from(order.u16(bytes, at + 4));
    if len < HEADER || len > left || !len.is_multiple_of(4) {
        return Err(damaged(format!("{len} bytes long, {left} are left")));
    }
    let ino = order.u32(bytes, at);
    let (kind, name_len) = match manner.is_old {
        true => (None, usize::from(order.u16(bytes, at + 6))),
        false => (kind(bytes[at + 6]), usize::from(bytes[at + 7])),
    };
    if ino == 0 {
        return Ok(Entry { ino, kind: None, name: &[], at, end: at + len });
    }
    if name_len == 0 || name_len > NAME_MAX || HEADER + name_len > len {
        return Err(damaged(format!("a name of {name_len} bytes in {len}")));
    }
    let name = &bytes[at + HEADER..at + HEADER + name_len];
    if name.iter().any(|&byte| byte == 0 || byte == b'/') {
        return Err(damaged("a name with a zero or a slash".into()));
    }
    Ok(Entry { ino, kind, name, at, end: at + len })
}

/// The used entry of a name among `bytes`, which are the beginning of the fragment `block` of a directory. Of the others only what leads
/// to the next one is looked at; `passed` grows by their number.
///
/// # Errors
/// As [`entry`].
pub fn find<'b>(
    bytes: &'b [u8],
    name: &[u8],
    (block, manner): (BlockNo, Manner),
    passed: &mut usize,
) -> Result<Option<Entry<'b>>> {
    let mut at = 0;
    while at < bytes.len() {
        let left = (CHUNK - at % CHUNK).min(bytes.len() - at);
        let Some(header) = bytes[at..].first_chunk::<HEADER>().filter(|_| left >= HEADER) else {
            return entry(bytes, at, block, manner).map(Some);
        };
        let len = usize::from(manner.order.u16(header, LENGTH_AT));
        let name_len = match manner.is_old {
            true => usize::from(manner.order.u16(header, KIND_AT)),
            false => usize::from(header[KIND_AT + 1]),
        };
        let leads_on = len >= HEADER && len <= left && len.is_multiple_of(4);
        let is_it = || bytes.get(at + HEADER..at + HEADER + name_len) == Some(name);
        if !leads_on || name_len == name.len() && is_it() {
            let found = entry(bytes, at, block, manner)?;
            if found.is_used() && found.name == name {
                return Ok(Some(found));
            }
        }
        at += len;
        *passed += 1;
    }
    Ok(None)
}
