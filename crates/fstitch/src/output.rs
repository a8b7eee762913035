//! What commands print, and how they end.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::Result;
use indicatif::ProgressBar;
use serde::Serialize;

/// How a command ended, when it did not fail with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome(pub u8);

impl Outcome {
    /// All is well.
    pub const SUCCESS: Self = Self(0);
    /// It did its work, and the answer is no.
    pub const FAILURE: Self = Self(1);
    /// What was asked for cannot be asked for so.
    pub const USAGE: Self = Self(2);
    /// An interrupt ended it before its time; what it printed is a part.
    pub const INTERRUPTED: Self = Self(130);
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(outcome.0)
    }
}

/// Wrong usage that only the command itself can find out: it ends like what the parser of the arguments refuses.
#[derive(Debug)]
struct Usage(String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The error of wrong usage, with the words that were wrong and what would be right.
pub fn usage(text: impl std::fmt::Display) -> anyhow::Error {
    Usage(text.to_string()).into()
}

/// Whether an error says that the command was used wrongly.
pub fn is_usage(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Usage>().is_some()
}

/// Prints one JSON document on standard output.
pub fn json<T: Serialize>(value: &T) -> Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    out.write_all(b"\n")?;
    Ok(())
}

/// Prints text on standard output; a reader that went away is an error, not a panic.
pub fn text(text: &str) -> Result<()> {
    Ok(io::stdout().lock().write_all(text.as_bytes())?)
}

/// A line that says what is going on, on a terminal; nothing anywhere else.
pub fn spinner(quiet: bool) -> ProgressBar {
    if quiet || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    ProgressBar::new_spinner()
}

/// An error with all its reasons, each once: many repeat the reason below them in their own words.
pub fn reasons(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for reason in error.chain().map(ToString::to_string) {
        if said.ends_with(&reason) {
            continue;
        }
        if !said.is_empty() {
            said.push_str(": ");
        }
        said.push_str(&reason);
    }
    said
}

/// Whether an error only says that the reader of our output went away (`fstitch ls … | head`).
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let direct = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        let through_json =
            cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
        direct.or(through_json) == Some(io::ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn wrong_usage_is_known_with_whatever_is_said_around_it() {
        let wrong = Err::<(), _>(usage("`x` is not a number")).context("mkfs").unwrap_err();
        assert!(is_usage(&wrong));
        assert_eq!(reasons(&wrong), "mkfs: `x` is not a number");
        assert!(!is_usage(&anyhow::anyhow!("the disk is away")));
    }

    #[test]
    fn reasons_are_given_once() {
        let cause = io::Error::other("the disk is away");
        let op = fstitch_core::IoOp::Open;
        let error = fstitch_core::Error::io(op, fstitch_core::BlockNo(0), cause);
        let error = Err::<(), _>(error).context("reading a.img").unwrap_err();
        assert_eq!(reasons(&error), "reading a.img: open failed: the disk is away");
    }
}
