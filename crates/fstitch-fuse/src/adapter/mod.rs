//! The FUSE requests, each translated into one operation of the file system.
//!
//! Handlers run on the threads of the transport (one worker by default, up to sixteen; over io_uring one thread for each processor).
//! Most answer at once; what waits for the medium (syncs, changes on mounts with `sync`, long truncations), or for space that a
//! removal gives back, is answered by a helper ([`crate::pool::Pool`]), and calls of patchgroups have helpers of their own. A change
//! waits in its handler when the cache has no room for it, or has its request put off where the thread must not wait
//! ([`Reply::put_off`]): so a handler may be called again for the same request, which has changed nothing.

mod answer;
mod convert;
mod core;
mod directory;
mod invalidate;
mod ioctl;
mod patchgroups;
mod privileges;
mod replies;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fstitch_core::{Errno, InodeNo, SeekFrom, SetAttr, Timestamp, XattrSetMode};

use self::answer::{answer, answer_change, answer_value};
use self::convert::{bits16, set_time, statfs, wide};
use self::core::{Core, Durability, Write, lacks_space};
pub(crate) use self::invalidate::Invalidations;
pub use self::invalidate::Invalidator;
use self::privileges::CAPABILITY;
use crate::pool::Pool;
use crate::transport::Server;
use crate::wire::{Capabilities, EntryOut, InHeader, Node, Op, Reply, Request, Room, Set};

/// Answers to opening: pages stay in the cache, and so does a directory's listing.
const KEEP_CACHE: u32 = 1 << 1;
const CACHE_DIR: u32 = 1 << 3;
/// So many bytes are shared by one request: the answer has 32 bits.
const SHARED_MAX: u64 = 1 << 31;

/// The kernel's requests, answered by a file system.
pub(crate) struct Adapter {
    core: Arc<Core>,
    pool: Pool,
    /// Does what is left of writes that found too little space or room.
    rests: Pool,
    calls: Pool,
    invalidations: Invalidations,
    /// The kernel opens and closes files without asking.
    opens_by_itself: bool,
    opens_directories_by_itself: bool,
    /// The kernel checks permissions. Asking it to know access lists would make it do so in any case.
    checks_permissions: bool,
}

impl Server for Adapter {
    fn serve(&self, request: Request<'_>, reply: Reply) {
        let (from, node) = (&request.header, request.node());
        let ino = self.core.view.ino(node);
        match request.op {
            Op::Lookup { name } => self.lookup(ino, name, reply),
            Op::Getattr => self.getattr(ino, reply),
            Op::Read { offset, room } => self.read(ino, offset, room, reply),
            Op::Write { offset, data, write_flags, open_flags } => {
                let write = Write { ino, offset, data, flags: write_flags, tid: from.pid };
                self.write(from, &write, open_flags, reply);
            }
            Op::Setattr(set) => self.setattr(from, ino, set, reply),
            Op::Mknod { name, mode, rdev, umask } => {
                self.mknod(from, (ino, name), (mode, rdev, umask), reply)
            }
            Op::Tmpfile { mode, umask } => self.tmpfile(from, ino, (mode, umask), reply),
            Op::Mkdir { name, mode, umask } => self.mkdir(from, (ino, name), (mode, umask), reply),
            Op::Symlink { name, target } => self.symlink(from, (ino, name), target, reply),
            Op::Link { of, name } => self.link(from, self.core.view.ino(of), (ino, name), reply),
            Op::Unlink { name } => self.unlink(from, (ino, name), reply),
            Op::Rmdir { name } => self.rmdir(from, (ino, name), reply),
            Op::Rename { name, to, flags } => {
                self.rename(from, (ino, name), (self.core.view.ino(to.0), to.1), flags, reply);
            }
            Op::Readlink => self.readlink(ino, reply),
            Op::Forget { count } => {
                self.forget(ino, count);
                reply.unneeded();
            }
            Op::BatchForget { list } => {
                list.for_each(|(node, count)| self.forget(self.core.view.ino(node), count));
                reply.unneeded();
            }
            Op::Fsync { data_only } => self.fsync(from, ino, data_only, reply),
            Op::Fsyncdir { data_only } => self.fsyncdir(from, ino, data_only, reply),
            Op::Readdir { cookie, size } => self.readdir(ino, cookie, size, reply),
            Op::Readdirplus { cookie, size } => self.readdirplus(ino, cookie, size, reply),
            Op::Setxattr { name, value, flags } => self.setxattr(from, ino, (name, value), flags, reply),
            Op::Getxattr { name, size } => self.getxattr(ino, name, size, reply),
            Op::Listxattr { size } => self.listxattr(from, ino, size, reply),
            Op::Removexattr { name } => self.removexattr(from, ino, name, reply),
            Op::Ioctl { cmd, input, out_size } => self.ioctl(from, node, (cmd, input), out_size, reply),
            Op::Fallocate { offset, len, mode } => self.fallocate(from, ino, (offset, len), mode, reply),
            Op::Lseek { offset, whence } => self.lseek(ino, offset, whence, reply),
            Op::CopyRange { offset, to, len } => {
                self.share(from, (ino, offset), (self.core.view.ino(to.0), to.1), len, reply);
            }
            Op::Statfs => {
                answer(&self.core, self.core.fs.statfs(), reply, |reply, s| reply.statfs(&statfs(&s)))
            }
            Op::Open => opened(reply, self.opens_by_itself, KEEP_CACHE),
            Op::Opendir => opened(reply, self.opens_directories_by_itself, KEEP_CACHE | CACHE_DIR),
            Op::Release | Op::Destroy => reply.ok(),
            // Among them: making and opening in one (the kernel then makes files by mknod and opens them by itself: one
            // request instead of two, and no release); what close(2) asks (nothing is held back for it, and the kernel
            // keeps locks itself); and polling (files are always ready).
            Op::Unknown => reply.error(Errno::NOSYS),
        }
    }
}

