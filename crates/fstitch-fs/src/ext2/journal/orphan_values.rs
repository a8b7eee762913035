//! Values of an orphan's attributes that have inodes of their own.
//!
//! **Crash cases.** A value that nobody else refers to may go in a batch before its orphan's last: it is free then, and who comes again passes it
//! over. The counts of those that others refer to as well fall in the batch that ends the orphan.

use std::collections::BTreeMap;

use fstitch_core::{BlockKind, Error, FileKind, Result};

use super::pass::{Loaded, Pass};
use crate::ext2::layout::inode::{EA_INODE_FL, I_BLOCKS, I_DTIME, I_LINKS_COUNT, I_SIZE, I_SIZE_HIGH};
use crate::ext2::layout::xattr::{H_REFCOUNT, XattrSet};
use crate::ext2::values::{put_references, references};
use crate::ext2::xattr::body_range;

/// Blocks that a batch has changed at most that has only begun with an orphan, and those of its end.
const ENDING: usize = 16;

impl Pass<'_, '_> {
    /// Lets go of the values of an inode that is freed; false if some are left for another batch. Nothing is sent here: what a batch
    /// has changed of an orphan may yet be taken back, and its sums are those of the whole batch.
    pub(super) fn free_values(&mut self, orphan: &Loaded) -> Result<bool> {
        let mut shared = Vec::new();
        for (ino, by) in self.values_of(orphan)? {
            let damaged = || {
                let problem = format!("inode {} has the value of an attribute in inode {ino}", orphan.ino);
                Error::corrupt(self.what, orphan.at.0, problem)
            };
            if !self.shape.is_files_inode(ino) || ino == orphan.ino {
                return Err(damaged());
            }
            let Some(mut value) = self.load_inode(ino)? else { continue };
            if value.disk.kind != FileKind::Regular || value.disk.flags & EA_INODE_FL == 0 {
                return Err(damaged());
            }
            let count = references(&self.read(value.at.0, BlockKind::Inode)?[value.at.1..]);
            if count > by {
                shared.push((value, count - by));
                continue;
            }
            if self.is_full() || !self.free_value(&mut value)? {
                return Ok(false);
            }
        }
        let changes = self.changes() + shared.len() + 2 * ENDING;
        if self.changes() > ENDING && changes > self.batch_max() {
            // They fall in one batch, with the orphan's end. It has no blocks any more, and is in its list: the next batch begins
            // with it, passes over the values that are free then, and is short enough.
            self.is_due = true;
            return Ok(false);
        }
        for (value, count) in shared {
            self.summed.inodes.insert(value.ino, value.at);
            put_references(&mut self.change(value.at.0, BlockKind::Inode)?[value.at.1..], count);
        }
        Ok(true)
    }

    /// How many of the inode's entries refer to which values. What others share refers to its values as long as they do.
    fn values_of(&self, orphan: &Loaded) -> Result<BTreeMap<u32, u64>> {
        let table = self.read(orphan.at.0, BlockKind::Inode)?;
        let raw = &table[orphan.at.1..orphan.at.1 + usize::from(self.shape.inode_size)];
        let body = XattrSet::parse_body(
            &raw[body_range(self.shape.inode_size, orphan.disk.extra_isize)],
            orphan.at.0,
        )?;
        let mut all = body.0;
        if orphan.disk.xattr_block != 0 {
            let (no, bytes) = self.read_attributes(orphan.disk.xattr_block)?;
            if H_REFCOUNT.get(&bytes) <= 1 {
                all.extend(XattrSet::parse_block(&bytes, no)?.0.0);
            }
        }
        let mut values = BTreeMap::new();
        for at in all.iter().filter_map(|attribute| attribute.elsewhere) {
            *values.entry(at.inode).or_default() += 1;
        }
        Ok(values)
    }

    /// Frees an inode with a value; false if some of its blocks are left.
    fn free_value(&mut self, value: &mut Loaded) -> Result<bool> {
        self.summed.inodes.insert(value.ino, value.at);
        let sums = self.shape.sums.of_inode(value.ino, value.disk.generation);
        let outer = std::mem::replace(&mut self.summed.nodes_of, value.disk.has_extents().then_some(sums));
        let finished = self.free_from(value, 0);
        self.summed.nodes_of = outer;
        let finished = finished?;
        self.put_blocks(value)?;
        if !finished {
            return Ok(false);
        }
        self.free_inode(value)?;
        let dtime = self.deletion_time()?;
        let bytes = &mut self.change(value.at.0, BlockKind::Inode)?[value.at.1..];
        I_DTIME.put(bytes, dtime);
        I_LINKS_COUNT.put(bytes, 0);
        for field in [I_SIZE, I_SIZE_HIGH, I_BLOCKS] {
            field.put(bytes, 0);
        }
        Ok(true)
    }
}
