//! What a run of the passes knows.

use fstitch_core::num::to_usize;
use fstitch_core::{CheckReport, FileKind, FindingClass, Timestamp};

use super::volume::Volume;
use super::walk::Slot;
use crate::bits::Bits;
use crate::ufs::layout::superblock::ROOT_INO;

/// What to do about a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mending {
    /// Report only.
    Nothing,
    /// Mend what a crash allows.
    Allowed,
    /// Mend everything.
    Everything,
}

/// In use.
const USED: u8 = 0x80;
/// A path from the root leads to it; of directories only. [pass 2]
const REACHED: u8 = 0x40;
/// It has no length; of directories only.
const EMPTY: u8 = 0x20;
/// The bits that hold the kind, as directory entries have it.
const KIND: u8 = 0x0f;

/// The code of a kind in directory entries.
pub(super) const fn kind_code(kind: FileKind) -> u8 {
    match kind {
        FileKind::Fifo => 1,
        FileKind::CharDevice => 2,
        FileKind::Directory => DIRECTORY,
        FileKind::BlockDevice => 6,
        FileKind::Regular => 8,
        FileKind::Symlink => 10,
        FileKind::Socket => 12,
    }
}

/// The code of a directory.
pub(super) const DIRECTORY: u8 = 4;

/// A directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dir {
    pub(super) ino: u32,
    /// The inode that `..` names; 0 when there is none. [pass 2]
    pub(super) dotdot: u32,
    /// The directory that it belongs to; 0 when there is none. [pass 2]
    pub(super) parent: u32,
    /// Subdirectories that belong to it. [pass 3]
    pub(super) children: u32,
}

/// Fragments that an inode claims and something else has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shared {
    pub(super) ino: u32,
    pub(super) slot: Slot,
    pub(super) start: u64,
    pub(super) count: u64,
    /// Levels of pointers below: 0 for contents.
    pub(super) level: u32,
}

/// Everything found so far.
pub(super) struct State {
    pub(super) mending: Mending,
    pub(super) now: Timestamp,
    pub(super) report: CheckReport,
    /// Changes made to the medium in this run.
    pub(super) mended: u64,
    /// Fragments that something owns.
    pub(super) claimed: Bits,
    /// Claims of what was claimed before.
    pub(super) shared: Vec<Shared>,
    /// Inodes whose mode is in doubt. [pass 1]
    pub(super) doubts: Vec<u32>,
    /// Inodes of each group that were ever written. [pass 1]
    pub(super) initialised: Vec<u32>,
    /// Kind and flags of each inode, by number.
    inodes: Vec<u8>,
    /// Links that each inode counts.
    pub(super) links: Vec<u16>,
    /// Names that each inode has.
    names: Vec<u16>,
    /// Directories, by number.
    pub(super) dirs: Vec<Dir>,
    /// (directory, parent) for each name of a directory but the first.
    pub(super) other_names: Vec<(u32, u32)>,
    /// The block in which free fragments were found last.
    pub(super) rotor: u64,
    /// So many free fragments in a row are in no block.
    pub(super) too_many: u64,
    /// Which of the directories for what was lost has room.
    pub(super) lost_number: u32,
}

impl State {
    pub(super) fn new(volume: &Volume<'_>, mending: Mending, now: Timestamp) -> Self {
        let inodes = to_usize(volume.shape.inodes());
        Self {
            mending,
            now,
            report: CheckReport::default(),
            mended: 0,
            claimed: Bits::new(volume.shape.fragments),
            shared: Vec::new(),
            doubts: Vec::new(),
            initialised: Vec::new(),
            inodes: vec![0; inodes],
            links: vec![0; inodes],
            names: vec![0; inodes],
            dirs: Vec::new(),
            other_names: Vec::new(),
            rotor: 0,
            too_many: u64::MAX,
            lost_number: 0,
        }
    }

