//! SQLite itself on a logical disk. What it prevents: a database that differs from one in a file, half a transaction, one that was
//! acknowledged and is lost, two that write at once, and a file system that SQLite takes for another version of it.

#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]
#![allow(unsafe_code, reason = "SQLite's interface is that of C")]

mod attached;
mod basics;
mod failing;
mod full;
mod harness;
mod interface;
mod kill;
mod lab;
mod loaded;
mod locks;
