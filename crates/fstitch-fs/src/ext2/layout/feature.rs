//! Feature bits: what this volume uses beyond the original format.
//!
//! *Compatible* features may be ignored by who only mounts (not by who frees what nothing seems to own: we refuse to
//! write where one is unknown), *read-only compatible* ones forbid writing to who does not know
//! them, *incompatible* ones forbid mounting.

use fstitch_core::{Error, Result};

/// Compatible features.
pub mod compat {
    /// Blocks are preallocated for directories (a hint).
    pub const DIR_PREALLOC: u32 = 0x1;
    /// Inodes for AFS servers.
    pub const IMAGIC_INODES: u32 = 0x2;
    /// There is a journal (ext3); when it is clean the volume is plain ext2.
    pub const HAS_JOURNAL: u32 = 0x4;
    /// Inodes may have extended attributes.
    pub const EXT_ATTR: u32 = 0x8;
    /// Inode 7 holds blocks reserved for growing the descriptor table.
    pub const RESIZE_INODE: u32 = 0x10;
    /// Directories may have hash-tree indexes.
    pub const DIR_INDEX: u32 = 0x20;
    /// Groups were left for later to initialise (an experiment, never in a released kernel).
    pub const LAZY_BG: u32 = 0x40;
    /// Inode 9 lists blocks that snapshots leave out.
    pub const EXCLUDE_INODE: u32 = 0x80;
    /// Each group has a bitmap of such blocks.
    pub const EXCLUDE_BITMAP: u32 = 0x100;
    /// Only two superblock backups.
    pub const SPARSE_SUPER2: u32 = 0x200;
    /// The journal's last blocks may become a second log, which its own superblock then says.
    pub const FAST_COMMIT: u32 = 0x400;
    /// Inode numbers and the volume's identifier stay what they are.
    pub const STABLE_INODES: u32 = 0x800;
    /// An inode without a name holds the numbers of unlinked inodes that are open.
    pub const ORPHAN_FILE: u32 = 0x1000;
}

/// Incompatible features.
pub mod incompat {
    /// Directory entries say what kind of inode they name.
    pub const FILETYPE: u32 = 0x2;
    /// The journal must be replayed before anything else.
    pub const RECOVER: u32 = 0x4;
    /// This is not a file system but a journal.
    pub const JOURNAL_DEV: u32 = 0x8;
    /// Descriptors are spread over the volume.
    pub const META_BG: u32 = 0x10;
    /// Inodes may map their blocks by extents.
    pub const EXTENTS: u32 = 0x40;
    /// Descriptors of 64 bytes, block numbers of 64 bits.
    pub const BIT64: u32 = 0x80;
    /// A block tells other machines that the volume is in use.
    pub const MMP: u32 = 0x100;
    /// Bitmaps and inode tables may lie in other groups.
    pub const FLEX_BG: u32 = 0x200;
    /// Values of attributes may have an inode of their own.
    pub const EA_INODE: u32 = 0x400;
    /// The seed of all sums is in the superblock, not the volume's identifier.
    pub const CSUM_SEED: u32 = 0x2000;
    /// Directories of 4 GiB and more, and indexes of three levels.
    pub const LARGE_DIR: u32 = 0x4000;
    /// Small files and directories lie in their inodes.
    pub const INLINE_DATA: u32 = 0x8000;
    /// Names and contents may be encrypted.
    pub const ENCRYPT: u32 = 0x1_0000;
    /// Names may be looked up whatever their case.
    pub const CASEFOLD: u32 = 0x2_0000;
}

/// Read-only compatible features.
pub mod ro_compat {
    /// Superblock backups only in groups 0, 1 and powers of 3, 5 and 7.
    pub const SPARSE_SUPER: u32 = 0x1;
    /// A file is 2 GiB or longer.
    pub const LARGE_FILE: u32 = 0x2;
    /// Never used; kept for old images.
    pub const BTREE_DIR: u32 = 0x4;
    /// The storage of a file is counted in 48 bits, and may be counted in blocks.
    pub const HUGE_FILE: u32 = 0x8;
    /// Descriptors have sums (CRC-16) and say which bitmaps and inodes were never written.
    pub const UNINIT_BG: u32 = 0x10;
    /// Directories of too many subdirectories count 1 link.
    pub const DIR_NLINK: u32 = 0x20;
    /// Inodes have space for nanoseconds and creation times.
    pub const EXTRA_ISIZE: u32 = 0x40;
    /// The usage of users and groups, and limits, are in inodes without names.
    pub const QUOTA: u32 = 0x100;
    /// Blocks are allocated in clusters.
    pub const BIGALLOC: u32 = 0x200;
    /// All metadata have sums (CRC-32C).
    pub const METADATA_CSUM: u32 = 0x400;
    /// Inodes belong to projects.
    pub const PROJECT: u32 = 0x2000;
    /// Files may be sealed with a tree of hashes.
    pub const VERITY: u32 = 0x8000;
    /// The orphan file may hold numbers.
    pub const ORPHAN_PRESENT: u32 = 0x1_0000;
}

