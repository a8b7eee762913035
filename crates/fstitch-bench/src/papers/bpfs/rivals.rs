//! The kernel's file systems on a loop device, which counts the sectors that are written to it, as the paper counted those of its disk.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tempfile::TempPath;

use crate::contender::{run, unmount, version};

/// A file system of the kernel's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rival {
    pub(super) name: &'static str,
    /// The program that makes it, and how.
    make: (&'static str, &'static [&'static str]),
    kind: &'static str,
    options: &'static str,
}

/// Nothing is left for threads of the kernel to do later.
const EXT: &[&str] = &["-q", "-F", "-b", "4096", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"];

/// Those of the paper, and one that it has not. In the order of what they promise.
pub(super) const ALL: [Rival; 7] = [
    Rival { name: "ext2", make: ("mke2fs", &["-t", "ext2"]), kind: "ext2", options: "rw" },
    Rival { name: "ext3, ordered", make: ("mke2fs", &["-t", "ext3"]), kind: "ext3", options: "data=ordered" },
    Rival { name: "ext4, ordered", make: ("mke2fs", &["-t", "ext4"]), kind: "ext4", options: "data=ordered" },
    Rival { name: "xfs", make: ("mkfs.xfs", &["-q", "-f"]), kind: "xfs", options: "rw" },
    Rival { name: "btrfs", make: ("mkfs.btrfs", &["-q", "-f"]), kind: "btrfs", options: "rw" },
    Rival { name: "ext3, journal", make: ("mke2fs", &["-t", "ext3"]), kind: "ext3", options: "data=journal" },
    Rival { name: "ext4, journal", make: ("mke2fs", &["-t", "ext4"]), kind: "ext4", options: "data=journal" },
];

impl Rival {
    /// Why it cannot be had here, if so.
    pub(super) fn lacks(&self) -> Option<String> {
        let (program, _) = self.make;
        if !rustix::process::geteuid().is_root() {
            return Some("mounting needs root".into());
        }
        if version(program, "-V").is_none() {
            return Some(format!("{program} is not installed"));
        }
        let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        let is_known = known.lines().any(|line| line.ends_with(&format!("\t{}", self.kind)));
        (!is_known).then(|| format!("this kernel has no {}", self.kind))
    }
}

/// A rival that is mounted, until this ends.
pub(super) struct Looped {
    device: PathBuf,
    at: PathBuf,
    _image: TempPath,
    before: u64,
}

impl Looped {
    /// Makes one on a sparse image of so many bytes, and mounts it on `at`.
    pub(super) fn new(rival: &Rival, directory: &Path, bytes: u64, at: &Path) -> Result<Self> {
        let image = tempfile::Builder::new().prefix("rival-").tempfile_in(directory)?;
        image.as_file().set_len(bytes)?;
        let image = image.into_temp_path();
        let (program, words) = rival.make;
        let usual: &[&str] = if program == "mke2fs" { EXT } else { &[] };
        let words = usual.iter().chain(words).map(OsStr::new);
        run(program, &words.chain([image.as_os_str()]).collect::<Vec<_>>())?;
        let found = run("losetup", &[OsStr::new("--find"), OsStr::new("--show"), image.as_os_str()])?;
        let device = PathBuf::from(found);
        let words = ["-t", rival.kind, "-o", rival.options].map(OsStr::new).into_iter();
        let words: Vec<&OsStr> = words.chain([device.as_os_str(), at.as_os_str()]).collect();
        if let Err(error) = run("mount", &words) {
            run("losetup", &[OsStr::new("-d"), device.as_os_str()])?;
            return Err(error);
        }
        let mut looped = Self { device, at: at.to_owned(), _image: image, before: 0 };
        looped.before = looped.sectors()?;
        Ok(looped)
    }

    fn sectors(&self) -> Result<u64> {
        let name = self.device.file_name().context("a device has a name")?.to_string_lossy();
        let text = std::fs::read_to_string(format!("/sys/block/{name}/stat"))?;
        let field = text.split_whitespace().nth(6).context("too few counters of a loop device")?;
        Ok(field.parse()?)
    }

    /// Bytes written since it was mounted, or since this was asked before, all of it synced.
    pub(super) fn written(&mut self) -> Result<u64> {
        let root = std::fs::File::open(&self.at)?;
        rustix::fs::syncfs(&root).context("syncfs")?;
        let now = self.sectors()?;
        ensure!(now >= self.before, "the counter of {} goes backwards", self.device.display());
        Ok((now - std::mem::replace(&mut self.before, now)) * 512)
    }
}

impl Drop for Looped {
    fn drop(&mut self) {
        // There is nobody to tell: what is left is seen by whoever lists loop devices.
        let _ = unmount(&self.at);
        let _ = run("losetup", &[OsStr::new("-d"), self.device.as_os_str()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_of_what_was_written_are_counted_once() {
        if !rustix::process::geteuid().is_root() {
            assert!(ALL[0].lacks().is_some_and(|why| why.contains("root")));
            return;
        }
        let (images, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = at.path().canonicalize().unwrap();
        let [ext2, .., journal] = ALL;
        let mut written = Vec::new();
        for rival in [ext2, journal] {
            assert_eq!(rival.lacks(), None);
            let mut looped = Looped::new(&rival, images.path(), 64 << 20, &at).unwrap();
            std::fs::write(at.join("file"), vec![1; 4 << 20]).unwrap();
            written.push(looped.written().unwrap());
            assert!(looped.written().unwrap() < 1 << 20, "what was written is not written again");
        }
        assert!((4 << 20..6 << 20).contains(&written[0]), "{written:?}");
        assert!(written[1] > 8 << 20, "a journal of data has it twice: {written:?}");
        assert!(!at.join("file").exists());
    }
}
