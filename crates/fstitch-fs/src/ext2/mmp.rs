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
use super::view::BlockView;

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
mod tests {
    use fstitch_core::{ManualClock, MemDevice, Timestamp};

    use super::*;
    use crate::ext2::layout::checksum::seal_superblock;
    use crate::ext2::mkfs::{MkfsFeatures, MkfsOptions, mkfs};

    const BLOCK: u32 = 1024;
    /// A block that nobody owns.
    const AT: u64 = 2000;

    fn who(node: &str) -> Who {
        Who { node: node.into(), device: "disk".into() }
    }

    /// A volume, with sums, whose block was last written by a machine called `other`.
    fn volume(number: u32) -> Arc<MemDevice> {
        volume_of(2048, number)
    }

    fn volume_of(blocks: u64, number: u32) -> Arc<MemDevice> {
        let device = MemDevice::new(BLOCK, blocks);
        let now = Timestamp { secs: 1_700_000_000, nanos: 0 };
        let features = MkfsFeatures { metadata_csum: true, extent: true, ..MkfsFeatures::default() };
        let made =
            MkfsOptions { block_size: Some(BLOCK), features, ..MkfsOptions::new([7; 16], [8; 16], now) };
        mkfs(&device, &made, &mut |_, _| ()).unwrap();
        let mut image = device.image();
        // With the copy of the second group, if there is one.
        for at in [1024, 8193 * 1024] {
            let Some(raw) = image.get_mut(at..at + 1024) else { continue };
            S_FEATURE_INCOMPAT.put(raw, S_FEATURE_INCOMPAT.get(raw) | incompat::MMP);
            S_MMP_INTERVAL.put(raw, 5);
            S_MMP_BLOCK.put(raw, AT);
            seal_superblock(raw);
        }
        let device = Arc::new(MemDevice::from_image(BLOCK, image));
        tell(&device, number);
        device
    }

    fn over(device: &Arc<MemDevice>, node: &str) -> Claim {
        let (_, shape) = read_superblock(&**device).unwrap();
        Claim {
            device: Arc::clone(device) as _,
            block_size: 1024,
            at: BlockNo(AT),
            sums: shape.sums,
            who: who(node),
            clock: Arc::new(ManualClock::new()),
            interval: 5,
            check_interval: 10,
            number: AtomicU32::new(1),
            seen: AtomicU64::new(0),
            lost: OnceLock::new(),
            is_released: AtomicBool::new(false),
        }
    }

    fn number_of(device: &Arc<MemDevice>) -> u32 {
        undamaged(device, "reader").word().unwrap().number
    }

    fn tell_at(device: &Arc<MemDevice>, number: u32) {
        undamaged(device, "other").tell(number).unwrap();
    }

    /// As [`over`], of a volume whose superblock may be damaged.
    fn undamaged(device: &Arc<MemDevice>, node: &str) -> Claim {
        Claim { device: Arc::clone(device) as _, ..over(&volume(FREE), node) }
    }

    /// Somebody else says so.
    fn tell(device: &Arc<MemDevice>, number: u32) {
        over(device, "other").tell(number).unwrap();
    }

    fn number(device: &Arc<MemDevice>) -> u32 {
        over(device, "reader").word().unwrap().number
    }

    fn claim(
        device: &Arc<MemDevice>,
        clock: &Arc<ManualClock>,
        meanwhile: impl FnMut(),
    ) -> (Result<Claim>, u64) {
        claim_if(device, clock, false, meanwhile)
    }

    fn claim_if(
        device: &Arc<MemDevice>,
        clock: &Arc<ManualClock>,
        no_check: bool,
        mut meanwhile: impl FnMut(),
    ) -> (Result<Claim>, u64) {
        let mut waited = 0;
        let mut wait = |patience: Duration| {
            clock.advance(patience);
            waited += patience.as_secs();
            meanwhile();
            Ok(())
        };
        let around = Around { clock: Arc::clone(clock) as _, random: 41, no_check, wait: &mut wait };
        let claimed = Claim::new(Arc::clone(device) as _, who("here"), around);
        (claimed, waited)
    }

