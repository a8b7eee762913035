//! Mending: what follows from what is whole is computed anew.
//!
//! **States.** The map and the counts of shared blocks, in one commit; then each tree that changes, in one commit each; then the map again.
//! A cut between two of them leaves what the last one made, and the next check goes on.
//!
//! **Invariants.** 1. The map comes first: nothing takes a block that is in use. As long as something cannot be read, what the map says is
//! used stays so, and where the map cannot be read either, all is. 2. A tree is mended by operations as a mount makes them, which go
//! into its next root as a whole or not at all. 3. Snapshots are not changed. 4. A block that anything else leads to is not given up, whoever
//! of its users is mended: at the end the map is computed of those that are left.

use std::collections::VecDeque;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockKind, CheckReport, Errno, Error, FileKind, Le, Result, Timestamp};
use rustc_hash::{FxHashMap, FxHashSet};

use super::super::dir::{self, Saved};
use super::super::layout::inode::{INODES_IN_BLOCK, Inode, Slot};
use super::super::layout::pointer::Ref;
use super::super::layout::record::TreeKind;
use super::super::layout::{BLOCK_BYTES, FIRST_INO, ROOT_INO, SIZE_MAX, name_key};
use super::super::map::WORDS;
use super::super::state::{Class, State};
use super::super::tree::{COUNTS_IN_BLOCK, Obj};
use super::blocks::{self, Census};
use super::is_unread;
use super::salvage::{self, Salvage};

/// Names that are tried for what has lost its own.
const NAMES_TRIED: u32 = 100;
/// Where what has lost its name gets one.
const LOST: &[u8] = b"lost+found";

/// Mends a volume; says how many changes it took. What there is no room for is left.
pub(super) fn all(state: &mut State, now: Timestamp) -> Result<u64> {
    let Some((mut mended, census)) = counted(state, now)? else { return Ok(0) };
    let trees = 0..state.trees.len();
    let heads = trees.filter(|&number| {
        let tree = state.trees[number].as_ref();
        tree.is_some_and(|tree| tree.kind == TreeKind::Head && !tree.is_receiving)
    });
    for number in heads.collect::<Vec<usize>>() {
        state.head = number;
        state.note_kept();
        mended += operation(state, now, |state| tree(state, &census))?;
    }
    state.head = 0;
    state.note_kept();
    Ok(mended + counted(state, now)?.map_or(0, |(mended, _)| mended))
}

/// The map, and the counts of shared blocks, as references say; `None` if there is no room to say so, or the medium does not give the map.
fn counted(state: &mut State, now: Timestamp) -> Result<Option<(u64, Census)>> {
    let census = blocks::census(state, &mut CheckReport::default())?;
    let is_known = census.unread == 0;
    let State { map, cache, .. } = state;
    map.keep(census.twice.clone());
    let corrected = map.correct(cache, |region, had| {
        let reached = census.marks.get(&region).map_or([0; WORDS], |words| **words);
        let mut words = Box::new(reached);
        match (is_known, had) {
            (true, _) => {}
            (false, Some(had)) => words.iter_mut().zip(had).for_each(|(word, had)| *word |= had),
            (false, None) => words.fill(u64::MAX),
        }
        words
    });
    let regions = match corrected {
        Err(error) if is_unread(&error) => return Ok(None),
        corrected => corrected?,
    };
    let mended = operation(state, now, |state| shares(state, &census))?;
    // The root says how many blocks are free.
    if regions > 0 && mended == 0 || state.root.free != state.map.avail() {
        if state.check_room(Class::Last).is_err() {
            return Ok(None);
        }
        commit(state, now)?;
        return Ok(Some((mended + regions.max(1), census)));
    }
    Ok(Some((mended + regions, census)))
}

/// One operation and its root. Where there is no room for it, or it needs what the medium does not give, nothing is changed.
fn operation(state: &mut State, now: Timestamp, work: impl FnOnce(&mut State) -> Result<u64>) -> Result<u64> {
    state.begin(now);
    match work(state).and_then(|mended| state.check_room(Class::Last).map(|()| mended)) {
        Ok(mended) if mended > 0 => {
            state.apply()?;
            commit(state, now)?;
            Ok(mended)
        }
        Ok(_) => {
            state.undo();
            Ok(0)
        }
        Err(Error::Errno(Errno::NOSPC) | Error::Corrupt(_)) => {
            state.undo();
            Ok(0)
        }
        Err(error) if is_unread(&error) => {
            state.undo();
            Ok(0)
        }
        Err(error) => Err(error),
    }
}

