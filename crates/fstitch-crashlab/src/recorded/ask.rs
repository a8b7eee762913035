//! A program's own word about what a crash left: a command that looks at every tree, unpacked.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::oracle::{Tree, Violation};

/// A command of the shell that is content with a tree or not, by its exit status. Each different tree is asked about once.
///
/// It runs in a copy of the tree that it may change, in memory where the machine has a file system for that.
pub struct Question {
    command: String,
    within: String,
    place: TempDir,
    known: BTreeSet<u128>,
    asked: u64,
}

/// Where files are memory.
const MEMORY: &str = "/dev/shm";
/// Bytes of a discontented command's output that a violation repeats.
const SAID_MAX: usize = 1000;

impl Question {
    /// The question `command`, put in the directory `within` of the volume; not at all where that is not there.
    ///
    /// # Errors
    /// When there is no directory to unpack trees in.
    pub fn new(command: &str, within: &str) -> io::Result<Self> {
        let (command, within) = (command.to_owned(), within.to_owned());
        let mut builder = tempfile::Builder::new();
        builder.prefix("fstitch-ask-");
        let place = builder.tempdir_in(MEMORY).or_else(|_| builder.tempdir())?;
        Ok(Self { command, within, place, known: BTreeSet::new(), asked: 0 })
    }

    /// How often the command was run.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// Puts the question, unless it was put to the same tree before.
    ///
    /// # Errors
    /// When the tree cannot be unpacked or the shell not be run.
    pub fn put(&mut self, tree: &Tree) -> io::Result<Result<(), Violation>> {
        let Some(top) = tree.find(&self.within) else { return Ok(Ok(())) };
        if !self.known.insert(tree.fingerprint(top)) {
            return Ok(Ok(()));
        }
        self.asked += 1;
        let state = self.place.path().join("state");
        tree.unpack(top, &state)?;
        let answer = ask(&self.command, &state);
        std::fs::remove_dir_all(&state)?;
        answer
    }
}

fn ask(command: &str, state: &Path) -> io::Result<Result<(), Violation>> {
    // A group of its own: an interrupt from the terminal ends the search after the answer, which is then a true one.
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).current_dir(state).stdin(Stdio::null()).process_group(0);
    let output = shell.output()?;
    if output.status.success() {
        return Ok(Ok(()));
    }
    let mut said = output.stdout;
    said.extend(output.stderr);
    let said = String::from_utf8_lossy(&said[said.len().saturating_sub(SAID_MAX)..]).trim().to_owned();
    Ok(Err(Violation::new("asked", format!("the question ended with {}: {said}", output.status))))
}
