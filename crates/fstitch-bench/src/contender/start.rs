//! How each contender is started, counted and stopped.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;

use anyhow::{Context, Result};
use fstitch_core::Consistency;
use fstitch_core::{BlockDevice, FileSystem};
use serde::Deserialize;

use super::process::{run, serve, unmount, unmount_server};
use super::{Contender, Kernel, Running, Side, Tools, Way};
use crate::inside::{self, BLOCK_SIZE, Disk, Inside};
use crate::meter::Device;
use crate::place::{Host, Within};

/// What must be taken away in the end.
pub enum Kind {
    /// A server of ours, which tells its counters.
    Server { fstitch: PathBuf, child: Child },
    /// Another server, and its image if it has one.
    Foreign { child: Child, image: Option<PathBuf> },
    /// A volume in this process.
    Inside { fs: Arc<dyn FileSystem>, disk: Disk },
    /// A mount of the kernel's on a loop device.
    Loop(PathBuf),
    /// A mount of the kernel's without a device.
    Bare,
}

/// The counters of `fstitch stats --json` that are used here.
#[derive(Deserialize)]
struct Stats {
    device: MediumStats,
}

#[derive(Deserialize)]
struct MediumStats {
    blocks_written: u64,
    write_requests: u64,
    flushes: u64,
}

pub fn start(tools: &Tools, contender: Contender, image: &Path) -> Result<Running> {
    let at = tools.mountpoint.as_path();
    let kind = match contender {
        Contender::InProcess(mode) => return start_inside(mode, image),
        Contender::Ext4(Way::InProcess) => return start_inside(Consistency::Ordered, image),
        Contender::Ufs(Side::InProcess) => return start_other(image, inside::ufs),
        Contender::Waffle(Side::InProcess) => return start_other(image, inside::waffle),
        Contender::Ufs(Side::Mounted) => mount_tuned(tools, "consistency=soft", image)?,
        Contender::Waffle(Side::Mounted) => mount_ours(tools, Some("awake=off"), image)?,
        Contender::Defaults | Contender::Ext4(Way::Defaults) => mount_ours(tools, None, image)?,
        Contender::LeftAlone => mount_ours(tools, Some("awake=off"), image)?,
        Contender::Mounted(mode) => mount_tuned(tools, &format!("consistency={mode}"), image)?,
        Contender::DeviceSoft => mount_tuned(tools, "consistency=soft,transport=device", image)?,
        Contender::Cached(mode) => mount_tuned(tools, &format!("consistency={mode},writeback_cache"), image)?,
        Contender::Following(_) | Contender::Ext4(Way::Mounted) => {
            mount_tuned(tools, "consistency=ordered", image)?
        }
        Contender::Memory => mount_memory(tools, "--serve-memory", "auto")?,
        Contender::Bpfs => mount_ours(tools, Some("awake=off"), image)?,
        Contender::BpfsMemory => mount_memory(tools, "--serve-bpfs", "auto")?,
        Contender::DeviceMemory => mount_memory(tools, "--serve-memory", "device")?,
        Contender::Fuse2fs | Contender::Ext4(Way::Fuse2fs) => {
            let child = serve(Command::new("fuse2fs").arg("-f").arg(image).arg(at), at)?;
            Kind::Foreign { child, image: Some(image.to_owned()) }
        }
        Contender::Kernel(kernel) => mount_kernel(kernel, image, at)?,
        Contender::Tmpfs => {
            run(
                "mount",
                &["-t", "tmpfs", "tmpfs"]
                    .map(OsStr::new)
                    .into_iter()
                    .chain([at.as_os_str()])
                    .collect::<Vec<_>>(),
            )?;
            Kind::Bare
        }
    };
    let server = match &kind {
        Kind::Server { child, .. } | Kind::Foreign { child, .. } => Some(child.id()),
        _ => None,
    };
    Ok(Running { place: Arc::new(Host::new(at)?), host: Some(at.to_owned()), server, kind })
}

/// Has the volume in `image` follow a policy.
pub fn follow(tools: &Tools, policy: &str, image: &Path) -> Result<()> {
    let program = tools.fstitch.to_str().context("the program's path is not text")?;
    let words = ["tune", "--policy", policy].map(OsStr::new);
    run(program, &words.into_iter().chain([image.as_os_str()]).collect::<Vec<_>>())?;
    Ok(())
}

/// Makes an empty volume of one of our own formats, of all of an image.
pub fn make_own(tools: &Tools, format: &str, image: &Path) -> Result<()> {
    let program = tools.fstitch.to_str().context("the program's path is not text")?;
    let words = ["mkfs", format, "--force"].map(OsStr::new);
    run(program, &words.into_iter().chain([image.as_os_str()]).collect::<Vec<_>>())?;
    Ok(())
}

/// In a setting that the bench itself has made: what becomes of idle processors is said by the workload, not by the mount.
fn mount_tuned(tools: &Tools, options: &str, image: &Path) -> Result<Kind> {
    mount_ours(tools, Some(&format!("{options},awake=off")), image)
}

