//! How requests are done and answered: for whom, by which thread, and with what.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fstitch_core::{Entry, FileSystem, InodeNo, Result};

use super::answer::{ErrorLog, answer, answer_change};
use super::convert::View;
use super::core::{Core, lacks_space};
use super::privileges::WithoutCapability;
use super::{Adapter, Invalidations, Invalidator, patchgroups};
use crate::MountOptions;
use crate::pool::Pool;
use crate::scopes::{Asker, Scopes, Work};
use crate::wire::{EntryOut, InHeader, Reply};

/// Threads that wait for the medium; several, so that several callers of fsync share one flush.
const HELPERS: usize = 4;

/// Threads that wait for space or room for what is left of writes: an fsync has nothing to wait for behind these.
const WRITERS: usize = 4;

/// Threads that do the calls of patchgroups, so that nobody's calls hold up other requests.
const CALLERS: usize = 2;

impl Adapter {
    pub(crate) fn new(fs: Arc<dyn FileSystem>, options: &MountOptions) -> std::io::Result<Self> {
        let view = View { root: fs.root(), ttl: fs.cache_timeout(), owners: options.owners };
        let scopes = Scopes::new(Arc::clone(&fs), !options.writeback_cache);
        let core = Core {
            fs,
            view,
            sync: options.sync,
            writes_late: options.writeback_cache,
            kills_privileges: AtomicBool::new(false),
            removed: AtomicBool::new(false),
            errors: ErrorLog::default(),
            without_capability: WithoutCapability::default(),
            scopes,
        };
        Ok(Self {
            core: Arc::new(core),
            pool: Pool::new(HELPERS)?,
            rests: Pool::new(WRITERS)?,
            calls: Pool::new(CALLERS)?,
            invalidations: Invalidations::default(),
            opens_by_itself: false,
            opens_directories_by_itself: false,
            checks_permissions: options.default_permissions,
        })
    }

    pub(crate) fn invalidations(&self) -> Invalidations {
        self.invalidations.clone()
    }

    pub(crate) fn invalidator(&self) -> Invalidator {
        let core = Arc::downgrade(&self.core);
        Invalidator { invalidations: self.invalidations(), view: self.core.view, core }
    }

    pub(crate) fn scopes(&self) -> Arc<Scopes> {
        Arc::clone(&self.core.scopes)
    }

    /// Does a change of these inodes for the groups of its caller.
    pub(super) fn within<T>(
        &self,
        from: &InHeader,
        inodes: &[InodeNo],
        change: impl FnOnce(&Core) -> Result<T>,
    ) -> Result<T> {
        self.core.scopes.work(from.pid, inodes)?.run(|| change(&self.core))
    }

    /// Makes an inode for the caller's groups and answers with its entry, to which the kernel then holds a reference;
    /// where space ran out, a helper tries again.
    pub(super) fn make(
        &self,
        work: Result<Work>,
        reply: Reply,
        ok: impl FnOnce(Reply, &EntryOut) + Send + 'static,
        operation: impl Fn(&Core) -> Result<Entry> + Send + 'static,
    ) {
        let work = match work {
            Ok(work) => work,
            Err(e) => return reply.error(self.core.errors.errno(&e)),
        };
        let view = self.core.view;
        let ok = move |reply, entry: Entry| ok(reply, &view.entry(&entry.attr));
        let made = work.run(|| operation(&self.core));
        if !lacks_space(&made) {
            drop(work);
            return answer_change(&self.core, &self.pool, made, reply, ok);
        }
        let core = Arc::clone(&self.core);
        self.pool.run(move || {
            let made = core.patiently(|| work.run(|| operation(&core)));
            drop(work);
            let made = if core.sync { made.and_then(|e| core.fs.sync().map(|()| e)) } else { made };
            answer(&core, made, reply, ok);
        });
    }

    /// Has a helper try again what has found too little space.
    pub(super) fn again(
        &self,
        from: &InHeader,
        inodes: &[InodeNo],
        reply: Reply,
        operation: impl Fn(&Core) -> Result<()> + Send + 'static,
    ) {
        let work = match self.core.scopes.work(from.pid, inodes) {
            Ok(work) => work,
            Err(e) => return reply.error(self.core.errors.errno(&e)),
        };
        self.answer_later(reply, move |core| {
            core.patiently(|| work.run(|| operation(core)))?;
            drop(work);
            if core.sync { core.fs.sync() } else { Ok(()) }
        });
    }

    pub(super) fn answer_done(&self, result: Result<()>, reply: Reply) {
        answer_change(&self.core, &self.pool, result, reply, |reply, ()| reply.ok());
    }

    /// Answers by a helper, after `wait`.
    pub(super) fn answer_later(&self, reply: Reply, wait: impl FnOnce(&Core) -> Result<()> + Send + 'static) {
        let core = Arc::clone(&self.core);
        self.pool.run(move || answer(&core, wait(&core), reply, |reply, ()| reply.ok()));
    }

    /// Answers for fsync: in order for those who asked for that, otherwise by a helper when all is stable.
    pub(super) fn answer_stable(
        &self,
        from: &InHeader,
        reply: Reply,
        settle: impl FnOnce(&Core) -> Result<()> + Send + 'static,
    ) {
        let Some(order) = self.core.order(from.pid) else { return self.answer_later(reply, settle) };
        match order.try_point() {
            Some(done) => answer(&self.core, done, reply, |reply, ()| reply.ok()),
            None => self.answer_later(reply, move |_| order.point()),
        }
    }

    /// Does a call of patchgroups by a helper.
    pub(super) fn answer_call(&self, from: &InHeader, asked: Result<patchgroups::Asked>, reply: Reply) {
        let asker = Asker { tid: from.pid, uid: from.uid };
        let core = Arc::clone(&self.core);
        let pool = if asked.as_ref().is_ok_and(|asked| asked.is_slow()) { &self.pool } else { &self.calls };
        pool.run(move || {
            let done = asked.and_then(|asked| asked.perform(&core.scopes, asker));
            answer(&core, done, reply, |reply, out: Vec<u8>| reply.ioctl(&out));
        });
    }
}
