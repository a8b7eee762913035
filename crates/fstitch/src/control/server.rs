//! The daemon's end of the control socket.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use fstitch_core::lock::Unpoisoned;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::graph::Graph;
use super::trace::{Batch, Happened, Head};
use super::{Cut, Progress, Request, Response, SnapshotChange, Status};

/// Connections served at a time; further ones are told to come back.
const CONNECTIONS_MAX: usize = 32;
/// Longest request, in bytes.
const REQUEST_MAX: u64 = 4096;
/// How often a waiting client hears of the progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// How often a client hears what became of patches.
const TRACE_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// After so many times without news it hears that there are none.
const TRACE_SILENCE: u64 = 10;
/// Events of a line, at most.
const TRACE_LINE: usize = 4096;

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
    /// For `resize`.
    fn resize(&self, size: Option<&str>) -> Result<fstitch_formats::resize::Resized>;
    /// For `cut`.
    fn cut(&self, survivors: &str, flush: u64) -> Result<Cut>;
    /// For `graph`.
    fn graph(&self, limit: usize) -> Result<Graph>;
    /// For `health`.
    fn health(&self) -> Result<crate::shepherd::health::Health>;
    /// For `whose`.
    fn whose(&self, blocks: &[u64]) -> Result<crate::shepherd::whose::Whose>;
    /// For `disks`.
    fn disks(&self) -> Result<crate::disks::DiskList>;
    /// For `disk`: what is to be said.
    fn change_disks(&self, change: &crate::disks::Change) -> Result<String>;
    /// For `snapshots`.
    fn snapshots(&self, change: Option<&SnapshotChange>) -> Result<Vec<fstitch_formats::Snapshot>>;
    /// For `send`.
    fn send(&self, name: &str, since: Option<&str>, to: &mut dyn std::io::Write) -> Result<()>;
    /// For `scrub`.
    fn scrub(
        &self,
        from: u64,
        place: Option<fstitch_formats::ScrubPlace>,
    ) -> Result<crate::shepherd::scrub::Found>;
    /// For `trace`: from now on it is noted what becomes of patches. Fails where somebody has that done.
    fn begin_trace(&self) -> Result<Head>;
    /// What has happened since the last time.
    fn next_trace(&self) -> Result<Vec<Happened>>;
    /// The rest; nothing is noted any more.
    fn end_trace(&self) -> Vec<Happened>;
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
        *self.shared.end.lock().unpoisoned() = Some(result);
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
        Ok(Request::Trace) => return trace(stream, &*shared.served),
        Ok(Request::Send { name, since }) => {
            return send_snapshot(stream, &*shared.served, (&name, since.as_deref()));
        }
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
        Request::Resize { size } => served.resize(size.as_deref()).map(Response::Resized),
        Request::Cut { survivors, flush } => served.cut(survivors, *flush).map(Response::Cut),
        Request::Graph { limit } => served.graph(*limit).map(|graph| Response::Graph(Box::new(graph))),
        Request::Disks => served.disks().map(|list| Response::Disks { list, said: String::new() }),
        Request::Disk { change } => {
            served.change_disks(change).and_then(|said| Ok(Response::Disks { list: served.disks()?, said }))
        }
        Request::Health => served.health().map(|health| Response::Health(Box::new(health))),
        Request::Whose { blocks } => served.whose(blocks).map(Response::Whose),
        Request::Snapshots { change } => served.snapshots(change.as_ref()).map(Response::Snapshots),
        Request::Scrub { from, place } => served.scrub(*from, *place).map(Response::Scrub),
        Request::Wait | Request::Trace | Request::Send { .. } => {
            Ok(Response::Error("this is answered elsewhere".into()))
        }
    };
    result.unwrap_or_else(|error| Response::Error(crate::output::reasons(&error)))
}

fn wait(stream: &UnixStream, shared: &Shared) -> Result<()> {
    let mut end = shared.end.lock().unpoisoned();
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
        let held = shared.end.lock().unpoisoned();
        end = match &*held {
            Some(_) => held,
            None => shared.ended.wait_timeout(held, PROGRESS_INTERVAL).unpoisoned().0,
        };
    }
}

/// The stream of a snapshot, after an answer that it follows; what goes wrong before its first byte is the answer.
struct Follows<'a> {
    stream: &'a UnixStream,
    has_begun: bool,
}

impl std::io::Write for Follows<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if !self.has_begun {
            send(self.stream, &Response::Sending).map_err(std::io::Error::other)?;
            self.has_begun = true;
        }
        std::io::Write::write(&mut self.stream, bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::Write::flush(&mut self.stream)
    }
}

fn send_snapshot(
    stream: &UnixStream,
    served: &dyn Served,
    (name, since): (&str, Option<&str>),
) -> Result<()> {
    // Whoever takes the stream may be slow, and is not waited for without end.
    stream.set_write_timeout(Some(Duration::from_secs(600)))?;
    let mut follows = std::io::BufWriter::with_capacity(1 << 18, Follows { stream, has_begun: false });
    let done = served.send(name, since, &mut follows);
    match done {
        Ok(()) => Ok(std::io::Write::flush(&mut follows)?),
        // What was not written yet is not any more.
        Err(error) if !follows.into_parts().0.has_begun => {
            send(stream, &Response::Error(crate::output::reasons(&error)))
        }
        Err(error) => {
            tracing::warn!("sending snapshot `{name}`: {}", crate::output::reasons(&error));
            Ok(())
        }
    }
}

