//! Which groups a request's changes belong to: every process has a set of groups, its *scope*.
//!
//! ```text
//!   request ── thread ──► process ──► scope ──► set ──► groups for core's `Engaged`
//!                           │ unknown             ▲
//!                           └──► parent, its parent, … : the first that is known gives its set
//! ```
//!
//! # Invariants
//!
//! 1. Where nobody uses groups, a request costs one atomic load.
//! 2. A process that is not known has the set that its nearest known ancestor has *now*: before a scope's set changes, all
//!    its living descendants that would inherit it become known ([`Scopes::find_descendants`]). So times are asked only for
//!    processes that were adopted; what they cannot decide is refused.
//! 3. A process is known by its number and a descriptor that tells its end, so numbers may be used again.
//! 4. What a request began with stays engaged until its change is done, whatever its scope does meanwhile
//!    ([`set::Set`]). It is let go before the request is answered.
//! 5. No lock of this module is held while the file system works, but that of one scope's own calls.
//!
//! The calls and their errors: `docs/spec/patchgroup-ioctl.md`.

mod chain;
mod known;
mod processes;
mod set;
mod watch;
mod work;

use std::sync::atomic::{AtomicUsize, Ordering as Memory};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fstitch_core::groups::{GroupCall, GroupId};
use fstitch_core::lock::Unpoisoned;
use fstitch_core::{Errno, Error, FileSystem, InodeId, InodeNo, Result};

use self::chain::Chain;
use self::known::{Known, Scope};
use self::processes::{Kernel, Process, Processes};
use self::set::{Count, Set};
use self::watch::Watch;

pub(crate) use self::set::About;
pub(crate) use self::work::{Order, Work};

/// Groups that a scope may have.
pub(crate) const GROUPS_MAX: usize = 1024;
/// Engagements of a scope.
const GROUPS_ENGAGED_MAX: usize = 64;
/// Groups of one user other than root.
const GROUPS_USER_MAX: usize = 16 << 10;
/// Groups of a mount.
const GROUPS_ALL_MAX: usize = 64 << 10;
/// Scopes of a mount.
const SCOPES_MAX: usize = 1024;
/// Scopes of one user other than root.
const SCOPES_USER_MAX: usize = 256;
/// The shortest time between two moments at which everything is made stable.
const DURABLE_EVERY_MIN_MS: u32 = 10;
const DURABLE_EVERY_MIN: Duration = Duration::from_millis(10);
/// How far up a process's ancestors are looked at.
const ANCESTORS_MAX: usize = 256;
/// How often descendants are looked for until nobody starts new ones.
const PASSES_MAX: usize = 16;

/// What scopes ask of a file system.
pub(crate) trait Ordering: Send + Sync {
    fn group(&self, call: GroupCall) -> Result<GroupId>;
    fn sync(&self) -> Result<()>;
    /// Which life of its number an inode has now.
    fn life(&self, ino: InodeNo) -> Result<InodeId>;
}

/// A file system, as scopes see it.
struct Served(Arc<dyn FileSystem>);

impl Ordering for Served {
    fn group(&self, call: GroupCall) -> Result<GroupId> {
        self.0.group(call)
    }

    fn sync(&self) -> Result<()> {
        self.0.sync()
    }

    fn life(&self, ino: InodeNo) -> Result<InodeId> {
        self.0.getattr(ino).map(|attr| attr.id())
    }
}

/// A mount whose writes the kernel keeps back.
struct Unordered;

impl Ordering for Unordered {
    fn group(&self, _: GroupCall) -> Result<GroupId> {
        Err(Errno::OPNOTSUPP.into())
    }

    fn sync(&self) -> Result<()> {
        Err(Errno::OPNOTSUPP.into())
    }

    fn life(&self, _: InodeNo) -> Result<InodeId> {
        Err(Errno::OPNOTSUPP.into())
    }
}

