//! Bytes from a client, many requests with one system call.

use std::io;

use crate::stream::Stream;

/// Bytes of the buffer: some 32 writes of 4 KiB, and one long option.
const CAPACITY: usize = 1 << 18;
/// So much room there is for a read at least, or else what is left over moves to the front.
const ROOM: usize = CAPACITY / 2;

/// The longest piece that is looked at in the buffer.
pub(crate) const PIECE_MAX: usize = CAPACITY - ROOM;

/// What was received and not yet used.
pub(crate) struct Input {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Input {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; CAPACITY].into_boxed_slice(), start: 0, end: 0 }
    }

    /// The bytes at hand.
    pub(crate) fn available(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// They are done with.
    pub(crate) fn consume(&mut self, len: usize) {
        assert!(len <= self.end - self.start, "only what is at hand is consumed");
        self.start += len;
    }

    /// Waits for more bytes; false if there will be none.
    pub(crate) fn fill(&mut self, stream: &dyn Stream) -> io::Result<bool> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.bytes.len() - self.end < ROOM {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = &mut self.bytes[self.end..];
        assert!(!room.is_empty(), "no more is waited for than fits");
        let len = read(stream, room)?;
        self.end += len;
        Ok(len > 0)
    }

    /// Takes exactly as many bytes as `into` has; false if there are not so many.
    pub(crate) fn take(&mut self, stream: &dyn Stream, into: &mut [u8]) -> io::Result<bool> {
        let at_hand = into.len().min(self.end - self.start);
        let (first, mut rest) = into.split_at_mut(at_hand);
        first.copy_from_slice(&self.available()[..at_hand]);
        self.consume(at_hand);
        while !rest.is_empty() {
            let len = read(stream, rest)?;
            if len == 0 {
                return Ok(false);
            }
            rest = &mut rest[len..];
        }
        Ok(true)
    }
}

/// Reads, and does not mind signals.
fn read(stream: &dyn Stream, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(into) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A stream of somebody else's making may claim anything.
            Ok(len) if len > into.len() => return Err(io::ErrorKind::InvalidData.into()),
            done => return done,
        }
    }
}
