//! From a log to what may be on the medium: stable and volatile versions, atom by atom.
//!
//! **Definitions** (`docs/medium.md`, section 5). A write is covered once a flush is acknowledged that was issued after
//! the write's acknowledgement, or once the write itself is acknowledged and was a FUA write. The newest covered version
//! of an atom is its stable one; later versions are volatile. A discard is never covered: the old contents may show
//! until a newer write is. What was written before a flush failed is never covered either, because the device may have
//! dropped it and forgotten so.
//!
//! Of persistent memory the blocks are cache lines, and each store makes a version of its line that has all earlier stores
//! to it. A version is covered once a fence returned and its line was flushed between the store and that fence; a line that
//! nobody flushed may have left the cache all the same.
//!
//! | level | an atom of a disk | an atom of memory | what a fence covers |
//! |---|---|---|---|
//! | M0 | – (prefixes of the writes) | – (prefixes of the stores) | every store before it: the caches survive |
//! | M1 | a block | a line, so a prefix of its stores | the same |
//! | M2 | a block | the same | flushed lines |
//! | M3 | [`Base::atom`]: 512 bytes | [`Base::atom`]: 8 bytes, each by itself | flushed lines |
//!
//! **Invariants**
//!
//! - H1. A version leaves the volatile list only by becoming stable or by a newer one becoming stable.
//! - H2. An acknowledged FUA write moves its own block only.
//! - H3. A flush moves nothing that was acknowledged after the flush's issue, or issued before the failure of another.
//! - H4. A fence moves nothing that was stored after the last flush of its line (M2 and M3).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use fstitch_core::BlockNo;
use rustc_hash::FxHashMap;

use super::image::{Base, Bytes, Image, size};
use super::level::Level;
use super::log::{Access, Event, Log, Mark, RequestNo};

/// A version that a power cut may take away.
#[derive(Clone, Debug)]
struct Version {
    request: RequestNo,
    data: Bytes,
    origin: Origin,
    /// The place of the acknowledgement in the log, or of the flush of a line.
    acked_at: Option<usize>,
    /// A flush failed after the issue.
    forsaken: bool,
}

/// What made a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Write,
    FuaWrite,
    Discard,
}

/// How far the workload had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Progress {
    /// Operations begun.
    pub begun: u32,
    /// Operations that returned.
    pub ended: u32,
    /// Promises given.
    pub promises: u32,
}

/// A medium at a moment of its history.
#[derive(Clone, Debug)]
pub struct History {
    level: Level,
    /// Bytes that are on the medium whole.
    atom: usize,
    base: Arc<Base>,
    stable: Arc<BTreeMap<u64, Bytes>>,
    /// Volatile versions in order of issue; no list is empty.
    volatile: BTreeMap<u64, Vec<Version>>,
    /// The blocks of writes and discards under way.
    places: FxHashMap<RequestNo, Range<u64>>,
    /// Where flushes under way were issued.
    flushes: FxHashMap<RequestNo, usize>,
    at: usize,
    progress: Progress,
}

impl History {
    /// A medium that holds `base`, all of it stable.
    #[must_use]
    pub fn new(base: Arc<Base>, level: Level) -> Self {
        Self::from_stable(base, BTreeMap::new(), level)
    }

    /// A medium that holds `base` with the blocks `stable` on top, all of it stable.
    #[must_use]
    pub fn from_stable(base: Arc<Base>, stable: BTreeMap<u64, Bytes>, level: Level) -> Self {
        let block = size(base.geometry().block_size);
        Self {
            level,
            atom: if level == Level::M3 { base.atom() } else { block },
            base,
            stable: Arc::new(stable),
            volatile: BTreeMap::new(),
            places: FxHashMap::default(),
            flushes: FxHashMap::default(),
            at: 0,
            progress: Progress::default(),
        }
    }

    /// Bytes that are on the medium whole: those of a block, or at M3 of an atom.
    #[must_use]
    pub fn atom(&self) -> usize {
        self.atom
    }

    /// The blocks that differ from the base for good.
    #[must_use]
    pub fn stable(&self) -> &Arc<BTreeMap<u64, Bytes>> {
        &self.stable
    }

    /// How far the workload has come.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Events seen.
    #[must_use]
    pub fn at(&self) -> usize {
        self.at
    }

    /// Whether `event` takes possibilities away, or lets more of the workload happen: the moment before it is worth a
    /// look, because every state that was possible earlier is possible then, and judged as strictly.
    #[must_use]
    pub fn narrows(&self, event: &Event) -> bool {
        match event {
            Event::FlushAcked(_) => self.level >= Level::M2,
            Event::Ack(request) => self.level < Level::M2 || self.is_fua(*request),
            Event::Mark(Mark::Begin(_)) | Event::Memory(Access::Fence) => true,
            _ => false,
        }
    }

