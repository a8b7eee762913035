//! A state for people: what was done, what was written when, and what of it a cut took away; as text, as a drawing, and as values for
//! programs.

mod picture;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use fstitch_core::BlockKind;

use crate::medium::{Atom, Bytes, Event, Image, Mark, RequestNo};
use crate::replay::Replay;

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// A flush made it stable, or a later stable write did away with it.
    Stable,
    /// It was volatile and is on the medium.
    Survived,
    /// It was volatile and is not, at least not as a whole.
    Lost,
    /// A later volatile write is on the medium in its place.
    Replaced,
}

impl Fate {
    const ALL: [Self; 4] = [Self::Stable, Self::Survived, Self::Lost, Self::Replaced];

    /// One word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Survived => "survived",
            Self::Lost => "LOST",
            Self::Replaced => "replaced",
        }
    }

    fn colour(self) -> &'static str {
        match self {
            Self::Stable => "#4a7a4a",
            Self::Survived => "#8fbf6f",
            Self::Lost => "#d04030",
            Self::Replaced => "#b0b0b0",
        }
    }

    /// Whether the write's contents, or newer ones that were on the medium once, have arrived.
    fn is_there(self) -> bool {
        matches!(self, Self::Stable | Self::Survived)
    }

    fn explained(self) -> &'static str {
        match self {
            Self::Stable => "stable: a flush followed",
            Self::Survived => "survived the cut",
            Self::Lost => "lost",
            Self::Replaced => "replaced by a later write",
        }
    }
}

/// One line of the past. `at` counts the events of the log.
#[derive(Clone, Debug)]
pub enum Row {
    /// An operation of the workload began.
    Operation {
        /// Its number.
        no: u32,
        /// The operation.
        text: String,
        /// The error with which it failed, if it did.
        refused: Option<String>,
    },
    /// A sync returned.
    Promise,
    /// A block was written.
    Write {
        /// When.
        at: usize,
        /// Which.
        block: u64,
        /// What it is.
        kind: BlockKind,
        /// What became of it.
        fate: Fate,
    },
    /// A flush was acknowledged.
    Flush {
        /// When.
        at: usize,
    },
}

/// One write needs what another one brought.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Needed {
    /// The event of the write that needs.
    pub from: usize,
    /// The event of the write that is needed.
    pub to: usize,
    /// Why.
    pub why: String,
    /// The first one is on the medium and the second one is not.
    pub broken: bool,
}

/// A volume taken apart for people: what its blocks are, by the names of the files that they belong to, and which new contents of
/// one block mean nothing without those of another.
pub trait Anatomy {
    /// What a block is, with the name of the file that it belongs to.
    fn describe(&self, block: u64, kind: BlockKind) -> String;
    /// What the contents `new` of a block need that the contents `old` did not.
    fn needs(&self, block: u64, kind: BlockKind, contents: (&[u8], &[u8])) -> BTreeSet<Need>;
}

/// Contents of a block that mean nothing without those of another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Need {
    /// The other block.
    pub block: u64,
    /// Why, such as `the name "new"`.
    pub why: String,
}

