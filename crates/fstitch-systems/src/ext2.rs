//! ext2, ext3 and ext4 as systems under test.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use fstitch_core::Consistency;
use fstitch_core::num::to_usize;
use fstitch_core::{
    BlockDevice, BlockNo, CheckReport, Error, FileSystem, FindingClass, Le, ManualClock, Partition, Result,
    Structure, Timestamp,
};
use fstitch_core::{RepairMode, RepairOptions};
use fstitch_fs::arrange::{self, Arrangement};
use fstitch_fs::ext2::check::{EXTENT_ACROSS_END, check_ext2, repair_ext2};
use fstitch_fs::ext2::layout::feature::compat;
use fstitch_fs::ext2::mkfs::{MkfsFeatures, MkfsJournal, MkfsOptions, mkfs};
use fstitch_fs::ext2::{Ext2, journal};
use fstitch_fs::uhfs::{AtimePolicy, LowLevelFs, Reclaimed, Uhfs, UhfsOptions};
use fstitch_patch::{CacheOptions, Optimizations};

use fstitch_crashlab::medium::{Base, Image};
use fstitch_crashlab::{Anatomy, Mounted, Promise, Reference, STALE, Step, System, UnknownSystem};

use crate::anatomy::Ext2Anatomy;
use crate::e2fsck::E2fsck;
use crate::{OfImage, peculiar};

/// When everything happens, so that a workload's images do not depend on the day.
const NOW: Timestamp = Timestamp { secs: 1_700_000_000, nanos: 0 };
/// The checker's finding on a volume that is not marked clean.
const NOT_CLEAN: &str = "superblock-not-clean";
/// Where the superblock is, in bytes, and in it the magic number.
const SUPERBLOCK_AT: u64 = 1024;
const MAGIC: (usize, u16) = (56, 0xef53);
/// Where it says which compatible features there are.
const COMPATIBLE_AT: usize = 92;
/// Real volumes are not as small as the laboratory's own.
const REAL_CACHE_KIB: u32 = 16 << 10;
/// The cache of a mount that only looks.
const LOOKING_CACHE_BYTES: usize = 16 << 20;

/// An ext2 volume and how it is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ext2System {
    /// How changes are ordered.
    pub consistency: Consistency,
    /// The volume has the features of ext4: extents, sums of metadata, flexible groups.
    pub is_ext4: bool,
    /// Metadata have sums, where the format knows them.
    pub sums: bool,
    /// Size of the volume in KiB.
    pub size_kib: u32,
    /// Block size in bytes.
    pub block_size: u32,
    /// Inode size in bytes.
    pub inode_size: u32,
    /// Inodes of the volume.
    pub inodes: u32,
    /// The optimisations of the patch graph, as [`Optimizations::combination`] numbers them.
    pub combination: u8,
    /// The cache in KiB.
    pub cache_kib: u32,
    /// Bytes that one step of a large operation dirties.
    pub step_kib: u32,
    /// What is peculiar about the volume, as the sum of 1 (no extended attributes yet), 2 (no large files yet), 4 (an index
    /// over `/d`), 8 (`/f` and `/g` share their attributes), 16 (what is in `/i` lies in its inodes), 32 (blocks are taken in
    /// clusters of four), 64 (a few blocks and inodes are free) and 128 (usage of several owners is counted).
    pub peculiar: u32,
    /// Blocks of the journal, for the mechanisms that keep one.
    pub journal_blocks: u32,
    /// 1: the journal is a device of its own, 0: a file of the volume. The medium then holds the volume and behind it
    /// that device: one power cut hits both, and each keeps or loses what was not flushed, block by block.
    pub external: u32,
}

impl Default for Ext2System {
    fn default() -> Self {
        Self {
            consistency: Consistency::Soft,
            is_ext4: false,
            sums: true,
            size_kib: 4096,
            block_size: 1024,
            inode_size: 128,
            inodes: 256,
            combination: 15,
            cache_kib: 1024,
            step_kib: 1024,
            peculiar: 0,
            journal_blocks: 1024,
            external: 0,
        }
    }
}

impl fmt::Display for Ext2System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.format_name(), self.consistency)?;
        if self.is_ext4 && !self.sums {
            write!(f, "-{NO_SUMS}")?;
        }
        let ours = self.parameters();
        let usual = Self { is_ext4: self.is_ext4, ..Self::default() };
        for ((letter, value), (_, default)) in ours.into_iter().zip(usual.sized().parameters()) {
            if value != default {
                write!(f, "-{letter}{value}")?;
            }
        }
        Ok(())
    }
}

