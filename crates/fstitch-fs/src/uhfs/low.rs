//! What a block-structured format must be able to do: the papers' L2FS interface.
//!
//! Every changing micro-operation takes the patches that it must come after (`befores`) and returns the
//! patches that later changes may depend on. Micro-operations never wait for patches to become stable, never
//! flush and do not know which consistency mechanism is in force.
//!
//! Locking: the caller holds the inode's lock: shared for `&Inode`, exclusive for `&mut Inode`. The format
//! locks its allocation groups itself and takes the core lock (`Cache::lock`) last, for microseconds.
//!
//! Failing: a micro-operation reads and allocates all that it needs before it creates its first patch on
//! anything reachable, so that an error leaves nothing half done (allocations are given back).

use std::ops::Range;
use std::sync::Arc;

use fstitch_core::{
    Attr, BlockNo, Caller, CheckReport, Errno, Error, FileKind, InodeFlags, InodeNo, Result, StatFs,
    Timestamp, XattrSetMode,
};
use fstitch_patch::{Cache, PatchId, PatchIds};

/// What an operation on names dirties at most in most formats: a few directory, bitmap, descriptor and inode blocks.
pub const NAME_BLOCKS: usize = 12;

/// What moving a small file's contents to a block dirties at most beside the inode: the block, a free map, counters.
pub(super) const MOVED_BLOCKS: usize = 4;

/// What a format cannot exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes in a name.
    pub name_max: usize,
    /// Names of an inode.
    pub link_max: u32,
    /// Links of a directory: its own two and those of its subdirectories.
    pub dir_link_max: u32,
    /// Bytes in a file.
    pub size_max: u64,
    /// Bytes in a symbolic link's target.
    pub symlink_max: usize,
    /// Bytes in a block.
    pub block_size: usize,
    /// Bytes of which ranges that come and go in a file are multiples.
    pub shift_unit: usize,
    /// Bytes of which holes are multiples, that come into a file.
    pub hole_unit: usize,
}

/// An inode to be made.
#[derive(Clone, Debug)]
pub struct NewInode<'a> {
    /// Kind and permission bits, as in `st_mode`.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names that it will have: 2 for directories (its own `.` counts), 0 for a temporary file.
    pub nlink: u32,
    /// Device number of device inodes, else 0.
    pub rdev: u32,
    /// Flags inherited from the parent, already masked by the format's rules for this kind.
    pub flags: InodeFlags,
    /// All four times.
    pub now: Timestamp,
    /// Target of a symbolic link; empty for every other kind.
    pub target: &'a [u8],
    /// Extended attributes that it has from the start (inherited ACLs), full names.
    pub xattrs: &'a [(Vec<u8>, Vec<u8>)],
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttrChange {
    /// The 12 permission bits.
    pub perm: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Project.
    pub project: Option<u32>,
    /// New owners' limits hold: who asks may not pass them.
    pub is_limited: bool,
    /// Number of names.
    pub nlink: Option<u32>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<Timestamp>,
    /// Last change of contents.
    pub mtime: Option<Timestamp>,
    /// Last change of attributes.
    pub ctime: Option<Timestamp>,
    /// `chattr` flags (bits the format lets users change; others are kept).
    pub flags: Option<InodeFlags>,
}

/// A run of file blocks that are alike: `count` (at least 1) blocks, either all holes or contiguous on the
/// volume from `start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first block on the volume; `None` for a hole.
    pub start: Option<BlockNo>,
    /// Number of blocks.
    pub count: u64,
    /// They were written. Blocks that were not are the file's and read as zeros, whatever they hold. False for a hole.
    pub written: bool,
}

impl Extent {
    /// A run of blocks that are not there.
    #[must_use]
    pub const fn hole(count: u64) -> Self {
        Self { start: None, count, written: false }
    }

    /// Blocks with contents from `start` on.
    #[must_use]
    pub const fn of(start: BlockNo, count: u64) -> Self {
        Self { start: Some(start), count, written: true }
    }

    /// The first block of those with contents; `None` where all is zeros.
    #[must_use]
    pub fn contents(&self) -> Option<BlockNo> {
        self.start.filter(|_| self.written)
    }
}

