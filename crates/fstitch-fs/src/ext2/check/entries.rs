//! One block of a directory.

use std::hash::{Hash, Hasher};

use fstitch_core::Result;

use super::dirs::{DirScan, note, note_hash};
use super::salvage;
use super::state::{DIRECTORY, KIND, State, Volume};
use crate::ext2::layout::dirent::{
    D_FILE_TYPE, D_INODE, D_NAME_LEN, D_REC_LEN, ENTRY_MIN, HEADER, rec_len, rec_len_field,
};
use crate::ext2::layout::inode::I_LINKS_COUNT;
use crate::ext2::layout::superblock::ROOT_INO;
use crate::ext2::num::idx;

/// Which of a directory's names an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstNames {
    /// `.`, the first entry.
    Dot,
    /// `..`, the second.
    DotDot,
    /// Any other.
    Other,
}

/// An entry whose structure is sound.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    pub(super) ino: u32,
    pub(super) file_type: u8,
    pub(super) name: &'a [u8],
    pub(super) first: FirstNames,
}

/// A directory block under examination.
pub(super) struct BlockScan<'s, 'v> {
    pub(super) volume: &'s Volume<'v>,
    pub(super) state: &'s mut State,
    pub(super) dir: &'s mut DirScan,
    /// Which block of the directory this is.
    pub(super) logical: usize,
    /// Where it lies.
    pub(super) block: u64,
    pub(super) bytes: &'s mut [u8],
}

/// Whether the entry at `at` is laid out soundly; its length.
pub(super) fn entry_len(bytes: &[u8], at: usize) -> std::result::Result<usize, String> {
    let Some(head) = bytes.get(at..at + HEADER) else {
        return Err("no room for an entry".into());
    };
    let len = rec_len(head, bytes.len());
    let name = usize::from(D_NAME_LEN.get(head));
    if len < ENTRY_MIN || !len.is_multiple_of(4) || at + len > bytes.len() {
        return Err(format!("an entry of {len} bytes"));
    }
    if name + HEADER > len {
        return Err(format!("a name of {name} bytes in an entry of {len}"));
    }
    Ok(len)
}

/// The code of an entry that names an inode which was not looked at.
const UNSEEN: &str = "inode-unseen";