/// Compatible features that we keep valid when we write and check, though we may not use them. The others own inodes or
/// blocks in ways that we do not know, or are not known at all: what they own would look like a leak.
/// `docs/spec/ext2.md` says of each why.
pub const COMPAT_KNOWN: u32 = compat::DIR_PREALLOC
    | compat::HAS_JOURNAL
    | compat::EXT_ATTR
    | compat::RESIZE_INODE
    | compat::DIR_INDEX
    | compat::FAST_COMMIT
    | compat::STABLE_INODES
    | compat::ORPHAN_FILE;
/// Incompatible features with which a volume may be read.
pub const INCOMPAT_READ: u32 = incompat::FILETYPE
    | incompat::META_BG
    | incompat::EXTENTS
    | incompat::BIT64
    | incompat::MMP
    | incompat::FLEX_BG
    | incompat::EA_INODE
    | incompat::CSUM_SEED
    | incompat::LARGE_DIR
    | incompat::INLINE_DATA
    | incompat::ENCRYPT
    | incompat::CASEFOLD;
/// Features without sums, extents and groups that were never written: those of ext2 and ext3, which tools that work without a mount
/// keep valid.
pub const PLAIN: Features = Features {
    compat: COMPAT_KNOWN,
    incompat: incompat::FILETYPE,
    ro_compat: ro_compat::SPARSE_SUPER
        | ro_compat::LARGE_FILE
        | ro_compat::BTREE_DIR
        | ro_compat::DIR_NLINK
        | ro_compat::EXTRA_ISIZE,
};
/// Features that a mount keeps valid, with a journal and without one (`docs/design/ext4-soft.md`). What is not in it forbids writing
/// by name.
pub const WRITTEN: Features = Features {
    compat: PLAIN.compat | compat::SPARSE_SUPER2,
    incompat: PLAIN.incompat
        | incompat::META_BG
        | incompat::EXTENTS
        | incompat::BIT64
        | incompat::MMP
        | incompat::FLEX_BG
        | incompat::CSUM_SEED
        | incompat::LARGE_DIR
        | incompat::INLINE_DATA
        | incompat::EA_INODE,
    ro_compat: PLAIN.ro_compat
        | ro_compat::HUGE_FILE
        | ro_compat::UNINIT_BG
        | ro_compat::BIGALLOC
        | ro_compat::METADATA_CSUM
        | ro_compat::QUOTA
        | ro_compat::PROJECT,
};

const COMPAT_NAMES: &[(u32, &str)] = &[
    (0x1, "dir_prealloc"),
    (0x2, "imagic_inodes"),
    (0x4, "has_journal"),
    (0x8, "ext_attr"),
    (0x10, "resize_inode"),
    (0x20, "dir_index"),
    (0x40, "lazy_bg"),
    (0x80, "exclude_inode"),
    (0x100, "snapshot_bitmap"),
    (0x200, "sparse_super2"),
    (0x400, "fast_commit"),
    (0x800, "stable_inodes"),
    (0x1000, "orphan_file"),
];

const INCOMPAT_NAMES: &[(u32, &str)] = &[
    (0x1, "compression"),
    (0x2, "filetype"),
    (0x4, "needs_recovery"),
    (0x8, "journal_dev"),
    (0x10, "meta_bg"),
    (0x40, "extent"),
    (0x80, "64bit"),
    (0x100, "mmp"),
    (0x200, "flex_bg"),
    (0x400, "ea_inode"),
    (0x1000, "dirdata"),
    (0x2000, "metadata_csum_seed"),
    (0x4000, "large_dir"),
    (0x8000, "inline_data"),
    (0x1_0000, "encrypt"),
    (0x2_0000, "casefold"),
];

