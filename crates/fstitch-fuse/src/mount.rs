//! A mount from beginning to end.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use fstitch_core::FileSystem;

use crate::adapter::{Adapter, Invalidator};
use crate::awake::{Awake, AwakeWatch};
use crate::kernel;
use crate::ordered::OrderedFsync;
use crate::scopes::Scopes;
use crate::supervised::Supervised;
use crate::transport::{GreetError, Session};
use crate::{MountError, MountOptions, Transport, Unmounter};

/// A mounted file system: made by [`Mount::new`], served by [`Mount::run`].
///
/// Dropped without `run`, it takes the mount out of sight; the file system is then not finished.
pub struct Mount {
    /// `None` only while `run` works with it.
    session: Option<(Session, Adapter)>,
    transport: Transport,
    /// Threads that serve through `/dev/fuse`.
    workers: usize,
    fs: Arc<Supervised>,
    scopes: Arc<Scopes>,
    awake: AwakeWatch,
    invalidator: Invalidator,
    unmounter: Unmounter,
    /// With `auto_unmount`: closes when the process dies.
    _guard: Option<OwnedFd>,
}

impl Mount {
    /// Mounts `fs`. When this returns the mount is in the kernel's table; requests wait until [`Mount::run`].
    /// It starts helper threads, so a process that goes to the background forks before.
    ///
    /// # Errors
    /// [`MountError`] says what is missing and how to get it.
    pub fn new(fs: Arc<dyn FileSystem>, options: &MountOptions) -> Result<Self, MountError> {
        options.check()?;
        let awake = Awake::new(options.awake, options.idle_class)
            .map_err(|e| MountError::system("keeping processors awake", e))?;
        let awake_watch = Awake::watch(awake.as_ref());
        let fs = Arc::new(Supervised::new(fs, awake));
        let connection = kernel::connect(options)?;
        let unmounter = Unmounter::new(connection.mountpoint);
        let adapter = Adapter::new(Arc::clone(&fs) as _, options)
            .map_err(|e| MountError::system("starting helper threads", e));
        let session = adapter.and_then(|mut adapter| {
            let scopes = adapter.scopes();
            if options.ordered_fsync {
                scopes.order_everybody(options.durable_every).map_err(MountError::Order)?;
            }
            let session =
                Session::greet(connection.device, options.transport, |offered| adapter.choose(offered))
                    .map_err(|e| match e {
                        GreetError::NoRing(why) => MountError::NoIoUring(why),
                        GreetError::Io(e) => MountError::system("greeting the kernel", e),
                    })?;
            adapter.invalidations().connect(session.device());
            tracing::debug!("requests come by way of {}", session.transport());
            Ok(((session, adapter), scopes))
        });
        match session {
            Ok((session, scopes)) => {
                let (workers, guard) = (options.workers, connection.guard);
                let transport = session.0.transport();
                Ok(Self {
                    invalidator: session.1.invalidator(),
                    session: Some(session),
                    transport,
                    workers,
                    fs,
                    scopes,
                    awake: awake_watch,
                    unmounter,
                    _guard: guard,
                })
            }
            Err(e) => {
                if let Err(left) = unmounter.detach() {
                    tracing::warn!("{left}");
                }
                Err(e)
            }
        }
    }

    /// A handle that unmounts from another thread, such as the one that waits for signals.
    #[must_use]
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// The file system as the kernel sees it. To abandon it is to shut the mount down: everything answers `EIO`
    /// from then on.
    #[must_use]
    pub fn served(&self) -> Arc<dyn FileSystem> {
        Arc::clone(&self.fs) as _
    }

    /// Which way requests come, of the two that there are.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Tells what is done about idle processors.
    #[must_use]
    pub fn awake(&self) -> AwakeWatch {
        self.awake.clone()
    }

    /// Tells the kernel of changes that were not made by its requests.
    #[must_use]
    pub fn invalidator(&self) -> Invalidator {
        self.invalidator.clone()
    }

    /// Tells who uses ordered fsync.
    #[must_use]
    pub fn ordered_fsync(&self) -> OrderedFsync {
        OrderedFsync { scopes: Arc::clone(&self.scopes) }
    }

    /// Serves requests until the mount is gone, then makes everything stable.
    ///
    /// # Errors
    /// [`MountError::Finish`] if not everything could be made stable, [`MountError::Session`] if serving ended
    /// for another reason than unmounting.
    pub fn run(self) -> Result<(), MountError> {
        self.run_then(|| {})
    }

    /// The same for a file system that others are in: when the mount is gone, calls `wait` before it ends the file
    /// system, which must go on working until those others have ended.
    ///
    /// # Errors
    /// As [`Mount::run`].
    pub fn run_then(mut self, wait: impl FnOnce()) -> Result<(), MountError> {
        let (session, adapter) = self.session.take().expect("only run takes it, and consumes the mount");
        // Where nobody answers any more, whoever touches the mount would hang.
        let failed = || {
            if let Err(e) = self.unmounter.abort() {
                tracing::warn!("{e}");
            }
        };
        let served = session.run(&adapter, self.workers, &failed);
        // Its helpers end what they are at.
        drop(adapter);
        self.unmounter.end();
        wait();
        self.scopes.close();
        self.fs.unmount().map_err(MountError::Finish)?;
        served.map_err(MountError::Session)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.session.is_some()
            && let Err(e) = self.unmounter.detach()
        {
            tracing::warn!("{e}");
        }
    }
}

impl std::fmt::Debug for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mount").field("mountpoint", &self.unmounter.mountpoint()).finish_non_exhaustive()
    }
}
