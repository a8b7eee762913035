//! When inodes leave memory, and what they take there.
//!
//! Nobody leaves while its changes are not stable, so those who made many files leave many nodes behind. Most of them go with
//! whoever makes them stable: at the end of a sync, and in a thread that has nothing else to do ([`Uhfs::let_go`]). Operations
//! let a few go each, so that memory is bounded without either.

use std::sync::atomic::Ordering;

use fstitch_core::InodeNo;
use fstitch_patch::{Cache, PatchId, PatchState};
use fstitch_posix::table::Table;

use super::node::{Node, Part, State, Whereabouts};
use super::{LowLevelFs, Uhfs};

/// Which part of the cache's size inodes may take that only wait for their changes to become stable. Beyond it these
/// are written at once: small files are made faster than age writes them.
const WAITING_SHARE: usize = 4;
/// Which part of the cache's size inodes may take that stay in memory without need: what programs go through again and again
/// is more files on larger machines. So many stay at least.
const IDLE_SHARE: usize = 64;
const IDLE_MIN: usize = 4096;
/// Operations between two looks at the memory of inodes.
const ACCOUNT_EVERY: u64 = 64;
/// What a loaded inode takes beside its node: tables of a few entries, measured on ext2.
const NODE_HEAP_BYTES: usize = 512;
/// Nodes that leave in one call of [`Uhfs::let_go`]: some milliseconds.
const LET_GO_MAX: usize = 4096;

/// How many nodes stay in memory without need beside `cache`, if nobody says so.
pub(super) fn idle_nodes<L: LowLevelFs>(cache: &Cache) -> usize {
    let bytes = cache.options().cache_size / IDLE_SHARE;
    (bytes / Table::<Node<L::Inode>>::node_bytes(NODE_HEAP_BYTES)).max(IDLE_MIN)
}

impl<L: LowLevelFs> Uhfs<L> {
    /// Lets some of the inodes go that are in memory only because their changes were not stable, and says whether more may be
    /// there. To be called every now and then by a thread of its own, until it returns false: what the flusher has made stable
    /// leaves memory then beside operations instead of with them. No lock is held for longer than one inode takes, and none
    /// is waited for while another is held.
    pub fn let_go(&self) -> bool {
        let evicted = self.table.evict_older(self.table.last_ticket(), LET_GO_MAX, |node| self.leave(node));
        if evicted.left > 0 {
            self.note_evicted();
        }
        evicted.may_be_more
    }

    /// All references that are held: for who opens the volume anew with [`Uhfs::take_over`].
    #[must_use]
    pub fn references(&self) -> Vec<(InodeNo, u64)> {
        self.table.references()
    }

    /// How many files without a name are held: they do not outlive an unmount.
    #[must_use]
    pub fn deleted_in_use(&self) -> usize {
        self.table.orphans_in_use()
    }

    /// Takes over references that were held when the volume was open before.
    pub fn take_over(&self, references: &[(InodeNo, u64)]) {
        for &(ino, count) in references {
            // An inode that is gone answers `ESTALE` to whoever still asks for it.
            let _ = self.node_with(ino, count);
        }
    }

    /// Drops all nodes that nobody needs, of those that were there when `last` was the last ticket: they were made stable since.
    /// Called holding no lock of an inode.
    pub(super) fn evict_stable(&self, last: u64) {
        self.table.evict_older(last, usize::MAX, |node| self.leave(node));
        self.note_evicted();
    }

    /// After nodes have left because their changes have become stable.
    fn note_evicted(&self) {
        self.low.forget_stable();
        self.account_nodes_now();
    }

    /// Drops nodes that nobody needs, at the end of operations and when others come into memory.
    pub(super) fn evict_idle(&self) {
        self.table.evict(|node| self.leave(node));
        self.account_nodes();
    }

    /// What is kept of a node that may leave memory: one that nobody has locked, and whose changes are all stable.
    fn leave(&self, node: &Node<L::Inode>) -> Option<Whereabouts> {
        let state = node.state.try_read()?;
        self.is_stable(&state).then(|| state.track.whereabouts())
    }

    /// Whether nothing is lost when the inode leaves memory.
    fn is_stable(&self, state: &State<L::Inode>) -> bool {
        // Blocks behind the end that a failed truncation left are known here only; after an unclean mount
        // every file is loaded with that suspicion anyway.
        let remembers_trim = state.trim && !self.low.may_have_lost_blocks(state.inode());
        // Without a name it could not be loaded again.
        if remembers_trim || self.low.attr(state.inode()).nlink == 0 {
            return false;
        }
        let parts = [Part::Contents, Part::Attributes, Part::Names];
        let tx = self.cache().lock();
        let pending = |patch: PatchId| patch != PatchId::NONE && tx.state(patch) != PatchState::Committed;
        let own = [state.growth].into_iter().chain(state.cleared.iter().chain(&state.ready).copied());
        !own.chain(state.track.gathers(&parts)).chain(self.low.inode_patches(state.inode())).any(pending)
    }

    /// Tells the cache, every now and then, how much memory the inodes take, so that it makes room for them.
    fn account_nodes(&self) {
        if self.ended.fetch_add(1, Ordering::Relaxed).is_multiple_of(ACCOUNT_EVERY) {
            self.account_nodes_now();
        }
    }

