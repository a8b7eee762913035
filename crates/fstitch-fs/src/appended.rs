//! What append-only files take of contents that were accepted earlier.

use fstitch_core::{Errno, Result};

/// Whether `new`, of a cache's pages, leaves alone what an append-only file has in their place: `EPERM` unless the bytes are the same
/// or take the place of zeros, which pages that arrive before others leave behind.
pub(crate) fn expect_appended(old: &[u8], new: &[u8]) -> Result<()> {
    let kept = |(old, new): (&u8, &u8)| old == new || *old == 0;
    if old.iter().zip(new).all(kept) { Ok(()) } else { Err(Errno::PERM.into()) }
}