    fn is_fua(&self, request: RequestNo) -> bool {
        let place = self.places.get(&request).and_then(|blocks| self.volatile.get(&blocks.start));
        place.is_some_and(|v| v.iter().any(|v| v.request == request && v.origin == Origin::FuaWrite))
    }

    /// The medium after one more event.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Write { request, block, data, fua, .. } => {
                let origin = if *fua { Origin::FuaWrite } else { Origin::Write };
                self.places.insert(*request, *block..*block + 1);
                self.issue(*request, *block, data, origin);
            }
            Event::Discard { request, start, count } => self.discard(*request, *start, *count),
            Event::Ack(request) => self.acknowledge(*request),
            Event::FlushIssued(request) => {
                self.flushes.insert(*request, self.at);
            }
            Event::FlushAcked(request) => {
                if let Some(issued_at) = self.flushes.remove(request) {
                    let before = |acked_at| acked_at < issued_at;
                    self.settle(|version| !version.forsaken && version.acked_at.is_some_and(before));
                }
            }
            Event::FlushFailed(request) => {
                self.flushes.remove(request);
                self.volatile.values_mut().flatten().for_each(|version| version.forsaken = true);
            }
            Event::Memory(access) => self.access(access),
            Event::Mark(Mark::Begin(_)) => self.progress.begun += 1,
            Event::Mark(Mark::End(_)) => self.progress.ended += 1,
            Event::Mark(Mark::Promise(_)) => self.progress.promises += 1,
            Event::Mark(Mark::Note(_)) => {}
        }
        self.at += 1;
    }

    fn issue(&mut self, request: RequestNo, block: u64, data: &Bytes, origin: Origin) {
        let version = Version { request, data: data.clone(), origin, acked_at: None, forsaken: false };
        self.volatile.entry(block).or_default().push(version);
    }

    fn access(&mut self, access: &Access) {
        match access {
            Access::Store { request, offset, data } => self.store(*request, *offset, data),
            Access::Flush { lines } => {
                let versions = self.volatile.range_mut(lines.clone()).flat_map(|(_, versions)| versions);
                versions.for_each(|version| version.acked_at = Some(self.at));
            }
            // Where the caches survive, nothing need be flushed.
            Access::Fence if self.level < Level::M2 => self.settle(|_| true),
            Access::Fence => self.settle(|version| version.acked_at.is_some()),
        }
    }

    fn store(&mut self, request: RequestNo, offset: u64, data: &[u8]) {
        let block_size = u64::from(self.base.geometry().block_size);
        let (line, at) = (offset / block_size, BlockNo(offset % block_size).index());
        let mut whole = self.newest(line).to_vec();
        assert!(
            at + data.len() <= whole.len(),
            "a store of {} bytes at {offset} leaves its line",
            data.len()
        );
        whole[at..at + data.len()].copy_from_slice(data);
        self.issue(request, line, &whole.into(), Origin::Write);
    }

    /// A block as it is read.
    fn newest(&self, block: u64) -> &[u8] {
        let volatile = self.volatile.get(&block).and_then(|versions| versions.last());
        let newest = volatile.map(|version| &version.data).or_else(|| self.stable.get(&block));
        newest.map(std::ops::Deref::deref).unwrap_or_else(|| self.base.block(block))
    }

    /// A discarded block holds anything until it is written again, in practice its old contents or zeros.
    fn discard(&mut self, request: RequestNo, start: u64, count: u64) {
        if count == 0 {
            return;
        }
        let zeros: Bytes = vec![0; self.base.block(start).len()].into();
        self.places.insert(request, start..start + count);
        for block in start..start + count {
            self.issue(request, block, &zeros, Origin::Discard);
        }
    }

    fn acknowledge(&mut self, request: RequestNo) {
        let Some(blocks) = self.places.remove(&request) else { return };
        let level = self.level;
        for (_, versions) in self.volatile.range_mut(blocks.clone()) {
            let ours = versions.iter_mut().filter(|version| version.request == request);
            ours.for_each(|version| version.acked_at = Some(self.at));
        }
        match level {
            // Without reordering, an acknowledged write has everything before it on the medium.
            Level::M0 => self.settle(|version| version.request <= request),
            Level::M1 => self.settle_in(blocks, |version| version.request == request),
            Level::M2 | Level::M3 => self.settle_in(blocks, |version| {
                version.request == request && version.origin == Origin::FuaWrite
            }),
        }
    }

    /// Makes the versions that are `covered` stable, block by block.
    fn settle(&mut self, covered: impl Fn(&Version) -> bool) {
        self.settle_in(0..u64::MAX, covered);
    }

    /// The same for some blocks.
    fn settle_in(&mut self, blocks: Range<u64>, covered: impl Fn(&Version) -> bool) {
        // At M0 a discard is one step of a history without reordering.
        let level = self.level;
        let covered = |v: &Version| covered(v) && (v.origin != Origin::Discard || level == Level::M0);
        let mut settled = Vec::new();
        for (&block, versions) in self.volatile.range_mut(blocks) {
            if let Some(newest) = versions.iter().rposition(covered) {
                let newest = versions.drain(..=newest).next_back().expect("the range is not empty");
                settled.push((block, newest.data, versions.is_empty()));
            }
        }
        if settled.is_empty() {
            return;
        }
        let stable = Arc::make_mut(&mut self.stable);
        for (block, data, decided) in settled {
            stable.insert(block, data);
            if decided {
                self.volatile.remove(&block);
            }
        }
    }

    /// What a power cut at this moment leaves open.
    #[must_use]
    pub fn cut(&self) -> Cut {
        Cut::new(self, usize::MAX)
    }

    /// The same with about `prefixes` prefixes of the writes under way, evenly spaced: each takes a byte for every
    /// atom, and a live mount leaves tens of thousands of either open.
    #[must_use]
    pub(crate) fn cut_within(&self, prefixes: usize) -> Cut {
        Cut::new(self, prefixes)
    }
}