fn commit(state: &mut State, now: Timestamp) -> Result<()> {
    state.commit(now, true)?;
    state.cache.sync_patches(&[state.last_root])
}

fn shares(state: &mut State, census: &Census) -> Result<u64> {
    let mut mended = Salvage::new(census).nodes(state, Obj::Shared)?;
    let mut counts: FxHashMap<u64, u32> = census.more.clone();
    for leaf in leaves_of(state, Obj::Shared)? {
        let Some(node) = state.node(state.head, Obj::Shared, 0, leaf)? else { continue };
        for (slot, said) in node.chunks_exact(4).enumerate() {
            let said = Le::u32(said, 0);
            if said > 0 {
                let count = counts.entry(leaf * COUNTS_IN_BLOCK + to_u64(slot)).or_default();
                // References that cannot be read may be the others.
                *count = if census.unread > 0 { said.max(*count) } else { *count };
            }
        }
    }
    let mut all: Vec<(u64, u32)> = counts.into_iter().collect();
    all.sort_unstable();
    for (block, count) in all {
        if state.shares(block)? != count {
            state.set_shares(block, count)?;
            mended += 1;
        }
    }
    Ok(mended)
}

/// The leaves of an object that are there, as many as the volume may have.
pub(super) fn leaves_of(state: &State, obj: Obj) -> Result<Vec<u64>> {
    let (mut leaves, most) = (Vec::new(), state.root.blocks);
    state.walk_leaves(state.head, obj, (0, u64::MAX), &mut |leaf| {
        leaves.push(leaf);
        to_u64(leaves.len()) <= most
    })?;
    Ok(leaves)
}

/// Mends the tree that is mounted.
fn tree(state: &mut State, census: &Census) -> Result<u64> {
    let mut salvage = Salvage::new(census);
    let mended = salvage.nodes(state, Obj::Inodes)?;
    let (names, subdirs, seen, saved) = Default::default();
    let mut mend = Mend { state, salvage, mended, names, subdirs, seen, saved };
    mend.end()?;
    mend.mended += generations(mend.state, census)?;
    mend.root()?;
    mend.below(ROOT_INO)?;
    mend.saved_names()?;
    mend.free_list()?;
    mend.nameless()?;
    mend.inodes()?;
    mend.orphans()?;
    Ok(mend.mended)
}

/// References of generation 0 get the present one, if what they lead to is what they say, and nobody else's: no snapshot has it.
fn generations(state: &mut State, census: &Census) -> Result<u64> {
    let mut mended = 0;
    for &(tree, key) in &census.ageless {
        let (obj, level, index) = key;
        if tree != state.head {
            continue;
        }
        let found = state.reference(tree, obj, level, index);
        let found = found.and_then(|found| state.load(found, key, obj.kind(level)).map(|_| found));
        let reference = match found {
            Ok(found) => found,
            Err(Error::Corrupt(_) | Error::Errno(_)) => continue,
            Err(error) if is_unread(&error) => continue,
            Err(error) => return Err(error),
        };
        if reference.birth > 0 || census.twice.contains(&reference.block) {
            continue;
        }
        match obj {
            Obj::Data(_) if level == 0 => {
                state.set_leaf(obj, index, Ref { birth: state.generation(), ..reference })?;
            }
            // It gets another block.
            _ => drop(state.touch(obj, level, index)?),
        }
        mended += 1;
    }
    Ok(mended)
}

/// A tree that is mended.
pub(super) struct Mend<'a> {
    pub(super) state: &'a mut State,
    salvage: Salvage<'a>,
    pub(super) mended: u64,
    /// Names of inodes, but for directories' own.
    pub(super) names: FxHashMap<u64, u32>,
    /// Directories in directories.
    subdirs: FxHashMap<u64, u32>,
    /// Directories that have a name.
    seen: FxHashSet<u64>,
    /// Names that were saved from damaged blocks, with their directories.
    saved: Vec<(u64, Saved)>,
}

