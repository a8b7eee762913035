//! Files that share blocks: what `copy_file_range` and `cp` make of it.
//!
//! **Layout.** The second file's reference has the flag *shared* and the generation in which it was made; the table of shared blocks counts it.
//!
//! **Invariants.** 1. A block's count is the number of references to it beyond the first, all trees together, where a reference that two
//! trees have at the same place is one. 2. Contents with a count, or whose reference has the flag, are written elsewhere.
//!
//! **Crash cases**: none of its own. References and counts are of one root.

use fstitch_core::{Caller, Errno, InodeNo, Result};
use fstitch_posix::change::check_write;
use fstitch_posix::expect_regular;

use super::files::drop_privileges;
use super::layout::inode::Inode;
use super::layout::pointer::{PACKED, Ref, SHARED};
use super::layout::{BLOCK_BYTES, CLUSTER, CLUSTER_BYTES, SIZE_MAX};
use super::names::touch_contents;
use super::state::{Class, State};
use super::tree::{Obj, UNCOUNTED};
use super::volume::{SNAPSHOTS_INO, Waffle};

/// Blocks that are shared at once, all or nothing.
const SHARE_MAX: u64 = 4096;

/// A range of a file, and where it is to be.
#[derive(Clone, Copy)]
struct Range {
    from: u64,
    to: u64,
    len: u64,
}

impl Waffle {
    /// Shares as many bytes as can be from the start of a range, which may be in a snapshot.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if none can be: both must begin with a block, and end with one unless the files end there. `EINVAL` for what overlaps;
    /// those of a write.
    pub(super) fn do_share(
        &self,
        caller: &Caller,
        (source, from): (InodeNo, u64),
        (target, to): (InodeNo, u64),
        len: u64,
    ) -> Result<u64> {
        // A file that is shared with itself gets no longer by that.
        let size =
            if source == SNAPSHOTS_INO { 0 } else { self.inode_of(&self.share().state, source)?.1.size };
        let len = if size > from { len.min(size - from) } else { len };
        let mut done = 0;
        loop {
            let piece = Range { from: from + done, to: to + done, len: len - done };
            match self.share_piece(caller, (source, target), piece) {
                Ok(0) => return Ok(done),
                Ok(shared) => done += shared,
                Err(error) if done == 0 => return Err(error),
                Err(_) => return Ok(done),
            }
            if done == len {
                return Ok(done);
            }
        }
    }

    fn share_piece(
        &self,
        caller: &Caller,
        (source, target): (InodeNo, InodeNo),
        range: Range,
    ) -> Result<u64> {
        let (core, shared) = self.change(Class::Takes, 0, |state| {
            if source == SNAPSHOTS_INO {
                return Err(Errno::ISDIR.into());
            }
            let (tree, inode) = self.inode_of(state, source)?;
            let other = self.ours(state, target)?;
            expect_regular(inode.kind)?;
            expect_regular(other.kind)?;
            check_write(&other.seen(), range.to)?;
            let is_same = tree == state.head && inode.ino == other.ino;
            let len = shareable(range, inode.size, other.size, is_same)?;
            let len = state.whole_clusters(tree, (&inode, &other), Range { len, ..range })?;
            if len > 0 {
                let range = Range { len, ..range };
                let (taken, given) = state.share(tree, inode.ino, other.ino, range)?;
                touch_contents(state, other.ino, |other| {
                    other.size = other.size.max(range.to + len);
                    other.blocks = other.blocks.saturating_add(taken).saturating_sub(given);
                    drop_privileges(other, caller);
                })?;
            }
            Ok(len)
        })?;
        drop(core);
        Ok(shared)
    }
}

/// How many bytes of a range can be shared at once, of a file of `size` bytes with one of `target` bytes.
fn shareable(range: Range, size: u64, target: u64, is_same: bool) -> Result<u64> {
    let Range { from, to, len } = range;
    let len = len.min(size.saturating_sub(from));
    if to.checked_add(len).is_none_or(|end| end > SIZE_MAX) {
        return Err(Errno::FBIG.into());
    }
    if is_same && from < to + len && to < from + len {
        return Err(Errno::INVAL.into());
    }
    if len == 0 {
        return Ok(0);
    }
    // Behind a file's end its last block has zeros.
    let whole = len - len % BLOCK_BYTES;
    let ends_both = from + len == size && to + len >= target;
    let len = if ends_both { len } else { whole }.min(SHARE_MAX * BLOCK_BYTES);
    if from % BLOCK_BYTES != 0 || to % BLOCK_BYTES != 0 || len == 0 {
        return Err(Errno::OPNOTSUPP.into());
    }
    Ok(len)
}

