//! A volume that is mounted: making one, opening one, its locks, and who refers to inodes.
//!
//! | lock | rank | who |
//! |---|---|---|
//! | the tree | `Inode` | readers share it; a change has it alone, from its beginning to its end |
//! | of the table of inodes | `Inode`, `Shard`, `Queue` | |
//! | names in memory | `Names` | moments, or as long as a directory is read for the first time |
//!
//! A change takes microseconds and waits for nothing, so that there is one at a time; whoever syncs to a disk holds no lock.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fstitch_core::lock::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use fstitch_core::order::rank;
use fstitch_core::{BlockNo, Caller, Clock, Errno, Error, InodeNo, IoOp, Result, Timestamp};
use fstitch_posix::table::{self, Header, Table};
use fstitch_posix::time::AtimePolicy;

use crate::change::Change;
use crate::dir::{self, Found, Index, Indexes};
use crate::inode::Inode;
use crate::layout::{Field, INODE, Identity, NAME_MAX, ROOT, ROOT_SLOT, time_word};
use crate::log::Recovered;
use crate::pm::{BLOCK, BLOCK_BYTES, Caching, Counts, Durability, Gate, Medium, Slot, Space, Watch};
use crate::scan::scan;
use crate::state::{Optimizations, State};

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
    /// Whether changes are refused.
    pub read_only: bool,
    /// Inodes that may be in memory without need.
    pub idle_nodes: usize,
    /// How little is copied.
    pub optimizations: Optimizations,
    /// When stores are durable.
    pub caching: Caching,
    /// What an operation on a device survives when it returns: with [`Durability::Power`] its lines were flushed, else written.
    pub durability: Durability,
    /// Bytes of files' contents that stay in memory, of a volume on a device, behind those that its log has; at least 64 KiB. What leads to
    /// contents stays as well, besides.
    pub cache_size: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            atime: AtimePolicy::default(),
            read_only: false,
            idle_nodes: 4096,
            optimizations: Optimizations::default(),
            caching: Caching::default(),
            durability: Durability::Power,
            cache_size: 32 << 20,
        }
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

/// The tree, and why nothing changes any more if so.
pub(crate) struct Core {
    pub(crate) state: State,
    end: Option<Error>,
}

impl Core {
    /// Why there are no changes any more.
    pub(crate) fn end(&self) -> Option<&Error> {
        self.end.as_ref()
    }

    /// Keeps in memory what is wanted there.
    fn let_go(&mut self) {
        if self.state.gate.is_full() {
            self.state.gate.let_go();
        }
    }

    /// # Errors
    /// Why there are no changes any more.
    pub(crate) fn change(&mut self, now: Timestamp) -> Result<Change<'_>> {
        match &self.end {
            Some(error) => Err(error.clone()),
            None => Ok(Change::new(&mut self.state, now)),
        }
    }
}

/// A file system in persistent memory.
pub struct Bpfs {
    core: RwLock<Core, rank::Inode>,
    names: Mutex<Indexes, rank::Names>,
    table: Table<Node>,
    clock: Arc<dyn Clock>,
    options: Options,
    identity: Identity,
    /// What opening its log has found.
    pub(crate) recovered: Option<Recovered>,
}

impl std::fmt::Debug for Bpfs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bpfs").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// Makes an empty volume of all of a medium.
///
/// # Errors
/// `EINVAL` for a label that is too long, `ENOSPC` if the medium is too small.
pub fn mkfs(medium: Medium, options: &MkfsOptions) -> Result<()> {
    match found(medium, options)?.behind() {
        Some(file) => file.sync_data().map_err(|error| Error::io(IoOp::Flush, BlockNo(0), error)),
        None => Ok(()),
    }
}

