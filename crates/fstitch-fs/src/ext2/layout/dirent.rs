//! Directory entries: a chain through each directory block.
//!
//! **Layout.** Inode (4 bytes), length of the entry (2), length of the name (1), kind (1), name, padding to
//! four bytes. The lengths of a block's entries add up to the block. An entry with inode 0 is free space.

use fstitch_core::{BlockNo, Error, FileKind, Result, Structure};

use super::checksum::{DIRECTORY_TAIL, has_directory_tail, index_counts, put_directory_tail};
use super::field::fields;
use super::superblock::Superblock;

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

/// Where an entry is and how long, without its name's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Where it starts in the block.
    pub offset: usize,
    /// The inode that it names; 0 if it is free space.
    pub ino: u32,
    /// Bytes to the next entry.
    pub rec_len: usize,
    /// Bytes in the name.
    pub name_len: usize,
}

impl Slot {
    /// Where the next entry starts.
    #[must_use]
    pub const fn end(&self) -> usize {
        self.offset + self.rec_len
    }

    /// Bytes that the entry itself needs: none if it is free.
    #[must_use]
    pub const fn used(&self) -> usize {
        if self.ino == 0 { 0 } else { entry_size(self.name_len) }
    }

    /// Where the name's bytes are.
    #[must_use]
    pub const fn name(&self) -> std::ops::Range<usize> {
        let start = self.offset + HEADER;
        start..start + self.name_len
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

/// The entries of the directory block `bytes`, which is `block` on the volume. The entry without a name that ends a block with a
/// sum is none.
#[must_use]
pub fn entries<'a>(bytes: &'a [u8], block: BlockNo, volume: &Superblock) -> Entries<'a> {
    // A block of an index may end like one, with what it held before.
    let has_tail = volume.features.has_sums() && has_directory_tail(bytes) && index_counts(bytes).is_none();
    let tail = if has_tail { DIRECTORY_TAIL } else { 0 };
    let bytes = &bytes[..bytes.len() - tail];
    Entries { bytes, at: 0, block, inodes_count: volume.inodes_count, filetype: volume.has_filetype() }
}

/// The entries in `bytes`, a part of an inode in `block` that holds some of a directory.
#[must_use]
pub fn inline_entries<'a>(bytes: &'a [u8], block: BlockNo, volume: &Superblock) -> Entries<'a> {
    Entries { bytes, at: 0, block, inodes_count: volume.inodes_count, filetype: volume.has_filetype() }
}

impl<'a> Entries<'a> {
    /// The entries of a block of a volume with many inodes and no kinds.
    #[cfg(test)]
    pub(crate) const fn any(bytes: &'a [u8], block: BlockNo) -> Self {
        Self { bytes, at: 0, block, inodes_count: u32::MAX, filetype: false }
    }

    /// The walk from byte `at` on, where an entry is known to start.
    #[must_use]
    pub const fn from(mut self, at: usize) -> Self {
        self.at = at;
        self
    }

    /// The same walk for those who need few of the names: they are not looked at, everything else is.
    #[must_use]
    pub const fn slots(self) -> Slots<'a> {
        Slots { entries: self, damaged: false }
    }

    /// The entry of this name in a whole block, the names' bytes of the others not looked at. `passed` grows by the number of
    /// entries before it.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if one before it is otherwise damaged.
    pub fn find(mut self, name: &[u8], passed: &mut usize) -> Result<Option<Slot>> {
        let mut at = self.at;
        while at < self.bytes.len() {
            let Some(slot) = self.slot(at) else {
                self.at = at;
                return Err(self.damage());
            };
            let is_it = || self.bytes.get(slot.name()).is_some_and(|other| same(other, name));
            if slot.name_len == name.len() && slot.ino != 0 && is_it() {
                return Ok(Some(slot));
            }
            at = slot.end();
            *passed += 1;
        }
        Ok(None)
    }

    /// The header of the entry at byte `at`, if all is right with it.
    #[inline]
    fn slot(&self, at: usize) -> Option<Slot> {
        let rest = self.bytes.get(at..)?;
        let header = rest.first_chunk::<HEADER>()?;
        let ino = D_INODE.get(header);
        let rec_len = rec_len(header, self.bytes.len());
        let name_len = usize::from(D_NAME_LEN.get(header));
        // Free space may keep what an entry held before, a kind from times with the feature included.
        let short_name = self.filetype || ino == 0 || D_FILE_TYPE.get(header) == 0;
        let named = ino == 0 || name_len > 0;
        let intact = rec_len >= ENTRY_MIN
            && rec_len <= rest.len()
            && rec_len.is_multiple_of(4)
            && entry_size(name_len) <= rec_len
            && ino <= self.inodes_count
            && short_name
            && named;
        intact.then_some(Slot { offset: at, ino, rec_len, name_len })
    }

    /// What is wrong with the entry that is not as it should be.
    #[cold]
    fn damage(&self) -> Error {
        let rest = &self.bytes[self.at..];
        let problem = if rest.len() < ENTRY_MIN {
            format!("only {} bytes to the end of the block", rest.len())
        } else {
            let rec_len = rec_len(rest, self.bytes.len());
            let name_len = usize::from(D_NAME_LEN.get(rest));
            let ino = D_INODE.get(rest);
            let long_name = !self.filetype && ino != 0 && D_FILE_TYPE.get(rest) != 0;
            if rec_len < ENTRY_MIN || rec_len > rest.len() || !rec_len.is_multiple_of(4) {
                format!("length {rec_len}, {} bytes to the end of the block", rest.len())
            } else if long_name || entry_size(name_len) > rec_len {
                format!("a name of {name_len} bytes in an entry of {rec_len}")
            } else if ino > self.inodes_count {
                format!("inode {ino}, expected at most {}", self.inodes_count)
            } else {
                format!("name {:?}", String::from_utf8_lossy(&rest[HEADER..HEADER + name_len]))
            }
        };
        Error::corrupt(Structure::DirectoryEntry(Some(self.at)), self.block, problem)
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<EntryView<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let view = self.slot(self.at).and_then(|slot| {
            let name = &self.bytes[slot.name()];
            // Without leaving early, so that the compiler looks at many bytes at a time.
            let bad = name.iter().fold(false, |bad, &byte| bad | (byte == b'/') | (byte == 0));
            let file_type = if self.filetype { D_FILE_TYPE.get(&self.bytes[slot.offset..]) } else { 0 };
            let Slot { offset, ino, rec_len, .. } = slot;
            (ino == 0 || !bad).then_some(EntryView { offset, ino, rec_len, file_type, name })
        });
        if let Some(view) = view {
            self.at = view.end();
            return Some(Ok(view));
        }
        let damage = self.damage();
        self.at = self.bytes.len();
        Some(Err(damage))
    }
}

