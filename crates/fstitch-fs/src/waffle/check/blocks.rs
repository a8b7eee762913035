//! The first pass: every reference of every tree, and the map.
//!
//! **Invariant.** What a block with several references is does not depend on which of them is followed first: contents of files that share it if
//! all of them are of contents, and else a block with more than one user. Each of them is followed as what it leads to is for it; the third
//! and later ones say of all below that nobody counts its users any more.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use fstitch_core::num::to_usize;
use fstitch_core::{BlockKind, CheckReport, FileKind, Le, Result};
use rustc_hash::{FxHashMap, FxHashSet};

use super::super::cluster::cluster_of;
use super::super::layout::inode::{INODE_BYTES, INODES_IN_BLOCK, Inode, Slot, place};
use super::super::layout::pointer::{Fork, Ref, span};
use super::super::layout::record::TreeKind;
use super::super::layout::{FAN, REGION};
use super::super::map::{WORDS, Words};
use super::super::snapshot::before;
use super::super::state::State;
use super::super::tree::{COUNTS_IN_BLOCK, Key, Node, Obj, UNCOUNTED};
use super::restore::Suspects;
use super::{damage, is_unread, note};

/// Findings about single blocks of one region; the rest is one more.
const LISTED: u32 = 8;

/// Damaged blocks and references that are remembered; there are more runs for more of them.
const SUSPECTS_MAX: usize = 4096;

/// What is being looked at.
#[derive(Clone, Copy)]
struct At {
    /// The tree, by its record.
    tree: usize,
    /// The tree before this one, and its last generation.
    before: Option<(usize, u64)>,
    /// What leaves of contents hold.
    kind: BlockKind,
    /// Leaves from this one on may not be there.
    end: u64,
    /// Clusters may be packed, in this tree.
    packs: Option<usize>,
    /// It has more users above than are followed: nobody counts those of what is here.
    is_uncounted: bool,
}

/// Blocks of each region, a bit for each.
type Marks = BTreeMap<u64, Box<Words>>;

fn has(marks: &Marks, block: u64) -> bool {
    let (region, bit) = (block / REGION, block % REGION);
    marks.get(&region).is_some_and(|words| words[to_usize(bit / 64)] >> (bit % 64) & 1 == 1)
}

fn set(marks: &mut Marks, block: u64) {
    let (region, bit) = (block / REGION, block % REGION);
    let words = marks.entry(region).or_insert_with(|| Box::new([0; WORDS]));
    words[to_usize(bit / 64)] |= 1 << (bit % 64);
}

/// What references lead to.
#[derive(Default)]
pub(super) struct Census {
    /// Blocks that anything leads to.
    pub(super) marks: Marks,
    /// References beyond the first, or [`UNCOUNTED`].
    pub(super) more: FxHashMap<u64, u32>,
    /// Blocks with more than one reference that may not have them.
    pub(super) twice: BTreeSet<u64>,
    /// Nodes and inodes that cannot be read: who knows what they led to.
    pub(super) unread: u64,
    /// Where references are of generation 0, by their trees.
    pub(super) ageless: Vec<(usize, Key)>,
    /// Blocks that are not what their references say.
    pub(super) suspects: Suspects,
}

impl Census {
    /// Whether anything leads to a block.
    pub(super) fn has(&self, block: u64) -> bool {
        has(&self.marks, block)
    }
}

struct Blocks<'a> {
    state: &'a State,
    report: &'a mut CheckReport,
    found: Census,
    /// Blocks that have not been followed, because they are not what the references say that led to them: of another one they may be.
    broken: FxHashSet<u64>,
    /// Nodes and inodes that were followed more than once: as what, and whether without counting.
    again: FxHashMap<(u64, u8, BlockKind), bool>,
    /// Blocks that something leads to as to no contents of a file: nobody shares these.
    alone: Marks,
    /// The sums of blocks that files share, as far as they were compared.
    sums: FxHashMap<u64, u64>,
    /// Clusters of the file that is being looked at.
    clusters: BTreeSet<u64>,
    /// Blocks that are used, and nobody's that can be read.
    unknown: u64,
}

/// Follows every reference, and compares what they lead to with the map.
pub(super) fn check(state: &State, report: &mut CheckReport) -> Result<()> {
    let mut blocks = Blocks::new(state, report);
    blocks.follow_all()?;
    blocks.shares()?;
    blocks.map()
}

/// Follows every reference.
pub(super) fn census(state: &State, report: &mut CheckReport) -> Result<Census> {
    let mut blocks = Blocks::new(state, report);
    blocks.follow_all()?;
    Ok(blocks.found)
}

