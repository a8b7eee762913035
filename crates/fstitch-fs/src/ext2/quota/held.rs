//! Charging the owners of an inode for what it has.

use fstitch_core::{BlockKind, Caller, Result};
use fstitch_patch::{Block, PatchId, PatchIds, Tx};

use super::{Change, Graces, Usage, changed, limits};
use crate::ext2::inode::Inode;
use crate::ext2::layout::inode::DiskInode;
use crate::ext2::layout::quota::{Dquot, ENTRY_SIZE, QuotaKind};
use crate::ext2::volume::Ext2;
use crate::uhfs::AttrChange;

/// Owners, by kind.
pub(in crate::ext2) type Owners = [u32; 3];

/// The entries of an inode's owners, in memory as long as this lives; none on a volume without quotas.
#[derive(Default)]
pub(in crate::ext2) struct Held([Option<Entry>; 3]);

struct Entry {
    block: Block,
    at: usize,
    graces: Graces,
}

impl Entry {
    fn read(&self, tx: &Tx<'_>) -> (u32, Dquot) {
        let raw = &tx.data(&self.block)[self.at..self.at + ENTRY_SIZE];
        Dquot::parse(raw).unwrap_or_default()
    }

    /// Patches the bytes that a change makes others.
    fn charge(&self, tx: &mut Tx<'_>, change: Change, now: u64) {
        let (id, before) = self.read(tx);
        let after = changed(&before, change, self.graces, now).encode(id);
        let raw = &tx.data(&self.block)[self.at..self.at + ENTRY_SIZE];
        let differs = |at: &usize| raw[*at] != after[*at];
        if let (Some(first), Some(last)) = ((0..ENTRY_SIZE).find(differs), (0..ENTRY_SIZE).rfind(differs)) {
            tx.bytes(&self.block, self.at + first, &after[first..=last], &[]);
        }
    }
}

impl DiskInode {
    /// Whose it is.
    pub(in crate::ext2) const fn owners(&self) -> Owners {
        [self.uid, self.gid, self.projid]
    }

    /// What it has, as long as it is one.
    pub(in crate::ext2) const fn usage(&self) -> Usage {
        Usage { inodes: 1, space: self.sectors * 512 }
    }
}

impl Inode {
    /// What its owners are to be charged for.
    pub(in crate::ext2) fn owed(&self) -> Usage {
        if self.has_ended { Usage::default() } else { self.disk.usage() }
    }
}

impl Ext2 {
    /// The entries of `owners`, which get some where they have none.
    ///
    /// # Errors
    /// `ENOSPC`, `Io`, `Corrupt`; nobody's usage has changed then.
    pub(in crate::ext2) fn hold_entries(&self, owners: Owners) -> Result<Held> {
        let mut held = Held::default();
        let Some(quotas) = &self.quotas else { return Ok(held) };
        for (kind, id) in QuotaKind::ALL.into_iter().zip(owners) {
            let Some(file) = quotas.of(kind) else { continue };
            let (block, at) = self.quota_entry(file, id)?;
            let block = self.cache.read(block, BlockKind::Indirect)?;
            held.0[kind.index()] = Some(Entry { block, at, graces: file.graces });
        }
        Ok(held)
    }

    /// Charges the inode's owners for what it has more or less than they were charged for.
    pub(in crate::ext2) fn charge(&self, inode: &mut Inode, held: &Held) {
        let owed = inode.owed();
        let change = owed.since(std::mem::replace(&mut inode.charged, owed));
        if change.is_none() || self.quotas.is_none() {
            return;
        }
        let now = self.now_secs64();
        let mut tx = self.cache.lock();
        for entry in held.0.iter().flatten() {
            entry.charge(&mut tx, change, now);
        }
    }

    /// Does `work` on an inode, and charges its owners for what becomes of it, also where it fails.
    pub(in crate::ext2) fn charged<T>(
        &self,
        inode: &mut Inode,
        work: impl FnOnce(&mut Inode) -> Result<T>,
    ) -> Result<T> {
        if self.quotas.is_none() {
            return work(inode);
        }
        let held = self.hold_entries(inode.disk.owners())?;
        let done = work(inode);
        self.charge(inode, &held);
        done
    }

    /// Does `work` that gives an inode up to so many bytes for `caller`, if that is allowed.
    ///
    /// # Errors
    /// `EDQUOT`, those of the work.
    pub(in crate::ext2) fn charged_up_to<T>(
        &self,
        (caller, space): (&Caller, u64),
        inode: &mut Inode,
        work: impl FnOnce(&mut Inode) -> Result<T>,
    ) -> Result<T> {
        if self.quotas.is_none() {
            return work(inode);
        }
        let held = self.hold_entries(inode.disk.owners())?;
        self.expect_quota(caller, &held, Usage { inodes: 0, space })?;
        let done = work(inode);
        self.charge(inode, &held);
        done
    }