fn mount_ours(tools: &Tools, options: Option<&str>, image: &Path) -> Result<Kind> {
    let mut command = Command::new(&tools.fstitch);
    command.args(["mount", "--foreground"]);
    if let Some(options) = options {
        command.args(["-o", options]);
    }
    command.arg(image).arg(&tools.mountpoint);
    Ok(Kind::Server { fstitch: tools.fstitch.clone(), child: serve(&mut command, &tools.mountpoint)? })
}

fn mount_memory(tools: &Tools, what: &str, transport: &str) -> Result<Kind> {
    let mut command = Command::new(&tools.fstitch);
    command.args(["bench", "--transport", transport, what]).arg(&tools.mountpoint);
    Ok(Kind::Foreign { child: serve(&mut command, &tools.mountpoint)?, image: None })
}

fn start_inside(mode: Consistency, image: &Path) -> Result<Running> {
    let disk = inside::disk(image)?;
    let inside = Inside::open(Arc::clone(&disk) as _, mode, inside::cache())?;
    inside.cache.start_flusher()?;
    Ok(running_inside(inside.fs, disk))
}

fn start_other(
    image: &Path,
    open: impl FnOnce(Arc<dyn BlockDevice>) -> Result<Arc<dyn FileSystem>>,
) -> Result<Running> {
    let disk = inside::disk(image)?;
    Ok(running_inside(open(Arc::clone(&disk) as _)?, disk))
}

fn running_inside(fs: Arc<dyn FileSystem>, disk: Disk) -> Running {
    let place = Arc::new(Within::new(Arc::clone(&fs)));
    Running { place, host: None, server: None, kind: Kind::Inside { fs, disk } }
}

fn mount_kernel(kernel: Kernel, image: &Path, at: &Path) -> Result<Kind> {
    let found = run("losetup", &[OsStr::new("--find"), OsStr::new("--show"), image.as_os_str()])?;
    let device = PathBuf::from(found);
    let (format, options) = match kernel {
        Kernel::Ext2 => ("ext2", "rw"),
        Kernel::Ext3Ordered => ("ext3", "data=ordered"),
        Kernel::Ext3Journal => ("ext3", "data=journal"),
        Kernel::Ext4 => ("ext4", "rw"),
    };
    let words = ["-t", format, "-o", options].map(OsStr::new).into_iter();
    let words: Vec<&OsStr> = words.chain([device.as_os_str(), at.as_os_str()]).collect();
    if let Err(error) = run("mount", &words) {
        run("losetup", &[OsStr::new("-d"), device.as_os_str()])?;
        return Err(error);
    }
    Ok(Kind::Loop(device))
}

impl Kind {
    pub fn counters(&self, at: Option<&Path>) -> Result<Option<Device>> {
        match self {
            Self::Server { fstitch, .. } => {
                let at = at.context("a server has a mount point")?;
                let program = fstitch.to_str().context("the program's path is not text")?;
                let said = run(program, &[OsStr::new("stats"), OsStr::new("--json"), at.as_os_str()])?;
                let Stats { device } = serde_json::from_str(&said)?;
                Ok(Some(Device {
                    write_requests: device.write_requests,
                    bytes_written: device.blocks_written * u64::from(BLOCK_SIZE),
                    flushes: device.flushes,
                }))
            }
            Self::Inside { disk, .. } => {
                let stats = disk.stats();
                Ok(Some(Device {
                    write_requests: stats.write_requests.get(),
                    bytes_written: stats.blocks_written.get() * u64::from(BLOCK_SIZE),
                    flushes: stats.flushes.get(),
                }))
            }
            Self::Loop(device) => loop_counters(device).map(Some),
            Self::Foreign { .. } | Self::Bare => Ok(None),
        }
    }

    pub fn stop(self, at: Option<&Path>) -> Result<()> {
        match (self, at) {
            (Self::Server { child, .. } | Self::Foreign { child, .. }, Some(at)) => unmount_server(at, child),
            (Self::Inside { fs, .. }, _) => Ok(fs.unmount()?),
            (Self::Loop(device), Some(at)) => {
                unmount(at)?;
                run("losetup", &[OsStr::new("-d"), device.as_os_str()])?;
                Ok(())
            }
            (Self::Bare, Some(at)) => unmount(at),
            (_, None) => Ok(()),
        }
    }
}

/// The kernel's counters of a block device: fields of `/sys/block/NAME/stat`.
fn loop_counters(device: &Path) -> Result<Device> {
    let name = device.file_name().context("a device has a name")?.to_string_lossy();
    let text = std::fs::read_to_string(format!("/sys/block/{name}/stat"))?;
    let fields: Vec<u64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let field = |at: usize| fields.get(at).copied().context("too few counters of a loop device");
    Ok(Device { write_requests: field(4)?, bytes_written: field(6)? * 512, flushes: field(15)? })
}
