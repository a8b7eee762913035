//! The format's structures: where each field lies, which values are valid, and how to encode them.
//!
//! Every structure comes in two forms. The *raw* form is a module of [`Field`] constants with the names of
//! the specification (`S_INODES_COUNT`, `I_LINKS_COUNT`), to be read from and written into byte slices. The
//! *validated* form (`Superblock`, `GroupDescriptor`, `DiskInode`, `EntryView`, …) has our names and is made
//! only by functions that check every value against the volume's size. Damage is [`fstitch_core::Error::Corrupt`] with
//! the structure's coordinates; what is valid but unknown is [`fstitch_core::Error::Unsupported`] by name.
//!
//! Nothing here changes a medium or knows patches.

pub mod checksum;
pub mod dirent;
pub mod extent;
pub mod feature;
mod field;
pub mod group;
pub(crate) mod index;
pub mod inode;
mod kept_sum;
pub mod mmp;
pub(crate) mod name_hash;
pub mod quota;
pub mod superblock;
pub mod xattr;

pub use field::{Field, FieldInt};
pub use kept_sum::keep_sum;
