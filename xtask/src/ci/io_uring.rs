//! Switching FUSE over io_uring on, which kernels do not by themselves.

use std::path::Path;

use anyhow::{Context, Result};

/// Whether the kernel offers it to new mounts.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Switches it back when dropped.
pub struct On {
    before: String,
}

impl Drop for On {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(PARAMETER, &self.before) {
            println!("{PARAMETER} stays on: {error}");
        }
    }
}

/// Has the kernel offer it. `None`, after saying so, where the kernel is too old or this user may not.
pub fn switch_on() -> Result<Option<On>> {
    if !Path::new(PARAMETER).exists() {
        println!(
            "left out: this kernel has no FUSE over io_uring (Linux 6.14 and later, once fuse is loaded)"
        );
        return Ok(None);
    }
    let before = std::fs::read_to_string(PARAMETER).context(PARAMETER)?;
    match std::fs::write(PARAMETER, "Y") {
        Ok(()) => Ok(Some(On { before })),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            println!("left out: only root switches FUSE over io_uring on");
            Ok(None)
        }
        Err(error) => Err(error).context(PARAMETER),
    }
}
