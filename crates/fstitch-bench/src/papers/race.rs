//! Tables that the papers have of a race, taken from ours.

use super::strings;
use crate::contender::Contender;
use crate::results::{Place, Results, Table};

/// The paper's benchmarks by our names.
const BENCHMARKS: [(&str, &str, &str); 4] = [
    ("Untar", "tree", "untar"),
    ("Delete", "tree", "delete"),
    ("PostMark", "postmark", "all"),
    ("Andrew (copy)", "andrew", "copy"),
];

pub fn tables(results: &Results) -> Vec<Table> {
    let media = ["disk", "memory"];
    let medium = media.into_iter().find(|medium| results.cells.iter().any(|cell| cell.medium == *medium));
    medium.map_or_else(Vec::new, |medium| vec![times(results, medium), requests(results, medium)])
}

fn times(results: &Results, medium: &str) -> Table {
    let mut table = Table {
        name: "times".into(),
        title: "[D] Fig 2.11: benchmark times".into(),
        about: format!(
            "Seconds until everything is stable, and in brackets the machine's processor seconds; medium `{medium}`. Bold: safe."
        ),
        columns: strings(["", "Untar", "Delete", "PostMark", "Andrew (copy)"]),
        ..Table::default()
    };
    for contender in Contender::ALL {
        let cell = |(_, workload, phase): (&str, &str, &str)| {
            let at = Place { medium, workload, phase };
            let wall = results.spread(at, contender, |sample| sample.wall_s);
            let machine = results.spread(at, contender, |sample| sample.machine_s);
            wall.zip(machine).map(|(wall, machine)| format!("{:.2} [{:.2}]", wall.median, machine.median))
        };
        let cells = BENCHMARKS.map(cell);
        if cells.iter().any(Option::is_some) {
            let name = contender.name();
            let mut row = vec![if contender.is_safe() { format!("**{name}**") } else { name }];
            row.extend(cells.map(|cell| cell.unwrap_or_else(|| "-".to_owned())));
            table.rows.push(row);
        }
    }
    table
}

fn requests(results: &Results, medium: &str) -> Table {
    let mut table = Table {
        name: "requests".into(),
        title: "[F] §9.2, Fig 10: blocks and requests written by unpacking the tree".into(),
        about: format!(
            "Medium `{medium}`. The paper, in sectors for 218 MB: ext2 523,248, ext3 523,192, the original 540,472; requests: ext2 2,021, the \
             original 4,382."
        ),
        columns: strings(["", "blocks of 4 KiB", "requests", "flushes"]),
        ..Table::default()
    };
    let at = Place { medium, workload: "tree", phase: "untar" };
    for contender in Contender::ALL {
        let Some((_, sample)) = results.samples(at, contender).next() else { continue };
        if let Some(device) = sample.device {
            let blocks = device.bytes_written / 4096;
            let cells = [blocks, device.write_requests, device.flushes].map(|count| count.to_string());
            table.rows.push([contender.name()].into_iter().chain(cells).collect());
        }
    }
    table
}
