//! One change of the tree: everything that an operation does, as one atomic recovery unit.
//!
//! **States.** *Begun*: what it has changed so far only it sees, its blocks of metadata in memory and everything else in the disk's
//! unit. *Alone*: readers are kept out, because what it decides must still be so when it ends. *Committed*: the unit has ended, what
//! is remembered of blocks and who refers to inodes follows, and readers come in again. *Dropped* before: nothing has happened, on
//! the disk or in memory.
//!
//! **Invariants.** 1. Nothing outside of the change is different before the unit has ended. 2. One change at a time: the lock of
//! changes is held from its beginning to its end. 3. Readers see the tree before or after it, because its end excludes them.

use std::collections::BTreeMap;
use std::sync::Arc;

use fstitch_core::lock::{MutexGuard, RwLockWriteGuard};
use fstitch_core::{Errno, InodeFlags, InodeNo, Result, Timestamp};
use fstitch_lld::{At, BlockId, EndError, ListId};

use crate::blocks::{Blocks, Image, Key, Known};
use crate::inode::Inode;
use crate::layout::{INODE_AT, KEPT};
use crate::volume::{Life, MinixLld, Node};
use crate::work::Work;

/// What becomes of an inode that loses its last name.
enum Fate {
    /// It is freed by this change, and claimed for that.
    Freed,
    /// It is freed when nobody refers to it any more.
    Kept,
}

/// The fates that a change decides; what it has claimed is given back if it does not happen.
#[derive(Default)]
struct Fates(Vec<(Arc<Node>, Fate)>);

impl Drop for Fates {
    fn drop(&mut self) {
        for (node, fate) in &self.0 {
            if let Fate::Freed = fate {
                node.header.set_orphan(false);
                node.header.unclaim();
            }
        }
    }
}

/// A change that has not ended.
pub(crate) struct Change<'a> {
    fs: &'a MinixLld,
    unit: Work<'a>,
    now: Timestamp,
    /// Blocks of metadata that are different now.
    blocks: BTreeMap<Key, Known>,
    /// The same for inodes, which are written into their blocks at the end.
    inodes: BTreeMap<InodeNo, Inode>,
    /// Blocks of metadata that are no more.
    gone: Vec<Key>,
    /// Before the lock that keeps readers out: who comes in finds them as they were.
    fates: Fates,
    /// Somebody wants all changes of what was changed to be stable at once.
    is_synchronous: bool,
    alone: Option<RwLockWriteGuard<'a, ()>>,
    _changes: MutexGuard<'a, Life>,
}

impl Blocks for Change<'_> {
    fn block_size(&self) -> usize {
        self.fs.block_size()
    }

    fn image(&self, key: Key) -> Result<Option<Image>> {
        Ok(self.known(key)?.map(|known| known.image))
    }

    fn contents(&self, (list, position): Key, into: &mut [u8]) -> Result<bool> {
        match self.unit.block_at(list, position)? {
            Some(block) => self.unit.read(block, into).map(|()| true),
            None => Ok(false),
        }
    }

    fn next_at(&self, list: ListId, from: u64) -> Result<Option<(u64, BlockId)>> {
        self.unit.next_at(list, from)
    }

    fn inode(&self, ino: InodeNo) -> Result<Inode> {
        if let Some(inode) = self.inodes.get(&ino) {
            return Ok(*inode);
        }
        let image = self.image((ino.get(), INODE_AT))?.ok_or(Errno::STALE)?;
        Inode::decode(ino, &image)
    }
}

impl<'a> Change<'a> {
    /// Begins one under the lock of changes.
    pub(crate) fn begin(fs: &'a MinixLld, changes: MutexGuard<'a, Life>) -> Self {
        Self {
            fs,
            unit: Work::begin(fs.disk(), fs.in_units()),
            now: fs.now(),
            blocks: BTreeMap::new(),
            inodes: BTreeMap::new(),
            gone: Vec::new(),
            fates: Fates::default(),
            is_synchronous: false,
            alone: None,
            _changes: changes,
        }
    }

