//! The second pass: a tree that changes, as a file system.

use std::collections::VecDeque;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{CheckReport, FileKind, Result};
use rustc_hash::{FxHashMap, FxHashSet};

use super::super::layout::inode::{INODES_IN_BLOCK, Inode, Slot};
use super::super::layout::record::Record;
use super::super::layout::{BLOCK, BLOCK_BYTES, FIRST_INO, ROOT_INO, name_key};
use super::super::state::State;
use super::super::tree::Obj;
use super::super::xattr;
use super::{damage, note};

struct Names<'a> {
    state: &'a State,
    tree: usize,
    record: &'a Record,
    report: &'a mut CheckReport,
    /// How many names each inode has; of directories also their subdirectories.
    names: FxHashMap<u64, u32>,
    subdirs: FxHashMap<u64, u32>,
    /// Those without names.
    orphans: FxHashSet<u64>,
}

/// Looks at a tree from its root directory down, and then at each of its inodes.
pub(super) fn check(state: &State, tree: usize, report: &mut CheckReport) -> Result<()> {
    let record = state.record(tree)?;
    let (names, subdirs, orphans) = Default::default();
    let mut all = Names { state, tree, record, report, names, subdirs, orphans };
    all.orphans()?;
    all.directories()?;
    all.inodes()?;
    all.free_ones()
}

/// A name that was listed.
type Listed = (Vec<u8>, u64, FileKind, u64);