    fn write(claim: &Claim) -> Result<()> {
        let data = &[7; BLOCK as usize];
        BlockDevice::write(claim, &[BlockWrite { block: BlockNo(AT + 1), kind: BlockKind::Data, data }])
    }

    fn is_locked(error: &Error, words: &[&str]) {
        assert!(matches!(error, Error::Locked(_)), "{error}");
        words.iter().for_each(|word| assert!(error.to_string().contains(word), "no {word}: {error}"));
    }

    #[test]
    fn what_nobody_uses_is_claimed_said_again_and_released() {
        let (device, clock) = (volume(FREE), Arc::new(ManualClock::new()));
        let (claimed, waited) = claim(&device, &clock, || ());
        let claimed = claimed.unwrap();
        assert_eq!((number(&device), waited), (43, 21));
        claimed.renew().unwrap();
        assert_eq!(number(&device), 44);
        assert!(over(&device, "").word().unwrap().is_whole);
        write(&claimed).unwrap();
        claimed.release().unwrap();
        assert_eq!(number(&device), FREE);
        claimed.renew().unwrap();
        assert_eq!(number(&device), FREE, "released is released");
        assert!(write(&claimed).is_err(), "and nothing is written any more");
    }

    #[test]
    fn a_crashed_user_is_waited_for_and_a_living_one_is_not_disturbed() {
        let (device, clock) = (volume(1000), Arc::new(ManualClock::new()));
        let (claimed, waited) = claim(&device, &clock, || ());
        assert!(claimed.is_ok() && waited == 42, "{waited} s");
        let (device, mut next) = (volume(1000), 1000);
        let before = device.image();
        let (claimed, _) = claim(&device, &clock, || {
            next += 1;
            tell(&device, next);
        });
        is_locked(&claimed.err().unwrap(), &["in use", "other", "disk"]);
        assert_eq!(number(&device), 1001);
        let mut image = device.image();
        let block = usize::try_from(AT).unwrap() * 1024;
        image[block..block + 1024].copy_from_slice(&before[block..block + 1024]);
        assert!(image == before, "nothing else was written");
    }

    #[test]
    fn of_two_at_the_same_moment_the_later_one_stays() {
        let (device, clock) = (volume(FREE), Arc::new(ManualClock::new()));
        let (claimed, _) = claim(&device, &clock, || tell(&device, 77));
        is_locked(&claimed.err().unwrap(), &["same moment", "other"]);
        assert_eq!(number(&device), 77);
    }

    #[test]
    fn what_is_being_checked_is_refused_at_once() {
        let (claimed, waited) = claim(&volume(CHECKED), &Arc::new(ManualClock::new()), || ());
        is_locked(&claimed.err().unwrap(), &["checked"]);
        assert_eq!(waited, 0);
    }

    /// Claimed by who mends, after damage to the superblock, while somebody uses it or nobody does.
    fn claim_to_mend(device: &Arc<MemDevice>, mut meanwhile: impl FnMut()) -> Result<Option<Claim>> {
        let clock = Arc::new(ManualClock::new());
        let mut wait = |patience: Duration| {
            clock.advance(patience);
            meanwhile();
            Ok(())
        };
        let around = Around { clock: Arc::clone(&clock) as _, random: 41, no_check: false, wait: &mut wait };
        Claim::to_mend(&(Arc::clone(device) as _), &who("here"), around)
    }

    fn with_superblock(device: &Arc<MemDevice>, damage: impl FnOnce(&mut [u8])) -> Arc<MemDevice> {
        let mut image = device.image();
        damage(&mut image[1024..2048]);
        Arc::new(MemDevice::from_image(BLOCK, image))
    }

