//! Keeping the volume's journal while it is mounted, and the list of orphans.
//!
//! **Layout.** The list starts in the superblock (`s_last_orphan`) and goes on through the deletion times (`i_dtime`) of its
//! inodes, the last one's being 0. It is kept only with a journal.
//!
//! **Invariants.** 1. Whoever has neither names nor an end, and whoever is being shortened in steps, is in the list. 2. An
//! inode enters in the transaction that takes its last name or lowers its size, and leaves in the one that ends it.
//! 3. `needs_recovery` is set, stable, before the journal is; it is cleared after the log is empty.
//!
//! **Crash cases.** Recovery finishes what the list says; an inode that is listed and shortened already costs it nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fstitch_core::num::to_usize;
use fstitch_core::{BlockDevice, BlockKind, Result};
use fstitch_patch::{Block, Cache, JournalConfig, JournalMode, PatchId};

use super::inode::Inode;
use super::journal::{Journal, Place, locate, read_superblock};
use super::layout::feature::{incompat, ro_compat};
use super::layout::inode::I_DTIME;
use super::layout::superblock::{S_FEATURE_INCOMPAT, S_LAST_ORPHAN};
use super::volume::Ext2;
use crate::arrange::CachedFormat;
use crate::view::BlockView;

/// The list of orphans as it is in the cache: each with the one before it (nearer to the superblock) and the one after.
#[derive(Debug, Default)]
pub(super) struct OrphanList {
    links: BTreeMap<u32, Neighbours>,
    first: u32,
}

/// 0 stands for none.
#[derive(Clone, Copy, Debug)]
struct Neighbours {
    before: u32,
    after: u32,
}

impl CachedFormat for Ext2 {
    fn open(cache: Arc<Cache>) -> Result<Self> {
        Self::open(cache)
    }

    fn name(&self) -> &'static str {
        self.superblock().features.format_name()
    }

    fn needs_claim(device: &dyn BlockDevice) -> Result<bool> {
        Ok(read_superblock(device)?.1.features.has_incompat(incompat::MMP))
    }

    fn needs_journal(device: &dyn BlockDevice) -> Result<Option<&'static str>> {
        let features = read_superblock(device)?.1.features;
        Ok(match features {
            _ if features.has_incompat(incompat::EA_INODE) => Some("ea_inode"),
            _ if features.has_ro_compat(ro_compat::QUOTA) => Some("quota"),
            _ if features.has_ro_compat(ro_compat::BIGALLOC) => Some("bigalloc"),
            _ => None,
        })
    }

    fn journal_config(
        device: &dyn BlockDevice,
        external: Option<&dyn BlockDevice>,
        mode: JournalMode,
        commit_interval: Duration,
    ) -> Result<Option<JournalConfig>> {
        let (raw, shape) = read_superblock(device)?;
        let Some(place) = locate(&shape, &raw)? else { return Ok(None) };
        let block_size = to_usize(shape.block_size);
        let journal = Journal::find(&BlockView::new(device, block_size), &shape, place, external)?;
        let area = match place {
            Place::Inode(_) => journal.area,
            Place::Device(_) => journal.area.behind(device.geometry().block_count)?,
        };
        Ok(Some(JournalConfig { mode, area, commit_interval }))
    }

    fn use_journal(&self, config: JournalConfig) {
        self.keeps_indexes.store(true, Ordering::Relaxed);
        *self.journal.lock() = Some(config);
    }
}

impl Ext2 {
    /// Whether changes go through a journal.
    #[must_use]
    pub fn has_journal_in_use(&self) -> bool {
        self.journal.lock().is_some()
    }

    fn journal(&self) -> Option<JournalConfig> {
        self.journal.lock().clone()
    }

    /// Says on the medium that there will be something to recover, then starts the journal. False if there is none.
    pub(super) fn start_journal(&self, patches: &mut Vec<PatchId>) -> Result<bool> {
        let Some(config) = self.journal() else { return Ok(false) };
        {
            let mut tx = self.cache.lock();
            let word = self.field(&tx, S_FEATURE_INCOMPAT) | incompat::RECOVER;
            patches.push(self.put(&mut tx, S_FEATURE_INCOMPAT, word, &[]));
        }
        self.cache.sync_patches(patches)?;
        self.cache.start_journal(config)?;
        Ok(true)
    }

    /// Empties the journal, and says so.
    pub(super) fn stop_journal(&self) -> Result<()> {
        if self.journal().is_none() {
            return Ok(());
        }
        self.cache.stop_journal()?;
        let mut tx = self.cache.lock();
        let word = self.field(&tx, S_FEATURE_INCOMPAT) & !incompat::RECOVER;
        self.put(&mut tx, S_FEATURE_INCOMPAT, word, &[]);
        Ok(())
    }

    /// Enters an inode into the list of orphans, if it is not there. `block` is the inode's.
    pub(super) fn enter_orphan(&self, inode: &mut Inode, block: &Block) {
        if !self.cache.is_journaled() {
            return;
        }
        let mut list = self.orphans.lock();
        if list.links.contains_key(&inode.ino) {
            return;
        }
        let after = std::mem::replace(&mut list.first, inode.ino);
        list.links.insert(inode.ino, Neighbours { before: 0, after });
        if let Some(next) = list.links.get_mut(&after) {
            next.before = inode.ino;
        }
        let mut tx = self.cache.lock();
        inode.disk.dtime = after;
        inode.put(&mut tx, block, (I_DTIME, after), &[]);
        self.put(&mut tx, S_LAST_ORPHAN, inode.ino, &[]);
    }

    /// Takes an inode out of the list of orphans, if it is there. `block` is the inode's; its deletion time becomes 0.
    pub(super) fn leave_orphans(&self, inode: &mut Inode, block: &Block) -> Result<()> {
        let mut list = self.orphans.lock();
        let Some(&Neighbours { before, after }) = list.links.get(&inode.ino) else { return Ok(()) };
        let previous = match before {
            0 => None,
            before => {
                let (no, offset) = self.inode_place(before)?;
                Some((self.cache.read(no, BlockKind::Inode)?, offset))
            }
        };
        list.links.remove(&inode.ino);
        if let Some(next) = list.links.get_mut(&after) {
            next.before = before;
        }
        let mut tx = self.cache.lock();
        match previous {
            None => {
                list.first = after;
                self.put(&mut tx, S_LAST_ORPHAN, after, &[]);
            }
            Some((table, offset)) => {
                tx.bytes(&table, offset + I_DTIME.offset(), &after.to_le_bytes(), &[]);
                if let Some(neighbour) = list.links.get_mut(&before) {
                    neighbour.after = after;
                }
            }
        }
        inode.disk.dtime = 0;
        inode.put(&mut tx, block, (I_DTIME, 0_u32), &[]);
        Ok(())
    }

    /// The file is about to be shortened in steps.
    pub(super) fn start_shortening(&self, inode: &mut Inode) -> Result<()> {
        if self.cache.is_journaled() {
            let block = self.inode_block(inode)?;
            self.enter_orphan(inode, &block);
        }
        Ok(())
    }

    /// It has been. A file without names stays in the list.
    pub(super) fn end_shortening(&self, inode: &mut Inode) -> Result<()> {
        if self.cache.is_journaled() && inode.disk.nlink > 0 {
            let block = self.inode_block(inode)?;
            self.leave_orphans(inode, &block)?;
        }
        Ok(())
    }
}
