//! The line that replays a state: system, workload, level, cut and choice.
//!
//! ```text
//! ext2-soft-o3:seq2/4711:M2:57:0x12.1.0x3
//! │            │         │  │  └ versions of the undecided atoms: twelve times the stable one, once the next, …
//! │            │         │  └ events of the log before the cut
//! │            │         └ level
//! │            └ workload
//! └ system
//! ```

use std::fmt;
use std::str::FromStr;

use crate::medium::{Choice, Level};

/// A crash state's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateId {
    /// [`System::name`](crate::System::name).
    pub system: String,
    /// The workload's name.
    pub workload: String,
    /// How badly the medium behaves.
    pub level: Level,
    /// Events before the cut.
    pub cut: usize,
    /// The versions that survived.
    pub choice: Choice,
}

/// A line that names no crash state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{line}` names no crash state: {why}; expected SYSTEM:WORKLOAD:LEVEL:CUT:CHOICE as a failure prints it"
)]
pub struct UnknownState {
    line: String,
    why: &'static str,
}

/// More undecided atoms than any volume here has.
const MAX_ATOMS: usize = 1 << 24;

impl fmt::Display for StateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:{}:", self.system, self.workload, self.level, self.cut)?;
        write_choice(f, &self.choice)
    }
}

/// Writes a choice as runs of equal versions.
pub(crate) fn write_choice(f: &mut fmt::Formatter<'_>, choice: &[u8]) -> fmt::Result {
    for (at, run) in choice.chunk_by(|a, b| a == b).enumerate() {
        let dot = if at == 0 { "" } else { "." };
        match run.len() {
            1 => write!(f, "{dot}{}", run[0])?,
            len => write!(f, "{dot}{}x{len}", run[0])?,
        }
    }
    Ok(())
}

impl FromStr for StateId {
    type Err = UnknownState;

    fn from_str(line: &str) -> Result<Self, UnknownState> {
        let fail = |why| UnknownState { line: line.to_owned(), why };
        let parts: Vec<&str> = line.trim().split(':').collect();
        let [system, workload, level, cut, choice] = parts[..] else {
            return Err(fail("it has not five parts"));
        };
        Ok(Self {
            system: system.to_owned(),
            workload: workload.to_owned(),
            level: level.parse().map_err(|_| fail("its level is none"))?,
            cut: cut.parse().map_err(|_| fail("its cut is no number"))?,
            choice: parse_choice(choice).ok_or_else(|| fail("its choice is not understood"))?,
        })
    }
}

/// Reads what [`write_choice`] wrote.
pub(crate) fn parse_choice(text: &str) -> Option<Choice> {
    let mut choice = Vec::new();
    for run in text.split('.').filter(|run| !run.is_empty()) {
        let (version, len) = run.split_once('x').unwrap_or((run, "1"));
        let len: usize = len.parse().ok().filter(|len| *len <= MAX_ATOMS - choice.len())?;
        choice.extend(std::iter::repeat_n(version.parse::<u8>().ok()?, len));
    }
    Some(choice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_are_written() {
        for choice in [vec![], vec![0], vec![0; 300], vec![1, 0, 0, 2, 2, 2, 7]] {
            let (system, workload) = ("ext2-soft-o3".to_owned(), "seq2/4711".to_owned());
            let id = StateId { system, workload, level: Level::M3, cut: 57, choice };
            assert_eq!(id.to_string().parse(), Ok(id));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for line in ["", "a:b:M2:1", "a:b:M9:1:0", "a:b:M2:x:0", "a:b:M2:1:0x99999999999", "a:b:M2:1:300"] {
            assert!(line.parse::<StateId>().is_err(), "{line}");
        }
    }
}
