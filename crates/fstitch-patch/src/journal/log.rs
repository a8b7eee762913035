//! A journal on a device: its superblock, and its blocks by number.

use std::sync::Arc;

use fstitch_core::num::to_usize;
use fstitch_core::{
    BlockBuf, BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Error, IoOp, Result, Structure,
    Timestamp,
};

use super::area::Area;
use super::blocks::Shape;
use super::format::{NARROW_END, SUPERBLOCK_SIZE, Sequence, Superblock};
use super::scan::{Scan, Walk};
use super::writer::{Described, Writer};

/// What copies are allowed to go home to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    /// Blocks that copies may be written to: those below this number.
    pub block_count: u64,
    /// They are on the journal's own device, so a copy must never go where the journal is.
    pub shares_device: bool,
}

/// A journal on a device whose blocks are as large as the journal's.
pub struct Log<'d> {
    device: &'d dyn BlockDevice,
    area: &'d Area,
    home: Home,
    superblock: Superblock,
    /// The superblock's whole block: what we do not model is kept.
    raw: BlockBuf,
    at: BlockNo,
}

impl std::fmt::Debug for Log<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log")
            .field("superblock", &self.superblock)
            .field("home", &self.home)
            .finish_non_exhaustive()
    }
}

impl<'d> Log<'d> {
    /// Reads and checks the superblock of the journal that lies in `area` of `device`.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Corrupt`]; [`Error::Unsupported`] by the names of the features.
    pub fn open(device: &'d dyn BlockDevice, area: &'d Area, home: Home) -> Result<Self> {
        let block_size = device.geometry().block_size;
        let at = area.superblock()?;
        let mut raw = BlockBuf::zeroed(to_usize(block_size));
        if raw.len() < SUPERBLOCK_SIZE {
            return Err(Error::Unsupported(format!("a journal in blocks of {block_size} bytes")));
        }
        device.read(&mut [BlockRead { block: at, kind: BlockKind::JournalSuperblock, data: &mut raw }])?;
        let superblock = Superblock::parse(&raw[..SUPERBLOCK_SIZE], block_size, area.count())?;
        Ok(Self { device, area, home, superblock, raw, at })
    }

    /// The superblock, as it is on the medium.
    #[must_use]
    pub const fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// How the journal's blocks are shaped.
    #[must_use]
    pub fn shape(&self) -> Shape {
        Shape::new(&self.superblock)
    }

