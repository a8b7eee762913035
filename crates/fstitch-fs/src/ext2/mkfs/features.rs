//! Which features a new volume has, by their names.

use fstitch_core::{Error, Result};

use crate::ext2::layout::feature::{Features, PLAIN, compat, incompat, ro_compat};

/// The features that a volume may have; without any choice those that `mke2fs -t ext2` gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent feature bit of the format")]
pub struct MkfsFeatures {
    /// There is a journal, or will be as soon as the volume is made. Makes none: that is
    /// [`MkfsOptions::journal`](super::MkfsOptions::journal).
    pub has_journal: bool,
    /// Extended attributes.
    pub ext_attr: bool,
    /// Reserved descriptor blocks, so that the volume can grow. Needs `sparse_super`, and excludes `meta_bg`.
    pub resize_inode: bool,
    /// Directories may have hash trees.
    pub dir_index: bool,
    /// Superblock copies in two groups only, the second and the last.
    pub sparse_super2: bool,
    /// The journal has room for fast commits behind its log. Needs a journal.
    pub fast_commit: bool,
    /// Inode numbers and UUID never change.
    pub stable_inodes: bool,
    /// Unlinked inodes that are open are noted in a file. Needs a journal.
    pub orphan_file: bool,
    /// Directory entries carry the kind of what they name.
    pub filetype: bool,
    /// Descriptors are spread over the volume.
    pub meta_bg: bool,
    /// Files are mapped by extents.
    pub extent: bool,
    /// Descriptors of 64 bytes.
    pub bit64: bool,
    /// A block tells other machines that the volume is in use.
    pub mmp: bool,
    /// Bitmaps and inode tables of several groups lie together.
    pub flex_bg: bool,
    /// Values of attributes may be inodes.
    pub ea_inode: bool,
    /// Checksums do not begin with the UUID. Needs `metadata_csum`.
    pub metadata_csum_seed: bool,
    /// Directories may be longer, and their indexes deeper.
    pub large_dir: bool,
    /// Small files may lie in their inodes. Needs inodes of 256 bytes or more.
    pub inline_data: bool,
    /// Superblock copies in some groups only.
    pub sparse_super: bool,
    /// Files of 2 GiB and more.
    pub large_file: bool,
    /// Files of 2 TiB and more.
    pub huge_file: bool,
    /// Groups may be left uninitialised, and descriptors have checksums; `metadata_csum` includes it.
    pub uninit_bg: bool,
    /// Directories of too many subdirectories count one link.
    pub dir_nlink: bool,
    /// Inodes have room for nanoseconds.
    pub extra_isize: bool,
    /// Blocks are taken in clusters. Needs `extent`.
    pub bigalloc: bool,
    /// What users and groups have is counted, and limited. Changing such a volume needs a journal.
    pub quota: bool,
    /// All metadata have checksums.
    pub metadata_csum: bool,
    /// Inodes belong to projects; with `quota`, what these have is counted too. Needs inodes of 256 bytes or more.
    pub project: bool,
}

