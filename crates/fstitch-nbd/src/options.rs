//! Limits of a server.

use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{Clock, SystemClock};

/// How a server behaves. Every limit is for clients that want too much, by mistake or not.
#[derive(Clone)]
pub struct Options {
    /// Connections at once; further ones are closed.
    pub connections_max: usize,
    /// Requests of one connection that are worked on at once, each on a thread; at least 1. More wait in the socket.
    pub requests_max: usize,
    /// Longest read or write in bytes; a client that sends more is disconnected.
    pub payload_max: u32,
    /// Bytes of long requests that one connection has in memory at once; one request is always admitted.
    pub held_max: usize,
    /// How long the negotiation may take.
    pub negotiation_max: Duration,
    /// Options that a client may send in a negotiation.
    pub options_max: usize,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connections_max: 256,
            requests_max: 16,
            payload_max: 32 << 20,
            held_max: 64 << 20,
            negotiation_max: Duration::from_secs(10),
            options_max: 1024,
            clock: Arc::new(SystemClock::new()),
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("connections_max", &self.connections_max)
            .field("requests_max", &self.requests_max)
            .field("payload_max", &self.payload_max)
            .field("held_max", &self.held_max)
            .field("negotiation_max", &self.negotiation_max)
            .field("options_max", &self.options_max)
            .finish_non_exhaustive()
    }
}