/// Tells what becomes of patches until the client sends no more, or goes away.
fn trace(stream: &UnixStream, served: &dyn Served) -> Result<()> {
    let head = match served.begin_trace() {
        Ok(head) => head,
        Err(error) => return send(stream, &Response::Error(crate::output::reasons(&error))),
    };
    // A client that does not read keeps nobody waiting for ever, and no memory: what finds no room is counted.
    stream.set_write_timeout(Some(Duration::from_secs(30)))?;
    let told = send(stream, &Response::TraceBegan(head)).and_then(|()| tell_until_end(stream, served));
    let rest = served.end_trace();
    let end = told?;
    send_events(stream, rest)?;
    send(stream, &end)
}

/// Returns what is to be said last.
fn tell_until_end(stream: &UnixStream, served: &dyn Served) -> Result<Response> {
    let mut told_at = 0;
    for round in 0_u64.. {
        let events = match served.next_trace() {
            Ok(events) => events,
            Err(error) => return Ok(Response::Error(crate::output::reasons(&error))),
        };
        // Now and then a client hears that nothing happens, which tells whether it is there.
        if !events.is_empty() || round >= told_at + TRACE_SILENCE {
            told_at = round;
            send_events(stream, events)?;
        }
        let mut poll = [PollFd::new(stream, PollFlags::IN)];
        if rustix::event::poll(&mut poll, Some(&TRACE_INTERVAL))? > 0 {
            break;
        }
    }
    Ok(Response::TraceEnded)
}

fn send_events(stream: &UnixStream, events: Vec<Happened>) -> Result<()> {
    if events.is_empty() {
        return send(stream, &Response::Trace(Batch::default()));
    }
    for events in events.chunks(TRACE_LINE) {
        send(stream, &Response::Trace(Batch { events: events.to_vec() }))?;
    }
    Ok(())
}

fn send(mut stream: &UnixStream, response: &Response) -> Result<()> {
    let mut line = serde_json::to_vec(response)?;
    line.push(b'\n');
    Ok(stream.write_all(&line)?)
}

#[cfg(test)]
mod tests {
    use super::super::client::Connection;
    use super::super::trace::TraceEvent;
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
        fn resize(&self, size: Option<&str>) -> Result<fstitch_formats::resize::Resized> {
            anyhow::bail!("no size {size:?}")
        }
        fn cut(&self, survivors: &str, flush: u64) -> Result<Cut> {
            anyhow::ensure!(survivors == "all", "only all");
            Ok(Cut { survived: 3, lost: flush, unwritten: 0 })
        }
        fn graph(&self, limit: usize) -> Result<Graph> {
            Ok(Graph { patches: limit, ..Graph::default() })
        }
        fn health(&self) -> Result<crate::shepherd::health::Health> {
            anyhow::bail!("no policy")
        }
        fn whose(&self, blocks: &[u64]) -> Result<crate::shepherd::whose::Whose> {
            Ok(crate::shepherd::whose::Whose { others: blocks.len() as u64, ..Default::default() })
        }
        fn disks(&self) -> Result<crate::disks::DiskList> {
            Ok(crate::disks::DiskList::default())
        }
        fn change_disks(&self, _: &crate::disks::Change) -> Result<String> {
            anyhow::bail!("one disk")
        }
        fn send(&self, _: &str, _: Option<&str>, _: &mut dyn std::io::Write) -> Result<()> {
            anyhow::bail!("no snapshots here")
        }
        fn snapshots(&self, _: Option<&SnapshotChange>) -> Result<Vec<fstitch_formats::Snapshot>> {
            anyhow::bail!("no snapshots")
        }
        fn scrub(
            &self,
            from: u64,
            _place: Option<fstitch_formats::ScrubPlace>,
        ) -> Result<crate::shepherd::scrub::Found> {
            Ok(crate::shepherd::scrub::Found { next_block: Some(from), ..Default::default() })
        }
        fn begin_trace(&self) -> Result<Head> {
            Ok(Head { patches: 5, ..Head::default() })
        }
        fn next_trace(&self) -> Result<Vec<Happened>> {
            Ok(vec![Happened { at_us: 1, event: TraceEvent::Stalled }; TRACE_LINE + 1])
        }
        fn end_trace(&self) -> Vec<Happened> {
            vec![Happened { at_us: 2, event: TraceEvent::Poisoned }]
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
    fn a_trace_goes_on_until_the_client_sends_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let _server = Server::start_at(path.clone(), Arc::new(Fixed)).unwrap();
        let mut tracing = Connection::open(&path).unwrap();
        let first = tracing.ask(&Request::Trace).unwrap();
        assert!(matches!(first, Response::TraceBegan(head) if head.patches == 5));
        let mut sizes = Vec::new();
        for _ in 0..4 {
            let Some(Response::Trace(batch)) = tracing.next().unwrap() else { panic!("a batch is next") };
            sizes.push(batch.events.len());
        }
        assert_eq!(sizes, [TRACE_LINE, 1, TRACE_LINE, 1], "lines are bounded");
        tracing.send_no_more().unwrap();
        let rest: Vec<Response> = std::iter::from_fn(|| tracing.next().unwrap()).collect();
        let [.., Response::Trace(last), Response::TraceEnded] = &rest[..] else { panic!("{rest:?}") };
        assert_eq!(last.events, [Happened { at_us: 2, event: TraceEvent::Poisoned }]);
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
