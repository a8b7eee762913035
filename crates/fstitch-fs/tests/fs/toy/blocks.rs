//! The toy's file blocks.

use std::sync::Arc;

use fstitch_core::{BlockBuf, BlockKind, BlockNo, Errno, Result};
use fstitch_fs::uhfs::{Allocation, Extent, Writable};
use fstitch_patch::{PatchId, PatchIds, PatchState};

use super::{DATA_START, Event, ToyFs, ToyInode};

impl ToyFs {
    pub(super) fn map_blocks(&self, inode: &ToyInode, index: u64, max: u64) -> Extent {
        let tables = self.0.tables();
        let blocks = &tables.raw(inode).blocks;
        let Some(&start) = blocks.get(&index) else {
            let next = blocks.range(index..).next().map_or(u64::MAX, |(&next, _)| next);
            return Extent::hole(max.min(next - index));
        };
        let run = (1..max).take_while(|i| blocks.get(&(index + i)) == Some(&(start + i)));
        Extent::of(BlockNo(start), 1 + u64::try_from(run.count()).unwrap())
    }

    pub(super) fn allocate_blocks(&self, inode: &ToyInode, index: u64, want: u64) -> Result<Allocation> {
        let mut tables = self.0.tables();
        tables.check_failure("allocate")?;
        let end = self.0.cache.block_count();
        let start = (DATA_START..end).find(|block| !tables.used.contains_key(block)).ok_or(Errno::NOSPC)?;
        let mut count = 0;
        while count < want && start + count < end && !tables.used.contains_key(&(start + count)) {
            count += 1;
        }
        let mut reuse = PatchIds::new();
        for block in start..start + count {
            tables.used.insert(block, inode.0);
            reuse.extend(tables.freed.remove(&block));
        }
        reuse.retain(|patch| self.0.cache.state(*patch) != PatchState::Committed);
        let bits = self.0.event(&mut tables, format!("bits {start}+{count}"), &[]);
        let bits = PatchIds::from_slice(&[bits]);
        Ok(Allocation { index, start: BlockNo(start), count, reuse, bits })
    }

    pub(super) fn attach_blocks(
        &self,
        inode: &ToyInode,
        allocation: &Allocation,
        contents: &[PatchId],
    ) -> Result<PatchIds> {
        assert!(contents.len() == usize::try_from(allocation.count).unwrap(), "each block is initialised");
        let mut tables = self.0.tables();
        let mut befores = allocation.bits.clone();
        befores.extend_from_slice(contents);
        let raw = tables.raw_mut(inode);
        for i in 0..allocation.count {
            let old = raw.blocks.insert(allocation.index + i, allocation.start.get() + i);
            assert!(old.is_none(), "only holes are filled");
        }
        let label = format!("pointers {}+{} of {}", allocation.index, allocation.count, inode.0);
        Ok(PatchIds::from_slice(&[self.0.inode_event(&mut tables, inode.0, label, &befores)]))
    }

    /// Copies a block of the file to another place: bit and copy → pointer → the old place is free.
    pub(super) fn move_block(
        &self,
        inode: &ToyInode,
        (index, old): (u64, BlockNo),
        befores: &[PatchId],
    ) -> Result<Writable> {
        let Allocation { start, reuse, bits, .. } = self.allocate_blocks(inode, index, 1)?;
        let cache = &self.0.cache;
        let contents = Arc::new(BlockBuf::copy_of(&cache.read(old, BlockKind::Data)?.snapshot()));
        let block = cache.fresh(start, BlockKind::Data)?;
        let copied = cache.lock().init(&block, contents, &reuse);
        let mut after = bits;
        after.push(copied);
        after.extend_from_slice(befores);
        let mut tables = self.0.tables();
        tables.raw_mut(inode).blocks.insert(index, start.get());
        let label = format!("move {index} of {}", inode.0);
        let moved = self.0.inode_event(&mut tables, inode.0, label, &after);
        tables.used.remove(&old.get());
        tables.freed.insert(old.get(), moved);
        if tables.events.len() < 100_000 {
            tables.events.push(Event { label: format!("copy {index} of {}", inode.0), patch: copied });
        }
        let extent = Extent::of(start, 1);
        Ok(Writable { extent, moved: PatchIds::from_slice(&[moved]) })
    }

    pub(super) fn detach_blocks(
        &self,
        inode: &ToyInode,
        (from, to): (u64, u64),
        befores: &[PatchId],
    ) -> Result<PatchIds> {
        let mut tables = self.0.tables();
        tables.check_failure("detach")?;
        let raw = tables.raw_mut(inode);
        let mut gone = raw.blocks.split_off(&from);
        raw.blocks.append(&mut gone.split_off(&to));
        if gone.is_empty() {
            return Ok(PatchIds::new());
        }
        let label = format!("detach {from} of {}", inode.0);
        let patch = self.0.inode_event(&mut tables, inode.0, label, befores);
        for block in gone.into_values() {
            tables.used.remove(&block);
            tables.freed.insert(block, patch);
        }
        Ok(PatchIds::from_slice(&[patch]))
    }
}
