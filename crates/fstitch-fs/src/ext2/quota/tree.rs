//! Finding and making entries of a quota file: worked out on blocks as they are read, so that who fails has changed nothing.
//!
//! A way from the root is four references long whatever they say, so nothing leads around. Who reads the whole tree meets each block
//! of it once, and each leaf as often as it has entries.

use std::collections::BTreeMap;

use fstitch_core::num::to_usize;
use fstitch_core::{Error, Result};

use crate::ext2::layout::Field;
use crate::ext2::layout::quota::{
    DQDH_ENTRIES, DQDH_NEXT_FREE, DQDH_PREV_FREE, Dquot, ENTRY_SIZE, Header, LEAF_ENTRIES, QUOTA_BLOCK,
    QuotaKind, TREE_LEVELS, TREE_REFS, TREE_ROOT, block_start, entry_at, step,
};
use crate::ext2::num::small;

/// A quota file's blocks of 1024 bytes.
pub(in crate::ext2) trait Source {
    /// Reads a block.
    fn block(&self, no: u32) -> Result<Vec<u8>>;
}

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ext2) struct Place {
    pub(in crate::ext2) block: u32,
    pub(in crate::ext2) at: usize,
}

/// Bytes of a block that change.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::ext2) struct Edit {
    pub(in crate::ext2) block: u32,
    pub(in crate::ext2) at: usize,
    pub(in crate::ext2) bytes: Vec<u8>,
}

/// A file to look into.
pub(in crate::ext2) struct Tree<'s> {
    pub(in crate::ext2) source: &'s dyn Source,
    pub(in crate::ext2) kind: QuotaKind,
    pub(in crate::ext2) header: Header,
}

/// What a new entry takes.
pub(in crate::ext2) struct Insertion {
    pub(in crate::ext2) place: Place,
    pub(in crate::ext2) edits: Vec<Edit>,
    pub(in crate::ext2) header: Header,
}

/// A block's reference `at`.
fn reference(at: usize) -> Field<u32> {
    Field::at(4 * at)
}

impl Tree<'_> {
    /// Follows a reference out of block `from`; 0 if it leads nowhere.
    fn follow(&self, raw: &[u8], from: u32, at: usize) -> Result<u32> {
        let to = reference(at).get(raw);
        if to != 0 && !self.header.holds(to) {
            let problem = format!("reference {at} of block {from} is {to}, of {}", self.header.blocks);
            return Err(self.kind.damaged(problem));
        }
        Ok(to)
    }

    /// Where the entry of `id` is; `None` if it has none.
    ///
    /// # Errors
    /// `Corrupt` where the way to it leads out of the file, or to a leaf that does not have it; `Io`.
    pub(in crate::ext2) fn find(&self, id: u32) -> Result<Option<Place>> {
        let mut block = TREE_ROOT;
        for level in 0..TREE_LEVELS {
            block = self.follow(&self.source.block(block)?, block, step(id, level))?;
            if block == 0 {
                return Ok(None);
            }
        }
        let leaf = self.source.block(block)?;
        let found = entries(&leaf).find(|&(_, owner, _)| owner == id);
        let missing = || self.kind.damaged(format!("block {block} lacks the entry of {id}"));
        found.map(|(at, ..)| Some(Place { block, at })).ok_or_else(missing)
    }

    /// What it takes to give `id`, which has none, an entry.
    ///
    /// # Errors
    /// `Corrupt` for a damaged list of leaves or blocks, or a way that leads out of the file; `Io`.
    pub(in crate::ext2) fn insert(&self, id: u32, entry: &Dquot) -> Result<Insertion> {
        let mut work = Work { tree: self, header: self.header, blocks: BTreeMap::new() };
        let mut block = TREE_ROOT;
        for level in 0..TREE_LEVELS {
            let at = step(id, level);
            let raw = work.block(block)?;
            let mut next = self.follow(&raw, block, at)?;
            if next == 0 {
                next = if level + 1 < TREE_LEVELS { work.take()? } else { work.leaf_with_room()? };
                reference(at).put(work.change(block)?, next);
            }
            block = next;
        }
        let place = work.put_entry(block, id, entry)?;
        work.finish(place)
    }

    /// Calls `each` with every entry, in the order of ids.
    ///
    /// # Errors
    /// `Corrupt` for a tree that is none; `Io`.
    pub(in crate::ext2) fn each(&self, each: &mut dyn FnMut(u32, Dquot)) -> Result<()> {
        let mut walk = Walk::new(self);
        walk.node((TREE_ROOT, 0), 0, each)?;
        walk.list(self.header.free_entry, false)?;
        walk.list(self.header.free_block, true)?;
        if walk.left != walk.found {
            let problem = format!("{} entries in leaves, and ways to {}", walk.left, walk.found);
            return Err(self.kind.damaged(problem));
        }
        Ok(())
    }

    /// All entries.
    ///
    /// # Errors
    /// As [`Tree::each`].
    pub(in crate::ext2) fn all(&self) -> Result<BTreeMap<u32, Dquot>> {
        let mut all = BTreeMap::new();
        self.each(&mut |id, entry| {
            all.insert(id, entry);
        })?;
        Ok(all)
    }

    /// What can be read of the entries of a file that may be damaged: those that the tree leads to, and those with limits in whatever
    /// looks like a leaf.
    pub(in crate::ext2) fn salvage(&self) -> BTreeMap<u32, Dquot> {
        let mut found = BTreeMap::new();
        let mut walk = Walk::new(self);
        walk.is_lenient = true;
        let root = (TREE_ROOT, 0);
        let walked = walk.node(root, 0, &mut |id, entry| {
            found.insert(id, entry);
        });
        if walked.is_err() {
            // The medium fails: what was read is all that there is.
            return found;
        }
        for no in TREE_ROOT + 1..self.header.blocks {
            let Ok(raw) = self.source.block(no) else { continue };
            if is_like_a_leaf(&raw) {
                for (_, id, entry) in entries(&raw).filter(|(.., entry)| entry.has_limits()) {
                    found.entry(id).or_insert(entry);
                }
            }
        }
        found
    }
}