impl Mend<'_> {
    pub(super) fn inode(&self, ino: u64) -> Result<Option<Inode>> {
        match self.state.slot(self.state.head, ino) {
            Ok(Slot::Used(inode)) => Ok(Some(inode)),
            Ok(Slot::Free(_)) | Err(Error::Corrupt(_) | Error::Errno(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn change(&mut self, ino: u64, how: impl FnOnce(&mut Inode)) -> Result<()> {
        self.mended += 1;
        self.state.change_inode(ino, how)
    }

    /// Whether an inode is there, though it breaks a rule.
    fn is_odd(&self, ino: u64) -> bool {
        matches!(self.state.slot(self.state.head, ino), Err(Error::Corrupt(_)))
    }

    /// All inodes that are in use.
    pub(super) fn used(&self) -> Result<Vec<u64>> {
        let mut used = Vec::new();
        let end = self.state.head().ino_end;
        for leaf in leaves_of(self.state, Obj::Inodes)? {
            for ino in leaf * INODES_IN_BLOCK..(leaf + 1) * INODES_IN_BLOCK {
                let may_be = ino == ROOT_INO || (FIRST_INO..end).contains(&ino);
                if may_be && self.inode(ino)?.is_some() {
                    used.push(ino);
                }
            }
        }
        Ok(used)
    }

    /// The root directory is there, and is in itself.
    fn root(&mut self) -> Result<()> {
        match self.inode(ROOT_INO)? {
            Some(inode) if inode.is_dir() && inode.parent == ROOT_INO => {}
            Some(inode) if inode.is_dir() => self.change(ROOT_INO, |inode| inode.parent = ROOT_INO)?,
            _ => {
                self.mended += 1;
                let made = Inode::directory(ROOT_INO, 0o755, self.state.now);
                self.state.put_new(&made)?;
            }
        }
        self.seen.insert(ROOT_INO);
        Ok(())
    }

    /// All directories from one on that has a name.
    fn below(&mut self, top: u64) -> Result<()> {
        let mut queue = VecDeque::from([top]);
        while let Some(dir) = queue.pop_front() {
            for (_, child, kind) in self.names_of(dir)? {
                *self.names.entry(child).or_default() += 1;
                if kind == FileKind::Directory {
                    *self.subdirs.entry(dir).or_default() += 1;
                    if self.inode(child)?.is_some_and(|child| child.parent != dir) {
                        self.change(child, |child| child.parent = dir)?;
                    }
                    queue.push_back(child);
                }
            }
        }
        Ok(())
    }

    /// The names of a directory that lead to something. Where others were there, or it breaks a rule, it is made anew of these.
    fn names_of(&mut self, dir: u64) -> Result<Vec<Saved>> {
        let lost = self.salvage.nodes(self.state, Obj::Data(dir))?;
        self.mended += lost;
        let (found, saved, mut is_bad) = self.listed(dir)?;
        self.saved.extend(saved.into_iter().map(|saved| (dir, saved)));
        let mut keys = FxHashSet::default();
        let mut kept = Vec::with_capacity(found.len());
        let mut odd = FxHashSet::default();
        for (name, child, said) in found {
            let inode = self.inode(child)?;
            let is_new = keys.insert(name_key(&name, self.state.head().seed));
            let is_first =
                |seen: &mut FxHashSet<u64>, inode: &Inode| !inode.is_dir() || seen.insert(inode.ino);
            match inode {
                Some(inode) if is_new && child != ROOT_INO && is_first(&mut self.seen, &inode) => {
                    is_bad |= inode.kind != said;
                    kept.push((name, child, inode.kind));
                }
                // What breaks a rule keeps its name: it is told, and stays.
                None if is_new && self.is_odd(child) => {
                    odd.insert(child);
                    kept.push((name, child, said));
                }
                _ => is_bad = true,
            }
        }
        let Some(inode) = self.inode(dir)? else { return Ok(Vec::new()) };
        if is_bad || lost > 0 || inode.size != to_u64(kept.len()) {
            self.mended += 1;
            self.state.cut(Obj::Data(dir), 0, u64::MAX)?;
            self.state.change_inode(dir, |dir| (dir.size, dir.blocks, dir.depth) = (0, 0, 0))?;
            for (name, child, kind) in &kept {
                self.state.add_name(dir, name, *child, *kind)?;
            }
        }
        kept.retain(|(_, child, _)| !odd.contains(child));
        Ok(kept)
    }

    /// Gives those names back that were saved and lead where they should: the key of a name says nothing of its inode. A directory says
    /// itself where it is; of others there must be no more names than they have links.
    fn saved_names(&mut self) -> Result<()> {
        while !self.saved.is_empty() {
            let saved = std::mem::take(&mut self.saved);
            let mut claims: FxHashMap<u64, u32> = FxHashMap::default();
            saved.iter().for_each(|(_, (_, ino, _))| *claims.entry(*ino).or_default() += 1);
            for (dir, (name, ino, kind)) in saved {
                let Some(inode) = self.inode(ino)? else { continue };
                let (asked, named) = (claims[&ino], self.names.get(&ino).copied().unwrap_or(0));
                let is_its = match inode.is_dir() {
                    true => asked == 1 && inode.parent == dir && !self.seen.contains(&ino),
                    false => asked.saturating_add(named) <= inode.nlink,
                };
                let Some(parent) = self.inode(dir)?.filter(|_| is_its && inode.kind == kind) else {
                    continue;
                };
                if self.state.find(self.state.head, &parent, &name)?.is_some()
                    || !self.add(dir, &name, ino, kind)?
                {
                    continue;
                }
                *self.names.entry(ino).or_default() += 1;
                *claims.entry(ino).or_default() -= 1;
                if kind == FileKind::Directory {
                    *self.subdirs.entry(dir).or_default() += 1;
                    self.seen.insert(ino);
                    self.below(ino)?;
                }
            }
        }
        Ok(())
    }

    /// Adds a name, unless the directory has no room for its key.
    fn add(&mut self, dir: u64, name: &[u8], ino: u64, kind: FileKind) -> Result<bool> {
        match self.state.add_name(dir, name, ino, kind) {
            Ok(()) => self.mended += 1,
            Err(Error::Errno(Errno::NOSPC)) => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// What a directory lists, what was saved of it where it is damaged, and whether it breaks a rule.
    fn listed(&self, dir: u64) -> Result<(Vec<Saved>, Vec<Saved>, bool)> {
        let Some(inode) = self.inode(dir)? else { return Ok((Vec::new(), Vec::new(), false)) };
        let (state, obj, seed) = (&*self.state, Obj::Data(dir), self.state.head().seed);
        let leaves = leaves_of(state, obj)?;
        let (mut all, mut saved, mut is_bad) = (Vec::new(), Vec::new(), false);
        for leaf in leaves {
            let node = match state.node(state.head, obj, 0, leaf) {
                Ok(Some(node)) => Some((node, true)),
                Ok(None) => None,
                Err(Error::Corrupt(_)) => {
                    let reference = state.reference(state.head, obj, 0, leaf)?;
                    is_bad = true;
                    salvage::raw(state, (obj, 0, leaf), reference)?.map(|node| (node, false))
                }
                Err(error) => return Err(error),
            };
            let Some((node, is_whole)) = node else { continue };
            let place = (leaf, inode.depth);
            let entries = if is_whole && leaf >> inode.depth == 0 {
                dir::entries(&node, dir, place).ok()
            } else {
                None
            };
            match entries {
                Some(entries) => {
                    is_bad |= entries.iter().any(|entry| entry.key != name_key(entry.name, seed));
                    all.extend(entries.iter().map(|entry| (entry.name.to_vec(), entry.ino, entry.kind)));
                }
                None => {
                    is_bad = true;
                    saved.extend(dir::saved(&node, seed));
                }
            }
        }
        Ok((all, saved, is_bad))
    }

    /// What has no name and has not been unlinked gets one in `lost+found`.
    fn nameless(&mut self) -> Result<()> {
        let used = self.used()?;
        // A directory before what is in it.
        for is_dir in [true, false] {
            for &ino in &used {
                let Some(inode) = self.inode(ino)? else { continue };
                let is_named = self.names.contains_key(&ino) || ino == ROOT_INO;
                if is_named || inode.nlink == 0 || inode.is_dir() != is_dir {
                    continue;
                }
                // What it is in comes first, and may have its name; else it gets one as well.
                while !self.names.contains_key(&ino) {
                    let top = if is_dir { self.top(ino)? } else { ino };
                    self.give_name(top)?;
                }
            }
        }
        Ok(())
    }

    /// Gives an inode a name in `lost+found`, and what is below it the names that it says.
    fn give_name(&mut self, ino: u64) -> Result<()> {
        let inode = self.state.inode(self.state.head, ino)?;
        let lost = self.lost()?;
        let names = (0..NAMES_TRIED).map(|number| match number {
            0 => format!("#{ino}"),
            _ => format!("#{ino}.{number}"),
        });
        for name in names {
            let dir = self.state.inode(self.state.head, lost)?;
            if self.state.find(self.state.head, &dir, name.as_bytes())?.is_some()
                || !self.add(lost, name.as_bytes(), ino, inode.kind)?
            {
                continue;
            }
            *self.names.entry(ino).or_default() += 1;
            if inode.is_dir() {
                *self.subdirs.entry(lost).or_default() += 1;
                self.state.change_inode(ino, |inode| inode.parent = lost)?;
                self.seen.insert(ino);
                self.below(ino)?;
                self.saved_names()?;
            }
            return Ok(());
        }
        Err(Errno::NOSPC.into())
    }

    /// The uppermost directory without a name that a directory without one is in.
    fn top(&self, ino: u64) -> Result<u64> {
        let (mut top, mut passed) = (ino, FxHashSet::from_iter([ino]));
        while let Some(inode) = self.inode(top)? {
            let parent = self.inode(inode.parent)?;
            let is_nameless =
                |parent: &Inode| parent.is_dir() && parent.nlink > 0 && !self.seen.contains(&parent.ino);
            if !parent.is_some_and(|parent| is_nameless(&parent)) || !passed.insert(inode.parent) {
                break;
            }
            top = inode.parent;
        }
        Ok(top)
    }

    /// The directory `lost+found`, which is made if there is none.
    fn lost(&mut self) -> Result<u64> {
        let root = self.state.inode(self.state.head, ROOT_INO)?;
        for number in 0..8 {
            let name =
                if number == 0 { LOST.to_vec() } else { [LOST, format!(".{number}").as_bytes()].concat() };
            match self.state.find(self.state.head, &root, &name)? {
                Some(found) if found.kind == FileKind::Directory => return Ok(found.ino),
                Some(_) => {}
                None => {
                    let (ino, generation) = self.state.take_ino()?;
                    let made = Inode { generation, ..Inode::directory(ino, 0o700, self.state.now) };
                    self.state.put_new(&made)?;
                    self.state.add_name(ROOT_INO, &name, ino, FileKind::Directory)?;
                    *self.names.entry(ino).or_default() += 1;
                    *self.subdirs.entry(ROOT_INO).or_default() += 1;
                    self.seen.insert(ino);
                    self.mended += 1;
                    return Ok(ino);
                }
            }
        }
        Err(Errno::NOSPC.into())
    }

    /// What inodes say of themselves.
    fn inodes(&mut self) -> Result<()> {
        for ino in self.used()? {
            let Some(inode) = self.inode(ino)? else { continue };
            let names = self.names.get(&ino).copied().unwrap_or(0);
            let is_named = names > 0 || ino == ROOT_INO;
            let links = match (inode.is_dir(), is_named) {
                (true, true) => 2 + self.subdirs.get(&ino).copied().unwrap_or(0),
                _ => names,
            };
            let (mut leaves, mut last) = (0, None);
            let walked =
                self.state.walk_leaves(self.state.head, Obj::Data(ino), (0, u64::MAX), &mut |leaf| {
                    (leaves, last) = (leaves + 1, Some(leaf));
                    true
                });
            let (blocks, size) = match walked {
                Ok(()) => (leaves, self.size_with(&inode, last)?),
                // What cannot be read still has its blocks.
                Err(Error::Corrupt(_)) => (inode.blocks, inode.size),
                Err(error) if is_unread(&error) => (inode.blocks, inode.size),
                Err(error) => return Err(error),
            };
            if (links, blocks, size) != (inode.nlink, inode.blocks, inode.size) {
                self.change(ino, |inode| (inode.nlink, inode.blocks, inode.size) = (links, blocks, size))?;
            }
        }
        Ok(())
    }

    /// The length of an inode whose last leaf is this one: what is behind a file's end belongs to it.
    fn size_with(&self, inode: &Inode, last: Option<u64>) -> Result<u64> {
        let (index, end) = (inode.size / BLOCK_BYTES, to_usize(inode.size % BLOCK_BYTES));
        let is_packed = |leaf: u64| self.state.is_packed(self.state.head, inode, leaf).unwrap_or(true);
        match last.filter(|&leaf| inode.kind == FileKind::Regular && !is_packed(leaf)) {
            Some(leaf) if leaf >= SIZE_MAX / BLOCK_BYTES => Ok(inode.size),
            Some(leaf) if leaf > index || leaf == index && end == 0 => Ok((leaf + 1) * BLOCK_BYTES),
            Some(leaf) if leaf == index => {
                let reference = self.state.leaf(self.state.head, Obj::Data(inode.ino), leaf)?;
                match self.state.load(reference, (Obj::Data(inode.ino), 0, leaf), BlockKind::Data) {
                    Ok(bytes) if bytes[end..].iter().any(|&byte| byte != 0) => Ok((leaf + 1) * BLOCK_BYTES),
                    Ok(_) | Err(Error::Corrupt(_)) => Ok(inode.size),
                    Err(error) if is_unread(&error) => Ok(inode.size),
                    Err(error) => Err(error),
                }
            }
            _ => Ok(inode.size),
        }
    }
}
