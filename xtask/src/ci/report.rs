//! What of a long run's output a reader is shown: what ran, what it came to, and what failed. The log has the rest.

use std::fmt;

/// How many lines of failures are shown again at the end.
const FAILURE_LINES_MAX: usize = 120;

/// Picks the lines of `cargo test -- --show-output`: not the passing tests, nor what they print, except `skipped:`.
#[derive(Default)]
pub struct Tests {
    inside_successes: bool,
}

impl Tests {
    /// Whether the next line of the run is shown.
    pub fn shows(&mut self, line: &str) -> bool {
        if line == "successes:" {
            self.inside_successes = true;
        } else if line == "failures:" || line.starts_with("test result:") {
            self.inside_successes = false;
        }
        let passing = line.starts_with("test ") && line.ends_with(" ok");
        let frame = line.is_empty() || line.starts_with("running ");
        line.starts_with("skipped:") || !(self.inside_successes || passing || frame)
    }
}

/// Picks the lines of the proof scripts: not the kills that passed, of which there are many.
pub fn proof_shows(line: &str) -> bool {
    !line.starts_with("PASS run ") && !line.starts_with(' ')
}

/// The lines that tell what failed, in the output of tests and of proof scripts.
#[derive(Default)]
pub struct Failures {
    lines: Vec<String>,
    left_out: usize,
    inside: bool,
}

impl Failures {
    /// Looks at the next line of the run.
    pub fn take(&mut self, line: &str) {
        if line == "failures:" || line.starts_with("FAIL ") {
            self.inside = true;
        } else if line.starts_with("test result:") || line.starts_with("PASS ") || line == "successes:" {
            self.inside = false;
        }
        if self.inside && self.lines.len() < FAILURE_LINES_MAX {
            self.lines.push(line.to_owned());
        } else if self.inside {
            self.left_out += 1;
        }
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        match self.left_out {
            0 => Ok(()),
            lines => writeln!(f, "({lines} more lines are in the log)"),
        }
    }
}

/// The tests that take long, as the programs say themselves after a minute, and have not ended.
#[derive(Default)]
pub struct Long {
    tests: Vec<String>,
}

impl Long {
    /// Looks at the next line of the run.
    pub fn take(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("test ") else { return };
        if let Some((name, _)) = rest.split_once(" has been running for over ") {
            self.tests.push(name.to_owned());
        } else if let Some((name, _)) = rest.split_once(" ... ") {
            self.tests.retain(|test| test != name);
        }
    }
}

impl fmt::Display for Long {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tests.as_slice() {
            [] => Ok(()),
            tests => write!(f, "; under way: {}", tests.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Failures, Long, Tests, proof_shows};

    const RUN: &str = "\nrunning 3 tests\ntest a ... ok\ntest b ... FAILED\ntest c ... ok\n\nsuccesses:\n\n---- c stdout ----\n\
        skipped: no FUSE\nchatter\n\nfailures:\n\n---- b stdout ----\nit broke\n\ntest result: FAILED. 2 passed; 1 failed";

    #[test]
    fn what_failed_and_what_was_skipped_is_shown() {
        let mut filter = Tests::default();
        let shown: Vec<&str> = RUN.lines().filter(|line| filter.shows(line)).collect();
        assert_eq!(
            shown,
            [
                "test b ... FAILED",
                "skipped: no FUSE",
                "failures:",
                "---- b stdout ----",
                "it broke",
                "test result: FAILED. 2 passed; 1 failed"
            ]
        );
    }

    #[test]
    fn failures_are_told_again() {
        let mut failures = Failures::default();
        for line in RUN.lines().chain(["FAIL run 3: torn", "  repeat with: x", "PASS run 4"]) {
            failures.take(line);
        }
        assert_eq!(
            failures.to_string(),
            "failures:\n\n---- b stdout ----\nit broke\n\nFAIL run 3: torn\n  repeat with: x\n"
        );
    }

    #[test]
    fn passing_kills_are_not_shown() {
        assert!(!proof_shows("PASS run 3: soft, untar"));
        assert!(!proof_shows("     0 allowed findings"));
        assert!(proof_shows("PASS 16 kills: 16 passed, 0 failed, 24 s"));
        assert!(proof_shows("FAIL run 3: torn"));
    }

    #[test]
    fn what_waits_for_ever_is_named() {
        let mut long = Long::default();
        let lines = [
            "test a::ends has been running for over 60 seconds",
            "test a::waits has been running for over 60 seconds",
            "test a::quick ... ok",
            "test a::ends ... FAILED",
        ];
        lines.iter().for_each(|line| long.take(line));
        assert_eq!(long.to_string(), "; under way: a::waits");
        assert_eq!(Long::default().to_string(), "");
    }
}
