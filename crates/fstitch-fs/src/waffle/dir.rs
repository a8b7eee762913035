//! Directories: names in leaves by the upper bits of their keys.
//!
//! A look reads one leaf, a change writes one. A leaf that has no room doubles the directory: each leaf becomes two. Where a listing goes
//! on is said by a key, so it stays valid while the directory changes.

use fstitch_core::{Errno, Error, FileKind, Le, Result, Structure};

use super::layout::inode::{DEPTH_MAX, Inode};
use super::layout::pointer::Fork;
use super::layout::{BLOCK, KEY_BITS, name_key};
use super::state::State;
use super::tree::Obj;

const MAGIC: u32 = u32::from_le_bytes(*b"WFDR");
const HEAD: usize = 16;
/// Bytes of an entry before its name.
const ENTRY: usize = 18;
const MODE_SHIFT: u32 = 12;

/// A name in a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry<'a> {
    pub(super) ino: u64,
    pub(super) key: u64,
    pub(super) kind: FileKind,
    pub(super) name: &'a [u8],
    /// Its first byte in the leaf.
    at: usize,
}

impl Entry<'_> {
    fn len(&self) -> usize {
        ENTRY + self.name.len()
    }
}

/// A name that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) ino: u64,
    pub(super) kind: FileKind,
}

fn damaged(dir: u64, at: usize, problem: impl Into<String>) -> Error {
    let problem = format!("in directory {dir}: {}", problem.into());
    Error::corrupt(Structure::DirectoryEntry(Some(at)), None, problem)
}

fn kind_code(kind: FileKind) -> u8 {
    u8::try_from(kind.mode_bits() >> MODE_SHIFT).expect("four bits")
}

/// The leaf of a key.
fn leaf_of(key: u64, depth: u8) -> u64 {
    if depth == 0 { 0 } else { key >> (KEY_BITS - u32::from(depth)) }
}

/// What is in use of a leaf of a directory.
fn used_of(bytes: &[u8], dir: u64, leaf: u64) -> Result<&[u8]> {
    let used = usize::from(Le::u16(bytes, 4));
    if Le::u32(bytes, 0) != MAGIC || !(HEAD..=BLOCK).contains(&used) || Le::u64(bytes, 8) != dir {
        return Err(damaged(dir, 0, format!("leaf {leaf} is none of it")));
    }
    Ok(&bytes[..used])
}

/// The entry at a byte of what is in use of a leaf.
fn entry_at(used: &[u8], at: usize, dir: u64, (leaf, depth): (u64, u8)) -> Result<Entry<'_>> {
    let entry = used.get(at..at + ENTRY).and_then(|head| {
        let name = used.get(at + ENTRY..at + ENTRY + usize::from(head[16]))?;
        let kind = FileKind::from_mode(u16::from(head[17]) << MODE_SHIFT)?;
        Some(Entry { ino: Le::u64(head, 0), key: Le::u64(head, 8), kind, name, at })
    });
    let entry = entry.ok_or_else(|| damaged(dir, at, "it ends behind the leaf, or is of no kind"))?;
    let is_name = !entry.name.is_empty() && !entry.name.contains(&b'/') && !entry.name.contains(&0);
    if !is_name || entry.ino == 0 || entry.key >> KEY_BITS != 0 || leaf_of(entry.key, depth) != leaf {
        return Err(damaged(dir, at, "no name, no inode, or not in its leaf"));
    }
    Ok(entry)
}

/// The entry of a key, which no two names of a directory share. Of the others only what leads to the next one is looked at.
///
/// # Errors
/// `Corrupt`.
fn entry_of(bytes: &[u8], key: u64, dir: u64, (leaf, depth): (u64, u8)) -> Result<Option<Entry<'_>>> {
    let used = used_of(bytes, dir, leaf)?;
    let (mut at, mut passed) = (HEAD, 0);
    while let Some(head) = used.get(at..at + ENTRY) {
        if Le::u64(head, 8) == key {
            return entry_at(used, at, dir, (leaf, depth)).map(Some);
        }
        at += ENTRY + usize::from(head[16]);
        passed += 1;
    }
    if at != used.len() || passed != usize::from(Le::u16(bytes, 6)) {
        return Err(damaged(
            dir,
            at,
            format!("it ends behind the leaf, or leaf {leaf} has not {passed} names"),
        ));
    }
    Ok(None)
}

/// The entries of a leaf of a directory of this depth.
///
/// # Errors
/// `Corrupt`.
pub(super) fn entries(bytes: &[u8], dir: u64, (leaf, depth): (u64, u8)) -> Result<Vec<Entry<'_>>> {
    let count = usize::from(Le::u16(bytes, 6));
    let used = used_of(bytes, dir, leaf)?;
    let mut entries = Vec::with_capacity(count.min(BLOCK / ENTRY));
    let mut at = HEAD;
    while at < used.len() {
        let entry = entry_at(used, at, dir, (leaf, depth))?;
        at += entry.len();
        entries.push(entry);
    }
    if entries.len() != count {
        return Err(damaged(dir, 0, format!("leaf {leaf} has {} names, and says {count}", entries.len())));
    }
    Ok(entries)
}

