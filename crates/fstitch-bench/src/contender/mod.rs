//! Who is measured: each is made anew on the same image for every run, and taken away afterwards.

mod process;
mod start;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use fstitch_core::Consistency;

use crate::meter::Device;
use crate::place::Place;
use crate::workload::FOUND;

/// A file system in one arrangement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Contender {
    /// Featherstitch as people get it: `fstitch mount` without any option.
    Defaults,
    /// The same, but idle processors are left alone (`awake=off`): what keeping them awake costs and brings.
    LeftAlone,
    /// Featherstitch, mounted through FUSE.
    Mounted(Consistency),
    /// Featherstitch in the process that uses it.
    InProcess(Consistency),
    /// A file system in memory behind the same front end: the limit of FUSE.
    Memory,
    /// BPFS on the image, as `fstitch mount` has it: each operation waits for the medium.
    Bpfs,
    /// BPFS in memory, behind the same front end.
    BpfsMemory,
    /// Soft updates, mounted through `/dev/fuse` where other mounts of ours use io_uring.
    DeviceSoft,
    /// The file system in memory, in the same way.
    DeviceMemory,
    /// Mounted with the kernel's write-back cache (`writeback_cache`), which leaves no patchgroups.
    Cached(Consistency),
    /// `ordered` on a volume that follows a policy of this name.
    Following(&'static str),
    /// The reference implementation's own FUSE server.
    Fuse2fs,
    /// On ext4, with the features that mke2fs gives it.
    Ext4(Way),
    /// UFS2 with soft updates.
    Ufs(Side),
    /// Waffle.
    Waffle(Side),
    /// The kernel's driver.
    Kernel(Kernel),
    /// The kernel's memory, without any format: the limit of the system calls.
    Tmpfs,
}

/// The policies that are raced: those of \[C\] that one disk can follow, and what is recommended for a laptop.
const POLICIES: [&str; 8] =
    ["propagate", "checksum", "sanity", "parity", "mirror-near", "mirror-far", "defence-in-depth", "laptop"];

/// How a volume of ext4 is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// `fstitch mount` without any option.
    Defaults,
    /// `fstitch mount`, `ordered`.
    Mounted,
    /// In the process that uses it, `ordered`.
    InProcess,
    /// fuse2fs, which does not use the journal.
    Fuse2fs,
}

/// From where a volume is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Through `fstitch mount`.
    Mounted,
    /// In the process that uses it.
    InProcess,
}

/// What the kernel's driver is asked to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// No journal, no order.
    Ext2,
    /// `data=ordered`.
    Ext3Ordered,
    /// `data=journal`.
    Ext3Journal,
    /// The defaults of ext4.
    Ext4,
}

impl Contender {
    /// All of them, in the order of reports.
    pub const ALL: [Self; 40] = [
        Self::Defaults,
        Self::LeftAlone,
        Self::Mounted(Consistency::Soft),
        Self::Mounted(Consistency::Ordered),
        Self::Mounted(Consistency::Full),
        Self::Mounted(Consistency::Async),
        Self::Mounted(Consistency::Sync),
        Self::InProcess(Consistency::Soft),
        Self::InProcess(Consistency::Ordered),
        Self::InProcess(Consistency::Full),
        Self::InProcess(Consistency::Async),
        Self::InProcess(Consistency::Sync),
        Self::Memory,
        Self::Bpfs,
        Self::BpfsMemory,
        Self::DeviceSoft,
        Self::DeviceMemory,
        Self::Cached(Consistency::Soft),
        Self::Cached(Consistency::Ordered),
        Self::Following(POLICIES[0]),
        Self::Following(POLICIES[1]),
        Self::Following(POLICIES[2]),
        Self::Following(POLICIES[3]),
        Self::Following(POLICIES[4]),
        Self::Following(POLICIES[5]),
        Self::Following(POLICIES[6]),
        Self::Following(POLICIES[7]),
        Self::Ext4(Way::Defaults),
        Self::Ext4(Way::Mounted),
        Self::Ext4(Way::InProcess),
        Self::Ufs(Side::Mounted),
        Self::Ufs(Side::InProcess),
        Self::Waffle(Side::Mounted),
        Self::Waffle(Side::InProcess),
        Self::Fuse2fs,
        Self::Ext4(Way::Fuse2fs),
        Self::Kernel(Kernel::Ext2),
        Self::Kernel(Kernel::Ext3Ordered),
        Self::Kernel(Kernel::Ext3Journal),
        Self::Kernel(Kernel::Ext4),
    ];

