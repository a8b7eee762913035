//! The block by which a volume tells other machines that it is in use (feature `mmp`): what keeps two of them that share a disk from
//! mounting it at once.
//!
//! **Layout.** A block that the superblock names holds a magic number, a number that changes, the time, who wrote it, the seconds between
//! two changes, and with sums a sum (1024 bytes in all).
//!
//! **States and transitions.**
//!
//! ```text
//!   free ──[the number of a new user, and a wait]──► in use ──[each interval: the next number]──► in use ──► free
//!     in use elsewhere: the number changes while somebody waits: refused
//!     left by a crash: it does not change while somebody waits: as free
//!     being checked: refused, or if somebody says that no check runs any more as if it were in use
//!   in use ──[another's number is found there]──► lost: nothing is written any more, and the block stays as it is
//! ```
//!
//! **Invariants.** 1. Nothing else is written to the volume before the claim has waited. 2. Who could not write the next number for so long
//! that others may take him for crashed looks whose the block is before he writes anything; the time of a number is that before it was
//! written, and goes on while the machine sleeps. 3. The block is written by who has just seen that it is his. 4. Who has lost the volume, or
//! has released it, never writes to it again. 5. What is read of the block is what the medium has, and not what this machine remembers of it:
//! whoever gives us the device sees to that.
//!
//! **Damage.** A volume that is to be mended is claimed by the superblock that it will be mended by, whatever else is wrong with it. Where no
//! superblock leads to such a block nothing tells who uses the volume, and it is mended without.
//!
//! **Crash cases.** The block stays as it was in use: the next one waits to see that it does not change. A torn block has a wrong sum; it
//! is waited for like any other, because whoever lives writes it again.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fstitch_core::{
    BlockBuf, BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Clock, Error, Geometry, IoOp, Result,
    Structure,
};

use super::check::to_mend_by;
use super::journal::read_superblock;
use super::layout::checksum::Sums;
use super::layout::feature::incompat;
use super::layout::mmp::{
    CHECKED, DEVICE, FREE, M_CHECK_INTERVAL, M_CHECKSUM, M_MAGIC, M_NUMBER, M_TIME, MAGIC, NODE, NUMBER_MAX,
};
use super::layout::superblock::{
    S_FEATURE_INCOMPAT, S_LOG_BLOCK_SIZE, S_MMP_BLOCK, S_MMP_INTERVAL, SUPERBLOCK_SIZE,
};
use crate::view::BlockView;

/// Seconds between two changes of a new volume's block.
pub(super) const INTERVAL: u16 = 5;
/// Seconds after which a user is taken for crashed, at least.
const CHECK_INTERVAL_MIN: u16 = 5;
/// And at most.
const CHECK_INTERVAL_MAX: u16 = 300;
/// Waits are no longer than the interval and this.
const WAIT_MORE_MAX: u16 = 60;

/// Who wants a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Who {
    /// The name of this machine.
    pub node: String,
    /// What the volume's device is called here.
    pub device: String,
}

/// What a claim needs of the world around it.
pub struct Around<'a> {
    /// What time it is; what has elapsed includes the time that the machine slept.
    pub clock: Arc<dyn Clock>,
    /// Any number, another one each time.
    pub random: u32,
    /// Somebody says that no check of the volume runs any more. One that does nevertheless writes the time to the block, and is seen.
    pub no_check: bool,
    /// Waits, and fails if there is no use in waiting any longer.
    pub wait: &'a mut dyn FnMut(Duration) -> Result<()>,
}

/// What the block says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Word {
    number: u32,
    /// The sum is right, or there is none.
    is_whole: bool,
    time: u64,
    check_interval: u16,
    who: Who,
}

