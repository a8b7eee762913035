//! A volume that is mounted: opening it, its locks, who refers to inodes, and when it is committed.
//!
//! | lock | rank | who |
//! |---|---|---|
//! | commits | `Gate` | who commits, until the last root is stable |
//! | the tree | `Inode` | readers share it; a change has it alone, from its beginning to its end |
//! | of the table of inodes | `Inode`, `Shard`, `Queue` | |

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fstitch_core::lock::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use fstitch_core::order::rank;
use fstitch_core::{BlockDevice, Clock, Errno, Error, FileKind, InodeNo, IoOp, Result, Structure, Timestamp};
use fstitch_patch::{Cache, CacheOptions};
use fstitch_posix::table::{self, Header, Table};
use fstitch_posix::time::AtimePolicy;

use super::age::Ager;
use super::cluster::WHOLE;
use super::layout::inode::Inode;
use super::layout::pointer::REF_BYTES;
use super::layout::record::{INO_BITS, INO_END, TreeKind};
use super::layout::root::Root;
use super::layout::{BLOCK, BLOCK_BYTES, CLUSTER, NAME_MAX, ROOT_INO};
use super::state::{Class, State};
use super::tree::Obj;

/// How a volume is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// When reading changes the time of last access.
    pub atime: AtimePolicy,
    /// Whether changes are refused.
    pub read_only: bool,
    /// Inodes that may be in memory without need.
    pub idle_nodes: usize,
    /// Age at which changes are committed.
    pub commit_age: Duration,
    /// The tree that is mounted, a clone or a snapshot; empty for the first one.
    pub tree: Vec<u8>,
    /// A stream is taken in by that tree, which need not be whole.
    pub receives: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            atime: AtimePolicy::default(),
            read_only: false,
            idle_nodes: 4096,
            commit_age: Duration::from_secs(5),
            tree: Vec::new(),
            receives: false,
        }
    }
}

/// An inode in memory: nothing but who refers to it.
pub(super) struct InUse {
    pub(super) header: Header,
    /// Made without a name, and may get one.
    pub(super) is_linkable: AtomicBool,
}

impl InUse {
    /// It was claimed to be freed, and is not.
    pub(super) fn unclaim(&self) {
        self.header.set_orphan(false);
        self.header.unclaim();
    }
}

impl table::Node for InUse {
    type Kept = ();

    fn unloaded(header: Header, (): ()) -> Self {
        Self { header, is_linkable: AtomicBool::new(false) }
    }

    fn header(&self) -> &Header {
        &self.header
    }

    fn kept(&self) {}
}

/// The volume in memory, and why nothing changes any more if so.
pub(super) struct Core {
    pub(super) state: State,
    end: Option<Error>,
    /// Bytes that the cache was told of.
    accounted: usize,
}

/// The number of the directory that lists snapshots, which is in no tree.
pub(super) const SNAPSHOTS_INO: InodeNo = InodeNo(2);
/// What it is called in the root directory.
pub(super) const SNAPSHOTS: &[u8] = b".snapshots";

/// A mounted volume.
pub struct Waffle {
    core: RwLock<Core, rank::Inode>,
    commits: Mutex<(), rank::Gate>,
    cache: Arc<Cache>,
    /// What is below the cache, if nobody else uses that.
    device: Option<Arc<dyn BlockDevice>>,
    table: Table<InUse>,
    clock: ClockOf,
    options: Options,
    was_unclean: bool,
    /// Much has changed: the next operation commits before it begins.
    is_due: AtomicBool,
    /// Snapshots could not be freed because of damage, or of what cannot be read.
    is_stuck: AtomicBool,
    /// Changes of some inodes are to be stable at once.
    has_marks: AtomicBool,
    me: Weak<Self>,
    ager: Mutex<Option<Ager>, rank::Table>,
}

