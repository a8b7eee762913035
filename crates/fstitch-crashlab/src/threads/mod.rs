//! The thread laboratory: operations of several threads under a scheduler that decides who goes on at every lock, and power cuts in
//! what they write. Design: `docs/design/threads.md`.
//!
//! ```text
//!   program ──► threads, of which one runs at a time ──► Recorder ──► cuts ──► images ──► judge
//!                    ▲             │ every lock, wait and end of an operation is a step
//!                 schedule ◄── search: all with few preemptions, or a sample
//! ```

mod judge;
mod lab;
mod plan;
mod program;
mod run;
mod schedule;
mod turns;

pub use lab::{Prepared, ThreadCounts, ThreadLab, ThreadOptions};
pub use plan::{Grain, Plan, Tried};
pub use program::{Act, Program};
pub use schedule::{Schedule, Switch, UnknownSchedule};
pub use turns::{Body, End, Played, Step, Turn, play};
