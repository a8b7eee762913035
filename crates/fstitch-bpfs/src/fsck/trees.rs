//! Trees of blocks and inodes, as the medium has them.

use std::collections::BTreeMap;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{FileKind, Le, Result};

use super::{Fix, Fsck};
use crate::layout::{
    Field, HEIGHT_MAX, INODE, INODES_IN_BLOCK, POINTERS, ROOT_SLOT, SIZE_MAX, SYMLINK_MAX, XATTRS_MAX,
};
use crate::pm::{BLOCK, BLOCK_BYTES};

/// The first block that something may point to.
const FIRST: u64 = 2;

/// Leaves by their number: their blocks.
pub(super) type Leaves = BTreeMap<u64, u64>;

/// An inode that an entry names.
pub(super) struct Seen {
    pub(super) kind: FileKind,
    pub(super) size: u64,
    /// Where its words are.
    pub(super) at: u64,
    /// Of its contents.
    pub(super) leaves: Leaves,
}

impl Fsck<'_> {
    /// Notes that something points to a block; why it cannot, if so.
    fn point(&mut self, block: u64) -> Option<&'static str> {
        if !(FIRST..self.identity.blocks).contains(&block) {
            return Some("leads out of the volume");
        }
        let (word, bit) = (to_usize(block / 64), 1 << (block % 64));
        if self.used[word] & bit != 0 {
            return Some("leads to where another one leads");
        }
        self.used[word] |= bit;
        None
    }

    /// The leaves before `end` of a tree whose top is the word at `at`; what is wrong with pointers is noted.
    pub(super) fn tree(&mut self, whose: &str, at: u64, end: u64) -> Result<Leaves> {
        let mut leaves = Leaves::new();
        let top = self.word(at)?;
        let height = top & 7;
        if end == 0 {
            return Ok(leaves);
        }
        if height > u64::from(HEIGHT_MAX) {
            self.fix("height", format!("{whose}: its tree is {height} high"), Fix { at, word: 0 });
            return Ok(leaves);
        }
        if top >> 3 == 0 {
            return Ok(leaves);
        }
        if let Some(why) = self.point(top >> 3) {
            self.fix("pointer", format!("{whose}: the top of its tree {why}"), Fix { at, word: 0 });
            return Ok(leaves);
        }
        let mut left = vec![(top >> 3, height, 0)];
        while let Some((block, level, index)) = left.pop() {
            if level == 0 {
                leaves.insert(index, block);
                continue;
            }
            let bytes = self.block(block)?;
            let span = POINTERS.pow(u32::try_from(level - 1).expect("small"));
            for slot in 0..POINTERS {
                let child = index * POINTERS + slot;
                let word = Le::u64(&bytes, to_usize(8 * slot));
                if word >> 3 == 0 || child.saturating_mul(span) >= end {
                    continue;
                }
                match self.point(word >> 3) {
                    None => left.push((word >> 3, level - 1, child)),
                    Some(why) => {
                        let at = block * BLOCK_BYTES + 8 * slot;
                        let text = format!("{whose}: the pointer to block {} {why}", word >> 3);
                        self.fix("pointer", text, Fix { at, word: 0 });
                    }
                }
            }
        }
        Ok(leaves)
    }

    /// The inode file has no holes and a root directory; otherwise there is nothing to begin with.
    pub(super) fn inode_file(&mut self) -> Result<bool> {
        let before = self.fixes.len();
        if self.top()? >> 3 == 0 {
            self.say("inode-file", "there is no inode file".to_owned());
            return Ok(false);
        }
        let leaves = self.tree("the inode file", ROOT_SLOT, u64::MAX)?;
        let count = to_u64(leaves.len());
        let is_whole = self.fixes.len() == before && leaves.keys().copied().eq(0..count);
        if !is_whole {
            // A block of inodes that is missing cannot be made up.
            self.fixes.truncate(before);
            self.say("inode-file", "the inode file has holes, and nothing to fill them with".to_owned());
            return Ok(false);
        }
        self.inodes = leaves.into_values().collect();
        let root = crate::layout::ROOT.get();
        let is_directory = self.kind(root)? == Some(FileKind::Directory);
        if !is_directory {
            self.say("root", "the root is no directory".to_owned());
        }
        Ok(is_directory)
    }

    /// Where an inode's words are.
    pub(super) fn place(&self, ino: u64) -> Option<u64> {
        let block = self.inodes.get(to_usize(ino / INODES_IN_BLOCK))?;
        Some(block * BLOCK_BYTES + ino % INODES_IN_BLOCK * INODE)
    }

    fn field(&self, at: u64, field: Field) -> Result<u64> {
        self.word(at + 8 * u64::from(field as u16))
    }

    /// What an inode is, if it is anything.
    pub(super) fn kind(&self, ino: u64) -> Result<Option<FileKind>> {
        let Some(at) = self.place(ino).filter(|_| ino != 0) else { return Ok(None) };
        let bits = self.field(at, Field::Mode)? >> 32 & 0xffff;
        Ok(FileKind::from_mode(u16::try_from(bits).expect("16 bits")))
    }

    /// Looks at an inode that has a name, and is of a kind.
    pub(super) fn inode(&mut self, ino: u64, kind: FileKind) -> Result<Seen> {
        let at = self.place(ino).expect("it is of a kind");
        let whose = format!("inode {ino}");
        for (field, name) in [(Field::Ctime, "change"), (Field::Atime, "access"), (Field::Crtime, "making")] {
            let word = self.field(at, field)?;
            if word >> 32 & 0x3fff_ffff > 1_000_000_000 {
                let fix = Fix {
                    at: at + 8 * u64::from(field as u16),
                    word: word & !(0x3fff_ffff << 32) | 1_000_000_000 << 32,
                };
                self.fix("time", format!("{whose}: its time of {name} has too many nanoseconds"), fix);
            }
        }
        let size = self.size(&whose, at, kind)?;
        let leaves = self.tree(&whose, at + 8 * u64::from(Field::Root as u16), size.div_ceil(BLOCK_BYTES))?;
        self.xattrs(&whose, at + 8 * u64::from(Field::Xattrs as u16))?;
        Ok(Seen { kind, size, at, leaves })
    }

    fn size(&mut self, whose: &str, at: u64, kind: FileKind) -> Result<u64> {
        let size = self.field(at, Field::Size)?;
        let right = match kind {
            FileKind::Regular => size.min(SIZE_MAX),
            FileKind::Directory => (size - size % BLOCK_BYTES).min(SIZE_MAX),
            FileKind::Symlink => size.min(to_u64(SYMLINK_MAX)),
            _ => 0,
        };
        if size != right {
            let text = format!("{whose}: it has {size} bytes, which none of its kind has");
            self.fix("size", text, Fix { at: at + 8 * u64::from(Field::Size as u16), word: right });
        }
        Ok(right)
    }

    /// Attributes are as long as they say, in the order of their names.
    fn xattrs(&mut self, whose: &str, at: u64) -> Result<()> {
        let before = self.fixes.len();
        let leaves = self.tree(whose, at, u64::MAX)?;
        if self.word(at)? >> 3 == 0 || self.fixes.len() > before {
            return Ok(());
        }
        let mut bytes = Vec::new();
        for index in 0..to_u64(XATTRS_MAX + 8).div_ceil(BLOCK_BYTES) {
            match leaves.get(&index) {
                Some(block) => bytes.extend(self.block(*block)?),
                None => break,
            }
        }
        if !are_attributes(&bytes) {
            let text = format!("{whose}: its attributes are none");
            self.fix("attributes", text, Fix { at, word: 0 });
        }
        Ok(())
    }
}

fn are_attributes(bytes: &[u8]) -> bool {
    if bytes.len() < BLOCK {
        return false;
    }
    let len = Le::u64(bytes, 0);
    if len > to_u64(XATTRS_MAX) || to_usize(len) + 8 > bytes.len() {
        return false;
    }
    let mut left = &bytes[8..8 + to_usize(len)];
    let mut last: &[u8] = &[];
    while !left.is_empty() {
        let Some((head, rest)) = left.split_at_checked(5) else { return false };
        let Some((name, rest)) = rest.split_at_checked(usize::from(head[0])) else { return false };
        let Some((_, rest)) = rest.split_at_checked(to_usize(Le::u32(head, 1))) else { return false };
        if name.is_empty() || name <= last {
            return false;
        }
        (last, left) = (name, rest);
    }
    true
}