impl<'a> Blocks<'a> {
    fn new(state: &'a State, report: &'a mut CheckReport) -> Self {
        let (found, broken, again, alone, sums, clusters) = Default::default();
        Self { state, report, found, broken, again, alone, sums, clusters, unknown: 0 }
    }

    fn follow_all(&mut self) -> Result<()> {
        let state = self.state;
        let whole = At {
            tree: state.head,
            before: None,
            kind: BlockKind::GroupDescriptor,
            end: u64::MAX,
            packs: None,
            is_uncounted: false,
        };
        self.fork(whole, Obj::Trees, state.root.trees)?;
        self.fork(whole, Obj::Shared, state.root.shared)?;
        let mut order: Vec<usize> =
            (0..state.trees.len()).filter(|&tree| state.trees[tree].is_some()).collect();
        order.sort_by_key(|&number| {
            let tree = state.trees[number].as_ref();
            tree.map(|tree| (tree.kind == TreeKind::Head, tree.generation))
        });
        for number in order {
            let Some(tree) = &state.trees[number] else { continue };
            let at = At { tree: number, before: before(&state.trees, tree), packs: Some(number), ..whole };
            self.fork(at, Obj::Inodes, tree.inodes)?;
        }
        Ok(())
    }

    fn fork(&mut self, at: At, obj: Obj, fork: Fork) -> Result<()> {
        if fork.root.is_none() {
            return Ok(());
        }
        self.follow(at, (obj, fork.height, 0), fork.root)
    }

    fn follow(&mut self, at: At, key: Key, reference: Ref) -> Result<()> {
        let (obj, level, index) = key;
        let is_packable = level == 0 && matches!(obj, Obj::Data(_)) && at.packs.is_some();
        let checked = if is_packable { reference.unpacked() } else { reference };
        if let Some(problem) = checked.problem(self.state.data(), self.state.root.generation) {
            damage(self.report, "reference", State::damaged(key, None, problem).to_string());
            // It is somebody's, whatever else is wrong.
            let (first, end) = self.state.data();
            if (first..end).contains(&reference.block) && self.mark(at, reference, false) {
                self.broken.insert(reference.block);
            }
            self.found.unread += u64::from(level > 0 || obj == Obj::Inodes);
            return Ok(());
        }
        if index.saturating_mul(span(level)) >= at.end {
            let problem = format!("block {} is behind the end", reference.block);
            damage(self.report, "behind-end", State::damaged(key, None, problem).to_string());
        }
        if let Some((older, generation)) = at.before
            && reference.birth <= generation
        {
            return self.compare_trees(older, key, reference);
        }
        if reference.birth == 0 && !matches!(obj, Obj::Trees | Obj::Shared) {
            self.note_ageless(at.tree, key, reference);
        }
        if is_packable {
            self.clusters.insert(cluster_of(index));
        }
        let kind = if level == 0 && matches!(obj, Obj::Data(_)) { at.kind } else { obj.kind(level) };
        let is_first = self.mark(at, reference, kind == BlockKind::Data);
        let is_again = !is_first && !self.broken.contains(&reference.block);
        let mut at = at;
        if is_again {
            let Some(is_uncounted) = self.leads_anew(at, key, reference)? else { return Ok(()) };
            at.is_uncounted = is_uncounted;
        }
        let Some(bytes) = self.bytes_of(key, (reference, kind), is_again)? else { return Ok(()) };
        if level > 0 {
            for slot in 0..FAN {
                let below = Ref::slot(&bytes, to_usize(slot));
                if below != Ref::NONE {
                    self.follow(at, (obj, level - 1, index * FAN + slot), below)?;
                }
            }
            return Ok(());
        }
        if obj == Obj::Inodes { self.inodes(at, index, &bytes) } else { Ok(()) }
    }

    /// A reference as old as what a snapshot has, so that nobody would give it up.
    fn note_ageless(&mut self, tree: usize, key: Key, reference: Ref) {
        let text = State::damaged(key, reference.block, "it is of generation 0, which wrote nothing");
        damage(self.report, "reference", text.to_string());
        if self.found.ageless.len() < SUSPECTS_MAX {
            self.found.ageless.push((tree, key));
        }
    }

