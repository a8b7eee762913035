//! Crash states of a recorded log: real programs on a live mount, or any device below Linux' `dm-log-writes`.
//!
//! ```text
//!   base image + log ──► walk 1: count the moments of a power cut
//!                    ──► walk 2: at some of them, evenly spread ──► choices ──► image ──► recover, check, read
//! ```
//!
//! **What is judged.** That what a cut leaves is a volume: the full checker finds nothing but what the consistency
//! mechanism allows, everything that has a name can be read, and of a sample, that it can be recovered twice,
//! repaired, used and emptied, and that the reference checker agrees. Nobody wrote down what the programs were promised,
//! so nothing is said about the contents of files, and a synced file that is gone is not noticed. Programs can be asked about
//! their own files, though: [`Question`].
//!
//! **Memory.** The log is read entry by entry, twice. What is kept is the base, the newest version of each block that was
//! written, and the versions since the last flush; the images of a cut share all of it.

mod ask;
mod choice;
mod search;

pub use ask::Question;
pub use choice::{Chosen, RecordedId, UnknownRecorded};

use std::fs::File;
use std::io::BufReader;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use fstitch_core::Seed;

use crate::aftermath::Aftermath;
use crate::explore::{Facts, Known};
use crate::lab::{Counts, LabOptions};
use crate::medium::{Base, DmLogError, DmLogReader, Event, History, Image, Level, Origin};
use crate::oracle::{Tree, Violation};
use crate::system::System;

use choice::prefixes;
use search::{KNOWN_IMAGES, Search};

/// Why a recorded log cannot be judged.
#[derive(Debug, thiserror::Error)]
pub enum RecordedError {
    /// The file cannot be opened.
    #[error("opening the log: {0}")]
    Open(#[from] std::io::Error),
    /// It is no log, or none of this device.
    #[error("{0}")]
    Log(#[from] DmLogError),
    /// The log writes the superblock of another volume.
    #[error(
        "entry {entry} writes a superblock with another UUID, size or block size: the log was not recorded on this base"
    )]
    OtherVolume {
        /// The entry, counted from 0.
        entry: u64,
    },
    /// The log names another image as its beginning.
    #[error("the log was not recorded on this base but on another image: {0}")]
    OtherBase(String),
    /// The image before the log is damaged.
    #[error("the base image, before the log, is unlawful already: {0}")]
    Base(Violation),
    /// A state cannot be unpacked, or the question not be put.
    #[error("asking about a state: {0}")]
    Ask(std::io::Error),
    /// The log has no such state.
    #[error("the log has no state {0}")]
    NoSuchState(RecordedId),
}

/// A log on disk, the image that it begins with, and the system that both belong to.
pub struct Recorded {
    /// What recovers, checks and reads.
    pub system: Arc<dyn System>,
    /// The image before the log.
    pub base: Arc<Base>,
    /// The log, in the format of `dm-log-writes`.
    pub log: PathBuf,
    /// Whether flushes and FUA in the log count; without them nothing orders the writes.
    pub flushes: bool,
}

/// How a recorded log is searched.
#[derive(Clone, Copy, Debug)]
pub struct RecordedOptions {
    /// As for workloads; of `choices_per_cut` a third each are prefixes of the order of writing, images in which one
    /// block differs from all others, and samples, unless every image can be visited.
    pub lab: LabOptions,
    /// States visited, at most; the cuts are spread over the log so that they last until its end.
    pub states: u64,
}

/// What came of a recorded log.
#[derive(Clone, Debug, Default)]
pub struct RecordedOutcome {
    /// What was looked at. Operations are the block writes of the log.
    pub counts: Counts,
    /// Moments of a power cut that the log has; `counts.cuts` of them were visited.
    pub moments: u64,
    /// What was found.
    pub found: Vec<(RecordedId, Violation)>,
    /// Some lawful states, a few at most, for other programs to look at.
    pub samples: Vec<RecordedId>,
}

/// Lawful states that a search names.
pub const MAX_SAMPLES: usize = 16;

/// Length of a log.
#[derive(Clone, Copy, Default)]
struct Length {
    moments: u64,
    writes: u64,
}

impl Recorded {
    /// Visits states of the log, puts `question` to each, and tells `progress` of every cut, and at which moment of the log it
    /// is; a break ends the search.
    ///
    /// # Errors
    /// [`RecordedError`] says why the log cannot be judged.
    pub fn search(
        &self,
        options: RecordedOptions,
        question: Option<&mut Question>,
        progress: &dyn Fn(&RecordedOutcome, u64) -> ControlFlow<()>,
    ) -> Result<RecordedOutcome, RecordedError> {
        let level = options.lab.level;
        let length = self.walk(level, &mut |_, _| ControlFlow::Continue(()))?;
        let facts = Facts::of(&*self.system, Image::new(Arc::clone(&self.base)));
        let like = Arc::new(facts.shown.map_err(RecordedError::Base)?);
        let known = Known::new(KNOWN_IMAGES);
        let mut search = Search {
            recorded: self,
            options,
            known: &known,
            like,
            seed: Seed::new(options.lab.seed),
            question,
            unasked: None,
            outcome: RecordedOutcome { moments: length.moments, ..RecordedOutcome::default() },
        };
        search.outcome.counts.workloads = 1;
        search.outcome.counts.operations = length.writes;
        let per_cut = options.lab.choices_per_cut.max(1);
        let mut next = search.next_after(0).min(length.moments.saturating_sub(1));
        self.walk(level, &mut |history, moment| {
            if moment == next {
                search.cut(&history.cut_within(prefixes(per_cut)));
                if progress(&search.outcome, moment + 1).is_break() {
                    return ControlFlow::Break(());
                }
                next = search.next_after(moment + 1).min(length.moments - 1);
            }
            match search.is_done() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })?;
        match search.unasked {
            Some(error) => Err(RecordedError::Ask(error)),
            None => Ok(search.outcome),
        }
    }

