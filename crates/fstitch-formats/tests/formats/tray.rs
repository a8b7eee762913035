//! A toy: one directory, a block for each file, everything stable when a call returns.
//!
//! **Layout.** Block 0: `TRAY`, label (16 bytes from 4), UUID (16 from 20), in use (1 byte at 36). Each other block, if its first
//! byte is 1, is a file: length of its name (1), permissions (2 from 2), owner, group, size (4 each from 4), name (64 from 16),
//! contents (from 80). **Crash cases.** Each operation writes one block, which is torn at most at its sectors; names and sizes
//! are in the first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use fstitch_core::{
    Attr, BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Caller, CheckReport, Clock, Consistency,
    DirEntry, Entry, Errno, Error, FallocateMode, FileKind, FileSystem, InodeFlags, InodeNo, Le, RenameMode,
    RepairOptions, RepairReport, Result, SeekFrom, SetAttr, StatFs, Structure, Timestamp, XattrSetMode,
};
use fstitch_formats::make::{Asked, Fresh, Made, Making};
use fstitch_formats::{Description, Field, Format, Identity, Look, OwnJournal, References, Volume, show};
use fstitch_fs::arrange::Arrangement;
use fstitch_posix::{Inode, change, expect_regular, make, name, remove};
use serde_json::{Map, Value};

const MAGIC: &[u8; 4] = b"TRAY";
const BLOCK: usize = 1024;
const NAME_MAX: usize = 64;
const NAME_AT: usize = 16;
const DATA_AT: usize = 80;
const ROOT: InodeNo = InodeNo(1);
const IN_USE_AT: usize = 36;

pub struct Tray;

fn read(device: &dyn BlockDevice, block: u64) -> Result<Vec<u8>> {
    let mut data = vec![0; BLOCK];
    let kind = BlockKind::Data;
    device.read(&mut [BlockRead { block: BlockNo(block), kind, data: &mut data }])?;
    Ok(data)
}

fn write(device: &dyn BlockDevice, block: u64, data: &[u8]) -> Result<()> {
    device.write(&[BlockWrite { block: BlockNo(block), kind: BlockKind::Data, data }])?;
    device.flush()
}

fn head(device: &dyn BlockDevice) -> Result<Vec<u8>> {
    if device.geometry().block_count == 0 {
        return Err(Error::corrupt(Structure::Other("tray"), None, "nothing is there"));
    }
    let head = read(device, 0)?;
    if head.starts_with(MAGIC) {
        Ok(head)
    } else {
        Err(Error::corrupt(Structure::Other("tray"), None, "no magic number"))
    }
}

impl Format for Tray {
    fn names(&self) -> &'static [&'static str] {
        &["tray"]
    }

    fn thing(&self) -> &'static str {
        "a tray"
    }

    fn absent(&self) -> &'static str {
        "no TRAY at its start"
    }

    fn probe(&self, head: &[u8]) -> Option<std::result::Result<u32, String>> {
        head.starts_with(MAGIC).then_some(Ok(1024))
    }

    fn look(&self, device: &dyn BlockDevice) -> Result<Look> {
        head(device).map(|_| Look { block_size: 1024, journal: OwnJournal::None })
    }

    fn open(
        &self,
        device: Arc<dyn BlockDevice>,
        arrangement: &Arrangement,
        _clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn Volume>> {
        let mut first = head(&*device)?;
        let was_unclean = first[IN_USE_AT] != 0;
        let mut files = BTreeMap::new();
        for block in 1..device.geometry().block_count {
            let file = read(&*device, block)?;
            if file[0] == 1 {
                files.insert(block, file);
            }
        }
        let read_only = arrangement.fs.read_only;
        if !read_only {
            first[IN_USE_AT] = 1;
            write(&*device, 0, &first)?;
        }
        let state = Mutex::new(State { files, references: BTreeMap::new() });
        Ok(Arc::new(Opened { device, read_only, was_unclean, state }))
    }

    fn describe(
        &self,
        device: &dyn BlockDevice,
        _external: Option<&dyn BlockDevice>,
        _details: bool,
    ) -> Result<Description> {
        let head = head(device)?;
        let label = head[4..20].split(|&byte| byte == 0).next().unwrap_or_default();
        let label = String::from_utf8_lossy(label).into_owned();
        let field = |name, text: &str| Field { name, text: text.to_owned() };
        let fields = vec![field("format", "tray"), field("label", &label)];
        let values = [("format", Value::from("tray")), ("label", Value::from(label))];
        let values = values.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Ok(Description { fields, parts: Vec::new(), values })
    }

    fn about(&self, _kind: &str) -> &'static str {
        "Make a tray"
    }

    fn plan(&self, asked: &Asked) -> Result<Box<dyn Making>> {
        Ok(Box::new(Plan(asked.label.clone(), asked.uuid)))
    }

    fn identify(&self, device: &dyn BlockDevice, identity: &Identity) -> Result<()> {
        let mut head = head(device)?;
        if let Some(label) = &identity.label {
            put_label(&mut head, label);
        }
        if let Some(uuid) = identity.uuid {
            head[20..36].copy_from_slice(&uuid);
        }
        write(device, 0, &head)
    }

    fn is_marked_clean(&self, device: &dyn BlockDevice) -> bool {
        head(device).is_ok_and(|head| head[IN_USE_AT] == 0)
    }

    fn repair(&self, device: &dyn BlockDevice, _options: RepairOptions) -> Result<RepairReport> {
        head(device)?;
        let (found, left) = (CheckReport::default(), CheckReport::default());
        Ok(RepairReport { found, mended: 0, left, runs: 1 })
    }
}

