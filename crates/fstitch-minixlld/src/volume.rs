//! A mounted volume: the disk, its locks, who refers to inodes, and what is remembered of blocks.
//!
//! **Locks**, in this order, none of them held while the disk is flushed:
//!
//! | lock | rank | who |
//! |---|---|---|
//! | changes | `Writer` | one change at a time, from its beginning to its end |
//! | tree | `Inode` | readers share it; a change takes it for its end, and before it decides over an inode that somebody may refer to |
//! | of the table of inodes | `Inode`, `Shard`, `Queue` | |
//! | memory, failures | `Leaf` | moments |

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fstitch_core::lock::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use fstitch_core::order::rank;
use fstitch_core::{Caller, Clock, Errno, Error, InodeNo, Result, Structure, Timestamp};
use fstitch_lld::{At, BlockId, Disk, ListId};
use fstitch_posix::table::{self, Header, Table};
use fstitch_posix::time::AtimePolicy;

use crate::blocks::{Blocks, Image, Key, Known, Memory, or_absent};
use crate::change::Change;
use crate::inode::{Inode, generation};
use crate::layout::{INODE_AT, KEPT, ROOT, VOLUME, Volume, is_inode};

/// How a volume is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MkfsOptions {
    /// Names the volume.
    pub uuid: [u8; 16],
    /// A name for people, of at most 64 bytes.
    pub label: Vec<u8>,
    /// The time of its making.
    pub now: Timestamp,
    /// To whom the root directory belongs.
    pub owner: Caller,
}

/// How a volume is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// When reading changes the time of last access.
    pub atime: AtimePolicy,
    /// Whether changes are refused, and nothing is freed that a failure has left.
    pub read_only: bool,
    /// Inodes that may be in memory without need.
    pub idle_nodes: usize,
    /// Blocks of inodes, directories and attributes that are remembered.
    pub blocks: usize,
    /// Whether every operation is a unit. Without, a failure leaves halves of operations: it is for measuring what units cost, and for
    /// seeing that the laboratory misses them.
    pub units: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { atime: AtimePolicy::default(), read_only: false, idle_nodes: 4096, blocks: 4096, units: true }
    }
}

/// An inode in memory: nothing but who refers to it.
pub(crate) struct Node {
    pub(crate) header: Header,
    /// Made without a name, and may get one.
    pub(crate) is_linkable: AtomicBool,
}

impl table::Node for Node {
    type Kept = ();

    fn unloaded(header: Header, (): ()) -> Self {
        Self { header, is_linkable: AtomicBool::new(false) }
    }

    fn header(&self) -> &Header {
        &self.header
    }

    fn kept(&self) {}
}

/// Why nothing changes any more, if so.
#[derive(Default)]
pub(crate) struct Life {
    pub(crate) end: Option<Error>,
}

/// A file system on a logical disk.
pub struct MinixLld {
    disk: Disk,
    clock: Arc<dyn Clock>,
    options: Options,
    volume: Volume,
    changes: Mutex<Life, rank::Writer>,
    tree: RwLock<(), rank::Inode>,
    table: Table<Node>,
    memory: Mutex<Memory, rank::Leaf>,
    /// What failed where nobody could be told; the next sync says it.
    failure: Mutex<Option<Error>, rank::Leaf>,
}

impl std::fmt::Debug for MinixLld {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MinixLld").field("volume", &self.volume).finish_non_exhaustive()
    }
}

/// Makes an empty volume on a disk that holds nothing yet, and makes it stable.
///
/// # Errors
/// `EEXIST` if the disk has or had lists: those of a volume have numbers of their own. `EINVAL` for a label that is too long. Those of
/// the disk.
///
/// # Panics
/// If somebody else changes the disk meanwhile.
pub fn mkfs(disk: &Disk, options: &MkfsOptions) -> Result<()> {
    let MkfsOptions { uuid, label, now, owner } = options;
    if label.len() > 64 || label.contains(&0) {
        return Err(Errno::INVAL.into());
    }
    let unit = disk.begin();
    let lists = [unit.new_list(true)?, unit.new_list(true)?, unit.new_list(true)?];
    if lists != [VOLUME, ROOT.get(), KEPT] {
        return Err(Errno::EXIST.into());
    }
    let volume = Volume { uuid: *uuid, label: label.clone(), made: *now };
    unit.write(unit.new_block(VOLUME, At::Position(0))?, &volume.encode(disk.block_size()))?;
    let root = Inode {
        ino: ROOT,
        kind: fstitch_core::FileKind::Directory,
        perm: 0o755,
        nlink: 2,
        uid: owner.uid,
        gid: owner.gid,
        rdev: 0,
        size: 0,
        flags: fstitch_core::InodeFlags::default(),
        generation: generation(*now),
        atime: *now,
        mtime: *now,
        ctime: *now,
        crtime: *now,
        parent: ROOT,
        xattr_bytes: 0,
    };
    let mut block = vec![0; disk.block_size()];
    root.encode(&mut block);
    unit.write(unit.new_block(ROOT.get(), At::Position(INODE_AT))?, &block)?;
    match unit.end() {
        Ok(()) => disk.flush(),
        Err(fstitch_lld::EndError::Disk(error)) => Err(error),
        Err(conflict) => panic!("nobody else changes the disk, and yet {conflict}"),
    }
}

