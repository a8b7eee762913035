//! What a connection talks over.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A stream of bytes both ways. One thread reads and one writes at a time, and any thread may end it.
pub trait Stream: Send + Sync {
    /// Waits for bytes; 0 if there will be no more.
    ///
    /// # Errors
    /// Those of the stream, which end the connection.
    fn read(&self, into: &mut [u8]) -> io::Result<usize>;

    /// Sends some of the bytes.
    ///
    /// # Errors
    /// As above.
    fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize>;

    /// How long a read or a write may wait; for ever if there is no limit.
    ///
    /// # Errors
    /// As above.
    fn set_patience(&self, limit: Option<Duration>) -> io::Result<()>;

    /// Ends one or both ways: whoever waits for them stops.
    fn shutdown(&self, how: Shutdown);
}

macro_rules! stream {
    ($($socket:ty),*) => {$(
        impl Stream for $socket {
            fn read(&self, into: &mut [u8]) -> io::Result<usize> {
                Read::read(&mut &*self, into)
            }

            fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
                match pieces {
                    [piece] => Write::write(&mut &*self, piece),
                    pieces => Write::write_vectored(&mut &*self, pieces),
                }
            }

            fn set_patience(&self, limit: Option<Duration>) -> io::Result<()> {
                self.set_read_timeout(limit)?;
                self.set_write_timeout(limit)
            }

            fn shutdown(&self, how: Shutdown) {
                // It may have ended by itself.
                let _ = <$socket>::shutdown(self, how);
            }
        }
    )*};
}

stream!(UnixStream, TcpStream);
