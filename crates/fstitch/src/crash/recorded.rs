//! `fstitch crash replay-log`: what power cuts could have left of a recorded log.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, ensure};
use fstitch_crashlab::{
    Base, Consistency, LabOptions, Level, Question, Recorded, RecordedId, RecordedOptions, RecordedOutcome,
};

use super::run::{Report, Violation, so_far, table};
use super::watch::Watch;
use crate::output::{Outcome, json, text};

/// Arguments of `crash replay-log`.
#[derive(clap::Args)]
#[command(
    after_help = "LOG is what `fstitch crash mount --record` writes, or Linux' device-mapper target log-writes; BASE is \
                  the image as it was before, which a log of ours names by a digest: another one is refused. Judged is what holds of any volume after a crash: the full check finds \
                  nothing but what the consistency mechanism allows, everything can be read, and of a sample, that it \
                  can be recovered, repaired, used and emptied. What the programs did and were promised is not in a log, so no names or contents are compared.\n\n\
                  Exit codes: 0 nothing found, 1 violations found (on standard output) or a log that cannot be judged (the reason on standard error), 2 wrong usage, 130 interrupted (what was found until then is printed)."
)]
pub struct Arguments {
    /// How badly the medium behaves: M0, M1, M2 or M3
    #[arg(long, default_value = "M2")]
    level: Level,
    /// What ordered the writes: soft, sync, ordered, metadata or full, whose flushes count; or async (as if the device had
    /// ignored every flush: the one that must be found corrupt; all of the log is then kept in memory). By default what suits
    /// BASE: ordered where it has a journal, else soft
    #[arg(long, value_name = "MECHANISM")]
    consistency: Option<Consistency>,
    /// Seeds what is sampled
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
    /// Stop after so many states; the moments of a power cut that are visited are spread over the log so that they last
    #[arg(long, default_value_t = 2000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    states: u64,
    /// States visited at each moment of a power cut, at most
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    states_per_cut: u64,
    /// Of the images checked, one in N is also recovered, repaired, used and emptied; 0 for none
    #[arg(long, default_value_t = 64, value_name = "N")]
    aftermath: u64,
    /// Of the images checked, one in N is also judged by e2fsck; 0 for none
    #[arg(long, default_value_t = 0, value_name = "N")]
    e2fsck: u64,
    /// Power cuts during those recoveries nest so deep
    #[arg(long, default_value_t = 0, value_name = "N")]
    depth: u32,
    /// Stop after so many violations
    #[arg(long, default_value_t = 1, value_name = "N")]
    violations: usize,
    /// Ask this of every tree that is left, each different one once: a command of the shell, run in a copy of the tree with
    /// its owners, which is why only root may ask; an exit status other than 0 is a violation
    #[arg(long, value_name = "CMD")]
    ask: Option<String>,
    /// The directory of the volume that is asked about; states in which it is not there are not asked about
    #[arg(long, value_name = "PATH", default_value = "/", requires = "ask")]
    ask_in: String,
    /// Judge this state only, as a failure prints it: CUT:CHOICE
    #[arg(long, value_name = "ID", conflicts_with_all = ["states", "states_per_cut", "violations"])]
    cut: Option<RecordedId>,
    /// Write the image of that state there: to mount it, or to ask other programs
    #[arg(long, value_name = "FILE", requires = "cut")]
    write_image: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The image before the log
    #[arg(value_name = "BASE")]
    base: PathBuf,
    /// The log
    #[arg(value_name = "LOG")]
    log: PathBuf,
}

/// Runs `crash replay-log`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let recorded = recorded(arguments)?;
    ensure!(
        arguments.e2fsck == 0 || recorded.system.reference().is_none_or(|checker| checker.is_installed()),
        "e2fsck is not installed; without --e2fsck only our own checker judges"
    );
    let lab = LabOptions {
        level: arguments.level,
        choices_per_cut: arguments.states_per_cut,
        aftermath_every: arguments.aftermath,
        reference_every: arguments.e2fsck,
        depth: arguments.depth,
        seed: arguments.seed,
        max_violations: arguments.violations.max(1),
    };
    ensure!(
        arguments.ask.is_none() || rustix::process::geteuid().is_root(),
        "--ask unpacks the trees that are left with their owners, which only root may do"
    );
    let ask =
        |command: &String| Question::new(command, &arguments.ask_in).context("making a directory to ask in");
    let mut question = arguments.ask.as_ref().map(ask).transpose()?;
    match &arguments.cut {
        Some(id) => replay(arguments, &recorded, id, &lab, question.as_mut()),
        None => search(arguments, &recorded, lab, question),
    }
}

