//! The server's side of the NBD protocol (fixed newstyle). Design: `docs/design/nbd.md`.
//!
//! ```text
//!   clients ══ Unix socket, TCP ══►  Server: listeners, connections, stop        server.rs, listener.rs
//!                                       │ one thread each
//!                                    negotiation ──► Exports::open               negotiate/
//!                                       │
//!                                    connection: reads, performs, answers        connection/
//!                                       │  up to 16 threads take turns at reading
//!                                    ┌──▼─────┐
//!                                    │ Export │  read write flush trim zero status
//!                                    └──┬─────┘
//!                            MemExport, DeviceExport, whatever else has bytes
//! ```
//!
//! This crate owns the protocol: what is asked for in which bytes, who reads them, how many requests are in flight, how a
//! server stops. It never decides what an export is or which names there are, keeps no data of its own but in
//! [`MemExport`], and never acknowledges a flush or a write with FUA before [`Export`] has returned from it.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails where it cannot go on"))]

mod connection;
mod device;
mod export;
mod listener;
mod memory;
mod negotiate;
mod options;
mod proto;
mod registry;
mod server;
mod spans;
mod stats;
mod stream;

pub use device::DeviceExport;
pub use export::{BlockSizes, Export, Exports, Extent, Features, Listed, Single, ZeroOptions};
pub use memory::MemExport;
pub use options::Options;
pub use server::{Server, Stopped};
pub use stats::{Kind, Stats};
pub use stream::Stream;
