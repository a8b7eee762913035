//! From a stack to a plan: paths resolved, media looked at. Nothing is changed.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use fstitch_core::BlockDevice;
use fstitch_disk::{Direct, DiskOptions};

use super::check::{Part, Place, Stack};
use crate::mount::settle_mountpoint;
use crate::open::Access;

/// A stack that can be mounted, as far as can be seen from outside.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its description, with resolved paths.
    pub stack: Stack,
    /// For each device of the stack that is on a medium: where.
    pub extents: Vec<Option<Extent>>,
    /// Bytes of every block of the stack.
    pub block_size: u32,
}

/// Bytes of a medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The image file or block device.
    pub path: PathBuf,
    /// The first byte.
    pub start: u64,
    /// How many bytes; `None` up to the end.
    pub len: Option<u64>,
}

impl Extent {
    /// Bytes of a block of the volume that is there.
    fn block_size(&self) -> Result<u32> {
        if crate::disks::is_several(&self.path) {
            let stripe = crate::disks::stripe::open(&self.path, Access::ReadOnly, Direct::Never)?;
            return Ok(crate::probe::on_device(&stripe)?.block_size);
        }
        Ok(crate::probe::volume(&self.path, self.start)?.block_size)
    }

    /// Opens it with blocks of so many bytes.
    pub fn open(&self, block_size: u32, read_only: bool) -> Result<Arc<dyn BlockDevice>> {
        if crate::disks::is_several(&self.path) {
            let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
            return Ok(Arc::new(crate::disks::stripe::open_as(
                &self.path,
                block_size,
                access,
                Direct::Auto,
            )?));
        }
        let options = DiskOptions {
            block_size,
            offset: self.start,
            size: self.len,
            read_only,
            ..DiskOptions::default()
        };
        Ok(Arc::new(crate::open::disk(&self.path, &options)?))
    }

    fn overlaps(&self, other: &Self) -> bool {
        let end = |extent: &Self| extent.len.map_or(u64::MAX, |len| extent.start.saturating_add(len));
        self.start < end(other) && other.start < end(self)
    }
}

impl Plan {
    /// Looks at everything that a stack is to be made of.
    pub fn new(mut stack: Stack) -> Result<Self> {
        let extents = extents(&stack)?;
        refuse_shared(&stack, &extents)?;
        let block_size = block_size(&stack, &extents)?;
        settle_mountpoints(&mut stack)?;
        Ok(Self { stack, extents, block_size })
    }
}

fn extents(stack: &Stack) -> Result<Vec<Option<Extent>>> {
    let extent = |place: &Place| match place {
        Place::File { .. } => Ok(None),
        Place::Medium { path, part } => {
            let path = crate::disks::canonical(path)?;
            if crate::disks::is_several(&path) {
                ensure!(
                    crate::disks::stripe::is_one(&path) && *part == Part::From(0),
                    "{}: several disks in a stack are a stripe, from its start (`fstitch mkfs --stripe`)",
                    path.display()
                );
            }
            let (start, len) = match part {
                Part::From(start) => (*start, None),
                Part::Partition(number) => {
                    let entry = crate::open::partition(&path, *number)?;
                    (entry.start, Some(entry.len))
                }
            };
            anyhow::Ok(Some(Extent { path, start, len }))
        }
    };
    let devices = stack.devices.iter();
    devices.map(|device| extent(&device.place).with_context(|| format!("device `{}`", device.name))).collect()
}

/// What the kernel knows a medium by, whatever it is called.
fn identity(path: &Path) -> Result<(bool, u64, u64)> {
    let meta = std::fs::metadata(path).with_context(|| format!("{}", path.display()))?;
    let is_device = meta.file_type().is_block_device();
    Ok(if is_device { (true, meta.rdev(), 0) } else { (false, meta.dev(), meta.ino()) })
}

/// Refuses blocks that are in two devices, whatever names lead there.
fn refuse_shared(stack: &Stack, extents: &[Option<Extent>]) -> Result<()> {
    let mut seen: Vec<(&str, (bool, u64, u64), &Extent)> = Vec::new();
    for (device, extent) in stack.devices.iter().zip(extents) {
        let Some(extent) = extent else { continue };
        for medium in crate::disks::names(&extent.path) {
            let found = identity(&medium)?;
            for (other, identity, known) in &seen {
                if *identity != found {
                    continue;
                }
                let (name, path) = (&device.name, medium.display());
                ensure!(!known.overlaps(extent), "devices `{other}` and `{name}` share blocks of {path}");
                let is_device = found.0;
                ensure!(
                    !is_device,
                    "devices `{other}` and `{name}` are parts of the block device {path}, which can be claimed once: \
                     name the partitions' own devices"
                );
            }
            seen.push((&device.name, found, extent));
        }
    }
    Ok(())
}

/// The block size of all volumes and journals that can be seen from outside.
fn block_size(stack: &Stack, extents: &[Option<Extent>]) -> Result<u32> {
    let mut first: Option<(&str, u32)> = None;
    for (device, extent) in stack.devices.iter().zip(extents) {
        let Some(extent) = extent else { continue };
        let name = device.name.as_str();
        let size = extent.block_size().with_context(|| format!("device `{name}`"))?;
        match first {
            Some((other, expected)) if expected != size => bail!(
                "device `{name}` has blocks of {size} bytes and device `{other}` of {expected}: in a stack all are of \
                 one size"
            ),
            Some(_) => {}
            None => first = Some((name, size)),
        }
    }
    // Volumes lie in files of volumes, which cannot go on without end: somewhere there is a medium.
    Ok(first.context("no device of the stack is on a medium")?.1)
}