    /// Makes one state again and judges it, with everything that must work after a crash; `question` is put last.
    ///
    /// # Errors
    /// [`RecordedError`], for example when the log has no such state.
    pub fn replay(
        &self,
        id: &RecordedId,
        options: &LabOptions,
        question: Option<&mut Question>,
    ) -> Result<(Image, Result<(), Violation>), RecordedError> {
        let mut image = None;
        self.walk(options.level, &mut |history, _| {
            if history.at() != id.cut {
                return ControlFlow::Continue(());
            }
            let cut = history.cut_within(1);
            let choice = id.survivors.choice(&cut);
            image = choice.map(|choice| Image::with(Arc::clone(&self.base), cut.blocks(&choice)));
            ControlFlow::Break(())
        })?;
        let image = image.ok_or_else(|| RecordedError::NoSuchState(id.clone()))?;
        let facts = Facts::of(&*self.system, image.fork());
        let mut verdict = facts.shown.as_ref().map_err(Violation::clone).and_then(|tree| {
            let aftermath = self.aftermath(tree, options.level);
            aftermath.live_on(&image, options.depth, &mut Seed::new(options.seed))?;
            aftermath.ask_installed_reference(&image, facts.allowed)
        });
        if let (Ok(()), Ok(tree), Some(question)) = (&verdict, &facts.shown, question) {
            verdict = question.put(tree).map_err(RecordedError::Ask)?;
        }
        Ok((image, verdict))
    }

    fn aftermath<'a>(&'a self, tree: &'a Tree, level: Level) -> Aftermath<'a> {
        Aftermath { system: &*self.system, base: &self.base, level, tree }
    }

    /// Goes through the log and stops at the moments before something becomes certain, and at the end.
    fn walk(
        &self,
        level: Level,
        visit: &mut dyn FnMut(&History, u64) -> ControlFlow<()>,
    ) -> Result<Length, RecordedError> {
        let file = BufReader::with_capacity(1 << 20, File::open(&self.log)?);
        let mut reader = DmLogReader::new(file, self.base.geometry())?;
        let mut history = History::new(Arc::clone(&self.base), level);
        let geometry = self.base.geometry();
        let mut length = Length::default();
        let mut seen = None;
        let mut entry = 0;
        while let Some(events) = reader.next_entry()? {
            if entry == 0 {
                self.begins_here(reader.origin())?;
            }
            for event in events {
                self.belongs(&event, entry)?;
                if history.narrows(&event) && seen != Some(length.writes) {
                    if visit(&history, length.moments).is_break() {
                        return Ok(length);
                    }
                    length.moments += 1;
                    seen = Some(length.writes);
                }
                length.writes += u64::from(!event.changes(geometry).is_empty());
                self.apply(&mut history, event);
            }
            entry += 1;
        }
        if seen != Some(length.writes) {
            let _ = visit(&history, length.moments);
            length.moments += 1;
        }
        Ok(length)
    }

    fn apply(&self, history: &mut History, event: Event) {
        match event {
            _ if self.flushes => history.apply(&event),
            Event::FlushIssued(_) | Event::FlushAcked(_) | Event::FlushFailed(_) => {}
            Event::Write { request, block, kind, data, .. } => {
                history.apply(&Event::Write { request, block, kind, data, fua: false });
            }
            other => history.apply(&other),
        }
    }

    /// Refuses another image than the one that the log names.
    fn begins_here(&self, origin: Option<Origin>) -> Result<(), RecordedError> {
        let differs = origin.and_then(|origin| origin.differs_from(&self.base));
        differs.map_or(Ok(()), |how| Err(RecordedError::OtherBase(how)))
    }

    /// Refuses a superblock that is another volume's.
    fn belongs(&self, event: &Event, entry: u64) -> Result<(), RecordedError> {
        let Event::Write { block, data, .. } = event else { return Ok(()) };
        let identity = |data: &[u8]| self.system.identity(*block, data);
        let (ours, theirs) = (identity(self.base.block(*block)), identity(data));
        if ours.is_some() && theirs.is_some() && ours != theirs {
            return Err(RecordedError::OtherVolume { entry });
        }
        Ok(())
    }
}
