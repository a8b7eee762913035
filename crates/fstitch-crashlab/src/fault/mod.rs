//! Defects of hardware, level M4 of `docs/medium.md`: a device that does wrong as a plan tells it.
//!
//! ```text
//!   FaultPlan "seed=7; torn write kind=Inode nth=3; error flush times=all"
//!        │ which request, which defect
//!   FaultDevice ──► the device below
//! ```
//!
//! The plan is one value that prints as one line and is read back from it, so that a failure replays.

mod device;
mod plan;
mod text;

pub use device::{FaultDevice, Requests};
pub use plan::{Defect, Fault, FaultPlan, Times};
pub use text::BadPlan;
