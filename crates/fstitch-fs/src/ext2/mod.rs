//! The ext2 format.
