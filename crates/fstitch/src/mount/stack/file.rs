//! The text of a stack file: TOML, every value with its place, so that whatever is wrong can be said with its line.

use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use serde::Deserialize;
use toml::Spanned;

/// What a stack file says, not yet checked.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Text {
    /// Bytes of memory for the whole stack.
    pub cache_size: Option<Spanned<String>>,
    /// Age at which changes are written.
    pub write_back_age: Option<Spanned<String>>,
    /// The tables `[[device]]`.
    #[serde(default, rename = "device")]
    pub devices: Vec<DeviceText>,
    /// The tables `[[volume]]`.
    #[serde(default, rename = "volume")]
    pub volumes: Vec<VolumeText>,
}

/// A table `[[device]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceText {
    /// Its name.
    pub name: Spanned<String>,
    /// An image file or block device of this machine.
    pub path: Option<Spanned<String>>,
    /// The partition of it.
    pub partition: Option<Spanned<u32>>,
    /// Where it starts in it.
    pub offset: Option<Spanned<String>>,
    /// Instead of `path`: the volume whose file it is.
    pub volume: Option<Spanned<String>>,
    /// The file's path in that volume.
    pub file: Option<Spanned<String>>,
}

/// A table `[[volume]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeText {
    /// Its name.
    pub name: Spanned<String>,
    /// The device that it is on.
    pub device: Spanned<String>,
    /// The device of its journal.
    pub journal: Option<Spanned<String>>,
    /// The consistency mechanism.
    pub consistency: Option<Spanned<String>>,
    /// Where it is mounted.
    pub mount: Option<Spanned<String>>,
    /// Mount options.
    pub options: Option<Spanned<String>>,
}

/// A stack file as it was read.
#[derive(Debug)]
pub struct Source {
    /// Its path, symbolic links resolved.
    pub path: PathBuf,
    text: String,
}

impl Source {
    /// Reads a stack file.
    pub fn read(path: &Path) -> Result<Self> {
        let absolute = path.canonicalize().with_context(|| format!("the stack file {}", path.display()))?;
        let text = std::fs::read_to_string(&absolute)
            .with_context(|| format!("reading the stack file {}", path.display()))?;
        Ok(Self { path: absolute, text })
    }

    #[cfg(test)]
    pub fn of(text: &str) -> Self {
        Self { path: PathBuf::from("/stacks/a.toml"), text: text.to_owned() }
    }

    /// Its tables.
    pub fn parse(&self) -> Result<Text> {
        toml::from_str(&self.text).map_err(|error| match error.span() {
            Some(span) => self.problem(&span, error.message().trim_end()),
            None => anyhow!("{}: {}", self.path.display(), error.message().trim_end()),
        })
    }

    /// An error about what stands at `span`.
    pub fn problem(&self, span: &Range<usize>, problem: impl std::fmt::Display) -> anyhow::Error {
        let before = self.text.as_bytes().get(..span.start).unwrap_or_default();
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        anyhow!("{}:{line}: {problem}", self.path.display())
    }

    /// The absolute path that `text` means in this file: relative ones start at the file's own directory.
    pub fn resolve(&self, text: &str) -> PathBuf {
        let joined = self.path.parent().unwrap_or(Path::new("/")).join(text);
        // Components like `..` stay: what they mean may depend on symbolic links.
        joined.components().collect()
    }
}

impl Source {
    /// The same of an image, which may be several disks with commas between them.
    pub fn resolve_image(&self, text: &str) -> PathBuf {
        let one = self.resolve(text);
        if !text.contains(',') || one.symlink_metadata().is_ok() {
            return one;
        }
        let each: Vec<PathBuf> = text.split(',').map(|name| self.resolve(name)).collect();
        let words: Vec<&std::ffi::OsStr> = each.iter().map(|name| name.as_os_str()).collect();
        PathBuf::from(words.join(std::ffi::OsStr::new(",")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(text: &str, said: &str) {
        let error = Source::of(text).parse().unwrap_err().to_string();
        assert!(error.starts_with("/stacks/a.toml:") && error.contains(said), "{error}");
    }

    #[test]
    fn what_is_not_a_stack_file_is_refused_with_its_line() {
        refused("[[device]\n", "a.toml:1: ");
        refused("[[device]]\nname = \"a\"\nsize = 5\n", "a.toml:3: unknown field `size`");
        refused("[[disk]]\nname = \"a\"\n", "a.toml:1: unknown field `disk`");
        refused("\n[[volume]]\nname = \"a\"\n", "a.toml:2: missing field `device`");
        refused("[[device]]\nname = 5\n", "a.toml:2: invalid type");
        refused("[[device]]\nname = \"a\"\nname = \"b\"\n", "a.toml:3: duplicate key");
    }

    #[test]
    fn paths_start_at_the_files_directory() {
        let source = Source::of("");
        assert_eq!(source.resolve("b/c.img"), Path::new("/stacks/b/c.img"));
        assert_eq!(source.resolve("/d.img"), Path::new("/d.img"));
        assert_eq!(source.resolve("./b/"), Path::new("/stacks/b"));
        assert_eq!(source.resolve_image("a.img,../b.img"), Path::new("/stacks/a.img,/stacks/../b.img"));
    }
}
