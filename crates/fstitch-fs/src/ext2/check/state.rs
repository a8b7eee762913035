//! What a run of the passes knows: the volume, and what was found in it so far.

use std::collections::{BTreeMap, BTreeSet};

use fstitch_core::{CheckReport, FindingClass, Timestamp};

use super::super::source::BlockSource;
use super::ahead::Ahead;
use crate::bits::Bits;
use crate::ext2::layout::group::GroupDescriptor;
use crate::ext2::layout::superblock::Superblock;
use crate::ext2::leftovers::Leftovers;
use crate::ext2::num::idx;

/// What to do about a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mending {
    /// Report only.
    Nothing,
    /// Mend what a crash allows.
    Allowed,
    /// Mend everything. With `keep`, all inodes without a name go to lost+found; else those that a crash need not have left.
    Everything {
        /// Unexpected damage was seen, so that nameless inodes may have been somebody's.
        keep: bool,
    },
    /// Bring sums, and what has its place because of them, to what the features in memory ask for; mend nothing.
    Sums,
}

/// The volume behind its source: geometry, and inodes by number.
pub(super) struct Volume<'a> {
    pub(super) source: &'a dyn BlockSource,
    pub(super) shape: Superblock,
    pub(super) raw_super: Vec<u8>,
    pub(super) groups: Vec<GroupDescriptor>,
}

impl Volume<'_> {
    pub(super) fn block_size(&self) -> usize {
        idx(self.shape.block_size)
    }

    pub(super) fn blocks(&self) -> u64 {
        self.shape.blocks_count
    }

    /// Whether a pointer may point at `block`.
    pub(super) fn is_valid(&self, block: u64) -> bool {
        block >= self.shape.first_data_block().max(1) && block < self.shape.blocks_count
    }
}

/// In use: it has links.
pub(super) const USED: u8 = 0x08;
/// Its contents make no sense; why is in [`State::bad`].
pub(super) const BAD: u8 = 0x10;
/// A directory that a path from the root leads to.
pub(super) const REACHED: u8 = 0x20;
/// The bits that hold the kind, coded as in directory entries.
pub(super) const KIND: u8 = 0x07;
/// The code of a directory.
pub(super) const DIRECTORY: u8 = 2;

/// What may be found where all changes go through a journal: the list of orphans, and what no transaction keeps in step.
const UNORDERED: [&str; 8] = [
    "inode-orphan",
    "inode-unlinked",
    "superblock-counters",
    "superblock-not-clean",
    "journal-error",
    "journal-inode-unused",
    "links-uncounted",
    "dirent-no-file-type",
];

/// What a directory says about itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dir {
    pub(super) ino: u32,
    /// The inode that `..` names; 0 when there is none.
    pub(super) dotdot: u32,
    /// The directory that it belongs to; 0 when there is none. [after pass 3]
    pub(super) parent: u32,
    /// Subdirectories that belong to it. [after pass 3]
    pub(super) children: u32,
}

/// An extended attribute block.
#[derive(Clone, Copy, Debug)]
pub(super) struct XattrUse {
    /// Inodes that point at it.
    pub(super) seen: u32,
    /// Inodes that its header counts.
    pub(super) counted: u32,
    /// Clusters of values that its entries have in inodes of their own.
    pub(super) value_blocks: u64,
}

/// The first second whose changes are not of the mount before, but of this repair, or wrong.
fn until(now: Timestamp) -> u32 {
    match u32::try_from(now.secs) {
        Ok(0) | Err(_) => u32::MAX,
        Ok(secs) => secs,
    }
}

