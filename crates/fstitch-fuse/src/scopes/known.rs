//! The processes that are known, and how a process becomes known.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering as Memory};
use std::sync::{Arc, Mutex, MutexGuard};

use fstitch_core::lock::Unpoisoned;
use fstitch_core::{Errno, Result};
use rustc_hash::FxHashMap;

use super::processes::{Life, Process};
use super::set::Set;
use super::{ANCESTORS_MAX, Asker, Found, PASSES_MAX, SCOPES_MAX, SCOPES_USER_MAX, Scopes, unseen};

/// Processes without groups that are remembered; beyond, the memory starts anew.
const QUIET_MAX: usize = 256;
/// Threads whose process is remembered; beyond, the memory starts anew.
const THREADS_MAX: usize = 8192;

/// A process that has a set of its own.
pub(super) struct Scope {
    pub pid: u32,
    /// Whom its groups count for.
    pub uid: u32,
    set: Mutex<Arc<Set>>,
    /// When the set was last changed by a call, or the process's start.
    changed: AtomicU64,
    /// Calls that change the set, one after the other.
    changing: Mutex<()>,
}

impl Scope {
    pub(super) fn set(&self) -> Arc<Set> {
        Arc::clone(&self.set.lock().unpoisoned())
    }

    pub(super) fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unpoisoned()
    }

    pub(super) fn publish(&self, set: Set, now: u64) {
        self.changed.store(now, Memory::Release);
        let old = std::mem::replace(&mut *self.set.lock().unpoisoned(), Arc::new(set));
        // What it alone kept engaged ends here, outside the lock.
        drop(old);
    }
}

/// A process, alive when last looked at.
struct Entry {
    start: u64,
    life: Arc<dyn Life>,
    /// `None`: it had no groups when first seen, so it has none as long as it does not ask for some.
    scope: Option<Arc<Scope>>,
}

/// All that is known of processes.
#[derive(Default)]
pub(super) struct Known {
    processes: BTreeMap<u32, Entry>,
    /// Processes of threads that do not lead one.
    threads: FxHashMap<u32, u32>,
    quiet: usize,
}

impl Known {
    pub(super) fn scopes(&self) -> impl Iterator<Item = &Arc<Scope>> {
        self.processes.values().filter_map(|entry| entry.scope.as_ref())
    }

    /// A process that lives; `start` tells it from earlier ones with its number.
    fn living(&self, pid: u32, start: Option<u64>) -> Option<&Entry> {
        let entry = self.processes.get(&pid)?;
        (start.is_none_or(|start| start == entry.start) && !entry.life.is_over()).then_some(entry)
    }

    fn insert(&mut self, pid: u32, entry: Entry) -> Option<Entry> {
        if entry.scope.is_none() {
            self.quiet += 1;
            if self.quiet > QUIET_MAX {
                self.processes.retain(|_, entry| entry.scope.is_some());
                self.quiet = 1;
            }
        }
        let old = self.processes.insert(pid, entry);
        self.quiet -= usize::from(old.as_ref().is_some_and(|old| old.scope.is_none()));
        old
    }

    fn admit(&self, uid: u32) -> Result<()> {
        let all = self.scopes().count();
        let own = self.scopes().filter(|scope| scope.uid == uid).count();
        if all >= SCOPES_MAX || (uid != 0 && own >= SCOPES_USER_MAX) {
            return Err(Errno::NFILE.into());
        }
        Ok(())
    }

    /// Takes out those that have ended.
    fn take_ended(&mut self) -> Vec<Entry> {
        let ended: Vec<u32> =
            self.processes.iter().filter(|(_, entry)| entry.life.is_over()).map(|(pid, _)| *pid).collect();
        let ended: Vec<Entry> = ended.iter().filter_map(|pid| self.processes.remove(pid)).collect();
        if !ended.is_empty() {
            self.quiet -= ended.iter().filter(|entry| entry.scope.is_none()).count();
            self.threads.clear();
        }
        ended
    }

    /// Forgets everything.
    pub(super) fn take_all(&mut self) -> Vec<Arc<Scope>> {
        let all = std::mem::take(self);
        all.processes.into_values().filter_map(|entry| entry.scope).collect()
    }
}

impl Scopes {
    /// Forgets processes that have ended.
    pub(super) fn sweep(&self) {
        let ended = self.known().take_ended();
        let scopes = ended.iter().filter(|entry| entry.scope.is_some()).count();
        self.used.fetch_sub(scopes, Memory::AcqRel);
    }

    /// Finds out whose thread it is and what set its process has.
    pub(super) fn find(&self, tid: u32) -> Result<Found> {
        if tid == 0 {
            return Ok(Found::Hidden);
        }
        if let Some(found) = self.recall(tid) {
            return Ok(found);
        }
        let Some(process) = self.processes.of_thread(tid).map_err(unseen)? else { return Ok(Found::Hidden) };
        let found = match self.recall_process(&process) {
            Some(found) => found,
            None => self.find_by_ancestors(&process)?,
        };
        if process.pid != tid {
            let mut known = self.known();
            if known.threads.len() >= THREADS_MAX {
                known.threads.clear();
            }
            known.threads.insert(tid, process.pid);
        }
        Ok(found)
    }

