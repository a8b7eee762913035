//! MinixLLD: what units cost it, and \[A\] Figs 5 and 6 with others beside it.

use anyhow::Result;

use super::minix_runs::{Phases, Took, Who, large, small};
use super::{circumstances, columns, goal_row, image, plain_row, spread, strings};
use crate::contender::Tools;
use crate::meter::seconds;
use crate::papers::Setting;
use crate::report::Wanted;
use crate::results::Table;
use crate::workload::len;

/// Bytes of the paper's partition.
const IMAGE: u64 = 400 << 20;
/// Bytes of the paper's large file.
const LARGE: u64 = 10_000 * 8192;
/// The phases of small files of either size, and of the large file.
const SMALL: [&str; 3] = ["C+W", "R", "D"];
const PIECES: [&str; 5] = ["write1", "read1", "write2", "read2", "read3"];

/// How much is done.
#[derive(Clone, Copy)]
struct Amount {
    /// Files of 1 KiB; a tenth of them of 10 KiB.
    files: u64,
    large: u64,
    repeats: usize,
}

impl Amount {
    fn of(setting: &Setting<'_>, repeats: u64) -> Self {
        let of = |full, quick| setting.scale.of(full, quick);
        Self { files: of(10_000, 200), large: of(LARGE, 1 << 20), repeats: len(of(repeats, 1)) }
    }
}