/// Everything found so far.
pub(super) struct State {
    pub(super) mending: Mending,
    pub(super) now: Timestamp,
    pub(super) report: CheckReport,
    /// Changes made to the medium in this run.
    pub(super) mended: u64,
    /// How many blocks are one, as a power of two.
    log_cluster: u8,
    /// Clusters that something owns: the bits of all block bitmaps, and before them those of blocks before the first group.
    pub(super) used: Bits,
    /// Clusters that have an owner which this run may come to later. [once somebody needs a block]
    pub(super) owned_later: Option<Bits>,
    /// Clusters that more than one thing claims.
    shared: Bits,
    /// Kind and flags of each inode, by number.
    pub(super) inodes: Vec<u8>,
    /// Links that each inode counts.
    pub(super) links: Vec<u16>,
    /// Names that each inode has.
    pub(super) names: Vec<u16>,
    /// Directories, by number.
    pub(super) dirs: Vec<Dir>,
    /// Where the blocks of directories are.
    pub(super) ahead: Ahead,
    /// (parent, child) for each name of a directory.
    pub(super) edges: Vec<(u32, u32)>,
    /// Extended attribute blocks.
    pub(super) xattrs: BTreeMap<u64, XattrUse>,
    /// Inodes that hold values of attributes.
    pub(super) value_inodes: BTreeSet<u32>,
    /// How many entries refer to inodes for their values.
    value_uses: BTreeMap<u32, u64>,
    /// Why inodes are [`BAD`].
    pub(super) bad: BTreeMap<u32, &'static str>,
    /// Whether it is to be said what may be freed: what no path leads to is looked at like everything else.
    pub(super) judging: bool,
    /// All changes go through a journal, whose transactions are whole.
    journaled: bool,
    /// What the mount before can have left.
    pub(super) leftovers: Leftovers,
    /// Times from this one on are not of that mount, in seconds.
    pub(super) until: u32,
    /// Where lost+found had room last, by block.
    pub(super) lost_room: usize,
    /// Incompatible features that the superblock lacks and inodes have.
    pub(super) lost_features: u32,
    /// Some file needs the `large_file` feature.
    pub(super) large_file: bool,
    /// What the inodes of users, groups and projects have, where that is counted.
    pub(super) usage: Option<super::quota::Usages>,
    /// Groups from the first on in which nothing is free that could be taken.
    pub(super) full_groups: u32,
    /// And of the group behind them so many clusters.
    pub(super) full_clusters: u32,
    /// Nodes whose extents were copied for somebody else.
    pub(super) copied_nodes: u32,
    /// What other features would meet, if that is asked.
    pub(super) survey: Option<super::survey::Survey>,
    /// Problems inside directories: (directory, code, text). [until pass 3 knows which have a path]
    pending: Vec<(u32, &'static str, String)>,
}

impl State {
    pub(super) fn new(volume: &Volume<'_>, mending: Mending, now: Timestamp) -> Self {
        let inodes = idx(volume.shape.inodes_count) + 1;
        let clusters = volume.blocks().div_ceil(u64::from(volume.shape.cluster_blocks()));
        Self {
            mending,
            now,
            report: CheckReport::default(),
            mended: 0,
            log_cluster: volume.shape.log_cluster,
            used: Bits::new(clusters),
            owned_later: None,
            shared: Bits::new(clusters),
            inodes: vec![0; inodes],
            links: vec![0; inodes],
            names: vec![0; inodes],
            dirs: Vec::new(),
            ahead: Ahead::default(),
            edges: Vec::new(),
            xattrs: BTreeMap::new(),
            value_inodes: BTreeSet::new(),
            value_uses: BTreeMap::new(),
            bad: BTreeMap::new(),
            judging: false,
            journaled: volume.shape.features.is_journaled_ext4(),
            leftovers: Leftovers::of(&volume.raw_super),
            until: until(now),
            lost_room: 0,
            lost_features: 0,
            large_file: false,
            usage: super::quota::usages_of(&volume.shape),
            full_groups: 0,
            full_clusters: 0,
            copied_nodes: 0,
            survey: None,
            pending: Vec::new(),
        }
    }

    /// Reports a finding; true when it shall be mended now.
    #[must_use]
    pub(super) fn problem(
        &mut self,
        class: FindingClass,
        code: &'static str,
        text: impl Into<String>,
    ) -> bool {
        self.report.push(class, code, text);
        let mend = match self.mending {
            Mending::Nothing | Mending::Sums => false,
            Mending::Allowed => class == FindingClass::Allowed,
            Mending::Everything { .. } => true,
        };
        self.mended += u64::from(mend);
        mend
    }

    /// Damage; true when it shall be mended now.
    #[must_use]
    pub(super) fn corrupt(&mut self, code: &'static str, text: impl Into<String>) -> bool {
        self.problem(FindingClass::Corrupt, code, text)
    }

    /// Whether sums are brought to what the features ask for.
    pub(super) fn seals(&self) -> bool {
        self.mending == Mending::Sums
    }

    /// A sum that is not that of its bytes; true when it shall be written now.
    #[must_use]
    pub(super) fn wrong_sum(&mut self, code: &'static str, text: impl Into<String>) -> bool {
        self.seals() || self.corrupt(code, text)
    }

    /// What a crash allows under soft updates; true when it shall be mended now. On a volume that only a journal changes, most
    /// of it is damage.
    #[must_use]
    pub(super) fn allowed(&mut self, code: &'static str, text: impl Into<String>) -> bool {
        let by_journal = self.journaled && !self.leftovers.are_of_soft_updates();
        let lawful = !by_journal || UNORDERED.contains(&code);
        let class = if lawful { FindingClass::Allowed } else { FindingClass::Corrupt };
        self.problem(class, code, text)
    }

    /// Damage inside directory `dir`; true when it shall be mended now.
    ///
    /// A directory that no path leads to was being deleted or was never finished, and may be in any shape: it
    /// is freed as a whole. So the judgement waits for pass 3, unless everything is mended anyway.
    #[must_use]
    pub(super) fn dir_problem(&mut self, dir: u32, code: &'static str, text: String) -> bool {
        if matches!(self.mending, Mending::Everything { .. } | Mending::Sums) {
            return self.corrupt(code, text);
        }
        if self.pending.len() < CheckReport::MAX_FINDINGS {
            self.pending.push((dir, code, text));
        } else {
            self.hopeless(code, text);
        }
        false
    }

