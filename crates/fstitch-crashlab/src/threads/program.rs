//! What several threads do: a set-up, what is done before they start, and a list for each thread.

use std::fmt;
use std::str::FromStr;

use crate::workload::{Op, UnknownOp};

/// What a thread does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// An operation.
    Op(Op),
    /// Checks the mounted volume, as `fsck --online`.
    Check,
    /// Reclaims what a crash has left, as the thread in the background.
    Reclaim,
    /// Writes everything that can be written now, in one epoch.
    Step,
    /// Unmounts. What others do afterwards is refused.
    Unmount,
}

const WORDS: [(Act, &str); 4] =
    [(Act::Check, "check"), (Act::Reclaim, "reclaim"), (Act::Step, "step"), (Act::Unmount, "unmount")];

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, WORDS.iter().find(|(act, _)| act == self)) {
            (Self::Op(op), _) => op.fmt(f),
            (_, word) => f.write_str(word.expect("the others are words").1),
        }
    }
}

impl FromStr for Act {
    type Err = UnknownOp;

    fn from_str(text: &str) -> Result<Self, UnknownOp> {
        let word = WORDS.iter().find(|(_, word)| *word == text).map(|(act, _)| act.clone());
        word.map_or_else(|| text.parse().map(Self::Op), Ok)
    }
}

/// What several threads do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// How it is found again.
    pub name: String,
    /// What is on the medium before.
    pub setup: Vec<Op>,
    /// The set-up ends with a power cut that spares all that was written, and not by unmounting.
    pub crashes: bool,
    /// What is done by one thread alone, before the others start.
    pub before: Vec<Act>,
    /// What each thread does.
    pub threads: Vec<Vec<Act>>,
}

/// Programs by their names: set-up, what comes before, and the threads, separated by `|`. A `!` ends a set-up with a power cut.
const NAMED: &[(&str, &str)] = &[
    // An fsync climbs to the root while the file moves and the directory that it was in goes.
    (
        "climb",
        "mkdir /b | mkdir /a; create /a/f; write /a/f 0 1500 | fsync /a/f | rename /a/f /b/f; rmdir /a",
    ),
    ("climb-new", "| mkdir /a; mkdir /b; create /a/f | fsync /a/f | rename /a/f /b/f; rmdir /a; step"),
    // It moves into a directory that is not on the medium, after the climb.
    ("climb-moved", "mkdir /p | mkdir /a; mkdir /p/b; create /a/f | fsync /a/f; sync | rename /a/f /p/b/f"),
    // The same for a directory.
    (
        "climb-dir",
        "mkdir /b | mkdir /a; mkdir /a/d; create /a/d/f | fsync /a/d/f | rename /a/d /b/d; rmdir /a",
    ),
    // A file is found for the first time while a directory above it moves; an fsync comes later.
    (
        "inherit",
        "mkdir /p; mkdir /q; mkdir /p/d; create /p/d/f | | hold /p/d/f; write /p/d/f 0 100; fsync /p/d/f | rename /p/d /q/d",
    ),
    // A write, a check online and the reclaimer meet at a file whose count of names a crash left wrong.
    (
        "reclaim",
        "create /f; write /f 0 3000; sync; link /f /g; all-but 1 ! | | write /f 3000 3000 | check | reclaim",
    ),
    (
        "unmount",
        "mkdir /a; create /a/f | | write /a/f 0 3000; fsync /a/f | create /g; rename /g /a/g | unmount",
    ),
    (
        "names",
        "mkdir /a; mkdir /b; create /a/f | | rename /a/f /b/f; fsync /b/f | rename /b /c; unlink /a/f | step; step",
    ),
    (
        "unlink",
        "create /f; write /f 0 5000 | | unlink /f; create /g; write /g 0 5000; fsync /g | fsync /f; sync | step",
    ),
    (
        "rmdir",
        "mkdir /a; mkdir /b | | mkdir /a/x; create /a/x/f; fsync /a/x/f | rmdir /a; rename /b /a | rename /a/x /b/x",
    ),
    (
        "exchange",
        "mkdir /a; mkdir /b; mkdir /a/x; mkdir /b/y | | exchange /a/x /b/y | create /a/x/f; fsync /a/x/f | rename /a /c",
    ),
    // Two directories move into each other: at most one may.
    ("cycle", "mkdir /a; mkdir /a/x; mkdir /b; mkdir /b/y | | rename /a /b/y/a | rename /b /a/x/b"),
    (
        "links",
        "mkdir /a; create /a/f; mkdir /b | | link /a/f /b/g; fsync /b/g | unlink /a/f; rmdir /a | sync",
    ),
    ("truncate", "create /f; write /f 0 9000 | | truncate /f 100; fsync /f | write /f 9000 4000 | check"),
];

impl Program {
    /// All programs that have names.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        NAMED.iter().map(|(name, _)| *name).collect()
    }

    /// The program of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let (name, text) = NAMED.iter().find(|(other, _)| *other == name)?;
        Some(Self::parse(name, text).expect("a test parses them all"))
    }

    /// A program as [`Program::named`] has them.
    ///
    /// # Errors
    /// When a part is no operation.
    pub fn parse(name: &str, text: &str) -> Result<Self, UnknownOp> {
        fn list<T: FromStr<Err = UnknownOp>>(text: &str) -> Result<Vec<T>, UnknownOp> {
            text.split(';').map(str::trim).filter(|op| !op.is_empty()).map(str::parse).collect()
        }
        let mut parts = text.split('|').map(str::trim);
        let setup = parts.next().unwrap_or_default();
        let crashes = setup.ends_with('!');
        let setup = list(setup.trim_end_matches('!'))?;
        let before = list(parts.next().unwrap_or_default())?;
        let threads = parts.map(list).collect::<Result<_, _>>()?;
        Ok(Self { name: name.to_owned(), setup, crashes, before, threads })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_what_their_texts_say() {
        let program = Program::parse("x", "create /f; sync ! | sync | check; fsync /f | unmount").unwrap();
        assert!(program.crashes);
        assert_eq!((program.setup.len(), program.before.len(), program.threads.len()), (2, 1, 2));
        assert_eq!(program.threads[0][0], Act::Check);
        assert_eq!(program.threads[0][1].to_string(), "fsync /f");
        assert!(Program::parse("x", "| | nonsense /f").is_err());
    }

    #[test]
    fn every_named_program_has_threads() {
        for name in Program::names() {
            let program = Program::named(name).expect("it is in the list");
            assert!(program.threads.len() > 1, "{name}");
            assert!(program.threads.iter().all(|acts| !acts.is_empty()), "{name}");
        }
    }
}
