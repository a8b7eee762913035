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
//! so nothing is said about the contents of files, and a synced file that is gone is not noticed.
//!
//! **Memory.** The log is read entry by entry, twice. What is kept is the base, the newest version of each block that was
//! written, and the versions since the last flush; the images of a cut share all of it.

use std::fmt;
use std::fs::File;
use std::io::BufReader;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use fstitch_core::{Le, Seed};

use crate::aftermath::Aftermath;
use crate::explore::{AtCut, Explorer, Facts, Known, Origin};
use crate::id::{parse_choice, write_choice};
use crate::lab::{Counts, LabOptions, counter};
use crate::medium::{
    Base, Choice, Cut, DmLogError, DmLogReader, Event, History, Image, Level, Log, RequestNo, for_each_choice,
};
use crate::oracle::{Tree, Violation};
use crate::system::System;

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
    /// The image before the log is damaged.
    #[error("the base image, before the log, is unlawful already: {0}")]
    Base(Violation),
    /// The log has no such state.
    #[error("the log has no state {0}")]
    NoSuchState(RecordedId),
}

/// A state of a recorded log: events before the cut, and which versions of the undecided atoms survived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedId {
    /// Events before the cut.
    pub cut: usize,
    /// What survived.
    pub survivors: Chosen,
}

/// Which versions survived. Cuts of a recorded log may leave tens of thousands of atoms open: too many for a command
/// line, unless they are alike or drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// Atom by atom.
    Versions(Choice),
    /// Drawn by this seed: each atom with `share` sixteenths of probability has lost its stable version.
    Drawn {
        /// From 1 to 15.
        share: u64,
        /// Seeds what is drawn.
        seed: u64,
    },
}

impl Chosen {
    /// The version of each atom; `None` where they are none of this cut's.
    fn choice(&self, cut: &Cut) -> Option<Choice> {
        match self {
            Self::Versions(choice) => {
                let fits = choice.len() == cut.atoms.len()
                    && choice.iter().zip(&cut.atoms).all(|(&chosen, atom)| chosen <= last(atom));
                fits.then(|| choice.clone())
            }
            Self::Drawn { share, seed } => {
                let mut seed = Seed::new(*seed);
                Some(cut.atoms.iter().map(|atom| random_version(last(atom), *share, &mut seed)).collect())
            }
        }
    }
}

impl fmt::Display for RecordedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.cut)?;
        match &self.survivors {
            Chosen::Versions(choice) => write_choice(f, choice),
            Chosen::Drawn { share, seed } => write!(f, "drawn-{share}-{seed}"),
        }
    }
}

/// A word that names no state of a recorded log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` names no state of a log: expected CUT:CHOICE as a failure prints it")]
pub struct UnknownRecorded(String);

impl FromStr for RecordedId {
    type Err = UnknownRecorded;

    fn from_str(text: &str) -> Result<Self, UnknownRecorded> {
        let parse = || {
            let (cut, survivors) = text.trim().split_once(':')?;
            let survivors = match survivors.strip_prefix("drawn-") {
                Some(drawn) => {
                    let (share, seed) = drawn.split_once('-')?;
                    let share = share.parse().ok().filter(|share| (1..16).contains(share))?;
                    Chosen::Drawn { share, seed: seed.parse().ok()? }
                }
                None => Chosen::Versions(parse_choice(survivors)?),
            };
            Some(Self { cut: cut.parse().ok()?, survivors })
        };
        parse().ok_or_else(|| UnknownRecorded(text.to_owned()))
    }
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

/// Where the superblock of ext2 is, and in it what no mount changes: blocks, block size, UUID.
const SUPERBLOCK: u64 = 1024;
const MAGIC: (usize, u16) = (56, 0xef53);

impl Recorded {
    /// Visits states of the log; `progress` hears of every cut, and at which moment of the log it is.
    ///
    /// # Errors
    /// [`RecordedError`] says why the log cannot be judged.
    pub fn search(
        &self,
        options: RecordedOptions,
        progress: &dyn Fn(&RecordedOutcome, u64),
    ) -> Result<RecordedOutcome, RecordedError> {
        let facts = Facts::of(&*self.system, Image::new(Arc::clone(&self.base)));
        let like = Arc::new(facts.shown.map_err(RecordedError::Base)?);
        let level = options.lab.level;
        let length = self.walk(level, &mut |_, _| ControlFlow::Continue(()))?;
        let known = Known::new(KNOWN_IMAGES);
        let mut search = Search {
            recorded: self,
            options,
            known: &known,
            like,
            seed: Seed::new(options.lab.seed),
            outcome: RecordedOutcome { moments: length.moments, ..RecordedOutcome::default() },
        };
        search.outcome.counts.workloads = 1;
        search.outcome.counts.operations = length.writes;
        let per_cut = options.lab.choices_per_cut.max(1);
        let mut next = search.next_after(0).min(length.moments.saturating_sub(1));
        self.walk(level, &mut |history, moment| {
            if moment == next {
                search.cut(&history.cut_within(prefixes(per_cut)));
                progress(&search.outcome, moment + 1);
                next = search.next_after(moment + 1).min(length.moments - 1);
            }
            match search.is_done() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })?;
        Ok(search.outcome)
    }