    /// Its name in results.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Defaults => "defaults".into(),
            Self::LeftAlone => "defaults-asleep".into(),
            Self::Mounted(mode) => format!("fuse-{mode}"),
            Self::InProcess(mode) => format!("in-{mode}"),
            Self::Memory => "fuse-memory".into(),
            Self::Bpfs => "fuse-bpfs".into(),
            Self::BpfsMemory => "fuse-bpfs-memory".into(),
            Self::DeviceSoft => "device-soft".into(),
            Self::DeviceMemory => "device-memory".into(),
            Self::Cached(mode) => format!("cached-{mode}"),
            Self::Following(policy) => format!("policy-{policy}"),
            Self::Fuse2fs => "fuse2fs".into(),
            Self::Ext4(Way::Defaults) => "defaults-ext4".into(),
            Self::Ext4(Way::Mounted) => "fuse-ext4".into(),
            Self::Ext4(Way::InProcess) => "in-ext4".into(),
            Self::Ext4(Way::Fuse2fs) => "fuse2fs-ext4".into(),
            Self::Ufs(Side::Mounted) => "fuse-ufs2".into(),
            Self::Ufs(Side::InProcess) => "in-ufs2".into(),
            Self::Waffle(Side::Mounted) => "fuse-waffle".into(),
            Self::Waffle(Side::InProcess) => "in-waffle".into(),
            Self::Kernel(Kernel::Ext2) => "kernel-ext2".into(),
            Self::Kernel(Kernel::Ext3Ordered) => "kernel-ext3-ordered".into(),
            Self::Kernel(Kernel::Ext3Journal) => "kernel-ext3-journal".into(),
            Self::Kernel(Kernel::Ext4) => "kernel-ext4".into(),
            Self::Tmpfs => "tmpfs".into(),
        }
    }

    /// The contender of a name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().chain([Self::Tmpfs]).find(|one| one.name() == name)
    }

    /// Survives the plug being pulled at any moment: an order is kept, and the device's cache is flushed.
    #[must_use]
    pub fn is_safe(self) -> bool {
        match self {
            Self::Mounted(mode) | Self::InProcess(mode) | Self::Cached(mode) => mode != Consistency::Async,
            Self::Kernel(kernel) => kernel != Kernel::Ext2,
            Self::Ext4(way) => way != Way::Fuse2fs,
            Self::Defaults | Self::LeftAlone | Self::Bpfs | Self::DeviceSoft | Self::Following(_) => true,
            Self::Ufs(_) | Self::Waffle(_) => true,
            Self::Memory | Self::BpfsMemory | Self::DeviceMemory | Self::Fuse2fs | Self::Tmpfs => false,
        }
    }

    /// Whether it is there to compare `/dev/fuse` with io_uring.
    #[must_use]
    pub fn is_by_device(self) -> bool {
        matches!(self, Self::DeviceSoft | Self::DeviceMemory)
    }

    /// Whether it races only when it is named: BPFS has tables of its own.
    #[must_use]
    pub fn is_asked_for(self) -> bool {
        matches!(self, Self::Bpfs | Self::BpfsMemory)
    }

    /// Whether it takes part in a workload: what compares transports or caches does so where a goal asks for it, and on the machine as it
    /// is found those race whom people choose from.
    #[must_use]
    pub fn takes_part(self, workload: &str) -> bool {
        const TRANSPORTS: [&str; 6] =
            ["small", "small-pinned", "small-halted", "tree", "creates", "creates-halted"];
        const CACHED: [&str; 6] = ["small", "tree", "postmark", "mail", "creates", "stream"];
        if FOUND.contains(&workload) {
            return matches!(
                self,
                Self::Defaults
                    | Self::LeftAlone
                    | Self::Fuse2fs
                    | Self::Ext4(Way::Defaults | Way::Fuse2fs)
                    | Self::Kernel(Kernel::Ext2 | Kernel::Ext3Ordered)
            );
        }
        match self {
            Self::Defaults | Self::LeftAlone | Self::Ext4(Way::Defaults) => false,
            Self::DeviceSoft | Self::DeviceMemory => TRANSPORTS.contains(&workload),
            Self::Cached(Consistency::Soft) => CACHED.contains(&workload),
            Self::Cached(_) => workload == "postmark",
            Self::Following(_) => ["postmark", "tree"].contains(&workload),
            _ => true,
        }
    }

    /// Whether it uses the medium at all.
    #[must_use]
    pub fn has_medium(self) -> bool {
        !matches!(self, Self::Memory | Self::BpfsMemory | Self::DeviceMemory | Self::Tmpfs)
    }

    /// Whether programs can be run in it.
    #[must_use]
    pub fn is_mounted(self) -> bool {
        !self.is_inside()
    }

    /// Whether it is a volume of ours in this process.
    #[must_use]
    pub fn is_inside(self) -> bool {
        matches!(
            self,
            Self::InProcess(_)
                | Self::Ext4(Way::InProcess)
                | Self::Ufs(Side::InProcess)
                | Self::Waffle(Side::InProcess)
        )
    }

    /// Whether it is one of ours in the conventional, synchronous mode, which takes long.
    #[must_use]
    pub fn is_synchronous(self) -> bool {
        matches!(self, Self::Mounted(Consistency::Sync) | Self::InProcess(Consistency::Sync))
    }

    /// The format of its image, if `fstitch mkfs` makes it.
    #[must_use]
    pub fn own_format(self) -> Option<&'static str> {
        match self {
            Self::Bpfs => Some("bpfs"),
            Self::Ufs(_) => Some("ufs2"),
            Self::Waffle(_) => Some("waffle"),
            _ => None,
        }
    }

    /// The format of its image, for `mke2fs -t`; `None` where there is none.
    #[must_use]
    pub fn format(self) -> Option<&'static str> {
        match self {
            Self::Mounted(mode) | Self::InProcess(mode) | Self::Cached(mode) if mode.is_journaled() => {
                Some("ext3")
            }
            Self::Defaults
            | Self::LeftAlone
            | Self::Mounted(_)
            | Self::InProcess(_)
            | Self::Cached(_)
            | Self::DeviceSoft
            | Self::Fuse2fs
            | Self::Kernel(Kernel::Ext2) => Some("ext2"),
            Self::Kernel(Kernel::Ext4) | Self::Ext4(_) => Some("ext4"),
            Self::Kernel(_) | Self::Following(_) => Some("ext3"),
            Self::Memory | Self::Bpfs | Self::BpfsMemory | Self::DeviceMemory | Self::Tmpfs => None,
            Self::Ufs(_) | Self::Waffle(_) => None,
        }
    }
}

