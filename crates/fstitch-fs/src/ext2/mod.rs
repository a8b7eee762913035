//! The ext2 format.

pub mod mkfs;
pub mod view;
