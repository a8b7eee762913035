//! A tray that is open.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fstitch_core::lock::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use fstitch_core::order::rank;
use fstitch_core::{
    Attr, BlockDevice, Caller, CheckReport, Consistency, DirEntry, Entry, Errno, FallocateMode, FileKind,
    FileSystem, InodeFlags, InodeNo, Le, RenameMode, Result, SeekFrom, SetAttr, StatFs, Timestamp,
    XattrSetMode,
};
use fstitch_formats::{References, Volume};
use fstitch_posix::table::{self, Header, Table};
use fstitch_posix::{Inode, change, expect_regular, make, name, remove};

use super::{
    BLOCK, DATA_AT, FREE, IDLE_MAX, IN_USE_AT, NAME_AT, NAME_MAX, NAMED, ORPHAN, ROOT, head, read, write,
};

/// What is in the one directory.
#[derive(Default)]
struct Folder {
    /// By block.
    names: BTreeMap<u64, Vec<u8>>,
    /// Blocks of files without a name.
    orphans: BTreeSet<u64>,
}

impl Folder {
    fn find(&self, name: &[u8]) -> Option<u64> {
        self.names.iter().find(|(_, named)| *named == name).map(|(&block, _)| block)
    }
}

/// A file in memory, or the directory.
struct File {
    header: Header,
    /// Its block.
    bytes: RwLock<Vec<u8>, rank::Inode>,
}

impl table::Node for File {
    type Kept = ();

    fn unloaded(header: Header, (): ()) -> Self {
        Self { header, bytes: RwLock::new(Vec::new()) }
    }

    fn header(&self) -> &Header {
        &self.header
    }

    fn kept(&self) {}
}

impl File {
    fn block(&self) -> u64 {
        self.header.ino().get() - 1
    }

    fn read(&self) -> Result<RwLockReadGuard<'_, Vec<u8>>> {
        let bytes = self.bytes.read();
        if bytes[0] == FREE { Err(Errno::STALE.into()) } else { Ok(bytes) }
    }

    fn write(&self) -> Result<RwLockWriteGuard<'_, Vec<u8>>> {
        let bytes = self.bytes.write();
        if bytes[0] == FREE { Err(Errno::STALE.into()) } else { Ok(bytes) }
    }
}

pub struct Opened {
    device: Arc<dyn BlockDevice>,
    read_only: bool,
    was_unclean: bool,
    /// Taken before the lock of a file.
    folder: Mutex<Folder, rank::Inode>,
    table: Table<File>,
}

fn attr_of(ino: InodeNo, file: &[u8]) -> Attr {
    if ino == ROOT {
        return root().attr;
    }
    attr_of_file(ino, file)
}

fn attr_of_file(ino: InodeNo, file: &[u8]) -> Attr {
    let size = u64::from(Le::u32(file, 12));
    Attr {
        ino,
        kind: FileKind::Regular,
        perm: Le::u16(file, 2),
        nlink: u32::from(file[0] == NAMED),
        uid: Le::u32(file, 4),
        gid: Le::u32(file, 8),
        rdev: 0,
        size,
        blocks: 2,
        blksize: 1024,
        atime: Timestamp::default(),
        mtime: Timestamp::default(),
        ctime: Timestamp::default(),
        crtime: None,
        generation: 0,
    }
}

fn root() -> Inode {
    let attr = Attr { kind: FileKind::Directory, perm: 0o755, nlink: 2, ..attr_of_file(ROOT, &[0; BLOCK]) };
    Inode { attr, flags: InodeFlags::default() }
}

fn inode(ino: InodeNo, file: &[u8]) -> Inode {
    Inode { attr: attr_of(ino, file), flags: InodeFlags::default() }
}

fn expect_root(parent: InodeNo) -> Result<()> {
    if parent == ROOT { Ok(()) } else { Err(Errno::NOTDIR.into()) }
}

fn name_of(file: &[u8]) -> &[u8] {
    &file[NAME_AT..NAME_AT + usize::from(file[1])]
}

fn put_name(file: &mut [u8], name: &[u8]) {
    file[1] = u8::try_from(name.len()).expect("it was checked");
    file[NAME_AT..NAME_AT + name.len()].copy_from_slice(name);
}

fn unsupported<T>() -> Result<T> {
    Err(Errno::OPNOTSUPP.into())
}

