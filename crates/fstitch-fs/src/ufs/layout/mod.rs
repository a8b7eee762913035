//! Bytes of a UFS volume and their meaning: `docs/spec/ufs.md`.

pub mod dirent;
pub mod group;
pub mod inode;
pub mod superblock;
pub mod xattr;
