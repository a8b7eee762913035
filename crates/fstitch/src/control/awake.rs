//! What a mount does about idle processors, for `status`.

use std::time::Duration;

use fstitch_fuse::{AwakeReport, Means};
use serde::{Deserialize, Serialize};

/// Whether processors are kept awake while requests come, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Awake {
    /// `auto`, `on` or `off`.
    pub mode: String,
    /// By what means they are: `latency` (asked of `/dev/cpu_dma_latency`), `spinning` (threads of the idle class); empty where
    /// they are not.
    pub means: String,
    /// They are at this moment.
    pub held: bool,
    /// What waking a thread on another processor takes when nothing is done, where that was measured.
    pub wake_up_ns: Option<u64>,
    /// And with these means.
    pub shortened_ns: Option<u64>,
    /// Why, for people; empty with `off`.
    pub why: String,
}

impl From<AwakeReport> for Awake {
    fn from(report: AwakeReport) -> Self {
        let nanos = |time: Option<Duration>| time.and_then(|time| u64::try_from(time.as_nanos()).ok());
        let means = match report.means {
            None => "",
            Some(Means::Latency) => "latency",
            Some(Means::Spinning) => "spinning",
        };
        Self {
            mode: report.mode.to_string(),
            means: means.to_owned(),
            held: report.held,
            wake_up_ns: nanos(report.wake_up),
            shortened_ns: nanos(report.shortened),
            why: report.why.to_owned(),
        }
    }
}

impl Awake {
    /// One line for people.
    pub fn describe(&self) -> String {
        let how = match self.means.as_str() {
            "latency" => "kept awake while requests come (/dev/cpu_dma_latency)",
            "spinning" => "kept awake while requests come (by threads of the idle class)",
            _ => "left alone",
        };
        let mut said = format!("idle processors: {how}; awake={}", self.mode);
        if !self.why.is_empty() {
            said.push_str(&format!(": {}", self.why));
        }
        let shown = |nanos: u64| format!("{:.1} us", Duration::from_nanos(nanos).as_secs_f64() * 1e6);
        match (self.wake_up_ns, self.shortened_ns) {
            (Some(slow), Some(quick)) => {
                said.push_str(&format!(" (a wake-up takes {}, then {})", shown(slow), shown(quick)));
            }
            (Some(time), None) => said.push_str(&format!(" (a wake-up takes {})", shown(time))),
            _ => {}
        }
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_are_told_what_is_done_and_why() {
        let report = AwakeReport {
            means: Some(Means::Spinning),
            wake_up: Some(Duration::from_nanos(61_250)),
            shortened: Some(Duration::from_nanos(7_000)),
            why: "processors wake slowly",
            ..AwakeReport::default()
        };
        assert_eq!(
            Awake::from(report).describe(),
            "idle processors: kept awake while requests come (by threads of the idle class); awake=auto: processors wake slowly \
             (a wake-up takes 61.2 us, then 7.0 us)"
        );
        let off = Awake { mode: "off".to_owned(), ..Awake::default() };
        assert_eq!(off.describe(), "idle processors: left alone; awake=off");
    }
}