/// Runs everybody in turns, beginning with another one each time, and returns what each took by repeat.
fn race<const N: usize>(
    setting: &Setting<'_>,
    who: &[Who],
    repeats: usize,
    work: impl Fn(&mut Phases<'_>) -> Result<[Took; N]>,
) -> Result<Vec<Vec<[Took; N]>>> {
    let (image, mountpoint) = (image(&setting.memory, IMAGE)?, tempfile::tempdir()?);
    let tools = tools(setting, mountpoint.path());
    let mut took = vec![Vec::new(); who.len()];
    for repeat in 0..repeats {
        for no in 0..who.len() {
            let at = (no + repeat) % who.len();
            let mut phases = Phases::new(who[at], &tools, &image)?;
            took[at].push(work(&mut phases)?);
            phases.end()?;
        }
    }
    Ok(took)
}

fn tools(setting: &Setting<'_>, mountpoint: &std::path::Path) -> Tools {
    let fstitch = setting.fstitch.clone().unwrap_or_default();
    Tools { fstitch, mountpoint: mountpoint.to_owned() }
}

/// Those who can run here, and what is said of the others.
fn present(setting: &Setting<'_>) -> (Vec<Who>, String) {
    let tools = tools(setting, &setting.memory);
    let kernel = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let mut said = String::new();
    if !kernel.lines().any(|line| line.trim() == "minix") {
        said.push_str(" This kernel has no driver for Minix's own format.");
    }
    let mut who = Who::ALL.to_vec();
    who.retain(|one| match one.lacks(&tools) {
        Some(why) => {
            said.push_str(&format!(" Not measured: {} ({why}).", one.name()));
            false
        }
        None => true,
    });
    (who, said)
}

/// What units cost: the ratio of what operations take with them and without.
pub fn units(setting: &Setting<'_>) -> Result<Table> {
    const WHO: [Who; 3] = [Who::NEW, Who::BARE, Who::SEQUENTIAL];
    let amount = Amount::of(setting, 9);
    let files = race(setting, &WHO, amount.repeats, |phases| small(phases, amount.files, 1 << 10))?;
    let larger = race(setting, &WHO, amount.repeats, |phases| small(phases, amount.files / 10, 10 << 10))?;
    let large = race(setting, &WHO, amount.repeats, |phases| large(phases, amount.large))?;
    let mut table = Table {
        name: "lld minix units".into(),
        title: "MinixLLD: what units cost".into(),
        is_goal: true,
        about: format!(
            "{} Time with units to time without, repeat by repeat, each phase until it is stable, on a volume that was just opened: {} files of 1 \
             KiB, {} of 10 KiB, one of {:.3} MiB. `processor` is the same of this process's processor time, which other work on the machine \
             disturbs less; `one at a time` is units against sequential ones, which the older prototype of the paper had. The paper: 4.0 to \
             7.2 % for creating and writing, 17.9 to 25.5 % for deleting, 0.2 to 0.7 % for reading and writing, 2.9 % for the first write.",
            circumstances(&[("memory", &setting.memory)], amount.repeats),
            amount.files,
            amount.files / 10,
            seconds(amount.large) / f64::from(1 << 20),
        ),
        columns: columns(),
        ..Table::default()
    };
    for (what, took) in [("1 KiB", &files), ("10 KiB", &larger)] {
        for (phase, (name, limit)) in SMALL.into_iter().zip([1.04, 1.01, 1.10]).enumerate() {
            compare(&mut table, &format!("{name}, files of {what}"), limit, took, phase)?;
        }
    }
    for (phase, name) in PIECES.into_iter().enumerate() {
        compare(&mut table, &format!("{name}, the large file"), 1.01, &large, phase)?;
    }
    Ok(table)
}

/// The rows of a phase.
fn compare<const N: usize>(
    table: &mut Table,
    what: &str,
    limit: f64,
    took: &[Vec<[Took; N]>],
    phase: usize,
) -> Result<()> {
    let ratio = |to: usize, pick: fn(&Took) -> f64| {
        let pairs = took[0].iter().zip(&took[to]);
        spread(pairs.map(|(new, old)| pick(&new[phase]) / pick(&old[phase])).collect())
    };
    table.rows.push(goal_row(what, "", ratio(1, |took| took.wall)?, Wanted::AtMost(limit)));
    table.rows.push(goal_row(
        &format!("{what}: processor"),
        "",
        ratio(1, |took| took.own)?,
        Wanted::AtMost(limit),
    ));
    if took.iter().all(|took| took.iter().all(|took| took[phase].written > 0)) {
        let written = ratio(1, |took| seconds(took.written))?;
        table.rows.push(plain_row(&format!("{what}: bytes written"), "", written));
    }
    table.rows.push(plain_row(&format!("{what}: one at a time"), "", ratio(2, |took| took.wall)?));
    Ok(())
}

/// \[A\] Fig 5.
pub fn small_files(setting: &Setting<'_>) -> Result<Table> {
    let amount = Amount::of(setting, 5);
    let (who, said) = present(setting);
    let few = amount.files / 10;
    let of_1 = race(setting, &who, amount.repeats, |phases| small(phases, amount.files, 1 << 10))?;
    let of_10 = race(setting, &who, amount.repeats, |phases| small(phases, few, 10 << 10))?;
    let mut rows = Vec::new();
    for (no, who) in who.iter().enumerate() {
        let mut row = vec![who.name()];
        for (files, took) in [(amount.files, &of_1), (few, &of_10)] {
            row.extend(rates(seconds(files), &took[no], 0)?);
        }
        rows.push(row);
    }
    Ok(Table {
        name: "lld minix small files".into(),
        title: "[A] Fig 5: small files, files a second".into(),
        about: format!(
            "{}{said} {} files of 1 KiB and {few} of 10 KiB, 100 in a directory: made and written (C+W), read (R), deleted with their directories \
             (D), each until it is stable, on a volume of 400 MiB that was just opened. The kernel's driver is asked through system calls.",
            circumstances(&[("memory", &setting.memory)], amount.repeats),
            amount.files,
        ),
        columns: strings(["", "1 KiB: C+W", "R", "D", "10 KiB: C+W", "R", "D"]),
        rows,
        ..Table::default()
    })
}

/// \[A\] Fig 6.
pub fn large_file(setting: &Setting<'_>) -> Result<Table> {
    let amount = Amount::of(setting, 5);
    let (who, said) = present(setting);
    let took = race(setting, &who, amount.repeats, |phases| large(phases, amount.large))?;
    let mut rows = Vec::new();
    for (who, took) in who.iter().zip(&took) {
        let mut row = vec![who.name()];
        row.extend(rates(seconds(amount.large) / 1e6, took, 1)?);
        rows.push(row);
    }
    Ok(Table {
        name: "lld minix large file".into(),
        title: "[A] Fig 6: a large file, MB a second".into(),
        about: format!(
            "{}{said} A file of {:.3} MiB, 8 KiB a call: written (write1) and read (read1) one piece behind the other, written (write2) and read \
             (read2) in random order, and read one behind the other again (read3), each until it is stable, on a volume that was just opened. \
             What is read again is in nobody's cache but that of the kernel's driver below.",
            circumstances(&[("memory", &setting.memory)], amount.repeats),
            seconds(amount.large) / f64::from(1 << 20),
        ),
        columns: [""].into_iter().chain(PIECES).map(str::to_owned).collect(),
        rows,
        ..Table::default()
    })
}

/// So much a second, by phase.
fn rates<const N: usize>(much: f64, took: &[[Took; N]], digits: usize) -> Result<Vec<String>> {
    let rate = |phase: usize| {
        let rate = spread(took.iter().map(|took| much / took[phase].wall).collect())?;
        Ok(format!("{:.digits$}", rate.median))
    };
    (0..N).map(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::tests::quick;

    #[test]
    fn units_are_compared_in_every_phase() {
        let table = quick(units);
        // Reading writes times of access, or nothing.
        let count = |of: &str| table.rows.iter().filter(|row| row[0].ends_with(of)).count();
        assert_eq!((count(": processor"), count(": one at a time")), (11, 11));
        assert!(count(": bytes written") >= 6, "{table:?}");
        for row in &table.rows {
            let ratio: f64 = row[1].parse().unwrap();
            assert!(ratio.is_finite() && ratio > 0.0, "{row:?}");
        }
        let deleting = table.rows.iter().find(|row| row[0] == "D, files of 1 KiB").unwrap();
        assert_eq!(deleting[3], "<= 1.1");
    }

    #[test]
    fn figures_have_a_row_for_everybody() {
        for (table, columns) in [(quick(small_files), 6), (quick(large_file), 5)] {
            let names: Vec<&str> = table.rows.iter().map(|row| row[0].as_str()).collect();
            assert!(names.len() >= 5 || table.about.contains("Not measured"), "{names:?}");
            assert_eq!(names.iter().filter(|name| name.starts_with("MinixLLD")).count(), 3);
            let known =
                names.iter().any(|name| name.contains("kernel")) || table.about.contains("Not measured");
            assert!(known, "the kernel's is there, or it is said why not: {}", table.about);
            for row in &table.rows {
                assert_eq!(row.len(), columns + 1);
                assert!(row[1..].iter().all(|rate| rate.parse::<f64>().unwrap() > 0.0), "{row:?}");
            }
        }
    }

    /// Those who are compared differ in what they are told, and the medium hears it: what two units write is written twice.
    #[test]
    fn with_units_more_is_written_than_without() {
        let directory = tempfile::tempdir().unwrap();
        let image = image(directory.path(), 64 << 20).unwrap();
        let tools = Tools { fstitch: std::path::PathBuf::new(), mountpoint: directory.path().to_owned() };
        let [new, bare, sequential] = [Who::NEW, Who::BARE, Who::SEQUENTIAL].map(|who| {
            let mut phases = Phases::new(who, &tools, &image).unwrap();
            let took = small(&mut phases, 400, 1 << 10).unwrap();
            phases.end().unwrap();
            assert!(took.iter().all(|took| took.wall > 0.0 && took.own > 0.0), "{who:?}: {took:?}");
            took.map(|took| took.written)
        });
        assert!(new[0] > bare[0] && bare[0] > 400 * 4096, "{new:?} {bare:?}");
        assert_eq!(new, sequential, "one thread writes the same in either order");
    }
}