/// Stores an empty volume.
pub(crate) fn found(medium: Medium, options: &MkfsOptions) -> Result<Gate> {
    let MkfsOptions { uuid, label, now, owner } = options;
    if label.len() > 64 || label.contains(&0) {
        return Err(Errno::INVAL.into());
    }
    let mut gate = Gate::new(medium, Caching::WriteThrough, None)?;
    let blocks = gate.blocks();
    // A cut leaves what was there as none, or the new one.
    gate.unfound();
    let mut inodes = Space::new(blocks).take()?;
    let mut image = vec![0; BLOCK];
    let at = usize::try_from(ROOT.get() * INODE).expect("it is in the first block of inodes");
    let time = time_word(*now);
    let mode = 1 | u64::from(fstitch_core::FileKind::Directory.mode_bits() | 0o755) << 32;
    let fields = [
        (Field::Mode, mode),
        (Field::Owner, u64::from(owner.uid) | u64::from(owner.gid) << 32),
        (Field::Ctime, time),
        (Field::Atime, time),
        (Field::Crtime, time),
    ];
    for (field, word) in fields {
        fstitch_core::Le::put_u64(&mut image, at + 8 * field as usize, word);
    }
    gate.write(&mut inodes, 0, &image);
    let (root, linked) = inodes.link(0);
    let identity = Identity { uuid: *uuid, label: label.clone(), blocks, log: 0 };
    let mut superblock = identity.encode();
    fstitch_core::Le::put_u64(&mut superblock, usize::try_from(ROOT_SLOT).expect("small"), root.value());
    gate.found(&superblock, linked);
    Ok(gate)
}

/// Who the volume on a medium is.
///
/// # Errors
/// `Corrupt` if there is none, `Unsupported` if it is of another version.
pub fn identify(medium: &Medium) -> Result<Identity> {
    if medium.len() < 3 * BLOCK_BYTES {
        return Err(Error::corrupt(fstitch_core::Structure::Volume, None, "it is too small for a volume"));
    }
    let identity = Identity::decode(medium.head())?;
    check_room(&identity, medium.len() / BLOCK_BYTES)?;
    Ok(identity)
}

/// Fails if a volume is not all there.
pub(crate) fn check_room(identity: &Identity, there: u64) -> Result<()> {
    let blocks = identity.whole();
    if blocks > there {
        let what = format!("it says that the volume has {blocks} blocks, and there are {there}");
        return Err(Error::corrupt(fstitch_core::Structure::Superblock, None, what));
    }
    Ok(())
}

impl Bpfs {
    /// Mounts the volume on a medium.
    ///
    /// # Errors
    /// `Corrupt` if there is none, or it is damaged; `Unsupported` if it is of another version.
    pub fn open(medium: Medium, options: Options, clock: Arc<dyn Clock>) -> Result<Self> {
        Self::open_watched(medium, options, clock, None)
    }

    /// The same, with somebody who looks on at every store.
    ///
    /// # Errors
    /// As [`Bpfs::open`].
    pub fn open_watched(
        medium: Medium,
        options: Options,
        clock: Arc<dyn Clock>,
        watch: Option<Box<dyn Watch>>,
    ) -> Result<Self> {
        let identity = identify(&medium)?;
        if identity.log > 0 {
            let what = "a volume with a log without it: it is opened on its device (`Bpfs::open_on`)";
            return Err(Error::Unsupported(what.into()));
        }
        let gate = Gate::new(medium, options.caching, watch)?;
        Self::begin(gate, identity, options, clock)
    }

    /// What is known beside the medium is found out.
    pub(crate) fn begin(
        mut gate: Gate,
        identity: Identity,
        options: Options,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        gate.limit(identity.blocks);
        gate.recover();
        let scanned = scan(&gate, gate.word(Slot::at(ROOT_SLOT)));
        // What could not be read is not damage.
        gate.check_loaded()?;
        let (space, inodes) = scanned?;
        gate.scanned();
        let state = State { gate, space, inodes, options: options.optimizations };
        Ok(Self {
            core: RwLock::new(Core { state, end: None }),
            names: Mutex::new(Indexes::default()),
            table: Table::new(options.idle_nodes),
            clock,
            options,
            identity,
            recovered: None,
        })
    }