impl State {
    /// How many bytes of a range can be shared where clusters of either file may be compressed: these are shared as a whole.
    fn whole_clusters(&self, tree: usize, (source, target): (&Inode, &Inode), range: Range) -> Result<u64> {
        let Range { from, to, len } = range;
        let is_packed = |tree: usize, inode: &Inode, from: u64| -> Result<bool> {
            for cluster in from / CLUSTER_BYTES..(from + len).div_ceil(CLUSTER_BYTES) {
                if self.is_packed(tree, inode, cluster * CLUSTER)? {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        if !self.has_packed()
            || len == 0
            || !is_packed(tree, source, from)? && !is_packed(self.head, target, to)?
        {
            return Ok(len);
        }
        let whole = len - len % CLUSTER_BYTES;
        let ends_both = from + len == source.size && to + len >= target.size;
        let len = if ends_both { len } else { whole };
        if from % CLUSTER_BYTES != 0 || to % CLUSTER_BYTES != 0 || len == 0 {
            return Err(Errno::OPNOTSUPP.into());
        }
        Ok(len)
    }

    /// Lets the blocks of a range be another file's as well; returns how many it has more, and how many it had there.
    fn share(&mut self, tree: usize, source: u64, target: u64, range: Range) -> Result<(u64, u64)> {
        let (mut taken, mut given) = (0, 0);
        let (first, to) = (range.from / BLOCK_BYTES, range.to / BLOCK_BYTES);
        let obj = Obj::Data(target);
        for step in 0..range.len.div_ceil(BLOCK_BYTES) {
            let reference = self.leaf(tree, Obj::Data(source), first + step)?;
            let old = self.leaf(self.head, obj, to + step)?;
            if reference.is_none() && old.is_none() || reference.block == old.block {
                continue;
            }
            if !reference.is_none() {
                self.check_leaf(reference, (Obj::Data(source), 0, first + step))?;
                let count = self.shares(reference.block)?.saturating_add(1);
                if count == UNCOUNTED {
                    return Err(Errno::MLINK.into());
                }
                self.set_shares(reference.block, count)?;
                let shared =
                    Ref { birth: self.generation(), flags: reference.flags & PACKED | SHARED, ..reference };
                self.set_leaf(obj, to + step, shared)?;
                taken += 1;
            } else {
                self.set_leaf(obj, to + step, Ref::NONE)?;
            }
            self.release(obj, old)?;
            given += u64::from(!old.is_none());
        }
        Ok((taken, given))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_shared() {
        let share = |from, to, len, size, target| {
            shareable(Range { from, to, len }, size, target, false).map_err(|error| error.errno())
        };
        assert_eq!(share(0, 0, 10_000, 10_000, 0), Ok(10_000), "a whole file");
        assert_eq!(share(0, 0, u64::MAX, 10_000, 10_000), Ok(10_000), "over one of the same length");
        assert_eq!(share(0, 0, 10_000, 10_000, 10_001), Ok(8192), "a byte behind it stays");
        assert_eq!(share(0, 4096, 5000, 10_000, 0), Ok(4096), "blocks alone in mid-file");
        assert_eq!(share(4096, 0, 100, 10_000, 0), Err(Errno::OPNOTSUPP));
        assert_eq!(share(1, 0, 9_999, 10_000, 0), Err(Errno::OPNOTSUPP));
        assert_eq!(share(0, 1, 10_000, 10_000, 0), Err(Errno::OPNOTSUPP));
        assert_eq!(share(12_288, 0, 10, 10_000, 0), Ok(0), "behind the end");
        assert_eq!(share(0, SIZE_MAX - 4095, 8192, 10_000, 0), Err(Errno::FBIG));
        assert_eq!(share(0, 0, 1 << 30, 1 << 30, 0), Ok(SHARE_MAX * BLOCK_BYTES));
        let overlapping = shareable(Range { from: 0, to: 4096, len: 8192 }, 1 << 20, 1 << 20, true);
        assert_eq!(overlapping.map_err(|error| error.errno()), Err(Errno::INVAL));
        assert_eq!(shareable(Range { from: 0, to: 8192, len: 8192 }, 1 << 20, 1 << 20, true).unwrap(), 8192);
    }
}
