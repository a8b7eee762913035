//! What was measured.

use serde::{Deserialize, Serialize};

use crate::contender::{Contender, Medium};
use crate::meter::Sample;

/// How this program was built.
pub(crate) const BUILD: &str = match option_env!("FSTITCH_BUILD") {
    Some(_) => "optimised for what it did while it was watched (`make optimized`)",
    None => "a plain build",
};

/// One phase of one workload in one contender, once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// `disk` or `memory`.
    pub medium: String,
    /// The workload.
    pub workload: String,
    /// The contender.
    pub contender: String,
    /// Which repetition it was, from 0.
    pub repetition: u32,
    /// What it cost.
    #[serde(flatten)]
    pub sample: Sample,
}

/// What could not be measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// A contender, or a workload in a contender.
    pub what: String,
    /// The reason.
    pub why: String,
    /// It was tried and failed; otherwise something is not there.
    pub is_failure: bool,
}

/// The machine and the programs on it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Facts by name, in the order in which they are shown.
    pub facts: Vec<(String, String)>,
}

/// Everything that a run found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Results {
    /// Where.
    pub machine: Machine,
    /// `full` or `quick`.
    pub scale: String,
    /// How often each workload was run.
    pub repetitions: u32,
    /// The workloads that were run once more, in the time that was left.
    #[serde(default)]
    pub repeated: Vec<String>,
    /// Seconds that the run took.
    pub seconds: f64,
    /// The race.
    pub cells: Vec<Cell>,
    /// What is missing in it.
    pub gaps: Vec<Gap>,
    /// The papers' tables, and what is measured without rivals.
    pub tables: Vec<Table>,
}

/// A table of the report.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Table {
    /// A name for machines.
    pub name: String,
    /// Its title.
    pub title: String,
    /// It belongs to the goals rather than to a paper.
    pub is_goal: bool,
    /// What it shows, and what the paper's figures were.
    pub about: String,
    /// Names of the columns; the first one names the rows.
    pub columns: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<String>>,
}

/// Numbers of several repetitions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle one.
    pub median: f64,
    /// The smallest.
    pub least: f64,
    /// The largest.
    pub most: f64,
}

impl Spread {
    /// Of these numbers; `None` if there are none.
    #[must_use]
    pub fn of(mut numbers: Vec<f64>) -> Option<Self> {
        numbers.sort_by(f64::total_cmp);
        let (least, most) = (*numbers.first()?, *numbers.last()?);
        let middle = numbers.len() / 2;
        let median = if numbers.len() % 2 == 1 {
            numbers[middle]
        } else {
            f64::midpoint(numbers[middle - 1], numbers[middle])
        };
        Some(Self { median, least, most })
    }
}

/// A phase on a medium, in whatever contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// `disk` or `memory`.
    pub medium: &'a str,
    /// The workload.
    pub workload: &'a str,
    /// The phase.
    pub phase: &'a str,
}

impl Results {
    /// The samples of a contender in a place, by repetition.
    pub fn samples<'a>(
        &'a self,
        at: Place<'a>,
        contender: Contender,
    ) -> impl Iterator<Item = (u32, &'a Sample)> {
        let name = contender.name();
        let fits = move |cell: &&Cell| {
            cell.medium == at.medium
                && cell.workload == at.workload
                && cell.sample.phase == at.phase
                && cell.contender == name
        };
        self.cells.iter().filter(fits).map(|cell| (cell.repetition, &cell.sample))
    }

    /// A number of every repetition.
    #[must_use]
    pub fn spread(
        &self,
        at: Place<'_>,
        contender: Contender,
        number: impl Fn(&Sample) -> f64,
    ) -> Option<Spread> {
        Spread::of(self.samples(at, contender).map(|(_, sample)| number(sample)).collect())
    }

    /// The ratio of a number to the largest of some others', repetition by repetition: they ran one after the other, so
    /// what the machine suffered from at that time falls out. `None` unless all of them were measured.
    #[must_use]
    pub fn ratio(
        &self,
        at: Place<'_>,
        ours: Contender,
        theirs: &[Contender],
        number: impl Fn(&Sample) -> f64,
    ) -> Option<Spread> {
        let of = |contender, repetition| {
            let mut samples = self.samples(at, contender);
            samples.find(|(no, _)| *no == repetition).map(|(_, sample)| number(sample))
        };
        let ratio = |(no, sample): (u32, &Sample)| {
            let others: Option<Vec<f64>> = theirs.iter().map(|&one| of(one, no)).collect();
            let largest = others?.into_iter().reduce(f64::max).filter(|largest| *largest > 0.0)?;
            Some(number(sample) / largest)
        };
        Spread::of(self.samples(at, ours).filter_map(ratio).collect())
    }

    /// The phases that were measured, in order.
    #[must_use]
    pub fn phases(&self) -> Vec<(String, String, String)> {
        let mut found: Vec<(String, String, String)> = Vec::new();
        for cell in &self.cells {
            let phase = (cell.medium.clone(), cell.workload.clone(), cell.sample.phase.clone());
            if !found.contains(&phase) {
                found.push(phase);
            }
        }
        found
    }
}

impl Machine {
    /// Looks at this machine and the programs on it.
    #[must_use]
    pub fn look(media: &[Medium], image_bytes: u64) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let line = |text: &str, name: &str| {
            let found = text.lines().find(|line| line.starts_with(name))?;
            found.split_once(':').map(|(_, value)| value.trim().to_owned())
        };
        let (processors, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
        let count = processors.lines().filter(|line| line.starts_with("processor")).count();
        let model = line(&processors, "model name").unwrap_or_default();
        let mut facts = vec![
            ("processors".to_owned(), format!("{count} x {model}")),
            ("memory".to_owned(), line(&memory, "MemTotal").unwrap_or_default()),
            ("kernel".to_owned(), read("/proc/sys/kernel/osrelease").trim().to_owned()),
            ("fstitch".to_owned(), format!("{}, {BUILD}", env!("CARGO_PKG_VERSION"))),
        ];
        for medium in media {
            let about = format!("an image of {} MiB, every byte of it written before", image_bytes >> 20);
            facts.push((format!("medium `{}`", medium.name), about));
        }
        for (program, option) in [
            ("fuse2fs", "-V"),
            ("mke2fs", "-V"),
            ("postmark", "-v"),
            ("fio", "--version"),
            ("git", "--version"),
            ("sqlite3", "--version"),
            ("cc", "--version"),
        ] {
            if let Some(version) = crate::contender::version(program, option) {
                facts.push((program.to_owned(), version));
            }
        }
        Self { facts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_an_even_number() {
        assert_eq!(Spread::of(vec![]), None);
        assert_eq!(Spread::of(vec![4.0, 1.0, 2.0, 9.0]), Some(Spread { median: 3.0, least: 1.0, most: 9.0 }));
    }
}