/// Gives a volume that nobody uses another label or UUID, and makes it stable; `None` leaves it.
///
/// # Errors
/// `EINVAL` for a label that is too long; [`Error::Corrupt`] if the disk holds no volume; those of the disk.
pub fn identify(disk: &Disk, label: Option<Vec<u8>>, uuid: Option<[u8; 16]>) -> Result<()> {
    let (block, mut volume) = volume_on(disk)?;
    volume.label = label.unwrap_or(volume.label);
    volume.uuid = uuid.unwrap_or(volume.uuid);
    if volume.label.len() > 64 || volume.label.contains(&0) {
        return Err(Errno::INVAL.into());
    }
    disk.write(block, &volume.encode(disk.block_size()))?;
    disk.flush()
}

/// The volume that is on a disk, and the block that says so.
fn volume_on(disk: &Disk) -> Result<(BlockId, Volume)> {
    let none = || Error::corrupt(Structure::Superblock, None, "the logical disk holds no MinixLLD");
    let block = or_absent(disk.block_at(VOLUME, 0))?.ok_or_else(none)?;
    let mut bytes = vec![0; disk.block_size()];
    disk.read(block, &mut bytes)?;
    Ok((block, Volume::decode(&bytes)?))
}

impl Blocks for MinixLld {
    fn block_size(&self) -> usize {
        self.disk.block_size()
    }

    fn image(&self, key: Key) -> Result<Option<Image>> {
        Ok(self.known(key)?.map(|known| known.image))
    }

    fn contents(&self, (list, position): Key, into: &mut [u8]) -> Result<bool> {
        match self.disk.block_at(list, position)? {
            Some(block) => self.disk.read(block, into).map(|()| true),
            None => Ok(false),
        }
    }

    fn next_at(&self, list: ListId, from: u64) -> Result<Option<(u64, BlockId)>> {
        self.disk.next_at(list, from)
    }
}

impl MinixLld {
    /// Mounts the volume on a disk, and frees what a failure has left without a name.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the disk holds none, [`Error::Unsupported`] if it is of another version; those of the disk.
    pub fn open(disk: Disk, options: Options, clock: Arc<dyn Clock>) -> Result<Self> {
        let (_, volume) = volume_on(&disk)?;
        let fs = Self {
            disk,
            clock,
            options,
            volume,
            changes: Mutex::new(Life::default()),
            tree: RwLock::new(()),
            table: Table::new(options.idle_nodes),
            memory: Mutex::new(Memory::new(options.blocks)),
            failure: Mutex::new(None),
        };
        if !options.read_only {
            fs.free_kept()?;
        }
        Ok(fs)
    }

    /// Frees inodes that were in use without a name when power failed. One that there is no room to free waits for the next time.
    fn free_kept(&self) -> Result<()> {
        let mut from = 0;
        while let Some((ino, _)) = self.disk.next_at(KEPT, from)? {
            match self.free(InodeNo(ino)) {
                // What is kept and is no inode is damage, which the checker names.
                Err(error) if [Errno::NOSPC, Errno::STALE].contains(&error.errno()) => {}
                done => done?,
            }
            from = ino + 1;
        }
        Ok(())
    }

    /// What the volume's block says.
    #[must_use]
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    pub(crate) fn in_units(&self) -> bool {
        self.options.units
    }

    /// The disk below, for those who look on: nobody else may change it.
    #[must_use]
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// The references that are held, for who opens the volume anew.
    #[must_use]
    pub fn references(&self) -> Vec<(InodeNo, u64)> {
        self.table.references()
    }

    /// Takes over references that were held when the volume was open before.
    pub fn take_over(&self, references: &[(InodeNo, u64)]) {
        for &(ino, count) in references {
            // An inode that is gone answers `ESTALE` to whoever still asks for it.
            let _ = self.node(ino, count);
        }
    }

    /// Why the volume takes no changes any more, if so.
    #[must_use]
    pub fn failed(&self) -> Option<Error> {
        self.changes.lock().end.clone()
    }

