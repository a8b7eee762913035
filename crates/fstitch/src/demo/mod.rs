//! `fstitch demo`: the main job before your eyes. Makes an image, fills it, kills the writer in mid-write several
//! times, and looks each time at what is left.
//!
//! With FUSE the killed process is the daemon of a real mount; without, it is a process that writes the image
//! through the library. Either way it dies by SIGKILL and has no chance to tidy up.

mod place;
mod tree;
mod verify;
mod writer;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fstitch_core::{Clock, Seed, SystemClock};

use crate::control::client::Connection;
use crate::output::Outcome;
pub use writer::{Arguments as WriterArguments, run as run_writer};

/// Arguments of `demo`.
#[derive(clap::Args)]
pub struct Arguments {
    /// How many times the writer is killed
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    kills: u32,
    /// Repeats the moments of an earlier demonstration
    #[arg(long)]
    seed: Option<u64>,
    /// Work without a mount, as happens by itself where FUSE is missing
    #[arg(long)]
    no_mount: bool,
    /// Keep the image and say where it is
    #[arg(long)]
    keep: bool,
}

/// The volume that is made.
const VOLUME_SIZE: &str = "512M";
/// Changes are written after this time, so that a kill finds much half written.
const WRITE_BACK_AGE: &str = "200ms";
/// The earliest and latest moment of a kill.
const KILL_AFTER: std::ops::Range<u64> = 300..2500;

/// What one demonstration works with.
struct Stage {
    program: PathBuf,
    directory: PathBuf,
    image: PathBuf,
    mountpoint: PathBuf,
    list: PathBuf,
    journal: PathBuf,
    mounting: bool,
    clock: SystemClock,
}

/// What the kills showed.
#[derive(Default)]
struct Tally {
    kills: u32,
    leftovers: u64,
    promised: usize,
    slowest_mount: Duration,
}

/// Runs `demo`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let stage = Stage::set_up(arguments)?;
    let result = stage.perform(arguments);
    stage.clear_away(arguments.keep);
    let tally = result?;
    println!();
    println!("Summary: {} kills. After every one of them the volume", tally.kills);
    println!(
        "  opened at once (slowest: {} ms), without a check before it,",
        tally.slowest_mount.as_millis()
    );
    println!("  held every file that had been synced ({} looked at, byte by byte),", tally.promised);
    println!(
        "  and needed no repair but reclaiming what was no longer in use ({} findings).",
        tally.leftovers
    );
    if arguments.keep {
        println!("The image is {}.", stage.image.display());
    }
    Ok(Outcome::SUCCESS)
}