/// A volume that is used by nobody else, as a device that passes on what is written as long as that is so.
pub struct Claim {
    device: Arc<dyn BlockDevice>,
    /// The volume's blocks, whatever the device's are.
    block_size: usize,
    at: BlockNo,
    sums: Sums,
    who: Who,
    clock: Arc<dyn Clock>,
    /// Seconds between two numbers, and after which others may take us for crashed.
    interval: u16,
    check_interval: u16,
    /// Our last number: the block has it, or the next one if that was tried.
    number: AtomicU32,
    /// When the block was last seen to be ours, in milliseconds of the clock.
    seen: AtomicU64,
    /// Who else was found there.
    lost: OnceLock<String>,
    is_released: AtomicBool,
}

impl Claim {
    /// Claims the volume on `device`. It waits for some seconds in any case, to see whether somebody else claims it at the same moment.
    ///
    /// # Errors
    /// `Locked` if somebody else uses it; `Unsupported` for a volume that does not tell who uses it; `Corrupt` where the block is none;
    /// those of the device.
    pub fn new(device: Arc<dyn BlockDevice>, who: Who, around: Around<'_>) -> Result<Self> {
        let (raw, shape) = read_superblock(&device)?;
        if !shape.features.has_incompat(incompat::MMP) {
            return Err(Error::Unsupported("claiming a volume without feature mmp".into()));
        }
        let claim = Self::of(&raw, device, who, &around);
        let found = claim.word()?;
        claim.obtain(&found, around)
    }

