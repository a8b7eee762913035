//! The process that serves a stack: a session for each mount point, each in a thread of its own, and an end in the
//! right order.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use fstitch_formats as formats;
use fstitch_fuse::{Mount, UnmountOnSignal, Unmounter};
use fstitch_patch::Placement;

use super::check::{Place as DevicePlace, Volume};
use super::look::look;
use super::open::{Member, Opened};
use super::running::{Running, planned};
use super::settle::Plan;
use crate::control::Status;
use crate::control::server::Server;
use crate::mount::daemon::{Daemon, Place, layered, mount_options};
use crate::mount::{DEFAULT_WORKERS, background};

/// How a volume ended, and whoever is to hear it when the whole stack has ended.
type Ended = (Result<()>, Option<Server>);

/// Opens the stack, mounts it, serves it until all of it is unmounted, and makes everything stable.
pub fn serve(plan: &Plan, place: Place) -> Result<()> {
    // Whatever can be known to be wrong is known before anything is changed.
    look(plan)?;
    let Opened { engine, volumes } = Opened::new(plan)?;
    let mut shown = planned(plan);
    for (shown, member) in shown.volumes.iter_mut().zip(&volumes) {
        member.volume.fs.format_name().clone_into(&mut shown.format);
        shown.consistency = member.volume.fs.consistency().to_string();
    }
    let running = Arc::new(Running::new(plan, shown, &engine));
    let mut served =
        Served { plan, running, threads: Vec::new(), unmounters: Vec::new(), daemons: Vec::new() };
    let mut failure = None;
    for (number, member) in volumes.into_iter().enumerate() {
        // After a failure the rest is served without mounts, which is the way to close it in the right order.
        let wanted = failure.is_none();
        if let Err(error) = served.start(number, member, wanted) {
            failure.get_or_insert(error);
        }
    }
    let started = match failure {
        None => served.announce(place),
        Some(error) => Err(error),
    };
    let (signals, result) = match started {
        Ok(signals) => (Some(signals), Ok(())),
        Err(error) => {
            served.detach();
            (None, Err(error))
        }
    };
    let (ended, waiting) = served.join();
    drop(signals);
    // The media are closed, and their locks given back, before anybody hears of the end.
    drop(engine);
    let result = result.and(ended);
    for server in waiting {
        server.finish(result.as_ref().map(|_| ()).map_err(crate::output::reasons));
    }
    result
}

/// The volumes of a stack that are served.
struct Served<'a> {
    plan: &'a Plan,
    running: Arc<Running>,
    threads: Vec<JoinHandle<Ended>>,
    /// Of the mounts, outer ones first.
    unmounters: Vec<Unmounter>,
    daemons: Vec<(Arc<Daemon>, bool)>,
}