/// Walks the entries of one directory block without looking at the names' bytes. Ends before the first entry that is
/// otherwise damaged.
#[derive(Clone, Debug)]
pub struct Slots<'a> {
    entries: Entries<'a>,
    damaged: bool,
}

impl Slots<'_> {
    /// Fails if the walk ended at a damaged entry.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn intact(&self) -> Result<()> {
        if self.damaged { Err(self.entries.damage()) } else { Ok(()) }
    }
}

impl Iterator for Slots<'_> {
    type Item = Slot;

    fn next(&mut self) -> Option<Slot> {
        if self.entries.at >= self.entries.bytes.len() {
            return None;
        }
        let slot = self.entries.slot(self.entries.at);
        match slot {
            Some(slot) => self.entries.at = slot.end(),
            None => self.damaged = true,
        }
        slot
    }
}

/// Whether two names of one length are the same. Names of one directory differ near their ends more often than at their
/// beginnings.
#[inline]
fn same(a: &[u8], b: &[u8]) -> bool {
    a.last() == b.last() && a == b
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
    put_empty_leaf(bytes, false);
}

/// The same, with a tail if the block is `summed`.
pub fn put_empty_leaf(bytes: &mut [u8], summed: bool) {
    bytes.fill(0);
    let names = names_of(bytes, summed);
    put_entry(names, 0, names.len(), b"", None);
}

/// The part of a directory block that holds names; with a sum (`summed`) the rest becomes a tail that lacks it.
fn names_of(bytes: &mut [u8], summed: bool) -> &mut [u8] {
    if !summed {
        return bytes;
    }
    put_directory_tail(bytes);
    let len = bytes.len() - DIRECTORY_TAIL;
    &mut bytes[..len]
}

/// Fills a new directory's first block: `.`, `..` and free space.
pub fn put_first_block(bytes: &mut [u8], ino: u32, parent: u32, filetype: bool) {
    bytes.fill(0);
    put_first_entries(bytes, ino, parent, (filetype, false));
}

/// The same in a block of zeros, with a tail if it is `summed`.
pub fn put_first_entries(bytes: &mut [u8], ino: u32, parent: u32, (filetype, summed): (bool, bool)) {
    let bytes = names_of(bytes, summed);
    let kind = filetype.then_some(FileKind::Directory);
    put_entry(bytes, ino, ENTRY_MIN, b".", kind);
    put_entry(&mut bytes[ENTRY_MIN..], parent, ENTRY_MIN, b"..", kind);
    let rest = bytes.len() - 2 * ENTRY_MIN;
    put_entry(&mut bytes[2 * ENTRY_MIN..], 0, rest, b"", None);
}

/// The largest block, whose length its 16 bits cannot hold: they are all set for an entry as long as the block.
const BLOCK_MAX: usize = 1 << 16;

/// The on-disk form of an entry's length.
#[must_use]
pub fn rec_len_field(rec_len: usize) -> u16 {
    debug_assert!(rec_len.is_multiple_of(4) && rec_len <= BLOCK_MAX, "entries are padded");
    u16::try_from(rec_len).unwrap_or(u16::MAX)
}

/// The length of the entry that starts with `header`, in a block of `block` bytes. Other writers have used 0 as well for
/// the one length that has no number.
#[must_use]
#[inline]
pub fn rec_len(header: &[u8], block: usize) -> usize {
    match D_REC_LEN.get(header) {
        0 | u16::MAX if block == BLOCK_MAX => BLOCK_MAX,
        field => usize::from(field),
    }
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
    fn a_tail_is_no_room() {
        let mut block = vec![0xee; 1024];
        put_empty_leaf(&mut block, true);
        assert!(has_directory_tail(&block));
        let all: Vec<_> = walk(&block[..1012]).map(|entry| entry.unwrap()).collect();
        assert_eq!((all.len(), all[0].rec_len), (1, 1012));
        block.fill(0);
        put_first_entries(&mut block, 12, 2, (true, true));
        assert!(has_directory_tail(&block));
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
            let mut slots = walk(&block).slots();
            let found = slots.by_ref().map(|slot| (slot.offset, slot.ino, slot.rec_len, slot.used()));
            let found: Vec<_> = found.take(all.len()).collect();
            let views =
                all.iter().flatten().map(|entry| (entry.offset, entry.ino, entry.rec_len, entry.used()));
            assert!(found.iter().copied().zip(views).all(|(slot, view)| slot == view));
            // The one thing that it does not see is a name with a byte that none may have.
            let complaint = |error: &fstitch_core::Error| !error.to_string().contains("name \"");
            let structural = all.last().unwrap().as_ref().err().is_some_and(complaint);
            assert!(!structural || slots.intact().is_err(), "{all:?}");
        }
    }
}