/// The word of a volume of ext4 without sums.
const NO_SUMS: &str = "nosum";

/// What names look like.
pub const NAMES: &str = "ext2-soft, ext2-sync, ext2-async, ext3-ordered, ext3-metadata or ext3-full, ext4- with any of these, then any of -nosum (ext4 without sums of metadata), -k4096 (size in KiB), -b1024, -i128 (bytes of blocks and inodes), -n256 (inodes), -o15 (optimisations), -c1024, -s1024 (KiB of cache and step), -p0 (peculiarities), -j1024 (blocks of the journal), -x0 (1: the journal is a device of its own)";

/// The system of this name.
pub fn named(name: &str) -> Option<Arc<dyn System>> {
    Some(Arc::new(name.parse::<Ext2System>().ok()?))
}

/// The system of a volume that others have made.
pub fn of_image(image: &[u8], block_size: u32, consistency: Option<Consistency>) -> Option<OfImage> {
    let at = usize::try_from(SUPERBLOCK_AT).expect("it is small");
    let raw = image.get(at..at + 1024).filter(|raw| Le::u16(raw, MAGIC.0) == MAGIC.1)?;
    let journaled = Le::u32(raw, COMPATIBLE_AT) & compat::HAS_JOURNAL != 0;
    let suits = if journaled { Consistency::Ordered } else { Consistency::Soft };
    let consistency = consistency.unwrap_or(suits);
    if consistency.is_journaled() && !journaled {
        let why = "an ext2 volume has none: its writes were ordered by soft, sync or async";
        return Some(Err(format!("`{consistency}` is kept by a journal, and {why}")));
    }
    let Ok(size_kib) = u32::try_from(image.len() >> 10) else {
        return Some(Err("the image is larger than 4 TiB".to_owned()));
    };
    let system =
        Ext2System { size_kib, block_size, consistency, cache_kib: REAL_CACHE_KIB, ..Ext2System::default() };
    Some(Ok((Arc::new(system), consistency)))
}

impl FromStr for Ext2System {
    type Err = UnknownSystem;

    fn from_str(text: &str) -> std::result::Result<Self, UnknownSystem> {
        Self::parse(text).filter(Self::is_possible).ok_or_else(|| UnknownSystem::new(text, NAMES))
    }
}

impl Ext2System {
    fn parameters(&self) -> [(char, u32); 10] {
        [
            ('k', self.size_kib),
            ('b', self.block_size),
            ('i', self.inode_size),
            ('n', self.inodes),
            ('o', u32::from(self.combination)),
            ('c', self.cache_kib),
            ('s', self.step_kib),
            ('p', self.peculiar),
            ('j', self.journal_blocks),
            ('x', self.external),
        ]
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split('-');
        let format = words.next()?;
        let mut system = Self { is_ext4: format == "ext4", ..Self::default() }.sized();
        system.consistency = words.next()?.parse().ok()?;
        (format == system.format_name()).then_some(())?;
        for word in words {
            if word == NO_SUMS && system.is_ext4 {
                system.sums = false;
                continue;
            }
            let (letter, value) = word.split_at_checked(1)?;
            let value: u32 = value.parse().ok()?;
            match letter {
                "k" => system.size_kib = value,
                "b" => system.block_size = value,
                "i" => system.inode_size = value,
                "n" => system.inodes = value,
                "o" => system.combination = u8::try_from(value).ok()?,
                "c" => system.cache_kib = value,
                "s" => system.step_kib = value,
                "p" => system.peculiar = value,
                "j" => system.journal_blocks = value,
                "x" => system.external = value,
                _ => return None,
            }
        }
        Some(system)
    }

    fn is_possible(&self) -> bool {
        self.consistency != Consistency::Shadow
            && [1024, 2048, 4096].contains(&self.block_size)
            && [128, 256].contains(&self.inode_size)
            && (64..=1 << 20).contains(&self.size_kib)
            && (16..=1 << 16).contains(&self.inodes)
            && self.combination < 16
            && (1..=1 << 20).contains(&self.cache_kib)
            && (1..=1 << 20).contains(&self.step_kib)
            && self.peculiar <= peculiar::ALL
            && (self.is_ext4 && self.inode_size > 128 || self.peculiar & peculiar::INSIDE == 0)
            && self.has_clusters_rightly()
            && self.has_quotas_rightly()
            && (self.peculiar & peculiar::CROWDED == 0 || self.peculiar & peculiar::EDITED == 0)
            && (1024..=1 << 20).contains(&self.journal_blocks)
            && self.external <= u32::from(self.is_journaled())
            && (!self.is_ext4 || self.external == 0)
    }

