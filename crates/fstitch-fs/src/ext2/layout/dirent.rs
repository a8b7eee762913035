//! Directory entries: a chain through each directory block.
//!
//! **Layout.** Inode (4 bytes), length of the entry (2), length of the name (1), kind (1), name, padding to
//! four bytes. The lengths of a block's entries add up to the block. An entry with inode 0 is free space.

use fstitch_core::{BlockNo, Error, FileKind, Result};

use super::field::fields;
use super::superblock::Superblock;
use crate::ext2::num::small;

fields! {
    /// The inode named, 0 if the entry is free.
    D_INODE: u32 @ 0;
    /// Bytes to the next entry.
    D_REC_LEN: u16 @ 4;
    /// Bytes of the name.
    D_NAME_LEN: u8 @ 6;
    /// Kind of the inode (without the `filetype` feature: high byte of the name's length, 0).
    D_FILE_TYPE: u8 @ 7;
}

/// Bytes before the name.
pub const HEADER: usize = 8;
/// The shortest lawful entry: the header and a padded name of one byte.
pub const ENTRY_MIN: usize = 12;
/// Bytes in a name.
pub const NAME_MAX: usize = 255;

const _: () = assert!(D_FILE_TYPE.end() == HEADER);

/// Bytes that an entry for a name of `len` bytes needs.
#[must_use]
pub const fn entry_size(len: usize) -> usize {
    (HEADER + len).next_multiple_of(4)
}

/// A validated entry in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryView<'a> {
    /// Where it starts in the block.
    pub offset: usize,
    /// The inode that it names; 0 if it is free space.
    pub ino: u32,
    /// Bytes to the next entry.
    pub rec_len: usize,
    /// The kind's code.
    pub file_type: u8,
    /// The name; for free space, whatever is left there.
    pub name: &'a [u8],
}

impl EntryView<'_> {
    /// Where the next entry starts.
    #[must_use]
    pub const fn end(&self) -> usize {
        self.offset + self.rec_len
    }

    /// Bytes that the entry itself needs: none if it is free.
    #[must_use]
    pub const fn used(&self) -> usize {
        if self.ino == 0 { 0 } else { entry_size(self.name.len()) }
    }

    /// What the entry names, where it says so.
    #[must_use]
    pub const fn kind(&self) -> Option<FileKind> {
        kind_of(self.file_type)
    }
}

/// Walks the entries of one directory block. Ends behind the first damaged entry.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    bytes: &'a [u8],
    at: usize,
    block: BlockNo,
    inodes_count: u32,
    filetype: bool,
}

/// The entries of the directory block `bytes`, which is `block` on the volume.
#[must_use]
pub fn entries<'a>(bytes: &'a [u8], block: BlockNo, volume: &Superblock) -> Entries<'a> {
    Entries { bytes, at: 0, block, inodes_count: volume.inodes_count, filetype: volume.has_filetype() }
}

impl<'a> Entries<'a> {
    /// The walk from byte `at` on, where an entry is known to start.
    #[must_use]
    pub const fn from(mut self, at: usize) -> Self {
        self.at = at;
        self
    }

    fn damaged(&mut self, problem: String) -> Option<Result<EntryView<'a>>> {
        let what = format!("directory entry at byte {}", self.at);
        self.at = self.bytes.len();
        Some(Err(Error::corrupt(what, self.block, problem)))
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<EntryView<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let rest = &self.bytes[self.at..];
        if rest.len() < ENTRY_MIN {
            return self.damaged(format!("only {} bytes to the end of the block", rest.len()));
        }
        let rec_len = usize::from(D_REC_LEN.get(rest));
        if rec_len < ENTRY_MIN || rec_len > rest.len() || !rec_len.is_multiple_of(4) {
            return self.damaged(format!("length {rec_len}, {} bytes to the end of the block", rest.len()));
        }
        let file_type = if self.filetype { D_FILE_TYPE.get(rest) } else { 0 };
        let ino = D_INODE.get(rest);
        // Free space may keep what an entry held before, a kind from times with the feature included.
        let long_name = !self.filetype && ino != 0 && D_FILE_TYPE.get(rest) != 0;
        let name_len = usize::from(D_NAME_LEN.get(rest));
        if long_name || entry_size(name_len) > rec_len {
            return self.damaged(format!("a name of {name_len} bytes in an entry of {rec_len}"));
        }
        if ino > self.inodes_count {
            return self.damaged(format!("inode {ino}, expected at most {}", self.inodes_count));
        }
        let name = &rest[HEADER..HEADER + name_len];
        if ino != 0 && (name.is_empty() || name.contains(&b'/') || name.contains(&0)) {
            return self.damaged(format!("name {:?}", String::from_utf8_lossy(name)));
        }
        let offset = self.at;
        self.at += rec_len;
        Some(Ok(EntryView { offset, ino, rec_len, file_type, name }))
    }
}

