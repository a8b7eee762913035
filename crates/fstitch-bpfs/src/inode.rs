//! An inode as the medium has it, and what is known of all of them in memory alone.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{Attr, Error, FileKind, InodeFlags, InodeNo, Le, Result, Structure, Timestamp};
use rustc_hash::FxHashMap;

use crate::layout::{Field, INODES_IN_BLOCK, unpack_flags, word_time};
use crate::pm::{BLOCK_BYTES, Bits, Gate};
use crate::tree;

/// An inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inode {
    pub(crate) ino: u64,
    pub(crate) kind: FileKind,
    pub(crate) perm: u16,
    pub(crate) flags: InodeFlags,
    pub(crate) generation: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    pub(crate) root: u64,
    pub(crate) xattrs: u64,
    pub(crate) rdev: u32,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
    pub(crate) crtime: Timestamp,
}

fn half(word: u64, upper: bool) -> u32 {
    u32::try_from(if upper { word >> 32 } else { word & 0xffff_ffff }).expect("32 bits")
}

/// The mode in the word that has it.
fn mode_bits(word: u64) -> u16 {
    u16::try_from(word >> 32 & 0xffff).expect("16 bits")
}

/// What an inode is, by the word that has its mode.
pub(crate) fn kind(word: u64) -> Option<FileKind> {
    FileKind::from_mode(mode_bits(word))
}

impl Inode {
    /// From its words.
    ///
    /// # Errors
    /// `Corrupt` if it is of no kind.
    pub(crate) fn from_words(ino: u64, word: impl Fn(Field) -> u64) -> Result<Self> {
        let mode = word(Field::Mode);
        let bits = mode_bits(mode);
        let flags = u16::try_from(mode >> 48).expect("16 bits");
        let kind =
            kind(mode).ok_or_else(|| Error::corrupt(Structure::Inode(ino), None, "it is of no kind"))?;
        let ctime = word(Field::Ctime);
        let mtime = match word(Field::Mtime) {
            0 => ctime,
            mtime => mtime,
        };
        Ok(Self {
            ino,
            kind,
            perm: bits & 0o7777,
            flags: InodeFlags(unpack_flags(flags)),
            generation: half(mode, false),
            uid: half(word(Field::Owner), false),
            gid: half(word(Field::Owner), true),
            size: word(Field::Size),
            root: word(Field::Root),
            xattrs: word(Field::Xattrs),
            rdev: half(word(Field::Device), false),
            atime: word_time(word(Field::Atime)),
            mtime: word_time(mtime),
            ctime: word_time(ctime),
            crtime: word_time(word(Field::Crtime)),
        })
    }

    /// As everybody sees it.
    pub(crate) fn attr(&self, names: u32, blocks: u64) -> Attr {
        let size = match self.kind {
            FileKind::Directory => tree::leaves(self.size).max(1) * BLOCK_BYTES,
            _ => self.size,
        };
        Attr {
            ino: InodeNo(self.ino),
            kind: self.kind,
            perm: self.perm,
            nlink: names,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size,
            blocks: blocks * (BLOCK_BYTES / 512),
            blksize: 4096,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            crtime: Some(self.crtime),
            generation: self.generation,
        }
    }

    /// As a rule sees it.
    pub(crate) fn seen(&self, names: u32) -> fstitch_posix::Inode {
        fstitch_posix::Inode { attr: self.attr(names, 0), flags: self.flags }
    }

    /// Whether it is a directory.
    pub(crate) fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// The tree of its contents as far as they count: that of an empty one is none.
    pub(crate) fn contents(&self) -> u64 {
        if self.size == 0 { 0 } else { self.root }
    }
}

/// Where an inode's words are, if there is room for one of that number.
pub(crate) fn place(gate: &Gate, inodes: u64, ino: u64) -> Option<u64> {
    let block = tree::leaf(gate, inodes, ino / INODES_IN_BLOCK)?;
    Some(block.at() + ino % INODES_IN_BLOCK * crate::layout::INODE)
}

