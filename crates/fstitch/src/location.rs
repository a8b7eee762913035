//! `IMAGE:/path`: a place inside an image, told apart from a path of this machine.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A place that `cp`, `ls` and `cat` understand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A path of this machine.
    Host(PathBuf),
    /// A path inside an image.
    Image {
        /// The image file or block device.
        image: PathBuf,
        /// The path inside, starting with `/`.
        path: Vec<u8>,
    },
}

impl Location {
    /// Reads `text`: the part before the last `:/` is an image, if there is one. A path of this machine that
    /// contains `:/` can be written with a leading `./` or `/` before an existing file.
    #[must_use]
    pub fn parse(text: &std::ffi::OsStr) -> Self {
        let bytes = text.as_bytes();
        let host = || Self::Host(PathBuf::from(text));
        if Path::new(text).symlink_metadata().is_ok() {
            return host();
        }
        let Some(at) = bytes.windows(2).position(|pair| pair == b":/") else {
            return match bytes.strip_suffix(b":") {
                Some(image) if !image.is_empty() => Self::inside(image, b"/"),
                _ => host(),
            };
        };
        if at == 0 { host() } else { Self::inside(&bytes[..at], &bytes[at + 1..]) }
    }

    fn inside(image: &[u8], path: &[u8]) -> Self {
        let image = PathBuf::from(std::ffi::OsString::from_vec(image.to_vec()));
        Self::Image { image, path: path.to_vec() }
    }
}

/// A path inside an image, for messages.
pub fn show(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(image: &str, path: &str) -> Location {
        Location::Image { image: PathBuf::from(image), path: path.as_bytes().to_vec() }
    }

    #[test]
    fn images_and_host_paths_are_told_apart() {
        let parse = |text: &str| Location::parse(text.as_ref());
        assert_eq!(parse("disk.img:/a/b"), image("disk.img", "/a/b"));
        assert_eq!(parse("disk.img:/"), image("disk.img", "/"));
        assert_eq!(parse("disk.img:"), image("disk.img", "/"));
        assert_eq!(parse("/d/disk.img:/x:/y"), image("/d/disk.img", "/x:/y"));
        assert_eq!(parse("a/b"), Location::Host("a/b".into()));
        assert_eq!(parse(":/a"), Location::Host(":/a".into()));
        assert_eq!(parse("c:d"), Location::Host("c:d".into()));
    }

    #[test]
    fn an_existing_file_is_never_an_image_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a:");
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("b"), "").unwrap();
        let text = path.join("b");
        assert_eq!(Location::parse(text.as_os_str()), Location::Host(text));
    }
}
