//! The answers to `trace`, which are the lines of a trace file as well: what became of patches, in order.

use fstitch_patch::{Event, What};
use serde::{Deserialize, Serialize};

use super::graph::Role;
use super::kind::Kind;

/// The version of the format.
pub const VERSION: u32 = 1;

/// The first line: whose trace it is, and what there was when it began.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Head {
    /// The version of the format; what it is not known to is no trace.
    pub fstitch_trace: u32,
    /// The image file or block device.
    pub image: String,
    /// Where it is mounted.
    pub mountpoint: String,
    /// The format.
    pub format: String,
    /// The consistency mechanism in force.
    pub consistency: String,
    /// Blocks with changes at the beginning, of which a trace knows nothing else.
    pub dirty_blocks: usize,
    /// Patches at the beginning.
    pub patches: usize,
    /// The clock of the events at the beginning, in microseconds.
    pub at_us: u64,
}

/// Something that happened, or a gap.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Happened {
    /// When, in microseconds of the daemon's clock.
    pub at_us: u64,
    /// What.
    #[serde(flatten)]
    pub event: TraceEvent,
}

/// What happened. Patches are named by numbers that no two of them ever share.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case", tag = "event")]
pub enum TraceEvent {
    /// A change became a patch of its block.
    Made { patch: u64, block: u64, kind: Kind, role: Role },
    /// A patch without a block was made.
    MadeEmpty { patch: u64, role: Role },
    /// A change joined a patch.
    Joined { patch: u64 },
    /// A patch became part of another one.
    Merged { patch: u64, into: u64 },
    /// A patch came to wait for another one.
    Waits { patch: u64, before: u64 },
    /// A held patch is held no longer.
    Released { patch: u64 },
    /// A patch has no block any more.
    Emptied { patch: u64 },
    /// A patch was dropped.
    Dropped { patch: u64 },
    /// An epoch began.
    Began { epoch: u64, blocks: u32, dirty: u32, waiters: u32 },
    /// A block is part of it.
    Launched { block: u64, kind: Kind, patches: u32, undone: u32 },
    /// A patch was undone in what is written of its block.
    Undone { patch: u64 },
    /// The epoch was written and flushed, or failed.
    Ended { epoch: u64, failed: bool },
    /// A patch is stable.
    Committed { patch: u64 },
    /// An operation waits for room.
    Stalled,
    /// Nothing is written any more.
    Poisoned,
    /// So many events are missing here.
    Lost { events: u64 },
    /// Something that this program does not know.
    #[serde(other)]
    Other,
}

/// Some events.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Batch {
    /// In order.
    pub events: Vec<Happened>,
}

impl From<&Event> for Happened {
    fn from(event: &Event) -> Self {
        Self { at_us: u64::try_from(event.at.as_micros()).unwrap_or(u64::MAX), event: event.what.into() }
    }
}

impl From<What> for TraceEvent {
    fn from(what: What) -> Self {
        match what {
            What::Made { patch, block, kind, role } => {
                let (block, kind, role) = (block.get(), kind.into(), role.into());
                Self::Made { patch: patch.number(), block, kind, role }
            }
            What::MadeEmpty { patch, role } => Self::MadeEmpty { patch: patch.number(), role: role.into() },
            What::Joined { patch } => Self::Joined { patch: patch.number() },
            What::Merged { patch, into } => Self::Merged { patch: patch.number(), into: into.number() },
            What::Waits { patch, before } => Self::Waits { patch: patch.number(), before: before.number() },
            What::Released { patch } => Self::Released { patch: patch.number() },
            What::Emptied { patch } => Self::Emptied { patch: patch.number() },
            What::Dropped { patch } => Self::Dropped { patch: patch.number() },
            What::Began { epoch, blocks, dirty, waiters } => Self::Began { epoch, blocks, dirty, waiters },
            What::Launched { block, kind, patches, undone } => {
                Self::Launched { block: block.get(), kind: kind.into(), patches, undone }
            }
            What::Undone { patch } => Self::Undone { patch: patch.number() },
            What::Ended { epoch, failed } => Self::Ended { epoch, failed },
            What::Committed { patch } => Self::Committed { patch: patch.number() },
            What::Stalled => Self::Stalled,
            What::Poisoned => Self::Poisoned,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_the_document() {
        let page = include_str!("../../../../docs/control-socket.md");
        let line = |event| serde_json::to_string(&Happened { at_us: 1_250, event }).unwrap();
        let made = TraceEvent::Made { patch: 812, block: 17, kind: Kind::Inode, role: Role::Hard };
        for event in [
            made,
            TraceEvent::Waits { patch: 812, before: 790 },
            TraceEvent::Began { epoch: 12, blocks: 3, dirty: 9, waiters: 1 },
            TraceEvent::Lost { events: 400 },
        ] {
            let line = line(event);
            assert!(page.contains(&line), "docs/control-socket.md lacks {line}");
            let read: Happened = serde_json::from_str(&line).unwrap();
            assert_eq!(read.event, event);
        }
    }

    #[test]
    fn events_of_later_programs_are_passed_over() {
        let read: Happened = serde_json::from_str(r#"{"at_us":5,"event":"of tomorrow","x":7}"#).unwrap();
        assert_eq!(read, Happened { at_us: 5, event: TraceEvent::Other });
    }
}
