//! What every checker finds and every repair does, whatever the format.

use crate::Timestamp;

/// Whether a finding of a checker is lawful after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FindingClass {
    /// The mechanism in force allows it after a crash; repairing loses nothing.
    Allowed,
    /// Damage.
    Corrupt,
}

/// One thing that a checker found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Lawful after a crash, or damage.
    pub class: FindingClass,
    /// A stable machine-readable name, such as `block-leaked`.
    pub code: &'static str,
    /// What and where, for people.
    pub text: String,
}

/// A checker's result.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CheckReport {
    /// What was found, at most [`CheckReport::MAX_FINDINGS`] of it.
    pub findings: Vec<Finding>,
    /// How many findings there were, those not listed included.
    pub total: u64,
    /// How many of all findings are damage.
    pub corrupt: u64,
}

impl CheckReport {
    /// How many findings are listed; the rest is only counted.
    pub const MAX_FINDINGS: usize = 10_000;

    /// Adds a finding.
    pub fn push(&mut self, class: FindingClass, code: &'static str, text: impl Into<String>) {
        self.total += 1;
        self.corrupt += u64::from(class == FindingClass::Corrupt);
        if self.findings.len() < Self::MAX_FINDINGS {
            self.findings.push(Finding { class, code, text: text.into() });
        }
    }

    /// Nothing at all was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.total == 0
    }
}

/// What may be mended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairMode {
    /// Nothing: only report (`-n`).
    No,
    /// What a crash allows, if nothing else is wrong (`-p`).
    Preen,
    /// Everything (`-y`).
    Yes,
}

/// How to repair.
#[derive(Clone, Copy, Debug)]
pub struct RepairOptions {
    /// What may be mended.
    pub mode: RepairMode,
    /// The time for what is freed or made.
    pub now: Timestamp,
}

/// What a repair did.
#[derive(Clone, Debug)]
pub struct RepairReport {
    /// What was found before anything was changed.
    pub found: CheckReport,
    /// How many changes were made.
    pub mended: u64,
    /// What is left: clean when all was mended.
    pub left: CheckReport,
    /// How many runs it took.
    pub runs: u32,
}
