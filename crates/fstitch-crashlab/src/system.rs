//! What the laboratory takes apart: a file system that can be made, mounted, checked, recovered and repaired.

use std::sync::Arc;

use fstitch_core::{BlockDevice, BlockNo, CheckReport, FileSystem, Result};

use crate::medium::{Base, Image};
use crate::oracle::Violation;
use crate::show::Anatomy;

/// A file system with its consistency mechanism and its parameters.
pub trait System: Send + Sync {
    /// A word without `:` and blanks from which the system can be made again, such as `ext2-soft-b1024`.
    fn name(&self) -> String;
    /// A fresh volume whose unused blocks hold [`STALE`] bytes.
    ///
    /// # Errors
    /// When the parameters fit no volume.
    fn format(&self) -> Result<Arc<Base>>;
    /// What the mechanism does before a volume is mounted after a crash: a journal is replayed. Nothing where there is nothing
    /// to do; all the other methods want it done.
    ///
    /// # Errors
    /// When that fails.
    fn before_mount(&self, _device: &Arc<dyn BlockDevice>) -> Result<()> {
        Ok(())
    }
    /// What a crash may leave of several operations.
    fn promise(&self) -> Promise {
        Promise::Parts
    }
    /// Mounts for work. Nothing runs in the background: what is written and when is the caller's business.
    ///
    /// # Errors
    /// When the volume cannot be mounted.
    fn mount(&self, device: Arc<dyn BlockDevice>) -> Result<Box<dyn Mounted>>;
    /// Mounts to look, after whatever the mechanism does when it mounts after a crash.
    ///
    /// # Errors
    /// When the volume cannot be mounted.
    fn open(&self, device: Arc<dyn BlockDevice>) -> Result<Box<dyn Mounted>>;
    /// Checks the volume without changing it.
    ///
    /// # Errors
    /// When the device fails or the volume is unknown; damage is in the report.
    fn check(&self, device: &Arc<dyn BlockDevice>) -> Result<CheckReport>;
    /// Everything that the system does by itself after a crash, to its end: the volume is clean afterwards.
    ///
    /// # Errors
    /// When that fails.
    fn recover(&self, device: Arc<dyn BlockDevice>) -> Result<()>;
    /// Mends everything and returns what is left.
    ///
    /// # Errors
    /// When the device fails or the volume is unknown.
    fn repair(&self, device: &Arc<dyn BlockDevice>) -> Result<CheckReport>;
    /// The reference checker for this format.
    fn reference(&self) -> Option<Box<dyn Reference>> {
        None
    }
    /// Takes a volume apart for people, as it would be had everything arrived that was written, in `newest`, and what that one lacks
    /// as it was before, in `oldest`; `None` where nobody can.
    fn anatomy(&self, newest: Image, oldest: Image) -> Option<Box<dyn Anatomy>> {
        let _ = (newest, oldest);
        None
    }
    /// What no mount changes of a volume and other volumes have otherwise, such as its UUID, size and block size, if the contents of
    /// this block of the medium say it: a log that changes it was recorded on another volume.
    fn identity(&self, block: u64, contents: &[u8]) -> Option<Vec<u8>> {
        let _ = (block, contents);
        None
    }
}

/// Finds a system by its name.
pub type FindSystem = fn(&str) -> std::result::Result<Arc<dyn System>, UnknownSystem>;

/// A word that names no system.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` names no system: expected {expected}")]
pub struct UnknownSystem {
    name: String,
    expected: String,
}

impl UnknownSystem {
    /// `name` is none of those that are `expected`.
    #[must_use]
    pub fn new(name: &str, expected: &str) -> Self {
        Self { name: name.to_owned(), expected: expected.to_owned() }
    }
}

/// A reference checker: an independent program, asked about a sample.
pub trait Reference {
    /// Whether it can be asked.
    fn is_installed(&self) -> bool;
    /// It finds nothing in an image in which we found nothing, mends all of any other, and agrees with itself afterwards. Returns the
    /// mended image.
    ///
    /// # Errors
    /// When it does not, with what it printed.
    fn judge(&self, image: &Image, we_found: u64) -> std::result::Result<Image, Violation>;
}

/// What may happen next in a system that is at rest, for the laboratory to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// This block is written.
    Write(BlockNo),
    /// The running transaction of a journal is closed: 0 that of the system under test, 1 that of the one which it is in, and so on.
    Close(u8),
}

/// What a mechanism promises about operations that no sync has followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Every part of every object is as it was at some moment.
    Parts,
    /// Names, attributes and lengths are as they all were at one moment; contents are as with `Parts`.
    Whole,
    /// The same, and contents that no sync has followed may be anything.
    WholeWithoutContents,
    /// Everything is as it was at one moment.
    Exact,
}

/// A mounted system.
pub trait Mounted: Send + Sync {
    /// The file system.
    fn fs(&self) -> &dyn FileSystem;
    /// Unmounts it, and what it is in.
    ///
    /// # Errors
    /// When the device fails.
    fn unmount(&self) -> Result<()> {
        self.fs().unmount()
    }
    /// Does those of the steps that may be done now which `choose` picks; returns how many blocks were written.
    ///
    /// # Errors
    /// When the device fails.
    fn write_out(&self, choose: &mut dyn FnMut(Step) -> bool) -> Result<usize>;
    /// Reclaims what a crash has left, beside everything else; nothing where no system does that.
    ///
    /// # Errors
    /// When the device fails, or what is there is more than a crash leaves.
    fn reclaim(&self) -> Result<()> {
        Ok(())
    }
}

/// What unused blocks of a fresh volume hold: nobody's data.
pub const STALE: u8 = 0xee;