    /// The same at once.
    fn account_nodes_now(&self) {
        let (bytes, waiting) = self.table.bytes(NODE_HEAP_BYTES);
        let mut accounted = self.accounted.lock();
        let signed = |n: usize| isize::try_from(n).expect("memory is smaller than the address space");
        self.cache().account_external(signed(bytes) - signed(*accounted));
        *accounted = bytes;
        if waiting > self.cache().options().cache_size / WAITING_SHARE {
            self.cache().write_soon();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fstitch_core::{Caller, FileKind, FileSystem, ManualClock, MemDevice, Timestamp};
    use fstitch_patch::CacheOptions;
    use fstitch_posix::table::Population;

    use super::super::UhfsOptions;
    use super::*;
    use crate::ext2::Ext2;
    use crate::ext2::mkfs::{MkfsOptions, mkfs};

    const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 1, umask: 0 };
    const FILES: usize = 500;
    const IDLE: usize = 16;

    fn mount(idle_nodes: Option<usize>) -> Uhfs<Ext2> {
        let device = Arc::new(MemDevice::new(1024, 8192));
        let made = MkfsOptions::new([7; 16], [9; 16], Timestamp::default());
        mkfs(&*device, &MkfsOptions { block_size: Some(1024), ..made }, &mut |_, _| ()).unwrap();
        let cache = Cache::new(device, CacheOptions::default(), Arc::new(ManualClock::new()));
        Uhfs::new(Ext2::open(cache).unwrap(), UhfsOptions { idle_nodes, ..UhfsOptions::default() })
    }

    fn name(number: usize) -> Vec<u8> {
        format!("file {number}").into_bytes()
    }

    /// A volume with files that are not stable, each with a reference.
    fn crowded() -> (Uhfs<Ext2>, Vec<InodeNo>) {
        let fs = mount(Some(IDLE));
        let mode = FileKind::Regular.mode_bits() | 0o644;
        let make = |number| fs.mknod(&CALLER, fs.root(), &name(number), mode, 0).unwrap().attr.ino;
        let files = (0..FILES).map(make).collect();
        assert!(fs.table.population().nodes > FILES, "what is not stable stays");
        (fs, files)
    }

    #[test]
    fn a_sync_lets_go_of_what_it_has_made_stable() {
        let (fs, files) = crowded();
        fs.sync().unwrap();
        let Population { nodes, parked } = fs.table.population();
        assert!(nodes <= IDLE && parked >= FILES - IDLE, "{nodes} nodes, {parked} parked");
        for (number, ino) in files.into_iter().enumerate() {
            assert_eq!(fs.lookup(fs.root(), &name(number)).unwrap().attr.ino, ino);
            fs.unlink(&CALLER, fs.root(), &name(number)).unwrap();
            fs.forget(ino, 1);
            assert_eq!(fs.getattr(ino).unwrap().nlink, 0, "one reference is left");
            fs.forget(ino, 1);
            assert!(fs.getattr(ino).is_err(), "none is left");
        }
    }

    #[test]
    fn an_fsync_of_one_file_lets_nobody_go() {
        let (fs, files) = crowded();
        let before = fs.table.population();
        fs.fsync(files[0], false).unwrap();
        assert_eq!(fs.table.population(), before);
    }

    #[test]
    fn orphans_stay_and_are_freed_with_their_last_reference() {
        let (fs, files) = crowded();
        (0..FILES).for_each(|number| fs.unlink(&CALLER, fs.root(), &name(number)).unwrap());
        fs.sync().unwrap();
        assert!(fs.table.population().nodes >= FILES);
        for ino in files {
            assert_eq!(fs.getattr(ino).unwrap().nlink, 0);
            fs.forget(ino, 1);
        }
        fs.sync().unwrap();
        assert!(fs.table.population().nodes <= IDLE);
    }

    #[test]
    fn what_becomes_stable_without_a_sync_can_be_let_go() {
        let (fs, _) = crowded();
        let before = fs.table.population();
        assert!(!fs.let_go());
        assert_eq!(fs.table.population(), before, "nothing is stable");
        fs.cache().sync_all().unwrap();
        while fs.let_go() {}
        assert!(fs.table.population().nodes <= IDLE);
    }

    #[test]
    fn nobody_is_let_go_whose_changes_are_lost() {
        let (fs, files) = crowded();
        let before = fs.table.population();
        fs.cache().abandon("a test");
        assert!(fs.sync().is_err());
        assert!(!fs.let_go());
        assert_eq!(fs.table.population(), before);
        assert_eq!(fs.getattr(files[0]).unwrap().nlink, 1);
    }

    #[test]
    fn larger_caches_keep_more_inodes() {
        let cache = |cache_size| {
            let options = CacheOptions { cache_size, ..CacheOptions::default() };
            Cache::new(Arc::new(MemDevice::new(1024, 8)), options, Arc::new(ManualClock::new()))
        };
        assert_eq!(idle_nodes::<Ext2>(&cache(1 << 20)), IDLE_MIN);
        assert!(idle_nodes::<Ext2>(&cache(4 << 30)) > 4 * IDLE_MIN);
    }
}
