//! The thread that writes dirty blocks by age and pressure.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use fstitch_core::{BlockNo, Error, IoOp, Result};

use super::journal::Journal;
use super::step::{Goal, Progress};
use super::{Cache, Core, Shared};
use crate::observer::What;

/// How often ages are looked at: this often, or twice in the shortest of them.
const TICK: Duration = Duration::from_secs(1);
const TICK_MIN: Duration = Duration::from_millis(5);
/// How long to wait for operations under way when room is wanted and only their end can bring more to write.
const STUCK: Duration = Duration::from_millis(2);

/// How long contents stay in memory, when there is much to write, before they are written although nobody waits for them: files
/// are mostly written at once.
const EARLY_AGE: Duration = Duration::from_millis(100);
/// How often contents are looked for that are so old.
const EARLY_TICK: Duration = Duration::from_millis(20);

/// What the flusher writes.
#[derive(Clone, Copy, Debug)]
enum Round {
    /// Whatever makes room.
    Room,
    /// Contents of files, while there is much to write.
    Early,
    /// What is old.
    Age,
}

/// A running flusher thread.
pub(super) struct Flusher {
    thread: JoinHandle<()>,
}

impl Cache {
    /// Starts the thread that writes dirty blocks by age and pressure. Without it, `reserve` and syncs write
    /// inline (tests, the laboratory, offline tools). It ends when the cache is dropped.
    ///
    /// # Errors
    /// [`Error::Io`] if the thread cannot be started.
    pub fn start_flusher(&self) -> Result<()> {
        let mut flusher = self.flusher.lock();
        if flusher.is_some() {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        let builder = std::thread::Builder::new().name("fstitch-flusher".to_owned());
        let thread = builder
            .spawn(move || {
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| shared.flush_forever())) {
                    shared.end_after_panic(&*panic);
                }
            })
            .map_err(|error| Error::io(IoOp::Write, BlockNo(0), error))?;
        self.shared.core().has_flusher = true;
        *flusher = Some(Flusher { thread });
        Ok(())
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        if self.mapping.0.is_some() {
            self.shared.core().leave_volume(self.volume);
            self.shared.seals.leave(self.holder);
            return;
        }
        if let Some(flusher) = self.flusher.get_mut().take() {
            self.shared.core().stop = true;
            self.shared.kick.notify_all();
            // A panic of the thread was reported when it happened; there is nobody left to tell.
            drop(flusher.thread.join());
        }
        // A journal that was not unmounted holds blocks, and these the cache, which would keep its device for ever.
        let journals = self.shared.core().take_journals();
        drop(journals);
    }
}

impl Shared {
    /// The flusher panicked. Its epoch may be half taken, so nothing more is written; whoever waits is told, every later sync fails,
    /// and what is in memory can still be read, and copied elsewhere.
    fn end_after_panic(&self, panic: &(dyn Any + Send)) {
        let what = panic.downcast_ref::<&str>().copied();
        let what =
            what.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
        let why =
            format!("the flusher panicked: {what}; changes that were not stable by then are in memory only");
        // Said over what a lock says of itself that was held: this is where it comes from.
        let mut core = self.core();
        core.poison = Some(Error::Poisoned(why.into()));
        core.tell(|_| What::Poisoned);
        drop(core);
        self.changed.notify_all();
    }

    fn flush_forever(&self) {
        let mut stuck = false;
        let mut aged_at = self.clock.elapsed();
        while let Some(round) = self.next_round(stuck, aged_at) {
            let wrote = match round {
                Round::Early => self.write_early(EARLY_AGE).map(|progress| progress != Progress::Idle),
                Round::Room => self.write_round(true),
                Round::Age => {
                    aged_at = self.clock.elapsed();
                    self.write_round(false)
                }
            };
            let Ok(wrote) = wrote else {
                // The cache is poisoned, and everybody who asks is told; nothing is written any more.
                self.wait_for_stop();
                return;
            };
            stuck = !wrote;
        }
    }

    /// What to do next, waiting until it is time. `stuck` tells that the last round could write nothing, `aged_at` when ages were
    /// looked at. `None` at the end.
    fn next_round(&self, stuck: bool, aged_at: Duration) -> Option<Round> {
        let mut core = self.core();
        let pause = match (self.wants_room(&core), self.is_early(&core)) {
            (true, _) => stuck.then_some(STUCK),
            (false, true) => stuck.then_some(EARLY_TICK),
            (false, false) => Some(self.tick(&core)),
        };
        if let Some(pause) = pause
            && !core.stop
        {
            core = self.wait_for_kick(core, pause);
        }
        if core.stop {
            return None;
        }
        let ages_can_wait = self.clock.elapsed() < aged_at + self.tick(&core);
        Some(match self.wants_room(&core) {
            true => Round::Room,
            false if self.is_early(&core) && ages_can_wait => Round::Early,
            false => Round::Age,
        })
    }

    fn tick(&self, core: &Core) -> Duration {
        let intervals =
            core.journaled().filter_map(|volume| core.journal(volume)).map(Journal::commit_interval);
        let shortest = intervals.fold(self.options.write_back_age, Duration::min);
        (shortest / 2).clamp(TICK_MIN, TICK)
    }

    /// Writes epochs until the goal is met or nothing more of it can be written. Returns whether it wrote anything.
    ///
    /// What is old is looked for once, and again when nothing of that is left to write: a long chain takes many epochs, and
    /// each look walks all of it.
    fn write_round(&self, for_room: bool) -> Result<bool> {
        let goal = if for_room { Goal::Room } else { Goal::Age(self.options.write_back_age) };
        let mut wrote = false;
        let mut is_known = false;
        loop {
            let commit = {
                let mut core = self.core();
                if !is_known {
                    core.marked_old = None;
                }
                if for_room {
                    self.ask_all_to_close(&mut core);
                } else {
                    self.close_if_old(&mut core);
                }
                !Self::all_uncommitted(&core).is_empty()
            };
            let progress = {
                let _epoch = self.epoch();
                match commit {
                    true if !for_room => self.write_epoch(Goal::Commit)?,
                    _ => self.write_epoch(goal)?,
                }
            };
            wrote |= progress != Progress::Idle;
            if progress == Progress::Idle && is_known {
                is_known = false;
                continue;
            }
            is_known = progress != Progress::Idle;
            let mut core = self.core();
            if progress == Progress::Idle || core.stop {
                core.pressure = false;
                core.idle_rounds += u64::from(for_room);
                self.changed.notify_all();
                return Ok(wrote);
            }
            if for_room && self.has_enough_room(&core) {
                core.pressure = false;
                return Ok(wrote);
            }
        }
    }

    fn wait_for_stop(&self) {
        let mut core = self.core();
        self.changed.notify_all();
        while !core.stop {
            core = self.wait_for_kick(core, TICK);
        }
    }
}