/// Who calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    pub tid: u32,
    pub uid: u32,
}

/// One call of the interface, numbers as the scope knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Create,
    Depend { after: u32, before: u32 },
    Engage(u32, About),
    Disengage(u32, About),
    Sync(u32),
    Close(u32),
    OrderBegin { durable_every_ms: u32, every_change: bool },
    OrderEnd,
}

/// A process that uses ordered fsync, and how often its changes are made stable.
pub(crate) type User = (u32, Option<Duration>);

/// All scopes of a mount.
pub(crate) struct Scopes {
    fs: Arc<dyn Ordering>,
    processes: Box<dyn Processes>,
    /// Scopes, and one more while the whole mount has ordered fsync.
    used: AtomicUsize,
    known: Mutex<Known>,
    count: Arc<Count>,
    /// The order of `fsync=ordered`.
    everybody: Mutex<Option<Arc<Chain>>>,
    watch: Watch,
}

/// What is known of a caller.
enum Found {
    /// It cannot be seen from here.
    Hidden,
    /// It and its ancestors use no groups.
    Quiet(Process),
    Scoped(Arc<Scope>),
}

impl Scopes {
    /// `sees_writes`: writes arrive when programs make them. Where they do not, nothing can be said about their order.
    pub(crate) fn new(fs: Arc<dyn FileSystem>, sees_writes: bool) -> Arc<Self> {
        let ordering: Arc<dyn Ordering> =
            if sees_writes { Arc::new(Served(fs)) } else { Arc::new(Unordered) };
        Self::with(ordering, Box::new(Kernel))
    }

    fn with(fs: Arc<dyn Ordering>, processes: Box<dyn Processes>) -> Arc<Self> {
        Arc::new(Self {
            fs,
            processes,
            used: AtomicUsize::new(0),
            known: Mutex::default(),
            count: Arc::default(),
            everybody: Mutex::default(),
            watch: Watch::default(),
        })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unpoisoned()
    }

    fn everybody(&self) -> Option<Arc<Chain>> {
        self.everybody.lock().unpoisoned().clone()
    }

    fn is_used(&self) -> bool {
        self.used.load(Memory::Acquire) != 0
    }

    /// Ordered fsync for everybody: the mount option.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the file system keeps no order.
    pub(crate) fn order_everybody(self: &Arc<Self>, durable_every: Option<Duration>) -> Result<()> {
        let chain = Chain::start(&self.fs, durable_every.map(|every| every.max(DURABLE_EVERY_MIN)), false)?;
        self.watch.start(self)?;
        *self.everybody.lock().unpoisoned() = Some(chain);
        self.used.fetch_add(1, Memory::AcqRel);
        self.watch.wake();
        Ok(())
    }

    /// Whether the mount has `fsync=ordered`.
    pub(crate) fn orders_everybody(&self) -> bool {
        self.everybody().is_some()
    }

    /// Whether groups work at all.
    pub(crate) fn work_here(&self) -> bool {
        let made = self.fs.group(GroupCall::Create);
        if let Ok(id) = made {
            set::end(&*self.fs, GroupCall::Close(id));
        }
        made.is_ok()
    }

    /// Processes with ordered fsync, by number.
    pub(crate) fn users(&self) -> Vec<User> {
        self.sweep();
        self.known()
            .scopes()
            .filter_map(|s| s.set().chain.as_ref().map(|c| (s.pid, c.durable_every)))
            .collect()
    }