/// Whether a block counts the entries that it has, and has zeros where leaves have these.
fn is_like_a_leaf(raw: &[u8]) -> bool {
    let used = entries(raw).count();
    let padding = raw[DQDH_ENTRIES.end()..entry_at(0)].iter().chain(&raw[entry_at(LEAF_ENTRIES)..]);
    used > 0 && usize::from(DQDH_ENTRIES.get(raw)) == used && padding.into_iter().all(|&byte| byte == 0)
}

/// The entries in use of a leaf: where, whose, and what they say.
fn entries(leaf: &[u8]) -> impl Iterator<Item = (usize, u32, Dquot)> + '_ {
    (0..LEAF_ENTRIES)
        .map(entry_at)
        .filter_map(|at| Dquot::parse(&leaf[at..]).map(|(id, entry)| (at, id, entry)))
}

/// A change being worked out.
struct Work<'t, 's> {
    tree: &'t Tree<'s>,
    header: Header,
    /// Blocks that were looked at to be changed: as they were, `None` if they are new, and as they are.
    blocks: BTreeMap<u32, (Option<Vec<u8>>, Vec<u8>)>,
}

impl Work<'_, '_> {
    fn block(&self, no: u32) -> Result<Vec<u8>> {
        match self.blocks.get(&no) {
            Some((_, now)) => Ok(now.clone()),
            None => self.tree.source.block(no),
        }
    }

    fn change(&mut self, no: u32) -> Result<&mut Vec<u8>> {
        if !self.blocks.contains_key(&no) {
            let raw = self.tree.source.block(no)?;
            self.blocks.insert(no, (Some(raw.clone()), raw));
        }
        Ok(&mut self.blocks.get_mut(&no).expect("just inserted").1)
    }

    /// A block of zeros: one that is not in use, else one behind the last.
    fn take(&mut self) -> Result<u32> {
        let no = self.header.free_block;
        if no == 0 {
            let no = self.header.blocks;
            self.header.blocks =
                no.checked_add(1).ok_or_else(|| self.tree.kind.damaged("it has 2^32 blocks"))?;
            self.blocks.insert(no, (None, vec![0; QUOTA_BLOCK]));
            return Ok(no);
        }
        let next = DQDH_NEXT_FREE.get(&self.block(no)?);
        self.expect(next, "list of free blocks")?;
        self.header.free_block = next;
        self.change(no)?.fill(0);
        Ok(no)
    }

