//! \[D\] Fig 3.10: what it brings that stores need only be ordered, and not durable, when an operation returns.

use anyhow::{Context, Result};
use fstitch_bpfs::{Caching, Counts, Options};
use fstitch_posix::time::AtimePolicy;

use super::{each, in_memory, operations, since};
use crate::papers::goal::circumstances;
use crate::papers::{Setting, strings, timed};
use crate::place::{Place, Within};
use crate::results::{Spread, Table};
use crate::workload::{PostMark, Scale, len, postmark};

/// The paper's rows: its names, ours, and how many more instructions a cycle it saw with epochs.
const ROWS: [(&str, &str, &str); 3] = [
    ("append", "append 4 KiB", "2.9"),
    ("random write", "overwrite 4 KiB", "1.5"),
    ("create", "create", "1.6"),
];
const PAPER_POSTMARK: &str = "1.5";
/// The paper's own: 100 files, 5,000 transactions.
const POSTMARK: PostMark =
    PostMark { files: 100, sizes: (512, 16 << 10), transactions: 5_000, directories: 1 };
/// How often both are run, in turns.
const TURNS: usize = 3;

/// What something costs each way: nanoseconds, and what was stored for so many operations.
struct Cost {
    nanoseconds: f64,
    stored: [String; 4],
}

pub fn table(setting: &Setting<'_>) -> Result<Table> {
    let rounds = len(setting.scale.of(100, 2));
    let mut table = Table {
        name: "bpfs epochs".into(),
        title: "BPFS: epochs against written through, [D] Fig 3.10".into(),
        about: format!(
            "{} On volatile memory, where a line that is written back costs nothing: what epochs save are lines and fences, and time as far as \
             the program's own work for them goes. Nanoseconds and stores of an operation, of a transaction for PostMark (100 files, 5,000 transactions, as \
             the paper's). The paper simulated a processor that writes lines of an epoch back by itself, later; its column is how many more \
             instructions it did in a cycle.",
            circumstances(&[], rounds)
        ),
        columns: strings([
            "",
            "written through, ns",
            "epochs, ns",
            "times as fast",
            "the paper",
            "lines",
            "lines, epochs",
            "256 B",
            "256 B, epochs",
            "fences",
            "fences, epochs",
        ]),
        ..Table::default()
    };
    let (mut through, mut later) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        through.push(operations::run(setting, options(Caching::WriteThrough), rounds)?);
        later.push(operations::run(setting, options(Caching::Epochs), rounds)?);
    }
    for (name, ours, paper) in ROWS {
        let cost = |all: &[Vec<operations::Operation>]| -> Result<Cost> {
            let of = |run: &Vec<operations::Operation>| run.iter().position(|one| one.name == ours);
            let at = all.first().and_then(of).context("the operation is measured")?;
            let took = all.iter().flat_map(|run| run[at].nanoseconds()).collect();
            let nanoseconds = Spread::of(took).context("rounds")?.median;
            Ok(Cost { nanoseconds, stored: all[0][at].stored() })
        };
        table.rows.push(row(name, paper, &cost(&through)?, &cost(&later)?));
    }
    let (mut through, mut later) = (Vec::new(), Vec::new());
    for _ in 0..TURNS * 3 {
        through.push(mail(setting, Caching::WriteThrough)?);
        later.push(mail(setting, Caching::Epochs)?);
    }
    let cost = |all: Vec<(f64, Counts, u64)>| -> Result<Cost> {
        let (_, counts, count) = *all.first().context("turns")?;
        let took = all.into_iter().map(|(took, ..)| took * 1e9 / crate::meter::seconds(count));
        let Counts { bytes, lines, wide_lines, fences, .. } = counts;
        let stored = [bytes, lines, wide_lines, fences].map(|number| each(number, count));
        Ok(Cost { nanoseconds: Spread::of(took.collect()).context("turns")?.median, stored })
    };
    table.rows.push(row("PostMark", PAPER_POSTMARK, &cost(through)?, &cost(later)?));
    Ok(table)
}

fn row(name: &str, paper: &str, through: &Cost, later: &Cost) -> Vec<String> {
    let mut row = vec![
        name.to_owned(),
        format!("{:.0}", through.nanoseconds),
        format!("{:.0}", later.nanoseconds),
        format!("{:.2}", through.nanoseconds / later.nanoseconds),
        paper.to_owned(),
    ];
    let [_, lines, wide, fences] = &through.stored;
    let [_, lines_later, wide_later, fences_later] = &later.stored;
    row.extend([lines, lines_later, wide, wide_later, fences, fences_later].map(String::clone));
    row
}

fn options(caching: Caching) -> Options {
    Options { atime: AtimePolicy::NoAtime, caching, ..Options::default() }
}

/// Seconds of PostMark, what it stored, and its transactions.
fn mail(setting: &Setting<'_>, caching: Caching) -> Result<(f64, Counts, u64)> {
    let quick = setting.scale == Scale::Quick;
    let mark = PostMark { transactions: if quick { 200 } else { POSTMARK.transactions }, ..POSTMARK };
    let fs = in_memory(&setting.memory, 64 << 20, options(caching))?;
    let place = Within::new(std::sync::Arc::clone(&fs) as _);
    let before = fs.counts();
    let took = timed(|| {
        postmark(&place, mark)?;
        place.sync()
    })?;
    Ok((took, since(fs.counts(), before), mark.transactions))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::tests::quick;

    #[test]
    fn epochs_have_fewer_fences_and_hardly_more_lines() {
        let table = quick(table);
        assert_eq!(table.rows.len(), 4);
        for row in &table.rows {
            let number = |at: usize| row[at].parse::<f64>().unwrap();
            // What was freed is taken again when an epoch is over, so that there are a few more blocks of inodes; and the pointer to it
            // is another one, where written through the block that was there before is taken at once.
            assert!(
                number(6) <= number(5) * 1.02 + 1.0 && number(8) <= number(7) * 1.02 + 1.0,
                "lines: {row:?}"
            );
            assert!(number(10) < number(9), "fences: {row:?}");
        }
    }
}