/// How often everything is made stable beside others until they have to wait.
const ROUNDS: u32 = 2;
/// Blocks of a file without names that are given up at once.
const FREED_MAX: u64 = 1 << 16;

/// Whether a file is given up in several operations.
pub(super) fn is_long(inode: &Inode) -> bool {
    inode.kind == FileKind::Regular && inode.blocks > FREED_MAX
}

/// A full volume is none that cannot be used.
pub(super) fn when_full(error: Error) -> Result<()> {
    if error.errno() == Errno::NOSPC { Ok(()) } else { Err(error) }
}

/// Nor is one whose list of inodes without names is damaged, or cannot be read.
fn when_damaged(error: Error) -> Result<()> {
    // A list that leads to nothing answers so to its users.
    if is_of_reading(&error) || matches!(error, Error::Errno(Errno::STALE)) { Ok(()) } else { Err(error) }
}

/// Whether something is damaged or cannot be read, which is of that alone.
pub(super) fn is_of_reading(error: &Error) -> bool {
    matches!(error, Error::Corrupt(_) | Error::Io { op: IoOp::Read, .. })
}

/// The time that the cache lives by.
struct ClockOf(Arc<Cache>);

impl ClockOf {
    fn now(&self) -> Timestamp {
        self.0.clock().now()
    }
}

