//! Any bytes, thrown at a server: shared with the fuzzing target.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use fstitch_nbd::{MemExport, Options, Server, Single, Stream};

/// A client that has said all it has to say, in pieces of one length, and listens to everything.
#[derive(Debug)]
struct Script {
    bytes: Vec<u8>,
    piece: usize,
    at: AtomicUsize,
    heard: AtomicUsize,
    has_ended: AtomicBool,
}

impl Stream for Script {
    fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        let at = self.at.load(Ordering::SeqCst);
        let len = (self.bytes.len() - at).min(into.len()).min(self.piece);
        if self.has_ended.load(Ordering::SeqCst) {
            return Ok(0);
        }
        into[..len].copy_from_slice(&self.bytes[at..at + len]);
        self.at.store(at + len, Ordering::SeqCst);
        Ok(len)
    }

    fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        self.heard.fetch_add(len, Ordering::SeqCst);
        Ok(len)
    }

    fn set_patience(&self, _limit: Option<Duration>) -> io::Result<()> {
        Ok(())
    }

    fn shutdown(&self, _how: Shutdown) {
        self.has_ended.store(true, Ordering::SeqCst);
    }
}

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let options = Options { requests_max: 2, payload_max: 1 << 16, held_max: 1 << 16, ..Options::default() };
    let export = MemExport::new(1 << 20);
    Server::new(Arc::new(Single(Arc::new(export))), options).expect("two descriptors")
});

/// Serves a client that says `bytes`, the greeting and a choice before them if the first byte is odd. Nothing may panic, hang or
/// lose a connection from sight; how many bytes the client has heard.
pub fn survive(bytes: &[u8]) -> usize {
    let (first, rest) = bytes.split_first().unwrap_or((&0, &[]));
    let mut said = Vec::new();
    if first & 1 != 0 {
        said.extend(3_u32.to_be_bytes());
        if first & 2 != 0 {
            said.extend(b"IHAVEOPT\0\0\0\x08\0\0\0\0");
        }
        if first & 4 != 0 {
            said.extend(b"IHAVEOPT\0\0\0\x0b\0\0\0\0");
        }
        if first & 6 != 0 {
            said.extend(b"IHAVEOPT\0\0\0\x0a\0\0\0\x1b\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation");
        }
        if first & 8 != 0 {
            said.extend(b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0");
        }
    }
    said.extend(rest);
    let piece = if first & 16 == 0 { 1 << 16 } else { 7 };
    let script = Arc::new(Script {
        bytes: said,
        piece,
        at: AtomicUsize::new(0),
        heard: AtomicUsize::new(0),
        has_ended: AtomicBool::new(false),
    });
    let stream: Arc<dyn Stream> = script.clone();
    SERVER.serve(stream);
    assert_eq!(SERVER.stats().panics.get(), 0, "no bytes of a client make a thread panic");
    assert!(script.has_ended.load(Ordering::SeqCst), "the stream is closed when the client is gone");
    script.heard.load(Ordering::SeqCst)
}
