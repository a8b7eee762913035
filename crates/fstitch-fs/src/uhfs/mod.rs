//! The generic high-level file system: POSIX operations out of a format's micro-operations.

mod low;

pub use low::{
    Allocation, AttrChange, ClearedName, Extent, FreedName, Limits, LowLevelFs, NameSlot, NewInode,
};