/// A piece of a block that is on the medium whole, in one of several versions.
#[derive(Clone, Debug)]
pub struct Atom {
    /// The block.
    pub block: u64,
    /// Where in the block it starts.
    pub offset: usize,
    /// Its length in bytes.
    pub len: usize,
    /// The **blocks** in which its possible contents stand, all different in this atom: the stable one first,
    /// then the volatile ones in order of issue.
    pub candidates: Vec<Bytes>,
}

impl Atom {
    /// The bytes of candidate `choice`.
    #[must_use]
    pub fn bytes(&self, choice: u8) -> &[u8] {
        &self.candidates[usize::from(choice)][self.offset..self.offset + self.len]
    }
}

/// Which version of each atom survived: 0 is the stable one.
pub type Choice = Vec<u8>;

/// A moment at which the power fails.
#[derive(Clone, Debug)]
pub struct Cut {
    /// Events before it.
    pub at: usize,
    /// How far the workload had come.
    pub progress: Progress,
    /// The image below everything.
    pub base: Arc<Base>,
    /// What is stable, on top of the base.
    pub stable: Arc<BTreeMap<u64, Bytes>>,
    /// What is undecided: atoms with at least two different candidates.
    pub atoms: Vec<Atom>,
    /// The choices that follow from the first 0, 1, 2, … volatile writes in order of issue.
    pub prefixes: Vec<Choice>,
    /// Whether only those are possible.
    pub prefixes_only: bool,
}

/// The most versions of one atom that are told apart; more than that keep the oldest and the newest ones.
const MAX_CANDIDATES: usize = 250;

impl Cut {
    fn new(history: &History, most_prefixes: usize) -> Self {
        let mut atoms = Vec::new();
        // For every write in order of issue, the atoms that it decides and how.
        let mut steps: BTreeMap<RequestNo, Vec<(usize, u8)>> = BTreeMap::new();
        for (&block, versions) in &history.volatile {
            let stable: Bytes = match history.stable.get(&block) {
                Some(data) => data.clone(),
                None => history.base.block(block).into(),
            };
            let len = history.atom;
            for offset in (0..stable.len()).step_by(len) {
                let mut atom = Atom { block, offset, len, candidates: vec![stable.clone()] };
                let chosen: Vec<u8> = versions.iter().map(|v| atom.choice_of(&v.data)).collect();
                if atom.candidates.len() > 1 {
                    for (version, choice) in versions.iter().zip(chosen) {
                        steps.entry(version.request).or_default().push((atoms.len(), choice));
                    }
                    atoms.push(atom);
                }
            }
        }
        let prefixes = prefixes(atoms.len(), &steps, most_prefixes);
        Self {
            at: history.at,
            progress: history.progress,
            base: Arc::clone(&history.base),
            stable: Arc::clone(&history.stable),
            atoms,
            prefixes,
            prefixes_only: history.level == Level::M0,
        }
    }

