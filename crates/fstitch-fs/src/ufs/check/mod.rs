//! Checking a volume, without changing it: what is on it is compared with what it says of itself.
//!
//! ```text
//!   groups ─► every inode, every fragment that it claims (inodes) ─► every name, from the root on (names) ─► bitmaps and counts (maps)
//! ```
//!
//! *Allowed* is what soft updates leave after a crash: something is marked as used that nothing owns, a count of names that is too
//! high, a total that is wrong. Everything else is damage. Memory: a bit for each fragment, some bytes for each inode.

mod inodes;
mod maps;
mod names;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockKind, BlockNo, CheckReport, Error, FindingClass, Result, Structure};

use super::layout::group::Group;
use super::layout::superblock::{Superblock, Totals};
use super::volume::Ufs;
use crate::bits::Bits;

/// What is known of an inode in use.
#[derive(Clone, Copy, Default)]
struct Seen {
    nlink: u16,
    /// Names that lead to it.
    names: u32,
    is_directory: bool,
    is_used: bool,
}

/// What was found so far.
struct State {
    report: CheckReport,
    groups: Vec<Option<Group>>,
    /// Fragments that somebody has.
    claimed: Bits,
    inodes: Vec<Seen>,
    totals: Totals,
}

impl State {
    fn damage(&mut self, code: &'static str, text: impl Into<String>) {
        self.report.push(FindingClass::Corrupt, code, text);
    }

    fn allowed(&mut self, code: &'static str, text: impl Into<String>) {
        self.report.push(FindingClass::Allowed, code, text);
    }

    /// Keeps what a step found to be damaged; other errors end the check.
    fn keep<T>(&mut self, code: &'static str, found: Result<T>) -> Result<Option<T>> {
        match found {
            Ok(found) => Ok(Some(found)),
            Err(Error::Corrupt(problem)) => {
                self.damage(code, problem.to_string());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

impl Ufs {
    /// Checks the volume.
    ///
    /// # Errors
    /// When the device fails.
    pub fn check_volume(&self) -> Result<CheckReport> {
        let sb = &self.sb;
        let mut state = State {
            report: CheckReport::default(),
            groups: Vec::new(),
            claimed: Bits::new(sb.fragments),
            inodes: vec![Seen::default(); to_usize(sb.inodes())],
            totals: Totals::default(),
        };
        if self.is_unclean() {
            state.allowed("superblock-not-clean", "the volume was not unmounted in an orderly way");
        }
        for no in 0..sb.groups {
            let group = self.group(no);
            let group = state.keep("group", group)?;
            state.groups.push(group);
        }
        own(sb, &mut state.claimed);
        self.check_inodes(&mut state)?;
        self.check_names(&mut state)?;
        self.check_maps(&mut state);
        Ok(state.report)
    }

    /// Reads a group.
    fn group(&self, no: u32) -> Result<Group> {
        let sb = &self.sb;
        let at = sb.group_start(no) + u64::from(sb.parts[1]);
        let count = to_u64(to_usize(sb.group_size)).div_ceil(u64::from(sb.fragment_size));
        if at + count > sb.fragments {
            let problem = format!("it would lie in fragment {at} of {}", sb.fragments);
            return Err(Error::corrupt(Structure::Descriptor(u64::from(no)), None, problem));
        }
        let mut bytes = Vec::new();
        for block in at..at + count {
            bytes.extend_from_slice(&self.cache.read(BlockNo(block), BlockKind::GroupDescriptor)?.snapshot());
        }
        bytes.truncate(to_usize(sb.group_size));
        Group::parse(bytes, no, BlockNo(at), sb)
    }
}

/// Claims what is the volume's own: the metadata of groups, all that is before those of the first, and the counts of all groups.
fn own(sb: &Superblock, claimed: &mut Bits) {
    let mut claim = |range: std::ops::Range<u64>| {
        for at in range.start..range.end.min(sb.fragments) {
            claimed.set(at);
        }
    };
    claim(0..u64::from(sb.parts[0]));
    for group in 0..sb.groups {
        let start = sb.group_start(group);
        claim(start + u64::from(sb.parts[0])..start + u64::from(sb.parts[3]));
    }
    let (at, bytes) = sb.summaries;
    let count = u64::from(bytes).div_ceil(u64::from(sb.fragment_size));
    claim(at.min(sb.fragments)..at.saturating_add(count));
}