/// A name that was saved from a leaf: its inode and its kind as well.
pub(super) type Saved = (Vec<u8>, u64, FileKind);

/// The names of a leaf that is damaged or breaks a rule: whatever looks like an entry and has the key of its name.
pub(super) fn saved(bytes: &[u8], seed: u64) -> Vec<Saved> {
    let mut saved = Vec::new();
    let mut at = HEAD;
    while at + ENTRY < bytes.len() {
        let depth_of_all = (0, 0);
        match entry_at(bytes, at, 0, depth_of_all) {
            Ok(entry) if entry.key == name_key(entry.name, seed) => {
                at += entry.len();
                saved.push((entry.name.to_vec(), entry.ino, entry.kind));
            }
            _ => at += 1,
        }
    }
    saved
}

/// A leaf without names.
fn start(bytes: &mut [u8], dir: u64) {
    bytes.fill(0);
    Le::put_u32(bytes, 0, MAGIC);
    put_used(bytes, HEAD, 0);
    Le::put_u64(bytes, 8, dir);
}

fn put_used(bytes: &mut [u8], used: usize, count: usize) {
    Le::put_u16(bytes, 4, u16::try_from(used).expect("a leaf is short"));
    Le::put_u16(bytes, 6, u16::try_from(count).expect("a leaf has few names"));
}

/// Adds an entry that there is room for.
fn push(bytes: &mut [u8], entry: &Entry<'_>) {
    let at = usize::from(Le::u16(bytes, 4));
    Le::put_u64(bytes, at, entry.ino);
    Le::put_u64(bytes, at + 8, entry.key);
    bytes[at + 16] = u8::try_from(entry.name.len()).expect("names are checked");
    bytes[at + 17] = kind_code(entry.kind);
    bytes[at + ENTRY..at + entry.len()].copy_from_slice(entry.name);
    put_used(bytes, at + entry.len(), usize::from(Le::u16(bytes, 6)) + 1);
}