    /// Makes one state again and judges it, with everything that must work after a crash.
    ///
    /// # Errors
    /// [`RecordedError`], for example when the log has no such state.
    pub fn replay(
        &self,
        id: &RecordedId,
        options: &LabOptions,
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
        let verdict = facts.shown.as_ref().map_err(Violation::clone).and_then(|tree| {
            let aftermath = self.aftermath(tree, options.level);
            aftermath.live_on(&image, options.depth, &mut Seed::new(options.seed))?;
            match crate::E2fsck::is_installed() {
                true => aftermath.ask_reference(&image, facts.allowed),
                false => Ok(()),
            }
        });
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
        let mut length = Length::default();
        let mut seen = None;
        let mut entry = 0;
        while let Some(events) = reader.next_entry()? {
            for event in events {
                self.belongs(&event, entry)?;
                if history.narrows(&event) && seen != Some(length.writes) {
                    if visit(&history, length.moments).is_break() {
                        return Ok(length);
                    }
                    length.moments += 1;
                    seen = Some(length.writes);
                }
                length.writes += u64::from(matches!(event, Event::Write { .. } | Event::Discard { .. }));
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

    /// Refuses a superblock that is another volume's.
    fn belongs(&self, event: &Event, entry: u64) -> Result<(), RecordedError> {
        let Event::Write { block, data, .. } = event else { return Ok(()) };
        let unit = u64::from(self.base.geometry().block_size);
        if *block != SUPERBLOCK / unit {
            return Ok(());
        }
        let at = usize::try_from(SUPERBLOCK % unit).expect("it is small");
        let ours = self.base.block(*block).get(at..at + 120);
        let theirs = data.get(at..at + 120);
        let (Some(ours), Some(theirs)) = (ours, theirs) else { return Ok(()) };
        let (magic_at, magic) = MAGIC;
        let same = [4..8, 24..28, 104..120].into_iter().all(|range| ours[range.clone()] == theirs[range]);
        if Le::u16(ours, magic_at) == magic && Le::u16(theirs, magic_at) == magic && !same {
            return Err(RecordedError::OtherVolume { entry });
        }
        Ok(())
    }
}

/// Images that are kept in mind: consecutive cuts share one or two.
const KNOWN_IMAGES: usize = 64;

/// How many moments to go on so that `budget` states suffice for the `rest` of the moments, of which one takes
/// `states / cuts` of them.
fn stride(rest: u64, (states, cuts): (u64, u64), budget: u64) -> u64 {
    let wanted = u128::from(rest) * u128::from(states);
    let strides = wanted.checked_div(u128::from(cuts) * u128::from(budget));
    strides.map_or(u64::MAX, |stride| u64::try_from(stride).unwrap_or(u64::MAX))
}

/// Prefixes visited at a cut.
fn prefixes(per_cut: u64) -> usize {
    usize::try_from(per_cut.div_ceil(3)).unwrap_or(usize::MAX).min(MAX_PREFIXES)
}

/// Each takes a byte for every undecided atom.
const MAX_PREFIXES: usize = 4096;

struct Search<'a> {
    recorded: &'a Recorded,
    options: RecordedOptions,
    known: &'a Known,
    /// What the images look like, more or less: they share its memory.
    like: Arc<Tree>,
    seed: Seed,
    outcome: RecordedOutcome,
}

impl<'a> Search<'a> {
    fn is_done(&self) -> bool {
        self.outcome.found.len() >= self.options.lab.max_violations
            || self.outcome.counts.generated >= self.options.states
    }

    /// The next moment to visit, `from` being the first one left: by what a cut took so far, the states last until the
    /// end, where enough of them are kept for the last moment.
    fn next_after(&self, from: u64) -> u64 {
        let (counts, per_cut) = (&self.outcome.counts, self.options.lab.choices_per_cut.max(1));
        let budget = self.options.states.saturating_sub(counts.generated.saturating_add(per_cut));
        let took = if counts.cuts == 0 { (per_cut, 1) } else { (counts.generated, counts.cuts) };
        from.saturating_add(stride(self.outcome.moments.saturating_sub(from), took, budget))
    }

    fn cut(&mut self, cut: &Cut) {
        let (lab, left) = (self.options.lab, self.options.states - self.outcome.counts.generated);
        let limit = lab.choices_per_cut.max(1).min(left);
        let log = undecided(cut);
        // The image in which everything arrived is looked at first: most others look much like it.
        let newest = cut.prefixes.last().expect("nothing written is a prefix too");
        let mut first = self.explorer(&log);
        self.look(&mut first.at(cut), newest, &Chosen::Versions(newest.clone()));
        drop(first);
        let mut explorer = self.explorer(&log);
        let mut images = explorer.at(cut);
        let mut choosing = Seed::new(self.seed.next_u64());
        let visited = choose(cut, limit, &mut choosing, &mut |choice, chosen| {
            let done = self.outcome.found.len() >= lab.max_violations;
            if !done && choice != newest {
                self.look(&mut images, choice, chosen);
            }
            self.outcome.found.len() < lab.max_violations
        });
        let counts = &mut self.outcome.counts;
        counts.cuts += 1;
        counts.cuts_exhausted += u64::from(cut.states() == u128::from(visited));
        counts.generated += visited;
    }

    fn explorer(&mut self, log: &Log) -> Explorer<'a> {
        let like = (Arc::clone(&self.like), self.seed.next_u64());
        Explorer::new(&*self.recorded.system, self.known, log, like)
    }

    /// Finds out about one state and judges it, unless one that looks the same was judged.
    fn look(&mut self, images: &mut AtCut<'_, '_>, choice: &[u8], chosen: &Chosen) {
        let (facts, origin) = images.facts(choice);
        *counter(&mut self.outcome.counts, origin) += 1;
        if origin != Origin::Checked {
            return;
        }
        self.outcome.counts.judged += 1;
        let id = || RecordedId { cut: images.cut().at, survivors: chosen.clone() };
        match self.judge(&facts, &|| images.image(choice)) {
            Ok(()) => self.sample(id),
            Err(violation) => self.outcome.found.push((id(), violation)),
        }
        if let Ok(tree) = &facts.shown {
            self.like = Arc::new(tree.clone());
        }
    }

    /// Every lawful state has the same chance to be named.
    fn sample(&mut self, id: impl Fn() -> RecordedId) {
        let samples = &mut self.outcome.samples;
        if samples.len() < MAX_SAMPLES {
            samples.push(id());
            return;
        }
        let place = usize::try_from(self.seed.below(self.outcome.counts.judged)).expect("64-bit machine");
        if let Some(sample) = samples.get_mut(place) {
            *sample = id();
        }
    }

    fn judge(&mut self, facts: &Facts, image: &dyn Fn() -> Image) -> Result<(), Violation> {
        let tree = facts.shown.as_ref().map_err(Violation::clone)?;
        let lab = self.options.lab;
        let aftermath = self.recorded.aftermath(tree, lab.level);
        let sampled = |every: u64, seed: &mut Seed| every > 0 && seed.chance(1, every);
        let counts = &mut self.outcome.counts;
        if sampled(lab.aftermath_every, &mut self.seed) {
            counts.aftermaths += 1;
            counts.during_recovery += aftermath.live_on(&image(), lab.depth, &mut self.seed)? - 1;
        }
        if sampled(lab.reference_every, &mut self.seed) {
            counts.reference += 1;
            aftermath.ask_reference(&image(), facts.allowed)?;
        }
        Ok(())
    }
}

/// A log of the blocks in which the images of a cut differ: all that the explorer needs to tell them apart.
fn undecided(cut: &Cut) -> Log {
    let mut log = Log::new(cut.base.geometry());
    let request = RequestNo(0);
    log.events.extend(cut.atoms.iter().map(|atom| Event::Discard { request, start: atom.block, count: 1 }));
    log
}

/// Visits every choice where `limit` suffices; otherwise a mixture in which none of the three kinds crowds out the
/// others. Returns how many were visited.
fn choose(cut: &Cut, limit: u64, seed: &mut Seed, visit: &mut dyn FnMut(&[u8], &Chosen) -> bool) -> u64 {
    if cut.prefixes_only || cut.states() <= u128::from(limit) {
        let visit = &mut |choice: &[u8]| visit(choice, &Chosen::Versions(choice.to_vec()));
        return for_each_choice(cut, limit, seed, visit).visited;
    }
    let mut visited = 0;
    let mut visit = |chosen: Chosen| {
        visited += 1;
        let choice = chosen.choice(cut).expect("it was made for this cut");
        visit(&choice, &chosen) && visited < limit
    };
    let newest: Choice = cut.atoms.iter().map(last).collect();
    let few = usize::try_from(limit.div_ceil(3)).unwrap_or(usize::MAX);
    let mut more = cut.prefixes.iter().rev().take(few).all(|choice| visit(Chosen::Versions(choice.clone())));
    for at in 0..few {
        if !more {
            return visited;
        }
        let atoms = u64::try_from(cut.atoms.len()).expect("64-bit machine");
        let odd = usize::try_from(seed.below(atoms)).expect("64-bit machine");
        let mut choice = if at % 2 == 0 { newest.clone() } else { vec![0; newest.len()] };
        choice[odd] = newest[odd] - choice[odd];
        more = visit(Chosen::Versions(choice));
    }
    while more {
        more = visit(Chosen::Drawn { share: 1 + seed.below(15), seed: seed.next_u64() });
    }
    visited
}

/// The newest version of an atom.
fn last(atom: &crate::medium::Atom) -> u8 {
    u8::try_from(atom.candidates.len() - 1).expect("the history bounds them")
}

/// A version up to `last`; with `share` sixteenths of probability not the stable one.
fn random_version(last: u8, share: u64, seed: &mut Seed) -> u8 {
    match seed.chance(share, 16) {
        true => u8::try_from(1 + seed.below(u64::from(last))).expect("at most the last one"),
        false => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use fstitch_core::{BlockKind, Seed};

    use super::{Chosen, RecordedId, choose, prefixes, stride};
    use crate::medium::{Base, Choice, Cut, Event, History, Level, RequestNo};

    fn cut(writes: u32, prefixes: usize) -> Cut {
        let mut history = History::new(Base::new(1024, vec![0; 1 << 20]), Level::M2);
        for no in 0..writes {
            let (request, block) = (RequestNo(no), u64::from(no % 700));
            let data = no.to_le_bytes().repeat(256).into();
            history.apply(&Event::Write { request, block, kind: BlockKind::Data, data, fua: false });
            history.apply(&Event::Ack(request));
        }
        history.cut_within(prefixes)
    }

    /// Prevents a table of prefixes that grows with the square of what is open, and a search that sees one kind only.
    #[test]
    fn a_wide_cut_is_sampled_in_every_way_within_its_limit() {
        let cut = cut(1000, prefixes(30));
        assert!(cut.prefixes.len() <= 12, "{} prefixes", cut.prefixes.len());
        assert_eq!(cut.prefixes.last().unwrap().iter().filter(|&&chosen| chosen > 0).count(), 700);
        let mut seen: Vec<Choice> = Vec::new();
        let visited = choose(&cut, 30, &mut Seed::new(1), &mut |choice, _| {
            seen.push(choice.to_vec());
            true
        });
        assert_eq!((visited, seen.len()), (30, 30));
        let survivors = |choice: &Choice| choice.iter().filter(|&&chosen| chosen > 0).count();
        let few = seen.iter().filter(|choice| survivors(choice) == 1).count();
        let most = seen.iter().filter(|choice| survivors(choice) == 699).count();
        assert!(few >= 3 && most >= 3, "{few} with one survivor, {most} with one loss");
        let different: BTreeSet<&Choice> = seen.iter().collect();
        assert!(different.len() > 25, "{} different ones", different.len());
        let valid = |choice: &Choice| {
            choice.iter().zip(&cut.atoms).all(|(&c, a)| usize::from(c) < a.candidates.len())
        };
        assert!(seen.iter().all(valid));
    }

    /// Prevents prefixes that depend on how many of them are wanted.
    #[test]
    fn few_prefixes_are_some_of_all_prefixes() {
        let (all, few) = (cut(50, usize::MAX), cut(50, 7));
        assert_eq!(all.prefixes.len(), 50, "writing zeros to block 0 changes nothing");
        assert!(few.prefixes.len() <= 9 && few.prefixes.iter().all(|choice| all.prefixes.contains(choice)));
        assert_eq!(few.prefixes.last(), all.prefixes.last());
    }

    #[test]
    fn small_cuts_are_visited_whole() {
        let cut = cut(4, prefixes(100));
        let mut seen = BTreeSet::new();
        let visited = choose(&cut, 100, &mut Seed::new(1), &mut |choice, _| seen.insert(choice.to_vec()));
        assert_eq!((visited, seen.len()), (8, 8), "three blocks, lost or not");
    }

    /// Prevents cuts that all lie at the beginning, or that leave most of the states unused.
    #[test]
    fn cuts_are_spread_over_the_log() {
        assert_eq!(stride(1000, (16, 1), 0), u64::MAX, "straight to the end");
        assert_eq!(stride(1000, (16, 1), 16_000), 1);
        assert_eq!(stride(1000, (16, 1), 1_000_000), 0, "every moment");
        assert_eq!(stride(1000, (400, 100), 200), 20, "four states each: fifty more cuts");
        assert_eq!(stride(u64::MAX, (u64::MAX, 1), 1), u64::MAX);
    }

    #[test]
    fn ids_are_read_as_they_are_written() {
        let versions = [vec![], vec![0; 70_000], vec![1, 0, 0, 249]].map(Chosen::Versions);
        for survivors in versions.into_iter().chain([Chosen::Drawn { share: 15, seed: u64::MAX }]) {
            let id = RecordedId { cut: 12, survivors };
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        let wrong =
            ["", "12", "x:1", "12:300", "12:0x99999999999", "1:0x16777216.0", "1:drawn-0-1", "1:drawn-3"];
        for bad in wrong {
            assert!(bad.parse::<RecordedId>().is_err(), "{bad}");
        }
    }

    /// Prevents lines that no shell takes, and that give another state than the one that was found.
    #[test]
    fn drawn_states_have_short_names_and_are_drawn_again() {
        let cut = cut(1000, prefixes(30));
        let mut names = Vec::new();
        choose(&cut, 30, &mut Seed::new(3), &mut |choice, chosen| {
            let id = RecordedId { cut: cut.at, survivors: chosen.clone() };
            let again: RecordedId = id.to_string().parse().expect("it was written");
            assert_eq!(again.survivors.choice(&cut).as_deref(), Some(choice));
            names.push(id.to_string());
            true
        });
        assert!(names.iter().all(|name| name.len() < 2000), "{names:?}");
        assert!(names.iter().filter(|name| name.contains("drawn")).count() >= 8);
    }
}