    /// Clusters are of ext4 with a journal, and what is edited by hand is edited block by block.
    fn has_clusters_rightly(&self) -> bool {
        self.peculiar & peculiar::CLUSTERS == 0
            || self.is_ext4 && self.is_journaled() && self.peculiar & peculiar::EDITED == 0
    }

    /// Usage is written through a journal, inodes of 256 bytes have room for projects, and files of quotas have no clusters.
    fn has_quotas_rightly(&self) -> bool {
        self.peculiar & peculiar::QUOTAS == 0
            || self.is_journaled()
                && self.external == 0
                && self.inode_size > 128
                && self.peculiar & (peculiar::EDITED | peculiar::CLUSTERS) == 0
    }

    /// The sizes that suit the format: inodes of ext4 have room for all of their sums.
    #[must_use]
    pub fn sized(self) -> Self {
        Self { inode_size: if self.is_ext4 { 256 } else { self.inode_size }, ..self }
    }

    /// What people call such a volume.
    pub(crate) fn format_name(&self) -> &'static str {
        match (self.is_ext4, self.is_journaled()) {
            (true, _) => "ext4",
            (false, true) => "ext3",
            (false, false) => "ext2",
        }
    }

    pub(crate) fn is_journaled(&self) -> bool {
        self.consistency.is_journaled()
    }

    /// Bytes of the volume.
    fn volume_bytes(&self) -> usize {
        kib(self.size_kib)
    }

    /// Bytes of the journal's own device behind the volume; 0 without one.
    fn journal_bytes(&self) -> usize {
        let bytes = u64::from(self.journal_blocks) * u64::from(self.block_size * self.external);
        to_usize(bytes)
    }

    /// KiB of both.
    pub(crate) fn medium_kib(&self) -> u32 {
        u32::try_from((self.volume_bytes() + self.journal_bytes()) >> 10).expect("a few MiB")
    }

    /// The volume on a medium, and the journal's own device if there is one.
    pub(crate) fn split<D: BlockDevice + Clone>(
        &self,
        medium: &D,
    ) -> Result<(Partition<D>, Option<Partition<D>>)> {
        let blocks = medium.geometry().block_count;
        let behind = u64::from(self.journal_blocks * self.external).min(blocks);
        let volume = Partition::new(medium.clone(), BlockNo(0), blocks - behind)?;
        let journal = Partition::new(medium.clone(), BlockNo(blocks - behind), behind)?;
        Ok((volume, (behind > 0).then_some(journal)))
    }

    fn attach(&self, device: Arc<dyn BlockDevice>, cache: CacheOptions, fs: UhfsOptions) -> Result<Running> {
        let clock = Self::clock();
        let consistency = Some(self.consistency);
        let (volume, journal) = self.split(&device)?;
        let journal = journal.map(|journal| Arc::new(journal) as Arc<dyn BlockDevice>);
        let arrangement = Arrangement { consistency, journal, cache, fs, ..Arrangement::default() };
        let (fs, _) = arrange::open::<Ext2>(Arc::new(volume), &arrangement, Arc::new(clock))?;
        let unclean = fs.format().was_unclean();
        Ok(Running { fs, unclean })
    }

    /// How the file system is used when it works.
    pub(crate) fn uhfs_options(&self) -> UhfsOptions {
        // The laboratory reads everything after each operation and must change nothing by it.
        let atime = AtimePolicy::NoAtime;
        UhfsOptions { step_bytes: kib(self.step_kib), atime, ..UhfsOptions::default() }
    }

    /// The time, which stands still.
    pub(crate) fn clock() -> ManualClock {
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(u64::try_from(NOW.secs).expect("after 1970")));
        clock
    }

    pub(crate) fn run(&self, device: Arc<dyn BlockDevice>) -> Result<Running> {
        let options = CacheOptions {
            cache_size: kib(self.cache_kib),
            optimizations: Optimizations::combination(self.combination),
            ..CacheOptions::default()
        };
        self.replay(&*device)?;
        self.attach(device, options, self.uhfs_options())
    }

    /// Mounts to look.
    pub(crate) fn looking(&self, device: Arc<dyn BlockDevice>) -> Result<Running> {
        let options =
            CacheOptions { cache_size: LOOKING_CACHE_BYTES, read_only: true, ..CacheOptions::default() };
        let uhfs = UhfsOptions { read_only: true, ..UhfsOptions::default() };
        self.attach(device, options, uhfs)
    }

    /// Replays the journal of the volume on `device`, if it has one.
    pub(crate) fn replay(&self, device: &dyn BlockDevice) -> Result<()> {
        if self.is_journaled() {
            let (volume, journal) = self.split(&device)?;
            let options = &mut journal::Options {
                external: journal.as_ref().map(|journal| -> &dyn BlockDevice { journal }),
                now: NOW,
                for_reading: false,
                batch_max: journal::BATCH_MAX,
                progress: &mut |_| {},
            };
            journal::recover(&volume, options)?;
        }
        Ok(())
    }

    /// Checks the volume on `device`.
    pub(crate) fn look_over(&self, device: &dyn BlockDevice) -> Result<CheckReport> {
        let mut report = check_ext2(&self.split(&device)?.0)?;
        // Whoever finds a volume marked clean looks no further.
        if report.total > 0 && report.findings.iter().all(|finding| finding.code != NOT_CLEAN) {
            let first = report.findings.first().map(|finding| finding.text.clone()).unwrap_or_default();
            report.push(
                FindingClass::Corrupt,
                "clean-with-findings",
                format!("it is marked clean, but {first}"),
            );
        }
        // Allowed, for others leave it, but not by our orders.
        let across = report.findings.iter().find(|finding| finding.code == EXTENT_ACROSS_END);
        if let Some(text) = across.map(|finding| finding.text.clone())
            && self.consistency != Consistency::Async
        {
            report.push(FindingClass::Corrupt, "extent-left-across-end", text);
        }
        Ok(report)
    }

    /// A power cut alone leaves nothing that the reclaimer may take for damage, where any order is kept.
    pub(crate) fn expect_lawful(&self, done: &Reclaimed) -> Result<()> {
        let taken = match &done.refusal {
            Some(reason) => reason.clone(),
            None if done.kept > 0 => format!("{} inodes were taken for lost ones", done.kept),
            None => return Ok(()),
        };
        if self.consistency == Consistency::Async {
            return Ok(());
        }
        Err(Error::corrupt(Structure::Volume, None, taken))
    }

    /// Mends the volume on `device`, and returns what is left.
    pub(crate) fn mend(&self, device: &dyn BlockDevice) -> Result<CheckReport> {
        self.replay(device)?;
        let options = RepairOptions { mode: RepairMode::Yes, now: NOW };
        Ok(repair_ext2(&self.split(&device)?.0, options)?.left)
    }
}