    /// How many different images are possible, as far as a `u128` counts.
    #[must_use]
    pub fn states(&self) -> u128 {
        if self.prefixes_only {
            return u128::try_from(self.prefixes.len()).unwrap_or(u128::MAX);
        }
        let radices =
            self.atoms.iter().map(|atom| u128::try_from(atom.candidates.len()).unwrap_or(u128::MAX));
        radices.fold(1, u128::saturating_mul)
    }

    /// Whether `choice` names a version of each undecided atom.
    #[must_use]
    pub fn permits(&self, choice: &[u8]) -> bool {
        self.atoms.len() == choice.len()
            && self
                .atoms
                .iter()
                .zip(choice)
                .all(|(atom, &chosen)| usize::from(chosen) < atom.candidates.len())
    }

    /// The image in which this choice is made.
    #[must_use]
    pub fn image(&self, choice: &[u8]) -> Image {
        Image::with(Arc::clone(&self.base), self.blocks(choice))
    }

    /// The blocks that differ from the base when this choice is made.
    #[must_use]
    pub fn blocks(&self, choice: &[u8]) -> BTreeMap<u64, Bytes> {
        let mut blocks = BTreeMap::clone(&self.stable);
        self.overlay(choice, &mut |block, data| {
            blocks.insert(block, data);
        });
        blocks
    }

    /// Hands out the undecided blocks with their contents.
    pub fn overlay(&self, choice: &[u8], put: &mut dyn FnMut(u64, Bytes)) {
        let mut at = 0;
        while at < self.atoms.len() {
            let atom = &self.atoms[at];
            let pieces = self.atoms[at..].iter().take_while(|next| next.block == atom.block).count();
            if pieces == 1 && atom.len == atom.candidates[0].len() {
                put(atom.block, atom.candidates[usize::from(choice[at])].clone());
            } else {
                put(atom.block, self.put_together(at..at + pieces, choice).into());
            }
            at += pieces;
        }
    }

    /// The block whose undecided atoms these are.
    pub(crate) fn put_together(&self, atoms: Range<usize>, choice: &[u8]) -> Vec<u8> {
        let mut data = self.atoms[atoms.start].candidates[0].to_vec();
        for (atom, &chosen) in self.atoms[atoms.clone()].iter().zip(&choice[atoms]) {
            data[atom.offset..atom.offset + atom.len].copy_from_slice(atom.bytes(chosen));
        }
        data
    }
}

impl Atom {
    /// The candidate that has the bytes of `data`; a new one if there is none.
    fn choice_of(&mut self, data: &Bytes) -> u8 {
        let range = self.offset..self.offset + self.len;
        let known = self.candidates.iter().position(|other| other[range.clone()] == data[range.clone()]);
        let index = known.unwrap_or_else(|| {
            if self.candidates.len() == MAX_CANDIDATES {
                self.candidates.pop();
            }
            self.candidates.push(data.clone());
            self.candidates.len() - 1
        });
        u8::try_from(index).expect("bounded above")
    }
}

fn prefixes(atoms: usize, steps: &BTreeMap<RequestNo, Vec<(usize, u8)>>, most: usize) -> Vec<Choice> {
    let stride = steps.len().div_ceil(most.max(1)).max(1);
    let mut choice = vec![0; atoms];
    let mut all = vec![choice.clone()];
    for (no, step) in (1..).zip(steps.values()) {
        step.iter().for_each(|&(atom, chosen)| choice[atom] = chosen);
        let kept = no % stride == 0 || no == steps.len();
        if kept && all.last() != Some(&choice) {
            all.push(choice.clone());
        }
    }
    all
}

/// The cut after `at` events of `log`, if [`for_each_cut`] visits it.
#[must_use]
pub fn cut_at(history: History, log: &Log, at: usize) -> Option<Cut> {
    let mut found = None;
    for_each_cut(history, log, &mut |cut| {
        if cut.at == at {
            found = Some(cut.clone());
        }
    });
    found
}

/// Visits the moments of `log` at which a cut can leave something new, in order. The log continues `history`.
pub fn for_each_cut(mut history: History, log: &Log, visit: &mut dyn FnMut(&Cut)) {
    // Without a new write or a new promise there is nothing new: fewer images, or more that they may show.
    let mut seen: Option<(usize, u32)> = None;
    let geometry = history.base.geometry();
    let mut writes = 0;
    for event in &log.events {
        let now = Some((writes, history.progress.promises));
        if history.narrows(event) && seen != now {
            visit(&history.cut());
            seen = now;
        }
        writes += usize::from(!event.changes(geometry).is_empty());
        history.apply(event);
    }
    visit(&history.cut());
}