/// A state, as it came to be.
#[derive(Clone, Debug)]
pub struct Story {
    /// Its name.
    pub id: String,
    /// What is wrong with it: a stable word, and a text for people.
    pub violation: Option<(&'static str, String)>,
    /// What happened, in order.
    pub rows: Vec<Row>,
    /// What the blocks are that were written, by the names of files where they belong to some.
    pub blocks: BTreeMap<u64, String>,
    /// Which of the writes that the cut left undecided need which others.
    pub needs: Vec<Needed>,
}

/// What happened, and what needed what.
#[must_use]
pub fn story(replay: &Replay) -> Story {
    let violation = replay.verdict.as_ref().err().map(|found| (found.code, found.text.clone()));
    let rows = rows(replay);
    let anatomy = anatomy(replay);
    let mut blocks = BTreeMap::new();
    for row in &rows {
        let Row::Write { block, kind, .. } = row else { continue };
        let what = anatomy
            .as_ref()
            .map_or_else(|| format!("{kind:?}").to_lowercase(), |a| a.describe(*block, *kind));
        blocks.insert(*block, what);
    }
    let needs = anatomy.map_or_else(Vec::new, |anatomy| needs(replay, &rows, &*anatomy));
    Story { id: replay.id.to_string(), violation, rows, blocks, needs }
}

/// The volume as it would be had everything arrived; what that one lacks is as it was before.
fn anatomy(replay: &Replay) -> Option<Box<dyn Anatomy>> {
    let cut = &replay.cut;
    let last = |atom: &Atom| u8::try_from(atom.candidates.len() - 1).unwrap_or(u8::MAX);
    let newest: Vec<u8> = cut.atoms.iter().map(last).collect();
    let image = |choice: &[u8]| Image::with(Arc::clone(&cut.base), cut.blocks(choice));
    replay.lab.system().anatomy(image(&newest), image(&vec![0; newest.len()]))
}

/// What the undecided writes need: of each block's versions each one, compared with the one before.
fn needs(replay: &Replay, rows: &[Row], anatomy: &dyn Anatomy) -> Vec<Needed> {
    let cut = &replay.cut;
    let mut last: BTreeMap<u64, (usize, Fate)> = BTreeMap::new();
    for row in rows {
        if let Row::Write { at, block, fate, .. } = row {
            last.insert(*block, (*at, *fate));
        }
    }
    let mut before: BTreeMap<u64, Bytes> = BTreeMap::new();
    let mut found = Vec::new();
    for row in rows {
        let Row::Write { at, block, kind, fate } = row else { continue };
        let Some(Event::Write { data, .. }) = replay.recording.log.events.get(*at) else { continue };
        let old = before.insert(*block, data.clone());
        let old = old.unwrap_or_else(|| {
            replay.recording.start.get(block).cloned().unwrap_or_else(|| cut.base.block(*block).into())
        });
        if *fate == Fate::Stable {
            continue;
        }
        for need in anatomy.needs(*block, *kind, (&old, data)) {
            let Some(&(to, needed)) = last.get(&need.block).filter(|(to, _)| to != at) else { continue };
            let broken = *fate == Fate::Survived && needed == Fate::Lost;
            found.push(Needed { from: *at, to, why: need.why, broken });
        }
    }
    found.sort();
    found.dedup();
    found
}

/// What became of each write before the cut.
fn fates(replay: &Replay) -> BTreeMap<RequestNo, Fate> {
    let cut = &replay.cut;
    let mut last: BTreeMap<u64, RequestNo> = BTreeMap::new();
    let mut fates = BTreeMap::new();
    let events = &replay.recording.log.events[..cut.at];
    for event in events {
        let Event::Write { request, block, data, .. } = event else { continue };
        let atoms = || cut.atoms.iter().zip(&replay.id.choice).filter(|(atom, _)| atom.block == *block);
        let holds = |atom: &crate::medium::Atom, choice: u8| {
            atom.bytes(choice) == &data[atom.offset..atom.offset + atom.len]
        };
        let undecided = atoms().any(|(atom, _)| (1..atom.candidates.len()).any(|c| holds(atom, byte(c))));
        let whole = atoms().all(|(atom, &choice)| holds(atom, choice));
        let fate = match (undecided, whole) {
            (false, _) => Fate::Stable,
            (true, true) => Fate::Survived,
            (true, false) => Fate::Lost,
        };
        if let Some(older) = last.insert(*block, *request)
            && fate == Fate::Survived
        {
            fates.entry(older).and_modify(|fate| {
                if *fate == Fate::Lost {
                    *fate = Fate::Replaced;
                }
            });
        }
        fates.insert(*request, fate);
    }
    fates
}

fn byte(choice: usize) -> u8 {
    u8::try_from(choice).unwrap_or(u8::MAX)
}

fn rows(replay: &Replay) -> Vec<Row> {
    let fates = fates(replay);
    let events = replay.recording.log.events[..replay.cut.at].iter().enumerate();
    let mut rows = Vec::new();
    for (at, event) in events {
        match event {
            Event::Mark(Mark::Begin(no)) => {
                let op = usize::try_from(*no).ok().and_then(|no| replay.workload.ops.get(no));
                let text = op.map(ToString::to_string).unwrap_or_default();
                let refused = replay.recording.refused.get(no).cloned();
                rows.push(Row::Operation { no: *no, text, refused });
            }
            Event::Mark(Mark::Promise(_)) => rows.push(Row::Promise),
            Event::Write { request, block, kind, .. } => {
                let fate = fates.get(request).copied().unwrap_or(Fate::Stable);
                rows.push(Row::Write { at, block: *block, kind: *kind, fate });
            }
            Event::FlushAcked(_) => rows.push(Row::Flush { at }),
            _ => {}
        }
    }
    rows
}

fn verdict(replay: &Replay) -> String {
    match &replay.verdict {
        Ok(()) => "lawful".into(),
        Err(violation) => violation.to_string(),
    }
}

/// The timeline as text.
#[must_use]
pub fn timeline(replay: &Replay) -> String {
    let mut text = String::new();
    let mut line = |args: std::fmt::Arguments<'_>| {
        let _ = text.write_fmt(args);
        text.push('\n');
    };
    line(format_args!("state    {}", replay.id));
    line(format_args!("verdict  {}", verdict(replay)));
    if !replay.workload.setup.is_empty() {
        line(format_args!("\non the medium before:"));
        replay.workload.setup.iter().for_each(|op| line(format_args!("         {op}")));
    }
    line(format_args!("\nevent    what happened"));
    for row in rows(replay) {
        match row {
            Row::Operation { no, text, refused } => {
                let refused = refused.map(|error| format!("  -> {error}")).unwrap_or_default();
                line(format_args!("         operation {no}: {text}{refused}"));
            }
            Row::Promise => line(format_args!("         … it is stable from here on")),
            Row::Write { at, block, kind, fate } => {
                line(format_args!(
                    "{at:>7}      write block {block:<7} {:<16} {}",
                    format!("{kind:?}"),
                    fate.word()
                ));
            }
            Row::Flush { at } => line(format_args!("{at:>7}      flush")),
        }
    }
    line(format_args!("{:>7}  ==== the power fails ====", replay.cut.at));
    let lost: Vec<usize> = replay.lost().collect();
    line(format_args!(
        "\n{} of {} undecided atoms are older than they could be:",
        lost.len(),
        replay.cut.atoms.len()
    ));
    for at in lost {
        let atom = &replay.cut.atoms[at];
        let (chosen, newest) = (replay.id.choice[at], atom.candidates.len() - 1);
        let (block, offset, len) = (atom.block, atom.offset, atom.len);
        line(format_args!("         block {block} bytes {offset}+{len}: version {chosen} of 0..={newest}"));
    }
    text
}

/// The state as a drawing: time runs to the right, each block has a line, arrows lead to what a write needs.
#[must_use]
pub fn svg(replay: &Replay) -> String {
    picture::draw(&story(replay))
}
