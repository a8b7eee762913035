//! One run of all passes.

use fstitch_core::{BlockDevice, CheckReport, Error, FindingClass, Result, Timestamp};

use super::super::source::BlockSource;
use super::state::{Mending, State, Volume};
use super::survey::Survey;
use super::{claims, connect, dirs, inodes, links, maps, orphan_file, quota, supers};
use crate::ext2::layout::superblock::Superblock;
use crate::ext2::leftovers::Leftovers;
use crate::ext2::num::{idx, wide};
use crate::view::BlockView;

/// What a run found, and how much of it was mended.
pub(super) struct Outcome {
    pub(super) report: CheckReport,
    pub(super) mended: u64,
    /// What was asked for.
    pub(super) survey: Option<Survey>,
}

/// What of a volume in use may have been left by a crash.
pub(crate) struct Judgement {
    /// What was found; damage is nothing that a crash leaves.
    pub(crate) report: CheckReport,
    /// What is known of the mount before.
    pub(crate) leftovers: Leftovers,
}

/// Checks the ext2 volume on `device` without changing it.
///
/// # Errors
/// When the device fails, or the volume has features that we do not know. Damage is no error: it is in the
/// report.
pub fn check_ext2(device: &dyn BlockDevice) -> Result<CheckReport> {
    Ok(run_device(device, Mending::Nothing, Timestamp::default())?.report)
}

/// Checks a volume through any source of its blocks, such as the cache of a mount, given the superblock's
/// 1024 bytes as they are now. Nothing may change while it runs.
///
/// # Errors
/// As [`check_ext2`].
pub fn check_source(source: &dyn BlockSource, raw_super: &[u8]) -> Result<CheckReport> {
    let bytes = source.block_count() * wide(source.block_size());
    match supers::parse(raw_super, bytes) {
        Ok(shape) => {
            let mut run =
                Run { mending: Mending::Nothing, now: Timestamp::default(), judging: None, survey: None };
            Ok(run.all(source, raw_super.to_vec(), shape)?.report)
        }
        Err(error) => Ok(Outcome::hopeless(error)?.report),
    }
}

/// Judges a volume that may be in use: what moves is not looked at, what no path leads to is, since it is about to be freed.
/// `leftovers` says what is known of the mount before, and when that was over at the latest.
///
/// # Errors
/// When the source fails.
pub(crate) fn judge_source(
    source: &dyn BlockSource,
    raw_super: &[u8],
    (leftovers, until): (Leftovers, u32),
) -> Result<Judgement> {
    let bytes = source.block_count() * wide(source.block_size());
    let shape = match supers::parse(raw_super, bytes) {
        Ok(shape) => shape,
        Err(error) => return Ok(Judgement { report: Outcome::hopeless(error)?.report, leftovers }),
    };
    let mut run = Run {
        mending: Mending::Nothing,
        now: Timestamp::default(),
        judging: Some((leftovers, until)),
        survey: None,
    };
    let report = run.all(source, raw_super.to_vec(), shape)?.report;
    Ok(Judgement { report, leftovers: run.judging.map_or(leftovers, |(leftovers, _)| leftovers) })
}

/// One run over a device.
pub(super) fn run_device(device: &dyn BlockDevice, mending: Mending, now: Timestamp) -> Result<Outcome> {
    let raw = match supers::raw_superblock(device) {
        Ok(raw) => raw,
        Err(error) => return Outcome::hopeless(error),
    };
    match supers::parse(&raw, device.geometry().bytes()) {
        Ok(shape) => {
            let view = BlockView::new(device, idx(shape.block_size));
            Run { mending, now, judging: None, survey: None }.all(&view, raw, shape)
        }
        Err(error) => {
            let mut outcome = Outcome::hopeless(error)?;
            if matches!(mending, Mending::Everything { .. })
                && let Some(whole) = supers::restored(device, &raw)?
            {
                supers::write_primary(device, &whole)?;
                outcome.mended = 1;
            }
            Ok(outcome)
        }
    }
}

impl Outcome {
    /// The report of a volume whose superblock is damaged; any other failure stays one.
    fn hopeless(error: Error) -> Result<Self> {
        let Error::Corrupt(problem) = error else {
            return Err(error);
        };
        let mut report = CheckReport::default();
        report.push(FindingClass::Corrupt, "superblock-damaged", problem.to_string());
        Ok(Self { report, mended: 0, survey: None })
    }

    fn of(mut state: State, volume: &Volume<'_>) -> Result<Self> {
        if state.mended > 0 {
            volume.source.flush()?;
        }
        if let Some(mut survey) = state.survey.take() {
            survey.conclude(volume, &state)?;
            state.survey = Some(survey);
        }
        Ok(Self { report: state.report, mended: state.mended, survey: state.survey })
    }
}

/// How to run.
pub(super) struct Run {
    pub(super) mending: Mending,
    pub(super) now: Timestamp,
    /// What is known of the mount before and when that was over, if it is to be said what may be freed.
    pub(super) judging: Option<(Leftovers, u32)>,
    /// What is asked about other features.
    pub(super) survey: Option<Survey>,
}

impl Run {
    /// All passes, up to the first that changed something.
    pub(super) fn all(
        &mut self,
        source: &dyn BlockSource,
        raw: Vec<u8>,
        shape: Superblock,
    ) -> Result<Outcome> {
        let (mut volume, mended) = match supers::open(source, raw, shape, self.mending)? {
            Ok(opened) => opened,
            Err(report) => return Ok(Outcome { report, mended: 0, survey: None }),
        };
        let mut state = State::new(&volume, self.mending, self.now);
        state.mended = mended;
        if let Some(survey) = self.survey.take() {
            survey.ask(&mut state);
        }
        if let Some((leftovers, until)) = self.judging {
            (state.judging, state.leftovers, state.until) = (true, leftovers, until);
        }
        supers::check(&mut volume, &mut state)?;
        if state.mended > 0 {
            return Outcome::of(state, &volume);
        }
        let before = state.report.total;
        claims::claim_metadata(&volume, &mut state);
        if state.report.total > before && !matches!(self.mending, Mending::Nothing) {
            // Whose blocks these are nobody knows, so nothing can be mended by them.
            return Outcome::of(state, &volume);
        }
        for group in 0..volume.shape.group_count() {
            inodes::scan_group(&volume, &mut state, group)?;
        }
        inodes::finish(&mut volume, &mut state)?;
        state.met_all_owners();
        if state.seals() {
            orphan_file::check(&mut volume, &mut state)?;
        }
        if let Some((leftovers, _)) = &mut self.judging {
            *leftovers = state.leftovers;
        }
        if state.mended > 0 {
            return Outcome::of(state, &volume);
        }
        for at in 0..state.dirs.len() {
            state.ahead.reach(&volume, state.dirs[at].ino);
            dirs::scan_dir(&volume, &mut state, at)?;
        }
        if state.mended > 0 {
            return Outcome::of(state, &volume);
        }
        if self.mending == Mending::Sums {
            // Names and counts were right before, and stay.
            return Outcome::of(state, &volume);
        }
        let orphans = connect::run(&volume, &mut state)?;
        if state.mended > 0 {
            return Outcome::of(state, &volume);
        }
        links::run(&volume, &mut state, &orphans)?;
        if state.mended > 0 {
            return Outcome::of(state, &volume);
        }
        quota::run(&volume, &mut state)?;
        if state.mended > 0 {
            return Outcome::of(state, &volume);
        }
        maps::run(&mut volume, &mut state)?;
        Outcome::of(state, &volume)
    }
}
