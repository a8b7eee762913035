//! What a name may be.

use fstitch_core::{Attr, Errno, Result};

/// Fails unless `name` could be a name in a directory; `.` and `..` pass.
///
/// # Errors
/// In Linux's order: `ENOENT` for none, `EINVAL` for what no name has, `ENAMETOOLONG`.
pub fn check(name: &[u8], name_max: usize) -> Result<()> {
    if name.is_empty() {
        return Err(Errno::NOENT.into());
    }
    if name.iter().any(|&byte| byte == b'/' || byte == 0) {
        return Err(Errno::INVAL.into());
    }
    if name.len() > name_max {
        return Err(Errno::NAMETOOLONG.into());
    }
    Ok(())
}

/// Whether `name` is `.` or `..`, which no operation may make, remove or move.
#[must_use]
pub fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// Fails unless names may be added to the directory.
///
/// # Errors
/// `ENOTDIR`; `ENOENT` once it was removed.
pub fn expect_open_directory(attr: &Attr) -> Result<()> {
    attr.expect_directory()?;
    if attr.nlink == 0 { Err(Errno::NOENT.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno(result: Result<()>) -> Option<Errno> {
        result.err().map(|error| error.errno())
    }

    #[test]
    fn names_are_checked_in_the_order_of_linux() {
        assert_eq!(errno(check(b"a", 255)), None);
        assert_eq!(errno(check(b"..", 255)), None);
        assert_eq!(errno(check(&[b'x'; 255], 255)), None);
        assert_eq!(errno(check(b"", 255)), Some(Errno::NOENT));
        assert_eq!(errno(check(b"a/b", 255)), Some(Errno::INVAL));
        assert_eq!(errno(check(b"a\0b", 255)), Some(Errno::INVAL));
        assert_eq!(errno(check(&[b'x'; 256], 255)), Some(Errno::NAMETOOLONG));
    }
}