const RO_COMPAT_NAMES: &[(u32, &str)] = &[
    (0x1, "sparse_super"),
    (0x2, "large_file"),
    (0x4, "btree_dir"),
    (0x8, "huge_file"),
    (0x10, "uninit_bg"),
    (0x20, "dir_nlink"),
    (0x40, "extra_isize"),
    (0x80, "has_snapshot"),
    (0x100, "quota"),
    (0x200, "bigalloc"),
    (0x400, "metadata_csum"),
    (0x800, "replica"),
    (0x1000, "read-only"),
    (0x2000, "project"),
    (0x4000, "shared_blocks"),
    (0x8000, "verity"),
    (0x1_0000, "orphan_present"),
];

/// The three feature words of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Features {
    /// Compatible.
    pub compat: u32,
    /// Incompatible.
    pub incompat: u32,
    /// Read-only compatible.
    pub ro_compat: u32,
}

impl Features {
    /// Refuses volumes that ask for what we do not know.
    ///
    /// # Errors
    /// `Unsupported`, naming the features.
    pub fn check_incompat(&self) -> Result<()> {
        if self.incompat & incompat::JOURNAL_DEV != 0 {
            return Err(Error::Unsupported("this is an external journal, not a file system".into()));
        }
        if self.incompat & incompat::RECOVER != 0 {
            return Err(Error::Unsupported(
                "the journal must be replayed first (feature needs_recovery): \
                 the volume was not unmounted cleanly by an ext3 system; mount it there or run e2fsck"
                    .into(),
            ));
        }
        match self.incompat & !INCOMPAT_READ {
            0 => Ok(()),
            unknown => Err(Error::Unsupported(format!(
                "incompatible feature {}",
                names(unknown, INCOMPAT_NAMES).join(", ")
            ))),
        }
    }

    /// Names of the features that allow only reading; empty when the volume may be written.
    #[must_use]
    pub fn read_only_because(&self) -> Vec<String> {
        let mut names = self.beyond(&WRITTEN).all_names();
        if self.has_ro_compat(ro_compat::QUOTA) && self.has_incompat(incompat::EA_INODE) {
            // Who refers to a value is charged for an inode that he does not have.
            names.push("quota (with ea_inode)".to_owned());
        }
        if self.has_ro_compat(ro_compat::QUOTA) && self.has_ro_compat(ro_compat::BIGALLOC) {
            // The files of quotas grow by single blocks.
            names.push("quota (with bigalloc)".to_owned());
        }
        names
    }

    /// Whether the volume has what only ext4 has, and a journal: nothing but that is expected to change it.
    #[must_use]
    pub fn is_journaled_ext4(&self) -> bool {
        self.compat & compat::HAS_JOURNAL != 0 && self.beyond(&PLAIN) != Self::default()
    }

    /// The name that people know a volume with these features by: with what only ext4 has it is that, else a journal makes ext2
    /// ext3.
    #[must_use]
    pub fn format_name(&self) -> &'static str {
        if self.beyond(&PLAIN) != Self::default() {
            "ext4"
        } else if self.compat & compat::HAS_JOURNAL != 0 {
            "ext3"
        } else {
            "ext2"
        }
    }

    /// What is set here and not in `known`.
    #[must_use]
    pub const fn beyond(&self, known: &Self) -> Self {
        Self {
            compat: self.compat & !known.compat,
            incompat: self.incompat & !known.incompat,
            ro_compat: self.ro_compat & !known.ro_compat,
        }
    }

    /// Whether all metadata have sums (`metadata_csum`).
    #[must_use]
    pub const fn has_sums(&self) -> bool {
        self.ro_compat & ro_compat::METADATA_CSUM != 0
    }

    /// Whether descriptors have sums and say what was never written (`metadata_csum` or `uninit_bg`).
    #[must_use]
    pub const fn has_group_sums(&self) -> bool {
        self.ro_compat & (ro_compat::METADATA_CSUM | ro_compat::UNINIT_BG) != 0
    }

    /// Whether the incompatible features `bits` are set.
    #[must_use]
    pub const fn has_incompat(&self, bits: u32) -> bool {
        self.incompat & bits == bits
    }

    /// Whether the read-only compatible features `bits` are set.
    #[must_use]
    pub const fn has_ro_compat(&self, bits: u32) -> bool {
        self.ro_compat & bits == bits
    }

    /// The names of all features, as `dumpe2fs` prints them.
    #[must_use]
    pub fn all_names(&self) -> Vec<String> {
        let mut all = names(self.compat, COMPAT_NAMES);
        all.extend(names(self.incompat, INCOMPAT_NAMES));
        all.extend(names(self.ro_compat, RO_COMPAT_NAMES));
        all
    }

    /// Sets (`on`) or clears the feature called `name`; false if there is none.
    #[must_use]
    pub fn set_by_name(&mut self, name: &str, on: bool) -> bool {
        for (word, table) in [
            (&mut self.compat, COMPAT_NAMES),
            (&mut self.incompat, INCOMPAT_NAMES),
            (&mut self.ro_compat, RO_COMPAT_NAMES),
        ] {
            if let Some((bit, _)) = table.iter().find(|(_, known)| *known == name) {
                if on {
                    *word |= bit;
                } else {
                    *word &= !bit;
                }
                return true;
            }
        }
        false
    }
}