    /// Whether a block that was followed before is to be followed once more, and whether nobody is to count who has what is below then: it
    /// may have been as something else, which leads elsewhere or nowhere; and each of its users has all that is below.
    fn leads_anew(&mut self, at: At, key: Key, reference: Ref) -> Result<Option<bool>> {
        let (obj, level, _) = key;
        if level == 0 && obj != Obj::Inodes {
            self.compare_sums(key, reference)?;
            return Ok(None);
        }
        let below = if matches!(obj, Obj::Data(_)) { at.kind } else { obj.kind(0) };
        Ok(match self.again.entry((reference.block, level, below)) {
            Entry::Vacant(entry) => Some(*entry.insert(at.is_uncounted)),
            Entry::Occupied(mut entry) => (!entry.insert(true)).then_some(true),
        })
    }

    /// What a reference leads to, if it is what that says.
    fn bytes_of(
        &mut self,
        key: Key,
        (reference, kind): (Ref, BlockKind),
        is_again: bool,
    ) -> Result<Option<Node>> {
        let found = self.state.load(reference, key, kind).map_err(|error| match is_unread(&error) {
            true => State::damaged(key, reference.block, format!("it cannot be read: {error}")),
            false => error,
        });
        let bytes = note(self.report, "block-damaged", found)?;
        if bytes.is_none() {
            // One that was followed before is what was written there, and the reference is what is wrong.
            if !is_again {
                if self.found.suspects.len() < SUSPECTS_MAX {
                    self.found.suspects.push((reference, kind));
                }
                self.broken.insert(reference.block);
            }
            self.found.unread += u64::from(key.1 > 0 || key.0 == Obj::Inodes);
        } else if self.broken.remove(&reference.block) {
            // The same of who was followed before.
            self.found.suspects.retain(|(other, _)| other.block != reference.block);
        }
        Ok(bytes)
    }

    /// A block of a file that another one has as well, and which was what that one's reference says.
    fn compare_sums(&mut self, key: Key, reference: Ref) -> Result<()> {
        let Ref { block, sum, .. } = reference;
        if self.found.twice.contains(&block) || self.sums.get(&block) == Some(&sum) {
            return Ok(());
        }
        let found = self.state.load(reference, key, BlockKind::Data);
        if note(self.report, "block-damaged", found)?.is_some() {
            self.sums.insert(block, sum);
        }
        Ok(())
    }

    /// A block that was there before a tree: the tree before has it at the same place.
    fn compare_trees(&mut self, older: usize, key: Key, reference: Ref) -> Result<()> {
        let (obj, level, index) = key;
        let theirs = match self.state.reference(older, obj, level, index) {
            Err(fstitch_core::Error::Errno(_)) => Ok(Ref::NONE),
            found => found,
        };
        let theirs = note(self.report, "block-damaged", theirs)?;
        // What is below has not been followed.
        self.found.unread += u64::from(theirs != Some(reference));
        if theirs.is_some_and(|theirs| theirs != reference) {
            let problem = "it is older than the tree, and the tree before has another one here";
            let text = State::damaged(key, reference.block, problem).to_string();
            damage(self.report, "block-moved", text);
        }
        Ok(())
    }

    fn inodes(&mut self, at: At, leaf: u64, bytes: &[u8]) -> Result<()> {
        for ino in leaf * INODES_IN_BLOCK..(leaf + 1) * INODES_IN_BLOCK {
            let (_, from) = place(ino);
            let slot = Slot::decode(&bytes[from..from + INODE_BYTES], ino);
            let inode = match note(self.report, "inode", slot)? {
                Some(Slot::Used(inode)) => inode,
                Some(Slot::Free(_)) => continue,
                None => {
                    self.found.unread += 1;
                    continue;
                }
            };
            if ino == 0 {
                damage(self.report, "inode", "inode 0 is in use");
                continue;
            }
            self.contents(at, &inode)?;
        }
        Ok(())
    }

    fn contents(&mut self, at: At, inode: &Inode) -> Result<()> {
        let blocks = |bytes: u64| bytes.div_ceil(super::super::layout::BLOCK_BYTES);
        let (kind, end) = match inode.kind {
            FileKind::Directory => (BlockKind::Directory, 1 << inode.depth),
            FileKind::Regular => (BlockKind::Data, blocks(inode.size)),
            FileKind::Symlink if !inode.is_inline() => (BlockKind::Data, blocks(inode.size)),
            _ => (BlockKind::Data, 0),
        };
        let packs = at.packs.filter(|_| inode.kind == FileKind::Regular && self.state.has_packed());
        self.fork(At { kind, end, packs, ..at }, Obj::Data(inode.ino), inode.data)?;
        for cluster in std::mem::take(&mut self.clusters) {
            let Some(tree) = packs else { break };
            let checked = self.state.check_cluster(tree, inode.ino, cluster, end);
            note(self.report, "cluster", checked)?;
        }
        let end = blocks(inode.xattrs_len.into());
        self.fork(At { end, packs: None, ..at }, Obj::Xattrs(inode.ino), inode.xattrs)
    }

