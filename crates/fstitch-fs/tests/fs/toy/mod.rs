//! A format whose metadata live in memory and whose patches are real: each micro-operation writes a block of
//! its own, after its befores, and is remembered by a label. So a test can ask for any two micro-operations of
//! an operation whether one comes after the other. "Mounting again" keeps the metadata, so it also serves as a
//! format for comparing the generic file system with the model.

mod blocks;
mod names;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use fstitch_core::{
    Attr, BlockBuf, BlockDevice, BlockKind, BlockNo, BlockRead, Caller, Errno, FileKind, InodeFlags, InodeNo,
    ManualClock, MemDevice, Result, StatFs, XattrSetMode,
};
use fstitch_fs::uhfs::{
    Allocation, AttrChange, ClearedName, Extent, Limits, LowLevelFs, NameSlot, NewInode, Writable,
};
use fstitch_patch::{Cache, CacheOptions, PatchId, PatchIds, PatchState};

/// Blocks at the start of the device that take turns in holding the micro-operations' patches.
const EVENT_BLOCKS: u64 = 512;
/// Where data blocks start.
const DATA_START: u64 = EVENT_BLOCKS;

/// What the format knows of an inode.
#[derive(Clone, Debug)]
struct Raw {
    attr: Attr,
    flags: InodeFlags,
    target: Vec<u8>,
    names: BTreeMap<Vec<u8>, Name>,
    parent: InodeNo,
    blocks: BTreeMap<u64, u64>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    patches: PatchIds,
}

#[derive(Clone, Copy, Debug)]
struct Name {
    ino: InodeNo,
    kind: FileKind,
    cookie: u64,
}

/// One micro-operation.
#[derive(Clone, Debug)]
pub struct Event {
    pub label: String,
    pub patch: PatchId,
}

#[derive(Default)]
struct Tables {
    inodes: BTreeMap<InodeNo, Raw>,
    used: BTreeMap<u64, InodeNo>,
    /// The clearing of the last pointer to a free block.
    freed: BTreeMap<u64, PatchId>,
    /// Inodes made so far.
    lives: u32,
    next_cookie: u64,
    events: Vec<Event>,
    event_count: u64,
    unclean: bool,
    marked: bool,
    /// Fail micro-operations of this name: the next one only, or all.
    fail: Option<(&'static str, bool)>,
}

/// The volume, which outlives its mounts.
pub struct Toy {
    device: Arc<MemDevice>,
    cache: Arc<Cache>,
    tables: Mutex<Tables>,
    /// What is overwritten goes elsewhere.
    moves: AtomicBool,
}

/// A mount of the volume.
pub struct ToyFs(pub Arc<Toy>);

/// An inode is looked up by its number.
pub struct ToyInode(InodeNo);

const ROOT: InodeNo = InodeNo(2);
/// The first number that inodes get.
const FIRST_INO: u64 = 11;

impl Toy {
    /// An empty volume of `blocks` blocks.
    pub fn new(block_size: u32, blocks: u64, options: CacheOptions, clock: Arc<ManualClock>) -> Arc<Self> {
        let device = Arc::new(MemDevice::new(block_size, blocks));
        let now = fstitch_core::Clock::now(&*clock);
        let cache = Cache::new(Arc::<MemDevice>::clone(&device), options, clock);
        let mut tables = Tables { next_cookie: 3, ..Tables::default() };
        let new = NewInode {
            mode: FileKind::Directory.mode_bits() | 0o755,
            uid: 0,
            gid: 0,
            nlink: 2,
            rdev: 0,
            flags: InodeFlags(0),
            now,
            target: b"",
            xattrs: &[],
        };
        let root = Raw::new((ROOT, 0), ROOT, &new, block_size);
        tables.inodes.insert(ROOT, root);
        Arc::new(Self { device, cache, tables: Mutex::new(tables), moves: AtomicBool::new(false) })
    }

    /// From now on a block of a file that is overwritten is copied to another place first, as where writing is copying.
    pub fn move_what_changes(&self) {
        self.moves.store(true, Ordering::Relaxed);
    }

    /// The inode's blocks.
    pub fn blocks_of(&self, ino: InodeNo) -> BTreeMap<u64, u64> {
        self.tables().inodes[&ino].blocks.clone()
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap()
    }