    /// Who the volume is.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What an operation survives when it has returned.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.core.read().state.gate.durability()
    }

    /// What has been stored so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.core.read().state.gate.counts()
    }

    /// All of the memory, as it is now.
    #[must_use]
    pub fn image(&self) -> Vec<u8> {
        let core = self.core.read();
        let gate = &core.state.gate;
        gate.bytes(0, usize::try_from(gate.blocks() * BLOCK_BYTES).expect("it is mapped")).to_vec()
    }

    pub(crate) fn table(&self) -> &Table<Node> {
        &self.table
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) fn atime(&self) -> AtimePolicy {
        self.options.atime
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.options.read_only
    }

    /// The tree as it is.
    pub(crate) fn share(&self) -> RwLockReadGuard<'_, Core> {
        let core = self.core.read();
        if !core.state.gate.is_full() {
            return core;
        }
        drop(core);
        self.core.write().let_go();
        self.core.read()
    }

    /// The tree, for a change.
    ///
    /// # Errors
    /// `EROFS`.
    pub(crate) fn alone(&self) -> Result<RwLockWriteGuard<'_, Core>> {
        if self.options.read_only {
            return Err(Errno::ROFS.into());
        }
        let mut core = self.core.write();
        core.let_go();
        match &core.end {
            Some(error) => Err(error.clone()),
            None => Ok(core),
        }
    }

    /// Ends all changes, for ever.
    pub(crate) fn end_life(&self, error: Error) {
        self.core.write().end.get_or_insert(error);
    }

    /// The node of an inode with so many more references.
    ///
    /// # Errors
    /// `ESTALE` if there is no such inode.
    pub(crate) fn node(&self, state: &State, ino: InodeNo, refs: u64) -> Result<Arc<Node>> {
        self.table.get(ino, refs, |_: &Node| {
            if state.inodes.names(ino.get()) == 0 { Err(Errno::STALE.into()) } else { Ok(()) }
        })
    }

    /// An inode that somebody refers to.
    ///
    /// # Errors
    /// `ESTALE`.
    pub(crate) fn live(&self, state: &State, ino: InodeNo) -> Result<Inode> {
        self.node(state, ino, 0)?;
        state.inode(ino.get())
    }

    /// Where the names of a directory are.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(crate) fn index(&self, state: &State, dir: &Inode) -> Result<Arc<Index>> {
        let mut names = self.names.lock();
        if let Some(index) = names.get(dir.ino) {
            return Ok(index);
        }
        let index = Arc::new(Index::new(&state.gate, dir, self.identity.seed())?);
        names.put(dir.ino, Arc::clone(&index));
        Ok(index)
    }

    /// What is known of a directory's names follows a change, whose own copy of it is let go of before.
    pub(crate) fn update_names(&self, dir: u64, index: Arc<Index>, how: impl FnOnce(&mut Index)) {
        drop(index);
        self.names.lock().update(dir, how);
    }

    /// What is known of names.
    pub(crate) fn names(&self) -> MutexGuard<'_, Indexes> {
        self.names.lock()
    }

    /// A directory's names are not known any more.
    pub(crate) fn forget_names(&self, dir: u64) {
        self.names.lock().forget(dir);
    }

    pub(crate) fn seed(&self) -> u64 {
        self.identity.seed()
    }

    /// Finds a name.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(crate) fn find(&self, state: &State, dir: &Inode, name: &[u8]) -> Result<Option<Found>> {
        let index = self.index(state, dir)?;
        Ok(dir::find(&state.gate, dir, &index, name, self.seed()))
    }

    /// Fails unless `name` could be one in `dir`; with `on_dots` for `.` and `..`.
    pub(crate) fn check_name(&self, dir: &Inode, name: &[u8], on_dots: Option<Errno>) -> Result<()> {
        dir.seen(0).attr.expect_directory()?;
        fstitch_posix::name::check(name, NAME_MAX)?;
        match on_dots {
            Some(on_dots) if fstitch_posix::name::is_dots(name) => Err(on_dots.into()),
            _ => Ok(()),
        }
    }

    /// Inodes beyond the limit leave memory: nothing of them waits for anything.
    pub(crate) fn evict(&self) {
        self.table.evict(|_| Some(()));
    }

    /// Everything is where it belongs, and the medium says that the volume is closed.
    pub(crate) fn close(&self) -> Result<()> {
        self.core.write().state.gate.close()
    }

    /// Makes everything durable.
    pub(crate) fn make_durable(&self) -> Result<()> {
        let (file, log) = {
            let mut core = self.core.write();
            if let Some(error) = &core.end {
                return Err(error.clone());
            }
            core.state.barrier();
            (core.state.gate.behind(), core.state.gate.log().cloned())
        };
        if let Some(log) = log {
            return self.or_end(log.sync());
        }
        match file {
            Some(file) if !self.options.read_only => {
                file.sync_data().map_err(|error| Error::io(IoOp::Flush, BlockNo(0), error))
            }
            _ => Ok(()),
        }
    }
}