    /// Notes that there is a reference to a block, to a file's contents or not; whether it is the first.
    fn mark(&mut self, at: At, reference: Ref, is_contents: bool) -> bool {
        let block = reference.block;
        let (is_first, was_alone) = (!has(&self.found.marks, block), has(&self.alone, block));
        set(&mut self.found.marks, block);
        if !is_contents {
            set(&mut self.alone, block);
        }
        // As long as anybody has it, nobody else who gives it up may make it free.
        if at.is_uncounted {
            self.found.more.insert(block, UNCOUNTED);
        } else if !is_first {
            let more = self.found.more.entry(block).or_default();
            *more = more.saturating_add(1);
        }
        if !is_first && (!is_contents || was_alone) {
            self.found.twice.insert(block);
        }
        is_first
    }

    /// The table of shared blocks has the references beyond the first.
    fn shares(&mut self) -> Result<()> {
        let state = self.state;
        let mut leaves = Vec::new();
        let walked = state.walk_leaves(state.head, Obj::Shared, (0, u64::MAX), &mut |leaf| {
            leaves.push(leaf);
            true
        });
        note(self.report, "shares", walked)?;
        for leaf in leaves {
            let node = state.node(state.head, Obj::Shared, 0, leaf);
            let Some(Some(node)) = note(self.report, "shares", node)? else { continue };
            for (slot, counts) in node.chunks_exact(4).enumerate() {
                let block = leaf * COUNTS_IN_BLOCK + fstitch_core::num::to_u64(slot);
                let (said, found) = (Le::u32(counts, 0), self.found.more.remove(&block).unwrap_or(0));
                if said != found {
                    let count = |count: u32| match count {
                        UNCOUNTED => "uncounted".to_owned(),
                        count => count.to_string(),
                    };
                    let (found, said) = (count(found), count(said));
                    let text = format!("block {block} has {found} more references, and {said} are said");
                    damage(self.report, "shares", text);
                }
            }
        }
        let mut rest: Vec<u64> = self.found.more.keys().chain(&self.found.twice).copied().collect();
        rest.sort_unstable();
        rest.dedup();
        for block in rest {
            damage(self.report, "block-used-twice", format!("block {block} has more than one user"));
        }
        Ok(())
    }

    fn map(&mut self) -> Result<()> {
        let state = self.state;
        let mut free = 0;
        for region in 0..state.map.shape().counts[0] {
            let words = state.map.words(&state.cache, region);
            let Some(words) = note(self.report, "map", words)? else { continue };
            free += words.iter().map(|word| u64::from(word.count_zeros())).sum::<u64>();
            let marks = self.found.marks.remove(&region).unwrap_or_else(|| Box::new([0; WORDS]));
            self.compare_region(region, &words, &marks);
        }
        if self.unknown > 0 {
            let text = format!(
                "{} blocks are used, and nobody's that can be read: they may be of what is damaged",
                self.unknown
            );
            damage(self.report, "block-unknown", text);
        }
        if free != state.root.free {
            let text = format!("the root says that {} blocks are free, the map {free}", state.root.free);
            damage(self.report, "free-count", text);
        }
        Ok(())
    }

    fn compare_region(&mut self, region: u64, words: &Words, marks: &Words) {
        let (first, end) = self.state.data();
        let mut listed = 0;
        for bit in 0..REGION {
            let block = region * REGION + bit;
            let is = |words: &Words| words[to_usize(bit / 64)] >> (bit % 64) & 1 == 1;
            let (is_marked, is_reached) = (is(words), is(marks));
            if is_marked == is_reached || !(first..end).contains(&block) {
                continue;
            }
            if !is_reached && self.found.unread > 0 {
                self.unknown += 1;
                continue;
            }
            listed += 1;
            if listed > LISTED {
                self.report.push(
                    fstitch_core::FindingClass::Corrupt,
                    "map-more",
                    format!("region {region}: there are more blocks like these"),
                );
                return;
            }
            match is_reached {
                true => damage(self.report, "block-free-in-use", format!("block {block} is used, and free")),
                false => damage(self.report, "block-leaked", format!("block {block} is nobody's, and used")),
            }
        }
    }
}
