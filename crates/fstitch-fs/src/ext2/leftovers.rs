//! Which inodes without a name a crash of soft updates can have left, and which must have lost theirs otherwise.
//!
//! An inode in use to which no path leads looks the same whether its name never reached the medium or was destroyed. What
//! tells them apart is age: under soft updates a name comes a moment after its inode, so that only inodes made shortly before
//! the crash can be without one for that reason. A deletion that was cut off leaves old inodes as well, and these cannot be
//! told from losses: they are kept like them. The argument is in `docs/design/ext2-soft-updates.md`, "What reclaiming may free".
//!
//! **Layout.** A record of the mount in the last reserved bytes of the superblock: a magic number, the time since when
//! inodes may lack names, and copies of the time and the count of mounts.
//!
//! **States.** *Absent* (no magic number) on a volume that is clean, keeps a journal or no order. *Present* from the moment
//! that the volume is marked as in use under soft updates until it is marked clean, in the same block as these marks.
//!
//! **Invariants.**
//! 1. The record holds only while its copies agree with the superblock: another implementation's mount changes these, and what
//!    that leaves is not ours.
//! 2. A mount of a volume that is not clean takes the time over from a record that holds: what an earlier crash has left is
//!    still there.
//!
//! **Crash cases.** The record and the mark are in one sector, so that there is no moment between them.

use super::layout::inode::{
    GOOD_OLD_SIZE, I_BLOCKS, I_CRTIME, I_CRTIME_EXTRA, I_CTIME, I_EXTRA_ISIZE, I_FILE_ACL, I_FILE_ACL_HIGH,
    I_LINKS_COUNT, I_MODE, has_extra,
};
use super::layout::superblock::{
    S_MNT_COUNT, S_MTIME, S_SESSION_MAGIC, S_SESSION_MOUNTS, S_SESSION_MTIME, S_SESSION_SINCE, S_STATE,
    STATE_ERROR, STATE_VALID,
};

/// `s_session_magic`: a mount with soft updates. "Fsu1".
const MAGIC: u32 = 0x3175_7346;
/// Names reach the medium some seconds after their inodes, or minutes if whoever mounts wants it so and the medium is slow. An
/// inode that is older than this at the crash has had its name.
const NAMED_WITHIN_SECS: u32 = 3600;
/// Bytes of the record.
pub(crate) const RECORD_SIZE: usize = S_SESSION_MOUNTS.end() + 2 - S_SESSION_MAGIC.offset();

/// What is known of the mount that ended in a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leftovers {
    /// Since when inodes may lack names, in seconds; `None` where no crash of soft updates has happened.
    since: Option<u32>,
    /// The latest change of an inode before the crash.
    newest: u32,
}

impl Leftovers {
    /// What the superblock's bytes say.
    pub(crate) fn of(raw: &[u8]) -> Self {
        let crashed = S_STATE.get(raw) & (STATE_VALID | STATE_ERROR) == 0;
        let holds = S_SESSION_MAGIC.get(raw) == MAGIC
            && S_SESSION_MTIME.get(raw) == S_MTIME.get(raw)
            && S_SESSION_MOUNTS.get(raw) == S_MNT_COUNT.get(raw);
        Self { since: (crashed && holds).then(|| S_SESSION_SINCE.get(raw)), newest: 0 }
    }

    /// Whether a mount that kept soft updates has ended in a crash, and nobody has mended since what that has left.
    pub(crate) const fn are_of_soft_updates(&self) -> bool {
        self.since.is_some()
    }

    /// The record of a mount that starts now.
    pub(crate) fn record(self, now: u32, mounts: u16) -> [u8; RECORD_SIZE] {
        let mut raw = [0; S_SESSION_MAGIC.offset() + RECORD_SIZE];
        S_SESSION_MAGIC.put(&mut raw, MAGIC);
        S_SESSION_SINCE.put(&mut raw, self.since.unwrap_or(now));
        S_SESSION_MTIME.put(&mut raw, now);
        S_SESSION_MOUNTS.put(&mut raw, mounts);
        let mut record = [0; RECORD_SIZE];
        record.copy_from_slice(&raw[S_SESSION_MAGIC.offset()..]);
        record
    }