    /// The micro-operations since the last call.
    pub fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut self.tables().events)
    }

    /// Makes the next micro-operation of this name fail.
    pub fn fail_next(&self, operation: &'static str) {
        self.tables().fail = Some((operation, true));
    }

    /// Makes all micro-operations of this name fail.
    pub fn fail_all(&self, operation: &'static str) {
        self.tables().fail = Some((operation, false));
    }

    /// Makes the next mount believe that the last one was not ended.
    pub fn set_unclean(&self) {
        self.tables().unclean = true;
    }

    /// Changes an inode's size behind everybody's back, as a crash before the size's patch does.
    pub fn force_size(&self, ino: InodeNo, size: u64) {
        self.tables().inodes.get_mut(&ino).unwrap().attr.size = size;
    }

    /// What the medium holds of the inode's block `index`.
    pub fn on_medium(&self, ino: InodeNo, index: u64) -> Vec<u8> {
        let block = self.tables().inodes[&ino].blocks[&index];
        self.read_medium(block)
    }

    /// What the medium holds in this block.
    pub fn read_medium(&self, block: u64) -> Vec<u8> {
        let mut data = vec![0; self.cache.block_size()];
        let read = BlockRead { block: BlockNo(block), kind: BlockKind::Data, data: &mut data };
        self.device.read(&mut [read]).unwrap();
        data
    }

    /// Writes all data blocks that can be written without any micro-operation's block.
    pub fn write_data_blocks(&self) {
        self.cache.step_blocks(&mut |block| block.get() >= DATA_START).unwrap();
    }

    /// Whether the volume is marked as in use.
    pub fn is_marked(&self) -> bool {
        self.tables().marked
    }

    /// Inodes in use.
    pub fn inode_count(&self) -> usize {
        self.tables().inodes.len()
    }

    /// Data blocks in use.
    pub fn block_count(&self) -> usize {
        self.tables().used.len()
    }

    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Writes a micro-operation's own block.
    fn event(&self, tables: &mut Tables, label: String, befores: &[PatchId]) -> PatchId {
        let block = self.cache.fresh(BlockNo(tables.event_count % EVENT_BLOCKS), BlockKind::Inode).unwrap();
        tables.event_count += 1;
        let mut contents = BlockBuf::zeroed(self.cache.block_size());
        contents[..8].copy_from_slice(&tables.event_count.to_le_bytes());
        let patch = self.cache.lock().init(&block, Arc::new(contents), befores);
        if tables.events.len() < 100_000 {
            tables.events.push(Event { label, patch });
        }
        patch
    }

    fn inode_event(&self, tables: &mut Tables, ino: InodeNo, label: String, befores: &[PatchId]) -> PatchId {
        let patch = self.event(tables, label, befores);
        if let Some(raw) = tables.inodes.get_mut(&ino) {
            raw.patches.retain(|patch| self.cache.state(*patch) != PatchState::Committed);
            raw.patches.push(patch);
        }
        patch
    }
}

impl Tables {
    fn raw(&self, inode: &ToyInode) -> &Raw {
        &self.inodes[&inode.0]
    }

    fn raw_mut(&mut self, inode: &ToyInode) -> &mut Raw {
        self.inodes.get_mut(&inode.0).unwrap()
    }

    fn check_failure(&mut self, operation: &'static str) -> Result<()> {
        match self.fail {
            Some((failing, once)) if failing == operation => {
                self.fail = self.fail.filter(|_| !once);
                Err(Errno::NOSPC.into())
            }
            _ => Ok(()),
        }
    }
}

impl Raw {
    fn new((ino, generation): (InodeNo, u32), parent: InodeNo, new: &NewInode<'_>, block_size: u32) -> Self {
        let kind = FileKind::from_mode(new.mode).unwrap();
        let size = match kind {
            FileKind::Directory => u64::from(block_size),
            _ => u64::try_from(new.target.len()).unwrap(),
        };
        let attr = Attr {
            ino,
            kind,
            perm: new.mode & 0o7777,
            nlink: new.nlink,
            uid: new.uid,
            gid: new.gid,
            rdev: new.rdev,
            size,
            blocks: 0,
            blksize: block_size,
            atime: new.now,
            mtime: new.now,
            ctime: new.now,
            crtime: Some(new.now),
            generation,
        };
        Self {
            attr,
            flags: new.flags,
            target: new.target.to_vec(),
            names: BTreeMap::new(),
            parent,
            blocks: BTreeMap::new(),
            xattrs: new.xattrs.iter().cloned().collect(),
            patches: PatchIds::new(),
        }
    }
}

impl LowLevelFs for ToyFs {
    type Inode = ToyInode;

    fn cache(&self) -> &Arc<Cache> {
        &self.0.cache
    }

    fn root(&self) -> InodeNo {
        ROOT
    }

