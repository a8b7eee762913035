//! waffle: a file system with shadow paging, after WAFL. Layout: `docs/spec/waffle.md`; design, invariants and crash cases:
//! `docs/design/waffle.md`.
//!
//! ```text
//!   posix.rs   FileSystem                 check/     every sum, the map, names, lists
//!   names.rs moves.rs files.rs xattr.rs   operations, each all or nothing
//!   dir.rs data.rs inodes.rs              structures in trees of blocks      cluster.rs  compressed contents
//!   tree.rs    nodes by their places, changed ones in memory
//!   state.rs   an operation's begin, room, end and undoing      map.rs   used and free blocks
//!   commit.rs  nodes become blocks, and a root                  layout/  bytes
//!   snapshot.rs  records of roots that stay, and clones of them    share.rs  files that share blocks    stream/  snapshots sent and received
//!   scrub.rs   every sum, compared with the medium while the volume is in use
//!   volume.rs age.rs  a mount: locks, references, when it commits      grouped.rs  devices with smaller blocks
//!        │
//!        ▼
//!   Cache (fstitch-patch): a patch for each new block; the root's comes after all
//! ```

mod age;
pub mod check;
mod cluster;
mod commit;
mod data;
mod dir;
mod files;
mod grouped;
mod inodes;
mod known;
pub mod layout;
mod map;
mod marks;
pub mod mkfs;
mod moves;
mod names;
mod posix;
mod scrub;
mod share;
mod snapshot;
mod state;
mod stream;
mod tree;
mod volume;
mod xattr;

pub use grouped::grouped;
pub use layout::root::Root;
pub use scrub::{Damaged, ScrubAt, ScrubPart, Scrubbed};
pub use snapshot::Snapshot;
pub use stream::{Received, copy_stream, receive};
pub use volume::{Options, Waffle};
