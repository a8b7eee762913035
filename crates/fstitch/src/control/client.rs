//! The commands' end of the control socket.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use super::{Request, Response, Status};
use crate::mounts;

/// How long a daemon may take for its status.
const PATIENCE: Duration = Duration::from_secs(3);
/// What is said of one that takes longer.
const STUCK: &str = "the mount's daemon does not answer: it is stuck, or stopped. If it stays so, end it with `kill -9`: \
                     what reached the medium is there at the next mount";

/// A connection to a daemon.
pub struct Connection {
    stream: BufReader<UnixStream>,
}

impl Connection {
    /// Connects to a socket.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        Ok(Self { stream: BufReader::new(UnixStream::connect(path)?) })
    }

    /// Connects to the daemon that serves `mountpoint`; `None` if there is none that we may talk to.
    pub fn to_mount(mountpoint: &Path) -> Option<Self> {
        let absolute = absolute(mountpoint);
        let name = super::socket_name(&absolute);
        [super::runtime_dir(), PathBuf::from("/run/fstitch")]
            .iter()
            .find_map(|dir| Self::open(&dir.join(&name)).ok())
    }

    /// The same, with an error that says what to do.
    pub fn required(mountpoint: &Path) -> Result<Self> {
        Self::to_mount(mountpoint).ok_or_else(|| silence(mountpoint))
    }

    /// This connection, if it does not lead to this very process.
    fn of_another(self) -> Option<Self> {
        let peer = rustix::net::sockopt::socket_peercred(self.stream.get_ref()).ok()?;
        (peer.pid != rustix::process::getpid()).then_some(self)
    }

    /// Sends a request and waits for its (first) answer.
    pub fn ask(&mut self, request: &Request) -> Result<Response> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line)?;
        self.next()?.context("the mount's daemon closed the connection without an answer")
    }

    /// Says that nothing more will be asked, which ends a trace.
    pub fn send_no_more(&self) -> std::io::Result<()> {
        self.stream.get_ref().shutdown(std::net::Shutdown::Write)
    }

    /// The next answer; `None` when the daemon has gone.
    pub fn next(&mut self) -> Result<Option<Response>> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(serde_json::from_str(&line)?)),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(None),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => bail!("{STUCK}"),
            Err(error) => Err(error.into()),
        }
    }

    /// What follows the answers, as bytes.
    pub fn rest(&mut self) -> &mut impl std::io::Read {
        &mut self.stream
    }

    /// The status behind this connection. Unlike other answers it is there at once, so that one stuck daemon keeps nobody
    /// waiting for ever.
    pub fn status(mut self) -> Result<Status> {
        self.stream.get_ref().set_read_timeout(Some(PATIENCE))?;
        match self.ask(&Request::Status)? {
            Response::Status(status) => Ok(*status),
            Response::Error(text) => bail!("{text}"),
            other => bail!("an unexpected answer: {other:?}"),
        }
    }
}

/// Why nobody answers for `mountpoint`, and what to do.
fn silence(mountpoint: &Path) -> anyhow::Error {
    let shown = mountpoint.display();
    match mounts::at(&absolute(mountpoint)) {
        None => anyhow!("no fstitch mount answers at {shown}: `fstitch status` lists this user's mounts"),
        Some(found) if !found.is_ours() => anyhow!("{shown} is a mount of {}, not of fstitch", found.kind),
        Some(found) => anyhow!("{shown}: {}", why_silent(&found)),
    }
}

/// Why a mount of ours does not answer, and what to do.
pub fn why_silent(found: &mounts::Found) -> String {
    let mountpoint = found.mountpoint.display();
    if Connection::to_mount(&found.mountpoint).is_some() {
        return STUCK.to_owned();
    }
    if found.is_dead() {
        return format!(
            "its daemon is dead: `fstitch umount {mountpoint}` (or `fusermount3 -u {mountpoint}`) takes the mount \
             away; what reached the medium is there at the next mount"
        );
    }
    let directory = super::runtime_dir();
    format!(
        "its daemon has no control socket in {}: another user may have mounted it, or with another XDG_RUNTIME_DIR",
        directory.display()
    )
}

/// Connects to the daemon that serves the volume mounted at `path`, or in the file or device `path`.
pub fn of_mount_or_image(path: &Path) -> Result<Connection> {
    if let Some(connection) = Connection::to_mount(path) {
        return Ok(connection);
    }
    of_image(path, None)?.map_or_else(|| Connection::required(path), Ok)
}

/// Connects to the daemon that has the volume in the file or device `image` mounted, of several the one that starts at byte `offset`;
/// `None` if nobody has.
///
/// # Errors
/// If that daemon cannot be reached any more.
fn of_image(image: &Path, offset: Option<u64>) -> Result<Option<Connection>> {
    let is_it = |status: &Status| {
        offset.is_none_or(|offset| status.offset_bytes == offset)
            && crate::disks::same(Path::new(&status.image), image)
    };
    let found = all_mounts().into_iter().find(is_it);
    found.map(|status| Connection::required(Path::new(&status.mountpoint))).transpose()
}

/// Connects to the daemon of the mount at `path` or, where that is no directory, to the one that has the volume mounted that begins at
/// byte `start` of it; `None` if nobody has.
///
/// # Errors
/// If `path` is a directory and no mount of ours; those of `start`.
pub fn of_volume(path: &Path, start: impl FnOnce() -> Result<u64>) -> Result<Option<Connection>> {
    if path.is_dir() { Connection::required(path).map(Some) } else { of_image(path, Some(start()?)) }
}

/// Connects to the daemon that has the volume mounted at `path`, or in the file or device `path`; `None` if nobody has.
///
/// # Errors
/// If `path` is a directory and no mount of ours.
pub fn if_mounted(path: &Path) -> Result<Option<Connection>> {
    if path.is_dir() || mounts::at(&absolute(path)).is_some() {
        return Connection::required(path).map(Some);
    }
    Ok(of_mount_or_image(path).ok())
}

/// All mounts of this user whose daemon answers, in the order of their mount points. A daemon does not ask itself: it may be in the
/// middle of something.
pub fn all_mounts() -> Vec<Status> {
    let Ok(entries) = std::fs::read_dir(super::runtime_dir()) else {
        return Vec::new();
    };
    let sockets = entries.flatten().map(|entry| entry.path());
    let sockets = sockets.filter(|path| path.extension().is_some_and(|extension| extension == "sock"));
    let mut found: Vec<Status> =
        sockets.filter_map(|path| Connection::open(&path).ok()?.of_another()?.status().ok()).collect();
    found.sort_by(|a, b| a.mountpoint.cmp(&b.mountpoint));
    found
}

/// The path as the daemon knows it. A mount whose daemon is dead cannot be examined, so only the parent
/// directory is resolved.
pub fn absolute(mountpoint: &Path) -> PathBuf {
    let lexical = std::path::absolute(mountpoint).unwrap_or_else(|_| mountpoint.to_path_buf());
    match (lexical.parent().map(Path::canonicalize), lexical.file_name()) {
        (Some(Ok(parent)), Some(name)) => {
            let joined = parent.join(name);
            // The last component may be a symbolic link itself; reading it does not touch what it names.
            match std::fs::read_link(&joined) {
                Ok(_) => joined.canonicalize().unwrap_or(joined),
                Err(_) => joined,
            }
        }
        _ => lexical,
    }
}
