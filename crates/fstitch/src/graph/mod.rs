//! `fstitch graph`: what waits to be written on a mount, and why.

mod dot;

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::control::client::of_mount_or_image;
use crate::control::graph::{Block, Graph, Group, Journal, LeftOut, Ready, Standing, Why};
use crate::control::{Request, Response};
use crate::output::{Outcome, json, text};

/// Arguments of `graph`.
#[derive(clap::Args)]
#[command(
    after_help = "Each line is a block with changes that are not on the medium. It is `ready` when all of it can be written, `partly` when \
                  patches must be undone for that, `waits` when nothing of it can be written, `in flight` when it is being written. \
                  `docs/control-socket.md` explains every field of the JSON."
)]
pub struct Arguments {
    /// Print JSON
    #[arg(long, conflicts_with = "dot")]
    json: bool,
    /// Print the graph in the language of Graphviz: `| dot -Tsvg > graph.svg`
    #[arg(long)]
    dot: bool,
    /// Show at most so many blocks, and as many patches; 4096 at most
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=4096))]
    limit: u16,
    /// Where the volume is mounted, or the image or device that is
    #[arg(value_name = "MOUNTPOINT|IMAGE")]
    mount: PathBuf,
}

/// Runs `graph`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let mut connection = of_mount_or_image(&arguments.mount)?;
    let graph = match connection.ask(&Request::Graph { limit: usize::from(arguments.limit) })? {
        Response::Graph(graph) => graph,
        Response::Error(reason) => bail!("{reason}"),
        other => bail!("an unexpected answer: {other:?}"),
    };
    if arguments.json {
        json(&graph)?;
    } else if arguments.dot {
        text(&dot::draw(&graph)?)?;
    } else {
        text(&describe(&graph)?)?;
    }
    Ok(Outcome::SUCCESS)
}

/// The graph for people.
fn describe(graph: &Graph) -> Result<String> {
    let mut shown = String::new();
    let Graph { dirty_blocks, in_flight_blocks, patches, .. } = graph;
    writeln!(shown, "{dirty_blocks} blocks are changed, {in_flight_blocks} in flight; {patches} patches")?;
    if let Some(epoch) = &graph.epoch {
        writeln!(shown, "epoch {}: {} blocks, for {}", epoch.number, epoch.blocks, age(epoch.age_ms))?;
    }
    for journal in &graph.journals {
        shown += &describe_journal(journal)?;
    }
    for group in &graph.patchgroups {
        writeln!(shown, "{}", describe_group(group))?;
    }
    if !graph.failure.is_empty() {
        writeln!(shown, "FAILED: {}", graph.failure)?;
    }
    if !graph.blocks.is_empty() {
        writeln!(
            shown,
            "\n{:>10}  {:<18}  {:>8}  {:>7}  {:<9}  why",
            "block", "kind", "age", "patches", "state"
        )?;
    }
    for block in &graph.blocks {
        shown += &describe_block(block)?;
    }
    shown += &describe_left_out(&graph.left_out)?;
    Ok(shown)
}

fn describe_block(block: &Block) -> Result<String> {
    let state = match (block.in_flight, block.ready) {
        (true, _) => "in flight",
        (false, Ready::Whole) => "ready",
        (false, Ready::Partly) => "partly",
        (false, Ready::No) => "waits",
    };
    let mut line = String::new();
    write!(
        line,
        "{:>10}  {:<18}  {:>8}  {:>7}  {state:<9}  {}",
        block.block,
        block.kind,
        age(block.age_ms),
        block.patches.len() + block.patches_left_out,
        block.why.as_ref().map(|why| explain(why, block)).unwrap_or_default()
    )?;
    Ok(format!("{}\n", line.trim_end()))
}