impl Opened {
    /// Opens a volume; orphans of the time before are freed.
    pub fn new(device: Arc<dyn BlockDevice>, read_only: bool) -> Result<Self> {
        let mut first = head(&*device)?;
        let was_unclean = first[IN_USE_AT] != 0;
        let mut folder = Folder::default();
        for block in 1..device.geometry().block_count {
            let mut file = read(&*device, block)?;
            match file[0] {
                NAMED => drop(folder.names.insert(block, name_of(&file).to_vec())),
                ORPHAN if read_only => drop(folder.orphans.insert(block)),
                ORPHAN => {
                    file[0] = FREE;
                    write(&*device, block, &file)?;
                }
                _ => {}
            }
        }
        if !read_only {
            first[IN_USE_AT] = 1;
            write(&*device, 0, &first)?;
        }
        let (folder, table) = (Mutex::new(folder), Table::new(IDLE_MAX));
        Ok(Self { device, read_only, was_unclean, folder, table })
    }

    fn expect_writable(&self) -> Result<()> {
        if self.read_only { Err(Errno::ROFS.into()) } else { Ok(()) }
    }

    /// The file of `ino` with so many more references.
    fn file(&self, ino: InodeNo, refs: u64) -> Result<Arc<File>> {
        let file = self.table.get(ino, refs, |file: &File| {
            let is_there = file.block() < self.device.geometry().block_count;
            let bytes = if is_there { read(&*self.device, file.block())? } else { vec![FREE] };
            if bytes[0] == FREE {
                return Err(Errno::STALE.into());
            }
            *file.bytes.write() = bytes;
            Ok(())
        });
        self.evict();
        file
    }

    /// Everything is stable: whoever is not in use may leave.
    fn evict(&self) {
        self.table.evict(|file| file.bytes.try_read().map(|_| ()));
    }

    fn entry(&self, ino: InodeNo) -> Result<Entry> {
        let file = self.file(ino, 1)?;
        let attr = file.read().map(|bytes| attr_of(ino, &bytes));
        if attr.is_err() {
            self.forget(ino, 1);
        }
        Ok(Entry { attr: attr? })
    }

    /// Changes a file by one write of its block.
    fn change<T>(&self, ino: InodeNo, how: impl FnOnce(&mut [u8], &Inode) -> Result<T>) -> Result<T> {
        self.expect_writable()?;
        let file = self.file(ino, 0)?;
        let mut bytes = file.write()?;
        let (mut new, seen) = (bytes.clone(), inode(ino, &bytes));
        expect_regular(seen.attr.kind)?;
        let done = how(&mut new, &seen)?;
        write(&*self.device, file.block(), &new)?;
        *bytes = new;
        Ok(done)
    }

    /// Frees a file that has neither a name nor references, unless somebody else does. One that cannot be freed goes when the volume is
    /// opened again.
    fn settle(&self, file: &Arc<File>) {
        if self.table.claim_orphan(file) && self.free(file).is_err() {
            file.header.unclaim();
        }
    }

    fn free(&self, file: &Arc<File>) -> Result<()> {
        {
            let mut bytes = file.write()?;
            let mut new = bytes.clone();
            new[0] = FREE;
            write(&*self.device, file.block(), &new)?;
            *bytes = new;
        }
        self.table.remove(file);
        self.folder.lock().orphans.remove(&file.block());
        Ok(())
    }
}

impl Volume for Opened {
    fn format_name(&self) -> &'static str {
        "tray"
    }

    fn consistency(&self) -> Consistency {
        Consistency::Sync
    }

    fn was_unclean(&self) -> bool {
        self.was_unclean
    }

    fn references(&self) -> References {
        self.table.references()
    }

    fn take_over(&self, references: &References) {
        for &(ino, count) in references {
            // A file that is gone answers `ESTALE` to whoever still asks for it.
            let _ = self.file(ino, count);
        }
    }
}

impl FileSystem for Opened {
    fn root(&self) -> InodeNo {
        ROOT
    }

    fn lookup(&self, parent: InodeNo, name: &[u8]) -> Result<Entry> {
        name::check(name, NAME_MAX)?;
        expect_root(parent)?;
        if name::is_dots(name) {
            return self.entry(ROOT);
        }
        let folder = self.folder.lock();
        let block = folder.find(name).ok_or(Errno::NOENT)?;
        self.entry(InodeNo(block + 1))
    }

    fn forget(&self, ino: InodeNo, count: u64) {
        if let Some(file) = self.table.release(ino, count) {
            self.settle(&file);
        }
        self.evict();
    }

    fn getattr(&self, ino: InodeNo) -> Result<Attr> {
        Ok(attr_of(ino, &self.file(ino, 0)?.read()?))
    }

