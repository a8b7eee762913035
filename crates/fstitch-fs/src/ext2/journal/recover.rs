//! Recovery of a volume: what the kernel does when it mounts one that was not unmounted.
//!
//! **States and transitions.** *Dirty*: the superblock says `needs_recovery`. Then, in this order, each step stable
//! before the next: the log is replayed and empty; errors that the journal knows of are in the superblock; the list of
//! orphans is empty; the superblock's totals are the sums of the groups' and `needs_recovery` is cleared: *recovered*.
//!
//! **Crash cases.** Every step can be repeated, and the flag stays until the last. A volume whose flag is clear has a
//! log that nobody may replay, whatever it holds: the kernel empties it, and so do we before we use it.

use fstitch_core::{BlockDevice, BlockKind, BlockNo, Error, Result, Structure, Timestamp};
use fstitch_patch::journal::fast::FastCommits;
use fstitch_patch::journal::{Log, Progress, Replayed, Scan, Stage, bring_home};

use super::create::clear_backup;
use super::fast;
use super::find::{Internal, Journal, Place, locate};
use super::kinds::Kinds;
use super::orphans::Orphans;
use super::pass::Pass;
use super::raw::{
    FREE_BLOCKS, S_FEATURE_COMPAT, S_FEATURE_INCOMPAT, S_FREE_INODES_COUNT, S_JOURNAL_DEV, S_JOURNAL_INUM,
    S_JOURNAL_UUID, S_LAST_ORPHAN, S_STATE, STATE_ERROR, STATE_VALID, SUPERBLOCK_SIZE, Superblock,
};
use crate::ext2::layout::checksum::seal_superblock;
use crate::ext2::layout::feature::{Features, compat, incompat, ro_compat};
use crate::ext2::layout::group::GroupDescriptor;
use crate::ext2::layout::keep_sum;
use crate::ext2::num::idx;
use crate::view::BlockView;

/// How to recover.
pub struct Options<'a> {
    /// The device of an external journal, if the volume has one.
    pub external: Option<&'a dyn BlockDevice>,
    /// The time for what is freed.
    pub now: Timestamp,
    /// Nothing is written for good, as the device keeps changes in memory: features that only allow reading are
    /// no obstacle then.
    pub for_reading: bool,
    /// Blocks that a transaction for orphans changes at most: [`super::BATCH_MAX`], but for tests of small ones.
    pub batch_max: usize,
    /// Is told how far the replay is.
    pub progress: &'a mut dyn FnMut(Progress),
}

impl std::fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Options(for_reading: {})", self.for_reading)
    }
}

/// What a recovery did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// What came from the journal; `None` if it was empty.
    pub replayed: Option<Replayed>,
    /// Fast commits behind it that were applied.
    pub fast_commits: u32,
    /// What became of orphans.
    pub orphans: Orphans,
    /// Why the volume is marked as having errors now, if it was not before: a check is due.
    pub errors: Vec<String>,
}

/// The superblock's bytes, and their meaning but for the flag `needs_recovery`.
///
/// # Errors
/// `Io`; `Corrupt` if there is no valid superblock; `Unsupported` by the names of features.
pub fn read_superblock(device: &dyn BlockDevice) -> Result<(Vec<u8>, Superblock)> {
    let view = BlockView::new(device, SUPERBLOCK_SIZE);
    let mut raw = vec![0; SUPERBLOCK_SIZE];
    if view.block_count() < 2 {
        return Err(Error::corrupt(Structure::Superblock, None, "the device is too small to hold one"));
    }
    view.read(BlockNo(1), BlockKind::Superblock, &mut raw)?;
    let shape = parse(&raw, device)?;
    Ok((raw, shape))
}

fn parse(raw: &[u8], device: &dyn BlockDevice) -> Result<Superblock> {
    let mut settled = raw.to_vec();
    set_dirty(&mut settled, false);
    let shape = Superblock::parse_unsummed(&settled, device.geometry().bytes())?;
    shape.check_sum(raw)?;
    Ok(shape)
}

/// Writes the superblock, with its sum put right, and makes it stable.
pub(in crate::ext2) fn write_superblock(device: &dyn BlockDevice, raw: &[u8]) -> Result<()> {
    let view = BlockView::new(device, SUPERBLOCK_SIZE);
    let mut raw = raw.to_vec();
    keep_sum(&mut raw);
    seal_superblock(&mut raw);
    view.write(BlockNo(1), BlockKind::Superblock, &raw)?;
    view.flush()
}

/// Whether the list of orphans is not empty, or the orphan file may hold some.
fn has_orphans(raw: &[u8], shape: &Superblock) -> bool {
    S_LAST_ORPHAN.get(raw) != 0 || shape.features.has_ro_compat(ro_compat::ORPHAN_PRESENT)
}

