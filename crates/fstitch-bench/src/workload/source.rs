//! The source tree that is unpacked, held in memory so that reading it costs nothing.

use std::collections::BTreeSet;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use fstitch_core::Seed;
use fstitch_core::num::to_u64;

use super::len;

/// A file of a tree.
#[derive(Clone, Debug)]
pub struct TreeFile {
    /// Where it is.
    pub path: String,
    /// Its length in bytes.
    pub size: u64,
    /// The time of its last change, in seconds since 1970.
    pub modified: i64,
    contents: Range<usize>,
}

/// A tree of directories, files and symbolic links.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// Where it comes from, for reports.
    pub origin: String,
    /// Directories, those above before those below.
    pub directories: Vec<String>,
    /// Files.
    pub files: Vec<TreeFile>,
    /// Symbolic links and their targets.
    pub links: Vec<(String, String)>,
    bytes: Vec<u8>,
}

/// The parts of the kernel's sources that are taken, in the order of the archive, up to the limits.
const PARTS: [&str; 8] = ["arch/x86", "block", "fs", "include", "kernel", "lib", "mm", "net"];
const DRIVERS: &str = "drivers/net";

impl Tree {
    /// So much of the kernel's sources in the archive `path` (compressed by xz), at most `files` and `bytes`.
    ///
    /// # Errors
    /// When the archive cannot be read.
    pub fn of_archive(path: &Path, files: usize, bytes: usize) -> Result<Self> {
        let mut unpacker = Command::new("xz")
            .args(["-dc", "-T0"])
            .arg(path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("running xz")?;
        let stream = unpacker.stdout.take().context("the output of xz")?;
        let mut tree =
            Self { origin: path.file_name().unwrap_or_default().to_string_lossy().into(), ..Self::default() };
        let read = tree.take(std::io::BufReader::with_capacity(1 << 20, stream), files, bytes);
        // It may have more to say than is wanted.
        let _ = unpacker.kill();
        unpacker.wait()?;
        read.with_context(|| path.display().to_string())?;
        ensure!(!tree.files.is_empty(), "{} holds no kernel sources", path.display());
        Ok(tree)
    }

    fn take(&mut self, stream: impl Read, files: usize, bytes: usize) -> Result<()> {
        let mut known = BTreeSet::new();
        for entry in tar::Archive::new(stream).entries()? {
            let mut entry = entry?;
            let path = entry.path()?.to_string_lossy().trim_end_matches('/').to_owned();
            let Some((_, below)) = path.split_once('/') else { continue };
            if !PARTS.iter().chain([&DRIVERS]).any(|part| below.starts_with(part)) {
                continue;
            }
            let kind = entry.header().entry_type();
            let modified = i64::try_from(entry.header().mtime()?)?;
            if kind.is_dir() {
                self.enter(&mut known, &path);
            } else if let Some((above, _)) = path.rsplit_once('/') {
                self.enter(&mut known, above);
                if kind.is_file() {
                    let start = self.bytes.len();
                    entry.read_to_end(&mut self.bytes)?;
                    self.push(path, modified, start);
                } else if let Some(target) = entry.link_name()? {
                    self.links.push((path, target.to_string_lossy().into_owned()));
                }
            }
            if self.files.len() >= files || self.bytes.len() >= bytes {
                break;
            }
        }
        Ok(())
    }

    /// A tree that is made up, of the same shape: for machines without the archive.
    #[must_use]
    pub fn made_up(files: usize, bytes: usize) -> Self {
        let mut tree = Self { origin: "made up".into(), ..Self::default() };
        let (mut numbers, mut known) = (Seed::new(11), BTreeSet::new());
        let mean = u64::try_from(bytes / files.max(1)).unwrap_or(1).max(64);
        for no in 0..files {
            let directory = format!("src/part{}/dir{}", no / 1500, no / 15);
            tree.enter(&mut known, &directory);
            // Most files are short, few are long: the square of an even number, thrice its mean.
            let even = numbers.below(1000);
            let size = 1 + mean * 3 * even * even / 1_000_000;
            let start = tree.bytes.len();
            tree.bytes.extend((0..size).map(|at| b' ' + u8::try_from((at * 7 + size) % 90).unwrap_or(0)));
            tree.push(format!("{directory}/file{no}.c"), 1_700_000_000, start);
        }
        tree
    }

    /// Its directories at the top.
    #[must_use]
    pub fn roots(&self) -> Vec<String> {
        self.directories.iter().filter(|path| !path.contains('/')).cloned().collect()
    }

    /// The same in a directory `above`.
    #[must_use]
    pub fn below(mut self, above: &str) -> Self {
        let paths = self.directories.iter_mut().chain(self.files.iter_mut().map(|file| &mut file.path));
        paths
            .chain(self.links.iter_mut().map(|(path, _)| path))
            .for_each(|path| *path = format!("{above}/{path}"));
        self.directories.insert(0, above.to_owned());
        self
    }

    /// What is in a file.
    #[must_use]
    pub fn contents(&self, file: &TreeFile) -> &[u8] {
        &self.bytes[file.contents.clone()]
    }

    /// Bytes in all files together.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// So many of its files, with what is above them.
    #[must_use]
    pub fn part(&self, files: u64) -> Self {
        let (mut part, mut known) =
            (Self { origin: self.origin.clone(), ..Self::default() }, BTreeSet::new());
        for file in self.files.iter().take(len(files)) {
            if let Some((above, _)) = file.path.rsplit_once('/') {
                part.enter(&mut known, above);
            }
            let start = part.bytes.len();
            part.bytes.extend_from_slice(self.contents(file));
            part.push(file.path.clone(), file.modified, start);
        }
        part
    }

    fn push(&mut self, path: String, modified: i64, start: usize) {
        let contents = start..self.bytes.len();
        let size = to_u64(contents.len());
        self.files.push(TreeFile { path, size, modified, contents });
    }

    fn enter(&mut self, known: &mut BTreeSet<String>, path: &str) {
        if !known.contains(path) {
            if let Some((above, _)) = path.rsplit_once('/') {
                self.enter(known, above);
            }
            known.insert(path.to_owned());
            self.directories.push(path.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_come_before_what_is_in_them() {
        let tree = Tree::made_up(3_000, 3_000_000);
        let mut seen = BTreeSet::new();
        for path in &tree.directories {
            assert!(path.rsplit_once('/').is_none_or(|(above, _)| seen.contains(above)), "{path}");
            seen.insert(path.clone());
        }
        assert!(tree.files.iter().all(|file| seen.contains(file.path.rsplit_once('/').unwrap().0)));
        assert_eq!(tree.roots(), ["src"]);
        let part = tree.part(10);
        assert_eq!(part.files.len(), 10);
        assert_eq!(part.contents(&part.files[9]), tree.contents(&tree.files[9]));
    }
}
