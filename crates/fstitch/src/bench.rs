//! `fstitch bench`: races this program against the kernel's file systems and others, on this machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fstitch_bench::contender::Contender;
use fstitch_bench::limit::InMemory;
use fstitch_bench::papers::Chosen;
use fstitch_bench::race::Step;
use fstitch_bench::results::Results;
use fstitch_bench::session::{self, Wanted};
use fstitch_bench::workload::{ALL, Scale, Workload};
use fstitch_bench::{limit, papers, report, warm};
use fstitch_fuse::Transport;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::output::{Outcome, json, text, usage};

/// Arguments of `bench`.
#[derive(clap::Args)]
pub struct Arguments {
    /// A look of a few minutes: less work, once
    #[arg(long)]
    quick: bool,
    /// Workloads, separated by commas; all by default
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Contenders, separated by commas; all by default
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    contenders: Vec<String>,
    /// How often each step is repeated at most
    #[arg(long, value_name = "N", default_value = "5")]
    repetitions: u32,
    /// How long all of it may take, such as 900s; 2100s by default, 240s with --quick. One repetition is done in any case
    #[arg(long, value_name = "TIME", value_parser = crate::size::duration)]
    time: Option<Duration>,
    /// A directory on a real disk, for images
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    disk: PathBuf,
    /// A directory in memory, for images
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    memory: PathBuf,
    /// Size of the images
    #[arg(long, value_name = "BYTES", default_value = "2G", value_parser = crate::size::bytes)]
    image_size: u64,
    /// Media: disk, memory
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "disk,memory")]
    media: Vec<String>,
    /// An archive of kernel sources (tar.xz) that is unpacked; Debian's package linux-source if it is installed, otherwise a
    /// tree is made up
    #[arg(long, value_name = "FILE")]
    source: Option<PathBuf>,
    /// An archive of the sources of a program (configure, make) that is built for the table "bpfs bytes build"
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Which way requests reach our mounts: auto, io_uring or device. Root has the kernel offer io_uring while it runs, and not
    /// with `device`
    #[arg(long, value_name = "WAY", default_value = "auto")]
    transport: Transport,
    /// Race only, without the papers' tables
    #[arg(long)]
    no_tables: bool,
    /// The papers' tables only, without the race
    #[arg(long, conflicts_with_all = ["no_tables", "only", "contenders"])]
    no_race: bool,
    /// Tables only, those whose names contain one of these words, separated by commas, without the race
    #[arg(long, value_name = "WORDS", value_delimiter = ',', conflicts_with_all = ["no_tables", "only", "contenders"])]
    tables: Vec<String>,
    /// Print all results, or with --list what there is, as JSON
    #[arg(long)]
    json: bool,
    /// Write the report into this file (Markdown), plots and results into a directory beside it
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Put the tables of this run into this file, an earlier report, in the place of those with the same titles or behind the others
    #[arg(long, value_name = "FILE", conflicts_with = "report")]
    update: Option<PathBuf>,
    /// Write the ratios of the defaults between the marks `defaults` of this file, the project's README
    #[arg(long, value_name = "FILE")]
    readme: Option<PathBuf>,
    /// Measure nothing: take the results of an earlier run
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// List workloads, contenders and tables
    #[arg(long)]
    list: bool,
    /// Serve the file system in memory that shows the limit of FUSE
    #[arg(long, value_name = "DIR", hide = true)]
    serve_memory: Option<PathBuf>,
    /// Serve BPFS in memory
    #[arg(long, value_name = "DIR", hide = true)]
    serve_bpfs: Option<PathBuf>,
    /// Touch so many MiB of memory and end, so that the machine has them ready
    #[arg(long, value_name = "MIB", hide = true)]
    touch: Option<u64>,
    /// Measure a large logical disk in this directory, for its table
    #[arg(long, value_name = "DIR", hide = true)]
    lld_large: Option<PathBuf>,
}

/// The smallest images, in bytes.
const IMAGE_MIN: u64 = 128 << 20;

/// Races, and writes what came of it.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    if let Some(at) = &arguments.serve_memory {
        limit::serve(InMemory::Model, at, arguments.transport)?;
        return Ok(Outcome::SUCCESS);
    }
    if let Some(at) = &arguments.serve_bpfs {
        limit::serve(InMemory::Bpfs, at, arguments.transport)?;
        return Ok(Outcome::SUCCESS);
    }
    if let Some(mib) = arguments.touch {
        warm::heap(mib);
        return Ok(Outcome::SUCCESS);
    }
    if let Some(directory) = &arguments.lld_large {
        text(&papers::large_logical_disk(directory, scale(arguments))?)?;
        return Ok(Outcome::SUCCESS);
    }
    if arguments.list {
        let listed = Listed::new();
        if arguments.json {
            json(&listed)?;
        } else {
            text(&listed.describe())?;
        }
        return Ok(Outcome::SUCCESS);
    }
    if let Some(file) = &arguments.update {
        let name = || file.display().to_string();
        report::takes_tables(&std::fs::read_to_string(file).with_context(name)?).with_context(name)?;
    }
    let results = match &arguments.from {
        Some(file) => read(file)?,
        None => measure(arguments)?,
    };
    if let Some(file) = &arguments.report {
        report::write(&results, file)?;
    }
    if let Some(file) = &arguments.update {
        let name = || file.display().to_string();
        let page = std::fs::read_to_string(file).with_context(name)?;
        let new = report::with_tables(&page, &results).with_context(name)?;
        std::fs::write(file, new).with_context(name)?;
    }
    if let Some(file) = &arguments.readme {
        let name = || file.display().to_string();
        let text = std::fs::read_to_string(file).with_context(name)?;
        let new = report::with_ratios(&text, &results)
            .with_context(|| format!("{}: no marks, or the defaults were not measured", file.display()))?;
        std::fs::write(file, new).with_context(name)?;
    }
    if arguments.json {
        json(&results)?
    } else {
        text(&report::summary(&results))?
    }
    let failed = results.gaps.iter().any(|gap| gap.is_failure);
    Ok(if failed { Outcome::FAILURE } else { Outcome::SUCCESS })
}

