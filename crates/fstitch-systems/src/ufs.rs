//! UFS1 and UFS2 as systems under test.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use fstitch_core::num::to_usize;
use fstitch_core::{
    BlockDevice, CheckReport, Consistency, Error, FileSystem, FindingClass, ManualClock, RepairMode,
    RepairOptions, Result, Structure, Timestamp,
};
use fstitch_fs::arrange::{self, Arrangement};
use fstitch_fs::ufs::Ufs;
use fstitch_fs::ufs::check::{check_ufs, repair_ufs};
use fstitch_fs::ufs::layout::superblock::{Superblock, Version};
use fstitch_fs::ufs::mkfs::{MkfsOptions, Plan, mkfs};
use fstitch_fs::ufs::order::Order;
use fstitch_fs::uhfs::{AtimePolicy, LowLevelFs, Uhfs, UhfsOptions};
use fstitch_patch::{CacheOptions, Optimizations};

use fstitch_crashlab::medium::{Base, Image};
use fstitch_crashlab::{Mounted, Promise, STALE, Step, System, UnknownSystem};

/// When everything happens, so that a workload's images do not depend on the day.
const NOW: Timestamp = Timestamp { secs: 1_700_000_000, nanos: 0 };
/// The checker's finding on a volume that is not marked clean.
const NOT_CLEAN: &str = "superblock-not-clean";
/// The cache of a mount that only looks.
const LOOKING_CACHE_BYTES: usize = 16 << 20;

/// A UFS volume and how it is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UfsSystem {
    /// How changes are ordered: `soft`, `sync` or `async`.
    pub consistency: Consistency,
    /// Which of the two.
    pub version: Version,
    /// The order of bytes.
    pub order: Order,
    /// Size of the volume in KiB.
    pub size_kib: u32,
    /// Bytes of a block.
    pub block_size: u32,
    /// Bytes of a fragment.
    pub fragment_size: u32,
    /// Bytes of the volume for each inode.
    pub density: u32,
    /// The optimisations of the patch graph, as [`Optimizations::combination`] numbers them.
    pub combination: u8,
    /// The cache in KiB.
    pub cache_kib: u32,
    /// Bytes that one step of a large operation dirties.
    pub step_kib: u32,
}

impl Default for UfsSystem {
    fn default() -> Self {
        Self {
            consistency: Consistency::Soft,
            version: Version::Two,
            order: Order::Little,
            size_kib: 4096,
            block_size: 4096,
            fragment_size: 512,
            density: 16_384,
            combination: 15,
            cache_kib: 1024,
            step_kib: 1024,
        }
    }
}

/// What names look like.
pub const NAMES: &str = "ufs1-soft, ufs1be-soft, ufs2-soft or ufs2be-soft, or with sync or async, then any of -k4096 (size in KiB), -b4096, -f512 (bytes of blocks and fragments), -d16384 (bytes for an inode), -o15 (optimisations), -c1024, -s1024 (KiB of cache and step)";

/// The words of versions and orders.
const KINDS: [(&str, Version, Order); 4] = [
    ("ufs1", Version::One, Order::Little),
    ("ufs1be", Version::One, Order::Big),
    ("ufs2", Version::Two, Order::Little),
    ("ufs2be", Version::Two, Order::Big),
];

/// The system of this name.
pub fn named(name: &str) -> Option<Arc<dyn System>> {
    Some(Arc::new(name.parse::<UfsSystem>().ok()?))
}