    fn setattr(&self, _caller: &Caller, ino: InodeNo, set: &SetAttr) -> Result<Attr> {
        self.change(ino, |file, seen| {
            change::check_setattr(seen.flags, set)?;
            if let Some(size) = set.size {
                change::check_truncate(seen, size, (BLOCK - DATA_AT) as u64)?;
                file[DATA_AT + usize::try_from(size).expect("small")..].fill(0);
                Le::put_u32(file, 12, u32::try_from(size).expect("small"));
            }
            if let Some(perm) = change::perm_after(&seen.attr, set) {
                Le::put_u16(file, 2, perm);
            }
            for (at, id) in [(4, set.uid), (8, set.gid)] {
                if let Some(id) = id {
                    Le::put_u32(file, at, id);
                }
            }
            Ok(attr_of(ino, file))
        })
    }

    fn readlink(&self, _ino: InodeNo) -> Result<Vec<u8>> {
        Err(Errno::INVAL.into())
    }

    fn mknod(&self, caller: &Caller, parent: InodeNo, name: &[u8], mode: u16, rdev: u32) -> Result<Entry> {
        name::check(name, NAME_MAX)?;
        let (kind, _) = make::node_kind(mode, rdev)?;
        expect_regular(kind)?;
        self.expect_writable()?;
        expect_root(parent)?;
        let mut folder = self.folder.lock();
        make::check_new_name(&root(), name::is_dots(name) || folder.find(name).is_some())?;
        let heritage = make::heritage(&root(), caller, (kind, mode & 0o7777), None);
        let is_free = |block: &u64| !folder.names.contains_key(block) && !folder.orphans.contains(block);
        let block = (1..self.device.geometry().block_count).find(is_free).ok_or(Errno::NOSPC)?;
        let mut bytes = vec![0; BLOCK];
        bytes[0] = NAMED;
        Le::put_u16(&mut bytes, 2, heritage.perm);
        Le::put_u32(&mut bytes, 4, caller.uid);
        Le::put_u32(&mut bytes, 8, heritage.gid);
        put_name(&mut bytes, name);
        write(&*self.device, block, &bytes)?;
        folder.names.insert(block, name.to_vec());
        let ino = InodeNo(block + 1);
        let attr = attr_of(ino, &bytes);
        self.table.insert(Arc::new(File { header: Header::made(ino), bytes: RwLock::new(bytes) }));
        Ok(Entry { attr })
    }

    fn mkdir(&self, _caller: &Caller, _parent: InodeNo, _name: &[u8], _perm: u16) -> Result<Entry> {
        unsupported()
    }

    fn symlink(&self, _caller: &Caller, _parent: InodeNo, _name: &[u8], _target: &[u8]) -> Result<Entry> {
        unsupported()
    }

    fn link(&self, _caller: &Caller, _ino: InodeNo, _parent: InodeNo, _name: &[u8]) -> Result<Entry> {
        unsupported()
    }

    fn tmpfile(&self, _caller: &Caller, _parent: InodeNo, _perm: u16) -> Result<Entry> {
        unsupported()
    }

    fn unlink(&self, _caller: &Caller, parent: InodeNo, name: &[u8]) -> Result<()> {
        self.expect_writable()?;
        expect_root(parent)?;
        let mut folder = self.folder.lock();
        let block = folder.find(name).ok_or(Errno::NOENT)?;
        let ino = InodeNo(block + 1);
        let file = self.file(ino, 0)?;
        self.change(ino, |bytes, seen| {
            remove::check_remove(&root(), seen, FileKind::Regular, (false, || Ok(true)))?;
            bytes[0] = ORPHAN;
            Ok(())
        })?;
        file.header.set_orphan(true);
        folder.names.remove(&block);
        folder.orphans.insert(block);
        drop(folder);
        self.settle(&file);
        Ok(())
    }

    fn rmdir(&self, _caller: &Caller, parent: InodeNo, name: &[u8]) -> Result<()> {
        remove::check_rmdir_name(name)?;
        self.expect_writable()?;
        expect_root(parent)?;
        let folder = self.folder.lock();
        let block = folder.find(name).ok_or(Errno::NOENT)?;
        let ino = InodeNo(block + 1);
        let victim = inode(ino, &self.file(ino, 0)?.read()?);
        remove::check_remove(&root(), &victim, FileKind::Directory, (false, || Ok(true)))
    }

