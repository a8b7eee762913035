//! Benchmarks: every contender on the same machine in the same run.
//!
//! ```text
//!   run ──► contender (who)   ──► place (where: a directory, or a file system in this process)
//!    │  └─► workload  (what)  ──► meter (what it costs)
//!    ▼
//!   results ──► report (ratios, goals, Markdown, SVG)        papers, scale: what has no rival to race with
//! ```
#![forbid(unsafe_code)]

pub mod contender;
pub mod inside;
pub mod limit;
pub mod meter;
pub mod papers;
pub mod place;
pub mod processors;
pub mod race;
pub mod report;
pub mod results;
pub mod session;
mod transport;
pub mod warm;
pub mod workload;
