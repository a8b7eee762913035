//! What a server has done.

use fstitch_core::Counter;

use crate::proto::request::Command;

/// Kinds of requests, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are the protocol's")]
pub enum Kind {
    Read,
    Write,
    Flush,
    Trim,
    Cache,
    WriteZeroes,
    BlockStatus,
    Unknown,
}

impl Kind {
    /// All of them, in order.
    pub const ALL: [Self; 8] = [
        Self::Read,
        Self::Write,
        Self::Flush,
        Self::Trim,
        Self::Cache,
        Self::WriteZeroes,
        Self::BlockStatus,
        Self::Unknown,
    ];

    /// Its place in [`Kind::ALL`].
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Flush => 2,
            Self::Trim => 3,
            Self::Cache => 4,
            Self::WriteZeroes => 5,
            Self::BlockStatus => 6,
            Self::Unknown => 7,
        }
    }
}

impl From<Command> for Kind {
    /// Disconnecting is no request that is answered, and is not counted.
    fn from(command: Command) -> Self {
        match command {
            Command::Read => Self::Read,
            Command::Write => Self::Write,
            Command::Flush => Self::Flush,
            Command::Trim => Self::Trim,
            Command::Cache => Self::Cache,
            Command::WriteZeroes => Self::WriteZeroes,
            Command::BlockStatus => Self::BlockStatus,
            Command::Disconnect | Command::Unknown => Self::Unknown,
        }
    }
}

/// Numbers that only grow, since the server began.
#[derive(Debug, Default)]
pub struct Stats {
    /// Connections that were accepted.
    pub connections: Counter,
    /// Connections that were closed because there were too many.
    pub refused: Counter,
    /// Connections whose negotiation led to an export.
    pub negotiated: Counter,
    /// Connections that ended because the client broke the protocol.
    pub malformed: Counter,
    /// Connections that a panic ended.
    pub panics: Counter,
    /// Bytes that clients have read.
    pub bytes_read: Counter,
    /// Bytes that clients have written, without those that were only said to be zero.
    pub bytes_written: Counter,
    /// Requests that were answered with an error.
    pub errors: Counter,
    requests: [Counter; 8],
}

impl Stats {
    /// Requests of this kind.
    #[must_use]
    pub fn requests(&self, kind: Kind) -> u64 {
        self.requests[kind.index()].get()
    }

    pub(crate) fn count(&self, kind: Kind) {
        self.requests[kind.index()].add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_counter_of_its_own() {
        let stats = Stats::default();
        for (index, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), index);
            stats.count(kind);
            assert_eq!(stats.requests(kind), 1);
        }
    }
}