/// Makes mount points independent of symbolic links. One that is inside another volume of the stack can be looked at
/// only when that is mounted.
fn settle_mountpoints(stack: &mut Stack) -> Result<()> {
    let mut settled: Vec<(String, PathBuf, PathBuf)> = Vec::new();
    for volume in &mut stack.volumes {
        let Some(at) = &mut volume.mountpoint else { continue };
        let given = at.clone();
        let inside = settled.iter().filter(|(_, outer, _)| given.starts_with(outer));
        match inside.max_by_key(|(_, outer, _)| outer.components().count()) {
            Some((_, outer, resolved)) => {
                let rest = given.strip_prefix(outer).expect("it starts with it").to_owned();
                *at = resolved.join(rest);
            }
            None => {
                settle_mountpoint(at).with_context(|| format!("volume `{}`", volume.name))?;
            }
        }
        for (other, _, resolved) in &settled {
            let name = &volume.name;
            ensure!(
                resolved != at,
                "volumes `{other}` and `{name}` have the same mount point {}",
                at.display()
            );
            ensure!(
                !resolved.starts_with(&*at),
                "the mount point of `{other}` is inside that of `{name}`, which is mounted later and would hide it: \
                 name `{name}` first in the file"
            );
        }
        settled.push((volume.name.clone(), given, at.clone()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::stack::file::Source;

    /// A directory with two volumes of 1 KiB blocks and one of 4 KiB, and two directories.
    fn place() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, log) in [("a", 0_u32), ("b", 0), ("big", 2)] {
            let mut bytes = vec![0; 70 << 10];
            bytes[1048..1052].copy_from_slice(&log.to_le_bytes());
            bytes[1080..1082].copy_from_slice(b"\x53\xef");
            std::fs::write(dir.path().join(name), bytes).unwrap();
        }
        std::fs::create_dir_all(dir.path().join("m/inside")).unwrap();
        std::fs::create_dir(dir.path().join("n")).unwrap();
        dir
    }

    /// Two volumes on media, by path and mount point.
    fn plan(dir: &tempfile::TempDir, volumes: [(&str, &str); 2]) -> Result<Plan> {
        let mut text = String::new();
        for (name, (path, mount)) in ["one", "two"].iter().zip(volumes) {
            text += &format!("[[device]]\nname = \"{name}\"\n{path}\n");
            text += &format!("[[volume]]\nname = \"{name}\"\ndevice = \"{name}\"\nmount = \"{mount}\"\n");
        }
        let path = dir.path().join("stack.toml");
        std::fs::write(&path, text).unwrap();
        Plan::new(Stack::new(&Source::read(&path).unwrap()).unwrap())
    }

    #[track_caller]
    fn refused(dir: &tempfile::TempDir, volumes: [(&str, &str); 2], said: &str) {
        let error = crate::output::reasons(&plan(dir, volumes).unwrap_err());
        assert!(error.contains(said), "{error}");
    }

    #[test]
    fn media_are_looked_at() {
        let dir = place();
        let done = plan(&dir, [("path = \"a\"", "m"), ("path = \"b\"", "n")]).unwrap();
        assert_eq!(done.block_size, 1024);
        refused(&dir, [("path = \"a\"", "m"), ("path = \"c\"", "n")], "device `two`: ");
        refused(&dir, [("path = \"a\"", "m"), ("path = \"n\"", "n")], "device `two`: ");
        refused(
            &dir,
            [("path = \"a\"", "m"), ("path = \"big\"", "n")],
            "blocks of 4096 bytes and device `one` of 1024",
        );
        refused(&dir, [("path = \"a\"", "m"), ("path = \"b\"\npartition = 1", "n")], "no partition table");
    }

    #[test]
    fn a_medium_is_there_once() {
        let dir = place();
        std::os::unix::fs::symlink("a", dir.path().join("alias")).unwrap();
        std::fs::hard_link(dir.path().join("a"), dir.path().join("link")).unwrap();
        for other in ["alias", "link"] {
            let other = format!("path = \"{other}\"");
            refused(&dir, [("path = \"a\"", "m"), (&other, "n")], "devices `one` and `two` share blocks of ");
        }
        let extent = |start, len| Extent { path: PathBuf::new(), start, len };
        assert!(extent(5, None).overlaps(&extent(9, Some(1))));
        assert!(!extent(5, Some(4)).overlaps(&extent(9, None)));
    }

    #[test]
    fn mount_points_are_looked_at() {
        let dir = place();
        let plan_at = |one, two| plan(&dir, [("path = \"a\"", one), ("path = \"b\"", two)]);
        let refused = |one, two, said| refused(&dir, [("path = \"a\"", one), ("path = \"b\"", two)], said);
        refused("m", "nowhere", "volume `two`: the mount point");
        refused("m", "a", "is not a directory");
        let nested = plan_at("m", "m/not/there/yet").unwrap();
        assert!(nested.stack.volumes[1].mountpoint.as_ref().unwrap().ends_with("m/not/there/yet"));
        refused("m/inside", "m", "which is mounted later and would hide it");
        std::os::unix::fs::symlink("m", dir.path().join("alias")).unwrap();
        refused("m", "alias", "have the same mount point");
        let nested = plan_at("alias", "alias/x").unwrap();
        assert!(nested.stack.volumes[1].mountpoint.as_ref().unwrap().ends_with("m/x"));
    }
}