fn put_label(head: &mut [u8], label: &[u8]) {
    head[4..20].fill(0);
    head[4..4 + label.len()].copy_from_slice(label);
}

struct Plan(Vec<u8>, [u8; 16]);

impl Making for Plan {
    fn name(&self) -> &'static str {
        "tray"
    }

    fn make(&self, fresh: Fresh<'_>, _progress: &mut dyn FnMut(u64, u64)) -> Result<Made> {
        let mut head = vec![0; BLOCK];
        head[..4].copy_from_slice(MAGIC);
        put_label(&mut head, &self.0);
        head[20..36].copy_from_slice(&self.1);
        write(fresh.device, 0, &head)?;
        let blocks = fresh.device.geometry().block_count;
        let values = Map::from_iter([
            ("blocks".to_owned(), Value::from(blocks)),
            ("uuid".to_owned(), Value::from(show::uuid(&self.1))),
        ]);
        Ok(Made { name: "tray", block_size: 1024, blocks, inodes: None, values })
    }
}

struct State {
    /// By block.
    files: BTreeMap<u64, Vec<u8>>,
    references: BTreeMap<InodeNo, u64>,
}

struct Opened {
    device: Arc<dyn BlockDevice>,
    read_only: bool,
    was_unclean: bool,
    state: Mutex<State>,
}

fn attr_of(ino: InodeNo, file: &[u8]) -> Attr {
    let size = u64::from(Le::u32(file, 12));
    Attr {
        ino,
        kind: FileKind::Regular,
        perm: Le::u16(file, 2),
        nlink: 1,
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
    let attr = Attr { kind: FileKind::Directory, perm: 0o755, nlink: 2, ..attr_of(ROOT, &[0; BLOCK]) };
    Inode { attr, flags: InodeFlags::default() }
}

fn inode(block: u64, file: &[u8]) -> Inode {
    Inode { attr: attr_of(InodeNo(block + 1), file), flags: InodeFlags::default() }
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

impl State {
    fn find(&self, name: &[u8]) -> Option<u64> {
        self.files.iter().find(|(_, file)| name_of(file) == name).map(|(&block, _)| block)
    }

    fn file(&self, ino: InodeNo) -> Result<(u64, &Vec<u8>)> {
        let block = ino.get() - 1;
        self.files.get(&block).map(|file| (block, file)).ok_or(Errno::STALE.into())
    }

    fn entry(&mut self, ino: InodeNo) -> Entry {
        *self.references.entry(ino).or_default() += 1;
        let attr = if ino == ROOT { root().attr } else { attr_of(ino, &self.files[&(ino.get() - 1)]) };
        Entry { attr }
    }
}

impl Opened {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }

    fn changing(&self) -> Result<std::sync::MutexGuard<'_, State>> {
        if self.read_only { Err(Errno::ROFS.into()) } else { Ok(self.lock()) }
    }

    fn store(&self, state: &mut State, block: u64, file: Vec<u8>) -> Result<()> {
        write(&*self.device, block, &file)?;
        if file[0] == 0 {
            state.files.remove(&block)
        } else {
            state.files.insert(block, file)
        };
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
        self.lock().references.iter().map(|(&ino, &count)| (ino, count)).collect()
    }

    fn take_over(&self, references: &References) {
        self.lock().references.extend(references.iter().copied());
    }
}

impl FileSystem for Opened {
    fn root(&self) -> InodeNo {
        ROOT
    }

    fn lookup(&self, parent: InodeNo, name: &[u8]) -> Result<Entry> {
        name::check(name, NAME_MAX)?;
        let mut state = self.lock();
        match (parent == ROOT, name::is_dots(name)) {
            (false, _) => Err(Errno::NOTDIR.into()),
            (true, true) => Ok(state.entry(ROOT)),
            (true, false) => {
                let block = state.find(name).ok_or(Errno::NOENT)?;
                Ok(state.entry(InodeNo(block + 1)))
            }
        }
    }

    fn forget(&self, ino: InodeNo, count: u64) {
        let mut state = self.lock();
        let left = state.references.get(&ino).map_or(0, |held| held.saturating_sub(count));
        if left == 0 {
            state.references.remove(&ino)
        } else {
            state.references.insert(ino, left)
        };
    }

    fn getattr(&self, ino: InodeNo) -> Result<Attr> {
        if ino == ROOT { Ok(root().attr) } else { self.lock().file(ino).map(|(_, file)| attr_of(ino, file)) }
    }