/// Writes an entry at the start of `bytes`; `kind` is `None` on volumes without the `filetype` feature and
/// for free space.
pub fn put_entry(bytes: &mut [u8], ino: u32, rec_len: usize, name: &[u8], kind: Option<FileKind>) {
    D_INODE.put(bytes, ino);
    D_REC_LEN.put(bytes, rec_len_field(rec_len));
    D_NAME_LEN.put(bytes, u8::try_from(name.len()).expect("names have at most 255 bytes"));
    D_FILE_TYPE.put(bytes, kind.map_or(0, code_of));
    bytes[HEADER..HEADER + name.len()].copy_from_slice(name);
}

/// Fills a whole directory block with one piece of free space. A block of zeros would be damage.
pub fn put_empty_block(bytes: &mut [u8]) {
    bytes.fill(0);
    put_entry(bytes, 0, bytes.len(), b"", None);
}

/// Fills a new directory's first block: `.`, `..` and free space.
pub fn put_first_block(bytes: &mut [u8], ino: u32, parent: u32, filetype: bool) {
    bytes.fill(0);
    let kind = filetype.then_some(FileKind::Directory);
    put_entry(bytes, ino, ENTRY_MIN, b".", kind);
    put_entry(&mut bytes[ENTRY_MIN..], parent, ENTRY_MIN, b"..", kind);
    let rest = bytes.len() - 2 * ENTRY_MIN;
    put_entry(&mut bytes[2 * ENTRY_MIN..], 0, rest, b"", None);
}

/// The on-disk form of an entry's length.
#[must_use]
pub fn rec_len_field(rec_len: usize) -> u16 {
    let narrow = u16::try_from(small(rec_len)).expect("blocks of at most 4096 bytes");
    debug_assert!(narrow.is_multiple_of(4), "entries are padded");
    narrow
}

/// The code for a kind.
#[must_use]
pub const fn code_of(kind: FileKind) -> u8 {
    match kind {
        FileKind::Regular => 1,
        FileKind::Directory => 2,
        FileKind::CharDevice => 3,
        FileKind::BlockDevice => 4,
        FileKind::Fifo => 5,
        FileKind::Socket => 6,
        FileKind::Symlink => 7,
    }
}

/// The kind that a code stands for.
#[must_use]
pub const fn kind_of(code: u8) -> Option<FileKind> {
    match code {
        1 => Some(FileKind::Regular),
        2 => Some(FileKind::Directory),
        3 => Some(FileKind::CharDevice),
        4 => Some(FileKind::BlockDevice),
        5 => Some(FileKind::Fifo),
        6 => Some(FileKind::Socket),
        7 => Some(FileKind::Symlink),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(bytes: &[u8]) -> Entries<'_> {
        Entries { bytes, at: 0, block: BlockNo(9), inodes_count: 100, filetype: true }
    }

    #[test]
    fn a_new_directory_has_two_names_and_free_space() {
        let mut block = vec![0xee; 1024];
        put_first_block(&mut block, 12, 2, true);
        let all: Vec<_> = walk(&block).map(|entry| entry.unwrap()).collect();
        assert_eq!(all.len(), 3);
        assert_eq!((all[0].ino, all[0].name, all[0].kind()), (12, &b"."[..], Some(FileKind::Directory)));
        assert_eq!((all[1].ino, all[1].name), (2, &b".."[..]));
        assert_eq!((all[2].ino, all[2].rec_len, all[2].end()), (0, 1000, 1024));
    }

    #[test]
    fn an_empty_block_is_one_free_entry() {
        let mut block = vec![0xee; 2048];
        put_empty_block(&mut block);
        let all: Vec<_> = walk(&block).map(|entry| entry.unwrap()).collect();
        assert_eq!((all.len(), all[0].ino, all[0].used()), (1, 0, 0));
    }

    #[test]
    fn zeros_are_damage() {
        let error = walk(&[0; 1024]).next().unwrap().unwrap_err().to_string();
        assert!(error.contains("block 9") && error.contains("length 0"), "{error}");
    }

    #[test]
    fn no_bytes_make_the_walk_panic_or_loop() {
        let mut seed = fstitch_core::Seed::new(2);
        for _ in 0..5_000 {
            let mut block = vec![0; 1024];
            put_first_block(&mut block, 12, 2, true);
            for _ in 0..4 {
                let at = usize::try_from(seed.below(64)).unwrap();
                block[at] = u8::try_from(seed.below(256)).unwrap();
            }
            let all: Vec<_> = walk(&block).collect();
            assert!(all.len() <= 1024 / ENTRY_MIN + 1);
            let intact = all.iter().all(Result::is_ok);
            assert!(!intact || all.last().unwrap().as_ref().unwrap().end() == 1024);
        }
    }
}
