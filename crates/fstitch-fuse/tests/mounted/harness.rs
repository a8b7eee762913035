//! Mounts for tests: each test gets its own, or says why it is skipped.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use fstitch_core::FileSystem;
use fstitch_fs::model::Model;
use fstitch_fuse::{Mount, MountError, MountOptions, OwnerMap, Transport, Unmounter};

/// A mounted file system; dropping it unmounts and checks that serving ended well.
pub struct Mounted {
    unmounter: Unmounter,
    server: Option<JoinHandle<Result<(), MountError>>>,
    dir: tempfile::TempDir,
}

/// Whether this process may act as other users.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The way that is tested: `FSTITCH_TRANSPORT` names it.
pub fn transport() -> Transport {
    let named = std::env::var("FSTITCH_TRANSPORT");
    named.map_or(Transport::Device, |named| named.parse().expect("`auto`, `device` or `io_uring`"))
}

/// Options for a mount on `dir`.
pub fn options(dir: &Path) -> MountOptions {
    let mut options = MountOptions::new(dir, "test image");
    options.allow_other = is_root();
    options.transport = transport();
    if !is_root() {
        // The empty file system's root directory belongs to root, who would not let others write there.
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        options.owners = OwnerMap::all_as((uid, gid));
    }
    options
}

/// What the machine lacks for mounting at all, if that is why `error` happened.
fn is_lack(error: &MountError) -> bool {
    matches!(
        error,
        MountError::NoFuseDevice
            | MountError::FuseDeviceForbidden
            | MountError::NoFusermount
            | MountError::NotPermitted(_)
            | MountError::NoIoUring(_)
    )
}

/// Mounts the reference file system, or prints why not.
pub fn mount() -> Option<Mounted> {
    mount_with(Arc::new(Model::new()), |_| {})
}

/// Mounts `fs` with changed options, or prints why not.
pub fn mount_with(fs: Arc<dyn FileSystem>, change: impl FnOnce(&mut MountOptions)) -> Option<Mounted> {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    change(&mut options);
    let mount = match Mount::new(fs, &options) {
        Ok(mount) => mount,
        Err(e) if is_lack(&e) => {
            println!("skipped: {e}");
            return None;
        }
        Err(e) => panic!("{e}"),
    };
    let unmounter = mount.unmounter();
    let server = Some(std::thread::spawn(move || mount.run()));
    Some(Mounted { unmounter, server, dir })
}

/// Says that a test needs root, if it does not have it.
pub fn needs_root() -> bool {
    if !is_root() {
        println!("skipped: only root may act as other users");
    }
    !is_root()
}

impl Mounted {
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Waits until serving has ended.
    pub fn join(mut self) -> Result<(), MountError> {
        self.server.take().expect("joined once").join().expect("the server does not panic")
    }

    /// Unmounts and returns how serving ended.
    pub fn end(self) -> Result<(), MountError> {
        assert!(self.unmount_patiently(), "the test has left files open");
        self.join()
    }

    /// Unmounts. A program that another test starts holds all our open files for the moment between fork and
    /// exec, so one refusal says nothing.
    fn unmount_patiently(&self) -> bool {
        (0..200).any(|_| {
            let done = self.unmounter.unmount().is_ok();
            if !done {
                std::thread::sleep(Duration::from_millis(10));
            }
            done
        })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let Some(server) = self.server.take() else { return };
        if !self.unmount_patiently() {
            self.unmounter.detach().unwrap();
            assert!(std::thread::panicking(), "the test has left files open");
        }
        let ended = server.join();
        if !std::thread::panicking() {
            ended.expect("the server does not panic").expect("serving ends well");
        }
    }
}