    /// Whether there is nothing in the log.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.superblock.start == 0
    }

    /// Bytes per block.
    #[must_use]
    pub fn block_size(&self) -> usize {
        self.raw.len()
    }

    /// Whether a copy may be written to block `no`.
    pub(super) fn may_go_home(&self, no: u64) -> bool {
        no < self.home.block_count && !(self.home.shares_device && self.area.contains(BlockNo(no)))
    }

    /// The same for all of `count` blocks.
    pub(super) fn may_all_go_home(&self, first: u64, count: u64) -> bool {
        let end = first.saturating_add(count);
        let meets = |(start, len): (BlockNo, u64)| first < start.get() + len && start.get() < end;
        end <= self.home.block_count && !(self.home.shares_device && self.area.runs().any(meets))
    }

    /// Reads the records of the log, in order, without judging copies.
    #[must_use]
    pub fn walk(&self) -> Walk<'_> {
        Walk::new(self, false)
    }

    /// Finds the whole transactions, verifying every checksum that the journal has. `progress` is told how many
    /// blocks of the log were passed, out of how many.
    ///
    /// # Errors
    /// [`Error::Io`] only: damage is an end of the log.
    pub fn scan(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Scan> {
        Scan::run(self, progress)
    }

    /// Reads blocks of the journal, each into one of `into`.
    ///
    /// # Errors
    /// When the device fails.
    pub fn read(
        &self,
        from: impl IntoIterator<Item = u32>,
        kind: BlockKind,
        into: &mut [BlockBuf],
    ) -> Result<()> {
        let mut reads = Vec::with_capacity(into.len());
        for (no, data) in from.into_iter().zip(into) {
            reads.push(BlockRead { block: self.area.map(u64::from(no))?, kind, data });
        }
        self.device.read(&mut reads)
    }

    /// Writes blocks of the journal: their numbers in it, what they are, their bytes.
    ///
    /// # Errors
    /// When the device fails.
    pub fn write(&self, blocks: &[(u32, BlockKind, &[u8])]) -> Result<()> {
        let mut writes = Vec::with_capacity(blocks.len());
        for &(no, kind, data) in blocks {
            writes.push(BlockWrite { block: self.area.map(u64::from(no))?, kind, data });
        }
        self.device.write(&writes)
    }

    /// Makes what was written stable.
    ///
    /// # Errors
    /// When the device fails.
    pub fn flush(&self) -> Result<()> {
        self.device.flush()
    }

    /// Changes the superblock on the medium and makes that stable.
    ///
    /// # Errors
    /// When the device fails; what the medium says then is unknown.
    pub fn change_superblock(&mut self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        let mut changed = self.superblock.clone();
        change(&mut changed);
        let mut raw = self.raw.clone();
        changed.encode_into(&mut raw[..SUPERBLOCK_SIZE]);
        debug_assert_eq!(Superblock::decode(&raw).as_ref().ok(), Some(&changed));
        let write = BlockWrite { block: self.at, kind: BlockKind::JournalSuperblock, data: &raw };
        self.device.write(&[write])?;
        self.device.flush()?;
        (self.superblock, self.raw) = (changed, raw);
        Ok(())
    }

    /// Says that the log is empty and that its next transaction will be `next`. Everything that was in the log must be
    /// stable at home.
    ///
    /// # Errors
    /// When the device fails.
    pub fn reset(&mut self, next: Sequence) -> Result<()> {
        self.change_superblock(|superblock| {
            superblock.start = 0;
            superblock.sequence = next;
        })
    }

    /// Forgets the error that the last user of the journal has left in it.
    ///
    /// # Errors
    /// When the device fails.
    pub fn forget_errno(&mut self) -> Result<()> {
        self.change_superblock(|superblock| superblock.errno = 0)
    }

    /// The most blocks that [`Log::apply`] can change at once.
    #[must_use]
    pub fn apply_max(&self) -> usize {
        let per_descriptor = self.shape().tags_max();
        let log = to_usize(self.superblock.log_blocks());
        // One block is the commit's, one of the log stays unused; each descriptor has its copies.
        let groups = (log - 2).div_ceil(per_descriptor + 1);
        log.saturating_sub(2 + groups)
    }

    /// Changes blocks at home all or not at all, through one transaction in the empty log: `blocks` in ascending order.
    /// When it returns they are in the log for good, and [`super::replay`](fn@super::replay) brings them home; without it they are as before.
    ///
    /// **Crash cases.** Until the superblock's last write the log is empty for everybody; with it, the whole transaction
    /// is stable already. So the one write that matters is the superblock's.
    ///
    /// # Errors
    /// When the device fails: the transaction is in the log or not, and nothing at home was touched. `Corrupt` if a block
    /// is none that copies may go to: nothing was touched at all.
    ///
    /// # Panics
    /// If the log is not empty, or there are no blocks or more than [`Log::apply_max`].
    pub fn apply(&mut self, blocks: &[(BlockNo, BlockBuf)], now: Timestamp) -> Result<()> {
        assert!(self.is_empty(), "a transaction of its own needs an empty log");
        if self.home.block_count > NARROW_END && !self.superblock.features.is_wide() {
            // An empty log is read by nobody, so it may be one of either kind.
            self.change_superblock(Superblock::widen)?;
        }
        self.check_transaction(blocks)?;
        let first = self.superblock.first;
        // No flush before the commit block: nobody looks at it before the superblock says so.
        self.write_transaction(first, self.superblock.sequence, blocks, now)?;
        self.flush()?;
        self.change_superblock(|superblock| superblock.start = first)
    }

    /// Fails if one of the blocks of a transaction may not go home.
    ///
    /// # Panics
    /// If there are none, or more than [`Log::apply_max`].
    pub(super) fn check_transaction(&self, blocks: &[(BlockNo, BlockBuf)]) -> Result<()> {
        assert!(!blocks.is_empty() && blocks.len() <= self.apply_max(), "{} blocks", blocks.len());
        let is_narrow = !self.superblock.features.is_wide();
        if let Some((home, _)) = blocks.iter().find(|(home, _)| is_narrow && home.get() >= NARROW_END) {
            let problem = "a log whose block numbers have 32 bits, and in use, cannot name the block";
            return Err(Error::corrupt(Structure::Journal, *home, problem));
        }
        match blocks.iter().find(|(home, _)| !self.may_go_home(home.get())) {
            Some((home, _)) => {
                let problem = "the block is the journal's own, or beyond the volume";
                Err(Error::corrupt(Structure::Journal, *home, problem))
            }
            None => Ok(()),
        }
    }

    /// Writes a whole transaction from journal block `at` on, which goes around at the log's end.
    pub(super) fn write_transaction(
        &self,
        mut at: u32,
        sequence: Sequence,
        blocks: &[(BlockNo, BlockBuf)],
        now: Timestamp,
    ) -> Result<()> {
        let shape = self.shape();
        let mut writer = Writer::new(shape, sequence);
        let mut next = || {
            let here = at;
            at = self.superblock.advance(at, 1);
            here
        };
        for part in blocks.chunks(shape.tags_max()) {
            let part = part.iter().map(|(home, data)| (*home, Arc::new(data.clone())));
            let Described { descriptor, copies } = writer.describe(part);
            let mut writes = vec![(next(), BlockKind::JournalDescriptor, &descriptor[..])];
            writes.extend(copies.iter().map(|copy| (next(), BlockKind::JournalData, &copy[..])));
            self.write(&writes)?;
        }
        self.write(&[(next(), BlockKind::JournalCommit, &writer.commit(now))])
    }

    /// That `device` has blocks of the journal's size and all that copies may go to.
    pub(super) fn check_home(&self, device: &dyn BlockDevice) -> Result<()> {
        let geometry = device.geometry();
        if geometry.block_size == self.superblock.block_size && geometry.block_count >= self.home.block_count
        {
            return Ok(());
        }
        let reason = std::io::Error::new(std::io::ErrorKind::InvalidInput, "a device of another shape");
        Err(Error::io(IoOp::Open, BlockNo(0), reason))
    }
}
