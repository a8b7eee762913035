//! The ext2 format.

pub mod device;
pub mod layout;
pub mod mkfs;
pub(crate) mod num;
pub mod times;
pub mod view;
