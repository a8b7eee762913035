//! On which processors a workload runs, and whether idle ones may be halted meanwhile.
//!
//! A FUSE request wakes its server and the answer wakes the client. In a virtual machine an idle processor is halted by the
//! host, and to wake it takes 40 to 80 microseconds: several times what is measured. Whether that is paid depends on whether an
//! answer still finds the client's processor awake: a server that computes a few microseconds longer seems four times
//! slower. So a workload says in which setting it is measured.

use std::fs::File;

use anyhow::{Context, Result};
use fstitch_fuse::keep_awake;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processors {
    /// Client and server share one. The kernel's own threads, which write for its drivers, may run anywhere.
    One,
    /// All, and idle ones stay awake.
    Awake,
    /// All, and idle ones in whatever state the machine puts them.
    All,
    /// The same, and nothing else about the machine is changed either: mounts are as people get them.
    AsFound,
}

impl Processors {
    /// Sees to it, for this thread and what is started from it, while the result lives.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn hold(self) -> Result<Held> {
        Ok(match self {
            Self::One => Held { all: Some(pin()?), _awake: None },
            // Where it is refused, the report says so.
            Self::Awake => Held { all: None, _awake: keep_awake().ok() },
            Self::All | Self::AsFound => Held { all: None, _awake: None },
        })
    }
}

/// What becomes of idle processors here, for the report.
#[must_use]
pub fn idle() -> String {
    match keep_awake() {
        Ok(_) => "kept awake while something is measured".to_owned(),
        Err(error) => format!("in whatever state the machine puts them ({error})"),
    }
}

/// Ends the setting when dropped.
#[derive(Debug)]
pub struct Held {
    /// The processors that were allowed before.
    all: Option<CpuSet>,
    _awake: Option<File>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(all) = &self.all {
            // What was allowed before is allowed again.
            let _ = sched_setaffinity(None, all);
        }
    }
}

fn pin() -> Result<CpuSet> {
    let all = sched_getaffinity(None).context("the processors of this process")?;
    let first = (0..CpuSet::MAX_CPU).find(|&cpu| all.is_set(cpu)).context("no processor")?;
    let mut one = CpuSet::new();
    one.set(first);
    sched_setaffinity(None, &one).context("staying on one processor")?;
    Ok(all)
}
