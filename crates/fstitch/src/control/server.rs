//! The daemon's end of the control socket.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};

use super::{Cut, Progress, Request, Response, Status};

/// Connections served at a time; further ones are told to come back.
const CONNECTIONS_MAX: usize = 32;
/// Longest request, in bytes.
const REQUEST_MAX: u64 = 4096;
/// How often a waiting client hears of the progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// What the daemon lets clients see and do.
pub trait Served: Send + Sync + 'static {
    /// For `status`.
    fn status(&self) -> Status;
    /// For `stats`.
    fn stats(&self) -> Result<crate::stats::Stats>;
    /// For `fsck`.
    fn fsck(&self, repair: bool) -> Result<crate::fsck::Report>;
    /// For `sync`.
    fn sync(&self) -> Result<()>;
    /// For `reopen`.
    fn reopen(&self) -> Result<()>;
    /// For `cut`.
    fn cut(&self, survivors: &str, flush: u64) -> Result<Cut>;
}

/// How the mount ended: `None` while it lasts.
type End = Option<Result<(), String>>;

struct Shared {
    served: Arc<dyn Served>,
    end: Mutex<End>,
    ended: Condvar,
    connections: AtomicUsize,
}

/// A listening control socket; its file vanishes when this is dropped.
pub struct Server {
    path: Option<PathBuf>,
    shared: Arc<Shared>,
}

impl Server {
    /// Listens for requests about the mount at `mountpoint`.
    pub fn start(mountpoint: &Path, served: Arc<dyn Served>) -> Result<Self> {
        let path = super::prepare_runtime_dir()?.join(super::socket_name(mountpoint));
        Self::start_at(path, served)
    }

    fn start_at(path: PathBuf, served: Arc<dyn Served>) -> Result<Self> {
        // A socket of that name belongs to a daemon that was killed, or that is hidden below this mount.
        if path.exists() {
            std::fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
        }
        let listener =
            UnixListener::bind(&path).with_context(|| format!("listening on {}", path.display()))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        let connections = AtomicUsize::new(0);
        let shared = Arc::new(Shared { served, end: Mutex::new(None), ended: Condvar::new(), connections });
        let for_thread = Arc::clone(&shared);
        std::thread::Builder::new().name("control".into()).spawn(move || accept(&listener, &for_thread))?;
        Ok(Self { path: Some(path), shared })
    }

    /// Tells everybody who waits how the unmount ended, and gives them a moment to hear it.
    pub fn finish(mut self, result: Result<(), String>) {
        // Before anybody hears of the end: who hears it may mount again at once, with a socket of the same name.
        self.remove_socket();
        *self.shared.end.lock().expect("no panic while held") = Some(result);
        self.shared.ended.notify_all();
        let deadline = Duration::from_secs(2);
        let mut waited = Duration::ZERO;
        while self.shared.connections.load(Ordering::Acquire) > 0 && waited < deadline {
            std::thread::sleep(Duration::from_millis(5));
            waited += Duration::from_millis(5);
        }
    }
}

