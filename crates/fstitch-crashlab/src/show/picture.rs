//! A state as a drawing: time runs to the right, each block has a line, and arrows lead from what needs something to what it needs.
//!
//! ```text
//!             operation 0: create /new                        │ the power fails
//!   block 4   ────────────────────────□ lost                  │
//!                                     ▲ needs (red: broken)   │
//!   block 37  ───────────────────────────────■ survived       │
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::{Row, Story};

/// Units of the drawing: where the lines of blocks begin, how far columns and lines are from each other.
const LEFT: usize = 290;
const COLUMN: usize = 44;
const LINE: usize = 34;
/// Half the side of a write's square.
const HALF: usize = 8;
/// Columns that are drawn; of a longer past the last ones.
const COLUMNS_MAX: usize = 160;
/// Letters of a block's description, and of an operation, before they are cut.
const DESCRIPTION_MAX: usize = 34;

const RED: &str = "#d04030";
const BLUE: &str = "#4060a0";
const GREEN: &str = "#4a7a4a";

/// Draws a state.
pub(super) fn draw(story: &Story) -> String {
    Drawing::new(story).finish()
}

struct Drawing<'a> {
    story: &'a Story,
    /// Rows that are drawn, with their columns.
    columns: Vec<(usize, &'a Row)>,
    /// Operations that are drawn above the blocks.
    heads: usize,
    /// The place of each block among the lines.
    lines: BTreeMap<u64, usize>,
    out: String,
}

impl<'a> Drawing<'a> {
    fn new(story: &'a Story) -> Self {
        let skipped = story.rows.len().saturating_sub(COLUMNS_MAX);
        let columns: Vec<(usize, &Row)> = story.rows.iter().skip(skipped).enumerate().collect();
        let blocks: BTreeSet<u64> = columns
            .iter()
            .filter_map(|(_, row)| if let Row::Write { block, .. } = row { Some(*block) } else { None })
            .collect();
        let lines = blocks.into_iter().enumerate().map(|(line, block)| (block, line)).collect();
        let heads =
            columns.iter().filter(|(_, row)| matches!(row, Row::Operation { .. })).count().clamp(1, 6);
        Self { story, columns, heads, lines, out: String::new() }
    }

    fn top(&self) -> usize {
        76 + self.heads * 16
    }

    fn bottom(&self) -> usize {
        self.top() + self.lines.len() * LINE
    }

    fn x(&self, column: usize) -> usize {
        LEFT + 20 + column * COLUMN
    }

    fn y(&self, line: usize) -> usize {
        self.top() + line * LINE + LINE / 2
    }

    fn text(&mut self, (x, y): (usize, usize), colour: &str, words: &str) {
        let _ = writeln!(self.out, "<text x=\"{x}\" y=\"{y}\" fill=\"{colour}\">{}</text>", escape(words));
    }

    fn rule(&mut self, (x1, y1): (usize, usize), (x2, y2): (usize, usize), style: &str) {
        let _ = writeln!(self.out, "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" {style}/>");
    }

    fn finish(mut self) -> String {
        let end = self.x(self.columns.len());
        let broken = self.story.needs.iter().filter(|need| need.broken).count();
        let (width, height) = (end.max(820) + 150, self.bottom() + 104 + broken * 18);
        self.title();
        self.blocks(end);
        self.events();
        self.arrows();
        self.rule(
            (end, self.top() - 8),
            (end, self.bottom()),
            &format!("stroke=\"{RED}\" stroke-width=\"4\""),
        );
        self.text((end + 10, self.top() + 4), RED, "the power fails");
        self.legend();
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             font-family=\"DejaVu Sans, sans-serif\" font-size=\"12\">\n<defs>{}{}</defs>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{}</svg>\n",
            head("kept", "#909090"),
            head("broken", RED),
            self.out
        )
    }

    fn title(&mut self) {
        let story = self.story;
        self.text((10, 20), "black", &story.id);
        let (colour, words) = match &story.violation {
            None => (GREEN, "lawful".to_owned()),
            Some((code, text)) => (RED, format!("{code}: {text}")),
        };
        self.text((10, 40), colour, &words);
        let left_out = story.rows.len() - self.columns.len();
        if left_out > 0 {
            self.text((10, 60), "#707070", &format!("{left_out} earlier events are not drawn"));
        }
    }

    fn blocks(&mut self, end: usize) {
        for (block, line) in self.lines.clone() {
            let y = self.y(line);
            self.rule((LEFT, y), (end, y), "stroke=\"#e0e0e0\"");
            let what = self.story.blocks.get(&block).map(String::as_str).unwrap_or_default();
            self.text((10, y + 4), "black", &format!("{block}"));
            self.text((60, y + 4), "#404040", &shortened(what, DESCRIPTION_MAX));
        }
    }