/// Answers to opening, which the kernel `does` by itself once it has been told so.
fn opened(reply: Reply, does: bool, flags: u32) {
    if does { reply.error(Errno::NOSYS) } else { reply.opened(flags) }
}

impl Adapter {
    /// What is wanted of what the kernel offers.
    pub(crate) fn choose(&mut self, offered: Capabilities) -> Capabilities {
        let wished = [
            Capabilities::CACHE_SYMLINKS,
            Capabilities::DO_READDIRPLUS,
            Capabilities::DONT_MASK,
            Capabilities::EXPLICIT_INVAL_DATA,
            Capabilities::HAS_IOCTL_DIR,
            Capabilities::PARALLEL_DIROPS,
            Capabilities::READDIRPLUS_AUTO,
            Capabilities::NO_OPEN_SUPPORT,
            Capabilities::NO_OPENDIR_SUPPORT,
            Capabilities::HANDLE_KILLPRIV_V2,
        ];
        let lists = self.checks_permissions.then_some(Capabilities::POSIX_ACL);
        let later = self.core.writes_late.then_some(Capabilities::WRITEBACK_CACHE);
        let wanted = wished.into_iter().chain(lists).chain(later).fold(Capabilities(0), Capabilities::with);
        if !offered.has(wanted) {
            tracing::debug!("this kernel lacks capabilities {:#x}", wanted.0 & !offered.0);
        }
        self.opens_by_itself = offered.has(Capabilities::NO_OPEN_SUPPORT);
        self.opens_directories_by_itself = offered.has(Capabilities::NO_OPENDIR_SUPPORT);
        self.core.kills_privileges.store(offered.has(Capabilities::HANDLE_KILLPRIV_V2), Ordering::Relaxed);
        wanted
    }

    fn lookup(&self, parent: InodeNo, name: &[u8], reply: Reply) {
        let view = &self.core.view;
        match self.core.fs.lookup(parent, name) {
            Err(e) if e.errno() == Errno::NOENT => reply.entry(&view.absent()),
            found => answer(&self.core, found, reply, |reply, found| reply.entry(&view.entry(&found.attr))),
        }
    }

    fn forget(&self, ino: InodeNo, count: u64) {
        self.core.without_capability.forget(ino);
        self.core.fs.forget(ino, count);
    }

    fn getattr(&self, ino: InodeNo, reply: Reply) {
        let view = &self.core.view;
        answer(&self.core, self.core.fs.getattr(ino), reply, |reply, attr| reply.attr(&view.attr_out(&attr)));
    }

    fn setattr(&self, from: &InHeader, ino: InodeNo, wish: Set, reply: Reply) {
        let set = SetAttr {
            perm: wish.mode().map(|mode| bits16(mode) & 0o7777),
            uid: wish.uid(),
            gid: wish.gid(),
            size: wish.size(),
            atime: wish.atime().map(set_time),
            mtime: wish.mtime().map(set_time),
            ctime: wish.ctime().map(|(secs, nanos)| Timestamp { secs, nanos }),
        };
        let core = Arc::clone(&self.core);
        let caller = core.view.caller(from, 0);
        let work = match core.scopes.work(from.pid, &[ino]) {
            Ok(work) => work,
            Err(e) => return reply.error(core.errors.errno(&e)),
        };
        let long = self.core.is_long(ino, &set) || (self.core.sync && set.size.is_some());
        let change = move || {
            let result = work.run(|| core.setattr(&caller, ino, &set, wish.kills_set_ids()));
            drop(work);
            let stable =
                if core.sync { result.and_then(|a| core.fs.fsync(ino, false).map(|()| a)) } else { result };
            answer(&core, stable, reply, |reply, attr| reply.attr(&core.view.attr_out(&attr)));
        };
        if long || self.core.sync { self.pool.run(change) } else { change() }
    }

