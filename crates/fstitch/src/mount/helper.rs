//! `mount.fuse.fstitch` and `mount.fstitch`: what mount(8) and fstab call.
//!
//! A helper prints nothing when all is well, returns when the mount answers, and ends with mount(8)'s exit
//! codes: 1 for wrong usage, 32 for a mount that failed.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use rustix::mount::MountFlags;

use super::{Arguments, Plan};
use crate::control::client::Connection;
use crate::control::{Request, Response};
use crate::output::Outcome;

/// mount(8)'s exit code for a failed mount.
pub const MOUNT_FAILED: Outcome = Outcome(32);
/// mount(8)'s exit code for wrong usage.
pub const USAGE: Outcome = Outcome(1);

/// Whether the program was called as a mount helper.
pub fn is_helper_name(program: &OsStr) -> bool {
    let name = Path::new(program).file_name().unwrap_or_default();
    name == "mount.fuse.fstitch" || name == "mount.fstitch" || name == "mount.fuse3.fstitch"
}

/// A parsed command line: `IMAGE DIRECTORY [-sfnv] [-o LIST] [-t TYPE] [-N NAMESPACE]`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Line {
    places: Vec<OsString>,
    lists: Vec<String>,
    sloppy: bool,
    fake: bool,
}

impl Line {
    fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Self> {
        let mut line = Self::default();
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            let text = argument.to_string_lossy().into_owned();
            let Some(letters) = text.strip_prefix('-').filter(|rest| !rest.is_empty()) else {
                line.places.push(argument);
                continue;
            };
            if letters.starts_with(['o', 't', 'N']) {
                let (letter, attached) = letters.split_at(1);
                let value = match attached {
                    "" => arguments.next().with_context(|| format!("-{letter} needs a value"))?,
                    attached => OsString::from(attached),
                };
                if letter == "o" {
                    line.lists.push(value.to_string_lossy().into_owned());
                }
                continue;
            }
            for letter in letters.chars() {
                match letter {
                    's' => line.sloppy = true,
                    'f' => line.fake = true,
                    // Without an mtab there is nothing to leave out, and nothing to say that a helper may say.
                    'n' | 'v' => {}
                    'r' => line.lists.push("ro".into()),
                    'w' => line.lists.push("rw".into()),
                    other => bail!("-{other} is not an option of a mount helper"),
                }
            }
        }
        ensure!(line.places.len() == 2, "usage: mount.fuse.fstitch IMAGE DIRECTORY [-sfnv] [-o OPTIONS]");
        Ok(line)
    }
}

/// Runs the helper with the arguments after the program's name.
pub fn run(arguments: impl Iterator<Item = OsString>) -> Outcome {
    let complain = |error: &anyhow::Error| eprintln!("mount.fuse.fstitch: {}", crate::output::reasons(error));
    let line = match Line::parse(arguments) {
        Ok(line) => line,
        Err(error) => {
            complain(&error);
            return USAGE;
        }
    };
    mount(line).unwrap_or_else(|error| {
        complain(&error);
        MOUNT_FAILED
    })
}

fn mount(line: Line) -> Result<Outcome> {
    let Line { places, lists, sloppy, fake } = line;
    let [image, mountpoint] = <[OsString; 2]>::try_from(places).expect("two places were counted");
    let arguments = Arguments::new(lists, PathBuf::from(image), PathBuf::from(mountpoint));
    let mut plan = Plan::new(&arguments, sloppy)?;
    if fake {
        return Ok(Outcome::SUCCESS);
    }
    if plan.options.remount {
        remount(&plan)?;
        return Ok(Outcome::SUCCESS);
    }
    plan.settle()?;
    super::run_in_background(|place| super::daemon::serve(&plan, place))
}

/// Changes what the kernel enforces, and opens a volume for writing that was opened for reading only.
fn remount(plan: &Plan) -> Result<()> {
    let mountpoint = &plan.mountpoint;
    let status = Connection::required(mountpoint)?.status()?;
    if status.read_only && !plan.options.read_only {
        match Connection::required(mountpoint)?.ask(&Request::Reopen)? {
            Response::Reopened => {}
            Response::Error(text) => bail!("{}: {text}", mountpoint.display()),
            other => bail!("an unexpected answer: {other:?}"),
        }
    }
    let mut flags = MountFlags::empty();
    for option in &plan.options.kernel {
        match option.as_str() {
            "nosuid" => flags |= MountFlags::NOSUID,
            "nodev" => flags |= MountFlags::NODEV,
            "noexec" => flags |= MountFlags::NOEXEC,
            "lazytime" => flags |= MountFlags::LAZYTIME,
            "suid" => flags &= !MountFlags::NOSUID,
            "dev" => flags &= !MountFlags::NODEV,
            "exec" => flags &= !MountFlags::NOEXEC,
            "nolazytime" => flags &= !MountFlags::LAZYTIME,
            _ => {}
        }
    }
    if plan.options.read_only {
        flags |= MountFlags::RDONLY;
        // What was written before the change is to be on the medium after it.
        std::fs::File::open(mountpoint)?.sync_all().context("making everything stable")?;
    }
    if plan.options.sync {
        flags |= MountFlags::SYNCHRONOUS;
    }
    rustix::mount::mount_remount(mountpoint, flags, c"")
        .with_context(|| format!("remounting {}", mountpoint.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &[&str]) -> Result<Line> {
        Line::parse(line.iter().map(OsString::from))
    }

    #[test]
    fn lines_of_mount_are_understood() {
        let line = parse(&["a.img", "/mnt", "-sn", "-o", "rw,nosuid", "-t", "fuse.fstitch"]).unwrap();
        assert_eq!(line.places, ["a.img", "/mnt"]);
        assert_eq!(line.lists, ["rw,nosuid"]);
        assert!(line.sloppy && !line.fake);
        assert_eq!(parse(&["a", "-oro", "b", "-f"]).unwrap().lists, ["ro"]);
        assert!(parse(&["a"]).is_err());
        assert!(parse(&["a", "b", "-z"]).is_err());
        assert!(parse(&["a", "b", "-o"]).is_err());
    }

    #[test]
    fn the_helper_is_known_by_its_name() {
        assert!(is_helper_name("/sbin/mount.fuse.fstitch".as_ref()));
        assert!(!is_helper_name("/usr/bin/fstitch".as_ref()));
    }
}