    fn limits(&self) -> Limits {
        let block_size = self.0.cache.block_size();
        Limits {
            name_max: 255,
            link_max: 40,
            dir_link_max: 40,
            size_max: 1 << 40,
            symlink_max: 1023,
            block_size,
            shift_unit: block_size,
            hole_unit: block_size,
        }
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(StatFs::default())
    }

    fn load(&self, ino: InodeNo) -> Result<ToyInode> {
        if self.0.tables().inodes.contains_key(&ino) { Ok(ToyInode(ino)) } else { Err(Errno::STALE.into()) }
    }

    fn attr(&self, inode: &ToyInode) -> Attr {
        self.0.tables().raw(inode).attr
    }

    fn flags(&self, inode: &ToyInode) -> InodeFlags {
        self.0.tables().raw(inode).flags
    }

    fn make_inode(
        &self,
        _caller: &Caller,
        parent: &ToyInode,
        new: &NewInode<'_>,
        befores: &[PatchId],
    ) -> Result<(ToyInode, PatchIds)> {
        let mut tables = self.0.tables();
        tables.check_failure("make_inode")?;
        // The smallest free number: whatever was freed last lives on in another inode at once.
        let ino = (FIRST_INO..).map(InodeNo).find(|ino| !tables.inodes.contains_key(ino)).unwrap();
        tables.lives += 1;
        let block_size = u32::try_from(self.0.cache.block_size()).unwrap();
        let raw = Raw::new((ino, tables.lives), parent.0, new, block_size);
        tables.inodes.insert(ino, raw);
        let bit = self.0.event(&mut tables, format!("bit {ino}"), &[]);
        let init = self.0.inode_event(&mut tables, ino, format!("init {ino}"), befores);
        Ok((ToyInode(ino), PatchIds::from_slice(&[bit, init])))
    }

    fn set_attr(&self, inode: &mut ToyInode, change: &AttrChange, befores: &[PatchId]) -> Result<PatchIds> {
        let mut tables = self.0.tables();
        let raw = tables.raw_mut(inode);
        let mut label = String::new();
        let attr = &mut raw.attr;
        macro_rules! set {
            ($($field:ident),*) => {$(
                if let Some(value) = change.$field {
                    attr.$field = value;
                    label += concat!(stringify!($field), " ");
                }
            )*};
        }
        set!(perm, uid, gid, nlink, size, atime, mtime, ctime);
        if let Some(flags) = change.flags {
            raw.flags = flags;
            label += "flags ";
        }
        let value = change.nlink.map(u64::from).or(change.size).map_or(String::new(), |v| format!("={v}"));
        let label = format!("{}{value} of {}", label.trim_end(), inode.0);
        Ok(PatchIds::from_slice(&[self.0.inode_event(&mut tables, inode.0, label, befores)]))
    }

    fn free_inode(&self, inode: &mut ToyInode, befores: &[PatchId]) -> Result<()> {
        self.detach(inode, 0, u64::MAX, befores)?;
        let mut tables = self.0.tables();
        self.0.event(&mut tables, format!("free {}", inode.0), befores);
        tables.inodes.remove(&inode.0);
        Ok(())
    }

    fn symlink_target(&self, inode: &ToyInode) -> Result<Vec<u8>> {
        Ok(self.0.tables().raw(inode).target.clone())
    }

    fn inode_patches(&self, inode: &ToyInode) -> PatchIds {
        self.0.tables().raw(inode).patches.clone()
    }

    fn map(&self, inode: &ToyInode, index: u64, max: u64) -> Result<Extent> {
        Ok(self.map_blocks(inode, index, max))
    }

    fn allocate(&self, _caller: &Caller, inode: &mut ToyInode, index: u64, want: u64) -> Result<Allocation> {
        self.allocate_blocks(inode, index, want)
    }

    fn attach(&self, inode: &mut ToyInode, allocation: Allocation, contents: &[PatchId]) -> Result<PatchIds> {
        self.attach_blocks(inode, &allocation, contents)
    }

    fn writable(
        &self,
        _caller: &Caller,
        inode: &mut ToyInode,
        (index, extent): (u64, Extent),
        befores: &[PatchId],
    ) -> Result<Writable> {
        match extent.start {
            Some(old) if self.moves_blocks() => self.move_block(inode, (index, old), befores),
            _ => Ok(Writable { extent, moved: PatchIds::new() }),
        }
    }

    fn moves_blocks(&self) -> bool {
        self.0.moves.load(Ordering::Relaxed)
    }

    fn give_back(&self, _inode: &mut ToyInode, allocation: Allocation) {
        let mut tables = self.0.tables();
        for block in allocation.start.get()..allocation.start.get() + allocation.count {
            tables.used.remove(&block);
        }
    }

