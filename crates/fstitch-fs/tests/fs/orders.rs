//! The order of patches between micro-operations: each arrow of the table in
//! `docs/design/ext2-soft-updates.md`, section "Between micro-operations".
//!
//! Every micro-operation of the toy writes a block of its own. Making one of them stable makes its dependency
//! closure stable and nothing else, so "comes after" can be asked of the cache itself.
