//! The limit of FUSE: a file system in memory behind the front end that real volumes have.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use fstitch_fs::model::Model;
use fstitch_fuse::{AwakeMode, Mount, MountOptions, Transport, UnmountOnSignal};

/// Mounts a file system in memory on `at` and serves it until it is unmounted; requests come by `transport`.
///
/// # Errors
/// As mounting.
pub fn serve(at: &Path, transport: Transport) -> Result<()> {
    let at = at.to_str().context("the path is not text")?;
    let options = MountOptions {
        transport,
        // As for the volumes that it is compared with: the workload says what becomes of idle processors.
        awake: AwakeMode::Off,
        ..MountOptions::new(at, "memory")
    };
    let mount = Mount::new(Arc::new(Model::new()), &options)?;
    let _signals =
        UnmountOnSignal::install(vec![mount.unmounter()], |message| eprintln!("fstitch: {message}"))?;
    Ok(mount.run()?)
}