    /// Reports the problems inside directories that have a path. [once pass 3 knows]
    pub(super) fn settle_dir_problems(&mut self, volume: &Volume<'_>) {
        for (dir, code, text) in std::mem::take(&mut self.pending) {
            let reached = self.inodes[idx(dir)] & REACHED != 0;
            // Of a directory that is being freed, the length is put right last.
            let counts = self.judging && code != "dir-bad-size";
            if (reached || counts) && !(code == "dir-bad-size" && volume.source.inode_moves(dir)) {
                self.hopeless(code, text);
            }
        }
    }

    /// Damage that is not mended.
    pub(super) fn hopeless(&mut self, code: &'static str, text: impl Into<String>) {
        self.report.push(FindingClass::Corrupt, code, text);
    }

    /// Whether inode `ino` is in use.
    pub(super) fn is_used(&self, ino: u32) -> bool {
        self.inodes[idx(ino)] & USED != 0
    }

    /// Whether inode `ino` is a directory in use.
    pub(super) fn is_dir(&self, ino: u32) -> bool {
        let state = self.inodes[idx(ino)];
        state & USED != 0 && state & KIND == DIRECTORY
    }

    /// Whether inode `ino` has a name that a path leads to.
    pub(super) fn is_named(&self, ino: u32) -> bool {
        if self.is_dir(ino) { self.inodes[idx(ino)] & REACHED != 0 } else { self.names[idx(ino)] > 0 }
    }

    /// The place of directory `ino` in `dirs`.
    pub(super) fn dir_index(&self, ino: u32) -> Option<usize> {
        self.dirs.binary_search_by_key(&ino, |dir| dir.ino).ok()
    }

    /// Counts one more name of inode `ino`.
    pub(super) fn add_name(&mut self, ino: u32) {
        let count = &mut self.names[idx(ino)];
        *count = count.saturating_add(1);
    }

    /// The cluster that holds `block`.
    fn cluster(&self, block: u64) -> u64 {
        block >> self.log_cluster
    }

    /// Notes a claim of the cluster of `block`, which must be valid; false when it had an owner already.
    pub(super) fn claim(&mut self, block: u64) -> bool {
        let cluster = self.cluster(block);
        if !self.used.set(cluster) {
            return true;
        }
        self.shared.set(cluster);
        false
    }

    /// Notes that the cluster of `block` is the volume's own: of what is, several things may be in one.
    pub(super) fn claim_own(&mut self, block: u64) {
        let cluster = self.cluster(block);
        self.used.set(cluster);
    }

    /// Notes a claim of the clusters of `count` blocks, if none of them has an owner yet; else false, and nothing is noted.
    pub(super) fn claim_run(&mut self, first: u64, count: u32) -> bool {
        let end = (first + u64::from(count)).div_ceil(1 << self.log_cluster);
        let first = self.cluster(first);
        self.used.set_run(first, end.saturating_sub(first))
    }

    /// Whether more than one thing claims the cluster of `block`.
    pub(super) fn is_shared(&self, block: u64) -> bool {
        self.shared.get(self.cluster(block))
    }

    /// Counts entries of attributes whose values are in these inodes.
    pub(super) fn refer_values(&mut self, inodes: &[u32]) {
        for &ino in inodes {
            *self.value_uses.entry(ino).or_default() += 1;
        }
    }

    /// How many entries have their value in inode `ino`.
    pub(super) fn value_uses(&self, ino: u32) -> u64 {
        self.value_uses.get(&ino).copied().unwrap_or(0)
    }

    /// Notes inode `ino` as senseless.
    pub(super) fn mark_bad(&mut self, ino: u32, code: &'static str) {
        self.inodes[idx(ino)] |= BAD;
        self.bad.entry(ino).or_insert(code);
    }

    /// The time as a deletion time, which is never 0.
    pub(super) fn dtime(&self) -> u32 {
        let low = u32::try_from(self.now.secs.rem_euclid(1 << 32)).expect("reduced modulo 2^32");
        low.max(1)
    }

    /// The first inodes that are reserved count as used whatever they hold.
    pub(super) fn is_reserved(volume: &Volume<'_>, ino: u32) -> bool {
        ino < volume.shape.first_ino
    }

    /// All owners of blocks were met: who needs a block need not look for others.
    pub(super) fn met_all_owners(&mut self) {
        self.owned_later = Some(Bits::new(0));
    }

    /// Whether the cluster of block `at` has an owner, or will have been found to have one.
    pub(super) fn is_owned(&self, at: u64) -> bool {
        self.has_owner(at) || self.owned_later.as_ref().is_some_and(|owned| owned.get(self.cluster(at)))
    }

    /// Whether the cluster of block `at` has an owner.
    pub(super) fn has_owner(&self, at: u64) -> bool {
        self.used.get(self.cluster(at))
    }
}