/// A cause in words.
pub fn explain(why: &Why, of: &Block) -> String {
    let by = |group: &Option<u64>| group.map(|group| format!("patchgroup {group}: ")).unwrap_or_default();
    match why {
        Why::InFlight if of.dirty => "it has changed again since it was sent".to_owned(),
        Why::InFlight => String::new(),
        Why::Elsewhere { record, .. } => {
            format!("is stored elsewhere, and waits for patch {record}, by which it is found there")
        }
        Why::Failed { error } => format!("will never be stable: {error}"),
        Why::Patch { before, block, kind, standing, group, others, .. } => {
            let place = match *block == of.block {
                true => "of this block".to_owned(),
                false => format!("of block {block} ({kind})"),
            };
            let standing = match standing {
                Standing::InFlight => "which is in flight",
                Standing::Elsewhere => "which is stored elsewhere and not found there yet",
                Standing::Failed => "which will never be stable",
                Standing::Ready => "which could be written now",
                Standing::Behind => "an earlier version of which is in flight",
                Standing::Waits => "which waits itself",
            };
            let others = match others {
                0 => String::new(),
                1 => ", and for 1 other".to_owned(),
                n => format!(", and for {n} others"),
            };
            format!("{}waits for patch {before} {place}, {standing}{others}", by(group))
        }
        Why::Transaction { sequence, operations, closing, .. } => {
            let closes = if *closing { "is about to close" } else { "is not closed" };
            match operations {
                0 => format!("its transaction {sequence} {closes}"),
                n => format!("its transaction {sequence} {closes}: {}", under_way(*n)),
            }
        }
        Why::Held { held, group, .. } => {
            format!("{}an operation under way holds patch {held}, for which it waits", by(group))
        }
        Why::Chain { empty, .. } => {
            format!("waits for a long chain of patches without blocks, patch {empty} among them")
        }
        Why::Other => "a cause that this program does not know: it is older than the mount's".to_owned(),
    }
}

fn under_way(operations: usize) -> String {
    match operations {
        1 => "1 operation under way".to_owned(),
        n => format!("{n} operations under way"),
    }
}

fn describe_journal(journal: &Journal) -> Result<String> {
    let mut shown = String::new();
    if let Some(running) = &journal.running {
        let closing = if running.closing { ", about to close" } else { "" };
        writeln!(
            shown,
            "transaction {} ({}) takes changes: {} blocks, {} old, {}{closing}",
            running.sequence,
            journal.mode,
            running.blocks,
            age(running.age_ms),
            under_way(running.operations)
        )?;
    }
    for closed in &journal.closed {
        let state = if closed.stable { "stable, on its way home" } else { "on its way into the log" };
        writeln!(shown, "transaction {}: {} blocks, {state}", closed.sequence, closed.blocks)?;
    }
    if journal.closed_left_out > 0 {
        writeln!(shown, "and {} more transactions", journal.closed_left_out)?;
    }
    Ok(shown)
}

fn describe_group(group: &Group) -> String {
    let state = match group.state.as_str() {
        "engaged" => format!("engaged by {}", group.scopes),
        other => other.to_owned(),
    };
    let waits = if group.waiting { ", what it comes after is not stable yet" } else { "" };
    let stable = if group.stable { "all stable" } else { "not all stable" };
    format!("patchgroup {}: {state}, {stable}{waits}", group.group)
}

fn describe_left_out(left_out: &LeftOut) -> Result<String> {
    let LeftOut { blocks, patches, edges, groups } = *left_out;
    if *left_out == LeftOut::default() {
        return Ok(String::new());
    }
    Ok(format!(
        "\nnot shown: {blocks} blocks, {patches} patches, {edges} edges, {groups} patchgroups (--limit shows more)\n"
    ))
}

