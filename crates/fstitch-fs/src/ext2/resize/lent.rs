//! A journal for the time that a volume without one gets another size: what must be whole at once needs it.
//!
//! **States and transitions.** *Without* → a journal is added, which says that it is lent → *with*: the size changes as of any volume
//! with a journal → it is taken away: *without*.
//!
//! **Crash cases.** As of adding a journal, of resizing, and of taking one away. In between the volume has a journal, by which it is
//! recovered; giving it a size again goes on, and takes a journal that is lent away. Nothing else does.

use fstitch_core::{BlockDevice, Error, Result, Timestamp};

use super::Resized;
use super::plan::Sizes;
use crate::ext2::journal;

/// Whether the volume has a journal that it is to lose again.
#[derive(Default)]
pub(super) struct Lent {
    is: bool,
}

/// Lends a volume a journal for becoming what is planned; none if it has that size.
///
/// # Errors
/// `Unsupported` if it has no room for one.
pub(super) fn to(device: &dyn BlockDevice, planned: Option<&Sizes>, now: Timestamp) -> Result<Lent> {
    let Some(sizes) = planned else { return Ok(Lent::default()) };
    let end = sizes.new.blocks_count.min(sizes.old.blocks_count);
    match journal::lend(device, end, now) {
        Ok(()) => Ok(Lent { is: true }),
        Err(Error::Unsupported(text)) => Err(Error::Unsupported(format!(
            "resizing a volume without a journal, which needs one meanwhile: {text}"
        ))),
        Err(error) => Err(error),
    }
}

/// A journal that was lent before a crash.
///
/// # Errors
/// `Io`, `Corrupt`.
pub(super) fn found(device: &dyn BlockDevice) -> Result<Lent> {
    Ok(Lent { is: journal::is_lent(device)? })
}

impl Lent {
    /// Takes it away. Where `done` is an error the volume keeps it as long as it must be recovered by it.
    ///
    /// # Errors
    /// That of `done`; `Io`, `Corrupt`.
    pub(super) fn take_back(self, device: &dyn BlockDevice, done: Result<Resized>) -> Result<Resized> {
        if self.is {
            let taken = journal::remove(device);
            return done.and_then(|done| taken.map(|()| done));
        }
        done
    }
}
