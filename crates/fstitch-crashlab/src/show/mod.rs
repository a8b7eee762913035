//! A state for people: what was done, what was written when, and what of it a cut took away; as text and as a drawing.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use fstitch_core::BlockKind;

use crate::medium::{Event, Mark, RequestNo};
use crate::replay::Replay;

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
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
    fn word(self) -> &'static str {
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
}

/// One line of the past.
enum Row {
    Operation { no: u32, text: String, refused: Option<String> },
    Promise,
    Write { at: usize, block: u64, kind: BlockKind, fate: Fate },
    Flush { at: usize },
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

/// Height of a row and left edge of the writes, in the drawing's units.
const ROW: usize = 18;
const WRITES: usize = 420;

/// The timeline as a drawing: time runs down, operations on the left, writes on the right in the colour of their fate.
#[must_use]
pub fn svg(replay: &Replay) -> String {
    let rows = rows(replay);
    let height = (rows.len() + 6) * ROW;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"900\" height=\"{height}\" font-family=\"monospace\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let mut text = |x: usize, row: usize, colour: &str, words: &str| {
        let y = (row + 1) * ROW;
        let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\" fill=\"{colour}\">{}</text>", escape(words));
    };
    text(8, 0, "black", &replay.id.to_string());
    text(8, 1, if replay.verdict.is_ok() { "#4a7a4a" } else { "#d04030" }, &verdict(replay));
    for (row, what) in (3..).zip(&rows) {
        match what {
            Row::Operation { no, text: op, .. } => text(8, row, "black", &format!("{no}: {op}")),
            Row::Promise => text(24, row, "#4060a0", "stable from here on"),
            Row::Flush { .. } => text(WRITES, row, "#4060a0", "──── flush ────"),
            Row::Write { block, kind, fate, .. } => {
                text(WRITES, row, fate.colour(), &format!("■ block {block} {kind:?} {}", fate.word()));
            }
        }
    }
    text(8, rows.len() + 4, "#d04030", "════ the power fails ════");
    out.push_str("</svg>\n");
    out
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