/// Whether the volume on `device` must be recovered before it is used: its journal replayed, or its orphans finished.
///
/// # Errors
/// `Io`; `Corrupt` if there is no valid superblock; `Unsupported` by the names of features.
pub fn needs_recovery(device: &dyn BlockDevice) -> Result<bool> {
    let (raw, shape) = read_superblock(device)?;
    if is_dirty(&raw) {
        return Ok(true);
    }
    let Some(place) = locate(&shape, &raw)? else { return Ok(false) };
    Ok(has_orphans(&raw, &shape) || has_stale_log(device, &shape, place)?)
}

/// Whether the log of a journal that the volume has in itself is not empty; one that cannot be read is for others to judge.
/// On a volume whose flag is clear nobody may replay it, and it must be emptied before the journal is used again.
fn has_stale_log(device: &dyn BlockDevice, shape: &Superblock, place: Place) -> Result<bool> {
    let Place::Inode(ino) = place else { return Ok(false) };
    match Internal::read(&BlockView::new(device, idx(shape.block_size)), shape, ino) {
        Ok(journal) => Ok(journal.superblock.start != 0),
        Err(Error::Corrupt(_) | Error::Unsupported(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) fn is_dirty(raw: &[u8]) -> bool {
    S_FEATURE_INCOMPAT.get(raw) & incompat::RECOVER != 0
}

pub(in crate::ext2) fn set_dirty(raw: &mut [u8], on: bool) {
    let word = S_FEATURE_INCOMPAT.get(raw) & !incompat::RECOVER;
    S_FEATURE_INCOMPAT.put(raw, if on { word | incompat::RECOVER } else { word });
}

/// Makes a volume whose journal cannot be replayed one without a journal: what was in it is lost. A check must follow,
/// which also frees the journal's inode and blocks.
///
/// # Errors
/// As [`read_superblock`].
pub fn abandon(device: &dyn BlockDevice) -> Result<()> {
    let (mut raw, shape) = read_superblock(device)?;
    if matches!(locate(&shape, &raw), Ok(None)) && !is_dirty(&raw) {
        return Ok(());
    }
    set_dirty(&mut raw, false);
    S_FEATURE_COMPAT.put(&mut raw, shape.features.compat & !compat::HAS_JOURNAL);
    S_JOURNAL_INUM.put(&mut raw, 0);
    S_JOURNAL_DEV.put(&mut raw, 0);
    S_LAST_ORPHAN.put(&mut raw, 0);
    raw[S_JOURNAL_UUID..S_JOURNAL_UUID + 16].fill(0);
    clear_backup(&mut raw);
    let state = (S_STATE.get(&raw) | STATE_ERROR) & !STATE_VALID;
    S_STATE.put(&mut raw, state);
    write_superblock(device, &raw)
}

/// Brings the volume on `device` (in blocks of any size), which nobody may have mounted, to where it can be used:
/// replays its journal and finishes its orphans. `None` if there was nothing to do.
///
/// # Errors
/// `Io`; `Corrupt` if the journal cannot be found or its superblock is damaged; `Unsupported` by the names of features.
/// The volume can then be recovered again. Damage inside the log is no error: it is in the report.
pub fn recover(device: &dyn BlockDevice, options: &mut Options<'_>) -> Result<Option<Recovered>> {
    let (raw, shape) = read_superblock(device)?;
    let Some(place) = locate(&shape, &raw)? else {
        if is_dirty(&raw) {
            let problem = "the journal must be replayed (needs_recovery), but there is none";
            return Err(Error::corrupt(Structure::Superblock, None, problem));
        }
        return Ok(None);
    };
    let idle = !is_dirty(&raw) && !has_orphans(&raw, &shape);
    if idle && !has_stale_log(device, &shape, place)? {
        return Ok(None);
    }
    // Recovery ends it.
    let settled =
        Features { ro_compat: shape.features.ro_compat & !ro_compat::ORPHAN_PRESENT, ..shape.features };
    let foreign = settled.read_only_because();
    if !foreign.is_empty() && !options.for_reading {
        let names = foreign.join(", ");
        return Err(Error::Unsupported(format!("replaying the journal of a volume with feature {names}")));
    }
    let volume = BlockView::new(device, idx(shape.block_size));
    let journal = Journal::find(&volume, &shape, place, options.external)?;
    let external = options.external.map(|device| BlockView::new(device, idx(shape.block_size)));
    let journal_device: &dyn BlockDevice = match (&journal.home.shares_device, &external) {
        (false, Some(external)) => external,
        _ => &volume,
    };
    let mut log = journal.open(journal_device)?;
    let mut work = Work { device, volume, log: &mut log, recovered: Recovered::new() };
    work.replay(is_dirty(&raw), options)?;
    work.orphans(!foreign.is_empty(), options)?;
    work.finish()?;
    Ok(Some(work.recovered))
}

/// Ends a work in batches on the volume on `device`, whose log is empty or has the last of them: recovers it.
pub(in crate::ext2) fn settle(device: &dyn BlockDevice, now: Timestamp) -> Result<()> {
    let progress = &mut |_| {};
    let mut options =
        Options { external: None, now, for_reading: false, batch_max: super::BATCH_MAX, progress };
    recover(device, &mut options).map(|_| ())
}

impl Recovered {
    const fn new() -> Self {
        let orphans = Orphans { freed: 0, cut: 0, dropped: false };
        Self { replayed: None, fast_commits: 0, orphans, errors: Vec::new() }
    }
}

/// A recovery under way.
struct Work<'a, 'd> {
    device: &'a dyn BlockDevice,
    volume: BlockView<'a>,
    log: &'a mut Log<'d>,
    recovered: Recovered,
}

impl Work<'_, '_> {
    /// Brings what is in the log home, or drops it if the superblock does not ask for it.
    fn replay(&mut self, is_dirty: bool, options: &mut Options<'_>) -> Result<()> {
        if !is_dirty {
            return if self.log.is_empty() {
                Ok(())
            } else {
                let next = self.log.superblock().sequence.plus(self.log.superblock().log_blocks());
                self.log.reset(next)
            };
        }
        if !self.log.is_empty() {
            let (_, shape) = read_superblock(self.device)?;
            let kinds = Kinds::read(&self.volume, &shape)?;
            let kind_of = |block: BlockNo, contents: &[u8]| kinds.of(block, contents);
            let mut scanned = |done, total| (options.progress)(Progress { stage: Stage::Scan, done, total });
            let scan = self.log.scan(&mut scanned)?;
            let fast = self.log.fast_commits(scan.next())?;
            let replayed = bring_home(self.log, &self.volume, &kind_of, scan, options.progress)?;
            self.apply(&replayed.scan, &fast, options.now)?;
            if replayed.scan.end.why.is_damage() {
                self.recovered.errors.push(replayed.scan.end.to_string());
            }
            self.recovered.replayed = Some(replayed);
        }
        let errno = self.log.superblock().errno;
        if errno != 0 {
            self.recovered.errors.push(format!("the journal's last user met error {errno}"));
        }
        self.note_errors()?;
        // Only when the volume itself remembers that there was an error may the journal forget it.
        if errno != 0 { self.log.forget_errno() } else { Ok(()) }
    }

    /// Applies what fast commits say, and empties the log.
    fn apply(&mut self, scan: &Scan, fast: &FastCommits, now: Timestamp) -> Result<()> {
        if let Some(damage) = fast.damage() {
            self.recovered.errors.push(damage.to_string());
        }
        if fast.commits() == 0 {
            return self.log.reset(scan.restart(self.log));
        }
        let (_, shape) = read_superblock(self.device)?;
        let pass = Pass::of_any_size(self.volume, shape, self.log, (now, usize::MAX))?;
        fast::apply(pass, scan, fast)?;
        self.recovered.fast_commits = fast.commits();
        Ok(())
    }

    fn note_errors(&self) -> Result<()> {
        if self.recovered.errors.is_empty() {
            return Ok(());
        }
        let (mut raw, _) = read_superblock(self.device)?;
        let state = (S_STATE.get(&raw) | STATE_ERROR) & !STATE_VALID;
        S_STATE.put(&mut raw, state);
        write_superblock(self.device, &raw)
    }

    fn orphans(&mut self, is_foreign: bool, options: &Options<'_>) -> Result<()> {
        let (mut raw, shape) = read_superblock(self.device)?;
        if !has_orphans(&raw, &shape) || is_foreign {
            return Ok(());
        }
        if S_STATE.get(&raw) & STATE_ERROR != 0 {
            return self.drop_orphans();
        }
        if !is_dirty(&raw) {
            set_dirty(&mut raw, true);
            write_superblock(self.device, &raw)?;
        }
        match Pass::new(self.volume, shape, self.log, (options.now, options.batch_max))?.run() {
            Ok(done) => self.recovered.orphans = done,
            Err(Error::Corrupt(problem)) => {
                self.recovered.errors.push(problem.to_string());
                self.note_errors()?;
                self.drop_orphans()?;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Empties the list and leaves its inodes to a check, as the kernel does when the volume has errors. They stay in
    /// use in the bitmaps, so nobody else gets them.
    fn drop_orphans(&mut self) -> Result<()> {
        let (mut raw, _) = read_superblock(self.device)?;
        S_LAST_ORPHAN.put(&mut raw, 0);
        write_superblock(self.device, &raw)?;
        self.recovered.orphans.dropped = true;
        Ok(())
    }

    /// Says that the volume is recovered. The totals in the superblock are not part of transactions: they are counted
    /// again.
    fn finish(&self) -> Result<()> {
        let (mut raw, shape) = read_superblock(self.device)?;
        let (mut blocks, mut inodes) = (0_u64, 0_u64);
        let groups = GroupDescriptor::read_all(&shape, |block, into| {
            self.volume.read(block, BlockKind::GroupDescriptor, into)
        })?;
        for group in groups {
            blocks += u64::from(group.free_blocks) << shape.log_cluster;
            inodes += u64::from(group.free_inodes);
        }
        FREE_BLOCKS.put(&mut raw, blocks);
        if let Ok(inodes) = u32::try_from(inodes) {
            S_FREE_INODES_COUNT.put(&mut raw, inodes);
        }
        set_dirty(&mut raw, false);
        write_superblock(self.device, &raw)
    }
}