    /// Whether findings of a class are mended.
    pub(super) fn mends(&self, class: FindingClass) -> bool {
        match self.mending {
            Mending::Nothing => false,
            Mending::Allowed => class == FindingClass::Allowed,
            Mending::Everything => true,
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
        let mend = self.mends(class);
        self.mended += u64::from(mend);
        mend
    }

    /// Reports a finding that is mended, if its class is, by who asked before.
    pub(super) fn note(&mut self, class: FindingClass, code: &'static str, text: String) {
        self.report.push(class, code, text);
        self.mended += u64::from(self.mends(class));
    }

    /// Damage; true when it shall be mended now.
    #[must_use]
    pub(super) fn corrupt(&mut self, code: &'static str, text: impl Into<String>) -> bool {
        self.problem(FindingClass::Corrupt, code, text)
    }

    /// What a crash allows; true when it shall be mended now.
    #[must_use]
    pub(super) fn allowed(&mut self, code: &'static str, text: impl Into<String>) -> bool {
        self.problem(FindingClass::Allowed, code, text)
    }

    /// Mending something turned out to be impossible.
    pub(super) fn gave_up(&mut self) {
        self.mended -= 1;
    }

    /// Notes inode `ino` as one in use.
    pub(super) fn use_inode(&mut self, ino: u32, kind: FileKind, links: u16) {
        self.inodes[to_usize(ino)] = USED | kind_code(kind);
        self.links[to_usize(ino)] = links;
        if kind == FileKind::Directory {
            let at = self.dirs.partition_point(|dir| dir.ino < ino);
            self.dirs.insert(at, Dir { ino, dotdot: 0, parent: 0, children: 0 });
        }
    }

    /// Notes that directory `ino` has no length.
    pub(super) fn set_empty(&mut self, ino: u32) {
        self.inodes[to_usize(ino)] |= EMPTY;
    }

    pub(super) fn is_empty(&self, ino: u32) -> bool {
        self.inodes[to_usize(ino)] & EMPTY != 0
    }

    /// Notes that a path leads to directory `ino`; whether none was known before.
    pub(super) fn reach(&mut self, ino: u32) -> bool {
        let state = &mut self.inodes[to_usize(ino)];
        let before = *state & REACHED != 0;
        *state |= REACHED;
        !before
    }

    pub(super) fn is_reached(&self, ino: u32) -> bool {
        self.inodes.get(to_usize(ino)).is_some_and(|state| state & REACHED != 0)
    }

    /// Whether inode `ino` is one that names may lead to, and in use.
    pub(super) fn is_used(&self, ino: u32) -> bool {
        ino >= ROOT_INO && self.inodes.get(to_usize(ino)).is_some_and(|state| state & USED != 0)
    }

    /// The code of the kind of inode `ino`.
    pub(super) fn kind(&self, ino: u32) -> u8 {
        self.inodes[to_usize(ino)] & KIND
    }

    /// Whether inode `ino` is a directory in use.
    pub(super) fn is_dir(&self, ino: u32) -> bool {
        self.is_used(ino) && self.kind(ino) == DIRECTORY
    }

    /// Counts one more name of inode `ino`.
    pub(super) fn add_name(&mut self, ino: u32) {
        let count = &mut self.names[to_usize(ino)];
        *count = count.saturating_add(1);
    }

    /// Names of inode `ino` in directories that a path leads to.
    pub(super) fn names(&self, ino: u32) -> u16 {
        self.names[to_usize(ino)]
    }

    /// Whether a path leads to inode `ino`.
    pub(super) fn is_named(&self, ino: u32) -> bool {
        if self.is_dir(ino) { self.is_reached(ino) } else { self.names(ino) > 0 }
    }

    /// The place of directory `ino` in `dirs`.
    pub(super) fn dir_index(&self, ino: u32) -> Option<usize> {
        self.dirs.binary_search_by_key(&ino, |dir| dir.ino).ok()
    }

    /// The directory `ino`, if it is one.
    pub(super) fn dir_mut(&mut self, ino: u32) -> Option<&mut Dir> {
        let at = self.dir_index(ino)?;
        Some(&mut self.dirs[at])
    }
}