impl Server {
    /// Removes our socket, once: later there may be another daemon's in its place.
    fn remove_socket(&mut self) {
        if let Some(path) = self.path.take() {
            // The file may be gone already, with its directory; nothing depends on it.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.remove_socket();
    }
}

fn accept(listener: &UnixListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if shared.connections.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS_MAX {
            shared.connections.fetch_sub(1, Ordering::AcqRel);
            // A client that went away meanwhile needs no answer.
            let _ = send(&stream, &Response::Error("too many clients at once; try again".into()));
            continue;
        }
        let for_thread = Arc::clone(shared);
        let spawned = std::thread::Builder::new().name("control-client".into()).spawn(move || {
            if let Err(error) = serve(&stream, &for_thread) {
                tracing::debug!("a control client went away: {error:#}");
            }
            for_thread.connections.fetch_sub(1, Ordering::AcqRel);
        });
        if spawned.is_err() {
            shared.connections.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

fn serve(stream: &UnixStream, shared: &Shared) -> Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut line = String::new();
    BufReader::new(std::io::Read::take(stream, REQUEST_MAX)).read_line(&mut line)?;
    let response = match serde_json::from_str(&line) {
        Ok(Request::Wait) => return wait(stream, shared),
        Ok(request) => answer(&request, &*shared.served),
        Err(error) => Response::Error(format!("this is no request: {error}")),
    };
    send(stream, &response)
}

fn answer(request: &Request, served: &dyn Served) -> Response {
    let result = match request {
        Request::Status => Ok(Response::Status(Box::new(served.status()))),
        Request::Stats => served.stats().map(|stats| Response::Stats(Box::new(stats))),
        Request::Fsck { repair } => served.fsck(*repair).map(Response::Fsck),
        Request::Sync => served.sync().map(|()| Response::Synced),
        Request::Reopen => served.reopen().map(|()| Response::Reopened),
        Request::Cut { survivors, flush } => served.cut(survivors, *flush).map(Response::Cut),
        Request::Wait => Ok(Response::Error("waiting is answered elsewhere".into())),
    };
    result.unwrap_or_else(|error| Response::Error(crate::output::reasons(&error)))
}

fn wait(stream: &UnixStream, shared: &Shared) -> Result<()> {
    let mut end = shared.end.lock().expect("no panic while held");
    loop {
        if let Some(result) = &*end {
            let response = match result {
                Ok(()) => Response::Unmounted,
                Err(text) => Response::Error(text.clone()),
            };
            return send(stream, &response);
        }
        drop(end);
        let dirty_bytes = shared.served.status().dirty_bytes;
        send(stream, &Response::Progress(Progress { dirty_bytes }))?;
        let held = shared.end.lock().expect("no panic while held");
        end = match &*held {
            Some(_) => held,
            None => shared.ended.wait_timeout(held, PROGRESS_INTERVAL).expect("no panic while held").0,
        };
    }
}

fn send(mut stream: &UnixStream, response: &Response) -> Result<()> {
    let mut line = serde_json::to_vec(response)?;
    line.push(b'\n');
    Ok(stream.write_all(&line)?)
}

#[cfg(test)]
mod tests {
    use super::super::client::Connection;
    use super::*;

    struct Fixed;

    impl Served for Fixed {
        fn status(&self) -> Status {
            Status { pid: 7, dirty_bytes: 9, ..Status::default() }
        }
        fn stats(&self) -> Result<crate::stats::Stats> {
            Ok(crate::stats::Stats::default())
        }
        fn fsck(&self, repair: bool) -> Result<crate::fsck::Report> {
            anyhow::ensure!(!repair, "cannot repair");
            Ok(crate::fsck::Report::default())
        }
        fn sync(&self) -> Result<()> {
            Ok(())
        }
        fn reopen(&self) -> Result<()> {
            anyhow::bail!("cannot write")
        }
        fn cut(&self, survivors: &str, flush: u64) -> Result<Cut> {
            anyhow::ensure!(survivors == "all", "only all");
            Ok(Cut { survived: 3, lost: flush, unwritten: 0 })
        }
    }

    #[test]
    fn requests_are_answered() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let server = Server::start_at(path.clone(), Arc::new(Fixed)).unwrap();
        let ask = |request: &Request| Connection::open(&path).unwrap().ask(request).unwrap();
        assert!(matches!(ask(&Request::Status), Response::Status(status) if status.pid == 7));
        assert!(matches!(ask(&Request::Sync), Response::Synced));
        assert_eq!(ask(&Request::Fsck { repair: true }), Response::Error("cannot repair".into()));
        assert_eq!(ask(&Request::Reopen), Response::Error("cannot write".into()));
        let cut = |survivors: &str| ask(&Request::Cut { survivors: survivors.into(), flush: 5 });
        assert_eq!(cut("all"), Response::Cut(Cut { survived: 3, lost: 5, unwritten: 0 }));
        assert_eq!(cut("none"), Response::Error("only all".into()));
        server.finish(Ok(()));
        assert!(!path.exists());
    }

    #[test]
    fn a_waiting_client_hears_of_progress_and_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let server = Server::start_at(path.clone(), Arc::new(Fixed)).unwrap();
        let mut waiting = Connection::open(&path).unwrap();
        let first = waiting.ask(&Request::Wait).unwrap();
        assert_eq!(first, Response::Progress(Progress { dirty_bytes: 9 }));
        server.finish(Err("the disk burned".into()));
        let last = std::iter::from_fn(|| waiting.next().unwrap()).last();
        assert_eq!(last, Some(Response::Error("the disk burned".into())));
    }
}