    fn setattr(&self, _caller: &Caller, ino: InodeNo, set: &SetAttr) -> Result<Attr> {
        let mut state = self.changing()?;
        let (block, file) = state.file(ino)?;
        let (mut file, seen) = (file.clone(), inode(block, file));
        change::check_setattr(seen.flags, set)?;
        if let Some(size) = set.size {
            change::check_truncate(&seen, size, (BLOCK - DATA_AT) as u64)?;
            file[DATA_AT + usize::try_from(size).expect("small")..].fill(0);
            Le::put_u32(&mut file, 12, u32::try_from(size).expect("small"));
        }
        if let Some(perm) = change::perm_after(&seen.attr, set) {
            Le::put_u16(&mut file, 2, perm);
        }
        for (at, id) in [(4, set.uid), (8, set.gid)] {
            if let Some(id) = id {
                Le::put_u32(&mut file, at, id);
            }
        }
        let attr = attr_of(ino, &file);
        self.store(&mut state, block, file)?;
        Ok(attr)
    }

    fn readlink(&self, _ino: InodeNo) -> Result<Vec<u8>> {
        Err(Errno::INVAL.into())
    }

    fn mknod(&self, caller: &Caller, parent: InodeNo, name: &[u8], mode: u16, rdev: u32) -> Result<Entry> {
        name::check(name, NAME_MAX)?;
        let (kind, _) = make::node_kind(mode, rdev)?;
        expect_regular(kind)?;
        let mut state = self.changing()?;
        if parent != ROOT {
            return Err(Errno::NOTDIR.into());
        }
        make::check_new_name(&root(), name::is_dots(name) || state.find(name).is_some())?;
        let heritage = make::heritage(&root(), caller, (kind, mode & 0o7777), None);
        let blocks = self.device.geometry().block_count;
        let block = (1..blocks).find(|block| !state.files.contains_key(block)).ok_or(Errno::NOSPC)?;
        let mut file = vec![0; BLOCK];
        file[0] = 1;
        Le::put_u16(&mut file, 2, heritage.perm);
        Le::put_u32(&mut file, 4, caller.uid);
        Le::put_u32(&mut file, 8, heritage.gid);
        put_name(&mut file, name);
        self.store(&mut state, block, file)?;
        Ok(state.entry(InodeNo(block + 1)))
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

    fn unlink(&self, _caller: &Caller, _parent: InodeNo, name: &[u8]) -> Result<()> {
        let mut state = self.changing()?;
        let block = state.find(name).ok_or(Errno::NOENT)?;
        let mut file = state.files[&block].clone();
        remove::check_remove(&root(), &inode(block, &file), FileKind::Regular, (false, || Ok(true)))?;
        file[0] = 0;
        self.store(&mut state, block, file)
    }

    fn rmdir(&self, _caller: &Caller, _parent: InodeNo, name: &[u8]) -> Result<()> {
        remove::check_rmdir_name(name)?;
        let state = self.changing()?;
        let block = state.find(name).ok_or(Errno::NOENT)?;
        let victim = inode(block, &state.files[&block]);
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
        let mut state = self.changing()?;
        let block = state.find(from.1).ok_or(Errno::NOENT)?;
        remove::check_target_exists(mode, state.find(to.1).is_some())?;
        // It would take two blocks, and the toy writes one.
        if state.find(to.1).is_some() {
            return unsupported();
        }
        let mut file = state.files[&block].clone();
        put_name(&mut file, to.1);
        self.store(&mut state, block, file)
    }

    fn read(&self, ino: InodeNo, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let state = self.lock();
        let (_, file) = state.file(ino)?;
        let size = usize::try_from(attr_of(ino, file).size).expect("small");
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(size);
        let len = buf.len().min(size - start);
        buf[..len].copy_from_slice(&file[DATA_AT + start..DATA_AT + start + len]);
        Ok(len)
    }

    fn write(&self, caller: &Caller, ino: InodeNo, offset: u64, data: &[u8]) -> Result<usize> {
        let mut state = self.changing()?;
        let (block, file) = state.file(ino)?;
        let (mut file, seen) = (file.clone(), inode(block, file));
        change::check_write(&seen, offset)?;
        let start = DATA_AT + usize::try_from(offset).unwrap_or(BLOCK).min(BLOCK - DATA_AT);
        let len = data.len().min(BLOCK - start);
        if len == 0 {
            return Err(Errno::FBIG.into());
        }
        file[start..start + len].copy_from_slice(&data[..len]);
        let end = u32::try_from(start + len - DATA_AT).expect("small");
        let size = Le::u32(&file, 12).max(end);
        Le::put_u32(&mut file, 12, size);
        if let Some(perm) = change::perm_after_write(caller, seen.attr.perm) {
            Le::put_u16(&mut file, 2, perm);
        }
        self.store(&mut state, block, file)?;
        Ok(len)
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
        for (&block, file) in self.lock().files.range(cookie..) {
            let kind = Some(FileKind::Regular);
            let entry = DirEntry { ino: InodeNo(block + 1), kind, name: name_of(file), next: block + 1 };
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
        let free = blocks - self.lock().files.len() as u64;
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
        let mut first = head(&*self.device)?;
        first[IN_USE_AT] = 0;
        write(&*self.device, 0, &first)
    }
}