impl Served<'_> {
    /// Mounts a volume, if that is `wanted`, and begins to serve it. It is served in any case, so that it is closed when
    /// its turn comes.
    fn start(&mut self, number: usize, member: Member, wanted: bool) -> Result<()> {
        let described = &self.plan.stack.volumes[number];
        let mountpoint = described.mountpoint.as_deref().filter(|_| wanted);
        let mount = mountpoint.map(|at| self.mount(described, &member, at)).transpose();
        let (mount, mut failure) = match mount {
            Ok(mount) => (mount, None),
            Err(error) => (None, Some(error)),
        };
        let (daemon, session) = self.session(number, member, mount);
        let server = match mountpoint.filter(|_| failure.is_none()) {
            Some(at) => {
                Server::start(at, Arc::clone(&daemon) as _).map_err(|error| failure = Some(error)).ok()
            }
            None => None,
        };
        if let Some(mount) = &session.mount {
            self.unmounters.push(mount.unmounter());
        }
        let session = Session { server, ..session };
        let name = format!("volume-{number}");
        let thread = std::thread::Builder::new().name(name).spawn(move || session.run());
        self.threads.push(thread.inspect_err(|_| {
            self.running.closed(number);
        })?);
        match failure {
            None => Ok(()),
            Some(error) => Err(error.context(format!("volume `{}`", described.name))),
        }
    }

    fn mount(&self, described: &Volume, member: &Member, at: &Path) -> Result<Mount> {
        let workers = described.options.workers.unwrap_or(DEFAULT_WORKERS);
        let places = (self.source(described), at);
        let options = mount_options(&described.options, places, workers, member.volume.fs.consistency())?;
        let shown = layered(Arc::clone(&member.volume.fs) as _, &described.options)?;
        Ok(Mount::new(shown, &options)?)
    }

    /// What is mounted, for people: a path of this machine, or a volume and a path in it.
    fn source(&self, described: &Volume) -> String {
        match &self.plan.stack.devices[described.device].place {
            DevicePlace::File { volume, path } => format!("{}:{path}", self.plan.stack.volumes[*volume].name),
            DevicePlace::Medium { path, .. } => {
                let extent = self.plan.extents[described.device].as_ref();
                extent.map_or(path, |extent| &extent.path).display().to_string()
            }
        }
    }

    /// What serves a volume until its end.
    fn session(&mut self, number: usize, member: Member, mount: Option<Mount>) -> (Arc<Daemon>, Session) {
        let described = &self.plan.stack.volumes[number];
        let extent = self.plan.extents[described.device].as_ref();
        let status = Status {
            image: self.source(described),
            mountpoint: described.mountpoint.as_ref().map(|at| at.display().to_string()).unwrap_or_default(),
            transport: mount.as_ref().map(|mount| mount.transport().to_string()).unwrap_or_default(),
            ..Status::default()
        };
        let mut options = described.options.clone();
        options.offset = extent.map_or(0, |extent| extent.start);
        let running = Arc::clone(&self.running);
        let tell = move || running.status(number);
        let fs = Arc::clone(&member.volume.fs);
        let daemon = Daemon::new(status, &options, member.volume, mount.as_ref()).in_stack(Box::new(tell));
        let daemon = Arc::new(daemon);
        self.daemons.push((Arc::clone(&daemon), !options.read_only && !options.no_recovery));
        let session = Session {
            number,
            running: Arc::clone(&self.running),
            fs,
            mount,
            daemon: Arc::clone(&daemon),
            placements: member.placements,
            server: None,
        };
        (daemon, session)
    }

    /// Everything is mounted: says so, and has signals end it.
    fn announce(&mut self, place: Place) -> Result<UnmountOnSignal> {
        let inner_first = self.unmounters.iter().rev().cloned().collect();
        let signals = UnmountOnSignal::install(inner_first, |line| eprintln!("fstitch: {line}"))
            .context("taking over signals")?;
        if place == Place::Background {
            background::report_ready()?;
        }
        for (daemon, wanted) in std::mem::take(&mut self.daemons) {
            if wanted {
                Daemon::recover(&daemon)?;
            }
            Daemon::let_go(&daemon)?;
        }
        Ok(signals)
    }

    /// Takes all mounts out of sight, inner ones first.
    fn detach(&self) {
        for unmounter in self.unmounters.iter().rev() {
            if let Err(error) = unmounter.detach() {
                tracing::warn!("{error}");
            }
        }
    }

    /// Waits until all volumes are closed.
    fn join(self) -> (Result<()>, Vec<Server>) {
        let mut result = Ok(());
        let mut waiting = Vec::new();
        for thread in self.threads {
            let (ended, server) =
                thread.join().unwrap_or_else(|_| (Err(anyhow!("a panic in a thread of the stack")), None));
            result = result.and(ended);
            waiting.extend(server);
        }
        (result, waiting)
    }
}

/// A volume that is served until its end.
struct Session {
    number: usize,
    running: Arc<Running>,
    fs: Arc<dyn formats::Volume>,
    mount: Option<Mount>,
    daemon: Arc<Daemon>,
    placements: Vec<Arc<dyn Placement>>,
    server: Option<Server>,
}

/// Whatever happens in a session, nobody waits for its volume after it.
struct Last<'a>(&'a Running, usize);

impl Drop for Last<'_> {
    fn drop(&mut self) {
        self.0.closed(self.1);
    }
}

impl Session {
    fn run(self) -> Ended {
        let Self { number, running, fs, mount, daemon, placements, server } = self;
        let _last = Last(&running, number);
        let result = match mount {
            Some(mount) => mount.run_then(|| running.left(number)).map_err(anyhow::Error::from),
            None => {
                running.left(number);
                fs.unmount().map_err(anyhow::Error::from)
            }
        };
        drop(fs);
        let result = result.and(daemon.close());
        // The files that it was in are free now, and the volumes that they are in may be closed.
        drop(placements);
        let goes_on = running.closed(number);
        match server {
            Some(server) if goes_on => {
                server.finish(result.as_ref().map(|_| ()).map_err(crate::output::reasons));
                (result, None)
            }
            server => (result, server),
        }
    }
}