    fn events(&mut self) {
        let (top, bottom) = (self.top(), self.bottom());
        let mut head = 0;
        for (column, row) in self.columns.clone() {
            let x = self.x(column);
            match row {
                Row::Operation { no, text, refused } => {
                    let y = 72 + (head % self.heads) * 16;
                    head += 1;
                    let mark = if refused.is_some() { " (refused)" } else { "" };
                    self.text((x + 4, y), "black", &format!("{no}: {}{mark}", shortened(text, 60)));
                    self.rule((x, y - 10), (x, bottom), "stroke=\"#b0b0b0\" stroke-dasharray=\"2 3\"");
                }
                Row::Promise => {
                    self.rule((x, top - 6), (x, bottom), &format!("stroke=\"{GREEN}\" stroke-width=\"2\""));
                    self.text((x + 4, bottom + 14), GREEN, "promised");
                }
                Row::Flush { .. } => {
                    self.rule(
                        (x, top - 6),
                        (x, bottom),
                        &format!("stroke=\"{BLUE}\" stroke-dasharray=\"6 3\""),
                    );
                    self.text((x - 14, bottom + 14), BLUE, "flush");
                }
                Row::Write { block, fate, .. } => {
                    let y = self.y(self.lines[block]);
                    let (side, colour) = (2 * HALF, fate.colour());
                    let fill = if fate.is_there() { colour } else { "white" };
                    let _ = writeln!(
                        self.out,
                        "<rect x=\"{}\" y=\"{}\" width=\"{side}\" height=\"{side}\" rx=\"3\" fill=\"{fill}\" stroke=\"{colour}\" \
                         stroke-width=\"2\"><title>block {block}: {}</title></rect>",
                        x - HALF,
                        y - HALF,
                        fate.word()
                    );
                }
            }
        }
    }

    /// The column and line of the write with this event.
    fn place(&self, event: usize) -> Option<(usize, usize)> {
        self.columns.iter().find_map(|(column, row)| match row {
            Row::Write { at, block, .. } if *at == event => {
                Some((self.x(*column), self.y(self.lines[block])))
            }
            _ => None,
        })
    }

    fn arrows(&mut self) {
        let story = self.story;
        // The broken ones last, so that nothing hides them.
        for broken in [false, true] {
            for need in story.needs.iter().filter(|need| need.broken == broken) {
                let (Some(from), Some(to)) = (self.place(need.from), self.place(need.to)) else { continue };
                self.arrow(from, to, broken, &need.why);
            }
        }
    }

    fn arrow(&mut self, from: (usize, usize), to: (usize, usize), broken: bool, why: &str) {
        let (colour, width, name) = if broken { (RED, 2.5, "broken") } else { ("#909090", 1.0, "kept") };
        // It leaves and arrives at the side that faces the other end.
        let below = to.1 > from.1;
        let edge = |y: usize, down: bool| if down { y + HALF + 1 } else { y - HALF - 1 };
        let (y1, y2) = (edge(from.1, below), edge(to.1, !below));
        let (x1, x2) = (from.0, to.0);
        let middle = usize::midpoint(y1, y2);
        let _ = writeln!(
            self.out,
            "<path d=\"M {x1} {y1} C {x1} {middle}, {x2} {middle}, {x2} {y2}\" fill=\"none\" stroke=\"{colour}\" \
             stroke-width=\"{width}\" marker-end=\"url(#{name})\"><title>{}</title></path>",
            escape(why)
        );
    }

    fn legend(&mut self) {
        let mut y = self.bottom() + 40;
        for (at, fate) in super::Fate::ALL.into_iter().enumerate() {
            let (x, colour) = (10 + at * 190, fate.colour());
            let fill = if fate.is_there() { colour } else { "white" };
            let _ = writeln!(
                self.out,
                "<rect x=\"{x}\" y=\"{}\" width=\"14\" height=\"14\" rx=\"3\" fill=\"{fill}\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                y - 11
            );
            self.text((x + 20, y), "#404040", fate.explained());
        }
        y += 20;
        self.text(
            (10, y),
            "#707070",
            "an arrow leads to what must be on the medium as well: by the rules of soft updates",
        );
        let broken: Vec<String> =
            self.story.needs.iter().filter(|need| need.broken).map(|need| need.why.clone()).collect();
        for why in broken {
            y += 18;
            self.text((10, y), RED, &format!("broken: {why}, which was lost"));
        }
    }
}

fn head(name: &str, colour: &str) -> String {
    format!(
        "<marker id=\"{name}\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" \
         markerUnits=\"userSpaceOnUse\" orient=\"auto\"><path d=\"M0 0 L8 4 L0 8 z\" fill=\"{colour}\"/></marker>"
    )
}

fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
