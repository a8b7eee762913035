//! Which processors there are, and which thread serves whose queue.

use std::io::{Error, ErrorKind, Result};

const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// What one thread serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// The processor that it stays on.
    pub processor: usize,
    /// The numbers of its queues. The kernel has one for each processor that may ever be there.
    pub queues: Vec<u16>,
}

/// A thread for each processor that is there, so that together they serve every queue.
pub(super) fn shares() -> Result<Vec<Share>> {
    let read = |path: &str| {
        let text = std::fs::read_to_string(path).map_err(|e| Error::new(e.kind(), format!("{path}: {e}")))?;
        parse(&text).ok_or_else(|| Error::new(ErrorKind::InvalidData, format!("{path}: `{}`", text.trim())))
    };
    divide(read(POSSIBLE)?.len(), &read(ONLINE)?)
        .ok_or_else(|| Error::new(ErrorKind::InvalidData, format!("{POSSIBLE} and {ONLINE} disagree")))
}

/// Shares of the queues 0 to `possible`; those of processors that are not there go to the first.
fn divide(possible: usize, online: &[usize]) -> Option<Vec<Share>> {
    let mut shares: Vec<Share> =
        online.iter().map(|processor| Share { processor: *processor, queues: Vec::new() }).collect();
    for queue in 0..possible {
        let at = online.iter().position(|processor| *processor == queue).unwrap_or(0);
        shares.get_mut(at)?.queues.push(u16::try_from(queue).ok()?);
    }
    shares.retain(|share| !share.queues.is_empty());
    Some(shares)
}

/// A list such as `0-2,5`.
fn parse(list: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || last - first > usize::from(u16::MAX) {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_understood() {
        assert_eq!(parse("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse("0"), Some(vec![0]));
        for bad in ["", "a", "3-1", "0-4000000000", "1,"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn every_queue_is_served_once() {
        let shares = divide(4, &[0, 2]).unwrap();
        let queues: Vec<_> = shares.iter().map(|share| (share.processor, share.queues.clone())).collect();
        assert_eq!(queues, [(0, vec![0, 1, 3]), (2, vec![2])]);
        assert_eq!(divide(1, &[]), None);
    }
}