    /// The time of the change.
    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }

    fn known(&self, key: Key) -> Result<Option<Known>> {
        match self.blocks.get(&key) {
            Some(known) => Ok(Some(known.clone())),
            None if self.gone.contains(&key) => Ok(None),
            None => self.fs.known(key),
        }
    }

    /// Gives a block of metadata other contents, and makes it if there is none.
    pub(crate) fn set_image(&mut self, key: Key, image: Vec<u8>) -> Result<()> {
        let id = match self.known(key)? {
            Some(known) => known.id,
            None => self.unit.new_block(key.0, At::Position(key.1))?,
        };
        self.gone.retain(|gone| *gone != key);
        self.blocks.insert(key, Known { id, image: image.into() });
        Ok(())
    }

    /// Removes a block of metadata.
    pub(crate) fn remove_image(&mut self, key: Key) -> Result<()> {
        if let Some(known) = self.known(key)? {
            self.unit.delete_block(known.id)?;
            self.blocks.remove(&key);
            self.gone.push(key);
        }
        Ok(())
    }

    /// Changes an inode.
    pub(crate) fn put(&mut self, inode: Inode) {
        self.is_synchronous |= inode.flags.has(InodeFlags::SYNC);
        self.inodes.insert(inode.ino, inode);
    }

    /// Changes an inode.
    pub(crate) fn update(&mut self, ino: InodeNo, how: impl FnOnce(&mut Inode)) -> Result<()> {
        let mut inode = self.inode(ino)?;
        how(&mut inode);
        self.put(inode);
        Ok(())
    }

    /// The names of a directory change.
    pub(crate) fn touch_names(&mut self, dir: InodeNo) -> Result<()> {
        let now = self.now;
        self.update(dir, |dir| dir.touch(now))?;
        self.is_synchronous |= self.inode(dir)?.flags.has(InodeFlags::DIRSYNC);
        Ok(())
    }

    /// The number of a new inode, whose list is there and empty but for the inode itself, still to be said.
    pub(crate) fn new_inode(&mut self) -> Result<InodeNo> {
        let list = self.unit.new_list(true)?;
        let zeros = vec![0; self.block_size()];
        self.set_image((list, INODE_AT), zeros)?;
        Ok(InodeNo(list))
    }

    /// Writes a block of contents, and makes it if there is none.
    pub(crate) fn write_contents(&self, (list, position): Key, bytes: &[u8]) -> Result<()> {
        let block = match self.unit.block_at(list, position)? {
            Some(block) => block,
            None => self.unit.new_block(list, At::Position(position))?,
        };
        self.unit.write(block, bytes)
    }

    /// A block of contents that reads as zeros and was never written.
    pub(crate) fn empty_contents(&self, (list, position): Key) -> Result<()> {
        if let Some(block) = self.unit.block_at(list, position)? {
            self.unit.delete_block(block)?;
        }
        self.unit.new_block(list, At::Position(position)).map(drop)
    }

    /// Removes a block of contents.
    pub(crate) fn delete_contents(&self, block: BlockId) -> Result<()> {
        self.unit.delete_block(block)
    }

    /// Blocks of an inode beside that of the inode itself.
    pub(crate) fn blocks_of(&self, ino: InodeNo) -> Result<u64> {
        Ok(self.unit.list_len(ino.get())?.saturating_sub(1))
    }

    /// Keeps readers out from now on.
    pub(crate) fn be_alone(&mut self) {
        if self.alone.is_none() {
            self.alone = Some(self.fs.exclude_readers());
        }
    }

    /// An inode without a name is there while somebody refers to it.
    pub(crate) fn keep(&mut self, ino: InodeNo) -> Result<()> {
        self.unit.new_block(KEPT, At::Position(ino.get())).map(drop)
    }

    /// A kept inode has a name again, or goes.
    pub(crate) fn keep_no_more(&mut self, ino: InodeNo) -> Result<()> {
        match self.unit.block_at(KEPT, ino.get())? {
            Some(block) => self.unit.delete_block(block),
            None => Ok(()),
        }
    }

    /// Frees an inode with all that it has.
    pub(crate) fn free(&mut self, ino: InodeNo) -> Result<()> {
        self.keep_no_more(ino)?;
        self.unit.delete_list(ino.get())?;
        self.inodes.remove(&ino);
        self.blocks.retain(|(list, _), _| *list != ino.get());
        self.gone.push((ino.get(), INODE_AT));
        Ok(())
    }

    /// An inode loses its last name: it goes with this change, or, if somebody refers to it, when the last who does lets go.
    pub(crate) fn lose(&mut self, node: &Arc<Node>, inode: Inode) -> Result<()> {
        self.be_alone();
        if self.fs.table().claim_unreferenced(node) {
            self.fates.0.push((Arc::clone(node), Fate::Freed));
            return self.free(inode.ino);
        }
        self.fates.0.push((Arc::clone(node), Fate::Kept));
        self.put(inode);
        self.keep(inode.ino)
    }

    /// Ends it: everything happens now. `then` is called before anybody else sees that.
    ///
    /// # Errors
    /// `ENOSPC` and those of the medium, and nothing has happened. If what was changed is to be stable at once and the medium fails
    /// at that, it may have.
    ///
    /// # Panics
    /// If somebody else changes the disk.
    pub(crate) fn commit<T>(mut self, then: impl FnOnce() -> T) -> Result<T> {
        for inode in std::mem::take(&mut self.inodes).into_values() {
            let key = (inode.ino.get(), INODE_AT);
            let mut image = self.image(key)?.ok_or(Errno::STALE)?.to_vec();
            inode.encode(&mut image);
            self.set_image(key, image)?;
        }
        for known in self.blocks.values() {
            self.unit.write(known.id, &known.image)?;
        }
        self.be_alone();
        let Self { fs, unit, blocks, gone, mut fates, is_synchronous, alone, _changes, .. } = self;
        if let Err(error) = unit.end() {
            drop(fates);
            drop(alone);
            return Err(match error {
                EndError::Disk(error) => error,
                EndError::Conflict(conflict) => panic!("nobody else changes the disk, and yet {conflict}"),
            });
        }
        let fates = std::mem::take(&mut fates.0);
        fs.remember(blocks, &gone);
        for (node, fate) in &fates {
            match fate {
                Fate::Freed => fs.table().remove(node),
                Fate::Kept => node.header.set_orphan(true),
            }
        }
        let done = then();
        drop((alone, _changes));
        // Who let go of it meanwhile could not know that it has no name any more.
        fates.iter().filter(|(_, fate)| matches!(fate, Fate::Kept)).for_each(|(node, _)| fs.settle(node));
        fs.evict();
        if is_synchronous {
            fs.flush()?;
        }
        Ok(done)
    }
}
