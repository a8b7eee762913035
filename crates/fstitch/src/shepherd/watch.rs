//! Who hears of faults: the log, a command of the user's, and who asks later which blocks are damaged.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

use anyhow::{Context, Result};
use fstitch_core::lock::Unpoisoned;
use fstitch_core::{BlockNo, Clock, SystemClock};
use fstitch_shepherd::engine::Incident;
use fstitch_shepherd::model::{Event, Seen};

/// Lines of the log in a minute: a disk that fails with everything must not fill another one.
const LINES_MAX: u64 = 100;
const MINUTE: Duration = Duration::from_secs(60);
/// Faults that wait for the command; of more it is told how many there were.
const WAITING_MAX: usize = 64;

/// A command that is run on faults of which the policy says `notify`, one after the other.
#[derive(Clone)]
pub struct Hook {
    sender: SyncSender<Told>,
    missed: Arc<AtomicU64>,
}

/// What the command is told.
struct Told {
    incident: Incident,
    missed: u64,
}

impl Hook {
    /// Runs `command` by the shell, for the volume of this name.
    pub fn start(command: String, name: String) -> Result<Self> {
        let (sender, receiver) = sync_channel::<Told>(WAITING_MAX);
        std::thread::Builder::new()
            .name("on-fault".into())
            .spawn(move || receiver.into_iter().for_each(|told| run(&command, &name, &told)))
            .context("starting the thread for `on_fault`")?;
        Ok(Self { sender, missed: Arc::default() })
    }

    fn tell(&self, incident: &Incident) {
        let missed = self.missed.swap(0, Ordering::Relaxed);
        if self.sender.try_send(Told { incident: incident.clone(), missed }).is_err() {
            self.missed.fetch_add(missed + 1, Ordering::Relaxed);
        }
    }
}

/// Everything is said by the environment, so that nothing of it is taken for a word of the command.
fn run(command: &str, name: &str, told: &Told) {
    let incident = &told.incident;
    let ended = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .env("FSTITCH_IMAGE", name)
        .env("FSTITCH_KIND", incident.kind.name())
        .env("FSTITCH_DIRECTION", incident.direction.name())
        .env("FSTITCH_BLOCK", incident.block.to_string())
        .env("FSTITCH_STORY", incident.to_string())
        .env("FSTITCH_MISSED", told.missed.to_string())
        .status();
    match ended {
        Ok(status) if status.success() => {}
        Ok(status) => tracing::warn!("the command of `on_fault` ended with {status}"),
        Err(error) => tracing::warn!("the command of `on_fault` cannot be run: {error}"),
    }
}

/// Blocks that are remembered.
const NOTED_MAX: usize = 1000;

/// Blocks that somebody asked for in vain since the volume was opened.
#[derive(Default)]
pub(super) struct Noted {
    blocks: Mutex<BTreeSet<BlockNo>>,
    /// Threads whose faults nobody is to hear of.
    quiet: Mutex<Vec<ThreadId>>,
}

impl Noted {
    /// All of them.
    pub(super) fn blocks(&self) -> Vec<BlockNo> {
        self.blocks.lock().unpoisoned().iter().copied().collect()
    }

    /// Blocks of which somebody knows otherwise that they are damaged.
    pub(super) fn add(&self, blocks: &[BlockNo]) {
        let mut noted = self.blocks.lock().unpoisoned();
        let room = NOTED_MAX.saturating_sub(noted.len());
        noted.extend(blocks.iter().take(room));
    }

    /// Does something in this thread whose faults nobody hears of: a command that is told of a fault, and asks what was hurt, would else be told
    /// of the faults that are met on the way to the answer.
    pub(super) fn quietly<T>(&self, work: impl FnOnce() -> T) -> T {
        self.quiet.lock().unpoisoned().push(std::thread::current().id());
        let done = work();
        self.quiet.lock().unpoisoned().retain(|thread| *thread != std::thread::current().id());
        done
    }

    fn is_quiet(&self) -> bool {
        self.quiet.lock().unpoisoned().contains(&std::thread::current().id())
    }
}

/// Lines that were written in this minute.
struct Lines {
    since: Duration,
    count: u64,
}

/// What is called for each fault.
pub(super) fn watch(
    name: String,
    hook: Option<Hook>,
    noted: Arc<Noted>,
) -> Arc<dyn Fn(&Incident) + Send + Sync> {
    let clock = SystemClock::new();
    let lines = Mutex::new(Lines { since: clock.elapsed(), count: 0 });
    Arc::new(move |incident| {
        if noted.is_quiet() {
            return;
        }
        if incident.seen != Seen::Right {
            noted.add(&[incident.block]);
        }
        if let Some(hook) = &hook
            && incident.events.contains(&Event::Notified)
        {
            hook.tell(incident);
        }
        let mut lines = lines.lock().unpoisoned();
        if clock.elapsed() > lines.since + MINUTE {
            if lines.count > LINES_MAX {
                tracing::warn!("{name}: {} more faults in the last minute", lines.count - LINES_MAX);
            }
            *lines = Lines { since: clock.elapsed(), count: 0 };
        }
        lines.count += 1;
        if lines.count <= LINES_MAX {
            tracing::warn!("{name}: {incident}");
        }
    })
}
