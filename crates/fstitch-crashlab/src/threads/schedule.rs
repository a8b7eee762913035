//! Which thread goes on where: the few places where that is not as it goes by itself.

use std::fmt;
use std::str::FromStr;

/// At this step another thread goes on than would by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Switch {
    /// The step, counted from 0 at the start of the first thread.
    pub step: u32,
    /// The thread.
    pub thread: u8,
}

/// An interleaving, written as `57-1.80-0`: at step 57 thread 1 goes on, at step 80 thread 0; `-` where nobody is interrupted. By
/// itself the thread goes on that did, and when it cannot, the next one that can.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Schedule(pub Vec<Switch>);

/// A word that is no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no schedule: expected STEP-THREAD, joined by dots and in order, or `-`")]
pub struct UnknownSchedule(String);

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("-");
        }
        for (at, Switch { step, thread }) in self.0.iter().enumerate() {
            write!(f, "{}{step}-{thread}", if at == 0 { "" } else { "." })?;
        }
        Ok(())
    }
}

impl FromStr for Schedule {
    type Err = UnknownSchedule;

    fn from_str(text: &str) -> Result<Self, UnknownSchedule> {
        if text == "-" {
            return Ok(Self::default());
        }
        let switch = |word: &str| {
            let (step, thread) = word.split_once('-')?;
            Some(Switch { step: step.parse().ok()?, thread: thread.parse().ok()? })
        };
        let switches: Option<Vec<Switch>> = text.split('.').map(switch).collect();
        let is_sorted = |switches: &Vec<Switch>| switches.is_sorted_by(|a, b| a.step < b.step);
        switches.filter(is_sorted).map(Self).ok_or_else(|| UnknownSchedule(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_read_as_they_are_written() {
        for text in ["-", "0-1", "57-1.80-0"] {
            assert_eq!(text.parse::<Schedule>().unwrap().to_string(), text);
        }
        for text in ["", "1", "a-1", "1-300", "80-0.57-1", "57-1.57-0", "57-1."] {
            assert!(text.parse::<Schedule>().is_err(), "{text}");
        }
    }
}
