//! The control socket of a server of volumes: units begin and end there, and volumes come and go while others are in use.
//!
//! A line is a request or an answer, in JSON. A unit belongs to the connection on which it began: when that is lost, the unit is
//! aborted.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result, bail};
use fstitch_lld::{EndError, Volumes};
use serde::{Deserialize, Serialize};

use super::exports::{Served, TOKEN, is_token};
use super::stats::Stats;
use super::volume::Shown;
use crate::mkfs::uuid;

/// A request that is longer is none.
const LINE_MAX: u64 = 4096;

/// What is asked. Names are a contract (`docs/lld.md`).
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Begins a unit.
    Begin,
    /// Ends the unit of this token: everything happens at once, and is stable with `durable`.
    End {
        token: String,
        #[serde(default = "yes")]
        durable: bool,
    },
    /// Nothing of the unit of this token happens.
    Abort { token: String },
    /// What the disk and its server have done.
    Stats,
    /// The volumes.
    Volumes,
    /// Makes a volume.
    Create { name: String, size_bytes: u64 },
    /// Gives a volume another size.
    Resize { name: String, size_bytes: u64 },
    /// Removes a volume that nobody has open.
    Remove { name: String },
}

fn yes() -> bool {
    true
}

/// What is answered.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// A unit has begun.
    Begun { token: String },
    /// It was done.
    Done,
    /// What was asked for.
    Stats(Box<Stats>),
    /// All that there are, by their names.
    Volumes(Vec<Shown>),
    /// It was not done.
    Failed { error: String },
}

/// Serves the socket until the process ends.
pub fn serve(path: &Path, served: &Arc<Served>) -> Result<()> {
    let listener = bind(path).with_context(|| path.display().to_string())?;
    let served = Arc::clone(served);
    thread::Builder::new().name("lld-control".to_owned()).spawn(move || {
        for stream in listener.incoming().flatten() {
            let served = Arc::clone(&served);
            // Without a thread there is no connection: the client finds it closed.
            let _ = thread::Builder::new().name("lld-units".to_owned()).spawn(move || talk(&served, &stream));
        }
    })?;
    Ok(())
}

/// Listens at a socket; one that a killed server has left is taken over.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_abandoned(path) => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        done => done,
    }
}

fn is_abandoned(path: &Path) -> bool {
    UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Units that began on one connection; those that are left when it ends are aborted.
struct Begun<'a> {
    served: &'a Served,
    tokens: BTreeSet<String>,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        for token in &self.tokens {
            drop(self.served.units.take(token).and_then(|unit| unit.take()));
        }
    }
}

fn talk(served: &Served, stream: &UnixStream) {
    let mut begun = Begun { served, tokens: BTreeSet::new() };
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = String::new();
        match io::Read::take(&mut lines, LINE_MAX).read_line(&mut line) {
            Ok(len) if len > 0 && line.ends_with('\n') => {}
            _ => return,
        }
        let answer = match serde_json::from_str(&line) {
            Ok(request) => answer(&mut begun, request),
            Err(error) => Answer::Failed { error: format!("not a request: {error}") },
        };
        if send(stream, &answer).is_err() {
            return;
        }
    }
}

fn answer(begun: &mut Begun<'_>, request: Request) -> Answer {
    let done = match request {
        Request::Begin => match begin(begun) {
            Ok(token) => return Answer::Begun { token },
            Err(error) => Err(error),
        },
        Request::End { token, durable } => end(begun, &token, durable),
        Request::Abort { token } => find(begun, &token).map(|unit| drop(unit.take())),
        Request::Stats => return Answer::Stats(Box::new(Stats::of(begun.served))),
        Request::Volumes => match begun.served.shown() {
            Ok(volumes) => return Answer::Volumes(volumes),
            Err(error) => Err(error.into()),
        },
        Request::Create { name, size_bytes } => change(begun, &name, |all| all.create(&name, size_bytes)),
        Request::Resize { name, size_bytes } => change(begun, &name, |all| all.resize(&name, size_bytes)),
        Request::Remove { name } => change(begun, &name, |all| all.remove(&name)),
    };
    match done {
        Ok(()) => Answer::Done,
        Err(error) => Answer::Failed { error: crate::output::reasons(&error) },
    }
}

fn change(
    begun: &Begun<'_>,
    name: &str,
    work: impl FnOnce(&Volumes) -> fstitch_core::Result<()>,
) -> Result<()> {
    work(&begun.served.volumes).with_context(|| format!("volume {name}"))
}

fn begin(begun: &mut Begun<'_>) -> Result<String> {
    let token: String = uuid(None)?.iter().map(|byte| format!("{byte:02x}")).collect();
    debug_assert_eq!(token.len(), TOKEN);
    begun.served.units.begin(&token, &begun.served.volumes);
    begun.tokens.insert(token.clone());
    Ok(token)
}

fn find(begun: &mut Begun<'_>, token: &str) -> Result<Arc<fstitch_lld::Shared>> {
    if !is_token(token) || !begun.tokens.remove(token) {
        bail!("no unit of this connection has the token {token:?}");
    }
    begun.served.units.take(token).context("the unit has ended")
}

fn end(begun: &mut Begun<'_>, token: &str, durable: bool) -> Result<()> {
    let unit = find(begun, token)?.take().context("the unit has ended")?;
    let done = if durable { unit.end_durable() } else { unit.end() };
    done.map_err(|error: EndError| error.into())
}

/// Sends one line.
pub fn send<T: Serialize>(mut stream: &UnixStream, value: &T) -> Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(stream.write_all(&line)?)
}

/// Whether there is a socket at a path, not a disk.
pub fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// A client's side.
pub struct Client {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Client {
    /// Connects to a server.
    pub fn new(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path).with_context(|| path.display().to_string())?;
        let lines = BufReader::new(stream.try_clone()?);
        Ok(Self { stream, lines })
    }

    /// Asks, and waits for the answer.
    pub fn ask(&mut self, request: &Request) -> Result<Answer> {
        send(&self.stream, request)?;
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            bail!("the server is gone");
        }
        match serde_json::from_str(&line)? {
            Answer::Failed { error } => bail!("{error}"),
            answer => Ok(answer),
        }
    }
}