fn kib(kib: u32) -> usize {
    to_usize(kib) << 10
}

/// A mounted volume.
pub(crate) struct Running {
    pub(crate) fs: Uhfs<Ext2>,
    /// The volume was not unmounted before.
    pub(crate) unclean: bool,
}

impl Mounted for Running {
    fn fs(&self) -> &dyn FileSystem {
        &self.fs
    }

    fn write_out(&self, choose: &mut dyn FnMut(Step) -> bool) -> Result<usize> {
        let cache = LowLevelFs::cache(self.fs.format());
        // When a transaction closes is as free as when a block is written.
        if cache.is_journaled() && choose(Step::Close(0)) {
            cache.close_transaction()?;
        }
        cache.step_blocks(&mut |block| choose(Step::Write(block)))
    }

    fn reclaim(&self) -> Result<()> {
        self.fs.reclaim().map(drop)
    }
}

impl System for Ext2System {
    fn name(&self) -> String {
        self.to_string()
    }

    fn format(&self) -> Result<Arc<Base>> {
        let bytes = self.volume_bytes() + self.journal_bytes();
        let image = Image::new(Base::new(self.block_size, vec![STALE; bytes]));
        let mut options = MkfsOptions::new([7; 16], [9; 16], NOW);
        options.block_size = Some(self.block_size);
        options.inode_size = Some(self.inode_size);
        options.inodes = Some(self.inodes);
        if self.is_ext4 {
            options.features = MkfsFeatures::EXT4;
            options.features.metadata_csum = self.sums;
            options.features.has_journal = self.is_journaled();
            if self.is_journaled() {
                // The journal as ext4 has it: a file of extents, with sums and numbers of 64 bits.
                options.journal = MkfsJournal::Blocks(self.journal_blocks);
            }
        }
        options.features.resize_inode = false;
        options.features.ext_attr = self.peculiar & peculiar::NO_ATTRIBUTES == 0;
        options.features.inline_data = self.peculiar & peculiar::INSIDE != 0;
        if self.peculiar & peculiar::CLUSTERS != 0 {
            options.features.bigalloc = true;
            options.cluster_size = Some(4 * self.block_size);
        }
        if self.peculiar & peculiar::CROWDED != 0 {
            options.reserved_percent = 0;
        }
        options.features.quota = self.peculiar & peculiar::QUOTAS != 0;
        options.features.project = options.features.quota;
        options.features.large_file = self.peculiar & peculiar::NO_LARGE_FILES == 0;
        let (volume, journal) = self.split(&&image)?;
        mkfs(&volume, &options, &mut |_, _| {})?;
        match journal {
            Some(device) => {
                let (block_size, uuid, label) = (self.block_size, [5; 16], Vec::new());
                let options = journal::DeviceOptions { block_size, uuid, label, now: NOW, is_zero: false };
                journal::make_device(&device, &options)?;
                journal::add_device(&volume, &device, 0)?;
            }
            None if self.is_journaled() && !self.is_ext4 => {
                let blocks = Some(self.journal_blocks);
                journal::add(&volume, journal::AddOptions { blocks, now: NOW, is_zero: false })?;
            }
            None => {}
        }
        if self.peculiar & peculiar::MADE == 0 {
            return Ok(Base::new(self.block_size, image.bytes()));
        }
        let image = Arc::new(image);
        let running = self.run(Arc::<Image>::clone(&image))?;
        let made = peculiar::populate(&running.fs, self.peculiar)?;
        running.fs.unmount()?;
        if self.peculiar & peculiar::QUOTAS != 0 {
            crate::owners::limit(&self.split(&&*image)?.0, NOW)?;
        }
        let mut bytes = image.bytes();
        peculiar::edit(&mut bytes, &made);
        let base = Base::new(self.block_size, bytes);
        if self.peculiar & peculiar::INSIDE == 0 {
            return Ok(base);
        }
        let image = Image::new(base);
        let left = self.mend(&image)?;
        assert_eq!(left.total, 0, "{:?}", left.findings);
        Ok(Base::new(self.block_size, image.bytes()))
    }