    fn readlink(&self, ino: InodeNo, reply: Reply) {
        answer(&self.core, self.core.fs.readlink(ino), reply, |reply, target| reply.bytes(&target));
    }

    fn mknod(&self, from: &InHeader, (parent, name): (InodeNo, &[u8]), wish: (u32, u32, u32), reply: Reply) {
        let (mode, rdev, umask) = wish;
        let (caller, name) = (self.core.view.caller(from, umask), name.to_vec());
        let work = self.core.scopes.work(from.pid, &[parent]);
        self.make(work, reply, Reply::entry, move |core| {
            core.fs.mknod(&caller, parent, &name, bits16(mode), rdev)
        });
    }

    fn tmpfile(&self, from: &InHeader, parent: InodeNo, (mode, umask): (u32, u32), reply: Reply) {
        let caller = self.core.view.caller(from, umask);
        let work = self.core.scopes.work(from.pid, &[parent]);
        let answer = |reply: Reply, entry: &EntryOut| reply.entry_opened(entry, KEEP_CACHE);
        self.make(work, reply, answer, move |core| core.fs.tmpfile(&caller, parent, bits16(mode) & 0o7777));
    }

    fn mkdir(
        &self,
        from: &InHeader,
        (parent, name): (InodeNo, &[u8]),
        (mode, umask): (u32, u32),
        reply: Reply,
    ) {
        let (caller, name) = (self.core.view.caller(from, umask), name.to_vec());
        let work = self.core.scopes.work(from.pid, &[parent]);
        self.make(work, reply, Reply::entry, move |core| {
            core.fs.mkdir(&caller, parent, &name, bits16(mode) & 0o7777)
        });
    }

    fn symlink(&self, from: &InHeader, (parent, name): (InodeNo, &[u8]), target: &[u8], reply: Reply) {
        let (caller, name, target) = (self.core.view.caller(from, 0), name.to_vec(), target.to_vec());
        let work = self.core.scopes.work(from.pid, &[parent]);
        self.make(work, reply, Reply::entry, move |core| core.fs.symlink(&caller, parent, &name, &target));
    }

    fn link(&self, from: &InHeader, ino: InodeNo, (parent, name): (InodeNo, &[u8]), reply: Reply) {
        let (caller, name) = (self.core.view.caller(from, 0), name.to_vec());
        let work = self.core.scopes.work(from.pid, &[ino, parent]);
        self.make(work, reply, Reply::entry, move |core| core.fs.link(&caller, ino, parent, &name));
    }

    fn unlink(&self, from: &InHeader, (parent, name): (InodeNo, &[u8]), reply: Reply) {
        let caller = self.core.view.caller(from, 0);
        let removed = self.within(from, &[parent], |core| core.fs.unlink(&caller, parent, name));
        self.answer_done(self.core.note_removal(removed), reply);
    }

    fn rmdir(&self, from: &InHeader, (parent, name): (InodeNo, &[u8]), reply: Reply) {
        let caller = self.core.view.caller(from, 0);
        let removed = self.within(from, &[parent], |core| core.fs.rmdir(&caller, parent, name));
        self.answer_done(self.core.note_removal(removed), reply);
    }

    fn rename(
        &self,
        from: &InHeader,
        old: (InodeNo, &[u8]),
        new: (InodeNo, &[u8]),
        flags: u32,
        reply: Reply,
    ) {
        let caller = self.core.view.caller(from, 0);
        let moved = self::core::rename_mode(flags).and_then(|mode| {
            self.within(from, &[old.0, new.0], |core| core.fs.rename(&caller, old, new, mode))
        });
        if lacks_space(&moved) {
            let (old, new) = ((old.0, old.1.to_vec()), (new.0, new.1.to_vec()));
            return self.again(from, &[old.0, new.0], reply, move |core| {
                let mode = self::core::rename_mode(flags)?;
                core.note_removal(core.fs.rename(&caller, (old.0, &old.1), (new.0, &new.1), mode))
            });
        }
        self.answer_done(self.core.note_removal(moved), reply);
    }

