//! Serves a [`FileSystem`](fstitch_core::FileSystem) through FUSE.
//!
//! ```text
//!   application ─ system call ─► kernel (VFS, page, attribute and name caches)
//!                                   │ /dev/fuse, or io_uring
//!                ┌──────────────────▼─────────────────────┐
//!                │ transport: threads that serve          │
//!                │ wire:      messages taken apart        │
//!                │ adapter:   requests to operations,     │──► helper threads: fsync, sync, long
//!                │   numbers, owners, errors translated   │    truncations, invalidations, lack of
//!                │                                        │    space; calls of patchgroups
//!                └──────────────────┬─────────────────────┘
//!                                   ▼
//!                          Arc<dyn FileSystem>
//! ```
//!
//! It owns the mount (by `mount(2)` as root, through `fusermount3` otherwise), the translation of every
//! request, and the orderly end: [`Mount::run`] returns when the mount is gone **and**
//! [`FileSystem::unmount`](fstitch_core::FileSystem::unmount) has made everything stable. It never decides what
//! an operation means, never touches its own mount by path while serving, and nothing of the protocol shows in its
//! interface.
//!
//! # Failures
//!
//! A panic in an operation of the file system answers that request with `EIO`, and the volume accepts no more
//! changes from then on, as after a failed write; whatever else is asked goes on. The ioctl by which XFS and ext4
//! are shut down forgets everything that is not stable, as a power cut would, and everything answers `EIO`.
//!
//! # What the kernel may cache
//!
//! We own the medium, so attributes, names (also missing ones), link targets, directory listings and pages are
//! cached without limit of time; the kernel's own bookkeeping keeps them right, because every change passes
//! through it. The one change that it does not notice, the change time after `chattr`, is invalidated by a
//! helper thread. Opening, closing and `opendir` are answered once with "not implemented", after which the
//! kernel does them alone; files are made by `mknod`, which then takes one request instead of three. Writes are
//! passed through at once, so they keep their writer and their order, unless [`MountOptions::writeback_cache`] lets the kernel
//! keep them back: then it also knows lengths and times better than we do, and nobody can say who wrote.
//!
//! # Latency
//!
//! Each request wakes this process and each answer the client. Where idle processors sleep deeply, or are halted by a
//! hypervisor, that takes longer than the request: while requests come fast they are kept awake there ([`MountOptions::awake`]). Over io_uring
//! ([`Transport`]) a thread on the client's own processor answers, so nobody is woken elsewhere.
//!
//! # Access times
//!
//! The kernel leaves access times to the server. [`FileSystem::read`](fstitch_core::FileSystem::read),
//! `readdir` and `readlink` update them by their own mount options; reads that the page cache answers are not
//! seen.
#![deny(unsafe_code)]

mod adapter;
mod awake;
mod error;
mod kernel;
mod mount;
mod options;
mod ordered;
mod owners;
mod pool;
mod scopes;
mod signals;
mod supervised;
mod transport;
mod unmount;
mod wire;

pub use adapter::Invalidator;
pub use awake::{AwakeMode, AwakeReport, AwakeWatch, IdleClass, Means, keep_awake};
pub use error::MountError;
pub use kernel::{is_dead, remount};
pub use mount::Mount;
pub use options::MountOptions;
pub use ordered::{OrderedFsync, OrderedProcess};
pub use owners::OwnerMap;
pub use signals::UnmountOnSignal;
pub use transport::Transport;
pub use unmount::{UnmountError, Unmounter, remove_mount};