/// Blocks of a file that may be overwritten.
#[derive(Clone, Debug)]
pub struct Writable {
    /// Where they are now.
    pub extent: Extent,
    /// The pointers to them, where they were moved: the file's contents are stable with these. Usually empty.
    pub moved: PatchIds,
}

/// Blocks taken from the free map for file blocks `index..index + count`, not yet reachable.
#[derive(Clone, Debug)]
pub struct Allocation {
    /// First file block.
    pub index: u64,
    /// First block on the volume.
    pub start: BlockNo,
    /// Number of blocks, contiguous on the volume and in the file.
    pub count: u64,
    /// What the **contents** of these blocks must come after: the pending clearing of old pointers to them.
    /// Usually empty.
    pub reuse: PatchIds,
    /// What the **pointers** must come after besides the contents: the bits in the free map.
    pub bits: PatchIds,
}

/// A name found in a directory.
#[derive(Clone, Debug)]
pub struct NameSlot {
    /// The inode that it names.
    pub ino: InodeNo,
    /// What that is, where the directory says so.
    pub kind: Option<FileKind>,
    /// The directory's block that holds the entry.
    pub block: BlockNo,
    /// The entry's position in that block, in bytes.
    pub offset: usize,
}

/// The outcome of clearing or replacing a name.
#[derive(Clone, Debug)]
pub struct ClearedName {
    /// The patch of the change.
    pub patch: PatchId,
    /// What must be stable before the old inode may lose a link: [`FreedName`].
    pub freed: FreedName,
}

/// What the fall of a link count after a name's removal must come after.
#[derive(Clone, Debug)]
pub enum FreedName {
    /// The clearing of the name.
    After(PatchId),
    /// Nothing: the name was never on the medium and never will be (its creation and its clearing are one
    /// unflown patch).
    NeverExisted,
}

impl FreedName {
    /// The dependency, as a list of befores.
    #[must_use]
    pub fn befores(&self) -> PatchIds {
        match self {
            Self::After(patch) => PatchIds::from_slice(&[*patch]),
            Self::NeverExisted => PatchIds::new(),
        }
    }
}

/// What was reclaimed after a crash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Inodes without names that were freed.
    pub inodes: u64,
    /// Blocks without owners that were freed.
    pub blocks: u64,
    /// Counts of names or blocks corrected, and files trimmed to their lengths.
    pub counts: u64,
    /// Findings that need `fsck`: directories with two names.
    pub left_alone: u64,
    /// Inodes with wrong counts that were in motion whenever the reclaimer came by.
    pub busy: u64,
    /// Inodes that had lost their names and got others in `lost+found`.
    pub kept: u64,
    /// Nothing is left: a clean unmount may say so.
    pub complete: bool,
    /// Why nothing was touched: the volume has damage that no crash of soft updates leaves.
    pub refusal: Option<String>,
}

/// What a format that reclaims while the volume is in use needs to know of its users.
pub trait ReclaimHooks<I> {
    /// Runs `work` at a moment when no changing operation is under way, in a step of `bytes`; 0 if it changes nothing.
    fn quiesced(&self, bytes: usize, work: &mut dyn FnMut()) -> Result<()>;
    /// Drops the inode from memory if nobody uses it, and says whether it is out of memory.
    fn forget(&self, ino: InodeNo) -> bool;
    /// Runs `work` on the inode with its lock held, in a step that dirties about `bytes`; it tells what a later growth of the file comes
    /// after. False, and nothing was run, if the inode has gone meanwhile.
    fn with(&self, ino: InodeNo, bytes: usize, work: WithInode<'_, I>) -> Result<bool>;
    /// Gives an inode that nothing names and nobody uses a name in `lost+found`; false where that cannot be.
    fn keep(&self, ino: InodeNo) -> Result<bool>;
    /// Runs `work` in a step that dirties about `bytes`: waits for room first, and where a journal is kept, all of it is in
    /// one transaction.
    fn step(&self, bytes: usize, work: &mut dyn FnMut() -> Result<()>) -> Result<()>;
    /// Whether to stop as soon as possible.
    fn stop(&self) -> bool;
}

/// What [`ReclaimHooks::with`] runs.
pub type WithInode<'a, I> = &'a mut dyn FnMut(&mut I) -> Result<PatchIds>;

/// What happens to a range of file blocks, and with what is behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shift {
    /// The range goes, and what is behind it comes in its place.
    Out,
    /// The range becomes a hole, and what was there and behind it goes on behind it.
    In,
}