    fn read(&self, ino: InodeNo, offset: u64, room: Room<'_>, reply: Reply) {
        let read = self.core.fs.read(ino, offset, &mut *room.0);
        answer(&self.core, read, reply, |reply, read| reply.filled(room, read));
    }

    fn write(&self, from: &InHeader, write: &Write<'_>, open_flags: i32, reply: Reply) {
        let (core, &Write { ino, offset, data, flags, tid }) = (&self.core, write);
        let caller = core.view.caller(from, 0);
        let work = match core.work_of_write(write) {
            Ok(work) => work,
            Err(e) => return reply.error(core.errors.errno(&e)),
        };
        let written = work.run(|| core.write(&caller, write));
        let durability = core.durability(tid, open_flags);
        // Part of a write is no success where the rest only waits for what is about to be free, or for room.
        let retry = lacks_space(&written) || matches!(&written, Ok(done) if wide(*done) < data.len());
        if !retry && (matches!(durability, Durability::Volatile) || written.is_err()) {
            drop(work);
            let is_refused = matches!(&written, Err(e) if e.errno() == Errno::PERM);
            answer(core, written, reply, Reply::written);
            if write.is_late() && is_refused {
                // Readers would go on seeing what was refused.
                let (invalidations, node) = (self.invalidations.clone(), core.view.node(ino));
                self.pool.run(move || invalidations.contents(node));
            }
            return;
        }
        let (core, data) = (Arc::clone(core), if retry { data.to_vec() } else { Vec::new() });
        let pool = if retry { &self.rests } else { &self.pool };
        pool.run(move || {
            let again = Write { ino, offset, data: &data, flags, tid };
            let put = |rest: &Write<'_>| work.run(|| core.write(&caller, rest));
            let written = if retry { core.write_rest(written, &again, put) } else { written };
            drop(work);
            let stable = written.and_then(|written| core.settle(ino, &durability).map(|()| written));
            answer(&core, stable, reply, Reply::written);
        });
    }

    fn fsync(&self, from: &InHeader, ino: InodeNo, data_only: bool, reply: Reply) {
        self.answer_stable(from, reply, move |core| core.fs.fsync(ino, data_only));
    }

    fn fsyncdir(&self, from: &InHeader, ino: InodeNo, data_only: bool, reply: Reply) {
        self.answer_stable(from, reply, move |core| {
            // sync(1) does not reach FUSE servers; fsync of the root directory stands for it.
            if ino == core.view.root { core.fs.sync() } else { core.fs.fsync(ino, data_only) }
        });
    }

    fn readdir(&self, ino: InodeNo, cookie: u64, size: usize, reply: Reply) {
        let listed = directory::list(&self.core, ino, cookie, size);
        answer(&self.core, listed, reply, |reply, listing| reply.bytes(&listing));
    }

    fn readdirplus(&self, ino: InodeNo, cookie: u64, size: usize, reply: Reply) {
        let listed = directory::list_plus(&self.core, ino, cookie, size);
        answer(&self.core, listed, reply, |reply, listing| reply.bytes(&listing));
    }

    fn setxattr(
        &self,
        from: &InHeader,
        ino: InodeNo,
        (name, value): (&[u8], &[u8]),
        flags: u32,
        reply: Reply,
    ) {
        let mode = match flags {
            0 => XattrSetMode::Set,
            1 => XattrSetMode::Create,
            2 => XattrSetMode::Replace,
            _ => return reply.error(Errno::INVAL),
        };
        let core = &self.core;
        let caller = core.view.caller(from, 0);
        let set = self.within(from, &[ino], |core| core.set_xattr(&caller, ino, (name, value), mode));
        if lacks_space(&set) {
            let (name, value) = (name.to_vec(), value.to_vec());
            return self
                .again(from, &[ino], reply, move |core| core.set_xattr(&caller, ino, (&name, &value), mode));
        }
        self.answer_done(set, reply);
    }

    fn getxattr(&self, ino: InodeNo, name: &[u8], size: u32, reply: Reply) {
        let core = &self.core;
        let value = if name == CAPABILITY { core.capability(ino) } else { core.fs.getxattr(ino, name) };
        answer_value(core, value, size, reply);
    }

    fn listxattr(&self, from: &InHeader, ino: InodeNo, size: u32, reply: Reply) {
        // Trusted attributes are root's own affair, even their names.
        let visible = |name: &Vec<u8>| from.uid == 0 || !name.starts_with(b"trusted.");
        let names = self.core.fs.listxattr(ino).map(|names| {
            let mut bytes = Vec::new();
            for name in names.into_iter().filter(visible) {
                bytes.extend(name);
                bytes.push(0);
            }
            bytes
        });
        answer_value(&self.core, names, size, reply);
    }