/// A feature: its name, where it is switched here, and its bit.
type Known = (&'static str, fn(&mut MkfsFeatures) -> &mut bool, Word);

/// A bit in one of a superblock's three words of features.
#[derive(Clone, Copy)]
enum Word {
    Compat(u32),
    Incompat(u32),
    RoCompat(u32),
}

impl Word {
    fn add_to(self, words: &mut Features) {
        match self {
            Self::Compat(bit) => words.compat |= bit,
            Self::Incompat(bit) => words.incompat |= bit,
            Self::RoCompat(bit) => words.ro_compat |= bit,
        }
    }
}

/// Everything that we can make, in the order of the bits.
const KNOWN: [Known; 28] = [
    ("has_journal", |f| &mut f.has_journal, Word::Compat(compat::HAS_JOURNAL)),
    ("ext_attr", |f| &mut f.ext_attr, Word::Compat(compat::EXT_ATTR)),
    ("resize_inode", |f| &mut f.resize_inode, Word::Compat(compat::RESIZE_INODE)),
    ("dir_index", |f| &mut f.dir_index, Word::Compat(compat::DIR_INDEX)),
    ("sparse_super2", |f| &mut f.sparse_super2, Word::Compat(compat::SPARSE_SUPER2)),
    ("fast_commit", |f| &mut f.fast_commit, Word::Compat(compat::FAST_COMMIT)),
    ("stable_inodes", |f| &mut f.stable_inodes, Word::Compat(compat::STABLE_INODES)),
    ("orphan_file", |f| &mut f.orphan_file, Word::Compat(compat::ORPHAN_FILE)),
    ("filetype", |f| &mut f.filetype, Word::Incompat(incompat::FILETYPE)),
    ("meta_bg", |f| &mut f.meta_bg, Word::Incompat(incompat::META_BG)),
    ("extent", |f| &mut f.extent, Word::Incompat(incompat::EXTENTS)),
    ("64bit", |f| &mut f.bit64, Word::Incompat(incompat::BIT64)),
    ("mmp", |f| &mut f.mmp, Word::Incompat(incompat::MMP)),
    ("flex_bg", |f| &mut f.flex_bg, Word::Incompat(incompat::FLEX_BG)),
    ("ea_inode", |f| &mut f.ea_inode, Word::Incompat(incompat::EA_INODE)),
    ("metadata_csum_seed", |f| &mut f.metadata_csum_seed, Word::Incompat(incompat::CSUM_SEED)),
    ("large_dir", |f| &mut f.large_dir, Word::Incompat(incompat::LARGE_DIR)),
    ("inline_data", |f| &mut f.inline_data, Word::Incompat(incompat::INLINE_DATA)),
    ("sparse_super", |f| &mut f.sparse_super, Word::RoCompat(ro_compat::SPARSE_SUPER)),
    ("large_file", |f| &mut f.large_file, Word::RoCompat(ro_compat::LARGE_FILE)),
    ("huge_file", |f| &mut f.huge_file, Word::RoCompat(ro_compat::HUGE_FILE)),
    ("uninit_bg", |f| &mut f.uninit_bg, Word::RoCompat(ro_compat::UNINIT_BG)),
    ("dir_nlink", |f| &mut f.dir_nlink, Word::RoCompat(ro_compat::DIR_NLINK)),
    ("extra_isize", |f| &mut f.extra_isize, Word::RoCompat(ro_compat::EXTRA_ISIZE)),
    ("quota", |f| &mut f.quota, Word::RoCompat(ro_compat::QUOTA)),
    ("bigalloc", |f| &mut f.bigalloc, Word::RoCompat(ro_compat::BIGALLOC)),
    ("metadata_csum", |f| &mut f.metadata_csum, Word::RoCompat(ro_compat::METADATA_CSUM)),
    ("project", |f| &mut f.project, Word::RoCompat(ro_compat::PROJECT)),
];

impl MkfsFeatures {
    /// No feature at all: what revision 0 of the format can have.
    pub const NONE: Self = Self {
        has_journal: false,
        ext_attr: false,
        resize_inode: false,
        dir_index: false,
        sparse_super2: false,
        fast_commit: false,
        stable_inodes: false,
        orphan_file: false,
        filetype: false,
        meta_bg: false,
        extent: false,
        bit64: false,
        mmp: false,
        flex_bg: false,
        ea_inode: false,
        metadata_csum_seed: false,
        large_dir: false,
        inline_data: false,
        sparse_super: false,
        large_file: false,
        huge_file: false,
        uninit_bg: false,
        dir_nlink: false,
        extra_isize: false,
        bigalloc: false,
        quota: false,
        metadata_csum: false,
        project: false,
    };

    /// Those of ext2: what all kinds have.
    pub const EXT2: Self = Self {
        ext_attr: true,
        resize_inode: true,
        dir_index: true,
        filetype: true,
        sparse_super: true,
        large_file: true,
        ..Self::NONE
    };

    /// Those of ext4: what `mke2fs -t ext4` has given since version 1.43. Some distributions add `metadata_csum_seed` and
    /// `orphan_file`, with which older systems cannot use the volume.
    pub const EXT4: Self = Self {
        has_journal: true,
        extent: true,
        bit64: true,
        flex_bg: true,
        huge_file: true,
        dir_nlink: true,
        extra_isize: true,
        metadata_csum: true,
        ..Self::EXT2
    };

    /// Applies a list such as `^dir_index,resize_inode`; a caret, minus or nothing/plus switches off or on.
    ///
    /// # Errors
    /// [`Error::Unsupported`] names the first feature that we cannot make.
    pub fn apply(&mut self, list: &str) -> Result<()> {
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let off = word.starts_with(['^', '-']);
            let name = match word.trim_start_matches(['^', '-', '+']) {
                "none" => {
                    *self = Self::NONE;
                    continue;
                }
                // As mke2fs calls them too.
                "extents" => "extent",
                "uninit_groups" => "uninit_bg",
                name => name,
            };
            let Some((_, switch, _)) = KNOWN.iter().find(|(known, ..)| *known == name) else {
                return Err(Error::Unsupported(format!("making a volume with feature {name}")));
            };
            *switch(self) = !off;
        }
        Ok(())
    }

    /// The names of all features that can be made.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        KNOWN.iter().map(|(name, ..)| *name).collect()
    }

    /// Whether there is one that only ext4 has.
    #[must_use]
    pub fn is_of_ext4(self) -> bool {
        self.words().format_name() == "ext4"
    }

    /// The words of the superblock. A journal is not in them: who makes one says so.
    pub(super) fn words(mut self) -> Features {
        self.has_journal = false;
        let mut words = Features::default();
        for (_, switch, word) in KNOWN {
            if *switch(&mut self) {
                word.add_to(&mut words);
            }
        }
        words
    }

    /// The names of those features that neither we give new volumes nor mean anything to who changes one that nobody has open.
    pub(in crate::ext2) fn foreign(features: &Features) -> Vec<String> {
        let mut known = PLAIN;
        for (_, _, word) in KNOWN {
            word.add_to(&mut known);
        }
        features.beyond(&known).all_names()
    }

    /// Groups may be uninitialised, and their descriptors have checksums.
    pub(super) fn has_group_sums(&self) -> bool {
        self.metadata_csum || self.uninit_bg
    }

    /// What follows from the features that were asked for, with inodes of `inode_size` bytes.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for what excludes each other.
    pub(super) fn settled(mut self, inode_size: u64) -> Result<Self> {
        let refuse = |text: &str| Err(Error::Unsupported(text.to_owned()));
        if self.metadata_csum_seed && !self.metadata_csum {
            return refuse("feature metadata_csum_seed without metadata_csum");
        }
        if self.bit64 && !self.extent {
            return refuse("feature 64bit without extent: `^64bit` switches it off");
        }
        if self.bigalloc && !self.extent {
            return refuse("feature bigalloc without extent");
        }
        if self.orphan_file && !self.has_journal {
            return refuse("feature orphan_file without a journal");
        }
        if self.fast_commit && !self.has_journal {
            return refuse("feature fast_commit without a journal");
        }
        if self.inline_data && inode_size < 256 {
            return refuse("feature inline_data with inodes of 128 bytes");
        }
        if self.project && inode_size < 256 {
            return refuse("feature project with inodes of 128 bytes");
        }
        if self.quota && self.ea_inode {
            return refuse("features quota and ea_inode at once");
        }
        if self.quota && self.bigalloc {
            return refuse("features quota and bigalloc at once");
        }
        if self.meta_bg && self.resize_inode {
            return refuse(
                "features meta_bg and resize_inode at once: `^resize_inode` switches the latter off",
            );
        }
        // Checksums of all metadata include those of descriptors, in another form.
        self.uninit_bg &= !self.metadata_csum;
        // The list of copies in a reserved descriptor block has room for few groups only.
        self.resize_inode &= self.sparse_super;
        Ok(self)
    }
}

