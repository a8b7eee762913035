//! Running the program, and what tests need of the machine: each says why it is skipped.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_fstitch");

/// What a program did.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        Self {
            code: output.status.code().unwrap_or(-1),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }
}

impl Ran {
    /// Asserts success and returns the output.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self.out
    }

    /// Asserts that it failed with `code` and said `said`.
    #[track_caller]
    pub fn refused(self, code: i32, said: &str) {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        assert!(self.err.contains(said), "{}", self.err);
    }
}

/// Runs any program.
pub fn run<S: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = S>) -> Ran {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    Command::new(program).args(arguments).env("PATH", path).output().unwrap().into()
}

/// Runs the program under test in words that are separated by blanks.
pub fn fstitch(line: &str) -> Ran {
    run(PROGRAM, line.split_whitespace())
}

/// Whether this process is root; if not, says that the test is skipped.
pub fn needs_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: only root may do this");
    }
    root
}

/// Whether a program is installed; if not, says that the test is skipped.
pub fn needs(program: &str) -> bool {
    let found = run("sh", ["-c", &format!("command -v {program}")]).code == 0;
    if !found {
        println!("skipped: {program} is not installed");
    }
    found
}

/// A directory for one test.
pub struct Place(tempfile::TempDir);

impl Place {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// The path of `name` here.
    pub fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The same as text, for command lines.
    pub fn text(&self, name: &str) -> String {
        self.at(name).to_str().unwrap().to_owned()
    }

    /// A new directory.
    pub fn directory(&self, name: &str) -> String {
        std::fs::create_dir(self.at(name)).unwrap();
        self.text(name)
    }

    /// A volume of 4 MiB.
    pub fn volume(&self, name: &str) -> String {
        let image = self.text(name);
        fstitch(&format!("mkfs ext2 -q {image} 4M")).ok();
        image
    }

    /// Runs `script` in a mount table of its own, in this directory, with the program's name as `$F`; `None`, said
    /// aloud, where that is not possible. Lines before `script` may bind what it needs.
    pub fn in_namespace(&self, script: &str) -> Option<Ran> {
        let probe = run("unshare", ["-m", "true"]);
        if probe.code != 0 {
            println!("skipped: no mount namespace: {}", probe.err.trim());
            return None;
        }
        let head = format!("set -eu\nF={PROGRAM}\ncd {}\n", self.0.path().display());
        Some(run("unshare", ["-m", "sh", "-c", &(head + script)]))
    }
}

/// A mount, taken away with the test.
pub struct Mounted {
    at: PathBuf,
}

impl Mounted {
    /// Mounts, or says why that is not possible here.
    pub fn new(options: &str, image: &str, at: &str) -> Option<Self> {
        Self::with("mount", options, image, at)
    }

    /// The same with another command that mounts.
    pub fn with(command: &str, options: &str, image: &str, at: &str) -> Option<Self> {
        let ran = fstitch(&format!("{command} {options} {image} {at}"));
        let lacks = ["/dev/fuse", "fusermount3 is not installed", "is not permitted"];
        if ran.code != 0 && lacks.iter().any(|lack| ran.err.contains(lack)) {
            println!("skipped: {}", ran.err.trim());
            return None;
        }
        ran.ok();
        Some(Self { at: PathBuf::from(at) })
    }

    /// One that is there already.
    pub fn found(at: &str) -> Self {
        Self { at: PathBuf::from(at) }
    }

    pub fn path(&self) -> &Path {
        &self.at
    }

    /// Unmounts, and expects success.
    #[track_caller]
    pub fn end(self) {
        fstitch(&format!("umount -q {}", self.at.display())).ok();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // After `end` nothing is mounted there any more, which is as well.
        let _ = fstitch(&format!("umount -q --lazy {}", self.at.display()));
    }
}
