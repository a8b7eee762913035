//! Files whose blocks somebody else uses: they stay where they are, and are written only by that user.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fstitch_core::order::Below;
use fstitch_core::{Caller, Errno, InodeNo, Result, waiting};
use fstitch_patch::{Cache, PatchId};

use super::fallocate::Range;
use super::node::{Node, Part};
use super::read::long;
use super::write::Source;
use super::{Extent, LowLevelFs, Uhfs};

/// A file of which every block has its place for as long as this exists: writing, shortening, punching and allocating
/// answer `ETXTBSY` meanwhile.
pub struct PinnedFile<L: LowLevelFs> {
    fs: Arc<Uhfs<L>>,
    node: Arc<Node<L::Inode>>,
    /// Whole blocks of the file.
    blocks: u64,
}

impl<L: LowLevelFs> PinnedFile<L> {
    /// Pins a regular file; all that it is on the medium is stable afterwards.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where blocks move when they are changed, `EINVAL` if it is no regular file, `EBUSY` if it is pinned already, and as `fsync`.
    pub fn new(fs: &Arc<Uhfs<L>>, ino: InodeNo, read_only: bool) -> Result<Self> {
        if fs.low.moves_blocks() {
            return Err(Errno::OPNOTSUPP.into());
        }
        let node = fs.node_with(ino, 1)?;
        if node.pinned.swap(true, Ordering::AcqRel) {
            fs.do_forget(ino, 1);
            return Err(Errno::BUSY.into());
        }
        let mut file = Self { fs: Arc::clone(fs), node, blocks: 0 };
        file.settle(read_only)?;
        Ok(file)
    }

    fn settle(&mut self, read_only: bool) -> Result<()> {
        let fs = &*self.fs;
        let size = {
            // Whoever is in the middle of a change ends it first.
            let _writer = self.node.writer.lock();
            let state = self.node.read()?;
            fs.expect_regular(&state)?;
            fs.low.attr(state.inode()).size
        };
        self.blocks = size / long(fs.block_size());
        if !read_only {
            // The volume is in use from now on, and its journal started.
            drop(fs.change(0)?);
            fs.do_fsync(self.node.ino(), false)?;
        }
        Ok(())
    }

    /// The cache of the volume that the file is in.
    #[must_use]
    pub fn cache(&self) -> &Arc<Cache> {
        self.fs.low.cache()
    }

    /// Whole blocks of the file.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The run at file block `index`, at most `max` blocks long.
    ///
    /// # Errors
    /// As for reading the file.
    pub fn run(&self, index: u64, max: u64) -> Result<Extent> {
        let _below = Below::enter();
        let state = self.node.read()?;
        let run = self.fs.low.map(state.inode(), index, max)?;
        // What was not written has no contents that a volume could have.
        Ok(if run.written { run } else { Extent::hole(run.count) })
    }

    /// Gives the holes and what was not written among `count` blocks from `index` on places, filled with zeros. Returns what the file's reaching them
    /// must come after. May be called by who holds locks of a file system that lives in this file.
    ///
    /// # Errors
    /// `ENOSPC`, and as for writing the file.
    pub fn fill(&self, index: u64, count: u64) -> Result<PatchId> {
        let _below = Below::enter();
        // Whoever asks is in the middle of a change of the volume in the file.
        let _waits = waiting::allow();
        let fs = &*self.fs;
        let unit = long(fs.block_size());
        let end = index.saturating_add(count).min(self.blocks);
        {
            let change = fs.change(0)?;
            let _writer = fs.writer(&change, &self.node)?;
            let caller = Caller::default();
            let (start, end) = (index * unit, end * unit);
            let range = Range { caller: &caller, start, end, source: Source::ZerosInHoles, grow: false };
            fs.fill_in_steps(&change, &self.node, &range)?;
        }
        let state = self.node.read()?;
        let mut patches = state.track.gathers(&[Part::Contents]);
        patches.extend(fs.low.inode_patches(state.inode()));
        Ok(fs.cache().lock().empty_after(&patches))
    }

    /// How often space was passed over in the volume of the file that it will have.
    #[must_use]
    pub fn barred(&self) -> u64 {
        self.fs.all_barred()
    }

    /// Has that space given. By who has no change under way of the volume in the file.
    ///
    /// # Errors
    /// What writing that volume can fail with.
    pub fn give(&self) -> Result<()> {
        let _below = Below::enter();
        self.fs.give_all()
    }
}

impl<L: LowLevelFs> Drop for PinnedFile<L> {
    fn drop(&mut self) {
        self.node.pinned.store(false, Ordering::Release);
        let _below = Below::enter();
        self.fs.do_forget(self.node.ino(), 1);
    }
}

impl<L: LowLevelFs> std::fmt::Debug for PinnedFile<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PinnedFile({}, {} blocks)", self.node.ino(), self.blocks)
    }
}
