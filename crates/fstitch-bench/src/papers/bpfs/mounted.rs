//! A volume in memory that programs use, through FUSE: this process serves it, so that it knows what its gate counts.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use fstitch_bpfs::{Bpfs, Counts, Medium, Optimizations, Options};
use fstitch_core::SystemClock;
use fstitch_fuse::{AwakeMode, Mount, MountError, MountOptions, Transport, Unmounter};

use super::{in_file, since};

/// What is mounted, until this ends.
pub(super) struct Mounted {
    fs: Arc<Bpfs>,
    before: Counts,
    unmounter: Unmounter,
    server: Option<JoinHandle<Result<(), MountError>>>,
}

impl Mounted {
    /// Makes a volume of so many bytes in a file in `memory`, and mounts it on `at`.
    pub(super) fn new(memory: &Path, bytes: u64, optimizations: Optimizations, at: &Path) -> Result<Self> {
        let medium = Medium::file(in_file(memory, bytes)?, false)?;
        let options = Options { optimizations, ..Options::default() };
        let fs = Arc::new(Bpfs::open(medium, options, Arc::new(SystemClock::new()))?);
        let options = MountOptions {
            transport: Transport::Device,
            awake: AwakeMode::Off,
            ..MountOptions::new(at, "bpfs")
        };
        let mount = Mount::new(Arc::clone(&fs) as _, &options)?;
        let unmounter = mount.unmounter();
        let server = Some(std::thread::spawn(move || mount.run()));
        let before = fs.counts();
        Ok(Self { fs, before, unmounter, server })
    }

    /// What was stored since it was mounted, or since this was asked before.
    pub(super) fn stored(&mut self) -> Counts {
        let now = self.fs.counts();
        since(now, std::mem::replace(&mut self.before, now))
    }

    /// Takes it away.
    pub(super) fn stop(mut self) -> Result<()> {
        self.unmounter.unmount()?;
        let server = self.server.take().context("it is served")?;
        server.join().ok().context("the server panicked")??;
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.server.is_some() {
            // Whoever waits for it is answered that it is gone.
            let _ = self.unmounter.detach();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_write_is_counted_with_what_it_takes() {
        let (memory, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = at.path().canonicalize().unwrap();
        let stored = |optimizations| {
            let mut mounted = Mounted::new(memory.path(), 16 << 20, optimizations, &at).unwrap();
            std::fs::write(at.join("file"), vec![1; 1 << 20]).unwrap();
            let bytes = mounted.stored().bytes;
            assert_eq!(mounted.stored().bytes, 0, "nothing since");
            mounted.stop().unwrap();
            assert!(!at.join("file").exists());
            bytes
        };
        let (usual, shadow) = (stored(Optimizations::ALL), stored(Optimizations::SHADOW_PAGING));
        assert!((1 << 20..(1 << 20) + 16_384).contains(&usual), "{usual}");
        assert!(shadow > usual, "{shadow}");
    }
}