fn scale(arguments: &Arguments) -> Scale {
    if arguments.quick { Scale::Quick } else { Scale::Full }
}

/// What `--list` prints. The field names are a contract.
#[derive(Serialize)]
struct Listed {
    workloads: Vec<ListedWorkload>,
    contenders: Vec<ListedContender>,
    tables: Vec<&'static str>,
}

#[derive(Serialize)]
struct ListedWorkload {
    name: &'static str,
    about: &'static str,
}

#[derive(Serialize)]
struct ListedContender {
    name: String,
    survives_a_power_cut: bool,
}

impl Listed {
    fn new() -> Self {
        let workload = |workload: &Workload| ListedWorkload { name: workload.name, about: workload.about };
        let contender = |contender: Contender| ListedContender {
            name: contender.name(),
            survives_a_power_cut: contender.is_safe(),
        };
        let contenders = Contender::ALL.into_iter().chain([Contender::Tmpfs]);
        Self {
            workloads: ALL.iter().map(workload).collect(),
            contenders: contenders.map(contender).collect(),
            tables: papers::names(),
        }
    }

    fn describe(&self) -> String {
        let mut said = String::from("workloads:\n");
        for workload in &self.workloads {
            said.push_str(&format!("  {:18} {}\n", workload.name, workload.about));
        }
        said.push_str("contenders:\n");
        for contender in &self.contenders {
            let safe = if contender.survives_a_power_cut { "  (survives a power cut)" } else { "" };
            said.push_str(&format!("  {:22}{safe}\n", contender.name));
        }
        said.push_str("tables:\n");
        for table in &self.tables {
            said.push_str(&format!("  {table}\n"));
        }
        said
    }
}

fn read(file: &Path) -> Result<Results> {
    let name = file.display();
    let text = std::fs::read_to_string(file).with_context(|| name.to_string())?;
    serde_json::from_str(&text).with_context(|| format!("{name} holds no results of `fstitch bench`"))
}

fn measure(arguments: &Arguments) -> Result<Results> {
    let contenders = arguments.contenders.iter().map(|name| {
        Contender::by_name(name)
            .ok_or_else(|| usage(format!("no contender is called `{name}`: see `fstitch bench --list`")))
    });
    let contenders = contenders.collect::<Result<_>>()?;
    for name in &arguments.only {
        if ALL.iter().all(|workload| workload.name != name) {
            return Err(usage(format!("no workload is called `{name}`: see `fstitch bench --list`")));
        }
    }
    if let Some(name) = arguments.media.iter().find(|name| !["disk", "memory"].contains(&name.as_str())) {
        return Err(usage(format!("no medium is called `{name}`: there are disk and memory")));
    }
    if arguments.image_size < IMAGE_MIN {
        let bytes = arguments.image_size;
        return Err(usage(format!(
            "--image-size: {bytes} bytes are too few for the workloads: 128M is the least"
        )));
    }
    let medium =
        |name: &str, path: &Path| arguments.media.iter().any(|asked| asked == name).then(|| path.to_owned());
    let tables = match arguments.no_tables {
        true => Chosen::none(),
        false => Chosen::new(&arguments.tables).map_err(|error| usage(error.to_string()))?,
    };
    let wanted = Wanted {
        scale: scale(arguments),
        repetitions: arguments.repetitions.max(1),
        time: arguments.time.unwrap_or(Duration::from_secs(if arguments.quick { 240 } else { 2100 })),
        contenders,
        workloads: arguments.only.clone(),
        image_bytes: arguments.image_size,
        disk: medium("disk", &arguments.disk),
        memory: medium("memory", &arguments.memory),
        source: arguments.source.clone(),
        program: arguments.program.clone(),
        fstitch: std::env::current_exe().context("the path of this program")?,
        race: !arguments.no_race && arguments.tables.is_empty(),
        transport: arguments.transport,
        tables,
    };
    let bar = progress()?;
    let stop = interruption()?;
    let results = session::run(&wanted, &mut |step| {
        ensure!(!stop.load(Ordering::Relaxed), "interrupted: nothing was kept");
        show(&bar, step);
        Ok(())
    })?;
    bar.finish_and_clear();
    Ok(results)
}

/// Becomes true when this process is asked to end: mounts and images are taken away first, after the step under way.
fn interruption() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register(signal, Arc::clone(&stop)).context("handling signals")?;
    }
    Ok(stop)
}

/// On a terminal a bar, elsewhere nothing but what [`show`] prints.
fn progress() -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} (about {eta} left) {msg}")?;
    Ok(ProgressBar::new(0).with_style(style))
}

fn show(bar: &ProgressBar, step: &Step<'_>) {
    if bar.is_hidden() {
        eprintln!("{}/{} {}", step.done, step.total, step.what);
        return;
    }
    bar.set_length(u64::try_from(step.total).unwrap_or(0));
    bar.set_position(u64::try_from(step.done).unwrap_or(0));
    bar.set_message(step.what.to_owned());
}