impl Stage {
    fn set_up(arguments: &Arguments) -> Result<Self> {
        let clock = SystemClock::new();
        let stamp = clock.now();
        let name = format!("fstitch-demo-{}-{}", std::process::id(), stamp.nanos);
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).with_context(|| format!("making {}", directory.display()))?;
        let stage = Self {
            program: std::env::current_exe()?,
            image: directory.join("demo.img"),
            mountpoint: directory.join("mount"),
            list: directory.join("files"),
            journal: directory.join("promises"),
            mounting: !arguments.no_mount && can_mount(),
            directory,
            clock,
        };
        std::fs::create_dir(&stage.mountpoint)?;
        Ok(stage)
    }

    fn perform(&self, arguments: &Arguments) -> Result<Tally> {
        let seed = arguments.seed.unwrap_or_else(|| u64::from(self.clock.now().nanos));
        println!("Featherstitch: a demonstration (repeat it with --seed {seed})");
        println!();
        let tree = tree::collect(&self.list)?;
        println!("1. A tree to unpack: {} files, {}.", tree.files, crate::size::show(tree.bytes));
        self.command(&["mkfs", "ext2", "-q", "-m", "0"], &[self.image.as_os_str(), VOLUME_SIZE.as_ref()])?;
        println!("2. An empty ext2 image of {VOLUME_SIZE}, made by `fstitch mkfs ext2`.");
        println!(
            "3. {}",
            if self.mounting {
                "Mounted with soft updates; the tree is unpacked, moved and deleted over and over."
            } else {
                "Written with soft updates through the library; the tree is unpacked, moved and deleted over and over."
            }
        );
        let mut tally = Tally::default();
        let mut moments = Seed::new(seed);
        for _ in 0..arguments.kills {
            let moment = KILL_AFTER.start + moments.below(KILL_AFTER.end - KILL_AFTER.start);
            self.kill_once(Duration::from_millis(moment), &mut tally)?;
        }
        self.last_look(&mut tally)?;
        Ok(tally)
    }

    /// Fills the volume, kills whoever writes, and looks at what is left.
    fn kill_once(&self, moment: Duration, tally: &mut Tally) -> Result<()> {
        self.write_until_killed(moment)?;
        tally.kills += 1;
        println!();
        println!("   Kill {} after {} ms of writing, in mid-write.", tally.kills, moment.as_millis());
        let report = verify::ours(&self.program, &self.image)?;
        ensure!(report.corrupt == 0, "our fsck finds damage: {:?}", report.findings);
        println!("     fstitch fsck: no damage; {} leftovers that soft updates allow", report.total);
        verify::theirs(&self.image)?;
        let before = self.clock.elapsed();
        let promised = self.read_promised()?;
        let opened = promised.opened_at.saturating_sub(before);
        println!(
            "     opened again in {} ms; {} synced files, all whole",
            opened.as_millis(),
            promised.files
        );
        tally.leftovers += report.total;
        tally.promised += promised.files;
        tally.slowest_mount = tally.slowest_mount.max(opened);
        Ok(())
    }

    fn write_until_killed(&self, moment: Duration) -> Result<()> {
        let pid = if self.mounting { Some(self.mount()?) } else { None };
        let target = if self.mounting { &self.mountpoint } else { &self.image };
        let mut writer = self.start_writer(target)?;
        std::thread::sleep(moment);
        let ended_early = writer.try_wait()?.is_some();
        if let Some(pid) = pid {
            kill_process(pid)?;
        }
        // With a mount, the writer must not live to see the directory below the mount.
        writer.kill()?;
        writer.wait()?;
        if self.mounting {
            self.forget_dead_mount()?;
        }
        ensure!(!ended_early, "the writer ended before it was killed; `fstitch -v demo` may tell why");
        Ok(())
    }

    fn start_writer(&self, target: &Path) -> Result<Child> {
        let mut command = Command::new(&self.program);
        command
            .arg("demo-writer")
            .arg("--list")
            .arg(&self.list)
            .arg("--journal")
            .arg(&self.journal)
            .arg(target);
        // It complains when the mount dies under it, which is the point of the exercise.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().context("starting the writer")
    }

    /// Mounts, and returns the daemon's process id.
    fn mount(&self) -> Result<u32> {
        let places = [self.image.as_os_str(), self.mountpoint.as_os_str()];
        self.command(&["mount", "--write-back-age", WRITE_BACK_AGE], &places)?;
        Ok(Connection::required(&self.mountpoint)?.status()?.pid)
    }

    fn forget_dead_mount(&self) -> Result<()> {
        self.command(&["umount", "--lazy"], &[self.mountpoint.as_os_str()])
    }

    /// Opens the volume as anybody would and reads every file that had been promised.
    fn read_promised(&self) -> Result<verify::Promised> {
        if !self.mounting {
            return verify::promised_in_image(&self.image, &self.journal, &self.clock);
        }
        self.mount()?;
        let opened_at = self.clock.elapsed();
        let files = verify::promised_below(&self.mountpoint, &self.journal);
        self.command(&["umount"], &[self.mountpoint.as_os_str()])?;
        Ok(verify::Promised { files: files?, opened_at })
    }

    /// Everything that was left behind is reclaimed, and both checkers find nothing any more.
    fn last_look(&self, tally: &mut Tally) -> Result<()> {
        let status = Command::new(&self.program).args(["fsck", "-f", "-p"]).arg(&self.image).output()?;
        ensure!(matches!(status.status.code(), Some(0 | 1)), "fstitch fsck -p failed on the image");
        let report = verify::ours(&self.program, &self.image)?;
        ensure!(report.total == 0, "after repairing, our fsck still finds {:?}", report.findings);
        println!();
        println!(
            "4. `fstitch fsck -p` reclaimed what was left behind after {} kills; it now finds nothing,",
            tally.kills
        );
        match verify::strict(&self.image)? {
            true => println!("   and neither does e2fsck -fn."),
            false => println!("   and e2fsck, which would say the same, is not installed here."),
        }
        Ok(())
    }

    fn command(&self, words: &[&str], places: &[&std::ffi::OsStr]) -> Result<()> {
        let output = Command::new(&self.program).args(words).args(places).output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("`fstitch {}` failed: {}", words.join(" "), said.trim());
        }
        Ok(())
    }

    fn clear_away(&self, keep: bool) {
        if self.mounting && Connection::to_mount(&self.mountpoint).is_some() {
            // A demonstration that failed half way; the mount must not outlive its directory.
            let _ = self.command(&["umount", "--lazy"], &[self.mountpoint.as_os_str()]);
        }
        if !keep && let Err(error) = std::fs::remove_dir_all(&self.directory) {
            eprintln!("fstitch: {} could not be removed: {error}", self.directory.display());
        }
    }
}

/// Ends a process at once and waits until it has gone.
fn kill_process(pid: u32) -> Result<()> {
    let raw = i32::try_from(pid)?;
    let pid = rustix::process::Pid::from_raw(raw).context("the daemon has no process id")?;
    let handle = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
    rustix::process::pidfd_send_signal(&handle, rustix::process::Signal::KILL)?;
    let mut waiting = [rustix::event::PollFd::new(&handle, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut waiting, None)?;
    Ok(())
}

/// Whether this user can mount here; if not, says what to do about it.
fn can_mount() -> bool {
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let root = rustix::process::geteuid().is_root();
    let helper = || {
        std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join("fusermount3").exists()))
    };
    let advice = match device {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            "there is no /dev/fuse (`modprobe fuse`; in a container `--device /dev/fuse --cap-add SYS_ADMIN`)"
        }
        Err(_) => "this user may not open /dev/fuse (as root: `chmod 666 /dev/fuse`)",
        Ok(_) if !root && !helper() => "fusermount3 is missing (as root: `apt-get install fuse3`)",
        Ok(_) => return true,
    };
    println!("No mount: {advice}.");
    println!("The demonstration goes on without one, through the library.");
    println!();
    false
}
