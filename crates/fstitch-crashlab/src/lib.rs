//! The crash laboratory: every image that a power cut can leave, recovered, checked and compared with what was
//! promised.
//!
//! ```text
//!   workload ──► FileSystem under test ──► Recorder ──► log of the medium's past, with the workload's marks
//!                        │                                  │
//!                  trees after each                   cuts, and at each cut the choices of
//!                  operation (ledger)                 versions that the level permits
//!                        │                                  │
//!                        │                            image ──► mount, check, read ──► facts
//!                        └──────────► judge ◄────────────────────────────────────────────┘
//!                                       │
//!                                   violations, each with a line that replays it
//! ```
//!
//! This crate owns the crash model of `docs/medium.md` and the oracles. It takes any [`System`]: a file system that can
//! be mounted on a block device and a checker for it. It puts no hook into production code but
//! one: locks say what they are about to do, in debug builds ([`threads`]). What is no file system brings its own
//! [`Subject`] and [`Oracle`], on a disk or in persistent memory ([`Past`]). It
//! never judges a file system by its own opinion of itself alone: what a crash leaves is compared with what the
//! workload saw before.
#![forbid(unsafe_code)]

mod aftermath;
pub mod explore;
mod fault;
mod groups;
mod id;
mod judging;
mod lab;
mod live;
pub mod medium;
mod minimise;
pub mod oracle;
mod past;
mod recorded;
mod replay;
mod show;
mod soak;
mod system;
pub mod threads;
pub mod workload;

pub use explore::Subject;
pub use fault::{BadPlan, Defect, Fault, FaultDevice, FaultPlan, Requests, Times};
pub use fstitch_core::Consistency;
pub use groups::{GroupCounts, GroupOptions, judge_group_program};
pub use id::{StateId, UnknownState};
pub use lab::{Counts, Found, Lab, LabOptions, Outcome, Recording};
pub use live::{CutReport, LiveDevice, LiveOptions, Survivors, UnknownSurvivors};
pub use medium::{Base, Image, Level, Log, PersistentMemory, Recorder};
pub use minimise::minimise;
pub use oracle::Oracle;
pub use past::Past;
pub use recorded::{
    Chosen, Question, Recorded, RecordedError, RecordedId, RecordedOptions, RecordedOutcome, UnknownRecorded,
};
pub use replay::{Replay, ReplayError, find_workload};
pub use show::{Anatomy, Fate, Need, Needed, Row, Story, story, svg, timeline};
pub use soak::{Limits, Selection, soak};
pub use system::{FindSystem, Mounted, Promise, Reference, STALE, Step, System, UnknownSystem};
