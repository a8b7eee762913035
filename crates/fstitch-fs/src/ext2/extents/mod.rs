//! The block map by extents.
//!
//! ```text
//!   tree ── operations in memory, on nodes (layout::extent)
//! ```

mod node;
mod tree;