    /// The same of a volume that is to be mended, whose superblock may be damaged. `None` if nothing tells who uses it.
    ///
    /// # Errors
    /// As [`Claim::new`], of damage none.
    pub fn to_mend(device: &Arc<dyn BlockDevice>, who: &Who, around: Around<'_>) -> Result<Option<Self>> {
        for raw in to_mend_by(&**device)?.into_iter().filter(|raw| tells(raw)) {
            let claim = Self::of(&raw, Arc::clone(device), who.clone(), &around);
            match claim.word() {
                Ok(found) => return claim.obtain(&found, around).map(Some),
                Err(Error::Corrupt(_)) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(None)
    }

    /// Whether a volume that is to be mended may tell who uses it.
    ///
    /// # Errors
    /// Those of the device.
    pub fn may_be_told(device: &dyn BlockDevice) -> Result<bool> {
        Ok(to_mend_by(device)?.iter().any(|raw| tells(raw)))
    }

    /// A claim that was not made yet, as a superblock says that it is made.
    fn of(raw: &[u8], device: Arc<dyn BlockDevice>, who: Who, around: &Around<'_>) -> Self {
        let interval = S_MMP_INTERVAL.get(raw).max(1);
        Self {
            // 64 KiB at most; a number beyond is damage, and where it leads to is no such block.
            block_size: 1024 << S_LOG_BLOCK_SIZE.get(raw).min(6),
            at: BlockNo(S_MMP_BLOCK.get(raw)),
            sums: Sums::of_superblock(raw),
            who,
            clock: Arc::clone(&around.clock),
            interval,
            check_interval: interval.saturating_mul(2).clamp(CHECK_INTERVAL_MIN, CHECK_INTERVAL_MAX),
            number: AtomicU32::new(around.random % NUMBER_MAX + 1),
            seen: AtomicU64::new(0),
            lost: OnceLock::new(),
            is_released: AtomicBool::new(false),
            device,
        }
    }

    /// Claims the volume whose block says `found`.
    fn obtain(self, found: &Word, around: Around<'_>) -> Result<Self> {
        let (claim, Around { no_check, wait, .. }) = (self, around);
        let told = if found.is_whole { found.check_interval.min(CHECK_INTERVAL_MAX) } else { 0 };
        let patience = patience(claim.check_interval.max(told));
        if found.is_whole && found.number == CHECKED && !no_check {
            return Err(in_use(found, "is being checked"));
        }
        if !found.is_whole || found.number != FREE {
            wait(patience)?;
            let later = claim.word_later()?;
            if later != *found {
                return Err(in_use(&later, "is in use"));
            }
        }
        claim.tell(claim.number.load(Ordering::Relaxed))?;
        wait(patience)?;
        let now = claim.now();
        let later = claim.word_later()?;
        if later.number != claim.number.load(Ordering::Relaxed) {
            return Err(in_use(&later, "was claimed at the same moment"));
        }
        claim.seen.store(now, Ordering::Release);
        // Others who wait have seen this number for as long as we have.
        claim.renew()?;
        Ok(claim)
    }

    /// How long to wait between two calls of [`Claim::renew`].
    #[must_use]
    pub fn interval(&self) -> Duration {
        Duration::from_secs(self.interval.into())
    }

    /// Says again that the volume is in use.
    ///
    /// # Errors
    /// `Locked` if somebody else uses it now; those of the device.
    pub fn renew(&self) -> Result<()> {
        if self.is_released.load(Ordering::Acquire) {
            return Ok(());
        }
        self.look()?;
        let now = self.now();
        // One that could not be written is tried again.
        let next = self.number.load(Ordering::Relaxed) % NUMBER_MAX + 1;
        self.tell(next)?;
        self.number.store(next, Ordering::Release);
        self.seen.fetch_max(now, Ordering::AcqRel);
        Ok(())
    }

    /// Nobody uses the volume any more. What others have claimed meanwhile stays theirs.
    ///
    /// # Errors
    /// Those of the device.
    pub fn release(&self) -> Result<()> {
        if self.is_released.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        match self.look() {
            Err(Error::Locked(_)) => Ok(()),
            Err(error) => {
                self.is_released.store(false, Ordering::Release);
                Err(error)
            }
            // What was written before is there before somebody else may use it.
            Ok(()) => self.device.flush().and_then(|()| self.write(|raw| put_free(raw, self.sums))),
        }
    }

    /// Fails unless the volume is ours still.
    fn hold(&self) -> Result<()> {
        if self.is_released.load(Ordering::Acquire) {
            return Err(Error::Locked("the volume is not claimed any more".into()));
        }
        let since = self.now().saturating_sub(self.seen.load(Ordering::Acquire));
        if self.lost.get().is_none() && since < u64::from(self.check_interval) * 1000 {
            return Ok(());
        }
        // Others may have taken us for crashed.
        self.look()
    }

    /// Fails unless the block says that the volume is ours.
    fn look(&self) -> Result<()> {
        if let Some(whose) = self.lost.get() {
            return Err(Error::Locked(whose.clone()));
        }
        let (before, now) = (self.number.load(Ordering::Acquire), self.now());
        let found = self.word()?;
        let after = self.number.load(Ordering::Acquire);
        if [before, after].iter().any(|ours| [*ours, ours % NUMBER_MAX + 1].contains(&found.number)) {
            self.seen.fetch_max(now, Ordering::AcqRel);
            return Ok(());
        }
        let whose = self.lost.get_or_init(|| in_use(&found, "was taken over").to_string());
        Err(Error::Locked(whose.clone()))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// What the block says after it was one.
    fn word_later(&self) -> Result<Word> {
        self.word().map_err(|error| match error {
            Error::Corrupt(_) => Error::Locked(format!("somebody writes to the volume meanwhile: {error}")),
            other => other,
        })
    }

    fn word(&self) -> Result<Word> {
        let view = BlockView::new(&*self.device, self.block_size);
        let damaged =
            |what: &str| Error::corrupt(Structure::Other("multiple-mount block"), self.at, what.to_owned());
        if self.at == BlockNo(0) || self.at.get() >= view.block_count() {
            return Err(damaged("it cannot be there"));
        }
        let mut block = BlockBuf::zeroed(self.block_size);
        view.read(self.at, BlockKind::Superblock, &mut block)?;
        let raw = &block[..SUPERBLOCK_SIZE];
        if M_MAGIC.get(raw) != MAGIC {
            return Err(damaged("it has not the magic number of one"));
        }
        let text = |range: Range<usize>| {
            let bytes = raw[range].split(|byte| *byte == 0).next().unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        Ok(Word {
            number: M_NUMBER.get(raw),
            is_whole: judge(raw, self.sums).is_ok(),
            time: M_TIME.get(raw),
            check_interval: M_CHECK_INTERVAL.get(raw),
            who: Who { node: text(NODE), device: text(DEVICE) },
        })
    }

    fn tell(&self, number: u32) -> Result<()> {
        self.write(|raw| {
            M_MAGIC.put(raw, MAGIC);
            M_NUMBER.put(raw, number);
            M_TIME.put(raw, u64::try_from(self.clock.now().secs).unwrap_or(0));
            M_CHECK_INTERVAL.put(raw, self.check_interval);
            for (range, text) in [(NODE, &self.who.node), (DEVICE, &self.who.device)] {
                // The last byte ends it.
                let len = text.len().min(range.len() - 1);
                raw[range.start..range.start + len].copy_from_slice(&text.as_bytes()[..len]);
            }
            if let Some(sum) = self.sums.multiple_mount(raw) {
                M_CHECKSUM.put(raw, sum);
            }
        })
    }

    fn write(&self, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        let mut block = BlockBuf::zeroed(self.block_size);
        fill(&mut block[..SUPERBLOCK_SIZE]);
        let view = BlockView::new(&*self.device, self.block_size);
        view.write(self.at, BlockKind::Superblock, &block)?;
        view.flush()
    }
}

/// Whether a superblock is of a volume that tells who uses it.
fn tells(raw: &[u8]) -> bool {
    S_FEATURE_INCOMPAT.get(raw) & incompat::MMP != 0
}

/// How long somebody who lives may leave the block as it is.
fn patience(check_interval: u16) -> Duration {
    let check_interval = check_interval.max(CHECK_INTERVAL_MIN);
    let longest = check_interval.saturating_add(WAIT_MORE_MAX);
    Duration::from_secs(check_interval.saturating_mul(2).saturating_add(1).min(longest).into())
}

/// Whether this is such a block, whoever uses the volume.
///
/// # Errors
/// What it has that it must not have.
pub(super) fn judge(raw: &[u8], sums: Sums) -> std::result::Result<(), &'static str> {
    if M_MAGIC.get(raw) != MAGIC {
        return Err("has not the magic number of one");
    }
    let is_whole = sums.multiple_mount(raw).is_none_or(|sum| sum == M_CHECKSUM.get(raw));
    if is_whole { Ok(()) } else { Err("has a wrong sum") }
}

/// Makes a block of zeros one of a volume that nobody uses.
pub(super) fn put_free(raw: &mut [u8], sums: Sums) {
    M_MAGIC.put(raw, MAGIC);
    M_NUMBER.put(raw, FREE);
    M_CHECK_INTERVAL.put(raw, CHECK_INTERVAL_MIN);
    if let Some(sum) = sums.multiple_mount(raw) {
        M_CHECKSUM.put(raw, sum);
    }
}

fn in_use(word: &Word, how: &str) -> Error {
    let Word { time, who: Who { node, device }, .. } = word;
    Error::Locked(format!(
        "the volume {how} by {device} on {node} (seconds since 1970: {time}): unmount it there. If nobody uses it, `fstitch tune --clear-mmp` says so"
    ))
}

impl BlockDevice for Claim {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.device.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        self.hold().map_err(|error| refused(&error, writes.first().map(|write| write.block)))?;
        self.device.write(writes)
    }

    fn flush(&self) -> Result<()> {
        self.device.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.hold().map_err(|error| refused(&error, Some(start)))?;
        self.device.discard(start, count)
    }

    fn intact(&self) -> Result<()> {
        self.hold()?;
        self.device.intact()
    }
}

/// A write that was not passed on, as a failure of the device.
fn refused(error: &Error, block: Option<BlockNo>) -> Error {
    Error::io(IoOp::Write, block.unwrap_or(BlockNo(0)), std::io::Error::other(error.to_string()))
}

#[cfg(test)]
mod tests;