    fn rename(
        &self,
        _caller: &Caller,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        name::check(to.1, NAME_MAX)?;
        self.expect_writable()?;
        let mut folder = self.folder.lock();
        let block = folder.find(from.1).ok_or(Errno::NOENT)?;
        remove::check_target_exists(mode, folder.find(to.1).is_some())?;
        // It would take two blocks, and the toy writes one.
        if folder.find(to.1).is_some() {
            return unsupported();
        }
        self.change(InodeNo(block + 1), |bytes, _| {
            put_name(bytes, to.1);
            Ok(())
        })?;
        folder.names.insert(block, to.1.to_vec());
        Ok(())
    }

    fn read(&self, ino: InodeNo, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let file = self.file(ino, 0)?;
        let bytes = file.read()?;
        let attr = attr_of(ino, &bytes);
        expect_regular(attr.kind)?;
        let size = usize::try_from(attr.size).expect("small");
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(size);
        let len = buf.len().min(size - start);
        buf[..len].copy_from_slice(&bytes[DATA_AT + start..DATA_AT + start + len]);
        Ok(len)
    }

    fn write(&self, caller: &Caller, ino: InodeNo, offset: u64, data: &[u8]) -> Result<usize> {
        self.change(ino, |file, seen| {
            change::check_write(seen, offset)?;
            let start = DATA_AT + usize::try_from(offset).unwrap_or(BLOCK).min(BLOCK - DATA_AT);
            let len = data.len().min(BLOCK - start);
            if len == 0 {
                return Err(Errno::FBIG.into());
            }
            file[start..start + len].copy_from_slice(&data[..len]);
            let end = u32::try_from(start + len - DATA_AT).expect("small");
            let size = Le::u32(file, 12).max(end);
            Le::put_u32(file, 12, size);
            if let Some(perm) = change::perm_after_write(caller, seen.attr.perm) {
                Le::put_u16(file, 2, perm);
            }
            Ok(len)
        })
    }

    fn write_back(&self, ino: InodeNo, offset: u64, data: &[u8], _stamps: bool) -> Result<usize> {
        self.write(&Caller::default(), ino, offset, data)
    }

    fn fallocate(
        &self,
        _caller: &Caller,
        _ino: InodeNo,
        _offset: u64,
        _len: u64,
        _mode: FallocateMode,
    ) -> Result<()> {
        unsupported()
    }

    fn seek(&self, _ino: InodeNo, offset: u64, _whence: SeekFrom) -> Result<u64> {
        Ok(offset)
    }

    fn readdir(&self, _ino: InodeNo, cookie: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        for (&block, name) in self.folder.lock().names.range(cookie..) {
            let kind = Some(FileKind::Regular);
            let entry = DirEntry { ino: InodeNo(block + 1), kind, name, next: block + 1 };
            if !sink(entry) {
                break;
            }
        }
        Ok(())
    }

    fn fsync(&self, _ino: InodeNo, _data_only: bool) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn statfs(&self) -> Result<StatFs> {
        let blocks = self.device.geometry().block_count - 1;
        let folder = self.folder.lock();
        let free = blocks - (folder.names.len() + folder.orphans.len()) as u64;
        Ok(StatFs {
            block_size: 1024,
            blocks,
            blocks_free: free,
            blocks_available: free,
            ..StatFs::default()
        })
    }

    fn getxattr(&self, _ino: InodeNo, _name: &[u8]) -> Result<Vec<u8>> {
        unsupported()
    }

    fn setxattr(
        &self,
        _caller: &Caller,
        _ino: InodeNo,
        _name: &[u8],
        _value: &[u8],
        _mode: XattrSetMode,
    ) -> Result<()> {
        unsupported()
    }

    fn listxattr(&self, _ino: InodeNo) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }

    fn removexattr(&self, _caller: &Caller, _ino: InodeNo, _name: &[u8]) -> Result<()> {
        unsupported()
    }

    fn flags(&self, _ino: InodeNo) -> Result<InodeFlags> {
        Ok(InodeFlags::default())
    }

    fn set_flags(&self, _caller: &Caller, _ino: InodeNo, _flags: InodeFlags) -> Result<()> {
        unsupported()
    }

    fn check(&self) -> Result<CheckReport> {
        Ok(CheckReport::default())
    }

    fn unmount(&self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        for file in self.table.all() {
            if file.header.claim_referred_orphan() {
                self.free(&file)?;
            }
        }
        let mut first = head(&*self.device)?;
        first[IN_USE_AT] = 0;
        write(&*self.device, 0, &first)
    }
}