impl std::fmt::Debug for Waffle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waffle").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Waffle {
    /// Mounts the volume on a device.
    ///
    /// # Errors
    /// As [`Waffle::open`].
    pub fn mount(
        device: Arc<dyn BlockDevice>,
        cache: CacheOptions,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> Result<Arc<Self>> {
        let device = super::grouped(device)?;
        let root = Root::read(&*device)?;
        let below = Some(Arc::clone(&device));
        Self::open_on(below, Cache::new(device, cache, clock), root, options)
    }

    /// Mounts the volume in a cache, whose blocks are the volume's.
    ///
    /// # Errors
    /// `Corrupt` if there is none, or it is damaged where it cannot be used without; `Unsupported` by the names of features; `ENOENT` if
    /// there is no such tree.
    pub fn open(cache: Arc<Cache>, root: Root, options: Options) -> Result<Arc<Self>> {
        Self::open_on(None, cache, root, options)
    }

    fn open_on(
        device: Option<Arc<dyn BlockDevice>>,
        cache: Arc<Cache>,
        root: Root,
        options: Options,
    ) -> Result<Arc<Self>> {
        assert_eq!(cache.block_size(), BLOCK, "a block of the cache is one of the volume");
        let read_only = options.read_only || cache.options().read_only;
        if !read_only {
            root.check_writable()?;
        }
        let was_unclean = !root.is_closed;
        let mut state = State::open(Arc::clone(&cache), root, &options.tree)?;
        let is_snapshot = state.head().kind != TreeKind::Head;
        let options = Options { read_only: read_only || is_snapshot, ..options };
        state.now = cache.clock().now();
        let fs = Arc::new_cyclic(|me| Self {
            core: RwLock::new(Core { state, end: None, accounted: 0 }),
            commits: Mutex::default(),
            table: Table::new(options.idle_nodes),
            clock: ClockOf(Arc::clone(&cache)),
            cache,
            device,
            options,
            was_unclean,
            is_due: AtomicBool::new(false),
            is_stuck: AtomicBool::new(false),
            has_marks: AtomicBool::new(false),
            me: Weak::clone(me),
            ager: Mutex::default(),
        });
        if fs.options.receives {
            return Ok(fs);
        }
        if fs.share().state.head().is_receiving {
            let tree = String::from_utf8_lossy(&fs.options.tree).into_owned();
            return Err(Error::Unsupported(format!(
                "tree `{tree}`, which was being received and is not whole"
            )));
        }
        fs.inode_of(&fs.share().state, InodeNo(ROOT_INO))?.1.seen().attr.expect_directory()?;
        if !fs.options.read_only {
            // What has no room now is done when there is some, and what is damaged is for a check: others can be used.
            fs.free_orphans().or_else(when_damaged).or_else(when_full)?;
            fs.purge_beside()?;
        }
        Ok(fs)
    }

    /// The cache below.
    #[must_use]
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// The medium itself, past the cache.
    pub(super) fn device(&self) -> Option<&Arc<dyn BlockDevice>> {
        self.device.as_ref()
    }

    /// Whether the volume had not been closed in an orderly way. It is as its last root says, all the same.
    #[must_use]
    pub fn was_unclean(&self) -> bool {
        self.was_unclean
    }

    /// The root that was made last.
    #[must_use]
    pub fn root_made(&self) -> Root {
        self.share().state.root.clone()
    }

    /// Why nothing changes any more, if so.
    #[must_use]
    pub fn failed(&self) -> Option<Error> {
        let end = self.share().end.clone();
        end.filter(|error| error.errno() != Errno::ROFS).or_else(|| self.cache.poisoned())
    }

    /// Begins to commit by age, and to write in the background.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn start(&self) -> Result<()> {
        self.cache.start_flusher()?;
        let mut ager = self.ager.lock();
        if ager.is_none() && !self.options.read_only {
            *ager = Some(Ager::start(Weak::clone(&self.me), self.options.commit_age)?);
        }
        Ok(())
    }

    /// Whether the tree that is mounted is a snapshot.
    #[must_use]
    pub fn is_snapshot(&self) -> bool {
        self.share().state.head().kind != TreeKind::Head
    }

    /// The references that are held, for who opens the volume anew.
    #[must_use]
    pub fn references(&self) -> Vec<(InodeNo, u64)> {
        self.table.references()
    }

    /// Takes over references that were held when the volume was open before.
    pub fn take_over(&self, references: &[(InodeNo, u64)]) {
        let core = self.share();
        for &(ino, count) in references {
            // An inode that is gone answers `ESTALE` to whoever still asks for it.
            let _ = self.in_use(&core.state, ino, count);
        }
    }

    /// Bytes that are changed and have no place on the medium yet.
    #[must_use]
    pub fn pending_bytes(&self) -> u64 {
        let core = self.share();
        if core.state.is_changed() { core.state.pending() * BLOCK_BYTES } else { 0 }
    }

    pub(super) fn table(&self) -> &Table<InUse> {
        &self.table
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    /// The tree as it is.
    pub(super) fn share(&self) -> RwLockReadGuard<'_, Core> {
        self.core.read()
    }

    // ---- changes ----

    /// An operation that dirties about `bytes` of contents, all or nothing. Where there is no room for it, what was given up is
    /// committed, also of trees that are being removed, and it is tried once more. The lock is held when it returns.
    ///
    /// # Errors
    /// Those of `operate`; `EROFS`, `ENOSPC`.
    pub(super) fn change<T>(
        &self,
        class: Class,
        bytes: usize,
        mut operate: impl FnMut(&mut State) -> Result<T>,
    ) -> Result<(RwLockWriteGuard<'_, Core>, T)> {
        if self.options.read_only {
            return Err(Errno::ROFS.into());
        }
        if self.is_due.swap(false, Ordering::Relaxed) {
            self.begin_commit()?;
        }
        self.cache.reserve_first(bytes)?;
        let mut is_second = false;
        loop {
            let has_removed;
            let mut core = self.core.write();
            if let Some(error) = &core.end {
                return Err(error.clone());
            }
            core.state.begin(self.clock.now());
            let done = operate(&mut core.state);
            match done.and_then(|done| core.state.check_room(class).map(|()| done)) {
                Ok(done) => {
                    core.state.apply().inspect_err(|error| core.end = Some(error.clone()))?;
                    self.note_changed(&mut core);
                    if core.state.has_marks {
                        self.has_marks.store(true, Ordering::Relaxed);
                    }
                    return Ok((core, done));
                }
                Err(error) => {
                    core.state.undo();
                    has_removed = core.state.has_removed() && !self.is_stuck();
                    let may_help = core.state.is_changed() || core.state.map.given_up() > 0 || has_removed;
                    if is_second || error.errno() != Errno::NOSPC || !may_help {
                        return Err(error);
                    }
                }
            }
            drop(core);
            is_second = true;
            if has_removed {
                self.purge_beside()?;
            }
            self.begin_commit()?;
        }
    }

    /// What is in memory beside the cache is told to it, and a commit is due when that is much.
    fn note_changed(&self, core: &mut Core) {
        let Core { state, accounted, .. } = core;
        let cache = self.cache.options().cache_size;
        let bytes = state.memory();
        let signed = |bytes: usize| isize::try_from(bytes).unwrap_or(isize::MAX);
        self.cache.account_external(signed(bytes) - signed(*accounted));
        *accounted = bytes;
        let is_much = |state: &State| state.patches.len() * (BLOCK / REF_BYTES) > cache / 8;
        if is_much(state) {
            state.forget_stable();
        }
        // What a commit packs it reads and holds.
        let loose = state.clusters.loose.len() * WHOLE;
        if bytes > cache / 4 || loose > cache / 4 || is_much(state) {
            self.is_due.store(true, Ordering::Relaxed);
        }
    }

    // ---- commits ----

    /// Makes a root of all that has changed, if anything has, and waits for the last one to be stable before; not for this one.
    ///
    /// # Errors
    /// Those of the medium. Nothing changes any more then.
    pub fn begin_commit(&self) -> Result<()> {
        let _alone = self.commits.lock();
        self.make_root(false)
    }

    /// Whether a commit would make a root now, without waiting for anything.
    #[must_use]
    pub fn may_commit(&self) -> bool {
        let core = self.share();
        core.end.is_none() && core.state.is_changed() && core.state.is_settled()
    }

    fn make_root(&self, is_closed: bool) -> Result<()> {
        let last = self.share().state.last_root;
        self.cache.sync_patches(&[last])?;
        let mut core = self.core.write();
        if let Some(error) = &core.end {
            return Err(error.clone());
        }
        if !core.state.is_changed() && (!is_closed || core.state.root.is_closed) {
            return Ok(());
        }
        let now = self.clock.now();
        core.state.commit(now, is_closed).inspect_err(|error| core.end = Some(error.clone()))?;
        self.note_changed(&mut core);
        Ok(())
    }

    /// Makes everything stable.
    ///
    /// # Errors
    /// Those of the medium.
    pub(super) fn make_stable(&self) -> Result<()> {
        let last = {
            let _alone = self.commits.lock();
            if !self.options.read_only {
                self.make_root(false)?;
            }
            self.share().state.last_root
        };
        self.cache.sync_patches(&[last])
    }

    /// The same, for who has changed the table of trees.
    pub(super) fn sync_all(&self) -> Result<()> {
        self.make_stable()
    }

    /// Whether nothing changes any more, for whatever reason.
    pub(super) fn has_ended(&self) -> bool {
        self.share().end.is_some() || self.cache.poisoned().is_some()
    }

    pub(super) fn has_marks(&self) -> bool {
        self.has_marks.load(Ordering::Relaxed)
    }

    pub(super) fn is_stuck(&self) -> bool {
        self.is_stuck.load(Ordering::Relaxed)
    }

    pub(super) fn note_stuck(&self) {
        self.is_stuck.store(true, Ordering::Relaxed);
    }

    /// Whether a thread commits by age, and does what is to be done in the background.
    pub(super) fn has_ager(&self) -> bool {
        self.ager.lock().is_some()
    }

    /// Commits if the oldest change is of this age.
    pub(super) fn commit_if_old(&self, age: Duration) -> Result<()> {
        let changed_at = self.share().state.changed_at;
        match changed_at {
            Some(at) if self.cache.clock().elapsed() >= at + age => self.make_stable(),
            _ => Ok(()),
        }
    }

    /// Does something with everything stable and nobody changing anything.
    ///
    /// # Errors
    /// Those of a commit and of `work`.
    pub(super) fn at_rest<T>(&self, work: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let _alone = self.commits.lock();
        for _ in 0..ROUNDS {
            if !self.options.read_only {
                self.make_root(false)?;
            }
            let last = self.share().state.last_root;
            self.cache.sync_patches(&[last])?;
            let mut core = self.core.write();
            if !core.state.is_changed() {
                return work(&mut core.state);
            }
        }
        // Whoever writes without pause would keep it waiting, and with it everybody who syncs: what came meanwhile becomes stable alone.
        let mut core = self.core.write();
        if let Some(error) = &core.end {
            return Err(error.clone());
        }
        let now = self.clock.now();
        core.state.commit(now, false).inspect_err(|error| core.end = Some(error.clone()))?;
        self.note_changed(&mut core);
        self.cache.sync_patches(&[core.state.last_root])?;
        work(&mut core.state)
    }

    /// Ends all changes, for ever.
    pub(super) fn end_life(&self, error: Error) {
        self.core.write().end.get_or_insert(error);
    }

    /// Everything is stable, and the root says that the volume was closed.
    pub(super) fn close(&self) -> Result<()> {
        if let Some(ager) = self.ager.lock().take() {
            ager.stop();
        }
        if self.options.read_only {
            return Ok(());
        }
        let ended = self.share().end.clone();
        match ended {
            Some(error) if error.errno() == Errno::ROFS => return Ok(()),
            Some(error) => return Err(error),
            None => {}
        }
        let orphans = if self.options.receives { Ok(()) } else { self.free_orphans() };
        // Whatever became of these: what was changed is made stable.
        let done = self.make_stable().and_then(|()| {
            let _alone = self.commits.lock();
            self.make_root(true)?;
            let last = self.share().state.last_root;
            self.cache.sync_patches(&[last])
        });
        self.end_life(Errno::ROFS.into());
        done.and(orphans.or_else(when_damaged).or_else(when_full))
    }

    /// Takes blocks from a file without names until one operation can free the rest: it may share them, and each has a count then.
    pub(super) fn shorten(&self, ino: u64) -> Result<()> {
        loop {
            let (core, is_short) = self.change(Class::Gives, 0, |state| {
                let inode = state.inode(state.head, ino)?;
                let (mut leaves, mut end) = (0, 0);
                if is_long(&inode) && inode.nlink == 0 {
                    let range = (0, u64::MAX);
                    let walked = state.walk_leaves(state.head, Obj::Data(ino), range, &mut |leaf| {
                        // A compressed cluster goes as a whole.
                        (leaves, end) = (leaves + 1, (leaf + 1).next_multiple_of(CLUSTER));
                        leaves < FREED_MAX
                    });
                    match walked {
                        // What is below a damaged node stays, and the rest goes at once.
                        Err(error) if is_of_reading(&error) => leaves = 0,
                        walked => walked?,
                    }
                }
                if leaves < FREED_MAX {
                    return Ok(true);
                }
                let lost = state.cut(Obj::Data(ino), 0, end)?;
                state.change_inode(ino, |inode| inode.blocks = inode.blocks.saturating_sub(lost))?;
                Ok(false)
            })?;
            drop(core);
            if is_short {
                return Ok(());
            }
        }
    }

    /// Frees inodes without names: nobody uses them. One that is damaged stays, and the others go.
    fn free_orphans(&self) -> Result<()> {
        let mut ino = self.share().state.head().orphan;
        let (mut damaged, mut left) = (Ok(()), self.share().state.head().orphans);
        while ino != 0 && left > 0 {
            let behind = {
                let core = self.share();
                core.state.inode(core.state.head, ino)?.behind
            };
            match self.free_orphan(ino) {
                Err(error) if is_of_reading(&error) => damaged = Err(error),
                done => done?,
            }
            (ino, left) = (behind, left - 1);
        }
        damaged
    }

    fn free_orphan(&self, ino: u64) -> Result<()> {
        self.shorten(ino)?;
        drop(self.change(Class::Gives, 0, |state| {
            if state.inode(state.head, ino)?.nlink != 0 {
                let problem = "it is in the list of those without names, and has some";
                return Err(Error::corrupt(Structure::Inode(ino), None, problem));
            }
            state.remove_orphan(ino)?;
            state.free_inode(ino)
        })?);
        Ok(())
    }

    // ---- inodes ----

    /// The tree that an inode is of, by its number outside, and its number there.
    ///
    /// # Errors
    /// `ESTALE` if there is no such tree.
    pub(super) fn place(&self, state: &State, ino: InodeNo) -> Result<(usize, u64)> {
        let (id, inner) = (ino.get() >> INO_BITS, ino.get() & (INO_END - 1));
        if id == 0 {
            return Ok((state.head, inner));
        }
        let is_it = |tree: &Option<super::layout::record::Record>| {
            tree.as_ref().is_some_and(|tree| tree.id == id && tree.kind == TreeKind::Snapshot)
        };
        state.trees.iter().position(is_it).map(|tree| (tree, inner)).ok_or_else(|| Errno::STALE.into())
    }

    /// The number outside of an inode of a tree.
    pub(super) fn outside(state: &State, tree: usize, ino: u64) -> InodeNo {
        if tree == state.head {
            return InodeNo(ino);
        }
        let id = state.trees[tree].as_ref().map_or(0, |record| record.id);
        InodeNo(id << INO_BITS | ino)
    }

    /// An inode by its number outside.
    ///
    /// # Errors
    /// `ESTALE`, `Io`, `Corrupt`.
    pub(super) fn inode_of(&self, state: &State, ino: InodeNo) -> Result<(usize, Inode)> {
        let (tree, ino) = self.place(state, ino)?;
        Ok((tree, state.inode(tree, ino)?))
    }

    /// An inode of the tree that is mounted, to be changed.
    ///
    /// # Errors
    /// `EROFS` if it is a snapshot's; `ESTALE`, `Io`, `Corrupt`.
    pub(super) fn ours(&self, state: &State, ino: InodeNo) -> Result<Inode> {
        if ino == SNAPSHOTS_INO {
            return Err(Errno::ROFS.into());
        }
        let (tree, inode) = self.inode_of(state, ino)?;
        if tree == state.head { Ok(inode) } else { Err(Errno::ROFS.into()) }
    }

    /// The node of an inode with so many more references.
    ///
    /// # Errors
    /// `ESTALE` if there is no such inode; `Io`, `Corrupt`.
    pub(super) fn in_use(&self, state: &State, ino: InodeNo, refs: u64) -> Result<Arc<InUse>> {
        self.table.get(ino, refs, |node: &InUse| {
            if ino != SNAPSHOTS_INO {
                let (tree, inode) = self.inode_of(state, ino)?;
                node.header.set_orphan(inode.nlink == 0 && tree == state.head);
            }
            Ok(())
        })
    }

    /// Fails unless `name` could be one in `dir`; with `on_dots` for `.` and `..`.
    pub(super) fn check_name(dir: &Inode, name: &[u8], on_dots: Option<Errno>) -> Result<()> {
        dir.seen().attr.expect_directory()?;
        fstitch_posix::name::check(name, NAME_MAX)?;
        match on_dots {
            Some(on_dots) if fstitch_posix::name::is_dots(name) => Err(on_dots.into()),
            _ => Ok(()),
        }
    }

    /// Inodes beyond the limit leave memory: nothing of them waits for anything.
    pub(super) fn evict(&self) {
        self.table.evict(|_| Some(()));
    }
}