/// Where images are.
#[derive(Clone, Debug)]
pub struct Medium {
    /// Its name in results: `disk` or `memory`.
    pub name: &'static str,
    /// The image, all of its bytes allocated.
    pub image: PathBuf,
}

/// A contender that serves.
pub struct Running {
    /// Where to work.
    pub place: Arc<dyn Place>,
    /// The directory of the host that it is, if it is one.
    pub host: Option<PathBuf>,
    /// The process that serves it.
    pub server: Option<u32>,
    kind: start::Kind,
}

impl Running {
    /// What reached the device so far, where that is counted.
    ///
    /// # Errors
    /// When the counters cannot be read.
    pub fn counters(&self) -> Result<Option<Device>> {
        self.kind.counters(self.host.as_deref())
    }

    /// Makes stable what it leaves volatile when everything is synced: fuse2fs leaves its image in the page cache.
    ///
    /// # Errors
    /// When the image cannot be synced.
    pub fn settle(&self) -> Result<()> {
        match &self.kind {
            start::Kind::Foreign { image: Some(image), .. } => Ok(std::fs::File::open(image)?.sync_all()?),
            _ => Ok(()),
        }
    }

    /// Takes it away; everything is on the medium when this returns.
    ///
    /// # Errors
    /// When unmounting fails.
    pub fn stop(self) -> Result<()> {
        let Self { place, host, kind, .. } = self;
        // It holds the mount's root open.
        drop(place);
        kind.stop(host.as_deref())
    }
}

/// What is needed to start contenders.
#[derive(Clone, Debug)]
pub struct Tools {
    /// The program `fstitch`.
    pub fstitch: PathBuf,
    /// An empty directory to mount on.
    pub mountpoint: PathBuf,
}

impl Tools {
    /// Formats the medium for `contender` and starts it.
    ///
    /// # Errors
    /// With what the programs that were run said.
    pub fn start(&self, contender: Contender, medium: &Medium) -> Result<Running> {
        if let Some(format) = contender.format() {
            process::format(format, &medium.image)?;
        }
        if let Some(format) = contender.own_format() {
            start::make_own(self, format, &medium.image)?;
        }
        if let Contender::Following(policy) = contender {
            start::follow(self, policy, &medium.image)?;
        }
        start::start(self, contender, &medium.image)
    }

    /// Starts `contender` on the medium as it is.
    ///
    /// # Errors
    /// As [`Tools::start`].
    pub fn resume(&self, contender: Contender, medium: &Medium) -> Result<Running> {
        start::start(self, contender, &medium.image)
    }

    /// Whether `contender` can be started here; the reason if not.
    #[must_use]
    pub fn lacks(&self, contender: Contender) -> Option<String> {
        let root = rustix::process::geteuid().is_root();
        match contender {
            Contender::Kernel(_) | Contender::Tmpfs if !root => Some("mounting needs root".into()),
            Contender::Kernel(_) if !Path::new("/dev/loop-control").exists() => {
                Some("no loop devices".into())
            }
            Contender::Fuse2fs | Contender::Ext4(Way::Fuse2fs)
                if process::version("fuse2fs", "-V").is_none() =>
            {
                Some("not installed".into())
            }
            Contender::Defaults
            | Contender::LeftAlone
            | Contender::Mounted(_)
            | Contender::Cached(_)
            | Contender::Following(_)
            | Contender::Memory
            | Contender::Bpfs
            | Contender::BpfsMemory
            | Contender::DeviceSoft
            | Contender::DeviceMemory
            | Contender::Fuse2fs
            | Contender::Ext4(Way::Defaults | Way::Mounted | Way::Fuse2fs)
            | Contender::Ufs(Side::Mounted)
            | Contender::Waffle(Side::Mounted)
                if !Path::new("/dev/fuse").exists() =>
            {
                Some("no /dev/fuse".into())
            }
            _ => None,
        }
    }
}

pub use process::version;
pub(crate) use process::{run, unmount};