    fn expect(&self, block: u32, what: &str) -> Result<()> {
        if block == 0 || self.header.holds(block) {
            return Ok(());
        }
        Err(self.tree.kind.damaged(format!("the {what} leads to block {block} of {}", self.header.blocks)))
    }

    /// A leaf that has room.
    fn leaf_with_room(&mut self) -> Result<u32> {
        let no = self.header.free_entry;
        if no != 0 {
            return Ok(no);
        }
        let no = self.take()?;
        self.header.free_entry = no;
        Ok(no)
    }

    /// Puts an entry into a leaf with room, and takes the leaf off its list when it is full.
    fn put_entry(&mut self, leaf: u32, id: u32, entry: &Dquot) -> Result<Place> {
        let raw = self.block(leaf)?;
        let used = usize::from(DQDH_ENTRIES.get(&raw));
        let is_free = |at: &usize| raw[*at..*at + ENTRY_SIZE].iter().all(|&byte| byte == 0);
        let room = (0..LEAF_ENTRIES).map(entry_at).find(is_free).filter(|_| used < LEAF_ENTRIES);
        let is_first = self.header.free_entry == leaf && DQDH_PREV_FREE.get(&raw) == 0;
        let (Some(at), true) = (room, is_first) else {
            let problem =
                format!("block {leaf} is no leaf with room, as its {used} entries and the list of these say");
            return Err(self.tree.kind.damaged(problem));
        };
        let next = DQDH_NEXT_FREE.get(&raw);
        self.expect(next, "list of leaves")?;
        let raw = self.change(leaf)?;
        raw[at..at + ENTRY_SIZE].copy_from_slice(&entry.encode(id));
        DQDH_ENTRIES.put(raw, u16::try_from(used + 1).expect("at most 14"));
        if used + 1 == LEAF_ENTRIES {
            DQDH_NEXT_FREE.put(raw, 0);
            self.header.free_entry = next;
            if next != 0 {
                DQDH_PREV_FREE.put(self.change(next)?, 0);
            }
        }
        Ok(Place { block: leaf, at })
    }

    /// The bytes that differ, first those of new blocks.
    fn finish(self, place: Place) -> Result<Insertion> {
        let mut edits = Vec::new();
        for (block, (before, now)) in self.blocks {
            match before {
                None => edits.push(Edit { block, at: 0, bytes: now }),
                Some(before) => {
                    let differs = |at: &usize| before[*at] != now[*at];
                    let first = (0..QUOTA_BLOCK).find(differs);
                    let last = (0..QUOTA_BLOCK).rfind(differs);
                    if let (Some(first), Some(last)) = (first, last) {
                        edits.push(Edit { block, at: first, bytes: now[first..=last].to_vec() });
                    }
                }
            }
        }
        if self.header != self.tree.header {
            let mut raw = vec![0; 32];
            self.header.encode_into(self.tree.kind, &mut raw);
            edits.push(Edit { block: 0, at: 0, bytes: raw });
        }
        Ok(Insertion { place, edits, header: self.header })
    }
}

/// What a walk has met a block as.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Met {
    Nothing,
    Node,
    Leaf,
    Listed,
}

/// A walk through all of a tree.
struct Walk<'t, 's> {
    tree: &'t Tree<'s>,
    met: Vec<Met>,
    /// Entries in the leaves that were met, and ways to entries.
    left: u64,
    found: u64,
    /// What is no tree is passed over.
    is_lenient: bool,
}

impl<'t, 's> Walk<'t, 's> {
    fn new(tree: &'t Tree<'s>) -> Self {
        let met = vec![Met::Nothing; to_usize(tree.header.blocks)];
        Self { tree, met, left: 0, found: 0, is_lenient: false }
    }

    /// What came of a part of the walk: damage only counts where it is not passed over.
    fn judged(&self, part: Result<()>) -> Result<()> {
        match part {
            Err(Error::Corrupt(_)) if self.is_lenient => Ok(()),
            part => part,
        }
    }

    /// Everything below block `no`, which is `level` levels below the root, for ids that begin with `prefix`.
    fn node(&mut self, (no, level): (u32, u32), prefix: u32, each: &mut dyn FnMut(u32, Dquot)) -> Result<()> {
        self.meet(no, Met::Node)?;
        let raw = self.tree.source.block(no)?;
        for at in 0..TREE_REFS {
            let next = match self.tree.follow(&raw, no, at) {
                Ok(0) => continue,
                Ok(next) => next,
                Err(error) => {
                    self.judged(Err(error))?;
                    continue;
                }
            };
            let prefix = prefix << 8 | small(at);
            let part = if level + 1 < TREE_LEVELS {
                self.node((next, level + 1), prefix, each)
            } else {
                self.leaf(next, prefix, each)
            };
            self.judged(part)?;
        }
        Ok(())
    }

