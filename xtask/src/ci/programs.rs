//! The programs of the workspace's tests, as cargo has built them, and how each is run.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Packages whose tests start programs of ours, mount, look at how much memory is in use, or have cargo build libraries: these are
/// linked to one place, whoever builds them.
const MOUNTING: [&str; 6] =
    ["fstitch", "fstitch-fuse", "fstitch-nbd", "fstitch-bench", "fstitch-lld-c", "fstitch-lld-sqlite"];

/// How a test that computes keeps its memory. The images that these tests make, cut and copy by the thousand are as large as what the
/// C library takes from the system and gives back each time, and the system fills each page with zeros: half of all time.
const KEEPS_MEMORY: [(&str, &str); 3] =
    [("MALLOC_MMAP_MAX_", "0"), ("MALLOC_TRIM_THRESHOLD_", "17179869184"), ("MALLOC_ARENA_MAX", "1")];

/// A program with tests in it.
pub struct Program {
    package: String,
    /// As cargo calls it: of a file in `tests`, or of the package's library or program.
    test: String,
    pub path: PathBuf,
    /// Where cargo runs it.
    pub folder: PathBuf,
}

impl Program {
    /// Whether it waits for mounts and other programs, most of its time.
    pub fn mounts(&self) -> bool {
        MOUNTING.contains(&self.package.as_str())
    }

    /// What runs it, and tells what passing tests print.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.arg("--show-output").current_dir(&self.folder);
        if !self.mounts() {
            command.envs(KEEPS_MEMORY);
        }
        command
    }

    /// The program that a message of cargo is about, if it is one with tests.
    fn of(message: &Value) -> Option<Self> {
        let path = PathBuf::from(message["executable"].as_str()?);
        if message["profile"]["test"] != true {
            return None;
        }
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
        let package = folder.file_name()?.to_str()?.to_owned();
        Some(Self { package, test: message["target"]["name"].as_str()?.to_owned(), path, folder })
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.package, self.test)
    }
}

/// Builds all tests at once: asking for one package alone would build others, with fewer features.
pub fn build(root: &Path) -> Result<Vec<Program>> {
    let output = Command::new(env!("CARGO"))
        .args(["test", "--quiet", "--workspace", "--locked", "--no-run"])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "the build ended with {}", output.status);
    let text = String::from_utf8(output.stdout)?;
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let programs: Vec<Program> = messages.filter_map(|message| Program::of(&message)).collect();
    ensure!(!programs.is_empty(), "cargo names no program with tests");
    Ok(programs)
}

/// The program of one test.
pub fn find<'a>(programs: &'a [Program], package: &str, test: &str) -> Result<&'a Program> {
    let is_it = |program: &&Program| program.package == package && program.test == test;
    programs
        .iter()
        .find(is_it)
        .with_context(|| format!("cargo names no program for the test {test} of {package}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Program;

    #[test]
    fn programs_are_told_from_what_else_cargo_builds() {
        let message = |test: bool, executable: Option<&str>| {
            json!({
                "manifest_path": "/w/crates/fstitch-fs/Cargo.toml", "target": {"name": "ext4"},
                "profile": {"test": test}, "executable": executable,
            })
        };
        let program = Program::of(&message(true, Some("/w/target/debug/deps/ext4-1"))).expect("a program");
        assert_eq!((program.to_string().as_str(), program.mounts()), ("fstitch-fs-ext4", false));
        assert_eq!(program.folder, std::path::Path::new("/w/crates/fstitch-fs"));
        assert!(Program::of(&message(false, Some("/w/target/debug/fstitch"))).is_none());
        assert!(Program::of(&message(true, None)).is_none());
    }
}