/// A time for people, from milliseconds.
fn age(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        _ => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::graph::{Closed, Epoch, Patch, Running};
    use crate::control::kind::Kind;

    pub(super) fn example() -> Graph {
        let why = |before, block, kind, standing| {
            Some(Why::Patch { patch: before + 1, before, block, kind, standing, group: None, others: 0 })
        };
        let block = |block, kind, ready, why: Option<Why>| Block {
            block,
            kind,
            dirty: true,
            age_ms: 1234,
            ready,
            why,
            patches: vec![Patch { patch: block * 10, ..Patch::default() }],
            ..Block::default()
        };
        let flying =
            Block { in_flight: true, dirty: false, ..block(12, Kind::Data, Ready::No, Some(Why::InFlight)) };
        Graph {
            dirty_blocks: 9,
            in_flight_blocks: 1,
            patches: 14,
            epoch: Some(Epoch { number: 7, age_ms: 3, blocks: 1 }),
            blocks: vec![
                flying,
                block(35, Kind::Inode, Ready::No, why(120, 12, Kind::Data, Standing::InFlight)),
                block(36, Kind::Directory, Ready::Partly, why(350, 35, Kind::Inode, Standing::Waits)),
                block(3, Kind::BlockBitmap, Ready::Whole, None),
            ],
            left_out: LeftOut { blocks: 6, patches: 10, ..LeftOut::default() },
            ..Graph::default()
        }
    }

    #[test]
    fn a_graph_is_a_table_of_blocks() {
        let expected = "\
9 blocks are changed, 1 in flight; 14 patches
epoch 7: 1 blocks, for 3 ms

     block  kind                     age  patches  state      why
        12  data                   1.2 s        1  in flight
        35  inode                  1.2 s        1  waits      waits for patch 120 of block 12 (data), which is in flight
        36  directory              1.2 s        1  partly     waits for patch 350 of block 35 (inode), which waits itself
         3  block-bitmap           1.2 s        1  ready

not shown: 6 blocks, 10 patches, 0 edges, 0 patchgroups (--limit shows more)
";
        assert_eq!(describe(&example()).unwrap(), expected);
    }

    #[test]
    fn every_cause_has_words() {
        let of = Block { block: 5, ..Block::default() };
        let said = |why| explain(&why, &of);
        let group = Some(3);
        let patch = Why::Patch {
            patch: 1,
            before: 2,
            block: 5,
            kind: Kind::Data,
            standing: Standing::Behind,
            group,
            others: 2,
        };
        assert_eq!(
            said(patch),
            "patchgroup 3: waits for patch 2 of this block, an earlier version of which is in flight, and for 2 others"
        );
        let transaction =
            |operations, closing| Why::Transaction { patch: 1, volume: 0, sequence: 8, operations, closing };
        assert_eq!(said(transaction(0, false)), "its transaction 8 is not closed");
        assert_eq!(said(transaction(1, true)), "its transaction 8 is about to close: 1 operation under way");
        assert!(said(Why::Held { patch: 1, held: 9, group: None }).contains("holds patch 9"));
        assert!(said(Why::Elsewhere { patch: 1, record: 9 }).contains("waits for patch 9"));
        assert_eq!(said(Why::Failed { error: "EIO".into() }), "will never be stable: EIO");
        assert!(said(Why::Chain { patch: 1, empty: 9 }).contains("patch 9"));
    }

    #[test]
    fn journals_and_groups_are_told_of() {
        let journal = Journal {
            mode: "ordered".into(),
            running: Some(Running { sequence: 4, blocks: 2, age_ms: 20, operations: 3, closing: false }),
            closed: vec![Closed { sequence: 3, blocks: 5, stable: true }],
            ..Journal::default()
        };
        assert_eq!(
            describe_journal(&journal).unwrap(),
            "transaction 4 (ordered) takes changes: 2 blocks, 20 ms old, 3 operations under way\n\
             transaction 3: 5 blocks, stable, on its way home\n"
        );
        let group = Group { group: 2, state: "engaged".into(), scopes: 1, waiting: true, ..Group::default() };
        assert_eq!(
            describe_group(&group),
            "patchgroup 2: engaged by 1, not all stable, what it comes after is not stable yet"
        );
    }
}