    /// What is remembered of a thread, if that is still so.
    fn recall(&self, tid: u32) -> Option<Found> {
        let (pid, found) = {
            let known = self.known();
            let pid = known.threads.get(&tid).copied().unwrap_or(tid);
            (pid, known.living(pid, None).map(|entry| found(pid, entry))?)
        };
        // A thread's number may be another process's now; that of a process's first thread cannot.
        (pid == tid || self.processes.has_thread(pid, tid)).then_some(found)
    }

    fn recall_process(&self, process: &Process) -> Option<Found> {
        self.known().living(process.pid, Some(process.start)).map(|entry| found(process.pid, entry))
    }

    /// The set of the nearest ancestor that is known.
    fn find_by_ancestors(&self, process: &Process) -> Result<Found> {
        let mut child = *process;
        for _ in 0..ANCESTORS_MAX {
            let parent = match child.parent {
                0 => None,
                parent => self.processes.of_thread(parent).map_err(unseen)?,
            };
            // Without a parent that can be seen, or below a process without groups, there are none.
            let Some(parent) = parent else { return self.note_quiet(process) };
            match self.recall_process(&parent) {
                Some(Found::Scoped(scope)) => {
                    // Children of that time would be known; this one was adopted.
                    if child.start < scope.changed.load(Memory::Acquire) {
                        return Err(Errno::AGAIN.into());
                    }
                    let set = scope.set();
                    return self.note(process, scope.uid, set);
                }
                Some(_) => return self.note_quiet(process),
                None => child = parent,
            }
        }
        Err(Errno::AGAIN.into())
    }

    /// Remembers a process that has this set.
    fn note(&self, process: &Process, uid: u32, set: Arc<Set>) -> Result<Found> {
        if set.is_empty() {
            return self.note_quiet(process);
        }
        let scope = self.admit(process, uid, set)?;
        Ok(scope.map_or(Found::Hidden, Found::Scoped))
    }

    fn note_quiet(&self, process: &Process) -> Result<Found> {
        let Some(life) = self.processes.watch(process).map_err(unseen)? else { return Ok(Found::Hidden) };
        let mut known = self.known();
        // Somebody else may have found out more in the meantime.
        if let Some(entry) = known.living(process.pid, Some(process.start)) {
            return Ok(found(process.pid, entry));
        }
        let old = known.insert(process.pid, Entry { start: process.start, life, scope: None });
        drop(known);
        self.let_go(old);
        Ok(Found::Quiet(*process))
    }

    /// Gives a process a scope, unless it has one or is gone.
    fn admit(&self, process: &Process, uid: u32, set: Arc<Set>) -> Result<Option<Arc<Scope>>> {
        let Some(life) = self.processes.watch(process).map_err(unseen)? else { return Ok(None) };
        let mut known = self.known();
        if let Some(Entry { scope: Some(scope), .. }) = known.living(process.pid, Some(process.start)) {
            return Ok(Some(Arc::clone(scope)));
        }
        known.admit(uid)?;
        let scope = Arc::new(Scope {
            pid: process.pid,
            uid,
            set: Mutex::new(set),
            changed: AtomicU64::new(process.start),
            changing: Mutex::default(),
        });
        let entry = Entry { start: process.start, life, scope: Some(Arc::clone(&scope)) };
        let old = known.insert(process.pid, entry);
        self.used.fetch_add(1, Memory::AcqRel);
        drop(known);
        self.watch.wake();
        self.let_go(old);
        Ok(Some(scope))
    }

    /// Counts what was replaced: an earlier process with the same number.
    fn let_go(&self, old: Option<Entry>) {
        if old.is_some_and(|old| old.scope.is_some()) {
            self.used.fetch_sub(1, Memory::AcqRel);
        }
    }

    /// A scope for a process that has none yet, which begins without groups.
    pub(super) fn open(self: &Arc<Self>, from: Asker, process: &Process) -> Result<Arc<Scope>> {
        self.watch.start(self)?;
        let scope = self.admit(process, from.uid, Arc::default())?;
        scope.ok_or(Errno::OPNOTSUPP.into())
    }

    /// Makes known who inherits the scope's set as it is. Who starts a process meanwhile does so at the same time
    /// as the change that this is for, so the child may have either set; but a list of children that is read while
    /// one of them ends can lack others, so the search ends with a pass that finds nobody.
    pub(super) fn find_descendants(&self, scope: &Arc<Scope>) -> Result<()> {
        let set = scope.set();
        for pass in 0..PASSES_MAX {
            if self.find_new_descendants(scope, &set)? == 0 && pass > 0 {
                return Ok(());
            }
        }
        Err(Errno::AGAIN.into())
    }

    fn find_new_descendants(&self, scope: &Scope, set: &Arc<Set>) -> Result<usize> {
        let (mut queue, mut new) = (vec![scope.pid], 0);
        while let Some(pid) = queue.pop() {
            for child in self.processes.children(pid).map_err(unseen)? {
                let Some(process) = self.processes.of_thread(child).map_err(unseen)? else { continue };
                if process.ended || matches!(self.recall_process(&process), Some(Found::Scoped(_))) {
                    continue;
                }
                if self.admit(&process, scope.uid, Arc::clone(set))?.is_some() {
                    new += 1;
                    queue.push(process.pid);
                }
            }
        }
        Ok(new)
    }
}

fn found(pid: u32, entry: &Entry) -> Found {
    match &entry.scope {
        Some(scope) => Found::Scoped(Arc::clone(scope)),
        None => Found::Quiet(Process { pid, parent: 0, start: entry.start, ended: false }),
    }
}
