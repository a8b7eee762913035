//! Reproducible images: with `SOURCE_DATE_EPOCH` in the environment, what makes and fills images says that time instead of
//! this machine's, so that the same sources give the same bytes.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use fstitch_core::{Clock, SystemClock, Timestamp};

/// The variable, as all tools have it that make reproducible things.
const VARIABLE: &str = "SOURCE_DATE_EPOCH";

/// The time that the environment asks for.
///
/// # Errors
/// Where it asks for something that is no time: what is made by another time than was meant is of no use.
pub fn asked() -> Result<Option<Timestamp>> {
    match std::env::var_os(VARIABLE) {
        None => Ok(None),
        Some(text) => match text.to_str().and_then(parse) {
            Some(time) => Ok(Some(time)),
            None => bail!("{VARIABLE}={}: it counts the seconds since 1970", text.display()),
        },
    }
}

fn parse(text: &str) -> Option<Timestamp> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let secs = if digits { text.parse().ok()? } else { return None };
    Some(Timestamp { secs, nanos: 0 })
}

/// The time of what is made now.
pub fn now() -> Result<Timestamp> {
    Ok(asked()?.unwrap_or_else(|| SystemClock::new().now()))
}

/// The machine's clock, or one whose wall clock stands at `epoch`.
pub fn clock(epoch: Option<Timestamp>) -> Arc<dyn Clock> {
    let machine = SystemClock::new();
    match epoch {
        None => Arc::new(machine),
        Some(epoch) => Arc::new(Standing { epoch, machine }),
    }
}

/// Ages go on, the wall clock stands.
struct Standing {
    epoch: Timestamp,
    machine: SystemClock,
}

impl Clock for Standing {
    fn now(&self) -> Timestamp {
        self.epoch
    }

    fn elapsed(&self) -> Duration {
        self.machine.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_a_number_of_seconds() {
        assert_eq!(parse("1700000000"), Some(Timestamp { secs: 1_700_000_000, nanos: 0 }));
        for text in ["", "x", "1.5", "-1", "99999999999999999999"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
