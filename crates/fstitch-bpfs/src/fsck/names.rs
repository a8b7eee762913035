//! Directories: rows of entries, and what they name.

use std::collections::BTreeSet;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{FileKind, Le, Result};

use super::trees::Seen;
use super::{Fix, Fsck};
use crate::layout::{Field, LINK_MAX, ROOT};
use crate::pm::{BLOCK, BLOCK_BYTES};

/// An entry's first word: its inode and its length.
const NAME: usize = 9;
const SHORTEST: usize = 16;

impl Fsck<'_> {
    /// Goes through all directories from the root on, and all that they name.
    pub(super) fn all_names(&mut self, root: u64) -> Result<()> {
        let seen = self.inode(root, FileKind::Directory)?;
        self.names.insert(root, 1);
        let mut left = vec![(root, seen)];
        while let Some((dir, seen)) = left.pop() {
            let mut below = Vec::new();
            self.directory(dir, &seen, &mut below)?;
            for ino in below {
                let child = self.kind(ino)?.expect("it was of a kind");
                let seen = self.inode(ino, child)?;
                match seen.kind {
                    FileKind::Directory => left.push((ino, seen)),
                    FileKind::Symlink => self.target(ino, &seen)?,
                    _ => {}
                }
            }
        }
        let many: Vec<u64> =
            self.names.iter().filter(|(_, names)| **names > LINK_MAX).map(|(ino, _)| *ino).collect();
        many.into_iter().for_each(|ino| self.say("links", format!("inode {ino} has too many names")));
        Ok(())
    }

    /// A target of a symbolic link has bytes, and none of them is 0.
    fn target(&mut self, ino: u64, seen: &Seen) -> Result<()> {
        let bytes = match seen.leaves.get(&0) {
            Some(block) => self.block(*block)?,
            None => vec![0; BLOCK],
        };
        if seen.size == 0 || bytes[..to_usize(seen.size)].contains(&0) {
            // It can be read and removed, and nobody knows where it led.
            self.say("target", format!("symbolic link {ino} leads nowhere"));
        }
        Ok(())
    }

    /// The entries of a directory; what is named for the first time goes to `below`.
    fn directory(&mut self, dir: u64, seen: &Seen, below: &mut Vec<u64>) -> Result<()> {
        let mut names = BTreeSet::new();
        for index in 0..seen.size / BLOCK_BYTES {
            let Some(block) = seen.leaves.get(&index).copied() else {
                let fix = Fix { at: seen.at + 8 * u64::from(Field::Size as u16), word: index * BLOCK_BYTES };
                let text =
                    format!("directory {dir}: its block {index} is missing; what is behind it is lost");
                self.fix("directory-block", text, fix);
                return Ok(());
            };
            let bytes = self.block(block)?;
            let mut from = 0;
            while from < BLOCK {
                let at = block * BLOCK_BYTES + to_u64(from);
                let word = Le::u64(&bytes, from);
                let (ino, len) = (word >> 16, to_usize(word & 0xffff));
                let free = |len: usize| Fix { at, word: to_u64(len) };
                if len < SHORTEST || !len.is_multiple_of(8) || from + len > BLOCK {
                    let text = format!(
                        "directory {dir}: an entry at {from} of its block {index} ends where it cannot"
                    );
                    self.fix("entry", text, free(BLOCK - from));
                    break;
                }
                if ino != 0 {
                    let name_len = usize::from(bytes[from + 8]);
                    let name =
                        bytes.get(from + NAME..from + NAME + name_len).filter(|_| NAME + name_len <= len);
                    let judged = self.entry((dir, ino), name, &mut names, below)?;
                    if let Err((code, text)) = judged {
                        self.fix(code, format!("directory {dir}: {text}"), free(len));
                    }
                }
                from += len;
            }
        }
        Ok(())
    }

    /// What is wrong with an entry, if anything is.
    fn entry(
        &mut self,
        (dir, ino): (u64, u64),
        name: Option<&[u8]>,
        names: &mut BTreeSet<Vec<u8>>,
        below: &mut Vec<u64>,
    ) -> Result<std::result::Result<(), (&'static str, String)>> {
        let name = match name {
            Some(name) if is_name(name) => name,
            _ => return Ok(Err(("name", "a name that cannot be one".to_owned()))),
        };
        let shown = String::from_utf8_lossy(name).into_owned();
        let Some(kind) = self.kind(ino)? else {
            return Ok(Err(("dangling-name", format!("`{shown}` names inode {ino}, which is none"))));
        };
        let is_known = self.names.contains_key(&ino);
        if kind == FileKind::Directory && (is_known || ino == dir || ino == ROOT.get()) {
            return Ok(Err(("directory-names", format!("`{shown}` is another name of directory {ino}"))));
        }
        if !names.insert(name.to_vec()) {
            return Ok(Err(("name-twice", format!("`{shown}` is there twice"))));
        }
        *self.names.entry(ino).or_default() += 1;
        if !is_known {
            below.push(ino);
        }
        Ok(Ok(()))
    }
}

fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}