    /// How much more the owners of these entries may have, for `caller`.
    fn quota_room(&self, caller: &Caller, held: &Held) -> Usage {
        let mut room = Usage { inodes: u64::MAX, space: u64::MAX };
        if !limits::hold_for(caller) {
            return room;
        }
        let now = self.now_secs64();
        let tx = self.cache.lock();
        for entry in held.0.iter().flatten() {
            let own = limits::room(&entry.read(&tx).1, now);
            room = Usage { inodes: room.inodes.min(own.inodes), space: room.space.min(own.space) };
        }
        room
    }

    fn expect_quota(&self, caller: &Caller, held: &Held, wanted: Usage) -> Result<()> {
        limits::expect(self.quota_room(caller, held), wanted)
    }

    /// How many of `want` more blocks the inode may have.
    ///
    /// # Errors
    /// `EDQUOT` if it may have none.
    pub(in crate::ext2) fn blocks_by_quota(&self, caller: &Caller, inode: &Inode, want: u64) -> Result<u64> {
        if self.quotas.is_none() {
            return Ok(want);
        }
        // They are needed when the blocks are the file's, where nothing may fail any more.
        let held = self.hold_entries(inode.disk.owners())?;
        let unit = u64::from(self.sb.block_size);
        // Blocks that were taken and are not the file's yet will be charged for.
        let ahead = unit.saturating_mul(inode.ahead + self.spare_blocks(inode));
        let room = self.quota_room(caller, &held).space.saturating_sub(ahead) / unit;
        if room == 0 { Err(fstitch_core::Errno::DQUOT.into()) } else { Ok(want.min(room)) }
    }

    /// Blocks that were taken for the file's map and are not in it yet.
    fn spare_blocks(&self, inode: &Inode) -> u64 {
        let runs = inode.reserved.values().chain(&inode.spare_nodes);
        runs.map(|run| u64::from(run.count)).sum()
    }

    /// Fails unless the file may have what was taken for it, of which `blocks` are those that were asked for.
    pub(in crate::ext2) fn expect_map_quota(
        &self,
        caller: &Caller,
        inode: &Inode,
        blocks: u64,
    ) -> Result<()> {
        let spare = self.spare_blocks(inode);
        if self.quotas.is_none() || spare == 0 {
            return Ok(());
        }
        let held = self.hold_entries(inode.disk.owners())?;
        let space = (inode.ahead + blocks + spare) * u64::from(self.sb.block_size);
        self.expect_quota(caller, &held, Usage { inodes: 0, space })
    }

    /// Makes a new inode with these owners by `work`, if that is allowed, and charges them.
    ///
    /// # Errors
    /// `EDQUOT`, those of the work.
    pub(in crate::ext2) fn charged_new<T>(
        &self,
        caller: &Caller,
        (owners, blocks): (Owners, u64),
        work: impl FnOnce() -> Result<(Inode, T)>,
    ) -> Result<(Inode, T)> {
        let held = self.hold_entries(owners)?;
        let space = blocks * u64::from(self.sb.block_size);
        self.expect_quota(caller, &held, Usage { inodes: 1, space })?;
        let (mut inode, more) = work()?;
        self.charge(&mut inode, &held);
        Ok((inode, more))
    }

    /// Changes attributes, the owners among them: what the inode has goes from the old ones to the new ones.
    ///
    /// # Errors
    /// `EDQUOT` if a new one may not have it, those of a change of attributes.
    pub(in crate::ext2) fn change_owners(
        &self,
        inode: &mut Inode,
        change: &AttrChange,
        befores: &[PatchId],
    ) -> Result<PatchIds> {
        let old = inode.disk.owners();
        let new = [change.uid, change.gid, change.project];
        let new: Owners = std::array::from_fn(|kind| new[kind].unwrap_or(old[kind]));
        if self.quotas.is_none() || old == new {
            return self.change_attr(inode, change, befores);
        }
        let mut from = self.hold_entries(old)?;
        let mut to = self.hold_entries(new)?;
        for kind in 0..old.len() {
            if old[kind] == new[kind] {
                (from.0[kind], to.0[kind]) = (None, None);
            }
        }
        let has = inode.owed();
        if change.is_limited {
            limits::expect(self.room_of(&to), has)?;
        }
        let patches = self.change_attr(inode, change, befores)?;
        let now = self.now_secs64();
        let mut tx = self.cache.lock();
        for (held, change) in [(&from, Usage::default().since(has)), (&to, has.since(Usage::default()))] {
            for entry in held.0.iter().flatten() {
                entry.charge(&mut tx, change, now);
            }
        }
        Ok(patches)
    }

    fn room_of(&self, held: &Held) -> Usage {
        self.quota_room(&Caller { uid: u32::MAX, ..Caller::default() }, held)
    }

    fn now_secs64(&self) -> u64 {
        self.now().secs.max(0).cast_unsigned()
    }
}