impl Names<'_> {
    fn say(&mut self, code: &'static str, text: impl std::fmt::Display) {
        let name = String::from_utf8_lossy(&self.record.name).into_owned();
        let tree = if name.is_empty() { String::new() } else { format!("tree {name}: ") };
        damage(self.report, code, format!("{tree}{text}"));
    }

    fn orphans(&mut self) -> Result<()> {
        let (mut ino, mut before) = (self.record.orphan, 0);
        while ino != 0 {
            let found = self.state.inode(self.tree, ino);
            let Some(inode) = note(self.report, "orphans", found)? else { return Ok(()) };
            if !self.orphans.insert(ino) || inode.nlink != 0 || inode.before != before {
                self.say("orphans", format!("the list of inodes without names is broken at inode {ino}"));
                return Ok(());
            }
            (before, ino) = (ino, inode.behind);
        }
        let (found, said) = (to_u64(self.orphans.len()), self.record.orphans);
        if found != said {
            self.say("orphans", format!("{found} inodes without names, and {said} are said"));
        }
        Ok(())
    }

    fn directories(&mut self) -> Result<()> {
        let mut seen = FxHashSet::from_iter([ROOT_INO]);
        let mut queue = VecDeque::from([ROOT_INO]);
        while let Some(ino) = queue.pop_front() {
            let found = self.state.inode(self.tree, ino);
            let Some(dir) = note(self.report, "inode", found)? else { continue };
            if !dir.is_dir() {
                self.say("directory", format!("inode {ino} should be a directory"));
                continue;
            }
            if ino == ROOT_INO && dir.parent != ROOT_INO {
                self.say("parent", format!("the root directory is in directory {}", dir.parent));
            }
            for (name, key, kind, child) in self.listed(&dir)? {
                let text = String::from_utf8_lossy(&name).into_owned();
                if key != name_key(&name, self.record.seed) {
                    self.say("name-key", format!("name {text} in directory {ino} has another key"));
                }
                let found = self.state.slot(self.tree, child);
                let inode = match note(self.report, "name-of-nothing", found)? {
                    Some(Slot::Used(inode)) => inode,
                    Some(Slot::Free(_)) => {
                        self.say("name-of-nothing", format!("name {text} in {ino} is of free inode {child}"));
                        continue;
                    }
                    None => {
                        self.say(
                            "name-of-nothing",
                            format!("name {text} in {ino} leads to what cannot be read"),
                        );
                        continue;
                    }
                };
                if inode.kind != kind {
                    self.say(
                        "name-kind",
                        format!("name {text} in {ino} says another kind than inode {child}"),
                    );
                }
                *self.names.entry(child).or_default() += 1;
                if inode.is_dir() {
                    *self.subdirs.entry(ino).or_default() += 1;
                    if inode.parent != ino {
                        self.say(
                            "parent",
                            format!("directory {child} is in {ino}, and says {}", inode.parent),
                        );
                    }
                    if seen.insert(child) {
                        queue.push_back(child);
                    } else {
                        self.say("directory", format!("directory {child} has more than one name"));
                    }
                }
            }
        }
        Ok(())
    }

    /// The names of a directory, whose own counts are looked at.
    fn listed(&mut self, dir: &Inode) -> Result<Vec<Listed>> {
        let mut names: Vec<Listed> = Vec::new();
        let listed = self.state.list(self.tree, dir, 0, &mut |entry| {
            names.push((entry.name.to_vec(), entry.key, entry.kind, entry.ino));
            true
        });
        let is_whole = note(self.report, "directory", listed)?.is_some();
        let count = to_u64(names.len());
        if is_whole && count != dir.size {
            self.say("directory", format!("directory {} has {count} names, and says {}", dir.ino, dir.size));
        }
        if names.windows(2).any(|pair| pair[0].1 == pair[1].1) {
            self.say("directory", format!("two names of directory {} have one key", dir.ino));
        }
        Ok(names)
    }

    fn inodes(&mut self) -> Result<()> {
        let mut used: u64 = 0;
        let mut leaves = Vec::new();
        let most = self.state.root.blocks;
        let walked = self.state.walk_leaves(self.tree, Obj::Inodes, (0, u64::MAX), &mut |leaf| {
            leaves.push(leaf);
            to_u64(leaves.len()) <= most
        });
        note(self.report, "inode", walked)?;
        let all = leaves.into_iter().flat_map(|leaf| leaf * INODES_IN_BLOCK..(leaf + 1) * INODES_IN_BLOCK);
        let end = self.record.ino_end;
        for ino in all.filter(|&ino| ino == ROOT_INO || (FIRST_INO..end).contains(&ino)) {
            let Some(Slot::Used(inode)) = note(self.report, "inode", self.state.slot(self.tree, ino))? else {
                continue;
            };
            used += 1;
            self.inode(&inode)?;
        }
        if used != self.record.used {
            self.say("inode-count", format!("{used} inodes are used, and {} are said", self.record.used));
        }
        Ok(())
    }

    fn inode(&mut self, inode: &Inode) -> Result<()> {
        let ino = inode.ino;
        let names = self.names.get(&ino).copied().unwrap_or(0);
        let is_named = names > 0 || ino == ROOT_INO;
        let links = match (inode.is_dir(), is_named) {
            (true, true) => 2 + self.subdirs.get(&ino).copied().unwrap_or(0),
            _ => names,
        };
        if links != inode.nlink {
            self.say("links", format!("inode {ino} has {links} links, and says {}", inode.nlink));
        }
        if is_named == self.orphans.contains(&ino) {
            let what =
                if is_named { "and is in the list of those without" } else { "and is in no list of those" };
            self.say("orphans", format!("inode {ino} has {names} names, {what}"));
        }
        // Of a file that shares blocks with itself there may be more than the volume has.
        let (mut leaves, mut last) = (0, None);
        let walked = self.state.walk_leaves(self.tree, Obj::Data(ino), (0, u64::MAX), &mut |leaf| {
            (leaves, last) = (leaves + 1, Some(leaf));
            true
        });
        let is_whole = note(self.report, "inode", walked)?.is_some();
        if is_whole && leaves != inode.blocks {
            self.say("inode-blocks", format!("inode {ino} has {leaves} blocks, and says {}", inode.blocks));
        }
        let attributes = xattr::load(self.state, self.tree, inode);
        note(self.report, "attributes", attributes)?;
        self.tail(inode, last)
    }

    /// What is behind the end in the last block is zero.
    fn tail(&mut self, inode: &Inode, last: Option<u64>) -> Result<()> {
        let end = to_usize(inode.size % BLOCK_BYTES);
        let is_file = matches!(inode.kind, FileKind::Regular | FileKind::Symlink);
        let index = inode.size / BLOCK_BYTES;
        let is_packed = is_file && self.state.is_packed(self.tree, inode, index).unwrap_or(false);
        if !is_file || end == 0 || last != Some(index) && !is_packed {
            return Ok(());
        }
        let mut block = vec![0; BLOCK];
        let from = inode.size - inode.size % BLOCK_BYTES;
        let read = self.state.read(self.tree, inode, from, &mut block);
        // What cannot be read was said by the first pass.
        if read.is_ok() && block[end..].iter().any(|&byte| byte != 0) {
            self.say("tail", format!("inode {} has bytes behind its end", inode.ino));
        }
        Ok(())
    }

    fn free_ones(&mut self) -> Result<()> {
        let mut seen = FxHashSet::default();
        let mut ino = self.record.free_ino;
        while ino != 0 {
            let slot = note(self.report, "free-inodes", self.state.slot(self.tree, ino))?;
            let Some(Slot::Free(free)) = slot.filter(|_| ino >= FIRST_INO && seen.insert(ino)) else {
                self.say("free-inodes", format!("the list of free inodes is broken at inode {ino}"));
                return Ok(());
            };
            ino = free.next;
        }
        let found = to_u64(seen.len());
        let wanted = (self.record.ino_end - FIRST_INO + 1).saturating_sub(self.record.used);
        if found != wanted {
            self.say("free-inodes", format!("{found} inodes are in the list of free ones, and not {wanted}"));
        }
        Ok(())
    }
}
