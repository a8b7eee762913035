//! The universal high-level file system: POSIX operations out of a format's micro-operations. Which inodes are in memory, and who
//! refers to them, is kept in the table of [`fstitch_posix::table`].
//!
//! ```text
//!   volume   Uhfs itself, its options, and the gate through which every change goes
//!   posix    impl FileSystem: the table of contents of the operations
//!   node     an inode in memory, what it remembers of its unstable changes
//!   locks    several inode locks at once, in inode order
//!   names    lookup, readdir, readlink, rules for names
//!   make     mknod, mkdir, symlink, tmpfile, link         acl     default ACLs, chmod and ACLs
//!   remove   unlink, rmdir, freeing inodes                rename  moving and exchanging names
//!   read     read, seek                                   write   write
//!   truncate changing a file's length                     fallocate  allocate, punch, zero
//!   shift    ranges taken out and put in                  preallocate  blocks that are not written
//!   attr     getattr, setattr, flags                      xattr   extended attributes
//!   sync     fsync, sync, unmount                        reclaim   what a crash has left, while in use
//!   space    what the end of a transaction gives
//!   pinned   files whose blocks somebody else uses     groups   patchgroups
//!   adopt    names in lost+found
//!   evict    when inodes leave memory, and what they take there
//! ```
//!
//! # States
//! A volume is *idle* until its first change, *in use* (marked so on the medium before that change), and
//! *closed* after `unmount`. A node is *loaded*, then perhaps *orphaned* (its last name is gone, references
//! remain) and at last *dead* (its inode is free; users that still hold the node get `ESTALE`). An inode that is
//! referred to, but neither used nor unstable, may be *parked*: without a node, only its references are counted.
//!
//! # Locks, in the order in which they are taken
//! Debug builds check the order ([`fstitch_core::order`]) of the gate, writers' locks, the rename lock, inodes and what follows.
//! 1. The gate (shared by changes, exclusive for `unmount`).
//! 2. A node's `writer` lock: serialises everything that changes one file's length or blocks over several steps.
//! 3. `Cache::reserve`, the only place where an operation waits for others' patches to become stable.
//! 4. The rename lock, for moves between directories.
//! 5. Inode locks (`Node::state`), several in the order of inode numbers, or by attempt.
//! 6. The locks of the inode table; the format's own locks; the core lock (`Cache::lock`).
//!
//! # Crash cases
//! The table in `docs/design/ext2-soft-updates.md`, section "Between micro-operations", lists every operation
//! with its patches, their dependencies, and what each crash between them leaves.

mod adopt;
mod attr;
mod evict;
mod fallocate;
mod groups;
mod locks;
mod low;
mod make;
mod names;
mod node;
mod pinned;
mod posix;
mod preallocate;
mod read;
mod reclaim;
mod remove;
mod rename;
mod shift;
mod space;
mod sync;
mod truncate;
mod volume;
mod write;
mod xattr;

pub use fstitch_posix::time::AtimePolicy;
pub use low::{
    Allocation, AttrChange, ClearedName, Extent, FreedName, Limits, LowLevelFs, NAME_BLOCKS, NameSlot,
    NewInode, ReclaimHooks, Reclaimed, Shift, WithInode, Writable,
};
pub(crate) use node::unless_gone;
pub use pinned::PinnedFile;
pub use volume::{Uhfs, UhfsOptions};