    /// Damage to a superblock leaves the block that tells who uses the volume where it is.
    #[test]
    fn who_mends_a_damaged_superblock_claims_the_volume_before() {
        type Damage = fn(&mut [u8]);
        let damages: [(&str, Damage); 4] = [
            ("its sum", |raw| raw[0x3fc] ^= 1),
            ("its revision", |raw| raw[0x4c..0x50].fill(0)),
            ("its blocks", |raw| raw[4] ^= 1),
            ("all of it", |raw| raw.fill(0)),
        ];
        for (what, damage) in damages {
            let device = with_superblock(&volume_of(20_000, FREE), damage);
            assert!(Claim::may_be_told(&*device).unwrap(), "{what}");
            let claim = claim_to_mend(&device, || ()).unwrap().expect(what);
            assert_eq!(number_of(&device), 43, "{what}");
            claim.release().unwrap();
            assert_eq!(number_of(&device), FREE, "{what}");
            let (device, mut next) = (with_superblock(&volume_of(20_000, 1000), damage), 1000);
            let claimed = claim_to_mend(&device, || {
                next += 1;
                tell_at(&device, next);
            });
            is_locked(&claimed.err().expect(what), &["in use", "other"]);
        }
    }

    /// Nobody is told where the block is none, and what was one is not overwritten.
    #[test]
    fn who_mends_claims_nothing_where_nothing_tells() {
        for number in [0, AT + 1, 1 << 20, 1 << 40] {
            let device = with_superblock(&volume(FREE), |raw| {
                S_MMP_BLOCK.put(raw, number);
                seal_superblock(raw);
            });
            let before = device.image();
            assert!(claim_to_mend(&device, || ()).unwrap().is_none(), "{number}");
            let strict = claim(&device, &Arc::new(ManualClock::new()), || ()).0;
            assert!(matches!(strict, Err(Error::Corrupt(_))), "{number}");
            assert!(device.image() == before, "{number}");
        }
        let device = volume(1000);
        let claimed = claim_to_mend(&device, || {
            let data = &[0; BLOCK as usize];
            device.write(&[BlockWrite { block: BlockNo(AT), kind: BlockKind::Data, data }]).unwrap();
        });
        is_locked(&claimed.err().unwrap(), &["meanwhile"]);
    }

    /// Who says that the check has crashed is believed when it does not tell of itself.
    #[test]
    fn what_was_left_by_a_check_is_taken_over_if_somebody_says_so() {
        let (device, clock) = (volume(CHECKED), Arc::new(ManualClock::new()));
        let (claimed, waited) = claim_if(&device, &clock, true, || ());
        assert!(waited == 42, "{waited} s");
        claimed.unwrap().release().unwrap();
        assert_eq!(number(&device), FREE);
        let device = volume(CHECKED);
        let (claimed, _) = claim_if(&device, &clock, true, || {
            let checker = over(&device, "other");
            let later = Arc::new(ManualClock::new());
            later.advance(Duration::from_secs(5));
            Claim { clock: later, ..checker }.tell(CHECKED).unwrap();
        });
        is_locked(&claimed.err().unwrap(), &["in use", "other"]);
        assert_eq!(number(&device), CHECKED);
    }

    /// Who comes back from a sleep of which he knows nothing, or too late from a write, finds whose the block is.
    #[test]
    fn the_block_is_never_written_unseen() {
        let (device, clock) = (volume(FREE), Arc::new(ManualClock::new()));
        let claimed = claim(&device, &clock, || ()).0.unwrap();
        tell(&device, 9999);
        let before = device.image();
        is_locked(&claimed.renew().unwrap_err(), &["taken over", "other"]);
        assert!(claimed.release().is_ok() && device.image() == before);
    }

    /// A number that could not be written is not ours yet, and is tried again.
    #[test]
    fn a_number_counts_when_it_was_written() {
        let (device, clock) = (volume(FREE), Arc::new(ManualClock::new()));
        let claimed = claim(&device, &clock, || ()).0.unwrap();
        let failing = Claim {
            device: Arc::new(Unwritable(Arc::clone(&device))),
            number: AtomicU32::new(claimed.number.load(Ordering::Relaxed)),
            ..over(&device, "here")
        };
        for _ in 0..4 {
            assert!(matches!(failing.renew(), Err(Error::Io { .. })));
            clock.advance(Duration::from_secs(5));
        }
        assert!(failing.look().is_ok(), "the block is ours all the time");
    }