/// An inode from the medium, whether it is in use or not.
///
/// # Errors
/// `Corrupt` if it is not there, or of no kind.
pub(crate) fn load(gate: &Gate, inodes: u64, ino: u64) -> Result<Inode> {
    let at = place(gate, inodes, ino).ok_or_else(|| {
        Error::corrupt(Structure::Inode(ino), None, "there is no room for one of that number")
    })?;
    // All of it at once: this is asked more often than anything else.
    let words = gate.bytes(at, 8 * Field::ALL.len());
    Inode::from_words(ino, |field| Le::u64(words, 8 * field as usize))
}

/// What the scan of a mount finds out of inodes, and changes keep so (\[D\] §3.3.2).
#[derive(Debug, Default)]
pub(crate) struct Inodes {
    /// Names by inode: of a directory, its own and those of its subdirectories.
    names: Vec<u32>,
    /// Blocks by inode.
    blocks: Vec<u64>,
    /// In use: named, or referred to.
    used: Bits,
    /// Where `..` of a directory leads.
    parents: FxHashMap<u64, u64>,
    /// Freed by commits that are not fenced yet.
    leaving: Vec<u64>,
}

impl Inodes {
    /// There is room for those of another block.
    pub(crate) fn grow(&mut self, first: u64) {
        let end = to_usize(first + INODES_IN_BLOCK);
        if self.names.len() < end {
            self.names.resize(end, 0);
            self.blocks.resize(end, 0);
            self.used.grow(end.div_ceil(64));
        }
        (first.max(1)..first + INODES_IN_BLOCK).for_each(|ino| self.give_back(ino));
    }

    /// Whether an inode is in use.
    pub(crate) fn is_used(&self, ino: u64) -> bool {
        to_usize(ino) < self.names.len() && self.used.has(ino)
    }

    /// The first that is not in use, which it is from now on. `None`: there is no room.
    pub(crate) fn take(&mut self) -> Option<u64> {
        self.used.take()
    }

    /// An inode is in use.
    pub(crate) fn mark(&mut self, ino: u64) {
        self.used.set(ino);
    }

    /// Nothing came of an inode.
    pub(crate) fn give_back(&mut self, ino: u64) {
        self.used.clear(ino);
    }

    /// An inode is not in use any more; its number may be taken when the commit that did that is durable.
    pub(crate) fn leave(&mut self, ino: u64) {
        self.names[to_usize(ino)] = 0;
        self.blocks[to_usize(ino)] = 0;
        self.parents.remove(&ino);
        self.leaving.push(ino);
    }

    /// Whether there are some that are free when the commits so far are durable.
    pub(crate) fn are_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// All commits so far are durable.
    pub(crate) fn settle(&mut self) {
        for ino in std::mem::take(&mut self.leaving) {
            self.give_back(ino);
        }
    }

    pub(crate) fn names(&self, ino: u64) -> u32 {
        self.names.get(to_usize(ino)).copied().unwrap_or(0)
    }

    pub(crate) fn set_names(&mut self, ino: u64, names: u32) {
        self.names[to_usize(ino)] = names;
    }

    pub(crate) fn blocks(&self, ino: u64) -> u64 {
        self.blocks.get(to_usize(ino)).copied().unwrap_or(0)
    }

    pub(crate) fn add_blocks(&mut self, ino: u64, delta: i64) {
        let blocks = &mut self.blocks[to_usize(ino)];
        *blocks = blocks.checked_add_signed(delta).expect("a file has no fewer blocks than none");
    }

    pub(crate) fn parent(&self, dir: u64) -> Option<u64> {
        self.parents.get(&dir).copied()
    }

    pub(crate) fn set_parent(&mut self, dir: u64, parent: u64) {
        self.parents.insert(dir, parent);
    }

    /// All, and those that are not in use.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (to_u64(self.names.len()), self.used.free() + to_u64(self.leaving.len()))
    }

    /// Numbers that there are.
    pub(crate) fn end(&self) -> u64 {
        to_u64(self.names.len())
    }
}
