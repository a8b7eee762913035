//! Listeners, connections, and the end of both.

use std::io;
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use fstitch_core::lock::Mutex;
use fstitch_core::order::rank;

use crate::connection::{Broken, Connection, Place};
use crate::export::Exports;
use crate::listener::{Event, Listener};
use crate::negotiate::negotiate;
use crate::options::Options;
use crate::registry::{Entered, Registry};
use crate::stats::Stats;
use crate::stream::Stream;

/// How long a stop waits for connections that were cut to be gone: their threads have nothing to do but to leave.
const LEAVING_MAX: Duration = Duration::from_secs(1);

/// What threads share.
struct Shared {
    exports: Arc<dyn Exports>,
    options: Options,
    stats: Stats,
    registry: Registry,
    stopping: AtomicBool,
}

/// Serves exports to clients, on threads of its own. Dropping it cuts every connection.
pub struct Server {
    shared: Arc<Shared>,
    /// Closing this end wakes the listeners, which wait at the other one.
    stop: UnixStream,
    stopped: Arc<UnixStream>,
    listeners: Mutex<Vec<JoinHandle<()>>, rank::Leaf>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Server({} connections)", self.connections())
    }
}

/// How a stop went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Connections that had to be cut when the time was over: their requests may be unanswered.
    pub cut: usize,
    /// Those of them whose exports are still at work on a request. They are dropped when they are done.
    pub working: usize,
}

impl Server {
    /// A server without listeners.
    ///
    /// # Errors
    /// Those of the system, which may have no more descriptors.
    pub fn new(exports: Arc<dyn Exports>, options: Options) -> io::Result<Self> {
        let (stop, stopped) = UnixStream::pair()?;
        let shared = Arc::new(Shared {
            exports,
            options,
            stats: Stats::default(),
            registry: Registry::new(),
            stopping: AtomicBool::new(false),
        });
        Ok(Self { shared, stop, stopped: Arc::new(stopped), listeners: Mutex::new(Vec::new()) })
    }

    /// Serves clients at a Unix socket, which is made, and removed at the end. Whoever may write to it may use all exports: the
    /// directory's permissions and the process's umask decide.
    ///
    /// # Errors
    /// Those of the system; `AddrInUse` if another server listens there.
    pub fn listen_unix(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.listen(Listener::unix(path.as_ref())?)
    }

    /// Serves clients over TCP, without encryption or a question who they are. The answer is the address with the port that the
    /// system has chosen, if it was left to it.
    ///
    /// # Errors
    /// Those of the system.
    pub fn listen_tcp(&self, address: impl ToSocketAddrs) -> io::Result<SocketAddr> {
        let (listener, address) = Listener::tcp(address)?;
        self.listen(listener)?;
        Ok(address)
    }

    fn listen(&self, listener: Listener) -> io::Result<()> {
        let (shared, stopped) = (Arc::clone(&self.shared), Arc::clone(&self.stopped));
        let name = "nbd-listener".to_owned();
        let thread = Builder::new().name(name).spawn(move || accept(&shared, &listener, &stopped))?;
        self.listeners.lock().push(thread);
        Ok(())
    }

    /// Serves one client that is connected already, on this thread, until it leaves: for sockets that somebody else has made, and
    /// for streams in memory.
    pub fn serve(&self, stream: Arc<dyn Stream>) {
        self.shared.serve(&stream);
    }

    /// What was done so far.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }

    /// How many clients are connected.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.registry.len()
    }

    /// Stops: nobody is let in, requests that are in flight are answered, and connections are closed. What is not done after
    /// `limit` is cut off. To be called from any thread, and more than once if need be; it does not flush, which is the business
    /// of whoever owns what is served.
    pub fn stop(&self, limit: Duration) -> Stopped {
        let Shared { registry, options, stopping, .. } = &*self.shared;
        stopping.store(true, Ordering::Relaxed);
        registry.close();
        Stream::shutdown(&self.stop, Shutdown::Both);
        let listeners = std::mem::take(&mut *self.listeners.lock());
        for listener in listeners {
            // One that has panicked listens no more, either.
            let _ = listener.join();
        }
        registry.shutdown(Shutdown::Read);
        let cut = registry.wait(&*options.clock, limit);
        if cut == 0 {
            return Stopped { cut, working: 0 };
        }
        registry.shutdown(Shutdown::Both);
        Stopped { cut, working: registry.wait(&*options.clock, LEAVING_MAX) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

/// Lets clients in until the server stops.
fn accept(shared: &Arc<Shared>, listener: &Listener, stopped: &UnixStream) {
    loop {
        match listener.wait(stopped) {
            Event::Stop => return,
            Event::Nothing => {}
            Event::Client(stream) => {
                let shared = Arc::clone(shared);
                let name = "nbd-connection".to_owned();
                // Without a thread there is no connection: the client finds its stream closed.
                let _ = Builder::new().name(name).spawn(move || shared.serve(&stream));
            }
        }
    }
}

impl Shared {
    /// Serves a client from its greeting to its end.
    fn serve(&self, stream: &Arc<dyn Stream>) {
        let Some(entered) = self.registry.enter(stream, self.options.connections_max) else {
            self.stats.refused.add(1);
            return stream.shutdown(Shutdown::Both);
        };
        self.stats.connections.add(1);
        let served = catch_unwind(AssertUnwindSafe(|| self.talk(&**stream)));
        match served {
            Err(_) => self.stats.panics.add(1),
            Ok(Err(Broken::Malformed)) => self.stats.malformed.add(1),
            Ok(Ok(()) | Err(Broken::Stream)) => {}
        }
        drop::<Entered<'_>>(entered);
    }

    fn talk(&self, stream: &dyn Stream) -> Result<(), Broken> {
        let place = Place { stream, options: &self.options, stats: &self.stats, stopping: &self.stopping };
        if let Some((session, input)) = negotiate(&place, &*self.exports)? {
            self.stats.negotiated.add(1);
            Connection::run(&place, session, input);
        }
        Ok(())
    }
}