/// What is wrong with an entry.
type Problem = (&'static str, String);

impl BlockScan<'_, '_> {
    fn place(&self) -> String {
        format!("directory {} block {} (at {})", self.dir.ino, self.logical, self.block)
    }

    /// Examines all entries; true when the block was changed.
    pub(super) fn run(&mut self) -> Result<bool> {
        let mut changed = false;
        let has_first = self.logical == 0 && !self.dir.is_inline;
        if has_first {
            changed |= self.first_names();
        }
        let (mut at, mut previous) = (0, None);
        let mut index = 0;
        while at < self.bytes.len() {
            let len = match entry_len(self.bytes, at) {
                Ok(len) => len,
                Err(problem) => {
                    let text = format!("{} offset {at}: {problem}", self.place());
                    if !self.state.dir_problem(self.dir.ino, "dirent-structure", text) {
                        break;
                    }
                    self.dir.drop_tree |= self.dir.tree.is_some();
                    changed = true;
                    let kept = salvage::give_up(self.bytes, at);
                    match kept.or_else(|| salvage::shorten(self.bytes, at)) {
                        Some(len) => len,
                        None => {
                            salvage::end_block_at(self.bytes, at, previous);
                            break;
                        }
                    }
                }
            };
            let first = match index {
                0 if has_first => FirstNames::Dot,
                1 if has_first => FirstNames::DotDot,
                _ => FirstNames::Other,
            };
            if D_INODE.get(&self.bytes[at..]) != 0 || first == FirstNames::DotDot {
                changed |= self.entry(at, first)?;
            }
            index += 1;
            previous = Some(at);
            at += len;
        }
        Ok(changed)
    }

    /// `.` and `..` must come first in the first block.
    fn first_names(&mut self) -> bool {
        let Err(problem) = first_names_are_sound(self.bytes) else {
            return false;
        };
        let text = format!("{}: {problem}", self.place());
        if !self.state.dir_problem(self.dir.ino, "dir-first-names", text) {
            return false;
        }
        salvage::rebuild_first_block(self.volume, self.bytes, self.dir.ino);
        self.dir.drop_tree |= self.dir.tree.is_some();
        true
    }

    /// Examines the entry at `at`; true when it was changed.
    fn entry(&mut self, at: usize, first: FirstNames) -> Result<bool> {
        let head = &self.bytes[at..];
        let name_len = usize::from(D_NAME_LEN.get(head));
        let name = head[HEADER..HEADER + name_len].to_vec();
        let entry = Entry { ino: D_INODE.get(head), file_type: D_FILE_TYPE.get(head), name: &name, first };
        if let Some((code, problem)) = self.judge(&entry) {
            let shown = String::from_utf8_lossy(&name).into_owned();
            let text = format!("{} offset {at}, name {shown:?}: {problem}", self.place());
            let mend = self.state.dir_problem(self.dir.ino, code, text);
            match (mend, first) {
                (false, FirstNames::Other) => {
                    // A name that stays counts for what it names, so that one problem stays one finding.
                    if self.names_something(&entry) {
                        note(self.volume, self.state, self.dir, &entry);
                    }
                    return Ok(false);
                }
                (false, _) => {}
                (true, FirstNames::Dot) => D_INODE.put(&mut self.bytes[at..], self.dir.ino),
                (true, FirstNames::DotDot) => D_INODE.put(&mut self.bytes[at..], ROOT_INO),
                (true, FirstNames::Other) if code == UNSEEN => {
                    // The next run sees it.
                    self.volume.use_whole_table(entry.ino)?;
                    return Ok(false);
                }
                (true, FirstNames::Other) => {
                    self.mend_entry(at, code, &name);
                    return Ok(true);
                }
            }
            self.note_first(at, first);
            return Ok(mend);
        }
        self.hidden(&entry);
        let changed = self.file_type(at, &entry);
        note(self.volume, self.state, self.dir, &entry);
        if first == FirstNames::Other {
            note_hash(self.dir, self.logical, &name);
        }
        Ok(changed)
    }

    fn note_first(&mut self, at: usize, first: FirstNames) {
        let ino = D_INODE.get(&self.bytes[at..]);
        note(self.volume, self.state, self.dir, &Entry { ino, file_type: 0, name: b"", first });
    }

    /// Whether an entry's inode exists and is in use.
    fn names_something(&self, entry: &Entry<'_>) -> bool {
        let shape = &self.volume.shape;
        let exists = entry.ino >= shape.first_ino && entry.ino <= shape.inodes_count;
        exists && !shape.is_own_inode(entry.ino) && self.state.is_used(entry.ino)
    }

    /// What is wrong with an entry, if anything.
    fn judge(&mut self, entry: &Entry<'_>) -> Option<Problem> {
        let ino = entry.ino;
        match entry.first {
            FirstNames::Dot if ino != self.dir.ino => {
                return Some(("dir-dot-wrong", format!("names inode {ino}")));
            }
            FirstNames::Dot => return None,
            FirstNames::DotDot => {
                let exists = ino != 0 && ino <= self.volume.shape.inodes_count;
                let problem = ("dir-dotdot-wrong", format!("names inode {ino}"));
                // Whether it is the right one is for pass 3 to say.
                return (!exists).then_some(problem);
            }
            FirstNames::Other => {}
        }
        if entry.name.is_empty() {
            return Some(("dirent-bad-name", "no name".into()));
        }
        if entry.name.iter().any(|&b| b == b'/' || b == 0) {
            return Some(("dirent-bad-name", "a name with a slash or NUL".into()));
        }
        if matches!(entry.name, b"." | b"..") {
            return Some(("dirent-bad-name", "a second name of the directory itself".into()));
        }
        if ino == ROOT_INO {
            return Some(("dirent-names-root", "names the root".into()));
        }
        let shape = &self.volume.shape;
        if ino < shape.first_ino || ino > shape.inodes_count || shape.is_own_inode(ino) {
            return Some(("dirent-bad-inode", format!("names inode {ino}")));
        }
        if self.is_hidden_by_descriptor(ino) {
            return Some((UNSEEN, format!("names inode {ino}, which its group has as never used")));
        }
        // A number that was taken since the check began was free when the inodes were looked at.
        let moves = self.volume.source.inode_moves(ino);
        if !self.state.is_used(ino) && !moves {
            return Some(("dirent-unused-inode", format!("names inode {ino}, which is free")));
        }
        (!self.dir.names.insert(name_hash(entry.name)) && !moves)
            .then(|| ("dirent-duplicate", format!("the name occurs twice (inode {ino})")))
    }

    /// Whether inode `ino` is one, but in a part of its table that the group's descriptor has as never used.
    fn is_hidden_by_descriptor(&self, ino: u32) -> bool {
        // One that was taken since the check began has made its group's table longer since.
        self.volume.is_never_used(ino)
            && !self.volume.source.inode_moves(ino)
            && self
                .volume
                .read_inode(ino)
                .is_ok_and(|raw| I_LINKS_COUNT.get(&raw) != 0 && self.volume.inode_sum_matches(ino, &raw))
    }

    /// Removes a senseless entry, or gives the second of two equal names another one.
    fn mend_entry(&mut self, at: usize, code: &str, name: &[u8]) {
        if code == "dirent-duplicate" {
            for n in 0..u32::MAX {
                let other = salvage::another_name(name, n);
                if !self.dir.names.contains(&name_hash(&other)) {
                    self.bytes[at + HEADER..at + HEADER + other.len()].copy_from_slice(&other);
                    break;
                }
            }
            self.dir.drop_tree |= self.dir.tree.is_some();
        } else {
            D_INODE.put(&mut self.bytes[at..], 0);
        }
    }

    /// Behind the end of its directory, a crash leaves names of new inodes and second names of others.
    fn hidden(&mut self, entry: &Entry<'_>) {
        if !self.state.judging || !self.dir.is_hidden || self.state.is_dir(entry.ino) {
            return;
        }
        let only = self.state.links[idx(entry.ino)] == 1 && !self.volume.source.inode_moves(entry.ino);
        if only && self.volume.read_inode(entry.ino).is_ok_and(|raw| self.state.leftovers.keeps(&raw)) {
            let text = format!(
                "{}: the only name of inode {} is behind the directory's end",
                self.place(),
                entry.ino
            );
            self.state.hopeless("dir-size-behind", text);
        }
    }

    /// Compares the kind in an entry with the inode's; true when it was changed.
    fn file_type(&mut self, at: usize, entry: &Entry<'_>) -> bool {
        let kind = match entry.first {
            FirstNames::Other => self.state.inodes[idx(entry.ino)] & KIND,
            FirstNames::Dot | FirstNames::DotDot => DIRECTORY,
        };
        let expected = if self.volume.shape.has_filetype() { kind } else { 0 };
        let bad = self.state.bad.contains_key(&entry.ino) || self.volume.source.inode_moves(entry.ino);
        if entry.file_type == expected || bad {
            return false;
        }
        let shown = String::from_utf8_lossy(entry.name).into_owned();
        let text = format!(
            "{}, name {shown:?}: kind {}, expected {expected} (inode {})",
            self.place(),
            entry.file_type,
            entry.ino
        );
        // No kind at all only costs readers a look at the inode; a wrong one misleads them.
        let mend = if entry.file_type == 0 {
            self.state.allowed("dirent-no-file-type", text)
        } else {
            self.state.dir_problem(self.dir.ino, "dirent-file-type", text)
        };
        if !mend {
            return false;
        }
        D_FILE_TYPE.put(&mut self.bytes[at..], expected);
        true
    }
}

/// A hash that tells the names of one directory apart.
fn name_hash(name: &[u8]) -> u64 {
    // A fixed key: with a random one a run could not be replayed.
    let mut hasher = std::hash::DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

/// Whether a directory starts with `.` and `..`.
pub(super) fn first_names_are_sound(bytes: &[u8]) -> std::result::Result<(), String> {
    let len = entry_len(bytes, 0)?;
    if D_INODE.get(bytes) == 0 || D_NAME_LEN.get(bytes) != 1 || bytes[HEADER..HEADER + 2] != *b".\0" {
        return Err("does not start with \".\"".into());
    }
    if len == bytes.len() {
        return Err("has no \"..\"".into());
    }
    let at = len;
    let second = &bytes[at..];
    entry_len(bytes, at)?;
    if D_NAME_LEN.get(second) != 2 || second[HEADER..HEADER + 3] != *b"..\0" {
        return Err("\"..\" is not the second entry".into());
    }
    Ok(())
}

/// An entry's length shrunk or grown in place.
pub(super) fn put_len(bytes: &mut [u8], at: usize, len: usize) {
    D_REC_LEN.put(&mut bytes[at..], rec_len_field(len));
}