    fn free_maps(&self) -> u64 {
        1
    }

    fn detach(&self, inode: &mut ToyInode, from: u64, to: u64, befores: &[PatchId]) -> Result<PatchIds> {
        self.detach_blocks(inode, (from, to), befores)
    }

    fn find_name(&self, dir: &ToyInode, name: &[u8]) -> Result<Option<NameSlot>> {
        if self.attr(dir).kind != FileKind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        Ok(self.find(dir, name))
    }

    fn prepare_name(&self, _caller: &Caller, _dir: &mut ToyInode, _name: &[u8]) -> Result<()> {
        self.0.tables().check_failure("prepare_name")
    }

    fn add_name(
        &self,
        dir: &mut ToyInode,
        name: &[u8],
        ino: InodeNo,
        kind: FileKind,
        befores: &[PatchId],
    ) -> Result<PatchIds> {
        self.add(dir, (name, ino, kind), befores)
    }

    fn replace_name(
        &self,
        dir: &mut ToyInode,
        slot: &NameSlot,
        ino: InodeNo,
        kind: FileKind,
        befores: &[PatchId],
    ) -> Result<ClearedName> {
        self.replace(dir, slot, (ino, kind), befores)
    }

    fn clear_name(&self, dir: &mut ToyInode, slot: &NameSlot, befores: &[PatchId]) -> Result<ClearedName> {
        self.clear(dir, slot, befores)
    }

    fn exchange_names(
        &self,
        dir: &mut ToyInode,
        first: &NameSlot,
        second: &NameSlot,
        befores: &[PatchId],
    ) -> Result<PatchId> {
        self.exchange(dir, first, second, befores)
    }

    fn set_parent(&self, dir: &mut ToyInode, parent: InodeNo, befores: &[PatchId]) -> Result<PatchId> {
        let mut tables = self.0.tables();
        tables.raw_mut(dir).parent = parent;
        Ok(self.0.event(&mut tables, format!("dotdot of {}", dir.0), befores))
    }

    fn is_empty_dir(&self, dir: &ToyInode) -> Result<bool> {
        Ok(self.0.tables().raw(dir).names.is_empty())
    }

    fn list_names(
        &self,
        dir: &ToyInode,
        cookie: u64,
        sink: &mut dyn FnMut(fstitch_core::DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list(dir, cookie, sink);
        Ok(())
    }

    fn get_xattr(&self, inode: &ToyInode, name: &[u8]) -> Result<Vec<u8>> {
        self.0.tables().raw(inode).xattrs.get(name).cloned().ok_or(Errno::NODATA.into())
    }

    fn set_xattr(
        &self,
        _caller: &Caller,
        inode: &mut ToyInode,
        name: &[u8],
        value: &[u8],
        mode: XattrSetMode,
    ) -> Result<PatchIds> {
        let mut tables = self.0.tables();
        let xattrs = &mut tables.raw_mut(inode).xattrs;
        match (mode, xattrs.contains_key(name)) {
            (XattrSetMode::Create, true) => return Err(Errno::EXIST.into()),
            (XattrSetMode::Replace, false) => return Err(Errno::NODATA.into()),
            _ => {}
        }
        xattrs.insert(name.to_vec(), value.to_vec());
        let label = format!("xattr of {}", inode.0);
        Ok(PatchIds::from_slice(&[self.0.inode_event(&mut tables, inode.0, label, &[])]))
    }

    fn remove_xattr(&self, _caller: &Caller, inode: &mut ToyInode, name: &[u8]) -> Result<PatchIds> {
        let mut tables = self.0.tables();
        tables.raw_mut(inode).xattrs.remove(name).ok_or(Errno::NODATA)?;
        let label = format!("xattr of {}", inode.0);
        Ok(PatchIds::from_slice(&[self.0.inode_event(&mut tables, inode.0, label, &[])]))
    }

    fn list_xattrs(&self, inode: &ToyInode) -> Result<Vec<Vec<u8>>> {
        Ok(self.0.tables().raw(inode).xattrs.keys().cloned().collect())
    }

    fn was_unclean(&self) -> bool {
        self.0.tables().unclean
    }

    fn mark_in_use(&self) -> Result<()> {
        let mut tables = self.0.tables();
        tables.marked = true;
        self.0.event(&mut tables, "mark".into(), &[]);
        Ok(())
    }

    fn mark_clean(&self) -> Result<()> {
        let mut tables = self.0.tables();
        tables.marked = false;
        self.0.event(&mut tables, "clean".into(), &[]);
        Ok(())
    }
}
