//! Replies on their way to a client.
//!
//! Whoever has replies sends them, unless somebody is just sending: then he leaves them, and they go out together when the one
//! system call has returned. What waits has a limit, beyond which everybody waits for the client.

use std::io::{self, IoSlice};
use std::net::Shutdown;

use fstitch_core::lock::{Condvar, Mutex};
use fstitch_core::order::rank;

use crate::proto::batch::Batch;
use crate::stream::Stream;

/// Bytes that may wait while others are sent.
const WAITING_MAX: usize = 1 << 20;

#[derive(Default)]
struct Waiting {
    is_sending: bool,
    /// A send failed: nobody is there to read.
    has_failed: bool,
    batches: Vec<Vec<u8>>,
    bytes: usize,
    /// Who waits for room. Ringing costs a system call even if nobody hears it.
    blocked: usize,
}

/// The replies of one connection that are not sent yet.
pub(super) struct Outbox {
    waiting: Mutex<Waiting, rank::Leaf>,
    /// What waited is being sent.
    taken: Condvar,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self { waiting: Mutex::new(Waiting::default()), taken: Condvar::new() }
    }

    /// Sees to it that the batch is sent, and empties it.
    pub(super) fn send(&self, stream: &dyn Stream, batch: &mut Batch) {
        if batch.len() == 0 {
            return;
        }
        let mut waiting = self.waiting.lock();
        while waiting.is_sending && waiting.bytes >= WAITING_MAX && !waiting.has_failed {
            waiting.blocked += 1;
            waiting = self.taken.wait(waiting, |_| ());
            waiting.blocked -= 1;
        }
        if waiting.has_failed {
            drop(waiting);
            return batch.clear();
        }
        if waiting.is_sending {
            waiting.bytes += batch.len();
            return waiting.batches.push(batch.take());
        }
        waiting.is_sending = true;
        drop(waiting);
        let sent = send_all(stream, &[batch.bytes()]);
        batch.clear();
        self.send_waiting(stream, sent);
    }

    /// Sends what others have left meanwhile, until there is nothing.
    fn send_waiting(&self, stream: &dyn Stream, mut sent: io::Result<()>) {
        loop {
            let mut waiting = self.waiting.lock();
            waiting.has_failed |= sent.is_err();
            if waiting.has_failed {
                waiting.batches.clear();
            }
            let batches = std::mem::take(&mut waiting.batches);
            waiting.bytes = 0;
            waiting.is_sending = !batches.is_empty();
            let (has_failed, is_awaited) = (waiting.has_failed, waiting.blocked > 0);
            drop(waiting);
            if is_awaited {
                self.taken.notify_all();
            }
            if has_failed {
                // Who waits for requests must not wait for ever.
                stream.shutdown(Shutdown::Both);
            }
            if batches.is_empty() {
                return;
            }
            let pieces: Vec<&[u8]> = batches.iter().map(Vec::as_slice).collect();
            sent = send_all(stream, &pieces);
        }
    }
}

/// Sends all pieces, however many system calls that takes.
pub(crate) fn send_all(stream: &dyn Stream, pieces: &[&[u8]]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let mut left = &mut slices[..];
    let total: usize = pieces.iter().map(|piece| piece.len()).sum();
    let mut done = 0;
    while done < total {
        match stream.write(left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(len) if len > total - done => return Err(io::ErrorKind::InvalidData.into()),
            Ok(len) => {
                done += len;
                IoSlice::advance_slices(&mut left, len);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
