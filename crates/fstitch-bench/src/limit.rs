//! Limits: file systems in memory behind the front end that real volumes have. One that keeps no format at all is the limit of FUSE; BPFS
//! in memory is what a format with every operation durable costs beside it.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use fstitch_core::FileSystem;
use fstitch_fs::model::Model;
use fstitch_fuse::{AwakeMode, Mount, MountOptions, Transport, UnmountOnSignal};

use crate::papers;

/// What is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InMemory {
    /// The reference of all file systems.
    Model,
    /// BPFS in volatile memory.
    Bpfs,
}

/// Mounts a file system in memory on `at` and serves it until it is unmounted; requests come by `transport`.
///
/// # Errors
/// As mounting.
pub fn serve(what: InMemory, at: &Path, transport: Transport) -> Result<()> {
    let at = at.to_str().context("the path is not text")?;
    let options = MountOptions {
        transport,
        // As for the volumes that it is compared with: the workload says what becomes of idle processors.
        awake: AwakeMode::Off,
        ..MountOptions::new(at, "memory")
    };
    let fs: Arc<dyn FileSystem> = match what {
        InMemory::Model => Arc::new(Model::new()),
        InMemory::Bpfs => papers::bpfs_in_memory()?,
    };
    let mount = Mount::new(fs, &options)?;
    let _signals =
        UnmountOnSignal::install(vec![mount.unmounter()], |message| eprintln!("fstitch: {message}"))?;
    Ok(mount.run()?)
}
