//! Paths inside a mounted volume, symbolic links followed, without a kernel.

use anyhow::{Context, Result, bail};
use fstitch_core::{Attr, FileKind, FileSystem, InodeNo};

/// Symbolic links followed in one path, as in Linux.
const LINKS_MAX: usize = 40;

/// An inode that stays in memory while this lives.
pub struct Held<'a> {
    fs: &'a dyn FileSystem,
    ino: InodeNo,
}

impl<'a> Held<'a> {
    /// Takes over one reference that the caller got from `fs`.
    pub fn new(fs: &'a dyn FileSystem, ino: InodeNo) -> Self {
        Self { fs, ino }
    }

    /// The inode's number.
    pub fn ino(&self) -> InodeNo {
        self.ino
    }

    /// Its attributes.
    pub fn attr(&self) -> Result<Attr> {
        Ok(self.fs.getattr(self.ino)?)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.fs.forget(self.ino, 1);
    }
}

/// Whether the last component is followed if it is a symbolic link. Those before it always are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// Follow it.
    Follow,
    /// Take the link itself.
    Keep,
}

/// The inode at `path`. Links that start with `/` and `..` stay inside the volume.
pub fn resolve<'a>(fs: &'a dyn FileSystem, path: &[u8], last: Last) -> Result<Held<'a>> {
    let shown = || crate::location::show(path);
    let mut left: Vec<Vec<u8>> = components(path);
    let mut at = Held::new(fs, fs.lookup(fs.root(), b".")?.attr.ino);
    let mut links = 0;
    while let Some(name) = left.pop() {
        let next = fs.lookup(at.ino(), &name).with_context(shown)?;
        let next_held = Held::new(fs, next.attr.ino);
        let follow = last == Last::Follow || !left.is_empty();
        if next.attr.kind != FileKind::Symlink || !follow {
            at = next_held;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            bail!("{}: more than {LINKS_MAX} symbolic links", shown());
        }
        let target = fs.readlink(next_held.ino())?;
        if target.starts_with(b"/") {
            at = Held::new(fs, fs.lookup(fs.root(), b".")?.attr.ino);
        }
        left.extend(components(&target));
    }
    Ok(at)
}

/// A path without its last component, and that component.
///
/// # Errors
/// Where that is no name: the root, `.` and `..`.
pub fn split(path: &[u8]) -> Result<(&[u8], &[u8])> {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let start = path[..end].iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    match &path[start..end] {
        b"" => bail!("the root directory of an image cannot be made, moved or removed"),
        b"." | b".." => bail!("`.` and `..` cannot be the last component of a path in an image"),
        name => Ok((&path[..start], name)),
    }
}

/// The components of a path, last one first.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    parts.rev().map(<[u8]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::{components, split};

    #[test]
    fn paths_are_split_before_their_last_name() {
        assert_eq!(split(b"/a/b//").unwrap(), (b"/a/".as_slice(), b"b".as_slice()));
        assert_eq!(split(b"a").unwrap(), (b"".as_slice(), b"a".as_slice()));
        assert!(split(b"/").is_err() && split(b"/a/.").is_err() && split(b"..").is_err());
    }

    #[test]
    fn components_come_last_first() {
        assert_eq!(components(b"//a/./b/"), [b"b".to_vec(), b"a".to_vec()]);
        assert!(components(b"/").is_empty());
    }
}