/// A format's micro-operations.
pub trait LowLevelFs: Send + Sync + 'static {
    /// What the format keeps in memory of a loaded inode. It holds no [`fstitch_patch::Block`] (that would pin
    /// memory): blocks are looked up when an operation starts.
    type Inode: Send + Sync + 'static;

    /// The cache below.
    fn cache(&self) -> &Arc<Cache>;
    /// The root directory.
    fn root(&self) -> InodeNo;
    /// What the format cannot exceed.
    fn limits(&self) -> Limits;
    /// Space on the volume.
    fn statfs(&self) -> Result<StatFs>;

    // ---- inodes ----

    /// Reads and validates an inode. `ESTALE` when it is not in use, `Corrupt` when damaged.
    fn load(&self, ino: InodeNo) -> Result<Self::Inode>;
    /// Its attributes (from memory).
    fn attr(&self, inode: &Self::Inode) -> Attr;
    /// Its `chattr` flags (from memory).
    fn flags(&self, inode: &Self::Inode) -> InodeFlags;
    /// Takes a free inode near `parent` and initialises it completely, its symbolic link target, extended
    /// attributes and, for directories, the first block with `.` and `..` included. Returns the inode and what
    /// **its name must come after**. For a directory the caller has already raised the parent's count;
    /// `befores` is that patch.
    fn make_inode(
        &self,
        caller: &Caller,
        parent: &Self::Inode,
        new: &NewInode<'_>,
        befores: &[PatchId],
    ) -> Result<(Self::Inode, PatchIds)>;
    /// Changes attributes, each field its own minimal patch. `size` changes only the number (see `detach`).
    /// Returns all patches created.
    fn set_attr(&self, inode: &mut Self::Inode, change: &AttrChange, befores: &[PatchId])
    -> Result<PatchIds>;
    /// The project that the inode belongs to; `None` where it can belong to none.
    fn project(&self, inode: &Self::Inode) -> Option<u32> {
        let _ = inode;
        None
    }
    /// What every step dirties at most beside what else it does: where it is counted what users and groups have.
    fn counted_blocks(&self) -> usize {
        0
    }
    /// What giving an inode owners who have nothing yet may dirty beside the inode.
    fn owner_blocks(&self) -> usize {
        0
    }
    /// Whether a name of the inode may be in the directory, by the projects of both.
    fn may_enter(&self, dir: &Self::Inode, inode: &Self::Inode) -> bool {
        let _ = (dir, inode);
        true
    }
    /// Frees the inode with all its blocks and attributes, after `befores` (the clearing of its last name).
    /// `inode` must not be used afterwards.
    fn free_inode(&self, inode: &mut Self::Inode, befores: &[PatchId]) -> Result<()>;
    /// The target of a symbolic link.
    fn symlink_target(&self, inode: &Self::Inode) -> Result<Vec<u8>>;
    /// The patches that must be stable for the inode itself (not its data blocks) to be.
    fn inode_patches(&self, inode: &Self::Inode) -> PatchIds;

    // ---- file blocks ----

    /// The run at file block `index`, at most `max` blocks long.
    fn map(&self, inode: &Self::Inode, index: u64, max: u64) -> Result<Extent>;
    /// How often space was passed over that a journal's running transaction has freed and will give when it is closed.
    fn space_barred(&self) -> u64 {
        0
    }
    /// Damage was found: lets the volume say so, so that somebody checks it. Nothing is changed after this.
    fn note_damage(&self) {}
    /// The contents of a file that has them elsewhere than in blocks, as many bytes as there are; the rest reads as zeros. `None` for
    /// one with blocks.
    fn inline_contents(&self, _inode: &Self::Inode) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    /// Whether the contents are elsewhere than in blocks, from where they must move before they change.
    fn is_inline(&self, inode: &Self::Inode) -> bool {
        let _ = inode;
        false
    }
    /// Moves the contents of such a file, or the first `keep` bytes of them, to a block; none if these are none. What changes the
    /// length may come later. Returns the patches with which they are there. `ENOSPC` leaves them where they are.
    fn move_out(&self, caller: &Caller, inode: &mut Self::Inode, keep: u64) -> Result<PatchIds> {
        let _ = (caller, inode, keep);
        Err(Errno::OPNOTSUPP.into())
    }

    /// Learns how long an empty file will be that is filled from its start to its end, so that its blocks can lie together.
    fn expect(&self, inode: &mut Self::Inode, size: u64) {
        let _ = (inode, size);
    }
    /// Takes 1 to `want` contiguous blocks for the hole at file block `index`, and all indirect blocks that
    /// attaching them will need. A format whose blocks come in groups takes others of the hole with them, before or behind. `ENOSPC` respects the reserved blocks for ordinary callers.
    fn allocate(&self, caller: &Caller, inode: &mut Self::Inode, index: u64, want: u64)
    -> Result<Allocation>;
    /// Points the file at the allocated blocks, after `contents` (their initialisation) and the allocation's
    /// bits. Returns the pointer patches (size must come after them).
    fn attach(
        &self,
        inode: &mut Self::Inode,
        allocation: Allocation,
        contents: &[PatchId],
    ) -> Result<PatchIds>;
    /// Lets the blocks of `extent`, the file's from `index` on, or the first of them, be overwritten: they are where they are, unless
    /// the format moves what it changes (a fragment that grows, a copy on write). What is moved has its old contents in its new
    /// place, and the pointers to it come after these and after `befores`; what it leaves is freed after the pointers.
    fn writable(
        &self,
        caller: &Caller,
        inode: &mut Self::Inode,
        (index, extent): (u64, Extent),
        befores: &[PatchId],
    ) -> Result<Writable> {
        let _ = (caller, inode, index, befores);
        Ok(Writable { extent, moved: PatchIds::new() })
    }
    /// Whether a file's last byte is always in a block, never in a hole.
    fn ends_in_block(&self) -> bool {
        false
    }
    /// What should be stable before the length of this file is lowered once more, because too many such changes wait one for the other.
    fn overdue_lengths(&self, inode: &Self::Inode) -> PatchIds {
        let _ = inode;
        PatchIds::new()
    }
    /// Whether [`LowLevelFs::writable`], or an allocation within the file's length, moves blocks: no volume can be in a file then.
    fn moves_blocks(&self) -> bool {
        false
    }
    /// Gives back an allocation that was not attached.
    fn give_back(&self, inode: &mut Self::Inode, allocation: Allocation);
    /// Clears the pointers of file blocks `from..to` (`u64::MAX` for all) after `befores`, and frees the blocks
    /// and the indirect blocks that become empty, each after its pointer was cleared.
    /// Returns the pointer patches.
    fn detach(&self, inode: &mut Self::Inode, from: u64, to: u64, befores: &[PatchId]) -> Result<PatchIds>;

    // ---- blocks that are there and not written; formats without them need none of this ----

    /// Whether the file can have blocks that were not written: these are kept behind its end as well.
    fn has_unwritten(&self, inode: &Self::Inode) -> bool {
        let _ = inode;
        false
    }
    /// Gives the hole of at least `want` blocks at file block `index` 1 to `want` of them, unwritten. Returns how many, and the
    /// pointer patches.
    fn preallocate(
        &self,
        caller: &Caller,
        inode: &mut Self::Inode,
        index: u64,
        want: u64,
    ) -> Result<(u64, PatchIds)> {
        let _ = (caller, inode, index, want);
        Err(Errno::OPNOTSUPP.into())
    }
    /// The unwritten blocks `index..index + count` are to be filled: takes what [`LowLevelFs::mark_written`] will need. Returns which
    /// file blocks must be filled, `index` among them: fewer, or more where there is no room to tell them from their neighbours,
    /// which are unwritten too. What is taken and not needed is given back with the next of these calls.
    fn prepare_written(&self, inode: &mut Self::Inode, index: u64, count: u64) -> Result<Range<u64>> {
        let _ = (inode, index, count);
        Err(Errno::OPNOTSUPP.into())
    }
    /// What new contents of `count` blocks from `start` on, which are a file's and were never written, must come after: the clearing of
    /// pointers that another file had to them.
    fn unwritten_reuse(&self, start: BlockNo, count: u64) -> Result<PatchIds> {
        let _ = (start, count);
        Ok(PatchIds::new())
    }
    /// The same blocks were filled: they have contents from now on, after `contents`. Returns the pointer patches.
    fn mark_written(
        &self,
        inode: &mut Self::Inode,
        range: Range<u64>,
        contents: &[PatchId],
    ) -> Result<PatchIds> {
        let _ = (inode, range, contents);
        Err(Errno::OPNOTSUPP.into())
    }
    /// The blocks of `range` that are there read as zeros from now on. Returns the pointer patches.
    fn mark_unwritten(&self, inode: &mut Self::Inode, range: Range<u64>) -> Result<PatchIds> {
        let _ = (inode, range);
        Err(Errno::OPNOTSUPP.into())
    }
    /// Whether the file's blocks can move in it, in one step.
    fn can_shift(&self, inode: &Self::Inode) -> bool {
        let _ = inode;
        false
    }
    /// How many blocks [`LowLevelFs::shift`] dirties at most, itself and what it frees. `EINVAL` if no file reaches so far.
    fn shift_cost(&self, inode: &Self::Inode, range: &Range<u64>, shift: Shift) -> Result<usize> {
        let _ = (inode, range, shift);
        Err(Errno::OPNOTSUPP.into())
    }
    /// Moves the file's blocks behind `range`, or from its start on, in one step, after `befores`; frees what was in a range that goes.
    /// Returns the pointer patches.
    fn shift(
        &self,
        inode: &mut Self::Inode,
        range: Range<u64>,
        shift: Shift,
        befores: &[PatchId],
    ) -> Result<PatchIds> {
        let _ = (inode, range, shift, befores);
        Err(Errno::OPNOTSUPP.into())
    }
    /// The file block behind the last one that is there, where blocks may be behind the file's end lawfully; else 0.
    fn blocks_end(&self, inode: &Self::Inode) -> Result<u64> {
        let _ = inode;
        Ok(0)
    }
    /// Whether a crash may have left blocks behind the file's end that it has lost.
    fn may_have_lost_blocks(&self, inode: &Self::Inode) -> bool {
        let _ = inode;
        self.was_unclean()
    }

    /// Blocks that say which blocks are free: what is scattered over the volume changes as many of them when it is freed.
    fn free_maps(&self) -> u64;

    /// The size has just been lowered, in this step, and blocks behind it are freed in later ones: a format that can
    /// notes that down, so that recovery ends it.
    fn start_shortening(&self, _inode: &mut Self::Inode) -> Result<()> {
        Ok(())
    }
    /// All blocks behind the size are freed.
    fn end_shortening(&self, _inode: &mut Self::Inode) -> Result<()> {
        Ok(())
    }

    // ---- names ----

    /// Finds a name (also `.` and `..`).
    fn find_name(&self, dir: &Self::Inode, name: &[u8]) -> Result<Option<NameSlot>>;
    /// What must be stable for the name in `slot` to be on the medium, as far as it is not yet.
    fn name_patches(&self, _slot: &NameSlot) -> PatchIds {
        PatchIds::new()
    }
    /// Reserves room for `name` so that the following `add_name` cannot fail for lack of space; may grow the
    /// directory (new blocks are initialised, attached and counted in its size).
    fn prepare_name(&self, caller: &Caller, dir: &mut Self::Inode, name: &[u8]) -> Result<()>;
    /// Blocks that an operation which makes one name dirties at most, those of the inode that it makes included.
    fn name_blocks(&self) -> usize {
        NAME_BLOCKS
    }
    /// Adds a name that is known not to exist, after `befores` (the inode's initialisation or raised count).
    /// Returns the patches that make it reachable in this directory, growth of the directory included.
    fn add_name(
        &self,
        dir: &mut Self::Inode,
        name: &[u8],
        ino: InodeNo,
        kind: FileKind,
        befores: &[PatchId],
    ) -> Result<PatchIds>;
    /// Makes an existing entry name another inode, in one patch, after `befores`.
    fn replace_name(
        &self,
        dir: &mut Self::Inode,
        slot: &NameSlot,
        ino: InodeNo,
        kind: FileKind,
        befores: &[PatchId],
    ) -> Result<ClearedName>;
    /// Clears an entry, after `befores` (for a rename: the new name).
    fn clear_name(&self, dir: &mut Self::Inode, slot: &NameSlot, befores: &[PatchId]) -> Result<ClearedName>;
    /// Swaps the inodes that two entries of one directory name, in **one patch**, so that no crash state has
    /// both entries naming the same inode. `EINVAL` where the format cannot (entries in different blocks, or
    /// of different kinds where the entry tells the kind); that is also the default.
    fn exchange_names(
        &self,
        _dir: &mut Self::Inode,
        _first: &NameSlot,
        _second: &NameSlot,
        _befores: &[PatchId],
    ) -> Result<PatchId> {
        Err(Error::Errno(Errno::INVAL))
    }
    /// Makes a directory's `..` name `parent`, after `befores`.
    fn set_parent(&self, dir: &mut Self::Inode, parent: InodeNo, befores: &[PatchId]) -> Result<PatchId>;
    /// Whether a directory holds nothing but `.` and `..`.
    fn is_empty_dir(&self, dir: &Self::Inode) -> Result<bool>;
    /// Lists entries from `cookie` (0: the start) until `sink` returns false.
    fn list_names(
        &self,
        dir: &Self::Inode,
        cookie: u64,
        sink: &mut dyn FnMut(fstitch_core::DirEntry<'_>) -> bool,
    ) -> Result<()>;

    // ---- extended attributes (full names, such as `user.x`) ----

    /// A value; `ENODATA` if absent, `EOPNOTSUPP` for unknown namespaces.
    fn get_xattr(&self, inode: &Self::Inode, name: &[u8]) -> Result<Vec<u8>>;
    /// Creates or replaces a value.
    fn set_xattr(
        &self,
        caller: &Caller,
        inode: &mut Self::Inode,
        name: &[u8],
        value: &[u8],
        mode: XattrSetMode,
    ) -> Result<PatchIds>;
    /// Removes a value.
    fn remove_xattr(&self, caller: &Caller, inode: &mut Self::Inode, name: &[u8]) -> Result<PatchIds>;
    /// Blocks that a change of an attribute to a value of `len` bytes, 0 if it goes, dirties beside those of any. Where it is 0 for a
    /// length that is not, it is 0 for each of them.
    fn xattr_blocks(&self, inode: &Self::Inode, len: usize) -> Result<usize> {
        let _ = (inode, len);
        Ok(0)
    }
    /// Blocks that the end of an inode without names dirties, after [`Self::shed_xattr`], beside those of any.
    fn end_blocks(&self, inode: &Self::Inode) -> Result<usize> {
        let _ = inode;
        Ok(0)
    }
    /// Frees one attribute of an inode without names, if its end alone would change too much; false where nothing is left of that kind.
    fn shed_xattr(&self, inode: &mut Self::Inode) -> Result<bool> {
        let _ = inode;
        Ok(false)
    }
    /// All names.
    fn list_xattrs(&self, inode: &Self::Inode) -> Result<Vec<Vec<u8>>>;

    // ---- the volume ----

    /// Whether the volume had not been unmounted cleanly when it was opened. Files of such a volume may have
    /// blocks beyond their ends, which are trimmed before a file grows.
    fn was_unclean(&self) -> bool {
        false
    }
    /// Reclaims, while the volume is in use, what a crash has left; nothing where the format cannot.
    fn reclaim(&self, _hooks: &dyn ReclaimHooks<Self::Inode>) -> Result<Reclaimed> {
        Ok(Reclaimed::default())
    }
    /// Checks the volume without changing it; `Unsupported` where the format has no checker.
    fn check(&self) -> Result<CheckReport> {
        Err(Error::Unsupported("checking a mounted volume of this format".into()))
    }

    /// Everything is about to be made stable: what was taken before they are needed is given back. Called without inode locks.
    fn before_sync(&self) {}

    /// Much may have become stable: what is remembered about it may be forgotten. Called without inode locks.
    fn forget_stable(&self) {}

    /// Marks the volume as in use (not cleanly unmounted), before the first change after a mount or remount; the caller makes that stable.
    fn mark_in_use(&self) -> Result<()>;
    /// Brings summary counters up to date in the cache and marks the volume as cleanly unmounted. The caller
    /// has made everything else stable and calls `Cache::sync_all` afterwards.
    fn mark_clean(&self) -> Result<()>;
}
