//! Where clients come in.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use crate::stream::Stream;

/// How long a silent connection over TCP is believed to be alive, before it is asked, and how often, and how many times without an
/// answer. A client whose machine is gone lets go of its export after these two minutes.
const SILENT: Duration = Duration::from_secs(60);
const ASKED_EVERY: Duration = Duration::from_secs(15);
const ASKED_TIMES: u32 = 4;

/// A pause when the system has no room for a connection, in seconds.
const PAUSE_SECS: i64 = 1;

/// A socket that clients connect to.
pub(crate) enum Listener {
    /// At a path, which is removed in the end.
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

/// What a listener has waited for.
pub(crate) enum Event {
    Client(Arc<dyn Stream>),
    /// Nobody came, after all.
    Nothing,
    Stop,
}

impl Listener {
    /// Listens at a path. A socket there that nobody listens at any more is replaced.
    pub(crate) fn unix(path: &Path) -> io::Result<Self> {
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
                std::fs::remove_file(path)?;
                UnixListener::bind(path)?
            }
            bound => bound?,
        };
        listener.set_nonblocking(true)?;
        Ok(Self::Unix(listener, path.to_path_buf()))
    }

    /// Listens at an address.
    pub(crate) fn tcp(address: impl ToSocketAddrs) -> io::Result<(Self, SocketAddr)> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((Self::Tcp(listener), address))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener, _) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }

    /// Waits for a client, or for the other end of `stop` to be closed.
    pub(crate) fn wait(&self, stop: &UnixStream) -> Event {
        let mut fds = [PollFd::new(stop, PollFlags::IN), PollFd::from_borrowed_fd(self.fd(), PollFlags::IN)];
        if poll(&mut fds, None).is_err() {
            // A signal, or no memory in the kernel.
            return Event::Nothing;
        }
        if !fds[0].revents().is_empty() {
            return Event::Stop;
        }
        match self.accept() {
            Ok(stream) => Event::Client(stream),
            Err(error) if is_harmless(&error) => Event::Nothing,
            Err(_) => pause(stop),
        }
    }

    fn accept(&self) -> io::Result<Arc<dyn Stream>> {
        Ok(match self {
            Self::Unix(listener, _) => Arc::new(listener.accept()?.0),
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                // Replies are sent together already; waiting for more of them would only delay them.
                stream.set_nodelay(true)?;
                sockopt::set_tcp_keepidle(&stream, SILENT)?;
                sockopt::set_tcp_keepintvl(&stream, ASKED_EVERY)?;
                sockopt::set_tcp_keepcnt(&stream, ASKED_TIMES)?;
                sockopt::set_socket_keepalive(&stream, true)?;
                Arc::new(stream)
            }
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // Somebody may have removed it already.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether nobody listens at the socket.
fn is_stale(path: &Path) -> bool {
    UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Whether only that one client is concerned.
fn is_harmless(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, InvalidInput, WouldBlock};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted | InvalidInput | WouldBlock)
}

/// Lets time go by, as the client that could not be let in keeps the listener ready.
fn pause(stop: &UnixStream) -> Event {
    let limit = Timespec { tv_sec: PAUSE_SECS, tv_nsec: 0 };
    match poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&limit)) {
        Ok(0) | Err(_) => Event::Nothing,
        Ok(_) => Event::Stop,
    }
}