impl State {
    /// Finds a name in a directory of a tree.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) fn find(&self, tree: usize, dir: &Inode, name: &[u8]) -> Result<Option<Found>> {
        self.find_in(tree, dir, None, name)
    }

    /// The same, if nothing has changed since `dir` was read.
    pub(super) fn find_unchanged(&self, tree: usize, dir: &Inode, name: &[u8]) -> Result<Option<Found>> {
        self.find_in(tree, dir, Some(dir.data), name)
    }

    fn find_in(&self, tree: usize, dir: &Inode, fork: Option<Fork>, name: &[u8]) -> Result<Option<Found>> {
        let key = name_key(name, self.record(tree)?.seed);
        let leaf = leaf_of(key, dir.depth);
        let Some(bytes) = self.node_in(tree, Obj::Data(dir.ino), 0, leaf, fork)? else { return Ok(None) };
        let found = entry_of(&bytes, key, dir.ino, (leaf, dir.depth))?.filter(|entry| entry.name == name);
        Ok(found.map(|entry| Found { ino: entry.ino, kind: entry.kind }))
    }

    /// Adds a name that is not there.
    ///
    /// # Errors
    /// `Io`, `Corrupt`; `ENOSPC` if no depth has room for it.
    pub(super) fn add_name(&mut self, dir: u64, name: &[u8], ino: u64, kind: FileKind) -> Result<()> {
        let wanted = name_key(name, self.head().seed);
        loop {
            let inode = self.inode(self.head, dir)?;
            let leaf = leaf_of(wanted, inode.depth);
            let old = self.node(self.head, Obj::Data(dir), 0, leaf)?;
            let used = old.as_ref().map_or(HEAD, |bytes| usize::from(Le::u16(bytes, 4)));
            if used + ENTRY + name.len() > BLOCK {
                self.double(&inode)?;
                continue;
            }
            if let Some(bytes) = &old
                && entry_of(bytes, wanted, dir, (leaf, inode.depth))?.is_some()
            {
                return Err(Errno::NOSPC.into());
            }
            let bytes = self.touch(Obj::Data(dir), 0, leaf)?;
            if old.is_none() {
                start(bytes, dir);
            }
            push(bytes, &Entry { ino, key: wanted, kind, name, at: 0 });
            return self.change_inode(dir, |inode| {
                inode.size = inode.size.saturating_add(1);
                inode.blocks = inode.blocks.saturating_add(u64::from(old.is_none()));
            });
        }
    }

    /// Makes two leaves of each.
    fn double(&mut self, dir: &Inode) -> Result<()> {
        if dir.depth == DEPTH_MAX {
            return Err(Errno::NOSPC.into());
        }
        let (obj, depth) = (Obj::Data(dir.ino), dir.depth + 1);
        let mut leaves = Vec::new();
        let mut is_its = true;
        self.walk_leaves(self.head, obj, (0, u64::MAX), &mut |leaf| {
            leaves.push(leaf);
            is_its = leaf >> dir.depth == 0;
            is_its
        })?;
        if let Some(leaf) = leaves.last().filter(|_| !is_its) {
            return Err(damaged(dir.ino, 0, format!("leaf {leaf} at depth {}", dir.depth)));
        }
        let mut added: u64 = 0;
        // From the last one on: two leaves take the places of leaves that were split before.
        for leaf in leaves.into_iter().rev() {
            let Some(bytes) = self.node(self.head, obj, 0, leaf)? else { continue };
            let all = entries(&bytes, dir.ino, (leaf, dir.depth))?;
            self.cut(obj, leaf, leaf + 1)?;
            for half in [2 * leaf, 2 * leaf + 1] {
                let mut of_half = all.iter().filter(|entry| leaf_of(entry.key, depth) == half).peekable();
                if of_half.peek().is_none() {
                    continue;
                }
                let new = self.touch(obj, 0, half)?;
                start(new, dir.ino);
                of_half.for_each(|entry| push(new, entry));
                added += 1;
            }
        }
        self.change_inode(dir.ino, |inode| (inode.depth, inode.blocks) = (depth, added))
    }

    /// Where an entry is: its leaf and the byte there.
    fn locate(&self, dir: &Inode, name: &[u8]) -> Result<(u64, usize)> {
        let key = name_key(name, self.head().seed);
        let leaf = leaf_of(key, dir.depth);
        let bytes = self.node(self.head, Obj::Data(dir.ino), 0, leaf)?.ok_or(Errno::NOENT)?;
        let entry = entry_of(&bytes, key, dir.ino, (leaf, dir.depth))?;
        let entry = entry.filter(|entry| entry.name == name).ok_or(Errno::NOENT)?;
        // Of the count nothing else is believed: whether this is the only one.
        let (used, count) = (usize::from(Le::u16(&bytes, 4)), Le::u16(&bytes, 6));
        if count == 0 || (count == 1) != (used - entry.len() == HEAD) {
            return Err(damaged(dir.ino, 0, format!("leaf {leaf} says {count} names, and has others")));
        }
        Ok((leaf, entry.at))
    }

    /// Lets a name that is there name another inode.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `ENOENT`.
    pub(super) fn replace_name(&mut self, dir: u64, name: &[u8], ino: u64, kind: FileKind) -> Result<()> {
        let (leaf, at) = self.locate(&self.inode(self.head, dir)?, name)?;
        let bytes = self.touch(Obj::Data(dir), 0, leaf)?;
        Le::put_u64(bytes, at, ino);
        bytes[at + 17] = kind_code(kind);
        Ok(())
    }

    /// Removes a name.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `ENOENT`.
    pub(super) fn remove_name(&mut self, dir: u64, name: &[u8]) -> Result<()> {
        let obj = Obj::Data(dir);
        let inode = self.inode(self.head, dir)?;
        let (leaf, at) = self.locate(&inode, name)?;
        if inode.size <= 1 {
            self.cut(obj, 0, u64::MAX)?;
            return self.change_inode(dir, |inode| (inode.size, inode.blocks, inode.depth) = (0, 0, 0));
        }
        let bytes = self.touch(obj, 0, leaf)?;
        let (used, count) = (usize::from(Le::u16(bytes, 4)), usize::from(Le::u16(bytes, 6)));
        let len = ENTRY + name.len();
        bytes.copy_within(at + len..used, at);
        bytes[used - len..used].fill(0);
        put_used(bytes, used - len, count - 1);
        if count == 1 {
            self.cut(obj, leaf, leaf + 1)?;
        }
        self.change_inode(dir, |inode| {
            inode.size -= 1;
            inode.blocks = inode.blocks.saturating_sub(u64::from(count == 1));
        })
    }

    /// Tells of names from key `from` on, in the order of their keys, until `visit` says no.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) fn list(
        &self,
        tree: usize,
        dir: &Inode,
        from: u64,
        visit: &mut dyn FnMut(&Entry<'_>) -> bool,
    ) -> Result<()> {
        if from >> KEY_BITS != 0 {
            return Ok(());
        }
        let mut next = leaf_of(from, dir.depth);
        for _ in 0..=self.root.blocks {
            let mut found = None;
            self.walk_leaves(tree, Obj::Data(dir.ino), (next, u64::MAX), &mut |leaf| {
                found = Some(leaf);
                false
            })?;
            let Some(leaf) = found else { return Ok(()) };
            if leaf >> dir.depth != 0 {
                return Err(damaged(dir.ino, 0, format!("leaf {leaf} at depth {}", dir.depth)));
            }
            if let Some(bytes) = self.node(tree, Obj::Data(dir.ino), 0, leaf)? {
                let mut all = entries(&bytes, dir.ino, (leaf, dir.depth))?;
                all.retain(|entry| entry.key >= from);
                all.sort_unstable_by_key(|entry| entry.key);
                if !all.iter().all(&mut *visit) {
                    return Ok(());
                }
            }
            next = leaf + 1;
        }
        Err(damaged(dir.ino, 0, "it has more leaves than the volume has blocks"))
    }
}