    fn removexattr(&self, from: &InHeader, ino: InodeNo, name: &[u8], reply: Reply) {
        let caller = self.core.view.caller(from, 0);
        let removed = self.within(from, &[ino], |core| core.fs.removexattr(&caller, ino, name));
        self.answer_done(removed, reply);
    }

    fn ioctl(&self, from: &InHeader, node: Node, (cmd, input): (u32, &[u8]), out_size: usize, reply: Reply) {
        let (core, ino) = (&self.core, self.core.view.ino(node));
        if cmd == ioctl::SHUT_DOWN {
            let by_root = from.uid == 0;
            let core = Arc::clone(core);
            // It waits for writes that are under way.
            return self.pool.run(move || {
                answer(&core, ioctl::shut_down(&core, by_root), reply, |reply, ()| reply.ioctl(&[]));
            });
        }
        if let Some(asked) = patchgroups::Asked::decode(cmd, ino, input) {
            return self.answer_call(from, asked, reply);
        }
        let done = ioctl::Command::from_number(cmd).and_then(|command| {
            let caller = core.view.caller(from, 0);
            let out = self.within(from, &[ino], |core| {
                ioctl::perform(core, &caller, ino, (command, input), out_size)
            })?;
            Ok((command, out))
        });
        let changed = matches!(&done, Ok((command, _)) if command.changes());
        answer_change(core, &self.pool, done, reply, |reply, (_, out)| reply.ioctl(&out));
        if changed {
            let invalidations = self.invalidations.clone();
            self.pool.run(move || invalidations.attributes(node));
        }
    }

    fn fallocate(&self, from: &InHeader, ino: InodeNo, (offset, len): (u64, u64), mode: u32, reply: Reply) {
        let mode = match self::core::fallocate_mode(mode) {
            Ok(mode) => mode,
            Err(e) => return reply.error(self.core.errors.errno(&e)),
        };
        let caller = self.core.view.caller(from, 0);
        let work = match self.core.scopes.work(from.pid, &[ino]) {
            Ok(work) => work,
            Err(e) => return reply.error(self.core.errors.errno(&e)),
        };
        // Allocating gigabytes takes a while: never on a worker.
        let is_root = from.uid == 0;
        self.answer_later(reply, move |core| {
            if core.kills_privileges() {
                core.drop_before_write(&caller, ino, !is_root)?;
            }
            core.patiently(|| work.run(|| core.fs.fallocate(&caller, ino, offset, len, mode)))?;
            drop(work);
            if core.sync { core.fs.fsync(ino, false) } else { Ok(()) }
        });
    }

    /// What `copy_file_range` asks: the kernel copies what cannot be shared.
    fn share(&self, from: &InHeader, source: (InodeNo, u64), to: (InodeNo, u64), len: u64, reply: Reply) {
        let core = Arc::clone(&self.core);
        let caller = core.view.caller(from, 0);
        let work = match core.scopes.work(from.pid, &[to.0]) {
            Ok(work) => work,
            Err(e) => return reply.error(core.errors.errno(&e)),
        };
        let is_root = from.uid == 0;
        self.pool.run(move || {
            let len = len.min(SHARED_MAX);
            let share = || {
                if core.kills_privileges() {
                    core.drop_before_write(&caller, to.0, !is_root)?;
                }
                let shared = core.patiently(|| work.run(|| core.fs.share(&caller, source, to, len)))?;
                drop(work);
                if core.sync { core.fs.fsync(to.0, false).map(|()| shared) } else { Ok(shared) }
            };
            let shared = share().map(|shared| u32::try_from(shared).expect("no more than was asked for"));
            answer(&core, shared, reply, Reply::written);
        });
    }

    fn lseek(&self, ino: InodeNo, offset: u64, whence: u32, reply: Reply) {
        const SEEK_DATA: u32 = 3;
        const SEEK_HOLE: u32 = 4;
        if self.core.writes_late {
            // The kernel asks without having passed on what it keeps: it knows better, and from now on asks itself.
            return reply.error(Errno::NOSYS);
        }
        let whence = match whence {
            SEEK_DATA => SeekFrom::Data,
            SEEK_HOLE => SeekFrom::Hole,
            _ => return reply.error(Errno::INVAL),
        };
        if i64::try_from(offset).is_err() {
            return reply.error(Errno::NXIO);
        }
        let found = self.core.fs.seek(ino, offset, whence);
        let found = found.and_then(|at| i64::try_from(at).map(|_| at).map_err(|_| Errno::OVERFLOW.into()));
        answer(&self.core, found, reply, Reply::offset);
    }
}