fn names(word: u32, table: &[(u32, &str)]) -> Vec<String> {
    (0..u32::BITS)
        .map(|shift| 1 << shift)
        .filter(|bit| word & bit != 0)
        .map(|bit| {
            table
                .iter()
                .find(|(known, _)| *known == bit)
                .map_or_else(|| format!("{bit:#x}"), |(_, name)| (*name).to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_features_are_refused_by_name() {
        let dirdata = Features { incompat: 0x1002, ..Features::default() };
        assert!(dirdata.check_incompat().unwrap_err().to_string().contains("dirdata"));
        let odd = Features { incompat: 0x8000_0000, ..Features::default() };
        assert!(odd.check_incompat().unwrap_err().to_string().contains("0x80000000"));
        let dirty = Features { incompat: incompat::RECOVER, ..Features::default() };
        assert!(dirty.check_incompat().unwrap_err().to_string().contains("replayed"));
    }

    #[test]
    fn what_can_be_read_is_not_written_for_that() {
        let foreign = Features { incompat: 0x2_0002, ro_compat: 0x8003, ..Features::default() };
        assert!(foreign.check_incompat().is_ok());
        assert_eq!(foreign.read_only_because(), ["casefold", "verity"]);
        let plain = Features { ro_compat: 0x43, ..Features::default() };
        assert!(plain.read_only_because().is_empty());
        let extents = Features { incompat: 0x42, ..Features::default() };
        assert!(extents.read_only_because().is_empty() && !extents.is_journaled_ext4());
        let journaled = Features { compat: compat::HAS_JOURNAL, ..extents };
        assert!(journaled.is_journaled_ext4());
    }

    #[test]
    fn compatible_features_that_own_something_unknown_forbid_writing() {
        let known = Features { compat: COMPAT_KNOWN, ..Features::default() };
        assert!(known.read_only_because().is_empty());
        let others = ["imagic_inodes", "lazy_bg", "exclude_inode", "snapshot_bitmap"];
        for name in others {
            let mut features = known;
            assert!(features.set_by_name(name, true));
            assert_eq!(features.read_only_because(), [name]);
        }
        let unknown = Features { compat: 0x2000, ..Features::default() };
        assert_eq!(unknown.read_only_because(), ["0x2000"]);
    }

    #[test]
    fn a_volume_has_the_name_of_what_it_needs() {
        let mut features = PLAIN;
        features.compat = compat::DIR_INDEX;
        assert_eq!(features.format_name(), "ext2");
        assert!(features.set_by_name("has_journal", true));
        assert_eq!(features.format_name(), "ext3");
        for name in ["extent", "metadata_csum", "sparse_super2"] {
            let mut later = features;
            assert!(later.set_by_name(name, true));
            assert_eq!(later.format_name(), "ext4");
        }
    }

    #[test]
    fn names_round_trip() {
        let mut features = Features::default();
        for name in ["filetype", "sparse_super", "ext_attr"] {
            assert!(features.set_by_name(name, true));
        }
        assert_eq!(features.all_names(), ["ext_attr", "filetype", "sparse_super"]);
        assert!(features.set_by_name("ext_attr", false));
        assert_eq!(features.compat, 0);
        assert!(!features.set_by_name("no_such", true));
    }
}