    /// Does one call; answers the number of a new group, otherwise 0.
    ///
    /// # Errors
    /// By the specification.
    pub(crate) fn call(self: &Arc<Self>, from: Asker, call: Call) -> Result<u32> {
        self.sweep();
        if let Call::OrderBegin { durable_every_ms: 1..DURABLE_EVERY_MIN_MS, .. } = call {
            return Err(Errno::INVAL.into());
        }
        let scope = match self.find(from.tid)? {
            Found::Hidden => return Err(self.hidden(from)),
            Found::Scoped(scope) => scope,
            Found::Quiet(process) => match call {
                Call::Create => self.open(from, &process)?,
                Call::OrderBegin { .. } if !self.orders_everybody() => self.open(from, &process)?,
                Call::OrderBegin { .. } => return Err(Errno::BUSY.into()),
                Call::OrderEnd => return Err(Errno::INVAL.into()),
                _ => return Err(Errno::BADF.into()),
            },
        };
        match call {
            Call::Depend { after, before } => {
                let set = scope.set();
                let call = GroupCall::Depend { after: set.id(after)?, before: set.id(before)? };
                self.fs.group(call).map(|_| 0)
            }
            Call::Sync(no) => {
                let set = scope.set();
                self.fs.group(GroupCall::Sync(set.id(no)?)).map(|_| 0)
            }
            Call::Create => self.change(&scope, |set| set.create(&self.fs, &self.count, scope.uid)),
            Call::Close(no) => self.change(&scope, |set| set.close(no).map(|()| 0)),
            Call::Engage(no, about) => self.change(&scope, |set| set.engage(no, about).map(|()| 0)),
            Call::Disengage(no, about) => self.change(&scope, |set| set.disengage(no, about).map(|()| 0)),
            Call::OrderBegin { durable_every_ms, every_change } => {
                self.begin_order(&scope, milliseconds(durable_every_ms), every_change)
            }
            Call::OrderEnd => {
                self.change(&scope, |set| set.chain.take().map(|_| 0).ok_or(Errno::INVAL.into()))
            }
        }
    }

    fn begin_order(
        self: &Arc<Self>,
        scope: &Arc<Scope>,
        durable_every: Option<Duration>,
        every_change: bool,
    ) -> Result<u32> {
        let begun = self.change(scope, |set| {
            if set.chain.is_some() || self.orders_everybody() {
                return Err(Errno::BUSY.into());
            }
            set.chain = Some(Chain::start(&self.fs, durable_every, every_change)?);
            Ok(0)
        });
        self.watch.wake();
        begun
    }

    /// Says once why a caller is refused.
    fn hidden(&self, from: Asker) -> Error {
        if self.watch.first_refusal() {
            tracing::warn!(
                "patchgroups refused to a process of user {}: it is in a pid namespace that this server cannot see, or \
                 /proc does not show it",
                from.uid
            );
        }
        Errno::OPNOTSUPP.into()
    }

    /// Replaces a scope's set by a changed one.
    fn change(
        self: &Arc<Self>,
        scope: &Arc<Scope>,
        change: impl FnOnce(&mut Set) -> Result<u32>,
    ) -> Result<u32> {
        let _one_by_one = scope.changing();
        // Taken before the search: whoever starts later is the new set's.
        let now = self.processes.now().map_err(unseen)?;
        self.find_descendants(scope)?;
        let mut set = Set::clone(&scope.set());
        let answer = change(&mut set)?;
        scope.publish(set, now);
        Ok(answer)
    }

    /// Ends all that is engaged: the mount is gone.
    pub(crate) fn close(&self) {
        self.watch.stop();
        let everybody = self.everybody.lock().unpoisoned().take();
        let all = self.known().take_all();
        self.used.store(0, Memory::Release);
        drop((everybody, all));
    }
}

/// 0 is never.
pub(crate) fn milliseconds(number: u32) -> Option<Duration> {
    (number != 0).then(|| Duration::from_millis(u64::from(number)))
}

/// What cannot be known about processes is refused.
fn unseen(error: std::io::Error) -> Error {
    match error.raw_os_error() {
        Some(no) if [Errno::MFILE.0, Errno::NFILE.0].contains(&no) => Errno::NFILE.into(),
        _ => {
            tracing::warn!("looking at a process: {error}");
            Errno::AGAIN.into()
        }
    }
}

#[cfg(test)]
mod tests;
