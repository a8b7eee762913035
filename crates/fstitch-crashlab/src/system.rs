//! What the laboratory takes apart: a file system that can be made, mounted, checked, recovered and repaired.

use std::sync::Arc;

use fstitch_core::{BlockDevice, BlockNo, CheckReport, FileSystem, Result};

use crate::ext2::{Ext2System, UnknownSystem};
use crate::loopback::LoopbackSystem;
use crate::medium::Base;
use crate::reference::E2fsck;

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
    fn reference(&self) -> Option<E2fsck>;
}

/// The system of that name.
///
/// # Errors
/// When there is none.
pub fn system(name: &str) -> std::result::Result<Arc<dyn System>, UnknownSystem> {
    if name.contains('@') {
        Ok(Arc::new(name.parse::<LoopbackSystem>()?))
    } else {
        Ok(Arc::new(name.parse::<Ext2System>()?))
    }
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
pub trait Mounted {
    /// The file system.
    fn fs(&self) -> &dyn FileSystem;
    /// Unmounts it, and what it is in.
    ///
    /// # Errors
    /// When the device fails.
    fn unmount(&self) -> Result<()> {
        self.fs().unmount()
    }
    /// Writes those of the blocks that may be written now which `choose` picks; returns how many.
    ///
    /// # Errors
    /// When the device fails.
    fn write_out(&self, choose: &mut dyn FnMut(BlockNo) -> bool) -> Result<usize>;
}

/// What unused blocks of a fresh volume hold: nobody's data.
pub const STALE: u8 = 0xee;
