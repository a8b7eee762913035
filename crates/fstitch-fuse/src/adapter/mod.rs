//! The FUSE requests, each translated into one operation of the file system.
//!
//! Handlers run on the one or two workers and answer at once; what waits for the medium is answered by a helper
//! ([`crate::pool::Pool`]).

mod answer;
mod convert;
mod core;
mod directory;
mod invalidate;
mod ioctl;
mod patchgroups;
mod privileges;
mod replies;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use fstitch_core::{Errno, SeekFrom, SetAttr, XattrSetMode};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, FileHandle, FopenFlags, INodeNo, InitFlags, IoctlFlags, KernelConfig,
    LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use self::answer::{Fail, answer, answer_change, answer_value};
use self::convert::{bits16, generation, set_time};
use self::core::{Core, Durability, Write, lacks_space};
pub(crate) use self::invalidate::Invalidations;
use self::privileges::CAPABILITY;
use crate::pool::Pool;

/// The longest read or write in one request, in bytes.
const TRANSFER_MAX: u32 = 1 << 20;

thread_local! {
    /// Where a worker reads file contents; it grows to the longest request and stays.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The kernel's requests, answered by a file system.
pub(crate) struct Adapter {
    core: Arc<Core>,
    pool: Pool,
    calls: Pool,
    invalidations: Invalidations,
    /// The kernel opens and closes files without asking.
    opens_by_itself: bool,
    opens_directories_by_itself: bool,
    /// The kernel checks permissions. Asking it to know access lists would make it do so in any case.
    checks_permissions: bool,
}

impl fuser::Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let mut has = |flags| config.add_capabilities(flags).is_ok();
        let wished = [
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_DONT_MASK,
            InitFlags::FUSE_EXPLICIT_INVAL_DATA,
            InitFlags::FUSE_HAS_IOCTL_DIR,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
        ];
        if self.checks_permissions && !has(InitFlags::FUSE_POSIX_ACL) {
            tracing::debug!("this kernel does not know access lists here");
        }
        for flag in wished {
            if !has(flag) {
                tracing::debug!("this kernel lacks {flag:?}");
            }
        }
        self.opens_by_itself = has(InitFlags::FUSE_NO_OPEN_SUPPORT);
        self.opens_directories_by_itself = has(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        let kills = has(InitFlags::FUSE_HANDLE_KILLPRIV_V2);
        self.core.kills_privileges.store(kills, Ordering::Relaxed);
        if let Err(most) = config.set_max_write(TRANSFER_MAX) {
            tracing::debug!("requests are at most {most} bytes long");
        }
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let view = &self.core.view;
        let found = self.core.fs.lookup(view.ino(parent), name.as_bytes());
        match found {
            Err(e) if e.errno() == Errno::NOENT => {
                reply.entry(&view.ttl, &view.absent(), fuser::Generation(0));
            }
            found => answer(&self.core, found, reply, |reply: ReplyEntry, entry| {
                reply.entry(&view.ttl, &view.entry(&entry.attr), generation(&entry.attr));
            }),
        }
    }

    fn forget(&self, _request: &Request, ino: INodeNo, nlookup: u64) {
        let ino = self.core.view.ino(ino);
        self.core.without_capability.forget(ino);
        self.core.fs.forget(ino, nlookup);
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let view = &self.core.view;
        answer(&self.core, self.core.fs.getattr(view.ino(ino)), reply, |reply: ReplyAttr, attr| {
            reply.attr(&view.ttl, &view.attr(&attr));
        });
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = SetAttr {
            perm: mode.map(|mode| bits16(mode) & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            ctime: None,
        };
        let core = Arc::clone(&self.core);
        let (caller, as_seen) = (core.view.caller(request, 0), request.uid());
        let ino = core.view.ino(ino);
        let work = match core.scopes.work(request.pid(), &[ino]) {
            Ok(work) => work,
            Err(e) => return reply.fail(core.errors.errno(&e)),
        };
        let long = self.core.is_long(ino, &set) || (self.core.sync && set.size.is_some());
        let change = move || {
            let result = work.run(|| core.setattr(&caller, as_seen, ino, &set));
            drop(work);
            let stable =
                if core.sync { result.and_then(|a| core.fs.fsync(ino, false).map(|()| a)) } else { result };
            answer(&core, stable, reply, |reply: ReplyAttr, attr| {
                reply.attr(&core.view.ttl, &core.view.attr(&attr));
            });
        };
        if long || self.core.sync { self.pool.run(change) } else { change() }
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        let target = self.core.fs.readlink(self.core.view.ino(ino));
        answer(&self.core, target, reply, |reply: ReplyData, target| reply.data(&target));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let view = &self.core.view;
        let (caller, parent, name) =
            (view.caller(request, umask), view.ino(parent), name.as_bytes().to_vec());
        let work = self.core.scopes.work(request.pid(), &[parent]);
        self.make(work, reply, move |core| core.fs.mknod(&caller, parent, &name, bits16(mode), rdev));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let view = &self.core.view;
        let (caller, parent, name) =
            (view.caller(request, umask), view.ino(parent), name.as_bytes().to_vec());
        let work = self.core.scopes.work(request.pid(), &[parent]);
        self.make(work, reply, move |core| core.fs.mkdir(&caller, parent, &name, bits16(mode) & 0o7777));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let view = &self.core.view;
        let (caller, parent) = (view.caller(request, 0), view.ino(parent));
        let (name, target) = (name.as_bytes().to_vec(), target.as_os_str().as_bytes().to_vec());
        let work = self.core.scopes.work(request.pid(), &[parent]);
        self.make(work, reply, move |core| core.fs.symlink(&caller, parent, &name, &target));
    }

    fn link(&self, request: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let view = &self.core.view;
        let (caller, ino, parent) = (view.caller(request, 0), view.ino(ino), view.ino(parent));
        let name = name.as_bytes().to_vec();
        let work = self.core.scopes.work(request.pid(), &[ino, parent]);
        self.make(work, reply, move |core| core.fs.link(&caller, ino, parent, &name));
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let view = &self.core.view;
        let (caller, parent) = (view.caller(request, 0), view.ino(parent));
        let removed =
            self.within(request, &[parent], |core| core.fs.unlink(&caller, parent, name.as_bytes()));
        self.answer_done(self.core.note_removal(removed), reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let view = &self.core.view;
        let (caller, parent) = (view.caller(request, 0), view.ino(parent));
        let removed = self.within(request, &[parent], |core| core.fs.rmdir(&caller, parent, name.as_bytes()));
        self.answer_done(self.core.note_removal(removed), reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let view = &self.core.view;
        let caller = view.caller(request, 0);
        let (from, to) = ((view.ino(parent), name.as_bytes()), (view.ino(newparent), newname.as_bytes()));
        let moved = self::core::rename_mode(flags).and_then(|mode| {
            self.within(request, &[from.0, to.0], |core| core.fs.rename(&caller, from, to, mode))
        });
        self.answer_done(self.core.note_removal(moved), reply);
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.opens_by_itself {
            reply.error(fuser::Errno::ENOSYS);
        } else {
            reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
        }
    }

    fn create(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        // The kernel then makes files by mknod and opens them by itself: one request instead of two, and no
        // release.
        reply.error(fuser::Errno::ENOSYS);
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let len = usize::try_from(size).expect("64-bit machine");
        READ_BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < len {
                buffer.resize(len, 0);
            }
            let read = self.core.fs.read(self.core.view.ino(ino), offset, &mut buffer[..len]);
            answer(&self.core, read, reply, |reply: ReplyData, read| reply.data(&buffer[..read]));
        });
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let core = &self.core;
        let (ino, caller) = (core.view.ino(ino), core.view.caller(request, 0));
        let work = match core.work_of_write(request.pid(), ino, write_flags) {
            Ok(work) => work,
            Err(e) => return reply.fail(core.errors.errno(&e)),
        };
        let written = work.run(|| core.write(&caller, &Write { ino, offset, data, flags: write_flags }));
        let durability = core.durability(request.pid(), flags.0);
        let retry = lacks_space(&written);
        if !retry && (matches!(durability, Durability::Volatile) || written.is_err()) {
            drop(work);
            return answer(core, written, reply, |reply: ReplyWrite, written| reply.written(written));
        }
        let (core, data) = (Arc::clone(core), if retry { data.to_vec() } else { Vec::new() });
        self.pool.run(move || {
            let again = Write { ino, offset, data: &data, flags: write_flags };
            let write = || work.run(|| core.write(&caller, &again));
            let written = if retry { core.patiently(write) } else { written };
            drop(work);
            let stable = written.and_then(|written| core.settle(ino, &durability).map(|()| written));
            answer(&core, stable, reply, |reply: ReplyWrite, written| reply.written(written));
        });
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Nothing is held back for close(2) to write, and the kernel keeps locks itself.
        reply.error(fuser::Errno::ENOSYS);
    }

    fn fsync(&self, request: &Request, ino: INodeNo, _fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        let ino = self.core.view.ino(ino);
        self.answer_stable(request, reply, move |core| core.fs.fsync(ino, datasync));
    }

    fn opendir(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.opens_directories_by_itself {
            reply.error(fuser::Errno::ENOSYS);
        } else {
            reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR);
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = directory::list(&self.core, self.core.view.ino(ino), offset, &mut reply);
        answer(&self.core, listed, reply, |reply: ReplyDirectory, ()| reply.ok());
    }

    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = directory::list_plus(&self.core, self.core.view.ino(ino), offset, &mut reply);
        answer(&self.core, listed, reply, |reply: ReplyDirectoryPlus, ()| reply.ok());
    }

    fn fsyncdir(&self, request: &Request, ino: INodeNo, _fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        let ino = self.core.view.ino(ino);
        self.answer_stable(request, reply, move |core| {
            // sync(1) does not reach FUSE servers; fsync of the root directory stands for it.
            if ino == core.view.root { core.fs.sync() } else { core.fs.fsync(ino, datasync) }
        });
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        answer(&self.core, self.core.fs.statfs(), reply, |reply: ReplyStatfs, s| {
            reply.statfs(
                s.blocks,
                s.blocks_free,
                s.blocks_available,
                s.inodes,
                s.inodes_free,
                s.block_size,
                s.name_max,
                s.block_size,
            );
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            0 => XattrSetMode::Set,
            1 => XattrSetMode::Create,
            2 => XattrSetMode::Replace,
            _ => return reply.error(fuser::Errno::EINVAL),
        };
        let (core, ino) = (&self.core, self.core.view.ino(ino));
        let caller = core.view.caller(request, 0);
        let set =
            self.within(request, &[ino], |core| core.fs.setxattr(&caller, ino, name.as_bytes(), value, mode));
        if name.as_bytes() == CAPABILITY {
            core.without_capability.forget(ino);
        }
        self.answer_done(set, reply);
    }

    fn getxattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let (core, ino) = (&self.core, self.core.view.ino(ino));
        let value = match name.as_bytes() {
            CAPABILITY => core.capability(ino),
            name => core.fs.getxattr(ino, name),
        };
        answer_value(core, value, size, reply);
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        // Trusted attributes are root's own affair, even their names.
        let visible = |name: &Vec<u8>| request.uid() == 0 || !name.starts_with(b"trusted.");
        let names = self.core.fs.listxattr(self.core.view.ino(ino)).map(|names| {
            let mut bytes = Vec::new();
            for name in names.into_iter().filter(visible) {
                bytes.extend(name);
                bytes.push(0);
            }
            bytes
        });
        answer_value(&self.core, names, size, reply);
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let view = &self.core.view;
        let (caller, ino) = (view.caller(request, 0), view.ino(ino));
        let removed = self.within(request, &[ino], |core| core.fs.removexattr(&caller, ino, name.as_bytes()));
        self.answer_done(removed, reply);
    }

    fn ioctl(
        &self,
        request: &Request,
        node: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        out_size: u32,
        reply: ReplyIoctl,
    ) {
        let core = &self.core;
        if cmd == ioctl::SHUT_DOWN {
            let by_root = request.uid() == 0;
            let core = Arc::clone(core);
            // It waits for writes that are under way.
            return self.pool.run(move || {
                answer(&core, ioctl::shut_down(&core, by_root), reply, |reply: ReplyIoctl, ()| {
                    reply.ioctl(0, &[]);
                });
            });
        }
        if let Some(asked) = patchgroups::Asked::decode(cmd, core.view.ino(node), in_data) {
            return self.answer_call(request, asked, reply);
        }
        let out_len = usize::try_from(out_size).expect("64-bit machine");
        let done = ioctl::Command::from_number(cmd).and_then(|command| {
            let caller = core.view.caller(request, 0);
            let ino = core.view.ino(node);
            let out = self.within(request, &[ino], |core| {
                ioctl::perform(core, &caller, ino, (command, in_data), out_len)
            })?;
            Ok((command, out))
        });
        let changed = matches!(&done, Ok((command, _)) if command.changes());
        answer_change(core, &self.pool, done, reply, |reply: ReplyIoctl, (_, out)| reply.ioctl(0, &out));
        if changed {
            let invalidations = self.invalidations.clone();
            self.pool.run(move || invalidations.attributes(node));
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let mode = match self::core::fallocate_mode(mode) {
            Ok(mode) => mode,
            Err(e) => return reply.error(self.core.errors.errno(&e)),
        };
        let (caller, ino) = (self.core.view.caller(request, 0), self.core.view.ino(ino));
        let work = match self.core.scopes.work(request.pid(), &[ino]) {
            Ok(work) => work,
            Err(e) => return reply.fail(self.core.errors.errno(&e)),
        };
        // Allocating gigabytes takes a while: never on a worker.
        self.answer_later(reply, move |core| {
            core.patiently(|| work.run(|| core.fs.fallocate(&caller, ino, offset, length, mode)))?;
            drop(work);
            if core.sync { core.fs.fsync(ino, false) } else { Ok(()) }
        });
    }

    fn lseek(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        const SEEK_DATA: i32 = 3;
        const SEEK_HOLE: i32 = 4;
        let whence = match whence {
            SEEK_DATA => SeekFrom::Data,
            SEEK_HOLE => SeekFrom::Hole,
            _ => return reply.error(fuser::Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(fuser::Errno::ENXIO) };
        let found = self.core.fs.seek(self.core.view.ino(ino), offset, whence);
        let found = found.and_then(|at| i64::try_from(at).map_err(|_| Errno::OVERFLOW.into()));
        answer(&self.core, found, reply, |reply: ReplyLseek, at| reply.offset(at));
    }

    fn copy_file_range(
        &self,
        _request: &Request,
        _ino_in: INodeNo,
        _fh_in: FileHandle,
        _offset_in: u64,
        _ino_out: INodeNo,
        _fh_out: FileHandle,
        _offset_out: u64,
        _len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        // The kernel then copies through the page cache.
        reply.error(fuser::Errno::ENOSYS);
    }

    fn poll(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _notifier: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        // Files are always ready, which the kernel then answers itself.
        reply.error(fuser::Errno::ENOSYS);
    }
}