    /// A device that takes no writes.
    struct Unwritable(Arc<MemDevice>);

    impl BlockDevice for Unwritable {
        fn geometry(&self) -> Geometry {
            self.0.geometry()
        }

        fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
            self.0.read(reads)
        }

        fn write(&self, _writes: &[BlockWrite<'_>]) -> Result<()> {
            Err(Error::io(IoOp::Write, BlockNo(0), std::io::Error::other("it takes none")))
        }

        fn flush(&self) -> Result<()> {
            Ok(())
        }

        fn discard(&self, _start: BlockNo, _count: u64) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_interval_of_a_torn_block_keeps_nobody_waiting() {
        let (device, clock) = (volume(1000), Arc::new(ManualClock::new()));
        let mut image = device.image();
        let block = usize::try_from(AT).unwrap() * 1024;
        image[block + 112..block + 114].fill(0xff);
        let torn = Arc::new(MemDevice::from_image(BLOCK, image));
        let (claimed, waited) = claim(&torn, &clock, || ());
        assert!(claimed.is_ok() && waited == 42, "{waited} s");
    }

    /// Checkers see a volume in the smallest blocks, arrays in those of their disks.
    #[test]
    fn the_device_may_have_other_blocks() {
        for unit in [512, 4096] {
            let device = Arc::new(MemDevice::from_image(unit, volume(FREE).image()));
            let before = device.image();
            let claimed = claim(&device, &Arc::new(ManualClock::new()), || ()).0.unwrap();
            assert!(device.image() != before);
            claimed.renew().unwrap();
            claimed.release().unwrap();
            let block = usize::try_from(AT).unwrap() * 1024;
            let mut after = device.image();
            assert_eq!(after[block + 4..block + 8], FREE.to_le_bytes());
            after[block..block + 1024].copy_from_slice(&before[block..block + 1024]);
            assert!(after == before, "blocks of {unit} bytes: nothing else was written");
        }
    }

    #[test]
    fn a_volume_that_tells_nobody_is_not_claimed() {
        let mut image = volume(FREE).image();
        let raw = &mut image[1024..2048];
        S_FEATURE_INCOMPAT.put(raw, S_FEATURE_INCOMPAT.get(raw) & !incompat::MMP);
        seal_superblock(raw);
        let device = Arc::new(MemDevice::from_image(BLOCK, image));
        assert!(matches!(claim(&device, &Arc::new(ManualClock::new()), || ()).0, Err(Error::Unsupported(_))));
    }

    #[test]
    fn who_slept_too_long_looks_before_he_writes() {
        let (device, clock) = (volume(FREE), Arc::new(ManualClock::new()));
        let claimed = claim(&device, &clock, || ()).0.unwrap();
        clock.advance(Duration::from_secs(60));
        write(&claimed).unwrap();
        clock.advance(Duration::from_secs(60));
        tell(&device, 9999);
        let before = device.image();
        assert!(write(&claimed).unwrap_err().to_string().contains("taken over by disk on other"));
        is_locked(&claimed.renew().unwrap_err(), &["taken over"]);
        claimed.release().unwrap();
        // And never again, though the other one has gone.
        tell(&device, FREE);
        assert!(write(&claimed).is_err() && claimed.intact().is_err());
        tell(&device, 9999);
        assert!(device.image() == before);
    }

    #[test]
    fn a_torn_block_is_waited_for() {
        let (device, clock) = (volume(1000), Arc::new(ManualClock::new()));
        let mut image = device.image();
        image[usize::try_from(AT).unwrap() * 1024 + 1020] ^= 1;
        let torn = Arc::new(MemDevice::from_image(BLOCK, image.clone()));
        let (claimed, waited) = claim(&torn, &clock, || ());
        assert!(claimed.is_ok() && waited == 42);
        image[usize::try_from(AT).unwrap() * 1024] ^= 1;
        let none = Arc::new(MemDevice::from_image(BLOCK, image));
        assert!(matches!(claim(&none, &clock, || ()).0, Err(Error::Corrupt(_))));
    }
}
