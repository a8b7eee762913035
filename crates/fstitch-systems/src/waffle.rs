//! waffle as a system under test.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use fstitch_core::num::to_usize;
use fstitch_core::{BlockDevice, CheckReport, FileSystem, FindingClass, ManualClock, Result, Timestamp};
use fstitch_fs::uhfs::AtimePolicy;
use fstitch_fs::waffle::mkfs::{MkfsOptions, mkfs};
use fstitch_fs::waffle::{Options, Root, Waffle, check};
use fstitch_patch::{CacheOptions, Optimizations, Ordering};

use fstitch_crashlab::medium::{Base, Image};
use fstitch_crashlab::{Mounted, Promise, STALE, Step, System, UnknownSystem};

/// When everything happens, so that a workload's images do not depend on the day.
const NOW: Timestamp = Timestamp { secs: 1_700_000_000, nanos: 0 };
/// The cache of a mount that only looks.
const LOOKING_CACHE_BYTES: usize = 16 << 20;
const BLOCK: u32 = 4096;

/// A waffle volume and how it is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaffleSystem {
    /// The orders are kept. Without them the laboratory must find that a cut leaves nonsense.
    pub is_ordered: bool,
    /// Size of the volume in KiB.
    pub size_kib: u32,
    /// The optimisations of the patch graph, as [`Optimizations::combination`] numbers them.
    pub combination: u8,
    /// The cache in KiB.
    pub cache_kib: u32,
    /// What is written to its files is compressed.
    pub is_compressed: bool,
}

impl Default for WaffleSystem {
    fn default() -> Self {
        Self { is_ordered: true, size_kib: 4096, combination: 15, cache_kib: 1024, is_compressed: false }
    }
}

/// What names look like.
pub const NAMES: &str = "waffle-shadow, or waffle-async (no order: the one that must be found corrupt), then any of -k4096 (size in KiB), -o15 (optimisations), -c1024 (KiB of cache), -z1 (compressed)";

/// The system of this name.
pub fn named(name: &str) -> Option<Arc<dyn System>> {
    Some(Arc::new(name.parse::<WaffleSystem>().ok()?))
}

impl fmt::Display for WaffleSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "waffle-{}", if self.is_ordered { "shadow" } else { "async" })?;
        for ((letter, value), (_, usual)) in self.parameters().into_iter().zip(Self::default().parameters()) {
            if value != usual {
                write!(f, "-{letter}{value}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for WaffleSystem {
    type Err = UnknownSystem;

    fn from_str(text: &str) -> std::result::Result<Self, UnknownSystem> {
        Self::parse(text).ok_or_else(|| UnknownSystem::new(text, NAMES))
    }
}

impl WaffleSystem {
    fn parameters(&self) -> [(char, u32); 4] {
        [
            ('k', self.size_kib),
            ('o', u32::from(self.combination)),
            ('c', self.cache_kib),
            ('z', u32::from(self.is_compressed)),
        ]
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split('-');
        if words.next()? != "waffle" {
            return None;
        }
        let is_ordered = match words.next()? {
            "shadow" => true,
            "async" => false,
            _ => return None,
        };
        let mut system = Self { is_ordered, ..Self::default() };
        for word in words {
            let (letter, value) = word.split_at_checked(1)?;
            let value: u32 = value.parse().ok()?;
            match letter {
                "k" => system.size_kib = value,
                "o" => system.combination = u8::try_from(value).ok()?,
                "c" => system.cache_kib = value,
                "z" if value < 2 => system.is_compressed = value == 1,
                _ => return None,
            }
        }
        let is_possible = (512..=1 << 20).contains(&system.size_kib)
            && system.combination < 16
            && (1..=1 << 20).contains(&system.cache_kib);
        is_possible.then_some(system)
    }

    fn attach(device: Arc<dyn BlockDevice>, cache: CacheOptions, read_only: bool) -> Result<Running> {
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(u64::try_from(NOW.secs).expect("after 1970")));
        // The laboratory reads everything after each operation and must change nothing by it.
        let options = Options { atime: AtimePolicy::NoAtime, read_only, ..Options::default() };
        Ok(Running { fs: Waffle::mount(device, cache, Arc::new(clock), options)? })
    }
}

fn kib(kib: u32) -> usize {
    to_usize(kib) << 10
}

/// A mounted volume.
struct Running {
    fs: Arc<Waffle>,
}

impl Mounted for Running {
    fn fs(&self) -> &dyn FileSystem {
        &*self.fs
    }

    fn write_out(&self, choose: &mut dyn FnMut(Step) -> bool) -> Result<usize> {
        // When a root is made is as free as when a block is written.
        if self.fs.may_commit() && choose(Step::Close(0)) {
            self.fs.begin_commit()?;
        }
        self.fs.cache().step_blocks(&mut |block| choose(Step::Write(block)))
    }
}

impl System for WaffleSystem {
    fn name(&self) -> String {
        self.to_string()
    }

    fn format(&self) -> Result<Arc<Base>> {
        let image = Arc::new(Image::new(Base::new(BLOCK, vec![STALE; kib(self.size_kib)])));
        let options = MkfsOptions {
            uuid: [7; 16],
            label: Vec::new(),
            seed: 9,
            now: NOW,
            owner: (0, 0),
            blocks: None,
            is_compressed: self.is_compressed,
        };
        mkfs(Arc::clone(&image) as Arc<dyn BlockDevice>, &options)?;
        Ok(Base::new(BLOCK, image.bytes()))
    }

    fn promise(&self) -> Promise {
        Promise::Exact
    }

    fn mount(&self, device: Arc<dyn BlockDevice>) -> Result<Box<dyn Mounted>> {
        let cache = CacheOptions {
            cache_size: kib(self.cache_kib),
            optimizations: Optimizations::combination(self.combination),
            ordering: if self.is_ordered { Ordering::Kept } else { Ordering::Dropped },
            ..CacheOptions::default()
        };
        Ok(Box::new(Self::attach(device, cache, false)?))
    }

    fn open(&self, device: Arc<dyn BlockDevice>) -> Result<Box<dyn Mounted>> {
        let cache =
            CacheOptions { cache_size: LOOKING_CACHE_BYTES, read_only: true, ..CacheOptions::default() };
        Ok(Box::new(Self::attach(device, cache, true)?))
    }

    fn check(&self, device: &Arc<dyn BlockDevice>) -> Result<CheckReport> {
        let mut report = check::check(Arc::clone(device))?;
        if let Err(error) = Root::read(&**device) {
            report.push(FindingClass::Corrupt, "no-root", error.to_string());
        }
        Ok(report)
    }

    /// A mount frees what has lost its names and was in use; nothing else is to be done.
    fn recover(&self, device: Arc<dyn BlockDevice>) -> Result<()> {
        let cache = CacheOptions { cache_size: LOOKING_CACHE_BYTES, ..CacheOptions::default() };
        Self::attach(device, cache, false)?.fs.unmount()
    }

    fn repair(&self, device: &Arc<dyn BlockDevice>) -> Result<CheckReport> {
        check::check(Arc::clone(device))
    }
}