    /// Follows the list of leaves with room, or of blocks that are not in use.
    fn list(&mut self, first: u32, is_free: bool) -> Result<()> {
        let (mut no, mut before) = (first, 0);
        while no != 0 {
            let what = if is_free { "list of free blocks" } else { "list of leaves" };
            let lawful = self.tree.header.holds(no)
                && self.met[to_usize(no)] == if is_free { Met::Nothing } else { Met::Leaf };
            let leaf = if lawful { self.tree.source.block(no)? } else { Vec::new() };
            let fits = |leaf: &[u8]| {
                is_free
                    || (usize::from(DQDH_ENTRIES.get(leaf)) < LEAF_ENTRIES
                        && DQDH_PREV_FREE.get(leaf) == before)
            };
            if !lawful || !fits(&leaf) {
                return Err(self.tree.kind.damaged(format!("the {what} leads to block {no}")));
            }
            // Met as what it is not in the list, so that the list cannot come back.
            self.met[to_usize(no)] = Met::Listed;
            (before, no) = (no, DQDH_NEXT_FREE.get(&leaf));
        }
        Ok(())
    }

    fn meet(&mut self, no: u32, how: Met) -> Result<()> {
        match std::mem::replace(&mut self.met[to_usize(no)], how) {
            Met::Nothing => Ok(()),
            Met::Leaf if how == Met::Leaf => Ok(()),
            _ => Err(self.tree.kind.damaged(format!("ways of two kinds lead to block {no}"))),
        }
    }

    /// The entry of `id` in the leaf `no`.
    fn leaf(&mut self, no: u32, id: u32, each: &mut dyn FnMut(u32, Dquot)) -> Result<()> {
        let leaf = self.tree.source.block(no)?;
        if self.met[to_usize(no)] == Met::Nothing {
            let counted = u64::from(DQDH_ENTRIES.get(&leaf));
            let used = entries(&leaf).count();
            if !self.is_lenient && counted != u64::from(small(used)) {
                return Err(self
                    .tree
                    .kind
                    .damaged(format!("block {no} counts {counted} entries, it has {used}")));
            }
            self.left += counted;
        }
        self.meet(no, Met::Leaf)?;
        let mut own = entries(&leaf).filter(|&(_, owner, _)| owner == id);
        let (Some((_, _, entry)), None) = (own.next(), own.next()) else {
            return Err(self.tree.kind.damaged(format!("block {no} has not one entry of {id}")));
        };
        self.found += 1;
        each(id, entry);
        Ok(())
    }
}

/// A quota file in memory.
pub(in crate::ext2) struct Memory(pub(in crate::ext2) Vec<u8>);

impl Source for Memory {
    fn block(&self, no: u32) -> Result<Vec<u8>> {
        let at = block_start(no);
        // What a header allows is inside; behind it there are zeros.
        Ok(self.0.get(at..at + QUOTA_BLOCK).map_or_else(|| vec![0; QUOTA_BLOCK], <[u8]>::to_vec))
    }
}