    fn before_mount(&self, device: &Arc<dyn BlockDevice>) -> Result<()> {
        self.replay(&**device)
    }

    fn promise(&self) -> Promise {
        match self.consistency {
            Consistency::Soft | Consistency::Async | Consistency::Sync => Promise::Parts,
            Consistency::Metadata => Promise::WholeWithoutContents,
            Consistency::Ordered => Promise::Whole,
            Consistency::Full | Consistency::Shadow => Promise::Exact,
        }
    }

    fn mount(&self, device: Arc<dyn BlockDevice>) -> Result<Box<dyn Mounted>> {
        Ok(Box::new(self.run(device)?))
    }

    fn open(&self, device: Arc<dyn BlockDevice>) -> Result<Box<dyn Mounted>> {
        Ok(Box::new(self.looking(device)?))
    }

    fn check(&self, device: &Arc<dyn BlockDevice>) -> Result<CheckReport> {
        self.look_over(&**device)
    }

    fn recover(&self, device: Arc<dyn BlockDevice>) -> Result<()> {
        if self.is_journaled() {
            return self.replay(&*device);
        }
        let running = self.run(device)?;
        if running.unclean {
            let done = running.fs.reclaim()?;
            self.expect_lawful(&done)?;
        }
        running.fs.unmount()
    }

    fn repair(&self, device: &Arc<dyn BlockDevice>) -> Result<CheckReport> {
        self.mend(&**device)
    }

    fn reference(&self) -> Option<Box<dyn Reference>> {
        let journal_at = (self.external > 0).then(|| self.volume_bytes());
        Some(Box::new(E2fsck { replays: self.is_journaled(), journal_at }))
    }

    /// Blocks, block size, UUID.
    fn identity(&self, block: u64, contents: &[u8]) -> Option<Vec<u8>> {
        let unit = u64::try_from(contents.len()).ok().filter(|unit| *unit > 0)?;
        let at = usize::try_from(SUPERBLOCK_AT % unit).ok()?;
        let raw = contents.get(at..at + 120).filter(|_| block == SUPERBLOCK_AT / unit)?;
        let is_ours = Le::u16(raw, MAGIC.0) == MAGIC.1;
        is_ours.then(|| [&raw[4..8], &raw[24..28], &raw[104..120]].concat())
    }

    fn anatomy(&self, newest: Image, oldest: Image) -> Option<Box<dyn Anatomy>> {
        let older = Ext2Anatomy::new(self, oldest);
        Some(Box::new(Ext2Anatomy::new(self, newest)?.with_older(older)))
    }
}