impl Default for MkfsFeatures {
    fn default() -> Self {
        Self::EXT2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_switch_features_on_and_off() {
        let mut features = MkfsFeatures::default();
        features.apply("^dir_index, -resize_inode").unwrap();
        assert!(!features.dir_index && !features.resize_inode && features.filetype);
        features.apply("none,+filetype").unwrap();
        assert_eq!(features, MkfsFeatures { filetype: true, ..MkfsFeatures::NONE });
        features.apply("64bit,extents").unwrap();
        assert!(features.bit64 && features.extent);
        for name in ["casefold", "wings", "encrypt"] {
            assert!(features.apply(name).unwrap_err().to_string().contains(name));
        }
    }

    #[test]
    fn each_name_has_the_bit_that_others_know_it_by() {
        for name in MkfsFeatures::names() {
            let mut features = MkfsFeatures::NONE;
            features.apply(name).unwrap();
            let expected: &[&str] = if name == "has_journal" { &[] } else { &[name] };
            assert_eq!(features.words().all_names(), expected);
        }
    }

    #[test]
    fn what_excludes_each_other_is_refused_by_name() {
        for (list, named) in [
            ("^metadata_csum,metadata_csum_seed", "metadata_csum_seed"),
            ("^has_journal,orphan_file", "orphan_file"),
            ("^has_journal,fast_commit", "fast_commit"),
            ("^extent", "64bit"),
            ("^extent,^64bit,bigalloc", "bigalloc"),
            ("quota,ea_inode", "quota"),
            ("quota,bigalloc", "quota"),
            ("meta_bg", "resize_inode"),
        ] {
            let mut features = MkfsFeatures::EXT4;
            features.apply(list).unwrap();
            assert!(features.settled(256).unwrap_err().to_string().contains(named), "{list}");
        }
        let inline = MkfsFeatures { inline_data: true, ..MkfsFeatures::EXT4 };
        assert!(inline.settled(128).is_err() && inline.settled(256).is_ok());
    }
}
