//! `fstitch faults`: an image as a file on a disk that fails as it is told, for whatever uses it: our mounts, the kernel's on a loop device,
//! other programs.

mod served;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use fstitch_crashlab::FaultPlan;
use fstitch_disk::{DiskOptions, FileDisk};
use fstitch_formats::Format;
use fstitch_fuse::{Mount, MountOptions, UnmountOnSignal};

use crate::disks;
use crate::mount::{background, daemon, run_in_background};
use crate::open::{self, Access};
use crate::output::Outcome;

use served::Served;

/// Arguments of `faults`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Show an image as a file whose disk fails as a plan says, by kind of block
    #[command(after_help = HELP)]
    Serve(Serve),
}

const HELP: &str = "A plan is faults with `;` between them, each a defect (error, torn, lost, misdirected, corrupted, stale, dead, slow), perhaps \
an operation (read, write, flush), and which requests it befalls: kind=Inode, blocks=10..20, nth=3, every=2, times=all or a number. `seed=N` \
decides what is random in it. Kinds are those of the volume in the image: what a block is is looked up anew every second.

At MOUNTPOINT are three files: `image`; `plan`, which says the plan and takes another; and `struck`, how often each defect has struck. umount(8) \
ends it.";

/// Arguments of `faults serve`.
#[derive(clap::Args)]
struct Serve {
    /// Stay in the foreground
    #[arg(short, long)]
    foreground: bool,
    #[command(flatten)]
    volume: open::Arguments,
    /// The image file or block device, with a volume; or one disk of several, whose blocks have no kinds
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// What fails, such as `error read kind=Inode times=all`; empty for nothing yet
    #[arg(value_name = "PLAN")]
    plan: String,
    /// Where the file is shown
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,
}

/// Runs `faults`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let Command::Serve(arguments) = &arguments.command;
    let plan: FaultPlan = arguments.plan.parse().map_err(|bad| anyhow!("{bad}"))?;
    if arguments.foreground {
        serve(arguments, plan, daemon::Place::Foreground)?;
        return Ok(Outcome::SUCCESS);
    }
    run_in_background(|place| serve(arguments, plan, place))
}

/// The image, and the format of the volume in it. Of one disk of several nobody knows what its blocks are.
fn opened(arguments: &Serve) -> Result<(FileDisk, Option<&'static dyn Format>)> {
    if arguments.volume.start(&arguments.image)? == 0
        && let Some(block_size) = disks::block_size_of(&arguments.image)
    {
        let disk = DiskOptions { block_size, ..DiskOptions::default() };
        return Ok((open::disk(&arguments.image, &disk)?, None));
    }
    let (disk, found) = arguments.volume.open_disk(&arguments.image, Access::ReadWrite)?;
    Ok((disk, Some(found.format)))
}

fn serve(arguments: &Serve, plan: FaultPlan, place: daemon::Place) -> Result<()> {
    let (disk, format) = opened(arguments)?;
    let mountpoint = arguments.mountpoint.canonicalize();
    let mountpoint = mountpoint.with_context(|| format!("{}", arguments.mountpoint.display()))?;
    let served = Arc::new(Served::new(Arc::new(disk), format, plan));
    let options = MountOptions::new(mountpoint.as_path(), format!("{} (faulty)", arguments.image.display()));
    let mount = Mount::new(served, &options)?;
    let signals = UnmountOnSignal::install(vec![mount.unmounter()], |line| eprintln!("fstitch: {line}"))
        .context("taking over signals")?;
    if place == daemon::Place::Background {
        background::report_ready()?;
    }
    let result = mount.run();
    drop(signals);
    Ok(result?)
}