    pub(crate) fn table(&self) -> &Table<Node> {
        &self.table
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.options.read_only
    }

    pub(crate) fn atime(&self) -> AtimePolicy {
        self.options.atime
    }

    /// The place of a name in directories.
    pub(crate) fn slot(&self, name: &[u8]) -> u64 {
        crate::leaf::slot(name, self.volume.seed())
    }

    /// Begins a change.
    ///
    /// # Errors
    /// `EROFS` if there are none any more, `WouldWait` on a thread that does not wait.
    pub(crate) fn change(&self) -> Result<Change<'_>> {
        if self.options.read_only {
            return Err(Errno::ROFS.into());
        }
        let life = self.changes.ask()?;
        match &life.end {
            Some(error) => Err(error.clone()),
            None => Ok(Change::begin(self, life)),
        }
    }

    /// Ends all changes, for ever.
    pub(crate) fn end_life(&self, error: Error) {
        self.changes.lock().end.get_or_insert(error);
    }

    /// Whether changes have ended, and why.
    pub(crate) fn life(&self) -> Result<()> {
        self.changes.ask()?.end.clone().map_or(Ok(()), Err)
    }

    /// The tree as it is, for readers.
    pub(crate) fn share(&self) -> RwLockReadGuard<'_, ()> {
        self.tree.read()
    }

    /// For the end of a change.
    pub(crate) fn exclude_readers(&self) -> RwLockWriteGuard<'_, ()> {
        self.tree.write()
    }

    /// The node of an inode with so many more references. Under the lock of the tree or that of changes.
    ///
    /// # Errors
    /// `ESTALE` if there is no such inode.
    pub(crate) fn node(&self, ino: InodeNo, refs: u64) -> Result<Arc<Node>> {
        self.table.get(ino, refs, |_: &Node| {
            if !is_inode(ino) || self.inode(ino)?.nlink == 0 {
                return Err(Errno::STALE.into());
            }
            Ok(())
        })
    }

    /// The inode of a number that somebody refers to, as it is in `blocks`.
    ///
    /// # Errors
    /// `ESTALE` if there is none.
    pub(crate) fn live(&self, blocks: &impl Blocks, ino: InodeNo) -> Result<Inode> {
        self.node(ino, 0)?;
        blocks.inode(ino)
    }

    /// A block of metadata and its number, as everybody sees it. Under the lock of the tree or that of changes.
    pub(crate) fn known(&self, key: Key) -> Result<Option<Known>> {
        if let Some(known) = self.memory.lock().get(key) {
            return Ok(Some(known));
        }
        let Some(id) = or_absent(self.disk.block_at(key.0, key.1))? else { return Ok(None) };
        let mut bytes = vec![0; self.block_size()];
        self.disk.read(id, &mut bytes)?;
        let known = Known { id, image: bytes.into() };
        self.memory.lock().put(key, known.clone());
        Ok(Some(known))
    }

    /// What a change has made of blocks.
    pub(crate) fn remember(&self, blocks: BTreeMap<Key, Known>, gone: &[Key]) {
        let mut memory = self.memory.lock();
        gone.iter().for_each(|key| memory.forget(*key));
        blocks.into_iter().for_each(|(key, known)| memory.put(key, known));
    }

    /// Inodes beyond the limit leave memory: nothing of them waits to become stable.
    pub(crate) fn evict(&self) {
        self.table.evict(|_| Some(()));
    }

    /// Frees an inode that has neither names nor references, unless somebody else does.
    pub(crate) fn settle(&self, node: &Arc<Node>) {
        if self.table.claim_orphan(node)
            && let Err(error) = self.free_claimed(node)
        {
            self.failure.lock().get_or_insert(error);
        }
    }

    /// Frees an inode that was claimed.
    pub(crate) fn free_claimed(&self, node: &Arc<Node>) -> Result<()> {
        let freed = self.free(node.header.ino());
        if freed.is_ok() && node.header.is_orphan() {
            self.table.remove(node);
        } else {
            node.header.unclaim();
        }
        freed
    }

    /// Frees an inode without names; says nothing of one that got a name while somebody waited to free it.
    fn free(&self, ino: InodeNo) -> Result<()> {
        let mut change = self.change()?;
        if change.inode(ino)?.nlink > 0 {
            return Ok(());
        }
        change.free(ino)?;
        change.commit(|| ())
    }

    /// What failed where nobody could be told.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        self.failure.lock().take()
    }

    /// Makes everything stable that has happened. No lock of the file system is held meanwhile.
    pub(crate) fn flush(&self) -> Result<()> {
        self.disk.flush()
    }
}
