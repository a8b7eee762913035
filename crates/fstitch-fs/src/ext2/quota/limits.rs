//! Limits: what somebody may have more.
//!
//! As the kernel's with usage and limits switched on: hard limits are never passed, soft ones for some time; the superuser passes all.

use fstitch_core::{Caller, Errno, Result};

use super::Usage;
use crate::ext2::layout::quota::{Dquot, LIMIT_UNIT};

/// A limit of storage in bytes.
pub(super) fn bytes(limit: u64) -> u64 {
    limit.saturating_mul(LIMIT_UNIT)
}

/// Whether limits hold for `caller`.
pub(super) fn hold_for(caller: &Caller) -> bool {
    caller.uid != 0
}

/// How much more an entry's owner may have at `now`.
pub(super) fn room(entry: &Dquot, now: u64) -> Usage {
    let left = |has: u64, hard: u64, soft: u64, until: u64| {
        let hard = if hard == 0 { u64::MAX } else { hard.saturating_sub(has) };
        let is_late = soft != 0 && until != 0 && now >= until;
        if is_late { hard.min(soft.saturating_sub(has)) } else { hard }
    };
    Usage {
        inodes: left(entry.inodes, entry.inodes_hard, entry.inodes_soft, entry.inodes_time),
        space: left(entry.space, bytes(entry.space_hard), bytes(entry.space_soft), entry.space_time),
    }
}

/// Fails unless there is room for so much.
pub(super) fn expect(room: Usage, wanted: Usage) -> Result<()> {
    if wanted.inodes > room.inodes || wanted.space > room.space { Err(Errno::DQUOT.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard_limits_hold_and_soft_ones_after_their_time() {
        let entry = Dquot {
            space: 3000,
            space_hard: 4,
            space_soft: 2,
            space_time: 50,
            inodes: 3,
            inodes_hard: 5,
            ..Dquot::default()
        };
        assert_eq!(room(&entry, 49), Usage { inodes: 2, space: 1096 });
        assert_eq!(room(&entry, 50), Usage { inodes: 2, space: 0 });
        assert_eq!(room(&Dquot::default(), 50), Usage { inodes: u64::MAX, space: u64::MAX });
        assert!(expect(room(&entry, 0), Usage { inodes: 3, space: 0 }).is_err());
        assert!(expect(room(&entry, 0), Usage { inodes: 2, space: 1096 }).is_ok());
    }
}