    /// Notes an inode in use, for the time of the crash. Times from `until` on are of no interest: they are of another mount
    /// or of a repair, or wrong.
    pub(crate) fn note(&mut self, raw: &[u8], until: u32) {
        let changed = I_CTIME.get(raw);
        if changed < until {
            self.newest = self.newest.max(changed);
        }
    }

    /// Whether the inode was made so shortly before the crash that it need not have a name.
    pub(crate) fn is_new(&self, raw: &[u8]) -> bool {
        let made = made(raw);
        self.since.is_some_and(|since| made >= since) && made.saturating_add(NAMED_WITHIN_SECS) >= self.newest
    }

    /// Whether an inode without a name is kept: it is none of what a crash has left, and holds something. Of a directory,
    /// whether it holds something is for the caller to say.
    pub(crate) fn keeps(&self, raw: &[u8]) -> bool {
        let regular = I_MODE.get(raw) & 0xf000 == 0x8000;
        let empty =
            regular && I_BLOCKS.get(raw) == 0 && I_FILE_ACL.get(raw) == 0 && I_FILE_ACL_HIGH.get(raw) == 0;
        I_LINKS_COUNT.get(raw) != 0 && !empty && !self.is_new(raw)
    }
}

/// When an inode was made; where that is not recorded, when it was changed last.
fn made(raw: &[u8]) -> u32 {
    let extra = if raw.len() > GOOD_OLD_SIZE { I_EXTRA_ISIZE.get(raw) } else { 0 };
    let known = has_extra(extra, I_CRTIME_EXTRA.end()) && I_CRTIME_EXTRA.end() <= raw.len();
    match if known { I_CRTIME.get(raw) } else { 0 } {
        0 => I_CTIME.get(raw),
        made => made,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ext2::layout::superblock::SUPERBLOCK_SIZE;

    fn superblock(state: u16, before: Leftovers, now: u32) -> Vec<u8> {
        let mut raw = vec![0; SUPERBLOCK_SIZE];
        S_STATE.put(&mut raw, state);
        S_MTIME.put(&mut raw, now);
        S_MNT_COUNT.put(&mut raw, 3);
        let at = S_SESSION_MAGIC.offset();
        raw[at..at + RECORD_SIZE].copy_from_slice(&before.record(now, 3));
        raw
    }

    fn file(made: u32) -> Vec<u8> {
        let mut raw = vec![0; GOOD_OLD_SIZE];
        I_MODE.put(&mut raw, 0o100_644);
        I_LINKS_COUNT.put(&mut raw, 1);
        I_BLOCKS.put(&mut raw, 2);
        I_CTIME.put(&mut raw, made);
        raw
    }

    #[test]
    fn only_what_was_made_in_the_last_mount_is_new() {
        let left = Leftovers::of(&superblock(0, Leftovers::default(), 1000));
        assert!(left.is_new(&file(1000)) && !left.is_new(&file(999)));
        // The time is handed on from crash to crash.
        let again = Leftovers::of(&superblock(0, left, 2000));
        assert!(again.is_new(&file(1000)) && !again.is_new(&file(999)));
    }

    #[test]
    fn what_had_time_to_get_its_name_is_not_new() {
        let mut left = Leftovers::of(&superblock(0, Leftovers::default(), 1000));
        left.note(&file(100_000), u32::MAX);
        left.note(&file(900_000), 200_000);
        assert!(left.is_new(&file(100_000 - NAMED_WITHIN_SECS)));
        assert!(!left.is_new(&file(100_000 - NAMED_WITHIN_SECS - 1)));
    }

    #[test]
    fn a_volume_that_is_clean_or_somebody_else_s_has_nothing_new() {
        for state in [STATE_VALID, STATE_ERROR] {
            assert!(!Leftovers::of(&superblock(state, Leftovers::default(), 1000)).is_new(&file(1500)));
        }
        let mut raw = superblock(0, Leftovers::default(), 1000);
        S_MNT_COUNT.put(&mut raw, 4);
        assert!(!Leftovers::of(&raw).is_new(&file(1500)));
    }

    #[test]
    fn what_holds_nothing_or_is_deleted_is_not_kept() {
        let left = Leftovers::default();
        let (mut empty, mut deleted) = (file(5), file(5));
        I_BLOCKS.put(&mut empty, 0);
        I_LINKS_COUNT.put(&mut deleted, 0);
        assert!(left.keeps(&file(5)) && !left.keeps(&empty) && !left.keeps(&deleted));
    }
}
