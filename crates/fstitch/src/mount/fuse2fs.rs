//! `fstitch fuse2fs`, and this program under the name `fuse2fs`: the command line of e2fsprogs' fuse2fs, so that programs
//! that call it, for the overlays of containers above all, can call us instead.
//!
//! What is asked for means what it means there: without `no_default_opts`, root mounts with `allow_other`; with `fakeroot`
//! nobody's permissions are checked; `norecovery` reads what the journal would restore and writes nothing.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::{Arguments as MountArguments, Plan};
use crate::output::{Outcome, text};

/// The exit code for wrong usage.
const USAGE: Outcome = Outcome(1);
/// The exit code for a mount that failed.
const FAILED: Outcome = Outcome(32);

const HELP: &str = "\
Usage: fuse2fs IMAGE DIRECTORY [-o OPTION,…] [-f] [-s] [-d] [-h] [-V]

Mounts an ext2 or ext3 image, by the command line of e2fsprogs' fuse2fs.

  -o ro, rw               accept no changes; accept them
  -o offset=BYTES         where the volume starts in the image
  -o fakeroot             check nobody's permissions
  -o norecovery, noload   as ro; what a crash left in the journal is replayed in memory only
  -o no_default_opts      root does not let other users in
  -o allow_other, default_permissions, nosuid, nodev, noexec, uid=N, gid=N, auto_unmount
  -o errors=, minixdf, bsddf, kernel_cache, subtype=, fsname=, … accepted, without effect
  and those of `fstitch mount`
  -f                      stay in the foreground
  -d, -o debug            stay in the foreground and say what is going on
  -s                      one thread
";

/// Arguments of `fstitch fuse2fs`.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Arguments {
    /// What fuse2fs takes: IMAGE DIRECTORY [-o ro,fakeroot,offset=BYTES,allow_other,…] [-f] [-s] [-d]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    pub words: Vec<OsString>,
}

/// Options of fuse2fs and of libfuse that change nothing that we do, or that ask for what we do anyway.
const WITHOUT_EFFECT: [&str; 24] = [
    "errors=continue",
    "errors=remount-ro",
    "errors=panic",
    "minixdf",
    "bsddf",
    "fuse2fs_debug",
    "acl",
    "user_xattr",
    "kernel_cache",
    "auto_cache",
    "use_ino",
    "readdir_ino",
    "hard_remove",
    "intr",
    "async_read",
    "sync_read",
    "big_writes",
    "clone_fd",
    "splice_read",
    "splice_write",
    "splice_move",
    "no_splice_read",
    "no_splice_write",
    "no_splice_move",
];
/// The same with a value.
const PREFIXES_WITHOUT_EFFECT: [&str; 9] = [
    "entry_timeout=",
    "attr_timeout=",
    "negative_timeout=",
    "ac_attr_timeout=",
    "max_write=",
    "max_readahead=",
    "max_background=",
    "congestion_threshold=",
    "max_idle_threads=",
];

/// A parsed command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Line {
    places: Vec<OsString>,
    lists: Vec<String>,
    foreground: bool,
    no_defaults: bool,
    /// Only help or the version was asked for.
    ask: Option<&'static str>,
}

/// Whether the program was called by the name fuse2fs.
pub fn is_fuse2fs(program: &OsStr) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == "fuse2fs")
}

impl Line {
    fn parse(words: impl Iterator<Item = OsString>) -> Result<Self> {
        let (mut line, mut words) = (Self::default(), words);
        while let Some(word) = words.next() {
            let text = word.to_string_lossy().into_owned();
            match text.as_str() {
                "-h" | "--help" | "--helpfull" => line.ask = Some(HELP),
                "-V" | "--version" => {
                    line.ask = Some(concat!("fuse2fs of fstitch ", env!("CARGO_PKG_VERSION"), "\n"));
                }
                "-f" => line.foreground = true,
                "-d" => line.option("debug"),
                "-s" => line.lists.push("workers=1".into()),
                "-o" => {
                    let list = words.next().context("-o needs a value")?;
                    line.options(&list.to_string_lossy());
                }
                "--" => line.places.extend(words.by_ref()),
                list if list.starts_with("-o") => line.options(&list[2..]),
                other if other.starts_with('-') && other.len() > 1 => {
                    bail!("{other} is not an option of fuse2fs")
                }
                _ => line.places.push(word),
            }
        }
        let enough = line.ask.is_some() || line.places.len() == 2;
        ensure!(enough, "usage: fuse2fs IMAGE DIRECTORY [-o OPTION,…]; `fuse2fs -h` says more");
        Ok(line)
    }