impl fmt::Display for UfsSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = KINDS.iter().find(|(_, version, order)| (*version, *order) == (self.version, self.order));
        write!(f, "{}-{}", kind.map_or("ufs", |(name, ..)| name), self.consistency)?;
        for ((letter, value), (_, usual)) in self.parameters().into_iter().zip(Self::default().parameters()) {
            if value != usual {
                write!(f, "-{letter}{value}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for UfsSystem {
    type Err = UnknownSystem;

    fn from_str(text: &str) -> std::result::Result<Self, UnknownSystem> {
        Self::parse(text).ok_or_else(|| UnknownSystem::new(text, NAMES))
    }
}

impl UfsSystem {
    fn parameters(&self) -> [(char, u32); 7] {
        [
            ('k', self.size_kib),
            ('b', self.block_size),
            ('f', self.fragment_size),
            ('d', self.density),
            ('o', u32::from(self.combination)),
            ('c', self.cache_kib),
            ('s', self.step_kib),
        ]
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split('-');
        let kind = words.next()?;
        let (_, version, order) = KINDS.into_iter().find(|(name, ..)| *name == kind)?;
        let consistency: Consistency = words.next()?.parse().ok()?;
        let mut system = Self { consistency, version, order, ..Self::default() };
        for word in words {
            let (letter, value) = word.split_at_checked(1)?;
            let value: u32 = value.parse().ok()?;
            match letter {
                "k" => system.size_kib = value,
                "b" => system.block_size = value,
                "f" => system.fragment_size = value,
                "d" => system.density = value,
                "o" => system.combination = u8::try_from(value).ok()?,
                "c" => system.cache_kib = value,
                "s" => system.step_kib = value,
                _ => return None,
            }
        }
        let is_possible = !consistency.is_journaled()
            && consistency != Consistency::Shadow
            && (256..=1 << 20).contains(&system.size_kib)
            && system.combination < 16
            && (1..=1 << 20).contains(&system.cache_kib)
            && (1..=1 << 20).contains(&system.step_kib);
        let bytes = u64::from(system.size_kib) << 10;
        (is_possible && Plan::new(&system.mkfs_options(), bytes).is_ok()).then_some(system)
    }

    fn mkfs_options(&self) -> MkfsOptions {
        let mut options = MkfsOptions::new(self.version, [7, 9], NOW);
        options.order = self.order;
        options.block_size = Some(self.block_size);
        options.fragment_size = Some(self.fragment_size);
        options.bytes_per_inode = Some(self.density.into());
        options.soft_updates = true;
        options.min_free = 0;
        options
    }

    fn attach(&self, device: Arc<dyn BlockDevice>, cache: CacheOptions, fs: UhfsOptions) -> Result<Running> {
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(u64::try_from(NOW.secs).expect("after 1970")));
        let arrangement =
            Arrangement { consistency: Some(self.consistency), cache, fs, ..Arrangement::default() };
        let (fs, _) = arrange::open::<Ufs>(device, &arrangement, Arc::new(clock))?;
        Ok(Running { fs })
    }

    fn run(&self, device: Arc<dyn BlockDevice>) -> Result<Running> {
        let cache = CacheOptions {
            cache_size: kib(self.cache_kib),
            optimizations: Optimizations::combination(self.combination),
            ..CacheOptions::default()
        };
        // The laboratory reads everything after each operation and must change nothing by it.
        let atime = AtimePolicy::NoAtime;
        let fs = UhfsOptions { step_bytes: kib(self.step_kib), atime, ..UhfsOptions::default() };
        self.attach(device, cache, fs)
    }
}

fn kib(kib: u32) -> usize {
    to_usize(kib) << 10
}

/// A mounted volume.
struct Running {
    fs: Uhfs<Ufs>,
}

impl Mounted for Running {
    fn fs(&self) -> &dyn FileSystem {
        &self.fs
    }

    fn write_out(&self, choose: &mut dyn FnMut(Step) -> bool) -> Result<usize> {
        LowLevelFs::cache(self.fs.format()).step_blocks(&mut |block| choose(Step::Write(block)))
    }
}

impl System for UfsSystem {
    fn name(&self) -> String {
        self.to_string()
    }

    fn format(&self) -> Result<Arc<Base>> {
        let image = Image::new(Base::new(self.fragment_size, vec![STALE; kib(self.size_kib)]));
        mkfs(&image, &self.mkfs_options(), &mut |_, _| {})?;
        Ok(Base::new(self.fragment_size, image.bytes()))
    }

    fn promise(&self) -> Promise {
        Promise::Parts
    }

    fn mount(&self, device: Arc<dyn BlockDevice>) -> Result<Box<dyn Mounted>> {
        self.recover(Arc::clone(&device))?;
        Ok(Box::new(self.run(device)?))
    }

    fn open(&self, device: Arc<dyn BlockDevice>) -> Result<Box<dyn Mounted>> {
        let cache =
            CacheOptions { cache_size: LOOKING_CACHE_BYTES, read_only: true, ..CacheOptions::default() };
        let fs = UhfsOptions { read_only: true, ..UhfsOptions::default() };
        Ok(Box::new(self.attach(device, cache, fs)?))
    }

    fn check(&self, device: &Arc<dyn BlockDevice>) -> Result<CheckReport> {
        let mut report = check_ufs(&**device)?;
        // Whoever finds a volume marked clean looks no further.
        if report.total > 0 && report.findings.iter().all(|finding| finding.code != NOT_CLEAN) {
            let first = report.findings.first().map(|finding| finding.text.clone()).unwrap_or_default();
            report.push(
                FindingClass::Corrupt,
                "clean-with-findings",
                format!("it is marked clean, but {first}"),
            );
        }
        Ok(report)
    }

    /// A check that mends only what soft updates leave, as a mount does.
    fn recover(&self, device: Arc<dyn BlockDevice>) -> Result<()> {
        if !Superblock::read(&*device)?.is_unclean() {
            return Ok(());
        }
        let preen = RepairOptions { mode: RepairMode::Preen, now: NOW };
        let left = repair_ufs(&*device, preen)?.left;
        match left.findings.first() {
            None => Ok(()),
            Some(finding) => {
                let problem = format!("left by a check after a crash: {}: {}", finding.code, finding.text);
                Err(Error::corrupt(Structure::Volume, None, problem))
            }
        }
    }

    fn repair(&self, device: &Arc<dyn BlockDevice>) -> Result<CheckReport> {
        let options = RepairOptions { mode: RepairMode::Yes, now: NOW };
        Ok(repair_ufs(&**device, options)?.left)
    }
}