fn recorded(arguments: &Arguments) -> Result<Recorded> {
    let block_size = crate::probe::volume(&arguments.base, 0)?.block_size;
    let bytes = std::fs::read(&arguments.base)
        .with_context(|| format!("reading the base image {}", arguments.base.display()))?;
    let (system, consistency) = fstitch_systems::of_image(&bytes, block_size, arguments.consistency)
        .map_err(|why| anyhow!("{}: {why}", arguments.base.display()))?;
    Ok(Recorded {
        system,
        base: Base::new(block_size, bytes),
        log: arguments.log.clone(),
        flushes: consistency != Consistency::Async,
    })
}

fn search(
    arguments: &Arguments,
    recorded: &Recorded,
    lab: LabOptions,
    mut question: Option<Question>,
) -> Result<Outcome> {
    let watch = Watch::new(arguments.json, 0, "moments of a power cut")?;
    let options = RecordedOptions { lab, states: arguments.states };
    let judged = recorded
        .search(options, question.as_mut(), &|judged, moment| {
            let message = || so_far(&judged.counts, watch.seconds());
            watch.tell(moment, judged.moments, &message)
        })
        .with_context(|| arguments.log.display().to_string())?;
    let outcome = if judged.found.is_empty() { Outcome::SUCCESS } else { Outcome::FAILURE };
    let outcome = watch.end(outcome);
    let report = Report {
        asked: question.as_ref().map(Question::asked),
        interrupted: watch.is_interrupted(),
        ..report(arguments, recorded, &judged, watch.seconds())
    };
    if arguments.json {
        json(&report)?;
    } else {
        text(&(table(&report) + &named(&report)))?;
    }
    Ok(outcome)
}

/// Some lawful states, for `--cut`.
fn named(report: &Report) -> String {
    let few = report.samples.iter().take(3);
    few.map(|sample| format!("{:<18} {sample}\n", "lawful, --cut")).collect()
}

fn report(arguments: &Arguments, recorded: &Recorded, judged: &RecordedOutcome, seconds: f64) -> Report {
    let consistency =
        arguments.consistency.map(|given| format!(" --consistency {given}")).unwrap_or_default();
    let violation = |(id, violation): &(RecordedId, fstitch_crashlab::oracle::Violation)| Violation {
        id: id.to_string(),
        code: violation.code,
        text: violation.text.clone(),
        replay: format!(
            "fstitch crash replay-log --level {}{}{} {} {} --cut {id}",
            arguments.level,
            consistency,
            asked(arguments),
            arguments.base.display(),
            arguments.log.display()
        ),
    };
    Report {
        system: recorded.system.name(),
        workload: arguments.log.display().to_string(),
        level: arguments.level.to_string(),
        seed: arguments.seed,
        moments: Some(judged.moments),
        samples: judged.samples.iter().map(ToString::to_string).collect(),
        violations: judged.found.iter().map(violation).collect(),
        ..Report::of(&judged.counts, seconds)
    }
}

/// The options that put the question again, as the shell takes them.
fn asked(arguments: &Arguments) -> String {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
    arguments.ask.as_ref().map_or_else(String::new, |command| {
        format!(" --ask {} --ask-in {}", quoted(command), quoted(&arguments.ask_in))
    })
}

/// What `--cut` prints. The field names are a contract.
#[derive(serde::Serialize)]
struct Verdict {
    id: String,
    lawful: bool,
    code: Option<&'static str>,
    text: Option<String>,
}

fn replay(
    arguments: &Arguments,
    recorded: &Recorded,
    id: &RecordedId,
    lab: &LabOptions,
    question: Option<&mut Question>,
) -> Result<Outcome> {
    let (image, verdict) =
        recorded.replay(id, lab, question).with_context(|| arguments.log.display().to_string())?;
    if let Some(path) = &arguments.write_image {
        std::fs::write(path, image.bytes()).with_context(|| format!("writing {}", path.display()))?;
    }
    let violation = verdict.as_ref().err();
    if arguments.json {
        json(&Verdict {
            id: id.to_string(),
            lawful: violation.is_none(),
            code: violation.map(|violation| violation.code),
            text: violation.map(|violation| violation.text.clone()),
        })?;
    } else {
        text(&violation.map_or_else(|| "lawful\n".into(), |violation| format!("{violation}\n")))?;
    }
    Ok(if violation.is_none() { Outcome::SUCCESS } else { Outcome::FAILURE })
}