    fn options(&mut self, list: &str) {
        list.split(',').filter(|option| !option.is_empty()).for_each(|option| self.option(option));
    }

    fn option(&mut self, option: &str) {
        match option {
            "debug" => self.foreground = true,
            "fakeroot" => self.lists.push("nodefault_permissions,nosuid,nodev".into()),
            "no_default_opts" => self.no_defaults = true,
            // What is read is the same as after a replay.
            "norecovery" | "noload" => self.lists.push("ro".into()),
            known if WITHOUT_EFFECT.contains(&known) => {}
            known if PREFIXES_WITHOUT_EFFECT.iter().any(|prefix| known.starts_with(prefix)) => {}
            other => self.lists.push(other.to_owned()),
        }
    }

    /// The options for a mount, those that fuse2fs has by default first.
    fn lists(&self, root: bool) -> Vec<String> {
        let defaults = (root && !self.no_defaults).then(|| "allow_other".to_owned());
        defaults.into_iter().chain(self.lists.iter().cloned()).collect()
    }
}

/// Runs fuse2fs with the arguments after the program's name.
pub fn run(words: impl Iterator<Item = OsString>) -> Outcome {
    let complain = |error: &anyhow::Error| eprintln!("fuse2fs: {}", crate::output::reasons(error));
    let line = match Line::parse(words) {
        Ok(line) => line,
        Err(error) => {
            complain(&error);
            return USAGE;
        }
    };
    let done = match line.ask {
        Some(answer) => text(answer).map(|()| Outcome::SUCCESS),
        None => mount(line),
    };
    done.unwrap_or_else(|error| {
        complain(&error);
        FAILED
    })
}

fn mount(line: Line) -> Result<Outcome> {
    let lists = line.lists(rustix::process::geteuid().is_root());
    let foreground = line.foreground;
    let [image, mountpoint] = <[OsString; 2]>::try_from(line.places).expect("two places were counted");
    let arguments = MountArguments::new(lists, PathBuf::from(image), PathBuf::from(mountpoint));
    super::run_plan(Plan::new(&arguments, false)?, foreground)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Line> {
        Line::parse(line.split(' ').map(OsString::from))
    }

    #[test]
    fn lines_of_container_runtimes_are_understood() {
        let line = parse("-f -o allow_other,offset=4096,fakeroot /proc/self/fd/3 /mnt").unwrap();
        assert!(line.foreground);
        assert_eq!(line.places, ["/proc/self/fd/3", "/mnt"]);
        assert_eq!(line.lists(false), ["allow_other", "offset=4096", "nodefault_permissions,nosuid,nodev"]);
        let line = parse("a.img m -oro,errors=continue,kernel_cache,attr_timeout=0 -s").unwrap();
        assert_eq!(line.lists(true), ["allow_other", "ro", "workers=1"]);
        assert_eq!(parse("a m -o no_default_opts,norecovery").unwrap().lists(true), ["ro"]);
        assert_eq!(parse("a m -d").unwrap().lists(false), Vec::<String>::new());
        assert!(parse("a").is_err() && parse("a m -z").is_err() && parse("a m -o").is_err());
        assert!(parse("-V").unwrap().ask.is_some());
    }

    #[test]
    fn it_is_known_by_its_name() {
        assert!(is_fuse2fs("/usr/bin/fuse2fs".as_ref()) && !is_fuse2fs("fstitch".as_ref()));
    }
}