/// The bytes of a file with these entries, made anew.
///
/// # Errors
/// `Corrupt` if there are too many for any file.
pub(in crate::ext2) fn build(
    kind: QuotaKind,
    header: &Header,
    entries: &BTreeMap<u32, Dquot>,
) -> Result<Vec<u8>> {
    let Header { block_grace, inode_grace, flags, .. } = *header;
    let mut header = Header { block_grace, inode_grace, flags, ..Header::EMPTY };
    let mut file = Memory(vec![0; block_start(header.blocks)]);
    header.encode_into(kind, &mut file.0);
    for (&id, entry) in entries {
        let insertion = Tree { source: &file, kind, header }.insert(id, entry)?;
        header = insertion.header;
        file.0.resize(block_start(header.blocks), 0);
        for edit in insertion.edits {
            let at = block_start(edit.block) + edit.at;
            file.0[at..at + edit.bytes.len()].copy_from_slice(&edit.bytes);
        }
    }
    Ok(file.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(n: u64) -> Dquot {
        Dquot { inodes: n, space: n * 512, ..Dquot::default() }
    }

    fn tree(file: &Memory) -> Tree<'_> {
        let header = Header::parse(&file.0, QuotaKind::User, file.0.len() as u64).unwrap();
        Tree { source: file, kind: QuotaKind::User, header }
    }

    #[test]
    fn what_was_put_in_is_found_and_nothing_else() {
        let ids = (0..3000_u32).map(|n| n.wrapping_mul(2_654_435_761));
        let all: BTreeMap<u32, Dquot> = ids.map(|id| (id, entry(u64::from(id)))).collect();
        let file = Memory(build(QuotaKind::User, &Header::EMPTY, &all).unwrap());
        assert_eq!(tree(&file).all().unwrap(), all);
        for (&id, entry) in &all {
            let place = tree(&file).find(id).unwrap().unwrap();
            let at = block_start(place.block) + place.at;
            assert_eq!(Dquot::parse(&file.0[at..]), Some((id, *entry)));
        }
        assert_eq!(tree(&file).find(1).unwrap(), None);
    }

    #[test]
    fn a_file_with_one_entry_is_what_others_make() {
        let all = BTreeMap::from([(0, entry(2))]);
        let file = build(QuotaKind::User, &Header::EMPTY, &all).unwrap();
        assert_eq!(file.len(), 6 * QUOTA_BLOCK);
        let header = Header::parse(&file, QuotaKind::User, 6144).unwrap();
        assert_eq!((header.blocks, header.free_entry), (6, 5));
        for level in 1..5 {
            assert_eq!(reference(0).get(&file[block_start(level)..]), level + 1);
        }
    }

    #[test]
    fn no_byte_of_a_damaged_file_makes_a_walk_fail_otherwise_than_by_an_error() {
        let all: BTreeMap<u32, Dquot> = (0..40).map(|id| (id * 1000, entry(1))).collect();
        let file = build(QuotaKind::User, &Header::EMPTY, &all).unwrap();
        // All that says where something is, and of the entries some.
        for at in (0..file.len()).step_by(4).filter(|at| at % 1024 < 64 || at % 28 == 0) {
            for value in [0_u32, 1, 2, 5, 7, 1 << 30, u32::MAX] {
                let mut bad = file.clone();
                Field::<u32>::at(at).put(&mut bad, value);
                let Ok(header) = Header::parse(&bad, QuotaKind::User, bad.len() as u64) else { continue };
                let bad = Memory(bad);
                let tree = Tree { source: &bad, kind: QuotaKind::User, header };
                let _walked = tree.all().map(|all| all.len());
                let _salvaged = tree.salvage().len();
                let _inserted = tree.insert(77, &entry(1)).map(|insertion| insertion.place);
                let _found = (tree.find(1000), tree.find(77));
            }
        }
    }

    #[test]
    fn leaves_and_blocks_that_others_have_freed_are_used_again() {
        let all: BTreeMap<u32, Dquot> = (0..20).map(|id| (id, entry(1))).collect();
        let mut raw = build(QuotaKind::User, &Header::EMPTY, &all).unwrap();
        let mut header = Header::parse(&raw, QuotaKind::User, raw.len() as u64).unwrap();
        let free = header.blocks;
        header.blocks += 1;
        (header.free_block, header.free_entry) = (free, 0);
        raw.resize(block_start(header.blocks), 0xff);
        DQDH_NEXT_FREE.put(&mut raw[block_start(free)..], 0);
        header.encode_into(QuotaKind::User, &mut raw);
        let insertion = tree(&Memory(raw)).insert(100, &entry(3)).unwrap();
        assert_eq!(insertion.place, Place { block: free, at: entry_at(0) });
        assert_eq!((insertion.header.free_block, insertion.header.free_entry), (0, free));
    }

    #[test]
    fn limits_outlive_a_broken_root() {
        let limit = Dquot { space_hard: 10, ..entry(1) };
        let all = BTreeMap::from([(5, limit), (1 << 24, limit)]);
        let mut raw = build(QuotaKind::User, &Header::EMPTY, &all).unwrap();
        reference(1).put(&mut raw[block_start(TREE_ROOT)..], 9999);
        let found = tree(&Memory(raw)).salvage();
        assert_eq!(found, all);
    }
}
